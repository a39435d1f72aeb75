/*
 * Temporary folders and plain files for tests. Never removes anything that kvt_folder_make did not make.
 */
#include "tests/lib/temp_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void give_up(const char *what)
{
    perror(what);
    exit(77);
}

void kvt_folder_make(char ret_path[KVT_PATH_BYTES])
{
    const char *base = getenv("TMPDIR");
    snprintf(ret_path, KVT_PATH_BYTES, "%s/kvrun-test.XXXXXX", base != NULL && base[0] == '/' ? base : "/tmp");
    if (mkdtemp(ret_path) == NULL) {
        give_up("mkdtemp");
    }
}

void kvt_path_join(char *path, const char *folder, const char *name)
{
    snprintf(path, KVT_PATH_BYTES, "%s/%s", folder, name);
}

/* Files of a folder; `deeper` is called for an entry that is itself a folder. */
static void empty_folder(const char *path, void (*deeper)(const char *path))
{
    DIR *dir = opendir(path);
    if (dir == NULL) {
        return;
    }
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        char child[KVT_PATH_BYTES];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) {
            continue;
        }
        int len = snprintf(child, sizeof(child), "%s/%s", path, entry->d_name);
        if (len <= 0 || (size_t)len >= sizeof(child)) {
            continue;
        }
        if (unlink(child) != 0 && deeper != NULL) {
            deeper(child);
        }
    }
    closedir(dir);
    rmdir(path);
}

static void remove_inner(const char *path)
{
    empty_folder(path, NULL);
}

void kvt_folder_remove(const char *path)
{
    if (strstr(path, "/kvrun-test.") != NULL) {
        empty_folder(path, remove_inner);
    }
}

void kvt_file_write(const char *path, const void *data, size_t len, unsigned mode)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
    if (fd < 0 || write(fd, data, len) != (ssize_t)len || fchmod(fd, mode) != 0) {
        give_up("write");
    }
    close(fd);
}

size_t kvt_file_read(const char *path, uint64_t offset, void *target, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return 0;
    }
    ssize_t got = pread(fd, target, size, (off_t)offset);
    close(fd);
    return got < 0 ? 0 : (size_t)got;
}
