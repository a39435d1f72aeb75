/* Erasing, and the certificates of it. Must never erase more than one scope, nor without being told twice. */
#include "server/cli/cli_int.h"

#include "audit/verify.h"

#include <string.h>
#include <unistd.h>

#define BUNDLE_MAX 262144u
#define BUNDLE_TYPE "text/plain, application/problem+json;q=0.1"

/* --- erase ------------------------------------------------------------------------------------------------------- */

static const char *scope_of(const struct cli *cli, size_t *ret_count)
{
    static const char *const flags[] = {"external-id", "label", "idle-before", "tenant"};
    const char *name = cli->arg_count > 0 ? cli->args[0] : NULL;
    *ret_count = cli->arg_count;
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        if (cli_given(cli, flags[i])) {
            name = cli_text(cli, flags[i]);
            *ret_count += 1;
        }
    }
    return name;
}

static int fetch_certificate(struct cli *cli)
{
    char path[128];
    const char *id = json_string_value(json_object_get(cli->answer, "id"));
    snprintf(path, sizeof path, "/v1/erasures/%.40s/certificate", id == NULL ? "" : id);
    return cli_download(cli, path, BUNDLE_TYPE);
}

int cli_erase(struct cli *cli)
{
    size_t scopes = 0;
    const char *name = scope_of(cli, &scopes);
    if (scopes != 1) {
        return cli_usage_error(cli, "say what to erase: one SESSION, or one of --external-id, --label, --idle-before, "
                                    "--tenant");
    }
    if (cli->file != NULL && !cli->wait) {
        return cli_usage_error(cli, "the certificate is there when it is done: -o FILE goes with --wait");
    }
    json_t *body = NULL;
    struct kv_buf path KV_CLEANUP(kv_buf_done);
    kv_buf_init(&path, CLI_PATH_SIZE);
    int code = cli_target(cli, &path);
    code = code != CLI_OK ? code : cli_body(cli, &body);
    code = code != CLI_OK ? code : cli_confirm(cli, cli->command->danger, name);
    if (code == CLI_OK) {
        struct cli_request request = {.method = "POST", .path = (const char *)path.data, .json = body};
        code = cli_ask(cli, &request);
    }
    json_decref(body);
    const char *id = json_string_value(json_object_get(cli->answer, "id"));
    if (code == CLI_OK && cli->wait && !cli->dry_run && id != NULL) {
        char name_of[64];
        snprintf(name_of, sizeof name_of, "%s", id);
        code = cli_wait(cli, name_of);
    }
    bool is_answer = json_is_object(cli->answer) && cli->status < 300;
    int shown = is_answer ? cli_show(cli, cli->answer) : CLI_OK;
    code = code != CLI_OK ? code : shown;
    return code == CLI_OK && cli->file != NULL && !cli->dry_run ? fetch_certificate(cli) : code;
}

/* --- certificates ------------------------------------------------------------------------------------------------- */

static int fetch_key(struct cli *cli, const char *name)
{
    char path[128], file[4096];
    const char *certificate = cli->file, *slash = strrchr(certificate, '/');
    snprintf(path, sizeof path, "/.well-known/kvrun/%s", name);
    if (snprintf(file, sizeof file, "%.*s%s", slash == NULL ? 0 : (int)(slash - certificate) + 1, certificate, name) >=
        (int)sizeof file) {
        return cli_usage_error(cli, "the name of the file is too long");
    }
    cli->file = file;
    int code = cli_download(cli, path, "*/*");
    cli->file = certificate;
    return code;
}

int cli_cert_get(struct cli *cli)
{
    struct kv_buf path KV_CLEANUP(kv_buf_done);
    kv_buf_init(&path, CLI_PATH_SIZE);
    int code = cli_target(cli, &path); /* checks the id */
    if (code != CLI_OK) {
        return code;
    }
    if (strncmp(cli->args[0], "era_", 4) == 0) {
        kv_buf_reset(&path);
        kv_buf_printf(&path, "/v1/erasures/%s/certificate", cli->args[0]);
    }
    if (cli_given(cli, "upgrade")) {
        bool erasure = strncmp(cli->args[0], "era_", 4) == 0;
        kv_buf_reset(&path);
        kv_buf_printf(&path, "/v1/%s/%s/upgrade.txt", erasure ? "erasures" : "certificates", cli->args[0]);
    }
    const char *at = (const char *)path.data;
    if (cli_given(cli, "with-keys") && cli->file == NULL) {
        return cli_usage_error(cli, "--with-keys needs -o FILE: the keys go beside it");
    }
    if (cli_given(cli, "jws")) {
        code = cli_download(cli, at, "application/jose, application/problem+json;q=0.1");
    } else if (cli->file != NULL || cli_given(cli, "bundle") || cli_given(cli, "upgrade")) {
        code = cli_download(cli, at, BUNDLE_TYPE);
    } else {
        struct cli_request request = {.method = "GET", .path = at, .accept = "application/json"};
        code = cli_ask(cli, &request);
        return code != CLI_OK ? code : cli_show(cli, cli->answer);
    }
    if (code == CLI_OK && cli_given(cli, "with-keys")) {
        code = fetch_key(cli, "jwks.json");
        code = code != CLI_OK ? code : fetch_key(cli, "log.vkey");
    }
    return code;
}

static int verify_online(struct cli *cli)
{
    struct kv_buf bundle KV_CLEANUP(kv_buf_done);
    kv_buf_init(&bundle, BUNDLE_MAX + 8192);
    int code = cli_read_file(cli->args[0], BUNDLE_MAX, &bundle);
    bool is_jws = bundle.len > 2 && memcmp(bundle.data, "eyJ", 3) == 0; /* {" in base64url */
    if (code == CLI_OK) {
        struct cli_request request = {.method = "POST",
                                      .path = cli->command->target,
                                      .body = bundle.data == NULL ? "" : (const char *)bundle.data,
                                      .content_type = is_jws ? "application/jose" : "text/plain"};
        code = cli_ask(cli, &request);
    }
    code = code != CLI_OK ? code : cli_show(cli, cli->answer);
    bool valid = json_is_true(json_object_get(cli->answer, "valid"));
    return code != CLI_OK ? code : valid ? CLI_OK : CLI_INTEGRITY;
}

int cli_cert_verify(struct cli *cli)
{
    if (cli_given(cli, "online")) {
        return verify_online(cli);
    }
    struct kv_verify options = {.file = cli->args[0],
                                .keys_folder = cli_text(cli, "keys"),
                                .certificate = cli_text(cli, "certificate"),
                                .json = cli->format == CLI_JSON || cli->format == CLI_JSONL,
                                .quiet = cli->quiet};
    int code = kv_verify_certificate(&options);
    return code == KV_VERIFY_NOT_VALID ? CLI_INTEGRITY : code;
}

static int export_from(struct cli *cli)
{
    struct kv_buf path KV_CLEANUP(kv_buf_done);
    kv_buf_init(&path, CLI_PATH_SIZE);
    int code = cli_target(cli, &path);
    return code != CLI_OK
               ? code
               : cli_download(cli, (const char *)path.data, "application/x-tar, application/problem+json;q=0.1");
}

int cli_cert_export(struct cli *cli)
{
    return export_from(cli);
}

int cli_audit_export(struct cli *cli)
{
    return export_from(cli);
}
