/* A proof for an auditor: what is left of an erased session opens under no key there is, and the trying itself works.
 */
#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "tests/lib/svc_rig.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>
#include <unistd.h>

TEMP_POSTGRES_HOOKS

static struct kvt_svc rig;
static struct kvt_engine engine;
static struct kv_id kept, erased;
static struct kv_erasure_view erasure;
static struct kv_operation_view operation;

static struct kv_id stored_session(void)
{
    struct kv_id session = kvt_svc_session(&rig.call);
    cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, session, 0, 4, KV_WAIT_DURABLE), KV_OK));
    return session;
}

static void open_two(void)
{
    kvt_svc_open(&rig);
    kvt_engine_open(&rig.call, &engine);
    kept = stored_session();
    erased = stored_session();
}

static void close_all(void)
{
    kv_fault_set(NULL);
    kvt_engine_close(&engine);
    kvt_svc_done(&rig);
}

static struct kv_erasure_view erase(struct kv_id session)
{
    struct kv_erasure_view view = kvt_svc_erase(&rig.call, session);
    cr_assert(eq(int, view.state, KV_ERASURE_CERTIFIED));
    return view;
}

/* The response of an operation that ran to its end. */
static const char *prove(const struct kv_id *id, uint32_t samples)
{
    cr_assert(eq(int, kv_svc_erasure_prove(&rig.call, id, samples, &operation), KV_OK), "%s", rig.call.info.text);
    uint64_t deadline = kv_now_ns(&kv_env_system) + 3 * KVT_WAIT_S * KV_S_NS;
    while (!kv_operation_ended(&operation) && kv_now_ns(&kv_env_system) < deadline) {
        usleep(20000);
        struct kv_id started = operation.row.id;
        cr_assert(eq(int, kv_svc_operation_get(&rig.call, &started, &operation), KV_OK));
    }
    cr_assert(eq(int, operation.row.state, KV_OPERATION_SUCCEEDED), "%s", operation.row.error_text);
    return operation.row.response;
}

static void check_says(const char *response, const char *what)
{
    cr_assert(strstr(response, what) != NULL, "%s is not in %s", what, response);
}

Test(erase_prove, cleaned_session_has_nothing_left_to_try)
{
    open_two();
    erasure = erase(erased);
    const char *response = prove(&erasure.id, 8);
    check_says(response, "\"verdict\":\"nothing_left\"");
    check_says(response, "\"ok\":true");
    check_says(response, "{\"available\":0,\"name\":\"dram\",\"opened\":0,\"read\":0}");
    check_says(response, "\"certificate_ok\":true");
    check_says(response, "\"control_opened\":4,\"control_read\":4");
    close_all();
}

Test(erase_prove, is_refused_before_the_certificate_and_to_other_tenants)
{
    struct kv_id none = {.b = {1}};
    open_two();
    erasure = erase(erased);
    cr_assert(eq(int, kv_svc_erasure_prove(&rig.call, &none, 8, &operation), KV_E_NOT_FOUND));
    struct kv_id other = {.b = {2}};
    kvt_svc_as(&rig.call, other, KV_ROLE_AUDITOR);
    cr_assert(eq(int, kv_svc_erasure_prove(&rig.call, &erasure.id, 8, &operation), KV_E_NOT_FOUND));
    close_all();
}

/* Signature and proof are looked at anew each time. */
Test(erase_prove, damaged_certificate_is_found)
{
    open_two();
    erasure = erase(erased);
    check_says(prove(&erasure.id, 8), "\"ok\":true");
    kvt_db_run(&rig, "SET session_replication_role = replica; UPDATE kvrun.erasure SET bundle ="
                     " set_byte(bundle, 200, get_byte(bundle, 200) # 1)");
    const char *response = prove(&erasure.id, 8);
    check_says(response, "\"verdict\":\"certificate_invalid\"");
    check_says(response, "\"ok\":false");
    close_all();
}

#ifdef KV_FAULTS
#define LEAVES "engine/drop=fail@1"

