/*
 * Sealing and opening of envelopes. Sealing reads each plaintext byte once, from where the engine has it, straight into
 * the ciphertext. Opening writes to the caller's segments only what has been authenticated to its last tag. Never
 * decide anything by header bytes before the commitment has been compared.
 */
#include "dataplane/crypto/sealed.h"
#include "dataplane/base/check.h"
#include "dataplane/base/mem.h"
#include "dataplane/crypto/sealed_format_int.h"

#include <string.h>

/* ---- the sealer ---- */

static KV_RC sealer_with(const struct kv_cipher_ops *ops, struct kv_sealer **ret_sealer)
{
    struct kv_sealer *sealer = kv_alloc(sizeof *sealer);
    if (sealer == NULL) {
        return KV_E_NO_MEMORY;
    }
    sealer->ops = ops;
    enum kv_err rc = ops->open(&sealer->state);
    if (rc == KV_OK) {
        rc = kv_expander_new(&sealer->expander);
    }
    if (rc != KV_OK) {
        kv_sealer_free(sealer);
        return rc;
    }
    *ret_sealer = sealer;
    return KV_OK;
}

KV_RC kv_sealer_new(enum kv_cipher_backend backend, struct kv_sealer **ret_sealer)
{
#ifdef KV_HAVE_IPSEC_MB
    if (backend != KV_CIPHER_OPENSSL) {
        enum kv_err rc = sealer_with(&kv_cipher_ipsec_mb, ret_sealer);
        if (rc != KV_E_UNSUPPORTED || backend == KV_CIPHER_IPSEC_MB) {
            return rc;
        }
    }
#endif
    return backend == KV_CIPHER_IPSEC_MB ? KV_E_UNSUPPORTED : sealer_with(&kv_cipher_openssl, ret_sealer);
}

void kv_sealer_free(struct kv_sealer *sealer)
{
    if (sealer == NULL) {
        return;
    }
    sealer->ops->close(sealer->state);
    kv_expander_free(sealer->expander);
    kv_free(sealer);
}

void kv_sealer_forget(struct kv_sealer *sealer)
{
    kv_expander_forget(sealer->expander);
}

const char *kv_sealer_backend(const struct kv_sealer *sealer)
{
    return sealer->ops->name;
}

/* ---- common to both directions ---- */

static KV_RC derive(struct kv_expander *expander, const struct kv_secret *key, const struct kv_sealed_context *context,
                    const uint8_t salt[KV_SALT_BYTES], struct kv_stream_keys *ret_keys)
{
    uint8_t bytes[KV_SEALED_CONTEXT_BYTES];
    if (kv_secret_len(key) != KV_AEAD_KEY_BYTES) {
        return KV_E_INVALID_REQUEST;
    }
    kv_sealed_context_encode(context, bytes);
    return kv_stream_derive(expander, KV_BYTES(kv_secret_data(key), KV_AEAD_KEY_BYTES), salt,
                            KV_BYTES(bytes, sizeof bytes), ret_keys);
}

static bool segments_add_up(const struct kv_segment *segments, size_t count, uint64_t plaintext_length)
{
    size_t sum = 0;
    for (size_t i = 0; i < count; i++) {
        if (!kv_add_size(sum, segments[i].len, &sum)) {
            return false;
        }
    }
    return sum == plaintext_length;
}

static size_t chunk_len(uint64_t plaintext_length, uint64_t index)
{
    uint64_t left = plaintext_length - index * KV_CHUNK_BYTES;
    return left < KV_CHUNK_BYTES ? (size_t)left : KV_CHUNK_BYTES;
}

/* ---- sealing ---- */

/* Where in the gathered segments the next byte is. */
struct gather {
    const struct kv_segment *segment; /* the next to read from */
    size_t offset;
};

/* Feeds `len` bytes from the segments through the cipher. That they are there was checked by segments_add_up. */
static KV_RC seal_gathered(struct kv_sealer *sealer, struct gather *from, uint8_t *target, size_t len)
{
    size_t done = 0;
    while (done < len) {
        size_t left = from->segment->len - from->offset;
        size_t take = left < len - done ? left : len - done;
        if (take > 0) {
            KV_TRY(sealer->ops->update(sealer->state, target + done, from->segment->data + from->offset, take));
        }
        done += take;
        from->offset += take;
        if (from->offset == from->segment->len) {
            from->segment++;
            from->offset = 0;
        }
    }
    return KV_OK;
}

/* A header that was just written, and the payload behind it. */
struct layout {
    uint8_t *tags, *ciphertext;
};

