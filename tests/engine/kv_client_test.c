/* The client against answers as a server would give them, and as it would not. */
#include "tests/engine/canned_server.h"
#include "tests/engine/kv_client.h"
#include "tests/lib/temp_folder.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define ENGINE_ANSWER "{\"id\":\"eng_0123456789abcdefghjkmnpqrs\",\"server_incarnation\":\"ins_1\",\"lease_seconds\":2}"
#define HASH "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

static char folder[KVT_PATH_BYTES], http_path[KVT_PATH_BYTES], fd_path[KVT_PATH_BYTES];
static struct canned_server *server, *fd_server;
static struct kv_client *client;
static struct kv_client_error error;

static void open_all(void)
{
    kvt_folder_make(folder);
    kvt_path_join(http_path, folder, "http");
    kvt_path_join(fd_path, folder, "fd");
    server = canned_start(http_path);
    fd_server = canned_start(fd_path);
    struct kv_client_conf conf = {.socket_path = http_path, .fd_socket_path = fd_path, .token = "kvrun_test_secret"};
    cr_assert(kv_client_new(&conf, &client, &error));
}

static void close_all(void)
{
    kv_client_free(client);
    if (server != NULL) {
        canned_stop(server);
    }
    canned_stop(fd_server);
    kvt_folder_remove(folder);
}

TestSuite(kv_client, .init = open_all, .fini = close_all);

static void fails_with(bool fine, const char *code, int status)
{
    cr_assert(not(fine));
    cr_assert(eq(str, error.code, (char *)code));
    cr_assert(eq(int, error.status, status));
    cr_assert(error.detail[0] != '\0');
}

static void register_engine(void)
{
    struct kv_client_engine engine = {
        .name = "reference", .kind = "sim", .engine_version = "1", .model = {.id = "m", .revision = "r"}};
    struct kv_client_lease lease;
    cr_assert(kv_client_register(client, &engine, &lease, &error), "%s", error.detail);
    cr_assert(eq(str, lease.engine_id, "eng_0123456789abcdefghjkmnpqrs"));
    cr_assert(eq(uint, lease.lease_seconds, 2));
}

Test(kv_client, registration_names_process_and_boot_and_carries_the_key)
{
    char pid[32];
    snprintf(pid, sizeof(pid), "\"pid\":%d", (int)getpid());
    canned_answer(server, 201, ENGINE_ANSWER);
    register_engine();
    const char *request = canned_request(server);
    cr_assert(strncmp(request, "POST /v1/engines HTTP/1.1\r\n", 27) == 0);
    cr_assert(strstr(request, "\r\nAuthorization: Bearer kvrun_test_secret\r\n") != NULL);
    cr_assert(strstr(request, pid) != NULL);
    cr_assert(strstr(request, "\"boot_id\":\"") != NULL);
    cr_assert(strstr(request, "fingerprint") == NULL, "an absent fingerprint is left out");
}

Test(kv_client, problem_document_becomes_code_detail_and_retryable)
{
    char id[KV_CLIENT_ID_SIZE] = "untouched";
    struct kv_client_model model = {.id = "m", .revision = "1"};
    canned_answer(server, 503, "{\"code\":\"busy\",\"detail\":\"later\",\"status\":503,\"retryable\":true}");
    canned_answer(server, 410, "{\"code\":\"session_erased\",\"title\":\"Session was erased\",\"status\":410}");
    fails_with(kv_client_session_create(client, &model, id, &error), "busy", 503);
    cr_assert(eq(str, error.detail, "later"));
    cr_assert(error.retryable);
    fails_with(kv_client_session_create(client, &model, id, &error), "session_erased", 410);
    cr_assert(not(error.retryable));
    cr_assert(eq(str, id, "untouched"));
}

Test(kv_client, answers_that_are_not_the_interface_are_protocol_errors)
{
    char id[KV_CLIENT_ID_SIZE];
    struct kv_client_model model = {.id = "m", .revision = "1"};
    canned_answer(server, 201, "hello");
    canned_answer(server, 500, "<html>");
    canned_answer(server, 201, "{\"id\":7}");
    canned_answer(server, 201, "{\"id\":\"ses_0123456789abcdefghjkmnpqrst-and-longer-than-an-id\"}");
    canned_answer(server, 201, "{\"id\":\"ses_0\"}");
    fails_with(kv_client_session_create(client, &model, id, &error), "protocol", 201);
    fails_with(kv_client_session_create(client, &model, id, &error), "protocol", 500);
    fails_with(kv_client_session_create(client, &model, id, &error), "protocol", 0);
    fails_with(kv_client_session_create(client, &model, id, &error), "protocol", 0);
    cr_assert(kv_client_session_create(client, &model, id, &error), "the control has to work");
}

