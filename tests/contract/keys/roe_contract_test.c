/*
 * The state diagram of roe.h, over every provider: the same bodies run for all of them, and for one that keeps the keys
 * that it should destroy (tests/lib/roe_keeps.c), which must fail.
 */
#include "dataplane/base/id.h"
#include "dataplane/keys/roe.h"
#include "tests/lib/roe_keeps.h"
#include "tests/lib/run_program.h"
#include "tests/lib/soft_token.h"
#include "tests/lib/transit_service.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct fixture {
    struct kvt_token token;
    struct kvt_transit transit;
    char folder[KVT_PATH_BYTES], path[KVT_PATH_BYTES];
    struct kv_roe *roe;
    struct kv_id a, b, c;
    struct kv_id none;
    struct kv_secret *root;
    int rotations;
};

static void open_provider(struct fixture *f, const char *provider)
{
    struct kv_roe_conf conf = {.provider = provider, .path = f->path, .env = &kv_env_system};
    struct kv_errinfo info = {0};
    if (strcmp(provider, "keeps") == 0) {
        if (getenv("KVT_ROE_KEEPS") == NULL) {
            cr_skip_test("only the control runs this, and expects it to fail");
        }
        f->roe = kvt_roe_keeps_new();
        return;
    }
    if (strcmp(provider, "pkcs11") == 0) {
        if (!kvt_token_make(f->folder, &f->token)) {
            kvt_folder_remove(f->folder);
            cr_skip_test("SoftHSM is not installed (Debian: softhsm2)");
        }
        conf.pkcs11 = f->token.conf;
    }
    if (strcmp(provider, "transit") == 0) {
        cr_assert(kvt_transit_start(f->folder, &f->transit), "the key service does not start");
        conf.transit = f->transit.conf;
    }
    cr_assert(eq(int, kv_roe_open(&conf, &info, &f->roe), KV_OK), "%s", info.text);
}

static void set_up(struct fixture *f, const char *provider)
{
    bool token = strcmp(provider, "pkcs11") == 0;
    *f = (struct fixture){.rotations = token || strcmp(provider, "transit") == 0 ? 10 : 200};
    if (token && access("/dev/shm", W_OK) == 0) { /* SoftHSM syncs each attribute that it writes */
        setenv("TMPDIR", "/dev/shm", 1);
    }
    kvt_folder_make(f->folder);
    kvt_path_join(f->path, f->folder, "root");
    open_provider(f, provider);
    cr_assert(eq(int, kv_id_new(&kv_env_system, &f->a), KV_OK));
    cr_assert(eq(int, kv_id_new(&kv_env_system, &f->b), KV_OK));
    cr_assert(eq(int, kv_id_new(&kv_env_system, &f->c), KV_OK));
    cr_assert(eq(int, kv_secret_random(&kv_env_system, 32, &f->root), KV_OK));
}

static void tear_down(struct fixture *f)
{
    kv_secret_free(f->root);
    f->roe->ops->close(f->roe);
    kvt_folder_remove(f->folder);
    cr_assert(eq(sz, kv_secret_arena_used(), 0), "a provider left a secret behind");
}

static enum kv_err create(struct fixture *f, const struct kv_id *id)
{
    return f->roe->ops->create(f->roe, id);
}

static enum kv_err commit(struct fixture *f, const struct kv_id *fresh, const struct kv_id *old)
{
    struct kv_roe_receipt receipt;
    return f->roe->ops->commit(f->roe, fresh, old, &receipt);
}

static enum kv_err discard(struct fixture *f, const struct kv_id *id)
{
    return f->roe->ops->discard(f->roe, id);
}

static void expect(struct fixture *f, const struct kv_id *active, const struct kv_id *staged)
{
    struct kv_id found_active, found_staged;
    cr_assert(eq(int, f->roe->ops->list(f->roe, &found_active, &found_staged), KV_OK));
    cr_assert(kv_id_equal(&found_active, active), "another active root than expected");
    cr_assert(kv_id_equal(&found_staged, staged), "another staged root than expected");
}

