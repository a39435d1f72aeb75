/*
 * CERTIFIED: the certificate is built from what is stored with the job, signed, made a leaf of the tenant's log, and
 * bundled with its inclusion proof and a signed head that covers it. The JWS is stored before it becomes a leaf, and
 * the bundle once; asking again gives the same bytes.
 */
#include "server/service/erase_int.h"
#include "server/service/svc_metrics.h"

#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "dataplane/base/log.h"
#include "dataplane/base/mem.h"
#include "dataplane/crypto/hash.h"
#include "dataplane/crypto/selftest.h"
#include "kv_version.h"

#include <stdio.h>
#include <string.h>

/* Limits of erasures; their texts are in the certificate. The first holds where an instance was shut out by its lease,
 * the last unless the root was in declared hardware that leaves no remnants, all between them for each erasure. */
static const char *const limits[] = {"L5", "L1", "L2", "L3", "L4", "L7", "L9", "L10", "L8"};
#define LIMITS (sizeof limits / sizeof limits[0])

/* What destroyed the root is in the batch, in its provider's words: a server that goes on with it may have another one.
 */
static bool in_hardware(const struct kv_store_batch *batch)
{
    return strcmp(batch->provider, kv_roe_pkcs11.name) == 0 &&
           strncmp(batch->provider_detail, KV_ROE_HARDWARE, sizeof KV_ROE_HARDWARE - 1) == 0;
}

size_t kv_svc_erasure_limits(const char *const **ret_codes)
{
    *ret_codes = limits + 1;
    return LIMITS - 1;
}

/* An eighth of the new one: what the last dozen took. */
static void note_duration(struct kv_svc *svc, uint64_t duration_us)
{
    uint64_t usual = atomic_load(&svc->erase_usual_us);
    atomic_store(&svc->erase_usual_us, usual == 0 ? duration_us : usual - usual / 8 + duration_us / 8);
}

/* Both for as long as the facts are used. */
struct shown_anchor {
    struct kv_anchor_record record;
    struct kv_cert_anchor fact;
};

struct certify_tx {
    struct erase_round *round;
    struct kv_store_erasure *job;
    struct kv_store_batch batch;
    uint64_t request_index, destroy_index;
    struct kv_id certificate;
    struct kv_store_erasure_instance *parts; /* SVC_INSTANCES_MAX */
    struct kv_cert_instance *instances;      /* the same, as the certificate says it */
    size_t instance_count;
    bool expired; /* one of them */
};

/* --- the signed certificate -------------------------------------------------------------------------------------- */

/* The eraser holds certificates until it shows the root in force, so it is never from before their destruction. */
static void add_anchor(const struct kv_svc *svc, struct shown_anchor *anchor, struct kv_cert_facts *facts)
{
    if (svc_anchor_shown(svc, &anchor->record, &anchor->fact.kind)) {
        anchor->fact.root = anchor->record.root;
        anchor->fact.log_size = anchor->record.log_size;
        anchor->fact.log_root = anchor->record.log_root;
        anchor->fact.written_us = anchor->record.written_us;
        facts->anchor = &anchor->fact;
    }
}

