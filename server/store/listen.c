/* LISTEN, and waiting on the socket: see listen.h. Must never run another statement on behalf of a caller. */
#include "server/store/listen.h"

#include "server/store/pg_int.h"

#include <poll.h>

KV_RC kv_pg_listen(struct kv_pg *pg, struct kv_errinfo *info)
{
    KV_TRY(kv_pg_connect(pg, info));
    if (pg->pooled) {
        return kv_fail(info, KV_E_UNSUPPORTED, "nobody can listen through a pooler in transaction mode");
    }
    PGresult *result KV_CLEANUP(kv_pg_result_free) = NULL;
    return kv_pg_script(pg, "LISTEN kvrun", pg->statement_timeout_ms, info, &result);
}

/* What has arrived, on the wire or with an earlier answer. */
static bool take_notices(struct kv_pg *pg)
{
    bool told = false;
    for (PGnotify *notice = PQnotifies(pg->conn); notice != NULL; notice = PQnotifies(pg->conn)) {
        told = true;
        PQfreemem(notice);
    }
    return told;
}

KV_RC kv_pg_listen_wait(struct kv_pg *pg, int wake_fd, uint32_t timeout_ms, struct kv_errinfo *info, bool *ret_told)
{
    if (pg->conn == NULL) {
        return kv_pg_unavailable(info);
    }
    bool told = take_notices(pg);
    struct pollfd fds[] = {{.fd = PQsocket(pg->conn), .events = POLLIN}, {.fd = wake_fd, .events = POLLIN}};
    if (!told && poll(fds, 2, (int)timeout_ms) > 0 && fds[0].revents != 0) {
        if (PQconsumeInput(pg->conn) != 1 || PQstatus(pg->conn) != CONNECTION_OK) {
            kv_pg_drop(pg, "listen");
            return kv_pg_unavailable(info);
        }
        told = take_notices(pg);
    }
    *ret_told = told;
    return KV_OK;
}
