/* Configuration: bounds, units, precedence, where values come from, what is shown, and the table in the README. */
#include "server/config/conf.h"

#include "dataplane/base/log.h"
#include "kv_version.h"
#include "tests/lib/temp_folder.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define KEYS_MAX 128

static struct kv_conf conf;
static struct kv_errinfo info;
static enum kv_conf_origin origins[KEYS_MAX];

/* NULL-terminated; `flag` may be NULL. */
static enum kv_err load(const char *file, char *const *environment, const char *flag)
{
    char program[] = "kvrun", word[4096];
    char *argv[] = {program, word, NULL};
    int argc = flag == NULL ? 1 : 2;
    argv[argc] = NULL;
    snprintf(word, sizeof word, "%s", flag == NULL ? "" : flag);
    info = (struct kv_errinfo){0};
    return kv_conf_load(file, environment, &argc, argv, &info, &conf, origins);
}

static char folder[KVT_PATH_BYTES], path[KVT_PATH_BYTES];

static void file_with(const char *text)
{
    kvt_folder_make(folder);
    kvt_path_join(path, folder, "conf");
    kvt_file_write(path, text, strlen(text), 0600);
}

static enum kv_err load_text(const char *text)
{
    file_with(text);
    enum kv_err rc = load(path, NULL, NULL);
    kvt_folder_remove(folder);
    return rc;
}

/* The names of all keys, from the table as it is documented. */
static size_t names(char ret_names[KEYS_MAX][64], char ret_types[KEYS_MAX][64])
{
    struct kv_buf docs;
    size_t count = 0;
    kv_buf_init(&docs, 65536);
    kv_conf_docs(&docs);
    for (char *line = strstr((char *)docs.data, "\n| `"); line != NULL; line = strstr(line + 1, "\n| `")) {
        char fallback[64];
        cr_assert(eq(
            int, sscanf(line, "\n| `%63[^`]` | %63[^|] | %63[^|]", ret_names[count], fallback, ret_types[count]), 3));
        count++;
    }
    kv_buf_done(&docs);
    return count;
}

static int index_of(const char *name)
{
    static char all[KEYS_MAX][64], types[KEYS_MAX][64];
    size_t count = names(all, types);
    for (size_t i = 0; i < count; i++) {
        if (strcmp(all[i], name) == 0) {
            return (int)i;
        }
    }
    cr_assert(false, "no key %s", name);
    return -1;
}

static enum kv_conf_origin origin_of(const char *name)
{
    return origins[index_of(name)];
}

/* --- bounds and units -------------------------------------------------------------------------------------------- */

struct bounds {
    const char *key, *least, *below, *most, *above;
    size_t offset;
    uint64_t least_value, most_value;
};

#define ROW(key, member, least, below, most, above, least_value, most_value)                                          \
    {                                                                                                                 \
        key, least, below, most, above, offsetof(struct kv_conf, member), UINT64_C(least_value), UINT64_C(most_value) \
    }

