/*
 * What libmicrohttpd does when there is nothing to do: no key, no JSON, no headers of ours. Must have the flags and the
 * limits of the server's listener (server/http/httpd.c), or the comparison says nothing.
 */
#include "server/bench/bench_rest_int.h"

#include "dataplane/base/mem.h"

#include <arpa/inet.h>
#include <microhttpd.h>
#include <string.h>

#define POOL_BYTES (32u * 1024)
#define BODY_MAX 65536u

struct rest_bare {
    struct MHD_Daemon *daemon;
    size_t body_bytes;
    char body[BODY_MAX];
};

static enum MHD_Result answer(void *ctx, struct MHD_Connection *connection, const char *url, const char *method,
                              const char *version, const char *upload, size_t *upload_size, void **request)
{
    struct rest_bare *bare = ctx;
    static char seen; /* its address marks a request whose headers were seen */
    (void)url, (void)method, (void)version, (void)upload, (void)upload_size;
    if (*request == NULL) {
        *request = &seen;
        return MHD_YES;
    }
    struct MHD_Response *response =
        MHD_create_response_from_buffer(bare->body_bytes, bare->body, MHD_RESPMEM_PERSISTENT);
    enum MHD_Result rc = response == NULL ? MHD_NO : MHD_queue_response(connection, MHD_HTTP_OK, response);
    MHD_destroy_response(response);
    return rc;
}

KV_RC rest_bare_start(struct kv_errinfo *info, struct rest_bare **ret_bare)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    struct rest_bare *bare = kv_alloc(sizeof *bare);
    if (bare == NULL) {
        return KV_E_NO_MEMORY;
    }
    memset(bare->body, ' ', sizeof bare->body);
    bare->body_bytes = 1024;
    bare->daemon =
        MHD_start_daemon(MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC | MHD_USE_ERROR_LOG, 0,
                         NULL, NULL, answer, bare, MHD_OPTION_SOCK_ADDR, (struct sockaddr *)&at,
                         MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)POOL_BYTES, MHD_OPTION_END);
    if (bare->daemon == NULL) {
        kv_free(bare);
        return kv_fail(info, KV_E_IO, "the bare daemon did not start");
    }
    *ret_bare = bare;
    return KV_OK;
}

void rest_bare_size(struct rest_bare *bare, size_t body_bytes)
{
    bare->body_bytes = body_bytes < BODY_MAX ? body_bytes : BODY_MAX;
}

unsigned rest_bare_port(const struct rest_bare *bare)
{
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(bare->daemon, MHD_DAEMON_INFO_BIND_PORT);
    return info == NULL ? 0 : info->port;
}

void rest_bare_stop(struct rest_bare *bare)
{
    if (bare != NULL) {
        MHD_stop_daemon(bare->daemon);
        kv_free(bare);
    }
}
