/*
 * The nvme folder at a start: it must be this cluster's before anything in it is given up, then blocks that no session
 * of this database can ever read again are dropped. Whose it is says a file beside the arena, written at its first use.
 * Must never drop a block of another cluster's.
 */
#include "server/service/svc_int.h"

#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "dataplane/base/log.h"
#include "dataplane/base/mem.h"
#include "server/store/store_policy.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define OWNER_FILE "cluster.id"
#define OWNER_TMP "cluster.id.tmp"
#define SCOPES_MAX ((size_t)KV_STORE_IDS_MAX)

/* What is in the arena, as this database sees it. */
struct found {
    struct kv_id *scopes;
    enum kv_session_state *states;
    size_t count;
};

static KV_RC look(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info, struct found *found)
{
    found->scopes = kv_alloc_array(SCOPES_MAX, sizeof *found->scopes);
    found->states = kv_alloc_array(SCOPES_MAX, sizeof *found->states);
    if (found->scopes == NULL || found->states == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(kv_engine_scopes(svc->engine, found->scopes, SCOPES_MAX, &found->count));
    return kv_store_session_states(pg, found->scopes, found->count, info, found->states);
}

/* --- whose it is ------------------------------------------------------------------------------------------------- */

/* KV_E_MISSING: no file. */
static KV_RC read_owner(int folder_fd, struct kv_errinfo *info, struct kv_id *ret_owner)
{
    char text[KV_ID_TEXT_SIZE + 2] = "";
    int fd = openat(folder_fd, OWNER_FILE, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) {
        return KV_E_MISSING;
    }
    ssize_t n = fd < 0 ? -1 : pread(fd, text, sizeof text - 1, 0);
    if (fd >= 0) {
        close(fd);
    }
    text[n < 0 ? 0 : n] = '\0';
    text[strcspn(text, "\n")] = '\0';
    if (n < 0 || kv_id_parse("clu", text, ret_owner) != KV_OK) {
        return kv_fail(info, KV_E_CORRUPT,
                       OWNER_FILE " in the nvme folder is not readable, so it is not known whose blocks these are; "
                                  "restore it, or set tiers.nvme.path to another folder");
    }
    return KV_OK;
}

static KV_RC write_owner(const struct kv_svc *svc, int folder_fd, struct kv_errinfo *info)
{
    char id[KV_ID_TEXT_SIZE], text[KV_ID_TEXT_SIZE + 1];
    kv_id_text("clu", &svc->cluster, id);
    snprintf(text, sizeof text, "%s\n", id);
    int fd = openat(folder_fd, OWNER_TMP, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    bool written = fd >= 0 && pwrite(fd, text, strlen(text), 0) == (ssize_t)strlen(text) && fsync(fd) == 0;
    if (fd >= 0) {
        close(fd);
    }
    if (!written || KV_FAULT("service/arena-owner") || renameat(folder_fd, OWNER_TMP, folder_fd, OWNER_FILE) != 0 ||
        fsync(folder_fd) != 0) {
        return kv_fail(info, KV_E_IO, "cannot write " OWNER_FILE " in the nvme folder: %s", strerror(errno));
    }
    return KV_OK;
}

/* Without the file: ours when it is empty, or when this database knows one of the sessions in it. */
static KV_RC adopt(const struct kv_svc *svc, int folder_fd, const struct found *found, struct kv_errinfo *info)
{
    bool ours = found->count == 0;
    for (size_t i = 0; i < found->count && !ours; i++) {
        ours = found->states[i] != KV_SESSION_UNKNOWN;
    }
    if (!ours) {
        return kv_fail(
            info, KV_E_FOREIGN_FILE,
            "the nvme folder holds blocks of sessions that this database does not know; connect the database "
            "they belong to, set tiers.nvme.path to another folder, or empty this one");
    }
    return write_owner(svc, folder_fd, info);
}

static KV_RC check_owner(const struct kv_svc *svc, const struct found *found, struct kv_errinfo *info)
{
    struct kv_id owner;
    int folder_fd = open(svc->conf.engine.nvme_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder_fd < 0) {
        return kv_fail(info, KV_E_IO, "cannot open the nvme folder: %s", strerror(errno));
    }
    enum kv_err rc = read_owner(folder_fd, info, &owner);
    if (rc == KV_E_MISSING) {
        rc = adopt(svc, folder_fd, found, info);
    } else if (rc == KV_OK && !kv_id_equal(&owner, &svc->cluster)) {
        char text[KV_ID_TEXT_SIZE];
        kv_id_text("clu", &owner, text);
        rc = kv_fail(info, KV_E_FOREIGN_FILE,
                     "the nvme folder belongs to another cluster, %s; connect its database, set tiers.nvme.path to "
                     "another folder, or empty this one",
                     text);
    }
    close(folder_fd);
    return rc;
}

/* --- cleaning ---------------------------------------------------------------------------------------------------- */

/* Blocks of sessions that are erased or lost, or that this database never knew; those of a session that is being erased
 * stay for its verification. */
static KV_RC clean(struct kv_svc *svc, const struct found *found)
{
    for (size_t i = 0; i < found->count; i++) {
        if (found->states[i] >= KV_SESSION_ERASED) {
            uint64_t blocks = 0;
            KV_TRY(kv_engine_drop_scope(svc->engine, &found->scopes[i], &blocks));
            kv_log(KV_LOG_INFO, "service", "cleaned", KV_FID("session", "ses", &found->scopes[i]),
                   KV_FU("blocks", blocks));
        }
    }
    return KV_OK;
}

/* What is left counts for its tenant again. */
static KV_RC assign(struct kv_svc *svc, struct kv_pg *pg, const struct found *found, struct kv_errinfo *info)
{
    struct kv_id *tenants KV_CLEANUP(kv_freep) = kv_alloc_array(found->count + 1, sizeof *tenants);
    if (tenants == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(kv_store_session_tenants(pg, found->scopes, found->count, info, tenants));
    for (size_t i = 0; i < found->count; i++) {
        if (!kv_id_is_zero(&tenants[i])) {
            KV_TRY(kv_engine_assign(svc->engine, &found->scopes[i], &tenants[i]));
        }
    }
    return KV_OK;
}

KV_RC svc_arena_start(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info)
{
    struct found found = {0};
    const char *path = svc->conf.engine.nvme_path;
    if (path == NULL || path[0] == '\0') {
        return KV_OK; /* what was in dram ended with its process */
    }
    enum kv_err rc = look(svc, pg, info, &found);
    if (rc == KV_OK) {
        rc = check_owner(svc, &found, info);
    }
    if (rc == KV_OK) {
        rc = clean(svc, &found);
    }
    if (rc == KV_OK) {
        rc = assign(svc, pg, &found, info);
    }
    kv_free(found.scopes);
    kv_free(found.states);
    return rc;
}
