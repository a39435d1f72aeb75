/* Transactions and connections: what is run again, what heals, what stays in doubt. */
#include "server/store/pg.h"

#include "dataplane/base/fault.h"
#include "server/store/listen.h"
#include "server/store/pg_int.h"
#include "server/store/private_cluster.h"
#include "tests/lib/temp_postgres.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

TEMP_POSTGRES_HOOKS

static const struct kv_pg_query q_insert = {"t_insert", "INSERT INTO t (x) VALUES ($1)"};
static const struct kv_pg_query q_sum = {"t_sum", "SELECT coalesce(sum(x), 0)::bigint FROM t"};

static KV_RC fill_i64(struct kv_pg_row *row, void *ret)
{
    *(int64_t *)ret = kv_pg_get_i64(row);
    return KV_OK;
}

static KV_RC read_sum(struct kv_pg *pg, struct kv_errinfo *info, int64_t *ret)
{
    struct kv_pg_args args = {0};
    struct kv_pg_one one = {.query = &q_sum, .args = &args, .none = KV_E_CORRUPT, .none_text = "none"};
    return kv_pg_fetch_one(pg, &one, fill_i64, ret, info);
}

static int64_t sum(struct kv_pg *pg)
{
    int64_t value = -1;
    struct kv_errinfo info = {0};
    cr_assert(eq(int, read_sum(pg, &info, &value), KV_OK), "%s", info.text);
    return value;
}

struct work {
    int64_t x;
    unsigned runs;
    enum kv_err rc;    /* returned at the end */
    const char *sql;   /* run first, its error returned; NULL: nothing */
    bool swallow;      /* its error is not returned */
    struct kv_pg *cut; /* another connection that ends this one's backend after the insert */
    int backend;
};

static KV_RC insert(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct work *work = ctx;
    work->runs++;
    if (work->sql != NULL) {
        PGresult *result = NULL;
        enum kv_err rc = kv_pg_script(pg, work->sql, 5000, info, &result);
        PQclear(result);
        if (rc != KV_OK && !work->swallow) {
            return rc;
        }
        if (rc != KV_OK) {
            return KV_OK;
        }
    }
    struct kv_pg_args args = {0};
    kv_pg_arg_i64(&args, work->x);
    uint64_t rows = 0;
    KV_TRY(kv_pg_change(pg, &q_insert, &args, info, &rows));
    if (work->cut != NULL) {
        char sql[96];
        snprintf(sql, sizeof sql, "select pg_terminate_backend(%d, 5000)", PQbackendPID(pg->conn));
        if (temp_postgres_run(work->cut, sql) != KV_OK) {
            return KV_E_INTERNAL;
        }
    }
    return work->rc;
}

static struct kv_pg *with_table(const char *url)
{
    struct kv_pg *pg = temp_postgres_connect(url, "test");
    if (temp_postgres_run(pg, "create table t (x bigint)") != KV_OK) {
        abort();
    }
    return pg;
}

static void wait_a_little(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 20000000L}, NULL);
}

Test(pg, bad_url_is_a_config_error_that_does_not_repeat_it)
{
    struct kv_pg *pg = NULL;
    struct kv_errinfo info = {0};
    struct kv_pg_conf conf = {.url = "postgresql://u:hunter2@[", .env = &kv_env_system};
    cr_assert(eq(int, kv_pg_open(&conf, &info, &pg), KV_E_CONFIG));
    cr_assert(strstr(info.text, "hunter2") == NULL);
    cr_assert(zero(ptr, pg));
    kv_pg_close(NULL);
}

Test(pg, session_settings_do_not_depend_on_the_database_s_defaults)
{
    const char *url = temp_postgres_url();
    struct kv_pg *pg = temp_postgres_connect(url, "test");
    cr_assert(eq(int,
                 temp_postgres_run(pg, "do $$ begin execute format('alter database %I set synchronous_commit = off',"
                                       " current_database()); execute format('alter database %I set search_path ="
                                       " public', current_database()); end $$"),
                 KV_OK));
    kv_pg_close(pg);
    pg = temp_postgres_connect(url, "test");
    const char *check = "do $$ begin"
                        " assert current_setting('search_path') = 'kvrun, pg_temp';"
                        " assert current_setting('synchronous_commit') = 'on';"
                        " assert current_setting('statement_timeout') = '5s';"
                        " assert current_setting('lock_timeout') = '2s';"
                        " assert current_setting('application_name') = 'test'; end $$";
    cr_assert(eq(int, temp_postgres_run(pg, check), KV_OK));
    kv_pg_close(pg);
}

