/* Database and root of erasure belong together: what happens when one of them was put back, lost or mixed up. */
#include "dataplane/base/id.h"
#include "tests/lib/svc_rig.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

TEMP_POSTGRES_HOOKS

static struct kvt_svc rig;
static struct kvt_engine engine;
static struct kv_id kept, erased;
static struct kv_erasure_view erasure;

/* --- the root's file ---------------------------------------------------------------------------------------------- */

struct root_copy {
    uint8_t bytes[65536];
    size_t len;
};

static void root_read(struct root_copy *copy)
{
    copy->len = kvt_file_read(rig.root_path, 0, copy->bytes, sizeof copy->bytes);
    cr_assert(gt(sz, copy->len, 0));
    cr_assert(lt(sz, copy->len, sizeof copy->bytes));
}

static void root_write(const struct root_copy *copy)
{
    kvt_file_write(rig.root_path, copy->bytes, copy->len, 0600);
}

/* --- scenes ------------------------------------------------------------------------------------------------------ */

/* Two sessions with blocks; stopped. */
static void open_two(void)
{
    kvt_svc_open(&rig);
    kvt_engine_open(&rig.call, &engine);
    kept = kvt_svc_session(&rig.call);
    erased = kvt_svc_session(&rig.call);
    cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, kept, 0, 4, KV_WAIT_DURABLE), KV_OK));
    cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, erased, 0, 4, KV_WAIT_DURABLE), KV_OK));
    kvt_svc_stop(&rig);
    kvt_engine_close(&engine);
}

static void start_again(void)
{
    kvt_svc_start(&rig);
    kvt_svc_as(&rig.call, rig.tenant, KV_ROLE_TENANT_ADMIN | KV_ROLE_ENGINE);
}

static void erase_one(void)
{
    start_again();
    erasure = kvt_svc_erase(&rig.call, erased);
    cr_assert(eq(int, erasure.state, KV_ERASURE_CERTIFIED));
    kvt_svc_stop(&rig);
}

static long long signed_entries(void)
{
    return kvt_db_number(&rig, "SELECT coalesce(sum(last_signed_size), 0) FROM kvrun.audit_log");
}

static long long entries(void)
{
    return kvt_db_number(&rig,
                         "SELECT (SELECT count(*) FROM kvrun.audit_leaf) + (SELECT count(*) FROM kvrun.audit_outbox)");
}

static enum kv_err keep_nothing(void *ctx, const char *secret, struct kv_errinfo *info)
{
    cr_assert(false, "a key was made");
    return KV_OK;
}

/* Nothing opens, nothing is made, nothing is signed; and it says why. */
static void check_quarantined(const char *why)
{
    struct kv_tenant_view tenant;
    struct kv_session_view session;
    struct kv_erasure_view view;
    struct kv_key_view key;
    struct kv_engine_view registered;
    struct kv_engine_new in = {.name = "e", .kind = "sim", .engine_version = "1", .boot_id = "b", .pid = 1};
    struct kv_key_new key_in = {.name = "k", .roles = KV_ROLE_ENGINE};
    struct kv_model model = {.id = "m", .revision = "1"};
    bool existed = false;
    uint32_t count = 0;
    start_again();
    long long before = signed_entries(), entries_before = entries();
    cr_assert(not(kvt_svc_check_ok(&rig, "root_key")));
    cr_assert(strstr(kvt_svc_check_detail(&rig, "root_key"), why) != NULL, "%s",
              kvt_svc_check_detail(&rig, "root_key"));
    cr_assert(eq(int, kv_svc_session_create(&rig.call, &(struct kv_session_new){.model = model}, &session, &existed),
                 KV_E_QUARANTINED));
    cr_assert(strstr(rig.call.info.text, why) != NULL);
    cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, kept, 0, 1, KV_WAIT_DRAM), KV_E_QUARANTINED));
    cr_assert(eq(int, kvt_svc_lookup(&rig.call, &engine, kept, 0, 1, &count), KV_E_QUARANTINED));
    cr_assert(eq(int, kvt_svc_ask(&rig.call, kept, 0, &view, &existed), KV_E_QUARANTINED));
    cr_assert(eq(int, kv_svc_engine_register(&rig.call, &in, &registered), KV_E_QUARANTINED));
    cr_assert(eq(int, kv_svc_key_create(&rig.call, &rig.tenant, &key_in, &key), KV_E_QUARANTINED));
    cr_assert(eq(int, kv_svc_bootstrap_key(&rig.call, keep_nothing, NULL), KV_E_QUARANTINED),
              "it would go into the wrong database");
    rig.call.who = (struct kv_principal){.roles = KV_ROLE_OPERATOR};
    cr_assert(
        eq(int, kv_svc_tenant_create(&rig.call, &(struct kv_tenant_new){.name = "late"}, &tenant), KV_E_QUARANTINED));
    cr_assert(eq(int, kvt_svc_drain(&rig.call), KV_E_QUARANTINED));
    usleep(600000); /* three rounds of the sequencer, which has nothing to await here */
    cr_assert(eq(llong, signed_entries(), before));
    cr_assert(eq(llong, entries(), entries_before));
    kvt_svc_stop(&rig);
}

