/* See svc_rules.h. Must never let a failure to read turn into a permission. */
#include "server/service/svc_rules.h"

#include "dataplane/base/check.h"
#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"
#include "dataplane/crypto/hash.h"
#include "dataplane/crypto/secret.h"
#include "server/service/svc_int.h"
#include "server/store/store_policy.h"

#include <stdio.h>
#include <string.h>

/* --- reading ------------------------------------------------------------------------------------------------------ */

void svc_rules_free(struct svc_rules *rules)
{
    if (rules != NULL) {
        kv_policy_set_free(rules->set);
        kv_free(rules);
    }
}

void svc_rules_freep(struct svc_rules **rules)
{
    svc_rules_free(*rules);
}

static KV_RC parse(const struct kv_store_rules *row, unsigned level, struct kv_errinfo *info,
                   struct kv_policy_doc **ret_doc)
{
    struct kv_bytes text = row->versions[level] == 0 ? KV_BYTES(kv_policy_builtin, strlen(kv_policy_builtin))
                                                     : kv_buf_bytes(&row->bodies[level]);
    return kv_policy_parse(text, level == 0 ? KV_POLICY_PLATFORM : KV_POLICY_TENANT, info, ret_doc);
}

static KV_RC compile(const struct kv_store_rules *row, struct kv_errinfo *info, struct kv_policy_set **ret_set)
{
    struct kv_policy_doc *platform KV_CLEANUP(kv_policy_doc_freep) = NULL,
                                   *tenant KV_CLEANUP(kv_policy_doc_freep) = NULL;
    KV_TRY(parse(row, 0, info, &platform));
    KV_TRY(parse(row, 1, info, &tenant));
    KV_TRY(kv_policy_compile(platform, tenant, ret_set));
    (*ret_set)->versions[0] = row->versions[0];
    (*ret_set)->versions[1] = row->versions[1];
    return KV_OK;
}

static KV_RC rules_new(const struct kv_id *tenant, const struct kv_store_rules *row, struct kv_errinfo *info,
                       struct svc_rules **ret_rules)
{
    struct svc_rules *rules = kv_alloc(sizeof *rules);
    enum kv_err rc = rules == NULL ? KV_E_NO_MEMORY : compile(row, info, &rules->set);
    if (rc != KV_OK) {
        svc_rules_free(rules);
        return rc;
    }
    rules->tenant = *tenant;
    rules->active = strcmp(row->state, "active") == 0;
    snprintf(rules->state, sizeof rules->state, "%s", row->state);
    *ret_rules = rules;
    return KV_OK;
}

KV_RC svc_rules_read(struct kv_pg *pg, const struct kv_id *tenant, struct kv_errinfo *info,
                     struct svc_rules **ret_rules)
{
    struct kv_store_rules row = {0};
    kv_buf_init(&row.bodies[0], (size_t)KV_MAX_POLICY_BYTES);
    kv_buf_init(&row.bodies[1], (size_t)KV_MAX_POLICY_BYTES);
    enum kv_err rc = kv_store_rules_get(pg, tenant, info, &row);
    if (rc == KV_OK) {
        rc = rules_new(tenant, &row, info, ret_rules);
    }
    kv_buf_done(&row.bodies[0]);
    kv_buf_done(&row.bodies[1]);
    return rc;
}

/* --- the table of those in use ------------------------------------------------------------------------------------ */

static KV_RC hash_name(void *ctx, const char *text, uint64_t *ret_hash)
{
    const struct kv_svc *svc = ctx;
    uint8_t mac[32];
    struct kv_bytes data = KV_BYTES(text, strlen(text));
    KV_TRY(kv_hmac_sha256(svc->names_key, &data, 1, mac));
    memcpy(ret_hash, mac, sizeof *ret_hash);
    return KV_OK;
}

