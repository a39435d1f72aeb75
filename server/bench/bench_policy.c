/*
 * Decisions of policies, each for another tenant, so that what is measured includes what the caches do not hold; the
 * cost of the clock is measured beside it, in pairs, and taken off. Activating: reading a text, compiling it, comparing
 * it with the one before and moving the pointer; the database's commit is not in it.
 */
#include "dataplane/base/env.h"
#include "dataplane/base/mem.h"
#include "policies/policy_table.h"
#include "server/bench/bench.h"

#include <pthread.h>
#include <string.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#define TENANTS 10000u
#define MODELS 7u
#define REGIONS 3u
#define DECISIONS 10000u
#define ROUNDS 25u
#define STAMP 1
#define CAPACITY 16384u /* of the table, as a service has it */
#define CALIBRATION_NS UINT64_C(20000000)
#define ACTIVATIONS 200u

static const char platform_text[] = "{\"tiers\":{\"dram\":{},\"nvme\":{}},\"forbid\":[{\"data_classes\":[\"special\"],"
                                    "\"tiers\":[\"nvme\"]}]}";

/* As large as a pool's names in the service. */
struct names {
    uint64_t age_s;
    char texts[376];
};

struct world {
    struct kv_policy_doc *platform;
    struct kv_policy_set *sets[TENANTS];
    struct kv_policy_table *table;
    struct names pools[TENANTS];
    pthread_mutex_t registry;
    uint64_t class_hash, model_hashes[MODELS], region_hashes[REGIONS];
    uint32_t places[TENANTS];                        /* as sessions remember them */
    uint32_t decisions[DECISIONS], empty[DECISIONS]; /* ticks */
    double values[DECISIONS], ns_a_tick;
    uint64_t random, decided, allowed, unknown;
};

static uint64_t draw(struct world *world, uint64_t below)
{
    world->random = world->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (world->random >> 33) % below;
}

static KV_RC make_set(struct world *world, unsigned tenant, unsigned variant, struct kv_errinfo *info,
                      struct kv_policy_set **ret_set)
{
    char text[700];
    struct kv_policy_doc *doc KV_CLEANUP(kv_policy_doc_freep) = NULL;
    int len = snprintf(text, sizeof text,
                       "{\"tiers\":{\"dram\":{},\"nvme\":{}},\"models\":[\"llama-%u\",\"mixtral-%u\"],\"regions\":"
                       "[\"eu-%u\"],\"max_block_bytes\":%u,\"quota\":{\"sessions\":1000},\"classes\":{\"batch\":"
                       "{\"session\":{\"max_age_seconds\":86400}},\"vault\":{\"data_class\":\"special\"}}}",
                       tenant % 7, tenant % 5, tenant % 3, 33554432 - variant);
    KV_TRY(kv_policy_parse(KV_BYTES(text, (size_t)len), KV_POLICY_TENANT, info, &doc));
    return kv_policy_compile(world->platform, doc, ret_set);
}

static struct kv_id tenant_id(unsigned tenant)
{
    struct kv_id id = {{0x01, 0x93}};
    uint64_t spread = (tenant + 1) * UINT64_C(0x9e3779b97f4a7c15);
    spread ^= spread >> 29;
    memcpy(id.b + 8, &spread, sizeof spread);
    return id;
}

/* In the place of the keyed hash that the service has: it is not what is measured. */
static KV_RC hash_text(void *ctx, const char *text, uint64_t *ret_hash)
{
    (void)ctx;
    *ret_hash = kv_policy_text(text).hash;
    return KV_OK;
}

static KV_RC put(struct world *world, unsigned tenant)
{
    struct kv_policy_entry entry = {.tenant = tenant_id(tenant),
                                    .stamp = STAMP,
                                    .until_ns = UINT64_C(1) << 32,
                                    .set = world->sets[tenant],
                                    .policy = kv_policy_class(world->sets[tenant], "batch")};
    return kv_policy_table_put(world->table, &entry) ? KV_OK : KV_E_LIMIT;
}

static KV_RC hash_names(struct world *world)
{
    static const char *const models[MODELS] = {"llama-0", "llama-1", "llama-2", "llama-3",
                                               "llama-4", "llama-5", "llama-6"};
    static const char *const regions[REGIONS] = {"eu-0", "eu-1", "eu-2"};
    for (unsigned i = 0; i < MODELS; i++) {
        KV_TRY(kv_policy_table_hash(world->table, models[i], &world->model_hashes[i]));
    }
    for (unsigned i = 0; i < REGIONS; i++) {
        KV_TRY(kv_policy_table_hash(world->table, regions[i], &world->region_hashes[i]));
    }
    return kv_policy_table_hash(world->table, "batch", &world->class_hash);
}

