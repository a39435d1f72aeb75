/*
 * See stream.h.
 *
 *   NEW ─ first read ─► SENDING ─ nothing to send ─► WAITING
 *                          ▲                            │
 *                          └── event, heartbeat, end ───┘
 *
 * While it is WAITING its connection is suspended. Must never suspend one twice or resume one that is not suspended:
 * both happen under the car park's mutex, with the state.
 */
#include "server/http/stream.h"

#include "dataplane/base/mem.h"
#include "server/http/codec.h"
#include "server/http/count.h"
#include "server/http/parking_int.h"
#include "server/http/reaper.h"

#include <inttypes.h>
#include <microhttpd.h>
#include <string.h>
#include <sys/socket.h>

#define RECORDS_AT_ONCE 16
#define BLOCK_BYTES 4096
#define SOCKET_BYTES (128 * 1024) /* of the kernel's, for one reader */

enum stream_state { STREAM_NEW, STREAM_SENDING, STREAM_WAITING };
enum stream_end { END_NOT, END_TIME, END_KEY, END_SHUTDOWN, END_LAGGED, END_GONE };

struct kv_stream {
    LIST_ENTRY(kv_stream) link;
    struct kv_parking *parking;
    struct kv_stream_conf conf;
    bool listed;
    struct MHD_Connection *connection;
    int fd;
    /* Under the mutex. */
    enum stream_state state;
    enum stream_end end;
    uint64_t position;                             /* the last event that was taken for sending, or passed over */
    uint64_t counted, behind_events, behind_bytes; /* told of by the thread and not taken yet */
    uint64_t begun_ns, written_ns;
    bool heartbeat;
    /* The listener's thread's own. */
    bool greeted, over;
    struct kv_buf out;
    size_t out_at;
};

/* --- text -------------------------------------------------------------------------------------------------------- */

void kv_stream_write_event(struct kv_buf *out, const struct kv_events *events, const struct kv_event_record *record)
{
    char id[KV_EVENT_ID_SIZE];
    kv_events_id(events, record->position, id);
    kv_buf_text(out, "{");
    kv_out_text(out, "id", id);
    kv_out_text(out, "type", kv_event_type_name(record->type));
    kv_out_time(out, "at", record->at_us);
    if (!kv_id_is_zero(&record->tenant)) {
        kv_out_id(out, "tenant_id", "ten", &record->tenant);
    }
    if (!kv_id_is_zero(&record->session)) {
        kv_out_id(out, "session_id", "ses", &record->session);
    }
    if (record->subject_prefix[0] != '\0') {
        kv_out_id(out, "subject", record->subject_prefix, &record->subject);
    }
    if (record->name[0] != '\0') {
        kv_out_text(out, "name", record->name);
    }
    if (record->state[0] != '\0') {
        kv_out_text(out, "state", record->state);
    }
    if (record->blocks != 0) {
        kv_out_int(out, "blocks", record->blocks);
    }
    if (record->bytes != 0) {
        kv_out_int(out, "bytes", record->bytes);
    }
    if (record->version != 0) {
        kv_out_int(out, "version", record->version);
    }
    kv_out_close(out);
}

static void write_record(struct kv_stream *stream, const struct kv_event_record *record)
{
    char id[KV_EVENT_ID_SIZE];
    kv_events_id(stream->parking->events, record->position, id);
    kv_buf_printf(&stream->out, "id: %s\nevent: %s\ndata: ", id, kv_event_type_name(record->type));
    kv_stream_write_event(&stream->out, stream->parking->events, record);
    kv_buf_text(&stream->out, "\n\n");
}

/* About what write_record makes of it. */
static uint64_t size_of(const struct kv_event_record *record)
{
    return 320 + strlen(record->name) + strlen(record->state);
}

/* The client's position becomes one of this process, so that its next Last-Event-ID is good. */
static void write_greeting(struct kv_stream *stream, uint64_t position)
{
    char id[KV_EVENT_ID_SIZE], oldest[KV_EVENT_ID_SIZE];
    kv_events_id(stream->parking->events, position, id);
    kv_events_id(stream->parking->events, position + 1, oldest);
    kv_buf_text(&stream->out, "retry: 2000\n\n");
    if (stream->conf.resync) {
        kv_buf_printf(&stream->out, "id: %s\nevent: resync\ndata: {\"oldest\":\"%s\"}\n\n", id, oldest);
    }
}

static void write_end(struct kv_stream *stream, enum stream_end end, uint64_t dropped)
{
    static const char *const reasons[] = {
        [END_TIME] = "time", [END_KEY] = "key", [END_SHUTDOWN] = "shutdown", [END_GONE] = "shutdown"};
    if (end == END_LAGGED) {
        kv_http_count_dropped(dropped);
        kv_buf_printf(&stream->out, "event: lagged\ndata: {\"dropped\":%" PRIu64 "}\n\n", dropped);
    } else {
        kv_buf_printf(&stream->out, "event: bye\ndata: {\"reason\":\"%s\"}\n\n", reasons[end]);
    }
}

