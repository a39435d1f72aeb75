/*
 * Who dropped what was left of erasures. Must never leave one out that may still have some: an instance counts from its
 * first row to the moment it left in order, a folder until it was left.
 */
#include "server/store/store_upgrade.h"
#include "server/store/pg_int.h"

#include <string.h>

/* When a session was made says its server's clock, when somebody left the database's. */
#define SLACK "interval '1 minute'"

static void arg_ids(struct kv_pg_args *args, struct kv_pg_array *array, const struct kv_store_ids *ids)
{
    kv_pg_array_init(array, KV_PG_ARRAY_BYTEA, ids->count, ids->count * sizeof ids->ids[0].b);
    for (size_t i = 0; i < ids->count; i++) {
        kv_pg_array_raw(array, ids->ids[i].b, sizeof ids->ids[i].b, false);
    }
    kv_pg_arg_array(args, array, KV_PG_ARRAY_BYTEA);
}

/* --- folders ------------------------------------------------------------------------------------------------------ */

KV_RC kv_store_folder_use(struct kv_pg *pg, const struct kv_store_folder_use *use, struct kv_errinfo *info)
{
    static const struct kv_pg_query left = {"folder_left",
                                            "UPDATE nvme_folder SET left_at = clock_timestamp() WHERE left_at IS NULL"
                                            " AND id <> $2 AND ($3 OR instance_id = $1)"};
    static const struct kv_pg_query used = {
        "folder_used", "INSERT INTO nvme_folder (id, instance_id) SELECT $2, $1 WHERE $2 <> $3 ON CONFLICT (id)"
                       " DO UPDATE SET instance_id = excluded.instance_id, left_at = NULL"};
    static const struct kv_pg_query known = {
        "folder_known", "UPDATE instance SET folder_known = true WHERE id = $1 AND NOT folder_known"};
    static const struct kv_id none;
    uint64_t rows = 0;
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &use->instance);
    kv_pg_arg_id(&args, &use->folder);
    kv_pg_arg_bool(&args, use->alone);
    KV_TRY(kv_pg_change(pg, &left, &args, info, &rows));
    struct kv_pg_args place = {0};
    kv_pg_arg_id(&place, &use->instance);
    kv_pg_arg_id(&place, &use->folder);
    kv_pg_arg_id(&place, &none);
    KV_TRY(kv_pg_change(pg, &used, &place, info, &rows));
    struct kv_pg_args self = {0};
    kv_pg_arg_id(&self, &use->instance);
    return kv_pg_change(pg, &known, &self, info, &rows);
}

KV_RC kv_store_folder_leave(struct kv_pg *pg, const struct kv_id *instance, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "folder_leave",
        "UPDATE nvme_folder SET left_at = clock_timestamp() WHERE instance_id = $1 AND left_at IS NULL"};
    struct kv_pg_args args = {0};
    uint64_t rows = 0;
    kv_pg_arg_id(&args, instance);
    return kv_pg_change(pg, &query, &args, info, &rows);
}

/* --- who has dropped what ----------------------------------------------------------------------------------------- */

static KV_RC fill_cleaning(struct kv_pg_row *row, void *ret)
{
    struct kv_store_cleaning *cleaning = ret;
    kv_pg_get_id(row, &cleaning->what.erasure);
    kv_pg_get_id(row, &cleaning->what.tenant);
    kv_pg_get_id(row, &cleaning->what.session);
    cleaning->what.first_slot = kv_pg_get_u32(row);
    cleaning->what.slot = kv_pg_get_u32(row);
    cleaning->what.seq = kv_pg_get_i64(row);
    cleaning->certified_us = kv_pg_get_time(row);
    return KV_OK;
}

