/*
 * CERTIFIED: the certificate is built from what is stored with the job, signed, made a leaf of the tenant's log, and
 * bundled with its inclusion proof and a signed head that covers it. The JWS is stored before it becomes a leaf, and
 * the bundle once; asking again gives the same bytes.
 */
#include "server/service/erase_int.h"
#include "server/service/svc_entries.h"
#include "server/service/svc_metrics.h"
#include "server/service/svc_proof.h"
#include "server/store/store_shared.h"

#include "dataplane/base/check.h"
#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "dataplane/base/log.h"
#include "dataplane/base/mem.h"
#include "dataplane/crypto/hash.h"
#include "dataplane/crypto/selftest.h"
#include "kv_version.h"

#include <stdlib.h>
#include <string.h>

#define INSTANCES_AT_ONCE 64u /* erasures whose instances are read in one go */
#define NOTE_BYTES_MAX 16384u
#define BUNDLE_BYTES_MAX (4 * (size_t)KV_MAX_CERTIFICATE_BYTES)
#define SEQUENCE_TRIES 64

/* Limits of erasures; their texts are in the certificate. The first holds where an instance was shut out by its lease,
 * the last unless the root was in declared hardware that leaves no remnants, all between them for each erasure. */
static const char *const limits[] = {"L5", "L1", "L2", "L3", "L4", "L7", "L9", "L10", "L8"};
#define LIMITS (sizeof limits / sizeof limits[0])
#define LIMIT_OF_SHARED "L6" /* beside these, where a scope was retained */

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

/* One certificate that is being issued. */
struct issue {
    struct kv_store_erasure *job;
    struct kv_store_batch batch;
    uint64_t request_index, destroy_index;
    struct kv_id certificate;
    struct kv_cert_instance *instances; /* borrowed from the issuing */
    size_t instance_count;
    bool expired; /* one of them */
    bool is_scope;
    struct kv_cert_shared shared; /* scope zero: none */
};

/* All certificates that are issued together, those of one tenant one after the other. */
struct issuing {
    struct erase_round *round;
    struct issue *issues;
    size_t count;
    struct kv_cert_instance *instances;
    size_t instance_count, instances_max;
};

/* Of a tenant's: the first one's place, and how many. */
struct stretch {
    size_t first, count;
};

static struct stretch stretch_at(const struct issuing *issuing, size_t first)
{
    struct stretch stretch = {.first = first};
    while (first + stretch.count < issuing->count &&
           kv_id_equal(&issuing->issues[first + stretch.count].job->tenant, &issuing->issues[first].job->tenant)) {
        stretch.count++;
    }
    return stretch;
}

/* Of one tenant: each certificate names the one before. */
struct chain {
    const char *origin;                /* of the tenant's log */
    char previous[KV_SHA256_HEX_SIZE]; /* "": none */
};

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

static void fill_facts(const struct erase_round *round, const struct issue *tx, const struct chain *chain,
                       struct kv_cert_tier tiers[2], struct kv_cert_facts *facts)
{
    const struct kv_store_erasure *job = tx->job;
    const struct kv_svc *svc = round->svc;
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
                                    .issued_us = erase_now_us(round),
                                    .issuer = svc->issuer,
                                    .tenant = job->tenant,
                                    .session = job->session,
                                    .erasure = job->id,
                                    .slot = job->slot,
                                    .is_scope = tx->is_scope,
                                    .shared = kv_id_is_zero(&tx->shared.scope) ? NULL : &tx->shared,
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
                                    .log_origin = chain->origin,
                                    .request_index = tx->request_index,
                                    .destroy_index = tx->destroy_index,
                                    .previous_sha256 = chain->previous,
                                    .tool_version = KV_VERSION,
                                    .openssl_version = kv_crypto_version(),
                                    .cipher_backend = stats.cipher_name};
    memcpy(facts->block_root.b, job->facts.block_root, sizeof facts->block_root.b);
    memcpy(facts->sessions_root.b, job->sessions_root, sizeof facts->sessions_root.b);
    memcpy(facts->receipt_sha256, tx->batch.receipt_sha256, sizeof facts->receipt_sha256);
}

