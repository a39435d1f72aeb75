/*
 * The `pkcs11` provider: one AES-256 key a root on a PKCS #11 token, made there and unable to leave it. Several
 * processes may use the token at once. A key that is to be destroyed is gone only when a fresh connection, from
 * C_Initialize on, shows no object with its id; until then there is no receipt. It must never act on a root that its
 * caller did not name.
 */
#include "dataplane/base/fault.h"
#include "dataplane/base/log.h"
#include "dataplane/base/mem.h"
#include "dataplane/keys/roe_pkcs11_int.h"

#include <stdio.h>
#include <string.h>

#define MAGIC "KVP1"
#define BLOB_BYTES (4 + 16 + KV_P11_IV_BYTES + 32 + KV_P11_TAG_BYTES)

struct pkcs11_roe {
    struct kv_roe base;
    struct kv_p11 token;
    char detail[128];
};

static struct pkcs11_roe *pkcs11_of(struct kv_roe *roe)
{
    return (struct pkcs11_roe *)roe;
}

/* --- one call ----------------------------------------------------------------------------------------------------- */

/* What a call works on; members that it has no use for are unset. */
struct work {
    struct pkcs11_roe *roe;
    const struct kv_id *id, *old;
    const struct kv_secret *root;
    struct kv_bytes blob;
    struct kv_buf *ret_blob;
    struct kv_secret **ret_root;
    struct kv_roe_view view;
};

/* Runs `step` on a connection, and once more on a fresh one when the first turns out to be lost: every step looks
 * before it acts, so it may be repeated. */
static KV_RC run(struct work *work, KV_RC (*step)(struct work *))
{
    struct kv_p11 *token = &work->roe->token;
    struct kv_errinfo *trouble = &work->roe->base.trouble;
    enum kv_err rc = KV_OK;
    *trouble = (struct kv_errinfo){0};
    token->info = trouble;
    for (int tries = 0; tries < 2; tries++) {
        bool was_connected = token->connected;
        rc = kv_p11_connect(token);
        rc = rc == KV_OK ? step(work) : rc;
        if (!token->lost) {
            return rc;
        }
        kv_p11_disconnect(token);
        token->lost = false;
        if (rc == KV_OK || !was_connected) {
            return rc;
        }
        kv_log(KV_LOG_INFO, "roe", "token-connection-lost", KV_FRC(rc), KV_FT("text", trouble->text));
    }
    return rc;
}

static KV_RC look(struct work *work, struct kv_roe_shelf *ret_shelf)
{
    KV_TRY(kv_p11_look(&work->roe->token, ret_shelf));
    enum kv_err rc = kv_roe_shelf_view(ret_shelf, work->id, &work->view);
    return rc == KV_OK ? KV_OK
                       : kv_fail(&work->roe->base.trouble, rc, "the token holds two active roots under this label");
}

/* The key is destroyed when a connection that knows nothing of it finds nothing: a library may answer from its memory,
 * and a token may say yes and keep the object. */
static KV_RC destroy(struct work *work, const struct kv_id *id)
{
    struct kv_p11 *token = &work->roe->token;
    unsigned long left = 1;
    if (KV_FAULT("roe/pkcs11/destroy")) {
        return KV_E_IO;
    }
    KV_TRY(kv_p11_destroy(token, id));
    if (KV_FAULT("roe/pkcs11/destroyed")) {
        return KV_E_IO;
    }
    kv_p11_disconnect(token);
    KV_TRY(kv_p11_connect(token));
    KV_TRY(kv_p11_count(token, id, &left));
    return left == 0 ? KV_OK
                     : kv_fail(&work->roe->base.trouble, KV_E_IO,
                               "the token still shows the key that it said it destroyed; nothing is claimed");
}

/* --- open --------------------------------------------------------------------------------------------------------- */

static void pkcs11_close(struct kv_roe *base);

static KV_RC nothing(struct work *work)
{
    (void)work;
    return KV_OK;
}

static KV_RC pkcs11_open(const struct kv_roe_conf *conf, struct kv_errinfo *info, struct kv_roe **ret_roe)
{
    struct pkcs11_roe *roe = kv_alloc(sizeof(*roe));
    if (roe == NULL) {
        return kv_fail(info, KV_E_NO_MEMORY, "no memory for the root of erasure");
    }
    roe->base.ops = &kv_roe_pkcs11;
    roe->token.env = conf->env;
    struct work work = {.roe = roe};
    enum kv_err rc = kv_p11_load(&conf->pkcs11, info, &roe->token);
    if (rc == KV_OK) {
        rc = run(&work, nothing);
        if (rc != KV_OK && info != NULL) {
            *info = roe->base.trouble;
        }
    }
    if (rc != KV_OK) {
        pkcs11_close(&roe->base);
        return rc;
    }
    snprintf(roe->detail, sizeof roe->detail, "%s%.32s, %.16s, serial %.16s",
             roe->token.manufacturer_wanted[0] != '\0' ? KV_ROE_HARDWARE : "token: ", roe->token.manufacturer,
             roe->token.model, roe->token.serial);
    *ret_roe = &roe->base;
    return KV_OK;
}

