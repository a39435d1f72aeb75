/*
 * Erasures of one batch, many rows a statement: a round trip and a look at the rows for all of them. Each statement
 * hits every row that it names, or the caller's transaction is not to go on.
 */
#include "server/store/pg_int.h"
#include "server/store/store_erasure_int.h"

#include "dataplane/base/check.h"
#include "dataplane/base/id.h"

#include <stddef.h>
#include <string.h>

#define COLUMNS_MAX 14

/* A condition from which the planner concludes nothing. Of what it knows of the states it would conclude that one row
 * is hit, for nearly all that there ever were are certified, and go through all parameters once for each row that is.
 */
#define WHEN(condition) "CASE WHEN " condition " THEN true ELSE false END"

/* The parameters of one statement: arrays, one item a row in each. */
struct columns {
    struct kv_pg_array arrays[COLUMNS_MAX];
    enum kv_pg_array_type types[COLUMNS_MAX];
    size_t count;
};

static struct kv_pg_array *add(struct columns *columns, enum kv_pg_array_type type, size_t count, size_t bytes)
{
    KV_ASSERT(columns->count < COLUMNS_MAX);
    columns->types[columns->count] = type;
    kv_pg_array_init(&columns->arrays[columns->count], type, count, bytes);
    return &columns->arrays[columns->count++];
}

static void add_ids(struct columns *columns, const struct kv_store_ids *ids)
{
    struct kv_pg_array *array = add(columns, KV_PG_ARRAY_BYTEA, ids->count, ids->count * sizeof ids->ids[0].b);
    for (size_t i = 0; i < ids->count; i++) {
        kv_pg_array_raw(array, ids->ids[i].b, sizeof ids->ids[i].b, false);
    }
}

static void arg_columns(struct kv_pg_args *args, const struct columns *columns)
{
    for (size_t i = 0; i < columns->count; i++) {
        kv_pg_arg_array(args, &columns->arrays[i], columns->types[i]);
    }
}

static void columns_done(struct columns *columns)
{
    for (size_t i = 0; i < columns->count; i++) {
        kv_pg_array_done(&columns->arrays[i]);
    }
}

/* A change of `count` rows whose parameters are all in `args`; ends the columns. */
struct change {
    const struct kv_pg_query *query;
    struct columns *columns;
    size_t count;
    const char *stale;
};

static KV_RC change_all(struct kv_pg *pg, const struct change *change, const struct kv_pg_args *args,
                        struct kv_errinfo *info)
{
    uint64_t rows = 0;
    enum kv_err rc = kv_pg_change(pg, change->query, args, info, &rows);
    columns_done(change->columns);
    KV_TRY(rc);
    return rows == change->count ? KV_OK : kv_fail(info, KV_E_STALE, "%s", change->stale);
}

/* --- the requests ------------------------------------------------------------------------------------------------- */

static void add_meant(struct columns *columns, const struct kv_store_meant *meant, size_t count)
{
    struct kv_pg_array *erasures = add(columns, KV_PG_ARRAY_BYTEA, count, count * sizeof meant->erasure.b);
    struct kv_pg_array *sessions = add(columns, KV_PG_ARRAY_BYTEA, count, count * sizeof meant->session.b);
    struct kv_pg_array *holds = add(columns, KV_PG_ARRAY_BYTEA, count, count * sizeof meant->hold.b);
    for (size_t i = 0; i < count; i++) {
        kv_pg_array_raw(erasures, meant[i].erasure.b, sizeof meant[i].erasure.b, false);
        kv_pg_array_raw(sessions, meant[i].session.b, sizeof meant[i].session.b, false);
        kv_pg_array_raw(holds, meant[i].hold.b, sizeof meant[i].hold.b, kv_id_is_zero(&meant[i].hold));
    }
}

static KV_RC take_meant(const PGresult *result, size_t count, struct kv_errinfo *info, struct kv_store_meant *ret_taken)
{
    for (size_t i = 0; i < count; i++) {
        struct kv_pg_row row = kv_pg_row_of(result, (int)i);
        kv_pg_get_id(&row, &ret_taken[i].session);
        kv_pg_get_id(&row, &ret_taken[i].erasure);
        kv_pg_get_id(&row, &ret_taken[i].hold);
        KV_TRY(kv_pg_row_check(&row, info));
    }
    return KV_OK;
}