/* The limits of this one, into `ret_codes`, which has room for one more than there are. */
static void fill_limits(const struct issue *issue, const char **ret_codes, struct kv_cert_facts *facts)
{
    memcpy(ret_codes, facts->limits, facts->limit_count * sizeof *ret_codes);
    if (!kv_id_is_zero(&issue->shared.scope) && kv_id_is_zero(&issue->shared.erasure)) {
        ret_codes[facts->limit_count++] = LIMIT_OF_SHARED;
    }
    facts->limits = ret_codes;
}

static KV_RC sign_certificate(const struct erase_round *round, const struct issue *issue, const struct chain *chain,
                              struct kv_buf *ret_jws)
{
    const char *codes[LIMITS + 1];
    struct kv_cert_tier tiers[2];
    struct shown_anchor anchor = {0};
    struct kv_cert_facts *facts KV_CLEANUP(kv_freep) = kv_alloc(sizeof *facts);
    struct kv_buf payload;
    if (facts == NULL) {
        return KV_E_NO_MEMORY;
    }
    fill_facts(round, issue, chain, tiers, facts);
    fill_limits(issue, codes, facts);
    add_anchor(round->svc, &anchor, facts);
    kv_buf_init(&payload, (size_t)KV_MAX_CERTIFICATE_BYTES);
    enum kv_err rc = kv_cert_payload(facts, &payload);
    if (rc == KV_OK) {
        rc = kv_cert_jws(kv_buf_bytes(&payload), round->svc->cert_key, ret_jws);
    }
    kv_buf_done(&payload);
    return rc;
}

/* What a transaction writes: rows and leaves. */
struct written {
    struct svc_entries leaves;
    struct kv_store_issued *issued; /* owned */
    struct kv_buf *texts;           /* owned: what `issued` borrows */
    size_t count;
};

static void written_done(struct written *written)
{
    for (size_t i = 0; i < written->count; i++) {
        kv_buf_done(&written->texts[i]);
    }
    kv_free(written->texts);
    kv_free(written->issued);
    svc_entries_done(&written->leaves);
}

static KV_RC written_init(struct written *written, const struct kv_env *env, size_t max)
{
    *written = (struct written){.count = 0};
    KV_TRY(svc_entries_init(&written->leaves, env, max));
    written->issued = kv_alloc_array(max + 1, sizeof *written->issued);
    written->texts = kv_alloc_array(max + 1, sizeof *written->texts);
    return written->issued != NULL && written->texts != NULL ? KV_OK : KV_E_NO_MEMORY;
}

static KV_RC write_certificate(struct written *written, const struct erase_round *round, const struct issue *issue,
                               struct chain *chain)
{
    uint8_t hash[32], ref[SVC_REF_BYTES];
    struct kv_buf *jws = &written->texts[written->count];
    struct kv_store_issued *issued = &written->issued[written->count++];
    kv_buf_init(jws, (size_t)KV_MAX_CERTIFICATE_BYTES);
    KV_TRY(sign_certificate(round, issue, chain, jws));
    *issued = (struct kv_store_issued){
        .erasure = issue->job->id, .certificate = issue->certificate, .text = kv_buf_bytes(jws)};
    memcpy(issued->previous_sha256, chain->previous, sizeof issued->previous_sha256);
    KV_TRY(kv_sha256(issued->text, hash));
    kv_hex_encode(hash, sizeof hash, chain->previous);
    svc_ref(SVC_REF_CERTIFICATE, &issue->certificate, ref);
    return svc_entries_leaf(&written->leaves, &issue->job->tenant, issued->text, ref);
}

