/* Commands that are a little more than a row: keys, policies, the audit log's check, levels, help, version. */
#include "server/cli/cli_int.h"

#include "dataplane/io/httpc.h"
#include "kv_version.h"
#include "policies/policy_vectors.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define POLICY_MAX 65536u

/* --- API keys ------------------------------------------------------------------------------------------------------
 */

static int keep_secret(struct cli *cli, const char *file)
{
    const char *secret = json_string_value(json_object_get(cli->answer, "secret"));
    if (secret == NULL) {
        return CLI_OK; /* a dry run, or an answer that was repeated too late */
    }
    int fd = cli_new_file(file);
    bool ok = fd >= 0 && write(fd, secret, strlen(secret)) == (ssize_t)strlen(secret) && write(fd, "\n", 1) == 1 &&
              fsync(fd) == 0;
    if (fd >= 0 && close(fd) != 0) {
        ok = false;
    }
    if (!ok) {
        fputs("kvrun: the secret could not be kept; revoke the key and make another\n", stderr);
        return CLI_NEGATIVE;
    }
    return json_object_del(cli->answer, "secret") == 0 ? CLI_OK : CLI_NEGATIVE;
}

int cli_key_create(struct cli *cli)
{
    const char *file = cli_text(cli, "secret-file");
    json_t *body = NULL;
    struct kv_buf path KV_CLEANUP(kv_buf_done);
    kv_buf_init(&path, CLI_PATH_SIZE);
    if (file != NULL && access(file, F_OK) == 0) { /* before there is a secret that nobody would have */
        return cli_usage_error(cli, "--secret-file: there is a file of that name already");
    }
    int code = cli_target(cli, &path);
    code = code != CLI_OK ? code : cli_body(cli, &body);
    if (code == CLI_OK) {
        struct cli_request request = {.method = "POST", .path = (const char *)path.data, .json = body};
        code = cli_ask(cli, &request);
    }
    json_decref(body);
    if (code != CLI_OK) {
        return code;
    }
    code = file == NULL ? CLI_OK : keep_secret(cli, file);
    bool shown = file == NULL && json_object_get(cli->answer, "secret") != NULL;
    int printed = cli_show(cli, cli->answer);
    if (shown && cli->tty) {
        cli_note(cli, "the secret is shown this once");
    }
    explicit_bzero(cli->body.data, cli->body.len);
    return code != CLI_OK ? code : printed;
}

/* --- policies ------------------------------------------------------------------------------------------------------
 */

/* A policy from a file: its text, or what `policies get --json` printed, with the version around it. */
static int read_policy(const struct cli *cli, const char *file, json_t **ret_json)
{
    json_error_t error;
    struct kv_buf text KV_CLEANUP(kv_buf_done);
    kv_buf_init(&text, POLICY_MAX + 8192);
    int code = cli_read_file(file, POLICY_MAX, &text);
    if (code != CLI_OK) {
        return code;
    }
    json_t *json = json_loadb((const char *)text.data, text.len, JSON_REJECT_DUPLICATES, &error);
    if (json == NULL) {
        return cli_usage_error(cli, "%s line %d: %s", file, error.line, error.text);
    }
    json_t *inner = json_object_get(json, "policy");
    if (inner != NULL && json_object_get(json, "sha256") != NULL) {
        json_incref(inner);
        json_decref(json);
        json = inner;
    }
    *ret_json = json;
    return CLI_OK;
}

int cli_tenant_create(struct cli *cli)
{
    const char *file = cli_text(cli, "policy");
    json_t *policy = NULL, *body = NULL;
    struct kv_buf path KV_CLEANUP(kv_buf_done);
    kv_buf_init(&path, CLI_PATH_SIZE);
    int code = cli_target(cli, &path);
    code = code != CLI_OK || file == NULL ? code : read_policy(cli, file, &policy);
    code = code != CLI_OK ? code : cli_body(cli, &body);
    if (code == CLI_OK) {
        if (policy != NULL) {
            (void)json_object_set(body, "policy", policy);
        }
        struct cli_request request = {.method = "POST", .path = (const char *)path.data, .json = body};
        code = cli_ask(cli, &request);
    }
    json_decref(policy);
    json_decref(body);
    return code != CLI_OK ? code : cli_show(cli, cli->answer);
}

