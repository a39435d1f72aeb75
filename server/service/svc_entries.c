/* Audit entries that a transaction of many gathers: each is encoded once, and all go to the outbox in one statement. */
#include "server/service/svc_entries.h"

#include "dataplane/base/check.h"
#include "dataplane/base/mem.h"

#include <string.h>

struct svc_entries_row {
    struct kv_id log;
    size_t at, len; /* in the bytes, which move while they grow */
    bool has_ref;
    uint8_t ref[SVC_REF_BYTES];
    uint64_t at_us;
};

KV_RC svc_entries_init(struct svc_entries *entries, const struct kv_env *env, size_t max)
{
    *entries = (struct svc_entries){.env = env, .max = max};
    kv_buf_init(&entries->bytes, max * (size_t)KV_MAX_CERTIFICATE_BYTES + 1);
    entries->rows = kv_alloc_array(max + 1, sizeof *entries->rows);
    return entries->rows != NULL ? KV_OK : KV_E_NO_MEMORY;
}

void svc_entries_done(struct svc_entries *entries)
{
    kv_buf_done(&entries->bytes);
    kv_free(entries->rows);
    *entries = (struct svc_entries){0};
}

static KV_RC add(struct svc_entries *entries, const struct kv_id *log, struct kv_bytes leaf, const uint8_t *ref,
                 uint64_t at_us)
{
    KV_ASSERT(entries->count < entries->max);
    struct svc_entries_row *row = &entries->rows[entries->count];
    *row = (struct svc_entries_row){
        .log = *log, .at = entries->bytes.len, .len = leaf.len, .has_ref = ref != NULL, .at_us = at_us};
    if (ref != NULL) {
        memcpy(row->ref, ref, sizeof row->ref);
    }
    kv_buf_append(&entries->bytes, leaf.data, leaf.len);
    KV_TRY(kv_buf_check(&entries->bytes));
    entries->count++;
    return KV_OK;
}

KV_RC svc_entries_event(struct svc_entries *entries, const struct kv_audit_event *event, const uint8_t *ref)
{
    struct kv_audit_event stamped = *event;
    stamped.realtime_us = stamped.realtime_us != 0 ? stamped.realtime_us : entries->env->realtime_us(entries->env->ctx);
    struct kv_buf line;
    kv_buf_init(&line, (size_t)KV_MAX_AUDIT_ENTRY_BYTES);
    enum kv_err rc = kv_audit_encode(&stamped, &line);
    if (rc == KV_OK) {
        rc = add(entries, &event->tenant, kv_buf_bytes(&line), ref, stamped.realtime_us);
    }
    kv_buf_done(&line);
    return rc;
}

KV_RC svc_entries_leaf(struct svc_entries *entries, const struct kv_id *log, struct kv_bytes leaf, const uint8_t *ref)
{
    return add(entries, log, leaf, ref, entries->env->realtime_us(entries->env->ctx));
}

KV_RC svc_entries_insert(const struct svc_entries *entries, struct kv_pg *pg, struct kv_errinfo *info)
{
    if (entries->count == 0) {
        return KV_OK;
    }
    struct kv_store_outbox_new *rows KV_CLEANUP(kv_freep) = kv_alloc_array(entries->count, sizeof *rows);
    if (rows == NULL) {
        return KV_E_NO_MEMORY;
    }
    for (size_t i = 0; i < entries->count; i++) {
        const struct svc_entries_row *row = &entries->rows[i];
        rows[i] = (struct kv_store_outbox_new){.log = row->log,
                                               .entry = KV_BYTES(entries->bytes.data + row->at, row->len),
                                               .ref = KV_BYTES(row->ref, row->has_ref ? sizeof row->ref : 0),
                                               .at_us = row->at_us};
    }
    return kv_store_outbox_insert_many(pg, rows, entries->count, info);
}
