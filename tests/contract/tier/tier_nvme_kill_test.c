/*
 * The nvme tier killed at each of its fault points, at each passing: the next start finds every put that had completed,
 * bit by bit, and nothing over other bytes. One run without a kill is the control.
 */
#include "dataplane/base/fault.h"
#include "dataplane/tier/nvme_int.h"
#include "tests/lib/temp_folder.h"
#include "tests/lib/tier_rig.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define KIB UINT64_C(1024)
#define BLOCK_BYTES (64 * KIB)
#define BLOCKS 40u
#define PASSINGS_MAX 1000u

/* What the child tells: a block completed, or is about to be dropped. */
struct news {
    uint32_t number;
    uint32_t dropped;
};

static char folder[KVT_PATH_BYTES];
static struct kvt_rig rig;
static struct kvt_found found;

static void tell(int fd, uint32_t number, uint32_t dropped)
{
    struct news news = {.number = number, .dropped = dropped};
    if (write(fd, &news, sizeof(news)) != (ssize_t)sizeof(news)) {
        _exit(3);
    }
}

static bool must(enum kv_err rc)
{
    return rc == KV_OK || rc == KV_E_BUSY;
}

/* Puts one by one and many at once, drops, generations, a full arena, a clean end. */
static void live(int fd)
{
    static uint64_t where[BLOCKS];
    bool fine = kvt_rig_open(&rig, folder, 3072 * KIB, 256 * KIB, KV_IO_AUTO) == KV_OK;
    for (uint32_t i = 0; i < BLOCKS && fine; i++) {
        if (i >= 20) {
            tell(fd, i - 20, 1);
            fine = kvt_drop(&rig, i - 20, where[i - 20]) == KV_OK;
        }
        if (i % 10 == 7) {
            ((struct kv_nvme *)rig.tier)->rotate_asked = true;
        }
        enum kv_err rc = KV_E_BUSY;
        for (unsigned tries = 0; rc == KV_E_BUSY && tries < 10; tries++) {
            rc = kvt_put(&rig, i, BLOCK_BYTES, &where[i]);
            if (rc == KV_E_BUSY) {
                kvt_rig_run(&rig, NULL);
            }
        }
        fine = fine && must(rc);
        if (rc == KV_OK) {
            tell(fd, i, 0);
        }
    }
    kvt_rig_close(&rig);
    _exit(fine ? 0 : 2);
}

/* True when the child was killed. */
static bool run_child(const char *fault, unsigned passing, bool completed[BLOCKS], bool dropped[BLOCKS])
{
    int fds[2];
    cr_assert(eq(int, pipe(fds), 0));
    pid_t child = fork();
    if (child == 0) {
        char spec[96];
        close(fds[0]);
        snprintf(spec, sizeof(spec), "%s=kill@%u", fault, passing);
        kv_fault_set(spec);
        live(fds[1]);
    }
    close(fds[1]);
    struct news news;
    while (read(fds[0], &news, sizeof(news)) == (ssize_t)sizeof(news)) {
        if (news.dropped) {
            dropped[news.number] = true;
        } else {
            completed[news.number] = true;
        }
    }
    close(fds[0]);
    int status;
    waitpid(child, &status, 0);
    bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    cr_assert(killed || status == 0, "%s@%u: status %d", fault, passing, status);
    return killed;
}

static void check(const char *fault, unsigned passing, const bool completed[BLOCKS], const bool dropped[BLOCKS])
{
    enum kv_err rc = kvt_rig_open(&rig, folder, 3072 * KIB, 256 * KIB, KV_IO_AUTO);
    cr_assert(eq(int, rc, KV_OK), "%s@%u: %s", fault, passing, rig.info.text);
    kvt_scan(&rig, &found);
    for (unsigned i = 0; i < BLOCKS; i++) {
        int at = kvt_find(&found, i);
        bool lost = completed[i] && !dropped[i] && at < 0;
        cr_assert(not(lost), "%s@%u: block %u is lost", fault, passing, i);
    }
    cr_assert(kvt_all_verify(&rig, &found), "%s@%u: an entry stands over other bytes", fault, passing);
    cr_assert(eq(u64, kvt_stats(&rig).used_bytes, found.bytes));
    cr_assert(eq(u64, kvt_stats(&rig).objects, found.count));
    rc = kvt_put(&rig, 1000, BLOCK_BYTES, NULL); /* and it goes on */
    cr_assert(rc == KV_OK || rc == KV_E_NO_SPACE);
    kvt_rig_close(&rig);
}

static void kill_at_each_passing(const char *fault, unsigned stride)
{
    bool killed = true;
    unsigned kills = 0;
    for (unsigned passing = 1; killed && passing < PASSINGS_MAX; passing += passing < 4 ? 1 : stride) {
        bool completed[BLOCKS] = {false}, dropped[BLOCKS] = {false};
        kvt_folder_make(folder);
        killed = run_child(fault, passing, completed, dropped);
        check(fault, passing, completed, dropped);
        kvt_folder_remove(folder);
        kills += killed ? 1 : 0;
    }
    cr_assert(not(killed)); /* the last one ran to its end */
    cr_assert(gt(uint, kills, 0));
}

Test(nvme_kill, at_data_write)
{
    kill_at_each_passing("tier/nvme/data-write", 7);
}

Test(nvme_kill, at_data_sync)
{
    kill_at_each_passing("tier/nvme/data-sync", 5);
}

Test(nvme_kill, at_log_write)
{
    kill_at_each_passing("tier/nvme/log-write", 5);
}

Test(nvme_kill, at_log_sync)
{
    kill_at_each_passing("tier/nvme/log-sync", 5);
}

Test(nvme_kill, at_checkpoint_write)
{
    kill_at_each_passing("tier/nvme/ckpt-write", 1);
}

Test(nvme_kill, at_checkpoint_sync)
{
    kill_at_each_passing("tier/nvme/ckpt-sync", 1);
}

Test(nvme_kill, at_new_log_write)
{
    kill_at_each_passing("tier/nvme/newlog-write", 1);
}

Test(nvme_kill, at_new_log_sync)
{
    kill_at_each_passing("tier/nvme/newlog-sync", 1);
}

Test(nvme_kill, at_folder_sync)
{
    kill_at_each_passing("tier/nvme/folder-sync", 1);
}

Test(nvme_kill, at_checkpoint_rename)
{
    kill_at_each_passing("tier/nvme/ckpt-rename", 1);
}

Test(nvme_kill, at_sync_after_the_rename)
{
    kill_at_each_passing("tier/nvme/renamed-sync", 1);
}

Test(nvme_kill, at_arena_rename)
{
    kill_at_each_passing("tier/nvme/arena-rename", 1);
}

Test(nvme_kill, at_any_io)
{
    kill_at_each_passing("io/submit", 41);
}
