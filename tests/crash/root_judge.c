/* See root_judge.h. */
#include "tests/crash/root_judge.h"

#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"
#include "dataplane/keys/roe_file_format.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILES_MAX 32u
#define KEYS_MAX 64u
#define KEY_BYTES 32u

struct seen_key {
    struct kv_id id;
    uint8_t key[KEY_BYTES];
};

struct judge {
    const char *path;
    const struct life_book *book;
    int files[FILES_MAX]; /* what was ever at the path, the newest last */
    size_t file_count;
    struct stat newest;
    struct seen_key keys[KEYS_MAX];
    size_t key_count;
    bool wrong[JUDGE_WRONGS];
    char text[200];
    uint8_t bytes[KV_ROE_FILE_BYTES];
};

const char *judge_wrong_name(enum judge_wrong wrong)
{
    static const char *const names[JUDGE_WRONGS] = {"false certificates", "lost live sessions",
                                                    "jobs that did not end"};
    return names[wrong];
}

struct judge *judge_new(const char *path, const struct life_book *book)
{
    struct judge *judge = kv_alloc(sizeof *judge);
    if (judge != NULL) {
        *judge = (struct judge){.path = path, .book = book};
    }
    return judge;
}

void judge_free(struct judge *judge)
{
    for (size_t i = 0; i < judge->file_count; i++) {
        close(judge->files[i]);
    }
    kv_free(judge);
}

void judge_blame(struct judge *judge, enum judge_wrong wrong, const char *text)
{
    if (judge->text[0] == '\0') {
        snprintf(judge->text, sizeof judge->text, "%s", text);
    }
    judge->wrong[wrong] = true;
}

bool judge_found(const struct judge *judge, enum judge_wrong wrong)
{
    return judge->wrong[wrong];
}

const char *judge_text(const struct judge *judge)
{
    return judge->text;
}

/* A file that was replaced stays open here: its blocks are free, and hold what they held. */
static void keep_file(struct judge *judge)
{
    struct stat now;
    if (stat(judge->path, &now) != 0 || (judge->file_count > 0 && now.st_ino == judge->newest.st_ino)) {
        return;
    }
    int fd = open(judge->path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && judge->file_count < FILES_MAX) {
        judge->files[judge->file_count++] = fd;
        judge->newest = now;
    }
}

static size_t read_file(struct judge *judge, size_t file)
{
    ssize_t got = pread(judge->files[file], judge->bytes, sizeof judge->bytes, 0);
    return got < 0 ? 0 : (size_t)got;
}

static const struct seen_key *key_of(const struct judge *judge, const struct kv_id *id)
{
    for (size_t i = 0; i < judge->key_count; i++) {
        if (kv_id_equal(&judge->keys[i].id, id)) {
            return &judge->keys[i];
        }
    }
    return NULL;
}

static void keep_key(struct judge *judge, const struct kv_id *id, const uint8_t *page)
{
    if (key_of(judge, id) == NULL && judge->key_count < KEYS_MAX) {
        struct seen_key *seen = &judge->keys[judge->key_count++];
        seen->id = *id;
        memcpy(seen->key, page + KV_ROE_SLOT_KEY_OFFSET, sizeof seen->key);
    }
}

/* Keeps what keys it holds; how many roots are active, and whether the database's is among the whole ones. */
static void look_at_slots(struct judge *judge, unsigned *ret_active, bool *ret_root)
{
    const struct life_book *book = judge->book;
    for (unsigned slot = 0; slot < KV_ROE_SLOTS; slot++) {
        const uint8_t *page = judge->bytes + kv_roe_slot_offset(slot);
        struct kv_roe_slot found;
        kv_roe_slot_parse(page, &found);
        if (found.state == KV_ROE_SLOT_STAGED || found.state == KV_ROE_SLOT_ACTIVE) {
            keep_key(judge, &found.id, page);
            *ret_active += found.state == KV_ROE_SLOT_ACTIVE;
            *ret_root = *ret_root || kv_id_equal(&found.id, &book->roots[book->current].id);
        }
    }
}

/* Half a key is enough: a write that was torn leaves a part. */
static bool holds(const struct judge *judge, size_t len, const struct seen_key *seen)
{
    const size_t half = KEY_BYTES / 2;
    return memmem(judge->bytes, len, seen->key, half) != NULL ||
           memmem(judge->bytes, len, seen->key + half, half) != NULL;
}

static void look_for_the_dead(struct judge *judge, size_t len)
{
    for (unsigned i = 0; i < judge->book->gone_count && i < LIFE_GONE_MAX; i++) {
        const struct seen_key *seen = key_of(judge, &judge->book->gone[i]);
        if (seen == NULL) {
            judge_blame(judge, JUDGE_FALSE_CERTIFICATE, "a root is said to be destroyed that was never seen");
        } else if (holds(judge, len, seen)) {
            judge_blame(judge, JUDGE_FALSE_CERTIFICATE, "a key is said to be destroyed and its bytes are there");
        }
    }
}

void judge_look(struct judge *judge)
{
    unsigned active = 0;
    bool root = false;
    keep_file(judge);
    for (size_t i = 0; i < judge->file_count; i++) {
        size_t len = read_file(judge, i);
        if (i == judge->file_count - 1 && len == sizeof judge->bytes) {
            look_at_slots(judge, &active, &root);
        }
        look_for_the_dead(judge, len);
    }
    if (active > 1) {
        judge_blame(judge, JUDGE_LOST_SESSION, "two roots say that they are active");
    }
    if (judge->book->has_root && !root) {
        judge_blame(judge, JUDGE_LOST_SESSION, "the root of the database is nowhere");
    }
}
