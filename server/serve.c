/*
 * See serve.h. Order of the end: no new work, readiness goes, running requests end within the grace, listeners stop,
 * the data plane drains and writes its checkpoint, the database goes last. Must never print a key except where the
 * command is for trying things out (dev).
 */
#include "server/serve.h"

#include "dataplane/base/env.h"
#include "dataplane/base/log.h"
#include "dataplane/base/mem.h"
#include "server/serve_int.h"
#include "server/store/migrate.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#define WATCH_MS 500
#define EXIT_USAGE 2

/* --- start ------------------------------------------------------------------------------------------------------- */

static KV_RC start_cluster(struct server *server)
{
    if (server->conf->db_url[0] != '\0') {
        return KV_OK;
    }
    struct kv_private_cluster_conf conf = {.folder = server->state, .env = server->env};
    return kv_private_cluster_start(&conf, &server->info, &server->cluster);
}

static const char *db_url(const struct server *server)
{
    return server->cluster == NULL ? server->conf->db_url : kv_private_cluster_url(server->cluster);
}

static enum kv_match_rule match_rule(const char *name)
{
    return strcmp(name, "all") == 0 ? KV_MATCH_ALL : strcmp(name, "policy") == 0 ? KV_MATCH_POLICY : KV_MATCH_NONE;
}

static KV_RC start_httpd(struct server *server)
{
    const struct kv_conf *conf = server->conf;
    struct kv_httpd_conf http = {.listen = conf->http_listen,
                                 .admin_listen = conf->http_admin_listen,
                                 .socket = server->socket,
                                 .connections = (unsigned)conf->http_connections,
                                 .threads = (unsigned)conf->service_threads,
                                 .header_timeout_ms = conf->http_header_timeout_ms,
                                 .idle_timeout_ms = conf->http_idle_timeout_ms,
                                 .cors_origins = conf->http_cors_origins,
                                 .require_idempotency_key = strcmp(conf->http_require_idempotency_key, "true") == 0,
                                 .require_if_match = match_rule(conf->http_require_if_match),
                                 .rates = {.usual = (unsigned)conf->rate_default,
                                           .erase = (unsigned)conf->rate_erase,
                                           .peer = (unsigned)conf->rate_public},
                                 .env = server->env};
    enum kv_err rc = kv_httpd_start(&http, &server->info, &server->httpd);
    if (rc != KV_OK &&
        server->dev) { /* the usual ports are taken: any will do for playing, and the output names them */
        http.listen = http.admin_listen = "127.0.0.1:0";
        rc = kv_httpd_start(&http, &server->info, &server->httpd);
    }
    return rc;
}

static enum kv_io_kind io_kind(const char *name)
{
    return strcmp(name, "io_uring") == 0 ? KV_IO_URING : strcmp(name, "threads") == 0 ? KV_IO_THREADS : KV_IO_AUTO;
}

static enum kv_cipher_backend cipher(const char *name)
{
    return strcmp(name, "ipsec-mb") == 0  ? KV_CIPHER_IPSEC_MB
           : strcmp(name, "openssl") == 0 ? KV_CIPHER_OPENSSL
                                          : KV_CIPHER_AUTO;
}

/* The signals are blocked and read later, so one that waits is a wish to end. */
static bool asked_to_end(void)
{
    sigset_t waiting;
    return sigpending(&waiting) == 0 && (sigismember(&waiting, SIGTERM) == 1 || sigismember(&waiting, SIGINT) == 1);
}

static KV_RC start_service(struct server *server)
{
    const struct kv_conf *conf = server->conf;
    struct kv_svc_conf service = {.db_url = db_url(server),
                                  .migrate_auto =
                                      strcmp(conf->db_migrate, "auto") == 0 ||
                                      server->cluster != NULL, /* a database of our own is ours to migrate */
                                  .state_folder = server->state,
                                  .root_provider = conf->root_provider,
                                  .root_path = server->root_path,
                                  .engine_socket = server->socket,
                                  .fd_socket = server->fd_socket,
                                  .host_name = conf->log_host,
                                  .lease_ns = conf->instance_lease_ms * KV_MS_NS,
                                  .journal_bytes_max = conf->journal_bytes,
                                  .journal_lag_max_ns = conf->audit_max_lag_ms * KV_MS_NS,
                                  .engine = {.dram_bytes = conf->dram_bytes,
                                             .nvme_path = conf->nvme_bytes == 0 ? NULL : server->nvme_path,
                                             .nvme_bytes = conf->nvme_bytes,
                                             .io_kind = io_kind(conf->io_engine),
                                             .io_depth = (unsigned)conf->io_queue_depth,
                                             .io_threads = (unsigned)conf->io_threads,
                                             .watermark_high_percent = (unsigned)conf->watermark_high,
                                             .watermark_low_percent = (unsigned)conf->watermark_low,
                                             .staging_bytes = conf->staging_bytes,
                                             .cipher = cipher(conf->cipher)},
                                  .env = server->env,
                                  .cancelled = asked_to_end};
    return kv_svc_start(&service, &server->info, &server->svc);
}

