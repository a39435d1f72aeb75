/*
 * See demo.h. The attack program reads only what a thief could have: arena files, the root file, database dumps. The
 * server is a process of its own and is spoken to over its interface like anybody's. Must never print what it did not
 * just see.
 */
#include "server/demo.h"

#include "dataplane/base/env.h"
#include "dataplane/base/log.h"
#include "server/cli/client.h"
#include "server/demo_run.h"
#include "server/store/private_cluster.h"

#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PATH_SIZE 4300
#define OUTPUT_MAX (512u << 20) /* the arena is read whole */
#define KEY_SIZE 128
#define ID_SIZE 48

struct demo {
    char folder[256];   /* everything of this run; removed at the end */
    char bin[PATH_MAX]; /* where kvrun and its sister programs are */
    char certificate[PATH_SIZE];
    struct kv_errinfo info;
    struct kv_buf out; /* of the last program or request */
    struct kv_client *client;
    pid_t server;
    char operator_key[KEY_SIZE], admin_key[KEY_SIZE], engine_key[KEY_SIZE];
    char tenant[ID_SIZE], session[ID_SIZE], erasure[ID_SIZE];
    unsigned copies;
    bool keep;
};

static const char *at(const struct demo *demo, const char *name, char path[PATH_SIZE])
{
    snprintf(path, PATH_SIZE, "%s/%s", demo->folder, name);
    return path;
}

static const char *program(const struct demo *demo, const char *name, char path[PATH_SIZE])
{
    snprintf(path, PATH_SIZE, "%.4000s/%s", demo->bin, name);
    return path;
}

static void title(unsigned step, const char *text)
{
    printf("\n%2u. %s\n", step, text);
    fflush(stdout);
}

static KV_RC lie(struct demo *demo, const char *what)
{
    return kv_fail(&demo->info, KV_E_TAMPERED, "%s", what);
}

static KV_RC run(struct demo *demo, char *const argv[], unsigned timeout_s, bool echo)
{
    kv_buf_reset(&demo->out);
    return demo_run(argv, timeout_s, echo, &demo->info, &demo->out);
}

/* --- 1: a server ------------------------------------------------------------------------------------------------- */

static bool find_ready(const struct kv_buf *log, unsigned *ret_port)
{
    const char *ready = log->data == NULL ? NULL : strstr((const char *)log->data, "\"event\":\"ready\"");
    const char *port = ready == NULL ? NULL : strstr(ready, "\"port\":");
    return port != NULL && sscanf(port, "\"port\":%u", ret_port) == 1;
}

static KV_RC await_ready(struct demo *demo, const char *log, unsigned *ret_port)
{
    uint64_t deadline = kv_now_ns(&kv_env_system) + 60 * KV_S_NS;
    while (kv_now_ns(&kv_env_system) < deadline && demo_alive(demo->server)) {
        kv_buf_reset(&demo->out);
        if (demo_read_file(log, &demo->out) == KV_OK && find_ready(&demo->out, ret_port)) {
            return KV_OK;
        }
        struct timespec pause = {.tv_nsec = 50 * 1000 * 1000};
        nanosleep(&pause, NULL);
    }
    if (demo->out.data != NULL) {
        fprintf(stderr, "%s\n", (const char *)demo->out.data);
    }
    return kv_fail(&demo->info, KV_E_TIMEOUT, "the server did not get ready; its log is above");
}

static KV_RC read_key(struct demo *demo, const char *path, char key[KEY_SIZE])
{
    kv_buf_reset(&demo->out);
    KV_TRY(demo_read_file(path, &demo->out));
    if (demo->out.len == 0 || demo->out.len >= KEY_SIZE) {
        return kv_fail(&demo->info, KV_E_CORRUPT, "the operator's key file does not hold a key");
    }
    memcpy(key, demo->out.data, demo->out.len + 1);
    key[strcspn(key, "\n")] = '\0';
    explicit_bzero(demo->out.data, demo->out.len);
    return KV_OK;
}