/* The policy is put in the place of the one that was seen: the revision goes along. */
int cli_policy_set(struct cli *cli)
{
    json_t *policy = NULL;
    char etag[96] = "";
    struct kv_buf path KV_CLEANUP(kv_buf_done), get KV_CLEANUP(kv_buf_done);
    kv_buf_init(&path, CLI_PATH_SIZE);
    kv_buf_init(&get, CLI_PATH_SIZE);
    int code = cli_target(cli, &path);
    code = code != CLI_OK ? code : read_policy(cli, cli->args[0], &policy);
    if (code == CLI_OK && !cli_given(cli, "if-match")) {
        kv_buf_append(&get, path.data, strcspn((const char *)path.data, "?"));
        struct cli_request request = {.method = "GET", .path = (const char *)get.data};
        code = cli_ask(cli, &request);
        if (code == CLI_OK) {
            (void)kv_httpc_header(&cli->headers, "ETag", etag, sizeof etag);
        }
    }
    if (code == CLI_OK) {
        const char *given = cli_text(cli, "if-match");
        struct cli_request request = {.method = "PUT",
                                      .path = (const char *)path.data,
                                      .json = policy,
                                      .if_match = given != NULL     ? given
                                                  : etag[0] != '\0' ? etag
                                                                    : NULL};
        code = cli_ask(cli, &request);
    }
    json_decref(policy);
    return code != CLI_OK ? code : cli_show(cli, cli->answer);
}

static const char *tenant_of(const struct cli *cli)
{
    const char *tenant = cli_text(cli, "tenant");
    tenant = tenant != NULL ? tenant : getenv("KVRUN_TENANT");
    return tenant == NULL || tenant[0] == '\0' ? NULL : tenant;
}

static int post(struct cli *cli, json_t *body)
{
    struct cli_request request = {.method = "POST", .path = cli->command->target, .json = body};
    int code = cli_ask(cli, &request);
    json_decref(body);
    return code;
}

/* Of diff and replay: the policy goes into a member beside the flags. */
int cli_policy_diff(struct cli *cli)
{
    json_t *policy = NULL, *body = NULL;
    const char *member = strcmp(cli->command->name, "policies diff") == 0 ? "to" : "policy";
    int code = read_policy(cli, cli->args[0], &policy);
    code = code != CLI_OK ? code : cli_body(cli, &body);
    if (code != CLI_OK) {
        json_decref(policy);
        return code;
    }
    (void)json_object_set_new(body, member, policy);
    if (tenant_of(cli) != NULL) {
        (void)json_object_set_new(body, "tenant_id", json_string(tenant_of(cli)));
    }
    code = post(cli, body);
    return code != CLI_OK ? code : cli_show(cli, cli->answer);
}

/* 1 when the answer is deny, so that a script can ask. */
int cli_policy_eval(struct cli *cli)
{
    json_t *body = NULL, *policy = NULL;
    if (!cli_given(cli, "action")) {
        return cli_usage_error(cli, "what is to be judged? give --action");
    }
    int code = cli_given(cli, "policy") ? read_policy(cli, cli_text(cli, "policy"), &policy) : CLI_OK;
    code = code != CLI_OK ? code : cli_body(cli, &body);
    if (code != CLI_OK) {
        json_decref(policy);
        return code;
    }
    if (policy != NULL) {
        (void)json_object_set_new(body, "policy", policy);
    }
    if (tenant_of(cli) != NULL) {
        (void)json_object_set_new(body, "tenant_id", json_string(tenant_of(cli)));
    }
    code = post(cli, body);
    code = code != CLI_OK ? code : cli_show(cli, cli->answer);
    const char *decision = json_string_value(json_object_get(cli->answer, "decision"));
    return code != CLI_OK ? code : decision != NULL && strcmp(decision, "deny") == 0 ? CLI_NEGATIVE : CLI_OK;
}

