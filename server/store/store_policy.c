/*
 * See store_policy.h. A version is inserted and never touched again; what changes is the pointer beside the tenant or
 * in the platform's row, which is locked first, so that versions have no gaps.
 */
#include "server/store/store_policy.h"

#include "dataplane/base/id.h"
#include "server/store/pg_int.h"
#include "server/store/store_session.h"

#include <stdlib.h>

#define COLUMNS "p.id, p.tenant_id, p.version, p.sha256, p.created_at, p.created_by, p.created_role, p.loosens"

static const char *const no_tenant = "there is no such tenant";

struct found {
    struct kv_store_policy *policy;
    struct kv_buf *body;
};

static KV_RC fill(struct kv_pg_row *row, void *ret)
{
    struct kv_store_policy *policy = ret;
    kv_pg_get_id(row, &policy->id);
    kv_pg_get_id(row, &policy->tenant);
    policy->version = kv_pg_get_u64(row);
    kv_pg_get_raw(row, policy->sha256, sizeof policy->sha256);
    policy->created_us = kv_pg_get_time(row);
    kv_pg_get_id(row, &policy->created_by);
    kv_pg_get_text(row, policy->created_role, sizeof policy->created_role);
    policy->loosens = kv_pg_get_bool(row);
    return KV_OK;
}

static KV_RC fill_body(struct kv_pg_row *row, struct kv_buf *buf)
{
    struct kv_bytes body = kv_pg_get_bytes(row); /* text is its bytes */
    kv_buf_append(buf, body.data, body.len);
    return kv_buf_check(buf);
}

static KV_RC fill_found(struct kv_pg_row *row, void *ret)
{
    struct found *found = ret;
    KV_TRY(fill(row, found->policy));
    return fill_body(row, found->body);
}

static KV_RC fill_flag(struct kv_pg_row *row, void *ret)
{
    *(bool *)ret = kv_pg_get_bool(row);
    return KV_OK;
}

KV_RC kv_store_policy_lock(struct kv_pg *pg, const struct kv_id *tenant, struct kv_errinfo *info)
{
    static const struct kv_pg_query of_tenant = {"policy_lock",
                                                 "SELECT true FROM tenant WHERE id = $1 FOR NO KEY UPDATE"};
    static const struct kv_pg_query of_platform = {"policy_lock_platform", "SELECT true FROM platform FOR UPDATE"};
    struct kv_pg_args args = {0};
    bool platform = kv_id_is_zero(tenant), there = false;
    if (!platform) {
        kv_pg_arg_id(&args, tenant);
    }
    struct kv_pg_one one = {.query = platform ? &of_platform : &of_tenant,
                            .args = &args,
                            .write = true,
                            .none = KV_E_NOT_FOUND,
                            .none_text = no_tenant};
    return kv_pg_fetch_one(pg, &one, fill_flag, &there, info);
}

KV_RC kv_store_policy_active(struct kv_pg *pg, const struct kv_id *tenant, struct kv_errinfo *info,
                             struct kv_store_policy *ret_policy, struct kv_buf *ret_body)
{
    static const struct kv_pg_query of_tenant = {
        "policy_active",
        "SELECT " COLUMNS ", p.body FROM tenant t JOIN policy_version p ON p.id = t.policy_id WHERE t.id = $1"};
    static const struct kv_pg_query of_platform = {
        "policy_active_platform",
        "SELECT " COLUMNS ", p.body FROM platform q JOIN policy_version p ON p.id = q.policy_id"};
    struct kv_pg_args args = {0};
    bool platform = kv_id_is_zero(tenant);
    if (!platform) {
        kv_pg_arg_id(&args, tenant);
    }
    struct found found = {.policy = ret_policy, .body = ret_body};
    struct kv_pg_one one = {.query = platform ? &of_platform : &of_tenant,
                            .args = &args,
                            .none = KV_E_MISSING,
                            .none_text = "no policy was written yet"};
    return kv_pg_fetch_one(pg, &one, fill_found, &found, info);
}

