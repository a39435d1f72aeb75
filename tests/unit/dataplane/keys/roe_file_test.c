/*
 * What only the file provider promises: bytes on the medium, refusals at opening, and the state after a kill between
 * any two of its steps.
 */
#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "dataplane/keys/roe.h"
#include "dataplane/keys/roe_file_format.h"
#include "tests/lib/temp_folder.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[KVT_PATH_BYTES], path[KVT_PATH_BYTES];
static struct kv_id a, b, none;
static struct kv_errinfo info;

static void set_up(void)
{
    kvt_folder_make(folder);
    kvt_path_join(path, folder, "root");
    cr_assert(eq(int, kv_id_new(&kv_env_system, &a), KV_OK));
    cr_assert(eq(int, kv_id_new(&kv_env_system, &b), KV_OK));
}

static void tear_down(void)
{
    kvt_folder_remove(folder);
}

TestSuite(roe_file, .init = set_up, .fini = tear_down);

static enum kv_err try_open(const char *at, struct kv_roe **ret_roe)
{
    const struct kv_roe_conf conf = {.provider = "file", .path = at, .env = &kv_env_system};
    info = (struct kv_errinfo){0};
    return kv_roe_open(&conf, &info, ret_roe);
}

static struct kv_roe *must_open(void)
{
    struct kv_roe *roe = NULL;
    cr_assert(eq(int, try_open(path, &roe), KV_OK), "%s", info.text);
    return roe;
}

static void refused(const char *at, enum kv_err code)
{
    struct kv_roe *roe = NULL;
    cr_assert(eq(int, try_open(at, &roe), code), "%s", info.text);
    cr_assert(roe == NULL);
    cr_assert(strlen(info.text) > 20, "the text says what to do");
}

static enum kv_err commit(struct kv_roe *roe, const struct kv_id *fresh, const struct kv_id *old)
{
    struct kv_roe_receipt receipt;
    return roe->ops->commit(roe, fresh, old, &receipt);
}

static void expect(const struct kv_id *active, const struct kv_id *staged)
{
    struct kv_roe *roe = must_open();
    struct kv_id found_active, found_staged;
    cr_assert(eq(int, roe->ops->list(roe, &found_active, &found_staged), KV_OK));
    cr_assert(kv_id_equal(&found_active, active), "another active root than expected");
    cr_assert(kv_id_equal(&found_staged, staged), "another staged root than expected");
    roe->ops->close(roe);
}

static void make_a_active(void)
{
    struct kv_roe *roe = must_open();
    cr_assert(eq(int, roe->ops->create(roe, &a), KV_OK));
    cr_assert(eq(int, commit(roe, &a, &none), KV_OK));
    roe->ops->close(roe);
}

static void stage_b(void)
{
    struct kv_roe *roe = must_open();
    cr_assert(eq(int, roe->ops->create(roe, &b), KV_OK));
    roe->ops->close(roe);
}

/* The page of the slot that holds `id`; its number, or -1. */
static int slot_with(const struct kv_id *id, uint8_t page[KV_ROE_SLOT_BYTES])
{
    for (unsigned slot = 0; slot < KV_ROE_SLOTS; slot++) {
        struct kv_roe_slot parsed;
        cr_assert(eq(sz, kvt_file_read(path, kv_roe_slot_offset(slot), page, KV_ROE_SLOT_BYTES), KV_ROE_SLOT_BYTES));
        kv_roe_slot_parse(page, &parsed);
        if (parsed.state != KV_ROE_SLOT_EMPTY && kv_id_equal(&parsed.id, id)) {
            return (int)slot;
        }
    }
    return -1;
}

static bool file_contains(const uint8_t *needle, size_t len)
{
    static uint8_t bytes[2 * KV_ROE_FILE_BYTES];
    size_t got = kvt_file_read(path, 0, bytes, sizeof(bytes));
    return memmem(bytes, got, needle, len) != NULL;
}

/* ---- the medium ---- */

