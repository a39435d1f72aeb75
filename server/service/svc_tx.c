/*
 * The frame of every change: effect, audit entry, change number and the answer for an Idempotency-Key become durable
 * together or not at all. A dry run is the same transaction, rolled back, so it cannot promise what the real one would
 * refuse. Must never let an effect commit without its answer when the caller sent a key.
 */
#include "server/service/svc_int.h"
#include "server/service/svc_metrics.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct change {
    struct kv_call *call;
    kv_pg_tx_fn fn;
    void *ctx;
    bool would; /* a dry run got to its end */
};

static uint64_t now_us(const struct kv_call *call)
{
    return call->svc->env->realtime_us(call->svc->env->ctx);
}

/* The kept answer, if there is one; a key that was used for something else is refused before anything is looked at. */
static KV_RC find_kept(struct kv_call *call, struct kv_errinfo *info)
{
    struct kv_once *once = call->once;
    enum kv_err rc = kv_store_once_get(call->pg, &once->key, now_us(call), info, &once->kept, &once->body);
    if (rc == KV_E_NOT_FOUND) {
        return KV_OK;
    }
    KV_TRY(rc);
    if (memcmp(once->fingerprint, once->kept.fingerprint, sizeof once->fingerprint) != 0) {
        svc_metrics_once(SVC_ONCE_MISMATCH);
        return kv_fail(info, KV_E_IDEMPOTENCY_MISMATCH,
                       "this Idempotency-Key was used for a request with another path, query or body; draw a new one");
    }
    once->replay = true;
    svc_metrics_once(SVC_ONCE_REPLAY);
    return KV_OK;
}

KV_RC kv_svc_once_find(struct kv_call *call)
{
    return find_kept(call, &call->info);
}

static KV_RC begin_once(struct kv_call *call, struct kv_errinfo *info)
{
    if (call->once == NULL) {
        return KV_OK;
    }
    enum kv_err rc = kv_store_once_lock(call->pg, &call->once->key, call->once->fingerprint, info);
    if (rc == KV_E_IDEMPOTENCY_IN_PROGRESS || rc == KV_E_IDEMPOTENCY_MISMATCH) {
        svc_metrics_once(rc == KV_E_IDEMPOTENCY_MISMATCH ? SVC_ONCE_MISMATCH : SVC_ONCE_CONFLICT);
    }
    KV_TRY(rc);
    KV_TRY(find_kept(call, info));
    return call->once->replay ? kv_fail(info, KV_E_STALE, "this request was answered meanwhile") : KV_OK;
}

static void copy_text(char *target, size_t size, const char *text)
{
    snprintf(target, size, "%s", text == NULL ? "" : text);
}

static KV_RC keep_answer(struct kv_call *call, const struct kv_answer *answer, struct kv_errinfo *info)
{
    struct kv_store_once *kept = &call->once->kept;
    *kept = (struct kv_store_once){.key = call->once->key, .status = answer->status, .has_body = !answer->secret};
    memcpy(kept->fingerprint, call->once->fingerprint, sizeof kept->fingerprint);
    copy_text(kept->location, sizeof kept->location, answer->location);
    copy_text(kept->etag, sizeof kept->etag, answer->etag);
    copy_text(kept->content_type, sizeof kept->content_type, answer->content_type);
    copy_text(kept->request_id, sizeof kept->request_id, call->request_id);
    kept->created_us = now_us(call);
    kept->expires_us =
        call->once->for_ever ? 0 : kept->created_us + (uint64_t)KV_MAX_IDEMPOTENCY_SECONDS * UINT64_C(1000000);
    return kv_store_once_insert(call->pg, kept, answer->body, info);
}

static KV_RC change_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct change *change = ctx;
    struct kv_call *call = change->call;
    KV_TRY(begin_once(call, info));
    KV_TRY(change->fn(pg, change->ctx, info));
    if (call->dry_run) {
        change->would = true;
        return KV_E_STALE; /* rolls back */
    }
    if (call->render == NULL) {
        return KV_OK;
    }
    struct kv_answer answer = {.location = "", .etag = "", .content_type = ""};
    call->render(call->render_ctx, &answer);
    return call->once == NULL ? KV_OK : keep_answer(call, &answer, info);
}

KV_RC svc_tx(struct kv_call *call, enum kv_tx what, kv_pg_tx_fn fn, void *ctx)
{
    struct change change = {.call = call, .fn = fn, .ctx = ctx};
    enum kv_err rc = kv_pg_tx(call->pg, what, change_tx, &change, &call->info, NULL);
    return rc == KV_E_STALE && change.would ? KV_OK : rc;
}

void svc_changed(struct kv_svc *svc)
{
    atomic_fetch_add(&svc->change_stamp, 1);
}

KV_RC svc_match(const struct kv_call *call, uint64_t rev, struct kv_errinfo *info)
{
    if (!call->match.present || call->match.any || call->match.rev == rev) {
        return KV_OK;
    }
    return kv_fail(info, KV_E_PRECONDITION_FAILED,
                   "the resource is at revision %" PRIu64 ", not at the one of If-Match; read it again", rev);
}

const char *svc_role_name(unsigned roles)
{
    static const struct {
        enum kv_role role;
        const char *name;
    } names[] = {
        {KV_ROLE_OPERATOR, "operator"},         {KV_ROLE_SECURITY_OFFICER, "security_officer"},
        {KV_ROLE_TENANT_ADMIN, "tenant_admin"}, {KV_ROLE_ENGINE, "engine"},
        {KV_ROLE_AUDITOR, "auditor"},           {KV_ROLE_VIEWER, "viewer"},
        {KV_ROLE_METRICS, "metrics"},
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if ((roles & (unsigned)names[i].role) != 0) {
            return names[i].name;
        }
    }
    return "system";
}
