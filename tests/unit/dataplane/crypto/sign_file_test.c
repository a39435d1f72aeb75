/* The file of a signing key: what is refused, what a crash leaves, and that a key is never replaced. */
#include "dataplane/crypto/sign.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dataplane/base/fault.h"

static char folder[256], path[300];

static void make_folder(void)
{
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/kvsign.XXXXXX", base != NULL ? base : "/tmp");
    cr_assert(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/audit.key", folder);
}

/* Names in the folder, and removes them when asked to. */
static size_t entries(bool remove_them)
{
    DIR *dir = opendir(folder);
    size_t count = 0;
    cr_assert(dir != NULL);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        if (entry->d_name[0] != '.') {
            count++;
            if (remove_them) {
                unlinkat(dirfd(dir), entry->d_name, 0);
            }
        }
    }
    closedir(dir);
    return count;
}

static void drop_folder(void)
{
    kv_fault_set(NULL);
    entries(true);
    rmdir(folder);
}

TestSuite(sign_file, .init = make_folder, .fini = drop_folder);

static const char good_text[] = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60\n";

static void put(const char *text, size_t len, mode_t mode)
{
    unlink(path);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    cr_assert(fd >= 0);
    cr_assert(eq(int, (int)write(fd, text, len), (int)len));
    cr_assert(eq(int, fchmod(fd, mode), 0));
    close(fd);
}

/* Loading fails with `rc` and a text that does not name the path; nothing is left behind. */
static void refused(enum kv_err rc, const char *in_text)
{
    struct kv_errinfo info = {0};
    struct kv_sign_key *key = NULL;
    size_t used = kv_secret_arena_used();
    cr_assert(eq(int, kv_sign_key_load_or_create(&kv_env_system, path, &info, &key), rc), "%s", info.text);
    cr_assert(eq(ptr, key, NULL));
    cr_assert(eq(int, info.code, rc));
    cr_assert(strstr(info.text, in_text) != NULL, "%s", info.text);
    cr_assert(strstr(info.text, folder) == NULL, "%s", info.text);
    cr_assert(eq(sz, kv_secret_arena_used(), used));
}

static void loads(uint8_t ret_public[32])
{
    struct kv_errinfo info = {0};
    struct kv_sign_key *key = NULL;
    cr_assert(eq(int, kv_sign_key_load(path, &info, &key), KV_OK), "%s", info.text);
    kv_sign_public(key, ret_public);
    kv_sign_key_free(key);
}

Test(sign_file, first_start_makes_a_private_file_that_later_starts_load)
{
    struct kv_errinfo info = {0};
    struct kv_sign_key *key = NULL;
    struct stat st;
    uint8_t made[32], loaded[32];
    umask(0);
    cr_assert(eq(int, kv_sign_key_load(path, &info, &key), KV_E_NOT_FOUND));
    cr_assert(eq(int, kv_sign_key_load_or_create(&kv_env_system, path, &info, &key), KV_OK), "%s", info.text);
    kv_sign_public(key, made);
    kv_sign_key_free(key);
    cr_assert(eq(int, lstat(path, &st), 0));
    cr_assert(eq(int, (int)(st.st_mode & 07777), 0600));
    cr_assert(eq(int, (int)st.st_size, 65));
    cr_assert(eq(sz, entries(false), 1));
    loads(loaded);
    cr_assert(memcmp(made, loaded, 32) == 0);
    key = NULL;
    cr_assert(eq(int, kv_sign_key_load_or_create(&kv_env_system, path, &info, &key), KV_OK));
    kv_sign_public(key, loaded);
    kv_sign_key_free(key);
    cr_assert(memcmp(made, loaded, 32) == 0);
}

Test(sign_file, known_seed_gives_the_known_key)
{
    uint8_t public_key[32], expected[32];
    put(good_text, 65, 0600);
    loads(public_key);
    cr_assert(eq(int, kv_hex_decode("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a", expected, 32),
                 KV_OK));
    cr_assert(memcmp(public_key, expected, 32) == 0);
    put(good_text, 65, 0400);
    loads(public_key);
}

Test(sign_file, file_that_others_may_touch_is_refused)
{
    uint8_t public_key[32];
    static const mode_t modes[] = {0640, 0604, 0620, 0601, 0777};
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        put(good_text, 65, modes[i]);
        refused(KV_E_CONFIG, "chmod 600");
    }
    put(good_text, 65, 0600);
    loads(public_key);
}

