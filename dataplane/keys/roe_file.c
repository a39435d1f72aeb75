/*
 * The `file` provider: one wrapping key a root in one of two slots of one small file, outside the database and its
 * backups. Slots are written in place and destroyed in place. No key is held in memory between two calls: each one
 * reads the medium afresh. It must never write a key anywhere else, and never activate an id that its caller did not
 * name.
 */
#include "dataplane/base/fault.h"
#include "dataplane/base/log.h"
#include "dataplane/base/mem.h"
#include "dataplane/keys/roe_file_int.h"
#include "dataplane/keys/roe_int.h"

#include <string.h>

#define NO_SLOT KV_ROE_SLOTS

struct file_roe {
    struct kv_roe base;
    struct kv_medium medium;
    bool torn_said; /* it is looked at often, and said once */
};

struct look {
    struct kv_roe_slot slots[KV_ROE_SLOTS];
    struct kv_roe_view view;
};

static struct file_roe *file_of(struct kv_roe *roe)
{
    return (struct file_roe *)roe;
}

static KV_RC look_add(struct file_roe *roe, struct look *look, unsigned slot)
{
    struct kv_id *place = NULL;
    switch (look->slots[slot].state) {
    case KV_ROE_SLOT_EMPTY:
        return KV_OK;
    case KV_ROE_SLOT_TORN:
        if (!roe->torn_said) {
            kv_log(KV_LOG_WARN, "roe", "torn slot, treated as absent", KV_FU("slot", slot));
        }
        roe->torn_said = true;
        return KV_OK;
    case KV_ROE_SLOT_STAGED:
        place = &look->view.staged;
        break;
    case KV_ROE_SLOT_ACTIVE:
        place = &look->view.active;
        break;
    }
    if (place == NULL || !kv_id_is_zero(place)) {
        return KV_E_CORRUPT; /* Two active or two staged keys are not a state of the diagram. */
    }
    *place = look->slots[slot].id;
    return KV_OK;
}

static KV_RC look_at(struct file_roe *roe, struct look *ret_look)
{
    struct look look = {0};
    KV_TRY(kv_medium_check_path(&roe->medium));
    for (unsigned slot = 0; slot < KV_ROE_SLOTS; slot++) {
        KV_TRY(kv_medium_read_slot(&roe->medium, slot));
        kv_roe_slot_parse(roe->medium.buffer, &look.slots[slot]);
        kv_medium_forget(&roe->medium);
        KV_TRY(look_add(roe, &look, slot));
    }
    if (!kv_id_is_zero(&look.view.active) && kv_id_equal(&look.view.active, &look.view.staged)) {
        return KV_E_CORRUPT;
    }
    *ret_look = look;
    return KV_OK;
}

static bool slot_is_whole(const struct kv_roe_slot *slot)
{
    return slot->state == KV_ROE_SLOT_STAGED || slot->state == KV_ROE_SLOT_ACTIVE;
}

static unsigned slot_of(const struct look *look, const struct kv_id *id)
{
    for (unsigned slot = 0; slot < KV_ROE_SLOTS; slot++) {
        if (slot_is_whole(&look->slots[slot]) && kv_id_equal(&look->slots[slot].id, id)) {
            return slot;
        }
    }
    return NO_SLOT;
}

/* A torn slot first, so that whatever it still holds is overwritten. */
static unsigned slot_for_create(const struct look *look)
{
    unsigned found = NO_SLOT;
    for (unsigned slot = 0; slot < KV_ROE_SLOTS; slot++) {
        if (look->slots[slot].state == KV_ROE_SLOT_TORN) {
            return slot;
        }
        if (look->slots[slot].state == KV_ROE_SLOT_EMPTY && found == NO_SLOT) {
            found = slot;
        }
    }
    return found;
}

static KV_RC file_open(const struct kv_roe_conf *conf, struct kv_errinfo *info, struct kv_roe **ret_roe)
{
    struct file_roe *roe = kv_alloc(sizeof(*roe));
    if (roe == NULL) {
        return kv_fail(info, KV_E_NO_MEMORY, "no memory for the root of erasure");
    }
    roe->base.ops = &kv_roe_file;
    enum kv_err rc = kv_medium_open(conf, info, &roe->medium);
    if (rc != KV_OK) {
        kv_free(roe);
        return rc;
    }
    *ret_roe = &roe->base;
    return KV_OK;
}