static KV_RC write_tenant(struct kv_pg *pg, const struct issuing *issuing, struct stretch stretch,
                          struct written *written, struct kv_errinfo *info)
{
    const struct kv_id *tenant = &issuing->issues[stretch.first].job->tenant;
    char latest[KV_SHA256_HEX_SIZE];
    struct kv_store_log *log KV_CLEANUP(kv_freep) = kv_alloc(sizeof *log);
    if (log == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(kv_store_tenant_certificate_lock(pg, tenant, info, latest));
    KV_TRY(kv_store_log_get(pg, tenant, info, log));
    struct chain chain = {.origin = log->origin};
    memcpy(chain.previous, latest, sizeof latest);
    for (size_t i = 0; i < stretch.count; i++) {
        KV_TRY(write_certificate(written, issuing->round, &issuing->issues[stretch.first + i], &chain));
    }
    return kv_store_tenant_certificate_move(pg, tenant, latest, chain.previous, info);
}

static KV_RC write_all(struct kv_pg *pg, const struct issuing *issuing, struct written *written,
                       struct kv_errinfo *info)
{
    for (size_t first = 0; first < issuing->count;) {
        struct stretch stretch = stretch_at(issuing, first);
        KV_TRY(write_tenant(pg, issuing, stretch, written, info));
        first += stretch.count;
    }
    KV_TRY(kv_store_erasures_set_certificates(pg, written->issued, written->count, info));
    return svc_entries_insert(&written->leaves, pg, info);
}

static KV_RC certificate_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    const struct issuing *issuing = ctx;
    struct written written;
    enum kv_err rc = written_init(&written, issuing->round->svc->env, issuing->count);
    rc = rc == KV_OK ? write_all(pg, issuing, &written, info) : rc;
    written_done(&written);
    return rc;
}

/* --- what a certificate cites ------------------------------------------------------------------------------------- */

/* The places of one leaf of each, all in one tenant's log. */
static KV_RC find_leaves(struct erase_round *round, const struct issuing *issuing, struct stretch stretch,
                         enum svc_ref kind, uint64_t *ret_places)
{
    uint8_t *refs KV_CLEANUP(kv_freep) = kv_alloc_array(stretch.count, SVC_REF_BYTES);
    if (refs == NULL) {
        return KV_E_NO_MEMORY;
    }
    for (size_t i = 0; i < stretch.count; i++) {
        const struct kv_store_erasure *job = issuing->issues[stretch.first + i].job;
        svc_ref(kind, kind == SVC_REF_CERTIFICATE ? &job->certificate : &job->id, refs + i * SVC_REF_BYTES);
    }
    const struct kv_store_refs wanted = {.refs = refs, .ref_len = SVC_REF_BYTES, .count = stretch.count};
    return kv_store_leaves_find(round->pg, &issuing->issues[stretch.first].job->tenant, &wanted, &round->info,
                                ret_places);
}

static KV_RC cite_leaves(struct issuing *issuing)
{
    uint64_t *places KV_CLEANUP(kv_freep) = kv_alloc_array(issuing->count + 1, sizeof *places);
    if (places == NULL) {
        return KV_E_NO_MEMORY;
    }
    for (size_t first = 0; first < issuing->count;) {
        struct stretch stretch = stretch_at(issuing, first);
        KV_TRY(find_leaves(issuing->round, issuing, stretch, SVC_REF_REQUEST, places));
        for (size_t i = 0; i < stretch.count; i++) {
            issuing->issues[first + i].request_index = places[i];
        }
        KV_TRY(find_leaves(issuing->round, issuing, stretch, SVC_REF_DESTROY, places));
        for (size_t i = 0; i < stretch.count; i++) {
            issuing->issues[first + i].destroy_index = places[i];
        }
        first += stretch.count;
    }
    return KV_OK;
}

static KV_RC cite_batches(struct issuing *issuing)
{
    struct erase_round *round = issuing->round;
    for (size_t i = 0; i < issuing->count; i++) {
        struct issue *issue = &issuing->issues[i];
        bool same = i > 0 && kv_id_equal(&issue[-1].batch.id, &issue->job->batch);
        issue->batch = same ? issue[-1].batch : issue->batch;
        KV_TRY(same ? KV_OK : kv_store_batch_get(round->pg, &issue->job->batch, &round->info, &issue->batch));
        KV_TRY(kv_id_new(round->svc->env, &issue->certificate));
    }
    return KV_OK;
}

static void add_instance(struct issuing *issuing, struct issue *issue, const struct kv_cert_instance *instance)
{
    KV_ASSERT(issuing->instance_count < issuing->instances_max);
    if (issue->instance_count == 0) {
        issue->instances = &issuing->instances[issuing->instance_count];
    }
    issuing->instances[issuing->instance_count++] = *instance;
    issue->instance_count++;
}

