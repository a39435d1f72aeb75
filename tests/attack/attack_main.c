/*
 * kvrun-attack: what somebody reads who holds database dumps of any age, the root file as it is today, and the bytes of
 * the nvme tier. It asks no server. It is how the claim "erased" is tested from outside: it must open every copy of a
 * session that lives, and none of one that was erased.
 *
 * Exit status: 0 the attack ran, whatever it opened; 2 the inputs could not be read, or the call was wrong.
 */
#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"
#include "dataplane/tier/nvme_read.h"
#include "tests/attack/copies.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define INPUTS_MAX 16

struct options {
    const char *dumps[INPUTS_MAX], *roots[INPUTS_MAX], *arena;
    size_t dump_count, root_count;
    bool json, has_session;
    struct kv_id session;
};

struct copy {
    struct kv_id scope;
    uint64_t offset, bytes;
};

struct copies {
    struct copy *list; /* owned */
    size_t count, size;
    const struct options *options;
};

struct result {
    size_t copies, opened, unreadable;
};

static const char usage[] =
    "usage: kvrun-attack --dump DUMP.sql --root ROOTFILE --arena NVME_FOLDER [--session ses_...] [--json]\n"
    "  --dump and --root may be repeated: backups of several ages count together\n";

static bool add_path(const char *paths[INPUTS_MAX], size_t *count, const char *path)
{
    if (*count == INPUTS_MAX) {
        return false;
    }
    paths[(*count)++] = path;
    return true;
}

static bool take_option(struct options *options, const char *name, const char *value)
{
    if (strcmp(name, "--dump") == 0) {
        return add_path(options->dumps, &options->dump_count, value);
    }
    if (strcmp(name, "--root") == 0) {
        return add_path(options->roots, &options->root_count, value);
    }
    if (strcmp(name, "--arena") == 0) {
        options->arena = value;
        return true;
    }
    if (strcmp(name, "--session") == 0) {
        options->has_session = true;
        return kv_id_parse("ses", value, &options->session) == KV_OK;
    }
    return false;
}

static bool parse_options(int argc, char **argv, struct options *ret_options)
{
    struct options options = {0};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            options.json = true;
        } else if (i + 1 >= argc || !take_option(&options, argv[i], argv[i + 1])) {
            return false;
        } else {
            i++;
        }
    }
    *ret_options = options;
    return options.dump_count > 0 && options.root_count > 0 && options.arena != NULL;
}

static bool collect_file(struct loot *loot, const char *path, KV_RC (*add)(struct loot *loot, FILE *file))
{
    FILE *file = fopen(path, "re");
    enum kv_err rc = file != NULL ? add(loot, file) : KV_E_MISSING;
    if (file != NULL) {
        fclose(file);
    }
    if (rc != KV_OK) {
        fprintf(stderr, "%s: %s\n", path, kv_err_title(rc));
    }
    return rc == KV_OK;
}

static bool collect(struct loot *loot, const struct options *options)
{
    for (size_t i = 0; i < options->dump_count; i++) {
        if (!collect_file(loot, options->dumps[i], loot_add_dump)) {
            return false;
        }
    }
    for (size_t i = 0; i < options->root_count; i++) {
        if (!collect_file(loot, options->roots[i], loot_add_root_file)) {
            return false;
        }
    }
    if (loot->rows_not_understood > 0 || loot->cluster_count == 0 || loot->node_count == 0 || loot->root_count == 0) {
        fprintf(stderr, "the dumps do not hold a key tree that can be read (%zu rows not understood)\n",
                loot->rows_not_understood);
        return false;
    }
    return true;
}

