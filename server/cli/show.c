/*
 * Answers in the format that was asked for. For people: aligned columns, and on a terminal relative times and sizes
 * with a unit. For programs: RFC 3339, plain numbers, JSON as it came. Must never print text of others uncleaned in a
 * table.
 */
#include "server/cli/cli_int.h"

#include <string.h>
#include <time.h>

#define OUT_MAX (32u << 20)
#define BOLD "\033[1m"
#define DIM "\033[2m"
#define PLAIN "\033[0m"

/* --- one value as text ------------------------------------------------------------------------------------------- */

static void put_text(const struct cli *cli, struct kv_buf *out, const char *text, enum cli_show show)
{
    char when[32];
    size_t len = strlen(text);
    bool is_time = len >= 20 && len <= 32 && text[4] == '-' && text[10] == 'T' && text[len - 1] == 'Z';
    if (cli->tty && (show == CLI_WHEN || is_time) && cli_when(text, (int64_t)time(NULL), when)) {
        kv_buf_text(out, when);
    } else {
        (void)cli_clean(out, text, len);
    }
}

static void put_number(const struct cli *cli, struct kv_buf *out, json_int_t number, enum cli_show show)
{
    char size[32];
    if (cli->tty && show == CLI_SIZE && number >= 0) {
        cli_size((uint64_t)number, size);
        kv_buf_text(out, size);
    } else {
        kv_buf_printf(out, "%lld", (long long)number);
    }
}

/* What is left of JSON in a cell: compact, without control characters. */
static void put_json(struct kv_buf *out, const json_t *value)
{
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
    if (text != NULL) {
        (void)cli_clean(out, text, strlen(text));
        json_free_t free_text = NULL;
        json_malloc_t unused = NULL;
        json_get_alloc_funcs(&unused, &free_text);
        free_text(text);
    }
}

static void put_scalar(const struct cli *cli, struct kv_buf *out, const json_t *value, enum cli_show show)
{
    if (json_is_string(value)) {
        put_text(cli, out, json_string_value(value), show);
    } else if (json_is_integer(value)) {
        put_number(cli, out, json_integer_value(value), show);
    } else if (json_is_boolean(value)) {
        kv_buf_text(out, json_is_true(value) ? "yes" : "no");
    } else if (value == NULL || json_is_null(value)) {
        kv_buf_text(out, "-");
    } else {
        put_json(out, value);
    }
}

static bool is_scalar(const json_t *value)
{
    return value == NULL || !(json_is_object(value) || json_is_array(value));
}

/* "a,b" for an array of scalars, "k=v,l=w" for an object of scalars, JSON for the rest. */
static void put_value(const struct cli *cli, struct kv_buf *out, const json_t *value, enum cli_show show)
{
    size_t index = 0, before = out->len;
    const char *key = NULL;
    json_t *item = NULL, *object = json_is_object(value) ? (json_t *)(uintptr_t)value : NULL;
    bool flat = true;
    json_array_foreach(value, index, item)
    {
        flat = flat && is_scalar(item);
    }
    json_object_foreach(object, key, item)
    {
        flat = flat && is_scalar(item);
    }
    if (is_scalar(value) || !flat) {
        put_scalar(cli, out, value, show);
        return;
    }
    json_array_foreach(value, index, item)
    {
        kv_buf_text(out, index == 0 ? "" : ",");
        put_scalar(cli, out, item, show);
    }
    json_object_foreach(object, key, item)
    {
        kv_buf_text(out, out->len == before ? "" : ",");
        (void)cli_clean(out, key, strlen(key));
        kv_buf_text(out, "=");
        put_scalar(cli, out, item, show);
    }
    kv_buf_text(out, out->len == before ? "-" : "");
}

/* --- JSON -------------------------------------------------------------------------------------------------------- */

static int put_document(const struct cli *cli, struct kv_buf *out, const json_t *value, size_t flags)
{
    /* On a terminal also what jansson would pass through: C1 controls and changes of direction. */
    char *text = json_dumps(value, flags | JSON_ENCODE_ANY | (cli->tty ? JSON_ENSURE_ASCII : 0u));
    if (text == NULL) {
        return CLI_NEGATIVE;
    }
    kv_buf_text(out, text);
    json_free_t free_text = NULL;
    json_malloc_t unused = NULL;
    json_get_alloc_funcs(&unused, &free_text);
    free_text(text);
    return CLI_OK;
}

