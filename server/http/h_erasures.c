/* Erasures and their certificates. A certificate's bytes are passed on as they were issued, never written anew. */
#include "server/http/h_shared.h"
#include "server/http/parking.h"

#include <stdio.h>

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

static void write_links(struct kv_buf *out, const struct kv_erasure_view *erasure)
{
    char id[KV_ID_TEXT_SIZE], link[96];
    kv_id_text("era", &erasure->id, id);
    kv_out_object(out, "links");
    snprintf(link, sizeof link, "/v1/erasures/%s", id);
    kv_out_text(out, "self", link);
    snprintf(link, sizeof link, "/v1/erasures/%s/certificate", id);
    kv_out_text(out, "certificate", link);
    kv_out_close(out);
}

static void write_erasure(struct kv_buf *out, const struct kv_erasure_view *erasure)
{
    kv_out_open(out);
    kv_out_id(out, "id", "era", &erasure->id);
    kv_out_text(out, "state", kv_erasure_state_name(erasure->state));
    kv_out_text(out, "claim", erasure->claim);
    kv_out_id(out, "session_id", "ses", &erasure->session);
    kv_out_time(out, "requested_at", erasure->requested_us);
    write_steps(out, erasure);
    if (erasure->quarantine_reason[0] != '\0') {
        kv_out_text(out, "reason", erasure->quarantine_reason);
    }
    write_links(out, erasure);
    kv_out_close(out);
}

static bool ended(const struct kv_erasure_view *erasure)
{
    return erasure->state == KV_ERASURE_CERTIFIED || erasure->state == KV_ERASURE_QUARANTINED;
}

/* The answer to a request for an erasure, now or after a wait. */
static void answer_request(struct kv_req *req, const struct kv_erasure_view *erasure)
{
    bool certified = erasure->state == KV_ERASURE_CERTIFIED;
    req->response.status = certified ? 200 : 202;
    req->response.retry_after_seconds = certified ? 0 : 1;
    kv_h_location(req, "/v1/erasures", "era", &erasure->id);
    write_erasure(&req->response.body, erasure);
}

static kv_handler requested, looked_at;

/* Waits for the erasure's next state; false: its answer is due. */
static bool waits(struct kv_call *call, struct kv_req *req, uint64_t newest, const struct kv_erasure_view *erasure,
                  kv_handler *resume)
{
    return !ended(erasure) && kv_h_park_for(call, req, KV_EVENT_ERASURE_STATE, &erasure->id, newest, resume);
}

static KV_RC requested(struct kv_call *call, struct kv_req *req)
{
    struct kv_id id = req->park.filter.subject;
    struct kv_erasure_view erasure;
    uint64_t newest = kv_events_newest(kv_svc_events(call->svc));
    KV_TRY(kv_svc_erasure_get(call, &id, &erasure));
    if (!waits(call, req, newest, &erasure, requested)) {
        answer_request(req, &erasure);
    }
    return KV_OK;
}

KV_RC kv_h_erasure_create(struct kv_call *call, struct kv_req *req)
{
    const struct kv_field fields[] = {
        {"scope", KV_OBJECT, true, 0, 0, NULL},
        {"basis", KV_TEXT, false, 1, 16, "|gdpr_art17|retention|contract|other|"},
        {"reason", KV_TEXT, false, 1, KV_MAX_TEXT_BYTES, NULL},
    };
    const struct kv_field scope_fields[] = {KV_ID_FIELD("session_id")};
    struct kv_json *body KV_CLEANUP(kv_json_freep) = NULL;
    struct kv_id session;
    struct kv_erasure_view erasure;
    bool existed = false;
    KV_TRY(kv_h_body(call, req, KV_FIELDS(fields), &body));
    kv_value *scope = kv_json_get(body, "scope");
    KV_TRY(kv_json_check(scope, "/scope", KV_FIELDS(scope_fields), &call->info));
    KV_TRY(kv_json_id(scope, "/scope", "session_id", "ses", &session, &call->info));
    const char *basis = kv_json_text(body, "basis");
    uint64_t newest = kv_events_newest(kv_svc_events(call->svc));
    KV_TRY(kv_svc_erasure_create(call, &session, basis == NULL ? "other" : basis, kv_json_text(body, "reason"), 0,
                                 &erasure, &existed));
    if (!waits(call, req, newest, &erasure, requested)) {
        answer_request(req, &erasure);
    }
    return KV_OK;
}

static KV_RC look_at(struct kv_call *call, struct kv_req *req, const struct kv_id *id)
{
    struct kv_erasure_view erasure;
    uint64_t newest = kv_events_newest(kv_svc_events(call->svc));
    KV_TRY(kv_svc_erasure_get(call, id, &erasure));
    if (!waits(call, req, newest, &erasure, looked_at)) {
        write_erasure(&req->response.body, &erasure);
    }
    return KV_OK;
}

static KV_RC looked_at(struct kv_call *call, struct kv_req *req)
{
    struct kv_id id = req->park.filter.subject;
    return look_at(call, req, &id);
}

KV_RC kv_h_erasure_get(struct kv_call *call, struct kv_req *req)
{
    struct kv_id id;
    KV_TRY(kv_h_path_id(call, req, "era", &id));
    return look_at(call, req, &id);
}

KV_RC kv_h_certificate(struct kv_call *call, struct kv_req *req)
{
    struct kv_id id;
    enum kv_certificate_form form = KV_CERT_PAYLOAD;
    KV_TRY(kv_h_path_id(call, req, "era", &id));
    if (req->accepts_text) {
        form = KV_CERT_BUNDLE;
        req->response.content_type = "text/plain; charset=utf-8";
    } else if (req->accepts_jose) {
        form = KV_CERT_JWS;
        req->response.content_type = "application/jose";
    } else if (!req->accepts_json) {
        return kv_fail(&call->info, KV_E_NOT_ACCEPTABLE,
                       "a certificate comes as text/plain, application/jose or application/json");
    }
    return kv_svc_certificate(call, &id, form, &req->response.body);
}
