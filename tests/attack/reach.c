/*
 * The walk of the attack. Rows are tried with the secrets of their own parent first, then with everything.
 */
#include "tests/attack/reach.h"
#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"
#include "dataplane/keys/roe_blob.h"

#include <stdlib.h>
#include <string.h>

#define TRIES_MAX ((size_t)1000000000)

/* What a row may have been sealed as: what its envelope says, and what its other columns say. */
struct variant {
    struct kv_id cluster, id;
    struct kv_node_key key;
    struct quick_target target;
};

struct row_state {
    bool opened;
    size_t likely, tried;     /* secrets before these were looked at by their place, and tried on the row */
    struct variant *variants; /* owned */
    size_t variant_count;
};

struct attack {
    const struct loot *loot;
    struct reach reach;
    struct row_state *rows; /* owned */
    size_t tries_max;
};

/* --- secrets --------------------------------------------------------------------------------------------------------
 */

/* Where the secret stands in the table, or would. Key material is its own hash. */
static uint32_t *place_of(const struct reach *reach, const uint8_t bytes[32])
{
    size_t mask = reach->size * 2 - 1, at;
    memcpy(&at, bytes, sizeof(at));
    for (at &= mask; reach->by_bytes[at] != 0; at = (at + 1) & mask) {
        if (memcmp(reach->secrets[reach->by_bytes[at] - 1].bytes, bytes, 32) == 0) {
            break;
        }
    }
    return &reach->by_bytes[at];
}

static void make_room(struct reach *reach)
{
    if (reach->count < reach->size) {
        return;
    }
    reach->size = reach->size == 0 ? 4096 : reach->size * 2;
    reach->secrets = kv_realloc_array(reach->secrets, reach->size, sizeof(*reach->secrets));
    kv_free(reach->by_bytes);
    reach->by_bytes = kv_alloc_array(reach->size * 2, sizeof(*reach->by_bytes));
    if (reach->secrets == NULL || reach->by_bytes == NULL) {
        abort();
    }
    for (size_t i = 0; i < reach->count; i++) {
        *place_of(reach, reach->secrets[i].bytes) = (uint32_t)(i + 1);
    }
}

static void add_bytes(struct reach *reach, const uint8_t bytes[32], const struct kv_node_key *of, unsigned child)
{
    make_room(reach);
    uint32_t *place = place_of(reach, bytes);
    if (*place != 0) {
        struct reached_secret *known = &reach->secrets[*place - 1];
        if (known->of.level == REACH_LOOSE_LEVEL) {
            known->of = *of;
            known->child = child;
        }
        return;
    }
    struct reached_secret *added = &reach->secrets[reach->count++];
    *added = (struct reached_secret){.of = *of, .child = child};
    memcpy(added->bytes, bytes, sizeof(added->bytes));
    quick_key_of(bytes, sizeof(added->bytes), &added->key);
    *place = (uint32_t)reach->count;
}

static void add_secret(struct reach *reach, const struct kv_secret *secret, const struct kv_node_key *of,
                       unsigned child)
{
    if (kv_secret_len(secret) == sizeof(reach->secrets->bytes)) {
        add_bytes(reach, kv_secret_data(secret), of, child);
    }
}

static void add_windows(struct attack *attack)
{
    const struct kv_node_key nowhere = {.level = REACH_LOOSE_LEVEL};
    for (size_t i = 0; i < attack->loot->window_count; i++) {
        add_bytes(&attack->reach, attack->loot->windows[i], &nowhere, 0);
    }
}

/* --- roots ----------------------------------------------------------------------------------------------------------
 */

static void try_root(struct attack *attack, const struct kv_secret *key, const struct kv_id *named)
{
    const struct kv_node_key above = {.level = REACH_ROOT_LEVEL};
    for (size_t r = 0; r < attack->loot->root_count; r++) {
        const struct loot_root *root = &attack->loot->roots[r];
        const struct kv_bytes blob = KV_BYTES(root->blob, root->blob_len);
        struct kv_secret *secret = NULL;
        enum kv_err rc = kv_roe_blob_open(key, &root->root_id, blob, &secret);
        if (rc != KV_OK && named != NULL) {
            rc = kv_roe_blob_open(key, named, blob, &secret);
        }
        if (rc == KV_OK) {
            attack->reach.roots_opened++;
            add_secret(&attack->reach, secret, &above, 0);
        }
        kv_secret_free(secret);
    }
}

