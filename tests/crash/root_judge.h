/*
 * Looks at the root's file from outside, at every moment: whatever was ever at its path is kept open and read raw. It
 * takes no provider's word for anything. Must never write to the file.
 */
#ifndef KV_TESTS_CRASH_ROOT_JUDGE_H
#define KV_TESTS_CRASH_ROOT_JUDGE_H

#include "tests/crash/root_life.h"

enum judge_wrong {
    JUDGE_FALSE_CERTIFICATE, /* somebody was told that a key is destroyed, and its bytes are there */
    JUDGE_LOST_SESSION,      /* what lives does not open any more */
    JUDGE_NOT_ENDED,         /* an erasure does not end */
    JUDGE_WRONGS
};
const char *judge_wrong_name(enum judge_wrong wrong); /* in the plural: "false certificates" */

struct judge;

struct judge *judge_new(const char *path, const struct life_book *book);
void judge_free(struct judge *judge);
/* At a moment: every key that is said to be gone is nowhere; the root of the database is whole; at most one is active.
 */
void judge_look(struct judge *judge);
/* Each kind of wrong counts once a judge. */
void judge_blame(struct judge *judge, enum judge_wrong wrong, const char *text);
bool judge_found(const struct judge *judge, enum judge_wrong wrong);
const char *judge_text(const struct judge *judge); /* the first that was found; "" */

#endif
