/*
 * Pieces that several handlers use: bodies, ids in paths, common members. Must never hold on to a body after its
 * handler returned.
 */
#include "server/http/h_shared.h"

#include "dataplane/base/check.h"
#include "server/http/manners.h"

#include <stdio.h>
#include <string.h>

void kv_json_freep(struct kv_json **json)
{
    if (*json != NULL) {
        kv_json_free(*json);
    }
}

KV_RC kv_h_body(struct kv_call *call, const struct kv_req *req, const struct kv_field *fields, size_t count,
                struct kv_json **ret_json)
{
    struct kv_json *json = NULL;
    bool stands_for_object = req->body.len == 0 && (req->route->flags & KV_ROUTE_OPTIONAL_BODY) != 0;
    KV_TRY(kv_json_parse(stands_for_object ? KV_BYTES("{}", 2) : kv_buf_bytes(&req->body), &call->info, &json));
    enum kv_err rc = kv_json_check(json, "", fields, count, &call->info);
    if (rc != KV_OK) {
        kv_json_free(json);
        return rc;
    }
    *ret_json = json;
    return KV_OK;
}

KV_RC kv_h_patch(struct kv_call *call, const struct kv_req *req, const struct kv_field *fields, size_t count,
                 struct kv_json **ret_json)
{
    KV_TRY(kv_h_body(call, req, fields, count, ret_json));
    void *at = NULL;
    const char *name = NULL;
    if (kv_json_next(*ret_json, &at, &name) == NULL) {
        return kv_fail_at(&call->info, KV_E_INVALID_REQUEST, "", "name at least one member to change");
    }
    return KV_OK;
}

static KV_RC path_id(struct kv_call *call, const char *text, const char *prefix, struct kv_id *ret_id)
{
    if (kv_id_parse(prefix, text, ret_id) != KV_OK) {
        return kv_fail(&call->info, KV_E_NOT_FOUND, "nothing with this id; it would start with %s_", prefix);
    }
    return KV_OK;
}

KV_RC kv_h_path_id(struct kv_call *call, const struct kv_req *req, const char *prefix, struct kv_id *ret_id)
{
    return path_id(call, req->captures[0], prefix, ret_id);
}

KV_RC kv_h_path_id_2(struct kv_call *call, const struct kv_req *req, const char *prefix, struct kv_id *ret_id)
{
    return path_id(call, req->captures[1], prefix, ret_id);
}

void kv_h_copy(char *target, size_t size, const char *text)
{
    size_t len = strlen(text);
    KV_ASSERT(len < size);
    memcpy(target, text, len + 1);
}

KV_RC kv_h_model(struct kv_call *call, kv_value *body, struct kv_model *ret_model)
{
    const struct kv_field fields[] = {
        KV_REQUIRED_TEXT("id", 128),
        KV_REQUIRED_TEXT("revision", 128),
        {"fingerprint", KV_TEXT, false, 64, 64, NULL},
    };
    kv_value *model = kv_json_get(body, "model");
    KV_TRY(kv_json_check(model, "/model", KV_FIELDS(fields), &call->info));
    *ret_model = (struct kv_model){0};
    kv_h_copy(ret_model->id, sizeof ret_model->id, kv_json_text(model, "id"));
    kv_h_copy(ret_model->revision, sizeof ret_model->revision, kv_json_text(model, "revision"));
    if (kv_json_text(model, "fingerprint") == NULL) {
        return KV_OK;
    }
    return kv_json_hash(model, "/model", "fingerprint", ret_model->fingerprint, &call->info);
}

void kv_h_write_model(struct kv_buf *out, const struct kv_model *model)
{
    static const uint8_t none[sizeof model->fingerprint];
    kv_out_object(out, "model");
    kv_out_text(out, "id", model->id);
    kv_out_text(out, "revision", model->revision);
    if (memcmp(model->fingerprint, none, sizeof none) != 0) {
        kv_out_hex(out, "fingerprint", model->fingerprint, sizeof model->fingerprint);
    }
    kv_out_close(out);
}

