/* libkvrun and a server that is away, hangs, talks nonsense, restarts: misses and counts, and pages that are held until
 * nothing can touch them. */
#include "tests/clients/client_rig.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

TestSuite(kvrun_fault, .init = rig_open, .fini = rig_close, .timeout = 120);

static struct kvrun_moved moved;
static uint32_t pool;

static void open_pool(void)
{
    rig_register(NULL, NULL);
    pool = rig_pool();
}

static void restore(uint32_t count)
{
    struct kvrun_blocks in = rig_in(pool, count);
    cr_assert(kvrun_restore(rig_client, &in, rig_blocks, &moved, &rig_error), "%s", rig_error.detail);
}

static void offload(void)
{
    struct kvrun_blocks in = rig_in(pool, 1);
    cr_assert(kvrun_offload(rig_client, &in, rig_blocks, &moved, &rig_error), "%s", rig_error.detail);
}

static void all_are(enum kvrun_result result, const char *cause)
{
    cr_assert(eq(int, rig_blocks[0].result, result));
    cr_assert(eq(uint, rig_blocks[0].tiers, 0));
    cr_assert(eq(str, moved.cause, (char *)cause));
    cr_assert(eq(u32, moved.contiguous_blocks, 0));
    cr_assert(eq(str, moved.operation_id, ""));
}

static void answer_restored(void)
{
    char *answer = rig_restored_answer(1);
    canned_answer(rig_server, 200, answer);
    free(answer);
}

static void restores_again(void)
{
    rig_wait_until_up(true);
    restore(1);
    cr_assert(eq(str, moved.cause, ""));
    cr_assert(eq(int, rig_blocks[0].result, KVRUN_RESTORED));
    cr_assert(eq(u64, moved.hold, 0));
}

static void wait_until_over(uint64_t hold)
{
    for (int i = 0; i < 3000 && !kvrun_hold_is_over(rig_client, pool, hold); i++) {
        usleep(20000);
    }
    cr_assert(kvrun_hold_is_over(rig_client, pool, hold));
}

/* How the server finds the pool again after a call in doubt. */
static void answer_renewal(const char *pool_answer)
{
    canned_answer(rig_server, 200, RIG_BEAT);
    canned_answer(rig_server, 204, "");
    canned_answer(rig_server, 201, pool_answer);
}

/* --- away --------------------------------------------------------------------------------------------------------- */

Test(kvrun_fault, a_connection_cut_in_the_middle_is_a_miss_and_the_pages_are_held_until_the_pool_was_closed)
{
    open_pool();
    canned_raw(rig_server, "");
    canned_silence(rig_server); /* the heartbeat that follows, and the next one: time for the calls below */
    canned_silence(rig_server);
    answer_renewal("{\"id\":\"poo_2\"}");
    answer_restored();
    restore(2);
    all_are(KVRUN_MISSING, "transport");
    cr_assert(eq(int, rig_blocks[1].result, KVRUN_MISSING));
    uint64_t hold = moved.hold;
    cr_assert(ne(u64, hold, 0));
    cr_assert(not(kvrun_hold_is_over(rig_client, pool, hold)));
    cr_assert(kvrun_hold_is_over(rig_client, pool, 0));

    unsigned asked = canned_request_count(rig_server);
    restore(1);
    all_are(KVRUN_MISSING, "down");
    cr_assert(eq(u64, moved.hold, 0), "nothing went out");
    offload();
    all_are(KVRUN_FAILED, "down");
    cr_assert(le(uint, canned_request_count(rig_server), asked + 1),
              "nobody was asked but for the heartbeat's question");
    char session[KVRUN_ID_SIZE];
    struct kvrun_session plain = {.model = {.id = "m", .revision = "1"}};
    rig_failed(kvrun_session_open(rig_client, &plain, session, &rig_error), "down", 0);
    cr_assert(rig_error.retryable);

    wait_until_over(hold);
    restores_again();
    cr_assert(strstr(canned_request(rig_server), "\"pool_id\":\"poo_2\"") != NULL, "the number stays, the id does not");
    struct kvrun_stats stats = rig_stats();
    cr_assert(eq(u64, stats.missed_transport, 1));
    cr_assert(eq(u64, stats.missed_down, 2));
    cr_assert(eq(u64, stats.calls_missed, 3));
    cr_assert(eq(u64, stats.calls_answered, 1));
    cr_assert(eq(u64, stats.holds, 1));
    cr_assert(eq(u64, stats.registrations, 1));
    cr_assert(eq(u64, stats.heartbeats_failed, 2));
    cr_assert(eq(u64, stats.blocks_asked, 4));
    cr_assert(eq(u64, stats.blocks_restored, 1));
    cr_assert(eq(u64, stats.blocks_not_restored, 3));
    cr_assert(eq(u64, stats.blocks_offered, 1));
    cr_assert(eq(u64, stats.blocks_not_stored, 1));
}

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

