/* See policy_cases.h. The reference is written from policies/README.md, rule by rule, and is in no hurry. */
#include "tests/lib/policy_cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const models[] = {"m-a", "m-b", "m-c"};
static const char *const layouts[] = {"0000000000000000000000000000000000000000000000000000000000000001",
                                      "0000000000000000000000000000000000000000000000000000000000000002"};
static const char *const regions[] = {"eu", "us", "ap"};
static const char *const scopes[] = {"s-a", "s-b"};
static const char *const classes[] = {"default", "gold", "iron"};
static const char *const data_classes[] = {"public", "internal", "personal", "special"};
static const char *const bases[] = {"gdpr_art17", "retention", "contract", "other"};
static const char *const actions[] = {"offload", "restore", "lookup", "session", "erase"};

#define COUNT(array) ((unsigned)(sizeof(array) / sizeof((array)[0])))

unsigned kvt_policy_draw(unsigned *seed, unsigned below)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (unsigned)((*seed >> 8) % below);
}

/* --- random policies ---------------------------------------------------------------------------------------------- */

static void maybe_list(unsigned *seed, json_t *object, const char *member, const char *const *words, unsigned count)
{
    if (kvt_policy_draw(seed, 3) != 0) {
        return;
    }
    json_t *list = json_array();
    unsigned mask = 1 + kvt_policy_draw(seed, (1u << count) - 1);
    for (unsigned i = 0; i < count; i++) {
        if ((mask & 1u << i) != 0) {
            json_array_append_new(list, json_string(words[i]));
        }
    }
    json_object_set_new(object, member, list);
}

static void maybe_number(unsigned *seed, json_t *object, const char *member, json_int_t least)
{
    if (kvt_policy_draw(seed, 2) == 0) {
        json_object_set_new(object, member, json_integer(least + (json_int_t)kvt_policy_draw(seed, 3)));
    }
}

static void random_sharing(unsigned *seed, json_t *level)
{
    static const char *const modes[] = {"none", "scope"}, *const on_erase[] = {"cascade", "retain"};
    unsigned how = kvt_policy_draw(seed, 4);
    if (how == 0) {
        json_object_set_new(level, "sharing", json_string(modes[kvt_policy_draw(seed, 2)]));
    } else if (how > 1) {
        json_t *sharing = json_object();
        if (kvt_policy_draw(seed, 4) != 0) {
            json_object_set_new(sharing, "mode", json_string(modes[kvt_policy_draw(seed, 4) != 0]));
        }
        maybe_list(seed, sharing, "scopes", scopes, 2);
        json_object_set_new(sharing, "on_erase", json_string(on_erase[kvt_policy_draw(seed, 2)]));
        json_object_set_new(level, "sharing", sharing);
    }
}

static void random_level(unsigned *seed, json_t *level, bool top, const json_t *tiers_above)
{
    json_t *tiers = json_object(), *session = json_object();
    if (top || kvt_policy_draw(seed, 3) == 0) {
        static const char *const names[] = {"dram", "nvme"};
        for (unsigned i = 0; i < 2; i++) {
            bool there = tiers_above == NULL || json_object_get(tiers_above, names[i]) != NULL;
            if (there && kvt_policy_draw(seed, 4) != 0) {
                json_object_set_new(tiers, names[i], json_object());
            }
        }
        json_object_set(level, "tiers", tiers);
    }
    maybe_number(seed, session, "max_age_seconds", 99);
    json_object_set(level, "session", session);
    maybe_number(seed, level, "max_block_bytes", 999);
    maybe_list(seed, level, "models", models, 2);
    maybe_list(seed, level, "layouts", layouts, 1);
    maybe_list(seed, level, "regions", regions, 2);
    if (kvt_policy_draw(seed, 3) == 0) {
        static const char *const words[] = {"never", "auto", "always"};
        json_object_set_new(level, "restore", json_string(words[kvt_policy_draw(seed, 3)]));
    }
    if (kvt_policy_draw(seed, 2) == 0) {
        json_object_set_new(level, "data_class", json_string(data_classes[kvt_policy_draw(seed, 4)]));
    }
    random_sharing(seed, level);
    json_decref(tiers);
    json_decref(session);
}

