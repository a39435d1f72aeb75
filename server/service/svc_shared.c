/*
 * See svc_shared.h. A scope's name is found like a client's own id, by a keyed hash, and sealed the same way, under the
 * scope's own K_meta.
 */
#include "server/service/svc_shared.h"

#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"
#include "dataplane/crypto/hash.h"
#include "server/service/svc_hold.h"
#include "server/service/svc_rules.h"

#include <stdio.h>
#include <string.h>

#define DUE_AT_ONCE 64

/* --- sharing ----------------------------------------------------------------------------------------------------- */

/* No client's own id has this hash: none has a zero byte in it. */
static KV_RC hash_name(const struct svc_share *share, const struct kv_store_session *session, uint8_t ret_hmac[32])
{
    static const char purpose[] = "\0scope";
    const char *texts[] = {session->model_id, session->model_revision, session->model_fingerprint, share->name};
    enum { TEXTS = sizeof texts / sizeof texts[0] };
    struct kv_secret *key KV_CLEANUP(kv_secret_freep) = NULL;
    struct kv_bytes parts[1 + TEXTS] = {KV_BYTES(purpose, sizeof purpose)};
    for (size_t i = 0; i < TEXTS; i++) { /* each with its NUL, so that no two tuples give the same bytes */
        parts[1 + i] = KV_BYTES(texts[i], strlen(texts[i]) + 1);
    }
    KV_TRY(svc_external_key(share->call->svc, share->rows, share->tenant, true, &key));
    return kv_hmac_sha256(key, parts, 1 + TEXTS, ret_hmac);
}

static KV_RC name_scope(const struct svc_share *share, const struct kv_store_session *scope,
                        const struct kv_secret *slot, struct kv_store_external *external, struct kv_errinfo *info)
{
    struct kv_secret *secret KV_CLEANUP(kv_secret_freep) = NULL;
    uint8_t fingerprint[KV_KEY_FINGERPRINT_BYTES];
    struct kv_buf sealed KV_CLEANUP(kv_buf_done);
    kv_buf_init(&sealed, KV_EXTERNAL_SEALED_MAX);
    KV_TRY(kv_scope_secret(slot, &scope->tenant, &scope->id, &secret));
    KV_TRY(kv_scope_fingerprint(secret, fingerprint));
    KV_TRY(kv_store_session_set_fingerprint(share->pg, &scope->id, fingerprint, info));
    KV_TRY(svc_external_seal(share->call->svc, slot, scope, share->name, &sealed));
    external->sealed = sealed.data;
    external->sealed_len = sealed.len;
    return kv_store_session_set_external(share->pg, &scope->id, external, info);
}

static KV_RC record(const struct svc_share *share, const struct kv_store_session *scope,
                    const struct kv_store_session *session, struct kv_errinfo *info)
{
    const struct kv_principal *who = &share->call->who;
    struct kv_audit_event event = {.op = KV_AUDIT_SESSION_CREATE,
                                   .tenant = scope->tenant,
                                   .session = scope->id,
                                   .actor = who->key,
                                   .actor_role = (who->roles & KV_ROLE_ENGINE) != 0 ? "engine" : "tenant_admin",
                                   .subject = session->id,
                                   .subject_prefix = "ses"};
    return svc_audit(share->call->svc, share->pg, &event, KV_BYTES(NULL, 0), info);
}

static KV_RC make_scope(const struct svc_share *share, const uint8_t hmac[32], struct kv_store_session *session,
                        struct kv_errinfo *info)
{
    struct kv_store_external external;
    struct kv_secret *slot KV_CLEANUP(kv_secret_freep) = NULL;
    struct kv_store_session *scope KV_CLEANUP(kv_freep) = kv_alloc(sizeof *scope);
    if (scope == NULL) {
        return KV_E_NO_MEMORY;
    }
    *scope = (struct kv_store_session){.tenant = session->tenant,
                                       .created_by = session->created_by,
                                       .created_us = session->created_us,
                                       .expires_us = share->expires_us,
                                       .is_scope = true};
    memcpy(scope->model_id, session->model_id, sizeof scope->model_id);
    memcpy(scope->model_revision, session->model_revision, sizeof scope->model_revision);
    memcpy(scope->model_fingerprint, session->model_fingerprint, sizeof scope->model_fingerprint);
    memcpy(scope->class, session->class, sizeof scope->class);
    memcpy(scope->region, session->region, sizeof scope->region);
    KV_TRY(kv_id_new(share->call->svc->env, &scope->id));
    KV_TRY(kv_store_session_insert(share->pg, scope, info));
    KV_TRY(kv_ktree_slot(share->call->svc->tree, share->rows, &scope->tree, scope->directory_slot, scope->slot, true,
                         &slot));
    memcpy(external.hmac, hmac, sizeof external.hmac);
    KV_TRY(name_scope(share, scope, slot, &external, info));
    session->shared = scope->id;
    return record(share, scope, session, info);
}

