/*
 * Builds the service bottom-up and takes it down in reverse: keys, journal, engine, database, root of erasure, threads.
 * Must never start half: a failure leaves nothing running.
 */
#include "server/service/erase_request.h"
#include "server/service/janitor.h"
#include "server/service/operation_run.h"
#include "server/service/svc_int.h"

#include "dataplane/base/check.h"
#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "dataplane/base/log.h"
#include "dataplane/base/mem.h"
#include "dataplane/crypto/hash.h"
#include "dataplane/crypto/selftest.h"
#include "server/service/svc_metrics.h"
#include "server/service/svc_rules.h"
#include "server/store/migrate.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define START_WAIT_NS (30 * KV_S_NS) /* for the database to answer */
/* Longer than any wait of theirs: connecting, a statement and its grace, a few of them in one renewal. */
#define ALIVE_NS (45 * KV_S_NS)
#define IDLE_TX_MIN_MS UINT64_C(2000)
#define IDLE_TX_MAX_MS UINT64_C(30000)
#define SHIP_ROUNDS 16
#define DRAIN_WAIT_NS (3 * KV_S_NS)
#define SECRETS_RESERVED ((size_t)4096)
#define SECRETS_PER_SESSION ((size_t)2)

KV_RC svc_pg_open(struct kv_svc *svc, const char *name, struct kv_errinfo *info, struct kv_pg **ret_pg)
{
    /* A process that stops in the middle of a transaction holds nobody up for longer than its lease. */
    uint64_t idle_ms = svc->conf.lease_ns / KV_MS_NS;
    idle_ms = idle_ms < IDLE_TX_MIN_MS ? IDLE_TX_MIN_MS : idle_ms > IDLE_TX_MAX_MS ? IDLE_TX_MAX_MS : idle_ms;
    struct kv_pg_conf conf = {.url = svc->conf.db_url,
                              .application_name = name,
                              .statement_timeout_ms = svc->conf.db_statement_timeout_ms,
                              .lock_timeout_ms = svc->conf.db_lock_timeout_ms,
                              .idle_timeout_ms = (uint32_t)idle_ms,
                              .prepare = svc->conf.db_prepare,
                              .token = &svc->token,
                              .env = svc->env};
    return kv_pg_open(&conf, info, ret_pg);
}

KV_RC svc_may_work(struct kv_svc *svc, struct kv_errinfo *info)
{
    if (atomic_load(&svc->stopping)) {
        return kv_fail(info, KV_E_SHUTTING_DOWN, "the server is stopping; try another one or again after its start");
    }
    const char *quarantine = atomic_load(&svc->quarantine);
    if (quarantine != NULL) {
        return kv_fail(info, KV_E_QUARANTINED, "%s", quarantine);
    }
    return KV_OK;
}

void svc_quarantine(struct kv_svc *svc, const char *static_reason)
{
    const char *none = NULL;
    if (atomic_compare_exchange_strong(&svc->quarantine, &none, static_reason)) {
        kv_log(KV_LOG_ERROR, "service", "quarantined", KV_FT("reason", static_reason));
        if (svc->keyring != NULL) {
            kv_keyring_set_lease(svc->keyring, 0);
            kv_keyring_wipe(svc->keyring);
        }
        if (svc->tree != NULL) {
            kv_ktree_purge(svc->tree);
        }
    }
}

bool svc_sleep(struct kv_svc *svc, uint64_t ns)
{
    struct timespec until = kv_timespec_of(kv_now_ns(svc->env) + ns);
    pthread_mutex_lock(&svc->wake_mutex);
    while (!atomic_load(&svc->stopping) &&
           pthread_cond_timedwait(&svc->stopping_wake, &svc->wake_mutex, &until) != ETIMEDOUT) {
    }
    pthread_mutex_unlock(&svc->wake_mutex);
    return atomic_load(&svc->stopping);
}

