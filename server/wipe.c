/*
 * See wipe.h. The program's own free() and realloc() come before the C library's, for its libraries and for the C
 * library's inside, too; what they wrap is the C library's, so all that is not defined here goes on as before. Its own
 * M_PERTURB is no such thing: it leaves out what the cache of a thread takes back. Must never touch memory after it was
 * given back, or change what a caller sees of either function.
 */
#include "server/wipe.h"

#include "dataplane/base/fault.h"

#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#ifdef __has_feature
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define ALLOCATOR_IS_THE_SANITIZERS
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ALLOCATOR_IS_THE_SANITIZERS
#endif

#ifdef ALLOCATOR_IS_THE_SANITIZERS
bool kv_wipe_freed_start(void)
{
    return false;
}
#else
/* The C library's, by the names under which it keeps them for who puts others in front. */
extern void __libc_free(void *p);

static atomic_bool leaves_them; /* for a test, which is to find what is left then */

bool kv_wipe_freed_start(void)
{
    bool off = KV_FAULT("server/no-wipe");
    atomic_store(&leaves_them, off);
    return !off;
}

void free(void *p)
{
    if (p != NULL && !atomic_load_explicit(&leaves_them, memory_order_relaxed)) {
        explicit_bzero(p, malloc_usable_size(p));
    }
    __libc_free(p);
}

/* What moves is copied here, so that the old place passes the above; what gets a little smaller stays, without its end.
 */
void *realloc(void *p, size_t size)
{
    if (p == NULL) {
        return malloc(size);
    }
    if (size == 0) {
        free(p);
        return NULL;
    }
    size_t old = malloc_usable_size(p);
    if (size <= old && size >= old / 2) {
        memset((char *)p + size, 0, old - size);
        return p;
    }
    void *moved = malloc(size);
    if (moved != NULL) {
        memcpy(moved, p, size < old ? size : old);
        free(p);
    }
    return moved;
}
#endif
