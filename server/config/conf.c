/*
 * The table of configuration keys and everything that is driven by it. Must never print a password: see show_value.
 */
#include "server/config/conf.h"

#include "dataplane/base/check.h"
#include "dataplane/base/log.h"
#include "dataplane/base/mem.h"
#include "dataplane/crypto/hash.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum conf_type { CONF_TEXT, CONF_NAME, CONF_WORD, CONF_COUNT, CONF_SIZE, CONF_DURATION, CONF_PERCENT };

/* Beside the type: */
#define CONF_RELOADABLE 0x100u  /* SIGHUP changes it; every other key is read at the start only */
#define CONF_SECRET_FILE 0x200u /* may hold a password: KVRUN_X_FILE names a file with it, and it is never shown */
#define CONF_AUTO 0x400u        /* "auto" is a value: 0 until the end of loading */
#define CONF_TYPE 0xffu

struct conf_key {
    const char *name;
    unsigned type; /* enum conf_type, and the above */
    size_t offset;
    const char *fallback;
    uint64_t min, max;
    const char *words; /* CONF_WORD: "a|b|c" */
    const char *help;
};

#define NAME_BYTES_MAX 253 /* the longest host name */
#define AT(member) offsetof(struct kv_conf, member)
#define KIB UINT64_C(1024)
#define MIB (KIB * 1024)
#define GIB (MIB * 1024)

