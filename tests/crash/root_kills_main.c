/*
 * kvrun-root-kills --runs N [--seed S] [--from K] [--to K] [--naive HOW]: in each run a process that makes and destroys
 * roots of erasure is killed at one of its system calls on the root's file, before it, after it, or in the middle of a
 * write; the one that takes over is killed, too, in many runs; the last one has to end all erasures. The file is looked
 * at, raw, at every call. Runs follow from the seed and their numbers. Exit status 1 when anything was wrong.
 */
#include "tests/crash/calls.h"
#include "tests/crash/root_judge.h"

#include "dataplane/base/log.h"
#include "dataplane/base/mem.h"

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define CALLS_MAX 4096u
#define KILLS_MAX 3u
#define ENDS_SECONDS 60u
#define TOLD_MAX 10u

struct kill_plan {
    uint32_t call, sectors;
    enum calls_moment moment;
};

struct run {
    struct kill_plan kills[KILLS_MAX];
    unsigned count;
};

struct kills {
    struct life_conf conf;
    struct life_book *book; /* shared */
    char path[PATH_MAX];
    struct calls_call calls[CALLS_MAX]; /* of a life that nobody ends */
    uint32_t call_count;
    uint64_t seed, runs, from, to; /* to: 0, all of them */
    uint64_t wrong[JUDGE_WRONGS], killed, bad;
    bool forbidden;
};

/* SplitMix64: a run's choices follow from its number. */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* --- one life ---------------------------------------------------------------------------------------------------- */

/* Stands still until it is held. */
static pid_t start(const struct kills *all)
{
    pid_t pid = fork();
    if (pid == 0) {
        raise(SIGSTOP);
        alarm(ENDS_SECONDS);
        kv_log_set_level(KV_LOG_ERROR); /* torn slots are what this is about */
        _exit(life(&all->conf, all->book));
    }
    if (pid > 0) {
        (void)waitpid(pid, NULL, WUNTRACED);
    }
    return pid;
}

struct looking {
    struct judge *judge;
    struct kills *note; /* NULL: does not */
};

static void look(void *ctx, const struct calls_call *call, bool begins)
{
    struct looking *looking = ctx;
    judge_look(looking->judge);
    if (begins && looking->note != NULL && looking->note->call_count < CALLS_MAX) {
        looking->note->calls[looking->note->call_count++] = *call;
    }
}

static bool watched_life(struct kills *all, struct looking *looking, const struct kill_plan *kill_plan,
                         struct calls_end *ret_end)
{
    struct calls_plan plan = {.path = all->path, .look = look, .ctx = looking};
    if (kill_plan != NULL) {
        plan.kill_at = kill_plan->call;
        plan.moment = kill_plan->moment;
        plan.sectors = kill_plan->sectors;
    }
    pid_t pid = start(all);
    if (pid < 0 || !calls_seize(pid)) {
        all->forbidden = true;
        if (pid > 0) {
            (void)kill(pid, SIGKILL);
        }
        return false;
    }
    (void)kill(pid, SIGCONT);
    return calls_follow(pid, &plan, ret_end);
}

/* Nobody ends the last one. */
static bool last_life(struct kills *all, struct looking *looking)
{
    struct calls_end end;
    if (!watched_life(all, looking, NULL, &end)) {
        return false;
    }
    judge_look(looking->judge);
    if (end.status != 0) {
        judge_blame(looking->judge, all->book->lost ? JUDGE_LOST_SESSION : JUDGE_NOT_ENDED, all->book->trouble);
    }
    return true;
}

/* --- which runs there are ---------------------------------------------------------------------------------------- */

/* Each call, before and after; each write, with each number of sectors at either end. */
static uint32_t moments_of(const struct calls_call *call)
{
    return 2 + (call->sectors > 1 ? 2 * (call->sectors - 1) : 0);
}

static uint64_t singles(const struct kills *all)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < all->call_count; i++) {
        sum += moments_of(&all->calls[i]);
    }
    return sum;
}

static struct kill_plan single(const struct kills *all, uint64_t number)
{
    uint32_t call = 0;
    while (number >= moments_of(&all->calls[call])) {
        number -= moments_of(&all->calls[call++]);
    }
    if (number < 2) {
        return (struct kill_plan){.call = call + 1, .moment = number == 0 ? CALLS_BEFORE : CALLS_AFTER};
    }
    uint32_t part = (uint32_t)number - 2;
    return (struct kill_plan){
        .call = call + 1, .moment = part % 2 == 0 ? CALLS_HEAD : CALLS_TAIL, .sectors = 1 + part / 2};
}

/* Two thirds of the runs go through all the single ones, or are spread over them; the others are killed again in the
 * recovery, at calls that come early in it. */
static struct run run_of(const struct kills *all, uint64_t number)
{
    uint64_t state = all->seed ^ (number * UINT64_C(0xd1342543de82ef95)), possible = singles(all);
    uint64_t alone = all->runs - all->runs / 3;
    struct run run = {.count = 1};
    if (number < alone && number < possible) {
        run.kills[0] = single(all, alone < possible ? number * possible / alone : number);
        return run;
    }
    run.kills[0] = single(all, next_random(&state) % possible);
    run.count = 2 + (unsigned)(next_random(&state) % 2);
    for (unsigned i = 1; i < run.count; i++) {
        run.kills[i] = (struct kill_plan){.call = 1 + (uint32_t)(next_random(&state) % (all->call_count / 2)),
                                          .moment = (enum calls_moment)(next_random(&state) % CALLS_MOMENTS),
                                          .sectors = 1 + (uint32_t)(next_random(&state) % 7)};
    }
    return run;
}

