/*
 * Between the re-key and the destruction of the old root: every standby that is attached has the re-key on its disk.
 * One that took over without it would show the old root, which is gone by then: all sessions would be lost, none would
 * come back to life. So a standby that is late is waited for, but not for ever: an erasure is worth more than sessions
 * that can be computed anew.
 */
#include "server/service/erase_int.h"

#include "dataplane/base/log.h"
#include "server/service/svc_metrics.h"
#include "server/store/store_standby.h"

#define LOOK_NS (10 * KV_MS_NS)

static void alarm_of(const struct erase_round *round, const struct kv_store_standbys *standbys)
{
    if (standbys->behind == 0 && standbys->unseen == 0) {
        return;
    }
    svc_metrics_standby_late();
    kv_log(KV_LOG_WARN, "eraser", standbys->behind > 0 ? "standbys-behind" : "standbys-unseen",
           KV_FU("attached", standbys->attached), KV_FU("behind", standbys->behind), KV_FU("unseen", standbys->unseen),
           KV_FU("waited_ms", round->svc->conf.standby_wait_ns / KV_MS_NS),
           KV_FT("text",
                 standbys->behind > 0
                     ? "the old root is destroyed all the same; after a failover to one of them all sessions are lost"
                     : "grant pg_monitor to the database's user, so that erasures can wait for standbys"));
}

KV_RC erase_standbys(struct erase_round *round)
{
    struct kv_svc *svc = round->svc;
    struct kv_store_standbys standbys = {0};
    uint64_t end_ns = kv_now_ns(svc->env) + svc->conf.standby_wait_ns;
    if (svc->conf.standby_wait_ns == 0) {
        return KV_OK;
    }
    KV_TRY(kv_store_standbys(round->pg, &round->info, &standbys));
    while (standbys.behind > 0 && kv_now_ns(svc->env) < end_ns) {
        if (atomic_load(&svc->stopping)) {
            return kv_fail(&round->info, KV_E_SHUTTING_DOWN, "stopping while a standby was waited for");
        }
        svc_sleep(svc, LOOK_NS);
        KV_TRY(kv_store_standbys(round->pg, &round->info, &standbys));
    }
    alarm_of(round, &standbys);
    return KV_OK;
}
