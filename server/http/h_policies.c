/*
 * Policies: the body of a PUT is the policy's own text, kept as it was sent and shown as it is kept. Texts of policies
 * in other bodies are members of them.
 */
#include "dataplane/base/mem.h"
#include "server/http/h_shared.h"
#include "server/service/svc_policy.h"

#include <stdlib.h>
#include <string.h>

#define LAST_USUAL 200
#define LAST_MAX 1000

/* --- out -----------------------------------------------------------------------------------------------------------
 */

static void write_meta(struct kv_buf *out, const struct kv_policy_view *view)
{
    static const struct kv_id none;
    if (!kv_id_equal(&view->tenant, &none)) {
        kv_out_id(out, "tenant_id", "ten", &view->tenant);
    }
    kv_out_int(out, "version", view->version);
    kv_out_hex(out, "sha256", view->sha256, sizeof view->sha256);
    kv_out_bool(out, "builtin", view->version == 0);
    kv_out_bool(out, "loosens", view->loosens);
    if (view->created_us != 0) {
        kv_out_time(out, "created_at", view->created_us);
    }
    if (!kv_id_equal(&view->created_by, &none)) {
        kv_out_id(out, "created_by", "key", &view->created_by);
    }
    kv_out_text(out, "created_role", view->created_role);
}

static void write_policy(struct kv_buf *out, const void *ctx)
{
    const struct kv_policy_view *view = ctx;
    kv_out_open(out);
    write_meta(out, view);
    kv_out_name(out, "policy");
    kv_buf_append(out, view->body.data, view->body.len); /* it was parsed: it is one JSON object */
    kv_out_close(out);
}

/* --- reading and changing ------------------------------------------------------------------------------------------
 */

static const struct kv_id platform;

/* The id that is all zero is no tenant's: below it stands for the platform, which has routes of its own. */
static KV_RC tenant_of_path(struct kv_call *call, const struct kv_req *req, struct kv_id *ret_tenant)
{
    KV_TRY(kv_h_path_id(call, req, "ten", ret_tenant));
    return kv_id_is_zero(ret_tenant) ? kv_fail(&call->info, KV_E_NOT_FOUND, "no such tenant") : KV_OK;
}

static KV_RC get(struct kv_call *call, struct kv_req *req, const struct kv_id *tenant)
{
    struct kv_policy_view view KV_CLEANUP(kv_policy_view_done);
    kv_policy_view_init(&view);
    KV_TRY(kv_svc_policy_get(call, tenant, &view));
    req->response.etag_rev = view.rev;
    write_policy(&req->response.body, &view);
    return KV_OK;
}

KV_RC kv_h_policy_get(struct kv_call *call, struct kv_req *req)
{
    struct kv_id tenant;
    KV_TRY(tenant_of_path(call, req, &tenant));
    return get(call, req, &tenant);
}

KV_RC kv_h_platform_policy_get(struct kv_call *call, struct kv_req *req)
{
    return get(call, req, &platform);
}

static KV_RC put(struct kv_call *call, struct kv_req *req, const struct kv_id *tenant)
{
    struct kv_policy_view view KV_CLEANUP(kv_policy_view_done);
    kv_policy_view_init(&view);
    struct kv_h_answer answer = {.req = req, .status = 200, .write = write_policy, .view = &view, .rev = &view.rev};
    kv_h_on_commit(call, &answer);
    KV_TRY(kv_svc_policy_put(call, tenant, kv_buf_bytes(&req->body), &view));
    return kv_h_answer(call, &answer);
}

KV_RC kv_h_policy_put(struct kv_call *call, struct kv_req *req)
{
    struct kv_id tenant;
    KV_TRY(tenant_of_path(call, req, &tenant));
    return put(call, req, &tenant);
}

KV_RC kv_h_platform_policy_put(struct kv_call *call, struct kv_req *req)
{
    return put(call, req, &platform);
}

/* --- versions ------------------------------------------------------------------------------------------------------
 */

