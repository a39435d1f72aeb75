/*
 * The root in force: kroot in the database, the provider outside it and the tree's root in memory belong together, and
 * this file is where they are brought together or found apart.
 *
 *   kroot   provider active  staged   what is done
 *   none    none             any      first start: a staged root is a leftover; discard it and make a fresh one
 *   none    R                any      the database is not the one of this root: quarantine
 *   R       R                none     use R
 *   R       R                R'       a re-key that did not happen: discard R', use R
 *   R'      R                R'       a re-key that happened: use R'; the eraser goes on and destroys R
 *   R'      none             R'       the destruction was under way, or the first start was: finish it
 *   other   any              any      one of the two was put back to an older state: quarantine
 *   R       R                any      but the anchor shows a later one: both were put back; quarantine (anchor.c)
 * In quarantine nothing opens and nothing is written, so that putting the right database back heals.
 */
#include "server/service/svc_int.h"

#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "dataplane/base/log.h"
#include "dataplane/base/mem.h"
#include "server/store/store_ktree.h"

#include <string.h>

#define WRAPPED_BYTES_MAX 4096
#define CHECK_TRIES 8
#define SETTLE_NS (100 * KV_MS_NS)
#define FIRST_TRIES 3

#define IF_GONE "; if it is lost: kvrun root accept-loss"
static const char text_lost[] = "the root of erasure belongs to another database; connect the database it was made "
                                "with, or move the root file away to start afresh";
static const char text_empty[] =
    "the root of erasure holds no key, so it and the database do not belong together: put its "
    "file back, or set root.path to the right one" IF_GONE;
static const char text_memory[] =
    "the root of erasure was in memory and ended with its process: stop the server, set a root.provider that lasts, "
    "and run kvrun root accept-loss";
static const char text_rollback[] = "the database and the root of erasure do not belong together: one of them was put "
                                    "back to an older state; restore the current one" IF_GONE;

static KV_RC node_load(void *ctx, const struct kv_node_key *key, struct kv_node_row *ret_row)
{
    struct svc_tree_store *store = ctx;
    struct kv_store_node_key at = {.tree = key->tree, .level = key->level, .idx = key->idx};
    struct kv_store_node node;
    KV_TRY(kv_store_node_load(store->pg, &at, store->info, &node));
    *ret_row = (struct kv_node_row){
        .node_id = node.node_id, .version = node.version, .sealed = node.sealed, .sealed_len = node.sealed_len};
    return KV_OK;
}

static struct kv_store_node as_stored(const struct kv_node_row *row)
{
    return (struct kv_store_node){
        .node_id = row->node_id, .version = row->version, .sealed = row->sealed, .sealed_len = row->sealed_len};
}

static KV_RC node_insert(void *ctx, const struct kv_node_key *key, const struct kv_node_row *row)
{
    struct svc_tree_store *store = ctx;
    struct kv_store_node_key at = {.tree = key->tree, .level = key->level, .idx = key->idx};
    struct kv_store_node node = as_stored(row);
    return kv_store_node_insert(store->pg, &at, &node, store->info);
}

static KV_RC node_update(void *ctx, const struct kv_node_key *key, int64_t seen_version, const struct kv_node_row *row)
{
    struct svc_tree_store *store = ctx;
    struct kv_store_node_key at = {.tree = key->tree, .level = key->level, .idx = key->idx};
    struct kv_store_node node = as_stored(row);
    return kv_store_node_update(store->pg, &at, seen_version, &node, store->info);
}

struct kv_ktree_store svc_tree_store(struct svc_tree_store *store)
{
    return (struct kv_ktree_store){.ctx = store, .load = node_load, .insert = node_insert, .update = node_update};
}

