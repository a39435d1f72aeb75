/*
 * The offline reader of an nvme folder; see nvme_read.h. It must never write or create anything.
 */
#include "dataplane/tier/nvme_read.h"
#include "dataplane/tier/nvme_load_int.h"

#include <fcntl.h>
#include <unistd.h>

#define TRIES 3 /* a server that runs may replace the checkpoint between two reads */

static KV_RC load(int folder_fd, struct kv_nvme_image *ret_image)
{
    struct kv_nvme_superblock superblock;
    KV_TRY(kv_nvme_superblock_read(folder_fd, NULL, &superblock));
    enum kv_err rc = KV_E_CORRUPT;
    for (unsigned i = 0; i < TRIES && rc == KV_E_CORRUPT; i++) {
        rc = kv_nvme_image_load(folder_fd, &superblock, NULL, ret_image);
    }
    return rc;
}

KV_RC kv_nvme_walk(const char *folder, kv_nvme_walk_fn *fn, void *ctx)
{
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return KV_E_MISSING;
    }
    struct kv_nvme_image image = {0};
    enum kv_err rc = load(fd, &image);
    close(fd);
    for (size_t i = 0; i < image.count; i++) {
        const struct kv_nvme_record *record = &image.records[i];
        fn(ctx, &record->key, record->offset, record->bytes, record->promised);
    }
    kv_nvme_image_done(&image);
    return rc;
}
