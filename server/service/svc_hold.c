/*
 * See svc_hold.h. Who places a hold, asks for an erasure or lets one go holds the head of the revocations to its
 * commit: of a hold and a request at the same time one comes first, and the other sees it. Must never let an erasure of
 * what is held begin, nor place a hold that cannot hold any more.
 */
#include "server/service/svc_hold.h"

#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "dataplane/base/log.h"
#include "dataplane/base/mem.h"
#include "server/service/erase_request.h"
#include "server/service/event.h"
#include "server/service/janitor.h"
#include "server/service/svc_rules.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define DAY_US UINT64_C(86400000000)
#define AT_ONCE 64
#define LET_GO_MAX ((size_t)KV_MAX_ERASURE_EXPAND)

static uint64_t now_us(struct kv_svc *svc)
{
    return svc->env->realtime_us(svc->env->ctx);
}

static const char *state_of(const struct kv_store_hold *row, uint64_t now)
{
    return row->released_us != 0 ? "released" : row->ended_us != 0 || row->expires_us <= now ? "expired" : "active";
}

static void view_of(struct kv_svc *svc, const struct kv_store_hold *row, struct kv_hold_view *ret_view)
{
    *ret_view = (struct kv_hold_view){.row = *row, .state = state_of(row, now_us(svc))};
    svc_label_name(row->label, ret_view->row.label);
}

static void tell(struct kv_svc *svc, const struct kv_store_hold *row, const char *state)
{
    svc_publish(svc, &(struct kv_event){.type = KV_EVENT_HOLD_STATE,
                                        .tenant = row->tenant,
                                        .session = row->session,
                                        .subject = row->id,
                                        .subject_prefix = "hld",
                                        .state = state});
}

struct by {
    struct kv_id key;
    const char *role;
};
static const struct by by_system = {.role = "system"};

static struct by by_caller(const struct kv_call *call)
{
    return (struct by){.key = call->who.key, .role = svc_role_name(call->who.roles)};
}

static KV_RC record(struct kv_svc *svc, struct kv_pg *pg, const struct kv_store_hold *row, enum kv_audit_op op,
                    const struct by *by, struct kv_errinfo *info)
{
    struct kv_audit_event event = {.op = op,
                                   .tenant = row->tenant,
                                   .session = row->session,
                                   .actor = by->key,
                                   .actor_role = by->role,
                                   .subject = row->id,
                                   .subject_prefix = "hld",
                                   .detail_sha256 = op == KV_AUDIT_HOLD_CREATE ? row->reason_sha256 : NULL};
    return svc_audit(svc, pg, &event, KV_BYTES(NULL, 0), info);
}

/* --- placing ----------------------------------------------------------------------------------------------------- */

struct create_tx {
    struct kv_call *call;
    const struct kv_hold_new *in;
    struct kv_store_hold row;
    struct kv_store_session session;
    struct kv_store_erasure erasure;
    struct kv_store_tenant tenant;
    struct kv_hold_view *view;
};

/* Whose loss a person could complain of: those data are held on a ground that the law knows. */
static bool of_persons(const struct svc_rules *rules)
{
    bool personal = false;
    for (uint32_t i = 0; i < rules->set->class_count; i++) {
        personal = personal || rules->set->classes[i].data_class == KV_DATA_PERSONAL ||
                   rules->set->classes[i].data_class == KV_DATA_SPECIAL;
    }
    return personal;
}

static KV_RC check_policy(const struct create_tx *tx, struct kv_pg *pg, struct kv_errinfo *info)
{
    struct svc_rules *rules KV_CLEANUP(svc_rules_freep) = NULL;
    KV_TRY(svc_rules_read(pg, &tx->row.tenant, info, &rules));
    uint64_t days = rules->set->hold_days;
    if (days == 0) {
        return kv_fail(info, KV_E_POLICY_DENIED,
                       "the tenant's policy has no holds; a security_officer adds \"hold\":{\"allowed\":true}");
    }
    if (tx->row.expires_us > tx->row.created_us + days * DAY_US) {
        return kv_fail_at(info, KV_E_POLICY_DENIED, "/expires_at", "the policy's holds end within %" PRIu64 " days",
                          days);
    }
    if (of_persons(rules) && tx->row.ground[0] == '\0') {
        return kv_fail_at(info, KV_E_INVALID_REQUEST, "/ground",
                          "is required: the policy has a class of personal data, which is held on a named ground only");
    }
    return KV_OK;
}