/* Every wrapping key on every wrapped root, under the id that the row names and under the one that the slot names. */
static void open_roots(struct attack *attack)
{
    const struct kv_node_key above = {.level = REACH_ROOT_LEVEL};
    for (size_t k = 0; k < attack->loot->key_count; k++) {
        const struct loot_key *key = &attack->loot->keys[k];
        /* Somebody may have put E itself where a wrapping key belongs. */
        add_secret(&attack->reach, key->key, &above, 0);
        try_root(attack, key->key, &key->root_id);
    }
}

/* What was in memory may be a wrapping key, too. The commitment is looked at first: there are many. */
static void open_roots_loosely(struct attack *attack)
{
    size_t end = attack->reach.count;
    for (size_t r = 0; r < attack->loot->root_count; r++) {
        const struct loot_root *root = &attack->loot->roots[r];
        struct quick_target target;
        uint8_t context[QUICK_CONTEXT_BYTES];
        if (root->blob_len < KV_SEALED_FIXED_BYTES) {
            continue; /* of a provider whose keys are never in this process */
        }
        quick_context_of(root->blob, context);
        quick_target_of(root->blob, context, &target);
        for (size_t i = 0; i < end; i++) {
            struct kv_secret *key = NULL;
            attack->reach.tries++;
            if (attack->reach.secrets[i].of.level == REACH_LOOSE_LEVEL &&
                quick_opens(&attack->reach.secrets[i].key, &target) &&
                kv_secret_copy(attack->reach.secrets[i].bytes, 32, &key) == KV_OK) {
                try_root(attack, key, NULL);
                kv_secret_free(key);
            }
        }
    }
}

/* --- rows -----------------------------------------------------------------------------------------------------------
 */

static bool is_top(const struct kv_node_key *key)
{
    return kv_id_is_zero(&key->tree) && key->level == KV_TREE_LEVELS - 1;
}

/* The context of a node as ktree.h describes it. */
static void context_of(const struct variant *variant, uint8_t ret_context[QUICK_CONTEXT_BYTES])
{
    struct kv_writer w = kv_writer_of(ret_context, QUICK_CONTEXT_BYTES);
    memset(ret_context, 0, QUICK_CONTEXT_BYTES);
    kv_write_raw(&w, "KVR1", 4);
    kv_write_u8(&w, is_top(&variant->key) ? KV_SEALED_ROOT : KV_SEALED_NODE);
    kv_write_raw(&w, variant->key.tree.b, 16);
    kv_write_raw(&w, variant->id.b, 16);
    kv_write_raw(&w, variant->cluster.b, 16);
    kv_write_u32(&w, variant->key.level);
    kv_write_u32(&w, variant->key.idx);
    struct kv_writer end = kv_writer_of(ret_context + QUICK_CONTEXT_BYTES - 8, 8);
    kv_write_u64(&end, KV_NODE_PLAINTEXT_BYTES);
}

static void add_variant(struct row_state *row, const struct loot_node *node, struct variant variant)
{
    uint8_t context[QUICK_CONTEXT_BYTES];
    if (node->sealed_len < KV_SEALED_FIXED_BYTES) {
        return;
    }
    context_of(&variant, context);
    quick_target_of(node->sealed, context, &variant.target);
    for (size_t i = 0; i < row->variant_count; i++) {
        if (memcmp(&row->variants[i].target, &variant.target, sizeof(variant.target)) == 0) {
            return;
        }
    }
    row->variants = kv_realloc_array(row->variants, row->variant_count + 1, sizeof(*row->variants));
    if (row->variants == NULL) {
        abort();
    }
    row->variants[row->variant_count++] = variant;
}

static void variant_of_envelope(struct row_state *row, const struct loot_node *node)
{
    struct kv_sealed_context context;
    struct variant variant;
    if (kv_sealed_peek(KV_BYTES(node->sealed, node->sealed_len), &context) != KV_OK) {
        return;
    }
    struct kv_reader r = kv_reader_of(KV_BYTES(context.block_id.b, sizeof(context.block_id.b)));
    kv_read_raw(&r, variant.cluster.b, sizeof(variant.cluster.b));
    variant.id = context.scope;
    variant.key.tree = context.tenant;
    variant.key.level = kv_read_u32(&r);
    variant.key.idx = kv_read_u32(&r);
    add_variant(row, node, variant);
}

