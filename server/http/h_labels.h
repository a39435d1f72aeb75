/* Labels in bodies, answers and queries. */
#ifndef KV_HTTP_H_LABELS_H
#define KV_HTTP_H_LABELS_H

#include "server/http/h_shared.h"
#include "server/service/svc_tenant.h"

/* The member "labels" of a body, when it is there: an object of texts; with `patch` null takes a label away. */
KV_RC kv_h_labels(struct kv_call *call, kv_value *body, bool patch, struct kv_labels *ret_labels);
void kv_h_write_labels(struct kv_buf *out, const struct kv_labels *labels);
/* The member "label" of a scope: one name with its value, both borrowed. */
KV_RC kv_h_scope_label(struct kv_call *call, kv_value *label, const char **ret_name, const char **ret_value);
/* The parameter label=name:value; *ret_has is false without one. */
KV_RC kv_h_query_label(struct kv_call *call, const struct kv_req *req, bool *ret_has, struct kv_label *ret_label);

#endif
