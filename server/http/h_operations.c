/* Long-running operations: the routes that start one, and looking at them. */
#include "server/http/h_shared.h"
#include "server/http/parking.h"
#include "server/service/svc_operation.h"
#include "server/service/svc_tenant_key.h"

#include "dataplane/base/mem.h"

#include <stdio.h>

#define PROVE_SAMPLES 8 /* of each tier, when nothing else is asked for */
#define INDEX_MAX INT64_C(9007199254740991)

const struct kv_field kv_q_operations[] = {
    {"state", KV_TEXT, false, 1, 16, "|queued|running|succeeded|failed|canceled|"},
    {"kind", KV_TEXT, false, 1, 32, "|audit.verify|erasure.prove|tier.drain|root.rotate|root.migrate|key.rotate|"},
    {0},
};

static void write_metadata(struct kv_buf *out, const struct kv_store_operation *row)
{
    kv_out_object(out, "metadata");
    kv_out_text(out, "phase", row->phase);
    kv_out_object(out, "progress");
    kv_out_int(out, "done", row->done_units);
    if (row->has_total) {
        kv_out_int(out, "total", row->total_units);
    }
    kv_out_text(out, "unit", row->unit);
    kv_out_close(out);
    kv_out_close(out);
}

static void write_error(struct kv_buf *out, const struct kv_store_operation *row)
{
    char type[96];
    snprintf(type, sizeof type, "/problems/%s", row->error_code);
    kv_out_object(out, "error");
    kv_out_text(out, "type", type);
    kv_out_text(out, "code", row->error_code);
    kv_out_text(out, "detail", row->error_text);
    kv_out_close(out);
}

static void write_time(struct kv_buf *out, const char *name, uint64_t us)
{
    if (us != 0) {
        kv_out_time(out, name, us);
    }
}

static void write_operation(struct kv_buf *out, const void *view)
{
    const struct kv_operation_view *operation = view;
    const struct kv_store_operation *row = &operation->row;
    kv_out_open(out);
    kv_out_id(out, "id", "opr", &row->id);
    kv_out_text(out, "kind", row->kind);
    kv_out_text(out, "state", kv_operation_state_name(row->state));
    kv_out_bool(out, "done", kv_operation_ended(operation));
    kv_out_bool(out, "cancel_requested", row->cancel_requested_us != 0);
    write_metadata(out, row);
    if (row->response[0] != '\0') {
        kv_out_name(out, "response");
        kv_buf_text(out, row->response); /* JSON of ours */
    }
    if (row->error_code[0] != '\0') {
        write_error(out, row);
    }
    kv_out_time(out, "created_at", row->created_us);
    write_time(out, "started_at", row->started_us);
    write_time(out, "ended_at", row->ended_us);
    write_time(out, "expires_at", row->expires_us);
    kv_out_close(out);
}

/* --- starting ---------------------------------------------------------------------------------------------------- */

static int status_of(const void *view)
{
    return kv_operation_ended(view) ? 200 : 202;
}

/* Waits until it goes on or ends; false: its answer is due. */
static bool waits(struct kv_call *call, struct kv_req *req, uint64_t newest, const struct kv_operation_view *view,
                  kv_handler *resume)
{
    return !kv_operation_ended(view) &&
           kv_h_park_for(call, req, KV_EVENT_OPERATION_STATE, &view->row.id, newest, resume);
}

static struct kv_h_answer answer_of(struct kv_req *req, const struct kv_operation_view *view)
{
    return (struct kv_h_answer){.req = req,
                                .status_of = status_of,
                                .write = write_operation,
                                .view = view,
                                .collection = "/v1/operations",
                                .prefix = "opr",
                                .id = &view->row.id,
                                .retry_after_seconds = 1};
}

static KV_RC answer_start(struct kv_call *call, struct kv_req *req, struct kv_h_answer *answer)
{
    KV_TRY(kv_h_answer(call, answer));
    req->response.retry_after_seconds = req->response.status == 202 ? 1 : 0;
    return KV_OK;
}

