/*
 * erasure.prove: for an auditor, what is left here of an erased session, tried with every key that this installation
 * can derive now. The control says that the trying works: stored blocks of a session that lives open the same way. Must
 * never call a proof what was not tried: no control, no proof.
 */
#include "server/service/erase_int.h"
#include "server/service/operation_run.h"
#include "server/service/svc_certificate.h"
#include "server/service/svc_operation.h"

#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"
#include "server/store/store_session.h"
#include "server/store/store_upgrade.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define TIERS 2
#define CLEANING_US UINT64_C(10000000) /* for what is being dropped right now */
#define CLEANING_LOOK_NS (100 * KV_MS_NS)
#define CONTROL_TRIES 256 /* sessions with blocks here that are looked at to find one of the tenant's that lives */

static const enum kv_tier_id tiers[TIERS] = {KV_TIER_DRAM, KV_TIER_NVME};
static const char *const tier_names[TIERS] = {"dram", "nvme"};

struct prove {
    struct svc_operation_run *run;
    uint32_t wanted; /* blocks of each tier */
    struct kv_store_erasure job;
    bool certificate_ok;
    uint64_t available[TIERS];
    struct erase_samples left[TIERS]; /* of the erased session */
    struct erase_tried tried[TIERS];
    struct kv_store_session control;
    struct erase_samples live; /* of `control` */
    uint32_t control_opened;
};

/* --- starting one ------------------------------------------------------------------------------------------------ */

KV_RC kv_svc_erasure_prove(struct kv_call *call, const struct kv_id *erasure, uint32_t samples,
                           struct kv_operation_view *ret_operation)
{
    char text[KV_ID_TEXT_SIZE], params[96];
    struct kv_certificate_view certificate;
    struct kv_buf bundle KV_CLEANUP(kv_buf_done);
    kv_buf_init(&bundle, 4 * (size_t)KV_MAX_CERTIFICATE_BYTES);
    KV_TRY(svc_may_work(call->svc, &call->info));
    KV_TRY(kv_svc_certificate_get(call, erasure, NULL, KV_CERT_BUNDLE, &certificate, &bundle));
    if (kv_id_is_zero(&certificate.session)) { /* nothing of one session is left that could be tried: no proof */
        return kv_fail(&call->info, KV_E_INVALID_STATE,
                       "this erasure is of all of a tenant; a proof tries what is left of one session");
    }
    kv_id_text("era", erasure, text);
    snprintf(params, sizeof params, "{\"erasure\":\"%s\",\"samples\":%" PRIu32 "}", text, samples);
    struct kv_audit_event event = {.op = KV_AUDIT_ERASE_PROVE,
                                   .tenant = call->who.tenant,
                                   .session = certificate.session,
                                   .actor = call->who.key,
                                   .actor_role = svc_role_name(call->who.roles),
                                   .subject = *erasure,
                                   .subject_prefix = "era"};
    struct svc_operation_new asked = {.kind = "erasure.prove", .params = params, .also = &event};
    return svc_operation_start(call, &asked, ret_operation);
}

/* --- what is here ------------------------------------------------------------------------------------------------ */

/* Ours, written above. */
static KV_RC read_params(struct prove *prove)
{
    char id[KV_ID_TEXT_SIZE];
    struct kv_id erasure;
    if (sscanf(prove->run->row.params, "{\"erasure\":\"%30[a-z0-9_]\",\"samples\":%" SCNu32 "}", id, &prove->wanted) !=
            2 ||
        kv_id_parse("era", id, &erasure) != KV_OK) {
        return kv_fail(&prove->run->info, KV_E_CORRUPT, "the operation's parameters are not ones of this kind");
    }
    return kv_store_erasure_get(prove->run->pg, &erasure, &prove->run->info, &prove->job);
}

static KV_RC take_samples(struct kv_svc *svc, const struct kv_id *session, enum kv_tier_id tier, uint32_t max,
                          struct erase_samples *samples)
{
    uint32_t lens[ERASE_PROVE_MAX], count = 0;
    max = max < ERASE_PROVE_MAX ? max : ERASE_PROVE_MAX;
    kv_buf_init(&samples->bytes, ERASE_SAMPLE_BYTES_MAX);
    KV_TRY(kv_engine_sample(svc->engine, session, tier, max, &samples->bytes, lens, &count));
    size_t at = 0;
    for (samples->count = 0; samples->count < count; samples->count++) {
        samples->headers[samples->count] = KV_BYTES(samples->bytes.data + at, lens[samples->count]);
        at += lens[samples->count];
    }
    return KV_OK;
}

static KV_RC take_left(struct prove *prove)
{
    struct kv_svc *svc = prove->run->svc;
    struct kv_scope_usage usage;
    KV_TRY(kv_engine_scope_usage(svc->engine, &prove->job.session, &usage));
    prove->available[0] = usage.dram_blocks;
    prove->available[1] = usage.nvme_blocks;
    for (unsigned i = 0; i < TIERS; i++) {
        KV_TRY(take_samples(svc, &prove->job.session, tiers[i], prove->wanted, &prove->left[i]));
    }
    return KV_OK;
}

