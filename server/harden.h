/*
 * What the server takes from itself before it starts: core dumps, a debugger's look, and system calls that it has no
 * use for but that whoever got into it would. Thread: main, before any other.
 */
#ifndef KV_HARDEN_H
#define KV_HARDEN_H

#include "server/config/conf.h"

/* Logs what it did ("hardened"); what the kernel does not have is a warning there and no error. `runs_programs`: it
 * starts and restarts a database of its own, so it may run programs. */
void kv_harden(const struct kv_conf *conf, bool runs_programs);

#endif
