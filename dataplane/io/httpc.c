/*
 * See httpc.h. Must never log a header: one of them is the bearer key.
 */
#include "dataplane/io/httpc.h"

#include "dataplane/base/mem.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define UNIX_PREFIX "unix://"

struct kv_httpc {
    CURL *curl;
    char base[300];
};

/* libcurl's memory holds tokens and, for a key service, keys: it is wiped when it is given back. The length of a piece
 * stands before it. */
#define LENGTH_BYTES 16

static void *wiped_malloc(size_t len)
{
    size_t all = 0;
    unsigned char *piece = kv_add_size(len, LENGTH_BYTES, &all) ? kv_alloc(all) : NULL;
    if (piece == NULL) {
        return NULL;
    }
    memcpy(piece, &len, sizeof len);
    return piece + LENGTH_BYTES;
}

static void wiped_free(void *memory)
{
    if (memory != NULL) {
        unsigned char *piece = (unsigned char *)memory - LENGTH_BYTES;
        size_t len = 0;
        memcpy(&len, piece, sizeof len);
        explicit_bzero(memory, len);
        kv_free(piece);
    }
}

static void *wiped_realloc(void *memory, size_t len)
{
    size_t before = 0;
    if (memory != NULL) {
        memcpy(&before, (unsigned char *)memory - LENGTH_BYTES, sizeof before);
    }
    void *moved = wiped_malloc(len);
    if (moved != NULL && memory != NULL) {
        memcpy(moved, memory, before < len ? before : len);
        wiped_free(memory);
    }
    return moved;
}

static void *wiped_calloc(size_t count, size_t size)
{
    size_t len = 0;
    return kv_mul_size(count, size, &len) ? wiped_malloc(len) : NULL; /* it comes zeroed */
}

static char *wiped_strdup(const char *text)
{
    size_t len = strlen(text) + 1;
    char *copy = wiped_malloc(len);
    return copy == NULL ? NULL : memcpy(copy, text, len);
}

static bool curl_is_ready;

static void start_curl(void)
{
    curl_is_ready = curl_global_init_mem(CURL_GLOBAL_DEFAULT, wiped_malloc, wiped_free, wiped_realloc, wiped_strdup,
                                         wiped_calloc) == CURLE_OK;
}

KV_RC kv_httpc_new(const char *address, struct kv_errinfo *info, struct kv_httpc **ret_client)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start_curl);
    struct kv_httpc *client = curl_is_ready ? kv_alloc(sizeof *client) : NULL;
    if (client == NULL) {
        return KV_E_NO_MEMORY;
    }
    client->curl = curl_easy_init();
    if (client->curl == NULL) {
        kv_free(client);
        return KV_E_NO_MEMORY;
    }
    if (strncmp(address, UNIX_PREFIX, strlen(UNIX_PREFIX)) == 0) {
        curl_easy_setopt(client->curl, CURLOPT_UNIX_SOCKET_PATH, address + strlen(UNIX_PREFIX));
        snprintf(client->base, sizeof client->base, "http://localhost");
    } else if (strlen(address) < 256) {
        snprintf(client->base, sizeof client->base, "%s%s", strstr(address, "://") == NULL ? "http://" : "", address);
    } else {
        kv_httpc_free(client);
        return kv_fail(info, KV_E_CONFIG, "the server's address is too long");
    }
    *ret_client = client;
    return KV_OK;
}

void kv_httpc_free(struct kv_httpc *client)
{
    if (client != NULL) {
        curl_easy_cleanup(client->curl);
        kv_free(client);
    }
}

KV_RC kv_httpc_trust(struct kv_httpc *client, const char *ca_file, struct kv_errinfo *info)
{
    if (curl_easy_setopt(client->curl, CURLOPT_CAINFO, ca_file) != CURLE_OK ||
        curl_easy_setopt(client->curl, CURLOPT_CAPATH, NULL) != CURLE_OK) {
        return kv_fail(info, KV_E_CONFIG, "the file of authorities cannot be used");
    }
    return KV_OK;
}

KV_RC kv_httpc_identify(struct kv_httpc *client, const char *cert_file, const char *key_file, struct kv_errinfo *info)
{
    if (curl_easy_setopt(client->curl, CURLOPT_SSLCERT, cert_file) != CURLE_OK ||
        curl_easy_setopt(client->curl, CURLOPT_SSLKEY, key_file == NULL ? cert_file : key_file) != CURLE_OK) {
        return kv_fail(info, KV_E_CONFIG, "the certificate for this client cannot be used");
    }
    return KV_OK;
}

struct taking {
    CURL *curl;
    const struct kv_httpc_request *request;
    struct kv_buf *body;
    bool ended; /* by the sink */
};

static size_t take_body(char *data, size_t size, size_t count, void *ctx)
{
    struct taking *taking = ctx;
    long status = 0;
    curl_easy_getinfo(taking->curl, CURLINFO_RESPONSE_CODE, &status);
    if (taking->request->sink != NULL && status >= 200 && status < 300) {
        taking->ended = !taking->request->sink(taking->request->sink_ctx, data, size * count);
        return taking->ended ? 0 : size * count;
    }
    kv_buf_append(taking->body, data, size * count);
    return taking->body->failed ? 0 : size * count;
}

