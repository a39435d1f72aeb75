/*
 * Pages of lists, and the queries of handlers. A cursor is base64url of a MAC and what it covers: version, the list it
 * belongs to (path, filters, order, caller's tenant), when it was made, and the last item of the page: so it says where
 * to go on even when that item is gone. Must never take a position from a cursor that this cluster did not make.
 */
#include "server/http/h_shared.h"

#include "dataplane/base/bytes.h"
#include "dataplane/crypto/hash.h"
#include "server/http/httpd_int.h"
#include "server/http/query.h"
#include "server/service/svc_cursor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- queries ----------------------------------------------------------------------------------------------------- */

const char *kv_h_query_text(const struct kv_req *req, const char *name)
{
    return kv_query_get(req, name);
}

int64_t kv_h_query_int(const struct kv_req *req, const char *name, int64_t fallback)
{
    const char *value = kv_query_get(req, name);
    return value == NULL ? fallback : strtoll(value, NULL, 10);
}

bool kv_h_query_bool(const struct kv_req *req, const char *name)
{
    return kv_query_bool(req, name);
}

KV_RC kv_h_query_id(struct kv_call *call, const struct kv_req *req, const char *name, const char *prefix,
                    struct kv_id *ret_id)
{
    const char *value = kv_query_get(req, name);
    if (value == NULL) {
        *ret_id = (struct kv_id){{0}};
        return KV_OK;
    }
    return kv_id_parse(prefix, value, ret_id) == KV_OK
               ? KV_OK
               : kv_fail(&call->info, KV_E_INVALID_REQUEST, "the parameter %s must be an id like %s_...", name, prefix);
}

KV_RC kv_h_query_time(struct kv_call *call, const struct kv_req *req, const char *name, uint64_t *ret_us)
{
    const char *value = kv_query_get(req, name);
    if (value == NULL) {
        *ret_us = 0;
        return KV_OK;
    }
    return kv_time_parse(value, ret_us) == KV_OK
               ? KV_OK
               : kv_fail(&call->info, KV_E_INVALID_REQUEST,
                         "the parameter %s must be a time in UTC like 2026-11-30T17:18:18Z", name);
}

/* --- cursors ----------------------------------------------------------------------------------------------------- */

#define CURSOR_VERSION 1
#define LIST_HASH_BYTES 16
#define CURSOR_BYTES (KV_CURSOR_MAC_BYTES + 1 + LIST_HASH_BYTES + 8 + 8 + 16)
#define CURSOR_TEXT_SIZE 128

static int compare_params(const void *a, const void *b)
{
    return strcmp(((const struct kv_param *)a)->name, ((const struct kv_param *)b)->name);
}

/* Which list this is: everything that changes what is in it or how it is ordered. */
static KV_RC list_hash(const struct kv_req *req, uint8_t ret_hash[LIST_HASH_BYTES])
{
    struct kv_bytes parts[2 + 2 * KV_PARAMS_MAX];
    struct kv_param sorted[KV_PARAMS_MAX];
    size_t count = 0;
    uint8_t hash[32];
    memcpy(sorted, req->params, sizeof sorted);
    qsort(sorted, req->param_count, sizeof sorted[0], compare_params);
    parts[count++] = KV_BYTES(req->path, strlen(req->path) + 1); /* each with its final zero, which none has inside */
    parts[count++] = KV_BYTES(&req->tenant, sizeof req->tenant);
    for (unsigned i = 0; i < req->param_count; i++) {
        if (strcmp(sorted[i].name, "cursor") != 0 && strcmp(sorted[i].name, "limit") != 0) {
            parts[count++] = KV_BYTES(sorted[i].name, strlen(sorted[i].name) + 1);
            parts[count++] = KV_BYTES(sorted[i].value, strlen(sorted[i].value) + 1);
        }
    }
    KV_TRY(kv_sha256_parts(parts, count, hash));
    memcpy(ret_hash, hash, LIST_HASH_BYTES);
    return KV_OK;
}

static uint64_t now_us(const struct kv_req *req)
{
    const struct kv_env *env = kv_httpd_env(req->httpd);
    return env->realtime_us(env->ctx);
}