json_t *kvt_policy_random_rule(unsigned *seed, const json_t *policy)
{
    static const char *const tiers[] = {"dram", "nvme"};
    json_t *rule = json_object();
    maybe_list(seed, rule, "tiers", tiers, 2);
    if (json_object_get(rule, "tiers") == NULL) {
        maybe_list(seed, rule, "actions", actions, 4);
    }
    maybe_list(seed, rule, "models", models, 3);
    maybe_list(seed, rule, "layouts", layouts, 2);
    maybe_list(seed, rule, "regions", regions, 3);
    maybe_list(seed, rule, "data_classes", data_classes, 4);
    if (json_object_get(json_object_get(policy, "classes"), "gold") != NULL) {
        maybe_list(seed, rule, "classes", classes, 2);
    }
    return rule;
}

json_t *kvt_policy_random(unsigned *seed, bool platform)
{
    json_t *policy = json_object();
    random_level(seed, policy, true, NULL);
    if (!platform && kvt_policy_draw(seed, 3) != 0) {
        json_t *of_gold = json_object(), *all = json_object();
        random_level(seed, of_gold, false, json_object_get(policy, "tiers"));
        json_object_set_new(all, "gold", of_gold);
        if (kvt_policy_draw(seed, 2) == 0) {
            json_t *of_default = json_object();
            random_level(seed, of_default, false, json_object_get(policy, "tiers"));
            json_object_set_new(all, "default", of_default);
        }
        json_object_set_new(policy, "classes", all);
    }
    json_t *erase = json_object(), *rules = json_array();
    maybe_list(seed, erase, "basis", bases, 4);
    if (kvt_policy_draw(seed, 2) == 0) {
        json_object_set_new(erase, "require_reason", json_boolean(kvt_policy_draw(seed, 2)));
    }
    json_object_set_new(policy, "erase", erase);
    for (unsigned i = kvt_policy_draw(seed, 4); i > 0; i--) {
        json_array_append_new(rules, kvt_policy_random_rule(seed, policy));
    }
    json_object_set_new(policy, "forbid", rules);
    return policy;
}

struct kv_policy_doc *kvt_policy_doc(const json_t *policy, enum kv_policy_level level)
{
    struct kv_errinfo info = {0};
    struct kv_policy_doc *doc = NULL;
    char *text = json_dumps(policy, JSON_COMPACT);
    if (kv_policy_parse(KV_BYTES(text, strlen(text)), level, &info, &doc) != KV_OK) {
        fprintf(stderr, "%s: %s\n%s\n", info.pointer, info.text, text);
        abort();
    }
    free(text);
    return doc;
}

struct kv_policy_set *kvt_policy_set(const json_t *platform, const json_t *tenant)
{
    struct kv_policy_doc *top = kvt_policy_doc(platform, KV_POLICY_PLATFORM);
    struct kv_policy_doc *own = kvt_policy_doc(tenant, KV_POLICY_TENANT);
    struct kv_policy_set *set = NULL;
    if (kv_policy_compile(top, own, &set) != KV_OK) {
        abort();
    }
    kv_policy_doc_free(top);
    kv_policy_doc_free(own);
    return set;
}

/* --- the domain --------------------------------------------------------------------------------------------------- */

static unsigned digit(uint64_t *n, unsigned base)
{
    unsigned value = (unsigned)(*n % base);
    *n /= base;
    return value;
}

static struct kv_policy_text name(const char *const *names, unsigned count, unsigned i)
{
    return kv_policy_text(i < count ? names[i] : NULL);
}