static KV_RC set_root(struct kv_svc *svc, const struct kv_store_kroot *kroot, bool purge)
{
    struct kv_id current;
    if (!purge && kv_ktree_root(svc->tree, &current) && kv_id_equal(&current, &kroot->root_id)) {
        return KV_OK;
    }
    struct kv_secret *secret = NULL;
    KV_TRY(svc->roe->ops->unwrap(svc->roe, &kroot->root_id, kv_buf_bytes(&kroot->blob), &secret));
    enum kv_err rc = kv_ktree_set_root(svc->tree, &kroot->root_id, secret);
    kv_secret_free(secret);
    /* KV_E_BUSY: it is set, but a call that began before still runs. Enough to go on with, not enough to acknowledge a
     * purge. */
    return rc == KV_E_BUSY && !purge ? KV_OK : rc;
}

static KV_RC set_root_locked(struct kv_svc *svc, const struct kv_store_kroot *kroot, bool purge,
                             struct kv_errinfo *info)
{
    pthread_mutex_lock(&svc->roe_mutex);
    enum kv_err rc = svc_provider_follow(svc, kroot->provider, info);
    if (rc == KV_OK) {
        rc = svc_root_said(svc, set_root(svc, kroot, purge), info, "the root of erasure does not open the key tree");
    }
    pthread_mutex_unlock(&svc->roe_mutex);
    return rc;
}

KV_RC svc_root_use(struct kv_svc *svc, const struct kv_store_kroot *kroot, struct kv_errinfo *info)
{
    return set_root_locked(svc, kroot, false, info);
}

KV_RC svc_root_purge(struct kv_svc *svc, const struct kv_store_kroot *kroot, struct kv_errinfo *info)
{
    return set_root_locked(svc, kroot, true, info);
}

/* --- whose it is ------------------------------------------------------------------------------------------------- */

struct take_tx {
    struct kv_svc *svc;
    struct kv_store_kroot kroot;
};

static KV_RC take_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct take_tx *tx = ctx;
    kv_store_kroot_done(&tx->kroot); /* of a try before */
    tx->kroot = (struct kv_store_kroot){0};
    return kv_store_kroot_take(pg, &tx->svc->instance, info, &tx->kroot);
}

KV_RC svc_root_take(struct kv_svc *svc, struct kv_pg *pg, enum kv_tx what, struct kv_errinfo *info,
                    struct kv_store_kroot *ret_kroot)
{
    struct take_tx tx = {.svc = svc};
    enum kv_err rc = kv_pg_tx(pg, what, take_tx, &tx, info, NULL);
    if (rc == KV_E_BUSY) { /* a dead client's backend may sit in its transaction on kroot */
        uint32_t ended = 0;
        KV_TRY(kv_store_kroot_evict(pg, info, &ended));
        rc = kv_pg_tx(pg, what, take_tx, &tx, info, NULL);
    }
    if (rc != KV_OK) {
        kv_store_kroot_done(&tx.kroot);
        return rc;
    }
    pthread_mutex_lock(&svc->roe_mutex);
    svc_providers_fence(svc, (uint64_t)tx.kroot.fence);
    pthread_mutex_unlock(&svc->roe_mutex);
    *ret_kroot = tx.kroot;
    return KV_OK;
}

KV_RC svc_root_said(struct kv_svc *svc, enum kv_err rc, struct kv_errinfo *info, const char *text)
{
    bool told = svc->roe->trouble.text[0] != '\0' && svc->roe->trouble.code == rc;
    return rc == KV_OK ? KV_OK : kv_fail(info, rc, "%s", told ? svc->roe->trouble.text : text);
}

KV_RC svc_root_still(struct kv_pg *pg, int64_t fence, struct kv_errinfo *info)
{
    struct kv_store_kroot kroot = {0};
    KV_TRY(kv_store_kroot_get(pg, info, &kroot));
    bool still = kroot.fence == fence || KV_FAULT("store/unfenced");
    kv_store_kroot_done(&kroot);
    return still ? KV_OK : kv_fail(info, KV_E_STALE, "another eraser has taken over");
}

static KV_RC root_in_database(struct kv_pg *pg, struct kv_errinfo *info, struct kv_id *ret_root)
{
    struct kv_store_kroot kroot = {0};
    KV_TRY(kv_store_kroot_get(pg, info, &kroot));
    *ret_root = kroot.root_id;
    kv_store_kroot_done(&kroot);
    return KV_OK;
}

