/* The program kv-verify: exit status, what it prints, and what it never prints. Skips (77) where it was not built. */
#include "tests/lib/cert_tamper.h"
#include "tests/lib/run_program.h"
#include "tests/lib/temp_folder.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct cert_cases cases;
static char folder[KVT_PATH_BYTES], file[KVT_PATH_BYTES], program[4096], output[65536];

__attribute__((constructor)) static void need_program(void)
{
    kvt_program_of_build("kv-verify", program, sizeof(program));
    if (!kvt_program_exists(program)) {
        (void)fputs("skipped: kv-verify was not built\n", stderr);
        exit(77);
    }
}

static void setup(void)
{
    struct kv_buf bundle;
    kv_buf_init(&bundle, 262144);
    cert_cases_init(&cases);
    cert_cases_good(&cases, &bundle);
    kvt_folder_make(folder);
    kvt_path_join(file, folder, "certificate.tlog-proof");
    kvt_file_write(file, bundle.data, bundle.len, 0644);
    cert_cases_write_keys(&cases, folder);
    kv_buf_done(&bundle);
}

static void teardown(void)
{
    kvt_folder_remove(folder);
    cert_cases_done(&cases);
}

TestSuite(verify_main, .init = setup, .fini = teardown);

static int run(const char *a, const char *b, const char *c, const char *d)
{
    const char *argv[] = {program, a, b, c, d, NULL};
    return kvt_program_run(argv, output, sizeof(output));
}

Test(verify_main, valid_certificate_shows_its_claim_with_all_its_limits)
{
    const struct kv_cert_facts facts = cert_cases_facts();
    cr_assert(eq(int, run(file, NULL, NULL, NULL), 0));
    cr_assert(strstr(output, "certificate key  ") != NULL);
    cr_assert(strstr(output, "log key          " CERT_CASES_PREFIX "+") != NULL);
    cr_assert(strstr(output, "ok   signature") != NULL);
    cr_assert(strstr(output, "FAIL") == NULL);
    cr_assert(strstr(output, "The key of this session was destroyed") != NULL);
    for (size_t i = 0; i < facts.limit_count; i++) {
        cr_assert(strstr(output, kv_limit_text(facts.limits[i])) != NULL, "%s", facts.limits[i]);
    }
    cr_assert(eq(str, output + strlen(output) - strlen("\nvalid\n"), "\nvalid\n"));
}

static void check_one(const char *what, const char *check, const struct kv_buf *bundle, void *ctx)
{
    char line[64];
    kvt_file_write(file, bundle->data, bundle->len, 0644);
    cr_assert(eq(int, run(file, "--keys", folder, NULL), check == NULL ? 0 : 1), "%s: %s", what, output);
    if (check == NULL) {
        return;
    }
    (void)snprintf(line, sizeof(line), "FAIL %s", check);
    cr_assert(strstr(output, line) != NULL, "%s: %s", what, output);
    cr_assert(strstr(output, "was destroyed") == NULL, "no claim of what is not valid");
    cr_assert(eq(str, output + strlen(output) - strlen("\nnot valid\n"), "\nnot valid\n"));
}

Test(verify_main, every_tampering_is_found_by_its_check)
{
    cr_assert(gt(u32, cert_tamper_each(&cases, check_one, NULL), 30));
}

Test(verify_main, json_says_the_same)
{
    cr_assert(eq(int, run(file, "--json", NULL, NULL), 0));
    json_t *root = json_loads(output, JSON_REJECT_DUPLICATES, NULL);
    cr_assert(root != NULL, "%s", output);
    cr_assert(json_object_get(root, "valid") == json_true());
    cr_assert(eq(sz, json_array_size(json_object_get(root, "checks")), KV_CHECK_COUNT));
    cr_assert(eq(sz, json_array_size(json_object_get(root, "limits")), cert_cases_facts().limit_count));
    json_decref(root);
    kvt_file_write(file, "x\n", 2, 0644);
    cr_assert(eq(int, run(file, "--json", NULL, NULL), 1));
    root = json_loads(output, JSON_REJECT_DUPLICATES, NULL);
    cr_assert(json_object_get(root, "valid") == json_false());
    cr_assert(json_object_get(root, "claim") == NULL);
    json_decref(root);
}

Test(verify_main, quiet_says_nothing)
{
    cr_assert(eq(int, run(file, "-q", NULL, NULL), 0));
    cr_assert(eq(str, output, ""));
    kvt_file_write(file, "x\n", 2, 0644);
    cr_assert(eq(int, run(file, "-q", NULL, NULL), 1));
    cr_assert(eq(str, output, ""));
}

Test(verify_main, wrong_use_and_unreadable_files_are_two)
{
    char path[KVT_PATH_BYTES];
    cr_assert(eq(int, run(NULL, NULL, NULL, NULL), 2));
    cr_assert(eq(int, run(file, "--keys", NULL, NULL), 2));
    cr_assert(eq(int, run(file, file, NULL, NULL), 2));
    cr_assert(eq(int, run(file, "--frob", NULL, NULL), 2));
    kvt_path_join(path, folder, "absent");
    cr_assert(eq(int, run(path, NULL, NULL, NULL), 2));
    cr_assert(eq(int, run(file, "--keys", path, NULL), 2));
    cr_assert(eq(int, run(file, "--keys", folder, NULL), 0));
}

Test(verify_main, a_set_of_several_keys_finds_the_one_that_is_named)
{
    char path[KVT_PATH_BYTES];
    uint8_t other[32];
    struct kv_buf one, two, set;
    kv_buf_init(&one, 4096);
    kv_buf_init(&two, 4096);
    kv_buf_init(&set, 8192);
    kv_sign_public(cases.other_key, other);
    cr_assert(eq(int, kv_cert_jwks(other, &one), KV_OK));
    cr_assert(eq(int, kv_cert_jwks(cases.keys.cert_public, &two), KV_OK));
    /* {"keys":[{…}]} and {"keys":[{…}]} become one. */
    kv_buf_append(&set, one.data, one.len - 2);
    kv_buf_text(&set, ",");
    kv_buf_text(&set, (char *)two.data + strlen("{\"keys\":["));
    kvt_path_join(path, folder, "jwks.json");
    kvt_file_write(path, set.data, set.len, 0644);
    cr_assert(eq(int, run(file, NULL, NULL, NULL), 0), "%s", output);
    kvt_file_write(path, one.data, one.len, 0644);
    cr_assert(eq(int, run(file, NULL, NULL, NULL), 1));
    cr_assert(strstr(output, "FAIL header") != NULL);
    kv_buf_done(&one);
    kv_buf_done(&two);
    kv_buf_done(&set);
}

Test(verify_main, a_broken_log_key_is_unusable)
{
    char path[KVT_PATH_BYTES];
    kvt_path_join(path, folder, "log.vkey");
    kvt_file_write(path, "kv.example.com/audit+00000000+AYE5\n", 35, 0644);
    cr_assert(eq(int, run(file, NULL, NULL, NULL), 2));
    cr_assert(strstr(output, "log.vkey") != NULL);
}

Test(verify_main, a_file_over_the_limit_is_not_valid)
{
    char *large = calloc(1, 262145);
    cr_assert(large != NULL);
    memset(large, 'a', 262145);
    kvt_file_write(file, large, 262145, 0644);
    cr_assert(eq(int, run(file, NULL, NULL, NULL), 1));
    cr_assert(strstr(output, "longer than") != NULL);
    free(large);
}
