/*
 * Groups of erasures. Which sessions a group means is decided by one statement, so that taking on, counting and a dry
 * run cannot differ.
 */
#include "server/store/store_group.h"

#include "server/store/pg_int.h"

#include <string.h>

static const char *const scope_names[] = {"label", "idle", "tenant"};
static const char *const state_names[] = {"expanding", "running", "certified", "quarantined"};

const char *kv_group_scope_name(enum kv_group_scope scope)
{
    return scope_names[scope];
}

KV_RC kv_store_group_insert(struct kv_pg *pg, const struct kv_store_group *group, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "group_insert", "INSERT INTO erasure_group (id, tenant_id, scope, label, idle_before, cutoff, basis,"
                        " reason_sha256, reference_sha256, requested_by, requested_role, state, created_at)"
                        " VALUES ($1, $2, $3, $4::text::jsonb, $5, $6, $7, $8, $9, $10, $11, 'expanding', $12)"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &group->id);
    kv_pg_arg_id(&args, &group->tenant);
    kv_pg_arg_text(&args, scope_names[group->scope]);
    kv_pg_arg_text_or_null(&args, group->label);
    kv_pg_arg_time_or_null(&args, group->idle_before_us);
    kv_pg_arg_time(&args, group->cutoff_us);
    kv_pg_arg_text(&args, group->basis);
    kv_pg_arg_text_or_null(&args, group->reason_sha256);
    kv_pg_arg_text_or_null(&args, group->reference_sha256);
    kv_pg_arg_id_or_null(&args, &group->requested_by);
    kv_pg_arg_text(&args, group->requested_role);
    kv_pg_arg_time(&args, group->created_us);
    uint64_t rows = 0;
    return kv_pg_change(pg, &query, &args, info, &rows);
}

#define SELECT_GROUP                                                                                         \
    "SELECT id, tenant_id, scope, label::text, idle_before, cutoff, basis, reason_sha256, reference_sha256," \
    " requested_by, requested_role, state, sessions, created_at, ended_at FROM erasure_group "

static KV_RC fill(struct kv_pg_row *row, void *ret)
{
    struct kv_store_group *group = ret;
    kv_pg_get_id(row, &group->id);
    kv_pg_get_id(row, &group->tenant);
    group->scope = (enum kv_group_scope)kv_pg_get_word(row, scope_names, 3);
    kv_pg_get_text(row, group->label, sizeof group->label);
    group->idle_before_us = kv_pg_get_time(row);
    group->cutoff_us = kv_pg_get_time(row);
    kv_pg_get_text(row, group->basis, sizeof group->basis);
    kv_pg_get_text(row, group->reason_sha256, sizeof group->reason_sha256);
    kv_pg_get_text(row, group->reference_sha256, sizeof group->reference_sha256);
    kv_pg_get_id(row, &group->requested_by);
    kv_pg_get_text(row, group->requested_role, sizeof group->requested_role);
    group->state = (enum kv_group_state)kv_pg_get_word(row, state_names, 4);
    group->sessions = kv_pg_get_u64(row);
    group->created_us = kv_pg_get_time(row);
    group->ended_us = kv_pg_get_time(row);
    return KV_OK;
}

static const char *const no_group = "there is no such erasure";

KV_RC kv_store_group_get(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                         struct kv_store_group *ret_group)
{
    static const struct kv_pg_query query = {"group_get", SELECT_GROUP "WHERE id = $1"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, id);
    struct kv_pg_one one = {.query = &query, .args = &args, .none = KV_E_NOT_FOUND, .none_text = no_group};
    return kv_pg_fetch_one(pg, &one, fill, ret_group, info);
}

KV_RC kv_store_group_lock(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                          struct kv_store_group *ret_group)
{
    static const struct kv_pg_query query = {"group_lock", SELECT_GROUP "WHERE id = $1 FOR UPDATE"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, id);
    struct kv_pg_one one = {
        .query = &query, .args = &args, .write = true, .none = KV_E_NOT_FOUND, .none_text = no_group};
    return kv_pg_fetch_one(pg, &one, fill, ret_group, info);
}

KV_RC kv_store_group_list_open(struct kv_pg *pg, size_t max, struct kv_errinfo *info, struct kv_store_group *ret_list,
                               size_t *ret_count)
{
    static const struct kv_pg_query query = {"group_list_open", SELECT_GROUP
                                             "WHERE ended_at IS NULL AND (state = 'expanding' OR NOT EXISTS"
                                             " (SELECT FROM erasure e WHERE e.group_id = erasure_group.id"
                                             " AND e.state = 'blocked_hold')) ORDER BY created_at, id LIMIT $1"};
    struct kv_pg_args args = {0};
    kv_pg_arg_u64(&args, max);
    struct kv_pg_many many = {.query = &query, .args = &args, .max = max, .size = sizeof ret_list[0]};
    return kv_pg_fetch_many(pg, &many, fill, ret_list, ret_count, info);
}

