/* Child processes of tests. Never uses a shell. */
#include "tests/lib/run_program.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void become(const char *const *argv, int out)
{
    int null = open("/dev/null", O_RDONLY);
    if (null < 0 || dup2(null, 0) < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0) {
        _exit(127);
    }
    /* execvp takes pointers to char that it does not write. */
    execvp(argv[0], (char *const *)(size_t)argv);
    _exit(127);
}

static void read_all(int fd, char *output, size_t size)
{
    char dropped[4096];
    size_t len = 0;
    for (;;) {
        bool room = len + 1 < size;
        ssize_t got = read(fd, room ? output + len : dropped, room ? size - 1 - len : sizeof(dropped));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            break;
        }
        len += room ? (size_t)got : 0;
    }
    output[len] = '\0';
}

int kvt_program_run(const char *const *argv, char *output, size_t size)
{
    int ends[2];
    if (pipe(ends) != 0) {
        return -1;
    }
    pid_t child = fork();
    if (child < 0) {
        return -1;
    }
    if (child == 0) {
        become(argv, ends[1]);
    }
    close(ends[1]);
    read_all(ends[0], output, size);
    close(ends[0]);
    int status = 0;
    while (waitpid(child, &status, 0) < 0) {
        if (errno != EINTR) {
            return -1;
        }
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool kvt_program_exists(const char *name)
{
    char path[4096];
    const char *folders = getenv("PATH");
    if (strchr(name, '/') != NULL) {
        return access(name, X_OK) == 0;
    }
    while (folders != NULL && *folders != '\0') {
        size_t len = strcspn(folders, ":");
        int made = snprintf(path, sizeof(path), "%.*s/%s", (int)len, folders, name);
        if (made > 0 && (size_t)made < sizeof(path) && access(path, X_OK) == 0) {
            return true;
        }
        folders += len + (folders[len] == ':' ? 1 : 0);
    }
    return false;
}

void kvt_program_of_build(const char *name, char *path, size_t size)
{
    char self[4096];
    ssize_t len = readlink("/proc/self/exe", self, sizeof(self) - 1);
    self[len > 0 ? len : 0] = '\0';
    char *slash = strrchr(self, '/');
    if (slash != NULL) {
        *slash = '\0';
    }
    int made = snprintf(path, size, "%s/../%s", self, name);
    if (made <= 0 || (size_t)made >= size) {
        path[0] = '\0';
    }
}
