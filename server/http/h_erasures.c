/*
 * Erasures: asking for one or many, looking at them. What an erasure means is decided in server/service/svc_erase.c.
 */
#include "server/http/h_labels.h"
#include "server/http/parking.h"

#include "dataplane/base/mem.h"

#include <stdio.h>
#include <string.h>

const struct kv_field kv_q_erasures[] = {
    {"state", KV_TEXT, false, 1, 16,
     "|requested|fenced|staged|rekeyed|destroyed|purged|verified|certified|blocked_hold|needs_approval|quarantined|"},
    {"session_id", KV_TEXT, false, 1, 40, NULL},
    {"group_id", KV_TEXT, false, 1, 40, NULL},
    {0},
};

/* --- out --------------------------------------------------------------------------------------------------------- */

static void write_steps(struct kv_buf *out, const struct kv_erasure_view *erasure)
{
    kv_out_array(out, "steps");
    for (unsigned state = KV_ERASURE_REQUESTED; state <= KV_ERASURE_CERTIFIED; state++) {
        if (erasure->step_us[state] != 0) {
            kv_out_open(out);
            kv_out_text(out, "state", kv_erasure_state_name(state));
            kv_out_time(out, "at", erasure->step_us[state]);
            kv_out_close(out);
        }
    }
    kv_out_array_end(out);
}

static bool is_group(const struct kv_erasure_view *erasure)
{
    return erasure->scope != KV_SCOPE_SESSION;
}

static void write_link(struct kv_buf *out, const char *name, const char *before, const char *id, const char *after)
{
    char link[128];
    snprintf(link, sizeof link, "%s%s%s", before, id, after);
    kv_out_text(out, name, link);
}

static void write_links(struct kv_buf *out, const struct kv_erasure_view *erasure)
{
    char id[KV_ID_TEXT_SIZE], other[KV_ID_TEXT_SIZE];
    kv_id_text("era", &erasure->id, id);
    kv_out_object(out, "links");
    write_link(out, "self", "/v1/erasures/", id, "");
    if (erasure->scope == KV_SCOPE_TENANT && erasure->one_step) {
        write_link(out, "certificate", "/v1/erasures/", id, "/certificate");
    } else if (is_group(erasure)) {
        write_link(out, "members", "/v1/erasures?group_id=", id, "");
        write_link(out, "certificates", "/v1/certificates?group_id=", id, "");
    } else {
        write_link(out, "certificate", "/v1/erasures/", id, "/certificate");
        kv_id_text("ses", &erasure->session, other);
        write_link(out, "session", "/v1/sessions/", other, "");
    }
    if (!kv_id_is_zero(&erasure->group)) {
        kv_id_text("era", &erasure->group, other);
        write_link(out, "group", "/v1/erasures/", other, "");
    }
    kv_out_close(out);
}

static void write_instances(struct kv_buf *out, const struct kv_erasure_view *erasure)
{
    kv_out_array(out, "instances");
    for (size_t i = 0; i < erasure->instance_count; i++) {
        const struct kv_erasure_instance *instance = &erasure->instances[i];
        kv_out_open(out);
        kv_out_id(out, "id", "ins", &instance->id);
        kv_out_text(out, "how", instance->how);
        kv_out_time(out, "fenced_at", instance->fenced_us);
        if (instance->purged_us != 0) {
            kv_out_time(out, "purged_at", instance->purged_us);
        }
        kv_out_close(out);
    }
    kv_out_array_end(out);
}

static void write_scope(struct kv_buf *out, const struct kv_erasure_view *erasure)
{
    kv_out_object(out, "scope");
    switch (erasure->scope) {
    case KV_SCOPE_SESSION:
    case KV_SCOPE_EXTERNAL:
        kv_out_id(out, "session_id", "ses", &erasure->session);
        break;
    case KV_SCOPE_LABEL:
        kv_out_name(out, "label");
        kv_buf_text(out, erasure->label);
        break;
    case KV_SCOPE_IDLE:
        kv_out_time(out, "idle_before", erasure->idle_before_us);
        break;
    case KV_SCOPE_TENANT:
        kv_out_id(out, "tenant_id", "ten", &erasure->tenant);
        break;
    }
    kv_out_close(out);
}

