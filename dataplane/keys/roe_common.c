/*
 * The parts of a provider that do not depend on its medium. The state decisions are pure, so that every provider
 * answers a repeated or a mistaken call in the same way; none of them ever adopts an id that the caller did not name.
 */
#include "dataplane/crypto/hash.h"
#include "dataplane/crypto/sealed.h"
#include "dataplane/crypto/tell.h"
#include "dataplane/keys/roe_int.h"

#include <string.h>

KV_RC kv_roe_plan_create(const struct kv_roe_view *view, const struct kv_id *id, enum kv_roe_step *ret_step)
{
    if (kv_id_is_zero(id)) {
        return KV_E_INVALID_REQUEST;
    }
    if (kv_id_equal(&view->active, id)) {
        return KV_E_INVALID_STATE;
    }
    if (!kv_id_is_zero(&view->staged) && !kv_id_equal(&view->staged, id)) {
        return KV_E_INVALID_STATE;
    }
    *ret_step = kv_id_is_zero(&view->staged) ? KV_ROE_WRITE : KV_ROE_NOTHING;
    return KV_OK;
}

KV_RC kv_roe_plan_commit(const struct kv_roe_view *view, const struct kv_id *fresh, const struct kv_id *old,
                         enum kv_roe_step *ret_step)
{
    if (kv_id_is_zero(fresh) || kv_id_equal(fresh, old)) {
        return KV_E_INVALID_REQUEST;
    }
    bool old_given = !kv_id_is_zero(old);
    if (kv_id_equal(&view->active, fresh)) {
        if (old_given && kv_id_equal(&view->staged, old)) {
            return KV_E_STALE; /* `old` is still here: nothing may claim that it was destroyed. */
        }
        *ret_step = KV_ROE_NOTHING;
        return KV_OK;
    }
    if (!kv_id_equal(&view->staged, fresh)) {
        return KV_E_STALE;
    }
    if (kv_id_is_zero(&view->active)) {
        *ret_step = KV_ROE_ACTIVATE; /* The first root, or a commit that was cut off after the destruction. */
        return KV_OK;
    }
    if (!old_given || !kv_id_equal(&view->active, old)) {
        return KV_E_STALE;
    }
    *ret_step = KV_ROE_DESTROY;
    return KV_OK;
}

KV_RC kv_roe_plan_discard(const struct kv_roe_view *view, const struct kv_id *staged, enum kv_roe_step *ret_step)
{
    if (kv_id_is_zero(staged)) {
        return KV_E_INVALID_REQUEST;
    }
    if (kv_id_equal(&view->active, staged)) {
        return KV_E_STALE;
    }
    *ret_step = kv_id_equal(&view->staged, staged) ? KV_ROE_WRITE : KV_ROE_NOTHING;
    return KV_OK;
}

KV_RC kv_roe_plan_retire(const struct kv_roe_view *view, const struct kv_id *old, enum kv_roe_step *ret_step)
{
    if (kv_id_is_zero(old)) {
        return KV_E_INVALID_REQUEST;
    }
    if (!kv_id_is_zero(&view->staged)) {
        return KV_E_INVALID_STATE;
    }
    if (!kv_id_is_zero(&view->active) && !kv_id_equal(&view->active, old)) {
        return KV_E_STALE;
    }
    *ret_step = kv_id_is_zero(&view->active) ? KV_ROE_NOTHING : KV_ROE_DESTROY;
    return KV_OK;
}

KV_RC kv_roe_shelf_add(struct kv_roe_shelf *shelf, const struct kv_roe_key *key)
{
    if (kv_roe_shelf_find(shelf, &key->id) != NULL) {
        return KV_OK; /* A creation that was repeated because its answer was lost. */
    }
    if (shelf->count == KV_ROE_SHELF_MAX) {
        return KV_E_LIMIT;
    }
    shelf->keys[shelf->count++] = *key;
    return KV_OK;
}

const struct kv_roe_key *kv_roe_shelf_find(const struct kv_roe_shelf *shelf, const struct kv_id *id)
{
    for (size_t i = 0; i < shelf->count; i++) {
        if (kv_id_equal(&shelf->keys[i].id, id)) {
            return &shelf->keys[i];
        }
    }
    return NULL;
}

