/*
 * The attack itself, on a small world of its own: a root file, a key tree whose rows are written out as dumps, and
 * sealed copies. The attack must open what lives (or every claim that rests on it is worth nothing) and fail on what
 * was erased.
 */
#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"
#include "dataplane/keys/keyring.h"
#include "dataplane/keys/roe.h"
#include "dataplane/keys/roe_file_format.h"
#include "tests/attack/copies.h"
#include "tests/lib/ktree_store_history.h"
#include "tests/lib/temp_folder.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>

enum { SESSIONS = 3, PLAIN = 20000 };

static char folder[KVT_PATH_BYTES], root_path[KVT_PATH_BYTES];
static struct kv_roe *roe;
static struct kvt_history history;
static struct kv_ktree_store store;
static struct kv_ktree *tree;
static struct kv_id cluster, tenant, sessions[SESSIONS], root_id;
static struct kv_buf blob;
static uint8_t *copies[SESSIONS];
static const uint64_t copy_bytes_of_plain = PLAIN;

static struct kv_id new_id(void)
{
    struct kv_id id;
    cr_assert(eq(int, kv_id_new(&kv_env_system, &id), KV_OK));
    return id;
}

static void commit(const struct kv_id *fresh, const struct kv_id *old)
{
    struct kv_roe_receipt receipt;
    cr_assert(eq(int, roe->ops->commit(roe, fresh, old, &receipt), KV_OK));
}

/* A root of its own, wrapped; the blob is the database's row from now on. */
static void stage_root(const struct kv_id *id, struct kv_secret **ret_secret)
{
    cr_assert(eq(int, roe->ops->create(roe, id), KV_OK));
    cr_assert(eq(int, kv_secret_random(&kv_env_system, 32, ret_secret), KV_OK));
    kv_buf_reset(&blob);
    cr_assert(eq(int, roe->ops->wrap(roe, id, *ret_secret, &blob), KV_OK));
}

static void seal_copy(uint32_t index)
{
    static uint8_t plain[PLAIN];
    struct kv_secret *slot = NULL, *scope = NULL, *key = NULL;
    struct kv_sealer *sealer = NULL;
    uint8_t salt[KV_SALT_BYTES];
    const struct kv_sealed_context context = {
        .kind = KV_SEALED_BLOCK, .tenant = tenant, .scope = sessions[index], .plaintext_length = PLAIN};
    const struct kv_segment source = {.data = plain, .len = PLAIN};
    cr_assert(eq(int, kv_ktree_slot(tree, &store, &tenant, 3, index * 50, true, &slot), KV_OK));
    cr_assert(eq(int, kv_scope_secret(slot, &tenant, &sessions[index], &scope), KV_OK));
    cr_assert(eq(int, kv_scope_key_block(scope, &key), KV_OK));
    cr_assert(eq(int, kv_sealer_new(KV_CIPHER_OPENSSL, &sealer), KV_OK));
    cr_assert(eq(int, kv_env_system.random(NULL, salt, sizeof(salt)), KV_OK));
    copies[index] = kv_alloc_aligned(KV_SEALED_ALIGN, kv_sealed_bytes(copy_bytes_of_plain));
    cr_assert(eq(int, kv_sealed_seal(sealer, key, &context, salt, &source, 1, copies[index]), KV_OK));
    kv_sealer_free(sealer);
    kv_secret_free(slot);
    kv_secret_free(scope);
    kv_secret_free(key);
}

static void set_up(void)
{
    static const struct kv_id none;
    struct kv_secret *root = NULL;
    struct kv_errinfo info = {0};
    kvt_folder_make(folder);
    kvt_path_join(root_path, folder, "root");
    kv_buf_init(&blob, 65536);
    kvt_history_init(&history);
    store = kvt_history_store(&history);
    cluster = new_id();
    tenant = new_id();
    root_id = new_id();
    const struct kv_roe_conf conf = {.provider = "file", .path = root_path, .env = &kv_env_system};
    cr_assert(eq(int, kv_roe_open(&conf, &info, &roe), KV_OK), "%s", info.text);
    stage_root(&root_id, &root);
    commit(&root_id, &none);
    cr_assert(eq(int, kv_ktree_new(&kv_env_system, &cluster, &tree), KV_OK));
    cr_assert(eq(int, kv_ktree_set_root(tree, &root_id, root), KV_OK));
    cr_assert(eq(int, kv_ktree_format(tree, &store), KV_OK));
    kv_secret_free(root);
    for (uint32_t i = 0; i < SESSIONS; i++) {
        sessions[i] = new_id();
        seal_copy(i);
    }
}

