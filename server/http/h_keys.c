/*
 * API keys, of a tenant and of the platform. The answer that carries a new secret is the only place where it is ever
 * readable: it is wiped from this process's own buffers as soon as it was sent.
 */
#include "server/http/h_shared.h"
#include "server/service/svc_key.h"

#include "dataplane/base/mem.h"

#include <stdio.h>
#include <string.h>

static const struct {
    enum kv_role role;
    const char *name;
} role_names[] = {
    {KV_ROLE_OPERATOR, "operator"},         {KV_ROLE_SECURITY_OFFICER, "security_officer"},
    {KV_ROLE_TENANT_ADMIN, "tenant_admin"}, {KV_ROLE_ENGINE, "engine"},
    {KV_ROLE_AUDITOR, "auditor"},           {KV_ROLE_VIEWER, "viewer"},
    {KV_ROLE_METRICS, "metrics"},
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
            return kv_fail_at(&call->info, KV_E_INVALID_REQUEST, pointer, "this is no role");
        }
        if ((roles & role) != 0) {
            return kv_fail_at(&call->info, KV_E_INVALID_REQUEST, pointer, "this role is named twice");
        }
        roles |= role;
    }
    *ret_roles = roles;
    return KV_OK;
}

static KV_RC read_cidrs(struct kv_call *call, kv_value *array, struct kv_cidrs *ret_cidrs)
{
    char pointer[32];
    size_t count = array == NULL ? 0 : kv_json_len(array);
    for (size_t i = 0; i < count; i++) {
        const char *text = kv_json_as_text(kv_json_at(array, i));
        snprintf(pointer, sizeof pointer, "/cidrs/%zu", i);
        if (text == NULL || strlen(text) >= KV_CIDR_SIZE) {
            return kv_fail_at(&call->info, KV_E_INVALID_REQUEST, pointer, "an address range like 10.0.0.0/8");
        }
        kv_h_copy(ret_cidrs->items[i], KV_CIDR_SIZE, text);
    }
    ret_cidrs->count = (unsigned)count;
    return KV_OK;
}

/* --- the answer -------------------------------------------------------------------------------------------------- */

static void write_warnings(struct kv_buf *out, unsigned warnings)
{
    kv_out_array(out, "warnings");
    if ((warnings & KV_KEY_EXPIRES_SOON) != 0) {
        kv_out_text(out, NULL, "expires_soon");
    }
    if ((warnings & KV_KEY_OLD_SECRET_VALID) != 0) {
        kv_out_text(out, NULL, "old_secret_valid");
    }
    kv_out_array_end(out);
}

static void write_lists(struct kv_buf *out, const struct kv_key_view *key)
{
    kv_out_array(out, "roles");
    for (size_t i = 0; i < ROLE_NAMES; i++) {
        if ((key->roles & (unsigned)role_names[i].role) != 0) {
            kv_out_text(out, NULL, role_names[i].name);
        }
    }
    kv_out_array_end(out);
    kv_out_array(out, "cidrs");
    for (unsigned i = 0; i < key->cidrs.count; i++) {
        kv_out_text(out, NULL, key->cidrs.items[i]);
    }
    kv_out_array_end(out);
    write_warnings(out, key->warnings);
}

static void write_key(struct kv_buf *out, const void *view)
{
    const struct kv_key_view *key = view;
    kv_out_open(out);
    kv_out_id(out, "id", "key", &key->id);
    if (!kv_id_is_zero(&key->tenant)) {
        kv_out_id(out, "tenant_id", "ten", &key->tenant);
    }
    kv_out_text(out, "name", key->name);
    write_lists(out, key);
    kv_out_time(out, "created_at", key->created_us);
    kv_out_time(out, "expires_at", key->expires_us);
    kv_h_out_time_if(out, "revoked_at", key->revoked_us);
    kv_h_out_time_if(out, "rotated_at", key->rotated_us);
    kv_h_out_time_if(out, "old_secret_until", key->old_until_us);
    kv_h_out_time_if(out, "last_used_at", key->last_used_us);
    kv_h_out_text_if(out, "secret", key->secret);
    kv_out_close(out);
}

/* --- which keys -------------------------------------------------------------------------------------------------- */

/* A tenant's keys, or the platform's: then the tenant is zero, and so is where the path says no key. */
struct target {
    struct kv_id tenant, key;
    char path[80];
};

