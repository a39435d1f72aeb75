/*
 * The attack itself, on a small world of its own: a root file, a key tree whose rows are written out as dumps, and
 * sealed copies. The attack must open what lives (or every claim that rests on it is worth nothing) and fail on what
 * was erased.
 */
#include "dataplane/keys/roe_file_format.h"
#include "tests/attack/copies.h"
#include "tests/attack/world.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>

TestSuite(attack, .init = world_make, .fini = world_end);

struct outcome {
    bool opened[WORLD_SESSIONS];
    size_t roots_opened, secrets;
};

static void add(struct loot *loot, const char *path, KV_RC (*how)(struct loot *loot, FILE *file))
{
    FILE *file = fopen(path, "r");
    cr_assert(file != NULL);
    cr_assert(eq(int, how(loot, file), KV_OK));
    fclose(file);
}

/* Two dumps and two root files at most; NULL for none. */
static struct outcome attack(const char *first_dump, const char *second_dump, const char *root, const char *second_root)
{
    struct loot loot = {0};
    struct reach reach = {0};
    struct opener opener = {0};
    struct outcome outcome = {0};
    add(&loot, first_dump, loot_add_dump);
    if (second_dump != NULL) {
        add(&loot, second_dump, loot_add_dump);
    }
    add(&loot, root, loot_add_root_file);
    if (second_root != NULL) {
        add(&loot, second_root, loot_add_root_file);
    }
    cr_assert(eq(sz, loot.rows_not_understood, 0));
    cr_assert(eq(int, reach_from(&loot, 0, &reach), KV_OK));
    cr_assert(eq(int, opener_init(&opener, &loot, &reach), KV_OK));
    for (size_t i = 0; i < WORLD_SESSIONS; i++) {
        outcome.opened[i] = opener_try(&opener, &world.sessions[i], world_copy(i));
    }
    outcome.roots_opened = reach.roots_opened;
    outcome.secrets = reach.count;
    opener_done(&opener);
    reach_done(&reach);
    loot_done(&loot);
    return outcome;
}

Test(attack, opens_every_copy_while_all_sessions_live)
{
    char dump[KVT_PATH_BYTES];
    kvt_path_join(dump, world.folder, "dump.sql");
    world_write_dump(dump, false);
    struct outcome outcome = attack(dump, NULL, world.root_path, NULL);
    cr_assert(eq(sz, outcome.roots_opened, 1));
    for (size_t i = 0; i < WORLD_SESSIONS; i++) {
        cr_assert(outcome.opened[i], "copy %zu", i);
    }
}

Test(attack, erased_session_stays_closed_with_dumps_of_every_age)
{
    char before[KVT_PATH_BYTES], after[KVT_PATH_BYTES];
    kvt_path_join(before, world.folder, "before.sql");
    kvt_path_join(after, world.folder, "after.sql");
    world_write_dump(before, false);
    const struct kv_id old = world_rekey_without_session_1();
    world_destroy(&old);
    world_write_dump(after, true);
    struct outcome outcome = attack(before, after, world.root_path, NULL);
    cr_assert(outcome.opened[0], "control: a live session opens");
    cr_assert_not(outcome.opened[1]);
    cr_assert(outcome.opened[2], "control");
}

Test(attack, erased_tenant_stays_closed_and_another_one_and_what_it_has_since_open)
{
    char before[KVT_PATH_BYTES], after[KVT_PATH_BYTES];
    kvt_path_join(before, world.folder, "before.sql");
    kvt_path_join(after, world.folder, "after.sql");
    world_write_dump(before, false);
    struct outcome control = attack(before, NULL, world.root_path, NULL);
    for (size_t i = 0; i < WORLD_SESSIONS; i++) {
        cr_assert(control.opened[i], "control: before, copy %zu opens", i);
    }
    const struct kv_id old = world_rekey_without_tree();
    world_destroy(&old);
    world_write_dump(after, true);
    struct outcome outcome = attack(before, after, world.root_path, NULL);
    for (size_t i = 0; i < 3; i++) {
        cr_assert_not(outcome.opened[i], "copy %zu", i);
    }
    cr_assert(outcome.opened[3], "another tenant's");
    cr_assert(outcome.opened[4], "made since");
}

