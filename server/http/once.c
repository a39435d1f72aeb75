/* See once.h. Must never put a secret anywhere but into memory that is wiped. */
#include "server/http/once.h"

#include "dataplane/base/check.h"
#include "dataplane/base/mem.h"
#include "dataplane/crypto/hash.h"
#include "server/http/httpd_int.h"
#include "server/http/manners.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* --- answers with secrets ---------------------------------------------------------------------------------------- */

#define SECRETS 64
#define SECRET_ANSWER_BYTES 2048

struct secret_answer {
    struct kv_store_once_key key;
    uint64_t until_ns; /* 0: no answer */
    size_t len;
    uint8_t body[SECRET_ANSWER_BYTES];
};

struct kv_secret_answers {
    const struct kv_env *env;
    pthread_mutex_t mutex;
    unsigned next;
    struct secret_answer *answers; /* SECRETS of them, locked */
};

KV_RC kv_secret_answers_new(const struct kv_env *env, struct kv_secret_answers **ret_answers)
{
    struct kv_secret_answers *answers = kv_alloc(sizeof *answers);
    void *memory = NULL;
    if (answers == NULL) {
        return KV_E_NO_MEMORY;
    }
    enum kv_err rc = kv_locked_alloc(SECRETS * sizeof *answers->answers, &memory);
    if (rc != KV_OK) {
        kv_free(answers);
        return rc;
    }
    memset(memory, 0, SECRETS * sizeof *answers->answers);
    answers->env = env;
    answers->answers = memory;
    pthread_mutex_init(&answers->mutex, NULL);
    *ret_answers = answers;
    return KV_OK;
}

void kv_secret_answers_free(struct kv_secret_answers *answers)
{
    if (answers != NULL) {
        kv_locked_free(answers->answers, SECRETS * sizeof *answers->answers);
        pthread_mutex_destroy(&answers->mutex);
        kv_free(answers);
    }
}

/* Under the mutex: what is over is wiped, whoever comes. */
static void expire(struct kv_secret_answers *answers, uint64_t now_ns)
{
    for (unsigned i = 0; i < SECRETS; i++) {
        struct secret_answer *answer = &answers->answers[i];
        if (answer->until_ns != 0 && answer->until_ns <= now_ns) {
            kv_wipe(answer, sizeof *answer);
        }
    }
}

void kv_secret_answers_put(struct kv_secret_answers *answers, const struct kv_store_once_key *key, struct kv_bytes body)
{
    uint64_t now = kv_now_ns(answers->env);
    if (body.len > SECRET_ANSWER_BYTES) {
        return;
    }
    pthread_mutex_lock(&answers->mutex);
    expire(answers, now);
    struct secret_answer *answer = &answers->answers[answers->next++ % SECRETS];
    kv_wipe(answer, sizeof *answer);
    answer->key = *key;
    answer->until_ns = now + (uint64_t)KV_MAX_SECRET_REPLAY_SECONDS * KV_S_NS;
    answer->len = body.len;
    memcpy(answer->body, body.data, body.len);
    pthread_mutex_unlock(&answers->mutex);
}

static bool same_key(const struct kv_store_once_key *a, const struct kv_store_once_key *b)
{
    return memcmp(&a->principal, &b->principal, sizeof a->principal) == 0 &&
           memcmp(a->scope, b->scope, sizeof a->scope) == 0 && strcmp(a->key, b->key) == 0;
}

bool kv_secret_answers_get(struct kv_secret_answers *answers, const struct kv_store_once_key *key,
                           struct kv_buf *ret_body)
{
    bool found = false;
    pthread_mutex_lock(&answers->mutex);
    expire(answers, kv_now_ns(answers->env));
    for (unsigned i = 0; i < SECRETS && !found; i++) {
        const struct secret_answer *answer = &answers->answers[i];
        if (answer->until_ns != 0 && same_key(&answer->key, key)) {
            kv_buf_append(ret_body, answer->body, answer->len);
            found = true;
        }
    }
    pthread_mutex_unlock(&answers->mutex);
    return found;
}

/* --- the key of a request ---------------------------------------------------------------------------------------- */

/* Length before each text, so that no two lists of texts look alike. */
static void add_text(struct kv_buf *buf, const char *text)
{
    kv_buf_printf(buf, "%zu:%s", strlen(text), text);
}

static int compare_params(const void *a, const void *b)
{
    return strcmp(((const struct kv_param *)a)->name, ((const struct kv_param *)b)->name);
}

static void add_query(struct kv_buf *buf, const struct kv_req *req)
{
    struct kv_param sorted[KV_PARAMS_MAX];
    memcpy(sorted, req->params, sizeof sorted);
    qsort(sorted, req->param_count, sizeof sorted[0], compare_params);
    for (unsigned i = 0; i < req->param_count; i++) {
        add_text(buf, sorted[i].name);
        add_text(buf, sorted[i].value);
    }
}