static KV_RC tenant_target(struct kv_call *call, const struct kv_req *req, bool with_key, struct target *ret_target)
{
    struct target target = {.path = ""};
    char text[KV_ID_TEXT_SIZE];
    KV_TRY(kv_h_path_id(call, req, "ten", &target.tenant));
    KV_TRY(with_key ? kv_h_path_id_2(call, req, "key", &target.key) : KV_OK);
    kv_id_text("ten", &target.tenant, text);
    snprintf(target.path, sizeof target.path, "/v1/tenants/%s/api-keys", text);
    *ret_target = target;
    return KV_OK;
}

static KV_RC platform_target(struct kv_call *call, const struct kv_req *req, bool with_key, struct target *ret_target)
{
    struct target target = {.path = "/v1/api-keys"};
    KV_TRY(with_key ? kv_h_path_id(call, req, "key", &target.key) : KV_OK);
    *ret_target = target;
    return KV_OK;
}

/* --- the use cases ----------------------------------------------------------------------------------------------- */

static KV_RC read_new(struct kv_call *call, kv_value *body, struct kv_key_new *in)
{
    KV_TRY(read_roles(call, kv_json_get(body, "roles"), &in->roles));
    KV_TRY(read_cidrs(call, kv_json_get(body, "cidrs"), &in->cidrs));
    in->name = kv_json_text(body, "name");
    in->expires_in_seconds = (uint64_t)kv_json_int(body, "expires_in_seconds", 0);
    return kv_h_time(call, body, "expires_at", &in->expires_us);
}

static KV_RC create(struct kv_call *call, struct kv_req *req, const struct target *target)
{
    const struct kv_field fields[] = {
        KV_REQUIRED_TEXT("name", 128),
        {"roles", KV_ARRAY, true, 1, (int64_t)ROLE_NAMES, NULL},
        {"expires_in_seconds", KV_INT, false, 1, KV_MAX_API_KEY_DAYS * 86400, NULL},
        {"expires_at", KV_TEXT, false, 1, 40, NULL},
        {"cidrs", KV_ARRAY, false, 0, KV_CIDRS_MAX, NULL},
    };
    struct kv_json *body KV_CLEANUP(kv_json_freep) = NULL;
    struct kv_key_new in = {0};
    struct kv_key_view key = {0};
    KV_TRY(kv_h_body(call, req, KV_FIELDS(fields), &body));
    KV_TRY(read_new(call, body, &in));
    struct kv_h_answer answer = {.req = req,
                                 .status = 201,
                                 .write = write_key,
                                 .view = &key,
                                 .collection = target->path,
                                 .prefix = "key",
                                 .id = &key.id,
                                 .secret = true};
    kv_h_on_commit(call, &answer);
    enum kv_err rc = kv_svc_key_create(call, &target->tenant, &in, &key);
    rc = rc == KV_OK ? kv_h_answer(call, &answer) : rc;
    explicit_bzero(&key, sizeof key);
    return rc;
}

