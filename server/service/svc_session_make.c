/*
 * Making a session: a key slot of its tenant, given once. A client's own id is sealed and hashed in the same
 * transaction, under the tenant's lock, so that the same id asked for many times at once makes one session.
 */
#include "server/service/svc_session.h"

#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"
#include "server/service/event.h"
#include "server/service/svc_int.h"
#include "server/service/svc_rules.h"
#include "server/service/svc_shared.h"

#include <stdio.h>
#include <string.h>

#define CREATE_TRIES 3
#define SECOND_US UINT64_C(1000000)
#define SCOPE_NAME_MAX 128 /* what a policy can name */

struct make_tx {
    struct kv_call *call;
    const struct kv_session_new *in;
    struct kv_store_tenant tenant;
    struct kv_store_session fresh; /* the session asked for */
    struct kv_store_session row;   /* the one that is the answer */
    struct kv_secret *slot;        /* of a new one */
    uint64_t age_s;                /* that the policy gives it, and a scope that is made with it */
    bool existed;
    struct kv_session_view *view;
    bool *ret_existed;
};

/* --- in the transaction ------------------------------------------------------------------------------------------ */

static KV_RC lock_tenant(struct kv_pg *pg, struct make_tx *tx, struct kv_errinfo *info)
{
    KV_TRY(kv_store_tenant_lock(pg, &tx->call->who.tenant, info, &tx->tenant));
    if (tx->tenant.state != KV_TENANT_ACTIVE) { /* what is known of its rules may be older than this row */
        return kv_fail(info, KV_E_TENANT_SUSPENDED, "the tenant is %s, so it gets no new sessions",
                       tx->tenant.state == KV_TENANT_DELETING ? "to be deleted"
                                                              : kv_tenant_state_name(tx->tenant.state));
    }
    return KV_OK;
}

/* KV_E_NOT_FOUND: the tenant has no active session of this name. */
static KV_RC find_same(struct kv_pg *pg, const struct kv_ktree_store *rows, struct make_tx *tx, uint8_t hmac[32],
                       struct kv_errinfo *info)
{
    KV_TRY(kv_store_tenant_system_slot(pg, &tx->tenant, info));
    KV_TRY(svc_external_hmac(tx->call->svc, rows, &tx->tenant, true, tx->in->external_id, hmac));
    return kv_store_session_find(pg, &tx->tenant.id, hmac, info, &tx->row);
}

static uint64_t seconds_to(uint64_t from_us, uint64_t to_us)
{
    return to_us == 0 ? 0 : (to_us - from_us) / SECOND_US;
}

/* The policy allows such a session, and gives it the lifetimes that were not asked for. */
static KV_RC apply_policy(struct make_tx *tx, struct kv_errinfo *info)
{
    struct kv_store_session *row = &tx->row;
    struct svc_session_ask ask = {
        .class_name = row->class, .model = row->model_id, .region = row->region, .scope = tx->in->scope};
    uint64_t age_s = 0, idle_s = 0;
    KV_TRY(svc_rules_session(tx->call, &ask, &age_s, &idle_s));
    if (seconds_to(row->created_us, row->expires_us) > age_s) {
        return kv_fail_at(info, KV_E_CEILING, "/ttl_seconds", "the policy allows %llu seconds",
                          (unsigned long long)age_s);
    }
    if (row->idle_seconds > idle_s) {
        return kv_fail_at(info, KV_E_CEILING, "/idle_ttl_seconds", "the policy allows %llu seconds",
                          (unsigned long long)idle_s);
    }
    tx->age_s = age_s;
    if (row->expires_us == 0 && age_s != KV_POLICY_NO_LIMIT) {
        row->expires_us = row->created_us + age_s * SECOND_US;
    }
    if (row->idle_seconds == 0 && idle_s != KV_POLICY_NO_LIMIT) {
        row->idle_seconds = idle_s;
        row->idle_us = row->created_us + idle_s * SECOND_US;
    }
    return KV_OK;
}

