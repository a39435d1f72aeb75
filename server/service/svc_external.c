/*
 * A client's own ids for sessions. The text is sealed under the session's K_meta, so it goes with the session's key; it
 * is found by a keyed hash whose key comes from a slot of the tenant's tree, so whoever has the database alone cannot
 * try out names. Must never put the text into a statement, a log or an error.
 */
#include "server/service/svc_int.h"

#include "dataplane/base/id.h"
#include "dataplane/base/log.h"
#include "dataplane/base/mem.h"
#include "dataplane/crypto/hash.h"

#include <string.h>

#define TRIES 3

/* --- finding ----------------------------------------------------------------------------------------------------- */

KV_RC svc_external_key(struct kv_svc *svc, const struct kv_ktree_store *rows, const struct kv_store_tenant *tenant,
                       bool fill, struct kv_secret **ret_key)
{
    struct kv_secret *slot KV_CLEANUP(kv_secret_freep) = NULL;
    KV_TRY(kv_ktree_slot(svc->tree, rows, &tenant->tree, tenant->directory_slot, (uint32_t)tenant->system_slot, fill,
                         &slot));
    return kv_tenant_key_lookup(slot, &tenant->id, ret_key);
}

KV_RC svc_external_hmac(struct kv_svc *svc, const struct kv_ktree_store *rows, const struct kv_store_tenant *tenant,
                        bool fill, const char *external_id, uint8_t ret_hmac[32])
{
    struct kv_secret *key KV_CLEANUP(kv_secret_freep) = NULL;
    KV_TRY(svc_external_key(svc, rows, tenant, fill, &key));
    struct kv_bytes parts[] = {KV_BYTES(external_id, strlen(external_id))};
    return kv_hmac_sha256(key, parts, 1, ret_hmac);
}

static KV_RC use_root(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info)
{
    struct kv_store_kroot kroot = {0};
    KV_TRY(kv_store_kroot_share(pg, info, &kroot)); /* no re-key between the root and the rows below it */
    enum kv_err rc = svc_root_use(svc, &kroot, info);
    kv_store_kroot_done(&kroot);
    return rc;
}

struct lookup_tx {
    struct kv_call *call;
    const char *external_id;
    struct kv_store_tenant tenant;
    bool known;
    uint8_t hmac[32];
};

static KV_RC lookup_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct lookup_tx *tx = ctx;
    KV_TRY(use_root(tx->call->svc, pg, info));
    KV_TRY(kv_store_tenant_get(pg, &tx->call->who.tenant, info, &tx->tenant));
    tx->known = tx->tenant.system_slot >= 0;
    struct svc_tree_store store = {.pg = pg, .info = info};
    struct kv_ktree_store rows = svc_tree_store(&store);
    return tx->known ? svc_external_hmac(tx->call->svc, &rows, &tx->tenant, false, tx->external_id, tx->hmac) : KV_OK;
}

KV_RC svc_external_lookup(struct kv_call *call, const char *external_id, bool *ret_known, uint8_t ret_hmac[32])
{
    KV_TRY(svc_may_work(call->svc, &call->info));
    struct lookup_tx *tx KV_CLEANUP(kv_freep) = kv_alloc(sizeof *tx);
    if (tx == NULL) {
        return KV_E_NO_MEMORY;
    }
    *tx = (struct lookup_tx){.call = call, .external_id = external_id};
    enum kv_err rc = KV_E_STALE;
    for (int tries = 0; rc == KV_E_STALE && tries < TRIES; tries++) { /* the root changed meanwhile */
        rc = kv_pg_tx(call->pg, KV_TX_EXTERNAL_LOOKUP, lookup_tx, tx, &call->info, NULL);
    }
    KV_TRY(rc);
    *ret_known = tx->known;
    memcpy(ret_hmac, tx->hmac, sizeof tx->hmac);
    return KV_OK;
}

/* --- sealing ----------------------------------------------------------------------------------------------------- */

static KV_RC meta_key(const struct kv_secret *slot, const struct kv_store_session *session, struct kv_secret **ret_key)
{
    struct kv_secret *scope KV_CLEANUP(kv_secret_freep) = NULL;
    KV_TRY(kv_scope_secret(slot, &session->tenant, &session->id, &scope));
    return kv_scope_key_meta(scope, ret_key);
}

static struct kv_sealed_context context_of(const struct kv_store_session *session, size_t len)
{
    return (struct kv_sealed_context){
        .kind = KV_SEALED_META, .tenant = session->tenant, .scope = session->id, .plaintext_length = len};
}

static void sealer_freep(struct kv_sealer **sealer)
{
    kv_sealer_free(*sealer);
}

KV_RC svc_external_seal(struct kv_svc *svc, const struct kv_secret *slot, const struct kv_store_session *session,
                        const char *external_id, struct kv_buf *ret_sealed)
{
    struct kv_secret *key KV_CLEANUP(kv_secret_freep) = NULL;
    struct kv_sealer *sealer KV_CLEANUP(sealer_freep) = NULL;
    KV_TRY(meta_key(slot, session, &key));
    KV_TRY(kv_sealer_new(KV_CIPHER_AUTO, &sealer));
    struct kv_sealed_context context = context_of(session, strlen(external_id));
    return kv_sealed_seal_flat(sealer, svc->env, key, &context, external_id, ret_sealed);
}