static void tear_down(void)
{
    for (size_t i = 0; i < SESSIONS; i++) {
        kv_free(copies[i]);
    }
    kv_ktree_free(tree);
    kvt_history_done(&history);
    roe->ops->close(roe);
    kv_buf_done(&blob);
    kvt_folder_remove(folder);
    cr_assert(eq(sz, kv_secret_arena_used(), 0));
}

TestSuite(attack, .init = set_up, .fini = tear_down);

static void put_bytea(FILE *file, const void *bytes, size_t len, char end)
{
    const uint8_t *p = bytes;
    fputs("\\\\x", file);
    for (size_t i = 0; i < len; i++) {
        fprintf(file, "%02x", p[i]);
    }
    fputc(end, file);
}

/* The present rows, or (`all`) every row ever written, as a dump. */
static void write_dump(const char *path, bool all)
{
    FILE *file = fopen(path, "w");
    cr_assert(file != NULL);
    fputs("--\n-- PostgreSQL database dump\n--\n\nCOPY kvrun.cluster (one, id) FROM stdin;\nt\t", file);
    put_bytea(file, cluster.b, 16, '\n');
    fputs("\\.\n\nCOPY kvrun.kroot (one, root_id, provider, blob) FROM stdin;\nt\t", file);
    put_bytea(file, root_id.b, 16, '\t');
    fputs("file\t", file);
    put_bytea(file, blob.data, blob.len, '\n');
    fputs("\\.\n\nCOPY kvrun.ktree_node (tree, level, idx, node_id, node_ver, sealed) FROM stdin;\n", file);
    for (size_t i = 0; i < history.count; i++) {
        const struct kvt_row *row = &history.rows[i];
        if (row->current || all) {
            put_bytea(file, row->key.tree.b, 16, '\t');
            fprintf(file, "%u\t%u\t", row->key.level, row->key.idx);
            put_bytea(file, row->row.node_id.b, 16, '\t');
            fprintf(file, "%ld\t", (long)row->row.version);
            put_bytea(file, row->row.sealed, row->row.sealed_len, '\n');
        }
    }
    fputs("\\.\n\nCOPY kvrun.session (id, tenant_id, slot, state) FROM stdin;\n", file);
    for (uint32_t i = 0; i < SESSIONS; i++) {
        put_bytea(file, sessions[i].b, 16, '\t');
        put_bytea(file, tenant.b, 16, '\t');
        fprintf(file, "%u\tactive\n", i * 50);
    }
    fputs("\\.\n", file);
    fclose(file);
}

struct outcome {
    bool opened[SESSIONS];
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
    for (size_t i = 0; i < SESSIONS; i++) {
        outcome.opened[i] =
            opener_try(&opener, &sessions[i], KV_BYTES(copies[i], kv_sealed_bytes(copy_bytes_of_plain)));
    }
    outcome.roots_opened = reach.roots_opened;
    outcome.secrets = reach.count;
    opener_done(&opener);
    reach_done(&reach);
    loot_done(&loot);
    return outcome;
}

static void copy_file(const char *from, const char *to)
{
    static uint8_t bytes[KV_ROE_FILE_BYTES];
    cr_assert(eq(sz, kvt_file_read(from, 0, bytes, sizeof(bytes)), sizeof(bytes)));
    kvt_file_write(to, bytes, sizeof(bytes), 0600);
}

/* Stages the next root and re-keys without session 1; the old root still exists. */
static struct kv_id rekey_without_session_1(void)
{
    const struct kv_id fresh_id = new_id();
    const struct kv_ktree_target target = {.tenant = tenant, .directory_slot = 3, .slot = 50};
    struct kv_secret *fresh = NULL;
    stage_root(&fresh_id, &fresh);
    cr_assert(eq(int, kv_ktree_rekey(tree, &store, &target, 1, &fresh_id, fresh), KV_OK));
    cr_assert(eq(int, kv_ktree_set_root(tree, &fresh_id, fresh), KV_OK));
    kv_secret_free(fresh);
    const struct kv_id old = root_id;
    root_id = fresh_id;
    return old;
}