KV_RC kv_store_cleanings_due(struct kv_pg *pg, const struct kv_store_cleaner *cleaner, uint64_t since_us, size_t max,
                             struct kv_errinfo *info, struct kv_store_cleaning *ret_list, size_t *ret_count)
{
    static const struct kv_pg_query query = {
        "cleanings_due",
        "SELECT e.id, e.tenant_id, e.session_id, coalesce(e.first_slot, e.slot), e.slot, e.revocation_seq,"
        " e.certified_at FROM erasure e JOIN instance i ON i.id = $1 AND i.incarnation = $2 AND i.expired_at IS NULL"
        " AND i.ended_at IS NULL AND i.acked_root IS NOT NULL AND i.acked_seq >= e.revocation_seq"
        " WHERE e.certified_at >= $4 AND e.certified_at IS NOT NULL AND NOT e.upgraded AND e.state = 'certified'"
        " AND NOT EXISTS (SELECT FROM erasure_clean c WHERE c.erasure_id = e.id AND c.instance_id = $1"
        " AND c.folder_id = $3) ORDER BY e.certified_at LIMIT $5"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &cleaner->instance);
    kv_pg_arg_i64(&args, cleaner->incarnation);
    kv_pg_arg_id(&args, &cleaner->folder);
    kv_pg_arg_time(&args, since_us);
    kv_pg_arg_u64(&args, max);
    struct kv_pg_many many = {.query = &query, .args = &args, .max = max, .size = sizeof ret_list[0]};
    return kv_pg_fetch_many(pg, &many, fill_cleaning, ret_list, ret_count, info);
}

static KV_RC look_now(struct kv_pg *pg, const struct kv_store_ids *erasures, uint64_t at_us, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "upgrades_look", "INSERT INTO erasure_upgrade (erasure_id, look_at) SELECT id, $2 FROM unnest($1) AS id"
                         " ON CONFLICT (erasure_id) DO UPDATE SET look_at = excluded.look_at"
                         " WHERE erasure_upgrade.look_at > excluded.look_at"};
    struct kv_pg_args args = {0};
    struct kv_pg_array array;
    uint64_t rows = 0;
    arg_ids(&args, &array, erasures);
    kv_pg_arg_time(&args, at_us);
    enum kv_err rc = kv_pg_change(pg, &query, &args, info, &rows);
    kv_pg_array_done(&array);
    return rc;
}

KV_RC kv_store_cleaned(struct kv_pg *pg, const struct kv_store_cleaner *cleaner, const struct kv_store_ids *erasures,
                       uint64_t at_us, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "cleaned", "INSERT INTO erasure_clean (erasure_id, instance_id, folder_id, incarnation, cleaned_at)"
                   " SELECT id, $2, $3, $4, $5 FROM unnest($1) AS id ON CONFLICT DO NOTHING"};
    struct kv_pg_args args = {0};
    struct kv_pg_array array;
    uint64_t rows = 0;
    arg_ids(&args, &array, erasures);
    kv_pg_arg_id(&args, &cleaner->instance);
    kv_pg_arg_id(&args, &cleaner->folder);
    kv_pg_arg_i64(&args, cleaner->incarnation);
    kv_pg_arg_time(&args, at_us);
    enum kv_err rc = kv_pg_change(pg, &query, &args, info, &rows);
    kv_pg_array_done(&array);
    return rc == KV_OK ? look_now(pg, erasures, at_us, info) : rc;
}

static const char *const why_names[] = {"waiting", "lease_over", "left", "folder"};

static KV_RC fill_missing(struct kv_pg_row *row, void *ret)
{
    struct kv_store_missing *missing = ret;
    kv_pg_get_id(row, &missing->erasure);
    kv_pg_get_id(row, &missing->instance);
    kv_pg_get_id(row, &missing->folder);
    missing->why = (enum kv_missing_why)kv_pg_get_word(row, why_names, 4);
    return KV_OK;
}

