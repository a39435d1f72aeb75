/*
 * A connector in small: a conversation's blocks go out when it rests and come back when it goes on. In place of an
 * engine there is a pool whose pages it fills itself. connector SOCKET FD_SOCKET KEY_FILE; connector.py does the same.
 */
#include <kvrun.h>

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BLOCKS = 4, SLOTS = 2 * BLOCKS, BLOCK_BYTES = 1 << 16 };

static int failed(const char *what, const struct kvrun_error *error)
{
    fprintf(stderr, "%s: %s: %s\n", what, error->code, error->detail);
    return 1;
}

static void drop_session(void *ctx, const char *session_id)
{
    (void)ctx;
    printf("%s was erased: forget what is left of it\n", session_id);
}

/* What your engine computes from the tokens of a block and all before it; here a number will do. */
static struct kvrun_hash hash_of_block(unsigned block)
{
    struct kvrun_hash hash = {.bytes = {(unsigned char)block}};
    return hash;
}

static int converse(struct kvrun_client *client, uint32_t pool, unsigned char *pages)
{
    struct kvrun_error error;
    struct kvrun_session session = {.model = {.id = "example", .revision = "1"}, .external_id = "conversation-1"};
    char session_id[KVRUN_ID_SIZE];
    if (!kvrun_session_open(client, &session, session_id, &error)) {
        return failed("session", &error);
    }
    struct kvrun_hash hashes[BLOCKS];
    uint32_t slots[BLOCKS];
    for (unsigned i = 0; i < BLOCKS; i++) {
        hashes[i] = hash_of_block(i);
        slots[i] = i;
        memset(pages + (size_t)i * BLOCK_BYTES, (int)i + 1, BLOCK_BYTES); /* the prefill; final from here on */
    }
    struct kvrun_blocks in = {
        .session_id = session_id, .pool = pool, .count = BLOCKS, .hashes = hashes, .slots = slots, .durable = true};
    struct kvrun_block blocks[BLOCKS];
    struct kvrun_moved moved;
    if (!kvrun_offload(client, &in, blocks, &moved, &error)) {
        return failed("offload", &error);
    }
    printf("%u of %d blocks are stored %s\n", moved.stored + moved.present, BLOCKS, moved.cause);
    /* The pages are free for others now, if moved.hold is 0. Some day the conversation goes on, in other pages. */
    for (unsigned i = 0; i < BLOCKS; i++) {
        slots[i] = BLOCKS + i;
    }
    if (!kvrun_restore(client, &in, blocks, &moved, &error)) {
        return failed("restore", &error); /* session_erased: compute all of it, in a new session */
    }
    printf("%u of %d blocks came back %s\n", moved.contiguous_blocks, BLOCKS, moved.cause);
    int same = memcmp(pages, pages + BLOCKS * BLOCK_BYTES, moved.contiguous_blocks * (size_t)BLOCK_BYTES) == 0;
    printf("their bytes are %s\n", same ? "the same" : "OTHERS");
    return same ? 0 : 1;
}

static int run(struct kvrun_client *client)
{
    struct kvrun_error error;
    struct kvrun_engine engine = {.name = "example, gpu 0",
                                  .kind = "other",
                                  .engine_version = "1",
                                  .model = {.id = "example", .revision = "1"},
                                  .revoked = drop_session};
    if (!kvrun_register(client, &engine, &error)) {
        return failed("register", &error);
    }
    int fd = memfd_create("pool", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    struct kvrun_pool conf = {.fd = fd,
                              .size_bytes = SLOTS * BLOCK_BYTES,
                              .format = "f16, 32 layers",
                              .engine_version = "1",
                              .tokens_per_block = 16,
                              .slots = SLOTS,
                              .block_bytes = BLOCK_BYTES};
    if (fd < 0 || ftruncate(fd, SLOTS * BLOCK_BYTES) != 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
        perror("pool");
        return 1;
    }
    unsigned char *pages = mmap(NULL, SLOTS * BLOCK_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    uint32_t pool;
    if (pages == MAP_FAILED || !kvrun_pool_register(client, &conf, &pool, &error)) {
        return failed("pool", &error);
    }
    int rc = converse(client, pool, pages);
    struct kvrun_stats stats;
    kvrun_stats(client, &stats);
    printf("%llu calls answered, %llu missed\n", (unsigned long long)stats.calls_answered,
           (unsigned long long)stats.calls_missed);
    return kvrun_unregister(client, &error) ? rc : failed("unregister", &error);
}

int main(int argc, char **argv)
{
    char key[256] = "";
    FILE *file = argc == 4 ? fopen(argv[3], "r") : NULL;
    if (file == NULL || fgets(key, sizeof(key), file) == NULL) {
        fputs("usage: connector SOCKET FD_SOCKET KEY_FILE\n", stderr);
        return 2;
    }
    fclose(file);
    key[strcspn(key, "\n")] = '\0';
    struct kvrun_conf conf = {.socket_path = argv[1], .fd_socket_path = argv[2], .token = key};
    struct kvrun_client *client;
    struct kvrun_error error;
    if (!kvrun_client_new(&conf, &client, &error)) {
        return failed("client", &error);
    }
    int rc = run(client);
    kvrun_client_free(client);
    return rc;
}
