/*
 * What a caller sees of an erasure: asking for one, looking at it. The work is the eraser's (eraser.c). The request is
 * durable before it is answered: sessions, revocations, jobs and audit entries in one transaction.
 */
#include "server/service/erase_request.h"
#include "server/service/janitor.h"

#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"
#include "dataplane/crypto/hash.h"
#include "server/service/svc_hold.h"
#include "server/service/svc_rules.h"
#include "server/service/svc_shared.h"
#include "server/store/store_session.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define CLOCK_SKEW_US (60 * UINT64_C(1000000)) /* between a caller and this server */

const char *svc_erase_claim(enum kv_erasure_state state)
{
    static const char *const claims[] = {
        [KV_ERASURE_REQUESTED] = "refused by this server from now on; the key still exists",
        [KV_ERASURE_FENCED] = "E0: no instance uses the session; the key still exists",
        [KV_ERASURE_STAGED] = "E0: no instance uses the session; the key still exists",
        [KV_ERASURE_REKEYED] = "E0: no instance uses the session; the old root still exists",
        [KV_ERASURE_DESTROYED] = "the old root is destroyed; memory of this server may still hold what it had opened",
        [KV_ERASURE_PURGED] = "E2 reached: the old root is destroyed and memory is wiped; not yet verified",
        [KV_ERASURE_VERIFIED] = "E2 verified; the certificate is being issued",
        [KV_ERASURE_CERTIFIED] = "E2: the session's key is destroyed; see the certificate and its limits",
        [KV_ERASURE_BLOCKED_HOLD] = "a hold forbids it for the time being; the session is refused, its key exists",
        [KV_ERASURE_NEEDS_APPROVAL] = "waits for an approval; nothing is claimed",
        [KV_ERASURE_QUARANTINED] = "verification failed; nothing is claimed and an operator has to act",
    };
    return claims[state];
}

KV_RC svc_erase_hash(const struct kv_id *salt, const char *text, char ret_hex[KV_SHA256_HEX_SIZE])
{
    uint8_t hash[32];
    ret_hex[0] = '\0';
    if (text == NULL) {
        return KV_OK;
    }
    struct kv_bytes parts[] = {KV_BYTES(salt->b, sizeof salt->b), KV_BYTES(text, strlen(text))};
    KV_TRY(kv_sha256_parts(parts, 2, hash));
    kv_hex_encode(hash, sizeof hash, ret_hex);
    return KV_OK;
}

uint64_t svc_erase_eta_ms(struct kv_svc *svc, uint64_t erasures_ahead)
{
    uint64_t usual_us = atomic_load(&svc->erase_usual_us);
    return (erasures_ahead / KV_ERASE_BATCH + 1) * (usual_us == 0 ? 500 : usual_us / 1000 + 1);
}

static void view_of(struct kv_svc *svc, const struct kv_store_erasure *row, struct kv_erasure_view *ret_view)
{
    *ret_view = (struct kv_erasure_view){.id = row->id,
                                         .tenant = row->tenant,
                                         .scope = row->whole_tenant ? KV_SCOPE_TENANT : KV_SCOPE_SESSION,
                                         .session = row->session,
                                         .group = row->group,
                                         .batch = row->batch,
                                         .hold = row->hold,
                                         .blocked_us = row->at_us[KV_ERASURE_BLOCKED_HOLD],
                                         .unblocked_us = row->unblocked_us,
                                         .state = row->state,
                                         .claim = svc_erase_claim(row->state),
                                         .requested_us = row->at_us[KV_ERASURE_REQUESTED],
                                         .one_step = row->whole_tenant,
                                         .cutoff_us = row->whole_tenant ? row->at_us[KV_ERASURE_REQUESTED] : 0,
                                         .sessions = row->sessions};
    memcpy(ret_view->step_us, row->at_us, sizeof ret_view->step_us);
    snprintf(ret_view->basis, sizeof ret_view->basis, "%s", row->basis);
    if (row->state == KV_ERASURE_CERTIFIED) {
        ret_view->certificate = row->certificate;
        ret_view->sessions_certified = row->sessions;
    } else if (row->state == KV_ERASURE_QUARANTINED) {
        ret_view->sessions_quarantined = row->sessions;
        snprintf(ret_view->quarantine_reason, sizeof ret_view->quarantine_reason,
                 row->whole_tenant ? "verification found the tenant's sessions still readable"
                                   : "verification found the session still readable");
    } else if (!kv_erasure_blocked(ret_view)) {
        ret_view->eta_ms = svc_erase_eta_ms(svc, atomic_load(&svc->erasures_open));
    }
}

