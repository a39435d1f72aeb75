/*
 * Idempotency-Key: a request that comes again gets the answer of the first time. The answer lies beside its effect in
 * the database; one that showed a secret lies in this process's memory only, for a few minutes. Thread: a service
 * thread.
 */
#ifndef KV_HTTP_ONCE_H
#define KV_HTTP_ONCE_H

#include "server/http/router.h"

/* Answers with secrets, in locked memory. */
struct kv_secret_answers;
KV_RC kv_secret_answers_new(const struct kv_env *env, struct kv_secret_answers **ret_answers);
void kv_secret_answers_free(struct kv_secret_answers *answers); /* wipes */
/* The oldest gives its place up. One that is too long is not kept. */
void kv_secret_answers_put(struct kv_secret_answers *answers, const struct kv_store_once_key *key,
                           struct kv_bytes body);
/* Appends it to `ret_body`; false when it is not there any more. */
bool kv_secret_answers_get(struct kv_secret_answers *answers, const struct kv_store_once_key *key,
                           struct kv_buf *ret_body);

/* Reads the key of the request into `once` and sets call->once, when there is one and the route takes it. Then
 * once->replay says that it was answered before. `once` lives as long as the call; kv_once_done. */
KV_RC kv_once_begin(struct kv_call *call, const struct kv_req *req, struct kv_once *once);
void kv_once_done(struct kv_once *once);
/* Makes the answer of `req` the earlier one. KV_E_SECRET_SHOWN, with its Location, when that cannot be said twice. */
KV_RC kv_once_replay(struct kv_call *call, struct kv_req *req);
/* After the handler: an answer with a secret is kept. */
void kv_once_keep_secret(struct kv_call *call, const struct kv_req *req);

#endif
