/*
 * Rows there is one of: the cluster, kroot, the revocation head.
 */
#include "server/store/store_cluster.h"

#include "dataplane/base/fault.h"
#include "server/store/pg_int.h"

KV_RC kv_store_cluster_ensure(struct kv_pg *pg, const struct kv_id *fresh_id, struct kv_errinfo *info,
                              struct kv_id *ret_id)
{
    static const struct kv_pg_query query = {"cluster_ensure",
                                             "INSERT INTO cluster (id) VALUES ($1) ON CONFLICT DO NOTHING"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, fresh_id);
    uint64_t rows = 0;
    KV_TRY(kv_pg_change(pg, &query, &args, info, &rows));
    return kv_store_cluster_get(pg, info, ret_id);
}

KV_RC kv_store_cluster_get(struct kv_pg *pg, struct kv_errinfo *info, struct kv_id *ret_id)
{
    static const struct kv_pg_query query = {"cluster_get", "SELECT id FROM cluster"};
    struct kv_pg_args args = {0};
    struct kv_pg_one one = {
        .query = &query, .args = &args, .none = KV_E_MISSING, .none_text = "the database has no cluster id yet"};
    return kv_pg_fetch_one(pg, &one, kv_pg_fill_id, ret_id, info);
}

KV_RC kv_store_cluster_lock(struct kv_pg *pg, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {"cluster_lock", "SELECT id FROM cluster FOR UPDATE"};
    struct kv_pg_args args = {0};
    struct kv_id id;
    struct kv_pg_one one = {.query = &query,
                            .args = &args,
                            .write = true,
                            .none = KV_E_MISSING,
                            .none_text = "the database has no cluster id yet"};
    return kv_pg_fetch_one(pg, &one, kv_pg_fill_id, &id, info);
}

static KV_RC fill_cursor_key(struct kv_pg_row *row, void *ret)
{
    kv_pg_get_raw(row, ret, 32);
    return KV_OK;
}

KV_RC kv_store_cursor_key_ensure(struct kv_pg *pg, const uint8_t fresh[32], struct kv_errinfo *info,
                                 uint8_t ret_key[32])
{
    static const struct kv_pg_query query = {
        "cursor_key_ensure", "UPDATE cluster SET cursor_key = coalesce(cursor_key, $1) RETURNING cursor_key"};
    struct kv_pg_args args = {0};
    kv_pg_arg_raw(&args, fresh, 32);
    struct kv_pg_one one = {.query = &query,
                            .args = &args,
                            .write = true,
                            .none = KV_E_MISSING,
                            .none_text = "the database has no cluster id yet"};
    return kv_pg_fetch_one(pg, &one, fill_cursor_key, ret_key, info);
}

/* ---- kroot ---- */

static KV_RC fill_i64(struct kv_pg_row *row, void *ret)
{
    *(int64_t *)ret = kv_pg_get_i64(row);
    return KV_OK;
}

void kv_store_kroot_done(struct kv_store_kroot *kroot)
{
    kv_buf_done(&kroot->blob);
}

#define KROOT_COLUMNS "root_id, provider, fence, eraser, updated_at, blob"
#define BLOB_MAX 65536

static KV_RC fill_kroot(struct kv_pg_row *row, void *ret)
{
    struct kv_store_kroot kroot;
    kv_pg_get_id(row, &kroot.root_id);
    kv_pg_get_text(row, kroot.provider, sizeof kroot.provider);
    kroot.fence = kv_pg_get_i64(row);
    kv_pg_get_id(row, &kroot.eraser);
    kroot.updated_us = kv_pg_get_time(row);
    struct kv_bytes blob = kv_pg_get_bytes(row);
    KV_TRY(kv_pg_row_check(row, NULL));
    kv_buf_init(&kroot.blob, BLOB_MAX);
    kv_buf_append(&kroot.blob, blob.data, blob.len);
    enum kv_err rc = kv_buf_check(&kroot.blob);
    if (rc != KV_OK) {
        kv_buf_done(&kroot.blob);
        return rc;
    }
    *(struct kv_store_kroot *)ret = kroot;
    return KV_OK;
}

KV_RC kv_store_kroot_init(struct kv_pg *pg, const struct kv_store_root_set *root, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "kroot_init", "INSERT INTO kroot (root_id, provider, blob) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &root->root_id);
    kv_pg_arg_text(&args, root->provider);
    kv_pg_arg_raw(&args, root->blob.data, root->blob.len);
    return kv_pg_change_one(pg, &query, &args, info, "the database has a root already");
}

