/*
 * Requests for erasures that no caller makes: by lifetimes and deletions, and the parts that requests of callers share.
 * Each is a step inside a transaction of the one who asks, and what follows after its commit.
 */
#ifndef KV_ERASE_REQUEST_H
#define KV_ERASE_REQUEST_H

#include "server/service/svc_int.h"
#include "server/store/store_group.h"

/* Who asks; the system: zero and "system". */
struct svc_erase_by {
    struct kv_id key;
    const char *role, *basis;
};

/* In a transaction: the session's erasure, with its audit entry. Takes the revocation's number first, so call it before
 * other rows are locked. KV_E_NOT_FOUND; KV_E_STALE: the session is not active any more, or a hold covers it.
 * `ret_row` is what svc_erase_begin wants after the commit. */
KV_RC svc_erase_session(struct kv_svc *svc, struct kv_pg *pg, const struct kv_id *tenant, const struct kv_id *session,
                        const struct svc_erase_by *by, struct kv_errinfo *info, struct kv_store_erasure *ret_row);
/* After the commit: refused here from now on, and the eraser begins. `pg` of the caller's thread, outside of a
 * transaction. */
void svc_erase_begin(struct kv_svc *svc, struct kv_pg *pg, const struct kv_store_erasure *row);

/* In a transaction: one erasure of all sessions of the tenant that exist by now, without those that have one. Reads
 * tenant, basis, requested_by, requested_role, hashes, revocation_seq and an id that is
 * not zero. A
 * tenant in the state `erasing` becomes `erased` with the certificate. KV_E_NOT_FOUND; KV_E_STALE: it is erased;
 * KV_E_HOLD_ACTIVE. */
KV_RC svc_erase_tenant(struct kv_svc *svc, struct kv_pg *pg, struct kv_store_erasure *row, struct kv_errinfo *info);
/* The janitor's step: rows of sessions that went with their tenant say so themselves. */
KV_RC svc_erase_settle(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info, bool *ret_more);

/* --- for svc_erase.c and svc_erase_group.c */

/* Fills the group from `in` and its own id; hashes are salted with that. */
KV_RC svc_group_new(struct kv_call *call, const struct kv_erasure_new *in, struct kv_store_group *ret_group);
/* Sessions that a step took on, and after them the scopes that go with them. */
struct svc_group_taken {
    size_t count;
    struct {
        struct kv_id session, erasure;
        enum kv_erasure_state state;
    } * rows; /* SVC_GROUP_TAKEN_MAX of them, owned by the caller */
};
#define SVC_GROUP_TAKEN_MAX (2 * (size_t)KV_MAX_ERASURE_EXPAND) /* each may take its shared scope along */
/* In a transaction, on the group's row that was just made or locked: takes on up to KV_MAX_ERASURE_EXPAND sessions;
 * RUNNING when none is left. */
KV_RC svc_group_expand(struct kv_svc *svc, struct kv_pg *pg, struct kv_store_group *group, struct kv_errinfo *info,
                       struct svc_group_taken *taken);
void svc_group_begin(struct kv_svc *svc, const struct kv_store_group *group, const struct svc_group_taken *taken);
KV_RC svc_group_record(struct kv_svc *svc, struct kv_pg *pg, const struct kv_store_group *group,
                       struct kv_errinfo *info);
void svc_group_view(struct kv_svc *svc, const struct kv_store_group *group,
                    const struct kv_store_group_progress *progress, struct kv_erasure_view *ret_view);
/* The janitor's step: open groups go on and end. */
KV_RC svc_erase_groups(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info, bool *ret_more);

/* {"name":"value"}, for a row; and with null in place of the value, as answers have it: one is kept for its
 * Idempotency-Key longer than the sessions that had the label. "" stays "". */
KV_RC svc_label_text(const char *name, const char *value, char ret_label[KV_GROUP_LABEL_SIZE]);
void svc_label_name(const char *label, char ret_label[KV_GROUP_LABEL_SIZE]);

/* What this instance has of a session that was revoked, for whichever instance erases it. After the revocation was
 * applied here, before it is acknowledged. Thread: lease. */
KV_RC svc_erase_report(struct kv_svc *svc, struct kv_pg *pg, const struct kv_store_revocation *revocation,
                       struct kv_errinfo *info);

/* --- erase_clean.c, erase_upgrade.c: after the certificates */
/* At the start, once it is known whose the folder is: this instance has it from now on. */
KV_RC svc_clean_start(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info);
/* The janitor's step: what certified erasures left here is dropped, and this instance says so. */
KV_RC svc_clean_step(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info, bool *ret_more);
/* The janitor's step: where all have said so that may have had some, the statement is signed and placed. */
KV_RC svc_upgrade_step(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info, bool *ret_more);

/* The request's audit entry, which borrows from the row, and what it is found by. */
struct kv_audit_event svc_erase_event(const struct kv_store_erasure *row, uint8_t ret_ref[SVC_REF_BYTES]);
KV_RC svc_erase_record(struct kv_svc *svc, struct kv_pg *pg, const struct kv_store_erasure *row,
                       struct kv_errinfo *info);
const char *svc_erase_claim(enum kv_erasure_state state);
/* SHA-256 of the id and the text, in hex; NULL: "". Who knows the text can show that it was this one, and no table of
 * texts finds it. */
KV_RC svc_erase_hash(const struct kv_id *salt, const char *text, char ret_hex[KV_SHA256_HEX_SIZE]);
uint64_t svc_erase_eta_ms(struct kv_svc *svc, uint64_t erasures_ahead);

#endif
