/* Streams, polls and waits under a publisher that does not care: a reader that stops reading, and callers that break
 * off at any moment while connections are suspended and resumed. */
#include "dataplane/base/id.h"
#include "server/http/httpd.h"
#include "server/service/event.h"
#include "server/service/svc_key.h"
#include "tests/lib/svc_rig.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <arpa/inet.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

TEMP_POSTGRES_HOOKS

static struct kvt_svc rig;
static struct kv_httpd *httpd;
static char token[KV_API_KEY_TEXT_SIZE];

static void start(void)
{
    struct kv_errinfo info = {0};
    struct kv_key_view *key = calloc(1, sizeof *key);
    struct kv_id platform = {0};
    struct kv_httpd_conf conf = {.listen = "127.0.0.1:0",
                                 .admin_listen = "127.0.0.1:0",
                                 .connections = 200,
                                 .threads = 2,
                                 .header_timeout_ms = 3000,
                                 .idle_timeout_ms = 30000,
                                 .heartbeat_ms = 1000,
                                 .rates = {.erase = 1000, .peer = 1000},
                                 .env = &kv_env_system};
    kvt_svc_open(&rig);
    kvt_svc_as(&rig.call, platform, KV_ROLE_OPERATOR);
    struct kv_key_new in = {.name = "watcher", .roles = KV_ROLE_OPERATOR};
    cr_assert(eq(int, kv_svc_key_create(&rig.call, &platform, &in, key), KV_OK), "%s", rig.call.info.text);
    snprintf(token, sizeof token, "%s", key->secret);
    free(key);
    cr_assert(eq(int, kv_httpd_start(&conf, &info, &httpd), KV_OK), "%s", info.text);
    cr_assert(eq(int, kv_httpd_serve(httpd, rig.svc, &info), KV_OK), "%s", info.text);
}

static void end(void)
{
    cr_expect(eq(int, kv_httpd_quiesce(httpd, 5 * KV_S_NS), KV_OK));
    kv_httpd_stop(httpd);
    kvt_svc_done(&rig);
}

static int ask(const char *target, int receive)
{
    char request[512];
    struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)kv_httpd_port(httpd)), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct timeval limit = {.tv_sec = 30};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (receive > 0) {
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive, sizeof receive);
    }
    cr_assert(eq(int, connect(fd, (struct sockaddr *)&at, sizeof at), 0));
    int len = snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n",
                       target, token);
    cr_assert(eq(int, (int)send(fd, request, (size_t)len, MSG_NOSIGNAL), len));
    return fd;
}

static void publish(uint64_t number)
{
    svc_publish(rig.svc, &(struct kv_event){.type = KV_EVENT_TIER_STATE, .name = "nvme", .version = number});
}

/* Reads until `text` stands in `tail`, where what was read last is, or the end; how many bytes. */
static size_t read_until(int fd, const char *text, char tail[8192])
{
    size_t all = 0, len = strlen(tail);
    ssize_t n = 1;
    while (strstr(tail, text) == NULL && n > 0) {
        if (len > 4096) { /* a text may lie across two reads */
            memmove(tail, tail + len - 2048, 2049);
            len = 2048;
        }
        n = recv(fd, tail + len, 8191 - len, 0);
        len += n > 0 ? (size_t)n : 0;
        all += n > 0 ? (size_t)n : 0;
        tail[len] = '\0';
    }
    return all;
}

#define EVENTS 20000
#define AT_ONCE 1000 /* less than a reader may be behind */

static atomic_ullong seen; /* events of the reader that reads: each has one brace that closes */

static void *read_on(void *arg)
{
    const int *fd = arg;
    char bytes[8192];
    for (ssize_t n = 1; n > 0 && atomic_load(&seen) < EVENTS;) {
        n = recv(*fd, bytes, sizeof bytes, 0);
        for (ssize_t i = 0; i < n; i++) {
            atomic_fetch_add(&seen, bytes[i] == '}');
        }
    }
    return NULL;
}

