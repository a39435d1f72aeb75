/*
 * The copies in nvme folders: those that an index names, and, when asked for, whatever else looks like one in the space
 * that the index calls free. A thief of the drive sees both. And the copies in any other file, such as an image of the
 * memory in which the dram tier was.
 */
#ifndef KV_ATTACK_ARENA_H
#define KV_ATTACK_ARENA_H

#include "tests/attack/copies.h"

#define COPIES_FILES_MAX 256

struct copy {
    struct kv_id scope;
    uint64_t offset, bytes;
    int fd;
    bool leftover; /* no index names it */
};

struct copies {
    struct copy *list; /* owned */
    size_t count, size;
    int fds[COPIES_FILES_MAX]; /* owned */
    size_t fd_count;
};

struct tally {
    size_t copies, opened, unreadable;
    size_t leftovers, leftovers_opened;
};

struct tally_of_scope {
    struct kv_id scope;
    struct tally tally;
};

/* `session` NULL: of every session. The codes of kv_nvme_walk; KV_E_IO, KV_E_LIMIT. What was added stays. */
KV_RC copies_add_folder(struct copies *copies, const char *folder, const struct kv_id *session, bool leftovers);
KV_RC copies_add_file(struct copies *copies, const char *path, const struct kv_id *session);
void copies_done(struct copies *copies);

typedef void copies_scope_fn(void *ctx, const struct tally_of_scope *tally);
/* Scope by scope, each told when it is done. Secrets from memory are tried for every `loosely_every`-th scope. */
void copies_open(struct copies *copies, struct opener *opener, size_t loosely_every, copies_scope_fn *fn, void *ctx);

#endif
