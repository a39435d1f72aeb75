/* What is seen of the tiers. */
#include "server/http/h_tier_out.h"

#include <string.h>

static bool has_nvme(const struct kv_engine_stats *stats)
{
    return stats->nvme.up || stats->nvme.capacity_bytes > 0;
}

static void write_tier(struct kv_buf *out, const char *name, const struct kv_tier_stats *tier, bool numbers)
{
    kv_out_open(out);
    kv_out_text(out, "name", name);
    kv_out_text(out, "state", tier->up ? "up" : "down");
    if (numbers) {
        kv_out_int(out, "capacity_bytes", tier->capacity_bytes);
        kv_out_int(out, "used_bytes", tier->used_bytes);
        kv_out_int(out, "objects", tier->objects);
        kv_out_int(out, "read_bytes", tier->read_bytes);
        kv_out_int(out, "written_bytes", tier->written_bytes);
        kv_out_int(out, "errors", tier->errors);
    }
    if (!tier->up && tier->reason != NULL && tier->reason[0] != '\0') {
        kv_out_text(out, "reason", tier->reason);
    }
    kv_out_close(out);
}

void kv_h_write_tiers(struct kv_buf *out, const struct kv_engine_stats *stats, bool numbers)
{
    write_tier(out, "dram", &stats->dram, numbers);
    if (has_nvme(stats)) {
        write_tier(out, "nvme", &stats->nvme, numbers);
    }
}

/* How full the machine is is not a tenant's business. */
static bool sees_numbers(const struct kv_call *call)
{
    return kv_id_is_zero(&call->who.tenant);
}

KV_RC kv_h_tiers(struct kv_call *call, struct kv_req *req)
{
    struct kv_buf *out = &req->response.body;
    struct kv_engine_stats stats;
    kv_svc_stats(call->svc, &stats);
    kv_out_open(out);
    kv_out_array(out, "data");
    kv_h_write_tiers(out, &stats, sees_numbers(call));
    kv_out_array_end(out);
    kv_out_close(out);
    return KV_OK;
}

KV_RC kv_h_tier_get(struct kv_call *call, struct kv_req *req)
{
    struct kv_engine_stats stats;
    kv_svc_stats(call->svc, &stats);
    bool dram = strcmp(req->captures[0], "dram") == 0;
    if (!dram && (strcmp(req->captures[0], "nvme") != 0 || !has_nvme(&stats))) {
        return kv_fail(&call->info, KV_E_NOT_FOUND, "no such tier here; GET /v1/tiers names those that are");
    }
    write_tier(&req->response.body, dram ? "dram" : "nvme", dram ? &stats.dram : &stats.nvme, sees_numbers(call));
    return KV_OK;
}
