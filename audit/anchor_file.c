/*
 * An anchor in a file, for people to read: a heading and two records that take turns, so that one is whole whenever the
 * other is being written. Must never begin a file: one that is not there may be a mount that is not there, and a fresh
 * anchor would take any old database for the current one.
 */
#include "audit/anchor.h"

#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "dataplane/base/log.h"
#include "dataplane/base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define PART_BYTES 512 /* a sector, which a device writes whole or not at all */
#define SLOTS 2
#define WORD_SIZE 72 /* the longest value: a hash in hex */

static const char heading[] = "kvrun anchor 1\n"
                              "The root of erasure and the audit log that were last seen, for a server to notice at\n"
                              "its start when its database and root were put back to an older state. Two records\n"
                              "follow; the one with the higher number counts. Do not restore this file from a\n"
                              "backup. A server that gets an empty one begins afresh and notices nothing older.\n";

struct file_anchor {
    struct kv_anchor base;
    char *path;
};

struct slot {
    uint64_t number; /* 0: nothing there */
    struct kv_anchor_record record;
    bool damaged;
};

/* --- records as text --------------------------------------------------------------------------------------------- */

/* Filled up with spaces, and a line end. */
static void fill_part(const char *text, uint8_t part[PART_BYTES])
{
    size_t len = strlen(text);
    memset(part, ' ', PART_BYTES);
    memcpy(part, text, len);
    part[PART_BYTES - 1] = '\n';
}

static void encode(uint64_t number, const struct kv_anchor_record *record, uint8_t part[PART_BYTES])
{
    char cluster[KV_ID_TEXT_SIZE], root[KV_ID_TEXT_SIZE], hash[65], when[28], text[PART_BYTES];
    kv_id_text("clu", &record->cluster, cluster);
    kv_id_text("rot", &record->root, root);
    kv_hex_encode(record->log_root.b, sizeof record->log_root.b, hash);
    kv_time_text(record->written_us, when);
    int len = snprintf(text, sizeof text,
                       "\nnumber   %llu\nwritten  %s\ncluster  %s\nroot     %s\nlog_size %llu\nlog_root %s\n",
                       (unsigned long long)number, when, cluster, root, (unsigned long long)record->log_size, hash);
    snprintf(text + len, sizeof text - (size_t)len, "crc32c   %08x\n", kv_crc32c(0, text, (size_t)len));
    fill_part(text, part);
}

/* The value of the line at `*at`, which is then behind it. */
static bool take(const char **at, const char *name, char word[WORD_SIZE])
{
    size_t prefix = strlen(name);
    const char *end = strchr(*at, '\n');
    if (end == NULL || strncmp(*at, name, prefix) != 0 || (size_t)(end - *at) - prefix >= WORD_SIZE) {
        return false;
    }
    snprintf(word, WORD_SIZE, "%.*s", (int)((size_t)(end - *at) - prefix), *at + prefix);
    *at = end + 1;
    return true;
}

static bool number_of(const char *word, uint64_t *ret_number)
{
    uint64_t number = 0;
    for (const char *digit = word; *digit != '\0'; digit++) {
        if (*digit < '0' || *digit > '9' || __builtin_mul_overflow(number, UINT64_C(10), &number) ||
            __builtin_add_overflow(number, (uint64_t)(*digit - '0'), &number)) {
            return false;
        }
    }
    *ret_number = number;
    return word[0] != '\0';
}

/* Strict without a rule for each line: what was read is written again and must be the same bytes, its sum among them.
 */
