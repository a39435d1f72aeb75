/* What a change of policy changes: nothing that is added may allow more, and the comparison finds what does. */
#include "policies/policy_set.h"

#include "tests/lib/policy_cases.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POLICIES 120
#define STEP 293

/* What `after` allows, `before` allowed: with no more tiers. */
static bool within(const struct kv_policy_set *after, const struct kv_policy_set *before)
{
    struct kvt_question q;
    for (uint64_t n = 0; kvt_policy_question(n, &q); n += STEP) {
        struct kv_policy_decision a, b;
        kv_policy_eval(kv_policy_class(after, q.class_name), &q.facts, &a);
        const struct kv_policy *known = kv_policy_class(before, q.class_name);
        bool new_class = known == NULL && kv_policy_class(after, q.class_name) != NULL;
        kv_policy_eval(new_class ? &before->classes[0] : known, &q.facts, &b); /* a new class counts as default did */
        bool more_tiers = q.facts.action == KV_POLICY_OFFLOAD && (a.tiers_allowed & ~b.tiers_allowed) != 0;
        if (a.allowed && (!b.allowed || more_tiers)) {
            return false;
        }
    }
    return true;
}

static struct kv_policy_diff *compare(const struct kv_policy_set *before, const struct kv_policy_set *after)
{
    struct kv_policy_diff *diff = malloc(sizeof *diff);
    kv_policy_compare(before, after, diff);
    return diff;
}

static void check_narrower(const json_t *platform, const json_t *before, const json_t *after)
{
    struct kv_policy_set *a = kvt_policy_set(platform, before), *b = kvt_policy_set(platform, after);
    struct kv_policy_diff *diff = compare(a, b);
    cr_assert(within(b, a), "%s\n%s", json_dumps(before, 0), json_dumps(after, 0));
    cr_assert(!kv_policy_loosens(diff), "%s", kv_policy_loosens_text(diff));
    cr_assert_str_eq(kv_policy_loosens_text(diff), "");
    free(diff);
    kv_policy_set_free(a);
    kv_policy_set_free(b);
}

Test(policy_diff, one_more_forbid_rule_never_allows_more)
{
    unsigned seed = 11;
    for (unsigned i = 0; i < POLICIES; i++) {
        json_t *platform = kvt_policy_random(&seed, true), *tenant = kvt_policy_random(&seed, false);
        json_t *more = json_deep_copy(tenant);
        json_array_append_new(json_object_get(more, "forbid"), kvt_policy_random_rule(&seed, tenant));
        check_narrower(platform, tenant, more);
        json_decref(platform);
        json_decref(tenant);
        json_decref(more);
    }
}

static void narrow_somehow(unsigned *seed, json_t *policy)
{
    switch (kvt_policy_draw(seed, 6)) {
    case 0:
        json_object_del(json_object_get(policy, "tiers"), "nvme");
        break;
    case 1:
        json_object_set_new(policy, "max_block_bytes", json_integer(999));
        break;
    case 2:
        json_object_set_new(json_object_get(policy, "session"), "max_age_seconds", json_integer(99));
        break;
    case 3:
        json_object_set_new(policy, "restore", json_string("never"));
        break;
    case 4:
        json_object_set_new(json_object_get(policy, "erase"), "require_reason", json_true());
        break;
    default:
        if (json_object_get(policy, "models") == NULL) {
            json_object_set_new(policy, "models", json_pack("[s]", "m-c"));
        }
        break;
    }
}

Test(policy_diff, a_lower_ceiling_never_allows_more)
{
    unsigned seed = 13;
    for (unsigned i = 0; i < POLICIES; i++) {
        json_t *platform = kvt_policy_random(&seed, true), *tenant = kvt_policy_random(&seed, false);
        json_t *lower = json_deep_copy(platform);
        narrow_somehow(&seed, lower);
        struct kv_policy_set *a = kvt_policy_set(platform, tenant), *b = kvt_policy_set(lower, tenant);
        struct kv_policy_diff *diff = compare(a, b);
        cr_assert(within(b, a));
        cr_assert(!kv_policy_loosens(diff), "%s", kv_policy_loosens_text(diff));
        free(diff);
        kv_policy_set_free(a);
        kv_policy_set_free(b);
        json_decref(platform);
        json_decref(tenant);
        json_decref(lower);
    }
}

Test(policy_diff, the_order_of_rules_and_lists_has_no_effect)
{
    unsigned seed = 17;
    for (unsigned i = 0; i < POLICIES; i++) {
        json_t *platform = kvt_policy_random(&seed, true), *tenant = kvt_policy_random(&seed, false);
        json_t *turned = json_deep_copy(tenant), *rules = json_array();
        const json_t *old = json_object_get(tenant, "forbid");
        for (size_t r = json_array_size(old); r > 0; r--) {
            json_array_append(rules, json_array_get(old, r - 1));
        }
        json_object_set_new(turned, "forbid", rules);
        check_narrower(platform, tenant, turned);
        check_narrower(platform, turned, tenant);
        json_decref(platform);
        json_decref(tenant);
        json_decref(turned);
    }
}

