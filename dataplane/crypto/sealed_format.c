/*
 * Sizes and header bytes of the envelope. What is read here comes from a disk or a database and is believed only as far
 * as it agrees with itself; whether it is authentic is decided in sealed.c.
 */
#include "dataplane/base/check.h"
#include "dataplane/crypto/sealed_format_int.h"

#include <string.h>

enum { VERSION = 1, ALGORITHM = 1, DERIVATION = 1 };

static const char magic[4] = {'K', 'V', 'R', '1'};

uint32_t kv_sealed_tag_count(uint64_t plaintext_length)
{
    return (uint32_t)(plaintext_length / KV_CHUNK_BYTES + 1);
}

static uint64_t align_up(uint64_t bytes)
{
    return (bytes + KV_SEALED_ALIGN - 1) / KV_SEALED_ALIGN * KV_SEALED_ALIGN;
}

uint32_t kv_sealed_header_bytes_of(enum kv_sealed_form form, uint64_t plaintext_length)
{
    uint64_t bytes = KV_SEALED_FIXED_BYTES + (uint64_t)KV_AEAD_TAG_BYTES * kv_sealed_tag_count(plaintext_length);
    return (uint32_t)(form == KV_FORM_PAGED ? align_up(bytes) : bytes);
}

uint32_t kv_sealed_header_bytes(uint64_t plaintext_length)
{
    return kv_sealed_header_bytes_of(KV_FORM_PAGED, plaintext_length);
}

uint64_t kv_sealed_payload_bytes(uint64_t plaintext_length)
{
    return align_up(plaintext_length);
}

uint64_t kv_sealed_bytes(uint64_t plaintext_length)
{
    return kv_sealed_header_bytes(plaintext_length) + kv_sealed_payload_bytes(plaintext_length);
}

size_t kv_sealed_compact_bytes(uint64_t plaintext_length)
{
    return (size_t)(kv_sealed_header_bytes_of(KV_FORM_COMPACT, plaintext_length) + plaintext_length);
}

bool kv_sealed_context_valid(const struct kv_sealed_context *context)
{
    return context->kind >= KV_SEALED_BLOCK && context->kind <= KV_SEALED_META &&
           context->plaintext_length <= (uint64_t)KV_MAX_BLOCK_BYTES;
}

bool kv_sealed_context_equal(const struct kv_sealed_context *a, const struct kv_sealed_context *b)
{
    uint8_t bytes_a[KV_SEALED_CONTEXT_BYTES], bytes_b[KV_SEALED_CONTEXT_BYTES];
    kv_sealed_context_encode(a, bytes_a);
    kv_sealed_context_encode(b, bytes_b);
    return memcmp(bytes_a, bytes_b, sizeof bytes_a) == 0;
}

void kv_sealed_context_encode(const struct kv_sealed_context *context, uint8_t ret_bytes[KV_SEALED_CONTEXT_BYTES])
{
    struct kv_writer writer = kv_writer_of(ret_bytes, KV_SEALED_CONTEXT_BYTES);
    kv_write_raw(&writer, magic, sizeof magic);
    kv_write_u8(&writer, (uint8_t)context->kind);
    kv_write_raw(&writer, context->tenant.b, sizeof context->tenant.b);
    kv_write_raw(&writer, context->scope.b, sizeof context->scope.b);
    kv_write_raw(&writer, context->block_id.b, sizeof context->block_id.b);
    kv_write_raw(&writer, context->layout, sizeof context->layout);
    kv_write_u64(&writer, context->seq);
    kv_write_u64(&writer, context->plaintext_length);
    KV_ASSERT(!writer.failed && kv_writer_len(&writer) == KV_SEALED_CONTEXT_BYTES);
}

void kv_sealed_header_write(enum kv_sealed_form form, const struct kv_sealed_context *context,
                            const uint8_t salt[KV_SALT_BYTES], const uint8_t commitment[KV_COMMITMENT_BYTES],
                            uint8_t *target)
{
    uint32_t header_bytes = kv_sealed_header_bytes_of(form, context->plaintext_length);
    struct kv_writer writer = kv_writer_of(target, KV_SEALED_FIXED_BYTES);
    kv_write_raw(&writer, magic, sizeof magic);
    kv_write_u8(&writer, VERSION);
    kv_write_u8(&writer, ALGORITHM);
    kv_write_u8(&writer, DERIVATION);
    kv_write_u8(&writer, (uint8_t)context->kind);
    kv_write_raw(&writer, context->tenant.b, sizeof context->tenant.b);
    kv_write_raw(&writer, context->scope.b, sizeof context->scope.b);
    kv_write_raw(&writer, context->block_id.b, sizeof context->block_id.b);
    kv_write_raw(&writer, context->layout, sizeof context->layout);
    kv_write_u64(&writer, context->seq);
    kv_write_u64(&writer, context->plaintext_length);
    kv_write_u32(&writer, kv_sealed_tag_count(context->plaintext_length));
    kv_write_u32(&writer, header_bytes);
    kv_write_raw(&writer, salt, KV_SALT_BYTES);
    kv_write_raw(&writer, commitment, KV_COMMITMENT_BYTES);
    KV_ASSERT(!writer.failed && kv_writer_len(&writer) == KV_SEALED_FIXED_BYTES);
    memset(target + KV_SEALED_FIXED_BYTES, 0, header_bytes - KV_SEALED_FIXED_BYTES);
}

