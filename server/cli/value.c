/*
 * Flags and arguments into paths, queries and bodies. Must never send what was not understood.
 */
#include "server/cli/cli_int.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* --- one value --------------------------------------------------------------------------------------------------- */

static json_t *time_value(const struct cli *cli, const struct cli_flag *flag, const char *text)
{
    uint64_t seconds = 0;
    char when[40];
    struct tm tm;
    if (!cli_duration(text, &seconds)) {
        if (strlen(text) < 20 || text[4] != '-' || strpbrk(text, "Tt") == NULL) {
            (void)cli_usage_error(cli, "--%s is a time such as 2026-01-31T12:00:00Z, or a duration such as 30d",
                                  flag->name);
            return NULL;
        }
        return json_string(text);
    }
    time_t now = time(NULL);
    now = flag->type == CLI_PAST ? now - (time_t)seconds : now + (time_t)seconds;
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S.000000Z", gmtime_r(&now, &tm));
    return json_string(when);
}

static json_t *number_value(const struct cli *cli, const struct cli_flag *flag, const char *text)
{
    uint64_t number = 0;
    size_t digits = strspn(text, "0123456789");
    if (flag->type == CLI_DURATION ? !cli_duration(text, &number)
                                   : digits == 0 || digits > 15 || text[digits] != '\0') {
        (void)cli_usage_error(cli, "--%s is %s", flag->name,
                              flag->type == CLI_DURATION ? "a duration such as 90s, 24h or 30d" : "a whole number");
        return NULL;
    }
    return json_integer(flag->type == CLI_DURATION ? (json_int_t)number : strtoll(text, NULL, 10));
}

static json_t *text_value(const struct cli *cli, const struct cli_flag *flag, const char *text)
{
    json_t *value = json_string(text);
    if (value == NULL) {
        (void)cli_usage_error(cli, "--%s is not valid UTF-8", flag->name);
    }
    return value;
}

json_t *cli_value_of(const struct cli *cli, const struct cli_flag *flag, const char *text)
{
    switch (flag->type) {
    case CLI_SWITCH:
        return json_true();
    case CLI_NUMBER:
    case CLI_DURATION:
        return number_value(cli, flag, text);
    case CLI_PAST:
    case CLI_FUTURE:
        return time_value(cli, flag, text);
    case CLI_LABEL:
    case CLI_LABELS:
        if (strchr(text, '=') == NULL || text[0] == '=') {
            (void)cli_usage_error(cli, "--%s is key=value", flag->name);
            return NULL;
        }
        return text_value(cli, flag, strchr(text, '=') + 1);
    default:
        return text_value(cli, flag, text);
    }
}

/* --- members ----------------------------------------------------------------------------------------------------- */

bool cli_set(json_t *root, const char *path, json_t *value)
{
    json_t *here = root;
    const char *dot = NULL;
    while ((dot = strchr(path, '.')) != NULL) {
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)(dot - path), path);
        json_t *next = json_object_get(here, name);
        if (next == NULL) {
            next = json_object();
            if (json_object_set_new(here, name, next) != 0) {
                json_decref(value);
                return false;
            }
        }
        here = next;
        path = dot + 1;
    }
    return json_object_set_new(here, path, value) == 0;
}

const json_t *cli_get(const json_t *root, const char *path)
{
    const json_t *here = root;
    const char *dot = NULL;
    while (here != NULL && (dot = strchr(path, '.')) != NULL) {
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)(dot - path), path);
        here = json_object_get(here, name);
        path = dot + 1;
    }
    return json_object_get(here, path);
}

static bool append_to(json_t *root, const char *member, json_t *value)
{
    json_t *list = json_object_get(root, member);
    if (list == NULL) {
        list = json_array();
        if (json_object_set_new(root, member, list) != 0) {
            json_decref(value);
            return false;
        }
    }
    return json_array_append_new(list, value) == 0;
}

static bool label_to(json_t *root, const char *member, const char *text, json_t *value)
{
    size_t len = strcspn(text, "=");
    char path[256];
    json_t *labels = (json_t *)(uintptr_t)cli_get(root, member);
    snprintf(path, sizeof path, "%.*s", (int)(len < 250 ? len : 250), text); /* a key may have dots in it */
    if (labels == NULL) {
        labels = json_object();
        if (!cli_set(root, member, labels)) {
            json_decref(value);
            return false;
        }
    }
    return json_object_set_new(labels, path, value) == 0;
}

