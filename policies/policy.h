/*
 * The rules for what may happen to a session's blocks, as a pure function: facts in, decision with reasons out. Default
 * deny: an action is allowed only when no reason forbids it, and a fact that is not known forbids where a rule needs
 * it. What is evaluated is flat and never changes: three ceilings (the platform's policy, the tenant's, the session's
 * class) intersected beforehand, see policy_set.h. Must never allocate, wait, look at a clock or change anything.
 * Thread: any.
 */
#ifndef KV_POLICY_H
#define KV_POLICY_H

#include "dataplane/base/err.h"

enum kv_policy_action {
    KV_POLICY_OFFLOAD,
    KV_POLICY_RESTORE,
    KV_POLICY_LOOKUP,
    KV_POLICY_SESSION, /* making one */
    KV_POLICY_ERASE,   /* no rule can forbid it; a policy may ask for a basis and a reason */
    KV_POLICY_ACTIONS,
};
const char *kv_policy_action_name(enum kv_policy_action action); /* "offload" */

/* Names that rules speak of; and, beyond them, names of shared scopes, of which there are lists only. */
enum kv_policy_kind {
    KV_POLICY_MODEL,
    KV_POLICY_LAYOUT,
    KV_POLICY_REGION,
    KV_POLICY_KINDS,
    KV_POLICY_SCOPE = KV_POLICY_KINDS,
    KV_POLICY_LISTS
};
enum kv_policy_data_class { KV_DATA_PUBLIC, KV_DATA_INTERNAL, KV_DATA_PERSONAL, KV_DATA_SPECIAL, KV_DATA_CLASSES };
enum kv_policy_basis { KV_BASIS_GDPR_ART17, KV_BASIS_RETENTION, KV_BASIS_CONTRACT, KV_BASIS_OTHER, KV_BASES };
enum kv_policy_restore { KV_RESTORE_NEVER, KV_RESTORE_AUTO, KV_RESTORE_ALWAYS };

#define KV_POLICY_TIERS 4 /* indexed by enum kv_tier_id */
#define KV_POLICY_NO_LIMIT UINT64_MAX

/* A name with its hash: names are compared as text, the hash makes it quick. `text` NULL: not known. */
struct kv_policy_text {
    const char *text; /* borrowed */
    uint64_t hash;
};
struct kv_policy_text kv_policy_text(const char *text); /* NULL and "": not known */

struct kv_policy_facts {
    enum kv_policy_action action;
    bool tenant_active, session_active, same_tenant;
    bool durable_asked; /* the caller asks for a tier that survives a restart */
    bool shared;        /* it is about blocks of a shared scope; of a new session: it is to have one */
    uint64_t block_bytes, session_age_s;
    struct kv_policy_text names[KV_POLICY_LISTS];
    enum kv_policy_basis basis; /* of an erasure */
    bool reason_given;
    uint32_t obligations_known; /* mask of what the caller carries out */
};

enum kv_policy_reason {
    KV_POLICY_TENANT_INACTIVE = 1 << 0,
    KV_POLICY_SESSION_INACTIVE = 1 << 1,
    KV_POLICY_OTHER_TENANT = 1 << 2,
    KV_POLICY_TIER_FORBIDDEN = 1 << 3,
    KV_POLICY_BLOCK_TOO_LARGE = 1 << 4,
    KV_POLICY_CLASS_UNKNOWN = 1 << 5,
    KV_POLICY_MODEL_FORBIDDEN = 1 << 6,
    KV_POLICY_LAYOUT_FORBIDDEN = 1 << 7,
    KV_POLICY_REGION_FORBIDDEN = 1 << 8,
    KV_POLICY_RULE_FORBIDS = 1 << 9,
    KV_POLICY_SESSION_EXPIRED = 1 << 10,
    KV_POLICY_RESTORE_NEVER = 1 << 11,
    KV_POLICY_BASIS_FORBIDDEN = 1 << 12,
    KV_POLICY_REASON_REQUIRED = 1 << 13,
    KV_POLICY_OBLIGATION_UNKNOWN = 1 << 14,
    KV_POLICY_ACTION_UNKNOWN = 1 << 15,
    KV_POLICY_SHARING_FORBIDDEN = 1 << 16,
};
#define KV_POLICY_REASONS 17

