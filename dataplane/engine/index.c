/*
 * See index_int.h. Linear probing with backward shift, so there are no tombstones and a table never slows down with
 * age.
 */
#include "dataplane/engine/index_int.h"

#include "dataplane/base/check.h"
#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"

#include <string.h>

void kv_list_init(struct link *head)
{
    head->next = head;
    head->prev = head;
}

void kv_list_append(struct link *head, struct link *link)
{
    KV_ASSERT(link->next == NULL && head->next != NULL);
    link->prev = head->prev;
    link->next = head;
    head->prev->next = link;
    head->prev = link;
}

void kv_list_remove(struct link *link)
{
    if (link->next == NULL) {
        return;
    }
    link->prev->next = link->next;
    link->next->prev = link->prev;
    link->next = NULL;
    link->prev = NULL;
}

bool kv_list_empty(const struct link *head)
{
    return head->next == head;
}

/* Keyed with a random seed: ids come from outside, and nobody shall choose ones that collide. */
static uint32_t hash_words(uint64_t seed, const void *data, size_t words)
{
    const uint8_t *p = data;
    uint64_t h = seed;
    for (size_t i = 0; i < words; i++) {
        uint64_t word;
        memcpy(&word, p + i * 8, 8);
        h = (h ^ word) * UINT64_C(0x9e3779b97f4a7c15);
        h ^= h >> 29;
        h = (h ^ seed) * UINT64_C(0xbf58476d1ce4e5b9);
        h ^= h >> 32;
    }
    return (uint32_t)h;
}

uint32_t kv_index_hash_id(const struct index *index, const struct kv_id *id)
{
    return hash_words(index->seed, id, 2);
}

static uint32_t hash_key(const struct index *index, const struct kv_id *scope, const struct kv_block_id *block_id)
{
    return hash_words(index->seed + kv_index_hash_id(index, scope), block_id, 4);
}

static KV_RC table_init(struct table *table, uint32_t items_max)
{
    uint32_t cells = 64;
    while (cells < items_max * UINT64_C(2)) {
        cells *= 2;
    }
    table->cells = kv_alloc_array(cells, sizeof *table->cells);
    table->mask = cells - 1;
    return table->cells != NULL ? KV_OK : KV_E_NO_MEMORY;
}

void kv_index_table_put(struct table *table, uint32_t hash, uint32_t number)
{
    uint32_t cell = hash & table->mask;
    while (table->cells[cell] != 0) { /* at most half full, so it ends */
        cell = (cell + 1) & table->mask;
    }
    table->cells[cell] = number + 1;
}

static uint32_t hash_of(const struct index *index, const struct table *table, uint32_t cell)
{
    uint32_t number = table->cells[cell] - 1;
    if (table == &index->by_account) {
        return index->accounts[number].hash;
    }
    return table == &index->by_key ? index->entries[number].hash : index->scopes[number].hash;
}

void kv_index_table_remove(struct index *index, struct table *table, uint32_t hash, uint32_t number)
{
    uint32_t hole = hash & table->mask;
    while (table->cells[hole] != number + 1) {
        KV_ASSERT(table->cells[hole] != 0);
        hole = (hole + 1) & table->mask;
    }
    uint32_t cell = (hole + 1) & table->mask;
    while (table->cells[cell] != 0) {
        uint32_t home = hash_of(index, table, cell) & table->mask;
        /* Move it back when its home is not between the hole and where it stands. */
        if (((cell - home) & table->mask) >= ((cell - hole) & table->mask)) {
            table->cells[hole] = table->cells[cell];
            hole = cell;
        }
        cell = (cell + 1) & table->mask;
    }
    table->cells[hole] = 0;
}

