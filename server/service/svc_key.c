/*
 * API keys as people manage them: making, reading, narrowing, rotating, revoking. Every change is one transaction with
 * its entry in the log, and whoever holds the key in memory reads it again. Must never let anybody hand out a role, or
 * the secret of a key that has one, which they may not give; nor show a secret twice.
 */
#include "server/service/svc_key.h"

#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"
#include "server/service/event.h"
#include "server/service/key_text.h"
#include "server/service/svc_int.h"
#include "server/store/store_change.h"

#include <stdio.h>
#include <string.h>

#define SECOND_US UINT64_C(1000000)
#define DAY_US (86400 * SECOND_US)
#define SOON_US (14 * DAY_US)
#define USUAL_US (90 * DAY_US)
#define OPERATOR_LEFT_US ((uint64_t)KV_MAX_OPERATOR_LEFT_SECONDS * SECOND_US)
#define LONGEST_US ((uint64_t)KV_MAX_API_KEY_DAYS * DAY_US)

static const unsigned tenant_roles =
    KV_ROLE_TENANT_ADMIN | KV_ROLE_ENGINE | KV_ROLE_AUDITOR | KV_ROLE_VIEWER | KV_ROLE_SECURITY_OFFICER;
static const unsigned platform_roles =
    KV_ROLE_OPERATOR | KV_ROLE_VIEWER | KV_ROLE_METRICS | KV_ROLE_SECURITY_OFFICER | KV_ROLE_AUDITOR;

static uint64_t now_us(const struct kv_call *call)
{
    return call->svc->env->realtime_us(call->svc->env->ctx);
}

static void view_of(const struct kv_store_api_key *row, uint64_t now, struct kv_key_view *ret_view)
{
    struct kv_key_view view = {.id = row->id,
                               .tenant = row->tenant,
                               .roles = row->roles,
                               .rev = row->rev,
                               .created_us = row->created_us,
                               .expires_us = row->expires_us,
                               .revoked_us = row->revoked_us,
                               .last_used_us = row->last_used_us,
                               .rotated_us = row->rotated_us,
                               .cidrs.count = row->cidr_count};
    snprintf(view.name, sizeof view.name, "%s", row->name);
    memcpy(view.cidrs.items, row->cidrs, sizeof view.cidrs.items);
    bool works = row->revoked_us == 0 && now < row->expires_us;
    if (works && row->expires_us - now < SOON_US) {
        view.warnings |= KV_KEY_EXPIRES_SOON;
    }
    if (works && now < row->old_until_us) {
        view.old_until_us = row->old_until_us;
        view.warnings |= KV_KEY_OLD_SECRET_VALID;
    }
    *ret_view = view;
}

/* --- who may ----------------------------------------------------------------------------------------------------- */

static KV_RC may_manage(struct kv_call *call, const struct kv_id *tenant)
{
    bool operator_key = (call->who.roles & KV_ROLE_OPERATOR) != 0 && kv_id_is_zero(&call->who.tenant);
    bool own_admin = (call->who.roles & KV_ROLE_TENANT_ADMIN) != 0 && !kv_id_is_zero(tenant) &&
                     kv_id_equal(&call->who.tenant, tenant);
    return operator_key || own_admin ? KV_OK : kv_fail(&call->info, KV_E_NOT_FOUND, "no such tenant");
}

/* Whoever may not give a role does not get at a key that has it either: rotating it would be the same as making it. */
static KV_RC may_give(const struct kv_call *call, unsigned roles, struct kv_errinfo *info)
{
    bool operator_key = (call->who.roles & KV_ROLE_OPERATOR) != 0;
    return operator_key || (roles & KV_ROLE_SECURITY_OFFICER) == 0
               ? KV_OK
               : kv_fail_at(info, KV_E_FORBIDDEN, "/roles", "only an operator manages keys of a security_officer");
}