KV_RC svc_share(const struct svc_share *share, struct kv_store_session *session, struct kv_errinfo *info)
{
    uint8_t hmac[32];
    KV_TRY(kv_store_tenant_system_slot(share->pg, share->tenant, info));
    KV_TRY(hash_name(share, session, hmac));
    enum kv_err rc = kv_store_scope_refer(share->pg, &session->tenant, hmac, info, &session->shared);
    return rc == KV_E_NOT_FOUND ? make_scope(share, hmac, session, info) : rc;
}

KV_RC svc_shared_open(struct kv_call *call, const struct svc_session *session, bool *ret_there)
{
    struct svc_session scope;
    if (kv_id_is_zero(&session->shared)) {
        return kv_fail_at(&call->info, KV_E_INVALID_REQUEST, "/shared_blocks", "the session shares no scope");
    }
    enum kv_err rc = svc_session_open(call, &session->shared, &scope);
    if (rc == KV_E_SESSION_ERASED || rc == KV_E_SESSION_LOST) {
        call->erasure = (struct kv_id){0}; /* the session itself lives */
        call->info = (struct kv_errinfo){0};
        *ret_there = false;
        return KV_OK;
    }
    *ret_there = rc == KV_OK;
    return rc;
}

/* --- leaving ----------------------------------------------------------------------------------------------------- */

/* The policy that holds for sessions of this class says that a scope stays while others keep it. A policy that cannot
 * be read says nothing, and the scope goes. */
static bool stays(const struct svc_rules *rules, const struct kv_store_shares *shares)
{
    const struct kv_policy *policy = rules == NULL ? NULL : kv_policy_class(rules->set, shares->class);
    return policy != NULL && policy->retain_shared;
}

static KV_RC mark(struct kv_pg *pg, const struct svc_leaving *leaving, const struct kv_store_shares *list, size_t count,
                  struct kv_errinfo *info)
{
    struct svc_rules *rules KV_CLEANUP(svc_rules_freep) = NULL;
    enum kv_err rc = svc_rules_read(pg, &leaving->as->tenant, info, &rules);
    KV_TRY(rc == KV_E_POLICY_INVALID ? KV_OK : rc);
    for (size_t i = 0; i < count; i++) {
        if (!stays(rules, &list[i])) {
            KV_TRY(kv_store_scope_take(pg, &leaving->sessions, &list[i], info));
        }
    }
    return KV_OK;
}

/* Hashes of texts are salted with the id of the erasure that was asked for, or of its group: only the latter is this
 * one's, too. */
static KV_RC fill(struct kv_svc *svc, const struct kv_store_erasure *as, const struct kv_id *scope,
                  struct kv_store_erasure *ret_row)
{
    *ret_row = (struct kv_store_erasure){.tenant = as->tenant,
                                         .session = *scope,
                                         .state = KV_ERASURE_REQUESTED,
                                         .sessions = 1,
                                         .requested_by = as->requested_by,
                                         .group = as->group};
    ret_row->at_us[KV_ERASURE_REQUESTED] = svc->env->realtime_us(svc->env->ctx);
    snprintf(ret_row->basis, sizeof ret_row->basis, "%s", as->basis);
    snprintf(ret_row->requested_role, sizeof ret_row->requested_role, "%s", as->requested_role);
    if (!kv_id_is_zero(&as->group)) {
        snprintf(ret_row->reason_sha256, sizeof ret_row->reason_sha256, "%s", as->reason_sha256);
        snprintf(ret_row->reference_sha256, sizeof ret_row->reference_sha256, "%s", as->reference_sha256);
    }
    return kv_id_new(svc->env, &ret_row->id);
}

static KV_RC erase(struct kv_svc *svc, struct kv_pg *pg, struct kv_store_erasure *row, struct kv_errinfo *info)
{
    KV_TRY(kv_store_revocation_next(pg, info, &row->revocation_seq));
    KV_TRY(svc_hold_block(pg, row, info)); /* one that covers a session covers what it shares */
    KV_TRY(kv_store_erasure_insert(pg, row, info));
    return svc_erase_record(svc, pg, row, info);
}

struct leave {
    struct kv_svc *svc;
    struct kv_pg *pg;
    const struct svc_leaving *leaving;
    struct kv_errinfo *info;
    struct kv_store_erasure row;
};

/* A scope is listed once for each class of its sessions; the second time it is not due any more. */
static KV_RC take_along(struct leave *leave, const struct kv_id *scope, struct svc_group_taken *taken)
{
    bool due = false;
    KV_TRY(kv_store_scope_lock(leave->pg, scope, leave->info, &due));
    if (!due) {
        return KV_OK;
    }
    KV_TRY(fill(leave->svc, leave->leaving->as, scope, &leave->row));
    KV_TRY(erase(leave->svc, leave->pg, &leave->row, leave->info));
    taken->rows[taken->count].session = *scope;
    taken->rows[taken->count].state = leave->row.state;
    taken->rows[taken->count++].erasure = leave->row.id;
    return KV_OK;
}

