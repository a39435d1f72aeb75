/*
 * The statement that follows a certificate: made when every instance that may have had ciphertext has dropped it, from
 * what is stored of that alone, signed, made a leaf of the tenant's log, and bundled with its proof. As with the
 * certificate its bytes are stored before they become a leaf, and the bundle once. Any instance does it; the rows'
 * locks give them turns. Must never be made while one is missing.
 */
#include "server/service/erase_int.h"
#include "server/service/erase_request.h"
#include "server/service/svc_entries.h"
#include "server/service/svc_proof.h"

#include "audit/upgrade.h"
#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "dataplane/base/log.h"
#include "dataplane/base/mem.h"
#include "kv_version.h"
#include "server/store/store_upgrade.h"

#include <string.h>

#define AT_ONCE 64u
#define MISSING_MAX ((size_t)1024)
#define PARTS_MAX ((size_t)AT_ONCE * KV_UPGRADE_CONFIRMED_MAX)
#define NOTE_BYTES_MAX 16384u
#define BUNDLE_BYTES_MAX (4 * (size_t)KV_MAX_CERTIFICATE_BYTES)

/* --- signing ------------------------------------------------------------------------------------------------------ */

/* Some that are due, in one transaction. Arrays of AT_ONCE, and of what belongs to them. */
struct signing {
    struct kv_svc *svc;
    struct kv_id due[AT_ONCE], ready[AT_ONCE], waiting[AT_ONCE];
    size_t due_count, ready_count, waiting_count;
    struct kv_store_missing missing[MISSING_MAX];
    struct kv_store_clean cleans[PARTS_MAX];
    struct kv_store_closed closed[PARTS_MAX];
    size_t missing_count, clean_count, closed_count;
    struct kv_upgrade_confirmed confirmed[KV_UPGRADE_CONFIRMED_MAX]; /* of the one that is being made */
    struct kv_upgrade_closed closes[KV_UPGRADE_CONFIRMED_MAX];
    struct svc_entries leaves;
};

static bool is_missing(const struct signing *signing, const struct kv_id *erasure)
{
    for (size_t i = 0; i < signing->missing_count; i++) {
        if (kv_id_equal(&signing->missing[i].erasure, erasure)) {
            return true;
        }
    }
    for (size_t i = 0; i < signing->closed_count; i++) { /* it left and was not heard of: an end nobody saw */
        if (kv_id_equal(&signing->closed[i].erasure, erasure) && signing->closed[i].at_us == 0) {
            return true;
        }
    }
    /* A list that is full may have ended before this one's turn. */
    return signing->missing_count == MISSING_MAX || signing->clean_count == PARTS_MAX ||
           signing->closed_count == PARTS_MAX;
}

static KV_RC sort_due(struct signing *signing, struct kv_pg *pg, struct kv_errinfo *info)
{
    const struct kv_store_ids due = {.ids = signing->due, .count = signing->due_count};
    KV_TRY(kv_store_missing(pg, &due, MISSING_MAX, info, signing->missing, &signing->missing_count));
    KV_TRY(kv_store_cleans(pg, &due, PARTS_MAX, info, signing->cleans, &signing->clean_count));
    KV_TRY(kv_store_closed(pg, &due, PARTS_MAX, info, signing->closed, &signing->closed_count));
    for (size_t i = 0; i < signing->due_count; i++) {
        if (is_missing(signing, &signing->due[i])) {
            signing->waiting[signing->waiting_count++] = signing->due[i];
        } else {
            signing->ready[signing->ready_count++] = signing->due[i];
        }
    }
    return KV_OK;
}

static KV_RC fill_facts(struct signing *signing, const struct kv_store_erasure *job, struct kv_upgrade_facts *facts)
{
    for (size_t i = 0; i < signing->clean_count; i++) {
        const struct kv_store_clean *clean = &signing->cleans[i];
        if (!kv_id_equal(&clean->erasure, &job->id)) {
            continue;
        }
        if (facts->confirmed_count == KV_UPGRADE_CONFIRMED_MAX) {
            return KV_E_LIMIT;
        }
        signing->confirmed[facts->confirmed_count++] =
            (struct kv_upgrade_confirmed){.instance = clean->instance, .folder = clean->folder, .at_us = clean->at_us};
    }
    for (size_t i = 0; i < signing->closed_count; i++) {
        const struct kv_store_closed *closed = &signing->closed[i];
        if (!kv_id_equal(&closed->erasure, &job->id)) {
            continue;
        }
        if (facts->closed_count == KV_UPGRADE_CONFIRMED_MAX) {
            return KV_E_LIMIT;
        }
        signing->closes[facts->closed_count++] = (struct kv_upgrade_closed){
            .instance = closed->instance, .how = closed->ended ? "ended" : "acked", .at_us = closed->at_us};
    }
    return KV_OK;
}

