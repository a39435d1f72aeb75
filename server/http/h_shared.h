/* What the handlers share: the body against its table of fields, ids in paths, the model of sessions and engines. */
#ifndef KV_HTTP_H_SHARED_H
#define KV_HTTP_H_SHARED_H

#include "server/http/codec.h"
#include "server/http/handlers.h"
#include "server/service/svc_erase.h"

#define KV_FIELDS(table) (table), sizeof(table) / sizeof((table)[0])

/* A required, an optional text of 1 to `most` bytes; an id is checked when it is read. */
#define KV_REQUIRED_TEXT(name, most)         \
    {                                        \
        name, KV_TEXT, true, 1, (most), NULL \
    }
#define KV_ID_FIELD(name)                \
    {                                    \
        name, KV_TEXT, true, 1, 40, NULL \
    }

void kv_json_freep(struct kv_json **json); /* for KV_CLEANUP */

/* Parses and checks the body; owned by the caller. An empty one is {} on routes with KV_ROUTE_OPTIONAL_BODY. */
KV_RC kv_h_body(struct kv_call *call, const struct kv_req *req, const struct kv_field *fields, size_t count,
                struct kv_json **ret_json);
/* The body of a PATCH (RFC 7396): null is there only for members marked KV_H_NULLABLE; one marked KV_H_IMMUTABLE is
 * KV_E_IMMUTABLE_FIELD. At least one member. */
KV_RC kv_h_patch(struct kv_call *call, const struct kv_req *req, const struct kv_field *fields, size_t count,
                 struct kv_json **ret_json);
/* An id captured from the path. What is no id of this kind is not found, like one that does not exist. */
KV_RC kv_h_path_id(struct kv_call *call, const struct kv_req *req, const char *prefix, struct kv_id *ret_id);
/* The same for the second one, of /v1/tenants/{}/api-keys/{}. */
KV_RC kv_h_path_id_2(struct kv_call *call, const struct kv_req *req, const char *prefix, struct kv_id *ret_id);
/* The member "model". */
KV_RC kv_h_model(struct kv_call *call, kv_value *body, struct kv_model *ret_model);
void kv_h_write_model(struct kv_buf *out, const struct kv_model *model);
void kv_h_location(struct kv_req *req, const char *collection, const char *prefix, const struct kv_id *id);
/* A member that is a time, RFC 3339 in UTC; absent: 0. */
KV_RC kv_h_time(struct kv_call *call, kv_value *body, const char *name, uint64_t *ret_us);
/* Members that are left out when there is nothing to say. */
void kv_h_out_text_if(struct kv_buf *out, const char *name, const char *text);
void kv_h_out_time_if(struct kv_buf *out, const char *name, uint64_t us);
/* Copies a text that was checked to fit. */
void kv_h_copy(char *target, size_t size, const char *text);

/* --- the answer of a change -------------------------------------------------------------------------------------- */

/* What the answer is made of. It may be made inside the transaction, from a view that the use case just filled, and
 * more than once: `write` only reads. */
struct kv_h_answer {
    struct kv_req *req;
    int status;
    int (*status_of)(const void *view); /* instead of `status`, when the view decides: 200 for what was there already */
    void (*write)(struct kv_buf *out, const void *view);       /* one JSON value; NULL: no body */
    void (*write_would)(struct kv_buf *out, const void *view); /* a dry run's, where it says something else */
    const void *view;
    const char *collection, *prefix; /* Location: "<collection>/<prefix>_<id>" */
    const struct kv_id *id;          /* NULL: no Location */
    const uint64_t *rev;             /* NULL: no ETag */
    unsigned retry_after_seconds;
    bool secret;   /* the body is not kept and is wiped after it was sent */
    bool rendered; /* the transaction made it; a handler that learned more afterwards sets it to false */
};
/* Before the use case: its transaction makes the answer and keeps it for the Idempotency-Key. `answer` lives until
 * kv_h_answer. */
void kv_h_on_commit(struct kv_call *call, struct kv_h_answer *answer);
/* After it: makes the answer unless the transaction did. Of a dry run it is {"dry_run":true,"would":…} with 200. */
KV_RC kv_h_answer(struct kv_call *call, struct kv_h_answer *answer);

/* --- the query. The central check knows that a parameter is one of the route's and in its range. ------------------ */

const char *kv_h_query_text(const struct kv_req *req, const char *name); /* NULL: absent */
int64_t kv_h_query_int(const struct kv_req *req, const char *name, int64_t fallback);
bool kv_h_query_bool(const struct kv_req *req, const char *name); /* absent: false */
/* Absent: the id is zero, the time 0. A time is RFC 3339 in UTC: 2026-11-30T17:18:18Z, with up to six decimals. */
KV_RC kv_h_query_id(struct kv_call *call, const struct kv_req *req, const char *name, const char *prefix,
                    struct kv_id *ret_id);
KV_RC kv_h_query_time(struct kv_call *call, const struct kv_req *req, const char *name, uint64_t *ret_us);

/* --- erasures ---------------------------------------------------------------------------------------------------- */

/* Asks for an erasure and answers with it, or with what a dry run says: for every route that erases. */
KV_RC kv_h_erase(struct kv_call *call, struct kv_req *req, const struct kv_erasure_new *in);
void kv_h_write_erasure(struct kv_buf *out, const void *view); /* struct kv_erasure_view */

/* --- lists -------------------------------------------------------------------------------------------------------- */

/* limit, cursor and order of a KV_ROUTE_LIST route. */
KV_RC kv_h_page(struct kv_call *call, const struct kv_req *req, struct kv_page *ret_page);
/* {"data":[ … items, each written with kv_out_open … ],"next_cursor":…} and Link: rel="next". What the last item is
 * ordered by goes to kv_h_list_end; `last_id` NULL when there was none. */
void kv_h_list_begin(struct kv_req *req);
KV_RC kv_h_list_end(struct kv_req *req, const struct kv_page *page, uint64_t last_created_us,
                    const struct kv_id *last_id);

#endif