KV_RC svc_shared_leave(struct kv_svc *svc, struct kv_pg *pg, const struct svc_leaving *leaving, struct kv_errinfo *info,
                       struct svc_group_taken *taken)
{
    size_t count = 0;
    struct kv_store_shares *list KV_CLEANUP(kv_freep) = kv_alloc_array(leaving->sessions.count + 1, sizeof *list);
    struct leave *leave KV_CLEANUP(kv_freep) = kv_alloc(sizeof *leave);
    if (list == NULL || leave == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(kv_store_scopes_of(pg, &leaving->sessions, info, list, &count));
    KV_TRY(count == 0 ? KV_OK : mark(pg, leaving, list, count, info));
    *leave = (struct leave){.svc = svc, .pg = pg, .leaving = leaving, .info = info};
    for (size_t i = 0; i < count; i++) {
        KV_TRY(take_along(leave, &list[i].scope, taken));
    }
    return KV_OK;
}

static KV_RC count_would(struct kv_pg *pg, const struct kv_id *tenant, const struct kv_store_shares *list, size_t count,
                         struct svc_shared_would *would)
{
    struct svc_rules *rules KV_CLEANUP(svc_rules_freep) = NULL;
    struct kv_errinfo info = {0};
    enum kv_err rc = svc_rules_read(pg, tenant, &info, &rules);
    KV_TRY(rc == KV_E_POLICY_INVALID ? KV_OK : rc);
    for (size_t i = 0; i < count;) { /* those of one scope lie together */
        bool goes = list[i].others == 0;
        size_t next = i;
        for (; next < count && kv_id_equal(&list[next].scope, &list[i].scope); next++) {
            goes = goes || !stays(rules, &list[next]);
        }
        would->erased += goes;
        would->retained += !goes;
        i = next;
    }
    return KV_OK;
}

KV_RC svc_shared_would(struct kv_pg *pg, const struct kv_id *tenant, const struct kv_store_ids *sessions,
                       struct kv_errinfo *info, struct svc_shared_would *ret_would)
{
    size_t count = 0;
    struct kv_store_shares *list KV_CLEANUP(kv_freep) = kv_alloc_array(sessions->count + 1, sizeof *list);
    *ret_would = (struct svc_shared_would){.erased = 0};
    if (list == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(kv_store_scopes_of(pg, sessions, info, list, &count));
    return count == 0 ? KV_OK : count_would(pg, tenant, list, count, ret_would);
}

void svc_shared_begin(struct kv_svc *svc, struct kv_pg *pg, const struct kv_id *tenant,
                      const struct svc_group_taken *taken)
{
    struct kv_store_erasure *row KV_CLEANUP(kv_freep) = kv_alloc(sizeof *row);
    for (size_t i = 0; row != NULL && i < taken->count; i++) {
        *row = (struct kv_store_erasure){.id = taken->rows[i].erasure,
                                         .tenant = *tenant,
                                         .session = taken->rows[i].session,
                                         .state = taken->rows[i].state};
        svc_erase_begin(svc, pg, row);
    }
}

/* --- what became due later --------------------------------------------------------------------------------------- */

struct due_tx {
    struct kv_svc *svc;
    const struct kv_store_scope_due *scope;
    struct kv_store_erasure erasure;
};

static KV_RC due_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct due_tx *tx = ctx;
    const struct kv_store_erasure as = {.tenant = tx->scope->tenant, .basis = "other", .requested_role = "system"};
    int64_t head = 0;
    bool due = false;
    KV_TRY(kv_store_revocation_next(pg, info, &head)); /* its lock comes first, in the order of all requests */
    KV_TRY(kv_store_scope_lock(pg, &tx->scope->id, info, &due));
    if (!due) {
        return kv_fail(info, KV_E_STALE, "a session has come to the scope");
    }
    KV_TRY(fill(tx->svc, &as, &tx->scope->id, &tx->erasure));
    return erase(tx->svc, pg, &tx->erasure, info);
}

KV_RC svc_shared_end_due(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info, bool *ret_more)
{
    struct kv_store_scope_due list[DUE_AT_ONCE];
    size_t count = 0;
    KV_TRY(kv_store_scopes_due(pg, DUE_AT_ONCE, info, list, &count));
    for (size_t i = 0; i < count && !atomic_load(&svc->stopping); i++) {
        struct due_tx tx = {.svc = svc, .scope = &list[i]};
        enum kv_err rc = kv_pg_tx(pg, KV_TX_ERASE_SCOPE, due_tx, &tx, info, NULL);
        if (rc != KV_E_STALE) {
            KV_TRY(rc);
            svc_erase_begin(svc, pg, &tx.erasure);
        }
    }
    *ret_more = *ret_more || count == DUE_AT_ONCE;
    return KV_OK;
}