static const struct bounds all_bounds[] = {
    ROW("http.connections", http_connections, "1", "0", "100000", "100001", 1, 100000),
    ROW("http.header_timeout", http_header_timeout_ms, "100ms", "99ms", "10m", "600001ms", 100, 600000),
    ROW("http.idle_timeout", http_idle_timeout_ms, "1s", "999ms", "1h", "3600001ms", 1000, 3600000),
    ROW("http.per_ip", http_per_ip, "0", "-1", "100000", "100001", 0, 100000),
    ROW("http.tls.reload_interval", tls_reload_ms, "1s", "999ms", "1d", "86400001ms", 1000, 86400000),
    ROW("events.heartbeat", events_heartbeat_ms, "1s", "999ms", "10m", "600001ms", 1000, 600000),
    ROW("service.threads", service_threads, "1", "0", "64", "65", 1, 64),
    ROW("tiers.dram.bytes", dram_bytes, "1MiB", "1048575", "1TiB", "1099511627777", 1048576, 1099511627776),
    ROW("tiers.nvme.bytes", nvme_bytes, "0", "-1", "1024TiB", "1125899906842625", 0, 1125899906842624),
    ROW("placement.watermark_high", watermark_high, "80", "9", "100", "101", 80, 100),
    ROW("placement.watermark_low", watermark_low, "5", "4", "90", "101", 5, 90),
    ROW("device.staging_bytes", staging_bytes, "1MiB", "1048575", "64MiB", "67108865", 1048576, 67108864),
    ROW("io.queue_depth", io_queue_depth, "1", "0", "4096", "4097", 1, 4096),
    ROW("io.threads", io_threads, "1", "0", "64", "65", 1, 64),
    ROW("root.transit.timeout", root_transit_timeout_ms, "100ms", "99ms", "1m", "60001ms", 100, 60000),
    ROW("root.transit.backup_window", root_transit_backup_window_ms, "0s", "-1s", "3650d", "315360000001ms", 0,
        315360000000),
    ROW("instance.lease", instance_lease_ms, "1s", "999ms", "1m", "60001ms", 1000, 60000),
    ROW("erase.standby_wait", erase_standby_wait_ms, "0s", "-1s", "10m", "600001ms", 0, 600000),
    ROW("erase.batch_window", erase_batch_window_ms, "0s", "-1s", "1m", "60001ms", 0, 60000),
    ROW("erase.batch_max", erase_batch_max, "1", "0", "1024", "1025", 1, 1024),
    ROW("audit.journal_bytes", journal_bytes, "1MiB", "1048575", "1GiB", "1073741825", 1048576, 1073741824),
    ROW("audit.max_lag", audit_max_lag_ms, "1s", "999ms", "1h", "3600001ms", 1000, 3600000),
    ROW("retention.operations", retention_operations_ms, "1m", "59999ms", "365d", "31536000001ms", 60000, 31536000000),
    ROW("rate.default", rate_default, "0", "-1", "1000000", "1000001", 0, 1000000),
    ROW("rate.erase", rate_erase, "1", "0", "1000000", "1000001", 1, 1000000),
    ROW("rate.public", rate_public, "1", "0", "1000000", "1000001", 1, 1000000),
    ROW("rate.unauthenticated", rate_unauthenticated, "0", "-1", "1000000", "1000001", 0, 1000000),
    ROW("metrics.tenant_max", metrics_tenant_max, "1", "0", "1000", "1001", 1, 1000),
    ROW("db.statement_timeout", db_statement_timeout_ms, "100ms", "99ms", "1m", "60001ms", 100, 60000),
    ROW("db.lock_timeout", db_lock_timeout_ms, "50ms", "49ms", "1m", "60001ms", 50, 60000),
    ROW("db.start_wait", db_start_wait_ms, "1s", "999ms", "1h", "3600001ms", 1000, 3600000),
    ROW("shutdown.delay", shutdown_delay_ms, "0s", "-1s", "10m", "600001ms", 0, 600000),
    ROW("shutdown.grace", shutdown_grace_ms, "0s", "-1s", "10m", "600001ms", 0, 600000),
};
#define BOUNDS (sizeof all_bounds / sizeof all_bounds[0])

static uint64_t value_at(size_t offset)
{
    uint64_t value = 0;
    memcpy(&value, (const char *)&conf + offset, sizeof value);
    return value;
}

static enum kv_err set(const char *key, const char *value)
{
    char flag[4096];
    snprintf(flag, sizeof flag, "--%s=%s", key, value);
    return load(NULL, NULL, flag);
}

Test(conf, defaults_are_all_in_bounds)
{
    cr_assert(eq(int, load(NULL, NULL, NULL), KV_OK), "%s", info.text);
    for (size_t i = 0; i < kv_conf_count(); i++) {
        cr_assert(eq(int, origins[i], KV_CONF_DEFAULT));
    }
    cr_assert(eq(str, conf.http_listen, "127.0.0.1:7433"));
    cr_assert(eq(u64, conf.dram_bytes, kv_conf_dram_default("")));
    cr_assert(eq(u64, conf.instance_lease_ms, 5000));
    cr_assert(eq(str, conf.db_url, ""));
}

Test(conf, every_number_holds_its_bounds_and_one_past_them)
{
    for (size_t i = 0; i < BOUNDS; i++) {
        const struct bounds *b = &all_bounds[i];
        cr_assert(eq(int, set(b->key, b->least), KV_OK), "%s=%s: %s", b->key, b->least, info.text);
        cr_assert(eq(u64, value_at(b->offset), b->least_value));
        cr_assert(eq(int, set(b->key, b->most), KV_OK), "%s=%s: %s", b->key, b->most, info.text);
        cr_assert(eq(u64, value_at(b->offset), b->most_value));
        cr_assert(eq(int, set(b->key, b->below), KV_E_CONFIG), "%s=%s", b->key, b->below);
        cr_assert(strstr(info.text, b->key) != NULL, "%s", info.text);
        cr_assert(eq(int, set(b->key, b->above), KV_E_CONFIG), "%s=%s", b->key, b->above);
        cr_assert(strstr(info.text, b->key) != NULL, "%s", info.text);
        cr_assert(strstr(info.text, "out of range") != NULL, "%s", info.text);
    }
}