Test(sign_file, damaged_file_is_refused_and_kept)
{
    static const char *const texts[] = {
        "",
        "\n",
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60", /* no newline */
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60\n\n",
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60 ",
        "9D61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60\n", /* upper case */
        "9g61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60\n",
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f6\n",
    };
    struct stat st;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        put(texts[i], strlen(texts[i]), 0600);
        refused(KV_E_CORRUPT, "64");
        cr_assert(eq(int, stat(path, &st), 0));
        cr_assert(eq(int, (int)st.st_size, (int)strlen(texts[i])));
    }
}

Test(sign_file, links_folders_and_pipes_are_refused)
{
    char real[300];
    snprintf(real, sizeof real, "%s/real.key", folder);
    put(good_text, 65, 0600);
    cr_assert(eq(int, rename(path, real), 0));
    cr_assert(eq(int, symlink(real, path), 0));
    refused(KV_E_CONFIG, "symbolic link");
    unlink(path);
    cr_assert(eq(int, mkdir(path, 0700), 0));
    refused(KV_E_CONFIG, "regular file");
    rmdir(path);
    cr_assert(eq(int, mkfifo(path, 0600), 0));
    refused(KV_E_CONFIG, "regular file");
}

Test(sign_file, missing_folder_is_a_clear_error)
{
    snprintf(path, sizeof path, "%s/none/audit.key", folder);
    refused(KV_E_IO, "folder must exist");
}

Test(sign_file, failed_step_leaves_no_key_and_the_next_start_makes_one)
{
    static const char *const steps[] = {"sign/create/write", "sign/create/sync", "sign/create/link"};
    uint8_t public_key[32];
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        char spec[64];
        struct kv_sign_key *key = NULL;
        snprintf(spec, sizeof spec, "%s=fail", steps[i]);
        kv_fault_set(spec);
        refused(KV_E_IO, "cannot be made");
        cr_assert(eq(sz, entries(false), 0), "%s", steps[i]);
        kv_fault_set(NULL);
        cr_assert(eq(int, kv_sign_key_load_or_create(&kv_env_system, path, NULL, &key), KV_OK));
        kv_sign_key_free(key);
        loads(public_key);
        cr_assert(eq(sz, entries(true), 1));
    }
}

Test(sign_file, killed_at_any_step_leaves_a_whole_key_or_none)
{
    static const char *const steps[] = {"sign/create/write", "sign/create/sync", "sign/create/link",
                                        "sign/create/linked"};
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        int status = 0;
        struct kv_sign_key *key = NULL;
        pid_t pid = fork();
        cr_assert(pid >= 0);
        if (pid == 0) {
            char spec[64];
            snprintf(spec, sizeof spec, "%s=kill", steps[i]);
            kv_fault_set(spec);
            KV_IGNORE(kv_sign_key_load_or_create(&kv_env_system, path, NULL, &key), "the child dies in it");
            _exit(0);
        }
        cr_assert(eq(int, waitpid(pid, &status, 0), pid));
        bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        cr_assert(killed, "%s", steps[i]);
        enum kv_err rc = kv_sign_key_load(path, NULL, &key);
        cr_assert(rc == KV_OK || rc == KV_E_NOT_FOUND, "%s: %s", steps[i], kv_err_name(rc));
        bool was_linked = strcmp(steps[i], "sign/create/linked") == 0;
        cr_assert(eq(int, rc == KV_OK, was_linked), "%s", steps[i]);
        kv_sign_key_free(key);
        key = NULL;
        cr_assert(eq(int, kv_sign_key_load_or_create(&kv_env_system, path, NULL, &key), KV_OK));
        kv_sign_key_free(key);
        entries(true);
    }
}

Test(sign_file, starts_at_the_same_time_agree_on_one_key)
{
    enum { STARTS = 8 };
    int pipes[2];
    uint8_t first[32], public_key[32];
    cr_assert(eq(int, pipe(pipes), 0));
    for (unsigned i = 0; i < STARTS; i++) {
        pid_t pid = fork();
        cr_assert(pid >= 0);
        if (pid == 0) {
            struct kv_sign_key *key = NULL;
            memset(public_key, 0, sizeof public_key);
            if (kv_sign_key_load_or_create(&kv_env_system, path, NULL, &key) == KV_OK) {
                kv_sign_public(key, public_key);
            }
            _exit(write(pipes[1], public_key, 32) == 32 ? 0 : 1);
        }
    }
    close(pipes[1]);
    for (unsigned i = 0; i < STARTS; i++) {
        cr_assert(eq(int, (int)read(pipes[0], public_key, 32), 32));
        if (i == 0) {
            memcpy(first, public_key, 32);
        }
        cr_assert(memcmp(first, public_key, 32) == 0);
    }
    while (wait(NULL) > 0) {
    }
    close(pipes[0]);
    loads(public_key);
    cr_assert(memcmp(first, public_key, 32) == 0);
    cr_assert(eq(sz, entries(false), 1));
}
