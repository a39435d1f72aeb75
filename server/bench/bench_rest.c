/*
 * GET of a session against what the library does alone. A real server (a child with its own folder and a private
 * PostgreSQL, its access log on) and a bare daemon answer by turns, with answers of the same size on 16 connections;
 * then a thousand requests a second come at their times, whatever became of those before. Must never quote one of the
 * two without the other of its round, and leaves nothing behind.
 */
#include "server/bench/bench.h"
#include "server/bench/bench_rest_int.h"

#include "dataplane/base/env.h"
#include "dataplane/base/mem.h"
#include "server/child/scratch.h"
#include "server/cli/client.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define ROUNDS 7u
#define ROUND_NS KV_S_NS
#define WARM_NS (KV_S_NS / 4)
#define OFFERED 1000u /* requests a second */
#define OPEN_ROUNDS 5u
#define OPEN_COUNT 2000u
#define SESSION_BODY "{\"model\":{\"id\":\"bench\",\"revision\":\"1\"},\"labels\":{\"purpose\":\"bench\"}}"

struct rest {
    struct kv_errinfo *info;
    struct kv_scratch scratch;
    struct rest_bare *bare;
    struct kv_client *client;
    struct kv_buf out;
    char operator_key[128], key[128], tenant[64], session[64];
    struct rest_target served, plain;
    double us[OPEN_COUNT];
};

/* --- what is asked ----------------------------------------------------------------------------------------------- */

static KV_RC ask(struct rest *rest, const char *path, const char *key, const char *body)
{
    kv_buf_reset(&rest->out);
    const struct kv_client_call call = {.method = "POST", .path = path, .key = key, .body = body};
    return kv_client_do(rest->client, &call, rest->info, &rest->out);
}

static KV_RC take_text(struct rest *rest, const char *name, char *text, size_t size)
{
    bool found = kv_client_text(&rest->out, name, text, size);
    return found ? KV_OK : kv_fail(rest->info, KV_E_CORRUPT, "the server's answer has no %s", name);
}

static KV_RC make_session(struct rest *rest)
{
    char path[128];
    KV_TRY(kv_scratch_read_key(&rest->scratch, "server/operator.key", rest->operator_key, sizeof rest->operator_key,
                               rest->info));
    KV_TRY(ask(rest, "/v1/tenants", rest->operator_key, "{\"name\":\"bench\"}"));
    KV_TRY(take_text(rest, "id", rest->tenant, sizeof rest->tenant));
    snprintf(path, sizeof path, "/v1/tenants/%s/api-keys", rest->tenant);
    KV_TRY(ask(rest, path, rest->operator_key, "{\"name\":\"bench\",\"roles\":[\"tenant_admin\"]}"));
    KV_TRY(take_text(rest, "secret", rest->key, sizeof rest->key));
    explicit_bzero(rest->out.data, rest->out.len);
    KV_TRY(ask(rest, "/v1/sessions", rest->key, SESSION_BODY));
    return take_text(rest, "id", rest->session, sizeof rest->session);
}

static void aim(struct rest_target *target, unsigned port, const char *path, const char *key)
{
    target->port = port;
    int len = snprintf(target->request, sizeof target->request,
                       "GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: application/json\r\n"
                       "Authorization: Bearer %s\r\n\r\n",
                       path, key);
    target->request_len = (size_t)len;
}

/* The same number of bytes from both, heads included. */
static KV_RC same_size(struct rest *rest)
{
    struct rest_load served, plain;
    const size_t first = 1024;
    rest_bare_size(rest->bare, first);
    KV_TRY(rest_closed_loop(&rest->served, WARM_NS, rest->info, &served));
    KV_TRY(rest_closed_loop(&rest->plain, WARM_NS, rest->info, &plain));
    size_t head = plain.answer_bytes - first;
    rest_bare_size(rest->bare, served.answer_bytes > head ? served.answer_bytes - head : 1);
    return KV_OK;
}

static KV_RC prepare(struct rest *rest)
{
    static const char *const settings[] = {"--tiers.dram.bytes=64MiB", "--tiers.nvme.bytes=64MiB",
                                           "--rate.default=1000000", NULL};
    char exe[PATH_MAX], address[40], path[128];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n <= 0) {
        return kv_fail(rest->info, KV_E_IO, "cannot find this program: /proc is not there");
    }
    exe[n] = '\0';
    kv_scratch_clean_environment();
    KV_TRY(kv_scratch_make(&rest->scratch, "kvrun-bench", rest->info));
    KV_TRY(kv_scratch_serve(&rest->scratch, exe, settings, rest->info));
    snprintf(address, sizeof address, "127.0.0.1:%u", rest->scratch.port);
    KV_TRY(kv_client_new(address, rest->info, &rest->client));
    KV_TRY(make_session(rest));
    KV_TRY(rest_bare_start(rest->info, &rest->bare));
    snprintf(path, sizeof path, "/v1/sessions/%s", rest->session);
    aim(&rest->served, rest->scratch.port, path, rest->key);
    aim(&rest->plain, rest_bare_port(rest->bare), path, rest->key);
    return same_size(rest);
}

