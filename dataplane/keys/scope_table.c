/*
 * The table of open scopes: a fixed number of entries, hashed by scope id. It must never hand out an entry's memory
 * again while somebody still borrows its keys.
 */
#include "dataplane/base/check.h"
#include "dataplane/base/mem.h"
#include "dataplane/keys/keyring_int.h"

KV_RC scope_table_init(struct scope_table *table, size_t entries_max)
{
    size_t buckets = 1;
    while (buckets < entries_max) {
        buckets *= 2;
    }
    *table = (struct scope_table){.entries_max = entries_max, .bucket_mask = buckets - 1};
    table->entries = kv_alloc_array(entries_max, sizeof(*table->entries));
    table->buckets = kv_alloc_array(buckets, sizeof(*table->buckets));
    if (table->entries == NULL || table->buckets == NULL) {
        scope_table_done(table);
        return KV_E_NO_MEMORY;
    }
    for (size_t i = entries_max; i > 0; i--) {
        table->entries[i - 1].next = table->free;
        table->free = &table->entries[i - 1];
    }
    return KV_OK;
}

static void forget_keys(struct scope_entry *entry)
{
    kv_secret_free(entry->block);
    kv_secret_free(entry->ids);
    entry->block = NULL;
    entry->ids = NULL;
}

void scope_table_done(struct scope_table *table)
{
    for (size_t i = 0; table->entries != NULL && i < table->entries_max; i++) {
        forget_keys(&table->entries[i]);
    }
    kv_free(table->entries);
    kv_free(table->buckets);
    *table = (struct scope_table){0};
}

static struct scope_entry **bucket_of(const struct scope_table *table, const struct kv_id *scope)
{
    return &table->buckets[id_hash(scope) & table->bucket_mask];
}

struct scope_entry *scope_table_find(const struct scope_table *table, const struct kv_id *scope)
{
    for (struct scope_entry *entry = *bucket_of(table, scope); entry != NULL; entry = entry->next) {
        if (kv_id_equal(&entry->scope, scope)) {
            return entry;
        }
    }
    return NULL;
}

struct scope_entry *scope_table_add(struct scope_table *table, const struct kv_id *tenant, const struct kv_id *scope)
{
    struct scope_entry *entry = table->free;
    if (entry == NULL) {
        return NULL;
    }
    table->free = entry->next;
    struct scope_entry **bucket = bucket_of(table, scope);
    *entry =
        (struct scope_entry){.state = SCOPE_OPEN, .recent = true, .tenant = *tenant, .scope = *scope, .next = *bucket};
    *bucket = entry;
    table->open_count++;
    return entry;
}

static void release(struct scope_table *table, struct scope_entry *entry)
{
    struct scope_entry **link = bucket_of(table, &entry->scope);
    while (*link != entry) {
        KV_ASSERT(*link != NULL);
        link = &(*link)->next;
    }
    *link = entry->next;
    forget_keys(entry);
    *entry = (struct scope_entry){.state = SCOPE_FREE, .next = table->free};
    table->free = entry;
}

void scope_table_close(struct scope_table *table, struct scope_entry *entry)
{
    KV_ASSERT(entry->state == SCOPE_OPEN);
    table->open_count--;
    entry->state = SCOPE_CLOSING;
    if (entry->borrowers == 0) {
        release(table, entry);
    }
}

bool scope_table_evict(struct scope_table *table)
{
    for (size_t i = 0; i < 2 * table->entries_max; i++) { /* in the first round all may be recent */
        struct scope_entry *entry = &table->entries[table->hand];
        table->hand = (table->hand + 1) % table->entries_max;
        if (entry->state != SCOPE_OPEN || entry->borrowers > 0) {
            continue;
        }
        if (!entry->recent) {
            scope_table_close(table, entry);
            return true;
        }
        entry->recent = false;
    }
    return false;
}

bool scope_table_return(struct scope_table *table, struct scope_entry *entry)
{
    KV_ASSERT(entry->state != SCOPE_FREE && entry->borrowers > 0);
    entry->borrowers--;
    if (entry->state != SCOPE_CLOSING || entry->borrowers > 0) {
        return false;
    }
    release(table, entry);
    return true;
}
