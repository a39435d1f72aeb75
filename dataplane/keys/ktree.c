/*
 * The tree's root, its cache, and the walk from the root to a slot. Rows are loaded on every walk and the cache saves
 * only their opening, so that a walk sees a re-key of another process at once. It must never return a secret that was
 * opened under a root which is not the current one any more.
 */
#include "dataplane/keys/ktree.h"
#include "dataplane/base/check.h"
#include "dataplane/base/log.h"
#include "dataplane/base/mem.h"
#include "dataplane/crypto/kdf.h"
#include "dataplane/keys/ktree_int.h"
#include "dataplane/keys/node_cache_int.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

/* How long a change of the root waits for calls that still work with the old one. */
#define ROOT_CHANGE_WAIT_S 5

/* Apart from the tree, so that a reader that has the tree as const can lock. */
struct tree_lock {
    pthread_mutex_t mutex;
    pthread_cond_t idle; /* CLOCK_MONOTONIC */
};

struct kv_ktree {
    const struct kv_env *env; /* borrowed */
    struct kv_id cluster;
    struct tree_lock *lock; /* owned; guards all that follows */
    bool has_root;
    struct kv_id root_id;
    struct kv_secret *root_secret; /* owned */
    uint64_t epoch;                /* counts the changes of the root */
    uint64_t using_now, using_old; /* calls in the present epoch, and in earlier ones */
    struct node_cache cache;
};

const struct kv_env *ktree_env(const struct kv_ktree *tree)
{
    return tree->env;
}

const struct kv_id *ktree_cluster(const struct kv_ktree *tree)
{
    return &tree->cluster;
}

static void lock_tree(const struct kv_ktree *tree)
{
    KV_ASSERT(pthread_mutex_lock(&tree->lock->mutex) == 0);
}

static void unlock_tree(const struct kv_ktree *tree)
{
    KV_ASSERT(pthread_mutex_unlock(&tree->lock->mutex) == 0);
}

static struct tree_lock *tree_lock_new(void)
{
    struct tree_lock *lock = kv_alloc(sizeof(*lock));
    if (lock == NULL) {
        return NULL;
    }
    pthread_condattr_t attr;
    KV_ASSERT(pthread_condattr_init(&attr) == 0);
    KV_ASSERT(pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0);
    KV_ASSERT(pthread_mutex_init(&lock->mutex, NULL) == 0);
    KV_ASSERT(pthread_cond_init(&lock->idle, &attr) == 0);
    pthread_condattr_destroy(&attr);
    return lock;
}

KV_RC kv_ktree_new(const struct kv_env *env, const struct kv_id *cluster, struct kv_ktree **ret_tree)
{
    struct kv_ktree *tree = kv_alloc(sizeof(*tree));
    if (tree == NULL) {
        return KV_E_NO_MEMORY;
    }
    tree->env = env;
    tree->cluster = *cluster;
    tree->lock = tree_lock_new();
    if (tree->lock == NULL || node_cache_init(&tree->cache) != KV_OK) {
        kv_ktree_free(tree);
        return KV_E_NO_MEMORY;
    }
    *ret_tree = tree;
    return KV_OK;
}

void kv_ktree_free(struct kv_ktree *tree)
{
    if (tree == NULL) {
        return;
    }
    kv_secret_free(tree->root_secret);
    node_cache_done(&tree->cache);
    if (tree->lock != NULL) {
        pthread_cond_destroy(&tree->lock->idle);
        pthread_mutex_destroy(&tree->lock->mutex);
        kv_free(tree->lock);
    }
    kv_free(tree);
}

/* Lock held. Takes `secret`; NULL for a purge. */
static void change_root(struct kv_ktree *tree, const struct kv_id *root_id, struct kv_secret *secret)
{
    kv_secret_free(tree->root_secret);
    node_cache_wipe(&tree->cache);
    tree->root_secret = secret;
    tree->has_root = secret != NULL;
    tree->root_id = secret != NULL ? *root_id : (struct kv_id){0};
    tree->epoch++;
    tree->using_old += tree->using_now;
    tree->using_now = 0;
}

