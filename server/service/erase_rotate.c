/*
 * The rotation of a tenant's key: a batch that erases no session and gives every node of the tenant's tree a fresh
 * secret. It goes the way of every batch, so that the root which the old version hung under is destroyed and purged
 * like any other. Must never share a batch with erasures: a tree that is damaged would hold them up.
 */
#include "server/service/erase_int.h"

#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "dataplane/base/log.h"
#include "server/store/store_tenant_key.h"

#include <string.h>

KV_RC erase_rotation_look(struct erase_round *round)
{
    struct kv_store_rotation rotation;
    enum kv_err rc = kv_store_rotation_due(round->pg, &round->info, &rotation);
    round->rotation_due = rc == KV_OK;
    return rc == KV_E_MISSING ? KV_OK : rc;
}

void erase_rotation_turn(struct erase_round *round, bool fenced)
{
    bool free = kv_id_is_zero(&round->batch.id);
    round->rotating = free && round->rotation_due && (!fenced || !round->rotated_last);
    if (free) {
        round->rotated_last = round->rotating;
    }
}

KV_RC erase_rotate(struct kv_pg *pg, struct erase_round *round, const struct kv_ktree_store *rows,
                   struct kv_errinfo *info)
{
    struct kv_store_rotation due;
    enum kv_err rc = kv_store_rotation_due(pg, info, &due);
    KV_TRY(rc == KV_E_MISSING ? kv_fail(info, KV_E_STALE, "the rotation of a key was called off") : rc);
    struct kv_ktree_rotation rotation = {
        .tenant = due.tree, .directory_slot = due.directory_slot, .slots_used = due.slots_used};
    struct kv_store_rotated rotated = {
        .tenant = due.tenant, .batch = round->batch.id, .version = due.version, .at_us = erase_now_us(round)};
    round->rotation = due.operation;
    if (KV_FAULT("erase/rotate-damaged")) {
        return KV_E_TAMPERED;
    }
    KV_TRY(
        kv_ktree_rotate(round->svc->tree, rows, &rotation, &round->batch.new_root, round->fresh, rotated.fingerprint));
    return kv_store_rotation_rekeyed(pg, &rotated, info);
}

struct failed_tx {
    struct erase_round *round;
    enum kv_err rc;
};

static KV_RC failed_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    const struct failed_tx *tx = ctx;
    return kv_store_rotation_failed(pg, &tx->round->rotation, kv_err_name(tx->rc), info);
}

/* A tree with damage in it; not a database that is away, nor a root that changed. */
static bool is_final(enum kv_err rc)
{
    return kv_err_class_of(rc) == KV_CLASS_INTEGRITY || rc == KV_E_MISSING || rc == KV_E_SESSION_ERASED ||
           rc == KV_E_WRONG_KEY;
}

KV_RC erase_rotate_failed(struct erase_round *round, enum kv_err rc)
{
    if (rc == KV_OK || !is_final(rc)) {
        return rc;
    }
    kv_log(KV_LOG_ERROR, "eraser", "rotation-failed", KV_FID("operation", "opr", &round->rotation), KV_FRC(rc));
    struct failed_tx tx = {.round = round, .rc = rc};
    KV_TRY(erase_tx(round, KV_TX_ERASE_ROTATE_FAILED, failed_tx, &tx, NULL));
    return rc; /* what was staged is given up in the next round */
}

KV_RC erase_rotated(struct kv_pg *pg, struct erase_round *round, uint64_t at_us, struct kv_errinfo *info)
{
    struct kv_store_tenant_key old;
    KV_TRY(kv_store_tenant_keys_erased(pg, &round->batch.id, at_us, info));
    enum kv_err rc = kv_store_rotation_destroyed(pg, &round->batch.id, at_us, info, &old);
    if (rc == KV_E_MISSING) {
        return KV_OK;
    }
    KV_TRY(rc);
    struct kv_audit_event event = {.op = KV_AUDIT_TENANT_KEY_DESTROY,
                                   .tenant = old.tenant,
                                   .actor_role = "system",
                                   .subject = old.ended_by,
                                   .subject_prefix = "opr"};
    return svc_audit(round->svc, pg, &event, KV_BYTES(NULL, 0), info);
}
