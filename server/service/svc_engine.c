/*
 * Engines and their pools: in memory only, because an engine's lease is the truth about its life. After a restart of
 * the server it registers again and finds its sessions warm. A pool is closed before its mapping goes: no transfer
 * touches it any more.
 */
#include "server/service/svc_int.h"
#include "server/service/svc_metrics.h"

#include "dataplane/base/id.h"
#include "dataplane/base/log.h"
#include "dataplane/base/mem.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define POOL_CLOSE_NS (5 * KV_S_NS)
#define LEASE_SECONDS 5

static uint64_t boottime(const struct kv_svc *svc)
{
    return svc->env->boottime_ns(svc->env->ctx);
}

static void renew(struct kv_svc *svc, struct svc_engine *engine)
{
    engine->lease_until_ns = boottime(svc) + engine->facts.lease_seconds * KV_S_NS;
    engine->lease_until_us = svc->env->realtime_us(svc->env->ctx) + engine->facts.lease_seconds * UINT64_C(1000000);
}

static void view_of(const struct kv_svc *svc, const struct svc_engine *engine, bool existed,
                    struct kv_engine_view *ret_view)
{
    *ret_view = (struct kv_engine_view){.id = engine->id,
                                        .server_incarnation = svc->incarnation,
                                        .lease_expires_us = engine->lease_until_us,
                                        .lease_seconds = engine->facts.lease_seconds,
                                        .existed = existed};
}

/* Under registry_mutex. NULL: not there, another tenant's, or its lease ran out. */
static struct svc_engine *live_engine(struct kv_call *call, const struct kv_id *id)
{
    struct svc_engine *engine = kv_idmap_get(&call->svc->engines, id);
    bool ours = engine != NULL && kv_id_equal(&engine->tenant, &call->who.tenant);
    return ours && engine->lease_until_ns > boottime(call->svc) ? engine : NULL;
}

static KV_RC unknown_engine(struct kv_call *call)
{
    return kv_fail(&call->info, KV_E_ENGINE_UNKNOWN,
                   "register the engine and its pools again; its sessions are still here");
}

/* --- registration ------------------------------------------------------------------------------------------------ */

/* Under registry_mutex: the same process registering again. */
static struct svc_engine *same_process(struct kv_call *call, const struct kv_engine_new *in)
{
    size_t position = 0;
    for (struct svc_engine *engine = kv_idmap_next(&call->svc->engines, &position); engine != NULL;
         engine = kv_idmap_next(&call->svc->engines, &position)) {
        if (kv_id_equal(&engine->tenant, &call->who.tenant) && engine->facts.pid == in->pid &&
            strcmp(engine->facts.boot_id, in->boot_id) == 0 && strcmp(engine->facts.name, in->name) == 0) {
            return engine;
        }
    }
    return NULL;
}

static KV_RC add_engine(struct kv_call *call, const struct kv_engine_new *in, struct svc_engine **ret_engine)
{
    struct kv_svc *svc = call->svc;
    if (svc->engines.count >= (size_t)KV_MAX_ENGINES) {
        return kv_fail(&call->info, KV_E_BUSY, "%d engines are registered; end one, or wait for a lease to run out",
                       (int)KV_MAX_ENGINES);
    }
    struct svc_engine *engine = kv_alloc(sizeof *engine);
    if (engine == NULL) {
        return KV_E_NO_MEMORY;
    }
    engine->tenant = call->who.tenant;
    engine->facts = *in;
    engine->registered_us = svc->env->realtime_us(svc->env->ctx);
    engine->facts.lease_seconds = in->lease_seconds == 0 ? LEASE_SECONDS : in->lease_seconds;
    engine->seen_revocation = svc->revocation_count;
    enum kv_err rc = kv_id_new(svc->env, &engine->id);
    if (rc == KV_OK) {
        rc = kv_idmap_put(&svc->engines, &engine->id, engine);
    }
    if (rc != KV_OK) {
        kv_free(engine);
        return rc;
    }
    *ret_engine = engine;
    return KV_OK;
}

static void publish(struct kv_svc *svc, enum kv_event_type type, const struct kv_id *tenant, const struct kv_id *engine)
{
    svc_publish(svc, &(struct kv_event){.type = type, .tenant = *tenant, .subject = *engine, .subject_prefix = "eng"});
}

