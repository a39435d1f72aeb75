/*
 * Collecting. It takes whatever is there and judges nothing: a torn slot and a row of an older epoch count as well.
 */
#include "tests/attack/loot.h"
#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"
#include "dataplane/keys/roe_file_format.h"
#include "tests/attack/dump.h"

#include <stdlib.h>
#include <string.h>

/* One element more at the end of an owned array, which grows by doubling; the program ends when there is no memory. */
static void *grow(void *pointer_to_array, size_t *count, size_t size)
{
    void **array = pointer_to_array;
    if ((*count & (*count - 1)) == 0) { /* none yet, or full: the room is always a power of two */
        void *grown = kv_realloc_array(*array, *count > 0 ? *count * 2 : 1, size);
        if (grown == NULL) {
            fprintf(stderr, "no memory\n");
            exit(2);
        }
        *array = grown;
    }
    void *added = (uint8_t *)*array + *count * size;
    memset(added, 0, size);
    (*count)++;
    return added;
}

static uint8_t *copy_bytes(const uint8_t *bytes, size_t len)
{
    uint8_t *copy = kv_alloc(len > 0 ? len : 1);
    if (copy == NULL) {
        fprintf(stderr, "no memory\n");
        exit(2);
    }
    memcpy(copy, bytes, len);
    return copy;
}

static bool node_equal(const struct loot_node *a, const struct loot_node *b)
{
    return a->sealed_len == b->sealed_len && memcmp(a->sealed, b->sealed, a->sealed_len) == 0 &&
           kv_id_equal(&a->node_id, &b->node_id) && kv_id_equal(&a->key.tree, &b->key.tree) &&
           a->key.level == b->key.level && a->key.idx == b->key.idx;
}

void loot_add_node(struct loot *loot, const struct loot_node *node)
{
    loot->nodes_seen++;
    for (size_t i = loot->node_count; i > 0; i--) {
        if (node_equal(&loot->nodes[i - 1], node)) {
            return;
        }
    }
    struct loot_node *added = grow(&loot->nodes, &loot->node_count, sizeof(*added));
    *added = *node;
    added->sealed = copy_bytes(node->sealed, node->sealed_len);
}

void loot_add_root(struct loot *loot, const struct loot_root *root)
{
    for (size_t i = 0; i < loot->root_count; i++) {
        const struct loot_root *other = &loot->roots[i];
        if (kv_id_equal(&other->root_id, &root->root_id) && other->blob_len == root->blob_len &&
            memcmp(other->blob, root->blob, root->blob_len) == 0) {
            return;
        }
    }
    struct loot_root *added = grow(&loot->roots, &loot->root_count, sizeof(*added));
    *added = *root;
    added->blob = copy_bytes(root->blob, root->blob_len);
}

void loot_add_cluster(struct loot *loot, const struct kv_id *cluster)
{
    for (size_t i = 0; i < loot->cluster_count; i++) {
        if (kv_id_equal(&loot->clusters[i], cluster)) {
            return;
        }
    }
    struct kv_id *added = grow(&loot->clusters, &loot->cluster_count, sizeof(*added));
    *added = *cluster;
}

static KV_RC take_node(struct loot *loot, const struct dump_row *row)
{
    struct loot_node node = {0};
    uint8_t sealed[LOOT_SEALED_MAX];
    int64_t level = 0, idx = 0;
    KV_TRY(dump_id(row, "tree", &node.key.tree));
    KV_TRY(dump_id(row, "node_id", &node.node_id));
    KV_TRY(dump_integer(row, "level", &level));
    KV_TRY(dump_integer(row, "idx", &idx));
    KV_TRY(dump_bytea(row, "sealed", sealed, sizeof(sealed), &node.sealed_len));
    node.key.level = (uint32_t)level;
    node.key.idx = (uint32_t)idx;
    node.sealed = sealed;
    loot_add_node(loot, &node);
    return KV_OK;
}

/* The directory's top row as it was before a re-key is kept with the batch that replaced it. */
static KV_RC take_old_top(struct loot *loot, const struct dump_row *row)
{
    struct loot_node node = {.key = {.level = KV_TREE_LEVELS - 1}};
    uint8_t sealed[LOOT_SEALED_MAX];
    if (dump_text(row, "old_top_row") == NULL) {
        return KV_OK;
    }
    KV_TRY(dump_id(row, "old_root", &node.node_id));
    KV_TRY(dump_bytea(row, "old_top_row", sealed, sizeof(sealed), &node.sealed_len));
    node.sealed = sealed;
    loot_add_node(loot, &node);
    return KV_OK;
}

static KV_RC take_root(struct loot *loot, const struct dump_row *row)
{
    struct loot_root root = {0};
    uint8_t blob[LOOT_SEALED_MAX];
    KV_TRY(dump_id(row, "root_id", &root.root_id));
    KV_TRY(dump_bytea(row, "blob", blob, sizeof(blob), &root.blob_len));
    root.blob = blob;
    loot_add_root(loot, &root);
    return KV_OK;
}

