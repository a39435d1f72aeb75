/* Sessions. One that was erased answers 410 wherever it is named; that comes from the service. */
#include "server/http/h_labels.h"
#include "server/service/svc_session.h"

#include "dataplane/base/mem.h"

#include <stdio.h>
#include <string.h>

/* --- the answer -------------------------------------------------------------------------------------------------- */

static void write_usage(struct kv_buf *out, const struct kv_scope_usage *usage)
{
    kv_out_object(out, "usage");
    kv_out_int(out, "blocks", usage->blocks);
    kv_out_int(out, "dram_blocks", usage->dram_blocks);
    kv_out_int(out, "nvme_blocks", usage->nvme_blocks);
    kv_out_int(out, "dram_bytes", usage->dram_bytes);
    kv_out_int(out, "nvme_bytes", usage->nvme_bytes);
    kv_out_int(out, "plaintext_bytes", usage->plaintext_bytes);
    kv_out_close(out);
}

static void write_erasure(struct kv_buf *out, const struct kv_id *erasure)
{
    char id[KV_ID_TEXT_SIZE], link[96];
    kv_id_text("era", erasure, id);
    kv_out_object(out, "erasure");
    kv_out_text(out, "id", id);
    snprintf(link, sizeof link, "/v1/erasures/%s", id);
    kv_out_text(out, "self", link);
    snprintf(link, sizeof link, "/v1/erasures/%s/certificate", id);
    kv_out_text(out, "certificate", link);
    kv_out_close(out);
}

static void write_lifetimes(struct kv_buf *out, const struct kv_session_view *session)
{
    kv_out_time(out, "created_at", session->created_us);
    kv_h_out_time_if(out, "updated_at", session->updated_us);
    kv_h_out_time_if(out, "last_used_at", session->last_used_us);
    kv_h_out_time_if(out, "expires_at", session->expires_us);
    if (session->idle_seconds != 0) {
        kv_out_int(out, "idle_ttl_seconds", session->idle_seconds);
    }
    kv_h_out_time_if(out, "idle_at", session->idle_us);
    kv_h_out_time_if(out, "pinned_until", session->pinned_until_us);
}

static void write_key(struct kv_buf *out, const struct kv_session_key *key)
{
    kv_out_object(out, "key");
    kv_out_text(out, "state", key->state);
    kv_out_int(out, "version", key->version);
    if (key->has_fingerprint) {
        kv_out_hex(out, "fingerprint", key->fingerprint, sizeof key->fingerprint);
    }
    kv_out_close(out);
}

static void write_shared(struct kv_buf *out, const struct kv_id *scope)
{
    kv_out_object(out, "sharing_scope");
    kv_out_id(out, "id", "ses", scope);
    kv_out_close(out);
}

static void write_session(struct kv_buf *out, const void *view)
{
    const struct kv_session_view *session = view;
    kv_out_open(out);
    kv_out_id(out, "id", "ses", &session->id);
    kv_out_id(out, "tenant_id", "ten", &session->tenant);
    kv_out_text(out, "state", session->state);
    kv_out_text(out, "kind", session->is_scope ? "scope" : "session");
    kv_h_out_text_if(out, "external_id", session->external_id);
    kv_h_write_model(out, &session->model);
    kv_out_text(out, "class", session->class);
    kv_h_out_text_if(out, "region", session->region);
    if (session->labels.count > 0) {
        kv_h_write_labels(out, &session->labels);
    }
    if (!kv_id_is_zero(&session->shared)) {
        write_shared(out, &session->shared);
    }
    write_lifetimes(out, session);
    write_key(out, &session->key);
    if (session->has_usage) {
        write_usage(out, &session->usage);
    }
    if (!kv_id_is_zero(&session->erasure)) {
        write_erasure(out, &session->erasure);
    }
    kv_out_close(out);
}

static struct kv_h_answer answer_of(struct kv_req *req, const struct kv_session_view *session)
{
    return (struct kv_h_answer){
        .req = req, .status = 200, .write = write_session, .view = session, .rev = &session->rev};
}