static void put_id(struct kv_buf *out, const json_t *object)
{
    const char *id = json_string_value(json_object_get(object, "id"));
    id = id == NULL ? json_string_value(json_object_get(object, "name")) : id;
    if (id != NULL) {
        (void)cli_clean(out, id, strlen(id));
        kv_buf_text(out, "\n");
    }
}

/* --- one resource ------------------------------------------------------------------------------------------------ */

static enum cli_show show_of(const char *name)
{
    size_t len = strlen(name);
    return len > 6 && strcmp(name + len - 6, "_bytes") == 0 ? CLI_SIZE : CLI_PLAIN;
}

static void put_line(const struct cli *cli, struct kv_buf *out, const char *name, const json_t *value)
{
    const char *last = strrchr(name, '.');
    kv_buf_printf(out, "%s%-24s%s ", cli->color ? DIM : "", name, cli->color ? PLAIN : "");
    put_value(cli, out, value, show_of(last == NULL ? name : last + 1));
    kv_buf_text(out, "\n");
}

/* An array of objects as lines of their own, "tiers[0].name". */
static void put_items(const struct cli *cli, struct kv_buf *out, const char *name, const json_t *array)
{
    size_t index = 0;
    json_t *item = NULL, *member = NULL;
    const char *key = NULL;
    json_array_foreach(array, index, item)
    {
        json_object_foreach(item, key, member)
        {
            char path[128];
            snprintf(path, sizeof path, "%.60s[%zu].%.40s", name, index, key);
            put_line(cli, out, path, member);
        }
    }
}

static bool is_array_of_objects(const json_t *value)
{
    return json_is_array(value) && json_is_object(json_array_get(value, 0));
}

/* A member of a member: one more storey, then JSON. */
static void put_member(const struct cli *cli, struct kv_buf *out, const char *name, const json_t *value)
{
    const char *key = NULL;
    json_t *member = NULL, *object = json_is_object(value) ? (json_t *)(uintptr_t)value : NULL;
    if (is_array_of_objects(value)) {
        put_items(cli, out, name, value);
        return;
    }
    if (object == NULL || json_object_size(object) == 0) {
        put_line(cli, out, name, value);
        return;
    }
    json_object_foreach(object, key, member)
    {
        char path[128];
        snprintf(path, sizeof path, "%.60s.%.60s", name, key);
        if (is_array_of_objects(member)) {
            put_items(cli, out, path, member);
        } else {
            put_line(cli, out, path, member);
        }
    }
}

static int show_table(const struct cli *cli, struct kv_buf *out, const json_t *object)
{
    const char *key = NULL;
    json_t *member = NULL, *it = (json_t *)(uintptr_t)object;
    json_object_foreach(it, key, member)
    {
        char name[64];
        struct kv_buf clean;
        kv_buf_init(&clean, 256);
        (void)cli_clean(&clean, key, strlen(key));
        snprintf(name, sizeof name, "%.60s", clean.data == NULL ? "" : (const char *)clean.data);
        kv_buf_done(&clean);
        put_member(cli, out, name, member);
    }
    return CLI_OK;
}

int cli_show(struct cli *cli, const json_t *object)
{
    int code = CLI_OK;
    struct kv_buf out KV_CLEANUP(kv_buf_done);
    kv_buf_init(&out, OUT_MAX);
    if (cli->quiet || object == NULL) {
        return CLI_OK;
    }
    if (cli->format == CLI_JSON || cli->format == CLI_JSONL) {
        code = put_document(cli, &out, object, cli->format == CLI_JSON ? JSON_INDENT(2) : JSON_COMPACT);
        kv_buf_text(&out, "\n");
    } else if (cli->format == CLI_ID) {
        put_id(&out, object);
    } else {
        code = show_table(cli, &out, object);
    }
    return code != CLI_OK ? code : cli_write(&out);
}

/* --- lists ------------------------------------------------------------------------------------------------------- */

static bool is_shown(const struct cli *cli, const struct cli_column *column)
{
    return !column->wide || cli->format == CLI_WIDE;
}

static size_t characters(const struct kv_buf *text)
{
    size_t count = 0;
    for (size_t i = 0; i < text->len; i++) {
        count += (text->data[i] & 0xc0) != 0x80;
    }
    return count;
}