/* Lock held. Until no call holds a secret of an earlier root, or the wait's end. */
static KV_RC wait_for_old_calls(struct kv_ktree *tree)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += ROOT_CHANGE_WAIT_S;
    int rc = 0;
    while (rc != ETIMEDOUT && tree->using_old > 0) {
        rc = pthread_cond_timedwait(&tree->lock->idle, &tree->lock->mutex, &until);
    }
    return tree->using_old == 0 ? KV_OK : KV_E_BUSY;
}

KV_RC kv_ktree_set_root(struct kv_ktree *tree, const struct kv_id *root_id, const struct kv_secret *root_secret)
{
    if (kv_id_is_zero(root_id) || kv_secret_len(root_secret) != NODE_SECRET_BYTES) {
        return KV_E_INVALID_REQUEST;
    }
    struct kv_secret *copy = NULL;
    KV_TRY(kv_secret_copy(kv_secret_data(root_secret), kv_secret_len(root_secret), &copy));
    lock_tree(tree);
    if (tree->has_root && kv_id_equal(&tree->root_id, root_id)) {
        kv_secret_free(copy);
    } else {
        change_root(tree, root_id, copy);
    }
    enum kv_err rc = wait_for_old_calls(tree);
    unlock_tree(tree);
    return rc;
}

void kv_ktree_purge(struct kv_ktree *tree)
{
    lock_tree(tree);
    change_root(tree, NULL, NULL);
    enum kv_err rc = wait_for_old_calls(tree);
    unlock_tree(tree);
    if (rc != KV_OK) {
        kv_log(KV_LOG_ERROR, "keys", "a call still holds a node secret after the purge", KV_FRC(rc));
    }
}

KV_RC kv_ktree_leave(struct kv_ktree *tree, const struct kv_id *next)
{
    lock_tree(tree);
    if (tree->has_root && !kv_id_equal(&tree->root_id, next)) {
        change_root(tree, NULL, NULL);
    }
    enum kv_err rc = tree->using_old == 0 ? KV_OK : KV_E_BUSY;
    unlock_tree(tree);
    return rc;
}

bool kv_ktree_root(const struct kv_ktree *tree, struct kv_id *ret_root_id)
{
    lock_tree(tree);
    bool has_root = tree->has_root;
    if (has_root) {
        *ret_root_id = tree->root_id;
    }
    unlock_tree(tree);
    return has_root;
}

size_t kv_ktree_cached(struct kv_ktree *tree)
{
    lock_tree(tree);
    size_t count = node_cache_count(&tree->cache);
    unlock_tree(tree);
    return count;
}

static void use_done(struct ktree_use *use)
{
    kv_secret_free(use->root_secret);
    kv_sealer_free(use->sealer);
    kv_locked_free(use->plain, KV_NODE_PLAINTEXT_BYTES);
    *use = (struct ktree_use){0};
}

/* Lock held. */
static KV_RC copy_root(struct kv_ktree *tree, struct ktree_use *use)
{
    if (!tree->has_root) {
        return KV_E_INVALID_STATE;
    }
    KV_TRY(kv_secret_copy(kv_secret_data(tree->root_secret), NODE_SECRET_BYTES, &use->root_secret));
    use->root_id = tree->root_id;
    use->epoch = tree->epoch;
    tree->using_now++;
    return KV_OK;
}

KV_RC ktree_use_begin(struct kv_ktree *tree, struct ktree_use *ret_use)
{
    struct ktree_use use = {0};
    void *plain = NULL;
    enum kv_err rc = kv_locked_alloc(KV_NODE_PLAINTEXT_BYTES, &plain);
    use.plain = plain;
    if (rc == KV_OK) {
        rc = kv_sealer_new(NODE_CIPHER, &use.sealer);
    }
    if (rc == KV_OK) {
        lock_tree(tree);
        rc = copy_root(tree, &use);
        unlock_tree(tree);
    }
    if (rc != KV_OK) {
        use_done(&use);
        return rc;
    }
    *ret_use = use;
    return KV_OK;
}