static KV_RC register_locked(struct kv_call *call, const struct kv_engine_new *in, struct kv_engine_view *ret_view)
{
    struct svc_engine *engine = same_process(call, in);
    bool existed = engine != NULL;
    if (existed && (strcmp(engine->facts.kind, in->kind) != 0 ||
                    memcmp(&engine->facts.model, &in->model, sizeof in->model) != 0)) {
        return kv_fail(&call->info, KV_E_ENGINE_CONFLICT,
                       "this process is registered with another kind or model; delete that engine first");
    }
    if (!existed) {
        KV_TRY(add_engine(call, in, &engine));
    }
    renew(call->svc, engine);
    view_of(call->svc, engine, existed, ret_view);
    return KV_OK;
}

KV_RC kv_svc_engine_register(struct kv_call *call, const struct kv_engine_new *in, struct kv_engine_view *ret_engine)
{
    KV_TRY(svc_may_work(call->svc, &call->info));
    pthread_mutex_lock(&call->svc->registry_mutex);
    enum kv_err rc = register_locked(call, in, ret_engine);
    pthread_mutex_unlock(&call->svc->registry_mutex);
    if (rc == KV_OK && !ret_engine->existed) {
        publish(call->svc, KV_EVENT_ENGINE_REGISTERED, &call->who.tenant, &ret_engine->id);
    }
    return rc;
}

/* Only sessions of the engine's tenant are told: the ring holds everybody's. */
static void take_revocations(struct kv_svc *svc, struct svc_engine *engine, struct kv_heartbeat_view *view)
{
    if (svc->revocation_count - engine->seen_revocation > SVC_REVOCATION_RING) {
        engine->seen_revocation = svc->revocation_count - SVC_REVOCATION_RING;
    }
    view->revoked_count = 0;
    while (engine->seen_revocation < svc->revocation_count && view->revoked_count < KV_REVOCATIONS_MAX) {
        const struct svc_revocation *at = &svc->revocations[engine->seen_revocation++ % SVC_REVOCATION_RING];
        if (kv_id_equal(&at->tenant, &engine->tenant)) {
            view->revoked[view->revoked_count++] = at->session;
        }
    }
}

KV_RC kv_svc_engine_heartbeat(struct kv_call *call, const struct kv_id *engine_id, struct kv_heartbeat_view *ret_view)
{
    struct kv_svc *svc = call->svc;
    pthread_mutex_lock(&svc->registry_mutex);
    struct svc_engine *engine = live_engine(call, engine_id);
    if (engine != NULL) {
        renew(svc, engine);
        view_of(svc, engine, true, &ret_view->engine);
        take_revocations(svc, engine, ret_view);
    }
    pthread_mutex_unlock(&svc->registry_mutex);
    return engine != NULL ? KV_OK : unknown_engine(call);
}

/* --- pools ------------------------------------------------------------------------------------------------------- */

/* The descriptor behind a token, once. */
static KV_RC claim_fd(struct kv_call *call, const char *token, int64_t pid, int *ret_fd)
{
    struct kv_svc *svc = call->svc;
    enum kv_err rc = kv_fail(&call->info, KV_E_INVALID_REQUEST,
                             "fd_token is unknown, used or older than %d s; hand the descriptor over again",
                             (int)KV_MAX_FD_TOKEN_SECONDS);
    pthread_mutex_lock(&svc->registry_mutex);
    for (size_t i = 0; i < SVC_FD_TOKENS; i++) {
        struct svc_fd_token *entry = &svc->fd_tokens[i];
        if (entry->fd > 0 && strcmp(entry->text, token) == 0 && entry->expires_ns > kv_now_ns(svc->env)) {
            if (entry->peer_pid != pid) {
                rc = kv_fail(&call->info, KV_E_PEER_MISMATCH,
                             "the descriptor came from process %lld, the engine is process %lld",
                             (long long)entry->peer_pid, (long long)pid);
                continue;
            }
            *ret_fd = entry->fd;
            *entry = (struct svc_fd_token){0};
            rc = KV_OK;
            break;
        }
    }
    pthread_mutex_unlock(&svc->registry_mutex);
    return rc;
}

