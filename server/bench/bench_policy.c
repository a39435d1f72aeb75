/*
 * Decisions of policies, each for another tenant, so that what is measured includes what the caches do not hold; the
 * cost of the clock is measured beside it, in pairs, and taken off. Activating: reading a text, compiling it, comparing
 * it with the one before and moving the pointer; the database's commit is not in it.
 */
#include "dataplane/base/env.h"
#include "dataplane/base/mem.h"
#include "policies/policy_set.h"
#include "server/bench/bench.h"

#include <string.h>

#define TENANTS 10000u
#define DECISIONS 100000u
#define ROUNDS 5u
#define ACTIVATIONS 200u

static const char platform_text[] = "{\"tiers\":{\"dram\":{},\"nvme\":{}},\"forbid\":[{\"data_classes\":[\"special\"],"
                                    "\"tiers\":[\"nvme\"]}]}";

struct world {
    struct kv_policy_doc *platform;
    struct kv_policy_set *sets[TENANTS];
    double values[DECISIONS], clock[DECISIONS];
    uint64_t random, allowed, bytes;
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

static KV_RC populate(struct world *world, struct kv_errinfo *info)
{
    KV_TRY(kv_policy_parse(KV_BYTES(platform_text, strlen(platform_text)), KV_POLICY_PLATFORM, info, &world->platform));
    for (unsigned i = 0; i < TENANTS; i++) {
        KV_TRY(make_set(world, i, 0, info, &world->sets[i]));
    }
    return KV_OK;
}

static void decide(struct world *world, const struct kv_policy_set *set, const struct kv_policy_facts *facts)
{
    struct kv_policy_decision decision;
    kv_policy_eval(kv_policy_class(set, "batch"), facts, &decision);
    world->allowed += decision.allowed;
}

static void fill_names(struct kv_policy_facts *facts, unsigned tenant)
{
    static const char *const models[] = {"llama-0", "llama-1", "llama-2", "llama-3", "llama-4", "llama-5", "llama-6"};
    static const char *const regions[] = {"eu-0", "eu-1", "eu-2"};
    facts->names[KV_POLICY_MODEL] = kv_policy_text(models[tenant % 7]);
    facts->names[KV_POLICY_REGION] = kv_policy_text(regions[tenant % 3]);
}

/* One round: decisions and empty measurements by turns, over the first `tenants`. */
static void measure(struct world *world, unsigned tenants, double *ret_decision_ns, double *ret_clock_ns)
{
    struct kv_policy_facts facts = {.tenant_active = true,
                                    .session_active = true,
                                    .same_tenant = true,
                                    .block_bytes = 2097152,
                                    .obligations_known = KV_POLICY_OBLIGATIONS_ALL};
    for (unsigned i = 0; i < DECISIONS; i++) {
        unsigned tenant = (unsigned)draw(world, tenants);
        const struct kv_policy_set *set = world->sets[tenant];
        facts.action = (enum kv_policy_action)draw(world, 3);
        fill_names(&facts, tenant);
        uint64_t a = kv_now_ns(&kv_env_system);
        decide(world, set, &facts);
        uint64_t b = kv_now_ns(&kv_env_system), c = kv_now_ns(&kv_env_system);
        world->values[i] = (double)(b - a);
        world->clock[i] = (double)(c - b);
    }
    *ret_decision_ns = kv_bench_percentile(world->values, DECISIONS, 50);
    *ret_clock_ns = kv_bench_percentile(world->clock, DECISIONS, 50);
}

static double above(double value, double base)
{
    return value > base ? value - base : 0;
}

static void decisions(struct world *world, struct kv_bench_result *result)
{
    double p50[ROUNDS], p99[ROUNDS];
    for (unsigned round = 0; round < ROUNDS; round++) {
        double decision = 0, clock = 0;
        measure(world, TENANTS, &decision, &clock);
        kv_bench_pair(result, "clock_ns, decision_and_clock_ns", clock, decision);
        p50[round] = above(decision, clock);
        p99[round] = above(kv_bench_percentile(world->values, DECISIONS, 99), clock);
    }
    double middle = kv_bench_percentile(p50, ROUNDS, 50);
    result->noise = middle > 0 ? (p50[ROUNDS - 1] - p50[0]) / middle : 0;
    kv_bench_goal(result, "decision_p50_ns", 50, middle);
    kv_bench_goal(result, "decision_p99_ns", 200, kv_bench_percentile(p99, ROUNDS, 50));
    kv_bench_figure(result, "allowed_percent", 100.0 * (double)world->allowed / ((double)DECISIONS * ROUNDS));
    double decision = 0, clock = 0;
    measure(world, 1, &decision, &clock);
    kv_bench_figure(result, "decision_in_cache_p50_ns", above(decision, clock));
    kv_bench_figure(result, "tenants", TENANTS);
}

static KV_RC activate(struct world *world, unsigned tenant, struct kv_policy_diff *diff, struct kv_errinfo *info)
{
    struct kv_policy_set *fresh = NULL;
    KV_TRY(make_set(world, tenant, 1, info, &fresh));
    kv_policy_compare(world->sets[tenant], fresh, diff);
    kv_policy_set_free(world->sets[tenant]);
    world->sets[tenant] = fresh;
    return KV_OK;
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
    }
    kv_free(*world);
}

KV_RC kv_bench_policy(struct kv_bench_result *result, struct kv_errinfo *info)
{
    struct world *world KV_CLEANUP(world_free) = kv_alloc(sizeof *world);
    if (world == NULL) {
        return KV_E_NO_MEMORY;
    }
    world->random = 1;
    KV_TRY(populate(world, info));
    decisions(world, result);
    return activations(world, result, info);
}
