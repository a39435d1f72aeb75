/*
 * Rows of the erasure tree. Sealed bytes go in and come out; nothing here can open them.
 */
#include "server/store/store_ktree.h"

#include "dataplane/base/mem.h"
#include "server/store/pg_int.h"

#include <string.h>

static void arg_key(struct kv_pg_args *args, const struct kv_store_node_key *key)
{
    kv_pg_arg_id(args, &key->tree);
    kv_pg_arg_i32(args, key->level);
    kv_pg_arg_i32(args, key->idx);
}

static KV_RC fill(struct kv_pg_row *row, void *ret)
{
    struct kv_store_node node = {0};
    kv_pg_get_id(row, &node.node_id);
    node.version = kv_pg_get_i64(row);
    struct kv_bytes sealed = kv_pg_get_bytes(row);
    KV_TRY(kv_pg_row_check(row, NULL));
    node.sealed = kv_alloc(sealed.len);
    if (node.sealed == NULL) {
        return KV_E_NO_MEMORY;
    }
    memcpy(node.sealed, sealed.data, sealed.len);
    node.sealed_len = sealed.len;
    *(struct kv_store_node *)ret = node;
    return KV_OK;
}

KV_RC kv_store_node_load(struct kv_pg *pg, const struct kv_store_node_key *key, struct kv_errinfo *info,
                         struct kv_store_node *ret_node)
{
    static const struct kv_pg_query query = {
        "node_load", "SELECT node_id, node_ver, sealed FROM ktree_node WHERE tree = $1 AND level = $2 AND idx = $3"};
    struct kv_pg_args args = {0};
    arg_key(&args, key);
    struct kv_pg_one one = {
        .query = &query, .args = &args, .none = KV_E_MISSING, .none_text = "the erasure tree has no such node"};
    return kv_pg_fetch_one(pg, &one, fill, ret_node, info);
}

KV_RC kv_store_node_insert(struct kv_pg *pg, const struct kv_store_node_key *key, const struct kv_store_node *node,
                           struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {"node_insert",
                                             "INSERT INTO ktree_node (tree, level, idx, node_id, node_ver, sealed)"
                                             " VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING"};
    struct kv_pg_args args = {0};
    arg_key(&args, key);
    kv_pg_arg_id(&args, &node->node_id);
    kv_pg_arg_i64(&args, node->version);
    kv_pg_arg_raw(&args, node->sealed, node->sealed_len);
    return kv_pg_change_one(pg, &query, &args, info, "the erasure tree has this node already");
}

KV_RC kv_store_node_update(struct kv_pg *pg, const struct kv_store_node_key *key, int64_t seen_version,
                           const struct kv_store_node *node, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "node_update", "UPDATE ktree_node SET node_id = $4, node_ver = $5, sealed = $6"
                       " WHERE tree = $1 AND level = $2 AND idx = $3 AND node_ver = $7 AND $5 > node_ver"};
    struct kv_pg_args args = {0};
    arg_key(&args, key);
    kv_pg_arg_id(&args, &node->node_id);
    kv_pg_arg_i64(&args, node->version);
    kv_pg_arg_raw(&args, node->sealed, node->sealed_len);
    kv_pg_arg_i64(&args, seen_version);
    return kv_pg_change_one(pg, &query, &args, info, "a node of the erasure tree is not what was seen");
}

KV_RC kv_store_node_count(struct kv_pg *pg, struct kv_errinfo *info, uint64_t *ret_count)
{
    static const struct kv_pg_query query = {"node_count", "SELECT count(*) FROM ktree_node"};
    struct kv_pg_args args = {0};
    struct kv_pg_one one = {.query = &query, .args = &args, .none = KV_E_CORRUPT, .none_text = "no answer"};
    return kv_pg_fetch_one(pg, &one, kv_pg_fill_u64, ret_count, info);
}
