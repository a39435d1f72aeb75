/* The table of policies in use: it answers as the policy itself does, or says that it does not know. */
#include "policies/policy_table.h"

#include "dataplane/base/mem.h"
#include "tests/lib/policy_cases.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SECOND UINT64_C(1000000000)

static KV_RC hash_text(void *ctx, const char *text, uint64_t *ret_hash)
{
    const enum kv_err *fails = ctx;
    *ret_hash = kv_policy_text(text).hash;
    return fails == NULL ? KV_OK : *fails;
}

static struct kv_policy_table *new_table(uint32_t capacity, enum kv_err *fails)
{
    const struct kv_policy_hasher hasher = {.hash = hash_text, .ctx = fails};
    struct kv_policy_table *table = NULL;
    cr_assert_eq(kv_policy_table_new(capacity, &hasher, &table), KV_OK);
    return table;
}

static struct kv_id id_of(unsigned n)
{
    struct kv_id id = {{0}};
    uint64_t spread = (n + 1) * UINT64_C(0x9e3779b97f4a7c15);
    memcpy(id.b + 8, &spread, sizeof spread);
    return id;
}

static uint64_t hash_of(const struct kv_policy_table *table, const char *text)
{
    uint64_t hash = 0;
    cr_assert_eq(kv_policy_table_hash(table, text, &hash), KV_OK);
    return hash;
}

static struct kv_policy_subject subject_of(const struct kv_policy_table *table, const struct kvt_question *q)
{
    struct kv_policy_subject subject = {
        .tenant = id_of(1), .class_hash = hash_of(table, q->class_name), .stamp = 5, .now_ns = SECOND};
    for (unsigned kind = 0; kind < KV_POLICY_KINDS; kind++) {
        subject.names[kind] = hash_of(table, q->facts.names[kind].text);
    }
    return subject;
}