static KV_RC check_roles(struct kv_call *call, const struct kv_id *tenant, unsigned roles)
{
    bool platform = kv_id_is_zero(tenant);
    if (roles == 0 || (roles & ~(platform ? platform_roles : tenant_roles)) != 0) {
        return kv_fail_at(&call->info, KV_E_INVALID_REQUEST, "/roles", "%s",
                          platform ? "of operator, viewer, metrics, security_officer, auditor"
                                   : "of tenant_admin, engine, auditor, viewer, security_officer");
    }
    const unsigned both = KV_ROLE_OPERATOR | KV_ROLE_SECURITY_OFFICER;
    if ((roles & both) == both) {
        return kv_fail_at(&call->info, KV_E_ROLE_CONFLICT, "/roles", "operator and security_officer go apart");
    }
    if ((roles & KV_ROLE_AUDITOR) != 0 && (roles & ~(unsigned)(KV_ROLE_AUDITOR | KV_ROLE_VIEWER)) != 0) {
        return kv_fail_at(&call->info, KV_E_ROLE_CONFLICT, "/roles", "auditor goes with viewer alone");
    }
    if ((roles & KV_ROLE_METRICS) != 0 && roles != KV_ROLE_METRICS) {
        return kv_fail_at(&call->info, KV_E_ROLE_CONFLICT, "/roles", "metrics goes with no other role");
    }
    return may_give(call, roles, &call->info);
}

static void tell(struct kv_svc *svc, const struct kv_key_view *key, const char *state)
{
    svc_changed(svc);
    svc_publish(svc, &(struct kv_event){.type = KV_EVENT_KEY_CHANGED,
                                        .tenant = key->tenant,
                                        .subject = key->id,
                                        .subject_prefix = "key",
                                        .state = state});
}

static KV_RC record(struct kv_pg *pg, const struct kv_call *call, const struct kv_store_api_key *row,
                    enum kv_audit_op op, struct kv_errinfo *info)
{
    struct kv_audit_event event = {.op = op,
                                   .tenant = row->tenant,
                                   .actor = call->who.key,
                                   .actor_role = svc_role_name(call->who.roles),
                                   .subject = row->id,
                                   .subject_prefix = "key"};
    return svc_audit(call->svc, pg, &event, KV_BYTES(NULL, 0), info);
}

/* --- making ------------------------------------------------------------------------------------------------------ */

/* With `keep` it is the first operator key, or none. */
struct create_tx {
    struct kv_call *call;
    struct kv_store_api_key row;
    kv_key_keep_fn keep;
    void *keep_ctx;
    char text[SVC_KEY_TEXT_SIZE]; /* wiped */
    struct kv_key_view *view;
};

static KV_RC check_count(struct kv_pg *pg, const struct create_tx *tx, struct kv_errinfo *info)
{
    uint64_t count = 0;
    enum kv_err rc = kv_store_api_key_count_lock(pg, &tx->row.tenant, tx->row.created_us, info, &count);
    if (rc == KV_E_NOT_FOUND) {
        return kv_fail(info, rc, "no such tenant");
    }
    KV_TRY(rc);
    if (count >= (uint64_t)KV_MAX_API_KEYS_PER_TENANT) {
        return kv_fail(info, KV_E_LIMIT, "there are %lld keys that work; revoke one that is no longer used",
                       (long long)KV_MAX_API_KEYS_PER_TENANT);
    }
    return KV_OK;
}

static KV_RC refuse_second(struct kv_pg *pg, const struct create_tx *tx, struct kv_errinfo *info)
{
    uint64_t count = 0;
    KV_TRY(kv_store_api_key_count_operator(pg, tx->row.created_us, info, &count));
    return count == 0 ? KV_OK : kv_fail(info, KV_E_INVALID_STATE, "there is an operator key already");
}

