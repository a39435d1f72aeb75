/*
 * Long-running operations: what was asked for, how far it is, how it ended. A row is all that an executor needs to go
 * on after a crash. Thread: the connection's.
 *
 *   QUEUED ─► RUNNING ─► SUCCEEDED | FAILED | CANCELED      (QUEUED ─► CANCELED)
 */
#ifndef KV_STORE_OPERATION_H
#define KV_STORE_OPERATION_H

#include "server/store/page.h"
#include "server/store/pg.h"

enum kv_operation_state {
    KV_OPERATION_QUEUED = 0,
    KV_OPERATION_RUNNING,
    KV_OPERATION_SUCCEEDED,
    KV_OPERATION_FAILED,
    KV_OPERATION_CANCELED
};
const char *kv_operation_state_name(enum kv_operation_state state); /* "queued" */

#define KV_OPERATION_TEXT_SIZE 1025
#define KV_OPERATION_POSITION_BYTES_MAX 8192

struct kv_store_operation {
    struct kv_id id;
    char kind[33];           /* "audit.verify" */
    struct kv_id tenant;     /* zero: the operator's */
    struct kv_id created_by; /* API key; zero: the system */
    enum kv_operation_state state;
    char phase[65], unit[33];
    uint64_t done_units, total_units;
    bool has_total;
    char params[KV_OPERATION_TEXT_SIZE];   /* JSON of ours */
    char response[KV_OPERATION_TEXT_SIZE]; /* JSON of ours, once SUCCEEDED */
    char error_code[65], error_text[513];  /* once FAILED */
    uint64_t cancel_requested_us;          /* 0: not */
    uint64_t rev;
    uint64_t created_us, started_us, ended_us, expires_us;
    struct kv_id instance; /* that runs it; zero: whichever comes first */
};

/* Starts QUEUED. Reads id, kind, tenant, created_by, params, created_us, instance. KV_E_BUSY when `open_max` are open.
 * Write. */
KV_RC kv_store_operation_insert(struct kv_pg *pg, const struct kv_store_operation *operation, uint64_t open_max,
                                struct kv_errinfo *info);
KV_RC kv_store_operation_get(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                             struct kv_store_operation *ret_operation); /* KV_E_NOT_FOUND */
/* FOR UPDATE. Write. */
KV_RC kv_store_operation_lock(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                              struct kv_store_operation *ret_operation);
/* Not ended, this instance's or of none whose lease runs; oldest first. */
KV_RC kv_store_operation_list_open(struct kv_pg *pg, const struct kv_id *instance, size_t max, struct kv_errinfo *info,
                                   struct kv_store_operation *ret_list, size_t *ret_count);
/* This instance runs it from now on. KV_E_STALE: it has ended, or another live one has it. Write. */
KV_RC kv_store_operation_take(struct kv_pg *pg, const struct kv_id *id, const struct kv_id *instance,
                              struct kv_errinfo *info);
struct kv_store_operation_filter {
    struct kv_id tenant;      /* zero: the operator's */
    const char *state, *kind; /* NULL: any */
};
/* `ret_list` has room for page->limit + 1. */
KV_RC kv_store_operation_page(struct kv_pg *pg, const struct kv_store_operation_filter *filter, struct kv_page *page,
                              struct kv_errinfo *info, struct kv_store_operation *ret_list, size_t *ret_count);

/* State (QUEUED and RUNNING only), phase, progress and started_us of `operation`; `position` (may be empty) is where a
 * run that is cut goes on. KV_E_STALE: it has ended. Write. */
KV_RC kv_store_operation_progress(struct kv_pg *pg, const struct kv_store_operation *operation,
                                  struct kv_bytes position, struct kv_errinfo *info);
/* Appended to the caller's buffer; KV_E_MISSING: none. */
KV_RC kv_store_operation_position(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                                  struct kv_buf *ret_position);
/* State (an end), phase, progress, response, error, ended_us, expires_us of `operation`. KV_E_STALE. Write. */
KV_RC kv_store_operation_end(struct kv_pg *pg, const struct kv_store_operation *operation, struct kv_errinfo *info);
/* KV_E_STALE: it has ended. A second time keeps the first one's time. Write. */
KV_RC kv_store_operation_cancel(struct kv_pg *pg, const struct kv_id *id, uint64_t at_us, struct kv_errinfo *info);
/* Deletes ended ones that are no longer kept, at most `max`. Write. */
KV_RC kv_store_operation_expire(struct kv_pg *pg, uint64_t now_us, size_t max, struct kv_errinfo *info,
                                uint64_t *ret_count);

#endif