static void add_part(struct issuing *issuing, struct issue *issue, const struct kv_store_erasure_instance *part)
{
    if (part->fenced_how == KV_FENCED_NOT) {
        return; /* it said what it had, and left before it was asked for more */
    }
    bool expired = part->fenced_how == KV_FENCED_EXPIRED || part->purged_how == KV_FENCED_EXPIRED;
    issue->expired = issue->expired || expired;
    const struct kv_cert_instance instance = {.id = part->instance,
                                              .how = kv_fenced_how_name(expired ? KV_FENCED_EXPIRED : part->fenced_how),
                                              .fenced_us = part->fenced_us,
                                              .purged_us = part->purged_us};
    add_instance(issuing, issue, &instance);
}

/* Who took part in these, as the transactions that fenced and purged left it. */
static KV_RC cite_some_instances(struct issuing *issuing, struct stretch some, struct kv_store_erasure_instance *parts)
{
    struct erase_round *round = issuing->round;
    size_t found = 0;
    for (size_t i = 0; i < some.count; i++) {
        round->ids[i] = issuing->issues[some.first + i].job->id;
    }
    KV_TRY(kv_store_erasure_instances(round->pg, round->ids, some.count, some.count * SVC_INSTANCES_MAX, &round->info,
                                      parts, &found));
    for (size_t i = 0; i < some.count; i++) {
        struct issue *issue = &issuing->issues[some.first + i];
        for (size_t j = 0; j < found; j++) {
            if (kv_id_equal(&parts[j].erasure, &issue->job->id)) {
                add_part(issuing, issue, &parts[j]);
            }
        }
        if (issue->instance_count == 0) { /* fenced by a version that knew of no others */
            const struct kv_cert_instance self = {.id = round->svc->instance,
                                                  .how = kv_fenced_how_name(KV_FENCED_SELF),
                                                  .fenced_us = issue->job->at_us[KV_ERASURE_FENCED],
                                                  .purged_us = issue->job->at_us[KV_ERASURE_PURGED]};
            add_instance(issuing, issue, &self);
        }
    }
    return KV_OK;
}

static KV_RC cite_instances(struct issuing *issuing)
{
    struct kv_store_erasure_instance *parts KV_CLEANUP(kv_freep) =
        kv_alloc_array((size_t)INSTANCES_AT_ONCE * SVC_INSTANCES_MAX, sizeof *parts);
    issuing->instances_max = issuing->count * SVC_INSTANCES_MAX;
    issuing->instances = kv_alloc_array(issuing->instances_max + 1, sizeof *issuing->instances);
    if (parts == NULL || issuing->instances == NULL) {
        return KV_E_NO_MEMORY;
    }
    for (size_t first = 0; first < issuing->count; first += INSTANCES_AT_ONCE) {
        size_t left = issuing->count - first;
        struct stretch some = {.first = first, .count = left < INSTANCES_AT_ONCE ? left : INSTANCES_AT_ONCE};
        KV_TRY(cite_some_instances(issuing, some, parts));
    }
    return KV_OK;
}

/* What a session shared is said as it is now: of one that stayed for others then, and went since, that it is gone. */
static void add_shared(struct issue *issue, const struct kv_store_shared *shared)
{
    bool gone = shared->scope_state >= KV_ERASURE_DESTROYED && shared->scope_state <= KV_ERASURE_CERTIFIED;
    issue->is_scope = shared->is_scope;
    if (!shared->is_scope) {
        issue->shared = (struct kv_cert_shared){.scope = shared->scope, .sessions = shared->sessions};
        if (gone) {
            issue->shared.erasure = shared->scope_erasure;
        }
    }
}

/* Its erasure has begun, and ends soon: nothing keeps it up, as a hold does. */
static bool is_on_its_way(const struct kv_store_shared *shared)
{
    return !kv_id_is_zero(&shared->scope_erasure) && shared->scope_state < KV_ERASURE_DESTROYED;
}

static KV_RC cite_shared(struct issuing *issuing)
{
    struct erase_round *round = issuing->round;
    struct kv_store_ids ids = {.ids = round->ids, .count = issuing->count};
    struct kv_store_shared *list KV_CLEANUP(kv_freep) = kv_alloc_array(issuing->count + 1, sizeof *list);
    size_t found = 0;
    if (list == NULL) {
        return KV_E_NO_MEMORY;
    }
    for (size_t i = 0; i < issuing->count; i++) {
        round->ids[i] = issuing->issues[i].job->id;
    }
    KV_TRY(kv_store_erasures_shared(round->pg, &ids, &round->info, list, &found));
    for (size_t j = 0; j < found; j++) {
        if (is_on_its_way(&list[j])) { /* it is put off, and the others are not */
            return kv_fail(&round->info, KV_E_BUSY, "the key of a session's shared scope is not destroyed yet");
        }
        for (size_t i = 0; i < issuing->count; i++) {
            if (kv_id_equal(&list[j].erasure, &issuing->issues[i].job->id)) {
                add_shared(&issuing->issues[i], &list[j]);
            }
        }
    }
    return KV_OK;
}

