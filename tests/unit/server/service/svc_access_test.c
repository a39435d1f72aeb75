/* API keys: their text form, who is refused, what a role may give, and what is known while the database is away. */
#include "dataplane/base/bytes.h"
#include "dataplane/base/id.h"
#include "tests/lib/svc_rig.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

TEMP_POSTGRES_HOOKS

static struct kvt_svc rig;

static struct kv_key_view key_for(struct kv_id tenant, unsigned roles)
{
    struct kv_key_view view;
    struct kv_key_new in = {.name = "test", .roles = roles};
    struct kv_principal who = rig.call.who;
    rig.call.who = (struct kv_principal){.roles = KV_ROLE_OPERATOR};
    cr_assert(eq(int, kv_svc_key_create(&rig.call, &tenant, &in, &view), KV_OK), "%s", rig.call.info.text);
    rig.call.who = who;
    return view;
}

static enum kv_err authenticate(const char *token)
{
    kv_call_reset(&rig.call);
    return kv_svc_authenticate(&rig.call, token);
}

static void check_refused(const char *token)
{
    static char first_text[sizeof rig.call.info.text];
    cr_assert(eq(int, authenticate(token), KV_E_UNAUTHENTICATED), "\"%s\"", token);
    cr_assert(rig.call.who.roles == 0 && kv_id_is_zero(&rig.call.who.key) && kv_id_is_zero(&rig.call.who.tenant));
    if (first_text[0] == '\0') {
        strcpy(first_text, rig.call.info.text);
    }
    cr_assert(eq(str, rig.call.info.text, first_text), "the reason shows");
}

