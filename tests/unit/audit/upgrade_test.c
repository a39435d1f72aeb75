/*
 * The statement that follows a certificate: what it says, what it may not say, that a verifier finds each change of it,
 * and that it fits its own certificate alone. The recipe with openssl and jq has to agree on all of it.
 */
#include "audit/upgrade.h"
#include "kv_version.h"
#include "tests/lib/cert_cases.h"
#include "tests/lib/run_program.h"
#include "tests/lib/temp_folder.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GOLDEN KV_SOURCE_DIR "/tests/unit/audit/golden/upgrade.payload.json"
#define SCRIPT KV_SOURCE_DIR "/audit/verify-with-openssl.sh"

static struct cert_cases cases;
static struct kv_buf certificate, statement;
static char folder[KVT_PATH_BYTES], files[2][KVT_PATH_BYTES], output[65536];

static void setup(void)
{
    cert_cases_init(&cases);
    kv_buf_init(&certificate, 262144);
    kv_buf_init(&statement, 262144);
    kvt_folder_make(folder);
    cert_cases_write_keys(&cases, folder);
    kvt_path_join(files[0], folder, "certificate.txt");
    kvt_path_join(files[1], folder, "upgrade.txt");
}

static void teardown(void)
{
    kv_buf_done(&certificate);
    kv_buf_done(&statement);
    kvt_folder_remove(folder);
    cert_cases_done(&cases);
}

TestSuite(upgrade, .init = setup, .fini = teardown);

/* The certificate of an erasure that one instance did not live to acknowledge, on hardware or not. */
static struct kv_cert_facts facts_of(const char *assurance, bool expired)
{
    static struct kv_cert_instance instances[2];
    static const char *const limits[] = {"L5", "L1", "L2", "L3", "L4", "L7", "L9", "L10"};
    struct kv_cert_facts facts = cert_cases_facts();
    instances[0] = facts.instances[0];
    instances[1] = instances[0];
    instances[1].id.b[15] = 99;
    instances[1].how = "expired";
    facts.instances = instances;
    facts.instance_count = expired ? 2 : 1;
    facts.limits = expired ? limits : limits + 1;
    facts.limit_count = expired ? 8 : 7;
    facts.assurance = assurance;
    return facts;
}

static struct kv_upgrade_facts upgrade_of(const struct kv_cert_facts *facts)
{
    static struct kv_upgrade_closed closed;
    struct kv_upgrade_facts upgrade = cert_cases_upgrade();
    if (facts->instance_count == 2) {
        closed = (struct kv_upgrade_closed){
            .instance = facts->instances[1].id, .how = "acked", .at_us = UINT64_C(1795972699000000)};
        upgrade.closed = &closed;
        upgrade.closed_count = 1;
    }
    return upgrade;
}

static void make(const char *assurance, bool expired)
{
    const struct kv_cert_facts facts = facts_of(assurance, expired);
    const struct kv_upgrade_facts upgrade = upgrade_of(&facts);
    kv_buf_reset(&certificate);
    kv_buf_reset(&statement);
    cert_cases_statement(&cases, &facts, &upgrade, &certificate, &statement);
}

static enum kv_err payload_of(const struct kv_cert_facts *facts, const struct kv_upgrade_facts *upgrade,
                              char **ret_text)
{
    struct kv_buf payload;
    kv_buf_init(&payload, 65536);
    enum kv_err rc = cert_cases_statement_payload(&cases, facts, upgrade, &payload);
    if (rc == KV_OK && ret_text != NULL) {
        *ret_text = strndup((const char *)payload.data, payload.len);
    }
    kv_buf_done(&payload);
    return rc;
}

static int script(bool with_certificate)
{
    const char *argv[] = {"sh", SCRIPT, files[1], folder, with_certificate ? files[0] : NULL, NULL};
    kvt_file_write(files[0], certificate.data, certificate.len, 0644);
    kvt_file_write(files[1], statement.data, statement.len, 0644);
    return kvt_program_run(argv, output, sizeof output);
}

static bool follows(char detail[160])
{
    struct kv_cert_report a, b;
    cr_assert(eq(int, kv_cert_verify(kv_buf_bytes(&statement), &cases.keys, &a), KV_OK));
    cr_assert(eq(int, kv_cert_verify(kv_buf_bytes(&certificate), &cases.keys, &b), KV_OK));
    cr_assert(a.upgrade && !b.upgrade);
    bool yes = kv_upgrade_follows(&a, &b, detail);
    kv_buf_done(&a.payload);
    kv_buf_done(&b.payload);
    return yes;
}