static void add_instance(struct kv_erasure_view *view, const struct kv_store_erasure_instance *part)
{
    bool expired = part->fenced_how == KV_FENCED_EXPIRED || part->purged_how == KV_FENCED_EXPIRED;
    if (part->fenced_how != KV_FENCED_NOT && view->instance_count < KV_ERASURE_INSTANCES) {
        view->instances[view->instance_count++] =
            (struct kv_erasure_instance){.id = part->instance,
                                         .how = kv_fenced_how_name(expired ? KV_FENCED_EXPIRED : part->fenced_how),
                                         .fenced_us = part->fenced_us,
                                         .purged_us = part->purged_us};
    }
}

/* Who took part in these, once they are fenced. */
static KV_RC add_instances(struct kv_call *call, struct kv_erasure_view *views, size_t count)
{
    size_t max = count * KV_ERASURE_INSTANCES, found = 0, wanted = 0;
    struct kv_store_erasure_instance *parts KV_CLEANUP(kv_freep) = kv_alloc_array(max + 1, sizeof *parts);
    struct kv_id *ids KV_CLEANUP(kv_freep) = kv_alloc_array(count + 1, sizeof *ids);
    if (parts == NULL || ids == NULL) {
        return KV_E_NO_MEMORY;
    }
    for (size_t i = 0; i < count; i++) {
        if (views[i].step_us[KV_ERASURE_FENCED] != 0) {
            ids[wanted++] = views[i].id;
        }
    }
    if (wanted == 0) {
        return KV_OK;
    }
    KV_TRY(kv_store_erasure_instances(call->pg, ids, wanted, max, &call->info, parts, &found));
    for (size_t i = 0; i < found; i++) {
        for (size_t j = 0; j < count; j++) {
            if (kv_id_equal(&views[j].id, &parts[i].erasure)) {
                add_instance(&views[j], &parts[i]);
            }
        }
    }
    return KV_OK;
}

bool kv_erasure_ended(const struct kv_erasure_view *erasure)
{
    return erasure->state == KV_ERASURE_CERTIFIED || erasure->state == KV_ERASURE_QUARANTINED;
}

bool kv_erasure_blocked(const struct kv_erasure_view *erasure)
{
    return erasure->state == KV_ERASURE_BLOCKED_HOLD;
}

/* --- one session's request --------------------------------------------------------------------------------------- */

struct kv_audit_event svc_erase_event(const struct kv_store_erasure *row, uint8_t ret_ref[SVC_REF_BYTES])
{
    svc_ref(SVC_REF_REQUEST, &row->id, ret_ref);
    return (struct kv_audit_event){.op = KV_AUDIT_ERASE_REQUEST,
                                   .realtime_us = row->at_us[KV_ERASURE_REQUESTED],
                                   .tenant = row->tenant,
                                   .session = row->session,
                                   .actor = row->requested_by,
                                   .actor_role = row->requested_role,
                                   .subject = row->id,
                                   .subject_prefix = "era",
                                   .detail_sha256 = row->reason_sha256[0] == '\0' ? NULL : row->reason_sha256};
}

