/* What libkvrun asks, and what it makes of the answers: as a server would give them, and as it would not. */
#include "tests/clients/client_rig.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

TestSuite(kvrun_call, .init = rig_open, .fini = rig_close, .timeout = 120);

static const struct kvrun_session plain = {.model = {.id = "m", .revision = "1"}};

static bool asked(const char *part)
{
    return strstr(canned_request(rig_server), part) != NULL;
}

Test(kvrun_call, header_and_library_are_of_one_version)
{
    cr_assert(eq(str, (char *)kvrun_version(), KVRUN_VERSION));
}

Test(kvrun_call, registration_names_process_and_boot_and_carries_the_key)
{
    char pid[32];
    snprintf(pid, sizeof(pid), "\"pid\":%d", (int)getpid());
    rig_register(NULL, NULL);
    cr_assert(strncmp(canned_request(rig_server), "POST /v1/engines HTTP/1.1\r\n", 27) == 0);
    cr_assert(asked("\r\nAuthorization: Bearer kvrun_test_secret\r\n"));
    cr_assert(asked(pid));
    cr_assert(asked("\"boot_id\":\""));
    cr_assert(not(asked("fingerprint")), "an absent fingerprint is left out");
    cr_assert(not(asked("lease_seconds")), "and an absent lease");
}

Test(kvrun_call, an_engine_is_registered_once_and_one_that_is_refused_may_try_again)
{
    struct kvrun_engine engine = {.name = "n", .kind = "sim", .engine_version = "1", .model = plain.model};
    canned_answer(rig_server, 409, "{\"code\":\"engine_conflict\",\"detail\":\"another one\"}");
    rig_failed(kvrun_register(rig_client, &engine, &rig_error), "engine_conflict", 409);
    rig_failed(kvrun_unregister(rig_client, &rig_error), "invalid_argument", 0);
    rig_register(NULL, NULL);
    rig_failed(kvrun_register(rig_client, &engine, &rig_error), "invalid_argument", 0);
    canned_answer(rig_server, 204, "");
    cr_assert(kvrun_unregister(rig_client, &rig_error));
    cr_assert(strncmp(canned_request(rig_server), "DELETE /v1/engines/eng_0123456789abcdefghjkmnpqrs ", 50) == 0);
    rig_failed(kvrun_ready(rig_client, &rig_error), "down", 0);
    engine.name = "not UTF-8: \xff";
    rig_failed(kvrun_register(rig_client, &engine, &rig_error), "invalid_argument", 0);
}

Test(kvrun_call, an_engine_in_a_container_names_the_process_that_the_server_sees)
{
    struct kvrun_engine engine = {
        .name = "n", .kind = "sim", .engine_version = "1", .model = plain.model, .pid = 4711, .lease_seconds = 60};
    canned_answer(rig_server, 201, RIG_ENGINE);
    cr_assert(kvrun_register(rig_client, &engine, &rig_error));
    cr_assert(asked("\"pid\":4711"));
    cr_assert(asked("\"lease_seconds\":60"));
}

Test(kvrun_call, problem_document_becomes_code_detail_and_retryable)
{
    char id[KVRUN_ID_SIZE] = "untouched";
    canned_answer(rig_server, 503, "{\"code\":\"busy\",\"detail\":\"later\",\"status\":503,\"retryable\":true}");
    canned_answer(rig_server, 410, "{\"code\":\"session_erased\",\"title\":\"Session was erased\",\"status\":410}");
    rig_failed(kvrun_session_open(rig_client, &plain, id, &rig_error), "busy", 503);
    cr_assert(eq(str, rig_error.detail, "later"));
    cr_assert(rig_error.retryable);
    rig_failed(kvrun_session_open(rig_client, &plain, id, &rig_error), "session_erased", 410);
    cr_assert(not(rig_error.retryable));
    cr_assert(eq(str, id, "untouched"));
}

Test(kvrun_call, answers_that_are_not_the_interface_are_protocol_errors)
{
    char id[KVRUN_ID_SIZE];
    canned_answer(rig_server, 201, "hello");
    canned_answer(rig_server, 500, "<html>");
    canned_answer(rig_server, 201, "{\"id\":7}");
    canned_answer(rig_server, 201, "{\"id\":\"ses_0123456789abcdefghjkmnpqrst-and-longer-than-an-id\"}");
    canned_answer(rig_server, 201, "{\"id\":\"ses_0\"}");
    rig_failed(kvrun_session_open(rig_client, &plain, id, &rig_error), "protocol", 201);
    rig_failed(kvrun_session_open(rig_client, &plain, id, &rig_error), "protocol", 500);
    rig_failed(kvrun_session_open(rig_client, &plain, id, &rig_error), "protocol", 0);
    rig_failed(kvrun_session_open(rig_client, &plain, id, &rig_error), "protocol", 0);
    cr_assert(kvrun_session_open(rig_client, &plain, id, &rig_error), "the control has to work");
}

