/*
 * Three severities of wrong. KV_ASSERT: our state is corrupt, stop (always on). KV_BUG: our contained mistake: count,
 * log once, fail the request. KV_PEER: the other side's fault: count and answer. Bad input is never an assert.
 */
#ifndef KV_BASE_CHECK_H
#define KV_BASE_CHECK_H

#include <stdint.h>

#define KV_ASSERT(cond)                                  \
    do {                                                 \
        if (__builtin_expect(!(cond), 0)) {              \
            kv_assert_failed(#cond, __FILE__, __LINE__); \
        }                                                \
    } while (0)

/* True when the mistake happened, so that the caller can leave: if (KV_BUG(x == NULL)) return KV_E_INTERNAL; */
#define KV_BUG(cond) (__builtin_expect(!!(cond), 0) && kv_bug_hit(#cond, __FILE__, __LINE__))
#define KV_PEER(cond) (__builtin_expect(!!(cond), 0) && kv_peer_hit())

_Noreturn void kv_assert_failed(const char *what, const char *file, int line);
int kv_bug_hit(const char *what, const char *file, int line); /* returns 1 */
int kv_peer_hit(void);                                        /* returns 1 */
uint64_t kv_bug_count(void);                                  /* for the `should never happen` metric */
uint64_t kv_peer_count(void);

#endif
