/* Erasures walk forward only, facts freeze, a certificate is issued once and only after verification. */
#include "server/store/store_hold.h"

#include "dataplane/base/id.h"
#include "server/store/store_hold.h"
#include "server/store/store_loss.h"
#include "tests/lib/store_rows.h"
#include "tests/lib/temp_postgres.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TEMP_POSTGRES_HOOKS

#define SHA "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
#define SHA2 "ff112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

static struct kv_errinfo info;
static struct kv_pg *pg;
static struct kv_id tenant, session;

static void set_up(void)
{
    pg = temp_postgres_connect(temp_postgres_url(), "test");
    store_cluster(pg);
    store_tenant(pg, 4);
    tenant = store_tenant(pg, 5);
    session = store_session(pg, tenant, 100);
}

static void tear_down(void)
{
    kv_pg_close(pg);
}

TestSuite(erasure, .init = set_up, .fini = tear_down);
TestSuite(batch, .init = set_up, .fini = tear_down);

static enum kv_err advance(struct kv_id id, enum kv_erasure_state from, enum kv_erasure_state to)
{
    return IN_TX(pg, kv_store_erasure_advance(pg, &id, from, to, T0 + 100 + (uint64_t)to, &info));
}

static struct kv_store_facts good_facts(void)
{
    return (struct kv_store_facts){.blocks = 12,
                                   .bytes = 1234567890123,
                                   .dram_blocks = 4,
                                   .dram_bytes = 400,
                                   .nvme_blocks = 12,
                                   .nvme_bytes = 1200,
                                   .block_root = {7, [31] = 8},
                                   .samples = 3,
                                   .control_opened = 3,
                                   .opened_after = 0,
                                   .checks = 7};
}

/* Up to `to`, with everything that the way needs. */
static struct kv_store_erasure walk(struct kv_id erased, unsigned number, enum kv_erasure_state to)
{
    struct kv_store_erasure erasure = store_erasure_request(pg, tenant, erased, number);
    struct kv_id batch = store_batch(pg, number + 1000);
    struct kv_store_facts facts = good_facts();
    cr_assert(eq(int, IN_TX(pg, kv_store_erasure_set_batch(pg, &erasure.id, &batch, &info)), KV_OK));
    cr_assert(eq(int, IN_TX(pg, kv_store_erasure_set_facts(pg, &erasure.id, &facts, &info)), KV_OK));
    for (int state = KV_ERASURE_REQUESTED; state < (int)to; state++) {
        enum kv_erasure_state from = (enum kv_erasure_state)state, next = (enum kv_erasure_state)(state + 1);
        cr_assert(eq(int, advance(erasure.id, from, next), KV_OK), "%s", info.text);
    }
    cr_assert(eq(int, kv_store_erasure_get(pg, &erasure.id, &info, &erasure), KV_OK));
    /* Room for the next batch. */
    cr_assert(
        eq(int, temp_postgres_run(pg, "update erase_batch set state = 'abandoned' where state = 'staged'"), KV_OK));
    return erasure;
}

Test(erasure, request_revokes_the_session_and_carries_its_slots)
{
    struct kv_store_erasure erasure = store_erasure_request(pg, tenant, session, 200);
    cr_assert(eq(int, erasure.state, KV_ERASURE_REQUESTED));
    cr_assert(eq(u32, erasure.slot, 0));
    cr_assert(eq(u32, erasure.directory_slot, 1));
    cr_assert(eq(i64, erasure.revocation_seq, 1));
    cr_assert(eq(u64, erasure.at_us[KV_ERASURE_REQUESTED], T0 + 5));
    cr_assert(eq(u64, erasure.at_us[KV_ERASURE_FENCED], 0));
    cr_assert(eq(str, erasure.basis, "gdpr_art17"));
    cr_assert(eq(str, erasure.reason_sha256, ""));
    cr_assert(eq(i64, erasure.certificate_index, -1));
    cr_assert(not(erasure.has_facts || erasure.has_jws || erasure.has_bundle || erasure.has_samples));
    struct kv_store_session got;
    cr_assert(eq(int, kv_store_session_get(pg, &session, &info, &got), KV_OK));
    cr_assert(eq(int, got.state, KV_SESSION_ERASING));
    cr_assert(eq(i64, got.revoked_seq, 1));
    cr_assert(kv_id_equal(&got.erasure, &erasure.id));
}

/* ---- a whole tenant ---- */

static enum kv_err request_again(struct kv_store_erasure *erasure);

static enum kv_err request_tenant(struct kv_store_erasure *erasure)
{
    enum kv_err rc = kv_store_revocation_next(pg, &info, &erasure->revocation_seq);
    return rc != KV_OK ? rc : kv_store_erasure_insert_tenant(pg, erasure, &info);
}

static struct kv_store_erasure all_of_tenant(unsigned number)
{
    struct kv_store_erasure erasure = {.id = store_id(number),
                                       .tenant = tenant,
                                       .state = KV_ERASURE_REQUESTED,
                                       .basis = "contract",
                                       .requested_role = "operator"};
    erasure.at_us[KV_ERASURE_REQUESTED] = T0 + 9;
    cr_assert(eq(int, IN_TX(pg, request_tenant(&erasure)), KV_OK), "%s", info.text);
    return erasure;
}

