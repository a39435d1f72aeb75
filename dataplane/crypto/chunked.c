/*
 * The C2SP chunked-encryption stream: key derivation, nonces, and opening a stream as the specification writes it. Used
 * bare for outside vectors; the envelope shares the first two.
 */
#include "dataplane/base/check.h"
#include "dataplane/crypto/sealed_int.h"
#include "dataplane/crypto/tell.h"

#include <string.h>

#define STREAM_LABEL "c2sp.org/chunked-encryption@v1+AEAD_AES_256_GCM" /* its final zero byte is part of the info */

enum { INFO_BYTES_MAX = 1024, STREAM_HEADER_BYTES = KV_SALT_BYTES + KV_COMMITMENT_BYTES };

KV_RC kv_stream_derive(struct kv_expander *expander, struct kv_bytes key, const uint8_t salt[KV_SALT_BYTES],
                       struct kv_bytes context, struct kv_stream_keys *ret_keys)
{
    uint8_t info[INFO_BYTES_MAX];
    struct kv_writer writer = kv_writer_of(info, sizeof info);
    kv_write_raw(&writer, STREAM_LABEL, sizeof STREAM_LABEL);
    kv_write_raw(&writer, salt, KV_SALT_BYTES);
    kv_write_raw(&writer, context.data, context.len);
    if (writer.failed) {
        return KV_E_LIMIT;
    }
    _Static_assert(sizeof *ret_keys == 76, "the three keys are one output without gaps");
    struct kv_bytes all = KV_BYTES(info, kv_writer_len(&writer));
    KV_TRY(expander != NULL ? kv_expander_expand(expander, key, all, ret_keys, sizeof *ret_keys)
                            : kv_hkdf_expand_sha512(key, all, ret_keys, sizeof *ret_keys));
    KV_TELL_KEY("stream", key, KV_BYTES(ret_keys->aead_key, sizeof ret_keys->aead_key));
    return KV_OK;
}

void kv_stream_nonce(const struct kv_stream_keys *keys, uint64_t index, uint8_t ret_nonce[KV_AEAD_NONCE_BYTES])
{
    memcpy(ret_nonce, keys->base_nonce, KV_AEAD_NONCE_BYTES);
    for (unsigned i = 0; i < 8; i++) {
        ret_nonce[KV_AEAD_NONCE_BYTES - 1 - i] ^= (uint8_t)(index >> (8 * i));
    }
}

KV_RC kv_stream_open_chunk(struct kv_sealer *sealer, const struct kv_stream_keys *keys, uint64_t index,
                           struct kv_bytes ciphertext, const uint8_t tag[KV_AEAD_TAG_BYTES], uint8_t *target)
{
    uint8_t nonce[KV_AEAD_NONCE_BYTES];
    kv_stream_nonce(keys, index, nonce);
    KV_TRY(sealer->ops->start(sealer->state, nonce, false));
    KV_TRY(sealer->ops->update(sealer->state, target, ciphertext.data, ciphertext.len));
    return sealer->ops->finish_open(sealer->state, tag);
}

/* Where the chunks of a stream are: full ones, then a shorter one, each followed by its tag. */
struct stream_plan {
    size_t full_chunks, last_len, plaintext_len;
};

static KV_RC plan_stream(size_t body_len, struct stream_plan *ret_plan)
{
    size_t sealed_chunk = KV_CHUNK_BYTES + KV_AEAD_TAG_BYTES;
    size_t last = body_len % sealed_chunk;
    if (last < KV_AEAD_TAG_BYTES) {
        return KV_E_TRUNCATED; /* no final chunk */
    }
    struct stream_plan plan = {.full_chunks = body_len / sealed_chunk, .last_len = last - KV_AEAD_TAG_BYTES};
    plan.plaintext_len = plan.full_chunks * KV_CHUNK_BYTES + plan.last_len;
    if (plan.plaintext_len > (size_t)KV_MAX_BLOCK_BYTES) {
        return KV_E_LIMIT;
    }
    *ret_plan = plan;
    return KV_OK;
}

static KV_RC open_stream(struct kv_sealer *sealer, const struct kv_stream_keys *keys, const uint8_t *body,
                         const struct stream_plan *plan, uint8_t *target)
{
    KV_TRY(sealer->ops->set_key(sealer->state, keys->aead_key));
    for (size_t i = 0; i <= plan->full_chunks; i++) {
        size_t len = i < plan->full_chunks ? KV_CHUNK_BYTES : plan->last_len;
        const uint8_t *chunk = body + i * (KV_CHUNK_BYTES + KV_AEAD_TAG_BYTES);
        KV_TRY(kv_stream_open_chunk(sealer, keys, i, KV_BYTES(chunk, len), chunk + len, target + i * KV_CHUNK_BYTES));
    }
    return KV_OK;
}

static KV_RC open_into_buf(struct kv_sealer *sealer, const struct kv_stream_keys *keys, struct kv_bytes body,
                           struct kv_buf *ret_plaintext)
{
    struct stream_plan plan;
    void *memory = NULL;
    KV_TRY(plan_stream(body.len, &plan));
    size_t memory_len = plan.plaintext_len + 1; /* never empty */
    KV_TRY(kv_locked_alloc(memory_len, &memory));
    enum kv_err rc = open_stream(sealer, keys, body.data, &plan, memory);
    sealer->ops->clear(sealer->state);
    if (rc == KV_OK) {
        kv_buf_append(ret_plaintext, memory, plan.plaintext_len);
        rc = kv_buf_check(ret_plaintext);
    }
    kv_locked_free(memory, memory_len); /* forgets, too */
    return rc;
}

KV_RC kv_chunked_open(struct kv_sealer *sealer, struct kv_bytes key, struct kv_bytes context, struct kv_bytes stream,
                      struct kv_buf *ret_plaintext)
{
    struct kv_stream_keys keys;
    if (key.len != KV_AEAD_KEY_BYTES) {
        return KV_E_INVALID_REQUEST;
    }
    if (stream.len < STREAM_HEADER_BYTES) {
        return KV_E_TRUNCATED;
    }
    enum kv_err rc = kv_stream_derive(sealer->expander, key, stream.data, context, &keys);
    kv_expander_forget(sealer->expander);
    KV_TRY(rc);
    rc = KV_E_WRONG_KEY;
    if (kv_equal_constant_time(keys.commitment, stream.data + KV_SALT_BYTES, KV_COMMITMENT_BYTES)) {
        rc = open_into_buf(sealer, &keys, KV_BYTES(stream.data + STREAM_HEADER_BYTES, stream.len - STREAM_HEADER_BYTES),
                           ret_plaintext);
    }
    kv_wipe(&keys, sizeof keys);
    return rc;
}