static void fill_free_lists(struct index *index)
{
    for (uint32_t i = index->entries_max; i > 0; i--) {
        index->entries[i - 1].next_free = index->free_entries;
        index->free_entries = &index->entries[i - 1];
    }
    for (uint32_t i = index->scopes_max; i > 0; i--) {
        index->scopes[i - 1].next_free = index->free_scopes;
        index->free_scopes = &index->scopes[i - 1];
    }
    for (uint32_t i = index->accounts_max; i > 0; i--) {
        index->accounts[i - 1].next_free = index->free_accounts;
        index->free_accounts = &index->accounts[i - 1];
    }
    for (unsigned i = 0; i < RANK_COUNT; i++) {
        kv_list_init(&index->ranks[i]);
    }
    kv_list_init(&index->nvme_cold);
    kv_list_init(&index->graves);
    kv_list_init(&index->fenced);
}

KV_RC kv_index_new(uint64_t blocks_max, const struct kv_env *env, struct index **ret_index)
{
    if (blocks_max == 0 || blocks_max > UINT32_MAX / 4) {
        return KV_E_LIMIT;
    }
    struct index *index = kv_alloc(sizeof *index);
    if (index == NULL) {
        return KV_E_NO_MEMORY;
    }
    index->entries_max = (uint32_t)blocks_max;
    index->scopes_max = (uint32_t)blocks_max + (uint32_t)KV_MAX_LANE_OPERATIONS + FENCED_MAX;
    index->entries = kv_alloc_array(index->entries_max, sizeof *index->entries);
    index->scopes = kv_alloc_array(index->scopes_max, sizeof *index->scopes);
    index->accounts_max = index->scopes_max < KV_MAX_TENANTS ? index->scopes_max : (uint32_t)KV_MAX_TENANTS;
    index->accounts = kv_alloc_array(index->accounts_max, sizeof *index->accounts);
    bool there = index->entries != NULL && index->scopes != NULL && index->accounts != NULL;
    enum kv_err rc = there ? KV_OK : KV_E_NO_MEMORY;
    rc = rc == KV_OK ? table_init(&index->by_account, index->accounts_max) : rc;
    rc = rc == KV_OK ? table_init(&index->by_key, index->entries_max) : rc;
    rc = rc == KV_OK ? table_init(&index->by_scope, index->scopes_max) : rc;
    rc = rc == KV_OK ? env->random(env->ctx, &index->seed, sizeof index->seed) : rc;
    if (rc != KV_OK) {
        kv_index_free(index);
        return rc;
    }
    fill_free_lists(index);
    *ret_index = index;
    return KV_OK;
}

void kv_index_free(struct index *index)
{
    if (index == NULL) {
        return;
    }
    kv_free(index->entries);
    kv_free(index->scopes);
    kv_free(index->by_key.cells);
    kv_free(index->by_scope.cells);
    kv_free(index->accounts);
    kv_free(index->by_account.cells);
    kv_free(index);
}

struct entry *kv_index_find(struct index *index, const struct kv_id *scope, const struct kv_block_id *block_id)
{
    uint32_t cell = hash_key(index, scope, block_id) & index->by_key.mask;
    for (; index->by_key.cells[cell] != 0; cell = (cell + 1) & index->by_key.mask) {
        struct entry *entry = &index->entries[index->by_key.cells[cell] - 1];
        if (memcmp(&entry->block_id, block_id, sizeof *block_id) == 0 && kv_id_equal(&entry->scope_id, scope)) {
            return entry;
        }
    }
    return NULL;
}

/* An upper bound for blocks whose header was not read since the start: payloads are multiples of 4 KiB nearly always.
 */
static uint64_t guess_plaintext(uint64_t bytes)
{
    uint64_t header = KV_SEALED_ALIGN;
    while (header < bytes && kv_sealed_bytes(bytes - header) > bytes) {
        header += KV_SEALED_ALIGN;
    }
    return header < bytes ? bytes - header : 0;
}

