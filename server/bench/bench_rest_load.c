/*
 * The generator: one thread, non-blocking sockets, epoll. Must never wait for an answer before it sends what is due on
 * another connection, and must not send a second request on one that has not answered the first.
 */
#include "server/bench/bench_rest_int.h"

#include "dataplane/base/env.h"
#include "dataplane/base/mem.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define ANSWER_MAX 65536u
#define SILENCE_NS (10 * KV_S_NS)

struct connection {
    int fd;
    bool busy;
    unsigned number; /* of the request, in an open loop */
    size_t len;
    char answer[ANSWER_MAX + 1];
};

struct generator {
    const struct rest_target *target;
    struct kv_errinfo *info;
    int epoll;
    unsigned idle; /* connections that have nothing to do */
    uint64_t begun_ns, cpu_begun_ns;
    struct rest_load *load;
    /* open loop */
    unsigned per_second, count, sent;
    double *us;
    struct connection connections[REST_CONNECTIONS];
};

static uint64_t thread_cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * KV_S_NS + (uint64_t)t.tv_nsec;
}

/* --- connections ------------------------------------------------------------------------------------------------- */

static KV_RC open_one(struct generator *gen, struct connection *connection)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)},
                             .sin_port = htons((uint16_t)gen->target->port)};
    int on = 1;
    connection->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct epoll_event event = {.events = EPOLLIN, .data = {.ptr = connection}};
    if (connection->fd < 0 || connect(connection->fd, (struct sockaddr *)&at, sizeof at) != 0 ||
        setsockopt(connection->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0 ||
        epoll_ctl(gen->epoll, EPOLL_CTL_ADD, connection->fd, &event) != 0) {
        return kv_fail(gen->info, KV_E_IO, "cannot connect: %s", strerror(errno));
    }
    gen->idle++;
    return KV_OK;
}

static void generator_free(struct generator **at)
{
    struct generator *gen = *at;
    if (gen == NULL) {
        return;
    }
    for (unsigned i = 0; i < REST_CONNECTIONS; i++) {
        if (gen->connections[i].fd >= 0) {
            close(gen->connections[i].fd);
        }
    }
    if (gen->epoll >= 0) {
        close(gen->epoll);
    }
    kv_free(gen);
}

static KV_RC generator_open(struct generator *gen)
{
    gen->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (gen->epoll < 0) {
        return kv_fail(gen->info, KV_E_IO, "no epoll: %s", strerror(errno));
    }
    for (unsigned i = 0; i < REST_CONNECTIONS; i++) {
        KV_TRY(open_one(gen, &gen->connections[i]));
    }
    gen->begun_ns = kv_now_ns(&kv_env_system);
    gen->cpu_begun_ns = thread_cpu_ns();
    return KV_OK;
}

static KV_RC generator_new(const struct rest_target *target, struct kv_errinfo *info, struct rest_load *load,
                           struct generator **ret_gen)
{
    struct generator *gen = kv_alloc(sizeof *gen);
    if (gen == NULL) {
        return KV_E_NO_MEMORY;
    }
    gen->target = target;
    gen->info = info;
    gen->load = load;
    gen->epoll = -1;
    for (unsigned i = 0; i < REST_CONNECTIONS; i++) {
        gen->connections[i].fd = -1;
    }
    *load = (struct rest_load){0};
    *ret_gen = gen;
    return KV_OK;
}

static void summarise(const struct generator *gen)
{
    double wall = (double)(kv_now_ns(&kv_env_system) - gen->begun_ns);
    gen->load->seconds = wall / 1e9;
    gen->load->cpu_share = (double)(thread_cpu_ns() - gen->cpu_begun_ns) / wall;
}

/* --- requests and answers ---------------------------------------------------------------------------------------- */

static KV_RC send_request(struct generator *gen, struct connection *connection)
{
    ssize_t n = send(connection->fd, gen->target->request, gen->target->request_len, MSG_NOSIGNAL);
    if (n != (ssize_t)gen->target->request_len) { /* less than a socket's buffer, and that is empty */
        return kv_fail(gen->info, KV_E_IO, "cannot send: %s", strerror(errno));
    }
    connection->busy = true;
    connection->len = 0;
    gen->idle--;
    return KV_OK;
}

/* The whole answer's length; 0: not known yet. */
static KV_RC answer_length(struct generator *gen, struct connection *connection, size_t *ret_len)
{
    connection->answer[connection->len] = '\0';
    const char *end = strstr(connection->answer, "\r\n\r\n");
    if (end == NULL) {
        *ret_len = 0;
        return connection->len < ANSWER_MAX ? KV_OK : kv_fail(gen->info, KV_E_IO, "the answer's head is too long");
    }
    const char *length = strstr(connection->answer, "Content-Length: ");
    if (strncmp(connection->answer, "HTTP/1.1 200 ", 13) != 0 || length == NULL || length > end) {
        return kv_fail(gen->info, KV_E_IO, "not the answer that was expected: %.*s",
                       (int)strcspn(connection->answer, "\r"), connection->answer);
    }
    *ret_len = (size_t)(end + 4 - connection->answer) + (size_t)strtoul(length + 16, NULL, 10);
    return *ret_len <= ANSWER_MAX ? KV_OK : kv_fail(gen->info, KV_E_IO, "the answer is too long");
}

