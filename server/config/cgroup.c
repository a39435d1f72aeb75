/*
 * How much memory this process may have: the machine's, or what its cgroup and those above it allow. Reads a few small
 * files; what cannot be read is no limit.
 */
#include "server/config/conf.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#define DRAM_MIN (UINT64_C(64) << 20)
#define DRAM_MAX (UINT64_C(64) << 30)
#define MIB (UINT64_C(1) << 20)

/* "max" is no limit, and so is a number near 2^63, which is how version 1 says it. */
static uint64_t read_limit(const char *path)
{
    uint64_t limit = UINT64_MAX;
    FILE *file = fopen(path, "re");
    if (file != NULL) {
        if (fscanf(file, "%" SCNu64, &limit) != 1) {
            limit = UINT64_MAX;
        }
        fclose(file);
    }
    return limit;
}

/* The group and all above it: the least counts. In a container the path is often the host's and not there, then the
 * mount's root is the container's own group. */
static uint64_t least_above(const char *mount, const char *group, const char *name)
{
    char path[PATH_MAX], at[1024];
    uint64_t least = UINT64_MAX;
    snprintf(at, sizeof at, "%s", strcmp(group, "/") == 0 ? "" : group);
    for (bool root = false; !root;) {
        root = at[0] == '\0';
        if (snprintf(path, sizeof path, "%s%s/%s", mount, at, name) < (int)sizeof path) {
            uint64_t limit = read_limit(path);
            least = limit < least ? limit : least;
        }
        char *slash = strrchr(at, '/');
        if (slash != NULL) {
            *slash = '\0';
        } else {
            at[0] = '\0';
        }
    }
    return least;
}

static bool has_controller(const char *list, const char *name)
{
    size_t len = strlen(name);
    for (const char *p = strstr(list, name); p != NULL; p = strstr(p + 1, name)) {
        if ((p == list || p[-1] == ',') && (p[len] == ',' || p[len] == '\0')) {
            return true;
        }
    }
    return false;
}

/* One line of /proc/self/cgroup: "0::/group" (version 2) or "4:memory:/group" (version 1). */
static uint64_t limit_of_line(const char *root, char *line)
{
    char mount[PATH_MAX];
    line[strcspn(line, "\n")] = '\0';
    char *controllers = strchr(line, ':');
    char *group = controllers == NULL ? NULL : strchr(controllers + 1, ':');
    if (group == NULL) {
        return UINT64_MAX;
    }
    *group++ = '\0';
    if (controllers[1] == '\0') {
        snprintf(mount, sizeof mount, "%s/sys/fs/cgroup", root);
        return least_above(mount, group, "memory.max");
    }
    if (!has_controller(controllers + 1, "memory")) {
        return UINT64_MAX;
    }
    snprintf(mount, sizeof mount, "%s/sys/fs/cgroup/memory", root);
    return least_above(mount, group, "memory.limit_in_bytes");
}

static uint64_t cgroup_limit(const char *root)
{
    char path[PATH_MAX], line[1024];
    uint64_t least = UINT64_MAX;
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        uint64_t limit = limit_of_line(root, line);
        least = limit < least ? limit : least;
    }
    if (file != NULL) {
        fclose(file);
    }
    return least;
}

static uint64_t machine_memory(const char *root)
{
    char path[PATH_MAX];
    uint64_t kib = 0;
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    FILE *file = fopen(path, "re");
    if (file != NULL) {
        if (fscanf(file, "MemTotal: %" SCNu64, &kib) != 1) {
            kib = 0;
        }
        fclose(file);
    }
    return kib * 1024;
}

uint64_t kv_conf_memory(const char *root)
{
    uint64_t memory = machine_memory(root), limit = cgroup_limit(root);
    return limit < memory ? limit : memory;
}

uint64_t kv_conf_dram_default(const char *root)
{
    uint64_t bytes = kv_conf_memory(root) / 4 / MIB * MIB;
    return bytes < DRAM_MIN ? DRAM_MIN : bytes > DRAM_MAX ? DRAM_MAX : bytes;
}