static void tell(const struct kills *all, uint64_t number, const struct run *run, const struct judge *judge)
{
    printf("run %llu:", (unsigned long long)number);
    for (unsigned i = 0; i < run->count; i++) {
        printf(" %s call %u (%u sectors),", calls_moment_name(run->kills[i].moment), run->kills[i].call,
               run->kills[i].sectors);
    }
    printf(" %s [%s]\n", judge_text(judge), all->book->trouble);
}

static void start_afresh(struct kills *all)
{
    memset(all->book, 0, sizeof *all->book);
    (void)unlink(all->path);
}

static bool one(struct kills *all, uint64_t number)
{
    struct run run = run_of(all, number);
    start_afresh(all);
    struct looking looking = {.judge = judge_new(all->path, all->book)};
    for (unsigned i = 0; i < run.count; i++) {
        struct calls_end end;
        if (!watched_life(all, &looking, &run.kills[i], &end)) {
            return false;
        }
        all->killed += end.killed;
        judge_look(looking.judge);
    }
    if (!last_life(all, &looking)) {
        return false;
    }
    bool bad = false;
    for (unsigned wrong = 0; wrong < JUDGE_WRONGS; wrong++) {
        bool found = judge_found(looking.judge, (enum judge_wrong)wrong);
        all->wrong[wrong] += found;
        bad = bad || found;
    }
    if (bad && all->bad++ < TOLD_MAX) {
        tell(all, number, &run, looking.judge);
    }
    judge_free(looking.judge);
    return true;
}

/* A life that nobody ends: what calls there are, and nothing is wrong at any of them. */
static bool survey(struct kills *all)
{
    start_afresh(all);
    struct looking looking = {.judge = judge_new(all->path, all->book), .note = all};
    struct calls_end end = {0};
    bool good = watched_life(all, &looking, NULL, &end) && end.status == 0 && all->call_count < CALLS_MAX;
    judge_look(looking.judge);
    good = good && (all->conf.naive != LIFE_RIGHT || judge_text(looking.judge)[0] == '\0');
    if (!good) {
        printf("a life that nobody ends: status %d, %s %s\n", end.status, judge_text(looking.judge),
               all->book->trouble);
    }
    judge_free(looking.judge);
    return good;
}

static bool all_runs(struct kills *all)
{
    if (!survey(all)) {
        return false;
    }
    printf("%u calls on the root's file, %llu ways to be killed once\n", all->call_count,
           (unsigned long long)singles(all));
    uint64_t to = all->to == 0 || all->to > all->runs ? all->runs : all->to;
    for (uint64_t number = all->from; number < to; number++) {
        if (!one(all, number)) {
            return false;
        }
        if ((number + 1) % 1000 == 0) {
            printf("%llu runs\n", (unsigned long long)number + 1);
            fflush(stdout);
        }
    }
    printf("%llu runs, %llu kills", (unsigned long long)(to - all->from), (unsigned long long)all->killed);
    bool good = true;
    for (unsigned wrong = 0; wrong < JUDGE_WRONGS; wrong++) {
        printf(", %llu %s", (unsigned long long)all->wrong[wrong], judge_wrong_name((enum judge_wrong)wrong));
        good = good && all->wrong[wrong] == 0;
    }
    printf("\n");
    return good;
}

static bool option(struct kills *all, const char *name, const char *value)
{
    uint64_t number = strtoull(value, NULL, 10);
    if (strcmp(name, "--naive") == 0) {
        for (unsigned i = 1; i < LIFE_NAIVES; i++) {
            if (strcmp(value, life_naive_name((enum life_naive)i)) == 0) {
                all->conf.naive = (enum life_naive)i;
                return true;
            }
        }
        return false;
    }
    uint64_t *target = strcmp(name, "--runs") == 0   ? &all->runs
                       : strcmp(name, "--seed") == 0 ? &all->seed
                       : strcmp(name, "--from") == 0 ? &all->from
                       : strcmp(name, "--to") == 0   ? &all->to
                                                     : NULL;
    if (target != NULL) {
        *target = number;
    }
    return target != NULL;
}

int main(int argc, char **argv)
{
    static struct kills all = {.runs = 300};
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!option(&all, argv[i], argv[i + 1])) {
            fprintf(stderr, "kvrun-root-kills --runs N [--seed S] [--from K] [--to K] [--naive HOW]\n");
            return 2;
        }
    }
    const char *place = getenv("TMPDIR");
    char folder[PATH_MAX - 16];
    snprintf(folder, sizeof folder, "%s/kvkills.XXXXXX", place != NULL && place[0] == '/' ? place : "/tmp");
    all.book = mmap(NULL, sizeof *all.book, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (all.book == MAP_FAILED || mkdtemp(folder) == NULL) {
        perror("a folder and a page");
        return 2;
    }
    snprintf(all.path, sizeof all.path, "%s/root", folder);
    all.conf.path = all.path;
    bool good = all_runs(&all);
    (void)unlink(all.path);
    (void)rmdir(folder);
    if (all.forbidden) {
        fprintf(stderr, "this user may not hold a process\n");
    }
    return all.forbidden ? 77 : good ? 0 : 1;
}