Test(upgrade, payload_bytes_are_stable)
{
    static char expected[65536];
    const struct kv_cert_facts facts = facts_of("E3", true);
    const struct kv_upgrade_facts upgrade = upgrade_of(&facts);
    char *text = NULL;
    cr_assert(eq(int, payload_of(&facts, &upgrade, &text), KV_OK));
    cr_assert(gt(sz, kvt_file_read(GOLDEN, 0, expected, sizeof expected - 1), 0));
    cr_assert(eq(str, text, expected));
    free(text);
}

Test(upgrade, only_hardware_rises_to_e4)
{
    char *text = NULL;
    struct kv_cert_facts facts = facts_of("E3", false);
    const struct kv_upgrade_facts upgrade = upgrade_of(&facts);
    cr_assert(eq(int, payload_of(&facts, &upgrade, &text), KV_OK));
    cr_assert(strstr(text, "{\"assurance\":\"E4\"") == text && strstr(text, "\"lifted\":[]") != NULL, "%s", text);
    free(text);
    facts = facts_of("E2", false);
    cr_assert(eq(int, payload_of(&facts, &upgrade, &text), KV_OK));
    cr_assert(strstr(text, "{\"assurance\":\"E2\"") == text && strstr(text, "\"ciphertext\":\"gone\"") != NULL, "%s",
              text);
    free(text);
}

Test(upgrade, what_the_certificate_left_open_is_closed_or_nothing_is_said)
{
    char *text = NULL;
    struct kv_cert_facts facts = facts_of("E2", true);
    struct kv_upgrade_facts upgrade = upgrade_of(&facts);
    cr_assert(eq(int, payload_of(&facts, &upgrade, &text), KV_OK));
    cr_assert(strstr(text, "\"lifted\":[\"L5\"]") != NULL && strstr(text, "\"code\":\"L5\"") == NULL, "%s", text);
    free(text);

    struct kv_upgrade_closed closed = upgrade.closed[0];
    upgrade.closed_count = 0;
    cr_assert(eq(int, payload_of(&facts, &upgrade, NULL), KV_E_INVALID_STATE), "one is still open");
    upgrade.closed = &closed;
    upgrade.closed_count = 1;
    closed.instance.b[15]++;
    cr_assert(eq(int, payload_of(&facts, &upgrade, NULL), KV_E_INVALID_STATE), "another one was closed");
    closed.instance = facts.instances[1].id;
    closed.how = "gone";
    cr_assert(eq(int, payload_of(&facts, &upgrade, NULL), KV_E_INVALID_STATE), "no way to close one");
    facts = facts_of("E2", false);
    closed.how = "ended";
    cr_assert(eq(int, payload_of(&facts, &upgrade, NULL), KV_E_INVALID_STATE), "nothing was open");
}

Test(upgrade, somebody_confirms_and_not_more_than_there_is_room_for)
{
    struct kv_upgrade_confirmed many[KV_UPGRADE_CONFIRMED_MAX + 1];
    const struct kv_cert_facts facts = facts_of("E2", false);
    struct kv_upgrade_facts upgrade = upgrade_of(&facts);
    for (size_t i = 0; i <= KV_UPGRADE_CONFIRMED_MAX; i++) {
        many[i] = upgrade.confirmed[0];
    }
    upgrade.confirmed_count = 0;
    cr_assert(eq(int, payload_of(&facts, &upgrade, NULL), KV_E_INVALID_STATE));
    upgrade.confirmed = many;
    upgrade.confirmed_count = KV_UPGRADE_CONFIRMED_MAX;
    cr_assert(eq(int, payload_of(&facts, &upgrade, NULL), KV_OK));
    upgrade.confirmed_count++;
    cr_assert(eq(int, payload_of(&facts, &upgrade, NULL), KV_E_INVALID_REQUEST));
}

Test(upgrade, what_is_no_certificate_is_followed_by_nothing)
{
    struct kv_upgrade_facts upgrade = cert_cases_upgrade();
    static const char *const texts[] = {"", "a", "a.b", "a..b", "a.!!.b", "e30.e30.e30"};
    struct kv_buf payload;
    kv_buf_init(&payload, 65536);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        upgrade.certificate = KV_BYTES(texts[i], strlen(texts[i]));
        cr_assert(eq(int, kv_upgrade_payload(&upgrade, &payload), KV_E_INVALID_STATE), "%s", texts[i]);
    }
    kv_buf_done(&payload);
}