/* What one certificate is for has all of this itself: a session, or a tenant. */
static void write_own_part(struct kv_buf *out, const struct kv_erasure_view *erasure)
{
    if (!kv_id_is_zero(&erasure->group)) {
        kv_out_id(out, "group_id", "era", &erasure->group);
    }
    if (!kv_id_is_zero(&erasure->hold)) {
        kv_out_id(out, "hold_id", "hld", &erasure->hold);
        kv_out_time(out, "blocked_at", erasure->blocked_us);
        kv_h_out_time_if(out, "unblocked_at", erasure->unblocked_us);
    }
    if (!kv_id_is_zero(&erasure->batch)) {
        kv_out_id(out, "batch_id", "bat", &erasure->batch);
    }
    if (!kv_id_is_zero(&erasure->certificate)) {
        kv_out_id(out, "certificate_id", "crt", &erasure->certificate);
    }
    write_instances(out, erasure);
}

static void write_session_part(struct kv_buf *out, const struct kv_erasure_view *erasure)
{
    kv_out_id(out, "session_id", "ses", &erasure->session);
    write_own_part(out, erasure);
}

static void write_group_part(struct kv_buf *out, const struct kv_erasure_view *erasure)
{
    kv_out_object(out, "sessions");
    kv_out_int(out, "matched", erasure->sessions);
    kv_out_int(out, "certified", erasure->sessions_certified);
    kv_out_int(out, "quarantined", erasure->sessions_quarantined);
    kv_out_bool(out, "complete", !erasure->expanding);
    kv_out_close(out);
    kv_out_time(out, "cutoff_at", erasure->cutoff_us);
    if (erasure->one_step) {
        write_own_part(out, erasure);
    }
}

void kv_h_write_erasure(struct kv_buf *out, const void *view)
{
    const struct kv_erasure_view *erasure = view;
    kv_out_open(out);
    kv_out_id(out, "id", "era", &erasure->id);
    kv_out_text(out, "state", kv_erasure_state_name(erasure->state));
    kv_out_text(out, "claim", erasure->claim);
    write_scope(out, erasure);
    kv_out_text(out, "basis", erasure->basis);
    (is_group(erasure) ? write_group_part : write_session_part)(out, erasure);
    kv_out_time(out, "requested_at", erasure->requested_us);
    write_steps(out, erasure);
    if (erasure->eta_ms != 0) {
        kv_out_int(out, "eta_ms", erasure->eta_ms);
    }
    if (erasure->quarantine_reason[0] != '\0') {
        kv_out_text(out, "reason", erasure->quarantine_reason);
    }
    write_links(out, erasure);
    kv_out_close(out);
}

static void write_made(struct kv_buf *out, const void *view)
{
    const struct kv_erasure_made *made = view;
    kv_h_write_erasure(out, &made->erasure);
}

/* What would and what would not be erased. */
static void write_would(struct kv_buf *out, const void *view)
{
    const struct kv_erasure_would *would = &((const struct kv_erasure_made *)view)->would;
    const char *const *limits = NULL;
    size_t limit_count = kv_svc_erasure_limits(&limits);
    kv_out_open(out);
    kv_out_int(out, "sessions", would->sessions);
    kv_out_int(out, "sessions_measured", would->sessions_measured);
    if (!kv_id_is_zero(&would->existing)) {
        kv_out_id(out, "existing_erasure_id", "era", &would->existing);
    }
    kv_out_object(out, "blocks_by_tier");
    kv_out_int(out, "dram", would->usage.dram_blocks);
    kv_out_int(out, "nvme", would->usage.nvme_blocks);
    kv_out_close(out);
    kv_out_object(out, "bytes_by_tier");
    kv_out_int(out, "dram", would->usage.dram_bytes);
    kv_out_int(out, "nvme", would->usage.nvme_bytes);
    kv_out_close(out);
    kv_out_object(out, "shared_scopes");
    kv_out_int(out, "erased", would->scopes_erased);
    kv_out_int(out, "retained", would->scopes_retained);
    kv_out_close(out);
    kv_out_int(out, "holds", would->holds);
    kv_out_array(out, "engines_to_fence");
    for (size_t i = 0; i < would->engine_count; i++) {
        kv_out_id(out, NULL, "eng", &would->engines[i]);
    }
    kv_out_array_end(out);
    kv_out_array(out, "limits_that_would_apply");
    for (size_t i = 0; i < limit_count; i++) {
        kv_out_text(out, NULL, limits[i]);
    }
    if (would->scopes_retained > 0) {
        kv_out_text(out, NULL, "L6");
    }
    kv_out_array_end(out);
    kv_out_close(out);
}

/* --- asking ------------------------------------------------------------------------------------------------------ */

