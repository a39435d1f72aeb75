/*
 * kill_at_call FILE CALL MOMENT[:SECTORS] PID | -- PROGRAM ARGUMENT…: ends a process at the CALL-th of its system calls
 * that touch FILE, before or after that call, or in the middle of it (head:3, tail:5: of a write only so many sectors
 * get onto the medium). CALL 0 ends nothing and tells all of them. Exit status 0: it was killed there; 1: it ended
 * before that; 77: this user may not look into it.
 */
#include "tests/crash/calls.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static bool moment_of(const char *text, struct calls_plan *plan)
{
    for (int i = 0; i < CALLS_MOMENTS; i++) {
        size_t len = strlen(calls_moment_name((enum calls_moment)i));
        if (strncmp(text, calls_moment_name((enum calls_moment)i), len) == 0) {
            plan->moment = (enum calls_moment)i;
            plan->sectors = text[len] == ':' ? (uint32_t)strtoul(text + len + 1, NULL, 10) : 0;
            return i < CALLS_HEAD ? text[len] == '\0' : plan->sectors > 0;
        }
    }
    return false;
}

static void tell(void *ctx, const struct calls_call *call, bool begins)
{
    (void)ctx;
    if (begins) {
        printf("%s %u\n", call->name, call->sectors);
        fflush(stdout);
    }
}

/* Stands still until it is held. */
static pid_t start(char **program)
{
    pid_t pid = fork();
    if (pid == 0) {
        raise(SIGSTOP);
        execv(program[0], program);
        _exit(127);
    }
    if (pid > 0) {
        (void)waitpid(pid, NULL, WUNTRACED);
    }
    return pid;
}

static volatile pid_t held;

/* Whoever ends this program ends the other one, and it says how that ended. */
static void end_it(int signal)
{
    (void)signal;
    (void)kill(held, SIGKILL);
}

/* What it may hold and not look into shows nothing: not whose descriptor is whose. */
static bool may_look_into(pid_t pid)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/%d/fd/0", (int)pid);
    return access(link, F_OK) == 0;
}

int main(int argc, char **argv)
{
    struct calls_plan plan = {.path = argc > 1 ? argv[1] : ""};
    if (argc < 5 || argv[1][0] != '/' || !moment_of(argv[3], &plan)) {
        fprintf(stderr, "kill_at_call FILE CALL before|after|head:N|tail:N PID | -- PROGRAM ARGUMENT…\n");
        return 2;
    }
    plan.kill_at = (uint32_t)strtoul(argv[2], NULL, 10);
    plan.look = plan.kill_at == 0 ? tell : NULL;
    bool ours = strcmp(argv[4], "--") == 0;
    pid_t pid = ours ? start(argv + 5) : (pid_t)strtol(argv[4], NULL, 10);
    if (pid <= 0 || !calls_seize(pid) || !may_look_into(pid)) {
        fprintf(stderr, "this user may not look into process %d\n", (int)pid);
        return 77;
    }
    held = pid;
    (void)signal(SIGTERM, end_it);
    if (ours) {
        (void)kill(pid, SIGCONT);
    }
    printf("held\n");
    fflush(stdout);
    struct calls_end end;
    if (!calls_follow(pid, &plan, &end)) {
        return 2;
    }
    printf("%s at call %u, %s\n", end.killed ? "killed" : "not killed", end.count, end.killed ? end.call.name : "none");
    return end.killed ? 0 : 1;
}
