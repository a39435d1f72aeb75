/* The engine alone, without a server: what the other commands take for granted. */
#ifndef KV_TESTS_ENGINE_SELFCHECK_H
#define KV_TESTS_ENGINE_SELFCHECK_H

#include "tests/engine/bench.h"

/* Prints a line a check; true when all hold. */
bool kv_selfcheck(struct kv_bench *bench);

#endif
