/*
 * The real service, with a real database, root file and nvme tier, under faults and crashes from a seed; and then
 * everything that was promised is looked at: each accepted erasure is certified, its certificate is good and the same
 * bytes ever after, its session is refused and can be opened by nobody who holds every row that the database ever held
 * and today's root; each block that was acknowledged as durable in a session that lives comes back right.
 *
 *   KV_SIM_SEED=7 sim_erasure_test --jobs 1      one walk again
 *   KV_LONG=1 …                                   400 walks in place of 8
 */
#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"
#include "tests/attack/arena.h"
#include "tests/lib/run_program.h"
#include "tests/lib/svc_rig.h"
#include "tests/sim/faults.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

TEMP_POSTGRES_HOOKS

enum { SESSIONS_MAX = 64, STEPS = 24, WALKS = 8, WALKS_LONG = 400, BLOCKS_MAX = 3 };

enum fate { LIVE, ASKED, ACCEPTED };

static struct sim_session {
    struct kv_id id, erasure;
    enum fate fate;
    uint32_t durable;                                              /* blocks 0… were acknowledged as durable */
    char stolen_nvme[KVT_PATH_BYTES], stolen_root[KVT_PATH_BYTES]; /* before the erasure was asked for; "": no blocks */
    struct kv_buf bundle;                                          /* the certificate as it was first read */
} sessions[SESSIONS_MAX];
static unsigned session_count;

static struct kvt_svc rig;
static struct kvt_engine engine;
static uint64_t walk_number, seed, draws;
static unsigned crashes, thefts;
static uint64_t faults, settle_s = 60;

static uint64_t draw(uint64_t below)
{
    return sim_mix(seed ^ sim_mix(++draws)) % below;
}

__attribute__((format(printf, 1, 2))) static _Noreturn void broken(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)fprintf(stderr, "VIOLATION in walk %llu: ", (unsigned long long)walk_number);
    (void)vfprintf(stderr, format, args);
    (void)fprintf(stderr, "\n");
    va_end(args);
    abort();
}

#define HOLDS(cond, ...)         \
    do {                         \
        if (!(cond)) {           \
            broken(__VA_ARGS__); \
        }                        \
    } while (0)

/* --- the world --------------------------------------------------------------------------------------------------- */

/* Every row that was ever committed, as backups of all ages and the write-ahead log together would show them. */
static const char keep_history[] =
    "CREATE SCHEMA history;"
    "CREATE TABLE history.ktree_node (LIKE kvrun.ktree_node);"
    "CREATE TABLE history.kroot (LIKE kvrun.kroot);"
    "CREATE TABLE history.erase_batch (LIKE kvrun.erase_batch);"
    "CREATE FUNCTION history.keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
    " EXECUTE format('INSERT INTO history.%I SELECT ($1).*', TG_TABLE_NAME) USING NEW; RETURN NULL; END $$;"
    "CREATE TRIGGER keep AFTER INSERT OR UPDATE ON kvrun.ktree_node FOR EACH ROW EXECUTE FUNCTION history.keep();"
    "CREATE TRIGGER keep AFTER INSERT OR UPDATE ON kvrun.kroot FOR EACH ROW EXECUTE FUNCTION history.keep();"
    "CREATE TRIGGER keep AFTER INSERT OR UPDATE ON kvrun.erase_batch FOR EACH ROW EXECUTE FUNCTION history.keep();"
    "INSERT INTO history.ktree_node SELECT * FROM kvrun.ktree_node;"
    "INSERT INTO history.kroot SELECT * FROM kvrun.kroot";

static void come_up(void)
{
    sim_faults_on(false);
    sim_faults_cut(false);
    kvt_svc_start(&rig);
    kvt_svc_as(&rig.call, rig.tenant, KV_ROLE_TENANT_ADMIN | KV_ROLE_ENGINE);
    kvt_engine_open(&rig.call, &engine);
}

static void go_down(void)
{
    kvt_engine_close(&engine);
    kv_call_done(&rig.call);
    KV_IGNORE(kv_svc_stop(rig.svc), "a process that was cut off says goodbye to nobody");
    rig.svc = NULL;
}

/* From now on nothing that it does arrives anywhere. */
static void crash_and_start(void)
{
    sim_faults_cut(true);
    go_down();
    come_up();
    crashes++;
}

static void wait_ms(uint64_t ms)
{
    nanosleep(&(struct timespec){.tv_nsec = (long)(ms * 1000000)}, NULL);
}

static struct sim_session *pick(enum fate fate)
{
    struct sim_session *found[SESSIONS_MAX];
    size_t count = 0;
    for (unsigned i = 0; i < session_count; i++) {
        if (sessions[i].fate == fate) {
            found[count++] = &sessions[i];
        }
    }
    return count > 0 ? found[draw(count)] : NULL;
}

