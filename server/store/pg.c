/*
 * Opening, losing and healing a connection. Never logs the url and never waits longer than KV_PG_CONNECT_MS for one
 * attempt.
 */
#include "dataplane/base/check.h"
#include "dataplane/base/log.h"
#include "dataplane/base/mem.h"
#include "server/store/pg_int.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

static void drop_notice(void *arg, const PGresult *result)
{
    (void)arg;
    (void)result;
}

static KV_RC check_url(const char *url, struct kv_errinfo *info)
{
    char *error = NULL;
    PQconninfoOption *options = PQconninfoParse(url, &error);
    /* libpq's text repeats parts of the url, so it goes nowhere. */
    PQfreemem(error);
    if (options == NULL) {
        return kv_fail(info, KV_E_CONFIG, "db.url is not a PostgreSQL connection string (postgresql://user@host/name)");
    }
    PQconninfoFree(options);
    return KV_OK;
}

KV_RC kv_pg_open(const struct kv_pg_conf *conf, struct kv_errinfo *info, struct kv_pg **ret_pg)
{
    KV_ASSERT(conf != NULL && conf->url != NULL && conf->env != NULL && ret_pg != NULL);
    KV_TRY(check_url(conf->url, info));
    struct kv_pg *pg = kv_alloc(sizeof *pg);
    if (pg == NULL) {
        return kv_fail(info, KV_E_NO_MEMORY, "no memory for a database connection");
    }
    pg->env = *conf->env;
    pg->statement_timeout_ms = conf->statement_timeout_ms != 0 ? conf->statement_timeout_ms : 5000;
    pg->lock_timeout_ms = conf->lock_timeout_ms != 0 ? conf->lock_timeout_ms : 2000;
    pg->idle_timeout_ms = conf->idle_timeout_ms != 0 ? conf->idle_timeout_ms : 30000;
    pg->token = conf->token;
    pg->prepare = conf->prepare;
    pg->pooled = conf->prepare == KV_PG_PREPARE_OFF;
    pg->url = kv_strdup(conf->url);
    pg->application_name = kv_strdup(conf->application_name != NULL ? conf->application_name : "kvrun");
    if (pg->url == NULL || pg->application_name == NULL) {
        kv_pg_close(pg);
        return kv_fail(info, KV_E_NO_MEMORY, "no memory for a database connection");
    }
    kv_pg_count_state(pg, KV_PG_DOWN);
    *ret_pg = pg;
    return KV_OK;
}

void kv_pg_close(struct kv_pg *pg)
{
    if (pg == NULL) {
        return;
    }
    kv_pg_count_state(pg, KV_PG_NONE);
    PQfinish(pg->conn);
    kv_free(pg->url);
    kv_free(pg->application_name);
    kv_free(pg);
}

void kv_pg_set_token(struct kv_pg *pg, const struct kv_pg_token *token)
{
    pg->token = token;
}

KV_RC kv_pg_unavailable(struct kv_errinfo *info)
{
    return kv_fail(info, KV_E_DB_UNAVAILABLE, "the database is not reachable; the request can be repeated");
}

void kv_pg_drop(struct kv_pg *pg, const char *why)
{
    if (pg->conn == NULL) {
        return;
    }
    if (!pg->told) {
        kv_log(KV_LOG_WARN, "store", "database_lost", KV_FT("connection", pg->application_name), KV_FT("why", why));
        pg->told = true;
    }
    pg->stats.losses++;
    kv_pg_count_loss(why);
    kv_pg_count_state(pg, KV_PG_DOWN);
    PQfinish(pg->conn);
    pg->conn = NULL;
    pg->prepared_count = 0;
}

/* Waits for the socket as libpq asks for. False: the deadline passed or poll failed. */
static bool wait_connecting(struct kv_pg *pg, PGconn *conn, PostgresPollingStatusType want, uint64_t deadline_ns)
{
    for (;;) {
        uint64_t now = kv_now_ns(&pg->env);
        if (now >= deadline_ns) {
            return false;
        }
        struct pollfd fd = {.fd = PQsocket(conn), .events = want == PGRES_POLLING_READING ? POLLIN : POLLOUT};
        int ready = poll(&fd, 1, (int)((deadline_ns - now) / KV_MS_NS) + 1);
        if (ready > 0) {
            return true;
        }
        if (ready < 0 && errno != EINTR) {
            return false;
        }
    }
}

