/*
 * The re-key of a batch: every node on the way to a dropped slot gets a fresh secret and a fresh id, and the top is
 * sealed under the next root; so do all nodes of a tenant whose key is rotated. It works on rows alone, apart from the
 * cache, and the tree goes on with its present root. It must never leave a node on one of the paths sealed under a
 * secret that the present root still leads to.
 */
#include "dataplane/base/mem.h"
#include "dataplane/keys/ktree_int.h"

#include <string.h>

#define NO_PARENT SIZE_MAX

/* A node of the union of all paths. Parents stand before their children. */
struct rekey_node {
    struct kv_node_key key;
    size_t parent;        /* index, or NO_PARENT for the top */
    unsigned child;       /* which child of the parent it is */
    int64_t seen_version; /* of the row that was read */
};

struct rekey {
    struct kv_ktree *tree;
    const struct kv_ktree_store *store;
    struct ktree_use use;
    const struct kv_id *fresh_id;
    const struct kv_secret *fresh_secret;
    struct rekey_node *nodes; /* owned */
    uint8_t *plains;          /* owned, locked: one plaintext a node */
    size_t plains_bytes, nodes_max, count;
};

struct targets {
    const struct kv_ktree_target *list;
    size_t count;
};

struct rotating {
    const struct kv_ktree_rotation *rotation;
    uint8_t *ret_fingerprint;
};

static uint8_t *plain_of(const struct rekey *rekey, size_t index)
{
    return rekey->plains + index * KV_NODE_PLAINTEXT_BYTES;
}

static size_t find_node(const struct rekey *rekey, const struct kv_node_key *key)
{
    for (size_t i = rekey->count; i-- > 0;) { /* the last ones are the next target's neighbours most often */
        if (tree_key_equal(&rekey->nodes[i].key, key)) {
            return i;
        }
    }
    return NO_PARENT;
}

/* The secret that the node at `parent` holds for its child; the present root's for the top. */
static KV_RC secret_of(const struct rekey *rekey, size_t parent, unsigned child, struct kv_secret **ret_secret)
{
    if (parent == NO_PARENT) {
        return kv_secret_copy(kv_secret_data(rekey->use.root_secret), NODE_SECRET_BYTES, ret_secret);
    }
    return node_child(plain_of(rekey, parent), child, ret_secret);
}

static KV_RC open_row(struct rekey *rekey, const struct rekey_node *node, const struct kv_node_row *row)
{
    if (node->parent == NO_PARENT && !kv_id_equal(&row->node_id, &rekey->use.root_id)) {
        return KV_E_WRONG_KEY;
    }
    struct kv_secret *secret KV_CLEANUP(kv_secret_freep) = NULL;
    KV_TRY(secret_of(rekey, node->parent, node->child, &secret));
    const struct node_seal seal = {
        .cluster = ktree_cluster(rekey->tree), .key = &node->key, .id = &row->node_id, .secret = secret};
    return node_open(rekey->use.sealer, &seal, KV_BYTES(row->sealed, row->sealed_len), plain_of(rekey, rekey->count));
}

static KV_RC load_node(struct rekey *rekey, const struct rekey_node *wanted, size_t *ret_index)
{
    struct rekey_node node = *wanted;
    struct kv_node_row row = {0};
    KV_TRY(rekey->store->load(rekey->store->ctx, &node.key, &row));
    node.seen_version = row.version;
    enum kv_err rc = rekey->count < rekey->nodes_max ? open_row(rekey, &node, &row) : KV_E_INTERNAL;
    node_row_done(&row);
    KV_TRY(rc);
    rekey->nodes[rekey->count] = node;
    *ret_index = rekey->count++;
    return KV_OK;
}

/* A whole tree's ends at its place in the directory. */
static KV_RC path_of(const struct kv_ktree_target *target, struct tree_step path[TREE_PATH_NODES], size_t *ret_steps)
{
    *ret_steps = target->whole ? KV_TREE_LEVELS : TREE_PATH_NODES;
    return tree_path(&target->tenant, target->directory_slot, target->whole ? 0 : target->slot, path);
}

