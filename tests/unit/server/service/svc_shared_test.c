/*
 * Shared scopes: several sessions move the same blocks, nobody else does, and a scope never outlives the sessions that
 * keep it. What is erased opens nowhere; what stays is what the policy says stays.
 */
#include "dataplane/base/env.h"
#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"
#include "server/service/svc_hold.h"
#include "server/service/svc_int.h"
#include "server/service/svc_policy.h"
#include "server/service/svc_shared.h"
#include "tests/lib/svc_rig.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

TEMP_POSTGRES_HOOKS

#define TIERS "\"tiers\":{\"dram\":{},\"nvme\":{}}"

static struct kvt_svc rig;
static struct kvt_engine engine;

static void put_policy(const char *text)
{
    struct kv_call call = kvt_svc_call(&rig, rig.tenant, KV_ROLE_SECURITY_OFFICER);
    struct kv_policy_view view;
    kv_policy_view_init(&view);
    cr_assert(eq(int, kv_svc_policy_put(&call, &rig.tenant, KV_BYTES(text, strlen(text)), &view), KV_OK), "%s",
              call.info.text);
    kv_policy_view_done(&view);
    kv_call_done(&call);
}

static void open_all(void)
{
    kvt_svc_open(&rig);
    kvt_engine_open(&rig.call, &engine);
    put_policy("{" TIERS ",\"sharing\":\"scope\"}");
}

static void close_all(void)
{
    kvt_engine_close(&engine);
    kvt_svc_done(&rig);
}

TestSuite(shared, .init = open_all, .fini = close_all, .timeout = 180);

static enum kv_err try_make(struct kv_call *call, const char *scope, const char *model, struct kv_session_view *ret)
{
    struct kv_session_new in = {.model = {.revision = "1"}, .scope = scope};
    bool existed = false;
    snprintf(in.model.id, sizeof in.model.id, "%s", model);
    return kv_svc_session_create(call, &in, ret, &existed);
}

static struct kv_session_view make(const char *scope)
{
    struct kv_session_view view;
    cr_assert(eq(int, try_make(&rig.call, scope, "test-model", &view), KV_OK), "%s", rig.call.info.text);
    return view;
}

static bool same(const struct kv_id *a, const struct kv_id *b)
{
    return kv_id_equal(a, b);
}

static bool differ(const struct kv_id *a, const struct kv_id *b)
{
    return !kv_id_equal(a, b);
}

/* So many of `count` blocks come back, with `shared` of the first from the scope. */
static uint32_t restored(struct kv_id session, uint32_t count, uint32_t shared)
{
    uint32_t right = 0;
    engine.shared = shared;
    cr_assert(eq(int, kvt_svc_restore(&rig.call, &engine, session, 0, count, &right), KV_OK), "%s", rig.call.info.text);
    engine.shared = 0;
    return right;
}

static void offload(struct kv_id session, uint32_t count, uint32_t shared)
{
    engine.shared = shared;
    cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, session, 0, count, KV_WAIT_DURABLE), KV_OK), "%s",
              rig.call.info.text);
    engine.shared = 0;
}

static struct kv_erasure_view erase(struct kv_id session)
{
    struct kv_erasure_view view = kvt_svc_erase(&rig.call, session);
    cr_assert(eq(int, view.state, KV_ERASURE_CERTIFIED), "%s", view.claim);
    return view;
}

static struct kv_erasure_view await_erasure_of(struct kv_id session)
{
    struct kv_erasure_view view;
    bool existed = false;
    cr_assert(eq(int, kvt_svc_ask(&rig.call, session, KVT_WAIT_S, &view, &existed), KV_OK), "%s", rig.call.info.text);
    cr_assert(existed, "nobody had erased it");
    cr_assert(eq(int, view.state, KV_ERASURE_CERTIFIED), "%s", view.claim);
    return view;
}

static const char *state_of(struct kv_id session)
{
    static struct kv_session_view view;
    cr_assert(eq(int, kv_svc_session_get(&rig.call, &session, true, &view), KV_OK), "%s", rig.call.info.text);
    return view.state;
}

static size_t blocks_of(struct kv_id session)
{
    struct kv_buf ids KV_CLEANUP(kv_buf_done);
    kv_buf_init(&ids, 1 << 20);
    kvt_svc_block_ids(&rig, session, &ids);
    return ids.len / 32;
}

#define DUE "SELECT count(*) FROM kvrun.session WHERE kind = 'scope' AND kvrun.scope_is_due(id)"

/* --- sharing ----------------------------------------------------------------------------------------------------- */