static KV_RC create_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct create_tx *tx = ctx;
    KV_TRY(check_count(pg, tx, info));
    if (tx->keep != NULL) {
        KV_TRY(refuse_second(pg, tx, info));
    }
    KV_TRY(kv_store_api_key_insert(pg, &tx->row, info));
    KV_TRY(record(pg, tx->call, &tx->row, KV_AUDIT_KEY_CREATE, info));
    view_of(&tx->row, tx->row.created_us, tx->view);
    if (!tx->call->dry_run) { /* else it would be the secret of a key that does not exist */
        memcpy(tx->view->secret, tx->text, sizeof tx->view->secret);
    }
    /* Last before the commit: a process that ends in between leaves a kept key that never became valid, and the next
     * start makes another; the other order would leave a valid key that nobody has. */
    return tx->keep != NULL ? tx->keep(tx->keep_ctx, tx->text, info) : KV_OK;
}

static KV_RC fill_expiry(struct kv_call *call, const struct kv_key_new *in, struct kv_store_api_key *row)
{
    if (in->expires_us != 0 && in->expires_in_seconds != 0) {
        return kv_fail_at(&call->info, KV_E_INVALID_REQUEST, "/expires_at", "give it or expires_in_seconds, not both");
    }
    bool as_time = in->expires_us != 0;
    uint64_t until = as_time                       ? in->expires_us
                     : in->expires_in_seconds == 0 ? row->created_us + USUAL_US
                     : in->expires_in_seconds <= LONGEST_US / SECOND_US
                         ? row->created_us + in->expires_in_seconds * SECOND_US
                         : UINT64_MAX;
    if (until <= row->created_us || until > row->created_us + LONGEST_US) {
        return kv_fail_at(&call->info, KV_E_INVALID_REQUEST, as_time ? "/expires_at" : "/expires_in_seconds",
                          "in the future, and at most %lld days ahead", (long long)KV_MAX_API_KEY_DAYS);
    }
    row->expires_us = until;
    return KV_OK;
}

static KV_RC fill_cidrs(struct kv_call *call, const struct kv_cidrs *cidrs, struct kv_store_api_key *row)
{
    row->cidr_count = 0;
    for (unsigned i = 0; i < cidrs->count; i++) {
        if (!kv_cidr_canonical(cidrs->items[i], row->cidrs[i])) {
            char pointer[32];
            snprintf(pointer, sizeof pointer, "/cidrs/%u", i);
            return kv_fail_at(&call->info, KV_E_INVALID_REQUEST, pointer,
                              "an address range like 10.0.0.0/8 or 2001:db8::/32, with no bits behind its prefix");
        }
    }
    row->cidr_count = cidrs->count;
    return KV_OK;
}

/* The caller wipes tx and *ret_key. */
static KV_RC create(struct create_tx *tx, const struct kv_key_new *in)
{
    struct kv_call *call = tx->call;
    KV_TRY(svc_may_work(call->svc, &call->info)); /* in quarantine this may be the wrong database */
    tx->row.roles = in->roles;
    tx->row.rev = 1;
    tx->row.created_us = now_us(call);
    snprintf(tx->row.name, sizeof tx->row.name, "%s", in->name);
    KV_TRY(fill_expiry(call, in, &tx->row));
    KV_TRY(fill_cidrs(call, &in->cidrs, &tx->row));
    KV_TRY(kv_id_new(call->svc->env, &tx->row.id));
    KV_TRY(svc_key_draw_kid(call->svc->env, tx->row.kid));
    KV_TRY(svc_key_draw_secret(call->svc->env, tx->row.kid, tx->row.secret_sha256, tx->text));
    return svc_tx(call, KV_TX_KEY_CREATE, create_tx, tx);
}