Test(roe_file, file_has_mode_0600_and_its_full_size_from_the_start)
{
    struct stat st;
    struct kv_roe *roe = must_open();
    cr_assert(stat(path, &st) == 0);
    cr_assert(eq(uint, st.st_mode & 07777, 0600));
    cr_assert(eq(long, st.st_size, KV_ROE_FILE_BYTES));
    cr_assert(st.st_blocks * 512 >= KV_ROE_FILE_BYTES, "the blocks are allocated");
    ino_t inode = st.st_ino;
    cr_assert(eq(int, roe->ops->create(roe, &a), KV_OK));
    cr_assert(eq(int, commit(roe, &a, &none), KV_OK));
    roe->ops->close(roe);
    cr_assert(stat(path, &st) == 0);
    cr_assert(st.st_ino == inode && st.st_size == KV_ROE_FILE_BYTES, "written in place, never renamed, never grown");
}

Test(roe_file, wrapping_key_is_in_the_file_before_the_destruction_and_not_after)
{
    uint8_t page[KV_ROE_SLOT_BYTES], key[32];
    make_a_active();
    cr_assert(slot_with(&a, page) >= 0);
    memcpy(key, page + KV_ROE_SLOT_KEY_OFFSET, sizeof(key));
    cr_assert(file_contains(key, sizeof(key)), "control: it is there while the root lives");
    stage_b();
    cr_assert(file_contains(key, sizeof(key)), "control: staging destroys nothing");
    struct kv_roe *roe = must_open();
    cr_assert(eq(int, commit(roe, &b, &a), KV_OK));
    roe->ops->close(roe);
    cr_assert_not(file_contains(key, sizeof(key)));
    cr_assert_not(file_contains(key, 8), "nor a part of it");
    cr_assert(slot_with(&b, page) >= 0, "control: the other key was not touched");
}

Test(roe_file, key_is_not_the_root_secret_and_the_blob_is_not_in_the_file)
{
    struct kv_roe *roe = must_open();
    struct kv_secret *root = NULL;
    struct kv_buf blob;
    kv_buf_init(&blob, 4096);
    cr_assert(eq(int, kv_secret_random(&kv_env_system, 32, &root), KV_OK));
    cr_assert(eq(int, roe->ops->create(roe, &a), KV_OK));
    cr_assert(eq(int, roe->ops->wrap(roe, &a, root, &blob), KV_OK));
    cr_assert_not(file_contains(kv_secret_data(root), 32));
    cr_assert(memmem(blob.data, blob.len, kv_secret_data(root), 32) == NULL);
    roe->ops->close(roe);
    kv_buf_done(&blob);
    kv_secret_free(root);
}

Test(roe_file, torn_slot_is_absent_and_is_overwritten_by_the_next_key)
{
    uint8_t page[KV_ROE_SLOT_BYTES], key[32];
    make_a_active();
    stage_b();
    int slot = slot_with(&b, page);
    cr_assert(slot >= 0);
    memcpy(key, page + KV_ROE_SLOT_KEY_OFFSET, sizeof(key));
    uint8_t file[KV_ROE_FILE_BYTES];
    cr_assert(eq(sz, kvt_file_read(path, 0, file, sizeof(file)), sizeof(file)));
    file[kv_roe_slot_offset((unsigned)slot) + 60] ^= 1; /* its checksum */
    kvt_file_write(path, file, sizeof(file), 0600);
    expect(&a, &none);
    cr_assert(file_contains(key, sizeof(key)), "control: the torn key is still on the medium");
    stage_b();
    expect(&a, &b);
    cr_assert_not(file_contains(key, sizeof(key)));
}

Test(roe_file, commit_over_a_torn_slot_destroys_what_is_left_in_it)
{
    uint8_t page[KV_ROE_SLOT_BYTES], key[32], file[KV_ROE_FILE_BYTES];
    make_a_active();
    stage_b();
    int slot = slot_with(&a, page);
    memcpy(key, page + KV_ROE_SLOT_KEY_OFFSET, sizeof(key));
    cr_assert(eq(sz, kvt_file_read(path, 0, file, sizeof(file)), sizeof(file)));
    file[kv_roe_slot_offset((unsigned)slot)] ^= 1;
    kvt_file_write(path, file, sizeof(file), 0600);
    expect(&none, &b);
    struct kv_roe *roe = must_open();
    cr_assert(eq(int, commit(roe, &b, &a), KV_OK));
    roe->ops->close(roe);
    cr_assert_not(file_contains(key, sizeof(key)));
    expect(&b, &none);
}

