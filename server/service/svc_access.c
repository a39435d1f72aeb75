/*
 * API keys: making them and recognising them. Of a key the database holds the SHA-256 of its secret: 256 random bits
 * need no slow hash. Text form: kvrun_<env>_<kid: 8 base62>_<secret: 43 base62>_<crc32 of all before, 6 base62>; prefix
 * and check characters let secret scanners find it and a typo be refused without asking anybody. Must never say why a
 * key was refused, and does the same work for an unknown one.
 */
#include "server/service/svc_int.h"

#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"
#include "dataplane/crypto/hash.h"

#include <stdio.h>
#include <string.h>

#define KEY_PREFIX "kvrun_live_"
#define KID_LEN 8
#define SECRET_LEN 43
#define CRC_LEN 6
#define KEY_LEN (sizeof KEY_PREFIX - 1 + KID_LEN + 1 + SECRET_LEN + 1 + CRC_LEN)
#define DAY_SECONDS UINT64_C(86400)
#define KNOWN_KEYS_MAX 4096

static const char base62[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

struct key_parts {
    char kid[KID_LEN + 1];
    char secret[SECRET_LEN + 1];
};

static void check_characters(const char *text, size_t len, char crc[CRC_LEN + 1])
{
    uint32_t value = kv_crc32(text, len);
    for (int i = CRC_LEN - 1; i >= 0; i--) {
        crc[i] = base62[value % 62];
        value /= 62;
    }
    crc[CRC_LEN] = '\0';
}

static KV_RC random_base62(const struct kv_env *env, char *text, size_t len)
{
    size_t have = 0;
    while (have < len) {
        uint8_t bytes[64];
        KV_TRY(env->random(env->ctx, bytes, sizeof bytes));
        for (size_t i = 0; i < sizeof bytes && have < len; i++) {
            if (bytes[i] < 248) { /* 4 * 62: no bias */
                text[have++] = base62[bytes[i] % 62];
            }
        }
        kv_wipe(bytes, sizeof bytes);
    }
    text[len] = '\0';
    return KV_OK;
}

static bool parse_key(const char *token, struct key_parts *ret_parts)
{
    size_t prefix = sizeof KEY_PREFIX - 1;
    if (strnlen(token, KEY_LEN + 1) != KEY_LEN || memcmp(token, KEY_PREFIX, prefix) != 0) {
        return false;
    }
    const char *kid = token + prefix, *secret = kid + KID_LEN + 1, *crc = secret + SECRET_LEN + 1;
    char expected[CRC_LEN + 1];
    check_characters(token, KEY_LEN - CRC_LEN - 1, expected);
    if (kid[KID_LEN] != '_' || secret[SECRET_LEN] != '_' || memcmp(crc, expected, CRC_LEN) != 0) {
        return false;
    }
    memcpy(ret_parts->kid, kid, KID_LEN);
    memcpy(ret_parts->secret, secret, SECRET_LEN);
    ret_parts->kid[KID_LEN] = ret_parts->secret[SECRET_LEN] = '\0';
    return strspn(ret_parts->kid, base62) == KID_LEN && strspn(ret_parts->secret, base62) == SECRET_LEN;
}

/* --- recognising ------------------------------------------------------------------------------------------------- */

static struct kv_id kid_as_id(const char *kid)
{
    struct kv_id id = {0};
    memcpy(id.b + 8, kid, KID_LEN);
    return id;
}

enum known { KEY_UNKNOWN, KEY_STALE, KEY_FRESH };

static enum known known_key(struct kv_svc *svc, const char *kid, struct kv_store_api_key *ret_row)
{
    struct kv_id at = kid_as_id(kid);
    enum known how = KEY_UNKNOWN;
    pthread_mutex_lock(&svc->registry_mutex);
    const struct svc_known_key *known = kv_idmap_get(&svc->known_keys, &at);
    if (known != NULL) {
        bool fresh = svc->env->boottime_ns(svc->env->ctx) < known->fresh_until_ns &&
                     known->stamp == atomic_load(&svc->change_stamp);
        how = fresh ? KEY_FRESH : KEY_STALE;
        *ret_row = known->row;
    }
    pthread_mutex_unlock(&svc->registry_mutex);
    return how;
}

/* Best effort: a key that is not remembered is asked for again. */
static void remember_key(struct kv_svc *svc, const struct kv_store_api_key *row, uint64_t stamp)
{
    struct kv_id at = kid_as_id(row->kid);
    pthread_mutex_lock(&svc->registry_mutex);
    struct svc_known_key *known = kv_idmap_get(&svc->known_keys, &at);
    if (known == NULL && svc->known_keys.count < KNOWN_KEYS_MAX) {
        known = kv_alloc(sizeof *known);
        if (known != NULL && kv_idmap_put(&svc->known_keys, &at, known) != KV_OK) {
            kv_free(known);
            known = NULL;
        }
    }
    if (known != NULL) {
        known->row = *row;
        known->stamp = stamp;
        known->fresh_until_ns = svc->env->boottime_ns(svc->env->ctx) + svc->conf.lease_ns;
    }
    pthread_mutex_unlock(&svc->registry_mutex);
}

/* From memory while fresh, else from the database; and without the database still from memory, as long as the lease
 * runs: what is known under the lease may be used under it. */
static KV_RC find_key(struct kv_call *call, const char *kid, struct kv_store_api_key *ret_row)
{
    struct kv_store_api_key row;
    uint64_t stamp = atomic_load(&call->svc->change_stamp); /* before the read: a change meanwhile makes it stale */
    enum known how = known_key(call->svc, kid, ret_row);
    if (how == KEY_FRESH) {
        return KV_OK;
    }
    enum kv_err rc = kv_store_api_key_get_by_kid(call->pg, kid, &call->info, &row);
    if (rc == KV_E_DB_UNAVAILABLE && how == KEY_STALE && kv_keyring_lease_valid(call->svc->keyring)) {
        return KV_OK;
    }
    if (rc == KV_OK) {
        remember_key(call->svc, &row, stamp);
        *ret_row = row;
    }
    return rc;
}

static KV_RC refuse(struct kv_call *call)
{
    return kv_fail(&call->info, KV_E_UNAUTHENTICATED, "send a valid key as \"Authorization: Bearer kvrun_live_...\"");
}

KV_RC kv_svc_authenticate(struct kv_call *call, const char *token)
{
    struct key_parts parts;
    struct kv_store_api_key row = {0};
    if (!parse_key(token, &parts)) {
        return refuse(call);
    }
    uint8_t hash[32];
    KV_TRY(kv_sha256(KV_BYTES(parts.secret, SECRET_LEN), hash));
    kv_wipe(parts.secret, sizeof parts.secret);
    enum kv_err rc = find_key(call, parts.kid, &row);
    if (rc != KV_OK && rc != KV_E_NOT_FOUND) {
        return rc;
    }
    bool matches = kv_equal_constant_time(hash, row.secret_sha256, sizeof hash) && rc == KV_OK;
    uint64_t now_us = call->svc->env->realtime_us(call->svc->env->ctx);
    if (!matches || row.revoked_us != 0 || now_us >= row.expires_us) {
        return refuse(call);
    }
    call->who = (struct kv_principal){.key = row.id, .tenant = row.tenant, .roles = row.roles};
    return KV_OK;
}

/* --- making ------------------------------------------------------------------------------------------------------ */

/* With `keep` it is the first operator key, or none. */
struct key_tx {
    struct kv_call *call;
    struct kv_store_api_key row;
    kv_key_keep_fn keep;
    void *keep_ctx;
    const char *secret;
};

static KV_RC key_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct key_tx *tx = ctx;
    if (tx->keep != NULL) {
        uint64_t count = 0;
        KV_TRY(kv_store_api_key_count_operator(pg, tx->row.created_us, info, &count));
        if (count > 0) {
            return kv_fail(info, KV_E_INVALID_STATE, "there is an operator key already");
        }
    }
    KV_TRY(kv_store_api_key_insert(pg, &tx->row, info));
    struct kv_audit_event event = {.op = KV_AUDIT_KEY_CREATE,
                                   .tenant = tx->row.tenant,
                                   .actor = tx->call->who.key,
                                   .actor_role = svc_role_name(tx->call->who.roles),
                                   .subject = tx->row.id,
                                   .subject_prefix = "key"};
    KV_TRY(svc_audit(tx->call->svc, pg, &event, KV_BYTES(NULL, 0), info));
    /* Last before the commit: a process that ends in between leaves a kept key that never became valid, and the next
     * start makes another; the other order would leave a valid key that nobody has. */
    return tx->keep != NULL ? tx->keep(tx->keep_ctx, tx->secret, info) : KV_OK;
}