/* The check characters, computed here once more. */
static void seal(char *token)
{
    static const char base62[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    size_t len = strlen(token);
    uint32_t crc = kv_crc32(token, len - 7);
    for (size_t i = 1; i <= 6; i++, crc /= 62) {
        token[len - i] = base62[crc % 62];
    }
}

/* --- the text form ----------------------------------------------------------------------------------------------- */

Test(key, text_form_is_as_documented_and_goes_round)
{
    char kid[9], secret[44], crc[7], again[KV_API_KEY_TEXT_SIZE], rest = 0;
    kvt_svc_open(&rig);
    struct kv_key_view key = key_for(rig.tenant, KV_ROLE_ENGINE);
    cr_assert(eq(sz, strlen(key.secret), 11 + 8 + 1 + 43 + 1 + 6));
    cr_assert(eq(int,
                 sscanf(key.secret, "kvrun_live_%8[0-9A-Za-z]_%43[0-9A-Za-z]_%6[0-9A-Za-z]%c", kid, secret, crc, &rest),
                 3));
    cr_assert(eq(sz, strlen(kid) + strlen(secret) + strlen(crc), 8 + 43 + 6));
    strcpy(again, key.secret);
    seal(again);
    cr_assert(eq(str, again, key.secret));
    cr_assert(eq(int, authenticate(key.secret), KV_OK), "%s", rig.call.info.text);
    cr_assert(kv_id_equal(&rig.call.who.key, &key.id) && kv_id_equal(&rig.call.who.tenant, &rig.tenant));
    cr_assert(eq(uint, rig.call.who.roles, KV_ROLE_ENGINE));
    /* Ninety days, unless somebody says otherwise. */
    cr_assert(eq(u64, key.expires_us - key.created_us, UINT64_C(90) * 86400 * 1000000));
    kvt_svc_done(&rig);
}

Test(key, one_changed_character_anywhere_is_refused)
{
    char token[KV_API_KEY_TEXT_SIZE];
    kvt_svc_open(&rig);
    struct kv_key_view key = key_for(rig.tenant, KV_ROLE_ENGINE);
    for (size_t i = 0; key.secret[i] != '\0'; i++) {
        strcpy(token, key.secret);
        token[i] = token[i] == 'x' ? 'y' : 'x';
        check_refused(token);
        token[i] = (char)(key.secret[i] ^ 0x80);
        check_refused(token);
    }
    cr_assert(eq(int, authenticate(key.secret), KV_OK), "the control");
    kvt_svc_done(&rig);
}

/* With the check characters put right, only the database's hash is left to refuse it. */
Test(key, changed_with_right_check_characters_is_refused)
{
    char token[KV_API_KEY_TEXT_SIZE];
    kvt_svc_open(&rig);
    struct kv_key_view key = key_for(rig.tenant, KV_ROLE_ENGINE);
    for (int round = 0; round < 2; round++) { /* unknown to memory, then known */
        for (size_t i = 11; i < 11 + 8 + 1 + 43; i += 3) {
            strcpy(token, key.secret);
            token[i] = token[i] == 'x' ? 'y' : 'x';
            seal(token);
            check_refused(token);
        }
        cr_assert(eq(int, authenticate(key.secret), KV_OK), "the control");
    }
    kvt_svc_done(&rig);
}

Test(key, other_shapes_are_refused)
{
    char token[2048];
    kvt_svc_open(&rig);
    struct kv_key_view key = key_for(rig.tenant, KV_ROLE_ENGINE);
    check_refused("");
    check_refused("kvrun_live_");
    check_refused("kvrun");
    snprintf(token, sizeof token, "%.*s", (int)strlen(key.secret) - 1, key.secret);
    check_refused(token);
    snprintf(token, sizeof token, "%sx", key.secret);
    check_refused(token);
    snprintf(token, sizeof token, " %s", key.secret);
    check_refused(token);
    snprintf(token, sizeof token, "kvrun_test_%s", key.secret + 11);
    seal(token);
    check_refused(token);
    snprintf(token, sizeof token, "KVRUN_live_%s", key.secret + 11);
    seal(token);
    check_refused(token);
    memset(token, 'k', sizeof token - 1);
    token[sizeof token - 1] = '\0';
    check_refused(token);
    /* Characters that base62 does not have, with right check characters. */
    for (size_t i = 0; i < 3; i++) {
        strcpy(token, key.secret);
        token[13 + 20 * i] = "-'\n"[i];
        seal(token);
        check_refused(token);
    }
    kvt_svc_done(&rig);
}

/* --- time and revocation ----------------------------------------------------------------------------------------- */

Test(key, past_its_end_is_refused_even_when_it_is_known)
{
    kvt_svc_open(&rig);
    struct kv_key_view key = key_for(rig.tenant, KV_ROLE_ENGINE);
    struct kv_key_view known = key_for(rig.tenant, KV_ROLE_ENGINE);
    cr_assert(eq(int, authenticate(known.secret), KV_OK));
    kvt_db_run(
        &rig,
        "UPDATE kvrun.api_key SET created_at = now() - interval '2 hours', expires_at = now() - interval '1 second'");
    check_refused(key.secret);
    kvt_svc_restart(&rig);
    check_refused(known.secret);
    kvt_db_run(&rig, "UPDATE kvrun.api_key SET expires_at = now() + interval '1 hour'");
    kvt_svc_restart(&rig);
    cr_assert(eq(int, authenticate(key.secret), KV_OK), "the control");
    kvt_svc_done(&rig);
}

Test(key, that_expires_in_seconds_ends_by_itself)
{
    struct kv_key_view key;
    struct kv_key_new in = {.name = "short", .roles = KV_ROLE_ENGINE, .expires_in_seconds = 2};
    kvt_svc_open(&rig);
    cr_assert(eq(int, kv_svc_key_create(&rig.call, &rig.tenant, &in, &key), KV_OK));
    cr_assert(eq(u64, key.expires_us - key.created_us, 2000000));
    cr_assert(eq(int, authenticate(key.secret), KV_OK));
    uint64_t deadline = kv_now_ns(&kv_env_system) + KVT_WAIT_S * KV_S_NS;
    while (authenticate(key.secret) == KV_OK && kv_now_ns(&kv_env_system) < deadline) {
        usleep(20000);
    }
    cr_assert(ge(u64, kv_env_system.realtime_us(NULL), key.expires_us));
    check_refused(key.secret);
    kvt_svc_done(&rig);
}

Test(key, that_was_revoked_is_refused_at_the_latest_after_a_lease)
{
    kvt_svc_config(&rig);
    rig.conf.lease_ns = KV_S_NS;
    kvt_svc_start(&rig);
    rig.tenant = kvt_svc_tenant(&rig, "acme");
    struct kv_key_view known = key_for(rig.tenant, KV_ROLE_ENGINE), fresh = key_for(rig.tenant, KV_ROLE_ENGINE);
    cr_assert(eq(int, authenticate(known.secret), KV_OK));
    kvt_db_run(&rig, "UPDATE kvrun.api_key SET revoked_at = now()");
    uint64_t revoked = kv_now_ns(&kv_env_system);
    check_refused(fresh.secret);
    while (authenticate(known.secret) == KV_OK && kv_now_ns(&kv_env_system) < revoked + KVT_WAIT_S * KV_S_NS) {
        usleep(20000);
    }
    check_refused(known.secret);
    cr_assert(lt(u64, kv_now_ns(&kv_env_system) - revoked, 3 * KV_S_NS));
    kvt_svc_done(&rig);
}

/* --- roles ------------------------------------------------------------------------------------------------------- */

Test(key, roles_that_do_not_go_together_are_refused)
{
    static const struct {
        unsigned roles;
        bool for_tenant;
        enum kv_err rc;
    } cases[] = {
        {0, true, KV_E_INVALID_REQUEST},
        {0, false, KV_E_INVALID_REQUEST},
        {KV_ROLE_OPERATOR, true, KV_E_INVALID_REQUEST},
        {KV_ROLE_OPERATOR | KV_ROLE_ENGINE, true, KV_E_INVALID_REQUEST},
        {KV_ROLE_TENANT_ADMIN, false, KV_E_INVALID_REQUEST},
        {KV_ROLE_METRICS, true, KV_E_INVALID_REQUEST},
        {KV_ROLE_ENGINE, false, KV_E_INVALID_REQUEST},
        {KV_ROLE_AUDITOR | KV_ROLE_ENGINE, true, KV_E_ROLE_CONFLICT},
        {KV_ROLE_AUDITOR | KV_ROLE_TENANT_ADMIN, true, KV_E_ROLE_CONFLICT},
        {KV_ROLE_AUDITOR | KV_ROLE_SECURITY_OFFICER, true, KV_E_ROLE_CONFLICT},
        {KV_ROLE_OPERATOR | KV_ROLE_AUDITOR, false, KV_E_ROLE_CONFLICT},
        {KV_ROLE_OPERATOR | KV_ROLE_SECURITY_OFFICER, false, KV_E_ROLE_CONFLICT},
        {KV_ROLE_METRICS | KV_ROLE_VIEWER, false, KV_E_ROLE_CONFLICT},
        {KV_ROLE_METRICS, false, KV_OK},
        {KV_ROLE_AUDITOR, false, KV_OK},
        {KV_ROLE_AUDITOR | KV_ROLE_VIEWER, false, KV_OK},
        {KV_ROLE_SECURITY_OFFICER, false, KV_OK},
        {KV_ROLE_SECURITY_OFFICER, true, KV_OK},
        {KV_ROLE_VIEWER, true, KV_OK},
        {KV_ROLE_OPERATOR, false, KV_OK},
        {KV_ROLE_TENANT_ADMIN, true, KV_OK},
        {KV_ROLE_ENGINE, true, KV_OK},
        {KV_ROLE_TENANT_ADMIN | KV_ROLE_ENGINE, true, KV_OK},
        {KV_ROLE_AUDITOR, true, KV_OK},
    };
    struct kv_key_view key;
    struct kv_id none = {0};
    kvt_svc_open(&rig);
    rig.call.who = (struct kv_principal){.roles = KV_ROLE_OPERATOR};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct kv_key_new in = {.name = "k", .roles = cases[i].roles};
        enum kv_err rc = kv_svc_key_create(&rig.call, cases[i].for_tenant ? &rig.tenant : &none, &in, &key);
        cr_assert(eq(int, rc, cases[i].rc), "case %zu", i);
        cr_assert(rc == KV_OK || strcmp(rig.call.info.pointer, "/roles") == 0);
    }
    kvt_svc_done(&rig);
}

