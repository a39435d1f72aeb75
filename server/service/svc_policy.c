/*
 * See svc_policy.h. A change is decided inside its transaction, on the locked row, against what is active then: who may
 * make it follows from what it newly allows. Must never activate what was not compared.
 */
#include "server/service/svc_policy.h"

#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"
#include "dataplane/crypto/hash.h"
#include "server/service/event.h"
#include "server/service/svc_approval.h"
#include "server/service/svc_int.h"
#include "server/service/svc_rules.h"
#include "server/store/store_change.h"
#include "server/store/store_policy.h"

#include <stdio.h>
#include <string.h>

/* A tenant with a class of each kind of data and no rules of its own: what a platform's policy means is seen on it. */
static const char everyone[] =
    "{\"tiers\":{\"dram\":{},\"nvme\":{}},\"classes\":{\"public\":{\"data_class\":\"public\"},\"internal\":"
    "{\"data_class\":\"internal\"},\"personal\":{\"data_class\":\"personal\"},\"special\":{\"data_class\":"
    "\"special\"}}}";

void kv_policy_view_init(struct kv_policy_view *view)
{
    memset(view, 0, sizeof *view);
    kv_buf_init(&view->body, (size_t)KV_MAX_POLICY_BYTES);
}

void kv_policy_view_done(struct kv_policy_view *view)
{
    kv_buf_done(&view->body);
}

/* --- who may see what ----------------------------------------------------------------------------------------------
 */

/* A key of a tenant sees its own tenant and nothing else; one of the platform sees all. */
static KV_RC check_reach(struct kv_call *call, const struct kv_id *tenant)
{
    bool platform_key = kv_id_is_zero(&call->who.tenant);
    if (platform_key || kv_id_equal(&call->who.tenant, tenant)) {
        return KV_OK;
    }
    return kv_id_is_zero(tenant)
               ? kv_fail(&call->info, KV_E_NOT_FOUND, "the platform's policy is for keys of the platform")
               : kv_fail(&call->info, KV_E_NOT_FOUND, "no such tenant");
}

static KV_RC whose(struct kv_call *call, const struct kv_id *asked, struct kv_id *ret_tenant)
{
    if (kv_id_is_zero(asked) && kv_id_is_zero(&call->who.tenant)) {
        return kv_fail_at(&call->info, KV_E_INVALID_REQUEST, "/tenant_id", "say for which tenant");
    }
    *ret_tenant = kv_id_is_zero(asked) ? call->who.tenant : *asked;
    return check_reach(call, ret_tenant);
}

/* --- reading -------------------------------------------------------------------------------------------------------
 */

static void view_of(const struct kv_store_policy *row, struct kv_policy_view *view)
{
    view->id = row->id;
    view->tenant = row->tenant;
    view->version = row->version;
    view->rev = row->version + 1;
    memcpy(view->sha256, row->sha256, sizeof view->sha256);
    view->created_us = row->created_us;
    view->created_by = row->created_by;
    snprintf(view->created_role, sizeof view->created_role, "%s", row->created_role);
    view->loosens = row->loosens;
}

static KV_RC builtin_view(const struct kv_id *tenant, struct kv_policy_view *view)
{
    view->tenant = *tenant;
    view->version = 0;
    view->rev = 1;
    kv_buf_reset(&view->body);
    kv_buf_text(&view->body, kv_policy_builtin);
    snprintf(view->created_role, sizeof view->created_role, "system");
    KV_TRY(kv_sha256(kv_buf_bytes(&view->body), view->sha256));
    return kv_buf_check(&view->body);
}

static KV_RC active_view(struct kv_pg *pg, const struct kv_id *tenant, struct kv_errinfo *info,
                         struct kv_policy_view *view)
{
    struct kv_store_policy row = {0};
    kv_buf_reset(&view->body);
    enum kv_err rc = kv_store_policy_active(pg, tenant, info, &row, &view->body);
    if (rc == KV_OK) {
        view_of(&row, view);
    }
    return rc == KV_E_MISSING ? builtin_view(tenant, view) : rc;
}

