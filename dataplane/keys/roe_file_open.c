/*
 * Opening the file provider's file: every check that must hold before a key is written into it, each with a text that
 * says what to do. It must never change a file that is not the provider's own.
 */
#include "dataplane/base/check.h"
#include "dataplane/base/fault.h"
#include "dataplane/base/log.h"
#include "dataplane/base/mem.h"
#include "dataplane/keys/roe_file_int.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

static KV_RC fail_errno(struct kv_errinfo *info, enum kv_err code, const char *text)
{
    int saved = errno;
    enum kv_err rc = kv_fail(info, code, "%s", text);
    if (info != NULL) {
        info->sys_errno = saved;
    }
    return rc;
}

/* The folder that holds the file; also where the file system is judged before anything is created on it. */
static KV_RC open_folder(const char *path, struct kv_errinfo *info, int *ret_fd)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    size_t len = slash == path ? 1 : (size_t)(slash - path);
    if (len >= sizeof(folder)) {
        return kv_fail(info, KV_E_CONFIG, "the root file's path is too long");
    }
    memcpy(folder, path, len);
    folder[len] = '\0';
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return fail_errno(info, KV_E_CONFIG, "the root file's folder cannot be opened; create it, mode 0700, first");
    }
    *ret_fd = fd;
    return KV_OK;
}

static KV_RC check_file_system(int fd, struct kv_errinfo *info)
{
    struct statfs fs;
    if (fstatfs(fd, &fs) != 0) {
        return fail_errno(info, KV_E_IO, "the root file's file system cannot be asked what it is");
    }
    const char *name = kv_roe_refused_file_system((uint64_t)fs.f_type);
    if (name == NULL) {
        return KV_OK;
    }
    return kv_fail(info, KV_E_UNSUPPORTED,
                   "%s writes elsewhere instead of in place, so a destroyed key would stay on the medium; "
                   "put the root file on ext4 or xfs",
                   name);
}

static int open_flags(const char *path, int flags, bool *ret_direct)
{
    int fd = open(path, flags | O_DIRECT, 0600);
    *ret_direct = fd >= 0;
    if (fd < 0 && errno == EINVAL) {
        fd = open(path, flags & ~O_EXCL, 0600); /* The first try may have created it before it refused O_DIRECT. */
    }
    return fd;
}

static KV_RC open_or_create(struct kv_medium *medium, struct kv_errinfo *info)
{
    const int flags = O_RDWR | O_DSYNC | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
    medium->fd = open_flags(medium->path, flags, &medium->direct);
    if (medium->fd < 0 && errno == ENOENT) {
        medium->fd = open_flags(medium->path, flags | O_CREAT | O_EXCL, &medium->direct);
    }
    if (medium->fd >= 0) {
        return KV_OK;
    }
    if (errno == ELOOP) {
        return fail_errno(info, KV_E_CONFIG, "the root file's path is a symbolic link; name the file itself");
    }
    return fail_errno(info, KV_E_CONFIG,
                      "the root file cannot be opened for reading and writing; check owner and mode");
}

static KV_RC check_owner_and_mode(int fd, struct kv_errinfo *info, off_t *ret_size)
{
    struct stat st;
    if (fstat(fd, &st) != 0) {
        return fail_errno(info, KV_E_IO, "the root file cannot be inspected");
    }
    if (!S_ISREG(st.st_mode)) {
        return kv_fail(info, KV_E_CONFIG, "the root file's path is not a regular file; name another");
    }
    if ((st.st_mode & 077) != 0) {
        return kv_fail(info, KV_E_CONFIG,
                       "the root file is open to its group or to others; chmod 0600, "
                       "and treat its keys as known to whoever could read it");
    }
    if (st.st_uid != geteuid()) {
        return kv_fail(info, KV_E_CONFIG, "the root file belongs to another user; chown it to the server's user");
    }
    *ret_size = st.st_size;
    return KV_OK;
}

static KV_RC take_lock(int fd, struct kv_errinfo *info)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (fcntl(fd, F_OFD_SETLK, &lock) == 0) {
        return KV_OK;
    }
    if (errno == EAGAIN || errno == EACCES) {
        return fail_errno(info, KV_E_BUSY, "another process uses this root file; stop it, or configure another file");
    }
    return fail_errno(info, KV_E_UNSUPPORTED, "the root file's file system cannot lock files; move the file");
}

/* A page of the file in the buffer. Where the kernel cannot do direct I/O into locked memory, direct I/O is given up.
 */
static KV_RC read_page(struct kv_medium *medium, size_t len, uint64_t offset)
{
    if (kv_medium_read_at(medium->fd, medium->buffer, len, offset) == KV_OK) {
        return KV_OK;
    }
    if (!medium->direct || (errno != EINVAL && errno != EFAULT)) {
        return KV_E_IO;
    }
    int flags = fcntl(medium->fd, F_GETFL);
    if (flags < 0 || fcntl(medium->fd, F_SETFL, flags & ~O_DIRECT) != 0) {
        return KV_E_IO;
    }
    medium->direct = false;
    return kv_medium_read_at(medium->fd, medium->buffer, len, offset);
}