/* One text for one JSON value; what is not JSON will be refused by its handler, and until then counts by its bytes. */
static KV_RC add_body(struct kv_buf *buf, const struct kv_req *req)
{
    struct kv_json *json = NULL;
    struct kv_errinfo ignored = {0};
    if (req->body.len == 0 || kv_json_parse(kv_buf_bytes(&req->body), &ignored, &json) != KV_OK) {
        kv_buf_append(buf, req->body.data, req->body.len);
        return kv_buf_check(buf);
    }
    enum kv_err rc = kv_json_canonical(json, buf);
    kv_json_free(json);
    return rc;
}

/* Salted with the caller and the key: a body may hold a client's own id, and no table of such bodies finds it. */
static KV_RC fingerprint(const struct kv_req *req, const struct kv_store_once_key *key, uint8_t ret_hash[32])
{
    struct kv_buf text;
    kv_buf_init(&text, 8 * (size_t)KV_MAX_BODY_BYTES); /* an escape takes six bytes for one */
    kv_buf_append(&text, key->principal.b, sizeof key->principal.b);
    add_text(&text, key->key);
    add_text(&text, req->path);
    add_query(&text, req);
    enum kv_err rc = add_body(&text, req);
    if (rc == KV_OK) {
        rc = kv_sha256(kv_buf_bytes(&text), ret_hash);
    }
    kv_buf_done(&text);
    return rc;
}

KV_RC kv_once_begin(struct kv_call *call, const struct kv_req *req, struct kv_once *once)
{
    const struct kv_route *route = req->route;
    if ((route->flags & (KV_ROUTE_ONCE | KV_ROUTE_ONCE_FOR_EVER)) == 0 || call->dry_run) {
        return KV_OK; /* a dry run changes nothing, so it may come as often as it likes */
    }
    if (req->given.once_key == NULL) {
        return req->httpd->conf.require_idempotency_key
                   ? kv_fail(&call->info, KV_E_INVALID_REQUEST,
                             "send an Idempotency-Key, drawn anew for each request (http.require_idempotency_key)")
                   : KV_OK;
    }
    KV_TRY(kv_once_key_parse(req->given.once_key, once->key.key, &call->info));
    once->key.principal = call->who.key;
    const struct kv_bytes scope[] = {KV_BYTES(route->method, strlen(route->method) + 1),
                                     KV_BYTES(route->pattern, strlen(route->pattern))};
    KV_TRY(kv_sha256_parts(scope, 2, once->key.scope));
    KV_TRY(fingerprint(req, &once->key, once->fingerprint));
    once->for_ever = (route->flags & KV_ROUTE_ONCE_FOR_EVER) != 0;
    kv_buf_init(&once->body, (size_t)KV_MAX_BODY_BYTES);
    call->once = once;
    return kv_svc_once_find(call);
}

void kv_once_done(struct kv_once *once)
{
    kv_buf_done(&once->body);
}

/* What was sent once fits again. */
static void restore_text(char *target, size_t size, const char *text)
{
    size_t len = strlen(text);
    KV_ASSERT(len < size);
    memcpy(target, text, len + 1);
}

KV_RC kv_once_replay(struct kv_call *call, struct kv_req *req)
{
    const struct kv_once *once = call->once;
    struct kv_response *response = &req->response;
    kv_buf_reset(&response->body);
    restore_text(response->location, sizeof response->location, once->kept.location);
    restore_text(response->original_request, sizeof response->original_request, once->kept.request_id);
    response->replayed = true;
    if (once->kept.has_body) {
        kv_buf_append(&response->body, once->body.data, once->body.len);
    } else {
        static const uint8_t room[SECRET_ANSWER_BYTES];
        response->secret = true;
        kv_buf_append(&response->body, room, sizeof room); /* growing with the secret inside would leave a copy */
        kv_buf_reset(&response->body);
        if (!kv_secret_answers_get(req->httpd->secret_answers, &once->key, &response->body)) {
            return kv_fail(&call->info, KV_E_SECRET_SHOWN,
                           "the answer held a secret and can be repeated for %d minutes, by the server that gave it",
                           (int)KV_MAX_SECRET_REPLAY_SECONDS / 60);
        }
    }
    response->status = once->kept.status;
    restore_text(response->etag, sizeof response->etag, once->kept.etag);
    response->content_type = once->kept.content_type[0] == '\0' ? NULL : "application/json";
    return kv_buf_check(&response->body);
}

void kv_once_keep_secret(struct kv_call *call, const struct kv_req *req)
{
    if (call->once != NULL && req->response.secret && !req->response.replayed) {
        kv_secret_answers_put(req->httpd->secret_answers, &call->once->key, kv_buf_bytes(&req->response.body));
    }
}
