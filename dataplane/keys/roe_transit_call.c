/*
 * Requests to a transit engine: address, token, one HTTP exchange, and what its status means. Neither the token nor a
 * body may ever be logged.
 */
#include "dataplane/base/mem.h"
#include "dataplane/keys/roe_transit_int.h"

#include <stdio.h>
#include <string.h>

#define TOKEN_HEADER "X-Vault-Token: "

static bool is_name(const char *text)
{
    return text[0] != '\0' && strlen(text) <= 64 &&
           strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-./") == strlen(text);
}

/* What is sent there opens every session: it does not cross a network unencrypted. */
static bool is_private(const char *address)
{
    return strncmp(address, "https://", 8) == 0 || strncmp(address, "unix:///", 8) == 0 ||
           strncmp(address, "http://127.", 11) == 0 || strncmp(address, "http://[::1]", 12) == 0 ||
           strncmp(address, "http://localhost:", 17) == 0;
}

static KV_RC check_conf(const struct kv_transit *transit, struct kv_errinfo *info)
{
    if (!is_private(transit->address)) {
        return kv_fail(info, KV_E_CONFIG,
                       "root.transit.address: write https://host:port of the key service (http:// only "
                       "on this machine)");
    }
    if (!is_name(transit->mount) || !is_name(transit->prefix) || strchr(transit->prefix, '/') != NULL) {
        return kv_fail(info, KV_E_CONFIG,
                       "root.transit.mount and root.transit.prefix: 1 to 64 letters, digits, dots, - "
                       "and _");
    }
    if (transit->name_space[0] != '\0' && !is_name(transit->name_space)) {
        return kv_fail(info, KV_E_CONFIG, "root.transit.namespace: at most 64 letters, digits, dots, slashes, - and _");
    }
    return KV_OK;
}

static char *copy_or(const char *text, const char *fallback)
{
    return kv_strdup(text == NULL || text[0] == '\0' ? fallback : text);
}

KV_RC kv_transit_init(const struct kv_roe_transit_conf *conf, struct kv_errinfo *info, struct kv_transit *transit)
{
    void *page = NULL;
    transit->address = copy_or(conf->address, "");
    transit->mount = copy_or(conf->mount, "transit");
    transit->prefix = copy_or(conf->prefix, "kvrun-");
    transit->token_file = copy_or(conf->token_file, "");
    transit->ca_file = copy_or(conf->ca_file, "");
    transit->name_space = copy_or(conf->name_space, "");
    transit->timeout_ms = conf->timeout_ms == 0 ? 5000 : conf->timeout_ms;
    if (transit->address == NULL || transit->mount == NULL || transit->prefix == NULL || transit->token_file == NULL ||
        transit->ca_file == NULL || transit->name_space == NULL ||
        kv_locked_alloc(KV_TRANSIT_ANSWER_BYTES, &page) != KV_OK) {
        return kv_fail(info, KV_E_NO_MEMORY, "no memory for the root of erasure");
    }
    transit->answer = page;
    return check_conf(transit, info);
}

void kv_transit_hang_up(struct kv_transit *transit)
{
    kv_httpc_free(transit->client);
    transit->client = NULL;
    kv_roe_text_done(&transit->token);
    if (transit->answer != NULL) {
        kv_wipe(transit->answer, transit->answer_len);
    }
    transit->answer_len = 0;
}

void kv_transit_done(struct kv_transit *transit)
{
    kv_transit_hang_up(transit);
    if (transit->answer != NULL) {
        kv_locked_free(transit->answer, KV_TRANSIT_ANSWER_BYTES);
    }
    kv_free(transit->address);
    kv_free(transit->mount);
    kv_free(transit->prefix);
    kv_free(transit->token_file);
    kv_free(transit->ca_file);
    kv_free(transit->name_space);
}

static bool take(void *ctx, const void *data, size_t len)
{
    struct kv_transit *transit = ctx;
    if (len >= KV_TRANSIT_ANSWER_BYTES - transit->answer_len) {
        transit->answer_cut = true;
        return false;
    }
    memcpy(transit->answer + transit->answer_len, data, len);
    transit->answer_len += len;
    return true;
}

