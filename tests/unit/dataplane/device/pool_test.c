/* What attach refuses, and that what it accepts is addressed as the layout says. */
#include "dataplane/device/pool.h"
#include "dataplane/kernels/layout_core.h"
#include "tests/lib/memfd_pool.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct kvt_pool_plan plan;
static struct kv_pool *pool;
static struct kv_errinfo info;

static void start(void)
{
    kvt_pool_plan(&plan, 4, 8, 4096);
    pool = NULL;
    info = (struct kv_errinfo){.code = KV_OK};
}

static void finish(void)
{
    if (pool == NULL) {
        close(plan.spec.fd); /* not taken by a failure */
    }
    kv_pool_unref(pool);
}

TestSuite(pool, .init = start, .fini = finish);

static enum kv_err attach(void)
{
    return kv_pool_attach(&plan.spec, &info, &pool);
}

static void refused(enum kv_err expected)
{
    cr_assert(eq(int, attach(), expected));
    cr_assert(eq(ptr, pool, NULL));
    cr_assert(ne(int, info.text[0], 0));
    cr_assert(ge(int, fcntl(plan.spec.fd, F_GETFD), 0), "a refused descriptor is still the caller's");
}

Test(pool, a_good_layout_is_attached_and_its_pages_lie_where_it_says)
{
    struct kv_segment segments[4];
    int second = dup(plan.spec.fd);
    cr_assert(eq(int, attach(), KV_OK));
    uint8_t *memory = mmap(NULL, plan.spec.size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, second, 0);
    cr_assert(kv_pool_segments(pool, 3, segments));
    segments[2].data[5] = 0xab;
    cr_assert(eq(u8, memory[2 * 8 * 4096 + 3 * 4096 + 5], 0xab));
    cr_assert(eq(sz, segments[2].len, 4096));
    cr_assert(eq(u64, kv_pool_block_bytes(pool), 4 * 4096));
    cr_assert(eq(u32, kv_pool_slots(pool), 8));
    munmap(memory, plan.spec.size_bytes);
    close(second);
}

Test(pool, the_last_slot_has_segments_and_one_past_it_has_none)
{
    struct kv_segment segments[4];
    cr_assert(eq(int, attach(), KV_OK));
    cr_assert(kv_pool_segments(pool, 7, segments));
    cr_assert(not(kv_pool_segments(pool, 8, segments)));
}

Test(pool, who_used_a_page_last_is_known_once_somebody_told)
{
    struct kv_page_use use = {.session = {.b = {1}}, .generation = 9}, found = {.generation = 1};
    cr_assert(eq(int, attach(), KV_OK));
    cr_assert(not(kv_pool_counts_uses(pool)));
    cr_assert(not(kv_pool_last_use(pool, 7, &found)));
    cr_assert(eq(int, kv_pool_note_use(pool, 7, &use), KV_OK));
    cr_assert(kv_pool_counts_uses(pool));
    cr_assert(kv_pool_last_use(pool, 7, &found));
    cr_assert(eq(u64, found.generation, 9));
    cr_assert(eq(u8, found.session.b[0], 1));
    cr_assert(not(kv_pool_last_use(pool, 6, &found)), "nobody told of this one");
    cr_assert(ne(int, kv_pool_note_use(pool, 8, &use), KV_OK), "one past the last slot");
    cr_assert(not(kv_pool_last_use(pool, 8, &found)));
}

Test(pool, the_descriptor_is_taken_on_success)
{
    int fd = plan.spec.fd;
    cr_assert(eq(int, attach(), KV_OK));
    cr_assert(eq(int, fcntl(fd, F_GETFD), -1));
}

Test(pool, runs_that_do_not_add_up_are_refused)
{
    plan.spec.bytes_per_block += 1;
    refused(KV_E_GEOMETRY_MISMATCH);
    cr_assert(ne(ptr, strstr(info.text, "16384"), NULL), "the text has the arithmetic: %s", info.text);
}

Test(pool, a_region_that_ends_at_the_end_is_good_and_one_byte_past_it_is_not)
{
    plan.spec.size_bytes -= 1;
    refused(KV_E_GEOMETRY_MISMATCH);
}

Test(pool, overlapping_regions_are_refused)
{
    plan.regions[1].offset_bytes -= 1;
    refused(KV_E_GEOMETRY_MISMATCH);
    cr_assert(ne(ptr, strstr(info.text, "0 and 1"), NULL));
}

Test(pool, the_same_region_twice_is_refused)
{
    plan.regions[3] = plan.regions[2];
    refused(KV_E_GEOMETRY_MISMATCH);
}

Test(pool, pages_that_interleave_without_sharing_bytes_are_good)
{
    for (unsigned i = 0; i < 4; i++) {
        plan.regions[i] = (struct kv_region){.offset_bytes = i * 4096, .stride_bytes = 4 * 4096, .run_bytes = 4096};
    }
    cr_assert(eq(int, attach(), KV_OK));
}

