/* Secrets, sealers of their own and a shared signing key, from several threads at once. */
#include "dataplane/crypto/sealed.h"
#include "dataplane/crypto/sign.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/sealed_cases.h"

enum { THREADS = 4, ROUNDS = 200 };

struct worker {
    pthread_t thread;
    uint8_t fill;
    const struct kv_sign_key *sign_key;
    unsigned mistakes;
};

static void start(struct worker workers[THREADS], void *(*run)(void *), const struct kv_sign_key *sign_key)
{
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.fill = (uint8_t)(i + 1), .sign_key = sign_key};
        cr_assert(eq(int, pthread_create(&workers[i].thread, NULL, run, &workers[i]), 0));
    }
}

static void join(struct worker workers[THREADS])
{
    for (unsigned i = 0; i < THREADS; i++) {
        cr_assert(eq(int, pthread_join(workers[i].thread, NULL), 0));
        cr_assert(eq(uint, workers[i].mistakes, 0));
    }
}

/* No two live secrets may share a slot: each thread finds its own bytes again. */
static void *fill_secrets(void *ctx)
{
    struct worker *worker = ctx;
    for (unsigned round = 0; round < ROUNDS; round++) {
        struct kv_secret *secrets[8] = {0};
        for (unsigned i = 0; i < 8; i++) {
            worker->mistakes += kv_secret_new(64, &secrets[i]) != KV_OK;
            memset(kv_secret_data_mutable(secrets[i]), worker->fill, 64);
        }
        for (unsigned i = 0; i < 8; i++) {
            worker->mistakes += kv_secret_data(secrets[i])[round % 64] != worker->fill;
            kv_secret_free(secrets[i]);
        }
    }
    return NULL;
}

Test(crypto_threads, secrets_of_threads_never_share_a_slot)
{
    struct worker workers[THREADS];
    start(workers, fill_secrets, NULL);
    join(workers);
    cr_assert(eq(sz, kv_secret_arena_used(), 0));
}

static void *sign_and_seal(void *ctx)
{
    struct worker *worker = ctx;
    struct kv_sealer *sealer = NULL;
    struct kv_sealed_context context = sealed_context(20000);
    struct kv_secret *key = sealed_key(worker->fill);
    uint8_t plaintext[20000], opened[20000], public_key[32], signature[64];
    memset(plaintext, worker->fill, sizeof plaintext);
    kv_sign_public(worker->sign_key, public_key);
    worker->mistakes += kv_sealer_new(KV_CIPHER_AUTO, &sealer) != KV_OK;
    for (unsigned round = 0; round < ROUNDS / 10; round++) {
        struct kv_buf sealed;
        kv_buf_init(&sealed, 100000);
        worker->mistakes += kv_sealed_seal_flat(sealer, &kv_env_system, key, &context, plaintext, &sealed) != KV_OK;
        worker->mistakes += kv_sealed_open_flat(sealer, key, &context, kv_buf_bytes(&sealed), opened, 20000) != KV_OK;
        worker->mistakes += memcmp(opened, plaintext, 20000) != 0;
        worker->mistakes += kv_sign(worker->sign_key, kv_buf_bytes(&sealed), signature) != KV_OK;
        worker->mistakes += kv_verify(public_key, kv_buf_bytes(&sealed), KV_BYTES(signature, 64)) != KV_OK;
        kv_buf_done(&sealed);
    }
    kv_sealer_free(sealer);
    kv_secret_free(key);
    return NULL;
}

Test(crypto_threads, sealers_are_independent_and_a_signing_key_is_shared)
{
    static const uint8_t seed[32] = {1};
    struct worker workers[THREADS];
    struct kv_sign_key *key = NULL;
    cr_assert(eq(int, kv_sign_key_from_seed(seed, &key), KV_OK));
    start(workers, sign_and_seal, key);
    join(workers);
    kv_sign_key_free(key);
    cr_assert(eq(sz, kv_secret_arena_used(), 0));
}

/* A child that is forked while other threads hold the arena's lock must not find it held. */
Test(crypto_threads, child_forked_in_between_can_use_the_arena)
{
    struct worker workers[THREADS];
    cr_assert(
        eq(int, kv_secret_arena_init(1 << 20), KV_OK)); /* the child must not need malloc, which it may find locked */
    start(workers, fill_secrets, NULL);
    for (unsigned i = 0; i < 50; i++) {
        int status = 0;
        pid_t pid = fork();
        cr_assert(pid >= 0);
        if (pid == 0) {
            struct kv_secret *secret = NULL;
            alarm(20);
            _exit(kv_secret_copy("x", 1, &secret) == KV_OK ? 0 : 1);
        }
        cr_assert(eq(int, waitpid(pid, &status, 0), pid));
        cr_assert(eq(int, status, 0));
    }
    join(workers);
}