Test(pg, committed_work_stays_and_an_error_of_the_caller_rolls_back)
{
    struct kv_pg *pg = with_table(temp_postgres_url());
    struct kv_errinfo info = {0};
    bool in_doubt = true;
    struct work work = {.x = 5};
    cr_assert(eq(int, kv_pg_tx(pg, KV_TX_USES, insert, &work, &info, &in_doubt), KV_OK));
    cr_assert(not(in_doubt));
    cr_assert(eq(i64, sum(pg), 5));
    work = (struct work){.x = 7, .rc = KV_E_FORBIDDEN};
    cr_assert(eq(int, kv_pg_tx(pg, KV_TX_USES, insert, &work, &info, &in_doubt), KV_E_FORBIDDEN));
    cr_assert(eq(u32, work.runs, 1));
    cr_assert(eq(i64, sum(pg), 5));
    kv_pg_close(pg);
}

Test(pg, write_outside_of_a_transaction_is_our_mistake)
{
    struct kv_pg *pg = with_table(temp_postgres_url());
    struct kv_errinfo info = {0};
    struct work work = {.x = 5};
    cr_assert(eq(int, insert(pg, &work, &info), KV_E_INTERNAL));
    cr_assert(eq(i64, sum(pg), 0));
    kv_pg_close(pg);
}

static KV_RC nested(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    return kv_pg_tx(pg, KV_TX_USES, insert, ctx, info, NULL);
}

Test(pg, transaction_inside_a_transaction_is_our_mistake)
{
    struct kv_pg *pg = with_table(temp_postgres_url());
    struct kv_errinfo info = {0};
    struct work work = {.x = 5};
    cr_assert(eq(int, kv_pg_tx(pg, KV_TX_USES, nested, &work, &info, NULL), KV_E_INTERNAL));
    cr_assert(not(kv_pg_in_tx(pg)));
    cr_assert(eq(int, kv_pg_tx(pg, KV_TX_USES, insert, &work, &info, NULL), KV_OK));
    kv_pg_close(pg);
}

Test(pg, serialization_failure_runs_the_transaction_again)
{
    struct kv_pg *pg = with_table(temp_postgres_url());
    struct kv_errinfo info = {0};
    struct work work = {.x = 3};
    kv_fault_set("store/uses/serialize=fail@1once");
    cr_assert(eq(int, kv_pg_tx(pg, KV_TX_USES, insert, &work, &info, NULL), KV_OK));
    kv_fault_set(NULL);
    cr_assert(eq(u32, work.runs, 2));
    cr_assert(eq(i64, sum(pg), 3));
    kv_pg_close(pg);
}

Test(pg, real_serialization_failures_end_after_a_bounded_number_of_tries)
{
    struct kv_pg *pg = with_table(temp_postgres_url());
    struct kv_errinfo info = {0};
    struct work work = {.x = 3, .sql = "do $$ begin raise exception 'again' using errcode = '40001'; end $$"};
    cr_assert(eq(int, kv_pg_tx(pg, KV_TX_USES, insert, &work, &info, NULL), KV_E_BUSY));
    cr_assert(eq(u32, work.runs, KV_PG_TRIES));
    struct kv_pg_stats stats;
    kv_pg_stats(pg, &stats);
    cr_assert(eq(u64, stats.retries, KV_PG_TRIES - 1));
    work = (struct work){.x = 4, .sql = "do $$ begin raise exception 'no' using errcode = '23514'; end $$"};
    cr_assert(eq(int, kv_pg_tx(pg, KV_TX_USES, insert, &work, &info, NULL), KV_E_INVALID_STATE));
    cr_assert(eq(u32, work.runs, 1));
    cr_assert(eq(i64, sum(pg), 0));
    kv_pg_close(pg);
}

struct conflict {
    struct kv_pg *other;
    unsigned runs;
};