/* --- the reader. Thread: the listener's -------------------------------------------------------------------------- */

/* Under the mutex. What was taken is no longer behind. */
static void taken(struct kv_stream *stream, const struct kv_event_record *record)
{
    if (record->position <= stream->counted && stream->behind_events > 0) {
        uint64_t size = size_of(record);
        stream->behind_events--;
        stream->behind_bytes -= size < stream->behind_bytes ? size : stream->behind_bytes;
    }
}

/* Under the mutex. False: nothing to send, the connection is suspended. */
static bool take_next(struct kv_stream *stream, struct kv_event_record *records, size_t *ret_count,
                      uint64_t *ret_dropped)
{
    uint64_t before = stream->position;
    bool lost = false;
    *ret_count = 0;
    if (stream->end == END_NOT) {
        *ret_count = kv_events_read(stream->parking->events, &stream->conf.filter, &stream->position, records,
                                    RECORDS_AT_ONCE, &lost);
        for (size_t i = 0; i < *ret_count; i++) {
            taken(stream, &records[i]);
        }
        if (lost) { /* so slow that even the ring went by */
            stream->end = END_LAGGED;
            stream->behind_events = stream->position - before;
        }
    }
    *ret_dropped = stream->behind_events;
    if (*ret_count > 0 || stream->end != END_NOT || stream->heartbeat || !stream->greeted) {
        return true;
    }
    stream->state = STREAM_WAITING;
    MHD_suspend_connection(stream->connection);
    return false;
}

/* Text for the socket; false: nothing now. */
static bool fill(struct kv_stream *stream)
{
    struct kv_event_record records[RECORDS_AT_ONCE];
    size_t count = 0;
    uint64_t dropped = 0;
    kv_buf_reset(&stream->out);
    stream->out_at = 0;
    pthread_mutex_lock(&stream->parking->mutex);
    stream->state = STREAM_SENDING;
    uint64_t greet_at = stream->position;
    bool some = take_next(stream, records, &count, &dropped);
    bool heartbeat = stream->heartbeat;
    stream->heartbeat = false;
    stream->written_ns = kv_now_ns(stream->parking->httpd->conf.env);
    enum stream_end end = stream->end;
    pthread_mutex_unlock(&stream->parking->mutex);
    if (!some) {
        return false;
    }
    if (!stream->greeted) {
        stream->greeted = true;
        write_greeting(stream, greet_at);
    }
    for (size_t i = 0; i < count; i++) {
        write_record(stream, &records[i]);
    }
    if (end != END_NOT) {
        stream->over = true;
        write_end(stream, end, dropped);
    } else if (heartbeat && count == 0) {
        kv_buf_text(&stream->out, ": hb\n\n");
    }
    return true;
}

static ssize_t read_stream(void *ctx, uint64_t position, char *target, size_t max)
{
    struct kv_stream *stream = ctx;
    (void)position;
    if (stream->out_at == stream->out.len) {
        if (stream->over) {
            return MHD_CONTENT_READER_END_OF_STREAM;
        }
        if (!fill(stream)) {
            return 0;
        }
        if (kv_buf_check(&stream->out) != KV_OK) {
            return MHD_CONTENT_READER_END_WITH_ERROR;
        }
    }
    size_t rest = stream->out.len - stream->out_at, n = rest < max ? rest : max;
    memcpy(target, stream->out.data + stream->out_at, n);
    stream->out_at += n;
    return (ssize_t)n;
}

/* --- being tended. Under the mutex ------------------------------------------------------------------------------- */

struct kv_stream *kv_stream_next(const struct kv_stream *stream)
{
    return LIST_NEXT(stream, link);
}

static void go_on(struct kv_stream *stream)
{
    if (stream->state == STREAM_WAITING) {
        stream->state = STREAM_SENDING;
        MHD_resume_connection(stream->connection);
    }
}

static void end_with(struct kv_stream *stream, enum stream_end end)
{
    if (stream->end == END_NOT) {
        stream->end = end;
        /* One who does not read would not learn it: then the connection ends without it. */
        kv_reaper_stream_over(stream->parking->httpd->reaper, stream->connection);
    }
    go_on(stream);
}

uint64_t kv_stream_due_ns(const struct kv_stream *stream)
{
    uint64_t beat = stream->written_ns + stream->parking->httpd->conf.heartbeat_ms * KV_MS_NS;
    uint64_t end = stream->begun_ns + (uint64_t)KV_MAX_STREAM_SECONDS * KV_S_NS;
    return stream->state != STREAM_WAITING ? UINT64_MAX : beat < end ? beat : end;
}

