#include "tests/lib/svc_rig.h"

#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"
#include "server/service/svc_int.h"
#include "server/store/pg_int.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define BLOCKS_MAX KVT_SVC_SLOTS

static void must(enum kv_err rc, const char *what, const struct kv_errinfo *info)
{
    if (rc != KV_OK) {
        (void)fprintf(stderr, "svc_rig: %s: %s: %s\n", what, kv_err_name(rc), info == NULL ? "" : info->text);
        abort();
    }
}

static void pause_ms(long ms)
{
    struct timespec pause = {.tv_nsec = ms * 1000000};
    nanosleep(&pause, NULL);
}

/* --- the service ------------------------------------------------------------------------------------------------- */

void kvt_svc_config(struct kvt_svc *rig)
{
    memset(rig, 0, sizeof *rig);
    kvt_folder_make(rig->folder);
    kvt_path_join(rig->root_path, rig->folder, "root");
    kvt_path_join(rig->nvme_path, rig->folder, "nvme");
    kvt_path_join(rig->fd_socket, rig->folder, "fd.sock");
    snprintf(rig->url, sizeof rig->url, "%s", temp_postgres_url());
    rig->conf = (struct kv_svc_conf){.db_url = rig->url,
                                     .state_folder = rig->folder,
                                     .root_provider = "file",
                                     .root_path = rig->root_path,
                                     .fd_socket = rig->fd_socket,
                                     .host_name = "test.local",
                                     .lease_ns = 5 * KV_S_NS,
                                     .journal_bytes_max = 1 << 20,
                                     .journal_lag_max_ns = 30 * KV_S_NS,
                                     .operation_keep_us = UINT64_C(3600000000),
                                     .engine = {.dram_bytes = 4 << 20,
                                                .nvme_path = rig->nvme_path,
                                                .nvme_bytes = 8 << 20,
                                                .io_kind = KV_IO_THREADS,
                                                .io_depth = 16,
                                                .io_threads = 1,
                                                .staging_bytes = 1 << 20},
                                     .env = &kv_env_system};
}

enum kv_err kvt_svc_try_start(struct kvt_svc *rig)
{
    rig->info = (struct kv_errinfo){0};
    enum kv_err rc = kv_svc_start(&rig->conf, &rig->info, &rig->svc);
    if (rc == KV_OK) {
        must(kv_call_init(rig->svc, &rig->call), "call", NULL);
        rig->call.who = (struct kv_principal){.roles = KV_ROLE_OPERATOR};
    }
    return rc;
}

void kvt_svc_start(struct kvt_svc *rig)
{
    must(kvt_svc_try_start(rig), "start", &rig->info);
}

void kvt_svc_stop(struct kvt_svc *rig)
{
    if (rig->svc != NULL) {
        kv_call_done(&rig->call);
        must(kv_svc_stop(rig->svc), "stop", NULL);
        rig->svc = NULL;
    }
}

void kvt_svc_restart(struct kvt_svc *rig)
{
    struct kv_principal who = rig->call.who;
    kvt_svc_stop(rig);
    kvt_svc_start(rig);
    rig->call.who = who;
}

void kvt_svc_done(struct kvt_svc *rig)
{
    kvt_svc_stop(rig);
    kvt_folder_remove(rig->folder);
}

void kvt_svc_open(struct kvt_svc *rig)
{
    kvt_svc_config(rig);
    kvt_svc_start(rig);
    rig->tenant = kvt_svc_tenant(rig, "acme");
    kvt_svc_as(&rig->call, rig->tenant, KV_ROLE_TENANT_ADMIN | KV_ROLE_ENGINE);
}

void kvt_svc_as(struct kv_call *call, struct kv_id tenant, unsigned roles)
{
    call->who = (struct kv_principal){.tenant = tenant, .roles = roles, .key = tenant};
    call->who.key.b[0] ^= (uint8_t)(0x80 | roles);
}

struct kv_call kvt_svc_call(struct kvt_svc *rig, struct kv_id tenant, unsigned roles)
{
    struct kv_call call;
    must(kv_call_init(rig->svc, &call), "call", NULL);
    kvt_svc_as(&call, tenant, roles);
    return call;
}

struct kv_id kvt_svc_tenant(struct kvt_svc *rig, const char *name)
{
    struct kv_tenant_view view;
    struct kv_principal who = rig->call.who;
    rig->call.who = (struct kv_principal){.roles = KV_ROLE_OPERATOR};
    must(kv_svc_tenant_create(&rig->call, &(struct kv_tenant_new){.name = name}, &view), "tenant", &rig->call.info);
    rig->call.who = who;
    return view.id;
}