KV_RC svc_rules_start(struct kv_svc *svc)
{
    const struct kv_policy_hasher hasher = {.hash = hash_name, .ctx = svc};
    KV_TRY(kv_secret_random(svc->env, 32, &svc->names_key));
    return kv_policy_table_new(KV_MAX_RULES_KNOWN, &hasher, &svc->decisions);
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

/* Under registry_mutex; what to free is the caller's, outside of it. */
static struct svc_rules *unref(struct svc_rules *rules)
{
    KV_ASSERT(rules->refs > 0);
    return --rules->refs == 0 ? rules : NULL;
}

void svc_rules_put(struct kv_svc *svc, const struct svc_rules *rules)
{
    if (rules == NULL) {
        return;
    }
    pthread_mutex_lock(&svc->registry_mutex);
    struct svc_rules *last = unref((struct svc_rules *)(uintptr_t)rules);
    pthread_mutex_unlock(&svc->registry_mutex);
    svc_rules_free(last);
}

/* A reference to what is known, or NULL. */
static struct svc_rules *known(struct kv_svc *svc, const struct kv_id *tenant, bool *ret_fresh)
{
    pthread_mutex_lock(&svc->registry_mutex);
    struct svc_rules *rules = kv_idmap_get(&svc->rules, tenant);
    if (rules != NULL) {
        rules->refs++;
        *ret_fresh = svc->env->boottime_ns(svc->env->ctx) < rules->fresh_until_ns &&
                     rules->stamp == atomic_load(&svc->change_stamp);
    }
    pthread_mutex_unlock(&svc->registry_mutex);
    return rules;
}

/* Makes room by forgetting any one of them. */
static struct svc_rules *forget_one(struct kv_svc *svc)
{
    size_t position = 0;
    struct svc_rules *any = kv_idmap_next(&svc->rules, &position);
    if (any == NULL || svc->rules.count < (size_t)KV_MAX_RULES_KNOWN) {
        return NULL;
    }
    struct kv_id tenant = any->tenant;
    kv_idmap_take(&svc->rules, &tenant);
    return unref(any);
}

/* Keeps it, unless what is there was read later. Best effort: what is not kept is read again. */
static void remember(struct kv_svc *svc, struct svc_rules *rules)
{
    struct svc_rules *old = NULL, *forgotten = NULL;
    pthread_mutex_lock(&svc->registry_mutex);
    struct svc_rules *there = kv_idmap_get(&svc->rules, &rules->tenant);
    if (there == NULL) {
        forgotten = forget_one(svc);
    }
    if ((there == NULL || there->stamp <= rules->stamp) && kv_idmap_put(&svc->rules, &rules->tenant, rules) == KV_OK) {
        rules->refs++;
        old = there == NULL ? NULL : unref(there);
    }
    pthread_mutex_unlock(&svc->registry_mutex);
    svc_rules_free(old);
    svc_rules_free(forgotten);
}

KV_RC svc_rules_get(struct kv_call *call, const struct kv_id *tenant, const struct svc_rules **ret_rules)
{
    struct kv_svc *svc = call->svc;
    bool fresh = false;
    struct svc_rules *old = known(svc, tenant, &fresh);
    if (old != NULL && fresh) {
        *ret_rules = old;
        return KV_OK;
    }
    uint64_t stamp = atomic_load(&svc->change_stamp), now = svc->env->boottime_ns(svc->env->ctx);
    struct svc_rules *rules = NULL;
    enum kv_err rc = svc_rules_read(call->pg, tenant, &call->info, &rules);
    if (rc == KV_OK) {
        rules->refs = 1;
        rules->stamp = stamp;
        rules->fresh_until_ns = now + svc->conf.lease_ns;
        remember(svc, rules);
        svc_rules_put(svc, old);
        *ret_rules = rules;
        return KV_OK;
    }
    if (rc == KV_E_DB_UNAVAILABLE && old != NULL && kv_keyring_lease_valid(svc->keyring)) {
        *ret_rules = old; /* what is known under the lease may be used under it */
        return KV_OK;
    }
    svc_rules_put(svc, old);
    return rc;
}

void svc_rules_done(struct kv_svc *svc)
{
    size_t position = 0;
    for (struct svc_rules *rules = kv_idmap_next(&svc->rules, &position); rules != NULL;
         rules = kv_idmap_next(&svc->rules, &position)) {
        svc_rules_free(rules);
    }
    kv_idmap_done(&svc->rules);
    kv_policy_table_free(svc->decisions);
    kv_secret_free(svc->names_key);
}
