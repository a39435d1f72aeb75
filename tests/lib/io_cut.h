/*
 * An I/O backend for one thread that knows what a power cut leaves. It performs requests on the real files, in random
 * order, and keeps for each file what a flush has made durable and what is only written. An image of a folder as a cut
 * may leave it can be made at any time: durable bytes, plus any 512-byte sectors of what was not flushed, under the
 * names of now or of the last flush of the folder. It can fail requests as drives do: a write may get through in part,
 * and a failed flush forgets what it did not write.
 */
#ifndef KV_TESTS_IO_CUT_H
#define KV_TESTS_IO_CUT_H

#include "dataplane/io/io.h"

struct kvt_cut_conf {
    uint64_t seed;
    unsigned fail_one_in; /* requests; 0: never */
};

KV_RC kvt_cut_open(const struct kvt_cut_conf *conf, struct kv_io **ret_io);
void kvt_cut_set_failures(struct kv_io *io, unsigned fail_one_in);
/* The folder's names as they are now were flushed by other means than this backend. */
void kvt_cut_names_are_durable(struct kv_io *io, const char *folder);
/* Fills `target`, which exists and is empty, with what a cut now may leave of `folder`. */
void kvt_cut_image(struct kv_io *io, const char *folder, const char *target);
uint64_t kvt_cut_random(struct kv_io *io, uint64_t below);

#endif