/* The provider that the database names is the one to ask. */
static KV_RC follow_database(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info, struct kv_id *ret_root)
{
    struct kv_store_kroot kroot = {0};
    KV_TRY(kv_store_kroot_get(pg, info, &kroot));
    pthread_mutex_lock(&svc->roe_mutex);
    enum kv_err rc = svc_provider_follow(svc, kroot.provider, info);
    pthread_mutex_unlock(&svc->roe_mutex);
    if (rc != KV_OK) { /* it moved to one whose configuration is not here: what is open stays, nothing else opens */
        atomic_store(&svc->root_ok, false);
    }
    *ret_root = kroot.root_id;
    kv_store_kroot_done(&kroot);
    return rc;
}

static KV_RC list(struct kv_svc *svc, struct kv_errinfo *info, struct kv_id *ret_active, struct kv_id *ret_staged)
{
    pthread_mutex_lock(&svc->roe_mutex);
    enum kv_err rc = svc->roe->ops->list(svc->roe, ret_active, ret_staged);
    rc = svc_root_said(svc, rc, info, "the root of erasure cannot be read");
    pthread_mutex_unlock(&svc->roe_mutex);
    atomic_store(&svc->root_ok, rc == KV_OK);
    return rc;
}

/* One look at both sides. Another instance may replace the root in the middle of it; but a root that the database
 * showed before and after the provider was asked was its root then, too, because none comes back. */
static KV_RC check_once(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info, bool *ret_known, bool *ret_same)
{
    struct kv_id before, after, active, staged;
    KV_TRY(follow_database(svc, pg, info, &before));
    if (KV_FAULT("root/check")) {
        return KV_E_INTERNAL;
    }
    KV_TRY(list(svc, info, &active, &staged));
    KV_TRY(root_in_database(pg, info, &after));
    *ret_known = kv_id_equal(&before, &active) || kv_id_equal(&before, &staged);
    *ret_same = kv_id_equal(&before, &after) || KV_FAULT("root/check-once");
    return KV_OK;
}

KV_RC svc_root_check(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info)
{
    bool known = false, same = false;
    for (int tries = 0; !known && !same && tries < CHECK_TRIES; tries++) {
        enum kv_err rc = check_once(svc, pg, info, &known, &same);
        if (rc == KV_E_MISSING) { /* a fresh database behind the same name */
            svc_quarantine(svc, text_lost);
        }
        KV_TRY(rc);
    }
    if (known) {
        return KV_OK;
    }
    if (!same) {
        return kv_fail(info, KV_E_BUSY, "the root changes faster than it can be looked at");
    }
    svc_quarantine(svc, text_rollback);
    return kv_fail(info, KV_E_ROLLBACK_DETECTED, "%s", text_rollback);
}

KV_RC svc_root_settled(struct kv_svc *svc, struct kv_pg *pg, const struct kv_id *known, struct kv_errinfo *info,
                       struct kv_id *ret_root, bool *ret_alone)
{
    struct kv_id active, staged;
    *ret_alone = false;
    KV_TRY(root_in_database(pg, info, ret_root));
    if (kv_id_equal(ret_root, known)) {
        return KV_OK;
    }
    KV_TRY(list(svc, info, &active, &staged));
    *ret_alone = kv_id_equal(ret_root, &active);
    return KV_OK;
}

KV_RC svc_root_follow(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info, struct kv_id *ret_root)
{
    struct kv_id root;
    *ret_root = (struct kv_id){0};
    enum kv_err rc = root_in_database(pg, info, &root);
    if (rc == KV_E_MISSING) {
        return KV_OK; /* nothing was ever opened */
    }
    KV_TRY(rc);
    if (kv_id_equal(&root, &svc->lease_row.acked_root)) {
        *ret_root = root;
        return KV_OK;
    }
    if (kv_ktree_leave(svc->tree, &root) == KV_OK &&
        svc_session_settle(svc, kv_now_ns(svc->env) + SETTLE_NS, info) == KV_OK) {
        *ret_root = root;
    }
    return KV_OK; /* else at the next renewal */
}

/* --- the first root ---------------------------------------------------------------------------------------------- */

