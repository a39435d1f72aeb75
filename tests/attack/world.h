/*
 * A small world to attack, for the tests of the attack program: a root file, a key tree whose rows can be written out
 * as dumps, sessions with a sealed copy each: three of one tenant, 3 of another, and 4 of the first one in a tree that
 * it got later. Session 1 is the one that gets erased alone.
 */
#ifndef KV_ATTACK_WORLD_H
#define KV_ATTACK_WORLD_H

#include "dataplane/base/bytes.h"
#include "tests/lib/temp_folder.h"

enum { WORLD_SESSIONS = 5 };

struct world {
    char folder[KVT_PATH_BYTES], root_path[KVT_PATH_BYTES];
    struct kv_id tenant, other, later_tree, sessions[WORLD_SESSIONS], root_id;
    uint8_t *copies[WORLD_SESSIONS]; /* owned; world_copy_bytes each, 4 KiB aligned */
};

extern struct world world;

void world_make(void);
void world_end(void); /* asserts that no secret is left */
struct kv_bytes world_copy(size_t session);
/* The present rows, or (`all`) every row ever written, as a dump. */
void world_write_dump(const char *path, bool all);
/* Stages the next root and re-keys without session 1; the old root, which still exists, is returned. */
struct kv_id world_rekey_without_session_1(void);
/* The same without the first tenant's first tree. */
struct kv_id world_rekey_without_tree(void);
void world_destroy(const struct kv_id *old); /* the moment of erasure */
void world_copy_root_file(const char *to);

#endif