static int by_tenant(const void *a, const void *b)
{
    const struct issue *left = a, *right = b;
    int order = memcmp(left->job->tenant.b, right->job->tenant.b, sizeof left->job->tenant.b);
    return order != 0 ? order
                      : (left->job->revocation_seq > right->job->revocation_seq) -
                            (left->job->revocation_seq < right->job->revocation_seq);
}

/* By tenant, which is the order of the locks, and then in the order of the revocations. */
static KV_RC issuing_init(struct issuing *issuing, struct erase_round *round, const struct erase_some *some)
{
    *issuing = (struct issuing){.round = round, .issues = kv_alloc_array(some->count + 1, sizeof *issuing->issues)};
    if (issuing->issues == NULL) {
        return KV_E_NO_MEMORY;
    }
    for (; issuing->count < some->count; issuing->count++) {
        issuing->issues[issuing->count].job = &round->jobs[some->places[issuing->count]];
    }
    qsort(issuing->issues, issuing->count, sizeof *issuing->issues, by_tenant);
    return KV_OK;
}

static void issuing_done(struct issuing *issuing)
{
    kv_free(issuing->issues);
    kv_free(issuing->instances);
}

static KV_RC issue_all(struct issuing *issuing)
{
    KV_TRY(cite_shared(issuing));
    KV_TRY(cite_instances(issuing));
    KV_TRY(cite_leaves(issuing));
    KV_TRY(cite_batches(issuing));
    KV_TRY(erase_tx(issuing->round, KV_TX_CERTIFICATE, certificate_tx, issuing, NULL));
    for (size_t i = 0; i < issuing->count; i++) {
        issuing->issues[i].job->certificate = issuing->issues[i].certificate;
        issuing->issues[i].job->has_jws = true;
    }
    return KV_OK;
}

static KV_RC issue_some(struct erase_round *round, const struct erase_some *some, void *ctx)
{
    struct issuing issuing;
    (void)ctx;
    enum kv_err rc = issuing_init(&issuing, round, some);
    rc = rc == KV_OK ? issue_all(&issuing) : rc;
    issuing_done(&issuing);
    return rc;
}

/* --- the bundle -------------------------------------------------------------------------------------------------- */

/* Bundles of many, in the order of `issuing`. */
struct bundling {
    struct issuing issuing;
    struct written written; /* the bundles; no leaves */
    struct kv_buf *jws;     /* owned, one each */
};

static KV_RC bundle_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    const struct bundling *bundling = ctx;
    const struct issuing *issuing = &bundling->issuing;
    struct erase_round *round = issuing->round;
    const struct kv_store_move move = {
        .from = KV_ERASURE_VERIFIED, .to = KV_ERASURE_CERTIFIED, .at_us = erase_now_us(round)};
    struct kv_store_ids ids = {.ids = round->ids, .count = issuing->count};
    struct kv_store_ids sessions = {.ids = round->more_ids, .count = 0};
    for (size_t i = 0; i < issuing->count; i++) {
        const struct kv_store_erasure *job = issuing->issues[i].job;
        round->ids[i] = job->id;
        if (job->whole_tenant) {
            KV_TRY(kv_store_tenant_set_erased(pg, &job->tenant, info));
        } else {
            round->more_ids[sessions.count++] = job->session;
        }
    }
    KV_TRY(kv_store_sessions_set_erased(pg, &sessions, info));
    KV_TRY(kv_store_erasures_set_bundles(pg, bundling->written.issued, issuing->count, info));
    return kv_store_erasures_advance(pg, &ids, &move, info);
}

