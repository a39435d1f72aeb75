/*
 * BEGIN, what the caller does, COMMIT: run again where PostgreSQL asks for it, and honest about a commit whose fate is
 * unknown.
 */
#include "dataplane/base/check.h"
#include "dataplane/base/fault.h"
#include "dataplane/base/log.h"
#include "server/store/pg_int.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

const char *kv_tx_name(enum kv_tx what)
{
    static const char *const names[KV_TXS] = {
#define KV_TX(name, text) [KV_TX_##name] = (text),
#include "server/store/tx.def"
#undef KV_TX
    };
    KV_ASSERT((unsigned)what < KV_TXS);
    return names[what];
}

/* store/<name>/<step>: a name a transaction, so that a crash test can stop exactly one. */
static bool fault_at(const char *name, const char *step)
{
#ifdef KV_FAULTS
    char point[96];
    snprintf(point, sizeof point, "store/%s/%s", name, step);
    return KV_FAULT(point);
#else
    (void)name;
    (void)step;
    return false;
#endif
}

#define TOKEN_SIZE 256

/* The row stays locked to the end of the transaction, in a way that a renewal does not wait for. */
static bool token_text(const struct kv_pg *pg, char ret_sql[TOKEN_SIZE])
{
    int64_t incarnation = pg->token == NULL ? 0 : atomic_load(&pg->token->incarnation);
    char hex[2 * sizeof pg->token->instance.b + 1];
    ret_sql[0] = '\0';
    if (incarnation == 0 || KV_FAULT("store/untokened")) {
        return false;
    }
    kv_hex_encode(pg->token->instance.b, sizeof pg->token->instance.b, hex);
    snprintf(ret_sql, TOKEN_SIZE,
             "; SELECT 1 FROM kvrun.instance WHERE id = decode('%s', 'hex') AND incarnation = %" PRId64
             " AND ended_at IS NULL AND expired_at IS NULL AND NOT cloned FOR KEY SHARE",
             hex, incarnation);
    return true;
}

static KV_RC begin_once(struct kv_pg *pg, struct kv_errinfo *info)
{
    char sql[KV_PG_SETTINGS_SIZE + TOKEN_SIZE + 64], settings[KV_PG_SETTINGS_SIZE] = "", token[TOKEN_SIZE];
    KV_TRY(kv_pg_connect(pg, info)); /* before it, nobody knows whether there is a pooler */
    if (pg->pooled) {
        kv_pg_settings(pg, true, settings);
    }
    bool asked = token_text(pg, token);
    snprintf(sql, sizeof sql, "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE%s%s%s", pg->pooled ? "; " : "", settings,
             token);
    PGresult *result KV_CLEANUP(kv_pg_result_free) = NULL;
    KV_TRY(kv_pg_script(pg, sql, pg->statement_timeout_ms, info, &result));
    return !asked || PQntuples(result) == 1
               ? KV_OK
               : kv_fail(info, KV_E_LEASE_EXPIRED,
                         "this instance's place in the database was taken, or its lease ran out; it writes nothing "
                         "until it has joined again");
}

KV_RC kv_pg_begin(struct kv_pg *pg, struct kv_errinfo *info)
{
    bool had_connection = pg->conn != NULL;
    enum kv_err rc = begin_once(pg, info);
    if (rc == KV_E_DB_UNAVAILABLE && had_connection) {
        /* It broke while it was idle; nothing has happened yet, so a new one is as good. */
        rc = begin_once(pg, info);
    }
    return rc;
}

static void roll_back(struct kv_pg *pg)
{
    pg->stats.rollbacks++;
    PGresult *result = NULL;
    if (pg->conn != NULL && kv_pg_script(pg, "ROLLBACK", pg->statement_timeout_ms, NULL, &result) != KV_OK) {
        kv_pg_drop(pg, "rollback");
    }
    PQclear(result);
}

static KV_RC lost_commit(struct kv_pg *pg, const char *name, struct kv_errinfo *info, bool *ret_in_doubt)
{
    kv_pg_drop(pg, name);
    pg->stats.in_doubt++;
    *ret_in_doubt = true;
    kv_log(KV_LOG_WARN, "store", "commit_in_doubt", KV_FT("transaction", name));
    return kv_fail(info, KV_E_DB_UNAVAILABLE, "the database was lost while it committed; ask for the result");
}