Test(roe_file, two_active_slots_are_corrupt)
{
    uint8_t page[KV_ROE_SLOT_BYTES], file[KV_ROE_FILE_BYTES];
    make_a_active();
    stage_b();
    int slot = slot_with(&b, page);
    const struct kv_roe_slot forged = {.state = KV_ROE_SLOT_ACTIVE, .id = b};
    cr_assert(eq(sz, kvt_file_read(path, 0, file, sizeof(file)), sizeof(file)));
    kv_roe_slot_build(file + kv_roe_slot_offset((unsigned)slot), &forged, NULL);
    kvt_file_write(path, file, sizeof(file), 0600);
    struct kv_roe *roe = must_open();
    struct kv_id active, staged;
    cr_assert(eq(int, roe->ops->list(roe, &active, &staged), KV_E_CORRUPT));
    cr_assert(eq(int, roe->ops->create(roe, &b), KV_E_CORRUPT));
    roe->ops->close(roe);
}

Test(roe_file, replaced_file_is_noticed_before_anything_is_done)
{
    char other[KVT_PATH_BYTES];
    uint8_t file[KV_ROE_FILE_BYTES];
    make_a_active();
    cr_assert(eq(sz, kvt_file_read(path, 0, file, sizeof(file)), sizeof(file)));
    struct kv_roe *roe = must_open();
    struct kv_id active, staged;
    cr_assert(eq(int, roe->ops->list(roe, &active, &staged), KV_OK), "control");
    kvt_path_join(other, folder, "copy");
    kvt_file_write(other, file, sizeof(file), 0600);
    cr_assert(rename(other, path) == 0);
    cr_assert(eq(int, roe->ops->create(roe, &b), KV_E_FOREIGN_FILE));
    cr_assert(eq(int, roe->ops->list(roe, &active, &staged), KV_E_FOREIGN_FILE));
    cr_assert(unlink(path) == 0);
    cr_assert(eq(int, roe->ops->list(roe, &active, &staged), KV_E_FOREIGN_FILE));
    roe->ops->close(roe);
}

/* ---- refusals ---- */

