/* Engines, their heartbeat, and the pools of memory that they hand over. */
#include "dataplane/base/mem.h"
#include "server/http/h_shared.h"
#include "server/service/svc_status.h"

#include <stdio.h>

static void write_lease(struct kv_buf *out, const struct kv_engine_view *engine)
{
    kv_out_time(out, "lease_expires_at", engine->lease_expires_us);
    kv_out_int(out, "lease_seconds", engine->lease_seconds);
    kv_out_id(out, "server_incarnation", "inc", &engine->server_incarnation);
}

static void write_engine(struct kv_svc *svc, struct kv_buf *out, const struct kv_engine_view *engine)
{
    struct kv_about about;
    kv_svc_about(svc, &about);
    kv_out_open(out);
    kv_out_id(out, "id", "eng", &engine->id);
    write_lease(out, engine);
    kv_out_object(out, "limits");
    kv_out_int(out, "blocks_per_call", (uint64_t)KV_MAX_BLOCKS_PER_CALL);
    kv_out_int(out, "block_bytes", about.block_bytes_max);
    kv_out_int(out, "pools_per_engine", (uint64_t)KV_MAX_POOLS_PER_ENGINE);
    kv_out_close(out);
    kv_out_close(out);
}

static KV_RC read_engine(struct kv_call *call, const struct kv_req *req, struct kv_engine_new *ret_engine)
{
    const struct kv_field fields[] = {
        KV_REQUIRED_TEXT("name", 128),
        {"kind", KV_TEXT, true, 1, 16, "|llamacpp|sim|vllm|sglang|other|"},
        KV_REQUIRED_TEXT("engine_version", 128),
        {"pid", KV_INT, true, 1, INT32_MAX, NULL},
        KV_REQUIRED_TEXT("boot_id", 64),
        {"model", KV_OBJECT, true, 0, 0, NULL},
        {"lease_seconds", KV_INT, false, 2, 60, NULL},
    };
    struct kv_json *body KV_CLEANUP(kv_json_freep) = NULL;
    KV_TRY(kv_h_body(call, req, KV_FIELDS(fields), &body));
    struct kv_engine_new in = {.pid = kv_json_int(body, "pid", 0),
                               .lease_seconds = (uint32_t)kv_json_int(body, "lease_seconds", 0)};
    KV_TRY(kv_h_model(call, body, &in.model));
    kv_h_copy(in.name, sizeof in.name, kv_json_text(body, "name"));
    kv_h_copy(in.kind, sizeof in.kind, kv_json_text(body, "kind"));
    kv_h_copy(in.engine_version, sizeof in.engine_version, kv_json_text(body, "engine_version"));
    kv_h_copy(in.boot_id, sizeof in.boot_id, kv_json_text(body, "boot_id"));
    *ret_engine = in;
    return KV_OK;
}

KV_RC kv_h_engine_register(struct kv_call *call, struct kv_req *req)
{
    struct kv_engine_new in;
    struct kv_engine_view engine;
    KV_TRY(read_engine(call, req, &in));
    KV_TRY(kv_svc_engine_register(call, &in, &engine));
    req->response.status = engine.existed ? 200 : 201;
    kv_h_location(req, "/v1/engines", "eng", &engine.id);
    write_engine(call->svc, &req->response.body, &engine);
    return KV_OK;
}

KV_RC kv_h_engine_heartbeat(struct kv_call *call, struct kv_req *req)
{
    const struct kv_field fields[] = {{"seq", KV_INT, true, 0, (INT64_C(1) << 53) - 1, NULL}};
    struct kv_json *body KV_CLEANUP(kv_json_freep) = NULL;
    struct kv_id id;
    struct kv_heartbeat_view view;
    struct kv_buf *out = &req->response.body;
    KV_TRY(kv_h_path_id(call, req, "eng", &id));
    KV_TRY(kv_h_body(call, req, KV_FIELDS(fields), &body));
    KV_TRY(kv_svc_engine_heartbeat(call, &id, &view));
    kv_out_open(out);
    write_lease(out, &view.engine);
    kv_out_array(out, "revocations");
    for (size_t i = 0; i < view.revoked_count; i++) {
        kv_out_open(out);
        kv_out_id(out, "session_id", "ses", &view.revoked[i]);
        kv_out_close(out);
    }
    kv_out_array_end(out);
    kv_out_close(out);
    return KV_OK;
}

KV_RC kv_h_engine_remove(struct kv_call *call, struct kv_req *req)
{
    struct kv_id id;
    KV_TRY(kv_h_path_id(call, req, "eng", &id));
    req->response.status = 204;
    return kv_svc_engine_remove(call, &id);
}

/* --- reading ----------------------------------------------------------------------------------------------------- */