static KV_RC take_session(struct loot *loot, const struct dump_row *row)
{
    struct loot_session session = {.slot = -1};
    KV_TRY(dump_id(row, "id", &session.id));
    KV_TRY(dump_id(row, "tenant_id", &session.tenant));
    KV_IGNORE(dump_integer(row, "slot", &session.slot), "all are tried where it is not known");
    const char *state = dump_text(row, "state");
    snprintf(session.state, sizeof(session.state), "%s", state != NULL ? state : "");
    if (loot_session_find(loot, &session.id) != NULL) {
        return KV_OK; /* in an older dump already */
    }
    struct loot_session *added = grow(&loot->sessions, &loot->session_count, sizeof(*added));
    *added = session;
    return KV_OK;
}

static KV_RC take_cluster(struct loot *loot, const struct dump_row *row)
{
    struct kv_id id;
    KV_TRY(dump_id(row, "id", &id));
    loot_add_cluster(loot, &id);
    return KV_OK;
}

static void take_row(void *ctx, const struct dump_row *row)
{
    static const struct {
        const char *table;
        KV_RC (*take)(struct loot *loot, const struct dump_row *row);
    } tables[] = {
        {"ktree_node", take_node}, {"erase_batch", take_old_top}, {"kroot", take_root},
        {"session", take_session}, {"cluster", take_cluster},
    };
    struct loot *loot = ctx;
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++) {
        if (strcmp(row->table, tables[i].table) == 0 && tables[i].take(loot, row) != KV_OK) {
            loot->rows_not_understood++;
        }
    }
}

KV_RC loot_add_dump(struct loot *loot, FILE *dump)
{
    return dump_read(dump, take_row, loot);
}

KV_RC loot_add_root_file(struct loot *loot, FILE *root)
{
    static const char *const states[] = {"empty", "staged", "active", "torn"};
    uint8_t page[KV_ROE_SLOT_BYTES];
    for (unsigned slot = 0; slot < KV_ROE_SLOTS; slot++) {
        struct kv_roe_slot parsed;
        if (fseek(root, (long)kv_roe_slot_offset(slot), SEEK_SET) != 0 ||
            fread(page, 1, sizeof(page), root) != sizeof(page)) {
            return KV_E_TRUNCATED;
        }
        kv_roe_slot_parse(page, &parsed);
        if (parsed.state == KV_ROE_SLOT_EMPTY) {
            continue;
        }
        struct kv_secret *key = NULL;
        KV_TRY(kv_roe_slot_key(page, &key));
        struct loot_key *added = grow(&loot->keys, &loot->key_count, sizeof(*added));
        *added = (struct loot_key){.root_id = parsed.id, .key = key, .state = states[parsed.state]};
    }
    kv_wipe(page, sizeof(page));
    return KV_OK;
}

/* Random bytes have two alike now and then, and never many; text, pointers and zeroes do. */
static bool may_be_random(const uint8_t bytes[32])
{
    uint64_t seen[4] = {0};
    unsigned different = 0;
    for (unsigned i = 0; i < 32; i++) {
        uint64_t bit = UINT64_C(1) << (bytes[i] & 63);
        different += (seen[bytes[i] >> 6] & bit) == 0;
        seen[bytes[i] >> 6] |= bit;
    }
    return different >= 21; /* of 32 random bytes fewer are different once in some hundred million times */
}

KV_RC loot_add_memory(struct loot *loot, FILE *memory)
{
    enum { STEP = 16, PIECE = 1 << 16 };
    static uint8_t piece[PIECE];
    size_t kept = 0, got;
    while ((got = fread(piece + kept, 1, PIECE - kept, memory)) > 0) {
        size_t len = kept + got, at = 0;
        for (; at + sizeof(*loot->windows) <= len; at += STEP) {
            if (may_be_random(piece + at)) {
                uint8_t(*added)[32] = grow(&loot->windows, &loot->window_count, sizeof(*added));
                memcpy(*added, piece + at, sizeof(*added));
            }
        }
        kept = len - at;
        memmove(piece, piece + at, kept);
    }
    return ferror(memory) ? KV_E_IO : KV_OK;
}

const struct loot_session *loot_session_find(const struct loot *loot, const struct kv_id *id)
{
    for (size_t i = 0; i < loot->session_count; i++) {
        if (kv_id_equal(&loot->sessions[i].id, id)) {
            return &loot->sessions[i];
        }
    }
    return NULL;
}

void loot_done(struct loot *loot)
{
    for (size_t i = 0; i < loot->node_count; i++) {
        kv_free(loot->nodes[i].sealed);
    }
    for (size_t i = 0; i < loot->root_count; i++) {
        kv_free(loot->roots[i].blob);
    }
    for (size_t i = 0; i < loot->key_count; i++) {
        kv_secret_free(loot->keys[i].key);
    }
    kv_free(loot->nodes);
    kv_free(loot->roots);
    kv_free(loot->sessions);
    kv_free(loot->keys);
    kv_free(loot->clusters);
    if (loot->windows != NULL) {
        kv_wipe(loot->windows, loot->window_count * sizeof(*loot->windows));
    }
    kv_free(loot->windows);
    *loot = (struct loot){0};
}
