/*
 * What a caller sees of an erasure: asking for one, looking at it, fetching its certificate. The work is the eraser's
 * (eraser.c). The request is durable before it is answered: session, revocation, job and audit entry in one
 * transaction.
 */
#include "server/service/svc_int.h"

#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"
#include "dataplane/crypto/hash.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static const char *claim_of(enum kv_erasure_state state)
{
    static const char *const claims[] = {
        [KV_ERASURE_REQUESTED] = "refused by this server from now on; the key still exists",
        [KV_ERASURE_FENCED] = "E0: no instance uses the session; the key still exists",
        [KV_ERASURE_STAGED] = "E0: no instance uses the session; the key still exists",
        [KV_ERASURE_REKEYED] = "E0: no instance uses the session; the old root still exists",
        [KV_ERASURE_DESTROYED] = "the old root is destroyed; memory of this server may still hold what it had opened",
        [KV_ERASURE_PURGED] = "E2 reached: the old root is destroyed and memory is wiped; not yet verified",
        [KV_ERASURE_VERIFIED] = "E2 verified; the certificate is being issued",
        [KV_ERASURE_CERTIFIED] = "E2: the session's key is destroyed; see the certificate and its limits",
        [KV_ERASURE_BLOCKED_HOLD] = "a hold forbids it for the time being; nothing is claimed",
        [KV_ERASURE_NEEDS_APPROVAL] = "waits for an approval; nothing is claimed",
        [KV_ERASURE_QUARANTINED] = "verification failed; nothing is claimed and an operator has to act",
    };
    return claims[state];
}

static void view_of(const struct kv_store_erasure *row, struct kv_erasure_view *ret_view)
{
    *ret_view = (struct kv_erasure_view){.id = row->id,
                                         .tenant = row->tenant,
                                         .session = row->session,
                                         .state = row->state,
                                         .claim = claim_of(row->state),
                                         .requested_us = row->at_us[KV_ERASURE_REQUESTED]};
    memcpy(ret_view->step_us, row->at_us, sizeof ret_view->step_us);
    if (row->state == KV_ERASURE_QUARANTINED) {
        snprintf(ret_view->quarantine_reason, sizeof ret_view->quarantine_reason,
                 "verification found the session still readable");
    }
}

/* --- asking for one ---------------------------------------------------------------------------------------------- */

struct request_tx {
    struct kv_call *call;
    struct kv_store_erasure row;
    struct kv_id session;
    bool existed;
};

static KV_RC may_erase(struct kv_call *call, const struct kv_store_session *session)
{
    bool admin = (call->who.roles & KV_ROLE_TENANT_ADMIN) != 0;
    bool own = (call->who.roles & KV_ROLE_ENGINE) != 0 && kv_id_equal(&session->created_by, &call->who.key);
    return admin || own ? KV_OK
                        : kv_fail(&call->info, KV_E_FORBIDDEN,
                                  "an engine key erases only sessions that it created; use a tenant_admin key");
}

static KV_RC record_request(struct kv_pg *pg, struct request_tx *tx, struct kv_errinfo *info)
{
    uint8_t ref[SVC_REF_BYTES];
    svc_ref(SVC_REF_REQUEST, &tx->row.id, ref);
    struct kv_audit_event event = {.op = KV_AUDIT_ERASE_REQUEST,
                                   .realtime_us = tx->row.at_us[KV_ERASURE_REQUESTED],
                                   .tenant = tx->row.tenant,
                                   .session = tx->row.session,
                                   .actor = tx->call->who.key,
                                   .actor_role = tx->row.requested_role,
                                   .subject = tx->row.id,
                                   .subject_prefix = "era",
                                   .detail_sha256 = tx->row.reason_sha256[0] == '\0' ? NULL : tx->row.reason_sha256};
    return svc_audit(tx->call->svc, pg, &event, KV_BYTES(ref, sizeof ref), info);
}