/* Adds the target's path and drops its slot. The path ends early where a child is absent (erased before) or a row is
 * not there (never used): below that there is nothing that a root leads to. Without the top there is no tree. */
static KV_RC add_target(struct rekey *rekey, const struct kv_ktree_target *target)
{
    struct tree_step path[TREE_PATH_NODES];
    size_t steps = 0;
    KV_TRY(path_of(target, path, &steps));
    size_t parent = NO_PARENT;
    unsigned child = 0;
    for (size_t i = 0; i < steps; i++) {
        size_t index = find_node(rekey, &path[i].key);
        if (index == NO_PARENT) {
            const struct rekey_node wanted = {.key = path[i].key, .parent = parent, .child = child};
            enum kv_err rc = load_node(rekey, &wanted, &index);
            if (rc == KV_E_SESSION_ERASED || (rc == KV_E_MISSING && i > 0)) {
                return KV_OK;
            }
            KV_TRY(rc);
        } else if (rekey->nodes[index].parent != parent || rekey->nodes[index].child != child) {
            return KV_E_INVALID_REQUEST; /* One tenant under two directory slots. */
        }
        parent = index;
        child = path[i].child;
    }
    node_drop_child(plain_of(rekey, parent), child);
    return KV_OK;
}

/* --- rotating a tenant's key ------------------------------------------------------------------------------------- */

/* The way to the tenant's tree, and the top of that. */
static KV_RC add_tenant(struct rekey *rekey, const struct kv_ktree_rotation *rotation, size_t *ret_top)
{
    struct tree_step path[TREE_PATH_NODES];
    KV_TRY(tree_path(&rotation->tenant, rotation->directory_slot, 0, path));
    size_t parent = 0; /* the directory's top is there */
    for (size_t i = 1; i <= KV_TREE_LEVELS; i++) {
        const struct rekey_node wanted = {.key = path[i].key, .parent = parent, .child = path[i - 1].child};
        KV_TRY(load_node(rekey, &wanted, &parent));
    }
    *ret_top = parent;
    return KV_OK;
}

/* A child without a row exists as a secret alone. */
static KV_RC add_children(struct rekey *rekey, size_t parent)
{
    struct kv_node_key key = rekey->nodes[parent].key;
    for (unsigned child = 0; key.level > 0 && child < KV_TREE_FANOUT; child++) {
        struct rekey_node wanted = {.key = key, .parent = parent, .child = child};
        wanted.key.level--;
        wanted.key.idx = key.idx * KV_TREE_FANOUT + child;
        size_t index = 0;
        enum kv_err rc = node_has(plain_of(rekey, parent), child) ? load_node(rekey, &wanted, &index) : KV_E_MISSING;
        KV_TRY(rc == KV_E_MISSING ? KV_OK : rc);
    }
    return KV_OK;
}

/* What nobody has been given yet would else be known to whoever opened the nodes before. */
static KV_RC refresh_unused(struct rekey *rekey, size_t index, uint32_t slots_used)
{
    const struct kv_node_key *key = &rekey->nodes[index].key;
    for (unsigned child = 0; child < KV_TREE_FANOUT; child++) {
        bool in_use = key->level == 0 && key->idx * KV_TREE_FANOUT + child < slots_used;
        if (!in_use && node_has(plain_of(rekey, index), child)) {
            KV_TRY(node_refresh_child(ktree_env(rekey->tree), plain_of(rekey, index), child));
        }
    }
    return KV_OK;
}

/* All rows are opened before the first secret is replaced: it is what opens the next one. */
static KV_RC add_rotation(struct rekey *rekey, const struct kv_ktree_rotation *rotation, size_t *ret_top)
{
    KV_TRY(add_tenant(rekey, rotation, ret_top));
    for (size_t i = *ret_top; i < rekey->count; i++) {
        KV_TRY(add_children(rekey, i));
    }
    for (size_t i = *ret_top; i < rekey->count; i++) {
        KV_TRY(refresh_unused(rekey, i, rotation->slots_used));
    }
    return KV_OK;
}

