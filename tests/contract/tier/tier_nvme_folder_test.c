/*
 * The nvme tier's folder: foreign and damaged files, other versions, a second owner, growth, torn logs.
 */
#include "dataplane/base/fault.h"
#include "dataplane/base/mem.h"
#include "dataplane/tier/nvme_format.h"
#include "dataplane/tier/nvme_read.h"
#include "tests/lib/temp_folder.h"
#include "tests/lib/tier_rig.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define KIB UINT64_C(1024)
#define MIB (1024 * KIB)

static char folder[KVT_PATH_BYTES];
static struct kvt_rig rig;
static struct kvt_found found;

static void begin(void)
{
    kvt_folder_make(folder);
}

static void end(void)
{
    kv_fault_set(NULL);
    kvt_rig_close(&rig);
    kvt_folder_remove(folder);
}

TestSuite(nvme_folder, .init = begin, .fini = end);

static enum kv_err open_here(uint64_t bytes)
{
    return kvt_rig_open(&rig, folder, bytes, MIB, KV_IO_THREADS);
}

static const char *in_folder(const char *name)
{
    static char path[KVT_PATH_BYTES];
    kvt_path_join(path, folder, name);
    return path;
}

static size_t read_file(const char *name, uint8_t *data, size_t size)
{
    return kvt_file_read(in_folder(name), 0, data, size);
}

static void poke(const char *name, uint64_t offset, const void *data, size_t len)
{
    int fd = open(in_folder(name), O_WRONLY);
    cr_assert(ge(int, fd, 0));
    cr_assert(eq(sz, (size_t)pwrite(fd, data, len, (off_t)offset), len));
    close(fd);
}

static bool exists(const char *name)
{
    return access(in_folder(name), F_OK) == 0;
}

/* A folder with ten blocks, closed. */
static void make_folder(void)
{
    cr_assert(eq(int, open_here(8 * MIB), KV_OK), "%s", rig.info.text);
    cr_assert(eq(int, kvt_put_many(&rig, 0, 10, 64 * KIB, NULL), KV_OK));
    kvt_rig_close(&rig);
}

Test(nvme_folder, foreign_arena_is_refused_and_nothing_is_touched)
{
    static uint8_t before[10000], after[10001];
    memset(before, 'x', sizeof(before));
    kvt_file_write(in_folder("arena"), before, sizeof(before), 0600);
    cr_assert(eq(int, open_here(8 * MIB), KV_E_FOREIGN_FILE));
    cr_assert(ne(int, rig.info.text[0], 0));
    cr_assert(eq(sz, read_file("arena", after, sizeof(after)), sizeof(before)));
    cr_assert(eq(int, memcmp(before, after, sizeof(before)), 0));
    cr_assert(not(exists("lock")));
    cr_assert(not(exists("index.ckpt")));
    cr_assert(eq(int, kv_nvme_walk(folder, NULL, NULL), KV_E_FOREIGN_FILE));
}

/* Even one byte short of being anything. */
Test(nvme_folder, empty_arena_is_foreign)
{
    kvt_file_write(in_folder("arena"), "", 0, 0600);
    cr_assert(eq(int, open_here(8 * MIB), KV_E_FOREIGN_FILE));
}

static void foreign_neighbour(const char *name)
{
    uint8_t after[20];
    kvt_file_write(in_folder(name), "somebody's notes", 16, 0600);
    enum kv_err rc = open_here(8 * MIB);
    cr_assert(ne(int, rc, KV_OK));
    cr_assert(eq(sz, read_file(name, after, sizeof(after)), 16));
    cr_assert(eq(int, memcmp(after, "somebody's notes", 16), 0));
    cr_assert(not(exists("arena")));
}

Test(nvme_folder, foreign_checkpoint_is_not_replaced)
{
    foreign_neighbour("index.ckpt");
}

Test(nvme_folder, foreign_temporary_checkpoint_is_not_replaced)
{
    foreign_neighbour("index.ckpt.tmp");
}

Test(nvme_folder, foreign_log_is_not_replaced)
{
    foreign_neighbour("index.1.log");
}