KV_RC kv_svc_fd_offer(struct kv_svc *svc, int fd, int64_t peer_pid, char ret_token[48])
{
    uint8_t random[16];
    KV_TRY(svc->env->random(svc->env->ctx, random, sizeof random));
    uint64_t now = kv_now_ns(svc->env);
    enum kv_err rc = KV_E_BUSY;
    pthread_mutex_lock(&svc->registry_mutex);
    for (size_t i = 0; i < SVC_FD_TOKENS && rc != KV_OK; i++) {
        struct svc_fd_token *entry = &svc->fd_tokens[i];
        if (entry->fd > 0 && entry->expires_ns > now) {
            continue;
        }
        if (entry->fd > 0) {
            close(entry->fd);
        }
        *entry = (struct svc_fd_token){
            .fd = fd, .peer_pid = peer_pid, .expires_ns = now + (uint64_t)KV_MAX_FD_TOKEN_SECONDS * KV_S_NS};
        memcpy(entry->text, "tok_", 4);
        kv_hex_encode(random, sizeof random, entry->text + 4);
        memcpy(ret_token, entry->text, sizeof entry->text);
        rc = KV_OK;
    }
    pthread_mutex_unlock(&svc->registry_mutex);
    return rc;
}

struct engine_facts {
    int64_t pid;
    struct kv_model model;
};

/* Under registry_mutex: the engine lives and may have one pool more. */
static KV_RC engine_takes_pool(struct kv_call *call, const struct kv_id *id, struct engine_facts *ret_facts)
{
    unsigned pools = 0;
    const struct svc_engine *engine = live_engine(call, id);
    if (engine == NULL) {
        return unknown_engine(call);
    }
    size_t position = 0;
    for (struct svc_pool *pool = kv_idmap_next(&call->svc->pools, &position); pool != NULL;
         pool = kv_idmap_next(&call->svc->pools, &position)) {
        pools += kv_id_equal(&pool->engine, id);
    }
    if (pools >= (unsigned)KV_MAX_POOLS_PER_ENGINE) {
        return kv_fail(&call->info, KV_E_LIMIT, "an engine has at most %d pools; delete one first",
                       (int)KV_MAX_POOLS_PER_ENGINE);
    }
    *ret_facts = (struct engine_facts){.pid = engine->facts.pid, .model = engine->facts.model};
    return KV_OK;
}

static KV_RC engine_for_pool(struct kv_call *call, const struct kv_id *id, struct engine_facts *ret_facts)
{
    pthread_mutex_lock(&call->svc->registry_mutex);
    enum kv_err rc = engine_takes_pool(call, id, ret_facts);
    pthread_mutex_unlock(&call->svc->registry_mutex);
    return rc;
}

static KV_RC name_pool(const struct kv_svc *svc, struct svc_pool *pool)
{
    struct svc_pool_names *names = &pool->names;
    kv_hex_encode(kv_pool_fingerprint(pool->pool), 32, names->layout);
    KV_TRY(kv_policy_table_hash(svc->decisions, names->model.id, &names->model_hash));
    return kv_policy_table_hash(svc->decisions, names->layout, &names->layout_hash);
}

static KV_RC add_pool(struct kv_call *call, struct kv_pool *attached, const struct kv_model *model)
{
    struct kv_svc *svc = call->svc;
    struct engine_facts facts;
    struct svc_pool *pool = kv_alloc(sizeof *pool);
    if (pool == NULL) {
        return KV_E_NO_MEMORY;
    }
    *pool = (struct svc_pool){.pool = attached, .engine = *kv_pool_engine(attached), .names = {.model = *model}};
    enum kv_err rc = name_pool(svc, pool);
    if (rc != KV_OK) {
        kv_free(pool);
        return rc;
    }
    pthread_mutex_lock(&svc->registry_mutex);
    /* Again: meanwhile the engine may have gone, and a pool without one would never be closed. */
    rc = engine_takes_pool(call, &pool->engine, &facts);
    if (rc == KV_OK) {
        rc = kv_idmap_put(&svc->pools, kv_pool_id(attached), pool);
    }
    pthread_mutex_unlock(&svc->registry_mutex);
    if (rc != KV_OK) {
        kv_free(pool);
    }
    return rc;
}

