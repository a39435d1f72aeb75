/*
 * A transit secrets engine (Vault, OpenBao) as the transit provider sees it: one request at a time over HTTP, and what
 * the answers say. It knows paths and JSON members, not the state diagram. Shared by roe_transit.c, roe_transit_call.c
 * and roe_transit_answer.c.
 */
#ifndef KV_KEYS_ROE_TRANSIT_INT_H
#define KV_KEYS_ROE_TRANSIT_INT_H

#include "dataplane/io/httpc.h"
#include "dataplane/keys/roe_int.h"

#define KV_TRANSIT_NAME_BYTES 128
#define KV_TRANSIT_ANSWER_BYTES (256 * 1024) /* names of all keys of the mount */

struct kv_transit {
    char *address, *mount, *prefix, *token_file, *ca_file, *name_space; /* owned */
    uint64_t timeout_ms;
    struct kv_httpc *client;  /* NULL: the next call begins a connection */
    struct kv_roe_text token; /* held during one operation */
    char *answer;             /* owned, locked: an answer may hold a root */
    size_t answer_len;
    bool answer_cut;
    struct kv_errinfo *info; /* borrowed: where the running operation says what is wrong */
};

/* --- roe_transit_call.c --- */
KV_RC kv_transit_init(const struct kv_roe_transit_conf *conf, struct kv_errinfo *info, struct kv_transit *transit);
void kv_transit_done(struct kv_transit *transit);
/* One request below the mount; the answer's body is in `answer`. KV_OK for 200 and 204, KV_E_MISSING for 404,
 * KV_E_INVALID_STATE for 400, each other one an error with a text. A token that is refused is read again once. */
KV_RC kv_transit_call(struct kv_transit *transit, const char *method, const char *path, const char *body);
/* Ends the connection and forgets token and answer. */
void kv_transit_hang_up(struct kv_transit *transit);

/* --- roe_transit_answer.c: what an answer's text says --- */
/* The text after `"name":`, blanks skipped; NULL: no such member. */
const char *kv_transit_member(const char *answer, const char *name);
bool kv_transit_is_true(const char *answer, const char *name);
bool kv_transit_is_false(const char *answer, const char *name);
/* False: no member that is a whole number. */
bool kv_transit_number(const char *answer, const char *name, uint64_t *ret_number);
/* The characters of a string member without escapes; false: none. Borrowed from `answer`. */
bool kv_transit_string(const char *answer, const char *name, const char **ret_text, size_t *ret_len);
/* The next `"<prefix><32 hexadecimal digits>-<fence>"` at or after *at; moves *at past it. */
bool kv_transit_next_name(const char **at, const char *prefix, struct kv_roe_key *ret_key);
/* Of a key; false when it does not fit. */
bool kv_transit_name(const char *prefix, const struct kv_id *id, uint64_t fence, char ret_name[KV_TRANSIT_NAME_BYTES]);

#endif
