/* Writing JSON into a buffer. A comma is due exactly when the last character is not an opening one. */
#include "server/http/codec.h"

static void comma(struct kv_buf *buf)
{
    char last = buf->len == 0 ? '{' : (char)buf->data[buf->len - 1];
    if (last != '{' && last != '[' && last != ':') {
        kv_buf_text(buf, ",");
    }
}

static void member(struct kv_buf *buf, const char *name)
{
    comma(buf);
    if (name != NULL) {
        kv_buf_json_string(buf, name);
        kv_buf_text(buf, ":");
    }
}

void kv_out_open(struct kv_buf *buf)
{
    if (buf->len > 0) {
        comma(buf);
    }
    kv_buf_text(buf, "{");
}

void kv_out_close(struct kv_buf *buf)
{
    kv_buf_text(buf, "}");
}

void kv_out_array(struct kv_buf *buf, const char *name)
{
    member(buf, name);
    kv_buf_text(buf, "[");
}

void kv_out_array_end(struct kv_buf *buf)
{
    kv_buf_text(buf, "]");
}

void kv_out_object(struct kv_buf *buf, const char *name)
{
    member(buf, name);
    kv_buf_text(buf, "{");
}

void kv_out_item(struct kv_buf *buf)
{
    comma(buf);
}

void kv_out_name(struct kv_buf *buf, const char *name)
{
    member(buf, name);
}

void kv_out_null(struct kv_buf *buf, const char *name)
{
    member(buf, name);
    kv_buf_text(buf, "null");
}

void kv_out_text(struct kv_buf *buf, const char *name, const char *text)
{
    member(buf, name);
    kv_buf_json_string(buf, text);
}

void kv_out_int(struct kv_buf *buf, const char *name, uint64_t number)
{
    member(buf, name);
    const char *quote = number < (UINT64_C(1) << 53) ? "" : "\"";
    kv_buf_text(buf, quote);
    kv_buf_number(buf, number);
    kv_buf_text(buf, quote);
}

void kv_out_bool(struct kv_buf *buf, const char *name, bool value)
{
    member(buf, name);
    kv_buf_text(buf, value ? "true" : "false");
}

void kv_out_id(struct kv_buf *buf, const char *name, const char *prefix, const struct kv_id *id)
{
    char text[KV_ID_TEXT_SIZE];
    kv_id_text(prefix, id, text);
    kv_out_text(buf, name, text);
}

void kv_out_time(struct kv_buf *buf, const char *name, uint64_t realtime_us)
{
    char text[28];
    kv_time_text(realtime_us, text);
    kv_out_text(buf, name, text);
}

void kv_out_hex(struct kv_buf *buf, const char *name, const uint8_t *data, size_t len)
{
    char text[129];
    if (len > 64) {
        buf->failed = true;
        return;
    }
    kv_hex_encode(data, len, text);
    kv_out_text(buf, name, text);
}
