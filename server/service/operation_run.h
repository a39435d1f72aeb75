/*
 * How the executor runs operations: a table of kinds, each a function that does one bounded piece. Between two pieces
 * progress and position are durable, and a cancel is seen.
 */
#ifndef KV_OPERATION_RUN_H
#define KV_OPERATION_RUN_H

#include "server/service/svc_int.h"
#include "server/service/svc_operation.h"

#define SVC_KEY_ROTATE "key.rotate"

struct svc_operation_run {
    struct kv_svc *svc;
    struct kv_pg *pg;
    struct kv_errinfo info;
    struct kv_store_operation row; /* phase, unit, progress and response are the piece's to set */
    struct kv_buf position;        /* where the next piece goes on; empty at the first one */
    bool done;                     /* set by the last piece, with row.response */
    bool goes_on;                  /* set instead when it is too late to call it off */
};

/* One piece, of about a second at most. What may be repeated after a crash is repeated from the last durable position.
 * An error ends the operation, but for KV_E_DB_UNAVAILABLE, KV_E_BUSY and KV_E_TIMEOUT: those are tried again. */
typedef KV_RC svc_operation_piece(struct svc_operation_run *run);
/* Of one that was cancelled, until `done`, or `goes_on`: then its pieces are run to the end. */
svc_operation_piece svc_call_off_root;
svc_operation_piece svc_run_audit_verify, svc_run_drain, svc_run_root_rotate, svc_run_root_migrate,
    svc_run_erasure_prove, svc_run_key_rotate;

struct svc_operation_new {
    const char *kind, *params;         /* JSON of ours */
    const struct kv_audit_event *also; /* an entry beside that of the start; NULL: none */
};
/* The row, its entries, and the executor's wake-up: what every use case that starts one ends with. */
KV_RC svc_operation_start(struct kv_call *call, const struct svc_operation_new *asked,
                          struct kv_operation_view *ret_operation);
/* The same in parts, for one that is told in the transaction of something else: the row's facts with a fresh id, the
 * row itself, and what comes after the commit. */
KV_RC svc_operation_fill(struct kv_call *call, const char *kind, const char *params, struct kv_operation_view *view);
KV_RC svc_operation_insert(struct kv_pg *pg, struct kv_store_operation *row, struct kv_errinfo *info);
void svc_operation_started(struct kv_svc *svc, const struct kv_store_operation *row);

void *svc_operations_main(void *svc);
void svc_operations_signal(struct kv_svc *svc);
/* The janitor's step: operations that are no longer kept. */
KV_RC svc_operations_expire(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info, bool *ret_more);
void svc_operation_publish(struct kv_svc *svc, const struct kv_store_operation *row);

#endif