Test(shared, blocks_of_a_scope_are_moved_by_every_session_that_refers_to_it)
{
    struct kv_session_view a = make("system-prompt"), b = make("system-prompt"), alone = make(NULL);
    cr_assert(same(&a.shared, &b.shared) && differ(&a.shared, &a.id));
    cr_assert(kv_id_is_zero(&alone.shared));
    offload(a.id, 5, 3);
    cr_assert(eq(sz, blocks_of(a.shared), 3));
    cr_assert(eq(sz, blocks_of(a.id), 2));
    cr_assert(eq(u32, restored(a.id, 5, 3), 5));
    cr_assert(eq(u32, restored(b.id, 5, 3), 3)); /* its own two are nobody's yet */
    offload(b.id, 5, 3);
    cr_assert(eq(sz, blocks_of(a.shared), 3)); /* present already */
    cr_assert(eq(u32, restored(b.id, 5, 3), 5));
    uint32_t leading = 0;
    engine.shared = 3;
    cr_assert(eq(int, kvt_svc_lookup(&rig.call, &engine, b.id, 0, 5, &leading), KV_OK));
    cr_assert(eq(u32, leading, 5));
    engine.shared = 0;
}

Test(shared, who_does_not_refer_to_a_scope_gets_nothing_from_it)
{
    struct kv_session_view a = make("s"), other = make("t"), alone = make(NULL), view;
    uint32_t right = 0;
    offload(a.id, 3, 3);
    cr_assert(eq(u32, restored(a.id, 3, 3), 3)); /* the control */
    cr_assert(eq(u32, restored(alone.id, 3, 0), 0));
    cr_assert(eq(u32, restored(other.id, 3, 3), 0));
    cr_assert(eq(u32, restored(a.id, 3, 0), 0)); /* as its own they are other blocks */
    engine.shared = 1;
    cr_assert(eq(int, kvt_svc_restore(&rig.call, &engine, alone.id, 0, 3, &right), KV_E_INVALID_REQUEST));
    engine.shared = 4; /* one more than there are */
    cr_assert(eq(int, kvt_svc_restore(&rig.call, &engine, a.id, 0, 3, &right), KV_E_INVALID_REQUEST));
    engine.shared = 0;
    cr_assert(eq(int, kvt_svc_restore(&rig.call, &engine, a.shared, 0, 3, &right), KV_E_NOT_FOUND));
    cr_assert(eq(int, try_make(&rig.call, "s", "other-model", &view), KV_OK));
    cr_assert(differ(&view.shared, &a.shared));
}

Test(shared, the_same_name_at_another_tenant_is_another_scope)
{
    struct kv_session_view a = make("s"), theirs;
    struct kv_id other = kvt_svc_tenant(&rig, "globex");
    struct kv_call call = kvt_svc_call(&rig, other, KV_ROLE_TENANT_ADMIN | KV_ROLE_ENGINE);
    cr_assert(eq(int, try_make(&call, "s", "test-model", &theirs), KV_E_POLICY_DENIED)); /* whose policy says nothing */
    rig.tenant = other;
    put_policy("{" TIERS ",\"sharing\":\"scope\"}");
    cr_assert(eq(int, try_make(&call, "s", "test-model", &theirs), KV_OK), "%s", call.info.text);
    cr_assert(differ(&theirs.shared, &a.shared));
    cr_assert(eq(int, kv_svc_session_get(&call, &a.shared, false, &theirs), KV_E_NOT_FOUND));
    kv_call_done(&call);
}

Test(shared, the_policy_decides_for_sessions_and_for_transfers)
{
    struct kv_session_view a = make("s"), view;
    uint32_t right = 0;
    offload(a.id, 2, 1);
    put_policy("{" TIERS ",\"sharing\":{\"mode\":\"scope\",\"scopes\":[\"t\"]}}");
    cr_assert(eq(int, try_make(&rig.call, "s", "test-model", &view), KV_E_POLICY_DENIED));
    cr_assert(eq(int, try_make(&rig.call, "t", "test-model", &view), KV_OK));
    put_policy("{" TIERS ",\"sharing\":\"none\"}");
    cr_assert(eq(int, try_make(&rig.call, "t", "test-model", &view), KV_E_POLICY_DENIED));
    engine.shared = 1;
    cr_assert(eq(int, kvt_svc_restore(&rig.call, &engine, a.id, 0, 2, &right), KV_E_POLICY_DENIED));
    engine.shared = 0;
    cr_assert(eq(int, kvt_svc_restore(&rig.call, &engine, a.id, 0, 2, &right), KV_OK)); /* what is its own */
}

