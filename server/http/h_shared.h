/* What the handlers share: the body against its table of fields, ids in paths, the model of sessions and engines. */
#ifndef KV_HTTP_H_SHARED_H
#define KV_HTTP_H_SHARED_H

#include "server/http/codec.h"
#include "server/http/handlers.h"

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

/* Parses and checks the body; owned by the caller. */
KV_RC kv_h_body(struct kv_call *call, const struct kv_req *req, const struct kv_field *fields, size_t count,
                struct kv_json **ret_json);
/* An id captured from the path. What is no id of this kind is not found, like one that does not exist. */
KV_RC kv_h_path_id(struct kv_call *call, const struct kv_req *req, const char *prefix, struct kv_id *ret_id);
/* The member "model". */
KV_RC kv_h_model(struct kv_call *call, kv_value *body, struct kv_model *ret_model);
void kv_h_write_model(struct kv_buf *out, const struct kv_model *model);
void kv_h_location(struct kv_req *req, const char *collection, const char *prefix, const struct kv_id *id);
/* Copies a text that was checked to fit. */
void kv_h_copy(char *target, size_t size, const char *text);

#endif
