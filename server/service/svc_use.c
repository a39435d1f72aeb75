/*
 * When sessions and API keys were used last. Whoever uses one notes it in memory; the janitor writes it: of a session
 * at once when the database knows of no use within KV_MAX_USE_RECORD_SECONDS, and then at most once in so long; of a
 * key at most once a minute. So a crash takes a few seconds of that knowledge, or a minute of it when the database
 * knows of a use shortly before. Must never write an earlier time over a later one.
 */
#include "server/service/svc_int.h"

#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"
#include "server/store/store_session.h"

#include <string.h>

#define MINUTE_US UINT64_C(60000000)

void svc_use_note(struct kv_svc *svc, const struct kv_id *session, uint64_t at_us)
{
    pthread_mutex_lock(&svc->registry_mutex);
    struct svc_session *known = kv_idmap_get(&svc->sessions, session);
    if (known != NULL && known->used_us < at_us) {
        known->used_us = at_us;
    }
    pthread_mutex_unlock(&svc->registry_mutex);
}

uint64_t svc_use_noted(struct kv_svc *svc, const struct kv_id *session)
{
    pthread_mutex_lock(&svc->registry_mutex);
    const struct svc_session *known = kv_idmap_get(&svc->sessions, session);
    uint64_t used_us = known == NULL ? 0 : known->used_us;
    pthread_mutex_unlock(&svc->registry_mutex);
    return used_us;
}

struct uses {
    struct kv_store_use sessions[KV_STORE_USES_MAX], keys[KV_STORE_USES_MAX];
    size_t session_count, key_count;
};

static void collect_sessions(struct kv_svc *svc, struct uses *uses)
{
    const uint64_t rest_us = (uint64_t)KV_MAX_USE_RECORD_SECONDS * UINT64_C(1000000);
    size_t position = 0;
    bool stopping = atomic_load(&svc->stopping);
    for (struct svc_session *session = kv_idmap_next(&svc->sessions, &position);
         session != NULL && uses->session_count < KV_STORE_USES_MAX;
         session = kv_idmap_next(&svc->sessions, &position)) {
        bool due =
            session->used_us > session->recorded_us && (stopping || session->used_us - session->recorded_us >= rest_us);
        if (due && !session->revoked) {
            uses->sessions[uses->session_count++] = (struct kv_store_use){.id = session->id, .at_us = session->used_us};
        }
    }
}

static void collect_since(struct kv_svc *svc, const struct kv_id *tenant, uint64_t since_us, struct uses *uses)
{
    size_t position = 0;
    uses->session_count = 0;
    pthread_mutex_lock(&svc->registry_mutex);
    for (struct svc_session *session = kv_idmap_next(&svc->sessions, &position);
         session != NULL && uses->session_count < KV_STORE_USES_MAX;
         session = kv_idmap_next(&svc->sessions, &position)) {
        if (session->used_us >= since_us && session->recorded_us < since_us && !session->revoked &&
            kv_id_equal(&session->tenant, tenant)) {
            uses->sessions[uses->session_count++] = (struct kv_store_use){.id = session->id, .at_us = session->used_us};
        }
    }
    pthread_mutex_unlock(&svc->registry_mutex);
}

static void collect_keys(struct kv_svc *svc, struct uses *uses)
{
    size_t position = 0;
    for (struct svc_known_key *key = kv_idmap_next(&svc->known_keys, &position);
         key != NULL && uses->key_count < KV_STORE_USES_MAX; key = kv_idmap_next(&svc->known_keys, &position)) {
        if (key->used_us / MINUTE_US > key->row.last_used_us / MINUTE_US) {
            uses->keys[uses->key_count++] = (struct kv_store_use){.id = key->row.id, .at_us = key->used_us};
        }
    }
}

static void collect(struct kv_svc *svc, struct uses *uses)
{
    pthread_mutex_lock(&svc->registry_mutex);
    collect_sessions(svc, uses);
    collect_keys(svc, uses);
    pthread_mutex_unlock(&svc->registry_mutex);
}

static KV_RC use_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    const struct uses *uses = ctx;
    if (uses->key_count > 0) {
        KV_TRY(kv_store_api_key_used(pg, uses->keys, uses->key_count, info));
    }
    return uses->session_count == 0 ? KV_OK : kv_store_session_used(pg, uses->sessions, uses->session_count, info);
}

static void mark_keys(struct kv_svc *svc, const struct uses *uses)
{
    size_t position = 0, at = 0; /* the same walk again finds them in the same order, or finds fewer */
    for (struct svc_known_key *key = kv_idmap_next(&svc->known_keys, &position); key != NULL && at < uses->key_count;
         key = kv_idmap_next(&svc->known_keys, &position)) {
        if (memcmp(key->row.id.b, uses->keys[at].id.b, sizeof key->row.id.b) == 0) {
            key->row.last_used_us = uses->keys[at++].at_us;
        }
    }
}

static void mark(struct kv_svc *svc, const struct uses *uses)
{
    pthread_mutex_lock(&svc->registry_mutex);
    for (size_t i = 0; i < uses->session_count; i++) {
        struct svc_session *session = kv_idmap_get(&svc->sessions, &uses->sessions[i].id);
        if (session != NULL && session->recorded_us < uses->sessions[i].at_us) {
            session->recorded_us = uses->sessions[i].at_us;
        }
    }
    mark_keys(svc, uses);
    pthread_mutex_unlock(&svc->registry_mutex);
    for (size_t i = 0; i < uses->session_count; i++) {
        svc_views_drop(svc->views, &uses->sessions[i].id);
    }
}

KV_RC svc_use_step(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info, bool *ret_more)
{
    struct uses *uses KV_CLEANUP(kv_freep) = kv_alloc(sizeof *uses);
    if (uses == NULL) {
        return KV_E_NO_MEMORY;
    }
    collect(svc, uses);
    if (uses->session_count + uses->key_count == 0) {
        return KV_OK;
    }
    KV_TRY(kv_pg_tx(pg, KV_TX_USES, use_tx, uses, info, NULL));
    mark(svc, uses);
    *ret_more = uses->session_count == KV_STORE_USES_MAX || uses->key_count == KV_STORE_USES_MAX;
    return KV_OK;
}

KV_RC svc_use_settle(struct kv_svc *svc, struct kv_pg *pg, const struct kv_id *tenant, uint64_t since_us,
                     struct kv_errinfo *info)
{
    struct uses *uses KV_CLEANUP(kv_freep) = kv_alloc(sizeof *uses);
    if (uses == NULL) {
        return KV_E_NO_MEMORY;
    }
    do { /* what was written is not collected again, so this ends */
        collect_since(svc, tenant, since_us, uses);
        if (uses->session_count > 0) {
            KV_TRY(kv_pg_tx(pg, KV_TX_USES, use_tx, uses, info, NULL));
            mark(svc, uses);
        }
    } while (uses->session_count == KV_STORE_USES_MAX);
    return svc_sequence(svc, pg, info, NULL);
}
