/* The journal's inside: its files (journal_file.c), its thread (journal_thread.c), its face (journal.c). */
#ifndef KV_AUDIT_JOURNAL_INT_H
#define KV_AUDIT_JOURNAL_INT_H

#include "audit/journal.h"
#include "dataplane/base/bytes.h"

#include <pthread.h>
#include <sys/types.h>

#define KV_JOURNAL_PAGE 4096u
#define KV_JOURNAL_RECORD_BYTES 136u
#define KV_JOURNAL_OLD_RECORD_BYTES 120u /* of files that go back to before policies were recorded */
#define KV_JOURNAL_GROUP_HEADER_BYTES 48u
#define KV_JOURNAL_GROUP_BYTES_MAX 65536u
#define KV_JOURNAL_GROUP_RECORDS_MAX \
    ((KV_JOURNAL_GROUP_BYTES_MAX - KV_JOURNAL_GROUP_HEADER_BYTES) / KV_JOURNAL_RECORD_BYTES)

/* One of the two files. Its records are [base_seq, end_seq). */
struct kv_journal_file {
    int fd;
    bool in_use; /* has a valid header: holds, or may get, records */
    dev_t device;
    ino_t inode;
    uint64_t generation;
    uint64_t base_seq, end_seq;
    uint64_t size; /* where the next group goes */
};

/* Files and their shared position. Thread: the opener, then the journal's thread alone. */
struct kv_journal_files {
    int folder_fd; /* holds the lock */
    struct kv_journal_file file[2];
    unsigned current;
    uint64_t reserved_bytes;  /* of each file, written before they are needed */
    uint64_t shipped_on_disk; /* the highest shipped position that a header or group states */
    bool unsettled; /* a group was begun and not finished: it has to be written again before files take turns */
    uint8_t *group; /* owned, KV_JOURNAL_GROUP_BYTES_MAX: one group being written or read */
};

void kv_journal_record_encode(const struct kv_journal_record *record, uint8_t target[KV_JOURNAL_RECORD_BYTES]);
KV_RC kv_journal_record_decode(const uint8_t source[KV_JOURNAL_RECORD_BYTES], struct kv_journal_record *ret_record);

/* Opens folder and files, or makes them, and finds what they hold. Afterwards nothing invalid lies behind the last
 * group, and each file has `reserved_bytes`, where the disk has them. */
KV_RC kv_journal_files_open(const char *folder, uint64_t reserved_bytes, struct kv_errinfo *info,
                            struct kv_journal_files *ret_files);
void kv_journal_files_close(struct kv_journal_files *files);
/* Tells `on_record` of every record above the shipped position, oldest first. */
KV_RC kv_journal_files_replay(struct kv_journal_files *files, KV_RC (*on_record)(void *ctx, const uint8_t *record),
                              void *ctx);
uint64_t kv_journal_files_end(const struct kv_journal_files *files); /* the next record's number */
/* Writes `count` encoded records (they lie at files->group + header) as one group and syncs it. Nothing moves on
 * failure. */
KV_RC kv_journal_files_write(struct kv_journal_files *files, size_t count, uint64_t shipped);
/* False when a file was deleted or replaced underneath. */
bool kv_journal_files_alive(const struct kv_journal_files *files);
/* Gives the older file back once its records are all shipped; begins it anew when the current one has `switch_bytes`.
 * Uses files->group. After a failure nothing may be written until it was called again with success. */
KV_RC kv_journal_files_turn(struct kv_journal_files *files, uint64_t shipped, uint64_t switch_bytes);
uint64_t kv_journal_files_bytes(const struct kv_journal_files *files);

struct kv_journal {
    struct kv_audit_sink sink;
    struct kv_journal_conf conf;
    struct kv_journal_files files; /* the thread's, while it runs */
    uint64_t switch_bytes;
    pthread_t thread;
    bool thread_runs;

    /* All below under `mutex`, which is never held across a system call that waits. */
    pthread_mutex_t mutex;
    pthread_cond_t work;     /* to the thread: records, room to give back, the end */
    pthread_cond_t progress; /* to waiters: durable or shipped moved */
    uint8_t *ring;           /* owned; capacity records, slot seq % capacity */
    uint64_t *appended_ns;   /* owned; when each of them came */
    uint64_t capacity;
    uint64_t opened_seq;  /* the last number before this process */
    uint64_t last_seq;    /* appended */
    uint64_t durable_seq; /* on stable storage */
    uint64_t shipped_seq; /* in the database */
    uint64_t disk_bytes, refused, appended;
    bool failing; /* the last write failed; tried again */
    bool gone;    /* a file was deleted; until the next open */
    bool stopping;
    void (*wake)(void *arg);
    void *wake_arg;
    bool waking; /* a call of `wake` runs right now, without the mutex */
};

/* The thread's body; `arg` is the journal. */
void *kv_journal_thread(void *arg);
/* Waits on `cond` until `deadline_ns` of the journal's clock, or a tenth of a second, whichever is first. The mutex is
 * held. */
void kv_journal_cond_wait(struct kv_journal *journal, pthread_cond_t *cond, uint64_t deadline_ns);

#endif
