/*
 * What a command exits with: one map for every error of api/errors.def, and for codes of servers newer than this
 * program, by their HTTP status.
 */
#ifndef KV_CLI_EXIT_CODE_H
#define KV_CLI_EXIT_CODE_H

#include "dataplane/base/err.h"

enum {
    CLI_OK = 0,
    CLI_NEGATIVE = 1,    /* a failed check, a negative answer, or an internal error */
    CLI_USAGE = 2,       /* wrong use, configuration, or a request that is not valid */
    CLI_NOT_FOUND = 3,   /* not there, or erased */
    CLI_AUTH = 4,        /* no key, or one that may not */
    CLI_CONFLICT = 5,    /* the state forbids it */
    CLI_UNAVAILABLE = 6, /* not now; try again */
    CLI_INTEGRITY = 7,   /* something is not what it was */
};

int cli_exit_of(enum kv_err rc);
/* For an answer whose code this program does not know. */
int cli_exit_of_status(int status);
const char *cli_exit_text(int code); /* for help; NULL: no such code */

#endif
