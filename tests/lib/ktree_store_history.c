/*
 * The store double for the erasure tree. Never forgets a row.
 */
#include "tests/lib/ktree_store_history.h"
#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"

#include <stdlib.h>
#include <string.h>

static bool same_key(const struct kv_node_key *a, const struct kv_node_key *b)
{
    return a->level == b->level && a->idx == b->idx && kv_id_equal(&a->tree, &b->tree);
}

void kvt_history_init(struct kvt_history *history)
{
    *history = (struct kvt_history){.mutex = PTHREAD_MUTEX_INITIALIZER};
}

void kvt_history_done(struct kvt_history *history)
{
    for (size_t i = 0; i < history->count; i++) {
        kv_free(history->rows[i].row.sealed);
    }
    free(history->rows);
}

struct kvt_row *kvt_history_find(struct kvt_history *history, const struct kv_node_key *key)
{
    for (size_t i = history->count; i > 0; i--) {
        if (history->rows[i - 1].current && same_key(&history->rows[i - 1].key, key)) {
            return &history->rows[i - 1];
        }
    }
    return NULL;
}

void kvt_history_roll_back(struct kvt_history *history, size_t mark)
{
    for (size_t i = mark; i < history->count; i++) {
        history->rows[i].current = false;
        for (size_t j = mark; j > 0; j--) {
            if (same_key(&history->rows[j - 1].key, &history->rows[i].key)) {
                history->rows[j - 1].current = true;
                break;
            }
        }
    }
}

static void copy_row(const struct kv_node_row *row, struct kv_node_row *ret_copy)
{
    *ret_copy = *row;
    ret_copy->sealed = kv_alloc(row->sealed_len);
    if (ret_copy->sealed == NULL) {
        abort();
    }
    memcpy(ret_copy->sealed, row->sealed, row->sealed_len);
}

static void append(struct kvt_history *history, const struct kv_node_key *key, const struct kv_node_row *row)
{
    if (history->count == history->size) {
        history->size = history->size == 0 ? 64 : history->size * 2;
        history->rows = realloc(history->rows, history->size * sizeof(*history->rows));
        if (history->rows == NULL) {
            abort();
        }
    }
    struct kvt_row *added = &history->rows[history->count++];
    *added = (struct kvt_row){.key = *key, .current = true};
    copy_row(row, &added->row);
}

static KV_RC history_load(void *ctx, const struct kv_node_key *key, struct kv_node_row *ret_row)
{
    struct kvt_history *history = ctx;
    if (history->before_load != NULL) {
        history->before_load(history->before_load_arg);
    }
    pthread_mutex_lock(&history->mutex);
    history->loads++;
    struct kvt_row *found = kvt_history_find(history, key);
    if (found != NULL) {
        copy_row(&found->row, ret_row);
    }
    pthread_mutex_unlock(&history->mutex);
    return found != NULL ? KV_OK : KV_E_MISSING;
}

static KV_RC history_insert(void *ctx, const struct kv_node_key *key, const struct kv_node_row *row)
{
    struct kvt_history *history = ctx;
    pthread_mutex_lock(&history->mutex);
    bool there = kvt_history_find(history, key) != NULL;
    if (!there) {
        history->inserts++;
        append(history, key, row);
    }
    pthread_mutex_unlock(&history->mutex);
    return there ? KV_E_STALE : KV_OK;
}

static KV_RC history_update(void *ctx, const struct kv_node_key *key, int64_t seen_version,
                            const struct kv_node_row *row)
{
    struct kvt_history *history = ctx;
    pthread_mutex_lock(&history->mutex);
    struct kvt_row *found = kvt_history_find(history, key);
    bool seen = found != NULL && found->row.version == seen_version;
    if (seen) {
        history->updates++;
        found->current = false;
        append(history, key, row);
    }
    pthread_mutex_unlock(&history->mutex);
    return seen ? KV_OK : KV_E_STALE;
}

struct kv_ktree_store kvt_history_store(struct kvt_history *history)
{
    return (struct kv_ktree_store){
        .ctx = history, .load = history_load, .insert = history_insert, .update = history_update};
}