static bool decode(const uint8_t part[PART_BYTES], struct slot *ret_slot)
{
    char text[PART_BYTES + 1], number[WORD_SIZE], when[WORD_SIZE], cluster[WORD_SIZE], root[WORD_SIZE], size[WORD_SIZE],
        hash[WORD_SIZE];
    struct slot slot = {0};
    struct kv_anchor_record *record = &slot.record;
    memcpy(text, part, PART_BYTES);
    text[PART_BYTES] = '\0';
    const char *at = text + 1;
    bool good = text[0] == '\n' && take(&at, "number   ", number) && take(&at, "written  ", when) &&
                take(&at, "cluster  ", cluster) && take(&at, "root     ", root) && take(&at, "log_size ", size) &&
                take(&at, "log_root ", hash) && number_of(number, &slot.number) &&
                kv_time_parse(when, &record->written_us) == KV_OK &&
                kv_id_parse("clu", cluster, &record->cluster) == KV_OK &&
                kv_id_parse("rot", root, &record->root) == KV_OK && number_of(size, &record->log_size) &&
                kv_hex_decode(hash, record->log_root.b, sizeof record->log_root.b) == KV_OK && slot.number > 0;
    uint8_t again[PART_BYTES];
    if (good) {
        encode(slot.number, record, again);
        good = memcmp(again, part, PART_BYTES) == 0;
    }
    if (good) {
        *ret_slot = slot;
    }
    return good;
}

/* --- the file ---------------------------------------------------------------------------------------------------- */

static bool blank(const uint8_t part[PART_BYTES])
{
    for (size_t i = 0; i < PART_BYTES; i++) {
        if (part[i] != 0 && part[i] != ' ' && part[i] != '\n') {
            return false;
        }
    }
    return true;
}

static KV_RC failed(struct kv_errinfo *info, const char *what)
{
    enum kv_err rc = kv_fail(info, KV_E_IO, "the anchor cannot be %s: %s; look at anchor.file", what, strerror(errno));
    if (info != NULL) {
        info->sys_errno = errno;
    }
    return rc;
}