static bool put(struct kv_policy_table *table, const struct kv_policy_set *set, unsigned tenant, uint64_t stamp)
{
    bool all = true;
    for (uint32_t c = 0; c < set->class_count; c++) {
        const struct kv_policy_entry entry = {
            .tenant = id_of(tenant), .stamp = stamp, .until_ns = 5 * SECOND, .set = set, .policy = &set->classes[c]};
        all = kv_policy_table_put(table, &entry) && all;
    }
    return all;
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

static bool ask(const struct kv_policy_table *table, struct kv_policy_subject *subject, struct kv_policy_bounds *bounds)
{
    struct kv_policy_decision decision;
    const struct kv_policy_facts facts = {.action = KV_POLICY_OFFLOAD,
                                          .tenant_active = true,
                                          .session_active = true,
                                          .same_tenant = true,
                                          .obligations_known = KV_POLICY_OBLIGATIONS_ALL};
    return kv_policy_table_decide(table, subject, &facts, &decision, bounds) && decision.allowed;
}

static struct kv_policy_subject plain(const struct kv_policy_table *table, unsigned tenant)
{
    return (struct kv_policy_subject){
        .tenant = id_of(tenant), .class_hash = hash_of(table, "default"), .stamp = 5, .now_ns = SECOND};
}

struct asked {
    uint64_t known, unknown, allowed;
    uint32_t reasons;
};

/* What is known is answered as the reference reads the rules, without an allocation. */
static void ask_all(const json_t *platform, const json_t *tenant, uint64_t step, struct asked *asked)
{
    struct kv_policy_set *set = kvt_policy_set(platform, tenant);
    struct kv_policy_table *table = new_table(64, NULL);
    struct kvt_question q;
    (void)put(table, set, 1, 5);
    for (uint64_t n = 0; kvt_policy_question(n, &q); n += step) {
        struct kv_policy_decision expected, got = {0};
        struct kv_policy_subject subject = subject_of(table, &q);
        kvt_policy_reference(platform, tenant, &q, &expected);
        kv_mem_forbid(true);
        bool known = kv_policy_table_decide(table, &subject, &q.facts, &got, NULL);
        kv_mem_forbid(false);
        cr_assert(!known || (expected.allowed == got.allowed && expected.reasons == got.reasons &&
                             expected.tiers_allowed == got.tiers_allowed && expected.obligations == got.obligations),
                  "question %lu: expected reasons %x tiers %x, got %x %x\n%s\n%s", (unsigned long)n, expected.reasons,
                  expected.tiers_allowed, got.reasons, got.tiers_allowed, json_dumps(platform, 0),
                  json_dumps(tenant, 0));
        asked->known += known;
        asked->unknown += !known;
        asked->allowed += known && got.allowed;
        asked->reasons |= got.reasons;
    }
    kv_policy_table_free(table);
    kv_policy_set_free(set);
}

Test(policy_table, every_question_that_it_knows_is_answered_as_the_rules_are_read)
{
    struct asked asked = {0};
    json_error_t error;
    json_t *platform = json_loads("{\"tiers\":{\"dram\":{},\"nvme\":{}},\"models\":[\"m-a\",\"m-b\"],\"forbid\":["
                                  "{\"data_classes\":[\"special\"],\"tiers\":[\"nvme\"]}]}",
                                  0, &error);
    json_t *tenant =
        json_loads("{\"tiers\":{\"dram\":{},\"nvme\":{}},\"regions\":[\"eu\",\"us\"],\"max_block_bytes\":1000,"
                   "\"sharing\":{\"mode\":\"scope\",\"scopes\":[\"s-a\"]},"
                   "\"layouts\":[\"0000000000000000000000000000000000000000000000000000000000000001\"],"
                   "\"session\":{\"max_age_seconds\":100},"
                   "\"classes\":{\"gold\":{\"data_class\":\"special\",\"restore\":\"never\",\"sharing\":\"none\"}},"
                   "\"forbid\":[{\"classes\":[\"default\"],\"actions\":[\"lookup\"]}]}",
                   0, &error);
    cr_assert(platform != NULL && tenant != NULL);
    ask_all(platform, tenant, 1, &asked);
    cr_expect_gt(asked.known, 100000);
    cr_expect_gt(asked.allowed, 1000);
    cr_expect_eq(asked.reasons, (1u << KV_POLICY_REASONS) - 1 - KV_POLICY_ACTION_UNKNOWN - KV_POLICY_CLASS_UNKNOWN -
                                    KV_POLICY_BASIS_FORBIDDEN - KV_POLICY_REASON_REQUIRED);
    json_decref(platform);
    json_decref(tenant);
}

Test(policy_table, random_policies_are_answered_as_they_are_read_or_not_at_all)
{
    struct asked asked = {0};
    unsigned seed = 23;
    for (unsigned i = 0; i < 400; i++) {
        json_t *platform = kvt_policy_random(&seed, true), *tenant = kvt_policy_random(&seed, false);
        ask_all(platform, tenant, 397, &asked);
        json_decref(platform);
        json_decref(tenant);
    }
    cr_expect_gt(asked.known, 10000);
    cr_expect_gt(asked.unknown, 10000);
    cr_expect_gt(asked.allowed, 500);
}

Test(policy_table, it_knows_one_tenant_and_one_class_from_another)
{
    struct kv_policy_table *table = new_table(64, NULL);
    struct kv_policy_set *set =
        set_of("{\"tiers\":{\"dram\":{}},\"classes\":{\"gold\":{\"session\":{\"max_bytes\":7}}}}");
    cr_assert(put(table, set, 1, 5));
    struct kv_policy_bounds bounds;
    struct kv_policy_subject subject = plain(table, 1), other = plain(table, 2);
    cr_expect(ask(table, &subject, &bounds) && bounds.session_bytes == KV_POLICY_NO_LIMIT);
    cr_expect(!ask(table, &other, NULL), "another tenant");
    other.place = subject.place;
    cr_expect(!ask(table, &other, NULL), "another tenant, with a place that is not its own");
    subject.class_hash = hash_of(table, "gold");
    cr_expect(ask(table, &subject, &bounds) && bounds.session_bytes == 7);
    subject.class_hash = hash_of(table, "iron");
    cr_expect(!ask(table, &subject, NULL), "a class that the policy does not have");
    subject.class_hash = hash_of(table, "");
    cr_expect(!ask(table, &subject, NULL), "no class");
    kv_policy_table_free(table);
    kv_policy_set_free(set);
}

Test(policy_table, an_entry_is_good_for_its_stamp_and_its_time)
{
    struct kv_policy_table *table = new_table(64, NULL);
    struct kv_policy_set *set = set_of("{\"tiers\":{\"dram\":{}}}"), *none = set_of("{\"tiers\":{}}");
    cr_assert(put(table, set, 1, 5));
    struct kv_policy_subject subject = plain(table, 1);
    cr_expect(ask(table, &subject, NULL));
    subject.stamp = 4;
    cr_expect(!ask(table, &subject, NULL));
    subject.stamp = 6;
    cr_expect(!ask(table, &subject, NULL));
    subject.stamp = 5;
    subject.now_ns = 5 * SECOND - (1u << 27);
    cr_expect(ask(table, &subject, NULL));
    subject.now_ns = 5 * SECOND; /* not one past the end, and a little before it neither */
    cr_expect(!ask(table, &subject, NULL));
    subject.now_ns = SECOND;
    cr_expect(!put(table, none, 1, 4), "what was read earlier came later");
    cr_expect(ask(table, &subject, NULL));
    cr_expect(put(table, none, 1, 6));
    subject.stamp = 6;
    cr_expect(!ask(table, &subject, NULL), "its tiers are forbidden now");
    kv_policy_table_free(table);
    kv_policy_set_free(set);
    kv_policy_set_free(none);
}

/* `count` models, and a region. */
static struct kv_policy_set *named(unsigned count, const char *more)
{
    char text[600];
    int used = snprintf(text, sizeof text, "{\"tiers\":{\"dram\":{}},\"regions\":[\"eu\"],\"models\":[");
    for (unsigned i = 0; i < count; i++) {
        used += snprintf(text + used, sizeof text - (size_t)used, "%s\"m%u\"", i == 0 ? "" : ",", i);
    }
    snprintf(text + used, sizeof text - (size_t)used, "]%s}", more);
    return set_of(text);
}

Test(policy_table, ten_names_fit_and_eleven_do_not)
{
    for (unsigned models = 1; models <= 10; models++) {
        struct kv_policy_table *table = new_table(64, NULL);
        struct kv_policy_set *set = named(models, "");
        cr_assert_eq(put(table, set, 1, 5), models < 10);
        struct kv_policy_subject subject = plain(table, 1);
        subject.names[KV_POLICY_REGION] = hash_of(table, "eu");
        for (unsigned m = 0; m <= models; m++) {
            char name[8];
            snprintf(name, sizeof name, "m%u", m);
            subject.names[KV_POLICY_MODEL] = hash_of(table, name);
            cr_expect_eq(ask(table, &subject, NULL), m < models && models < 10, "model %u of %u", m, models);
        }
        subject.names[KV_POLICY_MODEL] = hash_of(table, "eu"); /* is on a list, of another kind */
        cr_expect(!ask(table, &subject, NULL));
        kv_policy_table_free(table);
        kv_policy_set_free(set);
    }
}

Test(policy_table, rules_that_speak_of_names_are_not_kept)
{
    struct kv_policy_table *table = new_table(64, NULL);
    struct kv_policy_set *set = named(1, ",\"forbid\":[{\"regions\":[\"us\"],\"tiers\":[\"dram\"]}]");
    cr_expect(!put(table, set, 1, 5));
    kv_policy_table_free(table);
    kv_policy_set_free(set);
}

Test(policy_table, what_cannot_be_hashed_is_not_kept)
{
    enum kv_err fails = KV_E_CRYPTO;
    struct kv_policy_table *table = new_table(64, &fails);
    struct kv_policy_set *set = set_of("{\"tiers\":{\"dram\":{}}}");
    uint64_t hash = 7;
    cr_expect(!put(table, set, 1, 5));
    cr_expect_eq(kv_policy_table_hash(table, "m", &hash), KV_E_CRYPTO);
    cr_expect_eq(hash, 7);
    cr_expect(kv_policy_table_hash(table, NULL, &hash) == KV_OK && hash == 0);
    fails = KV_OK;
    cr_expect(put(table, set, 1, 5));
    kv_policy_table_free(table);
    kv_policy_set_free(set);
}

Test(policy_table, a_full_one_is_emptied_and_goes_on)
{
    struct kv_policy_table *table = new_table(64, NULL);
    struct kv_policy_set *set = set_of("{\"tiers\":{\"dram\":{}}}");
    for (unsigned tenant = 0; tenant < 64; tenant++) {
        cr_assert(put(table, set, tenant, 5));
    }
    unsigned known = 0;
    for (unsigned tenant = 0; tenant < 64; tenant++) {
        struct kv_policy_subject subject = plain(table, tenant);
        known += ask(table, &subject, NULL);
    }
    cr_expect_eq(known, 64);
    cr_assert(put(table, set, 64, 5)); /* one past its capacity */
    struct kv_policy_subject last = plain(table, 64), first = plain(table, 0);
    cr_expect(ask(table, &last, NULL));
    cr_expect(!ask(table, &first, NULL));
    first.place = 64; /* past the end: only a guess */
    cr_expect(!ask(table, &first, NULL));
    cr_expect(put(table, set, 0, 5));
    cr_expect(ask(table, &first, NULL) && first.place == 1);
    kv_policy_table_expect(table, 63);
    kv_policy_table_expect(table, 64);
    kv_policy_table_free(table);
    kv_policy_set_free(set);
}