KV_RC svc_erase_record(struct kv_svc *svc, struct kv_pg *pg, const struct kv_store_erasure *row,
                       struct kv_errinfo *info)
{
    uint8_t ref[SVC_REF_BYTES];
    const struct kv_audit_event event = svc_erase_event(row, ref);
    return svc_audit(svc, pg, &event, KV_BYTES(ref, sizeof ref), info);
}

/* The row of one more session, with what the request says in it. */
static KV_RC insert_one(struct kv_svc *svc, struct kv_pg *pg, struct kv_store_erasure *row, struct kv_errinfo *info)
{
    row->state = KV_ERASURE_REQUESTED;
    row->at_us[KV_ERASURE_REQUESTED] = svc->env->realtime_us(svc->env->ctx);
    row->sessions = 1;
    KV_TRY(svc_hold_block(pg, row, info));
    KV_TRY(kv_store_erasure_insert(pg, row, info));
    return svc_erase_record(svc, pg, row, info);
}

KV_RC svc_erase_session(struct kv_svc *svc, struct kv_pg *pg, const struct kv_id *tenant, const struct kv_id *session,
                        const struct svc_erase_by *by, struct kv_errinfo *info, struct kv_store_erasure *ret_row)
{
    *ret_row = (struct kv_store_erasure){.tenant = *tenant, .session = *session, .requested_by = by->key};
    snprintf(ret_row->basis, sizeof ret_row->basis, "%s", by->basis);
    snprintf(ret_row->requested_role, sizeof ret_row->requested_role, "%s", by->role);
    KV_TRY(kv_id_new(svc->env, &ret_row->id));
    KV_TRY(kv_store_revocation_next(pg, info, &ret_row->revocation_seq));
    KV_TRY(insert_one(svc, pg, ret_row, info));
    return ret_row->state == KV_ERASURE_REQUESTED ? KV_OK : kv_fail(info, KV_E_STALE, "a hold covers the session");
}

void svc_erase_begin(struct kv_svc *svc, struct kv_pg *pg, const struct kv_store_erasure *row)
{
    const struct kv_store_revocation what = svc_revocation_of(row);
    struct kv_errinfo info = {0};
    svc_views_drop(svc->views, &row->session); /* before anybody hears of it */
    svc_erasure_publish(svc, row);
    KV_IGNORE(svc_revoke(svc, pg, &what, kv_now_ns(svc->env), &info), "the eraser fences again, with time to wait");
    svc_eraser_signal(svc);
}

struct request_tx {
    struct kv_call *call;
    const struct kv_erasure_new *in;
    struct kv_erasure_made *made;
    struct kv_store_erasure row; /* one session's */
    struct kv_store_group group;
    struct svc_group_taken taken;
    struct kv_id *meant; /* of a dry run, KV_STORE_IDS_MAX */
    size_t meant_count;
    bool existed;
};

static KV_RC may_erase(struct kv_call *call, const struct kv_store_session *session, struct kv_errinfo *info)
{
    bool admin = (call->who.roles & KV_ROLE_TENANT_ADMIN) != 0;
    bool own = (call->who.roles & KV_ROLE_ENGINE) != 0 && kv_id_equal(&session->created_by, &call->who.key);
    return admin || own ? KV_OK
                        : kv_fail(info, KV_E_FORBIDDEN,
                                  "an engine key erases only sessions that it created; use a tenant_admin key");
}

static const char *request_role(const struct kv_call *call)
{
    return (call->who.roles & KV_ROLE_TENANT_ADMIN) != 0 ? "tenant_admin" : "engine";
}