static KV_RC read_idle(struct kv_call *call, const char *text, struct kv_erasure_new *in)
{
    in->scope = KV_SCOPE_IDLE;
    return kv_time_parse(text, &in->idle_before_us) == KV_OK
               ? KV_OK
               : kv_fail_at(&call->info, KV_E_INVALID_REQUEST, "/scope/idle_before",
                            "must be a time in UTC, like 2026-11-30T17:18:18Z");
}

static KV_RC read_tenant(struct kv_call *call, kv_value *scope, struct kv_erasure_new *in)
{
    in->scope = KV_SCOPE_TENANT;
    return kv_json_id(scope, "/scope", "tenant_id", "ten", &in->tenant, &call->info);
}

static KV_RC read_scope(struct kv_call *call, kv_value *scope, struct kv_erasure_new *in)
{
    const struct kv_field fields[] = {
        {"session_id", KV_TEXT, false, 1, 40, NULL}, {"external_id", KV_TEXT, false, 1, KV_MAX_EXTERNAL_ID_BYTES, NULL},
        {"label", KV_OBJECT, false, 0, 0, NULL},     {"idle_before", KV_TEXT, false, 1, 40, NULL},
        {"tenant_id", KV_TEXT, false, 1, 40, NULL},
    };
    size_t count = 0;
    KV_TRY(kv_json_check(scope, "/scope", KV_FIELDS(fields), &call->info));
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        count += kv_json_get(scope, fields[i].name) != NULL;
    }
    if (count != 1) {
        return kv_fail_at(&call->info, KV_E_INVALID_REQUEST, "/scope",
                          "must have one of session_id, external_id, label, idle_before, tenant_id");
    }
    if (kv_json_get(scope, "session_id") != NULL) {
        in->scope = KV_SCOPE_SESSION;
        return kv_json_id(scope, "/scope", "session_id", "ses", &in->session, &call->info);
    }
    if (kv_json_get(scope, "external_id") != NULL) {
        in->scope = KV_SCOPE_EXTERNAL;
        in->external_id = kv_json_text(scope, "external_id");
        return KV_OK;
    }
    if (kv_json_get(scope, "label") != NULL) {
        in->scope = KV_SCOPE_LABEL;
        return kv_h_scope_label(call, kv_json_get(scope, "label"), &in->label_key, &in->label_value);
    }
    return kv_json_get(scope, "idle_before") != NULL ? read_idle(call, kv_json_text(scope, "idle_before"), in)
                                                     : read_tenant(call, scope, in);
}

static int status_of(const void *view)
{
    return ((const struct kv_erasure_made *)view)->erasure.state == KV_ERASURE_CERTIFIED ? 200 : 202;
}

/* Waits for the erasure's next state; false: its answer is due. */
static bool waits(struct kv_call *call, struct kv_req *req, uint64_t newest, const struct kv_erasure_view *erasure,
                  kv_handler *resume)
{
    return !kv_erasure_ended(erasure) && !kv_erasure_blocked(erasure) &&
           kv_h_park_for(call, req, KV_EVENT_ERASURE_STATE, &erasure->id, newest, resume);
}

static struct kv_h_answer answer_of(struct kv_req *req, const struct kv_erasure_made *made)
{
    return (struct kv_h_answer){.req = req,
                                .status_of = status_of,
                                .write = write_made,
                                .write_would = write_would,
                                .view = made,
                                .collection = "/v1/erasures",
                                .prefix = "era",
                                .id = &made->erasure.id,
                                .retry_after_seconds = 1};
}

static KV_RC answer_request(struct kv_call *call, struct kv_req *req, struct kv_h_answer *answer)
{
    KV_TRY(kv_h_answer(call, answer));
    req->response.retry_after_seconds = req->response.status == 202 ? 1 : 0;
    return KV_OK;
}