KV_RC kv_call_init(struct kv_svc *svc, struct kv_call *ret_call)
{
    struct kv_call call = {.svc = svc};
    KV_TRY(svc_pg_open(svc, "kvrun/service", &call.info, &call.pg));
    *ret_call = call;
    return KV_OK;
}

void kv_call_from_memory(struct kv_svc *svc, struct kv_call *ret_call)
{
    *ret_call = (struct kv_call){.svc = svc, .from_memory = true};
}

enum kv_err svc_not_in_memory(struct kv_call *call)
{
    call->missing = true;
    return KV_E_STALE;
}

void kv_call_done(struct kv_call *call)
{
    kv_pg_close(call->pg);
    call->pg = NULL;
}

void kv_call_reset(struct kv_call *call)
{
    struct kv_pg_stats stats;
    kv_pg_stats(call->pg, &stats);
    *call = (struct kv_call){.svc = call->svc, .pg = call->pg, .db_before_ns = stats.wait_ns};
}

uint64_t kv_call_db_ns(const struct kv_call *call)
{
    struct kv_pg_stats stats;
    if (call->from_memory) {
        return 0;
    }
    kv_pg_stats(call->pg, &stats);
    return stats.wait_ns - call->db_before_ns;
}

/* --- start ------------------------------------------------------------------------------------------------------- */

static void init_locks(struct kv_svc *svc)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&svc->eraser_wake, &attr);
    pthread_cond_init(&svc->janitor_wake, &attr);
    pthread_cond_init(&svc->operation_wake, &attr);
    pthread_cond_init(&svc->stopping_wake, &attr);
    pthread_cond_init(&svc->opening_ended, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&svc->registry_mutex, NULL);
    pthread_mutex_init(&svc->roe_mutex, NULL);
    pthread_mutex_init(&svc->sequencer_mutex, NULL);
    pthread_mutex_init(&svc->wake_mutex, NULL);
    pthread_mutex_init(&svc->peers_mutex, NULL);
}

/* The instance's identity belongs to its journal: sequence numbers are counted for it. `fresh` replaces it. */
static KV_RC load_instance_id(struct kv_svc *svc, bool fresh, struct kv_errinfo *info)
{
    char path[1100], text[KV_ID_TEXT_SIZE + 2] = "";
    if (snprintf(path, sizeof path, "%s/instance.id", svc->conf.state_folder) >= (int)sizeof path) {
        return kv_fail(info, KV_E_CONFIG, "state.dir is too long");
    }
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        return kv_fail(info, KV_E_IO, "cannot open instance.id in the state folder: %s", strerror(errno));
    }
    ssize_t n = fresh ? 0 : pread(fd, text, sizeof text - 1, 0);
    enum kv_err rc = KV_OK;
    if (n == 0) {
        rc = kv_id_new(svc->env, &svc->instance);
        kv_id_text("ins", &svc->instance, text);
        if (rc == KV_OK && (pwrite(fd, text, strlen(text), 0) != (ssize_t)strlen(text) || fsync(fd) != 0)) {
            rc = kv_fail(info, KV_E_IO, "cannot write instance.id in the state folder: %s", strerror(errno));
        }
    } else {
        text[n < 0 ? 0 : n] = '\0';
        rc = kv_id_parse("ins", text, &svc->instance);
        if (rc != KV_OK) {
            rc = kv_fail(info, KV_E_CORRUPT,
                         "instance.id in the state folder is damaged; restore it, or use a fresh state folder");
        }
    }
    close(fd);
    return rc;
}

static KV_RC load_sign_keys(struct kv_svc *svc, struct kv_errinfo *info)
{
    char path[1100];
    snprintf(path, sizeof path, "%s/sign-certificate.key", svc->conf.state_folder);
    KV_TRY(kv_sign_key_load_or_create(svc->env, path, info, &svc->cert_key));
    snprintf(path, sizeof path, "%s/sign-log.key", svc->conf.state_folder);
    KV_TRY(kv_sign_key_load_or_create(svc->env, path, info, &svc->log_key));
    uint8_t keys[64];
    kv_sign_public(svc->cert_key, keys);
    kv_sign_public(svc->log_key, keys + 32);
    return kv_sha256(KV_BYTES(keys, sizeof keys), svc->keys_sha256);
}