KV_RC kv_svc_key_create(struct kv_call *call, const struct kv_id *tenant, const struct kv_key_new *in,
                        struct kv_key_view *ret_key)
{
    KV_TRY(may_manage(call, tenant));
    KV_TRY(check_roles(call, tenant, in->roles));
    struct create_tx tx = {.call = call, .row = {.tenant = *tenant}, .view = ret_key};
    enum kv_err rc = create(&tx, in);
    kv_wipe(&tx, sizeof tx);
    if (rc != KV_OK) {
        kv_wipe(ret_key, sizeof *ret_key);
        return rc;
    }
    if (!call->dry_run) {
        tell(call->svc, ret_key, "created");
    }
    return KV_OK;
}

KV_RC kv_svc_bootstrap_key(struct kv_call *call, kv_key_keep_fn keep, void *ctx)
{
    struct kv_key_view key;
    struct kv_key_new in = {.name = "first operator key", .roles = KV_ROLE_OPERATOR};
    struct create_tx tx = {.call = call, .keep = keep, .keep_ctx = ctx, .view = &key}; /* of no tenant */
    enum kv_err rc = create(&tx, &in);
    kv_wipe(&tx, sizeof tx);
    kv_wipe(&key, sizeof key);
    return rc;
}

/* --- reading ----------------------------------------------------------------------------------------------------- */

KV_RC kv_svc_key_get(struct kv_call *call, const struct kv_id *tenant, const struct kv_id *key,
                     struct kv_key_view *ret_key)
{
    struct kv_store_api_key row;
    KV_TRY(may_manage(call, tenant));
    enum kv_err rc = kv_store_api_key_get(call->pg, key, &call->info, &row);
    if (rc == KV_E_NOT_FOUND || (rc == KV_OK && !kv_id_equal(&row.tenant, tenant))) {
        return kv_fail(&call->info, KV_E_NOT_FOUND, "no such API key");
    }
    KV_TRY(rc);
    view_of(&row, now_us(call), ret_key);
    return KV_OK;
}

