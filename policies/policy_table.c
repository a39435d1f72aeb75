/*
 * See policy_table.h. An entry is one cache line with all that most decisions read, and two elsewhere with the rest.
 * Lines lie one after the other in the order in which they were put, so that nothing beside them takes room in the
 * caches, and an index of four bytes an entry leads to them. Readers take no lock: they copy a line's words and look
 * whether its sequence number is still the same and even. Must never let a reader use words of two entries.
 */
#include "policies/policy_table.h"

#include "dataplane/base/check.h"
#include "dataplane/base/mem.h"
#include "policies/policy_int.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#define WINDOW 64 /* places of the index, from an entry's home on, in which it may be */
#define NEAR_NAMES 3
#define FAR_NAMES 7
#define UNTIL_SHIFT 26 /* 67 ms; 32 bits of it are nine years since the machine's start */
#define NO_KIND 3      /* of a place without a name */
#define LINE_WORDS 8
#define REST_WORDS 16

struct line {
    uint32_t sequence; /* odd while it is written */
    uint32_t stamp;    /* of the entry's, the low half: it would have to count round within one lease */
    uint32_t until;
    uint8_t tiers_given; /* tiers_allowed, and `given` << 4 */
    uint8_t actions;     /* actions_forbidden, `restore` << 5, and `sharing` << 7 */
    uint8_t name_count;
    uint8_t kinds; /* of the names, two bits each */
    uint32_t block_bytes, age_s;
    uint64_t key[2];
    uint64_t names[NEAR_NAMES];
};

/* What is not in the line; a cache line each. */
struct more_names {
    uint64_t names[FAR_NAMES];
    uint8_t kinds[8]; /* of the names, one each */
};
struct rest {
    struct kv_policy_bounds bounds;
    struct more_names more;
};

_Static_assert(sizeof(struct line) == LINE_WORDS * 8 && sizeof(struct more_names) == LINE_WORDS * 8 &&
                   sizeof(struct kv_policy_bounds) == LINE_WORDS * 8 && sizeof(struct rest) == REST_WORDS * 8,
               "whole cache lines");

struct shared_line {
    _Atomic uint64_t words[LINE_WORDS];
} __attribute__((aligned(64)));

struct shared_rest {
    _Atomic uint64_t words[REST_WORDS];
} __attribute__((aligned(64)));

struct kv_policy_table {
    _Atomic uint32_t *index; /* upper half: a tag, lower half: 1 + the line's number; 0: free */
    struct shared_line *lines;
    struct shared_rest *rests;
    uint32_t index_mask, capacity;
    unsigned index_shift;
    struct kv_policy_hasher hasher;
    pthread_mutex_t put_mutex;
    uint32_t used; /* lines, from the first on; under put_mutex */
    void *memory;  /* owned: index, lines and rests lie in it */
};

KV_RC kv_policy_table_new(uint32_t capacity, const struct kv_policy_hasher *hasher, struct kv_policy_table **ret_table)
{
    KV_ASSERT(capacity >= 64 && capacity <= KV_POLICY_TABLE_MAX && (capacity & (capacity - 1)) == 0);
    const size_t entry_bytes = sizeof(struct shared_line) + sizeof(struct shared_rest) + 2 * sizeof(uint32_t);
    struct kv_policy_table *table = kv_alloc(sizeof *table);
    /* Not kv_alloc_aligned, which writes all of it: of a large allocation only what is used takes memory. */
    void *memory = kv_alloc_array(capacity + 1, entry_bytes);
    if (table == NULL || memory == NULL) {
        kv_free(memory);
        kv_free(table);
        return KV_E_NO_MEMORY;
    }
    table->memory = memory;
    table->lines = (struct shared_line *)(((uintptr_t)memory + 63) & ~(uintptr_t)63);
    table->rests = (struct shared_rest *)(table->lines + capacity);
    table->index = (_Atomic uint32_t *)(table->rests + capacity);
    table->capacity = capacity;
    table->index_mask = 2 * capacity - 1;
    table->index_shift = 63 - (unsigned)__builtin_ctz(capacity);
    table->hasher = *hasher;
    pthread_mutex_init(&table->put_mutex, NULL);
    *ret_table = table;
    return KV_OK;
}

void kv_policy_table_free(struct kv_policy_table *table)
{
    if (table != NULL) {
        pthread_mutex_destroy(&table->put_mutex);
        kv_free(table->memory);
        kv_free(table);
    }
}

