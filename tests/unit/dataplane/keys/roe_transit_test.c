/*
 * The transit provider against the double of a key service: what is there before and after a destruction, kills between
 * any two steps, a token that is renewed, a service that is sealed, lies or is gone, and the reading of its answers.
 */
#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "dataplane/keys/roe.h"
#include "dataplane/keys/roe_transit_int.h"
#include "tests/lib/transit_service.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[KVT_PATH_BYTES], said[65536];
static struct kvt_transit transit;
static struct kv_id a, b;
static const struct kv_id none;
static struct kv_errinfo info;

static void set_up(void)
{
    kvt_folder_make(folder);
    cr_assert(kvt_transit_start(folder, &transit), "the key service does not start");
    cr_assert(eq(int, kv_id_new(&kv_env_system, &a), KV_OK));
    cr_assert(eq(int, kv_id_new(&kv_env_system, &b), KV_OK));
}

static void tear_down(void)
{
    kvt_folder_remove(folder);
}

TestSuite(roe_transit, .init = set_up, .fini = tear_down);

static void control(const char *json)
{
    kvt_transit_control(&transit, json, said, sizeof said);
}

static enum kv_err open_service(struct kv_roe **ret_roe)
{
    const struct kv_roe_conf conf = {.provider = "transit", .transit = transit.conf, .env = &kv_env_system};
    info = (struct kv_errinfo){0};
    return kv_roe_open(&conf, &info, ret_roe);
}

static struct kv_roe *must_open(uint64_t fence)
{
    struct kv_roe *roe = NULL;
    cr_assert(eq(int, open_service(&roe), KV_OK), "%s", info.text);
    roe->fence = fence;
    return roe;
}

static enum kv_err commit(struct kv_roe *roe, const struct kv_id *fresh, const struct kv_id *old)
{
    struct kv_roe_receipt receipt;
    return roe->ops->commit(roe, fresh, old, &receipt);
}

static void expect_on(struct kv_roe *roe, const struct kv_id *active, const struct kv_id *staged)
{
    struct kv_id found_active, found_staged;
    cr_assert(eq(int, roe->ops->list(roe, &found_active, &found_staged), KV_OK), "%s", roe->trouble.text);
    cr_assert(kv_id_equal(&found_active, active), "another active root than expected");
    cr_assert(kv_id_equal(&found_staged, staged), "another staged root than expected");
}

static struct kv_roe *with_a_and_b(uint64_t fence)
{
    struct kv_roe *roe = must_open(fence);
    cr_assert(eq(int, roe->ops->create(roe, &a), KV_OK), "%s", roe->trouble.text);
    cr_assert(eq(int, commit(roe, &a, &none), KV_OK), "%s", roe->trouble.text);
    cr_assert(eq(int, roe->ops->create(roe, &b), KV_OK), "%s", roe->trouble.text);
    return roe;
}

static void expect_trouble(struct kv_roe *roe, enum kv_err rc, enum kv_err wanted, const char *words)
{
    cr_assert(eq(int, rc, wanted), "%s", roe->trouble.text);
    cr_assert(strstr(roe->trouble.text, words) != NULL, "\"%s\" is not in: %s", words, roe->trouble.text);
}

/* --- destruction -------------------------------------------------------------------------------------------------- */

Test(roe_transit, destruction_deletes_the_named_key_and_nothing_else)
{
    char name_a[KV_TRANSIT_NAME_BYTES], name_b[KV_TRANSIT_NAME_BYTES];
    struct kv_roe *roe = with_a_and_b(17);
    cr_assert(kv_transit_name("kvrun-", &a, 17, name_a) && kv_transit_name("kvrun-", &b, 17, name_b));
    control("{}");
    cr_assert(strstr(said, name_a) != NULL && strstr(said, name_b) != NULL, "control: %s", said);
    cr_assert(eq(int, commit(roe, &b, &a), KV_OK), "%s", roe->trouble.text);
    control("{}");
    cr_assert(strstr(said, name_a) == NULL && strstr(said, name_b) != NULL, "%s", said);
    expect_on(roe, &b, &none);
    roe->ops->close(roe);
}

Test(roe_transit, service_that_keeps_what_it_deleted_gets_no_receipt)
{
    struct kv_roe *roe = with_a_and_b(1);
    control("{\"keep\":true}");
    expect_trouble(roe, commit(roe, &b, &a), KV_E_IO, "still shows the key");
    expect_on(roe, &a, &b);
    expect_trouble(roe, roe->ops->discard(roe, &b), KV_E_IO, "still shows the key");
    control("{\"keep\":false}");
    cr_assert(eq(int, commit(roe, &b, &a), KV_OK), "control: %s", roe->trouble.text);
    expect_on(roe, &b, &none);
    roe->ops->close(roe);
}

