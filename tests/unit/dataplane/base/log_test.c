/* Log lines, read back by a JSON parser. */
#include "dataplane/base/log.h"

#include "dataplane/base/env.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int reading_end;

static void catch_log(void)
{
    int ends[2];
    cr_assert(eq(int, pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0));
    reading_end = ends[0];
    kv_log_set_fd(ends[1]);
}

/* The one line that is waiting; the caller frees the object. */
static json_t *line_of(char text[8192])
{
    ssize_t len = read(reading_end, text, 8191);
    cr_assert(gt(long, len, 0));
    text[len] = '\0';
    cr_assert(le(sz, (size_t)len, (size_t)KV_MAX_LOG_LINE_BYTES));
    cr_assert(eq(ptr, strchr(text, '\n'), text + len - 1));
    json_error_t error;
    json_t *line = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    cr_assert(line != NULL, "%s: %s", error.text, text);
    return line;
}

static const char *member(json_t *line, const char *name)
{
    const char *text = json_string_value(json_object_get(line, name));
    cr_assert(text != NULL, "%s", name);
    return text;
}

/* Jansson's own checks are macros that Criterion's cannot take. */
static json_type type_of(json_t *line, const char *name)
{
    cr_assert(json_object_get(line, name) != NULL, "%s", name);
    return json_typeof(json_object_get(line, name));
}

TestSuite(log, .init = catch_log);

Test(log, line_has_its_head_and_its_typed_fields)
{
    struct kv_id id = {0};
    kv_log(KV_LOG_WARN, "http", "listening", KV_FU("port", 7433), KV_FI("delta", -5), KV_FT("address", "::1"),
           KV_FID("session", "ses", &id), KV_FRC(KV_E_SESSION_ERASED), KV_FB("tls", true), KV_FB("off", false));
    char text[8192];
    json_t *line = line_of(text);
    cr_assert(eq(str, (char *)member(line, "level"), "warn"));
    cr_assert(eq(str, (char *)member(line, "module"), "http"));
    cr_assert(eq(str, (char *)member(line, "event"), "listening"));
    cr_assert(eq(sz, strlen(member(line, "ts")), 27));
    cr_assert(eq(i64, json_integer_value(json_object_get(line, "port")), 7433));
    cr_assert(eq(i64, json_integer_value(json_object_get(line, "delta")), -5));
    cr_assert(eq(str, (char *)member(line, "address"), "::1"));
    cr_assert(eq(str, (char *)member(line, "session"), "ses_00000000000000000000000000"));
    cr_assert(eq(str, (char *)member(line, "rc"), "session_erased"));
    cr_assert(eq(int, type_of(line, "tls"), JSON_TRUE));
    cr_assert(eq(int, type_of(line, "off"), JSON_FALSE));
    json_decref(line);
}

Test(log, fields_are_optional_and_missing_values_are_null)
{
    char text[8192];
    kv_log(KV_LOG_INFO, "m", "bare");
    json_t *line = line_of(text);
    cr_assert(eq(sz, json_object_size(line), 4));
    json_decref(line);
    kv_log(KV_LOG_INFO, "m", "nulls", KV_FT("t", NULL), KV_FID("i", "ses", NULL));
    line = line_of(text);
    cr_assert(eq(int, type_of(line, "t"), JSON_NULL));
    cr_assert(eq(int, type_of(line, "i"), JSON_NULL));
    json_decref(line);
}

Test(log, extreme_numbers_are_printed_whole)
{
    char text[8192];
    kv_log(KV_LOG_INFO, "m", "numbers", KV_FU("u", UINT64_MAX), KV_FI("i", INT64_MIN));
    ssize_t len = read(reading_end, text, sizeof(text) - 1);
    cr_assert(gt(long, len, 0));
    text[len] = '\0';
    cr_assert(strstr(text, "\"u\":18446744073709551615,") != NULL);
    cr_assert(strstr(text, "\"i\":-9223372036854775808}") != NULL);
}

Test(log, text_cannot_break_out_of_its_line)
{
    char text[8192];
    const char *evil = "\"}\n{\"level\":\"error\\\x01\x1b[31m";
    kv_log(KV_LOG_INFO, "m", "e", KV_FT("t", evil), KV_FT("bad", "a\xff"));
    json_t *line = line_of(text);
    cr_assert(eq(str, (char *)member(line, "t"), (char *)evil));
    cr_assert(eq(str, (char *)member(line, "bad"), "a\xef\xbf\xbd"));
    json_decref(line);
}