/* As many sessions as have room beside what the tree, the root and running requests need: without that reserve open
 * sessions could keep an erasure from getting the memory for its keys. */
static KV_RC make_keyring(struct kv_svc *svc, struct kv_errinfo *info)
{
    size_t secrets = kv_secret_arena_capacity();
    if (secrets < SECRETS_RESERVED + SECRETS_PER_SESSION) {
        return kv_fail(info, KV_E_NO_MEMORY, "there is no memory for keys");
    }
    size_t sessions = (secrets - SECRETS_RESERVED) / SECRETS_PER_SESSION;
    svc->keys_max = sessions < (size_t)KV_MAX_SESSIONS_OPEN ? sessions : (size_t)KV_MAX_SESSIONS_OPEN;
    return kv_keyring_new(svc->env, svc->keys_max, &svc->keyring);
}

static KV_RC start_local(struct kv_svc *svc, struct kv_errinfo *info)
{
    KV_TRY(kv_crypto_selftest(info));
    if (mkdir(svc->conf.state_folder, 0700) != 0 && errno != EEXIST) {
        return kv_fail(info, KV_E_IO,
                       "cannot make the state folder: %s; set state.dir to a folder that this user may write",
                       strerror(errno));
    }
    KV_TRY(load_instance_id(svc, false, info));
    KV_TRY(kv_id_new(svc->env, &svc->incarnation));
    KV_TRY(kv_events_new(svc->env, &svc->incarnation, (size_t)KV_MAX_EVENTS_RING, &svc->events));
    KV_TRY(load_sign_keys(svc, info));
    KV_TRY(make_keyring(svc, info));
    KV_TRY(svc_provider_follow(svc, svc->conf.root_provider, info));
    KV_TRY(svc_anchor_open(svc, info));

    char folder[1100];
    snprintf(folder, sizeof folder, "%s/journal", svc->conf.state_folder);
    struct kv_journal_conf journal = {.folder = folder,
                                      .bytes_max = svc->conf.journal_bytes_max,
                                      .lag_max_ns = svc->conf.journal_lag_max_ns,
                                      .env = svc->env};
    KV_TRY(kv_journal_open(&journal, info, &svc->journal));
    return KV_OK;
}

/* Taking hold of much memory, and reading back what nvme has, takes its time: after whatever can fail at once, and
 * after the database has answered. */
static KV_RC start_engine(struct kv_svc *svc, struct kv_errinfo *info)
{
    kv_log(KV_LOG_INFO, "service", "opening-tiers", KV_FU("dram_bytes", svc->conf.engine.dram_bytes),
           KV_FU("nvme_bytes", svc->conf.engine.nvme_bytes));
    svc->conf.engine.keyring = svc->keyring;
    svc->conf.engine.sink = kv_journal_sink(svc->journal);
    svc->conf.engine.env = svc->env;
    KV_TRY(kv_engine_start(&svc->conf.engine, info, &svc->engine));
    struct kv_engine_stats stats;
    kv_engine_stats(svc->engine, &stats);
    svc->conf.engine.staging_bytes = stats.block_bytes_max; /* what the arena can hold, not what was asked for */
    return KV_OK;
}

