/*
 * See serve_int.h. A server's life: signals, its private database, the service manager. And its end, in this order:
 * readiness goes, load balancers get shutdown.delay to see it, listeners close, running requests end within the grace,
 * the data plane fences what is left and writes its checkpoint, records are shipped, the end is recorded, the lease is
 * given back, the database goes last. Must never wait without a bound.
 */
#include "server/serve_int.h"

#include "dataplane/base/env.h"
#include "dataplane/base/log.h"
#include "dataplane/base/mem.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WATCH_MS 500
#define PAUSE_NS (20 * 1000 * 1000)
#define DATABASE_LEAST_MS 3000u
#define DATABASE_HARDER_MS 4000u /* what ending it may take beyond the wait */
#define REAP_MAX 64

/* --- while it runs ----------------------------------------------------------------------------------------------- */

/* A private database that ended is started again where it was: its clients heal by themselves. */
static void watch_cluster(struct server *server)
{
    struct kv_errinfo info = {0};
    enum kv_err rc = server->cluster == NULL ? KV_E_BUSY : kv_private_cluster_tend(server->cluster, &info);
    if (rc != KV_E_BUSY) {
        kv_log(rc == KV_OK ? KV_LOG_WARN : KV_LOG_ERROR, "server", "database-revived", KV_FRC(rc),
               KV_FT("text", info.text));
    }
}

/* As a container's first process it is left everybody's orphans. The database's own end is watch_cluster's to see. */
static void reap(const struct server *server)
{
    pid_t own = server->cluster == NULL ? 0 : kv_private_cluster_pid(server->cluster);
    for (int i = 0; i < REAP_MAX; i++) {
        siginfo_t child = {0};
        if (waitid(P_ALL, 0, &child, WEXITED | WNOHANG | WNOWAIT) != 0 || child.si_pid == 0 || child.si_pid == own ||
            waitpid(child.si_pid, NULL, WNOHANG) <= 0) {
            return;
        }
    }
}

static void look_after(struct server *server)
{
    kv_httpd_look_at_tls(server->httpd, false);
    watch_cluster(server);
    reap(server);
    uint64_t now = kv_now_ns(server->env);
    serve_notify_alive(&server->notify, now, kv_svc_alive(server->svc));
}

static void tell_change(void *ctx, const char *key, bool applied)
{
    (void)ctx;
    kv_log(applied ? KV_LOG_INFO : KV_LOG_WARN, "server", applied ? "config-changed" : "config-needs-a-restart",
           KV_FT("key", key));
}

/* What a reload can change goes where it is used. */
static void apply(struct server *server)
{
    const struct kv_conf *conf = server->conf;
    enum kv_log_level level = KV_LOG_INFO;
    struct kv_httpd_rates rates = {.usual = (unsigned)conf->rate_default,
                                   .erase = (unsigned)conf->rate_erase,
                                   .peer = (unsigned)conf->rate_public,
                                   .stranger = (unsigned)conf->rate_unauthenticated};
    kv_httpd_set_rates(server->httpd, &rates);
    kv_httpd_look_at_tls(server->httpd, true);
    if (kv_log_parse_level(conf->log_level, &level) == KV_OK) {
        kv_log_set_level(level);
    }
}

/* All or nothing: a file that does not load changes nothing. */
static void reload(struct server *server)
{
    struct kv_errinfo info = {0};
    serve_notify_reloading(&server->notify);
    struct kv_conf *fresh = kv_alloc(sizeof *fresh);
    enum kv_err rc = fresh == NULL ? KV_E_NO_MEMORY : server->serve->load(fresh, NULL, &info);
    if (rc == KV_OK) {
        kv_log_set_level(KV_LOG_INFO); /* what changes is said, whatever the level was and will be */
        pthread_mutex_lock(&server->conf_mutex);
        size_t applied = kv_conf_reload(server->conf, fresh, tell_change, NULL);
        pthread_mutex_unlock(&server->conf_mutex);
        kv_log(KV_LOG_INFO, "server", "config-reloaded", KV_FU("changed", applied));
        apply(server);
    } else {
        kv_log(KV_LOG_ERROR, "server", "config-not-reloaded", KV_FRC(rc), KV_FT("text", info.text));
    }
    kv_free(fresh);
    serve_notify_send(&server->notify, "READY=1\nSTATUS=%s",
                      rc == KV_OK ? "serving" : "serving with the old configuration: the new one does not load");
}

