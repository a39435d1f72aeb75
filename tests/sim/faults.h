/*
 * Faults from a seed, for a service in the same process: at any point of the erase path, the store, the provider of the
 * root, the engine, and as a process that is cut off: from one moment on nothing is committed, and no root, block or
 * record is written, which is what the database and the root see of a kill -9 (the nvme tier's index is still written).
 *
 * What happens at the Nth passing of a point follows from seed, name and N alone. Threads may come to different points
 * in another order when a seed is repeated; the faults that each meets are the same.
 */
#ifndef KV_TESTS_SIM_FAULTS_H
#define KV_TESTS_SIM_FAULTS_H

#include <stdbool.h>
#include <stdint.h>

void sim_faults_seed(uint64_t seed); /* none yet; counts passings from 0 */
void sim_faults_on(bool on);
void sim_faults_cut(bool cut);
uint64_t sim_faults_met(void);    /* since the seed */
uint64_t sim_mix(uint64_t value); /* a good hash of 64 bits */

#endif
