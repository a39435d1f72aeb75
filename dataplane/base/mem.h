/*
 * The only malloc. Sizes go through checked arithmetic; every allocation is a fault point ("base/mem"). A thread that
 * must not allocate (a lane after its start) says so, and a debug build stops when it does.
 * Not for secrets: those live in crypto/secret.h.
 */
#ifndef KV_BASE_MEM_H
#define KV_BASE_MEM_H

#include "dataplane/base/err.h"

#include <stddef.h>

/* Zeroed memory, owned by the caller; NULL when there is none (or the product overflows). */
void *kv_alloc(size_t size);
void *kv_alloc_array(size_t count, size_t size);
void *kv_alloc_aligned(size_t alignment, size_t size); /* freed with kv_free, too */
/* `p` stays valid and owned when it returns NULL. */
void *kv_realloc_array(void *p, size_t count, size_t size);
char *kv_strdup(const char *s);
void kv_free(void *p);   /* NULL is fine */
void kv_freep(void *pp); /* for KV_CLEANUP: takes the address of a pointer */

bool kv_mul_size(size_t a, size_t b, size_t *ret_product); /* false on overflow */
bool kv_add_size(size_t a, size_t b, size_t *ret_sum);

/* From now on this thread must not allocate (asserted in debug builds). */
void kv_mem_forbid(bool forbid);

#endif