static bool finish_connecting(struct kv_pg *pg, PGconn *conn)
{
    uint64_t deadline_ns = kv_now_ns(&pg->env) + (uint64_t)KV_PG_CONNECT_MS * KV_MS_NS;
    PostgresPollingStatusType want = PGRES_POLLING_WRITING;
    while (want == PGRES_POLLING_WRITING || want == PGRES_POLLING_READING) {
        if (PQstatus(conn) == CONNECTION_BAD || !wait_connecting(pg, conn, want, deadline_ns)) {
            return false;
        }
        want = PQconnectPoll(conn);
    }
    return want == PGRES_POLLING_OK;
}

static PGconn *start_connecting(const struct kv_pg *pg)
{
    /* Before dbname: what the url may override. After it: what it may not. */
    const char *const names[] = {"keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout",
                                 "dbname",          "application_name",    "client_encoding",  NULL};
    const char *const values[] = {"5", "2", "3", "10000", pg->url, pg->application_name, "UTF8", NULL};
    return PQconnectStartParams(names, values, 1);
}

void kv_pg_settings(const struct kv_pg *pg, bool local, char ret_sql[KV_PG_SETTINGS_SIZE])
{
    const char *is_local = local ? "true" : "false";
    int len = snprintf(ret_sql, KV_PG_SETTINGS_SIZE,
                       "SELECT set_config('search_path', 'kvrun, pg_temp', %s),"
                       " set_config('statement_timeout', '%u', %s), set_config('lock_timeout', '%u', %s),"
                       " set_config('idle_in_transaction_session_timeout', '%u', %s),"
                       " set_config('default_transaction_isolation', 'read committed', %s),"
                       " set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') IN"
                       " ('off', 'local') THEN 'on' ELSE current_setting('synchronous_commit') END, %s),"
                       " set_config('timezone', 'UTC', %s), set_config('client_min_messages', 'warning', %s)",
                       is_local, pg->statement_timeout_ms, is_local, pg->lock_timeout_ms, is_local, pg->idle_timeout_ms,
                       is_local, is_local, is_local, is_local, is_local);
    KV_ASSERT(len > 0 && len < KV_PG_SETTINGS_SIZE);
}

/* One statement while a connection is set up; NULL: it was lost. Owned. */
static PGresult *ask(struct kv_pg *pg, const char *sql)
{
    if (PQsendQueryParams(pg->conn, sql, 0, NULL, NULL, NULL, NULL, 0) != 1) {
        kv_pg_drop(pg, "session");
        return NULL;
    }
    PGresult *result = kv_pg_wait(pg, KV_PG_CONNECT_MS, "session");
    if (result != NULL && PQresultStatus(result) != PGRES_TUPLES_OK) {
        PQclear(result);
        kv_pg_drop(pg, "session");
        return NULL;
    }
    return result;
}

/* A pooler greets with a process number of its own making, because it does not know yet which server will answer: so
 * the one of the greeting and the one of the answer differ. */
static KV_RC find_pooler(struct kv_pg *pg)
{
    if (pg->prepare != KV_PG_PREPARE_AUTO || pg->pooled) {
        return KV_OK;
    }
    PGresult *result = ask(pg, "SELECT pg_backend_pid()");
    if (result == NULL) {
        return KV_E_DB_UNAVAILABLE;
    }
    pg->pooled = strtol(PQgetvalue(result, 0, 0), NULL, 10) != PQbackendPID(pg->conn);
    PQclear(result);
    if (pg->pooled) {
        kv_log(KV_LOG_INFO, "store", "pooler_found", KV_FT("connection", pg->application_name));
    }
    return KV_OK;
}

/* Every session setting that results depend on, so that neither the role's nor the database's defaults matter. Behind a
 * pooler the session is not ours: what is set there would be another client's tomorrow. */