Test(key, is_given_by_operators_and_by_admins_of_the_tenant_only)
{
    struct kv_key_view key;
    struct kv_key_new in = {.name = "k", .roles = KV_ROLE_ENGINE},
                      operator_in = {.name = "k", .roles = KV_ROLE_OPERATOR};
    struct kv_id none = {0}, nobody = {.b = {1}};
    kvt_svc_open(&rig);
    struct kv_id other = kvt_svc_tenant(&rig, "other");
    kvt_svc_as(&rig.call, rig.tenant, KV_ROLE_TENANT_ADMIN);
    cr_assert(eq(int, kv_svc_key_create(&rig.call, &rig.tenant, &in, &key), KV_OK));
    cr_assert(eq(int, kv_svc_key_create(&rig.call, &other, &in, &key), KV_E_NOT_FOUND));
    cr_assert(eq(int, kv_svc_key_create(&rig.call, &none, &operator_in, &key), KV_E_NOT_FOUND));
    cr_assert(eq(int, kv_svc_key_create(&rig.call, &rig.tenant, &operator_in, &key), KV_E_INVALID_REQUEST));
    unsigned weak[] = {0, KV_ROLE_ENGINE, KV_ROLE_AUDITOR};
    for (size_t i = 0; i < 3; i++) {
        kvt_svc_as(&rig.call, rig.tenant, weak[i]);
        cr_assert(eq(int, kv_svc_key_create(&rig.call, &rig.tenant, &in, &key), KV_E_NOT_FOUND));
    }
    rig.call.who = (struct kv_principal){.roles = KV_ROLE_OPERATOR};
    cr_assert(eq(int, kv_svc_key_create(&rig.call, &other, &in, &key), KV_OK));
    cr_assert(eq(int, kv_svc_key_create(&rig.call, &nobody, &in, &key), KV_E_NOT_FOUND));
    kvt_svc_done(&rig);
}

