/*
 * Writing the journal's two files: headers, groups, taking turns. Reading them back is in journal_recover.c.
 * Must never overwrite a page that holds a record that is not shipped: groups begin on a page of their own, so a torn
 * write costs only itself.
 *
 * A file keeps its length from turn to turn. A group that is written over what is there changes no metadata, so its
 * sync waits for its own pages only; one that makes the file longer waits for the file system's journal, and with it
 * for whatever others have just written there: the database, which on one disk was tens of milliseconds for each
 * restore.
 */
#include "audit/journal_file_int.h"

#include "dataplane/base/check.h"
#include "dataplane/base/fault.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *const kv_journal_file_names[2] = {"journal.0", "journal.1"};

static KV_RC write_all(int fd, const uint8_t *data, size_t len, uint64_t offset)
{
    while (len > 0) {
        ssize_t written = pwrite(fd, data, len, (off_t)offset);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written <= 0) {
            return errno == ENOSPC ? KV_E_NO_SPACE : KV_E_IO;
        }
        data += written;
        len -= (size_t)written;
        offset += (uint64_t)written;
    }
    return KV_OK;
}

static KV_RC sync_data(int fd)
{
    if (KV_FAULT("audit/journal/sync")) {
        return KV_E_IO;
    }
    return fdatasync(fd) == 0 ? KV_OK : KV_E_IO;
}

KV_RC kv_journal_file_zero(struct kv_journal_files *files, const struct kv_journal_file *file, uint64_t from,
                           uint64_t to)
{
    memset(files->group, 0, KV_JOURNAL_GROUP_BYTES_MAX);
    while (from < to) {
        uint64_t len = to - from < KV_JOURNAL_GROUP_BYTES_MAX ? to - from : KV_JOURNAL_GROUP_BYTES_MAX;
        KV_TRY(write_all(file->fd, files->group, (size_t)len, from));
        from += len;
    }
    return fdatasync(file->fd) == 0 ? KV_OK : KV_E_IO;
}

uint64_t kv_journal_group_span(size_t payload)
{
    uint64_t len = KV_JOURNAL_GROUP_HEADER_BYTES + (uint64_t)payload;
    return (len + KV_JOURNAL_PAGE - 1) / KV_JOURNAL_PAGE * KV_JOURNAL_PAGE;
}

static void encode_file_header(const struct kv_journal_file *file, uint64_t shipped, uint8_t page[KV_JOURNAL_PAGE])
{
    memset(page, 0, KV_JOURNAL_PAGE);
    struct kv_writer writer = kv_writer_of(page, KV_JOURNAL_PAGE);
    kv_write_u32(&writer, KV_JOURNAL_FILE_MAGIC);
    kv_write_u32(&writer, KV_JOURNAL_VERSION);
    kv_write_u64(&writer, file->generation);
    kv_write_u64(&writer, file->base_seq);
    kv_write_u64(&writer, shipped);
    kv_write_u32(&writer, kv_crc32c(0, page, KV_JOURNAL_FILE_HEADER_CRC_AT));
    KV_ASSERT(!writer.failed);
}

KV_RC kv_journal_file_begin(struct kv_journal_files *files, unsigned which, uint64_t base_seq, uint64_t shipped)
{
    struct kv_journal_file *file = &files->file[which];
    struct kv_journal_file fresh = *file;
    uint8_t page[KV_JOURNAL_PAGE];
    fresh.generation = files->file[1 - which].generation + 1;
    fresh.base_seq = base_seq;
    fresh.end_seq = base_seq;
    fresh.size = KV_JOURNAL_PAGE;
    fresh.in_use = true;
    encode_file_header(&fresh, shipped, page);
    if (KV_FAULT("audit/journal/begin")) {
        return KV_E_IO;
    }
    file->in_use = false;
    KV_TRY(write_all(file->fd, page, sizeof(page), 0));
    KV_TRY(sync_data(file->fd));
    if (KV_FAULT("audit/journal/begun")) {
        return KV_E_IO;
    }
    *file = fresh;
    files->current = which;
    files->shipped_on_disk = shipped;
    return KV_OK;
}

