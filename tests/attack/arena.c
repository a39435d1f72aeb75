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
        const struct copy copy = {.scope = key->scope, .offset = offset, .bytes = bytes};
        add_copy(walk->copies, &copy);
    }
}

static bool is_listed(const struct copies *copies, uint64_t offset)
{
    for (size_t i = 0; i < copies->count; i++) {
        if (copies->list[i].offset == offset) {
            return true;
        }
    }
    return false;
}

static void look_at_page(struct walk *walk, const uint8_t *page, size_t len, uint64_t offset)
{
    struct kv_sealed_context context;
    if (kv_sealed_peek(KV_BYTES(page, len), &context) != KV_OK || is_listed(walk->copies, offset) ||
        (walk->session != NULL && !kv_id_equal(&context.scope, walk->session))) {
        return;
    }
    const struct copy copy = {
        .scope = context.scope, .offset = offset, .bytes = kv_sealed_bytes(context.plaintext_length), .leftover = true};
    add_copy(walk->copies, &copy);
}

/* Holes of a sparse file are passed over; where the file system knows none, everything is read. */
static void scan_arena(struct walk *walk, uint8_t *buffer)
{
    off_t at = 0;
    for (;;) {
        off_t data = lseek(walk->copies->fd, at, SEEK_DATA);
        if (data < 0 && errno == ENXIO) {
            return;
        }
        at = data >= 0 ? data - data % (off_t)KV_SEALED_ALIGN : at;
        ssize_t got = pread(walk->copies->fd, buffer, SCAN_BYTES, at);
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

static KV_RC open_arena(const char *folder, int *ret_fd)
{
    char path[4096];
    int len = snprintf(path, sizeof(path), "%s/arena", folder);
    int fd = len > 0 && (size_t)len < sizeof(path) ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) {
        return KV_E_IO;
    }
    *ret_fd = fd;
    return KV_OK;
}

KV_RC copies_list(const char *folder, const struct kv_id *session, bool leftovers, struct copies *ret_copies)
{
    struct copies copies = {.fd = -1};
    struct walk walk = {.copies = &copies, .session = session};
    enum kv_err rc = kv_nvme_walk(folder, take_entry, &walk);
    if (rc == KV_OK) {
        rc = open_arena(folder, &copies.fd);
    }
    uint8_t *buffer = rc == KV_OK && leftovers ? kv_alloc(SCAN_BYTES) : NULL;
    if (buffer != NULL) {
        scan_arena(&walk, buffer);
        kv_free(buffer);
    } else if (rc == KV_OK && leftovers) {
        rc = KV_E_NO_MEMORY;
    }
    if (rc != KV_OK) {
        copies_done(&copies);
        return rc;
    }
    *ret_copies = copies;
    return KV_OK;
}

void copies_done(struct copies *copies)
{
    if (copies->fd >= 0) {
        close(copies->fd);
    }
    kv_free(copies->list);
    *copies = (struct copies){.fd = -1};
}

static bool read_copy(int fd, const struct copy *copy, uint8_t *target)
{
    uint64_t done = 0;
    while (done < copy->bytes) {
        ssize_t got = pread(fd, target + done, (size_t)(copy->bytes - done), (off_t)(copy->offset + done));
        if (got <= 0) {
            return false;
        }
        done += (uint64_t)got;
    }
    return true;
}

static void open_one(const struct copies *copies, const struct copy *copy, struct opener *opener, struct tally *tally)
{
    uint8_t *sealed = kv_alloc((size_t)copy->bytes);
    bool read = sealed != NULL && read_copy(copies->fd, copy, sealed);
    bool opened = read && opener_try(opener, &copy->scope, KV_BYTES(sealed, (size_t)copy->bytes));
    kv_free(sealed);
    size_t *all = copy->leftover ? &tally->leftovers : &tally->copies;
    size_t *good = copy->leftover ? &tally->leftovers_opened : &tally->opened;
    *all += 1;
    *good += opened ? 1 : 0;
    tally->unreadable += read ? 0 : 1;
}

void copies_open(const struct copies *copies, struct opener *opener, struct tally *ret_tally)
{
    struct tally tally = {0};
    for (size_t i = 0; i < copies->count; i++) {
        open_one(copies, &copies->list[i], opener, &tally);
    }
    *ret_tally = tally;
}