static void variants_of(const struct loot *loot, const struct loot_node *node, struct row_state *row)
{
    variant_of_envelope(row, node);
    for (size_t c = 0; c < loot->cluster_count; c++) {
        struct variant variant = {.cluster = loot->clusters[c], .id = node->node_id, .key = node->key};
        add_variant(row, node, variant);
        for (size_t r = 0; is_top(&node->key) && r < loot->root_count; r++) {
            variant.id = loot->roots[r].root_id;
            add_variant(row, node, variant);
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

static bool open_as(struct attack *attack, const struct loot_node *node, const struct variant *variant, size_t index)
{
    struct kv_secret *secret = NULL, *children[KV_TREE_FANOUT];
    if (kv_secret_copy(attack->reach.secrets[index].bytes, 32, &secret) != KV_OK) {
        abort();
    }
    bool opened = kv_node_open(&variant->cluster, &variant->key, &variant->id, secret,
                               KV_BYTES(node->sealed, node->sealed_len), children) == KV_OK;
    kv_secret_free(secret);
    if (opened) {
        take_children(attack, &variant->key, children);
    }
    return opened;
}

static bool try_secret(struct attack *attack, size_t r, size_t index)
{
    struct row_state *row = &attack->rows[r];
    for (size_t v = 0; v < row->variant_count; v++) {
        attack->reach.tries++;
        if (quick_opens(&attack->reach.secrets[index].key, &row->variants[v].target) &&
            open_as(attack, &attack->loot->nodes[r], &row->variants[v], index)) {
            return true;
        }
    }
    return false;
}

static bool is_parent(const struct reached_secret *secret, const struct kv_node_key *key)
{
    if (is_top(key)) {
        return secret->of.level == REACH_ROOT_LEVEL;
    }
    if (key->level == KV_TREE_LEVELS - 1) {
        return kv_id_is_zero(&secret->of.tree) && secret->of.level == 0; /* A tenant's top hangs under the directory. */
    }
    return secret->of.level == key->level + 1 && secret->child == key->idx % KV_TREE_FANOUT &&
           secret->of.idx == key->idx / KV_TREE_FANOUT && kv_id_equal(&secret->of.tree, &key->tree);
}

/* Returns whether the row opened. `likely` tries only secrets that stand where the row's own would. */
static bool try_row(struct attack *attack, size_t r, bool likely)
{
    const struct loot_node *node = &attack->loot->nodes[r];
    struct row_state *row = &attack->rows[r];
    size_t *at = likely ? &row->likely : &row->tried;
    size_t end = attack->reach.count;
    for (; *at < end && !row->opened && attack->reach.tries < attack->tries_max; (*at)++) {
        if (!likely || is_parent(&attack->reach.secrets[*at], &node->key)) {
            row->opened = try_secret(attack, r, *at);
        }
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
    attack->reach.complete = true;
    for (size_t r = 0; r < attack->loot->node_count; r++) {
        const struct row_state *row = &attack->rows[r];
        attack->reach.complete = attack->reach.complete && (row->opened || row->tried == attack->reach.count);
    }
}

KV_RC reach_from(const struct loot *loot, size_t tries_max, struct reach *ret_reach)
{
    struct attack attack = {.loot = loot, .tries_max = tries_max > 0 ? tries_max : TRIES_MAX};
    attack.rows = kv_alloc_array(loot->node_count + 1, sizeof(*attack.rows));
    if (attack.rows == NULL) {
        return KV_E_NO_MEMORY;
    }
    for (size_t r = 0; r < loot->node_count; r++) {
        variants_of(loot, &loot->nodes[r], &attack.rows[r]);
    }
    open_roots(&attack);
    add_windows(&attack);
    open_roots_loosely(&attack);
    open_nodes(&attack);
    for (size_t r = 0; r < loot->node_count; r++) {
        kv_free(attack.rows[r].variants);
    }
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
    kv_free(reach->by_bytes);
    *reach = (struct reach){0};
}
