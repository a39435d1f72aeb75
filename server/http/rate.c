/*
 * The buckets, as theoretical arrival times (GCRA): a bucket is one number, the time at which it is full again. Must
 * never grow: a table has its places from the start, and the caller that asked least lately gives its place up.
 */
#include "server/http/rate.h"

#include "dataplane/base/mem.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#define PLACES 4096u /* of a table; a power of two */
#define TRIES 8u     /* places that one caller may have */

struct bucket {
    uint8_t who[16];
    uint64_t full_ns; /* when it is full again; 0: never used */
};

struct table {
    pthread_mutex_t mutex;
    atomic_uint per_second;
    struct bucket buckets[PLACES];
};

struct kv_rate {
    const struct kv_env *env;
    struct table tables[KV_RATE_KINDS];
};

KV_RC kv_rate_new(const struct kv_env *env, struct kv_rate **ret_rate)
{
    struct kv_rate *rate = kv_alloc(sizeof *rate);
    if (rate == NULL) {
        return KV_E_NO_MEMORY;
    }
    rate->env = env;
    for (int i = 0; i < KV_RATE_KINDS; i++) {
        pthread_mutex_init(&rate->tables[i].mutex, NULL);
    }
    *ret_rate = rate;
    return KV_OK;
}

void kv_rate_free(struct kv_rate *rate)
{
    for (int i = 0; rate != NULL && i < KV_RATE_KINDS; i++) {
        pthread_mutex_destroy(&rate->tables[i].mutex);
    }
    kv_free(rate);
}

void kv_rate_set(struct kv_rate *rate, enum kv_rate_kind kind, unsigned per_second)
{
    atomic_store(&rate->tables[kind].per_second, per_second);
}

/* An id's last bytes are random; an address is stirred. */
static unsigned first_place(const uint8_t who[16])
{
    uint64_t hash = UINT64_C(14695981039346656037);
    for (int i = 0; i < 16; i++) {
        hash = (hash ^ who[i]) * UINT64_C(1099511628211);
    }
    return (unsigned)(hash >> 32) % PLACES;
}

/* Under the table's mutex: the caller's bucket, or NULL and of those it may have the one that was full first. */
static struct bucket *find_bucket(struct table *table, const uint8_t who[16], struct bucket **ret_best)
{
    unsigned first = first_place(who);
    struct bucket *best = &table->buckets[first];
    for (unsigned i = 0; i < TRIES; i++) {
        struct bucket *bucket = &table->buckets[(first + i) % PLACES];
        if (memcmp(bucket->who, who, sizeof bucket->who) == 0) {
            return bucket;
        }
        best = bucket->full_ns < best->full_ns ? bucket : best;
    }
    *ret_best = best;
    return NULL;
}

static struct bucket *take_bucket(struct table *table, const uint8_t who[16])
{
    struct bucket *best = NULL, *bucket = find_bucket(table, who, &best);
    if (bucket != NULL) {
        return bucket;
    }
    memcpy(best->who, who, sizeof best->who);
    best->full_ns = 0;
    return best;
}

bool kv_rate_take(struct kv_rate *rate, enum kv_rate_kind kind, const uint8_t who[16], struct kv_rate_state *ret_state)
{
    struct table *table = &rate->tables[kind];
    unsigned limit = atomic_load(&table->per_second);
    if (limit == 0) {
        return true;
    }
    uint64_t now = kv_now_ns(rate->env), step = KV_S_NS / limit;
    pthread_mutex_lock(&table->mutex);
    struct bucket *bucket = take_bucket(table, who);
    uint64_t full = (bucket->full_ns > now ? bucket->full_ns : now) + step;
    bool taken = full - now <= step * limit;
    bucket->full_ns = taken ? full : bucket->full_ns;
    uint64_t behind = bucket->full_ns - now;
    pthread_mutex_unlock(&table->mutex);
    *ret_state = (struct kv_rate_state){.present = true,
                                        .limit = limit,
                                        .remaining = (unsigned)((step * limit - behind) / step),
                                        .reset_seconds = (unsigned)((behind + KV_S_NS - 1) / KV_S_NS)};
    return taken;
}

bool kv_rate_is_left(struct kv_rate *rate, enum kv_rate_kind kind, const uint8_t who[16])
{
    struct table *table = &rate->tables[kind];
    unsigned limit = atomic_load(&table->per_second);
    if (limit == 0) {
        return true;
    }
    uint64_t now = kv_now_ns(rate->env), step = KV_S_NS / limit;
    pthread_mutex_lock(&table->mutex);
    struct bucket *unused = NULL;
    const struct bucket *bucket = find_bucket(table, who, &unused);
    bool left = bucket == NULL || bucket->full_ns <= now || bucket->full_ns + step - now <= step * limit;
    pthread_mutex_unlock(&table->mutex);
    return left;
}
