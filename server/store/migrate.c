/*
 * The migrator. One transaction, one lock, forward only; what is applied is remembered with a checksum.
 */
#include "server/store/migrate.h"

#include "dataplane/base/check.h"
#include "dataplane/base/log.h"
#include "server/store/pg_int.h"

#include "kv_migrations.h"

#include <stdio.h>
#include <string.h>

#define VERSIONS_MAX 64
#define MIGRATE_MS 120000
#define CHECKSUM_SIZE 40

struct applied {
    uint32_t version;
    char checksum[CHECKSUM_SIZE];
};

struct job {
    enum kv_migrate_mode mode;
    const struct kv_migration *list;
    size_t count;
    uint32_t applied; /* in this run */
};

/* Against slips, not against malice: whoever can write the table can write the schema. */
static void checksum(const char *sql, char ret_text[CHECKSUM_SIZE])
{
    size_t len = strlen(sql);
    snprintf(ret_text, CHECKSUM_SIZE, "crc32c:%08x:%zu", kv_crc32c(0, sql, len), len);
}

static KV_RC run_script(struct kv_pg *pg, const char *sql, struct kv_errinfo *info)
{
    PGresult *result KV_CLEANUP(kv_pg_result_free) = NULL;
    return kv_pg_script(pg, sql, MIGRATE_MS, info, &result);
}

static KV_RC fill_bool(struct kv_pg_row *row, void *ret)
{
    *(bool *)ret = kv_pg_get_bool(row);
    return KV_OK;
}

static KV_RC ask(struct kv_pg *pg, const struct kv_pg_query *query, struct kv_errinfo *info, bool *ret_answer)
{
    struct kv_pg_args args = {0};
    struct kv_pg_one one = {.query = query, .args = &args, .none = KV_E_CORRUPT, .none_text = "no answer"};
    return kv_pg_fetch_one(pg, &one, fill_bool, ret_answer, info);
}

/* Waits for whoever migrates now, as long as that takes within bounds. */
static KV_RC lock_and_prepare(struct kv_pg *pg, struct kv_errinfo *info)
{
    static const struct kv_pg_query has_schema = {"migrate_has_schema", "SELECT to_regnamespace('kvrun') IS NOT NULL"};
    KV_TRY(run_script(pg,
                      "SET LOCAL lock_timeout = 0; SET LOCAL statement_timeout = '60s';"
                      " SELECT pg_advisory_xact_lock(7747083, 1)",
                      info));
    bool there = false;
    KV_TRY(ask(pg, &has_schema, info, &there));
    if (!there) {
        /* Asked for only when needed: a user who owns the schema need not own the database. */
        KV_TRY(run_script(pg, "CREATE SCHEMA kvrun", info));
    }
    return run_script(pg,
                      "CREATE TABLE IF NOT EXISTS kvrun.schema_version (version integer PRIMARY KEY,"
                      " name text NOT NULL, checksum text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())",
                      info);
}

static KV_RC fill_applied(struct kv_pg_row *row, void *ret)
{
    struct applied *applied = ret;
    applied->version = kv_pg_get_u32(row);
    kv_pg_get_text(row, applied->checksum, sizeof applied->checksum);
    return KV_OK;
}

static KV_RC read_applied(struct kv_pg *pg, struct kv_errinfo *info, struct applied *ret_list, size_t *ret_count)
{
    static const struct kv_pg_query has_table = {"migrate_has_table",
                                                 "SELECT to_regclass('kvrun.schema_version') IS NOT NULL"};
    static const struct kv_pg_query query = {
        "migrate_applied", "SELECT version, checksum FROM kvrun.schema_version ORDER BY version LIMIT 64"};
    bool there = false;
    KV_TRY(ask(pg, &has_table, info, &there));
    *ret_count = 0;
    if (!there) {
        return KV_OK;
    }
    struct kv_pg_args args = {0};
    struct kv_pg_many many = {.query = &query, .args = &args, .max = VERSIONS_MAX, .size = sizeof ret_list[0]};
    return kv_pg_fetch_many(pg, &many, fill_applied, ret_list, ret_count, info);
}

