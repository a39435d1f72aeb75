/*
 * Audit entries that are gathered one by one and put into the outbox together: a statement for all of them.
 * Thread: one owner.
 */
#ifndef KV_SVC_ENTRIES_H
#define KV_SVC_ENTRIES_H

#include "server/service/svc_int.h"

struct svc_entries {
    const struct kv_env *env;
    struct kv_buf bytes; /* of all entries */
    struct svc_entries_row *rows;
    size_t count, max;
};

KV_RC svc_entries_init(struct svc_entries *entries, const struct kv_env *env, size_t max);
void svc_entries_done(struct svc_entries *entries);
/* An event of its tenant's log; `ref` may be NULL, else SVC_REF_BYTES. */
KV_RC svc_entries_event(struct svc_entries *entries, const struct kv_audit_event *event, const uint8_t *ref);
/* Any leaf of a log. */
KV_RC svc_entries_leaf(struct svc_entries *entries, const struct kv_id *log, struct kv_bytes leaf, const uint8_t *ref);
/* In the caller's transaction, in the order of their coming. None are put again. */
KV_RC svc_entries_insert(const struct svc_entries *entries, struct kv_pg *pg, struct kv_errinfo *info);

#endif
