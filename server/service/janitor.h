/*
 * The janitor: one background thread with a connection of its own that runs a table of small steps, each when its
 * period is over or when somebody signals that there is work. For what must get done some time and that nobody waits
 * for in a request: rows past their time, sessions past their lifetime, erasures of many that take on their next
 * sessions. Steps must never wait for the engine for long: they share the thread.
 */
#ifndef KV_SERVICE_JANITOR_H
#define KV_SERVICE_JANITOR_H

#include "server/service/svc_int.h"

/* Does a bounded piece of work. `*ret_more` (false at the call) set to true: there is more, run me again after the
 * others had their turn. A failure is logged once and the step is tried again a little later; it holds no other step
 * up. Not called in quarantine. May run several times for the same work (after a commit in doubt, after a crash), so
 * what is done is seen in the database alone. Thread: janitor. */
typedef KV_RC svc_janitor_fn(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info, bool *ret_more);

/* There may be work for a step: all run soon. Thread: any; never blocks. */
void svc_janitor_signal(struct kv_svc *svc);
void *svc_janitor_main(void *svc);

#endif
