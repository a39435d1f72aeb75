/*
 * Waiting without a service thread. A handler whose answer depends on something that has not happened yet parks its
 * request: the connection stays suspended, the thread serves others, and a continuation runs when a matching event
 * came, when the time is up, when the caller went away, or when the server stops; if it wants to, also once a second.
 * Bounded: where there is no room the answer comes at once, as if nobody had wanted to wait.
 *
 * The thread of the car park also drives the streams (stream.h): it alone watches the hub of events.
 */
#ifndef KV_HTTP_PARKING_H
#define KV_HTTP_PARKING_H

#include "server/http/request.h"
#include "server/http/router.h"
#include "server/service/event.h"

struct kv_parking;
struct kv_stream;

/* --- for handlers. Thread: a service thread ----------------------------------------------------------------------- */

/*
 * True: `req` waits, and the handler returns KV_OK at once; what it wrote is thrown away. Later `resume` runs as its
 * handler on some service thread, with a fresh `call` for the same caller: it looks again, answers or parks once more
 * (the time goes on from the first). False: answer now.
 *
 * park->after is kv_events_newest as it was BEFORE the state was read that says there is something to wait for.
 */
bool kv_h_park(struct kv_call *call, struct kv_req *req, const struct kv_park *park);

/* The usual case: until the state of one thing changes. `type` KV_EVENT_ERASURE_STATE or KV_EVENT_OPERATION_STATE; the
 * continuation finds `subject` in req->park.filter.subject. */
bool kv_h_park_for(struct kv_call *call, struct kv_req *req, enum kv_event_type type, const struct kv_id *subject,
                   uint64_t after, kv_handler *resume);

/* --- for the listeners ---------------------------------------------------------------------------------------------
 */

KV_RC kv_parking_new(struct kv_httpd *httpd, struct kv_parking **ret_parking);
/* The service is up: from now on there is something to wait for. */
KV_RC kv_parking_start(struct kv_parking *parking, struct kv_errinfo *info);
/* After the handler returned, when it parked: takes the request. False: the stop has begun; run the continuation now.
 * Thread: the service thread that ran it. */
bool kv_parking_take(struct kv_parking *parking, struct kv_req *req);
/* Instead of that, when the handler failed after all. */
void kv_parking_forget(struct kv_parking *parking, struct kv_req *req);
/* The stop has begun: everybody who waits is answered, streams are told so, nobody waits any more. */
void kv_parking_drain(struct kv_parking *parking);
size_t kv_parking_streams(struct kv_parking *parking);
/* After kv_parking_drain, while the service threads still run. */
void kv_parking_stop(struct kv_parking *parking);
void kv_parking_free(struct kv_parking *parking); /* after the library stopped */

#endif
