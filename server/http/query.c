/*
 * Reads queries. A `+` is a blank, as every client library writes it. Must never decode twice, and never repeat a value
 * or a name that is not one of ours: either may be a secret in the wrong place.
 */
#include "server/http/query.h"

#include "dataplane/base/bytes.h"
#include "dataplane/base/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char unreserved[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";

/* --- decoding ---------------------------------------------------------------------------------------------------- */

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* In place; the text only gets shorter. */
static bool decode(char *text)
{
    char *out = text;
    for (const char *p = text; *p != '\0'; p++) {
        int c = (unsigned char)*p;
        if (c == '%') {
            int high = hex_digit(p[1]), low = high < 0 ? -1 : hex_digit(p[2]);
            if (low < 0) {
                return false;
            }
            c = high * 16 + low;
            p += 2;
        } else if (c == '+') {
            c = ' ';
        } else if (c <= 0x20 || c > 0x7e || strchr("\"#<>\\^`{|}", c) != NULL) {
            return false;
        }
        if (c < 0x20 || c == 0x7f) {
            return false;
        }
        *out++ = (char)c;
    }
    *out = '\0';
    return kv_utf8_valid(text, (size_t)(out - text));
}

static bool is_our_name(const char *name)
{
    size_t len = strlen(name);
    return len > 0 && len <= 40 && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") == len;
}

static bool holds_key(const struct kv_param *param)
{
    static const char *const names[] = {"token", "access_token", "api_key", "apikey", "authorization", "secret"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcasecmp(param->name, names[i]) == 0) {
            return true;
        }
    }
    return strstr(param->value, "kvrun_live_") != NULL || strstr(param->name, "kvrun_live_") != NULL;
}

static KV_RC take_pair(struct kv_req *req, char *pair, struct kv_errinfo *info)
{
    char *value = strchr(pair, '=');
    if (value != NULL) {
        *value++ = '\0';
    } else {
        value = pair + strlen(pair);
    }
    struct kv_param param = {.name = pair, .value = value};
    if (!decode(pair) || (*value != '\0' && !decode(value))) {
        return kv_fail(info, KV_E_INVALID_REQUEST,
                       "the query is not UTF-8 in percent-encoding without control characters (RFC 3986)");
    }
    if (holds_key(&param)) {
        return kv_fail(info, KV_E_INVALID_REQUEST,
                       "a key never goes into a query, where logs keep it; send \"Authorization: Bearer\", and "
                       "revoke this one");
    }
    if (kv_query_get(req, param.name) != NULL) {
        return is_our_name(param.name)
                   ? kv_fail(info, KV_E_INVALID_REQUEST, "the parameter %s is there twice", param.name)
                   : kv_fail(info, KV_E_INVALID_REQUEST, "a parameter is there twice");
    }
    if (req->param_count == KV_PARAMS_MAX) {
        return kv_fail(info, KV_E_INVALID_REQUEST, "at most %d query parameters", KV_PARAMS_MAX);
    }
    req->params[req->param_count++] = param;
    return KV_OK;
}

KV_RC kv_query_parse(struct kv_req *req, const char *text, struct kv_errinfo *info)
{
    if (text[0] == '\0') {
        return KV_OK;
    }
    req->query = kv_strdup(text);
    if (req->query == NULL) {
        return KV_E_NO_MEMORY;
    }
    for (char *pair = req->query; pair != NULL;) {
        char *next = strchr(pair, '&');
        if (next != NULL) {
            *next++ = '\0';
        }
        KV_TRY(take_pair(req, pair, info));
        pair = next;
    }
    return KV_OK;
}

/* --- the check --------------------------------------------------------------------------------------------------- */

/* 200 is KV_MAX_PAGE_ITEMS, which C17 does not take here; a test compares them. */
static const struct kv_field flag_fields[] = {
    {"limit", KV_INT, false, 1, 200, NULL},
    {"cursor", KV_TEXT, false, 1, 256, NULL},
    {"order", KV_TEXT, false, 1, 4, "|asc|desc|"},
    {"dry_run", KV_BOOL, false, 0, 0, NULL},
    {NULL, 0, false, 0, 0, NULL},
};

