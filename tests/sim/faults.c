#include "tests/sim/faults.h"

#include "dataplane/base/fault.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define NAMES_MAX 1024u
#define NAME_SIZE 96

/* Where faults are met and how often: one passing in so many. What is not here is a switch that makes the product
 * unsafe, or breaks something for good, which is another test's matter. */
static const struct kind {
    const char *prefix, *suffix; /* suffix: NULL is any */
    unsigned one_in;
    bool cut; /* fails when the process is cut off: it stands before an effect */
} kinds[] = {
    {"store/", "/serialize", 60, false},      {"store/", "/commit", 50, true},
    {"store/", "/committed", 50, true},       {"roe/file/", "-write", 9, true},
    {"roe/file/", "-done", 9, true},          {"roe/file/", "-sync", 9, true},
    {"roe/file/", "activate", 9, true},       {"roe/file/", "activated", 9, true},
    {"erase/requested", NULL, 9, false},      {"erase/verified", NULL, 9, false},
    {"erase/certificate", NULL, 9, false},    {"erase/certified", NULL, 9, false},
    {"engine/offload/", NULL, 30, true},      {"engine/restore/", NULL, 30, false},
    {"tier/nvme/data-write", NULL, 40, true}, {"base/mem", NULL, 3000, false},
    {"audit/journal/write", NULL, 40, true},
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    char name[NAME_SIZE];
    uint64_t passings;
} names[NAMES_MAX];
static unsigned name_count;
static uint64_t seed;
static atomic_bool on, cut;
static _Atomic uint64_t met;

/* SplitMix64's finalizer (Steele, Lea, Flood, OOPSLA 2014). */
uint64_t sim_mix(uint64_t value)
{
    value += UINT64_C(0x9e3779b97f4a7c15);
    value = (value ^ (value >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    value = (value ^ (value >> 27)) * UINT64_C(0x94d049bb133111eb);
    return value ^ (value >> 31);
}

static const struct kind *kind_of(const char *name)
{
    size_t len = strlen(name);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const char *suffix = kinds[i].suffix == NULL ? "" : kinds[i].suffix;
        size_t suffix_len = strlen(suffix);
        if (strncmp(name, kinds[i].prefix, strlen(kinds[i].prefix)) == 0 && suffix_len <= len &&
            strcmp(name + len - suffix_len, suffix) == 0) {
            return &kinds[i];
        }
    }
    return NULL;
}

static uint64_t next_passing_locked(const char *name)
{
    for (unsigned i = 0; i < name_count; i++) {
        if (strcmp(names[i].name, name) == 0) {
            return ++names[i].passings;
        }
    }
    if (name_count == NAMES_MAX || strlen(name) >= NAME_SIZE) {
        abort(); /* a point that would never fail would make the test say more than it knows */
    }
    memcpy(names[name_count].name, name, strlen(name) + 1);
    names[name_count].passings = 1;
    name_count++;
    return 1;
}

static bool choose(const char *name)
{
    const struct kind *kind = kind_of(name);
    if (kind == NULL) {
        return false;
    }
    if (atomic_load(&cut)) {
        return kind->cut;
    }
    if (!atomic_load(&on)) {
        return false;
    }
    pthread_mutex_lock(&lock);
    uint64_t hash = seed ^ next_passing_locked(name);
    pthread_mutex_unlock(&lock);
    for (const char *at = name; *at != '\0'; at++) {
        hash = sim_mix(hash ^ (uint8_t)*at);
    }
    bool fault = hash % kind->one_in == 0;
    atomic_fetch_add(&met, fault ? 1u : 0u);
    return fault;
}

void sim_faults_seed(uint64_t value)
{
    atomic_store(&on, false);
    atomic_store(&cut, false);
    pthread_mutex_lock(&lock);
    seed = sim_mix(value);
    name_count = 0;
    pthread_mutex_unlock(&lock);
    atomic_store(&met, 0);
    kv_fault_ask(choose);
}

void sim_faults_on(bool value)
{
    atomic_store(&on, value);
}

void sim_faults_cut(bool value)
{
    atomic_store(&cut, value);
}

uint64_t sim_faults_met(void)
{
    return atomic_load(&met);
}
