/*
 * Accepting that the root of erasure is gone: for the owner of the data folder and the database, without a server.
 * Whoever can call this could delete the database; so nobody is asked for a key, but what is lost has to be named, and
 * the log is told. Must never touch a root that opens.
 */
#include "server/service/svc_root.h"

#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "server/service/svc_int.h"
#include "server/store/store_ktree.h"
#include "server/store/store_loss.h"

#include <stdio.h>
#include <string.h>

#define WRAPPED_BYTES_MAX 4096
#define LEFTOVERS_MAX 64

static const char nothing_lost[] = "the root of erasure opens this database's keys: nothing is lost";

static KV_RC refuse_while_served(struct kv_pg *pg, struct kv_errinfo *info)
{
    struct kv_store_instance live;
    size_t count = 0;
    KV_TRY(kv_store_instances_live(pg, 1, info, &live, &count));
    return count == 0
               ? KV_OK
               : kv_fail(info, KV_E_INVALID_STATE,
                         "a server runs on this database, or was killed less than its lease ago: stop it, or try "
                         "again in %u s",
                         live.lease_ms / 1000 + 1);
}

static KV_RC said(const struct kv_roe *roe, enum kv_err rc, struct kv_errinfo *info, const char *text)
{
    bool told = roe->trouble.text[0] != '\0' && roe->trouble.code == rc;
    return rc == KV_OK ? KV_OK : kv_fail(info, rc, "%s", told ? roe->trouble.text : text);
}

/* --- looking ----------------------------------------------------------------------------------------------------- */

/* NULL: it opens. */
static KV_RC why_lost(struct kv_roe *roe, const struct kv_store_kroot *kroot, const struct kv_id *active,
                      const struct kv_id *staged, struct kv_errinfo *info, const char **ret_why)
{
    *ret_why = kv_id_is_zero(active) && kv_id_is_zero(staged)
                   ? "the provider of the root of erasure holds no root"
                   : "the provider holds another root of erasure than the database's: one of the two went back";
    if (!kv_id_equal(&kroot->root_id, active) && !kv_id_equal(&kroot->root_id, staged)) {
        return KV_OK;
    }
    struct kv_secret *secret = NULL;
    enum kv_err rc = roe->ops->unwrap(roe, &kroot->root_id, kv_buf_bytes(&kroot->blob), &secret);
    kv_secret_free(secret);
    if (rc == KV_E_WRONG_KEY || rc == KV_E_TAMPERED) {
        *ret_why = "what the database keeps of its root of erasure is damaged";
        return KV_OK;
    }
    *ret_why = NULL;
    return said(roe, rc, info, "the root of erasure cannot be asked");
}

/* The anchor shows a root that this database does not know: both went back together. */
static KV_RC behind_anchor(const struct kv_root_look *look, struct kv_errinfo *info, const char **ret_why)
{
    struct kv_anchor_record record;
    bool known = false;
    enum kv_err rc = look->anchor == NULL ? KV_E_MISSING : look->anchor->ops->read(look->anchor, info, &record);
    if (rc == KV_E_MISSING) {
        return KV_OK;
    }
    KV_TRY(rc);
    KV_TRY(kv_store_root_known(look->pg, &record.root, info, &known));
    *ret_why = known ? *ret_why : "the database is older than the anchor outside of it shows, and its root with it";
    return KV_OK;
}