static const struct conf_key keys[] = {
    {"http.listen", CONF_TEXT, AT(http_listen), "127.0.0.1:7433", 0, 0, NULL,
     "address of the API; [::1]:7433 for IPv6; beyond loopback only with http.tls.cert_file"},
    {"http.admin_listen", CONF_TEXT, AT(http_admin_listen), "127.0.0.1:7434", 0, 0, NULL,
     "address of probes and metrics; never encrypted"},
    {"http.insecure_listen", CONF_WORD, AT(http_insecure_listen), "false", 0, 0, "false|true",
     "API keys may cross the network unencrypted: only behind a proxy that does the encrypting"},
    {"http.tls.cert_file", CONF_TEXT, AT(tls_cert_file), "", 0, 0, NULL, "certificate chain in PEM; empty: no TLS"},
    {"http.tls.key_file", CONF_TEXT, AT(tls_key_file), "", 0, 0, NULL, "its key in PEM; mode 0600"},
    {"http.tls.client_ca_file", CONF_TEXT, AT(tls_client_ca_file), "", 0, 0, NULL,
     "authorities whose clients may connect, in PEM; empty: no client certificates"},
    {"http.tls.min", CONF_WORD, AT(tls_min), "1.2", 0, 0, "1.2|1.3", "oldest TLS version"},
    {"http.tls.reload_interval", CONF_DURATION, AT(tls_reload_ms), "60s", 1000, 86400000, NULL,
     "how often these files are looked at; SIGHUP looks at once"},
    {"http.socket", CONF_TEXT, AT(http_socket), "", 0, 0, NULL,
     "UNIX socket for engines; empty: engine.sock in the state folder"},
    {"http.socket_mode", CONF_WORD, AT(http_socket_mode), "0660", 0, 0, "0600|0660|0666", "who may connect to it"},
    {"http.socket_allow_uids", CONF_TEXT, AT(http_socket_uids), "", 0, 0, NULL,
     "users who may connect to it, as numbers with commas; empty: whoever the mode lets"},
    {"http.connections", CONF_COUNT, AT(http_connections), "2000", 1, 100000, NULL, "connections of one listener"},
    {"http.per_ip", CONF_COUNT, AT(http_per_ip), "0", 0, 100000, NULL,
     "connections of one address; 0: no limit, right behind a proxy"},
    {"http.header_timeout", CONF_DURATION, AT(http_header_timeout_ms), "10s", 100, 600000, NULL,
     "time for a request's headers"},
    {"http.idle_timeout", CONF_DURATION, AT(http_idle_timeout_ms), "60s", 1000, 3600000, NULL, "idle connection"},
    {"http.cors_origins", CONF_TEXT, AT(http_cors_origins), "", 0, 0, NULL,
     "origins whose pages may read answers, exactly as browsers send them, with commas between; empty: none"},
    {"http.require_idempotency_key", CONF_WORD, AT(http_require_idempotency_key), "false", 0, 0, "false|true",
     "refuse requests without Idempotency-Key where one can be sent"},
    {"http.require_if_match", CONF_WORD, AT(http_require_if_match), "none", 0, 0, "none|policy|all",
     "refuse changes without If-Match: none, those of policies, or all that take it"},
    {"rate.default", CONF_COUNT | CONF_RELOADABLE, AT(rate_default), "1000", 0, 1000000, NULL,
     "requests a second of one API key, and how many may come at once; 0: as many as come"},
    {"rate.erase", CONF_COUNT | CONF_RELOADABLE, AT(rate_erase), "50", 1, 1000000, NULL,
     "the same for erasing and cancelling, which the others cannot use up"},
    {"rate.public", CONF_COUNT | CONF_RELOADABLE, AT(rate_public), "20", 1, 1000000, NULL,
     "the same of one address, for what anybody may ask and costs something"},
    {"rate.unauthenticated", CONF_COUNT | CONF_RELOADABLE, AT(rate_unauthenticated), "20", 0, 1000000, NULL,
     "requests a second of one address without a valid key; then only keys that are in memory pass; 0: as many as "
     "come"},
    {"events.heartbeat", CONF_DURATION, AT(events_heartbeat_ms), "15s", 1000, 600000, NULL,
     "silence of an event stream after which it says that it lives"},
    {"service.threads", CONF_COUNT, AT(service_threads), "4", 1, 64, NULL,
     "threads that serve requests, one database connection each"},
    {"db.url", CONF_TEXT | CONF_SECRET_FILE, AT(db_url), "", 0, 0, NULL,
     "PostgreSQL; empty: a private cluster in the state folder"},
    {"db.migrate", CONF_WORD, AT(db_migrate), "check", 0, 0, "check|auto",
     "pending schema migrations: refuse to start, or apply"},
    {"db.prepare", CONF_WORD, AT(db_prepare), "auto", 0, 0, "auto|on|off",
     "prepared statements and session settings; auto: not behind a pooler"},
    {"db.statement_timeout", CONF_DURATION, AT(db_statement_timeout_ms), "5s", 100, 60000, NULL, "longest statement"},
    {"db.lock_timeout", CONF_DURATION, AT(db_lock_timeout_ms), "2s", 50, 60000, NULL, "longest wait for a row"},
    {"db.start_wait", CONF_DURATION, AT(db_start_wait_ms), "30s", 1000, 3600000, NULL,
     "how long the start waits for the database before it gives up"},
    {"state.dir", CONF_TEXT, AT(state_dir), "/var/lib/kvrun", 0, 0, NULL,
     "folder of this instance: journal, signing keys, sockets"},
    {"root.provider", CONF_WORD, AT(root_provider), "file", 0, 0, "file|memory|pkcs11|transit", "root of erasure"},
    {"root.path", CONF_TEXT, AT(root_path), "", 0, 0, NULL,
     "file provider; keep it out of every backup; empty: root in the state folder"},
    {"anchor.file", CONF_TEXT, AT(anchor_file), "", 0, 0, NULL,
     "file on another mount that shows the last root, so that an older database is found at the start; empty: none"},
    {"root.pkcs11.module", CONF_TEXT, AT(root_pkcs11_module), "", 0, 0, NULL,
     "pkcs11 provider: the token's library, by its absolute path"},
    {"root.pkcs11.token", CONF_TEXT, AT(root_pkcs11_token), "", 0, 0, NULL, "the token's label"},
    {"root.pkcs11.pin_file", CONF_TEXT, AT(root_pkcs11_pin_file), "", 0, 0, NULL,
     "file with the token's PIN and nothing else; mode 0600"},
    {"root.pkcs11.label", CONF_TEXT, AT(root_pkcs11_label), "kvrun", 0, 0, NULL,
     "what keys on the token are called; another one for each cluster that shares it"},
    {"root.hardware.manufacturer", CONF_TEXT, AT(root_hardware_manufacturer), "", 0, 0, NULL,
     "of the token, where it is hardware that keeps no remnants of a destroyed key; certificates then say E3"},
    {"root.hardware.model", CONF_TEXT, AT(root_hardware_model), "", 0, 0, NULL,
     "its model; the token must report the same"},
    {"root.hardware.serial", CONF_TEXT, AT(root_hardware_serial), "", 0, 0, NULL,
     "its serial number; the token must report the same"},
    {"root.transit.address", CONF_TEXT, AT(root_transit_address), "", 0, 0, NULL,
     "transit provider: https://host:8200 of Vault or OpenBao; http:// on this machine only"},
    {"root.transit.token_file", CONF_TEXT, AT(root_transit_token_file), "", 0, 0, NULL,
     "file with an access token and nothing else; mode 0600; read for each operation"},
    {"root.transit.ca_file", CONF_TEXT, AT(root_transit_ca_file), "", 0, 0, NULL,
     "authorities of its certificate, in PEM; empty: the system's"},
    {"root.transit.mount", CONF_TEXT, AT(root_transit_mount), "transit", 0, 0, NULL, "where the engine is mounted"},
    {"root.transit.prefix", CONF_TEXT, AT(root_transit_prefix), "kvrun-", 0, 0, NULL,
     "what names of its keys begin with; another one for each cluster that shares it"},
    {"root.transit.namespace", CONF_TEXT, AT(root_transit_namespace), "", 0, 0, NULL, "namespace; empty: none"},
    {"root.transit.timeout", CONF_DURATION, AT(root_transit_timeout_ms), "5s", 100, 60000, NULL,
     "longest request to it"},
    {"root.transit.backup_window", CONF_DURATION, AT(root_transit_backup_window_ms), "0s", 0, 315360000000, NULL,
     "how long its backups are kept, as certificates say; 0s: not declared"},
    {"tiers.dram.bytes", CONF_SIZE | CONF_AUTO, AT(dram_bytes), "auto", MIB, 1024 * GIB, NULL,
     "host memory for sealed blocks; auto: a quarter of what the cgroup allows, at most 64GiB"},
    {"tiers.nvme.path", CONF_TEXT, AT(nvme_path), "", 0, 0, NULL,
     "folder of the nvme tier; empty: nvme in the state folder"},
    {"tiers.nvme.bytes", CONF_SIZE, AT(nvme_bytes), "0", 0, 1024 * 1024 * GIB, NULL,
     "physical cap of the nvme tier; 0: no nvme tier"},
    {"placement.watermark_high", CONF_PERCENT, AT(watermark_high), "90", 10, 100, NULL,
     "dram use above which cold blocks go down"},
    {"placement.watermark_low", CONF_PERCENT, AT(watermark_low), "80", 5, 100, NULL, "until it is below this"},
    {"device.staging_bytes", CONF_SIZE, AT(staging_bytes), "64MiB", MIB, 64 * MIB, NULL,
     "locked memory for one opened block; the largest block"},
    {"io.engine", CONF_WORD, AT(io_engine), "auto", 0, 0, "auto|io_uring|threads", "file I/O"},
    {"io.queue_depth", CONF_COUNT, AT(io_queue_depth), "64", 1, 4096, NULL, "requests in flight"},
    {"io.threads", CONF_COUNT, AT(io_threads), "4", 1, 64, NULL, "threads of the threads engine"},
    {"crypto.backend", CONF_WORD, AT(cipher), "auto", 0, 0, "auto|ipsec-mb|openssl", "who computes AES-GCM"},
    {"hardening.seccomp", CONF_WORD, AT(seccomp), "auto", 0, 0, "auto|off",
     "the server forbids itself system calls that it has no use for"},
    {"instance.lease", CONF_DURATION, AT(instance_lease_ms), "5s", 1000, 60000, NULL,
     "how long keys stay usable without the database"},
    {"erase.standby_wait", CONF_DURATION, AT(erase_standby_wait_ms), "2s", 0, 600000, NULL,
     "how long an erasure waits for standbys of the database before it destroys the old root; 0s: not at all"},
    {"erase.batch_window", CONF_DURATION, AT(erase_batch_window_ms), "0s", 0, 60000, NULL,
     "how long an erasure waits for others to share its change of the root; 0s: for none"},
    {"erase.batch_max", CONF_COUNT, AT(erase_batch_max), "1024", 1, KV_ERASE_BATCH, NULL,
     "erasures that share one change of the root"},
    {"audit.journal_bytes", CONF_SIZE, AT(journal_bytes), "64MiB", MIB, GIB, NULL,
     "transfer records not yet in the database"},
    {"audit.max_lag", CONF_DURATION, AT(audit_max_lag_ms), "30s", 1000, 3600000, NULL,
     "age of the oldest of them; past it transfers are refused"},
    {"retention.operations", CONF_DURATION, AT(retention_operations_ms), "30d", 60000, UINT64_C(31536000000), NULL,
     "how long an operation that ended can be looked at"},
    {"log.host", CONF_NAME, AT(log_host), "kvrun.local", 0, 0, NULL, "name that the audit logs' origins start with"},
    {"log.level", CONF_WORD | CONF_RELOADABLE, AT(log_level), "info", 0, 0, "debug|info|warn|error", "what is logged"},
    {"log.format", CONF_WORD, AT(log_format), "auto", 0, 0, "auto|json|logfmt",
     "one object a line, or key=value; auto: logfmt on a terminal"},
    {"metrics.auth", CONF_WORD, AT(metrics_auth), "false", 0, 0, "false|true",
     "ask for a key with the role metrics, viewer or operator"},
    {"metrics.tenant_label", CONF_WORD, AT(metrics_tenant_label), "top", 0, 0, "off|top|all",
     "families by tenant: none, the largest by name, or up to 1,000 of them"},
    {"metrics.tenant_max", CONF_COUNT, AT(metrics_tenant_max), "50", 1, 1000, NULL,
     "how many top names; the others are one, _other"},
    {"metrics.openmetrics", CONF_WORD, AT(metrics_openmetrics), "true", 0, 0, "false|true",
     "OpenMetrics for scrapers that ask for it"},
    {"metrics.exemplars", CONF_WORD, AT(metrics_exemplars), "true", 0, 0, "false|true", "trace ids in OpenMetrics"},
    {"shutdown.delay", CONF_DURATION, AT(shutdown_delay_ms), "0s", 0, 600000, NULL,
     "between readyz saying no and the listeners closing, for load balancers"},
    {"shutdown.grace", CONF_DURATION, AT(shutdown_grace_ms), "25s", 0, 600000, NULL,
     "time for running requests at the end"},
};
#define KEY_COUNT (sizeof keys / sizeof keys[0])