KV_RC kv_store_missing(struct kv_pg *pg, const struct kv_store_ids *erasures, size_t max, struct kv_errinfo *info,
                       struct kv_store_missing *ret_list, size_t *ret_count)
{
    static const struct kv_pg_query query = {
        "clean_missing",
        "WITH wanted AS (SELECT e.id, coalesce(s.created_at, t.created_at) AS made FROM unnest($1) AS w (id)"
        " JOIN erasure e ON e.id = w.id JOIN tenant t ON t.id = e.tenant_id LEFT JOIN session s ON s.id = e.session_id)"
        " SELECT w.id, i.id, NULL::bytea, CASE WHEN i.ended_at IS NOT NULL THEN 'left' WHEN i.expired_at IS NOT NULL"
        " THEN 'lease_over' ELSE 'waiting' END FROM wanted w, instance i"
        " WHERE (i.ended_at IS NULL OR (NOT i.folder_known AND i.ended_at >= w.made - " SLACK "))"
        " AND NOT EXISTS (SELECT FROM erasure_clean c WHERE c.erasure_id = w.id AND c.instance_id = i.id)"
        " UNION ALL SELECT w.id, f.instance_id, f.id, 'folder' FROM wanted w, nvme_folder f"
        " WHERE (f.left_at IS NULL OR f.left_at >= w.made - " SLACK ")"
        " AND NOT EXISTS (SELECT FROM erasure_clean c WHERE c.erasure_id = w.id AND c.folder_id = f.id)"
        " ORDER BY 1, 4 DESC, 2, 3 LIMIT $2"};
    struct kv_pg_args args = {0};
    struct kv_pg_array array;
    arg_ids(&args, &array, erasures);
    kv_pg_arg_u64(&args, max);
    struct kv_pg_many many = {.query = &query, .args = &args, .max = max, .size = sizeof ret_list[0]};
    enum kv_err rc = kv_pg_fetch_many(pg, &many, fill_missing, ret_list, ret_count, info);
    kv_pg_array_done(&array);
    return rc;
}

/* --- the statement ------------------------------------------------------------------------------------------------ */

static KV_RC fill_wait(struct kv_pg_row *row, void *ret)
{
    struct kv_store_upgrades_wait *wait = ret;
    wait->sign = kv_pg_get_bool(row);
    wait->bundle = kv_pg_get_bool(row);
    return KV_OK;
}

KV_RC kv_store_upgrades_wait(struct kv_pg *pg, uint64_t now_us, struct kv_errinfo *info,
                             struct kv_store_upgrades_wait *ret_wait)
{
    static const struct kv_pg_query query = {
        "upgrades_wait", "SELECT EXISTS (SELECT FROM erasure_upgrade WHERE look_at <= $1 AND jws IS NULL),"
                         " EXISTS (SELECT FROM erasure_upgrade WHERE look_at <= $1 AND jws IS NOT NULL)"};
    struct kv_pg_args args = {0};
    kv_pg_arg_time(&args, now_us);
    struct kv_pg_one one = {.query = &query, .args = &args, .none = KV_E_CORRUPT, .none_text = "no answer"};
    return kv_pg_fetch_one(pg, &one, fill_wait, ret_wait, info);
}

KV_RC kv_store_upgrades_due(struct kv_pg *pg, bool has_jws, uint64_t now_us, size_t max, struct kv_errinfo *info,
                            struct kv_id *ret_erasures, size_t *ret_count)
{
    static const struct kv_pg_query query = {
        "upgrades_due", "SELECT erasure_id FROM erasure_upgrade WHERE look_at <= $1 AND (jws IS NOT NULL) = $2"
                        " ORDER BY look_at LIMIT $3 FOR UPDATE SKIP LOCKED"};
    struct kv_pg_args args = {0};
    kv_pg_arg_time(&args, now_us);
    kv_pg_arg_bool(&args, has_jws);
    kv_pg_arg_u64(&args, max);
    struct kv_pg_many many = {.query = &query, .args = &args, .max = max, .size = sizeof ret_erasures[0]};
    return kv_pg_fetch_many(pg, &many, kv_pg_fill_id, ret_erasures, ret_count, info);
}

