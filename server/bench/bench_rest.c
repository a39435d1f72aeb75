/*
 * GET of a session against what the library does alone. A real server (a child with its own folder and a private
 * PostgreSQL, its access log on) and a bare daemon answer by turns, with answers of the same size on 16 connections;
 * then a thousand requests a second come at their times, whatever became of those before, while an
 * engine moves blocks without a pause. Must never quote one of the
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
#include <time.h>
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
    char operator_key[128], key[128], engine_key[128], tenant[64], session[64], state[300];
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

static KV_RC make_key(struct rest *rest, const char *role, char *ret_key, size_t size)
{
    char path[128], body[96];
    snprintf(path, sizeof path, "/v1/tenants/%s/api-keys", rest->tenant);
    snprintf(body, sizeof body, "{\"name\":\"bench\",\"roles\":[\"%s\"]}", role);
    KV_TRY(ask(rest, path, rest->operator_key, body));
    KV_TRY(take_text(rest, "secret", ret_key, size));
    explicit_bzero(rest->out.data, rest->out.len);
    return KV_OK;
}

static KV_RC make_session(struct rest *rest)
{
    KV_TRY(kv_scratch_read_key(&rest->scratch, "server/operator.key", rest->operator_key, sizeof rest->operator_key,
                               rest->info));
    KV_TRY(ask(rest, "/v1/tenants", rest->operator_key, "{\"name\":\"bench\"}"));
    KV_TRY(take_text(rest, "id", rest->tenant, sizeof rest->tenant));
    KV_TRY(make_key(rest, "tenant_admin", rest->key, sizeof rest->key));
    KV_TRY(make_key(rest, "engine", rest->engine_key, sizeof rest->engine_key));
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
    static const char *const settings[] = {"--tiers.dram.bytes=256MiB", "--tiers.nvme.bytes=256MiB",
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
    snprintf(rest->state, sizeof rest->state, "%s/server", rest->scratch.folder);
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

static double cpu_us(clockid_t clock)
{
    struct timespec t = {0};
    clock_gettime(clock, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* One round of one arm, and what a request took of all threads of the process that answered it, the generator's apart:
 * unlike the rate, that says something on a machine that others use, too. */
static KV_RC arm(struct rest *rest, const struct rest_target *target, clockid_t clock, struct rest_load *ret_load,
                 double *ret_cpu_us)
{
    double begun = cpu_us(clock);
    KV_TRY(rest_closed_loop(target, ROUND_NS, rest->info, ret_load));
    double generator = clock == CLOCK_PROCESS_CPUTIME_ID ? ret_load->cpu_share * ret_load->seconds * 1e6 : 0;
    *ret_cpu_us = (cpu_us(clock) - begun - generator) / (double)ret_load->answers;
    return KV_OK;
}

struct rates {
    double ratio[ROUNDS], plain[ROUNDS], served[ROUNDS], plain_cpu_us[ROUNDS], served_cpu_us[ROUNDS], share;
    size_t bytes;
};

static KV_RC compare(struct rest *rest, struct kv_bench_result *result, struct rates *ret_rates)
{
    clockid_t server;
    if (clock_getcpuclockid(rest->scratch.server, &server) != 0) {
        return kv_fail(rest->info, KV_E_IO, "the server ended");
    }
    ret_rates->share = 0;
    for (unsigned round = 0; round < ROUNDS; round++) {
        struct rest_load plain, served;
        KV_TRY(arm(rest, &rest->plain, CLOCK_PROCESS_CPUTIME_ID, &plain, &ret_rates->plain_cpu_us[round]));
        KV_TRY(arm(rest, &rest->served, server, &served, &ret_rates->served_cpu_us[round]));
        ret_rates->plain[round] = (double)plain.answers / plain.seconds;
        ret_rates->served[round] = (double)served.answers / served.seconds;
        ret_rates->ratio[round] = ret_rates->served[round] / ret_rates->plain[round];
        ret_rates->share += served.cpu_share / ROUNDS;
        ret_rates->bytes = served.answer_bytes;
        kv_bench_pair(result, "library_rps, session_rps", ret_rates->plain[round], ret_rates->served[round]);
    }
    return KV_OK;
}