static KV_RC make_jws(struct signing *signing, const struct kv_store_erasure *job, struct kv_bytes certificate,
                      struct kv_store_upgrade *upgrade, struct kv_buf *jws)
{
    struct kv_svc *svc = signing->svc;
    struct kv_upgrade_facts facts = {.issuer = svc->issuer,
                                     .certificate = certificate,
                                     .certificate_index = (uint64_t)job->certificate_index,
                                     .confirmed = signing->confirmed,
                                     .closed = signing->closes,
                                     .tool_version = KV_VERSION};
    struct kv_buf payload KV_CLEANUP(kv_buf_done);
    kv_buf_init(&payload, (size_t)KV_MAX_CERTIFICATE_BYTES);
    KV_TRY(fill_facts(signing, job, &facts));
    KV_TRY(kv_id_new(svc->env, &facts.jti));
    facts.issued_us = svc->env->realtime_us(svc->env->ctx);
    KV_TRY(kv_upgrade_payload(&facts, &payload));
    *upgrade = (struct kv_store_upgrade){.erasure = job->id, .id = facts.jti, .issued_us = facts.issued_us};
    return kv_upgrade_jws(kv_buf_bytes(&payload), svc->cert_key, jws);
}

static KV_RC sign_one(struct signing *signing, struct kv_pg *pg, const struct kv_id *erasure, struct kv_errinfo *info)
{
    uint8_t ref[SVC_REF_BYTES];
    struct kv_store_upgrade upgrade;
    struct kv_buf certificate KV_CLEANUP(kv_buf_done), jws KV_CLEANUP(kv_buf_done);
    struct kv_store_erasure *job KV_CLEANUP(kv_freep) = kv_alloc(sizeof *job);
    kv_buf_init(&certificate, (size_t)KV_MAX_CERTIFICATE_BYTES);
    kv_buf_init(&jws, (size_t)KV_MAX_CERTIFICATE_BYTES);
    if (job == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(kv_store_erasure_get(pg, erasure, info, job));
    KV_TRY(kv_store_erasure_jws(pg, erasure, info, &certificate));
    enum kv_err rc = make_jws(signing, job, kv_buf_bytes(&certificate), &upgrade, &jws);
    if (rc == KV_E_INVALID_STATE || rc == KV_E_LIMIT) { /* of this one alone: the certificate stands without it */
        kv_log(KV_LOG_WARN, "janitor", "no-statement", KV_FID("erasure", "era", erasure), KV_FRC(rc));
        signing->waiting[signing->waiting_count++] = *erasure;
        return KV_OK;
    }
    KV_TRY(rc);
    KV_TRY(kv_store_upgrade_set_jws(pg, &upgrade, kv_buf_bytes(&jws), info));
    svc_ref(SVC_REF_UPGRADE, &upgrade.id, ref);
    return svc_entries_leaf(&signing->leaves, &job->tenant, kv_buf_bytes(&jws), ref);
}

static KV_RC sign_some(struct signing *signing, struct kv_pg *pg, struct kv_errinfo *info)
{
    uint64_t now_us = signing->svc->env->realtime_us(signing->svc->env->ctx);
    KV_TRY(kv_store_upgrades_due(pg, false, now_us, AT_ONCE, info, signing->due, &signing->due_count));
    KV_TRY(sort_due(signing, pg, info));
    for (size_t i = 0; i < signing->ready_count; i++) {
        KV_TRY(sign_one(signing, pg, &signing->ready[i], info));
    }
    const struct kv_store_ids waiting = {.ids = signing->waiting, .count = signing->waiting_count};
    KV_TRY(waiting.count == 0 ? KV_OK : kv_store_upgrades_put_off(pg, &waiting, now_us, info));
    return svc_entries_insert(&signing->leaves, pg, info);
}

static KV_RC sign_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct signing *signing = ctx;
    struct kv_svc *svc = signing->svc;
    memset(signing, 0, sizeof *signing); /* whichever try this is */
    signing->svc = svc;
    enum kv_err rc = svc_entries_init(&signing->leaves, signing->svc->env, AT_ONCE);
    rc = rc == KV_OK ? sign_some(signing, pg, info) : rc;
    svc_entries_done(&signing->leaves);
    return rc;
}

static KV_RC sign_due(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info, bool *ret_more)
{
    struct signing *signing KV_CLEANUP(kv_freep) = kv_alloc(sizeof *signing);
    if (signing == NULL) {
        return KV_E_NO_MEMORY;
    }
    signing->svc = svc;
    KV_TRY(kv_pg_tx(pg, KV_TX_UPGRADE_SIGN, sign_tx, signing, info, NULL));
    *ret_more = signing->due_count == AT_ONCE;
    if (signing->ready_count > 0) {
        ERASE_STEP_FAULT("erase/upgrade-signed");
    }
    return KV_OK;
}

/* --- bundling ----------------------------------------------------------------------------------------------------- */

struct bundling {
    struct kv_svc *svc;
    struct kv_id due[AT_ONCE];
    size_t due_count, made;
    struct kv_event events[AT_ONCE]; /* of those that were made, for after the commit */
};

