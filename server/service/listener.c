/*
 * Hears of changes that other instances made, so that what is held in memory is read again at once. It is the quick
 * way only: the lease's renewal compares the number of changes, and that holds with a dead connection, a network that
 * swallows everything, and a pooler through which nobody can listen.
 */
#include "server/service/svc_int.h"

#include "dataplane/base/log.h"
#include "server/store/listen.h"

#include <poll.h>

#define PING_MS 5000 /* after a silence of this length somebody is asked whether they are there */
#define AGAIN_MS 100 /* between attempts; the connection's own backoff is above it */
#define IMPOSSIBLE_MS 60000

struct listening {
    bool on;
    bool said;       /* that it is impossible */
    uint64_t losses; /* of the connection when it began to listen */
};

static uint64_t losses(const struct kv_svc *svc)
{
    struct kv_pg_stats stats;
    kv_pg_stats(svc->listener.pg, &stats);
    return stats.losses;
}

/* Nobody knows what happened before this connection listened, so everything counts as changed. */
static void begin(struct kv_svc *svc, struct listening *listening)
{
    struct kv_errinfo info = {0};
    enum kv_err rc = kv_pg_listen(svc->listener.pg, &info);
    listening->losses = losses(svc);
    listening->on = rc == KV_OK;
    if (rc == KV_OK) {
        svc_changed(svc);
        return;
    }
    if (rc == KV_E_UNSUPPORTED && !listening->said) {
        kv_log(KV_LOG_WARN, "listener", "listening-is-impossible", KV_FT("text", info.text),
               KV_FU("changes_are_seen_within_ms", svc->conf.lease_ns / 3 / KV_MS_NS));
        listening->said = true;
    }
    struct pollfd wake = {.fd = svc->listener_stop, .events = POLLIN};
    poll(&wake, 1, rc == KV_E_UNSUPPORTED ? IMPOSSIBLE_MS : AGAIN_MS);
}

static void go_on(struct kv_svc *svc, struct listening *listening)
{
    struct kv_errinfo info = {0};
    bool told = false;
    enum kv_err rc = kv_pg_listen_wait(svc->listener.pg, svc->listener_stop, PING_MS, &info, &told);
    if (rc == KV_OK && told) {
        svc_changed(svc);
    } else if (rc == KV_OK && !atomic_load(&svc->stopping)) {
        rc = kv_pg_ping(svc->listener.pg, &info); /* heals by itself, but what it healed does not listen */
    }
    listening->on = rc == KV_OK && losses(svc) == listening->losses;
}

void *svc_listener_main(void *arg)
{
    struct kv_svc *svc = arg;
    struct listening listening = {0};
    while (!atomic_load(&svc->stopping)) {
        (listening.on ? go_on : begin)(svc, &listening);
    }
    return NULL;
}
