/* A pool of the scenario: memory, and pages whose bytes are made of a text. Thread: one. */
#ifndef KV_TESTS_CLIENTS_SCENARIO_POOL_H
#define KV_TESTS_CLIENTS_SCENARIO_POOL_H

#include "api/clients/c/kvrun.h"

#include <jansson.h>

#define SCENARIO_REGIONS_MAX 4

struct scenario_pool {
    const char *name; /* borrowed from the step */
    struct kvrun_pool conf;
    struct kvrun_region regions[SCENARIO_REGIONS_MAX];
    size_t region_count;
    uint8_t *base;
    uint32_t number;
};

/* As the step says; false when the memory cannot be had. */
bool scenario_pool_make(const json_t *step, struct scenario_pool *ret_pool);
void scenario_pool_done(struct scenario_pool *pool);
/* NULL: zeros. */
void scenario_pool_write(struct scenario_pool *pool, uint32_t slot, const char *text);
/* Which of these letters the page is made of; "zero", "other", and "none" when there is no such page. */
const char *scenario_pool_name(const struct scenario_pool *pool, uint32_t slot, const char *letters);

#endif
