/*
 * Erasures of many sessions: one request, a group, and an erasure of its own for every session that it means. The
 * group's row says how far it is, so that whoever comes after a crash goes on where it was. A session is taken on in
 * one transaction with its revocation and audit entry, never by halves. Must never mean a session that was made after
 * the request, nor by idleness one that was used since: uses in memory are written before sessions are looked for.
 */
#include "server/service/erase_request.h"
#include "server/service/janitor.h"
#include "server/service/svc_entries.h"
#include "server/service/svc_hold.h"
#include "server/service/svc_shared.h"

#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "dataplane/base/log.h"
#include "dataplane/base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GROUPS_AT_ONCE 16

/* --- a new one --------------------------------------------------------------------------------------------------- */

KV_RC svc_label_text(const char *name, const char *value, char ret_label[KV_GROUP_LABEL_SIZE])
{
    struct kv_buf text;
    kv_buf_init(&text, KV_GROUP_LABEL_SIZE - 1);
    kv_buf_text(&text, "{");
    kv_buf_json_string(&text, name);
    kv_buf_text(&text, ":");
    kv_buf_json_string(&text, value);
    kv_buf_text(&text, "}");
    enum kv_err rc = kv_buf_check(&text);
    if (rc == KV_OK) {
        snprintf(ret_label, KV_GROUP_LABEL_SIZE, "%s", (const char *)text.data);
    }
    kv_buf_done(&text);
    return rc;
}

KV_RC svc_group_new(struct kv_call *call, const struct kv_erasure_new *in, struct kv_store_group *ret_group)
{
    static const enum kv_group_scope scopes[] = {
        [KV_SCOPE_LABEL] = KV_GROUP_LABEL, [KV_SCOPE_IDLE] = KV_GROUP_IDLE, [KV_SCOPE_TENANT] = KV_GROUP_TENANT};
    uint64_t now_us = call->svc->env->realtime_us(call->svc->env->ctx);
    *ret_group = (struct kv_store_group){.tenant = call->who.tenant,
                                         .scope = scopes[in->scope],
                                         .cutoff_us = now_us,
                                         .created_us = now_us,
                                         .requested_by = call->who.key};
    bool admin = (call->who.roles & KV_ROLE_TENANT_ADMIN) != 0;
    snprintf(ret_group->requested_role, sizeof ret_group->requested_role, "%s", admin ? "tenant_admin" : "engine");
    snprintf(ret_group->basis, sizeof ret_group->basis, "%s", in->basis);
    KV_TRY(kv_id_new(call->svc->env, &ret_group->id));
    KV_TRY(svc_erase_hash(&ret_group->id, in->reason, ret_group->reason_sha256));
    KV_TRY(svc_erase_hash(&ret_group->id, in->reference, ret_group->reference_sha256));
    ret_group->idle_before_us = in->scope == KV_SCOPE_IDLE ? in->idle_before_us : 0;
    return in->scope == KV_SCOPE_LABEL ? svc_label_text(in->label_key, in->label_value, ret_group->label) : KV_OK;
}

KV_RC svc_group_record(struct kv_svc *svc, struct kv_pg *pg, const struct kv_store_group *group,
                       struct kv_errinfo *info)
{
    struct kv_audit_event event = {.op = KV_AUDIT_ERASE_REQUEST,
                                   .realtime_us = group->created_us,
                                   .tenant = group->tenant,
                                   .actor = group->requested_by,
                                   .actor_role = group->requested_role,
                                   .subject = group->id,
                                   .subject_prefix = "era",
                                   .detail_sha256 = group->reason_sha256[0] == '\0' ? NULL : group->reason_sha256};
    return svc_audit(svc, pg, &event, KV_BYTES(NULL, 0), info);
}

/* --- taking sessions on ------------------------------------------------------------------------------------------ */