Test(shared, names_are_neither_empty_nor_too_long_and_stay_out_of_the_database)
{
    char longest[130];
    struct kv_session_view view;
    memset(longest, 'n', sizeof longest - 1);
    longest[129] = '\0';
    cr_assert(eq(int, try_make(&rig.call, longest, "m", &view), KV_E_INVALID_REQUEST));
    longest[128] = '\0';
    cr_assert(eq(int, try_make(&rig.call, longest, "m", &view), KV_OK));
    cr_assert(eq(int, try_make(&rig.call, "", "m", &view), KV_E_INVALID_REQUEST));
    cr_assert(eq(int, try_make(&rig.call, "a b", "m", &view), KV_E_INVALID_REQUEST));
    cr_assert(eq(int, kv_svc_session_get(&rig.call, &view.shared, false, &view), KV_OK));
    cr_assert(view.is_scope);
    cr_assert(eq(str, view.external_id, longest));
    cr_assert(eq(i64, kvt_db_number(&rig, "SELECT count(*) FROM kvrun.session s WHERE s::text LIKE '%nnnnnn%'"), 0));
}

Test(shared, a_scope_is_no_session_where_sessions_are_counted_or_listed)
{
    struct kv_session_view list[KV_MAX_PAGE_ITEMS], a = make("s");
    struct kv_page page = {.limit = 10};
    size_t count = 0;
    cr_assert(eq(int, kv_svc_session_list(&rig.call, &(struct kv_session_filter){0}, &page, list, &count), KV_OK));
    cr_assert(eq(sz, count, 1));
    cr_assert(same(&list[0].id, &a.id));
    page = (struct kv_page){.limit = 10};
    cr_assert(eq(int, kv_svc_session_list(&rig.call, &(struct kv_session_filter){.scopes = true}, &page, list, &count),
                 KV_OK));
    cr_assert(eq(sz, count, 1));
    cr_assert(same(&list[0].id, &a.shared));
}

/* --- what is said of it --- */

static uint64_t would(struct kv_erasure_new *in, uint64_t *ret_retained)
{
    struct kv_erasure_made *made = kv_alloc(sizeof *made);
    rig.call.dry_run = true;
    cr_assert(eq(int, kv_svc_erase(&rig.call, in, made), KV_OK), "%s", rig.call.info.text);
    rig.call.dry_run = false;
    uint64_t erased = made->would.scopes_erased;
    *ret_retained = made->would.scopes_retained;
    kv_free(made);
    return erased;
}

Test(shared, a_dry_run_says_which_scopes_would_go)
{
    struct kv_session_view a = make("s"), b = make("s"), alone = make(NULL);
    struct kv_erasure_new of_a = {.scope = KV_SCOPE_SESSION, .session = a.id, .basis = "other"}, of_none = of_a;
    struct kv_erasure_new all = {.scope = KV_SCOPE_TENANT, .tenant = rig.tenant, .basis = "other"};
    uint64_t retained = 0;
    of_none.session = alone.id;
    cr_assert(eq(u64, would(&of_a, &retained), 1));
    cr_assert(eq(u64, retained, 0));
    cr_assert(eq(u64, would(&of_none, &retained), 0));
    put_policy("{" TIERS ",\"sharing\":{\"mode\":\"scope\",\"on_erase\":\"retain\"}}");
    cr_assert(eq(u64, would(&of_a, &retained), 0));
    cr_assert(eq(u64, retained, 1));
    cr_assert(eq(u64, would(&all, &retained), 1));
    cr_assert(eq(u64, retained, 0));
    cr_assert(eq(str, (char *)(uintptr_t)state_of(b.id), "active"));
    cr_assert(eq(str, (char *)(uintptr_t)state_of(a.shared), "active"));
}

static json_t *payload_of(struct kv_id erasure)
{
    struct kv_buf payload;
    kv_buf_init(&payload, 1 << 20);
    cr_assert(eq(int, kv_svc_certificate(&rig.call, &erasure, KV_CERT_PAYLOAD, &payload), KV_OK), "%s",
              rig.call.info.text);
    json_t *json = json_loadb((char *)payload.data, payload.len, 0, NULL);
    kv_buf_done(&payload);
    cr_assert(json != NULL);
    return json;
}

