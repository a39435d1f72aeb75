/* An anchor in a file: what is written is read, also after a tear; what is not one is refused and left alone. */
#include "audit/anchor.h"
#include "dataplane/base/env.h"
#include "dataplane/base/id.h"
#include "tests/lib/temp_folder.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PART 512

static char folder[KVT_PATH_BYTES], path[KVT_PATH_BYTES];
static struct kv_errinfo info;
static struct kv_anchor *anchor;

static void setup(void)
{
    kvt_folder_make(folder);
    kvt_path_join(path, folder, "anchor");
    kvt_file_write(path, "", 0, 0600);
}

static void teardown(void)
{
    if (anchor != NULL) {
        anchor->ops->close(anchor);
    }
    kvt_folder_remove(folder);
}

TestSuite(anchor, .init = setup, .fini = teardown);

static void must_open(void)
{
    cr_assert(eq(int, kv_anchor_file_open(path, &info, &anchor), KV_OK), "%s", info.text);
}

static enum kv_err open_again(void)
{
    if (anchor != NULL) {
        anchor->ops->close(anchor);
        anchor = NULL;
    }
    return kv_anchor_file_open(path, &info, &anchor);
}

static struct kv_anchor_record record_of(uint8_t root, uint64_t size)
{
    struct kv_anchor_record record = {.log_size = size, .written_us = UINT64_C(1796000000000000) + size};
    memset(record.cluster.b, 7, sizeof record.cluster.b);
    memset(record.root.b, root, sizeof record.root.b);
    memset(record.log_root.b, (int)size & 0xff, sizeof record.log_root.b);
    return record;
}

static enum kv_err put(uint8_t root, uint64_t size)
{
    struct kv_anchor_record record = record_of(root, size);
    return anchor->ops->write(anchor, &record, &info);
}

static void check_shows(uint8_t root, uint64_t size)
{
    struct kv_anchor_record expected = record_of(root, size), found = {0};
    cr_assert(eq(int, anchor->ops->read(anchor, &info, &found), KV_OK), "%s", info.text);
    cr_assert(kv_id_equal(&found.root, &expected.root) && kv_id_equal(&found.cluster, &expected.cluster));
    cr_assert(eq(u64, found.log_size, size));
    cr_assert(eq(u64, found.written_us, expected.written_us));
    cr_assert(eq(int, memcmp(found.log_root.b, expected.log_root.b, 32), 0));
}

static enum kv_err read_it(void)
{
    struct kv_anchor_record found;
    return anchor->ops->read(anchor, &info, &found);
}

static void spoil(off_t at, const char *text)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    cr_assert(eq(long, (long)pwrite(fd, text, strlen(text), at), (long)strlen(text)));
    close(fd);
}

Test(anchor, shows_what_was_written_last_also_to_the_next_process)
{
    must_open();
    cr_assert(eq(int, read_it(), KV_E_MISSING));
    cr_assert(eq(int, put(1, 10), KV_OK), "%s", info.text);
    check_shows(1, 10);
    cr_assert(eq(int, put(2, 11), KV_OK));
    cr_assert(eq(int, put(3, UINT64_MAX), KV_OK));
    check_shows(3, UINT64_MAX);
    cr_assert(eq(int, open_again(), KV_OK));
    check_shows(3, UINT64_MAX);
}

Test(anchor, is_text_of_one_size)
{
    static char text[KV_ANCHOR_FILE_BYTES + 2];
    must_open();
    for (uint64_t i = 1; i <= 5; i++) {
        cr_assert(eq(int, put((uint8_t)i, i), KV_OK));
    }
    cr_assert(eq(sz, kvt_file_read(path, 0, text, sizeof text - 1), KV_ANCHOR_FILE_BYTES));
    cr_assert(strncmp(text, "kvrun anchor 1\n", 15) == 0);
    cr_assert(strstr(text, "\nnumber   5\n") != NULL && strstr(text, "\nnumber   4\n") != NULL);
    for (size_t i = 0; i < KV_ANCHOR_FILE_BYTES; i++) {
        cr_assert(text[i] == '\n' || (text[i] >= ' ' && text[i] <= '~'), "byte %zu", i);
    }
}

Test(anchor, never_goes_back)
{
    must_open();
    cr_assert(eq(int, put(1, 10), KV_OK));
    cr_assert(eq(int, put(2, 9), KV_E_STALE));
    check_shows(1, 10);
    cr_assert(eq(int, put(2, 10), KV_OK), "the root may change while the log does not grow");
    struct kv_anchor_record other = record_of(3, 20);
    other.cluster.b[0] = 1;
    cr_assert(eq(int, anchor->ops->write(anchor, &other, &info), KV_E_STALE));
    check_shows(2, 10);
}