static size_t take_header(char *data, size_t size, size_t count, void *ctx)
{
    struct kv_buf *headers = ctx;
    kv_buf_append(headers, data, size * count);
    return headers->failed ? 0 : size * count;
}

bool kv_httpc_header(const struct kv_buf *headers, const char *name, char *ret_value, size_t size)
{
    size_t name_len = strlen(name);
    for (const char *line = (const char *)headers->data; line != NULL && *line != '\0';) {
        size_t len = strcspn(line, "\r\n");
        if (strncasecmp(line, name, name_len) == 0 && line[name_len] == ':') {
            const char *value = line + name_len + 1 + strspn(line + name_len + 1, " \t");
            int value_len = (int)(line + len - value);
            return snprintf(ret_value, size, "%.*s", value_len, value) < (int)size;
        }
        line += len + strspn(line + len, "\r\n");
    }
    return false;
}

const char *kv_httpc_version(void)
{
    return curl_version();
}

/* Appends "name: value"; a failure leaves the list as it was, and the request then lacks the header and is refused by
 * the server. */
static struct curl_slist *with_header(struct curl_slist *list, const char *name, const char *value)
{
    char line[512];
    if (value == NULL || snprintf(line, sizeof line, "%s: %s", name, value) >= (int)sizeof line) {
        return list;
    }
    struct curl_slist *longer = curl_slist_append(list, line);
    memset(line, 0, sizeof line);
    return longer == NULL ? list : longer;
}

static struct curl_slist *headers_of(const struct kv_httpc_request *request)
{
    char authorization[300] = "";
    struct curl_slist *list =
        with_header(NULL, "Accept", request->accept == NULL ? "application/json" : request->accept);
    list = with_header(list, "Prefer", request->prefer);
    list = with_header(list, "Expect", request->body == NULL ? NULL : "");
    list = with_header(list, "Content-Type",
                       request->body == NULL           ? NULL
                       : request->content_type == NULL ? "application/json"
                                                       : request->content_type);
    for (const char *const *line = request->headers; line != NULL && *line != NULL; line++) {
        struct curl_slist *longer = curl_slist_append(list, *line);
        list = longer == NULL ? list : longer;
    }
    if (request->bearer != NULL) {
        snprintf(authorization, sizeof authorization, "Bearer %s", request->bearer);
        list = with_header(list, "Authorization", authorization);
        memset(authorization, 0, sizeof authorization);
    }
    return list;
}

static void set_up(CURL *curl, const struct kv_httpc_request *request, struct taking *taking)
{
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_PROXY, "");
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, (long)request->timeout_ms);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, taking);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, request->ret_headers == NULL ? NULL : take_header);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, request->ret_headers);
    curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, NULL);
    if (request->body != NULL || strcmp(request->method, "POST") == 0) {
        curl_easy_setopt(curl, CURLOPT_POSTFIELDS, request->body == NULL ? "" : request->body);
    } else {
        curl_easy_setopt(curl, CURLOPT_HTTPGET, 1L);
    }
    curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, request->method);
}

static bool is_about_trust(CURLcode code)
{
    return code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE ||
           code == CURLE_SSL_CONNECT_ERROR || code == CURLE_SSL_ISSUER_ERROR || code == CURLE_SSL_CERTPROBLEM;
}

/* The library's words say which check failed. They may quote names out of a certificate, so what is not plain text is
 * replaced. */
static KV_RC fail_with(CURLcode code, char *why, struct kv_errinfo *info)
{
    for (char *p = why; *p != '\0'; p++) {
        *p = *p >= 0x20 && *p < 0x7f ? *p : '?';
    }
    return kv_fail(info, is_about_trust(code) ? KV_E_UNAUTHENTICATED : KV_E_IO, "no answer from the server: %.150s",
                   why[0] != '\0' ? why : curl_easy_strerror(code));
}

KV_RC kv_httpc_do(struct kv_httpc *client, const struct kv_httpc_request *request, struct kv_errinfo *info,
                  int *ret_status, struct kv_buf *ret_body)
{
    char url[8192], why[CURL_ERROR_SIZE] = "";
    CURL *curl = client->curl;
    struct taking taking = {.curl = curl, .request = request, .body = ret_body};
    if (snprintf(url, sizeof url, "%s%s", client->base, request->path) >= (int)sizeof url) {
        return kv_fail(info, KV_E_URI_TOO_LONG, "the request path is too long");
    }
    struct curl_slist *headers = headers_of(request);
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    set_up(curl, request, &taking);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, why);
    CURLcode code = curl_easy_perform(curl);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, NULL); /* it ends with this function */
    curl_slist_free_all(headers);
    if (code != CURLE_OK && !taking.ended) {
        return fail_with(code, why, info);
    }
    long status = 0;
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    *ret_status = (int)status;
    return KV_OK;
}
