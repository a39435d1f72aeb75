/*
 * An nvme tier for tests; see tier_rig.h. It waits for completions and never sleeps for a fixed time.
 */
#include "tests/lib/tier_rig.h"

#include "dataplane/base/check.h"
#include "dataplane/base/mem.h"

#include <string.h>

#define RUN_TIMEOUT_NS (60 * KV_S_NS)

struct op {
    struct kv_tier_op op;
    bool ended;
    enum kv_err rc;
};

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

void kvt_block_key(uint64_t number, struct kv_tier_key *ret_key)
{
    memset(ret_key, 0x5c, sizeof(*ret_key));
    ret_key->scope.b[0] = (uint8_t)(number % 7);
    memcpy(ret_key->block_id.b, &number, sizeof(number));
}

uint64_t kvt_block_number(const struct kv_tier_key *key)
{
    uint64_t number;
    struct kv_tier_key expected;
    memcpy(&number, key->block_id.b, sizeof(number));
    kvt_block_key(number, &expected);
    return memcmp(&expected, key, sizeof(expected)) == 0 ? number : UINT64_MAX;
}

void kvt_block_fill(uint64_t number, uint8_t *data, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i += 8) {
        uint64_t word = mix(number * UINT64_C(0x9e3779b97f4a7c15) + i);
        memcpy(data + i, &word, sizeof(word));
    }
}

bool kvt_block_holds(uint64_t number, const uint8_t *data, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i += 8) {
        uint64_t word = mix(number * UINT64_C(0x9e3779b97f4a7c15) + i);
        if (memcmp(data + i, &word, sizeof(word)) != 0) {
            return false;
        }
    }
    return true;
}

enum kv_err kvt_rig_open_tier(struct kvt_rig *rig)
{
    rig->info = (struct kv_errinfo){0};
    return kv_tier_nvme.open(&rig->conf, &rig->info, &rig->tier);
}

enum kv_err kvt_rig_open(struct kvt_rig *rig, const char *folder, uint64_t bytes, uint64_t slab_bytes,
                         enum kv_io_kind kind)
{
    *rig = (struct kvt_rig){0};
    struct kv_io_conf io_conf = {.kind = kind, .depth = 16, .threads = 2, .env = &kv_env_system};
    enum kv_err rc = kv_io_open(&io_conf, &rig->info, &rig->io);
    if (rc != KV_OK) {
        return rc;
    }
    rig->buffer = kv_alloc_aligned(4096, KVT_RIG_BLOCK_BYTES);
    KV_ASSERT(rig->buffer != NULL);
    rig->conf = (struct kv_tier_conf){.path = folder,
                                      .bytes = bytes,
                                      .slab_bytes = slab_bytes,
                                      .entries_max = 1024,
                                      .io = rig->io,
                                      .env = &kv_env_system};
    return kvt_rig_open_tier(rig);
}

enum kv_err kvt_rig_close_tier(struct kvt_rig *rig)
{
    enum kv_err rc = rig->tier == NULL ? KV_OK : rig->tier->ops->close(rig->tier);
    rig->tier = NULL;
    return rc;
}

void kvt_rig_close(struct kvt_rig *rig)
{
    KV_IGNORE(kvt_rig_close_tier(rig), "tests that care close the tier themselves");
    if (rig->io != NULL) {
        rig->io->ops->close(rig->io);
    }
    kv_free(rig->buffer);
    *rig = (struct kvt_rig){0};
}

void kvt_rig_run(struct kvt_rig *rig, const bool *flag)
{
    uint64_t end = kv_now_ns(&kv_env_system) + RUN_TIMEOUT_NS;
    for (;;) {
        unsigned did = rig->io->ops->reap(rig->io, 64) + rig->tier->ops->poll(rig->tier, 64);
        uint64_t due = rig->tier->ops->next_due_ns(rig->tier);
        bool rests = did == 0 && due == UINT64_MAX && rig->io->ops->in_flight(rig->io) == 0;
        if (flag != NULL ? *flag : rests) {
            return;
        }
        KV_ASSERT(kv_now_ns(&kv_env_system) < end);
        KV_ASSERT(flag == NULL || !rests); /* what nobody works on never ends */
        if (did == 0 && due > kv_now_ns(&kv_env_system)) {
            KV_IGNORE(rig->io->ops->wait(rig->io, due < end ? due : end), "the loop looks for itself");
        }
    }
}

static void op_done(struct kv_tier_op *tier_op, enum kv_err rc)
{
    struct op *op = tier_op->owner;
    op->ended = true;
    op->rc = rc;
}

static enum kv_err perform(struct kvt_rig *rig, struct op *op)
{
    op->op.done = op_done;
    op->op.owner = op;
    enum kv_err rc = rig->tier->ops->submit(rig->tier, &op->op);
    if (rc != KV_OK) {
        return rc;
    }
    kvt_rig_run(rig, &op->ended);
    return op->rc;
}