Test(upgrade, follows_its_own_certificate_alone)
{
    char detail[160];
    static const struct {
        const char *assurance;
        bool expired;
    } kinds[] = {{"E2", false}, {"E2", true}, {"E3", false}, {"E3", true}};
    for (size_t i = 0; i < 4; i++) {
        make(kinds[i].assurance, kinds[i].expired);
        cr_assert(follows(detail), "%s", detail);
        cr_assert(eq(int, script(true), 0), "%s", output);
        cr_assert(strstr(output, "\nvalid\n") != NULL && strstr(output, "ok   follows") != NULL);
    }
    struct kv_cert_facts other = facts_of("E3", true);
    other.jti.b[15]++;
    kv_buf_reset(&certificate);
    cert_cases_of(&cases, &other, &certificate);
    cr_assert_not(follows(detail));
    cr_assert(eq(int, script(true), 1), "%s", output);
    cr_assert(eq(int, script(false), 0), "by itself it is valid: %s", output);
    other.jti.b[15]--;
    other.blocks++;
    kv_buf_reset(&certificate);
    cert_cases_of(&cases, &other, &certificate);
    cr_assert_not(follows(detail));
    cr_assert(eq(str, detail, "the certificate it is about has other bytes"));
    cr_assert(eq(int, script(true), 1), "%s", output);
}

Test(upgrade, a_certificate_is_no_statement_and_the_other_way_round)
{
    char detail[160];
    struct kv_cert_report a, b;
    make("E2", false);
    cr_assert(eq(int, kv_cert_verify(kv_buf_bytes(&statement), &cases.keys, &a), KV_OK));
    cr_assert(eq(int, kv_cert_verify(kv_buf_bytes(&certificate), &cases.keys, &b), KV_OK));
    cr_assert(kv_upgrade_follows(&a, &b, detail));
    cr_assert_not(kv_upgrade_follows(&b, &a, detail));
    cr_assert_not(kv_upgrade_follows(&a, &a, detail));
    b.ok = false;
    cr_assert_not(kv_upgrade_follows(&a, &b, detail), "of one that is not valid nothing follows");
    kv_buf_done(&a.payload);
    kv_buf_done(&b.payload);
}

/* --- changes of it, signed and logged ----------------------------------------------------------------------------- */

/* By the check that has to fail alone; NULL: none. Where `follows` is set it is valid, and does not fit its
 * certificate.
 */
static const struct change {
    const char *check, *from, *to;
    bool follows;
} changes[] = {
    {NULL, "\"certificate_index\":\"10\"", "\"certificate_index\":\"9\"", true},
    {NULL, "\"how\":\"acked\"", "\"how\":\"ended\"", false},
    {"canonical", "{\"assurance\"", "{ \"assurance\"", false},
    {"claims", "\"assurance\":\"E4\"", "\"assurance\":\"E2\"", false},
    {"claims", "\"assurance\":\"E4\"", "\"assurance\":\"E3\"", false},
    {"claims", "\"ciphertext\":\"gone\"", "\"ciphertext\":\"pending\"", false},
    {"claims", "\"claim\":\"Every", "\"claim\":\"Any", false},
    {"claims", "\"lifted\":[\"L5\"]", "\"lifted\":[]", false},
    {"claims", "\"lifted\":[\"L5\"]", "\"lifted\":[\"L1\"]", false},
    {"claims", "\"how\":\"acked\"", "\"how\":\"expired\"", false},
    {"claims", "\"tiers\":\"dram, nvme\"", "\"tiers\":\"dram\"", false},
    {"claims", "\"v\":1", "\"v\":2", false},
    {"covers", "\"certificate_index\":\"10\"", "\"certificate_index\":\"11\"", false},
    {"covers", "audit/t_9f3a2c", "audit/t_9f3a2d", false},
};

static void change_statement(const struct change *change)
{
    const struct kv_cert_facts facts = facts_of("E3", true);
    const struct kv_upgrade_facts upgrade = upgrade_of(&facts);
    struct cert_cases_log log = cert_cases_log(&cases);
    struct kv_buf payload, jws;
    char kid[44], header[256], *text = NULL;
    kv_buf_init(&payload, 65536);
    kv_buf_init(&jws, 65536);
    make("E3", true);
    cr_assert(eq(int, payload_of(&facts, &upgrade, &text), KV_OK));
    const char *at = strstr(text, change->from);
    cr_assert(at != NULL, "%s", change->from);
    kv_buf_append(&payload, text, (size_t)(at - text));
    kv_buf_text(&payload, change->to);
    kv_buf_text(&payload, at + strlen(change->from));
    cr_assert(eq(int, kv_cert_kid(cases.keys.cert_public, kid), KV_OK));
    (void)snprintf(header, sizeof header, "{\"alg\":\"EdDSA\",\"kid\":\"%s\",\"typ\":\"kvrun-erasure-upgrade+jws\"}",
                   kid);
    cert_cases_jws(header, kv_buf_bytes(&payload), cases.cert_key, &jws);
    log.before = 11;
    kv_buf_reset(&statement);
    cert_cases_bundle(&log, kv_buf_bytes(&jws), &statement);
    free(text);
    kv_buf_done(&payload);
    kv_buf_done(&jws);
}

