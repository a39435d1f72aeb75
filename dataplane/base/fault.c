/*
 * Named fault points of test builds. Never part of a release build: without KV_FAULTS this file is empty, and a point
 * is the constant false. Never allocates, because kv_alloc itself is a point.
 */
#include "dataplane/base/fault.h"

#ifdef KV_FAULTS

#include "dataplane/base/check.h"
#include "dataplane/base/log.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define POINTS_MAX 32
#define SPEC_SIZE 2048

struct point {
    const char *name; /* in spec_text */
    int signal;       /* SIGKILL, SIGSTOP; 0: none */
    const char *file; /* to wait for, in spec_text; NULL: none */
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
static bool (*_Atomic asked)(const char *name);

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
    point.signal = strcmp(equals + 1, "kill") == 0 ? SIGKILL : strcmp(equals + 1, "stop") == 0 ? SIGSTOP : 0;
    point.file = strncmp(equals + 1, "hold:/", 6) == 0 ? equals + 6 : NULL;
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

void kv_fault_ask(bool (*chooser)(const char *name))
{
    atomic_store_explicit(&asked, chooser, memory_order_release);
}

/* One passing of one point. */
static bool passes(struct point *point, const char **ret_file)
{
    point->passings++;
    bool single = point->once || point->signal != 0 || point->file != NULL;
    bool due = single ? point->passings == point->nth : point->passings >= point->nth;
    if (due && point->signal != 0) {
        (void)raise(point->signal);
    }
    if (due && point->file != NULL) {
        *ret_file = point->file;
    }
    return due && point->signal == 0 && point->file == NULL;
}

/* A spec that is set meanwhile changes the name that is waited for; a test that does so removes the file first. */
static void wait_for_removal(const char *file)
{
    char path[SPEC_SIZE];
    memcpy(path, file, strlen(file) + 1);
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    if (fd < 0) {
        reject("cannot make the file of a point that holds");
    }
    close(fd);
    while (access(path, F_OK) == 0) {
        (void)nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
}

bool kv_fault_hit(const char *name)
{
    pthread_once(&environment_once, install_environment);
    bool (*chooser)(const char *name) = atomic_load_explicit(&asked, memory_order_acquire);
    bool hit = chooser != NULL && chooser(name);
    if (!atomic_load_explicit(&armed, memory_order_acquire)) {
        return hit;
    }
    const char *file = NULL;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < point_count; i++) {
        if (strcmp(points[i].name, name) == 0) {
            hit = passes(&points[i], &file) || hit;
        }
    }
    pthread_mutex_unlock(&lock);
    if (file != NULL) {
        wait_for_removal(file);
    }
    return hit;
}

#else

/* ISO C has no empty translation unit. */
typedef int kv_fault_points_are_compiled_out;

#endif