KV_RC kv_svc_key_list(struct kv_call *call, const struct kv_id *tenant, struct kv_page *page,
                      struct kv_key_view *ret_list, size_t *ret_count)
{
    KV_TRY(may_manage(call, tenant));
    struct kv_store_api_key *rows KV_CLEANUP(kv_freep) = kv_alloc_array(page->limit + 1u, sizeof *rows);
    size_t count = 0;
    if (rows == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(kv_store_api_key_list(call->pg, tenant, page, &call->info, rows, &count));
    for (size_t i = 0; i < count; i++) {
        view_of(&rows[i], now_us(call), &ret_list[i]);
    }
    *ret_count = count;
    return KV_OK;
}

/* --- changing ---------------------------------------------------------------------------------------------------- */

struct change_tx;
typedef KV_RC change_fn(struct change_tx *tx, struct kv_errinfo *info);

struct change_tx {
    struct kv_call *call;
    struct kv_id tenant, key;
    change_fn *change;
    enum kv_audit_op op;
    const struct kv_key_patch *patch;
    const struct kv_key_rotation *rotation;
    uint64_t now_us;
    struct kv_store_api_key row, was;
    bool same;                    /* there is nothing to change */
    char text[SVC_KEY_TEXT_SIZE]; /* "": no new secret; wiped */
    struct kv_key_view *view;
};

/* Until when the key gets an operator in from where the caller is; 0: it does not. */
static uint64_t opens_until(const struct change_tx *tx, const struct kv_store_api_key *key)
{
    bool opens = key->revoked_us == 0 && svc_key_from_here(tx->call, key);
    return opens && key->expires_us > tx->now_us ? key->expires_us : 0;
}

/* Without an operator key that works nobody could make the next one. So a change that lets the last door close sooner
 * must leave one that stays open for a while: seen from where the caller is, because ranges that keep everybody out
 * look like any others. */
static KV_RC keep_one_operator(const struct change_tx *tx, struct kv_pg *pg, struct kv_errinfo *info)
{
    uint64_t after = opens_until(tx, &tx->row), before = opens_until(tx, &tx->was), others = 0;
    if ((tx->row.roles & KV_ROLE_OPERATOR) == 0 || after >= before) {
        return KV_OK;
    }
    struct kv_store_api_key *keys KV_CLEANUP(kv_freep) =
        kv_alloc_array((size_t)KV_MAX_API_KEYS_PER_TENANT, sizeof *keys);
    size_t count = 0;
    uint64_t working = 0;
    if (keys == NULL) {
        return KV_E_NO_MEMORY;
    }
    /* Two changes at once would each count on the other's key. */
    KV_TRY(kv_store_api_key_count_lock(pg, &tx->tenant, tx->now_us, info, &working));
    KV_TRY(kv_store_api_key_operators(pg, tx->now_us, info, keys, &count));
    for (size_t i = 0; i < count; i++) {
        uint64_t until = kv_id_equal(&keys[i].id, &tx->row.id) ? 0 : opens_until(tx, &keys[i]);
        others = until > others ? until : others;
    }
    uint64_t enough = before < tx->now_us + OPERATOR_LEFT_US ? before : tx->now_us + OPERATOR_LEFT_US;
    return others >= enough || after >= enough
               ? KV_OK
               : kv_fail(info, KV_E_LAST_OPERATOR_KEY,
                         "no operator key would be left that works from here for another day; make another one first");
}

static KV_RC change_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct change_tx *tx = ctx;
    enum kv_err rc = kv_store_api_key_lock(pg, &tx->tenant, &tx->key, info, &tx->row);
    if (rc == KV_E_NOT_FOUND) {
        return kv_fail(info, rc, "no such API key");
    }
    KV_TRY(rc);
    KV_TRY(may_give(tx->call, tx->row.roles, info));
    KV_TRY(svc_match(tx->call, tx->row.rev, info));
    tx->same = false;
    tx->was = tx->row;
    KV_TRY(tx->change(tx, info));
    if (!tx->same) {
        KV_TRY(keep_one_operator(tx, pg, info));
        KV_TRY(kv_store_api_key_update(pg, &tx->row, info));
        KV_TRY(record(pg, tx->call, &tx->row, tx->op, info));
        KV_TRY(kv_store_change(pg, info));
    }
    view_of(&tx->row, tx->now_us, tx->view);
    if (!tx->call->dry_run) {
        memcpy(tx->view->secret, tx->text, sizeof tx->view->secret);
    }
    return KV_OK;
}

static KV_RC change(struct change_tx *tx, enum kv_tx what)
{
    struct kv_call *call = tx->call;
    KV_TRY(svc_may_work(call->svc, &call->info));
    tx->now_us = now_us(call);
    KV_TRY(svc_tx(call, what, change_tx, tx));
    if (!call->dry_run && !tx->same) {
        svc_key_forget(call->svc, tx->row.kid);
        tell(call->svc, tx->view, tx->row.revoked_us != 0 ? "revoked" : tx->text[0] != '\0' ? "rotated" : "changed");
    }
    return KV_OK;
}

static KV_RC must_work(const struct change_tx *tx, struct kv_errinfo *info)
{
    return tx->row.revoked_us == 0 && tx->now_us < tx->row.expires_us
               ? KV_OK
               : kv_fail(info, KV_E_INVALID_STATE, "the key is %s; make another",
                         tx->row.revoked_us != 0 ? "revoked" : "expired");
}

static KV_RC apply_patch(struct change_tx *tx, struct kv_errinfo *info)
{
    const struct kv_key_patch *patch = tx->patch;
    KV_TRY(must_work(tx, info));
    if (patch->name != NULL) {
        snprintf(tx->row.name, sizeof tx->row.name, "%s", patch->name);
    }
    if (patch->expires_us > tx->row.expires_us || (patch->expires_us != 0 && patch->expires_us <= tx->now_us)) {
        return kv_fail_at(info, KV_E_INVALID_REQUEST, "/expires_at",
                          "in the future and not later than it is now; rotate the key for a longer life");
    }
    tx->row.expires_us = patch->expires_us == 0 ? tx->row.expires_us : patch->expires_us;
    tx->same = patch->name == NULL && patch->expires_us == 0 && !patch->has_cidrs;
    return patch->has_cidrs ? fill_cidrs(tx->call, &patch->cidrs, &tx->row) : KV_OK;
}