static KV_RC wait_for_database(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info)
{
    uint64_t wait = svc->conf.db_start_wait_ns != 0 ? svc->conf.db_start_wait_ns : START_WAIT_NS;
    uint64_t deadline = kv_now_ns(svc->env) + wait;
    enum kv_err rc = kv_pg_ping(pg, info);
    for (bool said = false; rc == KV_E_DB_UNAVAILABLE && kv_now_ns(svc->env) < deadline; rc = kv_pg_ping(pg, info)) {
        if (!said) {
            kv_log(KV_LOG_WARN, "service", "waiting-for-database", KV_FT("text", info->text));
            said = true;
        }
        if (svc->conf.cancelled != NULL && svc->conf.cancelled()) {
            return kv_fail(info, KV_E_SHUTTING_DOWN, "ended while it waited for the database");
        }
        struct timespec pause = {.tv_nsec = 100 * 1000 * 1000};
        nanosleep(&pause, NULL);
    }
    return rc == KV_E_DB_UNAVAILABLE
               ? kv_fail(info, rc,
                         "no PostgreSQL answered at db.url within %u s: start it there, correct db.url, or leave "
                         "db.url empty for a private one; the log's database_unreachable line says why",
                         (unsigned)(wait / KV_S_NS))
               : rc;
}

struct cluster_tx {
    struct kv_svc *svc;
    struct kv_id cluster;
};

static KV_RC cluster_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct cluster_tx *tx = ctx;
    struct kv_id fresh;
    KV_TRY(kv_id_new(tx->svc->env, &fresh));
    KV_TRY(kv_store_cluster_ensure(pg, &fresh, info, &tx->cluster));
    return svc_cursor_key(tx->svc, pg, info);
}

struct shipped_tx {
    struct kv_svc *svc;
    uint64_t seq;
};

static KV_RC shipped_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct shipped_tx *tx = ctx;
    return kv_store_journal_lock(pg, &tx->svc->instance, info, &tx->seq);
}

/* A journal that is behind what was shipped of it was lost: its numbers start again, and under the old identity they
 * would pass for records that are in the database already. */
static KV_RC check_journal(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info)
{
    struct kv_journal_stats stats;
    struct shipped_tx tx = {.svc = svc};
    kv_journal_stats(svc->journal, &stats);
    KV_TRY(kv_pg_tx(pg, KV_TX_JOURNAL_CHECK, shipped_tx, &tx, info, NULL));
    if (stats.last_seq >= tx.seq) {
        return KV_OK;
    }
    kv_log(KV_LOG_WARN, "service", "journal-lost", KV_FU("shipped", tx.seq), KV_FU("found", stats.last_seq));
    return load_instance_id(svc, true, info);
}

static KV_RC start_database(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info)
{
    KV_TRY(kv_migrate(pg, svc->conf.migrate_auto ? KV_MIGRATE_AUTO : KV_MIGRATE_CHECK, info, NULL));
    atomic_store(&svc->migrated, true);
    struct cluster_tx tx = {.svc = svc};
    KV_TRY(kv_pg_tx(pg, KV_TX_CLUSTER, cluster_tx, &tx, info, NULL));
    svc->cluster = tx.cluster;
    char text[KV_ID_TEXT_SIZE];
    kv_id_text("clu", &svc->cluster, text);
    snprintf(svc->issuer, sizeof svc->issuer, "kvrun:%s", text);
    KV_TRY(kv_ktree_new(svc->env, &svc->cluster, &svc->tree));
    KV_TRY(check_journal(svc, pg, info));
    KV_TRY(svc_lease_join(svc, pg, info));
    return svc_root_start(svc, pg, info);
}

static KV_RC start_thread(struct kv_svc *svc, struct svc_thread *thread, const char *name, void *(*run)(void *),
                          struct kv_errinfo *info)
{
    char application[40];
    snprintf(application, sizeof application, "kvrun/%s", name);
    KV_TRY(svc_pg_open(svc, application, info, &thread->pg));
    if (thread == &svc->lease) {
        kv_pg_set_token(thread->pg, NULL); /* the token is made with this one */
    }
    if (pthread_create(&thread->thread, NULL, run, svc) != 0) {
        return kv_fail(info, KV_E_NO_MEMORY, "cannot start a thread");
    }
    thread->started = true;
    char short_name[16];
    snprintf(short_name, sizeof short_name, "kv-%s", name);
    pthread_setname_np(thread->thread, short_name);
    return KV_OK;
}

