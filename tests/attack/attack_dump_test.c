/*
 * The reader of database dumps: what pg_dump writes, and what must not pass in silence.
 */
#include "tests/attack/dump.h"
#include "tests/attack/loot.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>

struct seen {
    size_t rows;
    char table[64], first[256], second[256];
    bool first_null, second_null;
    size_t count;
};

static void note(void *ctx, const struct dump_row *row)
{
    struct seen *seen = ctx;
    seen->rows++;
    seen->count = row->count;
    snprintf(seen->table, sizeof(seen->table), "%s", row->table);
    const char *first = dump_text(row, "a"), *second = dump_text(row, "b");
    seen->first_null = first == NULL;
    seen->second_null = second == NULL;
    snprintf(seen->first, sizeof(seen->first), "%s", first != NULL ? first : "");
    snprintf(seen->second, sizeof(seen->second), "%s", second != NULL ? second : "");
}

static enum kv_err read_text(const char *text, dump_row_fn *fn, void *ctx)
{
    FILE *file = fmemopen((char *)(uintptr_t)text, strlen(text), "r");
    cr_assert(file != NULL);
    enum kv_err rc = dump_read(file, fn, ctx);
    fclose(file);
    return rc;
}

static struct seen must_read(const char *text)
{
    struct seen seen = {0};
    cr_assert(eq(int, read_text(text, note, &seen), KV_OK));
    return seen;
}

Test(dump, rows_of_a_block_are_read_and_the_rest_is_passed_over)
{
    struct seen seen =
        must_read("-- PostgreSQL database dump\nSET search_path = '';\nCREATE TABLE kvrun.t (\n  a text\n);\n"
                  "COPY kvrun.t (a, b) FROM stdin;\none\ttwo\nthree\tfour\n\\.\n\nselect 1;\n");
    cr_assert(eq(sz, seen.rows, 2));
    cr_assert(eq(sz, seen.count, 2));
    cr_assert(eq(str, seen.table, "t"));
    cr_assert(eq(str, seen.first, "three"));
    cr_assert(eq(str, seen.second, "four"));
}

Test(dump, columns_are_found_by_name_in_any_order)
{
    struct seen seen = must_read("COPY t (b, c, a) FROM stdin;\n1\t2\t3\n\\.\n");
    cr_assert(eq(str, seen.first, "3"));
    cr_assert(eq(str, seen.second, "1"));
}

Test(dump, quoted_names_lose_their_quotes)
{
    struct seen seen = must_read("COPY \"public\".\"t\" (\"a\", \"b\") FROM stdin;\n1\t2\n\\.\n");
    cr_assert(eq(str, seen.table, "t"));
    cr_assert(eq(str, seen.first, "1"));
}

Test(dump, null_is_not_the_empty_string)
{
    struct seen seen = must_read("COPY t (a, b) FROM stdin;\n\\N\t\n\\.\n");
    cr_assert(seen.first_null);
    cr_assert(eq(int, seen.second_null, false));
    cr_assert(eq(str, seen.second, ""));
    seen = must_read("COPY t (a, b) FROM stdin;\n\\\\N\tN\n\\.\n");
    cr_assert(eq(int, seen.first_null, false), "an escaped backslash before N is text");
    cr_assert(eq(str, seen.first, "\\N"));
}

Test(dump, escapes_are_undone)
{
    struct seen seen = must_read("COPY t (a, b) FROM stdin;\n\\b\\f\\n\\r\\t\\v\\\\x\t\\101\\x41\\x4g\\q\\1\n\\.\n");
    cr_assert(eq(str, seen.first, "\b\f\n\r\t\v\\x"));
    cr_assert(eq(str, seen.second, "AA\x04gq\x01"));
}

Test(dump, escaped_tab_does_not_part_fields)
{
    struct seen seen = must_read("COPY t (a, b) FROM stdin;\none\\ttwo\tthree\n\\.\n");
    cr_assert(eq(str, seen.first, "one\ttwo"));
    cr_assert(eq(str, seen.second, "three"));
}

Test(dump, empty_block_has_no_rows)
{
    cr_assert(eq(sz, must_read("COPY t (a, b) FROM stdin;\n\\.\n").rows, 0));
    cr_assert(eq(sz, must_read("").rows, 0));
}

