/*
 * The program as a user runs it, on a real nvme folder: what it prints and how it exits.
 */
#include "dataplane/base/id.h"
#include "dataplane/io/io.h"
#include "dataplane/keys/roe_file_format.h"
#include "dataplane/tier/tier.h"
#include "tests/attack/world.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

static char dump[KVT_PATH_BYTES], later_dump[KVT_PATH_BYTES], nvme[KVT_PATH_BYTES];
static char said[4096];

static void put_done(struct kv_tier_op *op, enum kv_err rc)
{
    enum kv_err *result = op->owner;
    *result = rc;
}

static void put(struct kv_io *io, struct kv_tier *tier, size_t session)
{
    enum kv_err result = KV_E_BUSY;
    const struct kv_bytes sealed = world_copy(session);
    struct kv_tier_op op = {.kind = KV_TIER_PUT,
                            .key = {.scope = world.sessions[session]},
                            .data = world.copies[session],
                            .bytes = sealed.len,
                            .done = put_done,
                            .owner = &result};
    op.key.block_id.b[0] = (uint8_t)session;
    cr_assert(eq(int, tier->ops->submit(tier, &op), KV_OK));
    uint64_t end_ns = kv_now_ns(&kv_env_system) + 20 * KV_S_NS;
    while (result == KV_E_BUSY && kv_now_ns(&kv_env_system) < end_ns) {
        if (tier->ops->poll(tier, 16) == 0 && io->ops->reap(io, 16) == 0) {
            uint64_t due_ns = tier->ops->next_due_ns(tier), now_ns = kv_now_ns(&kv_env_system);
            uint64_t until_ns = due_ns < now_ns + KV_MS_NS ? due_ns : now_ns + KV_MS_NS;
            KV_IGNORE(io->ops->wait(io, until_ns), "a timeout is no error");
        }
    }
    cr_assert(eq(int, result, KV_OK));
}

static void fill_nvme(void)
{
    struct kv_errinfo info = {0};
    struct kv_io *io = NULL;
    struct kv_tier *tier = NULL;
    const struct kv_io_conf io_conf = {.kind = KV_IO_THREADS, .depth = 8, .threads = 1, .env = &kv_env_system};
    cr_assert(eq(int, kv_io_open(&io_conf, &info, &io), KV_OK), "%s", info.text);
    cr_assert(mkdir(nvme, 0700) == 0);
    const struct kv_tier_conf conf = {
        .path = nvme, .bytes = 16 << 20, .slab_bytes = 1 << 20, .entries_max = 256, .io = io, .env = &kv_env_system};
    cr_assert(eq(int, kv_tier_nvme.open(&conf, &info, &tier), KV_OK), "%s", info.text);
    for (size_t i = 0; i < WORLD_SESSIONS; i++) {
        put(io, tier, i);
    }
    cr_assert(eq(int, tier->ops->close(tier), KV_OK));
    io->ops->close(io);
}

static void set_up(void)
{
    world_make();
    kvt_path_join(dump, world.folder, "dump.sql");
    kvt_path_join(later_dump, world.folder, "later.sql");
    kvt_path_join(nvme, world.folder, "nvme");
    fill_nvme();
    world_write_dump(dump, false);
}

TestSuite(attack_program, .init = set_up, .fini = world_end);

