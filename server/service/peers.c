/*
 * The other instances of this database, as their rows were seen last, and how long each one's counter has stood still.
 * Must never call a lease over that may still run: the clock is this process's own, and it counts from when the counter
 * was read, which is later than the instance sent the renewal that set it.
 */
#include "server/service/svc_int.h"

#include "dataplane/base/id.h"
#include "dataplane/base/log.h"
#include "dataplane/base/mem.h"

#include <string.h>

uint64_t svc_peer_patience_ns(uint32_t lease_ms)
{
    /* The instance itself stops a tenth early, so two clocks may differ by a fifth before this is too short. */
    uint64_t lease_ns = lease_ms * KV_MS_NS;
    return lease_ns + lease_ns / 10;
}

static uint64_t boottime(const struct kv_svc *svc)
{
    return svc->env->boottime_ns(svc->env->ctx);
}

bool svc_peer_is_over(const struct kv_svc *svc, const struct svc_peer *peer)
{
    return peer->row.expired_us != 0 || boottime(svc) - peer->since_ns >= svc_peer_patience_ns(peer->row.lease_ms);
}

/* Under peers_mutex. */
static uint64_t since(const struct kv_svc *svc, const struct kv_store_instance *row, uint64_t now_ns)
{
    for (size_t i = 0; i < svc->peer_count; i++) {
        const struct kv_store_instance *seen = &svc->peers[i].row;
        if (kv_id_equal(&seen->id, &row->id) && seen->incarnation == row->incarnation &&
            seen->lease_ctr == row->lease_ctr) {
            return svc->peers[i].since_ns;
        }
    }
    return now_ns;
}

static void keep(struct kv_svc *svc, const struct kv_store_instance *rows, size_t count, struct svc_peer *fresh)
{
    uint64_t now_ns = boottime(svc); /* after the rows were read */
    size_t kept = 0;
    pthread_mutex_lock(&svc->peers_mutex);
    for (size_t i = 0; i < count; i++) {
        if (!kv_id_equal(&rows[i].id, &svc->instance)) {
            fresh[kept++] = (struct svc_peer){.row = rows[i], .since_ns = since(svc, &rows[i], now_ns)};
        }
    }
    memcpy(svc->peers, fresh, kept * sizeof fresh[0]);
    svc->peer_count = kept;
    pthread_mutex_unlock(&svc->peers_mutex);
}

KV_RC svc_peers_look(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info)
{
    const size_t max = SVC_INSTANCES_MAX + 1;
    struct kv_store_instance *rows KV_CLEANUP(kv_freep) = kv_alloc_array(max, sizeof *rows);
    struct svc_peer *fresh KV_CLEANUP(kv_freep) = kv_alloc_array(max, sizeof *fresh);
    size_t count = 0;
    if (rows == NULL || fresh == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(kv_store_instances_list(pg, max, info, rows, &count));
    if (count == max) { /* one that is not seen would not be waited for */
        return kv_fail(info, KV_E_LIMIT, "the database has more instances than %d that have not left",
                       SVC_INSTANCES_MAX);
    }
    keep(svc, rows, count, fresh);
    return KV_OK;
}

size_t svc_peers(struct kv_svc *svc, struct svc_peer *ret_peers)
{
    pthread_mutex_lock(&svc->peers_mutex);
    size_t count = svc->peer_count;
    memcpy(ret_peers, svc->peers, count * sizeof ret_peers[0]);
    pthread_mutex_unlock(&svc->peers_mutex);
    return count;
}

bool svc_peers_any(struct kv_svc *svc)
{
    bool any = false;
    pthread_mutex_lock(&svc->peers_mutex);
    for (size_t i = 0; i < svc->peer_count; i++) {
        any = any || !svc_peer_is_over(svc, &svc->peers[i]);
    }
    pthread_mutex_unlock(&svc->peers_mutex);
    return any;
}