/* --- create and discard ------------------------------------------------------------------------------------------- */

/* Another process may have staged between the look and the making. Each looks again after it made its key, so at most
 * one of two goes on, and both may give way. */
static KV_RC give_way(struct work *work)
{
    struct kv_roe_shelf shelf;
    KV_TRY(look(work, &shelf));
    for (size_t i = 0; i < shelf.count; i++) {
        if (!shelf.keys[i].active && !kv_id_equal(&shelf.keys[i].id, work->id)) {
            KV_TRY(destroy(work, work->id));
            return kv_fail(&work->roe->base.trouble, KV_E_INVALID_STATE, "another process staged a root meanwhile");
        }
    }
    return KV_OK;
}

static KV_RC create_step(struct work *work)
{
    struct kv_roe_shelf shelf;
    enum kv_roe_step step = KV_ROE_NOTHING;
    KV_TRY(look(work, &shelf));
    KV_TRY(kv_roe_plan_create(&work->view, work->id, &step));
    if (step == KV_ROE_NOTHING) {
        return KV_OK;
    }
    for (size_t i = 0; i < shelf.count; i++) {
        if (!shelf.keys[i].active) {
            return KV_E_INVALID_STATE;
        }
    }
    if (KV_FAULT("roe/pkcs11/create")) {
        return KV_E_IO;
    }
    KV_TRY(kv_p11_generate(&work->roe->token, work->id, work->roe->base.fence));
    if (KV_FAULT("roe/pkcs11/created")) {
        return KV_E_IO;
    }
    return give_way(work);
}

static KV_RC pkcs11_create(struct kv_roe *base, const struct kv_id *id)
{
    struct work work = {.roe = pkcs11_of(base), .id = id};
    return run(&work, create_step);
}

static KV_RC discard_step(struct work *work)
{
    struct kv_roe_shelf shelf;
    enum kv_roe_step step = KV_ROE_NOTHING;
    KV_TRY(look(work, &shelf));
    KV_TRY(kv_roe_plan_discard(&work->view, work->id, &step));
    if (step == KV_ROE_NOTHING) {
        return KV_OK;
    }
    uint64_t fence = work->roe->base.fence;
    if (fence != 0 && kv_roe_shelf_find(&shelf, work->id)->fence > fence) {
        return kv_fail(&work->roe->base.trouble, KV_E_STALE, "the staged root is of a process that came later");
    }
    return destroy(work, work->id);
}

static KV_RC pkcs11_discard(struct kv_roe *base, const struct kv_id *staged)
{
    struct work work = {.roe = pkcs11_of(base), .id = staged};
    return run(&work, discard_step);
}

/* --- commit ------------------------------------------------------------------------------------------------------- */

static KV_RC commit_step(struct work *work)
{
    struct kv_roe_shelf shelf;
    enum kv_roe_step step = KV_ROE_NOTHING;
    KV_TRY(look(work, &shelf));
    KV_TRY(kv_roe_plan_commit(&work->view, work->id, work->old, &step));
    if (step == KV_ROE_DESTROY || !kv_id_is_zero(work->old)) {
        KV_TRY(destroy(work, work->old)); /* Again where it is gone already: a receipt is given over what was seen. */
    }
    if (step == KV_ROE_NOTHING) {
        return KV_OK;
    }
    KV_TRY(look(work, &shelf)); /* Handles are of one connection. */
    const struct kv_roe_key *fresh = kv_roe_shelf_find(&shelf, work->id);
    if (fresh == NULL) {
        return KV_E_STALE;
    }
    if (KV_FAULT("roe/pkcs11/activate")) {
        return KV_E_IO;
    }
    KV_TRY(kv_p11_activate(&work->roe->token, fresh->handle));
    return KV_FAULT("roe/pkcs11/activated") ? KV_E_IO : KV_OK;
}

static KV_RC pkcs11_commit(struct kv_roe *base, const struct kv_id *fresh, const struct kv_id *old,
                           struct kv_roe_receipt *ret_receipt)
{
    struct pkcs11_roe *roe = pkcs11_of(base);
    struct work work = {.roe = roe, .id = fresh, .old = old};
    KV_TRY(run(&work, commit_step));
    return kv_roe_receipt_make(roe->token.env, kv_roe_pkcs11.name, fresh, old, ret_receipt);
}

/* Again where it is gone already: a receipt is given over what was seen. */
static KV_RC retire_step(struct work *work)
{
    struct kv_roe_shelf shelf;
    enum kv_roe_step step = KV_ROE_NOTHING;
    KV_TRY(look(work, &shelf));
    KV_TRY(kv_roe_plan_retire(&work->view, work->old, &step));
    return destroy(work, work->old);
}

