/*
 * The power cut backend; see io_cut.h. Files are known by inode and held open, so that a name that goes away does not
 * take its durable bytes with it.
 */
#include "tests/lib/io_cut.h"

#include "dataplane/base/check.h"
#include "dataplane/base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILES_MAX 64
#define NAMES_MAX 32
#define PENDING_MAX 2048
#define QUEUE_MAX 64
#define SECTOR 512u

struct pending {
    uint64_t offset, len;
    uint8_t *data;
};

struct file {
    ino_t inode;
    int fd; /* of our own */
    bool folder;
    uint8_t *durable;
    uint64_t size; /* durable bytes */
    struct pending pending[PENDING_MAX];
    unsigned pending_count;
};

struct name {
    char text[256];
    ino_t inode;
};

struct names {
    struct name list[NAMES_MAX];
    unsigned count;
};

struct cut {
    struct kv_io base;
    uint64_t seed;
    unsigned fail_one_in;
    struct file *files[FILES_MAX];
    unsigned file_count;
    struct names durable_names;
    bool names_known;
    struct kv_io_request *queue[QUEUE_MAX];
    unsigned queued;
};

static const struct kv_io_ops cut_ops;

static struct cut *cut_of(struct kv_io *io)
{
    KV_ASSERT(io->ops == &cut_ops);
    return (struct cut *)io;
}

uint64_t kvt_cut_random(struct kv_io *io, uint64_t below)
{
    struct cut *c = cut_of(io);
    c->seed += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = c->seed;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (z ^ (z >> 31)) % below;
}

KV_RC kvt_cut_open(const struct kvt_cut_conf *conf, struct kv_io **ret_io)
{
    struct cut *c = kv_alloc(sizeof(*c));
    if (c == NULL) {
        return KV_E_NO_MEMORY;
    }
    c->base.ops = &cut_ops;
    c->seed = conf->seed;
    c->fail_one_in = conf->fail_one_in;
    *ret_io = &c->base;
    return KV_OK;
}

void kvt_cut_set_failures(struct kv_io *io, unsigned fail_one_in)
{
    cut_of(io)->fail_one_in = fail_one_in;
}

/* ---- files ---- */

static void make_room(struct file *file, uint64_t size)
{
    if (size > file->size) {
        uint8_t *grown = kv_realloc_array(file->durable, size, 1);
        KV_ASSERT(grown != NULL);
        memset(grown + file->size, 0, size - file->size);
        file->durable = grown;
        file->size = size;
    }
}

static struct file *find_file(struct cut *c, ino_t inode)
{
    for (unsigned i = 0; i < c->file_count; i++) {
        if (c->files[i]->inode == inode) {
            return c->files[i];
        }
    }
    return NULL;
}

/* What lies in a file before its first request was written and flushed by other means. */
static struct file *file_of(struct cut *c, int fd)
{
    struct stat st;
    KV_ASSERT(fstat(fd, &st) == 0);
    struct file *file = find_file(c, st.st_ino);
    if (file != NULL) {
        return file;
    }
    KV_ASSERT(c->file_count < FILES_MAX);
    file = kv_alloc(sizeof(*file));
    KV_ASSERT(file != NULL);
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    file->inode = st.st_ino;
    file->folder = S_ISDIR(st.st_mode);
    file->fd = open(path, O_RDONLY | O_CLOEXEC);
    KV_ASSERT(file->fd >= 0);
    c->files[c->file_count++] = file;
    if (!file->folder && st.st_size > 0) {
        make_room(file, (uint64_t)st.st_size);
        KV_ASSERT(pread(file->fd, file->durable, file->size, 0) == (ssize_t)file->size);
    }
    return file;
}

static void apply(struct file *file, const struct pending *p, uint64_t from, uint64_t len)
{
    make_room(file, p->offset + from + len);
    memcpy(file->durable + p->offset + from, p->data + from, len);
}

static void clear_pending(struct file *file)
{
    for (unsigned i = 0; i < file->pending_count; i++) {
        kv_free(file->pending[i].data);
    }
    file->pending_count = 0;
}

static void list_names(const char *path, int folder_fd, struct names *ret_names)
{
    char self[64];
    snprintf(self, sizeof(self), "/proc/self/fd/%d", folder_fd);
    DIR *dir = opendir(path != NULL ? path : self);
    KV_ASSERT(dir != NULL);
    ret_names->count = 0;
    for (const struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
        if (e->d_name[0] != '.' && strcmp(e->d_name, "lock") != 0) {
            KV_ASSERT(ret_names->count < NAMES_MAX);
            struct name *name = &ret_names->list[ret_names->count++];
            snprintf(name->text, sizeof(name->text), "%s", e->d_name);
            name->inode = e->d_ino;
        }
    }
    closedir(dir);
}

void kvt_cut_names_are_durable(struct kv_io *io, const char *folder)
{
    struct cut *c = cut_of(io);
    list_names(folder, -1, &c->durable_names);
    c->names_known = true;
    for (unsigned i = 0; i < c->durable_names.count; i++) {
        char path[800];
        snprintf(path, sizeof(path), "%s/%s", folder, c->durable_names.list[i].text);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        KV_ASSERT(fd >= 0);
        file_of(c, fd);
        close(fd);
    }
}

/* ---- requests ---- */

