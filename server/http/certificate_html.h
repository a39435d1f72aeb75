/* A certificate for people: one page of HTML that needs nothing from elsewhere and prints on paper. */
#ifndef KV_HTTP_CERTIFICATE_HTML_H
#define KV_HTTP_CERTIFICATE_HTML_H

#include "dataplane/base/buf.h"

/* `payload` is the JSON that was signed. Every text of it is escaped. */
KV_RC kv_certificate_html(struct kv_bytes payload, struct kv_errinfo *info, struct kv_buf *ret_html);

#endif