static bool read_algorithms(struct kv_reader *reader)
{
    char found[sizeof magic];
    kv_read_raw(reader, found, sizeof found);
    uint8_t version = kv_read_u8(reader);
    uint8_t algorithm = kv_read_u8(reader);
    uint8_t derivation = kv_read_u8(reader);
    return memcmp(found, magic, sizeof magic) == 0 && version == VERSION && algorithm == ALGORITHM &&
           derivation == DERIVATION;
}

static void read_context(struct kv_reader *reader, struct kv_sealed_context *context)
{
    context->kind = (enum kv_sealed_kind)kv_read_u8(reader);
    kv_read_raw(reader, context->tenant.b, sizeof context->tenant.b);
    kv_read_raw(reader, context->scope.b, sizeof context->scope.b);
    kv_read_raw(reader, context->block_id.b, sizeof context->block_id.b);
    kv_read_raw(reader, context->layout, sizeof context->layout);
    context->seq = kv_read_u64(reader);
    context->plaintext_length = kv_read_u64(reader);
}

/* The counts follow from the plaintext length; header_bytes says which form it is. */
static bool counts_agree(struct kv_sealed_header *header)
{
    uint64_t length = header->context.plaintext_length;
    if (header->tag_count != kv_sealed_tag_count(length)) {
        return false;
    }
    if (header->header_bytes == kv_sealed_header_bytes_of(KV_FORM_PAGED, length)) {
        header->form = KV_FORM_PAGED;
        return true;
    }
    header->form = KV_FORM_COMPACT;
    return header->header_bytes == kv_sealed_header_bytes_of(KV_FORM_COMPACT, length);
}

KV_RC kv_sealed_header_parse(struct kv_bytes source, struct kv_sealed_header *ret_header)
{
    struct kv_sealed_header header = {0};
    if (source.len < KV_SEALED_FIXED_BYTES) {
        return KV_E_TRUNCATED;
    }
    struct kv_reader reader = kv_reader_of(KV_BYTES(source.data, KV_SEALED_FIXED_BYTES));
    if (!read_algorithms(&reader)) {
        return KV_E_CORRUPT;
    }
    read_context(&reader, &header.context);
    header.tag_count = kv_read_u32(&reader);
    header.header_bytes = kv_read_u32(&reader);
    header.salt = kv_read_borrow(&reader, KV_SALT_BYTES);
    header.commitment = kv_read_borrow(&reader, KV_COMMITMENT_BYTES);
    KV_ASSERT(kv_reader_done(&reader));
    if (!kv_sealed_context_valid(&header.context) || !counts_agree(&header)) {
        return KV_E_CORRUPT;
    }
    *ret_header = header;
    return KV_OK;
}

/* The first is zero, and each is as the one before it. A header page has up to 4 KiB of it, which byte by byte is a
 * tenth of what opening 64 KiB takes. */
static bool all_zero(const uint8_t *data, size_t len)
{
    return len == 0 || (data[0] == 0 && memcmp(data, data + 1, len - 1) == 0);
}

KV_RC kv_sealed_header_check_extent(const struct kv_sealed_header *header, struct kv_bytes source)
{
    uint64_t length = header->context.plaintext_length;
    uint64_t expected = header->form == KV_FORM_PAGED ? kv_sealed_bytes(length) : kv_sealed_compact_bytes(length);
    if (source.len < expected) {
        return KV_E_TRUNCATED;
    }
    size_t used = KV_SEALED_FIXED_BYTES + (size_t)header->tag_count * KV_AEAD_TAG_BYTES;
    if (source.len > expected || !all_zero(source.data + used, header->header_bytes - used)) {
        return KV_E_CORRUPT;
    }
    return KV_OK;
}

KV_RC kv_sealed_peek(struct kv_bytes header, struct kv_sealed_context *ret_context)
{
    struct kv_sealed_header parsed;
    KV_TRY(kv_sealed_header_parse(header, &parsed));
    *ret_context = parsed.context;
    return KV_OK;
}
