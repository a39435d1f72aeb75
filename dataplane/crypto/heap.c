/*
 * OpenSSL's heap: spans of 64 KiB, each cut into places of one size or part of a run for something large. The
 * bookkeeping lies outside, as the arena's does. Behind each place is a canary, looked at when it is freed; a place is
 * wiped whole then, so what is handed out is zeroes. Never calls anything that allocates while it holds its lock.
 *
 * All of OpenSSL's memory, and not its "secure heap": that one holds private keys only, while keys are just as well in
 * the contexts of ciphers, of HMAC and of HKDF, which OpenSSL takes from its common allocator.
 */
#include "dataplane/base/check.h"
#include "dataplane/base/fault.h"
#include "dataplane/base/log.h"
#include "dataplane/crypto/heap_int.h"
#include "dataplane/crypto/pages_int.h"

#include <openssl/crypto.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/random.h>

/* The leak checker follows pointers from here, too. */
#ifdef __has_feature
#if __has_feature(address_sanitizer)
#define LEAKS_ARE_CHECKED
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(LEAKS_ARE_CHECKED)
#include <sanitizer/lsan_interface.h>
#else
#define __lsan_register_root_region(start, bytes) ((void)0)
#endif

#define HEAP_BYTES ((size_t)KV_MAX_CRYPTO_HEAP_BYTES)

enum {
    SPAN_BYTES = 64 * 1024,
    CHUNK_SPANS = 16, /* taken from the system at once, so that what is locked is near to what is used */
    SPANS_MAX = 1024,
    PLACE_BYTES_MIN = 32,
    PLACES_MAX = SPAN_BYTES / PLACE_BYTES_MIN,
    CANARY_BYTES = 8,
};

/* Multiples of 16 each. 20480: a TLS record with its overhead. */
static const uint32_t sizes[] = {32,   48,   64,   96,   128,  192,  256,   384,   512,   768,  1024,
                                 1536, 2048, 3072, 4096, 6144, 8192, 12288, 20480, 32768, 65536};
#define SIZES (sizeof sizes / sizeof sizes[0])

enum span_use { SPAN_NONE = 0 /* not filled */, SPAN_FREE, SPAN_PLACES, SPAN_RUN, SPAN_RUN_MORE };

struct span {
    uint8_t use;
    uint8_t size;          /* SPAN_PLACES: index into `sizes` */
    uint16_t live;         /* places taken */
    uint32_t run;          /* SPAN_RUN: spans of it */
    uint32_t next, before; /* of the list of spans of this size with a free place; SPANS_MAX: none */
    uint64_t taken[PLACES_MAX / 64];
};

static struct {
    pthread_mutex_t lock;
    uint8_t *base;
    struct span spans[SPANS_MAX];
    struct kv_pages_kind kinds[SPANS_MAX / CHUNK_SPANS];
    uint32_t filled; /* spans, a multiple of CHUNK_SPANS */
    uint32_t partial[SIZES];
    uint64_t canary;
    struct kv_crypto_heap_stats stats;
    bool forked; /* zeroes are all that is here of the parent: what it allocated is not freed */
} heap = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Of this thread: an allocation was refused since kv_heap_refused asked. */
static _Thread_local bool refused_here;

/* ---- places ---- */

static uint8_t *span_start(uint32_t index)
{
    return heap.base + (size_t)index * SPAN_BYTES;
}

static uint32_t places_of(const struct span *span)
{
    return SPAN_BYTES / sizes[span->size];
}

static void write_canary(uint8_t *start, size_t bytes)
{
    uint64_t canary = heap.canary ^ (uint64_t)(uintptr_t)start;
    memcpy(start + bytes - CANARY_BYTES, &canary, CANARY_BYTES);
}

static bool canary_holds(const uint8_t *start, size_t bytes)
{
    uint64_t canary = heap.canary ^ (uint64_t)(uintptr_t)start;
    return memcmp(start + bytes - CANARY_BYTES, &canary, CANARY_BYTES) == 0;
}

