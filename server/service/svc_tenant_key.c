/*
 * Versions of a tenant's key as people see them, and the start of a rotation. The re-key itself is the eraser's
 * (erase_rotate.c); the operation waits for it. Must never read a key.
 */
#include "server/service/svc_tenant_key.h"

#include "server/service/operation_run.h"

#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"

#include <stdio.h>
#include <string.h>

static KV_RC visible(struct kv_call *call, const struct kv_id *tenant)
{
    bool officer = kv_id_is_zero(&call->who.tenant) && (call->who.roles & KV_ROLE_SECURITY_OFFICER) != 0;
    return officer || kv_id_equal(&call->who.tenant, tenant) ? KV_OK
                                                             : kv_fail(&call->info, KV_E_NOT_FOUND, "no such tenant");
}

/* --- looking ----------------------------------------------------------------------------------------------------- */

static const char *state_of(const struct kv_store_tenant_key *key, enum kv_tenant_state tenant)
{
    if (key->state != KV_TENANT_KEY_DESTROYED && key->compromised_us != 0) {
        return "compromised";
    }
    if (key->state != KV_TENANT_KEY_ACTIVE || tenant == KV_TENANT_ACTIVE) {
        return kv_tenant_key_state_name(key->state);
    }
    return tenant == KV_TENANT_ERASED ? kv_tenant_key_state_name(KV_TENANT_KEY_DEACTIVATED) : "suspended";
}

static KV_RC tenant_state(struct kv_call *call, const struct kv_id *tenant, enum kv_tenant_state *ret_state)
{
    struct kv_store_tenant *row KV_CLEANUP(kv_freep) = kv_alloc(sizeof *row);
    if (row == NULL) {
        return KV_E_NO_MEMORY;
    }
    enum kv_err rc = kv_store_tenant_get(call->pg, tenant, &call->info, row);
    KV_TRY(rc == KV_E_NOT_FOUND ? kv_fail(&call->info, rc, "no such tenant") : rc);
    *ret_state = row->state;
    return KV_OK;
}

KV_RC kv_svc_tenant_key_list(struct kv_call *call, const struct kv_id *tenant, struct kv_page *page,
                             struct kv_tenant_key_view *ret_list, size_t *ret_count)
{
    enum kv_tenant_state state = KV_TENANT_ACTIVE;
    KV_TRY(visible(call, tenant));
    KV_TRY(tenant_state(call, tenant, &state));
    struct kv_store_tenant_key *rows KV_CLEANUP(kv_freep) = kv_alloc_array((size_t)page->limit + 1, sizeof *rows);
    if (rows == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(kv_store_tenant_key_page(call->pg, tenant, page, &call->info, rows, ret_count));
    for (size_t i = 0; i < *ret_count; i++) {
        ret_list[i] = (struct kv_tenant_key_view){.row = rows[i], .state = state_of(&rows[i], state)};
    }
    return KV_OK;
}

/* --- rotating ---------------------------------------------------------------------------------------------------- */

struct rotate_tx {
    struct kv_call *call;
    struct kv_id tenant;
    bool compromised;
    struct kv_store_tenant row;
    struct kv_operation_view *view;
};

static KV_RC begin_rotation(struct kv_pg *pg, struct rotate_tx *tx, struct kv_errinfo *info)
{
    struct kv_store_tenant_key next = {
        .tenant = tx->tenant, .created_us = tx->view->row.created_us, .operation = tx->view->row.id};
    KV_TRY(kv_id_new(tx->call->svc->env, &next.id));
    KV_TRY(kv_store_tenant_key_next(pg, &next, info));
    return tx->compromised ? kv_store_tenant_key_compromised(pg, &tx->tenant, next.created_us, info) : KV_OK;
}

static KV_RC rotate_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct rotate_tx *tx = ctx;
    enum kv_err rc = kv_store_tenant_lock(pg, &tx->tenant, info, &tx->row);
    KV_TRY(rc == KV_E_NOT_FOUND ? kv_fail(info, rc, "no such tenant") : rc);
    if (tx->row.state == KV_TENANT_ERASING || tx->row.state == KV_TENANT_ERASED) {
        return kv_fail(info, KV_E_INVALID_STATE, "the tenant is %s", kv_tenant_state_name(tx->row.state));
    }
    KV_TRY(begin_rotation(pg, tx, info));
    struct kv_audit_event event = {.op = tx->compromised ? KV_AUDIT_TENANT_KEY_COMPROMISED : KV_AUDIT_TENANT_KEY_ROTATE,
                                   .tenant = tx->tenant,
                                   .actor = tx->call->who.key,
                                   .actor_role = svc_role_name(tx->call->who.roles),
                                   .subject = tx->view->row.id,
                                   .subject_prefix = "opr"};
    KV_TRY(svc_audit(tx->call->svc, pg, &event, KV_BYTES(NULL, 0), info));
    return svc_operation_insert(pg, &tx->view->row, info);
}

