/* The table of commands: that it holds together, and that words become what the rows say. */
#include "server/cli/cli_int.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <criterion/redirect.h>
#include <stdlib.h>
#include <string.h>

static struct cli cli;

/* Parses "sessions ls --state active" as main would. */
static int parse(const char *line)
{
    static char text[1024];
    static char *argv[256];
    int argc = 0, words = 0;
    snprintf(text, sizeof text, "%s", line);
    for (char *rest = text, *word = NULL; (word = strsep(&rest, " ")) != NULL;) {
        argv[argc++] = word;
    }
    cli = (struct cli){.command = cli_find(argc, argv, &words)};
    cr_assert(cli.command != NULL, "%s", line);
    return cli_parse(&cli, argc - words, argv + words);
}

static const char *target(const char *line)
{
    static struct kv_buf path;
    kv_buf_done(&path);
    kv_buf_init(&path, CLI_PATH_SIZE);
    cr_assert(eq(int, parse(line), CLI_OK), "%s", line);
    cr_assert(eq(int, cli_target(&cli, &path), CLI_OK), "%s", line);
    return (const char *)path.data;
}

static const char *body(const char *line)
{
    static char text[1024];
    json_t *json = NULL;
    cr_assert(eq(int, parse(line), CLI_OK), "%s", line);
    cr_assert(eq(int, cli_body(&cli, &json), CLI_OK), "%s", line);
    char *dumped = json_dumps(json, JSON_COMPACT | JSON_SORT_KEYS);
    snprintf(text, sizeof text, "%s", dumped == NULL ? "" : dumped);
    free(dumped);
    json_decref(json);
    return text;
}

static void quiet(void)
{
    cr_redirect_stdout();
    cr_redirect_stderr();
}

/* --- the table --------------------------------------------------------------------------------------------------- */

Test(table, no_command_has_a_flag_or_a_letter_twice)
{
    for (size_t i = 0; cli_commands[i].name != NULL; i++) {
        const struct cli_command *command = &cli_commands[i];
        const struct cli_flag *a = NULL, *b = NULL;
        for (size_t x = 0; (a = cli_flag_at(command, x)) != NULL; x++) {
            for (size_t y = x + 1; (b = cli_flag_at(command, y)) != NULL; y++) {
                cr_expect(ne(str, (char *)a->name, (char *)b->name), "%s", command->name);
                cr_expect(a->letter == 0 || a->letter != b->letter, "%s: -%c", command->name, a->letter);
            }
            for (size_t g = 0; (command->traits & CLI_CONFIG) == 0 && cli_global_flags[g].name != NULL; g++) {
                cr_expect(ne(str, (char *)a->name, (char *)cli_global_flags[g].name), "%s", command->name);
                cr_expect(a->letter == 0 || a->letter != cli_global_flags[g].letter, "%s: -%c", command->name,
                          a->letter);
            }
        }
    }
}

Test(table, every_command_is_found_by_its_name_and_only_once)
{
    for (size_t i = 0; cli_commands[i].name != NULL; i++) {
        char text[64];
        char *argv[4];
        int argc = 0, words = 0;
        snprintf(text, sizeof text, "%s", cli_commands[i].name);
        for (char *rest = text, *word = NULL; (word = strsep(&rest, " ")) != NULL;) {
            argv[argc++] = word;
        }
        cr_expect(cli_find(argc, argv, &words) == &cli_commands[i], "%s", cli_commands[i].name);
        cr_expect(eq(int, words, argc));
    }
}

Test(table, a_row_is_either_a_request_or_a_function)
{
    for (size_t i = 0; cli_commands[i].name != NULL; i++) {
        const struct cli_command *command = &cli_commands[i];
        bool local = (command->traits & (CLI_CONFIG | CLI_ALONE)) != 0;
        bool request = command->method != NULL && (command->target != NULL || command->tenant_target != NULL);
        cr_expect(local || request, "%s", command->name);
        cr_expect(command->columns != NULL || (command->traits & CLI_LISTS) == 0 || command->columns != NULL, "%s",
                  command->name);
        cr_expect(command->help[0] != '\0', "%s", command->name);
    }
}

