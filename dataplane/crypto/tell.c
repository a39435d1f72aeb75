/* See tell.h. Never part of a build that serves, and leaves no copy of the key's text behind. */
#include "dataplane/crypto/tell.h"

#ifdef KV_FAULTS

#include "dataplane/base/check.h"
#include "dataplane/crypto/secret.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PART_BYTES_MAX = 64 };

void kv_tell_key(const char *what, struct kv_bytes owner, struct kv_bytes key)
{
    char line[32 + 4 * PART_BYTES_MAX + 4];
    const char *path = getenv("KVRUN_TELL_KEYS");
    size_t len = strlen(what);
    if (path == NULL) {
        return;
    }
    KV_ASSERT(len < 32 && owner.len <= PART_BYTES_MAX && key.len <= PART_BYTES_MAX);
    memcpy(line, what, len);
    line[len++] = ' ';
    kv_hex_encode(owner.data, owner.len, line + len);
    len += 2 * owner.len;
    line[len++] = ' ';
    kv_hex_encode(key.data, key.len, line + len);
    len += 2 * key.len;
    line[len++] = '\n';
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    KV_ASSERT(fd >= 0 && write(fd, line, len) == (ssize_t)len);
    close(fd);
    kv_wipe(line, sizeof line);
}

#else

/* ISO C has no empty translation unit. */
typedef int kv_keys_are_not_told;

#endif