Test(policy_diff, what_is_newly_allowed_is_found)
{
    unsigned seed = 19, looser = 0;
    for (unsigned i = 0; i < 4 * POLICIES; i++) {
        json_t *platform = kvt_policy_random(&seed, true);
        json_t *one = kvt_policy_random(&seed, false), *other = kvt_policy_random(&seed, false);
        struct kv_policy_set *a = kvt_policy_set(platform, one), *b = kvt_policy_set(platform, other);
        struct kv_policy_diff *diff = compare(a, b);
        if (!within(b, a)) {
            cr_assert(kv_policy_loosens(diff));
            cr_assert_str_neq(kv_policy_loosens_text(diff), "");
            looser++;
        }
        free(diff);
        kv_policy_set_free(a);
        kv_policy_set_free(b);
        json_decref(platform);
        json_decref(one);
        json_decref(other);
    }
    cr_expect_gt(looser, POLICIES);
}

static struct kv_policy_set *set_of(const char *tenant)
{
    json_error_t error;
    json_t *platform = json_loads(kv_policy_builtin, 0, &error), *own = json_loads(tenant, 0, &error);
    cr_assert_not_null(own, "%s", error.text);
    struct kv_policy_set *set = kvt_policy_set(platform, own);
    json_decref(platform);
    json_decref(own);
    return set;
}

static void expect(const char *before, const char *after, bool looser, bool narrower)
{
    struct kv_policy_set *a = set_of(before), *b = set_of(after);
    struct kv_policy_diff *diff = compare(a, b);
    cr_expect_eq(kv_policy_loosens(diff), looser, "%s → %s: %s", before, after, kv_policy_loosens_text(diff));
    cr_expect_eq(diff->newly_denied > 0, narrower, "%s → %s", before, after);
    free(diff);
    kv_policy_set_free(a);
    kv_policy_set_free(b);
}

