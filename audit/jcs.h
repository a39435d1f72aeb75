/*
 * JSON Canonicalization Scheme (RFC 8785), restricted profile: an object, ASCII member names and strings of printable
 * ASCII, whole numbers below 2^53 in magnitude, no duplicate members, no null, depth at most 16. Inside it none
 * of the scheme's number and UTF-16 traps exists; outside it a text is refused, and the reason says by name what it
 * met.
 */
#ifndef KV_AUDIT_JCS_H
#define KV_AUDIT_JCS_H

#include "dataplane/base/buf.h"

/* KV_E_INVALID_REQUEST: not JSON, or outside the profile: info->text names it ("number with a fraction…", "member name
 * is not ASCII", …). */
KV_RC kv_jcs_canonical(struct kv_bytes json, struct kv_errinfo *info, struct kv_buf *ret_canonical);

#endif
