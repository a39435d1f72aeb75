/*
 * Parameters and columns in PostgreSQL's binary forms: big-endian integers, microseconds since 2000, bytes as they are.
 */
#include "dataplane/base/check.h"
#include "dataplane/base/id.h"
#include "server/store/pg_int.h"

#include <limits.h>
#include <string.h>

enum {
    OID_BOOL = 16,
    OID_BYTEA = 17,
    OID_I64 = 20,
    OID_I32 = 23,
    OID_TEXT = 25,
    OID_BYTEA_ARRAY = 1001,
    OID_TEXT_ARRAY = 1009,
    OID_I64_ARRAY = 1016,
    OID_TIME = 1184,
};

/* Microseconds from 1970 to 2000, where PostgreSQL starts to count. */
#define EPOCH_US INT64_C(946684800000000)

static void put(struct kv_pg_args *args, Oid type, const void *data, size_t len)
{
    if (args->count >= KV_PG_ARGS_MAX || len > INT_MAX) {
        args->failed = true;
        return;
    }
    int i = args->count++;
    args->types[i] = type;
    args->values[i] = data;
    args->lengths[i] = (int)len;
    args->formats[i] = 1;
}

static void put_number(struct kv_pg_args *args, Oid type, uint64_t value, size_t len)
{
    if (args->count >= KV_PG_ARGS_MAX) {
        args->failed = true;
        return;
    }
    uint8_t *scratch = args->scratch[args->count];
    struct kv_writer w = kv_writer_of(scratch, 8);
    if (len == 8) {
        kv_write_u64(&w, value);
    } else if (len == 4) {
        kv_write_u32(&w, (uint32_t)value);
    } else {
        kv_write_u8(&w, (uint8_t)value);
    }
    put(args, type, scratch, len);
}

void kv_pg_arg_i64(struct kv_pg_args *args, int64_t value)
{
    put_number(args, OID_I64, (uint64_t)value, 8);
}

void kv_pg_arg_u64(struct kv_pg_args *args, uint64_t value)
{
    args->failed = args->failed || value > INT64_MAX;
    put_number(args, OID_I64, value, 8);
}

void kv_pg_arg_i32(struct kv_pg_args *args, int64_t value)
{
    args->failed = args->failed || value > INT32_MAX || value < INT32_MIN;
    put_number(args, OID_I32, (uint64_t)value, 4);
}

void kv_pg_arg_bool(struct kv_pg_args *args, bool value)
{
    put_number(args, OID_BOOL, value ? 1 : 0, 1);
}

void kv_pg_arg_text(struct kv_pg_args *args, const char *text)
{
    put(args, OID_TEXT, text, strlen(text));
}

void kv_pg_arg_text_or_null(struct kv_pg_args *args, const char *text)
{
    bool null = text == NULL || text[0] == '\0';
    put(args, OID_TEXT, null ? NULL : text, null ? 0 : strlen(text));
}

void kv_pg_arg_raw(struct kv_pg_args *args, const void *data, size_t len)
{
    /* A NULL pointer would be SQL's null; an empty value is not. */
    put(args, OID_BYTEA, data != NULL ? data : "", len);
}

void kv_pg_arg_raw_or_null(struct kv_pg_args *args, const void *data, size_t len)
{
    put(args, OID_BYTEA, len != 0 ? data : NULL, len);
}

void kv_pg_arg_id(struct kv_pg_args *args, const struct kv_id *id)
{
    put(args, OID_BYTEA, id->b, sizeof id->b);
}

void kv_pg_arg_id_or_null(struct kv_pg_args *args, const struct kv_id *id)
{
    bool null = id == NULL || kv_id_is_zero(id);
    put(args, OID_BYTEA, null ? NULL : id->b, null ? 0 : sizeof id->b);
}

void kv_pg_arg_time(struct kv_pg_args *args, uint64_t us)
{
    args->failed = args->failed || us > INT64_MAX;
    put_number(args, OID_TIME, (uint64_t)((int64_t)us - EPOCH_US), 8);
}

void kv_pg_arg_time_or_null(struct kv_pg_args *args, uint64_t us)
{
    if (us == 0) {
        put(args, OID_TIME, NULL, 0);
    } else {
        kv_pg_arg_time(args, us);
    }
}

