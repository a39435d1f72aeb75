/* Archives: whole blocks, a checksum that holds, names up to the limit. What reads them is tested in tests/http. */
#include "server/service/tar.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdlib.h>
#include <string.h>

static uint64_t sum_of(const uint8_t *header)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < 512; i++) {
        sum += i >= 148 && i < 156 ? ' ' : header[i];
    }
    return sum;
}

Test(tar, files_are_whole_blocks_with_a_header_that_adds_up)
{
    const char name[] =
        "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789";
    static const size_t lengths[] = {0, 1, 511, 512, 513};
    uint8_t content[513];
    memset(content, 'x', sizeof content);
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        struct kv_buf tar;
        kv_buf_init(&tar, 65536);
        svc_tar_file(&tar, name, UINT64_C(1796059096000001), KV_BYTES(content, lengths[i]));
        cr_assert(eq(sz, tar.len, 512 + (lengths[i] + 511) / 512 * 512));
        cr_assert(eq(u64, strtoull((char *)tar.data + 124, NULL, 8), lengths[i]));
        cr_assert(eq(u64, strtoull((char *)tar.data + 148, NULL, 8), sum_of(tar.data)));
        cr_assert(eq(int, memcmp(tar.data, name, 100), 0), "a name of 100 bytes fills its field");
        svc_tar_end(&tar);
        cr_assert(eq(int, kv_buf_check(&tar), KV_OK));
        kv_buf_done(&tar);
    }
}

Test(tar, past_the_buffers_limit_is_an_error)
{
    struct kv_buf tar;
    kv_buf_init(&tar, 1024);
    svc_tar_file(&tar, "a", 0, KV_BYTES("x", 1));
    cr_assert(eq(int, kv_buf_check(&tar), KV_OK));
    svc_tar_end(&tar);
    cr_assert(eq(int, kv_buf_check(&tar), KV_E_LIMIT));
    kv_buf_done(&tar);
}