static void check_shared(struct kv_id erasure, const char *list, struct kv_id scope)
{
    char id[KV_ID_TEXT_SIZE];
    const char *other = strcmp(list, "erased") == 0 ? "retained" : "erased";
    struct kv_buf bundle;
    json_t *payload = payload_of(erasure), *shared = json_object_get(payload, "shared");
    kv_id_text("ses", &scope, id);
    cr_assert(eq(sz, json_array_size(json_object_get(shared, list)), 1));
    cr_assert(eq(sz, json_array_size(json_object_get(shared, other)), 0));
    const json_t *one = json_array_get(json_object_get(shared, list), 0);
    cr_assert(eq(str, (char *)(uintptr_t)json_string_value(json_object_get(one, "scope")), id));
    cr_assert(kvt_svc_certificate_good(&rig.call, erasure, &bundle));
    kv_buf_done(&bundle);
    json_decref(payload);
}

Test(shared, certificates_say_what_went_along_and_what_stayed)
{
    struct kv_session_view a = make("s"), b = make("s"), c = make("s"), alone = make(NULL);
    put_policy("{" TIERS ",\"sharing\":{\"mode\":\"scope\",\"on_erase\":\"retain\"}}");
    check_shared(kvt_svc_erase(&rig.call, a.id).id, "retained", a.shared);
    put_policy("{" TIERS ",\"sharing\":\"scope\"}");
    check_shared(kvt_svc_erase(&rig.call, b.id).id, "erased", a.shared);
    check_shared(kvt_svc_erase(&rig.call, c.id).id, "erased", a.shared); /* before it was asked for */
    struct kv_erasure_view scope;
    bool existed = false;
    cr_assert(eq(int, kvt_svc_ask(&rig.call, a.shared, KVT_WAIT_S, &scope, &existed), KV_OK));
    json_t *payload = payload_of(scope.id);
    const json_t *kind = json_object_get(json_object_get(payload, "sub"), "kind");
    cr_assert(eq(str, (char *)(uintptr_t)json_string_value(kind), "scope"));
    cr_assert(json_object_get(payload, "shared") == NULL);
    json_decref(payload);
    payload = payload_of(kvt_svc_erase(&rig.call, alone.id).id);
    cr_assert(json_object_get(payload, "shared") == NULL);
    json_decref(payload);
}

/* --- erasing ----------------------------------------------------------------------------------------------------- */

Test(shared, erasing_one_session_takes_the_scope_along_and_others_recompute)
{
    struct kv_session_view a = make("s"), b = make("s");
    offload(a.id, 4, 2);
    offload(b.id, 4, 2);
    struct kv_erasure_view gone = erase(a.id);
    struct kv_erasure_view scope = await_erasure_of(a.shared);
    struct kv_buf bundle;
    cr_assert(kvt_svc_certificate_good(&rig.call, gone.id, &bundle));
    kv_buf_done(&bundle);
    cr_assert(kvt_svc_certificate_good(&rig.call, scope.id, &bundle));
    kv_buf_done(&bundle);
    cr_assert(eq(u32, restored(b.id, 4, 2), 2));
    engine.shared = 2;
    cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, b.id, 0, 4, KV_WAIT_DRAM), KV_E_BUSY)); /* two are erased */
    uint32_t leading = 9;
    cr_assert(eq(int, kvt_svc_lookup(&rig.call, &engine, b.id, 0, 4, &leading), KV_OK));
    cr_assert(eq(u32, leading, 0));
    engine.shared = 0;
    struct kv_session_view c = make("s");
    cr_assert(differ(&c.shared, &a.shared)); /* the name is free again */
    cr_assert(eq(u32, restored(c.id, 4, 4), 0));
}

Test(shared, a_retained_scope_stays_until_its_last_session_goes)
{
    put_policy("{" TIERS ",\"sharing\":{\"mode\":\"scope\",\"on_erase\":\"retain\"}}");
    struct kv_session_view a = make("s"), b = make("s");
    offload(a.id, 2, 2);
    erase(a.id);
    cr_assert(eq(str, (char *)(uintptr_t)state_of(a.shared), "active"));
    cr_assert(eq(u32, restored(b.id, 2, 2), 2));
    erase(b.id);
    await_erasure_of(a.shared);
    cr_assert(eq(i64, kvt_db_number(&rig, DUE), 0));
}

Test(shared, the_stricter_class_takes_the_scope_along)
{
    put_policy("{" TIERS ",\"sharing\":{\"mode\":\"scope\",\"on_erase\":\"retain\"},\"classes\":{\"p\":{\"sharing\":"
               "{\"on_erase\":\"cascade\"}}}}");
    struct kv_session_view a = make("s"), b = make("s"), c;
    struct kv_session_new in = {.model = {.id = "test-model", .revision = "1"}, .scope = "s", .class = "p"};
    bool existed = false;
    cr_assert(eq(int, kv_svc_session_create(&rig.call, &in, &c, &existed), KV_OK), "%s", rig.call.info.text);
    cr_assert(same(&a.shared, &c.shared));
    erase(b.id);
    cr_assert(eq(str, (char *)(uintptr_t)state_of(a.shared), "active"));
    erase(c.id);
    await_erasure_of(a.shared);
}

