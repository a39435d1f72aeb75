/* The small JSON writer of entries and certificates. Must never write a text that is not its own canonical form. */
#include "audit/emit_int.h"

#include "audit/text_int.h"

#include <string.h>

static void open_level(struct kv_emit *emit, char close)
{
    if (emit->depth == KV_EMIT_DEPTH_MAX) {
        emit->refused = true;
        return;
    }
    kv_buf_text(emit->buf, close == '}' ? "{" : "[");
    emit->levels[emit->depth].close = close;
    emit->levels[emit->depth].any = false;
    emit->levels[emit->depth].last = NULL;
    emit->depth++;
}

/* Comma and member name before a value. */
static void begin_value(struct kv_emit *emit, const char *name)
{
    if (emit->depth == 0) {
        emit->refused = true;
        return;
    }
    unsigned top = emit->depth - 1;
    if (emit->levels[top].any) {
        kv_buf_text(emit->buf, ",");
    }
    emit->levels[top].any = true;
    bool in_object = emit->levels[top].close == '}';
    if (in_object != (name != NULL)) {
        emit->refused = true;
        return;
    }
    if (name == NULL) {
        return;
    }
    if (emit->levels[top].last != NULL && strcmp(emit->levels[top].last, name) >= 0) {
        emit->refused = true;
    }
    emit->levels[top].last = name;
    kv_buf_json_string(emit->buf, name);
    kv_buf_text(emit->buf, ":");
}

struct kv_emit kv_emit_begin(struct kv_buf *buf)
{
    struct kv_emit emit = {.buf = buf};
    open_level(&emit, '}');
    return emit;
}

KV_RC kv_emit_end(struct kv_emit *emit)
{
    kv_emit_close(emit);
    if (emit->refused || emit->depth != 0) {
        return KV_E_INVALID_REQUEST;
    }
    return kv_buf_check(emit->buf);
}

void kv_emit_object(struct kv_emit *emit, const char *name)
{
    begin_value(emit, name);
    open_level(emit, '}');
}

void kv_emit_array(struct kv_emit *emit, const char *name)
{
    begin_value(emit, name);
    open_level(emit, ']');
}

void kv_emit_close(struct kv_emit *emit)
{
    if (emit->depth == 0) {
        emit->refused = true;
        return;
    }
    emit->depth--;
    kv_buf_text(emit->buf, emit->levels[emit->depth].close == '}' ? "}" : "]");
}

void kv_emit_text(struct kv_emit *emit, const char *name, const char *text)
{
    begin_value(emit, name);
    if (text == NULL || !kv_text_printable(text, strlen(text))) {
        emit->refused = true;
        return;
    }
    kv_buf_text(emit->buf, "\"");
    for (const char *c = text; *c != '\0'; c++) {
        if (*c == '"' || *c == '\\') {
            kv_buf_text(emit->buf, "\\");
        }
        kv_buf_append(emit->buf, c, 1);
    }
    kv_buf_text(emit->buf, "\"");
}

void kv_emit_integer(struct kv_emit *emit, const char *name, uint64_t value)
{
    begin_value(emit, name);
    if (value >= KV_JSON_INTEGER_END) {
        emit->refused = true;
    }
    kv_buf_printf(emit->buf, "%llu", (unsigned long long)value);
}

void kv_emit_decimal(struct kv_emit *emit, const char *name, uint64_t value)
{
    begin_value(emit, name);
    kv_buf_printf(emit->buf, "\"%llu\"", (unsigned long long)value);
}

void kv_emit_bool(struct kv_emit *emit, const char *name, bool value)
{
    begin_value(emit, name);
    kv_buf_text(emit->buf, value ? "true" : "false");
}

void kv_emit_id(struct kv_emit *emit, const char *name, const char *prefix, const struct kv_id *id)
{
    char text[KV_ID_TEXT_SIZE];
    kv_id_text(prefix, id, text);
    kv_emit_text(emit, name, text);
}

void kv_emit_hex(struct kv_emit *emit, const char *name, const uint8_t hash[32])
{
    char text[65];
    kv_hex_encode(hash, 32, text);
    kv_emit_text(emit, name, text);
}

void kv_emit_time(struct kv_emit *emit, const char *name, uint64_t realtime_us)
{
    char text[28];
    kv_time_text(realtime_us, text);
    kv_emit_text(emit, name, text);
}
