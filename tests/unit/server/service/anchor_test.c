/* The anchor outside of the database: what it notices that database and root together cannot, and what waits for it. */
#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "tests/lib/svc_rig.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

TEMP_POSTGRES_HOOKS

static struct kvt_svc rig;
static struct kvt_engine engine;
static struct kv_id kept, erased;
static struct kv_erasure_view erasure;
static char anchor[KVT_PATH_BYTES];

/* --- files ------------------------------------------------------------------------------------------------------- */

struct copy {
    uint8_t bytes[65536];
    size_t len;
};

static void keep(const char *path, struct copy *copy)
{
    copy->len = kvt_file_read(path, 0, copy->bytes, sizeof copy->bytes);
}

static void put_back(const char *path, const struct copy *copy)
{
    kvt_file_write(path, copy->bytes, copy->len, 0600);
}

static const char *anchor_text(void)
{
    static char text[4096];
    text[kvt_file_read(anchor, 0, text, sizeof text - 1)] = '\0';
    return text;
}

/* --- scenes ------------------------------------------------------------------------------------------------------ */

static void config(void)
{
    kvt_svc_config(&rig);
    kvt_path_join(anchor, rig.folder, "anchor");
    kvt_file_write(anchor, "", 0, 0600);
    rig.conf.anchor_file = anchor;
}

static void start_again(void)
{
    kvt_svc_start(&rig);
    kvt_svc_as(&rig.call, rig.tenant, KV_ROLE_TENANT_ADMIN | KV_ROLE_ENGINE);
}

/* Two sessions with blocks. */
static void open_two(void)
{
    config();
    kvt_svc_start(&rig);
    rig.tenant = kvt_svc_tenant(&rig, "acme");
    kvt_svc_as(&rig.call, rig.tenant, KV_ROLE_TENANT_ADMIN | KV_ROLE_ENGINE);
    kvt_engine_open(&rig.call, &engine);
    kept = kvt_svc_session(&rig.call);
    erased = kvt_svc_session(&rig.call);
    cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, kept, 0, 4, KV_WAIT_DURABLE), KV_OK));
    cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, erased, 0, 4, KV_WAIT_DURABLE), KV_OK));
    kvt_engine_close(&engine);
}

static void erase_one(void)
{
    erasure = kvt_svc_erase(&rig.call, erased);
    cr_assert(eq(int, erasure.state, KV_ERASURE_CERTIFIED));
}

static void await_state(struct kv_erasure_view *view, enum kv_erasure_state state)
{
    uint64_t deadline = kv_now_ns(&kv_env_system) + KVT_WAIT_S * KV_S_NS;
    do {
        usleep(20000);
        cr_assert(eq(int, kv_svc_erasure_get(&rig.call, &view->id, view), KV_OK));
    } while (view->state != state && kv_now_ns(&kv_env_system) < deadline);
    cr_assert(eq(int, view->state, state));
}

static long long written(void)
{
    return kvt_db_number(&rig, "SELECT (SELECT count(*) FROM kvrun.audit_leaf) + (SELECT count(*) FROM"
                               " kvrun.audit_outbox) + (SELECT coalesce(sum(last_signed_size), 0) FROM kvrun.audit_log)"
                               " + (SELECT count(*) FROM kvrun.erase_batch) + (SELECT count(*) FROM kvrun.ktree_node)");
}