/* What was written must be what a later start will read. */
static KV_RC confirm_slot(struct file_roe *roe, unsigned slot, const struct kv_roe_slot *wanted)
{
    struct kv_roe_slot found;
    KV_TRY(kv_medium_read_slot(&roe->medium, slot));
    kv_roe_slot_parse(roe->medium.buffer, &found);
    kv_medium_forget(&roe->medium);
    return found.state == wanted->state && kv_id_equal(&found.id, &wanted->id) ? KV_OK : KV_E_IO;
}

static KV_RC file_create(struct kv_roe *base, const struct kv_id *id)
{
    struct file_roe *roe = file_of(base);
    struct look look;
    enum kv_roe_step step = KV_ROE_NOTHING;
    KV_TRY(look_at(roe, &look));
    KV_TRY(kv_roe_plan_create(&look.view, id, &step));
    if (step == KV_ROE_NOTHING) {
        return KV_OK;
    }
    unsigned slot = slot_for_create(&look);
    if (slot == NO_SLOT) {
        return KV_E_INTERNAL;
    }
    struct kv_secret *key KV_CLEANUP(kv_secret_freep) = NULL;
    KV_TRY(kv_secret_random(roe->medium.env, 32, &key));
    if (KV_FAULT("roe/file/create-write")) {
        return KV_E_IO;
    }
    const struct kv_roe_slot wanted = {.state = KV_ROE_SLOT_STAGED, .id = *id};
    kv_roe_slot_build(roe->medium.buffer, &wanted, key);
    enum kv_err rc = kv_medium_write_slot(&roe->medium, slot);
    kv_medium_forget(&roe->medium);
    KV_TRY(rc);
    if (KV_FAULT("roe/file/create-done")) {
        return KV_E_IO;
    }
    return confirm_slot(roe, slot, &wanted);
}

static KV_RC wrapping_key(struct file_roe *roe, const struct kv_id *id, struct kv_secret **ret_key)
{
    struct look look;
    KV_TRY(look_at(roe, &look));
    unsigned slot = slot_of(&look, id);
    if (slot == NO_SLOT) {
        return KV_E_MISSING;
    }
    KV_TRY(kv_medium_read_slot(&roe->medium, slot));
    enum kv_err rc = kv_roe_slot_key(roe->medium.buffer, ret_key);
    kv_medium_forget(&roe->medium);
    return rc;
}

static KV_RC file_wrap(struct kv_roe *base, const struct kv_id *id, const struct kv_secret *root,
                       struct kv_buf *ret_blob)
{
    struct file_roe *roe = file_of(base);
    struct kv_secret *key KV_CLEANUP(kv_secret_freep) = NULL;
    KV_TRY(wrapping_key(roe, id, &key));
    return kv_roe_blob_seal(roe->medium.env, key, id, root, ret_blob);
}

static KV_RC file_unwrap(struct kv_roe *base, const struct kv_id *id, struct kv_bytes blob, struct kv_secret **ret_root)
{
    struct kv_secret *key KV_CLEANUP(kv_secret_freep) = NULL;
    KV_TRY(wrapping_key(file_of(base), id, &key));
    return kv_roe_blob_open(key, id, blob, ret_root);
}

static KV_RC activate(struct file_roe *roe, unsigned slot, const struct kv_id *id)
{
    if (KV_FAULT("roe/file/activate")) {
        return KV_E_IO;
    }
    const struct kv_roe_slot wanted = {.state = KV_ROE_SLOT_ACTIVE, .id = *id};
    KV_TRY(kv_medium_read_slot(&roe->medium, slot));
    kv_roe_slot_build(roe->medium.buffer, &wanted, NULL);
    enum kv_err rc = kv_medium_write_slot(&roe->medium, slot);
    kv_medium_forget(&roe->medium);
    KV_TRY(rc);
    if (KV_FAULT("roe/file/activated")) {
        return KV_E_IO;
    }
    return confirm_slot(roe, slot, &wanted);
}

