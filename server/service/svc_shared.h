/*
 * Shared scopes: what several sessions of a tenant share, a system prompt or a document. A scope is a session that
 * nobody talks to: a key of its own, blocks of its own, an erasure and a certificate of its own. Sessions refer to it
 * from when they are made; it ends with the session that takes it along, or with the last that keeps it. Must never let
 * one outlive that, and never lead to another tenant's.
 */
#ifndef KV_SVC_SHARED_H
#define KV_SVC_SHARED_H

#include "server/service/erase_request.h"
#include "server/store/store_shared.h"

/* --- sharing */

/* In the transaction that makes a session, which holds kroot FOR SHARE and the tenant's row. */
struct svc_share {
    struct kv_call *call;
    struct kv_pg *pg;
    const struct kv_ktree_store *rows;
    struct kv_store_tenant *tenant;
    const char *name;    /* the client's, of the scope; in no log and no error */
    uint64_t expires_us; /* of one that is made; 0: none */
};
/* The session is to refer to the active scope of this name and its own model, which is made when there is none. Reads
 * model_*, class, region, created_* of it, and fills `shared`. */
KV_RC svc_share(const struct svc_share *share, struct kv_store_session *session, struct kv_errinfo *info);

/* The scope of a session that is open, open as well: *ret_there is false when it was erased, and its blocks are to be
 * recomputed. KV_E_INVALID_REQUEST: the session shares none. */
KV_RC svc_shared_open(struct kv_call *call, const struct svc_session *session, bool *ret_there);

/* --- leaving */

/* Sessions whose erasures were just taken on, in this transaction. */
struct svc_leaving {
    struct kv_store_ids sessions;
    const struct kv_store_erasure *as; /* what erasures of their scopes say, too: who, why, the group */
};
/* Erasures of the scopes that go with them; appended to `taken`, which has room for one for each session. */
KV_RC svc_shared_leave(struct kv_svc *svc, struct kv_pg *pg, const struct svc_leaving *leaving, struct kv_errinfo *info,
                       struct svc_group_taken *taken);
/* How many would go with these sessions of the tenant, and how many stay. */
struct svc_shared_would {
    uint64_t erased, retained;
};
KV_RC svc_shared_would(struct kv_pg *pg, const struct kv_id *tenant, const struct kv_store_ids *sessions,
                       struct kv_errinfo *info, struct svc_shared_would *ret_would);
/* After the commit: these scopes are refused here from now on. */
void svc_shared_begin(struct kv_svc *svc, struct kv_pg *pg, const struct kv_id *tenant,
                      const struct svc_group_taken *taken);
/* The janitor's: scopes that became due when an erasure was not blocked any more. */
KV_RC svc_shared_end_due(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info, bool *ret_more);

#endif
