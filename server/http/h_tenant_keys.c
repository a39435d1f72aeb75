/* Versions of a tenant's key, to look at; rotating it is an operation (h_operations.c). Never a key's bytes. */
#include "server/http/h_shared.h"
#include "server/service/svc_tenant_key.h"

#include "dataplane/base/mem.h"

static void write_version(struct kv_buf *out, const struct kv_tenant_key_view *key)
{
    const struct kv_store_tenant_key *row = &key->row;
    kv_out_open(out);
    kv_out_int(out, "version", row->version);
    kv_out_text(out, "state", key->state);
    if (row->has_fingerprint) {
        kv_out_hex(out, "fingerprint", row->fingerprint, sizeof row->fingerprint);
    }
    kv_out_int(out, "sessions", row->sessions);
    kv_out_time(out, "created_at", row->created_us);
    kv_h_out_time_if(out, "activated_at", row->activated_us);
    kv_h_out_time_if(out, "compromised_at", row->compromised_us);
    kv_h_out_time_if(out, "destroyed_at", row->destroyed_us);
    if (!kv_id_is_zero(&row->operation)) {
        kv_out_id(out, "made_by", "opr", &row->operation);
    }
    if (!kv_id_is_zero(&row->ended_by)) {
        kv_out_id(out, "ended_by", "opr", &row->ended_by);
    }
    kv_out_close(out);
}

KV_RC kv_h_tenant_keys(struct kv_call *call, struct kv_req *req)
{
    struct kv_page page;
    struct kv_id tenant;
    size_t count = 0;
    KV_TRY(kv_h_path_id(call, req, "ten", &tenant));
    KV_TRY(kv_h_page(call, req, &page));
    struct kv_tenant_key_view *list KV_CLEANUP(kv_freep) = kv_alloc_array((size_t)KV_MAX_PAGE_ITEMS, sizeof *list);
    if (list == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(kv_svc_tenant_key_list(call, &tenant, &page, list, &count));
    kv_h_list_begin(req);
    for (size_t i = 0; i < count; i++) {
        write_version(&req->response.body, &list[i]);
    }
    const struct kv_store_tenant_key *last = count == 0 ? NULL : &list[count - 1].row;
    return kv_h_list_end(req, &page, last == NULL ? 0 : last->created_us, last == NULL ? NULL : &last->id);
}
