/* The audit log as people read it. Hashes are base64 where checkpoints have them so, and hex where ids are. */
#include "server/http/h_shared.h"
#include "server/service/svc_audit.h"

#include "dataplane/base/mem.h"

#include <string.h>

#define INDEX_MAX INT64_C(9007199254740991)

const struct kv_field kv_q_audit_entries[] = {
    {"op", KV_TEXT, false, 1, 32, NULL},
    {"outcome", KV_TEXT, false, 1, 32, NULL},
    {"actor", KV_TEXT, false, 1, 40, NULL},
    {"session_id", KV_TEXT, false, 1, 40, NULL},
    {"from", KV_TEXT, false, 1, 40, NULL},
    {"to", KV_TEXT, false, 1, 40, NULL},
    {0},
};
const struct kv_field kv_q_audit_inclusion[] = {
    {"index", KV_INT, true, 0, INDEX_MAX, NULL},
    {"size", KV_INT, false, 1, INDEX_MAX, NULL},
    {0},
};
const struct kv_field kv_q_audit_consistency[] = {
    {"from", KV_INT, true, 1, INDEX_MAX, NULL},
    {"to", KV_INT, false, 1, INDEX_MAX, NULL},
    {0},
};
const struct kv_field kv_q_audit_export[] = {
    {"from", KV_INT, false, 0, INDEX_MAX, NULL},
    {"to", KV_INT, false, 1, INDEX_MAX, NULL},
    {0},
};

/* --- entries ----------------------------------------------------------------------------------------------------- */

static void write_entry(struct kv_buf *out, const struct kv_store_leaf_row *row)
{
    kv_out_open(out);
    kv_out_int(out, "index", row->idx);
    if (row->facts.at_us != 0) {
        kv_out_time(out, "at", row->facts.at_us);
    }
    if (row->facts.op[0] != '\0') {
        kv_out_text(out, "op", row->facts.op);
        kv_out_text(out, "outcome", row->facts.outcome);
    }
    if (!kv_id_is_zero(&row->facts.actor)) {
        kv_out_id(out, "actor", "key", &row->facts.actor);
    }
    if (!kv_id_is_zero(&row->facts.session)) {
        kv_out_id(out, "session_id", "ses", &row->facts.session);
    }
    kv_out_hex(out, "leaf_hash", row->hash, sizeof row->hash);
    char *text KV_CLEANUP(kv_freep) = kv_alloc(row->entry.len + 1);
    if (text == NULL) {
        out->failed = out->out_of_memory = true;
        return;
    }
    memcpy(text, row->entry.data, row->entry.len);
    kv_out_text(out, "entry", text);
    kv_out_close(out);
}

KV_RC kv_h_audit_entries(struct kv_call *call, struct kv_req *req)
{
    struct kv_page page;
    struct kv_store_leaf_page entries = {0};
    struct kv_audit_filter filter = {.op = kv_h_query_text(req, "op"), .outcome = kv_h_query_text(req, "outcome")};
    KV_TRY(kv_h_page(call, req, &page));
    KV_TRY(kv_h_query_id(call, req, "actor", "key", &filter.actor));
    KV_TRY(kv_h_query_id(call, req, "session_id", "ses", &filter.session));
    KV_TRY(kv_h_query_time(call, req, "from", &filter.from_us));
    KV_TRY(kv_h_query_time(call, req, "to", &filter.to_us));
    KV_TRY(kv_svc_audit_list(call, &filter, &page, &entries));
    kv_h_list_begin(req);
    for (size_t i = 0; i < entries.count; i++) {
        write_entry(&req->response.body, &entries.rows[i]);
    }
    struct kv_id last = kv_audit_place_id(entries.count == 0 ? 0 : entries.rows[entries.count - 1].idx);
    enum kv_err rc = kv_h_list_end(req, &page, 0, entries.count == 0 ? NULL : &last);
    kv_store_leaf_page_done(&entries);
    return rc;
}

/* --- the head and proofs ----------------------------------------------------------------------------------------- */

KV_RC kv_h_audit_checkpoint(struct kv_call *call, struct kv_req *req)
{
    req->response.content_type = "text/plain; charset=utf-8";
    return kv_svc_audit_checkpoint(call, &req->response.body);
}

static void write_base64(struct kv_buf *out, const char *name, const struct kv_hash *hash)
{
    char text[48];
    kv_base64_encode(hash->b, sizeof hash->b, text);
    kv_out_text(out, name, text);
}

static void write_hashes(struct kv_buf *out, const struct kv_audit_proof *proof)
{
    kv_out_array(out, "hashes");
    for (size_t i = 0; i < proof->count; i++) {
        write_base64(out, NULL, &proof->hashes[i]);
    }
    kv_out_array_end(out);
}

/* The query's table knows no required ones. */
static KV_RC require(struct kv_call *call, const struct kv_req *req, const char *name)
{
    return kv_h_query_text(req, name) != NULL
               ? KV_OK
               : kv_fail(&call->info, KV_E_INVALID_REQUEST, "the parameter %s is missing", name);
}

KV_RC kv_h_audit_inclusion(struct kv_call *call, struct kv_req *req)
{
    struct kv_audit_proof proof;
    struct kv_buf *out = &req->response.body;
    KV_TRY(require(call, req, "index"));
    KV_TRY(kv_svc_audit_inclusion(call, (uint64_t)kv_h_query_int(req, "index", 0),
                                  (uint64_t)kv_h_query_int(req, "size", 0), &proof));
    kv_out_open(out);
    kv_out_int(out, "index", proof.index);
    kv_out_int(out, "size", proof.size);
    write_base64(out, "leaf_hash", &proof.leaf);
    write_hashes(out, &proof);
    kv_out_close(out);
    return KV_OK;
}

KV_RC kv_h_audit_consistency(struct kv_call *call, struct kv_req *req)
{
    struct kv_audit_proof proof;
    struct kv_buf *out = &req->response.body;
    KV_TRY(require(call, req, "from"));
    KV_TRY(kv_svc_audit_consistency(call, (uint64_t)kv_h_query_int(req, "from", 0),
                                    (uint64_t)kv_h_query_int(req, "to", 0), &proof));
    kv_out_open(out);
    kv_out_int(out, "from", proof.from);
    kv_out_int(out, "to", proof.to);
    write_hashes(out, &proof);
    kv_out_close(out);
    return KV_OK;
}

KV_RC kv_h_audit_export(struct kv_call *call, struct kv_req *req)
{
    req->response.content_type = "application/x-tar";
    req->response.body.max = (size_t)KV_MAX_EXPORT_BYTES;
    return kv_svc_audit_export(call, (uint64_t)kv_h_query_int(req, "from", 0), (uint64_t)kv_h_query_int(req, "to", 0),
                               &req->response.body);
}