KV_RC kv_store_erasures_insert(struct kv_pg *pg, const struct kv_store_erasure *like,
                               const struct kv_store_meant *meant, size_t count, struct kv_errinfo *info,
                               struct kv_store_meant *ret_taken, size_t *ret_count)
{
    /* Locks rows of sessions in the order of their ids, as everybody does who takes more than one. Whether a hold by a
     * label covers one is judged by its labels, so they stay with it. */
    static const struct kv_pg_query query = {
        "erasures_insert",
        "WITH live AS (SELECT s.id, s.slot, t.directory_slot, coalesce(t.tree_id, t.id) AS tree_id, w.erasure, w.hold,"
        " w.place, CASE WHEN w.hold IS NULL THEN 'requested' ELSE 'blocked_hold' END AS state"
        " FROM unnest($1, $2, $3) WITH ORDINALITY AS w (erasure, session, hold, place)"
        " JOIN session s ON s.id = w.session AND " WHEN(
            "s.tenant_id = $4 AND s.state = 'active'") " JOIN tenant t ON t.id = s.tenant_id AND s.slot >= "
                                                       "t.first_slot ORDER BY s.id FOR UPDATE OF s),"
                                                       " made AS (INSERT INTO erasure (id, tenant_id, session_id, "
                                                       "slot, directory_slot, state, basis, reason_sha256,"
                                                       " requested_by, requested_role, revocation_seq, requested_at, "
                                                       "blocked_hold_at, group_id, reference_sha256,"
                                                       " tree_id, hold_id)"
                                                       " SELECT erasure, $4, id, slot, directory_slot, state, $5, $6, "
                                                       "$7, $8, $9 + place - 1, $10,"
                                                       " CASE WHEN hold IS NULL THEN NULL ELSE $10 END, $11, $12, "
                                                       "tree_id, hold"
                                                       " FROM live RETURNING id, session_id, revocation_seq, hold_id),"
                                                       " revoked AS (UPDATE session s SET state = 'erasing', "
                                                       "revoked_seq = m.revocation_seq, erasure_id = m.id,"
                                                       " external_hmac = NULL, external_sealed = NULL,"
                                                       " labels = CASE WHEN m.hold_id IS NULL THEN '{}' ELSE s.labels "
                                                       "END, rev = rev + 1"
                                                       " FROM made m WHERE s.id = m.session_id RETURNING s.id, m.id AS "
                                                       "erasure_id, m.hold_id, m.revocation_seq)"
                                                       " SELECT id, erasure_id, hold_id FROM revoked ORDER BY "
                                                       "revocation_seq"};
    KV_ASSERT(count <= KV_ERASE_BATCH);
    struct columns columns = {.count = 0};
    struct kv_pg_args args = {0};
    PGresult *result KV_CLEANUP(kv_pg_result_free) = NULL;
    add_meant(&columns, meant, count);
    arg_columns(&args, &columns);
    kv_pg_arg_id(&args, &like->tenant);
    kv_pg_arg_text(&args, like->basis);
    kv_pg_arg_text_or_null(&args, like->reason_sha256);
    kv_pg_arg_id_or_null(&args, &like->requested_by);
    kv_pg_arg_text(&args, like->requested_role);
    kv_pg_arg_i64(&args, like->revocation_seq);
    kv_pg_arg_time(&args, like->at_us[KV_ERASURE_REQUESTED]);
    kv_pg_arg_id_or_null(&args, &like->group);
    kv_pg_arg_text_or_null(&args, like->reference_sha256);
    enum kv_err rc = kv_pg_write(pg, &query, &args, info, &result);
    columns_done(&columns);
    KV_TRY(rc);
    size_t taken = (size_t)PQntuples(result);
    KV_ASSERT(taken <= count);
    KV_TRY(take_meant(result, taken, info, ret_taken));
    *ret_count = taken;
    return KV_OK;
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

KV_RC kv_store_erasures_get(struct kv_pg *pg, const struct kv_store_ids *ids, struct kv_errinfo *info,
                            struct kv_store_erasure *ret_list)
{
    static const struct kv_pg_query query = {"erasures_get",
                                             SELECT_ERASURE "WHERE id = ANY ($1) ORDER BY revocation_seq LIMIT $2"};
    struct columns columns = {.count = 0};
    struct kv_pg_args args = {0};
    size_t found = 0;
    add_ids(&columns, ids);
    arg_columns(&args, &columns);
    kv_pg_arg_u64(&args, ids->count);
    struct kv_pg_many many = {.query = &query, .args = &args, .max = ids->count, .size = sizeof ret_list[0]};
    enum kv_err rc = kv_pg_fetch_many(pg, &many, kv_store_erasure_fill, ret_list, &found, info);
    columns_done(&columns);
    KV_TRY(rc);
    return found == ids->count ? KV_OK : kv_fail(info, KV_E_NOT_FOUND, "there is no such erasure");
}

static KV_RC take_blobs(const PGresult *result, size_t count, struct kv_buf *ret_bufs)
{
    if ((size_t)PQntuples(result) != count) {
        return KV_E_MISSING;
    }
    for (size_t i = 0; i < count; i++) {
        struct kv_pg_row row = kv_pg_row_of(result, (int)i);
        struct kv_bytes blob = kv_pg_get_bytes(&row);
        KV_TRY(kv_pg_row_check(&row, NULL));
        kv_buf_append(&ret_bufs[i], blob.data, blob.len);
        KV_TRY(blob.len == 0 ? KV_E_MISSING : kv_buf_check(&ret_bufs[i]));
    }
    return KV_OK;
}

KV_RC kv_store_erasures_jws(struct kv_pg *pg, const struct kv_store_ids *ids, struct kv_errinfo *info,
                            struct kv_buf *ret_jws)
{
    static const struct kv_pg_query query = {"erasures_jws",
                                             "SELECT e.cert_jws FROM unnest($1) WITH ORDINALITY AS wanted (id, place)"
                                             " JOIN erasure e ON e.id = wanted.id ORDER BY wanted.place"};
    struct columns columns = {.count = 0};
    struct kv_pg_args args = {0};
    PGresult *result KV_CLEANUP(kv_pg_result_free) = NULL;
    add_ids(&columns, ids);
    arg_columns(&args, &columns);
    enum kv_err rc = kv_pg_read(pg, &query, &args, info, &result);
    columns_done(&columns);
    KV_TRY(rc);
    rc = take_blobs(result, ids->count, ret_jws);
    return rc == KV_OK ? KV_OK : kv_fail(info, rc, "an erasure has no certificate yet");
}

/* --- the walk ----------------------------------------------------------------------------------------------------- */

KV_RC kv_store_erasures_advance(struct kv_pg *pg, const struct kv_store_ids *ids, const struct kv_store_move *move,
                                struct kv_errinfo *info)
{
    /* requested_at stays the time of the request, also for one that waited for a hold to end. The samples go with the
     * verification. */
    static const struct kv_pg_query query = {
        "erasures_advance",
        "UPDATE erasure SET state = $3, fenced_at = CASE WHEN $3 = 'fenced' THEN $4 ELSE fenced_at END,"
        " staged_at = CASE WHEN $3 = 'staged' THEN $4 ELSE staged_at END,"
        " rekeyed_at = CASE WHEN $3 = 'rekeyed' THEN $4 ELSE rekeyed_at END,"
        " destroyed_at = CASE WHEN $3 = 'destroyed' THEN $4 ELSE destroyed_at END,"
        " purged_at = CASE WHEN $3 = 'purged' THEN $4 ELSE purged_at END,"
        " verified_at = CASE WHEN $3 = 'verified' THEN $4 ELSE verified_at END,"
        " certified_at = CASE WHEN $3 = 'certified' THEN $4 ELSE certified_at END,"
        " quarantined_at = CASE WHEN $3 = 'quarantined' THEN $4 ELSE quarantined_at END,"
        " sample_headers = CASE WHEN $3 IN ('verified', 'certified') THEN NULL ELSE sample_headers END"
        " WHERE id = ANY ($1) AND state = $2"};
    if (!kv_store_erasure_is_arrow(move->from, move->to)) {
        return kv_fail(info, KV_E_INVALID_REQUEST, "an erasure does not go from %s to %s",
                       kv_erasure_state_name(move->from), kv_erasure_state_name(move->to));
    }
    if (ids->count == 0) {
        return KV_OK;
    }
    struct columns columns = {.count = 0};
    struct kv_pg_args args = {0};
    add_ids(&columns, ids);
    arg_columns(&args, &columns);
    kv_pg_arg_text(&args, kv_erasure_state_name(move->from));
    kv_pg_arg_text(&args, kv_erasure_state_name(move->to));
    kv_pg_arg_time(&args, move->at_us);
    const struct change change = {.query = &query,
                                  .columns = &columns,
                                  .count = ids->count,
                                  .stale = "the erasure is not in the state that was seen"};
    return change_all(pg, &change, &args, info);
}

KV_RC kv_store_erasures_set_batch(struct kv_pg *pg, const struct kv_store_ids *ids, const struct kv_id *batch,
                                  struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "erasures_set_batch",
        "UPDATE erasure SET batch_id = $2 WHERE id = ANY ($1) AND state IN ('requested', 'fenced', 'staged')"};
    struct columns columns = {.count = 0};
    struct kv_pg_args args = {0};
    add_ids(&columns, ids);
    arg_columns(&args, &columns);
    kv_pg_arg_id_or_null(&args, batch);
    const struct change change = {
        .query = &query, .columns = &columns, .count = ids->count, .stale = "the erasure is past joining a batch"};
    return change_all(pg, &change, &args, info);
}