Test(kvrun_call, session_says_what_it_is)
{
    char id[KVRUN_ID_SIZE];
    struct kvrun_label labels[2] = {{"env", "prod"}, {"user", "7"}};
    struct kvrun_session session = {.model = {.id = "m", .revision = "1", .fingerprint = "f"},
                                    .external_id = "chat-4711",
                                    .labels = labels,
                                    .label_count = 2,
                                    .ttl_seconds = 60,
                                    .idle_ttl_seconds = 30,
                                    .sharing_scope = "prompt"};
    canned_answer(rig_server, 201, "{\"id\":\"ses_1\"}");
    cr_assert(kvrun_session_open(rig_client, &session, id, &rig_error));
    cr_assert(eq(str, id, "ses_1"));
    cr_assert(asked("{\"model\":{\"id\":\"m\",\"revision\":\"1\",\"fingerprint\":\"f\"},\"external_id\":\"chat-4711\","
                    "\"sharing_scope\":\"prompt\",\"labels\":{\"env\":\"prod\",\"user\":\"7\"},\"ttl_seconds\":60,"
                    "\"idle_ttl_seconds\":30}"));
    cr_assert(kvrun_session_open(rig_client, &plain, id, &rig_error));
    cr_assert(asked("\r\n\r\n{\"model\":{\"id\":\"m\",\"revision\":\"1\"}}"), "what is not said is left out");
    labels[1].value = "\xff";
    rig_failed(kvrun_session_open(rig_client, &session, id, &rig_error), "invalid_argument", 0);
    labels[1] = labels[0];
    rig_failed(kvrun_session_open(rig_client, &session, id, &rig_error), "invalid_argument", 0);
    cr_assert(eq(uint, canned_request_count(rig_server), 2));
}

Test(kvrun_call, answer_past_the_bound_is_refused)
{
    size_t len = ((size_t)4 << 20) + 1;
    char *body = malloc(len + 1), *text = NULL;
    struct kvrun_request request = {.method = "POST", .path = "/v1/tiers/dram:drain", .wait_seconds = 60};
    memset(body, ' ', len);
    body[len] = '\0';
    memcpy(body, "{\"a\":3}", 7);
    canned_answer(rig_server, 200, body);
    body[len - 1] = '\0';
    canned_answer(rig_server, 200, body);
    rig_failed(kvrun_ask(rig_client, &request, &text, &rig_error), "protocol", 0);
    cr_assert(kvrun_ask(rig_client, &request, &text, &rig_error), "at the bound: %s", rig_error.detail);
    cr_assert(eq(str, text, "{\"a\":3}"));
    cr_assert(strncmp(canned_request(rig_server), "POST /v1/tiers/dram:drain HTTP/1.1\r\n", 36) == 0);
    cr_assert(asked("\r\nPrefer: wait=60\r\n"));
    kvrun_text_free(text);
    free(body);
}

Test(kvrun_call, any_other_route_can_be_asked)
{
    char *text = (char *)"untouched";
    struct kvrun_request request = {.method = "PATCH", .path = "/v1/x", .body = "{\"a\": [1, true]}"};
    canned_answer(rig_server, 204, "");
    cr_assert(kvrun_ask(rig_client, &request, &text, &rig_error));
    cr_assert(text == NULL);
    cr_assert(strncmp(canned_request(rig_server), "PATCH /v1/x HTTP/1.1\r\n", 22) == 0);
    cr_assert(asked("\r\n\r\n{\"a\":[1,true]}"));
    request.body = "{";
    rig_failed(kvrun_ask(rig_client, &request, &text, &rig_error), "invalid_argument", 0);
    cr_assert(eq(uint, canned_request_count(rig_server), 1));
}

Test(kvrun_call, no_server_is_a_retryable_transport_error)
{
    char id[KVRUN_ID_SIZE];
    rig_stop_server();
    rig_failed(kvrun_session_open(rig_client, &plain, id, &rig_error), "transport", 0);
    cr_assert(rig_error.retryable);
}

