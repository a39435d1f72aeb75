/*
 * Writes a tar archive (POSIX.1-1988 ustar) into a buffer: regular files of mode 0644, owned by nobody, at one time.
 * The same files give the same bytes.
 */
#ifndef KV_SERVICE_TAR_H
#define KV_SERVICE_TAR_H

#include "dataplane/base/buf.h"

/* `name` is relative, at most 100 bytes. Failures stay in the buffer: kv_buf_check at the end. */
void svc_tar_file(struct kv_buf *tar, const char *name, uint64_t mtime_us, struct kv_bytes content);
/* What marks the end. */
void svc_tar_end(struct kv_buf *tar);

#endif
