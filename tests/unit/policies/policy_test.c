/* The compiled decision against a slow reading of the rules: every question of a finite domain, over many policies. */
#include "policies/policy.h"

#include "tests/lib/policy_cases.h"

#include <criterion/criterion.h>
#include <string.h>

static bool same(const struct kv_policy_decision *a, const struct kv_policy_decision *b)
{
    return a->allowed == b->allowed && a->reasons == b->reasons && a->tiers_allowed == b->tiers_allowed &&
           a->obligations == b->obligations;
}

struct asked {
    uint64_t cases, allowed;
    uint32_t reasons;
};

static void ask_all(const json_t *platform, const json_t *tenant, uint64_t step, struct asked *asked)
{
    struct kv_policy_set *set = kvt_policy_set(platform, tenant);
    struct kvt_question q;
    for (uint64_t n = 0; kvt_policy_question(n, &q); n += step) {
        struct kv_policy_decision expected, got;
        kvt_policy_reference(platform, tenant, &q, &expected);
        kv_policy_eval(kv_policy_class(set, q.class_name), &q.facts, &got);
        if (!same(&expected, &got)) {
            cr_assert_fail("question %lu: expected reasons %x tiers %x, got %x %x\n%s\n%s", (unsigned long)n,
                           expected.reasons, expected.tiers_allowed, got.reasons, got.tiers_allowed,
                           json_dumps(platform, 0), json_dumps(tenant, 0));
        }
        asked->cases++;
        asked->allowed += got.allowed;
        asked->reasons |= got.reasons;
    }
    kv_policy_set_free(set);
}

static void ask_random(unsigned policies, uint64_t step, struct asked *asked)
{
    unsigned seed = 7;
    for (unsigned i = 0; i < policies; i++) {
        json_t *platform = kvt_policy_random(&seed, true), *tenant = kvt_policy_random(&seed, false);
        ask_all(platform, tenant, step, asked);
        json_decref(platform);
        json_decref(tenant);
    }
}

Test(policy, every_question_of_the_domain_is_answered_as_the_rules_are_read)
{
    struct asked asked = {0};
    json_error_t error;
    json_t *platform = json_loads("{\"tiers\":{\"dram\":{},\"nvme\":{}},\"models\":[\"m-a\",\"m-b\"],\"forbid\":["
                                  "{\"data_classes\":[\"special\"],\"tiers\":[\"nvme\"]},"
                                  "{\"models\":[\"m-b\"],\"regions\":[\"us\"],\"actions\":[\"restore\",\"session\"]}]}",
                                  0, &error);
    json_t *tenant = json_loads(
        "{\"tiers\":{\"dram\":{},\"nvme\":{}},\"regions\":[\"eu\",\"us\"],\"max_block_bytes\":1000,"
        "\"sharing\":{\"mode\":\"scope\",\"scopes\":[\"s-a\"]},"
        "\"layouts\":[\"0000000000000000000000000000000000000000000000000000000000000001\"],"
        "\"session\":{\"max_age_seconds\":100},\"erase\":{\"basis\":[\"retention\"],\"require_reason\":true},"
        "\"classes\":{\"gold\":{\"data_class\":\"special\",\"restore\":\"never\"}},"
        "\"forbid\":[{\"tiers\":[\"dram\"],\"regions\":[\"us\"]},{\"classes\":[\"default\"],\"models\":[\"m-a\"],"
        "\"layouts\":[\"0000000000000000000000000000000000000000000000000000000000000001\"]}]}",
        0, &error);
    cr_assert(platform != NULL && tenant != NULL);
    ask_all(platform, tenant, 1, &asked);
    cr_expect_gt(asked.cases, 200000);
    cr_expect_gt(asked.allowed, 1000); /* the control: some are allowed */
    cr_expect_eq(asked.reasons, (1u << KV_POLICY_REASONS) - 1 - KV_POLICY_ACTION_UNKNOWN);
    json_decref(platform);
    json_decref(tenant);
}

Test(policy, random_policies_are_answered_as_they_are_read)
{
    struct asked asked = {0};
    ask_random(600, 397, &asked);
    cr_expect_gt(asked.cases, 300000);
    cr_expect_gt(asked.allowed, 1000);
}

Test(policy, what_is_not_known_is_denied)
{
    struct kv_policy_decision decision;
    struct kv_policy_facts facts = {.action = KV_POLICY_OFFLOAD, .tenant_active = true};
    kv_policy_eval(NULL, &facts, &decision);
    cr_expect(!decision.allowed && decision.reasons == KV_POLICY_CLASS_UNKNOWN && decision.tiers_allowed == 0);
    facts.action = KV_POLICY_ACTIONS;
    kv_policy_eval(NULL, &facts, &decision);
    cr_expect(!decision.allowed && decision.reasons == KV_POLICY_ACTION_UNKNOWN);
}

Test(policy, each_reason_has_a_name_of_its_own)
{
    cr_expect_str_eq(kv_policy_reason_name(0), "");
    for (unsigned i = 0; i < KV_POLICY_REASONS; i++) {
        const char *name = kv_policy_reason_name(1u << i);
        cr_expect_gt(strlen(name), 0);
        for (unsigned j = 0; j < i; j++) {
            cr_expect_str_neq(name, kv_policy_reason_name(1u << j));
        }
    }
    cr_expect_str_eq(kv_policy_reason_name(KV_POLICY_OTHER_TENANT | KV_POLICY_BLOCK_TOO_LARGE), "other_tenant");
}
