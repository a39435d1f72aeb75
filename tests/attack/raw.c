/*
 * Carving. Takes whatever has the form; what is no envelope after all opens with no key.
 */
#include "tests/attack/raw.h"
#include "dataplane/base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum {
    NODE_BYTES = KV_SEALED_FIXED_BYTES + 16 + KV_NODE_PLAINTEXT_BYTES, /* one tag */
    ROOT_BYTES = KV_SEALED_FIXED_BYTES + 16 + 32,                      /* E under the file provider's key */
    P11_BYTES = 4 + 16 + 12 + 32 + 16,                                 /* roe_pkcs11.c: magic, id, nonce, E, tag */
    TRANSIT_MAX = 512,
    TOAST_CHUNK = 1996,
    TOAST_HEAD = 12, /* the value's number, the chunk's, the length of this field */
    TOAST_REST = NODE_BYTES - TOAST_CHUNK,
    WAL_PAGE = 8192,
    OVERLAP = 4096, /* from one piece to the next; more than any of the above */
    PIECE = 4 << 20,
    PATHS_MAX = 1 << 20,
};

struct part { /* the first or the second chunk of a value */
    uint32_t value;
    uint8_t bytes[TOAST_CHUNK];
};

struct parts {
    struct part *list; /* owned */
    size_t count, size;
};

struct carver {
    struct loot *loot;
    struct parts first, rest;
    struct raw_tally tally;
    size_t len; /* of what is in the buffer */
    uint8_t buffer[OVERLAP + PIECE];
};

KV_RC raw_new(struct loot *loot, struct carver **ret_carver)
{
    struct carver *carver = kv_alloc(sizeof(*carver));
    if (carver == NULL) {
        return KV_E_NO_MEMORY;
    }
    carver->loot = loot;
    *ret_carver = carver;
    return KV_OK;
}

/* --- forms ----------------------------------------------------------------------------------------------------------
 */

static void take_node(struct carver *carver, const uint8_t *sealed, const struct kv_sealed_context *context)
{
    struct loot_node node = {.key.tree = context->tenant, .node_id = context->scope, .sealed_len = NODE_BYTES};
    struct kv_reader reader = kv_reader_of(KV_BYTES(context->block_id.b, sizeof(context->block_id.b)));
    struct kv_id cluster;
    kv_read_raw(&reader, cluster.b, sizeof(cluster.b));
    node.key.level = kv_read_u32(&reader);
    node.key.idx = kv_read_u32(&reader);
    node.sealed = kv_alloc(NODE_BYTES);
    if (node.sealed == NULL) {
        abort();
    }
    memcpy(node.sealed, sealed, NODE_BYTES);
    loot_add_cluster(carver->loot, &cluster);
    loot_add_node(carver->loot, &node);
    kv_free(node.sealed);
}

static void take_root(struct carver *carver, const uint8_t *id, const uint8_t *blob, size_t len)
{
    uint8_t copy[TRANSIT_MAX];
    struct loot_root root = {.blob = copy, .blob_len = len};
    memcpy(root.root_id.b, id, sizeof(root.root_id.b));
    memcpy(copy, blob, len);
    loot_add_root(carver->loot, &root);
}

static void keep_part(struct parts *parts, uint32_t value, const uint8_t *bytes, size_t len)
{
    for (size_t i = parts->count; i > 0; i--) {
        if (parts->list[i - 1].value == value && memcmp(parts->list[i - 1].bytes, bytes, len) == 0) {
            return;
        }
    }
    if (parts->count == parts->size) {
        parts->size = parts->size == 0 ? 256 : parts->size * 2;
        parts->list = kv_realloc_array(parts->list, parts->size, sizeof(*parts->list));
        if (parts->list == NULL) {
            abort();
        }
    }
    struct part *part = &parts->list[parts->count++];
    *part = (struct part){.value = value};
    memcpy(part->bytes, bytes, len);
}

/* Whether a chunk of `len` bytes begins at `at`: behind its number in the value and its length as a varlena has it. */
static bool is_chunk(const uint8_t *buffer, size_t at, uint32_t number, uint32_t len, uint32_t *ret_value)
{
    uint32_t head[3];
    if (at < TOAST_HEAD) {
        return false;
    }
    memcpy(head, buffer + at - TOAST_HEAD, sizeof(head));
    *ret_value = head[0];
    return head[1] == number && head[2] == (len + 4) << 2;
}