static KV_RC check_tenant(struct create_tx *tx, struct kv_pg *pg, struct kv_errinfo *info)
{
    KV_TRY(kv_store_tenant_lock(pg, &tx->row.tenant, info, &tx->tenant));
    return tx->tenant.state != KV_TENANT_ERASING && tx->tenant.state != KV_TENANT_ERASED
               ? KV_OK
               : kv_fail(info, KV_E_INVALID_STATE, "the tenant is %s", kv_tenant_state_name(tx->tenant.state));
}

static KV_RC check_session(struct create_tx *tx, struct kv_pg *pg, struct kv_errinfo *info)
{
    KV_TRY(svc_session_row(pg, &tx->row.session, &tx->row.tenant, info, &tx->session));
    if (tx->session.state == KV_SESSION_LOST) {
        return svc_session_lost(info);
    }
    if (tx->session.state == KV_SESSION_ACTIVE || tx->session.held) {
        return KV_OK;
    }
    return kv_fail(info, KV_E_IRREVERSIBLE, "the session's erasure has begun, and cannot be called back");
}

static KV_RC create_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct create_tx *tx = ctx;
    struct kv_svc *svc = tx->call->svc;
    KV_TRY(kv_store_revocation_hold(pg, info)); /* first, as with every request for an erasure */
    KV_TRY(check_tenant(tx, pg, info));
    KV_TRY(tx->row.scope == KV_HOLD_SESSION ? check_session(tx, pg, info) : KV_OK);
    KV_TRY(check_policy(tx, pg, info));
    KV_TRY(kv_store_hold_insert(pg, &tx->row, (uint64_t)KV_MAX_TENANT_HOLDS, info));
    const struct by by = by_caller(tx->call);
    KV_TRY(record(svc, pg, &tx->row, KV_AUDIT_HOLD_CREATE, &by, info));
    view_of(svc, &tx->row, tx->view);
    tx->view->row.rev = 1;
    tx->view->has_sessions = true;
    return kv_store_hold_sessions(pg, &tx->row.id, tx->row.created_us, info, &tx->view->sessions);
}

static KV_RC fill_new(struct kv_call *call, const struct kv_hold_new *in, struct kv_store_hold *row)
{
    *row = (struct kv_store_hold){.tenant = call->who.tenant,
                                  .scope = in->scope,
                                  .session = in->session,
                                  .created_us = now_us(call->svc),
                                  .created_by = call->who.key,
                                  .expires_us = in->expires_us};
    snprintf(row->created_role, sizeof row->created_role, "%s", svc_role_name(call->who.roles));
    snprintf(row->ground, sizeof row->ground, "%s", in->ground == NULL ? "" : in->ground);
    KV_TRY(kv_id_new(call->svc->env, &row->id));
    KV_TRY(svc_erase_hash(&row->id, in->reason, row->reason_sha256));
    KV_TRY(svc_erase_hash(&row->id, in->reference, row->reference_sha256));
    return in->scope == KV_HOLD_LABEL ? svc_label_text(in->label_key, in->label_value, row->label) : KV_OK;
}