static KV_RC file_commit(struct kv_roe *base, const struct kv_id *fresh, const struct kv_id *old,
                         struct kv_roe_receipt *ret_receipt)
{
    struct file_roe *roe = file_of(base);
    struct look look;
    enum kv_roe_step step = KV_ROE_NOTHING;
    KV_TRY(look_at(roe, &look));
    KV_TRY(kv_roe_plan_commit(&look.view, fresh, old, &step));
    unsigned slot = slot_of(&look, fresh);
    if (slot == NO_SLOT) {
        return KV_E_INTERNAL;
    }
    unsigned other = 1 - slot;
    /* A torn slot may still hold the bytes of `old`; no receipt is given over it. */
    if (step == KV_ROE_DESTROY || look.slots[other].state == KV_ROE_SLOT_TORN) {
        enum kv_err rc = kv_medium_destroy_slot(&roe->medium, other);
        kv_medium_forget(&roe->medium);
        KV_TRY(rc);
    }
    if (step != KV_ROE_NOTHING) {
        KV_TRY(activate(roe, slot, fresh));
    }
    return kv_roe_receipt_make(roe->medium.env, kv_roe_file.name, fresh, old, ret_receipt);
}

static KV_RC file_retire(struct kv_roe *base, const struct kv_id *old, const struct kv_id *fresh,
                         struct kv_roe_receipt *ret_receipt)
{
    struct file_roe *roe = file_of(base);
    struct look look;
    enum kv_roe_step step = KV_ROE_NOTHING;
    KV_TRY(look_at(roe, &look));
    KV_TRY(kv_roe_plan_retire(&look.view, old, &step));
    /* Whatever is not empty: a torn slot may still hold the bytes of `old`. */
    for (unsigned slot = 0; slot < KV_ROE_SLOTS; slot++) {
        if (look.slots[slot].state != KV_ROE_SLOT_EMPTY) {
            enum kv_err rc = kv_medium_destroy_slot(&roe->medium, slot);
            kv_medium_forget(&roe->medium);
            KV_TRY(rc);
        }
    }
    return kv_roe_receipt_make(roe->medium.env, kv_roe_file.name, fresh, old, ret_receipt);
}

static KV_RC file_discard(struct kv_roe *base, const struct kv_id *staged)
{
    struct file_roe *roe = file_of(base);
    struct look look;
    enum kv_roe_step step = KV_ROE_NOTHING;
    KV_TRY(look_at(roe, &look));
    KV_TRY(kv_roe_plan_discard(&look.view, staged, &step));
    if (step == KV_ROE_NOTHING) {
        return KV_OK;
    }
    enum kv_err rc = kv_medium_destroy_slot(&roe->medium, slot_of(&look, staged));
    kv_medium_forget(&roe->medium);
    return rc;
}

static KV_RC file_list(struct kv_roe *base, struct kv_id *ret_active, struct kv_id *ret_staged)
{
    struct look look;
    KV_TRY(look_at(file_of(base), &look));
    *ret_active = look.view.active;
    *ret_staged = look.view.staged;
    return KV_OK;
}

static const char *file_describe(const struct kv_roe *base)
{
    const struct file_roe *roe = (const struct file_roe *)base;
    return roe->medium.direct ? "file (in place, O_DIRECT)"
                              : "file (in place, through the page cache: this file system has no O_DIRECT)";
}

static const char *file_assurance(const struct kv_roe *roe)
{
    (void)roe;
    return "E2";
}

static void file_close(struct kv_roe *base)
{
    if (base == NULL) {
        return;
    }
    struct file_roe *roe = file_of(base);
    kv_medium_close(&roe->medium);
    kv_free(roe);
}

#ifdef KV_FAULTS
int kv_roe_file_fd(const struct kv_roe *roe)
{
    return ((const struct file_roe *)roe)->medium.fd;
}
#endif

const struct kv_roe_ops kv_roe_file = {
    .name = "file",
    .open = file_open,
    .create = file_create,
    .wrap = file_wrap,
    .unwrap = file_unwrap,
    .commit = file_commit,
    .retire = file_retire,
    .discard = file_discard,
    .list = file_list,
    .describe = file_describe,
    .assurance = file_assurance,
    .close = file_close,
};
