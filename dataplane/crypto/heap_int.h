/* The heap itself, apart from OpenSSL: for heap.c and its test. Aligned to 16 bytes. Thread: any. */
#ifndef KV_CRYPTO_HEAP_INT_H
#define KV_CRYPTO_HEAP_INT_H

#include "dataplane/crypto/heap.h"

KV_RC kv_heap_open(void);          /* once; KV_E_INVALID_STATE the second time */
void *kv_heap_alloc(size_t bytes); /* zeroed; NULL: nothing left, or 0 bytes */
void kv_heap_free(
    void *memory); /* wipes; NULL is fine; what is no allocation, or was written past, stops the program */
void *kv_heap_resize(void *memory, size_t bytes); /* as realloc(3); 0 bytes frees */
size_t kv_heap_room(const void *memory);          /* how many bytes there are from `memory` on */
/* Whether an allocation of this thread was refused since this was last asked. */
bool kv_heap_refused(void);

#endif
