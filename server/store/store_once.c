/*
 * Idempotency keys. Two advisory locks that end with the transaction tell a running twin from a running stranger
 * without anybody waiting: first one of key and fingerprint, then one of the key alone. Who does not get the first
 * meets the same request; who gets it and not the second meets another one with the same key.
 */
#include "server/store/store_once.h"

#include "server/store/pg_int.h"

#include <string.h>

static KV_RC fill_bool(struct kv_pg_row *row, void *ret)
{
    *(bool *)ret = kv_pg_get_bool(row);
    return KV_OK;
}

static KV_RC try_lock(struct kv_pg *pg, const struct kv_store_once_key *key, struct kv_bytes fingerprint,
                      struct kv_errinfo *info, bool *ret_locked)
{
    static const struct kv_pg_query query = {
        "once_try_lock", "SELECT pg_try_advisory_xact_lock(('x' || encode(substr(sha256($1::bytea || $2::bytea ||"
                         " convert_to($3::text, 'UTF8') || $4::bytea), 1, 8), 'hex'))::bit(64)::bigint)"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &key->principal);
    kv_pg_arg_raw(&args, key->scope, sizeof key->scope);
    kv_pg_arg_text(&args, key->key);
    kv_pg_arg_raw(&args, fingerprint.data, fingerprint.len);
    struct kv_pg_one one = {.query = &query, .args = &args, .write = true, .none = KV_E_CORRUPT, .none_text = "no row"};
    return kv_pg_fetch_one(pg, &one, fill_bool, ret_locked, info);
}

KV_RC kv_store_once_lock(struct kv_pg *pg, const struct kv_store_once_key *key, const uint8_t fingerprint[32],
                         struct kv_errinfo *info)
{
    bool locked = false;
    KV_TRY(try_lock(pg, key, KV_BYTES(fingerprint, 32), info, &locked));
    if (!locked) {
        return kv_fail(info, KV_E_IDEMPOTENCY_IN_PROGRESS, "this request is running; ask again in a moment");
    }
    KV_TRY(try_lock(pg, key, KV_BYTES("", 0), info, &locked));
    return locked ? KV_OK
                  : kv_fail(info, KV_E_IDEMPOTENCY_MISMATCH,
                            "another request with this Idempotency-Key is running; draw a new key for each request");
}

struct kept {
    struct kv_store_once *once;
    struct kv_buf *body;
};

static KV_RC fill_kept(struct kv_pg_row *row, void *ret)
{
    struct kept *kept = ret;
    struct kv_store_once *once = kept->once;
    kv_pg_get_raw(row, once->fingerprint, sizeof once->fingerprint);
    once->status = kv_pg_get_i32(row);
    kv_pg_get_text(row, once->location, sizeof once->location);
    kv_pg_get_text(row, once->etag, sizeof once->etag);
    kv_pg_get_text(row, once->content_type, sizeof once->content_type);
    kv_pg_get_text(row, once->request_id, sizeof once->request_id);
    once->created_us = kv_pg_get_time(row);
    once->expires_us = kv_pg_get_time(row);
    once->has_body = !kv_pg_get_null(row);
    struct kv_bytes body = kv_pg_get_bytes(row);
    kv_buf_append(kept->body, body.data, body.len);
    return kv_buf_check(kept->body);
}

KV_RC kv_store_once_get(struct kv_pg *pg, const struct kv_store_once_key *key, uint64_t now_us, struct kv_errinfo *info,
                        struct kv_store_once *ret_once, struct kv_buf *ret_body)
{
    static const struct kv_pg_query query = {
        "once_get", "SELECT fingerprint, status, location, etag, content_type, request_id, created_at, expires_at, body"
                    " FROM idempotency WHERE principal = $1 AND scope = $2 AND key = $3"
                    " AND (expires_at IS NULL OR expires_at > $4)"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &key->principal);
    kv_pg_arg_raw(&args, key->scope, sizeof key->scope);
    kv_pg_arg_text(&args, key->key);
    kv_pg_arg_time(&args, now_us);
    struct kept kept = {.once = ret_once, .body = ret_body};
    kv_buf_reset(ret_body);
    ret_once->key = *key;
    struct kv_pg_one one = {
        .query = &query, .args = &args, .none = KV_E_NOT_FOUND, .none_text = "this Idempotency-Key is new"};
    return kv_pg_fetch_one(pg, &one, fill_kept, &kept, info);
}

KV_RC kv_store_once_insert(struct kv_pg *pg, const struct kv_store_once *once, struct kv_bytes body,
                           struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "once_insert",
        "INSERT INTO idempotency (principal, scope, key, fingerprint, status, location, etag, content_type, request_id,"
        " created_at, expires_at, body) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)"
        " ON CONFLICT (principal, scope, key) DO UPDATE SET fingerprint = $4, status = $5, location = $6, etag = $7,"
        " content_type = $8, request_id = $9, created_at = $10, expires_at = $11, body = $12"
        " WHERE idempotency.expires_at <= $10"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &once->key.principal);
    kv_pg_arg_raw(&args, once->key.scope, sizeof once->key.scope);
    kv_pg_arg_text(&args, once->key.key);
    kv_pg_arg_raw(&args, once->fingerprint, sizeof once->fingerprint);
    kv_pg_arg_i32(&args, once->status);
    kv_pg_arg_text_or_null(&args, once->location);
    kv_pg_arg_text_or_null(&args, once->etag);
    kv_pg_arg_text_or_null(&args, once->content_type);
    kv_pg_arg_text(&args, once->request_id);
    kv_pg_arg_time(&args, once->created_us);
    kv_pg_arg_time_or_null(&args, once->expires_us);
    if (once->has_body) {
        kv_pg_arg_raw(&args, body.data, body.len);
    } else {
        kv_pg_arg_raw_or_null(&args, NULL, 0);
    }
    return kv_pg_change_one(pg, &query, &args, info, "this Idempotency-Key was used meanwhile");
}

KV_RC kv_store_once_expire(struct kv_pg *pg, uint64_t now_us, size_t max, struct kv_errinfo *info, uint64_t *ret_count)
{
    static const struct kv_pg_query query = {
        "once_expire", "DELETE FROM idempotency WHERE ctid = ANY (ARRAY(SELECT ctid FROM idempotency"
                       " WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED))"};
    struct kv_pg_args args = {0};
    kv_pg_arg_time(&args, now_us);
    kv_pg_arg_u64(&args, max);
    return kv_pg_change(pg, &query, &args, info, ret_count);
}
