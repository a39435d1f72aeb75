/*
 * Commits that look right and are not, for the checks to find. They write behind the provider's back, with its own
 * layout, so that all else is as it is.
 */
#include "tests/crash/root_life.h"

#include "dataplane/base/id.h"
#include "dataplane/keys/roe_file_format.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static KV_RC read_file(const char *path, uint8_t file[KV_ROE_FILE_BYTES])
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = pread(fd, file, KV_ROE_FILE_BYTES, 0);
    close(fd);
    return got == (ssize_t)KV_ROE_FILE_BYTES ? KV_OK : KV_E_IO;
}

static KV_RC write_slot(const char *path, const uint8_t file[KV_ROE_FILE_BYTES], unsigned slot)
{
    off_t at = (off_t)kv_roe_slot_offset(slot);
    int fd = open(path, O_WRONLY | O_DSYNC | O_CLOEXEC);
    ssize_t put = pwrite(fd, file + at, KV_ROE_SLOT_BYTES, at);
    close(fd);
    return put == (ssize_t)KV_ROE_SLOT_BYTES ? KV_OK : KV_E_IO;
}

static uint8_t *slot_of(uint8_t file[KV_ROE_FILE_BYTES], const struct kv_id *id, unsigned *ret_slot)
{
    for (unsigned slot = 0; slot < KV_ROE_SLOTS; slot++) {
        uint8_t *page = file + kv_roe_slot_offset(slot);
        struct kv_roe_slot found;
        kv_roe_slot_parse(page, &found);
        if ((found.state == KV_ROE_SLOT_STAGED || found.state == KV_ROE_SLOT_ACTIVE) && kv_id_equal(&found.id, id)) {
            *ret_slot = slot;
            return page;
        }
    }
    return NULL;
}

static KV_RC open_again(const struct life_conf *conf, struct kv_roe **roe)
{
    const struct kv_roe_conf file = {.provider = "file", .path = conf->path, .env = &kv_env_system};
    struct kv_errinfo info;
    (*roe)->ops->close(*roe);
    *roe = NULL;
    return kv_roe_open(&file, &info, roe);
}

static KV_RC rename_commit(const struct life_conf *conf, struct kv_roe **roe, uint8_t file[KV_ROE_FILE_BYTES])
{
    char beside[PATH_MAX];
    snprintf(beside, sizeof beside, "%s.new", conf->path);
    int fd = open(beside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    ssize_t put = pwrite(fd, file, KV_ROE_FILE_BYTES, 0);
    bool good = put == (ssize_t)KV_ROE_FILE_BYTES && fsync(fd) == 0;
    close(fd);
    return good && rename(beside, conf->path) == 0 ? open_again(conf, roe) : KV_E_IO;
}

struct pages {
    uint8_t file[KV_ROE_FILE_BYTES];
    uint8_t *fresh, *old; /* NULL: not there */
    unsigned fresh_slot, old_slot;
};

static KV_RC commit_in_place(const struct life_conf *conf, struct pages *pages)
{
    if (conf->naive == LIFE_MARK_FIRST && pages->old != NULL) {
        memset(pages->old, 0, KV_ROE_SLOT_KEY_OFFSET);
        KV_TRY(write_slot(conf->path, pages->file, pages->old_slot));
    }
    KV_TRY(write_slot(conf->path, pages->file, pages->fresh_slot));
    if (pages->old == NULL) {
        return KV_OK;
    }
    memset(pages->old, 0, KV_ROE_SLOT_BYTES);
    return write_slot(conf->path, pages->file, pages->old_slot);
}

KV_RC life_naive_commit(const struct life_conf *conf, struct kv_roe **roe, const struct kv_id *fresh,
                        const struct kv_id *old)
{
    struct pages pages;
    struct kv_roe_receipt receipt;
    const struct kv_roe_slot active = {.state = KV_ROE_SLOT_ACTIVE, .id = *fresh};
    KV_TRY(read_file(conf->path, pages.file));
    pages.fresh = slot_of(pages.file, fresh, &pages.fresh_slot);
    pages.old = slot_of(pages.file, old, &pages.old_slot);
    if (conf->naive == LIFE_NOT_REPEATED && pages.old == NULL) {
        return KV_E_STALE;
    }
    bool as_it_should = pages.fresh == NULL || (pages.old == NULL && conf->naive != LIFE_MARK_FIRST);
    if (as_it_should || conf->naive == LIFE_NOT_REPEATED || conf->naive == LIFE_ADOPT_STAGED) {
        return (*roe)->ops->commit(*roe, fresh, old, &receipt);
    }
    kv_roe_slot_build(pages.fresh, &active, NULL);
    if (conf->naive == LIFE_RENAME) {
        memset(pages.old, 0, KV_ROE_SLOT_BYTES);
        return rename_commit(conf, roe, pages.file);
    }
    return commit_in_place(conf, &pages);
}
