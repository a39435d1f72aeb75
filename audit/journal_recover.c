/*
 * Reading the journal's files back at open: which file is the newer one, where its last whole group ends, what is not
 * shipped. Must never take silence for emptiness: a broken group with whole ones behind it is damage, not a torn end,
 * and stops the opening.
 */
#include "audit/journal_file_int.h"

#include "dataplane/base/check.h"

#include <errno.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

struct group {
    size_t count, payload; /* records, and their bytes */
    uint64_t generation, first_seq, shipped;
};

static KV_RC read_at(int fd, uint8_t *target, size_t len, uint64_t offset, size_t *ret_len)
{
    size_t done = 0;
    while (done < len) {
        ssize_t got = pread(fd, target + done, len - done, (off_t)(offset + done));
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

static bool decode_group_header(const uint8_t *bytes, struct group *ret_group, uint32_t *ret_crc)
{
    struct kv_reader reader = kv_reader_of(KV_BYTES(bytes, KV_JOURNAL_GROUP_HEADER_BYTES));
    uint32_t magic = kv_read_u32(&reader);
    uint32_t crc = kv_read_u32(&reader);
    uint32_t payload = kv_read_u32(&reader);
    uint32_t count = kv_read_u32(&reader);
    struct group group = {.count = count, .payload = payload};
    group.generation = kv_read_u64(&reader);
    group.first_seq = kv_read_u64(&reader);
    group.shipped = kv_read_u64(&reader);
    bool fits = payload <= KV_JOURNAL_GROUP_BYTES_MAX - KV_JOURNAL_GROUP_HEADER_BYTES &&
                (payload == (uint64_t)count * KV_JOURNAL_RECORD_BYTES ||
                 payload == (uint64_t)count * KV_JOURNAL_OLD_RECORD_BYTES);
    if (magic != KV_JOURNAL_GROUP_MAGIC || !fits || kv_read_u64(&reader) != 0) {
        return false;
    }
    *ret_group = group;
    *ret_crc = crc;
    return true;
}

/* Reads the group at `offset` into files->group; *ret_found says whether there is a whole one, of whatever generation.
 */
static KV_RC read_any_group(struct kv_journal_files *files, const struct kv_journal_file *file, uint64_t offset,
                            struct group *ret_group, bool *ret_found)
{
    size_t len = 0;
    uint32_t crc = 0;
    struct group group = {.count = 0};
    *ret_found = false;
    KV_TRY(read_at(file->fd, files->group, KV_JOURNAL_GROUP_HEADER_BYTES, offset, &len));
    if (len < KV_JOURNAL_GROUP_HEADER_BYTES || !decode_group_header(files->group, &group, &crc)) {
        return KV_OK;
    }
    size_t payload = group.payload;
    KV_TRY(read_at(file->fd, files->group + KV_JOURNAL_GROUP_HEADER_BYTES, payload,
                   offset + KV_JOURNAL_GROUP_HEADER_BYTES, &len));
    if (len < payload || crc != kv_crc32c(0, files->group + KV_JOURNAL_GROUP_CRC_FROM,
                                          KV_JOURNAL_GROUP_HEADER_BYTES - KV_JOURNAL_GROUP_CRC_FROM + payload)) {
        return KV_OK;
    }
    *ret_group = group;
    *ret_found = true;
    return KV_OK;
}

/* The same for one of this file's generation: what an earlier turn left behind the last one is not there. */
static KV_RC read_group(struct kv_journal_files *files, const struct kv_journal_file *file, uint64_t offset,
                        struct group *ret_group, bool *ret_found)
{
    KV_TRY(read_any_group(files, file, offset, ret_group, ret_found));
    *ret_found = *ret_found && ret_group->generation == file->generation;
    return KV_OK;
}

static KV_RC read_file_header(struct kv_journal_files *files, struct kv_journal_file *file, uint64_t *ret_shipped)
{
    size_t len = 0;
    KV_TRY(read_at(file->fd, files->group, KV_JOURNAL_PAGE, 0, &len));
    file->in_use = false;
    if (len < KV_JOURNAL_PAGE) {
        return KV_OK;
    }
    struct kv_reader reader = kv_reader_of(KV_BYTES(files->group, KV_JOURNAL_PAGE));
    uint32_t magic = kv_read_u32(&reader);
    uint32_t version = kv_read_u32(&reader);
    uint64_t generation = kv_read_u64(&reader);
    uint64_t base_seq = kv_read_u64(&reader);
    uint64_t shipped = kv_read_u64(&reader);
    uint32_t crc = kv_read_u32(&reader);
    if (magic != KV_JOURNAL_FILE_MAGIC || crc != kv_crc32c(0, files->group, KV_JOURNAL_FILE_HEADER_CRC_AT)) {
        return KV_OK;
    }
    if (version != KV_JOURNAL_VERSION) {
        return KV_E_UNSUPPORTED;
    }
    file->in_use = true;
    file->generation = generation;
    file->base_seq = base_seq;
    *ret_shipped = shipped;
    return KV_OK;
}

/* A file without a valid header was given back, or its beginning was interrupted: groups that lie in it are of a turn
 * that is over, and older than the other file. Any other group has lost its header. */
static KV_RC check_unused(struct kv_journal_files *files, unsigned which, struct kv_errinfo *info)
{
    const struct kv_journal_file *file = &files->file[which], *other = &files->file[1 - which];
    struct stat status;
    if (fstat(file->fd, &status) != 0) {
        return kv_fail(info, KV_E_IO, "cannot read %s", kv_journal_file_names[which]);
    }
    for (uint64_t offset = KV_JOURNAL_PAGE; offset < (uint64_t)status.st_size; offset += KV_JOURNAL_PAGE) {
        struct group group = {.count = 0};
        bool found = false;
        KV_TRY(read_any_group(files, file, offset, &group, &found));
        if (found && (!other->in_use || group.generation >= other->generation)) {
            return kv_fail(info, KV_E_CORRUPT,
                           "%s has records but no valid header; keep the folder for inquiry and start with a new one",
                           kv_journal_file_names[which]);
        }
    }
    return KV_OK;
}

/* Looks for a whole group behind the first broken one. */
static KV_RC find_behind(struct kv_journal_files *files, const struct kv_journal_file *file, uint64_t file_bytes,
                         bool *ret_found)
{
    struct group group;
    *ret_found = false;
    for (uint64_t offset = file->size + KV_JOURNAL_PAGE; offset < file_bytes && !*ret_found;
         offset += KV_JOURNAL_PAGE) {
        KV_TRY(read_group(files, file, offset, &group, ret_found));
    }
    return KV_OK;
}

/* Walks the whole groups; sets end_seq and size. */
static KV_RC scan_file(struct kv_journal_files *files, struct kv_journal_file *file, const char *name,
                       struct kv_errinfo *info)
{
    struct stat status;
    if (fstat(file->fd, &status) != 0) {
        return kv_fail(info, KV_E_IO, "cannot read %s", name);
    }
    file->size = KV_JOURNAL_PAGE;
    file->end_seq = file->base_seq;
    struct group group;
    bool found = true;
    while (file->size < (uint64_t)status.st_size) {
        KV_TRY(read_group(files, file, file->size, &group, &found));
        if (!found) {
            break;
        }
        if (group.first_seq != file->end_seq) {
            return kv_fail(info, KV_E_CORRUPT, "%s leaves out record numbers; keep the folder for inquiry", name);
        }
        file->end_seq += group.count;
        file->size += kv_journal_group_span(group.payload);
        files->shipped_on_disk = group.shipped > files->shipped_on_disk ? group.shipped : files->shipped_on_disk;
    }
    if (!found) {
        KV_TRY(find_behind(files, file, (uint64_t)status.st_size, &found));
        if (found) {
            return kv_fail(info, KV_E_CORRUPT,
                           "%s is damaged before its end; keep the folder for inquiry and start with a new one", name);
        }
    }
    return KV_OK;
}

/* What lies behind the last whole group was never answered for; it goes, so that it cannot be taken for something
 * later. A group that was interrupted is no longer than one may be. */
static KV_RC wipe_tail(struct kv_journal_files *files, const struct kv_journal_file *file)
{
    struct stat status;
    if (fstat(file->fd, &status) != 0) {
        return KV_E_IO;
    }
    uint64_t end = (uint64_t)status.st_size, longest = file->size + KV_JOURNAL_GROUP_BYTES_MAX;
    return end <= file->size ? KV_OK : kv_journal_file_zero(files, file, file->size, end < longest ? end : longest);
}

/* A full disk is for the writing to find: without the room the journal is slower, and no worse. */
static KV_RC reserve(struct kv_journal_files *files, const struct kv_journal_file *file)
{
    struct stat status;
    if (fstat(file->fd, &status) != 0) {
        return KV_E_IO;
    }
    enum kv_err rc = (uint64_t)status.st_size >= files->reserved_bytes
                         ? KV_OK
                         : kv_journal_file_zero(files, file, (uint64_t)status.st_size, files->reserved_bytes);
    return rc == KV_E_NO_SPACE ? KV_OK : rc;
}

static KV_RC recover(struct kv_journal_files *files, struct kv_errinfo *info)
{
    for (unsigned i = 0; i < 2; i++) {
        uint64_t shipped = 0;
        KV_TRY(read_file_header(files, &files->file[i], &shipped));
        files->shipped_on_disk = shipped > files->shipped_on_disk ? shipped : files->shipped_on_disk;
    }
    for (unsigned i = 0; i < 2; i++) {
        struct kv_journal_file *file = &files->file[i];
        KV_TRY(file->in_use ? scan_file(files, file, kv_journal_file_names[i], info) : check_unused(files, i, info));
    }
    struct kv_journal_file *a = &files->file[0];
    struct kv_journal_file *b = &files->file[1];
    if (!a->in_use && !b->in_use) {
        return kv_journal_file_begin(files, 0, 1, 0);
    }
    files->current = b->in_use && (!a->in_use || b->generation > a->generation) ? 1 : 0;
    struct kv_journal_file *older = &files->file[1 - files->current];
    if (older->in_use && older->end_seq != files->file[files->current].base_seq) {
        return kv_fail(info, KV_E_CORRUPT, "journal.0 and journal.1 do not join; keep the folder for inquiry");
    }
    if (files->shipped_on_disk >= files->file[files->current].end_seq) {
        return kv_fail(info, KV_E_CORRUPT, "the journal lost records that it knows of; keep the folder for inquiry");
    }
    return wipe_tail(files, &files->file[files->current]);
}

static KV_RC open_folder(const char *folder, struct kv_errinfo *info, int *ret_fd)
{
    struct stat status;
    if (mkdir(folder, 0700) != 0 && errno != EEXIST) {
        return kv_fail(info, KV_E_CONFIG, "cannot make the journal's folder (errno %d)", errno);
    }
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &status) != 0) {
        int failure = errno;
        if (fd >= 0) {
            (void)close(fd);
        }
        return kv_fail(info, KV_E_CONFIG, "cannot open the journal's folder (errno %d)", failure);
    }
    if ((status.st_mode & 077) != 0) {
        (void)close(fd);
        return kv_fail(info, KV_E_CONFIG, "the journal's folder is open to others: set its mode to 0700");
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        (void)close(fd);
        return kv_fail(info, KV_E_BUSY, "another process uses the journal's folder");
    }
    *ret_fd = fd;
    return KV_OK;
}

