/*
 * Offload, restore, lookup: policy, block ids under the session's key, the engine, the answer. Nothing here waits for
 * the database when the session was used before in this process.
 */
#include "server/service/svc_int.h"
#include "server/service/svc_metrics.h"

#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"
#include "dataplane/crypto/hash.h"
#include "server/service/svc_rules.h"
#include "server/service/svc_shared.h"

#include <string.h>

/* Length-prefixed, so that no two tuples give the same bytes. */
static void put_field(struct kv_bytes *parts, uint8_t lens[][2], size_t field, const void *data, size_t len)
{
    lens[field][0] = (uint8_t)(len >> 8);
    lens[field][1] = (uint8_t)len;
    parts[2 * field] = KV_BYTES(lens[field], 2);
    parts[2 * field + 1] = KV_BYTES(data, len);
}

/* block_id = HMAC-SHA-256(K_id, model id | revision | fingerprint | adapter | layout | group | chained token hash). */
static KV_RC block_ids(const struct kv_secret *key, const struct kv_model *model, const uint8_t *layout,
                       const struct kv_blocks_in *in, struct kv_block_id *ret_ids)
{
    enum { FIELDS = 7 };
    static const uint8_t group[2] = {0, 0};
    struct kv_bytes parts[2 * FIELDS];
    uint8_t lens[FIELDS][2];
    put_field(parts, lens, 0, model->id, strlen(model->id));
    put_field(parts, lens, 1, model->revision, strlen(model->revision));
    put_field(parts, lens, 2, model->fingerprint, sizeof model->fingerprint);
    put_field(parts, lens, 3, "", 0); /* no adapter */
    put_field(parts, lens, 4, layout, 32);
    put_field(parts, lens, 5, group, sizeof group);
    for (uint32_t i = 0; i < in->count; i++) {
        put_field(parts, lens, 6, in->hashes[i], 32);
        KV_TRY(kv_hmac_sha256(key, parts, sizeof parts / sizeof parts[0], ret_ids[i].b));
    }
    return KV_OK;
}

struct prepared {
    struct svc_session session;
    bool scope_there;        /* that it shares; else its blocks are to be recomputed */
    struct kv_pool *pool;    /* one reference */
    struct kv_block_id *ids; /* owned */
    uint32_t tiers_allowed;
    struct kv_transfer_limits limits;
    uint64_t versions[2]; /* of the policies that decided */
};

static void prepared_done(struct prepared *prepared)
{
    kv_pool_unref(prepared->pool);
    kv_free(prepared->ids);
}

static uint64_t seconds_since(const struct kv_call *call, uint64_t us)
{
    uint64_t now = call->svc->env->realtime_us(call->svc->env->ctx);
    return now > us ? (now - us) / 1000000 : 0;
}

static uint64_t or_none(uint64_t limit)
{
    return limit == KV_POLICY_NO_LIMIT ? 0 : limit;
}

/* What the engine keeps to while it stores: it alone knows at each moment what is there. */
static void limits_of(const struct kv_policy_bounds *bounds, struct kv_transfer_limits *limits)
{
    limits->version = bounds->versions[0] + bounds->versions[1]; /* both only count up */
    limits->session_bytes = or_none(bounds->session_bytes);
    limits->session_blocks = or_none(bounds->session_blocks);
    for (unsigned i = 0; i < KV_POLICY_STORING_TIERS; i++) {
        limits->tenant_bytes[KV_TIER_DRAM + i] = or_none(bounds->tenant_bytes[i]);
        limits->session_tier_bytes[KV_TIER_DRAM + i] = or_none(bounds->session_tier_bytes[i]);
    }
}

