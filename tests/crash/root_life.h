/*
 * A process that does with a root of erasure what the eraser does with it, and nothing else: it finds out where the one
 * before it was killed, makes fresh roots, and destroys old ones. What a database would hold is a page of shared
 * memory, so it outlives the process, and each change of it is one commit.
 */
#ifndef KV_TESTS_CRASH_ROOT_LIFE_H
#define KV_TESTS_CRASH_ROOT_LIFE_H

#include "dataplane/keys/roe.h"

#define LIFE_ATTEMPTS 4u /* of erasures; one of them is given up before its re-key is committed */
#define LIFE_GONE_MAX 32u
#define LIFE_BLOB_MAX 1024u

/* Ways to build it wrong. The names that the model of the protocol has, too, mean the same (tests/model/erasure.py). */
enum life_naive {
    LIFE_RIGHT,
    LIFE_RENAME,         /* a commit writes another file and puts it in the place of the one before */
    LIFE_MARK_FIRST,     /* a commit marks the old key as destroyed, and overwrites it later */
    LIFE_ACTIVATE_FIRST, /* a commit makes the new root active before it destroys the old one */
    LIFE_ADOPT_STAGED,   /* a staged root that was found is used, instead of being thrown away */
    LIFE_NOT_REPEATED,   /* a commit that was cut off is not carried on */
    LIFE_NAIVES
};
const char *life_naive_name(enum life_naive naive); /* "activate_first"; "" for none */

struct life_root {
    struct kv_id id;
    uint8_t secret[32]; /* E: whoever has it opens what lives */
    uint8_t blob[LIFE_BLOB_MAX];
    size_t blob_len;
};

struct life_book {
    bool has_root, rekeyed; /* rekeyed: the root changed, and the one before is not known to be destroyed */
    unsigned current;
    struct life_root roots[2];
    struct kv_id old;
    struct kv_id gone[LIFE_GONE_MAX]; /* whoever asked was told that these are destroyed */
    unsigned gone_count, attempts;
    bool lost;         /* what lives did not open, or it was not to be found out what does */
    char trouble[256]; /* of the process that ran last */
};

struct life_conf {
    const char *path;
    enum life_naive naive;
};

/* Until all erasures have ended: 0. 1: it cannot go on, the book says why. */
int life(const struct life_conf *conf, struct life_book *book);

/* A commit as somebody might have written it. */
KV_RC life_naive_commit(const struct life_conf *conf, struct kv_roe **roe, const struct kv_id *fresh,
                        const struct kv_id *old);

#endif
