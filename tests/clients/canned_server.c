/* One thread, one connection at a time, closed after its answer. It knows just enough HTTP for a client that behaves.
 */
#include "tests/clients/canned_server.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define REQUEST_BYTES_MAX ((size_t)1 << 20)
#define ANSWERS_MAX 64u
#define STATUS_RAW 0
#define STATUS_SILENCE (-1)

struct canned_server {
    struct sockaddr_un address;
    int listener;
    pthread_t thread;
    pthread_mutex_t lock;
    struct {
        int status;
        char *body; /* owned */
    } answers[ANSWERS_MAX];
    unsigned answer_count, request_count;
    const char *beat;        /* NULL: as any other request */
    int silent[ANSWERS_MAX]; /* connections that get no answer */
    unsigned silent_count;
    char request[REQUEST_BYTES_MAX];
    const char *line;
    bool plays_descriptors;
    int descriptor;
};

static void fatal(const char *what)
{
    perror(what);
    abort();
}

static void write_all(int fd, const char *data, size_t len)
{
    while (len > 0) {
        ssize_t done = send(fd, data, len, MSG_NOSIGNAL);
        if (done <= 0) {
            return; /* The client went away: it will say so itself. */
        }
        data += done;
        len -= (size_t)done;
    }
}

static bool request_complete(const char *request, size_t len)
{
    const char *end = strstr(request, "\r\n\r\n");
    if (end == NULL) {
        return false;
    }
    const char *length = strcasestr(request, "\r\ncontent-length:");
    size_t body = length != NULL && length < end ? strtoul(length + 17, NULL, 10) : 0;
    return len >= (size_t)(end + 4 - request) + body;
}

static bool read_request(int fd, char *request)
{
    size_t len = 0;
    request[0] = '\0';
    while (!request_complete(request, len)) {
        ssize_t got = read(fd, request + len, REQUEST_BYTES_MAX - 1 - len);
        if (got <= 0) {
            return false;
        }
        len += (size_t)got;
        request[len] = '\0';
    }
    return true;
}

/* False: the connection stays open. */
static bool serve_http(struct canned_server *server, int fd)
{
    static char request[REQUEST_BYTES_MAX];
    char head[256];
    if (!read_request(fd, request)) {
        return true;
    }
    pthread_mutex_lock(&server->lock);
    memcpy(server->request, request, strlen(request) + 1);
    unsigned at = server->request_count < server->answer_count ? server->request_count : server->answer_count - 1;
    int status = server->answers[at].status;
    const char *body = server->answers[at].body;
    if (server->beat != NULL && strstr(request, ":heartbeat HTTP") != NULL) {
        status = 200;
        body = server->beat;
    } else {
        server->request_count++;
    }
    bool silent = status == STATUS_SILENCE && server->silent_count < ANSWERS_MAX;
    if (silent) {
        server->silent[server->silent_count++] = fd;
    }
    pthread_mutex_unlock(&server->lock);
    if (silent) {
        return false;
    }
    if (status == STATUS_RAW) {
        write_all(fd, body, strlen(body));
        return true;
    }
    snprintf(head, sizeof(head), "HTTP/1.1 %d X\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n", status,
             strlen(body));
    write_all(fd, head, strlen(head));
    write_all(fd, body, strlen(body));
    return true;
}

static int receive_descriptor(int fd)
{
    char kind;
    struct iovec part = {.iov_base = &kind, .iov_len = 1};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)};
    int descriptor = -1;
    if (recvmsg(fd, &message, MSG_CMSG_CLOEXEC) == 1 && kind == 'F') {
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        if (header != NULL && header->cmsg_type == SCM_RIGHTS) {
            memcpy(&descriptor, CMSG_DATA(header), sizeof(int));
        }
    }
    return descriptor;
}

static void serve_descriptor(struct canned_server *server, int fd)
{
    int descriptor = receive_descriptor(fd);
    pthread_mutex_lock(&server->lock);
    server->descriptor = descriptor;
    const char *line = server->line;
    pthread_mutex_unlock(&server->lock);
    if (line != NULL) {
        write_all(fd, line, strlen(line) / 2);
        write_all(fd, line + strlen(line) / 2, strlen(line) - strlen(line) / 2);
    }
}

static void *serve(void *arg)
{
    struct canned_server *server = arg;
    int fd;
    while ((fd = accept(server->listener, NULL, NULL)) >= 0) {
        pthread_mutex_lock(&server->lock);
        bool descriptors = server->plays_descriptors;
        pthread_mutex_unlock(&server->lock);
        if (descriptors) {
            serve_descriptor(server, fd);
        }
        if (descriptors || serve_http(server, fd)) {
            close(fd);
        }
    }
    return NULL;
}

struct canned_server *canned_start(const char *path)
{
    struct canned_server *server = calloc(1, sizeof(*server));
    if (server == NULL) {
        fatal("calloc");
    }
    server->descriptor = -1;
    server->address.sun_family = AF_UNIX;
    snprintf(server->address.sun_path, sizeof(server->address.sun_path), "%s", path);
    pthread_mutex_init(&server->lock, NULL);
    server->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (server->listener < 0 ||
        bind(server->listener, (const struct sockaddr *)&server->address, sizeof(server->address)) != 0 ||
        listen(server->listener, 16) != 0 || pthread_create(&server->thread, NULL, serve, server) != 0) {
        fatal("canned server");
    }
    return server;
}

void canned_stop(struct canned_server *server)
{
    shutdown(server->listener, SHUT_RDWR);
    pthread_join(server->thread, NULL);
    close(server->listener);
    if (server->descriptor >= 0) {
        close(server->descriptor);
    }
    unlink(server->address.sun_path);
    for (unsigned i = 0; i < server->silent_count; i++) {
        close(server->silent[i]);
    }
    for (unsigned i = 0; i < server->answer_count; i++) {
        free(server->answers[i].body);
    }
    pthread_mutex_destroy(&server->lock);
    free(server);
}

void canned_answer(struct canned_server *server, int status, const char *body)
{
    pthread_mutex_lock(&server->lock);
    if (server->answer_count == ANSWERS_MAX) {
        fatal("too many canned answers");
    }
    server->answers[server->answer_count].status = status;
    server->answers[server->answer_count].body = strdup(body);
    server->answer_count++;
    pthread_mutex_unlock(&server->lock);
}

void canned_beat(struct canned_server *server, const char *body)
{
    pthread_mutex_lock(&server->lock);
    server->beat = body;
    pthread_mutex_unlock(&server->lock);
}

void canned_raw(struct canned_server *server, const char *bytes)
{
    canned_answer(server, STATUS_RAW, bytes);
}

void canned_silence(struct canned_server *server)
{
    canned_answer(server, STATUS_SILENCE, "");
}

void canned_line(struct canned_server *server, const char *line)
{
    pthread_mutex_lock(&server->lock);
    server->plays_descriptors = true;
    server->line = line;
    pthread_mutex_unlock(&server->lock);
}

const char *canned_request(struct canned_server *server)
{
    /* The lock is for the memory order: the request was written before its answer went out. */
    pthread_mutex_lock(&server->lock);
    const char *request = server->request;
    pthread_mutex_unlock(&server->lock);
    return request;
}

unsigned canned_request_count(struct canned_server *server)
{
    pthread_mutex_lock(&server->lock);
    unsigned count = server->request_count;
    pthread_mutex_unlock(&server->lock);
    return count;
}

int canned_descriptor(struct canned_server *server)
{
    pthread_mutex_lock(&server->lock);
    int descriptor = server->descriptor;
    pthread_mutex_unlock(&server->lock);
    return descriptor;
}