/* A snapshot, then the other one changes the row, then we do: PostgreSQL refuses with 40001, in the first run only. */
static KV_RC add_to_counter(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct conflict *conflict = ctx;
    PGresult *result KV_CLEANUP(kv_pg_result_free) = NULL;
    KV_TRY(kv_pg_script(pg, "set transaction isolation level repeatable read; select x from t", 5000, info, &result));
    if (conflict->runs++ == 0 && temp_postgres_run(conflict->other, "update t set x = x + 10") != KV_OK) {
        return KV_E_INTERNAL;
    }
    kv_pg_result_free(&result);
    return kv_pg_script(pg, "update t set x = x + 1", 5000, info, &result);
}

Test(pg, conflict_of_two_real_transactions_is_run_again_and_succeeds)
{
    const char *url = temp_postgres_url();
    struct kv_pg *pg = with_table(url);
    struct conflict conflict = {.other = temp_postgres_connect(url, "other")};
    struct kv_errinfo info = {0};
    struct work first = {.x = 100};
    cr_assert(eq(int, kv_pg_tx(pg, KV_TX_USES, insert, &first, &info, NULL), KV_OK));
    cr_assert(eq(int, kv_pg_tx(pg, KV_TX_USES, add_to_counter, &conflict, &info, NULL), KV_OK), "%s", info.text);
    cr_assert(eq(u32, conflict.runs, 2));
    cr_assert(eq(i64, sum(pg), 111));
    kv_pg_close(conflict.other);
    kv_pg_close(pg);
}

Test(pg, swallowed_error_is_not_reported_as_a_commit)
{
    struct kv_pg *pg = with_table(temp_postgres_url());
    struct kv_errinfo info = {0};
    struct work work = {.x = 3, .sql = "select 1 / 0", .swallow = true};
    cr_assert(eq(int, kv_pg_tx(pg, KV_TX_USES, insert, &work, &info, NULL), KV_E_INTERNAL));
    cr_assert(eq(i64, sum(pg), 0));
    kv_pg_close(pg);
}

Test(pg, lock_timeout_is_busy_and_bounded)
{
    const char *url = temp_postgres_url();
    struct kv_pg *holder = with_table(url);
    cr_assert(eq(int, temp_postgres_run(holder, "begin; lock table t"), KV_OK));
    struct kv_pg *pg = NULL;
    struct kv_errinfo info = {0};
    struct kv_pg_conf conf = {.url = url, .lock_timeout_ms = 50, .env = &kv_env_system};
    cr_assert(eq(int, kv_pg_open(&conf, &info, &pg), KV_OK));
    struct work work = {.x = 3};
    cr_assert(eq(int, kv_pg_tx(pg, KV_TX_USES, insert, &work, &info, NULL), KV_E_BUSY));
    cr_assert(eq(u32, work.runs, 1));
    cr_assert(eq(int, temp_postgres_run(holder, "rollback"), KV_OK));
    cr_assert(eq(int, kv_pg_tx(pg, KV_TX_USES, insert, &work, &info, NULL), KV_OK));
    kv_pg_close(pg);
    kv_pg_close(holder);
}

Test(pg, statement_timeout_is_busy_and_the_connection_lives)
{
    struct kv_pg *pg = NULL;
    struct kv_errinfo info = {0};
    struct kv_pg_conf conf = {.url = temp_postgres_url(), .statement_timeout_ms = 50, .env = &kv_env_system};
    cr_assert(eq(int, kv_pg_open(&conf, &info, &pg), KV_OK));
    cr_assert(eq(int, temp_postgres_run(pg, "select pg_sleep(5)"), KV_E_BUSY));
    cr_assert(kv_pg_connected(pg));
    cr_assert(eq(int, kv_pg_ping(pg, &info), KV_OK));
    kv_pg_close(pg);
}

/* ---- without anything that outlives a transaction, as behind a pooler ---- */

static struct kv_pg *open_with(const char *url, enum kv_pg_prepare prepare)
{
    struct kv_pg *pg = NULL;
    struct kv_errinfo info = {0};
    struct kv_pg_conf conf = {.url = url, .application_name = "test", .prepare = prepare, .env = &kv_env_system};
    cr_assert(eq(int, kv_pg_open(&conf, &info, &pg), KV_OK), "%s", info.text);
    return pg;
}

static int64_t ask_number(struct kv_pg *pg, const char *sql)
{
    PGresult *result = NULL;
    struct kv_errinfo info = {0};
    cr_assert(eq(int, kv_pg_script(pg, sql, 5000, &info, &result), KV_OK), "%s", info.text);
    int64_t number = strtoll(PQgetvalue(result, 0, 0), NULL, 10);
    PQclear(result);
    return number;
}

