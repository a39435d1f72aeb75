/*
 * Handing a descriptor to the server: one byte 'F' with the descriptor attached, one line back. The server asks the
 * kernel who sent it; the engine registered under this process id is the only one that can use the token.
 */
#include "api/clients/c/kvrun_int.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define LINE_BYTES_MAX 128

static bool connect_to(const char *path, unsigned timeout_ms, int *ret_socket, struct kvrun_error *error)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return kvrun_fail(error, "system", "socket: %s", strerror(errno));
    }
    struct timeval patience = {.tv_sec = timeout_ms / 1000, .tv_usec = (timeout_ms % 1000) * 1000};
    if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)) != 0 ||
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience)) != 0 ||
        connect(fd, (const struct sockaddr *)&address, sizeof(address)) != 0) {
        kvrun_fail(error, "transport", "descriptor socket: %s", strerror(errno));
        error->retryable = true;
        close(fd);
        return false;
    }
    *ret_socket = fd;
    return true;
}

static bool send_descriptor(int socket_fd, int fd, struct kvrun_error *error)
{
    char kind = 'F';
    struct iovec part = {.iov_base = &kind, .iov_len = 1};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    memset(&control, 0, sizeof(control));
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &fd, sizeof(int));
    if (sendmsg(socket_fd, &message, MSG_NOSIGNAL) != 1) {
        return kvrun_fail(error, "transport", "the descriptor cannot be sent: %s", strerror(errno));
    }
    return true;
}

static bool read_line(int socket_fd, char line[LINE_BYTES_MAX], struct kvrun_error *error)
{
    size_t len = 0;
    while (len + 1 < LINE_BYTES_MAX) {
        ssize_t got = read(socket_fd, line + len, LINE_BYTES_MAX - 1 - len);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return kvrun_fail(error, "transport", "the descriptor socket closed without an answer");
        }
        len += (size_t)got;
        char *end = memchr(line, '\n', len);
        if (end != NULL) {
            *end = '\0';
            return true;
        }
    }
    return kvrun_fail(error, "protocol", "the descriptor socket's answer is too long");
}

static bool take_token(const char *line, char ret_token[KVRUN_TOKEN_SIZE], struct kvrun_error *error)
{
    static const char refusal[] = "error ";
    if (strncmp(line, refusal, sizeof(refusal) - 1) == 0) {
        return kvrun_fail(error, line + sizeof(refusal) - 1, "the server refused the descriptor");
    }
    if (strncmp(line, "tok_", 4) != 0 || strlen(line) >= KVRUN_TOKEN_SIZE) {
        return kvrun_fail(error, "protocol", "the descriptor socket's answer is not a token");
    }
    memcpy(ret_token, line, strlen(line) + 1);
    return true;
}

bool kvrun_hand_over(const struct kvrun_client *client, int fd, char ret_token[KVRUN_TOKEN_SIZE],
                     struct kvrun_error *error)
{
    int socket_fd = -1;
    if (!connect_to(client->fd_socket_path, client->control_timeout_ms, &socket_fd, error)) {
        return false;
    }
    char line[LINE_BYTES_MAX];
    bool fine = send_descriptor(socket_fd, fd, error) && read_line(socket_fd, line, error) &&
                take_token(line, ret_token, error);
    close(socket_fd);
    return fine;
}
