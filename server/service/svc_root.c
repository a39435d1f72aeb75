/*
 * The root of erasure as operators see it, and the operation that replaces it. The eraser does the work, on the path of
 * every erasure; here is who asks for it until it is done. Must never touch the provider but to list what it holds.
 */
#include "server/service/svc_root.h"

#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"
#include "server/service/operation_run.h"

#include <stdio.h>
#include <string.h>

#define PIECE_LOOKS 20
#define LOOK_NS (50 * KV_MS_NS)
#define CALL_OFF_US UINT64_C(60000000) /* for a provider that cannot be asked */

/* --- root.rotate ------------------------------------------------------------------------------------------------- */

static KV_RC root_in_force(struct svc_operation_run *run, struct kv_id *ret_root)
{
    struct kv_store_kroot kroot = {0};
    KV_TRY(kv_store_kroot_get(run->pg, &run->info, &kroot));
    *ret_root = kroot.root_id;
    kv_store_kroot_done(&kroot);
    return KV_OK;
}

/* The first piece writes down which root is meant, so that a repetition after a crash replaces no second one. */
static KV_RC begin(struct svc_operation_run *run)
{
    struct kv_id root;
    char text[KV_ID_TEXT_SIZE];
    KV_TRY(root_in_force(run, &root));
    kv_id_text("rot", &root, text);
    kv_buf_text(&run->position, text);
    return kv_buf_check(&run->position);
}

static KV_RC old_root(struct svc_operation_run *run, struct kv_id *ret_root)
{
    char text[KV_ID_TEXT_SIZE] = "";
    struct kv_bytes position = kv_buf_bytes(&run->position);
    snprintf(text, sizeof text, "%.*s", (int)position.len, (const char *)position.data);
    return kv_id_parse("rot", text, ret_root) == KV_OK
               ? KV_OK
               : kv_fail(&run->info, KV_E_CORRUPT, "the operation's position is not one of this kind");
}

static KV_RC is_there(struct svc_operation_run *run, const char *target, bool *ret_there)
{
    struct kv_store_kroot kroot = {0};
    KV_TRY(kv_store_kroot_get(run->pg, &run->info, &kroot));
    *ret_there = target == NULL || strcmp(kroot.provider, target) == 0;
    kv_store_kroot_done(&kroot);
    return KV_OK;
}

static KV_RC finish(struct svc_operation_run *run, const struct kv_store_batch *batch, const char *target)
{
    bool there = false;
    KV_TRY(is_there(run, target, &there));
    if (!there) { /* an erasure replaced it before it could move */
        kv_buf_reset(&run->position);
        return begin(run);
    }
    char old[KV_ID_TEXT_SIZE], fresh[KV_ID_TEXT_SIZE], receipt[2 * sizeof batch->receipt_sha256 + 1];
    kv_id_text("rot", &batch->old_root, old);
    kv_id_text("rot", &batch->new_root, fresh);
    kv_hex_encode(batch->receipt_sha256, sizeof batch->receipt_sha256, receipt);
    snprintf(run->row.response, sizeof run->row.response,
             "{\"new_root\":\"%s\",\"old_root\":\"%s\",\"provider\":\"%s\",\"receipt_sha256\":\"%s\"}", fresh, old,
             batch->provider, receipt);
    run->done = true;
    return KV_OK;
}

/* How far the batch is that replaces `old`; asks for one as long as there is none. */
static KV_RC look(struct svc_operation_run *run, const struct kv_id *old, const char *target)
{
    struct kv_store_batch batch = {0};
    struct kv_id root;
    enum kv_err rc = kv_store_batch_of_root(run->pg, old, &run->info, &batch);
    if (rc == KV_E_NOT_FOUND) {
        KV_TRY(root_in_force(run, &root));
        if (!kv_id_equal(&root, old)) { /* its loss was accepted */
            return kv_fail(&run->info, KV_E_INVALID_STATE, "the root was replaced otherwise, and is lost");
        }
        svc_root_replace(run->svc, old, target);
        return KV_OK;
    }
    KV_TRY(rc);
    snprintf(run->row.phase, sizeof run->row.phase, "%s", kv_batch_state_name(batch.state));
    run->row.done_units = batch.state;
    if (batch.state == KV_BATCH_STAGED) { /* of an eraser that may have ended */
        svc_root_replace(run->svc, old, target);
    }
    return batch.state == KV_BATCH_DONE ? finish(run, &batch, target) : KV_OK;
}

static KV_RC replace(struct svc_operation_run *run, const char *target)
{
    struct kv_id old;
    snprintf(run->row.unit, sizeof run->row.unit, "steps");
    run->row.total_units = KV_BATCH_DONE;
    if (kv_buf_bytes(&run->position).len == 0) {
        return begin(run);
    }
    for (int looks = 0; !run->done && looks < PIECE_LOOKS; looks++) {
        KV_TRY(old_root(run, &old));
        KV_TRY(look(run, &old, target));
        if (!run->done && svc_sleep(run->svc, LOOK_NS)) {
            return KV_OK;
        }
    }
    return KV_OK;
}