static int64_t do_write(struct kv_io_request *r, struct file *file, uint64_t len)
{
    if (len == 0) {
        return 0;
    }
    KV_ASSERT(file->pending_count < PENDING_MAX);
    struct pending *p = &file->pending[file->pending_count++];
    *p = (struct pending){.offset = r->offset, .len = len, .data = kv_alloc(len)};
    KV_ASSERT(p->data != NULL);
    memcpy(p->data, r->data, len);
    int flags = fcntl(r->fd, F_GETFL);
    KV_ASSERT(fcntl(r->fd, F_SETFL, flags & ~O_DIRECT) == 0); /* any length, any address */
    ssize_t n = pwrite(r->fd, r->data, len, (off_t)r->offset);
    return n < 0 ? -(int64_t)errno : (int64_t)n;
}

static void flush(struct cut *c, struct file *file, bool fails)
{
    if (file->folder && !fails) {
        list_names(NULL, file->fd, &c->durable_names);
        c->names_known = true;
    }
    for (unsigned i = 0; i < file->pending_count; i++) {
        if (!fails || kvt_cut_random(&c->base, 2) == 0) {
            apply(file, &file->pending[i], 0, file->pending[i].len);
        }
    }
    clear_pending(file);
}

/* KV_OK, or what the drive answers. */
static enum kv_err perform(struct cut *c, struct kv_io_request *r)
{
    bool fails = c->fail_one_in != 0 && kvt_cut_random(&c->base, c->fail_one_in) == 0;
    if (r->verb == KV_IO_READ) {
        ssize_t n = fails ? -1 : pread(r->fd, r->data, r->bytes, (off_t)r->offset);
        return n < 0 ? KV_E_IO : (uint64_t)n < r->bytes ? KV_E_TRUNCATED : KV_OK;
    }
    struct file *file = file_of(c, r->fd);
    if (r->verb == KV_IO_SYNC) {
        flush(c, file, fails);
        return fails ? KV_E_IO : KV_OK;
    }
    uint64_t len = fails ? kvt_cut_random(&c->base, r->bytes / SECTOR + 1) * SECTOR : r->bytes;
    int64_t n = do_write(r, file, len);
    return fails || n < (int64_t)r->bytes ? KV_E_IO : KV_OK;
}

static KV_RC cut_submit(struct kv_io *io, struct kv_io_request *request)
{
    struct cut *c = cut_of(io);
    if (c->queued == QUEUE_MAX) {
        return KV_E_BUSY;
    }
    c->queue[c->queued++] = request;
    return KV_OK;
}

/* Any of those that wait, and not always all of them. */
static unsigned cut_reap(struct kv_io *io, unsigned max)
{
    struct cut *c = cut_of(io);
    unsigned count = 0;
    while (count < max && c->queued > 0 && kvt_cut_random(io, 4) != 0) {
        unsigned at = (unsigned)kvt_cut_random(io, c->queued);
        struct kv_io_request *request = c->queue[at];
        c->queue[at] = c->queue[--c->queued];
        enum kv_err rc = perform(c, request);
        request->done(request, rc);
        count++;
    }
    return count;
}

static KV_RC cut_wait(struct kv_io *io, uint64_t deadline_ns)
{
    (void)deadline_ns;
    return cut_of(io)->queued > 0 ? KV_OK : KV_E_TIMEOUT;
}

static void cut_wake(struct kv_io *io)
{
    (void)cut_of(io);
}

static unsigned cut_in_flight(const struct kv_io *io)
{
    KV_ASSERT(io->ops == &cut_ops);
    return ((const struct cut *)io)->queued;
}

static void cut_close(struct kv_io *io)
{
    struct cut *c = cut_of(io);
    for (unsigned i = 0; i < c->file_count; i++) {
        clear_pending(c->files[i]);
        close(c->files[i]->fd);
        kv_free(c->files[i]->durable);
        kv_free(c->files[i]);
    }
    kv_free(c);
}

/* Opening is kvt_cut_open's; this backend is never selected by configuration. */
static const struct kv_io_ops cut_ops = {
    .name = "cut",
    .submit = cut_submit,
    .reap = cut_reap,
    .wait = cut_wait,
    .wake = cut_wake,
    .in_flight = cut_in_flight,
    .close = cut_close,
};

/* ---- the image ---- */

static void write_image_file(struct cut *c, const struct file *file, const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    KV_ASSERT(fd >= 0);
    if (file != NULL) {
        KV_ASSERT(pwrite(fd, file->durable, file->size, 0) == (ssize_t)file->size);
        for (unsigned i = 0; i < file->pending_count; i++) {
            const struct pending *p = &file->pending[i];
            /* Sectors by their place in the file, which need not be those of the write. */
            for (uint64_t at = p->offset; at < p->offset + p->len;) {
                uint64_t end = (at / SECTOR + 1) * SECTOR;
                end = end < p->offset + p->len ? end : p->offset + p->len;
                if (kvt_cut_random(&c->base, 2) == 0) {
                    KV_ASSERT(pwrite(fd, p->data + (at - p->offset), end - at, (off_t)at) == (ssize_t)(end - at));
                }
                at = end;
            }
        }
    }
    close(fd);
}

void kvt_cut_image(struct kv_io *io, const char *folder, const char *target)
{
    struct cut *c = cut_of(io);
    static struct names now;
    list_names(folder, -1, &now);
    const struct names *names = c->names_known && kvt_cut_random(io, 2) == 0 ? &c->durable_names : &now;
    for (unsigned i = 0; i < names->count; i++) {
        char path[800];
        snprintf(path, sizeof(path), "%s/%s", target, names->list[i].text);
        write_image_file(c, find_file(c, names->list[i].inode), path);
    }
}