static KV_RC check_tenant(struct kv_call *call, const struct kv_id *tenant)
{
    const struct svc_rules *rules = NULL;
    KV_TRY(check_reach(call, tenant));
    if (kv_id_is_zero(tenant)) {
        return KV_OK;
    }
    KV_TRY(svc_rules_get(call, tenant, &rules)); /* there is such a tenant */
    svc_rules_put(call->svc, rules);
    return KV_OK;
}

KV_RC kv_svc_policy_get(struct kv_call *call, const struct kv_id *tenant, struct kv_policy_view *ret_policy)
{
    KV_TRY(check_tenant(call, tenant));
    return active_view(call->pg, tenant, &call->info, ret_policy);
}

KV_RC kv_svc_policy_version(struct kv_call *call, const struct kv_id *tenant, uint64_t version,
                            struct kv_policy_view *ret_policy)
{
    struct kv_store_policy row = {0};
    KV_TRY(check_tenant(call, tenant));
    KV_TRY(kv_store_policy_get(call->pg, tenant, version, &call->info, &row, &ret_policy->body));
    view_of(&row, ret_policy);
    return KV_OK;
}

KV_RC kv_svc_policy_versions(struct kv_call *call, const struct kv_id *tenant, struct kv_page *page,
                             struct kv_policy_view *ret_list, size_t *ret_count)
{
    KV_TRY(check_tenant(call, tenant));
    struct kv_store_policy *rows KV_CLEANUP(kv_freep) = kv_alloc_array(page->limit + (size_t)1, sizeof *rows);
    if (rows == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(kv_store_policy_list(call->pg, tenant, page, &call->info, rows, ret_count));
    for (size_t i = 0; i < *ret_count; i++) {
        kv_policy_view_init(&ret_list[i]);
        view_of(&rows[i], &ret_list[i]);
    }
    return KV_OK;
}

/* --- compiling what is not active ----------------------------------------------------------------------------------
 */

/* The pointer of a fault in a document that is a member of the request. */
static KV_RC within(struct kv_errinfo *info, const char *member, enum kv_err rc)
{
    if (rc == KV_E_POLICY_INVALID || rc == KV_E_CEILING) {
        char pointer[sizeof info->pointer];
        snprintf(pointer, sizeof pointer, "%s%.48s", member, info->pointer);
        memcpy(info->pointer, pointer, sizeof pointer);
    }
    return rc;
}

static struct kv_bytes text_of(const char *text)
{
    return KV_BYTES(text, strlen(text));
}

static KV_RC compile(const struct kv_policy_doc *platform, struct kv_bytes tenant, struct kv_errinfo *info,
                     struct kv_policy_set **ret_set)
{
    struct kv_policy_doc *doc KV_CLEANUP(kv_policy_doc_freep) = NULL;
    KV_TRY(kv_policy_parse(tenant, KV_POLICY_TENANT, info, &doc));
    return kv_policy_compile(platform, doc, ret_set);
}

static KV_RC platform_doc(struct kv_pg *pg, struct kv_errinfo *info, struct kv_policy_doc **ret_doc)
{
    static const struct kv_id platform;
    struct kv_policy_view view KV_CLEANUP(kv_policy_view_done);
    kv_policy_view_init(&view);
    KV_TRY(active_view(pg, &platform, info, &view));
    return kv_policy_parse(kv_buf_bytes(&view.body), KV_POLICY_PLATFORM, info, ret_doc);
}

/* --- changing ------------------------------------------------------------------------------------------------------
 */

struct put_tx {
    struct kv_call *call;
    struct kv_id tenant;
    struct kv_bytes text;
    struct kv_policy_view *view;
    struct kv_policy_diff diff;
    uint32_t approvals; /* that it asks for and nothing did before */
    bool changed;
};

static KV_RC compare_platform(struct put_tx *tx, struct kv_errinfo *info)
{
    struct kv_policy_doc *before KV_CLEANUP(kv_policy_doc_freep) = NULL, *after KV_CLEANUP(kv_policy_doc_freep) = NULL;
    struct kv_policy_set *a KV_CLEANUP(kv_policy_set_freep) = NULL, *b KV_CLEANUP(kv_policy_set_freep) = NULL;
    KV_TRY(kv_policy_parse(tx->text, KV_POLICY_PLATFORM, info, &after));
    KV_TRY(kv_policy_parse(kv_buf_bytes(&tx->view->body), KV_POLICY_PLATFORM, info, &before));
    KV_TRY(compile(before, text_of(everyone), info, &a));
    KV_TRY(compile(after, text_of(everyone), info, &b));
    kv_policy_compare(a, b, &tx->diff);
    tx->approvals = b->approvals & ~a->approvals;
    return KV_OK;
}

static KV_RC compare_tenant(struct put_tx *tx, struct kv_pg *pg, struct kv_errinfo *info)
{
    struct kv_policy_doc *platform KV_CLEANUP(kv_policy_doc_freep) = NULL, *own KV_CLEANUP(kv_policy_doc_freep) = NULL;
    struct kv_policy_set *a KV_CLEANUP(kv_policy_set_freep) = NULL, *b KV_CLEANUP(kv_policy_set_freep) = NULL;
    KV_TRY(kv_policy_parse(tx->text, KV_POLICY_TENANT, info, &own));
    KV_TRY(platform_doc(pg, info, &platform));
    KV_TRY(kv_policy_check_ceiling(platform, own, info));
    KV_TRY(compile(platform, kv_buf_bytes(&tx->view->body), info, &a));
    KV_TRY(kv_policy_compile(platform, own, &b));
    kv_policy_compare(a, b, &tx->diff);
    tx->approvals = b->approvals & ~a->approvals;
    return KV_OK;
}

/* The platform's policy is loosened by a security officer of the platform, a tenant's by one of either. */
static KV_RC check_may_loosen(const struct put_tx *tx, struct kv_errinfo *info)
{
    if (!kv_policy_loosens(&tx->diff) || (tx->call->who.roles & KV_ROLE_SECURITY_OFFICER) != 0) {
        return KV_OK;
    }
    return kv_fail(info, KV_E_FORBIDDEN, "this allows more, which takes the role security_officer: %.120s",
                   kv_policy_loosens_text(&tx->diff));
}

static KV_RC write_version(struct put_tx *tx, struct kv_pg *pg, struct kv_errinfo *info)
{
    struct kv_call *call = tx->call;
    struct kv_store_policy row = {.tenant = tx->tenant,
                                  .created_us = call->svc->env->realtime_us(call->svc->env->ctx),
                                  .created_by = call->who.key,
                                  .loosens = kv_policy_loosens(&tx->diff)};
    snprintf(row.created_role, sizeof row.created_role, "%s", svc_role_name(call->who.roles));
    KV_TRY(kv_id_new(call->svc->env, &row.id));
    KV_TRY(kv_sha256(tx->text, row.sha256));
    kv_buf_reset(&tx->view->body);
    kv_buf_append(&tx->view->body, tx->text.data, tx->text.len);
    KV_TRY(kv_buf_check(&tx->view->body));
    KV_TRY(kv_store_policy_activate(pg, &row, (const char *)tx->view->body.data, info));
    view_of(&row, tx->view);
    char sha256[65];
    kv_hex_encode(row.sha256, sizeof row.sha256, sha256);
    struct kv_audit_event event = {.op = KV_AUDIT_POLICY_ACTIVATE,
                                   .tenant = tx->tenant,
                                   .actor = call->who.key,
                                   .actor_role = row.created_role,
                                   .subject = row.id,
                                   .subject_prefix = "pol",
                                   .detail_sha256 = sha256};
    return svc_audit(call->svc, pg, &event, KV_BYTES(NULL, 0), info);
}

static bool same_text(const struct put_tx *tx)
{
    return tx->view->version != 0 && tx->view->body.len == tx->text.len &&
           memcmp(tx->view->body.data, tx->text.data, tx->text.len) == 0;
}

static KV_RC put_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct put_tx *tx = ctx;
    struct kv_policy_view *view = tx->view;
    tx->changed = false;
    KV_TRY(kv_store_policy_lock(pg, &tx->tenant, info));
    KV_TRY(active_view(pg, &tx->tenant, info, view));
    KV_TRY(svc_match(tx->call, view->rev, info));
    KV_TRY(kv_id_is_zero(&tx->tenant) ? compare_platform(tx, info) : compare_tenant(tx, pg, info));
    KV_TRY(check_may_loosen(tx, info));
    KV_TRY(tx->approvals == 0 ? KV_OK : svc_approval_possible(tx->call->svc, pg, &tx->tenant, info));
    if (same_text(tx)) {
        return KV_OK;
    }
    KV_TRY(write_version(tx, pg, info));
    tx->changed = true;
    return kv_store_change(pg, info);
}

