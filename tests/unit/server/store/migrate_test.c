/* Migrations: once, by many at a time, never backwards, never in another form. */
#include "server/store/migrate.h"

#include "tests/lib/temp_postgres.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

TEMP_POSTGRES_HOOKS

static const struct kv_migration one[] = {{1, "0001_a.sql", "create table a (x integer)"}};
static const struct kv_migration two[] = {{1, "0001_a.sql", "create table a (x integer)"},
                                          {2, "0002_b.sql", "create table b (x integer); insert into b values (1)"}};
static const struct kv_migration changed[] = {{1, "0001_a.sql", "create table a (x bigint)"}};
static const struct kv_migration broken[] = {{1, "0001_a.sql", "create table a (x integer)"},
                                             {2, "0002_b.sql", "create table b (x integer); select nonsense"}};

Test(migrate, second_run_finds_nothing_to_do)
{
    struct kv_pg *pg = temp_postgres_connect(temp_postgres_empty_url(), "test");
    struct kv_errinfo info = {0};
    uint32_t applied = 99;
    cr_assert(eq(int, kv_migrate(pg, KV_MIGRATE_AUTO, &info, &applied), KV_OK), "%s", info.text);
    uint32_t version = kv_schema_version();
    cr_assert(eq(u32, applied, version));
    cr_assert(eq(int, kv_migrate(pg, KV_MIGRATE_AUTO, &info, &applied), KV_OK));
    cr_assert(eq(u32, applied, 0));
    cr_assert(eq(int, kv_migrate(pg, KV_MIGRATE_CHECK, &info, &applied), KV_OK));
    kv_pg_close(pg);
}

Test(migrate, check_of_an_empty_database_says_what_to_run_and_changes_nothing)
{
    struct kv_pg *pg = temp_postgres_connect(temp_postgres_empty_url(), "test");
    struct kv_errinfo info = {0};
    cr_assert(eq(int, kv_migrate(pg, KV_MIGRATE_CHECK, &info, NULL), KV_E_INVALID_STATE));
    cr_assert(strstr(info.text, "run kvrun db migrate") != NULL, "%s", info.text);
    cr_assert(ne(int, temp_postgres_run(pg, "select * from kvrun.schema_version"), KV_OK));
    kv_pg_close(pg);
}

Test(migrate, pending_step_is_refused_by_check_and_applied_by_auto)
{
    struct kv_pg *pg = temp_postgres_connect(temp_postgres_empty_url(), "test");
    struct kv_errinfo info = {0};
    uint32_t applied = 0;
    cr_assert(eq(int, kv_migrate_list(pg, KV_MIGRATE_AUTO, one, 1, &info, &applied), KV_OK));
    cr_assert(eq(int, kv_migrate_list(pg, KV_MIGRATE_CHECK, two, 2, &info, NULL), KV_E_INVALID_STATE));
    cr_assert(eq(int, kv_migrate_list(pg, KV_MIGRATE_AUTO, two, 2, &info, &applied), KV_OK));
    cr_assert(eq(u32, applied, 1));
    kv_pg_close(pg);
}

Test(migrate, newer_schema_is_refused_in_both_modes)
{
    struct kv_pg *pg = temp_postgres_connect(temp_postgres_empty_url(), "test");
    struct kv_errinfo info = {0};
    cr_assert(eq(int, kv_migrate_list(pg, KV_MIGRATE_AUTO, two, 2, &info, NULL), KV_OK));
    cr_assert(eq(int, kv_migrate_list(pg, KV_MIGRATE_AUTO, one, 1, &info, NULL), KV_E_SCHEMA_NEWER));
    cr_assert(strstr(info.text, "version 2") != NULL, "%s", info.text);
    cr_assert(eq(int, kv_migrate_list(pg, KV_MIGRATE_CHECK, one, 1, &info, NULL), KV_E_SCHEMA_NEWER));
    kv_pg_close(pg);
}

Test(migrate, step_that_was_applied_in_another_form_is_refused)
{
    struct kv_pg *pg = temp_postgres_connect(temp_postgres_empty_url(), "test");
    struct kv_errinfo info = {0};
    cr_assert(eq(int, kv_migrate_list(pg, KV_MIGRATE_AUTO, one, 1, &info, NULL), KV_OK));
    cr_assert(eq(int, kv_migrate_list(pg, KV_MIGRATE_AUTO, changed, 1, &info, NULL), KV_E_INVALID_STATE));
    cr_assert(strstr(info.text, "another form") != NULL, "%s", info.text);
    kv_pg_close(pg);
}

Test(migrate, failed_step_leaves_nothing_of_the_run)
{
    struct kv_pg *pg = temp_postgres_connect(temp_postgres_empty_url(), "test");
    struct kv_errinfo info = {0};
    cr_assert(ne(int, kv_migrate_list(pg, KV_MIGRATE_AUTO, broken, 2, &info, NULL), KV_OK));
    cr_assert(ne(int, temp_postgres_run(pg, "select * from kvrun.a"), KV_OK));
    uint32_t applied = 0;
    cr_assert(eq(int, kv_migrate_list(pg, KV_MIGRATE_AUTO, two, 2, &info, &applied), KV_OK), "%s", info.text);
    cr_assert(eq(u32, applied, 2));
    kv_pg_close(pg);
}

Test(migrate, eight_processes_at_once_apply_it_once)
{
    const char *url = temp_postgres_empty_url();
    pid_t pids[8];
    for (int i = 0; i < 8; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            struct kv_errinfo info = {0};
            uint32_t applied = 0;
            struct kv_pg *pg = temp_postgres_connect(url, "racer");
            enum kv_err rc = kv_migrate(pg, KV_MIGRATE_AUTO, &info, &applied);
            kv_pg_close(pg);
            _exit(rc != KV_OK ? 100 : (int)applied);
        }
    }
    int sum = 0;
    for (int i = 0; i < 8; i++) {
        int status = 0;
        waitpid(pids[i], &status, 0);
        bool well = WIFEXITED(status) && WEXITSTATUS(status) != 100;
        cr_assert(well);
        sum += WEXITSTATUS(status);
    }
    int expected = (int)kv_schema_version();
    cr_assert(eq(int, sum, expected));
}