Test(shared, a_scope_can_be_erased_by_itself)
{
    struct kv_session_view a = make("s");
    offload(a.id, 3, 1);
    erase(a.shared);
    cr_assert(eq(u32, restored(a.id, 3, 1), 2));
    erase(a.id);
}

Test(shared, a_group_takes_the_scopes_of_its_sessions_along)
{
    struct kv_session_view made[4];
    bool existed = false;
    for (unsigned i = 0; i < 4; i++) {
        struct kv_session_new in = {.model = {.id = "test-model", .revision = "1"}, .scope = i < 2 ? "s" : "t"};
        in.labels.count = 1;
        snprintf(in.labels.items[0].name, sizeof in.labels.items[0].name, "user");
        snprintf(in.labels.items[0].value, sizeof in.labels.items[0].value, i < 3 ? "7" : "8");
        cr_assert(eq(int, kv_svc_session_create(&rig.call, &in, &made[i], &existed), KV_OK));
    }
    put_policy("{" TIERS ",\"sharing\":{\"mode\":\"scope\",\"on_erase\":\"retain\"}}");
    struct kv_erasure_new in = {.scope = KV_SCOPE_LABEL, .label_key = "user", .label_value = "7", .basis = "other"};
    struct kv_erasure_made *erased = kv_alloc(sizeof *erased);
    cr_assert(eq(int, kv_svc_erase(&rig.call, &in, erased), KV_OK), "%s", rig.call.info.text);
    cr_assert(eq(u64, erased->erasure.sessions, 4)); /* three sessions and the scope that only they had */
    await_erasure_of(made[0].shared);
    cr_assert(eq(str, (char *)(uintptr_t)state_of(made[2].shared), "active"));
    kv_free(erased);
}

Test(shared, a_tenant_takes_its_scopes_along)
{
    struct kv_session_view a = make("s");
    offload(a.id, 2, 1);
    struct kv_erasure_new in = {.scope = KV_SCOPE_TENANT, .tenant = rig.tenant, .basis = "contract"};
    struct kv_erasure_made *made = kv_alloc(sizeof *made);
    cr_assert(eq(int, kv_svc_erase(&rig.call, &in, made), KV_OK), "%s", rig.call.info.text);
    await_erasure_of(a.shared);
    await_erasure_of(a.id);
    struct kv_session_view b = make("s");
    cr_assert(differ(&b.shared, &a.shared));
    cr_assert(eq(u32, restored(b.id, 2, 1), 0));
    kv_free(made);
}

Test(shared, a_scope_past_its_time_goes_and_its_sessions_stay)
{
    struct kv_session_view a = make("s");
    offload(a.id, 3, 1);
    kvt_db_run(&rig, "UPDATE kvrun.session SET expires_at = created_at WHERE kind = 'scope'");
    for (int i = 0; i < 400 && strcmp(state_of(a.shared), "active") == 0; i++) {
        usleep(100000);
    }
    await_erasure_of(a.shared);
    cr_assert(eq(u32, restored(a.id, 3, 1), 2));
}

/* --- nobody leaves one behind ------------------------------------------------------------------------------------ */

struct alone_tx {
    struct kv_id session;
    bool blocked;
};

static KV_RC erase_alone(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    const struct alone_tx *tx = ctx;
    struct kv_store_erasure row = {.tenant = rig.tenant,
                                   .session = tx->session,
                                   .state = tx->blocked ? KV_ERASURE_NEEDS_APPROVAL : KV_ERASURE_REQUESTED,
                                   .basis = "other",
                                   .requested_role = "system"};
    row.at_us[KV_ERASURE_REQUESTED] = row.at_us[row.state] = kv_env_system.realtime_us(NULL);
    KV_TRY(kv_id_new(&kv_env_system, &row.id));
    KV_TRY(kv_store_revocation_next(pg, info, &row.revocation_seq));
    KV_TRY(kv_store_erasure_insert(pg, &row, info));
    return svc_erase_record(rig.svc, pg, &row, info);
}

