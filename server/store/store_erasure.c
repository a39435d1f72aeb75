/*
 * Erasure jobs: the request, the walk through the states, what was found on the way.
 */
#include "server/store/store_erasure_int.h"

#include <string.h>

static const char *const state_names[KV_ERASURE_STATES] = {
    "requested", "fenced",    "staged",       "rekeyed",        "destroyed",   "purged",
    "verified",  "certified", "blocked_hold", "needs_approval", "quarantined",
};

const char *kv_erasure_state_name(enum kv_erasure_state state)
{
    return state_names[state];
}

static void fill_facts(struct kv_pg_row *row, struct kv_store_facts *facts)
{
    facts->blocks = kv_pg_get_u64(row);
    facts->bytes = kv_pg_get_u64(row);
    facts->dram_blocks = kv_pg_get_u64(row);
    facts->dram_bytes = kv_pg_get_u64(row);
    facts->nvme_blocks = kv_pg_get_u64(row);
    facts->nvme_bytes = kv_pg_get_u64(row);
    kv_pg_get_raw(row, facts->block_root, sizeof facts->block_root);
    facts->samples = kv_pg_get_u32(row);
    facts->control_opened = kv_pg_get_u32(row);
    facts->opened_after = kv_pg_get_u32(row);
    facts->checks = kv_pg_get_u32(row);
}

KV_RC kv_store_erasure_fill(struct kv_pg_row *row, void *ret)
{
    struct kv_store_erasure *erasure = ret;
    kv_pg_get_id(row, &erasure->id);
    kv_pg_get_id(row, &erasure->tenant);
    kv_pg_get_id(row, &erasure->session);
    erasure->slot = kv_pg_get_u32(row);
    erasure->directory_slot = kv_pg_get_u32(row);
    erasure->state = (enum kv_erasure_state)kv_pg_get_word(row, state_names, KV_ERASURE_STATES);
    kv_pg_get_text(row, erasure->basis, sizeof erasure->basis);
    kv_pg_get_text(row, erasure->reason_sha256, sizeof erasure->reason_sha256);
    kv_pg_get_id(row, &erasure->requested_by);
    kv_pg_get_text(row, erasure->requested_role, sizeof erasure->requested_role);
    erasure->revocation_seq = kv_pg_get_i64(row);
    kv_pg_get_id(row, &erasure->batch);
    for (int i = 0; i < KV_ERASURE_STATES; i++) {
        erasure->at_us[i] = kv_pg_get_time(row);
    }
    erasure->has_facts = kv_pg_get_bool(row);
    fill_facts(row, &erasure->facts);
    kv_pg_get_id(row, &erasure->certificate);
    erasure->certificate_index = kv_pg_get_i64(row);
    kv_pg_get_text(row, erasure->previous_sha256, sizeof erasure->previous_sha256);
    erasure->has_samples = kv_pg_get_bool(row);
    erasure->has_jws = kv_pg_get_bool(row);
    erasure->has_bundle = kv_pg_get_bool(row);
    kv_pg_get_id(row, &erasure->group);
    kv_pg_get_text(row, erasure->reference_sha256, sizeof erasure->reference_sha256);
    kv_pg_get_text(row, erasure->scope, sizeof erasure->scope);
    erasure->whole_tenant = kv_pg_get_bool(row);
    kv_pg_get_id(row, &erasure->tree);
    erasure->first_slot = kv_pg_get_u32(row);
    erasure->sessions = kv_pg_get_u64(row);
    struct kv_bytes root = kv_pg_get_bytes(row);
    erasure->has_sessions = root.len == sizeof erasure->sessions_root;
    if (erasure->has_sessions) {
        memcpy(erasure->sessions_root, root.data, root.len);
    }
    kv_pg_get_id(row, &erasure->hold);
    erasure->unblocked_us = kv_pg_get_time(row);
    return KV_OK;
}

/* ---- the request ---- */

