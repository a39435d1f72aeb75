/* What the files of the erasures' rows share. */
#ifndef KV_STORE_ERASURE_INT_H
#define KV_STORE_ERASURE_INT_H

#include "server/store/pg_int.h"
#include "server/store/store_erasure.h"

#define SELECT_ERASURE                                                                                               \
    "SELECT id, tenant_id, session_id, slot, directory_slot, state, basis, reason_sha256, requested_by,"             \
    " requested_role, revocation_seq, batch_id, requested_at, fenced_at, staged_at, rekeyed_at, destroyed_at,"       \
    " purged_at, verified_at, certified_at, blocked_hold_at, needs_approval_at, quarantined_at,"                     \
    " block_root IS NOT NULL, coalesce(blocks, 0), coalesce(bytes, 0), coalesce(dram_blocks, 0),"                    \
    " coalesce(dram_bytes, 0), coalesce(nvme_blocks, 0), coalesce(nvme_bytes, 0), block_root, coalesce(samples, 0)," \
    " coalesce(control_opened, 0), coalesce(opened_after, 0), coalesce(checks, 0), cert_id,"                         \
    " coalesce(cert_leaf_index, -1), previous_sha256, sample_headers IS NOT NULL, cert_jws IS NOT NULL,"             \
    " bundle IS NOT NULL, group_id, reference_sha256,"                                                               \
    " coalesce((SELECT g.scope FROM erasure_group g WHERE g.id = erasure.group_id), scope), scope = 'tenant',"       \
    " coalesce(tree_id, tenant_id), coalesce(first_slot, slot), sessions, sessions_root, hold_id, unblocked_at"      \
    " FROM erasure "

/* Into a struct kv_store_erasure, from SELECT_ERASURE. */
KV_RC kv_store_erasure_fill(struct kv_pg_row *row, void *ret);
bool kv_store_erasure_is_arrow(enum kv_erasure_state from, enum kv_erasure_state to);

#endif
