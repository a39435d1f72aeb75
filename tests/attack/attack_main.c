/*
 * kvrun-attack: what somebody reads who holds database dumps of any age, the root file as it is today, and the bytes of
 * the nvme tier. It asks no server. It is how the claim "erased" is tested from outside: it must open every copy of a
 * session that lives, and none of one that was erased.
 *
 * Exit status: 0 the attack ran, whatever it opened; 2 the inputs could not be read, or the call was wrong.
 */
#include "dataplane/base/id.h"
#include "tests/attack/arena.h"

#include <string.h>

#define INPUTS_MAX 16

struct options {
    const char *dumps[INPUTS_MAX], *roots[INPUTS_MAX], *arena;
    size_t dump_count, root_count;
    bool json, leftovers, has_session;
    struct kv_id session;
};

static const char usage[] =
    "usage: kvrun-attack --dump DUMP.sql --root ROOTFILE --arena NVME_FOLDER [--session ses_...]\n"
    "                    [--leftovers] [--json]\n"
    "  --dump and --root may be repeated: backups of several ages count together\n"
    "  --leftovers: also what looks like a copy in space that the folder's index calls free\n";

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
        } else if (strcmp(argv[i], "--leftovers") == 0) {
            options.leftovers = true;
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

static bool attack_arena(const struct options *options, struct opener *opener, struct tally *ret_tally)
{
    struct copies copies;
    enum kv_err rc =
        copies_list(options->arena, options->has_session ? &options->session : NULL, options->leftovers, &copies);
    if (rc != KV_OK) {
        fprintf(stderr, "%s: %s\n", options->arena, kv_err_title(rc));
        return false;
    }
    copies_open(&copies, opener, ret_tally);
    copies_done(&copies);
    return true;
}

static void print_result(const struct options *options, const struct loot *loot, const struct reach *reach,
                         const struct tally *tally)
{
    const struct loot_session *session = options->has_session ? loot_session_find(loot, &options->session) : NULL;
    if (!options->json) {
        printf("opened %zu of %zu copies\n", tally->opened, tally->copies);
        if (options->leftovers) {
            printf("opened %zu of %zu leftovers in free space\n", tally->leftovers_opened, tally->leftovers);
        }
        return;
    }
    printf("{\"opened\":%zu,\"copies\":%zu,\"unreadable\":%zu,\"leftovers\":%zu,\"leftovers_opened\":%zu,"
           "\"session_state\":",
           tally->opened, tally->copies, tally->unreadable, tally->leftovers, tally->leftovers_opened);
    printf("%s%s%s", session != NULL ? "\"" : "", session != NULL ? session->state : "null",
           session != NULL ? "\"" : "");
    printf(",\"wrapping_keys\":%zu,\"wrapped_roots\":%zu,\"roots_opened\":%zu,\"nodes\":%zu,\"nodes_opened\":%zu,"
           "\"secrets\":%zu,\"tries\":%zu}\n",
           loot->key_count, loot->root_count, reach->roots_opened, loot->node_count, reach->nodes_opened, reach->count,
           reach->tries);
}

static int run(const struct options *options, struct loot *loot, struct reach *reach, struct opener *opener)
{
    struct tally tally = {0};
    if (!collect(loot, options) || reach_from(loot, 0, reach) != KV_OK || opener_init(opener, loot, reach) != KV_OK ||
        !attack_arena(options, opener, &tally)) {
        return 2;
    }
    print_result(options, loot, reach, &tally);
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