Test(nvme_folder, foreign_temporary_arena_is_not_replaced)
{
    foreign_neighbour("arena.tmp");
}

Test(nvme_folder, other_files_in_the_folder_stay)
{
    uint8_t after[20];
    kvt_file_write(in_folder("notes"), "mine", 4, 0600);
    kvt_file_write(in_folder("index.99.log"), "mine", 4, 0600);
    make_folder();
    cr_assert(eq(int, open_here(8 * MIB), KV_OK));
    cr_assert(eq(sz, read_file("notes", after, sizeof(after)), 4));
    cr_assert(eq(sz, read_file("index.99.log", after, sizeof(after)), 4));
}

Test(nvme_folder, other_format_version_is_refused_untouched)
{
    static uint8_t before[4096], after[4096];
    make_folder();
    poke("arena", 11, "\x02", 1);
    read_file("arena", before, sizeof(before));
    cr_assert(eq(int, open_here(8 * MIB), KV_E_UNSUPPORTED));
    read_file("arena", after, sizeof(after));
    cr_assert(eq(int, memcmp(before, after, sizeof(before)), 0));
    kvt_rig_close(&rig);
    poke("arena", 11, "\x01", 1); /* control: it was the version */
    cr_assert(eq(int, open_here(8 * MIB), KV_OK));
}

Test(nvme_folder, damaged_superblock_or_checkpoint_is_refused_and_healthy_opens)
{
    make_folder();
    poke("arena", 20, "\xff\xff\xff", 3);
    cr_assert(eq(int, open_here(8 * MIB), KV_E_CORRUPT));
    kvt_rig_close(&rig);
    kvt_folder_remove(folder);
    kvt_folder_make(folder);
    make_folder();
    uint8_t byte;
    cr_assert(eq(sz, kvt_file_read(in_folder("index.ckpt"), 100, &byte, 1), 1));
    byte ^= 1;
    poke("index.ckpt", 100, &byte, 1);
    cr_assert(eq(int, open_here(8 * MIB), KV_E_CORRUPT));
    kvt_rig_close(&rig);
    byte ^= 1;
    poke("index.ckpt", 100, &byte, 1);
    cr_assert(eq(int, open_here(8 * MIB), KV_OK));
    kvt_scan(&rig, &found);
    cr_assert(eq(uint, found.count, 10));
}

Test(nvme_folder, lost_log_or_shortened_arena_is_refused)
{
    make_folder();
    char other[KVT_PATH_BYTES];
    snprintf(other, sizeof(other), "%s", in_folder("away"));
    cr_assert(exists("index.2.log"));
    cr_assert(eq(int, rename(in_folder("index.2.log"), other), 0));
    cr_assert(eq(int, open_here(8 * MIB), KV_E_CORRUPT));
    kvt_rig_close(&rig);
    cr_assert(eq(int, rename(other, in_folder("index.2.log")), 0));
    struct stat st;
    stat(in_folder("arena"), &st);
    cr_assert(eq(int, truncate(in_folder("arena"), st.st_size - 1), 0));
    cr_assert(eq(int, open_here(8 * MIB), KV_E_TRUNCATED));
    kvt_rig_close(&rig);
    cr_assert(eq(int, truncate(in_folder("arena"), st.st_size), 0));
    cr_assert(eq(int, open_here(8 * MIB), KV_OK));
}

Test(nvme_folder, second_owner_is_refused_while_the_first_runs)
{
    cr_assert(eq(int, open_here(8 * MIB), KV_OK));
    pid_t child = fork();
    if (child == 0) {
        struct kvt_rig second;
        _exit(kvt_rig_open(&second, folder, 8 * MIB, MIB, KV_IO_THREADS) == KV_E_BUSY ? 0 : 1);
    }
    int status;
    waitpid(child, &status, 0);
    cr_assert(eq(int, status, 0));
    cr_assert(eq(int, kvt_put(&rig, 1, 64 * KIB, NULL), KV_OK));
    kvt_rig_close(&rig);
    cr_assert(eq(int, open_here(8 * MIB), KV_OK)); /* control: it was the first owner */
}

