/*
 * Certificates in the form that Accept names, one or many, and their check. A certificate's bytes are passed on as they
 * were issued; the views around them are made here.
 */
#include "server/http/certificate_html.h"
#include "server/http/h_shared.h"
#include "server/service/svc_certificate.h"

#include "dataplane/base/mem.h"

#include <stdio.h>
#include <string.h>

#define VERIFY_BODY_MAX 262144u

const struct kv_field kv_q_certificates[] = {
    {"from", KV_TEXT, false, 1, 40, NULL},
    {"to", KV_TEXT, false, 1, 40, NULL},
    {"group_id", KV_TEXT, false, 1, 40, NULL},
    {0},
};

/* --- views ------------------------------------------------------------------------------------------------------- */

static void write_links(struct kv_buf *out, const struct kv_certificate_view *view)
{
    char certificate[KV_ID_TEXT_SIZE], erasure[KV_ID_TEXT_SIZE], link[128];
    kv_id_text("crt", &view->id, certificate);
    kv_id_text("era", &view->erasure, erasure);
    kv_out_object(out, "links");
    snprintf(link, sizeof link, "/v1/certificates/%s", certificate);
    kv_out_text(out, "self", link);
    snprintf(link, sizeof link, "/v1/erasures/%s", erasure);
    kv_out_text(out, "erasure", link);
    snprintf(link, sizeof link, "/v1/erasures/%s/certificate.txt", erasure);
    kv_out_text(out, "bundle", link);
    snprintf(link, sizeof link, "/v1/erasures/%s/upgrade.txt", erasure);
    kv_out_text(out, "upgrade", link);
    kv_out_text(out, "keys", "/.well-known/kvrun/jwks.json");
    kv_out_text(out, "log_key", "/.well-known/kvrun/log.vkey");
    kv_out_close(out);
}

static void write_members(struct kv_buf *out, const struct kv_certificate_view *view)
{
    kv_out_id(out, "id", "crt", &view->id);
    kv_out_id(out, "erasure_id", "era", &view->erasure);
    if (kv_id_is_zero(&view->session)) {
        kv_out_id(out, "tenant_id", "ten", &view->tenant);
        kv_out_int(out, "sessions", view->sessions);
    } else {
        kv_out_id(out, "session_id", "ses", &view->session);
    }
    if (!kv_id_is_zero(&view->group)) {
        kv_out_id(out, "group_id", "era", &view->group);
    }
    kv_out_text(out, "basis", view->basis);
    kv_out_time(out, "issued_at", view->issued_us);
    kv_out_int(out, "log_index", view->log_index);
}

static void write_missing(struct kv_buf *out, const struct kv_upgrade_view *upgrade)
{
    kv_out_array(out, "missing");
    for (size_t i = 0; i < upgrade->missing_count; i++) {
        kv_out_open(out);
        kv_out_id(out, "instance_id", "ins", &upgrade->missing[i].instance);
        if (!kv_id_is_zero(&upgrade->missing[i].folder)) {
            kv_out_id(out, "folder_id", "nvm", &upgrade->missing[i].folder);
        }
        kv_out_text(out, "why", upgrade->missing[i].why);
        kv_out_close(out);
    }
    kv_out_array_end(out);
}

/* What followed: the statement, or who it waits for. */
static void write_upgrade(struct kv_buf *out, const struct kv_upgrade_view *upgrade, const struct kv_buf *statement)
{
    kv_out_object(out, "upgrade");
    kv_out_text(out, "ciphertext", upgrade->gone ? "gone" : "pending");
    if (upgrade->gone) {
        kv_out_id(out, "id", "upg", &upgrade->id);
        kv_out_time(out, "issued_at", upgrade->issued_us);
        kv_out_int(out, "log_index", upgrade->log_index);
        kv_out_name(out, "statement");
        kv_buf_append(out, statement->data, statement->len);
    } else {
        write_missing(out, upgrade);
    }
    kv_out_close(out);
}

/* A payload is JSON already, and stays byte for byte what was signed. */
static void write_decoded(struct kv_buf *out, const struct kv_certificate_view *view, const struct kv_buf *payload,
                          const struct kv_upgrade_view *upgrade, const struct kv_buf *statement)
{
    kv_out_open(out);
    write_members(out, view);
    kv_out_name(out, "certificate");
    kv_buf_append(out, payload->data, payload->len);
    write_upgrade(out, upgrade, statement);
    write_links(out, view);
    kv_out_close(out);
}

/* --- one --------------------------------------------------------------------------------------------------------- */

struct wanted {
    const struct kv_id *erasure, *certificate; /* one of them */
};

