/*
 * Leaves and tiles of the audit logs: written once, read for proofs.
 */
#include "server/store/pg_int.h"
#include "server/store/store_audit.h"

#include "dataplane/base/check.h"
#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"

#include <string.h>

struct leaf_arrays {
    struct kv_pg_array entries, hashes, refs, times, ops, outcomes, actors, sessions;
};

static void leaf_arrays_done(struct leaf_arrays *arrays)
{
    kv_pg_array_done(&arrays->entries);
    kv_pg_array_done(&arrays->hashes);
    kv_pg_array_done(&arrays->refs);
    kv_pg_array_done(&arrays->times);
    kv_pg_array_done(&arrays->ops);
    kv_pg_array_done(&arrays->outcomes);
    kv_pg_array_done(&arrays->actors);
    kv_pg_array_done(&arrays->sessions);
}

static void facts_init(struct leaf_arrays *arrays, size_t count)
{
    const struct kv_store_leaf_facts *facts = NULL;
    kv_pg_array_init(&arrays->times, KV_PG_ARRAY_I64, count, count * 8);
    kv_pg_array_init(&arrays->ops, KV_PG_ARRAY_BYTEA, count, count * sizeof facts->op);
    kv_pg_array_init(&arrays->outcomes, KV_PG_ARRAY_BYTEA, count, count * sizeof facts->outcome);
    kv_pg_array_init(&arrays->actors, KV_PG_ARRAY_BYTEA, count, count * sizeof facts->actor);
    kv_pg_array_init(&arrays->sessions, KV_PG_ARRAY_BYTEA, count, count * sizeof facts->session);
}

static void put_facts(struct leaf_arrays *arrays, const struct kv_store_leaf_facts *facts)
{
    kv_pg_array_i64(&arrays->times, (int64_t)facts->at_us);
    kv_pg_array_raw(&arrays->ops, facts->op, strlen(facts->op), facts->op[0] == '\0');
    kv_pg_array_raw(&arrays->outcomes, facts->outcome, strlen(facts->outcome), facts->outcome[0] == '\0');
    kv_pg_array_raw(&arrays->actors, facts->actor.b, sizeof facts->actor.b, kv_id_is_zero(&facts->actor));
    kv_pg_array_raw(&arrays->sessions, facts->session.b, sizeof facts->session.b, kv_id_is_zero(&facts->session));
}

static void leaf_arrays_fill(struct leaf_arrays *arrays, const struct kv_store_leaf *leaves, size_t count)
{
    size_t entry_bytes = 0;
    for (size_t i = 0; i < count; i++) {
        entry_bytes += leaves[i].entry.len;
    }
    kv_pg_array_init(&arrays->entries, KV_PG_ARRAY_BYTEA, count, entry_bytes);
    kv_pg_array_init(&arrays->hashes, KV_PG_ARRAY_BYTEA, count, count * 32);
    kv_pg_array_init(&arrays->refs, KV_PG_ARRAY_BYTEA, count, count * KV_LOG_REF_BYTES_MAX);
    facts_init(arrays, count);
    for (size_t i = 0; i < count; i++) {
        kv_pg_array_raw(&arrays->entries, leaves[i].entry.data, leaves[i].entry.len, false);
        kv_pg_array_raw(&arrays->hashes, leaves[i].hash, sizeof leaves[i].hash, false);
        kv_pg_array_raw(&arrays->refs, leaves[i].ref.data, leaves[i].ref.len, leaves[i].ref.len == 0);
        put_facts(arrays, &leaves[i].facts);
    }
}

KV_RC kv_store_leaf_append(struct kv_pg *pg, const struct kv_id *log, uint64_t first_idx,
                           const struct kv_store_leaf *leaves, size_t count, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "leaf_append",
        "INSERT INTO audit_leaf (log_id, idx, entry, leaf_hash, ref, at, op, outcome, actor, session_id)"
        " SELECT $1, $2 + place - 1, entry, leaf_hash, ref, timestamptz 'epoch' + nullif(at, 0) * interval '1 us',"
        " convert_from(op, 'UTF8'), convert_from(outcome, 'UTF8'), actor, session_id"
        " FROM unnest($3, $4, $5, $6, $7, $8, $9, $10) WITH ORDINALITY"
        " AS fresh (entry, leaf_hash, ref, at, op, outcome, actor, session_id, place)"
        " ON CONFLICT (log_id, idx) DO NOTHING"};
    KV_ASSERT(count > 0 && count <= KV_OUTBOX_BATCH_MAX);
    struct leaf_arrays arrays;
    leaf_arrays_fill(&arrays, leaves, count);
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, log);
    kv_pg_arg_u64(&args, first_idx);
    kv_pg_arg_array(&args, &arrays.entries, KV_PG_ARRAY_BYTEA);
    kv_pg_arg_array(&args, &arrays.hashes, KV_PG_ARRAY_BYTEA);
    kv_pg_arg_array(&args, &arrays.refs, KV_PG_ARRAY_BYTEA);
    kv_pg_arg_array(&args, &arrays.times, KV_PG_ARRAY_I64);
    kv_pg_arg_array(&args, &arrays.ops, KV_PG_ARRAY_BYTEA);
    kv_pg_arg_array(&args, &arrays.outcomes, KV_PG_ARRAY_BYTEA);
    kv_pg_arg_array(&args, &arrays.actors, KV_PG_ARRAY_BYTEA);
    kv_pg_arg_array(&args, &arrays.sessions, KV_PG_ARRAY_BYTEA);
    uint64_t rows = 0;
    enum kv_err rc = kv_pg_change(pg, &query, &args, info, &rows);
    leaf_arrays_done(&arrays);
    if (rc == KV_OK && rows != count) {
        return kv_fail(info, KV_E_STALE, "a place in the audit log is taken");
    }
    return rc;
}

