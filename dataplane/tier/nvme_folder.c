/*
 * The nvme tier's folder at start: whose it is, one owner at a time, creation, growth, physical cap.
 * It must never truncate, format or remove what it did not write, and never leave a half-made arena under the arena's
 * name.
 */
#include "dataplane/base/check.h"
#include "dataplane/base/fault.h"
#include "dataplane/base/log.h"
#include "dataplane/base/mem.h"
#include "dataplane/tier/nvme_int.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define ARENA_TMP "arena.tmp"

/* ---- files ---- */

KV_RC kv_nvme_file_create(int folder_fd, const char *name, int *ret_fd)
{
    int fd = openat(folder_fd, name, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) {
        return errno == ENOSPC || errno == EDQUOT ? KV_E_NO_SPACE : KV_E_IO;
    }
    uint8_t beginning[KV_NVME_ENTRY_BYTES];
    size_t len;
    enum kv_err rc = kv_nvme_read_at(fd, beginning, sizeof(beginning), 0, &len);
    if (rc == KV_OK && !kv_nvme_may_be_ours(KV_BYTES(beginning, len))) {
        rc = KV_E_FOREIGN_FILE;
    }
    if (rc == KV_OK && ftruncate(fd, 0) != 0) {
        rc = KV_E_IO;
    }
    if (rc != KV_OK) {
        close(fd);
        return rc;
    }
    *ret_fd = fd;
    return KV_OK;
}

