/* Labels, see labels.h: merging them, and their two columns in statements. Must never make a statement of them. */
#include "server/store/labels.h"

#include "server/store/pg_int.h"

#include <string.h>

static unsigned place_of(const struct kv_labels *labels, const char *name)
{
    unsigned place = 0;
    while (place < labels->count && strcmp(labels->items[place].name, name) < 0) {
        place++;
    }
    return place;
}

static void take_out(struct kv_labels *labels, unsigned place)
{
    labels->count--;
    memmove(&labels->items[place], &labels->items[place + 1], (labels->count - place) * sizeof labels->items[0]);
}

static KV_RC put_in(struct kv_labels *labels, unsigned place, const struct kv_label *label)
{
    if (labels->count == KV_LABELS_MAX) {
        return KV_E_LIMIT;
    }
    memmove(&labels->items[place + 1], &labels->items[place], (labels->count - place) * sizeof labels->items[0]);
    labels->items[place] = *label;
    labels->count++;
    return KV_OK;
}

/* In two rounds, so that a patch that removes one label and adds another fits whatever their order is. */
KV_RC kv_labels_merge(struct kv_labels *labels, const struct kv_labels *patch)
{
    struct kv_labels merged = *labels;
    for (int removing = 1; removing >= 0; removing--) {
        for (unsigned i = 0; i < patch->count; i++) {
            const struct kv_label *label = &patch->items[i];
            unsigned place = place_of(&merged, label->name);
            bool there = place < merged.count && strcmp(merged.items[place].name, label->name) == 0;
            if (label->remove != (removing == 1)) {
                continue;
            }
            if (label->remove && there) {
                take_out(&merged, place);
            } else if (!label->remove && there) {
                merged.items[place] = *label;
            } else if (!label->remove) {
                KV_TRY(put_in(&merged, place, label));
            }
        }
    }
    *labels = merged;
    return KV_OK;
}

/* --- in statements ----------------------------------------------------------------------------------------------- */

void kv_pg_labels_init(struct kv_pg_labels *arrays, const struct kv_labels *labels)
{
    size_t bytes = labels->count * (size_t)KV_LABEL_VALUE_SIZE;
    kv_pg_array_init(&arrays->names, KV_PG_ARRAY_TEXT, labels->count, bytes);
    kv_pg_array_init(&arrays->values, KV_PG_ARRAY_TEXT, labels->count, bytes);
    for (unsigned i = 0; i < labels->count; i++) {
        kv_pg_array_raw(&arrays->names, labels->items[i].name, strlen(labels->items[i].name), false);
        kv_pg_array_raw(&arrays->values, labels->items[i].value, strlen(labels->items[i].value), false);
    }
}

void kv_pg_labels_done(struct kv_pg_labels *arrays)
{
    kv_pg_array_done(&arrays->names);
    kv_pg_array_done(&arrays->values);
}

void kv_pg_arg_labels(struct kv_pg_args *args, const struct kv_pg_labels *arrays)
{
    kv_pg_arg_array(args, &arrays->names, KV_PG_ARRAY_TEXT);
    kv_pg_arg_array(args, &arrays->values, KV_PG_ARRAY_TEXT);
}

void kv_pg_get_labels(struct kv_pg_row *row, struct kv_labels *ret_labels)
{
    struct kv_pg_items names = kv_pg_get_array(row), values = kv_pg_get_array(row);
    memset(ret_labels, 0, sizeof *ret_labels);
    if (names.count != values.count || names.count > KV_LABELS_MAX) {
        row->failed = true;
        return;
    }
    ret_labels->count = names.count;
    for (unsigned i = 0; i < ret_labels->count; i++) {
        kv_pg_item_text(&names, row, ret_labels->items[i].name, KV_LABEL_NAME_SIZE);
        kv_pg_item_text(&values, row, ret_labels->items[i].value, KV_LABEL_VALUE_SIZE);
    }
}