/* Nothing opens, nothing is made, signed or destroyed, and nothing of it changes with time. */
static void check_quarantined(const char *why)
{
    struct copy root_before, root_after, anchor_before, anchor_after;
    struct kv_erasure_view view;
    bool existed = false;
    uint32_t count = 0;
    keep(rig.root_path, &root_before);
    keep(anchor, &anchor_before);
    start_again();
    long long before = written();
    cr_assert(not(kvt_svc_check_ok(&rig, "root_key")));
    cr_assert(strstr(kvt_svc_check_detail(&rig, "root_key"), why) != NULL, "%s",
              kvt_svc_check_detail(&rig, "root_key"));
    cr_assert(eq(int, kvt_engine_try_open(&rig.call, &engine), KV_E_QUARANTINED));
    cr_assert(eq(int, kvt_svc_lookup(&rig.call, &engine, erased, 0, 1, &count), KV_E_QUARANTINED));
    cr_assert(eq(int, kvt_svc_ask(&rig.call, kept, 0, &view, &existed), KV_E_QUARANTINED));
    usleep(1500000); /* rounds of the eraser, the janitor and the sequencer, which have nothing to await */
    cr_assert(eq(llong, written(), before));
    kvt_svc_stop(&rig);
    keep(rig.root_path, &root_after);
    keep(anchor, &anchor_after);
    cr_assert(root_before.len == root_after.len && memcmp(root_before.bytes, root_after.bytes, root_after.len) == 0);
    cr_assert(anchor_before.len == anchor_after.len &&
              memcmp(anchor_before.bytes, anchor_after.bytes, anchor_after.len) == 0);
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
    erasure = kvt_svc_erase(&rig.call, kept);
    cr_assert(eq(int, erasure.state, KV_ERASURE_CERTIFIED));
    kvt_engine_close(&engine);
    kvt_svc_done(&rig);
}

/* --- what it notices --------------------------------------------------------------------------------------------- */

/* The control is both_put_back_together_are_not_noticed_which_is_limit_seven in root_test.c. */
Test(anchor, database_and_root_put_back_together_are_quarantined_and_the_right_ones_heal)
{
    static struct copy before, after;
    open_two();
    kvt_svc_stop(&rig);
    keep(rig.root_path, &before);
    kvt_db_keep(&rig, "old");
    start_again();
    erase_one();
    kvt_svc_stop(&rig);
    keep(rig.root_path, &after);
    put_back(rig.root_path, &before);
    kvt_db_swap(&rig, "old");
    check_quarantined("older than the anchor");
    check_quarantined("older than the anchor");
    put_back(rig.root_path, &after);
    check_quarantined("older than the anchor"); /* of the two only the root is right */
    kvt_db_swap(&rig, "old");
    put_back(rig.root_path, &before);
    check_quarantined("do not belong together"); /* of the two only the database is */
    put_back(rig.root_path, &after);
    check_healed();
}

/* After the first of two erasures: the root is older, and so is the log. */
Test(anchor, any_earlier_pair_is_quarantined)
{
    static struct copy before, after;
    open_two();
    struct kv_id third = kvt_svc_session(&rig.call);
    cr_assert(eq(int, kvt_svc_erase(&rig.call, third).state, KV_ERASURE_CERTIFIED));
    kvt_svc_stop(&rig);
    keep(rig.root_path, &before);
    kvt_db_keep(&rig, "old");
    start_again();
    erase_one();
    kvt_svc_stop(&rig);
    keep(rig.root_path, &after);
    put_back(rig.root_path, &before);
    kvt_db_swap(&rig, "old");
    check_quarantined("older than the anchor");
    put_back(rig.root_path, &after);
    kvt_db_swap(&rig, "old");
    check_healed();
}

/* The root is today's, the log is not: an entry was taken out of the middle, and the rest hashed anew. */
Test(anchor, log_that_does_not_have_what_the_anchor_shows_is_quarantined)
{
    open_two();
    erase_one();
    kvt_svc_stop(&rig);
    kvt_db_keep(&rig, "right");
    kvt_db_run(&rig, "ALTER TABLE kvrun.audit_leaf DISABLE TRIGGER audit_leaf_is_final");
    kvt_db_run(&rig, "UPDATE kvrun.audit_leaf SET leaf_hash = sha256(leaf_hash) WHERE idx = 0");
    check_quarantined("the audit log");
    kvt_db_swap(&rig, "right");
    check_healed();
}

Test(anchor, of_another_database_is_quarantined)
{
    static struct copy ours, other;
    open_two();
    erase_one();
    kvt_svc_stop(&rig);
    keep(anchor, &ours);
    char first[KVT_PATH_BYTES];
    snprintf(first, sizeof first, "%s", rig.folder);
    open_two();
    erase_one();
    kvt_svc_stop(&rig);
    keep(anchor, &other);
    put_back(anchor, &ours);
    check_quarantined("another database's");
    put_back(anchor, &other);
    check_healed();
    kvt_folder_remove(first);
}