static void fill_facts(const struct certify_tx *tx, const char *previous, const char *origin,
                       struct kv_cert_tier tiers[2], struct kv_cert_facts *facts)
{
    const struct kv_store_erasure *job = tx->job;
    const struct kv_svc *svc = tx->round->svc;
    struct kv_engine_stats stats;
    kv_engine_stats(svc->engine, &stats);
    tiers[0] = (struct kv_cert_tier){.name = "dram",
                                     .status = "sealed, key destroyed",
                                     .blocks = job->facts.dram_blocks,
                                     .bytes = job->facts.dram_bytes};
    tiers[1] = (struct kv_cert_tier){.name = "nvme",
                                     .status = "sealed, key destroyed",
                                     .blocks = job->facts.nvme_blocks,
                                     .bytes = job->facts.nvme_bytes};
    *facts = (struct kv_cert_facts){.jti = tx->certificate,
                                    .issued_us = erase_now_us(tx->round),
                                    .issuer = svc->issuer,
                                    .tenant = job->tenant,
                                    .session = job->session,
                                    .erasure = job->id,
                                    .slot = job->slot,
                                    .whole_tenant = job->whole_tenant,
                                    .sessions = job->sessions,
                                    .requested_us = job->at_us[KV_ERASURE_REQUESTED],
                                    .requester_role = job->requested_role,
                                    .requester_key = job->requested_by,
                                    .basis = job->basis,
                                    .reason_sha256 = job->reason_sha256,
                                    .tiers = tiers,
                                    .tier_count = 2,
                                    .blocks = job->facts.blocks,
                                    .bytes = job->facts.bytes,
                                    .sealer = "host",
                                    .provider = tx->batch.provider,
                                    .provider_detail = tx->batch.provider_detail,
                                    .old_root = tx->batch.old_root,
                                    .new_root = tx->batch.new_root,
                                    .destroyed_us = tx->batch.destroyed_us,
                                    .instances = tx->instances,
                                    .instance_count = tx->instance_count,
                                    /* One that did not open before proves nothing and is not counted. */
                                    .samples = job->facts.control_opened,
                                    .control_opened = job->facts.control_opened,
                                    .opened_after = job->facts.opened_after,
                                    .old_root_gone = (job->facts.checks & KV_ERASED_ROOT_GONE) != 0,
                                    .old_row_refused = (job->facts.checks & KV_ERASED_ROW_REFUSED) != 0,
                                    .slots_absent = (job->facts.checks & KV_ERASED_SLOTS_ABSENT) != 0,
                                    .verified_us = job->at_us[KV_ERASURE_VERIFIED],
                                    .assurance = in_hardware(&tx->batch) ? "E3" : "E2",
                                    .limits = tx->expired ? limits : limits + 1,
                                    .limit_count = LIMITS - (tx->expired ? 0 : 1) - (in_hardware(&tx->batch) ? 1 : 0),
                                    .log_origin = origin,
                                    .request_index = tx->request_index,
                                    .destroy_index = tx->destroy_index,
                                    .previous_sha256 = previous,
                                    .tool_version = KV_VERSION,
                                    .openssl_version = kv_crypto_version(),
                                    .cipher_backend = stats.cipher_name};
    memcpy(facts->block_root.b, job->facts.block_root, sizeof facts->block_root.b);
    memcpy(facts->sessions_root.b, job->sessions_root, sizeof facts->sessions_root.b);
    memcpy(facts->receipt_sha256, tx->batch.receipt_sha256, sizeof facts->receipt_sha256);
}

static KV_RC sign_certificate(const struct certify_tx *tx, const char *previous, const char *origin,
                              struct kv_buf *ret_jws)
{
    struct kv_cert_tier tiers[2];
    struct shown_anchor anchor = {0};
    struct kv_cert_facts *facts KV_CLEANUP(kv_freep) = kv_alloc(sizeof *facts);
    struct kv_buf payload;
    if (facts == NULL) {
        return KV_E_NO_MEMORY;
    }
    fill_facts(tx, previous, origin, tiers, facts);
    add_anchor(tx->round->svc, &anchor, facts);
    kv_buf_init(&payload, (size_t)KV_MAX_CERTIFICATE_BYTES);
    enum kv_err rc = kv_cert_payload(facts, &payload);
    if (rc == KV_OK) {
        rc = kv_cert_jws(kv_buf_bytes(&payload), tx->round->svc->cert_key, ret_jws);
    }
    kv_buf_done(&payload);
    return rc;
}

static KV_RC store_certificate(struct kv_pg *pg, struct certify_tx *tx, const char *previous, struct kv_bytes jws,
                               struct kv_errinfo *info)
{
    uint8_t hash[32], ref[SVC_REF_BYTES];
    char hex[KV_SHA256_HEX_SIZE];
    KV_TRY(kv_sha256(jws, hash));
    kv_hex_encode(hash, sizeof hash, hex);
    svc_ref(SVC_REF_CERTIFICATE, &tx->certificate, ref);
    struct kv_store_certificate certificate = {
        .id = tx->certificate, .jws = jws, .sha256 = hex, .previous_sha256 = previous};
    KV_TRY(kv_store_erasure_set_certificate(pg, &tx->job->id, &certificate, info));
    return kv_store_outbox_insert(pg, &tx->job->tenant, jws, KV_BYTES(ref, sizeof ref), erase_now_us(tx->round), info);
}

static KV_RC certificate_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct certify_tx *tx = ctx;
    char previous[KV_SHA256_HEX_SIZE];
    struct kv_store_log *log KV_CLEANUP(kv_freep) = kv_alloc(sizeof *log);
    if (log == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(kv_store_tenant_certificate_lock(pg, &tx->job->tenant, info, previous));
    KV_TRY(kv_store_log_get(pg, &tx->job->tenant, info, log));
    struct kv_buf jws;
    kv_buf_init(&jws, (size_t)KV_MAX_CERTIFICATE_BYTES);
    enum kv_err rc = sign_certificate(tx, previous, log->origin, &jws);
    if (rc == KV_OK) {
        rc = store_certificate(pg, tx, previous, kv_buf_bytes(&jws), info);
    }
    kv_buf_done(&jws);
    return rc;
}

