/* The root of erasure: where it is and how it stands. Must never show more of it than its random id. */
#include "server/http/h_shared.h"
#include "server/service/svc_root.h"

#include "dataplane/base/id.h"

static void write_provider(struct kv_buf *out, const struct kv_root_view *view)
{
    kv_out_object(out, "provider");
    kv_out_text(out, "name", view->provider);
    kv_out_text(out, "detail", view->detail);
    if (view->path != NULL) {
        kv_out_text(out, "path", view->path);
    }
    kv_out_text(out, "assurance", view->assurance);
    kv_out_bool(out, "shared", view->shared);
    if (view->trouble[0] != '\0') {
        kv_out_text(out, "trouble", view->trouble);
    }
    if (!kv_id_is_zero(&view->active)) {
        kv_out_id(out, "active_root", "rot", &view->active);
    }
    if (!kv_id_is_zero(&view->staged)) {
        kv_out_id(out, "staged_root", "rot", &view->staged);
    }
    kv_out_close(out);
}

static void write_root(struct kv_buf *out, const struct kv_root_view *view)
{
    kv_out_open(out);
    kv_out_text(out, "state", view->quarantine != NULL ? "quarantined" : view->trouble[0] != '\0' ? "away" : "ok");
    if (view->quarantine != NULL) {
        kv_out_text(out, "quarantine_reason", view->quarantine);
    }
    if (!kv_id_is_zero(&view->root)) {
        kv_out_id(out, "root_id", "rot", &view->root);
        kv_out_text(out, "database_provider", view->database_provider);
    }
    kv_out_int(out, "replaced", view->replaced);
    if (view->replaced_us != 0) {
        kv_out_time(out, "replaced_at", view->replaced_us);
    }
    write_provider(out, view);
    kv_out_array(out, "limits");
    for (size_t i = 0; i < view->limit_count; i++) {
        kv_out_text(out, NULL, view->limits[i]);
    }
    kv_out_array_end(out);
    kv_out_close(out);
}

KV_RC kv_h_root(struct kv_call *call, struct kv_req *req)
{
    struct kv_root_view view;
    KV_TRY(kv_svc_root_get(call, &view));
    write_root(&req->response.body, &view);
    return KV_OK;
}
