/*
 * The line of requests that wait for a service thread. Bounded; the last places are kept for what must get in when
 * everything else is full (erasing, cancelling), and that is also served first. Holds requests that belong to whoever
 * takes them out. Thread: any.
 */
#ifndef KV_HTTP_LINE_H
#define KV_HTTP_LINE_H

#include "server/http/request.h"

struct kv_line;

/* `places` in all; the last `reserved` of them for requests with `urgent`. */
KV_RC kv_line_new(size_t places, size_t reserved, struct kv_line **ret_line);
void kv_line_free(struct kv_line *line);
/* KV_E_BUSY: no place of its kind; KV_E_SHUTTING_DOWN: closed. */
KV_RC kv_line_push(struct kv_line *line, struct kv_req *req, bool urgent);
/* One that was in the line before and waited elsewhere meanwhile: it has a place whatever there is, because those have
 * a bound of their own. Not after kv_line_close. */
void kv_line_return(struct kv_line *line, struct kv_req *req, bool urgent);
/* Waits. NULL: closed, and nothing that this caller serves is left. */
struct kv_req *kv_line_pop(struct kv_line *line, bool urgent_only);
void kv_line_close(struct kv_line *line);
size_t kv_line_len(struct kv_line *line);

#endif
