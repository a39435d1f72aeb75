/*
 * The root of erasure as operators see it.
 */
#ifndef KV_SVC_ROOT_H
#define KV_SVC_ROOT_H

#include "audit/anchor.h"
#include "dataplane/keys/roe.h"
#include "server/service/svc.h"
#include "server/store/pg.h"

struct kv_root_view {
    struct kv_id root;          /* of the database; zero: it has none */
    char database_provider[32]; /* that it says holds it */
    const char *provider, *assurance;
    char detail[160];               /* the provider in its words */
    const char *path;               /* of a file; NULL: it is none. Borrowed from the configuration */
    bool shared;                    /* between instances */
    struct kv_id active, staged;    /* of the provider; zero: none */
    char trouble[192];              /* why the provider could not be asked; "": it was */
    uint64_t replaced, replaced_us; /* how often, and when last */
    const char *quarantine;         /* NULL: no */
    const char *const *limits;      /* codes that every erasure has with it, but for declared hardware */
    size_t limit_count;
};
/* Also in quarantine. Thread: any. */
KV_RC kv_svc_root_get(struct kv_call *call, struct kv_root_view *ret_view);

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