static void log_status(const struct server *server)
{
    struct kv_ready_check checks[KV_READY_CHECKS];
    bool ready = kv_svc_ready(server->svc, checks);
    kv_log(KV_LOG_INFO, "server", "status", KV_FB("ready", ready), KV_FB("alive", kv_svc_alive(server->svc)));
    for (int i = 0; i < KV_READY_CHECKS; i++) {
        if (!checks[i].ok) {
            kv_log(KV_LOG_INFO, "server", "status-check", KV_FT("failing", checks[i].name),
                   KV_FT("text", checks[i].detail));
        }
    }
}

static bool wants_the_end(struct server *server, unsigned signal_number)
{
    kv_log(KV_LOG_INFO, "server", "signal", KV_FU("number", signal_number));
    switch (signal_number) {
    case SIGHUP:
        reload(server);
        return false;
    case SIGUSR1:
        log_status(server);
        return false;
    default:
        return true;
    }
}

void serve_run(struct server *server, int signals)
{
    for (;;) {
        struct signalfd_siginfo signal_info;
        struct pollfd fd = {.fd = signals, .events = POLLIN};
        int n = poll(&fd, 1, WATCH_MS);
        /* A wish to end comes before all that the look could have to wait for. */
        if (n > 0 && read(signals, &signal_info, sizeof signal_info) == (ssize_t)sizeof signal_info &&
            wants_the_end(server, signal_info.ssi_signo)) {
            return;
        }
        look_after(server);
    }
}

int serve_block_signals(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    return signalfd(-1, &set, SFD_CLOEXEC);
}

/* --- the end ----------------------------------------------------------------------------------------------------- */

static void end_at_once(int number)
{
    _exit(128 + number);
}

/* From here on a signal ends the process. Not by the default action: the kernel spares a container's first process
 * that. */
static void let_signals_end_it(void)
{
    struct sigaction at_once = {.sa_handler = end_at_once};
    sigset_t set;
    sigemptyset(&at_once.sa_mask);
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaction(SIGTERM, &at_once, NULL);
    sigaction(SIGINT, &at_once, NULL);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
}

/* Requests are served as before, only readyz says that they should go elsewhere. */
static void wait_for_balancers(struct server *server)
{
    uint64_t deadline = kv_now_ns(server->env) + server->conf->shutdown_delay_ms * KV_MS_NS;
    while (kv_now_ns(server->env) < deadline) {
        struct timespec pause = {.tv_nsec = PAUSE_NS};
        nanosleep(&pause, NULL);
        look_after(server);
    }
}

/* What is left of the grace when the rest has ended; never so little that a healthy database is cut off. */
static uint32_t database_wait_ms(const struct server *server, uint64_t begun_ns)
{
    uint64_t spent_ms = (kv_now_ns(server->env) - begun_ns) / KV_MS_NS + DATABASE_HARDER_MS;
    uint64_t grace_ms = server->conf->shutdown_grace_ms;
    uint64_t left_ms = grace_ms > spent_ms ? grace_ms - spent_ms : 0;
    return left_ms < DATABASE_LEAST_MS    ? DATABASE_LEAST_MS
           : left_ms < KV_PRIVATE_STOP_MS ? (uint32_t)left_ms
                                          : KV_PRIVATE_STOP_MS;
}

KV_RC serve_stop(struct server *server, bool ready)
{
    enum kv_err rc = KV_OK;
    let_signals_end_it();
    serve_notify_send(&server->notify, "STOPPING=1\nSTATUS=stopping");
    if (ready) {
        kv_svc_retire(server->svc);
        wait_for_balancers(server);
    }
    uint64_t begun_ns = kv_now_ns(server->env);
    if (server->svc != NULL) {
        kv_svc_begin_stop(server->svc);
    }
    if (server->httpd != NULL) {
        rc = kv_httpd_quiesce(server->httpd, server->conf->shutdown_grace_ms * KV_MS_NS);
        kv_httpd_stop(server->httpd);
    }
    if (server->svc != NULL) {
        enum kv_err stopped = kv_svc_stop(server->svc);
        rc = rc == KV_OK ? stopped : rc;
    }
    kv_private_cluster_stop(server->cluster, database_wait_ms(server, begun_ns));
    serve_leave_places(server);
    return rc;
}
