/* What an operator sees of the tiers, and emptying the memory tier. */
#include "server/http/h_shared.h"

static void write_tier(struct kv_buf *out, const char *name, const struct kv_tier_stats *tier)
{
    kv_out_open(out);
    kv_out_text(out, "name", name);
    kv_out_text(out, "state", tier->up ? "up" : "down");
    kv_out_int(out, "capacity_bytes", tier->capacity_bytes);
    kv_out_int(out, "used_bytes", tier->used_bytes);
    kv_out_int(out, "objects", tier->objects);
    if (!tier->up && tier->reason != NULL && tier->reason[0] != '\0') {
        kv_out_text(out, "reason", tier->reason);
    }
    kv_out_close(out);
}

KV_RC kv_h_tiers(struct kv_call *call, struct kv_req *req)
{
    struct kv_buf *out = &req->response.body;
    struct kv_engine_stats stats;
    kv_svc_stats(call->svc, &stats);
    kv_out_open(out);
    kv_out_array(out, "data");
    write_tier(out, "dram", &stats.dram);
    if (stats.nvme.up || stats.nvme.capacity_bytes > 0) { /* else there is none */
        write_tier(out, "nvme", &stats.nvme);
    }
    kv_out_array_end(out);
    kv_out_close(out);
    return KV_OK;
}

KV_RC kv_h_tier_drain(struct kv_call *call, struct kv_req *req)
{
    struct kv_json *body KV_CLEANUP(kv_json_freep) = NULL;
    uint64_t blocks = 0;
    if (req->body.len > 0) {
        KV_TRY(kv_h_body(call, req, NULL, 0, &body));
    }
    KV_TRY(kv_svc_drain_dram(call, &blocks));
    kv_out_open(&req->response.body);
    kv_out_int(&req->response.body, "blocks", blocks);
    kv_out_close(&req->response.body);
    return KV_OK;
}
