/*
 * Signed tree heads as C2SP tlog-checkpoint / signed-note (Ed25519). Exact bytes:
 *   origin LF size LF base64(root) LF LF U+2014 SP keyname SP base64(be32 key id | signature) LF
 * The key name is the origin. Key id = first four bytes of SHA-256(name | LF | 0x01 | public key).
 */
#ifndef KV_AUDIT_CHECKPOINT_H
#define KV_AUDIT_CHECKPOINT_H

#include "audit/merkle.h"
#include "dataplane/crypto/sign.h"

struct kv_checkpoint {
    char origin[256];
    uint64_t size;
    struct kv_hash root;
};

KV_RC kv_checkpoint_key_id(const char *name, const uint8_t public_key[32], uint8_t ret_id[4]);
KV_RC kv_checkpoint_sign(const struct kv_checkpoint *checkpoint, const struct kv_sign_key *key,
                         struct kv_buf *ret_note);
/* Verifies the line of the key that is named like the origin; unknown lines are passed over. KV_E_CORRUPT: not a
 * checkpoint in canonical form. KV_E_WRONG_KEY: no line of this key. KV_E_TAMPERED: a line of it that does not verify.
 */
KV_RC kv_checkpoint_verify(struct kv_bytes note, const uint8_t public_key[32], struct kv_checkpoint *ret_checkpoint);
/* Without the signature. */
KV_RC kv_checkpoint_parse(struct kv_bytes note, struct kv_checkpoint *ret_checkpoint);
/* "name+hex8(key id)+base64(0x01 | public key)" and back. */
KV_RC kv_checkpoint_vkey(const char *name, const uint8_t public_key[32], struct kv_buf *ret_text);
KV_RC kv_checkpoint_vkey_parse(const char *text, char ret_name[256], uint8_t ret_public[32]);

#endif
