/*
 * A root of erasure that does all that a provider does but one thing: what it has wrapped it can unwrap for ever. The
 * control of the suite over all providers.
 */
#ifndef KV_TESTS_ROE_KEEPS_H
#define KV_TESTS_ROE_KEEPS_H

#include "dataplane/keys/roe.h"

struct kv_roe *kvt_roe_keeps_new(void);

#endif