static void check_healed(void)
{
    struct kv_buf bundle;
    uint32_t count = 0;
    start_again();
    cr_assert(kvt_svc_check_ok(&rig, "root_key"), "%s", kvt_svc_check_detail(&rig, "root_key"));
    kvt_engine_open(&rig.call, &engine);
    cr_assert(eq(int, kvt_svc_restore(&rig.call, &engine, kept, 0, 4, &count), KV_OK), "%s", rig.call.info.text);
    cr_assert(eq(u32, count, 4));
    cr_assert(kvt_svc_refused(&rig.call, &engine, erased, erasure.id));
    cr_assert(kvt_svc_certificate_good(&rig.call, erasure.id, &bundle));
    kv_buf_done(&bundle);
    erasure = kvt_svc_erase(&rig.call, kept); /* and erasing works */
    cr_assert(eq(int, erasure.state, KV_ERASURE_CERTIFIED));
    kvt_engine_close(&engine);
    kvt_svc_done(&rig);
}

Test(root, old_copy_of_the_root_file_is_quarantined_and_the_right_one_heals)
{
    struct root_copy before, after;
    open_two();
    root_read(&before);
    erase_one();
    root_read(&after);
    cr_assert(before.len != after.len || memcmp(before.bytes, after.bytes, before.len) != 0);
    root_write(&before);
    check_quarantined("do not belong together");
    root_write(&after);
    check_healed();
}

Test(root, database_from_before_an_erasure_is_quarantined_and_the_right_one_heals)
{
    open_two();
    kvt_db_keep(&rig, "old");
    erase_one();
    kvt_db_swap(&rig, "old");
    check_quarantined("do not belong together");
    check_quarantined("do not belong together"); /* a second start changes nothing */
    kvt_db_swap(&rig, "old");
    check_healed();
}

/* Both put back together: what no outside witness sees. The erased session lives again; limit L7 says so. */
Test(root, both_put_back_together_are_not_noticed_which_is_limit_seven)
{
    struct root_copy before;
    uint32_t count = 0;
    open_two();
    root_read(&before);
    kvt_db_keep(&rig, "old");
    erase_one();
    root_write(&before);
    kvt_db_swap(&rig, "old");
    start_again();
    cr_assert(kvt_svc_check_ok(&rig, "root_key"));
    kvt_engine_open(&rig.call, &engine);
    /* Its blocks were cleaned after the erasure, so there is nothing to restore, but it is no erased session. */
    cr_assert(eq(int, kvt_svc_restore(&rig.call, &engine, erased, 0, 4, &count), KV_OK));
    kvt_engine_close(&engine);
    kvt_svc_done(&rig);
}

Test(root, fresh_database_with_a_root_of_another_is_quarantined)
{
    char right[sizeof rig.url];
    open_two();
    erase_one();
    snprintf(right, sizeof right, "%s", rig.url);
    snprintf(rig.url, sizeof rig.url, "%s", temp_postgres_url());
    check_quarantined("belongs to another database");
    snprintf(rig.url, sizeof rig.url, "%s", right);
    check_healed();
}

Test(root, missing_root_file_is_quarantined_and_putting_it_back_heals)
{
    struct root_copy copy;
    open_two();
    erase_one();
    root_read(&copy);
    cr_assert(eq(int, unlink(rig.root_path), 0));
    check_quarantined("do not belong together");
    cr_assert(eq(int, unlink(rig.root_path), 0));
    root_write(&copy);
    check_healed();
}

Test(root, is_used_where_the_database_says_and_refused_when_that_cannot_be_opened)
{
    open_two();
    const char *path = rig.conf.root_path;
    rig.conf.root_provider = "memory";
    start_again();
    cr_assert(kvt_svc_check_ok(&rig, "root_key"));
    kvt_svc_stop(&rig);
    rig.conf.root_path = "relative";
    cr_assert(eq(int, kvt_svc_try_start(&rig), KV_E_CONFIG));
    cr_assert(strstr(rig.info.text, "\"file\"") != NULL && strstr(rig.info.text, "root.provider") != NULL, "%s",
              rig.info.text);
    rig.conf.root_path = path;
    rig.conf.root_provider = "file";
    erase_one();
    check_healed();
}

Test(root, in_memory_is_gone_after_a_restart_and_says_so)
{
    kvt_svc_config(&rig);
    rig.conf.root_provider = "memory";
    rig.conf.root_path = NULL;
    kvt_svc_start(&rig);
    rig.tenant = kvt_svc_tenant(&rig, "acme");
    kvt_svc_restart(&rig);
    cr_assert(not(kvt_svc_check_ok(&rig, "root_key")));
    kvt_svc_done(&rig);
}

Test(root, damaged_file_never_becomes_a_fresh_root)
{
    struct root_copy copy, damaged;
    open_two();
    erase_one();
    root_read(&copy);
    damaged = copy;
    for (size_t i = 4096; i < damaged.len; i++) {
        damaged.bytes[i] ^= 0x5a;
    }
    root_write(&damaged);
    if (kvt_svc_try_start(&rig) == KV_OK) {
        cr_assert(not(kvt_svc_check_ok(&rig, "root_key")));
        kvt_svc_stop(&rig);
    }
    root_write(&copy);
    check_healed();
}
