/*
 * Pieces that several handlers use: bodies, ids in paths, common members. Must never hold on to a body after its
 * handler returned.
 */
#include "server/http/h_shared.h"

#include "dataplane/base/check.h"

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
    KV_TRY(kv_json_parse(kv_buf_bytes(&req->body), &call->info, &json));
    enum kv_err rc = kv_json_check(json, "", fields, count, &call->info);
    if (rc != KV_OK) {
        kv_json_free(json);
        return rc;
    }
    *ret_json = json;
    return KV_OK;
}

KV_RC kv_h_path_id(struct kv_call *call, const struct kv_req *req, const char *prefix, struct kv_id *ret_id)
{
    if (kv_id_parse(prefix, req->captures[0], ret_id) != KV_OK) {
        return kv_fail(&call->info, KV_E_NOT_FOUND, "nothing with this id; it would start with %s_", prefix);
    }
    return KV_OK;
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