Test(pg, without_preparing_nothing_stays_in_the_session)
{
    const char *url = temp_postgres_url();
    kv_pg_close(with_table(url));
    struct kv_pg *pg = open_with(url, KV_PG_PREPARE_OFF);
    struct kv_errinfo info = {0};
    struct work work = {.x = 5};
    cr_assert(eq(int, kv_pg_tx(pg, KV_TX_USES, insert, &work, &info, NULL), KV_OK), "%s", info.text);
    cr_assert(eq(i64, sum(pg), 5)); /* a read of its own finds the schema, too */
    cr_assert(kv_pg_pooled(pg));
    cr_assert(eq(i64, ask_number(pg, "select count(*) from pg_prepared_statements"), 0));
    cr_assert(eq(i64, ask_number(pg, "select (current_setting('search_path') like 'kvrun%')::int"), 0));
    cr_assert(eq(i64, ask_number(pg, "select (now() = statement_timestamp())::int"), 1), "a transaction is left open");
    kv_pg_close(pg);
}

Test(pg, without_a_pooler_nobody_thinks_that_there_is_one)
{
    const char *url = temp_postgres_url();
    struct kv_pg *pg = with_table(url);
    cr_assert(eq(i64, sum(pg), 0));
    cr_assert(not(kv_pg_pooled(pg)));
    cr_assert(eq(i64, ask_number(pg, "select count(*) from pg_prepared_statements where name = 't_sum'"), 1));
    kv_pg_close(pg);
}

/* What a pooler does that the greeting did not show: the statements are another session's. */
Test(pg, lost_prepared_statements_are_done_without_from_then_on)
{
    const char *url = temp_postgres_url();
    struct kv_pg *pg = with_table(url);
    cr_assert(eq(i64, sum(pg), 0));
    cr_assert(eq(int, temp_postgres_run(pg, "deallocate all"), KV_OK));
    cr_assert(eq(i64, sum(pg), 0)); /* a read heals in the same call */
    cr_assert(kv_pg_pooled(pg));
    kv_pg_close(pg);
    pg = open_with(url, KV_PG_PREPARE_ON);
    cr_assert(eq(i64, sum(pg), 0));
    cr_assert(eq(int, temp_postgres_run(pg, "deallocate all"), KV_OK));
    cr_assert(eq(i64, sum(pg), 0));
    cr_assert(not(kv_pg_pooled(pg)), "it was told to prepare");
    kv_pg_close(pg);
}

Test(pg, statements_past_the_table_run_unprepared)
{
    static struct kv_pg_query many[KV_PG_PREPARED_MAX + 1];
    static char many_names[KV_PG_PREPARED_MAX + 1][24];
    struct kv_pg *pg = with_table(temp_postgres_url());
    struct kv_errinfo info = {0};
    struct kv_pg_args args = {0};
    for (int i = 0; i <= KV_PG_PREPARED_MAX; i++) {
        int64_t one_row = 0;
        snprintf(many_names[i], sizeof many_names[i], "many_%d", i);
        many[i] = (struct kv_pg_query){many_names[i], "SELECT 1::bigint"};
        struct kv_pg_one one = {.query = &many[i], .args = &args, .none = KV_E_CORRUPT, .none_text = "none"};
        cr_assert(eq(int, kv_pg_fetch_one(pg, &one, fill_i64, &one_row, &info), KV_OK), "%d: %s", i, info.text);
        cr_assert(eq(i64, one_row, 1));
    }
    cr_assert(eq(i64, ask_number(pg, "select count(*) from pg_prepared_statements"), KV_PG_PREPARED_MAX));
    kv_pg_close(pg);
}

/* ---- shortage is not loss ---- */

static void expect_shortage(const char *state, enum kv_err expected)
{
    char sql[160];
    struct kv_pg *pg = with_table(temp_postgres_url());
    struct kv_errinfo info = {0};
    snprintf(sql, sizeof sql, "do $$ begin raise exception 'x' using errcode = '%s'; end $$", state);
    struct work work = {.x = 1, .sql = sql};
    cr_assert(eq(int, kv_pg_tx(pg, KV_TX_USES, insert, &work, &info, NULL), expected), "%s", info.text);
    struct kv_pg_stats stats;
    kv_pg_stats(pg, &stats);
    cr_assert(eq(u64, stats.losses, expected == KV_E_DB_UNAVAILABLE), "%s", state);
    work.sql = NULL;
    cr_assert(eq(int, kv_pg_tx(pg, KV_TX_USES, insert, &work, &info, NULL), KV_OK), "%s", info.text);
    kv_pg_close(pg);
}

