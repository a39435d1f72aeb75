/*
 * Lookup, offload and restore. What goes wrong on the way is a miss for every block, and counted; the caller's own
 * mistakes alone are errors.
 */
#include "api/clients/c/kvrun_int.h"

#include <stdio.h>
#include <string.h>

static const char *const paths[] = {
    [KVRUN_LOOKUP] = "/v1/lookups", [KVRUN_OFFLOAD] = "/v1/offloads", [KVRUN_RESTORE] = "/v1/restores"};

static bool check(enum kvrun_kind kind, const struct kvrun_blocks *in, struct kvrun_error *error)
{
    if (in->count == 0 || in->count > KVRUN_BLOCKS_PER_CALL_MAX) {
        return kvrun_fail(error, "invalid_argument", "1 to %d blocks a call", KVRUN_BLOCKS_PER_CALL_MAX);
    }
    if (in->session_id == NULL || in->hashes == NULL || (kind != KVRUN_LOOKUP && in->slots == NULL)) {
        return kvrun_fail(error, "invalid_argument", "a session, hashes and slots are needed");
    }
    return true;
}

/* --- misses and counts -------------------------------------------------------------------------------------------- */

/* What a call that the server did not do is for each of its blocks; false when it is the caller's to know. */
static bool is_miss(enum kvrun_kind kind, const struct kvrun_error *error, enum kvrun_result *ret_result)
{
    static const struct {
        const char *code;
        enum kvrun_result result;
    } refusals[] = {{"busy", KVRUN_BUSY},
                    {"rate_limited", KVRUN_BUSY},
                    {"full", KVRUN_BUSY},
                    {"no_space", KVRUN_BUSY},
                    {"timeout", KVRUN_TIMEOUT},
                    {"quota", KVRUN_DENIED},
                    {"policy_denied", KVRUN_DENIED},
                    {"tenant_suspended", KVRUN_DENIED}};
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
        if (kvrun_error_is(error, refusals[i].code)) {
            *ret_result = refusals[i].result;
            return true;
        }
    }
    *ret_result = kind == KVRUN_OFFLOAD ? KVRUN_FAILED : KVRUN_MISSING;
    return kvrun_error_is_outage(error) || kvrun_error_is(error, "memory");
}

/* The server itself is in trouble, not this call: asking on would be of no use. */
static bool is_away(const struct kvrun_error *error)
{
    static const char *const passing[] = {"busy", "rate_limited", "full", "no_space", "timeout", "down", "memory"};
    for (size_t i = 0; i < sizeof(passing) / sizeof(passing[0]); i++) {
        if (kvrun_error_is(error, passing[i])) {
            return false;
        }
    }
    return kvrun_error_is_outage(error);
}

/* Under the lock. */
static void count_blocks(struct kvrun_stats *stats, enum kvrun_kind kind, const struct kvrun_block *blocks,
                         uint32_t count)
{
    for (uint32_t i = 0; i < count && kind == KVRUN_OFFLOAD; i++) {
        stats->blocks_offered++;
        stats->blocks_stored += blocks[i].result == KVRUN_STORED;
        stats->blocks_present += blocks[i].result == KVRUN_PRESENT;
        stats->blocks_not_stored += blocks[i].result != KVRUN_STORED && blocks[i].result != KVRUN_PRESENT;
    }
    for (uint32_t i = 0; i < count && kind == KVRUN_RESTORE; i++) {
        stats->blocks_asked++;
        stats->blocks_restored += blocks[i].result == KVRUN_RESTORED;
        stats->blocks_not_restored += blocks[i].result != KVRUN_RESTORED;
    }
}

static void count_miss(struct kvrun_stats *stats, const struct kvrun_error *error)
{
    stats->calls_missed++;
    if (kvrun_error_is(error, "down")) {
        stats->missed_down++;
    } else if (kvrun_error_is(error, "protocol")) {
        stats->missed_protocol++;
    } else if (error->status != 0) {
        stats->missed_server++;
    } else {
        stats->missed_transport++;
    }
}

/* --- a call ------------------------------------------------------------------------------------------------------- */

struct call {
    enum kvrun_kind kind;
    const struct kvrun_blocks *in;
    struct kvrun_block *blocks; /* undefined until the call is over */
    struct kvrun_moved moved;
    uint32_t prefix_blocks;
};