static KV_RC look_at(const struct kv_root_look *look, const struct kv_store_kroot *kroot, struct kv_errinfo *info,
                     struct kv_root_loss *loss)
{
    struct kv_roe *roe = look->roe;
    struct kv_id staged;
    loss->fence = kroot->fence;
    loss->root = kroot->root_id;
    snprintf(loss->provider, sizeof loss->provider, "%s", kroot->provider);
    KV_TRY(said(roe, roe->ops->list(roe, &loss->active, &staged), info, "the root of erasure cannot be read"));
    loss->other_provider = strcmp(kroot->provider, roe->ops->name) != 0;
    if (loss->other_provider) {
        loss->why = strcmp(kroot->provider, kv_roe_memory.name) == 0
                        ? "the root of erasure was in memory and ended with its process"
                        : "the provider that holds the root of erasure is said to be gone";
        return KV_OK;
    }
    KV_TRY(why_lost(roe, kroot, &loss->active, &staged, info, &loss->why));
    KV_TRY(loss->why == NULL ? behind_anchor(look, info, &loss->why) : KV_OK);
    return loss->why != NULL ? KV_OK : kv_fail(info, KV_E_INVALID_STATE, "%s", nothing_lost);
}

static KV_RC look_without_kroot(struct kv_roe *roe, struct kv_errinfo *info, struct kv_root_loss *loss)
{
    struct kv_id staged;
    KV_TRY(said(roe, roe->ops->list(roe, &loss->active, &staged), info, "the root of erasure cannot be read"));
    loss->why = "the database has no root of erasure, and the provider holds one of another database";
    return kv_id_is_zero(&loss->active) ? kv_fail(info, KV_E_INVALID_STATE,
                                                  "this database has had no root of erasure yet: nothing is lost, and "
                                                  "the next start makes one")
                                        : KV_OK;
}

KV_RC kv_svc_root_loss(const struct kv_root_look *look, struct kv_errinfo *info, struct kv_root_loss *ret_loss)
{
    struct kv_pg *pg = look->pg;
    struct kv_root_loss loss = {0};
    struct kv_store_kroot kroot = {0};
    KV_TRY(refuse_while_served(pg, info));
    KV_TRY(kv_store_cluster_get(pg, info, &loss.cluster));
    KV_TRY(kv_store_loss_count(pg, info, &loss.sessions));
    enum kv_err rc = kv_store_kroot_get(pg, info, &kroot);
    rc = rc == KV_E_MISSING ? look_without_kroot(look->roe, info, &loss)
         : rc == KV_OK      ? look_at(look, &kroot, info, &loss)
                            : rc;
    kv_store_kroot_done(&kroot);
    KV_TRY(rc);
    *ret_loss = loss;
    return KV_OK;
}

/* --- accepting --------------------------------------------------------------------------------------------------- */

struct loss_tx {
    struct kv_roe *roe;
    const struct kv_env *env;
    const struct kv_root_loss *loss;
    struct kv_ktree *tree;
    struct kv_id root;
    struct kv_secret *secret;
    struct kv_buf blob;
};

/* Of a run that was cut off, or of an erasure: nothing in the database hangs under what is staged. */
static KV_RC discard_staged(struct kv_roe *roe)
{
    struct kv_id active, staged;
    roe->fence = UINT64_MAX; /* also what a fence made that this database does not know of any more */
    for (int i = 0; i <= LEFTOVERS_MAX; i++) {
        KV_TRY(roe->ops->list(roe, &active, &staged));
        if (kv_id_is_zero(&staged)) {
            return KV_OK;
        }
        KV_TRY(roe->ops->discard(roe, &staged));
    }
    return KV_E_LIMIT;
}

static KV_RC make_root(struct loss_tx *tx)
{
    struct kv_roe *roe = tx->roe;
    KV_TRY(discard_staged(roe));
    roe->fence = (uint64_t)tx->loss->fence + 1;
    KV_TRY(tx->env->random(tx->env->ctx, tx->root.b, sizeof tx->root.b));
    KV_TRY(kv_secret_random(tx->env, 32, &tx->secret));
    KV_TRY(roe->ops->create(roe, &tx->root));
    KV_TRY(roe->ops->wrap(roe, &tx->root, tx->secret, &tx->blob));
    KV_TRY(kv_ktree_new(tx->env, &tx->loss->cluster, &tx->tree));
    return kv_ktree_set_root(tx->tree, &tx->root, tx->secret);
}

