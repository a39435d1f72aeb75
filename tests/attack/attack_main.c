/*
 * kvrun-attack: what somebody reads who holds database dumps of any age, the database's files and its log as bytes, the
 * root file as it is today, images of memory, and the bytes of the tiers. It asks no server. It is how the claim
 * "erased" is tested from outside: it must open every copy of a session that lives, and none of one that was erased.
 *
 * Exit status: 0 the attack ran, whatever it opened; 2 the inputs could not be read, or the call was wrong.
 */
#include "dataplane/base/id.h"
#include "tests/attack/arena.h"
#include "tests/attack/raw.h"

#include <stdlib.h>
#include <string.h>

#define INPUTS_MAX 1024

enum input { DUMP, RAW, ROOT, MEMORY, ARENA, BLOCKS, INPUTS };

struct options {
    const char *paths[INPUTS][INPUTS_MAX], *collect;
    size_t count[INPUTS];
    bool json, leftovers, each, list_roots, has_session;
    struct kv_id session;
    size_t loosely_every;
};

static const char usage[] =
    "usage: kvrun-attack [--dump DUMP.sql] [--raw PATH] [--root ROOTFILE] [--memory FILE] [--arena NVME_FOLDER]\n"
    "                    [--blocks FILE] [--session ses_...] [--leftovers] [--loosely-every N] [--each] [--json]\n"
    "       kvrun-attack --list-roots [--dump DUMP.sql] [--raw PATH] [--collect FILE]\n"
    "  Each of the first six may be repeated: backups of several ages count together. At least one of --dump and "
    "--raw,\n"
    "  one of --root and --memory, one of --arena and --blocks.\n"
    "  --raw: files of a database, its log, images of memory, searched for sealed nodes whatever state they are in\n"
    "  --memory: any 32 bytes in it may be a secret; also a file of secrets that were found elsewhere\n"
    "  --blocks: a file searched for sealed blocks, 4 KiB by 4 KiB\n"
    "  --leftovers: also what looks like a copy in space that the folder's index calls free\n"
    "  --loosely-every: try what is in memory on the blocks of each Nth session only; 1\n"
    "  --each: a line for each session: its id, opened, copies\n"
    "  --list-roots: a line for each wrapped root: the root's id, the wrapped bytes, both in hexadecimal\n"
    "  --collect: all sealed nodes and wrapped roots that were found, in a file for --raw\n";

static bool add_path(struct options *options, enum input input, const char *path)
{
    if (options->count[input] == INPUTS_MAX) {
        return false;
    }
    options->paths[input][options->count[input]++] = path;
    return true;
}

static bool take_option(struct options *options, const char *name, const char *value)
{
    static const char *const names[INPUTS] = {"--dump", "--raw", "--root", "--memory", "--arena", "--blocks"};
    for (enum input input = DUMP; input < INPUTS; input++) {
        if (strcmp(name, names[input]) == 0) {
            return add_path(options, input, value);
        }
    }
    if (strcmp(name, "--collect") == 0) {
        options->collect = value;
        return true;
    }
    if (strcmp(name, "--session") == 0) {
        options->has_session = true;
        return kv_id_parse("ses", value, &options->session) == KV_OK;
    }
    if (strcmp(name, "--loosely-every") == 0) {
        char *end = NULL;
        options->loosely_every = strtoul(value, &end, 10);
        return end != value && *end == '\0' && options->loosely_every > 0;
    }
    return false;
}

static bool take_flag(struct options *options, const char *name)
{
    const struct {
        const char *name;
        bool *flag;
    } flags[] = {{"--json", &options->json},
                 {"--leftovers", &options->leftovers},
                 {"--each", &options->each},
                 {"--list-roots", &options->list_roots}};
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
        if (strcmp(name, flags[i].name) == 0) {
            *flags[i].flag = true;
            return true;
        }
    }
    return false;
}

static bool parse_options(int argc, char **argv, struct options *options)
{
    options->loosely_every = 1;
    for (int i = 1; i < argc; i++) {
        if (take_flag(options, argv[i])) {
            continue;
        }
        if (i + 1 >= argc || !take_option(options, argv[i], argv[i + 1])) {
            return false;
        }
        i++;
    }
    const size_t *count = options->count;
    return count[DUMP] + count[RAW] > 0 &&
           (options->list_roots || (count[ROOT] + count[MEMORY] > 0 && count[ARENA] + count[BLOCKS] > 0));
}