Test(kvrun_call, ids_that_could_change_the_path_are_never_sent)
{
    struct kvrun_engine engine = {.name = "n", .kind = "sim", .engine_version = "1", .model = plain.model};
    canned_answer(rig_server, 201, "{\"id\":\"eng_../x\",\"server_incarnation\":\"i\"}");
    cr_assert(kvrun_register(rig_client, &engine, &rig_error), "a server that answers so is as good as none");
    rig_failed(kvrun_ready(rig_client, &rig_error), "protocol", 0);
    rig_failed(kvrun_unregister(rig_client, &rig_error), "invalid_argument", 0);
    cr_assert(strncmp(canned_request(rig_server), "POST /v1/engines HTTP/1.1\r\n", 27) == 0);
}

Test(kvrun_call, confs_that_cannot_work_are_refused)
{
    struct kvrun_client *other = NULL;
    char longer[256];
    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    struct kvrun_conf conf = {.socket_path = "/x", .token = "kvrun\r\nX-Other: 1"};
    rig_failed(kvrun_client_new(&conf, &other, &rig_error), "invalid_argument", 0);
    conf.token = NULL;
    rig_failed(kvrun_client_new(&conf, &other, &rig_error), "invalid_argument", 0);
    conf = (struct kvrun_conf){.socket_path = longer, .token = "k"};
    rig_failed(kvrun_client_new(&conf, &other, &rig_error), "invalid_argument", 0);
    conf = (struct kvrun_conf){.socket_path = "/x", .fd_socket_path = longer, .token = "k"};
    rig_failed(kvrun_client_new(&conf, &other, &rig_error), "invalid_argument", 0);
    conf = (struct kvrun_conf){.socket_path = "/x", .token = "k", .deadline_ms = 30001};
    rig_failed(kvrun_client_new(&conf, &other, &rig_error), "invalid_argument", 0);
    conf.deadline_ms = 30000;
    cr_assert(kvrun_client_new(&conf, &other, &rig_error), "the control");
    kvrun_client_free(other);
    kvrun_client_free(NULL);
}

Test(kvrun_call, erasure_waits_by_a_header)
{
    struct kvrun_erasure erasure;
    canned_answer(rig_server, 200, "{\"id\":\"era_1\",\"state\":\"certified\"}");
    rig_failed(kvrun_erase(rig_client, "ses_1", NULL, NULL, 61, &erasure, &rig_error), "invalid_argument", 0);
    cr_assert(kvrun_erase(rig_client, "ses_1", "gdpr_art17", NULL, 60, &erasure, &rig_error), "%s", rig_error.detail);
    cr_assert(eq(str, erasure.state, "certified"));
    cr_assert(asked("\r\nPrefer: wait=60\r\n"));
    cr_assert(asked("{\"scope\":{\"session_id\":\"ses_1\"},\"basis\":\"gdpr_art17\"}"));
}

/* --- blocks ------------------------------------------------------------------------------------------------------- */

#define HASH_TAIL "a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5"

Test(kvrun_call, restore_reads_columns)
{
    struct kvrun_moved moved;
    rig_register(NULL, NULL);
    struct kvrun_blocks in = rig_in(rig_pool(), 2);
    uint64_t generations[2] = {7, 9007199254740991};
    canned_answer(rig_server, 200,
                  "{\"operation_id\":\"opr_1\",\"results\":[\"restored\",\"stale_page\"],\"tiers\":[\"nvme\",\"none\"],"
                  "\"contiguous_blocks\":1,\"bytes\":7,\"duration_us\":9}");
    in.generations = generations;
    in.shared_blocks = 1;
    cr_assert(kvrun_restore(rig_client, &in, rig_blocks, &moved, &rig_error), "%s", rig_error.detail);
    cr_assert(eq(int, rig_blocks[0].result, KVRUN_RESTORED));
    cr_assert(eq(int, rig_blocks[1].result, KVRUN_STALE_PAGE));
    cr_assert(eq(uint, rig_blocks[0].tiers, KVRUN_NVME));
    cr_assert(eq(u32, moved.contiguous_blocks, 1));
    cr_assert(eq(u64, moved.bytes, 7));
    cr_assert(eq(str, moved.cause, ""));
    cr_assert(eq(u64, moved.hold, 0));
    cr_assert(
        asked("\"pool_id\":\"poo_1\",\"hashes\":[\"00" HASH_TAIL "\",\"01" HASH_TAIL
              "\"],\"shared_blocks\":1,\"slots\":[0,1],\"generations\":[7,9007199254740991],\"deadline_ms\":1000}"));
    struct kvrun_stats stats = rig_stats();
    cr_assert(eq(u64, stats.calls_answered, 1));
    cr_assert(eq(u64, stats.blocks_restored, 1));
    cr_assert(eq(u64, stats.blocks_not_restored, 1));
}