KV_RC kv_svc_policy_put(struct kv_call *call, const struct kv_id *tenant, struct kv_bytes text,
                        struct kv_policy_view *ret_policy)
{
    KV_TRY(check_reach(call, tenant));
    KV_TRY(svc_may_work(call->svc, &call->info));
    struct put_tx *tx KV_CLEANUP(kv_freep) = kv_alloc(sizeof *tx);
    if (tx == NULL) {
        return KV_E_NO_MEMORY;
    }
    tx->call = call;
    tx->tenant = *tenant;
    tx->text = text;
    tx->view = ret_policy;
    KV_TRY(svc_tx(call, KV_TX_POLICY_PUT, put_tx, tx));
    if (call->dry_run || !tx->changed) {
        return KV_OK;
    }
    svc_changed(call->svc);
    struct kv_event event = {.type = KV_EVENT_POLICY_CHANGED, .tenant = *tenant, .version = ret_policy->version};
    svc_publish(call->svc, &event);
    return KV_OK;
}

KV_RC svc_policy_first(struct kv_call *call, struct kv_pg *pg, const struct kv_id *tenant, struct kv_bytes text,
                       struct kv_errinfo *info)
{
    struct kv_policy_view view KV_CLEANUP(kv_policy_view_done);
    struct put_tx *tx KV_CLEANUP(kv_freep) = kv_alloc(sizeof *tx);
    kv_policy_view_init(&view);
    if (tx == NULL) {
        return KV_E_NO_MEMORY;
    }
    tx->call = call;
    tx->tenant = *tenant;
    tx->text = text;
    tx->view = &view;
    return within(info, "/policy", put_tx(pg, tx, info));
}