Test(pg, full_disk_is_said_and_the_connection_stays)
{
    expect_shortage("53100", KV_E_DB_FULL);
}

Test(pg, other_shortages_are_busy_and_the_connection_stays)
{
    expect_shortage("53200", KV_E_BUSY);
    expect_shortage("53400", KV_E_BUSY);
}

Test(pg, too_many_connections_are_a_loss)
{
    expect_shortage("53300", KV_E_DB_UNAVAILABLE);
}

/* ---- listening ---- */

static enum kv_err listen_wait(struct kv_pg *pg, uint32_t timeout_ms, bool *ret_told)
{
    struct kv_errinfo info = {0};
    return kv_pg_listen_wait(pg, -1, timeout_ms, &info, ret_told);
}

Test(pg, listener_is_told_and_notices_its_end)
{
    const char *url = temp_postgres_url();
    struct kv_pg *pg = with_table(url), *other = temp_postgres_connect(url, "other");
    struct kv_errinfo info = {0};
    bool told = true;
    cr_assert(eq(int, kv_pg_listen(pg, &info), KV_OK), "%s", info.text);
    cr_assert(eq(int, listen_wait(pg, 1, &told), KV_OK));
    cr_assert(not(told), "nobody told anything");
    cr_assert(eq(int, temp_postgres_run(other, "notify kvrun, '7'"), KV_OK));
    cr_assert(eq(int, listen_wait(pg, 10000, &told), KV_OK));
    cr_assert(told);
    /* One that arrives with the answer to something else is not overlooked. */
    cr_assert(eq(int, temp_postgres_run(other, "notify kvrun, '8'"), KV_OK));
    cr_assert(eq(int, kv_pg_ping(pg, &info), KV_OK));
    cr_assert(eq(int, listen_wait(pg, 10000, &told), KV_OK));
    cr_assert(told);
    cr_assert(eq(int,
                 temp_postgres_run(other, "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
                                          " where application_name = 'test' and datname = current_database()"),
                 KV_OK));
    enum kv_err rc = KV_OK;
    for (int i = 0; i < 3 && rc == KV_OK; i++) { /* the good-bye may come before the end */
        rc = listen_wait(pg, 10000, &told);
    }
    cr_assert(eq(int, rc, KV_E_DB_UNAVAILABLE));
    cr_assert(eq(int, kv_pg_listen(pg, &info), KV_OK), "%s", info.text);
    kv_pg_close(other);
    kv_pg_close(pg);
}

Test(pg, listener_is_woken_by_its_descriptor)
{
    struct kv_pg *pg = with_table(temp_postgres_url());
    struct kv_errinfo info = {0};
    bool told = true;
    int wake = eventfd(1, EFD_CLOEXEC);
    cr_assert(eq(int, kv_pg_listen(pg, &info), KV_OK));
    uint64_t begun = kv_now_ns(&kv_env_system);
    cr_assert(eq(int, kv_pg_listen_wait(pg, wake, 60000, &info, &told), KV_OK));
    cr_assert(not(told));
    cr_assert(lt(u64, kv_now_ns(&kv_env_system) - begun, 30 * KV_S_NS));
    close(wake);
    kv_pg_close(pg);
}

Test(pg, nobody_listens_through_a_pooler)
{
    struct kv_pg *pg = open_with(temp_postgres_url(), KV_PG_PREPARE_OFF);
    struct kv_errinfo info = {0};
    cr_assert(eq(int, kv_pg_listen(pg, &info), KV_E_UNSUPPORTED));
    kv_pg_close(pg);
}

Test(pg, connection_killed_while_idle_heals_without_an_error)
{
    const char *url = temp_postgres_url();
    struct kv_pg *pg = with_table(url);
    struct kv_pg *killer = temp_postgres_connect(url, "killer");
    const char *kill_all =
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity where application_name = 'test'"
        " and datname = current_database()";
    struct kv_errinfo info = {0};
    cr_assert(eq(int, temp_postgres_run(killer, kill_all), KV_OK));
    cr_assert(eq(i64, sum(pg), 0));
    cr_assert(eq(int, temp_postgres_run(killer, kill_all), KV_OK));
    struct work work = {.x = 9};
    cr_assert(eq(int, kv_pg_tx(pg, KV_TX_USES, insert, &work, &info, NULL), KV_OK), "%s", info.text);
    cr_assert(eq(i64, sum(pg), 9));
    struct kv_pg_stats stats;
    kv_pg_stats(pg, &stats);
    cr_assert(eq(u64, stats.losses, 2));
    kv_pg_close(killer);
    kv_pg_close(pg);
}