Test(kvrun_fault, a_server_that_hangs_is_waited_for_until_the_deadline_and_the_time_out_and_then_no_more)
{
    open_pool();
    canned_silence(rig_server);
    canned_silence(rig_server);
    answer_renewal("{\"id\":\"poo_2\"}");
    answer_restored();
    double begun = now_s();
    restore(1);
    double took = now_s() - begun;
    all_are(KVRUN_MISSING, "transport");
    cr_assert(ne(u64, moved.hold, 0));
    cr_assert(took >= 4.9, "%f: deadline 1 s, time-out 4 s", took);
    begun = now_s();
    for (int i = 0; i < 1000; i++) {
        restore(1);
        all_are(KVRUN_MISSING, "down");
    }
    cr_assert(now_s() - begun < 2, "a thousand calls that ask nobody: %f s", now_s() - begun);
    restores_again();
}

Test(kvrun_fault, a_lookup_in_the_middle_holds_nothing)
{
    struct kvrun_found found;
    open_pool();
    struct kvrun_blocks in = rig_in(pool, 1);
    canned_raw(rig_server, "");
    canned_answer(rig_server, 200, RIG_BEAT);
    canned_answer(rig_server, 200, "{\"prefix_blocks\":1,\"tiers\":[\"dram\"]}");
    cr_assert(kvrun_lookup(rig_client, &in, rig_blocks, &found, &rig_error));
    cr_assert(eq(u32, found.prefix_blocks, 0));
    cr_assert(eq(str, found.cause, "transport"));
    cr_assert(eq(uint, rig_blocks[0].tiers, 0));
    rig_wait_until_up(true);
    cr_assert(kvrun_lookup(rig_client, &in, rig_blocks, &found, &rig_error));
    cr_assert(eq(u32, found.prefix_blocks, 1), "the pool was left alone");
    cr_assert(eq(u64, rig_stats().holds, 0));
}

Test(kvrun_fault, a_server_that_is_gone_holds_nothing_as_nothing_went_out)
{
    open_pool();
    rig_stop_server();
    offload();
    all_are(KVRUN_FAILED, "transport");
    cr_assert(eq(u64, moved.hold, 0));
    rig_wait_until_up(false);
    rig_failed(kvrun_ready(rig_client, &rig_error), "transport", 0);
}

Test(kvrun_fault, an_engine_that_starts_before_the_server_is_registered_when_it_comes)
{
    struct kvrun_engine engine = {
        .name = "n", .kind = "sim", .engine_version = "1", .model = {.id = "m", .revision = "r"}};
    struct kvrun_pool conf = {.fd = 0, .size_bytes = 1, .format = "f", .engine_version = "v", .slots = 1};
    rig_stop_server();
    cr_assert(kvrun_register(rig_client, &engine, &rig_error));
    cr_assert(kvrun_pool_register(rig_client, &conf, &pool, &rig_error));
    restore(1);
    all_are(KVRUN_MISSING, "down");
    rig_start_server();
    canned_line(rig_fd_server, "tok_00112233445566778899aabbccddeeff\n");
    canned_answer(rig_server, 201, RIG_ENGINE);
    canned_answer(rig_server, 201, "{\"id\":\"poo_1\"}");
    answer_restored();
    restores_again();
}

/* --- nonsense ----------------------------------------------------------------------------------------------------- */

Test(kvrun_fault, answers_that_are_none_are_misses_and_hold_the_pages)
{
    static const char *const bodies[] = {
        "hello",
        "[]",
        "{\"operation_id\":\"opr_1\",\"results\":[\"restored\",\"restored\"],\"tiers\":[\"dram\"]}",
        "{\"operation_id\":\"opr_1\",\"results\":[\"restored\"],\"tiers\":[]}",
        "{\"operation_id\":\"opr_1\",\"results\":[1],\"tiers\":[\"dram\"]}",
        "{\"operation_id\":\"opr_1\",\"results\":[\"restored\"],\"tiers\":[\"dram\"],\"contiguous_blocks\":2}",
        "{\"results\":[\"restored\"],\"tiers\":[\"dram\"],\"contiguous_blocks\":1}",
    };
    open_pool();
    for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
        canned_answer(rig_server, 200, bodies[i]);
        answer_renewal("{\"id\":\"poo_2\"}");
        answer_restored();
    }
    canned_raw(rig_server, "SSH-2.0-OpenSSH_9.2\r\n");
    answer_renewal("{\"id\":\"poo_2\"}");
    answer_restored();
    canned_answer(rig_server, 502, "<html>");
    answer_renewal("{\"id\":\"poo_2\"}");
    answer_restored();
    for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]) + 2; i++) {
        rig_wait_until_up(true);
        restore(1);
        all_are(KVRUN_MISSING, i == sizeof(bodies) / sizeof(bodies[0]) ? "transport" : "protocol");
        cr_assert(ne(u64, moved.hold, 0), "%zu", i);
        wait_until_over(moved.hold);
        restores_again();
    }
    cr_assert(eq(u64, rig_stats().missed_protocol, sizeof(bodies) / sizeof(bodies[0]) + 1));
}