static bool write_line(int fd, const char *text)
{
    size_t len = strlen(text);
    return fchmod(fd, 0600) == 0 && write(fd, text, len) == (ssize_t)len && write(fd, "\n", 1) == 1 && fsync(fd) == 0;
}

/* Into a file that only this user reads; durable, with its name, when it returns. */
static KV_RC keep_first_key(void *ctx, const char *secret, struct kv_errinfo *info)
{
    const struct server *server = ctx;
    int folder = open(server->state, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int fd = openat(folder, "operator.key", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    bool written = fd >= 0 && write_line(fd, secret) && fsync(folder) == 0;
    enum kv_err rc =
        written ? KV_OK : kv_fail(info, KV_E_IO, "cannot write operator.key in state.dir: %s", strerror(errno));
    if (fd >= 0) {
        close(fd);
    }
    if (folder >= 0) {
        close(folder);
    }
    return rc;
}

/* The first key, once. */
static KV_RC write_first_key(struct server *server)
{
    struct kv_call call;
    KV_TRY(kv_call_init(server->svc, &call));
    enum kv_err rc = kv_svc_bootstrap_key(&call, keep_first_key, server);
    server->info = call.info;
    kv_call_done(&call);
    return rc == KV_E_INVALID_STATE || rc == KV_E_QUARANTINED ? KV_OK : rc;
}

static KV_RC start(struct server *server)
{
    KV_TRY(serve_choose_places(server));
    kv_svc_metrics_init();
    KV_TRY(start_httpd(server));
    KV_TRY(start_cluster(server));
    KV_TRY(start_service(server));
    KV_TRY(write_first_key(server));
    return kv_httpd_serve(server->httpd, server->svc, &server->info);
}

/* --- while it runs ----------------------------------------------------------------------------------------------- */

static void print_dev(const struct server *server)
{
    unsigned port = kv_httpd_port(server->httpd);
    char database[KV_CONF_TEXT_SIZE];
    bool elsewhere = serve_database_elsewhere(server, database);
    printf("\nkvrun is up. In another terminal:\n\n"
           "  export KVRUN_ADDR=127.0.0.1:%u\n"
           "  export KVRUN_TOKEN=$(cat \"%s/operator.key\")\n"
           "  curl -s -H \"Authorization: Bearer $KVRUN_TOKEN\" http://$KVRUN_ADDR/v1/tiers\n\n"
           "  probes and metrics  http://127.0.0.1:%u/metrics\n"
           "  engine socket       %s\n"
           "  end it with Ctrl-C; what it keeps is in %s%s%s\n\n",
           port, server->state, kv_httpd_admin_port(server->httpd), server->socket, server->state,
           elsewhere ? " and, for the database, in " : "", elsewhere ? database : "");
    fflush(stdout);
}

/* The operator's key, shown once where somebody tries things out. */
static void print_key(const struct server *server)
{
    char path[KV_CONF_TEXT_SIZE + 32], key[128] = "";
    snprintf(path, sizeof path, "%.1000s/operator.key", server->state);
    FILE *file = fopen(path, "re");
    if (file != NULL && fgets(key, sizeof key, file) != NULL) {
        printf("operator key: %s", key);
    }
    if (file != NULL) {
        fclose(file);
    }
    explicit_bzero(key, sizeof key);
}

static void log_ready(const struct server *server)
{
    struct kv_about about;
    kv_svc_about(server->svc, &about);
    kv_log(KV_LOG_INFO, "server", "ready", KV_FU("port", kv_httpd_port(server->httpd)),
           KV_FU("admin_port", kv_httpd_admin_port(server->httpd)), KV_FT("socket", server->socket),
           KV_FT("io", about.io_name), KV_FT("cipher", about.cipher_name),
           KV_FT("database", server->cluster == NULL ? "db.url" : "private"));
}

/* A private database that ended is started again where it was: its clients heal by themselves. */
static void watch_cluster(struct server *server)
{
    if (server->cluster != NULL && !kv_private_cluster_alive(server->cluster)) {
        struct kv_errinfo info = {0};
        enum kv_err rc = kv_private_cluster_revive(server->cluster, &info);
        kv_log(rc == KV_OK ? KV_LOG_WARN : KV_LOG_ERROR, "server", "database-revived", KV_FRC(rc),
               KV_FT("text", info.text));
    }
}

static void run(struct server *server, int signals)
{
    for (;;) {
        struct signalfd_siginfo signal_info;
        struct pollfd fd = {.fd = signals, .events = POLLIN};
        int n = poll(&fd, 1, WATCH_MS);
        watch_cluster(server);
        if (n <= 0 || read(signals, &signal_info, sizeof signal_info) != (ssize_t)sizeof signal_info) {
            continue;
        }
        kv_log(KV_LOG_INFO, "server", "signal", KV_FU("number", signal_info.ssi_signo));
        if (signal_info.ssi_signo == SIGTERM || signal_info.ssi_signo == SIGINT) {
            return;
        }
    }
}

static int block_signals(void)
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

/* From here on the first signal that comes ends the process as if nobody had asked it to be orderly. */
static void unblock_signals(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
}

static enum kv_err stop(struct server *server)
{
    enum kv_err rc = KV_OK;
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
    kv_private_cluster_stop(server->cluster);
    serve_leave_places(server);
    return rc;
}

static int report(const struct server *server, enum kv_err rc)
{
    /* A text of another code is about something that was tried before and got over. */
    const char *text = server->info.code == rc && server->info.text[0] != '\0' ? server->info.text : kv_err_title(rc);
    kv_log(KV_LOG_ERROR, "server", "start-failed", KV_FRC(rc), KV_FT("text", text));
    fprintf(stderr, "kvrun: %s\n", text);
    return EXIT_USAGE;
}

int kv_serve(const struct kv_conf *conf, bool dev)
{
    struct rlimit no_core = {0};
    enum kv_log_level level = KV_LOG_INFO;
    if (kv_log_parse_level(conf->log_level, &level) == KV_OK) {
        kv_log_set_level(level);
    }
    umask(0077);
    signal(SIGPIPE, SIG_IGN);
    setrlimit(RLIMIT_CORE, &no_core); /* a core would hold keys */
#ifndef __SANITIZE_ADDRESS__
    prctl(PR_SET_DUMPABLE, 0); /* and so would a debugger's look; the leak checker needs it, though */
#endif
    struct server *server = kv_alloc(sizeof *server);
    int signals = block_signals();
    if (server == NULL || signals < 0) {
        return 1;
    }
    server->conf = conf;
    server->dev = dev;
    server->env = &kv_env_system;
    server->lock_fd = -1;
    enum kv_err rc = start(server);
    int code = 0;
    if (rc != KV_OK) {
        code = report(server, rc);
    } else {
        if (dev) {
            print_dev(server);
            print_key(server);
            fflush(stdout);
        }
        log_ready(server);
        run(server, signals);
    }
    unblock_signals();
    rc = stop(server);
    if (rc != KV_OK && code == 0) {
        kv_log(KV_LOG_WARN, "server", "stopped-late", KV_FRC(rc));
        code = 1;
    }
    kv_log(KV_LOG_INFO, "server", "stopped");
    close(signals);
    kv_free(server);
    return code;
}

int kv_serve_migrate(const struct kv_conf *conf)
{
    struct kv_errinfo info = {0};
    struct kv_pg *pg = NULL;
    uint32_t applied = 0;
    struct kv_pg_conf pg_conf = {
        .url = conf->db_url, .application_name = "kvrun/migrate", .statement_timeout_ms = 60000, .env = &kv_env_system};
    if (conf->db_url[0] == '\0') {
        fprintf(stderr, "kvrun: set db.url; a private database is migrated by the server that owns it\n");
        return EXIT_USAGE;
    }
    enum kv_err rc = kv_pg_open(&pg_conf, &info, &pg);
    if (rc == KV_OK) {
        rc = kv_migrate(pg, KV_MIGRATE_AUTO, &info, &applied);
        kv_pg_close(pg);
    }
    if (rc != KV_OK) {
        fprintf(stderr, "kvrun: %s\n", info.text[0] == '\0' ? kv_err_title(rc) : info.text);
        return rc == KV_E_DB_UNAVAILABLE ? 6 : 1;
    }
    printf("schema version %u, %u migrations applied\n", kv_schema_version(), applied);
    return 0;
}