Test(table, aliases_name_commands)
{
    for (size_t i = 0; cli_aliases[i].name != NULL; i++) {
        char text[64];
        char *argv[4];
        int argc = 0, words = 0;
        snprintf(text, sizeof text, "%s", cli_aliases[i].name);
        for (char *rest = text, *word = NULL; (word = strsep(&rest, " ")) != NULL;) {
            argv[argc++] = word;
        }
        const struct cli_command *command = cli_find(argc, argv, &words);
        cr_expect(command != NULL && strcmp(command->name, cli_aliases[i].target) == 0, "%s", cli_aliases[i].name);
    }
}

/* --- words ------------------------------------------------------------------------------------------------------- */

Test(parse, flags_are_taken_in_all_their_spellings)
{
    cr_assert(eq(int, parse("sessions ls --state active --limit=7 -o jsonl -q"), CLI_OK));
    cr_assert(eq(str, (char *)cli_text(&cli, "state"), "active"));
    cr_assert(eq(u64, cli.limit, 7));
    cr_assert(eq(int, cli.format, CLI_JSONL));
    cr_assert(cli.quiet);
    cr_assert(eq(int, parse("sessions ls -n3 -ojson"), CLI_OK));
    cr_assert(eq(u64, cli.limit, 3));
    cr_assert(eq(int, cli.format, CLI_JSON));
    cr_assert(eq(int, parse("tenants get -- --x"), CLI_OK));
    cr_assert(eq(str, (char *)cli.args[0], "--x"));
}

Test(parse, what_is_wrong_is_a_usage_error, .init = quiet)
{
    static const char *const lines[] = {
        "sessions ls --statte active",
        "sessions ls --state",
        "sessions ls -x",
        "sessions ls --quiet=yes",
        "sessions ls --limit 0",
        "sessions ls --limit many",
        "sessions ls --limit 9999999999",
        "sessions ls --order up",
        "sessions ls -o yaml2|json",
        "sessions ls --timeout 0",
        "sessions ls --timeout 25h",
        "sessions ls --token kvrun_live_x",
        "sessions ls extra",
        "tenants get",
        "tenants get a b",
        "erase --basis because ses_a",
        "version --nothing",
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        cr_expect(eq(int, parse(lines[i]), CLI_USAGE), "%s", lines[i]);
    }
    /* Control: the same with nothing wrong. */
    cr_expect(eq(int, parse("sessions ls --state active --limit 999999999 --order asc --timeout 24h"), CLI_OK));
}

Test(parse, sixty_four_flags_fit_and_one_more_does_not, .init = quiet)
{
    char line[1024] = "keys create x";
    for (int i = 0; i < CLI_VALUES_MAX; i++) {
        strcat(line, " --role a");
    }
    cr_assert(eq(int, parse(line), CLI_OK));
    strcat(line, " --role a");
    cr_assert(eq(int, parse(line), CLI_USAGE));
}

Test(parse, what_becomes_a_header_is_one_line_and_whole, .init = quiet)
{
    char line[400] = "tenants create a --idempotency-key ";
    size_t len = strlen(line);
    memset(line + len, 'k', 255);
    cr_assert(eq(int, parse(line), CLI_OK));
    line[len + 255] = 'k';
    cr_assert(eq(int, parse(line), CLI_USAGE));
    cr_assert(eq(int, parse("tenants create a --idempotency-key a\r\nX-Evil:1"), CLI_USAGE));
    cr_assert(eq(int, parse("tenants create a --idempotency-key="), CLI_USAGE));
    cr_assert(eq(int, parse("tenants update a --display-name b --if-match \"1\n\""), CLI_USAGE));
    cr_assert(eq(int, parse("tenants update a --display-name b --if-match \"1.ab\""), CLI_OK));
}

Test(parse, only_commands_that_fetch_take_a_file_for_output, .init = quiet)
{
    cr_assert(eq(int, parse("erase ses_a -o cert.txt --wait -o json"), CLI_OK));
    cr_assert(eq(str, (char *)cli.file, "cert.txt"));
    cr_assert(eq(int, cli.format, CLI_JSON));
    cr_assert(eq(int, parse("sessions ls -o cert.txt"), CLI_USAGE));
}

