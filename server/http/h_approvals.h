/* An approval, as every answer that may be one has it. */
#ifndef KV_HTTP_H_APPROVALS_H
#define KV_HTTP_H_APPROVALS_H

#include "server/http/h_shared.h"
#include "server/service/svc_approval.h"

void kv_h_write_approval(struct kv_buf *out, const void *view); /* struct kv_approval_view */

#endif