static enum kv_session_state state_of(struct kv_id id, struct kv_id *ret_erasure)
{
    struct kv_store_session got;
    cr_assert(eq(int, kv_store_session_get(pg, &id, &info, &got), KV_OK), "%s", info.text);
    *ret_erasure = got.erasure;
    return got.state;
}

Test(erasure, of_a_tenant_means_its_sessions_by_one_number_and_gives_it_a_fresh_tree)
{
    struct kv_id second = store_session(pg, tenant, 101), named = {0}, none = {0}, ids[3];
    struct kv_store_erasure alone = store_erasure_request(pg, tenant, session, 200), all = all_of_tenant(201);
    struct kv_store_revocation list[3];
    size_t count = 0;
    cr_assert(eq(u64, all.sessions, 1), "the other one has its own");
    cr_assert(eq(u32, all.directory_slot, 1));
    cr_assert(kv_id_equal(&all.tree, &tenant));
    cr_assert(eq(int, kv_store_revocations_since(pg, alone.revocation_seq, 3, &info, list, &count), KV_OK));
    cr_assert(eq(sz, count, 1));
    cr_assert(kv_id_is_zero(&list[0].session) && kv_id_equal(&list[0].erasure, &all.id));
    cr_assert(eq(int, kv_store_erasure_sessions(pg, &list[0], &none, 3, &info, ids, &count), KV_OK));
    cr_assert(eq(sz, count, 1));
    cr_assert(kv_id_equal(&ids[0], &second));
    cr_assert(eq(int, state_of(second, &named), KV_SESSION_ERASING));
    cr_assert(kv_id_equal(&named, &all.id));
    cr_assert(eq(int, state_of(session, &named), KV_SESSION_ERASING));
    cr_assert(kv_id_equal(&named, &alone.id), "it keeps its own");
    struct kv_id since = store_session(pg, tenant, 102);
    struct kv_store_session fresh;
    cr_assert(eq(int, kv_store_session_get(pg, &since, &info, &fresh), KV_OK));
    cr_assert(eq(int, fresh.state, KV_SESSION_ACTIVE));
    cr_assert(eq(u32, fresh.directory_slot, 2));
    cr_assert(kv_id_equal(&fresh.tree, &all.id));
    struct kv_store_erasure again = all;
    again.id = store_id(202);
    again.session = second;
    cr_assert(eq(int, IN_TX(pg, request_again(&again)), KV_E_STALE), "no second one for a session of it");
    struct kv_store_erasure next = all_of_tenant(203);
    cr_assert(eq(u64, next.sessions, 1), "only what was made since");
    cr_assert(eq(u32, next.first_slot, all.slot));
}

Test(erasure, of_a_tenant_is_settled_after_its_certificate_and_not_before)
{
    struct kv_id named = {0};
    struct kv_store_erasure all = all_of_tenant(201);
    uint64_t settled = 9;
    cr_assert(eq(int, IN_TX(pg, kv_store_erasure_settle(pg, 10, T0 + 500, &info, &settled)), KV_OK));
    cr_assert(eq(u64, settled, 0));
    cr_assert(eq(int, kv_store_loss_count(pg, &info, &settled), KV_OK));
    cr_assert(eq(u64, settled, 1), "control: not certified yet");
    cr_assert(eq(int,
                 temp_postgres_run(pg, "do $$ declare c text; begin for c in select conname from pg_constraint where"
                                       " conrelid = 'erasure'::regclass and contype = 'c' loop execute"
                                       " format('alter table erasure drop constraint %I', c); end loop; end $$;"
                                       "update erasure set state = 'certified', certified_at = now(), sessions_root ="
                                       " decode(repeat('00', 32), 'hex') where scope = 'tenant'"),
                 KV_OK));
    cr_assert(eq(int, state_of(session, &named), KV_SESSION_ERASED), "before its row says so");
    cr_assert(eq(int, kv_store_loss_count(pg, &info, &settled), KV_OK));
    cr_assert(eq(u64, settled, 0), "what is erased cannot be lost");
    cr_assert(eq(int, IN_TX(pg, kv_store_erasure_settle(pg, 1, T0 + 500, &info, &settled)), KV_OK), "%s", info.text);
    cr_assert(eq(u64, settled, 1));
    cr_assert(eq(int, IN_TX(pg, kv_store_erasure_settle(pg, 1, T0 + 501, &info, &settled)), KV_OK), "%s", info.text);
    cr_assert(eq(u64, settled, 0));
    cr_assert(eq(int, state_of(session, &named), KV_SESSION_ERASED));
    cr_assert(kv_id_equal(&named, &all.id));
}

static enum kv_err request_again(struct kv_store_erasure *erasure)
{
    int64_t seq = 0;
    enum kv_err rc = kv_store_revocation_next(pg, &info, &seq);
    erasure->revocation_seq = seq;
    return rc != KV_OK ? rc : kv_store_erasure_insert(pg, erasure, &info);
}

Test(erasure, second_request_is_stale_and_moves_nothing)
{
    struct kv_store_erasure erasure = store_erasure_request(pg, tenant, session, 200), second = erasure;
    second.id = store_id(201);
    cr_assert(eq(int, IN_TX(pg, request_again(&second)), KV_E_STALE));
    struct kv_store_session got;
    cr_assert(eq(int, kv_store_session_get(pg, &session, &info, &got), KV_OK));
    cr_assert(kv_id_equal(&got.erasure, &erasure.id));
    int64_t head = 0;
    cr_assert(eq(int, kv_store_revocation_head(pg, &info, &head), KV_OK));
    cr_assert(eq(i64, head, 1));
}

