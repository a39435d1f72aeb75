/*
 * Policies of tenants and of the platform: reading them, changing them, and asking what they would say. `tenant` zero
 * stands for the platform. Thread: a service thread.
 */
#ifndef KV_SVC_POLICY_H
#define KV_SVC_POLICY_H

#include "policies/policy_set.h"
#include "server/service/svc.h"

/* A version; 0 is the built-in one, which holds while none was written. */
struct kv_policy_view {
    struct kv_id id, tenant; /* tenant zero: the platform's */
    uint64_t version, rev;   /* rev: of If-Match, the version and 1 */
    uint8_t sha256[32];      /* of the text as it was sent */
    uint64_t created_us;     /* 0: built in */
    struct kv_id created_by;
    char created_role[33];
    bool loosens;
    struct kv_buf body; /* the text, in reads of one version and in changes; done by kv_policy_view_done */
};
void kv_policy_view_init(struct kv_policy_view *view);
void kv_policy_view_done(struct kv_policy_view *view); /* for KV_CLEANUP */

/* The active one. */
KV_RC kv_svc_policy_get(struct kv_call *call, const struct kv_id *tenant, struct kv_policy_view *ret_policy);
KV_RC kv_svc_policy_version(struct kv_call *call, const struct kv_id *tenant, uint64_t version,
                            struct kv_policy_view *ret_policy);
/* Without texts; `ret_list` has room for KV_MAX_PAGE_ITEMS + 1. */
KV_RC kv_svc_policy_versions(struct kv_call *call, const struct kv_id *tenant, struct kv_page *page,
                             struct kv_policy_view *ret_list, size_t *ret_count);
/* A new version, active at once here and on every instance within its lease. KV_E_POLICY_INVALID with a pointer;
 * KV_E_CEILING when it asks for more than the platform's; KV_E_FORBIDDEN when it allows what the one before did not and
 * the caller is no security officer. The same text as the active one changes nothing. */
KV_RC kv_svc_policy_put(struct kv_call *call, const struct kv_id *tenant, struct kv_bytes text,
                        struct kv_policy_view *ret_policy);

/* --- what would it say? --- */

/* One answer. */
struct kv_policy_answer {
    struct kv_policy_decision decision;
    uint64_t versions[2]; /* the platform's, the tenant's */
};
struct kv_policy_ask {
    struct kv_id tenant; /* zero: the caller's own */
    bool has_session;
    struct kv_id session;     /* fills in what the question leaves out */
    struct kv_bytes question; /* JSON, see policies/README.md */
    struct kv_bytes policy;   /* JSON of a policy to compare with; empty: none */
};
/* `ret_other` is what the other policy says, when there is one. */
KV_RC kv_svc_policy_evaluate(struct kv_call *call, const struct kv_policy_ask *ask, struct kv_policy_answer *ret_answer,
                             struct kv_policy_answer *ret_other);

/* What would change from `from` (empty: the active one) to `to`, for the tenant. */
struct kv_policy_pair {
    struct kv_id tenant; /* zero: the caller's own */
    struct kv_bytes from, to;
};
KV_RC kv_svc_policy_diff(struct kv_call *call, const struct kv_policy_pair *pair, struct kv_policy_diff *ret_diff);

/* The tenant's last transfers on record, decided by the active policy and by another. */
struct kv_policy_replay {
    uint64_t replayed, unknown; /* unknown: their session is gone */
    uint64_t newly_allowed, newly_denied;
    uint64_t denied_by[KV_POLICY_REASONS], allowed_by[KV_POLICY_REASONS]; /* of these, by each reason */
};
KV_RC kv_svc_policy_dry_run(struct kv_call *call, const struct kv_policy_pair *pair, unsigned last,
                            struct kv_policy_replay *ret_replay);

#endif