static KV_RC fill_hash(struct kv_pg_row *row, void *ret)
{
    kv_pg_get_raw(row, ret, 32);
    return KV_OK;
}

KV_RC kv_store_leaf_hashes(struct kv_pg *pg, const struct kv_id *log, uint64_t first_idx, size_t count,
                           struct kv_errinfo *info, uint8_t *ret_hashes)
{
    static const struct kv_pg_query query = {"leaf_hashes", "SELECT leaf_hash FROM audit_leaf WHERE log_id = $1"
                                                            " AND idx >= $2 AND idx < $2 + $3 ORDER BY idx LIMIT $3"};
    KV_ASSERT(count > 0 && count <= 256);
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, log);
    kv_pg_arg_u64(&args, first_idx);
    kv_pg_arg_u64(&args, count);
    struct kv_pg_many many = {.query = &query, .args = &args, .max = count, .size = 32};
    size_t found = 0;
    KV_TRY(kv_pg_fetch_many(pg, &many, fill_hash, ret_hashes, &found, info));
    return found == count ? KV_OK : kv_fail(info, KV_E_MISSING, "the audit log has no such leaves");
}

KV_RC kv_store_leaf_find(struct kv_pg *pg, const struct kv_id *log, struct kv_bytes ref, struct kv_errinfo *info,
                         uint64_t *ret_idx)
{
    static const struct kv_pg_query query = {
        "leaf_find", "SELECT idx FROM audit_leaf WHERE log_id = $1 AND ref = $2 ORDER BY idx LIMIT 1"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, log);
    kv_pg_arg_raw(&args, ref.data, ref.len);
    struct kv_pg_one one = {
        .query = &query, .args = &args, .none = KV_E_MISSING, .none_text = "the entry has no place in the log yet"};
    return kv_pg_fetch_one(pg, &one, kv_pg_fill_u64, ret_idx, info);
}

KV_RC kv_store_leaves_find(struct kv_pg *pg, const struct kv_id *log, const struct kv_store_refs *refs,
                           struct kv_errinfo *info, uint64_t *ret_places)
{
    static const struct kv_pg_query query = {
        "leaves_find", "SELECT l.idx FROM unnest($2) WITH ORDINALITY AS wanted (ref, place) CROSS JOIN LATERAL"
                       " (SELECT idx FROM audit_leaf WHERE log_id = $1 AND ref = wanted.ref ORDER BY idx LIMIT 1) l"
                       " ORDER BY wanted.place LIMIT $3"};
    struct kv_pg_array array;
    struct kv_pg_args args = {0};
    size_t found = 0;
    KV_ASSERT(refs->count <= KV_OUTBOX_BATCH_MAX);
    kv_pg_array_init(&array, KV_PG_ARRAY_BYTEA, refs->count, refs->count * refs->ref_len);
    for (size_t i = 0; i < refs->count; i++) {
        kv_pg_array_raw(&array, refs->refs + i * refs->ref_len, refs->ref_len, false);
    }
    kv_pg_arg_id(&args, log);
    kv_pg_arg_array(&args, &array, KV_PG_ARRAY_BYTEA);
    kv_pg_arg_u64(&args, refs->count);
    struct kv_pg_many many = {.query = &query, .args = &args, .max = refs->count, .size = sizeof ret_places[0]};
    enum kv_err rc = kv_pg_fetch_many(pg, &many, kv_pg_fill_u64, ret_places, &found, info);
    kv_pg_array_done(&array);
    KV_TRY(rc);
    return found == refs->count ? KV_OK : kv_fail(info, KV_E_MISSING, "an entry has no place in the log yet");
}

/* ---- entries ---- */

void kv_store_entries_done(struct kv_store_entries *entries)
{
    kv_free(entries->rows);
    kv_buf_done(&entries->bytes);
    *entries = (struct kv_store_entries){0};
}