KV_RC kv_policy_table_hash(const struct kv_policy_table *table, const char *text, uint64_t *ret_hash)
{
    uint64_t hash = 0;
    if (text != NULL && text[0] != '\0') {
        KV_TRY(table->hasher.hash(table->hasher.ctx, text, &hash));
        hash = hash == 0 ? 1 : hash; /* 0 is the name that is not known */
    }
    *ret_hash = hash;
    return KV_OK;
}

/* --- finding ------------------------------------------------------------------------------------------------------ */

struct key {
    uint64_t words[2];
};

/* The id as it is, and the class folded into its first half, which within one class keeps ids apart. */
static inline struct key key_of(const struct kv_id *tenant, uint64_t class_hash)
{
    struct key key;
    memcpy(key.words, tenant->b, sizeof key.words);
    key.words[0] ^= class_hash;
    return key;
}

/* Where the key's run in the index begins, and its tag, which is never 0. */
struct place {
    uint32_t home, tag;
};

static inline struct place place_of(const struct kv_policy_table *table, const struct key *key)
{
    uint64_t hash = (key->words[0] ^ key->words[1]) * UINT64_C(0x9e3779b97f4a7c15);
    return (struct place){.home = (uint32_t)(hash >> table->index_shift), .tag = (uint32_t)(hash & 0xffff) | 1};
}

/* Acquire, so that the sequence number, which is read again afterwards, is not read before. */
static inline void copy_out(const _Atomic uint64_t *words, unsigned count, void *target)
{
    uint64_t copy[LINE_WORDS];
    for (unsigned i = 0; i < count; i++) {
        copy[i] = atomic_load_explicit(&words[i], memory_order_acquire);
    }
    memcpy(target, copy, count * sizeof copy[0]);
}

/* What is in `ret_line` is to be trusted only after `is_whole`. */
static inline bool is_of(const struct kv_policy_table *table, uint32_t at, const struct key *key, struct line *ret_line)
{
    copy_out(table->lines[at].words, LINE_WORDS, ret_line);
    return ret_line->key[0] == key->words[0] && ret_line->key[1] == key->words[1];
}

/* The line's number, or -1. */
static int64_t find(const struct kv_policy_table *table, const struct key *key, struct line *ret_line)
{
    const struct place place = place_of(table, key);
    for (uint32_t i = 0; i < WINDOW; i++) {
        /* Acquire: the line that it leads to was written before. */
        uint32_t entry =
            atomic_load_explicit(&table->index[(place.home + i) & table->index_mask], memory_order_acquire);
        if (entry == 0) { /* nothing was put behind it */
            return -1;
        }
        if (entry >> 16 == place.tag && is_of(table, (entry & 0xffff) - 1, key, ret_line)) {
            return (entry & 0xffff) - 1;
        }
    }
    return -1;
}

static inline bool is_whole(const struct kv_policy_table *table, uint32_t at, const struct line *line)
{
    struct line now;
    copy_out(table->lines[at].words, 1, &now);
    return line->sequence % 2 == 0 && now.sequence == line->sequence;
}

static inline bool is_good(const struct line *line, const struct kv_policy_subject *subject)
{
    return line->stamp == (uint32_t)subject->stamp && subject->now_ns >> UNTIL_SHIFT < line->until;
}

/* Where it was last time, mostly. */
static inline bool locate(const struct kv_policy_table *table, const struct key *key, uint32_t *place,
                          struct line *ret_line)
{
    if (*place < table->capacity && is_of(table, *place, key, ret_line)) {
        return true;
    }
    int64_t at = find(table, key, ret_line);
    *place = at < 0 ? *place : (uint32_t)at;
    return at >= 0;
}

/* --- deciding ----------------------------------------------------------------------------------------------------- */

static inline uint32_t listed_near(const struct line *line, const uint64_t names[KV_POLICY_KINDS + 1])
{
    uint32_t listed = 0, kinds = line->kinds;
    for (unsigned i = 0; i < NEAR_NAMES; i++, kinds >>= 2) {
        uint32_t kind = kinds & 3;
        listed |= (uint32_t)(line->names[i] == names[kind]) << kind;
    }
    return listed;
}