Test(erasure, session_of_another_tenant_is_not_found)
{
    struct kv_store_erasure erasure = {.id = store_id(200),
                                       .tenant = store_id(4),
                                       .session = session,
                                       .basis = "other",
                                       .requested_role = "engine",
                                       .at_us = {T0}};
    cr_assert(eq(int, IN_TX(pg, request_again(&erasure)), KV_E_NOT_FOUND));
    erasure.tenant = tenant;
    erasure.session = store_id(999);
    cr_assert(eq(int, IN_TX(pg, request_again(&erasure)), KV_E_NOT_FOUND));
    erasure.session = session;
    erasure.state = KV_ERASURE_FENCED;
    cr_assert(eq(int, IN_TX(pg, request_again(&erasure)), KV_E_INVALID_REQUEST));
}

Test(erasure, blocked_request_revokes_too_and_runs_later)
{
    const struct kv_store_hold hold = {.id = store_id(150),
                                       .tenant = tenant,
                                       .scope = KV_HOLD_TENANT,
                                       .reason_sha256 = SHA,
                                       .created_us = T0,
                                       .created_role = "tenant_admin",
                                       .expires_us = T0 + 1};
    cr_assert(eq(int, IN_TX(pg, kv_store_hold_insert(pg, &hold, 1, &info)), KV_OK), "%s", info.text);
    struct kv_store_erasure erasure = {.id = store_id(200),
                                       .tenant = tenant,
                                       .session = session,
                                       .state = KV_ERASURE_BLOCKED_HOLD,
                                       .hold = hold.id,
                                       .basis = "retention",
                                       .reason_sha256 = SHA,
                                       .requested_role = "tenant_admin",
                                       .at_us = {[KV_ERASURE_REQUESTED] = T0, [KV_ERASURE_BLOCKED_HOLD] = T0 + 1}};
    struct kv_store_erasure list[2];
    size_t count = 9;
    cr_assert(eq(int, IN_TX(pg, request_again(&erasure)), KV_OK), "%s", info.text);
    cr_assert(eq(int, kv_store_erasure_list_open(pg, true, 2, &info, list, &count), KV_OK));
    cr_assert(eq(sz, count, 0));
    cr_assert(eq(int, advance(erasure.id, KV_ERASURE_BLOCKED_HOLD, KV_ERASURE_FENCED), KV_E_INVALID_REQUEST));
    cr_assert(eq(int, advance(erasure.id, KV_ERASURE_BLOCKED_HOLD, KV_ERASURE_REQUESTED), KV_OK));
    cr_assert(eq(int, kv_store_erasure_list_open(pg, true, 2, &info, list, &count), KV_OK));
    cr_assert(eq(sz, count, 1));
    cr_assert(eq(u64, list[0].at_us[KV_ERASURE_REQUESTED], T0));
    cr_assert(eq(u64, list[0].at_us[KV_ERASURE_BLOCKED_HOLD], T0 + 1));
    cr_assert(eq(str, list[0].reason_sha256, SHA));
}

Test(erasure, whole_walk_keeps_each_state_s_time)
{
    struct kv_store_erasure erasure = walk(session, 200, KV_ERASURE_VERIFIED);
    for (int state = KV_ERASURE_FENCED; state <= KV_ERASURE_VERIFIED; state++) {
        cr_assert(eq(u64, erasure.at_us[state], T0 + 100 + (uint64_t)state));
    }
    cr_assert(eq(u64, erasure.at_us[KV_ERASURE_QUARANTINED], 0));
    cr_assert(erasure.has_facts);
    cr_assert(eq(u64, erasure.facts.bytes, 1234567890123));
    cr_assert(eq(u64, erasure.facts.nvme_bytes, 1200));
    cr_assert(eq(u32, erasure.facts.samples, 3));
    cr_assert(eq(u32, erasure.facts.checks, 7));
    cr_assert(eq(u8, erasure.facts.block_root[31], 8));
}

Test(erasure, only_arrows_of_the_diagram_are_gone)
{
    for (int from = 0; from < KV_ERASURE_STATES; from++) {
        for (int to = 0; to < KV_ERASURE_STATES; to++) {
            bool forward = from < KV_ERASURE_CERTIFIED && to == from + 1;
            bool back = from == KV_ERASURE_STAGED && to == KV_ERASURE_FENCED;
            bool release =
                (from == KV_ERASURE_BLOCKED_HOLD || from == KV_ERASURE_NEEDS_APPROVAL) && to == KV_ERASURE_REQUESTED;
            bool quarantine = to == KV_ERASURE_QUARANTINED && from != to && from != KV_ERASURE_CERTIFIED;
            enum kv_err expected = forward || back || release || quarantine ? KV_E_STALE : KV_E_INVALID_REQUEST;
            cr_assert(
                eq(int, advance(store_id(999), (enum kv_erasure_state)from, (enum kv_erasure_state)to), expected));
        }
    }
}

