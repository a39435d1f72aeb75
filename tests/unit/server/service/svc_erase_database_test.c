/* Each commit of an erasure fails once, before it happens or in doubt after it; the erasure ends with a certificate all
 * the same. */
#include "tests/lib/svc_rig.h"

#include <criterion/criterion.h>

#ifdef KV_FAULTS
TEMP_POSTGRES_HOOKS

#define FAILS_ONCE(name, fault)                                 \
    Test(commit_fails_once, name)                               \
    {                                                           \
        cr_assert(kvt_svc_erases_despite(fault "=fail@1once")); \
    }
FAILS_ONCE(when_staging_is_committed, "store/erase-staged/commit")
FAILS_ONCE(when_staging_was_committed, "store/erase-staged/committed")
FAILS_ONCE(when_the_rekey_is_committed, "store/erase-rekey/commit")
FAILS_ONCE(when_the_rekey_was_committed, "store/erase-rekey/committed")
FAILS_ONCE(when_the_rekey_is_run_again, "store/erase-rekey/serialize")
FAILS_ONCE(when_the_destruction_was_recorded, "store/erase-destroyed/committed")
FAILS_ONCE(when_the_verification_was_recorded, "store/erase-verified/committed")
FAILS_ONCE(when_the_certificate_was_stored, "store/certificate/committed")
FAILS_ONCE(when_the_bundle_was_stored, "store/bundle/committed")
#endif
