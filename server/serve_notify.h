/*
 * What the service manager is told: the sd_notify protocol, one datagram of "KEY=value" lines. Without NOTIFY_SOCKET in
 * the environment everything here does nothing. A message that cannot be sent is lost: the manager must not be able to
 * hold the server up. Thread: main.
 */
#ifndef KV_SERVE_NOTIFY_H
#define KV_SERVE_NOTIFY_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

struct serve_notify {
    int fd; /* -1: nobody listens */
    struct sockaddr_un at;
    socklen_t at_len;
    uint64_t watchdog_ns; /* how often the manager wants a sign of life, at least; 0: not at all */
    uint64_t watchdog_next_ns;
};

/* Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID and takes them out of the environment: children are not the
 * service. */
void serve_notify_open(struct serve_notify *ret_notify);
void serve_notify_close(struct serve_notify *notify);
void serve_notify_send(const struct serve_notify *notify, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* RELOADING=1 with the time that systemd wants beside it; READY=1 ends it. */
void serve_notify_reloading(const struct serve_notify *notify);
/* WATCHDOG=1 at half of the period that the manager asked for, as long as `alive`. */
void serve_notify_alive(struct serve_notify *notify, uint64_t now_ns, bool alive);

#endif
