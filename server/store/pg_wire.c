/*
 * Running one prepared statement with a deadline of our own, and what its failure means. A server that stops answering
 * is a lost connection, not a thread that hangs.
 */
#include "dataplane/base/check.h"
#include "dataplane/base/log.h"
#include "server/store/pg_int.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

/* True when libpq has a result ready; false when the connection is of no use any more. */
static bool wait_ready(struct kv_pg *pg, uint64_t deadline_ns)
{
    for (;;) {
        int unsent = PQflush(pg->conn);
        if (unsent < 0) {
            return false;
        }
        if (unsent == 0 && PQisBusy(pg->conn) == 0) {
            return true;
        }
        uint64_t now = kv_now_ns(&pg->env);
        if (now >= deadline_ns) {
            return false;
        }
        struct pollfd fd = {.fd = PQsocket(pg->conn), .events = (short)(POLLIN | (unsent != 0 ? POLLOUT : 0))};
        int ready = poll(&fd, 1, (int)((deadline_ns - now) / KV_MS_NS) + 1);
        if (ready < 0 && errno != EINTR) {
            return false;
        }
        if (ready > 0 && (fd.revents & (POLLIN | POLLHUP | POLLERR)) != 0 && PQconsumeInput(pg->conn) != 1) {
            return false;
        }
    }
}

static bool is_failure(const PGresult *result)
{
    ExecStatusType status = PQresultStatus(result);
    return status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK;
}

static PGresult *take_result(struct kv_pg *pg, uint64_t deadline_ns, const char *why)
{
    PGresult *kept = NULL;
    for (;;) {
        if (!wait_ready(pg, deadline_ns)) {
            PQclear(kept);
            kv_pg_drop(pg, why);
            return NULL;
        }
        PGresult *next = PQgetResult(pg->conn);
        if (next == NULL) {
            break;
        }
        /* Of several statements the first failure counts, else the last result. */
        if (kept != NULL && is_failure(kept)) {
            PQclear(next);
        } else {
            PQclear(kept);
            kept = next;
        }
        if (PQstatus(pg->conn) == CONNECTION_BAD) {
            break;
        }
    }
    if (PQstatus(pg->conn) == CONNECTION_BAD || kept == NULL) {
        PQclear(kept);
        kv_pg_drop(pg, why);
        return NULL;
    }
    return kept;
}

PGresult *kv_pg_wait(struct kv_pg *pg, uint32_t timeout_ms, const char *why)
{
    uint64_t begun_ns = kv_now_ns(&pg->env);
    PGresult *result = take_result(pg, begun_ns + ((uint64_t)timeout_ms + KV_PG_GRACE_MS) * KV_MS_NS, why);
    pg->stats.wait_ns += kv_now_ns(&pg->env) - begun_ns;
    return result;
}

static bool starts(const char *state, const char *prefix)
{
    return strncmp(state, prefix, strlen(prefix)) == 0;
}

/* A prepared statement that is not there, or is there already: somebody else uses the server in between. */
static bool is_pooler(const char *state)
{
    return strcmp(state, "26000") == 0 || strcmp(state, "42P05") == 0;
}

/* The connection is useless after these: shutdown, too many connections, another database, a read-only standby,
 * statements that somebody forgot. */
static bool is_loss(const char *state)
{
    return starts(state, "08") || starts(state, "57P") || strcmp(state, "53300") == 0 || strcmp(state, "25006") == 0 ||
           strcmp(state, "25P03") == 0 || is_pooler(state) || strcmp(state, "0A000") == 0;
}

static void note_pooler(struct kv_pg *pg, const char *state)
{
    if (!is_pooler(state) || pg->pooled) {
        return;
    }
    pg->pooled = pg->prepare == KV_PG_PREPARE_AUTO;
    kv_log(KV_LOG_WARN, "store", "prepared_statements_are_lost", KV_FT("connection", pg->application_name),
           KV_FT("text", pg->pooled ? "a pooler shares the server: going on without them"
                                    : "a pooler shares the server: set db.prepare to auto or off"));
}

