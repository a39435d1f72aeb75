/* The rig of the tests of libkvrun. */
#include "tests/clients/client_rig.h"

#include "tests/lib/temp_folder.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct canned_server *rig_server, *rig_fd_server;
struct kvrun_client *rig_client;
struct kvrun_error rig_error;
struct kvrun_block rig_blocks[RIG_BLOCKS_MAX];

static char folder[KVT_PATH_BYTES], http_path[KVT_PATH_BYTES], fd_path[KVT_PATH_BYTES];
static struct kvrun_hash hashes[RIG_BLOCKS_MAX];
static uint32_t slots[RIG_BLOCKS_MAX];

void rig_open(void)
{
    kvt_folder_make(folder);
    kvt_path_join(http_path, folder, "http");
    kvt_path_join(fd_path, folder, "fd");
    rig_server = canned_start(http_path);
    rig_fd_server = canned_start(fd_path);
    /* Short ones, as tests wait for them; a machine under load still answers within them. */
    struct kvrun_conf conf = {.socket_path = http_path,
                              .fd_socket_path = fd_path,
                              .token = "kvrun_test_secret",
                              .timeout_ms = 4000,
                              .control_timeout_ms = 20000,
                              .deadline_ms = 1000};
    cr_assert(kvrun_client_new(&conf, &rig_client, &rig_error));
}

void rig_stop_server(void)
{
    if (rig_server != NULL) {
        canned_stop(rig_server);
    }
    rig_server = NULL;
}

void rig_start_server(void)
{
    rig_server = canned_start(http_path);
}

void rig_close(void)
{
    kvrun_client_free(rig_client);
    rig_stop_server();
    canned_stop(rig_fd_server);
    kvt_folder_remove(folder);
}

void rig_failed(bool fine, const char *code, int status)
{
    cr_assert(not(fine));
    cr_assert(eq(str, rig_error.code, (char *)code));
    cr_assert(eq(int, rig_error.status, status));
    cr_assert(rig_error.detail[0] != '\0');
}

void rig_register(void (*revoked)(void *, const char *), void (*link_changed)(void *, bool, const struct kvrun_error *))
{
    struct kvrun_engine engine = {.name = "reference",
                                  .kind = "sim",
                                  .engine_version = "1",
                                  .model = {.id = "m", .revision = "r"},
                                  .revoked = revoked,
                                  .link_changed = link_changed};
    canned_answer(rig_server, 201, RIG_ENGINE);
    cr_assert(kvrun_register(rig_client, &engine, &rig_error), "%s", rig_error.detail);
    cr_assert(kvrun_ready(rig_client, &rig_error), "%s", rig_error.detail);
}

uint32_t rig_pool(void)
{
    canned_answer(rig_server, 200, RIG_BEAT);
    return rig_pool_alone();
}

uint32_t rig_pool_alone(void)
{
    uint32_t pool = UINT32_MAX;
    struct kvrun_pool conf = {.fd = STDIN_FILENO,
                              .size_bytes = 4096,
                              .format = "f16",
                              .engine_version = "v",
                              .tokens_per_block = 16,
                              .slots = 4,
                              .block_bytes = 1024};
    canned_answer(rig_server, 201, "{\"id\":\"poo_1\"}");
    canned_line(rig_fd_server, "tok_00112233445566778899aabbccddeeff\n");
    cr_assert(kvrun_pool_register(rig_client, &conf, &pool, &rig_error), "%s", rig_error.detail);
    cr_assert(kvrun_ready(rig_client, &rig_error), "%s", rig_error.detail);
    return pool;
}

struct kvrun_blocks rig_in(uint32_t pool, uint32_t count)
{
    for (uint32_t i = 0; i < count && i < RIG_BLOCKS_MAX; i++) {
        memset(hashes[i].bytes, 0xa5, sizeof(hashes[i].bytes));
        hashes[i].bytes[0] = (uint8_t)i;
        slots[i] = i;
    }
    return (struct kvrun_blocks){.session_id = "ses_1", .pool = pool, .count = count, .hashes = hashes, .slots = slots};
}

struct kvrun_stats rig_stats(void)
{
    struct kvrun_stats stats;
    kvrun_stats(rig_client, &stats);
    return stats;
}

void rig_wait_until_up(bool up)
{
    for (int i = 0; i < 3000; i++) {
        if (kvrun_ready(rig_client, &rig_error) == up) {
            return;
        }
        usleep(20000);
    }
    cr_assert(false, "waited 60 s for the server to be %s", up ? "there" : "away");
}

char *rig_restored_answer(uint32_t count)
{
    char *text = malloc((size_t)count * 24 + 128);
    char *at = text + sprintf(text, "{\"operation_id\":\"opr_1\",\"results\":[");
    for (uint32_t i = 0; i < count; i++) {
        at += sprintf(at, "%s\"restored\"", i == 0 ? "" : ",");
    }
    at += sprintf(at, "],\"tiers\":[");
    for (uint32_t i = 0; i < count; i++) {
        at += sprintf(at, "%s\"dram\"", i == 0 ? "" : ",");
    }
    sprintf(at, "],\"contiguous_blocks\":%u,\"bytes\":7,\"duration_us\":9}", count);
    return text;
}
