/*
 * The world that the attack's own tests attack.
 */
#include "tests/attack/world.h"
#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"
#include "dataplane/crypto/sealed.h"
#include "dataplane/keys/keyring.h"
#include "dataplane/keys/roe.h"
#include "dataplane/keys/roe_file_format.h"
#include "tests/lib/ktree_store_history.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <string.h>

enum { PLAIN = 20000 };

struct world world;

static struct kv_roe *roe;
static struct kvt_history history;
static struct kv_ktree_store store;
static struct kv_ktree *tree;
static struct kv_id cluster;
static struct kv_buf blob;
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

/* Whose a session is, and where its key hangs. */
static const struct kv_id *owner_of(uint32_t index)
{
    return index == 3 ? &world.other : &world.tenant;
}

static const struct kv_id *tree_of(uint32_t index, uint32_t *ret_place)
{
    *ret_place = index < 3 ? 3 : index + 1;
    return index == 4 ? &world.later_tree : owner_of(index);
}

static void seal_copy(uint32_t index)
{
    uint32_t place = 0;
    const struct kv_id *owner = owner_of(index), *hangs = tree_of(index, &place);
    static uint8_t plain[PLAIN];
    struct kv_secret *slot = NULL, *scope = NULL, *key = NULL;
    struct kv_sealer *sealer = NULL;
    uint8_t salt[KV_SALT_BYTES];
    const struct kv_sealed_context context = {
        .kind = KV_SEALED_BLOCK, .tenant = *owner, .scope = world.sessions[index], .plaintext_length = PLAIN};
    const struct kv_segment source = {.data = plain, .len = PLAIN};
    cr_assert(eq(int, kv_ktree_slot(tree, &store, hangs, place, index * 50, true, &slot), KV_OK));
    cr_assert(eq(int, kv_scope_secret(slot, owner, &world.sessions[index], &scope), KV_OK));
    cr_assert(eq(int, kv_scope_key_block(scope, &key), KV_OK));
    cr_assert(eq(int, kv_sealer_new(KV_CIPHER_OPENSSL, &sealer), KV_OK));
    cr_assert(eq(int, kv_env_system.random(NULL, salt, sizeof(salt)), KV_OK));
    world.copies[index] = kv_alloc_aligned(KV_SEALED_ALIGN, kv_sealed_bytes(copy_bytes_of_plain));
    cr_assert(eq(int, kv_sealed_seal(sealer, key, &context, salt, &source, 1, world.copies[index]), KV_OK));
    kv_sealer_free(sealer);
    kv_secret_free(slot);
    kv_secret_free(scope);
    kv_secret_free(key);
}

void world_make(void)
{
    static const struct kv_id none;
    struct kv_secret *root = NULL;
    struct kv_errinfo info = {0};
    kvt_folder_make(world.folder);
    kvt_path_join(world.root_path, world.folder, "root");
    kv_buf_init(&blob, 65536);
    kvt_history_init(&history);
    store = kvt_history_store(&history);
    cluster = new_id();
    world.tenant = new_id();
    world.other = new_id();
    world.later_tree = new_id();
    world.root_id = new_id();
    const struct kv_roe_conf conf = {.provider = "file", .path = world.root_path, .env = &kv_env_system};
    cr_assert(eq(int, kv_roe_open(&conf, &info, &roe), KV_OK), "%s", info.text);
    stage_root(&world.root_id, &root);
    commit(&world.root_id, &none);
    cr_assert(eq(int, kv_ktree_new(&kv_env_system, &cluster, &tree), KV_OK));
    cr_assert(eq(int, kv_ktree_set_root(tree, &world.root_id, root), KV_OK));
    cr_assert(eq(int, kv_ktree_format(tree, &store), KV_OK));
    kv_secret_free(root);
    for (uint32_t i = 0; i < WORLD_SESSIONS; i++) {
        world.sessions[i] = new_id();
        seal_copy(i);
    }
}

void world_end(void)
{
    for (size_t i = 0; i < WORLD_SESSIONS; i++) {
        kv_free(world.copies[i]);
    }
    kv_ktree_free(tree);
    kvt_history_done(&history);
    roe->ops->close(roe);
    kv_buf_done(&blob);
    kvt_folder_remove(world.folder);
    cr_assert(eq(sz, kv_secret_arena_used(), 0));
}

static void put_bytea(FILE *file, const void *bytes, size_t len, char end)
{
    const uint8_t *p = bytes;
    fputs("\\\\x", file);
    for (size_t i = 0; i < len; i++) {
        fprintf(file, "%02x", p[i]);
    }
    fputc(end, file);
}

void world_write_dump(const char *path, bool all)
{
    FILE *file = fopen(path, "w");
    cr_assert(file != NULL);
    fputs("--\n-- PostgreSQL database dump\n--\n\nCOPY kvrun.cluster (one, id) FROM stdin;\nt\t", file);
    put_bytea(file, cluster.b, 16, '\n');
    fputs("\\.\n\nCOPY kvrun.kroot (one, root_id, provider, blob) FROM stdin;\nt\t", file);
    put_bytea(file, world.root_id.b, 16, '\t');
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
    for (uint32_t i = 0; i < WORLD_SESSIONS; i++) {
        put_bytea(file, world.sessions[i].b, 16, '\t');
        put_bytea(file, owner_of(i)->b, 16, '\t');
        fprintf(file, "%u\tactive\n", i * 50);
    }
    fputs("\\.\n", file);
    fclose(file);
}

void world_copy_root_file(const char *to)
{
    static uint8_t bytes[KV_ROE_FILE_BYTES];
    cr_assert(eq(sz, kvt_file_read(world.root_path, 0, bytes, sizeof(bytes)), sizeof(bytes)));
    kvt_file_write(to, bytes, sizeof(bytes), 0600);
}

static struct kv_id rekey_without(const struct kv_ktree_target *target)
{
    const struct kv_id fresh_id = new_id();
    struct kv_secret *fresh = NULL;
    stage_root(&fresh_id, &fresh);
    cr_assert(eq(int, kv_ktree_rekey(tree, &store, target, 1, &fresh_id, fresh), KV_OK));
    cr_assert(eq(int, kv_ktree_set_root(tree, &fresh_id, fresh), KV_OK));
    kv_secret_free(fresh);
    const struct kv_id old = world.root_id;
    world.root_id = fresh_id;
    return old;
}

struct kv_id world_rekey_without_session_1(void)
{
    const struct kv_ktree_target target = {.tenant = world.tenant, .directory_slot = 3, .slot = 50};
    return rekey_without(&target);
}

struct kv_id world_rekey_without_tree(void)
{
    const struct kv_ktree_target target = {.tenant = world.tenant, .directory_slot = 3, .whole = true};
    return rekey_without(&target);
}

void world_destroy(const struct kv_id *old)
{
    commit(&world.root_id, old);
}

struct kv_bytes world_copy(size_t session)
{
    return KV_BYTES(world.copies[session], kv_sealed_bytes(copy_bytes_of_plain));
}