Test(pg, connection_killed_inside_a_transaction_is_unavailable_but_not_in_doubt)
{
    const char *url = temp_postgres_url();
    struct kv_pg *pg = with_table(url);
    struct kv_pg *killer = temp_postgres_connect(url, "killer");
    struct kv_errinfo info = {0};
    bool in_doubt = false;
    /* The kill comes before anything else is sent, so the next statement of the transaction finds out. */
    struct work work = {.x = 9, .cut = killer, .rc = KV_E_DB_UNAVAILABLE};
    cr_assert(eq(int, kv_pg_tx(pg, KV_TX_USES, insert, &work, &info, &in_doubt), KV_E_DB_UNAVAILABLE));
    cr_assert(not(in_doubt));
    cr_assert(eq(i64, sum(pg), 0));
    kv_pg_close(killer);
    kv_pg_close(pg);
}

Test(pg, connection_killed_before_commit_is_in_doubt)
{
    const char *url = temp_postgres_url();
    struct kv_pg *pg = with_table(url);
    struct kv_pg *killer = temp_postgres_connect(url, "killer");
    struct kv_errinfo info = {0};
    bool in_doubt = false;
    struct work work = {.x = 9, .cut = killer};
    cr_assert(eq(int, kv_pg_tx(pg, KV_TX_USES, insert, &work, &info, &in_doubt), KV_E_DB_UNAVAILABLE));
    cr_assert(in_doubt);
    cr_assert(eq(u32, work.runs, 1));
    cr_assert(eq(i64, sum(pg), 0));
    kv_pg_close(killer);
    kv_pg_close(pg);
}

Test(pg, lost_answer_to_a_commit_is_in_doubt_whether_it_happened_or_not)
{
    struct kv_pg *pg = with_table(temp_postgres_url());
    struct kv_errinfo info = {0};
    bool in_doubt = false;
    struct work work = {.x = 9};
    kv_fault_set("store/uses/commit=fail@1once");
    cr_assert(eq(int, kv_pg_tx(pg, KV_TX_USES, insert, &work, &info, &in_doubt), KV_E_DB_UNAVAILABLE));
    cr_assert(in_doubt);
    cr_assert(eq(i64, sum(pg), 0));
    kv_fault_set("store/uses/committed=fail@1once");
    cr_assert(eq(int, kv_pg_tx(pg, KV_TX_USES, insert, &work, &info, &in_doubt), KV_E_DB_UNAVAILABLE));
    cr_assert(in_doubt);
    kv_fault_set(NULL);
    cr_assert(eq(i64, sum(pg), 9));
    cr_assert(eq(int, kv_pg_tx(pg, KV_TX_USES, insert, &work, &info, &in_doubt), KV_OK));
    cr_assert(not(in_doubt));
    kv_pg_close(pg);
}

Test(pg, unreachable_database_answers_at_once_after_the_first_attempt)
{
    struct kv_pg *pg = NULL;
    struct kv_errinfo info = {0};
    struct kv_pg_conf conf = {.url = "host=/nonexistent user=x dbname=y", .env = &kv_env_system};
    cr_assert(eq(int, kv_pg_open(&conf, &info, &pg), KV_OK));
    for (int i = 0; i < 100; i++) {
        cr_assert(eq(int, kv_pg_ping(pg, &info), KV_E_DB_UNAVAILABLE));
    }
    struct kv_pg_stats stats;
    kv_pg_stats(pg, &stats);
    cr_assert(lt(u64, stats.connect_failures, 20));
    cr_assert(not(kv_pg_connected(pg)));
    kv_pg_close(pg);
}

