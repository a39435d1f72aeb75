/*
 * A folder of a test's own in $TMPDIR or /tmp, and files in it.
 */
#ifndef KV_TESTS_TEMP_FOLDER_H
#define KV_TESTS_TEMP_FOLDER_H

#include <stddef.h>
#include <stdint.h>

#define KVT_PATH_BYTES 512

/* Makes the folder, mode 0700; exits 77 when it cannot. */
void kvt_folder_make(char ret_path[KVT_PATH_BYTES]);
void kvt_folder_remove(const char *path); /* with the plain files and folders in it, one level of folders deep */
/* Writes (or replaces) a file. `mode` as in open(2). */
void kvt_file_write(const char *path, const void *data, size_t len, unsigned mode);
/* Reads at most `size` bytes from `offset`; the count. */
size_t kvt_file_read(const char *path, uint64_t offset, void *target, size_t size);
/* `path` has room for KVT_PATH_BYTES. */
void kvt_path_join(char *path, const char *folder, const char *name);

#endif