static bool put_flag(const struct cli *cli, json_t *root, const struct cli_value *given)
{
    const struct cli_flag *flag = given->flag;
    json_t *value = cli_value_of(cli, flag, given->text);
    if (value == NULL) {
        return false;
    }
    if (flag->type == CLI_WORDS) {
        return append_to(root, flag->member, value);
    }
    if (flag->type == CLI_LABELS || flag->type == CLI_LABEL) {
        return label_to(root, flag->member, given->text, value);
    }
    return cli_set(root, flag->member, value);
}

int cli_body(const struct cli *cli, json_t **ret_json)
{
    json_t *root = json_object();
    bool any = false;
    for (size_t i = 0; i < cli->value_count; i++) {
        if (cli->values[i].flag->place == CLI_BODY) {
            any = true;
            if (!put_flag(cli, root, &cli->values[i])) {
                json_decref(root);
                return CLI_USAGE;
            }
        }
    }
    if (cli->command->arg_member != NULL && cli->arg_count > 0) {
        any = true;
        if (!cli_set(root, cli->command->arg_member, json_string(cli->args[0]))) {
            json_decref(root);
            return cli_usage_error(cli, "the argument is not valid UTF-8");
        }
    }
    if (!any && strcmp(cli->command->method, "PATCH") == 0) {
        json_decref(root);
        return cli_usage_error(cli, "nothing to change was given");
    }
    if (!any && strcmp(cli->command->method, "POST") != 0) {
        json_decref(root);
        root = NULL;
    }
    *ret_json = root;
    return CLI_OK;
}

/* --- the path ---------------------------------------------------------------------------------------------------- */

static void encode(struct kv_buf *out, const char *text)
{
    for (const char *p = text; *p != '\0'; p++) {
        bool plain = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') ||
                     strchr("-._~:", *p) != NULL;
        if (plain) {
            kv_buf_append(out, p, 1);
        } else {
            kv_buf_printf(out, "%%%02X", (unsigned)(unsigned char)*p);
        }
    }
}

void cli_add_query(struct kv_buf *path, const char *name, const char *value)
{
    bool first = path->data == NULL || memchr(path->data, '?', path->len) == NULL;
    kv_buf_printf(path, "%c%s=", first ? '?' : '&', name);
    encode(path, value);
}

static int add_flag_query(const struct cli *cli, struct kv_buf *path, const struct cli_value *given)
{
    char number[32], label[512];
    json_t *value = cli_value_of(cli, given->flag, given->text);
    if (value == NULL) {
        return CLI_USAGE;
    }
    const char *text = json_string_value(value);
    if (given->flag->type == CLI_LABEL) {
        snprintf(label, sizeof label, "%.*s:%s", (int)strcspn(given->text, "="), given->text, text);
        text = label;
    } else if (json_is_integer(value)) {
        snprintf(number, sizeof number, "%lld", (long long)json_integer_value(value));
        text = number;
    } else if (json_is_true(value)) {
        text = "true";
    }
    cli_add_query(path, given->flag->member, text);
    json_decref(value);
    return CLI_OK;
}

static const char *tenant_of(const struct cli *cli)
{
    const char *tenant = cli_text(cli, "tenant");
    if (tenant == NULL && (cli->command->traits & CLI_TENANT) != 0) {
        tenant = getenv("KVRUN_TENANT");
    }
    return tenant == NULL || tenant[0] == '\0' ? NULL : tenant;
}

int cli_target(const struct cli *cli, struct kv_buf *ret_path)
{
    const char *tenant = tenant_of(cli);
    const char *p =
        tenant != NULL && cli->command->tenant_target != NULL ? cli->command->tenant_target : cli->command->target;
    if (p == NULL) {
        return cli_usage_error(cli, "whose? give --tenant or set KVRUN_TENANT");
    }
    for (; *p != '\0'; p++) {
        if (*p != '{') {
            kv_buf_append(ret_path, p, 1);
            continue;
        }
        size_t index = (size_t)(p[1] - '0');
        const char *arg = p[1] == 't' ? tenant : index < cli->arg_count ? cli->args[index] : NULL;
        if (arg == NULL) {
            return cli_usage_error(cli, "%s needs %s", cli->command->name, cli->command->args);
        }
        if (arg[strspn(arg, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")] != '\0') {
            return cli_usage_error(cli, "\"%.60s\" is no id", arg); /* nor a piece of another path */
        }
        kv_buf_text(ret_path, arg);
        p += 2;
    }
    for (size_t i = 0; i < cli->value_count; i++) {
        if (cli->values[i].flag->place == CLI_QUERY && add_flag_query(cli, ret_path, &cli->values[i]) != CLI_OK) {
            return CLI_USAGE;
        }
    }
    if (cli->dry_run) {
        cli_add_query(ret_path, "dry_run", "true");
    }
    return kv_buf_check(ret_path) == KV_OK ? CLI_OK : cli_usage_error(cli, "the arguments are too long");
}