/* What the erasures of a group have in common. */
static void fill_row(struct kv_svc *svc, const struct kv_store_group *group, struct kv_store_erasure *row)
{
    *row = (struct kv_store_erasure){.tenant = group->tenant,
                                     .state = KV_ERASURE_REQUESTED,
                                     .requested_by = group->requested_by,
                                     .group = group->id};
    row->at_us[KV_ERASURE_REQUESTED] = svc->env->realtime_us(svc->env->ctx);
    snprintf(row->basis, sizeof row->basis, "%s", group->basis);
    snprintf(row->requested_role, sizeof row->requested_role, "%s", group->requested_role);
    snprintf(row->reason_sha256, sizeof row->reason_sha256, "%s", group->reason_sha256);
    snprintf(row->reference_sha256, sizeof row->reference_sha256, "%s", group->reference_sha256);
}

static KV_RC gather_requests(struct svc_entries *entries, struct kv_store_erasure *row,
                             const struct kv_store_meant *taken, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint8_t ref[SVC_REF_BYTES];
        row->id = taken[i].erasure;
        row->session = taken[i].session;
        const struct kv_audit_event event = svc_erase_event(row, ref);
        KV_TRY(svc_entries_event(entries, &event, ref));
    }
    return KV_OK;
}

static KV_RC record_requests(struct kv_svc *svc, struct kv_pg *pg, struct kv_store_erasure *row,
                             const struct kv_store_meant *taken, size_t count, struct kv_errinfo *info)
{
    struct svc_entries entries;
    enum kv_err rc = svc_entries_init(&entries, svc->env, count);
    rc = rc == KV_OK ? gather_requests(&entries, row, taken, count) : rc;
    rc = rc == KV_OK ? svc_entries_insert(&entries, pg, info) : rc;
    svc_entries_done(&entries);
    return rc;
}

static void note_taken(const struct kv_store_meant *rows, size_t count, struct svc_group_taken *taken)
{
    taken->count = count;
    for (size_t i = 0; i < count; i++) {
        taken->rows[i].session = rows[i].session;
        taken->rows[i].erasure = rows[i].erasure;
        taken->rows[i].state = kv_id_is_zero(&rows[i].hold) ? KV_ERASURE_REQUESTED : KV_ERASURE_BLOCKED_HOLD;
    }
}

/* A fixed number of statements, however many there are. Those that somebody else erases meanwhile are left out. */
static KV_RC take_on(struct kv_svc *svc, struct kv_pg *pg, const struct kv_store_group *group,
                     struct kv_store_meant *meant, size_t count, struct svc_group_taken *taken, struct kv_errinfo *info)
{
    struct kv_store_erasure *row KV_CLEANUP(kv_freep) = kv_alloc(sizeof *row);
    if (row == NULL) {
        return KV_E_NO_MEMORY;
    }
    fill_row(svc, group, row);
    KV_TRY(kv_store_revocations_next(pg, count, info, &row->revocation_seq));
    KV_TRY(kv_store_erasures_insert(pg, row, meant, count, info, meant, &count));
    KV_TRY(record_requests(svc, pg, row, meant, count, info));
    note_taken(meant, count, taken);
    return KV_OK;
}

static KV_RC leave_scopes(struct kv_svc *svc, struct kv_pg *pg, const struct kv_store_group *group,
                          struct kv_errinfo *info, struct svc_group_taken *taken)
{
    struct kv_id *ids KV_CLEANUP(kv_freep) = kv_alloc_array(taken->count + 1, sizeof *ids);
    struct kv_store_erasure *as KV_CLEANUP(kv_freep) = kv_alloc(sizeof *as);
    if (ids == NULL || as == NULL) {
        return KV_E_NO_MEMORY;
    }
    fill_row(svc, group, as);
    for (size_t i = 0; i < taken->count; i++) {
        ids[i] = taken->rows[i].session;
    }
    const struct svc_leaving leaving = {.sessions = {.ids = ids, .count = taken->count}, .as = as};
    return svc_shared_leave(svc, pg, &leaving, info, taken);
}

/* Those of the sessions that nobody uses at this moment: what was noted before is in their rows. Each gets the id of
 * its erasure. */
