/*
 * Pools: an engine's paged KV memory, mapped here. Everything that a transfer relies on later (the memory cannot
 * shrink, no run leaves the mapping, no two runs share bytes) is checked once, at attach; a transfer then only computes
 * addresses. It must never touch a byte of the mapping itself.
 */
#include "dataplane/device/pool.h"

#include "dataplane/base/bytes.h"
#include "dataplane/base/check.h"
#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"
#include "dataplane/crypto/hash.h"
#include "dataplane/kernels/layout_core.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct kv_pool {
    struct kv_id id, engine, tenant;
    uint8_t *base;
    uint64_t mapped_bytes;
    uint64_t block_bytes;
    uint32_t slots, region_count, tokens;
    struct kv_layout_strip *strips;
    uint8_t fingerprint[32];
    pthread_mutex_t mutex; /* guards what follows; never held across a call */
    unsigned references;
    bool closed;
    struct kv_page_use *uses; /* one a slot, once somebody noted one; a zero session: none */
};

static KV_RC check_counts(const struct kv_pool_spec *spec, struct kv_errinfo *info)
{
    if (spec->slots == 0) {
        return kv_fail(info, KV_E_GEOMETRY_MISMATCH, "a pool has at least one slot");
    }
    if (spec->region_count == 0 || spec->region_count > (uint64_t)KV_MAX_POOL_REGIONS || spec->regions == NULL) {
        return kv_fail(info, KV_E_GEOMETRY_MISMATCH, "%u regions; a layout has 1 to %u", spec->region_count,
                       (unsigned)KV_MAX_POOL_REGIONS);
    }
    if (spec->size_bytes == 0 || spec->size_bytes > (uint64_t)KV_MAX_POOL_BYTES) {
        return kv_fail(info, KV_E_GEOMETRY_MISMATCH, "%llu bytes; a pool has 1 to %llu",
                       (unsigned long long)spec->size_bytes, (unsigned long long)KV_MAX_POOL_BYTES);
    }
    return KV_OK;
}

static KV_RC check_text(struct kv_errinfo *info, const char *name, const char *text)
{
    if (text == NULL || text[0] == 0 || strlen(text) > (size_t)KV_MAX_TEXT_BYTES) {
        return kv_fail(info, KV_E_INVALID_REQUEST, "%s must have 1 to %u bytes", name, (unsigned)KV_MAX_TEXT_BYTES);
    }
    return KV_OK;
}

static KV_RC check_identity(const struct kv_pool_spec *spec, struct kv_errinfo *info)
{
    KV_TRY(check_text(info, "kind", spec->kind));
    KV_TRY(check_text(info, "format", spec->format));
    KV_TRY(check_text(info, "engine_version", spec->engine_version));
    bool opaque = strcmp(spec->kind, "opaque") == 0;
    if (!opaque && strcmp(spec->kind, "regions") != 0) {
        return kv_fail(info, KV_E_INVALID_REQUEST, "kind is \"regions\" or \"opaque\"");
    }
    if (spec->tokens_per_block == 0) {
        return kv_fail(info, KV_E_GEOMETRY_MISMATCH, "a block holds at least one token");
    }
    if (opaque && (spec->region_count != 1 || spec->regions[0].stride_bytes != spec->regions[0].run_bytes)) {
        return kv_fail(info, KV_E_GEOMETRY_MISMATCH, "an opaque layout is one region whose stride is its page size");
    }
    return KV_OK;
}

static struct kv_layout_strip strip_of(const struct kv_region *region)
{
    return (struct kv_layout_strip){
        .offset = region->offset_bytes, .stride = region->stride_bytes, .run = region->run_bytes};
}

