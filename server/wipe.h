/*
 * Memory of the C library's allocator is wiped when it is freed, whoever freed it: requests and their API keys pass
 * through buffers of libmicrohttpd, jansson, libpq, libcurl, GnuTLS and the C library itself, none of which wipes them.
 */
#ifndef KV_SERVER_WIPE_H
#define KV_SERVER_WIPE_H

#include <stdbool.h>

/* Whether it is so: from the first allocation on, but not in a sanitizer's build, whose allocator is not ours to wrap,
 * and not with the fault point "server/no-wipe", once kv_wipe_freed_start has looked at it. */
bool kv_wipe_freed_start(void);

#endif