Test(dump, statement_that_only_looks_like_a_block_is_passed_over)
{
    cr_assert(eq(sz, must_read("COPY t (a, b) TO stdout;\nCOPY t FROM stdin;\n-- COPY t (a) FROM stdin;\n").rows, 0));
}

Test(dump, block_that_does_not_end_is_corrupt)
{
    struct seen seen = {0};
    cr_assert(eq(int, read_text("COPY t (a, b) FROM stdin;\n1\t2\n", note, &seen), KV_E_CORRUPT));
    cr_assert(eq(int, read_text("COPY t (a, b) FROM stdin;\n", note, &seen), KV_E_CORRUPT));
}

Test(dump, row_with_another_number_of_fields_is_corrupt)
{
    struct seen seen = {0};
    cr_assert(eq(int, read_text("COPY t (a, b) FROM stdin;\n1\n\\.\n", note, &seen), KV_E_CORRUPT));
    cr_assert(eq(int, read_text("COPY t (a, b) FROM stdin;\n1\t2\t3\n\\.\n", note, &seen), KV_E_CORRUPT));
    cr_assert(eq(sz, seen.rows, 0));
}

static void note_types(void *ctx, const struct dump_row *row)
{
    size_t *rows = ctx;
    uint8_t bytes[4];
    size_t len = 99;
    int64_t number = 99;
    struct kv_id id;
    (*rows)++;
    cr_assert(eq(int, dump_bytea(row, "good", bytes, sizeof(bytes), &len), KV_OK));
    cr_assert(len == 3 && memcmp(bytes, "\x01\xab\xff", 3) == 0);
    cr_assert(eq(int, dump_bytea(row, "good", bytes, 3, &len), KV_OK), "at the limit");
    cr_assert(eq(int, dump_bytea(row, "good", bytes, 2, &len), KV_E_LIMIT), "one past it");
    cr_assert(eq(int, dump_bytea(row, "empty", bytes, sizeof(bytes), &len), KV_OK));
    cr_assert(eq(sz, len, 0));
    cr_assert(eq(int, dump_bytea(row, "odd", bytes, sizeof(bytes), &len), KV_E_CORRUPT));
    cr_assert(eq(int, dump_bytea(row, "number", bytes, sizeof(bytes), &len), KV_E_CORRUPT));
    cr_assert(eq(int, dump_bytea(row, "null", bytes, sizeof(bytes), &len), KV_E_MISSING));
    cr_assert(eq(int, dump_bytea(row, "absent", bytes, sizeof(bytes), &len), KV_E_MISSING));
    cr_assert(eq(int, dump_id(row, "good", &id), KV_E_CORRUPT), "not 16 bytes");
    cr_assert(eq(int, dump_integer(row, "number", &number), KV_OK));
    cr_assert(eq(long, number, -12));
    cr_assert(eq(int, dump_integer(row, "good", &number), KV_E_CORRUPT));
    cr_assert(eq(int, dump_integer(row, "null", &number), KV_E_MISSING));
}

Test(dump, values_are_typed_strictly)
{
    size_t rows = 0;
    cr_assert(eq(int,
                 read_text("COPY t (good, empty, odd, number, \"null\") FROM stdin;\n"
                           "\\\\x01abff\t\\\\x\t\\\\x123\t-12\t\\N\n\\.\n",
                           note_types, &rows),
                 KV_OK));
    cr_assert(eq(sz, rows, 1));
}

Test(loot, rows_that_cannot_be_read_are_counted)
{
    struct loot loot = {0};
    static const char text[] = "COPY kvrun.cluster (id, x) FROM stdin;\n\\\\x000102030405060708090a0b0c0d0e0f\t1\n"
                               "\\\\x0001\t1\n\\.\n"
                               "COPY kvrun.other (id) FROM stdin;\nwhatever\n\\.\n";
    FILE *file = fmemopen((char *)(uintptr_t)text, sizeof(text) - 1, "r");
    cr_assert(eq(int, loot_add_dump(&loot, file), KV_OK));
    fclose(file);
    cr_assert(eq(sz, loot.cluster_count, 1));
    cr_assert(eq(sz, loot.rows_not_understood, 1));
    loot_done(&loot);
}
