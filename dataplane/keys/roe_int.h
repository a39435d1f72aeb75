/*
 * What the providers of this folder share: the decisions of the state diagram in roe.h as pure functions over what is
 * on the medium, and the receipt. It never touches a medium.
 */
#ifndef KV_KEYS_ROE_INT_H
#define KV_KEYS_ROE_INT_H

#include "dataplane/base/id.h"
#include "dataplane/keys/roe.h"
#include "dataplane/keys/roe_blob.h"

/* What a medium holds; a zero id is "none". */
struct kv_roe_view {
    struct kv_id active, staged;
};

/* What a shared provider found, which may be more than the diagram knows: two processes may have staged at once. */
#define KV_ROE_SHELF_MAX 64
struct kv_roe_key {
    struct kv_id id;
    uint64_t fence;
    bool active;
    unsigned long handle; /* the provider's own */
};
struct kv_roe_shelf {
    struct kv_roe_key keys[KV_ROE_SHELF_MAX];
    size_t count;
};

/* KV_E_LIMIT when it is full; an id that is there already is passed over. */
KV_RC kv_roe_shelf_add(struct kv_roe_shelf *shelf, const struct kv_roe_key *key);
const struct kv_roe_key *kv_roe_shelf_find(const struct kv_roe_shelf *shelf, const struct kv_id *id);
/* The shelf as the diagram sees it. Of several staged roots: `named` when it is one of them, else the one of the
 * highest fence, because the others' makers were overtaken. KV_E_CORRUPT: two active ones. */
KV_RC kv_roe_shelf_view(const struct kv_roe_shelf *shelf, const struct kv_id *named, struct kv_roe_view *ret_view);

/* A secret of an operator in a file: the text without its line end, in locked memory that kv_roe_text_done wipes.
 * KV_E_CONFIG with a text for a file that is not absolute, absent, empty, too long or readable by others. */
#define KV_ROE_TEXT_BYTES 4096
struct kv_roe_text {
    char *text; /* owned, NUL-terminated; NULL: none */
    size_t len;
};
KV_RC kv_roe_text_read(const char *path, const char *what, struct kv_errinfo *info, struct kv_roe_text *ret_text);
void kv_roe_text_done(struct kv_roe_text *text);

enum kv_roe_step {
    KV_ROE_NOTHING,  /* the wanted state is there already */
    KV_ROE_DESTROY,  /* destroy the other key, then activate */
    KV_ROE_ACTIVATE, /* the other key is gone already (or there never was one): only activate */
    KV_ROE_WRITE,    /* create: write a fresh staged key; discard: destroy the staged one */
};

KV_RC kv_roe_plan_create(const struct kv_roe_view *view, const struct kv_id *id, enum kv_roe_step *ret_step);
KV_RC kv_roe_plan_commit(const struct kv_roe_view *view, const struct kv_id *fresh, const struct kv_id *old,
                         enum kv_roe_step *ret_step);
KV_RC kv_roe_plan_discard(const struct kv_roe_view *view, const struct kv_id *staged, enum kv_roe_step *ret_step);

KV_RC kv_roe_plan_retire(const struct kv_roe_view *view, const struct kv_id *old, enum kv_roe_step *ret_step);

KV_RC kv_roe_receipt_make(const struct kv_env *env, const char *provider, const struct kv_id *fresh,
                          const struct kv_id *old, struct kv_roe_receipt *ret_receipt);

#endif