static KV_RC strip_fault(struct kv_errinfo *info, enum kv_layout_fault fault, unsigned index,
                         const struct kv_pool_spec *spec)
{
    const struct kv_region *r = &spec->regions[index];
    unsigned long long offset = r->offset_bytes, stride = r->stride_bytes, run = r->run_bytes;
    switch (fault) {
    case KV_LAYOUT_GOOD:
        return KV_OK;
    case KV_LAYOUT_ZERO:
        return kv_fail(info, KV_E_GEOMETRY_MISMATCH, "region %u: stride %llu, run %llu: neither may be 0", index,
                       stride, run);
    case KV_LAYOUT_RUN:
        return kv_fail(info, KV_E_GEOMETRY_MISMATCH, "region %u: run %llu is longer than stride %llu", index, run,
                       stride);
    case KV_LAYOUT_OVERFLOW:
        return kv_fail(info, KV_E_GEOMETRY_MISMATCH, "region %u: %llu + %u * %llu does not fit in 64 bits", index,
                       offset, spec->slots - 1, stride);
    case KV_LAYOUT_PAST_END:
    case KV_LAYOUT_OVERLAP:
        break;
    }
    return kv_fail(info, KV_E_GEOMETRY_MISMATCH, "region %u: %llu + %u * %llu + %llu is past the end, %llu", index,
                   offset, spec->slots - 1, stride, run, (unsigned long long)spec->size_bytes);
}

static KV_RC check_sum(const struct kv_pool_spec *spec, struct kv_errinfo *info, uint64_t sum)
{
    if (sum != spec->bytes_per_block) {
        return kv_fail(info, KV_E_GEOMETRY_MISMATCH, "the runs add up to %llu bytes a block, not %llu",
                       (unsigned long long)sum, (unsigned long long)spec->bytes_per_block);
    }
    if (sum > (uint64_t)KV_MAX_BLOCK_BYTES) {
        return kv_fail(info, KV_E_GEOMETRY_MISMATCH, "a block of %llu bytes; the most is %llu", (unsigned long long)sum,
                       (unsigned long long)KV_MAX_BLOCK_BYTES);
    }
    return KV_OK;
}

static KV_RC check_strips(const struct kv_pool_spec *spec, struct kv_errinfo *info)
{
    uint64_t sum = 0;
    for (unsigned i = 0; i < spec->region_count; i++) {
        struct kv_layout_strip strip = strip_of(&spec->regions[i]);
        KV_TRY(strip_fault(info, kv_layout_check_strip(&strip, spec->slots, spec->size_bytes), i, spec));
        sum += strip.run; /* at most 1,024 runs of a mapping of at most 1 TiB each */
    }
    return check_sum(spec, info, sum);
}

/* Quadratic in the regions, of which there are at most 1,024: half a million constant-time tests, once a pool. */
static KV_RC check_overlaps(const struct kv_pool_spec *spec, struct kv_errinfo *info)
{
    for (unsigned i = 0; i < spec->region_count; i++) {
        struct kv_layout_strip a = strip_of(&spec->regions[i]);
        for (unsigned k = i + 1; k < spec->region_count; k++) {
            struct kv_layout_strip b = strip_of(&spec->regions[k]);
            if (kv_layout_overlaps(&a, &b, spec->slots)) {
                return kv_fail(info, KV_E_GEOMETRY_MISMATCH, "regions %u and %u overlap", i, k);
            }
        }
    }
    return KV_OK;
}