/* The slowest of them, in nanoseconds. */
static uint64_t publish_all(void)
{
    uint64_t longest = 0, end = kv_now_ns(&kv_env_system) + 60 * KV_S_NS;
    for (uint64_t i = 1; i <= EVENTS; i++) {
        uint64_t before = kv_now_ns(&kv_env_system);
        publish(i);
        uint64_t took = kv_now_ns(&kv_env_system) - before;
        longest = took > longest ? took : longest;
        while (i % AT_ONCE == 0 && atomic_load(&seen) < i && kv_now_ns(&kv_env_system) < end) {
            usleep(1000);
        }
    }
    return longest;
}

Test(stream, a_reader_that_stops_is_told_so_and_holds_nobody_up, .init = start, .fini = end)
{
    char tail[8192] = "", greeting[8192] = "";
    pthread_t thread;
    int slow = ask("/v1/events", 4096), good = ask("/v1/events", 0);
    read_until(slow, "retry: 2000", tail);
    read_until(good, "retry: 2000", greeting);
    cr_assert(eq(int, pthread_create(&thread, NULL, read_on, &good), 0));
    cr_expect(lt(u64, publish_all(), 2 * KV_S_NS), "a publisher waited");
    pthread_join(thread, NULL);
    cr_expect(ge(u64, (uint64_t)atomic_load(&seen), EVENTS), "the control: one who reads gets everything");
    size_t bytes = read_until(slow, "event: lagged", tail);
    cr_expect(strstr(tail, "event: lagged") != NULL);
    cr_expect(lt(sz, bytes, 2u << 20), "what the kernel held and some");
    read_until(slow, "\r\n0\r\n\r\n", tail);
    cr_expect(strstr(tail, "\r\n0\r\n\r\n") != NULL, "the end of the stream");
    close(slow);
    close(good);
}

/* --- callers that break off -------------------------------------------------------------------------------------- */

#define CALLERS 6
#define ROUNDS 60

static const char *const targets[] = {"/v1/events", "/v1/events?poll=1&wait_seconds=20",
                                      "/v1/events?types=policy.changed", "/v1/events?poll=1&wait_seconds=1", "/livez"};

static void *break_off(void *arg)
{
    unsigned seed = *(const unsigned *)arg;
    for (unsigned i = 0; i < ROUNDS; i++) {
        char bytes[4096];
        int fd = ask(targets[(unsigned)rand_r(&seed) % (sizeof targets / sizeof targets[0])], 0);
        usleep((useconds_t)rand_r(&seed) % 20000);
        if (rand_r(&seed) % 2 == 0) {
            (void)!recv(fd, bytes, (size_t)rand_r(&seed) % sizeof bytes, MSG_DONTWAIT);
        }
        if (rand_r(&seed) % 2 == 0) {
            struct linger reset = {.l_onoff = 1};
            setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        }
        close(fd);
    }
    return NULL;
}

static void *publish_on(void *arg)
{
    atomic_bool *stop = arg;
    for (uint64_t i = 1; !atomic_load(stop); i++) {
        publish(i);
        usleep(i % 7 == 0 ? 3000 : 100);
    }
    return NULL;
}

Test(stream, callers_that_break_off_at_any_moment, .init = start, .fini = end)
{
    pthread_t callers[CALLERS], publisher;
    unsigned seeds[CALLERS];
    atomic_bool stop = false;
    char tail[8192] = "";
    cr_assert(eq(int, pthread_create(&publisher, NULL, publish_on, &stop), 0));
    for (unsigned i = 0; i < CALLERS; i++) {
        seeds[i] = 7 * i + 1;
        cr_assert(eq(int, pthread_create(&callers[i], NULL, break_off, &seeds[i]), 0));
    }
    for (unsigned i = 0; i < CALLERS; i++) {
        pthread_join(callers[i], NULL);
    }
    int fd = ask("/v1/events", 0); /* the control: it still works, and the stop meets one that is open */
    for (unsigned i = 0; i < 100 && read_until(fd, "\r\n\r\n", tail) > 0 && strstr(tail, " 200 ") == NULL; i++) {
        close(fd); /* those who broke off last may have all places for a moment */
        usleep(100000);
        tail[0] = '\0';
        fd = ask("/v1/events", 0);
    }
    read_until(fd, "event: tier.state", tail);
    cr_expect(strstr(tail, "event: tier.state") != NULL);
    atomic_store(&stop, true);
    pthread_join(publisher, NULL);
    close(fd);
}