static void encode_group_header(const struct kv_journal_file *file, size_t count, uint64_t shipped, uint8_t *group)
{
    uint32_t payload = (uint32_t)(count * KV_JOURNAL_RECORD_BYTES);
    struct kv_writer writer = kv_writer_of(group, KV_JOURNAL_GROUP_HEADER_BYTES);
    kv_write_u32(&writer, KV_JOURNAL_GROUP_MAGIC);
    kv_write_u32(&writer, 0);
    kv_write_u32(&writer, payload);
    kv_write_u32(&writer, (uint32_t)count);
    kv_write_u64(&writer, file->generation);
    kv_write_u64(&writer, file->end_seq);
    kv_write_u64(&writer, shipped);
    kv_write_u64(&writer, 0);
    KV_ASSERT(!writer.failed && kv_writer_len(&writer) == KV_JOURNAL_GROUP_HEADER_BYTES);
    uint32_t crc = kv_crc32c(0, group + KV_JOURNAL_GROUP_CRC_FROM,
                             KV_JOURNAL_GROUP_HEADER_BYTES - KV_JOURNAL_GROUP_CRC_FROM + payload);
    writer = kv_writer_of(group + KV_JOURNAL_GROUP_CRC_AT, sizeof(crc));
    kv_write_u32(&writer, crc);
}

KV_RC kv_journal_files_write(struct kv_journal_files *files, size_t count, uint64_t shipped)
{
    KV_ASSERT(count <= KV_JOURNAL_GROUP_RECORDS_MAX);
    struct kv_journal_file *file = &files->file[files->current];
    uint64_t span = kv_journal_group_span(count * KV_JOURNAL_RECORD_BYTES);
    encode_group_header(file, count, shipped, files->group);
    size_t used = KV_JOURNAL_GROUP_HEADER_BYTES + count * KV_JOURNAL_RECORD_BYTES;
    memset(files->group + used, 0, (size_t)span - used);
    if (KV_FAULT("audit/journal/write")) {
        return KV_E_IO;
    }
    files->unsettled = true;
    /* In two pieces, so that a kill between them leaves what a torn write leaves. */
    KV_TRY(write_all(file->fd, files->group, used / 2, file->size));
    if (KV_FAULT("audit/journal/torn")) {
        return KV_E_IO;
    }
    KV_TRY(write_all(file->fd, files->group + used / 2, (size_t)span - used / 2, file->size + used / 2));
    KV_TRY(sync_data(file->fd));
    if (KV_FAULT("audit/journal/synced")) {
        return KV_E_IO;
    }
    files->unsettled = false;
    file->size += span;
    file->end_seq += count;
    files->shipped_on_disk = shipped;
    return KV_OK;
}

bool kv_journal_files_alive(const struct kv_journal_files *files)
{
    for (unsigned i = 0; i < 2; i++) {
        struct stat named;
        if (fstatat(files->folder_fd, kv_journal_file_names[i], &named, AT_SYMLINK_NOFOLLOW) != 0 ||
            named.st_dev != files->file[i].device || named.st_ino != files->file[i].inode) {
            return false;
        }
    }
    return true;
}

/* A header of zeroes is what "not in use" looks like. */
static KV_RC give_back(struct kv_journal_files *files, struct kv_journal_file *file)
{
    if (KV_FAULT("audit/journal/giveback")) {
        return KV_E_IO;
    }
    if (file->size > files->reserved_bytes && ftruncate(file->fd, (off_t)files->reserved_bytes) != 0) {
        return KV_E_IO;
    }
    KV_TRY(kv_journal_file_zero(files, file, 0, KV_JOURNAL_PAGE));
    file->in_use = false;
    file->size = 0;
    return KV_OK;
}

KV_RC kv_journal_files_turn(struct kv_journal_files *files, uint64_t shipped, uint64_t switch_bytes)
{
    unsigned other = 1 - files->current;
    if (files->unsettled) {
        /* The unfinished group may be whole on disk; in two files its records would be there twice. */
        return KV_OK;
    }
    if (files->file[other].in_use && files->file[other].end_seq <= shipped + 1) {
        /* The position goes to disk first: a crash in between must find either the records or the word that they are
         * shipped. */
        if (files->shipped_on_disk + 1 < files->file[other].end_seq) {
            KV_TRY(kv_journal_files_write(files, 0, shipped));
        }
        KV_TRY(give_back(files, &files->file[other]));
    }
    if (!files->file[other].in_use && files->file[files->current].size >= switch_bytes) {
        return kv_journal_file_begin(files, other, files->file[files->current].end_seq, shipped);
    }
    return KV_OK;
}

uint64_t kv_journal_files_end(const struct kv_journal_files *files)
{
    return files->file[files->current].end_seq;
}

uint64_t kv_journal_files_bytes(const struct kv_journal_files *files)
{
    return files->file[0].size + files->file[1].size;
}

void kv_journal_files_close(struct kv_journal_files *files)
{
    for (unsigned i = 0; i < 2; i++) {
        if (files->file[i].fd >= 0) {
            (void)close(files->file[i].fd);
            files->file[i].fd = -1;
        }
    }
    if (files->folder_fd >= 0) {
        (void)close(files->folder_fd);
        files->folder_fd = -1;
    }
    kv_free(files->group);
    files->group = NULL;
}