Test(kvrun_call, offload_says_what_to_wait_for)
{
    struct kvrun_moved moved;
    rig_register(NULL, NULL);
    struct kvrun_blocks in = rig_in(rig_pool(), 1);
    in.durable = true;
    in.deadline_ms = 1234;
    canned_answer(
        rig_server, 200,
        "{\"operation_id\":\"opr_1\",\"results\":[\"stored\"],\"tiers\":[\"nvme\"],\"stored\":1,\"present\":0}");
    cr_assert(kvrun_offload(rig_client, &in, rig_blocks, &moved, &rig_error), "%s", rig_error.detail);
    cr_assert(eq(u32, moved.stored, 1));
    cr_assert(asked("\"slots\":[0],\"deadline_ms\":1234,\"wait\":\"durable\"}"));
    in.durable = false;
    cr_assert(kvrun_offload(rig_client, &in, rig_blocks, &moved, &rig_error));
    cr_assert(asked("\"wait\":\"dram\"}"));
}

Test(kvrun_call, lookup_reads_tiers_and_prefix)
{
    struct kvrun_found found;
    rig_register(NULL, NULL);
    struct kvrun_blocks in = rig_in(rig_pool(), 3);
    in.slots = NULL;
    canned_answer(rig_server, 200, "{\"prefix_blocks\":1,\"tiers\":[\"dram+nvme\",\"none\",\"tape+object\"]}");
    cr_assert(kvrun_lookup(rig_client, &in, rig_blocks, &found, &rig_error), "%s", rig_error.detail);
    cr_assert(eq(u32, found.prefix_blocks, 1));
    cr_assert(eq(str, found.cause, ""));
    cr_assert(eq(uint, rig_blocks[0].tiers, KVRUN_DRAM | KVRUN_NVME));
    cr_assert(eq(uint, rig_blocks[1].tiers, 0));
    cr_assert(eq(uint, rig_blocks[2].tiers, KVRUN_OBJECT), "a tier that is not known by name is left out");
    cr_assert(not(asked("slots")));
}

Test(kvrun_call, results_have_their_names_and_unknown_ones_are_the_most_cautious)
{
    struct kvrun_moved moved;
    rig_register(NULL, NULL);
    struct kvrun_blocks in = rig_in(rig_pool(), 3);
    canned_answer(rig_server, 200,
                  "{\"operation_id\":\"opr_1\",\"results\":[\"melted\",\"present\",\"quarantined\"],"
                  "\"tiers\":[\"none\",\"none\",\"none\"]}");
    cr_assert(kvrun_offload(rig_client, &in, rig_blocks, &moved, &rig_error));
    cr_assert(eq(int, rig_blocks[0].result, KVRUN_FAILED));
    cr_assert(eq(int, rig_blocks[1].result, KVRUN_PRESENT));
    cr_assert(eq(int, rig_blocks[2].result, KVRUN_QUARANTINED));
    cr_assert(eq(str, (char *)kvrun_result_name(KVRUN_TIMEOUT), "timeout"));
    cr_assert(eq(str, (char *)kvrun_result_name((enum kvrun_result)(KVRUN_TIMEOUT + 1)), "failed"));
    cr_assert(eq(str, (char *)kvrun_tiers_name(7), "dram+nvme+object"));
    cr_assert(eq(str, (char *)kvrun_tiers_name(8), "none"));
}

