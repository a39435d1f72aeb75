/* See manners.h. Must never take a malformed condition for a missing one: that would make a change unconditional. */
#include "server/http/manners.h"

#include "dataplane/crypto/hash.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- conditional requests ---------------------------------------------------------------------------------------- */

KV_RC kv_etag_make(uint64_t rev, struct kv_bytes body, char ret_etag[KV_ETAG_SIZE])
{
    uint8_t hash[32];
    char hex[17];
    KV_TRY(kv_sha256(body, hash));
    kv_hex_encode(hash, 8, hex);
    snprintf(ret_etag, KV_ETAG_SIZE, "\"%" PRIu64 ".%s\"", rev, hex);
    return KV_OK;
}

static const char *skip_blanks(const char *p)
{
    return p + strspn(p, " \t");
}

/* The end of the entity tag at `p`, or NULL. */
static const char *tag_end(const char *p)
{
    p += strncmp(p, "W/", 2) == 0 ? 2 : 0;
    if (*p != '"') {
        return NULL;
    }
    for (p++; *p != '"'; p++) {
        unsigned char c = (unsigned char)*p;
        if (c < 0x21 || c == 0x7f) { /* the end of the text, too */
            return NULL;
        }
    }
    return p + 1;
}

/* `"<rev>.…"` or `"<rev>"`; 0 for every other tag. */
static uint64_t rev_of(const char *tag)
{
    size_t digits = tag[0] == '"' ? strspn(tag + 1, "0123456789") : 0;
    bool ours = digits > 0 && digits < 19 && (tag[1 + digits] == '.' || tag[1 + digits] == '"');
    return ours ? strtoull(tag + 1, NULL, 10) : 0;
}

KV_RC kv_match_parse(const char *value, struct kv_match *ret_match, struct kv_errinfo *info)
{
    *ret_match = (struct kv_match){.present = value != NULL};
    if (value == NULL) {
        return KV_OK;
    }
    value = skip_blanks(value);
    if (value[0] == '*' && *skip_blanks(value + 1) == '\0') {
        ret_match->any = true;
        return KV_OK;
    }
    const char *end = tag_end(value);
    if (end == NULL || *skip_blanks(end) != '\0') {
        return kv_fail(info, KV_E_INVALID_REQUEST, "If-Match takes one ETag as it was sent, quotes included, or *");
    }
    ret_match->rev = rev_of(value);
    return KV_OK;
}

bool kv_etag_listed(const char *value, const char *etag)
{
    size_t len = strlen(etag);
    if (value == NULL || len == 0) {
        return false;
    }
    const char *p = skip_blanks(value);
    if (p[0] == '*' && *skip_blanks(p + 1) == '\0') {
        return true;
    }
    for (const char *end = tag_end(p); end != NULL; end = tag_end(p)) {
        p += strncmp(p, "W/", 2) == 0 ? 2 : 0;
        if ((size_t)(end - p) == len && memcmp(p, etag, len) == 0) {
            return true;
        }
        p = skip_blanks(end);
        if (*p != ',') {
            return false;
        }
        p = skip_blanks(p + 1);
    }
    return false;
}

/* --- Idempotency-Key --------------------------------------------------------------------------------------------- */

static KV_RC bad_key(struct kv_errinfo *info)
{
    return kv_fail(info, KV_E_INVALID_REQUEST,
                   "Idempotency-Key must be 1 to %d visible ASCII characters, bare or in quotes; a UUID will do",
                   KV_ONCE_KEY_SIZE - 1);
}

KV_RC kv_once_key_parse(const char *value, char ret_key[KV_ONCE_KEY_SIZE], struct kv_errinfo *info)
{
    size_t len = 0, end = strlen(value);
    while (end > 0 && strchr(" \t", value[end - 1]) != NULL) {
        end--;
    }
    bool quoted = value[0] == '"';
    if (quoted && (end < 2 || value[end - 1] != '"')) {
        return bad_key(info);
    }
    for (size_t i = quoted ? 1 : 0, stop = quoted ? end - 1 : end; i < stop; i++) {
        if (quoted && value[i] == '\\') { /* an sf-string escapes a quote and itself, nothing else (RFC 8941) */
            i++;
            if (i == stop || strchr("\\\"", value[i]) == NULL) {
                return bad_key(info);
            }
        } else if (value[i] < '!' || value[i] > '~' || (quoted && value[i] == '"')) {
            return bad_key(info);
        }
        if (len + 1 == KV_ONCE_KEY_SIZE) {
            return bad_key(info);
        }
        ret_key[len++] = value[i];
    }
    ret_key[len] = '\0';
    return len > 0 ? KV_OK : bad_key(info);
}

/* --- traceparent ------------------------------------------------------------------------------------------------- */

static bool is_hex(const char *text, size_t len)
{
    return strspn(text, "0123456789abcdef") >= len;
}

static bool is_zero(const char *text, size_t len)
{
    return strspn(text, "0") >= len;
}

/* Version 00 ends after the flags; a later one may go on with a dash. ff is no version. */
static bool is_traceparent(const char *v)
{
    if (v == NULL || strnlen(v, 55) < 55 || v[2] != '-' || v[35] != '-' || v[52] != '-') {
        return false;
    }
    bool later = strncmp(v, "00", 2) != 0;
    return is_hex(v, 2) && strncmp(v, "ff", 2) != 0 && is_hex(v + 3, 32) && !is_zero(v + 3, 32) && is_hex(v + 36, 16) &&
           !is_zero(v + 36, 16) && is_hex(v + 53, 2) && (v[55] == '\0' || (later && v[55] == '-'));
}

KV_RC kv_trace_take(const struct kv_env *env, const char *value, struct kv_trace *ret_trace)
{
    uint8_t span[8], flags = 0;
    char hex[3] = {0};
    if (!is_traceparent(value)) {
        return KV_OK;
    }
    KV_TRY(env->random(env->ctx, span, sizeof span));
    span[0] |= 1; /* zero is no span */
    memcpy(ret_trace->id, value + 3, 32);
    memcpy(ret_trace->parent, value + 36, 16);
    memcpy(hex, value + 53, 2);
    KV_TRY(kv_hex_decode(hex, &flags, 1));
    kv_hex_encode(span, sizeof span, ret_trace->span);
    ret_trace->flags = flags & 1; /* only "sampled" is known to this version, and the others are not passed on */
    ret_trace->present = true;
    return KV_OK;
}
