/* Approvals: looking at proposals, deciding them. What they are good for is decided in server/service/svc_approval.c.
 */
#include "server/http/h_approvals.h"

#include "dataplane/base/mem.h"

const struct kv_field kv_q_approvals[] = {
    {"state", KV_TEXT, false, 1, 16, "|pending|approved|rejected|expired|"},
    {0},
};

void kv_h_write_approval(struct kv_buf *out, const void *view)
{
    const struct kv_approval_view *approval = view;
    const struct kv_store_approval *row = &approval->row;
    kv_out_open(out);
    kv_out_id(out, "id", "apr", &row->id);
    kv_out_text(out, "state", approval->state);
    kv_out_text(out, "action", kv_approval_action_name(row->action));
    kv_out_id(out, "tenant_id", "ten", &row->tenant);
    kv_out_name(out, "request");
    kv_buf_text(out, row->request); /* JSON of ours */
    kv_out_hex(out, "request_sha256", row->request_sha256, sizeof row->request_sha256);
    kv_out_id(out, "proposed_by", "key", &row->proposed_by);
    kv_out_time(out, "created_at", row->created_us);
    kv_out_time(out, "expires_at", row->expires_us);
    kv_h_out_time_if(out, "decided_at", row->decided_us);
    if (!kv_id_is_zero(&row->decided_by)) {
        kv_out_id(out, "decided_by", "key", &row->decided_by);
    }
    kv_out_close(out);
}

static struct kv_h_answer answer_of(struct kv_req *req, const struct kv_approval_view *approval)
{
    return (struct kv_h_answer){
        .req = req, .status = 200, .write = kv_h_write_approval, .view = approval, .rev = &approval->row.rev};
}

KV_RC kv_h_approval_get(struct kv_call *call, struct kv_req *req)
{
    struct kv_id id;
    struct kv_approval_view approval;
    KV_TRY(kv_h_path_id(call, req, "apr", &id));
    KV_TRY(kv_svc_approval_get(call, &id, &approval));
    struct kv_h_answer answer = answer_of(req, &approval);
    return kv_h_answer(call, &answer);
}

typedef KV_RC decide_fn(struct kv_call *call, const struct kv_id *approval, struct kv_approval_view *ret_approval);

static KV_RC decide(struct kv_call *call, struct kv_req *req, decide_fn *use_case)
{
    struct kv_json *body KV_CLEANUP(kv_json_freep) = NULL;
    struct kv_id id;
    struct kv_approval_view approval;
    KV_TRY(kv_h_path_id(call, req, "apr", &id));
    KV_TRY(kv_h_body(call, req, NULL, 0, &body));
    struct kv_h_answer answer = answer_of(req, &approval);
    kv_h_on_commit(call, &answer);
    KV_TRY(use_case(call, &id, &approval));
    return kv_h_answer(call, &answer);
}

KV_RC kv_h_approval_approve(struct kv_call *call, struct kv_req *req)
{
    return decide(call, req, kv_svc_approval_approve);
}

KV_RC kv_h_approval_reject(struct kv_call *call, struct kv_req *req)
{
    return decide(call, req, kv_svc_approval_reject);
}

KV_RC kv_h_approvals(struct kv_call *call, struct kv_req *req)
{
    struct kv_page page;
    size_t count = 0;
    KV_TRY(kv_h_page(call, req, &page));
    struct kv_approval_view *list KV_CLEANUP(kv_freep) = kv_alloc_array((size_t)KV_MAX_PAGE_ITEMS, sizeof *list);
    if (list == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(kv_svc_approval_list(call, kv_h_query_text(req, "state"), &page, list, &count));
    kv_h_list_begin(req);
    for (size_t i = 0; i < count; i++) {
        kv_h_write_approval(&req->response.body, &list[i]);
    }
    const struct kv_store_approval *last = count == 0 ? NULL : &list[count - 1].row;
    return kv_h_list_end(req, &page, last == NULL ? 0 : last->created_us, last == NULL ? NULL : &last->id);
}
