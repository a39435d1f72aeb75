/*
 * The copies in an nvme folder: those that its index names, and, when asked for, whatever else looks like one in the
 * space that the index calls free. A thief of the drive sees both.
 */
#ifndef KV_ATTACK_ARENA_H
#define KV_ATTACK_ARENA_H

#include "tests/attack/copies.h"

struct copy {
    struct kv_id scope;
    uint64_t offset, bytes; /* in the file `arena` */
    bool leftover;
};

struct copies {
    struct copy *list; /* owned */
    size_t count, size;
    int fd; /* of the arena file; owned */
};

struct tally {
    size_t copies, opened, unreadable;
    size_t leftovers, leftovers_opened;
};

/* `session` NULL: of every session. The codes of kv_nvme_walk. */
KV_RC copies_list(const char *folder, const struct kv_id *session, bool leftovers, struct copies *ret_copies);
void copies_done(struct copies *copies);
void copies_open(const struct copies *copies, struct opener *opener, struct tally *ret_tally);

#endif
