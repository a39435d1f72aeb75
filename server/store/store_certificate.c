/*
 * Certificates of erasures: issued once, chained through the tenant's row, kept for ever.
 */
#include "server/store/pg_int.h"
#include "server/store/store_erasure.h"

static KV_RC move_chain(struct kv_pg *pg, const struct kv_id *erasure, const struct kv_store_certificate *certificate,
                        struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {"certificate_chain",
                                             "UPDATE tenant SET certificate_sha256 = $2"
                                             " WHERE id = (SELECT tenant_id FROM erasure WHERE id = $1)"
                                             " AND certificate_sha256 IS NOT DISTINCT FROM $3"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, erasure);
    kv_pg_arg_text(&args, certificate->sha256);
    kv_pg_arg_text_or_null(&args, certificate->previous_sha256);
    return kv_pg_change_one(pg, &query, &args, info, "the tenant's latest certificate is another one");
}

KV_RC kv_store_erasure_set_certificate(struct kv_pg *pg, const struct kv_id *id,
                                       const struct kv_store_certificate *certificate, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {"certificate_set",
                                             "UPDATE erasure SET cert_id = $2, cert_jws = $3, previous_sha256 = $4"
                                             " WHERE id = $1 AND state = 'verified' AND cert_jws IS NULL"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, id);
    kv_pg_arg_id(&args, &certificate->id);
    kv_pg_arg_raw(&args, certificate->jws.data, certificate->jws.len);
    kv_pg_arg_text_or_null(&args, certificate->previous_sha256);
    KV_TRY(kv_pg_change_one(pg, &query, &args, info, "the erasure has its certificate, or is not verified"));
    return move_chain(pg, id, certificate, info);
}

KV_RC kv_store_erasure_set_bundle(struct kv_pg *pg, const struct kv_id *id, uint64_t leaf_index, struct kv_bytes bundle,
                                  struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {"certificate_set_bundle",
                                             "UPDATE erasure SET cert_leaf_index = $2, bundle = $3 WHERE id = $1"
                                             " AND state = 'verified' AND cert_jws IS NOT NULL AND bundle IS NULL"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, id);
    kv_pg_arg_u64(&args, leaf_index);
    kv_pg_arg_raw(&args, bundle.data, bundle.len);
    return kv_pg_change_one(pg, &query, &args, info, "the erasure has its bundle, or no certificate yet");
}

KV_RC kv_store_erasure_jws(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info, struct kv_buf *ret_jws)
{
    static const struct kv_pg_query query = {"certificate_jws", "SELECT cert_jws FROM erasure WHERE id = $1"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, id);
    return kv_pg_fetch_blob(pg, &query, &args, "the erasure has no certificate yet", info, ret_jws);
}

KV_RC kv_store_erasure_bundle(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                              struct kv_buf *ret_bundle)
{
    static const struct kv_pg_query query = {"certificate_bundle", "SELECT bundle FROM erasure WHERE id = $1"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, id);
    return kv_pg_fetch_blob(pg, &query, &args, "the erasure has no bundle yet", info, ret_bundle);
}