Test(conf, every_number_of_the_table_is_tested_here)
{
    static char all[KEYS_MAX][64], types[KEYS_MAX][64];
    size_t count = names(all, types), numbers = 0;
    cr_assert(eq(sz, count, kv_conf_count()));
    for (size_t i = 0; i < count; i++) {
        bool number = strncmp(types[i], "number", 6) == 0 || strncmp(types[i], "size", 4) == 0 ||
                      strncmp(types[i], "duration", 8) == 0 || strncmp(types[i], "percent", 7) == 0;
        numbers += number;
        bool found = !number;
        for (size_t j = 0; j < BOUNDS && !found; j++) {
            found = strcmp(all_bounds[j].key, all[i]) == 0;
        }
        cr_assert(found, "add the bounds of %s", all[i]);
    }
    cr_assert(eq(sz, numbers, BOUNDS));
}

Test(conf, units_mean_what_they_say)
{
    static const struct {
        const char *key, *value;
        size_t offset;
        uint64_t expected;
    } cases[] = {
        {"tiers.nvme.bytes", "3", offsetof(struct kv_conf, nvme_bytes), 3},
        {"tiers.nvme.bytes", "3KiB", offsetof(struct kv_conf, nvme_bytes), 3072},
        {"tiers.nvme.bytes", "3MiB", offsetof(struct kv_conf, nvme_bytes), 3145728},
        {"tiers.nvme.bytes", "3GiB", offsetof(struct kv_conf, nvme_bytes), UINT64_C(3) << 30},
        {"tiers.nvme.bytes", "3TiB", offsetof(struct kv_conf, nvme_bytes), UINT64_C(3) << 40},
        {"audit.max_lag", "1500ms", offsetof(struct kv_conf, audit_max_lag_ms), 1500},
        {"audit.max_lag", "2s", offsetof(struct kv_conf, audit_max_lag_ms), 2000},
        {"audit.max_lag", "2m", offsetof(struct kv_conf, audit_max_lag_ms), 120000},
        {"audit.max_lag", "1h", offsetof(struct kv_conf, audit_max_lag_ms), 3600000},
        {"shutdown.grace", "0d", offsetof(struct kv_conf, shutdown_grace_ms), 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cr_assert(eq(int, set(cases[i].key, cases[i].value), KV_OK), "%s: %s", cases[i].value, info.text);
        cr_assert(eq(u64, value_at(cases[i].offset), cases[i].expected));
    }
}

Test(conf, what_is_no_number_is_refused_with_an_example)
{
    static const char *const sizes[] = {"",
                                        "MiB",
                                        "64 MiB",
                                        "64mib",
                                        "64MB",
                                        "64M",
                                        "0x40",
                                        "+64",
                                        " 64MiB",
                                        "6.4",
                                        "64MiBx",
                                        "18446744073709551616",
                                        "99999999999TiB"};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        cr_assert(eq(int, set("tiers.nvme.bytes", sizes[i]), KV_E_CONFIG), "\"%s\"", sizes[i]);
        cr_assert(strstr(info.text, "such as 64MiB") != NULL, "%s", info.text);
    }
    static const char *const durations[] = {"5", "5 s", "5S", "5sec", "s", "1w", "0.5s"};
    for (size_t i = 0; i < sizeof durations / sizeof durations[0]; i++) {
        cr_assert(eq(int, set("instance.lease", durations[i]), KV_E_CONFIG), "\"%s\"", durations[i]);
        cr_assert(strstr(info.text, "such as 250ms or 5s") != NULL, "%s", info.text);
    }
    cr_assert(eq(int, set("io.threads", "4KiB"), KV_E_CONFIG));
    cr_assert(strstr(info.text, "a whole number") != NULL, "%s", info.text);
}

