/*
 * API keys as people manage them. Of a key its secret's SHA-256 is stored; the secret itself is shown once, by the call
 * that drew it. Who may give which roles: an operator gives a tenant's keys any role of a tenant, and the platform's
 * keys (of no tenant) theirs; a tenant's administrator gives tenant_admin, engine, auditor and viewer to keys of its
 * tenant. It can neither make nor touch a security officer's key: that role loosens what the administrator may only
 * narrow. See svc.h for the rules of a use case.
 */
#ifndef KV_SVC_KEY_H
#define KV_SVC_KEY_H

#include "server/service/svc.h"
#include "server/store/store_tenant.h"

#define KV_API_KEY_TEXT_SIZE 96

enum kv_key_warning {
    KV_KEY_EXPIRES_SOON = 1 << 0,    /* in less than 14 days */
    KV_KEY_OLD_SECRET_VALID = 1 << 1 /* the secret from before the last rotation still works */
};

struct kv_cidrs {
    unsigned count; /* 0: from anywhere */
    char items[KV_CIDRS_MAX][KV_CIDR_SIZE];
};

struct kv_key_new {
    const char *name;
    unsigned roles;
    uint64_t expires_in_seconds; /* 0: 90 days; at most 365 days */
    uint64_t expires_us;         /* the same as a point in time, instead; 0: not said */
    struct kv_cidrs cidrs;
};
struct kv_key_view {
    struct kv_id id, tenant; /* tenant zero: a platform key */
    char name[513];
    unsigned roles, warnings;
    uint64_t rev;
    uint64_t created_us, expires_us, revoked_us, last_used_us, rotated_us, old_until_us; /* 0: not */
    struct kv_cidrs cidrs;
    char secret[KV_API_KEY_TEXT_SIZE]; /* create and rotate alone, shown once; wipe it after encoding */
};
/* `tenant` zero: a platform key. KV_E_FORBIDDEN when the caller may not give these roles, KV_E_ROLE_CONFLICT when they
 * may not be held together, KV_E_LIMIT past KV_MAX_API_KEYS_PER_TENANT. */
KV_RC kv_svc_key_create(struct kv_call *call, const struct kv_id *tenant, const struct kv_key_new *in,
                        struct kv_key_view *ret_key);
KV_RC kv_svc_key_get(struct kv_call *call, const struct kv_id *tenant, const struct kv_id *key,
                     struct kv_key_view *ret_key);
/* `ret_list` has room for KV_MAX_PAGE_ITEMS. */
KV_RC kv_svc_key_list(struct kv_call *call, const struct kv_id *tenant, struct kv_page *page,
                      struct kv_key_view *ret_list, size_t *ret_count);

/* Updating, rotating and revoking: KV_E_LAST_OPERATOR_KEY when no operator key would be left that the caller could use
 * from where it is for another KV_MAX_OPERATOR_LEFT_SECONDS. */
struct kv_key_patch {
    const char *name;    /* NULL: as it is */
    uint64_t expires_us; /* 0: as it is; only earlier than it was */
    bool has_cidrs;
    struct kv_cidrs cidrs;
};
KV_RC kv_svc_key_update(struct kv_call *call, const struct kv_id *tenant, const struct kv_id *key,
                        const struct kv_key_patch *patch, struct kv_key_view *ret_key);
/* For good, everywhere within the lease. A second time changes nothing. */
KV_RC kv_svc_key_revoke(struct kv_call *call, const struct kv_id *tenant, const struct kv_id *key,
                        struct kv_key_view *ret_key);
struct kv_key_rotation {
    uint64_t overlap_seconds;    /* the old secret works so long yet; at most KV_MAX_KEY_OVERLAP_SECONDS */
    uint64_t expires_in_seconds; /* 0: as it was */
};
/* A new secret under the same id. The one before the last rotation ends at once. */
KV_RC kv_svc_key_rotate(struct kv_call *call, const struct kv_id *tenant, const struct kv_id *key,
                        const struct kv_key_rotation *rotation, struct kv_key_view *ret_key);

/* Brings a range to its one spelling: 10.0.0.0/8, 2001:db8::/32. False: it is none, or has bits behind its prefix. */
bool kv_cidr_canonical(const char *text, char ret_text[KV_CIDR_SIZE]);
/* `address` is IPv6, IPv4 as ::ffff:a.b.c.d; a range of one never holds an address of the other. */
bool kv_cidr_holds(const char *cidr, const uint8_t address[16]);

/* Puts the key's text where its owner finds it, durably; `secret` is borrowed for the call. */
typedef KV_RC (*kv_key_keep_fn)(void *ctx, const char *secret, struct kv_errinfo *info);
/* The first operator key, only when there is none yet: KV_E_INVALID_STATE otherwise. For the server's start. `keep` is
 * called before the key becomes valid, and its failure is passed on: so no key is valid that nobody holds. It may be
 * called again with the same key. */
KV_RC kv_svc_bootstrap_key(struct kv_call *call, kv_key_keep_fn keep, void *ctx);
/* One more operator key, good for 90 days, without a service: `pg` is a connection to the database, whose schema is
 * this program's. `keep` as above. Thread: any that owns `pg`. */
KV_RC kv_svc_key_recover(struct kv_pg *pg, const struct kv_env *env, kv_key_keep_fn keep, void *ctx,
                         struct kv_errinfo *info);

#endif
