/*
 * Reading an nvme folder as a thief does. It must never write to it, and takes no lock.
 */
#include "tests/attack/arena.h"
#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"
#include "dataplane/tier/nvme_read.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SCAN_BYTES (1u << 20)

struct walk {
    struct copies *copies;
    const struct kv_id *session;
    int fd;
};

static void add_copy(struct copies *copies, const struct copy *copy)
{
    if (copies->count == copies->size) {
        copies->size = copies->size == 0 ? 1024 : copies->size * 2;
        copies->list = kv_realloc_array(copies->list, copies->size, sizeof(*copies->list));
        if (copies->list == NULL) {
            abort();
        }
    }
    copies->list[copies->count++] = *copy;
}

static void take_entry(void *ctx, const struct kv_tier_key *key, uint64_t offset, uint64_t bytes, bool promised)
{
    struct walk *walk = ctx;
    (void)promised;
    if (walk->session == NULL || kv_id_equal(&key->scope, walk->session)) {
        const struct copy copy = {.scope = key->scope, .offset = offset, .bytes = bytes, .fd = walk->fd};
        add_copy(walk->copies, &copy);
    }
}

static bool is_listed(const struct copies *copies, int fd, uint64_t offset)
{
    for (size_t i = 0; i < copies->count; i++) {
        if (copies->list[i].offset == offset && copies->list[i].fd == fd) {
            return true;
        }
    }
    return false;
}

static void look_at_page(struct walk *walk, const uint8_t *page, size_t len, uint64_t offset)
{
    struct kv_sealed_context context;
    if (kv_sealed_peek(KV_BYTES(page, len), &context) != KV_OK || is_listed(walk->copies, walk->fd, offset) ||
        (walk->session != NULL && !kv_id_equal(&context.scope, walk->session))) {
        return;
    }
    if (context.kind != KV_SEALED_BLOCK) {
        return; /* A node in an image of memory. */
    }
    const struct copy copy = {.scope = context.scope,
                              .offset = offset,
                              .bytes = kv_sealed_bytes(context.plaintext_length),
                              .fd = walk->fd,
                              .leftover = true};
    add_copy(walk->copies, &copy);
}

/* Holes of a sparse file are passed over; where the file system knows none, everything is read. */
static void scan_file(struct walk *walk, uint8_t *buffer)
{
    off_t at = 0;
    for (;;) {
        off_t data = lseek(walk->fd, at, SEEK_DATA);
        if (data < 0 && errno == ENXIO) {
            return;
        }
        at = data >= 0 ? data - data % (off_t)KV_SEALED_ALIGN : at;
        ssize_t got = pread(walk->fd, buffer, SCAN_BYTES, at);
        if (got <= 0) {
            return;
        }
        for (size_t page = 0; page < (size_t)got; page += KV_SEALED_ALIGN) {
            size_t left = (size_t)got - page;
            look_at_page(walk, buffer + page, left < KV_SEALED_ALIGN ? left : KV_SEALED_ALIGN, (uint64_t)at + page);
        }
        at += got;
    }
}

static KV_RC scan(struct walk *walk)
{
    uint8_t *buffer = kv_alloc(SCAN_BYTES);
    if (buffer == NULL) {
        return KV_E_NO_MEMORY;
    }
    scan_file(walk, buffer);
    kv_free(buffer);
    return KV_OK;
}

static KV_RC open_file(struct copies *copies, const char *path, int *ret_fd)
{
    int fd = copies->fd_count < COPIES_FILES_MAX ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) {
        return copies->fd_count < COPIES_FILES_MAX ? KV_E_IO : KV_E_LIMIT;
    }
    copies->fds[copies->fd_count++] = fd;
    *ret_fd = fd;
    return KV_OK;
}

KV_RC copies_add_folder(struct copies *copies, const char *folder, const struct kv_id *session, bool leftovers)
{
    struct walk walk = {.copies = copies, .session = session};
    char path[4096];
    int len = snprintf(path, sizeof(path), "%s/arena", folder);
    KV_TRY(len > 0 && (size_t)len < sizeof(path) ? KV_OK : KV_E_IO);
    KV_TRY(open_file(copies, path, &walk.fd));
    KV_TRY(kv_nvme_walk(folder, take_entry, &walk));
    return leftovers ? scan(&walk) : KV_OK;
}

KV_RC copies_add_file(struct copies *copies, const char *path, const struct kv_id *session)
{
    struct walk walk = {.copies = copies, .session = session};
    KV_TRY(open_file(copies, path, &walk.fd));
    return scan(&walk);
}

void copies_done(struct copies *copies)
{
    for (size_t i = 0; i < copies->fd_count; i++) {
        close(copies->fds[i]);
    }
    kv_free(copies->list);
    *copies = (struct copies){0};
}

static bool read_copy(const struct copy *copy, uint8_t *target)
{
    uint64_t done = 0;
    while (done < copy->bytes) {
        ssize_t got = pread(copy->fd, target + done, (size_t)(copy->bytes - done), (off_t)(copy->offset + done));
        if (got <= 0) {
            return false;
        }
        done += (uint64_t)got;
    }
    return true;
}

static void open_one(const struct copy *copy, struct opener *opener, struct tally *tally)
{
    uint8_t *sealed = kv_alloc((size_t)copy->bytes);
    bool read = sealed != NULL && read_copy(copy, sealed);
    bool opened = read && opener_try(opener, &copy->scope, KV_BYTES(sealed, (size_t)copy->bytes));
    kv_free(sealed);
    size_t *all = copy->leftover ? &tally->leftovers : &tally->copies;
    size_t *good = copy->leftover ? &tally->leftovers_opened : &tally->opened;
    *all += 1;
    *good += opened ? 1 : 0;
    tally->unreadable += read ? 0 : 1;
}

static int by_scope(const void *a, const void *b)
{
    const struct copy *one = a, *other = b;
    return memcmp(one->scope.b, other->scope.b, sizeof(one->scope.b));
}

void copies_open(struct copies *copies, struct opener *opener, size_t loosely_every, copies_scope_fn *fn, void *ctx)
{
    size_t scopes = 0;
    if (copies->count > 0) {
        qsort(copies->list, copies->count, sizeof(*copies->list), by_scope);
    }
    for (size_t i = 0; i < copies->count; scopes++) {
        struct tally_of_scope of = {.scope = copies->list[i].scope};
        opener->loosely = loosely_every > 0 && scopes % loosely_every == 0;
        for (; i < copies->count && kv_id_equal(&copies->list[i].scope, &of.scope); i++) {
            open_one(&copies->list[i], opener, &of.tally);
        }
        fn(ctx, &of);
    }
}