static const struct {
    uint32_t item;
    Oid array;
} array_oids[] = {
    [KV_PG_ARRAY_BYTEA] = {OID_BYTEA, OID_BYTEA_ARRAY},
    [KV_PG_ARRAY_I64] = {OID_I64, OID_I64_ARRAY},
    [KV_PG_ARRAY_TEXT] = {OID_TEXT, OID_TEXT_ARRAY},
};

static void append_u32(struct kv_buf *buf, uint32_t value)
{
    uint8_t bytes[4];
    struct kv_writer w = kv_writer_of(bytes, sizeof bytes);
    kv_write_u32(&w, value);
    kv_buf_append(buf, bytes, sizeof bytes);
}

void kv_pg_array_init(struct kv_pg_array *array, enum kv_pg_array_type type, size_t count, size_t bytes_max)
{
    *array = (struct kv_pg_array){.count = (uint32_t)count};
    kv_buf_init(&array->buf, 20 + count * 4 + bytes_max);
    append_u32(&array->buf, count > 0 ? 1 : 0); /* dimensions */
    append_u32(&array->buf, 1);                 /* there may be nulls */
    append_u32(&array->buf, array_oids[type].item);
    if (count > 0) {
        append_u32(&array->buf, (uint32_t)count);
        append_u32(&array->buf, 1); /* lower bound */
    }
}

void kv_pg_array_raw(struct kv_pg_array *array, const void *data, size_t len, bool null)
{
    append_u32(&array->buf, null ? UINT32_MAX : (uint32_t)len);
    if (!null && len > 0) {
        kv_buf_append(&array->buf, data, len);
    }
}

void kv_pg_array_i64(struct kv_pg_array *array, int64_t value)
{
    uint8_t bytes[8];
    struct kv_writer w = kv_writer_of(bytes, sizeof bytes);
    kv_write_u64(&w, (uint64_t)value);
    kv_pg_array_raw(array, bytes, sizeof bytes, false);
}

void kv_pg_array_done(struct kv_pg_array *array)
{
    kv_buf_done(&array->buf);
}

void kv_pg_arg_array(struct kv_pg_args *args, const struct kv_pg_array *array, enum kv_pg_array_type type)
{
    args->failed = args->failed || kv_buf_check(&array->buf) != KV_OK;
    put(args, array_oids[type].array, array->buf.data, array->buf.len);
}

struct kv_pg_row kv_pg_row_of(const PGresult *result, int row)
{
    return (struct kv_pg_row){.result = result, .row = row};
}

bool kv_pg_get_null(const struct kv_pg_row *row)
{
    return row->column >= PQnfields(row->result) || PQgetisnull(row->result, row->row, row->column) == 1;
}

/* The next column's bytes; `len` of it must match unless it is 0. Null yields an empty value and `*ret_null`. */
static struct kv_bytes take(struct kv_pg_row *row, size_t len, bool *ret_null)
{
    *ret_null = true;
    if (row->failed || row->column >= PQnfields(row->result) || PQfformat(row->result, row->column) != 1) {
        row->failed = true;
        return (struct kv_bytes){0};
    }
    int column = row->column++;
    if (PQgetisnull(row->result, row->row, column) == 1) {
        return (struct kv_bytes){0};
    }
    int found = PQgetlength(row->result, row->row, column);
    if (found < 0 || (len != 0 && (size_t)found != len)) {
        row->failed = true;
        return (struct kv_bytes){0};
    }
    *ret_null = false;
    return KV_BYTES(PQgetvalue(row->result, row->row, column), (size_t)found);
}

static uint64_t take_u64(struct kv_pg_row *row, bool *ret_null)
{
    struct kv_bytes bytes = take(row, 8, ret_null);
    struct kv_reader r = kv_reader_of(bytes);
    return *ret_null ? 0 : kv_read_u64(&r);
}

int64_t kv_pg_get_i64(struct kv_pg_row *row)
{
    bool null = false;
    int64_t value = (int64_t)take_u64(row, &null);
    row->failed = row->failed || null;
    return value;
}

uint64_t kv_pg_get_u64(struct kv_pg_row *row)
{
    int64_t value = kv_pg_get_i64(row);
    row->failed = row->failed || value < 0;
    return value < 0 ? 0 : (uint64_t)value;
}