KV_RC kv_roe_shelf_view(const struct kv_roe_shelf *shelf, const struct kv_id *named, struct kv_roe_view *ret_view)
{
    struct kv_roe_view view = {0};
    const struct kv_roe_key *staged = NULL;
    for (size_t i = 0; i < shelf->count; i++) {
        const struct kv_roe_key *key = &shelf->keys[i];
        if (key->active && !kv_id_is_zero(&view.active)) {
            return KV_E_CORRUPT;
        }
        bool wanted = named != NULL && kv_id_equal(&key->id, named);
        bool settled = named != NULL && staged != NULL && kv_id_equal(&staged->id, named);
        if (key->active) {
            view.active = key->id;
        } else if (wanted || (!settled && (staged == NULL || key->fence > staged->fence))) {
            staged = key;
        }
    }
    if (staged != NULL) {
        view.staged = staged->id;
    }
    *ret_view = view;
    return KV_OK;
}

static struct kv_sealed_context blob_context(const struct kv_id *id)
{
    return (struct kv_sealed_context){.kind = KV_SEALED_ROOT, .scope = *id, .plaintext_length = 32};
}

KV_RC kv_roe_blob_seal(const struct kv_env *env, const struct kv_secret *wrapping_key, const struct kv_id *id,
                       const struct kv_secret *root, struct kv_buf *ret_blob)
{
    if (kv_secret_len(root) != 32) {
        return KV_E_INVALID_REQUEST;
    }
    struct kv_sealer *sealer = NULL;
    KV_TRY(
        kv_sealer_new(KV_CIPHER_OPENSSL, &sealer)); /* The other backend costs more to set up than 32 bytes to seal. */
    struct kv_sealed_context context = blob_context(id);
    KV_TELL_KEY("wrapping", KV_BYTES(id->b, sizeof(id->b)),
                KV_BYTES(kv_secret_data(wrapping_key), kv_secret_len(wrapping_key)));
    enum kv_err rc = kv_sealed_seal_flat(sealer, env, wrapping_key, &context, kv_secret_data(root), ret_blob);
    kv_sealer_free(sealer);
    return rc;
}

KV_RC kv_roe_blob_open(const struct kv_secret *wrapping_key, const struct kv_id *id, struct kv_bytes blob,
                       struct kv_secret **ret_root)
{
    struct kv_sealer *sealer = NULL;
    KV_TRY(kv_sealer_new(KV_CIPHER_OPENSSL, &sealer));
    struct kv_secret *root = NULL;
    struct kv_sealed_context context = blob_context(id);
    KV_TELL_KEY("wrapping", KV_BYTES(id->b, sizeof(id->b)),
                KV_BYTES(kv_secret_data(wrapping_key), kv_secret_len(wrapping_key)));
    enum kv_err rc = kv_secret_new(32, &root);
    if (rc == KV_OK) {
        rc = kv_sealed_open_flat(sealer, wrapping_key, &context, blob, kv_secret_data_mutable(root), 32);
    }
    kv_sealer_free(sealer);
    if (rc != KV_OK) {
        kv_secret_free(root);
        return rc;
    }
    *ret_root = root;
    return KV_OK;
}

KV_RC kv_roe_receipt_make(const struct kv_env *env, const char *provider, const struct kv_id *fresh,
                          const struct kv_id *old, struct kv_roe_receipt *ret_receipt)
{
    struct kv_roe_receipt receipt = {.destroyed = *old, .active = *fresh, .realtime_us = env->realtime_us(env->ctx)};
    uint8_t text[128];
    struct kv_writer w = kv_writer_of(text, sizeof(text));
    size_t name_len = strlen(provider);
    kv_write_raw(&w, "kvrun/v1/roe-receipt", 20);
    kv_write_u16(&w, (uint16_t)name_len);
    kv_write_raw(&w, provider, name_len);
    kv_write_raw(&w, receipt.destroyed.b, sizeof(receipt.destroyed.b));
    kv_write_raw(&w, receipt.active.b, sizeof(receipt.active.b));
    kv_write_u64(&w, receipt.realtime_us);
    if (w.failed) {
        return KV_E_INTERNAL;
    }
    KV_TRY(kv_sha256(KV_BYTES(text, kv_writer_len(&w)), receipt.hash));
    *ret_receipt = receipt;
    return KV_OK;
}
