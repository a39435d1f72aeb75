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

/* One element more at the end of an owned array; the program ends when there is no memory. */
static void *grow(void *pointer_to_array, size_t *count, size_t size)
{
    void **array = pointer_to_array;
    void *grown = kv_realloc_array(*array, *count + 1, size);
    if (grown == NULL) {
        fprintf(stderr, "no memory\n");
        exit(2);
    }
    *array = grown;
    void *added = (uint8_t *)grown + *count * size;
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
    node.sealed = copy_bytes(sealed, node.sealed_len);
    struct loot_node *added = grow(&loot->nodes, &loot->node_count, sizeof(*added));
    *added = node;
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
    node.sealed = copy_bytes(sealed, node.sealed_len);
    struct loot_node *added = grow(&loot->nodes, &loot->node_count, sizeof(*added));
    *added = node;
    return KV_OK;
}

static KV_RC take_root(struct loot *loot, const struct dump_row *row)
{
    struct loot_root root = {0};
    uint8_t blob[LOOT_SEALED_MAX];
    KV_TRY(dump_id(row, "root_id", &root.root_id));
    KV_TRY(dump_bytea(row, "blob", blob, sizeof(blob), &root.blob_len));
    root.blob = copy_bytes(blob, root.blob_len);
    struct loot_root *added = grow(&loot->roots, &loot->root_count, sizeof(*added));
    *added = root;
    return KV_OK;
}

static KV_RC take_session(struct loot *loot, const struct dump_row *row)
{
    struct loot_session session = {0};
    KV_TRY(dump_id(row, "id", &session.id));
    KV_TRY(dump_id(row, "tenant_id", &session.tenant));
    const char *state = dump_text(row, "state");
    snprintf(session.state, sizeof(session.state), "%s", state != NULL ? state : "");
    struct loot_session *added = grow(&loot->sessions, &loot->session_count, sizeof(*added));
    *added = session;
    return KV_OK;
}

static KV_RC take_cluster(struct loot *loot, const struct dump_row *row)
{
    struct kv_id id;
    KV_TRY(dump_id(row, "id", &id));
    struct kv_id *added = grow(&loot->clusters, &loot->cluster_count, sizeof(*added));
    *added = id;
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
    *loot = (struct loot){0};
}