static bool erase_question(uint64_t n, struct kvt_question *q)
{
    q->facts.action = KV_POLICY_ERASE;
    q->facts.basis = (enum kv_policy_basis)digit(&n, KV_BASES);
    q->facts.reason_given = digit(&n, 2) != 0;
    q->facts.same_tenant = digit(&n, 2) != 0;
    q->facts.tenant_active = digit(&n, 2) != 0;
    return n == 0;
}

bool kvt_policy_question(uint64_t n, struct kvt_question *ret_question)
{
    struct kvt_question q = {0};
    q.class_name = classes[digit(&n, COUNT(classes))];
    q.facts.action = (enum kv_policy_action)digit(&n, KV_POLICY_ACTIONS);
    if (q.facts.action == KV_POLICY_ERASE) {
        *ret_question = q;
        (void)erase_question(n % 32, ret_question);
        return n < 64 * 3 * 4 * 2 * 9 * 4 * 3;
    }
    unsigned flags = digit(&n, 8);
    q.facts.names[KV_POLICY_MODEL] = name(models, COUNT(models), digit(&n, COUNT(models) + 1));
    q.facts.names[KV_POLICY_LAYOUT] = name(layouts, COUNT(layouts), digit(&n, COUNT(layouts) + 1));
    q.facts.names[KV_POLICY_REGION] = name(regions, COUNT(regions), digit(&n, COUNT(regions) + 1));
    q.facts.durable_asked = digit(&n, 2) != 0;
    q.facts.block_bytes = 999 + digit(&n, 3);
    q.facts.session_age_s = 99 + digit(&n, 3);
    q.facts.obligations_known = digit(&n, 4);
    unsigned scope = digit(&n, COUNT(scopes) + 1);
    q.facts.shared = scope > 0;
    q.facts.names[KV_POLICY_SCOPE] = kv_policy_text(scope > 0 ? scopes[scope - 1] : NULL);
    q.facts.tenant_active = (flags & 1) == 0;
    q.facts.session_active = (flags & 2) == 0;
    q.facts.same_tenant = (flags & 4) == 0;
    *ret_question = q;
    return n == 0;
}

/* --- the reference ------------------------------------------------------------------------------------------------ */

static bool lists(const json_t *object, const char *member, const char *text)
{
    const json_t *list = json_object_get(object, member);
    for (size_t i = 0; text != NULL && i < json_array_size(list); i++) {
        if (strcmp(json_string_value(json_array_get(list, i)), text) == 0) {
            return true;
        }
    }
    return false;
}

/* Absent lists restrict nothing. */
static bool permits(const json_t *object, const char *member, const char *text)
{
    return json_object_get(object, member) == NULL || lists(object, member, text);
}

struct reading {
    const json_t *levels[3]; /* platform, tenant, class; the last may be NULL */
    const json_t *policies[2];
    const struct kvt_question *q;
    const char *data_class;
};

static bool over(const struct reading *r, const char *object, const char *member, uint64_t value)
{
    for (unsigned i = 0; i < 3; i++) {
        const json_t *at = object == NULL ? r->levels[i] : json_object_get(r->levels[i], object);
        const json_t *limit = json_object_get(at, member);
        if (limit != NULL && value > (uint64_t)json_integer_value(limit)) {
            return true;
        }
    }
    return false;
}

static bool all_permit(const struct reading *r, const char *member, enum kv_policy_kind kind)
{
    for (unsigned i = 0; i < 3; i++) {
        if (!permits(r->levels[i], member, r->q->facts.names[kind].text)) {
            return false;
        }
    }
    return true;
}

static bool rule_applies(const struct reading *r, const json_t *rule)
{
    const struct kv_policy_facts *f = &r->q->facts;
    return permits(rule, "actions", actions[f->action]) &&
           (json_object_get(rule, "tiers") == NULL || f->action == KV_POLICY_OFFLOAD) &&
           permits(rule, "models", f->names[KV_POLICY_MODEL].text) &&
           permits(rule, "layouts", f->names[KV_POLICY_LAYOUT].text) &&
           permits(rule, "regions", f->names[KV_POLICY_REGION].text) && permits(rule, "classes", r->q->class_name) &&
           permits(rule, "data_classes", r->data_class);
}

