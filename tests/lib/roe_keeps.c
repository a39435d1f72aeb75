/* See roe_keeps.h: the memory provider, and beside it every root that it was given to wrap. */
#include "tests/lib/roe_keeps.h"

#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"

#include <string.h>

#define KEPT_MAX 32

struct keeps {
    struct kv_roe base;
    struct kv_roe *inner;
    struct kv_id ids[KEPT_MAX];
    struct kv_secret *roots[KEPT_MAX];
    size_t count;
};

static struct keeps *keeps_of(struct kv_roe *roe)
{
    return (struct keeps *)roe;
}

static KV_RC keeps_create(struct kv_roe *roe, const struct kv_id *id)
{
    struct kv_roe *inner = keeps_of(roe)->inner;
    return inner->ops->create(inner, id);
}

static KV_RC keeps_wrap(struct kv_roe *roe, const struct kv_id *id, const struct kv_secret *root,
                        struct kv_buf *ret_blob)
{
    struct keeps *keeps = keeps_of(roe);
    KV_TRY(keeps->inner->ops->wrap(keeps->inner, id, root, ret_blob));
    keeps->ids[keeps->count] = *id;
    return kv_secret_copy(kv_secret_data(root), 32, &keeps->roots[keeps->count++]);
}

static KV_RC keeps_unwrap(struct kv_roe *roe, const struct kv_id *id, struct kv_bytes blob, struct kv_secret **ret_root)
{
    struct keeps *keeps = keeps_of(roe);
    enum kv_err rc = keeps->inner->ops->unwrap(keeps->inner, id, blob, ret_root);
    for (size_t i = 0; rc == KV_E_MISSING && i < keeps->count; i++) {
        if (kv_id_equal(&keeps->ids[i], id)) {
            rc = kv_secret_copy(kv_secret_data(keeps->roots[i]), 32, ret_root);
        }
    }
    return rc;
}

static KV_RC keeps_commit(struct kv_roe *roe, const struct kv_id *fresh, const struct kv_id *old,
                          struct kv_roe_receipt *ret)
{
    struct kv_roe *inner = keeps_of(roe)->inner;
    return inner->ops->commit(inner, fresh, old, ret);
}

static KV_RC keeps_discard(struct kv_roe *roe, const struct kv_id *staged)
{
    struct kv_roe *inner = keeps_of(roe)->inner;
    return inner->ops->discard(inner, staged);
}

static KV_RC keeps_retire(struct kv_roe *roe, const struct kv_id *old, const struct kv_id *fresh,
                          struct kv_roe_receipt *ret)
{
    struct kv_roe *inner = keeps_of(roe)->inner;
    return inner->ops->retire(inner, old, fresh, ret);
}

static KV_RC keeps_list(struct kv_roe *roe, struct kv_id *ret_active, struct kv_id *ret_staged)
{
    struct kv_roe *inner = keeps_of(roe)->inner;
    return inner->ops->list(inner, ret_active, ret_staged);
}

static const char *keeps_describe(const struct kv_roe *roe)
{
    (void)roe;
    return "keeps";
}

static const char *keeps_assurance(const struct kv_roe *roe)
{
    (void)roe;
    return "E2";
}

static void keeps_close(struct kv_roe *roe)
{
    struct keeps *keeps = keeps_of(roe);
    for (size_t i = 0; i < keeps->count; i++) {
        kv_secret_free(keeps->roots[i]);
    }
    keeps->inner->ops->close(keeps->inner);
    kv_free(keeps);
}

static const struct kv_roe_ops keeps_ops = {
    .name = "keeps",
    .create = keeps_create,
    .wrap = keeps_wrap,
    .unwrap = keeps_unwrap,
    .commit = keeps_commit,
    .retire = keeps_retire,
    .discard = keeps_discard,
    .list = keeps_list,
    .describe = keeps_describe,
    .assurance = keeps_assurance,
    .close = keeps_close,
};

struct kv_roe *kvt_roe_keeps_new(void)
{
    const struct kv_roe_conf conf = {.provider = "memory", .env = &kv_env_system};
    struct keeps *keeps = kv_alloc(sizeof *keeps);
    if (keeps == NULL || kv_roe_open(&conf, NULL, &keeps->inner) != KV_OK) {
        kv_free(keeps);
        return NULL;
    }
    keeps->base.ops = &keeps_ops;
    return &keeps->base;
}