void kv_h_location(struct kv_req *req, const char *collection, const char *prefix, const struct kv_id *id)
{
    char text[KV_ID_TEXT_SIZE];
    kv_id_text(prefix, id, text);
    snprintf(req->response.location, sizeof req->response.location, "%s/%s", collection, text);
}

KV_RC kv_h_time(struct kv_call *call, kv_value *body, const char *name, uint64_t *ret_us)
{
    const char *text = kv_json_text(body, name);
    uint64_t us = 0;
    if (text != NULL && (kv_time_parse(text, &us) != KV_OK || us == 0)) {
        char pointer[64];
        snprintf(pointer, sizeof pointer, "/%.62s", name);
        return kv_fail_at(&call->info, KV_E_INVALID_REQUEST, pointer, "a time in UTC like 2026-11-30T17:18:18Z");
    }
    *ret_us = us;
    return KV_OK;
}

void kv_h_out_text_if(struct kv_buf *out, const char *name, const char *text)
{
    if (text[0] != '\0') {
        kv_out_text(out, name, text);
    }
}

void kv_h_out_time_if(struct kv_buf *out, const char *name, uint64_t us)
{
    if (us != 0) {
        kv_out_time(out, name, us);
    }
}

/* --- the answer of a change -------------------------------------------------------------------------------------- */

#define SECRET_ROOM 4096

static void write_value(struct kv_h_answer *answer, void (*write)(struct kv_buf *out, const void *view))
{
    if (write != NULL) {
        write(&answer->req->response.body, answer->view);
    }
}

static void start_body(struct kv_h_answer *answer)
{
    struct kv_response *response = &answer->req->response;
    kv_buf_reset(&response->body);
    if (answer->secret) { /* growing with the secret inside would leave a copy */
        static const uint8_t room[SECRET_ROOM];
        response->secret = true;
        kv_buf_append(&response->body, room, sizeof room);
        kv_buf_reset(&response->body);
    }
}

static void render(struct kv_h_answer *answer)
{
    struct kv_response *response = &answer->req->response;
    start_body(answer);
    write_value(answer, answer->write);
    response->status = answer->status_of != NULL ? answer->status_of(answer->view) : answer->status;
    response->content_type = answer->write == NULL ? NULL : "application/json";
    response->retry_after_seconds = answer->retry_after_seconds;
    response->etag[0] = '\0';
    if (answer->id != NULL) {
        kv_h_location(answer->req, answer->collection, answer->prefix, answer->id);
    }
    if (answer->rev != NULL && kv_etag_make(*answer->rev, kv_buf_bytes(&response->body), response->etag) != KV_OK) {
        response->etag[0] = '\0'; /* a missing ETag only means that nobody can ask for a 304 */
    }
    answer->rendered = true;
}

static void render_in_transaction(void *ctx, struct kv_answer *ret_answer)
{
    struct kv_h_answer *answer = ctx;
    const struct kv_response *response = &answer->req->response;
    render(answer);
    *ret_answer = (struct kv_answer){.status = response->status,
                                     .location = response->location,
                                     .etag = response->etag,
                                     .content_type = response->content_type == NULL ? "" : response->content_type,
                                     .body = kv_buf_bytes(&response->body),
                                     .secret = answer->secret};
}

void kv_h_on_commit(struct kv_call *call, struct kv_h_answer *answer)
{
    call->render = render_in_transaction;
    call->render_ctx = answer;
}

static void answer_dry_run(struct kv_h_answer *answer)
{
    struct kv_buf *out = &answer->req->response.body;
    start_body(answer);
    kv_out_open(out);
    kv_out_bool(out, "dry_run", true);
    kv_out_name(out, "would");
    if (answer->write == NULL && answer->write_would == NULL) {
        kv_buf_text(out, "{}");
    }
    write_value(answer, answer->write_would != NULL ? answer->write_would : answer->write);
    kv_out_close(out);
    answer->req->response.status = 200;
    answer->req->response.content_type = "application/json";
}

KV_RC kv_h_answer(struct kv_call *call, struct kv_h_answer *answer)
{
    call->render = NULL; /* the answer's view goes out of scope */
    if (call->dry_run) {
        answer_dry_run(answer);
    } else if (!answer->rendered) {
        render(answer);
    }
    return kv_buf_check(&answer->req->response.body);
}
