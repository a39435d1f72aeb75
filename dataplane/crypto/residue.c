/*
 * What calls leave behind. OpenSSL, libipsec-mb and the C library wipe what they hold on purpose, not what they
 * happened to use: HKDF leaves the words of a block's key in SHA-512's frame, and copying leaves the end of a block in
 * vector registers, where it stays while the thread sleeps, for a debugger or a signal frame.
 * tests/attack/residue_main.c measures it. Must be called where nothing below is in use, which is anywhere.
 */
#include "dataplane/crypto/secret.h"

enum { DEPTH_BYTES = 12 * 1024 /* the deepest of our calls uses 6 KiB, see the test */ };

#ifdef __x86_64__
/* memcpy of the C library and AES of libipsec-mb use these. */
__attribute__((noinline, target("avx512f"))) static void clear_wide_registers(void)
{
#define CLEAR(n) "vpxorq %%zmm" #n ", %%zmm" #n ", %%zmm" #n "\n\t"
    __asm__ volatile(CLEAR(16) CLEAR(17) CLEAR(18) CLEAR(19) CLEAR(20) CLEAR(21) CLEAR(22) CLEAR(23) CLEAR(24) CLEAR(25)
                         CLEAR(26) CLEAR(27) CLEAR(28) CLEAR(29) CLEAR(30) CLEAR(31)::
                             : "memory");
#undef CLEAR
}

static void clear_registers(void)
{
    if (__builtin_cpu_supports("avx")) {
        __asm__ volatile("vzeroall" ::
                             : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
                               "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
    }
    if (__builtin_cpu_supports("avx512f")) {
        clear_wide_registers();
    }
}
#else
/* Elsewhere the stack alone is wiped. */
static void clear_registers(void)
{
}
#endif

/* Without the sanitizer's shadow, which would put the room elsewhere. */
__attribute__((noinline, no_sanitize("address"))) void kv_forget(void)
{
    uint8_t below[DEPTH_BYTES];
    kv_wipe(below, sizeof below);
    clear_registers();
}
