/*
 * One event a line, and whole lines a write(2), so that lines of several threads never mix. Never allocates, never
 * fails its caller, never logs a type that is not listed in log.h.
 */
#include "dataplane/base/log.h"

#include "dataplane/base/check.h"
#include "dataplane/base/env.h"
#include "dataplane/base/id.h"
#include "dataplane/base/text_int.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LINE_SIZE 4096
#define TEXT_MAX 256
#define LEVELS 4
/* The end of every line: room for the longer one is kept free. */
#define TAIL_CUT ",\"truncated\":true}\n"
#define TAIL_CUT_LOGFMT " truncated=true\n"

/* Settings and tallies, each a word of its own that orders no other memory: relaxed everywhere in this file. They are
 * global because a failed assertion, too, has to find the log. */
static _Atomic int min_level = KV_LOG_INFO, line_format = KV_LOG_JSON;
static _Atomic int log_fd = STDERR_FILENO;
static _Atomic uint64_t counts[LEVELS];

static const char *const level_names[LEVELS] = {"debug", "info", "warn", "error"};

/* Levels for a while. The count says without the lock that there are none. */
static pthread_mutex_t override_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct kv_log_override overrides[KV_LOG_OVERRIDES];
static _Atomic unsigned override_count;

struct line {
    char text[LINE_SIZE];
    size_t len;
    bool logfmt;
    bool full; /* something did not fit; nothing more is added */
};

/* Lines of kv_log_often that wait for each other: together no longer than one line, because a pipe takes no more in one
 * piece. The length says without the lock that there are none. */
static pthread_mutex_t waiting_mutex = PTHREAD_MUTEX_INITIALIZER;
static char waiting[LINE_SIZE];
static _Atomic size_t waiting_len;
static uint64_t often_us; /* when the last one came; under the mutex */

static void put(struct line *line, const char *data, size_t len)
{
    if (line->full || len > LINE_SIZE - sizeof(TAIL_CUT) - line->len) {
        line->full = true;
        return;
    }
    memcpy(line->text + line->len, data, len);
    line->len += len;
}

static void put_text(struct line *line, const char *text)
{
    put(line, text, strlen(text));
}

/* logfmt leaves the quotes away where nothing needs them. */
static bool is_plain(const char *text)
{
    return text[0] != '\0' && text[strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
                                                "_-.:/{}@+,")] == '\0';
}

static void put_string(struct line *line, const char *text)
{
    const char *quote = line->logfmt && is_plain(text) ? "" : "\"";
    put_text(line, quote);
    /* A look past the limit, so that a character across it is seen whole and left out, not taken for broken. */
    struct kv_bytes rest = KV_BYTES(text, strnlen(text, TEXT_MAX + 4));
    size_t used = 0;
    while (rest.len > 0) {
        char unit[KV_JSON_UNIT_SIZE];
        const char *out = (const char *)rest.data;
        size_t taken = kv_json_plain(rest), room = TEXT_MAX - used;
        taken = taken < room ? taken : room;
        size_t len = taken;
        if (taken == 0) {
            out = unit;
            len = kv_json_unit(rest, unit, &taken);
        }
        if (taken > room) {
            break;
        }
        used += taken;
        put(line, out, len);
        rest = KV_BYTES(rest.data + taken, rest.len - taken);
    }
    put_text(line, quote);
}

static void put_number(struct line *line, const struct kv_log_field *field)
{
    bool negative = field->kind == KV_LF_I64 && field->i < 0;
    uint64_t number = negative ? -(uint64_t)field->i : field->kind == KV_LF_I64 ? (uint64_t)field->i : field->u;
    char digits[KV_DIGITS_SIZE];
    put_text(line, negative ? "-" : "");
    put(line, digits, kv_digits(number, digits));
}

static void put_id(struct line *line, const struct kv_log_field *field)
{
    char text[KV_ID_TEXT_SIZE];
    kv_id_text(field->text, field->id, text);
    put_string(line, text);
}

static void put_value(struct line *line, const struct kv_log_field *field)
{
    switch (field->kind) {
    case KV_LF_U64:
    case KV_LF_I64:
        put_number(line, field);
        return;
    case KV_LF_TEXT:
        if (field->text != NULL) {
            put_string(line, field->text);
            return;
        }
        break;
    case KV_LF_ID:
        if (field->id != NULL) {
            put_id(line, field);
            return;
        }
        break;
    case KV_LF_RC:
        put_string(line, kv_err_name((enum kv_err)field->u));
        return;
    case KV_LF_BOOL:
        put_text(line, field->u != 0 ? "true" : "false");
        return;
    case KV_LF_END:
        break;
    }
    put_text(line, "null");
}

