/*
 * Erasures as a caller sees them: asking for one (of one session, or of all sessions that a label, idleness or a tenant
 * names), looking at them. Thread and errors as in svc.h.
 */
#ifndef KV_SVC_ERASE_H
#define KV_SVC_ERASE_H

#include "server/service/svc.h"
#include "server/store/store_group.h"

const char *kv_erasure_state_name(enum kv_erasure_state state); /* "requested" */

enum kv_erasure_scope { KV_SCOPE_SESSION, KV_SCOPE_EXTERNAL, KV_SCOPE_LABEL, KV_SCOPE_IDLE, KV_SCOPE_TENANT };

/* What is asked for; texts are borrowed. `reason` and `reference` are kept as salted hashes only. */
struct kv_erasure_new {
    enum kv_erasure_scope scope;
    struct kv_id session;                /* SESSION */
    const char *external_id;             /* EXTERNAL */
    const char *label_key, *label_value; /* LABEL */
    uint64_t idle_before_us;             /* IDLE */
    struct kv_id tenant;                 /* TENANT: the caller's own */
    const char *basis;                   /* "gdpr_art17", "retention", "contract", "other" */
    const char *reason, *reference;      /* may be NULL */
};

/* Who stopped using the session, and how. */
#define KV_ERASURE_INSTANCES 64
struct kv_erasure_instance {
    struct kv_id id;
    const char *how;               /* "self", "acked", "expired" */
    uint64_t fenced_us, purged_us; /* purged_us 0: not yet */
};

/* One session's erasure, a whole tenant's, or a group: `scope` tells, and of a tenant `one_step`. */
struct kv_erasure_view {
    struct kv_id id, tenant;
    enum kv_erasure_scope scope;       /* SESSION, LABEL, IDLE or TENANT */
    struct kv_id session;              /* SESSION */
    struct kv_id group;                /* the group that it belongs to, or zero */
    bool one_step;                     /* TENANT: one certificate for all; a group's members have one each */
    struct kv_id hold;                 /* of one session's: that kept it waiting, or does; zero: none did */
    uint64_t blocked_us, unblocked_us; /* since when, and until */
    struct kv_id batch;                /* those that share its change of the root; zero: in none yet */
    struct kv_id certificate;          /* of what is certified by one; zero: none */
    enum kv_erasure_state state;       /* of a group: the one that every session reached */
    const char *claim;                 /* what may honestly be said in this state; static text */
    char basis[KV_BASIS_SIZE];
    uint64_t requested_us;
    uint64_t step_us[KV_ERASURE_CERTIFIED + 1]; /* when a state was reached; 0: not yet */
    char quarantine_reason[129];
    uint64_t eta_ms; /* until it is certified, as it usually takes; 0: it has ended, or nobody knows */
    struct kv_erasure_instance instances[KV_ERASURE_INSTANCES]; /* once fenced */
    size_t instance_count;
    /* groups */
    char label[KV_GROUP_LABEL_SIZE]; /* a JSON object: its name, and null in place of the value */
    uint64_t idle_before_us, cutoff_us;
    bool expanding; /* more sessions may come to it */
    uint64_t sessions, sessions_certified, sessions_quarantined;
};

/* What would be erased, of a dry run. */
#define KV_ERASURE_WOULD_ENGINES 64
struct kv_erasure_would {
    uint64_t sessions;                              /* that are meant */
    uint64_t sessions_measured;                     /* of them, looked at for the numbers below */
    struct kv_id existing;                          /* the session's erasure that there is already, or zero */
    uint64_t holds;                                 /* that cover some of those that were looked at */
    uint64_t scopes_erased, scopes_retained;        /* that these sessions share */
    struct kv_scope_usage usage;                    /* of the sessions, without what they share */
    struct kv_id engines[KV_ERASURE_WOULD_ENGINES]; /* of the tenant: they stop using these sessions */
    size_t engine_count;
};

struct kv_erasure_made {
    struct kv_erasure_view erasure; /* not of a dry run */
    bool existed;                   /* the session's erasure was there already */
    struct kv_erasure_would would;  /* of a dry run */
};

/* An erasure that exists for the session is returned as it is. All of a tenant goes in one step, and the tenant goes on
 * with fresh keys. A group takes on its first sessions here, the others
 * soon after; sessions made later are not meant. KV_E_NOT_FOUND: no session is meant, or another tenant's.
 * KV_E_HOLD_ACTIVE: all of a tenant, and it has a hold; held ones among several wait for its end, the others go on.
 * KV_E_FORBIDDEN: an engine key, and not its own session. Durable, and refused here, when it returns. */
KV_RC kv_svc_erase(struct kv_call *call, const struct kv_erasure_new *in, struct kv_erasure_made *ret_made);
bool kv_erasure_ended(const struct kv_erasure_view *erasure);
bool kv_erasure_blocked(const struct kv_erasure_view *erasure); /* it waits for a hold to end */

KV_RC kv_svc_erasure_get(struct kv_call *call, const struct kv_id *erasure, struct kv_erasure_view *ret_erasure);

struct kv_erasure_filter {
    const char *state;           /* NULL: any */
    struct kv_id session, group; /* zero: any */
    bool alone;                  /* what was asked for by itself: no members of groups */
};
/* Of single sessions, members of groups among them, and groups, by the time of the request; with a session or a group
 * only of single ones. `ret_list` has room for KV_MAX_PAGE_ITEMS. */
KV_RC kv_svc_erasure_list(struct kv_call *call, const struct kv_erasure_filter *filter, struct kv_page *page,
                          struct kv_erasure_view *ret_list, size_t *ret_count);
/* KV_E_IRREVERSIBLE, and what can be called back instead; KV_E_NOT_FOUND. */
KV_RC kv_svc_erasure_cancel(struct kv_call *call, const struct kv_id *erasure);

/* The codes of the limits that a certificate of this server names. */
size_t kv_svc_erasure_limits(const char *const **ret_codes);

#endif
