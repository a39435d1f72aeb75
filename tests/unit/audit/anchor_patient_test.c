/* An anchor that may hang, here one that waits for a byte in a pipe: nobody waits longer for it than was agreed. */
#include "audit/anchor.h"
#include "dataplane/base/env.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>
#include <unistd.h>

#define WAIT_NS (100 * KV_MS_NS)

static int gate[2];
static unsigned calls, closed; /* of the anchor behind; its thread's until it has answered */
static struct kv_anchor_record last;
static struct kv_errinfo info;
static struct kv_anchor *anchor;

static void pass(void)
{
    char byte;
    cr_assert(read(gate[0], &byte, 1) == 1);
    calls++;
}

static enum kv_err slow_read(struct kv_anchor *base, struct kv_errinfo *ret_info, struct kv_anchor_record *ret_record)
{
    pass();
    *ret_record = last;
    return last.log_size == 0 ? kv_fail(ret_info, KV_E_MISSING, "none yet") : KV_OK;
}

static enum kv_err slow_write(struct kv_anchor *base, const struct kv_anchor_record *record,
                              struct kv_errinfo *ret_info)
{
    pass();
    last = *record;
    return KV_OK;
}

static void slow_close(struct kv_anchor *base)
{
    closed++;
}

static const struct kv_anchor_ops slow_ops = {
    .name = "slow", .read = slow_read, .write = slow_write, .close = slow_close};
static struct kv_anchor slow = {.ops = &slow_ops};

static void open_gate(unsigned times)
{
    for (unsigned i = 0; i < times; i++) {
        cr_assert(write(gate[1], "x", 1) == 1);
    }
}

static void setup(void)
{
    cr_assert(pipe(gate) == 0);
    cr_assert(eq(int, kv_anchor_patient(&slow, WAIT_NS, &anchor), KV_OK));
}

TestSuite(anchor_patient, .init = setup);

static enum kv_err write_size(uint64_t size)
{
    const struct kv_anchor_record record = {.log_size = size};
    info = (struct kv_errinfo){0};
    return anchor->ops->write(anchor, &record, &info);
}

Test(anchor_patient, says_what_the_one_behind_it_says)
{
    struct kv_anchor_record record;
    open_gate(4);
    cr_assert(eq(str, (char *)anchor->ops->name, "slow"));
    cr_assert(eq(int, anchor->ops->read(anchor, &info, &record), KV_E_MISSING));
    cr_assert(eq(str, info.text, "none yet"));
    cr_assert(eq(int, write_size(1), KV_OK));
    cr_assert(eq(int, write_size(2), KV_OK));
    cr_assert(eq(int, anchor->ops->read(anchor, &info, &record), KV_OK));
    cr_assert(eq(u64, record.log_size, 2));
    anchor->ops->close(anchor);
    cr_assert(eq(uint, closed, 1));
}

Test(anchor_patient, is_given_up_and_nothing_else_begins_before_it_has_ended)
{
    struct kv_anchor_record record;
    uint64_t begun = kv_now_ns(&kv_env_system);
    cr_assert(eq(int, write_size(1), KV_E_TIMEOUT));
    cr_assert(ge(u64, kv_now_ns(&kv_env_system) - begun, WAIT_NS));
    cr_assert(strstr(info.text, "hangs") != NULL, "%s", info.text);
    for (unsigned i = 0; i < 1000; i++) { /* at once, or this takes a hundred seconds */
        cr_assert(eq(int, write_size(2), KV_E_TIMEOUT));
        cr_assert(eq(int, anchor->ops->read(anchor, &info, &record), KV_E_TIMEOUT));
    }
    open_gate(3);
    enum kv_err rc = KV_E_TIMEOUT;
    for (unsigned i = 0; i < 2000 && rc == KV_E_TIMEOUT;
         i++) { /* the one that was given up ends, and this one is begun */
        rc = write_size(3);
        usleep(10000);
    }
    cr_assert(eq(int, rc, KV_OK));
    cr_assert(eq(uint, calls, 2), "the one that hung, and this one: none of the thousand");
    cr_assert(eq(int, anchor->ops->read(anchor, &info, &record), KV_OK));
    cr_assert(eq(u64, record.log_size, 3));
    anchor->ops->close(anchor);
}

#ifndef __SANITIZE_ADDRESS__ /* which would call it a leak, and it is one on purpose */
Test(anchor_patient, that_still_hangs_does_not_keep_the_end)
{
    cr_assert(eq(int, write_size(1), KV_E_TIMEOUT));
    anchor->ops->close(anchor);
    cr_assert(eq(uint, closed, 0), "it is still in use");
}
#endif