Test(key, life_is_a_second_to_a_year)
{
    struct kv_key_view key;
    struct kv_key_new in = {.name = "k", .roles = KV_ROLE_ENGINE, .expires_in_seconds = 365 * 86400};
    kvt_svc_open(&rig);
    cr_assert(eq(int, kv_svc_key_create(&rig.call, &rig.tenant, &in, &key), KV_OK), "%s", rig.call.info.text);
    in.expires_in_seconds++;
    cr_assert(eq(int, kv_svc_key_create(&rig.call, &rig.tenant, &in, &key), KV_E_INVALID_REQUEST));
    cr_assert(eq(str, rig.call.info.pointer, "/expires_in_seconds"));
    in.expires_in_seconds = UINT64_MAX;
    cr_assert(eq(int, kv_svc_key_create(&rig.call, &rig.tenant, &in, &key), KV_E_INVALID_REQUEST));
    in.expires_in_seconds = 1;
    cr_assert(eq(int, kv_svc_key_create(&rig.call, &rig.tenant, &in, &key), KV_OK));
    kvt_svc_done(&rig);
}

struct kept {
    char secret[KV_API_KEY_TEXT_SIZE];
    unsigned calls;
    enum kv_err rc;
};

static enum kv_err keep(void *ctx, const char *secret, struct kv_errinfo *info)
{
    struct kept *kept = ctx;
    snprintf(kept->secret, sizeof kept->secret, "%s", secret);
    kept->calls++;
    return kept->rc == KV_OK ? KV_OK : kv_fail(info, kept->rc, "no room for it");
}

Test(key, the_first_is_made_once)
{
    struct kept first = {0}, second = {0}, third = {0};
    kvt_svc_config(&rig);
    kvt_svc_start(&rig);
    rig.call.who = (struct kv_principal){0};
    cr_assert(eq(int, kv_svc_bootstrap_key(&rig.call, keep, &first), KV_OK), "%s", rig.call.info.text);
    cr_assert(eq(int, kv_svc_bootstrap_key(&rig.call, keep, &second), KV_E_INVALID_STATE));
    cr_assert(eq(int, authenticate(first.secret), KV_OK));
    cr_assert(eq(uint, rig.call.who.roles, KV_ROLE_OPERATOR));
    cr_assert(kv_id_is_zero(&rig.call.who.tenant));
    kvt_svc_restart(&rig);
    cr_assert(eq(int, kv_svc_bootstrap_key(&rig.call, keep, &second), KV_E_INVALID_STATE));
    cr_assert(eq(uint, second.calls, 0), "what is kept is not replaced");
    cr_assert(eq(int, (int)kvt_db_number(&rig, "SELECT count(*) FROM kvrun.api_key"), 1));
    /* When none of them is good any more, nobody could get in: then there is a first one again. */
    kvt_db_run(&rig, "UPDATE kvrun.api_key SET revoked_at = now()");
    cr_assert(eq(int, kv_svc_bootstrap_key(&rig.call, keep, &third), KV_OK));
    cr_assert(eq(int, authenticate(third.secret), KV_OK));
    kvt_svc_done(&rig);
}