Test(duration, takes_units_and_nothing_else)
{
    uint64_t s = 0;
    cr_assert(cli_duration("90", &s) && s == 90);
    cr_assert(cli_duration("90s", &s) && s == 90);
    cr_assert(cli_duration("2m", &s) && s == 120);
    cr_assert(cli_duration("24h", &s) && s == 86400);
    cr_assert(cli_duration("9999999999d", &s) && s == UINT64_C(863999999913600));
    cr_assert(cli_duration("99999999999s", &s) == false);
    cr_assert(cli_duration("", &s) == false && !cli_duration("s", &s) && !cli_duration("1w", &s) &&
              !cli_duration("-1s", &s) && !cli_duration("1 s", &s));
}

/* --- requests ---------------------------------------------------------------------------------------------------- */

Test(request, paths_are_made_of_ids_and_queries)
{
    unsetenv("KVRUN_TENANT");
    cr_assert(eq(str, (char *)target("tenants get ten_1"), "/v1/tenants/ten_1"));
    cr_assert(eq(str, (char *)target("keys get key_1"), "/v1/api-keys/key_1"));
    cr_assert(eq(str, (char *)target("keys get key_1 --tenant ten_1"), "/v1/tenants/ten_1/api-keys/key_1"));
    cr_assert(eq(str, (char *)target("sessions ls --label a.b=c:d --external-id a/b&c"),
                 "/v1/sessions?label=a.b:c:d&external_id=a%2Fb%26c"));
    cr_assert(
        eq(str, (char *)target("tenants delete ten_1 --now --dry-run"), "/v1/tenants/ten_1?now=true&dry_run=true"));
    setenv("KVRUN_TENANT", "ten_2", 1);
    cr_assert(eq(str, (char *)target("keys ls"), "/v1/tenants/ten_2/api-keys"));
    unsetenv("KVRUN_TENANT");
}

Test(request, an_argument_cannot_be_a_piece_of_another_path, .init = quiet)
{
    static const char *const ids[] = {"..", ".", "a/b", "a?x=1", "ten_1:suspend", "a%2fb", "a#b", "ten\xc3\xa4"};
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        char line[64];
        struct kv_buf path;
        kv_buf_init(&path, CLI_PATH_SIZE);
        snprintf(line, sizeof line, "tenants get %s", ids[i]);
        cr_assert(eq(int, parse(line), CLI_OK));
        cr_expect(eq(int, cli_target(&cli, &path), CLI_USAGE), "%s", ids[i]);
        kv_buf_done(&path);
    }
}

Test(request, bodies_are_made_of_flags)
{
    cr_assert(eq(str, (char *)body("tenants create acme --display-name A --label a=1 --label b.c=2=3"),
                 "{\"display_name\":\"A\",\"labels\":{\"a\":\"1\",\"b.c\":\"2=3\"},\"name\":\"acme\"}"));
    cr_assert(eq(str, (char *)body("sessions create --model m --revision r --ttl 24h"),
                 "{\"model\":{\"id\":\"m\",\"revision\":\"r\"},\"ttl_seconds\":86400}"));
    cr_assert(eq(str, (char *)body("keys create k --role engine --role auditor"),
                 "{\"name\":\"k\",\"roles\":[\"engine\",\"auditor\"]}"));
    cr_assert(eq(str, (char *)body("erase --label user=7 --basis gdpr_art17"),
                 "{\"basis\":\"gdpr_art17\",\"scope\":{\"label\":{\"user\":\"7\"}}}"));
    cr_assert(eq(str, (char *)body("erase ses_1"), "{\"scope\":{\"session_id\":\"ses_1\"}}"));
    cr_assert(eq(str, (char *)body("sessions touch ses_1"), "{}"));
    cr_assert(eq(str, (char *)body("sessions get ses_1"), ""));
}

Test(request, values_that_are_none_are_usage_errors, .init = quiet)
{
    static const char *const lines[] = {
        "tenants create a --label x",          "tenants create a --label =x", "sessions create --ttl soon",
        "sessions pin ses_1 --until tomorrow", "tenants update ten_1",        "policies eval --block-bytes 1.5",
        "tenants create a --display-name \xff"};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        json_t *json = NULL;
        cr_assert(eq(int, parse(lines[i]), CLI_OK), "%s", lines[i]);
        cr_expect(eq(int, cli_body(&cli, &json), CLI_USAGE), "%s", lines[i]);
        json_decref(json);
    }
}