/* --- asking --------------------------------------------------------------------------------------------------------
 */

static KV_RC set_under_platform(struct kv_call *call, struct kv_bytes text, const char *member,
                                struct kv_policy_set **ret_set)
{
    struct kv_policy_doc *platform KV_CLEANUP(kv_policy_doc_freep) = NULL;
    KV_TRY(platform_doc(call->pg, &call->info, &platform));
    return within(&call->info, member, compile(platform, text, &call->info, ret_set));
}

static void add_session(struct kv_policy_question *q, const struct kv_store_session_facts *session, uint64_t now_us)
{
    if (strcmp(q->class_name, "default") == 0) {
        snprintf(q->class_name, sizeof q->class_name, "%s", session->class_name);
    }
    if (q->model[0] == '\0') {
        snprintf(q->model, sizeof q->model, "%.128s", session->model);
    }
    if (q->region[0] == '\0') {
        snprintf(q->region, sizeof q->region, "%s", session->region);
    }
    if (q->facts.session_age_s == 0 && now_us > session->created_us) {
        q->facts.session_age_s = (now_us - session->created_us) / 1000000;
    }
    q->facts.session_active = q->facts.session_active && session->active;
    q->facts.names[KV_POLICY_MODEL] = kv_policy_text(q->model);
    q->facts.names[KV_POLICY_REGION] = kv_policy_text(q->region);
}

