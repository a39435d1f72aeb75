/* Each step of an erasure fails once; it is repeated and ends with a certificate all the same. */
#include "dataplane/base/fault.h"
#include "tests/lib/svc_rig.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

TEMP_POSTGRES_HOOKS

static struct kvt_svc rig;
static struct kvt_engine engine;

static struct kv_id session_with(uint32_t blocks)
{
    struct kv_id session = kvt_svc_session(&rig.call);
    cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, session, 0, blocks, KV_WAIT_DURABLE), KV_OK), "%s",
              rig.call.info.text);
    return session;
}

static void erase_and_check(struct kv_id session)
{
    struct kv_buf bundle;
    struct kv_erasure_view view = kvt_svc_erase(&rig.call, session);
    cr_assert(eq(int, view.state, KV_ERASURE_CERTIFIED), "%s", view.claim);
    cr_assert(kvt_svc_certificate_good(&rig.call, view.id, &bundle));
    kv_buf_done(&bundle);
    cr_assert(kvt_svc_refused(&rig.call, &engine, session, view.id));
}

static void fails_once(const char *fault)
{
    uint32_t count = 0;
    kvt_svc_open(&rig);
    kvt_engine_open(&rig.call, &engine);
    struct kv_id erased = session_with(3), beside = session_with(3), next = session_with(1);
    kv_fault_set(fault);
    erase_and_check(erased);
    kv_fault_set(NULL);
    cr_assert(eq(int, kvt_svc_restore(&rig.call, &engine, beside, 0, 3, &count), KV_OK), "%s", rig.call.info.text);
    cr_assert(eq(u32, count, 3), "a session beside it lives");
    erase_and_check(next);
    kvt_engine_close(&engine);
    kvt_svc_done(&rig);
}

/* A failure of every step, each in a test of its own so that they run beside each other. */
#define FAILS_ONCE(name, fault)          \
    Test(step_fails_once, name)          \
    {                                    \
        fails_once(fault "=fail@1once"); \
    }
FAILS_ONCE(after_fence, "erase/fenced")
FAILS_ONCE(before_the_fresh_key_is_written, "roe/file/create-write")
FAILS_ONCE(after_the_fresh_key_is_written, "roe/file/create-done")
FAILS_ONCE(after_stage, "erase/staged")
FAILS_ONCE(when_staging_is_committed, "store/erase-staged/commit")
FAILS_ONCE(when_staging_was_committed, "store/erase-staged/committed")
FAILS_ONCE(when_the_rekey_is_committed, "store/erase-rekey/commit")
FAILS_ONCE(when_the_rekey_was_committed, "store/erase-rekey/committed")
FAILS_ONCE(when_the_rekey_is_run_again, "store/erase-rekey/serialize")
FAILS_ONCE(after_rekey, "erase/rekeyed")
FAILS_ONCE(before_the_old_key_is_destroyed, "erase/destroy")
FAILS_ONCE(while_the_old_key_is_destroyed, "roe/file/destroy-write")
FAILS_ONCE(when_the_destruction_is_flushed, "roe/file/destroy-sync")
FAILS_ONCE(before_the_fresh_key_is_active, "roe/file/activate")
FAILS_ONCE(after_the_fresh_key_is_active, "roe/file/activated")
FAILS_ONCE(after_destroy, "erase/destroyed")
FAILS_ONCE(when_the_destruction_was_recorded, "store/erase-destroyed/committed")
FAILS_ONCE(after_purge, "erase/purged")
FAILS_ONCE(when_the_verification_was_recorded, "store/erase-verified/committed")
FAILS_ONCE(after_verify, "erase/verified")
FAILS_ONCE(when_the_certificate_was_stored, "store/certificate/committed")
FAILS_ONCE(before_the_bundle, "erase/certificate")
FAILS_ONCE(when_the_bundle_was_stored, "store/bundle/committed")
FAILS_ONCE(after_the_certificate, "erase/certified")
