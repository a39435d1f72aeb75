/*
 * Carving: nodes and wrapped roots of a real tree, laid out as PostgreSQL's files and its log lay them out, and found
 * again. What is found is compared with what a dump of the same rows gives.
 */
#include "dataplane/base/mem.h"
#include "tests/attack/raw.h"
#include "tests/attack/reach.h"
#include "tests/attack/world.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { CHUNK = 1996, PAGE = 8192, ROOM = 9 << 20 };

static struct loot dumped; /* what there is to be found */
static char place[KVT_PATH_BYTES];
static uint8_t *bytes; /* a file in the making */
static size_t len;

static void add_dump(void)
{
    char dump[KVT_PATH_BYTES];
    kvt_path_join(dump, world.folder, "dump.sql");
    world_write_dump(dump, true);
    FILE *file = fopen(dump, "r");
    cr_assert(file != NULL);
    cr_assert(eq(int, loot_add_dump(&dumped, file), KV_OK));
    fclose(file);
}

static void set_up(void)
{
    world_make();
    add_dump();
    world_rekey_without_session_1(); /* The root of before is not destroyed. */
    add_dump();
    cr_assert(gt(sz, dumped.node_count, 10));
    kvt_path_join(place, world.folder, "base");
    cr_assert(mkdir(place, 0700) == 0);
    bytes = kv_alloc(ROOM);
    cr_assert(bytes != NULL);
    len = 0;
}

static void take_down(void)
{
    kv_free(bytes);
    loot_done(&dumped);
    world_end();
}

TestSuite(attack_raw, .init = set_up, .fini = take_down);

static void put(const void *data, size_t count)
{
    cr_assert(le(sz, len + count, ROOM));
    memcpy(bytes + len, data, count);
    len += count;
}

static void noise(size_t count)
{
    cr_assert(le(sz, len + count, ROOM));
    cr_assert(eq(int, kv_env_system.random(NULL, bytes + len, count), KV_OK));
    len += count;
}

/* One row of a TOAST table, without what stands before it in its page or its record. */
static void chunk(uint32_t value, uint32_t number, const uint8_t *data, size_t count)
{
    const uint32_t head[] = {value, number, (uint32_t)(count + 4) << 2};
    put(head, sizeof(head));
    put(data, count);
}

static void write_as(const char *name)
{
    char path[KVT_PATH_BYTES];
    kvt_path_join(path, place, name);
    kvt_file_write(path, bytes, len, 0600);
    len = 0;
}

static struct loot carve(void)
{
    struct loot loot = {0};
    struct carver *carver = NULL;
    cr_assert(eq(int, raw_new(&loot, &carver), KV_OK));
    cr_assert(eq(int, raw_add(carver, place), KV_OK));
    cr_assert(gt(sz, raw_done(carver).files, 0));
    return loot;
}

static size_t found_in(const struct loot *loot)
{
    size_t found = 0;
    for (size_t i = 0; i < dumped.node_count; i++) {
        const struct loot_node *wanted = &dumped.nodes[i];
        for (size_t k = 0; k < loot->node_count; k++) {
            const struct loot_node *node = &loot->nodes[k];
            /* The world's rows name the top node by an id of its own; the envelope has the root's. */
            found += node->sealed_len == wanted->sealed_len &&
                     memcmp(node->sealed, wanted->sealed, wanted->sealed_len) == 0 &&
                     memcmp(&node->key, &wanted->key, sizeof(node->key)) == 0;
        }
    }
    return found;
}

static void finds(size_t nodes)
{
    struct loot loot = carve();
    cr_assert(eq(sz, found_in(&loot), nodes));
    cr_assert(eq(sz, loot.node_count, nodes));
    cr_assert(eq(sz, loot.cluster_count, nodes > 0 ? 1 : 0));
    loot_done(&loot);
}

Test(attack_raw, values_in_one_piece)
{
    for (size_t i = 0; i < dumped.node_count; i++) {
        noise(i * 7 + 1);
        put(dumped.nodes[i].sealed, dumped.nodes[i].sealed_len);
    }
    write_as("image");
    finds(dumped.node_count);
}

Test(attack_raw, both_chunks_of_a_value_wherever_they_are)
{
    for (size_t i = 0; i < dumped.node_count; i++) {
        noise(24);
        chunk(1000 + (uint32_t)i, 0, dumped.nodes[i].sealed, CHUNK);
    }
    write_as("16384");
    finds(0);
    for (size_t i = dumped.node_count; i > 0; i--) {
        noise(3);
        chunk(1000 + (uint32_t)i - 1, 1, dumped.nodes[i - 1].sealed + CHUNK, dumped.nodes[i - 1].sealed_len - CHUNK);
    }
    write_as("00000001");
    finds(dumped.node_count);
}

