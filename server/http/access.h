/*
 * The callbacks that the HTTP library makes for each request and connection of a listener; `ctx` is its struct
 * kv_listener. Thread: the listener's.
 */
#ifndef KV_HTTP_ACCESS_H
#define KV_HTTP_ACCESS_H

#include "server/http/httpd_int.h"

#include <microhttpd.h>

enum MHD_Result kv_access_access(void *ctx, struct MHD_Connection *connection, const char *url, const char *method,
                                 const char *version, const char *upload, size_t *upload_size, void **request);
/* The raw target, before anything was decoded; what it returns is the request. */
void *kv_access_target(void *ctx, const char *target, struct MHD_Connection *connection);
void kv_access_completed(void *ctx, struct MHD_Connection *connection, void **request,
                         enum MHD_RequestTerminationCode code);
void kv_access_connection(void *ctx, struct MHD_Connection *connection, void **socket_context,
                          enum MHD_ConnectionNotificationCode code);
/* Targets are compared as they were sent; nothing is decoded behind the guard's back. */
size_t kv_access_unescape(void *ctx, struct MHD_Connection *connection, char *text);

#endif