Test(roe_transit, exportable_key_is_refused_and_deleted_again)
{
    struct kv_roe *roe = must_open(1);
    control("{\"exportable\":true}");
    expect_trouble(roe, roe->ops->create(roe, &a), KV_E_UNSUPPORTED, "cannot leave it");
    control("{\"exportable\":false}");
    expect_on(roe, &none, &none);
    cr_assert(eq(int, roe->ops->create(roe, &a), KV_OK), "control: %s", roe->trouble.text);
    roe->ops->close(roe);
}

Test(roe_transit, root_of_a_later_fence_is_not_discarded)
{
    struct kv_roe *roe = with_a_and_b(6);
    roe->fence = 5;
    expect_trouble(roe, roe->ops->discard(roe, &b), KV_E_STALE, "came later");
    expect_on(roe, &a, &b);
    roe->fence = 7;
    cr_assert(eq(int, roe->ops->discard(roe, &b), KV_OK), "control");
    roe->ops->close(roe);
}

Test(roe_transit, wrap_of_a_deleted_root_makes_no_key_anew)
{
    struct kv_buf blob;
    struct kv_secret *root = NULL;
    struct kv_roe *roe = with_a_and_b(1);
    cr_assert(eq(int, commit(roe, &b, &a), KV_OK));
    cr_assert(eq(int, kv_secret_random(&kv_env_system, 32, &root), KV_OK));
    kv_buf_init(&blob, 4096);
    cr_assert(eq(int, roe->ops->wrap(roe, &a, root, &blob), KV_E_MISSING));
    expect_on(roe, &b, &none);
    kv_buf_done(&blob);
    kv_secret_free(root);
    roe->ops->close(roe);
}

/* --- what a service may answer ------------------------------------------------------------------------------------ */

Test(roe_transit, sealed_or_full_service_is_an_error_until_it_is_well)
{
    struct kv_roe *roe = with_a_and_b(1);
    control("{\"sealed\":true}");
    expect_trouble(roe, commit(roe, &b, &a), KV_E_IO, "sealed");
    control("{\"sealed\":false,\"full\":true}");
    cr_assert(eq(int, roe->ops->discard(roe, &b), KV_OK));
    expect_trouble(roe, roe->ops->create(roe, &b), KV_E_IO, "500");
    control("{\"full\":false}");
    expect_on(roe, &a, &none);
    cr_assert(eq(int, roe->ops->create(roe, &b), KV_OK), "control: %s", roe->trouble.text);
    roe->ops->close(roe);
}

Test(roe_transit, renewed_token_is_read_without_a_restart)
{
    struct kv_roe *roe = with_a_and_b(1);
    control("{\"token\":\"s.another\"}");
    expect_trouble(roe, commit(roe, &b, &a), KV_E_CONFIG, "refuses the token");
    cr_assert(strstr(roe->trouble.text, "s.") == NULL, "a token is never part of a message");
    kvt_file_write(transit.token_file, "s.another\n", 10, 0600);
    cr_assert(eq(int, commit(roe, &b, &a), KV_OK), "%s", roe->trouble.text);
    roe->ops->close(roe);
}

static void expect_refused(enum kv_err code, const char *words)
{
    struct kv_roe *roe = NULL;
    cr_assert(eq(int, open_service(&roe), code), "%s", info.text);
    cr_assert(strstr(info.text, words) != NULL, "\"%s\" is not in: %s", words, info.text);
}

Test(roe_transit, each_mistake_in_the_configuration_is_named)
{
    const struct kv_roe_transit_conf good = transit.conf;
    transit.conf.address = "http://vault.example.com:8200";
    expect_refused(KV_E_CONFIG, "https://");
    transit.conf.address = "";
    expect_refused(KV_E_CONFIG, "root.transit.address");
    transit.conf = good;
    transit.conf.address = "http://127.0.0.1:1";
    expect_refused(KV_E_IO, "does not answer");
    transit.conf = good;
    transit.conf.mount = "a b";
    expect_refused(KV_E_CONFIG, "root.transit.mount");
    transit.conf = good;
    transit.conf.prefix = "a/b";
    expect_refused(KV_E_CONFIG, "root.transit.prefix");
    transit.conf = good;
    transit.conf.name_space = "a\r\nb";
    expect_refused(KV_E_CONFIG, "root.transit.namespace");
    transit.conf = good;
    transit.conf.token_file = "/nowhere";
    expect_refused(KV_E_CONFIG, "root.transit.token_file");
    transit.conf = good;
    struct kv_roe *roe = must_open(1);
    roe->ops->close(roe);
}

Test(roe_transit, description_says_how_long_backups_are_kept)
{
    struct kv_roe *roe = must_open(1);
    cr_assert(strstr(roe->ops->describe(roe), "not declared") != NULL);
    roe->ops->close(roe);
    transit.conf.backup_window_s = 2592000;
    roe = must_open(1);
    cr_assert(strstr(roe->ops->describe(roe), "2592000 s") != NULL, "%s", roe->ops->describe(roe));
    roe->ops->close(roe);
}