static KV_RC decide(struct kv_call *call, enum kv_policy_action action, const struct kv_blocks_in *in,
                    const struct svc_pool_names *names, struct prepared *prepared)
{
    struct svc_session *session = &prepared->session;
    struct svc_verdict verdict;
    struct kv_policy_facts facts = {.action = action,
                                    .session_active = !session->revoked,
                                    .same_tenant = kv_id_equal(&session->tenant, &call->who.tenant),
                                    .shared = in->shared > 0,
                                    .durable_asked = action == KV_POLICY_OFFLOAD && in->wait == KV_WAIT_DURABLE,
                                    .block_bytes = kv_pool_block_bytes(prepared->pool),
                                    .session_age_s = seconds_since(call, session->created_us)};
    KV_TRY(svc_rules_transfer(call, session, names, &facts, &verdict));
    prepared->tiers_allowed = verdict.tiers_allowed;
    limits_of(&verdict.bounds, &prepared->limits);
    memcpy(prepared->versions, verdict.bounds.versions, sizeof prepared->versions);
    return KV_OK;
}

/* Of the scope's blocks and of the session's own, each under its owner's key. */
static struct kv_blocks_in shared_part(const struct prepared *prepared, const struct kv_blocks_in *in)
{
    struct kv_blocks_in part = *in;
    part.session = prepared->session.shared;
    part.count = in->shared;
    part.shared = 0;
    return part;
}

static struct kv_blocks_in own_part(const struct kv_blocks_in *in)
{
    struct kv_blocks_in part = *in;
    part.count -= in->shared;
    part.hashes += in->shared;
    part.slots += in->slots == NULL ? 0 : in->shared;
    part.generations += in->generations == NULL ? 0 : in->shared;
    part.shared = 0;
    return part;
}

static KV_RC part_ids(struct kv_call *call, const struct kv_model *model, const struct kv_blocks_in *part,
                      const struct prepared *prepared, struct kv_block_id *ret_ids)
{
    struct kv_scope_keys keys;
    KV_TRY(kv_keyring_borrow(call->svc->keyring, &part->session, &keys));
    enum kv_err rc = block_ids(keys.ids, model, kv_pool_fingerprint(prepared->pool), part, ret_ids);
    kv_keyring_return(call->svc->keyring, &keys);
    return rc;
}

static KV_RC prepare_ids(struct kv_call *call, const struct kv_model *model, const struct kv_blocks_in *in,
                         struct prepared *prepared)
{
    prepared->ids = kv_alloc_array(in->count, sizeof *prepared->ids);
    if (prepared->ids == NULL) {
        return KV_E_NO_MEMORY;
    }
    struct kv_blocks_in shared = shared_part(prepared, in), own = own_part(in);
    if (prepared->scope_there) {
        enum kv_err rc = part_ids(call, model, &shared, prepared, prepared->ids);
        prepared->scope_there = rc != KV_E_SESSION_ERASED; /* in this moment */
        KV_TRY(prepared->scope_there ? rc : KV_OK);
    }
    return part_ids(call, model, &own, prepared, prepared->ids + in->shared);
}

static KV_RC open_both(struct kv_call *call, const struct kv_blocks_in *in, struct prepared *prepared)
{
    KV_TRY(svc_session_open(call, &in->session, &prepared->session));
    if (prepared->session.is_scope) { /* its blocks are moved through the sessions that share it */
        return kv_fail(&call->info, KV_E_NOT_FOUND, "no such session");
    }
    if (in->shared > in->count) {
        return kv_fail_at(&call->info, KV_E_INVALID_REQUEST, "/shared_blocks", "0 to the number of hashes, %u",
                          in->count);
    }
    return in->shared == 0 ? KV_OK : svc_shared_open(call, &prepared->session, &prepared->scope_there);
}

static KV_RC prepare(struct kv_call *call, enum kv_policy_action action, const struct kv_blocks_in *in,
                     struct prepared *prepared)
{
    struct svc_pool_names names;
    KV_TRY(svc_may_work(call->svc, &call->info));
    KV_TRY(open_both(call, in, prepared));
    KV_TRY(svc_pool_borrow(call, &in->pool, &prepared->pool, &names));
    KV_TRY(decide(call, action, in, &names, prepared));
    prepared->tiers_allowed &= ~atomic_load(&call->svc->tiers_draining);
    return prepare_ids(call, &names.model, in, prepared);
}