KV_RC kv_svc_key_update(struct kv_call *call, const struct kv_id *tenant, const struct kv_id *key,
                        const struct kv_key_patch *patch, struct kv_key_view *ret_key)
{
    KV_TRY(may_manage(call, tenant));
    struct change_tx tx = {.call = call,
                           .tenant = *tenant,
                           .key = *key,
                           .change = apply_patch,
                           .op = KV_AUDIT_KEY_UPDATE,
                           .patch = patch,
                           .view = ret_key};
    return change(&tx, KV_TX_KEY_UPDATE);
}

static KV_RC apply_revoke(struct change_tx *tx, struct kv_errinfo *info)
{
    (void)info;
    tx->same = tx->row.revoked_us != 0;
    if (tx->same) {
        return KV_OK;
    }
    tx->row.revoked_us = tx->now_us;
    tx->row.old_until_us = 0;
    return KV_OK;
}

KV_RC kv_svc_key_revoke(struct kv_call *call, const struct kv_id *tenant, const struct kv_id *key,
                        struct kv_key_view *ret_key)
{
    KV_TRY(may_manage(call, tenant));
    struct change_tx tx = {.call = call,
                           .tenant = *tenant,
                           .key = *key,
                           .change = apply_revoke,
                           .op = KV_AUDIT_KEY_REVOKE,
                           .view = ret_key};
    return change(&tx, KV_TX_KEY_REVOKE);
}

static KV_RC apply_rotation(struct change_tx *tx, struct kv_errinfo *info)
{
    KV_TRY(must_work(tx, info));
    const struct kv_key_rotation *rotation = tx->rotation;
    memcpy(tx->row.old_secret_sha256, tx->row.secret_sha256, sizeof tx->row.old_secret_sha256);
    tx->row.old_until_us = rotation->overlap_seconds == 0 ? 0 : tx->now_us + rotation->overlap_seconds * SECOND_US;
    tx->row.rotated_us = tx->now_us;
    if (rotation->expires_in_seconds != 0) {
        tx->row.expires_us = tx->now_us + rotation->expires_in_seconds * SECOND_US;
    }
    return svc_key_draw_secret(tx->call->svc->env, tx->row.kid, tx->row.secret_sha256, tx->text);
}

KV_RC kv_svc_key_rotate(struct kv_call *call, const struct kv_id *tenant, const struct kv_id *key,
                        const struct kv_key_rotation *rotation, struct kv_key_view *ret_key)
{
    KV_TRY(may_manage(call, tenant));
    if (rotation->overlap_seconds > (uint64_t)KV_MAX_KEY_OVERLAP_SECONDS) {
        return kv_fail_at(&call->info, KV_E_INVALID_REQUEST, "/overlap_seconds", "0 to %lld",
                          (long long)KV_MAX_KEY_OVERLAP_SECONDS);
    }
    if (rotation->expires_in_seconds > LONGEST_US / SECOND_US) {
        return kv_fail_at(&call->info, KV_E_INVALID_REQUEST, "/expires_in_seconds", "at most %lld days",
                          (long long)KV_MAX_API_KEY_DAYS);
    }
    struct change_tx tx = {.call = call,
                           .tenant = *tenant,
                           .key = *key,
                           .change = apply_rotation,
                           .op = KV_AUDIT_KEY_ROTATE,
                           .rotation = rotation,
                           .view = ret_key};
    enum kv_err rc = change(&tx, KV_TX_KEY_ROTATE);
    kv_wipe(&tx, sizeof tx);
    if (rc != KV_OK) {
        kv_wipe(ret_key, sizeof *ret_key);
    }
    return rc;
}