static KV_RC explain_shortage(const char *state, struct kv_errinfo *info)
{
    if (strcmp(state, "53100") == 0) {
        return kv_fail(info, KV_E_DB_FULL, "the database's disk is full: free space there; nothing was changed");
    }
    return kv_fail(info, KV_E_BUSY, "the database is short of memory or at a limit of its own; repeat the request");
}

static KV_RC explain_refusal(const PGresult *result, const char *state, struct kv_errinfo *info)
{
    if (starts(state, "23")) {
        const char *rule = PQresultErrorField(result, PG_DIAG_CONSTRAINT_NAME);
        return kv_fail(info, KV_E_INVALID_STATE, "the database's rule %s does not allow this",
                       rule != NULL ? rule : "for this table");
    }
    if (starts(state, "22")) {
        return kv_fail(info, KV_E_INVALID_REQUEST, "a value is not one that the database can hold");
    }
    if (strcmp(state, "42P01") == 0 || strcmp(state, "42703") == 0 || strcmp(state, "3F000") == 0) {
        return kv_fail(info, KV_E_INVALID_STATE,
                       "the database's schema is not there or too old: run `kvrun db migrate`");
    }
    if (strcmp(state, "42501") == 0) {
        return kv_fail(info, KV_E_INVALID_STATE, "the database user lacks a right on the schema kvrun");
    }
    kv_log(KV_LOG_ERROR, "store", "statement_failed", KV_FT("sqlstate", state));
    return kv_fail(info, KV_E_INTERNAL, "the database refused a statement (SQLSTATE %s)", state);
}

KV_RC kv_pg_explain(struct kv_pg *pg, const PGresult *result, struct kv_errinfo *info)
{
    const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
    if (state != NULL) {
        note_pooler(pg, state);
    }
    if (state == NULL || is_loss(state)) {
        kv_pg_drop(pg, state != NULL ? "refused" : "protocol");
        return kv_pg_unavailable(info);
    }
    if (strcmp(state, "40001") == 0 || strcmp(state, "40P01") == 0) {
        pg->again = true;
        return kv_fail(info, KV_E_BUSY, "other changes came in between; repeat the request");
    }
    if (strcmp(state, "55P03") == 0 || strcmp(state, "57014") == 0) {
        return kv_fail(info, KV_E_BUSY, "the database took too long; repeat the request");
    }
    return starts(state, "53") ? explain_shortage(state, info) : explain_refusal(result, state, info);
}

static KV_RC finish(struct kv_pg *pg, const char *name, struct kv_errinfo *info, PGresult **ret_result)
{
    PGresult *result = kv_pg_wait(pg, pg->statement_timeout_ms, name);
    if (result == NULL) {
        return kv_pg_unavailable(info);
    }
    if (is_failure(result)) {
        enum kv_err rc = kv_pg_explain(pg, result, info);
        PQclear(result);
        return rc;
    }
    *ret_result = result;
    return KV_OK;
}

static bool is_prepared(const struct kv_pg *pg, const struct kv_pg_query *query)
{
    for (size_t i = 0; i < pg->prepared_count; i++) {
        if (pg->prepared[i] == query) {
            return true;
        }
    }
    return false;
}

static KV_RC prepare(struct kv_pg *pg, const struct kv_pg_query *query, const struct kv_pg_args *args,
                     struct kv_errinfo *info)
{
    if (PQsendPrepare(pg->conn, query->name, query->sql, args->count, args->types) != 1) {
        kv_pg_drop(pg, query->name);
        return kv_pg_unavailable(info);
    }
    PGresult *result = NULL;
    KV_TRY(finish(pg, query->name, info, &result));
    PQclear(result);
    pg->prepared[pg->prepared_count++] = query;
    return KV_OK;
}