Test(kv_client, answer_past_the_bound_is_refused)
{
    size_t len = ((size_t)4 << 20) + 1;
    char *body = malloc(len + 1);
    memset(body, ' ', len);
    body[len] = '\0';
    memcpy(body, "{\"response\":{\"blocks\":3}}", 25);
    uint64_t blocks = 0;
    canned_answer(server, 200, body);
    body[len - 1] = '\0';
    canned_answer(server, 200, body);
    fails_with(kv_client_drain_dram(client, &blocks, &error), "protocol", 0);
    cr_assert(kv_client_drain_dram(client, &blocks, &error), "at the bound: %s", error.detail);
    cr_assert(eq(u64, blocks, 3));
    free(body);
}

Test(kv_client, no_server_is_a_retryable_transport_error)
{
    uint64_t blocks;
    canned_stop(server);
    server = NULL;
    fails_with(kv_client_drain_dram(client, &blocks, &error), "transport", 0);
    cr_assert(error.retryable);
}

Test(kv_client, ids_that_could_change_the_path_are_never_sent)
{
    canned_answer(server, 204, "");
    fails_with(kv_client_pool_remove(client, "poo_../engines", &error), "invalid_argument", 0);
    fails_with(kv_client_pool_remove(client, "ses_abc", &error), "invalid_argument", 0);
    fails_with(kv_client_pool_remove(client, NULL, &error), "invalid_argument", 0);
    cr_assert(eq(uint, canned_request_count(server), 0));
    cr_assert(kv_client_pool_remove(client, "poo_0123456789abcdefghjkmnpqrs", &error));
    cr_assert(strncmp(canned_request(server), "DELETE /v1/pools/poo_0123456789abcdefghjkmnpqrs ", 48) == 0);
}

Test(kv_client, key_with_a_line_break_is_refused)
{
    struct kv_client *other = NULL;
    struct kv_client_conf conf = {.socket_path = http_path, .token = "kvrun\r\nX-Other: 1"};
    fails_with(kv_client_new(&conf, &other, &error), "invalid_argument", 0);
    conf.token = NULL;
    fails_with(kv_client_new(&conf, &other, &error), "invalid_argument", 0);
}

/* --- blocks ----------------------------------------------------------------------------------------------------------
 */

static char hashes[4097][KV_CLIENT_HASH_SIZE];
static uint32_t slots[4097];
static struct kv_client_block blocks[4097];

static struct kv_client_blocks some_blocks(uint32_t count)
{
    for (uint32_t i = 0; i < count && i < 4097; i++) {
        memcpy(hashes[i], HASH, sizeof(hashes[i]));
        slots[i] = i;
    }
    return (struct kv_client_blocks){
        .session_id = "ses_1", .pool_id = "poo_1", .count = count, .hashes = hashes, .slots = slots};
}

Test(kv_client, restore_reads_columns)
{
    struct kv_client_blocks in = some_blocks(2);
    struct kv_client_moved moved;
    canned_answer(server, 200,
                  "{\"operation_id\":\"op_1\",\"results\":[\"restored\",\"missing\"],\"tiers\":[\"nvme\",\"none\"],"
                  "\"contiguous_blocks\":1,\"bytes\":7,\"duration_us\":9}");
    cr_assert(kv_client_restore(client, &in, blocks, &moved, &error), "%s", error.detail);
    cr_assert(kv_client_block_is(&blocks[0], "restored"));
    cr_assert(kv_client_block_is(&blocks[1], "missing"));
    cr_assert(eq(str, blocks[0].tier, "nvme"));
    cr_assert(eq(u32, moved.contiguous_blocks, 1));
    cr_assert(eq(u64, moved.bytes, 7));
    const char *request = canned_request(server);
    cr_assert(strstr(request, "\"hashes\":[\"" HASH "\",\"" HASH "\"],\"slots\":[0,1]") != NULL);
}

Test(kv_client, offload_says_what_to_wait_for)
{
    struct kv_client_blocks in = some_blocks(1);
    struct kv_client_moved moved;
    in.durable = true;
    in.deadline_ms = 1234;
    canned_answer(server, 200, "{\"operation_id\":\"op_1\",\"results\":[\"stored\"],\"stored\":1,\"present\":0}");
    cr_assert(kv_client_offload(client, &in, blocks, &moved, &error), "%s", error.detail);
    cr_assert(eq(u32, moved.stored, 1));
    cr_assert(strstr(canned_request(server), "\"deadline_ms\":1234,\"wait\":\"durable\"") != NULL);
}