/* --- what was found ----------------------------------------------------------------------------------------------- */

static void add_found_ids(struct columns *columns, const struct kv_store_found *found, size_t count)
{
    struct kv_pg_array *array = add(columns, KV_PG_ARRAY_BYTEA, count, count * sizeof found->id.b);
    for (size_t i = 0; i < count; i++) {
        kv_pg_array_raw(array, found[i].id.b, sizeof found[i].id.b, false);
    }
}

static void add_fact_columns(struct columns *columns, const struct kv_store_found *found, size_t count)
{
    static const size_t wide[] = {
        offsetof(struct kv_store_facts, blocks),      offsetof(struct kv_store_facts, bytes),
        offsetof(struct kv_store_facts, dram_blocks), offsetof(struct kv_store_facts, dram_bytes),
        offsetof(struct kv_store_facts, nvme_blocks), offsetof(struct kv_store_facts, nvme_bytes)};
    static const size_t narrow[] = {
        offsetof(struct kv_store_facts, samples), offsetof(struct kv_store_facts, control_opened),
        offsetof(struct kv_store_facts, opened_after), offsetof(struct kv_store_facts, checks)};
    for (size_t column = 0; column < sizeof wide / sizeof wide[0]; column++) {
        struct kv_pg_array *array = add(columns, KV_PG_ARRAY_I64, count, count * 8);
        for (size_t i = 0; i < count; i++) {
            uint64_t value = 0;
            memcpy(&value, (const uint8_t *)&found[i].facts + wide[column], sizeof value);
            kv_pg_array_i64(array, (int64_t)value);
        }
    }
    for (size_t column = 0; column < sizeof narrow / sizeof narrow[0]; column++) {
        struct kv_pg_array *array = add(columns, KV_PG_ARRAY_I64, count, count * 8);
        for (size_t i = 0; i < count; i++) {
            uint32_t value = 0;
            memcpy(&value, (const uint8_t *)&found[i].facts + narrow[column], sizeof value);
            kv_pg_array_i64(array, value);
        }
    }
}

