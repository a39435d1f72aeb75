/*
 * See parking.h. A request is in one place only: with a service thread (QUEUED), or here (PARKED) with its connection
 * suspended; it leaves through the line and nowhere else. Must never hold a request past its deadline, and never touch
 * one after it was handed on.
 */
#include "server/http/parking_int.h"

#include "dataplane/base/check.h"
#include "dataplane/base/log.h"
#include "dataplane/base/mem.h"
#include "server/http/line.h"

#include <string.h>

/* How often sockets are looked at, because a suspended connection does not notice its end, and rows, because another
 * instance may have changed them. */
#define LOOK_NS (1 * KV_S_NS)

/* --- leaving ----------------------------------------------------------------------------------------------------- */

/* Under the mutex. From here on the request belongs to a service thread. */
static void release(struct kv_parking *parking, struct kv_req *req)
{
    KV_ASSERT(req->state == KV_REQ_PARKED);
    LIST_REMOVE(req, park_link);
    parking->parked_count--;
    req->state = KV_REQ_QUEUED;
    kv_line_return(parking->httpd->line, req, (req->route->flags & KV_ROUTE_RESERVED) != 0);
}

static bool concerns(const struct kv_req *req, const struct parking_news *news)
{
    for (size_t i = 0; i < news->count; i++) {
        if (news->records[i].position > req->park.after && kv_event_matches(&req->park.filter, &news->records[i])) {
            return true;
        }
    }
    return false;
}

static void tend_parked(struct kv_parking *parking, const struct parking_news *news)
{
    struct kv_req *next = NULL;
    for (struct kv_req *req = LIST_FIRST(&parking->parked); req != NULL; req = next) {
        next = LIST_NEXT(req, park_link);
        if (news->lost || news->now_ns >= req->park_look_ns || concerns(req, news)) {
            release(parking, req);
        }
    }
}

/* --- callers that went away -------------------------------------------------------------------------------------- */

/* Who closed his side is answered at once: either he still reads, or the library finds out that he does not. */
static void gone(struct kv_parking *parking, int fd)
{
    struct kv_req *req = NULL;
    LIST_FOREACH(req, &parking->parked, park_link)
    {
        if (req->fd == fd) {
            req->park_until_ns = 1; /* no second wait */
            release(parking, req);
            return;
        }
    }
    kv_stream_gone(parking, fd);
}

static void look_for_gone(struct kv_parking *parking)
{
    size_t count = 0;
    struct kv_req *req = NULL;
    LIST_FOREACH(req, &parking->parked, park_link)
    {
        if (count < (size_t)KV_MAX_PARKED_REQUESTS) {
            parking->fds[count++] = (struct pollfd){.fd = req->fd, .events = POLLRDHUP};
        }
    }
    count += kv_stream_fds(parking, parking->fds + count, (size_t)KV_MAX_STREAMS);
    if (poll(parking->fds, count, 0) <= 0) { /* does not wait */
        return;
    }
    for (size_t i = 0; i < count; i++) {
        if (parking->fds[i].revents != 0) {
            gone(parking, parking->fds[i].fd);
        }
    }
}

/* --- the thread -------------------------------------------------------------------------------------------------- */

static uint64_t next_due(struct kv_parking *parking)
{
    pthread_mutex_lock(&parking->mutex);
    uint64_t due = parking->look_ns;
    const struct kv_req *req = NULL;
    LIST_FOREACH(req, &parking->parked, park_link)
    {
        due = req->park_look_ns < due ? req->park_look_ns : due;
    }
    const struct kv_stream *stream = NULL;
    for (stream = LIST_FIRST(&parking->streams); stream != NULL; stream = kv_stream_next(stream)) {
        uint64_t at = kv_stream_due_ns(stream);
        due = at < due ? at : due;
    }
    pthread_mutex_unlock(&parking->mutex);
    return due;
}

static void tend(struct kv_parking *parking)
{
    static const struct kv_event_filter all = {.all_tenants = true};
    struct kv_event_record records[PARKING_BATCH];
    struct parking_news news = {.records = records};
    news.count = kv_events_read(parking->events, &all, &parking->position, records, PARKING_BATCH, &news.lost);
    news.position = parking->position;
    pthread_mutex_lock(&parking->mutex);
    news.now_ns = kv_now_ns(parking->httpd->conf.env);
    tend_parked(parking, &news);
    struct kv_stream *next = NULL;
    for (struct kv_stream *stream = LIST_FIRST(&parking->streams); stream != NULL; stream = next) {
        next = kv_stream_next(stream);
        kv_stream_tend(stream, &news);
    }
    if (news.now_ns >= parking->look_ns) {
        look_for_gone(parking);
        parking->look_ns = news.now_ns + LOOK_NS;
    }
    pthread_mutex_unlock(&parking->mutex);
}

static void *parking_main(void *arg)
{
    struct kv_parking *parking = arg;
    while (!atomic_load(&parking->stopping)) {
        kv_events_wait(parking->events, parking->position, next_due(parking));
        tend(parking);
    }
    return NULL;
}

/* --- handlers ---------------------------------------------------------------------------------------------------- */

