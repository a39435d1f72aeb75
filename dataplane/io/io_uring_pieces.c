/* See io_uring_int.h. A piece that cannot be registered costs speed, and is said once. */
#include "dataplane/io/io_uring_int.h"

#include "dataplane/base/check.h"
#include "dataplane/base/log.h"
#include "dataplane/base/mem.h"

#define PIECE_BYTES_MAX (UINT64_C(1) << 30) /* the kernel's limit for one registered buffer */
#define PIECES_MAX 16384u                   /* and for their number */
#define REGISTERED UINT64_MAX

static void give_up(struct kv_io_pieces *pieces, int rc)
{
    kv_log(KV_LOG_WARN, "io",
           "host memory of the dram arena cannot be locked for the ring, going on without; raise the memlock limit",
           KV_FU("bytes", pieces->arena_bytes), KV_FI("errno", -rc));
    pieces->arena = NULL;
}

static uint64_t choose_piece_bytes(const struct kv_io_conf *conf)
{
    uint64_t asked = conf->fixed_piece_bytes;
    return asked == 0 || asked > PIECE_BYTES_MAX ? PIECE_BYTES_MAX : asked;
}

void kv_io_pieces_open(struct kv_io_pieces *pieces, struct io_uring *ring, const struct kv_io_conf *conf)
{
    *pieces = (struct kv_io_pieces){.arena = NULL};
    if (conf->fixed == NULL || conf->fixed_bytes == 0) {
        return;
    }
    pieces->arena_bytes = conf->fixed_bytes;
    pieces->piece_bytes = choose_piece_bytes(conf);
    uint64_t count = (conf->fixed_bytes + pieces->piece_bytes - 1) / pieces->piece_bytes;
    pieces->moved = count <= PIECES_MAX ? kv_alloc_array((size_t)count, sizeof *pieces->moved) : NULL;
    int rc = pieces->moved != NULL ? io_uring_register_buffers_sparse(ring, (unsigned)count) : -E2BIG;
    if (rc != 0) {
        give_up(pieces, rc);
        return;
    }
    pieces->arena = conf->fixed;
}

void kv_io_pieces_close(struct kv_io_pieces *pieces)
{
    kv_free(pieces->moved);
    *pieces = (struct kv_io_pieces){.arena = NULL};
}

static void register_piece(struct kv_io_pieces *pieces, struct io_uring *ring, uint64_t index)
{
    uint64_t at = index * pieces->piece_bytes, left = pieces->arena_bytes - at;
    const struct iovec piece = {.iov_base = (void *)(uintptr_t)(pieces->arena + at),
                                .iov_len = (size_t)(left < pieces->piece_bytes ? left : pieces->piece_bytes)};
    const __u64 no_tag = 0;
    int rc = io_uring_register_buffers_update_tag(ring, (unsigned)index, &piece, &no_tag, 1);
    if (rc != 1) {
        give_up(pieces, rc < 0 ? rc : -EIO);
        return;
    }
    pieces->moved[index] = REGISTERED;
}

int kv_io_pieces_index(struct kv_io_pieces *pieces, struct io_uring *ring, const uint8_t *data, uint64_t len)
{
    uintptr_t start = (uintptr_t)pieces->arena, at = (uintptr_t)data;
    if (pieces->arena == NULL || len == 0 || at < start || at - start >= pieces->arena_bytes ||
        len > pieces->arena_bytes - (at - start)) {
        return -1;
    }
    uint64_t first = (at - start) / pieces->piece_bytes;
    uint64_t last = (at - start + len - 1) / pieces->piece_bytes;
    if (first != last) {
        return -1;
    }
    if (pieces->moved[first] != REGISTERED && pieces->moved[first] >= pieces->piece_bytes) {
        register_piece(pieces, ring, first);
    }
    if (pieces->arena == NULL) {
        return -1;
    }
    if (pieces->moved[first] == REGISTERED) {
        return (int)first;
    }
    pieces->moved[first] += len;
    return -1;
}