size_t kv_conf_count(void)
{
    return KEY_COUNT;
}

static char *text_at(struct kv_conf *conf, const struct conf_key *key)
{
    return (char *)conf + key->offset;
}

static uint64_t *number_at(struct kv_conf *conf, const struct conf_key *key)
{
    return (uint64_t *)(void *)((char *)conf + key->offset);
}

static const char *nearest(const char *name)
{
    const char *best = keys[0].name;
    for (size_t i = 1; i < KEY_COUNT; i++) {
        if (kv_edit_distance(name, keys[i].name) < kv_edit_distance(name, best)) {
            best = keys[i].name;
        }
    }
    return best;
}

static const struct conf_key *find(const char *name, size_t len)
{
    for (size_t i = 0; i < KEY_COUNT; i++) {
        if (strlen(keys[i].name) == len && memcmp(keys[i].name, name, len) == 0) {
            return &keys[i];
        }
    }
    return NULL;
}

static bool word_allowed(const char *words, const char *value)
{
    size_t len = strlen(value);
    for (const char *p = words; p != NULL; p = strchr(p, '|') == NULL ? NULL : strchr(p, '|') + 1) {
        if (strncmp(p, value, len) == 0 && (p[len] == '|' || p[len] == '\0') && len > 0 && strchr(value, '|') == NULL) {
            return true;
        }
    }
    return false;
}

