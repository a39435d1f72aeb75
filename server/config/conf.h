/*
 * Configuration: one table (conf.c) gives each key its name, type, bounds, default and help; the table drives the file
 * parser, the environment, the flags, `kvrun config show` and `kvrun config docs`. Precedence: flag > environment
 * (KVRUN_ + upper case, dots as underscores) > file > default. File syntax: `key = value`, one a line,
 * `#` starts a comment line. Unknown keys are errors that name the nearest key. Sizes take KiB MiB GiB TiB, durations
 * ms s m h d. Secrets are never values here: a database URL with a password comes from a file (KVRUN_DB_URL_FILE).
 * Thread: main.
 */
#ifndef KV_CONFIG_H
#define KV_CONFIG_H

#include "dataplane/base/buf.h"

#define KV_CONF_TEXT_SIZE 1024

struct kv_conf {
    char http_listen[KV_CONF_TEXT_SIZE], http_admin_listen[KV_CONF_TEXT_SIZE], http_socket[KV_CONF_TEXT_SIZE];
    char http_insecure_listen[KV_CONF_TEXT_SIZE], tls_cert_file[KV_CONF_TEXT_SIZE], tls_key_file[KV_CONF_TEXT_SIZE],
        tls_client_ca_file[KV_CONF_TEXT_SIZE], tls_min[KV_CONF_TEXT_SIZE];
    uint64_t tls_reload_ms, http_per_ip;
    char http_socket_mode[KV_CONF_TEXT_SIZE], http_socket_uids[KV_CONF_TEXT_SIZE];
    uint64_t http_connections, http_header_timeout_ms, http_idle_timeout_ms;
    char http_cors_origins[KV_CONF_TEXT_SIZE], http_require_idempotency_key[KV_CONF_TEXT_SIZE],
        http_require_if_match[KV_CONF_TEXT_SIZE];
    uint64_t rate_default, rate_erase, rate_public, rate_unauthenticated;
    uint64_t events_heartbeat_ms;
    uint64_t service_threads;
    char db_url[KV_CONF_TEXT_SIZE], db_migrate[KV_CONF_TEXT_SIZE], db_prepare[KV_CONF_TEXT_SIZE];
    uint64_t db_statement_timeout_ms, db_lock_timeout_ms, db_start_wait_ms;
    char state_dir[KV_CONF_TEXT_SIZE];
    char root_provider[KV_CONF_TEXT_SIZE], root_path[KV_CONF_TEXT_SIZE];
    char anchor_file[KV_CONF_TEXT_SIZE];
    char root_pkcs11_module[KV_CONF_TEXT_SIZE], root_pkcs11_token[KV_CONF_TEXT_SIZE],
        root_pkcs11_pin_file[KV_CONF_TEXT_SIZE], root_pkcs11_label[KV_CONF_TEXT_SIZE];
    char root_transit_address[KV_CONF_TEXT_SIZE], root_transit_token_file[KV_CONF_TEXT_SIZE],
        root_transit_ca_file[KV_CONF_TEXT_SIZE], root_transit_mount[KV_CONF_TEXT_SIZE],
        root_transit_prefix[KV_CONF_TEXT_SIZE], root_transit_namespace[KV_CONF_TEXT_SIZE];
    uint64_t root_transit_timeout_ms, root_transit_backup_window_ms;
    char root_hardware_manufacturer[KV_CONF_TEXT_SIZE], root_hardware_model[KV_CONF_TEXT_SIZE],
        root_hardware_serial[KV_CONF_TEXT_SIZE];
    uint64_t dram_bytes;
    char nvme_path[KV_CONF_TEXT_SIZE];
    uint64_t nvme_bytes;
    uint64_t watermark_high, watermark_low;
    uint64_t staging_bytes;
    char io_engine[KV_CONF_TEXT_SIZE];
    uint64_t io_queue_depth, io_threads;
    char cipher[KV_CONF_TEXT_SIZE];
    char seccomp[KV_CONF_TEXT_SIZE];
    uint64_t instance_lease_ms;
    uint64_t erase_standby_wait_ms;
    uint64_t erase_batch_window_ms, erase_batch_max;
    uint64_t journal_bytes, audit_max_lag_ms;
    uint64_t retention_operations_ms;
    char log_host[KV_CONF_TEXT_SIZE], log_level[KV_CONF_TEXT_SIZE], log_format[KV_CONF_TEXT_SIZE];
    char metrics_auth[KV_CONF_TEXT_SIZE], metrics_openmetrics[KV_CONF_TEXT_SIZE], metrics_exemplars[KV_CONF_TEXT_SIZE];
    char metrics_tenant_label[KV_CONF_TEXT_SIZE];
    uint64_t metrics_tenant_max;
    uint64_t shutdown_delay_ms, shutdown_grace_ms;
};

enum kv_conf_origin { KV_CONF_DEFAULT, KV_CONF_FILE, KV_CONF_ENV, KV_CONF_FLAG };

/* Reads defaults, then the file (NULL: none), then `environment` (as environ), then flags ("--key=value" or "--key
 * value", removed from argv; what is left stays in order). KV_E_CONFIG with a text that names key, value, bounds and
 * the nearest key. */
KV_RC kv_conf_load(const char *file, char *const *environment, int *argc, char **argv, struct kv_errinfo *info,
                   struct kv_conf *ret_conf, enum kv_conf_origin *ret_origins /* kv_conf_count() of them, or NULL */);
size_t kv_conf_count(void);
/* "key  value  origin" lines; a database URL is shown without its password. */
void kv_conf_show(const struct kv_conf *conf, const enum kv_conf_origin *origins, struct kv_buf *buf);
/* The table as Markdown; a test compares it with server/config/README.md. */
void kv_conf_docs(struct kv_buf *buf);

/* One key as an operator may see it: of a secret the value is "***" and the beginning of its SHA-256, so that two
 * machines can be compared. */
struct kv_conf_entry {
    const char *key, *origin; /* static */
    char value[KV_CONF_TEXT_SIZE + 16];
    bool number, reloadable;
};
void kv_conf_entry(const struct kv_conf *conf, const enum kv_conf_origin *origins, size_t index,
                   struct kv_conf_entry *ret_entry);

/* Puts into `conf` what `fresh` has for reloadable keys, and tells of each key that differs whether it was `applied`:
 * the others need a restart. Returns how many were. */
typedef void kv_conf_change_fn(void *ctx, const char *key, bool applied);
size_t kv_conf_reload(struct kv_conf *conf, const struct kv_conf *fresh, kv_conf_change_fn *tell, void *ctx);

/* How much memory this process may have: the least of the machine's and the limits of its cgroup. `root` as below. */
uint64_t kv_conf_memory(const char *root);
/* A quarter of the memory that this process may have, at most 64 GiB, in whole MiB: the default of tiers.dram.bytes.
 * The least of the machine's memory and the limits of the process's cgroup (v1 or v2) and all above it; what the page
 * cache takes of it now does not matter, since the kernel gives it back. `root`: "" but for tests, which keep /proc and
 * /sys/fs/cgroup below it. */
uint64_t kv_conf_dram_default(const char *root);

#endif
