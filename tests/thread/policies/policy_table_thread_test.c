/* Writers and readers of the table of policies in use: who finds an entry has one version of it, as a whole. */
#include "policies/policy_table.h"

#include "dataplane/base/mem.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define READERS 3
#define TENANTS 80 /* of which 64 fit: lines change hands, too */
#define VERSIONS 4
#define PUTS 20000

static struct kv_policy_table *table;
static struct kv_policy_set *sets[VERSIONS];
static uint64_t class_hash, model_hashes[VERSIONS];
static atomic_bool done;

struct reader {
    pthread_t thread;
    unsigned known, mixed;
};

static KV_RC hash_text(void *ctx, const char *text, uint64_t *ret_hash)
{
    *ret_hash = kv_policy_text(text).hash;
    return KV_OK;
}

static struct kv_id id_of(unsigned n)
{
    struct kv_id id = {{0}};
    uint64_t spread = (n + 1) * UINT64_C(0x9e3779b97f4a7c15);
    memcpy(id.b + 8, &spread, sizeof spread);
    return id;
}

/* Version n of any tenant says n in its bounds, its models (the last ones are not in the first line), its block size
 * and its tiers. */
static struct kv_policy_set *version(unsigned n)
{
    char text[300];
    struct kv_errinfo info = {0};
    struct kv_policy_doc *platform = NULL, *tenant = NULL;
    struct kv_policy_set *set = NULL;
    int len = snprintf(text, sizeof text,
                       "{\"tiers\":{\"%s\":{}},\"session\":{\"max_blocks\":%u},\"max_block_bytes\":%u,\"models\":"
                       "[\"a%u\",\"b%u\",\"c%u\",\"d%u\",\"e%u\"]}",
                       n % 2 == 0 ? "dram" : "nvme", n + 1, 1000 + n, n, n, n, n, n);
    cr_assert_eq(
        kv_policy_parse(KV_BYTES(kv_policy_builtin, strlen(kv_policy_builtin)), KV_POLICY_PLATFORM, &info, &platform),
        KV_OK);
    cr_assert_eq(kv_policy_parse(KV_BYTES(text, (size_t)len), KV_POLICY_TENANT, &info, &tenant), KV_OK, "%s",
                 info.text);
    cr_assert_eq(kv_policy_compile(platform, tenant, &set), KV_OK);
    kv_policy_doc_free(platform);
    kv_policy_doc_free(tenant);
    return set;
}

/* Of the version that its bounds say. */
static bool whole(struct kv_policy_subject *subject, struct kv_policy_facts *facts)
{
    struct kv_policy_bounds bounds;
    struct kv_policy_decision decision;
    if (!kv_policy_table_decide(table, subject, facts, &decision, &bounds)) {
        return true;
    }
    uint64_t n = bounds.session_blocks - 1;
    bool tiers = !decision.allowed || decision.tiers_allowed == (n % 2 == 0 ? 1u << KV_TIER_DRAM : 1u << KV_TIER_NVME);
    bool model = (decision.reasons & KV_POLICY_MODEL_FORBIDDEN) == 0;
    bool size = (decision.reasons & KV_POLICY_BLOCK_TOO_LARGE) == 0;
    return n < VERSIONS && tiers && model == (subject->names[KV_POLICY_MODEL] == model_hashes[n]) &&
           size == (facts->block_bytes <= 1000 + n);
}

static void *read_table(void *arg)
{
    struct reader *reader = arg;
    for (unsigned i = 0; !atomic_load(&done); i++) {
        struct kv_policy_subject subject = {.tenant = id_of(i % TENANTS),
                                            .class_hash = class_hash,
                                            .names = {[KV_POLICY_MODEL] = model_hashes[i / 7 % VERSIONS]},
                                            .stamp = 1,
                                            .place = i % 64};
        struct kv_policy_facts facts = {.action = KV_POLICY_OFFLOAD,
                                        .tenant_active = true,
                                        .session_active = true,
                                        .same_tenant = true,
                                        .block_bytes = 1000 + i / 3 % VERSIONS,
                                        .obligations_known = KV_POLICY_OBLIGATIONS_ALL};
        struct kv_policy_decision decision;
        reader->known += kv_policy_table_decide(table, &subject, &facts, &decision, NULL);
        reader->mixed += !whole(&subject, &facts);
    }
    return NULL;
}

static void *write_table(void *arg)
{
    unsigned random = *(const unsigned *)arg;
    for (unsigned i = 0; i < PUTS; i++) {
        random = random * 1664525u + 1013904223u;
        const struct kv_policy_set *set = sets[(random >> 8) % VERSIONS];
        const struct kv_policy_entry entry = {.tenant = id_of((random >> 16) % TENANTS),
                                              .stamp = 1,
                                              .until_ns = UINT64_C(1) << 40,
                                              .set = set,
                                              .policy = &set->classes[0]};
        (void)kv_policy_table_put(table, &entry);
    }
    return NULL;
}

Test(policy_table_threads, what_is_found_is_one_version_as_a_whole, .timeout = 200)
{
    const struct kv_policy_hasher hasher = {.hash = hash_text};
    struct reader readers[READERS] = {0};
    pthread_t writers[2];
    unsigned seeds[2] = {1, 2};
    cr_assert_eq(kv_policy_table_new(64, &hasher, &table), KV_OK);
    cr_assert_eq(kv_policy_table_hash(table, "default", &class_hash), KV_OK);
    for (unsigned n = 0; n < VERSIONS; n++) {
        char name[8];
        sets[n] = version(n);
        snprintf(name, sizeof name, "e%u", n);
        cr_assert_eq(kv_policy_table_hash(table, name, &model_hashes[n]), KV_OK);
    }
    for (unsigned i = 0; i < READERS; i++) {
        pthread_create(&readers[i].thread, NULL, read_table, &readers[i]);
    }
    for (unsigned i = 0; i < 2; i++) {
        pthread_create(&writers[i], NULL, write_table, &seeds[i]);
    }
    for (unsigned i = 0; i < 2; i++) {
        pthread_join(writers[i], NULL);
    }
    struct reader last = {0};
    struct kv_policy_subject subject = {.class_hash = class_hash, .stamp = 1};
    struct kv_policy_facts facts = {.action = KV_POLICY_OFFLOAD};
    for (unsigned tenant = 0; tenant < TENANTS; tenant++) {
        struct kv_policy_decision decision;
        subject.tenant = id_of(tenant);
        last.known += kv_policy_table_decide(table, &subject, &facts, &decision, NULL);
    }
    cr_expect_gt(last.known, 0); /* the control: something was there to be found */
    atomic_store(&done, true);
    for (unsigned i = 0; i < READERS; i++) {
        pthread_join(readers[i].thread, NULL);
        cr_expect_eq(readers[i].mixed, 0, "%u of %u", readers[i].mixed, readers[i].known);
    }
    for (unsigned n = 0; n < VERSIONS; n++) {
        kv_policy_set_free(sets[n]);
    }
    kv_policy_table_free(table);
}