static KV_RC fill_request(struct request_tx *tx, const struct kv_id *session)
{
    struct kv_call *call = tx->call;
    tx->row = (struct kv_store_erasure){.tenant = call->who.tenant, .session = *session, .requested_by = call->who.key};
    KV_TRY(kv_id_new(call->svc->env, &tx->row.id));
    snprintf(tx->row.basis, sizeof tx->row.basis, "%s", tx->in->basis);
    snprintf(tx->row.requested_role, sizeof tx->row.requested_role, "%s", request_role(call));
    KV_TRY(svc_erase_hash(&tx->row.id, tx->in->reason, tx->row.reason_sha256));
    return svc_erase_hash(&tx->row.id, tx->in->reference, tx->row.reference_sha256);
}

static KV_RC would_hold(struct request_tx *tx, struct kv_pg *pg, struct kv_errinfo *info)
{
    struct kv_svc *svc = tx->call->svc;
    const struct kv_store_ids meant = {.ids = tx->meant, .count = tx->meant_count};
    return kv_store_holds_over(pg, &meant, svc->env->realtime_us(svc->env->ctx), info, &tx->made->would.holds);
}

static KV_RC would_share(struct kv_pg *pg, struct request_tx *tx, struct kv_errinfo *info)
{
    const struct kv_store_ids meant = {.ids = tx->meant, .count = tx->meant_count};
    struct svc_shared_would would;
    KV_TRY(svc_shared_would(pg, &tx->call->who.tenant, &meant, info, &would));
    tx->made->would.scopes_erased = would.erased;
    tx->made->would.scopes_retained = would.retained;
    return KV_OK;
}

static KV_RC one_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct request_tx *tx = ctx;
    struct kv_store_session *session KV_CLEANUP(kv_freep) = kv_alloc(sizeof *session);
    if (session == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(fill_request(tx, &tx->in->session));
    /* The head's lock comes first: two requests for one session meet here, and the second sees what the first did. */
    KV_TRY(kv_store_revocation_next(pg, info, &tx->row.revocation_seq));
    KV_TRY(svc_session_row(pg, &tx->in->session, &tx->call->who.tenant, info, session));
    KV_TRY(may_erase(tx->call, session, info));
    KV_TRY(session->state == KV_SESSION_LOST ? svc_session_lost(info) : KV_OK);
    tx->existed = session->state != KV_SESSION_ACTIVE;
    tx->meant[0] = session->id;
    tx->meant_count = tx->existed ? 0 : 1;
    KV_TRY(tx->call->dry_run ? would_share(pg, tx, info) : KV_OK);
    KV_TRY(tx->existed ? kv_store_erasure_get(pg, &session->erasure, info, &tx->row)
                       : insert_one(tx->call->svc, pg, &tx->row, info));
    const struct svc_leaving leaving = {.sessions = {.ids = &session->id, .count = 1}, .as = &tx->row};
    tx->taken.count = 0;
    KV_TRY(tx->existed ? KV_OK : svc_shared_leave(tx->call->svc, pg, &leaving, info, &tx->taken));
    tx->made->existed = tx->existed;
    view_of(tx->call->svc, &tx->row, &tx->made->erasure);
    tx->made->would.sessions = tx->meant_count;
    tx->made->would.existing = tx->existed ? session->erasure : (struct kv_id){0};
    return tx->call->dry_run ? would_hold(tx, pg, info) : KV_OK;
}

static KV_RC erase_one(struct request_tx *tx)
{
    enum kv_err rc = svc_tx(tx->call, KV_TX_ERASE_REQUEST, one_tx, tx);
    svc_views_drop(tx->call->svc->views, &tx->in->session); /* whatever came of it: a lost answer may be a commit */
    KV_TRY(rc);
    if (tx->call->dry_run) {
        return KV_OK;
    }
    if (KV_FAULT("erase/requested")) {
        return KV_E_INTERNAL;
    }
    if (!tx->existed) {
        svc_erase_begin(tx->call->svc, tx->call->pg, &tx->row);
        svc_shared_begin(tx->call->svc, tx->call->pg, &tx->row.tenant, &tx->taken);
    }
    return KV_OK;
}

/* --- a whole tenant's request ------------------------------------------------------------------------------------ */