Test(erasure, advance_compares_the_state)
{
    struct kv_store_erasure erasure = store_erasure_request(pg, tenant, session, 200);
    cr_assert(eq(int, advance(erasure.id, KV_ERASURE_FENCED, KV_ERASURE_STAGED), KV_E_STALE));
    cr_assert(eq(int, advance(erasure.id, KV_ERASURE_REQUESTED, KV_ERASURE_FENCED), KV_OK));
    cr_assert(eq(int, advance(erasure.id, KV_ERASURE_REQUESTED, KV_ERASURE_FENCED), KV_E_STALE));
    /* Without a batch nothing is staged. */
    cr_assert(eq(int, advance(erasure.id, KV_ERASURE_FENCED, KV_ERASURE_STAGED), KV_E_INVALID_STATE));
}

Test(erasure, is_not_verified_with_a_block_that_opens_or_a_check_that_failed)
{
    struct kv_store_erasure erasure = walk(session, 200, KV_ERASURE_PURGED);
    struct kv_store_facts facts = good_facts();
    facts.opened_after = 1;
    cr_assert(eq(int, IN_TX(pg, kv_store_erasure_set_facts(pg, &erasure.id, &facts, &info)), KV_OK));
    cr_assert(eq(int, advance(erasure.id, KV_ERASURE_PURGED, KV_ERASURE_VERIFIED), KV_E_INVALID_STATE));
    facts = good_facts();
    facts.checks = KV_ERASED_ROOT_GONE | KV_ERASED_SLOTS_ABSENT;
    cr_assert(eq(int, IN_TX(pg, kv_store_erasure_set_facts(pg, &erasure.id, &facts, &info)), KV_OK));
    cr_assert(eq(int, advance(erasure.id, KV_ERASURE_PURGED, KV_ERASURE_VERIFIED), KV_E_INVALID_STATE));
    facts = good_facts();
    facts.opened_after = 4; /* more than there were samples */
    cr_assert(eq(int, IN_TX(pg, kv_store_erasure_set_facts(pg, &erasure.id, &facts, &info)), KV_E_INVALID_STATE));
    facts = good_facts();
    facts.samples = facts.control_opened = 0;
    cr_assert(eq(int, IN_TX(pg, kv_store_erasure_set_facts(pg, &erasure.id, &facts, &info)), KV_OK));
    cr_assert(eq(int, advance(erasure.id, KV_ERASURE_PURGED, KV_ERASURE_VERIFIED), KV_OK));
    /* Frozen. */
    cr_assert(eq(int, IN_TX(pg, kv_store_erasure_set_facts(pg, &erasure.id, &facts, &info)), KV_E_STALE));
}

Test(erasure, samples_are_kept_until_verified)
{
    struct kv_store_erasure erasure = walk(session, 200, KV_ERASURE_REKEYED);
    struct kv_buf buf;
    kv_buf_init(&buf, 1 << 20);
    cr_assert(eq(int, kv_store_erasure_samples(pg, &erasure.id, &info, &buf), KV_E_MISSING));
    uint8_t *pages = calloc(1, (1 << 20) + 1);
    memset(pages, 0x5a, 4096);
    cr_assert(eq(int, IN_TX(pg, kv_store_erasure_set_samples(pg, &erasure.id, KV_BYTES(pages, (1 << 20) + 1), &info)),
                 KV_E_INVALID_STATE));
    cr_assert(
        eq(int, IN_TX(pg, kv_store_erasure_set_samples(pg, &erasure.id, KV_BYTES(pages, 1 << 20), &info)), KV_OK));
    cr_assert(eq(int, kv_store_erasure_samples(pg, &erasure.id, &info, &buf), KV_OK));
    cr_assert(eq(sz, buf.len, 1 << 20));
    cr_assert(eq(int, memcmp(buf.data, pages, 1 << 20), 0));
    cr_assert(eq(int, advance(erasure.id, KV_ERASURE_REKEYED, KV_ERASURE_DESTROYED), KV_OK));
    cr_assert(eq(int, advance(erasure.id, KV_ERASURE_DESTROYED, KV_ERASURE_PURGED), KV_OK));
    cr_assert(eq(int, advance(erasure.id, KV_ERASURE_PURGED, KV_ERASURE_VERIFIED), KV_OK));
    kv_buf_reset(&buf);
    cr_assert(eq(int, kv_store_erasure_samples(pg, &erasure.id, &info, &buf), KV_E_MISSING));
    cr_assert(eq(int, IN_TX(pg, kv_store_erasure_set_samples(pg, &erasure.id, KV_BYTES(pages, 1), &info)), KV_E_STALE));
    kv_buf_done(&buf);
    free(pages);
}

struct certificate {
    struct kv_id id;
    const char *sha256, *previous_sha256;
};

static struct certificate certificate(unsigned number, const char *sha256, const char *previous)
{
    return (struct certificate){.id = store_id(number), .sha256 = sha256, .previous_sha256 = previous};
}

static enum kv_err set_certificate(const struct kv_id *erasure, const struct certificate *certificate)
{
    struct kv_store_issued issued = {.erasure = *erasure, .certificate = certificate->id, .text = KV_BYTES("a.b.c", 5)};
    snprintf(issued.previous_sha256, sizeof issued.previous_sha256, "%s", certificate->previous_sha256);
    enum kv_err rc = kv_store_erasures_set_certificates(pg, &issued, 1, &info);
    return rc != KV_OK ? rc
                       : kv_store_tenant_certificate_move(pg, &tenant, certificate->previous_sha256,
                                                          certificate->sha256, &info);
}

