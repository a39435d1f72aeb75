/*
 * kill -9 at every step of a write: a child process appends and tells by a pipe what was durable; it is killed at a
 * fault point; the journal is opened again and everything that was told is there.
 */
#include "audit/journal.h"
#include "dataplane/base/fault.h"
#include "tests/lib/temp_folder.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[KVT_PATH_BYTES];

static void setup(void)
{
    kvt_folder_make(folder);
}

static void teardown(void)
{
    kvt_folder_remove(folder);
}

TestSuite(journal_crash, .init = setup, .fini = teardown);

static struct kv_journal *open_journal(void)
{
    struct kv_errinfo info = {.text = ""};
    struct kv_journal *journal = NULL;
    const struct kv_journal_conf conf = {.folder = folder, .bytes_max = 1 << 20, .env = &kv_env_system};
    enum kv_err rc = kv_journal_open(&conf, &info, &journal);
    if (rc != KV_OK) {
        (void)fprintf(stderr, "open: %s\n", info.text);
    }
    return journal;
}

struct told {
    uint64_t durable, shipped; /* numbers of the journal, over restarts */
};

/* Appends in bursts, ships the older half, tells what it knows. Ends by the fault, or exits 3 when it never comes. */
static void child(const char *spec, uint64_t base, int pipe_fd)
{
    kv_fault_set(spec);
    struct kv_journal *journal = open_journal();
    if (journal == NULL) {
        _exit(4);
    }
    const struct kv_audit_sink *sink = kv_journal_sink(journal);
    struct told told = {.durable = base, .shipped = 0};
    for (unsigned round = 0; round < 60; round++) {
        uint64_t seq = 0;
        for (unsigned i = 0; i < 60; i++) {
            const struct kv_transfer_record record = {.kind = KV_RECORD_RESTORE, .bytes = 1, .outcome = KV_OK};
            if (sink->append(sink->ctx, &record, &seq) != KV_OK) {
                _exit(5);
            }
        }
        while (sink->durable(sink->ctx) < seq) {
            usleep(200);
        }
        told.durable = base + seq;
        told.shipped = base + seq / 2;
        if (write(pipe_fd, &told, sizeof(told)) != (ssize_t)sizeof(told) ||
            kv_journal_shipped(journal, told.shipped) != KV_OK) {
            _exit(6);
        }
    }
    _exit(3);
}

static int killed_by(int status)
{
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

/* The last thing the child said before it was killed. */
static struct told run_child(const char *spec, uint64_t base)
{
    int ends[2], status = 0;
    struct told told = {.durable = base}, next;
    cr_assert(eq(int, pipe(ends), 0));
    pid_t pid = fork();
    cr_assert(ge(int, pid, 0));
    if (pid == 0) {
        close(ends[0]);
        child(spec, base, ends[1]);
    }
    close(ends[1]);
    while (read(ends[0], &next, sizeof(next)) == (ssize_t)sizeof(next)) {
        told = next;
    }
    close(ends[0]);
    cr_assert(eq(int, waitpid(pid, &status, 0), pid));
    cr_assert(eq(int, killed_by(status), SIGKILL), "%s: ended with status %d", spec, status);
    return told;
}

/* Opens, and holds what is there against what was told. Returns the last number. */
static uint64_t check_reopened(const struct told *told, const char *spec)
{
    static struct kv_journal_record records[8192];
    size_t count = 0;
    struct kv_journal *journal = open_journal();
    cr_assert(journal != NULL, "%s", spec);
    cr_assert(eq(int, kv_journal_read(journal, records, 8192, &count), KV_OK));
    uint64_t last = count > 0 ? records[count - 1].seq : told->durable;
    cr_assert(ge(u64, last, told->durable), "%s: a durable record is gone", spec);
    if (count > 0) {
        cr_assert(le(u64, records[0].seq, told->shipped + 1), "%s: a record that was not shipped is gone", spec);
    }
    for (size_t i = 1; i < count; i++) {
        cr_assert(eq(u64, records[i].seq, records[i - 1].seq + 1));
    }
    kv_journal_close(journal);
    return last;
}

static void kill_twice_at(const char *point)
{
    /* Early and late, the second time over what the first one left. */
    const unsigned passings[] = {1, 2, 7, 41};
    uint64_t base = 0;
    for (unsigned i = 0; i < 4; i++) {
        char spec[96];
        (void)snprintf(spec, sizeof(spec), "audit/journal/%s=kill@%u", point, passings[i]);
        struct told told = run_child(spec, base);
        base = check_reopened(&told, spec);
    }
}

Test(journal_crash, killed_before_a_write)
{
    kill_twice_at("write");
}

Test(journal_crash, killed_in_the_middle_of_a_write)
{
    kill_twice_at("torn");
}

Test(journal_crash, killed_before_a_sync)
{
    kill_twice_at("sync");
}

Test(journal_crash, killed_after_a_sync)
{
    kill_twice_at("synced");
}

static void kill_once_at(const char *point, unsigned nth)
{
    char spec[96];
    (void)snprintf(spec, sizeof(spec), "audit/journal/%s=kill@%u", point, nth);
    struct told told = run_child(spec, 0);
    (void)check_reopened(&told, spec);
}

Test(journal_crash, killed_while_files_take_turns)
{
    kill_once_at("begin", 2);
    kvt_folder_remove(folder);
    kvt_folder_make(folder);
    kill_once_at("begun", 2);
    kvt_folder_remove(folder);
    kvt_folder_make(folder);
    kill_once_at("giveback", 1);
}

Test(journal_crash, killed_at_the_very_first_beginning)
{
    kill_once_at("begin", 1);
    kvt_folder_remove(folder);
    kvt_folder_make(folder);
    kill_once_at("sync", 1);
    kvt_folder_remove(folder);
    kvt_folder_make(folder);
    kill_once_at("begun", 1);
}

Test(journal_crash, control_without_a_fault_ends_by_itself)
{
    int status = 0;
    int ends[2];
    cr_assert(eq(int, pipe(ends), 0));
    pid_t pid = fork();
    if (pid == 0) {
        child(NULL, 0, ends[1]);
    }
    close(ends[1]);
    struct told told = {0}, next;
    while (read(ends[0], &next, sizeof(next)) == (ssize_t)sizeof(next)) {
        told = next;
    }
    close(ends[0]);
    cr_assert(eq(int, waitpid(pid, &status, 0), pid));
    cr_assert(eq(int, killed_by(status), 0));
    cr_assert(eq(int, WEXITSTATUS(status), 3));
    cr_assert(eq(u64, told.durable, 3600));
    cr_assert(eq(u64, check_reopened(&told, "none"), 3600));
}
