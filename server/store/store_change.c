/* See store_change.h. Behind a pooler that hands a connection to another client between transactions nobody can listen;
 * telling is still harmless. */
#include "server/store/store_change.h"

#include "server/store/pg_int.h"

static KV_RC fill_seq(struct kv_pg_row *row, void *ret)
{
    *(int64_t *)ret = kv_pg_get_i64(row);
    return KV_OK;
}

KV_RC kv_store_change(struct kv_pg *pg, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "change", "WITH head AS (UPDATE change_head SET seq = seq + 1 RETURNING seq)"
                  " SELECT seq FROM head, LATERAL (SELECT pg_notify('kvrun', seq::text)) AS told"};
    struct kv_pg_args args = {0};
    int64_t seq = 0;
    struct kv_pg_one one = {
        .query = &query, .args = &args, .write = true, .none = KV_E_CORRUPT, .none_text = "no head"};
    return kv_pg_fetch_one(pg, &one, fill_seq, &seq, info);
}

KV_RC kv_store_change_seq(struct kv_pg *pg, struct kv_errinfo *info, int64_t *ret_seq)
{
    static const struct kv_pg_query query = {"change_seq", "SELECT seq FROM change_head"};
    struct kv_pg_args args = {0};
    struct kv_pg_one one = {.query = &query, .args = &args, .none = KV_E_CORRUPT, .none_text = "no head"};
    return kv_pg_fetch_one(pg, &one, fill_seq, ret_seq, info);
}