Test(attack, session_is_open_until_the_old_root_is_destroyed)
{
    char before[KVT_PATH_BYTES], after[KVT_PATH_BYTES];
    kvt_path_join(before, world.folder, "before.sql");
    kvt_path_join(after, world.folder, "after.sql");
    world_write_dump(before, false);
    const struct kv_id old = world_rekey_without_session_1();
    world_write_dump(after, false);
    cr_assert(attack(before, after, world.root_path, NULL).opened[1], "both roots are in the file");
    cr_assert_not(attack(after, NULL, world.root_path, NULL).opened[1], "the later dump alone holds nothing of it");
    world_destroy(&old);
    cr_assert_not(attack(before, after, world.root_path, NULL).opened[1]);
}

Test(attack, copy_of_the_root_file_from_before_the_erasure_opens_again)
{
    /* What no server can prevent, and a proof that the attack would find a key if there were one. */
    char before[KVT_PATH_BYTES], after[KVT_PATH_BYTES], stolen[KVT_PATH_BYTES];
    kvt_path_join(before, world.folder, "before.sql");
    kvt_path_join(after, world.folder, "after.sql");
    kvt_path_join(stolen, world.folder, "stolen");
    world_write_dump(before, false);
    world_copy_root_file(stolen);
    const struct kv_id old = world_rekey_without_session_1();
    world_destroy(&old);
    world_write_dump(after, false);
    cr_assert_not(attack(before, after, world.root_path, NULL).opened[1]);
    cr_assert(attack(before, after, world.root_path, stolen).opened[1]);
}

Test(attack, torn_slot_is_tried_too)
{
    char dump[KVT_PATH_BYTES], torn[KVT_PATH_BYTES];
    static uint8_t bytes[KV_ROE_FILE_BYTES];
    kvt_path_join(dump, world.folder, "dump.sql");
    kvt_path_join(torn, world.folder, "torn");
    world_write_dump(dump, false);
    cr_assert(eq(sz, kvt_file_read(world.root_path, 0, bytes, sizeof(bytes)), sizeof(bytes)));
    for (unsigned slot = 0; slot < KV_ROE_SLOTS; slot++) {
        bytes[kv_roe_slot_offset(slot) + 14] ^= 1; /* Inside the id: neither checksum nor id hold any more. */
    }
    kvt_file_write(torn, bytes, sizeof(bytes), 0600);
    cr_assert(attack(dump, NULL, torn, NULL).opened[0]);
}

Test(attack, changed_copy_does_not_count_as_opened)
{
    char dump[KVT_PATH_BYTES];
    kvt_path_join(dump, world.folder, "dump.sql");
    world_write_dump(dump, false);
    /* The last page is partly padding, so the page before it is changed. */
    world.copies[0][world_copy(0).len - KV_SEALED_ALIGN - 1] ^= 1;
    struct outcome outcome = attack(dump, NULL, world.root_path, NULL);
    cr_assert_not(outcome.opened[0]);
    cr_assert(outcome.opened[1], "control");
}

Test(attack, without_the_root_file_nothing_opens)
{
    char dump[KVT_PATH_BYTES], empty[KVT_PATH_BYTES];
    static const uint8_t zeroes[KV_ROE_FILE_BYTES];
    kvt_path_join(dump, world.folder, "dump.sql");
    kvt_path_join(empty, world.folder, "empty");
    world_write_dump(dump, true);
    kvt_file_write(empty, zeroes, sizeof(zeroes), 0600);
    struct outcome outcome = attack(dump, NULL, empty, NULL);
    cr_assert(eq(sz, outcome.secrets, 0));
    cr_assert_not(outcome.opened[0] || outcome.opened[1] || outcome.opened[2]);
}