static KV_RC start_server(struct demo *demo)
{
    char exe[PATH_SIZE], state[PATH_SIZE], log[PATH_SIZE], key[PATH_SIZE], address[40];
    unsigned port = 0;
    snprintf(state, sizeof state, "--state.dir=%s/server", demo->folder);
    program(demo, "kvrun", exe);
    char *const argv[] = {exe,
                          (char[]){"serve"},
                          state,
                          (char[]){"--http.listen=127.0.0.1:0"},
                          (char[]){"--http.admin_listen=127.0.0.1:0"},
                          (char[]){"--tiers.dram.bytes=64MiB"},
                          (char[]){"--tiers.nvme.bytes=256MiB"},
                          NULL};
    KV_TRY(demo_spawn(argv, at(demo, "server.log", log), &demo->info, &demo->server));
    KV_TRY(await_ready(demo, log, &port));
    snprintf(address, sizeof address, "127.0.0.1:%u", port);
    KV_TRY(kv_client_new(address, &demo->info, &demo->client));
    KV_TRY(read_key(demo, at(demo, "server/operator.key", key), demo->operator_key));
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

static KV_RC call(struct demo *demo, const struct kv_client_call *request)
{
    return kv_client_do(demo->client, request, &demo->info, &demo->out);
}

static KV_RC show_tiers(struct demo *demo)
{
    KV_TRY(call(demo, &(struct kv_client_call){.method = "GET", .path = "/v1/tiers", .key = demo->operator_key}));
    kv_client_each(&demo->out, "data", "name", "used_bytes", print_tier, NULL);
    return KV_OK;
}

/* --- 2: a tenant ------------------------------------------------------------------------------------------------- */

static KV_RC make_key(struct demo *demo, const char *role, char key[KEY_SIZE])
{
    char path[128], body[128];
    snprintf(path, sizeof path, "/v1/tenants/%s/api-keys", demo->tenant);
    snprintf(body, sizeof body, "{\"name\":\"demo %s\",\"roles\":[\"%s\"]}", role, role);
    KV_TRY(
        call(demo, &(struct kv_client_call){.method = "POST", .path = path, .key = demo->operator_key, .body = body}));
    bool found = kv_client_text(&demo->out, "secret", key, KEY_SIZE);
    explicit_bzero(demo->out.data, demo->out.len);
    return found ? KV_OK : lie(demo, "the server made a key without a secret");
}

static KV_RC make_tenant(struct demo *demo)
{
    char path[PATH_SIZE];
    struct kv_client_call request = {
        .method = "POST", .path = "/v1/tenants", .key = demo->operator_key, .body = "{\"name\":\"acme\"}"};
    KV_TRY(call(demo, &request));
    if (!kv_client_text(&demo->out, "id", demo->tenant, sizeof demo->tenant)) {
        return lie(demo, "the server made a tenant without an id");
    }
    KV_TRY(make_key(demo, "tenant_admin", demo->admin_key));
    KV_TRY(make_key(demo, "engine", demo->engine_key));
    printf("   tenant acme (%s), a key for its administrator, a key for its engine\n", demo->tenant);
    return demo_write_file(at(demo, "engine.key", path), KV_BYTES(demo->engine_key, strlen(demo->engine_key)),
                           &demo->info);
}

/* --- 3: a real engine -------------------------------------------------------------------------------------------- */

static KV_RC run_engine(struct demo *demo)
{
    char exe[PATH_SIZE], sock[PATH_SIZE], fd_sock[PATH_SIZE], key[PATH_SIZE], operator_key[PATH_SIZE];
    char *const argv[] = {(char *)(uintptr_t)program(demo, "kvrun-engine", exe),
                          (char[]){"--socket"},
                          (char *)(uintptr_t)at(demo, "server/engine.sock", sock),
                          (char[]){"--fd-socket"},
                          (char *)(uintptr_t)at(demo, "server/engine-fd.sock", fd_sock),
                          (char[]){"--token-file"},
                          (char *)(uintptr_t)at(demo, "engine.key", key),
                          (char[]){"--operator-token-file"},
                          (char *)(uintptr_t)at(demo, "server/operator.key", operator_key),
                          (char[]){"run"},
                          NULL};
    KV_TRY(run(demo, argv, 120, true));
    const char *text = (const char *)demo->out.data;
    const char *session = strstr(text, "ses_");
    if (strstr(text, "logits identical") == NULL || session == NULL) {
        return lie(demo, "the engine did not get its state back bit for bit");
    }
    snprintf(demo->session, sizeof demo->session, "%.*s", (int)strspn(session, "abcdefghijklmnopqrstuvwxyz0123456789_"),
             session);
    return show_tiers(demo);
}

/* --- 4: what a thief finds --------------------------------------------------------------------------------------- */

static double entropy(const struct kv_buf *bytes)
{
    double counts[256] = {0}, total = 0, bits = 0;
    for (size_t i = 0; i < bytes->len; i++) {
        counts[bytes->data[i]]++;
    }
    for (int i = 1; i < 256; i++) { /* zero bytes are unused room in a preallocated file */
        total += counts[i];
    }
    for (int i = 1; i < 256; i++) {
        bits -= counts[i] == 0 ? 0 : counts[i] / total * log2(counts[i] / total);
    }
    return bits;
}

static const char *database_socket(struct demo *demo, char folder[PATH_SIZE])
{
    char path[PATH_SIZE];
    kv_buf_reset(&demo->out);
    if (demo_read_file(at(demo, "server/postgres.socket", path), &demo->out) != KV_OK || demo->out.len >= PATH_SIZE) {
        return NULL;
    }
    snprintf(folder, PATH_SIZE, "%s", (const char *)demo->out.data);
    folder[strcspn(folder, "\n")] = '\0';
    return folder;
}

static KV_RC dump(struct demo *demo, const char *socket_folder, const char *name)
{
    char path[PATH_SIZE], folder[PATH_SIZE];
    snprintf(folder, sizeof folder, "%s", socket_folder);
    char *const argv[] = {(char[]){"pg_dump"},
                          (char[]){"--host"},
                          folder,
                          (char[]){"--username"},
                          (char[]){"kvrun"},
                          (char[]){"--file"},
                          (char *)(uintptr_t)at(demo, name, path),
                          (char[]){"postgres"},
                          NULL};
    return run(demo, argv, 60, false);
}

static KV_RC dump_live(struct demo *demo, const char *name)
{
    char folder[PATH_SIZE];
    if (database_socket(demo, folder) == NULL) {
        return kv_fail(&demo->info, KV_E_IO, "the private database's socket is not there");
    }
    return dump(demo, folder, name);
}

static KV_RC steal(struct demo *demo)
{
    char from[PATH_SIZE], to[PATH_SIZE], folder[PATH_SIZE];
    char *const copy[] = {(char[]){"cp"}, (char[]){"-a"}, (char *)(uintptr_t)at(demo, "server/nvme", from),
                          (char *)(uintptr_t)at(demo, "stolen-nvme", to), NULL};
    KV_TRY(run(demo, copy, 60, false));
    KV_TRY(demo_copy_file(at(demo, "server/root", from), at(demo, "root-before", to), &demo->info));
    KV_TRY(dump_live(demo, "before.sql"));
    if (database_socket(demo, folder) == NULL) {
        return kv_fail(&demo->info, KV_E_IO, "the private database's socket is not there");
    }
    char *const backup[] = {(char[]){"pg_basebackup"},
                            (char[]){"--host"},
                            folder,
                            (char[]){"--username"},
                            (char[]){"kvrun"},
                            (char[]){"--checkpoint=fast"},
                            (char[]){"--no-sync"},
                            (char[]){"--pgdata"},
                            (char *)(uintptr_t)at(demo, "backup", to),
                            NULL};
    KV_TRY(run(demo, backup, 60, false));
    kv_buf_reset(&demo->out);
    KV_TRY(demo_read_file(at(demo, "stolen-nvme/arena", from), &demo->out));
    printf("   copied: the nvme arena, the root file, a dump and a physical backup of the database\n"
           "   arena bytes: %.2f bits of entropy a byte (8.00 is noise)\n",
           entropy(&demo->out));
    return entropy(&demo->out) > 7.9 ? KV_OK : lie(demo, "the arena does not look sealed");
}

/* Runs the attack; *ret_opened of *ret_all copies. */
static KV_RC attack(struct demo *demo, const char *dump_name, const char *root_name, unsigned *ret_opened,
                    unsigned *ret_all)
{
    char exe[PATH_SIZE], dump_path[PATH_SIZE], root[PATH_SIZE], arena[PATH_SIZE];
    char *const argv[] = {(char *)(uintptr_t)program(demo, "kvrun-attack", exe),
                          (char[]){"--dump"},
                          (char *)(uintptr_t)at(demo, dump_name, dump_path),
                          (char[]){"--root"},
                          (char *)(uintptr_t)at(demo, root_name, root),
                          (char[]){"--arena"},
                          (char *)(uintptr_t)at(demo, "stolen-nvme", arena),
                          (char[]){"--session"},
                          demo->session,
                          NULL};
    KV_TRY(run(demo, argv, 60, true));
    const char *line = strstr((const char *)demo->out.data, "opened ");
    return line != NULL && sscanf(line, "opened %u of %u copies", ret_opened, ret_all) == 2
               ? KV_OK
               : lie(demo, "the attack did not say what it opened");
}

static KV_RC attack_before(struct demo *demo)
{
    unsigned opened = 0;
    KV_TRY(attack(demo, "before.sql", "server/root", &opened, &demo->copies));
    return opened == demo->copies && opened > 0
               ? KV_OK
               : lie(demo, "the attack must open everything before the erasure, else it proves nothing");
}

static KV_RC attack_after(struct demo *demo)
{
    unsigned opened = 0, all = 0;
    KV_TRY(dump_live(demo, "after.sql"));
    printf("   with today's database and today's root:\n");
    KV_TRY(attack(demo, "after.sql", "server/root", &opened, &all));
    if (opened != 0 || all != demo->copies) {
        return lie(demo, "the attack opened copies of an erased session");
    }
    printf("   with the dump from before and today's root:\n");
    KV_TRY(attack(demo, "before.sql", "server/root", &opened, &all));
    return opened == 0 && all == demo->copies ? KV_OK : lie(demo, "an old dump opened copies of an erased session");
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
    KV_TRY(call(demo, &request));
    double ms = (double)(kv_now_ns(&kv_env_system) - begun) / 1e6;
    kv_client_each(&demo->out, "steps", "at", "none", print_step, NULL);
    if (!kv_client_text(&demo->out, "state", state, sizeof state) || strcmp(state, "certified") != 0 ||
        !kv_client_text(&demo->out, "id", demo->erasure, sizeof demo->erasure) ||
        !kv_client_text(&demo->out, "claim", claim, sizeof claim)) {
        return lie(demo, "the erasure did not end with a certificate");
    }
    printf("   %s\n   %.0f ms from the request to the signed certificate\n", claim, ms);
    return KV_OK;
}

static KV_RC still_refused(struct demo *demo)
{
    char path[128];
    snprintf(path, sizeof path, "/v1/sessions/%s", demo->session);
    enum kv_err rc = call(demo, &(struct kv_client_call){.method = "GET", .path = path, .key = demo->admin_key});
    if (rc != KV_E_SESSION_ERASED) {
        return lie(demo, "the server still answers for the erased session");
    }
    printf("   GET %s: 410 session_erased, with a link to the certificate\n", path);
    return KV_OK;
}

/* --- 8: an old backup -------------------------------------------------------------------------------------------- */

static KV_RC restore_backup(struct demo *demo)
{
    char scratch[PATH_SIZE], data[PATH_SIZE], from[PATH_SIZE], like[PATH_SIZE];
    struct kv_private_cluster *cluster = NULL;
    at(demo, "scratch", scratch);
    at(demo, "scratch/postgres", data);
    at(demo, "server/postgres", like);
    if (mkdir(scratch, 0711) != 0 || chmod(scratch, 0711) != 0 || mkdir(data, 0700) != 0) {
        return kv_fail(&demo->info, KV_E_IO, "cannot make a folder: %s", strerror(errno));
    }
    at(demo, "scratch/postgres/data", data);
    if (rename(at(demo, "backup", from), data) != 0) {
        return kv_fail(&demo->info, KV_E_IO, "cannot move the backup: %s", strerror(errno));
    }
    KV_TRY(demo_give(at(demo, "scratch/postgres", data), like, &demo->info));
    struct kv_private_cluster_conf conf = {.folder = scratch, .throwaway = true, .env = &kv_env_system};
    KV_TRY(kv_private_cluster_start(&conf, &demo->info, &cluster));
    char folder[PATH_SIZE] = "";
    bool parsed = sscanf(kv_private_cluster_url(cluster), "host=%4000s", folder) == 1;
    enum kv_err rc = parsed ? dump(demo, folder, "backup.sql") : lie(demo, "the scratch database has no socket");
    kv_private_cluster_stop(cluster);
    return rc;
}

static KV_RC attack_backup(struct demo *demo)
{
    unsigned opened = 0, all = 0;
    KV_TRY(restore_backup(demo));
    printf("   the backup from before the erasure runs again in a scratch database; with today's root:\n");
    KV_TRY(attack(demo, "backup.sql", "server/root", &opened, &all));
    if (opened != 0 || all != demo->copies) {
        return lie(demo, "a restored backup opened copies of an erased session");
    }
    printf("   the control: the same backup with a copy of the root file from before (limit L7: keep the root out of "
           "backups):\n");
    KV_TRY(attack(demo, "backup.sql", "root-before", &opened, &all));
    return opened == demo->copies ? KV_OK
                                  : lie(demo, "the restored backup is not a real one: its own root does not open it");
}

/* --- 9: the certificate ------------------------------------------------------------------------------------------ */

static KV_RC fetch(struct demo *demo, const char *path, const char *key, const char *accept, const char *name)
{
    char target[PATH_SIZE];
    KV_TRY(call(demo, &(struct kv_client_call){.method = "GET", .path = path, .key = key, .accept = accept}));
    snprintf(target, sizeof target, "%.4000s/%s", demo->certificate, name);
    return demo_write_file(target, kv_buf_bytes(&demo->out), &demo->info);
}

/* A raw Ed25519 key as PEM: the fixed DER prefix of RFC 8410, then base64. */
static KV_RC write_pem(struct demo *demo, const char *jwks, const char *name)
{
    static const uint8_t prefix[] = {0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00};
    const char *x = strstr(jwks, "\"x\":\"");
    uint8_t der[sizeof prefix + 32];
    char base64[64], pem[160], path[PATH_SIZE];
    size_t len = 0;
    memcpy(der, prefix, sizeof prefix);
    if (x == NULL || kv_base64url_decode(x + 5, strcspn(x + 5, "\""), der + sizeof prefix, 32, &len) != KV_OK ||
        len != 32) {
        return lie(demo, "the server's key set has no Ed25519 key");
    }
    kv_base64_encode(der, sizeof der, base64);
    int n = snprintf(pem, sizeof pem, "-----BEGIN PUBLIC KEY-----\n%s\n-----END PUBLIC KEY-----\n", base64);
    snprintf(path, sizeof path, "%.4000s/%s", demo->certificate, name);
    return demo_write_file(path, KV_BYTES(pem, (size_t)n), &demo->info);
}

/* What was signed and the signature, as two files. */
static KV_RC split_jws(struct demo *demo)
{
    char path[PATH_SIZE];
    uint8_t signature[64];
    size_t len = 0;
    const char *text = (const char *)demo->out.data, *dot = strrchr(text, '.');
    if (dot == NULL || kv_base64url_decode(dot + 1, strlen(dot + 1), signature, sizeof signature, &len) != KV_OK ||
        len != 64) {
        return lie(demo, "the certificate is not a compact JWS");
    }
    snprintf(path, sizeof path, "%.4000s/signed.txt", demo->certificate);
    KV_TRY(demo_write_file(path, KV_BYTES(text, (size_t)(dot - text)), &demo->info));
    snprintf(path, sizeof path, "%.4000s/signature.bin", demo->certificate);
    return demo_write_file(path, KV_BYTES(signature, sizeof signature), &demo->info);
}

static KV_RC run_openssl(struct demo *demo)
{
    char command[3 * PATH_SIZE];
    snprintf(command, sizeof command,
             "cd '%.4000s' && openssl pkeyutl -verify -pubin -inkey certificate-key.pem -rawin -in signed.txt -sigfile "
             "signature.bin",
             demo->certificate);
    printf("   $ cd %s\n   $ openssl pkeyutl -verify -pubin -inkey certificate-key.pem -rawin -in signed.txt -sigfile "
           "signature.bin\n",
           demo->certificate);
    char *const argv[] = {(char[]){"sh"}, (char[]){"-c"}, command, NULL};
    KV_TRY(run(demo, argv, 30, true));
    return strstr((const char *)demo->out.data, "Signature Verified Successfully") != NULL
               ? KV_OK
               : lie(demo, "openssl does not accept the signature");
}

static KV_RC check_certificate(struct demo *demo)
{
    char path[160], exe[PATH_SIZE], bundle[PATH_SIZE];
    snprintf(path, sizeof path, "/v1/erasures/%s/certificate", demo->erasure);
    KV_TRY(fetch(demo, path, demo->admin_key, "text/plain", "certificate.txt"));
    KV_TRY(fetch(demo, "/.well-known/kvrun/log.vkey", NULL, "text/plain", "log.vkey"));
    KV_TRY(fetch(demo, "/.well-known/kvrun/jwks.json", NULL, NULL, "jwks.json"));
    KV_TRY(write_pem(demo, (const char *)demo->out.data, "certificate-key.pem"));
    KV_TRY(fetch(demo, path, demo->admin_key, "application/jose", "certificate.jws"));
    KV_TRY(split_jws(demo));
    KV_TRY(run_openssl(demo));
    snprintf(bundle, sizeof bundle, "%.4000s/certificate.txt", demo->certificate);
    printf("   $ kv-verify certificate.txt\n");
    char *const argv[] = {(char *)(uintptr_t)program(demo, "kv-verify", exe), bundle, NULL};
    return run(demo, argv, 30, true);
}

/* --- all of it --------------------------------------------------------------------------------------------------- */

static const struct {
    const char *title;
    KV_RC (*run)(struct demo *demo);
} steps[] = {
    {"a server", start_server},
    {"a tenant and its keys", make_tenant},
    {"an engine: prefill, offload, forget, restore from dram and nvme, compare", run_engine},
    {"what a thief gets", steal},
    {"the attack before the erasure: dump, root and arena in hand", attack_before},
    {"the erasure", erase},
    {"the same attack after it", attack_after},
    {"an old backup", attack_backup},
    {"the session is gone for its engine, too", still_refused},
    {"the certificate", check_certificate},
};

static KV_RC prepare(struct demo *demo)
{
    const char *parent = getenv("TMPDIR");
    parent = parent != NULL && strlen(parent) < 40 ? parent : "/tmp"; /* a socket's path is at most 107 bytes */
    char exe[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    snprintf(demo->folder, sizeof demo->folder, "%s/kvrun-demo-XXXXXX", parent);
    if (n <= 0 || mkdtemp(demo->folder) == NULL || chmod(demo->folder, 0711) != 0) {
        return kv_fail(&demo->info, KV_E_IO, "cannot make a folder in %s: %s", parent, strerror(errno));
    }
    exe[n] = '\0';
    snprintf(demo->bin, sizeof demo->bin, "%s", dirname(exe));
    snprintf(demo->certificate, sizeof demo->certificate, "%.4000s/demo-certificate", demo->bin);
    if (mkdir(demo->certificate, 0755) != 0 && errno != EEXIST) {
        at(demo, "certificate", demo->certificate);
        demo->keep = true;
        if (mkdir(demo->certificate, 0755) != 0) {
            return kv_fail(&demo->info, KV_E_IO, "cannot make a folder for the certificate: %s", strerror(errno));
        }
    }
    return KV_OK;
}

static KV_RC run_steps(struct demo *demo)
{
    KV_TRY(prepare(demo));
    for (unsigned i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        title(i + 1, steps[i].title);
        KV_TRY(steps[i].run(demo));
    }
    return KV_OK;
}

static enum kv_err clean_up(struct demo *demo)
{
    enum kv_err rc = KV_OK;
    kv_client_free(demo->client);
    if (demo->server > 0) {
        rc = demo_end(demo->server, 40, &demo->info);
    }
    explicit_bzero(demo->operator_key, sizeof demo->operator_key);
    explicit_bzero(demo->admin_key, sizeof demo->admin_key);
    explicit_bzero(demo->engine_key, sizeof demo->engine_key);
    if (demo->keep) {
        printf("\nkept: %s\n", demo->folder);
    } else if (demo->folder[0] != '\0') {
        demo_remove_tree(demo->folder);
    }
    kv_buf_done(&demo->out);
    return rc;
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
    uint64_t begun = kv_now_ns(&kv_env_system);
    enum kv_err rc = run_steps(&demo);
    if (rc != KV_OK) {
        printf("\ndemo: FAILED: %s (%s)\n", demo.info.text, kv_err_name(rc));
        demo.keep = true;
    }
    enum kv_err ended = clean_up(&demo);
    if (rc == KV_OK && ended != KV_OK) {
        printf("\ndemo: FAILED: %s\n", demo.info.text);
        rc = ended;
    }
    if (rc != KV_OK) {
        return 1;
    }
    printf("\nThe certificate and the keys to check it with are in %s\nnext: kvrun dev\n%.1f s\ndemo: ok\n",
           demo.certificate, (double)(kv_now_ns(&kv_env_system) - begun) / 1e9);
    return 0;
}