/* A session revoked in the middle answers like one that was erased before. */
static KV_RC explain(struct kv_call *call, const struct kv_id *session, enum kv_err rc)
{
    struct svc_session now;
    if (rc == KV_E_SESSION_ERASED || rc == KV_E_FENCED) {
        enum kv_err again = svc_session_open(call, session, &now);
        return again == KV_OK ? kv_fail(&call->info, KV_E_SESSION_ERASED, "this session is being erased") : again;
    }
    if (rc == KV_E_MISSING) { /* keys closed between the check and the use: the next try opens them again */
        return kv_fail(&call->info, KV_E_BUSY, "the session's keys were closed meanwhile; try again");
    }
    /* Without a lease the keys are wiped, and opening them again asks the database: the lease is the cause. */
    bool lease_lost = rc == KV_E_DB_UNAVAILABLE && !kv_keyring_lease_valid(call->svc->keyring);
    if (rc == KV_E_LEASE_EXPIRED || lease_lost) {
        return kv_fail(&call->info, KV_E_LEASE_EXPIRED,
                       "the instance cannot reach its database and its lease ran out; try again when it is back");
    }
    if (rc == KV_E_AUDIT_UNAVAILABLE) {
        return kv_fail(&call->info, rc, "transfer records cannot be written now; see /readyz");
    }
    if (rc == KV_E_BUSY) {
        return kv_fail(&call->info, rc, "the data plane's queue is full; try again in a few milliseconds");
    }
    return rc;
}

static KV_RC check_slots(struct kv_call *call, const struct kv_blocks_in *in, const struct kv_pool *pool)
{
    for (uint32_t i = 0; i < in->count; i++) {
        if (in->slots[i] >= kv_pool_slots(pool)) {
            return kv_fail_at(&call->info, KV_E_INVALID_REQUEST, "/slots",
                              "slot %u at index %u is outside the pool's %u slots", in->slots[i], i,
                              kv_pool_slots(pool));
        }
    }
    return KV_OK;
}

/* Submits and waits. After the deadline the operation is cancelled, and the wait goes on until nothing touches the
 * pages any more: that is what the caller is promised, and the engine ends every operation. */
static KV_RC run(struct kv_call *call, struct kv_transfer *transfer)
{
    struct kv_engine *engine = call->svc->engine;
    uint64_t begun = kv_now_ns(call->svc->env);
    KV_TRY(kv_future_new(&transfer->future));
    enum kv_err rc = kv_engine_submit(engine, transfer);
    if (rc == KV_OK) {
        rc = kv_future_wait(transfer->future, transfer->deadline_ns + KV_S_NS);
        if (rc == KV_E_TIMEOUT) {
            kv_engine_cancel(engine, &transfer->op);
            rc = kv_future_wait(transfer->future, UINT64_MAX);
        }
    }
    kv_future_free(transfer->future);
    call->engine_ns += kv_now_ns(call->svc->env) - begun;
    return rc;
}

static KV_RC transfer(struct kv_call *call, const struct prepared *prepared, enum kv_transfer_kind kind,
                      const struct kv_blocks_in *in, struct kv_blocks_out *out)
{
    uint64_t wait_ms = in->deadline_ms == 0 ? (uint64_t)KV_MAX_TRANSFER_MS : in->deadline_ms;
    struct kv_transfer transfer = {.kind = kind,
                                   .wait = in->wait,
                                   .tenant = prepared->session.tenant,
                                   .scope = in->session,
                                   .pool = prepared->pool,
                                   .count = in->count,
                                   .block_ids = prepared->ids,
                                   .slots = in->slots,
                                   .tiers_allowed = prepared->tiers_allowed,
                                   .limits = prepared->limits,
                                   .has_policy = true,
                                   .policy_versions = {prepared->versions[0], prepared->versions[1]},
                                   .deadline_ns = kv_now_ns(call->svc->env) + wait_ms * KV_MS_NS,
                                   .results = out->results,
                                   .tiers = out->tiers};
    KV_TRY(kv_id_new(call->svc->env, &transfer.op));
    memcpy(transfer.trace, call->trace, sizeof transfer.trace);
    enum kv_err rc = run(call, &transfer);
    svc_views_drop(call->svc->views, &in->session); /* its usage is another one */
    KV_TRY(rc);
    svc_metrics_transfer(call->svc, &transfer.tenant, kv_pool_tokens(prepared->pool), &transfer);
    if (transfer.over_quota == in->count) {
        return kv_fail(&call->info, KV_E_QUOTA,
                       "the policy's bytes or blocks are used up; erase sessions, or ask for more");
    }
    out->op = transfer.op;
    out->done_blocks = transfer.done_blocks;
    out->leading_blocks = transfer.leading_blocks;
    out->bytes = transfer.done_bytes;
    out->duration_us = transfer.duration_ns / 1000;
    svc_tenant_moved(call->svc, &transfer.tenant, kind, transfer.done_blocks, transfer.done_bytes);
    out->present_blocks = 0;
    for (uint32_t i = 0; i < in->count; i++) {
        out->present_blocks += out->results[i] == KV_BLOCK_PRESENT;
    }
    return KV_OK;
}