KV_RC kv_store_group_set(struct kv_pg *pg, const struct kv_store_group *group, struct kv_errinfo *info)
{
    /* Of a label the name stays. Its value said of whom the sessions were, and nothing needs it any more. */
    static const struct kv_pg_query query = {
        "group_set", "UPDATE erasure_group SET state = $2, sessions = $3, ended_at = $4,"
                     " label = CASE WHEN $2 = 'expanding' OR label IS NULL THEN label ELSE"
                     " (SELECT jsonb_object_agg(name, NULL::text) FROM jsonb_object_keys(label) AS name) END"
                     " WHERE id = $1 AND ended_at IS NULL AND sessions <= $3"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &group->id);
    kv_pg_arg_text(&args, state_names[group->state]);
    kv_pg_arg_u64(&args, group->sessions);
    kv_pg_arg_time_or_null(&args, group->ended_us);
    return kv_pg_change_one(pg, &query, &args, info, "the erasure of many has ended already");
}

/* ---- which sessions are meant ---- */

/* When the log says that the session was used last: a transfer's entry is durable before the transfer is answered, so
 * it tells of uses that a crash took from memory, and of those at other instances. */
#define LAST_MOVED                                                                                                  \
    "(SELECT l.at FROM audit_leaf l WHERE l.session_id = session.id AND l.op IN ('block.offload', 'block.restore')" \
    " ORDER BY l.idx DESC LIMIT 1)"

#define MEANT                                                                                           \
    " FROM session WHERE tenant_id = $1 AND kind = 'session' AND state = 'active' AND created_at <= $2" \
    " AND slot >= (SELECT first_slot FROM tenant WHERE tenant.id = $1)"                                 \
    " AND ($3::text IS NULL OR labels @> $3::text::jsonb)"                                              \
    " AND ($4::timestamptz IS NULL OR (coalesce(last_used_at, created_at) < $4"                         \
    " AND (pinned_until IS NULL OR pinned_until <= $2) AND coalesce(" LAST_MOVED " < $4, true)))"       \
    " AND ($5::bytea IS NULL OR created_by = $5)"

static void arg_meant(struct kv_pg_args *args, const struct kv_store_group *group)
{
    bool own = strcmp(group->requested_role, "engine") == 0;
    kv_pg_arg_id(args, &group->tenant);
    kv_pg_arg_time(args, group->cutoff_us);
    kv_pg_arg_text_or_null(args, group->label);
    kv_pg_arg_time_or_null(args, group->idle_before_us);
    kv_pg_arg_id_or_null(args, own ? &group->requested_by : NULL);
}

KV_RC kv_store_group_match(struct kv_pg *pg, const struct kv_store_group *group, size_t max, struct kv_errinfo *info,
                           struct kv_id *ret_sessions, size_t *ret_count)
{
    static const struct kv_pg_query query = {"group_match", "SELECT id" MEANT " ORDER BY id LIMIT $6"};
    if (max > KV_STORE_IDS_MAX) {
        return kv_fail(info, KV_E_LIMIT, "at most %d ids at once", KV_STORE_IDS_MAX);
    }
    struct kv_pg_args args = {0};
    arg_meant(&args, group);
    kv_pg_arg_u64(&args, max);
    struct kv_pg_many many = {.query = &query, .args = &args, .max = max, .size = sizeof ret_sessions[0]};
    return kv_pg_fetch_many(pg, &many, kv_pg_fill_id, ret_sessions, ret_count, info);
}

KV_RC kv_store_group_match_count(struct kv_pg *pg, const struct kv_store_group *group, struct kv_errinfo *info,
                                 uint64_t *ret_count)
{
    static const struct kv_pg_query query = {"group_match_count", "SELECT count(*)" MEANT};
    struct kv_pg_args args = {0};
    arg_meant(&args, group);
    struct kv_pg_one one = {.query = &query, .args = &args, .none = KV_E_CORRUPT, .none_text = "no answer"};
    return kv_pg_fetch_one(pg, &one, kv_pg_fill_u64, ret_count, info);
}

KV_RC kv_store_group_tenant_erased(struct kv_pg *pg, const struct kv_id *tenant, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "group_tenant_erased",
        "UPDATE tenant SET state = 'erased', rev = rev + 1 WHERE id = $1 AND state = 'erasing'"
        " AND NOT EXISTS (SELECT FROM session WHERE tenant_id = $1 AND state NOT IN ('erased', 'lost'))"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, tenant);
    uint64_t rows = 0;
    return kv_pg_change(pg, &query, &args, info, &rows);
}

/* ---- how far it is ---- */