static KV_RC mean(struct kv_svc *svc, const struct kv_store_group *group, const struct kv_store_ids *sessions,
                  struct kv_store_meant *ret_meant, size_t *ret_count)
{
    size_t kept = 0;
    for (size_t i = 0; i < sessions->count; i++) {
        if (group->idle_before_us == 0 || svc_use_noted(svc, &sessions->ids[i]) < group->idle_before_us) {
            ret_meant[kept] = (struct kv_store_meant){.session = sessions->ids[i]};
            KV_TRY(kv_id_new(svc->env, &ret_meant[kept++].erasure));
        }
    }
    *ret_count = kept;
    return KV_OK;
}

static int by_session(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(struct kv_id)); /* each begins with its session's */
}

/* Those that a hold covers begin as blocked. Both are in the order of the sessions. */
static KV_RC find_held(struct kv_svc *svc, struct kv_pg *pg, const struct kv_store_ids *sessions,
                       struct kv_store_meant *meant, size_t count, struct kv_errinfo *info)
{
    struct kv_store_held *held KV_CLEANUP(kv_freep) = kv_alloc_array(sessions->count + 1, sizeof *held);
    size_t held_count = 0;
    if (held == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(svc_hold_find(svc, pg, sessions, info, held, &held_count));
    for (size_t i = 0; i < held_count; i++) {
        struct kv_store_meant *found = bsearch(&held[i], meant, count, sizeof *meant, by_session);
        if (found != NULL) {
            found->hold = held[i].hold;
        }
    }
    return KV_OK;
}

KV_RC svc_group_expand(struct kv_svc *svc, struct kv_pg *pg, struct kv_store_group *group, struct kv_errinfo *info,
                       struct svc_group_taken *taken)
{
    size_t max = (size_t)KV_MAX_ERASURE_EXPAND, count = 0, meant_count = 0;
    struct kv_id *ids KV_CLEANUP(kv_freep) = kv_alloc_array(max, sizeof *ids);
    struct kv_store_meant *meant KV_CLEANUP(kv_freep) = kv_alloc_array(max, sizeof *meant);
    if (ids == NULL || meant == NULL) {
        return KV_E_NO_MEMORY;
    }
    taken->count = 0;
    KV_TRY(kv_store_revocation_hold(pg, info)); /* nobody places a hold from here to the commit */
    KV_TRY(kv_store_group_match(pg, group, max, info, ids, &count));
    const struct kv_store_ids sessions = {.ids = ids, .count = count};
    KV_TRY(mean(svc, group, &sessions, meant, &meant_count));
    KV_TRY(find_held(svc, pg, &sessions, meant, meant_count, info));
    KV_TRY(meant_count == 0 ? KV_OK : take_on(svc, pg, group, meant, meant_count, taken, info));
    KV_TRY(leave_scopes(svc, pg, group, info, taken));
    group->sessions += taken->count;
    group->state = count < max ? KV_GROUP_RUNNING : KV_GROUP_EXPANDING;
    return kv_store_group_set(pg, group, info);
}

static void publish(struct kv_svc *svc, const struct kv_store_group *group, enum kv_erasure_state state)
{
    struct kv_event event = {.type = KV_EVENT_ERASURE_STATE,
                             .tenant = group->tenant,
                             .subject = group->id,
                             .subject_prefix = "era",
                             .state = kv_erasure_state_name(state)};
    svc_publish(svc, &event);
}

void svc_group_begin(struct kv_svc *svc, const struct kv_store_group *group, const struct svc_group_taken *taken)
{
    struct kv_store_erasure *row KV_CLEANUP(kv_freep) = kv_alloc(sizeof *row);
    for (size_t i = 0; row != NULL && i < taken->count; i++) {
        *row = (struct kv_store_erasure){.id = taken->rows[i].erasure,
                                         .tenant = group->tenant,
                                         .session = taken->rows[i].session,
                                         .state = taken->rows[i].state};
        svc_views_drop(svc->views, &row->session); /* before anybody hears of it */
        svc_erasure_publish(svc, row);
        KV_IGNORE(svc_session_revoke(svc, &row->tenant, &row->session, &row->id, kv_now_ns(svc->env)),
                  "the eraser fences again, with time to wait");
    }
    publish(svc, group, KV_ERASURE_REQUESTED);
    atomic_store(&svc->groups_open, true);
    svc_eraser_signal(svc);
    svc_janitor_signal(svc);
}

/* --- the janitor's step ------------------------------------------------------------------------------------------ */

struct group_tx {
    struct kv_svc *svc;
    struct kv_id id;
    struct kv_store_group group;
    struct svc_group_taken taken;
    bool ended;
};

static uint64_t open_members(const struct kv_store_group_progress *progress)
{
    uint64_t open = 0;
    for (unsigned state = KV_ERASURE_REQUESTED; state < KV_ERASURE_STATES; state++) {
        open += state == KV_ERASURE_CERTIFIED || state == KV_ERASURE_QUARANTINED ? 0 : progress->states[state];
    }
    return open;
}

static KV_RC end_group(struct kv_pg *pg, struct group_tx *tx, struct kv_errinfo *info)
{
    struct kv_store_group_progress progress;
    KV_TRY(kv_store_group_progress(pg, &tx->id, info, &progress));
    if (open_members(&progress) > 0) {
        return KV_OK;
    }
    bool all = progress.states[KV_ERASURE_QUARANTINED] == 0;
    tx->group.state = all ? KV_GROUP_CERTIFIED : KV_GROUP_QUARANTINED;
    tx->group.ended_us = tx->svc->env->realtime_us(tx->svc->env->ctx);
    KV_TRY(kv_store_group_set(pg, &tx->group, info));
    tx->ended = true;
    return all && tx->group.scope == KV_GROUP_TENANT ? kv_store_group_tenant_erased(pg, &tx->group.tenant, info)
                                                     : KV_OK;
}

static KV_RC group_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct group_tx *tx = ctx;
    tx->taken.count = 0;
    tx->ended = false;
    KV_TRY(kv_store_group_lock(pg, &tx->id, info, &tx->group));
    switch (tx->group.state) {
    case KV_GROUP_EXPANDING:
        return svc_group_expand(tx->svc, pg, &tx->group, info, &tx->taken);
    case KV_GROUP_RUNNING:
        return end_group(pg, tx, info);
    case KV_GROUP_CERTIFIED:
    case KV_GROUP_QUARANTINED:
        break;
    }
    return KV_OK;
}