/* --- making ------------------------------------------------------------------------------------------------------ */

struct made {
    struct kv_session_view session;
    bool existed;
};

static int made_status(const void *view)
{
    return ((const struct made *)view)->existed ? 200 : 201;
}

static void write_made(struct kv_buf *out, const void *view)
{
    write_session(out, &((const struct made *)view)->session);
}

static KV_RC read_new(struct kv_call *call, kv_value *body, struct kv_session_new *in)
{
    *in = (struct kv_session_new){.external_id = kv_json_text(body, "external_id"),
                                  .class = kv_json_text(body, "class"),
                                  .region = kv_json_text(body, "region"),
                                  .scope = kv_json_text(body, "sharing_scope"),
                                  .ttl_seconds = (uint64_t)kv_json_int(body, "ttl_seconds", 0),
                                  .idle_seconds = (uint64_t)kv_json_int(body, "idle_ttl_seconds", 0)};
    KV_TRY(kv_h_labels(call, body, false, &in->labels));
    return kv_h_model(call, body, &in->model);
}

KV_RC kv_h_session_create(struct kv_call *call, struct kv_req *req)
{
    const struct kv_field fields[] = {
        {"external_id", KV_TEXT, false, 1, KV_MAX_EXTERNAL_ID_BYTES, NULL},
        {"model", KV_OBJECT, true, 0, 0, NULL},
        {"labels", KV_OBJECT, false, 0, 0, NULL},
        {"ttl_seconds", KV_INT, false, 1, KV_MAX_SESSION_SECONDS, NULL},
        {"idle_ttl_seconds", KV_INT, false, 1, KV_MAX_SESSION_SECONDS, NULL},
        {"class", KV_TEXT, false, 1, 32, NULL},
        {"region", KV_TEXT, false, 1, 63, NULL},
        {"sharing_scope", KV_TEXT, false, 1, 128, NULL},
    };
    struct kv_json *body KV_CLEANUP(kv_json_freep) = NULL;
    struct kv_session_new in;
    struct made made;
    KV_TRY(kv_h_body(call, req, KV_FIELDS(fields), &body));
    KV_TRY(read_new(call, body, &in));
    struct kv_h_answer answer = {.req = req,
                                 .status_of = made_status,
                                 .write = write_made,
                                 .view = &made,
                                 .collection = "/v1/sessions",
                                 .prefix = "ses",
                                 .id = &made.session.id,
                                 .rev = &made.session.rev};
    kv_h_on_commit(call, &answer);
    KV_TRY(kv_svc_session_create(call, &in, &made.session, &made.existed));
    return kv_h_answer(call, &answer);
}

/* --- reading ----------------------------------------------------------------------------------------------------- */

const struct kv_field kv_q_session[] = {
    {"expand", KV_TEXT, false, 1, 16, "|usage|erasure|usage,erasure|erasure,usage|"},
    {.name = NULL},
};

KV_RC kv_h_session_get(struct kv_call *call, struct kv_req *req)
{
    struct kv_id id;
    struct kv_session_view session;
    const char *expand = kv_h_query_text(req, "expand");
    KV_TRY(kv_h_path_id(call, req, "ses", &id));
    KV_TRY(kv_svc_session_get(call, &id, expand != NULL && strstr(expand, "erasure") != NULL, &session));
    session.has_usage = expand == NULL || strstr(expand, "usage") != NULL;
    struct kv_h_answer answer = answer_of(req, &session);
    return kv_h_answer(call, &answer);
}

const struct kv_field kv_q_sessions[] = {
    {"external_id", KV_TEXT, false, 1, 256, NULL},
    {"label", KV_TEXT, false, 1, 256, NULL},
    {"state", KV_TEXT, false, 1, 16, "|active|held|erasing|erased|lost|"},
    {"model", KV_TEXT, false, 1, 128, NULL},
    {"idle_before", KV_TEXT, false, 1, 40, NULL},
    {"created_after", KV_TEXT, false, 1, 40, NULL},
    {"kind", KV_TEXT, false, 1, 16, "|session|scope|"},
    {.name = NULL},
};

