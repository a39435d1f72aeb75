/*
 * Reads a plain dump of the database as pg_dump writes it: the COPY blocks, row by row. Everything else in the file is
 * passed over. It knows no table.
 */
#ifndef KV_ATTACK_DUMP_H
#define KV_ATTACK_DUMP_H

#include "dataplane/base/err.h"

#include <stdio.h>

#define DUMP_COLUMNS_MAX 64

struct dump_row {
    const char *table; /* without the schema; borrowed for the call, like the rest */
    const char *columns[DUMP_COLUMNS_MAX];
    const char *values[DUMP_COLUMNS_MAX]; /* escapes undone; NULL is SQL's null */
    size_t count;
};

typedef void dump_row_fn(void *ctx, const struct dump_row *row);

/* KV_E_CORRUPT when a COPY block does not end or a row has another number of fields than its header. */
KV_RC dump_read(FILE *file, dump_row_fn *fn, void *ctx);

/* The value of a column; NULL when it is null or there is no such column. */
const char *dump_text(const struct dump_row *row, const char *column);
/* KV_E_MISSING: null or not there. KV_E_CORRUPT: not a number, not a bytea. KV_E_LIMIT: longer than `size`. */
KV_RC dump_integer(const struct dump_row *row, const char *column, int64_t *ret_value);
KV_RC dump_bytea(const struct dump_row *row, const char *column, void *ret_bytes, size_t size, size_t *ret_len);
KV_RC dump_id(const struct dump_row *row, const char *column, struct kv_id *ret_id); /* a bytea of 16 */

#endif