static KV_RC populate(struct world *world, struct kv_errinfo *info)
{
    const struct kv_policy_hasher hasher = {.hash = hash_text};
    KV_TRY(kv_policy_parse(KV_BYTES(platform_text, strlen(platform_text)), KV_POLICY_PLATFORM, info, &world->platform));
    KV_TRY(kv_policy_table_new(CAPACITY, &hasher, &world->table));
    for (unsigned i = 0; i < TENANTS; i++) {
        KV_TRY(make_set(world, i, 0, info, &world->sets[i]));
        KV_TRY(put(world, i));
    }
    return hash_names(world);
}

/* --- the clock ---------------------------------------------------------------------------------------------------- */

/* The processor's counter, read when everything before has ended and before anything after begins. */
static inline uint64_t ticks(void)
{
#if defined(__x86_64__)
    _mm_lfence();
    uint64_t now = __rdtsc();
    _mm_lfence();
    return now;
#else
    return kv_now_ns(&kv_env_system);
#endif
}

static double ns_a_tick(void)
{
    uint64_t ns = kv_now_ns(&kv_env_system), begun = ticks(), now = ns;
    while (now - ns < CALIBRATION_NS) {
        now = kv_now_ns(&kv_env_system);
    }
    return (double)(now - ns) / (double)(ticks() - begun);
}

/* --- decisions ---------------------------------------------------------------------------------------------------- */

static struct kv_policy_subject subject_of(const struct world *world, unsigned tenant)
{
    return (struct kv_policy_subject){.tenant = tenant_id(tenant),
                                      .class_hash = world->class_hash,
                                      .names = {[KV_POLICY_MODEL] = world->model_hashes[tenant % MODELS],
                                                [KV_POLICY_REGION] = world->region_hashes[tenant % REGIONS]},
                                      .stamp = STAMP,
                                      .place = world->places[tenant]};
}

/* What a transfer does between finding its session, when it asks the processor for the policy's line, and deciding: it
 * copies the names of its pool out of the registry, under the registry's lock. */
static void borrow(struct world *world, unsigned tenant, struct names *ret_names)
{
    pthread_mutex_lock(&world->registry);
    *ret_names = world->pools[tenant];
    pthread_mutex_unlock(&world->registry);
}

static void decide(struct world *world, struct kv_policy_subject *subject, const struct kv_policy_facts *facts)
{
    struct kv_policy_decision decision = {0};
    struct kv_policy_bounds bounds = {0};
    bool known = kv_policy_table_decide(world->table, subject, facts, &decision, &bounds);
    world->unknown += !known || bounds.session_bytes == 0;
    world->allowed += decision.allowed;
    world->decided++;
}

/* One round: decisions and empty measurements by turns, over the first `tenants`. In ticks. */
static void measure(struct world *world, unsigned tenants, bool expected)
{
    struct kv_policy_facts facts = {.tenant_active = true,
                                    .session_active = true,
                                    .same_tenant = true,
                                    .block_bytes = 2097152,
                                    .obligations_known = KV_POLICY_OBLIGATIONS_ALL};
    for (unsigned i = 0; i < DECISIONS; i++) {
        unsigned tenant = (unsigned)draw(world, tenants);
        struct kv_policy_subject subject = subject_of(world, tenant);
        struct names names;
        facts.action = (enum kv_policy_action)draw(world, 3);
        if (expected) {
            kv_policy_table_expect(world->table, subject.place);
        }
        borrow(world, tenant, &names);
        facts.session_age_s = names.age_s;
        uint64_t a = ticks();
        decide(world, &subject, &facts);
        uint64_t b = ticks(), c = ticks();
        world->places[tenant] = subject.place;
        world->decisions[i] = (uint32_t)(b - a);
        world->empty[i] = (uint32_t)(c - b);
    }
}

static double percentile(struct world *world, const uint32_t *of, double percent)
{
    for (unsigned i = 0; i < DECISIONS; i++) {
        world->values[i] = (double)of[i] * world->ns_a_tick;
    }
    return kv_bench_percentile(world->values, DECISIONS, percent);
}

static double above(double value, double base)
{
    return value > base ? value - base : 0;
}

struct rounds {
    double p50[ROUNDS], p99[ROUNDS], empty[ROUNDS];
};