static KV_RC insert_row(struct kv_pg *pg, const struct kv_store_erasure *erasure,
                        const struct kv_store_session *session, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "erasure_insert", "INSERT INTO erasure (id, tenant_id, session_id, slot, directory_slot, state, basis,"
                          " reason_sha256, requested_by, requested_role, revocation_seq, requested_at,"
                          " blocked_hold_at, needs_approval_at, group_id, reference_sha256, tree_id, hold_id)"
                          " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17,"
                          " $18)"};
    enum kv_erasure_state state = erasure->state;
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &erasure->id);
    kv_pg_arg_id(&args, &erasure->tenant);
    kv_pg_arg_id(&args, &erasure->session);
    kv_pg_arg_i32(&args, session->slot);
    kv_pg_arg_i32(&args, session->directory_slot);
    kv_pg_arg_text(&args, state_names[state]);
    kv_pg_arg_text(&args, erasure->basis);
    kv_pg_arg_text_or_null(&args, erasure->reason_sha256);
    kv_pg_arg_id_or_null(&args, &erasure->requested_by);
    kv_pg_arg_text(&args, erasure->requested_role);
    kv_pg_arg_i64(&args, erasure->revocation_seq);
    kv_pg_arg_time(&args, erasure->at_us[KV_ERASURE_REQUESTED]);
    kv_pg_arg_time_or_null(&args, state == KV_ERASURE_BLOCKED_HOLD ? erasure->at_us[state] : 0);
    kv_pg_arg_time_or_null(&args, state == KV_ERASURE_NEEDS_APPROVAL ? erasure->at_us[state] : 0);
    kv_pg_arg_id_or_null(&args, &erasure->group);
    kv_pg_arg_text_or_null(&args, erasure->reference_sha256);
    kv_pg_arg_id(&args, &session->tree);
    kv_pg_arg_id_or_null(&args, &erasure->hold);
    uint64_t rows = 0;
    return kv_pg_change(pg, &query, &args, info, &rows);
}

static KV_RC revoke_session(struct kv_pg *pg, const struct kv_store_erasure *erasure, struct kv_errinfo *info)
{
    /* Whether a hold by a label covers it is judged by its labels. */
    static const struct kv_pg_query query = {"erasure_revoke_session",
                                             "UPDATE session SET state = 'erasing', revoked_seq = $3, erasure_id = $4,"
                                             " external_hmac = NULL, external_sealed = NULL,"
                                             " labels = CASE WHEN $5 THEN labels ELSE '{}' END, rev = rev + 1"
                                             " WHERE id = $1 AND tenant_id = $2 AND state = 'active'"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &erasure->session);
    kv_pg_arg_id(&args, &erasure->tenant);
    kv_pg_arg_i64(&args, erasure->revocation_seq);
    kv_pg_arg_id(&args, &erasure->id);
    kv_pg_arg_bool(&args, erasure->state == KV_ERASURE_BLOCKED_HOLD);
    return kv_pg_change_one(pg, &query, &args, info, "the session is not active any more");
}

static KV_RC lock_active_session(struct kv_pg *pg, const struct kv_store_erasure *erasure, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "erasure_lock_session", "SELECT 1 FROM session s JOIN tenant t ON t.id = s.tenant_id AND s.slot >= t.first_slot"
                                " WHERE s.id = $1 AND s.tenant_id = $2 AND s.state = 'active' FOR UPDATE OF s"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &erasure->session);
    kv_pg_arg_id(&args, &erasure->tenant);
    return kv_pg_change_one(pg, &query, &args, info, "the session is being erased already");
}

KV_RC kv_store_erasure_insert(struct kv_pg *pg, const struct kv_store_erasure *erasure, struct kv_errinfo *info)
{
    if (erasure->state != KV_ERASURE_REQUESTED && erasure->state != KV_ERASURE_BLOCKED_HOLD &&
        erasure->state != KV_ERASURE_NEEDS_APPROVAL) {
        return kv_fail(info, KV_E_INVALID_REQUEST, "an erasure cannot begin as %s", state_names[erasure->state]);
    }
    struct kv_store_session session;
    KV_TRY(kv_store_session_get(pg, &erasure->session, info, &session));
    if (memcmp(&session.tenant, &erasure->tenant, sizeof session.tenant) != 0) {
        return kv_fail(info, KV_E_NOT_FOUND, "there is no such session");
    }
    /* The row of the session first: of two requests the second one waits here and then finds it gone. */
    KV_TRY(lock_active_session(pg, erasure, info));
    KV_TRY(insert_row(pg, erasure, &session, info));
    return revoke_session(pg, erasure, info);
}

/* ---- reading ---- */

static const char *const no_erasure = "there is no such erasure";

KV_RC kv_store_erasure_get(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                           struct kv_store_erasure *ret_erasure)
{
    static const struct kv_pg_query query = {"erasure_get", SELECT_ERASURE "WHERE id = $1"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, id);
    struct kv_pg_one one = {.query = &query, .args = &args, .none = KV_E_NOT_FOUND, .none_text = no_erasure};
    return kv_pg_fetch_one(pg, &one, kv_store_erasure_fill, ret_erasure, info);
}