/* --- what happens ------------------------------------------------------------------------------------------------- */

static void offload_to(struct sim_session *session)
{
    uint32_t count = 1 + (uint32_t)draw(BLOCKS_MAX);
    if (session != NULL && kvt_svc_offload(&rig.call, &engine, session->id, 0, count, KV_WAIT_DURABLE) == KV_OK &&
        count > session->durable) {
        session->durable = count;
    }
}

static void create(void)
{
    struct kv_session_view view;
    struct kv_session_new in = {.model = {.id = "test-model", .revision = "1"}};
    bool existed = false;
    if (session_count < SESSIONS_MAX && kv_svc_session_create(&rig.call, &in, &view, &existed) == KV_OK) {
        sessions[session_count] = (struct sim_session){.id = view.id};
        offload_to(&sessions[session_count++]);
    }
}

static void offload(void)
{
    offload_to(pick(LIVE));
}

/* Under faults a block may be missing; a page with anything else than its bytes ends the test in the rig. */
static void restore(void)
{
    struct sim_session *session = pick(LIVE);
    uint32_t right = 0;
    if (session != NULL) {
        KV_IGNORE(kvt_svc_restore(&rig.call, &engine, session->id, 0, BLOCKS_MAX, &right), "a refusal is a miss");
    }
}

static void run(const char *const *argv)
{
    char said[2048];
    HOLDS(kvt_program_run(argv, said, sizeof said) == 0, "%s: %s", argv[0], said);
}

/* What a thief takes who comes in time. */
static void steal(struct sim_session *session)
{
    char name[32];
    if (session->durable == 0) {
        return;
    }
    snprintf(name, sizeof name, "nvme-%u", ++thefts);
    kvt_path_join(session->stolen_nvme, rig.folder, name);
    run((const char *const[]){"cp", "-r", rig.nvme_path, session->stolen_nvme, NULL});
    snprintf(name, sizeof name, "root-%u", thefts);
    kvt_path_join(session->stolen_root, rig.folder, name);
    run((const char *const[]){"cp", rig.root_path, session->stolen_root, NULL});
}

static void erase(void)
{
    struct sim_session *session = pick(draw(5) == 0 ? ASKED : LIVE);
    struct kv_erasure_view view;
    bool existed = false;
    if (session == NULL) {
        return;
    }
    if (session->fate == LIVE) {
        steal(session);
    }
    session->fate = ASKED;
    if (kvt_svc_ask(&rig.call, session->id, (unsigned)draw(2), &view, &existed) == KV_OK) {
        session->fate = ACCEPTED;
        session->erasure = view.id;
    }
}

static void crash(void)
{
    wait_ms(draw(60)); /* into whatever is going on */
    crash_and_start();
}

static void lose_database(void)
{
    kvt_db_stop(&rig);
    wait_ms(draw(40));
    kvt_db_back(&rig);
}

static void stop_and_start(void)
{
    go_down();
    come_up();
}

static void step(void)
{
    static const struct {
        void (*run)(void);
        unsigned weight;
    } steps[] = {{create, 5}, {offload, 7},       {restore, 3},       {erase, 6},
                 {crash, 3},  {lose_database, 1}, {stop_and_start, 1}};
    uint64_t at = draw(26);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        if (at < steps[i].weight) {
            sim_faults_on(true);
            steps[i].run();
            return;
        }
        at -= steps[i].weight;
    }
}

/* --- what has to be true ------------------------------------------------------------------------------------------ */

/* A request whose answer was lost either stands or never was. */
static void settle_doubt(struct sim_session *session)
{
    struct kv_session_view view;
    rig.call.erasure = (struct kv_id){0};
    enum kv_err rc = kv_svc_session_get(&rig.call, &session->id, false, &view);
    HOLDS(rc == KV_OK || rc == KV_E_SESSION_ERASED, "a session whose erasure was in doubt answers %s", kv_err_name(rc));
    session->fate = rc == KV_OK ? LIVE : ACCEPTED;
    session->erasure = rig.call.erasure;
    HOLDS((session->fate == ACCEPTED) == !kv_id_is_zero(&session->erasure), "it is closed and names no erasure");
}

static void await_end(const struct sim_session *session)
{
    struct kv_erasure_view view;
    uint64_t end = kv_now_ns(&kv_env_system) + settle_s * KV_S_NS;
    enum kv_err rc = kv_svc_erasure_get(&rig.call, &session->erasure, &view);
    while ((rc != KV_OK || !kv_erasure_ended(&view)) && kv_now_ns(&kv_env_system) < end) {
        wait_ms(10);
        rc = kv_svc_erasure_get(&rig.call, &session->erasure, &view);
    }
    HOLDS(rc == KV_OK, "an accepted erasure answers %s", kv_err_name(rc));
    HOLDS(view.state == KV_ERASURE_CERTIFIED, "an accepted erasure stays %s %s", kv_erasure_state_name(view.state),
          view.quarantine_reason);
}