Test(log, text_is_cut_at_256_bytes_and_never_inside_a_character)
{
    char value[300], text[8192];
    memset(value, 'a', sizeof(value));
    value[256] = '\0';
    kv_log(KV_LOG_INFO, "m", "e", KV_FT("t", value));
    json_t *line = line_of(text);
    cr_assert(eq(sz, strlen(member(line, "t")), 256));
    json_decref(line);
    value[256] = 'a';
    value[257] = '\0';
    kv_log(KV_LOG_INFO, "m", "e", KV_FT("t", value));
    line = line_of(text);
    cr_assert(eq(sz, strlen(member(line, "t")), 256));
    json_decref(line);
    memcpy(value + 255, "\xe2\x82\xac", 4);
    kv_log(KV_LOG_INFO, "m", "e", KV_FT("t", value));
    line = line_of(text);
    cr_assert(eq(sz, strlen(member(line, "t")), 255));
    json_decref(line);
}

Test(log, line_that_would_be_too_long_loses_whole_fields_and_says_so)
{
    char value[257], text[8192];
    memset(value, '\x01', 256); /* six bytes each once escaped */
    value[256] = '\0';
    kv_log(KV_LOG_INFO, "m", "e", KV_FT("a", value), KV_FT("b", value), KV_FT("c", value), KV_FU("d", 1));
    json_t *line = line_of(text);
    cr_assert(eq(sz, strlen(member(line, "b")), 256));
    cr_assert(json_object_get(line, "c") == NULL);
    cr_assert(eq(int, type_of(line, "truncated"), JSON_TRUE));
    json_decref(line);
    kv_log(KV_LOG_INFO, "m", "e", KV_FT("a", value), KV_FT("b", value));
    line = line_of(text);
    cr_assert(json_object_get(line, "truncated") == NULL); /* control */
    json_decref(line);
}

Test(log, lines_below_the_level_are_neither_written_nor_counted)
{
    char text[64];
    kv_log(KV_LOG_DEBUG, "m", "quiet");
    cr_assert(eq(long, read(reading_end, text, sizeof(text)), -1));
    cr_assert(eq(u64, kv_log_count(KV_LOG_DEBUG), 0));
    kv_log_set_level(KV_LOG_DEBUG);
    kv_log(KV_LOG_DEBUG, "m", "heard");
    cr_assert(gt(long, read(reading_end, text, sizeof(text)), 0));
    cr_assert(eq(u64, kv_log_count(KV_LOG_DEBUG), 1));
    cr_assert(eq(u64, kv_log_count(KV_LOG_ERROR), 0));
}

Test(log, levels_are_read_by_name)
{
    enum kv_log_level level = KV_LOG_INFO;
    cr_assert(eq(int, kv_log_parse_level("error", &level), KV_OK));
    cr_assert(eq(int, level, KV_LOG_ERROR));
    cr_assert(eq(int, kv_log_parse_level("Debug", &level), KV_E_INVALID_REQUEST));
    cr_assert(eq(int, kv_log_parse_level("", &level), KV_E_INVALID_REQUEST));
    cr_assert(eq(int, level, KV_LOG_ERROR));
}

Test(log, log_that_cannot_be_written_disturbs_nobody)
{
    kv_log_set_fd(-1);
    errno = ENOENT;
    kv_log(KV_LOG_ERROR, "m", "lost");
    cr_assert(eq(int, errno, ENOENT));
    cr_assert(eq(u64, kv_log_count(KV_LOG_ERROR), 1));
}

static bool logs(const char *module, enum kv_log_level level)
{
    uint64_t before = kv_log_count(level);
    kv_log(level, module, "probe");
    return kv_log_count(level) > before;
}

