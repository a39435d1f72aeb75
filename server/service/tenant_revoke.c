/*
 * Revocations as every instance applies them: of one session, or of all that a tenant had, which share one number. Must
 * never pass over a session because nobody here seems to use it: its keys may be open, or be opened right now, and only
 * what the keyring refuses for good stays refused.
 */
#include "server/service/svc_int.h"

#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"

#include <string.h>

struct kv_store_revocation svc_revocation_of(const struct kv_store_erasure *row)
{
    return (struct kv_store_revocation){.seq = row->revocation_seq,
                                        .tenant = row->tenant,
                                        .session = row->session,
                                        .erasure = row->id,
                                        .first_slot = row->first_slot,
                                        .slot = row->slot};
}

KV_RC svc_revocation_sessions(struct kv_pg *pg, const struct kv_store_revocation *what, struct kv_errinfo *info,
                              struct kv_buf *ret_ids)
{
    size_t max = KV_STORE_IDS_MAX, count = max;
    struct kv_id after = {0}, *some KV_CLEANUP(kv_freep) = kv_alloc_array(max, sizeof *some);
    if (some == NULL) {
        return KV_E_NO_MEMORY;
    }
    while (count == max) { /* a tenant has at most KV_MAX_TENANT_SLOTS */
        KV_TRY(kv_store_erasure_sessions(pg, what, &after, max, info, some, &count));
        for (size_t i = 0; i < count; i++) {
            kv_buf_append(ret_ids, some[i].b, sizeof some[i].b);
            after = some[i];
        }
    }
    return kv_buf_check(ret_ids);
}

/* One that is in memory may have operations that run. Of any other at most the keys are open. */
static KV_RC revoke_one(struct kv_svc *svc, const struct kv_store_revocation *what, const struct kv_id *session,
                        uint64_t deadline_ns)
{
    return svc_session_known(svc, session)
               ? svc_session_revoke(svc, &what->tenant, session, &what->erasure, deadline_ns)
               : kv_keyring_drop(svc->keyring, session, true, deadline_ns);
}

static KV_RC revoke_all(struct kv_svc *svc, const struct kv_store_revocation *what, const struct kv_buf *ids,
                        uint64_t deadline_ns)
{
    enum kv_err first = KV_OK;
    svc_views_drop_all(svc->views);
    for (size_t at = 0; at < ids->len; at += sizeof(struct kv_id)) {
        struct kv_id session;
        memcpy(session.b, ids->data + at, sizeof session.b);
        enum kv_err rc = revoke_one(svc, what, &session, deadline_ns); /* the others all the same */
        first = first == KV_OK ? rc : first;
    }
    return first;
}

KV_RC svc_revoke(struct kv_svc *svc, struct kv_pg *pg, const struct kv_store_revocation *what, uint64_t deadline_ns,
                 struct kv_errinfo *info)
{
    enum kv_err rc = KV_OK;
    if (kv_id_is_zero(&what->session)) {
        struct kv_buf ids KV_CLEANUP(kv_buf_done);
        kv_buf_init(&ids, (size_t)KV_MAX_TENANT_SLOTS * sizeof(struct kv_id));
        KV_TRY(svc_revocation_sessions(pg, what, info, &ids));
        rc = revoke_all(svc, what, &ids, deadline_ns);
    } else {
        rc = svc_session_revoke(svc, &what->tenant, &what->session, &what->erasure, deadline_ns);
    }
    return rc == KV_OK ? KV_OK : kv_fail(info, rc, "%s", svc_revoke_text(rc));
}
