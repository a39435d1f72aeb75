/*
 * What happens when something that cannot be true is true. Never continues after a failed assertion, never lets one
 * contained mistake flood the log.
 */
#include "dataplane/base/check.h"

#include "dataplane/base/log.h"

#include <stdatomic.h>
#include <stdlib.h>

/* Plain tallies, read only by people: no other memory is ordered by them, so relaxed is enough. */
static _Atomic uint64_t bugs;
static _Atomic uint64_t peers;

/* Places that were logged already. A place over the table's size is logged each time: noise is better than silence. */
#define SITES_MAX 64
static _Atomic uint64_t sites[SITES_MAX];

static uint64_t site_key(const char *file, int line)
{
    uint64_t key = UINT64_C(14695981039346656037);
    for (const char *p = file; *p != '\0'; p++) {
        key = (key ^ (uint8_t)*p) * UINT64_C(1099511628211);
    }
    key = (key ^ (uint64_t)line) * UINT64_C(1099511628211);
    return key != 0 ? key : 1;
}

/* True for the first call with this place. Compare-and-swap makes one of two threads the first. */
static bool first_at(const char *file, int line)
{
    uint64_t key = site_key(file, line);
    for (unsigned i = 0; i < SITES_MAX; i++) {
        uint64_t found = 0;
        if (atomic_compare_exchange_strong_explicit(&sites[i], &found, key, memory_order_relaxed,
                                                    memory_order_relaxed)) {
            return true;
        }
        if (found == key) {
            return false;
        }
    }
    return true;
}

_Noreturn void kv_assert_failed(const char *what, const char *file, int line)
{
    kv_log(KV_LOG_ERROR, "check", "assertion_failed", KV_FT("what", what), KV_FT("file", file), KV_FI("line", line));
    abort();
}

int kv_bug_hit(const char *what, const char *file, int line)
{
    atomic_fetch_add_explicit(&bugs, 1, memory_order_relaxed);
    if (first_at(file, line)) {
        kv_log(KV_LOG_ERROR, "check", "bug", KV_FT("what", what), KV_FT("file", file), KV_FI("line", line));
    }
    return 1;
}

int kv_peer_hit(void)
{
    atomic_fetch_add_explicit(&peers, 1, memory_order_relaxed);
    return 1;
}

uint64_t kv_bug_count(void)
{
    return atomic_load_explicit(&bugs, memory_order_relaxed);
}

uint64_t kv_peer_count(void)
{
    return atomic_load_explicit(&peers, memory_order_relaxed);
}
