/* Answers with secrets: for a while, for the same key, in a ring, and wiped. */
#include "server/http/once.h"

#include "tests/lib/manual_clock.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <stdio.h>
#include <string.h>

static struct kvt_clock clock_;
static struct kv_secret_answers *answers;
static struct kv_buf body;

static void start(void)
{
    kvt_clock_init(&clock_);
    kv_buf_init(&body, 65536);
    cr_assert(eq(int, kv_secret_answers_new(&clock_.env, &answers), KV_OK));
}

static void end(void)
{
    kv_buf_done(&body);
    kv_secret_answers_free(answers);
}

TestSuite(once, .init = start, .fini = end);

static struct kv_store_once_key key_of(unsigned principal, unsigned scope, const char *text)
{
    struct kv_store_once_key key = {.principal = {{(uint8_t)principal}}, .scope = {(uint8_t)scope}};
    snprintf(key.key, sizeof key.key, "%s", text);
    return key;
}

static void put(struct kv_store_once_key key, const char *text)
{
    kv_secret_answers_put(answers, &key, KV_BYTES(text, strlen(text)));
}

static bool get(struct kv_store_once_key key)
{
    kv_buf_reset(&body);
    return kv_secret_answers_get(answers, &key, &body);
}

Test(once, a_secret_is_repeated_for_its_key_alone)
{
    put(key_of(1, 1, "a"), "secret");
    cr_assert(get(key_of(1, 1, "a")));
    cr_expect(eq(str, (char *)body.data, "secret"));
    cr_expect(get(key_of(1, 1, "a")), "as often as it is asked for");
    cr_expect(not(get(key_of(2, 1, "a"))));
    cr_expect(not(get(key_of(1, 2, "a"))));
    cr_expect(not(get(key_of(1, 1, "b"))));
}

Test(once, a_secret_is_gone_after_its_time)
{
    put(key_of(1, 1, "a"), "secret");
    kvt_clock_advance(&clock_, ((uint64_t)KV_MAX_SECRET_REPLAY_SECONDS - 1) * KV_S_NS);
    cr_expect(get(key_of(1, 1, "a")));
    kvt_clock_advance(&clock_, KV_S_NS);
    cr_expect(not(get(key_of(1, 1, "a"))));
}

Test(once, the_oldest_gives_its_place_up)
{
    char text[16];
    for (int i = 0; i <= 64; i++) {
        snprintf(text, sizeof text, "k%d", i);
        put(key_of(1, 1, text), text);
    }
    cr_expect(not(get(key_of(1, 1, "k0"))));
    cr_expect(get(key_of(1, 1, "k1")) && get(key_of(1, 1, "k64")));
}

Test(once, what_is_too_long_is_not_kept)
{
    char text[2050];
    memset(text, 'x', sizeof text);
    text[2048] = '\0';
    put(key_of(1, 1, "a"), text);
    cr_expect(get(key_of(1, 1, "a")));
    text[2048] = 'x';
    text[2049] = '\0';
    put(key_of(1, 1, "b"), text);
    cr_expect(not(get(key_of(1, 1, "b"))));
}
