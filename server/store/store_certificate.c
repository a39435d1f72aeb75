/*
 * Certificates of erasures: issued once, chained through the tenant's row, kept for ever.
 */
#include "server/store/pg_int.h"
#include "server/store/store_erasure.h"

KV_RC kv_store_tenant_certificate_move(struct kv_pg *pg, const struct kv_id *tenant, const char *previous_sha256,
                                       const char *latest_sha256, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {"certificate_chain",
                                             "UPDATE tenant SET certificate_sha256 = $2 WHERE id = $1"
                                             " AND certificate_sha256 IS NOT DISTINCT FROM $3"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, tenant);
    kv_pg_arg_text(&args, latest_sha256);
    kv_pg_arg_text_or_null(&args, previous_sha256);
    return kv_pg_change_one(pg, &query, &args, info, "the tenant's latest certificate is another one");
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