/* The tenant's first session puts its first key into use, and the first one after an erasure of all it had the next. */
static KV_RC activate_key(struct kv_pg *pg, const struct kv_ktree_store *rows, const struct make_tx *tx,
                          struct kv_errinfo *info)
{
    const struct kv_store_tenant *tenant = &tx->tenant;
    struct kv_store_key_use use = {.tenant = tenant->id, .version = tenant->key_version, .at_us = tx->row.created_us};
    if (tenant->next_slot > tenant->first_slot) {
        return KV_OK;
    }
    KV_TRY(
        kv_ktree_fingerprint(tx->call->svc->tree, rows, &tenant->tree, tenant->directory_slot, true, use.fingerprint));
    enum kv_err rc = kv_store_tenant_key_activate(pg, &use, info);
    /* An erasure by a version of this program that went on with the same one. */
    return rc == KV_E_STALE && tenant->first_slot > 0 ? KV_OK : rc;
}

static KV_RC name_key(struct kv_pg *pg, struct make_tx *tx, struct kv_errinfo *info)
{
    struct kv_secret *scope KV_CLEANUP(kv_secret_freep) = NULL;
    struct kv_store_session_key *key = &tx->row.key;
    KV_TRY(kv_scope_secret(tx->slot, &tx->row.tenant, &tx->row.id, &scope));
    KV_TRY(kv_scope_fingerprint(scope, key->fingerprint));
    key->has_fingerprint = true;
    key->version = tx->tenant.key_version;
    key->tenant_state = tx->tenant.state;
    return kv_store_session_set_fingerprint(pg, &tx->row.id, key->fingerprint, info);
}

static KV_RC share(struct kv_pg *pg, const struct kv_ktree_store *rows, struct make_tx *tx, struct kv_errinfo *info)
{
    bool ends = tx->age_s != KV_POLICY_NO_LIMIT;
    const struct svc_share share = {.call = tx->call,
                                    .pg = pg,
                                    .rows = rows,
                                    .tenant = &tx->tenant,
                                    .name = tx->in->scope,
                                    .expires_us = ends ? tx->row.created_us + tx->age_s * SECOND_US : 0};
    return tx->in->scope == NULL ? KV_OK : svc_share(&share, &tx->row, info);
}

static KV_RC insert_row(struct kv_pg *pg, const struct kv_ktree_store *rows, struct make_tx *tx,
                        struct kv_errinfo *info)
{
    tx->row = tx->fresh;
    if (tx->row.region[0] == '\0') {
        snprintf(tx->row.region, sizeof tx->row.region, "%s", tx->tenant.region);
    }
    KV_TRY(apply_policy(tx, info));
    KV_TRY(share(pg, rows, tx, info));
    KV_TRY(kv_store_session_insert(pg, &tx->row, info));
    KV_TRY(svc_rules_session_quota(pg, &tx->row.tenant, info));
    kv_secret_free(tx->slot);
    tx->slot = NULL;
    KV_TRY(
        kv_ktree_slot(tx->call->svc->tree, rows, &tx->row.tree, tx->row.directory_slot, tx->row.slot, true, &tx->slot));
    KV_TRY(activate_key(pg, rows, tx, info));
    return name_key(pg, tx, info);
}

static KV_RC name_row(struct kv_pg *pg, const struct make_tx *tx, const uint8_t hmac[32], struct kv_errinfo *info)
{
    struct kv_buf sealed KV_CLEANUP(kv_buf_done);
    kv_buf_init(&sealed, KV_EXTERNAL_SEALED_MAX);
    KV_TRY(svc_external_seal(tx->call->svc, tx->slot, &tx->row, tx->in->external_id, &sealed));
    struct kv_store_external external = {.sealed = sealed.data, .sealed_len = sealed.len};
    memcpy(external.hmac, hmac, sizeof external.hmac);
    return kv_store_session_set_external(pg, &tx->row.id, &external, info);
}