static KV_RC step_group(struct group_tx *tx, struct kv_pg *pg, struct kv_errinfo *info, bool *more)
{
    KV_TRY(kv_pg_tx(pg, KV_TX_ERASE_GROUP_STEP, group_tx, tx, info, NULL));
    if (KV_FAULT("erase/group-step")) {
        return KV_E_INTERNAL;
    }
    if (tx->taken.count > 0) {
        svc_group_begin(tx->svc, &tx->group, &tx->taken);
    }
    *more = *more || tx->taken.count > 0;
    if (tx->ended) {
        bool all = tx->group.state == KV_GROUP_CERTIFIED;
        kv_log(all ? KV_LOG_INFO : KV_LOG_ERROR, "janitor", all ? "group-certified" : "group-quarantined",
               KV_FID("erasure", "era", &tx->id), KV_FU("sessions", tx->group.sessions));
        publish(tx->svc, &tx->group, all ? KV_ERASURE_CERTIFIED : KV_ERASURE_QUARANTINED);
    }
    return KV_OK;
}

static KV_RC step_groups(struct group_tx *tx, struct kv_store_group *groups, struct kv_pg *pg, struct kv_errinfo *info,
                         bool *ret_more)
{
    size_t count = 0;
    KV_TRY(kv_store_group_list_open(pg, GROUPS_AT_ONCE, info, groups, &count));
    atomic_store(&tx->svc->groups_open, count > 0);
    for (size_t i = 0; i < count; i++) {
        tx->id = groups[i].id;
        if (groups[i].scope == KV_GROUP_IDLE && groups[i].state == KV_GROUP_EXPANDING) {
            KV_TRY(svc_use_settle(tx->svc, pg, &groups[i].tenant, groups[i].idle_before_us, info));
        }
        KV_TRY(step_group(tx, pg, info, ret_more));
    }
    return KV_OK;
}