static void run_rounds(struct world *world, bool expected, struct rounds *ret_rounds)
{
    for (unsigned round = 0; round < ROUNDS; round++) {
        measure(world, TENANTS, expected);
        double empty = percentile(world, world->empty, 50);
        ret_rounds->empty[round] = empty;
        ret_rounds->p50[round] = above(percentile(world, world->decisions, 50), empty);
        ret_rounds->p99[round] = above(percentile(world, world->decisions, 99), empty);
    }
}

static double middle(double values[ROUNDS])
{
    return kv_bench_percentile(values, ROUNDS, 50);
}

static void decisions(struct world *world, struct kv_bench_result *result)
{
    struct rounds rounds, cold;
    measure(world, TENANTS, true); /* most sessions have decided before, and know the place; the memory is there */
    run_rounds(world, true, &rounds);
    run_rounds(world, false, &cold);
    for (unsigned round = 0; round < ROUNDS; round++) {
        kv_bench_pair(result, "empty_ns, decision_ns", rounds.empty[round], rounds.p50[round]);
    }
    double p50 = middle(rounds.p50);
    result->noise = p50 > 0 ? (rounds.p50[ROUNDS - 1] - rounds.p50[0]) / p50 : 0;
    kv_bench_goal(result, "decision_p50_ns", 50, p50);
    kv_bench_goal(result, "decision_p99_ns", 200, middle(rounds.p99));
    kv_bench_figure(result, "decision_p50_least_ns", rounds.p50[0]);
    kv_bench_figure(result, "decision_p99_least_ns", rounds.p99[0]);
    kv_bench_figure(result, "not_expected_p50_ns", middle(cold.p50));
    kv_bench_figure(result, "not_expected_p99_ns", middle(cold.p99));
    kv_bench_figure(result, "empty_measurement_ns", middle(rounds.empty));
    kv_bench_figure(result, "allowed_percent", 100.0 * (double)world->allowed / (double)world->decided);
    kv_bench_figure(result, "found_percent", 100.0 - 100.0 * (double)world->unknown / (double)world->decided);
    measure(world, 1, true);
    kv_bench_figure(result, "decision_in_cache_p50_ns",
                    above(percentile(world, world->decisions, 50), percentile(world, world->empty, 50)));
    kv_bench_figure(result, "tenants", TENANTS);
}

static KV_RC activate(struct world *world, unsigned tenant, struct kv_policy_diff *diff, struct kv_errinfo *info)
{
    struct kv_policy_set *fresh = NULL;
    KV_TRY(make_set(world, tenant, 1, info, &fresh));
    kv_policy_compare(world->sets[tenant], fresh, diff);
    kv_policy_set_free(world->sets[tenant]);
    world->sets[tenant] = fresh;
    return put(world, tenant);
}

static KV_RC activations(struct world *world, struct kv_bench_result *result, struct kv_errinfo *info)
{
    struct kv_policy_diff *diff KV_CLEANUP(kv_freep) = kv_alloc(sizeof *diff);
    double ms[ACTIVATIONS];
    if (diff == NULL) {
        return KV_E_NO_MEMORY;
    }
    for (unsigned i = 0; i < ACTIVATIONS; i++) {
        uint64_t begun = kv_now_ns(&kv_env_system);
        KV_TRY(activate(world, (unsigned)draw(world, TENANTS), diff, info));
        ms[i] = (double)(kv_now_ns(&kv_env_system) - begun) / 1e6;
    }
    kv_bench_figure(result, "activation_p50_ms", kv_bench_percentile(ms, ACTIVATIONS, 50));
    kv_bench_goal(result, "activation_p99_ms", 10, kv_bench_percentile(ms, ACTIVATIONS, 99));
    return KV_OK;
}

static void world_free(struct world **world)
{
    for (unsigned i = 0; *world != NULL && i < TENANTS; i++) {
        kv_policy_set_free((*world)->sets[i]);
    }
    if (*world != NULL) {
        kv_policy_doc_free((*world)->platform);
        kv_policy_table_free((*world)->table);
        pthread_mutex_destroy(&(*world)->registry);
    }
    kv_free(*world);
}

KV_RC kv_bench_policy(bool quick, struct kv_bench_result *result, struct kv_errinfo *info)
{
    (void)quick; /* it takes seconds */
    struct world *world KV_CLEANUP(world_free) = kv_alloc(sizeof *world);
    if (world == NULL) {
        return KV_E_NO_MEMORY;
    }
    world->random = 1;
    pthread_mutex_init(&world->registry, NULL);
    KV_TRY(populate(world, info));
    world->ns_a_tick = ns_a_tick();
    decisions(world, result);
    return activations(world, result, info);
}