/* Tiers that a rule takes away whatever the names count for every transfer: there is then no such tier. */
static bool bare(const json_t *rule)
{
    return json_object_get(rule, "models") == NULL && json_object_get(rule, "layouts") == NULL &&
           json_object_get(rule, "regions") == NULL;
}

static bool tier_open(const struct reading *r, const char *tier)
{
    for (unsigned i = 0; i < 3; i++) {
        const json_t *tiers = json_object_get(r->levels[i], "tiers");
        if (tiers != NULL && json_object_get(tiers, tier) == NULL) {
            return false;
        }
    }
    for (unsigned p = 0; p < 2; p++) {
        size_t i = 0;
        json_t *rule = NULL;
        json_array_foreach(json_object_get(r->policies[p], "forbid"), i, rule)
        {
            bool always = bare(rule) && permits(rule, "classes", r->q->class_name) &&
                          permits(rule, "data_classes", r->data_class);
            if (lists(rule, "tiers", tier) && (always || rule_applies(r, rule))) {
                return false;
            }
        }
    }
    return true;
}

static bool rule_forbids(const struct reading *r)
{
    for (unsigned p = 0; p < 2; p++) {
        size_t i = 0;
        json_t *rule = NULL;
        json_array_foreach(json_object_get(r->policies[p], "forbid"), i, rule)
        {
            if (json_object_get(rule, "tiers") == NULL && rule_applies(r, rule)) {
                return true;
            }
        }
    }
    return false;
}

static bool restore_never(const struct reading *r)
{
    bool never = false;
    for (unsigned i = 0; i < 3; i++) {
        const char *word = json_string_value(json_object_get(r->levels[i], "restore"));
        never = never || (word != NULL && strcmp(word, "never") == 0);
    }
    return never;
}

/* Off until one of them says "scope"; and whoever says "none", or has a list without it, forbids. A transfer's scope
 * was on the lists when its session was made. */
static bool sharing_forbidden(const struct reading *r)
{
    const struct kv_policy_facts *f = &r->q->facts;
    bool said = false;
    for (unsigned i = 0; f->shared && i < 3; i++) {
        const json_t *sharing = json_object_get(r->levels[i], "sharing");
        const json_t *mode = json_is_string(sharing) ? sharing : json_object_get(sharing, "mode");
        if (mode != NULL && strcmp(json_string_value(mode), "none") == 0) {
            return true;
        }
        if (f->action == KV_POLICY_SESSION && !permits(sharing, "scopes", f->names[KV_POLICY_SCOPE].text)) {
            return true;
        }
        said = said || mode != NULL;
    }
    return f->shared && !said;
}

static uint32_t erasing(const struct reading *r)
{
    uint32_t reasons = r->q->facts.same_tenant ? 0 : KV_POLICY_OTHER_TENANT;
    for (unsigned p = 0; p < 2; p++) {
        const json_t *erase = json_object_get(r->policies[p], "erase");
        if (!permits(erase, "basis", bases[r->q->facts.basis])) {
            reasons |= KV_POLICY_BASIS_FORBIDDEN;
        }
        if (json_is_true(json_object_get(erase, "require_reason")) && !r->q->facts.reason_given) {
            reasons |= KV_POLICY_REASON_REQUIRED;
        }
    }
    return reasons;
}

