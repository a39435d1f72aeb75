#include "tests/lib/nvme_damage.h"

#include "tests/lib/temp_folder.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STEP 4096

static int open_arena(const char *folder)
{
    char path[KVT_PATH_BYTES];
    kvt_path_join(path, folder, "arena");
    return open(path, O_RDWR | O_CLOEXEC);
}

/* Offset of the block's header, or -1. */
static off_t find(int fd, const struct kv_block_id *block)
{
    uint8_t head[72];
    for (off_t at = 0; pread(fd, head, sizeof head, at) == (ssize_t)sizeof head; at += STEP) {
        if (memcmp(head, "KVR1", 4) == 0 && memcmp(head + 40, block, sizeof *block) == 0) {
            return at;
        }
    }
    return -1;
}

bool kvt_nvme_has(const char *folder, const struct kv_block_id *block)
{
    int fd = open_arena(folder);
    bool has = fd >= 0 && find(fd, block) >= 0;
    close(fd);
    return has;
}

bool kvt_nvme_flip(const char *folder, const struct kv_block_id *block, uint64_t at)
{
    uint8_t byte = 0;
    int fd = open_arena(folder);
    off_t offset = fd >= 0 ? find(fd, block) : -1;
    bool good = offset >= 0 && pread(fd, &byte, 1, offset + (off_t)at) == 1;
    byte ^= 0x80; /* a block id that was flipped is then none of the small ones that tests use */
    good = good && pwrite(fd, &byte, 1, offset + (off_t)at) == 1 && fsync(fd) == 0;
    close(fd);
    return good;
}

bool kvt_nvme_swap_in(const char *folder, const struct kv_block_id *from, const struct kv_block_id *to, uint64_t bytes)
{
    uint8_t *copy = malloc(bytes);
    int fd = open_arena(folder);
    off_t source = fd >= 0 ? find(fd, from) : -1;
    off_t target = fd >= 0 ? find(fd, to) : -1;
    bool good = copy != NULL && source >= 0 && target >= 0 && pread(fd, copy, bytes, source) == (ssize_t)bytes &&
                pwrite(fd, copy, bytes, target) == (ssize_t)bytes && fsync(fd) == 0;
    close(fd);
    free(copy);
    return good;
}