Test(attack, opens_every_copy_while_all_sessions_live)
{
    char dump[KVT_PATH_BYTES];
    kvt_path_join(dump, folder, "dump.sql");
    write_dump(dump, false);
    struct outcome outcome = attack(dump, NULL, root_path, NULL);
    cr_assert(eq(sz, outcome.roots_opened, 1));
    for (size_t i = 0; i < SESSIONS; i++) {
        cr_assert(outcome.opened[i], "copy %zu", i);
    }
}

Test(attack, erased_session_stays_closed_with_dumps_of_every_age)
{
    char before[KVT_PATH_BYTES], after[KVT_PATH_BYTES];
    kvt_path_join(before, folder, "before.sql");
    kvt_path_join(after, folder, "after.sql");
    write_dump(before, false);
    const struct kv_id old = rekey_without_session_1();
    commit(&root_id, &old);
    write_dump(after, true);
    struct outcome outcome = attack(before, after, root_path, NULL);
    cr_assert(outcome.opened[0], "control: a live session opens");
    cr_assert_not(outcome.opened[1]);
    cr_assert(outcome.opened[2], "control");
}

Test(attack, session_is_open_until_the_old_root_is_destroyed)
{
    char before[KVT_PATH_BYTES], after[KVT_PATH_BYTES];
    kvt_path_join(before, folder, "before.sql");
    kvt_path_join(after, folder, "after.sql");
    write_dump(before, false);
    const struct kv_id old = rekey_without_session_1();
    write_dump(after, false);
    cr_assert(attack(before, after, root_path, NULL).opened[1], "both roots are in the file");
    cr_assert_not(attack(after, NULL, root_path, NULL).opened[1], "the later dump alone holds nothing of it");
    commit(&root_id, &old);
    cr_assert_not(attack(before, after, root_path, NULL).opened[1]);
}

Test(attack, copy_of_the_root_file_from_before_the_erasure_opens_again)
{
    /* What no server can prevent, and a proof that the attack would find a key if there were one. */
    char before[KVT_PATH_BYTES], after[KVT_PATH_BYTES], stolen[KVT_PATH_BYTES];
    kvt_path_join(before, folder, "before.sql");
    kvt_path_join(after, folder, "after.sql");
    kvt_path_join(stolen, folder, "stolen");
    write_dump(before, false);
    copy_file(root_path, stolen);
    const struct kv_id old = rekey_without_session_1();
    commit(&root_id, &old);
    write_dump(after, false);
    cr_assert_not(attack(before, after, root_path, NULL).opened[1]);
    cr_assert(attack(before, after, root_path, stolen).opened[1]);
}

Test(attack, torn_slot_is_tried_too)
{
    char dump[KVT_PATH_BYTES], torn[KVT_PATH_BYTES];
    static uint8_t bytes[KV_ROE_FILE_BYTES];
    kvt_path_join(dump, folder, "dump.sql");
    kvt_path_join(torn, folder, "torn");
    write_dump(dump, false);
    cr_assert(eq(sz, kvt_file_read(root_path, 0, bytes, sizeof(bytes)), sizeof(bytes)));
    for (unsigned slot = 0; slot < KV_ROE_SLOTS; slot++) {
        bytes[kv_roe_slot_offset(slot) + 14] ^= 1; /* Inside the id: neither checksum nor id hold any more. */
    }
    kvt_file_write(torn, bytes, sizeof(bytes), 0600);
    cr_assert(attack(dump, NULL, torn, NULL).opened[0]);
}

Test(attack, changed_copy_does_not_count_as_opened)
{
    char dump[KVT_PATH_BYTES];
    kvt_path_join(dump, folder, "dump.sql");
    write_dump(dump, false);
    copies[0][kv_sealed_header_bytes(copy_bytes_of_plain) + PLAIN - 1] ^= 1;
    struct outcome outcome = attack(dump, NULL, root_path, NULL);
    cr_assert_not(outcome.opened[0]);
    cr_assert(outcome.opened[1], "control");
}

Test(attack, without_the_root_file_nothing_opens)
{
    char dump[KVT_PATH_BYTES], empty[KVT_PATH_BYTES];
    static const uint8_t zeroes[KV_ROE_FILE_BYTES];
    kvt_path_join(dump, folder, "dump.sql");
    kvt_path_join(empty, folder, "empty");
    write_dump(dump, true);
    kvt_file_write(empty, zeroes, sizeof(zeroes), 0600);
    struct outcome outcome = attack(dump, NULL, empty, NULL);
    cr_assert(eq(sz, outcome.secrets, 0));
    cr_assert_not(outcome.opened[0] || outcome.opened[1] || outcome.opened[2]);
}
