/*
 * State machines as tables: the allowed moves are data, one function changes a state, and every move can be traced.
 */
#ifndef KV_BASE_SM_H
#define KV_BASE_SM_H

#include <stdbool.h>
#include <stdint.h>

struct kv_sm_table {
    const char *name;
    const char *const *state_names;
    const uint32_t *allowed; /* allowed[from] is the mask of states that may follow */
    unsigned state_count;    /* at most 32 */
};

struct kv_sm {
    const struct kv_sm_table *table; /* borrowed, static */
    unsigned state;
};

void kv_sm_init(struct kv_sm *sm, const struct kv_sm_table *table, unsigned state);
void kv_sm_move(struct kv_sm *sm, unsigned next); /* asserts that the move is allowed */
bool kv_sm_may(const struct kv_sm *sm, unsigned next);
const char *kv_sm_name(const struct kv_sm *sm);

#endif
