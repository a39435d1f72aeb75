/*
 * The medium of the file provider: one open, locked file, read and written a slot at a time through one locked buffer.
 * It knows pages and durability, not the state diagram. Key bytes stand in the buffer only between a read (or a build)
 * and kv_medium_forget.
 */
#ifndef KV_KEYS_ROE_FILE_INT_H
#define KV_KEYS_ROE_FILE_INT_H

#include "dataplane/keys/roe.h"
#include "dataplane/keys/roe_file_format.h"

struct kv_medium {
    const struct kv_env *env; /* borrowed */
    char *path;               /* owned */
    int fd;                   /* owned; holds the exclusive lock */
    bool direct;              /* reads and writes pass the page cache by */
    uint8_t *buffer;          /* owned, locked, KV_ROE_HEADER_BYTES; the page of the last read or build */
};

/* Opens, or creates, and checks everything about the file that must hold before a key is written into it. */
KV_RC kv_medium_open(const struct kv_roe_conf *conf, struct kv_errinfo *info, struct kv_medium *ret_medium);
void kv_medium_close(struct kv_medium *medium);
/* KV_E_FOREIGN_FILE when the path no longer leads to the open file: a key destroyed here might live on there. */
KV_RC kv_medium_check_path(const struct kv_medium *medium);
KV_RC kv_medium_read_slot(struct kv_medium *medium, unsigned slot);        /* into the buffer */
KV_RC kv_medium_write_slot(const struct kv_medium *medium, unsigned slot); /* from the buffer; durable */
/* Random bytes, then zeroes, each durable; then reads the slot again and compares. */
KV_RC kv_medium_destroy_slot(struct kv_medium *medium, unsigned slot);
void kv_medium_forget(struct kv_medium *medium); /* wipes the buffer */

/* Page-sized positioned I/O, whole or KV_E_IO. */
KV_RC kv_medium_read_at(int fd, uint8_t *target, size_t len, uint64_t offset);
KV_RC kv_medium_write_at(int fd, const uint8_t *source, size_t len, uint64_t offset);

#ifdef KV_FAULTS
/* The file provider for several processes of one machine at once: what a test of several instances runs on. */
extern const struct kv_roe_ops kv_roe_file_shared;
int kv_roe_file_fd(const struct kv_roe *roe);
#endif

#endif