static KV_RC fingerprint(const struct rekey *rekey, size_t index, uint8_t ret_fingerprint[KV_FINGERPRINT_BYTES])
{
    struct kv_secret *secret KV_CLEANUP(kv_secret_freep) = NULL;
    const struct rekey_node *node = &rekey->nodes[index];
    KV_TRY(secret_of(rekey, node->parent, node->child, &secret));
    return tenant_fingerprint(secret, &node->key.tree, ret_fingerprint);
}

/* --- all of it --------------------------------------------------------------------------------------------------- */

static KV_RC refresh_secrets(struct rekey *rekey)
{
    for (size_t i = 0; i < rekey->count; i++) {
        const struct rekey_node *node = &rekey->nodes[i];
        if (node->parent != NO_PARENT) {
            KV_TRY(node_refresh_child(ktree_env(rekey->tree), plain_of(rekey, node->parent), node->child));
        }
    }
    return KV_OK;
}

static KV_RC reseal(struct rekey *rekey, size_t index)
{
    const struct rekey_node *node = &rekey->nodes[index];
    const struct kv_env *env = ktree_env(rekey->tree);
    bool top = node->parent == NO_PARENT;
    struct kv_id node_id = *rekey->fresh_id;
    struct kv_secret *secret KV_CLEANUP(kv_secret_freep) = NULL;
    if (!top) {
        KV_TRY(kv_id_new(env, &node_id));
        KV_TRY(node_child(plain_of(rekey, node->parent), node->child, &secret));
    }
    const struct node_seal seal = {.cluster = ktree_cluster(rekey->tree),
                                   .key = &node->key,
                                   .id = &node_id,
                                   .secret = top ? rekey->fresh_secret : secret};
    struct kv_node_row row = {0};
    KV_TRY(node_seal_row(env, rekey->use.sealer, &seal, plain_of(rekey, index), node->seen_version + 1, &row));
    enum kv_err rc = rekey->store->update(rekey->store->ctx, &node->key, node->seen_version, &row);
    node_row_done(&row);
    return rc;
}

/* An empty batch still moves the top under the next root. */
static KV_RC load_top(struct rekey *rekey)
{
    const struct rekey_node top = {.key = {.level = KV_TREE_LEVELS - 1}, .parent = NO_PARENT};
    size_t index = 0;
    return load_node(rekey, &top, &index);
}

static KV_RC reseal_all(struct rekey *rekey)
{
    KV_TRY(refresh_secrets(rekey));
    for (size_t i = 0; i < rekey->count; i++) {
        KV_TRY(reseal(rekey, i));
    }
    return KV_OK;
}

static KV_RC run_targets(struct rekey *rekey, const void *arg)
{
    const struct targets *targets = arg;
    KV_TRY(load_top(rekey));
    /* Whole trees first: of a slot below one the path then ends at the directory, and nothing is sealed that hangs
     * nowhere. */
    for (size_t i = 0; i < targets->count; i++) {
        KV_TRY(targets->list[i].whole ? add_target(rekey, &targets->list[i]) : KV_OK);
    }
    for (size_t i = 0; i < targets->count; i++) {
        KV_TRY(targets->list[i].whole ? KV_OK : add_target(rekey, &targets->list[i]));
    }
    return reseal_all(rekey);
}

static KV_RC run_rotation(struct rekey *rekey, const void *arg)
{
    const struct rotating *rotating = arg;
    size_t top = 0;
    KV_TRY(load_top(rekey));
    KV_TRY(add_rotation(rekey, rotating->rotation, &top));
    KV_TRY(reseal_all(rekey));
    return fingerprint(rekey, top, rotating->ret_fingerprint);
}

static KV_RC take_memory(struct rekey *rekey, size_t nodes_max)
{
    void *plains = NULL;
    rekey->nodes_max = nodes_max;
    rekey->plains_bytes = rekey->nodes_max * KV_NODE_PLAINTEXT_BYTES;
    rekey->nodes = kv_alloc_array(rekey->nodes_max, sizeof(*rekey->nodes));
    enum kv_err rc = rekey->nodes != NULL ? kv_locked_alloc(rekey->plains_bytes, &plains) : KV_E_NO_MEMORY;
    rekey->plains = plains;
    return rc;
}

typedef KV_RC run_fn(struct rekey *rekey, const void *arg);