Test(policy_diff, each_number_and_mode_counts_in_its_direction)
{
    static const char *const pairs[][2] = {
        {"{\"tiers\":{\"dram\":{}}}", "{\"tiers\":{\"dram\":{},\"nvme\":{}}}"},
        {"{\"tiers\":{\"dram\":{\"max_bytes\":5},\"nvme\":{}}}",
         "{\"tiers\":{\"dram\":{\"max_bytes\":6},\"nvme\":{}}}"},
        {"{\"tiers\":{\"dram\":{}},\"quota\":{\"sessions\":1}}",
         "{\"tiers\":{\"dram\":{}},\"quota\":{\"sessions\":2}}"},
        {"{\"tiers\":{\"dram\":{}},\"quota\":{\"nvme_bytes\":1}}", "{\"tiers\":{\"dram\":{}}}"},
        {"{\"tiers\":{\"dram\":{}},\"session\":{\"max_blocks\":1}}", "{\"tiers\":{\"dram\":{}}}"},
        {"{\"tiers\":{\"dram\":{}},\"session\":{\"max_idle_seconds\":1}}", "{\"tiers\":{\"dram\":{}}}"},
        {"{\"tiers\":{\"dram\":{}},\"erase\":{\"sla_seconds\":1}}", "{\"tiers\":{\"dram\":{}}}"},
        {"{\"tiers\":{\"dram\":{}},\"erase\":{\"require_reason\":true}}", "{\"tiers\":{\"dram\":{}}}"},
        {"{\"tiers\":{\"dram\":{}}}", "{\"tiers\":{\"dram\":{}},\"hold\":{\"allowed\":true}}"},
        {"{\"tiers\":{\"dram\":{}},\"approvals\":{\"hold_release\":2}}", "{\"tiers\":{\"dram\":{}}}"},
        {"{\"tiers\":{\"dram\":{}},\"approvals\":{\"tenant_erase\":2}}",
         "{\"tiers\":{\"dram\":{}},\"approvals\":{\"tenant_erase\":1}}"},
        {"{\"tiers\":{\"dram\":{}},\"hold\":{\"allowed\":true,\"max_days\":1}}",
         "{\"tiers\":{\"dram\":{}},\"hold\":{\"allowed\":true,\"max_days\":2}}"},
        {"{\"tiers\":{\"dram\":{}},\"classes\":{\"x\":{\"restore\":\"never\"}}}",
         "{\"tiers\":{\"dram\":{}},\"classes\":{\"x\":{}}}"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        expect(pairs[i][0], pairs[i][1], true, false);
        expect(pairs[i][1], pairs[i][0], false, true);
        expect(pairs[i][0], pairs[i][0], false, false);
    }
}

/* The days of the longest hold, or what is refused. */
static uint64_t hold_days(const char *platform, const char *tenant, enum kv_err wanted)
{
    struct kv_errinfo info = {0};
    struct kv_policy_doc *docs[2] = {NULL, NULL};
    struct kv_policy_set *set = NULL;
    char text[2][128];
    snprintf(text[0], sizeof text[0], "{\"tiers\":{\"dram\":{}}%s}", platform);
    snprintf(text[1], sizeof text[1], "{\"tiers\":{\"dram\":{}}%s}", tenant);
    for (unsigned i = 0; i < 2; i++) {
        enum kv_policy_level level = i == 0 ? KV_POLICY_PLATFORM : KV_POLICY_TENANT;
        cr_assert_eq(kv_policy_parse(KV_BYTES(text[i], strlen(text[i])), level, &info, &docs[i]), KV_OK, "%s",
                     info.text);
    }
    cr_expect_eq(kv_policy_check_ceiling(docs[0], docs[1], &info), wanted, "%s under %s", tenant, platform);
    cr_assert_eq(kv_policy_compile(docs[0], docs[1], &set), KV_OK);
    uint64_t days = set->hold_days;
    kv_policy_set_free(set);
    kv_policy_doc_free(docs[0]);
    kv_policy_doc_free(docs[1]);
    return days;
}

Test(policy_diff, holds_are_a_tenant_s_to_have_and_the_platform_s_to_bound)
{
    const char *some = ",\"hold\":{\"allowed\":true,\"max_days\":30}", *all = ",\"hold\":{\"allowed\":true}",
               *none = ",\"hold\":{\"allowed\":false}";
    cr_expect_eq(hold_days("", "", KV_OK), 0, "nobody said that there are any");
    cr_expect_eq(hold_days(all, "", KV_OK), 0, "it is the tenant that says so");
    cr_expect_eq(hold_days("", some, KV_OK), 30);
    cr_expect_eq(hold_days("", all, KV_OK), (uint64_t)KV_MAX_HOLD_DAYS);
    cr_expect_eq(hold_days(some, all, KV_E_CEILING), 30);
    cr_expect_eq(hold_days(some, some, KV_OK), 30);
    cr_expect_eq(hold_days(none, some, KV_E_CEILING), 0);
    cr_expect_eq(hold_days(none, none, KV_OK), 0);
}

Test(policy_diff, a_new_class_is_looser_where_it_allows_more_than_default_did)
{
    const char *none = "{\"tiers\":{\"dram\":{}}}";
    const char *narrow = "{\"tiers\":{\"dram\":{}},\"classes\":{\"x\":{\"restore\":\"never\"}}}";
    const char *low = "{\"tiers\":{\"dram\":{}},\"classes\":{\"default\":{\"restore\":\"never\"}}}";
    const char *wide = "{\"tiers\":{\"dram\":{}},\"classes\":{\"default\":{\"restore\":\"never\"},\"x\":{}}}";
    expect(none, narrow, false, true);
    expect(narrow, none, false, true);
    expect(low, wide, true, false);
}

Test(policy_diff, saying_that_data_is_less_special_loosens_what_the_platform_forbids)
{
    json_error_t error;
    json_t *platform = json_loads("{\"tiers\":{\"dram\":{},\"nvme\":{}},\"forbid\":[{\"data_classes\":[\"special\"],"
                                  "\"tiers\":[\"nvme\"]}]}",
                                  0, &error);
    json_t *special = json_loads("{\"tiers\":{\"dram\":{},\"nvme\":{}},\"data_class\":\"special\"}", 0, &error);
    json_t *plain = json_loads("{\"tiers\":{\"dram\":{},\"nvme\":{}},\"data_class\":\"public\"}", 0, &error);
    struct kv_policy_set *a = kvt_policy_set(platform, special), *b = kvt_policy_set(platform, plain);
    struct kv_policy_diff *diff = compare(a, b);
    cr_expect(kv_policy_loosens(diff));
    free(diff);
    kv_policy_set_free(a);
    kv_policy_set_free(b);
    json_decref(platform);
    json_decref(special);
    json_decref(plain);
}

/* `count` models, layouts and regions. */
static char *large_policy(char letter, unsigned count)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    fputs("{\"tiers\":{\"dram\":{}}", out);
    for (unsigned kind = 0; kind < 3; kind++) {
        static const char *const members[] = {"models", "regions", "layouts"};
        fprintf(out, ",\"%s\":[", members[kind]);
        for (unsigned i = 0; i < count; i++) {
            if (kind == 2) {
                fprintf(out, "%s\"%c%063u\"", i == 0 ? "" : ",", letter, i);
            } else {
                fprintf(out, "%s\"%c%u\"", i == 0 ? "" : ",", letter, i);
            }
        }
        fputs("]", out);
    }
    fputs("}", out);
    fclose(out);
    return text;
}

Test(policy_diff, what_cannot_be_compared_within_the_bound_counts_as_looser)
{
    char *text = large_policy('a', 60), *smaller = large_policy('b', 30);
    struct kv_policy_set *a = set_of(text), *b = set_of(smaller);
    struct kv_policy_diff *diff = compare(b, b);
    cr_expect(diff->complete && !kv_policy_loosens(diff));
    kv_policy_compare(a, b, diff);
    cr_expect(!diff->complete && kv_policy_loosens(diff) && kv_policy_loosens_text(diff)[0] != '\0');
    free(diff);
    free(text);
    free(smaller);
    kv_policy_set_free(a);
    kv_policy_set_free(b);
}
