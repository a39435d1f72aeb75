/*
 * See serve.h. The start, bottom-up; serve_run.c has the rest of a server's life. Must never print a key except where
 * the command is for trying things out (dev).
 */
#include "server/serve.h"

#include "dataplane/base/env.h"
#include "dataplane/base/log.h"
#include "dataplane/base/mem.h"
#include "server/harden.h"
#include "server/serve_int.h"
#include "server/service/svc_key.h"
#include "server/store/migrate.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define EXIT_USAGE 2

/* --- start ------------------------------------------------------------------------------------------------------- */

/* The signals are blocked and read later, so one that waits is a wish to end. */
static bool asked_to_end(void)
{
    sigset_t waiting;
    return sigpending(&waiting) == 0 && (sigismember(&waiting, SIGTERM) == 1 || sigismember(&waiting, SIGINT) == 1);
}

/* To somebody who waits in front of a terminal. */
static void say(const struct server *server, const char *what)
{
    if (server->dev) {
        printf("kvrun dev: %s ...\n", what);
        fflush(stdout);
    }
}

static KV_RC start_cluster(struct server *server)
{
    if (server->conf->db_url[0] != '\0') {
        return KV_OK;
    }
    char data[sizeof server->state + 16];
    snprintf(data, sizeof data, "%.4000s/postgres", server->state);
    say(server, access(data, F_OK) == 0 ? "starting the database" : "creating the database, the first time only");
    struct kv_private_cluster_conf conf = {.folder = server->state, .cancelled = asked_to_end, .env = server->env};
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
                                 .per_ip = (unsigned)conf->http_per_ip,
                                 .insecure_listen = strcmp(conf->http_insecure_listen, "true") == 0,
                                 .tls = {.cert_file = conf->tls_cert_file,
                                         .key_file = conf->tls_key_file,
                                         .client_ca_file = conf->tls_client_ca_file,
                                         .only_1_3 = strcmp(conf->tls_min, "1.3") == 0,
                                         .reload_ms = conf->tls_reload_ms},
                                 .socket_mode = (unsigned)strtoul(conf->http_socket_mode, NULL, 8),
                                 .socket_allow_uids = conf->http_socket_uids,
                                 .header_timeout_ms = conf->http_header_timeout_ms,
                                 .idle_timeout_ms = conf->http_idle_timeout_ms,
                                 .cors_origins = conf->http_cors_origins,
                                 .require_idempotency_key = strcmp(conf->http_require_idempotency_key, "true") == 0,
                                 .metrics_auth = strcmp(conf->metrics_auth, "true") == 0,
                                 .metrics_no_openmetrics = strcmp(conf->metrics_openmetrics, "false") == 0,
                                 .metrics_no_exemplars = strcmp(conf->metrics_exemplars, "false") == 0,
                                 .require_if_match = match_rule(conf->http_require_if_match),
                                 .rates = {.usual = (unsigned)conf->rate_default,
                                           .erase = (unsigned)conf->rate_erase,
                                           .peer = (unsigned)conf->rate_public,
                                           .stranger = (unsigned)conf->rate_unauthenticated},
                                 .facts = &server->facts,
                                 .heartbeat_ms = conf->events_heartbeat_ms,
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

static enum kv_pg_prepare prepare_kind(const char *name)
{
    return strcmp(name, "on") == 0    ? KV_PG_PREPARE_ON
           : strcmp(name, "off") == 0 ? KV_PG_PREPARE_OFF
                                      : KV_PG_PREPARE_AUTO;
}

static unsigned tenant_labels(const struct kv_conf *conf)
{
    bool off = strcmp(conf->metrics_tenant_label, "off") == 0, all = strcmp(conf->metrics_tenant_label, "all") == 0;
    return off ? 0 : all ? (unsigned)KV_MAX_TENANT_LABELS : (unsigned)conf->metrics_tenant_max;
}

static struct kv_roe_pkcs11_conf pkcs11_conf(const struct kv_conf *conf)
{
    return (struct kv_roe_pkcs11_conf){.module = conf->root_pkcs11_module,
                                       .token = conf->root_pkcs11_token,
                                       .pin_file = conf->root_pkcs11_pin_file,
                                       .label = conf->root_pkcs11_label,
                                       .manufacturer = conf->root_hardware_manufacturer,
                                       .model = conf->root_hardware_model,
                                       .serial = conf->root_hardware_serial};
}

static struct kv_roe_transit_conf transit_conf(const struct kv_conf *conf)
{
    return (struct kv_roe_transit_conf){.address = conf->root_transit_address,
                                        .token_file = conf->root_transit_token_file,
                                        .ca_file = conf->root_transit_ca_file,
                                        .mount = conf->root_transit_mount,
                                        .prefix = conf->root_transit_prefix,
                                        .name_space = conf->root_transit_namespace,
                                        .timeout_ms = conf->root_transit_timeout_ms,
                                        .backup_window_s = conf->root_transit_backup_window_ms / 1000};
}

struct kv_roe_conf serve_roe_conf(const struct kv_conf *conf, const char *root_path)
{
    return (struct kv_roe_conf){.provider = conf->root_provider,
                                .path = root_path,
                                .pkcs11 = pkcs11_conf(conf),
                                .transit = transit_conf(conf),
                                .env = &kv_env_system};
}

static KV_RC start_service(struct server *server)
{
    const struct kv_conf *conf = server->conf;
    struct kv_svc_conf service = {.db_url = db_url(server),
                                  .migrate_auto =
                                      strcmp(conf->db_migrate, "auto") == 0 ||
                                      server->cluster != NULL, /* a database of our own is ours to migrate */
                                  .db_prepare = prepare_kind(conf->db_prepare),
                                  .db_statement_timeout_ms = (uint32_t)conf->db_statement_timeout_ms,
                                  .db_lock_timeout_ms = (uint32_t)conf->db_lock_timeout_ms,
                                  .db_start_wait_ns = conf->db_start_wait_ms * KV_MS_NS,
                                  .state_folder = server->state,
                                  .root_provider = conf->root_provider,
                                  .root_path = server->root_path,
                                  .anchor_file = conf->anchor_file,
                                  .root_pkcs11 = pkcs11_conf(conf),
                                  .root_transit = transit_conf(conf),
                                  .engine_socket = server->socket,
                                  .fd_socket = server->fd_socket,
                                  .host_name = conf->log_host,
                                  .lease_ns = conf->instance_lease_ms * KV_MS_NS,
                                  .standby_wait_ns = conf->erase_standby_wait_ms * KV_MS_NS,
                                  .journal_bytes_max = conf->journal_bytes,
                                  .journal_lag_max_ns = conf->audit_max_lag_ms * KV_MS_NS,
                                  .erase_batch_max = (unsigned)conf->erase_batch_max,
                                  .erase_batch_window_us = conf->erase_batch_window_ms * 1000,
                                  .operation_keep_us = conf->retention_operations_ms * 1000,
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
                                  .tenant_labels = tenant_labels(conf),
                                  .env = server->env,
                                  .cancelled = asked_to_end};
    return kv_svc_start(&service, &server->info, &server->svc);
}

static KV_RC keep_first_key(void *ctx, const char *secret, struct kv_errinfo *info)
{
    const struct server *server = ctx;
    return serve_keep_key(server->state, secret, info);
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
    serve_know_facts(server);
    KV_TRY(start_httpd(server));
    KV_TRY(start_cluster(server));
    say(server, "bringing the schema up to date, opening keys and tiers");
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

static int report(const struct server *server, enum kv_err rc)
{
    /* A text of another code is about something that was tried before and got over. */
    const char *text = server->info.code == rc && server->info.text[0] != '\0' ? server->info.text : kv_err_title(rc);
    kv_log(KV_LOG_ERROR, "server", "start-failed", KV_FRC(rc), KV_FT("text", text));
    fprintf(stderr, "kvrun: %s\n", text);
    return EXIT_USAGE;
}

static enum kv_log_format log_format(const struct kv_conf *conf)
{
    bool automatic = strcmp(conf->log_format, "auto") == 0;
    bool logfmt = automatic ? isatty(STDERR_FILENO) == 1 : strcmp(conf->log_format, "logfmt") == 0;
    return logfmt ? KV_LOG_LOGFMT : KV_LOG_JSON;
}

static void tell_ready(const struct server *server)
{
    if (server->dev) {
        print_dev(server);
        print_key(server);
        fflush(stdout);
    }
    log_ready(server);
    serve_notify_send(&server->notify, "READY=1\nSTATUS=serving on port %u", kv_httpd_port(server->httpd));
}

static int live(struct server *server, int signals)
{
    enum kv_err started = start(server);
    int code = started == KV_OK ? 0 : report(server, started);
    if (started == KV_OK) {
        tell_ready(server);
        serve_run(server, signals);
    }
    enum kv_err rc = serve_stop(server, started == KV_OK);
    if (rc != KV_OK && code == 0) {
        kv_log(KV_LOG_WARN, "server", "stopped-late", KV_FRC(rc));
        code = 1;
    }
    kv_log(KV_LOG_INFO, "server", "stopped", KV_FI("exit", code));
    return code;
}

int kv_serve(const struct kv_serve_conf *serve)
{
    enum kv_log_level level = KV_LOG_INFO;
    if (kv_log_parse_level(serve->conf->log_level, &level) == KV_OK) {
        kv_log_set_level(level);
    }
    kv_log_set_format(log_format(serve->conf));
    kv_harden(serve->conf, serve->conf->db_url[0] == '\0');
    struct server *server = kv_alloc(sizeof *server);
    int signals = serve_block_signals();
    if (server == NULL || signals < 0) {
        return 1;
    }
    server->conf = serve->conf;
    server->serve = serve;
    server->dev = serve->dev;
    server->env = &kv_env_system;
    server->lock_fd = -1;
    pthread_mutex_init(&server->conf_mutex, NULL);
    serve_notify_open(&server->notify);
    serve_notify_send(&server->notify, "STATUS=starting");
    int code = live(server, signals);
    serve_notify_close(&server->notify);
    close(signals);
    kv_free(server);
    return code;
}

int kv_serve_migrate(const struct kv_conf *conf)
{
    struct kv_errinfo info = {0};
    struct kv_pg *pg = NULL;
    uint32_t applied = 0;
    struct kv_pg_conf pg_conf = {.url = conf->db_url,
                                 .application_name = "kvrun/migrate",
                                 .statement_timeout_ms = 60000,
                                 .prepare = prepare_kind(conf->db_prepare),
                                 .env = &kv_env_system};
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