Test(upgrade, each_change_is_found_by_its_check)
{
    char detail[160], line[64];
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        const struct change *change = &changes[i];
        struct kv_cert_report report;
        change_statement(change);
        enum kv_err rc = kv_cert_verify(kv_buf_bytes(&statement), &cases.keys, &report);
        cr_assert(eq(int, rc, change->check == NULL ? KV_OK : KV_E_TAMPERED), "%s", change->to);
        for (unsigned check = 0; check < KV_CHECK_COUNT; check++) {
            const char *name = kv_cert_check_name((enum kv_cert_check)check);
            bool fails = change->check != NULL && strcmp(name, change->check) == 0;
            cr_assert(eq(int, report.checks[check].ok, !fails), "%s: %s %s", change->to, name,
                      report.checks[check].detail);
        }
        kv_buf_done(&report.payload);
        cr_assert(eq(int, script(false), change->check == NULL ? 0 : 1), "%s: %s", change->to, output);
        (void)snprintf(line, sizeof line, change->check == NULL ? "\nvalid" : "FAIL %s", change->check);
        cr_assert(strstr(output, line) != NULL, "%s: %s", change->to, output);
        if (change->check == NULL) {
            cr_assert(eq(int, follows(detail), !change->follows), "%s: %s", change->to, detail);
            cr_assert(eq(int, script(true), change->follows ? 1 : 0), "%s: %s", change->to, output);
        }
    }
}

Test(upgrade, a_type_that_does_not_fit_the_payload_is_refused)
{
    struct kv_cert_report report;
    struct kv_buf payload, jws;
    const struct cert_cases_log log = cert_cases_log(&cases);
    const struct kv_cert_facts facts = facts_of("E2", false);
    kv_buf_init(&payload, 65536);
    kv_buf_init(&jws, 65536);
    cr_assert(eq(int, kv_cert_payload(&facts, &payload), KV_OK));
    cr_assert(eq(int, kv_upgrade_jws(kv_buf_bytes(&payload), cases.cert_key, &jws), KV_OK));
    cert_cases_bundle(&log, kv_buf_bytes(&jws), &statement);
    cr_assert(eq(int, kv_cert_verify(kv_buf_bytes(&statement), &cases.keys, &report), KV_E_TAMPERED));
    cr_assert(report.checks[KV_CHECK_SIGNATURE].ok);
    cr_assert_not(report.checks[KV_CHECK_CLAIMS].ok);
    kv_buf_done(&report.payload);
    cr_assert(eq(int, script(false), 1), "%s", output);
    kv_buf_done(&payload);
    kv_buf_done(&jws);
}

/* --- the program ---------------------------------------------------------------------------------------------------
 */

Test(upgrade, kv_verify_checks_it_with_its_certificate)
{
    char program[4096];
    kvt_program_of_build("kv-verify", program, sizeof program);
    make("E3", true);
    (void)script(true); /* writes the files */
    const char *pair[] = {program, files[1], "--certificate", files[0], NULL};
    const char *json[] = {program, files[1], "--certificate", files[0], "--json", NULL};
    const char *wrong[] = {program, files[0], "--certificate", files[0], NULL};
    const char *missing[] = {program, files[1], "--certificate", folder, NULL};
    cr_assert(eq(int, kvt_program_run(pair, output, sizeof output), 0), "%s", output);
    cr_assert(strstr(output, "Ciphertext gone (E4") != NULL && strstr(output, "Limit lifted: L5") != NULL, "%s",
              output);
    cr_assert(strstr(output, kv_limit_text("L1")) != NULL && strstr(output, "was destroyed") == NULL, "%s", output);
    cr_assert(eq(int, kvt_program_run(json, output, sizeof output), 0), "%s", output);
    cr_assert(strstr(output, "{\"id\":\"follows\",\"ok\":true") != NULL &&
                  strstr(output, "\"ciphertext\":\"gone\"") != NULL,
              "%s", output);
    cr_assert(eq(int, kvt_program_run(wrong, output, sizeof output), 1), "%s", output);
    cr_assert(strstr(output, "FAIL follows") != NULL && strstr(output, "Claim") == NULL, "%s", output);
    cr_assert(eq(int, kvt_program_run(missing, output, sizeof output), 2), "%s", output);
}