KV_RC kv_h_session_list(struct kv_call *call, struct kv_req *req)
{
    struct kv_page page;
    struct kv_label label;
    bool has_label = false;
    size_t count = 0;
    KV_TRY(kv_h_page(call, req, &page));
    struct kv_session_filter filter = {.external_id = kv_h_query_text(req, "external_id"),
                                       .state = kv_h_query_text(req, "state"),
                                       .model = kv_h_query_text(req, "model")};
    KV_TRY(kv_h_query_label(call, req, &has_label, &label));
    filter.label = has_label ? &label : NULL;
    const char *kind = kv_h_query_text(req, "kind");
    filter.scopes = kind != NULL && strcmp(kind, "scope") == 0;
    KV_TRY(kv_h_query_time(call, req, "idle_before", &filter.idle_before_us));
    KV_TRY(kv_h_query_time(call, req, "created_after", &filter.created_after_us));
    struct kv_session_view *list KV_CLEANUP(kv_freep) = kv_alloc_array((size_t)KV_MAX_PAGE_ITEMS, sizeof *list);
    if (list == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(kv_svc_session_list(call, &filter, &page, list, &count));
    kv_h_list_begin(req);
    for (size_t i = 0; i < count; i++) {
        write_session(&req->response.body, &list[i]);
    }
    return kv_h_list_end(req, &page, count == 0 ? 0 : list[count - 1].created_us,
                         count == 0 ? NULL : &list[count - 1].id);
}

/* --- changing ---------------------------------------------------------------------------------------------------- */

KV_RC kv_h_session_update(struct kv_call *call, struct kv_req *req)
{
    const struct kv_field fields[] = {
        {"labels", KV_OBJECT, false, 0, 0, NULL},
        {"ttl_seconds", KV_INT | KV_H_NULLABLE, false, 1, KV_MAX_SESSION_SECONDS, NULL},
        {"idle_ttl_seconds", KV_INT | KV_H_NULLABLE, false, 1, KV_MAX_SESSION_SECONDS, NULL},
        {"external_id", KV_TEXT | KV_H_IMMUTABLE, false, 1, KV_MAX_TEXT_BYTES, NULL},
        {"model", KV_OBJECT | KV_H_IMMUTABLE, false, 0, 0, NULL},
        {"class", KV_TEXT | KV_H_IMMUTABLE, false, 1, KV_MAX_TEXT_BYTES, NULL},
        {"region", KV_TEXT | KV_H_IMMUTABLE, false, 1, KV_MAX_TEXT_BYTES, NULL},
        {"sharing_scope", KV_TEXT | KV_H_IMMUTABLE, false, 1, KV_MAX_TEXT_BYTES, NULL},
    };
    struct kv_json *body KV_CLEANUP(kv_json_freep) = NULL;
    struct kv_id id;
    struct kv_session_view session;
    KV_TRY(kv_h_path_id(call, req, "ses", &id));
    KV_TRY(kv_h_patch(call, req, KV_FIELDS(fields), &body));
    struct kv_session_patch patch = {.has_ttl = kv_json_get(body, "ttl_seconds") != NULL,
                                     .has_idle = kv_json_get(body, "idle_ttl_seconds") != NULL,
                                     .ttl_seconds = (uint64_t)kv_json_int(body, "ttl_seconds", 0),
                                     .idle_seconds = (uint64_t)kv_json_int(body, "idle_ttl_seconds", 0)};
    KV_TRY(kv_h_labels(call, body, true, &patch.labels));
    struct kv_h_answer answer = answer_of(req, &session);
    kv_h_on_commit(call, &answer);
    KV_TRY(kv_svc_session_update(call, &id, &patch, &session));
    return kv_h_answer(call, &answer);
}

/* A change that takes no members. */
static KV_RC without_body(struct kv_call *call, const struct kv_req *req, struct kv_id *ret_id)
{
    struct kv_json *body KV_CLEANUP(kv_json_freep) = NULL;
    KV_TRY(kv_h_path_id(call, req, "ses", ret_id));
    return kv_h_body(call, req, NULL, 0, &body);
}

KV_RC kv_h_session_touch(struct kv_call *call, struct kv_req *req)
{
    struct kv_id id;
    struct kv_session_view session;
    KV_TRY(without_body(call, req, &id));
    struct kv_h_answer answer = answer_of(req, &session);
    kv_h_on_commit(call, &answer);
    KV_TRY(kv_svc_session_touch(call, &id, &session));
    return kv_h_answer(call, &answer);
}

KV_RC kv_h_session_pin(struct kv_call *call, struct kv_req *req)
{
    const struct kv_field fields[] = {KV_REQUIRED_TEXT("until", 40)};
    struct kv_json *body KV_CLEANUP(kv_json_freep) = NULL;
    struct kv_id id;
    struct kv_session_view session;
    uint64_t until_us = 0;
    KV_TRY(kv_h_path_id(call, req, "ses", &id));
    KV_TRY(kv_h_body(call, req, KV_FIELDS(fields), &body));
    KV_TRY(kv_h_time(call, body, "until", &until_us));
    struct kv_h_answer answer = answer_of(req, &session);
    kv_h_on_commit(call, &answer);
    KV_TRY(kv_svc_session_pin(call, &id, until_us, &session));
    return kv_h_answer(call, &answer);
}

KV_RC kv_h_session_unpin(struct kv_call *call, struct kv_req *req)
{
    struct kv_id id;
    struct kv_session_view session;
    KV_TRY(without_body(call, req, &id));
    struct kv_h_answer answer = answer_of(req, &session);
    kv_h_on_commit(call, &answer);
    KV_TRY(kv_svc_session_pin(call, &id, 0, &session));
    return kv_h_answer(call, &answer);
}

/* The same as POST /v1/erasures with this session as its scope. */
KV_RC kv_h_session_delete(struct kv_call *call, struct kv_req *req)
{
    struct kv_erasure_new in = {.scope = KV_SCOPE_SESSION, .basis = "other"};
    KV_TRY(kv_h_path_id(call, req, "ses", &in.session));
    return kv_h_erase(call, req, &in);
}

/* --- explaining -------------------------------------------------------------------------------------------------- */

static void write_decision(struct kv_buf *out, const char *action, bool allowed, const char *reason)
{
    kv_out_open(out);
    kv_out_text(out, "action", action);
    kv_out_bool(out, "allowed", allowed);
    kv_h_out_text_if(out, "reason", reason);
    kv_out_close(out);
}

static void write_entries(struct kv_buf *out, const struct kv_explain_view *view)
{
    kv_out_array(out, "entries");
    for (size_t i = 0; i < view->entry_count; i++) {
        const struct kv_store_session_entry *entry = &view->entries[i];
        kv_out_open(out);
        kv_h_out_time_if(out, "at", entry->at_us);
        kv_out_text(out, "op", entry->op);
        kv_out_text(out, "outcome", entry->outcome);
        if (!kv_id_is_zero(&entry->actor)) {
            kv_out_id(out, "actor_id", "key", &entry->actor);
        }
        kv_out_close(out);
    }
    kv_out_array_end(out);
}

static void write_explain(struct kv_buf *out, const struct kv_explain_view *view)
{
    kv_out_open(out);
    kv_out_name(out, "session");
    write_session(out, &view->session);
    kv_out_text(out, "tenant_state", view->tenant_state);
    kv_out_array(out, "decisions");
    write_decision(out, "offload", view->offload_allowed, view->offload_reason);
    write_decision(out, "restore", view->restore_allowed, view->restore_reason);
    kv_out_array_end(out);
    write_entries(out, view);
    kv_out_close(out);
}

KV_RC kv_h_session_explain(struct kv_call *call, struct kv_req *req)
{
    struct kv_id id;
    struct kv_explain_view view;
    KV_TRY(without_body(call, req, &id));
    KV_TRY(kv_svc_session_explain(call, &id, &view));
    write_explain(&req->response.body, &view);
    return KV_OK;
}
