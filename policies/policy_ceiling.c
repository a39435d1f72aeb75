/*
 * Does a tenant's policy ask for more than the platform's? Only what it says counts: what it leaves out is as the
 * platform's. The intersection holds in any case; this tells the author early.
 */
#include "policies/policy_int.h"

#include <stdio.h>
#include <string.h>

static const char *const members[KV_POLICY_LISTS] = {"models", "layouts", "regions", "sharing/scopes"};

struct at {
    const struct kv_policy_doc *platform, *tenant;
    const char *pointer; /* of the level */
    struct kv_errinfo *info;
};

static KV_RC beyond(const struct at *at, const char *member)
{
    char pointer[96];
    snprintf(pointer, sizeof pointer, "%s/%s", at->pointer, member);
    return kv_fail_at(at->info, KV_E_CEILING, pointer, "the platform's policy does not allow that much");
}

static KV_RC check_number(const struct at *at, const char *member, uint64_t own, uint64_t ceiling)
{
    return own != KV_POLICY_NO_LIMIT && own > ceiling ? beyond(at, member) : KV_OK;
}

static KV_RC check_limits(const struct at *at, const struct kv_policy_limits *own)
{
    const struct kv_policy_limits *top = &at->platform->top.limits;
    KV_TRY(check_number(at, "max_block_bytes", own->block_bytes, top->block_bytes));
    KV_TRY(check_number(at, "session/max_age_seconds", own->age_s, top->age_s));
    KV_TRY(check_number(at, "session/max_idle_seconds", own->idle_s, top->idle_s));
    KV_TRY(check_number(at, "session/max_bytes", own->session_bytes, top->session_bytes));
    KV_TRY(check_number(at, "session/max_blocks", own->session_blocks, top->session_blocks));
    for (unsigned t = KV_TIER_DRAM; t < KV_POLICY_TIERS; t++) {
        char member[48];
        snprintf(member, sizeof member, "tiers/%s/max_bytes", kv_policy_tier_names[t]);
        KV_TRY(check_number(at, member, own->tier_bytes[t], top->tier_bytes[t]));
        snprintf(member, sizeof member, "tiers/%s/ttl_seconds", kv_policy_tier_names[t]);
        KV_TRY(check_number(at, member, own->tier_ttl_s[t], top->tier_ttl_s[t]));
    }
    return KV_OK;
}

static bool on_list(const struct kv_policy_doc *platform, unsigned kind, const char *name)
{
    const struct doc_names *names = &platform->names[kind];
    for (uint32_t i = 0; i < names->count; i++) {
        if ((platform->top.names[kind] & UINT64_C(1) << i) != 0 && strcmp(names->list[i], name) == 0) {
            return true;
        }
    }
    return false;
}

static KV_RC check_names(const struct at *at, const struct level *level, unsigned kind)
{
    const struct doc_names *names = &at->tenant->names[kind];
    for (uint32_t i = 0; level->given[kind] && at->platform->top.given[kind] && i < names->count; i++) {
        if ((level->names[kind] & UINT64_C(1) << i) != 0 && !on_list(at->platform, kind, names->list[i])) {
            return beyond(at, members[kind]);
        }
    }
    return KV_OK;
}

static KV_RC check_sharing(const struct at *at, const struct level *level)
{
    const struct level *top = &at->platform->top;
    if (level->sharing_given && level->sharing && top->sharing_given && !top->sharing) {
        return beyond(at, "sharing");
    }
    bool stays = level->on_erase_given && level->retain_shared;
    return stays && top->on_erase_given && !top->retain_shared ? beyond(at, "sharing/on_erase") : KV_OK;
}

static KV_RC check_level(const struct at *at, const struct level *level)
{
    const struct level *top = &at->platform->top;
    if (level->tiers_given && (level->tiers & ~top->tiers) != 0) {
        return beyond(at, "tiers");
    }
    for (unsigned kind = 0; kind < KV_POLICY_LISTS; kind++) {
        KV_TRY(check_names(at, level, kind));
    }
    if (level->restore_given && top->restore_given && level->restore > top->restore) {
        return beyond(at, "restore");
    }
    KV_TRY(check_sharing(at, level));
    return check_limits(at, &level->limits);
}

static KV_RC check_quota(const struct at *at)
{
    const struct kv_policy_quota *own = &at->tenant->quota, *top = &at->platform->quota;
    KV_TRY(check_number(at, "quota/sessions", own->sessions, top->sessions));
    KV_TRY(check_number(at, "quota/dram_bytes", own->tier_bytes[KV_TIER_DRAM], top->tier_bytes[KV_TIER_DRAM]));
    return check_number(at, "quota/nvme_bytes", own->tier_bytes[KV_TIER_NVME], top->tier_bytes[KV_TIER_NVME]);
}

static KV_RC check_hold(const struct at *at)
{
    const struct kv_policy_doc *own = at->tenant, *top = at->platform;
    if (!top->holds_given || own->hold_days <= top->hold_days) {
        return KV_OK;
    }
    return beyond(at, top->hold_days == 0 ? "hold/allowed" : "hold/max_days");
}

KV_RC kv_policy_check_ceiling(const struct kv_policy_doc *platform, const struct kv_policy_doc *tenant,
                              struct kv_errinfo *info)
{
    struct at at = {.platform = platform, .tenant = tenant, .pointer = "", .info = info};
    KV_TRY(check_level(&at, &tenant->top));
    KV_TRY(check_quota(&at));
    KV_TRY(check_hold(&at));
    for (uint32_t i = 0; i < tenant->class_count; i++) {
        char pointer[48];
        snprintf(pointer, sizeof pointer, "/classes/%s", tenant->classes[i].name);
        at.pointer = pointer;
        KV_TRY(check_level(&at, &tenant->classes[i].level));
    }
    return KV_OK;
}