/* What goes with a permission. Who cannot carry one out may not act: an obligation that is not known denies. */
enum kv_policy_obligation {
    KV_POLICY_RECORD_STRICT = 1 << 0, /* the record is durable before the answer */
    KV_POLICY_PASS_DRAM = 1 << 1,     /* blocks pass through dram and do not rest there */
};
#define KV_POLICY_OBLIGATIONS_ALL (KV_POLICY_RECORD_STRICT | KV_POLICY_PASS_DRAM)

struct kv_policy_decision {
    bool allowed;
    uint32_t reasons;       /* mask of kv_policy_reason; 0 when allowed */
    uint32_t tiers_allowed; /* mask of 1 << kv_tier_id: where blocks may lie; 0 when not allowed */
    uint32_t obligations;   /* mask of kv_policy_obligation; 0 when not allowed */
    uint64_t lifetime_s;    /* of the session, in all; KV_POLICY_NO_LIMIT: none */
};

struct kv_policy_names {
    const struct kv_policy_text *list;
    uint32_t count; /* at most 64: a name's position is its bit */
};

/* A forbid rule that depends on names. */
struct kv_policy_rule {
    uint32_t level;                  /* whose names its masks speak of: 0 the platform's, 1 the tenant's */
    uint32_t actions;                /* mask of 1 << kv_policy_action */
    uint32_t tiers;                  /* which tiers it forbids; 0: the action as a whole */
    bool given[KV_POLICY_KINDS];     /* false: whatever the name */
    uint64_t names[KV_POLICY_KINDS]; /* it applies to these */
};

/* KV_POLICY_NO_LIMIT: none. */
struct kv_policy_limits {
    uint64_t block_bytes, age_s, idle_s, session_bytes, session_blocks;
    uint64_t tier_bytes[KV_POLICY_TIERS]; /* of one session on that tier */
    uint64_t tier_ttl_s[KV_POLICY_TIERS];
};

struct kv_policy_quota {
    uint64_t tier_bytes[KV_POLICY_TIERS]; /* of all sessions of the tenant */
    uint64_t sessions;
};

/* What every decision reads. */
struct kv_policy_gist {
    uint64_t block_bytes, age_s;              /* of the limits */
    uint32_t tiers_allowed;                   /* after all rules that depend on nothing else */
    uint8_t actions_forbidden, bases_allowed; /* masks of 1 << kv_policy_action, kv_policy_basis */
    uint8_t given;                            /* mask of 1 << kv_policy_kind: `lists` is the whole of what is allowed */
    uint8_t restore;
    bool reason_required;
    bool sharing; /* blocks may be shared through a scope */
};

/* One class of sessions of one tenant: what is evaluated. Never changes; borrowed from its kv_policy_set. */
struct kv_policy {
    struct kv_policy_gist gist;
    struct kv_policy_names lists[KV_POLICY_LISTS]; /* what is allowed, where `given` */
    uint32_t rule_count;
    uint8_t data_class;
    bool retain_shared; /* a scope stays while other sessions refer to it, whoever is erased */
    const struct kv_policy_rule *rules;
    struct kv_policy_names names[2][KV_POLICY_LISTS]; /* that the documents speak of */
    struct kv_policy_limits limits;
    uint64_t erase_sla_s;
    char name[33];
};

/* `policy` NULL: the session's class is not in the policy; denied. */
void kv_policy_eval(const struct kv_policy *policy, const struct kv_policy_facts *facts,
                    struct kv_policy_decision *ret_decision);
/* The name of the lowest reason in the mask, "" for none. */
const char *kv_policy_reason_name(uint32_t reasons);
const char *kv_policy_obligation_name(uint32_t obligations); /* of the lowest */

#endif