static KV_RC start_threads(struct kv_svc *svc, struct kv_errinfo *info)
{
    KV_TRY(start_thread(svc, &svc->lease, "lease", svc_lease_main, info));
    KV_TRY(start_thread(svc, &svc->sequencer, "sequencer", svc_sequencer_main, info));
    KV_TRY(start_thread(svc, &svc->eraser, "eraser", svc_eraser_main, info));
    KV_TRY(start_thread(svc, &svc->janitor, "janitor", svc_janitor_main, info));
    KV_TRY(start_thread(svc, &svc->operations, "operations", svc_operations_main, info));
    svc->listener_stop = eventfd(0, EFD_CLOEXEC);
    if (svc->listener_stop < 0) {
        return kv_fail(info, KV_E_NO_MEMORY, "no descriptor is left for the listener: raise the limit (ulimit -n)");
    }
    KV_TRY(start_thread(svc, &svc->listener, "listener", svc_listener_main, info));
    KV_TRY(svc_fd_socket_open(svc, info));
    return start_thread(svc, &svc->fd_socket, "fd-socket", svc_fd_socket_main, info);
}

static KV_RC start(struct kv_svc *svc, struct kv_errinfo *info)
{
    KV_TRY(start_local(svc, info));
    struct kv_pg *pg = NULL;
    KV_TRY(svc_pg_open(svc, "kvrun/start", info, &pg));
    enum kv_err rc = wait_for_database(svc, pg, info);
    rc = rc == KV_OK ? start_engine(svc, info) : rc;
    rc = rc == KV_OK ? svc_metrics_start(svc) : rc;
    rc = rc == KV_OK ? start_database(svc, pg, info) : rc;
    if (rc == KV_OK && atomic_load(&svc->quarantine) == NULL) {
        rc = svc_arena_start(svc, pg, info);
        rc = rc == KV_OK ? svc_clean_start(svc, pg, info) : rc;
    }
    kv_pg_close(pg);
    KV_TRY(rc);
    return start_threads(svc, info);
}

KV_RC kv_svc_start(const struct kv_svc_conf *conf, struct kv_errinfo *info, struct kv_svc **ret_svc)
{
    struct kv_svc *svc = kv_alloc(sizeof *svc);
    if (svc == NULL) {
        return KV_E_NO_MEMORY;
    }
    svc->conf = *conf;
    svc->conf.erase_batch_max = conf->erase_batch_max == 0 ? KV_ERASE_BATCH : conf->erase_batch_max;
    svc->env = conf->env;
    svc->started_us = conf->env->realtime_us(conf->env->ctx);
    svc->fd_listener = svc->fd_stop = svc->listener_stop = -1;
    atomic_store(&svc->root_ok, true);
    atomic_store(&svc->anchor_ok, true);
    svc->nvme_up = true;
    snprintf(svc->log_prefix, sizeof svc->log_prefix, "%.150s/audit", conf->host_name);
    init_locks(svc);
    kv_idmap_init(&svc->sessions);
    kv_idmap_init(&svc->engines);
    kv_idmap_init(&svc->pools);
    kv_idmap_init(&svc->rules);
    kv_idmap_init(&svc->known_keys);
    kv_idmap_init(&svc->moved);
    uint64_t good_ns = (uint64_t)KV_MAX_SESSION_VIEW_MS * KV_MS_NS;
    good_ns = good_ns < conf->lease_ns ? good_ns : conf->lease_ns;
    enum kv_err rc = svc_views_new(svc->env, good_ns, (size_t)KV_MAX_SESSION_VIEWS, &svc->views);
    if (rc == KV_OK) {
        rc = svc_rules_start(svc);
    }
    if (rc == KV_OK) {
        rc = start(svc, info);
    }
    if (rc != KV_OK) {
        KV_IGNORE(kv_svc_stop(svc), "what failed first is what is reported");
        return rc;
    }
    *ret_svc = svc;
    return KV_OK;
}

/* --- stop -------------------------------------------------------------------------------------------------------- */