/* The blocks of a call whose pages are fresh, in arrays of their own. */
struct fresh {
    uint32_t count, *index, *slots;
    struct kv_block_id *ids;
    enum kv_block_result *results;
    uint8_t *tiers;
};

static void fresh_done(struct fresh *fresh)
{
    kv_free(fresh->index);
    kv_free(fresh->slots);
    kv_free(fresh->ids);
    kv_free(fresh->results);
    kv_free(fresh->tiers);
}

static KV_RC fresh_alloc(struct fresh *fresh, uint32_t count)
{
    fresh->index = kv_alloc_array(count, sizeof *fresh->index);
    fresh->slots = kv_alloc_array(count, sizeof *fresh->slots);
    fresh->ids = kv_alloc_array(count, sizeof *fresh->ids);
    fresh->results = kv_alloc_array(count, sizeof *fresh->results);
    fresh->tiers = kv_alloc_array(count, sizeof *fresh->tiers);
    return fresh->index != NULL && fresh->slots != NULL && fresh->ids != NULL && fresh->results != NULL &&
                   fresh->tiers != NULL
               ? KV_OK
               : KV_E_NO_MEMORY;
}

static KV_RC transfer_fresh(struct kv_call *call, const struct prepared *prepared, enum kv_transfer_kind kind,
                            const struct kv_blocks_in *in, const struct fresh *fresh, struct kv_blocks_out *out)
{
    struct prepared those = *prepared;
    struct kv_blocks_in some = *in;
    struct kv_blocks_out part = {.results = fresh->results, .tiers = fresh->tiers};
    those.ids = fresh->ids;
    some.count = fresh->count;
    some.slots = fresh->slots;
    if (fresh->count == 0) {
        return kv_id_new(call->svc->env, &out->op);
    }
    KV_TRY(transfer(call, &those, kind, &some, &part));
    for (uint32_t i = 0; i < fresh->count; i++) {
        out->results[fresh->index[i]] = part.results[i];
        out->tiers[fresh->index[i]] = part.tiers[i];
    }
    part.results = out->results;
    part.tiers = out->tiers;
    *out = part;
    out->leading_blocks = 0;
    while (out->leading_blocks < in->count && out->results[out->leading_blocks] == KV_BLOCK_RESTORED) {
        out->leading_blocks++;
    }
    return KV_OK;
}

/* Blocks on pages that may not be used are answered `stale_page`; the others are transferred. */
static KV_RC transfer_guarded(struct kv_call *call, const struct prepared *prepared, enum kv_transfer_kind kind,
                              const struct kv_blocks_in *in, struct kv_blocks_out *out)
{
    struct svc_page_guard guard = {0};
    struct fresh fresh = {0};
    enum kv_err rc = fresh_alloc(&fresh, in->count);
    for (uint32_t i = 0; rc == KV_OK && i < in->count; i++) {
        out->results[i] = KV_BLOCK_STALE_PAGE;
        out->tiers[i] = KV_TIER_NONE;
        if (!svc_page_stale(call, prepared->pool, kind == KV_TRANSFER_OFFLOAD, in, i, &guard)) {
            fresh.index[fresh.count] = i;
            fresh.slots[fresh.count] = in->slots[i];
            fresh.ids[fresh.count++] = prepared->ids[i];
        }
    }
    if (rc == KV_OK) {
        rc = transfer_fresh(call, prepared, kind, in, &fresh, out);
    }
    fresh_done(&fresh);
    return rc;
}

