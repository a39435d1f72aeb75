/*
 * kvrun-scan: what a debugger with every right sees of a running process, searched for secrets. It stops all threads,
 * reads every page that is there, whatever its protection and whether or not a core dump would take it, and the
 * registers of each thread.
 *
 *   kvrun-scan PID|CORE-FILE < NEEDLES      each needle a line "name hex", of 16 bytes
 *   hit NAME WHERE OFFSET                   WHERE: the mapping's name, or "registers"
 *   read BYTES unreadable BYTES threads N
 *
 * Exit status 0: it ran, whatever it found. 2: it could not. Must never change the process it looks at.
 */
#include <dirent.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dataplane/base/bytes.h"
#include "dataplane/base/mem.h"

/* So much in one piece is a sanitizer's shadow, which has terabytes of addresses and no data in them. */
#define RESERVED_BYTES (UINT64_C(1) << 36)

enum { NEEDLE_BYTES = 16, NEEDLES_MAX = 65536, FILTER_BITS = 20, CHUNK = 1 << 20, THREADS_MAX = 512, HITS_MAX = 4000 };

struct needle {
    char name[48];
    uint8_t bytes[NEEDLE_BYTES];
    uint32_t next; /* of the same bucket, plus one */
};

static struct needle *needles;
static uint32_t needle_count, buckets[1 << FILTER_BITS]; /* index plus one */
static uint64_t bytes_read, bytes_unreadable, hits;

static _Noreturn void give_up(const char *what)
{
    fprintf(stderr, "kvrun-scan: %s: %s\n", what, strerror(errno));
    exit(2);
}

static uint32_t bucket_of(const uint8_t *bytes)
{
    uint32_t word;
    memcpy(&word, bytes, sizeof word);
    return word * 2654435761u >> (32 - FILTER_BITS);
}

static void read_needles(void)
{
    char line[256], hex[128];
    needles = kv_alloc_array(NEEDLES_MAX, sizeof *needles);
    while (needles != NULL && fgets(line, sizeof line, stdin) != NULL && needle_count < NEEDLES_MAX) {
        struct needle *needle = &needles[needle_count];
        if (sscanf(line, "%47s %127s", needle->name, hex) != 2 || strlen(hex) != 2 * (size_t)NEEDLE_BYTES ||
            kv_hex_decode(hex, needle->bytes, NEEDLE_BYTES) != KV_OK) {
            errno = EINVAL;
            give_up("a needle is a name and 32 hex digits");
        }
        uint32_t bucket = bucket_of(needle->bytes);
        needle->next = buckets[bucket];
        buckets[bucket] = ++needle_count;
    }
    if (needle_count == 0 || needle_count == NEEDLES_MAX) {
        errno = EINVAL;
        give_up("no needles, or too many");
    }
}

static void search(const uint8_t *bytes, size_t len, const char *where, uint64_t offset)
{
    for (size_t i = 0; i + NEEDLE_BYTES <= len; i++) {
        for (uint32_t n = buckets[bucket_of(bytes + i)]; n != 0; n = needles[n - 1].next) {
            if (memcmp(needles[n - 1].bytes, bytes + i, NEEDLE_BYTES) == 0 && ++hits <= HITS_MAX) {
                printf("hit %s %s %" PRIx64 "\n", needles[n - 1].name, where, offset + i);
            }
        }
    }
}

/* ---- a running process ---- */

static pid_t threads[THREADS_MAX];
static unsigned thread_count;

static bool knows(pid_t thread)
{
    for (unsigned i = 0; i < thread_count; i++) {
        if (threads[i] == thread) {
            return true;
        }
    }
    return false;
}

/* Stops the threads that are not stopped yet. False: there was none. */
static bool stop_more(const char *process)
{
    char path[64];
    bool found = false;
    snprintf(path, sizeof path, "/proc/%s/task", process);
    DIR *folder = opendir(path);
    if (folder == NULL) {
        give_up(path);
    }
    for (const struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        pid_t thread = (pid_t)strtol(entry->d_name, NULL, 10);
        if (thread <= 0 || knows(thread) || thread_count == THREADS_MAX) {
            continue;
        }
        if (ptrace(PTRACE_SEIZE, thread, NULL, NULL) != 0) {
            if (errno == ESRCH) {
                continue; /* ended meanwhile */
            }
            give_up("ptrace");
        }
        int status;
        ptrace(PTRACE_INTERRUPT, thread, NULL, NULL);
        waitpid(thread, &status, __WALL);
        threads[thread_count++] = thread;
        found = true;
    }
    closedir(folder);
    return found;
}

static void search_registers(pid_t thread)
{
    static uint8_t registers[16384];
    const int sets[] = {NT_PRSTATUS, NT_X86_XSTATE, NT_PRFPREG};
    for (unsigned i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        struct iovec vector = {.iov_base = registers, .iov_len = sizeof registers};
        if (ptrace(PTRACE_GETREGSET, thread, (void *)(uintptr_t)sets[i], &vector) == 0) {
            search(registers, vector.iov_len, "registers", (uint64_t)thread);
        }
    }
}