static bool ask(struct kvrun_client *client, const struct kvrun_pool_use *use, struct call *call,
                enum kvrun_use_end *ret_how, struct kvrun_error *error)
{
    bool sent = false;
    unsigned deadline_ms = call->in->deadline_ms != 0 ? call->in->deadline_ms : client->deadline_ms;
    struct kvrun_exchange exchange = {.method = "POST",
                                      .path = paths[call->kind],
                                      .body = kvrun_blocks_json(call->kind, call->in, use->pool_id, deadline_ms),
                                      .needs_body = true,
                                      .timeout_ms = client->timeout_ms + (call->kind == KVRUN_LOOKUP ? 0 : deadline_ms),
                                      .ret_sent = &sent};
    json_t *answer = NULL;
    bool answered = kvrun_http_call(client, &exchange, &answer, error);
    bool fine = answered && kvrun_read_blocks(call->kind, answer, call->in->count, call->blocks, error) &&
                (call->kind == KVRUN_LOOKUP || kvrun_read_moved(answer, call->in->count, &call->moved, error));
    call->prefix_blocks = (uint32_t)kvrun_member_number(answer, "prefix_blocks");
    if (fine && call->prefix_blocks > call->in->count) {
        fine = kvrun_fail(error, "protocol", "a longer prefix than was asked for");
    }
    json_decref(answer);
    bool silent = !fine && (kvrun_error_is(error, "transport") || kvrun_error_is(error, "protocol"));
    *ret_how = fine                                           ? KVRUN_USE_ANSWERED
               : kvrun_error_is(error, "engine_unknown")      ? KVRUN_USE_LOST
               : silent && sent && call->kind != KVRUN_LOOKUP ? KVRUN_USE_IN_DOUBT
                                                              : KVRUN_USE_ANSWERED;
    return fine;
}

static bool ask_with_pool(struct kvrun_client *client, struct call *call, struct kvrun_error *error)
{
    struct kvrun_pool_use use;
    enum kvrun_use_end how = KVRUN_USE_ANSWERED;
    if (!kvrun_pool_begin(client, call->in->pool, &use, error)) {
        return false;
    }
    bool fine = ask(client, &use, call, &how, error);
    uint64_t hold = kvrun_pool_end(client, call->in->pool, &use, how);
    if (!fine) {
        call->moved = (struct kvrun_moved){.hold = hold};
        call->prefix_blocks = 0;
        if (is_away(error)) {
            kvrun_link_suspect(client, use.generation, error);
        }
    }
    return fine;
}

/* True when there are results, from the server or as misses. */
static bool run(struct kvrun_client *client, struct call *call, struct kvrun_error *error)
{
    struct kvrun_error why;
    enum kvrun_result result = KVRUN_FAILED;
    bool fine = check(call->kind, call->in, &why) && ask_with_pool(client, call, &why);
    bool missed = !fine && is_miss(call->kind, &why, &result);
    for (uint32_t i = 0; missed && i < call->in->count; i++) {
        call->blocks[i] = (struct kvrun_block){.result = result};
    }
    if (missed) {
        memcpy(call->moved.cause, why.code, sizeof(call->moved.cause));
    }
    pthread_mutex_lock(&client->lock);
    struct kvrun_stats *stats = &client->stats;
    stats->lookups += call->kind == KVRUN_LOOKUP;
    stats->offloads += call->kind == KVRUN_OFFLOAD;
    stats->restores += call->kind == KVRUN_RESTORE;
    stats->calls_answered += fine;
    stats->calls_refused += !fine && !missed;
    if (missed) {
        count_miss(stats, &why);
    }
    if (fine || missed) {
        count_blocks(stats, call->kind, call->blocks, call->in->count);
    }
    pthread_mutex_unlock(&client->lock);
    if (!fine && !missed) {
        *error = why;
    }
    return fine || missed;
}

bool kvrun_lookup(struct kvrun_client *client, const struct kvrun_blocks *in, struct kvrun_block *ret_blocks,
                  struct kvrun_found *ret_found, struct kvrun_error *error)
{
    struct call call = {.kind = KVRUN_LOOKUP, .in = in, .blocks = ret_blocks};
    if (!run(client, &call, error)) {
        return false;
    }
    *ret_found = (struct kvrun_found){.prefix_blocks = call.prefix_blocks};
    memcpy(ret_found->cause, call.moved.cause, sizeof(ret_found->cause));
    return true;
}

bool kvrun_offload(struct kvrun_client *client, const struct kvrun_blocks *in, struct kvrun_block *ret_blocks,
                   struct kvrun_moved *ret_moved, struct kvrun_error *error)
{
    struct call call = {.kind = KVRUN_OFFLOAD, .in = in, .blocks = ret_blocks};
    if (!run(client, &call, error)) {
        return false;
    }
    *ret_moved = call.moved;
    return true;
}

bool kvrun_restore(struct kvrun_client *client, const struct kvrun_blocks *in, struct kvrun_block *ret_blocks,
                   struct kvrun_moved *ret_moved, struct kvrun_error *error)
{
    struct call call = {.kind = KVRUN_RESTORE, .in = in, .blocks = ret_blocks};
    if (!run(client, &call, error)) {
        return false;
    }
    *ret_moved = call.moved;
    return true;
}