Test(kvrun_call, call_takes_4096_blocks_and_not_one_more)
{
    struct kvrun_moved moved;
    rig_register(NULL, NULL);
    struct kvrun_blocks in = rig_in(rig_pool(), RIG_BLOCKS_MAX);
    char *answer = rig_restored_answer(KVRUN_BLOCKS_PER_CALL_MAX);
    canned_answer(rig_server, 200, answer);
    rig_failed(kvrun_restore(rig_client, &in, rig_blocks, &moved, &rig_error), "invalid_argument", 0);
    in.count = 0;
    rig_failed(kvrun_restore(rig_client, &in, rig_blocks, &moved, &rig_error), "invalid_argument", 0);
    in.count = KVRUN_BLOCKS_PER_CALL_MAX;
    cr_assert(kvrun_restore(rig_client, &in, rig_blocks, &moved, &rig_error), "%s", rig_error.detail);
    cr_assert(eq(u32, moved.contiguous_blocks, KVRUN_BLOCKS_PER_CALL_MAX));
    cr_assert(eq(u64, rig_stats().calls_refused, 2));
    free(answer);
}

Test(kvrun_call, what_the_caller_did_wrong_is_an_error_and_counted)
{
    struct kvrun_moved moved = {.bytes = 77};
    rig_register(NULL, NULL);
    struct kvrun_blocks in = rig_in(rig_pool(), 1);
    canned_answer(rig_server, 410, "{\"code\":\"session_erased\",\"detail\":\"gone\"}");
    canned_answer(rig_server, 400, "{\"code\":\"invalid_request\",\"detail\":\"slot 9 is outside\"}");
    canned_answer(rig_server, 401, "{\"code\":\"unauthenticated\",\"detail\":\"no\"}");
    canned_answer(rig_server, 404, "{\"code\":\"not_found\",\"detail\":\"no such session\"}");
    rig_failed(kvrun_restore(rig_client, &in, rig_blocks, &moved, &rig_error), "session_erased", 410);
    rig_failed(kvrun_offload(rig_client, &in, rig_blocks, &moved, &rig_error), "invalid_request", 400);
    rig_failed(kvrun_restore(rig_client, &in, rig_blocks, &moved, &rig_error), "unauthenticated", 401);
    rig_failed(kvrun_restore(rig_client, &in, rig_blocks, &moved, &rig_error), "not_found", 404);
    in.session_id = NULL;
    rig_failed(kvrun_restore(rig_client, &in, rig_blocks, &moved, &rig_error), "invalid_argument", 0);
    in = rig_in(in.pool + 1, 1);
    rig_failed(kvrun_restore(rig_client, &in, rig_blocks, &moved, &rig_error), "invalid_argument", 0);
    in = rig_in(KVRUN_POOLS_MAX, 1);
    rig_failed(kvrun_restore(rig_client, &in, rig_blocks, &moved, &rig_error), "invalid_argument", 0);
    cr_assert(eq(u64, moved.bytes, 77), "results are untouched");
    cr_assert(kvrun_ready(rig_client, &rig_error), "nothing is wrong with the server");
    struct kvrun_stats stats = rig_stats();
    cr_assert(eq(u64, stats.calls_refused, 7));
    cr_assert(eq(u64, stats.restores, 6));
    cr_assert(eq(u64, stats.blocks_asked, 0));
}

/* --- pools -------------------------------------------------------------------------------------------------------- */

Test(kvrun_call, descriptor_arrives)
{
    struct stat sent, received;
    rig_register(NULL, NULL);
    rig_pool();
    cr_assert(fstat(STDIN_FILENO, &sent) == 0 && fstat(canned_descriptor(rig_fd_server), &received) == 0);
    cr_assert(sent.st_ino == received.st_ino);
    cr_assert(asked("\"memory\":{\"kind\":\"memfd\",\"fd_token\":\"tok_00112233445566778899aabbccddeeff\","
                    "\"size_bytes\":4096},\"layout\":{\"kind\":\"opaque\""));
}

static bool register_pool(struct kvrun_pool *pool)
{
    uint32_t number;
    return kvrun_pool_register(rig_client, pool, &number, &rig_error);
}