static uint32_t working(const struct reading *r, uint32_t tiers)
{
    const struct kv_policy_facts *f = &r->q->facts;
    bool transfer = f->action <= KV_POLICY_LOOKUP;
    bool there = f->durable_asked ? (tiers & 1u << KV_TIER_NVME) != 0 : tiers != 0;
    uint32_t reasons = 0;
    reasons |= f->tenant_active ? 0 : KV_POLICY_TENANT_INACTIVE;
    reasons |= f->same_tenant ? 0 : KV_POLICY_OTHER_TENANT;
    reasons |= all_permit(r, "models", KV_POLICY_MODEL) ? 0 : KV_POLICY_MODEL_FORBIDDEN;
    reasons |= all_permit(r, "regions", KV_POLICY_REGION) ? 0 : KV_POLICY_REGION_FORBIDDEN;
    reasons |= !transfer || all_permit(r, "layouts", KV_POLICY_LAYOUT) ? 0 : KV_POLICY_LAYOUT_FORBIDDEN;
    reasons |= rule_forbids(r) ? KV_POLICY_RULE_FORBIDS : 0;
    reasons |= sharing_forbidden(r) ? KV_POLICY_SHARING_FORBIDDEN : 0;
    reasons |= transfer && !f->session_active ? KV_POLICY_SESSION_INACTIVE : 0;
    reasons |= transfer && over(r, NULL, "max_block_bytes", f->block_bytes) ? KV_POLICY_BLOCK_TOO_LARGE : 0;
    reasons |= transfer && over(r, "session", "max_age_seconds", f->session_age_s) ? KV_POLICY_SESSION_EXPIRED : 0;
    reasons |= transfer && !there ? KV_POLICY_TIER_FORBIDDEN : 0;
    reasons |= f->action == KV_POLICY_RESTORE && restore_never(r) ? KV_POLICY_RESTORE_NEVER : 0;
    return reasons;
}

static const char *data_class_of(const struct reading *r)
{
    const char *found = "internal";
    for (unsigned i = 0; i < 3; i++) {
        const char *word = json_string_value(json_object_get(r->levels[i], "data_class"));
        found = word == NULL ? found : word;
    }
    return found;
}

static uint32_t duties(const struct kv_policy_facts *facts, uint32_t tiers)
{
    uint32_t strict =
        facts->action == KV_POLICY_OFFLOAD || facts->action == KV_POLICY_RESTORE ? KV_POLICY_RECORD_STRICT : 0;
    bool dram = (tiers & 1u << KV_TIER_DRAM) != 0;
    return strict | (facts->action == KV_POLICY_OFFLOAD && !dram ? KV_POLICY_PASS_DRAM : 0u);
}

void kvt_policy_reference(const json_t *platform, const json_t *tenant, const struct kvt_question *question,
                          struct kv_policy_decision *ret_decision)
{
    const json_t *of_class = json_object_get(json_object_get(tenant, "classes"), question->class_name);
    struct reading r = {.levels = {platform, tenant, of_class}, .policies = {platform, tenant}, .q = question};
    memset(ret_decision, 0, sizeof *ret_decision);
    if (of_class == NULL && strcmp(question->class_name, "default") != 0) {
        ret_decision->reasons = KV_POLICY_CLASS_UNKNOWN;
        return;
    }
    r.data_class = data_class_of(&r);
    uint32_t tiers =
        (tier_open(&r, "dram") ? 1u << KV_TIER_DRAM : 0) | (tier_open(&r, "nvme") ? 1u << KV_TIER_NVME : 0);
    ret_decision->reasons = question->facts.action == KV_POLICY_ERASE ? erasing(&r) : working(&r, tiers);
    uint32_t needed = duties(&question->facts, tiers);
    if (ret_decision->reasons == 0 && (needed & ~question->facts.obligations_known) != 0) {
        ret_decision->reasons = KV_POLICY_OBLIGATION_UNKNOWN;
    }
    ret_decision->allowed = ret_decision->reasons == 0;
    ret_decision->tiers_allowed = ret_decision->allowed ? tiers : 0;
    ret_decision->obligations = ret_decision->allowed ? needed : 0;
}
