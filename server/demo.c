/*
 * See demo.h. The attack program reads only what a thief could have: arena files, the root file, database dumps. The
 * server is a process of its own and is spoken to over its interface like anybody's. Must never print what it did not
 * just see.
 */
#include "server/demo.h"

#include "dataplane/base/env.h"
#include "dataplane/base/log.h"
#include "server/demo_int.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

const char *demo_at(const struct demo *demo, const char *name, char path[PATH_SIZE])
{
    return kv_scratch_at(&demo->scratch, name, path);
}

const char *demo_program(const struct demo *demo, const char *name, char path[PATH_SIZE])
{
    snprintf(path, PATH_SIZE, "%.4000s/%s", demo->bin, name);
    return path;
}

static void title(unsigned step, const char *text)
{
    printf("\n%2u. %s\n", step, text);
    fflush(stdout);
}

KV_RC demo_lie(struct demo *demo, const char *what)
{
    return kv_fail(&demo->info, KV_E_TAMPERED, "%s", what);
}

KV_RC demo_program_run(struct demo *demo, char *const argv[], unsigned timeout_s, bool echo)
{
    kv_buf_reset(&demo->out);
    return kv_child_run(argv, timeout_s, echo, &demo->info, &demo->out);
}

/* --- 1: a server ------------------------------------------------------------------------------------------------- */

static KV_RC start_server(struct demo *demo)
{
    static const char *const settings[] = {"--tiers.dram.bytes=64MiB", "--tiers.nvme.bytes=256MiB", NULL};
    char exe[PATH_SIZE], address[40];
    KV_TRY(kv_scratch_serve(&demo->scratch, demo_program(demo, "kvrun", exe), settings, &demo->info));
    snprintf(address, sizeof address, "127.0.0.1:%u", demo->scratch.port);
    KV_TRY(kv_client_new(address, &demo->info, &demo->client));
    KV_TRY(kv_scratch_read_key(&demo->scratch, "server/operator.key", demo->operator_key, KEY_SIZE, &demo->info));
    printf("   kvrun serves http://%s with a private PostgreSQL; root of erasure in a file beside it\n"
           "   first operator key (it ends with this demo): %s\n",
           address, demo->operator_key);
    return KV_OK;
}

static void print_tier(void *ctx, const char *name, const char *state, long long bytes)
{
    (void)ctx;
    printf("   tier %-6s %-4s %8.1f MiB used\n", name, state, (double)bytes / 1048576);
}

KV_RC demo_call(struct demo *demo, const struct kv_client_call *request)
{
    return kv_client_do(demo->client, request, &demo->info, &demo->out);
}

static KV_RC show_tiers(struct demo *demo)
{
    KV_TRY(demo_call(demo, &(struct kv_client_call){.method = "GET", .path = "/v1/tiers", .key = demo->operator_key}));
    kv_client_each(&demo->out, "data", "name", "used_bytes", print_tier, NULL);
    return KV_OK;
}

/* --- 2: a tenant ------------------------------------------------------------------------------------------------- */

static KV_RC make_key(struct demo *demo, const char *role, char key[KEY_SIZE])
{
    char path[128], body[128];
    snprintf(path, sizeof path, "/v1/tenants/%s/api-keys", demo->tenant);
    snprintf(body, sizeof body, "{\"name\":\"demo %s\",\"roles\":[\"%s\"]}", role, role);
    KV_TRY(demo_call(
        demo, &(struct kv_client_call){.method = "POST", .path = path, .key = demo->operator_key, .body = body}));
    bool found = kv_client_text(&demo->out, "secret", key, KEY_SIZE);
    explicit_bzero(demo->out.data, demo->out.len);
    return found ? KV_OK : demo_lie(demo, "the server made a key without a secret");
}