static struct entry *entry_new(struct index *index, const struct kv_tier_key *key, uint64_t bytes)
{
    struct entry *entry = index->free_entries;
    if (entry == NULL) {
        return NULL;
    }
    index->free_entries = entry->next_free;
    *entry = (struct entry){.scope_id = key->scope, .block_id = key->block_id, .bytes = bytes};
    return entry;
}

KV_RC kv_index_add(struct index *index, const struct kv_tier_key *key, uint64_t bytes, struct entry **ret_entry)
{
    struct scope *scope = NULL;
    if (index->free_entries == NULL) {
        return KV_E_LIMIT;
    }
    KV_TRY(kv_index_scope_get(index, &key->scope, &scope));
    struct entry *entry = entry_new(index, key, bytes);
    entry->scope = scope;
    entry->plaintext_bytes = guess_plaintext(bytes);
    entry->hash = hash_key(index, &key->scope, &key->block_id);
    kv_index_table_put(&index->by_key, entry->hash, (uint32_t)(entry - index->entries));
    kv_list_append(&scope->blocks, &entry->in_scope);
    scope->usage.blocks++;
    scope->live_bytes += bytes;
    scope->usage.plaintext_bytes += entry->plaintext_bytes;
    index->live++;
    *ret_entry = entry;
    return KV_OK;
}

KV_RC kv_index_add_grave(struct index *index, const struct kv_tier_key *key, uint64_t bytes, struct entry **ret_entry)
{
    struct scope *scope = NULL;
    if (index->free_entries == NULL) {
        return KV_E_LIMIT;
    }
    KV_TRY(kv_index_scope_get(index, &key->scope, &scope));
    struct entry *entry = entry_new(index, key, bytes);
    entry->scope = scope;
    entry->dead = true;
    scope->graves++;
    kv_list_append(&index->graves, &entry->in_scope);
    *ret_entry = entry;
    return KV_OK;
}

/* Which lists the entry belongs on now. Pinned or moving entries are on none: placement sees only what it may take. */
static enum entry_rank rank_of(const struct entry *entry)
{
    if (entry->slot == NULL || entry->dead || entry->pins > 0 || entry->writing || entry->fetching) {
        return RANK_NONE;
    }
    if (entry->on_nvme) {
        return RANK_CLEAN;
    }
    return entry->no_nvme ? RANK_KEPT : RANK_DIRTY;
}

void kv_index_touch(struct index *index, struct entry *entry)
{
    kv_list_remove(&entry->in_dram);
    entry->rank = (uint8_t)rank_of(entry);
    if (entry->rank != RANK_NONE) {
        kv_list_append(&index->ranks[entry->rank], &entry->in_dram);
    }
    kv_list_remove(&entry->in_nvme);
    if (entry->on_nvme && !entry->promised && !entry->dead && entry->pins == 0 && !entry->fetching) {
        kv_list_append(&index->nvme_cold, &entry->in_nvme);
    }
}

void kv_index_kill(struct index *index, struct entry *entry)
{
    KV_ASSERT(!entry->dead);
    struct scope *scope = entry->scope;
    scope->usage.blocks--;
    scope->live_bytes -= entry->bytes;
    scope->usage.plaintext_bytes -= entry->plaintext_bytes;
    kv_index_table_remove(index, &index->by_key, entry->hash, (uint32_t)(entry - index->entries));
    index->live--;
    entry->dead = true;
    scope->graves++;
    kv_list_remove(&entry->in_scope);
    kv_list_append(&index->graves, &entry->in_scope);
    kv_index_touch(index, entry);
}

void kv_index_free_entry(struct index *index, struct entry *entry)
{
    KV_ASSERT(entry->dead && entry->pins == 0 && !entry->writing && !entry->fetching);
    KV_ASSERT(entry->slot == NULL && !entry->on_nvme);
    struct scope *scope = entry->scope;
    kv_list_remove(&entry->in_scope);
    KV_ASSERT(scope->graves > 0);
    scope->graves--;
    *entry = (struct entry){.next_free = index->free_entries};
    index->free_entries = entry;
    kv_index_scope_release(index, scope);
}