Test(kv_client, lookup_reads_tiers_and_prefix)
{
    struct kv_client_blocks in = some_blocks(2);
    uint32_t prefix = 0;
    canned_answer(server, 200, "{\"prefix_blocks\":1,\"tiers\":[\"dram+nvme\",\"none\"]}");
    cr_assert(kv_client_lookup(client, &in, blocks, &prefix, &error), "%s", error.detail);
    cr_assert(eq(u32, prefix, 1));
    cr_assert(eq(str, blocks[0].tier, "dram+nvme"));
    cr_assert(strstr(canned_request(server), "slots") == NULL);
}

Test(kv_client, columns_of_another_length_are_protocol_errors)
{
    struct kv_client_blocks in = some_blocks(2);
    struct kv_client_moved moved;
    canned_answer(server, 200, "{\"operation_id\":\"op_1\",\"results\":[\"restored\"],\"tiers\":[\"dram\",\"dram\"]}");
    canned_answer(server, 200, "{\"operation_id\":\"op_1\",\"results\":[\"missing\",\"missing\"],\"tiers\":[]}");
    canned_answer(server, 200, "{\"operation_id\":\"op_1\",\"results\":[1,2],\"tiers\":[\"dram\",\"dram\"]}");
    canned_answer(server, 200,
                  "{\"operation_id\":\"op_1\",\"results\":[\"restored\",\"restored\"],\"tiers\":[\"dram\",\"dram\"],"
                  "\"contiguous_blocks\":3}");
    for (int i = 0; i < 4; i++) {
        fails_with(kv_client_restore(client, &in, blocks, &moved, &error), "protocol", 0);
    }
}

static char *restored_answer(uint32_t count)
{
    char *text = malloc((size_t)count * 24 + 128);
    char *at = text + sprintf(text, "{\"operation_id\":\"op_1\",\"results\":[");
    for (uint32_t i = 0; i < count; i++) {
        at += sprintf(at, "%s\"restored\"", i == 0 ? "" : ",");
    }
    at += sprintf(at, "],\"tiers\":[");
    for (uint32_t i = 0; i < count; i++) {
        at += sprintf(at, "%s\"dram\"", i == 0 ? "" : ",");
    }
    sprintf(at, "],\"contiguous_blocks\":%u}", count);
    return text;
}

Test(kv_client, call_takes_4096_blocks_and_not_one_more)
{
    struct kv_client_blocks in = some_blocks(4097);
    struct kv_client_moved moved;
    char *answer = restored_answer(4096);
    canned_answer(server, 200, answer);
    fails_with(kv_client_restore(client, &in, blocks, &moved, &error), "invalid_argument", 0);
    in.count = 0;
    fails_with(kv_client_restore(client, &in, blocks, &moved, &error), "invalid_argument", 0);
    in.count = 4096;
    cr_assert(kv_client_restore(client, &in, blocks, &moved, &error), "%s", error.detail);
    cr_assert(eq(u32, moved.contiguous_blocks, 4096));
    free(answer);
}

Test(kv_client, erasure_waits_by_a_header)
{
    struct kv_client_erasure erasure;
    canned_answer(server, 200, "{\"id\":\"era_1\",\"state\":\"certified\"}");
    cr_assert(kv_client_erase(client, "ses_1", "gdpr_art17", NULL, 5, &erasure, &error), "%s", error.detail);
    cr_assert(eq(str, erasure.state, "certified"));
    cr_assert(strstr(canned_request(server), "\r\nPrefer: wait=5\r\n") != NULL);
    cr_assert(strstr(canned_request(server), "\"basis\":\"gdpr_art17\"") != NULL);
    cr_assert(strstr(canned_request(server), "reason") == NULL);
}

/* --- descriptor ------------------------------------------------------------------------------------------------------
 */

Test(kv_client, descriptor_arrives_and_its_token_comes_back)
{
    char token[48];
    struct stat sent, received;
    int fd = memfd_create("pool", MFD_CLOEXEC);
    canned_line(fd_server, "tok_00112233445566778899aabbccddeeff\n");
    cr_assert(kv_client_hand_over(client, fd, token, &error), "%s", error.detail);
    cr_assert(eq(str, token, "tok_00112233445566778899aabbccddeeff"));
    cr_assert(fstat(fd, &sent) == 0 && fstat(canned_descriptor(fd_server), &received) == 0);
    cr_assert(sent.st_ino == received.st_ino);
    close(fd);
}

