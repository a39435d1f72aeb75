/*
 * What a living session's owner may change: labels, lifetimes, that it was used, that it must stay. A lifetime
 * only gets shorter. Must never give a pinned session a life past its whole lifetime.
 */
#include "server/service/svc_session.h"

#include "dataplane/base/mem.h"
#include "server/service/svc_int.h"

#define SECOND_US UINT64_C(1000000)

struct change_tx;
typedef KV_RC change_fn(struct change_tx *tx, struct kv_errinfo *info);

struct change_tx {
    struct kv_call *call;
    struct kv_id session;
    change_fn *change;
    bool recorded; /* in the log, as `op` */
    enum kv_audit_op op;
    const struct kv_session_patch *patch;
    uint64_t until_us, now_us;
    bool same; /* there is nothing to change */
    struct kv_store_session row;
    struct kv_session_view *view;
};

static KV_RC record(struct kv_pg *pg, const struct change_tx *tx, struct kv_errinfo *info)
{
    struct kv_audit_event event = {.op = tx->op,
                                   .tenant = tx->row.tenant,
                                   .session = tx->row.id,
                                   .actor = tx->call->who.key,
                                   .actor_role = svc_role_name(tx->call->who.roles)};
    return svc_audit(tx->call->svc, pg, &event, KV_BYTES(NULL, 0), info);
}

static KV_RC change_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct change_tx *tx = ctx;
    KV_TRY(svc_session_lock(tx->call, pg, &tx->session, info, &tx->row));
    KV_TRY(svc_match(tx->call, tx->row.rev, info));
    tx->same = false;
    KV_TRY(tx->change(tx, info));
    if (!tx->same) {
        tx->row.updated_us = tx->now_us;
        KV_TRY(kv_store_session_update(pg, &tx->row, info));
        KV_TRY(tx->recorded ? record(pg, tx, info) : KV_OK);
    }
    svc_session_view_of(&tx->row, tx->view);
    return KV_OK;
}

static KV_RC change(const struct change_tx *wanted, enum kv_tx what)
{
    struct kv_call *call = wanted->call;
    KV_TRY(svc_may_work(call->svc, &call->info));
    struct change_tx *tx KV_CLEANUP(kv_freep) = kv_alloc(sizeof *tx);
    if (tx == NULL) {
        return KV_E_NO_MEMORY;
    }
    *tx = *wanted;
    tx->now_us = call->svc->env->realtime_us(call->svc->env->ctx);
    enum kv_err rc = svc_tx(call, what, change_tx, tx);
    svc_views_drop(call->svc->views, &wanted->session); /* whatever came of it: a lost answer may be a commit */
    return rc;
}

/* --- labels and lifetimes ---------------------------------------------------------------------------------------- */

static uint64_t last_use(const struct change_tx *tx)
{
    uint64_t noted = svc_use_noted(tx->call->svc, &tx->session);
    uint64_t recorded = tx->row.last_used_us == 0 ? tx->row.created_us : tx->row.last_used_us;
    return noted > recorded ? noted : recorded;
}

/* 0 stands for no end, the longest there is. */
static bool is_longer(uint64_t asked, uint64_t now)
{
    return now != 0 && (asked == 0 || asked > now);
}

static KV_RC set_ttl(struct change_tx *tx, struct kv_errinfo *info)
{
    uint64_t ttl = tx->patch->ttl_seconds;
    uint64_t until = ttl == 0 ? 0 : tx->now_us + ttl * SECOND_US;
    if (is_longer(until, tx->row.expires_us)) {
        return kv_fail_at(info, KV_E_CEILING, "/ttl_seconds", "a lifetime can only be shortened");
    }
    tx->row.expires_us = until;
    if (until != 0 && tx->row.pinned_until_us > until) {
        tx->row.pinned_until_us = until;
    }
    return KV_OK;
}

static KV_RC set_idle(struct change_tx *tx, struct kv_errinfo *info)
{
    uint64_t idle = tx->patch->idle_seconds;
    if (is_longer(idle, tx->row.idle_seconds)) {
        return kv_fail_at(info, KV_E_CEILING, "/idle_ttl_seconds", "an idle time can only be shortened");
    }
    tx->row.idle_seconds = idle;
    tx->row.idle_us = idle == 0 ? 0 : last_use(tx) + idle * SECOND_US;
    return KV_OK;
}