enum kv_err kvt_put(struct kvt_rig *rig, uint64_t number, uint64_t bytes, uint64_t *ret_where)
{
    struct op op = {.op = {.kind = KV_TIER_PUT, .data = rig->buffer, .bytes = bytes, .promised = number % 2 == 1}};
    KV_ASSERT(bytes <= KVT_RIG_BLOCK_BYTES);
    kvt_block_key(number, &op.op.key);
    kvt_block_fill(number, rig->buffer, bytes);
    enum kv_err rc = perform(rig, &op);
    if (rc == KV_OK && ret_where != NULL) {
        *ret_where = op.op.where;
    }
    return rc;
}

/* Comes again as long as the tier says that it is busy. */
static enum kv_err submit_patiently(struct kvt_rig *rig, struct op *op)
{
    enum kv_err rc = rig->tier->ops->submit(rig->tier, &op->op);
    while (rc == KV_E_BUSY) {
        rig->io->ops->reap(rig->io, 64);
        rig->tier->ops->poll(rig->tier, 64);
        rc = rig->tier->ops->submit(rig->tier, &op->op);
    }
    return rc;
}

enum kv_err kvt_put_many(struct kvt_rig *rig, uint64_t first, unsigned count, uint64_t bytes, uint64_t *ret_where)
{
    struct op *ops = kv_alloc_array(count, sizeof(*ops));
    uint8_t *data = kv_alloc_aligned(4096, count * bytes);
    enum kv_err result = KV_OK;
    KV_ASSERT(ops != NULL && data != NULL);
    for (unsigned i = 0; i < count; i++) {
        ops[i].op = (struct kv_tier_op){.kind = KV_TIER_PUT, .data = data + i * bytes, .bytes = bytes, .done = op_done};
        ops[i].op.promised = (first + i) % 2 == 1;
        ops[i].op.owner = &ops[i];
        kvt_block_key(first + i, &ops[i].op.key);
        kvt_block_fill(first + i, ops[i].op.data, bytes);
        ops[i].rc = submit_patiently(rig, &ops[i]);
        ops[i].ended = ops[i].ended || ops[i].rc != KV_OK;
    }
    for (unsigned i = 0; i < count; i++) {
        kvt_rig_run(rig, &ops[i].ended);
        result = result == KV_OK ? ops[i].rc : result;
        if (ret_where != NULL) {
            ret_where[i] = ops[i].op.where;
        }
    }
    kv_free(data);
    kv_free(ops);
    return result;
}

enum kv_err kvt_get(struct kvt_rig *rig, uint64_t number, uint64_t bytes, uint64_t where)
{
    struct op op = {.op = {.kind = KV_TIER_GET, .data = rig->buffer, .bytes = bytes, .where = where}};
    KV_ASSERT(bytes <= KVT_RIG_BLOCK_BYTES);
    kvt_block_key(number, &op.op.key);
    memset(rig->buffer, 0xdd, bytes);
    enum kv_err rc = perform(rig, &op);
    return rc == KV_OK && !kvt_block_holds(number, rig->buffer, bytes) ? KV_E_TAMPERED : rc;
}

enum kv_err kvt_drop(struct kvt_rig *rig, uint64_t number, uint64_t where)
{
    struct kv_tier_key key;
    kvt_block_key(number, &key);
    return rig->tier->ops->drop(rig->tier, &key, where);
}

struct kv_tier_stats kvt_stats(struct kvt_rig *rig)
{
    struct kv_tier_stats stats;
    rig->tier->ops->stats(rig->tier, &stats);
    return stats;
}

static void take_found(void *ctx, const struct kv_tier_key *key, uint64_t where, uint64_t bytes, bool promised)
{
    struct kvt_found *found = ctx;
    KV_ASSERT(found->count < 4096);
    found->number[found->count] = kvt_block_number(key);
    found->where[found->count] = where;
    found->size[found->count] = bytes;
    found->promised[found->count] = promised;
    found->bytes += bytes;
    found->count++;
}

void kvt_scan(struct kvt_rig *rig, struct kvt_found *ret_found)
{
    ret_found->count = 0;
    ret_found->bytes = 0;
    rig->tier->ops->scan(rig->tier, take_found, ret_found);
}

int kvt_find(const struct kvt_found *found, uint64_t number)
{
    for (unsigned i = 0; i < found->count; i++) {
        if (found->number[i] == number) {
            return (int)i;
        }
    }
    return -1;
}

bool kvt_all_verify(struct kvt_rig *rig, const struct kvt_found *found)
{
    for (unsigned i = 0; i < found->count; i++) {
        if (kvt_get(rig, found->number[i], found->size[i], found->where[i]) != KV_OK) {
            return false;
        }
    }
    return true;
}