static KV_RC leaf_of(struct erase_round *round, const struct kv_id *tenant, enum svc_ref kind, const struct kv_id *id,
                     uint64_t *ret_index)
{
    uint8_t ref[SVC_REF_BYTES];
    svc_ref(kind, id, ref);
    return kv_store_leaf_find(round->pg, tenant, KV_BYTES(ref, sizeof ref), &round->info, ret_index);
}

/* Who took part, as the transactions that fenced and purged left it. */
static KV_RC load_instances(struct certify_tx *tx)
{
    struct erase_round *round = tx->round;
    size_t count = 0;
    tx->instance_count = 0;
    KV_TRY(kv_store_erasure_instances(round->pg, &tx->job->id, 1, SVC_INSTANCES_MAX, &round->info, tx->parts, &count));
    for (size_t i = 0; i < count; i++) {
        const struct kv_store_erasure_instance *part = &tx->parts[i];
        if (part->fenced_how == KV_FENCED_NOT) {
            continue; /* it said what it had, and left before it was asked for more */
        }
        bool expired = part->fenced_how == KV_FENCED_EXPIRED || part->purged_how == KV_FENCED_EXPIRED;
        tx->expired = tx->expired || expired;
        tx->instances[tx->instance_count++] =
            (struct kv_cert_instance){.id = part->instance,
                                      .how = kv_fenced_how_name(expired ? KV_FENCED_EXPIRED : part->fenced_how),
                                      .fenced_us = part->fenced_us,
                                      .purged_us = part->purged_us};
    }
    if (tx->instance_count == 0) { /* fenced by a version that knew of no others */
        tx->instances[tx->instance_count++] = (struct kv_cert_instance){.id = round->svc->instance,
                                                                        .how = kv_fenced_how_name(KV_FENCED_SELF),
                                                                        .fenced_us = tx->job->at_us[KV_ERASURE_FENCED],
                                                                        .purged_us = tx->job->at_us[KV_ERASURE_PURGED]};
    }
    return KV_OK;
}

static KV_RC issue(struct erase_round *round, struct kv_store_erasure *job)
{
    struct kv_store_erasure_instance *parts KV_CLEANUP(kv_freep) = kv_alloc_array(SVC_INSTANCES_MAX, sizeof *parts);
    struct kv_cert_instance *instances KV_CLEANUP(kv_freep) = kv_alloc_array(SVC_INSTANCES_MAX, sizeof *instances);
    struct certify_tx tx = {.round = round, .job = job, .parts = parts, .instances = instances};
    if (parts == NULL || instances == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(load_instances(&tx));
    KV_TRY(svc_sequence(round->svc, round->pg, &round->info, NULL)); /* the leaves that it cites have their places */
    KV_TRY(leaf_of(round, &job->tenant, SVC_REF_REQUEST, &job->id, &tx.request_index));
    KV_TRY(leaf_of(round, &job->tenant, SVC_REF_DESTROY, &job->id, &tx.destroy_index));
    KV_TRY(kv_store_batch_get(round->pg, &job->batch, &round->info, &tx.batch));
    KV_TRY(kv_id_new(round->svc->env, &tx.certificate));
    return erase_tx(round, KV_TX_CERTIFICATE, certificate_tx, &tx, NULL);
}

/* --- the bundle -------------------------------------------------------------------------------------------------- */

struct bundle_tx {
    struct erase_round *round;
    struct kv_store_erasure *job;
    uint64_t index;
    struct kv_bytes bundle;
};

static KV_RC bundle_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct bundle_tx *tx = ctx;
    KV_TRY(kv_store_erasure_set_bundle(pg, &tx->job->id, tx->index, tx->bundle, info));
    KV_TRY(tx->job->whole_tenant ? kv_store_tenant_set_erased(pg, &tx->job->tenant, info)
                                 : kv_store_session_set_erased(pg, &tx->job->session, info));
    return kv_store_erasure_advance(pg, &tx->job->id, KV_ERASURE_VERIFIED, KV_ERASURE_CERTIFIED,
                                    erase_now_us(tx->round), info);
}

struct bundle_parts {
    struct kv_buf jws, note, text;
    struct kv_hash proof[KV_MERKLE_DEPTH_MAX];
    size_t proof_count;
};