/* The answer to a start, after a wait. */
static KV_RC started(struct kv_call *call, struct kv_req *req)
{
    struct kv_id id = req->park.filter.subject;
    uint64_t newest = kv_events_newest(kv_svc_events(call->svc));
    struct kv_operation_view *view KV_CLEANUP(kv_freep) = kv_alloc(sizeof *view);
    if (view == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(kv_svc_operation_get(call, &id, view));
    if (waits(call, req, newest, view, started)) {
        return KV_OK;
    }
    struct kv_h_answer answer = answer_of(req, view);
    return answer_start(call, req, &answer);
}

struct starter {
    const struct kv_field *fields; /* of its body */
    size_t field_count;
    KV_RC(*use_case)
    (struct kv_call *call, const struct kv_id *subject, kv_value *body, struct kv_operation_view *ret_operation);
    struct kv_id subject; /* what the path names, where it does */
};

static KV_RC start(struct kv_call *call, struct kv_req *req, const struct starter *starter,
                   struct kv_operation_view *view)
{
    struct kv_json *body KV_CLEANUP(kv_json_freep) = NULL;
    struct kv_h_answer answer = answer_of(req, view);
    uint64_t newest = kv_events_newest(kv_svc_events(call->svc));
    KV_TRY(kv_h_body(call, req, starter->fields, starter->field_count, &body));
    kv_h_on_commit(call, &answer);
    KV_TRY(starter->use_case(call, &starter->subject, body, view));
    if (!call->dry_run && waits(call, req, newest, view, started)) {
        call->render = NULL;
        return KV_OK;
    }
    return answer_start(call, req, &answer);
}

static KV_RC start_new(struct kv_call *call, struct kv_req *req, const struct starter *starter)
{
    struct kv_operation_view *view KV_CLEANUP(kv_freep) = kv_alloc(sizeof *view);
    return view == NULL ? KV_E_NO_MEMORY : start(call, req, starter, view);
}

static KV_RC drain_dram(struct kv_call *call, const struct kv_id *subject, kv_value *body,
                        struct kv_operation_view *ret_operation)
{
    (void)subject;
    (void)body;
    return kv_svc_drain(call, KV_TIER_DRAM, ret_operation);
}

static KV_RC drain_nvme(struct kv_call *call, const struct kv_id *subject, kv_value *body,
                        struct kv_operation_view *ret_operation)
{
    (void)subject;
    (void)body;
    return kv_svc_drain(call, KV_TIER_NVME, ret_operation);
}

KV_RC kv_h_tier_drain(struct kv_call *call, struct kv_req *req)
{
    return start_new(call, req, &(struct starter){.use_case = drain_dram});
}

KV_RC kv_h_nvme_drain(struct kv_call *call, struct kv_req *req)
{
    return start_new(call, req, &(struct starter){.use_case = drain_nvme});
}

static KV_RC rotate(struct kv_call *call, const struct kv_id *subject, kv_value *body,
                    struct kv_operation_view *ret_operation)
{
    (void)subject;
    (void)body;
    return kv_svc_root_rotate(call, ret_operation);
}

KV_RC kv_h_root_rotate(struct kv_call *call, struct kv_req *req)
{
    return start_new(call, req, &(struct starter){.use_case = rotate});
}

static KV_RC migrate(struct kv_call *call, const struct kv_id *subject, kv_value *body,
                     struct kv_operation_view *ret_operation)
{
    (void)subject;
    return kv_svc_root_migrate(call, kv_json_text(body, "to"), ret_operation);
}

KV_RC kv_h_root_migrate(struct kv_call *call, struct kv_req *req)
{
    static const struct kv_field fields[] = {{"to", KV_TEXT, true, 1, 16, "|file|pkcs11|transit|"}};
    return start_new(call, req, &(struct starter){.fields = fields, .field_count = 1, .use_case = migrate});
}

static KV_RC verify(struct kv_call *call, const struct kv_id *subject, kv_value *body,
                    struct kv_operation_view *ret_operation)
{
    (void)subject;
    bool range = kv_json_get(body, "from") != NULL || kv_json_get(body, "to") != NULL;
    if (kv_json_bool(body, "full", !range) == range) {
        return kv_fail_at(&call->info, KV_E_INVALID_REQUEST, "/full",
                          range ? "is for the whole log: leave `from` and `to` out, or this"
                                : "is not enough: name `from` and `to`");
    }
    struct kv_audit_range asked = {.from = (uint64_t)kv_json_int(body, "from", 0),
                                   .to = (uint64_t)kv_json_int(body, "to", 0)};
    return kv_svc_audit_verify(call, &asked, ret_operation);
}

KV_RC kv_h_audit_verify(struct kv_call *call, struct kv_req *req)
{
    static const struct kv_field fields[] = {
        {"from", KV_INT, false, 0, INDEX_MAX, NULL},
        {"to", KV_INT, false, 1, INDEX_MAX, NULL},
        {"full", KV_BOOL, false, 0, 0, NULL},
    };
    return start_new(call, req, &(struct starter){KV_FIELDS(fields), .use_case = verify});
}

static KV_RC prove(struct kv_call *call, const struct kv_id *subject, kv_value *body,
                   struct kv_operation_view *ret_operation)
{
    return kv_svc_erasure_prove(call, subject, (uint32_t)kv_json_int(body, "samples", PROVE_SAMPLES), ret_operation);
}

KV_RC kv_h_erasure_prove(struct kv_call *call, struct kv_req *req)
{
    static const struct kv_field fields[] = {{"samples", KV_INT, false, 1, KV_MAX_PROVE_SAMPLES, NULL}};
    struct starter starter = {KV_FIELDS(fields), .use_case = prove};
    KV_TRY(kv_h_path_id(call, req, "era", &starter.subject));
    return start_new(call, req, &starter);
}

static KV_RC rotate_key(struct kv_call *call, const struct kv_id *subject, kv_value *body,
                        struct kv_operation_view *ret_operation)
{
    return kv_svc_tenant_key_rotate(call, subject, kv_json_bool(body, "compromised", false), ret_operation);
}

KV_RC kv_h_tenant_key_rotate(struct kv_call *call, struct kv_req *req)
{
    static const struct kv_field fields[] = {{"compromised", KV_BOOL, false, 0, 0, NULL}};
    struct starter starter = {KV_FIELDS(fields), .use_case = rotate_key};
    KV_TRY(kv_h_path_id(call, req, "ten", &starter.subject));
    return start_new(call, req, &starter);
}

/* --- looking and cancelling -------------------------------------------------------------------------------------- */

static KV_RC answer_one(struct kv_req *req, const struct kv_operation_view *view)
{
    req->response.retry_after_seconds = kv_operation_ended(view) ? 0 : 1;
    req->response.etag_rev = view->row.rev;
    write_operation(&req->response.body, view);
    return KV_OK;
}

static KV_RC look_at(struct kv_call *call, struct kv_req *req, const struct kv_id *id, kv_handler *again)
{
    uint64_t newest = kv_events_newest(kv_svc_events(call->svc));
    struct kv_operation_view *view KV_CLEANUP(kv_freep) = kv_alloc(sizeof *view);
    if (view == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(kv_svc_operation_get(call, id, view));
    return waits(call, req, newest, view, again) ? KV_OK : answer_one(req, view);
}

static KV_RC looked_at(struct kv_call *call, struct kv_req *req)
{
    struct kv_id id = req->park.filter.subject;
    return look_at(call, req, &id, looked_at);
}

KV_RC kv_h_operation_get(struct kv_call *call, struct kv_req *req)
{
    struct kv_id id;
    KV_TRY(kv_h_path_id(call, req, "opr", &id));
    return look_at(call, req, &id, looked_at);
}

KV_RC kv_h_operation_cancel(struct kv_call *call, struct kv_req *req)
{
    struct kv_json *body KV_CLEANUP(kv_json_freep) = NULL;
    struct kv_operation_view *view KV_CLEANUP(kv_freep) = kv_alloc(sizeof *view);
    struct kv_id id;
    if (view == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(kv_h_path_id(call, req, "opr", &id));
    KV_TRY(kv_h_body(call, req, NULL, 0, &body));
    KV_TRY(kv_svc_operation_cancel(call, &id, view));
    return answer_one(req, view);
}

KV_RC kv_h_operations(struct kv_call *call, struct kv_req *req)
{
    struct kv_page page;
    size_t count = 0;
    struct kv_operation_filter filter = {.state = kv_h_query_text(req, "state"), .kind = kv_h_query_text(req, "kind")};
    KV_TRY(kv_h_page(call, req, &page));
    struct kv_operation_view *list KV_CLEANUP(kv_freep) = kv_alloc_array((size_t)KV_MAX_PAGE_ITEMS, sizeof *list);
    if (list == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(kv_svc_operation_list(call, &filter, &page, list, &count));
    kv_h_list_begin(req);
    for (size_t i = 0; i < count; i++) {
        write_operation(&req->response.body, &list[i]);
    }
    const struct kv_store_operation *last = count == 0 ? NULL : &list[count - 1].row;
    return kv_h_list_end(req, &page, last == NULL ? 0 : last->created_us, last == NULL ? NULL : &last->id);
}
