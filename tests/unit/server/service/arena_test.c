/* The nvme folder's owner: another cluster's blocks are left alone, our own useless ones are cleaned. */
#include "dataplane/base/id.h"
#include "server/service/svc_int.h"
#include "tests/lib/svc_rig.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

TEMP_POSTGRES_HOOKS

static struct kvt_svc rig, other;
static struct kvt_engine engine;
static struct kv_id session;

/* A session with blocks in the folder; stopped. */
static void open_one(void)
{
    kvt_svc_open(&rig);
    kvt_engine_open(&rig.call, &engine);
    session = kvt_svc_session(&rig.call);
    cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, session, 0, 4, KV_WAIT_DURABLE), KV_OK));
    kvt_svc_stop(&rig);
    kvt_engine_close(&engine);
}

/* Everything of its own but the nvme folder. */
static void configure_other(void)
{
    kvt_svc_config(&other);
    snprintf(other.nvme_path, sizeof other.nvme_path, "%s", rig.nvme_path);
}

static void check_blocks_are_there(void)
{
    uint32_t count = 0;
    kvt_svc_start(&rig);
    kvt_svc_as(&rig.call, rig.tenant, KV_ROLE_TENANT_ADMIN | KV_ROLE_ENGINE);
    kvt_engine_open(&rig.call, &engine);
    cr_assert(eq(int, kvt_svc_restore(&rig.call, &engine, session, 0, 4, &count), KV_OK));
    cr_assert(eq(u32, count, 4));
    kvt_svc_stop(&rig);
    kvt_engine_close(&engine);
}

static void owner_path(char path[KVT_PATH_BYTES + 16])
{
    snprintf(path, KVT_PATH_BYTES + 16, "%s/cluster.id", rig.nvme_path);
}

Test(arena, of_another_cluster_is_refused_and_left_as_it_is)
{
    open_one();
    configure_other();
    cr_assert(eq(int, kvt_svc_try_start(&other), KV_E_FOREIGN_FILE), "%s", other.info.text);
    cr_assert(strstr(other.info.text, "another cluster, clu_") != NULL, "%s", other.info.text);
    cr_assert(strstr(other.info.text, "tiers.nvme.path") != NULL, "%s", other.info.text);
    check_blocks_are_there();
    kvt_folder_remove(other.folder);
    kvt_svc_done(&rig);
}

Test(arena, without_an_owner_is_refused_when_no_session_in_it_is_known)
{
    char path[KVT_PATH_BYTES + 16];
    open_one();
    owner_path(path);
    cr_assert(eq(int, unlink(path), 0));
    configure_other();
    cr_assert(eq(int, kvt_svc_try_start(&other), KV_E_FOREIGN_FILE), "%s", other.info.text);
    cr_assert(strstr(other.info.text, "does not know") != NULL, "%s", other.info.text);
    cr_assert(eq(int, access(path, F_OK), -1), "it was not made ours");
    check_blocks_are_there(); /* and its own cluster takes it up again */
    cr_assert(eq(int, access(path, F_OK), 0));
    kvt_folder_remove(other.folder);
    kvt_svc_done(&rig);
}

Test(arena, with_a_damaged_owner_is_refused)
{
    char path[KVT_PATH_BYTES + 16];
    uint8_t before[128];
    open_one();
    owner_path(path);
    size_t len = kvt_file_read(path, 0, before, sizeof before);
    kvt_file_write(path, "clu_", 4, 0600);
    cr_assert(eq(int, kvt_svc_try_start(&rig), KV_E_CORRUPT), "%s", rig.info.text);
    kvt_file_write(path, before, len, 0600);
    check_blocks_are_there();
    kvt_svc_done(&rig);
}

Test(arena, of_ours_is_cleaned_of_sessions_that_the_database_does_not_know)
{
    struct kv_id scopes[8];
    size_t count = 0;
    open_one();
    kvt_db_run(&rig, "DELETE FROM kvrun.session");
    kvt_svc_start(&rig);
    cr_assert(eq(int, kv_engine_scopes(rig.svc->engine, scopes, 8, &count), KV_OK));
    cr_assert(eq(sz, count, 0));
    kvt_svc_done(&rig);
}
