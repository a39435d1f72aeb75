/*
 * The pkcs11 provider on SoftHSM: what is on the token before and after a destruction, several processes on one token,
 * kills between any two steps, and every answer of a token that is not "yes".
 */
#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "dataplane/keys/roe.h"
#include "tests/lib/soft_token.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char folder[KVT_PATH_BYTES];
static struct kvt_token token;
static struct kv_id a, b, c;
static const struct kv_id none;
static struct kv_errinfo info;
static bool missing;

static void set_up(void)
{
    if (access("/dev/shm", W_OK) == 0) { /* SoftHSM syncs each attribute that it writes */
        setenv("TMPDIR", "/dev/shm", 1);
    }
    kvt_folder_make(folder);
    missing = !kvt_token_make(folder, &token);
    cr_assert(eq(int, kv_id_new(&kv_env_system, &a), KV_OK));
    cr_assert(eq(int, kv_id_new(&kv_env_system, &b), KV_OK));
    cr_assert(eq(int, kv_id_new(&kv_env_system, &c), KV_OK));
}

static void tear_down(void)
{
    kvt_folder_remove(folder);
}

TestSuite(roe_pkcs11, .init = set_up, .fini = tear_down);

#define NEEDS_TOKEN()                                                    \
    do {                                                                 \
        if (missing) {                                                   \
            cr_skip_test("SoftHSM is not installed (Debian: softhsm2)"); \
        }                                                                \
    } while (0)

static enum kv_err open_token(struct kv_roe **ret_roe)
{
    const struct kv_roe_conf conf = {.provider = "pkcs11", .pkcs11 = token.conf, .env = &kv_env_system};
    info = (struct kv_errinfo){0};
    return kv_roe_open(&conf, &info, ret_roe);
}