KV_RC kv_store_erasures_set_facts(struct kv_pg *pg, const struct kv_store_found *found, size_t count,
                                  struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "erasures_set_facts",
        "UPDATE erasure e SET blocks = f.blocks, bytes = f.bytes, dram_blocks = f.dram_blocks,"
        " dram_bytes = f.dram_bytes, nvme_blocks = f.nvme_blocks, nvme_bytes = f.nvme_bytes, samples = f.samples,"
        " control_opened = f.control_opened, opened_after = f.opened_after, checks = f.checks,"
        " block_root = f.block_root FROM unnest($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)"
        " AS f (id, blocks, bytes, dram_blocks, dram_bytes, nvme_blocks, nvme_bytes, samples, control_opened,"
        " opened_after, checks, block_root)"
        " WHERE e.id = f.id AND " WHEN("e.state NOT IN ('verified', 'certified', 'quarantined')")};
    struct columns columns = {.count = 0};
    struct kv_pg_args args = {0};
    add_found_ids(&columns, found, count);
    add_fact_columns(&columns, found, count);
    struct kv_pg_array *roots = add(&columns, KV_PG_ARRAY_BYTEA, count, count * sizeof found->facts.block_root);
    for (size_t i = 0; i < count; i++) {
        kv_pg_array_raw(roots, found[i].facts.block_root, sizeof found[i].facts.block_root, false);
    }
    arg_columns(&args, &columns);
    const struct change change = {
        .query = &query, .columns = &columns, .count = count, .stale = "what was found for this erasure is frozen"};
    return change_all(pg, &change, &args, info);
}

