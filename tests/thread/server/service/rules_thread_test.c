/* Activation beside decisions: whoever decides sees one version as a whole, and never an older one than the last answer
 * to a change. */
#include "dataplane/base/id.h"
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
    unsigned mixed, older, failed, seen;
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
           set->classes[0].limits.session_blocks == 3000 + n && set->classes[0].tiers_allowed == tiers;
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
        pthread_create(&readers[i].thread, NULL, read_rules, &readers[i]);
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
    }
    kv_call_done(&call);
    kvt_svc_done(&rig);
}
