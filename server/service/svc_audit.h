/*
 * The audit log as people read it: entries, signed head, proofs, the whole as an archive. A caller sees the log of its
 * own tenant; a key without a tenant sees the operator's. Thread and errors as in svc.h.
 */
#ifndef KV_SVC_AUDIT_H
#define KV_SVC_AUDIT_H

#include "server/service/svc.h"
#include "server/store/store_audit.h"

struct kv_audit_filter {
    const char *op, *outcome;    /* NULL: any */
    struct kv_id actor, session; /* zero: any */
    uint64_t from_us, to_us;     /* [from, to); 0: open */
};
/* By place in the log: page->after is a place as kv_audit_place_id makes it. kv_store_leaf_page_done. */
KV_RC kv_svc_audit_list(struct kv_call *call, const struct kv_audit_filter *filter, struct kv_page *page,
                        struct kv_store_leaf_page *ret_page);
/* A place in a log in the shape that cursors are made of. */
struct kv_id kv_audit_place_id(uint64_t index);

/* The signed head, as it was signed. KV_E_NOT_YET: none so far. */
KV_RC kv_svc_audit_checkpoint(struct kv_call *call, struct kv_buf *ret_note);

struct kv_audit_proof {
    uint64_t index, size; /* inclusion */
    uint64_t from, to;    /* consistency */
    struct kv_hash leaf;  /* inclusion */
    struct kv_hash hashes[KV_MERKLE_DEPTH_MAX];
    size_t count;
};
/* `size` 0: that of the signed head. KV_E_INVALID_REQUEST: index not below size, or size above the signed head's. */
KV_RC kv_svc_audit_inclusion(struct kv_call *call, uint64_t index, uint64_t size, struct kv_audit_proof *ret_proof);
KV_RC kv_svc_audit_consistency(struct kv_call *call, uint64_t from, uint64_t to, struct kv_audit_proof *ret_proof);

/* A tar archive in the layout of c2sp.org/tlog-tiles: the head, all tiles of hashes, and the bundles of entries from
 * the one that holds `from` to the one before `to` (0: to the end). KV_E_LIMIT: more than KV_MAX_EXPORT_BYTES.
 * KV_E_BUSY. */
KV_RC kv_svc_audit_export(struct kv_call *call, uint64_t from, uint64_t to, struct kv_buf *ret_tar);

#endif
