/*
 * Sealing and opening one node. A node is sealed once per node id; whoever seals again takes a fresh id and a fresh
 * secret. It must never leave a plaintext behind on a path that failed.
 */
#include "dataplane/base/mem.h"
#include "dataplane/crypto/tell.h"
#include "dataplane/keys/node_int.h"

#include <string.h>

#define BITMAP_OFFSET (KV_TREE_FANOUT * NODE_SECRET_BYTES)

KV_RC node_fill(const struct kv_env *env, uint8_t *plain)
{
    KV_TRY(env->random(env->ctx, plain, BITMAP_OFFSET));
    memset(plain + BITMAP_OFFSET, 0xff, KV_NODE_PLAINTEXT_BYTES - BITMAP_OFFSET);
    return KV_OK;
}

static uint64_t bitmap_of(const uint8_t *plain)
{
    struct kv_reader r = kv_reader_of(KV_BYTES(plain + BITMAP_OFFSET, 8));
    return kv_read_u64(&r);
}

bool node_has(const uint8_t *plain, unsigned child)
{
    return child < KV_TREE_FANOUT && (bitmap_of(plain) >> child & 1) != 0;
}

KV_RC node_child(const uint8_t *plain, unsigned child, struct kv_secret **ret_secret)
{
    if (!node_has(plain, child)) {
        return KV_E_SESSION_ERASED;
    }
    return kv_secret_copy(plain + child * NODE_SECRET_BYTES, NODE_SECRET_BYTES, ret_secret);
}

KV_RC node_refresh_child(const struct kv_env *env, uint8_t *plain, unsigned child)
{
    if (!node_has(plain, child)) {
        return KV_E_INTERNAL;
    }
    return env->random(env->ctx, plain + child * NODE_SECRET_BYTES, NODE_SECRET_BYTES);
}

void node_drop_child(uint8_t *plain, unsigned child)
{
    if (child >= KV_TREE_FANOUT) {
        return;
    }
    kv_wipe(plain + child * NODE_SECRET_BYTES, NODE_SECRET_BYTES);
    struct kv_writer w = kv_writer_of(plain + BITMAP_OFFSET, 8);
    kv_write_u64(&w, bitmap_of(plain) & ~(UINT64_C(1) << child));
}

static void tell(const struct node_seal *seal)
{
    KV_TELL_KEY(tree_is_top(seal->key) ? "root" : "node", KV_BYTES(seal->id->b, sizeof(seal->id->b)),
                KV_BYTES(kv_secret_data(seal->secret), kv_secret_len(seal->secret)));
    (void)seal; /* where nothing is told */
}

static struct kv_sealed_context context_of(const struct node_seal *seal)
{
    struct kv_sealed_context context = {
        .kind = tree_is_top(seal->key) ? KV_SEALED_ROOT : KV_SEALED_NODE,
        .tenant = seal->key->tree,
        .scope = *seal->id,
        .plaintext_length = KV_NODE_PLAINTEXT_BYTES,
    };
    struct kv_writer w = kv_writer_of(context.block_id.b, sizeof(context.block_id.b));
    kv_write_raw(&w, seal->cluster->b, sizeof(seal->cluster->b));
    kv_write_u32(&w, seal->key->level);
    kv_write_u32(&w, seal->key->idx);
    return context;
}

KV_RC node_seal_row(const struct kv_env *env, struct kv_sealer *sealer, const struct node_seal *seal,
                    const uint8_t *plain, int64_t version, struct kv_node_row *ret_row)
{
    const struct kv_sealed_context context = context_of(seal);
    struct kv_buf sealed;
    kv_buf_init(&sealed, kv_sealed_compact_bytes(KV_NODE_PLAINTEXT_BYTES));
    tell(seal);
    enum kv_err rc = kv_sealed_seal_flat(sealer, env, seal->secret, &context, plain, &sealed);
    if (rc == KV_OK) {
        rc = kv_buf_check(&sealed);
    }
    if (rc != KV_OK) {
        kv_buf_done(&sealed);
        return rc;
    }
    *ret_row = (struct kv_node_row){
        .node_id = *seal->id, .version = version, .sealed = sealed.data /* taken */, .sealed_len = sealed.len};
    return KV_OK;
}

KV_RC node_open(struct kv_sealer *sealer, const struct node_seal *seal, struct kv_bytes sealed, uint8_t *plain)
{
    const struct kv_sealed_context context = context_of(seal);
    tell(seal);
    enum kv_err rc = kv_sealed_open_flat(sealer, seal->secret, &context, sealed, plain, KV_NODE_PLAINTEXT_BYTES);
    if (rc != KV_OK) {
        kv_wipe(plain, KV_NODE_PLAINTEXT_BYTES);
    }
    return rc;
}

void node_row_done(struct kv_node_row *row)
{
    kv_free(row->sealed);
    *row = (struct kv_node_row){0};
}

static void free_children(struct kv_secret **children)
{
    for (unsigned i = 0; i < KV_TREE_FANOUT; i++) {
        kv_secret_free(children[i]);
    }
}

static KV_RC copy_children(const uint8_t *plain, struct kv_secret **ret_children)
{
    struct kv_secret *children[KV_TREE_FANOUT] = {0};
    for (unsigned i = 0; i < KV_TREE_FANOUT; i++) {
        enum kv_err rc = node_has(plain, i) ? node_child(plain, i, &children[i]) : KV_OK;
        if (rc != KV_OK) {
            free_children(children);
            return rc;
        }
    }
    memcpy(ret_children, children, sizeof(children));
    return KV_OK;
}

KV_RC kv_node_open(const struct kv_id *cluster, const struct kv_node_key *key, const struct kv_id *node_or_root_id,
                   const struct kv_secret *secret, struct kv_bytes sealed, struct kv_secret **ret_children)
{
    struct kv_sealer *sealer = NULL;
    void *plain = NULL;
    const struct node_seal seal = {.cluster = cluster, .key = key, .id = node_or_root_id, .secret = secret};
    const struct kv_sealed_context context = context_of(&seal);
    KV_TRY(
        kv_sealed_check(secret, &context, sealed)); /* Most of an attacker's tries end here, without an allocation. */
    KV_TRY(kv_sealer_new(NODE_CIPHER, &sealer));
    enum kv_err rc = kv_locked_alloc(KV_NODE_PLAINTEXT_BYTES, &plain);
    if (rc == KV_OK) {
        rc = node_open(sealer, &seal, sealed, plain);
    }
    if (rc == KV_OK) {
        rc = copy_children(plain, ret_children);
    }
    kv_locked_free(plain, KV_NODE_PLAINTEXT_BYTES);
    kv_sealer_free(sealer);
    return rc;
}