static KV_RC list(struct kv_call *call, struct kv_req *req, const struct kv_id *tenant)
{
    struct kv_page page;
    size_t count = 0;
    KV_TRY(kv_h_page(call, req, &page));
    struct kv_policy_view *views KV_CLEANUP(kv_freep) = kv_alloc_array(page.limit + (size_t)1, sizeof *views);
    if (views == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(kv_svc_policy_versions(call, tenant, &page, views, &count));
    kv_h_list_begin(req);
    for (size_t i = 0; i < count; i++) {
        kv_out_open(&req->response.body);
        write_meta(&req->response.body, &views[i]);
        kv_out_close(&req->response.body);
    }
    const struct kv_policy_view *last = count == 0 ? NULL : &views[count - 1];
    return kv_h_list_end(req, &page, last == NULL ? 0 : last->created_us, last == NULL ? NULL : &last->id);
}

KV_RC kv_h_policy_versions(struct kv_call *call, struct kv_req *req)
{
    struct kv_id tenant;
    KV_TRY(tenant_of_path(call, req, &tenant));
    return list(call, req, &tenant);
}

KV_RC kv_h_platform_policy_versions(struct kv_call *call, struct kv_req *req)
{
    return list(call, req, &platform);
}

static KV_RC version(struct kv_call *call, struct kv_req *req, const struct kv_id *tenant, const char *number)
{
    struct kv_policy_view view KV_CLEANUP(kv_policy_view_done);
    kv_policy_view_init(&view);
    size_t len = strlen(number);
    if (len > 9 || strspn(number, "0123456789") != len || number[0] == '0') {
        return kv_fail(&call->info, KV_E_NOT_FOUND, "there is no such version");
    }
    KV_TRY(kv_svc_policy_version(call, tenant, strtoull(number, NULL, 10), &view));
    req->response.etag_rev = view.rev;
    write_policy(&req->response.body, &view);
    return KV_OK;
}

KV_RC kv_h_policy_version(struct kv_call *call, struct kv_req *req)
{
    struct kv_id tenant;
    KV_TRY(tenant_of_path(call, req, &tenant));
    return version(call, req, &tenant, req->captures[1]);
}

KV_RC kv_h_platform_policy_version(struct kv_call *call, struct kv_req *req)
{
    return version(call, req, &platform, req->captures[0]);
}

/* --- asking --------------------------------------------------------------------------------------------------------
 */

/* A member's text, which what reads policies parses again; empty when it is absent. */
static KV_RC text_of(kv_value *body, const char *name, struct kv_buf *text)
{
    kv_value *value = kv_json_get(body, name);
    return value == NULL ? KV_OK : kv_json_canonical(value, text);
}

static KV_RC tenant_of(struct kv_call *call, kv_value *body, struct kv_id *ret_tenant)
{
    if (kv_json_text(body, "tenant_id") == NULL) {
        *ret_tenant = (struct kv_id){{0}};
        return KV_OK;
    }
    return kv_json_id(body, "", "tenant_id", "ten", ret_tenant, &call->info);
}

static void write_reasons(struct kv_buf *out, uint32_t reasons)
{
    kv_out_array(out, "reasons");
    for (unsigned i = 0; i < KV_POLICY_REASONS; i++) {
        if ((reasons & 1u << i) != 0) {
            kv_out_text(out, NULL, kv_policy_reason_name(1u << i));
        }
    }
    kv_out_array_end(out);
}

static void write_decision(struct kv_buf *out, const struct kv_policy_answer *answer)
{
    static const char *const tiers[KV_POLICY_TIERS] = {"none", "dram", "nvme", "object"};
    const struct kv_policy_decision *decision = &answer->decision;
    kv_out_text(out, "decision", decision->allowed ? "allow" : "deny");
    write_reasons(out, decision->reasons);
    kv_out_array(out, "tiers");
    for (unsigned t = KV_TIER_DRAM; t < KV_POLICY_TIERS; t++) {
        if ((decision->tiers_allowed & 1u << t) != 0) {
            kv_out_text(out, NULL, tiers[t]);
        }
    }
    kv_out_array_end(out);
    kv_out_array(out, "obligations");
    for (uint32_t bit = 1; bit <= KV_POLICY_OBLIGATIONS_ALL; bit <<= 1) {
        if ((decision->obligations & bit) != 0) {
            kv_out_text(out, NULL, kv_policy_obligation_name(bit));
        }
    }
    kv_out_array_end(out);
    if (decision->allowed && decision->lifetime_s != KV_POLICY_NO_LIMIT) {
        kv_out_int(out, "lifetime_seconds", decision->lifetime_s);
    }
}

static void write_evaluation(struct kv_buf *out, const struct kv_policy_answer *answer,
                             const struct kv_policy_answer *other)
{
    kv_out_open(out);
    write_decision(out, answer);
    kv_out_int(out, "version", answer->versions[1]);
    kv_out_int(out, "platform_version", answer->versions[0]);
    if (other != NULL) {
        kv_out_object(out, "with");
        write_decision(out, other);
        kv_out_close(out);
        kv_out_bool(out, "would_change",
                    answer->decision.reasons != other->decision.reasons ||
                        answer->decision.tiers_allowed != other->decision.tiers_allowed);
    }
    kv_out_close(out);
}

static void buf_done(struct kv_buf *buf)
{
    kv_buf_done(buf);
}

KV_RC kv_h_policy_evaluate(struct kv_call *call, struct kv_req *req)
{
    const struct kv_field fields[] = {
        {"tenant_id", KV_TEXT, false, 1, 40, NULL},
        {"session_id", KV_TEXT, false, 1, 40, NULL},
        {"ask", KV_OBJECT, true, 0, 0, NULL},
        {"policy", KV_OBJECT, false, 0, 0, NULL},
    };
    struct kv_json *body KV_CLEANUP(kv_json_freep) = NULL;
    struct kv_buf question KV_CLEANUP(buf_done), policy KV_CLEANUP(buf_done);
    struct kv_policy_ask ask = {0};
    struct kv_policy_answer answer = {0}, other = {0};
    kv_buf_init(&question, (size_t)KV_MAX_BODY_BYTES);
    kv_buf_init(&policy, (size_t)KV_MAX_BODY_BYTES);
    KV_TRY(kv_h_body(call, req, KV_FIELDS(fields), &body));
    KV_TRY(tenant_of(call, body, &ask.tenant));
    ask.has_session = kv_json_text(body, "session_id") != NULL;
    if (ask.has_session) {
        KV_TRY(kv_json_id(body, "", "session_id", "ses", &ask.session, &call->info));
    }
    KV_TRY(text_of(body, "ask", &question));
    KV_TRY(text_of(body, "policy", &policy));
    ask.question = kv_buf_bytes(&question);
    ask.policy = kv_buf_bytes(&policy);
    KV_TRY(kv_svc_policy_evaluate(call, &ask, &answer, &other));
    write_evaluation(&req->response.body, &answer, policy.len > 0 ? &other : NULL);
    return KV_OK;
}

static void write_diff(struct kv_buf *out, const struct kv_policy_diff *diff)
{
    kv_out_open(out);
    kv_out_bool(out, "loosens", kv_policy_loosens(diff));
    kv_out_bool(out, "complete", diff->complete);
    kv_out_int(out, "cases", diff->cases);
    kv_out_int(out, "newly_allowed", diff->newly_allowed);
    kv_out_int(out, "newly_denied", diff->newly_denied);
    kv_out_array(out, "changes");
    for (uint32_t i = 0; i < diff->change_count; i++) {
        kv_out_open(out);
        kv_out_text(out, "effect", diff->changes[i].allows ? "allows" : "denies");
        kv_out_text(out, "what", diff->changes[i].text);
        kv_out_close(out);
    }
    kv_out_array_end(out);
    kv_out_close(out);
}

KV_RC kv_h_policy_diff(struct kv_call *call, struct kv_req *req)
{
    const struct kv_field fields[] = {
        {"tenant_id", KV_TEXT, false, 1, 40, NULL},
        {"from", KV_OBJECT, false, 0, 0, NULL},
        {"to", KV_OBJECT, true, 0, 0, NULL},
    };
    struct kv_json *body KV_CLEANUP(kv_json_freep) = NULL;
    struct kv_buf from KV_CLEANUP(buf_done), to KV_CLEANUP(buf_done);
    struct kv_policy_pair pair = {0};
    struct kv_policy_diff *diff KV_CLEANUP(kv_freep) = kv_alloc(sizeof *diff);
    kv_buf_init(&from, (size_t)KV_MAX_BODY_BYTES);
    kv_buf_init(&to, (size_t)KV_MAX_BODY_BYTES);
    if (diff == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(kv_h_body(call, req, KV_FIELDS(fields), &body));
    KV_TRY(tenant_of(call, body, &pair.tenant));
    KV_TRY(text_of(body, "from", &from));
    KV_TRY(text_of(body, "to", &to));
    pair.from = kv_buf_bytes(&from);
    pair.to = kv_buf_bytes(&to);
    KV_TRY(kv_svc_policy_diff(call, &pair, diff));
    write_diff(&req->response.body, diff);
    return KV_OK;
}

static void write_counts(struct kv_buf *out, const char *name, const uint64_t counts[KV_POLICY_REASONS])
{
    kv_out_object(out, name);
    for (unsigned i = 0; i < KV_POLICY_REASONS; i++) {
        if (counts[i] != 0) {
            kv_out_int(out, kv_policy_reason_name(1u << i), counts[i]);
        }
    }
    kv_out_close(out);
}

KV_RC kv_h_policy_dry_run(struct kv_call *call, struct kv_req *req)
{
    const struct kv_field fields[] = {
        {"tenant_id", KV_TEXT, false, 1, 40, NULL},
        {"policy", KV_OBJECT, true, 0, 0, NULL},
        {"last", KV_INT, false, 1, LAST_MAX, NULL},
    };
    struct kv_json *body KV_CLEANUP(kv_json_freep) = NULL;
    struct kv_buf to KV_CLEANUP(buf_done);
    struct kv_policy_pair pair = {0};
    struct kv_policy_replay replay;
    struct kv_buf *out = &req->response.body;
    kv_buf_init(&to, (size_t)KV_MAX_BODY_BYTES);
    KV_TRY(kv_h_body(call, req, KV_FIELDS(fields), &body));
    KV_TRY(tenant_of(call, body, &pair.tenant));
    KV_TRY(text_of(body, "policy", &to));
    pair.to = kv_buf_bytes(&to);
    KV_TRY(kv_svc_policy_dry_run(call, &pair, (unsigned)kv_json_int(body, "last", LAST_USUAL), &replay));
    kv_out_open(out);
    kv_out_int(out, "replayed", replay.replayed);
    kv_out_int(out, "unknown", replay.unknown);
    kv_out_int(out, "newly_allowed", replay.newly_allowed);
    kv_out_int(out, "newly_denied", replay.newly_denied);
    write_counts(out, "denied_by", replay.denied_by);
    write_counts(out, "allowed_by", replay.allowed_by);
    kv_out_close(out);
    return KV_OK;
}
