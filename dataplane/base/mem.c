/*
 * The only file that calls the C library's allocator. Never hands out memory that was not zeroed by kv_alloc, never
 * multiplies a size without checking, never holds a secret.
 */
#include "dataplane/base/mem.h"

#include "dataplane/base/check.h"
#include "dataplane/base/fault.h"

#include <stdlib.h>
#include <string.h>

static _Thread_local bool forbidden;

/* True when this allocation has to fail. Every way in passes here, so that a test can fail the Nth allocation. */
static bool refused(void)
{
#ifndef NDEBUG
    KV_ASSERT(!forbidden);
#endif
    return KV_FAULT("base/mem");
}

bool kv_mul_size(size_t a, size_t b, size_t *ret_product)
{
    size_t product;
    if (__builtin_mul_overflow(a, b, &product)) {
        return false;
    }
    *ret_product = product;
    return true;
}

bool kv_add_size(size_t a, size_t b, size_t *ret_sum)
{
    size_t sum;
    if (__builtin_add_overflow(a, b, &sum)) {
        return false;
    }
    *ret_sum = sum;
    return true;
}

void *kv_alloc(size_t size)
{
    return kv_alloc_array(1, size);
}

void *kv_alloc_array(size_t count, size_t size)
{
    size_t total;
    if (refused() || !kv_mul_size(count, size, &total)) {
        return NULL;
    }
    /* calloc(0) may return NULL, which would read as out of memory. */
    return calloc(1, total != 0 ? total : 1);
}

void *kv_alloc_aligned(size_t alignment, size_t size)
{
    KV_ASSERT(alignment >= sizeof(void *) && (alignment & (alignment - 1)) == 0);
    void *p = NULL;
    if (refused() || posix_memalign(&p, alignment, size != 0 ? size : 1) != 0) {
        return NULL;
    }
    memset(p, 0, size);
    return p;
}

void *kv_realloc_array(void *p, size_t count, size_t size)
{
    size_t total;
    if (refused() || !kv_mul_size(count, size, &total)) {
        return NULL;
    }
    /* realloc(p, 0) may free p, which would break "p stays valid". */
    return realloc(p, total != 0 ? total : 1);
}

char *kv_strdup(const char *s)
{
    size_t size = strlen(s) + 1;
    char *copy = kv_alloc(size);
    if (copy != NULL) {
        memcpy(copy, s, size);
    }
    return copy;
}

void kv_free(void *p)
{
    free(p);
}

void kv_freep(void *pp)
{
    /* A pointer to any pointer type comes in; copying it out keeps the access free of type punning. */
    void *p;
    memcpy(&p, pp, sizeof(p));
    kv_free(p);
    p = NULL;
    memcpy(pp, &p, sizeof(p));
}

void kv_mem_forbid(bool forbid)
{
    forbidden = forbid;
}