/* An administrator's way to all that the tenant has: where that takes two, it is the deletion that is proposed. */
static KV_RC alone(struct kv_call *call, struct kv_pg *pg, struct kv_errinfo *info)
{
    struct svc_rules *rules KV_CLEANUP(svc_rules_freep) = NULL;
    KV_TRY(svc_rules_read(pg, &call->who.tenant, info, &rules));
    return (rules->set->approvals & KV_POLICY_TWO_FOR_TENANT_ERASE) == 0
               ? KV_OK
               : kv_fail(
                     info, KV_E_APPROVAL_REQUIRED,
                     "the policy takes two people to erase all of a tenant: DELETE /v1/tenants/{tenant_id} proposes "
                     "it, or name sessions or a label");
}

static KV_RC tenant_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct request_tx *tx = ctx;
    static const struct kv_id none = {0};
    KV_TRY(fill_request(tx, &none));
    KV_TRY(kv_store_revocation_next(pg, info, &tx->row.revocation_seq));
    KV_TRY(alone(tx->call, pg, info));
    KV_TRY(svc_erase_tenant(tx->call->svc, pg, &tx->row, info));
    if (tx->row.sessions == 0) {
        return kv_fail(info, KV_E_NOT_FOUND, "no session that lives is meant by this scope");
    }
    view_of(tx->call->svc, &tx->row, &tx->made->erasure);
    return KV_OK;
}

static KV_RC erase_tenant(struct request_tx *tx)
{
    enum kv_err rc = svc_tx(tx->call, KV_TX_ERASE_TENANT, tenant_tx, tx);
    svc_views_drop_all(tx->call->svc->views); /* whatever came of it: a lost answer may be a commit */
    KV_TRY(rc);
    if (KV_FAULT("erase/tenant-requested")) {
        return KV_E_INTERNAL;
    }
    svc_erase_begin(tx->call->svc, tx->call->pg, &tx->row);
    return KV_OK;
}

/* --- many sessions' request -------------------------------------------------------------------------------------- */

static KV_RC would_many(struct request_tx *tx, struct kv_pg *pg, struct kv_errinfo *info)
{
    struct kv_svc *svc = tx->call->svc;
    if (tx->in->scope == KV_SCOPE_TENANT) {
        KV_TRY(alone(tx->call, pg, info));
        KV_TRY(svc_hold_forbids(svc, pg, &tx->call->who.tenant, info));
    }
    KV_TRY(kv_store_group_match(pg, &tx->group, KV_STORE_IDS_MAX, info, tx->meant, &tx->meant_count));
    KV_TRY(would_share(pg, tx, info));
    return would_hold(tx, pg, info);
}

static KV_RC many_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct request_tx *tx = ctx;
    struct kv_svc *svc = tx->call->svc;
    KV_TRY(svc_group_new(tx->call, tx->in, &tx->group));
    KV_TRY(kv_store_group_match_count(pg, &tx->group, info, &tx->made->would.sessions));
    if (tx->made->would.sessions == 0) {
        return kv_fail(info, KV_E_NOT_FOUND, "no session that lives is meant by this scope");
    }
    if (tx->call->dry_run) {
        return would_many(tx, pg, info);
    }
    KV_TRY(kv_store_group_insert(pg, &tx->group, info));
    KV_TRY(svc_group_record(svc, pg, &tx->group, info));
    KV_TRY(svc_group_expand(svc, pg, &tx->group, info, &tx->taken));
    struct kv_store_group_progress progress;
    KV_TRY(kv_store_group_progress(pg, &tx->group.id, info, &progress));
    svc_group_view(svc, &tx->group, &progress, &tx->made->erasure);
    return KV_OK;
}