static const char *const no_root = "the database has no root yet";

KV_RC kv_store_kroot_get(struct kv_pg *pg, struct kv_errinfo *info, struct kv_store_kroot *ret_kroot)
{
    static const struct kv_pg_query query = {"kroot_get", "SELECT " KROOT_COLUMNS " FROM kroot"};
    struct kv_pg_args args = {0};
    struct kv_pg_one one = {.query = &query, .args = &args, .none = KV_E_MISSING, .none_text = no_root};
    return kv_pg_fetch_one(pg, &one, fill_kroot, ret_kroot, info);
}

KV_RC kv_store_kroot_share(struct kv_pg *pg, struct kv_errinfo *info, struct kv_store_kroot *ret_kroot)
{
    static const struct kv_pg_query query = {"kroot_share", "SELECT " KROOT_COLUMNS " FROM kroot FOR SHARE"};
    struct kv_pg_args args = {0};
    struct kv_pg_one one = {.query = &query, .args = &args, .write = true, .none = KV_E_MISSING, .none_text = no_root};
    return kv_pg_fetch_one(pg, &one, fill_kroot, ret_kroot, info);
}

KV_RC kv_store_kroot_take(struct kv_pg *pg, const struct kv_id *eraser, struct kv_errinfo *info,
                          struct kv_store_kroot *ret_kroot)
{
    /* UPDATE takes the lock of FOR NO KEY UPDATE, which stops FOR SHARE and every other update: that is the lock meant.
     */
    static const struct kv_pg_query query = {
        "kroot_take", "UPDATE kroot SET fence = fence + 1, eraser = $1, updated_at = now() WHERE NOT EXISTS (SELECT 1"
                      " FROM instance i WHERE i.id = kroot.eraser AND i.id <> $1 AND i.lease_until > clock_timestamp()"
                      " AND i.ended_at IS NULL AND i.expired_at IS NULL) RETURNING " KROOT_COLUMNS};
    static const struct kv_pg_query any = {"kroot_any", "SELECT fence FROM kroot"};
    struct kv_pg_args args = {0}, none = {0};
    int64_t fence = 0;
    kv_pg_arg_id(&args, eraser);
    struct kv_pg_one one = {.query = &query,
                            .args = &args,
                            .write = true,
                            .none = KV_E_STALE,
                            .none_text = "another instance erases, and its lease runs"};
    struct kv_pg_one there = {.query = &any, .args = &none, .none = KV_E_MISSING, .none_text = no_root};
    enum kv_err rc = kv_pg_fetch_one(pg, &one, fill_kroot, ret_kroot, info);
    if (rc == KV_E_STALE) {
        KV_TRY(kv_pg_fetch_one(pg, &there, fill_i64, &fence, info));
    }
    return rc;
}

static const char *const taken_over = "another eraser has taken over";

KV_RC kv_store_kroot_hold(struct kv_pg *pg, int64_t fence, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {"kroot_hold", "SELECT fence FROM kroot WHERE fence = $1 FOR SHARE"};
    struct kv_pg_args args = {0};
    int64_t seen = 0;
    kv_pg_arg_i64(&args, fence);
    struct kv_pg_one one = {.query = &query, .args = &args, .write = true, .none = KV_E_STALE, .none_text = taken_over};
    return KV_FAULT("store/unfenced") ? KV_OK : kv_pg_fetch_one(pg, &one, fill_i64, &seen, info);
}

KV_RC kv_store_kroot_release(struct kv_pg *pg, int64_t fence, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {"kroot_release", "UPDATE kroot SET eraser = NULL WHERE fence = $1"};
    struct kv_pg_args args = {0};
    kv_pg_arg_i64(&args, fence);
    return kv_pg_change_one(pg, &query, &args, info, taken_over);
}

KV_RC kv_store_kroot_lock(struct kv_pg *pg, int64_t fence, struct kv_errinfo *info, struct kv_store_kroot *ret_kroot)
{
    static const struct kv_pg_query query = {"kroot_lock",
                                             "SELECT " KROOT_COLUMNS " FROM kroot WHERE fence = $1 FOR UPDATE"};
    struct kv_pg_args args = {0};
    kv_pg_arg_i64(&args, fence);
    struct kv_pg_one one = {.query = &query, .args = &args, .write = true, .none = KV_E_STALE, .none_text = taken_over};
    return kv_pg_fetch_one(pg, &one, fill_kroot, ret_kroot, info);
}