static bool complain(const char *path, enum kv_err rc)
{
    if (rc != KV_OK) {
        fprintf(stderr, "%s: %s\n", path, kv_err_title(rc));
    }
    return rc == KV_OK;
}

static bool collect_files(struct loot *loot, const struct options *options, enum input input,
                          KV_RC (*add)(struct loot *loot, FILE *file))
{
    for (size_t i = 0; i < options->count[input]; i++) {
        FILE *file = fopen(options->paths[input][i], "re");
        enum kv_err rc = file != NULL ? add(loot, file) : KV_E_MISSING;
        if (file != NULL) {
            fclose(file);
        }
        if (!complain(options->paths[input][i], rc)) {
            return false;
        }
    }
    return true;
}

static bool collect_raw(struct loot *loot, const struct options *options, struct raw_tally *ret_tally)
{
    struct carver *carver = NULL;
    bool good = complain("--raw", raw_new(loot, &carver));
    for (size_t i = 0; good && i < options->count[RAW]; i++) {
        good = complain(options->paths[RAW][i], raw_add(carver, options->paths[RAW][i]));
    }
    if (carver != NULL) {
        *ret_tally = raw_done(carver);
    }
    return good;
}

static bool collect(struct loot *loot, const struct options *options, struct raw_tally *ret_tally)
{
    if (!collect_files(loot, options, DUMP, loot_add_dump) || !collect_files(loot, options, ROOT, loot_add_root_file) ||
        !collect_files(loot, options, MEMORY, loot_add_memory) || !collect_raw(loot, options, ret_tally)) {
        return false;
    }
    if (loot->rows_not_understood > 0 || loot->cluster_count == 0 || loot->node_count == 0 || loot->root_count == 0) {
        fprintf(stderr, "what was given does not hold a key tree that can be read (%zu rows not understood)\n",
                loot->rows_not_understood);
        return false;
    }
    return true;
}

static bool list_copies(const struct options *options, struct copies *copies)
{
    const struct kv_id *session = options->has_session ? &options->session : NULL;
    for (size_t i = 0; i < options->count[ARENA]; i++) {
        const char *path = options->paths[ARENA][i];
        if (!complain(path, copies_add_folder(copies, path, session, options->leftovers))) {
            return false;
        }
    }
    for (size_t i = 0; i < options->count[BLOCKS]; i++) {
        if (!complain(options->paths[BLOCKS][i], copies_add_file(copies, options->paths[BLOCKS][i], session))) {
            return false;
        }
    }
    return true;
}

struct totals {
    bool each;
    struct tally tally;
};

static void add_scope(void *ctx, const struct tally_of_scope *of)
{
    struct totals *totals = ctx;
    totals->tally.copies += of->tally.copies;
    totals->tally.opened += of->tally.opened;
    totals->tally.unreadable += of->tally.unreadable;
    totals->tally.leftovers += of->tally.leftovers;
    totals->tally.leftovers_opened += of->tally.leftovers_opened;
    if (totals->each) {
        char text[KV_ID_TEXT_SIZE];
        kv_id_text("ses", &of->scope, text);
        printf("%s %zu %zu\n", text, of->tally.opened + of->tally.leftovers_opened,
               of->tally.copies + of->tally.leftovers);
    }
}

struct attempt {
    struct loot loot;
    struct raw_tally raw;
    struct reach reach;
    struct opener opener;
    struct copies copies;
    struct totals totals;
};

