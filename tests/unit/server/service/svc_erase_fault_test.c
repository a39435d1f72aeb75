/* Each step of an erasure fails once; it is repeated and ends with a certificate all the same. */
#include "tests/lib/svc_rig.h"

#include <criterion/criterion.h>

#ifdef KV_FAULTS
TEMP_POSTGRES_HOOKS

#define FAILS_ONCE(name, fault)                                 \
    Test(step_fails_once, name)                                 \
    {                                                           \
        cr_assert(kvt_svc_erases_despite(fault "=fail@1once")); \
    }
FAILS_ONCE(after_fence, "erase/fenced")
FAILS_ONCE(before_the_fresh_key_is_written, "roe/file/create-write")
FAILS_ONCE(after_the_fresh_key_is_written, "roe/file/create-done")
FAILS_ONCE(after_stage, "erase/staged")
FAILS_ONCE(after_rekey, "erase/rekeyed")
FAILS_ONCE(before_the_old_key_is_destroyed, "erase/destroy")
FAILS_ONCE(while_the_old_key_is_destroyed, "roe/file/destroy-write")
FAILS_ONCE(when_the_destruction_is_flushed, "roe/file/destroy-sync")
FAILS_ONCE(before_the_fresh_key_is_active, "roe/file/activate")
FAILS_ONCE(after_the_fresh_key_is_active, "roe/file/activated")
FAILS_ONCE(after_destroy, "erase/destroyed")
FAILS_ONCE(after_purge, "erase/purged")
FAILS_ONCE(after_verify, "erase/verified")
FAILS_ONCE(before_the_bundle, "erase/certificate")
FAILS_ONCE(after_the_certificate, "erase/certified")
#endif
