/*
 * The arithmetic of the tree: which nodes lie between the directory's top and a slot.
 */
#include "dataplane/keys/node_int.h"

#define FANOUT_BITS 6u
_Static_assert(1u << FANOUT_BITS == KV_TREE_FANOUT, "the path arithmetic shifts by the fan-out");

bool tree_is_top(const struct kv_node_key *key)
{
    return kv_id_is_zero(&key->tree) && key->level == KV_TREE_LEVELS - 1;
}

bool tree_key_equal(const struct kv_node_key *a, const struct kv_node_key *b)
{
    return a->level == b->level && a->idx == b->idx && kv_id_equal(&a->tree, &b->tree);
}

static void path_in_tree(const struct kv_id *tree, uint32_t slot, struct tree_step *ret_steps)
{
    for (uint32_t i = 0; i < KV_TREE_LEVELS; i++) {
        uint32_t level = KV_TREE_LEVELS - 1 - i;
        ret_steps[i] = (struct tree_step){
            .key = {.tree = *tree, .level = level, .idx = slot >> (FANOUT_BITS * (level + 1))},
            .child = slot >> (FANOUT_BITS * level) & (KV_TREE_FANOUT - 1),
        };
    }
}

KV_RC tree_path(const struct kv_id *tenant, uint32_t directory_slot, uint32_t slot,
                struct tree_step ret_path[TREE_PATH_NODES])
{
    static const struct kv_id directory = {0};
    if (kv_id_is_zero(tenant)) {
        return KV_E_INVALID_REQUEST; /* The zero id names the directory. */
    }
    if (directory_slot >= KV_MAX_TENANTS || slot >= KV_MAX_TENANT_SLOTS) {
        return KV_E_LIMIT;
    }
    path_in_tree(&directory, directory_slot, ret_path);
    path_in_tree(tenant, slot, ret_path + KV_TREE_LEVELS);
    return KV_OK;
}