static void print_json(const struct options *options, const struct attempt *attempt)
{
    const struct loot *loot = &attempt->loot;
    const struct tally *tally = &attempt->totals.tally;
    const struct loot_session *session = options->has_session ? loot_session_find(loot, &options->session) : NULL;
    printf("{\"opened\":%zu,\"copies\":%zu,\"unreadable\":%zu,\"leftovers\":%zu,\"leftovers_opened\":%zu,"
           "\"session_state\":",
           tally->opened, tally->copies, tally->unreadable, tally->leftovers, tally->leftovers_opened);
    printf("%s%s%s", session != NULL ? "\"" : "", session != NULL ? session->state : "null",
           session != NULL ? "\"" : "");
    printf(",\"wrapping_keys\":%zu,\"wrapped_roots\":%zu,\"roots_opened\":%zu,\"nodes\":%zu,\"nodes_seen\":%zu,"
           "\"nodes_opened\":%zu,\"secrets\":%zu,\"windows\":%zu,\"tries\":%zu,\"complete\":%s,"
           "\"raw_bytes\":%llu,\"raw_files\":%zu,\"wal_files\":%zu}\n",
           loot->key_count, loot->root_count, attempt->reach.roots_opened, loot->node_count, loot->nodes_seen,
           attempt->reach.nodes_opened, attempt->reach.count, loot->window_count,
           attempt->reach.tries + attempt->opener.tries, attempt->reach.complete ? "true" : "false",
           (unsigned long long)attempt->raw.bytes, attempt->raw.files, attempt->raw.wal_files);
}

static void print_result(const struct options *options, const struct attempt *attempt)
{
    const struct tally *tally = &attempt->totals.tally;
    if (options->json) {
        print_json(options, attempt);
        return;
    }
    printf("opened %zu of %zu copies\n", tally->opened, tally->copies);
    if (options->leftovers || options->count[BLOCKS] > 0) {
        printf("opened %zu of %zu leftovers in free space\n", tally->leftovers_opened, tally->leftovers);
    }
}

static void print_hex(const void *bytes, size_t len, char end)
{
    for (size_t i = 0; i < len; i++) {
        printf("%02x", ((const uint8_t *)bytes)[i]);
    }
    putchar(end);
}

static void print_roots(const struct loot *loot)
{
    for (size_t i = 0; i < loot->root_count; i++) {
        print_hex(loot->roots[i].root_id.b, sizeof(loot->roots[i].root_id.b), ' ');
        print_hex(loot->roots[i].blob, loot->roots[i].blob_len, '\n');
    }
}

/* Each envelope in one piece, so that no more than their form is needed to find them again. */
static bool write_collection(const struct loot *loot, const char *path)
{
    FILE *file = fopen(path, "wxe");
    bool good = file != NULL;
    for (size_t i = 0; good && i < loot->node_count; i++) {
        good = fwrite(loot->nodes[i].sealed, 1, loot->nodes[i].sealed_len, file) == loot->nodes[i].sealed_len;
    }
    for (size_t i = 0; good && i < loot->root_count; i++) {
        good = fwrite(loot->roots[i].blob, 1, loot->roots[i].blob_len, file) == loot->roots[i].blob_len &&
               fputc('\n', file) != EOF;
    }
    good = (file == NULL || fclose(file) == 0) && good;
    return complain(path, good ? KV_OK : KV_E_IO);
}

static int run(const struct options *options, struct attempt *attempt)
{
    if (!collect(&attempt->loot, options, &attempt->raw)) {
        return 2;
    }
    if (options->collect != NULL && !write_collection(&attempt->loot, options->collect)) {
        return 2;
    }
    if (options->list_roots) {
        print_roots(&attempt->loot);
        return 0;
    }
    if (reach_from(&attempt->loot, 0, &attempt->reach) != KV_OK ||
        opener_init(&attempt->opener, &attempt->loot, &attempt->reach) != KV_OK ||
        !list_copies(options, &attempt->copies)) {
        return 2;
    }
    attempt->totals.each = options->each;
    copies_open(&attempt->copies, &attempt->opener, options->loosely_every, add_scope, &attempt->totals);
    print_result(options, attempt);
    return 0;
}

int main(int argc, char **argv)
{
    static struct options options;
    struct attempt attempt = {0};
    if (!parse_options(argc, argv, &options)) {
        fputs(usage, stderr);
        return 2;
    }
    int status = run(&options, &attempt);
    copies_done(&attempt.copies);
    opener_done(&attempt.opener);
    reach_done(&attempt.reach);
    loot_done(&attempt.loot);
    return status;
}
