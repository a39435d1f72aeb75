/*
 * A page of a list: items in the order of (created_at, id), from behind the last one that the caller saw. Reads ask for
 * one item more than fits, so that nobody has to count.
 */
#ifndef KV_STORE_PAGE_H
#define KV_STORE_PAGE_H

#include "dataplane/base/err.h"

struct kv_page {
    unsigned limit; /* 1 to KV_MAX_PAGE_ITEMS */
    bool ascending; /* else the newest come first */
    bool has_after;
    uint64_t after_us; /* microseconds, as in the database: a coarser time would lose what lies between */
    struct kv_id after;
    bool more; /* out: there is another page */
};

#endif