static KV_RC erase_many(struct request_tx *tx)
{
    if (tx->in->scope == KV_SCOPE_TENANT && !kv_id_equal(&tx->in->tenant, &tx->call->who.tenant)) {
        return kv_fail(&tx->call->info, KV_E_NOT_FOUND, "no such tenant");
    }
    if (tx->in->scope == KV_SCOPE_TENANT && (tx->call->who.roles & KV_ROLE_TENANT_ADMIN) == 0) {
        return kv_fail(&tx->call->info, KV_E_FORBIDDEN, "all sessions of a tenant are erased with a tenant_admin key");
    }
    if (tx->in->scope == KV_SCOPE_IDLE) {
        KV_TRY(svc_use_settle(tx->call->svc, tx->call->pg, &tx->call->who.tenant, tx->in->idle_before_us,
                              &tx->call->info));
    }
    if (tx->in->scope == KV_SCOPE_TENANT && !tx->call->dry_run) {
        return erase_tenant(tx);
    }
    KV_TRY(svc_tx(tx->call, KV_TX_ERASE_GROUP, many_tx, tx));
    if (tx->call->dry_run) {
        return KV_OK;
    }
    if (KV_FAULT("erase/group-requested")) {
        return KV_E_INTERNAL;
    }
    svc_group_begin(tx->call->svc, &tx->group, &tx->taken);
    return KV_OK;
}

/* --- dry runs ---------------------------------------------------------------------------------------------------- */

static void find_engines(struct kv_call *call, struct kv_erasure_would *would)
{
    size_t position = 0;
    pthread_mutex_lock(&call->svc->registry_mutex);
    for (const struct svc_engine *engine = kv_idmap_next(&call->svc->engines, &position);
         engine != NULL && would->engine_count < KV_ERASURE_WOULD_ENGINES;
         engine = kv_idmap_next(&call->svc->engines, &position)) {
        if (kv_id_equal(&engine->tenant, &call->who.tenant)) {
            would->engines[would->engine_count++] = engine->id;
        }
    }
    pthread_mutex_unlock(&call->svc->registry_mutex);
}

/* After the transaction, which may not wait for the engine. */
static KV_RC measure(struct request_tx *tx)
{
    struct kv_erasure_would *would = &tx->made->would;
    struct kv_call *call = tx->call;
    uint64_t begun = kv_now_ns(call->svc->env);
    for (size_t i = 0; i < tx->meant_count; i++) {
        struct kv_scope_usage usage;
        KV_TRY(kv_engine_scope_usage(call->svc->engine, &tx->meant[i], &usage));
        would->usage.blocks += usage.blocks;
        would->usage.dram_blocks += usage.dram_blocks;
        would->usage.nvme_blocks += usage.nvme_blocks;
        would->usage.dram_bytes += usage.dram_bytes;
        would->usage.nvme_bytes += usage.nvme_bytes;
        would->usage.plaintext_bytes += usage.plaintext_bytes;
        would->sessions_measured++;
    }
    call->engine_ns += kv_now_ns(call->svc->env) - begun;
    if (would->sessions > 0) {
        find_engines(call, would);
    }
    return KV_OK;
}

/* --- asking ------------------------------------------------------------------------------------------------------ */