static KV_RC with_memory(struct rekey *rekey, size_t nodes_max, run_fn *fn, const void *arg)
{
    if (kv_id_is_zero(rekey->fresh_id) || kv_secret_len(rekey->fresh_secret) != NODE_SECRET_BYTES) {
        return KV_E_INVALID_REQUEST;
    }
    KV_TRY(ktree_use_begin(rekey->tree, &rekey->use));
    enum kv_err rc =
        kv_id_equal(rekey->fresh_id, &rekey->use.root_id) ? KV_E_INVALID_REQUEST : take_memory(rekey, nodes_max);
    if (rc == KV_OK) {
        rc = fn(rekey, arg);
    }
    kv_locked_free(rekey->plains, rekey->plains_bytes);
    kv_free(rekey->nodes);
    enum kv_err ended = ktree_use_end(rekey->tree, &rekey->use);
    return rc != KV_OK ? rc : ended;
}

static KV_RC add_keys(struct rekey *seen, const struct kv_ktree_target *target)
{
    struct tree_step path[TREE_PATH_NODES];
    size_t steps = 0;
    KV_TRY(path_of(target, path, &steps));
    for (size_t i = 0; i < steps; i++) {
        if (find_node(seen, &path[i].key) == NO_PARENT) {
            seen->nodes[seen->count++].key = path[i].key;
        }
    }
    return KV_OK;
}

/* How many nodes all paths have together, the top included. Locked memory is scarce: neighbours share most of theirs.
 */
static KV_RC count_nodes(const struct targets *targets, size_t *ret_nodes)
{
    struct rekey seen = {.nodes = kv_alloc_array(targets->count * TREE_PATH_NODES + 1, sizeof(*seen.nodes))};
    enum kv_err rc = seen.nodes != NULL ? KV_OK : KV_E_NO_MEMORY;
    for (size_t i = 0; i < targets->count && rc == KV_OK; i++) {
        rc = add_keys(&seen, &targets->list[i]);
    }
    kv_free(seen.nodes);
    *ret_nodes = seen.count + 1;
    return rc;
}

KV_RC kv_ktree_rekey(struct kv_ktree *tree, const struct kv_ktree_store *store, const struct kv_ktree_target *targets,
                     size_t count, const struct kv_id *fresh_id, const struct kv_secret *fresh_secret)
{
    if (count > KV_ERASE_BATCH) {
        return KV_E_LIMIT;
    }
    struct rekey rekey = {.tree = tree, .store = store, .fresh_id = fresh_id, .fresh_secret = fresh_secret};
    const struct targets wanted = {.list = targets, .count = count};
    size_t nodes = 0;
    KV_TRY(count_nodes(&wanted, &nodes));
    return with_memory(&rekey, nodes, run_targets, &wanted);
}

/* The directory's path, the tenant's top, and what so many slots need below it. */
static size_t nodes_of(uint32_t slots_used)
{
    size_t leaves = ((size_t)slots_used + KV_TREE_FANOUT - 1) / KV_TREE_FANOUT;
    size_t middle = (leaves + KV_TREE_FANOUT - 1) / KV_TREE_FANOUT;
    return KV_TREE_LEVELS + 1 + middle + leaves;
}

KV_RC kv_ktree_rotate(struct kv_ktree *tree, const struct kv_ktree_store *store,
                      const struct kv_ktree_rotation *rotation, const struct kv_id *fresh_id,
                      const struct kv_secret *fresh_secret, uint8_t ret_fingerprint[KV_FINGERPRINT_BYTES])
{
    if (rotation->slots_used > KV_MAX_TENANT_SLOTS) {
        return KV_E_LIMIT;
    }
    struct rekey rekey = {.tree = tree, .store = store, .fresh_id = fresh_id, .fresh_secret = fresh_secret};
    uint8_t fresh_name[KV_FINGERPRINT_BYTES];
    const struct rotating wanted = {.rotation = rotation, .ret_fingerprint = fresh_name};
    KV_TRY(with_memory(&rekey, nodes_of(rotation->slots_used), run_rotation, &wanted));
    memcpy(ret_fingerprint, fresh_name, sizeof fresh_name);
    return KV_OK;
}
