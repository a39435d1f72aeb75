/*
 * The COPY text format: fields parted by tabs, backslash escapes, \N for null, a line "\." at the end. It must accept
 * what pg_dump writes and report what it does not understand, because a row passed over in silence would make the
 * attack look weaker than it is.
 */
#include "tests/attack/dump.h"
#include "dataplane/base/bytes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* One letter after a backslash; 0 for a letter that stands for itself. */
static char simple_escape(char letter)
{
    static const char from[] = "bfnrtv", to[] = "\b\f\n\r\t\v";
    const char *found = strchr(from, letter);
    return letter != '\0' && found != NULL ? to[found - from] : '\0';
}

static int digit_of(char c, int base)
{
    int value = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : 99;
    return value < base ? value : -1;
}

/* Up to `max` digits at *p; false when there is none. */
static bool read_code(const char **p, int base, int max, char *ret_byte)
{
    int value = 0, count = 0;
    for (; count < max && digit_of(**p, base) >= 0; count++, (*p)++) {
        value = value * base + digit_of(**p, base);
    }
    *ret_byte = (char)(value & 0xff);
    return count > 0;
}

/* Undoes the escapes in place. NULL for \N. */
static char *unescape(char *field)
{
    if (strcmp(field, "\\N") == 0) {
        return NULL;
    }
    const char *from = field;
    char *to = field;
    while (*from != '\0') {
        if (*from != '\\' || from[1] == '\0') {
            *to++ = *from++;
            continue;
        }
        from++;
        char byte = simple_escape(*from);
        if (byte != '\0') {
            from++;
        } else if (*from == 'x' && digit_of(from[1], 16) >= 0) {
            from++;
            (void)read_code(&from, 16, 2, &byte);
        } else if (!read_code(&from, 8, 3, &byte)) {
            byte = *from++;
        }
        *to++ = byte;
    }
    *to = '\0';
    return field;
}

static void cut_newline(char *line)
{
    line[strcspn(line, "\r\n")] = '\0';
}

/* A name as SQL writes it, without its quotes; only simple names occur in the schema. */
static char *bare_name(char *name)
{
    while (*name == ' ') {
        name++;
    }
    size_t len = strlen(name);
    while (len > 0 && name[len - 1] == ' ') {
        name[--len] = '\0';
    }
    if (len >= 2 && name[0] == '"' && name[len - 1] == '"') {
        name[len - 1] = '\0';
        name++;
    }
    return name;
}

/* "COPY schema.table (a, b) FROM stdin;": fills table and columns, which then point into `line`. */
static bool parse_header(char *line, struct dump_row *ret_row)
{
    struct dump_row row = {0};
    char *open = strchr(line, '('), *close = strrchr(line, ')');
    if (strncmp(line, "COPY ", 5) != 0 || open == NULL || close == NULL || close < open ||
        strcmp(close, ") FROM stdin;") != 0) {
        return false;
    }
    *open = '\0';
    *close = '\0';
    char *table = line + 5, *dot = strrchr(table, '.');
    row.table = bare_name(dot != NULL ? dot + 1 : table);
    char *rest = open + 1, *name;
    while ((name = strsep(&rest, ",")) != NULL) {
        if (row.count == DUMP_COLUMNS_MAX) {
            return false;
        }
        row.columns[row.count++] = bare_name(name);
    }
    *ret_row = row;
    return true;
}

static KV_RC split_row(char *line, struct dump_row *row)
{
    size_t count = 0;
    char *rest = line, *field;
    while ((field = strsep(&rest, "\t")) != NULL) {
        if (count == row->count) {
            return KV_E_CORRUPT;
        }
        row->values[count++] = unescape(field);
    }
    return count == row->count ? KV_OK : KV_E_CORRUPT;
}

static KV_RC read_block(FILE *file, struct dump_row *row, dump_row_fn *fn, void *ctx)
{
    char *line = NULL;
    size_t size = 0;
    enum kv_err rc = KV_E_CORRUPT; /* The file ended before the block did. */
    while (getline(&line, &size, file) >= 0) {
        cut_newline(line);
        if (strcmp(line, "\\.") == 0) {
            rc = KV_OK;
            break;
        }
        rc = split_row(line, row);
        if (rc != KV_OK) {
            break;
        }
        fn(ctx, row);
        rc = KV_E_CORRUPT;
    }
    free(line);
    return rc;
}

KV_RC dump_read(FILE *file, dump_row_fn *fn, void *ctx)
{
    char *line = NULL;
    size_t size = 0;
    enum kv_err rc = KV_OK;
    while (rc == KV_OK && getline(&line, &size, file) >= 0) {
        struct dump_row row;
        cut_newline(line);
        if (parse_header(line, &row)) {
            rc = read_block(file, &row, fn, ctx);
        }
    }
    free(line);
    return rc == KV_OK && ferror(file) ? KV_E_IO : rc;
}

const char *dump_text(const struct dump_row *row, const char *column)
{
    for (size_t i = 0; i < row->count; i++) {
        if (strcmp(row->columns[i], column) == 0) {
            return row->values[i];
        }
    }
    return NULL;
}

KV_RC dump_integer(const struct dump_row *row, const char *column, int64_t *ret_value)
{
    const char *text = dump_text(row, column);
    if (text == NULL) {
        return KV_E_MISSING;
    }
    char *end = NULL;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0') {
        return KV_E_CORRUPT;
    }
    *ret_value = value;
    return KV_OK;
}

KV_RC dump_bytea(const struct dump_row *row, const char *column, void *ret_bytes, size_t size, size_t *ret_len)
{
    const char *text = dump_text(row, column);
    if (text == NULL) {
        return KV_E_MISSING;
    }
    size_t digits = strlen(text);
    if (digits < 2 || text[0] != '\\' || text[1] != 'x' || digits % 2 != 0) {
        return KV_E_CORRUPT;
    }
    size_t len = digits / 2 - 1;
    if (len > size) {
        return KV_E_LIMIT;
    }
    KV_TRY(kv_hex_decode(text + 2, ret_bytes, len) == KV_OK ? KV_OK : KV_E_CORRUPT);
    *ret_len = len;
    return KV_OK;
}

KV_RC dump_id(const struct dump_row *row, const char *column, struct kv_id *ret_id)
{
    struct kv_id id;
    size_t len = 0;
    KV_TRY(dump_bytea(row, column, id.b, sizeof(id.b), &len));
    if (len != sizeof(id.b)) {
        return KV_E_CORRUPT;
    }
    *ret_id = id;
    return KV_OK;
}