static KV_RC copy_entries(const PGresult *result, struct kv_store_entries *entries)
{
    size_t total = 1;
    for (size_t i = 0; i < entries->count; i++) {
        struct kv_pg_row row = kv_pg_row_of(result, (int)i);
        entries->rows[i].idx = kv_pg_get_u64(&row);
        kv_pg_get_raw(&row, entries->rows[i].hash, sizeof entries->rows[i].hash);
        entries->rows[i].entry = kv_pg_get_bytes(&row);
        KV_TRY(kv_pg_row_check(&row, NULL));
        total += entries->rows[i].entry.len;
    }
    kv_buf_init(&entries->bytes, total);
    for (size_t i = 0; i < entries->count; i++) {
        kv_buf_append(&entries->bytes, entries->rows[i].entry.data, entries->rows[i].entry.len);
    }
    KV_TRY(kv_buf_check(&entries->bytes));
    const uint8_t *at = entries->bytes.data;
    for (size_t i = 0; i < entries->count; i++) {
        entries->rows[i].entry.data = at;
        at += entries->rows[i].entry.len;
    }
    return KV_OK;
}

KV_RC kv_store_leaf_entries(struct kv_pg *pg, const struct kv_id *log, uint64_t first, size_t max,
                            struct kv_errinfo *info, struct kv_store_entries *ret_entries)
{
    static const struct kv_pg_query query = {
        "leaf_entries",
        "SELECT idx, leaf_hash, entry FROM audit_leaf WHERE log_id = $1 AND idx >= $2 ORDER BY idx LIMIT $3"};
    KV_ASSERT(max <= KV_OUTBOX_BATCH_MAX);
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, log);
    kv_pg_arg_u64(&args, first);
    kv_pg_arg_u64(&args, max);
    PGresult *result KV_CLEANUP(kv_pg_result_free) = NULL;
    KV_TRY(kv_pg_read(pg, &query, &args, info, &result));
    struct kv_store_entries entries = {.count = (size_t)PQntuples(result)};
    if (entries.count > 0) {
        entries.rows = kv_alloc_array(entries.count, sizeof entries.rows[0]);
        enum kv_err rc = entries.rows != NULL ? copy_entries(result, &entries) : KV_E_NO_MEMORY;
        if (rc != KV_OK) {
            kv_store_entries_done(&entries);
            return kv_fail(info, rc, "entries of the audit log cannot be read");
        }
    }
    *ret_entries = entries;
    return KV_OK;
}

/* ---- a page of leaves ---- */

void kv_store_leaf_page_done(struct kv_store_leaf_page *page)
{
    kv_free(page->rows);
    kv_buf_done(&page->bytes);
    *page = (struct kv_store_leaf_page){0};
}

static void read_leaf(struct kv_pg_row *row, struct kv_store_leaf_row *leaf)
{
    leaf->idx = kv_pg_get_u64(row);
    kv_pg_get_raw(row, leaf->hash, sizeof leaf->hash);
    leaf->facts.at_us = kv_pg_get_time(row);
    kv_pg_get_text(row, leaf->facts.op, sizeof leaf->facts.op);
    kv_pg_get_text(row, leaf->facts.outcome, sizeof leaf->facts.outcome);
    kv_pg_get_id(row, &leaf->facts.actor);
    kv_pg_get_id(row, &leaf->facts.session);
    leaf->entry = kv_pg_get_bytes(row);
}

/* Entries lie in the result until now; afterwards in one buffer that the page owns. */
static KV_RC copy_leaves(const PGresult *result, struct kv_store_leaf_page *page)
{
    size_t total = 1;
    for (size_t i = 0; i < page->count; i++) {
        struct kv_pg_row row = kv_pg_row_of(result, (int)i);
        read_leaf(&row, &page->rows[i]);
        KV_TRY(kv_pg_row_check(&row, NULL));
        total += page->rows[i].entry.len;
    }
    kv_buf_init(&page->bytes, total);
    for (size_t i = 0; i < page->count; i++) {
        kv_buf_append(&page->bytes, page->rows[i].entry.data, page->rows[i].entry.len);
    }
    KV_TRY(kv_buf_check(&page->bytes));
    const uint8_t *at = page->bytes.data;
    for (size_t i = 0; i < page->count; i++) {
        page->rows[i].entry.data = at;
        at += page->rows[i].entry.len;
    }
    return KV_OK;
}

#define LEAF_FILTER                                                                                      \
    "SELECT idx, leaf_hash, at, op, outcome, actor, session_id, entry FROM audit_leaf WHERE log_id = $1" \
    " AND ($2::text IS NULL OR op = $2) AND ($3::text IS NULL OR outcome = $3)"                          \
    " AND ($4::bytea IS NULL OR actor = $4) AND ($5::bytea IS NULL OR session_id = $5)"                  \
    " AND ($6::timestamptz IS NULL OR at >= $6) AND ($7::timestamptz IS NULL OR at < $7)"