KV_RC kv_store_erasure_get_by_certificate(struct kv_pg *pg, const struct kv_id *certificate, struct kv_errinfo *info,
                                          struct kv_store_erasure *ret_erasure)
{
    static const struct kv_pg_query query = {"erasure_get_by_certificate", SELECT_ERASURE "WHERE cert_id = $1"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, certificate);
    struct kv_pg_one one = {
        .query = &query, .args = &args, .none = KV_E_NOT_FOUND, .none_text = "there is no such certificate"};
    return kv_pg_fetch_one(pg, &one, kv_store_erasure_fill, ret_erasure, info);
}

static KV_RC list(struct kv_pg *pg, const struct kv_pg_query *query, struct kv_pg_args *args, size_t max,
                  struct kv_store_erasure *ret_list, size_t *ret_count, struct kv_errinfo *info)
{
    kv_pg_arg_u64(args, max);
    struct kv_pg_many many = {.query = query, .args = args, .max = max, .size = sizeof ret_list[0]};
    return kv_pg_fetch_many(pg, &many, kv_store_erasure_fill, ret_list, ret_count, info);
}

/* The first two conditions are those of the index erasure_open. */
#define OPEN                                                \
    "WHERE certified_at IS NULL AND quarantined_at IS NULL" \
    " AND state IN ('requested', 'fenced', 'staged', 'rekeyed', 'destroyed', 'purged', 'verified')"

KV_RC kv_store_erasure_list_open(struct kv_pg *pg, bool verified, size_t max, struct kv_errinfo *info,
                                 struct kv_store_erasure *ret_list, size_t *ret_count)
{
    static const struct kv_pg_query query = {"erasure_list_open",
                                             SELECT_ERASURE OPEN " AND ($1 OR state <> 'verified')"
                                                                 " ORDER BY revocation_seq LIMIT $2"};
    struct kv_pg_args args = {0};
    kv_pg_arg_bool(&args, verified);
    return list(pg, &query, &args, max, ret_list, ret_count, info);
}

struct open {
    uint64_t count, oldest_us;
};

static KV_RC fill_open(struct kv_pg_row *row, void *ret)
{
    struct open *open = ret;
    open->count = kv_pg_get_u64(row);
    open->oldest_us = kv_pg_get_time(row);
    return KV_OK;
}

KV_RC kv_store_erasure_count_open(struct kv_pg *pg, struct kv_errinfo *info, uint64_t *ret_count,
                                  uint64_t *ret_oldest_us)
{
    static const struct kv_pg_query query = {
        "erasure_count_open", "SELECT count(*), min(coalesce(unblocked_at, requested_at)) FROM erasure " OPEN};
    struct kv_pg_args args = {0};
    struct open open = {0};
    struct kv_pg_one one = {.query = &query, .args = &args, .none = KV_E_CORRUPT, .none_text = "no count"};
    KV_TRY(kv_pg_fetch_one(pg, &one, fill_open, &open, info));
    *ret_count = open.count;
    *ret_oldest_us = open.oldest_us;
    return KV_OK;
}

KV_RC kv_store_erasure_list_batch(struct kv_pg *pg, const struct kv_id *batch, size_t max, struct kv_errinfo *info,
                                  struct kv_store_erasure *ret_list, size_t *ret_count)
{
    static const struct kv_pg_query query = {"erasure_list_batch",
                                             SELECT_ERASURE "WHERE batch_id = $1 ORDER BY revocation_seq LIMIT $2"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, batch);
    return list(pg, &query, &args, max, ret_list, ret_count, info);
}

#define LIST_ERASURES                                                                               \
    SELECT_ERASURE "WHERE tenant_id = $1 AND ($2::bytea IS NULL OR session_id = $2"                 \
                   " OR (scope = 'tenant' AND EXISTS (SELECT FROM session s WHERE s.id = $2"        \
                   " AND s.tenant_id = $1 AND s.slot >= first_slot AND s.slot < erasure.slot"       \
                   " AND (s.state = 'active' OR s.erasure_id = erasure.id))))"                      \
                   " AND ($3::bytea IS NULL OR group_id = $3) AND ($4::text IS NULL OR state = $4)" \
                   " AND (NOT $5::boolean OR group_id IS NULL)"

