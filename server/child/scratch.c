/* See scratch.h. Must never take a setting of this machine's own server. */
#include "server/child/scratch.h"

#include "dataplane/base/check.h"
#include "dataplane/base/env.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LOG_MAX (64u << 20)
#define READY_NS (60 * KV_S_NS)
#define END_SECONDS 40u
#define NO_POSTGRES "PostgreSQL's server programs are not installed"

/* --- environment and folder -------------------------------------------------------------------------------------- */

void kv_scratch_clean_environment(void)
{
    static const char *const kept[] = {"KVRUN_IO_", "KVRUN_CRYPTO_"};
    extern char **environ;
    for (size_t i = 0; environ != NULL && environ[i] != NULL;) {
        char name[128];
        const char *entry = environ[i];
        bool ours = strncmp(entry, "KVRUN_", 6) == 0 && strncmp(entry, kept[0], strlen(kept[0])) != 0 &&
                    strncmp(entry, kept[1], strlen(kept[1])) != 0;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(entry, "="), entry);
        if ((!ours && strncmp(entry, "PG", 2) != 0) || unsetenv(name) != 0 || environ[i] == entry) {
            i++;
        }
    }
}

/* The database's user, when it is another one, gets through folders that everybody may search. */
static bool everybody_gets_to(const char *folder)
{
    char path[PATH_MAX];
    struct stat st;
    if (geteuid() != 0) {
        return true;
    }
    if (realpath(folder, path) == NULL) {
        return false;
    }
    for (char *slash = path + strlen(path); slash != NULL; slash = strrchr(path, '/')) {
        *slash = '\0';
        if (stat(path[0] == '\0' ? "/" : path, &st) != 0 || (st.st_mode & S_IXOTH) == 0) {
            return false;
        }
    }
    return true;
}

KV_RC kv_scratch_make(struct kv_scratch *scratch, const char *name, struct kv_errinfo *info)
{
    const char *parent = getenv("TMPDIR");
    /* A socket's path is at most 107 bytes. */
    bool usable = parent != NULL && strlen(parent) < 40 && access(parent, W_OK | X_OK) == 0;
    parent = usable && everybody_gets_to(parent) ? parent : "/tmp";
    snprintf(scratch->folder, sizeof scratch->folder, "%s/%s-XXXXXX", parent, name);
    if (mkdtemp(scratch->folder) == NULL) {
        scratch->folder[0] = '\0';
        return kv_fail(info, KV_E_IO, "cannot make a folder in %s: %s; set TMPDIR to one that you may write", parent,
                       strerror(errno));
    }
    return chmod(scratch->folder, 0711) == 0 ? KV_OK : kv_fail(info, KV_E_IO, "cannot open %s", scratch->folder);
}

const char *kv_scratch_at(const struct kv_scratch *scratch, const char *name, char path[KV_SCRATCH_PATH_SIZE])
{
    snprintf(path, KV_SCRATCH_PATH_SIZE, "%s/%s", scratch->folder, name);
    return path;
}

bool kv_scratch_remove(struct kv_scratch *scratch)
{
    char file[KV_SCRATCH_PATH_SIZE];
    struct kv_buf path;
    bool gone = true;
    if (scratch->folder[0] == '\0') {
        return true;
    }
    kv_buf_init(&path, sizeof file);
    if (kv_child_read_file(kv_scratch_at(scratch, "server/postgres.path", file), &path) == KV_OK && path.len > 0) {
        char *elsewhere = (char *)path.data;
        elsewhere[strcspn(elsewhere, "\n")] = '\0';
        gone = strstr(elsewhere, "/kvrun-postgres-") != NULL && kv_child_remove_tree(elsewhere);
    }
    kv_buf_done(&path);
    return kv_child_remove_tree(scratch->folder) && gone;
}