Test(kvrun_fault, errors_of_the_servers_own_are_misses_and_hold_nothing)
{
    open_pool();
    canned_answer(rig_server, 500, "{\"code\":\"internal\",\"detail\":\"a bug\"}");
    canned_answer(rig_server, 200, RIG_BEAT);
    canned_answer(rig_server, 503, "{\"code\":\"db_unavailable\",\"detail\":\"away\",\"retryable\":true}");
    canned_answer(rig_server, 200, RIG_BEAT);
    answer_restored();
    restore(1);
    all_are(KVRUN_MISSING, "internal");
    cr_assert(eq(u64, moved.hold, 0));
    rig_wait_until_up(true);
    offload();
    all_are(KVRUN_FAILED, "db_unavailable");
    restores_again();
    cr_assert(eq(u64, rig_stats().missed_server, 2));
}

Test(kvrun_fault, a_server_that_fails_each_call_is_believed_less_and_less_and_again_after_one_that_went_well)
{
    open_pool();
    for (int i = 0; i < 5; i++) {
        canned_answer(rig_server, 500, "{\"code\":\"internal\",\"detail\":\"a bug\"}");
        canned_answer(rig_server, 200, RIG_BEAT);
    }
    answer_restored();
    for (int i = 0; i < 5; i++) {
        double begun = now_s();
        restore(1);
        all_are(KVRUN_MISSING, "internal");
        rig_wait_until_up(true);
        double least = 0.1 * (1 << i);
        cr_assert(now_s() - begun >= 0.9 * least, "%f s after failure %d", now_s() - begun, i + 1);
    }
    restores_again();
}

Test(kvrun_fault, the_lease_of_an_engine_is_kept_while_its_server_is_not_believed)
{
    struct kvrun_engine engine = {
        .name = "n", .kind = "sim", .engine_version = "1", .model = {.id = "m", .revision = "r"}};
    canned_beat(rig_server, RIG_BEAT);
    canned_answer(rig_server, 201, "{\"id\":\"eng_1\",\"server_incarnation\":\"i\",\"lease_seconds\":2}");
    cr_assert(kvrun_register(rig_client, &engine, &rig_error));
    pool = rig_pool_alone();
    canned_answer(rig_server, 500, "{\"code\":\"internal\",\"detail\":\"a bug\"}");
    for (int i = 0; i < 6; i++) { /* 0.1 s, 0.2 … 3.2: a lease and a half */
        rig_wait_until_up(true);
        restore(1);
        all_are(KVRUN_MISSING, "internal");
    }
    uint64_t beats = rig_stats().heartbeats;
    while (!kvrun_ready(rig_client, &rig_error)) {
        cr_assert(le(u64, rig_stats().heartbeats, beats + 60));
        usleep(10000);
    }
    cr_assert(ge(u64, rig_stats().heartbeats, beats + 4), "%u in 3.2 s", (unsigned)(rig_stats().heartbeats - beats));
    cr_assert(eq(u64, rig_stats().registrations, 1));
}

Test(kvrun_fault, what_passes_is_the_blocks_result_and_the_server_stays_in_use)
{
    static const struct {
        int status;
        const char *code;
        enum kvrun_result result;
    } all[] = {{503, "busy", KVRUN_BUSY},
               {429, "rate_limited", KVRUN_BUSY},
               {507, "full", KVRUN_BUSY},
               {504, "timeout", KVRUN_TIMEOUT},
               {403, "policy_denied", KVRUN_DENIED},
               {429, "quota", KVRUN_DENIED},
               {403, "tenant_suspended", KVRUN_DENIED}};
    open_pool();
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        char body[128];
        snprintf(body, sizeof(body), "{\"code\":\"%s\",\"detail\":\"not now\"}", all[i].code);
        canned_answer(rig_server, all[i].status, body);
    }
    answer_restored();
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        offload();
        all_are(all[i].result, all[i].code);
        cr_assert(kvrun_ready(rig_client, &rig_error), "%s", all[i].code);
    }
    restore(1);
    cr_assert(eq(int, rig_blocks[0].result, KVRUN_RESTORED));
    cr_assert(eq(u64, rig_stats().heartbeats, 1), "that of the pool's registration");
}

