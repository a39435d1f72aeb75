/*
 * GET /v1/events: a stream, or with poll=1 one page of events that waits until there is one. Must never show a tenant's
 * key what is another tenant's or the platform's.
 */
#include "server/http/h_shared.h"
#include "server/http/parking.h"
#include "server/http/stream.h"

#include <string.h>

#define POLL_EVENTS 100

const struct kv_field kv_q_events[] = {
    {"types", KV_TEXT, false, 1, 512, NULL},    {"session_id", KV_TEXT, false, 1, 40, NULL},
    {"tenant_id", KV_TEXT, false, 1, 40, NULL}, {"after", KV_TEXT, false, 1, KV_EVENT_ID_SIZE, NULL},
    {"poll", KV_TEXT, false, 1, 4, "|1|true|"}, {"wait_seconds", KV_INT, false, 0, 60, NULL},
    {NULL, KV_TEXT, false, 0, 0, NULL},
};

static KV_RC read_filter(struct kv_call *call, struct kv_req *req, struct kv_event_filter *ret_filter)
{
    struct kv_event_filter filter = {.all_tenants = kv_id_is_zero(&call->who.tenant)};
    const char *types = kv_h_query_text(req, "types");
    if (types != NULL && kv_event_types_parse(types, &filter.types) != KV_OK) {
        return kv_fail(&call->info, KV_E_INVALID_REQUEST, "types: write names such as erasure.state,session.created");
    }
    KV_TRY(kv_h_query_id(call, req, "session_id", "ses", &filter.session));
    KV_TRY(kv_h_query_id(call, req, "tenant_id", "ten", &filter.tenant));
    if (!filter.all_tenants) {
        if (!kv_id_is_zero(&filter.tenant) && !kv_id_equal(&filter.tenant, &call->who.tenant)) {
            return kv_fail(&call->info, KV_E_NOT_FOUND, "no such tenant");
        }
        filter.tenant = call->who.tenant;
    }
    *ret_filter = filter;
    return KV_OK;
}

/* Where to go on: from now, after a given event, or, when that is of no use any more, at the oldest that is kept. */
static KV_RC read_position(struct kv_call *call, const struct kv_req *req, uint64_t *ret_position, bool *ret_resync)
{
    struct kv_events *events = kv_svc_events(call->svc);
    const char *after = kv_h_query_text(req, "after");
    after = after == NULL ? req->given.last_event_id : after;
    *ret_resync = false;
    if (after == NULL || after[0] == '\0') {
        *ret_position = kv_events_newest(events);
        return KV_OK;
    }
    enum kv_err rc = kv_events_parse_id(events, after, ret_position);
    if (rc == KV_E_INVALID_REQUEST) {
        return kv_fail(&call->info, rc, "after, or Last-Event-ID: send the id of an event");
    }
    uint64_t before_oldest = kv_events_oldest(events) - 1;
    *ret_resync = rc == KV_E_MISSING || *ret_position < before_oldest;
    if (*ret_resync) {
        *ret_position = before_oldest;
    }
    return KV_OK;
}

static KV_RC answer_stream(struct kv_call *call, struct kv_req *req, const struct kv_stream_conf *conf)
{
    if (!req->accepts_events) {
        return kv_fail(&call->info, KV_E_NOT_ACCEPTABLE, "this is text/event-stream; ask with poll=1 for JSON");
    }
    enum kv_err rc = kv_stream_new(req->httpd, conf, &req->stream);
    if (rc == KV_E_BUSY) {
        return kv_fail(&call->info, rc, "%d streams are open; try again, or ask with poll=1", (int)KV_MAX_STREAMS);
    }
    req->response.content_type = "text/event-stream";
    return rc;
}

/* --- polling ----------------------------------------------------------------------------------------------------- */

static void write_page(struct kv_buf *out, struct kv_events *events, const struct kv_event_record *records,
                       size_t count)
{
    kv_out_open(out);
    kv_out_array(out, "data");
    for (size_t i = 0; i < count; i++) {
        kv_out_item(out);
        kv_stream_write_event(out, events, &records[i]);
    }
    kv_out_array_end(out);
}

static void write_ids(struct kv_buf *out, struct kv_events *events, uint64_t position, bool resync)
{
    char id[KV_EVENT_ID_SIZE];
    kv_events_id(events, position, id);
    kv_out_text(out, "next_after", id);
    kv_out_bool(out, "resync", resync);
    kv_out_close(out);
}

/* One page, or a wait for its first event. */
static KV_RC poll_once(struct kv_call *call, struct kv_req *req, struct kv_park *park, bool resync)
{
    struct kv_events *events = kv_svc_events(call->svc);
    struct kv_event_record records[POLL_EVENTS];
    bool lost = false;
    size_t count = kv_events_read(events, &park->filter, &park->after, records, POLL_EVENTS, &lost);
    if (lost) { /* between the look and now, or while it waited */
        resync = true;
        count = kv_events_read(events, &park->filter, &park->after, records, POLL_EVENTS, &lost);
    }
    if (count == 0 && !resync && kv_h_park(call, req, park)) {
        return KV_OK;
    }
    write_page(&req->response.body, events, records, count);
    write_ids(&req->response.body, events, park->after, resync);
    return KV_OK;
}

static KV_RC poll_again(struct kv_call *call, struct kv_req *req)
{
    struct kv_park park = req->park;
    return poll_once(call, req, &park, false);
}

KV_RC kv_h_events(struct kv_call *call, struct kv_req *req)
{
    struct kv_stream_conf conf = {.key = call->who.key};
    KV_TRY(read_filter(call, req, &conf.filter));
    KV_TRY(read_position(call, req, &conf.position, &conf.resync));
    if (kv_h_query_text(req, "poll") == NULL) {
        return answer_stream(call, req, &conf);
    }
    if (!req->accepts_json) {
        return kv_fail(&call->info, KV_E_NOT_ACCEPTABLE, "with poll=1 this route answers application/json");
    }
    struct kv_park park = {.filter = conf.filter,
                           .after = conf.position,
                           .seconds = (unsigned)kv_h_query_int(req, "wait_seconds", 0),
                           .resume = poll_again};
    return poll_once(call, req, &park, conf.resync);
}