struct unit {
    const char *suffix;
    uint64_t factor;
};
static const struct unit size_units[] = {{"", 1},      {"KiB", KIB},        {"MiB", MIB},
                                         {"GiB", GIB}, {"TiB", GIB * 1024}, {NULL, 0}};
static const struct unit time_units[] = {{"ms", 1},      {"s", 1000},     {"m", 60000},
                                         {"h", 3600000}, {"d", 86400000}, {NULL, 0}};
static const struct unit plain_units[] = {{"", 1}, {NULL, 0}};

static bool parse_number(const char *value, const struct unit *units, uint64_t *ret_number)
{
    uint64_t number = 0;
    const char *p = value;
    if (*p < '0' || *p > '9') {
        return false;
    }
    for (; *p >= '0' && *p <= '9'; p++) {
        if (__builtin_mul_overflow(number, UINT64_C(10), &number) ||
            __builtin_add_overflow(number, (uint64_t)(*p - '0'), &number)) {
            return false;
        }
    }
    for (const struct unit *unit = units; unit->suffix != NULL; unit++) {
        if (strcmp(p, unit->suffix) == 0) {
            return !__builtin_mul_overflow(number, unit->factor, ret_number);
        }
    }
    return false;
}

static enum conf_type type_of(const struct conf_key *key)
{
    return (enum conf_type)(key->type & CONF_TYPE);
}

