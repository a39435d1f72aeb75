/* Tenants: made, suspended and deleted by operators; a tenant's administrator sees and names its own. */
#include "server/http/h_approvals.h"
#include "server/http/h_labels.h"

#include "dataplane/base/mem.h"

static void write_tenant(struct kv_buf *out, const void *view)
{
    const struct kv_tenant_view *tenant = view;
    kv_out_open(out);
    kv_out_id(out, "id", "ten", &tenant->id);
    kv_out_text(out, "name", tenant->name);
    kv_h_out_text_if(out, "display_name", tenant->display_name);
    kv_out_text(out, "state", tenant->state);
    kv_h_out_text_if(out, "region", tenant->region);
    kv_h_write_labels(out, &tenant->labels);
    kv_out_time(out, "created_at", tenant->created_us);
    kv_h_out_time_if(out, "updated_at", tenant->updated_us);
    kv_h_out_time_if(out, "suspended_at", tenant->suspended_us);
    kv_h_out_time_if(out, "delete_at", tenant->delete_us);
    kv_out_close(out);
}

static struct kv_h_answer answer_of(struct kv_req *req, int status, const struct kv_tenant_view *tenant)
{
    return (struct kv_h_answer){
        .req = req, .status = status, .write = write_tenant, .view = tenant, .rev = &tenant->rev};
}

KV_RC kv_h_tenant_create(struct kv_call *call, struct kv_req *req)
{
    const struct kv_field fields[] = {
        {"name", KV_TEXT, true, 2, KV_MAX_TENANT_NAME_BYTES, NULL},
        {"display_name", KV_TEXT, false, 0, 256, NULL},
        {"region", KV_TEXT, false, 1, 63, NULL},
        {"labels", KV_OBJECT, false, 0, 0, NULL},
        {"policy", KV_OBJECT, false, 0, 0, NULL},
    };
    struct kv_json *body KV_CLEANUP(kv_json_freep) = NULL;
    struct kv_buf policy KV_CLEANUP(kv_buf_done);
    struct kv_tenant_view tenant;
    kv_buf_init(&policy, (size_t)KV_MAX_BODY_BYTES);
    KV_TRY(kv_h_body(call, req, KV_FIELDS(fields), &body));
    struct kv_tenant_new in = {.name = kv_json_text(body, "name"),
                               .display_name = kv_json_text(body, "display_name"),
                               .region = kv_json_text(body, "region")};
    KV_TRY(kv_h_labels(call, body, false, &in.labels));
    kv_value *given = kv_json_get(body, "policy");
    KV_TRY(given == NULL ? KV_OK : kv_json_canonical(given, &policy));
    in.policy = kv_buf_bytes(&policy);
    struct kv_h_answer answer = answer_of(req, 201, &tenant);
    answer.collection = "/v1/tenants";
    answer.prefix = "ten";
    answer.id = &tenant.id;
    kv_h_on_commit(call, &answer);
    KV_TRY(kv_svc_tenant_create(call, &in, &tenant));
    return kv_h_answer(call, &answer);
}

KV_RC kv_h_tenant_get(struct kv_call *call, struct kv_req *req)
{
    struct kv_id id;
    struct kv_tenant_view tenant;
    KV_TRY(kv_h_path_id(call, req, "ten", &id));
    KV_TRY(kv_svc_tenant_get(call, &id, &tenant));
    struct kv_h_answer answer = answer_of(req, 200, &tenant);
    return kv_h_answer(call, &answer);
}

const struct kv_field kv_q_tenants[] = {
    {"state", KV_TEXT, false, 1, 16, "|active|suspended|deleting|erasing|erased|"},
    {"label", KV_TEXT, false, 1, 256, NULL},
    {.name = NULL},
};