Test(attack_raw, chunk_of_another_value_is_not_taken)
{
    chunk(7, 0, dumped.nodes[0].sealed, CHUNK);
    chunk(8, 1, dumped.nodes[0].sealed + CHUNK, dumped.nodes[0].sealed_len - CHUNK);
    write_as("16384");
    finds(0);
}

Test(attack_raw, number_that_was_used_again_gives_both)
{
    for (size_t i = 0; i < 2; i++) {
        chunk(7, 0, dumped.nodes[i].sealed, CHUNK);
        chunk(7, 1, dumped.nodes[i].sealed + CHUNK, dumped.nodes[i].sealed_len - CHUNK);
    }
    write_as("16384");
    struct loot loot = carve();
    cr_assert(eq(sz, found_in(&loot), 2));
    cr_assert(eq(sz, loot.node_count, 4), "the wrong pairs open with no key");
    loot_done(&loot);
}

Test(attack_raw, value_across_two_pieces_of_a_large_file)
{
    const size_t piece = (4 << 20) + 4096; /* of raw.c */
    for (size_t at = piece - 3000, i = 0; at < piece + 3000; at += 2300, i++) {
        noise(at - len);
        put(dumped.nodes[i].sealed, dumped.nodes[i].sealed_len);
    }
    noise(100000);
    write_as("large");
    finds(3);
}

/* The log: `stream` cut into pages with their headers, into files of two pages. */
static void write_wal(const uint8_t *stream, size_t count)
{
    unsigned segment = 1;
    for (size_t done = 0; done < count; segment++) {
        char name[32];
        for (unsigned page = 0; page < 2 && done < count; page++) {
            uint8_t head[40] = {0x10, 0xd1, page == 0 ? 2 : 0};
            size_t head_len = page == 0 ? 40 : 24, room = PAGE - head_len,
                   take = count - done < room ? count - done : room;
            put(head, head_len);
            put(stream + done, take);
            done += take;
        }
        snprintf(name, sizeof(name), "0000000100000000%08X", segment);
        write_as(name);
    }
}

Test(attack_raw, records_of_the_log_go_on_behind_page_headers_and_in_the_next_file)
{
    for (size_t i = 0; i < dumped.node_count; i++) {
        noise(51);
        chunk(9, 0, dumped.nodes[i].sealed, CHUNK);
        noise(33);
        chunk(9, 1, dumped.nodes[i].sealed + CHUNK, dumped.nodes[i].sealed_len - CHUNK);
    }
    cr_assert(gt(sz, len, (size_t)3 * PAGE), "two files at least");
    size_t count = len;
    uint8_t *stream = kv_alloc(count);
    memcpy(stream, bytes, count);
    len = 0;
    write_wal(stream, count);
    kv_free(stream);
    struct loot loot = carve();
    cr_assert(eq(sz, found_in(&loot), dumped.node_count));
    loot_done(&loot);
}

Test(attack_raw, wrapped_roots_of_every_provider)
{
    uint8_t token[80] = "KVP1", service[4 + 16 + 9 + 108] = "KVT1";
    memset(token + 4, 0x11, sizeof(token) - 4);
    memset(service + 4, 0x22, 16);
    memcpy(service + 20, "vault:v1:", 9);
    memset(service + 29, 'Q', 107);
    service[136] = '=';
    noise(5);
    put(dumped.roots[0].blob, dumped.roots[0].blob_len);
    put(token, sizeof(token));
    put(service, sizeof(service));
    put("==", 2); /* no more of it */
    write_as("heap");
    struct loot loot = carve();
    cr_assert(eq(sz, loot.root_count, 3));
    cr_assert(memcmp(&loot.roots[0].root_id, &dumped.roots[0].root_id, 16) == 0);
    cr_assert(memcmp(loot.roots[0].blob, dumped.roots[0].blob, loot.roots[0].blob_len) == 0);
    cr_assert(eq(sz, loot.roots[1].blob_len, sizeof(token)));
    cr_assert(memcmp(loot.roots[1].blob, token, sizeof(token)) == 0);
    cr_assert(eq(sz, loot.roots[2].blob_len, sizeof(service)));
    cr_assert(memcmp(loot.roots[2].blob, service, sizeof(service)) == 0);
    loot_done(&loot);
}