static bool is_text(const struct conf_key *key)
{
    return type_of(key) == CONF_TEXT || type_of(key) == CONF_NAME || type_of(key) == CONF_WORD;
}

static const struct unit *units_of(enum conf_type type)
{
    return type == CONF_SIZE ? size_units : type == CONF_DURATION ? time_units : plain_units;
}

static const char *example_of(enum conf_type type)
{
    return type == CONF_SIZE ? "such as 64MiB" : type == CONF_DURATION ? "such as 250ms or 5s" : "a whole number";
}

static KV_RC set_number(struct kv_conf *conf, const struct conf_key *key, const char *value, struct kv_errinfo *info)
{
    uint64_t number = 0;
    if ((key->type & CONF_AUTO) != 0 && strcmp(value, "auto") == 0) {
        *number_at(conf, key) = 0;
        return KV_OK;
    }
    if (!parse_number(value, units_of(type_of(key)), &number)) {
        return kv_fail(info, KV_E_CONFIG, "%s: \"%.40s\" is not a value; write %s", key->name, value,
                       example_of(type_of(key)));
    }
    if (number < key->min || number > key->max) {
        return kv_fail(info, KV_E_CONFIG, "%s: %.40s is out of range (%" PRIu64 " to %" PRIu64 "%s)", key->name, value,
                       key->min, key->max,
                       type_of(key) == CONF_SIZE       ? " bytes"
                       : type_of(key) == CONF_DURATION ? " ms"
                                                       : "");
    }
    *number_at(conf, key) = number;
    return KV_OK;
}

/* It becomes part of the origin and the key name of every log: a space, a plus or a byte past ASCII in it would make
 * checkpoints that nobody can verify. */