/* Cleaning fails, to the end of the test, so the ciphertext of the erased one stays where it was. */
static void erase_and_leave(struct kv_id session)
{
    kv_fault_set(LEAVES);
    erasure = erase(session);
}

Test(erase_prove, ciphertext_that_was_left_opens_under_no_key)
{
    open_two();
    erase_and_leave(erased);
    const char *response = prove(&erasure.id, 8);
    check_says(response, "\"verdict\":\"nothing_opened\"");
    check_says(response, "\"ok\":true");
    check_says(response, "{\"available\":4,\"name\":\"dram\",\"opened\":0,\"read\":4}");
    check_says(response, "{\"available\":4,\"name\":\"nvme\",\"opened\":0,\"read\":0}"); /* read in dram */
    cr_assert(strstr(response, "\"keys_tried\":0,") == NULL, "%s", response);
    check_says(prove(&erasure.id, 1), "{\"available\":4,\"name\":\"dram\",\"opened\":0,\"read\":1}");
    struct kv_principal who = rig.call.who;
    rig.call.who = (struct kv_principal){.roles = KV_ROLE_OPERATOR};
    cr_assert(eq(int, kvt_svc_drain(&rig.call), KV_OK));
    rig.call.who = who;
    response = prove(&erasure.id, 64);
    check_says(response, "{\"available\":0,\"name\":\"dram\",\"opened\":0,\"read\":0}");
    check_says(response, "{\"available\":4,\"name\":\"nvme\",\"opened\":0,\"read\":4}");
    check_says(response, "\"verdict\":\"nothing_opened\"");
    close_all();
}

Test(erase_prove, without_a_session_that_lives_nothing_is_proven)
{
    open_two();
    erase_and_leave(erased);
    struct kv_id proven = erasure.id;
    erase_and_leave(kept);
    const char *response = prove(&proven, 8);
    check_says(response, "\"verdict\":\"no_control\"");
    check_says(response, "\"ok\":false");
    check_says(response, "\"control_opened\":0,\"control_read\":0");
    close_all();
}

/* It is asked for while cleaning still fails, and is answered when that has worked: with what is so then. */
Test(erase_prove, right_after_the_certificate_it_waits_for_the_cleaning)
{
    open_two();
    erase_and_leave(erased);
    struct kv_id proven = erasure.id;
    erase_and_leave(kept);
    cr_assert(eq(int, kv_svc_erasure_prove(&rig.call, &proven, 8, &operation), KV_OK));
    struct kv_id started = operation.row.id;
    for (unsigned i = 0; i < KVT_WAIT_S * 50 && strcmp(operation.row.phase, "cleaning") != 0; i++) {
        usleep(20000);
        cr_assert(eq(int, kv_svc_operation_get(&rig.call, &started, &operation), KV_OK));
    }
    cr_assert(eq(str, operation.row.phase, "cleaning"));
    cr_assert_not(kv_operation_ended(&operation));
    kv_fault_set(NULL);
    for (unsigned i = 0; i < KVT_WAIT_S * 50 && !kv_operation_ended(&operation); i++) {
        usleep(20000);
        cr_assert(eq(int, kv_svc_operation_get(&rig.call, &started, &operation), KV_OK));
    }
    check_says(operation.row.response, "\"verdict\":\"nothing_left\"");
    check_says(operation.row.response, "\"ok\":true");
    close_all();
}

Test(erase_prove, something_that_opens_and_a_control_that_does_not_are_said)
{
    open_two();
    erase_and_leave(erased);
    kv_fault_set(LEAVES ",erase/prove-opens=on");
    const char *response = prove(&erasure.id, 8);
    check_says(response, "\"verdict\":\"opened\"");
    check_says(response, "\"ok\":false");
    kv_fault_set(LEAVES ",erase/prove-control=on");
    response = prove(&erasure.id, 8);
    check_says(response, "\"verdict\":\"control_failed\"");
    check_says(response, "\"ok\":false");
    kv_fault_set(LEAVES);
    check_says(prove(&erasure.id, 8), "\"verdict\":\"nothing_opened\"");
    close_all();
}
#endif