KV_RC kv_store_policy_get(struct kv_pg *pg, const struct kv_id *tenant, uint64_t version, struct kv_errinfo *info,
                          struct kv_store_policy *ret_policy, struct kv_buf *ret_body)
{
    static const struct kv_pg_query query = {"policy_get", "SELECT " COLUMNS ", p.body FROM policy_version p"
                                                           " WHERE p.tenant_id IS NOT DISTINCT FROM $1::bytea"
                                                           " AND p.version = $2"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id_or_null(&args, tenant);
    kv_pg_arg_u64(&args, version);
    struct found found = {.policy = ret_policy, .body = ret_body};
    struct kv_pg_one one = {
        .query = &query, .args = &args, .none = KV_E_NOT_FOUND, .none_text = "there is no such version"};
    return kv_pg_fetch_one(pg, &one, fill_found, &found, info);
}

#define LIST_POLICIES "SELECT " COLUMNS " FROM policy_version p WHERE p.tenant_id IS NOT DISTINCT FROM $1::bytea"

KV_RC kv_store_policy_list(struct kv_pg *pg, const struct kv_id *tenant, struct kv_page *page, struct kv_errinfo *info,
                           struct kv_store_policy *ret_list, size_t *ret_count)
{
    static const struct kv_pg_query queries[] = {
        {"policy_list", LIST_POLICIES KV_PG_PAGE_DESC("p.created_at", "p.id", "2", "3", "4")},
        {"policy_list_up", LIST_POLICIES KV_PG_PAGE_ASC("p.created_at", "p.id", "2", "3", "4")}};
    struct kv_pg_args args = {0};
    kv_pg_arg_id_or_null(&args, tenant);
    return kv_pg_fetch_page(pg, &queries[page->ascending ? 1 : 0], &args, page,
                            &(struct kv_pg_paged){fill, sizeof ret_list[0], ret_list, ret_count}, info);
}

static KV_RC insert(struct kv_pg *pg, struct kv_store_policy *policy, const char *body, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "policy_insert",
        "INSERT INTO policy_version (id, tenant_id, version, body, sha256, created_at, created_by, created_role, "
        "loosens)"
        " SELECT $1, $2::bytea, coalesce(max(version), 0) + 1, $3, $4, $5, $6, $7, $8 FROM policy_version"
        " WHERE tenant_id IS NOT DISTINCT FROM $2::bytea RETURNING version"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &policy->id);
    kv_pg_arg_id_or_null(&args, &policy->tenant);
    kv_pg_arg_text(&args, body);
    kv_pg_arg_raw(&args, policy->sha256, sizeof policy->sha256);
    kv_pg_arg_time(&args, policy->created_us);
    kv_pg_arg_id_or_null(&args, &policy->created_by);
    kv_pg_arg_text(&args, policy->created_role);
    kv_pg_arg_bool(&args, policy->loosens);
    struct kv_pg_one one = {
        .query = &query, .args = &args, .write = true, .none = KV_E_CORRUPT, .none_text = "no version was written"};
    return kv_pg_fetch_one(pg, &one, kv_pg_fill_u64, &policy->version, info);
}

KV_RC kv_store_policy_activate(struct kv_pg *pg, struct kv_store_policy *policy, const char *body,
                               struct kv_errinfo *info)
{
    static const struct kv_pg_query of_tenant = {"policy_activate", "UPDATE tenant SET policy_id = $1 WHERE id = $2"};
    static const struct kv_pg_query of_platform = {"policy_activate_platform",
                                                   "UPDATE platform SET policy_id = $1, rev = rev + 1"};
    struct kv_pg_args args = {0};
    bool platform = kv_id_is_zero(&policy->tenant);
    KV_TRY(insert(pg, policy, body, info));
    kv_pg_arg_id(&args, &policy->id);
    if (!platform) {
        kv_pg_arg_id(&args, &policy->tenant);
    }
    return kv_pg_change_one(pg, platform ? &of_platform : &of_tenant, &args, info, "the tenant is gone");
}

/* --- rules -------------------------------------------------------------------------------------------------------- */

static KV_RC fill_rules(struct kv_pg_row *row, void *ret)
{
    struct kv_store_rules *rules = ret;
    kv_pg_get_text(row, rules->state, sizeof rules->state);
    for (unsigned i = 0; i < 2; i++) {
        rules->versions[i] = kv_pg_get_u64(row);
        KV_TRY(fill_body(row, &rules->bodies[i]));
    }
    return KV_OK;
}

KV_RC kv_store_rules_get(struct kv_pg *pg, const struct kv_id *tenant, struct kv_errinfo *info,
                         struct kv_store_rules *ret_rules)
{
    static const struct kv_pg_query query = {
        "rules_get", "SELECT t.state, coalesce(a.version, 0), a.body, coalesce(p.version, 0), p.body"
                     " FROM tenant t CROSS JOIN platform q LEFT JOIN policy_version a ON a.id = q.policy_id"
                     " LEFT JOIN policy_version p ON p.id = t.policy_id WHERE t.id = $1"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, tenant);
    struct kv_pg_one one = {.query = &query, .args = &args, .none = KV_E_NOT_FOUND, .none_text = no_tenant};
    return kv_pg_fetch_one(pg, &one, fill_rules, ret_rules, info);
}

/* --- sessions ----------------------------------------------------------------------------------------------------- */

static KV_RC fill_facts(struct kv_pg_row *row, void *ret)
{
    struct kv_store_session_facts *facts = ret;
    kv_pg_get_id(row, &facts->tenant);
    kv_pg_get_text(row, facts->class_name, sizeof facts->class_name);
    kv_pg_get_text(row, facts->region, sizeof facts->region);
    kv_pg_get_text(row, facts->model, sizeof facts->model);
    facts->created_us = kv_pg_get_time(row);
    facts->active = kv_pg_get_bool(row);
    return KV_OK;
}

