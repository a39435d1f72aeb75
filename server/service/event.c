/*
 * See event.h. Must never hold its lock for longer than some records take to copy, so that a publisher is never held up
 * by a reader.
 */
#include "server/service/event.h"

#include "dataplane/base/check.h"
#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"
#include "server/service/svc_int.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define LOOK_AT_ONCE 512 /* records that a reader looks at before it lets others have the lock */

struct kv_events {
    const struct kv_env *env;
    char incarnation[17]; /* the end of its id, in hex */
    size_t size;
    pthread_mutex_t mutex;
    pthread_cond_t more;
    bool woken;
    uint64_t newest;
    struct kv_event_record *ring; /* position p stands in p % size */
};

static const char *const type_names[KV_EVENT_TYPES] = {
    [KV_EVENT_SESSION_CREATED] = "session.created",
    [KV_EVENT_SESSION_IDLE] = "session.idle",
    [KV_EVENT_TRANSFER_COMPLETED] = "transfer.completed",
    [KV_EVENT_TRANSFER_FAILED] = "transfer.failed",
    [KV_EVENT_TIER_STATE] = "tier.state",
    [KV_EVENT_ERASURE_STATE] = "erasure.state",
    [KV_EVENT_CERTIFICATE_ISSUED] = "certificate.issued",
    [KV_EVENT_CERTIFICATE_UPGRADED] = "certificate.upgraded",
    [KV_EVENT_POLICY_CHANGED] = "policy.changed",
    [KV_EVENT_ENGINE_REGISTERED] = "engine.registered",
    [KV_EVENT_ENGINE_LOST] = "engine.lost",
    [KV_EVENT_OPERATION_STATE] = "operation.state",
    [KV_EVENT_CONFIG_CHANGED] = "config.changed",
    [KV_EVENT_AUDIT_CHECKPOINT] = "audit.checkpoint",
    [KV_EVENT_KEY_CHANGED] = "key.changed",
    [KV_EVENT_TENANT_STATE] = "tenant.state",
    [KV_EVENT_HOLD_STATE] = "hold.state",
    [KV_EVENT_APPROVAL_STATE] = "approval.state",
};

const char *kv_event_type_name(enum kv_event_type type)
{
    KV_ASSERT(type < KV_EVENT_TYPES);
    return type_names[type];
}

static uint32_t type_bit(const char *name, size_t len)
{
    for (unsigned i = 0; i < KV_EVENT_TYPES; i++) {
        if (strlen(type_names[i]) == len && memcmp(type_names[i], name, len) == 0) {
            return UINT32_C(1) << i;
        }
    }
    return 0;
}

enum kv_err kv_event_types_parse(const char *names, uint32_t *ret_types)
{
    uint32_t types = 0;
    for (const char *p = names; p != NULL; p = strchr(p, ',') == NULL ? NULL : strchr(p, ',') + 1) {
        uint32_t bit = type_bit(p, strcspn(p, ","));
        if (bit == 0) {
            return KV_E_INVALID_REQUEST;
        }
        types |= bit;
    }
    *ret_types = types;
    return KV_OK;
}

/* --- life -------------------------------------------------------------------------------------------------------- */

enum kv_err kv_events_new(const struct kv_env *env, const struct kv_id *incarnation, size_t ring,
                          struct kv_events **ret_events)
{
    struct kv_events *events = kv_alloc(sizeof *events);
    if (events == NULL) {
        return KV_E_NO_MEMORY;
    }
    events->ring = kv_alloc_array(ring, sizeof *events->ring);
    if (events->ring == NULL) {
        kv_free(events);
        return KV_E_NO_MEMORY;
    }
    events->env = env;
    events->size = ring;
    kv_hex_encode(incarnation->b + 8, 8, events->incarnation); /* its random half */
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&events->more, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&events->mutex, NULL);
    *ret_events = events;
    return KV_OK;
}

void kv_events_free(struct kv_events *events)
{
    if (events == NULL) {
        return;
    }
    pthread_cond_destroy(&events->more);
    pthread_mutex_destroy(&events->mutex);
    kv_free(events->ring);
    kv_free(events);
}

/* --- publishing -------------------------------------------------------------------------------------------------- */

static void copy_text(char *target, size_t size, const char *text)
{
    snprintf(target, size, "%s", text == NULL ? "" : text);
}

void kv_events_publish(struct kv_events *events, const struct kv_event *event)
{
    struct kv_event_record record = {.at_us = events->env->realtime_us(events->env->ctx),
                                     .type = event->type,
                                     .tenant = event->tenant,
                                     .session = event->session,
                                     .subject = event->subject,
                                     .blocks = event->blocks,
                                     .bytes = event->bytes,
                                     .version = event->version};
    copy_text(record.subject_prefix, sizeof record.subject_prefix, event->subject_prefix);
    copy_text(record.name, sizeof record.name, event->name);
    copy_text(record.state, sizeof record.state, event->state);
    pthread_mutex_lock(&events->mutex);
    record.position = ++events->newest;
    events->ring[record.position % events->size] = record;
    pthread_cond_signal(&events->more);
    pthread_mutex_unlock(&events->mutex);
}