Test(key, the_first_that_could_not_be_kept_is_not_valid)
{
    struct kept lost = {.rc = KV_E_NO_SPACE}, good = {0};
    kvt_svc_config(&rig);
    kvt_svc_start(&rig);
    cr_assert(eq(int, kv_svc_bootstrap_key(&rig.call, keep, &lost), KV_E_NO_SPACE));
    cr_assert(eq(str, rig.call.info.text, "no room for it"));
    check_refused(lost.secret);
    cr_assert(eq(int, (int)kvt_db_number(&rig, "SELECT count(*) FROM kvrun.api_key"), 0));
    cr_assert(eq(int, kv_svc_bootstrap_key(&rig.call, keep, &good), KV_OK), "the next start makes another");
    cr_assert(eq(int, authenticate(good.secret), KV_OK));
    kvt_svc_done(&rig);
}

Test(key, that_is_recovered_works_beside_the_others_and_not_when_it_could_not_be_kept)
{
    struct kept lost = {.rc = KV_E_NO_SPACE}, good = {0};
    kvt_svc_open(&rig);
    struct kv_id none = {0};
    struct kv_key_view other = key_for(none, KV_ROLE_OPERATOR);
    cr_assert(eq(int, kv_svc_key_recover(rig.call.pg, &kv_env_system, keep, &lost, &rig.call.info), KV_E_NO_SPACE));
    check_refused(lost.secret);
    cr_assert(eq(int, kv_svc_key_recover(rig.call.pg, &kv_env_system, keep, &good, &rig.call.info), KV_OK), "%s",
              rig.call.info.text);
    cr_assert(eq(int, authenticate(good.secret), KV_OK));
    cr_assert(eq(uint, rig.call.who.roles, KV_ROLE_OPERATOR));
    cr_assert(kv_id_is_zero(&rig.call.who.tenant));
    cr_assert(eq(int, authenticate(other.secret), KV_OK));
    cr_assert(eq(int, (int)kvt_db_number(&rig, "SELECT count(*) FROM kvrun.api_key WHERE name LIKE 'recovered%'"), 1));
    kvt_svc_done(&rig);
}

Test(key, secret_is_in_no_row_of_the_database)
{
    char sql[512];
    kvt_svc_open(&rig);
    struct kv_key_view key = key_for(rig.tenant, KV_ROLE_ENGINE);
    snprintf(sql, sizeof sql,
             "SELECT (SELECT count(*) FROM kvrun.api_key k WHERE k::text LIKE '%%%.43s%%') + "
             "(SELECT count(*) FROM kvrun.audit_outbox o WHERE position('%.43s'::bytea IN o.entry) > 0) + "
             "(SELECT count(*) FROM kvrun.audit_leaf l WHERE position('%.43s'::bytea IN l.entry) > 0)",
             key.secret + 20, key.secret + 20, key.secret + 20);
    cr_assert(eq(int, (int)kvt_db_number(&rig, sql), 0));
    snprintf(sql, sizeof sql, "SELECT count(*) FROM kvrun.api_key WHERE secret_sha256 = sha256('%.43s'::bytea)",
             key.secret + 20);
    cr_assert(eq(int, (int)kvt_db_number(&rig, sql), 1), "the control");
    kvt_svc_done(&rig);
}

