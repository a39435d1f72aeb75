/* The journal between its three threads, under ThreadSanitizer: a lane that appends, the journal's own, a shipper. */
#include "audit/journal.h"
#include "tests/lib/temp_folder.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>

#define RECORDS 20000u

struct shared {
    struct kv_journal *journal;
    uint64_t shipped;
    uint64_t woken;
    bool in_order;
};

static void *ship(void *arg)
{
    struct shared *shared = arg;
    static struct kv_journal_record records[256];
    uint64_t next = 1;
    while (next <= RECORDS) {
        size_t count = 0;
        kv_journal_wait(shared->journal, kv_now_ns(&kv_env_system) + 10 * KV_S_NS);
        if (kv_journal_read(shared->journal, records, 256, &count) != KV_OK || count == 0) {
            break;
        }
        for (size_t i = 0; i < count; i++, next++) {
            shared->in_order = shared->in_order && records[i].seq == next && records[i].record.bytes == next;
        }
        if (kv_journal_shipped(shared->journal, next - 1) != KV_OK) {
            break;
        }
    }
    shared->shipped = next - 1;
    return NULL;
}

static void on_wake(void *arg)
{
    __atomic_add_fetch((uint64_t *)arg, 1, __ATOMIC_RELAXED);
}

Test(journal_thread, lane_journal_and_shipper_agree)
{
    char folder[KVT_PATH_BYTES];
    struct kv_errinfo info = {.text = ""};
    struct shared shared = {.in_order = true};
    pthread_t shipper;
    kvt_folder_make(folder);
    /* Small, so that the lane meets a full journal, and the files take turns. */
    const struct kv_journal_conf conf = {
        .folder = folder, .bytes_max = 240000, .lag_max_ns = 20 * KV_S_NS, .env = &kv_env_system};
    cr_assert(eq(int, kv_journal_open(&conf, &info, &shared.journal), KV_OK), "%s", info.text);
    const struct kv_audit_sink *sink = kv_journal_sink(shared.journal);
    sink->set_wake(sink->ctx, on_wake, &shared.woken);
    cr_assert(eq(int, pthread_create(&shipper, NULL, ship, &shared), 0));
    uint64_t give_up_ns = kv_now_ns(&kv_env_system) + 120 * KV_S_NS;
    for (uint64_t i = 1; i <= RECORDS;) {
        const struct kv_transfer_record record = {.kind = KV_RECORD_OFFLOAD, .bytes = i, .outcome = KV_OK};
        struct kv_journal_stats stats;
        uint64_t seq = 0;
        if (sink->append(sink->ctx, &record, &seq) == KV_OK) {
            cr_assert(eq(u64, seq, i));
            i++;
        } else {
            sched_yield();
        }
        if (i % 1000 == 0) {
            kv_journal_stats(shared.journal, &stats);
            cr_assert(le(u64, stats.pending_bytes, 240000));
        }
        cr_assert(le(u64, sink->durable(sink->ctx), i));
        cr_assert(lt(u64, kv_now_ns(&kv_env_system), give_up_ns));
    }
    cr_assert(eq(int, kv_journal_drain(shared.journal, give_up_ns), KV_OK));
    cr_assert(eq(int, pthread_join(shipper, NULL), 0));
    cr_assert(eq(u64, shared.shipped, RECORDS));
    cr_assert(shared.in_order);
    cr_assert(gt(u64, __atomic_load_n(&shared.woken, __ATOMIC_RELAXED), 0));
    kv_journal_close(shared.journal);
    kvt_folder_remove(folder);
}