static void look_at_envelope(struct carver *carver, size_t at, size_t left)
{
    const uint8_t *found = carver->buffer + at;
    struct kv_sealed_context context;
    uint32_t value = 0;
    if (left < KV_SEALED_FIXED_BYTES || kv_sealed_peek(KV_BYTES(found, left), &context) != KV_OK) {
        return;
    }
    if (context.kind == KV_SEALED_ROOT && context.plaintext_length == 32 && left >= ROOT_BYTES) {
        take_root(carver, context.scope.b, found, ROOT_BYTES);
    } else if (context.plaintext_length == KV_NODE_PLAINTEXT_BYTES && context.kind != KV_SEALED_BLOCK) {
        if (is_chunk(carver->buffer, at, 0, TOAST_CHUNK, &value)) {
            if (left >= TOAST_CHUNK) {
                keep_part(&carver->first, value, found, TOAST_CHUNK);
            }
        } else if (left >= NODE_BYTES) {
            take_node(carver, found, &context);
        }
    }
}

/* Up to the "=" that ends it, where there is one. */
static size_t base64_len(const uint8_t *text, size_t max)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t len = 0;
    while (len < max && text[len] != 0 && strchr(letters, text[len]) != NULL) {
        len++;
    }
    while (len < max && len % 4 != 0 && text[len] == '=') {
        len++;
    }
    return len / 4 * 4; /* what stands behind it may look like more of it */
}

/* "KVT1", the root's id, "vault:v1:" and base64: roe_transit.c. */
static void look_at_transit(struct carver *carver, const uint8_t *found, size_t left)
{
    enum { HEAD = 4 + 16 + 9 };
    if (left < HEAD || memcmp(found + 20, "vault:v1:", 9) != 0) {
        return;
    }
    size_t room = left < TRANSIT_MAX ? left : TRANSIT_MAX, len = base64_len(found + HEAD, room - HEAD);
    take_root(carver, found + 4, found, HEAD + len);
}

/* --- a piece of bytes -----------------------------------------------------------------------------------------------
 */

static void look_for_magic(struct carver *carver)
{
    const uint8_t *buffer = carver->buffer, *at = buffer, *end = buffer + carver->len;
    while ((at = memmem(at, (size_t)(end - at), "KV", 2)) != NULL) {
        size_t left = (size_t)(end - at);
        if (left >= 4 && memcmp(at, "KVR1", 4) == 0) {
            look_at_envelope(carver, (size_t)(at - buffer), left);
        } else if (left >= P11_BYTES && memcmp(at, "KVP1", 4) == 0) {
            take_root(carver, at + 4, at, P11_BYTES);
        } else if (left >= 4 && memcmp(at, "KVT1", 4) == 0) {
            look_at_transit(carver, at, left);
        }
        at += 2;
    }
}

static void look_for_rest(struct carver *carver)
{
    const uint32_t head[2] = {1, (TOAST_REST + 4) << 2};
    const uint8_t *buffer = carver->buffer, *at = buffer, *end = buffer + carver->len;
    uint32_t value = 0;
    while ((at = memmem(at, (size_t)(end - at), head, sizeof(head))) != NULL) {
        size_t data = (size_t)(at - buffer) + sizeof(head);
        if (data + TOAST_REST <= carver->len && is_chunk(buffer, data, 1, TOAST_REST, &value)) {
            keep_part(&carver->rest, value, buffer + data, TOAST_REST);
        }
        at++;
    }
}

/* Looks at what there is and keeps its end, for what goes on in the next piece. */
static void look(struct carver *carver)
{
    look_for_magic(carver);
    look_for_rest(carver);
    size_t keep = carver->len < OVERLAP ? carver->len : OVERLAP;
    memmove(carver->buffer, carver->buffer + carver->len - keep, keep);
    carver->len = keep;
}

static void feed(struct carver *carver, const uint8_t *bytes, size_t len)
{
    if (carver->len + len > sizeof(carver->buffer)) {
        look(carver);
    }
    memcpy(carver->buffer + carver->len, bytes, len);
    carver->len += len;
}

/* Nothing goes on from here. */
static void cut(struct carver *carver)
{
    look(carver);
    carver->len = 0;
}

/* --- files ----------------------------------------------------------------------------------------------------------
 */

/* Without the header at the top of each page: 24 bytes, or 40 on the first page of a file. A page that has none (never
 * written, or of something else) is taken as it is. */
