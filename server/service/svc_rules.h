/*
 * What decides for a tenant: its state and its compiled policy, as one object that never changes. Whoever decides takes
 * a reference, decides, and gives it back, so no decision mixes two versions. Kept in memory under the instance's lease
 * and the number of changes; with the database gone what is known is used as long as the lease runs, and never more.
 * Thread: any.
 */
#ifndef KV_SVC_RULES_H
#define KV_SVC_RULES_H

#include "policies/policy_set.h"
#include "server/service/svc.h"

struct svc_rules {
    struct kv_id tenant;
    bool active; /* the tenant is; else `state` says why not */
    char state[16];
    struct kv_policy_set *set; /* owned */
    /* of the cache, under registry_mutex */
    unsigned refs;
    uint64_t stamp, fresh_until_ns;
};

/* The caller's reference. KV_E_NOT_FOUND: no such tenant. A policy that cannot be read denies: KV_E_POLICY_INVALID. */
KV_RC svc_rules_get(struct kv_call *call, const struct kv_id *tenant, const struct svc_rules **ret_rules);
void svc_rules_put(struct kv_svc *svc, const struct svc_rules *rules); /* NULL is fine */
/* The same, read now and never from memory: for what is decided inside a transaction. */
KV_RC svc_rules_read(struct kv_pg *pg, const struct kv_id *tenant, struct kv_errinfo *info,
                     struct svc_rules **ret_rules);
void svc_rules_free(struct svc_rules *rules); /* of svc_rules_read */
void svc_rules_freep(struct svc_rules **rules);

/* Decides, counts the decision, and turns a denial into KV_E_POLICY_DENIED, or KV_E_TENANT_SUSPENDED, with the reasons
 * in its text. The facts that the rules know themselves (tenant_active, obligations_known) are filled in. */
KV_RC svc_rules_decide(struct kv_call *call, const struct svc_rules *rules, const char *class_name,
                       const struct kv_policy_facts *facts, struct kv_policy_decision *ret_decision);

/* A transfer of `session`, whose facts are complete but for names, tenant_active and obligations_known, which are
 * filled in. The same as above, and what holds for the blocks. Mostly without a lock: see policy_table.h. */
struct svc_session;
struct svc_pool_names;
struct svc_verdict {
    uint32_t tiers_allowed;
    struct kv_policy_bounds bounds;
};
KV_RC svc_rules_transfer(struct kv_call *call, const struct svc_session *session, const struct svc_pool_names *pool,
                         struct kv_policy_facts *facts, struct svc_verdict *ret_verdict);

/* A new session: its class exists, its model and region are allowed. Then its limits, in seconds; KV_POLICY_NO_LIMIT:
 * none. Before the transaction. `class_name` "" or NULL: "default". */
struct svc_session_ask {
    const char *class_name, *model, *region;
    const char *scope; /* that it is to share; NULL: none */
};
KV_RC svc_rules_session(struct kv_call *call, const struct svc_session_ask *ask, uint64_t *ret_max_age_s,
                        uint64_t *ret_max_idle_s);
/* In the transaction that made the session, after its row: the tenant's row is locked by then. KV_E_QUOTA_SESSIONS. */
KV_RC svc_rules_session_quota(struct kv_pg *pg, const struct kv_id *tenant, struct kv_errinfo *info);
/* An erasure that somebody asks for: its basis is one of the policy's, and there is a reason where one is asked for.
 * Nothing else can be in its way. */
KV_RC svc_rules_erasure(struct kv_call *call, const struct kv_id *tenant, const char *basis, bool reason_given);

KV_RC svc_rules_start(struct kv_svc *svc);
void svc_rules_done(struct kv_svc *svc); /* at the end: nobody holds a reference any more */

#endif