void kv_index_set_slot(struct index *index, struct entry *entry, uint8_t *slot)
{
    KV_ASSERT((entry->slot == NULL) != (slot == NULL));
    struct kv_scope_usage *usage = &entry->scope->usage;
    if (slot != NULL) {
        usage->dram_blocks++;
        usage->dram_bytes += entry->bytes;
        index->pinned_slots += entry->pins > 0;
    } else {
        usage->dram_blocks--;
        usage->dram_bytes -= entry->bytes;
        kv_quota_give_back(entry, KV_TIER_DRAM);
        index->pinned_slots -= entry->pins > 0;
    }
    entry->slot = slot;
    kv_index_touch(index, entry);
}

void kv_index_set_nvme(struct index *index, struct entry *entry, bool on_nvme, uint64_t where)
{
    KV_ASSERT(entry->on_nvme != on_nvme);
    struct kv_scope_usage *usage = &entry->scope->usage;
    if (on_nvme) {
        usage->nvme_blocks++;
        usage->nvme_bytes += entry->bytes;
    } else {
        usage->nvme_blocks--;
        usage->nvme_bytes -= entry->bytes;
        kv_quota_give_back(entry, KV_TIER_NVME);
        entry->promised = false;
    }
    entry->on_nvme = on_nvme;
    entry->where = where;
    kv_index_touch(index, entry);
}

void kv_index_set_plaintext(struct entry *entry, uint64_t plaintext_bytes)
{
    if (!entry->dead) {
        entry->scope->usage.plaintext_bytes += plaintext_bytes - entry->plaintext_bytes;
    }
    entry->plaintext_bytes = plaintext_bytes;
}

void kv_index_pin(struct index *index, struct entry *entry)
{
    if (entry->pins++ == 0) {
        index->pinned_slots += entry->slot != NULL;
        kv_index_touch(index, entry);
    }
}

void kv_index_unpin(struct index *index, struct entry *entry)
{
    KV_ASSERT(entry->pins > 0);
    if (--entry->pins == 0) {
        index->pinned_slots -= entry->slot != NULL;
        kv_index_touch(index, entry);
    }
}

struct scope *kv_index_scope_find(struct index *index, const struct kv_id *id)
{
    uint32_t cell = kv_index_hash_id(index, id) & index->by_scope.mask;
    for (; index->by_scope.cells[cell] != 0; cell = (cell + 1) & index->by_scope.mask) {
        struct scope *scope = &index->scopes[index->by_scope.cells[cell] - 1];
        if (kv_id_equal(&scope->id, id)) {
            return scope;
        }
    }
    return NULL;
}

KV_RC kv_index_scope_get(struct index *index, const struct kv_id *id, struct scope **ret_scope)
{
    struct scope *scope = kv_index_scope_find(index, id);
    if (scope == NULL) {
        scope = index->free_scopes;
        if (scope == NULL) {
            return KV_E_LIMIT;
        }
        index->free_scopes = scope->next_free;
        *scope = (struct scope){.id = *id, .hash = kv_index_hash_id(index, id)};
        memset(scope->limit, 0xff, sizeof scope->limit);
        kv_list_init(&scope->blocks);
        kv_index_table_put(&index->by_scope, scope->hash, (uint32_t)(scope - index->scopes));
    }
    *ret_scope = scope;
    return KV_OK;
}

void kv_index_scope_release(struct index *index, struct scope *scope)
{
    if (scope->operations > 0 || scope->graves > 0 || scope->is_fenced || !kv_list_empty(&scope->blocks)) {
        return;
    }
    kv_quota_leave(index, scope);
    kv_index_table_remove(index, &index->by_scope, scope->hash, (uint32_t)(scope - index->scopes));
    *scope = (struct scope){.next_free = index->free_scopes};
    index->free_scopes = scope;
}
