/*
 * Named fault points of test builds. Never part of a release build: without KV_FAULTS this file is empty, and a point
 * is the constant false. Never allocates, because kv_alloc itself is a point.
 */
#include "dataplane/base/fault.h"

#ifdef KV_FAULTS

#include "dataplane/base/check.h"
#include "dataplane/base/log.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define POINTS_MAX 32
#define SPEC_SIZE 2048

struct point {
    const char *name; /* in spec_text */
    bool kill;
    bool once;
    uint64_t nth;
    uint64_t passings;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t environment_once = PTHREAD_ONCE_INIT;
static char spec_text[SPEC_SIZE];
static struct point points[POINTS_MAX];
static unsigned point_count;

/* Lets a build with fault points and no spec pass a point without a lock. Release and acquire, so that who sees `armed`
 * sees the points; a passing that runs at the very moment of kv_fault_set may miss it, as it would have run earlier. */
static atomic_bool armed;

/* "3once" or "3": the passing that is meant. */
static bool parse_nth(const char *text, struct point *point)
{
    char *end = NULL;
    if (text[0] < '1' || text[0] > '9') {
        return false;
    }
    point->nth = strtoull(text, &end, 10);
    point->once = strcmp(end, "once") == 0;
    return point->once || *end == '\0';
}

/* "name=word" or "name=word@N"; cuts the entry up in place. */
static bool parse_entry(char *entry, struct point *ret_point)
{
    char *equals = strchr(entry, '=');
    if (equals == NULL || equals == entry || equals[1] == '\0' || equals[1] == '@') {
        return false;
    }
    *equals = '\0';
    struct point point = {.name = entry, .nth = 1};
    char *at = strchr(equals + 1, '@');
    if (at != NULL) {
        *at = '\0';
        if (!parse_nth(at + 1, &point)) {
            return false;
        }
    }
    point.kill = strcmp(equals + 1, "kill") == 0;
    *ret_point = point;
    return true;
}

/* A test whose fault never fires would pass for the wrong reason, so a spec that is not understood stops the process.
 */
static _Noreturn void reject(const char *why)
{
    kv_log(KV_LOG_ERROR, "fault", "spec_rejected", KV_FT("why", why));
    abort();
}

static void install_locked(const char *spec)
{
    point_count = 0;
    size_t len = spec != NULL ? strlen(spec) : 0;
    if (len >= SPEC_SIZE) {
        reject("longer than 2047 bytes");
    }
    if (len > 0) {
        memcpy(spec_text, spec, len);
    }
    spec_text[len] = '\0';
    char *next = spec_text;
    while (next != NULL && *next != '\0') {
        char *entry = strsep(&next, ",");
        if (point_count == POINTS_MAX) {
            reject("more than 32 points");
        }
        if (!parse_entry(entry, &points[point_count])) {
            reject(entry);
        }
        point_count++;
    }
    atomic_store_explicit(&armed, point_count > 0, memory_order_release);
}

static void install(const char *spec)
{
    pthread_mutex_lock(&lock);
    install_locked(spec);
    pthread_mutex_unlock(&lock);
}

static void install_environment(void)
{
    install(getenv("KVRUN_FAULT"));
}

void kv_fault_set(const char *spec)
{
    /* The environment is taken first, so that it cannot replace this spec later. */
    pthread_once(&environment_once, install_environment);
    install(spec);
}

/* One passing of one point. */
static bool passes(struct point *point)
{
    point->passings++;
    bool due = point->once || point->kill ? point->passings == point->nth : point->passings >= point->nth;
    if (due && point->kill) {
        (void)raise(SIGKILL);
    }
    return due;
}

bool kv_fault_hit(const char *name)
{
    pthread_once(&environment_once, install_environment);
    if (!atomic_load_explicit(&armed, memory_order_acquire)) {
        return false;
    }
    bool hit = false;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < point_count; i++) {
        if (strcmp(points[i].name, name) == 0) {
            hit = passes(&points[i]) || hit;
        }
    }
    pthread_mutex_unlock(&lock);
    return hit;
}

#else

/* ISO C has no empty translation unit. */
typedef int kv_fault_points_are_compiled_out;

#endif
