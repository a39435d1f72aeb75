/* What is seen of the tiers. */
#include "server/http/h_tier_out.h"
#include "server/service/svc_status.h"

#include <string.h>

static const char *state_of(const struct kv_tier_view *tier)
{
    return !tier->stats.up ? "down" : tier->draining ? "draining" : "up";
}

static void write_tier(struct kv_buf *out, const struct kv_tier_view *tier, bool numbers)
{
    kv_out_open(out);
    kv_out_text(out, "name", tier->name);
    kv_out_text(out, "state", state_of(tier));
    if (numbers) {
        kv_out_int(out, "capacity_bytes", tier->stats.capacity_bytes);
        kv_out_int(out, "used_bytes", tier->stats.used_bytes);
        kv_out_int(out, "objects", tier->stats.objects);
        kv_out_int(out, "read_bytes", tier->stats.read_bytes);
        kv_out_int(out, "written_bytes", tier->stats.written_bytes);
        kv_out_int(out, "errors", tier->stats.errors);
    }
    if (!tier->stats.up && tier->stats.reason != NULL && tier->stats.reason[0] != '\0') {
        kv_out_text(out, "reason", tier->stats.reason);
    }
    kv_out_close(out);
}

void kv_h_write_tiers(struct kv_buf *out, struct kv_svc *svc, bool numbers)
{
    struct kv_tier_view tier;
    for (int id = KV_TIER_DRAM; id <= KV_TIER_NVME; id++) {
        if (kv_svc_tier(svc, (enum kv_tier_id)id, &tier)) {
            write_tier(out, &tier, numbers);
        }
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
    kv_out_open(out);
    kv_out_array(out, "data");
    kv_h_write_tiers(out, call->svc, sees_numbers(call));
    kv_out_array_end(out);
    kv_out_close(out);
    return KV_OK;
}

static enum kv_tier_id tier_of(const struct kv_req *req)
{
    return strcmp(req->captures[0], "dram") == 0   ? KV_TIER_DRAM
           : strcmp(req->captures[0], "nvme") == 0 ? KV_TIER_NVME
                                                   : KV_TIER_NONE;
}

KV_RC kv_h_tier_get(struct kv_call *call, struct kv_req *req)
{
    struct kv_tier_view tier;
    if (!kv_svc_tier(call->svc, tier_of(req), &tier)) {
        return kv_fail(&call->info, KV_E_NOT_FOUND, "no such tier here; GET /v1/tiers names those that are");
    }
    write_tier(&req->response.body, &tier, sees_numbers(call));
    req->response.etag_rev = tier.rev;
    return KV_OK;
}

static void write_update(struct kv_buf *out, const void *view)
{
    write_tier(out, view, true);
}

KV_RC kv_h_tier_update(struct kv_call *call, struct kv_req *req)
{
    const struct kv_field fields[] = {
        {"state", KV_TEXT, true, 1, 16, "|up|draining|"},
        {"name", KV_TEXT | KV_H_IMMUTABLE, false, 1, 64, NULL},
        {"capacity_bytes", KV_INT | KV_H_IMMUTABLE, false, 0, INT64_MAX, NULL},
    };
    struct kv_json *body KV_CLEANUP(kv_json_freep) = NULL;
    struct kv_tier_view tier;
    KV_TRY(kv_h_patch(call, req, KV_FIELDS(fields), &body));
    bool draining = strcmp(kv_json_text(body, "state"), "draining") == 0;
    struct kv_h_answer answer = {.req = req, .status = 200, .write = write_update, .view = &tier, .rev = &tier.rev};
    kv_h_on_commit(call, &answer);
    KV_TRY(kv_svc_tier_update(call, tier_of(req), draining, &tier));
    return kv_h_answer(call, &answer);
}