Test(kvrun_call, a_pool_is_described_as_it_is_and_mistakes_in_it_are_errors)
{
    struct kvrun_region regions[2] = {{0, 64, 32}, {32, 64, 32}};
    struct kvrun_pool pool = {.fd = 0,
                              .size_bytes = 4096,
                              .format = "f16",
                              .engine_version = "v",
                              .tokens_per_block = 16,
                              .slots = 4,
                              .block_bytes = 64,
                              .regions = regions,
                              .region_count = 2};
    rig_failed(register_pool(&pool), "invalid_argument", 0);
    cr_assert(strstr(rig_error.detail, "register the engine") != NULL);
    rig_register(NULL, NULL);
    pool.fd = -1;
    rig_failed(register_pool(&pool), "invalid_argument", 0);
    pool.fd = 0;
    pool.format = NULL;
    rig_failed(register_pool(&pool), "invalid_argument", 0);
    pool.format = "\xff";
    rig_failed(register_pool(&pool), "invalid_argument", 0);
    pool.format = "f16";
    canned_line(rig_fd_server, "tok_00112233445566778899aabbccddeeff\n");
    canned_answer(rig_server, 200, RIG_BEAT);
    canned_answer(rig_server, 422, "{\"code\":\"geometry_mismatch\",\"detail\":\"256 and not 4096\"}");
    canned_answer(rig_server, 200, RIG_BEAT);
    rig_failed(register_pool(&pool), "geometry_mismatch", 422);
    cr_assert(kvrun_ready(rig_client, &rig_error), "as before: %s", rig_error.detail);
    canned_answer(rig_server, 200, RIG_BEAT);
    canned_answer(rig_server, 201, "{\"id\":\"poo_1\"}");
    cr_assert(register_pool(&pool), "%s", rig_error.detail);
    cr_assert(asked("\"bytes_per_block\":64,\"regions\":[{\"offset_bytes\":0,\"stride_bytes\":64,\"run_bytes\":32},"
                    "{\"offset_bytes\":32,\"stride_bytes\":64,\"run_bytes\":32}]"));
    cr_assert(not(asked("page_bytes")));
}

Test(kvrun_call, refused_descriptor_gives_the_servers_code)
{
    struct kvrun_pool pool = {.fd = 0, .size_bytes = 1, .format = "f", .engine_version = "v", .slots = 1};
    rig_register(NULL, NULL);
    canned_answer(rig_server, 200, RIG_BEAT);
    canned_line(rig_fd_server, "error peer_mismatch\n");
    rig_failed(register_pool(&pool), "peer_mismatch", 0);
}

Test(kvrun_call, a_descriptor_socket_that_makes_no_sense_is_a_server_that_is_away)
{
    static char longer[256];
    memset(longer, 'x', sizeof(longer) - 1);
    const char *lines[] = {"what?\n", longer, "tok_00", NULL, "error busy\n"};
    const char *codes[] = {"protocol", "protocol", "transport", "transport", "busy"};
    struct kvrun_pool pool = {.fd = 0, .size_bytes = 1, .format = "f", .engine_version = "v", .slots = 1};
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        rig_register(NULL, NULL);
        canned_answer(rig_server, 200, RIG_BEAT);
        canned_line(rig_fd_server, lines[i]);
        cr_assert(register_pool(&pool), "it gets the pool when it is well");
        rig_failed(kvrun_ready(rig_client, &rig_error), codes[i], 0);
        rig_close();
        rig_open();
    }
}

Test(kvrun_call, an_engine_has_eight_pools_and_not_one_more)
{
    rig_register(NULL, NULL);
    struct kvrun_pool pool = {.fd = 0, .size_bytes = 1, .format = "f", .engine_version = "v", .slots = 1};
    canned_answer(rig_server, 200, "{\"id\":\"poo_1\",\"revocations\":[]}");
    canned_line(rig_fd_server, "tok_00112233445566778899aabbccddeeff\n");
    for (int i = 0; i < KVRUN_POOLS_MAX; i++) {
        cr_assert(register_pool(&pool), "%s", rig_error.detail);
    }
    rig_failed(register_pool(&pool), "limit", 0);
    cr_assert(kvrun_pool_remove(rig_client, 3, &rig_error));
    cr_assert(strncmp(canned_request(rig_server), "DELETE /v1/pools/poo_1 ", 23) == 0);
    rig_failed(kvrun_pool_remove(rig_client, 3, &rig_error), "invalid_argument", 0);
    rig_failed(kvrun_pool_remove(rig_client, KVRUN_POOLS_MAX, &rig_error), "invalid_argument", 0);
    cr_assert(register_pool(&pool), "there is room again");
}

Test(kvrun_call, without_a_descriptor_socket_there_are_no_pools)
{
    struct kvrun_client *other = NULL;
    struct kvrun_conf conf = {.socket_path = "/x", .token = "k"};
    struct kvrun_pool pool = {.fd = 0, .format = "f", .engine_version = "v"};
    uint32_t number;
    cr_assert(kvrun_client_new(&conf, &other, &rig_error));
    rig_failed(kvrun_pool_register(other, &pool, &number, &rig_error), "invalid_argument", 0);
    kvrun_client_free(other);
}