KV_RC kv_store_upgrades_put_off(struct kv_pg *pg, const struct kv_store_ids *erasures, uint64_t now_us,
                                struct kv_errinfo *info)
{
    /* A quarter of the time that has passed, between two seconds and an hour. */
    static const struct kv_pg_query query = {
        "upgrades_put_off",
        "UPDATE erasure_upgrade u SET look_at = $2::timestamptz + greatest(interval '2 s', least(interval '1 h',"
        " ($2::timestamptz - e.certified_at) / 4)) FROM erasure e WHERE e.id = u.erasure_id AND u.erasure_id = ANY ($1)"
        " AND u.look_at IS NOT NULL"};
    struct kv_pg_args args = {0};
    struct kv_pg_array array;
    uint64_t rows = 0;
    arg_ids(&args, &array, erasures);
    kv_pg_arg_time(&args, now_us);
    enum kv_err rc = kv_pg_change(pg, &query, &args, info, &rows);
    kv_pg_array_done(&array);
    return rc;
}

static KV_RC fill_clean(struct kv_pg_row *row, void *ret)
{
    struct kv_store_clean *clean = ret;
    kv_pg_get_id(row, &clean->erasure);
    kv_pg_get_id(row, &clean->instance);
    kv_pg_get_id(row, &clean->folder);
    clean->at_us = kv_pg_get_time(row);
    return KV_OK;
}

KV_RC kv_store_cleans(struct kv_pg *pg, const struct kv_store_ids *erasures, size_t max, struct kv_errinfo *info,
                      struct kv_store_clean *ret_list, size_t *ret_count)
{
    static const struct kv_pg_query query = {
        "cleans", "SELECT erasure_id, instance_id, folder_id, cleaned_at FROM erasure_clean WHERE erasure_id = ANY ($1)"
                  " ORDER BY erasure_id, instance_id, folder_id LIMIT $2"};
    struct kv_pg_args args = {0};
    struct kv_pg_array array;
    arg_ids(&args, &array, erasures);
    kv_pg_arg_u64(&args, max);
    struct kv_pg_many many = {.query = &query, .args = &args, .max = max, .size = sizeof ret_list[0]};
    enum kv_err rc = kv_pg_fetch_many(pg, &many, fill_clean, ret_list, ret_count, info);
    kv_pg_array_done(&array);
    return rc;
}

static KV_RC fill_closed(struct kv_pg_row *row, void *ret)
{
    struct kv_store_closed *closed = ret;
    kv_pg_get_id(row, &closed->erasure);
    kv_pg_get_id(row, &closed->instance);
    closed->ended = kv_pg_get_bool(row);
    closed->at_us = kv_pg_get_time(row);
    return KV_OK;
}

KV_RC kv_store_closed(struct kv_pg *pg, const struct kv_store_ids *erasures, size_t max, struct kv_errinfo *info,
                      struct kv_store_closed *ret_list, size_t *ret_count)
{
    static const struct kv_pg_query query = {
        "expired_closed",
        "SELECT r.erasure_id, r.instance_id, c.at IS NULL, coalesce(c.at, i.ended_at) FROM erasure_instance r"
        " LEFT JOIN instance i ON i.id = r.instance_id AND i.ended_at IS NOT NULL"
        " LEFT JOIN LATERAL (SELECT min(cleaned_at) AS at FROM erasure_clean c WHERE c.erasure_id = r.erasure_id"
        " AND c.instance_id = r.instance_id AND c.incarnation > r.incarnation) c ON true"
        " WHERE r.erasure_id = ANY ($1) AND r.fenced_how IS NOT NULL AND 'expired' IN (r.fenced_how, r.purged_how)"
        " ORDER BY r.erasure_id, r.instance_id LIMIT $2"};
    struct kv_pg_args args = {0};
    struct kv_pg_array array;
    arg_ids(&args, &array, erasures);
    kv_pg_arg_u64(&args, max);
    struct kv_pg_many many = {.query = &query, .args = &args, .max = max, .size = sizeof ret_list[0]};
    enum kv_err rc = kv_pg_fetch_many(pg, &many, fill_closed, ret_list, ret_count, info);
    kv_pg_array_done(&array);
    return rc;
}

