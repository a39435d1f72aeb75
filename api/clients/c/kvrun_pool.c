/*
 * The pools: described by the engine once, handed over as often as the server needs them. A pool's number is the
 * client's; the id that the server gives it changes with each registration.
 *
 * The other task is the holds. Pages named in a call are the engine's again when the answer is there. Where it does not
 * come, the server may be at work on them still: the pool is closed, which the server answers once nothing touches it,
 * and registered anew.
 */
#include "api/clients/c/kvrun_int.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static json_t *regions_json(const struct kvrun_pool *pool)
{
    json_t *regions = json_array();
    for (size_t i = 0; i < pool->region_count; i++) {
        const struct kvrun_region *region = &pool->regions[i];
        json_array_append_new(regions, json_pack("{s:I, s:I, s:I}", "offset_bytes", (json_int_t)region->offset_bytes,
                                                 "stride_bytes", (json_int_t)region->stride_bytes, "run_bytes",
                                                 (json_int_t)region->run_bytes));
    }
    return regions;
}

static json_t *layout_json(const struct kvrun_pool *pool)
{
    json_t *layout = json_pack("{s:s, s:s, s:s, s:I, s:I}", "kind", pool->regions != NULL ? "regions" : "opaque",
                               "format", pool->format, "engine_version", pool->engine_version, "tokens_per_block",
                               (json_int_t)pool->tokens_per_block, "slots", (json_int_t)pool->slots);
    if (layout == NULL || pool->regions == NULL) {
        json_object_set_new(layout, "page_bytes", json_integer((json_int_t)pool->block_bytes));
        return layout;
    }
    json_object_set_new(layout, "bytes_per_block", json_integer((json_int_t)pool->block_bytes));
    json_object_set_new(layout, "regions", regions_json(pool));
    return layout;
}

static void start_epoch(struct kvrun_client *client, struct kvrun_pool_entry *entry, const char *server_id)
{
    pthread_mutex_lock(&client->lock);
    memcpy(entry->server_id, server_id, strlen(server_id) + 1);
    entry->epoch++;
    pthread_mutex_unlock(&client->lock);
}

enum kvrun_end {
    END_CLEAN,  /* the server said that nothing touches the memory, or it is another process */
    END_SILENT, /* it is not there any more: clean, unless something may be on its way */
    END_BUSY,   /* the server said that something does */
};

static void end_epoch(struct kvrun_client *client, struct kvrun_pool_entry *entry, enum kvrun_end how)
{
    pthread_mutex_lock(&client->lock);
    entry->server_id[0] = '\0';
    bool held = how == END_BUSY || (how == END_SILENT && entry->in_doubt);
    entry->held = entry->held || held;
    entry->unclean = entry->unclean || held || (how == END_SILENT && entry->running > 0);
    entry->in_doubt = entry->lost = false;
    if (!entry->unclean) {
        entry->clean_epoch = entry->epoch + 1;
    }
    pthread_mutex_unlock(&client->lock);
}

static bool post_pool(struct kvrun_client *client, struct kvrun_pool_entry *entry, struct kvrun_error *error)
{
    char path[96], token[KVRUN_TOKEN_SIZE], id[KVRUN_ID_SIZE];
    if (!kvrun_hand_over(client, entry->fd, token, error)) {
        return false;
    }
    snprintf(path, sizeof(path), "/v1/engines/%s/pools", client->engine_id);
    json_t *body = json_pack("{s:{s:s, s:s, s:I}, s:O}", "memory", "kind", "memfd", "fd_token", token, "size_bytes",
                             (json_int_t)entry->size_bytes, "layout", entry->layout);
    json_t *answer = NULL;
    if (!kvrun_http_post(client, path, body, &answer, error)) {
        return false;
    }
    bool fine = kvrun_member_text(answer, "id", id, sizeof(id), error) && kvrun_check_id(id, "poo", error);
    json_decref(answer);
    if (fine) {
        start_epoch(client, entry, id);
    }
    return fine;
}

/* False when the server still has it, or may have. */
static bool close_pool(struct kvrun_client *client, struct kvrun_pool_entry *entry, struct kvrun_error *error)
{
    char path[96];
    snprintf(path, sizeof(path), "/v1/pools/%s", entry->server_id);
    struct kvrun_exchange exchange = {.method = "DELETE", .path = path, .timeout_ms = client->control_timeout_ms};
    json_t *answer = NULL;
    if (kvrun_http_call(client, &exchange, &answer, error)) {
        json_decref(answer);
        end_epoch(client, entry, END_CLEAN);
        return true;
    }
    if (error->status == 404 || error->status == 410) {
        end_epoch(client, entry, END_SILENT);
        return true;
    }
    if (error->status == 504) {
        end_epoch(client, entry, END_BUSY);
        return true;
    }
    return false;
}