static void write_item(struct kv_buf *out, const struct kv_engine_item *engine)
{
    kv_out_open(out);
    kv_out_id(out, "id", "eng", &engine->id);
    kv_out_id(out, "tenant_id", "ten", &engine->tenant);
    kv_out_text(out, "name", engine->facts.name);
    kv_out_text(out, "kind", engine->facts.kind);
    kv_out_text(out, "engine_version", engine->facts.engine_version);
    kv_out_int(out, "pid", (uint64_t)engine->facts.pid);
    kv_h_write_model(out, &engine->facts.model);
    kv_out_int(out, "pools", engine->pools);
    kv_out_time(out, "registered_at", engine->registered_us);
    kv_out_time(out, "lease_expires_at", engine->lease_expires_us);
    kv_out_int(out, "lease_seconds", engine->facts.lease_seconds);
    kv_out_close(out);
}

KV_RC kv_h_engine_list(struct kv_call *call, struct kv_req *req)
{
    struct kv_page page;
    size_t count = 0;
    KV_TRY(kv_h_page(call, req, &page));
    struct kv_engine_item *items = kv_alloc_array((size_t)KV_MAX_ENGINES, sizeof *items);
    if (items == NULL) {
        return kv_fail(&call->info, KV_E_NO_MEMORY, "no memory for the list");
    }
    enum kv_err rc = kv_svc_engine_list(call, &page, items, &count);
    if (rc == KV_OK) {
        kv_h_list_begin(req);
        for (size_t i = 0; i < count; i++) {
            write_item(&req->response.body, &items[i]);
        }
        const struct kv_engine_item *last = count > 0 ? &items[count - 1] : NULL;
        rc = kv_h_list_end(req, &page, last == NULL ? 0 : last->registered_us, last == NULL ? NULL : &last->id);
    }
    kv_free(items);
    return rc;
}

KV_RC kv_h_engine_get(struct kv_call *call, struct kv_req *req)
{
    struct kv_id id;
    struct kv_engine_item item;
    KV_TRY(kv_h_path_id(call, req, "eng", &id));
    KV_TRY(kv_svc_engine_get(call, &id, &item));
    write_item(&req->response.body, &item);
    return KV_OK;
}

/* --- pools ------------------------------------------------------------------------------------------------------- */

static KV_RC read_memory(struct kv_call *call, kv_value *memory, struct kv_pool_new *pool)
{
    const struct kv_field fields[] = {
        {"kind", KV_TEXT, true, 1, 16, "|memfd|"},
        KV_REQUIRED_TEXT("fd_token", sizeof pool->fd_token - 1),
        {"size_bytes", KV_INT, true, 1, KV_MAX_POOL_BYTES, NULL},
    };
    KV_TRY(kv_json_check(memory, "/memory", KV_FIELDS(fields), &call->info));
    kv_h_copy(pool->fd_token, sizeof pool->fd_token, kv_json_text(memory, "fd_token"));
    pool->spec.size_bytes = (uint64_t)kv_json_int(memory, "size_bytes", 0);
    return KV_OK;
}

static KV_RC read_region(struct kv_call *call, kv_value *value, size_t index, struct kv_region *ret_region)
{
    const struct kv_field fields[] = {
        {"offset_bytes", KV_INT, true, 0, KV_MAX_POOL_BYTES, NULL},
        {"stride_bytes", KV_INT, true, 1, KV_MAX_POOL_BYTES, NULL},
        {"run_bytes", KV_INT, true, 1, KV_MAX_POOL_BYTES, NULL},
    };
    char pointer[40];
    snprintf(pointer, sizeof pointer, "/layout/regions/%zu", index);
    if (!kv_json_is_object(value)) {
        return kv_fail_at(&call->info, KV_E_INVALID_REQUEST, pointer, "must be an object");
    }
    KV_TRY(kv_json_check(value, pointer, KV_FIELDS(fields), &call->info));
    *ret_region = (struct kv_region){.offset_bytes = (uint64_t)kv_json_int(value, "offset_bytes", 0),
                                     .stride_bytes = (uint64_t)kv_json_int(value, "stride_bytes", 0),
                                     .run_bytes = (uint64_t)kv_json_int(value, "run_bytes", 0)};
    return KV_OK;
}

/* What both kinds of layout say. The texts are borrowed from the body. */
static void read_identity(kv_value *layout, struct kv_pool_spec *spec)
{
    spec->kind = kv_json_text(layout, "kind");
    spec->format = kv_json_text(layout, "format");
    spec->engine_version = kv_json_text(layout, "engine_version");
    spec->tokens_per_block = (uint32_t)kv_json_int(layout, "tokens_per_block", 0);
    spec->slots = (uint32_t)kv_json_int(layout, "slots", 0);
}