static KV_RC fill_upgrade(struct kv_pg_row *row, void *ret)
{
    struct kv_store_upgrade *upgrade = ret;
    kv_pg_get_id(row, &upgrade->erasure);
    kv_pg_get_id(row, &upgrade->id);
    upgrade->issued_us = kv_pg_get_time(row);
    upgrade->leaf_index = kv_pg_get_i64(row);
    return KV_OK;
}

KV_RC kv_store_upgrade_get(struct kv_pg *pg, const struct kv_id *erasure, struct kv_errinfo *info,
                           struct kv_store_upgrade *ret_upgrade)
{
    static const struct kv_pg_query query = {"upgrade_get",
                                             "SELECT erasure_id, upgrade_id, issued_at, coalesce(leaf_index, -1)"
                                             " FROM erasure_upgrade WHERE erasure_id = $1"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, erasure);
    struct kv_pg_one one = {
        .query = &query, .args = &args, .none = KV_E_MISSING, .none_text = "nobody has dropped anything of it yet"};
    return kv_pg_fetch_one(pg, &one, fill_upgrade, ret_upgrade, info);
}

KV_RC kv_store_upgrade_set_jws(struct kv_pg *pg, const struct kv_store_upgrade *upgrade, struct kv_bytes jws,
                               struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {"upgrade_set_jws",
                                             "UPDATE erasure_upgrade SET upgrade_id = $2, issued_at = $3, jws = $4"
                                             " WHERE erasure_id = $1 AND jws IS NULL"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &upgrade->erasure);
    kv_pg_arg_id(&args, &upgrade->id);
    kv_pg_arg_time(&args, upgrade->issued_us);
    kv_pg_arg_raw(&args, jws.data, jws.len);
    return kv_pg_change_one(pg, &query, &args, info, "there is a statement already");
}

static KV_RC set_upgraded(struct kv_pg *pg, const struct kv_id *erasure, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {"erasure_upgraded",
                                             "UPDATE erasure SET upgraded = true WHERE id = $1 AND NOT upgraded"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, erasure);
    return kv_pg_change_one(pg, &query, &args, info, "there is a statement already");
}

KV_RC kv_store_upgrade_set_bundle(struct kv_pg *pg, const struct kv_store_upgrade *upgrade, struct kv_bytes bundle,
                                  struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {"upgrade_set_bundle",
                                             "UPDATE erasure_upgrade SET leaf_index = $2, bundle = $3, look_at = NULL"
                                             " WHERE erasure_id = $1 AND jws IS NOT NULL AND bundle IS NULL"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &upgrade->erasure);
    kv_pg_arg_i64(&args, upgrade->leaf_index);
    kv_pg_arg_raw(&args, bundle.data, bundle.len);
    KV_TRY(kv_pg_change_one(pg, &query, &args, info, "the statement has its bundle already"));
    return set_upgraded(pg, &upgrade->erasure, info);
}

KV_RC kv_store_upgrade_jws(struct kv_pg *pg, const struct kv_id *erasure, struct kv_errinfo *info,
                           struct kv_buf *ret_jws)
{
    static const struct kv_pg_query query = {"upgrade_jws", "SELECT jws FROM erasure_upgrade WHERE erasure_id = $1"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, erasure);
    return kv_pg_fetch_blob(pg, &query, &args, "there is no statement yet", info, ret_jws);
}

KV_RC kv_store_upgrade_bundle(struct kv_pg *pg, const struct kv_id *erasure, struct kv_errinfo *info,
                              struct kv_buf *ret_bundle)
{
    static const struct kv_pg_query query = {"upgrade_bundle",
                                             "SELECT bundle FROM erasure_upgrade WHERE erasure_id = $1"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, erasure);
    return kv_pg_fetch_blob(pg, &query, &args, "there is no statement yet", info, ret_bundle);
}