Test(log, level_for_a_while_is_a_module_s_own_and_ends_by_itself)
{
    struct kv_log_override list[KV_LOG_OVERRIDES];
    catch_log();
    cr_assert(not(logs("store", KV_LOG_DEBUG)));
    cr_assert(eq(int, kv_log_override("store", KV_LOG_DEBUG, 1), KV_OK));
    cr_assert(logs("store", KV_LOG_DEBUG));
    cr_assert(not(logs("stores", KV_LOG_DEBUG)));
    cr_assert(not(logs("http", KV_LOG_DEBUG)));
    cr_assert(eq(sz, kv_log_overrides(list), 1));
    cr_assert(eq(str, list[0].module, "store"));
    uint64_t deadline = kv_env_system.boottime_ns(kv_env_system.ctx) + 10 * KV_S_NS;
    while (logs("store", KV_LOG_DEBUG) && kv_env_system.boottime_ns(kv_env_system.ctx) < deadline) {
        usleep(10000);
    }
    cr_assert(not(logs("store", KV_LOG_DEBUG)));
    cr_assert(eq(sz, kv_log_overrides(list), 0));
}

Test(log, level_for_a_while_of_all_gives_way_to_a_module_s)
{
    catch_log();
    cr_assert(eq(int, kv_log_override("", KV_LOG_ERROR, 60), KV_OK));
    cr_assert(eq(int, kv_log_override("http", KV_LOG_WARN, 60), KV_OK));
    cr_assert(not(logs("store", KV_LOG_WARN)));
    cr_assert(logs("store", KV_LOG_ERROR));
    cr_assert(logs("http", KV_LOG_WARN));
    cr_assert(not(logs("http", KV_LOG_INFO)));
    cr_assert(eq(int, kv_log_override("", KV_LOG_ERROR, 0), KV_OK));
    cr_assert(logs("store", KV_LOG_INFO));
    cr_assert(not(logs("http", KV_LOG_INFO)));
}

Test(log, levels_for_a_while_are_bounded)
{
    struct kv_log_override list[KV_LOG_OVERRIDES];
    char module[16];
    for (int i = 0; i < KV_LOG_OVERRIDES; i++) {
        snprintf(module, sizeof module, "m%d", i);
        cr_assert(eq(int, kv_log_override(module, KV_LOG_DEBUG, 60), KV_OK));
    }
    cr_assert(eq(int, kv_log_override("one-more", KV_LOG_DEBUG, 60), KV_E_LIMIT));
    cr_assert(eq(int, kv_log_override("m3", KV_LOG_WARN, 60), KV_OK)); /* replaces its own */
    cr_assert(eq(sz, kv_log_overrides(list), KV_LOG_OVERRIDES));
    cr_assert(eq(int, kv_log_override("m3", KV_LOG_WARN, 0), KV_OK));
    cr_assert(eq(int, kv_log_override("one-more", KV_LOG_DEBUG, 60), KV_OK));
}

static void expect_line(const char *end)
{
    char text[8192];
    ssize_t len = read(reading_end, text, sizeof text - 1);
    cr_assert(gt(long, len, 0));
    text[len] = '\0';
    const char *level = strstr(text, " level=");
    cr_assert(eq(int, strncmp(text, "ts=", 3), 0));
    cr_assert(level != NULL);
    cr_assert(eq(str, (char *)level + 1, (char *)end));
}

Test(log, logfmt_quotes_only_what_needs_it)
{
    struct kv_id id = {0};
    kv_log_set_format(KV_LOG_LOGFMT);
    kv_log(KV_LOG_INFO, "http", "request", KV_FT("route", "/v1/sessions/{}"), KV_FU("status", 200), KV_FB("ok", true),
           KV_FT("why", "two words"), KV_FT("empty", ""), KV_FT("none", NULL), KV_FID("session", "ses", &id));
    expect_line("level=info module=http event=request route=/v1/sessions/{} status=200 ok=true why=\"two words\" "
                "empty=\"\" none=null session=ses_00000000000000000000000000\n");
}

Test(log, logfmt_value_cannot_end_its_line_or_look_like_a_field)
{
    kv_log_set_format(KV_LOG_LOGFMT);
    kv_log(KV_LOG_WARN, "a", "b", KV_FT("text", "x\nlevel=error \"quoted\" a=b"));
    expect_line("level=warn module=a event=b text=\"x\\nlevel=error \\\"quoted\\\" a=b\"\n");
}