static KV_RC draw_key(struct kv_call *call, struct kv_store_api_key *row, char text[KV_API_KEY_TEXT_SIZE])
{
    char secret[SECRET_LEN + 1], crc[CRC_LEN + 1];
    KV_TRY(random_base62(call->svc->env, row->kid, KID_LEN));
    KV_TRY(random_base62(call->svc->env, secret, SECRET_LEN));
    KV_TRY(kv_sha256(KV_BYTES(secret, SECRET_LEN), row->secret_sha256));
    int len = snprintf(text, KV_API_KEY_TEXT_SIZE, "%s%s_%s", KEY_PREFIX, row->kid, secret);
    kv_wipe(secret, sizeof secret);
    check_characters(text, (size_t)len, crc);
    snprintf(text + len, KV_API_KEY_TEXT_SIZE - (size_t)len, "_%s", crc);
    return KV_OK;
}

static KV_RC create(struct key_tx *tx, const struct kv_key_new *in, struct kv_key_view *ret_key)
{
    struct kv_call *call = tx->call;
    KV_TRY(svc_may_work(call->svc, &call->info)); /* in quarantine this may be the wrong database */
    uint64_t seconds = in->expires_in_seconds == 0 ? 90 * DAY_SECONDS : in->expires_in_seconds;
    if (seconds > 365 * DAY_SECONDS) {
        return kv_fail_at(&call->info, KV_E_INVALID_REQUEST, "/expires_in_seconds", "1 to %u", 365u * 86400u);
    }
    tx->row.roles = in->roles;
    tx->row.created_us = call->svc->env->realtime_us(call->svc->env->ctx);
    tx->row.expires_us = tx->row.created_us + seconds * 1000000;
    snprintf(tx->row.name, sizeof tx->row.name, "%s", in->name);
    KV_TRY(kv_id_new(call->svc->env, &tx->row.id));
    struct kv_key_view view = {.id = tx->row.id,
                               .tenant = tx->row.tenant,
                               .roles = in->roles,
                               .created_us = tx->row.created_us,
                               .expires_us = tx->row.expires_us};
    KV_TRY(draw_key(call, &tx->row, view.secret));
    tx->secret = view.secret;
    enum kv_err rc = kv_pg_tx(call->pg, "key-create", key_tx, tx, &call->info, NULL);
    if (rc == KV_OK) {
        *ret_key = view;
    }
    kv_wipe(&view, sizeof view);
    return rc;
}

