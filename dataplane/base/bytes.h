/*
 * Bytes from outside: a bounded reader and a bounded writer, big-endian unless the name ends in _le. A read past the
 * end sets `failed` and yields zeroes, so that a parser checks once, at its end. Text codecs (hex, base64, base64url,
 * base32) are strict: one spelling for one value.
 */
#ifndef KV_BASE_BYTES_H
#define KV_BASE_BYTES_H

#include "dataplane/base/err.h"

struct kv_bytes {
    const uint8_t *data; /* borrowed */
    size_t len;
};

#define KV_BYTES(pointer, length) ((struct kv_bytes){.data = (const uint8_t *)(pointer), .len = (length)})

struct kv_reader {
    const uint8_t *p, *end;
    bool failed;
};

struct kv_writer {
    uint8_t *start, *p, *end;
    bool failed;
};

struct kv_reader kv_reader_of(struct kv_bytes bytes);
uint8_t kv_read_u8(struct kv_reader *r);
uint16_t kv_read_u16(struct kv_reader *r);
uint32_t kv_read_u32(struct kv_reader *r);
uint64_t kv_read_u64(struct kv_reader *r);
uint32_t kv_read_u32_le(struct kv_reader *r);
uint64_t kv_read_u64_le(struct kv_reader *r);
void kv_read_raw(struct kv_reader *r, void *target, size_t len);
const uint8_t *kv_read_borrow(struct kv_reader *r, size_t len); /* NULL when there is not that much */
bool kv_reader_done(const struct kv_reader *r);                 /* all read and nothing failed */

struct kv_writer kv_writer_of(void *target, size_t size);
void kv_write_u8(struct kv_writer *w, uint8_t v);
void kv_write_u16(struct kv_writer *w, uint16_t v);
void kv_write_u32(struct kv_writer *w, uint32_t v);
void kv_write_u64(struct kv_writer *w, uint64_t v);
void kv_write_u32_le(struct kv_writer *w, uint32_t v);
void kv_write_u64_le(struct kv_writer *w, uint64_t v);
void kv_write_raw(struct kv_writer *w, const void *source, size_t len);
size_t kv_writer_len(const struct kv_writer *w);

/* Lower-case hex; `text` has room for 2 * len + 1. */
void kv_hex_encode(const void *data, size_t len, char *text);
/* Exactly 2 * len lower-case digits and the end of the string. */
KV_RC kv_hex_decode(const char *text, void *ret_data, size_t len);

/* A number in decimal digits, without a NUL; returns how many. */
#define KV_DIGITS_SIZE 20
size_t kv_digits(uint64_t number, char digits[KV_DIGITS_SIZE]);

/* RFC 4648. Sizes: encoded length without the final NUL. `text` has room for that plus 1. */
size_t kv_base64_len(size_t len);
void kv_base64_encode(const void *data, size_t len, char *text);
size_t kv_base64url_len(size_t len);
void kv_base64url_encode(const void *data, size_t len, char *text); /* no padding */
/* Reject what the encoder would not have written. `ret_len` is what was decoded; KV_E_LIMIT when it is over `size`. */
KV_RC kv_base64_decode(const char *text, size_t text_len, void *ret_data, size_t size, size_t *ret_len);
KV_RC kv_base64url_decode(const char *text, size_t text_len, void *ret_data, size_t size, size_t *ret_len);

bool kv_utf8_valid(const char *text, size_t len);
/* How many letters to change, add or leave out between two words; of each the first 63 bytes count. */
unsigned kv_edit_distance(const char *a, const char *b);

/* CRC-32C (Castagnoli), for stored structures; not a MAC. `seed` 0 to start. */
uint32_t kv_crc32c(uint32_t seed, const void *data, size_t len);
/* CRC-32 (IEEE), for the check characters of API keys. */
uint32_t kv_crc32(const void *data, size_t len);

#endif