static KV_RC pkcs11_retire(struct kv_roe *base, const struct kv_id *old, const struct kv_id *fresh,
                           struct kv_roe_receipt *ret_receipt)
{
    struct pkcs11_roe *roe = pkcs11_of(base);
    struct work work = {.roe = roe, .id = fresh, .old = old};
    KV_TRY(run(&work, retire_step));
    return kv_roe_receipt_make(roe->token.env, kv_roe_pkcs11.name, fresh, old, ret_receipt);
}

/* --- wrap and unwrap ---------------------------------------------------------------------------------------------- */

static KV_RC find_key(struct work *work, struct kv_roe_shelf *shelf, const struct kv_roe_key **ret_key)
{
    KV_TRY(look(work, shelf));
    const struct kv_roe_key *key = kv_roe_shelf_find(shelf, work->id);
    if (key == NULL) {
        return KV_E_MISSING;
    }
    *ret_key = key;
    return KV_OK;
}

static KV_RC wrap_step(struct work *work)
{
    struct kv_p11 *token = &work->roe->token;
    struct kv_roe_shelf shelf;
    const struct kv_roe_key *key = NULL;
    uint8_t iv[KV_P11_IV_BYTES], sealed[32 + KV_P11_TAG_BYTES];
    KV_TRY(find_key(work, &shelf, &key));
    KV_TRY(token->env->random(token->env->ctx, iv, sizeof iv));
    KV_TRY(kv_p11_encrypt(token, key, work->root, iv, sealed));
    kv_buf_append(work->ret_blob, MAGIC, 4);
    kv_buf_append(work->ret_blob, work->id->b, sizeof work->id->b);
    kv_buf_append(work->ret_blob, iv, sizeof iv);
    kv_buf_append(work->ret_blob, sealed, sizeof sealed);
    return kv_buf_check(work->ret_blob);
}

static KV_RC pkcs11_wrap(struct kv_roe *base, const struct kv_id *id, const struct kv_secret *root,
                         struct kv_buf *ret_blob)
{
    struct work work = {.roe = pkcs11_of(base), .id = id, .root = root, .ret_blob = ret_blob};
    return kv_secret_len(root) == 32 ? run(&work, wrap_step) : KV_E_INVALID_REQUEST;
}

static KV_RC unwrap_step(struct work *work)
{
    struct kv_roe_shelf shelf;
    const struct kv_roe_key *key = NULL;
    const uint8_t *iv = work->blob.data + 4 + sizeof work->id->b;
    KV_TRY(find_key(work, &shelf, &key));
    if (memcmp(work->blob.data + 4, work->id->b, sizeof work->id->b) != 0) {
        return KV_E_WRONG_KEY;
    }
    return kv_p11_decrypt(&work->roe->token, key, iv, iv + KV_P11_IV_BYTES, work->ret_root);
}

static KV_RC pkcs11_unwrap(struct kv_roe *base, const struct kv_id *id, struct kv_bytes blob,
                           struct kv_secret **ret_root)
{
    struct work work = {.roe = pkcs11_of(base), .id = id, .blob = blob, .ret_root = ret_root};
    if (blob.len != BLOB_BYTES || memcmp(blob.data, MAGIC, 4) != 0) {
        return blob.len < BLOB_BYTES ? KV_E_TRUNCATED : KV_E_CORRUPT;
    }
    return run(&work, unwrap_step);
}

/* --- the rest ----------------------------------------------------------------------------------------------------- */

static KV_RC list_step(struct work *work)
{
    struct kv_roe_shelf shelf;
    return look(work, &shelf);
}

static KV_RC pkcs11_list(struct kv_roe *base, struct kv_id *ret_active, struct kv_id *ret_staged)
{
    struct work work = {.roe = pkcs11_of(base)};
    KV_TRY(run(&work, list_step));
    *ret_active = work.view.active;
    *ret_staged = work.view.staged;
    return KV_OK;
}

static const char *pkcs11_describe(const struct kv_roe *base)
{
    return ((const struct pkcs11_roe *)base)->detail;
}

static const char *pkcs11_assurance(const struct kv_roe *base)
{
    /* The connection was refused unless the token reports the declared device, and hardware. */
    return ((const struct pkcs11_roe *)base)->token.manufacturer_wanted[0] != '\0' ? "E3" : "E2";
}

static void pkcs11_close(struct kv_roe *base)
{
    if (base == NULL) {
        return;
    }
    struct pkcs11_roe *roe = pkcs11_of(base);
    kv_p11_unload(&roe->token);
    kv_free(roe);
}

const struct kv_roe_ops kv_roe_pkcs11 = {
    .name = "pkcs11",
    .shared = true,
    .open = pkcs11_open,
    .create = pkcs11_create,
    .wrap = pkcs11_wrap,
    .unwrap = pkcs11_unwrap,
    .commit = pkcs11_commit,
    .retire = pkcs11_retire,
    .discard = pkcs11_discard,
    .list = pkcs11_list,
    .describe = pkcs11_describe,
    .assurance = pkcs11_assurance,
    .close = pkcs11_close,
};