static KV_RC record(struct kv_pg *pg, const struct make_tx *tx, struct kv_errinfo *info)
{
    struct kv_audit_event event = {.op = KV_AUDIT_SESSION_CREATE,
                                   .tenant = tx->row.tenant,
                                   .session = tx->row.id,
                                   .actor = tx->call->who.key,
                                   .actor_role =
                                       (tx->call->who.roles & KV_ROLE_ENGINE) != 0 ? "engine" : "tenant_admin"};
    return svc_audit(tx->call->svc, pg, &event, KV_BYTES(NULL, 0), info);
}

static KV_RC make_rows(struct kv_pg *pg, struct make_tx *tx, struct kv_errinfo *info)
{
    struct svc_tree_store store = {.pg = pg, .info = info};
    struct kv_ktree_store rows = svc_tree_store(&store);
    uint8_t hmac[32] = {0};
    KV_TRY(lock_tenant(pg, tx, info));
    enum kv_err rc = tx->in->external_id == NULL ? KV_E_NOT_FOUND : find_same(pg, &rows, tx, hmac, info);
    tx->existed = rc == KV_OK;
    if (rc == KV_E_NOT_FOUND) {
        KV_TRY(insert_row(pg, &rows, tx, info));
        KV_TRY(tx->in->external_id == NULL ? KV_OK : name_row(pg, tx, hmac, info));
        return record(pg, tx, info);
    }
    return rc;
}

static KV_RC make_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct make_tx *tx = ctx;
    struct kv_store_kroot kroot = {0};
    KV_TRY(kv_store_kroot_share(pg, info, &kroot)); /* nodes may be filled: no re-key meanwhile */
    enum kv_err rc = svc_root_use(tx->call->svc, &kroot, info);
    kv_store_kroot_done(&kroot);
    KV_TRY(rc);
    KV_TRY(make_rows(pg, tx, info));
    svc_session_view_of(&tx->row, tx->view);
    tx->view->labels = (struct kv_labels){0};
    *tx->ret_existed = tx->existed;
    return KV_OK;
}

/* --- around it --------------------------------------------------------------------------------------------------- */

static KV_RC open_new(struct kv_call *call, const struct make_tx *tx)
{
    struct kv_secret *scope = NULL;
    if (KV_FAULT("session/open-new")) {
        return KV_E_INTERNAL;
    }
    KV_TRY(kv_scope_secret(tx->slot, &tx->row.tenant, &tx->row.id, &scope));
    enum kv_err rc = svc_session_keys(call->svc, &tx->row.tenant, &tx->row.id, scope);
    kv_secret_free(scope);
    return rc;
}

static void model_to_row(const struct kv_model *model, struct kv_store_session *row)
{
    static const uint8_t none[32];
    snprintf(row->model_id, sizeof row->model_id, "%s", model->id);
    snprintf(row->model_revision, sizeof row->model_revision, "%s", model->revision);
    if (memcmp(model->fingerprint, none, sizeof none) != 0) {
        kv_hex_encode(model->fingerprint, sizeof model->fingerprint, row->model_fingerprint);
    }
}

/* As in the names of policies. */
static bool has_space(const char *name)
{
    for (const char *p = name; p != NULL && *p != '\0'; p++) {
        if ((unsigned char)*p < 0x21 || *p == 0x7f) {
            return true;
        }
    }
    return false;
}