static KV_RC set_up_session(struct kv_pg *pg)
{
    char sql[KV_PG_SETTINGS_SIZE];
    KV_TRY(find_pooler(pg));
    if (pg->pooled) {
        return KV_OK;
    }
    kv_pg_settings(pg, false, sql);
    PGresult *result = ask(pg, sql);
    PQclear(result);
    return result != NULL ? KV_OK : KV_E_DB_UNAVAILABLE;
}

static KV_RC attempt(struct kv_pg *pg)
{
    PGconn *conn = start_connecting(pg);
    if (conn == NULL) {
        return KV_E_NO_MEMORY;
    }
    if (!finish_connecting(pg, conn) || PQsetnonblocking(conn, 1) != 0) {
        if (!pg->told) {
            kv_log(KV_LOG_WARN, "store", "database_unreachable", KV_FT("connection", pg->application_name),
                   KV_FT("why", PQerrorMessage(conn)));
            pg->told = true;
        }
        PQfinish(conn);
        return KV_E_DB_UNAVAILABLE;
    }
    PQsetNoticeReceiver(conn, drop_notice, NULL);
    pg->conn = conn;
    pg->prepared_count = 0;
    return set_up_session(pg);
}

/* A connection that broke while nobody used it, after a restart of the database, is replaced before the next statement
 * finds out: an idle socket has something to read only when the server said good-bye. */
static void drop_if_broken(struct kv_pg *pg)
{
    struct pollfd fd = {.fd = pg->conn == NULL ? -1 : PQsocket(pg->conn), .events = POLLIN};
    if (pg->conn == NULL || pg->in_tx || poll(&fd, 1, 0) == 0) {
        return;
    }
    if (PQconsumeInput(pg->conn) != 1 || PQstatus(pg->conn) != CONNECTION_OK) {
        kv_pg_drop(pg, "idle");
    }
}

KV_RC kv_pg_connect(struct kv_pg *pg, struct kv_errinfo *info)
{
    drop_if_broken(pg);
    if (pg->conn != NULL) {
        return KV_OK;
    }
    if (pg->in_tx || kv_now_ns(&pg->env) < pg->next_attempt_ns) {
        return kv_pg_unavailable(info);
    }
    if (attempt(pg) == KV_OK) {
        pg->stats.connects++;
        kv_pg_count_state(pg, KV_PG_IDLE);
        pg->backoff_ns = 0;
        pg->next_attempt_ns = 0;
        if (pg->told) {
            kv_log(KV_LOG_INFO, "store", "database_back", KV_FT("connection", pg->application_name));
            pg->told = false;
        }
        return KV_OK;
    }
    pg->stats.connect_failures++;
    pg->backoff_ns = pg->backoff_ns == 0 ? KV_PG_BACKOFF_MIN_NS : pg->backoff_ns * 2;
    if (pg->backoff_ns > KV_PG_BACKOFF_MAX_NS) {
        pg->backoff_ns = KV_PG_BACKOFF_MAX_NS;
    }
    pg->next_attempt_ns = kv_now_ns(&pg->env) + pg->backoff_ns;
    return kv_pg_unavailable(info);
}

static KV_RC fill_answer(struct kv_pg_row *row, void *ret)
{
    *(int32_t *)ret = kv_pg_get_i32(row);
    return KV_OK;
}

KV_RC kv_pg_ping(struct kv_pg *pg, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {"ping", "SELECT 1"};
    struct kv_pg_args args = {0};
    struct kv_pg_one one = {.query = &query, .args = &args, .none = KV_E_CORRUPT, .none_text = "no answer"};
    int32_t answer = 0;
    return kv_pg_fetch_one(pg, &one, fill_answer, &answer, info);
}

bool kv_pg_connected(const struct kv_pg *pg)
{
    return pg->conn != NULL;
}

bool kv_pg_pooled(const struct kv_pg *pg)
{
    return pg->pooled;
}

bool kv_pg_in_tx(const struct kv_pg *pg)
{
    return pg->in_tx;
}

void kv_pg_stats(const struct kv_pg *pg, struct kv_pg_stats *ret_stats)
{
    *ret_stats = pg->stats;
}