Test(pool, pages_that_interleave_and_share_one_byte_are_refused)
{
    for (unsigned i = 0; i < 4; i++) {
        plan.regions[i] = (struct kv_region){.offset_bytes = i * 4096, .stride_bytes = 4 * 4096, .run_bytes = 4096};
    }
    plan.regions[2].offset_bytes -= 1;
    refused(KV_E_GEOMETRY_MISMATCH);
}

Test(pool, a_run_that_reaches_into_the_next_slot_is_refused)
{
    plan.regions[0].stride_bytes = 4095;
    refused(KV_E_GEOMETRY_MISMATCH);
}

Test(pool, zero_run_stride_slots_and_regions_are_refused)
{
    plan.regions[0].run_bytes = 0;
    refused(KV_E_GEOMETRY_MISMATCH);
    plan.regions[0].run_bytes = 4096;
    plan.regions[0].stride_bytes = 0;
    refused(KV_E_GEOMETRY_MISMATCH);
    plan.regions[0].stride_bytes = 4096;
    plan.spec.slots = 0;
    refused(KV_E_GEOMETRY_MISMATCH);
    plan.spec.slots = 8;
    plan.spec.region_count = 0;
    refused(KV_E_GEOMETRY_MISMATCH);
    plan.spec.region_count = 4;
    plan.spec.tokens_per_block = 0;
    refused(KV_E_GEOMETRY_MISMATCH);
    plan.spec.tokens_per_block = 1;
    cr_assert(eq(int, attach(), KV_OK), "control");
}

Test(pool, products_and_sums_that_overflow_are_refused)
{
    plan.regions[0].stride_bytes = UINT64_MAX / 4;
    refused(KV_E_GEOMETRY_MISMATCH);
    plan.regions[0].stride_bytes = UINT64_MAX / 7;
    plan.regions[0].offset_bytes = UINT64_MAX - 4096;
    refused(KV_E_GEOMETRY_MISMATCH);
    plan.regions[0].stride_bytes = 4096;
    plan.regions[0].offset_bytes = UINT64_MAX - 4096;
    refused(KV_E_GEOMETRY_MISMATCH);
    plan.regions[0].offset_bytes = 0;
    cr_assert(eq(int, attach(), KV_OK), "control");
}

Test(pool, more_regions_or_bytes_than_the_limits_are_refused)
{
    plan.spec.region_count = (uint32_t)KV_MAX_POOL_REGIONS + 1;
    refused(KV_E_GEOMETRY_MISMATCH);
    plan.spec.region_count = 4;
    plan.spec.size_bytes = (uint64_t)KV_MAX_POOL_BYTES + 1;
    refused(KV_E_GEOMETRY_MISMATCH);
}

static enum kv_err attach_one_run(uint64_t run_bytes)
{
    plan.regions[0] = (struct kv_region){.stride_bytes = run_bytes, .run_bytes = run_bytes};
    plan.spec.region_count = 1;
    plan.spec.slots = 1;
    plan.spec.size_bytes = run_bytes;
    plan.spec.bytes_per_block = run_bytes;
    cr_assert(eq(int, ftruncate(plan.spec.fd, (off_t)run_bytes), 0));
    return attach();
}

Test(pool, the_largest_block_is_good_and_one_byte_more_is_not)
{
    cr_assert(eq(int, attach_one_run((uint64_t)KV_MAX_BLOCK_BYTES), KV_OK));
    kv_pool_unref(pool);
    pool = NULL;
    plan.spec.fd = kvt_memfd(1, MFD_ALLOW_SEALING, 0);
    cr_assert(eq(int, attach_one_run((uint64_t)KV_MAX_BLOCK_BYTES + 1), KV_E_GEOMETRY_MISMATCH));
}

Test(pool, a_descriptor_that_is_too_short_is_refused)
{
    close(plan.spec.fd);
    plan.spec.fd = kvt_memfd(plan.spec.size_bytes - 1, MFD_ALLOW_SEALING, F_SEAL_SHRINK);
    refused(KV_E_POOL_TRUNCATED);
}

Test(pool, memory_that_can_shrink_is_sealed_by_us)
{
    close(plan.spec.fd);
    plan.spec.fd = kvt_memfd(plan.spec.size_bytes, MFD_ALLOW_SEALING, 0);
    int second = dup(plan.spec.fd);
    cr_assert(eq(int, attach(), KV_OK));
    cr_assert(eq(int, ftruncate(second, 4096), -1), "cannot shrink any more");
    close(second);
}

Test(pool, memory_that_cannot_be_sealed_is_refused)
{
    close(plan.spec.fd);
    plan.spec.fd = kvt_memfd(plan.spec.size_bytes, 0, 0); /* sealing is not allowed */
    refused(KV_E_POOL_NOT_SEALED);
}

Test(pool, memory_sealed_against_writes_is_refused)
{
    cr_assert(eq(int, fcntl(plan.spec.fd, F_ADD_SEALS, F_SEAL_WRITE), 0));
    refused(KV_E_INVALID_REQUEST);
}

Test(pool, something_that_is_no_memory_is_refused)
{
    close(plan.spec.fd);
    plan.spec.fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    refused(KV_E_INVALID_REQUEST);
}

