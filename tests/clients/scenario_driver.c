/*
 * Takes libkvrun through api/clients/scenario.json: scenario_driver SOCKET FD_SOCKET TOKEN_FILE SCENARIO. A line of
 * JSON for each step: what was seen. Steps that are somebody else's are named by {"ask": …}, and go on with a line from
 * standard input. scenario_driver.py does the same.
 */
#include "tests/clients/scenario_pool.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define NAMED_MAX 16
#define BLOCKS_MAX 16
#define NOBODY "ses_00000000000000000000000000"

static struct kvrun_client *client;
static struct kvrun_error error;
static struct {
    const char *name;
    char id[KVRUN_ID_SIZE];
} sessions[NAMED_MAX];
static size_t session_count;
static struct scenario_pool pools[NAMED_MAX];
static size_t pool_count;
static uint32_t hold_pool;
static uint64_t hold;

static const char *text_of(const json_t *step, const char *name)
{
    return json_string_value(json_object_get(step, name));
}

static uint64_t number_of(const json_t *step, const char *name)
{
    return (uint64_t)json_integer_value(json_object_get(step, name));
}

static const char *session_of(const json_t *step)
{
    for (size_t i = 0; i < session_count; i++) {
        if (strcmp(sessions[i].name, text_of(step, "session")) == 0) {
            return sessions[i].id;
        }
    }
    return NOBODY;
}

static struct scenario_pool *pool_of(const json_t *step)
{
    for (size_t i = 0; i < pool_count; i++) {
        if (strcmp(pools[i].name, text_of(step, "pool")) == 0) {
            return &pools[i];
        }
    }
    return NULL;
}

/* --- the engine, its pools, sessions ------------------------------------------------------------------------------ */

static const struct kvrun_model model = {.id = "m", .revision = "r"};

static bool do_register(const json_t *step, json_t *seen)
{
    (void)step, (void)seen;
    struct kvrun_engine engine = {
        .name = "scenario", .kind = "sim", .engine_version = "1", .model = model, .lease_seconds = 60};
    return kvrun_register(client, &engine, &error);
}

static bool do_unregister(const json_t *step, json_t *seen)
{
    (void)step, (void)seen;
    return kvrun_unregister(client, &error);
}

static bool do_ready(const json_t *step, json_t *seen)
{
    struct kvrun_error why;
    while (json_is_true(json_object_get(step, "wait")) && !kvrun_ready(client, &why)) {
        usleep(20000); /* who runs this has an end for it */
    }
    json_object_set_new(seen, "up", json_boolean(kvrun_ready(client, &why)));
    return true;
}

static bool do_pool(const json_t *step, json_t *seen)
{
    (void)seen;
    struct scenario_pool *pool = &pools[pool_count];
    if (pool_count == NAMED_MAX || !scenario_pool_make(step, pool)) {
        return false;
    }
    bool fine = kvrun_pool_register(client, &pool->conf, &pool->number, &error);
    pool_count += fine;
    return fine;
}

static bool do_pool_remove(const json_t *step, json_t *seen)
{
    (void)seen;
    return kvrun_pool_remove(client, pool_of(step)->number, &error);
}

static json_t *same_as(const char *id)
{
    const char *names[NAMED_MAX];
    size_t count = 0;
    for (size_t i = 0; i < session_count; i++) {
        if (strcmp(sessions[i].id, id) == 0) {
            size_t at = count++;
            for (; at > 0 && strcmp(names[at - 1], sessions[i].name) > 0; at--) {
                names[at] = names[at - 1];
            }
            names[at] = sessions[i].name;
        }
    }
    json_t *same = json_array();
    for (size_t i = 0; i < count; i++) {
        json_array_append_new(same, json_string(names[i]));
    }
    return same;
}

static bool do_session(const json_t *step, json_t *seen)
{
    struct kvrun_label labels[4];
    struct kvrun_session session = {.model = model,
                                    .external_id = text_of(step, "external_id"),
                                    .labels = labels,
                                    .ttl_seconds = number_of(step, "ttl_seconds"),
                                    .idle_ttl_seconds = number_of(step, "idle_ttl_seconds"),
                                    .sharing_scope = text_of(step, "sharing_scope")};
    const char *name;
    json_t *value;
    json_object_foreach(json_object_get(step, "labels"), name, value)
    {
        labels[session.label_count++] = (struct kvrun_label){name, json_string_value(value)};
    }
    char id[KVRUN_ID_SIZE];
    if (session_count == NAMED_MAX || !kvrun_session_open(client, &session, id, &error)) {
        return false;
    }
    json_object_set_new(seen, "same_as", same_as(id));
    sessions[session_count].name = text_of(step, "as");
    memcpy(sessions[session_count++].id, id, sizeof(id));
    return true;
}