static KV_RC list(struct kv_call *call, struct kv_req *req, const struct target *target)
{
    struct kv_page page;
    size_t count = 0;
    KV_TRY(kv_h_page(call, req, &page));
    struct kv_key_view *keys KV_CLEANUP(kv_freep) = kv_alloc_array((size_t)KV_MAX_PAGE_ITEMS, sizeof *keys);
    if (keys == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(kv_svc_key_list(call, &target->tenant, &page, keys, &count));
    kv_h_list_begin(req);
    for (size_t i = 0; i < count; i++) {
        write_key(&req->response.body, &keys[i]);
    }
    return kv_h_list_end(req, &page, count == 0 ? 0 : keys[count - 1].created_us,
                         count == 0 ? NULL : &keys[count - 1].id);
}

static struct kv_h_answer answer_of(struct kv_req *req, const struct kv_key_view *key)
{
    return (struct kv_h_answer){.req = req, .status = 200, .write = write_key, .view = key, .rev = &key->rev};
}

static KV_RC get(struct kv_call *call, struct kv_req *req, const struct target *target)
{
    struct kv_key_view key;
    KV_TRY(kv_svc_key_get(call, &target->tenant, &target->key, &key));
    struct kv_h_answer answer = answer_of(req, &key);
    return kv_h_answer(call, &answer);
}

static KV_RC update(struct kv_call *call, struct kv_req *req, const struct target *target)
{
    const struct kv_field fields[] = {
        {"name", KV_TEXT, false, 1, 128, NULL},
        {"expires_at", KV_TEXT, false, 1, 40, NULL},
        {"cidrs", KV_ARRAY | KV_H_NULLABLE, false, 0, KV_CIDRS_MAX, NULL},
        {"roles", KV_ARRAY | KV_H_IMMUTABLE, false, 0, KV_MAX_TEXT_BYTES, NULL},
    };
    struct kv_json *body KV_CLEANUP(kv_json_freep) = NULL;
    struct kv_key_patch patch = {0};
    struct kv_key_view key;
    KV_TRY(kv_h_patch(call, req, KV_FIELDS(fields), &body));
    patch.name = kv_json_text(body, "name");
    patch.has_cidrs = kv_json_get(body, "cidrs") != NULL;
    KV_TRY(kv_h_time(call, body, "expires_at", &patch.expires_us));
    KV_TRY(kv_json_is_null(body, "cidrs") ? KV_OK : read_cidrs(call, kv_json_get(body, "cidrs"), &patch.cidrs));
    struct kv_h_answer answer = answer_of(req, &key);
    kv_h_on_commit(call, &answer);
    KV_TRY(kv_svc_key_update(call, &target->tenant, &target->key, &patch, &key));
    return kv_h_answer(call, &answer);
}

static KV_RC revoke(struct kv_call *call, struct kv_req *req, const struct target *target)
{
    struct kv_key_view key;
    struct kv_h_answer answer = answer_of(req, &key);
    kv_h_on_commit(call, &answer);
    KV_TRY(kv_svc_key_revoke(call, &target->tenant, &target->key, &key));
    return kv_h_answer(call, &answer);
}

#define OVERLAP_USUAL_SECONDS 3600

static KV_RC rotate(struct kv_call *call, struct kv_req *req, const struct target *target)
{
    const struct kv_field fields[] = {
        {"overlap_seconds", KV_INT, false, 0, KV_MAX_KEY_OVERLAP_SECONDS, NULL},
        {"expires_in_seconds", KV_INT, false, 1, KV_MAX_API_KEY_DAYS * 86400, NULL},
    };
    struct kv_json *body KV_CLEANUP(kv_json_freep) = NULL;
    struct kv_key_view key = {0};
    KV_TRY(kv_h_body(call, req, KV_FIELDS(fields), &body));
    struct kv_key_rotation rotation = {.overlap_seconds =
                                           (uint64_t)kv_json_int(body, "overlap_seconds", OVERLAP_USUAL_SECONDS),
                                       .expires_in_seconds = (uint64_t)kv_json_int(body, "expires_in_seconds", 0)};
    struct kv_h_answer answer = {.req = req, .status = 200, .write = write_key, .view = &key, .secret = true};
    kv_h_on_commit(call, &answer);
    enum kv_err rc = kv_svc_key_rotate(call, &target->tenant, &target->key, &rotation, &key);
    rc = rc == KV_OK ? kv_h_answer(call, &answer) : rc;
    explicit_bzero(&key, sizeof key);
    return rc;
}

/* --- the routes -------------------------------------------------------------------------------------------------- */

#define ROUTE(name, whose, with_key, use_case)                  \
    KV_RC name(struct kv_call *call, struct kv_req *req)        \
    {                                                           \
        struct target target;                                   \
        KV_TRY(whose##_target(call, req, (with_key), &target)); \
        return use_case(call, req, &target);                    \
    }

ROUTE(kv_h_key_create, tenant, false, create)
ROUTE(kv_h_key_list, tenant, false, list)
ROUTE(kv_h_key_get, tenant, true, get)
ROUTE(kv_h_key_update, tenant, true, update)
ROUTE(kv_h_key_revoke, tenant, true, revoke)
ROUTE(kv_h_key_rotate, tenant, true, rotate)
ROUTE(kv_h_platform_key_create, platform, false, create)
ROUTE(kv_h_platform_key_list, platform, false, list)
ROUTE(kv_h_platform_key_get, platform, true, get)
ROUTE(kv_h_platform_key_update, platform, true, update)
ROUTE(kv_h_platform_key_revoke, platform, true, revoke)
ROUTE(kv_h_platform_key_rotate, platform, true, rotate)