Test(pg, numbers_that_the_database_cannot_hold_are_refused)
{
    struct kv_pg *pg = with_table(temp_postgres_url());
    struct kv_errinfo info = {0};
    struct kv_pg_args args = {0};
    kv_pg_arg_u64(&args, (uint64_t)INT64_MAX);
    PGresult *result = NULL;
    static const struct kv_pg_query echo = {"t_echo", "SELECT $1"};
    cr_assert(eq(int, kv_pg_read(pg, &echo, &args, &info, &result), KV_OK));
    struct kv_pg_row row = kv_pg_row_of(result, 0);
    cr_assert(eq(i64, kv_pg_get_i64(&row), INT64_MAX));
    PQclear(result);
    args = (struct kv_pg_args){0};
    kv_pg_arg_u64(&args, (uint64_t)INT64_MAX + 1);
    cr_assert(eq(int, kv_pg_read(pg, &echo, &args, &info, &result), KV_E_INVALID_REQUEST));
    kv_pg_close(pg);
}

Test(pg, values_come_back_as_they_went_in)
{
    struct kv_pg *pg = temp_postgres_connect(temp_postgres_url(), "test");
    struct kv_errinfo info = {0};
    static const struct kv_pg_query echo = {"t_all", "SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9"};
    const uint64_t us = UINT64_C(1796059096123457);
    struct kv_pg_args args = {0};
    kv_pg_arg_i64(&args, -5);
    kv_pg_arg_i32(&args, INT32_MIN);
    kv_pg_arg_bool(&args, true);
    kv_pg_arg_text(&args, "grün '; --");
    kv_pg_arg_raw(&args, "a\0b", 3);
    kv_pg_arg_raw(&args, NULL, 0);
    kv_pg_arg_time(&args, us);
    kv_pg_arg_time(&args, 0);
    kv_pg_arg_raw_or_null(&args, NULL, 0);
    PGresult *result = NULL;
    cr_assert(eq(int, kv_pg_read(pg, &echo, &args, &info, &result), KV_OK), "%s", info.text);
    struct kv_pg_row row = kv_pg_row_of(result, 0);
    cr_assert(eq(i64, kv_pg_get_i64(&row), -5));
    cr_assert(eq(i32, kv_pg_get_i32(&row), INT32_MIN));
    cr_assert(kv_pg_get_bool(&row));
    char text[32];
    kv_pg_get_text(&row, text, sizeof text);
    cr_assert(eq(str, text, "grün '; --"));
    struct kv_bytes bytes = kv_pg_get_bytes(&row);
    cr_assert(eq(sz, bytes.len, 3));
    cr_assert(eq(int, memcmp(bytes.data, "a\0b", 3), 0));
    cr_assert(not(kv_pg_get_null(&row)));
    cr_assert(eq(sz, kv_pg_get_bytes(&row).len, 0));
    cr_assert(eq(u64, kv_pg_get_time(&row), us));
    cr_assert(eq(u64, kv_pg_get_time(&row), 0));
    cr_assert(kv_pg_get_null(&row));
    cr_assert(eq(sz, kv_pg_get_bytes(&row).len, 0));
    cr_assert(eq(int, kv_pg_row_check(&row, &info), KV_OK));
    /* One column too few read, and one too many. */
    row = kv_pg_row_of(result, 0);
    kv_pg_get_i64(&row);
    cr_assert(eq(int, kv_pg_row_check(&row, &info), KV_E_CORRUPT));
    row.column = 9;
    kv_pg_get_i64(&row);
    cr_assert(eq(int, kv_pg_row_check(&row, &info), KV_E_CORRUPT));
    /* A value that does not fit. */
    row = kv_pg_row_of(result, 0);
    row.column = 3;
    char small[4];
    kv_pg_get_text(&row, small, sizeof small);
    cr_assert(row.failed);
    PQclear(result);
    kv_pg_close(pg);
}

Test(pg, nul_and_bad_utf8_in_text_are_the_caller_s_mistake)
{
    struct kv_pg *pg = temp_postgres_connect(temp_postgres_url(), "test");
    struct kv_errinfo info = {0};
    static const struct kv_pg_query echo = {"t_text", "SELECT $1"};
    struct kv_pg_args args = {0};
    kv_pg_arg_text(&args, "\xff\xfe");
    PGresult *result = NULL;
    cr_assert(eq(int, kv_pg_read(pg, &echo, &args, &info, &result), KV_E_INVALID_REQUEST));
    kv_pg_close(pg);
}

static char folder[] = "/tmp/kvtest-stop-XXXXXX";