int32_t kv_pg_get_i32(struct kv_pg_row *row)
{
    bool null = false;
    struct kv_bytes bytes = take(row, 4, &null);
    struct kv_reader r = kv_reader_of(bytes);
    row->failed = row->failed || null;
    return null ? 0 : (int32_t)kv_read_u32(&r);
}

uint32_t kv_pg_get_u32(struct kv_pg_row *row)
{
    int32_t value = kv_pg_get_i32(row);
    row->failed = row->failed || value < 0;
    return value < 0 ? 0 : (uint32_t)value;
}

bool kv_pg_get_bool(struct kv_pg_row *row)
{
    bool null = false;
    struct kv_bytes bytes = take(row, 1, &null);
    row->failed = row->failed || null;
    return !null && bytes.data[0] != 0;
}

uint64_t kv_pg_get_time(struct kv_pg_row *row)
{
    bool null = false;
    int64_t value = (int64_t)take_u64(row, &null);
    if (null) {
        return 0;
    }
    if (value < -EPOCH_US || value > INT64_MAX - EPOCH_US) {
        row->failed = true;
        return 0;
    }
    return (uint64_t)(value + EPOCH_US);
}

void kv_pg_get_text(struct kv_pg_row *row, char *ret_text, size_t size)
{
    bool null = false;
    struct kv_bytes bytes = take(row, 0, &null);
    if (bytes.len >= size) {
        row->failed = true;
        bytes.len = 0;
    }
    if (bytes.len > 0) {
        memcpy(ret_text, bytes.data, bytes.len);
    }
    ret_text[bytes.len] = '\0';
}

void kv_pg_get_raw(struct kv_pg_row *row, void *ret_data, size_t len)
{
    bool null = false;
    struct kv_bytes bytes = take(row, len, &null);
    memset(ret_data, 0, len);
    if (bytes.len == len) {
        memcpy(ret_data, bytes.data, len);
    }
}

struct kv_bytes kv_pg_get_bytes(struct kv_pg_row *row)
{
    bool null = false;
    return take(row, 0, &null);
}

/* Binary form: dimensions, flags, item type; for each dimension its length and lower bound; then length and bytes of
 * each item. */
struct kv_pg_items kv_pg_get_array(struct kv_pg_row *row)
{
    bool null = false;
    struct kv_pg_items items = {.reader = kv_reader_of(take(row, 0, &null))};
    if (null) {
        return items;
    }
    uint32_t dimensions = kv_read_u32(&items.reader);
    (void)kv_read_u32(&items.reader); /* whether there are nulls: an item says it itself */
    bool texts = kv_read_u32(&items.reader) == OID_TEXT;
    if (dimensions == 1) {
        items.count = kv_read_u32(&items.reader);
        (void)kv_read_u32(&items.reader);
    }
    row->failed = row->failed || !texts || dimensions > 1 || items.reader.failed;
    return items;
}

void kv_pg_item_text(struct kv_pg_items *items, struct kv_pg_row *row, char *ret_text, size_t size)
{
    uint32_t len = kv_read_u32(&items->reader); /* a null's is the largest number */
    ret_text[0] = '\0';
    if (items->reader.failed || len >= size) {
        row->failed = true;
        return;
    }
    kv_read_raw(&items->reader, ret_text, len);
    ret_text[len] = '\0';
    row->failed = row->failed || items->reader.failed;
}

void kv_pg_get_id(struct kv_pg_row *row, struct kv_id *ret_id)
{
    kv_pg_get_raw(row, ret_id->b, sizeof ret_id->b);
}

int kv_pg_get_word(struct kv_pg_row *row, const char *const *names, int count)
{
    char text[32];
    kv_pg_get_text(row, text, sizeof text);
    for (int i = 0; i < count; i++) {
        if (strcmp(text, names[i]) == 0) {
            return i;
        }
    }
    row->failed = true;
    return 0;
}

KV_RC kv_pg_row_check(const struct kv_pg_row *row, struct kv_errinfo *info)
{
    /* A reader that leaves columns over has another idea of the statement than the statement itself. */
    if (row->failed || row->column != PQnfields(row->result)) {
        return kv_fail(info, KV_E_CORRUPT, "a row of the database is not what this server writes");
    }
    return KV_OK;
}