static enum kv_err set_bundle(const struct kv_id *erasure, const char *text)
{
    struct kv_store_issued issued = {.erasure = *erasure, .text = KV_BYTES(text, strlen(text)), .leaf_index = 9};
    return kv_store_erasures_set_bundles(pg, &issued, 1, &info);
}

Test(erasure, certificate_is_issued_once_and_only_when_verified)
{
    struct kv_store_erasure erasure = walk(session, 200, KV_ERASURE_PURGED), got;
    struct certificate first = certificate(300, SHA, ""), second = certificate(301, SHA2, SHA);
    struct kv_buf buf;
    kv_buf_init(&buf, 65536);
    cr_assert(eq(int, IN_TX(pg, set_certificate(&erasure.id, &first)), KV_E_STALE));
    cr_assert(eq(int, advance(erasure.id, KV_ERASURE_PURGED, KV_ERASURE_VERIFIED), KV_OK));
    cr_assert(eq(int, kv_store_erasure_jws(pg, &erasure.id, &info, &buf), KV_E_MISSING));
    cr_assert(eq(int, advance(erasure.id, KV_ERASURE_VERIFIED, KV_ERASURE_CERTIFIED), KV_E_INVALID_STATE));
    cr_assert(eq(int, IN_TX(pg, set_bundle(&erasure.id, "bundle")), KV_E_STALE));
    cr_assert(eq(int, IN_TX(pg, set_certificate(&erasure.id, &first)), KV_OK), "%s", info.text);
    cr_assert(eq(int, IN_TX(pg, set_certificate(&erasure.id, &second)), KV_E_STALE));
    cr_assert(eq(int, kv_store_erasure_jws(pg, &erasure.id, &info, &buf), KV_OK));
    cr_assert(eq(str, (char *)buf.data, "a.b.c"));
    cr_assert(eq(int, advance(erasure.id, KV_ERASURE_VERIFIED, KV_ERASURE_CERTIFIED), KV_E_INVALID_STATE));
    kv_buf_reset(&buf);
    cr_assert(eq(int, kv_store_erasure_bundle(pg, &erasure.id, &info, &buf), KV_E_MISSING));
    cr_assert(eq(int, IN_TX(pg, set_bundle(&erasure.id, "bundle")), KV_OK));
    cr_assert(eq(int, IN_TX(pg, set_bundle(&erasure.id, "other")), KV_E_STALE));
    cr_assert(eq(int, advance(erasure.id, KV_ERASURE_VERIFIED, KV_ERASURE_CERTIFIED), KV_OK), "%s", info.text);
    cr_assert(eq(int, kv_store_erasure_bundle(pg, &erasure.id, &info, &buf), KV_OK));
    cr_assert(eq(str, (char *)buf.data, "bundle"));
    cr_assert(eq(int, kv_store_erasure_get_by_certificate(pg, &first.id, &info, &got), KV_OK));
    cr_assert(kv_id_equal(&got.id, &erasure.id));
    cr_assert(eq(i64, got.certificate_index, 9));
    cr_assert(got.has_jws && got.has_bundle);
    cr_assert(eq(int, kv_store_erasure_get_by_certificate(pg, &second.id, &info, &got), KV_E_NOT_FOUND));
    cr_assert(eq(int, advance(erasure.id, KV_ERASURE_CERTIFIED, KV_ERASURE_QUARANTINED), KV_E_INVALID_REQUEST));
    kv_buf_done(&buf);
}

Test(erasure, certificates_of_a_tenant_form_one_chain)
{
    struct kv_id other = store_session(pg, tenant, 101);
    struct kv_store_erasure a = walk(session, 200, KV_ERASURE_VERIFIED), b = walk(other, 210, KV_ERASURE_VERIFIED), got;
    struct certificate first = certificate(300, SHA, ""), fork = certificate(301, SHA2, ""),
                       second = certificate(301, SHA2, SHA);
    char previous[KV_SHA256_HEX_SIZE];
    cr_assert(eq(int, IN_TX(pg, set_certificate(&a.id, &first)), KV_OK));
    cr_assert(eq(int, IN_TX(pg, set_certificate(&b.id, &fork)), KV_E_STALE));
    cr_assert(eq(int, IN_TX(pg, kv_store_tenant_certificate_lock(pg, &tenant, &info, previous)), KV_OK));
    cr_assert(eq(str, previous, SHA));
    cr_assert(eq(int, IN_TX(pg, set_certificate(&b.id, &second)), KV_OK));
    cr_assert(eq(int, kv_store_erasure_get(pg, &b.id, &info, &got), KV_OK));
    cr_assert(eq(str, got.previous_sha256, SHA));
}

Test(erasure, quarantine_is_reached_from_anywhere_before_certified_and_left_by_nothing)
{
    struct kv_store_erasure erasure = walk(session, 200, KV_ERASURE_DESTROYED), list[2];
    size_t count = 9;
    cr_assert(eq(int, advance(erasure.id, KV_ERASURE_DESTROYED, KV_ERASURE_QUARANTINED), KV_OK));
    cr_assert(eq(int, advance(erasure.id, KV_ERASURE_QUARANTINED, KV_ERASURE_REQUESTED), KV_E_INVALID_REQUEST));
    cr_assert(eq(int, kv_store_erasure_list_open(pg, true, 2, &info, list, &count), KV_OK));
    cr_assert(eq(sz, count, 0));
}