static bool buffer_is_zero(const uint8_t *buffer, size_t len)
{
    return buffer[0] == 0 && memcmp(buffer, buffer + 1, len - 1) == 0;
}

/* All zeroes and of our size: a creation that was cut off before the header was written. */
static KV_RC all_zero(struct kv_medium *medium, bool *ret_zero)
{
    for (unsigned slot = 0; slot < KV_ROE_SLOTS; slot++) {
        KV_TRY(kv_medium_read_slot(medium, slot));
        bool zero = buffer_is_zero(medium->buffer, KV_ROE_SLOT_BYTES);
        kv_medium_forget(medium);
        if (!zero) {
            *ret_zero = false;
            return KV_OK;
        }
    }
    *ret_zero = true;
    return KV_OK;
}

static KV_RC format(struct kv_medium *medium, int folder_fd)
{
    if (KV_FAULT("roe/file/format-size") || ftruncate(medium->fd, KV_ROE_FILE_BYTES) != 0) {
        return KV_E_IO;
    }
    kv_medium_forget(medium);
    for (unsigned slot = 0; slot < KV_ROE_SLOTS; slot++) {
        KV_TRY(
            kv_medium_write_slot(medium, slot)); /* Allocates the blocks now, so that no later write can lack room. */
    }
    kv_roe_header_build(medium->buffer);
    if (KV_FAULT("roe/file/format-header")) {
        return KV_E_IO;
    }
    KV_TRY(kv_medium_write_at(medium->fd, medium->buffer, KV_ROE_HEADER_BYTES, 0));
    return fsync(medium->fd) == 0 && fsync(folder_fd) == 0 ? KV_OK : KV_E_IO;
}

static KV_RC recognise(struct kv_medium *medium, off_t size, int folder_fd, struct kv_errinfo *info)
{
    static const char foreign[] = "the root file's path holds another file, which was left as it is; configure another";
    if (size != 0 && size != (off_t)KV_ROE_FILE_BYTES) {
        return kv_fail(info, KV_E_FOREIGN_FILE, foreign);
    }
    bool fresh = size == 0;
    if (!fresh) {
        if (read_page(medium, KV_ROE_HEADER_BYTES, 0) != KV_OK) {
            return fail_errno(info, KV_E_IO, "the root file cannot be read; check the disk");
        }
        if (kv_roe_header_is_ours(medium->buffer)) {
            return KV_OK;
        }
        if (buffer_is_zero(medium->buffer, KV_ROE_HEADER_BYTES)) {
            KV_TRY(all_zero(medium, &fresh));
        }
    }
    if (!fresh) {
        return kv_fail(info, KV_E_FOREIGN_FILE, foreign);
    }
    if (format(medium, folder_fd) != KV_OK) {
        return fail_errno(info, KV_E_IO, "the root file cannot be written; check the disk and its free space");
    }
    return read_page(medium, KV_ROE_HEADER_BYTES, 0);
}

static KV_RC open_checked(struct kv_medium *medium, int folder_fd, struct kv_errinfo *info)
{
    off_t size = 0;
    KV_TRY(check_file_system(folder_fd, info));
    KV_TRY(open_or_create(medium, info));
    KV_TRY(check_owner_and_mode(medium->fd, info, &size));
    KV_TRY(check_file_system(medium->fd, info));
    KV_TRY(take_lock(medium->fd, info));
    KV_TRY(check_owner_and_mode(medium->fd, info, &size)); /* Again: another process may have formatted it meanwhile. */
    return recognise(medium, size, folder_fd, info);
}

KV_RC kv_medium_open(const struct kv_roe_conf *conf, struct kv_errinfo *info, struct kv_medium *ret_medium)
{
    if (conf->path == NULL || conf->path[0] != '/') {
        return kv_fail(info, KV_E_CONFIG, "the root file's path must be absolute");
    }
    int folder_fd = -1;
    KV_TRY(open_folder(conf->path, info, &folder_fd));
    struct kv_medium medium = {.env = conf->env, .fd = -1, .path = kv_strdup(conf->path)};
    void *buffer = NULL;
    enum kv_err rc = kv_locked_alloc(KV_ROE_HEADER_BYTES, &buffer);
    medium.buffer = buffer;
    if (rc != KV_OK || medium.path == NULL) {
        rc = kv_fail(info, KV_E_NO_MEMORY, "no locked memory for the root file; raise the memlock limit");
    } else {
        KV_ASSERT((uintptr_t)medium.buffer % KV_ROE_SLOT_BYTES == 0); /* Direct I/O wants whole pages. */
        rc = open_checked(&medium, folder_fd, info);
        kv_medium_forget(&medium);
    }
    close(folder_fd);
    if (rc != KV_OK) {
        kv_medium_close(&medium);
        return rc;
    }
    *ret_medium = medium;
    return KV_OK;
}