/* Whoever erases sessions by a statement of his own does not get past the schema. */
Test(shared, an_erasure_that_forgets_the_scope_does_not_commit)
{
    struct kv_session_view a = make("s"), without = make(NULL);
    struct alone_tx tx = {.session = a.id};
    cr_assert(
        eq(int, kv_pg_tx(rig.call.pg, KV_TX_ERASE_REQUEST, erase_alone, &tx, &rig.info, NULL), KV_E_INVALID_STATE));
    cr_assert(eq(str, (char *)(uintptr_t)state_of(a.id), "active"));
    tx.session = without.id; /* the control */
    cr_assert(eq(int, kv_pg_tx(rig.call.pg, KV_TX_ERASE_REQUEST, erase_alone, &tx, &rig.info, NULL), KV_OK), "%s",
              rig.info.text);
}

/* Nor does whoever comes to the database by another way. */
Test(shared, a_session_that_is_erased_by_hand_does_not_leave_its_scope_behind)
{
    struct kv_session_view a = make("s"), without = make(NULL);
    char sql[700], hex[33], erasure[33];
    static const char change[] =
        "DO $do$ BEGIN SET search_path = ''; UPDATE kvrun.session SET state = 'erasing', revoked_seq = 1, erasure_id ="
        " '\\x%s' WHERE id = '\\x%s'; SET CONSTRAINTS ALL IMMEDIATE; RAISE EXCEPTION 'nothing held it up';"
        " EXCEPTION WHEN integrity_constraint_violation THEN PERFORM 1; WHEN raise_exception THEN"
        " UPDATE kvrun.cluster SET next_directory_slot = next_directory_slot + 1; END $do$";
    struct kv_erasure_view any = erase(make(NULL).id);
    long long before = kvt_db_number(&rig, "SELECT next_directory_slot FROM kvrun.cluster");
    kv_hex_encode(any.id.b, 16, erasure);
    kv_hex_encode(a.id.b, 16, hex);
    snprintf(sql, sizeof sql, change, erasure, hex);
    kvt_db_run(&rig, sql);
    cr_assert(eq(i64, kvt_db_number(&rig, "SELECT next_directory_slot FROM kvrun.cluster"), before));
    kv_hex_encode(without.id.b, 16, hex); /* the control */
    snprintf(sql, sizeof sql, change, erasure, hex);
    kvt_db_run(&rig, sql);
    cr_assert(eq(i64, kvt_db_number(&rig, "SELECT next_directory_slot FROM kvrun.cluster"), before + 1));
}

/* An erasure that waits keeps the scope. When it goes on, the scope is erased before the session's root is. */
Test(shared, what_was_blocked_takes_its_scope_along_when_it_goes_on)
{
    struct kv_session_view a = make("s");
    struct alone_tx tx = {.session = a.id, .blocked = true};
    offload(a.id, 2, 1);
    cr_assert(eq(int, kv_pg_tx(rig.call.pg, KV_TX_ERASE_REQUEST, erase_alone, &tx, &rig.info, NULL), KV_OK), "%s",
              rig.info.text);
    cr_assert(eq(str, (char *)(uintptr_t)state_of(a.shared), "active"));
    cr_assert(eq(i64, kvt_db_number(&rig, DUE), 0));
    kvt_db_run(&rig, "UPDATE kvrun.erasure SET state = 'requested' WHERE state = 'needs_approval'");
    for (int i = 0; i < 400 && strcmp(state_of(a.shared), "active") == 0; i++) {
        usleep(100000);
    }
    await_erasure_of(a.shared);
    await_erasure_of(a.id);
    cr_assert(eq(i64,
                 kvt_db_number(&rig, "SELECT count(*) FROM kvrun.erasure e, kvrun.erasure s, kvrun.session r"
                                     " WHERE r.id = e.session_id AND s.session_id = r.scope_id"
                                     " AND s.rekeyed_at <= e.rekeyed_at"),
                 1));
}

/* --- a session that comes while the scope goes -------------------------------------------------------------------- */

#define CUT_OFF                                                                              \
    "SELECT count(*) FROM kvrun.session r JOIN kvrun.session s ON s.id = r.scope_id WHERE r" \
    ".state = 'active' AND s.state <> 'active'"

struct coming {
    struct kv_id scope, last; /* the session that leaves */
    bool naive;               /* looks, and does not hold what it saw */
    struct kv_call call;      /* of the one that leaves */
    pthread_t thread;
    _Atomic bool left;
    enum kv_err rc;
};

static void *leave_now(void *arg)
{
    struct coming *coming = arg;
    struct kv_erasure_new in = {.scope = KV_SCOPE_SESSION, .session = coming->last, .basis = "other"};
    struct kv_erasure_made *made = kv_alloc(sizeof *made);
    coming->rc = kv_svc_erase(&coming->call, &in, made);
    coming->left = true;
    kv_free(made);
    return NULL;
}