static KV_RC check_new(struct kv_call *call, const struct kv_session_new *in)
{
    size_t len = in->external_id == NULL ? 1 : strlen(in->external_id);
    if (len == 0 || len > (size_t)KV_MAX_EXTERNAL_ID_BYTES) {
        return kv_fail_at(&call->info, KV_E_INVALID_REQUEST, "/external_id", "1 to %lld bytes",
                          (long long)KV_MAX_EXTERNAL_ID_BYTES);
    }
    size_t scope_len = in->scope == NULL ? 1 : strlen(in->scope);
    if (scope_len == 0 || scope_len > SCOPE_NAME_MAX || has_space(in->scope)) {
        return kv_fail_at(&call->info, KV_E_INVALID_REQUEST, "/sharing_scope",
                          "1 to %d bytes without spaces and control characters", SCOPE_NAME_MAX);
    }
    if (in->ttl_seconds > (uint64_t)KV_MAX_SESSION_SECONDS || in->idle_seconds > (uint64_t)KV_MAX_SESSION_SECONDS) {
        return kv_fail_at(&call->info, KV_E_INVALID_REQUEST,
                          in->ttl_seconds > (uint64_t)KV_MAX_SESSION_SECONDS ? "/ttl_seconds" : "/idle_ttl_seconds",
                          "1 to %lld", (long long)KV_MAX_SESSION_SECONDS);
    }
    size_t class_len = in->class == NULL ? 0 : strlen(in->class);
    if (class_len >= KV_CLASS_SIZE ||
        (class_len > 0 && strspn(in->class, "abcdefghijklmnopqrstuvwxyz0123456789_-") != class_len)) {
        return kv_fail_at(&call->info, KV_E_INVALID_REQUEST, "/class", "1 to 32 characters of a-z, 0-9, _ and -");
    }
    return svc_region_check(call, in->region);
}

static KV_RC fill_fresh(struct kv_call *call, const struct kv_session_new *in, struct kv_store_session *fresh)
{
    *fresh = (struct kv_store_session){.tenant = call->who.tenant,
                                       .created_by = call->who.key,
                                       .rev = 1,
                                       .created_us = call->svc->env->realtime_us(call->svc->env->ctx),
                                       .idle_seconds = in->idle_seconds};
    model_to_row(&in->model, fresh);
    snprintf(fresh->class, sizeof fresh->class, "%s", in->class == NULL ? "default" : in->class);
    snprintf(fresh->region, sizeof fresh->region, "%s", in->region == NULL ? "" : in->region);
    fresh->expires_us = in->ttl_seconds == 0 ? 0 : fresh->created_us + in->ttl_seconds * SECOND_US;
    fresh->idle_us = in->idle_seconds == 0 ? 0 : fresh->created_us + in->idle_seconds * SECOND_US;
    KV_TRY(kv_labels_merge(&fresh->labels, &in->labels));
    return kv_id_new(call->svc->env, &fresh->id);
}

static bool root_changed(const struct kv_call *call, enum kv_err rc)
{
    return rc == KV_E_STALE && (call->once == NULL || !call->once->replay);
}

static void after_commit(struct kv_call *call, const struct make_tx *tx)
{
    if (call->dry_run || tx->existed) {
        return;
    }
    KV_IGNORE(open_new(call, tx), "a session that could not be opened now is opened at its first use");
    struct kv_event event = {
        .type = KV_EVENT_SESSION_CREATED, .tenant = tx->row.tenant, .session = tx->row.id, .state = "active"};
    svc_publish(call->svc, &event);
}

KV_RC kv_svc_session_create(struct kv_call *call, const struct kv_session_new *in, struct kv_session_view *ret_session,
                            bool *ret_existed)
{
    KV_TRY(check_new(call, in));
    KV_TRY(svc_may_work(call->svc, &call->info));
    struct make_tx *tx KV_CLEANUP(kv_freep) = kv_alloc(sizeof *tx);
    if (tx == NULL) {
        return KV_E_NO_MEMORY;
    }
    *tx = (struct make_tx){.call = call, .in = in, .view = ret_session, .ret_existed = ret_existed};
    KV_TRY(fill_fresh(call, in, &tx->fresh));
    enum kv_err rc = KV_E_STALE;
    for (int tries = 0; root_changed(call, rc) && tries < CREATE_TRIES; tries++) {
        rc = svc_tx(call, KV_TX_SESSION_CREATE, make_tx, tx);
    }
    if (rc == KV_OK) {
        after_commit(call, tx);
    }
    kv_secret_free(tx->slot);
    return rc;
}
