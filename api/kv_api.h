/*
 * Names that every storey of the house shares: error codes, limits, ids and the public enums of the API.
 * No dependencies, no code. What is here is a contract: see README.md for what may change.
 */
#ifndef KV_API_H
#define KV_API_H

#include <stdint.h>

enum kv_err {
    KV_OK = 0,
#define KV_ERROR(name, http, class, retry, text) KV_E_##name,
#include "errors.def"
#undef KV_ERROR
    KV_E_COUNT
};

/* 64-bit constants KV_MAX_NAME. */
#define KV_LIMIT(name, value, why) static const int64_t KV_MAX_##name __attribute__((unused)) = (value);
#include "limits.def"
#undef KV_LIMIT
/* The few limits that size arrays must be constant expressions in C17. */
#define KV_TREE_FANOUT 64
#define KV_ERASE_BATCH 1024

/* A 128-bit id. On the wire it is a prefix and 26 characters of Crockford base32, see base/id.h. */
struct kv_id {
    uint8_t b[16];
};

/* The keyed id of a block: HMAC-SHA-256 under the session's K_id. */
struct kv_block_id {
    uint8_t b[32];
};

enum kv_tier_id { KV_TIER_NONE = 0, KV_TIER_DRAM = 1, KV_TIER_NVME = 2, KV_TIER_OBJECT = 3 };

/* What happened to one offered or asked block. */
enum kv_block_result {
    KV_BLOCK_PENDING = 0,
    KV_BLOCK_STORED,
    KV_BLOCK_PRESENT,
    KV_BLOCK_RESTORED,
    KV_BLOCK_RECOMPUTE,
    KV_BLOCK_MISSING,
    KV_BLOCK_QUARANTINED,
    KV_BLOCK_ERASED,
    KV_BLOCK_DENIED,
    KV_BLOCK_STALE_PAGE,
    KV_BLOCK_BUSY,
    KV_BLOCK_TIMEOUT,
    KV_BLOCK_FAILED,
};

/* Roles of an API key, as a mask. */
enum kv_role {
    KV_ROLE_OPERATOR = 1 << 0,
    KV_ROLE_TENANT_ADMIN = 1 << 1,
    KV_ROLE_ENGINE = 1 << 2,
    KV_ROLE_AUDITOR = 1 << 3,
    KV_ROLE_SECURITY_OFFICER = 1 << 4, /* loosens policies; never together with operator */
    KV_ROLE_VIEWER = 1 << 5,           /* reads what operators see */
    KV_ROLE_METRICS = 1 << 6,          /* scrapes, no more */
};

/* States of an erasure, in order; the last two are outside of it. */
enum kv_erasure_state {
    KV_ERASURE_REQUESTED = 0,
    KV_ERASURE_FENCED,
    KV_ERASURE_STAGED,
    KV_ERASURE_REKEYED,
    KV_ERASURE_DESTROYED,
    KV_ERASURE_PURGED,
    KV_ERASURE_VERIFIED,
    KV_ERASURE_CERTIFIED,
    KV_ERASURE_BLOCKED_HOLD,
    KV_ERASURE_NEEDS_APPROVAL,
    KV_ERASURE_QUARANTINED,
};

#endif
