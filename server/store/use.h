/*
 * When sessions and API keys were used last: noted in memory by whoever uses them, written many at once.
 */
#ifndef KV_STORE_USE_H
#define KV_STORE_USE_H

#include "dataplane/base/err.h"

struct kv_store_use {
    struct kv_id id;
    uint64_t at_us;
};
#define KV_STORE_USES_MAX 512 /* of one statement */

#endif
