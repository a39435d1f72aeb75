/*
 * Entries of the log: one line of restricted JCS, at most KV_MAX_AUDIT_ENTRY_BYTES, from a typed struct. No free text:
 * ids, closed enums, numbers, hashes. What a client wrote enters only as a salted hash.
 */
#ifndef KV_AUDIT_EVENT_H
#define KV_AUDIT_EVENT_H

#include "audit/merkle.h"
#include "dataplane/base/audit_sink.h"

enum kv_audit_op {
    KV_AUDIT_TENANT_CREATE,
    KV_AUDIT_KEY_CREATE, /* an API key */
    KV_AUDIT_SESSION_CREATE,
    KV_AUDIT_ERASE_REQUEST,
    KV_AUDIT_ERASE_DESTROY,
    KV_AUDIT_ERASE_QUARANTINE,
    KV_AUDIT_OFFLOAD,
    KV_AUDIT_RESTORE,
    KV_AUDIT_INTEGRITY,
    KV_AUDIT_ROOT_CHANGE,
    KV_AUDIT_INSTANCE_JOIN,
    KV_AUDIT_INSTANCE_STOP,
    KV_AUDIT_CONFIG_LOGLEVEL,
    KV_AUDIT_TENANT_UPDATE,
    KV_AUDIT_TENANT_SUSPEND,
    KV_AUDIT_TENANT_RESUME,
    KV_AUDIT_TENANT_DELETE,
    KV_AUDIT_TENANT_RESTORE,
    KV_AUDIT_KEY_UPDATE,
    KV_AUDIT_KEY_ROTATE,
    KV_AUDIT_KEY_REVOKE,
    KV_AUDIT_SESSION_UPDATE,
    KV_AUDIT_SESSION_PIN,
    KV_AUDIT_SESSION_UNPIN,
    KV_AUDIT_POLICY_ACTIVATE,
    KV_AUDIT_OPERATION_START,
    KV_AUDIT_OPERATION_CANCEL,
    KV_AUDIT_TIER_UPDATE,
    KV_AUDIT_KEY_RECOVER,
    KV_AUDIT_ROOT_ACCEPT_LOSS,
    KV_AUDIT_ERASE_PROVE,
    KV_AUDIT_TENANT_KEY_ROTATE,
    KV_AUDIT_TENANT_KEY_COMPROMISED, /* a rotation for that reason */
    KV_AUDIT_TENANT_KEY_DESTROY,
    KV_AUDIT_HOLD_CREATE,
    KV_AUDIT_HOLD_RELEASE,
    KV_AUDIT_HOLD_EXPIRE,
    KV_AUDIT_APPROVE_REQUEST,
    KV_AUDIT_APPROVE_GRANT,
    KV_AUDIT_APPROVE_REJECT,
};
const char *kv_audit_op_name(enum kv_audit_op op); /* "erase.request" */

struct kv_audit_event {
    enum kv_audit_op op;
    uint64_t realtime_us;
    struct kv_id tenant, session; /* zero: absent */
    struct kv_id actor;           /* API key id; zero: the system */
    const char *actor_role;       /* "operator", …, "system" */
    struct kv_id subject;         /* erasure, key, root … ; zero: absent */
    const char *subject_prefix;   /* "era" */
    const char *detail_sha256;    /* hex or NULL */
    /* transfers */
    bool has_transfer;
    uint64_t instance_seq;
    uint64_t blocks, bytes, duration_us;
    const char *tier;
    struct kv_hash block_root;
    bool has_policy; /* the versions that decided: the platform's, the tenant's; 0: built in */
    uint64_t policy_versions[2];
    const char *outcome; /* kv_err_name */
};

/* What an entry is found by, read from its line. Of a leaf that is no entry: op
 * "certificate", or "upgrade" for the statement that follows one; outcome "ok". KV_E_CORRUPT: neither. */
struct kv_audit_facts {
    char op[33], outcome[33];
    struct kv_id actor, session; /* zero: absent */
};
KV_RC kv_audit_facts(struct kv_bytes entry, struct kv_audit_facts *ret_facts);

KV_RC kv_audit_encode(const struct kv_audit_event *event, struct kv_buf *ret_line);

#endif