struct kv_id kvt_svc_session(struct kv_call *call)
{
    struct kv_session_view view;
    struct kv_session_new in = {.model = {.id = "test-model", .revision = "1"}};
    bool existed = false;
    must(kv_svc_session_create(call, &in, &view, &existed), "session", &call->info);
    return view.id;
}

/* --- an engine --------------------------------------------------------------------------------------------------- */

static enum kv_err open_pool(struct kv_call *call, struct kvt_engine *engine)
{
    struct kvt_pool_plan plan;
    struct kv_pool_new in = {.engine = engine->engine};
    struct kv_pool_view view;
    kvt_pool_plan(&plan, KVT_SVC_REGIONS, KVT_SVC_SLOTS, KVT_SVC_RUN_BYTES);
    int fd = fcntl(plan.spec.fd, F_DUPFD_CLOEXEC, 3);
    must(kv_pool_attach(&plan.spec, NULL, &engine->pages), "pages", NULL);
    must(kv_svc_fd_offer(call->svc, fd, getpid(), in.fd_token), "descriptor", NULL);
    in.spec = plan.spec;
    enum kv_err rc = kv_svc_pool_register(call, &in, &view);
    if (rc == KV_OK) {
        engine->pool = view.id;
    } else {
        kv_pool_unref(engine->pages);
    }
    return rc;
}

enum kv_err kvt_engine_try_open(struct kv_call *call, struct kvt_engine *ret_engine)
{
    static unsigned number;
    struct kv_engine_new in = {.kind = "sim",
                               .engine_version = "1",
                               .boot_id = "boot",
                               .pid = getpid(),
                               .model = {.id = "test-model", .revision = "1"},
                               .lease_seconds = 60};
    struct kv_engine_view view;
    snprintf(in.name, sizeof in.name, "engine-%u", __atomic_fetch_add(&number, 1, __ATOMIC_RELAXED));
    enum kv_err rc = kv_svc_engine_register(call, &in, &view);
    if (rc != KV_OK) {
        return rc;
    }
    *ret_engine = (struct kvt_engine){.engine = view.id};
    return open_pool(call, ret_engine);
}

void kvt_engine_open(struct kv_call *call, struct kvt_engine *ret_engine)
{
    must(kvt_engine_try_open(call, ret_engine), "engine", &call->info);
}

void kvt_engine_close(struct kvt_engine *engine)
{
    kv_pool_unref(engine->pages);
    engine->pages = NULL;
}

/* --- transfers --------------------------------------------------------------------------------------------------- */

struct blocks {
    uint8_t hashes[BLOCKS_MAX][32];
    uint32_t slots[BLOCKS_MAX];
    enum kv_block_result results[BLOCKS_MAX];
    uint8_t tiers[BLOCKS_MAX];
    struct kv_blocks_in in;
    struct kv_blocks_out out;
};

static void blocks_init(struct blocks *blocks, const struct kvt_engine *engine, struct kv_id session, uint32_t first,
                        uint32_t count)
{
    memset(blocks, 0, sizeof *blocks);
    if (count > BLOCKS_MAX) {
        abort();
    }
    for (uint32_t i = 0; i < count; i++) {
        struct kv_writer writer = kv_writer_of(blocks->hashes[i], 32);
        kv_write_u32(&writer, first + i);
        blocks->slots[i] = i;
    }
    blocks->in = (struct kv_blocks_in){.session = session,
                                       .pool = engine->pool,
                                       .count = count,
                                       .hashes = (const uint8_t(*)[32])blocks->hashes,
                                       .slots = blocks->slots,
                                       .shared = engine->shared};
    blocks->out = (struct kv_blocks_out){.results = blocks->results, .tiers = blocks->tiers};
}

enum kv_err kvt_svc_offload(struct kv_call *call, const struct kvt_engine *engine, struct kv_id session, uint32_t first,
                            uint32_t count, enum kv_transfer_wait wait)
{
    struct blocks blocks;
    blocks_init(&blocks, engine, session, first, count);
    blocks.in.wait = wait;
    for (uint32_t i = 0; i < count && engine->pages != NULL; i++) {
        kvt_page_fill(engine->pages, i, first + i);
    }
    call->info = (struct kv_errinfo){0};
    call->erasure = (struct kv_id){0};
    enum kv_err rc = kv_svc_offload(call, &blocks.in, &blocks.out);
    return rc == KV_OK && blocks.out.done_blocks != count ? KV_E_BUSY : rc;
}