static void stop_thread(struct svc_thread *thread)
{
    if (thread->started) {
        pthread_join(thread->thread, NULL);
    }
    kv_pg_close(thread->pg);
    *thread = (struct svc_thread){0};
}

static void free_values(struct kv_idmap *map)
{
    size_t position = 0;
    for (void *value = kv_idmap_next(map, &position); value != NULL; value = kv_idmap_next(map, &position)) {
        kv_free(value);
    }
    kv_idmap_done(map);
}

void kv_svc_retire(struct kv_svc *svc)
{
    atomic_store(&svc->retiring, true);
}

bool kv_svc_alive(struct kv_svc *svc)
{
    uint64_t now = kv_now_ns(svc->env), lease = atomic_load(&svc->lease_turn_ns),
             lane = kv_engine_last_turn_ns(svc->engine);
    return now < lease + ALIVE_NS && now < lane + ALIVE_NS && !KV_FAULT("service/alive");
}

void kv_svc_begin_stop(struct kv_svc *svc)
{
    pthread_mutex_lock(&svc->wake_mutex);
    atomic_store(&svc->stopping, true);
    pthread_cond_broadcast(&svc->stopping_wake);
    pthread_cond_broadcast(&svc->eraser_wake);
    pthread_cond_broadcast(&svc->janitor_wake);
    pthread_cond_broadcast(&svc->operation_wake);
    pthread_mutex_unlock(&svc->wake_mutex);
    if (svc->listener_stop >= 0) {
        int full = eventfd_write(svc->listener_stop, 1);
        KV_ASSERT(full == 0); /* nobody else writes to it */
    }
}

static KV_RC stop_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct kv_svc *svc = ctx;
    struct kv_audit_event event = {
        .op = KV_AUDIT_INSTANCE_STOP, .actor_role = "system", .subject = svc->instance, .subject_prefix = "ins"};
    return svc_audit(svc, pg, &event, KV_BYTES(NULL, 0), info);
}

/* With the lease's connection, whose thread has ended. In quarantine this may be the wrong database. */
static void record_stop(struct kv_svc *svc)
{
    struct kv_errinfo info = {0};
    if (svc->lease.pg != NULL) {
        kv_pg_set_token(svc->lease.pg, &svc->token);
    }
    if (svc->sequencer.started && svc->lease.pg != NULL && atomic_load(&svc->quarantine) == NULL) {
        enum kv_err rc = kv_pg_tx(svc->lease.pg, KV_TX_INSTANCE_STOP, stop_tx, svc, &info, NULL);
        if (rc != KV_OK) {
            kv_log(KV_LOG_WARN, "service", "stop-not-recorded", KV_FRC(rc), KV_FT("text", info.text));
        }
    }
}

/* What the sequencer's thread did not come to, this stop's own entry among it. What is left now is shipped at the next
 * start. */
static void ship_the_rest(struct kv_svc *svc)
{
    size_t done = 1;
    bool may = svc->lease.pg != NULL && kv_pg_connected(svc->lease.pg) && atomic_load(&svc->quarantine) == NULL;
    for (int i = 0; may && i < SHIP_ROUNDS && done > 0; i++) {
        struct kv_errinfo info = {0};
        done = 0;
        KV_IGNORE(svc_sequence(svc, svc->lease.pg, &info, &done), "it is in the database, only not in the tree yet");
    }
}