struct first_tx {
    struct kv_svc *svc;
    struct kv_id root;
    struct kv_secret *secret;
    struct kv_buf blob;
};

/* Under the cluster's lock there is no other who makes a first root, so what is staged is a leftover. */
static KV_RC stage_first(struct first_tx *tx)
{
    struct kv_roe *roe = tx->svc->roe;
    struct kv_id active, staged;
    KV_TRY(roe->ops->list(roe, &active, &staged));
    if (!kv_id_is_zero(&active)) {
        return KV_E_ROLLBACK_DETECTED;
    }
    if (!kv_id_is_zero(&staged)) {
        KV_TRY(roe->ops->discard(roe, &staged));
    }
    KV_TRY(tx->svc->env->random(tx->svc->env->ctx, tx->root.b, sizeof tx->root.b));
    KV_TRY(roe->ops->create(roe, &tx->root));
    kv_buf_reset(&tx->blob);
    KV_TRY(roe->ops->wrap(roe, &tx->root, tx->secret, &tx->blob));
    return kv_ktree_set_root(tx->svc->tree, &tx->root, tx->secret);
}

/* The one transaction that waits for the provider: two instances that start at once on an empty database must not make
 * a root each. KV_E_STALE: another one did. */
static KV_RC first_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct first_tx *tx = ctx;
    struct kv_id there;
    KV_TRY(kv_store_cluster_lock(pg, info));
    enum kv_err rc = root_in_database(pg, info, &there);
    if (rc != KV_E_MISSING) {
        return rc == KV_OK ? kv_fail(info, KV_E_STALE, "another instance made the first root") : rc;
    }
    pthread_mutex_lock(&tx->svc->roe_mutex);
    rc = stage_first(tx);
    pthread_mutex_unlock(&tx->svc->roe_mutex);
    KV_TRY(rc == KV_OK ? rc : kv_fail(info, rc, "the first root of erasure could not be made"));
    struct kv_store_root_set root = {
        .root_id = tx->root, .provider = tx->svc->roe->ops->name, .blob = kv_buf_bytes(&tx->blob)};
    KV_TRY(kv_store_kroot_init(pg, &root, info));
    struct svc_tree_store store = {.pg = pg, .info = info};
    struct kv_ktree_store rows = svc_tree_store(&store);
    KV_TRY(kv_ktree_format(tx->svc->tree, &rows));
    struct kv_audit_event event = {
        .op = KV_AUDIT_ROOT_CHANGE, .actor_role = "system", .subject = tx->root, .subject_prefix = "rot"};
    return svc_audit(tx->svc, pg, &event, KV_BYTES(NULL, 0), info);
}

static KV_RC first_root(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info)
{
    struct first_tx tx = {.svc = svc};
    struct kv_roe_receipt receipt;
    struct kv_id none = {0};
    KV_TRY(kv_secret_random(svc->env, 32, &tx.secret));
    kv_buf_init(&tx.blob, WRAPPED_BYTES_MAX);
    enum kv_err rc = kv_pg_tx(pg, KV_TX_FIRST_ROOT, first_tx, &tx, info, NULL);
    kv_buf_done(&tx.blob);
    kv_secret_free(tx.secret);
    if (rc == KV_OK) {
        rc = svc->roe->ops->commit(svc->roe, &tx.root, &none, &receipt);
    }
    if (rc == KV_OK) {
        kv_log(KV_LOG_INFO, "root", "created", KV_FT("provider", svc->roe->ops->describe(svc->roe)));
    }
    return rc;
}

/* --- start ------------------------------------------------------------------------------------------------------- */