Test(request, times_can_be_said_from_now_on)
{
    const char *path = target("sessions ls --idle-before 30d");
    cr_assert(strncmp(path, "/v1/sessions?idle_before=20", 27) == 0, "%s", path);
    cr_assert(eq(str, (char *)target("sessions ls --idle-before 2026-01-02T03:04:05Z"),
                 "/v1/sessions?idle_before=2026-01-02T03:04:05Z"));
}

/* --- exit codes --------------------------------------------------------------------------------------------------- */

Test(exit_code, every_error_has_one_that_is_not_zero)
{
    cr_assert(eq(int, cli_exit_of(KV_OK), 0));
    for (int rc = KV_OK + 1; rc < KV_E_COUNT; rc++) {
        int code = cli_exit_of((enum kv_err)rc);
        cr_expect(code >= 1 && code <= 7, "%s", kv_err_name((enum kv_err)rc));
        cr_expect(kv_err_class_of((enum kv_err)rc) != KV_CLASS_INTEGRITY || code == CLI_INTEGRITY, "%s",
                  kv_err_name((enum kv_err)rc));
        cr_expect(kv_err_class_of((enum kv_err)rc) != KV_CLASS_UNAVAILABLE || code == CLI_UNAVAILABLE, "%s",
                  kv_err_name((enum kv_err)rc));
    }
}

Test(exit_code, is_what_the_documentation_says)
{
    static const struct {
        enum kv_err rc;
        int code;
    } rows[] = {
        {KV_E_INVALID_REQUEST, 2}, {KV_E_UNAUTHENTICATED, 4},
        {KV_E_FORBIDDEN, 4},       {KV_E_POLICY_DENIED, 4},
        {KV_E_NOT_FOUND, 3},       {KV_E_SESSION_ERASED, 3},
        {KV_E_TENANT_EXISTS, 5},   {KV_E_STALE, 5},
        {KV_E_IRREVERSIBLE, 5},    {KV_E_NOT_YET, 6},
        {KV_E_QUOTA, 6},           {KV_E_BUSY, 6},
        {KV_E_DB_UNAVAILABLE, 6},  {KV_E_FULL, 6},
        {KV_E_TIMEOUT, 6},         {KV_E_TAMPERED, 7},
        {KV_E_QUARANTINED, 7},     {KV_E_INTERNAL, 1},
        {KV_E_CONFIG, 2},          {KV_E_PRECONDITION_FAILED, 5},
        {KV_E_STARTING, 6},        {KV_E_LAST_OPERATOR_KEY, 5},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cr_expect(eq(int, cli_exit_of(rows[i].rc), rows[i].code), "%s", kv_err_name(rows[i].rc));
    }
}

Test(exit_code, a_code_of_a_newer_server_goes_by_its_status)
{
    cr_assert(eq(int, cli_exit_of_status(204), 0));
    cr_assert(eq(int, cli_exit_of_status(418), 2));
    cr_assert(eq(int, cli_exit_of_status(404), 3));
    cr_assert(eq(int, cli_exit_of_status(403), 4));
    cr_assert(eq(int, cli_exit_of_status(409), 5));
    cr_assert(eq(int, cli_exit_of_status(503), 6));
    cr_assert(eq(int, cli_exit_of_status(599), 1));
    cr_assert(eq(int, cli_exit_of_status(301), 1));
}

/* --- text of others ----------------------------------------------------------------------------------------------- */

static const char *clean(const char *text, size_t len)
{
    static struct kv_buf out;
    kv_buf_done(&out);
    kv_buf_init(&out, 4096);
    (void)cli_clean(&out, text, len);
    return out.data == NULL ? "" : (const char *)out.data;
}
#define CLEAN(text) ((char *)clean(text, sizeof text - 1))