/* A field is added whole or not at all. */
static void put_field(struct line *line, const struct kv_log_field *field)
{
    size_t before = line->len;
    put_text(line, line->logfmt ? " " : ",");
    put_string(line, field->name);
    put_text(line, line->logfmt ? "=" : ":");
    put_value(line, field);
    if (line->full) {
        line->len = before;
    }
}

static void put_head(struct line *line, enum kv_log_level level, uint64_t now_us)
{
    char ts[28];
    kv_time_text(now_us, ts);
    put_text(line, line->logfmt ? "ts=" : "{\"ts\":");
    put_string(line, ts);
    put_text(line, line->logfmt ? " level=" : ",\"level\":");
    put_string(line, level_names[level]);
}

static void finish(struct line *line)
{
    const char *tail = line->logfmt ? (line->full ? TAIL_CUT_LOGFMT : "\n") : line->full ? TAIL_CUT : "}\n";
    size_t len = strlen(tail);
    KV_ASSERT(line->len + len <= LINE_SIZE);
    memcpy(line->text + line->len, tail, len);
    line->len += len;
}

/* A log that cannot be written is no reason to fail what is logged. A signal before the first byte is the one case that
 * is tried again, and a second write for the rest of a cut line could land in another thread's line. */
static void send_line(const struct line *line)
{
    int fd = atomic_load_explicit(&log_fd, memory_order_relaxed);
    int saved_errno = errno;
    for (int attempt = 0; attempt < 3; attempt++) {
        if (write(fd, line->text, line->len) >= 0 || errno != EINTR) {
            break;
        }
    }
    errno = saved_errno;
}

/* Under the mutex: what waits goes into `ret_lines`. */
static void take_waiting(struct line *ret_lines)
{
    ret_lines->len = atomic_load_explicit(&waiting_len, memory_order_relaxed);
    memcpy(ret_lines->text, waiting, ret_lines->len);
    atomic_store_explicit(&waiting_len, 0, memory_order_relaxed);
}

void kv_log_flush(void)
{
    struct line lines;
    if (atomic_load_explicit(&waiting_len, memory_order_relaxed) == 0) {
        return;
    }
    pthread_mutex_lock(&waiting_mutex);
    take_waiting(&lines);
    pthread_mutex_unlock(&waiting_mutex);
    if (lines.len > 0) { /* else another thread was quicker */
        send_line(&lines);
    }
}

/* False: the line comes after a pause, and the caller writes it. */
static bool wait_for_more(const struct line *line, uint64_t now_us)
{
    struct line out;
    out.len = 0;
    pthread_mutex_lock(&waiting_mutex);
    bool waits = now_us - often_us < KV_LOG_PAUSE_US; /* a clock that went back is a pause, too */
    size_t len = atomic_load_explicit(&waiting_len, memory_order_relaxed);
    often_us = now_us;
    if (waits && len + line->len > sizeof waiting) {
        take_waiting(&out);
        len = 0;
    }
    if (waits) {
        memcpy(waiting + len, line->text, line->len);
        atomic_store_explicit(&waiting_len, len + line->len, memory_order_relaxed);
    }
    pthread_mutex_unlock(&waiting_mutex);
    if (out.len > 0) {
        send_line(&out);
    }
    return waits;
}

static uint64_t boottime(void)
{
    return kv_env_system.boottime_ns(kv_env_system.ctx);
}

/* Under the lock: forgets what is over. */
static void expire(uint64_t now)
{
    unsigned kept = 0;
    for (unsigned i = 0; i < atomic_load_explicit(&override_count, memory_order_relaxed); i++) {
        if (overrides[i].until_ns > now) {
            overrides[kept++] = overrides[i];
        }
    }
    atomic_store_explicit(&override_count, kept, memory_order_relaxed);
}

/* A module's own override counts before one for all. Whoever cannot have the lock at once goes by the usual level: a
 * log never waits. */
static enum kv_log_level level_of(const char *module)
{
    enum kv_log_level level = kv_log_level();
    if (atomic_load_explicit(&override_count, memory_order_relaxed) == 0 ||
        pthread_mutex_trylock(&override_mutex) != 0) {
        return level;
    }
    expire(boottime());
    bool own = false;
    for (unsigned i = 0; i < atomic_load_explicit(&override_count, memory_order_relaxed) && !own; i++) {
        own = strcmp(overrides[i].module, module) == 0;
        level = own || overrides[i].module[0] == '\0' ? overrides[i].level : level;
    }
    pthread_mutex_unlock(&override_mutex);
    return level;
}