static bool is_ours(int folder_fd, const char *name)
{
    int fd = openat(folder_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    uint8_t beginning[KV_NVME_ENTRY_BYTES];
    size_t len;
    bool ours = kv_nvme_read_at(fd, beginning, sizeof(beginning), 0, &len) == KV_OK &&
                kv_nvme_may_be_ours(KV_BYTES(beginning, len));
    close(fd);
    return ours;
}

static bool is_ours_or_absent(int folder_fd, const char *name)
{
    struct stat st;
    return fstatat(folder_fd, name, &st, AT_SYMLINK_NOFOLLOW) != 0 || is_ours(folder_fd, name);
}

/* index.<number>.log of a generation that is not in use. */
static bool is_dead_log(const char *name, uint64_t generation)
{
    char *end;
    if (strncmp(name, "index.", 6) != 0 || name[6] < '0' || name[6] > '9') {
        return false;
    }
    uint64_t number = strtoull(name + 6, &end, 10);
    return strcmp(end, ".log") == 0 && number != generation;
}

void kv_nvme_folder_tidy(const struct kv_nvme *n)
{
    int fd = openat(n->folder_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (dir == NULL) {
        if (fd >= 0) {
            close(fd);
        }
        return;
    }
    const struct dirent *entry;
    while ((entry = readdir(dir)) != NULL) {
        bool dead = is_dead_log(entry->d_name, n->generation) || strcmp(entry->d_name, "index.ckpt.tmp") == 0 ||
                    strcmp(entry->d_name, ARENA_TMP) == 0;
        if (dead && is_ours(n->folder_fd, entry->d_name)) {
            unlinkat(n->folder_fd, entry->d_name, 0);
        }
    }
    closedir(dir);
}

static KV_RC open_folder(struct kv_nvme *n, const char *path, struct kv_errinfo *info)
{
    if (mkdir(path, 0700) != 0 && errno != EEXIST) {
        return kv_fail(info, KV_E_CONFIG,
                       "the nvme folder cannot be created (errno %d); create it or fix its permissions", errno);
    }
    n->folder_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (n->folder_fd < 0) {
        return kv_fail(info, KV_E_CONFIG, "the nvme path is no folder that can be opened (errno %d)", errno);
    }
    return KV_OK;
}

static KV_RC lock_folder(struct kv_nvme *n, struct kv_errinfo *info)
{
    n->lock_fd = openat(n->folder_fd, "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (n->lock_fd < 0) {
        return kv_fail(info, KV_E_IO, "the nvme folder's lock file cannot be opened (errno %d)", errno);
    }
    if (flock(n->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        return kv_fail(info, KV_E_BUSY, "another process uses this nvme folder; stop it or choose another folder");
    }
    return KV_OK;
}

/* O_DIRECT keeps sealed blocks out of the page cache; a file system that refuses it is used through the cache. */
static KV_RC open_arena(struct kv_nvme *n, const char *name, struct kv_errinfo *info)
{
    n->arena_fd = openat(n->folder_fd, name, O_RDWR | O_DIRECT | O_NOFOLLOW | O_CLOEXEC);
    if (n->arena_fd >= 0) {
        uint8_t *page = kv_alloc_aligned(KV_NVME_PAGE_BYTES, KV_NVME_PAGE_BYTES);
        bool reads = page != NULL && pread(n->arena_fd, page, KV_NVME_PAGE_BYTES, 0) == KV_NVME_PAGE_BYTES;
        kv_free(page);
        if (reads) {
            return KV_OK;
        }
        close(n->arena_fd);
    }
    n->arena_fd = openat(n->folder_fd, name, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (n->arena_fd < 0) {
        return kv_fail(info, KV_E_IO, "the nvme arena cannot be opened for writing (errno %d)", errno);
    }
    kv_log(KV_LOG_WARN, "tier", "the file system refuses direct I/O, nvme tier goes through the page cache");
    return KV_OK;
}

static KV_RC reserve(int fd, uint64_t bytes, struct kv_errinfo *info)
{
    if (fallocate(fd, 0, 0, (off_t)bytes) == 0) {
        return KV_OK;
    }
    if (errno == EOPNOTSUPP) {
        kv_log(KV_LOG_WARN, "tier",
               "the file system cannot reserve space, the drive may fill up before the nvme tier does");
        return ftruncate(fd, (off_t)bytes) == 0 ? KV_OK : kv_fail(info, KV_E_IO, "the nvme arena cannot be sized");
    }
    enum kv_err rc = errno == ENOSPC || errno == EDQUOT ? KV_E_NO_SPACE : KV_E_IO;
    return kv_fail(info, rc,
                   "%llu bytes for the nvme arena cannot be reserved (errno %d); lower its size or free space",
                   (unsigned long long)bytes, errno);
}

static KV_RC write_superblock(int fd, const struct kv_nvme_superblock *superblock, struct kv_errinfo *info)
{
    uint8_t *page = kv_alloc_aligned(KV_NVME_PAGE_BYTES, KV_NVME_PAGE_BYTES);
    if (page == NULL) {
        return kv_fail(info, KV_E_NO_MEMORY, "no memory for the superblock");
    }
    kv_nvme_superblock_encode(superblock, page);
    bool written = pwrite(fd, page, KV_NVME_PAGE_BYTES, 0) == KV_NVME_PAGE_BYTES && fsync(fd) == 0;
    kv_free(page);
    return written ? KV_OK : kv_fail(info, KV_E_IO, "the nvme arena's superblock cannot be written (errno %d)", errno);
}

/* ---- create ---- */

static KV_RC make_arena_file(struct kv_nvme *n, struct kv_errinfo *info)
{
    int fd;
    enum kv_err rc = kv_nvme_file_create(n->folder_fd, ARENA_TMP, &fd);
    if (rc != KV_OK) {
        return kv_fail(info, rc, "the nvme arena cannot be created; is there a file arena.tmp that is not ours?");
    }
    rc =
        write_superblock(fd, &n->superblock, info); /* first, so that a half-made file can be told from a foreign one */
    if (rc == KV_OK) {
        rc = reserve(fd, n->superblock.arena_bytes, info);
    }
    if (rc == KV_OK && fsync(fd) != 0) {
        rc = kv_fail(info, KV_E_IO, "the nvme arena cannot be flushed (errno %d)", errno);
    }
    close(fd);
    if (rc != KV_OK) {
        unlinkat(n->folder_fd, ARENA_TMP, 0);
    }
    return rc;
}

/* The index comes first and the arena's name last: a folder with an arena has an index. */
static KV_RC create(struct kv_nvme *n, const struct kv_tier_conf *conf, struct kv_errinfo *info)
{
    uint64_t room = kv_nvme_room_for_slabs(conf->bytes, kv_nvme_wanted_entries(conf));
    uint64_t slab_bytes = kv_nvme_choose_slab_bytes(conf, room);
    n->superblock.slab_bytes = slab_bytes;
    n->superblock.arena_bytes = kv_nvme_arena_bytes(room, slab_bytes);
    if (n->superblock.arena_bytes == 0) {
        return kv_fail(info, KV_E_CONFIG,
                       "%llu bytes are too few for an nvme tier; raise its size or lower its slab size",
                       (unsigned long long)conf->bytes);
    }
    KV_TRY(conf->env->random(conf->env->ctx, n->superblock.uuid, sizeof(n->superblock.uuid)));
    n->blocks_max = (uint32_t)kv_nvme_wanted_entries(conf);
    n->blocks_size = n->blocks_max;
    n->log_entries_max = kv_nvme_log_entries_max(n->blocks_size);
    if (!is_ours_or_absent(n->folder_fd, "index.ckpt")) {
        return kv_fail(info, KV_E_FOREIGN_FILE, "index.ckpt in the nvme folder is not ours; choose another folder");
    }
    struct kv_nvme_image empty = {0};
    KV_TRY(kv_nvme_table_new(n, &empty));
    KV_TRY(make_arena_file(n, info));
    KV_TRY(open_arena(n, ARENA_TMP, info));
    if (kv_nvme_settle(n, true, 60 * KV_S_NS) != KV_OK) {
        return kv_fail(info, KV_E_IO, "the nvme index cannot be created; is there an index file that is not ours?");
    }
    if (KV_FAULT("tier/nvme/arena-rename") || renameat(n->folder_fd, ARENA_TMP, n->folder_fd, "arena") != 0 ||
        fsync(n->folder_fd) != 0) {
        return kv_fail(info, KV_E_IO, "the nvme arena cannot be put in place (errno %d)", errno);
    }
    return KV_OK;
}

/* ---- open what is there ---- */

static KV_RC grow_arena(struct kv_nvme *n, const struct kv_tier_conf *conf, struct kv_errinfo *info)
{
    uint64_t wanted =
        kv_nvme_arena_bytes(kv_nvme_room_for_slabs(conf->bytes, n->blocks_size), n->superblock.slab_bytes);
    if (wanted <= n->superblock.arena_bytes) {
        return KV_OK;
    }
    struct kv_nvme_superblock grown = n->superblock;
    grown.arena_bytes = wanted;
    KV_TRY(reserve(n->arena_fd, wanted, info));
    if (fsync(n->arena_fd) != 0) {
        return kv_fail(info, KV_E_IO, "the larger nvme arena cannot be flushed (errno %d)", errno);
    }
    KV_TRY(write_superblock(n->arena_fd, &grown, info));
    n->superblock = grown;
    return KV_OK;
}

static KV_RC check_size(const struct kv_nvme *n, struct kv_errinfo *info)
{
    struct stat st;
    if (fstat(n->arena_fd, &st) != 0 || (uint64_t)st.st_size < n->superblock.arena_bytes) {
        return kv_fail(info, KV_E_TRUNCATED,
                       "the nvme arena is shorter than its superblock says; it was left untouched");
    }
    return KV_OK;
}

static KV_RC size_table(struct kv_nvme *n, const struct kv_tier_conf *conf, size_t found, struct kv_errinfo *info)
{
    uint64_t wanted = kv_nvme_wanted_entries(conf) > found ? kv_nvme_wanted_entries(conf) : found;
    uint64_t fit = kv_nvme_entries_beside(conf->bytes, n->superblock.arena_bytes, wanted);
    if (fit == 0 || fit < found) {
        return kv_fail(info, KV_E_CONFIG,
                       "the nvme arena has %llu bytes plus its index and does not shrink, the limit is %llu; raise it "
                       "or use a new folder",
                       (unsigned long long)n->superblock.arena_bytes, (unsigned long long)conf->bytes);
    }
    n->blocks_size = (uint32_t)fit;
    n->blocks_max = (uint32_t)(fit < kv_nvme_wanted_entries(conf) ? fit : kv_nvme_wanted_entries(conf));
    n->log_entries_max = kv_nvme_log_entries_max(fit);
    return KV_OK;
}

/* What a killed process appended may be in the page cache only. It is flushed before anything is built on it. */
static KV_RC open_log(struct kv_nvme *n, const struct kv_nvme_image *image, struct kv_errinfo *info)
{
    char name[KV_NVME_NAME_BYTES];
    kv_nvme_log_name(image->generation, name);
    n->log_fd = openat(n->folder_fd, name, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    uint8_t bytes[KV_NVME_ENTRY_BYTES];
    size_t len;
    struct kv_nvme_header header;
    if (n->log_fd < 0 || fsync(n->log_fd) != 0 || fsync(n->folder_fd) != 0) {
        return kv_fail(info, KV_E_IO, "the nvme index log cannot be opened for writing or flushed (errno %d)", errno);
    }
    KV_TRY(kv_nvme_read_at(n->log_fd, bytes, sizeof(bytes), 0, &len));
    KV_TRY(kv_nvme_header_decode(KV_BYTES(bytes, len), &header, &n->log_seed));
    n->generation = image->generation;
    n->log_entries = image->log_entries;
    n->log_bad = image->torn || image->doubtful > 0;
    return KV_OK;
}

static KV_RC fill_from_image(struct kv_nvme *n, const struct kv_tier_conf *conf, const struct kv_nvme_image *image,
                             struct kv_errinfo *info)
{
    KV_TRY(size_table(n, conf, image->count, info));
    KV_TRY(grow_arena(n, conf, info));
    KV_TRY(kv_nvme_table_new(n, image));
    KV_TRY(open_log(n, image, info));
    if (image->torn || image->doubtful > 0) {
        kv_log(KV_LOG_WARN, "tier",
               "the nvme index log ends in records that were never acknowledged; they are left out",
               KV_FU("contradicted", image->doubtful), KV_FU("kept", image->count));
    }
    bool rotate = n->log_bad || n->log_entries > n->log_entries_max / 2;
    if (rotate && kv_nvme_settle(n, true, 60 * KV_S_NS) != KV_OK) {
        return kv_fail(info, KV_E_IO, "the nvme index cannot be written anew");
    }
    return KV_OK;
}

static KV_RC open_existing(struct kv_nvme *n, const struct kv_tier_conf *conf, struct kv_errinfo *info)
{
    struct kv_nvme_image image;
    KV_TRY(open_arena(n, "arena", info));
    KV_TRY(check_size(n, info));
    KV_TRY(kv_nvme_image_load(n->folder_fd, &n->superblock, info, &image));
    enum kv_err rc = fill_from_image(n, conf, &image, info);
    kv_nvme_image_done(&image);
    return rc;
}

KV_RC kv_nvme_folder_open(struct kv_nvme *n, const struct kv_tier_conf *conf, struct kv_errinfo *info)
{
    KV_TRY(open_folder(n, conf->path, info));
    /* Before the lock file is made: a folder that is not ours gets nothing from us. */
    enum kv_err rc = kv_nvme_superblock_read(n->folder_fd, info, &n->superblock);
    if (rc != KV_OK && rc != KV_E_MISSING) {
        return rc;
    }
    KV_TRY(lock_folder(n, info));
    rc = kv_nvme_superblock_read(n->folder_fd, info, &n->superblock);
    if (rc == KV_E_MISSING) {
        rc = create(n, conf, info);
    } else if (rc == KV_OK) {
        rc = open_existing(n, conf, info);
    }
    KV_TRY(rc);
    kv_nvme_folder_tidy(n);
    return KV_OK;
}
