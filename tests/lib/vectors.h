/* Loads outside vectors (JSON in Wycheproof's shape) from tests/vectors of the source tree. Include after Criterion. */
#ifndef KV_TESTS_VECTORS_H
#define KV_TESTS_VECTORS_H

#include "dataplane/base/bytes.h"

#include <jansson.h>

typedef void vectors_fn(json_t *group, json_t *test, void *ctx);

/* Calls `fn` for each test of each group of `file` (relative to tests/vectors). Returns how many; 0 when it cannot be
 * read. */
size_t vectors_each(const char *file, vectors_fn *fn, void *ctx);

/* The bytes of a hex member, in an allocation of exactly that length, so that a sanitizer sees a read past it. */
struct kv_bytes vectors_hex(json_t *object, const char *member);      /* freed with vectors_free */
struct kv_bytes vectors_inflated(json_t *object, const char *member); /* hex of a zlib stream */
void vectors_free(struct kv_bytes bytes);
bool vectors_valid(json_t *test); /* result is "valid" */
int vectors_id(json_t *test);

#endif