Test(conf, words_are_one_of_a_list)
{
    static const struct {
        const char *key, *good, *bad;
    } cases[] = {
        {"db.migrate", "auto", "yes"},
        {"db.migrate", "check", "chec"},
        {"root.provider", "memory", "memory|"},
        {"root.provider", "file", ""},
        {"io.engine", "io_uring", "uring"},
        {"io.engine", "threads", "auto|io_uring"},
        {"crypto.backend", "openssl", "OpenSSL"},
        {"crypto.backend", "ipsec-mb", "ipsec"},
        {"log.level", "debug", "trace"},
        {"log.level", "error", "errors"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cr_assert(eq(int, set(cases[i].key, cases[i].good), KV_OK), "%s", info.text);
        cr_assert(eq(int, set(cases[i].key, cases[i].bad), KV_E_CONFIG), "%s", cases[i].bad);
        cr_assert(strstr(info.text, cases[i].key) != NULL && strstr(info.text, cases[i].good) != NULL, "%s", info.text);
    }
}

Test(conf, text_has_a_longest_length)
{
    char value[KV_CONF_TEXT_SIZE + 1];
    memset(value, 'a', sizeof value);
    value[KV_CONF_TEXT_SIZE - 1] = '\0';
    cr_assert(eq(int, set("state.dir", value), KV_OK), "%s", info.text);
    cr_assert(eq(str, conf.state_dir, value));
    value[KV_CONF_TEXT_SIZE - 1] = 'a';
    value[KV_CONF_TEXT_SIZE] = '\0';
    cr_assert(eq(int, set("state.dir", value), KV_E_CONFIG));
    cr_assert(strstr(info.text, "1023 bytes") != NULL, "%s", info.text);
}

Test(conf, name_of_the_logs_is_one_that_verifiers_take)
{
    static const char *const bad[] = {"", "a b", "a+b", "a/b", "a\nb", "\xc3\xa9", "a\"b", "a:1"};
    char longest[255];
    memset(longest, 'a', sizeof longest);
    longest[253] = '\0';
    cr_assert(eq(int, set("log.host", "kv-1.Example_x.org"), KV_OK), "%s", info.text);
    cr_assert(eq(int, set("log.host", longest), KV_OK), "%s", info.text);
    longest[253] = 'a';
    longest[254] = '\0';
    cr_assert(eq(int, set("log.host", longest), KV_E_CONFIG));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_assert(eq(int, set("log.host", bad[i]), KV_E_CONFIG), "%s", bad[i]);
        cr_assert(strstr(info.text, "log.host: write a host name") != NULL, "%s", info.text);
    }
}

Test(conf, failure_leaves_what_was_there)
{
    cr_assert(eq(int, set("io.threads", "7"), KV_OK));
    cr_assert(eq(int, set("io.threads", "x"), KV_E_CONFIG));
    cr_assert(eq(u64, conf.io_threads, 7));
}

Test(conf, watermarks_that_are_swapped_are_refused)
{
    cr_assert(eq(int, load_text("placement.watermark_high = 50\nplacement.watermark_low = 50\n"), KV_OK), "%s",
              info.text);
    cr_assert(eq(int, load_text("placement.watermark_high = 50\nplacement.watermark_low = 51\n"), KV_E_CONFIG));
    cr_assert(strstr(info.text, "swap") != NULL, "%s", info.text);
    cr_assert(eq(int, set("placement.watermark_high", "79"), KV_E_CONFIG)); /* below the other's default */
}

/* --- names ------------------------------------------------------------------------------------------------------- */