KV_RC kv_store_erasures_set_samples(struct kv_pg *pg, const struct kv_store_found *found, size_t count,
                                    struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {"erasures_set_samples",
                                             "UPDATE erasure e SET sample_headers = f.headers"
                                             " FROM unnest($1, $2) AS f (id, headers) WHERE e.id = f.id"
                                             " AND " WHEN("e.state NOT IN ('verified', 'certified')")};
    struct columns columns = {.count = 0};
    struct kv_pg_args args = {0};
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        bytes += found[i].samples.len;
    }
    add_found_ids(&columns, found, count);
    struct kv_pg_array *headers = add(&columns, KV_PG_ARRAY_BYTEA, count, bytes);
    for (size_t i = 0; i < count; i++) {
        kv_pg_array_raw(headers, found[i].samples.data, found[i].samples.len, found[i].samples.len == 0);
    }
    arg_columns(&args, &columns);
    const struct change change = {
        .query = &query, .columns = &columns, .count = count, .stale = "the erasure needs no samples any more"};
    return change_all(pg, &change, &args, info);
}

KV_RC kv_store_erasures_fenced_by(struct kv_pg *pg, const struct kv_store_ids *ids,
                                  const struct kv_store_fenced *fenced, struct kv_errinfo *info)
{
    /* The headers went into the erasures' own rows. */
    static const struct kv_pg_query query = {
        "erasures_fenced_by",
        "INSERT INTO erasure_instance (erasure_id, instance_id, incarnation, fenced_how, fenced_at)"
        " SELECT id, $2, $3, $4, $5 FROM unnest($1) AS named (id)"
        " ON CONFLICT (erasure_id, instance_id) DO UPDATE SET"
        " fenced_how = excluded.fenced_how, fenced_at = excluded.fenced_at, sample_headers = NULL"};
    struct columns columns = {.count = 0};
    struct kv_pg_args args = {0};
    add_ids(&columns, ids);
    arg_columns(&args, &columns);
    kv_pg_arg_id(&args, &fenced->instance);
    kv_pg_arg_i64(&args, fenced->incarnation);
    kv_pg_arg_text(&args, kv_fenced_how_name(fenced->how));
    kv_pg_arg_time(&args, fenced->at_us);
    const struct change change = {
        .query = &query, .columns = &columns, .count = ids->count, .stale = "there is no such erasure"};
    return change_all(pg, &change, &args, info);
}

/* --- certificates ------------------------------------------------------------------------------------------------- */