static bool is_name(const char *value)
{
    size_t len = strlen(value);
    return len > 0 && len <= NAME_BYTES_MAX &&
           strspn(value, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") == len;
}

static KV_RC set_value(struct kv_conf *conf, const struct conf_key *key, const char *value, struct kv_errinfo *info)
{
    if (!is_text(key)) {
        return set_number(conf, key, value, info);
    }
    if (type_of(key) == CONF_NAME && !is_name(value)) {
        return kv_fail(info, KV_E_CONFIG, "%s: write a host name: 1 to %d letters, digits, dots, - and _", key->name,
                       NAME_BYTES_MAX);
    }
    if (type_of(key) == CONF_WORD && !word_allowed(key->words, value)) {
        return kv_fail(info, KV_E_CONFIG, "%s: \"%.40s\" is not one of %s", key->name, value, key->words);
    }
    size_t len = strlen(value);
    if (len >= KV_CONF_TEXT_SIZE) {
        return kv_fail(info, KV_E_CONFIG, "%s: the value is over %d bytes", key->name, KV_CONF_TEXT_SIZE - 1);
    }
    memcpy(text_at(conf, key), value, len + 1);
    return KV_OK;
}

static KV_RC set_named(struct kv_conf *conf, enum kv_conf_origin *origins, enum kv_conf_origin origin, const char *name,
                       size_t name_len, const char *value, struct kv_errinfo *info)
{
    const struct conf_key *key = find(name, name_len);
    if (key == NULL) {
        char text[64];
        snprintf(text, sizeof text, "%.*s", (int)(name_len < 60 ? name_len : 60), name);
        return kv_fail(info, KV_E_CONFIG, "unknown key \"%s\"; did you mean %s?", text, nearest(text));
    }
    KV_TRY(set_value(conf, key, value, info));
    if (origins != NULL) {
        origins[key - keys] = origin;
    }
    return KV_OK;
}

static char *trim(char *text)
{
    while (*text == ' ' || *text == '\t') {
        text++;
    }
    size_t len = strlen(text);
    while (len > 0 &&
           (text[len - 1] == ' ' || text[len - 1] == '\t' || text[len - 1] == '\r' || text[len - 1] == '\n')) {
        text[--len] = '\0';
    }
    return text;
}

static KV_RC load_line(struct kv_conf *conf, enum kv_conf_origin *origins, char *line, unsigned number,
                       bool seen[KEY_COUNT], struct kv_errinfo *info)
{
    line = trim(line);
    if (line[0] == '\0' || line[0] == '#') {
        return KV_OK;
    }
    char *equals = strchr(line, '=');
    if (equals == NULL) {
        return kv_fail(info, KV_E_CONFIG, "configuration line %u: expected key = value", number);
    }
    *equals = '\0';
    const char *name = trim(line);
    const struct conf_key *key = find(name, strlen(name));
    if (key != NULL && seen[key - keys]) {
        return kv_fail(info, KV_E_CONFIG, "configuration line %u: %s is there twice; keep one", number, key->name);
    }
    if (key != NULL) {
        seen[key - keys] = true;
    }
    return set_named(conf, origins, KV_CONF_FILE, name, strlen(name), trim(equals + 1), info);
}

static KV_RC load_file(struct kv_conf *conf, enum kv_conf_origin *origins, const char *file, struct kv_errinfo *info)
{
    FILE *stream = fopen(file, "re");
    if (stream == NULL) {
        return kv_fail(info, KV_E_CONFIG, "cannot read the configuration file: %s", strerror(errno));
    }
    char line[KV_CONF_TEXT_SIZE + 128];
    bool seen[KEY_COUNT] = {false};
    enum kv_err rc = KV_OK;
    for (unsigned number = 1; rc == KV_OK && fgets(line, sizeof line, stream) != NULL; number++) {
        if (strchr(line, '\n') == NULL && !feof(stream)) {
            rc = kv_fail(info, KV_E_CONFIG, "configuration line %u is too long", number);
        } else {
            rc = load_line(conf, origins, line, number, seen, info);
        }
    }
    if (rc == KV_OK && ferror(stream)) { /* a folder, or half a file: not what somebody wrote */
        rc = kv_fail(info, KV_E_CONFIG, "cannot read the configuration file: %s", strerror(errno));
    }
    fclose(stream);
    return rc;
}

static void env_name(const struct conf_key *key, char name[96])
{
    size_t n = (size_t)snprintf(name, 96, "KVRUN_%s", key->name);
    for (size_t i = 6; i < n; i++) {
        name[i] = (char)(name[i] == '.' ? '_' : (name[i] >= 'a' && name[i] <= 'z') ? name[i] - 32 : name[i]);
    }
}

static const char *env_value(char *const *environment, const char *name)
{
    size_t len = strlen(name);
    for (char *const *entry = environment; entry != NULL && *entry != NULL; entry++) {
        if (strncmp(*entry, name, len) == 0 && (*entry)[len] == '=') {
            return *entry + len + 1;
        }
    }
    return NULL;
}

/* What a mounted secret often has and nobody sees. Both are warnings: the mode may be the mount's, and a space may be
 * part of a password. */
static void warn_about_file(int fd, const char *name, const char *value, size_t len)
{
    struct stat file;
    if (fstat(fd, &file) == 0 && S_ISREG(file.st_mode) && (file.st_mode & 0177) != 0) {
        kv_log(KV_LOG_WARN, "config", "secret-file-is-open-to-others", KV_FT("variable", name),
               KV_FT("text", "others than its owner may read or change the file: chmod 0600"));
    }
    if (len > 0 && (isspace((unsigned char)value[0]) || isspace((unsigned char)value[len - 1]))) {
        kv_log(KV_LOG_WARN, "config", "secret-file-has-spaces", KV_FT("variable", name),
               KV_FT("text", "the value begins or ends with white space, which is kept: remove it unless it is meant"));
    }
}

static ssize_t read_all(int fd, char *value, size_t size)
{
    size_t len = 0;
    ssize_t n = 1;
    while (len < size && n > 0) { /* a pipe may give it in pieces */
        n = read(fd, value + len, size - len);
        len += n > 0 ? (size_t)n : 0;
    }
    return n < 0 || len == size || memchr(value, '\0', len) != NULL ? -1 : (ssize_t)len;
}

/* A value that may hold a secret comes from a file of its own; one line end at its end is not part of it. */
static KV_RC read_secret_file(const char *path, const char *name, char *value, size_t size, struct kv_errinfo *info)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0) {
        return kv_fail(info, KV_E_CONFIG, "cannot read the file that %s names: %s", name, strerror(errno));
    }
    ssize_t n = read_all(fd, value, size);
    if (n < 0) {
        close(fd);
        return kv_fail(info, KV_E_CONFIG, "the file that %s names is not readable text or too long", name);
    }
    size_t len = (size_t)n;
    len -= len > 0 && value[len - 1] == '\n' ? 1 : 0;
    len -= len > 0 && value[len - 1] == '\r' ? 1 : 0;
    value[len] = '\0';
    warn_about_file(fd, name, value, len);
    close(fd);
    if (len == 0) { /* a secret that was not mounted must not become a private database */
        return kv_fail(info, KV_E_CONFIG, "the file that %s names is empty; write the value into it", name);
    }
    return KV_OK;
}