static void check_certificate(struct sim_session *session)
{
    struct kv_buf bundle;
    HOLDS(kvt_svc_certificate_good(&rig.call, session->erasure, &bundle), "a certificate does not verify");
    if (session->bundle.data == NULL) {
        session->bundle = bundle;
        return;
    }
    HOLDS(bundle.len == session->bundle.len && memcmp(bundle.data, session->bundle.data, bundle.len) == 0,
          "a certificate has changed");
    kv_buf_done(&bundle);
}

static void check_live(struct sim_session *session)
{
    uint32_t right = 0;
    if (session->durable > 0) {
        HOLDS(kvt_svc_restore(&rig.call, &engine, session->id, 0, session->durable, &right) == KV_OK, "%s",
              rig.call.info.text);
        HOLDS(right == session->durable, "%u of %u durable blocks of a live session came back", right,
              session->durable);
    }
}

static void check_promises(void)
{
    for (unsigned i = 0; i < session_count; i++) {
        if (sessions[i].fate == ASKED) {
            settle_doubt(&sessions[i]);
        }
    }
    for (unsigned i = 0; i < session_count; i++) {
        if (sessions[i].fate == ACCEPTED) {
            await_end(&sessions[i]);
            check_certificate(&sessions[i]);
            HOLDS(kvt_svc_refused(&rig.call, &engine, sessions[i].id, sessions[i].erasure),
                  "an erased session is served");
        } else {
            check_live(&sessions[i]);
        }
    }
    HOLDS(kvt_db_number(&rig, "SELECT count(*) - count(DISTINCT session_id) FROM kvrun.erasure") == 0,
          "a session has two erasures");
}

/* --- the attack --------------------------------------------------------------------------------------------------- */

struct outcome {
    size_t erased, erased_opened, live, live_opened;
};

static void take(struct loot *loot, const char *path, KV_RC (*add)(struct loot *loot, FILE *file))
{
    FILE *file = fopen(path, "re");
    HOLDS(file != NULL && add(loot, file) == KV_OK, "%s", path);
    fclose(file);
}

static void take_tally(void *ctx, const struct tally_of_scope *tally)
{
    struct tally *sum = ctx;
    sum->copies += tally->tally.copies;
    sum->opened += tally->tally.opened;
}

static struct tally attack(struct opener *opener, const char *folder, const struct kv_id *session)
{
    struct copies copies = {0};
    struct tally tally = {0};
    HOLDS(copies_add_folder(&copies, folder, session, false) == KV_OK, "%s", folder);
    copies_open(&copies, opener, 1, take_tally, &tally);
    copies_done(&copies);
    return tally;
}

static void attack_each(struct opener *opener, struct outcome *outcome)
{
    for (unsigned i = 0; i < session_count; i++) {
        const struct sim_session *session = &sessions[i];
        bool erased = session->fate == ACCEPTED;
        if (session->durable == 0) {
            continue;
        }
        struct tally tally = attack(opener, erased ? session->stolen_nvme : rig.nvme_path, &session->id);
        HOLDS(tally.copies >= session->durable, "%zu copies of %u durable blocks", tally.copies, session->durable);
        *(erased ? &outcome->erased : &outcome->live) += tally.copies;
        *(erased ? &outcome->erased_opened : &outcome->live_opened) += tally.opened;
    }
}

/* With every row there ever was, today's root file and, if `in_time`, those of before each erasure. The service is
 * stopped. */
static struct outcome attack_all(bool in_time)
{
    struct loot loot = {0};
    struct reach reach;
    struct opener opener;
    struct outcome outcome = {0};
    char dump[KVT_PATH_BYTES];
    kvt_path_join(dump, rig.folder, "dump.sql");
    run((const char *const[]){"pg_dump", "--dbname", rig.url, "--file", dump, NULL});
    take(&loot, dump, loot_add_dump);
    take(&loot, rig.root_path, loot_add_root_file);
    for (unsigned i = 0; in_time && i < session_count; i++) {
        if (sessions[i].stolen_root[0] != '\0') {
            take(&loot, sessions[i].stolen_root, loot_add_root_file);
        }
    }
    HOLDS(loot.rows_not_understood == 0 && loot.node_count > 0, "the dump is not understood");
    HOLDS(reach_from(&loot, 0, &reach) == KV_OK && opener_init(&opener, &loot, &reach) == KV_OK, "the attack failed");
    attack_each(&opener, &outcome);
    opener_done(&opener);
    reach_done(&reach);
    loot_done(&loot);
    return outcome;
}