/* What every erasure of a group reached: the least of their states, and what is stuck counts before what is done. */
#define REACHED                                                                                                 \
    "coalesce((ARRAY['requested', 'fenced', 'staged', 'rekeyed', 'destroyed', 'purged', 'verified',"            \
    " 'blocked_hold', 'needs_approval', 'quarantined'])[min(array_position(ARRAY['requested', 'fenced',"        \
    " 'staged', 'rekeyed', 'destroyed', 'purged', 'verified', 'blocked_hold', 'needs_approval', 'quarantined'," \
    " 'certified'], state))], 'certified')"

/* In the order of enum kv_erasure_state. */
#define PROGRESS                                                                                                 \
    "SELECT " REACHED ", count(*) FILTER (WHERE state = 'requested'), count(*) FILTER (WHERE state = 'fenced')," \
    " count(*) FILTER (WHERE state = 'staged'), count(*) FILTER (WHERE state = 'rekeyed'),"                      \
    " count(*) FILTER (WHERE state = 'destroyed'), count(*) FILTER (WHERE state = 'purged'),"                    \
    " count(*) FILTER (WHERE state = 'verified'), count(*) FILTER (WHERE state = 'certified'),"                  \
    " count(*) FILTER (WHERE state = 'blocked_hold'), count(*) FILTER (WHERE state = 'needs_approval'),"         \
    " count(*) FILTER (WHERE state = 'quarantined'), max(requested_at), max(fenced_at), max(staged_at),"         \
    " max(rekeyed_at), max(destroyed_at), max(purged_at), max(verified_at), max(certified_at),"                  \
    " max(blocked_hold_at), max(needs_approval_at), max(quarantined_at) FROM erasure WHERE group_id = "

static KV_RC fill_progress(struct kv_pg_row *row, void *ret)
{
    struct kv_store_group_progress *progress = ret;
    const char *names[KV_ERASURE_STATES];
    for (unsigned state = 0; state < KV_ERASURE_STATES; state++) {
        names[state] = kv_erasure_state_name(state);
    }
    progress->reached = (enum kv_erasure_state)kv_pg_get_word(row, names, KV_ERASURE_STATES);
    for (unsigned state = 0; state < KV_ERASURE_STATES; state++) {
        progress->states[state] = kv_pg_get_u64(row);
    }
    for (unsigned state = 0; state < KV_ERASURE_STATES; state++) {
        progress->last_us[state] = kv_pg_get_time(row);
    }
    return KV_OK;
}

KV_RC kv_store_group_progress(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                              struct kv_store_group_progress *ret_progress)
{
    static const struct kv_pg_query query = {"group_progress", PROGRESS "$1"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, id);
    struct kv_pg_one one = {.query = &query, .args = &args, .none = KV_E_CORRUPT, .none_text = "no answer"};
    return kv_pg_fetch_one(pg, &one, fill_progress, ret_progress, info);
}

static KV_RC fill_status(struct kv_pg_row *row, void *ret)
{
    struct kv_store_group_status *status = ret;
    KV_TRY(fill(row, &status->group));
    return fill_progress(row, &status->progress);
}

/* The page first, so that only its groups have their erasures counted; one statement, so that state and numbers are of
 * the same moment. */
#define LIST_GROUPS                                                                                       \
    "WITH page AS MATERIALIZED (" SELECT_GROUP "WHERE tenant_id = $1 AND ($2::text IS NULL OR $2 = CASE"  \
    " WHEN state = 'expanding' THEN 'requested' WHEN state <> 'running' THEN state ELSE (SELECT " REACHED \
    " FROM erasure WHERE group_id = erasure_group.id) END)"
#define WITH_PROGRESS(way)                                                                                          \
    ") SELECT page.*, progress.* FROM page, LATERAL (" PROGRESS "page.id) AS progress ORDER BY page.created_at" way \
    ", page.id" way

KV_RC kv_store_group_page(struct kv_pg *pg, const struct kv_id *tenant, const char *state, struct kv_page *page,
                          struct kv_errinfo *info, struct kv_store_group_status *ret_list, size_t *ret_count)
{
    static const struct kv_pg_query queries[] = {
        {"group_page", LIST_GROUPS KV_PG_PAGE_DESC("created_at", "id", "3", "4", "5") WITH_PROGRESS(" DESC")},
        {"group_page_up", LIST_GROUPS KV_PG_PAGE_ASC("created_at", "id", "3", "4", "5") WITH_PROGRESS("")}};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, tenant);
    kv_pg_arg_text_or_null(&args, state);
    return kv_pg_fetch_page(pg, &queries[page->ascending ? 1 : 0], &args, page,
                            &(struct kv_pg_paged){fill_status, sizeof ret_list[0], ret_list, ret_count}, info);
}
