/* Activation beside decisions: whoever decides sees one version as a whole, and never an older one than the last answer
 * to a change. */
#include "dataplane/base/id.h"
#include "server/service/svc_int.h"
#include "server/service/svc_policy.h"
#include "server/service/svc_rules.h"
#include "tests/lib/svc_rig.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

TEMP_POSTGRES_HOOKS

#define READERS 3
#define CHANGES 30

static struct kvt_svc rig;
static atomic_ullong answered; /* the version of the last change that was answered */
static atomic_bool done;

struct reader {
    pthread_t thread;
    unsigned mixed, older, failed, seen, denied, from_table;
};

/* Version n says n in four places. */
static bool whole(const struct kv_policy_set *set)
{
    uint64_t n = set->versions[1];
    const struct kv_policy *gold = kv_policy_class(set, "gold");
    if (n == 0) {
        return gold == NULL && set->quota.sessions == KV_POLICY_NO_LIMIT;
    }
    uint32_t tiers = n % 2 == 0 ? 1u << KV_TIER_DRAM : 1u << KV_TIER_NVME;
    return set->quota.sessions == 1000 + n && gold != NULL && gold->limits.block_bytes == 2000 + n &&
           set->classes[0].limits.session_blocks == 3000 + n && set->classes[0].gist.tiers_allowed == tiers;
}

/* As a transfer asks, for a session of class "gold", which the first version has. */
static void ask_transfer(struct kv_call *call, struct svc_session *session, struct reader *reader)
{
    struct svc_verdict verdict;
    struct svc_pool_names pool = {.model = {.id = "m"}};
    struct kv_policy_facts facts = {
        .action = KV_POLICY_OFFLOAD, .session_active = true, .same_tenant = true, .block_bytes = 1};
    uint64_t least = atomic_load(&answered);
    enum kv_err rc = svc_rules_transfer(call, session, &pool, &facts, &verdict);
    if (rc != KV_OK) {
        reader->denied += rc == KV_E_POLICY_DENIED; /* before there is such a class */
        reader->failed += rc != KV_E_POLICY_DENIED || least > 0;
        return;
    }
    uint64_t n = verdict.bounds.versions[1];
    uint32_t tiers = n % 2 == 0 ? 1u << KV_TIER_DRAM : 1u << KV_TIER_NVME;
    reader->mixed += verdict.bounds.session_blocks != 3000 + n || verdict.tiers_allowed != tiers;
    reader->older += n < least;
    reader->seen++;
}

static void *read_transfers(void *arg)
{
    struct reader *reader = arg;
    struct kv_call call = kvt_svc_call(&rig, rig.tenant, KV_ROLE_ENGINE);
    struct svc_session session = {.tenant = rig.tenant, .class_name = "gold"};
    reader->failed += kv_policy_table_hash(rig.svc->decisions, "gold", &session.class_hash) != KV_OK;
    while (!atomic_load(&done)) {
        ask_transfer(&call, &session, reader);
    }
    struct kv_policy_subject subject = {.tenant = rig.tenant,
                                        .class_hash = session.class_hash,
                                        .stamp = atomic_load(&rig.svc->change_stamp),
                                        .now_ns = 0};
    struct kv_policy_facts facts = {.action = KV_POLICY_OFFLOAD};
    struct kv_policy_decision decision;
    ask_transfer(&call, &session, reader); /* nothing changes any more: it is in the table after this */
    reader->from_table = kv_policy_table_decide(rig.svc->decisions, &subject, &facts, &decision, NULL);
    kv_call_done(&call);
    return NULL;
}

static void *read_rules(void *arg)
{
    struct reader *reader = arg;
    struct kv_call call = kvt_svc_call(&rig, rig.tenant, KV_ROLE_ENGINE);
    while (!atomic_load(&done)) {
        const struct svc_rules *rules = NULL;
        uint64_t least = atomic_load(&answered);
        if (svc_rules_get(&call, &rig.tenant, &rules) != KV_OK) {
            reader->failed++;
            continue;
        }
        reader->mixed += !whole(rules->set);
        reader->older += rules->set->versions[1] < least;
        reader->seen++;
        svc_rules_put(rig.svc, rules);
    }
    kv_call_done(&call);
    return NULL;
}

static enum kv_err change(struct kv_call *call, unsigned n)
{
    char text[300];
    struct kv_policy_view view;
    int len = snprintf(text, sizeof text,
                       "{\"tiers\":{\"%s\":{}},\"quota\":{\"sessions\":%u},\"session\":{\"max_blocks\":%u},"
                       "\"classes\":{\"gold\":{\"max_block_bytes\":%u}}}",
                       n % 2 == 0 ? "dram" : "nvme", 1000 + n, 3000 + n, 2000 + n);
    kv_policy_view_init(&view);
    enum kv_err rc = kv_svc_policy_put(call, &rig.tenant, KV_BYTES(text, (size_t)len), &view);
    if (rc == KV_OK) {
        atomic_store(&answered, view.version);
    }
    kv_policy_view_done(&view);
    return rc;
}

Test(rules_threads, no_decision_mixes_two_versions_or_sees_one_that_was_replaced, .timeout = 200)
{
    struct reader readers[READERS] = {0};
    kvt_svc_open(&rig);
    struct kv_call call = kvt_svc_call(&rig, rig.tenant, KV_ROLE_SECURITY_OFFICER);
    for (unsigned i = 0; i < READERS; i++) {
        pthread_create(&readers[i].thread, NULL, i == 0 ? read_rules : read_transfers, &readers[i]);
    }
    for (unsigned n = 1; n <= CHANGES; n++) {
        cr_assert_eq(change(&call, n), KV_OK, "%s", call.info.text);
    }
    atomic_store(&done, true);
    for (unsigned i = 0; i < READERS; i++) {
        pthread_join(readers[i].thread, NULL);
        cr_expect(readers[i].mixed == 0 && readers[i].older == 0 && readers[i].failed == 0, "%u %u %u",
                  readers[i].mixed, readers[i].older, readers[i].failed);
        cr_expect_gt(readers[i].seen, 0);
        cr_expect(i == 0 || readers[i].from_table == 1, "answered from the table, at last");
    }
    kv_call_done(&call);
    kvt_svc_done(&rig);
}
