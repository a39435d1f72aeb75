/* Speaks to the service manager: see serve_notify.h and sd_notify(3). Must never wait for it. */
#include "server/serve_notify.h"

#include "dataplane/base/env.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* "/path", or "@name" in the abstract namespace. */
static bool parse_address(const char *text, struct serve_notify *notify)
{
    size_t len = text == NULL ? 0 : strlen(text);
    if (len < 2 || len >= sizeof notify->at.sun_path || (text[0] != '/' && text[0] != '@')) {
        return false;
    }
    notify->at.sun_family = AF_UNIX;
    memcpy(notify->at.sun_path, text, len);
    if (text[0] == '@') {
        notify->at.sun_path[0] = '\0';
    }
    notify->at_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
    return true;
}

static uint64_t watchdog_period_ns(void)
{
    const char *us = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
    if (us == NULL || (pid != NULL && strtol(pid, NULL, 10) != getpid())) {
        return 0;
    }
    return strtoull(us, NULL, 10) * 1000;
}

void serve_notify_open(struct serve_notify *ret_notify)
{
    *ret_notify = (struct serve_notify){.fd = -1};
    if (parse_address(getenv("NOTIFY_SOCKET"), ret_notify)) {
        ret_notify->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        ret_notify->watchdog_ns = watchdog_period_ns();
    }
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
}

void serve_notify_close(struct serve_notify *notify)
{
    if (notify->fd >= 0) {
        close(notify->fd);
    }
    notify->fd = -1;
}

void serve_notify_send(const struct serve_notify *notify, const char *format, ...)
{
    char text[512];
    va_list arguments;
    if (notify->fd < 0) {
        return;
    }
    va_start(arguments, format);
    int len = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (len > 0 && len < (int)sizeof text) {
        ssize_t sent =
            sendto(notify->fd, text, (size_t)len, MSG_NOSIGNAL, (const struct sockaddr *)&notify->at, notify->at_len);
        (void)sent; /* see the header */
    }
}

void serve_notify_reloading(const struct serve_notify *notify)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    serve_notify_send(notify, "RELOADING=1\nMONOTONIC_USEC=%" PRIu64,
                      (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000);
}

void serve_notify_alive(struct serve_notify *notify, uint64_t now_ns, bool alive)
{
    if (notify->watchdog_ns > 0 && alive && now_ns >= notify->watchdog_next_ns) {
        serve_notify_send(notify, "WATCHDOG=1");
        notify->watchdog_next_ns = now_ns + notify->watchdog_ns / 2;
    }
}