/* --- what it does not take for a rollback --------------------------------------------------------------------------
 */

/* As after a crash before the anchor was written, once and for many changes of the root. */
Test(anchor, that_is_behind_is_moved_on)
{
    static struct copy early;
    open_two();
    cr_assert(eq(int, kvt_svc_erase(&rig.call, kvt_svc_session(&rig.call)).state, KV_ERASURE_CERTIFIED));
    keep(anchor, &early);
    cr_assert(gt(sz, early.len, 0));
    for (int i = 0; i < 3; i++) {
        cr_assert(eq(int, kvt_svc_erase(&rig.call, kvt_svc_session(&rig.call)).state, KV_ERASURE_CERTIFIED));
    }
    erase_one();
    kvt_svc_stop(&rig);
    put_back(anchor, &early);
    check_healed();
    cr_assert(ne(int, memcmp(early.bytes, anchor_text(), early.len), 0));
}

/* A server that ran without one gets one, and the first record of all is behind a first root. */
Test(anchor, can_be_given_to_a_database_later_and_emptied)
{
    open_two();
    rig.conf.anchor_file = NULL;
    kvt_svc_restart(&rig);
    kvt_svc_as(&rig.call, rig.tenant, KV_ROLE_TENANT_ADMIN | KV_ROLE_ENGINE);
    erase_one();
    cr_assert(strstr((const char *)anchor_text(), "\nnumber   1\n") != NULL, "of the first start");
    kvt_svc_stop(&rig);
    rig.conf.anchor_file = anchor;
    kvt_file_write(anchor, "", 0, 0600);
    check_healed();
}

/* --- what waits for it ---------------------------------------------------------------------------------------------
 */

Test(anchor, certificate_names_what_it_shows_and_keeps_limit_seven)
{
    struct kv_buf bundle, payload;
    open_two();
    erase_one();
    cr_assert(kvt_svc_certificate_good(&rig.call, erasure.id, &bundle));
    kv_buf_done(&bundle);
    kv_buf_init(&payload, 65536);
    cr_assert(eq(int, kv_svc_certificate(&rig.call, &erasure.id, KV_CERT_PAYLOAD, &payload), KV_OK));
    const char *text = (const char *)payload.data, *root = strstr(text, "\"root_id\":\"rot_");
    cr_assert(strstr(text, "{\"anchor\":{\"at\":\"") == text && strstr(text, "\"v\":2") != NULL, "%s", text);
    cr_assert(strstr(text, "\"code\":\"L7\"") != NULL);
    char shown[64];
    snprintf(shown, sizeof shown, "\nroot     %.30s\n", root + 11);
    cr_assert(strstr(anchor_text(), shown) != NULL, "%s", shown);
    kv_buf_done(&payload);
    rig.conf.anchor_file = NULL; /* the control */
    kvt_svc_restart(&rig);
    kvt_svc_as(&rig.call, rig.tenant, KV_ROLE_TENANT_ADMIN | KV_ROLE_ENGINE);
    kv_buf_init(&payload, 65536);
    erasure = kvt_svc_erase(&rig.call, kept);
    cr_assert(eq(int, kv_svc_certificate(&rig.call, &erasure.id, KV_CERT_PAYLOAD, &payload), KV_OK));
    text = (const char *)payload.data;
    cr_assert(strstr(text, "anchor") == NULL && strstr(text, "\"v\":1") != NULL && strstr(text, "L7") != NULL);
    kv_buf_done(&payload);
    kvt_svc_done(&rig);
}