static KV_RC load_secret(struct kv_conf *conf, enum kv_conf_origin *origins, const struct conf_key *key,
                         char *const *environment, struct kv_errinfo *info)
{
    char name[96], name_file[104], value[KV_CONF_TEXT_SIZE + 2]; /* with its line end */
    env_name(key, name);
    snprintf(name_file, sizeof name_file, "%s_FILE", name);
    const char *path = env_value(environment, name_file);
    if (path == NULL) {
        return KV_OK;
    }
    if (env_value(environment, name) != NULL) {
        return kv_fail(info, KV_E_CONFIG, "%s and %s are both set; keep one", name, name_file);
    }
    enum kv_err rc = read_secret_file(path, name_file, value, sizeof value, info);
    if (rc == KV_OK) {
        rc = set_named(conf, origins, KV_CONF_ENV, key->name, strlen(key->name), value, info);
    }
    kv_wipe(value, sizeof value);
    return rc;
}

static KV_RC load_environment(struct kv_conf *conf, enum kv_conf_origin *origins, char *const *environment,
                              struct kv_errinfo *info)
{
    for (size_t i = 0; i < KEY_COUNT; i++) {
        char name[96];
        env_name(&keys[i], name);
        const char *value = env_value(environment, name);
        if (value != NULL) {
            KV_TRY(set_named(conf, origins, KV_CONF_ENV, keys[i].name, strlen(keys[i].name), value, info));
        }
        if ((keys[i].type & CONF_SECRET_FILE) != 0) {
            KV_TRY(load_secret(conf, origins, &keys[i], environment, info));
        }
    }
    return KV_OK;
}

/* Takes "--a.key=value" and "--a.key value" out of argv; a word with a dot in it is a key, other flags are somebody
 * else's. */
static KV_RC load_flags(struct kv_conf *conf, enum kv_conf_origin *origins, int *argc, char **argv,
                        struct kv_errinfo *info)
{
    int kept = 1;
    for (int i = 1; i < *argc; i++) {
        const char *equals = strchr(argv[i], '=');
        size_t len = equals != NULL ? (size_t)(equals - argv[i]) : strlen(argv[i]);
        if (strncmp(argv[i], "--", 2) != 0 || memchr(argv[i], '.', len) == NULL) {
            argv[kept++] = argv[i];
            continue;
        }
        const char *name = argv[i] + 2;
        const char *value = equals != NULL ? equals + 1 : i + 1 < *argc ? argv[++i] : NULL;
        if (value == NULL) {
            return kv_fail(info, KV_E_CONFIG, "%.60s needs a value", name - 2);
        }
        KV_TRY(set_named(conf, origins, KV_CONF_FLAG, name, len - 2, value, info));
    }
    *argc = kept;
    argv[kept] = NULL;
    return KV_OK;
}

KV_RC kv_conf_load(const char *file, char *const *environment, int *argc, char **argv, struct kv_errinfo *info,
                   struct kv_conf *ret_conf, enum kv_conf_origin *ret_origins)
{
    struct kv_conf conf;
    memset(&conf, 0, sizeof conf);
    for (size_t i = 0; i < KEY_COUNT; i++) {
        KV_TRY(set_value(&conf, &keys[i], keys[i].fallback, info));
        if (ret_origins != NULL) {
            ret_origins[i] = KV_CONF_DEFAULT;
        }
    }
    if (file != NULL) {
        KV_TRY(load_file(&conf, ret_origins, file, info));
    }
    KV_TRY(load_environment(&conf, ret_origins, environment, info));
    KV_TRY(load_flags(&conf, ret_origins, argc, argv, info));
    if (conf.watermark_low > conf.watermark_high) {
        return kv_fail(info, KV_E_CONFIG, "placement.watermark_low is above placement.watermark_high; swap them");
    }
    if (conf.dram_bytes == 0) {
        conf.dram_bytes = kv_conf_dram_default("");
    }
    *ret_conf = conf;
    return KV_OK;
}

