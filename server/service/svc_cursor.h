/*
 * What cursors of lists are signed with: a key of the cluster, so that a page asked for here goes on at any other
 * instance. It keeps a client from making up a position; neither access nor erasure rests on it. Thread: any.
 */
#ifndef KV_SVC_CURSOR_H
#define KV_SVC_CURSOR_H

#include "server/service/svc.h"

#define KV_CURSOR_MAC_BYTES 16

KV_RC kv_svc_cursor_mac(struct kv_svc *svc, struct kv_bytes data, uint8_t ret_mac[KV_CURSOR_MAC_BYTES]);

#endif
