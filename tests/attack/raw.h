/*
 * Sealed nodes and wrapped roots found by their form, in bytes of any kind: heap and TOAST files of a database, its
 * write-ahead log, an image of memory. No row has to be valid any more, and no page has to be whole.
 *
 * An envelope names what it is of (tree, level, index, node id, cluster), so nothing else is needed. Of PostgreSQL this
 * knows: values that do not fit a row lie in TOAST chunks of TOAST_CHUNK bytes (8 KiB pages), each behind its value's
 * number and its own, in the byte order of the machine; the log interrupts its records with a header on each page of
 * 8 KiB. It does not see through compression: sealed bytes do not compress, and wal_compression, which squeezes images
 * of whole pages, has to be off, as it is by default.
 */
#ifndef KV_ATTACK_RAW_H
#define KV_ATTACK_RAW_H

#include "tests/attack/loot.h"

struct raw_tally {
    uint64_t bytes;
    size_t files, wal_files;
};

struct carver;

/* Keeps halves of values until raw_done, which puts together what belongs together, wherever it was found. */
KV_RC raw_new(struct loot *loot, struct carver **ret_carver);
/* A file, or a folder with all that is in it. KV_E_MISSING, KV_E_IO. */
KV_RC raw_add(struct carver *carver, const char *path);
struct raw_tally raw_done(struct carver *carver); /* and frees it */

#endif
