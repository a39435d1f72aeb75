/*
 * The recipe with openssl and jq, which shares no code with us, agrees with kv-verify on good and tampered bundles, and
 * with outside vectors on inclusion. Skips (77) where one of its programs is missing.
 */
#include "kv_version.h"
#include "tests/lib/cert_tamper.h"
#include "tests/lib/run_program.h"
#include "tests/lib/temp_folder.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <fts.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCRIPT KV_SOURCE_DIR "/audit/verify-with-openssl.sh"
#define VECTORS KV_SOURCE_DIR "/tests/vectors/merkle/inclusion"

static struct cert_cases cases;
static char folder[KVT_PATH_BYTES], file[KVT_PATH_BYTES], output[65536];

__attribute__((constructor)) static void need_programs(void)
{
    static const char *const names[] = {"sh", "openssl", "jq", "base64", "basenc", "cmp", "mktemp"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (!kvt_program_exists(names[i])) {
            (void)fprintf(stderr, "skipped: needs %s\n", names[i]);
            exit(77);
        }
    }
}

static void setup(void)
{
    cert_cases_init(&cases);
    kvt_folder_make(folder);
    kvt_path_join(file, folder, "certificate.tlog-proof");
    cert_cases_write_keys(&cases, folder);
}

static void teardown(void)
{
    kvt_folder_remove(folder);
    cert_cases_done(&cases);
}

TestSuite(verify_with_openssl, .init = setup, .fini = teardown);

static int run(const char *bundle, const char *keys)
{
    const char *argv[] = {"sh", SCRIPT, bundle, keys, NULL};
    return kvt_program_run(argv, output, sizeof(output));
}

static void check_one(const char *what, const char *check, const struct kv_buf *bundle, void *ctx)
{
    char line[64];
    kvt_file_write(file, bundle->data, bundle->len, 0644);
    cr_assert(eq(int, run(file, folder), check == NULL ? 0 : 1), "%s: %s", what, output);
    (void)snprintf(line, sizeof(line), check == NULL ? "%svalid" : "FAIL %s", check == NULL ? "\n" : check);
    cr_assert(strstr(output, line) != NULL, "%s: %s", what, output);
    cr_assert(eq(int, strstr(output, "was destroyed") != NULL, check == NULL), "%s", what);
}

Test(verify_with_openssl, agrees_on_every_tampering)
{
    cr_assert(gt(u32, cert_tamper_each(&cases, check_one, NULL), 30));
}

Test(verify_with_openssl, accepts_an_anchor)
{
    const struct kv_cert_facts facts = cert_cases_anchored();
    struct kv_buf bundle;
    kv_buf_init(&bundle, 262144);
    cert_cases_of(&cases, &facts, &bundle);
    check_one("an anchor", NULL, &bundle, NULL);
    kv_buf_done(&bundle);
}

Test(verify_with_openssl, accepts_the_golden_bundle)
{
    cr_assert(eq(
        int,
        run(KV_SOURCE_DIR "/tests/unit/audit/golden/certificate.tlog-proof", KV_SOURCE_DIR "/tests/unit/audit/golden"),
        0));
}

Test(verify_with_openssl, wrong_use_is_two)
{
    cr_assert(eq(int, run(NULL, NULL), 2));
    cr_assert(eq(int, run(file, folder), 2)); /* no such file */
    cr_assert(eq(int, run(SCRIPT, "/dev/null"), 2));
}

/* Runs one vector a call, so that the exit status is the verdict. */
static void check_vector(const char *path, unsigned *good)
{
    const char *argv[] = {"sh", SCRIPT, "--inclusion", path, NULL};
    json_t *vector = json_load_file(path, JSON_DECODE_INT_AS_REAL, NULL);
    bool want_error = json_is_true(json_object_get(vector, "wantErr"));
    cr_assert(eq(int, kvt_program_run(argv, output, sizeof(output)), want_error ? 1 : 0), "%s: %s", path, output);
    *good += want_error ? 0 : 1;
    json_decref(vector);
}

Test(verify_with_openssl, inclusion_agrees_with_every_outside_vector)
{
    char root[] = VECTORS;
    char *const roots[] = {root, NULL};
    unsigned files = 0, good = 0;
    FTS *walk = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    cr_assert(walk != NULL);
    FTSENT *entry;
    while ((entry = fts_read(walk)) != NULL) {
        if (entry->fts_info == FTS_F) {
            check_vector(entry->fts_path, &good);
            files++;
        }
    }
    fts_close(walk);
    cr_assert(eq(u32, files, 98));
    cr_assert(eq(u32, good, 6));
}
