/*
 * Tenants and their API keys. The answer that carries a new key's secret is the only place where it is ever readable:
 * it is wiped from this process's own buffers as soon as it was sent.
 */
#include "server/http/h_shared.h"

#include <stdio.h>
#include <string.h>

static void write_tenant(struct kv_buf *out, const struct kv_tenant_view *tenant)
{
    kv_out_open(out);
    kv_out_id(out, "id", "ten", &tenant->id);
    kv_out_text(out, "name", tenant->name);
    if (tenant->display_name[0] != '\0') {
        kv_out_text(out, "display_name", tenant->display_name);
    }
    kv_out_text(out, "state", tenant->state);
    kv_out_time(out, "created_at", tenant->created_us);
    kv_out_close(out);
}

KV_RC kv_h_tenant_create(struct kv_call *call, struct kv_req *req)
{
    const struct kv_field fields[] = {
        {"name", KV_TEXT, true, 2, KV_MAX_TENANT_NAME_BYTES, NULL},
        {"display_name", KV_TEXT, false, 0, 256, NULL},
    };
    struct kv_json *body KV_CLEANUP(kv_json_freep) = NULL;
    struct kv_tenant_view tenant;
    KV_TRY(kv_h_body(call, req, KV_FIELDS(fields), &body));
    KV_TRY(kv_svc_tenant_create(call, kv_json_text(body, "name"), kv_json_text(body, "display_name"), &tenant));
    req->response.status = 201;
    kv_h_location(req, "/v1/tenants", "ten", &tenant.id);
    write_tenant(&req->response.body, &tenant);
    return KV_OK;
}

KV_RC kv_h_tenant_get(struct kv_call *call, struct kv_req *req)
{
    struct kv_id id;
    struct kv_tenant_view tenant;
    KV_TRY(kv_h_path_id(call, req, "ten", &id));
    KV_TRY(kv_svc_tenant_get(call, &id, &tenant));
    write_tenant(&req->response.body, &tenant);
    return KV_OK;
}

/* --- keys -------------------------------------------------------------------------------------------------------- */

static const struct {
    enum kv_role role;
    const char *name;
} role_names[] = {
    {KV_ROLE_TENANT_ADMIN, "tenant_admin"},
    {KV_ROLE_ENGINE, "engine"},
    {KV_ROLE_AUDITOR, "auditor"},
};
#define ROLE_NAMES (sizeof role_names / sizeof role_names[0])

static unsigned role_of(const char *name)
{
    for (size_t i = 0; name != NULL && i < ROLE_NAMES; i++) {
        if (strcmp(role_names[i].name, name) == 0) {
            return role_names[i].role;
        }
    }
    return 0;
}

static KV_RC read_roles(struct kv_call *call, kv_value *array, unsigned *ret_roles)
{
    unsigned roles = 0;
    char pointer[32];
    for (size_t i = 0; i < kv_json_len(array); i++) {
        unsigned role = role_of(kv_json_as_text(kv_json_at(array, i)));
        snprintf(pointer, sizeof pointer, "/roles/%zu", i);
        if (role == 0) {
            return kv_fail_at(&call->info, KV_E_INVALID_REQUEST, pointer, "must be one of tenant_admin|engine|auditor");
        }
        if ((roles & role) != 0) {
            return kv_fail_at(&call->info, KV_E_INVALID_REQUEST, pointer, "this role is named twice");
        }
        roles |= role;
    }
    *ret_roles = roles;
    return KV_OK;
}

static void write_key(struct kv_buf *out, const struct kv_key_view *key)
{
    kv_out_open(out);
    kv_out_id(out, "id", "key", &key->id);
    kv_out_text(out, "secret", key->secret);
    kv_out_array(out, "roles");
    for (size_t i = 0; i < ROLE_NAMES; i++) {
        if ((key->roles & (unsigned)role_names[i].role) != 0) {
            kv_out_text(out, NULL, role_names[i].name);
        }
    }
    kv_out_array_end(out);
    kv_out_id(out, "tenant_id", "ten", &key->tenant);
    kv_out_time(out, "created_at", key->created_us);
    kv_out_time(out, "expires_at", key->expires_us);
    kv_out_close(out);
}

KV_RC kv_h_key_create(struct kv_call *call, struct kv_req *req)
{
    const struct kv_field fields[] = {
        KV_REQUIRED_TEXT("name", 128),
        {"roles", KV_ARRAY, true, 1, (int64_t)ROLE_NAMES, NULL},
        {"expires_in_seconds", KV_INT, false, 1, 365 * 86400, NULL},
    };
    static const uint8_t room[1024];
    struct kv_json *body KV_CLEANUP(kv_json_freep) = NULL;
    struct kv_id tenant;
    struct kv_key_new in = {0};
    struct kv_key_view key;
    KV_TRY(kv_h_path_id(call, req, "ten", &tenant));
    KV_TRY(kv_h_body(call, req, KV_FIELDS(fields), &body));
    KV_TRY(read_roles(call, kv_json_get(body, "roles"), &in.roles));
    in.name = kv_json_text(body, "name");
    in.expires_in_seconds = (uint64_t)kv_json_int(body, "expires_in_seconds", 0);
    KV_TRY(kv_svc_key_create(call, &tenant, &in, &key));
    req->response.status = 201;
    req->response.secret = true;
    kv_buf_append(&req->response.body, room, sizeof room); /* growing with the secret inside would leave a copy */
    kv_buf_reset(&req->response.body);
    write_key(&req->response.body, &key);
    explicit_bzero(&key, sizeof key);
    return KV_OK;
}