static const struct kv_field *field_of(const struct kv_route *route, const char *name)
{
    for (const struct kv_field *field = flag_fields; field->name != NULL; field++) {
        unsigned flag = field->type == KV_BOOL ? KV_ROUTE_DRY_RUN : KV_ROUTE_LIST;
        if ((route->flags & flag) != 0 && strcmp(field->name, name) == 0) {
            return field;
        }
    }
    for (const struct kv_field *field = route->query; field != NULL && field->name != NULL; field++) {
        if (strcmp(field->name, name) == 0) {
            return field;
        }
    }
    return NULL;
}

static bool as_number(const char *text, int64_t *ret_number)
{
    size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > 18 || text[digits] != '\0') {
        return false;
    }
    *ret_number = strtoll(text, NULL, 10);
    return true;
}

static KV_RC check_words(const struct kv_field *field, const char *value, struct kv_errinfo *info)
{
    char word[80];
    if (snprintf(word, sizeof word, "|%s|", value) < (int)sizeof word && strchr(value, '|') == NULL &&
        strstr(field->words, word) != NULL) {
        return KV_OK;
    }
    return kv_fail(info, KV_E_INVALID_REQUEST, "the parameter %s must be one of %.*s", field->name,
                   (int)strlen(field->words) - 2, field->words + 1);
}

static KV_RC check_value(const struct kv_field *field, const char *value, struct kv_errinfo *info)
{
    int64_t number = 0;
    if (field->type == KV_BOOL) {
        return value[0] == '\0' || strcmp(value, "true") == 0 || strcmp(value, "false") == 0
                   ? KV_OK
                   : kv_fail(info, KV_E_INVALID_REQUEST, "the parameter %s must be true or false", field->name);
    }
    if (field->type == KV_INT) {
        return as_number(value, &number) && number >= field->min && number <= field->max
                   ? KV_OK
                   : kv_fail(info, KV_E_INVALID_REQUEST,
                             "the parameter %s must be a number from %" PRId64 " to %" PRId64, field->name, field->min,
                             field->max);
    }
    int64_t len = (int64_t)strlen(value);
    if (len < field->min || len > field->max) {
        return kv_fail(info, KV_E_INVALID_REQUEST, "the parameter %s must be %" PRId64 " to %" PRId64 " bytes long",
                       field->name, field->min, field->max);
    }
    return field->words == NULL ? KV_OK : check_words(field, value, info);
}

KV_RC kv_query_check(const struct kv_req *req, const struct kv_route *route, struct kv_errinfo *info)
{
    for (unsigned i = 0; i < req->param_count; i++) {
        const struct kv_param *param = &req->params[i];
        const struct kv_field *field = field_of(route, param->name);
        if (field == NULL) {
            return is_our_name(param->name)
                       ? kv_fail(info, KV_E_INVALID_REQUEST, "this route has no query parameter %s", param->name)
                       : kv_fail(info, KV_E_INVALID_REQUEST, "there is an unknown query parameter");
        }
        KV_TRY(check_value(field, param->value, info));
    }
    return KV_OK;
}

/* --- reading ----------------------------------------------------------------------------------------------------- */

const char *kv_query_get(const struct kv_req *req, const char *name)
{
    for (unsigned i = 0; i < req->param_count; i++) {
        if (strcmp(req->params[i].name, name) == 0) {
            return req->params[i].value;
        }
    }
    return NULL;
}

bool kv_query_bool(const struct kv_req *req, const char *name)
{
    const char *value = kv_query_get(req, name);
    return value != NULL && strcmp(value, "false") != 0;
}

void kv_query_escape(struct kv_buf *buf, const char *text)
{
    for (const char *p = text; *p != '\0'; p++) {
        if (strchr(unreserved, *p) != NULL) {
            kv_buf_append(buf, p, 1);
        } else {
            kv_buf_printf(buf, "%%%02X", (unsigned)(unsigned char)*p);
        }
    }
}
