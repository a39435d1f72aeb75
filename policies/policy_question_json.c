/* A question to a policy, from JSON: see README.md, "Tables of cases". */
#include "policies/policy_reader_int.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

static KV_RC read_flags(const struct kv_policy_at *at, struct kv_policy_facts *facts)
{
    bool strict = true, pass = true;
    KV_TRY(kv_policy_get_bool(at, "tenant_active", &facts->tenant_active));
    KV_TRY(kv_policy_get_bool(at, "session_active", &facts->session_active));
    KV_TRY(kv_policy_get_bool(at, "same_tenant", &facts->same_tenant));
    KV_TRY(kv_policy_get_bool(at, "durable", &facts->durable_asked));
    KV_TRY(kv_policy_get_bool(at, "reason_given", &facts->reason_given));
    KV_TRY(kv_policy_get_bool(at, "shared", &facts->shared));
    KV_TRY(kv_policy_get_bool(at, "can_record_strict", &strict));
    KV_TRY(kv_policy_get_bool(at, "can_pass_dram", &pass));
    facts->obligations_known =
        (strict ? (uint32_t)KV_POLICY_RECORD_STRICT : 0) | (pass ? (uint32_t)KV_POLICY_PASS_DRAM : 0);
    return KV_OK;
}

static KV_RC read_question(const struct kv_policy_at *at, struct kv_policy_question *q)
{
    static const char *const known[] = {"action",
                                        "class",
                                        "model",
                                        "layout",
                                        "region",
                                        "block_bytes",
                                        "session_age_seconds",
                                        "tenant_active",
                                        "same_tenant",
                                        "durable",
                                        "basis",
                                        "reason_given",
                                        "can_record_strict",
                                        "can_pass_dram",
                                        "session_active",
                                        "shared",
                                        "scope",
                                        NULL};
    static const char *const actions[] = {"offload", "restore", "lookup", "session", "erase"};
    int action = -1, basis = KV_BASIS_OTHER;
    KV_TRY(kv_policy_check_members(at, known));
    KV_TRY(kv_policy_get_word(at, "action", (struct kv_policy_words){actions, KV_POLICY_ACTIONS}, &action));
    if (action < 0) {
        return kv_policy_bad(at, "action", "is required");
    }
    q->facts = (struct kv_policy_facts){
        .action = (enum kv_policy_action)action, .tenant_active = true, .session_active = true, .same_tenant = true};
    KV_TRY(read_flags(at, &q->facts));
    KV_TRY(kv_policy_get_number(at, "block_bytes", BYTES_TOP, &q->facts.block_bytes));
    KV_TRY(kv_policy_get_number(at, "session_age_seconds", SECONDS_TOP, &q->facts.session_age_s));
    KV_TRY(kv_policy_get_word(at, "basis", (struct kv_policy_words){kv_policy_basis_names, KV_BASES}, &basis));
    q->facts.basis = (enum kv_policy_basis)basis;
    snprintf(q->class_name, sizeof q->class_name, "default");
    KV_TRY(kv_policy_get_text(at, "class", q->class_name, sizeof q->class_name));
    KV_TRY(kv_policy_get_text(at, "model", q->model, sizeof q->model));
    KV_TRY(kv_policy_get_text(at, "layout", q->layout, sizeof q->layout));
    KV_TRY(kv_policy_get_text(at, "region", q->region, sizeof q->region));
    KV_TRY(kv_policy_get_text(at, "scope", q->scope, sizeof q->scope));
    q->facts.names[KV_POLICY_MODEL] = kv_policy_text(q->model);
    q->facts.names[KV_POLICY_LAYOUT] = kv_policy_text(q->layout);
    q->facts.names[KV_POLICY_REGION] = kv_policy_text(q->region);
    q->facts.names[KV_POLICY_SCOPE] = kv_policy_text(q->scope);
    q->facts.shared = q->facts.shared || q->scope[0] != '\0';
    return KV_OK;
}

KV_RC kv_policy_question_parse(struct kv_bytes text, struct kv_errinfo *info, struct kv_policy_question *ret_question)
{
    json_t *json = NULL;
    KV_TRY(kv_policy_load(text, info, &json));
    memset(ret_question, 0, sizeof *ret_question);
    struct kv_policy_at at = {.json = json, .info = info};
    enum kv_err rc = read_question(&at, ret_question);
    json_decref(json);
    return rc;
}