/* --- what is measured -------------------------------------------------------------------------------------------- */

static KV_RC throughput(struct rest *rest, struct kv_bench_result *result)
{
    double ratios[ROUNDS], plain_rps[ROUNDS], served_rps[ROUNDS], share = 0;
    size_t bytes = 0;
    for (unsigned round = 0; round < ROUNDS; round++) {
        struct rest_load plain, served;
        KV_TRY(rest_closed_loop(&rest->plain, ROUND_NS, rest->info, &plain));
        KV_TRY(rest_closed_loop(&rest->served, ROUND_NS, rest->info, &served));
        plain_rps[round] = (double)plain.answers / plain.seconds;
        served_rps[round] = (double)served.answers / served.seconds;
        ratios[round] = served_rps[round] / plain_rps[round];
        share += served.cpu_share / ROUNDS;
        bytes = served.answer_bytes;
        kv_bench_pair(result, "library_rps, session_rps", plain_rps[round], served_rps[round]);
    }
    double middle = kv_bench_percentile(ratios, ROUNDS, 50);
    result->noise = middle > 0 ? (ratios[ROUNDS - 1] - ratios[0]) / middle : 0;
    kv_bench_goal_least(result, "session_to_library_ratio", 0.35, middle);
    kv_bench_figure(result, "session_rps", kv_bench_percentile(served_rps, ROUNDS, 50));
    kv_bench_figure(result, "library_rps", kv_bench_percentile(plain_rps, ROUNDS, 50));
    kv_bench_figure(result, "generator_cpu_share", share);
    kv_bench_figure(result, "answer_bytes", (double)bytes);
    return KV_OK;
}

static KV_RC latency(struct rest *rest, struct kv_bench_result *result)
{
    double p50[OPEN_ROUNDS], p99[OPEN_ROUNDS], share = 0;
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    for (unsigned round = 0; round < OPEN_ROUNDS; round++) {
        struct rest_load load;
        KV_TRY(rest_open_loop(&rest->served, OFFERED, OPEN_COUNT, rest->info, rest->us, &load));
        p50[round] = kv_bench_percentile(rest->us, OPEN_COUNT, 50) / 1e3;
        p99[round] = kv_bench_percentile(rest->us, OPEN_COUNT, 99) / 1e3;
        share += load.cpu_share / OPEN_ROUNDS;
    }
    kv_bench_goal(result, "session_p99_ms", cpus > 2 ? 1 : 3, kv_bench_percentile(p99, OPEN_ROUNDS, 50));
    kv_bench_figure(result, "session_p50_ms", kv_bench_percentile(p50, OPEN_ROUNDS, 50));
    kv_bench_figure(result, "session_p99_worst_round_ms", p99[OPEN_ROUNDS - 1]);
    kv_bench_figure(result, "offered_rps", OFFERED);
    kv_bench_figure(result, "offered_generator_cpu_share", share);
    kv_bench_figure(result, "cpus", (double)cpus);
    return KV_OK;
}

static KV_RC measure(struct rest *rest, struct kv_bench_result *result)
{
    KV_TRY(prepare(rest));
    KV_TRY(throughput(rest, result));
    return latency(rest, result);
}

static enum kv_err clean_up(struct rest *rest)
{
    struct kv_errinfo why = {0};
    kv_client_free(rest->client);
    rest_bare_stop(rest->bare);
    enum kv_err rc = kv_scratch_end(&rest->scratch, &why);
    if (!kv_scratch_remove(&rest->scratch)) {
        rc = kv_fail(&why, KV_E_IO, "not all of %s could be removed", rest->scratch.folder);
    }
    kv_buf_done(&rest->out);
    if (rc != KV_OK && rest->info->text[0] == '\0') {
        *rest->info = why;
    }
    explicit_bzero(rest, sizeof *rest);
    return rc;
}

KV_RC kv_bench_rest(struct kv_bench_result *result, struct kv_errinfo *info)
{
    struct rest *rest KV_CLEANUP(kv_freep) = kv_alloc(sizeof *rest);
    if (rest == NULL) {
        return KV_E_NO_MEMORY;
    }
    rest->info = info;
    kv_buf_init(&rest->out, 1u << 20);
    kv_child_catch_signals();
    enum kv_err rc = measure(rest, result);
    enum kv_err ended = clean_up(rest);
    return rc != KV_OK ? rc : ended;
}