static KV_RC move(struct kv_call *call, const struct prepared *prepared, enum kv_transfer_kind kind,
                  const struct kv_blocks_in *in, struct kv_blocks_out *out)
{
    KV_TRY(check_slots(call, in, prepared->pool));
    if (in->generations == NULL && !kv_pool_counts_uses(prepared->pool)) {
        return transfer(call, prepared, kind, in, out);
    }
    KV_TRY(transfer_guarded(call, prepared, kind, in, out));
    svc_pages_used(prepared->pool, in, out);
    return KV_OK;
}

/* --- shared blocks ------------------------------------------------------------------------------------------------ */

static KV_RC move_shared(struct kv_call *call, const struct prepared *prepared, enum kv_transfer_kind kind,
                         const struct kv_blocks_in *in, struct kv_blocks_out *out)
{
    struct kv_blocks_in part = shared_part(prepared, in);
    enum kv_err rc = prepared->scope_there ? move(call, prepared, kind, &part, out) : KV_E_SESSION_ERASED;
    if (rc != KV_E_SESSION_ERASED && rc != KV_E_FENCED) {
        return rc;
    }
    for (uint32_t i = 0; i < part.count; i++) { /* others, or its time, took the scope: its blocks are recomputed */
        out->results[i] = kind == KV_TRANSFER_RESTORE ? KV_BLOCK_MISSING : KV_BLOCK_ERASED;
        out->tiers[i] = KV_TIER_NONE;
    }
    call->info = (struct kv_errinfo){0};
    return kv_id_new(call->svc->env, &out->op);
}

static KV_RC move_own(struct kv_call *call, const struct prepared *prepared, enum kv_transfer_kind kind,
                      const struct kv_blocks_in *in, struct kv_blocks_out *out)
{
    struct kv_blocks_in part = own_part(in);
    struct prepared own = *prepared;
    own.ids += in->shared;
    if (part.count == 0) {
        return KV_OK;
    }
    return move(call, &own, kind, &part, out);
}

static void add_own(const struct kv_blocks_in *in, const struct kv_blocks_out *own, struct kv_blocks_out *out)
{
    bool whole = out->leading_blocks == in->shared;
    out->op = kv_id_is_zero(&own->op) ? out->op : own->op;
    out->leading_blocks += whole ? own->leading_blocks : 0;
    out->done_blocks += own->done_blocks;
    out->present_blocks += own->present_blocks;
    out->bytes += own->bytes;
    out->duration_us += own->duration_us;
}

static uint64_t milliseconds_left(const struct kv_call *call, const struct kv_blocks_in *in, uint64_t begun_ns)
{
    uint64_t wait_ms = in->deadline_ms == 0 ? (uint64_t)KV_MAX_TRANSFER_MS : in->deadline_ms;
    uint64_t gone_ms = (kv_now_ns(call->svc->env) - begun_ns) / KV_MS_NS;
    return gone_ms + 1 < wait_ms ? wait_ms - gone_ms : 1;
}

/* The scope's blocks, then the session's own: two transfers, each with its entry in the log, one answer. A part whose
 * quota is used up holds the other one up no more than blocks of one transfer do. */