static KV_RC settle(struct kv_svc *svc, const struct kv_store_kroot *kroot, const struct kv_id *active,
                    const struct kv_id *staged, struct kv_errinfo *info)
{
    struct kv_roe_receipt receipt;
    if (kv_id_equal(&kroot->root_id, active)) {
        return kv_id_is_zero(staged) ? KV_OK : svc->roe->ops->discard(svc->roe, staged);
    }
    if (!kv_id_equal(&kroot->root_id, staged)) {
        bool empty = kv_id_is_zero(active) && kv_id_is_zero(staged);
        bool lasts = strcmp(svc->roe->ops->name, "memory") != 0;
        svc_quarantine(svc, !empty ? text_rollback : lasts ? text_empty : text_memory);
        return KV_OK;
    }
    if (!kv_id_is_zero(active)) {
        return KV_OK; /* the eraser destroys the old one as a step of its batch */
    }
    struct kv_id none = {0};
    enum kv_err rc = svc->roe->ops->commit(svc->roe, staged, &none, &receipt);
    return svc_root_said(svc, rc, info, "the root of erasure could not be made active");
}

/* Taken, not only read: a process that was killed may have a commit under way, and what is staged is the root of that
 * commit. The provider is asked after that, and the fence once more before anything is done about what it said. */
static KV_RC settle_taken(struct kv_svc *svc, struct kv_pg *pg, const struct kv_store_kroot *kroot,
                          struct kv_errinfo *info)
{
    struct kv_id active, staged;
    KV_TRY(list(svc, info, &active, &staged));
    KV_TRY(svc_root_still(pg, kroot->fence, info));
    return settle(svc, kroot, &active, &staged, info);
}

/* A root that moved to another provider than root.provider names is used where it is. */
static KV_RC start_provider(struct kv_svc *svc, const struct kv_store_kroot *kroot, struct kv_errinfo *info)
{
    struct kv_errinfo why = {0};
    pthread_mutex_lock(&svc->roe_mutex);
    enum kv_err rc = svc_provider_follow(svc, kroot->provider, &why);
    pthread_mutex_unlock(&svc->roe_mutex);
    if (rc != KV_OK) {
        return kv_fail(info, rc,
                       "the database's root is held by the provider \"%.20s\"; set root.provider to it: %.90s",
                       kroot->provider, why.text);
    }
    if (strcmp(kroot->provider, svc->conf.root_provider) != 0) {
        kv_log(KV_LOG_WARN, "root", "other-provider", KV_FT("active", kroot->provider),
               KV_FT("configured", svc->conf.root_provider), KV_FT("text", "set root.provider to the active one"));
    }
    return KV_OK;
}

static KV_RC start_once(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info)
{
    struct kv_store_kroot kroot = {0};
    enum kv_err rc = kv_store_kroot_get(pg, info, &kroot);
    rc = rc == KV_OK ? start_provider(svc, &kroot, info) : rc;
    if (rc == KV_OK) {
        kv_store_kroot_done(&kroot);
        rc = svc_root_take(svc, pg, KV_TX_ROOT_TAKE, info, &kroot);
        if (rc == KV_OK) {
            svc->start_fence = kroot.fence;
            rc = settle_taken(svc, pg, &kroot, info);
        } else if (rc == KV_E_STALE) { /* another instance erases: what is staged is its own affair */
            rc = svc_root_check(svc, pg, info);
            rc = rc == KV_OK ? kv_store_kroot_get(pg, info, &kroot) : rc;
        }
    }
    if (rc == KV_OK && atomic_load(&svc->quarantine) == NULL) {
        rc = svc_root_use(svc, &kroot, info);
    }
    kv_store_kroot_done(&kroot);
    return rc;
}

KV_RC svc_root_start(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info)
{
    enum kv_err rc = KV_E_BUSY;
    KV_TRY(svc_anchor_check(svc, pg, info)); /* before anything is settled between an older database and its root */
    if (atomic_load(&svc->quarantine) != NULL) {
        return KV_OK;
    }
    for (int tries = 0; (rc == KV_E_BUSY || rc == KV_E_STALE) && tries < FIRST_TRIES; tries++) {
        rc = start_once(svc, pg, info);
        if (rc == KV_E_MISSING) {
            rc = first_root(svc, pg, info);
        }
    }
    if (rc == KV_E_ROLLBACK_DETECTED) {
        if (atomic_load(&svc->quarantine) == NULL) {
            svc_quarantine(svc, text_lost); /* the provider has a root and the database has none */
        }
        return KV_OK;
    }
    return rc;
}
