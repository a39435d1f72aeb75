/* Offsets and steps that writing and reading of the journal's files share. */
#ifndef KV_AUDIT_JOURNAL_FILE_INT_H
#define KV_AUDIT_JOURNAL_FILE_INT_H

#include "audit/journal_int.h"
#include "dataplane/base/mem.h"

#include <fcntl.h>

#define KV_JOURNAL_FILE_MAGIC 0x4b564a46u  /* "KVJF" */
#define KV_JOURNAL_GROUP_MAGIC 0x4b564a47u /* "KVJG" */
#define KV_JOURNAL_VERSION 1u
#define KV_JOURNAL_FILE_HEADER_CRC_AT 32u
#define KV_JOURNAL_GROUP_CRC_AT 4u
#define KV_JOURNAL_GROUP_CRC_FROM 8u

extern const char *const kv_journal_file_names[2];

/* Bytes that a group with so many bytes of records takes, up to the next page. */
uint64_t kv_journal_group_span(size_t payload);
/* Writes zeroes to [from, to) and syncs them. Uses files->group. */
KV_RC kv_journal_file_zero(struct kv_journal_files *files, const struct kv_journal_file *file, uint64_t from,
                           uint64_t to);
/* Gives file `which` a header with the next generation and makes it the current one. What lies behind the header is of
 * earlier generations. */
KV_RC kv_journal_file_begin(struct kv_journal_files *files, unsigned which, uint64_t base_seq, uint64_t shipped);

#endif