static void list_add(uint32_t index)
{
    struct span *span = &heap.spans[index];
    uint32_t first = heap.partial[span->size];
    span->before = SPANS_MAX;
    span->next = first;
    if (first != SPANS_MAX) {
        heap.spans[first].before = index;
    }
    heap.partial[span->size] = index;
}

static void list_remove(uint32_t index)
{
    struct span *span = &heap.spans[index];
    if (span->before != SPANS_MAX) {
        heap.spans[span->before].next = span->next;
    } else {
        heap.partial[span->size] = span->next;
    }
    if (span->next != SPANS_MAX) {
        heap.spans[span->next].before = span->before;
    }
}

/* ---- spans ---- */

/* One chunk more from the system. */
static bool fill_chunk(void)
{
    if (heap.filled == SPANS_MAX) {
        return false;
    }
    uint8_t *start = span_start(heap.filled);
    size_t bytes = (size_t)CHUNK_SPANS * SPAN_BYTES;
    struct kv_pages_kind *kind = &heap.kinds[heap.filled / CHUNK_SPANS];
    if (kv_pages_fill(start, bytes, true, kind) != KV_OK) {
        return false;
    }
    __lsan_register_root_region(start, bytes);
    for (uint32_t i = 0; i < CHUNK_SPANS; i++) {
        heap.spans[heap.filled + i].use = SPAN_FREE;
    }
    heap.filled += CHUNK_SPANS;
    heap.stats.filled_bytes += bytes;
    heap.stats.locked_bytes += kind->locked ? bytes : 0;
    return true;
}

/* The first of `count` free spans side by side; SPANS_MAX: there are none. */
static uint32_t find_free(uint32_t count)
{
    uint32_t row = 0;
    for (uint32_t i = 0; i < heap.filled; i++) {
        row = heap.spans[i].use == SPAN_FREE ? row + 1 : 0;
        if (row == count) {
            return i + 1 - count;
        }
    }
    return SPANS_MAX;
}

static uint32_t take_spans(uint32_t count)
{
    uint32_t index = find_free(count);
    while (index == SPANS_MAX && fill_chunk()) {
        index = find_free(count);
    }
    return index;
}

static uint8_t *alloc_run(size_t bytes)
{
    if (bytes > HEAP_BYTES - CANARY_BYTES) {
        return NULL;
    }
    uint32_t count = (uint32_t)((bytes + CANARY_BYTES + SPAN_BYTES - 1) / SPAN_BYTES);
    uint32_t index = take_spans(count);
    if (index == SPANS_MAX) {
        return NULL;
    }
    for (uint32_t i = 0; i < count; i++) {
        heap.spans[index + i].use = i == 0 ? SPAN_RUN : SPAN_RUN_MORE;
    }
    heap.spans[index].run = count;
    heap.stats.used_bytes += (size_t)count * SPAN_BYTES;
    write_canary(span_start(index), (size_t)count * SPAN_BYTES);
    return span_start(index);
}

static bool open_span(uint8_t size)
{
    uint32_t index = take_spans(1);
    if (index == SPANS_MAX) {
        return false;
    }
    struct span *span = &heap.spans[index];
    *span = (struct span){.use = SPAN_PLACES, .size = size};
    list_add(index);
    return true;
}

/* The first free place of a span that has one. */
static uint32_t first_free(const struct span *span)
{
    uint32_t word = 0;
    while (span->taken[word] == UINT64_MAX) {
        word++;
    }
    uint32_t place = word * 64 + (uint32_t)__builtin_ctzll(~span->taken[word]);
    KV_ASSERT(place < places_of(span));
    return place;
}