/* --- restarts ----------------------------------------------------------------------------------------------------- */

#define UNKNOWN "{\"code\":\"engine_unknown\",\"detail\":\"register again\"}"

Test(kvrun_fault, an_engine_that_the_server_forgot_is_registered_again_with_its_pools)
{
    open_pool();
    canned_answer(rig_server, 404,
                  "{\"code\":\"not_found\",\"detail\":\"no such pool\",\"errors\":[{\"pointer\":\"/pool_id\"}]}");
    canned_answer(rig_server, 410, UNKNOWN);
    canned_answer(rig_server, 201, RIG_ENGINE_OF_ANOTHER_SERVER);
    canned_answer(rig_server, 201, "{\"id\":\"poo_2\"}");
    answer_restored();
    restore(1);
    all_are(KVRUN_MISSING, "engine_unknown");
    cr_assert(eq(u64, moved.hold, 0));
    restores_again();
    cr_assert(strstr(canned_request(rig_server), "\"pool_id\":\"poo_2\"") != NULL);
    cr_assert(eq(u64, rig_stats().registrations, 2));
}

Test(kvrun_fault, a_pool_that_the_server_lost_is_registered_again_by_itself)
{
    open_pool();
    canned_answer(rig_server, 404,
                  "{\"code\":\"not_found\",\"detail\":\"no such pool\",\"errors\":[{\"pointer\":\"/pool_id\"}]}");
    canned_answer(rig_server, 200, RIG_BEAT);
    canned_answer(rig_server, 201, "{\"id\":\"poo_2\"}");
    answer_restored();
    restore(1);
    all_are(KVRUN_MISSING, "engine_unknown");
    restores_again();
    cr_assert(strstr(canned_request(rig_server), "\"pool_id\":\"poo_2\"") != NULL);
    cr_assert(eq(u64, rig_stats().registrations, 1));
}

Test(kvrun_fault, another_process_of_the_server_ends_every_hold)
{
    open_pool();
    canned_raw(rig_server, "");
    canned_answer(rig_server, 410, UNKNOWN);
    canned_answer(rig_server, 201, RIG_ENGINE_OF_ANOTHER_SERVER);
    canned_answer(rig_server, 201, "{\"id\":\"poo_2\"}");
    answer_restored();
    restore(1);
    cr_assert(ne(u64, moved.hold, 0));
    wait_until_over(moved.hold);
    restores_again();
    cr_assert(eq(uint, canned_request_count(rig_server), 8), "nobody closed a pool: %u",
              canned_request_count(rig_server));
}

Test(kvrun_fault, the_same_process_that_says_nothing_of_the_pool_ends_no_hold)
{
    open_pool();
    canned_raw(rig_server, "");
    canned_answer(rig_server, 200, RIG_BEAT);
    canned_answer(rig_server, 504, "{\"code\":\"timeout\",\"detail\":\"transfers run\"}");
    canned_answer(rig_server, 201, "{\"id\":\"poo_2\"}");
    answer_restored();
    restore(1);
    uint64_t hold = moved.hold;
    cr_assert(ne(u64, hold, 0));
    restores_again();
    cr_assert(not(kvrun_hold_is_over(rig_client, pool, hold)), "the pool works again, those pages do not");
    canned_answer(rig_server, 204, "");
    rig_failed(kvrun_pool_remove(rig_client, pool, &rig_error), "pool_busy", 0);
    cr_assert(rig_error.retryable);
}

Test(kvrun_fault, an_expired_lease_ends_no_hold_either_but_the_next_process_does)
{
    open_pool();
    canned_raw(rig_server, "");
    canned_answer(rig_server, 410, UNKNOWN);
    canned_answer(rig_server, 201, RIG_ENGINE);
    canned_answer(rig_server, 201, "{\"id\":\"poo_2\"}");
    canned_answer(rig_server, 410, UNKNOWN);
    canned_answer(rig_server, 410, UNKNOWN);
    canned_answer(rig_server, 201, RIG_ENGINE_OF_ANOTHER_SERVER);
    canned_answer(rig_server, 201, "{\"id\":\"poo_3\"}");
    answer_restored();
    restore(1);
    uint64_t hold = moved.hold;
    cr_assert(ne(u64, hold, 0));
    rig_wait_until_up(true);
    cr_assert(not(kvrun_hold_is_over(rig_client, pool, hold)));
    restore(1);
    all_are(KVRUN_MISSING, "engine_unknown");
    wait_until_over(hold);
    restores_again();
}