static bool do_erase(const json_t *step, json_t *seen)
{
    struct kvrun_erasure erasure;
    if (!kvrun_erase(client, session_of(step), text_of(step, "basis"), NULL, (unsigned)number_of(step, "wait_seconds"),
                     &erasure, &error)) {
        return false;
    }
    json_object_set_new(seen, "state", json_string(erasure.state));
    return true;
}

/* --- blocks ------------------------------------------------------------------------------------------------------- */

static bool fill(const json_t *step, bool with_text)
{
    const json_t *slots = json_object_get(step, "slots"), *texts = json_object_get(step, "texts");
    for (size_t i = 0; i < json_array_size(slots); i++) {
        const char *text = with_text ? json_string_value(json_array_get(texts, i)) : NULL;
        scenario_pool_write(pool_of(step), (uint32_t)json_integer_value(json_array_get(slots, i)), text);
    }
    return true;
}

static bool do_fill(const json_t *step, json_t *seen)
{
    (void)seen;
    return fill(step, true);
}

static bool do_zero(const json_t *step, json_t *seen)
{
    (void)seen;
    return fill(step, false);
}

static struct {
    struct kvrun_hash hashes[BLOCKS_MAX];
    uint32_t slots[BLOCKS_MAX];
    uint64_t generations[BLOCKS_MAX];
    struct kvrun_block blocks[BLOCKS_MAX];
} columns;

static struct kvrun_blocks blocks_of(const json_t *step)
{
    const json_t *texts = json_object_get(step, "texts"), *slots = json_object_get(step, "slots");
    const json_t *generations = json_object_get(step, "generations");
    struct kvrun_blocks in = {.session_id = session_of(step),
                              .pool = pool_of(step) != NULL ? pool_of(step)->number : 99,
                              .count = (uint32_t)json_array_size(texts),
                              .hashes = columns.hashes,
                              .slots = columns.slots,
                              .generations = generations != NULL ? columns.generations : NULL,
                              .durable = json_is_true(json_object_get(step, "durable")),
                              .deadline_ms = (unsigned)number_of(step, "deadline_ms"),
                              .shared_blocks = (uint32_t)number_of(step, "shared_blocks")};
    for (uint32_t i = 0; i < in.count && i < BLOCKS_MAX; i++) {
        const char *text = json_string_value(json_array_get(texts, i));
        for (size_t byte = 0; byte < sizeof(columns.hashes[i].bytes); byte++) {
            columns.hashes[i].bytes[byte] = (uint8_t)((uint8_t)text[byte % strlen(text)] + 3 * byte);
        }
        columns.slots[i] = (uint32_t)json_integer_value(json_array_get(slots, i));
        columns.generations[i] = (uint64_t)json_integer_value(json_array_get(generations, i));
    }
    return in;
}

static void tell_blocks(json_t *seen, uint32_t count, const char *cause, bool with_results)
{
    json_t *results = json_array(), *tiers = json_array();
    for (uint32_t i = 0; i < count; i++) {
        json_array_append_new(results, json_string(kvrun_result_name(columns.blocks[i].result)));
        json_array_append_new(tiers, json_string(kvrun_tiers_name(columns.blocks[i].tiers)));
    }
    if (with_results) {
        json_object_set(seen, "results", results);
    }
    json_decref(results);
    json_object_set_new(seen, "tiers", tiers);
    json_object_set_new(seen, "cause", json_string(cause));
}

static bool do_lookup(const json_t *step, json_t *seen)
{
    struct kvrun_blocks in = blocks_of(step);
    struct kvrun_found found;
    if (!kvrun_lookup(client, &in, columns.blocks, &found, &error)) {
        return false;
    }
    tell_blocks(seen, in.count, found.cause, false);
    json_object_set_new(seen, "prefix", json_integer(found.prefix_blocks));
    return true;
}

static void tell_moved(const struct kvrun_blocks *in, const struct kvrun_moved *moved, json_t *seen)
{
    tell_blocks(seen, in->count, moved->cause, true);
    json_object_set_new(seen, "held", json_boolean(moved->hold != 0));
    json_object_set_new(seen, "bytes", json_integer((json_int_t)moved->bytes));
    if (moved->hold != 0) {
        hold = moved->hold;
        hold_pool = in->pool;
    }
}

static bool do_offload(const json_t *step, json_t *seen)
{
    struct kvrun_blocks in = blocks_of(step);
    struct kvrun_moved moved;
    if (!kvrun_offload(client, &in, columns.blocks, &moved, &error)) {
        return false;
    }
    tell_moved(&in, &moved, seen);
    json_object_set_new(seen, "stored", json_integer(moved.stored));
    json_object_set_new(seen, "present", json_integer(moved.present));
    return true;
}