static KV_RC make_tenant(struct demo *demo)
{
    char path[PATH_SIZE];
    struct kv_client_call request = {
        .method = "POST", .path = "/v1/tenants", .key = demo->operator_key, .body = "{\"name\":\"acme\"}"};
    KV_TRY(demo_call(demo, &request));
    if (!kv_client_text(&demo->out, "id", demo->tenant, sizeof demo->tenant)) {
        return demo_lie(demo, "the server made a tenant without an id");
    }
    KV_TRY(make_key(demo, "tenant_admin", demo->admin_key));
    KV_TRY(make_key(demo, "engine", demo->engine_key));
    printf("   tenant acme (%s), a key for its administrator, a key for its engine\n", demo->tenant);
    return kv_child_write_file(demo_at(demo, "engine.key", path), KV_BYTES(demo->engine_key, strlen(demo->engine_key)),
                               &demo->info);
}

/* --- 3: a real engine -------------------------------------------------------------------------------------------- */

static KV_RC run_engine(struct demo *demo)
{
    char exe[PATH_SIZE], sock[PATH_SIZE], fd_sock[PATH_SIZE], key[PATH_SIZE], operator_key[PATH_SIZE];
    char *const argv[] = {(char *)(uintptr_t)demo_program(demo, "kvrun-engine", exe),
                          (char[]){"--socket"},
                          (char *)(uintptr_t)demo_at(demo, "server/engine.sock", sock),
                          (char[]){"--fd-socket"},
                          (char *)(uintptr_t)demo_at(demo, "server/engine-fd.sock", fd_sock),
                          (char[]){"--token-file"},
                          (char *)(uintptr_t)demo_at(demo, "engine.key", key),
                          (char[]){"--operator-token-file"},
                          (char *)(uintptr_t)demo_at(demo, "server/operator.key", operator_key),
                          (char[]){"run"},
                          NULL};
    KV_TRY(demo_program_run(demo, argv, 120, true));
    const char *text = (const char *)demo->out.data;
    const char *session = strstr(text, "ses_");
    if (strstr(text, "logits identical") == NULL || session == NULL) {
        return demo_lie(demo, "the engine did not get its state back bit for bit");
    }
    snprintf(demo->session, sizeof demo->session, "%.*s", (int)strspn(session, "abcdefghijklmnopqrstuvwxyz0123456789_"),
             session);
    return show_tiers(demo);
}

/* --- 6: the erasure ---------------------------------------------------------------------------------------------- */

static void print_step(void *ctx, const char *text, const char *state, long long value)
{
    (void)ctx;
    (void)value;
    printf("   %-10s %s\n", state, text);
}

static KV_RC erase(struct demo *demo)
{
    char body[160], state[32] = "", claim[160] = "";
    snprintf(body, sizeof body,
             "{\"scope\":{\"session_id\":\"%s\"},\"basis\":\"gdpr_art17\",\"reason\":\"the user asked\"}",
             demo->session);
    uint64_t begun = kv_now_ns(&kv_env_system);
    struct kv_client_call request = {
        .method = "POST", .path = "/v1/erasures", .key = demo->admin_key, .body = body, .wait_seconds = 30};
    KV_TRY(demo_call(demo, &request));
    double ms = (double)(kv_now_ns(&kv_env_system) - begun) / 1e6;
    kv_client_each(&demo->out, "steps", "at", "none", print_step, NULL);
    if (!kv_client_text(&demo->out, "state", state, sizeof state) || strcmp(state, "certified") != 0 ||
        !kv_client_text(&demo->out, "id", demo->erasure, sizeof demo->erasure) ||
        !kv_client_text(&demo->out, "claim", claim, sizeof claim)) {
        return demo_lie(demo, "the erasure did not end with a certificate");
    }
    printf("   %s\n   %.0f ms from the request to the signed certificate\n", claim, ms);
    return KV_OK;
}

static KV_RC still_refused(struct demo *demo)
{
    char path[128];
    snprintf(path, sizeof path, "/v1/sessions/%s", demo->session);
    enum kv_err rc = demo_call(demo, &(struct kv_client_call){.method = "GET", .path = path, .key = demo->admin_key});
    if (rc != KV_E_SESSION_ERASED) {
        return demo_lie(demo, "the server still answers for the erased session");
    }
    printf("   GET %s: 410 session_erased, with a link to the certificate\n", path);
    return KV_OK;
}