static KV_RC refer(struct kv_pg *pg, struct coming *coming, struct kv_errinfo *info)
{
    uint8_t hmac[32];
    char sql[256], hex[33];
    kv_hex_encode(coming->scope.b, 16, hex);
    for (size_t i = 0; i < sizeof hmac; i++) {
        snprintf(sql, sizeof sql, "SELECT get_byte(external_hmac, %zu) FROM kvrun.session WHERE id = '\\x%s'", i, hex);
        hmac[i] = (uint8_t)kvt_db_number(&rig, sql);
    }
    struct kv_id found;
    return coming->naive ? KV_OK : kv_store_scope_refer(pg, &rig.tenant, hmac, info, &found);
}

/* Between what it saw and what it makes of it, the last session leaves. */
static KV_RC come(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct coming *coming = ctx;
    struct kv_store_session row = {.tenant = rig.tenant, .shared = coming->scope, .model_id = "test-model"};
    row.created_us = kv_env_system.realtime_us(NULL);
    KV_TRY(kv_id_new(&kv_env_system, &row.id));
    KV_TRY(refer(pg, coming, info));
    cr_assert(eq(int, pthread_create(&coming->thread, NULL, leave_now, coming), 0));
    for (int i = 0; i < (coming->naive ? 200 : 10) && !coming->left; i++) {
        usleep(100000);
    }
    cr_expect(coming->left == coming->naive, "who refers to a scope is waited for");
    return kv_store_session_insert(pg, &row, info);
}

static int64_t cut_off(bool naive)
{
    put_policy("{" TIERS ",\"sharing\":{\"mode\":\"scope\",\"on_erase\":\"retain\"}}");
    struct kv_session_view a = make("s");
    static struct coming coming;
    coming = (struct coming){.scope = a.shared, .last = a.id, .naive = naive};
    coming.call = kvt_svc_call(&rig, rig.tenant, KV_ROLE_TENANT_ADMIN);
    cr_assert(eq(int, kv_pg_tx(rig.call.pg, KV_TX_SESSION_CREATE, come, &coming, &rig.info, NULL), KV_OK), "%s",
              rig.info.text);
    cr_assert(eq(int, pthread_join(coming.thread, NULL), 0));
    cr_assert(eq(int, coming.rc, KV_OK), "%s", coming.call.info.text);
    kv_call_done(&coming.call);
    return kvt_db_number(&rig, CUT_OFF);
}

Test(shared, a_session_that_refers_is_waited_for_and_keeps_the_scope)
{
    cr_assert(eq(i64, cut_off(false), 0));
    cr_assert(eq(i64, kvt_db_number(&rig, DUE), 0));
}

Test(shared, without_the_lock_a_session_would_refer_to_a_scope_that_goes)
{
    cr_assert(eq(i64, cut_off(true), 1));
}

#define COMERS 3
#define ROUNDS 12

static void *come_and_go(void *arg)
{
    struct kv_call *call = arg;
    struct kv_erasure_made *made = kv_alloc(sizeof *made);
    for (int i = 0; i < ROUNDS; i++) {
        struct kv_session_view view;
        enum kv_err rc = try_make(call, "s", "test-model", &view);
        cr_assert(eq(int, rc, KV_OK), "%s", call->info.text);
        struct kv_erasure_new in = {.scope = KV_SCOPE_SESSION, .session = view.id, .basis = "other"};
        cr_assert(eq(int, kv_svc_erase(call, &in, made), KV_OK), "%s", call->info.text);
    }
    kv_free(made);
    return NULL;
}

Test(shared, many_come_and_go_at_once_and_no_scope_is_left)
{
    struct kv_call calls[COMERS];
    pthread_t threads[COMERS];
    put_policy("{" TIERS ",\"sharing\":{\"mode\":\"scope\",\"on_erase\":\"retain\"}}");
    for (size_t i = 0; i < COMERS; i++) {
        calls[i] = kvt_svc_call(&rig, rig.tenant, KV_ROLE_TENANT_ADMIN | KV_ROLE_ENGINE);
        cr_assert(eq(int, pthread_create(&threads[i], NULL, come_and_go, &calls[i]), 0));
    }
    for (size_t i = 0; i < COMERS; i++) {
        cr_assert(eq(int, pthread_join(threads[i], NULL), 0));
        kv_call_done(&calls[i]);
    }
    cr_assert(eq(i64, kvt_db_number(&rig, CUT_OFF), 0));
    cr_assert(eq(i64, kvt_db_number(&rig, "SELECT count(*) FROM kvrun.session WHERE state = 'active'"), 0));
}