static KV_RC take(struct generator *gen, struct connection *connection)
{
    size_t whole = 0;
    ssize_t n = recv(connection->fd, connection->answer + connection->len, ANSWER_MAX - connection->len, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        return KV_OK;
    }
    if (n <= 0) {
        return kv_fail(gen->info, KV_E_IO, "a connection was closed");
    }
    connection->len += (size_t)n;
    KV_TRY(answer_length(gen, connection, &whole));
    if (whole == 0 || connection->len < whole) {
        return KV_OK;
    }
    connection->busy = false;
    gen->idle++;
    gen->load->answers++;
    gen->load->answer_bytes = whole;
    if (gen->us != NULL) {
        uint64_t due = gen->begun_ns + connection->number * (KV_S_NS / gen->per_second);
        gen->us[connection->number] = (double)(kv_now_ns(&kv_env_system) - due) / 1e3;
    }
    return KV_OK;
}

/* Takes what came within `ns`. */
static KV_RC receive(struct generator *gen, uint64_t ns, int *ret_events, struct epoll_event *events)
{
    struct timespec wait = {.tv_sec = (time_t)(ns / KV_S_NS), .tv_nsec = (long)(ns % KV_S_NS)};
    int n = epoll_pwait2(gen->epoll, events, REST_CONNECTIONS, &wait, NULL);
    if (n < 0 && errno != EINTR) {
        return kv_fail(gen->info, KV_E_IO, "cannot wait: %s", strerror(errno));
    }
    *ret_events = n < 0 ? 0 : n;
    for (int i = 0; i < *ret_events; i++) {
        KV_TRY(take(gen, events[i].data.ptr));
    }
    return KV_OK;
}

/* --- closed loop ------------------------------------------------------------------------------------------------- */

static KV_RC run_closed(struct generator *gen, uint64_t ns)
{
    struct epoll_event events[REST_CONNECTIONS];
    KV_TRY(generator_open(gen));
    for (unsigned i = 0; i < REST_CONNECTIONS; i++) {
        KV_TRY(send_request(gen, &gen->connections[i]));
    }
    while (kv_now_ns(&kv_env_system) - gen->begun_ns < ns) {
        int count = 0;
        KV_TRY(receive(gen, SILENCE_NS, &count, events));
        if (count == 0) {
            return kv_fail(gen->info, KV_E_TIMEOUT, "no answer for ten seconds");
        }
        for (int i = 0; i < count; i++) {
            struct connection *connection = events[i].data.ptr;
            KV_TRY(connection->busy ? KV_OK : send_request(gen, connection));
        }
    }
    summarise(gen);
    return KV_OK;
}

KV_RC rest_closed_loop(const struct rest_target *target, uint64_t ns, struct kv_errinfo *info,
                       struct rest_load *ret_load)
{
    struct generator *gen KV_CLEANUP(generator_free) = NULL;
    KV_TRY(generator_new(target, info, ret_load, &gen));
    return run_closed(gen, ns);
}

/* --- open loop --------------------------------------------------------------------------------------------------- */

/* Sends what is due as long as a connection is free; what finds none waits, and its waiting counts. */
static KV_RC send_due(struct generator *gen, uint64_t now_ns)
{
    for (unsigned i = 0; i < REST_CONNECTIONS && gen->sent < gen->count; i++) {
        struct connection *connection = &gen->connections[i];
        if (now_ns < gen->begun_ns + gen->sent * (KV_S_NS / gen->per_second)) {
            return KV_OK;
        }
        if (!connection->busy) {
            connection->number = gen->sent++;
            KV_TRY(send_request(gen, connection));
        }
    }
    return KV_OK;
}

static KV_RC run_open(struct generator *gen)
{
    struct epoll_event events[REST_CONNECTIONS];
    uint64_t heard_ns = 0;
    KV_TRY(generator_open(gen));
    heard_ns = gen->begun_ns;
    while (gen->load->answers < gen->count) {
        int count = 0;
        uint64_t now = kv_now_ns(&kv_env_system);
        KV_TRY(send_due(gen, now));
        uint64_t due = gen->begun_ns + gen->sent * (KV_S_NS / gen->per_second);
        bool waits = gen->sent == gen->count || gen->idle == 0;
        KV_TRY(receive(gen, waits ? SILENCE_NS : due > now ? due - now : 0, &count, events));
        heard_ns = count > 0 ? now : heard_ns;
        if (now > heard_ns + SILENCE_NS) {
            return kv_fail(gen->info, KV_E_TIMEOUT, "no answer for ten seconds");
        }
    }
    summarise(gen);
    return KV_OK;
}

KV_RC rest_open_loop(const struct rest_target *target, unsigned per_second, unsigned count, struct kv_errinfo *info,
                     double *ret_us, struct rest_load *ret_load)
{
    struct generator *gen KV_CLEANUP(generator_free) = NULL;
    KV_TRY(generator_new(target, info, ret_load, &gen));
    gen->per_second = per_second;
    gen->count = count;
    gen->us = ret_us;
    return run_open(gen);
}