static KV_RC apply_patch(struct change_tx *tx, struct kv_errinfo *info)
{
    const struct kv_session_patch *patch = tx->patch;
    KV_TRY(patch->has_ttl ? set_ttl(tx, info) : KV_OK);
    KV_TRY(patch->has_idle ? set_idle(tx, info) : KV_OK);
    if (kv_labels_merge(&tx->row.labels, &patch->labels) != KV_OK) {
        return kv_fail_at(info, KV_E_INVALID_REQUEST, "/labels", "at most %d labels would be left", KV_LABELS_MAX);
    }
    tx->same = !patch->has_ttl && !patch->has_idle && patch->labels.count == 0;
    return KV_OK;
}

KV_RC kv_svc_session_update(struct kv_call *call, const struct kv_id *session, const struct kv_session_patch *patch,
                            struct kv_session_view *ret_session)
{
    if (patch->ttl_seconds > (uint64_t)KV_MAX_SESSION_SECONDS) {
        return kv_fail_at(&call->info, KV_E_INVALID_REQUEST, "/ttl_seconds", "1 to %lld",
                          (long long)KV_MAX_SESSION_SECONDS);
    }
    if (patch->idle_seconds > (uint64_t)KV_MAX_SESSION_SECONDS) {
        return kv_fail_at(&call->info, KV_E_INVALID_REQUEST, "/idle_ttl_seconds", "1 to %lld",
                          (long long)KV_MAX_SESSION_SECONDS);
    }
    struct change_tx tx = {.call = call,
                           .session = *session,
                           .change = apply_patch,
                           .recorded = true,
                           .op = KV_AUDIT_SESSION_UPDATE,
                           .patch = patch,
                           .view = ret_session};
    return change(&tx, KV_TX_SESSION_UPDATE);
}

/* --- use and pins ------------------------------------------------------------------------------------------------ */

static KV_RC apply_touch(struct change_tx *tx, struct kv_errinfo *info)
{
    (void)info;
    tx->row.last_used_us = tx->now_us;
    tx->row.idle_us = tx->row.idle_seconds == 0 ? 0 : tx->now_us + tx->row.idle_seconds * SECOND_US;
    return KV_OK;
}

KV_RC kv_svc_session_touch(struct kv_call *call, const struct kv_id *session, struct kv_session_view *ret_session)
{
    struct change_tx tx = {.call = call, .session = *session, .change = apply_touch, .view = ret_session};
    return change(&tx, KV_TX_SESSION_TOUCH);
}

static KV_RC apply_pin(struct change_tx *tx, struct kv_errinfo *info)
{
    if (tx->until_us != 0 &&
        (tx->until_us <= tx->now_us || tx->until_us > tx->now_us + (uint64_t)KV_MAX_PIN_SECONDS * SECOND_US)) {
        return kv_fail_at(info, KV_E_INVALID_REQUEST, "/until", "in the future, and at most %lld seconds ahead",
                          (long long)KV_MAX_PIN_SECONDS);
    }
    if (tx->row.expires_us != 0 && tx->until_us > tx->row.expires_us) {
        return kv_fail_at(info, KV_E_CEILING, "/until", "the session's whole lifetime ends before that");
    }
    tx->same = tx->until_us == tx->row.pinned_until_us;
    tx->row.pinned_until_us = tx->until_us;
    return KV_OK;
}

KV_RC kv_svc_session_pin(struct kv_call *call, const struct kv_id *session, uint64_t until_us,
                         struct kv_session_view *ret_session)
{
    struct change_tx tx = {.call = call,
                           .session = *session,
                           .change = apply_pin,
                           .recorded = true,
                           .op = until_us == 0 ? KV_AUDIT_SESSION_UNPIN : KV_AUDIT_SESSION_PIN,
                           .until_us = until_us,
                           .view = ret_session};
    return change(&tx, KV_TX_SESSION_PIN);
}