KV_RC ktree_use_end(struct kv_ktree *tree, struct ktree_use *use)
{
    uint64_t epoch = use->epoch;
    use_done(use);
    lock_tree(tree);
    bool current = epoch == tree->epoch;
    uint64_t *count = current ? &tree->using_now : &tree->using_old;
    KV_ASSERT(*count > 0);
    (*count)--;
    if (tree->using_old == 0) {
        pthread_cond_broadcast(&tree->lock->idle);
    }
    unlock_tree(tree);
    return current ? KV_OK : KV_E_STALE;
}

static KV_RC format_top(struct kv_ktree *tree, const struct kv_ktree_store *store, struct ktree_use *use)
{
    const struct kv_node_key key = {.level = KV_TREE_LEVELS - 1};
    const struct node_seal seal = {
        .cluster = &tree->cluster, .key = &key, .id = &use->root_id, .secret = use->root_secret};
    struct kv_node_row row = {0};
    KV_TRY(node_fill(tree->env, use->plain));
    KV_TRY(node_seal_row(tree->env, use->sealer, &seal, use->plain, 1, &row));
    enum kv_err rc = store->insert(store->ctx, &key, &row);
    node_row_done(&row);
    return rc;
}

KV_RC kv_ktree_format(struct kv_ktree *tree, const struct kv_ktree_store *store)
{
    struct ktree_use use;
    KV_TRY(ktree_use_begin(tree, &use));
    enum kv_err rc = format_top(tree, store, &use);
    enum kv_err ended = ktree_use_end(tree, &use);
    return rc != KV_OK ? rc : ended;
}

/* A node whose secret exists in its parent and which has no row yet. When another writer was quicker, its row is taken.
 */
static KV_RC fill_node(struct kv_ktree *tree, const struct kv_ktree_store *store, struct ktree_use *use,
                       const struct kv_node_key *key, const struct kv_secret *secret, struct kv_node_row *ret_row)
{
    struct kv_id node_id;
    KV_TRY(kv_id_new(tree->env, &node_id));
    const struct node_seal seal = {.cluster = &tree->cluster, .key = key, .id = &node_id, .secret = secret};
    struct kv_node_row row = {0};
    KV_TRY(node_fill(tree->env, use->plain));
    KV_TRY(node_seal_row(tree->env, use->sealer, &seal, use->plain, 1, &row));
    enum kv_err rc = store->insert(store->ctx, key, &row);
    if (rc == KV_OK) {
        *ret_row = row;
        return KV_OK;
    }
    node_row_done(&row);
    if (rc == KV_E_STALE) {
        rc = store->load(store->ctx, key, ret_row);
        rc = rc == KV_E_MISSING ? KV_E_STALE : rc;
    }
    return rc;
}

/* The child's secret, when this very row was opened before. *ret_hit says whether it was. */
static KV_RC child_from_cache(struct kv_ktree *tree, const struct ktree_use *use, const struct tree_step *step,
                              const struct kv_id *node_id, bool *ret_hit, struct kv_secret **ret_child)
{
    enum kv_err rc = KV_OK;
    lock_tree(tree);
    const uint8_t *plain = tree->epoch == use->epoch ? node_cache_get(&tree->cache, &step->key, node_id) : NULL;
    *ret_hit = plain != NULL;
    if (plain != NULL) {
        rc = node_child(plain, step->child, ret_child);
    }
    unlock_tree(tree);
    return rc;
}

static void keep_in_cache(struct kv_ktree *tree, const struct ktree_use *use, const struct kv_node_key *key,
                          const struct kv_id *node_id)
{
    lock_tree(tree);
    if (tree->epoch == use->epoch) {
        node_cache_put(&tree->cache, key, node_id, use->plain);
    }
    unlock_tree(tree);
}

