/* See listen.h. Must never take an address that it did not understand for another one: names are not looked up. */
#include "server/http/listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define BACKLOG 511

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

static bool parse_port(const char *text, uint16_t *ret_port)
{
    size_t len = strlen(text);
    if (len == 0 || len > 5 || strspn(text, "0123456789") != len) {
        return false;
    }
    unsigned long port = strtoul(text, NULL, 10);
    *ret_port = (uint16_t)port;
    return port <= 65535;
}

static bool parse(const char *text, union address *ret_address, socklen_t *ret_size)
{
    char host[64];
    uint16_t port = 0;
    const char *colon = strrchr(text, ':');
    if (colon == NULL || (size_t)(colon - text) >= sizeof host || !parse_port(colon + 1, &port)) {
        return false;
    }
    size_t len = (size_t)(colon - text);
    memcpy(host, text, len);
    host[len] = '\0';
    *ret_address = (union address){0};
    if (len > 2 && host[0] == '[' && host[len - 1] == ']') {
        host[len - 1] = '\0';
        ret_address->v6.sin6_family = AF_INET6;
        ret_address->v6.sin6_port = htons(port);
        *ret_size = sizeof ret_address->v6;
        return inet_pton(AF_INET6, host + 1, &ret_address->v6.sin6_addr) == 1;
    }
    ret_address->v4.sin_family = AF_INET;
    ret_address->v4.sin_port = htons(port);
    *ret_size = sizeof ret_address->v4;
    return inet_pton(AF_INET, host, &ret_address->v4.sin_addr) == 1;
}

static bool is_loopback(const union address *address)
{
    return address->any.sa_family == AF_INET6 ? IN6_IS_ADDR_LOOPBACK(&address->v6.sin6_addr) != 0
                                              : ntohl(address->v4.sin_addr.s_addr) >> 24 == 127;
}

KV_RC kv_listen_tcp(const char *text, struct kv_errinfo *info, int *ret_fd, unsigned *ret_port, bool *ret_loopback)
{
    union address at;
    socklen_t size = 0;
    int one = 1;
    if (!parse(text, &at, &size)) {
        return kv_fail(info, KV_E_CONFIG, "\"%.60s\" is not an address; write 127.0.0.1:7433 or [::1]:7433", text);
    }
    int fd = socket(at.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool v6 = at.any.sa_family == AF_INET6;
    /* Only its own family: 0.0.0.0 stays free for a listener that is meant. */
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
        (v6 && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one) != 0) || bind(fd, &at.any, size) != 0 ||
        listen(fd, BACKLOG) != 0 || getsockname(fd, &at.any, &size) != 0) {
        enum kv_err rc = kv_fail(info, KV_E_CONFIG,
                                 "cannot listen on %.60s: %s; set http.listen and http.admin_listen to free ports",
                                 text, strerror(errno));
        if (fd >= 0) {
            close(fd);
        }
        return rc;
    }
    *ret_fd = fd;
    *ret_port = ntohs(v6 ? at.v6.sin6_port : at.v4.sin_port);
    *ret_loopback = is_loopback(&at);
    return KV_OK;
}

KV_RC kv_listen_unix(const char *path, unsigned mode, struct kv_errinfo *info, int *ret_fd)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof at.sun_path) {
        return kv_fail(info, KV_E_CONFIG, "the socket's path is over %zu bytes; set http.socket to a shorter one",
                       sizeof at.sun_path - 1);
    }
    strncpy(at.sun_path, path, sizeof at.sun_path - 1);
    unlink(path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof at) != 0 || chmod(path, mode) != 0 ||
        listen(fd, BACKLOG) != 0) {
        enum kv_err rc =
            kv_fail(info, KV_E_CONFIG, "cannot listen on the engine socket: %s; set http.socket to another path",
                    strerror(errno));
        if (fd >= 0) {
            close(fd);
        }
        return rc;
    }
    *ret_fd = fd;
    return KV_OK;
}

KV_RC kv_listen_uids_parse(const char *text, struct kv_errinfo *info, struct kv_listen_uids *ret_uids)
{
    struct kv_listen_uids uids = {0};
    const char *p = text == NULL ? "" : text;
    while (*p != '\0') {
        size_t digits = strspn(p, "0123456789");
        unsigned long long uid = digits == 0 || digits > 10 ? UINT64_MAX : strtoull(p, NULL, 10);
        if (uid >= UINT32_MAX || uids.count == KV_LISTEN_UIDS_MAX || (p[digits] != ',' && p[digits] != '\0') ||
            (p[digits] == ',' && p[digits + 1] == '\0')) {
            return kv_fail(info, KV_E_CONFIG, "http.socket_allow_uids: write at most %d numbers of users, as in 0,1000",
                           KV_LISTEN_UIDS_MAX);
        }
        uids.uids[uids.count++] = (uint32_t)uid;
        p += digits + (p[digits] == ',');
    }
    *ret_uids = uids;
    return KV_OK;
}

bool kv_listen_uid_ok(const struct kv_listen_uids *uids, int fd)
{
    struct ucred peer = {0};
    socklen_t size = sizeof peer;
    if (uids->count == 0) {
        return true;
    }
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
        return false;
    }
    for (unsigned i = 0; i < uids->count; i++) {
        if (uids->uids[i] == peer.uid) {
            return true;
        }
    }
    return false;
}