static bool do_restore(const json_t *step, json_t *seen)
{
    struct kvrun_blocks in = blocks_of(step);
    struct kvrun_moved moved;
    bool fine = kvrun_restore(client, &in, columns.blocks, &moved, &error);
    if (fine) {
        tell_moved(&in, &moved, seen);
        json_object_set_new(seen, "contiguous", json_integer(moved.contiguous_blocks));
    }
    if (pool_of(step) != NULL) {
        json_t *pages = json_array();
        for (uint32_t i = 0; i < json_array_size(json_object_get(step, "slots")); i++) {
            json_array_append_new(pages, json_string(scenario_pool_name(pool_of(step), columns.slots[i], "abcdghls")));
        }
        json_object_set_new(seen, "pages", pages);
    }
    return fine;
}

static bool do_hold(const json_t *step, json_t *seen)
{
    while (json_is_true(json_object_get(step, "wait")) && !kvrun_hold_is_over(client, hold_pool, hold)) {
        usleep(20000);
    }
    json_object_set_new(seen, "over", json_boolean(kvrun_hold_is_over(client, hold_pool, hold)));
    return true;
}

static bool do_stats(const json_t *step, json_t *seen)
{
    (void)step;
    struct kvrun_stats stats;
    kvrun_stats(client, &stats);
#define TELL(member) json_object_set_new(seen, #member, json_integer((json_int_t)stats.member))
    TELL(lookups), TELL(offloads), TELL(restores), TELL(calls_answered), TELL(calls_missed), TELL(calls_refused);
    TELL(missed_down), TELL(missed_transport), TELL(missed_protocol), TELL(missed_server);
    TELL(blocks_offered), TELL(blocks_stored), TELL(blocks_present), TELL(blocks_not_stored);
    TELL(blocks_asked), TELL(blocks_restored), TELL(blocks_not_restored);
    TELL(registrations), TELL(holds), TELL(revocations);
#undef TELL
    json_object_set_new(seen, "up", json_boolean(stats.up));
    return true;
}

/* --- step by step ------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    bool (*take)(const json_t *step, json_t *seen);
} steps[] = {
    {"register", do_register},
    {"unregister", do_unregister},
    {"ready", do_ready},
    {"pool", do_pool},
    {"pool_remove", do_pool_remove},
    {"session", do_session},
    {"erase", do_erase},
    {"fill", do_fill},
    {"zero", do_zero},
    {"lookup", do_lookup},
    {"offload", do_offload},
    {"restore", do_restore},
    {"hold", do_hold},
    {"stats", do_stats},
};

static void print(json_t *line)
{
    json_dumpf(line, stdout, JSON_COMPACT);
    putchar('\n');
    fflush(stdout);
    json_decref(line);
}

static bool take(json_t *step)
{
    const char *name = text_of(step, "do");
    if (strcmp(name, "server") == 0 || strcmp(name, "network") == 0) {
        char done[16];
        print(json_pack("{s:O}", "ask", step));
        return fgets(done, sizeof(done), stdin) != NULL;
    }
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        if (strcmp(steps[i].name, name) == 0) {
            json_t *seen = json_object();
            bool fine = steps[i].take(step, seen);
            json_object_set_new(seen, "error", json_string(fine ? "" : error.code));
            print(seen);
            return true;
        }
    }
    fprintf(stderr, "there is no step %s\n", name);
    return false;
}

static bool make_client(char **argv)
{
    char token[512] = "";
    FILE *file = fopen(argv[3], "r");
    bool fine = file != NULL && fgets(token, sizeof(token), file) != NULL;
    if (file != NULL) {
        fclose(file);
    }
    token[strcspn(token, "\n")] = '\0';
    struct kvrun_conf conf = {.socket_path = argv[1],
                              .fd_socket_path = argv[2],
                              .token = token,
                              .timeout_ms = 5000,
                              .control_timeout_ms = 60000,
                              .deadline_ms = 20000};
    return fine && kvrun_client_new(&conf, &client, &error);
}

int main(int argc, char **argv)
{
    json_t *scenario = argc == 5 ? json_load_file(argv[4], JSON_REJECT_DUPLICATES, NULL) : NULL;
    if (scenario == NULL || !make_client(argv)) {
        fputs("usage: scenario_driver SOCKET FD_SOCKET TOKEN_FILE SCENARIO\n", stderr);
        return 2;
    }
    bool fine = true;
    const json_t *list = json_object_get(scenario, "steps");
    for (size_t i = 0; fine && i < json_array_size(list); i++) {
        fine = take(json_array_get(list, i));
    }
    kvrun_client_free(client);
    for (size_t i = 0; i < pool_count; i++) {
        scenario_pool_done(&pools[i]);
    }
    json_decref(scenario);
    return fine ? 0 : 1;
}
