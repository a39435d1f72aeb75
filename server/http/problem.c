/*
 * Makes problem documents. Must never let through what an internal failure knew: of those the caller learns the code
 * and the request id.
 */
#include "server/http/problem.h"

#include "dataplane/base/id.h"
#include "server/http/codec.h"
#include "server/http/problem_text.h"

#include <stdio.h>
#include <string.h>

/* Errors that are results inside the server are our failure when they get this far: the caller learns that and the
 * request's id, no more. */
static enum kv_err public_code(enum kv_err rc)
{
    switch (rc) {
    case KV_E_NO_MEMORY:
        return KV_E_BUSY;
    case KV_E_NO_SPACE:
        return KV_E_FULL;
    case KV_E_MISSING:
        return KV_E_NOT_FOUND;
    case KV_E_IO:
    case KV_E_WRONG_KEY:
    case KV_E_TAMPERED:
    case KV_E_TRUNCATED:
    case KV_E_CORRUPT:
    case KV_E_CRYPTO:
    case KV_E_CONFIG:
        return KV_E_INTERNAL;
    case KV_E_ROLLBACK_DETECTED:
        return KV_E_QUARANTINED;
    case KV_E_FENCED:
        return KV_E_SESSION_ERASED;
    default:
        return rc;
    }
}

static unsigned retry_after(enum kv_err code)
{
    return code == KV_E_DB_UNAVAILABLE || code == KV_E_LEASE_EXPIRED ? 2 : kv_err_retryable(code) ? 1 : 0;
}

static void write_errors(struct kv_buf *body, const struct kv_errinfo *info)
{
    kv_out_array(body, "errors");
    kv_out_open(body);
    kv_out_text(body, "pointer", info->pointer);
    kv_out_text(body, "code", "invalid");
    kv_out_text(body, "detail", info->text);
    kv_out_close(body);
    kv_out_array_end(body);
}

/* A command that helps; of an erased session the one that shows its erasure. */
static void write_hint(struct kv_buf *body, enum kv_err code, const struct kv_id *erasure)
{
    char text[96], id[KV_ID_TEXT_SIZE];
    const char *hint = kv_problem_hint(code);
    if (code == KV_E_SESSION_ERASED && erasure != NULL && !kv_id_is_zero(erasure)) {
        kv_id_text("era", erasure, id);
        snprintf(text, sizeof text, "kvrun erasures get %s", id);
        hint = text;
    }
    if (hint != NULL) {
        kv_out_text(body, "hint", hint);
    }
}

static void write_certificate(struct kv_buf *body, const struct kv_id *erasure)
{
    char text[KV_ID_TEXT_SIZE], link[96];
    kv_id_text("era", erasure, text);
    snprintf(link, sizeof link, "/v1/erasures/%s", text);
    kv_out_text(body, "erasure", link);
    snprintf(link, sizeof link, "/v1/erasures/%s/certificate", text);
    kv_out_text(body, "certificate", link);
}

void kv_problem(struct kv_req *req, enum kv_err rc, const struct kv_errinfo *info, const struct kv_id *erasure)
{
    enum kv_err code = public_code(rc);
    struct kv_response *response = &req->response;
    struct kv_buf *body = &response->body;
    char type[80];
    bool hidden = code == KV_E_INTERNAL;
    response->status = kv_err_http(code);
    response->content_type = "application/problem+json";
    response->retry_after_seconds = retry_after(code);
    response->cache_control = NULL;
    response->etag[0] = '\0';
    kv_buf_reset(&response->link);
    if (code != KV_E_SECRET_SHOWN) { /* whose Location leads to what was made */
        response->location[0] = '\0';
    }
    kv_buf_reset(body);
    snprintf(type, sizeof type, "/problems/%s", kv_err_name(code));
    kv_out_open(body);
    kv_out_text(body, "type", type);
    kv_out_text(body, "title", kv_err_title(code));
    kv_out_int(body, "status", (uint64_t)response->status);
    kv_out_text(body, "detail", info == NULL || info->text[0] == '\0' || hidden ? kv_err_title(code) : info->text);
    kv_out_text(body, "instance", req->path);
    kv_out_text(body, "code", kv_err_name(code));
    kv_out_text(body, "request_id", req->request_id);
    kv_out_bool(body, "retryable", kv_err_retryable(code));
    if (info != NULL && info->pointer[0] != '\0' && !hidden) {
        write_errors(body, info);
    }
    write_hint(body, code, erasure);
    if (erasure != NULL && !kv_id_is_zero(erasure)) {
        write_certificate(body, erasure);
    }
    kv_out_close(body);
}
