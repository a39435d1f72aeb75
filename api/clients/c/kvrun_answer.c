/* What answers and errors are made of, and what an error says about the server. */
#include "api/clients/c/kvrun_int.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bool kvrun_fail(struct kvrun_error *error, const char *code, const char *format, ...)
{
    *error = (struct kvrun_error){.status = 0};
    snprintf(error->code, sizeof(error->code), "%s", code);
    va_list args;
    va_start(args, format);
    vsnprintf(error->detail, sizeof(error->detail), format, args);
    va_end(args);
    return false;
}

bool kvrun_fail_with_problem(const json_t *problem, long status, struct kvrun_error *error)
{
    const char *code = json_string_value(json_object_get(problem, "code"));
    const char *detail = json_string_value(json_object_get(problem, "detail"));
    const char *title = json_string_value(json_object_get(problem, "title"));
    const json_t *first = json_array_get(json_object_get(problem, "errors"), 0);
    const char *pointer = json_string_value(json_object_get(first, "pointer"));
    if (code == NULL) {
        kvrun_fail(error, "protocol", "status %ld without a problem document", status);
    } else if (status == 404 && pointer != NULL && strcmp(pointer, "/pool_id") == 0) {
        /* The pool's number is the library's own: that the server lost it is no mistake of the caller. */
        kvrun_fail(error, "engine_unknown", "%s", detail != NULL ? detail : "the server does not know the pool");
    } else {
        kvrun_fail(error, code, "%s", detail != NULL ? detail : title != NULL ? title : "");
    }
    error->status = (int)status;
    error->retryable = json_is_true(json_object_get(problem, "retryable"));
    return false;
}

bool kvrun_error_is(const struct kvrun_error *error, const char *code)
{
    return strcmp(error->code, code) == 0;
}

bool kvrun_error_is_outage(const struct kvrun_error *error)
{
    return error->status >= 500 || kvrun_error_is(error, "busy") || kvrun_error_is(error, "transport") ||
           kvrun_error_is(error, "protocol") || kvrun_error_is(error, "down") ||
           kvrun_error_is(error, "engine_unknown") || kvrun_error_is(error, "rate_limited");
}

bool kvrun_member_text(const json_t *body, const char *name, char *target, size_t size, struct kvrun_error *error)
{
    const json_t *member = json_object_get(body, name);
    if (!json_is_string(member) || json_string_length(member) >= size) {
        return kvrun_fail(error, "protocol", "the answer has no usable member \"%s\"", name);
    }
    memcpy(target, json_string_value(member), json_string_length(member) + 1);
    return true;
}

bool kvrun_check_id(const char *id, const char *prefix, struct kvrun_error *error)
{
    size_t prefix_len = strlen(prefix);
    size_t good = id == NULL ? 0 : strspn(id, "abcdefghijklmnopqrstuvwxyz0123456789_");
    if (id == NULL || id[good] != '\0' || good >= KVRUN_ID_SIZE || strncmp(id, prefix, prefix_len) != 0 ||
        id[prefix_len] != '_') {
        return kvrun_fail(error, "protocol", "an id that starts with %s_ is expected", prefix);
    }
    return true;
}

json_t *kvrun_model_json(const struct kvrun_model *model)
{
    return json_pack("{s:s, s:s, s:s*}", "id", model->id, "revision", model->revision, "fingerprint",
                     model->fingerprint);
}
