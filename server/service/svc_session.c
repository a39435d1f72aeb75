/*
 * Sessions as the path of a transfer needs them: in memory, with their keys open. The first use of a session in this
 * process, and the first after a lost lease, asks the database; every later one does not.
 */
#include "server/service/svc_int.h"

#include "dataplane/base/id.h"
#include "dataplane/base/log.h"
#include "dataplane/base/mem.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define OPEN_TRIES 3

/* --- registry ---------------------------------------------------------------------------------------------------- */

static bool lookup(struct kv_svc *svc, const struct kv_id *id, struct svc_session *ret_session)
{
    pthread_mutex_lock(&svc->registry_mutex);
    const struct svc_session *found = kv_idmap_get(&svc->sessions, id);
    if (found != NULL) {
        *ret_session = *found;
    }
    pthread_mutex_unlock(&svc->registry_mutex);
    return found != NULL;
}

bool svc_session_known(struct kv_svc *svc, const struct kv_id *session)
{
    struct svc_session known;
    return lookup(svc, session, &known);
}

/* Makes room by forgetting one: of a revoked session the database tells again, the keys of another are closed and its
 * next use opens it again. */
static void forget_one(struct kv_svc *svc)
{
    size_t position = 0;
    for (struct svc_session *session = kv_idmap_next(&svc->sessions, &position); session != NULL;
         session = kv_idmap_next(&svc->sessions, &position)) {
        if (session->used_us > session->recorded_us && !session->revoked) {
            continue; /* its last use is yet to be written */
        }
        if (session->revoked || kv_keyring_drop(svc->keyring, &session->id, false, kv_now_ns(svc->env)) == KV_OK) {
            struct kv_id id = session->id;
            kv_free(kv_idmap_take(&svc->sessions, &id));
            return;
        }
    }
}

void svc_session_place(struct kv_svc *svc, const struct kv_id *id, uint32_t policy_place)
{
    pthread_mutex_lock(&svc->registry_mutex);
    struct svc_session *known = kv_idmap_get(&svc->sessions, id);
    if (known != NULL) {
        known->policy_place = policy_place;
    }
    pthread_mutex_unlock(&svc->registry_mutex);
}

/* A revocation is never overwritten by what was read before it. */
static KV_RC remember(struct kv_svc *svc, const struct svc_session *session)
{
    enum kv_err rc = KV_OK;
    pthread_mutex_lock(&svc->registry_mutex);
    struct svc_session *known = kv_idmap_get(&svc->sessions, &session->id);
    if (known == NULL) {
        if (svc->sessions.count >= (size_t)KV_MAX_SESSIONS_OPEN) {
            forget_one(svc);
        }
        known = kv_alloc(sizeof *known);
        rc = known == NULL ? KV_E_NO_MEMORY : kv_idmap_put(&svc->sessions, &session->id, known);
        if (rc != KV_OK) {
            kv_free(known);
        } else {
            *known = *session;
        }
    } else if (session->revoked) {
        known->revoked = true;
        known->erasure = kv_id_is_zero(&session->erasure) ? known->erasure : session->erasure;
    }
    pthread_mutex_unlock(&svc->registry_mutex);
    return rc;
}

/* --- opening ----------------------------------------------------------------------------------------------------- */

struct open_tx {
    struct kv_svc *svc;
    const struct kv_store_session *row;
    struct kv_secret *slot;
};

static KV_RC open_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct open_tx *tx = ctx;
    struct kv_store_kroot kroot = {0};
    KV_TRY(kv_store_kroot_share(pg, info, &kroot)); /* no re-key between the root and the rows below it */
    enum kv_err rc = svc_root_use(tx->svc, &kroot, info);
    kv_store_kroot_done(&kroot);
    KV_TRY(rc);
    struct svc_tree_store store = {.pg = pg, .info = info};
    struct kv_ktree_store rows = svc_tree_store(&store);
    kv_secret_free(tx->slot);
    tx->slot = NULL;
    return kv_ktree_slot(tx->svc->tree, &rows, &tx->row->tree, tx->row->directory_slot, tx->row->slot, false,
                         &tx->slot);
}