size_t kv_conf_reload(struct kv_conf *conf, const struct kv_conf *fresh, kv_conf_change_fn *tell, void *ctx)
{
    size_t applied = 0;
    for (size_t i = 0; i < KEY_COUNT; i++) {
        size_t size = is_text(&keys[i]) ? KV_CONF_TEXT_SIZE : sizeof(uint64_t);
        char *old = (char *)conf + keys[i].offset;
        const char *new = (const char *)fresh + keys[i].offset;
        bool same = is_text(&keys[i]) ? strcmp(old, new) == 0 : memcmp(old, new, size) == 0;
        bool may = (keys[i].type & CONF_RELOADABLE) != 0;
        if (!same && may) {
            memcpy(old, new, size);
            applied++;
        }
        if (!same) {
            tell(ctx, keys[i].name, may);
        }
    }
    return applied;
}

/* Words in which a password may stand; a URL may write any letter of "password" as %XX. */
static bool may_have_password(const char *url)
{
    return strstr(url, "password") != NULL || strchr(url, '%') != NULL;
}

/* The value as text; a password inside a database URL is not shown, nor what stands before the host: a password with an
 * @ in it goes on to the last one. */
static void show_value(const struct kv_conf *conf, const struct conf_key *key, struct kv_buf *buf)
{
    const char *base = (const char *)conf + key->offset;
    if (!is_text(key)) {
        uint64_t number = 0;
        memcpy(&number, base, sizeof number);
        kv_buf_printf(buf, "%" PRIu64, number);
    } else if (key->offset == AT(db_url) && may_have_password(base)) {
        kv_buf_text(buf, "*** (may have a password)");
    } else if (key->offset == AT(db_url) && strchr(base, '@') != NULL) {
        kv_buf_text(buf, "***");
        kv_buf_text(buf, strrchr(base, '@'));
    } else {
        kv_buf_text(buf, base[0] == '\0' ? "(empty)" : base);
    }
}

static const char *const origin_names[] = {"default", "file", "environment", "flag"};

void kv_conf_entry(const struct kv_conf *conf, const enum kv_conf_origin *origins, size_t index,
                   struct kv_conf_entry *ret_entry)
{
    KV_ASSERT(index < KEY_COUNT);
    const struct conf_key *key = &keys[index];
    const char *base = (const char *)conf + key->offset;
    *ret_entry = (struct kv_conf_entry){.key = key->name,
                                        .origin = origin_names[origins[index]],
                                        .number = !is_text(key),
                                        .reloadable = (key->type & CONF_RELOADABLE) != 0};
    if (ret_entry->number) {
        uint64_t number = 0;
        memcpy(&number, base, sizeof number);
        snprintf(ret_entry->value, sizeof ret_entry->value, "%" PRIu64, number);
    } else if ((key->type & CONF_SECRET_FILE) != 0 && base[0] != '\0') {
        uint8_t hash[32] = {0};
        bool known = kv_sha256(KV_BYTES(base, strlen(base)), hash) == KV_OK;
        snprintf(ret_entry->value, sizeof ret_entry->value, known ? "*** sha256:%02x%02x%02x%02x" : "***", hash[0],
                 hash[1], hash[2], hash[3]);
    } else {
        snprintf(ret_entry->value, sizeof ret_entry->value, "%s", base);
    }
}

void kv_conf_show(const struct kv_conf *conf, const enum kv_conf_origin *origins, struct kv_buf *buf)
{
    for (size_t i = 0; i < KEY_COUNT; i++) {
        kv_buf_printf(buf, "%-26s ", keys[i].name);
        show_value(conf, &keys[i], buf);
        kv_buf_printf(buf, "  [%s]\n", origin_names[origins[i]]);
    }
}

void kv_conf_docs(struct kv_buf *buf)
{
    kv_buf_text(buf, "| key | default | values | | meaning |\n|---|---|---|---|---|\n");
    for (size_t i = 0; i < KEY_COUNT; i++) {
        static const char *const types[] = {"text", "name", "", "number", "size", "duration", "percent"};
        char words[64];
        snprintf(words, sizeof words, "%s", keys[i].words == NULL ? types[type_of(&keys[i])] : keys[i].words);
        for (char *p = strchr(words, '|'); p != NULL; p = strchr(p, '|')) {
            *p = ','; /* a bar would end the cell */
        }
        kv_buf_printf(buf, "| `%s` | %s | %s | %s%s | %s |\n", keys[i].name,
                      keys[i].fallback[0] == '\0' ? "(empty)" : keys[i].fallback, words,
                      (keys[i].type & CONF_RELOADABLE) != 0 ? "R" : "",
                      (keys[i].type & CONF_SECRET_FILE) != 0 ? "F" : "", keys[i].help);
    }
}