KV_RC kv_store_kroot_set(struct kv_pg *pg, const struct kv_id *old_root, int64_t fence,
                         const struct kv_store_root_set *root, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "kroot_set", "UPDATE kroot SET root_id = $3, provider = $4, blob = $5, updated_at = now()"
                     " WHERE root_id = $1 AND fence = $2"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, old_root);
    kv_pg_arg_i64(&args, fence);
    kv_pg_arg_id(&args, &root->root_id);
    kv_pg_arg_text(&args, root->provider);
    kv_pg_arg_raw(&args, root->blob.data, root->blob.len);
    return kv_pg_change_one(pg, &query, &args, info, "the root or its fence is not what was seen");
}

/* A lock on a row shows as one on its table, for as long as the transaction lasts. */
KV_RC kv_store_kroot_evict(struct kv_pg *pg, struct kv_errinfo *info, uint32_t *ret_count)
{
    static const struct kv_pg_query query = {"kroot_evict", KV_PG_EVICT("kroot")};
    return kv_pg_evict(pg, &query, info, ret_count);
}

/* ---- revocations ---- */

KV_RC kv_store_revocation_next(struct kv_pg *pg, struct kv_errinfo *info, int64_t *ret_seq)
{
    return kv_store_revocations_next(pg, 1, info, ret_seq);
}

KV_RC kv_store_revocations_next(struct kv_pg *pg, size_t count, struct kv_errinfo *info, int64_t *ret_first)
{
    static const struct kv_pg_query query = {"revocation_next",
                                             "UPDATE revocation_head SET seq = seq + $1 RETURNING seq - $1 + 1"};
    struct kv_pg_args args = {0};
    kv_pg_arg_u64(&args, count);
    struct kv_pg_one one = {.query = &query,
                            .args = &args,
                            .write = true,
                            .none = KV_E_CORRUPT,
                            .none_text = "the revocation head is gone from the database"};
    return kv_pg_fetch_one(pg, &one, fill_i64, ret_first, info);
}

KV_RC kv_store_revocation_hold(struct kv_pg *pg, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {"revocation_hold", "SELECT seq FROM revocation_head FOR UPDATE"};
    struct kv_pg_args args = {0};
    int64_t seq = 0;
    struct kv_pg_one one = {.query = &query,
                            .args = &args,
                            .write = true,
                            .none = KV_E_CORRUPT,
                            .none_text = "the revocation head is gone from the database"};
    return kv_pg_fetch_one(pg, &one, fill_i64, &seq, info);
}

KV_RC kv_store_revocation_head(struct kv_pg *pg, struct kv_errinfo *info, int64_t *ret_seq)
{
    static const struct kv_pg_query query = {"revocation_head", "SELECT seq FROM revocation_head"};
    struct kv_pg_args args = {0};
    struct kv_pg_one one = {.query = &query,
                            .args = &args,
                            .none = KV_E_CORRUPT,
                            .none_text = "the revocation head is gone from the database"};
    return kv_pg_fetch_one(pg, &one, fill_i64, ret_seq, info);
}

static KV_RC fill_revocation(struct kv_pg_row *row, void *ret)
{
    struct kv_store_revocation *revocation = ret;
    revocation->seq = kv_pg_get_i64(row);
    kv_pg_get_id(row, &revocation->tenant);
    kv_pg_get_id(row, &revocation->session);
    kv_pg_get_id(row, &revocation->erasure);
    revocation->first_slot = kv_pg_get_u32(row);
    revocation->slot = kv_pg_get_u32(row);
    return KV_OK;
}

KV_RC kv_store_revocations_since(struct kv_pg *pg, int64_t seq, size_t max, struct kv_errinfo *info,
                                 struct kv_store_revocation *ret_list, size_t *ret_count)
{
    static const struct kv_pg_query query = {"revocations_since",
                                             "SELECT revocation_seq, tenant_id, session_id, id,"
                                             " coalesce(first_slot, slot), slot FROM erasure"
                                             " WHERE revocation_seq > $1 ORDER BY revocation_seq LIMIT $2"};
    struct kv_pg_args args = {0};
    kv_pg_arg_i64(&args, seq);
    kv_pg_arg_u64(&args, max);
    struct kv_pg_many many = {.query = &query, .args = &args, .max = max, .size = sizeof ret_list[0]};
    return kv_pg_fetch_many(pg, &many, fill_revocation, ret_list, ret_count, info);
}
