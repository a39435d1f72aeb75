/*
 * Writes restricted JCS directly: members come in sorted order, or the writer refuses. A value outside the profile (a
 * string that is not printable ASCII, a number of 2^53 or more, a member out of order) spoils the whole text;
 * kv_emit_end says so.
 */
#ifndef KV_AUDIT_EMIT_INT_H
#define KV_AUDIT_EMIT_INT_H

#include "audit/merkle.h"
#include "dataplane/base/id.h"

#define KV_EMIT_DEPTH_MAX 8u
#define KV_JSON_INTEGER_END (UINT64_C(1) << 53)

struct kv_emit {
    struct kv_buf *buf; /* borrowed */
    unsigned depth;
    struct {
        char close;       /* '}' or ']' */
        bool any;         /* a value was written */
        const char *last; /* name of the member before, in an object */
    } levels[KV_EMIT_DEPTH_MAX];
    bool refused;
};

struct kv_emit kv_emit_begin(struct kv_buf *buf); /* opens the outer object */
KV_RC kv_emit_end(struct kv_emit *emit); /* closes it. KV_E_INVALID_REQUEST: something was outside the profile */

/* `name` is NULL inside an array; static text. */
void kv_emit_object(struct kv_emit *emit, const char *name);
void kv_emit_array(struct kv_emit *emit, const char *name);
void kv_emit_close(struct kv_emit *emit);
void kv_emit_text(struct kv_emit *emit, const char *name, const char *text);
void kv_emit_integer(struct kv_emit *emit, const char *name, uint64_t value);
void kv_emit_decimal(struct kv_emit *emit, const char *name, uint64_t value); /* as a string */
void kv_emit_bool(struct kv_emit *emit, const char *name, bool value);
void kv_emit_id(struct kv_emit *emit, const char *name, const char *prefix, const struct kv_id *id);
void kv_emit_hex(struct kv_emit *emit, const char *name, const uint8_t hash[32]);
void kv_emit_time(struct kv_emit *emit, const char *name, uint64_t realtime_us);

#endif