static void add_issued_ids(struct columns *columns, const struct kv_store_issued *issued, size_t count)
{
    struct kv_pg_array *array = add(columns, KV_PG_ARRAY_BYTEA, count, count * sizeof issued->erasure.b);
    for (size_t i = 0; i < count; i++) {
        kv_pg_array_raw(array, issued[i].erasure.b, sizeof issued[i].erasure.b, false);
    }
}

static void add_texts(struct columns *columns, const struct kv_store_issued *issued, size_t count)
{
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        bytes += issued[i].text.len;
    }
    struct kv_pg_array *array = add(columns, KV_PG_ARRAY_BYTEA, count, bytes);
    for (size_t i = 0; i < count; i++) {
        kv_pg_array_raw(array, issued[i].text.data, issued[i].text.len, issued[i].text.len == 0);
    }
}

KV_RC kv_store_erasures_set_certificates(struct kv_pg *pg, const struct kv_store_issued *issued, size_t count,
                                         struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "certificates_set", "UPDATE erasure e SET cert_id = f.cert_id, cert_jws = f.jws,"
                            " previous_sha256 = convert_from(f.previous, 'UTF8')"
                            " FROM unnest($1, $2, $3, $4) AS f (id, jws, cert_id, previous)"
                            " WHERE e.id = f.id AND " WHEN("e.state = 'verified' AND e.cert_jws IS NULL")};
    struct columns columns = {.count = 0};
    struct kv_pg_args args = {0};
    add_issued_ids(&columns, issued, count);
    add_texts(&columns, issued, count);
    struct kv_pg_array *ids = add(&columns, KV_PG_ARRAY_BYTEA, count, count * sizeof issued->certificate.b);
    struct kv_pg_array *previous = add(&columns, KV_PG_ARRAY_BYTEA, count, count * sizeof issued->previous_sha256);
    for (size_t i = 0; i < count; i++) {
        const char *hash = issued[i].previous_sha256;
        kv_pg_array_raw(ids, issued[i].certificate.b, sizeof issued[i].certificate.b, false);
        kv_pg_array_raw(previous, hash, strlen(hash), hash[0] == '\0');
    }
    arg_columns(&args, &columns);
    const struct change change = {.query = &query,
                                  .columns = &columns,
                                  .count = count,
                                  .stale = "the erasure has its certificate, or is not verified"};
    return change_all(pg, &change, &args, info);
}

KV_RC kv_store_erasures_set_bundles(struct kv_pg *pg, const struct kv_store_issued *issued, size_t count,
                                    struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "certificates_set_bundle", "UPDATE erasure e SET cert_leaf_index = f.idx, bundle = f.bundle"
                                   " FROM unnest($1, $2, $3) AS f (id, bundle, idx) WHERE e.id = f.id AND " WHEN(
                                       "e.state = 'verified' AND e.cert_jws IS NOT NULL AND e.bundle IS NULL")};
    struct columns columns = {.count = 0};
    struct kv_pg_args args = {0};
    add_issued_ids(&columns, issued, count);
    add_texts(&columns, issued, count);
    struct kv_pg_array *places = add(&columns, KV_PG_ARRAY_I64, count, count * 8);
    for (size_t i = 0; i < count; i++) {
        kv_pg_array_i64(places, (int64_t)issued[i].leaf_index);
    }
    arg_columns(&args, &columns);
    const struct change change = {.query = &query,
                                  .columns = &columns,
                                  .count = count,
                                  .stale = "the erasure has its bundle, or no certificate yet"};
    return change_all(pg, &change, &args, info);
}

KV_RC kv_store_sessions_set_erased(struct kv_pg *pg, const struct kv_store_ids *sessions, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "sessions_set_erased",
        "UPDATE session SET state = 'erased' WHERE id = ANY ($1) AND state IN ('erasing', 'erased')"};
    struct columns columns = {.count = 0};
    struct kv_pg_args args = {0};
    add_ids(&columns, sessions);
    arg_columns(&args, &columns);
    const struct change change = {
        .query = &query, .columns = &columns, .count = sessions->count, .stale = "the session is not being erased"};
    return change_all(pg, &change, &args, info);
}