static struct outcome check_attack(void)
{
    struct outcome control = attack_all(true), outcome = attack_all(false);
    HOLDS(control.erased_opened == control.erased, "the attack is too weak: with stolen roots it opens %zu of %zu",
          control.erased_opened, control.erased);
    HOLDS(outcome.live_opened == outcome.live, "%zu of %zu copies of live sessions open", outcome.live_opened,
          outcome.live);
    HOLDS(outcome.erased_opened == 0, "%zu copies of erased sessions open", outcome.erased_opened);
    return outcome;
}

/* --- walks -------------------------------------------------------------------------------------------------------- */

static void walk_begin(uint64_t number)
{
    walk_number = number;
    seed = sim_mix(number);
    draws = 0;
    session_count = 0;
    crashes = 0;
    kvt_svc_config(&rig);
    rig.conf.lease_ns = KV_S_NS;
    kvt_svc_start(&rig);
    rig.tenant = kvt_svc_tenant(&rig, "acme");
    kvt_svc_as(&rig.call, rig.tenant, KV_ROLE_TENANT_ADMIN | KV_ROLE_ENGINE);
    kvt_engine_open(&rig.call, &engine);
    kvt_db_run(&rig, keep_history);
    sim_faults_seed(seed);
}

static void walk_end(void)
{
    for (unsigned i = 0; i < session_count; i++) {
        if (sessions[i].bundle.data != NULL) {
            kv_buf_done(&sessions[i].bundle);
        }
    }
    kvt_engine_close(&engine);
    kvt_svc_done(&rig);
}

static void walk_steps(uint64_t number)
{
    walk_begin(number);
    for (unsigned i = 0; i < STEPS; i++) {
        step();
    }
    faults = sim_faults_met();
    crash_and_start();
    check_promises();
}

static void walk(uint64_t number)
{
    uint64_t began = kv_now_ns(&kv_env_system);
    walk_steps(number);
    crash_and_start(); /* certificates and blocks are the same after another one */
    check_promises();
    kvt_svc_stop(&rig);
    struct outcome outcome = check_attack();
    (void)fprintf(
        stderr,
        "walk %llu: %u sessions, %llu faults, %u crashes; recovered %zu of %zu erased copies, opened %zu of %zu "
        "live; %llu ms\n",
        (unsigned long long)number, session_count, (unsigned long long)faults, crashes, outcome.erased_opened,
        outcome.erased, outcome.live_opened, outcome.live,
        (unsigned long long)((kv_now_ns(&kv_env_system) - began) / KV_MS_NS));
    walk_end();
}

Test(sim_erasure, promises_hold_under_faults_and_crashes)
{
    const char *one = getenv("KV_SIM_SEED");
    if (one != NULL) {
        walk(strtoull(one, NULL, 10));
        return;
    }
    uint64_t walks = getenv("KV_LONG") != NULL ? WALKS_LONG : WALKS;
    for (uint64_t number = 1; number <= walks; number++) {
        walk(number);
    }
}

/* --- controls: each check finds what it is for -----------------------------------------------------------------------
 */

static struct sim_session *any(enum fate fate)
{
    for (unsigned i = 0; i < session_count; i++) {
        if (sessions[i].fate == fate && sessions[i].durable > 0) {
            return &sessions[i];
        }
    }
    broken("the walk of the control has no session for it");
}

static void erase_for_sure(struct sim_session *session)
{
    steal(session);
    struct kv_erasure_view view = kvt_svc_erase(&rig.call, session->id);
    session->erasure = view.id;
    session->fate = ACCEPTED;
}

/* Two sessions, one of them erased. */
static void small_world(void)
{
    walk_begin(0);
    create();
    create();
    erase_for_sure(&sessions[0]);
    check_promises();
}

Test(sim_erasure, finds_a_root_that_was_not_destroyed, .signal = SIGABRT)
{
    small_world();
    kvt_svc_stop(&rig);
    run((const char *const[]){"cp", any(ACCEPTED)->stolen_root, rig.root_path, NULL});
    (void)check_attack();
}

Test(sim_erasure, finds_a_certificate_that_changed, .signal = SIGABRT)
{
    small_world();
    any(ACCEPTED)->bundle.data[0] ^= 1;
    check_promises();
}

Test(sim_erasure, finds_a_durable_block_that_is_lost, .signal = SIGABRT)
{
    small_world();
    any(LIVE)->durable++;
    check_promises();
}

Test(sim_erasure, finds_an_erasure_that_does_not_end, .signal = SIGABRT)
{
    small_world();
    settle_s = 1;
    kv_fault_set("erase/verify-fails=fail");
    erase_for_sure(any(LIVE));
    kv_fault_set(NULL);
    check_promises();
}
