/*
 * Inside of the io_uring backend: which parts of the dram arena the ring knows. Registered memory saves the kernel
 * looking up its pages for each transfer; but registering makes it touch all of it and lock it, seconds for gigabytes.
 * So a piece is registered only when as many bytes as it has went through it, and most of it is there anyway: a start
 * does not wait, and what is never used is never locked. Thread: the ring's.
 */
#ifndef KV_IO_URING_INT_H
#define KV_IO_URING_INT_H

#include "dataplane/io/io_int.h"

#include <liburing.h>

struct kv_io_pieces {
    const uint8_t *arena; /* NULL: nothing is registered, and nothing will be */
    uint64_t arena_bytes, piece_bytes;
    uint64_t *moved; /* owned; by piece: bytes so far, UINT64_MAX once it is registered */
};

/* Makes room in the ring for the pieces of conf->fixed. Without that, and without an arena, all memory is as any. */
void kv_io_pieces_open(struct kv_io_pieces *pieces, struct io_uring *ring, const struct kv_io_conf *conf);
void kv_io_pieces_close(struct kv_io_pieces *pieces);
/* The registered buffer that a transfer lies in, or -1. Counts it, and may register. */
int kv_io_pieces_index(struct kv_io_pieces *pieces, struct io_uring *ring, const uint8_t *data, uint64_t len);

#endif
