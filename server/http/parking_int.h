/* The car park, as parking.c (requests that wait, the thread) and stream.c (streams of events) share it. */
#ifndef KV_HTTP_PARKING_INT_H
#define KV_HTTP_PARKING_INT_H

#include "server/http/httpd_int.h"
#include "server/http/parking.h"

#include <poll.h>
#include <sys/queue.h>

#define PARKING_BATCH 64 /* events looked at under one lock */

struct kv_parking {
    struct kv_httpd *httpd;
    struct kv_events *events; /* NULL until the service is up */
    pthread_t thread;
    bool started;
    atomic_bool stopping;

    pthread_mutex_t mutex; /* what follows; taken before the library's own and the hub's locks */
    bool draining;
    size_t parked_count; /* places taken, those of requests on their way here among them */
    LIST_HEAD(, kv_req) parked;
    size_t stream_count; /* likewise */
    LIST_HEAD(, kv_stream) streams;

    /* The thread's own. */
    uint64_t position; /* of the last event that it has seen */
    uint64_t look_ns;  /* when it looks next for callers that went away */
    struct pollfd *fds;
};

/* New events, as the thread hands them round. */
struct parking_news {
    const struct kv_event_record *records;
    size_t count;
    bool lost;         /* there were more than the ring keeps: everybody looks for himself */
    uint64_t position; /* of the last event that was looked at */
    uint64_t now_ns;
};

/* --- stream.c; under the mutex --- */
void kv_stream_tend(struct kv_stream *stream, const struct parking_news *news);
struct kv_stream *kv_stream_next(const struct kv_stream *stream);
uint64_t kv_stream_due_ns(const struct kv_stream *stream); /* when it wants to be tended at the latest */
void kv_stream_end_all(struct kv_parking *parking);        /* the server stops */
/* Streams that wait, for a look at their sockets; and what was seen there. */
size_t kv_stream_fds(const struct kv_parking *parking, struct pollfd *fds, size_t max);
void kv_stream_gone(struct kv_parking *parking, int fd);

#endif
