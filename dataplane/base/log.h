/*
 * Structured log: one line an event on stderr, a JSON object or key=value pairs. Events are fixed strings that can be
 * grepped, values are typed fields. There is no field for a secret, a prompt or block bytes. Thread: any.
 */
#ifndef KV_BASE_LOG_H
#define KV_BASE_LOG_H

#include "dataplane/base/err.h"

enum kv_log_level { KV_LOG_DEBUG, KV_LOG_INFO, KV_LOG_WARN, KV_LOG_ERROR };

enum kv_log_kind { KV_LF_END = 0, KV_LF_U64, KV_LF_I64, KV_LF_TEXT, KV_LF_ID, KV_LF_RC, KV_LF_BOOL };

struct kv_log_field {
    const char *name;
    enum kv_log_kind kind;
    uint64_t u;
    int64_t i;
    const char *text; /* borrowed for the call; escaped; cut at 256 bytes */
    const struct kv_id *id;
};

#define KV_FU(n, v) ((struct kv_log_field){.name = (n), .kind = KV_LF_U64, .u = (uint64_t)(v)})
#define KV_FI(n, v) ((struct kv_log_field){.name = (n), .kind = KV_LF_I64, .i = (int64_t)(v)})
#define KV_FT(n, v) ((struct kv_log_field){.name = (n), .kind = KV_LF_TEXT, .text = (v)})
/* `prefix` is the id's type: KV_FID("session", "ses", &id). */
#define KV_FID(n, prefix, v) ((struct kv_log_field){.name = (n), .kind = KV_LF_ID, .text = (prefix), .id = (v)})
#define KV_FRC(v) ((struct kv_log_field){.name = "rc", .kind = KV_LF_RC, .u = (uint64_t)(v)})
#define KV_FB(n, v) ((struct kv_log_field){.name = (n), .kind = KV_LF_BOOL, .u = (v) ? 1 : 0})

struct kv_log_event {
    enum kv_log_level level;
    bool often;
    const char *module, *name;
    const struct kv_log_field *fields; /* ended by KV_LF_END */
};

/* kv_log(KV_LOG_INFO, "http", "listening", KV_FU("port", 7433)); fields are optional. */
#define kv_log(level_, module_, event_, ...)   \
    kv_log_write(&(const struct kv_log_event){ \
        .level = (level_),                     \
        .module = (module_),                   \
        .name = (event_),                      \
        .fields = (const struct kv_log_field[]){__VA_ARGS__ __VA_OPT__(, ){.kind = KV_LF_END}}})

/* The same for what comes many times a second: a line below warn that follows another of its kind within
 * KV_LOG_PAUSE_US waits in memory until 4,096 bytes of them are together, another kv_log writes, or kv_log_flush is
 * called. Whoever uses it sees to it that something flushes, twice a second or so; what waits is lost with the process
 * when that is killed. */
#define kv_log_often(level_, module_, event_, ...) \
    kv_log_write(&(const struct kv_log_event){     \
        .level = (level_),                         \
        .often = true,                             \
        .module = (module_),                       \
        .name = (event_),                          \
        .fields = (const struct kv_log_field[]){__VA_ARGS__ __VA_OPT__(, ){.kind = KV_LF_END}}})
#define KV_LOG_PAUSE_US UINT64_C(10000)

void kv_log_write(const struct kv_log_event *event);
void kv_log_flush(void); /* Thread: any; not from a signal's handler */
enum kv_log_format { KV_LOG_JSON, KV_LOG_LOGFMT };
void kv_log_set_format(enum kv_log_format format);
void kv_log_set_level(enum kv_log_level level);
KV_RC kv_log_parse_level(const char *text, enum kv_log_level *ret_level);
enum kv_log_level kv_log_level(void); /* as it was set; overrides apart */
const char *kv_log_level_name(enum kv_log_level level);

/* Another level for one module, or with "" for all, for some seconds; 0 ends it. It replaces an earlier one of the same
 * module and reverts by itself. KV_E_LIMIT: KV_LOG_OVERRIDES run already. */
#define KV_LOG_OVERRIDES 16
struct kv_log_override {
    char module[32];
    enum kv_log_level level;
    uint64_t until_ns; /* CLOCK_BOOTTIME */
};
KV_RC kv_log_override(const char *module, enum kv_log_level level, uint32_t seconds);
size_t kv_log_overrides(struct kv_log_override ret_list[KV_LOG_OVERRIDES]); /* those that run */

void kv_log_set_fd(int fd); /* default 2 */
uint64_t kv_log_count(enum kv_log_level level);

#endif