/* Runs the program with the shell; its exit status, and what it printed in `said`. */
static int attack(const char *arguments)
{
    char command[8192];
    snprintf(command, sizeof(command), "'%s' %s 2>&1", KV_ATTACK_PROGRAM, arguments);
    FILE *pipe = popen(command, "r");
    cr_assert(pipe != NULL);
    size_t len = fread(said, 1, sizeof(said) - 1, pipe);
    said[len] = '\0';
    int status = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static const char *with(const char *rest)
{
    static char arguments[4096];
    snprintf(arguments, sizeof(arguments), "--dump %s --root %s --arena %s %s", dump, world.root_path, nvme, rest);
    return arguments;
}

static const char *for_session(size_t session, const char *rest)
{
    static char more[1024];
    char text[KV_ID_TEXT_SIZE];
    kv_id_text("ses", &world.sessions[session], text);
    snprintf(more, sizeof(more), "--session %s %s", text, rest);
    return with(more);
}

Test(attack_program, opens_all_copies_of_all_sessions)
{
    cr_assert(eq(int, attack(with("")), 0), "%s", said);
    cr_assert(eq(str, said, "opened 5 of 5 copies\n"));
}

Test(attack_program, opens_no_copy_of_an_erased_session_and_those_of_the_others)
{
    char later[KVT_PATH_BYTES + 16];
    cr_assert(eq(int, attack(for_session(1, "")), 0));
    cr_assert(eq(str, said, "opened 1 of 1 copies\n"), "control");
    const struct kv_id old = world_rekey_without_session_1();
    world_destroy(&old);
    world_write_dump(later_dump, true);
    snprintf(later, sizeof(later), "--dump %s", later_dump);
    cr_assert(eq(int, attack(for_session(1, later)), 0));
    cr_assert(eq(str, said, "opened 0 of 1 copies\n"));
    cr_assert(eq(int, attack(with(later)), 0));
    cr_assert(eq(str, said, "opened 4 of 5 copies\n"));
}

Test(attack_program, opens_nothing_of_an_erased_tenant_and_all_of_the_others)
{
    char later[KVT_PATH_BYTES + 16];
    const struct kv_id old = world_rekey_without_tree();
    world_destroy(&old);
    world_write_dump(later_dump, true);
    snprintf(later, sizeof(later), "--dump %s", later_dump);
    for (size_t i = 0; i < WORLD_SESSIONS; i++) {
        cr_assert(eq(int, attack(for_session(i, later)), 0));
        cr_assert(eq(str, said, i < 3 ? "opened 0 of 1 copies\n" : "opened 1 of 1 copies\n"), "session %zu", i);
    }
}

Test(attack_program, json_says_how_far_it_came)
{
    cr_assert(eq(int, attack(for_session(2, "--json")), 0));
    cr_assert(strstr(said, "{\"opened\":1,\"copies\":1,") == said, "%s", said);
    cr_assert(strstr(said, "\"session_state\":\"active\"") != NULL, "%s", said);
    cr_assert(strstr(said, "\"roots_opened\":1") != NULL, "%s", said);
    cr_assert(eq(int, attack(with("--json")), 0));
    cr_assert(strstr(said, "\"session_state\":null") != NULL, "%s", said);
}

Test(attack_program, leftovers_are_what_the_index_does_not_name)
{
    cr_assert(eq(int, attack(with("--leftovers")), 0));
    cr_assert(eq(str, said, "opened 5 of 5 copies\nopened 0 of 0 leftovers in free space\n"));
    /* A copy somewhere in the free space of the arena, far from any slot in use. */
    char arena[KVT_PATH_BYTES];
    kvt_path_join(arena, nvme, "arena");
    FILE *file = fopen(arena, "r+");
    cr_assert(file != NULL && fseek(file, 12 << 20, SEEK_SET) == 0);
    cr_assert(eq(sz, fwrite(world.copies[0], 1, world_copy(0).len, file), world_copy(0).len));
    fclose(file);
    cr_assert(eq(int, attack(with("--leftovers")), 0));
    cr_assert(eq(str, said, "opened 5 of 5 copies\nopened 1 of 1 leftovers in free space\n"));
}

Test(attack_program, session_without_copies_is_none_of_none)
{
    struct kv_id absent;
    char text[KV_ID_TEXT_SIZE], rest[128];
    cr_assert(eq(int, kv_id_new(&kv_env_system, &absent), KV_OK));
    kv_id_text("ses", &absent, text);
    snprintf(rest, sizeof(rest), "--session %s", text);
    cr_assert(eq(int, attack(with(rest)), 0));
    cr_assert(eq(str, said, "opened 0 of 0 copies\n"));
}

Test(attack_program, what_is_in_memory_is_a_root_and_a_tier_as_well)
{
    /* The root file as an image of memory: a wrapping key is somewhere in it, nobody says where. The copies in a flat
     * file. */
    char arguments[3072], image[KVT_PATH_BYTES], blocks[KVT_PATH_BYTES];
    static uint8_t page[KV_ROE_FILE_BYTES], zeroes[4096];
    kvt_path_join(image, world.folder, "image");
    kvt_path_join(blocks, world.folder, "blocks");
    cr_assert(eq(sz, kvt_file_read(world.root_path, 0, page, sizeof(page)), sizeof(page)));
    struct kv_secret *key = NULL;
    cr_assert(eq(int, kv_roe_slot_key(page + kv_roe_slot_offset(0), &key), KV_OK));
    FILE *file = fopen(image, "w");
    cr_assert(file != NULL);
    fwrite(zeroes, 1, 48, file);
    fwrite(kv_secret_data(key), 1, 32, file);
    fclose(file);
    kv_secret_free(key);
    file = fopen(blocks, "w");
    cr_assert(file != NULL);
    for (size_t i = 0; i < WORLD_SESSIONS; i++) {
        fwrite(zeroes, 1, sizeof(zeroes), file);
        fwrite(world.copies[i], 1, world_copy(i).len, file);
    }
    fclose(file);
    snprintf(arguments, sizeof(arguments), "--dump %s --memory %s --blocks %s", dump, image, blocks);
    cr_assert(eq(int, attack(arguments), 0), "%s", said);
    cr_assert(eq(str, said, "opened 0 of 0 copies\nopened 5 of 5 leftovers in free space\n"));
    snprintf(arguments, sizeof(arguments), "--dump %s --memory %s --blocks %s", dump, blocks, blocks);
    cr_assert(eq(int, attack(arguments), 0), "%s", said);
    cr_assert(eq(str, said, "opened 0 of 0 copies\nopened 0 of 5 leftovers in free space\n"), "control: no key in it");
}

Test(attack_program, collects_what_a_later_run_takes_for_raw_bytes)
{
    char arguments[3072], loot[KVT_PATH_BYTES], text[KV_ID_TEXT_SIZE], line[KV_ID_TEXT_SIZE + 8];
    kvt_path_join(loot, world.folder, "loot");
    snprintf(arguments, sizeof(arguments), "--list-roots --collect %s --dump %s", loot, dump);
    cr_assert(eq(int, attack(arguments), 0), "%s", said);
    char *space = strchr(said, ' ');
    cr_assert(space != NULL && space - said == 32, "an id and what is wrapped: %s", said);
    cr_assert(eq(int, attack(arguments), 2), "nothing is overwritten");
    snprintf(arguments, sizeof(arguments), "--raw %s --root %s --arena %s --each", loot, world.root_path, nvme);
    cr_assert(eq(int, attack(arguments), 0), "%s", said);
    cr_assert(strstr(said, "opened 5 of 5 copies\n") != NULL, "%s", said);
    for (size_t i = 0; i < WORLD_SESSIONS; i++) {
        kv_id_text("ses", &world.sessions[i], text);
        snprintf(line, sizeof(line), "%s 1 1\n", text);
        cr_assert(strstr(said, line) != NULL, "%s", said);
    }
}

Test(attack_program, unreadable_inputs_and_wrong_calls_exit_with_2)
{
    char arguments[3072];
    cr_assert(eq(int, attack(""), 2));
    cr_assert(strstr(said, "usage") != NULL);
    cr_assert(eq(int, attack(with("--session nonsense")), 2));
    cr_assert(eq(int, attack(with("--session")), 2));
    cr_assert(eq(int, attack(with("--unknown x")), 2));
    cr_assert(eq(int, attack(with("--dump /nonexistent/dump.sql")), 2));
    cr_assert(eq(int, attack(with("--root /nonexistent/root")), 2));
    snprintf(arguments, sizeof(arguments), "--dump %s --root %s --arena /nonexistent", dump, world.root_path);
    cr_assert(eq(int, attack(arguments), 2));
    snprintf(arguments, sizeof(arguments), "--dump %s --root %s --arena %s", world.root_path, world.root_path, nvme);
    cr_assert(eq(int, attack(arguments), 2), "no dump");
    snprintf(arguments, sizeof(arguments), "--root %s --arena %s", world.root_path, nvme);
    cr_assert(eq(int, attack(arguments), 2), "no rows at all");
    snprintf(arguments, sizeof(arguments), "--dump %s --arena %s", dump, nvme);
    cr_assert(eq(int, attack(arguments), 2), "nothing to open them with");
    snprintf(arguments, sizeof(arguments), "--dump %s --root %s", dump, world.root_path);
    cr_assert(eq(int, attack(arguments), 2), "nothing to open");
    cr_assert(eq(int, attack(with("--raw /nonexistent")), 2));
    cr_assert(eq(int, attack(with("--memory /nonexistent")), 2));
    cr_assert(eq(int, attack(with("--blocks /nonexistent")), 2));
    cr_assert(eq(int, attack(with("--loosely-every 0")), 2));
    cr_assert(eq(int, attack(with("--loosely-every x")), 2));
    snprintf(arguments, sizeof(arguments), "--dump %s --root %s --arena %s", dump, dump, nvme);
    cr_assert(ne(int, attack(arguments), -1), "no root file: whatever is found, the program ends in order");
    cr_assert(eq(int, attack(with("")), 0), "control");
}