static KV_RC open_locked(const struct file_anchor *anchor, struct kv_errinfo *info, int *ret_fd)
{
    int fd = open(anchor->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    struct stat there;
    if (fd < 0 && errno == ENOENT) {
        return kv_fail(info, KV_E_CONFIG,
                       "anchor.file is not there: mount what it lies on or put it back; for a new one make an empty "
                       "file, which forgets what an old one knew");
    }
    if (fd < 0) {
        return failed(info, "opened");
    }
    if (fstat(fd, &there) != 0 || !S_ISREG(there.st_mode) || there.st_size > KV_ANCHOR_FILE_BYTES) {
        close(fd);
        return kv_fail(info, KV_E_FOREIGN_FILE, "anchor.file names something else than an anchor; make an empty file");
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) { /* held for the moment of a write only */
        close(fd);
        return kv_fail(info, KV_E_BUSY, "another process writes the anchor; each instance needs one of its own");
    }
    *ret_fd = fd;
    return KV_OK;
}

static KV_RC write_part(int fd, unsigned part, const uint8_t bytes[PART_BYTES])
{
    ssize_t put = pwrite(fd, bytes, PART_BYTES, (off_t)part * PART_BYTES);
    if (put >= 0 && put < PART_BYTES) {
        errno = ENOSPC;
    }
    return put == PART_BYTES ? KV_OK : KV_E_IO;
}

/* KV_E_MISSING: nothing was written yet, or only the heading was. */
static KV_RC load(int fd, struct kv_errinfo *info, struct slot ret_slots[SLOTS])
{
    uint8_t bytes[KV_ANCHOR_FILE_BYTES] = {0}, first[PART_BYTES];
    struct slot slots[SLOTS] = {0};
    unsigned good = 0, damaged = 0;
    if (pread(fd, bytes, sizeof bytes, 0) < 0) {
        return failed(info, "read");
    }
    fill_part(heading, first);
    if (!blank(bytes) && memcmp(bytes, first, PART_BYTES) != 0) {
        return kv_fail(info, KV_E_FOREIGN_FILE, "anchor.file names something else than an anchor; make an empty file");
    }
    for (unsigned i = 0; i < SLOTS; i++) {
        const uint8_t *part = bytes + (size_t)(i + 1) * PART_BYTES;
        slots[i].damaged = !decode(part, &slots[i]) && !blank(part);
        good += slots[i].number > 0;
        damaged += slots[i].damaged;
    }
    if (good == 0 && damaged > 0) {
        return kv_fail(info, KV_E_CORRUPT,
                       "the anchor is damaged; put it back, or empty the file, which forgets what "
                       "it knew");
    }
    if (damaged > 0) {
        kv_log(KV_LOG_WARN, "anchor", "record-damaged");
    }
    memcpy(ret_slots, slots, sizeof slots);
    return good > 0 ? KV_OK : KV_E_MISSING;
}

static unsigned newest(const struct slot slots[SLOTS])
{
    return slots[1].number > slots[0].number ? 1 : 0;
}

static KV_RC file_read(struct kv_anchor *base, struct kv_errinfo *info, struct kv_anchor_record *ret_record)
{
    struct slot slots[SLOTS];
    int fd = -1;
    KV_TRY(open_locked((const struct file_anchor *)base, info, &fd));
    enum kv_err rc = load(fd, info, slots);
    close(fd);
    if (rc == KV_OK) {
        *ret_record = slots[newest(slots)].record;
    }
    return rc;
}

static KV_RC begin(int fd)
{
    uint8_t part[PART_BYTES];
    fill_part("", part);
    for (unsigned i = 1; i <= SLOTS; i++) {
        KV_TRY(write_part(fd, i, part));
    }
    fill_part(heading, part);
    KV_TRY(write_part(fd, 0, part));
    return fsync(fd) == 0 ? KV_OK : KV_E_IO;
}

static KV_RC put(int fd, const struct kv_anchor_record *record, struct kv_errinfo *info)
{
    struct slot slots[SLOTS] = {0};
    uint8_t part[PART_BYTES];
    enum kv_err rc = load(fd, info, slots);
    if (rc == KV_E_MISSING) {
        KV_TRY(begin(fd) == KV_OK ? KV_OK : failed(info, "written"));
        rc = KV_OK;
    }
    KV_TRY(rc);
    const struct slot *last = &slots[newest(slots)];
    bool same = kv_id_equal(&last->record.cluster, &record->cluster);
    if (last->number > 0 && (!same || last->record.log_size > record->log_size)) {
        return kv_fail(info, KV_E_STALE, "the anchor shows %s", same ? "a longer audit log" : "another database");
    }
    if (KV_FAULT("audit/anchor/write")) {
        errno = EIO;
        return failed(info, "written");
    }
    encode(last->number + 1, record, part);
    /* Into the place of the older one, or of the one that is damaged. */
    rc = write_part(fd, last->number > 0 ? 2 - newest(slots) : 1, part);
    KV_TRY(rc == KV_OK && fsync(fd) == 0 ? KV_OK : failed(info, "written"));
    return KV_FAULT("audit/anchor/written") ? KV_E_IO : KV_OK;
}

static KV_RC file_write(struct kv_anchor *base, const struct kv_anchor_record *record, struct kv_errinfo *info)
{
    int fd = -1;
    KV_TRY(open_locked((const struct file_anchor *)base, info, &fd));
    enum kv_err rc = put(fd, record, info);
    close(fd);
    return rc;
}

static void file_close(struct kv_anchor *base)
{
    struct file_anchor *anchor = (struct file_anchor *)base;
    kv_free(anchor->path);
    kv_free(anchor);
}

static const struct kv_anchor_ops file_ops = {
    .name = "file", .read = file_read, .write = file_write, .close = file_close};

KV_RC kv_anchor_file_open(const char *path, struct kv_errinfo *info, struct kv_anchor **ret_anchor)
{
    struct kv_anchor_record record;
    struct file_anchor *anchor = kv_alloc(sizeof *anchor);
    if (anchor == NULL) {
        return KV_E_NO_MEMORY;
    }
    anchor->base.ops = &file_ops;
    anchor->path = kv_strdup(path);
    enum kv_err rc = anchor->path == NULL ? KV_E_NO_MEMORY : file_read(&anchor->base, info, &record);
    if (rc != KV_OK && rc != KV_E_MISSING) {
        file_close(&anchor->base);
        return rc;
    }
    *ret_anchor = &anchor->base;
    return KV_OK;
}
