/*
 * Recognising API keys: known ones from memory, under the instance's lease. Must never say why a key was refused, and
 * does the same work for an unknown one.
 */
#include "server/service/key_text.h"
#include "server/service/svc_int.h"
#include "server/service/svc_key.h"
#include "server/service/svc_metrics.h"

#include "dataplane/base/mem.h"

#include <string.h>

#define KNOWN_KEYS_MAX 4096
#define KID_LEN (KV_API_KID_SIZE - 1)

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

void svc_key_forget(struct kv_svc *svc, const char *kid)
{
    struct kv_id at = kid_as_id(kid);
    pthread_mutex_lock(&svc->registry_mutex);
    kv_free(kv_idmap_take(&svc->known_keys, &at));
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
    if (how == KEY_UNKNOWN && call->known_keys_only) {
        return KV_E_RATE_LIMITED;
    }
    if (call->from_memory) {
        return svc_not_in_memory(call);
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

/* The database learns of it from the janitor, at most once a minute a key. */
static void note_use(struct kv_svc *svc, const char *kid, uint64_t now_us)
{
    struct kv_id at = kid_as_id(kid);
    pthread_mutex_lock(&svc->registry_mutex);
    struct svc_known_key *known = kv_idmap_get(&svc->known_keys, &at);
    if (known != NULL) {
        known->used_us = now_us;
    }
    pthread_mutex_unlock(&svc->registry_mutex);
}

bool svc_key_from_here(const struct kv_call *call, const struct kv_store_api_key *key)
{
    bool allowed = key->cidr_count == 0 || !call->has_peer; /* whoever reaches the socket in the file system is here */
    for (unsigned i = 0; i < key->cidr_count; i++) {
        allowed = allowed || kv_cidr_holds(key->cidrs[i], call->peer);
    }
    return allowed;
}

/* Both secrets are compared, whatever the first says. */
static bool secret_matches(const struct kv_store_api_key *row, const uint8_t sha256[32], uint64_t now_us)
{
    bool now = kv_equal_constant_time(sha256, row->secret_sha256, sizeof row->secret_sha256);
    bool old = kv_equal_constant_time(sha256, row->old_secret_sha256, sizeof row->old_secret_sha256);
    return now || (old && now_us < row->old_until_us);
}

KV_RC kv_svc_authenticate(struct kv_call *call, const char *token)
{
    struct svc_key_parts parts;
    struct kv_store_api_key row = {0};
    if (svc_key_parse(token, &parts) != KV_OK) {
        svc_metrics_auth_failure(token[0] == '\0' ? SVC_AUTH_MISSING : SVC_AUTH_MALFORMED);
        return refuse(call);
    }
    enum kv_err rc = find_key(call, parts.kid, &row);
    if (rc != KV_OK && rc != KV_E_NOT_FOUND) {
        return rc;
    }
    uint64_t now_us = call->svc->env->realtime_us(call->svc->env->ctx);
    bool matches = secret_matches(&row, parts.secret_sha256, now_us) && rc == KV_OK;
    if (!matches || row.revoked_us != 0 || now_us >= row.expires_us || !svc_key_from_here(call, &row)) {
        svc_metrics_auth_failure(!matches                   ? SVC_AUTH_UNKNOWN
                                 : row.revoked_us != 0      ? SVC_AUTH_REVOKED
                                 : now_us >= row.expires_us ? SVC_AUTH_EXPIRED
                                                            : SVC_AUTH_ADDRESS);
        return refuse(call);
    }
    note_use(call->svc, parts.kid, now_us);
    call->who = (struct kv_principal){.key = row.id, .tenant = row.tenant, .roles = row.roles};
    return KV_OK;
}
