/* The registry map against a slow list: whatever was put is found, whatever was taken is not. */
#include "server/service/idmap.h"

#include "dataplane/base/id.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>

#define IDS 700

static uint64_t state = 20260722;

static uint64_t draw(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

/* `few`: ids whose hash has few values, so that long runs form. */
static struct kv_id id_of(unsigned number, bool few)
{
    struct kv_id id = {0};
    memcpy(id.b, &number, sizeof number);
    id.b[15] = (uint8_t)(few ? number % 3 : number);
    id.b[14] = few ? 0 : (uint8_t)(number >> 8);
    return id;
}

/* The slow list: values[i] is what id i maps to. */
struct list {
    struct kv_id ids[IDS];
    void *values[IDS];
    size_t count;
    char targets[IDS * 2];
};

static void list_init(struct list *list, bool few)
{
    memset(list, 0, sizeof *list);
    for (unsigned i = 0; i < IDS; i++) {
        list->ids[i] = id_of(i + 1, few);
    }
}

static void compare(const struct kv_idmap *map, const struct list *list)
{
    cr_assert(eq(sz, map->count, list->count));
    for (unsigned i = 0; i < IDS; i++) {
        cr_assert(kv_idmap_get(map, &list->ids[i]) == list->values[i], "id %u", i);
    }
}

static void walk(const struct kv_idmap *map, const struct list *list)
{
    size_t position = 0, seen = 0;
    bool met[IDS * 2] = {false};
    for (char *value = kv_idmap_next(map, &position); value != NULL; value = kv_idmap_next(map, &position)) {
        size_t index = (size_t)(value - list->targets);
        cr_assert(lt(sz, index, IDS * 2));
        cr_assert(not(met[index]));
        met[index] = true;
        seen++;
    }
    cr_assert(eq(sz, seen, list->count));
}

static void put(struct kv_idmap *map, struct list *list, unsigned i, unsigned which)
{
    cr_assert(eq(int, kv_idmap_put(map, &list->ids[i], &list->targets[which]), KV_OK));
    list->count += list->values[i] == NULL;
    list->values[i] = &list->targets[which];
}

static void take(struct kv_idmap *map, struct list *list, unsigned i)
{
    cr_assert(kv_idmap_take(map, &list->ids[i]) == list->values[i]);
    list->count -= list->values[i] != NULL;
    list->values[i] = NULL;
}

static void random_operations(bool few)
{
    struct kv_idmap map;
    static struct list list;
    kv_idmap_init(&map);
    list_init(&list, few);
    for (unsigned step = 0; step < 20000; step++) {
        unsigned i = (unsigned)(draw() % (few ? 60 : IDS));
        /* The share of removals swings, so that the map grows and empties again. */
        if (draw() % 100 < (step / 2000 % 2 == 0 ? 30u : 70u)) {
            take(&map, &list, i);
        } else {
            put(&map, &list, i, i + (draw() % 2 == 0 ? 0 : IDS));
        }
        if (step % 500 == 0) {
            compare(&map, &list);
            walk(&map, &list);
        }
    }
    compare(&map, &list);
    walk(&map, &list);
    kv_idmap_done(&map);
}

Test(idmap, agrees_with_a_list_over_random_operations)
{
    random_operations(false);
}

Test(idmap, agrees_with_a_list_when_hashes_collide)
{
    random_operations(true);
}

Test(idmap, empty_one_has_nothing)
{
    struct kv_idmap map;
    struct kv_id id = id_of(1, false);
    size_t position = 0;
    kv_idmap_init(&map);
    cr_assert(kv_idmap_get(&map, &id) == NULL);
    cr_assert(kv_idmap_take(&map, &id) == NULL);
    cr_assert(kv_idmap_next(&map, &position) == NULL);
    kv_idmap_done(&map);
}

Test(idmap, put_replaces_and_does_not_count_twice)
{
    struct kv_idmap map;
    struct kv_id id = id_of(1, false);
    int a = 0, b = 0;
    kv_idmap_init(&map);
    cr_assert(eq(int, kv_idmap_put(&map, &id, &a), KV_OK));
    cr_assert(eq(int, kv_idmap_put(&map, &id, &b), KV_OK));
    cr_assert(eq(sz, map.count, 1));
    cr_assert(kv_idmap_get(&map, &id) == &b);
    kv_idmap_done(&map);
}

Test(idmap, grows_and_keeps_everything)
{
    struct kv_idmap map;
    static struct list list;
    kv_idmap_init(&map);
    list_init(&list, false);
    for (unsigned i = 0; i < IDS; i++) {
        put(&map, &list, i, i);
        cr_assert(le(sz, map.count * 4, map.size * 3));
    }
    compare(&map, &list);
    walk(&map, &list);
    kv_idmap_done(&map);
}

/* Three runs that touch each other; whichever entry goes, no probe may stop in the hole that it leaves. */
Test(idmap, removing_from_any_place_of_a_run_loses_nothing)
{
    for (unsigned victim = 0; victim < 11; victim++) {
        struct kv_idmap map;
        static struct list list;
        kv_idmap_init(&map);
        list_init(&list, true);
        for (unsigned i = 0; i < 11; i++) { /* as many as a map of sixteen holds */
            put(&map, &list, i, i);
        }
        cr_assert(eq(sz, map.size, 16));
        take(&map, &list, victim);
        compare(&map, &list);
        put(&map, &list, victim, victim + IDS);
        compare(&map, &list);
        kv_idmap_done(&map);
    }
}

Test(idmap, emptied_by_walks_that_start_again)
{
    struct kv_idmap map;
    static struct list list;
    kv_idmap_init(&map);
    list_init(&list, true);
    for (unsigned i = 0; i < 100; i++) {
        put(&map, &list, i, i);
    }
    for (size_t left = 100; left > 0; left--) {
        size_t position = 0;
        char *value = kv_idmap_next(&map, &position);
        cr_assert(value != NULL);
        take(&map, &list, (unsigned)(value - list.targets));
    }
    cr_assert(eq(sz, map.count, 0));
    compare(&map, &list);
    kv_idmap_done(&map);
}
