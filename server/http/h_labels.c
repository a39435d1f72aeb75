/* See h_labels.h. Errors name the member, never what a client called its labels. */
#include "server/http/h_labels.h"

#include <stdio.h>
#include <string.h>

static bool is_name(const char *name, size_t len)
{
    return len >= 1 && len < KV_LABEL_NAME_SIZE && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_.-") >= len;
}

static KV_RC read_label(struct kv_call *call, const char *name, kv_value *value, bool patch, struct kv_label *ret_label)
{
    const char *text = kv_json_as_text(value);
    if (!is_name(name, strlen(name))) {
        return kv_fail_at(&call->info, KV_E_INVALID_REQUEST, "/labels",
                          "a label's name is 1 to %d characters of a-z, 0-9, _, . and -", KV_LABEL_NAME_SIZE - 1);
    }
    *ret_label = (struct kv_label){.remove = patch && kv_json_value_is_null(value)};
    if (ret_label->remove) {
        snprintf(ret_label->name, sizeof ret_label->name, "%s", name);
        return KV_OK;
    }
    if (text == NULL || strlen(text) >= KV_LABEL_VALUE_SIZE) {
        return kv_fail_at(&call->info, KV_E_INVALID_REQUEST, "/labels",
                          "a label's value is a text of at most %d bytes%s", KV_LABEL_VALUE_SIZE - 1,
                          patch ? ", or null" : "");
    }
    snprintf(ret_label->name, sizeof ret_label->name, "%s", name);
    snprintf(ret_label->value, sizeof ret_label->value, "%s", text);
    return KV_OK;
}

KV_RC kv_h_labels(struct kv_call *call, kv_value *body, bool patch, struct kv_labels *ret_labels)
{
    kv_value *object = kv_json_get(body, "labels");
    void *iterator = NULL;
    const char *name = NULL;
    unsigned count = 0;
    if (object == NULL) {
        return KV_OK;
    }
    for (kv_value *value = kv_json_next(object, &iterator, &name); value != NULL;
         value = kv_json_next(object, &iterator, &name)) {
        if (count == KV_LABELS_MAX) {
            return kv_fail_at(&call->info, KV_E_INVALID_REQUEST, "/labels", "at most %d labels", KV_LABELS_MAX);
        }
        KV_TRY(read_label(call, name, value, patch, &ret_labels->items[count++]));
    }
    ret_labels->count = count;
    return KV_OK;
}

void kv_h_write_labels(struct kv_buf *out, const struct kv_labels *labels)
{
    kv_out_object(out, "labels");
    for (unsigned i = 0; i < labels->count; i++) {
        kv_out_text(out, labels->items[i].name, labels->items[i].value);
    }
    kv_out_close(out);
}

KV_RC kv_h_query_label(struct kv_call *call, const struct kv_req *req, bool *ret_has, struct kv_label *ret_label)
{
    const char *text = kv_h_query_text(req, "label");
    const char *colon = text == NULL ? NULL : strchr(text, ':');
    *ret_has = text != NULL;
    if (text == NULL) {
        return KV_OK;
    }
    if (colon == NULL || !is_name(text, (size_t)(colon - text)) || strlen(colon + 1) >= KV_LABEL_VALUE_SIZE) {
        return kv_fail_at(&call->info, KV_E_INVALID_REQUEST, "", "label is name:value");
    }
    *ret_label = (struct kv_label){.remove = false};
    memcpy(ret_label->name, text, (size_t)(colon - text));
    snprintf(ret_label->value, sizeof ret_label->value, "%s", colon + 1);
    return KV_OK;
}

KV_RC kv_h_scope_label(struct kv_call *call, kv_value *label, const char **ret_name, const char **ret_value)
{
    void *iterator = NULL;
    const char *name = NULL, *more = NULL;
    kv_value *value = kv_json_next(label, &iterator, &name);
    if (value == NULL || kv_json_next(label, &iterator, &more) != NULL) {
        return kv_fail_at(&call->info, KV_E_INVALID_REQUEST, "/scope/label",
                          "must have one member: {\"name\":\"value\"}");
    }
    const char *text = kv_json_as_text(value);
    if (text == NULL || strlen(text) > (size_t)KV_MAX_LABEL_VALUE_BYTES ||
        strlen(name) > (size_t)KV_MAX_LABEL_KEY_BYTES || name[0] == '\0') {
        return kv_fail_at(&call->info, KV_E_INVALID_REQUEST, "/scope/label",
                          "must be a name of 1 to %lld bytes with a text of at most %lld",
                          (long long)KV_MAX_LABEL_KEY_BYTES, (long long)KV_MAX_LABEL_VALUE_BYTES);
    }
    *ret_name = name;
    *ret_value = text;
    return KV_OK;
}