static uint32_t listed_far(const struct more_names *more, uint32_t count, const uint64_t names[KV_POLICY_KINDS + 1])
{
    uint32_t listed = 0;
    for (unsigned i = 0; i < count && i < FAR_NAMES; i++) {
        uint32_t kind = more->kinds[i] & 3u;
        listed |= (uint32_t)(more->names[i] == names[kind]) << kind;
    }
    return listed;
}

static inline struct kv_policy_gist gist_of(const struct line *line)
{
    return (struct kv_policy_gist){.block_bytes = line->block_bytes,
                                   .age_s = line->age_s == UINT32_MAX ? KV_POLICY_NO_LIMIT : line->age_s,
                                   .tiers_allowed = line->tiers_given & 15u,
                                   .actions_forbidden = line->actions & 31u,
                                   .given = line->tiers_given >> 4,
                                   .restore = line->actions >> 5 & 3u,
                                   .sharing = line->actions >> 7 != 0};
}

void kv_policy_table_expect(const struct kv_policy_table *table, uint32_t place)
{
    if (place < table->capacity) {
        __builtin_prefetch(&table->lines[place]);
        __builtin_prefetch(&table->rests[place]);
    }
}

bool kv_policy_table_decide(const struct kv_policy_table *table, struct kv_policy_subject *subject,
                            const struct kv_policy_facts *facts, struct kv_policy_decision *ret_decision,
                            struct kv_policy_bounds *ret_bounds)
{
    struct line line;
    struct more_names more;
    struct kv_policy_bounds bounds;
    const struct key key = key_of(&subject->tenant, subject->class_hash);
    bool named_scope = facts->action == KV_POLICY_SESSION && facts->shared; /* names of scopes are not in it */
    if (!locate(table, &key, &subject->place, &line) || (unsigned)facts->action >= KV_POLICY_ERASE || named_scope) {
        return false;
    }
    bool far = line.name_count > NEAR_NAMES;
    const _Atomic uint64_t *rest = table->rests[subject->place].words;
    if (ret_bounds != NULL) {
        copy_out(rest, LINE_WORDS, &bounds);
    }
    if (far) {
        copy_out(rest + LINE_WORDS, LINE_WORDS, &more);
    }
    if (!is_whole(table, subject->place, &line) || !is_good(&line, subject)) {
        return false;
    }
    /* The last is that of places without a name, whose hash is 0: nothing is found there. */
    const uint64_t names[KV_POLICY_KINDS + 1] = {subject->names[0], subject->names[1], subject->names[2], UINT64_MAX};
    const struct kv_policy_gist gist = gist_of(&line);
    struct kv_policy_named named = {.listed = listed_near(&line, names)};
    if (far) {
        named.listed |= listed_far(&more, line.name_count - (uint32_t)NEAR_NAMES, names);
    }
    if (ret_bounds != NULL) {
        *ret_bounds = bounds;
    }
    kv_policy_decide(&gist, &named, facts, ret_decision);
    return true;
}

/* --- putting ------------------------------------------------------------------------------------------------------ */

struct filled {
    struct line line;
    struct rest rest;
};

static bool add_name(struct filled *filled, unsigned kind, uint64_t hash)
{
    unsigned i = filled->line.name_count++;
    if (i < NEAR_NAMES) {
        filled->line.names[i] = hash;
        filled->line.kinds = (uint8_t)((filled->line.kinds & ~(3u << 2 * i)) | kind << 2 * i);
    } else if (i < NEAR_NAMES + FAR_NAMES) {
        filled->rest.more.names[i - NEAR_NAMES] = hash;
        filled->rest.more.kinds[i - NEAR_NAMES] = (uint8_t)kind;
    }
    return i < NEAR_NAMES + FAR_NAMES;
}

static bool add_names(const struct kv_policy_table *table, const struct kv_policy *policy, struct filled *filled)
{
    filled->line.kinds = NO_KIND | NO_KIND << 2 | NO_KIND << 4;
    for (unsigned kind = 0; kind < KV_POLICY_KINDS; kind++) {
        const struct kv_policy_names *list = &policy->lists[kind];
        for (uint32_t i = 0; i < list->count; i++) {
            uint64_t hash = 0;
            if (kv_policy_table_hash(table, list->list[i].text, &hash) != KV_OK || !add_name(filled, kind, hash)) {
                return false;
            }
        }
    }
    return true;
}