KV_RC kv_store_leaf_list(struct kv_pg *pg, const struct kv_store_leaf_filter *filter, struct kv_page *page,
                         uint64_t after, struct kv_errinfo *info, struct kv_store_leaf_page *ret_page)
{
    static const struct kv_pg_query up = {"leaf_list_up", LEAF_FILTER " AND idx >= $8 ORDER BY idx LIMIT $9"},
                                    down = {"leaf_list_down", LEAF_FILTER " AND idx <= $8 ORDER BY idx DESC LIMIT $9"};
    if (page->has_after && !page->ascending && after == 0) { /* nothing lies before the first */
        page->more = false;
        *ret_page = (struct kv_store_leaf_page){0};
        return KV_OK;
    }
    uint64_t first = page->has_after ? page->ascending ? after + 1 : after - 1 : page->ascending ? 0 : INT64_MAX;
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &filter->log);
    kv_pg_arg_text_or_null(&args, filter->op);
    kv_pg_arg_text_or_null(&args, filter->outcome);
    kv_pg_arg_id_or_null(&args, &filter->actor);
    kv_pg_arg_id_or_null(&args, &filter->session);
    kv_pg_arg_time_or_null(&args, filter->from_us);
    kv_pg_arg_time_or_null(&args, filter->to_us);
    kv_pg_arg_u64(&args, first);
    kv_pg_arg_u64(&args, (uint64_t)page->limit + 1);
    PGresult *result KV_CLEANUP(kv_pg_result_free) = NULL;
    KV_TRY(kv_pg_read(pg, page->ascending ? &up : &down, &args, info, &result));
    struct kv_store_leaf_page leaves = {.count = (size_t)PQntuples(result)};
    page->more = leaves.count > page->limit;
    leaves.count = page->more ? page->limit : leaves.count;
    if (leaves.count > 0) {
        leaves.rows = kv_alloc_array(leaves.count, sizeof leaves.rows[0]);
        enum kv_err rc = leaves.rows != NULL ? copy_leaves(result, &leaves) : KV_E_NO_MEMORY;
        if (rc != KV_OK) {
            kv_store_leaf_page_done(&leaves);
            return kv_fail(info, rc, "entries of the audit log cannot be read");
        }
    }
    *ret_page = leaves;
    return KV_OK;
}

/* ---- tiles ---- */

KV_RC kv_store_tile_put(struct kv_pg *pg, const struct kv_id *log, uint32_t level, uint64_t n, struct kv_bytes hashes,
                        struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "tile_put", "INSERT INTO audit_tile (log_id, level, n, hashes) VALUES ($1, $2, $3, $4)"
                    " ON CONFLICT (log_id, level, n) DO UPDATE SET hashes = excluded.hashes"
                    " WHERE substr(excluded.hashes, 1, octet_length(audit_tile.hashes)) = audit_tile.hashes"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, log);
    kv_pg_arg_i32(&args, level);
    kv_pg_arg_u64(&args, n);
    kv_pg_arg_raw(&args, hashes.data, hashes.len);
    return kv_pg_change_one(pg, &query, &args, info, "the tile holds other hashes already");
}

struct tile {
    uint8_t *hashes;
    size_t len;
};

static KV_RC fill_tile(struct kv_pg_row *row, void *ret)
{
    struct tile *tile = ret;
    struct kv_bytes bytes = kv_pg_get_bytes(row);
    if (bytes.len > KV_TILE_BYTES_MAX || bytes.len % 32 != 0) {
        return KV_E_CORRUPT;
    }
    if (bytes.len > 0) {
        memcpy(tile->hashes, bytes.data, bytes.len);
    }
    tile->len = bytes.len;
    return KV_OK;
}

KV_RC kv_store_tile_get(struct kv_pg *pg, const struct kv_id *log, uint32_t level, uint64_t n, struct kv_errinfo *info,
                        uint8_t ret_hashes[KV_TILE_BYTES_MAX], size_t *ret_len)
{
    static const struct kv_pg_query query = {
        "tile_get", "SELECT hashes FROM audit_tile WHERE log_id = $1 AND level = $2 AND n = $3"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, log);
    kv_pg_arg_i32(&args, level);
    kv_pg_arg_u64(&args, n);
    struct tile tile = {.hashes = ret_hashes};
    struct kv_pg_one one = {
        .query = &query, .args = &args, .none = KV_E_MISSING, .none_text = "the audit log has no such tile"};
    KV_TRY(kv_pg_fetch_one(pg, &one, fill_tile, &tile, info));
    *ret_len = tile.len;
    return KV_OK;
}
