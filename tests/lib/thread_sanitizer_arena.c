/*
 * Lets Criterion start under ThreadSanitizer. Criterion keeps its shared arena at a random fixed address, asking rand_r
 * for it, and ThreadSanitizer gives the program only parts of the address space: most draws end the run before the
 * first test. Here rand_r draws from the part below position-independent executables, which is always free. Empty in
 * other builds, and never part of the product.
 */
#include <stdlib.h>

#if defined(__SANITIZE_THREAD__)
#define UNDER_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define UNDER_THREAD_SANITIZER 1
#endif
#endif

#ifdef UNDER_THREAD_SANITIZER

/* In steps of 16 MiB above 0x2000'0000'0000: from 0x5500'0000'0000 to 0x5550'0000'0000. */
#define STEP_FIRST 0x350000u
#define STEP_COUNT 0x5000u

int rand_r(unsigned *seed)
{
    *seed = *seed * 1103515245u + 12345u;
    return (int)(STEP_FIRST + (*seed >> 8) % STEP_COUNT);
}

#else

typedef int kv_no_thread_sanitizer;

#endif