/* A session of the same tenant that lives and has blocks here; control.id stays zero when none of the first has. */
static KV_RC take_control(struct prove *prove)
{
    struct kv_svc *svc = prove->run->svc;
    struct kv_id *scopes KV_CLEANUP(kv_freep) = kv_alloc_array(CONTROL_TRIES, sizeof *scopes);
    size_t count = 0;
    if (scopes == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(kv_engine_scopes(svc->engine, scopes, CONTROL_TRIES, &count));
    for (size_t i = 0; i < count && prove->live.count == 0; i++) {
        struct kv_store_session *row = &prove->control;
        enum kv_err rc = kv_store_session_get(prove->run->pg, &scopes[i], &prove->run->info, row);
        if (rc == KV_OK && row->state == KV_SESSION_ACTIVE && kv_id_equal(&row->tenant, &prove->job.tenant)) {
            erase_samples_done(&prove->live);
            rc = take_samples(svc, &row->id, KV_TIER_NONE, prove->wanted, &prove->live);
        }
        KV_TRY(rc == KV_E_NOT_FOUND ? KV_OK : rc);
    }
    return KV_OK;
}

/* --- trying ------------------------------------------------------------------------------------------------------ */

static KV_RC try_left(struct prove *prove, const struct kv_ktree_store *rows)
{
    struct erase_leaf leaf = {.open = false};
    enum kv_err rc = erase_leaf_open(&leaf, prove->run->svc, rows, &prove->job);
    for (unsigned i = 0; i < TIERS && rc == KV_OK; i++) {
        rc = erase_try_leaf(&leaf, &prove->job, &prove->left[i], &prove->tried[i]);
    }
    erase_leaf_done(&leaf);
    return rc;
}

static KV_RC try_control(struct prove *prove, const struct kv_ktree_store *rows)
{
    const struct kv_store_session *session = &prove->control;
    struct kv_secret *slot = NULL;
    if (prove->live.count == 0) {
        return KV_OK;
    }
    enum kv_err rc = kv_ktree_slot(prove->run->svc->tree, rows, &session->tree, session->directory_slot, session->slot,
                                   false, &slot);
    if (rc == KV_E_SESSION_ERASED) {
        return KV_OK; /* since a moment ago: no control, and that is what is said */
    }
    struct kv_store_erasure as_job = {.tenant = session->tenant, .session = session->id};
    if (rc == KV_OK) {
        rc = erase_samples_try(&prove->live, slot, &as_job, &prove->control_opened);
    }
    kv_secret_free(slot);
    return rc;
}

static KV_RC prove_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct prove *prove = ctx;
    struct kv_store_kroot kroot = {0};
    KV_TRY(kv_store_kroot_share(pg, info, &kroot));
    enum kv_err used = svc_root_use(prove->run->svc, &kroot, info);
    kv_store_kroot_done(&kroot);
    KV_TRY(used);
    struct svc_tree_store store = {.pg = pg, .info = info};
    struct kv_ktree_store rows = svc_tree_store(&store);
    KV_TRY(try_left(prove, &rows));
    return try_control(prove, &rows);
}

/* Signature, inclusion and claims of the bundle that was issued, and that it is this erasure's. */
static KV_RC check_certificate(struct prove *prove)
{
    struct kv_buf bundle KV_CLEANUP(kv_buf_done);
    struct kv_cert_report report = {0};
    char erasure[KV_ID_TEXT_SIZE];
    bool is_bundle = false;
    kv_buf_init(&bundle, 4 * (size_t)KV_MAX_CERTIFICATE_BYTES);
    KV_TRY(kv_store_erasure_bundle(prove->run->pg, &prove->job.id, &prove->run->info, &bundle));
    KV_TRY(kv_svc_certificate_verify(prove->run->svc, kv_buf_bytes(&bundle), &prove->run->info, &report, &is_bundle));
    kv_id_text("era", &prove->job.id, erasure);
    prove->certificate_ok = report.ok && is_bundle && report.payload.data != NULL &&
                            strstr((const char *)report.payload.data, erasure) != NULL;
    kv_buf_done(&report.payload);
    return KV_OK;
}

/* --- what came of it --------------------------------------------------------------------------------------------- */

static const char *verdict_of(const struct prove *prove, bool *ret_ok)
{
    uint64_t read = prove->left[0].count + prove->left[1].count;
    uint64_t opened = (uint64_t)prove->tried[0].opened + prove->tried[1].opened;
    *ret_ok = false;
    if (opened > 0) {
        return "opened";
    }
    if (!prove->certificate_ok) {
        return "certificate_invalid";
    }
    if (read == 0 && prove->available[0] + prove->available[1] > 0) {
        return "unreadable";
    }
    if (prove->live.count > 0 && prove->control_opened == 0) {
        return "control_failed";
    }
    if (read > 0 && prove->control_opened == 0) {
        return "no_control";
    }
    *ret_ok = true;
    return read == 0 ? "nothing_left" : "nothing_opened";
}

