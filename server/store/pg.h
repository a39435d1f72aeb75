/*
 * One connection to PostgreSQL and the transactions on it. The only way of this project to the database.
 * Connects lazily, heals by itself after any loss, and never waits longer than a few seconds. Statements are prepared
 * and named; parameters never become part of a statement's text. Nothing here decides anything about sessions or keys.
 *
 * Thread: a connection belongs to the one thread that uses it. No transaction may wait for the engine.
 */
#ifndef KV_STORE_PG_H
#define KV_STORE_PG_H

#include "dataplane/base/buf.h"
#include "dataplane/base/env.h"

struct kv_pg;

enum kv_pg_prepare {
    KV_PG_PREPARE_AUTO, /* as OFF where a pooler stands in between, else as ON */
    KV_PG_PREPARE_ON,   /* settings belong to the session, statements are prepared once a connection */
    KV_PG_PREPARE_OFF,  /* nothing outlives a transaction: works behind a pooler in transaction mode */
};

/* In whose name a connection works: every transaction of it ends with KV_E_LEASE_EXPIRED when the instance's row has
 * another incarnation by then, or is past its end; and the next incarnation begins only when those under way have
 * ended. `incarnation` 0: nobody's yet. */
struct kv_pg_token {
    struct kv_id instance;
    _Atomic int64_t incarnation;
};

struct kv_pg_conf {
    const char *url;               /* postgresql://… or key=value words; never logged, it may hold a password */
    const char *application_name;  /* what pg_stat_activity shows, "kvrun/service-2"; NULL: "kvrun" */
    uint32_t statement_timeout_ms; /* 0: 5,000 */
    uint32_t lock_timeout_ms;      /* 0: 2,000 */
    uint32_t idle_timeout_ms;      /* PostgreSQL ends a transaction that does nothing for so long; 0: 30,000 */
    enum kv_pg_prepare prepare;
    const struct kv_pg_token *token; /* borrowed; NULL: none */
    const struct kv_env *env;
};

/* Checks the url, does not connect. KV_E_CONFIG, KV_E_NO_MEMORY. */
KV_RC kv_pg_open(const struct kv_pg_conf *conf, struct kv_errinfo *info, struct kv_pg **ret_pg);
void kv_pg_close(struct kv_pg *pg); /* NULL is fine */
void kv_pg_set_token(struct kv_pg *pg, const struct kv_pg_token *token);

/* Connects if need be and asks for one row. KV_E_DB_UNAVAILABLE. After a failed attempt the next one is made only when
 * a backoff (100 ms doubling to 5 s) has passed; until then every call answers KV_E_DB_UNAVAILABLE at once. */
KV_RC kv_pg_ping(struct kv_pg *pg, struct kv_errinfo *info);
/* The connection is up as far as is known without asking. */
bool kv_pg_connected(const struct kv_pg *pg);
/* Something between here and PostgreSQL hands the server to other clients, too, as far as is known. */
bool kv_pg_pooled(const struct kv_pg *pg);

/* Which transaction it is (tx.def): for logs, metrics and fault points. */
enum kv_tx {
#define KV_TX(name, text) KV_TX_##name,
#include "server/store/tx.def"
#undef KV_TX
    KV_TXS
};
const char *kv_tx_name(enum kv_tx what); /* "lease-renew" */

/* What runs inside a transaction. May be called several times: it starts from the database's state each time and puts
 * nothing outside of it that a second run would not overwrite. An error other than KV_OK rolls back. */
typedef KV_RC (*kv_pg_tx_fn)(struct kv_pg *pg, void *ctx, struct kv_errinfo *info);

/* BEGIN, fn, COMMIT (read committed, synchronous commit). Runs `fn` again, at most KV_PG_TRIES times in all, when
 * PostgreSQL asks for it (serialization failure, deadlock); then KV_E_BUSY. Whatever else `fn` returns is returned
 * after a rollback. KV_E_DB_UNAVAILABLE: the connection was lost. *ret_in_doubt (may be NULL; always set) is true when
 * that happened to COMMIT, so that the transaction may or may not have happened; everything else that is not KV_OK has
 * left nothing behind. `what` names its series, its lines in the log and its fault points, store/<name>/commit (before)
 * and store/<name>/committed (after). No transaction inside a transaction: KV_E_INTERNAL. */
#define KV_PG_TRIES 5
KV_RC kv_pg_tx(struct kv_pg *pg, enum kv_tx what, kv_pg_tx_fn fn, void *ctx, struct kv_errinfo *info,
               bool *ret_in_doubt);
bool kv_pg_in_tx(const struct kv_pg *pg);

/* Puts the metric families of the database there, complete and all zero. */
void kv_pg_metrics_init(void);

struct kv_pg_stats {
    uint64_t connects, connect_failures, losses; /* losses: connections that broke while in use */
    uint64_t commits, rollbacks, retries, in_doubt;
    uint64_t wait_ns; /* in which it waited for the database */
};
void kv_pg_stats(const struct kv_pg *pg, struct kv_pg_stats *ret_stats);

/* Rules for every kv_store_… function:
 *  - one statement (or two); those that write must run inside kv_pg_tx (else KV_E_INTERNAL), those that read may run
 * outside;
 *  - KV_E_DB_UNAVAILABLE no connection · KV_E_DB_FULL its disk is full · KV_E_BUSY a lock or statement
 * timeout, or "run it again" inside a transaction (kv_pg_tx does) · KV_E_STALE what was to be replaced is not what was
 * seen · KV_E_INVALID_STATE a constraint of the schema refused it · KV_E_NOT_FOUND / KV_E_MISSING no such row ·
 * KV_E_CORRUPT a row that cannot be;
 *  - after an error inside a transaction `fn` returns it; going on is not possible, except after KV_E_STALE,
 * KV_E_NOT_FOUND, KV_E_MISSING, KV_E_TENANT_EXISTS and KV_E_TENANT_FULL, which leave the transaction usable;
 *  - times are microseconds since 1970 UTC; 0: none. Ids that are all zero: none. */

#endif
