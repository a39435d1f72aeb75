/*
 * Policies: versions that never change, and the pointer to the active one of a tenant or of the platform.
 * `tenant` zero: the platform's. Thread: the connection's.
 */
#ifndef KV_STORE_POLICY_H
#define KV_STORE_POLICY_H

#include "server/store/page.h"
#include "server/store/pg.h"
#include "server/store/store_tenant.h"

struct kv_store_policy {
    struct kv_id id, tenant;
    uint64_t version; /* from 1, without gaps */
    uint8_t sha256[32];
    uint64_t created_us;
    struct kv_id created_by;
    char created_role[33];
    bool loosens;
};

/* Nobody else changes the policy until the end of the transaction. KV_E_NOT_FOUND. Write. */
KV_RC kv_store_policy_lock(struct kv_pg *pg, const struct kv_id *tenant, struct kv_errinfo *info);
/* The active one; its text is appended to `ret_body`. KV_E_MISSING: none was ever written, or no such tenant. */
KV_RC kv_store_policy_active(struct kv_pg *pg, const struct kv_id *tenant, struct kv_errinfo *info,
                             struct kv_store_policy *ret_policy, struct kv_buf *ret_body);
KV_RC kv_store_policy_get(struct kv_pg *pg, const struct kv_id *tenant, uint64_t version, struct kv_errinfo *info,
                          struct kv_store_policy *ret_policy, struct kv_buf *ret_body); /* KV_E_NOT_FOUND */
/* One page; `ret_list` has room for page->limit + 1. */
KV_RC kv_store_policy_list(struct kv_pg *pg, const struct kv_id *tenant, struct kv_page *page, struct kv_errinfo *info,
                           struct kv_store_policy *ret_list, size_t *ret_count);
/* The next version, made the active one: what was locked before. Fills policy->version. Write. */
KV_RC kv_store_policy_activate(struct kv_pg *pg, struct kv_store_policy *policy, const char *body,
                               struct kv_errinfo *info);

/* All that decides for a tenant, read in one statement: of one moment. */
struct kv_store_rules {
    char state[16];
    uint64_t versions[2];    /* the platform's, the tenant's; 0: none was written */
    struct kv_buf bodies[2]; /* the caller's; empty with version 0 */
};
KV_RC kv_store_rules_get(struct kv_pg *pg, const struct kv_id *tenant, struct kv_errinfo *info,
                         struct kv_store_rules *ret_rules); /* KV_E_NOT_FOUND */

/* What a policy asks of a session. */
struct kv_store_session_facts {
    struct kv_id tenant;
    char class_name[33], region[64], model[KV_STORE_TEXT_SIZE];
    uint64_t created_us;
    bool active;
};
KV_RC kv_store_session_facts(struct kv_pg *pg, const struct kv_id *session, struct kv_errinfo *info,
                             struct kv_store_session_facts *ret_facts); /* KV_E_NOT_FOUND */
/* Sessions of a tenant that are not erased; exact while the tenant's row is locked. */
KV_RC kv_store_session_count_kept(struct kv_pg *pg, const struct kv_id *tenant, struct kv_errinfo *info,
                                  uint64_t *ret_count);
/* The tenant of each of `ids`, in their order; zero for one that is no session here. At most KV_STORE_IDS_MAX. */
KV_RC kv_store_session_tenants(struct kv_pg *pg, const struct kv_id *ids, size_t count, struct kv_errinfo *info,
                               struct kv_id *ret_tenants);

/* A transfer on record. */
struct kv_store_past {
    char op[24]; /* "block.offload" */
    struct kv_id session;
    uint64_t blocks, bytes;
};
/* The tenant's newest ones, at most `max`. */
KV_RC kv_store_past_transfers(struct kv_pg *pg, const struct kv_id *tenant, size_t max, struct kv_errinfo *info,
                              struct kv_store_past *ret_list, size_t *ret_count);

#endif