static KV_RC prepare(struct kv_transit *transit)
{
    if (transit->token.text == NULL) {
        KV_TRY(kv_roe_text_read(transit->token_file, "root.transit.token_file", transit->info, &transit->token));
    }
    if (transit->client == NULL) {
        KV_TRY(kv_httpc_new(transit->address, transit->info, &transit->client));
        if (transit->ca_file[0] != '\0') {
            KV_TRY(kv_httpc_trust(transit->client, transit->ca_file, transit->info));
        }
    }
    return KV_OK;
}

static KV_RC exchange(struct kv_transit *transit, const char *method, const char *path, const char *body,
                      int *ret_status)
{
    char url[512], name_space[128];
    void *page = NULL;
    struct kv_buf refused;
    KV_TRY(prepare(transit));
    KV_TRY(kv_locked_alloc(2 * KV_ROE_TEXT_BYTES, &page));
    snprintf(page, 2 * KV_ROE_TEXT_BYTES, TOKEN_HEADER "%s", transit->token.text);
    snprintf(name_space, sizeof name_space, "X-Vault-Namespace: %s", transit->name_space);
    snprintf(url, sizeof url, "/v1/%s/%s", transit->mount, path);
    const char *const headers[] = {page, "X-Vault-Request: true", transit->name_space[0] != '\0' ? name_space : NULL,
                                   NULL};
    const struct kv_httpc_request request = {.method = method,
                                             .path = url,
                                             .body = body,
                                             .headers = headers,
                                             .timeout_ms = transit->timeout_ms,
                                             .sink = take,
                                             .sink_ctx = transit};
    transit->answer_len = 0;
    transit->answer_cut = false;
    kv_buf_init(&refused, 65536); /* what it says of a refusal is not passed on: it may repeat what was sent */
    enum kv_err rc = kv_httpc_do(transit->client, &request, transit->info, ret_status, &refused);
    transit->answer[transit->answer_len] = '\0';
    kv_buf_done(&refused);
    kv_locked_free(page, 2 * KV_ROE_TEXT_BYTES);
    if (rc == KV_OK && transit->answer_cut) {
        rc =
            kv_fail(transit->info, KV_E_LIMIT, "the key service's answer is over %d KiB; give kvrun a mount of its own",
                    KV_TRANSIT_ANSWER_BYTES / 1024);
    }
    return rc;
}

static KV_RC status_means(struct kv_transit *transit, int status)
{
    switch (status) {
    case 200:
    case 204:
        return KV_OK;
    case 400:
        return kv_fail(transit->info, KV_E_INVALID_STATE, "the key service refuses the request (400)");
    case 403:
        return kv_fail(transit->info, KV_E_CONFIG,
                       "the key service refuses the token: renew root.transit.token_file, and "
                       "give it the policy that the documentation shows");
    case 404:
        return KV_E_MISSING;
    case 429:
        return kv_fail(transit->info, KV_E_BUSY, "the key service asks for fewer requests (429)");
    case 503:
        return kv_fail(transit->info, KV_E_IO, "the key service is sealed or in maintenance; unseal it");
    default:
        return kv_fail(transit->info, KV_E_IO, "the key service answers %d", status);
    }
}

KV_RC kv_transit_call(struct kv_transit *transit, const char *method, const char *path, const char *body)
{
    int status = 0;
    enum kv_err rc = exchange(transit, method, path, body, &status);
    if (rc == KV_OK && status == 403) { /* who renews the token may have done so between our reading and now */
        kv_roe_text_done(&transit->token);
        rc = exchange(transit, method, path, body, &status);
    }
    if (rc == KV_E_UNAUTHENTICATED) {
        return kv_fail(transit->info, KV_E_CONFIG,
                       "the key service is not who it should be: its TLS certificate is not of "
                       "the authorities in root.transit.ca_file");
    }
    if (rc == KV_E_IO) {
        return kv_fail(transit->info, rc, "the key service at root.transit.address does not answer");
    }
    KV_TRY(rc);
    return status_means(transit, status);
}
