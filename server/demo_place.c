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

KV_RC demo_prepare(struct demo *demo)
{
    char exe[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n <= 0) {
        return kv_fail(&demo->info, KV_E_IO, "cannot find the other programs of this build: /proc is not there");
    }
    KV_TRY(kv_scratch_make(&demo->scratch, "kvrun-demo", &demo->info));
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
    if (demo->scratch.server <= 0 || kv_child_read_file(demo_at(demo, "server.log", log), &demo->out) != KV_OK ||
        demo->out.len == 0) {
        return;
    }
    const char *text = (const char *)demo->out.data, *from = text + demo->out.len - 1;
    for (unsigned lines = 0; from > text && (lines += from[-1] == '\n') < LOG_LINES;) {
        from--;
    }
    printf("\nthe end of the server's log:\n%s", from);
}