KV_RC kv_scratch_read_key(const struct kv_scratch *scratch, const char *name, char *ret_key, size_t size,
                          struct kv_errinfo *info)
{
    char file[KV_SCRATCH_PATH_SIZE];
    struct kv_buf text;
    kv_buf_init(&text, 4096);
    enum kv_err rc = kv_child_read_file(kv_scratch_at(scratch, name, file), &text);
    if (rc == KV_OK && (text.len == 0 || text.len >= size)) {
        rc = kv_fail(info, KV_E_CORRUPT, "the operator's key file does not hold a key");
    }
    if (rc == KV_OK) {
        memcpy(ret_key, text.data, text.len);
        ret_key[text.len] = '\0';
        ret_key[strcspn(ret_key, "\n")] = '\0';
    }
    if (text.len > 0) {
        explicit_bzero(text.data, text.len);
    }
    kv_buf_done(&text);
    return rc;
}

/* --- the server -------------------------------------------------------------------------------------------------- */

static bool find_ready(const struct kv_buf *log, unsigned *ret_port)
{
    const char *ready = log->data == NULL ? NULL : strstr((const char *)log->data, "\"event\":\"ready\"");
    const char *port = ready == NULL ? NULL : strstr(ready, "\"port\":");
    return port != NULL && sscanf(port, "\"port\":%u", ret_port) == 1;
}

/* What a server that did not start said last, in a line of its own. */
static KV_RC tell_why(const struct kv_buf *log, struct kv_errinfo *info)
{
    const char *line = NULL, *text = log->data == NULL ? "" : (const char *)log->data;
    for (const char *at = strstr(text, "kvrun: "); at != NULL; at = strstr(at + 1, "kvrun: ")) {
        line = at == text || at[-1] == '\n' ? at + strlen("kvrun: ") : line;
    }
    if (line == NULL) {
        return kv_fail(info, KV_E_TIMEOUT, "the server did not get ready");
    }
    int len = (int)strcspn(line, "\n");
    bool missing = strncmp(line, NO_POSTGRES, strlen(NO_POSTGRES)) == 0;
    return kv_fail(info, missing ? KV_E_UNSUPPORTED : KV_E_IO, "the server did not start: %.*s", len, line);
}

static KV_RC await_ready(struct kv_scratch *scratch, const char *log, struct kv_errinfo *info)
{
    uint64_t deadline = kv_now_ns(&kv_env_system) + READY_NS;
    bool ready = false;
    struct kv_buf text;
    kv_buf_init(&text, LOG_MAX);
    while (!ready && kv_now_ns(&kv_env_system) < deadline && kv_child_alive(scratch->server) &&
           kv_child_caught_signal() == 0) {
        struct timespec pause = {.tv_nsec = 50 * 1000 * 1000};
        nanosleep(&pause, NULL);
        kv_buf_reset(&text);
        ready = kv_child_read_file(log, &text) == KV_OK && find_ready(&text, &scratch->port);
    }
    enum kv_err rc = ready ? KV_OK : tell_why(&text, info);
    kv_buf_done(&text);
    return rc;
}

KV_RC kv_scratch_serve(struct kv_scratch *scratch, const char *exe, const char *const more[], struct kv_errinfo *info)
{
    char state[KV_SCRATCH_PATH_SIZE], log[KV_SCRATCH_PATH_SIZE], file[KV_SCRATCH_PATH_SIZE];
    /* An empty file, so that no configuration of this machine's own server is taken. */
    KV_TRY(kv_child_write_file(kv_scratch_at(scratch, "kvrun.conf", file), KV_BYTES("", 0), info));
    snprintf(state, sizeof state, "--state.dir=%s/server", scratch->folder);
    const char *argv[KV_SCRATCH_ARGS_MAX + 1] = {
        exe, "serve", "--config", file, state, "--http.listen=127.0.0.1:0", "--http.admin_listen=127.0.0.1:0"};
    unsigned count = 7;
    for (unsigned i = 0; more[i] != NULL; i++) {
        KV_ASSERT(count < KV_SCRATCH_ARGS_MAX);
        argv[count++] = more[i];
    }
    kv_scratch_at(scratch, "server.log", log);
    KV_TRY(kv_child_spawn((char *const *)(uintptr_t)argv, log, info, &scratch->server)); /* execv only reads them */
    return await_ready(scratch, log, info);
}

KV_RC kv_scratch_end(struct kv_scratch *scratch, struct kv_errinfo *info)
{
    pid_t pid = scratch->server;
    scratch->server = 0;
    return pid > 0 ? kv_child_end(pid, END_SECONDS, info) : KV_OK;
}
