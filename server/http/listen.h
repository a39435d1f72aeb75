/*
 * Opening the listeners' sockets: addresses of IPv4 and IPv6, the UNIX socket of engines and who may use it. Thread:
 * main, but for kv_listen_uid_ok.
 */
#ifndef KV_HTTP_LISTEN_H
#define KV_HTTP_LISTEN_H

#include "dataplane/base/err.h"

#define KV_LISTEN_UIDS_MAX 16

struct kv_listen_uids {
    unsigned count; /* 0: everybody whom the socket's mode lets */
    uint32_t uids[KV_LISTEN_UIDS_MAX];
};

/* "127.0.0.1:7433" or "[::1]:7433"; port 0: chosen. *ret_loopback: only this machine reaches it. */
KV_RC kv_listen_tcp(const char *address, struct kv_errinfo *info, int *ret_fd, unsigned *ret_port, bool *ret_loopback);
/* Replaces a socket that is left there. */
KV_RC kv_listen_unix(const char *path, unsigned mode, struct kv_errinfo *info, int *ret_fd);
/* "0,1000"; "" or NULL: none. */
KV_RC kv_listen_uids_parse(const char *text, struct kv_errinfo *info, struct kv_listen_uids *ret_uids);
/* Is the process at the other end of a UNIX socket one of these users'? Thread: any. */
bool kv_listen_uid_ok(const struct kv_listen_uids *uids, int fd);

#endif