static void count_news(struct kv_stream *stream, const struct parking_news *news, bool *ret_some, bool *ret_key)
{
    for (size_t i = 0; i < news->count; i++) {
        const struct kv_event_record *record = &news->records[i];
        *ret_key =
            *ret_key || (record->type == KV_EVENT_KEY_CHANGED && kv_id_equal(&record->subject, &stream->conf.key));
        if (record->position > stream->position && record->position > stream->counted &&
            kv_event_matches(&stream->conf.filter, record)) {
            stream->counted = record->position;
            stream->behind_events++;
            stream->behind_bytes += size_of(record);
            *ret_some = true;
        }
    }
}

void kv_stream_tend(struct kv_stream *stream, const struct parking_news *news)
{
    bool some = news->lost, key = false;
    count_news(stream, news, &some, &key);
    if (key) {
        end_with(stream, END_KEY);
    } else if (news->now_ns >= stream->begun_ns + (uint64_t)KV_MAX_STREAM_SECONDS * KV_S_NS) {
        end_with(stream, END_TIME);
    } else if (stream->behind_bytes > (uint64_t)KV_MAX_STREAM_BEHIND_BYTES) {
        end_with(stream, END_LAGGED);
    } else if (some) {
        go_on(stream);
    } else if (stream->state == STREAM_WAITING && news->now_ns >= kv_stream_due_ns(stream)) {
        stream->heartbeat = true;
        go_on(stream);
    } else if (stream->state == STREAM_WAITING && news->position > stream->position) {
        stream->position = news->position; /* nothing of it was for this one */
    }
}

void kv_stream_end_all(struct kv_parking *parking)
{
    struct kv_stream *stream = NULL;
    LIST_FOREACH(stream, &parking->streams, link)
    {
        end_with(stream, END_SHUTDOWN);
    }
}

size_t kv_stream_fds(const struct kv_parking *parking, struct pollfd *fds, size_t max)
{
    size_t count = 0;
    const struct kv_stream *stream = NULL;
    LIST_FOREACH(stream, &parking->streams, link)
    {
        if (stream->state == STREAM_WAITING && count < max) {
            fds[count++] = (struct pollfd){.fd = stream->fd, .events = POLLRDHUP};
        }
    }
    return count;
}

void kv_stream_gone(struct kv_parking *parking, int fd)
{
    struct kv_stream *stream = NULL;
    LIST_FOREACH(stream, &parking->streams, link)
    {
        if (stream->fd == fd) {
            end_with(stream, END_GONE);
            return;
        }
    }
}

/* --- life -------------------------------------------------------------------------------------------------------- */

enum kv_err kv_stream_new(struct kv_httpd *httpd, const struct kv_stream_conf *conf, struct kv_stream **ret_stream)
{
    struct kv_parking *parking = httpd->parking;
    struct kv_stream *stream = kv_alloc(sizeof *stream);
    if (stream == NULL) {
        return KV_E_NO_MEMORY;
    }
    pthread_mutex_lock(&parking->mutex);
    bool room = !parking->draining && parking->stream_count < (size_t)KV_MAX_STREAMS;
    parking->stream_count += room;
    pthread_mutex_unlock(&parking->mutex);
    if (!room) {
        kv_free(stream);
        return KV_E_BUSY;
    }
    stream->parking = parking;
    stream->conf = *conf;
    stream->position = stream->counted = conf->position;
    stream->begun_ns = stream->written_ns = kv_now_ns(httpd->conf.env);
    kv_buf_init(&stream->out, RECORDS_AT_ONCE * (size_t)KV_MAX_EVENT_BYTES);
    *ret_stream = stream;
    return KV_OK;
}

struct MHD_Response *kv_stream_response(struct kv_stream *stream, struct MHD_Connection *connection)
{
    struct kv_parking *parking = stream->parking;
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    int bytes = SOCKET_BYTES;
    stream->connection = connection;
    stream->fd = info == NULL ? -1 : info->connect_fd;
    if (stream->fd >= 0) { /* without it the kernel would keep megabytes for one who does not read */
        setsockopt(stream->fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    }
    struct MHD_Response *response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_BYTES, read_stream, stream, NULL);
    if (response == NULL) {
        return NULL;
    }
    kv_reaper_stream(parking->httpd->reaper, connection);
    pthread_mutex_lock(&parking->mutex);
    stream->listed = true;
    LIST_INSERT_HEAD(&parking->streams, stream, link);
    if (parking->draining) {
        end_with(stream, END_SHUTDOWN);
    }
    pthread_mutex_unlock(&parking->mutex);
    return response;
}

void kv_stream_free(struct kv_stream *stream)
{
    if (stream == NULL) {
        return;
    }
    pthread_mutex_lock(&stream->parking->mutex);
    if (stream->listed) {
        LIST_REMOVE(stream, link);
    }
    stream->parking->stream_count--;
    pthread_mutex_unlock(&stream->parking->mutex);
    kv_buf_done(&stream->out);
    kv_free(stream);
}