Test(clean, nothing_that_a_terminal_obeys_gets_through)
{
    cr_assert(eq(str, CLEAN("plain, \xc3\xa4 and \xf0\x9f\x90\x88"), "plain, \xc3\xa4 and \xf0\x9f\x90\x88"));
    cr_assert(eq(str, CLEAN("\033[2Jx\r\n\a\b\t"), "?[2Jx?????"));
    cr_assert(eq(str, CLEAN("a\0b"), "a?b"));
    cr_assert(eq(str,
                 CLEAN("\x7f\xc2\x9b"
                       "31m"),
                 "??31m")); /* DEL, C1 CSI */
    cr_assert(eq(str,
                 CLEAN("\xe2\x80\xae"
                       "evil\xe2\x81\xa6"),
                 "?evil?")); /* right-to-left override, isolate */
    cr_assert(eq(str,
                 CLEAN("a\xe2\x80\x8b"
                       "b\xef\xbb\xbf"),
                 "a?b?"));                                                               /* zero width */
    cr_assert(eq(str, CLEAN("\xff\xc0\xaf\xed\xa0\x80\xf4\x90\x80\x80"), "??????????")); /* no UTF-8 at all */
    cr_assert(eq(str, CLEAN("\xe2\x82"), "??"));                                         /* cut off */
}

Test(text, times_and_sizes_for_people)
{
    char text[32];
    int64_t now = 1767225600; /* 2026-01-01T00:00:00Z */
    cr_assert(cli_when("2026-01-01T00:00:00.000000Z", now, text) && strcmp(text, "0s ago") == 0);
    cr_assert(cli_when("2025-12-31T23:58:01Z", now, text) && strcmp(text, "119s ago") == 0, "%s", text);
    cr_assert(cli_when("2025-12-31T23:58:00Z", now, text) && strcmp(text, "2m ago") == 0, "%s", text);
    cr_assert(cli_when("2026-01-03T00:00:00Z", now, text) && strcmp(text, "in 2d") == 0, "%s", text);
    cr_assert(cli_when("yesterday", now, text) == false && !cli_when("2026-01-01", now, text));
    cli_size(1023, text);
    cr_assert(eq(str, text, "1023 B"));
    cli_size(1024, text);
    cr_assert(eq(str, text, "1.0 KiB"));
    cli_size(UINT64_C(5) << 30, text);
    cr_assert(eq(str, text, "5.0 GiB"));
}

/* --- output ------------------------------------------------------------------------------------------------------- */

static void shown(const char *line, const char *json, const char *expected)
{
    char output[4096];
    struct cli_list list = {.shown = 0};
    json_t *items = json_loads(json, 0, NULL);
    cr_redirect_stdout();
    cr_redirect_stderr();
    cr_assert(eq(int, parse(line), CLI_OK));
    cli.tty = cli.color = false;
    cr_assert(eq(int, cli_list_items(&cli, &list, items), CLI_OK));
    cr_assert(eq(int, cli_list_end(&cli, &list), CLI_OK));
    fflush(stdout);
    size_t len = fread(output, 1, strlen(expected) > 0 ? strlen(expected) : 0, cr_get_redirected_stdout());
    output[len] = '\0';
    cr_assert(eq(str, output, (char *)expected));
    json_decref(items);
}

#define TIERS                                                                                          \
    "[{\"name\":\"dram\",\"state\":\"up\",\"used_bytes\":2048,\"capacity_bytes\":4096,\"objects\":3}," \
    "{\"name\":\"nvme\\u001b[2J\",\"state\":\"up\",\"used_bytes\":0,\"capacity_bytes\":4096}]"

Test(table, columns_are_aligned_and_cleaned)
{
    shown("tiers ls", TIERS,
          "NAME      STATE  USED  CAPACITY  OBJECTS\n"
          "dram      up     2048  4096      3\n"
          "nvme?[2J  up     0     4096      -\n");
}

Test(table, ids_are_one_a_line)
{
    shown("tiers ls -o id", TIERS, "dram\nnvme?[2J\n");
}

Test(table, json_is_one_document_and_jsonl_one_a_line)
{
    shown("tiers ls -o jsonl", "[{\"a\":1},{\"a\":2}]", "{\"a\":1}\n{\"a\":2}\n");
}

Test(table, json_is_one_document)
{
    shown("tiers ls --json", "[{\"a\":1},{\"a\":2}]", "[\n{\n  \"a\": 1\n},\n{\n  \"a\": 2\n}\n]\n");
}

Test(table, an_empty_list_is_an_empty_document)
{
    shown("tiers ls --json", "[]", "[]\n");
}