static KV_RC seal_chunks(struct kv_sealer *sealer, const struct kv_stream_keys *keys, uint64_t plaintext_length,
                         struct gather from, const struct layout *target)
{
    uint32_t count = kv_sealed_tag_count(plaintext_length);
    KV_TRY(sealer->ops->set_key(sealer->state, keys->aead_key));
    for (uint32_t i = 0; i < count; i++) {
        uint8_t nonce[KV_AEAD_NONCE_BYTES];
        kv_stream_nonce(keys, i, nonce);
        KV_TRY(sealer->ops->start(sealer->state, nonce, true));
        KV_TRY(seal_gathered(sealer, &from, target->ciphertext + (size_t)i * KV_CHUNK_BYTES,
                             chunk_len(plaintext_length, i)));
        KV_TRY(sealer->ops->finish_seal(sealer->state, target->tags + (size_t)i * KV_AEAD_TAG_BYTES));
    }
    return KV_OK;
}

struct seal_request {
    enum kv_sealed_form form;
    const struct kv_secret *key;
    const struct kv_sealed_context *context;
    const uint8_t *salt;
    const struct kv_segment *source;
    size_t source_count;
};

static KV_RC seal_into(struct kv_sealer *sealer, const struct seal_request *request, uint8_t *target)
{
    uint64_t length = request->context->plaintext_length;
    struct kv_stream_keys keys;
    if (!kv_sealed_context_valid(request->context) ||
        !segments_add_up(request->source, request->source_count, length)) {
        return KV_E_INVALID_REQUEST;
    }
    KV_TRY(derive(sealer->expander, request->key, request->context, request->salt, &keys));
    uint32_t header_bytes = kv_sealed_header_bytes_of(request->form, length);
    kv_sealed_header_write(request->form, request->context, request->salt, keys.commitment, target);
    const struct layout layout = {.tags = target + KV_SEALED_FIXED_BYTES, .ciphertext = target + header_bytes};
    enum kv_err rc = seal_chunks(sealer, &keys, length, (struct gather){.segment = request->source}, &layout);
    sealer->ops->clear(sealer->state);
    kv_wipe(&keys, sizeof keys);
    if (rc != KV_OK) {
        /* Nobody shall take a header without its tags for a block. */
        kv_wipe(target, header_bytes + (size_t)length);
    }
    kv_forget();
    return rc;
}

KV_RC kv_sealed_seal(struct kv_sealer *sealer, const struct kv_secret *key, const struct kv_sealed_context *context,
                     const uint8_t salt[KV_SALT_BYTES], const struct kv_segment *source, size_t source_count,
                     uint8_t *target)
{
    const struct seal_request request = {.form = KV_FORM_PAGED,
                                         .key = key,
                                         .context = context,
                                         .salt = salt,
                                         .source = source,
                                         .source_count = source_count};
    KV_TRY(seal_into(sealer, &request, target));
    size_t used = kv_sealed_header_bytes(context->plaintext_length) + (size_t)context->plaintext_length;
    memset(target + used, 0, (size_t)kv_sealed_bytes(context->plaintext_length) - used);
    return KV_OK;
}

KV_RC kv_sealed_seal_flat(struct kv_sealer *sealer, const struct kv_env *env, const struct kv_secret *key,
                          const struct kv_sealed_context *context, const void *plaintext, struct kv_buf *ret_sealed)
{
    uint8_t salt[KV_SALT_BYTES];
    if (!kv_sealed_context_valid(context)) {
        return KV_E_INVALID_REQUEST;
    }
    KV_TRY(env->random(env->ctx, salt, sizeof salt));
    size_t bytes = kv_sealed_compact_bytes(context->plaintext_length);
    uint8_t *sealed KV_CLEANUP(kv_freep) = kv_alloc(bytes);
    if (sealed == NULL) {
        return KV_E_NO_MEMORY;
    }
    /* The segment is only read, though its type serves both directions. */
    const struct kv_segment source = {.data = (uint8_t *)(uintptr_t)plaintext,
                                      .len = (size_t)context->plaintext_length};
    const struct seal_request request = {
        .form = KV_FORM_COMPACT, .key = key, .context = context, .salt = salt, .source = &source, .source_count = 1};
    enum kv_err rc = seal_into(sealer, &request, sealed);
    kv_sealer_forget(sealer);
    KV_TRY(rc);
    kv_buf_append(ret_sealed, sealed, bytes);
    return kv_buf_check(ret_sealed);
}

/* ---- opening ---- */