static void take_copy(void *ctx, const struct kv_tier_key *key, uint64_t offset, uint64_t bytes, bool promised)
{
    struct copies *copies = ctx;
    (void)promised;
    if (copies->options->has_session && !kv_id_equal(&key->scope, &copies->options->session)) {
        return;
    }
    if (copies->count == copies->size) {
        copies->size = copies->size == 0 ? 1024 : copies->size * 2;
        copies->list = kv_realloc_array(copies->list, copies->size, sizeof(*copies->list));
        if (copies->list == NULL) {
            abort();
        }
    }
    copies->list[copies->count++] = (struct copy){.scope = key->scope, .offset = offset, .bytes = bytes};
}

static bool read_copy(int fd, const struct copy *copy, uint8_t *target)
{
    size_t done = 0;
    while (done < copy->bytes) {
        ssize_t got = pread(fd, target + done, (size_t)copy->bytes - done, (off_t)(copy->offset + done));
        if (got <= 0) {
            return false;
        }
        done += (size_t)got;
    }
    return true;
}

static void open_copies(int fd, const struct copies *copies, struct opener *opener, struct result *ret_result)
{
    struct result result = {.copies = copies->count};
    for (size_t i = 0; i < copies->count; i++) {
        uint8_t *sealed = kv_alloc((size_t)copies->list[i].bytes);
        if (sealed == NULL || !read_copy(fd, &copies->list[i], sealed)) {
            result.unreadable++;
        } else if (opener_try(opener, &copies->list[i].scope, KV_BYTES(sealed, (size_t)copies->list[i].bytes))) {
            result.opened++;
        }
        kv_free(sealed);
    }
    *ret_result = result;
}

/* Every copy that the folder's index names. */
static bool attack_arena(const struct options *options, struct opener *opener, struct result *ret_result)
{
    char path[4096];
    struct copies copies = {.options = options};
    enum kv_err rc = kv_nvme_walk(options->arena, take_copy, &copies);
    snprintf(path, sizeof(path), "%s/arena", options->arena);
    int fd = rc == KV_OK ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) {
        fprintf(stderr, "%s: %s\n", options->arena, kv_err_title(rc != KV_OK ? rc : KV_E_IO));
        kv_free(copies.list);
        return false;
    }
    open_copies(fd, &copies, opener, ret_result);
    close(fd);
    kv_free(copies.list);
    return true;
}

static void print_result(const struct options *options, const struct loot *loot, const struct reach *reach,
                         const struct result *result)
{
    const struct loot_session *session = options->has_session ? loot_session_find(loot, &options->session) : NULL;
    if (!options->json) {
        printf("opened %zu of %zu copies\n", result->opened, result->copies);
        return;
    }
    printf("{\"opened\":%zu,\"copies\":%zu,\"unreadable\":%zu,\"session_state\":", result->opened, result->copies,
           result->unreadable);
    printf("%s%s%s", session != NULL ? "\"" : "", session != NULL ? session->state : "null",
           session != NULL ? "\"" : "");
    printf(",\"wrapping_keys\":%zu,\"wrapped_roots\":%zu,\"roots_opened\":%zu,\"nodes\":%zu,\"nodes_opened\":%zu,"
           "\"secrets\":%zu,\"tries\":%zu}\n",
           loot->key_count, loot->root_count, reach->roots_opened, loot->node_count, reach->nodes_opened, reach->count,
           reach->tries);
}

static int run(const struct options *options, struct loot *loot, struct reach *reach, struct opener *opener)
{
    struct result result = {0};
    if (!collect(loot, options) || reach_from(loot, 0, reach) != KV_OK || opener_init(opener, loot, reach) != KV_OK ||
        !attack_arena(options, opener, &result)) {
        return 2;
    }
    print_result(options, loot, reach, &result);
    return 0;
}

int main(int argc, char **argv)
{
    struct options options;
    struct loot loot = {0};
    struct reach reach = {0};
    struct opener opener = {0};
    if (!parse_options(argc, argv, &options)) {
        fputs(usage, stderr);
        return 2;
    }
    int status = run(&options, &loot, &reach, &opener);
    opener_done(&opener);
    reach_done(&reach);
    loot_done(&loot);
    return status;
}