static void put_tiers(const struct prove *prove, struct kv_buf *out)
{
    kv_buf_text(out, "\"tiers\":[");
    for (unsigned i = 0; i < TIERS; i++) {
        kv_buf_printf(out, "%s{\"available\":%" PRIu64 ",\"name\":\"%s\",\"opened\":%" PRIu32 ",\"read\":%zu}",
                      i == 0 ? "" : ",", prove->available[i], tier_names[i], prove->tried[i].opened,
                      prove->left[i].count);
    }
    kv_buf_text(out, "]");
}

static KV_RC finish(struct prove *prove)
{
    struct svc_operation_run *run = prove->run;
    char certificate[KV_ID_TEXT_SIZE], erasure[KV_ID_TEXT_SIZE], session[KV_ID_TEXT_SIZE], instance[KV_ID_TEXT_SIZE];
    struct kv_buf out KV_CLEANUP(kv_buf_done);
    bool ok = false;
    const char *verdict = verdict_of(prove, &ok);
    uint32_t keys = prove->tried[0].keys > prove->tried[1].keys ? prove->tried[0].keys : prove->tried[1].keys;
    kv_id_text("crt", &prove->job.certificate, certificate);
    kv_id_text("era", &prove->job.id, erasure);
    kv_id_text("ses", &prove->job.session, session);
    kv_id_text("ins", &run->svc->instance, instance);
    kv_buf_init(&out, sizeof run->row.response - 1);
    kv_buf_printf(&out,
                  "{\"certificate\":\"%s\",\"certificate_ok\":%s,\"control_opened\":%" PRIu32
                  ",\"control_read\":%zu,\"erasure\":\"%s\",\"instance\":\"%s\",\"keys_tried\":%" PRIu32
                  ",\"ok\":%s,\"session\":\"%s\",",
                  certificate, prove->certificate_ok ? "true" : "false", prove->control_opened, prove->live.count,
                  erasure, instance, keys, ok ? "true" : "false", session);
    put_tiers(prove, &out);
    kv_buf_printf(&out, ",\"verdict\":\"%s\"}", verdict);
    KV_TRY(kv_buf_check(&out));
    snprintf(run->row.response, sizeof run->row.response, "%s", (const char *)out.data);
    snprintf(run->row.phase, sizeof run->row.phase, "trying");
    snprintf(run->row.unit, sizeof run->row.unit, "blocks");
    run->row.done_units = prove->left[0].count + prove->left[1].count;
    run->done = true;
    return KV_OK;
}

/* Right after its certificate what is left goes while it is being tried: then an answer that says that nothing could be
 * tried, or compared, is of a moment, and one a little later says more. */
static KV_RC comes_too_soon(struct prove *prove, bool *ret_soon)
{
    struct svc_operation_run *run = prove->run;
    struct kv_svc *svc = run->svc;
    struct kv_store_clean cleans[SVC_INSTANCES_MAX];
    const struct kv_store_ids one = {.ids = &prove->job.id, .count = 1};
    size_t count = 0;
    bool ok = false;
    const char *verdict = verdict_of(prove, &ok);
    uint64_t now_us = svc->env->realtime_us(svc->env->ctx);
    *ret_soon = false;
    if ((strcmp(verdict, "no_control") != 0 && strcmp(verdict, "unreadable") != 0) ||
        now_us > run->row.started_us + CLEANING_US) {
        return KV_OK;
    }
    KV_TRY(kv_store_cleans(run->pg, &one, SVC_INSTANCES_MAX, &run->info, cleans, &count));
    bool cleaned = false;
    for (size_t i = 0; i < count; i++) {
        cleaned = cleaned || kv_id_equal(&cleans[i].instance, &svc->instance);
    }
    if (!cleaned) {
        *ret_soon = true;
        snprintf(run->row.phase, sizeof run->row.phase, "cleaning");
        svc_sleep(svc, CLEANING_LOOK_NS);
    }
    return KV_OK;
}

static KV_RC prove_all(struct prove *prove)
{
    bool soon = false;
    struct svc_operation_run *run = prove->run;
    KV_TRY(read_params(prove));
    KV_TRY(take_left(prove));
    KV_TRY(take_control(prove));
    KV_TRY(kv_pg_tx(run->pg, KV_TX_ERASE_PROVE, prove_tx, prove, &run->info, NULL));
    KV_TRY(check_certificate(prove));
    if (KV_FAULT("erase/prove-opens")) {
        prove->tried[0].opened = 1;
    }
    if (KV_FAULT("erase/prove-control")) {
        prove->control_opened = 0;
    }
    KV_TRY(comes_too_soon(prove, &soon));
    return soon ? KV_OK : finish(prove);
}

KV_RC svc_run_erasure_prove(struct svc_operation_run *run)
{
    struct prove *prove KV_CLEANUP(kv_freep) = kv_alloc(sizeof *prove);
    if (prove == NULL) {
        return KV_E_NO_MEMORY;
    }
    prove->run = run;
    enum kv_err rc = prove_all(prove);
    for (unsigned i = 0; i < TIERS; i++) {
        erase_samples_done(&prove->left[i]);
    }
    erase_samples_done(&prove->live);
    return rc;
}