static KV_RC child_of_row(struct kv_ktree *tree, struct ktree_use *use, const struct tree_step *step,
                          const struct kv_secret *secret, const struct kv_node_row *row, struct kv_secret **ret_child)
{
    if (tree_is_top(&step->key) && !kv_id_equal(&row->node_id, &use->root_id)) {
        return KV_E_WRONG_KEY; /* The row is of another epoch than the root in use. */
    }
    bool hit = false;
    enum kv_err rc = child_from_cache(tree, use, step, &row->node_id, &hit, ret_child);
    if (hit) {
        return rc;
    }
    const struct node_seal seal = {.cluster = &tree->cluster, .key = &step->key, .id = &row->node_id, .secret = secret};
    KV_TRY(node_open(use->sealer, &seal, KV_BYTES(row->sealed, row->sealed_len), use->plain));
    keep_in_cache(tree, use, &step->key, &row->node_id);
    return node_child(use->plain, step->child, ret_child);
}

static KV_RC step_down(struct kv_ktree *tree, const struct kv_ktree_store *store, struct ktree_use *use,
                       const struct tree_step *step, bool fill, struct kv_secret **inout_secret)
{
    struct kv_node_row row = {0};
    struct kv_secret *child = NULL;
    enum kv_err rc = store->load(store->ctx, &step->key, &row);
    if (rc == KV_E_MISSING && fill && !tree_is_top(&step->key)) {
        rc = fill_node(tree, store, use, &step->key, *inout_secret, &row);
    }
    if (rc == KV_OK) {
        rc = child_of_row(tree, use, step, *inout_secret, &row, &child);
    }
    node_row_done(&row);
    if (rc == KV_OK) {
        kv_secret_free(*inout_secret);
        *inout_secret = child;
    }
    return rc;
}

/* What the last of the first `steps` of the path holds for the next one. */
static KV_RC walk(struct kv_ktree *tree, const struct kv_ktree_store *store, const struct tree_step *path, size_t steps,
                  bool fill, struct kv_secret **ret_secret)
{
    struct ktree_use use;
    KV_TRY(ktree_use_begin(tree, &use));
    struct kv_secret *secret = NULL;
    enum kv_err rc = kv_secret_copy(kv_secret_data(use.root_secret), NODE_SECRET_BYTES, &secret);
    for (size_t i = 0; i < steps && rc == KV_OK; i++) {
        rc = step_down(tree, store, &use, &path[i], fill, &secret);
    }
    if (rc != KV_OK) {
        kv_secret_free(secret); /* Before the call counts as ended: a purge waits for that. */
        secret = NULL;
    }
    enum kv_err ended = ktree_use_end(tree, &use);
    rc = rc != KV_OK ? rc : ended;
    if (rc != KV_OK) {
        kv_secret_free(secret);
        return rc;
    }
    *ret_secret = secret;
    return KV_OK;
}

KV_RC kv_ktree_slot(struct kv_ktree *tree, const struct kv_ktree_store *store, const struct kv_id *tenant,
                    uint32_t directory_slot, uint32_t slot, bool fill, struct kv_secret **ret_secret)
{
    struct tree_step path[TREE_PATH_NODES];
    KV_TRY(tree_path(tenant, directory_slot, slot, path));
    return walk(tree, store, path, TREE_PATH_NODES, fill, ret_secret);
}

KV_RC kv_ktree_top(struct kv_ktree *tree, const struct kv_ktree_store *store, uint32_t directory_slot,
                   struct kv_secret **ret_secret)
{
    static const struct kv_id any = {{1}}; /* Only the directory's part of the path is walked. */
    struct tree_step path[TREE_PATH_NODES];
    KV_TRY(tree_path(&any, directory_slot, 0, path));
    return walk(tree, store, path, KV_TREE_LEVELS, false, ret_secret);
}