KV_RC kv_store_session_facts(struct kv_pg *pg, const struct kv_id *session, struct kv_errinfo *info,
                             struct kv_store_session_facts *ret_facts)
{
    static const struct kv_pg_query query = {"session_facts",
                                             "SELECT s.tenant_id, s.class, s.region, s.model_id, s.created_at,"
                                             " s.state = 'active' AND s.slot >= t.first_slot FROM session s"
                                             " JOIN tenant t ON t.id = s.tenant_id WHERE s.id = $1"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, session);
    struct kv_pg_one one = {.query = &query, .args = &args, .none = KV_E_NOT_FOUND, .none_text = "no such session"};
    return kv_pg_fetch_one(pg, &one, fill_facts, ret_facts, info);
}

KV_RC kv_store_session_count_kept(struct kv_pg *pg, const struct kv_id *tenant, struct kv_errinfo *info,
                                  uint64_t *ret_count)
{
    static const struct kv_pg_query query = {"session_count_kept",
                                             "SELECT count(*) FROM session WHERE tenant_id = $1 AND state <> 'erased'"
                                             " AND kind = 'session'"
                                             " AND slot >= (SELECT first_slot FROM tenant WHERE id = $1)"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, tenant);
    struct kv_pg_one one = {.query = &query, .args = &args, .none = KV_E_CORRUPT, .none_text = "no count"};
    return kv_pg_fetch_one(pg, &one, kv_pg_fill_u64, ret_count, info);
}

KV_RC kv_store_session_tenants(struct kv_pg *pg, const struct kv_id *ids, size_t count, struct kv_errinfo *info,
                               struct kv_id *ret_tenants)
{
    static const struct kv_pg_query query = {"session_tenants",
                                             "SELECT s.tenant_id FROM unnest($1) WITH ORDINALITY AS asked (id, place)"
                                             " LEFT JOIN session s ON s.id = asked.id ORDER BY asked.place"};
    if (count == 0 || count > KV_STORE_IDS_MAX) {
        return count == 0 ? KV_OK : kv_fail(info, KV_E_LIMIT, "at most %d ids at once", KV_STORE_IDS_MAX);
    }
    struct kv_pg_array array;
    kv_pg_array_init(&array, KV_PG_ARRAY_BYTEA, count, count * sizeof ids[0]);
    for (size_t i = 0; i < count; i++) {
        kv_pg_array_raw(&array, ids[i].b, sizeof ids[i].b, false);
    }
    struct kv_pg_args args = {0};
    kv_pg_arg_array(&args, &array, KV_PG_ARRAY_BYTEA);
    struct kv_pg_many many = {.query = &query, .args = &args, .max = count, .size = sizeof ret_tenants[0]};
    size_t found = 0;
    enum kv_err rc = kv_pg_fetch_many(pg, &many, kv_pg_fill_id, ret_tenants, &found, info);
    kv_pg_array_done(&array);
    return rc != KV_OK || found == count ? rc : kv_fail(info, KV_E_CORRUPT, "the database answered for some only");
}

/* --- what is on record -------------------------------------------------------------------------------------------- */

static KV_RC fill_past(struct kv_pg_row *row, void *ret)
{
    struct kv_store_past *past = ret;
    char session[32];
    kv_pg_get_text(row, past->op, sizeof past->op);
    kv_pg_get_text(row, session, sizeof session);
    past->blocks = kv_pg_get_u64(row);
    past->bytes = kv_pg_get_u64(row);
    return kv_id_parse("ses", session, &past->session) == KV_OK ? KV_OK : KV_E_CORRUPT;
}

KV_RC kv_store_past_transfers(struct kv_pg *pg, const struct kv_id *tenant, size_t max, struct kv_errinfo *info,
                              struct kv_store_past *ret_list, size_t *ret_count)
{
    static const struct kv_pg_query query = {
        "past_transfers",
        "SELECT e ->> 'op', e ->> 'session', (e #>> '{transfer,blocks}')::bigint, (e #>> '{transfer,bytes}')::bigint"
        " FROM (SELECT idx, convert_from(entry, 'UTF8')::jsonb AS e FROM audit_leaf WHERE log_id = $1"
        "       ORDER BY idx DESC LIMIT $2 * 4) AS newest"
        " WHERE e ->> 'op' IN ('block.offload', 'block.restore') AND e ? 'transfer' AND e ? 'session'"
        " ORDER BY idx DESC LIMIT $2"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, tenant);
    kv_pg_arg_u64(&args, max);
    struct kv_pg_many many = {.query = &query, .args = &args, .max = max, .size = sizeof ret_list[0]};
    return kv_pg_fetch_many(pg, &many, fill_past, ret_list, ret_count, info);
}
