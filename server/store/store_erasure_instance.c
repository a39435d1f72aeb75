/*
 * What each instance has, or had, of a session that is being erased, and how it came to use it no more.
 */
#include "server/store/pg_int.h"
#include "server/store/store_erasure.h"

static const char *const how_names[] = {"", "self", "acked", "expired"};

const char *kv_fenced_how_name(enum kv_fenced_how how)
{
    return how_names[how];
}

KV_RC kv_store_erasure_report(struct kv_pg *pg, const struct kv_store_report *report, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "erasure_report",
        "INSERT INTO erasure_instance (erasure_id, instance_id, incarnation, journal_seq, reported_at, blocks, bytes,"
        " dram_blocks, dram_bytes, nvme_blocks, nvme_bytes, block_root, samples, sample_headers)"
        " SELECT e.id, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14 FROM erasure e"
        " JOIN instance i ON i.id = $2 AND i.incarnation = $3 WHERE e.id = $1 ON CONFLICT DO NOTHING"};
    const struct kv_store_facts *facts = &report->facts;
    struct kv_pg_args args = {0};
    uint64_t rows = 0;
    kv_pg_arg_id(&args, &report->erasure);
    kv_pg_arg_id(&args, &report->instance);
    kv_pg_arg_i64(&args, report->incarnation);
    kv_pg_arg_u64(&args, report->journal_seq);
    kv_pg_arg_time(&args, report->at_us);
    kv_pg_arg_u64(&args, facts->blocks);
    kv_pg_arg_u64(&args, facts->bytes);
    kv_pg_arg_u64(&args, facts->dram_blocks);
    kv_pg_arg_u64(&args, facts->dram_bytes);
    kv_pg_arg_u64(&args, facts->nvme_blocks);
    kv_pg_arg_u64(&args, facts->nvme_bytes);
    kv_pg_arg_raw(&args, facts->block_root, sizeof facts->block_root);
    kv_pg_arg_i32(&args, facts->samples);
    kv_pg_arg_raw_or_null(&args, report->samples.data, report->samples.len);
    return kv_pg_change(pg, &query, &args, info, &rows);
}

static KV_RC fill(struct kv_pg_row *row, void *ret)
{
    struct kv_store_erasure_instance *instance = ret;
    kv_pg_get_id(row, &instance->erasure);
    kv_pg_get_id(row, &instance->instance);
    instance->incarnation = kv_pg_get_i64(row);
    instance->reported_us = kv_pg_get_time(row);
    instance->journal_seq = kv_pg_get_u64(row);
    instance->facts.blocks = kv_pg_get_u64(row);
    instance->facts.bytes = kv_pg_get_u64(row);
    instance->facts.dram_blocks = kv_pg_get_u64(row);
    instance->facts.dram_bytes = kv_pg_get_u64(row);
    instance->facts.nvme_blocks = kv_pg_get_u64(row);
    instance->facts.nvme_bytes = kv_pg_get_u64(row);
    kv_pg_get_raw(row, instance->facts.block_root, sizeof instance->facts.block_root);
    instance->facts.samples = kv_pg_get_u32(row);
    instance->fenced_how = (enum kv_fenced_how)kv_pg_get_word(row, how_names, 4);
    instance->fenced_us = kv_pg_get_time(row);
    instance->purged_how = (enum kv_fenced_how)kv_pg_get_word(row, how_names, 4);
    instance->purged_us = kv_pg_get_time(row);
    return KV_OK;
}

KV_RC kv_store_erasure_instances(struct kv_pg *pg, const struct kv_id *erasures, size_t count, size_t max,
                                 struct kv_errinfo *info, struct kv_store_erasure_instance *ret_list, size_t *ret_count)
{
    static const struct kv_pg_query query = {
        "erasure_instances",
        "SELECT erasure_id, instance_id, incarnation, reported_at, coalesce(journal_seq, 0), blocks, bytes, "
        "dram_blocks,"
        " dram_bytes, nvme_blocks, nvme_bytes, block_root, samples, coalesce(fenced_how, ''), fenced_at,"
        " coalesce(purged_how, ''), purged_at FROM erasure_instance WHERE erasure_id = ANY ($1)"
        " ORDER BY erasure_id, instance_id LIMIT $2"};
    struct kv_pg_array array;
    kv_pg_array_init(&array, KV_PG_ARRAY_BYTEA, count, count * sizeof erasures[0].b);
    for (size_t i = 0; i < count; i++) {
        kv_pg_array_raw(&array, erasures[i].b, sizeof erasures[i].b, false);
    }
    struct kv_pg_args args = {0};
    kv_pg_arg_array(&args, &array, KV_PG_ARRAY_BYTEA);
    kv_pg_arg_u64(&args, max);
    struct kv_pg_many many = {.query = &query, .args = &args, .max = max, .size = sizeof ret_list[0]};
    enum kv_err rc = kv_pg_fetch_many(pg, &many, fill, ret_list, ret_count, info);
    kv_pg_array_done(&array);
    return rc;
}