bool kvrun_pools_renew(struct kvrun_client *client, struct kvrun_error *error)
{
    for (uint32_t i = 0; i < KVRUN_POOLS_MAX; i++) {
        struct kvrun_pool_entry *entry = &client->pools[i];
        pthread_mutex_lock(&client->lock);
        bool in_doubt = entry->in_doubt, lost = entry->lost;
        pthread_mutex_unlock(&client->lock);
        if (!entry->used) {
            continue;
        }
        if (entry->server_id[0] != '\0' && lost) {
            end_epoch(client, entry, END_SILENT);
        }
        if (entry->server_id[0] != '\0' && in_doubt && !close_pool(client, entry, error)) {
            return false;
        }
        if (entry->server_id[0] == '\0' && !post_pool(client, entry, error)) {
            return false;
        }
    }
    return true;
}

void kvrun_pools_forgotten(struct kvrun_client *client, bool restarted)
{
    for (uint32_t i = 0; i < KVRUN_POOLS_MAX; i++) {
        struct kvrun_pool_entry *entry = &client->pools[i];
        if (restarted) {
            pthread_mutex_lock(&client->lock);
            entry->unclean = entry->held = false;
            pthread_mutex_unlock(&client->lock);
        }
        end_epoch(client, entry, restarted ? END_CLEAN : END_SILENT);
    }
}

/* Its holds, if there are any, outlast it. */
static void drop(struct kvrun_client *client, struct kvrun_pool_entry *entry)
{
    end_epoch(client, entry, END_SILENT);
    pthread_mutex_lock(&client->lock);
    entry->used = false;
    pthread_mutex_unlock(&client->lock);
    close(entry->fd);
    json_decref(entry->layout);
    entry->layout = NULL;
}

void kvrun_pools_drop(struct kvrun_client *client)
{
    for (uint32_t i = 0; i < KVRUN_POOLS_MAX; i++) {
        if (client->pools[i].used) {
            drop(client, &client->pools[i]);
        }
    }
}

static bool check_pool(const struct kvrun_client *client, const struct kvrun_pool *pool, struct kvrun_error *error)
{
    if (client->fd_socket_path == NULL) {
        return kvrun_fail(error, "invalid_argument", "the client was made without a descriptor socket");
    }
    if (client->registration == NULL) {
        return kvrun_fail(error, "invalid_argument", "register the engine first");
    }
    if (pool->format == NULL || pool->engine_version == NULL || (pool->regions != NULL && pool->region_count == 0)) {
        return kvrun_fail(error, "invalid_argument", "a pool has a format, an engine version, and pages");
    }
    return true;
}

static struct kvrun_pool_entry *free_entry(struct kvrun_client *client)
{
    struct kvrun_pool_entry *found = NULL;
    pthread_mutex_lock(&client->lock);
    for (uint32_t i = 0; i < KVRUN_POOLS_MAX && found == NULL; i++) {
        struct kvrun_pool_entry *entry = &client->pools[i];
        if (!entry->used && entry->running == 0 && !entry->unclean) { /* nothing is left of the one before */
            found = entry;
        }
    }
    pthread_mutex_unlock(&client->lock);
    return found;
}

static bool fill(struct kvrun_client *client, struct kvrun_pool_entry *entry, const struct kvrun_pool *pool,
                 struct kvrun_error *error)
{
    int fd = fcntl(pool->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) {
        return kvrun_fail(error, "invalid_argument", "the pool's descriptor: %s", strerror(errno));
    }
    json_t *layout = layout_json(pool);
    if (layout == NULL) {
        close(fd);
        return kvrun_fail(error, "invalid_argument", "the pool's texts are not UTF-8");
    }
    pthread_mutex_lock(&client->lock);
    entry->used = true;
    entry->fd = fd;
    entry->layout = layout;
    entry->size_bytes = pool->size_bytes;
    pthread_mutex_unlock(&client->lock);
    return true;
}

