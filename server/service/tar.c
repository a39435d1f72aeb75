/*
 * See tar.h. Must never write a header that says another length than what follows it.
 */
#include "server/service/tar.h"

#include "dataplane/base/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define BLOCK 512u
#define NAME_MAX_BYTES 100u
#define CHECKSUM_AT 148u

static const char zeroes[BLOCK];

static void put(uint8_t *header, size_t at, const char *text)
{
    memcpy(header + at, text, strlen(text));
}

static void put_octal(uint8_t *header, size_t at, unsigned digits, uint64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%0*" PRIo64, (int)digits, value);
    put(header, at, text);
}

void svc_tar_file(struct kv_buf *tar, const char *name, uint64_t mtime_us, struct kv_bytes content)
{
    uint8_t header[BLOCK] = {0};
    KV_ASSERT(strlen(name) <= NAME_MAX_BYTES);
    put(header, 0, name);
    put(header, 100, "0000644");
    put(header, 108, "0000000");
    put(header, 116, "0000000");
    put_octal(header, 124, 11, content.len);
    put_octal(header, 136, 11, mtime_us / UINT64_C(1000000));
    put(header, CHECKSUM_AT, "        "); /* counts as blanks */
    put(header, 156, "0");
    put(header, 257, "ustar");
    put(header, 263, "00");
    uint64_t sum = 0;
    for (size_t i = 0; i < sizeof header; i++) {
        sum += header[i];
    }
    put_octal(header, CHECKSUM_AT, 6, sum);
    header[CHECKSUM_AT + 6] = '\0';
    kv_buf_append(tar, header, sizeof header);
    kv_buf_append(tar, content.data, content.len);
    kv_buf_append(tar, zeroes, (BLOCK - content.len % BLOCK) % BLOCK);
}

void svc_tar_end(struct kv_buf *tar)
{
    kv_buf_append(tar, zeroes, sizeof zeroes);
    kv_buf_append(tar, zeroes, sizeof zeroes);
}
