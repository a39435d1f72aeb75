/*
 * The one place that changes a state. Never makes a move that the table does not list.
 */
#include "dataplane/base/sm.h"

#include "dataplane/base/check.h"
#include "dataplane/base/log.h"

#define STATES_MAX 32

void kv_sm_init(struct kv_sm *sm, const struct kv_sm_table *table, unsigned state)
{
    KV_ASSERT(table->state_count >= 1 && table->state_count <= STATES_MAX);
    KV_ASSERT(state < table->state_count);
    *sm = (struct kv_sm){.table = table, .state = state};
}

bool kv_sm_may(const struct kv_sm *sm, unsigned next)
{
    KV_ASSERT(sm->state < sm->table->state_count);
    return next < sm->table->state_count && ((sm->table->allowed[sm->state] >> next) & 1) != 0;
}

void kv_sm_move(struct kv_sm *sm, unsigned next)
{
    KV_ASSERT(kv_sm_may(sm, next));
    kv_log(KV_LOG_DEBUG, "sm", "move", KV_FT("machine", sm->table->name),
           KV_FT("from", sm->table->state_names[sm->state]), KV_FT("to", sm->table->state_names[next]));
    sm->state = next;
}

const char *kv_sm_name(const struct kv_sm *sm)
{
    KV_ASSERT(sm->state < sm->table->state_count);
    return sm->table->state_names[sm->state];
}
