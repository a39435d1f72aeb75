/* `kvrun config show | docs` and `kvrun healthcheck`. */
#include "server/cli/cli.h"

#include "dataplane/io/httpc.h"

#include <stdio.h>
#include <string.h>

#define OUT_MAX 65536

int kv_cli_config(const struct kv_conf *conf, const enum kv_conf_origin *origins, int argc, char **argv)
{
    struct kv_buf out;
    const char *what = argc == 1 ? argv[0] : "";
    kv_buf_init(&out, OUT_MAX);
    if (strcmp(what, "show") == 0) {
        kv_conf_show(conf, origins, &out);
    } else if (strcmp(what, "docs") == 0) {
        kv_conf_docs(&out);
    } else {
        fprintf(stderr, "usage: kvrun config show | check | docs\n");
        return 2;
    }
    bool ok = kv_buf_check(&out) == KV_OK && fwrite(out.data, 1, out.len, stdout) == out.len;
    kv_buf_done(&out);
    return ok ? 0 : 1;
}

int kv_cli_healthcheck(const struct kv_conf *conf)
{
    struct kv_errinfo info = {0};
    struct kv_httpc *client = NULL;
    struct kv_buf body;
    int status = 0;
    struct kv_httpc_request request = {.method = "GET", .path = "/livez", .accept = "*/*", .timeout_ms = 3000};
    kv_buf_init(&body, OUT_MAX);
    enum kv_err rc = kv_httpc_new(conf->http_admin_listen, &info, &client);
    if (rc == KV_OK) {
        rc = kv_httpc_do(client, &request, &info, &status, &body);
        kv_httpc_free(client);
    }
    kv_buf_done(&body);
    if (rc != KV_OK || status != 200) {
        fprintf(stderr, "kvrun: not alive: %s\n", rc != KV_OK ? info.text : "the server answered otherwise");
        return 1;
    }
    return 0;
}