static KV_RC open_file(int folder_fd, const char *name, struct kv_errinfo *info, struct kv_journal_file *file)
{
    struct stat status;
    file->fd = openat(folder_fd, name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file->fd < 0 || fstat(file->fd, &status) != 0) {
        return kv_fail(info, KV_E_CONFIG, "cannot open %s (errno %d)", name, errno);
    }
    if (!S_ISREG(status.st_mode)) {
        return kv_fail(info, KV_E_FOREIGN_FILE, "%s is not a plain file", name);
    }
    file->device = status.st_dev;
    file->inode = status.st_ino;
    return KV_OK;
}

static KV_RC open_files(const char *folder, struct kv_errinfo *info, struct kv_journal_files *files)
{
    files->group = kv_alloc(KV_JOURNAL_GROUP_BYTES_MAX);
    if (files->group == NULL) {
        return kv_fail(info, KV_E_NO_MEMORY, "no memory");
    }
    KV_TRY(open_folder(folder, info, &files->folder_fd));
    for (unsigned i = 0; i < 2; i++) {
        KV_TRY(open_file(files->folder_fd, kv_journal_file_names[i], info, &files->file[i]));
    }
    enum kv_err rc = recover(files, info);
    for (unsigned i = 0; i < 2 && rc == KV_OK; i++) {
        rc = reserve(files, &files->file[i]);
    }
    if (rc == KV_E_IO || rc == KV_E_NO_SPACE) {
        return kv_fail(info, rc, "the journal's files cannot be read or written");
    }
    if (rc == KV_E_UNSUPPORTED) {
        return kv_fail(info, rc, "the journal was written by a newer version");
    }
    KV_TRY(rc);
    if (fsync(files->folder_fd) != 0) {
        return kv_fail(info, KV_E_IO, "cannot sync the journal's folder");
    }
    return KV_OK;
}