static struct kv_roe *must_open(uint64_t fence)
{
    struct kv_roe *roe = NULL;
    cr_assert(eq(int, open_token(&roe), KV_OK), "%s", info.text);
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

static void expect(const struct kv_id *active, const struct kv_id *staged)
{
    struct kv_roe *roe = must_open(0);
    expect_on(roe, active, staged);
    roe->ops->close(roe);
}

static void make_active(struct kv_roe *roe, const struct kv_id *id)
{
    cr_assert(eq(int, roe->ops->create(roe, id), KV_OK), "%s", roe->trouble.text);
    cr_assert(eq(int, commit(roe, id, &none), KV_OK), "%s", roe->trouble.text);
}

static void stage(struct kv_roe *roe, const struct kv_id *id)
{
    cr_assert(eq(int, roe->ops->create(roe, id), KV_OK), "%s", roe->trouble.text);
}

/* In a child of a test, where a failed assertion would report to a runner that does not know the child. */
static struct kv_roe *open_in_child(uint64_t fence)
{
    struct kv_roe *roe = NULL;
    enum kv_err rc = open_token(&roe);
    /* SoftHSM reads its files while another process writes them, and then finds a token without a PIN. */
    for (int again = 0; rc != KV_OK && again < 20; again++) {
        struct timespec pause = {.tv_nsec = 50 * 1000 * 1000};
        nanosleep(&pause, NULL);
        rc = open_token(&roe);
    }
    if (rc != KV_OK) {
        fprintf(stderr, "in a child: %s\n", info.text);
        _exit(9);
    }
    roe->fence = fence;
    return roe;
}

/* In a process of its own, as another instance; its exit status. Nothing may be open here: the token's library does not
 * live on in a fork. */
static int elsewhere(int (*body)(void))
{
    pid_t child = fork();
    cr_assert(child >= 0);
    if (child == 0) {
        _exit(body());
    }
    int status = 0;
    cr_assert(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* --- the token ---------------------------------------------------------------------------------------------------- */

/* Object files of the token folder: SoftHSM keeps one file an object. */
static unsigned object_files(void)
{
    char pattern[KVT_PATH_BYTES + 64], line[32] = "";
    snprintf(pattern, sizeof pattern, "ls -1 %s/*/*.object 2>/dev/null | grep -vc token.object", folder);
    FILE *list = popen(pattern, "r");
    cr_assert(list != NULL && fgets(line, sizeof line, list) != NULL);
    pclose(list);
    return (unsigned)strtoul(line, NULL, 10);
}

Test(roe_pkcs11, destruction_removes_the_object_from_the_token)
{
    NEEDS_TOKEN();
    struct kv_roe *roe = must_open(1);
    make_active(roe, &a);
    cr_assert(eq(uint, object_files(), 1u));
    stage(roe, &b);
    cr_assert(eq(uint, object_files(), 2u), "control");
    cr_assert(eq(int, commit(roe, &b, &a), KV_OK), "%s", roe->trouble.text);
    cr_assert(eq(uint, object_files(), 1u));
    roe->ops->close(roe);
    expect(&b, &none);
}

Test(roe_pkcs11, keys_of_another_label_are_left_alone_and_not_seen)
{
    NEEDS_TOKEN();
    struct kv_roe *ours = must_open(1);
    make_active(ours, &a);
    ours->ops->close(ours);
    token.conf.label = "other";
    struct kv_roe *theirs = must_open(1);
    expect_on(theirs, &none, &none);
    make_active(theirs, &c);
    theirs->ops->close(theirs);
    token.conf.label = NULL;
    expect(&a, &none);
}

Test(roe_pkcs11, description_names_the_token_and_nothing_of_the_pin)
{
    NEEDS_TOKEN();
    struct kv_roe *roe = must_open(1);
    const char *text = roe->ops->describe(roe);
    cr_assert(strstr(text, "SoftHSM") != NULL && strstr(text, "serial") != NULL, "%s", text);
    cr_assert(strstr(text, "4711") == NULL);
    cr_assert(eq(str, (char *)roe->ops->assurance(roe), "E2"));
    roe->ops->close(roe);
}

/* --- configuration ------------------------------------------------------------------------------------------------ */

static void expect_refused(enum kv_err code, const char *words)
{
    struct kv_roe *roe = NULL;
    cr_assert(eq(int, open_token(&roe), code), "%s", info.text);
    cr_assert(strstr(info.text, words) != NULL, "\"%s\" is not in: %s", words, info.text);
    cr_assert(roe == NULL);
    cr_assert(eq(sz, kv_secret_arena_used(), 0));
}

Test(roe_pkcs11, module_that_is_none_is_refused)
{
    NEEDS_TOKEN();
    token.conf.module = "libsofthsm2.so";
    expect_refused(KV_E_CONFIG, "absolute path");
    token.conf.module = "/nowhere/libsofthsm2.so";
    expect_refused(KV_E_CONFIG, "cannot be loaded");
    token.conf.module = "/proc/self/exe";
    expect_refused(KV_E_CONFIG, "root.pkcs11.module");
    token.conf.module = NULL;
    expect_refused(KV_E_CONFIG, "absolute path");
}

Test(roe_pkcs11, token_that_is_not_there_is_refused)
{
    NEEDS_TOKEN();
    token.conf.token = "kvrun-tes";
    expect_refused(KV_E_IO, "no token has the label");
    token.conf.token = "";
    expect_refused(KV_E_CONFIG, "root.pkcs11.token");
    token.conf.token = "123456789012345678901234567890123";
    expect_refused(KV_E_CONFIG, "32 bytes");
}

Test(roe_pkcs11, pin_file_that_others_read_or_that_is_missing_or_empty_is_refused)
{
    NEEDS_TOKEN();
    kvt_file_write(token.pin_file, "4711-pin\n", 9, 0640);
    expect_refused(KV_E_CONFIG, "chmod 600");
    kvt_file_write(token.pin_file, "\n", 1, 0600);
    expect_refused(KV_E_CONFIG, "one line");
    kvt_file_write(token.pin_file, "4711-pin\nx\n", 11, 0600);
    expect_refused(KV_E_CONFIG, "one line");
    unlink(token.pin_file);
    expect_refused(KV_E_CONFIG, "cannot be opened");
    token.conf.pin_file = "pin";
    expect_refused(KV_E_CONFIG, "absolute path");
}

Test(roe_pkcs11, wrong_pin_is_said_and_not_sent_a_second_time)
{
    NEEDS_TOKEN();
    kvt_token_shim(&token);
    struct kv_roe *roe = must_open(1);
    make_active(roe, &a);
    kvt_file_write(token.pin_file, "0000-pin\n", 9, 0600);
    setenv("KVT_SHIM", "C_FindObjectsInit=0xb3@1", 1); /* the session is gone, so the PIN is needed again */
    setenv("KVT_SHIM_LOGINS", "0", 1);
    struct kv_id active, staged;
    cr_assert(eq(int, roe->ops->list(roe, &active, &staged), KV_E_CONFIG));
    cr_assert(strstr(roe->trouble.text, "refused the PIN") != NULL, "%s", roe->trouble.text);
    for (int i = 0; i < 5; i++) {
        cr_assert(eq(int, roe->ops->list(roe, &active, &staged), KV_E_CONFIG));
    }
    cr_assert(eq(str, getenv("KVT_SHIM_LOGINS"), "1"), "three wrong ones lock a token");
    kvt_file_write(token.pin_file, "4711-pin\r\n", 10, 0600);
    expect_on(roe, &a, &none);
    cr_assert(eq(str, getenv("KVT_SHIM_LOGINS"), "2"));
    roe->ops->close(roe);
}

/* --- what a token may answer -------------------------------------------------------------------------------------- */

Test(roe_pkcs11, lost_session_is_opened_again)
{
    NEEDS_TOKEN();
    kvt_token_shim(&token);
    struct kv_roe *roe = must_open(1);
    make_active(roe, &a);
    static const char *const lost[] = {"C_FindObjectsInit=0xb3@1", "C_FindObjectsInit=0x32@1", "C_GenerateKey=0x101@1",
                                       "C_GenerateKey=0x190@1"};
    for (size_t i = 0; i < sizeof lost / sizeof lost[0]; i++) {
        setenv("KVT_SHIM", lost[i], 1);
        cr_assert(eq(int, roe->ops->create(roe, &b), KV_OK), "%s: %s", lost[i], roe->trouble.text);
        expect_on(roe, &a, &b);
        cr_assert(eq(int, roe->ops->discard(roe, &b), KV_OK), "%s: %s", lost[i], roe->trouble.text);
    }
    roe->ops->close(roe);
}

struct answer {
    const char *said;
    enum kv_err rc;
    const char *words;
};

Test(roe_pkcs11, each_refusal_of_a_key_is_named_and_leaves_no_key)
{
    NEEDS_TOKEN();
    static const struct answer answers[] = {
        {"C_GenerateKey=0x31", KV_E_NO_SPACE, "full"},
        {"C_GenerateKey=0x32", KV_E_IO, "removed"},
        {"C_GenerateKey=0xb5", KV_E_CONFIG, "sessions that read"},
        {"C_GenerateKey=0xe2", KV_E_CONFIG, "write-protected"},
        {"C_GenerateKey=0x12", KV_E_UNSUPPORTED, "2.40"},
        {"C_GenerateKey=0x7777", KV_E_IO, "0x7777"},
        {"C_GenerateKey=loose", KV_E_UNSUPPORTED, "only be used inside"},
        {"C_SetAttributeValue=0x10", KV_E_UNSUPPORTED, "label"},
        {"C_SetAttributeValue=0x1b", KV_E_UNSUPPORTED, "label"},
    };
    kvt_token_shim(&token);
    struct kv_roe *roe = must_open(1);
    make_active(roe, &a);
    for (size_t i = 0; i < sizeof answers / sizeof answers[0]; i++) {
        setenv("KVT_SHIM", answers[i].said, 1);
        cr_assert(eq(int, roe->ops->create(roe, &b), answers[i].rc), "%s: %s", answers[i].said, roe->trouble.text);
        cr_assert(strstr(roe->trouble.text, answers[i].words) != NULL, "%s: %s", answers[i].said, roe->trouble.text);
        unsetenv("KVT_SHIM");
        expect_on(roe, &a, &none);
    }
    cr_assert(eq(int, roe->ops->create(roe, &b), KV_OK), "control: %s", roe->trouble.text);
    roe->ops->close(roe);
}

Test(roe_pkcs11, each_refusal_at_opening_is_named)
{
    NEEDS_TOKEN();
    static const struct answer answers[] = {
        {"C_Login=0xa4", KV_E_CONFIG, "locked"},
        {"C_Login=0xa3", KV_E_CONFIG, "ran out"},
        {"C_Login=0x102", KV_E_CONFIG, "no user PIN"},
        {"C_GetMechanismInfo=0x70", KV_E_UNSUPPORTED, "AES-256-GCM"},
        {"C_Initialize=0x191", KV_E_CONFIG, "another part"},
        {"C_Initialize=0x5", KV_E_IO, "without a cause"},
    };
    kvt_token_shim(&token);
    for (size_t i = 0; i < sizeof answers / sizeof answers[0]; i++) {
        setenv("KVT_SHIM", answers[i].said, 1);
        expect_refused(answers[i].rc, answers[i].words);
    }
    unsetenv("KVT_SHIM");
    struct kv_roe *roe = must_open(1);
    roe->ops->close(roe);
}

Test(roe_pkcs11, token_that_keeps_what_it_destroyed_gets_no_receipt)
{
    NEEDS_TOKEN();
    kvt_token_shim(&token);
    struct kv_roe *roe = must_open(1);
    make_active(roe, &a);
    stage(roe, &b);
    setenv("KVT_SHIM", "C_DestroyObject=keep", 1);
    for (int i = 0; i < 2; i++) {
        cr_assert(eq(int, commit(roe, &b, &a), KV_E_IO));
        cr_assert(strstr(roe->trouble.text, "still shows the key") != NULL, "%s", roe->trouble.text);
        expect_on(roe, &a, &b);
    }
    cr_assert(eq(int, roe->ops->discard(roe, &b), KV_E_IO), "a discarded key is gone, too");
    unsetenv("KVT_SHIM");
    cr_assert(eq(int, commit(roe, &b, &a), KV_OK), "control: %s", roe->trouble.text);
    expect_on(roe, &b, &none);
    roe->ops->close(roe);
}

/* The repeat of a commit says again what it sees, not what it once did. */
Test(roe_pkcs11, key_that_came_back_is_destroyed_again_before_another_receipt)
{
    NEEDS_TOKEN();
    struct kv_roe *roe = must_open(1);
    make_active(roe, &a);
    stage(roe, &b);
    cr_assert(eq(int, commit(roe, &b, &a), KV_OK));
    stage(roe, &a); /* the same id on the token once more */
    cr_assert(eq(int, commit(roe, &b, &a), KV_E_STALE));
    expect_on(roe, &b, &a);
    roe->ops->close(roe);
}

Test(roe_pkcs11, removed_token_is_an_error_until_it_is_back)
{
    NEEDS_TOKEN();
    char away[KVT_PATH_BYTES], conf[KVT_PATH_BYTES];
    struct kv_roe *roe = must_open(1);
    make_active(roe, &a);
    roe->ops->close(roe);
    kvt_path_join(conf, folder, "softhsm2.conf");
    kvt_path_join(away, folder, "away.conf");
    char text[KVT_PATH_BYTES + 64];
    int len = snprintf(text, sizeof text, "directories.tokendir = %s/none\nobjectstore.backend = file\n", folder);
    kvt_file_write(away, text, (size_t)len, 0600);
    setenv("SOFTHSM2_CONF", away, 1);
    expect_refused(KV_E_IO, "");
    setenv("SOFTHSM2_CONF", conf, 1);
    expect(&a, &none);
}

/* --- hardware ----------------------------------------------------------------------------------------------------- */

static char serial[17];

static void declare(void)
{
    struct kv_roe *roe = must_open(1);
    const char *at = strstr(roe->ops->describe(roe), "serial ");
    cr_assert(at != NULL);
    snprintf(serial, sizeof serial, "%s", at + 7);
    roe->ops->close(roe);
    token.conf.manufacturer = "SoftHSM project";
    token.conf.model = "SoftHSM v2";
    token.conf.serial = serial;
}

Test(roe_pkcs11, declared_hardware_that_the_token_reports_is_e3)
{
    NEEDS_TOKEN();
    kvt_token_shim(&token);
    declare();
    setenv("KVT_SHIM", "C_GetSlotInfo=hardware", 1);
    struct kv_roe *roe = must_open(1);
    cr_assert(eq(str, (char *)roe->ops->assurance(roe), "E3"));
    cr_assert(strstr(roe->ops->describe(roe), "hardware token") != NULL &&
                  strstr(roe->ops->describe(roe), serial) != NULL,
              "%s", roe->ops->describe(roe));
    roe->ops->close(roe);
}

Test(roe_pkcs11, software_token_cannot_be_declared_hardware)
{
    NEEDS_TOKEN();
    declare();
    expect_refused(KV_E_CONFIG, "says that it is none");
}

Test(roe_pkcs11, declaration_of_another_device_or_half_of_one_is_refused)
{
    NEEDS_TOKEN();
    kvt_token_shim(&token);
    declare();
    setenv("KVT_SHIM", "C_GetSlotInfo=hardware", 1);
    token.conf.serial = "0000";
    expect_refused(KV_E_CONFIG, "another device");
    token.conf.serial = "";
    expect_refused(KV_E_CONFIG, "all three");
}

/* --- several processes -------------------------------------------------------------------------------------------- */

static int discard_b_under_fence_five(void)
{
    struct kv_roe *roe = open_in_child(5);
    return roe->ops->discard(roe, &b) != KV_E_STALE;
}

static int stage_c_under_fence_five(void)
{
    struct kv_roe *roe = open_in_child(5);
    return roe->ops->create(roe, &c) != KV_E_INVALID_STATE;
}

static int commit_c_over_a(void)
{
    struct kv_roe *roe = open_in_child(5);
    return commit(roe, &c, &a) != KV_E_STALE;
}

static int roll_b_forward(void)
{
    struct kv_roe *roe = open_in_child(7);
    return commit(roe, &b, &a) != KV_OK;
}

static int discard_b_under_fence_seven(void)
{
    struct kv_roe *roe = open_in_child(7);
    return roe->ops->discard(roe, &b) != KV_OK;
}

Test(roe_pkcs11, overtaken_process_changes_nothing_of_what_a_later_one_made)
{
    NEEDS_TOKEN();
    struct kv_roe *roe = must_open(6);
    make_active(roe, &a);
    stage(roe, &b);
    roe->ops->close(roe);
    cr_assert(eq(int, elsewhere(discard_b_under_fence_five), 0), "discard");
    cr_assert(eq(int, elsewhere(stage_c_under_fence_five), 0), "create");
    cr_assert(eq(int, elsewhere(commit_c_over_a), 0), "commit of another root");
    expect(&a, &b);
    cr_assert(eq(int, elsewhere(discard_b_under_fence_seven), 0), "control: who came later may");
    expect(&a, &none);
}

Test(roe_pkcs11, root_staged_in_one_process_is_committed_in_another)
{
    NEEDS_TOKEN();
    struct kv_roe *roe = must_open(6);
    make_active(roe, &a);
    stage(roe, &b);
    roe->ops->close(roe);
    cr_assert(eq(int, elsewhere(roll_b_forward), 0));
    roe = must_open(6);
    expect_on(roe, &b, &none);
    cr_assert(eq(int, commit(roe, &b, &a), KV_OK), "and both may say so: %s", roe->trouble.text);
    roe->ops->close(roe);
}

static int start_line[2];

static int race_to_stage(void)
{
    struct kv_id id;
    char go;
    struct kv_roe *roe = open_in_child(6);
    if (kv_id_new(&kv_env_system, &id) != KV_OK || read(start_line[0], &go, 1) != 1) {
        return 9;
    }
    enum kv_err rc = roe->ops->create(roe, &id);
    return rc == KV_OK ? 1 : rc == KV_E_INVALID_STATE ? 0 : 9;
}

/* One at most gets through, and what it staged is what everybody then sees. */
Test(roe_pkcs11, of_several_that_stage_at_once_one_at_most_succeeds)
{
    enum { RACERS = 3, ROUNDS = 2 };
    NEEDS_TOKEN();
    struct kv_roe *roe = must_open(5);
    make_active(roe, &a);
    roe->ops->close(roe);
    for (int round = 0; round < ROUNDS; round++) {
        pid_t children[RACERS];
        int winners = 0;
        cr_assert(pipe(start_line) == 0);
        for (int i = 0; i < RACERS; i++) {
            children[i] = fork();
            cr_assert(children[i] >= 0);
            if (children[i] == 0) {
                _exit(race_to_stage());
            }
        }
        cr_assert(write(start_line[1], "go!", RACERS) == RACERS);
        for (int i = 0; i < RACERS; i++) {
            int status = 0;
            cr_assert(waitpid(children[i], &status, 0) == children[i] && WIFEXITED(status));
            int ended = WEXITSTATUS(status);
            cr_assert(ended != 9, "another answer than yes or no");
            winners += ended;
        }
        close(start_line[0]);
        close(start_line[1]);
        cr_assert(le(int, winners, 1));
        struct kv_id active, staged;
        roe = must_open(7);
        cr_assert(eq(int, roe->ops->list(roe, &active, &staged), KV_OK));
        cr_assert(kv_id_equal(&active, &a) && kv_id_is_zero(&staged) == (winners == 0));
        cr_assert(kv_id_is_zero(&staged) || roe->ops->discard(roe, &staged) == KV_OK);
        cr_assert(eq(uint, object_files(), 1u), "nothing is left of those that gave way");
        roe->ops->close(roe);
    }
}

/* --- kills -------------------------------------------------------------------------------------------------------- */

static void child_commit(void)
{
    struct kv_roe *roe = open_in_child(1);
    KV_IGNORE(commit(roe, &b, &a), "the child is killed, or the parent looks at the state");
}

static void child_create(void)
{
    struct kv_roe *roe = open_in_child(1);
    KV_IGNORE(roe->ops->create(roe, &b), "as above");
}

static void child_discard(void)
{
    struct kv_roe *roe = open_in_child(1);
    KV_IGNORE(roe->ops->discard(roe, &b), "as above");
}

static void run_killed(void (*body)(void), const char *point)
{
    pid_t child = fork();
    cr_assert(child >= 0);
    if (child == 0) {
        char spec[128];
        snprintf(spec, sizeof(spec), "%s=kill", point);
        kv_fault_set(spec);
        body();
        _exit(0);
    }
    int status = 0;
    cr_assert(waitpid(child, &status, 0) == child);
    bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    cr_assert(killed, "%s", point);
}

Test(roe_pkcs11, kill_between_any_two_steps_leaves_a_row_of_the_table)
{
    NEEDS_TOKEN();
    static const struct {
        void (*body)(void);
        const char *point;
        const struct kv_id *active, *staged;
    } steps[] = {
        {child_create, "roe/pkcs11/create", &a, &none},    {child_create, "roe/pkcs11/created", &a, &b},
        {child_discard, "roe/pkcs11/destroy", &a, &b},     {child_discard, "roe/pkcs11/destroyed", &a, &none},
        {child_create, "roe/pkcs11/created", &a, &b},      {child_commit, "roe/pkcs11/destroy", &a, &b},
        {child_commit, "roe/pkcs11/destroyed", &none, &b}, {child_commit, "roe/pkcs11/activate", &none, &b},
        {child_commit, "roe/pkcs11/activated", &b, &none},
    };
    struct kv_roe *roe = must_open(1);
    make_active(roe, &a);
    roe->ops->close(roe);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        run_killed(steps[i].body, steps[i].point);
        expect(steps[i].active, steps[i].staged);
    }
    roe = must_open(1);
    cr_assert(eq(int, commit(roe, &b, &a), KV_OK), "and the repeat ends it: %s", roe->trouble.text);
    roe->ops->close(roe);
}