static KV_RC throughput(struct rest *rest, struct kv_bench_result *result)
{
    struct rates rates;
    KV_TRY(compare(rest, result, &rates));
    double middle = kv_bench_percentile(rates.ratio, ROUNDS, 50);
    result->noise = middle > 0 ? (rates.ratio[ROUNDS - 1] - rates.ratio[0]) / middle : 0;
    kv_bench_goal_least(result, "session_to_library_ratio", 0.35, middle);
    kv_bench_figure(result, "session_rps", kv_bench_percentile(rates.served, ROUNDS, 50));
    kv_bench_figure(result, "library_rps", kv_bench_percentile(rates.plain, ROUNDS, 50));
    kv_bench_figure(result, "session_cpu_us", kv_bench_percentile(rates.served_cpu_us, ROUNDS, 50));
    kv_bench_figure(result, "library_cpu_us", kv_bench_percentile(rates.plain_cpu_us, ROUNDS, 50));
    kv_bench_figure(result, "generator_cpu_share", rates.share);
    kv_bench_figure(result, "answer_bytes", (double)rates.bytes);
    return KV_OK;
}

/* Of each round the p50 and p99. */
struct latencies {
    double p50[OPEN_ROUNDS], p99[OPEN_ROUNDS], cpu_share;
};

static KV_RC offer(struct rest *rest, struct latencies *ret_latencies)
{
    *ret_latencies = (struct latencies){.cpu_share = 0};
    for (unsigned round = 0; round < OPEN_ROUNDS; round++) {
        struct rest_load load;
        KV_TRY(rest_open_loop(&rest->served, OFFERED, OPEN_COUNT, rest->info, rest->us, &load));
        ret_latencies->p50[round] = kv_bench_percentile(rest->us, OPEN_COUNT, 50) / 1e3;
        ret_latencies->p99[round] = kv_bench_percentile(rest->us, OPEN_COUNT, 99) / 1e3;
        ret_latencies->cpu_share += load.cpu_share / OPEN_ROUNDS;
    }
    return KV_OK;
}

/* Once alone, for comparison; then while blocks move as fast as they can. */
static KV_RC latency(struct rest *rest, struct kv_bench_result *result)
{
    struct latencies alone, loaded;
    struct rest_engine *engine = NULL;
    struct rest_moved moved = {0};
    const struct rest_engine_place place = {.state = rest->state, .key = rest->engine_key};
    KV_TRY(offer(rest, &alone));
    KV_TRY(rest_engine_start(&place, rest->info, &engine));
    enum kv_err rc = offer(rest, &loaded);
    enum kv_err ended = rest_engine_stop(engine, rest->info, &moved);
    KV_TRY(rc);
    KV_TRY(ended);
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    double bytes = (double)(moved.offloaded_bytes + moved.restored_bytes);
    for (unsigned round = 0; round < OPEN_ROUNDS; round++) {
        kv_bench_pair(result, "alone_p99_ms, loaded_p99_ms", alone.p99[round], loaded.p99[round]);
    }
    kv_bench_goal(result, "loaded_p99_ms", cpus > 2 ? 1 : 3, kv_bench_percentile(loaded.p99, OPEN_ROUNDS, 50));
    kv_bench_figure(result, "loaded_p50_ms", kv_bench_percentile(loaded.p50, OPEN_ROUNDS, 50));
    kv_bench_figure(result, "loaded_p99_worst_round_ms", loaded.p99[OPEN_ROUNDS - 1]);
    kv_bench_figure(result, "loaded_generator_cpu_share", loaded.cpu_share);
    kv_bench_figure(result, "moved_gb_per_s", moved.seconds > 0 ? bytes / 1e9 / moved.seconds : 0);
    kv_bench_figure(result, "offloaded_gb", (double)moved.offloaded_bytes / 1e9);
    kv_bench_figure(result, "restored_gb", (double)moved.restored_bytes / 1e9);
    kv_bench_figure(result, "missed_blocks", (double)moved.missed_blocks);
    kv_bench_figure(result, "moved_seconds", moved.seconds);
    kv_bench_figure(result, "alone_p99_ms", kv_bench_percentile(alone.p99, OPEN_ROUNDS, 50));
    kv_bench_figure(result, "alone_p50_ms", kv_bench_percentile(alone.p50, OPEN_ROUNDS, 50));
    kv_bench_figure(result, "alone_generator_cpu_share", alone.cpu_share);
    kv_bench_figure(result, "offered_rps", OFFERED);
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

KV_RC kv_bench_rest(bool quick, struct kv_bench_result *result, struct kv_errinfo *info)
{
    (void)quick; /* half a minute is short enough */
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