static size_t wal_header(const uint8_t *page, size_t len)
{
    uint16_t head[2];
    memcpy(head, page, sizeof(head));
    if (len < 40 || (head[0] & 0xff00) != 0xd100) { /* XLOG_PAGE_MAGIC of PostgreSQL 12 and later */
        return 0;
    }
    return (head[1] & 2) != 0 ? 40 : 24; /* XLP_LONG_HEADER */
}

static bool is_wal(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path;
    return strspn(name, "0123456789ABCDEF") == 24 && (name[24] == '\0' || strcmp(name + 24, ".partial") == 0);
}

static KV_RC read_file(struct carver *carver, const char *path)
{
    uint8_t page[WAL_PAGE];
    bool wal = is_wal(path);
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return errno == ENOENT ? KV_E_MISSING : KV_E_IO;
    }
    if (!wal) {
        cut(carver); /* Segments of the log go on in the next one; files are read in the order of their names. */
    }
    size_t got;
    while ((got = fread(page, 1, sizeof(page), file)) > 0) {
        size_t skip = wal && got >= 4 ? wal_header(page, got) : 0;
        feed(carver, page + skip, got - skip);
        carver->tally.bytes += got;
    }
    bool failed = ferror(file) != 0;
    fclose(file);
    carver->tally.files++;
    carver->tally.wal_files += wal ? 1 : 0;
    return failed ? KV_E_IO : KV_OK;
}

/* The entries of a folder, added behind those that are still to be read, last first. */
static KV_RC add_entries(const char *folder, char **paths, size_t *count)
{
    struct dirent **entries = NULL;
    int found = scandir(folder, &entries, NULL, alphasort);
    if (found < 0) {
        return KV_E_IO;
    }
    enum kv_err rc = KV_OK;
    for (int i = found; i > 0; i--) {
        char *name = entries[i - 1]->d_name, *path = NULL;
        size_t size = strlen(folder) + strlen(name) + 2;
        if (strcmp(name, ".") != 0 && strcmp(name, "..") != 0) {
            path = *count < PATHS_MAX ? kv_alloc(size) : NULL;
            rc = path != NULL ? rc : KV_E_LIMIT;
        }
        if (path != NULL) {
            snprintf(path, size, "%s/%s", folder, name);
            paths[(*count)++] = path;
        }
        kv_free(entries[i - 1]);
    }
    kv_free(entries);
    return rc;
}

static KV_RC read_path(struct carver *carver, const char *path, char **paths, size_t *count)
{
    struct stat about;
    if (lstat(path, &about) != 0) {
        return errno == ENOENT ? KV_E_MISSING : KV_E_IO;
    }
    if (S_ISDIR(about.st_mode)) {
        return add_entries(path, paths, count);
    }
    return S_ISREG(about.st_mode) ? read_file(carver, path) : KV_OK;
}

KV_RC raw_add(struct carver *carver, const char *path)
{
    char **paths = kv_alloc_array(PATHS_MAX, sizeof(*paths));
    if (paths == NULL) {
        return KV_E_NO_MEMORY;
    }
    size_t count = 0;
    enum kv_err rc = read_path(carver, path, paths, &count);
    while (count > 0) {
        char *next = paths[--count];
        rc = rc == KV_OK ? read_path(carver, next, paths, &count) : rc;
        kv_free(next);
    }
    kv_free(paths);
    cut(carver);
    return rc;
}

/* Numbers of values are unique in a table at a time, so a first half may have several second ones: each pair is tried.
 */
static void join(struct carver *carver)
{
    uint8_t sealed[NODE_BYTES];
    for (size_t i = 0; i < carver->first.count; i++) {
        const struct part *first = &carver->first.list[i];
        struct kv_sealed_context context;
        if (kv_sealed_peek(KV_BYTES(first->bytes, TOAST_CHUNK), &context) != KV_OK) {
            continue;
        }
        memcpy(sealed, first->bytes, TOAST_CHUNK);
        for (size_t k = 0; k < carver->rest.count; k++) {
            if (carver->rest.list[k].value == first->value) {
                memcpy(sealed + TOAST_CHUNK, carver->rest.list[k].bytes, TOAST_REST);
                take_node(carver, sealed, &context);
            }
        }
    }
}

struct raw_tally raw_done(struct carver *carver)
{
    join(carver);
    const struct raw_tally tally = carver->tally;
    kv_free(carver->first.list);
    kv_free(carver->rest.list);
    kv_free(carver);
    return tally;
}