enum kv_err kvt_svc_restore(struct kv_call *call, const struct kvt_engine *engine, struct kv_id session, uint32_t first,
                            uint32_t count, uint32_t *ret_right)
{
    struct blocks blocks;
    uint32_t right = 0;
    blocks_init(&blocks, engine, session, first, count);
    for (uint32_t i = 0; i < count && engine->pages != NULL; i++) {
        kvt_page_set(engine->pages, i, 0xee);
    }
    call->info = (struct kv_errinfo){0};
    call->erasure = (struct kv_id){0};
    enum kv_err rc = kv_svc_restore(call, &blocks.in, &blocks.out);
    for (uint32_t i = 0; i < count && engine->pages != NULL; i++) {
        right += kvt_page_has(engine->pages, i, first + i);
        if (blocks.results[i] != KV_BLOCK_RESTORED && !kvt_page_is(engine->pages, i, 0xee)) {
            (void)fprintf(stderr, "svc_rig: a page that was not restored is changed\n");
            abort();
        }
    }
    *ret_right = right;
    return rc;
}

enum kv_err kvt_svc_lookup(struct kv_call *call, const struct kvt_engine *engine, struct kv_id session, uint32_t first,
                           uint32_t count, uint32_t *ret_leading)
{
    struct blocks blocks;
    blocks_init(&blocks, engine, session, first, count);
    blocks.in.slots = NULL;
    call->info = (struct kv_errinfo){0};
    call->erasure = (struct kv_id){0};
    enum kv_err rc = kv_svc_lookup(call, &blocks.in, &blocks.out);
    *ret_leading = blocks.out.leading_blocks;
    return rc;
}

/* --- erasures ---------------------------------------------------------------------------------------------------- */

static void pause_a_little(void)
{
    struct timespec pause = {.tv_nsec = 5 * 1000 * 1000};
    nanosleep(&pause, NULL);
}

enum kv_err kvt_svc_drain(struct kv_call *call)
{
    struct kv_operation_view *operation KV_CLEANUP(kv_freep) = kv_alloc(sizeof *operation);
    KV_TRY(kv_svc_drain(call, KV_TIER_DRAM, operation));
    uint64_t deadline = kv_now_ns(&kv_env_system) + KVT_WAIT_S * KV_S_NS;
    while (!kv_operation_ended(operation) && kv_now_ns(&kv_env_system) < deadline) {
        pause_a_little();
        KV_TRY(kv_svc_operation_get(call, &operation->row.id, operation));
    }
    return operation->row.state == KV_OPERATION_SUCCEEDED ? KV_OK : KV_E_INTERNAL;
}

static enum kv_err ask(struct kv_call *call, const struct kv_erasure_new *in, unsigned wait_seconds,
                       struct kv_erasure_made *made)
{
    KV_TRY(kv_svc_erase(call, in, made));
    uint64_t deadline = kv_now_ns(&kv_env_system) + wait_seconds * KV_S_NS;
    while (!kv_erasure_ended(&made->erasure) && kv_now_ns(&kv_env_system) < deadline) {
        pause_a_little();
        if (kv_svc_erasure_get(call, &made->erasure.id, &made->erasure) != KV_OK) {
            break; /* the request stands; its state is what was read last */
        }
    }
    return KV_OK;
}