static bool fill(const struct kv_policy_table *table, const struct kv_policy_entry *entry, struct filled *filled)
{
    const struct kv_policy_gist *gist = &entry->policy->gist;
    uint64_t age_s = gist->age_s == KV_POLICY_NO_LIMIT ? UINT32_MAX : gist->age_s, class_hash = 0;
    uint64_t until = entry->until_ns >> UNTIL_SHIFT;
    if (entry->policy->rule_count > 0 || gist->block_bytes > UINT32_MAX || age_s > UINT32_MAX || until > UINT32_MAX ||
        kv_policy_table_hash(table, entry->policy->name, &class_hash) != KV_OK) {
        return false;
    }
    const struct key key = key_of(&entry->tenant, class_hash);
    *filled =
        (struct filled){.line = {.stamp = (uint32_t)entry->stamp,
                                 .until = (uint32_t)until,
                                 .tiers_given = (uint8_t)((gist->tiers_allowed & 15u) | (uint32_t)gist->given << 4),
                                 .actions = (uint8_t)((gist->actions_forbidden & 31u) | (uint32_t)gist->restore << 5 |
                                                      (uint32_t)gist->sharing << 7),
                                 .block_bytes = (uint32_t)gist->block_bytes,
                                 .age_s = (uint32_t)age_s,
                                 .key = {key.words[0], key.words[1]}}};
    kv_policy_bounds(entry->set, entry->policy, &filled->rest.bounds);
    return add_names(table, entry->policy, filled);
}

/* Counted with a sign, since only the low half is kept. */
static bool is_older(uint32_t stamp, uint32_t than)
{
    return (int32_t)(stamp - than) < 0;
}

/* Release, so that who sees one of the words sees the odd sequence number that was stored before it. */
static void copy_in(_Atomic uint64_t *words, unsigned first, unsigned count, const void *source)
{
    uint64_t copy[REST_WORDS];
    memcpy(copy, source, count * sizeof copy[0]);
    for (unsigned i = first; i < count; i++) {
        atomic_store_explicit(&words[i], copy[i], memory_order_release);
    }
}

static void write_line(struct kv_policy_table *table, uint32_t at, struct filled *filled)
{
    struct line there;
    copy_out(table->lines[at].words, 1, &there);
    filled->line.sequence = there.sequence + 1;
    copy_in(table->lines[at].words, 0, 1, &filled->line);
    copy_in(table->lines[at].words, 1, LINE_WORDS, &filled->line);
    copy_in(table->rests[at].words, 0, REST_WORDS, &filled->rest);
    filled->line.sequence = there.sequence + 2;
    copy_in(table->lines[at].words, 0, 1, &filled->line);
}

/* Full of what nobody may use any more, most likely: whoever is used comes back with its next decision. A reader who
 * is on its way to a line sees by the line's key and sequence number what it has. */
static void forget_all(struct kv_policy_table *table)
{
    for (uint32_t i = 0; i <= table->index_mask; i++) {
        atomic_store_explicit(&table->index[i], 0, memory_order_relaxed);
    }
    table->used = 0;
}

/* Under put_mutex. */
static bool add_line(struct kv_policy_table *table, struct filled *filled)
{
    const struct key key = {.words = {filled->line.key[0], filled->line.key[1]}};
    const struct place place = place_of(table, &key);
    if (table->used == table->capacity) {
        forget_all(table);
    }
    for (uint32_t i = 0; i < WINDOW; i++) {
        _Atomic uint32_t *entry = &table->index[(place.home + i) & table->index_mask];
        if (atomic_load_explicit(entry, memory_order_relaxed) == 0) {
            write_line(table, table->used++, filled);
            atomic_store_explicit(entry, place.tag << 16 | table->used, memory_order_release);
            return true;
        }
    }
    return false;
}

static bool put_line(struct kv_policy_table *table, struct filled *filled)
{
    const struct key key = {.words = {filled->line.key[0], filled->line.key[1]}};
    struct line there;
    int64_t at = find(table, &key, &there);
    if (at < 0) {
        return add_line(table, filled);
    }
    bool newer = !is_older(filled->line.stamp, there.stamp);
    if (newer) {
        write_line(table, (uint32_t)at, filled);
    }
    return newer;
}

bool kv_policy_table_put(struct kv_policy_table *table, const struct kv_policy_entry *entry)
{
    struct filled filled;
    if (!fill(table, entry, &filled)) {
        return false;
    }
    pthread_mutex_lock(&table->put_mutex);
    bool kept = put_line(table, &filled);
    pthread_mutex_unlock(&table->put_mutex);
    return kept;
}
