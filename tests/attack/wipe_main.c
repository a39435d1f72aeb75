/* kvrun-wipe: what the program's own free() and realloc() do (server/wipe.c), to the limit and one past it. 77: a
 * sanitizer's allocator is in their place. */
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/wipe.h"

enum { MARK = 0x5a, LINKS = 16 /* what the allocator keeps in a place that is free */, LARGE = 1 << 20 };

static int failures;

static void check(int holds, const char *what, size_t size)
{
    if (!holds) {
        fprintf(stderr, "%s, %zu bytes\n", what, size);
        failures++;
    }
}

/* Read as what it is to a debugger: bytes somewhere. */
static size_t marks(uintptr_t at, size_t size)
{
    size_t found = 0;
    for (size_t i = LINKS; i < size; i++) {
        found += ((const volatile uint8_t *)at)[i] == MARK;
    }
    return found;
}

static uint8_t *filled(size_t size)
{
    uint8_t *p = malloc(size);
    memset(p, MARK, size);
    return p;
}

static int holds(const uint8_t *p, size_t size)
{
    size_t i = 0;
    while (i < size && p[i] == MARK) {
        i++;
    }
    return i == size;
}

static void frees(size_t size)
{
    uint8_t *p = filled(size), *guard = malloc(32); /* so that the place does not become the heap's end */
    uintptr_t at = (uintptr_t)p;
    check(marks(at, size) + LINKS == size, "control: they are there before", size);
    errno = EAGAIN;
    free(p);
    check(errno == EAGAIN, "free leaves errno alone", size);
    check(marks(at, size) == 0, "freed and left as it was", size);
    free(guard);
}

static void resizes(size_t size)
{
    uint8_t *p = filled(size), *guard = malloc(32);
    size_t usable = malloc_usable_size(p);
    uintptr_t at = (uintptr_t)p;
    p = realloc(p, usable);
    check((uintptr_t)p == at && holds(p, size), "what fits stays", size);
    p = realloc(p, usable + 1);
    check((uintptr_t)p != at && holds(p, size), "one more moves, with all that is in it", size);
    check(marks(at, size) == 0, "moved away and left there", size);
    memset(p, MARK, usable + 1);
    at = (uintptr_t)p;
    p = realloc(p, size / 2 + LINKS);
    check(holds(p, size / 2 + LINKS) && marks(at + size / 2 + LINKS, size / 2 - 2 * LINKS) == 0,
          "the end that went is wiped", size);
    p = realloc(p, LINKS);
    check(holds(p, LINKS), "smaller by far keeps what fits", size);
    p = realloc(p, 0);
    check(p == NULL, "of nothing is a free", size);
    free(guard);
}

int main(void)
{
    if (!kv_wipe_freed_start()) {
        return 77;
    }
    /* Around what a thread's cache takes, and far past the fast lists. */
    for (size_t size = 64; size <= 100 * 1024; size = size * 5 / 4) {
        frees(size);
        resizes(size);
    }
    uint8_t *large = filled(LARGE); /* a mapping of its own, which ends with it */
    large = realloc(large, 2 * LARGE);
    check(holds(large, LARGE), "moved with all that is in it", LARGE);
    free(large);
    free(NULL);
    void *volatile none = NULL;
    uint8_t *first = realloc(none, 64);
    check(first != NULL, "of NULL is a malloc", 64);
    volatile size_t too_much = SIZE_MAX / 2;
    memset(first, MARK, 64);
    check(realloc(first, too_much) == NULL && holds(first, 64), "what cannot be had leaves all as it was", 64);
    free(first);
    printf("%d failures\n", failures);
    return failures != 0;
}
