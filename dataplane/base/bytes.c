/*
 * The bounded reader and writer. Never touches a byte outside the range it was given; after the first failure it does
 * nothing more.
 */
#include "dataplane/base/bytes.h"

#include "dataplane/base/check.h"

#include <string.h>

struct kv_reader kv_reader_of(struct kv_bytes bytes)
{
    KV_ASSERT(bytes.data != NULL || bytes.len == 0);
    static const uint8_t nothing[1];
    const uint8_t *start = bytes.data != NULL ? bytes.data : nothing;
    return (struct kv_reader){.p = start, .end = start + bytes.len};
}

const uint8_t *kv_read_borrow(struct kv_reader *r, size_t len)
{
    if (r->failed || len > (size_t)(r->end - r->p)) {
        r->failed = true;
        return NULL;
    }
    const uint8_t *found = r->p;
    r->p += len;
    return found;
}

void kv_read_raw(struct kv_reader *r, void *target, size_t len)
{
    const uint8_t *source = kv_read_borrow(r, len);
    if (len == 0) {
        return;
    }
    if (source == NULL) {
        memset(target, 0, len);
        return;
    }
    memcpy(target, source, len);
}

static uint64_t read_be(struct kv_reader *r, size_t len)
{
    const uint8_t *p = kv_read_borrow(r, len);
    uint64_t v = 0;
    for (size_t i = 0; p != NULL && i < len; i++) {
        v = v << 8 | p[i];
    }
    return v;
}

static uint64_t read_le(struct kv_reader *r, size_t len)
{
    const uint8_t *p = kv_read_borrow(r, len);
    uint64_t v = 0;
    for (size_t i = 0; p != NULL && i < len; i++) {
        v |= (uint64_t)p[i] << (8 * i);
    }
    return v;
}

uint8_t kv_read_u8(struct kv_reader *r)
{
    return (uint8_t)read_be(r, 1);
}

uint16_t kv_read_u16(struct kv_reader *r)
{
    return (uint16_t)read_be(r, 2);
}

uint32_t kv_read_u32(struct kv_reader *r)
{
    return (uint32_t)read_be(r, 4);
}

uint64_t kv_read_u64(struct kv_reader *r)
{
    return read_be(r, 8);
}

uint32_t kv_read_u32_le(struct kv_reader *r)
{
    return (uint32_t)read_le(r, 4);
}

uint64_t kv_read_u64_le(struct kv_reader *r)
{
    return read_le(r, 8);
}

bool kv_reader_done(const struct kv_reader *r)
{
    return !r->failed && r->p == r->end;
}

struct kv_writer kv_writer_of(void *target, size_t size)
{
    KV_ASSERT(target != NULL);
    uint8_t *start = target;
    return (struct kv_writer){.start = start, .p = start, .end = start + size};
}

/* Room for `len` bytes, or NULL and `failed`. */
static uint8_t *claim(struct kv_writer *w, size_t len)
{
    if (w->failed || len > (size_t)(w->end - w->p)) {
        w->failed = true;
        return NULL;
    }
    uint8_t *room = w->p;
    w->p += len;
    return room;
}

void kv_write_raw(struct kv_writer *w, const void *source, size_t len)
{
    uint8_t *room = claim(w, len);
    if (room != NULL && len > 0) {
        memcpy(room, source, len);
    }
}

static void write_be(struct kv_writer *w, uint64_t v, size_t len)
{
    uint8_t *room = claim(w, len);
    for (size_t i = 0; room != NULL && i < len; i++) {
        room[i] = (uint8_t)(v >> (8 * (len - 1 - i)));
    }
}

static void write_le(struct kv_writer *w, uint64_t v, size_t len)
{
    uint8_t *room = claim(w, len);
    for (size_t i = 0; room != NULL && i < len; i++) {
        room[i] = (uint8_t)(v >> (8 * i));
    }
}

void kv_write_u8(struct kv_writer *w, uint8_t v)
{
    write_be(w, v, 1);
}

void kv_write_u16(struct kv_writer *w, uint16_t v)
{
    write_be(w, v, 2);
}

void kv_write_u32(struct kv_writer *w, uint32_t v)
{
    write_be(w, v, 4);
}

void kv_write_u64(struct kv_writer *w, uint64_t v)
{
    write_be(w, v, 8);
}

void kv_write_u32_le(struct kv_writer *w, uint32_t v)
{
    write_le(w, v, 4);
}

void kv_write_u64_le(struct kv_writer *w, uint64_t v)
{
    write_le(w, v, 8);
}

size_t kv_writer_len(const struct kv_writer *w)
{
    return (size_t)(w->p - w->start);
}