static KV_RC question_of(struct kv_call *call, const struct kv_policy_ask *ask, const struct kv_id *tenant,
                         struct kv_policy_question *ret_question)
{
    struct kv_store_session_facts session;
    KV_TRY(within(&call->info, "/ask", kv_policy_question_parse(ask->question, &call->info, ret_question)));
    if (!ask->has_session) {
        return KV_OK;
    }
    enum kv_err rc = kv_store_session_facts(call->pg, &ask->session, &call->info, &session);
    if (rc == KV_E_NOT_FOUND || (rc == KV_OK && !kv_id_equal(&session.tenant, tenant))) {
        return kv_fail(&call->info, KV_E_NOT_FOUND, "no such session");
    }
    KV_TRY(rc);
    add_session(ret_question, &session, call->svc->env->realtime_us(call->svc->env->ctx));
    return KV_OK;
}

static void answer(const struct kv_policy_set *set, const struct kv_policy_question *q,
                   struct kv_policy_answer *ret_answer)
{
    memcpy(ret_answer->versions, set->versions, sizeof set->versions);
    kv_policy_eval(kv_policy_class(set, q->class_name), &q->facts, &ret_answer->decision);
}

KV_RC kv_svc_policy_evaluate(struct kv_call *call, const struct kv_policy_ask *ask, struct kv_policy_answer *ret_answer,
                             struct kv_policy_answer *ret_other)
{
    struct kv_id tenant;
    struct kv_policy_question question;
    const struct svc_rules *rules = NULL;
    struct kv_policy_set *other KV_CLEANUP(kv_policy_set_freep) = NULL;
    KV_TRY(whose(call, &ask->tenant, &tenant));
    KV_TRY(question_of(call, ask, &tenant, &question));
    if (ask->policy.len > 0) {
        KV_TRY(set_under_platform(call, ask->policy, "/policy", &other));
    }
    KV_TRY(svc_rules_get(call, &tenant, &rules));
    question.facts.tenant_active = question.facts.tenant_active && rules->active;
    answer(rules->set, &question, ret_answer);
    if (other != NULL) {
        other->versions[0] = rules->set->versions[0];
        answer(other, &question, ret_other);
    }
    svc_rules_put(call->svc, rules);
    return KV_OK;
}

static KV_RC both(struct kv_call *call, const struct kv_policy_pair *pair, struct kv_id *ret_tenant,
                  struct kv_policy_set *ret_sets[2])
{
    struct kv_policy_view view KV_CLEANUP(kv_policy_view_done);
    kv_policy_view_init(&view);
    KV_TRY(whose(call, &pair->tenant, ret_tenant));
    KV_TRY(check_tenant(call, ret_tenant));
    if (pair->from.len > 0) {
        KV_TRY(set_under_platform(call, pair->from, "/from", &ret_sets[0]));
    } else {
        KV_TRY(active_view(call->pg, ret_tenant, &call->info, &view));
        KV_TRY(set_under_platform(call, kv_buf_bytes(&view.body), "", &ret_sets[0]));
    }
    return set_under_platform(call, pair->to, "/to", &ret_sets[1]);
}

KV_RC kv_svc_policy_diff(struct kv_call *call, const struct kv_policy_pair *pair, struct kv_policy_diff *ret_diff)
{
    struct kv_policy_set *sets[2] = {NULL, NULL};
    struct kv_id tenant;
    enum kv_err rc = both(call, pair, &tenant, sets);
    if (rc == KV_OK) {
        kv_policy_compare(sets[0], sets[1], ret_diff);
    }
    kv_policy_set_free(sets[0]);
    kv_policy_set_free(sets[1]);
    return rc;
}

