/*
 * The file of a signing key: 64 lower-case hex digits and a newline, mode 0600, no symbolic link. A new file is written
 * and synced under a passing name and then linked to its own, so that a crash leaves a whole key or none, and an
 * existing key is never replaced. What a crash leaves behind is a seed that nobody ever used. Never print the seed, and
 * never log the path.
 */
#include "dataplane/base/fault.h"
#include "dataplane/base/mem.h"
#include "dataplane/crypto/sign_int.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_BYTES = 2 * KV_SIGN_SEED_BYTES + 1, SUFFIX_BYTES = 8 };

static KV_RC fail_errno(struct kv_errinfo *info, enum kv_err code, const char *text)
{
    int saved = errno;
    enum kv_err rc = kv_fail(info, code, "%s: %s", text, strerror(saved));
    if (info != NULL) {
        info->sys_errno = saved;
    }
    return rc;
}

static KV_RC check_file(int fd, struct kv_errinfo *info)
{
    struct stat st;
    if (fstat(fd, &st) != 0) {
        return fail_errno(info, KV_E_IO, "signing key file cannot be examined");
    }
    if (!S_ISREG(st.st_mode)) {
        return kv_fail(info, KV_E_CONFIG, "signing key must be a regular file");
    }
    if ((st.st_mode & 077) != 0) {
        return kv_fail(
            info, KV_E_CONFIG,
            "signing key file is open to group or others (mode %04o): chmod 600, and make a new key if it was read",
            (unsigned)(st.st_mode & 07777));
    }
    if (st.st_size != FILE_BYTES) {
        return kv_fail(info, KV_E_CORRUPT,
                       "signing key file must be 64 hex digits and a newline: restore it from its copy");
    }
    return KV_OK;
}

/* Reads as much as there is, up to `size`; `ret_len` tells how much. */
static KV_RC read_up_to(int fd, void *target, size_t size, size_t *ret_len)
{
    size_t done = 0;
    while (done < size) {
        ssize_t got = read(fd, (uint8_t *)target + done, size - done);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return KV_E_IO;
        }
        if (got == 0) {
            break;
        }
        done += (size_t)got;
    }
    *ret_len = done;
    return KV_OK;
}

static KV_RC parse_text(char text[FILE_BYTES + 1], size_t len, struct kv_secret *seed)
{
    if (len != FILE_BYTES || text[FILE_BYTES - 1] != '\n') {
        return KV_E_CORRUPT;
    }
    text[FILE_BYTES - 1] = '\0';
    return kv_hex_decode(text, kv_secret_data_mutable(seed), KV_SIGN_SEED_BYTES) == KV_OK ? KV_OK : KV_E_CORRUPT;
}

static KV_RC read_seed(int fd, struct kv_errinfo *info, struct kv_secret **ret_seed)
{
    char text[FILE_BYTES + 1] = {0};
    size_t len = 0;
    struct kv_secret *seed = NULL;
    KV_TRY(check_file(fd, info));
    if (read_up_to(fd, text, FILE_BYTES, &len) != KV_OK) {
        enum kv_err failed = fail_errno(info, KV_E_IO, "signing key file cannot be read");
        kv_wipe(text, sizeof text);
        return failed;
    }
    enum kv_err rc = kv_secret_new(KV_SIGN_SEED_BYTES, &seed);
    if (rc == KV_OK) {
        rc = parse_text(text, len, seed);
    }
    kv_wipe(text, sizeof text);
    if (rc != KV_OK) {
        kv_secret_free(seed);
        return kv_fail(info, rc,
                       "signing key file must be 64 lower-case hex digits and a newline: restore it from its copy");
    }
    *ret_seed = seed;
    return KV_OK;
}

static KV_RC open_file(const char *path, struct kv_errinfo *info, int *ret_fd)
{
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT) {
        return fail_errno(info, KV_E_NOT_FOUND, "signing key file is not there");
    }
    if (fd < 0 && errno == ELOOP) {
        return kv_fail(info, KV_E_CONFIG, "signing key must not be a symbolic link: name the file itself");
    }
    if (fd < 0) {
        return fail_errno(info, KV_E_IO, "signing key file cannot be opened");
    }
    *ret_fd = fd;
    return KV_OK;
}