KV_RC tenant_fingerprint(const struct kv_secret *secret, const struct kv_id *tenant,
                         uint8_t ret_fingerprint[KV_FINGERPRINT_BYTES])
{
    const struct kv_bytes fields[] = {KV_BYTES(tenant->b, sizeof(tenant->b))};
    struct kv_secret *name KV_CLEANUP(kv_secret_freep) = NULL;
    KV_TRY(kv_kdf_derive(secret, "fingerprint", fields, 1, KV_FINGERPRINT_BYTES, &name));
    memcpy(ret_fingerprint, kv_secret_data(name), KV_FINGERPRINT_BYTES);
    return KV_OK;
}

KV_RC kv_ktree_fingerprint(struct kv_ktree *tree, const struct kv_ktree_store *store, const struct kv_id *tenant,
                           uint32_t directory_slot, bool fill, uint8_t ret_fingerprint[KV_FINGERPRINT_BYTES])
{
    struct tree_step path[TREE_PATH_NODES];
    struct kv_secret *secret KV_CLEANUP(kv_secret_freep) = NULL;
    KV_TRY(tree_path(tenant, directory_slot, 0, path));
    KV_TRY(walk(tree, store, path, KV_TREE_LEVELS, fill, &secret));
    return tenant_fingerprint(secret, tenant, ret_fingerprint);
}

/* --- a whole leaf ------------------------------------------------------------------------------------------------- */

static KV_RC children_of(struct ktree_use *use, struct kv_secret **ret_secrets)
{
    for (unsigned child = 0; child < KV_TREE_FANOUT; child++) {
        if (node_has(use->plain, child)) {
            KV_TRY(node_child(use->plain, child, &ret_secrets[child]));
        }
    }
    return KV_OK;
}

/* Past the cache: what is wanted is the row as it is now. */
static KV_RC open_leaf(struct kv_ktree *tree, const struct kv_ktree_store *store, struct ktree_use *use,
                       const struct tree_step *step, const struct kv_secret *secret, struct kv_secret **ret_secrets)
{
    struct kv_node_row row = {0};
    KV_TRY(store->load(store->ctx, &step->key, &row));
    const struct node_seal seal = {.cluster = &tree->cluster, .key = &step->key, .id = &row.node_id, .secret = secret};
    enum kv_err rc = node_open(use->sealer, &seal, KV_BYTES(row.sealed, row.sealed_len), use->plain);
    node_row_done(&row);
    KV_TRY(rc);
    return children_of(use, ret_secrets);
}

KV_RC kv_ktree_leaf(struct kv_ktree *tree, const struct kv_ktree_store *store, const struct kv_id *tenant,
                    uint32_t directory_slot, uint32_t slot, struct kv_secret **ret_secrets)
{
    struct tree_step path[TREE_PATH_NODES];
    struct kv_secret *secret = NULL, *secrets[KV_TREE_FANOUT] = {0};
    struct ktree_use use;
    KV_TRY(tree_path(tenant, directory_slot, slot, path));
    KV_TRY(ktree_use_begin(tree, &use));
    enum kv_err rc = kv_secret_copy(kv_secret_data(use.root_secret), NODE_SECRET_BYTES, &secret);
    for (size_t i = 0; i < TREE_PATH_NODES - 1 && rc == KV_OK; i++) {
        rc = step_down(tree, store, &use, &path[i], false, &secret);
    }
    if (rc == KV_OK) {
        rc = open_leaf(tree, store, &use, &path[TREE_PATH_NODES - 1], secret, secrets);
    }
    kv_secret_free(secret);
    if (rc == KV_OK) {
        memcpy(ret_secrets, secrets, sizeof secrets);
    }
    /* What was opened under an earlier root is wiped before the call counts as ended: a purge waits for that. */
    for (unsigned i = 0; rc != KV_OK && i < KV_TREE_FANOUT; i++) {
        kv_secret_free(secrets[i]);
    }
    enum kv_err ended = ktree_use_end(tree, &use);
    for (unsigned i = 0; rc == KV_OK && ended != KV_OK && i < KV_TREE_FANOUT; i++) {
        kv_secret_free(secrets[i]);
        ret_secrets[i] = NULL;
    }
    return rc != KV_OK ? rc : ended;
}
