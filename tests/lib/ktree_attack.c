#include "tests/lib/ktree_attack.h"

#include <stdlib.h>
#include <string.h>

bool kvt_reached_has(const struct kvt_reached *reached, const uint8_t secret[32])
{
    for (size_t i = 0; i < reached->count; i++) {
        if (memcmp(reached->secrets[i], secret, 32) == 0) {
            return true;
        }
    }
    return false;
}

static void *must(void *memory)
{
    if (memory == NULL) {
        abort();
    }
    return memory;
}

void kvt_reach(struct kvt_reached *reached, const uint8_t secret[32])
{
    if (reached->count == reached->size) {
        reached->size = reached->size == 0 ? 1024 : reached->size * 2;
        reached->secrets = must(realloc(reached->secrets, reached->size * 32));
    }
    memcpy(reached->secrets[reached->count++], secret, 32);
}

void kvt_reached_done(struct kvt_reached *reached)
{
    free(reached->secrets);
    *reached = (struct kvt_reached){0};
}

static bool opens(const struct kvt_row *row, const struct kv_id *cluster, const struct kv_id *root_id,
                  const uint8_t secret[32], struct kvt_reached *reached)
{
    struct kv_secret *key = NULL, *children[KV_TREE_FANOUT];
    const struct kv_id *const ids[] = {&row->row.node_id, root_id};
    bool opened = false;
    if (kv_secret_copy(secret, 32, &key) != KV_OK) {
        abort();
    }
    for (size_t i = 0; i < 2 && !opened; i++) {
        opened = kv_node_open(cluster, &row->key, ids[i], key, KV_BYTES(row->row.sealed, row->row.sealed_len),
                              children) == KV_OK;
    }
    kv_secret_free(key);
    for (size_t i = 0; opened && i < KV_TREE_FANOUT; i++) {
        if (children[i] != NULL) {
            kvt_reach(reached, kv_secret_data(children[i]));
        }
        kv_secret_free(children[i]);
    }
    return opened;
}

/* A row is tried with the secrets that have not been tried on it yet, until nothing new opens. */
void kvt_ktree_attack(const struct kvt_history *history, const struct kv_id *cluster, const struct kv_id *root_id,
                      struct kvt_reached *reached)
{
    bool *done = must(calloc(history->count, sizeof(*done)));
    size_t *tried = must(calloc(history->count, sizeof(*tried)));
    for (bool more = true; more;) {
        more = false;
        for (size_t r = 0; r < history->count; r++) {
            for (; !done[r] && tried[r] < reached->count; tried[r]++) {
                done[r] = opens(&history->rows[r], cluster, root_id, reached->secrets[tried[r]], reached);
                more = more || done[r];
            }
        }
    }
    free(done);
    free(tried);
}
