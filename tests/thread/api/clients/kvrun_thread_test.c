/* libkvrun from several threads at once, while connections are cut and the heartbeat finds the server again. */
#include "tests/clients/client_rig.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

TestSuite(kvrun_threads, .init = rig_open, .fini = rig_close);

enum { THREADS = 4, CALLS = 200 };

/* Fits whatever is asked: a beat, a pool, a lookup, a transfer. */
#define ANYTHING                                                                                  \
    "{\"id\":\"poo_1\",\"revocations\":[],\"operation_id\":\"opr_1\",\"results\":[\"restored\"]," \
    "\"tiers\":[\"dram\"],\"prefix_blocks\":1,\"contiguous_blocks\":1}"

static uint32_t pool;
static atomic_uint failures, wrong;

static void one_call(unsigned number, struct kvrun_blocks *in)
{
    struct kvrun_error error;
    struct kvrun_block block;
    struct kvrun_moved moved;
    struct kvrun_found found;
    struct kvrun_stats stats;
    bool fine = number % 3 == 0   ? kvrun_lookup(rig_client, in, &block, &found, &error)
                : number % 3 == 1 ? kvrun_restore(rig_client, in, &block, &moved, &error)
                                  : kvrun_offload(rig_client, in, &block, &moved, &error);
    failures += !fine;
    if (fine && number % 3 == 1) { /* restored or a miss with its cause, and nothing between */
        wrong += (block.result == KVRUN_RESTORED) != (moved.cause[0] == '\0');
        for (int i = 0; i < 3000 && !kvrun_hold_is_over(rig_client, pool, moved.hold); i++) {
            usleep(10000);
        }
        wrong += !kvrun_hold_is_over(rig_client, pool, moved.hold);
    }
    kvrun_stats(rig_client, &stats);
    wrong +=
        stats.calls_missed != stats.missed_down + stats.missed_transport + stats.missed_protocol + stats.missed_server;
    usleep(500); /* so that the calls outlast what goes wrong */
}

static void *calls(void *arg)
{
    struct kvrun_blocks *in = arg;
    for (unsigned i = 0; i < CALLS; i++) {
        one_call(i, in);
    }
    return NULL;
}

Test(kvrun_threads, every_call_has_its_result_and_every_hold_an_end)
{
    rig_register(NULL, NULL);
    pool = rig_pool();
    for (unsigned i = 0; i < 50; i++) {
        if (i % 5 == 4) {
            canned_raw(rig_server, "");
        } else if (i % 7 == 6) {
            canned_answer(rig_server, 500, "{\"code\":\"internal\",\"detail\":\"a bug\"}");
        } else {
            canned_answer(rig_server, 200, ANYTHING);
        }
    }
    canned_answer(rig_server, 200, ANYTHING);
    struct kvrun_blocks in = rig_in(pool, 1);
    pthread_t threads[THREADS];
    for (size_t i = 0; i < THREADS; i++) {
        cr_assert(pthread_create(&threads[i], NULL, calls, &in) == 0);
    }
    for (size_t i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    cr_assert(eq(uint, failures, 0));
    cr_assert(eq(uint, wrong, 0));
    struct kvrun_stats stats = rig_stats();
    cr_assert(eq(u64, stats.lookups + stats.offloads + stats.restores, THREADS * CALLS));
    cr_assert(eq(u64, stats.calls_answered + stats.calls_missed, THREADS * CALLS));
    cr_assert(eq(u64, stats.blocks_asked, stats.blocks_restored + stats.blocks_not_restored));
    cr_assert(eq(u64, stats.blocks_offered, stats.blocks_not_stored), "the answer says restored, so none was stored");
    cr_assert(gt(u64, stats.missed_transport + stats.missed_server, 0), "nothing went wrong: the test shows nothing");
    rig_wait_until_up(true);
}