KV_RC svc_erase_groups(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info, bool *ret_more)
{
    struct kv_store_group *groups KV_CLEANUP(kv_freep) = kv_alloc_array(GROUPS_AT_ONCE, sizeof *groups);
    struct group_tx *tx KV_CLEANUP(kv_freep) = kv_alloc(sizeof *tx);
    if (groups == NULL || tx == NULL) {
        return KV_E_NO_MEMORY;
    }
    tx->svc = svc;
    tx->taken.rows = kv_alloc_array(SVC_GROUP_TAKEN_MAX, sizeof *tx->taken.rows);
    enum kv_err rc = tx->taken.rows == NULL ? KV_E_NO_MEMORY : step_groups(tx, groups, pg, info, ret_more);
    kv_free(tx->taken.rows);
    return rc;
}

/* --- what is said of it ------------------------------------------------------------------------------------------ */

static void put_steps(const struct kv_store_group *group, const struct kv_store_group_progress *progress,
                      struct kv_erasure_view *view)
{
    view->step_us[KV_ERASURE_REQUESTED] = group->created_us;
    for (unsigned state = KV_ERASURE_FENCED; state <= (unsigned)view->state && state <= KV_ERASURE_CERTIFIED; state++) {
        view->step_us[state] = progress->last_us[state];
    }
    if (view->state == KV_ERASURE_CERTIFIED && group->sessions == 0) {
        view->step_us[KV_ERASURE_CERTIFIED] = group->ended_us;
    }
}

void svc_label_name(const char *label, char ret_label[KV_GROUP_LABEL_SIZE])
{
    const char *name = label[0] == '\0' ? "" : strchr(label, '"') + 1; /* and a name has no quotes in it */
    if (label[0] != '\0') {
        snprintf(ret_label, KV_GROUP_LABEL_SIZE, "{\"%.*s\":null}", (int)strcspn(name, "\""), name);
    }
}

void svc_group_view(struct kv_svc *svc, const struct kv_store_group *group,
                    const struct kv_store_group_progress *progress, struct kv_erasure_view *ret_view)
{
    static const enum kv_erasure_scope scopes[] = {
        [KV_GROUP_LABEL] = KV_SCOPE_LABEL, [KV_GROUP_IDLE] = KV_SCOPE_IDLE, [KV_GROUP_TENANT] = KV_SCOPE_TENANT};
    /* While more may come, what all reached is the request. */
    enum kv_erasure_state state = group->state == KV_GROUP_EXPANDING ? KV_ERASURE_REQUESTED : progress->reached;
    *ret_view = (struct kv_erasure_view){.id = group->id,
                                         .tenant = group->tenant,
                                         .scope = scopes[group->scope],
                                         .state = state,
                                         .claim = svc_erase_claim(state),
                                         .requested_us = group->created_us,
                                         .idle_before_us = group->idle_before_us,
                                         .cutoff_us = group->cutoff_us,
                                         .expanding = group->state == KV_GROUP_EXPANDING,
                                         .sessions = group->sessions,
                                         .sessions_certified = progress->states[KV_ERASURE_CERTIFIED],
                                         .sessions_quarantined = progress->states[KV_ERASURE_QUARANTINED]};
    snprintf(ret_view->basis, sizeof ret_view->basis, "%s", group->basis);
    svc_label_name(group->label, ret_view->label);
    put_steps(group, progress, ret_view);
    if (!kv_erasure_ended(ret_view) && !kv_erasure_blocked(ret_view)) {
        ret_view->eta_ms = svc_erase_eta_ms(svc, open_members(progress));
    }
}