static KV_RC request_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct request_tx *tx = ctx;
    struct kv_store_session *session KV_CLEANUP(kv_freep) = kv_alloc(sizeof *session);
    if (session == NULL) {
        return KV_E_NO_MEMORY;
    }
    /* The head's lock comes first: two requests for one session meet here, and the second sees what the first did. */
    KV_TRY(kv_store_revocation_next(pg, info, &tx->row.revocation_seq));
    KV_TRY(svc_session_row(pg, &tx->session, &tx->call->who.tenant, info, session));
    KV_TRY(may_erase(tx->call, session));
    tx->existed = session->state != KV_SESSION_ACTIVE;
    if (tx->existed) {
        return kv_store_erasure_get(pg, &session->erasure, info, &tx->row);
    }
    tx->row.tenant = session->tenant;
    tx->row.session = session->id;
    tx->row.slot = session->slot;
    tx->row.directory_slot = session->directory_slot;
    KV_TRY(kv_store_erasure_insert(pg, &tx->row, info));
    return record_request(pg, tx, info);
}

/* Salted with the erasure's id: who knows the text can show that it was this one, and no table of texts finds it. */
static KV_RC hash_reason(const char *reason, struct kv_store_erasure *row)
{
    uint8_t hash[32];
    struct kv_bytes parts[] = {KV_BYTES(row->id.b, sizeof row->id.b), KV_BYTES(reason, strlen(reason))};
    KV_TRY(kv_sha256_parts(parts, 2, hash));
    kv_hex_encode(hash, sizeof hash, row->reason_sha256);
    return KV_OK;
}

static KV_RC fill_request(struct kv_call *call, const char *basis, const char *reason, struct request_tx *tx)
{
    KV_TRY(kv_id_new(call->svc->env, &tx->row.id));
    snprintf(tx->row.basis, sizeof tx->row.basis, "%s", basis);
    if (reason != NULL) {
        KV_TRY(hash_reason(reason, &tx->row));
    }
    tx->row.state = KV_ERASURE_REQUESTED;
    tx->row.requested_by = call->who.key;
    snprintf(tx->row.requested_role, sizeof tx->row.requested_role, "%s",
             (call->who.roles & KV_ROLE_TENANT_ADMIN) != 0 ? "tenant_admin" : "engine");
    tx->row.at_us[KV_ERASURE_REQUESTED] = call->svc->env->realtime_us(call->svc->env->ctx);
    return KV_OK;
}

static bool ended(enum kv_erasure_state state)
{
    return state == KV_ERASURE_CERTIFIED || state == KV_ERASURE_QUARANTINED;
}

/* Until something changed, or the deadline. */
static void await_change(struct kv_svc *svc, unsigned *seen, uint64_t deadline_ns)
{
    struct timespec until = kv_timespec_of(deadline_ns);
    pthread_mutex_lock(&svc->wake_mutex);
    while (svc->erasure_changes == *seen && !atomic_load(&svc->stopping) &&
           pthread_cond_timedwait(&svc->erasure_changed, &svc->wake_mutex, &until) != ETIMEDOUT) {
    }
    *seen = svc->erasure_changes;
    pthread_mutex_unlock(&svc->wake_mutex);
}

static KV_RC await_end(struct kv_call *call, struct kv_store_erasure *row, unsigned wait_seconds)
{
    struct kv_svc *svc = call->svc;
    uint64_t deadline = kv_now_ns(svc->env) + wait_seconds * KV_S_NS;
    pthread_mutex_lock(&svc->wake_mutex);
    unsigned seen = svc->erasure_changes;
    pthread_mutex_unlock(&svc->wake_mutex);
    KV_TRY(kv_store_erasure_get(call->pg, &row->id, &call->info, row));
    while (!ended(row->state) && kv_now_ns(svc->env) < deadline && !atomic_load(&svc->stopping)) {
        await_change(svc, &seen, deadline);
        KV_TRY(kv_store_erasure_get(call->pg, &row->id, &call->info, row));
    }
    return KV_OK;
}