/* A write that tore leaves the record before it. */
Test(anchor, damaged_record_leaves_the_other_and_is_replaced)
{
    must_open();
    cr_assert(eq(int, put(1, 10), KV_OK)); /* the first place */
    cr_assert(eq(int, put(2, 11), KV_OK)); /* the second */
    spoil(2 * PART + 20, "x");
    check_shows(1, 10);
    cr_assert(eq(int, put(3, 12), KV_OK));
    check_shows(3, 12);
    spoil(PART + 20, "x"); /* the older one */
    check_shows(3, 12);
    cr_assert(eq(int, put(4, 13), KV_OK));
    check_shows(4, 13);
}

Test(anchor, whose_only_record_is_damaged_is_not_taken_for_an_empty_one)
{
    must_open();
    cr_assert(eq(int, put(1, 10), KV_OK));
    spoil(PART + 20, "x");
    cr_assert(eq(int, read_it(), KV_E_CORRUPT));
    cr_assert(eq(int, put(2, 11), KV_E_CORRUPT));
    cr_assert(eq(int, open_again(), KV_E_CORRUPT));
}

/* Every single byte counts; which one was changed makes no difference. */
Test(anchor, any_changed_byte_of_a_record_is_noticed)
{
    static char good[KV_ANCHOR_FILE_BYTES];
    must_open();
    cr_assert(eq(int, put(1, 10), KV_OK));
    cr_assert(eq(sz, kvt_file_read(path, 0, good, sizeof good), sizeof good));
    for (size_t i = PART; i < (size_t)2 * PART; i++) {
        static char bad[KV_ANCHOR_FILE_BYTES];
        memcpy(bad, good, sizeof bad);
        bad[i] = bad[i] == '7' ? '8' : '7';
        kvt_file_write(path, bad, sizeof bad, 0600);
        cr_assert(eq(int, read_it(), KV_E_CORRUPT), "byte %zu", i);
    }
    kvt_file_write(path, good, sizeof good, 0600);
    check_shows(1, 10);
}

/* A kill in the first write: nothing was promised on the strength of it. */
Test(anchor, begun_and_not_finished_is_begun_again)
{
    static const uint8_t zeroes[700];
    kvt_file_write(path, zeroes, sizeof zeroes, 0600);
    must_open();
    cr_assert(eq(int, read_it(), KV_E_MISSING));
    cr_assert(eq(int, put(1, 10), KV_OK), "%s", info.text);
    check_shows(1, 10);
}

Test(anchor, that_is_not_there_is_never_made)
{
    cr_assert(eq(int, unlink(path), 0));
    cr_assert(eq(int, kv_anchor_file_open(path, &info, &anchor), KV_E_CONFIG));
    cr_assert(strstr(info.text, "anchor.file") != NULL);
    cr_assert(ne(int, access(path, F_OK), 0));
    kvt_file_write(path, "", 0, 0600);
    must_open();
    cr_assert(eq(int, put(1, 10), KV_OK));
    cr_assert(eq(int, unlink(path), 0)); /* the mount went away */
    cr_assert(eq(int, put(2, 11), KV_E_CONFIG));
    cr_assert(ne(int, access(path, F_OK), 0));
}

Test(anchor, other_files_are_left_alone)
{
    static char other[KV_ANCHOR_FILE_BYTES + 1], after[KV_ANCHOR_FILE_BYTES + 2];
    memset(other, 'x', sizeof other);
    kvt_file_write(path, other, 100, 0600);
    cr_assert(eq(int, open_again(), KV_E_FOREIGN_FILE));
    memset(other, ' ', sizeof other);
    kvt_file_write(path, other, sizeof other, 0600);
    cr_assert(eq(int, open_again(), KV_E_FOREIGN_FILE), "one byte more than an anchor has");
    cr_assert(eq(sz, kvt_file_read(path, 0, after, sizeof after), sizeof other));
    cr_assert(eq(int, memcmp(after, other, sizeof other), 0));
    kvt_file_write(path, other, KV_ANCHOR_FILE_BYTES, 0600);
    cr_assert(eq(int, open_again(), KV_OK));
    cr_assert(eq(int, unlink(path), 0));
    cr_assert(eq(int, symlink("/dev/null", path), 0));
    cr_assert(eq(int, open_again(), KV_E_IO));
    cr_assert(eq(int, unlink(path), 0));
    cr_assert(eq(int, mkdir(path, 0700), 0));
    cr_assert(eq(int, open_again(), KV_E_IO));
    cr_assert(eq(int, rmdir(path), 0));
    cr_assert(eq(int, mkfifo(path, 0600), 0));
    cr_assert(eq(int, open_again(), KV_E_FOREIGN_FILE));
}
