/*
 * Policies for tests: random ones, every question over a small domain, and a slow evaluator that reads the JSON itself
 * and shares no code with the product.
 */
#ifndef KVT_POLICY_CASES_H
#define KVT_POLICY_CASES_H

#include "policies/policy_set.h"

#include <jansson.h>

/* A random policy, valid at its level; owned by the caller. `seed` moves on. */
json_t *kvt_policy_random(unsigned *seed, bool platform);
json_t *kvt_policy_random_rule(unsigned *seed, const json_t *policy);
unsigned kvt_policy_draw(unsigned *seed, unsigned below);

struct kv_policy_doc *kvt_policy_doc(const json_t *policy, enum kv_policy_level level); /* aborts when refused */
struct kv_policy_set *kvt_policy_set(const json_t *platform, const json_t *tenant);

/* Question number `n` of the domain; false past the end. */
struct kvt_question {
    struct kv_policy_facts facts;
    const char *class_name;
};
bool kvt_policy_question(uint64_t n, struct kvt_question *ret_question);

void kvt_policy_reference(const json_t *platform, const json_t *tenant, const struct kvt_question *question,
                          struct kv_policy_decision *ret_decision);

#endif
