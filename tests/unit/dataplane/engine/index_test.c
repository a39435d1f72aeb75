/* The index against a plain array, over many random adds, kills and finds; and its bookkeeping. */
#include "dataplane/engine/index_int.h"
#include "tests/lib/engine_rig.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#define CAPACITY 200u
#define KEYS 300u

static struct index *one;

static void start(void)
{
    cr_assert(eq(int, kv_index_new(CAPACITY, &kv_env_system, &one), KV_OK));
}

static void finish(void)
{
    kv_index_free(one);
}

TestSuite(index, .init = start, .fini = finish);

static struct kv_tier_key key_of(unsigned n)
{
    return (struct kv_tier_key){.scope = kvt_scope((uint8_t)(n % 7)), .block_id = kvt_block(n)};
}

static struct entry *add(unsigned n)
{
    struct entry *entry = NULL;
    struct kv_tier_key key = key_of(n);
    cr_assert(eq(int, kv_index_add(one, &key, 8192, &entry), KV_OK));
    return entry;
}

static struct entry *find(unsigned n)
{
    struct kv_tier_key key = key_of(n);
    return kv_index_find(one, &key.scope, &key.block_id);
}

Test(index, agrees_with_an_array_over_random_changes)
{
    struct entry *there[KEYS] = {NULL};
    unsigned count = 0;
    uint32_t random = 12345;
    for (unsigned step = 0; step < 60000; step++) {
        random = random * 1664525u + 1013904223u;
        unsigned n = (random >> 8) % KEYS;
        if (there[n] == NULL && count < CAPACITY) {
            there[n] = add(n);
            count++;
        } else if (there[n] != NULL && (random >> 30) != 0) {
            kv_index_kill(one, there[n]);
            kv_index_free_entry(one, there[n]);
            there[n] = NULL;
            count--;
        }
        unsigned other = (random >> 3) % KEYS;
        cr_assert(eq(ptr, find(other), there[other]));
    }
    cr_assert(eq(u32, one->live, count));
}

Test(index, full_is_a_limit_and_one_less_is_not)
{
    struct entry *entry = NULL;
    struct kv_tier_key key = key_of(CAPACITY);
    for (unsigned n = 0; n < CAPACITY; n++) {
        add(n);
    }
    cr_assert(eq(int, kv_index_add(one, &key, 8192, &entry), KV_E_LIMIT));
    kv_index_kill(one, find(3));
    cr_assert(eq(int, kv_index_add(one, &key, 8192, &entry), KV_E_LIMIT), "a grave still takes its place");
    kv_index_free_entry(one, LINK_OF(one->graves.next, struct entry, in_scope));
    cr_assert(eq(int, kv_index_add(one, &key, 8192, &entry), KV_OK));
}

Test(index, an_entry_is_on_the_list_that_its_state_calls_for)
{
    struct entry *entry = add(1);
    uint8_t slot[1];
    cr_assert(eq(int, entry->rank, RANK_NONE));
    kv_index_set_slot(one, entry, slot);
    cr_assert(eq(int, entry->rank, RANK_DIRTY));
    kv_index_pin(one, entry);
    cr_assert(eq(int, entry->rank, RANK_NONE));
    cr_assert(eq(u32, one->pinned_slots, 1));
    kv_index_unpin(one, entry);
    cr_assert(eq(u32, one->pinned_slots, 0));
    kv_index_set_nvme(one, entry, true, 5);
    cr_assert(eq(int, entry->rank, RANK_CLEAN));
    cr_assert(not(kv_list_empty(&one->nvme_cold)));
    entry->promised = true;
    kv_index_touch(one, entry);
    cr_assert(kv_list_empty(&one->nvme_cold), "a promise is never on the list of what may be evicted");
    kv_index_set_nvme(one, entry, false, 0);
    cr_assert(not(entry->promised));
    entry->no_nvme = true;
    kv_index_touch(one, entry);
    cr_assert(eq(int, entry->rank, RANK_KEPT));
    kv_index_set_slot(one, entry, NULL);
    cr_assert(eq(int, entry->rank, RANK_NONE));
    cr_assert(eq(u64, entry->scope->usage.dram_blocks, 0));
    cr_assert(eq(u64, entry->scope->usage.blocks, 1));
}

Test(index, a_scope_goes_with_its_last_holder)
{
    struct kv_tier_key key = key_of(1);
    struct entry *entry = add(1);
    struct scope *scope = entry->scope;
    scope->operations++;
    kv_index_kill(one, entry);
    kv_index_free_entry(one, entry);
    cr_assert(eq(ptr, kv_index_scope_find(one, &key.scope), scope), "an operation holds it");
    scope->operations--;
    kv_index_scope_release(one, scope);
    cr_assert(eq(ptr, kv_index_scope_find(one, &key.scope), NULL));
}