Test(attack_raw, folders_within_folders_and_what_is_not_there)
{
    char outer[KVT_PATH_BYTES];
    snprintf(outer, sizeof(outer), "%s", place);
    kvt_path_join(place, outer, "pg_wal");
    cr_assert(mkdir(place, 0700) == 0);
    put(dumped.nodes[0].sealed, dumped.nodes[0].sealed_len);
    write_as("000000010000000000000001.partial");
    snprintf(place, sizeof(place), "%s", outer);
    finds(1);
    struct loot loot = {0};
    struct carver *carver = NULL;
    cr_assert(eq(int, raw_new(&loot, &carver), KV_OK));
    cr_assert(eq(int, raw_add(carver, "/nonexistent/base"), KV_E_MISSING));
    raw_done(carver);
}

/* --- memory ---------------------------------------------------------------------------------------------------------
 */

static struct loot memory(void)
{
    struct loot loot = {0};
    FILE *file = fmemopen(bytes, len, "r");
    cr_assert(file != NULL);
    cr_assert(eq(int, loot_add_memory(&loot, file), KV_OK));
    fclose(file);
    return loot;
}

Test(attack_raw, memory_is_looked_at_every_16_bytes)
{
    static const uint8_t zeroes[1 << 17];
    uint8_t secret[32];
    const size_t at[] = {0, 48, 65536 - 16, 65536 + 65536 - 32, 200000 / 16 * 16};
    for (size_t i = 0; i < sizeof(secret); i++) {
        secret[i] = (uint8_t)(i * 37);
    }
    for (size_t i = 0; i < sizeof(at) / sizeof(at[0]); i++) {
        put(zeroes, at[i] - len);
        put(secret, sizeof(secret));
    }
    put(zeroes, 32);
    put("this is some text and is no key.", 32);
    put(zeroes, 32);
    struct loot loot = memory();
    cr_assert(eq(sz, loot.window_count, sizeof(at) / sizeof(at[0])), "not text, not zeroes, not half of a key");
    for (size_t i = 0; i < loot.window_count; i++) {
        cr_assert(memcmp(loot.windows[i], secret, sizeof(secret)) == 0);
    }
    loot_done(&loot);
}

/* What the attack reaches without a root file, with one secret that was in memory. */
static size_t opened_with(const uint8_t secret[32], size_t *ret_secrets)
{
    struct reach reach = {0};
    put(secret, 32);
    struct loot found = memory();
    len = 0;
    dumped.windows = found.windows;
    dumped.window_count = found.window_count;
    cr_assert(eq(sz, found.window_count, 1));
    cr_assert(eq(int, reach_from(&dumped, 0, &reach), KV_OK));
    cr_assert(reach.complete);
    size_t opened = reach.nodes_opened;
    *ret_secrets = reach.count;
    kv_free(dumped.windows);
    dumped.windows = NULL;
    dumped.window_count = 0;
    reach_done(&reach);
    return opened;
}

Test(attack_raw, one_secret_from_memory_opens_what_hangs_below_it)
{
    struct reach whole = {0}, none = {0};
    FILE *root = fopen(world.root_path, "r");
    cr_assert(root != NULL);
    cr_assert(eq(int, loot_add_root_file(&dumped, root), KV_OK));
    fclose(root);
    cr_assert(eq(int, reach_from(&dumped, 0, &whole), KV_OK));
    cr_assert(eq(sz, whole.nodes_opened, dumped.node_count), "both epochs");
    kv_secret_free(dumped.keys[0].key);
    kv_secret_free(dumped.keys[1].key);
    dumped.key_count = 0;
    cr_assert(eq(int, reach_from(&dumped, 0, &none), KV_OK));
    cr_assert(eq(sz, none.count, 0), "control: without anything");
    reach_done(&none);

    size_t roots = 0, nodes = 0, leaves = 0, reached = 0;
    for (size_t i = 0; i < whole.count; i++) {
        const struct reached_secret *secret = &whole.secrets[i];
        if (secret->of.level == REACH_ROOT_LEVEL) { /* two wrapping keys and what they wrap: an epoch each */
            size_t opened = opened_with(secret->bytes, &reached);
            cr_assert(opened > 0 && opened < whole.nodes_opened && reached > 64);
            roots++;
        } else if (secret->of.level == 1 && nodes < 200) {
            size_t opened = opened_with(secret->bytes, &reached);
            leaves += opened > 0 ? 1 : 0;
            nodes++;
        }
    }
    cr_assert(eq(sz, roots, 4));
    cr_assert(leaves > 0 && leaves < nodes, "most children have no row below them");
    reach_done(&whole);
}