KV_RC kv_store_erasure_page(struct kv_pg *pg, const struct kv_store_erasure_filter *filter, struct kv_page *page,
                            struct kv_errinfo *info, struct kv_store_erasure *ret_list, size_t *ret_count)
{
    static const struct kv_pg_query queries[] = {
        {"erasure_page", LIST_ERASURES KV_PG_PAGE_DESC("requested_at", "id", "6", "7", "8")},
        {"erasure_page_up", LIST_ERASURES KV_PG_PAGE_ASC("requested_at", "id", "6", "7", "8")}};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &filter->tenant);
    kv_pg_arg_id_or_null(&args, &filter->session);
    kv_pg_arg_id_or_null(&args, &filter->group);
    kv_pg_arg_text_or_null(&args, filter->state);
    kv_pg_arg_bool(&args, filter->alone);
    return kv_pg_fetch_page(pg, &queries[page->ascending ? 1 : 0], &args, page,
                            &(struct kv_pg_paged){kv_store_erasure_fill, sizeof ret_list[0], ret_list, ret_count},
                            info);
}

#define LIST_CERTIFIED                                                                                      \
    SELECT_ERASURE                                                                                          \
    "WHERE tenant_id = $1 AND certified_at IS NOT NULL AND ($2::timestamptz IS NULL OR certified_at >= $2)" \
    " AND ($3::timestamptz IS NULL OR certified_at < $3) AND ($4::bytea IS NULL OR group_id = $4)"

KV_RC kv_store_erasure_page_certified(struct kv_pg *pg, const struct kv_store_certified_filter *filter,
                                      struct kv_page *page, struct kv_errinfo *info, struct kv_store_erasure *ret_list,
                                      size_t *ret_count)
{
    static const struct kv_pg_query queries[] = {
        {"certified_page", LIST_CERTIFIED KV_PG_PAGE_DESC("certified_at", "id", "5", "6", "7")},
        {"certified_page_up", LIST_CERTIFIED KV_PG_PAGE_ASC("certified_at", "id", "5", "6", "7")}};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &filter->tenant);
    kv_pg_arg_time_or_null(&args, filter->from_us);
    kv_pg_arg_time_or_null(&args, filter->to_us);
    kv_pg_arg_id_or_null(&args, &filter->group);
    return kv_pg_fetch_page(pg, &queries[page->ascending ? 1 : 0], &args, page,
                            &(struct kv_pg_paged){kv_store_erasure_fill, sizeof ret_list[0], ret_list, ret_count},
                            info);
}

/* ---- the walk ---- */

bool kv_store_erasure_is_arrow(enum kv_erasure_state from, enum kv_erasure_state to)
{
    if (to == KV_ERASURE_QUARANTINED) {
        return from != KV_ERASURE_CERTIFIED && from != KV_ERASURE_QUARANTINED;
    }
    if (from == KV_ERASURE_BLOCKED_HOLD || from == KV_ERASURE_NEEDS_APPROVAL) {
        return to == KV_ERASURE_REQUESTED;
    }
    if (from == KV_ERASURE_STAGED && to == KV_ERASURE_FENCED) {
        return true;
    }
    return from < KV_ERASURE_CERTIFIED && to == from + 1;
}

KV_RC kv_store_erasure_advance(struct kv_pg *pg, const struct kv_id *id, enum kv_erasure_state from,
                               enum kv_erasure_state to, uint64_t at_us, struct kv_errinfo *info)
{
    const struct kv_store_ids one = {.ids = id, .count = 1};
    return kv_store_erasures_advance(pg, &one, &(struct kv_store_move){.from = from, .to = to, .at_us = at_us}, info);
}

KV_RC kv_store_erasure_set_batch(struct kv_pg *pg, const struct kv_id *id, const struct kv_id *batch,
                                 struct kv_errinfo *info)
{
    const struct kv_store_ids one = {.ids = id, .count = 1};
    return kv_store_erasures_set_batch(pg, &one, batch, info);
}

KV_RC kv_store_erasure_set_facts(struct kv_pg *pg, const struct kv_id *id, const struct kv_store_facts *facts,
                                 struct kv_errinfo *info)
{
    const struct kv_store_found found = {.id = *id, .facts = *facts};
    return kv_store_erasures_set_facts(pg, &found, 1, info);
}

KV_RC kv_store_erasure_set_samples(struct kv_pg *pg, const struct kv_id *id, struct kv_bytes samples,
                                   struct kv_errinfo *info)
{
    const struct kv_store_found found = {.id = *id, .samples = samples};
    return kv_store_erasures_set_samples(pg, &found, 1, info);
}

KV_RC kv_store_erasure_samples(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                               struct kv_buf *ret_samples)
{
    static const struct kv_pg_query query = {"erasure_samples", "SELECT sample_headers FROM erasure WHERE id = $1"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, id);
    return kv_pg_fetch_blob(pg, &query, &args, "the erasure has no samples", info, ret_samples);
}