static enum kv_err request_many(struct kv_store_erasure *like, const struct kv_store_meant *meant, size_t count,
                                struct kv_store_meant *ret_taken, size_t *ret_count)
{
    enum kv_err rc = kv_store_revocations_next(pg, count, &info, &like->revocation_seq);
    return rc != KV_OK ? rc : kv_store_erasures_insert(pg, like, meant, count, &info, ret_taken, ret_count);
}

static struct kv_store_erasure like_of(void)
{
    struct kv_store_erasure like = {
        .tenant = tenant, .basis = "other", .requested_role = "tenant_admin", .requested_by = store_id(77)};
    like.at_us[KV_ERASURE_REQUESTED] = T0 + 9;
    return like;
}

static struct kv_id hold_all(void)
{
    const struct kv_store_hold hold = {.id = store_id(700),
                                       .tenant = tenant,
                                       .scope = KV_HOLD_TENANT,
                                       .reason_sha256 = SHA,
                                       .created_us = T0,
                                       .created_role = "tenant_admin",
                                       .expires_us = T0 + UINT64_C(86400000000)};
    cr_assert(eq(int, IN_TX(pg, kv_store_hold_insert(pg, &hold, 10, &info)), KV_OK), "%s", info.text);
    return hold.id;
}

Test(erasure, many_requests_in_one_are_the_same_as_each_alone)
{
    struct kv_id before = store_erasure_request(pg, tenant, session, 200).id, found;
    struct kv_id theirs = store_session(pg, store_tenant(pg, 6), 190);
    struct kv_store_meant meant[5] = {{.session = theirs}, {.session = session}, {.session = store_id(9999)}}, taken[5];
    size_t count = 0;
    for (unsigned i = 0; i < 5; i++) {
        meant[i].session = i < 3 ? meant[i].session : store_session(pg, tenant, 150 - i);
        meant[i].erasure = store_id(240 + i);
    }
    meant[4].hold = hold_all();
    struct kv_store_erasure like = like_of(), got;
    cr_assert(eq(int, IN_TX(pg, request_many(&like, meant, 5, taken, &count)), KV_OK), "%s", info.text);
    cr_assert(eq(sz, count, 2), "another tenant's, one that is being erased, and one that is not there are left out");
    for (unsigned i = 0; i < 2; i++) {
        cr_assert(kv_id_equal(&taken[i].session, &meant[3 + i].session), "in the order of the revocations");
        cr_assert(kv_id_equal(&taken[i].erasure, &meant[3 + i].erasure));
        cr_assert(eq(int, state_of(taken[i].session, &found), KV_SESSION_ERASING));
        cr_assert(kv_id_equal(&found, &taken[i].erasure));
        cr_assert(eq(int, kv_store_erasure_get(pg, &taken[i].erasure, &info, &got), KV_OK));
        cr_assert(eq(int, got.state, i == 0 ? KV_ERASURE_REQUESTED : KV_ERASURE_BLOCKED_HOLD));
        cr_assert(kv_id_equal(&got.hold, &meant[3 + i].hold));
        cr_assert(kv_id_equal(&taken[i].hold, &meant[3 + i].hold));
        cr_assert(eq(u64, got.at_us[KV_ERASURE_BLOCKED_HOLD], i == 0 ? 0 : T0 + 9));
        cr_assert(eq(i64, got.revocation_seq, like.revocation_seq + 3 + i));
        cr_assert(eq(u64, got.at_us[KV_ERASURE_REQUESTED], T0 + 9));
        cr_assert(eq(str, got.basis, "other"));
        cr_assert(kv_id_equal(&got.requested_by, &like.requested_by));
        struct kv_store_session row;
        cr_assert(eq(int, kv_store_session_get(pg, &taken[i].session, &info, &row), KV_OK));
        cr_assert(eq(u32, got.slot, row.slot));
        cr_assert(eq(u32, got.directory_slot, row.directory_slot));
        cr_assert(kv_id_equal(&got.tree, &row.tree));
        cr_assert(eq(i64, row.revoked_seq, got.revocation_seq));
    }
    cr_assert(eq(int, state_of(theirs, &found), KV_SESSION_ACTIVE));
    cr_assert(eq(int, state_of(session, &found), KV_SESSION_ERASING));
    cr_assert(kv_id_equal(&found, &before), "it keeps the erasure it has");
    int64_t next = 0;
    cr_assert(eq(int, IN_TX(pg, kv_store_revocation_next(pg, &info, &next)), KV_OK));
    cr_assert(eq(i64, next, like.revocation_seq + 5), "numbers that were not used are not given again");
}

Test(erasure, as_many_as_a_batch_has_are_requested_in_one)
{
    static struct kv_store_meant meant[KV_ERASE_BATCH], taken[KV_ERASE_BATCH];
    size_t count = 0;
    for (unsigned i = 0; i < KV_ERASE_BATCH; i++) {
        meant[i] = (struct kv_store_meant){.session = store_id(20000 + i), .erasure = store_id(30000 + i)};
    }
    meant[KV_ERASE_BATCH - 1].session = session;
    struct kv_store_erasure like = like_of();
    cr_assert(eq(int, IN_TX(pg, request_many(&like, meant, KV_ERASE_BATCH, taken, &count)), KV_OK), "%s", info.text);
    cr_assert(eq(sz, count, 1));
    cr_assert(kv_id_equal(&taken[0].session, &session));
}

