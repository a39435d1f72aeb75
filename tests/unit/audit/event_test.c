/* Entries of the log: exact bytes, their own canonical form, and nothing free in them. */
#include "audit/event.h"
#include "audit/jcs.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>

static struct kv_audit_event sample(void)
{
    struct kv_audit_event event = {.op = KV_AUDIT_OFFLOAD,
                                   .realtime_us = UINT64_C(1795972698000001),
                                   .actor_role = "engine",
                                   .has_transfer = true,
                                   .instance_seq = UINT64_MAX,
                                   .blocks = 4096,
                                   .bytes = UINT64_MAX,
                                   .duration_us = 1500,
                                   .tier = "nvme",
                                   .outcome = "ok"};
    memset(event.tenant.b, 1, 16);
    memset(event.session.b, 2, 16);
    memset(event.actor.b, 3, 16);
    return event;
}

static void check_is_canonical(const struct kv_buf *line)
{
    struct kv_buf canonical;
    struct kv_errinfo info;
    kv_buf_init(&canonical, 1 << 16);
    cr_assert(eq(int, kv_jcs_canonical(kv_buf_bytes(line), &info, &canonical), KV_OK), "%s", info.text);
    cr_assert(eq(str, (char *)canonical.data, (char *)line->data));
    kv_buf_done(&canonical);
}

Test(event, bytes_of_a_transfer_are_stable)
{
    struct kv_buf line;
    struct kv_audit_event event = sample();
    kv_buf_init(&line, 8192);
    cr_assert(eq(int, kv_audit_encode(&event, &line), KV_OK));
    cr_assert(
        eq(str, (char *)line.data,
           "{\"actor\":{\"id\":\"key_030c1g60r30c1g60r30c1g60r3\",\"t\":\"engine\"},\"op\":\"block.offload\","
           "\"outcome\":\"ok\","
           "\"session\":\"ses_02081040g2081040g2081040g2\",\"tenant\":\"ten_01040g2081040g2081040g2081\",\"transfer\":{"
           "\"block_root\":\"0000000000000000000000000000000000000000000000000000000000000000\",\"blocks\":4096,"
           "\"bytes\":\"18446744073709551615\",\"dur_us\":1500,\"iseq\":\"18446744073709551615\",\"tier\":\"nvme\"},"
           "\"ts\":\"2026-11-29T17:18:18.000001Z\",\"v\":1}"));
    check_is_canonical(&line);
    kv_buf_done(&line);
}

Test(event, versions_of_policies_stand_where_they_decided)
{
    struct kv_buf line;
    struct kv_audit_event event = sample();
    kv_buf_init(&line, 8192);
    event.policy_versions[1] = 9; /* without has_policy nothing is said */
    cr_assert(eq(int, kv_audit_encode(&event, &line), KV_OK));
    cr_assert(strstr((char *)line.data, "policy") == NULL);
    kv_buf_reset(&line);
    event.has_policy = true;
    event.policy_versions[1] = UINT64_MAX;
    cr_assert(eq(int, kv_audit_encode(&event, &line), KV_OK));
    cr_assert(strstr((char *)line.data, "\"outcome\":\"ok\",\"policy\":{\"platform\":\"0\",\"tenant\":"
                                        "\"18446744073709551615\"},\"session\":") != NULL);
    check_is_canonical(&line);
    struct kv_audit_facts facts;
    cr_assert(eq(int, kv_audit_facts(kv_buf_bytes(&line), &facts), KV_OK));
    cr_expect(eq(str, facts.op, "block.offload"));
    cr_expect(eq(int, memcmp(facts.session.b, event.session.b, 16), 0));
    kv_buf_done(&line);
}

Test(event, every_operation_has_a_name_and_gives_its_canonical_form)
{
    for (int op = KV_AUDIT_TENANT_CREATE; op <= KV_AUDIT_ROOT_ACCEPT_LOSS; op++) {
        struct kv_audit_event event = {.op = (enum kv_audit_op)op, .actor_role = "system", .outcome = "ok"};
        struct kv_buf line;
        kv_buf_init(&line, 8192);
        memset(event.subject.b, 9, 16);
        event.subject_prefix = "era";
        cr_assert(eq(int, kv_audit_encode(&event, &line), KV_OK));
        cr_assert(strstr((char *)line.data, kv_audit_op_name((enum kv_audit_op)op)) != NULL);
        check_is_canonical(&line);
        kv_buf_done(&line);
    }
    cr_assert(eq(str, (char *)kv_audit_op_name(KV_AUDIT_ERASE_REQUEST), "erase.request"));
    cr_assert(eq(str, (char *)kv_audit_op_name((enum kv_audit_op)99), "unknown"));
}

static enum kv_err encode(const struct kv_audit_event *event)
{
    struct kv_buf line;
    kv_buf_init(&line, 8192);
    enum kv_err rc = kv_audit_encode(event, &line);
    cr_assert(rc == KV_OK || line.len == 0, "nothing is written on failure");
    kv_buf_done(&line);
    return rc;
}

Test(event, what_is_not_in_the_profile_is_refused)
{
    struct kv_audit_event event = sample();
    cr_assert(eq(int, encode(&event), KV_OK));
    event.actor_role = "\xc3\xa9";
    cr_assert(eq(int, encode(&event), KV_E_INVALID_REQUEST));
    event = sample();
    event.blocks = UINT64_C(1) << 53;
    cr_assert(eq(int, encode(&event), KV_E_INVALID_REQUEST));
    event.blocks--;
    cr_assert(eq(int, encode(&event), KV_OK));
    event.detail_sha256 = "why the client did it";
    cr_assert(eq(int, encode(&event), KV_E_INVALID_REQUEST));
    event.detail_sha256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    cr_assert(eq(int, encode(&event), KV_OK));
    event.subject.b[0] = 1;
    cr_assert(eq(int, encode(&event), KV_E_INVALID_REQUEST)); /* a subject without its prefix */
    event = sample();
    event.op = (enum kv_audit_op)99;
    cr_assert(eq(int, encode(&event), KV_E_INVALID_REQUEST));
}

Test(event, an_entry_ends_at_its_limit)
{
    static char role[8192];
    struct kv_audit_event event = sample();
    memset(role, 'r', 3000);
    event.actor_role = role;
    cr_assert(eq(int, encode(&event), KV_OK));
    memset(role, 'r', 4096);
    cr_assert(ne(int, encode(&event), KV_OK));
}

Test(event, what_it_is_found_by_is_read_back_from_its_line)
{
    struct kv_buf line;
    struct kv_audit_facts facts;
    struct kv_audit_event event = sample();
    kv_buf_init(&line, 8192);
    cr_assert(eq(int, kv_audit_encode(&event, &line), KV_OK));
    cr_assert(eq(int, kv_audit_facts(kv_buf_bytes(&line), &facts), KV_OK));
    cr_assert(eq(str, facts.op, "block.offload"));
    cr_assert(eq(str, facts.outcome, "ok"));
    cr_assert(eq(int, memcmp(facts.actor.b, event.actor.b, 16), 0));
    cr_assert(eq(int, memcmp(facts.session.b, event.session.b, 16), 0));
    cr_assert(eq(int, kv_audit_facts(KV_BYTES("a.b.c", 5), &facts), KV_OK));
    cr_assert(eq(str, facts.op, "certificate"));
    cr_assert(eq(int, kv_audit_facts(KV_BYTES("rubbish", 7), &facts), KV_E_CORRUPT));
    cr_assert(eq(int, kv_audit_facts(KV_BYTES("{\"op\":\"x", 8), &facts), KV_E_CORRUPT));
    kv_buf_done(&line);
}