/* The eraser's first round, at the server's start, sees to it that the provider has the old root no more, even when
 * this process ends before it could; and the database still knows of it, as an anchor may ask. */
static KV_RC note_old_root(struct kv_pg *pg, const struct loss_tx *tx, int64_t fence, struct kv_errinfo *info)
{
    struct kv_store_batch batch = {.old_root = kv_id_is_zero(&tx->loss->active) ? tx->loss->root : tx->loss->active,
                                   .new_root = tx->root,
                                   .fence = fence,
                                   .created_us = tx->env->realtime_us(tx->env->ctx)};
    if (kv_id_is_zero(&batch.old_root) || (tx->loss->other_provider && kv_id_is_zero(&tx->loss->active))) {
        return KV_OK;
    }
    snprintf(batch.provider, sizeof batch.provider, "%s", tx->roe->ops->name);
    snprintf(batch.provider_detail, sizeof batch.provider_detail, "%.128s", tx->roe->ops->describe(tx->roe));
    KV_TRY(kv_id_new(tx->env, &batch.id));
    KV_TRY(kv_store_batch_insert(pg, &batch, KV_BYTES(NULL, 0), info));
    return kv_store_batch_advance(pg, &batch.id, KV_BATCH_STAGED, KV_BATCH_REKEYED, batch.created_us, NULL, info);
}

static KV_RC loss_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct loss_tx *tx = ctx;
    struct svc_tree_store store = {.pg = pg, .info = info};
    struct kv_ktree_store rows = svc_tree_store(&store);
    struct kv_store_root_set root = {
        .root_id = tx->root, .provider = tx->roe->ops->name, .blob = kv_buf_bytes(&tx->blob)};
    struct kv_audit_event event = {
        .op = KV_AUDIT_ROOT_ACCEPT_LOSS, .actor_role = "system", .subject = tx->root, .subject_prefix = "rot"};
    int64_t fence = 0;
    uint64_t sessions = 0;
    KV_TRY(kv_store_cluster_lock(pg, info)); /* a first start makes no root meanwhile */
    KV_TRY(kv_store_kroot_replace(pg, &root, info, &fence));
    KV_TRY(refuse_while_served(pg, info));
    KV_TRY(kv_store_lose_everything(pg, tx->env->realtime_us(tx->env->ctx), info, &sessions));
    if (fence != tx->loss->fence + 1 || sessions != tx->loss->sessions) {
        return kv_fail(info, KV_E_STALE, "the database changed meanwhile; look again");
    }
    KV_TRY(note_old_root(pg, tx, fence, info));
    KV_TRY(kv_ktree_format(tx->tree, &rows));
    return svc_audit_entry(tx->env, pg, &event, KV_BYTES(NULL, 0), info);
}

KV_RC kv_svc_root_accept_loss(struct kv_pg *pg, struct kv_roe *roe, const struct kv_env *env,
                              const struct kv_root_loss *loss, struct kv_errinfo *info)
{
    struct loss_tx tx = {.roe = roe, .env = env, .loss = loss};
    struct kv_roe_receipt receipt;
    kv_buf_init(&tx.blob, WRAPPED_BYTES_MAX);
    enum kv_err rc = said(roe, make_root(&tx), info, "no fresh root of erasure could be made");
    if (rc == KV_OK) {
        rc = KV_FAULT("loss/staged") ? KV_E_INTERNAL : kv_pg_tx(pg, KV_TX_ROOT_LOSS, loss_tx, &tx, info, NULL);
    }
    if (rc == KV_OK) {
        rc = KV_FAULT("loss/committed") ? KV_E_INTERNAL : roe->ops->commit(roe, &tx.root, &loss->active, &receipt);
        rc =
            said(roe, rc, info, "what is left of the old root could not be destroyed; the server's next start does it");
    }
    kv_ktree_free(tx.tree);
    kv_secret_free(tx.secret);
    kv_buf_done(&tx.blob);
    return rc;
}