KV_RC svc_session_keys(struct kv_svc *svc, const struct kv_id *tenant, const struct kv_id *session,
                       const struct kv_secret *scope_secret)
{
    enum kv_err rc = KV_E_BUSY;
    for (int tries = 0; rc == KV_E_BUSY && tries < OPEN_TRIES; tries++) { /* another opening may take the room */
        if (kv_keyring_count(svc->keyring) >= svc->keys_max && !kv_keyring_evict(svc->keyring)) {
            return KV_E_BUSY;
        }
        rc = kv_keyring_open(svc->keyring, tenant, session, scope_secret);
    }
    return rc;
}

static uint64_t opening_begin(struct kv_svc *svc)
{
    pthread_mutex_lock(&svc->registry_mutex);
    uint64_t epoch = svc->opening_epoch;
    svc->opening[epoch % 2]++;
    pthread_mutex_unlock(&svc->registry_mutex);
    return epoch;
}

static void opening_end(struct kv_svc *svc, uint64_t epoch)
{
    pthread_mutex_lock(&svc->registry_mutex);
    if (--svc->opening[epoch % 2] == 0) {
        pthread_cond_broadcast(&svc->opening_ended);
    }
    pthread_mutex_unlock(&svc->registry_mutex);
}

/* Under registry_mutex. */
static bool await_epoch(struct kv_svc *svc, uint64_t epoch, const struct timespec *until)
{
    while (svc->opening[epoch % 2] > 0 &&
           pthread_cond_timedwait(&svc->opening_ended, &svc->registry_mutex, until) != ETIMEDOUT) {
    }
    return svc->opening[epoch % 2] == 0;
}

KV_RC svc_session_settle(struct kv_svc *svc, uint64_t deadline_ns, struct kv_errinfo *info)
{
    struct timespec until = kv_timespec_of(deadline_ns);
    pthread_mutex_lock(&svc->registry_mutex);
    /* Those that a call before this one gave up on have the other counter; it must be free before it is used again. */
    bool settled = await_epoch(svc, svc->opening_epoch + 1, &until);
    if (settled) {
        settled = await_epoch(svc, svc->opening_epoch++, &until);
    }
    pthread_mutex_unlock(&svc->registry_mutex);
    return settled ? KV_OK : kv_fail(info, KV_E_BUSY, "the opening of a session that began before still runs");
}

static KV_RC open_keys_now(struct kv_call *call, const struct kv_store_session *row)
{
    struct open_tx tx = {.svc = call->svc, .row = row};
    struct kv_secret *scope = NULL;
    enum kv_err rc = KV_E_STALE;
    for (int tries = 0; rc == KV_E_STALE && tries < OPEN_TRIES; tries++) { /* the root changed meanwhile */
        rc = kv_pg_tx(call->pg, KV_TX_OPEN_SESSION, open_tx, &tx, &call->info, NULL);
    }
    if (rc == KV_OK) {
        rc = kv_scope_secret(tx.slot, &row->tenant, &row->id, &scope);
    }
    if (rc == KV_OK) {
        rc = svc_session_keys(call->svc, &row->tenant, &row->id, scope);
    }
    kv_secret_free(scope);
    kv_secret_free(tx.slot);
    return rc;
}

static KV_RC open_keys(struct kv_call *call, const struct kv_store_session *row)
{
    uint64_t epoch = opening_begin(call->svc);
    enum kv_err rc = open_keys_now(call, row);
    opening_end(call->svc, epoch);
    return rc;
}

void svc_model_of_row(const struct kv_store_session *row, struct kv_model *ret_model)
{
    *ret_model = (struct kv_model){0};
    snprintf(ret_model->id, sizeof ret_model->id, "%.128s", row->model_id);
    snprintf(ret_model->revision, sizeof ret_model->revision, "%.128s", row->model_revision);
    if (kv_hex_decode(row->model_fingerprint, ret_model->fingerprint, sizeof ret_model->fingerprint) != KV_OK) {
        memset(ret_model->fingerprint, 0, sizeof ret_model->fingerprint);
    }
}

KV_RC svc_session_row(struct kv_pg *pg, const struct kv_id *session, const struct kv_id *tenant,
                      struct kv_errinfo *info, struct kv_store_session *ret_row)
{
    enum kv_err rc = kv_store_session_get(pg, session, info, ret_row);
    if (rc == KV_E_NOT_FOUND || (rc == KV_OK && !kv_id_equal(&ret_row->tenant, tenant))) {
        return kv_fail(info, KV_E_NOT_FOUND, "no such session");
    }
    return rc;
}