static KV_RC build_bundle(struct erase_round *round, const struct kv_store_erasure *job, struct bundle_parts *parts,
                          uint64_t *ret_index)
{
    uint64_t size = 0, index = 0;
    KV_TRY(kv_store_erasure_jws(round->pg, &job->id, &round->info, &parts->jws));
    KV_TRY(leaf_of(round, &job->tenant, SVC_REF_CERTIFICATE, &job->certificate, &index));
    KV_TRY(kv_store_log_note(round->pg, &job->tenant, &round->info, &parts->note, &size));
    if (size <= index) {
        return kv_fail(&round->info, KV_E_BUSY, "no signed head covers the certificate yet");
    }
    KV_TRY(svc_inclusion_proof(round->pg, &job->tenant, index, size, &round->info, parts->proof, &parts->proof_count));
    KV_TRY(kv_cert_bundle(kv_buf_bytes(&parts->jws), index, parts->proof, parts->proof_count,
                          kv_buf_bytes(&parts->note), &parts->text));
    *ret_index = index;
    return KV_OK;
}

static KV_RC bundle(struct erase_round *round, struct kv_store_erasure *job)
{
    struct bundle_parts *parts KV_CLEANUP(kv_freep) = kv_alloc(sizeof *parts);
    if (parts == NULL) {
        return KV_E_NO_MEMORY;
    }
    kv_buf_init(&parts->jws, (size_t)KV_MAX_CERTIFICATE_BYTES);
    kv_buf_init(&parts->note, 16384);
    kv_buf_init(&parts->text, 4 * (size_t)KV_MAX_CERTIFICATE_BYTES);
    struct bundle_tx tx = {.round = round, .job = job};
    enum kv_err rc = build_bundle(round, job, parts, &tx.index);
    if (rc == KV_OK) {
        tx.bundle = kv_buf_bytes(&parts->text);
        bool in_doubt = false;
        rc = erase_tx(round, KV_TX_BUNDLE, bundle_tx, &tx, &in_doubt);
        if (in_doubt) { /* the next round may not see this job any more: who waits for it has to look now and again */
            svc_erasure_publish(round->svc, job);
        }
    }
    kv_buf_done(&parts->jws);
    kv_buf_done(&parts->note);
    kv_buf_done(&parts->text);
    return rc;
}

/* Hygiene: the claim does not rest on it, so a failure does not hold the certificate up. Done before the end, which is
 * not repeated. */
static void clean(struct erase_round *round, const struct kv_store_erasure *job)
{
    uint64_t blocks = 0;
    if (job->whole_tenant) {
        erase_tenant_clean(round, job);
        return;
    }
    enum kv_err rc = kv_engine_drop_scope(round->svc->engine, &job->session, &blocks);
    kv_log(rc == KV_OK ? KV_LOG_INFO : KV_LOG_WARN, "eraser", rc == KV_OK ? "cleaned" : "not-cleaned",
           KV_FID("session", "ses", &job->session), KV_FU("blocks", blocks));
}

static void publish_certificate(const struct erase_round *round, const struct kv_store_erasure *job)
{
    struct kv_event event = {.type = KV_EVENT_CERTIFICATE_ISSUED,
                             .tenant = job->tenant,
                             .session = job->session,
                             .subject = job->certificate,
                             .subject_prefix = "crt"};
    svc_publish(round->svc, &event);
}

KV_RC erase_certify(struct erase_round *round, struct kv_store_erasure *job)
{
    KV_TRY(kv_store_erasure_get(round->pg, &job->id, &round->info, job)); /* times and facts as they are stored */
    if (!job->has_jws) {
        KV_TRY(issue(round, job));
        KV_TRY(kv_store_erasure_get(round->pg, &job->id, &round->info, job));
    }
    if (KV_FAULT("erase/certificate")) {
        return KV_E_INTERNAL;
    }
    clean(round, job);
    KV_TRY(svc_sequence(round->svc, round->pg, &round->info, NULL));
    KV_TRY(bundle(round, job));
    erase_moved(round, job, KV_ERASURE_CERTIFIED);
    publish_certificate(round, job);
    svc_metrics_certified(round->svc, job, erase_now_us(round));
    note_duration(round->svc, erase_now_us(round) - job->at_us[KV_ERASURE_REQUESTED]);
    kv_log(KV_LOG_INFO, "eraser", "certified", KV_FID("erasure", "era", &job->id),
           KV_FID(job->whole_tenant ? "tenant" : "session", job->whole_tenant ? "ten" : "ses", erase_subject(job)));
    return KV_FAULT("erase/certified") ? KV_E_INTERNAL : KV_OK;
}
