/*
 * A target of libFuzzer: any bytes as the policy of a tenant, as that of the platform, and as a question. What is
 * refused says why and where; what is accepted can be compiled, allows nothing that the built-in policy does not, and
 * reads the same twice. At the end it says how many it accepted, so that whoever runs it sees that it got so far.
 */
#include "policies/policy_set.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned long policies_read, questions_read;

static void must(bool holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "does not hold: %s\n", what);
        abort();
    }
}

static struct kv_policy_doc *read_policy(struct kv_bytes text, enum kv_policy_level level)
{
    struct kv_errinfo info = {0};
    struct kv_policy_doc *doc = NULL;
    enum kv_err rc = kv_policy_parse(text, level, &info, &doc);
    must(rc == KV_OK || rc == KV_E_POLICY_INVALID, "a policy is read, or it is invalid");
    must((rc == KV_OK) == (doc != NULL), "there is a document when it was read, and only then");
    must(rc == KV_OK || info.text[0] != '\0', "what is refused says why");
    return doc;
}

static struct kv_policy_set *compiled(const struct kv_policy_doc *platform, const struct kv_policy_doc *tenant)
{
    struct kv_policy_set *set = NULL;
    must(kv_policy_compile(platform, tenant, &set) == KV_OK && set->class_count > 0, "what was read can be compiled");
    return set;
}

static void ask(const struct kv_policy_set *set, const struct kv_policy_set *again, const struct kv_policy_set *builtin)
{
    for (unsigned i = 0; i < set->class_count * KV_POLICY_ACTIONS; i++) {
        struct kv_policy_facts facts = {.action = (enum kv_policy_action)(i % KV_POLICY_ACTIONS),
                                        .tenant_active = true,
                                        .session_active = true,
                                        .same_tenant = true,
                                        .basis = KV_BASIS_RETENTION,
                                        .names = {kv_policy_text("llama-3.1-8b"), {0}, kv_policy_text("eu-west")},
                                        .obligations_known = KV_POLICY_OBLIGATIONS_ALL};
        const struct kv_policy *policy = &set->classes[i / KV_POLICY_ACTIONS];
        struct kv_policy_decision one, other, most;
        kv_policy_eval(policy, &facts, &one);
        kv_policy_eval(kv_policy_class(again, policy->name), &facts, &other);
        kv_policy_eval(&builtin->classes[0], &facts, &most);
        must(one.reasons == other.reasons && one.tiers_allowed == other.tiers_allowed, "it reads the same twice");
        must(one.allowed == (one.reasons == 0), "what is denied has a reason, and only that");
        must((one.tiers_allowed & ~most.tiers_allowed) == 0, "it allows no tier that is not built in");
    }
}

static void try_policy(struct kv_bytes text, enum kv_policy_level level)
{
    struct kv_policy_doc *doc = read_policy(text, level), *again = read_policy(text, level);
    must((doc == NULL) == (again == NULL), "it is refused twice, or never");
    if (doc != NULL) {
        bool platform = level == KV_POLICY_PLATFORM;
        struct kv_bytes plain = KV_BYTES(kv_policy_builtin, strlen(kv_policy_builtin));
        struct kv_policy_doc *top = read_policy(plain, KV_POLICY_PLATFORM), *own = read_policy(plain, KV_POLICY_TENANT);
        struct kv_policy_set *set = compiled(platform ? doc : top, platform ? own : doc);
        struct kv_policy_set *second = compiled(platform ? again : top, platform ? own : again);
        struct kv_policy_set *builtin = compiled(top, own);
        struct kv_errinfo info = {0};
        enum kv_err rc = kv_policy_check_ceiling(platform ? doc : top, platform ? own : doc, &info);
        must(rc == KV_OK || rc == KV_E_CEILING, "it is within the ceiling, or it is not");
        ask(set, second, builtin);
        policies_read++;
        must(getenv("KVT_PLANTED") == NULL || set->class_count < 2, "the planted fault");
        kv_policy_set_free(set);
        kv_policy_set_free(second);
        kv_policy_set_free(builtin);
        kv_policy_doc_free(top);
        kv_policy_doc_free(own);
    }
    kv_policy_doc_free(doc);
    kv_policy_doc_free(again);
}

static void try_question(struct kv_bytes text)
{
    struct kv_errinfo info = {0};
    struct kv_policy_question question;
    enum kv_err rc = kv_policy_question_parse(text, &info, &question);
    must(rc == KV_OK || (rc == KV_E_POLICY_INVALID && info.text[0] != '\0'), "what is refused says why");
    must(rc != KV_OK || (unsigned)question.facts.action < KV_POLICY_ACTIONS, "it asks for an action");
    questions_read += rc == KV_OK;
}

__attribute__((destructor)) static void report(void)
{
    fprintf(stderr, "accepted: %lu policies, %lu questions\n", policies_read, questions_read);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kv_bytes text = KV_BYTES(data, size);
    try_policy(text, KV_POLICY_TENANT);
    try_policy(text, KV_POLICY_PLATFORM);
    try_question(text);
    return 0;
}