static KV_RC commit(struct kv_pg *pg, const char *name, struct kv_errinfo *info, bool *ret_in_doubt)
{
    if (fault_at(name, "serialize")) {
        pg->again = true;
        return kv_fail(info, KV_E_BUSY, "other changes came in between; repeat the request");
    }
    if (fault_at(name, "commit")) {
        return lost_commit(pg, name, info, ret_in_doubt);
    }
    if (PQsendQuery(pg->conn, "COMMIT") != 1) {
        return lost_commit(pg, name, info, ret_in_doubt);
    }
    PGresult *result KV_CLEANUP(kv_pg_result_free) = kv_pg_wait(pg, pg->statement_timeout_ms, name);
    if (result == NULL) {
        return lost_commit(pg, name, info, ret_in_doubt);
    }
    if (PQresultStatus(result) != PGRES_COMMAND_OK) {
        enum kv_err rc = kv_pg_explain(pg, result, info);
        /* An error that ends the connection says nothing about what was written before it. */
        return pg->conn == NULL ? lost_commit(pg, name, info, ret_in_doubt) : rc;
    }
    if (fault_at(name, "committed")) {
        return lost_commit(pg, name, info, ret_in_doubt);
    }
    /* COMMIT of a transaction that had failed answers ROLLBACK: `fn` went on after an error. */
    if (KV_BUG(strcmp(PQcmdStatus(result), "COMMIT") != 0)) {
        return kv_fail(info, KV_E_INTERNAL, "transaction %s went on after an error", name);
    }
    pg->stats.commits++;
    return KV_OK;
}

static KV_RC one_try(struct kv_pg *pg, const char *name, kv_pg_tx_fn fn, void *ctx, struct kv_errinfo *info,
                     bool *ret_in_doubt)
{
    pg->again = false;
    enum kv_err begun = kv_pg_begin(pg, info);
    if (begun != KV_OK) {
        if (pg->conn != NULL) {
            roll_back(pg); /* it may have begun before it failed */
        }
        return begun;
    }
    pg->in_tx = true;
    kv_pg_count_state(pg, KV_PG_BUSY);
    enum kv_err rc = fn(pg, ctx, info);
    if (rc == KV_OK && pg->conn == NULL) {
        rc = kv_pg_unavailable(info);
    }
    if (rc == KV_OK) {
        rc = commit(pg, name, info, ret_in_doubt);
    }
    if (rc != KV_OK && !*ret_in_doubt) {
        roll_back(pg);
    }
    pg->in_tx = false;
    kv_pg_count_state(pg, pg->conn != NULL ? KV_PG_IDLE : KV_PG_DOWN);
    return rc;
}

static void pause_before(struct kv_pg *pg, unsigned tries)
{
    uint8_t jitter = 0;
    KV_IGNORE(pg->env.random(pg->env.ctx, &jitter, sizeof jitter), "without it two retries may meet again");
    long ns = ((1L << tries) + jitter % 4) * 1000000L;
    nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
}

/* An answer such as "no such row" rolls back and is no error of the database. */
static void count(struct kv_pg *pg, enum kv_tx what, enum kv_err rc, uint64_t begun_ns)
{
    enum kv_err_class class = kv_err_class_of(rc);
    bool error = class == KV_CLASS_UNAVAILABLE || class == KV_CLASS_INTERNAL || class == KV_CLASS_INTEGRITY;
    kv_pg_count_tx(what, rc == KV_OK ? KV_PG_COMMIT : error ? KV_PG_ERROR : KV_PG_CONFLICT, 1);
    kv_pg_time_tx(kv_now_ns(&pg->env) - begun_ns);
}

KV_RC kv_pg_tx(struct kv_pg *pg, enum kv_tx what, kv_pg_tx_fn fn, void *ctx, struct kv_errinfo *info,
               bool *ret_in_doubt)
{
    const char *name = kv_tx_name(what);
    bool in_doubt = false;
    if (ret_in_doubt != NULL) {
        *ret_in_doubt = false;
    }
    if (KV_BUG(pg->in_tx)) {
        return kv_fail(info, KV_E_INTERNAL, "transaction %s inside another", name);
    }
    enum kv_err rc = KV_E_BUSY;
    uint64_t begun = kv_now_ns(&pg->env);
    for (unsigned tries = 1; tries <= KV_PG_TRIES; tries++) {
        rc = one_try(pg, name, fn, ctx, info, &in_doubt);
        if (rc == KV_OK || in_doubt || !pg->again) {
            break;
        }
        if (tries < KV_PG_TRIES) {
            pg->stats.retries++;
            kv_pg_count_tx(what, KV_PG_RETRY, 1);
            pause_before(pg, tries);
        }
    }
    count(pg, what, rc, begun);
    if (ret_in_doubt != NULL) {
        *ret_in_doubt = in_doubt;
    }
    return rc == KV_OK ? KV_OK : rc;
}