KV_RC kv_sign_key_load(const char *path, struct kv_errinfo *info, struct kv_sign_key **ret_key)
{
    int fd = -1;
    struct kv_secret *seed = NULL;
    KV_TRY(open_file(path, info, &fd));
    enum kv_err rc = read_seed(fd, info, &seed);
    close(fd);
    KV_TRY(rc);
    return kv_sign_key_of(seed, ret_key);
}

static KV_RC write_all(int fd, const char *text, size_t len)
{
    size_t done = 0;
    while (done < len) {
        ssize_t put = write(fd, text + done, len - done);
        if (put < 0 && errno == EINTR) {
            continue;
        }
        if (put <= 0) {
            return KV_E_IO;
        }
        done += (size_t)put;
    }
    return KV_OK;
}

static KV_RC write_seed(int fd, const struct kv_env *env)
{
    struct kv_secret *seed = NULL;
    char text[FILE_BYTES + 1];
    KV_TRY(kv_secret_random(env, KV_SIGN_SEED_BYTES, &seed));
    kv_hex_encode(kv_secret_data(seed), KV_SIGN_SEED_BYTES, text);
    text[FILE_BYTES - 1] = '\n';
    enum kv_err rc = KV_FAULT("sign/create/write") ? KV_E_IO : write_all(fd, text, FILE_BYTES);
    kv_wipe(text, sizeof text);
    kv_secret_free(seed);
    KV_TRY(rc);
    return !KV_FAULT("sign/create/sync") && fchmod(fd, 0600) == 0 && fsync(fd) == 0 ? KV_OK : KV_E_IO;
}

static KV_RC sync_folder_of(const char *path)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    size_t len = slash == NULL ? 1 : slash == path ? 1 : (size_t)(slash - path);
    if (len >= sizeof folder) {
        return KV_E_LIMIT;
    }
    memcpy(folder, slash == NULL ? "." : path, len);
    folder[len] = '\0';
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return KV_E_IO;
    }
    bool synced = fsync(fd) == 0;
    close(fd);
    return synced ? KV_OK : KV_E_IO;
}

/* "<path>.<random>.new" */
static KV_RC passing_name(const struct kv_env *env, const char *path, char **ret_name)
{
    uint8_t suffix[SUFFIX_BYTES];
    size_t len = strlen(path);
    if (len >= PATH_MAX) {
        return KV_E_LIMIT;
    }
    KV_TRY(env->random(env->ctx, suffix, sizeof suffix));
    char *name = kv_alloc(len + 1 + 2 * SUFFIX_BYTES + sizeof ".new");
    if (name == NULL) {
        return KV_E_NO_MEMORY;
    }
    memcpy(name, path, len);
    name[len] = '.';
    kv_hex_encode(suffix, sizeof suffix, name + len + 1);
    memcpy(name + len + 1 + 2 * SUFFIX_BYTES, ".new", sizeof ".new");
    *ret_name = name;
    return KV_OK;
}

static KV_RC create_under(const struct kv_env *env, const char *name, const char *path)
{
    int fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) {
        return KV_E_IO;
    }
    enum kv_err rc = write_seed(fd, env);
    int saved = errno;
    close(fd);
    /* Another process may have been first: then its key is the one, and this seed is dropped. */
    if (rc == KV_OK && (KV_FAULT("sign/create/link") || (link(name, path) != 0 && errno != EEXIST))) {
        saved = errno;
        rc = KV_E_IO;
    }
    unlink(name);
    KV_TRY(rc == KV_OK && KV_FAULT("sign/create/linked") ? KV_E_IO : KV_OK);
    errno = saved;
    KV_TRY(rc);
    return sync_folder_of(path);
}

static KV_RC create_file(const struct kv_env *env, const char *path, struct kv_errinfo *info)
{
    char *name = NULL;
    errno = 0;
    enum kv_err rc = passing_name(env, path, &name);
    if (rc == KV_OK) {
        rc = create_under(env, name, path);
    }
    int saved = errno;
    kv_free(name);
    errno = saved;
    return rc == KV_OK ? KV_OK
                       : fail_errno(info, rc, "signing key file cannot be made; its folder must exist and be writable");
}

KV_RC kv_sign_key_load_or_create(const struct kv_env *env, const char *path, struct kv_errinfo *info,
                                 struct kv_sign_key **ret_key)
{
    enum kv_err rc = kv_sign_key_load(path, info, ret_key);
    if (rc != KV_E_NOT_FOUND) {
        return rc;
    }
    KV_TRY(create_file(env, path, info));
    return kv_sign_key_load(path, info, ret_key);
}