static KV_RC load(struct kv_call *call, const struct kv_id *id, struct svc_session *ret_session)
{
    struct kv_store_session *row KV_CLEANUP(kv_freep) = kv_alloc(sizeof *row);
    if (row == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(svc_session_row(call->pg, id, &call->who.tenant, &call->info, row));
    struct svc_session session = {.id = row->id,
                                  .tenant = row->tenant,
                                  .revoked = row->state != KV_SESSION_ACTIVE,
                                  .lost = row->state == KV_SESSION_LOST,
                                  .erasure = row->erasure,
                                  .recorded_us = row->last_used_us,
                                  .shared = row->shared,
                                  .is_scope = row->is_scope,
                                  .created_us = row->created_us};
    svc_model_of_row(row, &session.model);
    snprintf(session.class_name, sizeof session.class_name, "%s", row->class);
    snprintf(session.region, sizeof session.region, "%s", row->region);
    KV_TRY(kv_policy_table_hash(call->svc->decisions, session.class_name, &session.class_hash));
    KV_TRY(kv_policy_table_hash(call->svc->decisions, session.region, &session.region_hash));
    if (!session.revoked) {
        KV_TRY(open_keys(call, row));
    }
    KV_TRY(remember(call->svc, &session));
    *ret_session = session;
    return KV_OK;
}

static KV_RC refuse_revoked(struct kv_call *call, const struct svc_session *session)
{
    if (session->lost) {
        return svc_session_lost(&call->info);
    }
    call->erasure = session->erasure;
    return kv_fail(&call->info, KV_E_SESSION_ERASED,
                   "this session was erased; its blocks can only be recomputed in a new one");
}

KV_RC svc_session_open(struct kv_call *call, const struct kv_id *id, struct svc_session *ret_session)
{
    struct svc_session session;
    bool known = lookup(call->svc, id, &session);
    if (known && !kv_id_equal(&session.tenant, &call->who.tenant)) {
        return kv_fail(&call->info, KV_E_NOT_FOUND, "no such session");
    }
    if (!known || (!session.revoked && !kv_keyring_is_open(call->svc->keyring, id))) {
        KV_TRY(load(call, id, &session));
    }
    if (session.revoked) {
        if (kv_id_is_zero(&session.erasure)) { /* a revocation that came by its number says nothing of the erasure */
            KV_IGNORE(load(call, id, &session), "it is refused in any case");
        }
        return refuse_revoked(call, &session);
    }
    kv_policy_table_expect(call->svc->decisions, session.policy_place);
    svc_use_note(call->svc, id, call->svc->env->realtime_us(call->svc->env->ctx));
    *ret_session = session;
    return KV_OK;
}

/* --- revoking ---------------------------------------------------------------------------------------------------- */

static void tell_engines(struct kv_svc *svc, const struct kv_id *tenant, const struct kv_id *session)
{
    pthread_mutex_lock(&svc->registry_mutex);
    svc->revocations[svc->revocation_count++ % SVC_REVOCATION_RING] =
        (struct svc_revocation){.session = *session, .tenant = *tenant};
    pthread_mutex_unlock(&svc->registry_mutex);
}

KV_RC svc_session_revoke(struct kv_svc *svc, const struct kv_id *tenant, const struct kv_id *session,
                         const struct kv_id *erasure, uint64_t deadline_ns)
{
    struct svc_session before, revoked = {.id = *session, .tenant = *tenant, .revoked = true, .erasure = *erasure};
    svc_views_drop(svc->views, session);
    bool told = lookup(svc, session, &before) && before.revoked;
    KV_TRY(remember(svc, &revoked));
    if (!told) {
        tell_engines(svc, tenant, session);
    }
    KV_TRY(kv_engine_fence(svc->engine, session, deadline_ns));
    return kv_keyring_drop(svc->keyring, session, true, deadline_ns);
}

const char *svc_revoke_text(enum kv_err rc)
{
    return rc == KV_E_TIMEOUT ? "a session that is being erased is still in use here"
           : rc == KV_E_LIMIT ? "this process has refused as many sessions for good as it can remember; start it again"
                              : "a session that is being erased could not be closed here";
}
