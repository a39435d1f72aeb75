/*
 * A throw-away PostgreSQL for one test executable: started once before its tests, ended after them, nothing left
 * behind. A test file that needs it says TEMP_POSTGRES_HOOKS once, outside of any function. Without PostgreSQL the
 * executable exits 77.
 */
#ifndef KV_TESTS_TEMP_POSTGRES_H
#define KV_TESTS_TEMP_POSTGRES_H

#include "server/store/pg.h"

/* Connection string of a fresh database of the caller's own; with the schema in it, or empty. Valid until the test
 * ends. */
const char *temp_postgres_url(void);
const char *temp_postgres_empty_url(void);
/* An open connection to `url`; the test closes it. Fails the process when it cannot. */
struct kv_pg *temp_postgres_connect(const char *url, const char *name);

/* Runs SQL as it is; for what tests have to do behind the store's back. */
enum kv_err temp_postgres_run(struct kv_pg *pg, const char *sql);

/* One statement of the store in a transaction of its own: committed when it is KV_OK. */
void temp_postgres_begin(struct kv_pg *pg);
enum kv_err temp_postgres_end(struct kv_pg *pg, enum kv_err rc);
#define IN_TX(pg, expr) (temp_postgres_begin(pg), temp_postgres_end((pg), (expr)))

void temp_postgres_start(void); /* exits 77; the end of the process that called it ends the cluster */

#define TEMP_POSTGRES_HOOKS                                \
    ReportHook(PRE_ALL)(struct criterion_test_set * tests) \
    {                                                      \
        (void)tests;                                       \
        temp_postgres_start();                             \
    }

#endif