static void measure(const struct cli *cli, struct cli_list *list, const json_t *items)
{
    size_t index = 0;
    json_t *item = NULL;
    struct kv_buf cell KV_CLEANUP(kv_buf_done);
    kv_buf_init(&cell, 65536);
    for (size_t c = 0; cli->command->columns[c].title != NULL; c++) {
        const struct cli_column *column = &cli->command->columns[c];
        size_t width = strlen(column->title);
        json_array_foreach(items, index, item)
        {
            kv_buf_reset(&cell);
            put_value(cli, &cell, cli_get(item, column->member), column->show);
            size_t len = characters(&cell);
            width = len > width ? len : width;
        }
        width = width > 64 ? 64 : width;
        list->widths[c] = width > list->widths[c] ? width : list->widths[c];
    }
}

static void put_cell(struct kv_buf *out, const struct kv_buf *cell, size_t width, bool last)
{
    static const char spaces[] = "                                                                ";
    size_t len = characters(cell);
    kv_buf_append(out, cell->data, cell->len);
    if (!last) {
        kv_buf_printf(out, "%.*s  ", len < width ? (int)(width - len) : 0, spaces);
    }
}

static bool is_last(const struct cli *cli, size_t c)
{
    for (size_t next = c + 1; cli->command->columns[next].title != NULL; next++) {
        if (is_shown(cli, &cli->command->columns[next])) {
            return false;
        }
    }
    return true;
}

/* A row; NULL: the titles. */
static void put_row(const struct cli *cli, const struct cli_list *list, struct kv_buf *out, const json_t *item)
{
    struct kv_buf cell KV_CLEANUP(kv_buf_done);
    kv_buf_init(&cell, 65536);
    kv_buf_text(out, item == NULL && cli->color ? BOLD : "");
    for (size_t c = 0; cli->command->columns[c].title != NULL; c++) {
        const struct cli_column *column = &cli->command->columns[c];
        if (!is_shown(cli, column)) {
            continue;
        }
        kv_buf_reset(&cell);
        if (item == NULL) {
            kv_buf_text(&cell, column->title);
        } else {
            put_value(cli, &cell, cli_get(item, column->member), column->show);
        }
        put_cell(out, &cell, list->widths[c], is_last(cli, c));
    }
    kv_buf_text(out, item == NULL && cli->color ? PLAIN "\n" : "\n");
}

static int put_item(const struct cli *cli, struct cli_list *list, struct kv_buf *out, const json_t *item)
{
    int code = CLI_OK;
    switch (cli->format) {
    case CLI_JSON:
        kv_buf_text(out, list->shown == 0 ? "[\n" : ",\n");
        code = put_document(cli, out, item, JSON_INDENT(2));
        break;
    case CLI_JSONL:
        code = put_document(cli, out, item, JSON_COMPACT);
        kv_buf_text(out, "\n");
        break;
    case CLI_ID:
        put_id(out, item);
        break;
    default:
        put_row(cli, list, out, item);
    }
    list->shown++;
    return code;
}

int cli_list_items(struct cli *cli, struct cli_list *list, const json_t *items)
{
    size_t index = 0;
    json_t *item = NULL;
    int code = CLI_OK;
    struct kv_buf out KV_CLEANUP(kv_buf_done);
    kv_buf_init(&out, OUT_MAX);
    bool table = cli->format == CLI_TABLE || cli->format == CLI_WIDE;
    if (cli->quiet) {
        list->shown += json_array_size(items);
        return CLI_OK;
    }
    if (table) {
        measure(cli, list, items);
    }
    if (table && !list->begun && json_array_size(items) > 0) {
        put_row(cli, list, &out, NULL);
        list->begun = true;
    }
    json_array_foreach(items, index, item)
    {
        if (code == CLI_OK && (cli->limit == 0 || list->shown < cli->limit)) {
            code = put_item(cli, list, &out, item);
        }
    }
    return code != CLI_OK ? code : cli_write(&out);
}

int cli_list_end(struct cli *cli, struct cli_list *list)
{
    if (cli->quiet) {
        return CLI_OK;
    }
    if (cli->format == CLI_JSON) {
        fputs(list->shown == 0 ? "[]\n" : "\n]\n", stdout);
    } else if (list->shown == 0 && (cli->format == CLI_TABLE || cli->format == CLI_WIDE)) {
        cli_note(cli, "nothing there");
    }
    return fflush(stdout) == 0 ? CLI_OK : CLI_NEGATIVE;
}