Test(erasure, many_go_on_together_or_not_at_all)
{
    struct kv_id ids[3] = {{{0}}}, batch = store_batch(pg, 1000);
    struct kv_store_erasure list[3];
    struct kv_store_found found[2] = {0};
    for (unsigned i = 0; i < 3; i++) {
        struct kv_id session_id = store_session(pg, tenant, 120 + i);
        ids[i] = store_erasure_request(pg, tenant, session_id, 230 + i).id;
    }
    const struct kv_store_ids two = {.ids = ids, .count = 2}, three = {.ids = ids, .count = 3}, none = {.ids = ids};
    const struct kv_store_move fence = {.from = KV_ERASURE_REQUESTED, .to = KV_ERASURE_FENCED, .at_us = 1000000};
    cr_assert(eq(int, IN_TX(pg, kv_store_erasures_advance(pg, &none, &fence, &info)), KV_OK));
    cr_assert(eq(int, IN_TX(pg, kv_store_erasures_advance(pg, &two, &fence, &info)), KV_OK));
    cr_assert(eq(int, IN_TX(pg, kv_store_erasures_advance(pg, &three, &fence, &info)), KV_E_STALE));
    cr_assert(eq(int, kv_store_erasures_get(pg, &three, &info, list), KV_OK));
    cr_assert(eq(int, list[2].state, KV_ERASURE_REQUESTED));
    for (unsigned i = 0; i < 2; i++) {
        cr_assert(eq(int, list[i].state, KV_ERASURE_FENCED));
        found[i] = (struct kv_store_found){
            .id = ids[i], .facts = {.blocks = 7 + i, .nvme_bytes = 9, .samples = 1}, .samples = KV_BYTES("ab", 2 - i)};
        found[i].facts.block_root[0] = (uint8_t)(1 + i);
    }
    cr_assert(eq(int, IN_TX(pg, kv_store_erasures_set_facts(pg, found, 2, &info)), KV_OK));
    cr_assert(eq(int, IN_TX(pg, kv_store_erasures_set_samples(pg, found, 2, &info)), KV_OK));
    cr_assert(eq(int, IN_TX(pg, kv_store_erasures_set_batch(pg, &three, &batch, &info)), KV_OK));
    cr_assert(eq(int, kv_store_erasures_get(pg, &two, &info, list), KV_OK));
    for (unsigned i = 0; i < 2; i++) {
        cr_assert(kv_id_equal(&list[i].batch, &batch));
        cr_assert(eq(u64, list[i].facts.blocks, 7 + i));
        cr_assert(eq(u64, list[i].facts.nvme_bytes, 9));
        cr_assert(eq(u32, list[i].facts.samples, 1));
        cr_assert(eq(int, list[i].facts.block_root[0], (int)(1 + i)));
        cr_assert(list[i].has_samples);
    }
    ids[1] = store_id(9999);
    found[1].id = ids[1];
    cr_assert(eq(int, kv_store_erasures_get(pg, &two, &info, list), KV_E_NOT_FOUND));
    cr_assert(eq(int, IN_TX(pg, kv_store_erasures_set_facts(pg, found, 2, &info)), KV_E_STALE));
    cr_assert(eq(int, IN_TX(pg, kv_store_erasures_set_samples(pg, found, 2, &info)), KV_E_STALE));
    cr_assert(eq(int, IN_TX(pg, kv_store_erasures_set_batch(pg, &two, &batch, &info)), KV_E_STALE));
    cr_assert(eq(int, IN_TX(pg, kv_store_sessions_set_erased(pg, &two, &info)), KV_E_STALE));
}

Test(erasure, lists_are_bounded_and_in_order)
{
    struct kv_id batch = store_batch(pg, 1000), none = {{0}};
    struct kv_store_erasure list[3];
    size_t count = 0;
    for (unsigned i = 0; i < 3; i++) {
        struct kv_id id = store_session(pg, tenant, 110 + i);
        struct kv_store_erasure erasure = store_erasure_request(pg, tenant, id, 220 - i);
        cr_assert(eq(int, IN_TX(pg, kv_store_erasure_set_batch(pg, &erasure.id, &batch, &info)), KV_OK));
    }
    uint64_t open = 0, oldest_us = 0;
    cr_assert(eq(int, kv_store_erasure_count_open(pg, &info, &open, &oldest_us), KV_OK));
    cr_assert(eq(u64, open, 3));
    cr_assert(gt(u64, oldest_us, 0));
    cr_assert(eq(int, kv_store_erasure_list_open(pg, true, 2, &info, list, &count), KV_OK));
    cr_assert(eq(sz, count, 2));
    cr_assert(lt(i64, list[0].revocation_seq, list[1].revocation_seq));
    cr_assert(eq(int, kv_store_erasure_list_batch(pg, &batch, 3, &info, list, &count), KV_OK));
    cr_assert(eq(sz, count, 3));
    cr_assert(eq(int, IN_TX(pg, kv_store_erasure_set_batch(pg, &list[0].id, &none, &info)), KV_OK));
    cr_assert(eq(int, kv_store_erasure_list_batch(pg, &batch, 3, &info, list, &count), KV_OK));
    cr_assert(eq(sz, count, 2));
    struct kv_store_erasure got;
    struct kv_id unknown = store_id(999);
    cr_assert(eq(int, kv_store_erasure_get(pg, &unknown, &info, &got), KV_E_NOT_FOUND));
}