enum kv_err kvt_svc_ask(struct kv_call *call, struct kv_id session, unsigned wait_seconds,
                        struct kv_erasure_view *ret_erasure, bool *ret_existed)
{
    struct kv_erasure_made *made KV_CLEANUP(kv_freep) = kv_alloc(sizeof *made);
    struct kv_erasure_new in = {.scope = KV_SCOPE_SESSION, .session = session, .basis = "other"};
    if (made == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(ask(call, &in, wait_seconds, made));
    *ret_erasure = made->erasure;
    *ret_existed = made->existed;
    return KV_OK;
}

struct kv_erasure_view kvt_svc_erase(struct kv_call *call, struct kv_id session)
{
    struct kv_erasure_made *made KV_CLEANUP(kv_freep) = kv_alloc(sizeof *made);
    struct kv_erasure_new in = {
        .scope = KV_SCOPE_SESSION, .session = session, .basis = "gdpr_art17", .reason = "asked"};
    must(made == NULL ? KV_E_NO_MEMORY : ask(call, &in, KVT_WAIT_S, made), "erase", &call->info);
    return made->erasure;
}

static void public_keys(struct kv_call *call, struct kv_cert_keys *keys)
{
    struct kv_buf text;
    size_t count = 0;
    kv_buf_init(&text, 65536);
    must(kv_svc_jwks(call->svc, &text), "jwks", NULL);
    must(kv_cert_jwks_parse(kv_buf_bytes(&text), NULL, &keys->cert_public, 1, &count), "jwks", NULL);
    kv_buf_reset(&text);
    must(kv_svc_log_vkey(call->svc, &text), "vkey", NULL);
    text.data[strcspn((char *)text.data, "\n")] = '\0';
    must(kv_checkpoint_vkey_parse((char *)text.data, keys->log_origin_prefix, keys->log_public), "vkey", NULL);
    kv_buf_done(&text);
}

bool kvt_svc_certificate_good(struct kv_call *call, struct kv_id erasure, struct kv_buf *ret_bundle)
{
    struct kv_cert_keys keys;
    struct kv_cert_report *report = kv_alloc(sizeof *report);
    kv_buf_init(ret_bundle, 1 << 20);
    must(kv_svc_certificate(call, &erasure, KV_CERT_BUNDLE, ret_bundle), "certificate", &call->info);
    public_keys(call, &keys);
    enum kv_err rc = kv_cert_verify(kv_buf_bytes(ret_bundle), &keys, report);
    for (int i = 0; rc != KV_OK && i < KV_CHECK_COUNT; i++) {
        (void)fprintf(stderr, "svc_rig: %s: %s\n", kv_cert_check_name((enum kv_cert_check)i), report->checks[i].detail);
    }
    bool good = rc == KV_OK && report->ok;
    kv_buf_done(&report->payload);
    kv_free(report);
    return good;
}

static bool answers_erased(const struct kv_call *call, enum kv_err rc, struct kv_id erasure, const char *what)
{
    if (rc == KV_E_SESSION_ERASED && kv_id_equal(&call->erasure, &erasure)) {
        return true;
    }
    (void)fprintf(stderr, "svc_rig: %s of an erased session answers %s%s\n", what, kv_err_name(rc),
                  kv_id_is_zero(&call->erasure) ? " without its erasure" : "");
    return false;
}

bool kvt_svc_refused(struct kv_call *call, const struct kvt_engine *engine, struct kv_id session, struct kv_id erasure)
{
    struct kv_session_view view;
    uint32_t count = 0;
    bool refused = answers_erased(call, kvt_svc_offload(call, engine, session, 0, 2, KV_WAIT_DRAM), erasure, "offload");
    refused = answers_erased(call, kvt_svc_restore(call, engine, session, 0, 2, &count), erasure, "restore") && refused;
    refused = refused && count == 0;
    refused = answers_erased(call, kvt_svc_lookup(call, engine, session, 0, 2, &count), erasure, "lookup") && refused;
    call->erasure = (struct kv_id){0};
    return answers_erased(call, kv_svc_session_get(call, &session, false, &view), erasure, "reading") && refused;
}

#ifdef KV_FAULTS
static struct kv_id stored_session(struct kvt_svc *rig, const struct kvt_engine *engine)
{
    struct kv_id session = kvt_svc_session(&rig->call);
    must(kvt_svc_offload(&rig->call, engine, session, 0, 3, KV_WAIT_DURABLE), "offload", &rig->call.info);
    return session;
}

static bool erases(struct kvt_svc *rig, const struct kvt_engine *engine, struct kv_id session)
{
    struct kv_buf bundle;
    struct kv_erasure_view view = kvt_svc_erase(&rig->call, session);
    if (view.state != KV_ERASURE_CERTIFIED) {
        (void)fprintf(stderr, "svc_rig: the erasure is %s\n", kv_erasure_state_name(view.state));
        return false;
    }
    bool good = kvt_svc_certificate_good(&rig->call, view.id, &bundle);
    kv_buf_done(&bundle);
    return kvt_svc_refused(&rig->call, engine, session, view.id) && good;
}

bool kvt_svc_erases_despite(const char *fault)
{
    struct kvt_svc rig;
    struct kvt_engine engine;
    uint32_t right = 0;
    kvt_svc_open(&rig);
    kvt_engine_open(&rig.call, &engine);
    struct kv_id erased = stored_session(&rig, &engine), beside = stored_session(&rig, &engine);
    kv_fault_set(fault);
    bool good = erases(&rig, &engine, erased);
    kv_fault_set(NULL);
    good = kvt_svc_restore(&rig.call, &engine, beside, 0, 3, &right) == KV_OK && right == 3 && good;
    good = erases(&rig, &engine, beside) && good;
    kvt_engine_close(&engine);
    kvt_svc_done(&rig);
    return good;
}
#endif

void kvt_svc_block_ids(struct kvt_svc *rig, struct kv_id session, struct kv_buf *ret_ids)
{
    must(kv_engine_scope_blocks(rig->svc->engine, &session, ret_ids), "block ids", NULL);
}

/* --- readiness --------------------------------------------------------------------------------------------------- */

static struct kv_ready_check check_of(struct kvt_svc *rig, const char *name)
{
    struct kv_ready_check checks[KV_READY_CHECKS];
    (void)kv_svc_ready(rig->svc, checks);
    for (int i = 0; i < KV_READY_CHECKS; i++) {
        if (strcmp(checks[i].name, name) == 0) {
            return checks[i];
        }
    }
    abort();
}

bool kvt_svc_check_ok(struct kvt_svc *rig, const char *name)
{
    return check_of(rig, name).ok;
}

const char *kvt_svc_check_detail(struct kvt_svc *rig, const char *name)
{
    return check_of(rig, name).detail;
}

bool kvt_svc_await_check(struct kvt_svc *rig, const char *name, bool ok)
{
    uint64_t deadline = kv_now_ns(&kv_env_system) + KVT_WAIT_S * KV_S_NS;
    while (check_of(rig, name).ok != ok && kv_now_ns(&kv_env_system) < deadline) {
        pause_ms(10);
    }
    return check_of(rig, name).ok == ok;
}

/* --- the database ------------------------------------------------------------------------------------------------ */

static const char *name_of(const struct kvt_svc *rig)
{
    const char *at = strstr(rig->url, "dbname=kv_");
    if (at == NULL) {
        abort();
    }
    return at + strlen("dbname=");
}

/* From outside of the rig's database. */
__attribute__((format(printf, 1, 2))) static void admin_run(const char *format, ...)
{
    char sql[512];
    va_list args;
    va_start(args, format);
    vsnprintf(sql, sizeof sql, format, args);
    va_end(args);
    struct kv_pg *pg = temp_postgres_connect(getenv("KV_TEST_POSTGRES"), "rig");
    must(temp_postgres_run(pg, sql), sql, NULL);
    kv_pg_close(pg);
}

static void end_connections(const char *database)
{
    admin_run("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '%s'", database);
}

void kvt_db_run(const struct kvt_svc *rig, const char *sql)
{
    struct kv_pg *pg = temp_postgres_connect(rig->url, "rig");
    must(temp_postgres_run(pg, sql), sql, NULL);
    kv_pg_close(pg);
}

long long kvt_db_number(const struct kvt_svc *rig, const char *sql)
{
    struct kv_pg *pg = temp_postgres_connect(rig->url, "rig");
    struct kv_errinfo info = {0};
    PGresult *result = NULL;
    must(kv_pg_script(pg, sql, 10000, &info, &result), sql, &info);
    if (PQntuples(result) != 1 || PQnfields(result) != 1) {
        must(KV_E_INTERNAL, sql, NULL);
    }
    long long number = PQgetisnull(result, 0, 0) ? -1 : strtoll(PQgetvalue(result, 0, 0), NULL, 10);
    PQclear(result);
    kv_pg_close(pg);
    return number;
}

void kvt_db_stop(const struct kvt_svc *rig)
{
    admin_run("ALTER DATABASE %s ALLOW_CONNECTIONS false", name_of(rig));
    end_connections(name_of(rig));
}

void kvt_db_back(const struct kvt_svc *rig)
{
    admin_run("ALTER DATABASE %s ALLOW_CONNECTIONS true", name_of(rig));
}

void kvt_db_keep(const struct kvt_svc *rig, const char *suffix)
{
    const char *name = name_of(rig);
    end_connections(name);
    admin_run("CREATE DATABASE %s_%s TEMPLATE %s STRATEGY file_copy", name, suffix, name);
}

void kvt_db_swap(const struct kvt_svc *rig, const char *suffix)
{
    const char *name = name_of(rig);
    end_connections(name);
    admin_run("ALTER DATABASE %s RENAME TO %s_swap", name, name);
    admin_run("ALTER DATABASE %s_%s RENAME TO %s", name, suffix, name);
    admin_run("ALTER DATABASE %s_swap RENAME TO %s_%s", name, name, suffix);
}
