/*
 * What a run of the demo uses of the machine and leaves on it: its environment, its folder, the end of its server's
 * log. Must never remove what the run did not make.
 */
#include "server/demo_int.h"

#include <errno.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOG_LINES 12u

/* Of the environment counts only how the server computes, not what names another server, database or place. */
void demo_clean_environment(void)
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

static KV_RC make_folder(struct demo *demo)
{
    const char *parent = getenv("TMPDIR");
    /* A socket's path is at most 107 bytes. */
    bool usable = parent != NULL && strlen(parent) < 40 && access(parent, W_OK | X_OK) == 0;
    parent = usable && everybody_gets_to(parent) ? parent : "/tmp";
    snprintf(demo->folder, sizeof demo->folder, "%s/kvrun-demo-XXXXXX", parent);
    if (mkdtemp(demo->folder) == NULL) {
        demo->folder[0] = '\0';
        return kv_fail(&demo->info, KV_E_IO, "cannot make a folder in %s: %s; set TMPDIR to one that you may write",
                       parent, strerror(errno));
    }
    return chmod(demo->folder, 0711) == 0 ? KV_OK : kv_fail(&demo->info, KV_E_IO, "cannot open %s", demo->folder);
}

KV_RC demo_prepare(struct demo *demo)
{
    char exe[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n <= 0) {
        return kv_fail(&demo->info, KV_E_IO, "cannot find the other programs of this build: /proc is not there");
    }
    KV_TRY(make_folder(demo));
    exe[n] = '\0';
    snprintf(demo->bin, sizeof demo->bin, "%s", dirname(exe));
    snprintf(demo->certificate, sizeof demo->certificate, "%.4000s/demo-certificate", demo->bin);
    if (mkdir(demo->certificate, 0755) != 0 && errno != EEXIST) {
        demo_at(demo, "certificate", demo->certificate);
        demo->keep = true;
        if (mkdir(demo->certificate, 0755) != 0) {
            return kv_fail(&demo->info, KV_E_IO, "cannot make a folder for the certificate: %s", strerror(errno));
        }
    }
    return KV_OK;
}

/* What the server said last, before its log goes. */
void demo_print_log(struct demo *demo)
{
    char log[PATH_SIZE];
    kv_buf_reset(&demo->out);
    if (demo->server <= 0 || demo_read_file(demo_at(demo, "server.log", log), &demo->out) != KV_OK ||
        demo->out.len == 0) {
        return;
    }
    const char *text = (const char *)demo->out.data, *from = text + demo->out.len - 1;
    for (unsigned lines = 0; from > text && (lines += from[-1] == '\n') < LOG_LINES;) {
        from--;
    }
    printf("\nthe end of the server's log:\n%s", from);
}

/* The private database lies elsewhere when its user does not get to the run's folder. */
bool demo_remove_all(struct demo *demo)
{
    char file[PATH_SIZE];
    bool gone = true;
    kv_buf_reset(&demo->out);
    if (demo_read_file(demo_at(demo, "server/postgres.path", file), &demo->out) == KV_OK && demo->out.len > 0) {
        char *elsewhere = (char *)demo->out.data;
        elsewhere[strcspn(elsewhere, "\n")] = '\0';
        gone = strstr(elsewhere, "/kvrun-postgres-") != NULL && demo_remove_tree(elsewhere);
    }
    return demo_remove_tree(demo->folder) && gone;
}