KV_RC kv_svc_stop(struct kv_svc *svc)
{
    kv_svc_begin_stop(svc);
    svc_metrics_stop(svc);
    svc_fd_socket_close(svc);
    stop_thread(&svc->fd_socket);
    stop_thread(&svc->operations);
    stop_thread(&svc->janitor);
    stop_thread(&svc->listener);
    if (svc->listener_stop >= 0) {
        close(svc->listener_stop);
    }
    stop_thread(&svc->eraser);
    svc_lease_stop(svc);
    enum kv_err rc = KV_OK;
    if (svc->engine != NULL) {
        rc = kv_engine_stop(svc->engine); /* its last records go to the journal */
    }
    if (svc->sequencer.started) {
        KV_IGNORE(kv_journal_drain(svc->journal, kv_now_ns(svc->env) + DRAIN_WAIT_NS),
                  "what is not shipped now is shipped at the next start");
    }
    record_stop(svc);
    atomic_store(&svc->sequencer_stop, true);
    stop_thread(&svc->sequencer);
    ship_the_rest(svc);
    if (svc->journal != NULL) {
        kv_journal_close(svc->journal);
    }
    svc_lease_leave(svc);
    svc_engines_done(svc);
    free_values(&svc->sessions);
    free_values(&svc->known_keys);
    free_values(&svc->moved);
    svc_rules_done(svc);
    svc_views_free(svc->views);
    kv_ktree_free(svc->tree);
    kv_keyring_free(svc->keyring);
    svc_providers_close(svc);
    svc_anchor_close(svc);
    kv_sign_key_free(svc->cert_key);
    kv_secret_free(svc->cursor_key);
    kv_sign_key_free(svc->log_key);
    kv_events_free(svc->events);
    svc_metrics_free(svc);
    kv_free(svc);
    return rc;
}

/* --- what operators see ------------------------------------------------------------------------------------------ */

void kv_svc_stats(struct kv_svc *svc, struct kv_engine_stats *ret_stats)
{
    kv_engine_stats(svc->engine, ret_stats);
}

bool kv_svc_ready(struct kv_svc *svc, struct kv_ready_check ret_checks[KV_READY_CHECKS])
{
    struct kv_journal_stats journal;
    struct kv_engine_stats engine;
    kv_journal_stats(svc->journal, &journal);
    kv_engine_stats(svc->engine, &engine);
    const char *quarantine = atomic_load(&svc->quarantine);
    bool root = atomic_load(&svc->root_ok), anchor = atomic_load(&svc->anchor_ok);
    bool db = atomic_load(&svc->db_ok), lease = kv_keyring_lease_valid(svc->keyring),
         stopping = atomic_load(&svc->stopping) || atomic_load(&svc->retiring);
    struct kv_ready_check checks[KV_READY_CHECKS] = {
        {"db", db, db ? "" : "the database does not answer; transfers go on until the lease runs out"},
        {"migrations", atomic_load(&svc->migrated), ""},
        {"root_key", quarantine == NULL && root,
         quarantine != NULL ? quarantine
         : root             ? ""
                            : "the root of erasure cannot be read; erasures wait for it"},
        {"anchor", anchor,
         anchor ? "" : "the anchor cannot be written; erasures go on, but certificates wait: see anchor.file"},
        {"audit", journal.ok, journal.ok ? "" : "transfer records cannot be written or are too far behind"},
        {"lease", lease, lease ? "" : "the instance's lease ran out; keys are closed"},
        {"tiers", engine.nvme.up || engine.nvme.capacity_bytes == 0,
         engine.nvme.reason == NULL ? "" : engine.nvme.reason},
        {"shutdown", !stopping, stopping ? "the server is stopping" : ""},
    };
    bool all = true;
    for (int i = 0; i < KV_READY_CHECKS; i++) {
        ret_checks[i] = checks[i];
        all = all && checks[i].ok;
    }
    return all;
}

void kv_svc_about(struct kv_svc *svc, struct kv_about *ret_about)
{
    struct kv_engine_stats stats;
    kv_engine_stats(svc->engine, &stats);
    *ret_about = (struct kv_about){.cluster = svc->cluster,
                                   .instance = svc->instance,
                                   .engine_socket = svc->conf.engine_socket,
                                   .fd_socket = svc->conf.fd_socket,
                                   .io_name = stats.io_name,
                                   .cipher_name = stats.cipher_name,
                                   .root_provider = svc->roe->ops->name,
                                   .block_bytes_max = svc->conf.engine.staging_bytes};
}