static KV_RC write_cursor(const struct kv_req *req, uint64_t last_us, const struct kv_id *last,
                          char text[CURSOR_TEXT_SIZE])
{
    uint8_t bytes[CURSOR_BYTES], hash[LIST_HASH_BYTES];
    struct kv_writer w = kv_writer_of(bytes + KV_CURSOR_MAC_BYTES, sizeof bytes - KV_CURSOR_MAC_BYTES);
    KV_TRY(list_hash(req, hash));
    kv_write_u8(&w, CURSOR_VERSION);
    kv_write_raw(&w, hash, sizeof hash);
    kv_write_u64(&w, now_us(req));
    kv_write_u64(&w, last_us);
    kv_write_raw(&w, last->b, sizeof last->b);
    KV_TRY(kv_svc_cursor_mac(kv_httpd_svc(req->httpd), KV_BYTES(w.start, kv_writer_len(&w)), bytes));
    kv_base64url_encode(bytes, sizeof bytes, text);
    return KV_OK;
}

static KV_RC bad_cursor(struct kv_errinfo *info, const char *why)
{
    return kv_fail(info, KV_E_INVALID_REQUEST, "the parameter cursor %s; start again without it", why);
}

static KV_RC read_cursor(struct kv_call *call, const struct kv_req *req, const char *text, struct kv_page *page)
{
    uint8_t bytes[CURSOR_BYTES], mac[KV_CURSOR_MAC_BYTES], hash[LIST_HASH_BYTES], list[LIST_HASH_BYTES];
    size_t len = 0;
    if (kv_base64url_decode(text, strlen(text), bytes, sizeof bytes, &len) != KV_OK || len != sizeof bytes) {
        return bad_cursor(&call->info, "is none of this server's");
    }
    struct kv_reader r = kv_reader_of(KV_BYTES(bytes + KV_CURSOR_MAC_BYTES, sizeof bytes - KV_CURSOR_MAC_BYTES));
    KV_TRY(
        kv_svc_cursor_mac(call->svc, KV_BYTES(bytes + KV_CURSOR_MAC_BYTES, sizeof bytes - KV_CURSOR_MAC_BYTES), mac));
    bool ours = kv_equal_constant_time(mac, bytes, sizeof mac) && kv_read_u8(&r) == CURSOR_VERSION;
    kv_read_raw(&r, list, sizeof list);
    uint64_t made_us = kv_read_u64(&r), now = now_us(req);
    page->after_us = kv_read_u64(&r);
    kv_read_raw(&r, page->after.b, sizeof page->after.b);
    KV_TRY(list_hash(req, hash));
    if (!ours || !kv_reader_done(&r)) {
        return bad_cursor(&call->info, "is none of this server's");
    }
    if (memcmp(list, hash, sizeof hash) != 0) {
        return bad_cursor(&call->info, "belongs to another list, filter or order");
    }
    if (now > made_us && now - made_us > (uint64_t)KV_MAX_CURSOR_SECONDS * 1000000) {
        return bad_cursor(&call->info, "is over a day old");
    }
    page->has_after = true;
    return KV_OK;
}

KV_RC kv_h_page(struct kv_call *call, const struct kv_req *req, struct kv_page *ret_page)
{
    const char *order = kv_query_get(req, "order"), *cursor = kv_query_get(req, "cursor");
    *ret_page = (struct kv_page){.limit = (unsigned)kv_h_query_int(req, "limit", KV_MAX_PAGE_ITEMS_USUAL),
                                 .ascending = order != NULL && strcmp(order, "asc") == 0};
    return cursor == NULL ? KV_OK : read_cursor(call, req, cursor, ret_page);
}

/* --- the list ---------------------------------------------------------------------------------------------------- */

void kv_h_list_begin(struct kv_req *req)
{
    kv_out_open(&req->response.body);
    kv_out_array(&req->response.body, "data");
}

static void write_link(struct kv_req *req, const char *cursor)
{
    struct kv_buf *link = &req->response.link;
    kv_buf_reset(link);
    kv_buf_printf(link, "<%s?", req->path);
    for (unsigned i = 0; i < req->param_count; i++) {
        if (strcmp(req->params[i].name, "cursor") != 0) {
            kv_query_escape(link, req->params[i].name);
            kv_buf_text(link, "=");
            kv_query_escape(link, req->params[i].value);
            kv_buf_text(link, "&");
        }
    }
    kv_buf_printf(link, "cursor=%s>; rel=\"next\"", cursor);
}

KV_RC kv_h_list_end(struct kv_req *req, const struct kv_page *page, uint64_t last_created_us,
                    const struct kv_id *last_id)
{
    struct kv_buf *out = &req->response.body;
    kv_out_array_end(out);
    if (page->more && last_id != NULL) {
        char cursor[CURSOR_TEXT_SIZE];
        KV_TRY(write_cursor(req, last_created_us, last_id, cursor));
        kv_out_text(out, "next_cursor", cursor);
        write_link(req, cursor);
    } else {
        kv_out_null(out, "next_cursor");
    }
    kv_out_close(out);
    return kv_buf_check(&req->response.link);
}