static KV_RC send(struct kv_pg *pg, const struct kv_pg_query *query, const struct kv_pg_args *args,
                  struct kv_errinfo *info)
{
    bool prepared = !pg->pooled && is_prepared(pg, query);
    if (!prepared && !pg->pooled && pg->prepared_count < KV_PG_PREPARED_MAX) {
        KV_TRY(prepare(pg, query, args, info));
        prepared = true;
    }
    int sent = prepared ? PQsendQueryPrepared(pg->conn, query->name, args->count, args->values, args->lengths,
                                              args->formats, 1)
                        : PQsendQueryParams(pg->conn, query->sql, args->count, args->types, args->values, args->lengths,
                                            args->formats, 1);
    if (sent != 1) {
        kv_pg_drop(pg, query->name);
        return kv_pg_unavailable(info);
    }
    return KV_OK;
}

static KV_RC run(struct kv_pg *pg, const struct kv_pg_query *query, const struct kv_pg_args *args,
                 struct kv_errinfo *info, PGresult **ret_result)
{
    if (args->failed) {
        return kv_fail(info, KV_E_INVALID_REQUEST, "a number is outside of what the database can hold");
    }
    KV_TRY(kv_pg_connect(pg, info));
    KV_TRY(send(pg, query, args, info));
    return finish(pg, query->name, info, ret_result);
}

/* Behind a pooler even one read needs a transaction: its settings live in one. */
static KV_RC run_alone(struct kv_pg *pg, const struct kv_pg_query *query, const struct kv_pg_args *args,
                       struct kv_errinfo *info, PGresult **ret_result)
{
    KV_TRY(kv_pg_connect(pg, info));
    if (!pg->pooled || pg->in_tx) {
        return run(pg, query, args, info, ret_result);
    }
    PGresult *ended = NULL, *result = NULL;
    KV_TRY(kv_pg_begin(pg, info));
    enum kv_err rc = run(pg, query, args, info, &result);
    if (pg->conn != NULL &&
        kv_pg_script(pg, rc == KV_OK ? "COMMIT" : "ROLLBACK", pg->statement_timeout_ms, NULL, &ended) != KV_OK) {
        kv_pg_drop(pg, query->name); /* what was read is read; the pooler takes its server back */
    }
    PQclear(ended);
    if (rc == KV_OK) {
        *ret_result = result;
    }
    return rc;
}

KV_RC kv_pg_read(struct kv_pg *pg, const struct kv_pg_query *query, const struct kv_pg_args *args,
                 struct kv_errinfo *info, PGresult **ret_result)
{
    bool had_connection = pg->conn != NULL;
    enum kv_err rc = run_alone(pg, query, args, info, ret_result);
    if (rc == KV_E_DB_UNAVAILABLE && had_connection && !pg->in_tx) {
        /* A connection that broke while nobody used it shows only now. */
        rc = run_alone(pg, query, args, info, ret_result);
    }
    return rc;
}

KV_RC kv_pg_write(struct kv_pg *pg, const struct kv_pg_query *query, const struct kv_pg_args *args,
                  struct kv_errinfo *info, PGresult **ret_result)
{
    if (KV_BUG(!pg->in_tx)) {
        return kv_fail(info, KV_E_INTERNAL, "%s needs a transaction", query->name);
    }
    return run(pg, query, args, info, ret_result);
}

KV_RC kv_pg_script(struct kv_pg *pg, const char *sql, uint32_t timeout_ms, struct kv_errinfo *info,
                   PGresult **ret_result)
{
    KV_TRY(kv_pg_connect(pg, info));
    if (PQsendQuery(pg->conn, sql) != 1) {
        kv_pg_drop(pg, "script");
        return kv_pg_unavailable(info);
    }
    PGresult *result = kv_pg_wait(pg, timeout_ms, "script");
    if (result == NULL) {
        return kv_pg_unavailable(info);
    }
    if (is_failure(result)) {
        enum kv_err rc = kv_pg_explain(pg, result, info);
        PQclear(result);
        return rc;
    }
    *ret_result = result;
    return KV_OK;
}

void kv_pg_result_free(PGresult **result)
{
    PQclear(*result);
    *result = NULL;
}
