/* How tiers are written, for the answers that have them. */
#ifndef KV_HTTP_H_TIER_OUT_H
#define KV_HTTP_H_TIER_OUT_H

#include "server/http/h_shared.h"

/* Items of an array; `numbers` false: names and states alone. */
void kv_h_write_tiers(struct kv_buf *out, struct kv_svc *svc, bool numbers);

#endif
