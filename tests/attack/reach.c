/*
 * The walk of the attack. Rows are tried with the secrets of their own parent first, then with everything.
 */
#include "tests/attack/reach.h"
#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"
#include "dataplane/keys/roe_blob.h"

#include <stdlib.h>
#include <string.h>

#define TRIES_MAX ((size_t)20000000)
#define ROOT_LEVEL ((uint32_t)KV_TREE_LEVELS)

struct row_state {
    bool opened;
    size_t tried; /* secrets before this one were tried on the row */
};

struct attack {
    const struct loot *loot;
    struct reach reach;
    struct row_state *rows; /* owned */
    size_t tries_max;
};

static void add_secret(struct reach *reach, const struct kv_secret *secret, const struct kv_node_key *of,
                       unsigned child)
{
    if (kv_secret_len(secret) != sizeof(reach->secrets->bytes)) {
        return;
    }
    for (size_t i = 0; i < reach->count; i++) {
        if (memcmp(reach->secrets[i].bytes, kv_secret_data(secret), sizeof(reach->secrets[i].bytes)) == 0) {
            return;
        }
    }
    if (reach->count == reach->size) {
        reach->size = reach->size == 0 ? 4096 : reach->size * 2;
        reach->secrets = kv_realloc_array(reach->secrets, reach->size, sizeof(*reach->secrets));
        if (reach->secrets == NULL) {
            abort();
        }
    }
    struct reached_secret *added = &reach->secrets[reach->count++];
    *added = (struct reached_secret){.of = *of, .child = child};
    memcpy(added->bytes, kv_secret_data(secret), sizeof(added->bytes));
}

/* Every wrapping key on every wrapped root, under the id that the row names and under the one that the slot names. */
static void open_roots(struct attack *attack)
{
    const struct kv_node_key above = {.level = ROOT_LEVEL};
    for (size_t k = 0; k < attack->loot->key_count; k++) {
        const struct loot_key *key = &attack->loot->keys[k];
        /* Somebody may have put E itself where a wrapping key belongs. */
        add_secret(&attack->reach, key->key, &above, 0);
        for (size_t r = 0; r < attack->loot->root_count; r++) {
            const struct loot_root *root = &attack->loot->roots[r];
            const struct kv_bytes blob = KV_BYTES(root->blob, root->blob_len);
            struct kv_secret *secret = NULL;
            enum kv_err rc = kv_roe_blob_open(key->key, &root->root_id, blob, &secret);
            if (rc != KV_OK) {
                rc = kv_roe_blob_open(key->key, &key->root_id, blob, &secret);
            }
            if (rc == KV_OK) {
                attack->reach.roots_opened++;
                add_secret(&attack->reach, secret, &above, 0);
            }
            kv_secret_free(secret);
        }
    }
}

static void take_children(struct attack *attack, const struct kv_node_key *key, struct kv_secret **children)
{
    for (unsigned i = 0; i < KV_TREE_FANOUT; i++) {
        if (children[i] != NULL) {
            add_secret(&attack->reach, children[i], key, i);
            kv_secret_free(children[i]);
        }
    }
}

static bool is_top(const struct kv_node_key *key)
{
    return kv_id_is_zero(&key->tree) && key->level == KV_TREE_LEVELS - 1;
}

static bool try_under(struct attack *attack, const struct loot_node *node, const struct kv_id *id,
                      const struct kv_secret *secret)
{
    for (size_t c = 0; c < attack->loot->cluster_count; c++) {
        struct kv_secret *children[KV_TREE_FANOUT];
        attack->reach.tries++;
        if (kv_node_open(&attack->loot->clusters[c], &node->key, id, secret, KV_BYTES(node->sealed, node->sealed_len),
                         children) == KV_OK) {
            take_children(attack, &node->key, children);
            return true;
        }
    }
    return false;
}

static bool try_secret(struct attack *attack, const struct loot_node *node, size_t index)
{
    struct kv_secret *secret = NULL;
    if (kv_secret_copy(attack->reach.secrets[index].bytes, 32, &secret) != KV_OK) {
        abort();
    }
    bool opened = try_under(attack, node, &node->node_id, secret);
    for (size_t r = 0; is_top(&node->key) && !opened && r < attack->loot->root_count; r++) {
        opened = try_under(attack, node, &attack->loot->roots[r].root_id, secret);
    }
    kv_secret_free(secret);
    return opened;
}

static bool is_parent(const struct reached_secret *secret, const struct kv_node_key *key)
{
    if (is_top(key)) {
        return secret->of.level == ROOT_LEVEL;
    }
    if (key->level == KV_TREE_LEVELS - 1) {
        return kv_id_is_zero(&secret->of.tree) && secret->of.level == 0; /* A tenant's top hangs under the directory. */
    }
    return secret->of.level == key->level + 1 && kv_id_equal(&secret->of.tree, &key->tree) &&
           secret->of.idx == key->idx / KV_TREE_FANOUT && secret->child == key->idx % KV_TREE_FANOUT;
}

/* Returns whether the row opened. `likely` tries only secrets that stand where the row's own would. */
static bool try_row(struct attack *attack, size_t r, bool likely)
{
    const struct loot_node *node = &attack->loot->nodes[r];
    struct row_state *row = &attack->rows[r];
    size_t from = likely ? 0 : row->tried, end = attack->reach.count;
    for (size_t i = from; i < end && !row->opened && attack->reach.tries < attack->tries_max; i++) {
        if (!likely || is_parent(&attack->reach.secrets[i], &node->key)) {
            row->opened = try_secret(attack, node, i);
        }
    }
    if (!likely) {
        row->tried = end;
    }
    attack->reach.nodes_opened += row->opened ? 1 : 0;
    return row->opened;
}

static bool try_rows(struct attack *attack, bool likely)
{
    bool more = false;
    for (size_t r = 0; r < attack->loot->node_count; r++) {
        if (!attack->rows[r].opened) {
            more = try_row(attack, r, likely) || more;
        }
    }
    return more;
}

/* Each round opens a row or is the last one, so there are at most as many rounds as rows. */
static void open_nodes(struct attack *attack)
{
    bool more = true;
    while (more) {
        more = try_rows(attack, true);
        more = more || try_rows(attack, false);
    }
}

KV_RC reach_from(const struct loot *loot, size_t tries_max, struct reach *ret_reach)
{
    struct attack attack = {.loot = loot, .tries_max = tries_max > 0 ? tries_max : TRIES_MAX};
    attack.rows = kv_alloc_array(loot->node_count + 1, sizeof(*attack.rows));
    if (attack.rows == NULL) {
        return KV_E_NO_MEMORY;
    }
    open_roots(&attack);
    open_nodes(&attack);
    kv_free(attack.rows);
    *ret_reach = attack.reach;
    return KV_OK;
}

void reach_done(struct reach *reach)
{
    if (reach->secrets != NULL) {
        kv_wipe(reach->secrets, reach->size * sizeof(*reach->secrets));
    }
    kv_free(reach->secrets);
    *reach = (struct reach){0};
}