Test(roe_file, second_opening_is_busy_until_the_first_is_closed)
{
    struct kv_roe *roe = must_open();
    refused(path, KV_E_BUSY);
    pid_t child = fork();
    if (child == 0) {
        struct kv_roe *second = NULL;
        _exit(try_open(path, &second) == KV_E_BUSY ? 0 : 1);
    }
    int status = 0;
    cr_assert(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    roe->ops->close(roe);
    roe = must_open();
    roe->ops->close(roe);
}

Test(roe_file, relative_path_and_missing_folder_are_refused)
{
    refused("root", KV_E_CONFIG);
    refused(NULL, KV_E_CONFIG);
    refused("", KV_E_CONFIG);
    char deeper[KVT_PATH_BYTES];
    kvt_path_join(deeper, folder, "absent/root");
    refused(deeper, KV_E_CONFIG);
}

Test(roe_file, file_that_others_can_read_is_refused)
{
    make_a_active();
    cr_assert(chmod(path, 0640) == 0);
    refused(path, KV_E_CONFIG);
    cr_assert(chmod(path, 0604) == 0);
    refused(path, KV_E_CONFIG);
    cr_assert(chmod(path, 0600) == 0);
    expect(&a, &none);
}

Test(roe_file, symbolic_link_is_refused_and_its_target_untouched)
{
    char target[KVT_PATH_BYTES];
    kvt_path_join(target, folder, "target");
    kvt_file_write(target, "", 0, 0600);
    cr_assert(symlink(target, path) == 0);
    refused(path, KV_E_CONFIG);
    struct stat st;
    cr_assert(stat(target, &st) == 0 && st.st_size == 0);
}

Test(roe_file, folder_in_place_of_the_file_is_refused)
{
    cr_assert(mkdir(path, 0700) == 0);
    refused(path, KV_E_CONFIG);
}

Test(roe_file, pipe_in_place_of_the_file_is_refused)
{
    cr_assert(mkfifo(path, 0600) == 0);
    refused(path, KV_E_CONFIG);
}

Test(roe_file, file_with_other_content_is_left_untouched)
{
    static const char text[] = "somebody's notes";
    char found[64];
    kvt_file_write(path, text, sizeof(text), 0600);
    refused(path, KV_E_FOREIGN_FILE);
    cr_assert(eq(sz, kvt_file_read(path, 0, found, sizeof(found)), sizeof(text)));
    cr_assert(memcmp(found, text, sizeof(text)) == 0);
}

Test(roe_file, foreign_file_of_the_right_size_is_left_untouched)
{
    static uint8_t file[KV_ROE_FILE_BYTES], found[KV_ROE_FILE_BYTES];
    file[KV_ROE_FILE_BYTES - 1] = 1; /* Zeroes where the header would stand, something at the very end. */
    kvt_file_write(path, file, sizeof(file), 0600);
    refused(path, KV_E_FOREIGN_FILE);
    cr_assert(eq(sz, kvt_file_read(path, 0, found, sizeof(found)), sizeof(file)));
    cr_assert(memcmp(found, file, sizeof(file)) == 0);
}

Test(roe_file, header_of_a_later_version_is_foreign)
{
    uint8_t file[KV_ROE_FILE_BYTES];
    make_a_active();
    cr_assert(eq(sz, kvt_file_read(path, 0, file, sizeof(file)), sizeof(file)));
    file[11] ^= 3;
    kvt_file_write(path, file, sizeof(file), 0600);
    refused(path, KV_E_FOREIGN_FILE);
}

Test(roe_file, copy_on_write_file_systems_are_known)
{
    cr_assert(kv_roe_refused_file_system(0x9123683e) != NULL, "btrfs");
    cr_assert(kv_roe_refused_file_system(0x2fc12fc1) != NULL, "zfs");
    cr_assert(kv_roe_refused_file_system((uint64_t)(int64_t)(int32_t)0x9123683e) != NULL, "sign-extended f_type");
    cr_assert(kv_roe_refused_file_system(0xef53) == NULL, "ext4");
    cr_assert(kv_roe_refused_file_system(0x58465342) == NULL, "xfs");
    cr_assert(kv_roe_refused_file_system(0x01021994) == NULL, "tmpfs");
}

/* ---- kills ---- */

static void child_commit(void)
{
    struct kv_roe *roe = must_open();
    KV_IGNORE(commit(roe, &b, &a), "the child is killed, or the parent looks at the state");
}

static void child_create(void)
{
    struct kv_roe *roe = must_open();
    KV_IGNORE(roe->ops->create(roe, &b), "as above");
}

static void child_discard(void)
{
    struct kv_roe *roe = must_open();
    KV_IGNORE(roe->ops->discard(roe, &b), "as above");
}

static void child_open(void)
{
    must_open();
}

/* Runs `body` in a child that is killed at `point`; NULL: nothing kills it. */
static void run_killed(void (*body)(void), const char *point)
{
    pid_t child = fork();
    cr_assert(child >= 0);
    if (child == 0) {
        char spec[128];
        snprintf(spec, sizeof(spec), "%s=kill", point != NULL ? point : "");
        kv_fault_set(point != NULL ? spec : NULL);
        body();
        _exit(0);
    }
    int status = 0;
    cr_assert(waitpid(child, &status, 0) == child);
    bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    bool ended = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    cr_assert(point != NULL ? killed : ended, "%s", point != NULL ? point : "control: the child ends by itself");
}

/* The rows of the recovery table, for a database whose root is b already: roll forward. */
static void roll_forward(void)
{
    struct kv_roe *roe = must_open();
    cr_assert(eq(int, commit(roe, &b, &a), KV_OK));
    roe->ops->close(roe);
    expect(&b, &none);
}

/* And for one whose root is still a: discard and stage afresh. */
static void roll_back(void)
{
    struct kv_roe *roe = must_open();
    cr_assert(eq(int, roe->ops->discard(roe, &b), KV_OK));
    roe->ops->close(roe);
    expect(&a, &none);
    stage_b();
    expect(&a, &b);
}

Test(roe_file, kill_before_the_staged_key_is_written_leaves_only_the_active_root)
{
    make_a_active();
    run_killed(child_create, "roe/file/create-write");
    expect(&a, &none);
    roll_back();
}

Test(roe_file, kill_after_the_staged_key_is_written_leaves_both_roots)
{
    make_a_active();
    run_killed(child_create, "roe/file/create-done");
    expect(&a, &b);
    roll_back();
}

Test(roe_file, kill_before_the_destruction_leaves_both_roots_and_both_ways_open)
{
    make_a_active();
    stage_b();
    run_killed(child_commit, "roe/file/destroy-write");
    expect(&a, &b);
    roll_back();
    roll_forward();
}

Test(roe_file, kill_between_overwriting_and_syncing_still_rolls_forward)
{
    make_a_active();
    stage_b();
    run_killed(child_commit, "roe/file/destroy-sync");
    expect(&none, &b);
    roll_forward();
}

Test(roe_file, kill_between_destruction_and_activation_rolls_forward_by_a_repeated_commit)
{
    uint8_t page[KV_ROE_SLOT_BYTES], key[32];
    make_a_active();
    stage_b();
    cr_assert(slot_with(&a, page) >= 0);
    memcpy(key, page + KV_ROE_SLOT_KEY_OFFSET, sizeof(key));
    run_killed(child_commit, "roe/file/activate");
    expect(&none, &b);
    cr_assert_not(file_contains(key, sizeof(key)), "the old key is gone before the fresh one is active");
    roll_forward();
}

Test(roe_file, kill_after_the_activation_needs_nothing_and_allows_a_repeat)
{
    make_a_active();
    stage_b();
    run_killed(child_commit, "roe/file/activated");
    expect(&b, &none);
    roll_forward();
}

Test(roe_file, kill_while_discarding_leaves_a_state_that_a_repeat_ends)
{
    make_a_active();
    stage_b();
    run_killed(child_discard, "roe/file/destroy-write");
    expect(&a, &b);
    run_killed(child_discard, "roe/file/destroy-sync");
    expect(&a, &none);
    roll_back();
}

Test(roe_file, kill_while_the_file_is_made_leaves_one_that_a_later_start_finishes)
{
    run_killed(child_open, "roe/file/format-size");
    run_killed(child_open, "roe/file/format-header");
    make_a_active();
    expect(&a, &none);
}

Test(roe_file, commit_without_a_kill_is_the_control_of_the_above)
{
    make_a_active();
    stage_b();
    run_killed(child_commit, NULL);
    expect(&b, &none);
}

Test(roe_file, failed_write_is_an_error_and_a_repeat_finishes)
{
    static const char *const points[] = {"roe/file/destroy-write", "roe/file/destroy-sync", "roe/file/activate",
                                         "roe/file/activated"};
    for (size_t i = 0; i < sizeof(points) / sizeof(points[0]); i++) {
        char spec[128];
        cr_assert(unlink(path) == 0 || i == 0);
        make_a_active();
        stage_b();
        struct kv_roe *roe = must_open();
        snprintf(spec, sizeof(spec), "%s=EIO", points[i]);
        kv_fault_set(spec);
        cr_assert(eq(int, commit(roe, &b, &a), KV_E_IO), "%s", points[i]);
        kv_fault_set(NULL);
        cr_assert(eq(int, commit(roe, &b, &a), KV_OK), "%s", points[i]);
        roe->ops->close(roe);
        expect(&b, &none);
    }
}

/* ---- the format ---- */

Test(roe_file, slot_page_survives_building_and_parsing)
{
    uint8_t page[KV_ROE_SLOT_BYTES] = {0};
    struct kv_roe_slot parsed;
    struct kv_secret *key = NULL, *found = NULL;
    cr_assert(eq(int, kv_secret_random(&kv_env_system, 32, &key), KV_OK));
    kv_roe_slot_parse(page, &parsed);
    cr_assert(eq(int, parsed.state, KV_ROE_SLOT_EMPTY));
    const struct kv_roe_slot slot = {.state = KV_ROE_SLOT_STAGED, .id = a};
    kv_roe_slot_build(page, &slot, key);
    kv_roe_slot_parse(page, &parsed);
    cr_assert(eq(int, parsed.state, KV_ROE_SLOT_STAGED));
    cr_assert(kv_id_equal(&parsed.id, &a));
    cr_assert(eq(int, kv_roe_slot_key(page, &found), KV_OK));
    cr_assert(kv_equal_constant_time(kv_secret_data(found), kv_secret_data(key), 32));
    for (size_t i = 0; i < 64; i++) {
        page[i] ^= 0x40;
        kv_roe_slot_parse(page, &parsed);
        cr_assert(eq(int, parsed.state, KV_ROE_SLOT_TORN), "byte %zu", i);
        page[i] ^= 0x40;
    }
    kv_secret_free(key);
    kv_secret_free(found);
}