/* Of an address that has sent too many keys that are none. */
Test(key, with_known_keys_only_others_are_not_asked_for)
{
    char wrong[KV_API_KEY_TEXT_SIZE];
    kvt_svc_open(&rig);
    struct kv_key_view known = key_for(rig.tenant, KV_ROLE_ENGINE), unknown = key_for(rig.tenant, KV_ROLE_ENGINE);
    strcpy(wrong, known.secret);
    wrong[30] = wrong[30] == 'x' ? 'y' : 'x';
    seal(wrong);
    cr_assert(eq(int, authenticate(known.secret), KV_OK));
    kv_call_reset(&rig.call);
    rig.call.known_keys_only = true;
    cr_expect(eq(int, kv_svc_authenticate(&rig.call, unknown.secret), KV_E_RATE_LIMITED));
    cr_expect(kv_id_is_zero(&rig.call.who.key) && rig.call.who.roles == 0);
    cr_expect(eq(int, kv_svc_authenticate(&rig.call, wrong), KV_E_UNAUTHENTICATED), "known, but for its secret");
    cr_expect(eq(int, kv_svc_authenticate(&rig.call, ""), KV_E_UNAUTHENTICATED));
    cr_expect(eq(int, kv_svc_authenticate(&rig.call, known.secret), KV_OK));
    cr_expect(eq(int, authenticate(unknown.secret), KV_OK), "the control");
    kvt_svc_done(&rig);
}

/* --- without the database ---------------------------------------------------------------------------------------- */

Test(key, known_one_is_answered_within_the_lease_while_the_database_is_away)
{
    kvt_svc_config(&rig);
    rig.conf.lease_ns = 3 * KV_S_NS;
    kvt_svc_start(&rig);
    rig.tenant = kvt_svc_tenant(&rig, "acme");
    struct kv_key_view known = key_for(rig.tenant, KV_ROLE_ENGINE), unknown = key_for(rig.tenant, KV_ROLE_ENGINE);
    char wrong[KV_API_KEY_TEXT_SIZE];
    strcpy(wrong, known.secret);
    wrong[30] = wrong[30] == 'x' ? 'y' : 'x';
    seal(wrong);
    cr_assert(eq(int, authenticate(known.secret), KV_OK));
    uint64_t since = kv_now_ns(&kv_env_system);
    kvt_db_stop(&rig);
    enum kv_err while_away = authenticate(known.secret);
    cr_assert(kv_now_ns(&kv_env_system) - since > 3 * KV_S_NS || while_away == KV_OK,
              "stopping it took the lease's time");
    check_refused(wrong);
    cr_assert(eq(int, authenticate(unknown.secret), KV_E_DB_UNAVAILABLE));
    enum kv_err rc = KV_OK;
    while (rc == KV_OK && kv_now_ns(&kv_env_system) < since + KVT_WAIT_S * KV_S_NS) {
        usleep(50000);
        rc = authenticate(known.secret);
    }
    cr_assert(eq(int, rc, KV_E_DB_UNAVAILABLE));
    cr_assert(rig.call.who.roles == 0);
    kvt_db_back(&rig);
    while (rc == KV_E_DB_UNAVAILABLE && kv_now_ns(&kv_env_system) < since + KVT_WAIT_S * KV_S_NS) {
        usleep(50000);
        rc = authenticate(unknown.secret);
    }
    cr_assert(eq(int, rc, KV_OK));
    kvt_svc_done(&rig);
}

Test(key, revoked_here_is_not_known_while_the_database_is_away)
{
    kvt_svc_config(&rig);
    rig.conf.lease_ns = 5 * KV_S_NS;
    kvt_svc_start(&rig);
    rig.tenant = kvt_svc_tenant(&rig, "acme");
    struct kv_key_view revoked = key_for(rig.tenant, KV_ROLE_ENGINE), control = key_for(rig.tenant, KV_ROLE_ENGINE),
                       view;
    cr_assert(eq(int, authenticate(revoked.secret), KV_OK));
    cr_assert(eq(int, authenticate(control.secret), KV_OK));
    kv_call_reset(&rig.call);
    rig.call.who = (struct kv_principal){.roles = KV_ROLE_OPERATOR};
    cr_assert(eq(int, kv_svc_key_revoke(&rig.call, &rig.tenant, &revoked.id, &view), KV_OK), "%s", rig.call.info.text);
    uint64_t since = kv_now_ns(&kv_env_system);
    kvt_db_stop(&rig);
    enum kv_err known = authenticate(control.secret);
    cr_assert(kv_now_ns(&kv_env_system) - since > 5 * KV_S_NS || known == KV_OK, "stopping it took the lease's time");
    cr_assert(eq(int, authenticate(revoked.secret), KV_E_DB_UNAVAILABLE));
    kvt_db_back(&rig);
    kvt_svc_done(&rig);
}