/* Compares header and context, then the commitment. On success `ret_keys` has to be wiped. */
static KV_RC unlock(struct kv_expander *expander, const struct kv_secret *key, const struct kv_sealed_context *context,
                    const struct kv_sealed_header *header, struct kv_stream_keys *ret_keys)
{
    struct kv_stream_keys keys;
    if (!kv_sealed_context_equal(context, &header->context)) {
        return KV_E_WRONG_KEY;
    }
    KV_TRY(derive(expander, key, context, header->salt, &keys));
    bool same = kv_equal_constant_time(keys.commitment, header->commitment, KV_COMMITMENT_BYTES);
    if (same) {
        *ret_keys = keys;
    }
    kv_wipe(&keys, sizeof keys);
    return same ? KV_OK : KV_E_WRONG_KEY;
}

static KV_RC open_chunks(struct kv_sealer *sealer, const struct kv_stream_keys *keys,
                         const struct kv_sealed_header *header, const uint8_t *source, uint8_t *target)
{
    const uint8_t *tags = source + KV_SEALED_FIXED_BYTES;
    const uint8_t *ciphertext = source + header->header_bytes;
    KV_TRY(sealer->ops->set_key(sealer->state, keys->aead_key));
    for (uint32_t i = 0; i < header->tag_count; i++) {
        size_t offset = (size_t)i * KV_CHUNK_BYTES;
        struct kv_bytes chunk = KV_BYTES(ciphertext + offset, chunk_len(header->context.plaintext_length, i));
        KV_TRY(kv_stream_open_chunk(sealer, keys, i, chunk, tags + (size_t)i * KV_AEAD_TAG_BYTES, target + offset));
    }
    return KV_OK;
}

struct open_request {
    enum kv_sealed_form form;
    const struct kv_secret *key;
    const struct kv_sealed_context *context;
    struct kv_bytes source;
};

/* All of it into `target`, which has room for plaintext_length and is wiped on failure once it was written. */
static KV_RC open_into(struct kv_sealer *sealer, const struct open_request *request, uint8_t *target)
{
    struct kv_sealed_header header;
    struct kv_stream_keys keys;
    KV_TRY(kv_sealed_header_parse(request->source, &header));
    if (header.form != request->form) {
        return KV_E_CORRUPT;
    }
    if (!kv_sealed_context_equal(request->context, &header.context)) {
        return KV_E_WRONG_KEY;
    }
    KV_TRY(kv_sealed_header_check_extent(&header, request->source));
    KV_TRY(unlock(sealer->expander, request->key, request->context, &header, &keys));
    enum kv_err rc = open_chunks(sealer, &keys, &header, request->source.data, target);
    sealer->ops->clear(sealer->state);
    kv_wipe(&keys, sizeof keys);
    if (rc != KV_OK) {
        kv_wipe(target, (size_t)header.context.plaintext_length);
    }
    return rc;
}

KV_RC kv_sealed_open(struct kv_sealer *sealer, const struct kv_secret *key, const struct kv_sealed_context *context,
                     const uint8_t *source, size_t source_len, void *staging, size_t staging_size,
                     const struct kv_segment *target, size_t target_count)
{
    if (staging_size < context->plaintext_length || !segments_add_up(target, target_count, context->plaintext_length)) {
        return KV_E_INVALID_REQUEST;
    }
    const struct open_request request = {
        .form = KV_FORM_PAGED, .key = key, .context = context, .source = KV_BYTES(source, source_len)};
    enum kv_err rc = open_into(sealer, &request, staging);
    if (rc == KV_OK) {
        kv_scatter(staging, (size_t)context->plaintext_length, target, target_count);
    }
    kv_forget();
    return rc;
}

KV_RC kv_sealed_open_flat(struct kv_sealer *sealer, const struct kv_secret *key,
                          const struct kv_sealed_context *context, struct kv_bytes source, void *target,
                          size_t target_size)
{
    if (target_size < context->plaintext_length) {
        return KV_E_INVALID_REQUEST;
    }
    const struct open_request request = {.form = KV_FORM_COMPACT, .key = key, .context = context, .source = source};
    enum kv_err rc = open_into(sealer, &request, target);
    kv_sealer_forget(sealer);
    kv_forget();
    return rc;
}

KV_RC kv_sealed_check(const struct kv_secret *key, const struct kv_sealed_context *context, struct kv_bytes header)
{
    struct kv_sealed_header parsed;
    struct kv_stream_keys keys;
    KV_TRY(kv_sealed_header_parse(header, &parsed));
    KV_TRY(unlock(NULL, key, context, &parsed, &keys));
    kv_wipe(&keys, sizeof keys);
    return KV_OK;
}
