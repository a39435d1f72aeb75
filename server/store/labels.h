/*
 * Labels of tenants and sessions: names of [a-z0-9_.-] with a text each. Kept sorted by name, so that one set has one
 * form. What they mean is the client's; they are in plain text in the database for as long as their owner lives.
 */
#ifndef KV_STORE_LABELS_H
#define KV_STORE_LABELS_H

#include "dataplane/base/err.h"

#define KV_LABELS_MAX 16        /* KV_MAX_LABELS */
#define KV_LABEL_NAME_SIZE 64   /* KV_MAX_LABEL_KEY_BYTES and NUL */
#define KV_LABEL_VALUE_SIZE 129 /* KV_MAX_LABEL_VALUE_BYTES and NUL */

struct kv_label {
    char name[KV_LABEL_NAME_SIZE], value[KV_LABEL_VALUE_SIZE];
    bool remove; /* in a patch only: the label goes */
};

struct kv_labels {
    unsigned count;
    struct kv_label items[KV_LABELS_MAX];
};

/* Puts the patch's labels into `labels`, or takes them out. KV_E_LIMIT: more than KV_MAX_LABELS would be left; `labels`
 * is untouched then. */
KV_RC kv_labels_merge(struct kv_labels *labels, const struct kv_labels *patch);

#endif