static bool add(struct kvrun_client *client, const struct kvrun_pool *pool, uint32_t *ret_pool,
                struct kvrun_error *error)
{
    if (!check_pool(client, pool, error)) {
        return false;
    }
    struct kvrun_pool_entry *entry = free_entry(client);
    if (entry == NULL) {
        return kvrun_fail(error, "limit", "an engine has at most %d pools", KVRUN_POOLS_MAX);
    }
    if (!fill(client, entry, pool, error)) {
        return false;
    }
    struct kvrun_error away;
    if (kvrun_ready(client, &away) && !kvrun_link_renew(client, true, error) && !kvrun_error_is_outage(error)) {
        drop(client, entry);
        bool up = kvrun_link_renew(client, true, &away); /* as before; when not, the heartbeat goes on trying */
        (void)up;
        return false;
    }
    *ret_pool = (uint32_t)(entry - client->pools);
    return true;
}

bool kvrun_pool_register(struct kvrun_client *client, const struct kvrun_pool *pool, uint32_t *ret_pool,
                         struct kvrun_error *error)
{
    pthread_mutex_lock(&client->link_lock);
    bool fine = add(client, pool, ret_pool, error);
    pthread_mutex_unlock(&client->link_lock);
    return fine;
}

static bool no_such_pool(struct kvrun_error *error)
{
    return kvrun_fail(error, "invalid_argument", "this client has no pool of that number");
}

static bool take_away(struct kvrun_client *client, uint32_t pool, struct kvrun_error *error)
{
    if (pool >= KVRUN_POOLS_MAX || !client->pools[pool].used) {
        return no_such_pool(error);
    }
    struct kvrun_pool_entry *entry = &client->pools[pool];
    if (entry->server_id[0] != '\0' && !close_pool(client, entry, error)) {
        return false;
    }
    if (entry->unclean) {
        kvrun_fail(error, "pool_busy", "the server has not said that nothing touches the memory any more");
        error->retryable = true;
        return false;
    }
    drop(client, entry);
    return true;
}

bool kvrun_pool_remove(struct kvrun_client *client, uint32_t pool, struct kvrun_error *error)
{
    pthread_mutex_lock(&client->link_lock);
    bool fine = take_away(client, pool, error);
    pthread_mutex_unlock(&client->link_lock);
    return fine;
}

bool kvrun_pool_begin(struct kvrun_client *client, uint32_t pool, struct kvrun_pool_use *ret_use,
                      struct kvrun_error *error)
{
    pthread_mutex_lock(&client->lock);
    struct kvrun_pool_entry *entry = pool < KVRUN_POOLS_MAX ? &client->pools[pool] : NULL;
    bool fine = entry != NULL && entry->used;
    if (!fine) {
        no_such_pool(error);
    } else if (!client->stats.up || entry->server_id[0] == '\0') {
        fine = kvrun_fail(error, "down", "%s", client->why_down.detail);
    } else {
        entry->running++;
        *ret_use = (struct kvrun_pool_use){.epoch = entry->epoch, .generation = client->generation};
        memcpy(ret_use->pool_id, entry->server_id, sizeof(ret_use->pool_id));
    }
    pthread_mutex_unlock(&client->lock);
    return fine;
}

uint64_t kvrun_pool_end(struct kvrun_client *client, uint32_t pool, const struct kvrun_pool_use *use,
                        enum kvrun_use_end how)
{
    pthread_mutex_lock(&client->lock);
    struct kvrun_pool_entry *entry = &client->pools[pool];
    entry->running--;
    uint64_t hold = how == KVRUN_USE_IN_DOUBT && entry->clean_epoch <= use->epoch ? use->epoch : 0;
    bool ended = entry->epoch != use->epoch || entry->server_id[0] == '\0';
    entry->lost = entry->lost || (how == KVRUN_USE_LOST && !ended);
    if (hold != 0) {
        client->stats.holds++;
        entry->in_doubt = entry->in_doubt || !ended;
        entry->held = entry->held || ended;
    }
    if (entry->running == 0 && entry->unclean && !entry->held) { /* all that were on their way have come back */
        entry->unclean = false;
        entry->clean_epoch = entry->server_id[0] != '\0' ? entry->epoch : entry->epoch + 1;
    }
    pthread_mutex_unlock(&client->lock);
    return hold;
}

bool kvrun_hold_is_over(struct kvrun_client *client, uint32_t pool, uint64_t hold)
{
    pthread_mutex_lock(&client->lock);
    bool over = hold == 0 || pool >= KVRUN_POOLS_MAX || client->pools[pool].clean_epoch > hold;
    pthread_mutex_unlock(&client->lock);
    return over;
}