static KV_RC find_place(struct kv_pg *pg, const struct kv_id *tenant, struct kv_store_upgrade *upgrade,
                        struct kv_errinfo *info)
{
    uint8_t ref[SVC_REF_BYTES];
    uint64_t place = 0;
    svc_ref(SVC_REF_UPGRADE, &upgrade->id, ref);
    KV_TRY(kv_store_leaf_find(pg, tenant, KV_BYTES(ref, sizeof ref), info, &place));
    upgrade->leaf_index = (int64_t)place;
    return KV_OK;
}

/* KV_E_BUSY: its leaf has no place yet, or no signed head covers it. */
static KV_RC prove(struct kv_pg *pg, const struct kv_id *tenant, struct kv_store_upgrade *upgrade,
                   struct kv_errinfo *info, struct kv_buf *bundle)
{
    struct kv_buf note KV_CLEANUP(kv_buf_done), jws KV_CLEANUP(kv_buf_done);
    struct svc_proofs *proofs KV_CLEANUP(svc_proofs_freep) = NULL;
    struct kv_hash proof[KV_MERKLE_DEPTH_MAX];
    size_t count = 0;
    uint64_t size = 0;
    kv_buf_init(&note, NOTE_BYTES_MAX);
    kv_buf_init(&jws, (size_t)KV_MAX_CERTIFICATE_BYTES);
    enum kv_err rc = find_place(pg, tenant, upgrade, info);
    rc = rc == KV_OK ? kv_store_log_note(pg, tenant, info, &note, &size) : rc;
    if (rc == KV_E_MISSING || (rc == KV_OK && size <= (uint64_t)upgrade->leaf_index)) {
        return KV_E_BUSY;
    }
    KV_TRY(rc);
    KV_TRY(svc_proofs_new(pg, tenant, size, info, &proofs));
    KV_TRY(svc_proofs_inclusion(proofs, (uint64_t)upgrade->leaf_index, proof, &count));
    KV_TRY(kv_store_upgrade_jws(pg, &upgrade->erasure, info, &jws));
    return kv_cert_bundle(kv_buf_bytes(&jws), (uint64_t)upgrade->leaf_index, proof, count, kv_buf_bytes(&note), bundle);
}

static KV_RC bundle_one(struct bundling *bundling, struct kv_pg *pg, const struct kv_id *erasure,
                        struct kv_errinfo *info)
{
    struct kv_store_upgrade upgrade;
    struct kv_buf bundle KV_CLEANUP(kv_buf_done);
    struct kv_store_erasure *job KV_CLEANUP(kv_freep) = kv_alloc(sizeof *job);
    kv_buf_init(&bundle, BUNDLE_BYTES_MAX);
    if (job == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(kv_store_erasure_get(pg, erasure, info, job));
    KV_TRY(kv_store_upgrade_get(pg, erasure, info, &upgrade));
    enum kv_err rc = prove(pg, &job->tenant, &upgrade, info, &bundle);
    if (rc == KV_E_BUSY) {
        return KV_OK; /* with the next head */
    }
    KV_TRY(rc);
    KV_TRY(kv_store_upgrade_set_bundle(pg, &upgrade, kv_buf_bytes(&bundle), info));
    bundling->events[bundling->made++] = (struct kv_event){.type = KV_EVENT_CERTIFICATE_UPGRADED,
                                                           .tenant = job->tenant,
                                                           .session = job->session,
                                                           .subject = job->certificate,
                                                           .subject_prefix = "crt"};
    return KV_OK;
}

static KV_RC bundle_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct bundling *bundling = ctx;
    uint64_t now_us = bundling->svc->env->realtime_us(bundling->svc->env->ctx);
    bundling->made = 0;
    KV_TRY(kv_store_upgrades_due(pg, true, now_us, AT_ONCE, info, bundling->due, &bundling->due_count));
    for (size_t i = 0; i < bundling->due_count; i++) {
        KV_TRY(bundle_one(bundling, pg, &bundling->due[i], info));
    }
    return KV_OK;
}

static KV_RC bundle_due(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info)
{
    struct bundling *bundling KV_CLEANUP(kv_freep) = kv_alloc(sizeof *bundling);
    size_t done = 0;
    if (bundling == NULL) {
        return KV_E_NO_MEMORY;
    }
    bundling->svc = svc;
    KV_TRY(svc_sequence(svc, pg, info, &done)); /* what has no place yet gets one, and a head that covers it */
    KV_TRY(kv_pg_tx(pg, KV_TX_UPGRADE_BUNDLE, bundle_tx, bundling, info, NULL));
    for (size_t i = 0; i < bundling->made; i++) {
        svc_publish(svc, &bundling->events[i]);
    }
    if (bundling->made > 0) {
        ERASE_STEP_FAULT("erase/upgraded");
    }
    return KV_OK;
}

KV_RC svc_upgrade_step(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info, bool *ret_more)
{
    struct kv_store_upgrades_wait wait = {.sign = false};
    KV_TRY(kv_store_upgrades_wait(pg, svc->env->realtime_us(svc->env->ctx), info, &wait));
    KV_TRY(wait.sign ? sign_due(svc, pg, info, ret_more) : KV_OK);
    return wait.sign || wait.bundle ? bundle_due(svc, pg, info) : KV_OK;
}