/* The tenant's signed head, and the proofs of its certificates' leaves under it. */
static KV_RC build_bundle(struct bundling *bundling, size_t at, struct svc_proofs *proofs, struct kv_bytes note)
{
    struct kv_store_issued *issued = &bundling->written.issued[at];
    struct kv_hash proof[KV_MERKLE_DEPTH_MAX];
    size_t proof_count = 0;
    if (proofs->size <= issued->leaf_index) {
        return kv_fail(proofs->info, KV_E_BUSY, "no signed head covers the certificate yet");
    }
    KV_TRY(svc_proofs_inclusion(proofs, issued->leaf_index, proof, &proof_count));
    KV_TRY(kv_cert_bundle(kv_buf_bytes(&bundling->jws[at]), issued->leaf_index, proof, proof_count, note,
                          &bundling->written.texts[at]));
    issued->text = kv_buf_bytes(&bundling->written.texts[at]);
    return KV_OK;
}

static KV_RC place_certificates(struct bundling *bundling, struct stretch stretch)
{
    uint64_t *places KV_CLEANUP(kv_freep) = kv_alloc_array(stretch.count, sizeof *places);
    if (places == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(find_leaves(bundling->issuing.round, &bundling->issuing, stretch, SVC_REF_CERTIFICATE, places));
    for (size_t i = 0; i < stretch.count; i++) {
        bundling->written.issued[stretch.first + i].leaf_index = places[i];
    }
    return KV_OK;
}

static KV_RC bundle_tenant(struct bundling *bundling, struct stretch stretch)
{
    struct erase_round *round = bundling->issuing.round;
    const struct kv_id *tenant = &bundling->issuing.issues[stretch.first].job->tenant;
    struct svc_proofs *proofs KV_CLEANUP(svc_proofs_freep) = NULL;
    struct kv_buf note;
    uint64_t size = 0;
    KV_TRY(place_certificates(bundling, stretch));
    kv_buf_init(&note, NOTE_BYTES_MAX);
    enum kv_err rc = kv_store_log_note(round->pg, tenant, &round->info, &note, &size);
    rc = rc == KV_OK ? svc_proofs_new(round->pg, tenant, size, &round->info, &proofs) : rc;
    for (size_t i = 0; i < stretch.count && rc == KV_OK; i++) {
        rc = build_bundle(bundling, stretch.first + i, proofs, kv_buf_bytes(&note));
    }
    kv_buf_done(&note);
    return rc;
}

static KV_RC bundle_all(struct bundling *bundling)
{
    const struct issuing *issuing = &bundling->issuing;
    struct erase_round *round = issuing->round;
    struct kv_store_ids ids = {.ids = round->ids, .count = issuing->count};
    for (size_t i = 0; i < issuing->count; i++) {
        round->ids[i] = issuing->issues[i].job->id;
        bundling->written.issued[i] = (struct kv_store_issued){.erasure = issuing->issues[i].job->id};
    }
    KV_TRY(kv_store_erasures_jws(round->pg, &ids, &round->info, bundling->jws));
    for (size_t first = 0; first < issuing->count;) {
        struct stretch stretch = stretch_at(issuing, first);
        KV_TRY(bundle_tenant(bundling, stretch));
        first += stretch.count;
    }
    bool in_doubt = false;
    enum kv_err rc = erase_tx(round, KV_TX_BUNDLE, bundle_tx, bundling, &in_doubt);
    for (size_t i = 0; i < issuing->count && in_doubt; i++) {
        /* The next round may not see these jobs any more: who waits for one has to look now and again. */
        svc_erasure_publish(round->svc, issuing->issues[i].job);
    }
    return rc;
}

static KV_RC bundling_init(struct bundling *bundling, struct erase_round *round, const struct erase_some *some)
{
    *bundling = (struct bundling){.jws = NULL};
    KV_TRY(issuing_init(&bundling->issuing, round, some));
    KV_TRY(written_init(&bundling->written, round->svc->env, some->count));
    bundling->jws = kv_alloc_array(some->count + 1, sizeof *bundling->jws);
    if (bundling->jws == NULL) {
        return KV_E_NO_MEMORY;
    }
    for (size_t i = 0; i < some->count; i++) {
        kv_buf_init(&bundling->jws[i], (size_t)KV_MAX_CERTIFICATE_BYTES);
        kv_buf_init(&bundling->written.texts[i], BUNDLE_BYTES_MAX);
    }
    bundling->written.count = some->count;
    return KV_OK;
}

static void bundling_done(struct bundling *bundling)
{
    for (size_t i = 0; bundling->jws != NULL && i < bundling->issuing.count; i++) {
        kv_buf_done(&bundling->jws[i]);
    }
    kv_free(bundling->jws);
    written_done(&bundling->written);
    issuing_done(&bundling->issuing);
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

static void certified(struct erase_round *round, struct kv_store_erasure *job)
{
    erase_moved(round, job, KV_ERASURE_CERTIFIED);
    publish_certificate(round, job);
    svc_metrics_certified(round->svc, job, erase_now_us(round));
    if (job->unblocked_us == 0) { /* a hold's time says nothing of how long erasing takes */
        note_duration(round->svc, erase_now_us(round) - job->at_us[KV_ERASURE_REQUESTED]);
    }
    KV_ASSERT(round->dirty_count < (size_t)2 * KV_ERASE_BATCH);
    round->dirty[round->dirty_count++] = svc_revocation_of(job);
    kv_log(KV_LOG_INFO, "eraser", "certified", KV_FID("erasure", "era", &job->id),
           KV_FID(job->whole_tenant ? "tenant" : "session", job->whole_tenant ? "ten" : "ses", erase_subject(job)));
}

static KV_RC bundle_some(struct erase_round *round, const struct erase_some *some, void *ctx)
{
    struct bundling bundling;
    (void)ctx;
    enum kv_err rc = bundling_init(&bundling, round, some);
    rc = rc == KV_OK ? bundle_all(&bundling) : rc;
    bundling_done(&bundling);
    for (size_t i = 0; i < some->count && rc == KV_OK; i++) {
        certified(round, &round->jobs[some->places[i]]);
    }
    return rc;
}

/* --- the step ----------------------------------------------------------------------------------------------------- */

/* Times and facts as they are stored. */
static KV_RC reload(struct erase_round *round, const struct erase_some *some)
{
    struct kv_store_erasure *rows KV_CLEANUP(kv_freep) = kv_alloc_array(some->count + 1, sizeof *rows);
    struct kv_store_ids ids = erase_ids(round, some);
    if (rows == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(kv_store_erasures_get(round->pg, &ids, &round->info, rows));
    for (size_t i = 0; i < some->count; i++) { /* both are in the order of their revocations */
        struct kv_store_erasure *job = &round->jobs[some->places[i]];
        if (KV_BUG(!kv_id_equal(&job->id, &rows[i].id))) {
            return KV_E_INTERNAL;
        }
        *job = rows[i];
    }
    return KV_OK;
}

/* Those of the verified that have their signed certificate, or not. */
static struct erase_some pick_issued(struct erase_round *round, bool issued)
{
    struct erase_some some = erase_pick(round, KV_ERASURE_VERIFIED);
    size_t kept = 0;
    for (size_t i = 0; i < some.count; i++) {
        if (round->jobs[round->places[i]].has_jws == issued) {
            round->places[kept++] = round->places[i];
        }
    }
    some.count = kept;
    return some;
}

/* Until a head covers all that waited. */
static KV_RC sequence(struct erase_round *round)
{
    size_t done = KV_OUTBOX_BATCH_MAX;
    for (int tries = 0; tries < SEQUENCE_TRIES && done >= KV_OUTBOX_BATCH_MAX; tries++) {
        KV_TRY(svc_sequence(round->svc, round->pg, &round->info, &done));
    }
    return KV_OK;
}

KV_RC erase_certify(struct erase_round *round)
{
    struct erase_some some = erase_pick(round, KV_ERASURE_VERIFIED);
    if (some.count == 0) {
        return KV_OK;
    }
    KV_TRY(reload(round, &some));
    some = pick_issued(round, false);
    if (some.count > 0) {
        KV_TRY(svc_place_all(round->svc, round->pg, &round->info)); /* the leaves that they cite have their places */
        KV_TRY(erase_together(round, &some, issue_some, NULL));
    }
    ERASE_STEP_FAULT("erase/certificate");
    some = pick_issued(round, true);
    KV_TRY(sequence(round));
    KV_TRY(erase_together(round, &some, bundle_some, NULL));
    ERASE_STEP_FAULT("erase/certified");
    return KV_OK;
}
