/*
 * Watches a process call by call: which of its system calls touch one file, or the folder that the file is in, and the
 * end of the process at exactly one of them. Nothing is asked of the process, so it may be any program. It must never
 * end a process but the one that it was given.
 */
#ifndef KV_TESTS_CRASH_CALLS_H
#define KV_TESTS_CRASH_CALLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define CALLS_SECTOR 512u

enum calls_moment {
    CALLS_BEFORE, /* the call has begun and has done nothing */
    CALLS_AFTER,  /* it has done all, and the process does not know */
    CALLS_HEAD,   /* a write whose first sectors alone got onto the medium */
    CALLS_TAIL,   /* a write whose last sectors alone did */
};
#define CALLS_MOMENTS (CALLS_TAIL + 1)
const char *calls_moment_name(enum calls_moment moment); /* "before" */

struct calls_call {
    const char *name; /* "pwrite" */
    uint32_t sectors; /* of a write to the file; else 0 */
};

struct calls_plan {
    const char *path; /* absolute; need not exist yet */
    uint32_t kill_at; /* counted from 1; 0: never */
    uint32_t sectors; /* of CALLS_HEAD and CALLS_TAIL: how many */
    enum calls_moment moment;
    /* At the begin and at the end of each call that touches the file, while the process stands still. */
    void (*look)(void *ctx, const struct calls_call *call, bool begins);
    void *ctx;
};

struct calls_end {
    uint32_t count; /* calls that touched the file */
    bool killed;    /* where the plan said; `call` is the one */
    struct calls_call call;
    int status; /* of waitpid, of the process */
};

/* Takes hold of all threads of `pid`. False: this user may not, or it has ended. */
bool calls_seize(pid_t pid);
/* Lets a seized process run until it ends; false with a text on stderr when that could not be watched. Nothing else of
 * the caller's may be waited for meanwhile. */
bool calls_follow(pid_t pid, const struct calls_plan *plan, struct calls_end *ret_end);

#endif