/* The session that has this id of the client's. */
static KV_RC find_external(struct kv_call *call, struct kv_erasure_new *in)
{
    bool known = false;
    uint8_t hmac[32];
    struct kv_store_session *session KV_CLEANUP(kv_freep) = kv_alloc(sizeof *session);
    if (session == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(svc_external_lookup(call, in->external_id, &known, hmac));
    if (!known) {
        return kv_fail(&call->info, KV_E_NOT_FOUND, "no session that lives has this external id");
    }
    enum kv_err rc = kv_store_session_find(call->pg, &call->who.tenant, hmac, &call->info, session);
    if (rc == KV_E_NOT_FOUND) {
        return kv_fail(&call->info, rc, "no session that lives has this external id");
    }
    KV_TRY(rc);
    in->scope = KV_SCOPE_SESSION;
    in->session = session->id;
    return KV_OK;
}

static KV_RC request(struct request_tx *tx)
{
    bool many = tx->in->scope == KV_SCOPE_LABEL || tx->in->scope == KV_SCOPE_IDLE || tx->in->scope == KV_SCOPE_TENANT;
    size_t taken = many && !tx->call->dry_run ? SVC_GROUP_TAKEN_MAX : 0;
    size_t meant = !many ? 1 : tx->call->dry_run ? KV_STORE_IDS_MAX : 0;
    tx->taken.rows = kv_alloc_array(taken + 1, sizeof *tx->taken.rows);
    tx->meant = kv_alloc_array(meant + 1, sizeof *tx->meant);
    enum kv_err rc = KV_E_NO_MEMORY;
    if (tx->taken.rows != NULL && tx->meant != NULL) {
        rc = many ? erase_many(tx) : erase_one(tx);
    }
    if (rc == KV_OK && tx->call->dry_run) {
        rc = measure(tx);
    }
    kv_free(tx->taken.rows);
    kv_free(tx->meant);
    return rc;
}

/* A time to come would mean every session there is: a slip of the pen must not erase a tenant. */
static KV_RC check_idle(struct kv_call *call, const struct kv_erasure_new *in)
{
    uint64_t now = call->svc->env->realtime_us(call->svc->env->ctx);
    return in->scope != KV_SCOPE_IDLE || in->idle_before_us <= now + CLOCK_SKEW_US
               ? KV_OK
               : kv_fail_at(&call->info, KV_E_INVALID_REQUEST, "/scope/idle_before",
                            "lies ahead, so it would mean every session; for that name tenant_id");
}

KV_RC kv_svc_erase(struct kv_call *call, const struct kv_erasure_new *in, struct kv_erasure_made *ret_made)
{
    KV_TRY(svc_may_work(call->svc, &call->info));
    struct request_tx *tx KV_CLEANUP(kv_freep) = kv_alloc(sizeof *tx);
    if (tx == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(check_idle(call, in));
    struct kv_erasure_new found = *in;
    *ret_made = (struct kv_erasure_made){0};
    *tx = (struct request_tx){.call = call, .in = &found, .made = ret_made};
    if (in->scope == KV_SCOPE_EXTERNAL) {
        KV_TRY(find_external(call, &found));
    }
    KV_TRY(svc_rules_erasure(call, &call->who.tenant, in->basis, in->reason != NULL && in->reason[0] != '\0'));
    return request(tx);
}

/* --- looking at them --------------------------------------------------------------------------------------------- */

static KV_RC get_group(struct kv_call *call, const struct kv_id *id, struct kv_erasure_view *ret_erasure)
{
    struct kv_store_group *group KV_CLEANUP(kv_freep) = kv_alloc(sizeof *group);
    if (group == NULL) {
        return KV_E_NO_MEMORY;
    }
    enum kv_err rc = kv_store_group_get(call->pg, id, &call->info, group);
    if (rc == KV_E_NOT_FOUND || (rc == KV_OK && !kv_id_equal(&group->tenant, &call->who.tenant))) {
        return kv_fail(&call->info, KV_E_NOT_FOUND, "no such erasure");
    }
    KV_TRY(rc);
    struct kv_store_group_progress progress;
    KV_TRY(kv_store_group_progress(call->pg, id, &call->info, &progress));
    svc_group_view(call->svc, group, &progress, ret_erasure);
    return KV_OK;
}

KV_RC kv_svc_erasure_get(struct kv_call *call, const struct kv_id *erasure, struct kv_erasure_view *ret_erasure)
{
    struct kv_store_erasure *row KV_CLEANUP(kv_freep) = kv_alloc(sizeof *row);
    if (row == NULL) {
        return KV_E_NO_MEMORY;
    }
    enum kv_err rc = kv_store_erasure_get(call->pg, erasure, &call->info, row);
    if (rc == KV_E_NOT_FOUND) {
        return get_group(call, erasure, ret_erasure);
    }
    KV_TRY(rc);
    if (!kv_id_equal(&row->tenant, &call->who.tenant)) {
        return kv_fail(&call->info, KV_E_NOT_FOUND, "no such erasure");
    }
    view_of(call->svc, row, ret_erasure);
    return add_instances(call, ret_erasure, 1);
}

/* Two pages in one order, one of single erasures and one of groups. */
struct both {
    struct kv_store_erasure *rows;
    struct kv_store_group_status *groups;
    size_t row_count, group_count;
    struct kv_page of_groups;
};

static KV_RC read_both(struct kv_call *call, const struct kv_erasure_filter *filter, struct kv_page *page,
                       struct both *both)
{
    struct kv_store_erasure_filter wanted = {.tenant = call->who.tenant,
                                             .session = filter->session,
                                             .group = filter->group,
                                             .alone = filter->alone,
                                             .state = filter->state};
    KV_TRY(kv_store_erasure_page(call->pg, &wanted, page, &call->info, both->rows, &both->row_count));
    if (!kv_id_is_zero(&filter->session) || !kv_id_is_zero(&filter->group)) {
        return KV_OK;
    }
    return kv_store_group_page(call->pg, &call->who.tenant, filter->state, &both->of_groups, &call->info, both->groups,
                               &both->group_count);
}

static void merge(struct kv_svc *svc, const struct both *both, struct kv_page *page, struct kv_erasure_view *ret_list,
                  size_t *ret_count)
{
    size_t row = 0, group = 0, count = 0;
    while (count < page->limit && (row < both->row_count || group < both->group_count)) {
        const struct kv_store_erasure *single = &both->rows[row];
        const struct kv_store_group_status *many = &both->groups[group];
        bool groups_turn = row == both->row_count;
        if (row < both->row_count && group < both->group_count) {
            int order = svc_page_order(many->group.created_us, &many->group.id, single->at_us[KV_ERASURE_REQUESTED],
                                       &single->id);
            groups_turn = page->ascending ? order < 0 : order > 0;
        }
        if (groups_turn) {
            svc_group_view(svc, &many->group, &many->progress, &ret_list[count++]);
            group++;
        } else {
            view_of(svc, single, &ret_list[count++]);
            row++;
        }
    }
    page->more = page->more || both->of_groups.more || row < both->row_count || group < both->group_count;
    *ret_count = count;
}

KV_RC kv_svc_erasure_list(struct kv_call *call, const struct kv_erasure_filter *filter, struct kv_page *page,
                          struct kv_erasure_view *ret_list, size_t *ret_count)
{
    size_t room = (size_t)page->limit + 1;
    struct kv_store_erasure *rows KV_CLEANUP(kv_freep) = kv_alloc_array(room, sizeof *rows);
    struct kv_store_group_status *groups KV_CLEANUP(kv_freep) = kv_alloc_array(room, sizeof *groups);
    if (rows == NULL || groups == NULL) {
        return KV_E_NO_MEMORY;
    }
    struct both both = {.rows = rows, .groups = groups, .of_groups = *page};
    KV_TRY(read_both(call, filter, page, &both));
    merge(call->svc, &both, page, ret_list, ret_count);
    return add_instances(call, ret_list, *ret_count);
}

KV_RC kv_svc_erasure_cancel(struct kv_call *call, const struct kv_id *erasure)
{
    struct kv_erasure_view *view KV_CLEANUP(kv_freep) = kv_alloc(sizeof *view);
    if (view == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(kv_svc_erasure_get(call, erasure, view));
    return kv_fail(&call->info, KV_E_IRREVERSIBLE,
                   "an erasure cannot be called back: its sessions are refused from the request on; only the deletion "
                   "of a tenant can be, within its grace time, with POST /v1/tenants/{tenant_id}:restore");
}