static KV_RC add_override(const char *module, enum kv_log_level level, uint64_t until_ns)
{
    unsigned count = atomic_load_explicit(&override_count, memory_order_relaxed), at = 0;
    while (at < count && strcmp(overrides[at].module, module) != 0) {
        at++;
    }
    if (at == KV_LOG_OVERRIDES) {
        return KV_E_LIMIT;
    }
    overrides[at].level = level;
    overrides[at].until_ns = until_ns;
    snprintf(overrides[at].module, sizeof overrides[at].module, "%s", module);
    if (at == count) {
        atomic_store_explicit(&override_count, count + 1, memory_order_relaxed);
    }
    return KV_OK;
}

enum kv_err kv_log_override(const char *module, enum kv_log_level level, uint32_t seconds)
{
    uint64_t now = boottime();
    kv_log_flush(); /* what was logged under the level before comes before what is logged under this one */
    pthread_mutex_lock(&override_mutex);
    expire(now);
    enum kv_err rc = add_override(module, level, now + seconds * KV_S_NS);
    expire(now); /* of none seconds it is over at once */
    pthread_mutex_unlock(&override_mutex);
    return rc;
}

size_t kv_log_overrides(struct kv_log_override ret_list[KV_LOG_OVERRIDES])
{
    pthread_mutex_lock(&override_mutex);
    expire(boottime());
    size_t count = atomic_load_explicit(&override_count, memory_order_relaxed);
    memcpy(ret_list, overrides, count * sizeof overrides[0]);
    pthread_mutex_unlock(&override_mutex);
    return count;
}

enum kv_log_level kv_log_level(void)
{
    return (enum kv_log_level)atomic_load_explicit(&min_level, memory_order_relaxed);
}

const char *kv_log_level_name(enum kv_log_level level)
{
    KV_ASSERT((int)level >= 0 && (int)level < LEVELS);
    return level_names[level];
}

/* Is it logged at all? Then it counts. */
static bool is_due(enum kv_log_level level, const char *module)
{
    if (level < level_of(module)) {
        return false;
    }
    atomic_fetch_add_explicit(&counts[level], 1, memory_order_relaxed);
    return true;
}

static void make_line(struct line *line, const struct kv_log_event *event, uint64_t now_us)
{
    line->len = 0;
    line->logfmt = atomic_load_explicit(&line_format, memory_order_relaxed) == KV_LOG_LOGFMT;
    line->full = false;
    put_head(line, event->level, now_us);
    put_field(line, &KV_FT("module", event->module));
    put_field(line, &KV_FT("event", event->name));
    for (const struct kv_log_field *field = event->fields; field->kind != KV_LF_END; field++) {
        put_field(line, field);
    }
    finish(line);
}

void kv_log_write(const struct kv_log_event *event)
{
    bool known = (int)event->level >= 0 && (int)event->level < LEVELS;
    struct kv_log_event as = *event;
    as.level = known ? event->level : KV_LOG_ERROR;
    if (!is_due(as.level, as.module)) {
        return;
    }
    struct line line;
    uint64_t now_us = kv_env_system.realtime_us(kv_env_system.ctx);
    make_line(&line, &as, now_us);
    if (as.often && as.level < KV_LOG_WARN && wait_for_more(&line, now_us)) {
        return;
    }
    kv_log_flush();
    send_line(&line);
}

void kv_log_set_format(enum kv_log_format format)
{
    atomic_store_explicit(&line_format, (int)format, memory_order_relaxed);
}

void kv_log_set_level(enum kv_log_level level)
{
    kv_log_flush();
    atomic_store_explicit(&min_level, (int)level, memory_order_relaxed);
}

enum kv_err kv_log_parse_level(const char *text, enum kv_log_level *ret_level)
{
    for (int i = 0; i < LEVELS; i++) {
        if (strcmp(text, level_names[i]) == 0) {
            *ret_level = (enum kv_log_level)i;
            return KV_OK;
        }
    }
    return KV_E_INVALID_REQUEST;
}

void kv_log_set_fd(int fd)
{
    kv_log_flush();
    atomic_store_explicit(&log_fd, fd, memory_order_relaxed);
}

uint64_t kv_log_count(enum kv_log_level level)
{
    KV_ASSERT((int)level >= 0 && (int)level < LEVELS);
    return atomic_load_explicit(&counts[level], memory_order_relaxed);
}