static KV_RC check_size(const struct kv_pool_spec *spec, struct kv_errinfo *info)
{
    struct stat st;
    if (fstat(spec->fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        return kv_fail(info, KV_E_INVALID_REQUEST, "the descriptor is not a memory file; hand over a memfd");
    }
    if (st.st_size < 0 || (uint64_t)st.st_size < spec->size_bytes) {
        return kv_fail(info, KV_E_POOL_TRUNCATED, "the descriptor has %lld bytes, the pool %llu", (long long)st.st_size,
                       (unsigned long long)spec->size_bytes);
    }
    return KV_OK;
}

/* The size is read again after sealing: before it, the engine could still shrink the file behind our check. */
static KV_RC check_memory(const struct kv_pool_spec *spec, struct kv_errinfo *info)
{
    KV_TRY(check_size(spec, info));
    int seals = fcntl(spec->fd, F_GET_SEALS);
    if (seals < 0 || ((seals & F_SEAL_SHRINK) == 0 && fcntl(spec->fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0)) {
        return kv_fail(info, KV_E_POOL_NOT_SEALED,
                       "create the memory with memfd_create(MFD_ALLOW_SEALING) and add F_SEAL_SHRINK");
    }
    return check_size(spec, info);
}

static void put_u64(uint8_t *target, uint64_t v)
{
    struct kv_writer w = kv_writer_of(target, 8);
    kv_write_u64(&w, v);
}

/*
 * Canonical encoding: a name with a version, then each text and the run list behind its length, so that no two layouts
 * share an encoding. Offsets and strides say where bytes lie, not what they mean, and are left out: an engine that only
 * moves its pages keeps its blocks.
 */
static KV_RC fingerprint(const struct kv_pool_spec *spec, uint8_t ret_hash[32])
{
    static const char name[] = "kvrun/layout/1";
    const char *texts[3] = {spec->kind, spec->format, spec->engine_version};
    uint8_t lengths[3][8], tokens[8], count[8];
    uint8_t *runs = kv_alloc_array(spec->region_count, 8);
    if (runs == NULL) {
        return KV_E_NO_MEMORY;
    }
    for (unsigned i = 0; i < spec->region_count; i++) {
        put_u64(runs + (size_t)i * 8, spec->regions[i].run_bytes);
    }
    put_u64(tokens, spec->tokens_per_block);
    put_u64(count, spec->region_count);
    struct kv_bytes parts[10];
    size_t n = 0;
    parts[n++] = KV_BYTES(name, sizeof name);
    for (unsigned i = 0; i < 3; i++) {
        put_u64(lengths[i], strlen(texts[i]));
        parts[n++] = KV_BYTES(lengths[i], 8);
        parts[n++] = KV_BYTES(texts[i], strlen(texts[i]));
    }
    parts[n++] = KV_BYTES(tokens, 8);
    parts[n++] = KV_BYTES(count, 8);
    parts[n++] = KV_BYTES(runs, (size_t)spec->region_count * 8);
    enum kv_err rc = kv_sha256_parts(parts, n, ret_hash);
    kv_free(runs);
    return rc;
}

static void pool_free(struct kv_pool *pool)
{
    if (pool == NULL) {
        return;
    }
    if (pool->base != NULL) {
        munmap(pool->base, pool->mapped_bytes);
    }
    pthread_mutex_destroy(&pool->mutex);
    kv_free(pool->uses);
    kv_free(pool->strips);
    kv_free(pool);
}

static KV_RC pool_map(struct kv_pool *pool, const struct kv_pool_spec *spec, struct kv_errinfo *info)
{
    void *base = mmap(NULL, spec->size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, spec->fd, 0);
    if (base == MAP_FAILED) {
        if (errno == ENOMEM) { /* of huge pages there may be fewer than a size says */
            return kv_fail(info, KV_E_NO_MEMORY, "the memory cannot be mapped: this machine has no pages left for it");
        }
        return kv_fail(info, KV_E_INVALID_REQUEST,
                       "the memory cannot be mapped for reading and writing; it must not be sealed against writes");
    }
    pool->base = base;
    pool->mapped_bytes = spec->size_bytes;
    return KV_OK;
}

static KV_RC pool_new(const struct kv_pool_spec *spec, struct kv_pool **ret_pool)
{
    struct kv_pool *pool = kv_alloc(sizeof *pool);
    if (pool == NULL) {
        return KV_E_NO_MEMORY;
    }
    pthread_mutex_init(&pool->mutex, NULL);
    pool->id = spec->id;
    pool->engine = spec->engine;
    pool->tenant = spec->tenant;
    pool->slots = spec->slots;
    pool->tokens = spec->tokens_per_block;
    pool->region_count = spec->region_count;
    pool->block_bytes = spec->bytes_per_block;
    pool->references = 1;
    pool->strips = kv_alloc_array(spec->region_count, sizeof *pool->strips);
    if (pool->strips == NULL) {
        pool_free(pool);
        return KV_E_NO_MEMORY;
    }
    for (unsigned i = 0; i < spec->region_count; i++) {
        pool->strips[i] = strip_of(&spec->regions[i]);
    }
    *ret_pool = pool;
    return KV_OK;
}

KV_RC kv_pool_attach(const struct kv_pool_spec *spec, struct kv_errinfo *info, struct kv_pool **ret_pool)
{
    KV_TRY(check_counts(spec, info));
    KV_TRY(check_identity(spec, info));
    KV_TRY(check_strips(spec, info));
    KV_TRY(check_overlaps(spec, info));
    KV_TRY(check_memory(spec, info));
    struct kv_pool *pool = NULL;
    KV_TRY(pool_new(spec, &pool));
    enum kv_err rc = fingerprint(spec, pool->fingerprint);
    if (rc == KV_OK) {
        rc = pool_map(pool, spec, info);
    }
    if (rc != KV_OK) {
        pool_free(pool);
        return rc;
    }
    close(spec->fd); /* the mapping keeps the memory */
    *ret_pool = pool;
    return KV_OK;
}

struct kv_pool *kv_pool_ref(struct kv_pool *pool)
{
    pthread_mutex_lock(&pool->mutex);
    KV_ASSERT(pool->references > 0);
    pool->references++;
    pthread_mutex_unlock(&pool->mutex);
    return pool;
}

void kv_pool_unref(struct kv_pool *pool)
{
    if (pool == NULL) {
        return;
    }
    pthread_mutex_lock(&pool->mutex);
    KV_ASSERT(pool->references > 0);
    bool last = --pool->references == 0;
    pthread_mutex_unlock(&pool->mutex);
    if (last) {
        pool_free(pool);
    }
}

void kv_pool_close(struct kv_pool *pool)
{
    pthread_mutex_lock(&pool->mutex);
    pool->closed = true;
    pthread_mutex_unlock(&pool->mutex);
}

bool kv_pool_is_closed(struct kv_pool *pool)
{
    pthread_mutex_lock(&pool->mutex);
    bool closed = pool->closed;
    pthread_mutex_unlock(&pool->mutex);
    return closed;
}

const struct kv_id *kv_pool_id(const struct kv_pool *pool)
{
    return &pool->id;
}

const struct kv_id *kv_pool_engine(const struct kv_pool *pool)
{
    return &pool->engine;
}

const struct kv_id *kv_pool_tenant(const struct kv_pool *pool)
{
    return &pool->tenant;
}

const uint8_t *kv_pool_fingerprint(const struct kv_pool *pool)
{
    return pool->fingerprint;
}

uint64_t kv_pool_block_bytes(const struct kv_pool *pool)
{
    return pool->block_bytes;
}

uint32_t kv_pool_tokens(const struct kv_pool *pool)
{
    return pool->tokens;
}

uint32_t kv_pool_slots(const struct kv_pool *pool)
{
    return pool->slots;
}

bool kv_pool_counts_uses(struct kv_pool *pool)
{
    pthread_mutex_lock(&pool->mutex);
    bool counts = pool->uses != NULL;
    pthread_mutex_unlock(&pool->mutex);
    return counts;
}

bool kv_pool_last_use(struct kv_pool *pool, uint32_t slot, struct kv_page_use *ret_use)
{
    pthread_mutex_lock(&pool->mutex);
    bool known = pool->uses != NULL && slot < pool->slots && !kv_id_is_zero(&pool->uses[slot].session);
    if (known) {
        *ret_use = pool->uses[slot];
    }
    pthread_mutex_unlock(&pool->mutex);
    return known;
}

KV_RC kv_pool_note_use(struct kv_pool *pool, uint32_t slot, const struct kv_page_use *use)
{
    pthread_mutex_lock(&pool->mutex);
    if (pool->uses == NULL) {
        pool->uses = kv_alloc_array(pool->slots, sizeof *pool->uses);
    }
    bool noted = pool->uses != NULL && slot < pool->slots;
    if (noted) {
        pool->uses[slot] = *use;
    }
    pthread_mutex_unlock(&pool->mutex);
    return noted ? KV_OK : KV_E_NO_MEMORY;
}

uint32_t kv_pool_region_count(const struct kv_pool *pool)
{
    return pool->region_count;
}

bool kv_pool_segments(const struct kv_pool *pool, uint32_t slot, struct kv_segment *ret_segments)
{
    if (slot >= pool->slots) {
        return false;
    }
    for (unsigned i = 0; i < pool->region_count; i++) {
        ret_segments[i].data = pool->base + kv_layout_address(&pool->strips[i], slot);
        ret_segments[i].len = pool->strips[i].run;
    }
    return true;
}
