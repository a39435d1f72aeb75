/*
 * See index_int.h. Must never let what is charged differ from what is there: every byte that is charged is given back
 * by the same entry, whatever takes it away.
 */
#include "dataplane/engine/index_int.h"

#include "dataplane/base/check.h"
#include "dataplane/base/id.h"

#include <string.h>

struct account *kv_quota_find(struct index *index, const struct kv_id *tenant)
{
    uint32_t cell = kv_index_hash_id(index, tenant) & index->by_account.mask;
    for (; index->by_account.cells[cell] != 0; cell = (cell + 1) & index->by_account.mask) {
        struct account *account = &index->accounts[index->by_account.cells[cell] - 1];
        if (kv_id_equal(&account->tenant, tenant)) {
            return account;
        }
    }
    return NULL;
}

static struct account *open_account(struct index *index, const struct kv_id *tenant)
{
    struct account *account = index->free_accounts;
    if (account == NULL) {
        return NULL;
    }
    index->free_accounts = account->next_free;
    *account = (struct account){.tenant = *tenant, .hash = kv_index_hash_id(index, tenant)};
    memset(account->limit, 0xff, sizeof account->limit);
    kv_index_table_put(&index->by_account, account->hash, (uint32_t)(account - index->accounts));
    return account;
}

KV_RC kv_quota_assign(struct index *index, struct scope *scope, const struct kv_id *tenant)
{
    if (scope->account != NULL) {
        return KV_OK; /* a scope never changes its tenant */
    }
    struct account *account = kv_quota_find(index, tenant);
    account = account == NULL ? open_account(index, tenant) : account;
    if (account == NULL) {
        return KV_E_LIMIT;
    }
    account->scopes++;
    for (unsigned t = 0; t < KV_ENGINE_TIERS; t++) {
        account->used[t] += scope->used[t];
    }
    scope->account = account;
    return KV_OK;
}

void kv_quota_leave(struct index *index, struct scope *scope)
{
    struct account *account = scope->account;
    for (unsigned t = 0; t < KV_ENGINE_TIERS; t++) {
        KV_ASSERT(scope->used[t] == 0);
    }
    if (account == NULL || --account->scopes > 0) {
        return;
    }
    kv_index_table_remove(index, &index->by_account, account->hash, (uint32_t)(account - index->accounts));
    *account = (struct account){.next_free = index->free_accounts};
    index->free_accounts = account;
}

static void set_limits(uint64_t *target, const uint64_t *source)
{
    for (unsigned t = 0; t < KV_ENGINE_TIERS; t++) {
        target[t] = source[t] == 0 ? UINT64_MAX : source[t];
    }
}

void kv_quota_set_limits(struct scope *scope, const struct kv_transfer_limits *limits)
{
    if (limits->version >= scope->version) {
        scope->version = limits->version;
        set_limits(scope->limit, limits->session_tier_bytes);
    }
    struct account *account = scope->account;
    if (account != NULL && limits->version >= account->version) {
        account->version = limits->version;
        set_limits(account->limit, limits->tenant_bytes);
    }
}

static bool fits(uint64_t used, uint64_t limit, uint64_t bytes)
{
    return used <= limit && bytes <= limit - used;
}

bool kv_quota_fits(const struct scope *scope, enum kv_tier_id tier, uint64_t bytes)
{
    const struct account *account = scope->account;
    return fits(scope->used[tier], scope->limit[tier], bytes) &&
           (account == NULL || fits(account->used[tier], account->limit[tier], bytes));
}

void kv_quota_charge(struct entry *entry, enum kv_tier_id tier)
{
    KV_ASSERT(!entry->charged[tier]);
    entry->charged[tier] = true;
    entry->scope->used[tier] += entry->bytes;
    if (entry->scope->account != NULL) {
        entry->scope->account->used[tier] += entry->bytes;
    }
}

void kv_quota_give_back(struct entry *entry, enum kv_tier_id tier)
{
    if (!entry->charged[tier]) {
        return;
    }
    entry->charged[tier] = false;
    entry->scope->used[tier] -= entry->bytes;
    if (entry->scope->account != NULL) {
        entry->scope->account->used[tier] -= entry->bytes;
    }
}
