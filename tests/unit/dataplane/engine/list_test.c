/* The list of a scope's blocks: sorted, handed over in parts between which the lane does other things, each once. */
#include "dataplane/engine/lane_int.h"
#include "tests/lib/engine_rig.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>

#define PART 1024u         /* what one poll hands over */
#define BUCKETS_FROM 4096u /* up to here sorting is plain */

static struct kvt_rig rig;

static void start(void)
{
    kvt_rig_config(&rig);
    rig.conf.blocks_max = (uint64_t)4 * BUCKETS_FROM;
    kvt_rig_start(&rig);
}

/* Entries without replicas, which nothing but the index has. */
static void finish(void)
{
    struct scope *scope = kv_index_scope_find(rig.engine->lane.index, &rig.scope);
    while (scope != NULL && !kv_list_empty(&scope->blocks)) {
        kv_room_kill(&rig.engine->lane, LINK_OF(scope->blocks.next, struct entry, in_scope));
    }
    kvt_rig_stop(&rig);
}

TestSuite(list, .init = start, .fini = finish);

/* Their first bytes differ from one to the next, or are the same in all. */
static struct entry *put(uint32_t number, bool alike)
{
    struct kv_tier_key key = {.scope = rig.scope};
    struct entry *entry = NULL;
    uint32_t mixed = number * UINT32_C(2654435761);
    memcpy(key.block_id.b + (alike ? 8 : 0), &mixed, sizeof mixed);
    memcpy(key.block_id.b + 16, &number, sizeof number);
    cr_assert(eq(int, kv_index_add(rig.engine->lane.index, &key, 8192, &entry), KV_OK));
    return entry;
}

static void check(const struct kv_buf *ids, size_t count)
{
    cr_assert(eq(sz, ids->len, count * 32));
    for (size_t i = 1; i < count; i++) {
        cr_assert(lt(int, memcmp(ids->data + (i - 1) * 32, ids->data + i * 32, 32), 0), "sorted, each once");
    }
}

static void list_and_check(size_t count, size_t room)
{
    struct kv_buf ids;
    kv_buf_init(&ids, room * 32);
    cr_assert(eq(int, kv_engine_scope_blocks(rig.engine, &rig.scope, &ids), count <= room ? KV_OK : KV_E_LIMIT));
    if (count <= room) {
        check(&ids, count);
    }
    kv_buf_done(&ids);
}

Test(list, is_sorted_whatever_its_length)
{
    static const uint32_t lengths[] = {0, 1, 2, PART, PART + 1, BUCKETS_FROM, BUCKETS_FROM + 1, 3 * BUCKETS_FROM};
    uint32_t there = 0;
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        while (there < lengths[i]) {
            put(there++, false);
        }
        list_and_check(there, there);
    }
    list_and_check(there, there - 1);
}

Test(list, of_ids_that_begin_alike_is_sorted_too)
{
    for (uint32_t i = 0; i <= BUCKETS_FROM; i++) {
        put(i, true);
    }
    list_and_check(BUCKETS_FROM + 1, BUCKETS_FROM + 1);
}

static void begin(struct control *control, struct kv_buf *ids)
{
    *control = (struct control){.kind = CONTROL_BLOCKS, .deadline_ns = UINT64_MAX, .scope = &rig.scope, .ret_buf = ids};
    kv_buf_init(ids, (size_t)4 * PART * 32);
    kv_control_begin(&rig.engine->lane, control);
}

Test(list, one_poll_hands_over_a_part)
{
    struct control control;
    struct kv_buf ids;
    for (uint32_t i = 0; i < 2 * PART + 1; i++) {
        put(i, false);
    }
    begin(&control, &ids);
    cr_assert(not(control.answered));
    cr_assert(eq(sz, ids.len, PART * 32));
    cr_assert(eq(u32, control.cursor->pins, 1), "it is not evicted meanwhile");
    kv_controls_advance(&rig.engine->lane);
    cr_assert(not(control.answered));
    struct entry *last = control.cursor;
    kv_controls_advance(&rig.engine->lane);
    cr_assert(control.answered);
    cr_assert(eq(int, control.rc, KV_OK));
    cr_assert(eq(sz, ids.len, (2 * PART + 1) * 32));
    cr_assert(eq(u32, last->pins, 0));
    kv_buf_done(&ids);
}

Test(list, begins_again_when_the_next_one_died)
{
    struct control control;
    struct kv_buf ids;
    for (uint32_t i = 0; i < 2 * PART; i++) {
        put(i, false);
    }
    begin(&control, &ids);
    struct entry *next = control.cursor;
    struct kv_block_id gone = next->block_id;
    kv_room_kill(&rig.engine->lane, next);
    for (int polls = 0; polls < 3 && !control.answered; polls++) {
        kv_controls_advance(&rig.engine->lane);
    }
    cr_assert(control.answered);
    cr_assert(eq(sz, ids.len, (2 * PART - 1) * 32));
    for (size_t i = 0; i < ids.len; i += 32) {
        cr_assert(ne(int, memcmp(ids.data + i, gone.b, 32), 0));
    }
    cr_assert(eq(u32, next->pins, 0));
    kv_buf_done(&ids);
}

Test(list, that_is_given_up_holds_no_entry)
{
    struct control control;
    struct kv_buf ids;
    for (uint32_t i = 0; i < PART + 1; i++) {
        put(i, false);
    }
    begin(&control, &ids);
    struct entry *next = control.cursor;
    kv_controls_abort(&rig.engine->lane);
    cr_assert(eq(int, control.rc, KV_E_SHUTTING_DOWN));
    cr_assert(eq(u32, next->pins, 0));
    kv_buf_done(&ids);
}