KV_RC kv_journal_files_open(const char *folder, uint64_t reserved_bytes, struct kv_errinfo *info,
                            struct kv_journal_files *ret_files)
{
    struct kv_journal_files files = {
        .folder_fd = -1, .file = {{.fd = -1}, {.fd = -1}}, .reserved_bytes = reserved_bytes};
    enum kv_err rc = open_files(folder, info, &files);
    if (rc != KV_OK) {
        kv_journal_files_close(&files);
        return rc;
    }
    *ret_files = files;
    return KV_OK;
}

static KV_RC replay_group(struct kv_journal_files *files, const struct group *group,
                          KV_RC (*on_record)(void *ctx, const uint8_t *record), void *ctx)
{
    const size_t size = group->count == 0 ? 0 : group->payload / group->count;
    for (size_t i = 0; i < group->count; i++) {
        uint8_t record[KV_JOURNAL_RECORD_BYTES] = {0}; /* an older one is the same with zeroes behind it */
        if (group->first_seq + i > files->shipped_on_disk) {
            memcpy(record, files->group + KV_JOURNAL_GROUP_HEADER_BYTES + i * size, size);
            KV_TRY(on_record(ctx, record));
        }
    }
    return KV_OK;
}

KV_RC kv_journal_files_replay(struct kv_journal_files *files, KV_RC (*on_record)(void *ctx, const uint8_t *record),
                              void *ctx)
{
    for (unsigned i = 0; i < 2; i++) {
        const struct kv_journal_file *file = &files->file[i == 0 ? 1 - files->current : files->current];
        uint64_t offset = KV_JOURNAL_PAGE;
        while (file->in_use && offset < file->size) {
            struct group group = {.count = 0};
            bool found = false;
            KV_TRY(read_group(files, file, offset, &group, &found));
            if (!found) {
                return KV_E_CORRUPT;
            }
            KV_TRY(replay_group(files, &group, on_record, ctx));
            offset += kv_journal_group_span(group.payload);
        }
    }
    return KV_OK;
}