static KV_RC send_raw(struct kv_call *call, struct kv_req *req, const struct wanted *wanted,
                      enum kv_certificate_form form)
{
    req->response.content_type = form == KV_CERT_BUNDLE ? "text/plain; charset=utf-8" : "application/jose";
    return kv_svc_certificate_get(call, wanted->erasure, wanted->certificate, form, NULL, &req->response.body);
}

static KV_RC send_json(struct kv_call *call, struct kv_req *req, const struct kv_certificate_view *view,
                       const struct kv_buf *payload)
{
    struct kv_upgrade_view *upgrade KV_CLEANUP(kv_freep) = kv_alloc(sizeof *upgrade);
    struct kv_buf statement KV_CLEANUP(kv_buf_done);
    kv_buf_init(&statement, (size_t)KV_MAX_CERTIFICATE_BYTES);
    if (upgrade == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(kv_svc_upgrade_get(call, &view->erasure, upgrade, &statement));
    write_decoded(&req->response.body, view, payload, upgrade, &statement);
    return KV_OK;
}

static KV_RC send_view(struct kv_call *call, struct kv_req *req, const struct wanted *wanted, bool html)
{
    struct kv_certificate_view view;
    struct kv_buf payload;
    kv_buf_init(&payload, (size_t)KV_MAX_CERTIFICATE_BYTES);
    enum kv_err rc =
        kv_svc_certificate_get(call, wanted->erasure, wanted->certificate, KV_CERT_PAYLOAD, &view, &payload);
    if (rc == KV_OK && html) {
        req->response.content_type = "text/html; charset=utf-8";
        rc = kv_certificate_html(kv_buf_bytes(&payload), &call->info, &req->response.body);
    } else if (rc == KV_OK) {
        rc = send_json(call, req, &view, &payload);
    }
    kv_buf_done(&payload);
    return rc;
}

static KV_RC send_certificate(struct kv_call *call, struct kv_req *req, const struct wanted *wanted)
{
    if (req->accepts_text) {
        return send_raw(call, req, wanted, KV_CERT_BUNDLE);
    }
    if (req->accepts_html) {
        return send_view(call, req, wanted, true);
    }
    if (req->accepts_jose) {
        return send_raw(call, req, wanted, KV_CERT_JWS);
    }
    if (!req->accepts_json) {
        return kv_fail(&call->info, KV_E_NOT_ACCEPTABLE,
                       "a certificate comes as text/plain, text/html, application/jose or application/json");
    }
    return send_view(call, req, wanted, false);
}

KV_RC kv_h_certificate(struct kv_call *call, struct kv_req *req)
{
    struct kv_id id;
    KV_TRY(kv_h_path_id(call, req, "era", &id));
    return send_certificate(call, req, &(struct wanted){.erasure = &id});
}

KV_RC kv_h_certificate_get(struct kv_call *call, struct kv_req *req)
{
    struct kv_id id;
    KV_TRY(kv_h_path_id(call, req, "crt", &id));
    return send_certificate(call, req, &(struct wanted){.certificate = &id});
}

KV_RC kv_h_certificate_text(struct kv_call *call, struct kv_req *req)
{
    struct kv_id id;
    KV_TRY(kv_h_path_id(call, req, "era", &id));
    return send_raw(call, req, &(struct wanted){.erasure = &id}, KV_CERT_BUNDLE);
}

KV_RC kv_h_upgrade_text(struct kv_call *call, struct kv_req *req)
{
    struct kv_id id;
    KV_TRY(kv_h_path_id(call, req, "era", &id));
    req->response.content_type = "text/plain; charset=utf-8";
    return kv_svc_upgrade_bundle(call, &id, NULL, &req->response.body);
}

KV_RC kv_h_certificate_upgrade_text(struct kv_call *call, struct kv_req *req)
{
    struct kv_id id;
    KV_TRY(kv_h_path_id(call, req, "crt", &id));
    req->response.content_type = "text/plain; charset=utf-8";
    return kv_svc_upgrade_bundle(call, NULL, &id, &req->response.body);
}

/* --- many -------------------------------------------------------------------------------------------------------- */

static KV_RC read_filter(struct kv_call *call, const struct kv_req *req, struct kv_certificate_filter *ret_filter)
{
    *ret_filter = (struct kv_certificate_filter){0};
    KV_TRY(kv_h_query_id(call, req, "group_id", "era", &ret_filter->group));
    KV_TRY(kv_h_query_time(call, req, "from", &ret_filter->from_us));
    return kv_h_query_time(call, req, "to", &ret_filter->to_us);
}

KV_RC kv_h_certificates(struct kv_call *call, struct kv_req *req)
{
    struct kv_page page;
    struct kv_certificate_filter filter;
    size_t count = 0;
    KV_TRY(kv_h_page(call, req, &page));
    KV_TRY(read_filter(call, req, &filter));
    struct kv_certificate_view *list KV_CLEANUP(kv_freep) = kv_alloc_array((size_t)KV_MAX_PAGE_ITEMS, sizeof *list);
    if (list == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(kv_svc_certificate_list(call, &filter, &page, list, &count));
    kv_h_list_begin(req);
    for (size_t i = 0; i < count; i++) {
        kv_out_open(&req->response.body);
        write_members(&req->response.body, &list[i]);
        write_links(&req->response.body, &list[i]);
        kv_out_close(&req->response.body);
    }
    const struct kv_certificate_view *last = count == 0 ? NULL : &list[count - 1];
    return kv_h_list_end(req, &page, last == NULL ? 0 : last->issued_us, last == NULL ? NULL : &last->erasure);
}

KV_RC kv_h_certificates_export(struct kv_call *call, struct kv_req *req)
{
    struct kv_certificate_filter filter;
    KV_TRY(read_filter(call, req, &filter));
    req->response.content_type = "application/x-tar";
    req->response.body.max = (size_t)KV_MAX_EXPORT_BYTES;
    return kv_svc_certificate_export(call, &filter, &req->response.body);
}

/* --- checking ---------------------------------------------------------------------------------------------------- */

/* What the checked payload says, so that nobody has to decode it: the claim and its limits. */
static KV_RC write_claim(struct kv_buf *out, const struct kv_buf *payload, bool upgrade, struct kv_errinfo *info)
{
    struct kv_json *json KV_CLEANUP(kv_json_freep) = NULL;
    KV_TRY(kv_json_parse(kv_buf_bytes(payload), info, &json));
    kv_value *limits = kv_json_get(json, "limits");
    kv_out_text(out, "claim", kv_json_text(json, "claim"));
    kv_out_array(out, "limits");
    for (size_t i = 0; i < kv_json_len(limits); i++) {
        kv_out_open(out);
        kv_out_text(out, "code", kv_json_text(kv_json_at(limits, i), "code"));
        kv_out_text(out, "text", kv_json_text(kv_json_at(limits, i), "text"));
        kv_out_close(out);
    }
    kv_out_array_end(out);
    kv_out_name(out, upgrade ? "statement" : "certificate");
    kv_buf_append(out, payload->data, payload->len);
    return KV_OK;
}

static KV_RC write_report(struct kv_buf *out, const struct kv_cert_report *report, bool bundle, struct kv_errinfo *info)
{
    unsigned checks = bundle ? KV_CHECK_COUNT : KV_CHECK_CLAIMS + 1;
    kv_out_open(out);
    kv_out_bool(out, "valid", report->ok);
    kv_out_text(out, "form", bundle ? "bundle" : "jws");
    kv_out_array(out, "checks");
    for (unsigned i = 0; i < checks; i++) {
        kv_out_open(out);
        kv_out_text(out, "id", kv_cert_check_name((enum kv_cert_check)i));
        kv_out_bool(out, "ok", report->checks[i].ok);
        kv_out_text(out, "detail", report->checks[i].detail);
        kv_out_close(out);
    }
    kv_out_array_end(out);
    if (report->ok) { /* nothing is said that was not verified */
        KV_TRY(write_claim(out, &report->payload, report->upgrade, info));
    }
    kv_out_close(out);
    return KV_OK;
}

KV_RC kv_h_certificate_verify(struct kv_call *call, struct kv_req *req)
{
    struct kv_cert_report *report KV_CLEANUP(kv_freep) = kv_alloc(sizeof *report);
    bool bundle = false;
    if (report == NULL) {
        return KV_E_NO_MEMORY;
    }
    if (req->body_type != KV_BODY_TEXT && req->body_type != KV_BODY_JOSE) {
        return kv_fail(&call->info, KV_E_UNSUPPORTED_MEDIA_TYPE,
                       "send the bundle as text/plain, or the certificate alone as application/jose");
    }
    if (req->body.len > VERIFY_BODY_MAX) {
        return kv_fail(&call->info, KV_E_BODY_TOO_LARGE, "a bundle has at most %u bytes", VERIFY_BODY_MAX);
    }
    KV_TRY(kv_svc_certificate_verify(call->svc, kv_buf_bytes(&req->body), &call->info, report, &bundle));
    enum kv_err rc = write_report(&req->response.body, report, bundle, &call->info);
    kv_buf_done(&report->payload);
    return rc;
}