static KV_RC check_size(struct kv_call *call, const struct kv_pool_spec *spec)
{
    uint64_t largest = call->svc->conf.engine.staging_bytes;
    if (spec->bytes_per_block > largest) {
        return kv_fail_at(
            &call->info, KV_E_GEOMETRY_MISMATCH, "/layout",
            "a block of %llu bytes is larger than this server takes, %llu: device.staging_bytes, and with its "
            "header and tags a quarter of tiers.dram.bytes",
            (unsigned long long)spec->bytes_per_block, (unsigned long long)largest);
    }
    return KV_OK;
}

KV_RC kv_svc_pool_register(struct kv_call *call, struct kv_pool_new *in, struct kv_pool_view *ret_pool)
{
    struct engine_facts engine = {0};
    struct kv_pool *pool = NULL;
    KV_TRY(svc_may_work(call->svc, &call->info));
    KV_TRY(engine_for_pool(call, &in->engine, &engine));
    KV_TRY(check_size(call, &in->spec));
    KV_TRY(kv_id_new(call->svc->env, &in->spec.id));
    in->spec.engine = in->engine;
    in->spec.tenant = call->who.tenant;
    KV_TRY(claim_fd(call, in->fd_token, engine.pid, &in->spec.fd));
    enum kv_err rc = kv_pool_attach(&in->spec, &call->info, &pool);
    if (rc != KV_OK) {
        close(in->spec.fd);
        return rc;
    }
    rc = add_pool(call, pool, &engine.model);
    if (rc != KV_OK) {
        kv_pool_unref(pool);
        return rc;
    }
    *ret_pool = (struct kv_pool_view){.id = in->spec.id, .bytes_per_block = kv_pool_block_bytes(pool)};
    memcpy(ret_pool->layout_fingerprint, kv_pool_fingerprint(pool), sizeof ret_pool->layout_fingerprint);
    return KV_OK;
}

KV_RC svc_pool_borrow(struct kv_call *call, const struct kv_id *id, struct kv_pool **ret_pool,
                      struct svc_pool_names *ret_names)
{
    pthread_mutex_lock(&call->svc->registry_mutex);
    const struct svc_pool *pool = kv_idmap_get(&call->svc->pools, id);
    bool ours = pool != NULL && kv_id_equal(kv_pool_tenant(pool->pool), &call->who.tenant);
    bool live = ours && live_engine(call, &pool->engine) != NULL;
    if (live) {
        *ret_pool = kv_pool_ref(pool->pool);
        *ret_names = pool->names;
    }
    pthread_mutex_unlock(&call->svc->registry_mutex);
    if (!ours) {
        return kv_fail_at(&call->info, KV_E_NOT_FOUND, "/pool_id",
                          "no such pool; after a server restart register engine and pools again");
    }
    return live ? KV_OK : unknown_engine(call);
}

/* The pool is out of the registry already; its last reference may be a running transfer's. */
static KV_RC close_pool(struct kv_svc *svc, struct svc_pool *pool, uint64_t wait_ns)
{
    enum kv_err rc = kv_engine_close_pool(svc->engine, pool->pool, kv_now_ns(svc->env) + wait_ns);
    if (rc != KV_OK) {
        kv_log(KV_LOG_WARN, "service", "pool-close-slow", KV_FID("pool", "poo", kv_pool_id(pool->pool)), KV_FRC(rc));
    }
    kv_pool_unref(pool->pool);
    kv_free(pool);
    return rc;
}

KV_RC kv_svc_pool_remove(struct kv_call *call, const struct kv_id *id)
{
    pthread_mutex_lock(&call->svc->registry_mutex);
    struct svc_pool *pool = kv_idmap_get(&call->svc->pools, id);
    bool ours = pool != NULL && kv_id_equal(kv_pool_tenant(pool->pool), &call->who.tenant);
    if (ours) {
        kv_idmap_take(&call->svc->pools, id);
    }
    pthread_mutex_unlock(&call->svc->registry_mutex);
    if (!ours) {
        return kv_fail(&call->info, KV_E_NOT_FOUND, "no such pool");
    }
    return close_pool(call->svc, pool, POOL_CLOSE_NS);
}

/* --- the end of an engine ---------------------------------------------------------------------------------------- */