static uint8_t *alloc_place(uint8_t size)
{
    if (heap.partial[size] == SPANS_MAX && !open_span(size)) {
        return NULL;
    }
    uint32_t index = heap.partial[size];
    struct span *span = &heap.spans[index];
    uint32_t place = first_free(span);
    span->taken[place / 64] |= UINT64_C(1) << place % 64;
    if (++span->live == places_of(span)) {
        list_remove(index);
    }
    uint8_t *start = span_start(index) + (size_t)place * sizes[size];
    heap.stats.used_bytes += sizes[size];
    write_canary(start, sizes[size]);
    return start;
}

/* ---- what OpenSSL asks for ---- */

void *kv_heap_alloc(size_t bytes)
{
    static atomic_flag told = ATOMIC_FLAG_INIT; /* one line is enough: the metric counts */
    uint8_t size = 0;
    if (bytes == 0) {
        return NULL;
    }
    while (size < SIZES && (bytes > sizes[size] || sizes[size] - bytes < CANARY_BYTES)) {
        size++;
    }
    pthread_mutex_lock(&heap.lock);
    bool closed = heap.base == NULL || KV_FAULT("crypto/heap");
    uint8_t *start = closed ? NULL : size < SIZES ? alloc_place(size) : alloc_run(bytes);
    heap.stats.refusals += start == NULL ? 1 : 0;
    pthread_mutex_unlock(&heap.lock);
    refused_here = refused_here || start == NULL;
    if (start == NULL && !atomic_flag_test_and_set(&told)) {
        kv_log(KV_LOG_ERROR, "crypto", "openssl_memory_used_up", KV_FU("bytes", bytes), KV_FU("limit", HEAP_BYTES));
    }
    return start;
}

bool kv_heap_refused(void)
{
    bool refused = refused_here;
    refused_here = false;
    return refused;
}

struct place {
    uint32_t span;
    uint32_t index; /* within SPAN_PLACES */
    uint8_t *start;
    size_t bytes; /* with the canary */
};

/* Lock held. Stops the program when `memory` was not given out. */
static struct place place_of(const void *memory)
{
    size_t offset = (size_t)((uintptr_t)memory - (uintptr_t)heap.base);
    KV_ASSERT(heap.base != NULL && offset < (size_t)heap.filled * SPAN_BYTES);
    struct place place = {.span = (uint32_t)(offset / SPAN_BYTES)};
    const struct span *span = &heap.spans[place.span];
    size_t inside = offset % SPAN_BYTES;
    if (span->use == SPAN_RUN) {
        KV_ASSERT(inside == 0);
        place.bytes = (size_t)span->run * SPAN_BYTES;
    } else {
        KV_ASSERT(span->use == SPAN_PLACES && inside % sizes[span->size] == 0);
        place.index = (uint32_t)(inside / sizes[span->size]);
        KV_ASSERT((span->taken[place.index / 64] >> place.index % 64 & 1) != 0);
        place.bytes = sizes[span->size];
    }
    place.start = heap.base + offset;
    return place;
}

static void free_place(const struct place *place)
{
    struct span *span = &heap.spans[place->span];
    if (span->live-- == places_of(span)) {
        list_add(place->span);
    }
    span->taken[place->index / 64] &= ~(UINT64_C(1) << place->index % 64);
    /* The last span of its size stays cut up: the next block's derivation wants it again. */
    bool only = span->before == SPANS_MAX && span->next == SPANS_MAX;
    if (span->live == 0 && !only) {
        list_remove(place->span);
        span->use = SPAN_FREE;
    }
}

static void free_run(const struct place *place)
{
    uint32_t count = heap.spans[place->span].run;
    for (uint32_t i = 0; i < count; i++) {
        heap.spans[place->span + i].use = SPAN_FREE;
    }
}

/* Lock held. */
static void free_locked(void *memory)
{
    struct place place = place_of(memory);
    KV_ASSERT(canary_holds(place.start, place.bytes));
    kv_wipe(place.start, place.bytes);
    heap.stats.used_bytes -= place.bytes;
    if (heap.spans[place.span].use == SPAN_RUN) {
        free_run(&place);
    } else {
        free_place(&place);
    }
}