/* --- all of it --------------------------------------------------------------------------------------------------- */

static const struct {
    const char *title;
    KV_RC (*run)(struct demo *demo);
} steps[] = {
    {"a server", start_server},
    {"a tenant and its keys", make_tenant},
    {"an engine: prefill, offload, forget, restore from dram and nvme, compare", run_engine},
    {"what a thief gets", demo_steal},
    {"the attack before the erasure: dump, root and arena in hand", demo_attack_before},
    {"the erasure", erase},
    {"the same attack after it", demo_attack_after},
    {"an old backup", demo_attack_backup},
    {"the session is gone for its engine, too", still_refused},
    {"the certificate", demo_check_certificate},
};

static KV_RC run_steps(struct demo *demo)
{
    kv_scratch_clean_environment();
    KV_TRY(demo_prepare(demo));
    for (unsigned i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        title(i + 1, steps[i].title);
        KV_TRY(steps[i].run(demo));
        if (kv_child_caught_signal() != 0) {
            return kv_fail(&demo->info, KV_E_INVALID_STATE, "interrupted");
        }
    }
    return KV_OK;
}

static enum kv_err clean_up(struct demo *demo)
{
    kv_client_free(demo->client);
    enum kv_err rc = kv_scratch_end(&demo->scratch, &demo->info);
    explicit_bzero(demo->operator_key, sizeof demo->operator_key);
    explicit_bzero(demo->admin_key, sizeof demo->admin_key);
    explicit_bzero(demo->engine_key, sizeof demo->engine_key);
    if (demo->keep) {
        printf("\nkept: %s\n", demo->scratch.folder);
    } else if (!kv_scratch_remove(&demo->scratch)) {
        printf("\nnot all of %s could be removed: %s\n", demo->scratch.folder, strerror(errno));
    }
    kv_buf_done(&demo->out);
    return rc;
}

/* As if the signal had not been caught, for those who look at how this ended. */
static int end_by_signal(int signal_number)
{
    signal(signal_number, SIG_DFL);
    raise(signal_number);
    return 128 + signal_number;
}

static int tell_failure(const struct demo *demo, enum kv_err rc)
{
    if (kv_child_caught_signal() != 0) {
        printf("\ndemo: interrupted; what it started is ended%s\n", demo->keep ? "" : ", what it made is removed");
        fflush(stdout);
        return end_by_signal(kv_child_caught_signal());
    }
    printf("\ndemo: FAILED: %s (%s)\n%s", demo->info.text, kv_err_name(rc),
           demo->keep ? "" : "to look at what it makes: kvrun demo --keep\n");
    return 1;
}

int kv_demo(int argc, char **argv)
{
    static struct demo demo;
    demo.keep = argc == 1 && strcmp(argv[0], "--keep") == 0;
    if (argc > 1 || (argc == 1 && !demo.keep)) {
        fprintf(stderr, "usage: kvrun demo [--keep]\n");
        return 2;
    }
    kv_buf_init(&demo.out, OUTPUT_MAX);
    kv_log_set_level(KV_LOG_WARN); /* the scratch database's life is not part of the story */
    kv_child_catch_signals();
    uint64_t begun = kv_now_ns(&kv_env_system);
    enum kv_err rc = run_steps(&demo);
    if (rc != KV_OK && kv_child_caught_signal() == 0) {
        demo_print_log(&demo);
    }
    struct kv_errinfo why = demo.info;
    enum kv_err ended = clean_up(&demo);
    if (rc != KV_OK) {
        demo.info = why;
    }
    rc = rc == KV_OK ? ended : rc;
    if (rc != KV_OK) {
        return tell_failure(&demo, rc);
    }
    printf("\nThe certificate and the keys to check it with are in %s\nnext: kvrun dev\n%.1f s\ndemo: ok\n",
           demo.certificate, (double)(kv_now_ns(&kv_env_system) - begun) / 1e9);
    return 0;
}