/* --- holds -------------------------------------------------------------------------------------------------------- */

static struct kv_hold_view hold(struct kv_id session)
{
    struct kv_call call = kvt_svc_call(&rig, rig.tenant, KV_ROLE_SECURITY_OFFICER);
    struct kv_hold_new in = {.scope = KV_HOLD_SESSION, .session = session, .reason = "r"};
    struct kv_hold_view view;
    in.expires_us = kv_env_system.realtime_us(NULL) + UINT64_C(3600000000);
    cr_assert(eq(int, kv_svc_hold_create(&call, &in, &view), KV_OK), "%s", call.info.text);
    kv_call_done(&call);
    return view;
}

static void release(struct kv_id id)
{
    struct kv_call call = kvt_svc_call(&rig, rig.tenant, KV_ROLE_SECURITY_OFFICER);
    struct kv_hold_view view;
    struct kv_approval_view approval;
    cr_assert(eq(int, kv_svc_hold_release(&call, &id, &view, &approval), KV_OK), "%s", call.info.text);
    kv_call_done(&call);
}

#define HOLDS "{" TIERS ",\"sharing\":\"scope\",\"hold\":{\"allowed\":true}}"

Test(shared, what_a_held_session_shares_is_held_with_it)
{
    put_policy(HOLDS);
    struct kv_session_view a = make("s"), b = make("s");
    struct kv_erasure_view scope;
    bool existed = false;
    offload(a.id, 2, 1);
    struct kv_hold_view held = hold(b.id);
    check_shared(erase(a.id).id, "retained", a.shared); /* which it would have taken along */
    cr_assert(eq(int, kvt_svc_ask(&rig.call, a.shared, 0, &scope, &existed), KV_OK));
    cr_assert(existed);
    cr_assert(eq(int, scope.state, KV_ERASURE_BLOCKED_HOLD));
    cr_assert(eq(u32, restored(b.id, 2, 1), 0)); /* refused, and its key is there */
    release(held.row.id);
    await_erasure_of(a.shared);
    check_shared(erase(b.id).id, "erased", a.shared);
}

Test(shared, an_erasure_that_a_hold_blocks_takes_the_scope_along_afterwards)
{
    put_policy(HOLDS);
    struct kv_session_view a = make("s");
    struct kv_erasure_view view;
    bool existed = false;
    offload(a.id, 2, 1);
    struct kv_hold_view held = hold(a.id);
    cr_assert(eq(int, kvt_svc_ask(&rig.call, a.id, 0, &view, &existed), KV_OK));
    cr_assert(eq(int, view.state, KV_ERASURE_BLOCKED_HOLD));
    cr_assert(eq(str, (char *)(uintptr_t)state_of(a.shared), "active"));
    release(held.row.id);
    for (int i = 0; i < 400 && strcmp(state_of(a.shared), "active") == 0; i++) {
        usleep(100000);
    }
    await_erasure_of(a.shared);
    await_erasure_of(a.id);
    check_shared(view.id, "erased", a.shared);
}

/* --- crashes ------------------------------------------------------------------------------------------------------ */

#ifdef KV_FAULTS
/* The process ends at this point of the erasure that takes the scope along; the next one carries both out. */
static void check_crash(const char *point)
{
    struct kv_session_view a = make("s"), b = make("s");
    struct kv_erasure_new in = {.scope = KV_SCOPE_SESSION, .session = a.id, .basis = "other"};
    struct kv_erasure_made *made = kv_alloc(sizeof *made);
    offload(a.id, 3, 2);
    kv_fault_set(point);
    KV_IGNORE(kv_svc_erase(&rig.call, &in, made), "the fault may be in the answer, or in what comes after it");
    usleep(300000);
    kvt_engine_close(&engine);
    kvt_svc_restart(&rig);
    kv_fault_set(NULL);
    kvt_engine_open(&rig.call, &engine);
    struct kv_erasure_view gone = await_erasure_of(a.id);
    await_erasure_of(a.shared);
    check_shared(gone.id, "erased", a.shared);
    cr_assert(eq(u32, restored(b.id, 3, 2), 0), "%s", point);
    kv_free(made);
}

Test(shared, a_crash_after_the_request_leaves_no_scope_behind)
{
    check_crash("erase/requested=fail@1");
}

Test(shared, a_crash_before_the_rekey_leaves_no_scope_behind)
{
    check_crash("erase/staged=fail");
}

Test(shared, a_crash_after_the_rekey_leaves_no_scope_behind)
{
    check_crash("erase/rekeyed=fail@1");
}
#endif