static enum kv_err batch_advance(struct kv_id id, enum kv_batch_state from, enum kv_batch_state to,
                                 const uint8_t *receipt)
{
    return IN_TX(pg, kv_store_batch_advance(pg, &id, from, to, T0 + 50 + (uint64_t)to, receipt, &info));
}

Test(batch, walks_forward_and_keeps_the_receipt)
{
    static const uint8_t receipt[32] = {4, [31] = 5};
    struct kv_id id = store_batch(pg, 1000);
    struct kv_store_batch got, list[2];
    size_t count = 0;
    struct kv_buf buf;
    kv_buf_init(&buf, 8192);
    cr_assert(eq(int, kv_store_batch_old_top(pg, &id, &info, &buf), KV_OK));
    cr_assert(eq(str, (char *)buf.data, "top"));
    cr_assert(eq(int, IN_TX(pg, kv_store_batch_set_old_top(pg, &id, KV_BYTES("newtop", 6), &info)), KV_OK));
    cr_assert(eq(int, batch_advance(id, KV_BATCH_STAGED, KV_BATCH_DESTROYED, receipt), KV_E_INVALID_REQUEST));
    cr_assert(eq(int, batch_advance(id, KV_BATCH_REKEYED, KV_BATCH_DESTROYED, receipt), KV_E_STALE));
    cr_assert(eq(int, batch_advance(id, KV_BATCH_STAGED, KV_BATCH_REKEYED, NULL), KV_OK));
    cr_assert(eq(int, IN_TX(pg, kv_store_batch_set_old_top(pg, &id, KV_BYTES("x", 1), &info)), KV_E_STALE));
    cr_assert(eq(int, batch_advance(id, KV_BATCH_REKEYED, KV_BATCH_DESTROYED, NULL), KV_E_INVALID_REQUEST));
    cr_assert(eq(int, batch_advance(id, KV_BATCH_REKEYED, KV_BATCH_DESTROYED, receipt), KV_OK), "%s", info.text);
    cr_assert(eq(int, batch_advance(id, KV_BATCH_DESTROYED, KV_BATCH_PURGED, NULL), KV_OK));
    cr_assert(eq(int, kv_store_batch_list_open(pg, 2, &info, list, &count), KV_OK));
    cr_assert(eq(sz, count, 1));
    cr_assert(eq(int, batch_advance(id, KV_BATCH_PURGED, KV_BATCH_DONE, NULL), KV_OK));
    cr_assert(eq(int, batch_advance(id, KV_BATCH_DONE, KV_BATCH_ABANDONED, NULL), KV_E_INVALID_REQUEST));
    cr_assert(eq(int, kv_store_batch_get(pg, &id, &info, &got), KV_OK));
    cr_assert(eq(int, got.state, KV_BATCH_DONE));
    cr_assert(got.has_receipt);
    cr_assert(eq(int, memcmp(got.receipt_sha256, receipt, 32), 0));
    cr_assert(eq(u64, got.destroyed_us, T0 + 50 + KV_BATCH_DESTROYED));
    cr_assert(eq(u64, got.purged_us, T0 + 50 + KV_BATCH_PURGED));
    cr_assert(eq(str, got.provider_detail, "one file"));
    cr_assert(eq(int, kv_store_batch_old_top(pg, &id, &info, &buf), KV_E_MISSING));
    cr_assert(eq(int, kv_store_batch_list_open(pg, 2, &info, list, &count), KV_OK));
    cr_assert(eq(sz, count, 0));
    struct kv_id unknown = store_id(999);
    cr_assert(eq(int, kv_store_batch_get(pg, &unknown, &info, &got), KV_E_NOT_FOUND));
    kv_buf_done(&buf);
}

Test(batch, only_one_replaces_the_root_at_a_time)
{
    struct kv_id first = store_batch(pg, 1000);
    struct kv_store_batch second = {.id = store_id(1010),
                                    .old_root = store_id(1011),
                                    .new_root = store_id(1012),
                                    .fence = 1,
                                    .provider = "file",
                                    .created_us = T0};
    struct kv_bytes none = {0};
    cr_assert(eq(int, IN_TX(pg, kv_store_batch_insert(pg, &second, none, &info)), KV_E_STALE));
    cr_assert(eq(int, batch_advance(first, KV_BATCH_STAGED, KV_BATCH_ABANDONED, NULL), KV_OK));
    cr_assert(eq(int, IN_TX(pg, kv_store_batch_insert(pg, &second, none, &info)), KV_OK), "%s", info.text);
    second.id = store_id(1020);
    second.new_root = second.old_root;
    cr_assert(eq(int, batch_advance(store_id(1010), KV_BATCH_STAGED, KV_BATCH_ABANDONED, NULL), KV_OK));
    cr_assert(eq(int, IN_TX(pg, kv_store_batch_insert(pg, &second, none, &info)), KV_E_INVALID_STATE));
}