Test(log, logfmt_line_that_is_too_long_says_so)
{
    char big[300];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    kv_log_set_format(KV_LOG_LOGFMT);
    kv_log(KV_LOG_INFO, "a", "b", KV_FT("t0", big), KV_FT("t1", big), KV_FT("t2", big), KV_FT("t3", big),
           KV_FT("t4", big), KV_FT("t5", big), KV_FT("t6", big), KV_FT("t7", big), KV_FT("t8", big), KV_FT("t9", big),
           KV_FT("ta", big), KV_FT("tb", big), KV_FT("tc", big), KV_FT("td", big), KV_FT("te", big), KV_FT("tf", big),
           KV_FT("tg", big));
    char text[8192];
    ssize_t len = read(reading_end, text, sizeof text - 1);
    cr_assert(gt(long, len, 0));
    text[len] = '\0';
    cr_assert(le(long, len, (long)KV_MAX_LOG_LINE_BYTES));
    cr_assert(eq(str, (char *)text + len - strlen(" truncated=true\n"), " truncated=true\n"));
}

/* --- lines that come often --------------------------------------------------------------------------------------- */

static size_t read_now(char text[8192])
{
    ssize_t len = read(reading_end, text, 8191);
    text[len < 0 ? 0 : len] = '\0';
    return len < 0 ? 0 : (size_t)len;
}

/* Logs until a line waits; those before came after a pause and were written at once, each by itself. */
static unsigned log_until_one_waits(void)
{
    char text[8192];
    for (unsigned i = 0; i < 1000; i++) {
        kv_log_often(KV_LOG_INFO, "m", "often", KV_FU("number", i));
        if (read_now(text) == 0) {
            return i;
        }
        cr_assert(eq(ptr, strchr(text, '\n'), text + strlen(text) - 1));
    }
    cr_assert(false, "no line ever waited");
    return 0;
}

static bool has_number(const char *text, unsigned number)
{
    char wanted[32];
    snprintf(wanted, sizeof wanted, "\"number\":%u}", number);
    return strstr(text, wanted) != NULL;
}

Test(log, line_that_comes_often_waits_until_it_is_asked_for)
{
    char text[8192];
    unsigned waiting = log_until_one_waits();
    cr_assert(eq(u64, kv_log_count(KV_LOG_INFO), waiting + 1));
    kv_log_flush();
    json_t *line = line_of(text);
    cr_assert(eq(i64, json_integer_value(json_object_get(line, "number")), waiting));
    json_decref(line);
    kv_log_flush();
    cr_assert(eq(sz, read_now(text), 0));
}

Test(log, other_lines_and_warnings_take_along_what_waits)
{
    char text[8192];
    unsigned waiting = log_until_one_waits();
    kv_log(KV_LOG_INFO, "m", "usual");
    read_now(text);
    cr_assert(has_number(text, waiting) && strstr(text, "often") < strstr(text, "usual"));
    waiting = log_until_one_waits();
    kv_log_often(KV_LOG_WARN, "m", "warning");
    read_now(text);
    cr_assert(has_number(text, waiting) && strstr(text, "often") < strstr(text, "warning"));
}

Test(log, change_of_the_level_comes_after_what_waits)
{
    char text[8192];
    unsigned waiting = log_until_one_waits();
    kv_log_set_level(KV_LOG_ERROR);
    read_now(text);
    cr_assert(has_number(text, waiting));
    kv_log_set_level(KV_LOG_INFO);
    waiting = log_until_one_waits();
    cr_assert(eq(int, kv_log_override("other", KV_LOG_DEBUG, 60), KV_OK));
    read_now(text);
    cr_assert(has_number(text, waiting));
}

/* What was written since, at most what waited and the line that found no room. */
static size_t read_whole_lines(char *text)
{
    size_t len = read_now(text);
    cr_assert(len == 0 || text[len - 1] == '\n');
    cr_assert(le(sz, len, 2 * (size_t)KV_MAX_LOG_LINE_BYTES));
    return len;
}

Test(log, lines_that_wait_are_written_whole_and_in_order_before_they_are_too_many)
{
    static char text[1 << 20];
    size_t len = 0;
    for (unsigned i = 0; i < 500; i++) {
        kv_log_often(KV_LOG_INFO, "m", "often", KV_FU("number", i));
        len += read_whole_lines(text + len);
    }
    kv_log_flush();
    len += read_whole_lines(text + len);
    unsigned number = 0;
    for (char *at = strtok(text, "\n"); at != NULL; at = strtok(NULL, "\n")) {
        cr_assert(has_number(at, number++), "%s", at);
    }
    cr_assert(eq(int, number, 500));
}