KV_RC kv_h_tenant_list(struct kv_call *call, struct kv_req *req)
{
    struct kv_page page;
    struct kv_label label;
    bool has_label = false;
    size_t count = 0;
    KV_TRY(kv_h_page(call, req, &page));
    KV_TRY(kv_h_query_label(call, req, &has_label, &label));
    struct kv_tenant_filter filter = {.state = kv_h_query_text(req, "state"), .label = has_label ? &label : NULL};
    struct kv_tenant_view *list KV_CLEANUP(kv_freep) = kv_alloc_array((size_t)KV_MAX_PAGE_ITEMS, sizeof *list);
    if (list == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(kv_svc_tenant_list(call, &filter, &page, list, &count));
    kv_h_list_begin(req);
    for (size_t i = 0; i < count; i++) {
        write_tenant(&req->response.body, &list[i]);
    }
    return kv_h_list_end(req, &page, count == 0 ? 0 : list[count - 1].created_us,
                         count == 0 ? NULL : &list[count - 1].id);
}

KV_RC kv_h_tenant_update(struct kv_call *call, struct kv_req *req)
{
    const struct kv_field fields[] = {
        {"name", KV_TEXT | KV_H_IMMUTABLE, false, 1, KV_MAX_TEXT_BYTES, NULL},
        {"display_name", KV_TEXT | KV_H_NULLABLE, false, 0, 256, NULL},
        {"region", KV_TEXT | KV_H_NULLABLE, false, 1, 63, NULL},
        {"labels", KV_OBJECT, false, 0, 0, NULL},
    };
    struct kv_json *body KV_CLEANUP(kv_json_freep) = NULL;
    struct kv_id id;
    struct kv_tenant_view tenant;
    KV_TRY(kv_h_path_id(call, req, "ten", &id));
    KV_TRY(kv_h_patch(call, req, KV_FIELDS(fields), &body));
    struct kv_tenant_patch patch = {.display_name =
                                        kv_json_is_null(body, "display_name") ? "" : kv_json_text(body, "display_name"),
                                    .region = kv_json_is_null(body, "region") ? "" : kv_json_text(body, "region")};
    KV_TRY(kv_h_labels(call, body, true, &patch.labels));
    struct kv_h_answer answer = answer_of(req, 200, &tenant);
    kv_h_on_commit(call, &answer);
    KV_TRY(kv_svc_tenant_update(call, &id, &patch, &tenant));
    return kv_h_answer(call, &answer);
}

/* --- states ------------------------------------------------------------------------------------------------------ */

KV_RC kv_h_tenant_suspend(struct kv_call *call, struct kv_req *req)
{
    const struct kv_field fields[] = {{"reason", KV_TEXT, false, 1, KV_MAX_TEXT_BYTES, NULL}};
    struct kv_json *body KV_CLEANUP(kv_json_freep) = NULL;
    struct kv_id id;
    struct kv_tenant_view tenant;
    KV_TRY(kv_h_path_id(call, req, "ten", &id));
    KV_TRY(kv_h_body(call, req, KV_FIELDS(fields), &body));
    struct kv_h_answer answer = answer_of(req, 200, &tenant);
    kv_h_on_commit(call, &answer);
    KV_TRY(kv_svc_tenant_suspend(call, &id, kv_json_text(body, "reason"), &tenant));
    return kv_h_answer(call, &answer);
}

/* A change that takes no members. */
static KV_RC without_body(struct kv_call *call, const struct kv_req *req)
{
    struct kv_json *body KV_CLEANUP(kv_json_freep) = NULL;
    return kv_h_body(call, req, NULL, 0, &body);
}

KV_RC kv_h_tenant_resume(struct kv_call *call, struct kv_req *req)
{
    struct kv_id id;
    struct kv_tenant_view tenant;
    KV_TRY(kv_h_path_id(call, req, "ten", &id));
    KV_TRY(without_body(call, req));
    struct kv_h_answer answer = answer_of(req, 200, &tenant);
    kv_h_on_commit(call, &answer);
    KV_TRY(kv_svc_tenant_resume(call, &id, &tenant));
    return kv_h_answer(call, &answer);
}

KV_RC kv_h_tenant_restore(struct kv_call *call, struct kv_req *req)
{
    struct kv_id id;
    struct kv_tenant_view tenant;
    KV_TRY(kv_h_path_id(call, req, "ten", &id));
    KV_TRY(without_body(call, req));
    struct kv_h_answer answer = answer_of(req, 200, &tenant);
    kv_h_on_commit(call, &answer);
    KV_TRY(kv_svc_tenant_restore(call, &id, &tenant));
    return kv_h_answer(call, &answer);
}

const struct kv_field kv_q_tenant_delete[] = {
    {"now", KV_BOOL, false, 0, 0, NULL},
    {.name = NULL},
};

struct deletion {
    struct kv_tenant_view tenant;
    struct kv_approval_view approval;
};

static void write_deletion(struct kv_buf *out, const void *view)
{
    const struct deletion *deletion = view;
    if (kv_id_is_zero(&deletion->approval.row.id)) {
        write_tenant(out, &deletion->tenant);
    } else {
        kv_h_write_approval(out, &deletion->approval);
    }
}

KV_RC kv_h_tenant_delete(struct kv_call *call, struct kv_req *req)
{
    struct kv_id id;
    struct deletion deletion;
    KV_TRY(kv_h_path_id(call, req, "ten", &id));
    struct kv_h_answer answer = answer_of(req, 202, &deletion.tenant);
    answer.write = write_deletion;
    answer.view = &deletion;
    kv_h_on_commit(call, &answer);
    KV_TRY(kv_svc_tenant_delete(call, &id, kv_h_query_bool(req, "now"), &deletion.tenant, &deletion.approval));
    return kv_h_answer(call, &answer);
}

/* --- usage ------------------------------------------------------------------------------------------------------- */

static void write_tier(struct kv_buf *out, const char *name, uint64_t blocks, uint64_t bytes)
{
    kv_out_open(out);
    kv_out_text(out, "tier", name);
    kv_out_int(out, "blocks", blocks);
    kv_out_int(out, "bytes", bytes);
    kv_out_close(out);
}

static void write_window(struct kv_buf *out, const struct kv_tenant_window *window)
{
    kv_out_object(out, "window");
    kv_out_time(out, "from", window->from_us);
    kv_out_time(out, "until", window->until_us);
    kv_out_int(out, "offloaded_blocks", window->offloaded_blocks);
    kv_out_int(out, "offloaded_bytes", window->offloaded_bytes);
    kv_out_int(out, "restored_blocks", window->restored_blocks);
    kv_out_int(out, "restored_bytes", window->restored_bytes);
    kv_out_close(out);
}

static void write_usage(struct kv_buf *out, const struct kv_tenant_usage *usage)
{
    kv_out_open(out);
    kv_out_object(out, "sessions");
    kv_out_int(out, "active", usage->sessions_active);
    kv_out_int(out, "erasing", usage->sessions_erasing);
    kv_out_int(out, "erased", usage->sessions_erased);
    kv_out_int(out, "lost", usage->sessions_lost);
    kv_out_close(out);
    kv_out_int(out, "blocks", usage->blocks.blocks);
    kv_out_int(out, "plaintext_bytes", usage->blocks.plaintext_bytes);
    kv_out_array(out, "tiers");
    write_tier(out, "dram", usage->blocks.dram_blocks, usage->blocks.dram_bytes);
    write_tier(out, "nvme", usage->blocks.nvme_blocks, usage->blocks.nvme_bytes);
    kv_out_array_end(out);
    kv_out_object(out, "transfers");
    kv_out_time(out, "since", usage->since_us);
    kv_out_int(out, "offloaded_blocks", usage->offloaded_blocks);
    kv_out_int(out, "offloaded_bytes", usage->offloaded_bytes);
    kv_out_int(out, "restored_blocks", usage->restored_blocks);
    kv_out_int(out, "restored_bytes", usage->restored_bytes);
    kv_out_close(out);
    if (usage->window.until_us != 0) {
        write_window(out, &usage->window);
    }
    kv_out_close(out);
}

const struct kv_field kv_q_tenant_usage[] = {
    {"window", KV_TEXT, false, 2, 5, NULL},
    {.name = NULL},
};

/* Hours or days, as in 24h and 7d; 0 without the parameter. */
static KV_RC window_of(struct kv_call *call, const struct kv_req *req, uint64_t *ret_seconds)
{
    const char *text = kv_h_query_text(req, "window");
    uint64_t number = 0;
    size_t i = 0;
    for (; text != NULL && text[i] >= '0' && text[i] <= '9'; i++) {
        number = number * 10 + (uint64_t)(text[i] - '0');
    }
    if (text == NULL) {
        *ret_seconds = 0;
        return KV_OK;
    }
    bool days = text[i] == 'd', good = (days || text[i] == 'h') && text[i + 1] == '\0' && text[0] != '0';
    uint64_t hours = days ? number * 24 : number;
    if (!good || i == 0 || hours > (uint64_t)KV_MAX_USAGE_DAYS * 24) {
        return kv_fail(&call->info, KV_E_INVALID_REQUEST, "window is hours or days such as 24h or 7d, at most %dd",
                       (int)KV_MAX_USAGE_DAYS);
    }
    *ret_seconds = hours * 3600;
    return KV_OK;
}

KV_RC kv_h_tenant_usage(struct kv_call *call, struct kv_req *req)
{
    struct kv_id id;
    struct kv_tenant_usage usage;
    uint64_t window_seconds = 0;
    KV_TRY(kv_h_path_id(call, req, "ten", &id));
    KV_TRY(window_of(call, req, &window_seconds));
    KV_TRY(kv_svc_tenant_usage(call, &id, window_seconds, &usage));
    write_usage(&req->response.body, &usage);
    return KV_OK;
}