void kv_heap_free(void *memory)
{
    if (memory == NULL) {
        return;
    }
    pthread_mutex_lock(&heap.lock);
    if (!heap.forked) {
        free_locked(memory);
    }
    pthread_mutex_unlock(&heap.lock);
}

size_t kv_heap_room(const void *memory)
{
    pthread_mutex_lock(&heap.lock);
    size_t room = place_of(memory).bytes - CANARY_BYTES;
    pthread_mutex_unlock(&heap.lock);
    return room;
}

void *kv_heap_resize(void *memory, size_t bytes)
{
    if (memory == NULL || bytes == 0) {
        kv_heap_free(memory);
        return kv_heap_alloc(bytes);
    }
    size_t room = kv_heap_room(memory);
    if (bytes <= room && bytes >= room / 4) {
        return memory;
    }
    void *fresh = kv_heap_alloc(bytes);
    if (fresh != NULL) {
        memcpy(fresh, memory, bytes < room ? bytes : room);
        kv_heap_free(memory);
    }
    return fresh;
}

void kv_crypto_heap_stats(struct kv_crypto_heap_stats *ret_stats)
{
    pthread_mutex_lock(&heap.lock);
    *ret_stats = heap.stats;
    pthread_mutex_unlock(&heap.lock);
}

/* ---- start, fork ---- */

static void lock_before_fork(void)
{
    pthread_mutex_lock(&heap.lock);
}

static void unlock_after_fork(void)
{
    pthread_mutex_unlock(&heap.lock);
}

static void child_after_fork(void)
{
    for (uint32_t i = 0; i < heap.filled; i += CHUNK_SPANS) {
        if (heap.kinds[i / CHUNK_SPANS].shared) {
            kv_pages_after_fork(span_start(i), (size_t)CHUNK_SPANS * SPAN_BYTES);
        }
    }
    heap.forked = true;
    pthread_mutex_unlock(&heap.lock);
}

static KV_RC open_locked(void)
{
    KV_ASSERT(HEAP_BYTES == (size_t)SPANS_MAX * SPAN_BYTES);
    if (heap.base != NULL) {
        return KV_E_INVALID_STATE;
    }
    for (size_t i = 0; i < SIZES; i++) {
        heap.partial[i] = SPANS_MAX;
    }
    if (getrandom(&heap.canary, sizeof heap.canary, 0) != (ssize_t)sizeof heap.canary) {
        return KV_E_CRYPTO;
    }
    KV_TRY(kv_pages_reserve(HEAP_BYTES, &heap.base));
    return KV_OK;
}

KV_RC kv_heap_open(void)
{
    pthread_mutex_lock(&heap.lock);
    enum kv_err rc = open_locked();
    pthread_mutex_unlock(&heap.lock);
    KV_TRY(rc);
    /* Before there is a second thread, so no fork can have begun without the handlers. */
    return pthread_atfork(lock_before_fork, unlock_after_fork, child_after_fork) == 0 ? KV_OK : KV_E_NO_MEMORY;
}

static void *openssl_alloc(size_t bytes, const char *file, int line)
{
    (void)file;
    (void)line;
    return kv_heap_alloc(bytes);
}

static void *openssl_resize(void *memory, size_t bytes, const char *file, int line)
{
    (void)file;
    (void)line;
    return kv_heap_resize(memory, bytes);
}

static void openssl_free(void *memory, const char *file, int line)
{
    (void)file;
    (void)line;
    kv_heap_free(memory);
}

KV_RC kv_crypto_heap_init(void)
{
    KV_TRY(kv_heap_open());
    return CRYPTO_set_mem_functions(openssl_alloc, openssl_resize, openssl_free) == 1 ? KV_OK : KV_E_INVALID_STATE;
}