Test(conf, unknown_key_names_the_nearest)
{
    static const struct {
        const char *wrong, *meant;
    } cases[] = {
        {"http.listn", "http.listen"},        {"db.ulr", "db.url"},       {"tiers.dram.byte", "tiers.dram.bytes"},
        {"instance.leese", "instance.lease"}, {"log.levle", "log.level"}, {"root.porvider", "root.provider"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char expected[128];
        cr_assert(eq(int, set(cases[i].wrong, "1"), KV_E_CONFIG));
        snprintf(expected, sizeof expected, "\"%s\"; did you mean %s?", cases[i].wrong, cases[i].meant);
        cr_assert(strstr(info.text, expected) != NULL, "%s", info.text);
    }
}

Test(conf, unknown_key_of_any_length_is_only_an_error)
{
    char flag[2048];
    for (size_t len = 1; len < 2000; len += 37) {
        memset(flag, 'k', sizeof flag);
        memcpy(flag, "--", 2);
        flag[2 + len / 2] = '.';
        snprintf(flag + 2 + len, sizeof flag - 2 - len, "=1");
        cr_assert(eq(int, load(NULL, NULL, flag), KV_E_CONFIG));
    }
}

/* --- file -------------------------------------------------------------------------------------------------------- */

Test(conf, file_has_comments_spaces_and_any_line_end)
{
    cr_assert(eq(int,
                 load_text("# a comment = not a key\n\n   \t\n  io.threads=3\r\nio.queue_depth  =\t 9  \n"
                           "state.dir = /a b#c=d\nlog.level = warn"),
                 KV_OK),
              "%s", info.text);
    cr_assert(eq(u64, conf.io_threads, 3));
    cr_assert(eq(u64, conf.io_queue_depth, 9));
    cr_assert(eq(str, conf.state_dir, "/a b#c=d"));
    cr_assert(eq(str, conf.log_level, "warn"));
    cr_assert(eq(int, origin_of("io.threads"), KV_CONF_FILE));
    cr_assert(eq(int, origin_of("http.listen"), KV_CONF_DEFAULT));
}

Test(conf, file_with_an_empty_text_sets_it_empty)
{
    cr_assert(eq(int, load_text("state.dir =\n"), KV_OK), "%s", info.text);
    cr_assert(eq(str, conf.state_dir, ""));
}

Test(conf, key_that_is_twice_in_a_file_is_named_with_its_line)
{
    cr_assert(eq(int, load_text("log.level = warn\nio.threads = 2\n"), KV_OK), "%s", info.text);
    cr_assert(eq(int, load_text("log.level = warn\n# again\nlog.level = warn\n"), KV_E_CONFIG));
    cr_assert(strstr(info.text, "line 3: log.level is there twice") != NULL, "%s", info.text);
}

Test(conf, line_without_equals_is_named_by_its_number)
{
    cr_assert(eq(int, load_text("io.threads = 3\n\nio.queue_depth 9\n"), KV_E_CONFIG));
    cr_assert(strstr(info.text, "line 3") != NULL, "%s", info.text);
}

Test(conf, long_lines_are_refused_and_never_cut)
{
    char text[8192], *end = text;
    end += sprintf(end, "io.threads = 3\nstate.dir = ");
    memset(end, 'x', KV_CONF_TEXT_SIZE - 1);
    strcpy(end + KV_CONF_TEXT_SIZE - 1, "\n");
    cr_assert(eq(int, load_text(text), KV_OK), "%s", info.text);
    cr_assert(eq(sz, strlen(conf.state_dir), KV_CONF_TEXT_SIZE - 1));
    memset(end, 'x', KV_CONF_TEXT_SIZE);
    strcpy(end + KV_CONF_TEXT_SIZE, "\n");
    cr_assert(eq(int, load_text(text), KV_E_CONFIG));
    /* The rest of a line that is too long must not be read as a line of its own. */
    memset(end, 'x', 3000);
    strcpy(end + 3000, "\nio.threads = 5\n");
    cr_assert(eq(int, load_text(text), KV_E_CONFIG));
    cr_assert(strstr(info.text, "line 2 is too long") != NULL, "%s", info.text);
}

Test(conf, file_that_is_not_there_is_an_error)
{
    cr_assert(eq(int, load("/nonexistent/kvrun.conf", NULL, NULL), KV_E_CONFIG));
    cr_assert(strstr(info.text, "cannot read the configuration file") != NULL, "%s", info.text);
    cr_assert(eq(int, load("/", NULL, NULL), KV_E_CONFIG), "a folder is no file");
}

/* --- where values come from -------------------------------------------------------------------------------------- */

Test(conf, flag_beats_environment_beats_file_beats_default)
{
    char setting[] = "KVRUN_IO_THREADS=12", other[] = "KVRUN_HTTP_ADMIN_LISTEN=127.0.0.1:1";
    char *environment[] = {setting, other, NULL};
    file_with("io.threads = 11\nio.queue_depth = 21\n");
    cr_assert(eq(int, load(path, NULL, NULL), KV_OK));
    cr_assert(eq(u64, conf.io_threads, 11));
    cr_assert(eq(int, origin_of("io.threads"), KV_CONF_FILE));
    cr_assert(eq(int, load(path, environment, NULL), KV_OK));
    cr_assert(eq(u64, conf.io_threads, 12));
    cr_assert(eq(u64, conf.io_queue_depth, 21));
    cr_assert(eq(str, conf.http_admin_listen, "127.0.0.1:1"));
    cr_assert(eq(int, origin_of("io.threads"), KV_CONF_ENV));
    cr_assert(eq(int, origin_of("http.admin_listen"), KV_CONF_ENV));
    cr_assert(eq(int, load(path, environment, "--io.threads=13"), KV_OK));
    cr_assert(eq(u64, conf.io_threads, 13));
    cr_assert(eq(int, origin_of("io.threads"), KV_CONF_FLAG));
    cr_assert(eq(int, origin_of("io.queue_depth"), KV_CONF_FILE));
    kvt_folder_remove(folder);
}

Test(conf, environment_names_match_whole)
{
    char longer[] = "KVRUN_IO_THREADS_X=12", lower[] = "kvrun_io_threads=13", none[] = "KVRUN_IO_THREADS";
    char *environment[] = {longer, lower, none, NULL};
    cr_assert(eq(int, load(NULL, environment, NULL), KV_OK), "%s", info.text);
    cr_assert(eq(u64, conf.io_threads, 4));
}

Test(conf, environment_is_checked_like_everything_else)
{
    char bad[] = "KVRUN_IO_THREADS=many";
    char *environment[] = {bad, NULL};
    cr_assert(eq(int, load(NULL, environment, NULL), KV_E_CONFIG));
    cr_assert(strstr(info.text, "io.threads") != NULL, "%s", info.text);
}

Test(conf, flags_are_taken_out_and_the_rest_stays_in_order)
{
    char a[] = "kvrun", b[] = "serve", c[] = "--io.threads", d[] = "5", e[] = "--verbose", f[] = "--io.queue_depth=6",
         g[] = "last.word";
    char *argv[] = {a, b, c, d, e, f, g, NULL};
    int argc = 7;
    cr_assert(eq(int, kv_conf_load(NULL, NULL, &argc, argv, &info, &conf, NULL), KV_OK), "%s", info.text);
    cr_assert(eq(u64, conf.io_threads, 5));
    cr_assert(eq(u64, conf.io_queue_depth, 6));
    cr_assert(eq(int, argc, 4));
    cr_assert(argv[1] == b && argv[2] == e && argv[3] == g && argv[4] == NULL);
}

Test(conf, flag_without_a_value_is_an_error)
{
    cr_assert(eq(int, load(NULL, NULL, "--io.threads"), KV_E_CONFIG));
    cr_assert(strstr(info.text, "--io.threads needs a value") != NULL, "%s", info.text);
}

/* --- the database's address -------------------------------------------------------------------------------------- */

static enum kv_err load_url_file(const char *content, size_t len)
{
    char setting[KVT_PATH_BYTES + 64];
    char *environment[] = {setting, NULL};
    kvt_folder_make(folder);
    kvt_path_join(path, folder, "url");
    kvt_file_write(path, content, len, 0600);
    snprintf(setting, sizeof setting, "KVRUN_DB_URL_FILE=%s", path);
    enum kv_err rc = load(NULL, environment, NULL);
    kvt_folder_remove(folder);
    return rc;
}

Test(conf, url_file_loses_one_line_end_of_any_kind)
{
    static const struct {
        const char *content, *value;
    } cases[] = {
        {"postgresql://h/d", "postgresql://h/d"},       {"postgresql://h/d\n", "postgresql://h/d"},
        {"postgresql://h/d\r\n", "postgresql://h/d"},   {"postgresql://h/d \n", "postgresql://h/d "},
        {"postgresql://h/d\n\n", "postgresql://h/d\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cr_assert(eq(int, load_url_file(cases[i].content, strlen(cases[i].content)), KV_OK), "%s", info.text);
        cr_assert(eq(str, conf.db_url, (char *)(uintptr_t)cases[i].value));
        cr_assert(eq(int, origin_of("db.url"), KV_CONF_ENV));
    }
}

Test(conf, url_file_has_the_same_longest_value_as_a_flag)
{
    char text[KV_CONF_TEXT_SIZE + 3];
    memset(text, 'u', sizeof text);
    text[KV_CONF_TEXT_SIZE - 1] = '\n';
    cr_assert(eq(int, load_url_file(text, KV_CONF_TEXT_SIZE), KV_OK), "%s", info.text);
    cr_assert(eq(sz, strlen(conf.db_url), KV_CONF_TEXT_SIZE - 1));
    cr_assert(eq(int, load_url_file(text, KV_CONF_TEXT_SIZE - 1), KV_OK), "%s", info.text);
    memset(text, 'u', sizeof text);
    cr_assert(eq(int, load_url_file(text, KV_CONF_TEXT_SIZE), KV_E_CONFIG));
    cr_assert(eq(int, load_url_file(text, sizeof text), KV_E_CONFIG));
}

Test(conf, url_file_with_nothing_in_it_is_refused_and_makes_no_private_database)
{
    static const char *const contents[] = {"", "\n", "\r\n"};
    for (size_t i = 0; i < sizeof contents / sizeof contents[0]; i++) {
        cr_assert(eq(int, load_url_file(contents[i], strlen(contents[i])), KV_E_CONFIG));
        cr_assert(strstr(info.text, "is empty") != NULL, "%s", info.text);
    }
}

Test(conf, url_file_with_a_zero_byte_is_refused)
{
    cr_assert(eq(int, load_url_file("postgresql://h\0/d\n", 18), KV_E_CONFIG));
}

Test(conf, url_file_that_is_not_there_is_an_error_without_its_name)
{
    char setting[] = "KVRUN_DB_URL_FILE=/nonexistent/secret-name";
    char *environment[] = {setting, NULL};
    cr_assert(eq(int, load(NULL, environment, NULL), KV_E_CONFIG));
    cr_assert(strstr(info.text, "KVRUN_DB_URL_FILE") != NULL && strstr(info.text, "secret-name") == NULL, "%s",
              info.text);
}

Test(conf, url_and_url_file_together_are_an_error)
{
    char setting[] = "KVRUN_DB_URL_FILE=/nonexistent/url", url[] = "KVRUN_DB_URL=postgresql://h/d";
    char *both[] = {setting, url, NULL}, *one[] = {url, NULL};
    cr_assert(eq(int, load(NULL, both, NULL), KV_E_CONFIG));
    cr_assert(strstr(info.text, "both set") != NULL, "%s", info.text);
    cr_assert(eq(int, load(NULL, one, NULL), KV_OK));
}

Test(conf, url_file_beats_the_file_and_loses_to_a_flag)
{
    char setting[KVT_PATH_BYTES + 64], url_path[KVT_PATH_BYTES];
    char *environment[] = {setting, NULL};
    file_with("db.url = postgresql://from-file/d\n");
    kvt_path_join(url_path, folder, "url");
    kvt_file_write(url_path, "postgresql://from-secret/d\n", 27, 0600);
    snprintf(setting, sizeof setting, "KVRUN_DB_URL_FILE=%s", url_path);
    cr_assert(eq(int, load(path, environment, NULL), KV_OK));
    cr_assert(eq(str, conf.db_url, "postgresql://from-secret/d"));
    cr_assert(eq(int, load(path, environment, "--db.url=postgresql://from-flag/d"), KV_OK));
    cr_assert(eq(str, conf.db_url, "postgresql://from-flag/d"));
    kvt_folder_remove(folder);
}

/* What the log says while a url file is loaded. */
static void warnings_of(const char *content, mode_t mode, char ret_log[4096])
{
    char setting[KVT_PATH_BYTES + 64], log[KVT_PATH_BYTES];
    char *environment[] = {setting, NULL};
    kvt_folder_make(folder);
    kvt_path_join(path, folder, "url");
    kvt_path_join(log, folder, "log");
    kvt_file_write(path, content, strlen(content), 0600);
    cr_assert(eq(int, chmod(path, mode), 0));
    snprintf(setting, sizeof setting, "KVRUN_DB_URL_FILE=%s", path);
    int fd = open(log, O_RDWR | O_CREAT, 0600);
    kv_log_set_fd(fd);
    cr_assert(eq(int, load(NULL, environment, NULL), KV_OK), "%s", info.text);
    kv_log_set_fd(2);
    ssize_t n = pread(fd, ret_log, 4095, 0);
    ret_log[n < 0 ? 0 : n] = '\0';
    close(fd);
    kvt_folder_remove(folder);
}

Test(conf, url_file_is_warned_about_when_it_is_open_or_has_spaces)
{
    char log[4096];
    static const mode_t open_modes[] = {0640, 0604, 0620, 0602, 0644, 0700};
    warnings_of("host=hunter2\n", 0600, log);
    cr_assert(eq(str, log, ""));
    warnings_of("host=hunter2\n", 0400, log);
    cr_assert(eq(str, log, ""));
    for (size_t i = 0; i < sizeof open_modes / sizeof open_modes[0]; i++) {
        warnings_of("host=hunter2\n", open_modes[i], log);
        cr_assert(strstr(log, "secret-file-is-open-to-others") != NULL, "%o: %s", (unsigned)open_modes[i], log);
        cr_assert(strstr(log, "has-spaces") == NULL, "%s", log);
    }
    static const char *const spaced[] = {"host=hunter2 \n", " host=hunter2", "host=hunter2\n\n", "host=hunter2\t"};
    for (size_t i = 0; i < sizeof spaced / sizeof spaced[0]; i++) {
        warnings_of(spaced[i], 0600, log);
        cr_assert(strstr(log, "secret-file-has-spaces") != NULL, "\"%s\": %s", spaced[i], log);
        cr_assert(strstr(log, "KVRUN_DB_URL_FILE") != NULL && strstr(log, "hunter2") == NULL, "%s", log);
    }
}

/* --- reloading --------------------------------------------------------------------------------------------------- */

struct told {
    char applied[256], others[256];
};

static void tell(void *ctx, const char *key, bool applied)
{
    struct told *told = ctx;
    char *at = applied ? told->applied : told->others;
    snprintf(at + strlen(at), 256 - strlen(at), "%s ", key);
}

Test(conf, reload_takes_what_it_may_and_names_the_rest)
{
    static struct kv_conf running;
    struct told told = {"", ""};
    cr_assert(eq(int, load(NULL, NULL, NULL), KV_OK));
    running = conf;
    cr_assert(eq(sz, kv_conf_reload(&running, &conf, tell, &told), 0));
    cr_assert(eq(str, told.applied, ""));
    cr_assert(eq(str, told.others, ""));
    cr_assert(eq(int, load_text("log.level = debug\nio.threads = 9\nstate.dir = /elsewhere\n"), KV_OK));
    cr_assert(eq(sz, kv_conf_reload(&running, &conf, tell, &told), 1));
    cr_assert(eq(str, told.applied, "log.level "));
    cr_assert(eq(str, told.others, "state.dir io.threads "));
    cr_assert(eq(str, running.log_level, "debug"));
    cr_assert(eq(u64, running.io_threads, 4));
    cr_assert(eq(str, running.state_dir, "/var/lib/kvrun"));
}

Test(conf, entry_shows_everything_but_secrets)
{
    struct kv_conf_entry entry;
    cr_assert(eq(int, set("db.url", "postgresql://u:hunter2@host/db"), KV_OK));
    kv_conf_entry(&conf, origins, (size_t)index_of("db.url"), &entry);
    cr_assert(eq(str, (char *)(uintptr_t)entry.key, "db.url"));
    cr_assert(eq(str, (char *)(uintptr_t)entry.origin, "flag"));
    /* printf %s 'postgresql://u:hunter2@host/db' | sha256sum */
    cr_assert(eq(str, entry.value, "*** sha256:16e8be37"));
    cr_assert(eq(int, set("db.url", ""), KV_OK));
    kv_conf_entry(&conf, origins, (size_t)index_of("db.url"), &entry);
    cr_assert(eq(str, entry.value, ""));
    cr_assert(eq(int, set("io.threads", "7"), KV_OK));
    kv_conf_entry(&conf, origins, (size_t)index_of("io.threads"), &entry);
    cr_assert(eq(str, entry.value, "7"));
    cr_assert(eq(int, entry.number, true));
    cr_assert(eq(int, entry.reloadable, false));
    kv_conf_entry(&conf, origins, (size_t)index_of("log.level"), &entry);
    cr_assert(eq(int, entry.number, false));
    cr_assert(eq(int, entry.reloadable, true));
}

/* --- showing ----------------------------------------------------------------------------------------------------- */

static void show(struct kv_buf *buf)
{
    kv_buf_init(buf, 65536);
    kv_conf_show(&conf, origins, buf);
    cr_assert(eq(int, kv_buf_check(buf), KV_OK));
}

Test(conf, show_never_shows_a_password)
{
    static const char *const urls[] = {
        "postgresql://user:hunter2@host/db",        "postgresql://hunter2@host/db",
        "postgresql://user:x@hunter2@host/db",      "host=h user=u password=hunter2",
        "host=h user=u password = 'hunter2'",       "postgresql://host/db?user=u&password=hunter2",
        "postgresql://host/db?sslpassword=hunter2", "postgresql://host/db?pass%77ord=hunter2",
    };
    for (size_t i = 0; i < sizeof urls / sizeof urls[0]; i++) {
        struct kv_buf buf;
        cr_assert(eq(int, set("db.url", urls[i]), KV_OK), "%s", info.text);
        show(&buf);
        cr_assert(strstr((char *)buf.data, "hunter2") == NULL, "%s: %s", urls[i], buf.data);
        cr_assert(strstr((char *)buf.data, "***") != NULL, "%s", urls[i]);
        kv_buf_done(&buf);
    }
}

Test(conf, show_has_one_line_a_key_with_its_origin)
{
    struct kv_buf buf;
    size_t lines = 0;
    cr_assert(eq(int, set("db.url", "host=/run/postgresql dbname=kvrun"), KV_OK));
    show(&buf);
    for (const char *p = (char *)buf.data; *p != '\0'; p++) {
        lines += *p == '\n';
    }
    cr_assert(eq(sz, lines, kv_conf_count()));
    cr_assert(strstr((char *)buf.data, "host=/run/postgresql dbname=kvrun  [flag]\n") != NULL, "%s", buf.data);
    cr_assert(strstr((char *)buf.data, "device.staging_bytes       67108864  [default]\n") != NULL, "%s", buf.data);
    cr_assert(strstr((char *)buf.data, "nvme.path            (empty)  [default]\n") != NULL, "%s", buf.data);
    kv_buf_done(&buf);
}

Test(conf, error_texts_never_hold_the_address)
{
    char value[2048];
    snprintf(value, sizeof value, "postgresql://u:hunter2@h/%01200d", 7);
    cr_assert(eq(int, set("db.url", value), KV_E_CONFIG));
    cr_assert(strstr(info.text, "hunter2") == NULL, "%s", info.text);
}

Test(conf, readme_has_the_table_as_it_is)
{
    static char readme[65536];
    struct kv_buf docs;
    kv_buf_init(&docs, 65536);
    kv_conf_docs(&docs);
    cr_assert(eq(int, kv_buf_check(&docs), KV_OK));
    size_t len = kvt_file_read(KV_SOURCE_DIR "/server/config/README.md", 0, readme, sizeof readme - 1);
    readme[len] = '\0';
    cr_assert(strstr(readme, (char *)docs.data) != NULL,
              "server/config/README.md does not have the output of `kvrun config docs`; put it there");
    kv_buf_done(&docs);
}
