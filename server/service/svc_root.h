/*
 * The root of erasure as operators see it.
 */
#ifndef KV_SVC_ROOT_H
#define KV_SVC_ROOT_H

#include "audit/anchor.h"
#include "dataplane/keys/roe.h"
#include "server/service/svc.h"
#include "server/store/pg.h"

/* What the owner of the data folder gives up when the root is gone for good, or the database went back to an older
 * state. */
struct kv_root_loss {
    struct kv_id cluster;
    char provider[32];         /* that the database says holds its root; "": it has none */
    const char *why;           /* static */
    uint64_t sessions;         /* that are lost */
    bool other_provider;       /* the database's is another than the configured one, which was not asked */
    struct kv_id root, active; /* the database's, and the provider's; zero: none */
    int64_t fence;             /* of kroot */
};
struct kv_root_look {
    struct kv_pg *pg;
    struct kv_roe *roe;
    struct kv_anchor *anchor; /* NULL: none is configured */
};
/* Looks and changes nothing. KV_E_INVALID_STATE: nothing is lost, or a server runs on the database. Thread: any. */
KV_RC kv_svc_root_loss(const struct kv_root_look *look, struct kv_errinfo *info, struct kv_root_loss *ret_loss);
/* Without a server: a fresh root and an empty key tree; `loss` is what was looked at, and KV_E_STALE says that it is
 * not so any more. Its sessions are lost for good and never certified; what is left of an old root is destroyed.
 * Repeated after a crash it ends in the same state. */
KV_RC kv_svc_root_accept_loss(struct kv_pg *pg, struct kv_roe *roe, const struct kv_env *env,
                              const struct kv_root_loss *loss, struct kv_errinfo *info);

#endif