Test(nvme_folder, arena_grows_and_does_not_shrink)
{
    make_folder();
    cr_assert(eq(int, open_here(16 * MIB), KV_OK), "%s", rig.info.text);
    cr_assert(gt(u64, kvt_stats(&rig).capacity_bytes, 8 * MIB));
    cr_assert(eq(int, kvt_put_many(&rig, 100, 150, 64 * KIB, NULL), KV_OK));
    kvt_scan(&rig, &found);
    cr_assert(eq(uint, found.count, 160));
    uint64_t capacity = kvt_stats(&rig).capacity_bytes;
    kvt_rig_close(&rig);
    cr_assert(eq(int, open_here(8 * MIB), KV_E_CONFIG));
    cr_assert(ne(int, rig.info.text[0], 0));
    kvt_rig_close(&rig);
    cr_assert(eq(int, open_here(16 * MIB), KV_OK));
    cr_assert(eq(u64, kvt_stats(&rig).capacity_bytes, capacity));
    kvt_scan(&rig, &found);
    cr_assert(eq(uint, found.count, 160));
    cr_assert(kvt_all_verify(&rig, &found));
}

Test(nvme_folder, smaller_table_than_what_is_there_loses_nothing)
{
    make_folder();
    cr_assert(eq(int, open_here(8 * MIB), KV_OK));
    cr_assert(eq(int, kvt_rig_close_tier(&rig), KV_OK));
    rig.conf.entries_max = 4;
    cr_assert(eq(int, kvt_rig_open_tier(&rig), KV_OK), "%s", rig.info.text);
    kvt_scan(&rig, &found);
    cr_assert(eq(uint, found.count, 10));
    cr_assert(eq(int, kvt_put(&rig, 50, 64 * KIB, NULL), KV_E_NO_SPACE));
}

Test(nvme_folder, sizes_that_make_no_tier_are_refused_with_a_text)
{
    cr_assert(eq(int, open_here(64 * KIB), KV_E_CONFIG));
    cr_assert(ne(int, rig.info.text[0], 0));
    cr_assert(not(exists("arena")));
    rig.conf.bytes = 8 * MIB;
    rig.conf.slab_bytes = 4095;
    cr_assert(eq(int, kvt_rig_open_tier(&rig), KV_E_CONFIG));
    rig.conf.slab_bytes = 0; /* chosen: a small arena is one slab */
    cr_assert(eq(int, kvt_rig_open_tier(&rig), KV_OK));
}

/* ---- torn logs ---- */

struct saved {
    uint8_t *data;
    size_t len;
};

static struct saved save(const char *name)
{
    struct stat st;
    cr_assert(eq(int, stat(in_folder(name), &st), 0));
    struct saved saved = {.data = kv_alloc((size_t)st.st_size + 1), .len = (size_t)st.st_size};
    cr_assert(eq(sz, read_file(name, saved.data, saved.len), saved.len));
    return saved;
}

static void put_back(const char *name, const struct saved *saved, size_t len)
{
    kvt_file_write(in_folder(name), saved->data, len, 0600);
}

/* A process that puts five blocks one by one and is killed: the log has a tail and no checkpoint over it. */
static void make_killed_folder(void)
{
    pid_t child = fork();
    if (child == 0) {
        bool fine = open_here(8 * MIB) == KV_OK;
        for (unsigned i = 0; i < 5 && fine; i++) {
            fine = kvt_put(&rig, i, 64 * KIB, NULL) == KV_OK;
        }
        kill(getpid(), fine ? SIGKILL : SIGTERM);
    }
    int status;
    waitpid(child, &status, 0);
    cr_assert(eq(int, WIFSIGNALED(status) ? WTERMSIG(status) : 0, SIGKILL));
}

static void check_numbers(unsigned expected)
{
    cr_assert(eq(int, open_here(8 * MIB), KV_OK), "%s", rig.info.text);
    kvt_scan(&rig, &found);
    cr_assert(eq(uint, found.count, expected));
    for (unsigned i = 0; i < expected; i++) {
        cr_assert(ge(int, kvt_find(&found, i), 0));
    }
    cr_assert(eq(u64, kvt_stats(&rig).used_bytes, expected * 64 * KIB));
    cr_assert(kvt_all_verify(&rig, &found));
}

