/* See reaper.h. Ends a connection by shutting its socket down: the library then sees the end and cleans up itself. */
#include "server/http/reaper.h"

#include "dataplane/base/log.h"
#include "dataplane/base/mem.h"
#include "server/http/count.h"

#include <errno.h>
#include <microhttpd.h>
#include <pthread.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <time.h>

#define LOOK_NS (500 * KV_MS_NS)
#define BODY_BYTES_PER_SECOND 65536

struct watched {
    LIST_ENTRY(watched) link;
    int fd;
    uint64_t deadline_ns; /* UINT64_MAX: the request is ours to finish */
};

struct kv_reaper {
    const struct kv_env *env;
    uint64_t header_ns, idle_ns;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    pthread_t thread;
    bool started, stopping;
    LIST_HEAD(, watched) connections;
};

static void look(struct kv_reaper *reaper)
{
    uint64_t now = kv_now_ns(reaper->env);
    struct watched *watched = NULL;
    LIST_FOREACH(watched, &reaper->connections, link)
    {
        if (watched->deadline_ns <= now) {
            shutdown(watched->fd, SHUT_RDWR); /* does not block */
            kv_http_count_reject(KV_E_TIMEOUT);
            watched->deadline_ns = UINT64_MAX;
        }
    }
}

static void *reaper_main(void *arg)
{
    struct kv_reaper *reaper = arg;
    pthread_mutex_lock(&reaper->mutex);
    while (!reaper->stopping) {
        struct timespec until = kv_timespec_of(kv_now_ns(reaper->env) + LOOK_NS);
        if (pthread_cond_timedwait(&reaper->wake, &reaper->mutex, &until) == ETIMEDOUT) {
            look(reaper);
            pthread_mutex_unlock(&reaper->mutex);
            kv_log_flush(); /* lines of requests after which none came */
            pthread_mutex_lock(&reaper->mutex);
        }
    }
    pthread_mutex_unlock(&reaper->mutex);
    kv_log_flush();
    return NULL;
}

KV_RC kv_reaper_new(const struct kv_env *env, uint64_t header_ms, uint64_t idle_ms, struct kv_reaper **ret_reaper)
{
    struct kv_reaper *reaper = kv_alloc(sizeof *reaper);
    if (reaper == NULL) {
        return KV_E_NO_MEMORY;
    }
    reaper->env = env;
    reaper->header_ns = header_ms * KV_MS_NS;
    reaper->idle_ns = idle_ms * KV_MS_NS;
    LIST_INIT(&reaper->connections);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&reaper->wake, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&reaper->mutex, NULL);
    if (pthread_create(&reaper->thread, NULL, reaper_main, reaper) != 0) {
        kv_free(reaper);
        return KV_E_NO_MEMORY;
    }
    reaper->started = true;
    *ret_reaper = reaper;
    return KV_OK;
}

void kv_reaper_free(struct kv_reaper *reaper)
{
    if (reaper == NULL) {
        return;
    }
    pthread_mutex_lock(&reaper->mutex);
    reaper->stopping = true;
    pthread_cond_signal(&reaper->wake);
    pthread_mutex_unlock(&reaper->mutex);
    pthread_join(reaper->thread, NULL);
    while (!LIST_EMPTY(&reaper->connections)) {
        struct watched *watched = LIST_FIRST(&reaper->connections);
        LIST_REMOVE(watched, link);
        kv_free(watched);
    }
    kv_free(reaper);
}

static struct watched *watched_of(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info == NULL ? NULL : info->socket_context;
}

static void start_watch(struct kv_reaper *reaper, struct MHD_Connection *connection, void **socket_context)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct watched *watched = info == NULL ? NULL : kv_alloc(sizeof *watched);
    if (watched == NULL) {
        return; /* unwatched; the library's own time-out still holds */
    }
    watched->fd = info->connect_fd;
    watched->deadline_ns = kv_now_ns(reaper->env) + reaper->header_ns;
    *socket_context = watched;
    pthread_mutex_lock(&reaper->mutex);
    LIST_INSERT_HEAD(&reaper->connections, watched, link);
    pthread_mutex_unlock(&reaper->mutex);
}

void kv_reaper_connection(struct kv_reaper *reaper, struct MHD_Connection *connection, void **socket_context,
                          bool started)
{
    if (started) {
        start_watch(reaper, connection, socket_context);
        return;
    }
    struct watched *watched = *socket_context;
    if (watched != NULL) {
        pthread_mutex_lock(&reaper->mutex);
        LIST_REMOVE(watched, link);
        pthread_mutex_unlock(&reaper->mutex);
        kv_free(watched);
        *socket_context = NULL;
    }
}

static void set_deadline(struct kv_reaper *reaper, struct MHD_Connection *connection, uint64_t from_now_ns)
{
    struct watched *watched = watched_of(connection);
    if (watched != NULL) {
        pthread_mutex_lock(&reaper->mutex);
        watched->deadline_ns = kv_now_ns(reaper->env) + from_now_ns;
        pthread_mutex_unlock(&reaper->mutex);
    }
}

void kv_reaper_headers_seen(struct kv_reaper *reaper, struct MHD_Connection *connection)
{
    /* The longest body at the lowest rate. Whoever sends it has shown no key yet. */
    uint64_t body_ns = (uint64_t)KV_MAX_BODY_BYTES / BODY_BYTES_PER_SECOND * KV_S_NS;
    set_deadline(reaper, connection, reaper->header_ns + body_ns);
}

void kv_reaper_body_seen(struct kv_reaper *reaper, struct MHD_Connection *connection)
{
    /* The longest answer that a request may wait for. */
    set_deadline(reaper, connection,
                 reaper->header_ns + (uint64_t)KV_MAX_WAIT_SECONDS * KV_S_NS + (uint64_t)KV_MAX_TRANSFER_MS * KV_MS_NS);
}

void kv_reaper_stream(struct kv_reaper *reaper, struct MHD_Connection *connection)
{
    set_deadline(reaper, connection, reaper->header_ns + (uint64_t)KV_MAX_STREAM_SECONDS * KV_S_NS);
}

void kv_reaper_stream_over(struct kv_reaper *reaper, struct MHD_Connection *connection)
{
    set_deadline(reaper, connection, reaper->header_ns);
}

void kv_reaper_request_done(struct kv_reaper *reaper, struct MHD_Connection *connection)
{
    set_deadline(reaper, connection, reaper->idle_ns + reaper->header_ns);
}