#define LAYOUT_FIELDS                                                                                  \
    {"kind", KV_TEXT, true, 1, 16, "|regions|opaque|"}, KV_REQUIRED_TEXT("format", 128),               \
        KV_REQUIRED_TEXT("engine_version", 128), {"tokens_per_block", KV_INT, true, 1, 1 << 20, NULL}, \
    {                                                                                                  \
        "slots", KV_INT, true, 1, UINT32_MAX, NULL                                                     \
    }

/* One region whose pages lie next to each other. */
static KV_RC read_opaque(struct kv_call *call, kv_value *layout, struct kv_pool_spec *spec, struct kv_region *regions)
{
    const struct kv_field fields[] = {LAYOUT_FIELDS, {"page_bytes", KV_INT, true, 1, KV_MAX_POOL_BYTES, NULL}};
    KV_TRY(kv_json_check(layout, "/layout", KV_FIELDS(fields), &call->info));
    read_identity(layout, spec);
    spec->bytes_per_block = (uint64_t)kv_json_int(layout, "page_bytes", 0);
    regions[0] = (struct kv_region){.stride_bytes = spec->bytes_per_block, .run_bytes = spec->bytes_per_block};
    spec->region_count = 1;
    return KV_OK;
}

static KV_RC read_regions(struct kv_call *call, kv_value *layout, struct kv_pool_spec *spec, struct kv_region *regions)
{
    const struct kv_field fields[] = {LAYOUT_FIELDS,
                                      {"bytes_per_block", KV_INT, true, 1, KV_MAX_POOL_BYTES, NULL},
                                      {"regions", KV_ARRAY, true, 1, KV_MAX_POOL_REGIONS, NULL}};
    KV_TRY(kv_json_check(layout, "/layout", KV_FIELDS(fields), &call->info));
    read_identity(layout, spec);
    spec->bytes_per_block = (uint64_t)kv_json_int(layout, "bytes_per_block", 0);
    kv_value *array = kv_json_get(layout, "regions");
    spec->region_count = (uint32_t)kv_json_len(array);
    for (size_t i = 0; i < spec->region_count; i++) {
        KV_TRY(read_region(call, kv_json_at(array, i), i, &regions[i]));
    }
    return KV_OK;
}

static KV_RC read_layout(struct kv_call *call, kv_value *layout, struct kv_pool_spec *spec, struct kv_region *regions)
{
    const char *kind = kv_json_text(layout, "kind");
    bool opaque = kind != NULL && kind[0] == 'o'; /* any other word is refused by the table of the other kind */
    spec->regions = regions;
    return opaque ? read_opaque(call, layout, spec, regions) : read_regions(call, layout, spec, regions);
}

static void write_pool(struct kv_buf *out, const struct kv_pool_view *pool)
{
    kv_out_open(out);
    kv_out_id(out, "id", "poo", &pool->id);
    kv_out_int(out, "bytes_per_block", pool->bytes_per_block);
    kv_out_hex(out, "layout_fingerprint", pool->layout_fingerprint, sizeof pool->layout_fingerprint);
    kv_out_bool(out, "verified", true);
    kv_out_text(out, "path", "host_seal");
    kv_out_close(out);
}

KV_RC kv_h_pool_register(struct kv_call *call, struct kv_req *req)
{
    const struct kv_field fields[] = {
        {"memory", KV_OBJECT, true, 0, 0, NULL},
        {"layout", KV_OBJECT, true, 0, 0, NULL},
    };
    struct kv_json *body KV_CLEANUP(kv_json_freep) = NULL;
    struct kv_pool_new in = {0};
    struct kv_pool_view pool;
    KV_TRY(kv_h_path_id(call, req, "eng", &in.engine));
    KV_TRY(kv_h_body(call, req, KV_FIELDS(fields), &body));
    struct kv_region *regions KV_CLEANUP(kv_freep) = kv_alloc_array((size_t)KV_MAX_POOL_REGIONS, sizeof *regions);
    if (regions == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(read_memory(call, kv_json_get(body, "memory"), &in));
    KV_TRY(read_layout(call, kv_json_get(body, "layout"), &in.spec, regions));
    KV_TRY(kv_svc_pool_register(call, &in, &pool));
    req->response.status = 201;
    kv_h_location(req, "/v1/pools", "poo", &pool.id);
    write_pool(&req->response.body, &pool);
    return KV_OK;
}

KV_RC kv_h_pool_remove(struct kv_call *call, struct kv_req *req)
{
    struct kv_id id;
    KV_TRY(kv_h_path_id(call, req, "poo", &id));
    req->response.status = 204;
    return kv_svc_pool_remove(call, &id);
}