Test(pool, an_opaque_layout_is_one_region_of_whole_pages)
{
    plan.spec.kind = "opaque";
    refused(KV_E_GEOMETRY_MISMATCH);
    plan.spec.region_count = 1;
    plan.spec.bytes_per_block = 4096;
    cr_assert(eq(int, attach(), KV_OK));
}

Test(pool, an_unknown_kind_or_an_empty_name_is_refused)
{
    plan.spec.kind = "paged";
    refused(KV_E_INVALID_REQUEST);
    plan.spec.kind = "regions";
    plan.spec.format = "";
    refused(KV_E_INVALID_REQUEST);
    plan.spec.format = NULL;
    refused(KV_E_INVALID_REQUEST);
}

static void fingerprint_of(struct kvt_pool_plan *one, uint8_t ret_hash[32])
{
    struct kv_pool *attached = NULL;
    cr_assert(eq(int, kv_pool_attach(&one->spec, &info, &attached), KV_OK), "%s", info.text);
    memcpy(ret_hash, kv_pool_fingerprint(attached), 32);
    kv_pool_unref(attached);
}

static bool differs(void (*change)(struct kvt_pool_plan *))
{
    struct kvt_pool_plan other;
    uint8_t a[32], b[32];
    kvt_pool_plan(&other, 4, 8, 4096);
    fingerprint_of(&other, a);
    kvt_pool_plan(&other, 4, 8, 4096);
    change(&other);
    fingerprint_of(&other, b);
    return memcmp(a, b, 32) != 0;
}

static void change_nothing(struct kvt_pool_plan *p)
{
    (void)p;
}

static void change_format(struct kvt_pool_plan *p)
{
    p->spec.format = "fp16";
}

static void change_version(struct kvt_pool_plan *p)
{
    p->spec.engine_version = "test 2";
}

static void change_tokens(struct kvt_pool_plan *p)
{
    p->spec.tokens_per_block = 32;
}

static void change_split(struct kvt_pool_plan *p)
{
    p->regions[0].run_bytes = 4000;
    p->spec.bytes_per_block -= 96;
}

/* The border between two texts moves: "bf16" "test 1" and "bf16t" "est 1". */
static void change_border(struct kvt_pool_plan *p)
{
    p->spec.format = "bf16t";
    p->spec.engine_version = "est 1";
}

static void change_places(struct kvt_pool_plan *p)
{
    struct kv_region first = p->regions[0];
    p->regions[0] = p->regions[1];
    p->regions[1] = first;
}

Test(pool, the_fingerprint_changes_with_the_meaning_of_the_bytes_and_not_with_their_place)
{
    close(plan.spec.fd);
    plan.spec.fd = -1;
    cr_assert(not(differs(change_nothing)));
    cr_assert(differs(change_format));
    cr_assert(differs(change_version));
    cr_assert(differs(change_tokens));
    cr_assert(differs(change_split));
    cr_assert(differs(change_border));
    cr_assert(not(differs(change_places)));
}

Test(pool, a_reference_keeps_the_pages_and_closing_only_marks)
{
    cr_assert(eq(int, attach(), KV_OK));
    struct kv_pool *second = kv_pool_ref(pool);
    cr_assert(not(kv_pool_is_closed(pool)));
    kv_pool_close(pool);
    kv_pool_unref(pool);
    pool = second;
    cr_assert(kv_pool_is_closed(pool));
    kvt_page_set(pool, 0, 0x5a);
    cr_assert(kvt_page_is(pool, 0, 0x5a));
}

/* Against a map of bytes, over all small layouts of two strips. */
static bool share_bytes(const struct kv_layout_strip *a, const struct kv_layout_strip *b, uint64_t slots)
{
    uint8_t map[128] = {0};
    for (uint64_t s = 0; s < slots; s++) {
        memset(map + kv_layout_address(a, s), 1, a->run);
    }
    for (uint64_t s = 0; s < slots; s++) {
        for (uint64_t i = 0; i < b->run; i++) {
            if (map[kv_layout_address(b, s) + i] != 0) {
                return true;
            }
        }
    }
    return false;
}

Test(layout, overlap_agrees_with_a_map_of_bytes)
{
    for (unsigned n = 0; n < 9 * 9 * 4 * 4 * 4 * 4; n++) {
        uint64_t stride = n / 1296 % 9 % 4 + 3;
        struct kv_layout_strip a = {.offset = n % 9, .stride = stride, .run = n / 81 % 4 % stride + 1};
        struct kv_layout_strip b = {.offset = n / 9 % 9 * 2, .stride = stride, .run = n / 324 % 4 % stride + 1};
        uint64_t slots = n / 5184 % 4 + 1;
        cr_assert(eq(int, kv_layout_overlaps(&a, &b, slots), share_bytes(&a, &b, slots)), "%lu+%lux%lu/%lu %lu+/%lu",
                  a.offset, slots, a.stride, a.run, b.offset, b.run);
        b.stride = stride + 1; /* may say yes without need, never no */
        cr_assert(kv_layout_overlaps(&a, &b, slots) || !share_bytes(&a, &b, slots));
    }
}