KV_RC kv_svc_tenant_key_rotate(struct kv_call *call, const struct kv_id *tenant, bool compromised,
                               struct kv_operation_view *ret_operation)
{
    char id[KV_ID_TEXT_SIZE], params[96];
    KV_TRY(visible(call, tenant));
    KV_TRY(svc_may_work(call->svc, &call->info));
    struct rotate_tx *tx KV_CLEANUP(kv_freep) = kv_alloc(sizeof *tx);
    if (tx == NULL) {
        return KV_E_NO_MEMORY;
    }
    *tx = (struct rotate_tx){.call = call, .tenant = *tenant, .compromised = compromised, .view = ret_operation};
    kv_id_text("ten", tenant, id);
    snprintf(params, sizeof params, "{\"tenant\":\"%s\"}", id);
    KV_TRY(svc_operation_fill(call, SVC_KEY_ROTATE, params, ret_operation));
    KV_TRY(svc_tx(call, KV_TX_TENANT_KEY_ROTATE, rotate_tx, tx));
    if (!call->dry_run) {
        svc_views_drop_all(call->svc->views); /* a session shows it, too */
        svc_operation_started(call->svc, &ret_operation->row);
        svc_eraser_signal(call->svc);
    }
    return KV_OK;
}

/* --- the operation: waits for the eraser ------------------------------------------------------------------------- */

#define LOOKS 10
#define LOOK_NS (100 * KV_MS_NS)

static const char *phase_of(const struct kv_store_tenant_key *key)
{
    return key->state == KV_TENANT_KEY_PRE_ACTIVATION ? "re-keying" : "destroying";
}

static KV_RC done(struct svc_operation_run *run, const struct kv_store_tenant_key *key)
{
    char id[KV_ID_TEXT_SIZE], name[2 * KV_KEY_FINGERPRINT_BYTES + 1];
    kv_id_text("ten", &key->tenant, id);
    kv_hex_encode(key->fingerprint, sizeof key->fingerprint, name);
    snprintf(run->row.response, sizeof run->row.response,
             "{\"fingerprint\":\"%s\",\"tenant_id\":\"%s\",\"version\":%u}", name, id, (unsigned)key->version);
    run->row.done_units = 1;
    run->done = true;
    return KV_OK;
}

KV_RC svc_run_key_rotate(struct svc_operation_run *run)
{
    struct kv_store_tenant_key key;
    bool ended = false;
    snprintf(run->row.unit, sizeof run->row.unit, "versions");
    run->row.total_units = 1;
    for (int looks = 0; looks < LOOKS && !atomic_load(&run->svc->stopping); looks++) {
        KV_TRY(kv_store_tenant_key_of(run->pg, &run->row.id, &run->info, &key));
        if (key.failed[0] != '\0') {
            return kv_fail(&run->info, KV_E_CORRUPT, "the tenant's key tree does not open: %s", key.failed);
        }
        KV_TRY(kv_store_rotation_ended(run->pg, &run->row.id, &run->info, &ended));
        if (ended) {
            return done(run, &key);
        }
        if (looks == 0) {
            svc_eraser_signal(run->svc);
        }
        svc_sleep(run->svc, LOOK_NS);
    }
    snprintf(run->row.phase, sizeof run->row.phase, "%s", phase_of(&key));
    return KV_OK;
}