KV_RC kv_svc_hold_create(struct kv_call *call, const struct kv_hold_new *in, struct kv_hold_view *ret_hold)
{
    KV_TRY(svc_may_work(call->svc, &call->info));
    if (in->scope == KV_HOLD_TENANT && !kv_id_equal(&in->tenant, &call->who.tenant)) {
        return kv_fail(&call->info, KV_E_NOT_FOUND, "no such tenant");
    }
    if (in->expires_us <= now_us(call->svc)) {
        return kv_fail_at(&call->info, KV_E_INVALID_REQUEST, "/expires_at", "must lie ahead");
    }
    struct create_tx *tx KV_CLEANUP(kv_freep) = kv_alloc(sizeof *tx);
    if (tx == NULL) {
        return KV_E_NO_MEMORY;
    }
    tx->call = call;
    tx->in = in;
    tx->view = ret_hold;
    KV_TRY(fill_new(call, in, &tx->row));
    KV_TRY(svc_tx(call, KV_TX_HOLD_CREATE, create_tx, tx));
    if (!call->dry_run) {
        tell(call->svc, &tx->row, "active");
    }
    return KV_OK;
}

/* --- looking ----------------------------------------------------------------------------------------------------- */

static KV_RC own(const struct kv_call *call, enum kv_err rc, const struct kv_store_hold *row, struct kv_errinfo *info)
{
    if (rc == KV_E_NOT_FOUND || (rc == KV_OK && !kv_id_equal(&row->tenant, &call->who.tenant))) {
        return kv_fail(info, KV_E_NOT_FOUND, "no such hold");
    }
    return rc;
}

