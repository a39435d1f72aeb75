/*
 * The side socket through which an engine hands over the descriptor of its pool: HTTP cannot carry one. One connection,
 * one byte with one descriptor (SCM_RIGHTS), one line back: a token that the pool's registration names. The kernel
 * vouches for the sender's pid. Bounded: a connection has two seconds, and anything unexpected closes it with every
 * descriptor that came along.
 */
#include "server/service/svc_int.h"

#include "dataplane/base/log.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define CONTROL_FDS 4 /* room for more than the one we take, so that all of a hostile message can be closed */

static void close_all(const int *fds, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        close(fds[i]);
    }
}

/* The one descriptor of the message, or -1 with everything closed. */
static int receive_fd(int connection)
{
    char byte = 0;
    union {
        char bytes[CMSG_SPACE(sizeof(int) * CONTROL_FDS)];
        struct cmsghdr align;
    } control;
    struct iovec iov = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    ssize_t n = recvmsg(connection, &message, MSG_CMSG_CLOEXEC);
    if (n < 0) {
        return -1;
    }
    int fds[CONTROL_FDS];
    size_t count = 0;
    for (struct cmsghdr *part = CMSG_FIRSTHDR(&message); part != NULL; part = CMSG_NXTHDR(&message, part)) {
        if (part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_RIGHTS) {
            count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
            memcpy(fds, CMSG_DATA(part), count * sizeof(int));
        }
    }
    if (n != 1 || byte != 'F' || count != 1 || (message.msg_flags & MSG_CTRUNC) != 0) {
        close_all(fds, count);
        return -1;
    }
    return fds[0];
}

static KV_RC offer(struct kv_svc *svc, int connection, char token[48])
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
        return KV_E_IO;
    }
    int fd = receive_fd(connection);
    if (fd < 0) {
        return KV_E_INVALID_REQUEST;
    }
    enum kv_err rc = kv_svc_fd_offer(svc, fd, peer.pid, token);
    if (rc != KV_OK) {
        close(fd);
    }
    return rc;
}

static void serve(struct kv_svc *svc, int connection)
{
    char token[48] = "", line[64];
    struct timeval limit = {.tv_sec = 2};
    setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    enum kv_err rc = offer(svc, connection, token);
    int len = rc == KV_OK ? snprintf(line, sizeof line, "%s\n", token)
                          : snprintf(line, sizeof line, "error %s\n", kv_err_name(rc));
    if (send(connection, line, (size_t)len, MSG_NOSIGNAL) != len) {
        kv_log(KV_LOG_DEBUG, "fd-socket", "peer-gone");
    }
}

KV_RC svc_fd_socket_open(struct kv_svc *svc, struct kv_errinfo *info)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (svc->conf.fd_socket == NULL) {
        return KV_OK;
    }
    if (strlen(svc->conf.fd_socket) >= sizeof address.sun_path) {
        return kv_fail(info, KV_E_CONFIG,
                       "the engine socket's path is over %zu bytes; set http.socket to a shorter one",
                       sizeof address.sun_path - 1);
    }
    strncpy(address.sun_path, svc->conf.fd_socket, sizeof address.sun_path - 1);
    unlink(svc->conf.fd_socket);
    svc->fd_stop = eventfd(0, EFD_CLOEXEC);
    svc->fd_listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (svc->fd_listener < 0 || svc->fd_stop < 0 ||
        bind(svc->fd_listener, (struct sockaddr *)&address, sizeof address) != 0 ||
        chmod(svc->conf.fd_socket, 0660) != 0 || listen(svc->fd_listener, 16) != 0) {
        return kv_fail(info, KV_E_IO, "cannot listen on the descriptor socket: %s", strerror(errno));
    }
    return KV_OK;
}

void *svc_fd_socket_main(void *arg)
{
    struct kv_svc *svc = arg;
    struct pollfd fds[2] = {{.fd = svc->fd_listener, .events = POLLIN}, {.fd = svc->fd_stop, .events = POLLIN}};
    while (svc->fd_listener >= 0 && (poll(fds, 2, -1) >= 0 || errno == EINTR)) {
        if (fds[1].revents != 0) {
            break;
        }
        int connection = fds[0].revents == 0 ? -1 : accept4(svc->fd_listener, NULL, NULL, SOCK_CLOEXEC);
        if (connection >= 0) {
            serve(svc, connection);
            close(connection);
        } else if (fds[0].revents != 0) {
            (void)poll(&fds[1], 1, 50); /* without descriptors the listener stays readable: no spinning */
        }
    }
    return NULL;
}

void svc_fd_socket_close(struct kv_svc *svc)
{
    if (svc->fd_stop < 0) {
        return;
    }
    uint64_t one = 1;
    if (write(svc->fd_stop, &one, sizeof one) != (ssize_t)sizeof one) {
        kv_log(KV_LOG_WARN, "fd-socket", "stop-failed");
    }
    if (svc->fd_socket.started) {
        pthread_join(svc->fd_socket.thread, NULL);
        svc->fd_socket.started = false;
    }
    close(svc->fd_listener);
    close(svc->fd_stop);
    unlink(svc->conf.fd_socket);
    svc->fd_listener = svc->fd_stop = -1;
}