struct mapping {
    uint64_t start, end;
    char name[256];
};

/* Whether the page was ever touched. A sanitizer reserves terabytes, and a page table says at once what is there. */
static bool is_present(const uint64_t *entries, size_t index)
{
    return (entries[index] >> 62) != 0; /* in memory, or in swap */
}

/* False when it cannot be read in one piece. */
static bool search_piece(int memory, const struct mapping *mapping, uint64_t at, size_t len)
{
    static uint8_t chunk[CHUNK + NEEDLE_BYTES];
    static uint64_t chunk_end;
    size_t before = at == chunk_end ? NEEDLE_BYTES - 1 : 0; /* what lies across two pieces is found, too */
    if (pread(memory, chunk + NEEDLE_BYTES - 1, len, (off_t)at) != (ssize_t)len) {
        return false;
    }
    uint8_t *first = chunk + NEEDLE_BYTES - 1 - before;
    bytes_read += len;
    search(first, before + len, mapping->name, at - before - mapping->start);
    memmove(chunk, first + before + len - (NEEDLE_BYTES - 1), NEEDLE_BYTES - 1);
    chunk_end = at + len;
    return true;
}

static void search_pages(int memory, const struct mapping *mapping, uint64_t at, size_t len)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (search_piece(memory, mapping, at, len)) {
        return;
    }
    for (size_t i = 0; i < len; i += page) {
        if (!search_piece(memory, mapping, at + i, page)) {
            bytes_unreadable += page;
        }
    }
}

static void search_mapping(int memory, int pagemap, const struct mapping *mapping)
{
    static uint64_t entries[CHUNK / 4096];
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), piece = page * (sizeof entries / sizeof entries[0]);
    /* Of memory that is shared the kernel forgets in a process what it can find again; a read brings it back. */
    bool all = strncmp(mapping->name, "/memfd:", 7) == 0;
    for (uint64_t at = mapping->start; at < mapping->end; at += piece) {
        uint64_t len = mapping->end - at < piece ? mapping->end - at : piece;
        ssize_t got = pread(pagemap, entries, (size_t)(len / page) * 8, (off_t)(at / page * 8));
        for (size_t i = 0; got > 0 && i < (size_t)got / 8; i++) {
            size_t from = i;
            while (i < (size_t)got / 8 && (all || is_present(entries, i))) {
                i++;
            }
            if (i > from) {
                search_pages(memory, mapping, at + from * page, (i - from) * page);
            }
        }
    }
}

static int open_of(const char *process, const char *name)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%s/%s", process, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        give_up(path);
    }
    return fd;
}

static void search_process(const char *process)
{
    char line[512];
    while (stop_more(process)) {
    }
    for (unsigned i = 0; i < thread_count; i++) {
        search_registers(threads[i]);
    }
    int memory = open_of(process, "mem"), pagemap = open_of(process, "pagemap");
    FILE *maps = fdopen(open_of(process, "maps"), "r");
    while (fgets(line, sizeof line, maps) != NULL) {
        struct mapping mapping = {.name = "anonymous"};
        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %*s %*s %*s %*s %255s", &mapping.start, &mapping.end, mapping.name) >=
                2 &&
            (mapping.start >> 63) == 0 && mapping.end - mapping.start < RESERVED_BYTES) {
            search_mapping(memory, pagemap, &mapping);
        }
    }
    fclose(maps);
    for (unsigned i = 0; i < thread_count; i++) {
        ptrace(PTRACE_DETACH, threads[i], NULL, NULL);
    }
}

/* ---- a file ---- */

static void search_file(const char *path)
{
    static uint8_t chunk[CHUNK + NEEDLE_BYTES];
    size_t before = 0;
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        give_up(path);
    }
    for (size_t got = fread(chunk, 1, CHUNK, file); got > 0; got = fread(chunk + before, 1, CHUNK, file)) {
        search(chunk, before + got, "file", bytes_read - before);
        bytes_read += got;
        size_t keep = before + got < NEEDLE_BYTES - 1 ? before + got : NEEDLE_BYTES - 1;
        memmove(chunk, chunk + before + got - keep, keep);
        before = keep;
    }
    fclose(file);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: kvrun-scan PID|CORE-FILE < needles\n");
        return 2;
    }
    read_needles();
    if (strspn(argv[1], "0123456789") == strlen(argv[1])) {
        search_process(argv[1]);
    } else {
        search_file(argv[1]);
    }
    printf("read %" PRIu64 " unreadable %" PRIu64 " threads %u\n", bytes_read, bytes_unreadable, thread_count);
    kv_free(needles);
    return 0;
}