static KV_RC move_all(struct kv_call *call, const struct prepared *prepared, enum kv_transfer_kind kind,
                      const struct kv_blocks_in *in, struct kv_blocks_out *out)
{
    if (in->shared == 0) {
        return move(call, prepared, kind, in, out);
    }
    struct kv_blocks_in rest = *in;
    struct kv_blocks_out own = {.results = out->results + in->shared, .tiers = out->tiers + in->shared};
    uint64_t begun_ns = kv_now_ns(call->svc->env);
    enum kv_err first = move_shared(call, prepared, kind, in, out);
    KV_TRY(first == KV_E_QUOTA && in->shared < in->count ? KV_OK : first);
    rest.deadline_ms = milliseconds_left(call, in, begun_ns);
    enum kv_err rc = move_own(call, prepared, kind, &rest, &own);
    KV_TRY(rc == KV_E_QUOTA && first == KV_OK ? KV_OK : rc);
    call->info = (struct kv_errinfo){0};
    add_own(in, &own, out);
    return KV_OK;
}

/* Of what the data plane was asked to do; what was refused before is in the caller's answer alone. */
static void publish(struct kv_call *call, const char *kind, const struct kv_blocks_in *in,
                    const struct kv_blocks_out *out, enum kv_err rc)
{
    struct kv_event event = {.type = rc == KV_OK ? KV_EVENT_TRANSFER_COMPLETED : KV_EVENT_TRANSFER_FAILED,
                             .tenant = call->who.tenant,
                             .session = in->session,
                             .name = kind,
                             .state = rc == KV_OK ? NULL : kv_err_name(rc),
                             .blocks = rc == KV_OK ? out->done_blocks : in->count,
                             .bytes = rc == KV_OK ? out->bytes : 0};
    svc_publish(call->svc, &event);
}

KV_RC kv_svc_offload(struct kv_call *call, const struct kv_blocks_in *in, struct kv_blocks_out *out)
{
    struct prepared prepared = {0};
    enum kv_err rc = prepare(call, KV_POLICY_OFFLOAD, in, &prepared);
    if (rc == KV_OK) {
        rc = move_all(call, &prepared, KV_TRANSFER_OFFLOAD, in, out);
        publish(call, "offload", in, out, rc);
    }
    prepared_done(&prepared);
    return rc == KV_OK ? KV_OK : explain(call, &in->session, rc);
}

KV_RC kv_svc_restore(struct kv_call *call, const struct kv_blocks_in *in, struct kv_blocks_out *out)
{
    struct prepared prepared = {0};
    enum kv_err rc = prepare(call, KV_POLICY_RESTORE, in, &prepared);
    if (rc == KV_OK) {
        rc = move_all(call, &prepared, KV_TRANSFER_RESTORE, in, out);
        publish(call, "restore", in, out, rc);
    }
    prepared_done(&prepared);
    return rc == KV_OK ? KV_OK : explain(call, &in->session, rc);
}

static KV_RC lookup_all(struct kv_call *call, const struct prepared *prepared, const struct kv_blocks_in *in,
                        struct kv_blocks_out *out)
{
    struct kv_engine *engine = call->svc->engine;
    memset(out->tiers, 0, in->shared);
    if (prepared->scope_there) {
        KV_TRY(kv_engine_lookup(engine, &prepared->session.shared, in->shared, prepared->ids, out->tiers));
    }
    return in->shared == in->count ? KV_OK
                                   : kv_engine_lookup(engine, &in->session, in->count - in->shared,
                                                      prepared->ids + in->shared, out->tiers + in->shared);
}

KV_RC kv_svc_lookup(struct kv_call *call, const struct kv_blocks_in *in, struct kv_blocks_out *out)
{
    struct prepared prepared = {0};
    enum kv_err rc = prepare(call, KV_POLICY_LOOKUP, in, &prepared);
    if (rc == KV_OK) {
        rc = lookup_all(call, &prepared, in, out);
    }
    out->leading_blocks = 0;
    while (rc == KV_OK && out->leading_blocks < in->count && out->tiers[out->leading_blocks] != 0) {
        out->leading_blocks++;
    }
    if (rc == KV_OK) {
        svc_metrics_lookup(call->svc, &prepared.session.tenant, kv_pool_tokens(prepared.pool), in, out);
    }
    prepared_done(&prepared);
    return rc == KV_OK ? KV_OK : explain(call, &in->session, rc);
}