KV_RC kv_svc_hold_get(struct kv_call *call, const struct kv_id *hold, struct kv_hold_view *ret_hold)
{
    struct kv_store_hold *row KV_CLEANUP(kv_freep) = kv_alloc(sizeof *row);
    if (row == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(own(call, kv_store_hold_get(call->pg, hold, &call->info, row), row, &call->info));
    view_of(call->svc, row, ret_hold);
    ret_hold->has_sessions = true;
    return kv_store_hold_sessions(call->pg, hold, now_us(call->svc), &call->info, &ret_hold->sessions);
}

KV_RC kv_svc_hold_list(struct kv_call *call, const char *state, struct kv_page *page, struct kv_hold_view *ret_list,
                       size_t *ret_count)
{
    struct kv_store_hold *rows KV_CLEANUP(kv_freep) = kv_alloc_array(page->limit + 1u, sizeof *rows);
    struct kv_store_hold_filter filter = {.tenant = call->who.tenant, .state = state, .now_us = now_us(call->svc)};
    if (rows == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(kv_store_hold_page(call->pg, &filter, page, &call->info, rows, ret_count));
    for (size_t i = 0; i < *ret_count; i++) {
        view_of(call->svc, &rows[i], &ret_list[i]);
    }
    return KV_OK;
}

/* --- ending ------------------------------------------------------------------------------------------------------ */

struct release_tx {
    struct kv_call *call;
    struct kv_id id;
    struct kv_store_hold row;
    struct kv_hold_view *view;
    struct kv_approval_view *approval;
};

static KV_RC check_lasts(struct kv_svc *svc, const struct kv_store_hold *row, struct kv_errinfo *info)
{
    uint64_t now = now_us(svc);
    return row->ended_us == 0 && row->expires_us > now
               ? KV_OK
               : kv_fail(info, KV_E_INVALID_STATE, "the hold is %s", state_of(row, now));
}

static KV_RC end_hold(struct kv_svc *svc, struct kv_pg *pg, struct kv_store_hold *row, const struct by *by,
                      struct kv_errinfo *info)
{
    row->released_us = row->ended_us = now_us(svc);
    row->released_by = by->key;
    KV_TRY(kv_store_hold_end(pg, row, info));
    return record(svc, pg, row, KV_AUDIT_HOLD_RELEASE, by, info);
}

static KV_RC release_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct release_tx *tx = ctx;
    struct kv_store_hold *row = &tx->row;
    const struct by by = by_caller(tx->call);
    KV_TRY(own(tx->call, kv_store_hold_lock(pg, &tx->id, info, row), row, info));
    KV_TRY(svc_match(tx->call, row->rev, info));
    KV_TRY(check_lasts(tx->call->svc, row, info));
    const struct svc_proposal what = {
        .action = KV_APPROVAL_HOLD_RELEASE, .tenant = row->tenant, .target = row->id, .target_rev = row->rev};
    KV_TRY(svc_approval_ask(tx->call, pg, &what, info, tx->approval));
    KV_TRY(kv_id_is_zero(&tx->approval->row.id) ? end_hold(tx->call->svc, pg, row, &by, info) : KV_OK);
    view_of(tx->call->svc, row, tx->view);
    return KV_OK;
}

KV_RC svc_hold_release_approved(struct kv_call *call, struct kv_pg *pg, const struct kv_store_approval *approval,
                                struct kv_errinfo *info)
{
    struct kv_store_hold row;
    const struct by by = {.key = approval->proposed_by, .role = approval->proposed_role};
    KV_TRY(kv_store_hold_lock(pg, &approval->target, info, &row));
    if (row.rev != approval->target_rev || check_lasts(call->svc, &row, info) != KV_OK) {
        return kv_fail(info, KV_E_STALE, "the hold ended since its release was proposed");
    }
    return end_hold(call->svc, pg, &row, &by, info);
}

void svc_hold_released(struct kv_call *call, const struct kv_id *tenant, const struct kv_id *hold)
{
    const struct kv_store_hold row = {.id = *hold, .tenant = *tenant};
    tell(call->svc, &row, "released");
    svc_janitor_signal(call->svc);
}

KV_RC kv_svc_hold_release(struct kv_call *call, const struct kv_id *hold, struct kv_hold_view *ret_hold,
                          struct kv_approval_view *ret_approval)
{
    KV_TRY(svc_may_work(call->svc, &call->info));
    struct release_tx *tx KV_CLEANUP(kv_freep) = kv_alloc(sizeof *tx);
    if (tx == NULL) {
        return KV_E_NO_MEMORY;
    }
    *tx = (struct release_tx){.call = call, .id = *hold, .view = ret_hold, .approval = ret_approval};
    KV_TRY(svc_tx(call, KV_TX_HOLD_RELEASE, release_tx, tx));
    if (call->dry_run) {
        return KV_OK;
    }
    if (KV_FAULT("hold/released")) {
        return KV_E_INTERNAL;
    }
    if (kv_id_is_zero(&ret_approval->row.id)) {
        svc_hold_released(call, &tx->row.tenant, hold);
    } else {
        svc_approval_asked(call, ret_approval);
    }
    return KV_OK;
}

/* --- for erasures ------------------------------------------------------------------------------------------------ */

void svc_hold_mark(const struct kv_store_held *list, size_t count, struct kv_store_erasure *row)
{
    for (size_t i = 0; i < count; i++) {
        if (kv_id_equal(&list[i].session, &row->session)) {
            row->state = KV_ERASURE_BLOCKED_HOLD;
            row->hold = list[i].hold;
            row->at_us[KV_ERASURE_BLOCKED_HOLD] = row->at_us[KV_ERASURE_REQUESTED];
        }
    }
}

KV_RC svc_hold_find(struct kv_svc *svc, struct kv_pg *pg, const struct kv_store_ids *sessions, struct kv_errinfo *info,
                    struct kv_store_held *ret_list, size_t *ret_count)
{
    return kv_store_held_of(pg, sessions, now_us(svc), info, ret_list, ret_count);
}

KV_RC svc_hold_block(struct kv_pg *pg, struct kv_store_erasure *row, struct kv_errinfo *info)
{
    const struct kv_store_ids one = {.ids = &row->session, .count = 1};
    struct kv_store_held held;
    size_t count = 0;
    KV_TRY(kv_store_held_of(pg, &one, row->at_us[KV_ERASURE_REQUESTED], info, &held, &count));
    svc_hold_mark(&held, count, row);
    return KV_OK;
}

KV_RC svc_hold_forbids(struct kv_svc *svc, struct kv_pg *pg, const struct kv_id *tenant, struct kv_errinfo *info)
{
    struct kv_id hold;
    char text[KV_ID_TEXT_SIZE];
    struct kv_errinfo ignored = {0};
    enum kv_err rc = kv_store_hold_any(pg, tenant, now_us(svc), &ignored, &hold);
    if (rc == KV_E_MISSING) {
        return KV_OK;
    }
    if (rc != KV_OK) {
        *info = ignored;
        return rc;
    }
    kv_id_text("hld", &hold, text);
    return kv_fail(info, KV_E_HOLD_ACTIVE, "%s holds some of what the tenant has; release it first", text);
}

/* --- the janitor's step ------------------------------------------------------------------------------------------ */

struct expire_tx {
    struct kv_svc *svc;
    struct kv_id id;
    struct kv_store_hold row;
    bool ended;
};

static KV_RC expire_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct expire_tx *tx = ctx;
    KV_TRY(kv_store_hold_lock(pg, &tx->id, info, &tx->row));
    tx->ended = tx->row.ended_us == 0;
    if (!tx->ended) {
        return KV_OK; /* released meanwhile, or seen by another instance */
    }
    tx->row.ended_us = now_us(tx->svc);
    KV_TRY(kv_store_hold_end(pg, &tx->row, info));
    return record(tx->svc, pg, &tx->row, KV_AUDIT_HOLD_EXPIRE, &by_system, info);
}

