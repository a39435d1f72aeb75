/*
 * Sessions: making, finding, changing and explaining them. A session belongs to the caller's tenant, always; that of
 * another answers as if it did not exist, and an erased one is KV_E_SESSION_ERASED with call->erasure. See svc.h for
 * the rules of a use case.
 *
 * Lifetimes: expires_us ends a session whatever happens. The idle time is counted from its last use: a transfer, a
 * touch, or its making. Uses are noted in memory and written at most once a minute a session, soon after the first one
 * of that minute; the janitor asks memory and the log before it ends an idle session, and waits
 * KV_MAX_IDLE_GRACE_SECONDS longer than the row says, so that a use which a crash kept from the row still counts.
 */
#ifndef KV_SVC_SESSION_H
#define KV_SVC_SESSION_H

#include "server/service/svc.h"
#include "server/store/labels.h"
#include "server/store/store_session.h"

#define KV_EXTERNAL_ID_SIZE 257 /* KV_MAX_EXTERNAL_ID_BYTES and NUL */

/* The session's key in the words of SP 800-57; see svc_tenant_key.h. Never a part of it. */
struct kv_session_key {
    char state[16];   /* active, suspended, compromised, destroyed */
    uint32_t version; /* of the tenant's key, in which it was made */
    bool has_fingerprint;
    uint8_t fingerprint[KV_KEY_FINGERPRINT_BYTES];
};

struct kv_session_view {
    struct kv_id id, tenant;
    char state[16], class[33], region[64];
    char external_id[KV_EXTERNAL_ID_SIZE]; /* "": none, or not to be shown */
    struct kv_model model;
    struct kv_labels labels;
    uint64_t rev;
    uint64_t created_us, updated_us, last_used_us, expires_us, idle_us, pinned_until_us; /* 0: none */
    uint64_t idle_seconds;                                                               /* 0: never idle */
    struct kv_id erasure;                                                                /* of an erased one */
    struct kv_id shared; /* the scope that it shares; zero: none */
    bool is_scope;       /* it is one itself: external_id is its name */
    struct kv_session_key key;
    bool has_usage;
    struct kv_scope_usage usage;
};

struct kv_session_new {
    struct kv_model model;
    const char *external_id, *class, *region; /* NULL: none, "default", the tenant's */
    const char *scope;                        /* the name of one that it is to share; NULL: none */
    struct kv_labels labels;
    uint64_t ttl_seconds, idle_seconds; /* 0: as the policy says */
};
/* When the tenant has an active session with this external id, that one is the answer (*ret_existed). The view of a new
 * session shows neither external id nor labels: the answer may be kept for an Idempotency-Key, and erasing a session
 * must leave neither behind. */
KV_RC kv_svc_session_create(struct kv_call *call, const struct kv_session_new *in, struct kv_session_view *ret_session,
                            bool *ret_existed);
/* `erased`: one that is erased or being erased is shown, too, as far as there is something left to show. */
KV_RC kv_svc_session_get(struct kv_call *call, const struct kv_id *session, bool erased,
                         struct kv_session_view *ret_session);

struct kv_session_filter {
    const char *external_id, *state, *model;   /* NULL: any */
    const struct kv_label *label;              /* NULL: any */
    uint64_t idle_before_us, created_after_us; /* 0: any; idle: as far as memory here and the log know */
    bool scopes;                               /* these, not the sessions that share them */
};
/* `ret_list` has room for KV_MAX_PAGE_ITEMS. Erased ones are listed, too. */
KV_RC kv_svc_session_list(struct kv_call *call, const struct kv_session_filter *filter, struct kv_page *page,
                          struct kv_session_view *ret_list, size_t *ret_count);

struct kv_session_patch {
    struct kv_labels labels;
    bool has_ttl, has_idle;
    uint64_t ttl_seconds;  /* from now on; 0: no end */
    uint64_t idle_seconds; /* 0: never idle */
};
/* KV_E_CEILING: a lifetime can only be shortened. */
KV_RC kv_svc_session_update(struct kv_call *call, const struct kv_id *session, const struct kv_session_patch *patch,
                            struct kv_session_view *ret_session);
/* Counts as a use. */
KV_RC kv_svc_session_touch(struct kv_call *call, const struct kv_id *session, struct kv_session_view *ret_session);
/* Not idle until then, whatever its idle time; 0: no longer pinned. At most KV_MAX_PIN_SECONDS ahead, and not past the
 * end of its whole lifetime (KV_E_CEILING). */
KV_RC kv_svc_session_pin(struct kv_call *call, const struct kv_id *session, uint64_t until_us,
                         struct kv_session_view *ret_session);

#define KV_EXPLAIN_ENTRIES 20
struct kv_explain_view {
    struct kv_session_view session; /* without external id and labels */
    char tenant_state[16];
    bool offload_allowed, restore_allowed;
    char offload_reason[65], restore_reason[65];               /* when not allowed */
    struct kv_store_session_entry entries[KV_EXPLAIN_ENTRIES]; /* newest first */
    size_t entry_count;
};
/* An operator may ask for any tenant's session. */
KV_RC kv_svc_session_explain(struct kv_call *call, const struct kv_id *session, struct kv_explain_view *ret_view);

#endif
