/* The parsed document, between the parser and the compiler; and what both ways to a decision share. */
#ifndef KV_POLICY_INT_H
#define KV_POLICY_INT_H

#include "policies/policy_set.h"

#define NAMES_MAX 64   /* KV_MAX_POLICY_NAMES */
#define CLASSES_MAX 16 /* KV_MAX_POLICY_CLASSES */
#define RULES_MAX 64   /* KV_MAX_POLICY_RULES */
#define NAME_SIZE 129  /* the longest name and NUL */
#define CLASS_SIZE 33

/* One ceiling. What is not given restricts nothing. */
struct level {
    bool tiers_given;
    uint32_t tiers;
    bool given[KV_POLICY_LISTS];
    uint64_t names[KV_POLICY_LISTS]; /* bits into the document's names */
    struct kv_policy_limits limits;
    bool restore_given, data_class_given, sharing_given, on_erase_given;
    uint8_t restore, data_class;
    bool sharing, retain_shared; /* where given */
};

struct doc_class {
    char name[CLASS_SIZE];
    struct level level;
};

struct doc_rule {
    struct kv_policy_rule rule;
    uint32_t classes;      /* bits into the document's classes */
    uint32_t data_classes; /* bits of enum kv_policy_data_class */
};

struct doc_names {
    uint32_t count;
    char list[NAMES_MAX][NAME_SIZE];
};

struct kv_policy_doc {
    enum kv_policy_level kind;
    struct level top;
    uint32_t class_count; /* the first is "default" */
    struct doc_class classes[CLASSES_MAX];
    struct doc_names names[KV_POLICY_LISTS];
    uint32_t rule_count;
    struct doc_rule rules[RULES_MAX];
    struct kv_policy_quota quota;
    uint32_t bases;
    bool reason_required;
    uint64_t erase_sla_s;
    uint32_t approvals; /* KV_POLICY_TWO_FOR_... */
    bool holds_given;
    uint64_t hold_days; /* of the longest hold; 0: none is allowed */
};

/* What follows from the names in a question. */
struct kv_policy_named {
    uint32_t listed;          /* mask of 1 << kv_policy_kind: the name is on that list */
    uint32_t tiers_forbidden; /* by rules that speak of names */
    bool forbidden;           /* the action as a whole, by such a rule */
};
/* The action is one of enum kv_policy_action. */
void kv_policy_decide(const struct kv_policy_gist *gist, const struct kv_policy_named *named,
                      const struct kv_policy_facts *facts, struct kv_policy_decision *ret_decision);

extern const char *const kv_policy_basis_names[KV_BASES];
extern const char *const kv_policy_data_class_names[KV_DATA_CLASSES];
extern const char *const kv_policy_restore_names[3];
extern const char *const kv_policy_tier_names[KV_POLICY_TIERS];

#endif
