/*
 * Named fault points. In test builds (KV_FAULTS) the environment says what happens at one:
 *   KVRUN_FAULT="tier/nvme/write=EIO@3,erase/rekeyed=kill@1"
 * kill: SIGKILL to the own process, at the Nth passing (default the first). stop: SIGSTOP, so that it goes on there
 * when somebody sends SIGCONT. hold:/a/file: the thread makes the file at the Nth passing and waits until somebody
 * removes it. These three report no fault. Any other word: the point reports a fault (returns true) from the Nth
 * passing on; `once` after the name (`name=fail@3once`) for exactly that passing. In release builds a point is the
 * constant false.
 */
#ifndef KV_BASE_FAULT_H
#define KV_BASE_FAULT_H

#include <stdbool.h>

#ifdef KV_FAULTS
#define KV_FAULT(name) kv_fault_hit(name)
bool kv_fault_hit(const char *name);
/* For tests in the same process; replaces the environment's. NULL clears. */
void kv_fault_set(const char *spec);
/* For tests in the same process: who decides at every passing of every point, besides the spec; called by any thread,
 * several at once, and passes no point itself. NULL: nobody. */
void kv_fault_ask(bool (*chooser)(const char *name));
#else
#define KV_FAULT(name) (false)
#endif

#endif