Test(kvrun_fault, a_hold_outlasts_the_engine_and_its_pool)
{
    open_pool();
    canned_raw(rig_server, "");
    canned_answer(rig_server, 200, RIG_BEAT);
    canned_answer(rig_server, 504, "{\"code\":\"timeout\",\"detail\":\"transfers run\"}");
    canned_answer(rig_server, 201, "{\"id\":\"poo_2\"}");
    canned_answer(rig_server, 204, "");
    restore(1);
    uint64_t hold = moved.hold;
    rig_wait_until_up(true);
    cr_assert(kvrun_unregister(rig_client, &rig_error), "%s", rig_error.detail);
    cr_assert(not(kvrun_hold_is_over(rig_client, pool, hold)), "nobody said that nothing touches the pages");
    struct kvrun_engine engine = {
        .name = "n", .kind = "sim", .engine_version = "1", .model = {.id = "m", .revision = "r"}};
    canned_answer(rig_server, 201, RIG_ENGINE_OF_ANOTHER_SERVER);
    cr_assert(kvrun_register(rig_client, &engine, &rig_error), "%s", rig_error.detail);
    cr_assert(kvrun_hold_is_over(rig_client, pool, hold));
}

Test(kvrun_fault, a_key_that_is_no_longer_valid_keeps_the_link_down_and_says_so)
{
    open_pool();
    canned_answer(rig_server, 500, "{\"code\":\"internal\",\"detail\":\"a bug\"}");
    canned_answer(rig_server, 401, "{\"code\":\"unauthenticated\",\"detail\":\"revoked\"}");
    restore(1);
    for (int i = 0; i < 3000 && rig_stats().heartbeats_failed < 3; i++) {
        usleep(20000);
    }
    rig_failed(kvrun_ready(rig_client, &rig_error), "unauthenticated", 401);
    restore(1);
    all_are(KVRUN_MISSING, "down");
}

/* --- the heartbeat ------------------------------------------------------------------------------------------------ */

static sem_t went, came;
static char revoked_id[64];
static int wrong_calls; /* looked at by the test: assertions are for its own thread */

static void take_revoked(void *ctx, const char *session_id)
{
    snprintf(revoked_id, sizeof(revoked_id), "%s", session_id);
}

static void take_link(void *ctx, bool up, const struct kvrun_error *why)
{
    wrong_calls += (why == NULL) != up;
    sem_post(up ? &came : &went);
}

Test(kvrun_fault, heartbeat_tells_revocations_and_who_came_and_went)
{
    sem_init(&went, 0, 0);
    sem_init(&came, 0, 0);
    rig_register(take_revoked, take_link);
    sem_wait(&came);
    pool = rig_pool();
    canned_answer(rig_server, 500, "{\"code\":\"internal\",\"detail\":\"a bug\"}");
    canned_answer(rig_server, 200, "{\"revocations\":[{\"session_id\":\"ses_gone\"},{}]}");
    restore(1);
    sem_wait(&went);
    sem_wait(&came);
    kvrun_client_free(rig_client);
    rig_client = NULL;
    cr_assert(eq(int, wrong_calls, 0));
    cr_assert(eq(str, revoked_id, "ses_gone"));
    cr_assert(strstr(canned_request(rig_server), "{\"seq\":2}") != NULL);
}

Test(kvrun_fault, heartbeat_keeps_the_lease)
{
    struct kvrun_engine engine = {
        .name = "n", .kind = "sim", .engine_version = "1", .model = {.id = "m", .revision = "r"}};
    canned_answer(rig_server, 201, "{\"id\":\"eng_1\",\"server_incarnation\":\"i\",\"lease_seconds\":2}");
    canned_answer(rig_server, 200, RIG_BEAT);
    cr_assert(kvrun_register(rig_client, &engine, &rig_error));
    for (int i = 0; i < 3000 && rig_stats().heartbeats < 3; i++) {
        usleep(20000);
    }
    cr_assert(ge(u64, rig_stats().heartbeats, 3));
    cr_assert(eq(u64, rig_stats().heartbeats_failed, 0));
}

Test(kvrun_fault, heartbeat_ends_at_once_when_it_is_stopped)
{
    rig_register(NULL, NULL);
    kvrun_client_free(rig_client);
    rig_client = NULL;
    cr_assert(eq(uint, canned_request_count(rig_server), 1));
}
