/* Sessions. One that was erased answers 410 wherever it is named; that comes from the service. */
#include "server/http/h_shared.h"

static void write_session(struct kv_buf *out, const struct kv_session_view *session)
{
    kv_out_open(out);
    kv_out_id(out, "id", "ses", &session->id);
    kv_out_id(out, "tenant_id", "ten", &session->tenant);
    kv_out_text(out, "state", session->state);
    kv_h_write_model(out, &session->model);
    kv_out_time(out, "created_at", session->created_us);
    kv_out_object(out, "usage");
    kv_out_int(out, "blocks", session->usage.blocks);
    kv_out_int(out, "dram_blocks", session->usage.dram_blocks);
    kv_out_int(out, "nvme_blocks", session->usage.nvme_blocks);
    kv_out_int(out, "dram_bytes", session->usage.dram_bytes);
    kv_out_int(out, "nvme_bytes", session->usage.nvme_bytes);
    kv_out_int(out, "plaintext_bytes", session->usage.plaintext_bytes);
    kv_out_close(out);
    kv_out_close(out);
}

KV_RC kv_h_session_create(struct kv_call *call, struct kv_req *req)
{
    const struct kv_field fields[] = {{"model", KV_OBJECT, true, 0, 0, NULL}};
    struct kv_json *body KV_CLEANUP(kv_json_freep) = NULL;
    struct kv_model model;
    struct kv_session_view session;
    KV_TRY(kv_h_body(call, req, KV_FIELDS(fields), &body));
    KV_TRY(kv_h_model(call, body, &model));
    KV_TRY(kv_svc_session_create(call, &model, &session));
    req->response.status = 201;
    kv_h_location(req, "/v1/sessions", "ses", &session.id);
    write_session(&req->response.body, &session);
    return KV_OK;
}

KV_RC kv_h_session_get(struct kv_call *call, struct kv_req *req)
{
    struct kv_id id;
    struct kv_session_view session;
    KV_TRY(kv_h_path_id(call, req, "ses", &id));
    KV_TRY(kv_svc_session_get(call, &id, &session));
    write_session(&req->response.body, &session);
    return KV_OK;
}