KV_RC kv_store_erasure_instance_samples(struct kv_pg *pg, const struct kv_id *erasure, const struct kv_id *instance,
                                        struct kv_errinfo *info, struct kv_buf *ret_samples)
{
    static const struct kv_pg_query query = {
        "erasure_instance_samples",
        "SELECT sample_headers FROM erasure_instance WHERE erasure_id = $1 AND instance_id = $2"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, erasure);
    kv_pg_arg_id(&args, instance);
    return kv_pg_fetch_blob(pg, &query, &args, "the instance sent no samples", info, ret_samples);
}

static void arg_fenced(struct kv_pg_args *args, const struct kv_id *of, const struct kv_store_fenced *fenced)
{
    kv_pg_arg_id(args, of);
    kv_pg_arg_id(args, &fenced->instance);
    kv_pg_arg_i64(args, fenced->incarnation);
    kv_pg_arg_text(args, how_names[fenced->how]);
    kv_pg_arg_time(args, fenced->at_us);
}

KV_RC kv_store_erasure_fenced_by(struct kv_pg *pg, const struct kv_id *erasure, const struct kv_store_fenced *fenced,
                                 struct kv_errinfo *info)
{
    return kv_store_erasures_fenced_by(pg, &(struct kv_store_ids){.ids = erasure, .count = 1}, fenced, info);
}

KV_RC kv_store_erasure_purged_by(struct kv_pg *pg, const struct kv_id *batch, const struct kv_store_fenced *purged,
                                 struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "erasure_purged_by",
        "INSERT INTO erasure_instance (erasure_id, instance_id, incarnation, fenced_how, fenced_at, purged_how,"
        " purged_at) SELECT e.id, $2, $3, $4, $5, $4, $5 FROM erasure e WHERE e.batch_id = $1 AND e.state = 'destroyed'"
        " ON CONFLICT (erasure_id, instance_id) DO UPDATE SET purged_how = excluded.purged_how,"
        " purged_at = excluded.purged_at,"
        " fenced_how = coalesce(erasure_instance.fenced_how, excluded.fenced_how),"
        " fenced_at = coalesce(erasure_instance.fenced_at, excluded.fenced_at)"};
    struct kv_pg_args args = {0};
    uint64_t rows = 0;
    arg_fenced(&args, batch, purged);
    return kv_pg_change(pg, &query, &args, info, &rows);
}

KV_RC kv_store_erasure_purged_rest(struct kv_pg *pg, const struct kv_id *batch, uint64_t at_us, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "erasure_purged_rest",
        "UPDATE erasure_instance r SET purged_how = r.fenced_how, purged_at = $2 FROM erasure e WHERE e.batch_id = $1"
        " AND e.state = 'destroyed' AND r.erasure_id = e.id AND r.fenced_how IS NOT NULL AND r.purged_how IS NULL"};
    struct kv_pg_args args = {0};
    uint64_t rows = 0;
    kv_pg_arg_id(&args, batch);
    kv_pg_arg_time(&args, at_us);
    return kv_pg_change(pg, &query, &args, info, &rows);
}

static KV_RC fill_bool(struct kv_pg_row *row, void *ret)
{
    *(bool *)ret = kv_pg_get_bool(row);
    return KV_OK;
}

KV_RC kv_store_instance_lingers(struct kv_pg *pg, const struct kv_id *instance, const struct kv_id *subject,
                                struct kv_errinfo *info, bool *ret_lingers)
{
    static const struct kv_pg_query query = {
        "instance_lingers", "SELECT i.expired_at >= s.created_at OR NOT EXISTS (SELECT 1 FROM erase_batch b"
                            " WHERE b.destroyed_at > i.expired_at AND b.destroyed_at < s.created_at)"
                            " FROM instance i, (SELECT created_at FROM session WHERE id = $2 UNION ALL"
                            " SELECT created_at FROM tenant WHERE id = $2) s"
                            " WHERE i.id = $1 AND i.expired_at IS NOT NULL"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, instance);
    kv_pg_arg_id(&args, subject);
    *ret_lingers = false;
    struct kv_pg_one one = {.query = &query, .args = &args, .none = KV_E_MISSING, .none_text = "it joined again"};
    enum kv_err rc = kv_pg_fetch_one(pg, &one, fill_bool, ret_lingers, info);
    return rc == KV_E_MISSING ? KV_OK : rc;
}