Test(kv_client, refused_descriptor_gives_the_servers_code)
{
    char token[48], longer[256];
    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    canned_line(fd_server, "error peer_mismatch\n");
    fails_with(kv_client_hand_over(client, 0, token, &error), "peer_mismatch", 0);
    canned_line(fd_server, "what?\n");
    fails_with(kv_client_hand_over(client, 0, token, &error), "protocol", 0);
    canned_line(fd_server, longer);
    fails_with(kv_client_hand_over(client, 0, token, &error), "protocol", 0);
    canned_line(fd_server, "tok_00");
    fails_with(kv_client_hand_over(client, 0, token, &error), "transport", 0);
    canned_line(fd_server, NULL);
    fails_with(kv_client_hand_over(client, 0, token, &error), "transport", 0);
}

Test(kv_client, pool_needs_a_registered_engine)
{
    char id[KV_CLIENT_ID_SIZE];
    struct kv_client_pool pool = {.fd = 0, .format = "f", .engine_version = "v"};
    fails_with(kv_client_pool_register(client, &pool, id, &error), "invalid_argument", 0);
}

Test(kv_client, pool_of_regions_is_described)
{
    char id[KV_CLIENT_ID_SIZE];
    struct kv_client_region regions[2] = {{0, 64, 32}, {32, 64, 32}};
    struct kv_client_pool pool = {.fd = 0,
                                  .size_bytes = 4096,
                                  .format = "f16",
                                  .engine_version = "v",
                                  .tokens_per_block = 16,
                                  .slots = 4,
                                  .block_bytes = 64,
                                  .regions = regions,
                                  .region_count = 2};
    canned_answer(server, 201, ENGINE_ANSWER);
    canned_answer(server, 201, "{\"id\":\"poo_1\"}");
    canned_line(fd_server, "tok_00112233445566778899aabbccddeeff\n");
    register_engine();
    cr_assert(kv_client_pool_register(client, &pool, id, &error), "%s", error.detail);
    cr_assert(strstr(canned_request(server), "\"regions\":[{\"offset_bytes\":0,\"stride_bytes\":64,\"run_bytes\":32},"
                                             "{\"offset_bytes\":32,\"stride_bytes\":64,\"run_bytes\":32}]") != NULL);
    cr_assert(strstr(canned_request(server), "page_bytes") == NULL);
}

/* --- heartbeat -------------------------------------------------------------------------------------------------------
 */

static sem_t lost_once;
static char revoked_id[64];

static void take_revoked(void *ctx, const char *session_id)
{
    snprintf(revoked_id, sizeof(revoked_id), "%s", session_id);
}

static void take_lost(void *ctx, const struct kv_client_error *why)
{
    cr_assert(eq(str, (char *)why->code, "engine_unknown"));
    sem_post(&lost_once);
}

Test(kv_client, heartbeat_tells_revocations_and_ends_when_the_engine_is_unknown, .timeout = 30)
{
    struct kv_client_heartbeat_conf conf = {.revoked = take_revoked, .lost = take_lost};
    sem_init(&lost_once, 0, 0);
    canned_answer(server, 201, ENGINE_ANSWER);
    canned_answer(server, 503, "{\"code\":\"busy\",\"detail\":\"later\",\"retryable\":true}");
    canned_answer(server, 200, "{\"revocations\":[{\"session_id\":\"ses_gone\"}]}");
    canned_answer(server, 410, "{\"code\":\"engine_unknown\",\"detail\":\"register again\"}");
    fails_with(kv_client_heartbeat_start(client, &conf, &error), "invalid_argument", 0);
    register_engine();
    cr_assert(kv_client_heartbeat_start(client, &conf, &error), "%s", error.detail);
    fails_with(kv_client_heartbeat_start(client, &conf, &error), "invalid_argument", 0);
    sem_wait(&lost_once);
    kv_client_heartbeat_stop(client);
    cr_assert(eq(str, revoked_id, "ses_gone"));
    cr_assert(eq(uint, canned_request_count(server), 4));
    cr_assert(strstr(canned_request(server), "{\"seq\":3}") != NULL);
}

Test(kv_client, heartbeat_ends_at_once_when_it_is_stopped, .timeout = 30)
{
    canned_answer(server, 201,
                  "{\"id\":\"eng_0123456789abcdefghjkmnpqrs\",\"server_incarnation\":\"i\",\"lease_seconds\":3600}");
    struct kv_client_engine engine = {
        .name = "n", .kind = "sim", .engine_version = "1", .model = {.id = "m", .revision = "r"}};
    struct kv_client_lease lease;
    cr_assert(kv_client_register(client, &engine, &lease, &error));
    cr_assert(kv_client_heartbeat_start(client, NULL, &error));
    kv_client_heartbeat_stop(client);
    cr_assert(eq(uint, canned_request_count(server), 1));
}
