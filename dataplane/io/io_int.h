/*
 * What the two backends of io.h share: lists of requests, the continuation of short transfers and the mapping of system
 * errors.
 */
#ifndef KV_IO_INT_H
#define KV_IO_INT_H

#include "dataplane/io/io.h"

/* First in, first out, linked through the requests' own `next`. */
struct kv_io_list {
    struct kv_io_request *head, *tail;
    unsigned count;
};

void kv_io_list_push(struct kv_io_list *list, struct kv_io_request *request);
struct kv_io_request *kv_io_list_pop(struct kv_io_list *list); /* NULL when empty */

/* One system call, or one ring entry, moves at most this much. */
#define KV_IO_STEP_BYTES (UINT64_C(1) << 30)
/* Interrupted, or told to come again, this often in a row: an error. */
#define KV_IO_AGAIN_MAX 1000

enum kv_io_step { KV_IO_FINISHED, KV_IO_MORE, KV_IO_AGAIN };

/* Takes the result of one step (bytes or -errno) into the request. */
enum kv_io_step kv_io_take_result(struct kv_io_request *request, int64_t result);
/* What a finished request reports to its owner. */
enum kv_err kv_io_result(const struct kv_io_request *request);
/* Accepts a request: clears its private and out fields. True when it is finished already (nothing to move, or a fault
 * point). */
bool kv_io_begin(struct kv_io_request *request);
/* Most requests that a backend has accepted and not yet handed back. */
unsigned kv_io_accept_max(const struct kv_io_conf *conf);

#endif
