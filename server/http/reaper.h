/*
 * Ends connections that dawdle: the library's own time-out counts inactivity only, so a byte a second keeps a
 * connection for ever. Deadlines: headers within the header time-out, then the largest body at 64 KiB a second, then
 * the longest wait, the next request within idle plus header time-out. Thread: the connection functions a listener's; a
 * thread of its own looks twice a second, and writes what waits of the access log.
 */
#ifndef KV_HTTP_REAPER_H
#define KV_HTTP_REAPER_H

#include "dataplane/base/env.h"

struct kv_reaper;
struct MHD_Connection;

KV_RC kv_reaper_new(const struct kv_env *env, uint64_t header_ms, uint64_t idle_ms, struct kv_reaper **ret_reaper);
void kv_reaper_free(struct kv_reaper *reaper);
void kv_reaper_connection(struct kv_reaper *reaper, struct MHD_Connection *connection, void **socket_context,
                          bool started);
void kv_reaper_headers_seen(struct kv_reaper *reaper, struct MHD_Connection *connection);
void kv_reaper_body_seen(struct kv_reaper *reaper, struct MHD_Connection *connection);
/* A stream of events lasts as long as one may; once it is over its reader has the header time-out to notice. */
void kv_reaper_stream(struct kv_reaper *reaper, struct MHD_Connection *connection);
void kv_reaper_stream_over(struct kv_reaper *reaper, struct MHD_Connection *connection);
void kv_reaper_request_done(struct kv_reaper *reaper, struct MHD_Connection *connection);

#endif
