/*
 * A new operator key without a server: for the owner of the data folder and the database, who has lost the last one.
 * Whoever can call this could write the row by hand; so nobody is asked for a key, but the log is told. Must never
 * leave a valid key that nobody holds.
 */
#include "server/service/svc_key.h"

#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"
#include "server/service/key_text.h"
#include "server/service/svc_int.h"

#include <stdio.h>

#define LIFE_US (UINT64_C(90) * 86400 * 1000000)

struct recover_tx {
    const struct kv_env *env;
    struct kv_store_api_key row;
    kv_key_keep_fn keep;
    void *keep_ctx;
    char text[SVC_KEY_TEXT_SIZE]; /* wiped */
};

static KV_RC recover_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct recover_tx *tx = ctx;
    uint64_t count = 0;
    struct kv_audit_event event = {
        .op = KV_AUDIT_KEY_RECOVER, .actor_role = "system", .subject = tx->row.id, .subject_prefix = "key"};
    /* Others may not be made meanwhile; how many there are is no reason to keep the owner out. */
    KV_TRY(kv_store_api_key_count_lock(pg, &tx->row.tenant, tx->row.created_us, info, &count));
    KV_TRY(kv_store_api_key_insert(pg, &tx->row, info));
    KV_TRY(svc_audit_entry(tx->env, pg, &event, KV_BYTES(NULL, 0), info));
    return tx->keep(tx->keep_ctx, tx->text, info); /* last, as for the first key */
}

static KV_RC draw(struct recover_tx *tx)
{
    tx->row.roles = KV_ROLE_OPERATOR;
    tx->row.created_us = tx->env->realtime_us(tx->env->ctx);
    tx->row.expires_us = tx->row.created_us + LIFE_US;
    snprintf(tx->row.name, sizeof tx->row.name, "recovered operator key");
    KV_TRY(kv_id_new(tx->env, &tx->row.id));
    KV_TRY(svc_key_draw_kid(tx->env, tx->row.kid));
    return svc_key_draw_secret(tx->env, tx->row.kid, tx->row.secret_sha256, tx->text);
}

KV_RC kv_svc_key_recover(struct kv_pg *pg, const struct kv_env *env, kv_key_keep_fn keep, void *ctx,
                         struct kv_errinfo *info)
{
    struct recover_tx tx = {.env = env, .keep = keep, .keep_ctx = ctx};
    enum kv_err rc = draw(&tx);
    if (rc == KV_OK) {
        rc = kv_pg_tx(pg, KV_TX_KEY_RECOVER, recover_tx, &tx, info, NULL);
    }
    kv_wipe(&tx, sizeof tx);
    return rc;
}
