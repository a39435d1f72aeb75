/*
 * The anchor outside of the database: looked at before the root of erasure is touched at a start, and moved on after
 * each change of the root, when the provider has only the new one. So it is never ahead of what a crash leaves behind,
 * and at most one change behind; certificates wait for it. A database that does not know what the anchor shows is an
 * older one, whatever root was put back with it. Must never move an anchor back.
 */
#include "server/service/svc_int.h"

#include "audit/anchor.h"
#include "dataplane/base/id.h"
#include "dataplane/base/log.h"
#include "dataplane/base/mem.h"

#include <string.h>

#define WAIT_NS (2 * KV_S_NS) /* for a medium that may hang: nothing that is to be destroyed waits longer for it */

static const char text_old[] =
    "the database is older than the anchor outside of it shows: it was put back, perhaps with "
    "its root of erasure; put the current ones back, or empty anchor.file if they are lost";
static const char text_log[] = "the audit log in the database is not the one that the anchor outside of it shows; put "
                               "the right database back, or empty anchor.file if it is lost";
static const char text_cluster[] = "the anchor is another database's; connect the database that it was written for, or "
                                   "set anchor.file to an anchor of this one";

/* The root hash of the operator's log when it had `size` entries. KV_E_STALE: it has not that many. */
static KV_RC log_root_at(struct kv_pg *pg, uint64_t size, struct kv_errinfo *info, struct kv_hash *ret_root)
{
    static const struct kv_id operators;
    struct kv_frontier *frontier KV_CLEANUP(kv_freep) = kv_alloc(sizeof *frontier);
    struct kv_store_log *log KV_CLEANUP(kv_freep) = kv_alloc(sizeof *log);
    if (frontier == NULL || log == NULL) {
        return KV_E_NO_MEMORY;
    }
    enum kv_err rc = kv_store_log_get(pg, &operators, info, log);
    KV_TRY(rc == KV_E_NOT_FOUND ? KV_OK : rc);
    if (size > log->size) {
        return KV_E_STALE;
    }
    if (size == log->size && size > 0) {
        memcpy(ret_root->b, log->root, sizeof ret_root->b);
        return KV_OK;
    }
    KV_TRY(size == 0 ? KV_OK : svc_log_frontier(pg, &operators, size, info, frontier));
    return size == 0 ? kv_merkle_empty(ret_root) : kv_frontier_root(frontier, ret_root);
}

/* What is wrong with this database in the light of the anchor; NULL: nothing. */
static KV_RC judge(struct kv_svc *svc, struct kv_pg *pg, const struct kv_anchor_record *record, struct kv_errinfo *info,
                   const char **ret_reason)
{
    bool known = false;
    struct kv_hash root;
    *ret_reason = text_cluster;
    if (!kv_id_equal(&record->cluster, &svc->cluster)) {
        return KV_OK;
    }
    *ret_reason = text_old;
    KV_TRY(kv_store_root_known(pg, &record->root, info, &known));
    if (!known) {
        return KV_OK;
    }
    enum kv_err rc = log_root_at(pg, record->log_size, info, &root);
    if (rc == KV_E_STALE) {
        return KV_OK;
    }
    KV_TRY(rc);
    *ret_reason = memcmp(root.b, record->log_root.b, sizeof root.b) == 0 ? NULL : text_log;
    return KV_OK;
}

KV_RC svc_anchor_open(struct kv_svc *svc, struct kv_errinfo *info)
{
    struct kv_anchor *file = NULL;
    if (svc->conf.anchor_file == NULL || svc->conf.anchor_file[0] == '\0') {
        return KV_OK;
    }
    KV_TRY(kv_anchor_file_open(svc->conf.anchor_file, info, &file));
    enum kv_err rc = kv_anchor_patient(file, WAIT_NS, &svc->anchor);
    if (rc != KV_OK) {
        file->ops->close(file);
    }
    return rc;
}

KV_RC svc_anchor_check(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info)
{
    struct kv_anchor_record record;
    const char *reason = NULL;
    if (svc->anchor == NULL) {
        return KV_OK;
    }
    enum kv_err rc = svc->anchor->ops->read(svc->anchor, info, &record);
    if (rc == KV_E_MISSING) { /* nothing was written there yet: this database is what it begins with */
        kv_log(KV_LOG_WARN, "anchor", "empty", KV_FT("text", "from now on it will show what this database is"));
        return KV_OK;
    }
    KV_TRY(rc);
    KV_TRY(judge(svc, pg, &record, info, &reason));
    if (reason != NULL) {
        svc_quarantine(svc, reason);
    }
    svc->anchored = record;
    return KV_OK;
}

/* Another process wrote there, or the database was exchanged while this one ran. */
static KV_RC look_again(struct kv_svc *svc, struct kv_pg *pg, const struct kv_id *root, struct kv_errinfo *info)
{
    KV_TRY(svc_anchor_check(svc, pg, info));
    if (atomic_load(&svc->quarantine) != NULL) {
        return kv_fail(info, KV_E_ROLLBACK_DETECTED, "%s", atomic_load(&svc->quarantine));
    }
    bool there = kv_id_equal(&svc->anchored.root, root);
    return there ? KV_OK : kv_fail(info, KV_E_BUSY, "another process writes the same anchor");
}

static KV_RC move_on(struct kv_svc *svc, struct kv_pg *pg, const struct kv_id *root, struct kv_errinfo *info)
{
    static const struct kv_id operators;
    struct kv_anchor_record record = {
        .cluster = svc->cluster, .root = *root, .written_us = svc->env->realtime_us(svc->env->ctx)};
    struct kv_store_log *log KV_CLEANUP(kv_freep) = kv_alloc(sizeof *log);
    if (log == NULL) {
        return KV_E_NO_MEMORY;
    }
    enum kv_err rc = kv_store_log_get(pg, &operators, info, log);
    KV_TRY(rc == KV_E_NOT_FOUND ? KV_OK : rc);
    record.log_size = log->size;
    KV_TRY(log_root_at(pg, record.log_size, info, &record.log_root));
    rc = svc->anchor->ops->write(svc->anchor, &record, info);
    if (rc == KV_E_STALE) {
        return look_again(svc, pg, root, info);
    }
    if (rc == KV_OK) {
        svc->anchored = record;
    }
    return rc;
}

KV_RC svc_anchor_follow(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info)
{
    struct kv_id root;
    bool alone = false;
    if (svc->anchor == NULL) {
        return KV_OK;
    }
    KV_TRY(svc_root_settled(svc, pg, &svc->anchored.root, info, &root, &alone));
    bool there = kv_id_equal(&svc->anchored.root, &root);
    if (!there && !alone) {
        return kv_fail(info, KV_E_BUSY, "the root of erasure is being changed");
    }
    enum kv_err rc = there ? KV_OK : move_on(svc, pg, &root, info);
    bool was = atomic_exchange(&svc->anchor_ok, rc == KV_OK);
    if (rc != KV_OK && was) {
        kv_log(KV_LOG_ERROR, "anchor", "not-written", KV_FRC(rc), KV_FT("text", info->text));
    }
    return rc;
}

bool svc_anchor_shown(const struct kv_svc *svc, struct kv_anchor_record *ret_record, const char **ret_kind)
{
    if (svc->anchor == NULL) {
        return false;
    }
    *ret_record = svc->anchored;
    *ret_kind = svc->anchor->ops->name;
    return true;
}

void svc_anchor_close(struct kv_svc *svc)
{
    if (svc->anchor != NULL) {
        svc->anchor->ops->close(svc->anchor);
    }
}