static struct kv_private_cluster *start_own(void)
{
    struct kv_private_cluster *cluster = NULL;
    struct kv_errinfo info = {0};
    struct kv_private_cluster_conf conf = {.folder = folder, .throwaway = true, .env = &kv_env_system};
    cr_assert(eq(int, kv_private_cluster_start(&conf, &info, &cluster), KV_OK), "%s", info.text);
    return cluster;
}

static void remove_folder(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    cr_assert(eq(int, system(command), 0));
}

static void make_folder(void)
{
    cr_assert(mkdtemp(folder) != NULL && chmod(folder, 0755) == 0);
}

static uint64_t ms_between(const struct timespec *a, const struct timespec *b)
{
    return (uint64_t)((b->tv_sec - a->tv_sec) * 1000 + (b->tv_nsec - a->tv_nsec) / 1000000);
}

Test(pg, stopped_database_is_unavailable_and_heals_soon_after_its_start)
{
    make_folder();
    struct kv_private_cluster *cluster = start_own();
    /* The socket's folder changes with each start; a link gives it one name. */
    char link_path[64], url[160];
    snprintf(link_path, sizeof link_path, "%s/link", folder);
    snprintf(url, sizeof url, "host=%s user=kvrun dbname=postgres", link_path);
    char target[80] = {0};
    cr_assert(eq(int, sscanf(kv_private_cluster_url(cluster), "host=%79s", target), 1));
    cr_assert(eq(int, symlink(target, link_path), 0));
    struct kv_pg *pg = temp_postgres_connect(url, "test");
    kv_private_cluster_stop(cluster, KV_PRIVATE_STOP_MS);

    struct kv_errinfo info = {0};
    cr_assert(eq(int, kv_pg_ping(pg, &info), KV_E_DB_UNAVAILABLE));
    for (int i = 0; i < 100; i++) {
        cr_assert(eq(int, kv_pg_ping(pg, &info), KV_E_DB_UNAVAILABLE));
        wait_a_little();
    }
    struct kv_pg_stats stats;
    kv_pg_stats(pg, &stats);
    cr_assert(lt(u64, stats.connect_failures, 10));

    cluster = start_own();
    cr_assert(eq(int, sscanf(kv_private_cluster_url(cluster), "host=%79s", target), 1));
    cr_assert(eq(int, unlink(link_path), 0));
    cr_assert(eq(int, symlink(target, link_path), 0));
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    enum kv_err rc = KV_E_DB_UNAVAILABLE;
    for (int i = 0; i < 500 && rc != KV_OK; i++) {
        rc = kv_pg_ping(pg, &info);
        wait_a_little();
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    cr_assert(eq(int, rc, KV_OK));
    cr_assert(lt(u64, ms_between(&start, &end), 2500));
    kv_pg_close(pg);
    kv_private_cluster_stop(cluster, KV_PRIVATE_STOP_MS);
    remove_folder();
}

Test(pg, server_that_stops_answering_is_a_lost_connection_not_a_hang)
{
    make_folder();
    struct kv_private_cluster *cluster = start_own();
    struct kv_pg *pg = NULL;
    struct kv_errinfo info = {0};
    struct kv_pg_conf conf = {
        .url = kv_private_cluster_url(cluster), .statement_timeout_ms = 200, .env = &kv_env_system};
    cr_assert(eq(int, kv_pg_open(&conf, &info, &pg), KV_OK));
    cr_assert(eq(int, kv_pg_ping(pg, &info), KV_OK));
    pid_t backend = PQbackendPID(pg->conn);
    kill(kv_private_cluster_pid(cluster), SIGSTOP);
    kill(backend, SIGSTOP);
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    cr_assert(eq(int, kv_pg_ping(pg, &info), KV_E_DB_UNAVAILABLE));
    clock_gettime(CLOCK_MONOTONIC, &end);
    cr_assert(lt(u64, ms_between(&start, &end), 6500));
    kill(backend, SIGCONT);
    kill(kv_private_cluster_pid(cluster), SIGCONT);
    enum kv_err rc = KV_E_DB_UNAVAILABLE;
    for (int i = 0; i < 500 && rc != KV_OK; i++) {
        rc = kv_pg_ping(pg, &info);
        wait_a_little();
    }
    cr_assert(eq(int, rc, KV_OK));
    kv_pg_close(pg);
    kv_private_cluster_stop(cluster, KV_PRIVATE_STOP_MS);
    remove_folder();
}