static struct svc_pool *take_pool_of(struct kv_svc *svc, const struct kv_id *engine)
{
    struct svc_pool *found = NULL;
    size_t position = 0;
    pthread_mutex_lock(&svc->registry_mutex);
    for (struct svc_pool *pool = kv_idmap_next(&svc->pools, &position); pool != NULL && found == NULL;
         pool = kv_idmap_next(&svc->pools, &position)) {
        if (engine == NULL || kv_id_equal(&pool->engine, engine)) {
            found = kv_idmap_take(&svc->pools, kv_pool_id(pool->pool));
        }
    }
    pthread_mutex_unlock(&svc->registry_mutex);
    return found;
}

static void close_pools(struct kv_svc *svc, const struct kv_id *engine, uint64_t wait_ns)
{
    for (struct svc_pool *pool = take_pool_of(svc, engine); pool != NULL; pool = take_pool_of(svc, engine)) {
        KV_IGNORE(close_pool(svc, pool, wait_ns), "a slow transfer keeps its own reference; the mapping goes with it");
    }
}

KV_RC kv_svc_engine_remove(struct kv_call *call, const struct kv_id *id)
{
    pthread_mutex_lock(&call->svc->registry_mutex);
    struct svc_engine *engine = kv_idmap_get(&call->svc->engines, id);
    bool ours = engine != NULL && kv_id_equal(&engine->tenant, &call->who.tenant);
    if (ours) {
        kv_free(kv_idmap_take(&call->svc->engines, id));
    }
    pthread_mutex_unlock(&call->svc->registry_mutex);
    if (!ours) {
        return kv_fail(&call->info, KV_E_NOT_FOUND, "no such engine");
    }
    close_pools(call->svc, id, POOL_CLOSE_NS);
    return KV_OK;
}

/* One engine whose lease ran out, taken out of the registry. */
static bool take_expired(struct kv_svc *svc, struct kv_id *ret_id, struct kv_id *ret_tenant)
{
    bool found = false;
    size_t position = 0;
    pthread_mutex_lock(&svc->registry_mutex);
    for (struct svc_engine *engine = kv_idmap_next(&svc->engines, &position); engine != NULL && !found;
         engine = kv_idmap_next(&svc->engines, &position)) {
        if (engine->lease_until_ns <= boottime(svc)) {
            *ret_id = engine->id;
            *ret_tenant = engine->tenant;
            svc_metrics_engine_lost(engine->facts.kind);
            kv_free(kv_idmap_take(&svc->engines, ret_id));
            found = true;
        }
    }
    pthread_mutex_unlock(&svc->registry_mutex);
    return found;
}

/* A descriptor that nobody claimed holds the memory of a process that may be gone. */
static void close_old_tokens(struct kv_svc *svc)
{
    uint64_t now = kv_now_ns(svc->env);
    pthread_mutex_lock(&svc->registry_mutex);
    for (size_t i = 0; i < SVC_FD_TOKENS; i++) {
        struct svc_fd_token *entry = &svc->fd_tokens[i];
        if (entry->fd > 0 && entry->expires_ns <= now) {
            close(entry->fd);
            *entry = (struct svc_fd_token){0};
        }
    }
    pthread_mutex_unlock(&svc->registry_mutex);
}

void svc_engines_expire(struct kv_svc *svc)
{
    struct kv_id id, tenant;
    while (take_expired(svc, &id, &tenant)) {
        kv_log(KV_LOG_INFO, "service", "engine-lost", KV_FID("engine", "eng", &id));
        close_pools(svc, &id, 0);
        publish(svc, KV_EVENT_ENGINE_LOST, &tenant, &id);
    }
    close_old_tokens(svc);
}

void svc_engines_done(struct kv_svc *svc)
{
    for (struct svc_pool *pool = take_pool_of(svc, NULL); pool != NULL; pool = take_pool_of(svc, NULL)) {
        kv_pool_unref(pool->pool); /* the data plane has stopped */
        kv_free(pool);
    }
    size_t position = 0;
    for (void *engine = kv_idmap_next(&svc->engines, &position); engine != NULL;
         engine = kv_idmap_next(&svc->engines, &position)) {
        kv_free(engine);
    }
    kv_idmap_done(&svc->engines);
    kv_idmap_done(&svc->pools);
    for (size_t i = 0; i < SVC_FD_TOKENS; i++) {
        if (svc->fd_tokens[i].fd > 0) {
            close(svc->fd_tokens[i].fd);
        }
    }
}
