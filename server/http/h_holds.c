/* Legal holds: placing, looking, releasing. What one means for erasures is decided in server/service/svc_hold.c. */
#include "server/http/h_approvals.h"
#include "server/http/h_labels.h"
#include "server/service/svc_hold.h"

#include "dataplane/base/mem.h"

#define GROUNDS "|legal_claims|legal_obligation|public_interest|"

const struct kv_field kv_q_holds[] = {
    {"state", KV_TEXT, false, 1, 16, "|active|released|expired|"},
    {0},
};

/* --- out --------------------------------------------------------------------------------------------------------- */

static void write_scope(struct kv_buf *out, const struct kv_store_hold *row)
{
    kv_out_object(out, "scope");
    switch (row->scope) {
    case KV_HOLD_SESSION:
        kv_out_id(out, "session_id", "ses", &row->session);
        break;
    case KV_HOLD_LABEL:
        kv_out_name(out, "label");
        kv_buf_text(out, row->label); /* JSON of ours */
        break;
    case KV_HOLD_TENANT:
        kv_out_id(out, "tenant_id", "ten", &row->tenant);
        break;
    }
    kv_out_close(out);
}

static void write_by(struct kv_buf *out, const char *name, const struct kv_id *key)
{
    if (!kv_id_is_zero(key)) {
        kv_out_id(out, name, "key", key);
    }
}

static void write_hold(struct kv_buf *out, const void *view)
{
    const struct kv_hold_view *hold = view;
    const struct kv_store_hold *row = &hold->row;
    kv_out_open(out);
    kv_out_id(out, "id", "hld", &row->id);
    kv_out_text(out, "state", hold->state);
    write_scope(out, row);
    kv_h_out_text_if(out, "ground", row->ground);
    kv_out_time(out, "created_at", row->created_us);
    write_by(out, "created_by", &row->created_by);
    kv_out_time(out, "expires_at", row->expires_us);
    kv_h_out_time_if(out, "released_at", row->released_us);
    write_by(out, "released_by", &row->released_by);
    if (hold->has_sessions) {
        kv_out_int(out, "sessions", hold->sessions);
    }
    kv_out_int(out, "erasures_blocked", row->blocked);
    kv_out_close(out);
}

static struct kv_h_answer answer_of(struct kv_req *req, const struct kv_hold_view *hold)
{
    return (struct kv_h_answer){.req = req, .status = 200, .write = write_hold, .view = hold, .rev = &hold->row.rev};
}

/* --- placing ----------------------------------------------------------------------------------------------------- */

static KV_RC read_scope(struct kv_call *call, kv_value *scope, struct kv_hold_new *in)
{
    static const struct kv_field fields[] = {{"session_id", KV_TEXT, false, 1, 40, NULL},
                                             {"label", KV_OBJECT, false, 0, 0, NULL},
                                             {"tenant_id", KV_TEXT, false, 1, 40, NULL}};
    unsigned count = 0;
    KV_TRY(kv_json_check(scope, "/scope", KV_FIELDS(fields), &call->info));
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        count += kv_json_get(scope, fields[i].name) != NULL;
    }
    if (count != 1) {
        return kv_fail_at(&call->info, KV_E_INVALID_REQUEST, "/scope", "must have one of session_id, label, tenant_id");
    }
    if (kv_json_get(scope, "session_id") != NULL) {
        in->scope = KV_HOLD_SESSION;
        return kv_json_id(scope, "/scope", "session_id", "ses", &in->session, &call->info);
    }
    if (kv_json_get(scope, "label") != NULL) {
        in->scope = KV_HOLD_LABEL;
        return kv_h_scope_label(call, kv_json_get(scope, "label"), &in->label_key, &in->label_value);
    }
    in->scope = KV_HOLD_TENANT;
    return kv_json_id(scope, "/scope", "tenant_id", "ten", &in->tenant, &call->info);
}

KV_RC kv_h_hold_create(struct kv_call *call, struct kv_req *req)
{
    static const struct kv_field fields[] = {
        {"scope", KV_OBJECT, true, 0, 0, NULL},        {"ground", KV_TEXT, false, 1, 32, GROUNDS},
        KV_REQUIRED_TEXT("reason", KV_MAX_TEXT_BYTES), {"reference", KV_TEXT, false, 1, KV_MAX_TEXT_BYTES, NULL},
        {"expires_at", KV_TEXT, true, 1, 40, NULL},
    };
    struct kv_json *body KV_CLEANUP(kv_json_freep) = NULL;
    struct kv_hold_view hold;
    KV_TRY(kv_h_body(call, req, KV_FIELDS(fields), &body));
    struct kv_hold_new in = {.ground = kv_json_text(body, "ground"),
                             .reason = kv_json_text(body, "reason"),
                             .reference = kv_json_text(body, "reference")};
    KV_TRY(read_scope(call, kv_json_get(body, "scope"), &in));
    KV_TRY(kv_h_time(call, body, "expires_at", &in.expires_us));
    struct kv_h_answer answer = answer_of(req, &hold);
    answer.status = 201;
    answer.collection = "/v1/holds";
    answer.prefix = "hld";
    answer.id = &hold.row.id;
    kv_h_on_commit(call, &answer);
    KV_TRY(kv_svc_hold_create(call, &in, &hold));
    return kv_h_answer(call, &answer);
}

/* --- looking and releasing --------------------------------------------------------------------------------------- */

KV_RC kv_h_hold_get(struct kv_call *call, struct kv_req *req)
{
    struct kv_id id;
    struct kv_hold_view hold;
    KV_TRY(kv_h_path_id(call, req, "hld", &id));
    KV_TRY(kv_svc_hold_get(call, &id, &hold));
    struct kv_h_answer answer = answer_of(req, &hold);
    return kv_h_answer(call, &answer);
}

struct release {
    struct kv_hold_view hold;
    struct kv_approval_view approval;
};

static bool waits(const struct release *release)
{
    return !kv_id_is_zero(&release->approval.row.id);
}

static int release_status(const void *view)
{
    return waits(view) ? 202 : 200;
}

static void write_release(struct kv_buf *out, const void *view)
{
    const struct release *release = view;
    if (waits(release)) {
        kv_h_write_approval(out, &release->approval);
    } else {
        write_hold(out, &release->hold);
    }
}

KV_RC kv_h_hold_release(struct kv_call *call, struct kv_req *req)
{
    struct kv_id id;
    struct release release;
    KV_TRY(kv_h_path_id(call, req, "hld", &id));
    struct kv_h_answer answer = answer_of(req, &release.hold);
    answer.status_of = release_status;
    answer.write = write_release;
    answer.view = &release;
    kv_h_on_commit(call, &answer);
    KV_TRY(kv_svc_hold_release(call, &id, &release.hold, &release.approval));
    return kv_h_answer(call, &answer);
}

KV_RC kv_h_holds(struct kv_call *call, struct kv_req *req)
{
    struct kv_page page;
    size_t count = 0;
    KV_TRY(kv_h_page(call, req, &page));
    struct kv_hold_view *list KV_CLEANUP(kv_freep) = kv_alloc_array((size_t)KV_MAX_PAGE_ITEMS, sizeof *list);
    if (list == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(kv_svc_hold_list(call, kv_h_query_text(req, "state"), &page, list, &count));
    kv_h_list_begin(req);
    for (size_t i = 0; i < count; i++) {
        write_hold(&req->response.body, &list[i]);
    }
    const struct kv_store_hold *last = count == 0 ? NULL : &list[count - 1].row;
    return kv_h_list_end(req, &page, last == NULL ? 0 : last->created_us, last == NULL ? NULL : &last->id);
}
