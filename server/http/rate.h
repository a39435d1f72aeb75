/*
 * How often a caller may ask: one bucket a key and kind of request, in memory. An instance counts for itself; a caller
 * that was not seen for a while may be forgotten and starts with a full bucket. Thread: any.
 */
#ifndef KV_HTTP_RATE_H
#define KV_HTTP_RATE_H

#include "server/http/request.h"

enum kv_rate_kind {
    KV_RATE_USUAL,          /* by API key */
    KV_RATE_ERASE,          /* by API key, for what must not be delayed by the others */
    KV_RATE_PEER,           /* by address, for public requests that cost something */
    KV_RATE_STRANGER,       /* by address, for requests without a valid key */
    KV_RATE_STRANGER_ERASE, /* the same, for those that would have gone by KV_RATE_ERASE */
    KV_RATE_KINDS
};

struct kv_rate;

KV_RC kv_rate_new(const struct kv_env *env, struct kv_rate **ret_rate);
void kv_rate_free(struct kv_rate *rate);
/* Requests a second, which is also how many may come at once; 0: as many as come. From the next request on. */
void kv_rate_set(struct kv_rate *rate, enum kv_rate_kind kind, unsigned per_second);
/* Takes one. False: none is left; `ret_state` then says when. */
bool kv_rate_take(struct kv_rate *rate, enum kv_rate_kind kind, const uint8_t who[16], struct kv_rate_state *ret_state);

/* Whether one is left; takes none and no place in the table. */
bool kv_rate_is_left(struct kv_rate *rate, enum kv_rate_kind kind, const uint8_t who[16]);

#endif