/* The answer to a request, after a wait. */
static KV_RC requested(struct kv_call *call, struct kv_req *req)
{
    struct kv_id id = req->park.filter.subject;
    uint64_t newest = kv_events_newest(kv_svc_events(call->svc));
    struct kv_erasure_made *made KV_CLEANUP(kv_freep) = kv_alloc(sizeof *made);
    if (made == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(kv_svc_erasure_get(call, &id, &made->erasure));
    if (waits(call, req, newest, &made->erasure, requested)) {
        return KV_OK;
    }
    struct kv_h_answer answer = answer_of(req, made);
    return answer_request(call, req, &answer);
}

static KV_RC create(struct kv_call *call, struct kv_req *req, const struct kv_erasure_new *in,
                    struct kv_erasure_made *made)
{
    struct kv_h_answer answer = answer_of(req, made);
    uint64_t newest = kv_events_newest(kv_svc_events(call->svc));
    kv_h_on_commit(call, &answer);
    KV_TRY(kv_svc_erase(call, in, made));
    if (!call->dry_run && waits(call, req, newest, &made->erasure, requested)) {
        call->render = NULL;
        return KV_OK;
    }
    return answer_request(call, req, &answer);
}

KV_RC kv_h_erase(struct kv_call *call, struct kv_req *req, const struct kv_erasure_new *in)
{
    struct kv_erasure_made *made KV_CLEANUP(kv_freep) = kv_alloc(sizeof *made);
    return made == NULL ? KV_E_NO_MEMORY : create(call, req, in, made);
}

KV_RC kv_h_erasure_create(struct kv_call *call, struct kv_req *req)
{
    const struct kv_field fields[] = {
        {"scope", KV_OBJECT, true, 0, 0, NULL},
        {"basis", KV_TEXT, false, 1, 16, "|gdpr_art17|retention|contract|other|"},
        {"reason", KV_TEXT, false, 1, KV_MAX_TEXT_BYTES, NULL},
        {"reference", KV_TEXT, false, 1, KV_MAX_TEXT_BYTES, NULL},
    };
    struct kv_json *body KV_CLEANUP(kv_json_freep) = NULL;
    KV_TRY(kv_h_body(call, req, KV_FIELDS(fields), &body));
    const char *basis = kv_json_text(body, "basis");
    struct kv_erasure_new in = {.basis = basis == NULL ? "other" : basis,
                                .reason = kv_json_text(body, "reason"),
                                .reference = kv_json_text(body, "reference")};
    KV_TRY(read_scope(call, kv_json_get(body, "scope"), &in));
    return kv_h_erase(call, req, &in);
}

/* --- looking ----------------------------------------------------------------------------------------------------- */

static KV_RC look_at(struct kv_call *call, struct kv_req *req, const struct kv_id *id, kv_handler *again)
{
    uint64_t newest = kv_events_newest(kv_svc_events(call->svc));
    struct kv_erasure_view *erasure KV_CLEANUP(kv_freep) = kv_alloc(sizeof *erasure);
    if (erasure == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(kv_svc_erasure_get(call, id, erasure));
    if (!waits(call, req, newest, erasure, again)) {
        req->response.retry_after_seconds = kv_erasure_ended(erasure) ? 0 : 1;
        kv_h_write_erasure(&req->response.body, erasure);
    }
    return KV_OK;
}

static KV_RC looked_at(struct kv_call *call, struct kv_req *req)
{
    struct kv_id id = req->park.filter.subject;
    return look_at(call, req, &id, looked_at);
}

KV_RC kv_h_erasure_get(struct kv_call *call, struct kv_req *req)
{
    struct kv_id id;
    KV_TRY(kv_h_path_id(call, req, "era", &id));
    return look_at(call, req, &id, looked_at);
}

KV_RC kv_h_erasures(struct kv_call *call, struct kv_req *req)
{
    struct kv_page page;
    struct kv_erasure_filter filter = {.state = kv_h_query_text(req, "state")};
    KV_TRY(kv_h_page(call, req, &page));
    KV_TRY(kv_h_query_id(call, req, "session_id", "ses", &filter.session));
    const char *group = kv_h_query_text(req, "group_id");
    filter.alone = group != NULL && strcmp(group, "none") == 0;
    if (!filter.alone) {
        KV_TRY(kv_h_query_id(call, req, "group_id", "era", &filter.group));
    }
    struct kv_erasure_view *list KV_CLEANUP(kv_freep) = kv_alloc_array((size_t)KV_MAX_PAGE_ITEMS, sizeof *list);
    size_t count = 0;
    if (list == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(kv_svc_erasure_list(call, &filter, &page, list, &count));
    kv_h_list_begin(req);
    for (size_t i = 0; i < count; i++) {
        kv_h_write_erasure(&req->response.body, &list[i]);
    }
    const struct kv_erasure_view *last = count == 0 ? NULL : &list[count - 1];
    return kv_h_list_end(req, &page, last == NULL ? 0 : last->requested_us, last == NULL ? NULL : &last->id);
}

KV_RC kv_h_erasure_cancel(struct kv_call *call, struct kv_req *req)
{
    struct kv_json *body KV_CLEANUP(kv_json_freep) = NULL;
    struct kv_id id;
    KV_TRY(kv_h_path_id(call, req, "era", &id));
    KV_TRY(kv_h_body(call, req, NULL, 0, &body));
    return kv_svc_erasure_cancel(call, &id);
}