static void check_and_forget(unsigned expected, const struct saved *ckpt, const struct saved *log)
{
    check_numbers(expected);
    kvt_rig_close(&rig);
    unlink(in_folder("index.2.log"));
    put_back("index.ckpt", ckpt, ckpt->len);
    put_back("index.1.log", log, log->len);
}

Test(nvme_folder, log_torn_at_every_byte_of_its_last_entry_keeps_the_others)
{
    make_killed_folder();
    struct saved ckpt = save("index.ckpt"), log = save("index.1.log");
    cr_assert(eq(sz, log.len, (size_t)6 * KV_NVME_ENTRY_BYTES));
    check_and_forget(5, &ckpt, &log); /* control: whole */
    for (size_t cut = 1; cut <= KV_NVME_ENTRY_BYTES; cut++) {
        put_back("index.1.log", &log, log.len - cut);
        check_and_forget(4, &ckpt, &log);
    }
    kv_free(ckpt.data);
    kv_free(log.data);
}

Test(nvme_folder, entry_with_any_flipped_byte_is_left_out)
{
    make_killed_folder();
    struct saved ckpt = save("index.ckpt"), log = save("index.1.log");
    for (size_t i = 1; i <= KV_NVME_ENTRY_BYTES; i++) {
        log.data[log.len - i] ^= 0x40;
        put_back("index.1.log", &log, log.len);
        log.data[log.len - i] ^= 0x40;
        check_and_forget(4, &ckpt, &log);
    }
    kv_free(ckpt.data);
    kv_free(log.data);
}

/* What follows a bad entry is not believed, but a slot that it names is not either. */
Test(nvme_folder, entry_in_the_middle_that_rots_ends_the_log_there)
{
    make_killed_folder();
    struct saved ckpt = save("index.ckpt"), log = save("index.1.log");
    log.data[3 * KV_NVME_ENTRY_BYTES] ^= 1; /* the third put */
    put_back("index.1.log", &log, log.len);
    check_numbers(2);
    cr_assert(eq(int, kvt_put(&rig, 100, 64 * KIB, NULL), KV_OK));
    kvt_rig_close(&rig);
    cr_assert(eq(int, open_here(8 * MIB), KV_OK));
    kvt_scan(&rig, &found);
    cr_assert(eq(uint, found.count, 3));
    kv_free(ckpt.data);
    kv_free(log.data);
}

Test(nvme_folder, log_of_another_arena_is_refused)
{
    make_killed_folder();
    struct saved log = save("index.1.log");
    kvt_folder_remove(folder);
    kvt_folder_make(folder);
    make_killed_folder();
    struct saved own = save("index.1.log");
    put_back("index.1.log", &log, log.len);
    cr_assert(eq(int, open_here(8 * MIB), KV_E_CORRUPT));
    kvt_rig_close(&rig);
    put_back("index.1.log", &own, own.len);
    check_numbers(5);
    kv_free(log.data);
    kv_free(own.data);
}

Test(nvme_folder, checkpoint_and_tail_are_read_together)
{
    make_folder(); /* ten blocks in the checkpoint */
    pid_t child = fork();
    if (child == 0) {
        bool fine = open_here(8 * MIB) == KV_OK;
        kvt_scan(&rig, &found);
        fine = fine && kvt_put_many(&rig, 10, 5, 64 * KIB, NULL) == KV_OK;
        int at = kvt_find(&found, 4);
        fine = fine && at >= 0 && kvt_drop(&rig, 4, found.where[at]) == KV_OK;
        kvt_rig_run(&rig, NULL);
        kill(getpid(), fine ? SIGKILL : SIGTERM);
    }
    int status;
    waitpid(child, &status, 0);
    cr_assert(eq(int, WIFSIGNALED(status) ? WTERMSIG(status) : 0, SIGKILL));
    cr_assert(eq(int, open_here(8 * MIB), KV_OK));
    kvt_scan(&rig, &found);
    cr_assert(eq(uint, found.count, 14));
    cr_assert(eq(int, kvt_find(&found, 4), -1));
    cr_assert(kvt_all_verify(&rig, &found));
}
