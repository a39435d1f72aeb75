/* See transit_service.h. */
#include "tests/lib/transit_service.h"

#include "dataplane/io/httpc.h"
#include "kv_version.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TOKEN "s.the-token-of-a-test"

static void become_service(int in, int out)
{
    if (dup2(in, 0) < 0 || dup2(out, 1) < 0) {
        _exit(127);
    }
    closefrom(3);
    execlp("python3", "python3", "-B", KV_SOURCE_DIR "/tests/lib/transit_double.py", TOKEN, (char *)NULL);
    _exit(127);
}

bool kvt_transit_start(const char *folder, struct kvt_transit *ret_transit)
{
    int to[2], from[2];
    unsigned port = 0;
    if (pipe(to) != 0 || pipe(from) != 0) {
        return false;
    }
    pid_t child = fork();
    if (child == 0) {
        become_service(to[0], from[1]);
    }
    close(to[0]); /* to[1] stays open: the service ends with this process */
    close(from[1]);
    FILE *said = fdopen(from[0], "r");
    bool started = child > 0 && said != NULL && fscanf(said, "port %u", &port) == 1;
    if (said != NULL) {
        fclose(said);
    }
    if (!started) {
        return false;
    }
    struct kvt_transit *transit = ret_transit;
    snprintf(transit->address, sizeof transit->address, "http://127.0.0.1:%u", port);
    kvt_path_join(transit->token_file, folder, "token");
    kvt_file_write(transit->token_file, TOKEN "\n", sizeof TOKEN, 0600);
    transit->conf = (struct kv_roe_transit_conf){
        .address = transit->address, .token_file = transit->token_file, .timeout_ms = 30000};
    return true;
}

void kvt_transit_control(const struct kvt_transit *transit, const char *json, char *answer, size_t size)
{
    struct kv_httpc *client = NULL;
    struct kv_buf body;
    int status = 0;
    const struct kv_httpc_request request = {.method = "POST", .path = "/double/", .body = json, .timeout_ms = 30000};
    kv_buf_init(&body, 1 << 20);
    if (kv_httpc_new(transit->address, NULL, &client) != KV_OK ||
        kv_httpc_do(client, &request, NULL, &status, &body) != KV_OK || status != 200) {
        abort();
    }
    snprintf(answer, size, "%s", (const char *)body.data);
    kv_httpc_free(client);
    kv_buf_done(&body);
}