static void tell_case(void *ctx, const char *file, const char *name, const char *what)
{
    const struct cli *cli = ctx;
    struct kv_buf line KV_CLEANUP(kv_buf_done);
    kv_buf_init(&line, 8192);
    (void)cli_clean(&line, name, strlen(name));
    kv_buf_text(&line, ": ");
    (void)cli_clean(&line, what, strlen(what));
    if (!cli->quiet && cli->format != CLI_JSON && cli->format != CLI_JSONL) {
        printf("FAIL  %s: %s\n", file, line.data == NULL ? "" : (const char *)line.data);
    }
}

/* 1 when a case failed. */
int cli_policy_test(struct cli *cli)
{
    struct kv_policy_vectors_result total = {0};
    for (size_t i = 0; i < cli->arg_count; i++) {
        struct kv_errinfo info = {0};
        struct kv_policy_vectors_result one = {0};
        enum kv_err rc = kv_policy_vectors_run(cli->args[i], tell_case, cli, &info, &one);
        if (rc != KV_OK) {
            fprintf(stderr, "kvrun: %s: %s\n", cli->args[i], info.text[0] == '\0' ? kv_err_title(rc) : info.text);
            return cli_exit_of(rc);
        }
        total.files += one.files;
        total.cases += one.cases;
        total.failed += one.failed;
    }
    if (cli->format == CLI_JSON || cli->format == CLI_JSONL) {
        printf("{\"files\":%u,\"cases\":%u,\"failed\":%u}\n", total.files, total.cases, total.failed);
    } else if (!cli->quiet) {
        printf("%u cases of %u files, %u failed\n", total.cases, total.files, total.failed);
    }
    return total.failed == 0 ? CLI_OK : CLI_NEGATIVE;
}

/* --- the audit log -------------------------------------------------------------------------------------------------
 */

int cli_audit_verify(struct cli *cli)
{
    json_t *body = NULL;
    struct kv_buf path KV_CLEANUP(kv_buf_done);
    kv_buf_init(&path, CLI_PATH_SIZE);
    int code = cli_target(cli, &path);
    code = code != CLI_OK ? code : cli_body(cli, &body);
    if (code != CLI_OK) {
        return code;
    }
    body = body == NULL ? json_object() : body;
    struct cli_request request = {.method = "POST", .path = (const char *)path.data, .json = body};
    code = cli_ask(cli, &request);
    json_decref(body);
    const char *id = json_string_value(json_object_get(cli->answer, "id"));
    if (code == CLI_OK && id != NULL && strncmp(id, "opr_", 4) == 0) {
        char name[64];
        snprintf(name, sizeof name, "%s", id);
        code = cli_wait(cli, name);
    }
    const json_t *response = json_object_get(cli->answer, "response");
    response = response != NULL ? response : cli->answer;
    int shown = code == CLI_OK ? cli_show(cli, response) : CLI_OK;
    const json_t *ok = json_object_get(response, "ok");
    code = code != CLI_OK ? code : shown;
    return code != CLI_OK ? code : ok != NULL && !json_is_true(ok) ? CLI_INTEGRITY : CLI_OK;
}

/* --- levels, version -----------------------------------------------------------------------------------------------
 */

int cli_loglevel(struct cli *cli)
{
    json_t *body = NULL;
    struct cli_request request = {.method = "GET", .path = cli->command->target};
    int code = cli_body(cli, &body);
    if (code == CLI_OK && cli->arg_count == 0 && body != NULL) {
        json_decref(body);
        return cli_usage_error(cli, "which LEVEL? debug, info, warn or error");
    }
    if (code == CLI_OK && cli->arg_count > 0) {
        body = body == NULL ? json_object() : body;
        (void)json_object_set_new(body, "level", json_string(cli->args[0]));
        request.method = "PATCH";
        request.json = body;
        request.content_type = "application/merge-patch+json";
    }
    code = code != CLI_OK ? code : cli_ask(cli, &request);
    json_decref(body);
    return code != CLI_OK ? code : cli_show(cli, cli->answer);
}

int cli_version(struct cli *cli)
{
    if (cli->format == CLI_JSON || cli->format == CLI_JSONL) {
        printf("{\"version\":\"%s\",\"revision\":\"%s\"}\n", KV_VERSION, KV_REVISION);
    } else if (!cli->quiet) {
        printf("kvrun %s (%s)\n", KV_VERSION, KV_REVISION);
    }
    return CLI_OK;
}
