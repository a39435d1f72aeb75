/*
 * The heartbeat: a thread of its own, so that a long transfer never costs the lease. While the server is away it looks
 * for it, first after a tenth of a second, then in steps that double up to a heartbeat's time. A server that is there
 * but fails each call that it gets, keeps its engines by their beats, and is asked for blocks after steps that double
 * up to half a minute.
 */
#include "api/clients/c/kvrun_int.h"

#include <string.h>
#include <time.h>

#define BACK_OFF_MS_FIRST 100u
#define BACK_OFF_MS_SICK 30000u

static unsigned min_of(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

static struct timespec in_ms(unsigned ms)
{
    struct timespec due;
    clock_gettime(CLOCK_MONOTONIC, &due);
    due.tv_sec += ms / 1000;
    due.tv_nsec += (long)(ms % 1000) * 1000000;
    if (due.tv_nsec >= 1000000000) {
        due.tv_sec++;
        due.tv_nsec -= 1000000000;
    }
    return due;
}

/* True when it is time for a beat, false when the thread has to end. A call that finds the server away ends the wait
 * between beats, not that between two looks for it. */
static bool wait_for_beat(struct kvrun_client *client, unsigned ms, bool up)
{
    struct timespec due = in_ms(ms);
    pthread_mutex_lock(&client->lock);
    int rc = 0;
    while (!client->stop && !(up && client->suspected) && rc == 0) {
        rc = pthread_cond_timedwait(&client->wake, &client->lock, &due);
    }
    bool go_on = !client->stop;
    pthread_mutex_unlock(&client->lock);
    return go_on;
}

static void tell(struct kvrun_client *client, bool up, const struct kvrun_error *why)
{
    if (client->engine.link_changed != NULL) {
        client->engine.link_changed(client->engine.ctx, up, up ? NULL : why);
    }
}

static unsigned next_step(unsigned back_off_ms, unsigned most_ms)
{
    return min_of(back_off_ms == 0 ? BACK_OFF_MS_FIRST : 2 * back_off_ms, most_ms);
}

static uint64_t calls_answered(struct kvrun_client *client)
{
    struct kvrun_stats stats;
    kvrun_stats(client, &stats);
    return stats.calls_answered;
}

static unsigned period_ms(struct kvrun_client *client)
{
    pthread_mutex_lock(&client->link_lock);
    unsigned ms = client->lease_seconds * 1000 / 3;
    pthread_mutex_unlock(&client->link_lock);
    return ms;
}

static bool renew(struct kvrun_client *client, bool trusted, struct kvrun_error *error)
{
    pthread_mutex_lock(&client->link_lock);
    bool up = kvrun_link_renew(client, trusted, error);
    pthread_mutex_unlock(&client->link_lock);
    return up;
}

static void *heartbeat_thread(void *arg)
{
    struct kvrun_client *client = arg;
    struct kvrun_error error;
    bool up = kvrun_ready(client, &error);
    unsigned back_off_ms = up ? 0 : BACK_OFF_MS_FIRST;
    unsigned left_ms = back_off_ms;             /* of it */
    uint64_t answered = calls_answered(client); /* when the server came */
    tell(client, up, &error);
    for (;;) {
        unsigned beat_ms = period_ms(client), wait_ms = up ? beat_ms : min_of(left_ms, beat_ms);
        if (!wait_for_beat(client, wait_ms, up)) {
            return NULL;
        }
        if (up && !kvrun_ready(client, &error)) { /* a call found out */
            tell(client, false, &error);
            up = false;
            left_ms = back_off_ms = calls_answered(client) != answered ? 0 : next_step(back_off_ms, BACK_OFF_MS_SICK);
            continue;
        }
        left_ms -= min_of(left_ms, wait_ms);
        bool came = renew(client, left_ms == 0, &error);
        if (came != up) {
            tell(client, came, &error);
            answered = calls_answered(client);
        }
        if (!came && left_ms == 0) {
            left_ms = back_off_ms = next_step(back_off_ms, beat_ms);
        }
        up = came;
    }
}

bool kvrun_heartbeat_start(struct kvrun_client *client, struct kvrun_error *error)
{
    client->stop = false;
    int rc = pthread_create(&client->heartbeat_thread, NULL, heartbeat_thread, client);
    if (rc != 0) {
        return kvrun_fail(error, "system", "the heartbeat's thread cannot start: %s", strerror(rc));
    }
    client->heartbeat_running = true;
    return true;
}

void kvrun_heartbeat_stop(struct kvrun_client *client)
{
    if (!client->heartbeat_running) {
        return;
    }
    pthread_mutex_lock(&client->lock);
    client->stop = true;
    pthread_cond_signal(&client->wake);
    pthread_mutex_unlock(&client->lock);
    pthread_join(client->heartbeat_thread, NULL);
    client->heartbeat_running = false;
}