static KV_RC expire(struct expire_tx *tx, struct kv_pg *pg, struct kv_errinfo *info, bool *ret_more)
{
    struct kv_id list[AT_ONCE];
    size_t count = 0;
    KV_TRY(kv_store_hold_list_expired(pg, now_us(tx->svc), AT_ONCE, info, list, &count));
    for (size_t i = 0; i < count; i++) {
        tx->id = list[i];
        KV_TRY(kv_pg_tx(pg, KV_TX_HOLD_EXPIRE, expire_tx, tx, info, NULL));
        if (tx->ended) {
            tell(tx->svc, &tx->row, "expired");
        }
    }
    *ret_more = *ret_more || count == AT_ONCE;
    return KV_OK;
}

struct let_go_tx {
    uint64_t now_us;
    struct kv_store_erasure *list; /* LET_GO_MAX */
    size_t count;
};

static KV_RC let_go_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct let_go_tx *tx = ctx;
    KV_TRY(kv_store_revocation_hold(pg, info)); /* a hold that is being placed is seen, or comes after */
    KV_TRY(kv_store_holds_hand_over(pg, tx->now_us, LET_GO_MAX, info));
    return kv_store_holds_let_go(pg, tx->now_us, LET_GO_MAX, info, tx->list, &tx->count);
}

static KV_RC let_go(struct kv_svc *svc, struct kv_pg *pg, struct let_go_tx *tx, struct kv_errinfo *info, bool *ret_more)
{
    KV_TRY(kv_pg_tx(pg, KV_TX_HOLD_LET_GO, let_go_tx, tx, info, NULL));
    if (KV_FAULT("hold/let-go")) {
        return KV_E_INTERNAL;
    }
    for (size_t i = 0; i < tx->count; i++) {
        svc_erasure_publish(svc, &tx->list[i]);
        kv_log(KV_LOG_INFO, "janitor", "hold-over", KV_FID("erasure", "era", &tx->list[i].id));
    }
    if (tx->count > 0) {
        atomic_store(&svc->groups_open, true);
        svc_eraser_signal(svc);
    }
    *ret_more = *ret_more || tx->count == LET_GO_MAX;
    return KV_OK;
}

KV_RC svc_holds_step(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info, bool *ret_more)
{
    bool waiting = false;
    struct expire_tx *tx KV_CLEANUP(kv_freep) = kv_alloc(sizeof *tx);
    struct kv_store_erasure *list KV_CLEANUP(kv_freep) = kv_alloc_array(LET_GO_MAX, sizeof *list);
    if (tx == NULL || list == NULL) {
        return KV_E_NO_MEMORY;
    }
    tx->svc = svc;
    KV_TRY(expire(tx, pg, info, ret_more));
    KV_TRY(kv_store_holds_over_for(pg, now_us(svc), info, &waiting));
    struct let_go_tx going = {.now_us = now_us(svc), .list = list};
    return waiting ? let_go(svc, pg, &going, info, ret_more) : KV_OK;
}