/* --- replaying -----------------------------------------------------------------------------------------------------
 */

static void count_reasons(uint32_t reasons, uint64_t counts[KV_POLICY_REASONS])
{
    for (unsigned i = 0; i < KV_POLICY_REASONS; i++) {
        counts[i] += (reasons & 1u << i) != 0;
    }
}

/* As it was then: the session was active, and as old as it was. Its pages' layout is not on record, nor is whether the
 * caller waited for a durable copy. */
static void replay_one(struct kv_policy_set *const sets[2], const struct kv_store_past *past,
                       const struct kv_store_session_facts *session, struct kv_policy_replay *replay)
{
    struct kv_policy_decision before, after;
    struct kv_policy_facts facts = {.action =
                                        strcmp(past->op, "block.restore") == 0 ? KV_POLICY_RESTORE : KV_POLICY_OFFLOAD,
                                    .tenant_active = true,
                                    .session_active = true,
                                    .same_tenant = true,
                                    .block_bytes = past->blocks == 0 ? 0 : past->bytes / past->blocks,
                                    .names = {kv_policy_text(session->model), {0}, kv_policy_text(session->region)},
                                    .obligations_known = KV_POLICY_OBLIGATIONS_ALL};
    kv_policy_eval(kv_policy_class(sets[0], session->class_name), &facts, &before);
    kv_policy_eval(kv_policy_class(sets[1], session->class_name), &facts, &after);
    /* Layouts are not on record, so they decide nothing here. */
    uint32_t was = before.reasons & ~(uint32_t)KV_POLICY_LAYOUT_FORBIDDEN;
    uint32_t is = after.reasons & ~(uint32_t)KV_POLICY_LAYOUT_FORBIDDEN;
    replay->replayed++;
    if (was == 0 && is != 0) {
        replay->newly_denied++;
        count_reasons(is, replay->denied_by);
    } else if (was != 0 && is == 0) {
        replay->newly_allowed++;
        count_reasons(was, replay->allowed_by);
    }
}

static KV_RC replay_all(struct kv_call *call, struct kv_policy_set *const sets[2], const struct kv_store_past *list,
                        size_t count, struct kv_policy_replay *replay)
{
    struct kv_store_session_facts session = {0};
    struct kv_id read = {0};
    for (size_t i = 0; i < count; i++) {
        enum kv_err rc = KV_OK;
        if (!kv_id_equal(&read, &list[i].session)) { /* neighbours are of one session, mostly */
            rc = kv_store_session_facts(call->pg, &list[i].session, &call->info, &session);
            read = rc == KV_OK ? list[i].session : (struct kv_id){0};
        }
        if (rc == KV_E_NOT_FOUND) {
            replay->unknown++;
            continue;
        }
        KV_TRY(rc);
        replay_one(sets, &list[i], &session, replay);
    }
    return KV_OK;
}

KV_RC kv_svc_policy_dry_run(struct kv_call *call, const struct kv_policy_pair *pair, unsigned last,
                            struct kv_policy_replay *ret_replay)
{
    struct kv_policy_set *sets[2] = {NULL, NULL};
    struct kv_id tenant;
    size_t count = 0;
    struct kv_store_past *list KV_CLEANUP(kv_freep) = kv_alloc_array(last, sizeof *list);
    if (list == NULL) {
        return KV_E_NO_MEMORY;
    }
    memset(ret_replay, 0, sizeof *ret_replay);
    enum kv_err rc = both(call, pair, &tenant, sets);
    rc = rc == KV_OK ? kv_store_past_transfers(call->pg, &tenant, last, &call->info, list, &count) : rc;
    rc = rc == KV_OK ? replay_all(call, sets, list, count, ret_replay) : rc;
    kv_policy_set_free(sets[0]);
    kv_policy_set_free(sets[1]);
    return rc;
}
