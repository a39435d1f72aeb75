/*
 * Signed tree heads (c2sp.org/tlog-checkpoint in a c2sp.org/signed-note). Parsing accepts exactly the bytes that
 * signing makes, plus signature lines of others. Must never hand out a size or a root whose text has a second spelling.
 */
#include "audit/checkpoint.h"

#include "audit/text_int.h"
#include "dataplane/crypto/hash.h"

#include <string.h>

#define NOTE_BYTES_MAX 16384u
#define SIGNATURES_MAX 64u
#define ED25519_TYPE 0x01u
#define KEY_ID_LEN 4u
#define SIGNATURE_LEN 64u
#define LINE_MARK "\xe2\x80\x94 " /* em dash, space */

/* A name is what both an origin and a key name may be: UTF-8 without spaces, plus signs and control characters. */
static bool name_is_valid(struct kv_bytes name)
{
    if (name.len == 0 || name.len > sizeof(((struct kv_checkpoint *)0)->origin) - 1) {
        return false;
    }
    for (size_t i = 0; i < name.len; i++) {
        if (name.data[i] <= 0x20 || name.data[i] == '+' || name.data[i] == 0x7f) {
            return false;
        }
    }
    return kv_utf8_valid((const char *)name.data, name.len);
}

static struct kv_bytes bytes_of(const char *text)
{
    return KV_BYTES(text, strlen(text));
}

KV_RC kv_checkpoint_key_id(const char *name, const uint8_t public_key[32], uint8_t ret_id[4])
{
    static const uint8_t middle[2] = {'\n', ED25519_TYPE};
    const struct kv_bytes parts[] = {bytes_of(name), KV_BYTES(middle, sizeof(middle)), KV_BYTES(public_key, 32)};
    uint8_t hash[32];
    KV_TRY(kv_sha256_parts(parts, 3, hash));
    memcpy(ret_id, hash, KEY_ID_LEN);
    return KV_OK;
}

static void put_body(struct kv_buf *note, const struct kv_checkpoint *checkpoint)
{
    kv_buf_text(note, checkpoint->origin);
    kv_buf_printf(note, "\n%llu\n", (unsigned long long)checkpoint->size);
    kv_text_put_base64(note, checkpoint->root.b, sizeof(checkpoint->root.b));
    kv_buf_text(note, "\n");
}

static KV_RC put_signature(struct kv_buf *note, const struct kv_checkpoint *checkpoint, const struct kv_sign_key *key)
{
    uint8_t public_key[32];
    uint8_t line[KEY_ID_LEN + SIGNATURE_LEN];
    kv_sign_public(key, public_key);
    KV_TRY(kv_buf_check(note));
    KV_TRY(kv_checkpoint_key_id(checkpoint->origin, public_key, line));
    KV_TRY(kv_sign(key, kv_buf_bytes(note), line + KEY_ID_LEN));
    kv_buf_text(note, "\n" LINE_MARK);
    kv_buf_text(note, checkpoint->origin);
    kv_buf_text(note, " ");
    kv_text_put_base64(note, line, sizeof(line));
    kv_buf_text(note, "\n");
    return kv_buf_check(note);
}

KV_RC kv_checkpoint_sign(const struct kv_checkpoint *checkpoint, const struct kv_sign_key *key, struct kv_buf *ret_note)
{
    if (!name_is_valid(bytes_of(checkpoint->origin))) {
        return KV_E_INVALID_REQUEST;
    }
    struct kv_buf note KV_CLEANUP(kv_buf_done);
    kv_buf_init(&note, NOTE_BYTES_MAX);
    put_body(&note, checkpoint);
    KV_TRY(put_signature(&note, checkpoint, key));
    kv_buf_append(ret_note, note.data, note.len);
    return kv_buf_check(ret_note);
}

struct note {
    struct kv_checkpoint checkpoint;
    struct kv_bytes text;       /* signed: the body with its last LF */
    struct kv_bytes signatures; /* lines, each with its LF */
};

struct signature_line {
    struct kv_bytes name;
    uint8_t key_id[KEY_ID_LEN];
    const uint8_t *signature; /* borrowed from `bytes` */
    size_t signature_len;
    uint8_t bytes[8192];
};

static KV_RC parse_signature_line(struct kv_bytes line, struct signature_line *ret_line)
{
    if (!kv_text_prefix(&line, LINE_MARK)) {
        return KV_E_CORRUPT;
    }
    const uint8_t *space = line.len == 0 ? NULL : memchr(line.data, ' ', line.len);
    if (space == NULL) {
        return KV_E_CORRUPT;
    }
    struct kv_bytes name = KV_BYTES(line.data, (size_t)(space - line.data));
    size_t len = 0;
    if (!name_is_valid(name) ||
        kv_base64_decode((const char *)space + 1, line.len - name.len - 1, ret_line->bytes, sizeof(ret_line->bytes),
                         &len) != KV_OK ||
        len <= KEY_ID_LEN) {
        return KV_E_CORRUPT;
    }
    ret_line->name = name;
    memcpy(ret_line->key_id, ret_line->bytes, KEY_ID_LEN);
    ret_line->signature = ret_line->bytes + KEY_ID_LEN;
    ret_line->signature_len = len - KEY_ID_LEN;
    return KV_OK;
}

static KV_RC parse_signatures(struct kv_bytes lines)
{
    size_t count = 0;
    struct kv_bytes line;
    struct signature_line parsed;
    while (kv_text_line(&lines, &line)) {
        count++;
        if (count > SIGNATURES_MAX) {
            return KV_E_CORRUPT;
        }
        KV_TRY(parse_signature_line(line, &parsed));
    }
    return count > 0 && lines.len == 0 ? KV_OK : KV_E_CORRUPT;
}

