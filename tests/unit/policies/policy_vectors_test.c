/* The tables of policies/vectors, and what the runner says of tables that are none. */
#include "policies/policy_vectors.h"

#include "kv_version.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void complain(void *ctx, const char *file, const char *name, const char *what)
{
    (void)ctx;
    cr_log_error("%s: %s: %s", strrchr(file, '/') + 1, name, what);
}

Test(policy_vectors, every_case_in_the_tree_gets_its_answer)
{
    struct kv_errinfo info = {0};
    struct kv_policy_vectors_result result;
    cr_assert_eq(kv_policy_vectors_run(KV_SOURCE_DIR "/policies/vectors", complain, NULL, &info, &result), KV_OK, "%s",
                 info.text);
    cr_expect_eq(result.failed, 0);
    cr_expect_geq(result.files, 4);
    cr_expect_gt(result.cases, 80);
}

static void count(void *ctx, const char *file, const char *name, const char *what)
{
    cr_assert(file != NULL && strlen(name) > 0 && strlen(what) > 0);
    *(unsigned *)ctx += 1;
}

static enum kv_err run_text(const char *text, struct kv_policy_vectors_result *ret_result)
{
    char path[] = "/tmp/kv-vectors-XXXXXX";
    struct kv_errinfo info = {0};
    int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    FILE *file = fdopen(fd, "w");
    fputs(text, file);
    fclose(file);
    unsigned told = 0;
    enum kv_err rc = kv_policy_vectors_run(path, count, &told, &info, ret_result);
    remove(path);
    cr_assert(rc != KV_OK || told == ret_result->failed);
    return rc;
}

Test(policy_vectors, a_wrong_expectation_fails_and_a_table_without_cases_is_refused)
{
    struct kv_policy_vectors_result result;
    cr_assert_eq(
        run_text("{\"cases\":[{\"name\":\"n\",\"ask\":{\"action\":\"lookup\"},\"decision\":\"allow\"}]}", &result),
        KV_OK);
    cr_expect(result.cases == 1 && result.failed == 0);
    static const char *const wrong[] = {
        "{\"cases\":[{\"name\":\"n\",\"ask\":{\"action\":\"lookup\"},\"decision\":\"deny\"}]}",
        "{\"cases\":[{\"name\":\"n\",\"ask\":{\"action\":\"fly\"},\"decision\":\"deny\"}]}",
        "{\"cases\":[{\"name\":\"n\",\"ask\":{\"action\":\"lookup\"}}]}",
        "{\"cases\":[{\"name\":\"n\",\"ask\":{\"action\":\"lookup\"},\"decision\":\"allow\",\"tiers\":[\"dram\"]}]}",
        "{\"cases\":[{\"name\":\"n\",\"ask\":{\"action\":\"offload\"},\"decision\":\"allow\",\"obligations\":[]}]}",
        ("{\"cases\":[{\"name\":\"n\",\"ask\":{\"action\":\"erase\",\"same_tenant\":false},\"decision\":\"deny\","
         "\"reasons\":[]}]}"),
        "{\"invalid\":[{\"name\":\"n\",\"policy\":{\"tiers\":{}},\"pointer\":\"\"}]}",
        "{\"invalid\":[{\"name\":\"n\",\"policy\":{},\"pointer\":\"/other\"}]}",
        "{\"invalid\":[{\"name\":\"n\",\"policy\":{},\"pointer\":\"/tiers\",\"says\":\"something else\"}]}",
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        cr_assert_eq(run_text(wrong[i], &result), KV_OK);
        cr_expect(result.cases == 1 && result.failed == 1, "%s", wrong[i]);
    }
    cr_expect_eq(run_text("{}", &result), KV_E_INVALID_REQUEST);
    cr_expect_eq(run_text("nothing", &result), KV_E_INVALID_REQUEST);
    struct kv_errinfo info = {0};
    cr_expect_eq(kv_policy_vectors_run("/nowhere", complain, NULL, &info, &result), KV_E_NOT_FOUND);
}