static struct kv_buf wrap(struct fixture *f, const struct kv_id *id)
{
    struct kv_buf blob;
    kv_buf_init(&blob, 4096);
    cr_assert(eq(int, f->roe->ops->wrap(f->roe, id, f->root, &blob), KV_OK));
    return blob;
}

static enum kv_err unwrap(struct fixture *f, const struct kv_id *id, const struct kv_buf *blob)
{
    struct kv_secret *secret = NULL;
    enum kv_err rc = f->roe->ops->unwrap(f->roe, id, kv_buf_bytes(blob), &secret);
    if (rc == KV_OK) {
        cr_assert(eq(sz, kv_secret_len(secret), 32));
        cr_assert(memcmp(kv_secret_data(secret), kv_secret_data(f->root), 32) == 0, "another secret came back");
    } else {
        cr_assert(secret == NULL, "a result was touched on failure");
    }
    kv_secret_free(secret);
    return rc;
}

/* a is active. */
static void start_with_a(struct fixture *f)
{
    cr_assert(eq(int, create(f, &f->a), KV_OK));
    cr_assert(eq(int, commit(f, &f->a, &f->none), KV_OK));
    expect(f, &f->a, &f->none);
}

#define OVER(provider, name)   \
    Test(roe_##provider, name) \
    {                          \
        struct fixture f;      \
        set_up(&f, #provider); \
        name(&f);              \
        tear_down(&f);         \
    }

#define BEHAVIOUR(name)                  \
    static void name(struct fixture *f); \
    OVER(memory, name)                   \
    OVER(file, name)                     \
    OVER(pkcs11, name)                   \
    OVER(transit, name)                  \
    OVER(keeps, name)                    \
    static void name(struct fixture *f)

BEHAVIOUR(fresh_provider_lists_nothing)
{
    expect(f, &f->none, &f->none);
    cr_assert(strlen(f->roe->ops->describe(f->roe)) > 0);
    cr_assert(eq(str, (char *)f->roe->ops->assurance(f->roe), "E2"), "nothing here was declared to be hardware");
}

BEHAVIOUR(create_stages_only)
{
    cr_assert(eq(int, create(f, &f->a), KV_OK));
    expect(f, &f->none, &f->a);
}

BEHAVIOUR(commit_with_zero_old_activates_the_first_root)
{
    start_with_a(f);
}

BEHAVIOUR(create_is_refused_while_another_root_is_staged)
{
    start_with_a(f);
    cr_assert(eq(int, create(f, &f->b), KV_OK));
    cr_assert(eq(int, create(f, &f->c), KV_E_INVALID_STATE));
    expect(f, &f->a, &f->b);
}

BEHAVIOUR(repeated_create_keeps_the_same_key)
{
    cr_assert(eq(int, create(f, &f->a), KV_OK));
    struct kv_buf blob = wrap(f, &f->a);
    cr_assert(eq(int, create(f, &f->a), KV_OK));
    cr_assert(eq(int, unwrap(f, &f->a, &blob), KV_OK));
    kv_buf_done(&blob);
}

BEHAVIOUR(create_of_the_active_root_or_of_the_zero_id_is_refused)
{
    start_with_a(f);
    cr_assert(eq(int, create(f, &f->a), KV_E_INVALID_STATE));
    cr_assert(eq(int, create(f, &f->none), KV_E_INVALID_REQUEST));
    expect(f, &f->a, &f->none);
}

BEHAVIOUR(commit_replaces_the_active_root)
{
    start_with_a(f);
    cr_assert(eq(int, create(f, &f->b), KV_OK));
    cr_assert(eq(int, commit(f, &f->b, &f->a), KV_OK));
    expect(f, &f->b, &f->none);
}

BEHAVIOUR(receipt_names_both_roots_and_binds_them)
{
    struct kv_roe_receipt first = {0}, second = {0};
    start_with_a(f);
    cr_assert(eq(int, create(f, &f->b), KV_OK));
    cr_assert(eq(int, f->roe->ops->commit(f->roe, &f->b, &f->a, &first), KV_OK));
    cr_assert(kv_id_equal(&first.destroyed, &f->a) && kv_id_equal(&first.active, &f->b));
    cr_assert(first.realtime_us > 0);
    cr_assert(eq(int, create(f, &f->c), KV_OK));
    cr_assert(eq(int, f->roe->ops->commit(f->roe, &f->c, &f->b, &second), KV_OK));
    cr_assert(memcmp(first.hash, second.hash, 32) != 0);
}

BEHAVIOUR(commit_of_wrong_ids_is_stale_and_changes_nothing)
{
    start_with_a(f);
    cr_assert(eq(int, commit(f, &f->b, &f->a), KV_E_STALE), "nothing is staged");
    cr_assert(eq(int, create(f, &f->b), KV_OK));
    cr_assert(eq(int, commit(f, &f->c, &f->a), KV_E_STALE), "another root is staged");
    cr_assert(eq(int, commit(f, &f->b, &f->c), KV_E_STALE), "another root is active");
    cr_assert(eq(int, commit(f, &f->b, &f->none), KV_E_STALE), "a root is active");
    cr_assert(eq(int, commit(f, &f->a, &f->b), KV_E_STALE), "the ids are the wrong way round");
    cr_assert(eq(int, commit(f, &f->b, &f->b), KV_E_INVALID_REQUEST));
    cr_assert(eq(int, commit(f, &f->none, &f->a), KV_E_INVALID_REQUEST));
    expect(f, &f->a, &f->b);
    cr_assert(eq(int, commit(f, &f->b, &f->a), KV_OK), "control: the right ids");
}

BEHAVIOUR(repeated_commit_is_ok)
{
    start_with_a(f);
    cr_assert(eq(int, create(f, &f->b), KV_OK));
    cr_assert(eq(int, commit(f, &f->b, &f->a), KV_OK));
    cr_assert(eq(int, commit(f, &f->b, &f->a), KV_OK));
    cr_assert(eq(int, create(f, &f->c), KV_OK));
    cr_assert(eq(int, commit(f, &f->b, &f->a), KV_OK), "a late repeat leaves the next staged root alone");
    expect(f, &f->b, &f->c);
}

BEHAVIOUR(discard_removes_the_staged_root)
{
    start_with_a(f);
    cr_assert(eq(int, create(f, &f->b), KV_OK));
    cr_assert(eq(int, discard(f, &f->b), KV_OK));
    expect(f, &f->a, &f->none);
    cr_assert(eq(int, discard(f, &f->b), KV_OK), "again");
    cr_assert(eq(int, create(f, &f->c), KV_OK), "and another may be staged");
    expect(f, &f->a, &f->c);
}

BEHAVIOUR(discard_of_the_active_root_is_stale)
{
    start_with_a(f);
    cr_assert(eq(int, discard(f, &f->a), KV_E_STALE));
    cr_assert(eq(int, discard(f, &f->none), KV_E_INVALID_REQUEST));
    expect(f, &f->a, &f->none);
}

BEHAVIOUR(discard_of_an_id_that_is_not_staged_leaves_the_staged_one)
{
    start_with_a(f);
    cr_assert(eq(int, create(f, &f->b), KV_OK));
    cr_assert(eq(int, discard(f, &f->c), KV_OK));
    expect(f, &f->a, &f->b);
}

BEHAVIOUR(wrap_and_unwrap_work_for_staged_and_active_roots)
{
    cr_assert(eq(int, create(f, &f->a), KV_OK));
    struct kv_buf staged = wrap(f, &f->a);
    cr_assert(eq(int, unwrap(f, &f->a, &staged), KV_OK));
    cr_assert(eq(int, commit(f, &f->a, &f->none), KV_OK));
    cr_assert(eq(int, unwrap(f, &f->a, &staged), KV_OK), "activation keeps the key");
    struct kv_buf active = wrap(f, &f->a);
    cr_assert(eq(int, unwrap(f, &f->a, &active), KV_OK));
    kv_buf_done(&staged);
    kv_buf_done(&active);
}

BEHAVIOUR(wrap_for_an_unknown_root_is_missing)
{
    struct kv_buf blob;
    kv_buf_init(&blob, 4096);
    start_with_a(f);
    cr_assert(eq(int, f->roe->ops->wrap(f->roe, &f->b, f->root, &blob), KV_E_MISSING));
    cr_assert(eq(int, f->roe->ops->wrap(f->roe, &f->none, f->root, &blob), KV_E_MISSING));
    cr_assert(eq(sz, blob.len, 0));
    kv_buf_done(&blob);
}

BEHAVIOUR(unwrap_after_the_destruction_is_impossible)
{
    start_with_a(f);
    struct kv_buf blob = wrap(f, &f->a);
    cr_assert(eq(int, unwrap(f, &f->a, &blob), KV_OK), "control");
    cr_assert(eq(int, create(f, &f->b), KV_OK));
    cr_assert(eq(int, unwrap(f, &f->a, &blob), KV_OK), "control: staging destroys nothing");
    cr_assert(eq(int, commit(f, &f->b, &f->a), KV_OK));
    cr_assert(eq(int, unwrap(f, &f->a, &blob), KV_E_MISSING));
    cr_assert(eq(int, unwrap(f, &f->b, &blob), KV_E_WRONG_KEY));
    kv_buf_done(&blob);
}

BEHAVIOUR(unwrap_after_a_discard_is_impossible)
{
    start_with_a(f);
    cr_assert(eq(int, create(f, &f->b), KV_OK));
    struct kv_buf blob = wrap(f, &f->b);
    cr_assert(eq(int, unwrap(f, &f->b, &blob), KV_OK), "control");
    cr_assert(eq(int, discard(f, &f->b), KV_OK));
    cr_assert(eq(int, unwrap(f, &f->b, &blob), KV_E_MISSING));
    cr_assert(eq(int, create(f, &f->b), KV_OK), "the same id gets another key");
    /* Where the key never leaves its place, another key and another blob look the same. */
    enum kv_err rc = unwrap(f, &f->b, &blob);
    cr_assert(rc == KV_E_WRONG_KEY || rc == KV_E_TAMPERED, "%s", kv_err_name(rc));
    kv_buf_done(&blob);
}

static enum kv_err retire(struct fixture *f, const struct kv_id *old)
{
    struct kv_roe_receipt receipt = {0};
    enum kv_err rc = f->roe->ops->retire(f->roe, old, &f->c, &receipt);
    if (rc == KV_OK) {
        cr_assert(kv_id_equal(&receipt.destroyed, old) && kv_id_equal(&receipt.active, &f->c), "of other roots");
    }
    return rc;
}

BEHAVIOUR(retired_root_is_gone_and_nothing_comes_after_it_here)
{
    start_with_a(f);
    struct kv_buf blob = wrap(f, &f->a);
    cr_assert(eq(int, unwrap(f, &f->a, &blob), KV_OK), "control");
    cr_assert(eq(int, retire(f, &f->b), KV_E_STALE));
    cr_assert(eq(int, retire(f, &f->none), KV_E_INVALID_REQUEST));
    cr_assert(eq(int, create(f, &f->b), KV_OK));
    cr_assert(eq(int, retire(f, &f->a), KV_E_INVALID_STATE));
    cr_assert(eq(int, discard(f, &f->b), KV_OK));
    expect(f, &f->a, &f->none);
    cr_assert(eq(int, retire(f, &f->a), KV_OK));
    expect(f, &f->none, &f->none);
    cr_assert(eq(int, unwrap(f, &f->a, &blob), KV_E_MISSING));
    cr_assert(eq(int, retire(f, &f->a), KV_OK), "again");
    start_with_a(f); /* it can be the provider of a root once more */
    kv_buf_done(&blob);
}

BEHAVIOUR(blob_of_another_root_is_refused)
{
    start_with_a(f);
    cr_assert(eq(int, create(f, &f->b), KV_OK));
    struct kv_buf blob_a = wrap(f, &f->a), blob_b = wrap(f, &f->b);
    cr_assert(eq(int, unwrap(f, &f->a, &blob_b), KV_E_WRONG_KEY));
    cr_assert(eq(int, unwrap(f, &f->b, &blob_a), KV_E_WRONG_KEY));
    cr_assert(eq(int, unwrap(f, &f->b, &blob_b), KV_OK), "control");
    kv_buf_done(&blob_a);
    kv_buf_done(&blob_b);
}

BEHAVIOUR(changed_or_cut_blob_is_refused)
{
    start_with_a(f);
    struct kv_buf blob = wrap(f, &f->a);
    blob.data[blob.len - 1] ^= 1;
    cr_assert(eq(int, unwrap(f, &f->a, &blob), KV_E_TAMPERED));
    blob.data[blob.len - 1] ^= 1;
    cr_assert(eq(int, unwrap(f, &f->a, &blob), KV_OK), "control");
    blob.len--;
    cr_assert(ne(int, unwrap(f, &f->a, &blob), KV_OK));
    blob.len = 0;
    cr_assert(ne(int, unwrap(f, &f->a, &blob), KV_OK));
    kv_buf_done(&blob);
}

BEHAVIOUR(many_rotations_end_with_the_last_root)
{
    start_with_a(f);
    struct kv_id old = f->a;
    for (int i = 0; i < f->rotations; i++) {
        struct kv_id fresh;
        cr_assert(eq(int, kv_id_new(&kv_env_system, &fresh), KV_OK));
        cr_assert(eq(int, create(f, &fresh), KV_OK));
        cr_assert(eq(int, commit(f, &fresh, &old), KV_OK));
        old = fresh;
    }
    expect(f, &old, &f->none);
}

Test(roe_registry, unknown_provider_is_a_configuration_error)
{
    struct kv_roe *roe = NULL;
    struct kv_errinfo info = {0};
    const struct kv_roe_conf conf = {.provider = "paper", .env = &kv_env_system};
    cr_assert(eq(int, kv_roe_open(&conf, &info, &roe), KV_E_CONFIG));
    cr_assert(strstr(info.text, "file") != NULL, "the text names what is there: %s", info.text);
    const struct kv_roe_conf unset = {.env = &kv_env_system};
    cr_assert(eq(int, kv_roe_open(&unset, &info, &roe), KV_E_CONFIG));
}

/* The control: were the suite blind to a key that stays, it would pass for this provider, too. */
Test(roe_control, provider_that_keeps_a_destroyed_key_fails_the_suite)
{
    static char output[65536];
    static const char *const argv[] = {"/proc/self/exe", "--filter", "roe_keeps/*", "--jobs", "1", NULL};
    setenv("KVT_ROE_KEEPS", "1", 1);
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1); /* a test that fails does not clean up */
    unsetenv("BXFI_MAP");                        /* with it the runner would take itself for the child of one */
    cr_assert(ne(int, kvt_program_run(argv, output, sizeof output), 0), "%s", output);
    static const char *const caught[] = {"unwrap_after_the_destruction_is_impossible",
                                         "unwrap_after_a_discard_is_impossible",
                                         "retired_root_is_gone_and_nothing_comes_after_it_here"};
    for (size_t i = 0; i < sizeof caught / sizeof caught[0]; i++) {
        char line[128];
        snprintf(line, sizeof line, "[FAIL] roe_keeps::%s", caught[i]);
        cr_assert(strstr(output, line) != NULL, "%s is not among the failures: %s", caught[i], output);
    }
    cr_assert(strstr(output, "[FAIL] roe_keeps::commit_replaces_the_active_root") == NULL,
              "it does everything else: %s", output);
}