bool kv_h_park(struct kv_call *call, struct kv_req *req, const struct kv_park *park)
{
    struct kv_parking *parking = req->httpd->parking;
    uint64_t now = kv_now_ns(req->httpd->conf.env);
    bool first = req->park_until_ns == 0;
    uint64_t until = first ? now + park->seconds * KV_S_NS : req->park_until_ns;
    if (call->dry_run || parking == NULL || park->seconds == 0 || now >= until) {
        return false;
    }
    pthread_mutex_lock(&parking->mutex);
    bool room = !parking->draining && parking->events != NULL && parking->parked_count < (size_t)KV_MAX_PARKED_REQUESTS;
    parking->parked_count += room;
    pthread_mutex_unlock(&parking->mutex);
    if (room) {
        req->park = *park;
        req->park_until_ns = until;
        req->park_look_ns = park->looks_again && until - now > LOOK_NS ? now + LOOK_NS : until;
        req->parks = true;
    }
    return room;
}

bool kv_h_park_for(struct kv_call *call, struct kv_req *req, enum kv_event_type type, const struct kv_id *subject,
                   uint64_t after, kv_handler *resume)
{
    struct kv_park park = {
        .filter = {.types = UINT32_C(1) << type, .all_tenants = true, .subject = *subject}, /* the id was looked up */
        .after = after,
        .seconds = req->wait_seconds,
        .looks_again = true,
        .resume = resume};
    return kv_h_park(call, req, &park);
}

/* What the first run of the handler made is nobody's answer, and its body was read. */
static void clear(struct kv_req *req)
{
    atomic_fetch_sub(&req->httpd->body_bytes, req->counted);
    req->counted = 0;
    kv_buf_done(&req->body);
    kv_response_reset(&req->response);
    req->parks = false;
    req->resumed = true;
}

/* Under the mutex: did something happen between the handler's look and now? */
static bool happened(struct kv_parking *parking, struct kv_req *req)
{
    struct kv_event_record record;
    bool lost = false;
    uint64_t position = req->park.after;
    if (kv_events_read(parking->events, &req->park.filter, &position, &record, 1, &lost) > 0 || lost) {
        return true; /* and the continuation finds it where this did */
    }
    req->park.after = position;
    return false;
}

bool kv_parking_take(struct kv_parking *parking, struct kv_req *req)
{
    clear(req);
    pthread_mutex_lock(&parking->mutex);
    bool taken = !parking->draining;
    if (taken) {
        req->state = KV_REQ_PARKED;
        LIST_INSERT_HEAD(&parking->parked, req, park_link);
        if (happened(parking, req)) {
            release(parking, req);
        }
    } else {
        parking->parked_count--;
    }
    pthread_mutex_unlock(&parking->mutex);
    if (taken) {
        kv_events_wake(parking->events); /* its deadline may be the next one */
    }
    return taken;
}

void kv_parking_forget(struct kv_parking *parking, struct kv_req *req)
{
    pthread_mutex_lock(&parking->mutex);
    parking->parked_count--;
    pthread_mutex_unlock(&parking->mutex);
    req->parks = false;
}

/* --- life -------------------------------------------------------------------------------------------------------- */

enum kv_err kv_parking_new(struct kv_httpd *httpd, struct kv_parking **ret_parking)
{
    struct kv_parking *parking = kv_alloc(sizeof *parking);
    if (parking == NULL) {
        return KV_E_NO_MEMORY;
    }
    parking->fds = kv_alloc_array((size_t)(KV_MAX_PARKED_REQUESTS + KV_MAX_STREAMS), sizeof *parking->fds);
    if (parking->fds == NULL) {
        kv_free(parking);
        return KV_E_NO_MEMORY;
    }
    parking->httpd = httpd;
    pthread_mutex_init(&parking->mutex, NULL);
    LIST_INIT(&parking->parked);
    LIST_INIT(&parking->streams);
    *ret_parking = parking;
    return KV_OK;
}

enum kv_err kv_parking_start(struct kv_parking *parking, struct kv_errinfo *info)
{
    struct kv_events *events = kv_svc_events(kv_httpd_svc(parking->httpd));
    parking->position = kv_events_newest(events);
    pthread_mutex_lock(&parking->mutex);
    parking->events = events;
    pthread_mutex_unlock(&parking->mutex);
    if (pthread_create(&parking->thread, NULL, parking_main, parking) != 0) {
        return kv_fail(info, KV_E_NO_MEMORY, "cannot start the thread of waiting requests");
    }
    pthread_setname_np(parking->thread, "kv-parking");
    parking->started = true;
    return KV_OK;
}

size_t kv_parking_streams(struct kv_parking *parking)
{
    pthread_mutex_lock(&parking->mutex);
    size_t count = parking->stream_count;
    pthread_mutex_unlock(&parking->mutex);
    return count;
}

void kv_parking_drain(struct kv_parking *parking)
{
    pthread_mutex_lock(&parking->mutex);
    parking->draining = true;
    while (!LIST_EMPTY(&parking->parked)) {
        release(parking, LIST_FIRST(&parking->parked));
    }
    kv_stream_end_all(parking);
    pthread_mutex_unlock(&parking->mutex);
}

void kv_parking_stop(struct kv_parking *parking)
{
    if (parking == NULL || !parking->started) {
        return;
    }
    atomic_store(&parking->stopping, true);
    kv_events_wake(parking->events);
    pthread_join(parking->thread, NULL);
    parking->started = false;
}

void kv_parking_free(struct kv_parking *parking)
{
    if (parking == NULL) {
        return;
    }
    (void)KV_BUG(parking->parked_count != 0);
    pthread_mutex_destroy(&parking->mutex);
    kv_free(parking->fds);
    kv_free(parking);
}
