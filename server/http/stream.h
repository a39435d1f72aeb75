/*
 * Streams of events (text/event-stream). A stream keeps a position in the hub's ring and no queue of its own: whoever
 * does not read costs nothing but that position, and is told what it missed. Its connection is suspended while there is
 * nothing to send.
 */
#ifndef KV_HTTP_STREAM_H
#define KV_HTTP_STREAM_H

#include "server/http/request.h"
#include "server/service/event.h"

struct kv_stream;
struct MHD_Response;

struct kv_stream_conf {
    struct kv_event_filter filter;
    uint64_t position; /* what comes after it is sent */
    bool resync;       /* the caller's position is of no use any more; said first */
    struct kv_id key;  /* of the caller: when it changes, the stream ends and has to show it again */
};

/* KV_E_BUSY when there are KV_MAX_STREAMS. Thread: a service thread. */
KV_RC kv_stream_new(struct kv_httpd *httpd, const struct kv_stream_conf *conf, struct kv_stream **ret_stream);
/* The answer whose body is the stream; NULL: no memory. Thread: the listener's. */
struct MHD_Response *kv_stream_response(struct kv_stream *stream, struct MHD_Connection *connection);
/* With its request, when that is over. Thread: the listener's. */
void kv_stream_free(struct kv_stream *stream);

/* One event as JSON: what streams and polls both say. */
void kv_stream_write_event(struct kv_buf *out, const struct kv_events *events, const struct kv_event_record *record);

#endif
