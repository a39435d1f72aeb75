/*
 * The file provider shared by several processes, for tests of several instances on one machine, where what is shared in
 * earnest (an HSM, a key service) would only add its own life to the test. The file is locked for the time of a call
 * instead of for the life of a process. Never part of a release build.
 */
#include "dataplane/keys/roe_file_int.h"

#ifdef KV_FAULTS

#include "dataplane/base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <time.h>

#define OPEN_TRIES 1000 /* of 5 ms: another process may be inside a call */

struct shared_roe {
    struct kv_roe base;
    struct kv_roe *file; /* owned */
};

static struct kv_roe *file_of(struct kv_roe *roe)
{
    return ((struct shared_roe *)roe)->file;
}

static KV_RC set_lock(struct kv_roe *file, short type)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET};
    int rc = -1;
    do {
        rc = fcntl(kv_roe_file_fd(file), F_OFD_SETLKW, &lock);
    } while (rc != 0 && errno == EINTR);
    return rc == 0 ? KV_OK : KV_E_IO;
}

/* `call` under the lock. */
#define LOCKED(roe, call)                                     \
    do {                                                      \
        KV_TRY(set_lock(file_of(roe), F_WRLCK));              \
        enum kv_err rc_ = (call);                             \
        enum kv_err freed_ = set_lock(file_of(roe), F_UNLCK); \
        return rc_ != KV_OK ? rc_ : freed_;                   \
    } while (0)

static KV_RC shared_open(const struct kv_roe_conf *conf, struct kv_errinfo *info, struct kv_roe **ret_roe)
{
    struct shared_roe *roe = kv_alloc(sizeof *roe);
    if (roe == NULL) {
        return KV_E_NO_MEMORY;
    }
    roe->base.ops = &kv_roe_file_shared;
    enum kv_err rc = KV_E_BUSY;
    for (int tries = 0; rc == KV_E_BUSY && tries < OPEN_TRIES; tries++) {
        rc = kv_roe_file.open(conf, info, &roe->file);
        if (rc == KV_E_BUSY) {
            (void)nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
        }
    }
    if (rc == KV_OK) {
        rc = set_lock(roe->file, F_UNLCK);
    }
    if (rc != KV_OK) {
        kv_roe_file.close(roe->file);
        kv_free(roe);
        return rc;
    }
    *ret_roe = &roe->base;
    return KV_OK;
}

static KV_RC shared_create(struct kv_roe *roe, const struct kv_id *id)
{
    LOCKED(roe, kv_roe_file.create(file_of(roe), id));
}

static KV_RC shared_wrap(struct kv_roe *roe, const struct kv_id *id, const struct kv_secret *root,
                         struct kv_buf *ret_blob)
{
    LOCKED(roe, kv_roe_file.wrap(file_of(roe), id, root, ret_blob));
}

static KV_RC shared_unwrap(struct kv_roe *roe, const struct kv_id *id, struct kv_bytes blob,
                           struct kv_secret **ret_root)
{
    LOCKED(roe, kv_roe_file.unwrap(file_of(roe), id, blob, ret_root));
}

static KV_RC shared_commit(struct kv_roe *roe, const struct kv_id *fresh, const struct kv_id *old,
                           struct kv_roe_receipt *ret_receipt)
{
    LOCKED(roe, kv_roe_file.commit(file_of(roe), fresh, old, ret_receipt));
}

static KV_RC shared_retire(struct kv_roe *roe, const struct kv_id *old, const struct kv_id *fresh,
                           struct kv_roe_receipt *ret_receipt)
{
    LOCKED(roe, kv_roe_file.retire(file_of(roe), old, fresh, ret_receipt));
}

static KV_RC shared_discard(struct kv_roe *roe, const struct kv_id *staged)
{
    LOCKED(roe, kv_roe_file.discard(file_of(roe), staged));
}

static KV_RC shared_list(struct kv_roe *roe, struct kv_id *ret_active, struct kv_id *ret_staged)
{
    LOCKED(roe, kv_roe_file.list(file_of(roe), ret_active, ret_staged));
}

static const char *shared_assurance(const struct kv_roe *roe)
{
    return kv_roe_file.assurance(((const struct shared_roe *)roe)->file);
}

static const char *shared_describe(const struct kv_roe *roe)
{
    return kv_roe_file.describe(((const struct shared_roe *)roe)->file);
}

static void shared_close(struct kv_roe *roe)
{
    if (roe != NULL) {
        kv_roe_file.close(file_of(roe));
        kv_free(roe);
    }
}

const struct kv_roe_ops kv_roe_file_shared = {
    .name = "file",
    .shared = true,
    .open = shared_open,
    .create = shared_create,
    .wrap = shared_wrap,
    .unwrap = shared_unwrap,
    .commit = shared_commit,
    .retire = shared_retire,
    .discard = shared_discard,
    .list = shared_list,
    .describe = shared_describe,
    .assurance = shared_assurance,
    .close = shared_close,
};

#endif