KV_RC svc_run_root_rotate(struct svc_operation_run *run)
{
    return replace(run, NULL);
}

KV_RC svc_run_root_migrate(struct svc_operation_run *run)
{
    char name[KV_PROVIDER_SIZE] = "";
    const char *target = sscanf(run->row.params, "{\"to\":\"%31[a-z0-9]", name) == 1 ? svc_provider_name(name) : NULL;
    return target == NULL ? kv_fail(&run->info, KV_E_CORRUPT, "the operation's parameters are not of this kind")
                          : replace(run, target);
}

/* --- cancelled ---------------------------------------------------------------------------------------------------- */

/* Where the fresh root is, or would be. */
static KV_RC target_of(struct svc_operation_run *run, const char **ret_provider)
{
    char name[KV_PROVIDER_SIZE] = "";
    struct kv_store_kroot kroot = {0};
    *ret_provider = sscanf(run->row.params, "{\"to\":\"%31[a-z0-9]", name) == 1 ? svc_provider_name(name) : NULL;
    if (*ret_provider == NULL) {
        KV_TRY(kv_store_kroot_get(run->pg, &run->info, &kroot));
        *ret_provider = svc_provider_name(kroot.provider);
        kv_store_kroot_done(&kroot);
    }
    return KV_OK;
}

/* Once the tree is re-keyed there is no way back, and it goes on to its end. */
KV_RC svc_call_off_root(struct svc_operation_run *run)
{
    struct kv_id old;
    struct kv_store_batch batch = {.state = KV_BATCH_STAGED};
    const char *provider = NULL;
    uint64_t now_us = run->svc->env->realtime_us(run->svc->env->ctx);
    run->done = kv_buf_bytes(&run->position).len == 0;
    if (run->done) {
        return KV_OK; /* nobody was asked yet */
    }
    KV_TRY(old_root(run, &old));
    KV_TRY(target_of(run, &provider));
    svc_root_call_off(run->svc, provider);
    for (int looks = 0; !run->done && looks < PIECE_LOOKS; looks++) {
        enum kv_err rc = kv_store_batch_of_root(run->pg, &old, &run->info, &batch);
        KV_TRY(rc == KV_E_NOT_FOUND ? KV_OK : rc);
        run->goes_on = rc == KV_OK && batch.state != KV_BATCH_STAGED;
        if (run->goes_on) {
            return KV_OK;
        }
        run->done = rc == KV_E_NOT_FOUND && svc_root_is_swept(run->svc);
        if (!run->done && svc_sleep(run->svc, LOOK_NS)) {
            return KV_OK;
        }
    }
    if (!run->done && now_us > run->row.cancel_requested_us + CALL_OFF_US) {
        snprintf(run->row.phase, sizeof run->row.phase, "a key may be left at %s", provider);
        run->done = true;
    }
    return KV_OK;
}

/* --- looking ----------------------------------------------------------------------------------------------------- */

static KV_RC fill_database(struct kv_call *call, struct kv_root_view *view)
{
    struct kv_store_kroot kroot = {0};
    enum kv_err rc = kv_store_kroot_get(call->pg, &call->info, &kroot);
    if (rc == KV_E_MISSING) {
        return KV_OK;
    }
    KV_TRY(rc);
    view->root = kroot.root_id;
    snprintf(view->database_provider, sizeof view->database_provider, "%s", kroot.provider);
    kv_store_kroot_done(&kroot);
    return kv_store_root_history(call->pg, &call->info, &view->replaced, &view->replaced_us);
}

KV_RC kv_svc_root_get(struct kv_call *call, struct kv_root_view *ret_view)
{
    struct kv_svc *svc = call->svc;
    pthread_mutex_lock(&svc->roe_mutex);
    struct kv_roe *roe = svc->roe; /* which stays open */
    pthread_mutex_unlock(&svc->roe_mutex);
    struct kv_root_view view = {.provider = roe->ops->name,
                                .assurance = roe->ops->assurance(roe),
                                .shared = roe->ops->shared,
                                .quarantine = atomic_load(&svc->quarantine)};
    bool file = strcmp(roe->ops->name, kv_roe_file.name) == 0;
    view.path = file ? svc->conf.root_path : NULL;
    KV_TRY(fill_database(call, &view));
    pthread_mutex_lock(&svc->roe_mutex);
    snprintf(view.detail, sizeof view.detail, "%s", roe->ops->describe(roe));
    enum kv_err rc = roe->ops->list(roe, &view.active, &view.staged);
    if (rc != KV_OK) {
        bool told = roe->trouble.text[0] != '\0' && roe->trouble.code == rc;
        snprintf(view.trouble, sizeof view.trouble, "%s", told ? roe->trouble.text : kv_err_title(rc));
    }
    pthread_mutex_unlock(&svc->roe_mutex);
    view.limit_count = kv_svc_erasure_limits(&view.limits);
    *ret_view = view;
    return KV_OK;
}