struct kv_events *kv_svc_events(struct kv_svc *svc)
{
    return svc->events;
}

void svc_publish(struct kv_svc *svc, const struct kv_event *event)
{
    kv_events_publish(svc->events, event);
}

/* --- reading ----------------------------------------------------------------------------------------------------- */

static uint64_t oldest_locked(const struct kv_events *events)
{
    return events->newest < events->size ? 1 : events->newest - events->size + 1;
}

uint64_t kv_events_newest(struct kv_events *events)
{
    pthread_mutex_lock(&events->mutex);
    uint64_t newest = events->newest;
    pthread_mutex_unlock(&events->mutex);
    return newest;
}

uint64_t kv_events_oldest(struct kv_events *events)
{
    pthread_mutex_lock(&events->mutex);
    uint64_t oldest = oldest_locked(events);
    pthread_mutex_unlock(&events->mutex);
    return oldest;
}

static bool id_allows(const struct kv_id *wanted, const struct kv_id *id)
{
    return kv_id_is_zero(wanted) || kv_id_equal(wanted, id);
}

bool kv_event_matches(const struct kv_event_filter *filter, const struct kv_event_record *record)
{
    bool ours = filter->all_tenants || kv_id_equal(&filter->tenant, &record->tenant);
    bool wanted = filter->types == 0 || (filter->types & (UINT32_C(1) << record->type)) != 0;
    /* An operator may name a tenant, too. */
    bool of_tenant = !filter->all_tenants || id_allows(&filter->tenant, &record->tenant);
    return ours && wanted && of_tenant && id_allows(&filter->session, &record->session) &&
           id_allows(&filter->subject, &record->subject);
}

/* Some records under the lock; false when there was nothing left to look at, or no room. */
static bool read_some(struct kv_events *events, const struct kv_event_filter *filter, uint64_t *position,
                      struct kv_event_record *records, size_t *count, size_t max)
{
    for (unsigned i = 0; i < LOOK_AT_ONCE; i++) {
        if (*count == max || *position >= events->newest) {
            return false;
        }
        const struct kv_event_record *record = &events->ring[(*position + 1) % events->size];
        if (kv_event_matches(filter, record)) {
            records[(*count)++] = *record;
        }
        ++*position;
    }
    return true;
}

size_t kv_events_read(struct kv_events *events, const struct kv_event_filter *filter, uint64_t *position,
                      struct kv_event_record *ret_records, size_t max, bool *ret_lost)
{
    size_t count = 0;
    *ret_lost = false;
    for (bool more = true; more;) {
        pthread_mutex_lock(&events->mutex);
        if (*position + 1 < oldest_locked(events)) {
            if (count == 0) { /* else what was copied is told first, and the next call finds the gap */
                *position = oldest_locked(events) - 1;
                *ret_lost = true;
            }
            more = false;
        } else {
            more = read_some(events, filter, position, ret_records, &count, max);
        }
        pthread_mutex_unlock(&events->mutex);
    }
    return count;
}

void kv_events_wait(struct kv_events *events, uint64_t position, uint64_t deadline_ns)
{
    struct timespec until = kv_timespec_of(deadline_ns);
    pthread_mutex_lock(&events->mutex);
    while (!events->woken && events->newest <= position &&
           pthread_cond_timedwait(&events->more, &events->mutex, &until) != ETIMEDOUT) {
    }
    events->woken = false;
    pthread_mutex_unlock(&events->mutex);
}

void kv_events_wake(struct kv_events *events)
{
    pthread_mutex_lock(&events->mutex);
    events->woken = true;
    pthread_cond_signal(&events->more);
    pthread_mutex_unlock(&events->mutex);
}

/* --- ids --------------------------------------------------------------------------------------------------------- */

void kv_events_id(const struct kv_events *events, uint64_t position, char ret_text[KV_EVENT_ID_SIZE])
{
    snprintf(ret_text, KV_EVENT_ID_SIZE, "%s-%" PRIu64, events->incarnation, position);
}

enum kv_err kv_events_parse_id(struct kv_events *events, const char *text, uint64_t *ret_position)
{
    size_t len = strlen(text), hex = strspn(text, "0123456789abcdef");
    const char *digits = text + hex + 1;
    if (hex != 16 || text[hex] != '-' || len > 36 || *digits == '\0' ||
        strspn(digits, "0123456789") != strlen(digits) || (digits[0] == '0' && digits[1] != '\0')) {
        return KV_E_INVALID_REQUEST;
    }
    uint64_t position = 0;
    for (const char *p = digits; *p != '\0'; p++) { /* at most 19 digits */
        position = position * 10 + (uint64_t)(*p - '0');
    }
    if (memcmp(text, events->incarnation, 16) != 0 || position > kv_events_newest(events)) {
        return KV_E_MISSING;
    }
    *ret_position = position;
    return KV_OK;
}