static KV_RC open_text(struct kv_sealer *sealer, const struct kv_secret *slot, const struct kv_store_session *session,
                       char ret_text[KV_EXTERNAL_ID_SIZE])
{
    struct kv_secret *key KV_CLEANUP(kv_secret_freep) = NULL;
    size_t around = kv_sealed_compact_bytes(0);
    if (session->external_len < around || session->external_len - around >= KV_EXTERNAL_ID_SIZE) {
        return KV_E_CORRUPT;
    }
    size_t len = session->external_len - around;
    struct kv_sealed_context context = context_of(session, len);
    KV_TRY(meta_key(slot, session, &key));
    KV_TRY(kv_sealed_open_flat(sealer, key, &context, KV_BYTES(session->external_sealed, session->external_len),
                               ret_text, len));
    ret_text[len] = '\0';
    return KV_OK;
}

/* --- opening many ------------------------------------------------------------------------------------------------ */

/* Sessions of a page lie beside each other in the tree: the last row of each level is remembered, so that a node that
 * many share is read once. */
#define LEVELS (2 * KV_TREE_LEVELS)
struct memo {
    struct svc_tree_store store;
    struct kv_ktree_store rows;
    struct {
        struct kv_node_key key;
        struct kv_node_row row; /* sealed NULL: none */
    } last[LEVELS];
};

static KV_RC copy_row(const struct kv_node_row *row, struct kv_node_row *ret_row)
{
    struct kv_node_row copy = *row;
    copy.sealed = kv_alloc(row->sealed_len);
    if (copy.sealed == NULL) {
        return KV_E_NO_MEMORY;
    }
    memcpy(copy.sealed, row->sealed, row->sealed_len);
    *ret_row = copy;
    return KV_OK;
}

static KV_RC memo_load(void *ctx, const struct kv_node_key *key, struct kv_node_row *ret_row)
{
    struct memo *memo = ctx;
    size_t at = (kv_id_is_zero(&key->tree) ? 0 : KV_TREE_LEVELS) + key->level;
    if (at >= LEVELS) {
        return KV_E_LIMIT;
    }
    bool hit = memo->last[at].row.sealed != NULL && memo->last[at].key.idx == key->idx &&
               kv_id_equal(&memo->last[at].key.tree, &key->tree);
    if (!hit) {
        struct kv_node_row row = {0};
        KV_TRY(memo->rows.load(memo->rows.ctx, key, &row));
        kv_free(memo->last[at].row.sealed);
        memo->last[at].key = *key;
        memo->last[at].row = row;
    }
    return copy_row(&memo->last[at].row, ret_row);
}

static void memo_done(struct memo *memo)
{
    for (size_t i = 0; i < LEVELS; i++) {
        kv_free(memo->last[i].row.sealed);
    }
}

struct open_tx {
    struct kv_svc *svc;
    const struct kv_store_session *rows;
    struct kv_session_view *views;
    size_t count;
    struct kv_sealer *sealer;
};

/* One that was erased since its row was read has no slot any more: it is shown without. */
static KV_RC open_one(const struct open_tx *tx, const struct kv_ktree_store *rows, size_t i)
{
    struct kv_secret *slot KV_CLEANUP(kv_secret_freep) = NULL;
    const struct kv_store_session *row = &tx->rows[i];
    if (row->external_len == 0 || row->state != KV_SESSION_ACTIVE) {
        return KV_OK;
    }
    enum kv_err rc = kv_ktree_slot(tx->svc->tree, rows, &row->tree, row->directory_slot, row->slot, false, &slot);
    if (rc == KV_E_SESSION_ERASED || rc == KV_E_MISSING) {
        return KV_OK;
    }
    KV_TRY(rc);
    rc = open_text(tx->sealer, slot, row, tx->views[i].external_id);
    if (rc != KV_OK &&
        kv_err_class_of(rc) == KV_CLASS_INTEGRITY) { /* a page is not lost for one row that was changed */
        kv_log(KV_LOG_ERROR, "session", "external_id_unreadable", KV_FID("session", "ses", &row->id), KV_FRC(rc));
        rc = KV_OK;
    }
    return rc;
}

static KV_RC open_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    const struct open_tx *tx = ctx;
    KV_TRY(use_root(tx->svc, pg, info));
    struct memo memo = {.store = {.pg = pg, .info = info}};
    memo.rows = svc_tree_store(&memo.store);
    struct kv_ktree_store rows = {.ctx = &memo, .load = memo_load};
    enum kv_err rc = KV_OK;
    for (size_t i = 0; rc == KV_OK && i < tx->count; i++) {
        rc = open_one(tx, &rows, i);
    }
    memo_done(&memo);
    return rc;
}

KV_RC svc_external_open_all(struct kv_call *call, const struct kv_store_session *rows, struct kv_session_view *views,
                            size_t count)
{
    struct kv_sealer *sealer KV_CLEANUP(sealer_freep) = NULL;
    struct kv_errinfo info = {0};
    bool any = false;
    for (size_t i = 0; i < count; i++) {
        any = any || (rows[i].external_len > 0 && rows[i].state == KV_SESSION_ACTIVE);
    }
    if (!any || svc_may_work(call->svc, &info) != KV_OK) {
        return KV_OK;
    }
    KV_TRY(kv_sealer_new(KV_CIPHER_AUTO, &sealer));
    struct open_tx tx = {.svc = call->svc, .rows = rows, .views = views, .count = count, .sealer = sealer};
    enum kv_err rc = KV_E_STALE;
    for (int tries = 0; rc == KV_E_STALE && tries < TRIES; tries++) {
        rc = kv_pg_tx(call->pg, KV_TX_EXTERNAL_OPEN, open_tx, &tx, &call->info, NULL);
    }
    return rc;
}