/* What is there must be the beginning of what this binary has. */
static KV_RC compare(const struct job *job, const struct applied *applied, size_t count, struct kv_errinfo *info)
{
    for (size_t i = 0; i < count; i++) {
        if (i >= job->count) {
            return kv_fail(info, KV_E_SCHEMA_NEWER,
                           "the database has schema version %u, this binary knows up to %zu: run a newer kvrun",
                           applied[count - 1].version, job->count);
        }
        char expected[CHECKSUM_SIZE];
        checksum(job->list[i].sql, expected);
        if (applied[i].version != job->list[i].version || strcmp(applied[i].checksum, expected) != 0) {
            return kv_fail(info, KV_E_INVALID_STATE,
                           "migration %s was applied to this database in another form: run the kvrun it came from",
                           job->list[i].name);
        }
    }
    return KV_OK;
}

static KV_RC remember(struct kv_pg *pg, const struct kv_migration *migration, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "migrate_remember", "INSERT INTO kvrun.schema_version (version, name, checksum) VALUES ($1, $2, $3)"};
    char text[CHECKSUM_SIZE];
    checksum(migration->sql, text);
    struct kv_pg_args args = {0};
    kv_pg_arg_i32(&args, migration->version);
    kv_pg_arg_text(&args, migration->name);
    kv_pg_arg_text(&args, text);
    uint64_t rows = 0;
    return kv_pg_change(pg, &query, &args, info, &rows);
}

static KV_RC apply(struct kv_pg *pg, const struct kv_migration *migration, struct kv_errinfo *info)
{
    enum kv_err rc = run_script(pg, migration->sql, info);
    if (rc != KV_OK) {
        kv_log(KV_LOG_ERROR, "store", "migration_failed", KV_FT("migration", migration->name), KV_FRC(rc));
        return rc;
    }
    return remember(pg, migration, info);
}

static KV_RC run_job(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct job *job = ctx;
    job->applied = 0;
    if (job->mode == KV_MIGRATE_AUTO) {
        KV_TRY(lock_and_prepare(pg, info));
    }
    struct applied applied[VERSIONS_MAX];
    _Static_assert(sizeof kv_migrations / sizeof kv_migrations[0] < VERSIONS_MAX, "a longer list needs more room here");
    size_t count = 0;
    KV_TRY(read_applied(pg, info, applied, &count));
    KV_TRY(compare(job, applied, count, info));
    if (count < job->count && job->mode == KV_MIGRATE_CHECK) {
        return kv_fail(info, KV_E_INVALID_STATE,
                       "the database has schema version %zu, this binary needs %zu: run kvrun db migrate", count,
                       job->count);
    }
    for (size_t i = count; i < job->count; i++) {
        KV_TRY(apply(pg, &job->list[i], info));
        job->applied++;
    }
    return KV_OK;
}

KV_RC kv_migrate_list(struct kv_pg *pg, enum kv_migrate_mode mode, const struct kv_migration *list, size_t count,
                      struct kv_errinfo *info, uint32_t *ret_applied)
{
    for (size_t i = 0; i < count; i++) {
        KV_ASSERT(list[i].version == i + 1);
    }
    struct job job = {.mode = mode, .list = list, .count = count};
    KV_TRY(kv_pg_tx(pg, KV_TX_MIGRATE, run_job, &job, info, NULL));
    if (job.applied > 0) {
        kv_log(KV_LOG_INFO, "store", "schema_migrated", KV_FU("version", count), KV_FU("applied", job.applied));
    }
    if (ret_applied != NULL) {
        *ret_applied = job.applied;
    }
    return KV_OK;
}

#define MIGRATION_COUNT (sizeof kv_migrations / sizeof kv_migrations[0])

uint32_t kv_schema_version(void)
{
    return (uint32_t)MIGRATION_COUNT;
}

KV_RC kv_migrate(struct kv_pg *pg, enum kv_migrate_mode mode, struct kv_errinfo *info, uint32_t *ret_applied)
{
    struct kv_migration list[MIGRATION_COUNT];
    for (size_t i = 0; i < MIGRATION_COUNT; i++) {
        list[i] = (struct kv_migration){
            .version = kv_migrations[i].version,
            .name = kv_migrations[i].name,
            .sql = (const char *)kv_migrations[i].sql,
        };
    }
    return kv_migrate_list(pg, mode, list, MIGRATION_COUNT, info, ret_applied);
}
