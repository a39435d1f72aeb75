/*
 * The hub of events: what happened in this process, kept in a ring for those who watch (GET /v1/events, requests that
 * wait). Whoever publishes never waits for whoever reads: a reader that is slower than the ring learns that it lost
 * something. Events are hints, not records: they do not survive the process, and the audit log is where history is.
 *
 * Positions count up from 1; 0 stands before the first. An event's id names the process, too, so that a position of an
 * earlier process is never taken for one of this. Thread: any, unless it says otherwise.
 */
#ifndef KV_EVENT_H
#define KV_EVENT_H

#include "dataplane/base/buf.h"
#include "dataplane/base/env.h"

struct kv_svc;
struct kv_events;

enum kv_event_type {
    KV_EVENT_SESSION_CREATED,
    KV_EVENT_SESSION_IDLE,
    KV_EVENT_TRANSFER_COMPLETED,
    KV_EVENT_TRANSFER_FAILED,
    KV_EVENT_TIER_STATE,
    KV_EVENT_ERASURE_STATE,
    KV_EVENT_CERTIFICATE_ISSUED,
    KV_EVENT_POLICY_CHANGED,
    KV_EVENT_ENGINE_REGISTERED,
    KV_EVENT_ENGINE_LOST,
    KV_EVENT_OPERATION_STATE,
    KV_EVENT_CONFIG_CHANGED,
    KV_EVENT_AUDIT_CHECKPOINT,
    KV_EVENT_KEY_CHANGED,
    KV_EVENT_TENANT_STATE,
    KV_EVENT_HOLD_STATE,
    KV_EVENT_APPROVAL_STATE,
    KV_EVENT_CERTIFICATE_UPGRADED,
    KV_EVENT_TYPES,
};

/* What a publisher says. Texts are copied; what is zero, NULL or "" is left out. */
struct kv_event {
    enum kv_event_type type;
    struct kv_id tenant;        /* whose it is; zero: the platform's, for operators and viewers alone */
    struct kv_id session;       /* the session that it is about */
    struct kv_id subject;       /* what it is about, with its prefix: "era", "op_", "eng" */
    const char *subject_prefix; /* three letters; NULL: no subject */
    const char *name;           /* what has no id: a tier, a configuration key; at most 31 bytes */
    const char *state;          /* what it is now; at most 31 bytes */
    uint64_t blocks, bytes, version;
};

/* The same, as it is kept. */
struct kv_event_record {
    uint64_t position, at_us;
    enum kv_event_type type;
    struct kv_id tenant, session, subject;
    char subject_prefix[4], name[32], state[32];
    uint64_t blocks, bytes, version;
};

/* Which events somebody wants; zero ids are no condition. */
struct kv_event_filter {
    uint32_t types;   /* mask of 1 << kv_event_type; 0: all */
    bool all_tenants; /* else only those of `tenant` */
    struct kv_id tenant, session, subject;
};

/* Tells those who watch. Call it after the commit. Never blocks and never fails. */
void svc_publish(struct kv_svc *svc, const struct kv_event *event);
struct kv_events *kv_svc_events(struct kv_svc *svc); /* borrowed; as long as `svc` */

/* `incarnation` is of this process; `ring` events are kept. */
KV_RC kv_events_new(const struct kv_env *env, const struct kv_id *incarnation, size_t ring,
                    struct kv_events **ret_events);
void kv_events_free(struct kv_events *events);
void kv_events_publish(struct kv_events *events, const struct kv_event *event);

/* Position of the newest event; of the oldest that is kept (newest + 1 when there is none). Take the newest BEFORE
 * reading what an event would be about: then none is missed in between. */
uint64_t kv_events_newest(struct kv_events *events);
uint64_t kv_events_oldest(struct kv_events *events);

bool kv_event_matches(const struct kv_event_filter *filter, const struct kv_event_record *record);
/* Copies what matches after *position, at most `max`, and moves *position to the last event that was looked at.
 * *ret_lost: events after *position are no longer kept; the position then stands before the oldest, nothing is copied.
 */
size_t kv_events_read(struct kv_events *events, const struct kv_event_filter *filter, uint64_t *position,
                      struct kv_event_record *ret_records, size_t max, bool *ret_lost);

/* Sleeps until there is an event after `position`, kv_events_wake was called since the last return, or the monotonic
 * deadline. Thread: one. */
void kv_events_wait(struct kv_events *events, uint64_t position, uint64_t deadline_ns);
void kv_events_wake(struct kv_events *events);

#define KV_EVENT_ID_SIZE 40
void kv_events_id(const struct kv_events *events, uint64_t position, char ret_text[KV_EVENT_ID_SIZE]);
/* KV_E_INVALID_REQUEST: not an id of an event. KV_E_MISSING: of another process, or of an event that is yet to come. */
KV_RC kv_events_parse_id(struct kv_events *events, const char *text, uint64_t *ret_position);

const char *kv_event_type_name(enum kv_event_type type); /* "erasure.state" */
/* A list of names with commas between; KV_E_INVALID_REQUEST when one is unknown. */
KV_RC kv_event_types_parse(const char *names, uint32_t *ret_types);

#endif
