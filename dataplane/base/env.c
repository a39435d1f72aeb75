/*
 * The system's clocks and random source, as one filling of struct kv_env. Never falls back to a weaker random source.
 */
#include "dataplane/base/env.h"

#include "dataplane/base/check.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec now;
    KV_ASSERT(clock_gettime(clock, &now) == 0);
    return (uint64_t)now.tv_sec * KV_S_NS + (uint64_t)now.tv_nsec;
}

static uint64_t system_monotonic_ns(void *ctx)
{
    (void)ctx;
    return clock_ns(CLOCK_MONOTONIC);
}

static uint64_t system_boottime_ns(void *ctx)
{
    (void)ctx;
    return clock_ns(CLOCK_BOOTTIME);
}

static uint64_t system_realtime_us(void *ctx)
{
    (void)ctx;
    return clock_ns(CLOCK_REALTIME) / 1000;
}

static enum kv_err system_random(void *ctx, void *target, size_t len)
{
    (void)ctx;
    uint8_t *p = target;
    while (len > 0) {
        ssize_t got = getrandom(p, len, 0);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return KV_E_INTERNAL;
        }
        p += got;
        len -= (size_t)got;
    }
    return KV_OK;
}

const struct kv_env kv_env_system = {
    .ctx = NULL,
    .monotonic_ns = system_monotonic_ns,
    .boottime_ns = system_boottime_ns,
    .realtime_us = system_realtime_us,
    .random = system_random,
};

/* Over the zeroes of the pattern that ends at `end`. */
static void put_digits(char *end, unsigned number)
{
    for (; number > 0; number /= 10) {
        *--end = (char)('0' + number % 10);
    }
}

void kv_time_text(uint64_t realtime_us, char text[28])
{
    /* The last microsecond of the year 9999: a later time has no RFC 3339 spelling, and no room here. */
    const uint64_t last_us = UINT64_C(253402300799999999);
    uint64_t us = realtime_us < last_us ? realtime_us : last_us;
    time_t seconds = (time_t)(us / 1000000);
    struct tm tm;
    KV_ASSERT(gmtime_r(&seconds, &tm) != NULL);
    memcpy(text, "0000-00-00T00:00:00.000000Z", 28);
    put_digits(text + 4, (unsigned)tm.tm_year + 1900);
    put_digits(text + 7, (unsigned)tm.tm_mon + 1);
    put_digits(text + 10, (unsigned)tm.tm_mday);
    put_digits(text + 13, (unsigned)tm.tm_hour);
    put_digits(text + 16, (unsigned)tm.tm_min);
    put_digits(text + 19, (unsigned)tm.tm_sec);
    put_digits(text + 26, (unsigned)(us % 1000000));
}

/* `len` digits at `p`; -1 when they are not. */
static int digits(const char *p, int len)
{
    int number = 0;
    for (int i = 0; i < len; i++) {
        if (p[i] < '0' || p[i] > '9') {
            return -1;
        }
        number = number * 10 + (p[i] - '0');
    }
    return number;
}

/* ".d" to ".dddddd" at `p`, or nothing. -1 when it is neither; *ret_end is behind it. */
static int micros(const char *p, const char **ret_end)
{
    int number = 0, len = 0;
    if (*p == '.') {
        for (p++; *p >= '0' && *p <= '9' && len < 7; p++, len++) {
            number = number * 10 + (*p - '0');
        }
        if (len == 0 || len > 6) {
            return -1;
        }
    }
    for (; len < 6; len++) {
        number *= 10;
    }
    *ret_end = p;
    return number;
}

KV_RC kv_time_parse(const char *text, uint64_t *ret_realtime_us)
{
    if (strnlen(text, 20) < 20 || text[4] != '-' || text[7] != '-' || text[10] != 'T' || text[13] != ':' ||
        text[16] != ':') {
        return KV_E_INVALID_REQUEST;
    }
    struct tm tm = {.tm_year = digits(text, 4) - 1900,
                    .tm_mon = digits(text + 5, 2) - 1,
                    .tm_mday = digits(text + 8, 2),
                    .tm_hour = digits(text + 11, 2),
                    .tm_min = digits(text + 14, 2),
                    .tm_sec = digits(text + 17, 2)};
    struct tm asked = tm;
    const char *end = text;
    int us = micros(text + 19, &end);
    time_t seconds = timegm(&tm); /* moves what is out of range into the next unit, and so it shows */
    if (us < 0 || strcmp(end, "Z") != 0 || asked.tm_year < 70 || asked.tm_hour < 0 || asked.tm_min < 0 ||
        asked.tm_sec < 0 || tm.tm_mon != asked.tm_mon || tm.tm_mday != asked.tm_mday || tm.tm_hour != asked.tm_hour ||
        tm.tm_min != asked.tm_min || tm.tm_sec != asked.tm_sec) {
        return KV_E_INVALID_REQUEST;
    }
    *ret_realtime_us = (uint64_t)seconds * 1000000 + (uint64_t)us;
    return KV_OK;
}
