/*
 * Reading, writing and destroying slots in place. The file is never renamed, truncated or grown here: a key that is
 * overwritten must be the only copy of it that the file system ever held.
 */
#include "dataplane/base/fault.h"
#include "dataplane/base/log.h"
#include "dataplane/base/mem.h"
#include "dataplane/keys/roe_file_int.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

KV_RC kv_medium_read_at(int fd, uint8_t *target, size_t len, uint64_t offset)
{
    ssize_t got;
    do {
        got = pread(fd, target, len, (off_t)offset);
    } while (got < 0 && errno == EINTR);
    return got == (ssize_t)len ? KV_OK : KV_E_IO;
}

KV_RC kv_medium_write_at(int fd, const uint8_t *source, size_t len, uint64_t offset)
{
    ssize_t put;
    do {
        put = pwrite(fd, source, len, (off_t)offset);
    } while (put < 0 && errno == EINTR);
    return put == (ssize_t)len ? KV_OK : KV_E_IO;
}

void kv_medium_forget(struct kv_medium *medium)
{
    kv_wipe(medium->buffer, KV_ROE_HEADER_BYTES);
}

KV_RC kv_medium_check_path(const struct kv_medium *medium)
{
    struct stat opened, named;
    if (fstat(medium->fd, &opened) != 0) {
        return KV_E_IO;
    }
    if (lstat(medium->path, &named) != 0 || named.st_dev != opened.st_dev || named.st_ino != opened.st_ino) {
        kv_log(KV_LOG_ERROR, "roe", "the root file was replaced or removed while it was open");
        return KV_E_FOREIGN_FILE;
    }
    return KV_OK;
}

KV_RC kv_medium_read_slot(struct kv_medium *medium, unsigned slot)
{
    if (!medium->direct) {
        /* The best that is left without O_DIRECT: drop the clean cached page, so that the device is asked. */
        (void)posix_fadvise(medium->fd, (off_t)kv_roe_slot_offset(slot), KV_ROE_SLOT_BYTES, POSIX_FADV_DONTNEED);
    }
    enum kv_err rc = kv_medium_read_at(medium->fd, medium->buffer, KV_ROE_SLOT_BYTES, kv_roe_slot_offset(slot));
    if (rc != KV_OK) {
        kv_medium_forget(medium);
    }
    return rc;
}

static KV_RC sync_file(int fd)
{
    return fdatasync(fd) == 0 ? KV_OK : KV_E_IO;
}

KV_RC kv_medium_write_slot(const struct kv_medium *medium, unsigned slot)
{
    KV_TRY(kv_medium_write_at(medium->fd, medium->buffer, KV_ROE_SLOT_BYTES, kv_roe_slot_offset(slot)));
    return sync_file(medium->fd);
}

static KV_RC slot_is_zero(struct kv_medium *medium, unsigned slot)
{
    KV_TRY(kv_medium_read_slot(medium, slot));
    uint8_t sum = 0;
    for (size_t i = 0; i < KV_ROE_SLOT_BYTES; i++) {
        sum |= medium->buffer[i];
    }
    kv_medium_forget(medium);
    return sum == 0 ? KV_OK : KV_E_IO;
}

KV_RC kv_medium_destroy_slot(struct kv_medium *medium, unsigned slot)
{
    if (KV_FAULT("roe/file/destroy-write")) {
        return KV_E_IO;
    }
    /* Random bytes first: storage that turns a written zero page into a discard would leave the old cells as they are.
     */
    KV_TRY(medium->env->random(medium->env->ctx, medium->buffer, KV_ROE_SLOT_BYTES));
    KV_TRY(kv_medium_write_slot(medium, slot));
    kv_medium_forget(medium);
    KV_TRY(kv_medium_write_at(medium->fd, medium->buffer, KV_ROE_SLOT_BYTES, kv_roe_slot_offset(slot)));
    if (KV_FAULT("roe/file/destroy-sync")) {
        return KV_E_IO;
    }
    KV_TRY(sync_file(medium->fd));
    return slot_is_zero(medium, slot);
}

void kv_medium_close(struct kv_medium *medium)
{
    if (medium->fd >= 0) {
        close(medium->fd); /* Ends the lock. */
    }
    kv_locked_free(medium->buffer, KV_ROE_HEADER_BYTES);
    kv_free(medium->path);
    *medium = (struct kv_medium){.fd = -1};
}