static bool has_control_characters(struct kv_bytes bytes)
{
    for (size_t i = 0; i < bytes.len; i++) {
        if ((bytes.data[i] < 0x20 && bytes.data[i] != '\n') || bytes.data[i] == 0x7f) {
            return true;
        }
    }
    return false;
}

static KV_RC parse_note(struct kv_bytes bytes, struct note *ret_note)
{
    if (bytes.len == 0 || bytes.len > NOTE_BYTES_MAX || has_control_characters(bytes) ||
        !kv_utf8_valid((const char *)bytes.data, bytes.len)) {
        return KV_E_CORRUPT;
    }
    struct note note = {.text = bytes};
    struct kv_bytes rest = bytes;
    struct kv_bytes origin, size, root, blank;
    if (!kv_text_line(&rest, &origin) || !kv_text_line(&rest, &size) || !kv_text_line(&rest, &root) ||
        !name_is_valid(origin)) {
        return KV_E_CORRUPT;
    }
    note.text.len = bytes.len - rest.len;
    KV_TRY(kv_text_u64(size, &note.checkpoint.size));
    KV_TRY(kv_text_hash(root, &note.checkpoint.root));
    memcpy(note.checkpoint.origin, origin.data, origin.len);
    if (!kv_text_line(&rest, &blank) || blank.len != 0) {
        return KV_E_CORRUPT;
    }
    note.signatures = rest;
    KV_TRY(parse_signatures(rest));
    *ret_note = note;
    return KV_OK;
}

KV_RC kv_checkpoint_parse(struct kv_bytes note, struct kv_checkpoint *ret_checkpoint)
{
    struct note parsed;
    KV_TRY(parse_note(note, &parsed));
    *ret_checkpoint = parsed.checkpoint;
    return KV_OK;
}

KV_RC kv_checkpoint_verify(struct kv_bytes note, const uint8_t public_key[32], struct kv_checkpoint *ret_checkpoint)
{
    struct note parsed;
    uint8_t key_id[KEY_ID_LEN];
    KV_TRY(parse_note(note, &parsed));
    KV_TRY(kv_checkpoint_key_id(parsed.checkpoint.origin, public_key, key_id));
    bool found = false;
    struct kv_bytes line;
    struct signature_line signature;
    while (kv_text_line(&parsed.signatures, &line)) {
        KV_TRY(parse_signature_line(line, &signature));
        if (!kv_text_equal(signature.name, parsed.checkpoint.origin) ||
            memcmp(signature.key_id, key_id, KEY_ID_LEN) != 0) {
            continue;
        }
        /* One line of a known key that does not verify spoils the whole note, whatever other lines say. */
        KV_TRY(kv_verify(public_key, parsed.text, KV_BYTES(signature.signature, signature.signature_len)));
        found = true;
    }
    if (!found) {
        return KV_E_WRONG_KEY;
    }
    *ret_checkpoint = parsed.checkpoint;
    return KV_OK;
}

KV_RC kv_checkpoint_vkey(const char *name, const uint8_t public_key[32], struct kv_buf *ret_text)
{
    uint8_t key_id[KEY_ID_LEN];
    char hex[2 * KEY_ID_LEN + 1];
    uint8_t typed[33] = {ED25519_TYPE};
    if (!name_is_valid(bytes_of(name))) {
        return KV_E_INVALID_REQUEST;
    }
    KV_TRY(kv_checkpoint_key_id(name, public_key, key_id));
    kv_hex_encode(key_id, sizeof(key_id), hex);
    memcpy(typed + 1, public_key, 32);
    kv_buf_text(ret_text, name);
    kv_buf_printf(ret_text, "+%s+", hex);
    kv_text_put_base64(ret_text, typed, sizeof(typed));
    return kv_buf_check(ret_text);
}

KV_RC kv_checkpoint_vkey_parse(const char *text, char ret_name[256], uint8_t ret_public[32])
{
    /* The base64 part may hold a plus sign itself, a name and the hex of the id cannot. */
    const char *first = strchr(text, '+');
    const char *second = first == NULL ? NULL : strchr(first + 1, '+');
    if (second == NULL || second - first != 2 * (ptrdiff_t)KEY_ID_LEN + 1) {
        return KV_E_INVALID_REQUEST;
    }
    struct kv_bytes name = KV_BYTES(text, (size_t)(first - text));
    char name_text[256] = "";
    char hex[2 * KEY_ID_LEN + 1] = "";
    uint8_t typed[33], stated_id[KEY_ID_LEN], key_id[KEY_ID_LEN];
    size_t len = 0;
    if (!name_is_valid(name)) {
        return KV_E_INVALID_REQUEST;
    }
    memcpy(name_text, name.data, name.len);
    memcpy(hex, first + 1, 2 * KEY_ID_LEN);
    KV_TRY(kv_hex_decode(hex, stated_id, sizeof(stated_id)));
    if (kv_base64_decode(second + 1, strlen(second + 1), typed, sizeof(typed), &len) != KV_OK || len != sizeof(typed) ||
        typed[0] != ED25519_TYPE) {
        return KV_E_INVALID_REQUEST;
    }
    KV_TRY(kv_checkpoint_key_id(name_text, typed + 1, key_id));
    if (memcmp(stated_id, key_id, sizeof(key_id)) != 0) {
        return KV_E_INVALID_REQUEST;
    }
    memcpy(ret_name, name_text, sizeof(name_text));
    memcpy(ret_public, typed + 1, 32);
    return KV_OK;
}