/* A file that cannot be written: the key is destroyed all the same, the certificate waits, and readyz says why. */
Test(anchor, certificate_waits_until_it_is_written_and_the_destruction_does_not)
{
    struct kv_erasure_view view, next;
    bool existed = false;
    char away[KVT_PATH_BYTES];
    open_two();
    cr_assert(kvt_svc_check_ok(&rig, "anchor"));
    kvt_path_join(away, rig.folder, "away");
    cr_assert(eq(int, rename(anchor, away), 0));
    cr_assert(eq(int, kvt_svc_ask(&rig.call, erased, 0, &view, &existed), KV_OK));
    cr_assert(kvt_svc_await_check(&rig, "anchor", false));
    await_state(&view, KV_ERASURE_VERIFIED);
    cr_assert(strstr(kvt_svc_check_detail(&rig, "anchor"), "anchor.file") != NULL);
    cr_assert(eq(int, kvt_svc_ask(&rig.call, kept, 0, &next, &existed), KV_OK));
    await_state(&next, KV_ERASURE_VERIFIED);
    cr_assert(eq(int, view.state, KV_ERASURE_VERIFIED), "destroyed and verified, not certified");
    cr_assert(ne(int, access(anchor, F_OK), 0), "nobody made another one");
    cr_assert(eq(int, rename(away, anchor), 0));
    cr_assert(kvt_svc_await_check(&rig, "anchor", true));
    await_state(&view, KV_ERASURE_CERTIFIED);
    await_state(&next, KV_ERASURE_CERTIFIED);
    kvt_svc_done(&rig);
}

/* A mount that hangs is a witness that is away: what is to be destroyed is, and the certificates wait. */
Test(anchor, that_hangs_keeps_no_key_from_being_destroyed)
{
    char gate[KVT_PATH_BYTES], spec[KVT_PATH_BYTES + 64];
    struct kv_erasure_view second;
    bool existed = false;
    open_two();
    kvt_path_join(gate, rig.folder, "gate");
    snprintf(spec, sizeof spec, "audit/anchor/write=hold:%s@1once", gate);
    kv_fault_set(spec);
    cr_assert(eq(int, kvt_svc_ask(&rig.call, erased, 0, &erasure, &existed), KV_OK));
    await_state(&erasure, KV_ERASURE_VERIFIED);
    for (unsigned i = 0; i < KVT_WAIT_S * 50 && access(gate, F_OK) != 0; i++) { /* it comes after the verification */
        usleep(20000);
    }
    cr_assert(eq(int, access(gate, F_OK), 0), "the write hangs");
    cr_assert(kvt_svc_await_check(&rig, "anchor", false));
    cr_assert(eq(int, kvt_svc_ask(&rig.call, kept, 0, &second, &existed), KV_OK));
    await_state(&second, KV_ERASURE_VERIFIED);
    cr_assert(eq(int, unlink(gate), 0));
    await_state(&erasure, KV_ERASURE_CERTIFIED);
    await_state(&second, KV_ERASURE_CERTIFIED);
    cr_assert(kvt_svc_await_check(&rig, "anchor", true));
    kv_fault_set(NULL);
    kvt_svc_done(&rig);
}

Test(anchor, that_is_missing_or_damaged_refuses_the_start_with_what_to_do)
{
    static struct copy good, bad;
    open_two();
    erase_one();
    kvt_svc_stop(&rig);
    keep(anchor, &good);
    cr_assert(eq(int, unlink(anchor), 0));
    cr_assert(eq(int, kvt_svc_try_start(&rig), KV_E_CONFIG));
    cr_assert(strstr(rig.info.text, "mount") != NULL);
    bad = good;
    memset(bad.bytes + 512, 'x', 1024);
    put_back(anchor, &bad);
    cr_assert(eq(int, kvt_svc_try_start(&rig), KV_E_CORRUPT));
    put_back(anchor, &good);
    check_healed();
}

#ifdef KV_FAULTS
/* It ended between the destruction and the anchor; kills at every step are in tests/crash. */
Test(anchor, process_that_ended_before_it_wrote_it_finds_no_rollback)
{
    struct kv_erasure_view view;
    bool existed = false;
    open_two();
    kv_fault_set("audit/anchor/write=fail@1");
    cr_assert(eq(int, kvt_svc_ask(&rig.call, erased, 2, &view, &existed), KV_OK));
    kvt_svc_stop(&rig);
    kv_fault_set(NULL);
    cr_assert(ne(int, view.state, KV_ERASURE_CERTIFIED));
    start_again();
    cr_assert(kvt_svc_check_ok(&rig, "root_key"), "%s", kvt_svc_check_detail(&rig, "root_key"));
    await_state(&view, KV_ERASURE_CERTIFIED);
    erasure = view;
    kvt_svc_stop(&rig);
    check_healed();
}

#endif