KV_RC kv_svc_erasure_create(struct kv_call *call, const struct kv_id *session, const char *basis, const char *reason,
                            unsigned wait_seconds, struct kv_erasure_view *ret_erasure, bool *ret_existed)
{
    KV_TRY(svc_may_work(call->svc, &call->info));
    struct request_tx *tx KV_CLEANUP(kv_freep) = kv_alloc(sizeof *tx);
    if (tx == NULL) {
        return KV_E_NO_MEMORY;
    }
    *tx = (struct request_tx){.call = call, .session = *session};
    KV_TRY(fill_request(call, basis, reason, tx));
    KV_TRY(kv_pg_tx(call->pg, "erase-request", request_tx, tx, &call->info, NULL));
    if (KV_FAULT("erase/requested")) {
        return KV_E_INTERNAL;
    }
    if (!tx->existed) {
        svc_erasure_publish(call->svc, &tx->row);
    }
    KV_IGNORE(svc_session_revoke(call->svc, &tx->row.tenant, session, &tx->row.id, kv_now_ns(call->svc->env)),
              "the eraser fences again, with time to wait");
    svc_eraser_signal(call->svc);
    if (wait_seconds > 0) {
        KV_IGNORE(await_end(call, &tx->row, wait_seconds), "the request stands; its state is what was read last");
    }
    view_of(&tx->row, ret_erasure);
    *ret_existed = tx->existed;
    return KV_OK;
}

/* --- looking at one ---------------------------------------------------------------------------------------------- */

static KV_RC get_row(struct kv_call *call, const struct kv_id *erasure, struct kv_store_erasure *row)
{
    enum kv_err rc = kv_store_erasure_get(call->pg, erasure, &call->info, row);
    if (rc == KV_E_NOT_FOUND || (rc == KV_OK && !kv_id_equal(&row->tenant, &call->who.tenant))) {
        return kv_fail(&call->info, KV_E_NOT_FOUND, "no such erasure");
    }
    return rc;
}

KV_RC kv_svc_erasure_get(struct kv_call *call, const struct kv_id *erasure, struct kv_erasure_view *ret_erasure)
{
    struct kv_store_erasure *row KV_CLEANUP(kv_freep) = kv_alloc(sizeof *row);
    if (row == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(get_row(call, erasure, row));
    view_of(row, ret_erasure);
    return KV_OK;
}

/* The part of a compact JWS between its two dots. */
static KV_RC payload_of(struct kv_bytes jws, struct kv_buf *ret_payload)
{
    const char *text = (const char *)jws.data;
    const char *first = memchr(text, '.', jws.len);
    const char *last = memrchr(text, '.', jws.len);
    if (first == NULL || first == last) {
        return KV_E_CORRUPT;
    }
    size_t len = (size_t)(last - first - 1), size = 0;
    uint8_t *payload KV_CLEANUP(kv_freep) = kv_alloc(len + 1);
    if (payload == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(kv_base64url_decode(first + 1, len, payload, len, &size));
    kv_buf_append(ret_payload, payload, size);
    return kv_buf_check(ret_payload);
}

KV_RC kv_svc_certificate(struct kv_call *call, const struct kv_id *erasure, enum kv_certificate_form form,
                         struct kv_buf *ret_bytes)
{
    struct kv_store_erasure *row KV_CLEANUP(kv_freep) = kv_alloc(sizeof *row);
    if (row == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(get_row(call, erasure, row));
    if (row->state != KV_ERASURE_CERTIFIED) {
        return kv_fail(&call->info, KV_E_NOT_FOUND, "not certified yet: the erasure is %s",
                       kv_erasure_state_name(row->state));
    }
    if (form == KV_CERT_BUNDLE) {
        return kv_store_erasure_bundle(call->pg, erasure, &call->info, ret_bytes);
    }
    struct kv_buf jws;
    kv_buf_init(&jws, (size_t)KV_MAX_CERTIFICATE_BYTES);
    enum kv_err rc = kv_store_erasure_jws(call->pg, erasure, &call->info, &jws);
    if (rc == KV_OK && form == KV_CERT_JWS) {
        kv_buf_append(ret_bytes, jws.data, jws.len);
        rc = kv_buf_check(ret_bytes);
    } else if (rc == KV_OK) {
        rc = payload_of(kv_buf_bytes(&jws), ret_bytes);
    }
    kv_buf_done(&jws);
    return rc;
}

KV_RC kv_svc_jwks(struct kv_svc *svc, struct kv_buf *ret_json)
{
    uint8_t public_key[32];
    kv_sign_public(svc->cert_key, public_key);
    return kv_cert_jwks(public_key, ret_json);
}

KV_RC kv_svc_log_vkey(struct kv_svc *svc, struct kv_buf *ret_text)
{
    uint8_t public_key[32];
    kv_sign_public(svc->log_key, public_key);
    return kv_checkpoint_vkey(svc->log_prefix, public_key, ret_text);
}