/* A tenant's key never carries the operator's role, and an auditor is nobody else: who checks does not act. */
static KV_RC check_roles(struct kv_call *call, const struct kv_id *tenant, unsigned roles)
{
    if (roles == 0) {
        return kv_fail_at(&call->info, KV_E_INVALID_REQUEST, "/roles",
                          "name at least one of tenant_admin, engine, auditor");
    }
    if (((roles & KV_ROLE_OPERATOR) != 0) != kv_id_is_zero(tenant)) {
        return kv_fail_at(&call->info, KV_E_INVALID_REQUEST, "/roles", "operator keys belong to no tenant");
    }
    if ((roles & KV_ROLE_AUDITOR) != 0 && roles != KV_ROLE_AUDITOR) {
        return kv_fail_at(&call->info, KV_E_INVALID_REQUEST, "/roles", "auditor goes with no other role");
    }
    return KV_OK;
}

KV_RC kv_svc_key_create(struct kv_call *call, const struct kv_id *tenant, const struct kv_key_new *in,
                        struct kv_key_view *ret_key)
{
    bool operator_key = (call->who.roles & KV_ROLE_OPERATOR) != 0;
    bool own_admin = (call->who.roles & KV_ROLE_TENANT_ADMIN) != 0 && kv_id_equal(&call->who.tenant, tenant);
    if (!operator_key && !own_admin) {
        return kv_fail(&call->info, KV_E_NOT_FOUND, "no such tenant");
    }
    KV_TRY(check_roles(call, tenant, in->roles));
    struct key_tx tx = {.call = call, .row = {.tenant = *tenant}};
    return create(&tx, in, ret_key);
}

KV_RC kv_svc_bootstrap_key(struct kv_call *call, kv_key_keep_fn keep, void *ctx)
{
    struct kv_key_view key;
    struct kv_key_new in = {.name = "first operator key", .roles = KV_ROLE_OPERATOR};
    struct key_tx tx = {.call = call, .keep = keep, .keep_ctx = ctx}; /* of no tenant */
    KV_TRY(create(&tx, &in, &key));
    kv_wipe(&key, sizeof key);
    return KV_OK;
}