/* --- kills -------------------------------------------------------------------------------------------------------- */

static void child_commit(struct kv_roe *roe)
{
    KV_IGNORE(commit(roe, &b, &a), "the child is killed, or the parent looks at the state");
}

static void child_create(struct kv_roe *roe)
{
    KV_IGNORE(roe->ops->create(roe, &b), "as above");
}

static void child_discard(struct kv_roe *roe)
{
    KV_IGNORE(roe->ops->discard(roe, &b), "as above");
}

static void run_killed(struct kv_roe *roe, void (*body)(struct kv_roe *), const char *point)
{
    pid_t child = fork();
    cr_assert(child >= 0);
    if (child == 0) {
        char spec[128];
        snprintf(spec, sizeof(spec), "%s=kill", point);
        kv_fault_set(spec);
        body(roe);
        _exit(0);
    }
    int status = 0;
    cr_assert(waitpid(child, &status, 0) == child);
    bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    cr_assert(killed, "%s", point);
}

Test(roe_transit, kill_between_any_two_steps_leaves_a_row_of_the_table)
{
    static const struct {
        void (*body)(struct kv_roe *);
        const char *point;
        const struct kv_id *active, *staged;
    } steps[] = {
        {child_discard, "roe/transit/destroy", &a, &b},    {child_discard, "roe/transit/destroyed", &a, &none},
        {child_create, "roe/transit/create", &a, &none},   {child_create, "roe/transit/created", &a, &b},
        {child_commit, "roe/transit/destroy", &a, &b},     {child_commit, "roe/transit/destroyed", &none, &b},
        {child_commit, "roe/transit/activate", &none, &b}, {child_commit, "roe/transit/activated", &b, &none},
    };
    struct kv_roe *roe = with_a_and_b(1);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        run_killed(roe, steps[i].body, steps[i].point);
        expect_on(roe, steps[i].active, steps[i].staged);
    }
    cr_assert(eq(int, commit(roe, &b, &a), KV_OK), "and the repeat ends it: %s", roe->trouble.text);
    roe->ops->close(roe);
}

/* --- reading answers ---------------------------------------------------------------------------------------------- */

Test(transit_answer, members_are_found_by_name_and_only_in_their_form)
{
    const char *text = NULL;
    size_t len = 0;
    uint64_t number = 0;
    static const char answer[] = "{\"data\": {\"other\":\"plaintext\", \"plaintext\" : \"QUJD\", \"n\":17, \"m\":017, "
                                 "\"f\":1.5, \"t\":true, \"s\":\"a\\\"b\", \"last\":3}}";
    cr_assert(kv_transit_string(answer, "plaintext", &text, &len) && len == 4 && memcmp(text, "QUJD", 4) == 0);
    cr_assert(kv_transit_number(answer, "n", &number) && number == 17);
    cr_assert(kv_transit_number(answer, "last", &number) && number == 3);
    cr_assert_not(kv_transit_number(answer, "m", &number) || kv_transit_number(answer, "f", &number));
    cr_assert_not(kv_transit_number(answer, "plaintext", &number) || kv_transit_number(answer, "x", &number));
    cr_assert_not(kv_transit_string(answer, "s", &text, &len), "an escape is none of what is asked for");
    cr_assert_not(kv_transit_string(answer, "n", &text, &len));
    cr_assert(kv_transit_is_true(answer, "t") && !kv_transit_is_false(answer, "t") && !kv_transit_is_true(answer, "n"));
    cr_assert_not(kv_transit_string("{\"plaintext\":\"cut", "plaintext", &text, &len));
    cr_assert(kv_transit_member("\"", "") == NULL && kv_transit_member("", "x") == NULL);
}

Test(transit_answer, names_of_others_and_names_that_are_cut_are_passed_over)
{
    struct kv_roe_key key;
    static const char answer[] =
        "{\"keys\":[\"kvrun-0123456789abcdef0123456789abcdef-17\",\"kvrun-0123456789ABCDEF0123456789abcdef-1\","
        "\"kvrun-0123456789abcdef0123456789abcdef\",\"other-0123456789abcdef0123456789abcdef-1\","
        "\"kvrun-0123456789abcdef0123456789abcdef-x\",\"kvrun-0123456789abcdef0123456789abcdef-01\","
        "\"kvrun-0123456789abcdef0123456789abcde-17\",\"kvrun-1123456789abcdef0123456789abcdef-0\",\"kvrun-0123";
    const char *at = answer;
    cr_assert(kv_transit_next_name(&at, "kvrun-", &key) && key.fence == 17 && key.id.b[0] == 0x01);
    cr_assert(kv_transit_next_name(&at, "kvrun-", &key) && key.fence == 0 && key.id.b[0] == 0x11);
    cr_assert_not(kv_transit_next_name(&at, "kvrun-", &key));
}
