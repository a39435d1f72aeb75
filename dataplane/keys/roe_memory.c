/*
 * The `memory` provider: wrapping keys in the locked arena and nowhere else, so a restart loses every session. It is
 * the reference for the state diagram in roe.h. It must never write a key to a medium.
 */
#include "dataplane/base/mem.h"
#include "dataplane/keys/roe_int.h"

struct memory_roe {
    struct kv_roe base;
    const struct kv_env *env;
    struct kv_roe_view view;
    struct kv_secret *active_key, *staged_key; /* owned; NULL exactly where the view's id is zero */
};

static struct memory_roe *memory_of(struct kv_roe *roe)
{
    return (struct memory_roe *)roe;
}

static KV_RC memory_open(const struct kv_roe_conf *conf, struct kv_errinfo *info, struct kv_roe **ret_roe)
{
    struct memory_roe *roe = kv_alloc(sizeof(*roe));
    if (roe == NULL) {
        return kv_fail(info, KV_E_NO_MEMORY, "no memory for the root of erasure");
    }
    roe->base.ops = &kv_roe_memory;
    roe->env = conf->env;
    *ret_roe = &roe->base;
    return KV_OK;
}

static KV_RC memory_create(struct kv_roe *base, const struct kv_id *id)
{
    struct memory_roe *roe = memory_of(base);
    enum kv_roe_step step = KV_ROE_NOTHING;
    KV_TRY(kv_roe_plan_create(&roe->view, id, &step));
    if (step == KV_ROE_NOTHING) {
        return KV_OK;
    }
    KV_TRY(kv_secret_random(roe->env, 32, &roe->staged_key));
    roe->view.staged = *id;
    return KV_OK;
}

static KV_RC memory_key(struct memory_roe *roe, const struct kv_id *id, const struct kv_secret **ret_key)
{
    if (kv_id_is_zero(id)) {
        return KV_E_MISSING;
    }
    if (kv_id_equal(id, &roe->view.active)) {
        *ret_key = roe->active_key;
        return KV_OK;
    }
    if (kv_id_equal(id, &roe->view.staged)) {
        *ret_key = roe->staged_key;
        return KV_OK;
    }
    return KV_E_MISSING;
}

static KV_RC memory_wrap(struct kv_roe *base, const struct kv_id *id, const struct kv_secret *root,
                         struct kv_buf *ret_blob)
{
    struct memory_roe *roe = memory_of(base);
    const struct kv_secret *key = NULL;
    KV_TRY(memory_key(roe, id, &key));
    return kv_roe_blob_seal(roe->env, key, id, root, ret_blob);
}

static KV_RC memory_unwrap(struct kv_roe *base, const struct kv_id *id, struct kv_bytes blob,
                           struct kv_secret **ret_root)
{
    const struct kv_secret *key = NULL;
    KV_TRY(memory_key(memory_of(base), id, &key));
    return kv_roe_blob_open(key, id, blob, ret_root);
}

static KV_RC memory_commit(struct kv_roe *base, const struct kv_id *fresh, const struct kv_id *old,
                           struct kv_roe_receipt *ret_receipt)
{
    struct memory_roe *roe = memory_of(base);
    enum kv_roe_step step = KV_ROE_NOTHING;
    KV_TRY(kv_roe_plan_commit(&roe->view, fresh, old, &step));
    if (step != KV_ROE_NOTHING) {
        kv_secret_free(roe->active_key);
        roe->active_key = roe->staged_key;
        roe->staged_key = NULL;
        roe->view = (struct kv_roe_view){.active = *fresh};
    }
    return kv_roe_receipt_make(roe->env, kv_roe_memory.name, fresh, old, ret_receipt);
}

static KV_RC memory_retire(struct kv_roe *base, const struct kv_id *old, const struct kv_id *fresh,
                           struct kv_roe_receipt *ret_receipt)
{
    struct memory_roe *roe = memory_of(base);
    enum kv_roe_step step = KV_ROE_NOTHING;
    KV_TRY(kv_roe_plan_retire(&roe->view, old, &step));
    kv_secret_free(roe->active_key);
    roe->active_key = NULL;
    roe->view.active = (struct kv_id){0};
    return kv_roe_receipt_make(roe->env, kv_roe_memory.name, fresh, old, ret_receipt);
}

static KV_RC memory_discard(struct kv_roe *base, const struct kv_id *staged)
{
    struct memory_roe *roe = memory_of(base);
    enum kv_roe_step step = KV_ROE_NOTHING;
    KV_TRY(kv_roe_plan_discard(&roe->view, staged, &step));
    if (step != KV_ROE_NOTHING) {
        kv_secret_free(roe->staged_key);
        roe->staged_key = NULL;
        roe->view.staged = (struct kv_id){0};
    }
    return KV_OK;
}

static KV_RC memory_list(struct kv_roe *base, struct kv_id *ret_active, struct kv_id *ret_staged)
{
    const struct memory_roe *roe = memory_of(base);
    *ret_active = roe->view.active;
    *ret_staged = roe->view.staged;
    return KV_OK;
}

static const char *memory_describe(const struct kv_roe *roe)
{
    (void)roe;
    return "memory (a restart loses every session)";
}

static const char *memory_assurance(const struct kv_roe *roe)
{
    (void)roe;
    return "E2";
}

static void memory_close(struct kv_roe *base)
{
    if (base == NULL) {
        return;
    }
    struct memory_roe *roe = memory_of(base);
    kv_secret_free(roe->active_key);
    kv_secret_free(roe->staged_key);
    kv_free(roe);
}

const struct kv_roe_ops kv_roe_memory = {
    .name = "memory",
    .open = memory_open,
    .create = memory_create,
    .wrap = memory_wrap,
    .unwrap = memory_unwrap,
    .commit = memory_commit,
    .retire = memory_retire,
    .discard = memory_discard,
    .list = memory_list,
    .describe = memory_describe,
    .assurance = memory_assurance,
    .close = memory_close,
};
