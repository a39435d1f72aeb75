/*
 * From text to what is evaluated: a policy's JSON is parsed into a document (checked as a whole, with a pointer to the
 * fault), and the platform's and a tenant's documents are compiled into one set, a flat snapshot for each class of
 * sessions. Documents and sets never change once made. Must never let a document pass that asks for what this build
 * does not carry out. Thread: any.
 */
#ifndef KV_POLICY_SET_H
#define KV_POLICY_SET_H

#include "dataplane/base/buf.h"
#include "policies/policy.h"

enum kv_policy_level { KV_POLICY_PLATFORM, KV_POLICY_TENANT };

struct kv_policy_doc;
/* KV_E_POLICY_INVALID with text and pointer, KV_E_NO_MEMORY. Owned by the caller. */
KV_RC kv_policy_parse(struct kv_bytes text, enum kv_policy_level level, struct kv_errinfo *info,
                      struct kv_policy_doc **ret_doc);
void kv_policy_doc_free(struct kv_policy_doc *doc);
void kv_policy_doc_freep(struct kv_policy_doc **doc); /* for KV_CLEANUP */

/* KV_E_CEILING with a pointer: the tenant's policy says more than the platform's allows. */
KV_RC kv_policy_check_ceiling(const struct kv_policy_doc *platform, const struct kv_policy_doc *tenant,
                              struct kv_errinfo *info);

/* What holds while nobody wrote a policy, at either level. */
extern const char kv_policy_builtin[];

/* What takes two people. */
#define KV_POLICY_TWO_FOR_TENANT_ERASE 1u
#define KV_POLICY_TWO_FOR_HOLD_RELEASE 2u

struct kv_policy_set {
    uint32_t class_count; /* the first is "default" */
    uint64_t versions[2]; /* the platform's and the tenant's; 0: the built-in one */
    struct kv_policy_quota quota;
    uint64_t hold_days; /* of the longest legal hold; 0: none is allowed */
    uint32_t approvals; /* KV_POLICY_TWO_FOR_... */
    struct kv_policy classes[];
};

/* Takes nothing: documents can be freed at once. Owned by the caller. KV_E_NO_MEMORY. */
KV_RC kv_policy_compile(const struct kv_policy_doc *platform, const struct kv_policy_doc *tenant,
                        struct kv_policy_set **ret_set);
void kv_policy_set_free(struct kv_policy_set *set);
void kv_policy_set_freep(struct kv_policy_set **set);
/* The class of that name, or NULL. Borrowed from the set. */
const struct kv_policy *kv_policy_class(const struct kv_policy_set *set, const char *name);

/* What whoever stores blocks keeps to, and which versions say so. By tier: dram, nvme. */
#define KV_POLICY_STORING_TIERS 2
struct kv_policy_bounds {
    uint64_t versions[2]; /* as in kv_policy_set */
    uint64_t session_bytes, session_blocks;
    uint64_t tenant_bytes[KV_POLICY_STORING_TIERS], session_tier_bytes[KV_POLICY_STORING_TIERS];
};
/* `policy` is one of the set's classes. */
void kv_policy_bounds(const struct kv_policy_set *set, const struct kv_policy *policy,
                      struct kv_policy_bounds *ret_bounds);

/* The facts of one question, from JSON: {"action", "class", "model", …}, see README.md. */
struct kv_policy_question {
    struct kv_policy_facts facts;
    char class_name[33], model[129], layout[65], region[64], scope[129];
};
KV_RC kv_policy_question_parse(struct kv_bytes text, struct kv_errinfo *info, struct kv_policy_question *ret_question);

/* --- what a change of policy changes --- */

#define KV_POLICY_CHANGES_MAX 32
struct kv_policy_change {
    bool allows; /* newly allowed, or a limit that rose; else newly denied, or a limit that fell */
    char text[160];
};
struct kv_policy_diff {
    uint64_t cases;
    uint64_t newly_allowed, newly_denied; /* cases and limits */
    bool complete;                        /* false: too many names to compare; counts as loosening */
    uint32_t change_count;
    struct kv_policy_change changes[KV_POLICY_CHANGES_MAX]; /* the first ones */
};
/* Every question that the two sets can tell apart, asked of both. */
void kv_policy_compare(const struct kv_policy_set *before, const struct kv_policy_set *after,
                       struct kv_policy_diff *ret_diff);
bool kv_policy_loosens(const struct kv_policy_diff *diff);
/* The first thing newly allowed, for a text that says why; "" when none. */
const char *kv_policy_loosens_text(const struct kv_policy_diff *diff);

#endif
