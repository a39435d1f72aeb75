/*
 * Erasing all of a tenant: what the steps do otherwise than for one session. One place in the directory is dropped,
 * whatever hangs there, so nothing here costs the tree or the database more for a tenant that had more sessions; only
 * what this instance has in its tiers is gone through, and the ids are read once for the certificate. Must never count
 * a session that is not meant.
 */
#include "server/service/erase_int.h"

#include "dataplane/base/id.h"
#include "dataplane/base/log.h"
#include "dataplane/base/mem.h"
#include "server/store/store_ktree.h"

#include <stdlib.h>
#include <string.h>

#define SCOPES_MAX ((size_t)KV_MAX_SESSIONS_OPEN)

/* --- what is here ------------------------------------------------------------------------------------------------ */

static int by_id(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(struct kv_id));
}

/* Those of the tenant's sessions that have blocks here, in the order of their ids. */
static KV_RC find_here(struct kv_svc *svc, struct kv_pg *pg, const struct kv_store_revocation *what,
                       struct kv_errinfo *info, struct kv_id *ret_here, size_t *ret_count)
{
    struct kv_buf ids KV_CLEANUP(kv_buf_done);
    struct kv_id *scopes KV_CLEANUP(kv_freep) = kv_alloc_array(SCOPES_MAX, sizeof *scopes);
    size_t found = 0, count = 0;
    kv_buf_init(&ids, (size_t)KV_MAX_TENANT_SLOTS * sizeof(struct kv_id));
    if (scopes == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(svc_revocation_sessions(pg, what, info, &ids));
    KV_TRY(kv_engine_scopes(svc->engine, scopes, SCOPES_MAX, &found));
    for (size_t i = 0; i < found; i++) {
        if (ids.len > 0 && bsearch(&scopes[i], ids.data, ids.len / sizeof *scopes, sizeof *scopes, by_id) != NULL) {
            ret_here[count++] = scopes[i];
        }
    }
    qsort(ret_here, count, sizeof *ret_here, by_id);
    *ret_count = count;
    return KV_OK;
}

static void add(struct kv_store_facts *sum, const struct kv_store_facts *more)
{
    sum->blocks += more->blocks;
    sum->bytes += more->bytes;
    sum->dram_blocks += more->dram_blocks;
    sum->dram_bytes += more->dram_bytes;
    sum->nvme_blocks += more->nvme_blocks;
    sum->nvme_bytes += more->nvme_bytes;
    sum->samples += more->samples;
}

/* As many samples as there may be, of as many sessions as have one. */
static uint32_t samples_of(size_t index, size_t count)
{
    uint32_t each = count == 0 ? 0 : (uint32_t)(ERASE_SAMPLES_MAX / count);
    return index >= ERASE_SAMPLES_MAX ? 0 : each > 0 ? each : 1;
}

static KV_RC collect(struct kv_svc *svc, const struct kv_id *here, size_t count, struct kv_buf *roots,
                     struct kv_store_facts *sum, struct kv_buf *framed)
{
    for (size_t i = 0; i < count; i++) {
        struct kv_store_facts facts;
        KV_TRY(erase_collect_session(svc, &here[i], samples_of(i, count), &facts, framed));
        kv_buf_append(roots, facts.block_root, sizeof facts.block_root);
        add(sum, &facts);
    }
    return kv_buf_check(roots);
}

KV_RC erase_tenant_collect(struct kv_svc *svc, struct kv_pg *pg, const struct kv_store_revocation *what,
                           struct kv_errinfo *info, struct kv_store_facts *ret_facts, struct kv_buf *framed)
{
    struct kv_id *here KV_CLEANUP(kv_freep) = kv_alloc_array(SCOPES_MAX, sizeof *here);
    struct kv_buf roots KV_CLEANUP(kv_buf_done);
    struct kv_hash root;
    size_t count = 0;
    kv_buf_init(&roots, SCOPES_MAX * 32);
    if (here == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(find_here(svc, pg, what, info, here, &count));
    struct kv_store_facts facts = {0};
    KV_TRY(collect(svc, here, count, &roots, &facts, framed));
    KV_TRY(kv_merkle_root_of(roots.data, 32, roots.len / 32, &root));
    memcpy(facts.block_root, root.b, sizeof facts.block_root);
    *ret_facts = facts;
    return KV_OK;
}

KV_RC erase_tenant_count(struct erase_round *round, struct kv_store_erasure *job)
{
    const struct kv_store_revocation what = svc_revocation_of(job);
    struct kv_buf ids KV_CLEANUP(kv_buf_done);
    struct kv_hash root;
    kv_buf_init(&ids, (size_t)KV_MAX_TENANT_SLOTS * sizeof(struct kv_id));
    KV_TRY(svc_revocation_sessions(round->pg, &what, &round->info, &ids));
    job->sessions = ids.len / sizeof(struct kv_id);
    KV_TRY(kv_merkle_root_of(ids.data, sizeof(struct kv_id), job->sessions, &root));
    memcpy(job->sessions_root, root.b, sizeof job->sessions_root);
    return KV_OK;
}

/* --- the control, before and after ------------------------------------------------------------------------------- */

/* The slot of the sample's session, as the tree that is erased has it. */
static KV_RC try_sample(struct erase_round *round, const struct kv_ktree_store *rows, struct kv_bytes header,
                        const struct kv_store_erasure *job, bool *ret_opens)
{
    struct kv_sealed_context context;
    struct kv_secret *slot KV_CLEANUP(kv_secret_freep) = NULL;
    struct kv_store_session *session KV_CLEANUP(kv_freep) = kv_alloc(sizeof *session);
    if (session == NULL) {
        return KV_E_NO_MEMORY;
    }
    if (kv_sealed_peek(header, &context) != KV_OK || !kv_id_equal(&context.tenant, &job->tenant)) {
        return KV_OK; /* damaged */
    }
    KV_TRY(kv_store_session_get(round->pg, &context.scope, &round->info, session));
    enum kv_err rc =
        kv_ktree_slot(round->svc->tree, rows, &job->tree, job->directory_slot, session->slot, false, &slot);
    if (rc == KV_E_SESSION_ERASED || rc == KV_E_MISSING) {
        return KV_OK; /* nothing leads there */
    }
    KV_TRY(rc);
    return erase_sample_opens(header, slot, &job->tenant, &context.scope, ret_opens);
}

KV_RC erase_tenant_try(struct erase_round *round, const struct kv_ktree_store *rows,
                       const struct erase_samples *samples, const struct kv_store_erasure *job, uint32_t *ret_opened)
{
    uint32_t opened = 0;
    for (size_t i = 0; i < samples->count; i++) {
        bool opens = false;
        KV_TRY(try_sample(round, rows, samples->headers[i], job, &opens));
        opened += opens;
    }
    *ret_opened = opened;
    return KV_OK;
}

/* --- the directory ----------------------------------------------------------------------------------------------- */

static bool top_opens(struct erase_round *round, const struct kv_store_erasure *job, const struct kv_store_node *top,
                      const struct kv_secret *secret)
{
    struct kv_node_key key = {.tree = job->tree, .level = KV_TREE_LEVELS - 1};
    struct kv_secret *children[KV_TREE_FANOUT] = {0};
    bool opened = kv_node_open(&round->svc->cluster, &key, &top->node_id, secret,
                               KV_BYTES(top->sealed, top->sealed_len), children) == KV_OK;
    for (size_t i = 0; opened && i < KV_TREE_FANOUT; i++) {
        kv_secret_free(children[i]);
    }
    return opened;
}

static KV_RC check_directory(struct erase_round *round, const struct kv_ktree_store *rows,
                             const struct kv_store_erasure *job, const struct kv_store_node *top, bool *ret_absent)
{
    uint32_t first = job->directory_slot / KV_TREE_FANOUT * KV_TREE_FANOUT;
    bool absent = false, opened = false;
    for (uint32_t place = first; place < first + KV_TREE_FANOUT; place++) {
        struct kv_secret *secret = NULL;
        enum kv_err rc = kv_ktree_top(round->svc->tree, rows, place, &secret);
        bool nothing = rc == KV_E_SESSION_ERASED || rc == KV_E_MISSING;
        absent = absent || (nothing && place == job->directory_slot);
        if (!nothing) {
            KV_TRY(rc);
            opened = opened || (top->sealed != NULL && top_opens(round, job, top, secret));
            kv_secret_free(secret);
        }
    }
    *ret_absent = absent && !opened;
    return KV_OK;
}

KV_RC erase_tenant_absent(struct erase_round *round, const struct kv_ktree_store *rows,
                          const struct kv_store_erasure *job, struct kv_errinfo *info, bool *ret_absent)
{
    struct kv_store_node_key key = {.tree = job->tree, .level = KV_TREE_LEVELS - 1};
    struct kv_store_node top = {0};
    enum kv_err rc = kv_store_node_load(round->pg, &key, info, &top);
    KV_TRY(rc == KV_E_MISSING ? KV_OK : rc); /* it never had a session */
    rc = check_directory(round, rows, job, &top, ret_absent);
    kv_free(top.sealed);
    return rc;
}

/* --- cleaning ---------------------------------------------------------------------------------------------------- */

KV_RC erase_tenant_left(struct kv_svc *svc, struct kv_pg *pg, const struct kv_store_revocation *what,
                        struct kv_errinfo *info, uint64_t *ret_blocks)
{
    struct kv_id *here KV_CLEANUP(kv_freep) = kv_alloc_array(SCOPES_MAX, sizeof *here);
    size_t count = 0;
    if (here == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(find_here(svc, pg, what, info, here, &count));
    for (size_t i = 0; i < count; i++) {
        struct kv_scope_usage usage;
        KV_TRY(kv_engine_scope_usage(svc->engine, &here[i], &usage));
        *ret_blocks += usage.blocks;
    }
    return KV_OK;
}

KV_RC erase_tenant_clean(struct kv_svc *svc, struct kv_pg *pg, const struct kv_store_revocation *what,
                         uint64_t *ret_blocks)
{
    struct kv_errinfo info = {0};
    struct kv_id *here KV_CLEANUP(kv_freep) = kv_alloc_array(SCOPES_MAX, sizeof *here);
    size_t count = 0;
    if (here == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(find_here(svc, pg, what, &info, here, &count));
    for (size_t i = 0; i < count; i++) {
        uint64_t blocks = 0;
        KV_TRY(kv_engine_drop_scope(svc->engine, &here[i], &blocks));
        *ret_blocks += blocks;
    }
    return KV_OK;
}
