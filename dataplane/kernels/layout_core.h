/*
 * The arithmetic of a paged layout: where the run of a slot lies in a region, and whether a set of regions makes sense.
 * Only integers and stdint, so that a device compiler takes the same functions as the host. Nothing here touches the
 * memory that it computes addresses for, and nothing here trusts a number: every sum and product is checked.
 */
#ifndef KV_KERNELS_LAYOUT_CORE_H
#define KV_KERNELS_LAYOUT_CORE_H

#include <stdint.h>

enum kv_layout_fault {
    KV_LAYOUT_GOOD = 0,
    KV_LAYOUT_ZERO,     /* a run, a stride or a slot count of nothing */
    KV_LAYOUT_RUN,      /* the run of a slot reaches into that of the next one */
    KV_LAYOUT_OVERFLOW, /* a product or a sum does not fit in 64 bits */
    KV_LAYOUT_PAST_END, /* the last slot ends behind the mapping */
    KV_LAYOUT_OVERLAP,  /* two regions share bytes */
};

/* One region: `slots` runs of `run` bytes, `stride` apart, the first at `offset`. */
struct kv_layout_strip {
    uint64_t offset, stride, run;
};

/* 0 when the sum or product does not fit. */
static inline int kv_layout_add(uint64_t a, uint64_t b, uint64_t *ret_sum)
{
    *ret_sum = a + b;
    return *ret_sum >= a;
}

static inline int kv_layout_mul(uint64_t a, uint64_t b, uint64_t *ret_product)
{
    *ret_product = a * b;
    return a == 0 || *ret_product / a == b;
}

/* The first byte behind the last slot. Slots start at 1. */
static inline int kv_layout_end(const struct kv_layout_strip *strip, uint64_t slots, uint64_t *ret_end)
{
    uint64_t span = 0;
    uint64_t last = 0;
    return kv_layout_mul(strip->stride, slots - 1, &span) && kv_layout_add(strip->offset, span, &last) &&
           kv_layout_add(last, strip->run, ret_end);
}

/* Offset of a slot's run. The strip was checked, so nothing overflows for slot < slots. */
static inline uint64_t kv_layout_address(const struct kv_layout_strip *strip, uint64_t slot)
{
    return strip->offset + slot * strip->stride;
}

static inline enum kv_layout_fault kv_layout_check_strip(const struct kv_layout_strip *strip, uint64_t slots,
                                                         uint64_t mapping_bytes)
{
    uint64_t end = 0;
    if (strip->run == 0 || strip->stride == 0 || slots == 0) {
        return KV_LAYOUT_ZERO;
    }
    if (strip->run > strip->stride) {
        return KV_LAYOUT_RUN;
    }
    if (!kv_layout_end(strip, slots, &end)) {
        return KV_LAYOUT_OVERFLOW;
    }
    return end > mapping_bytes ? KV_LAYOUT_PAST_END : KV_LAYOUT_GOOD;
}

/*
 * Do two checked strips share a byte? With one stride for both (regions that interleave page by page) the answer is
 * exact: the runs of the later strip lie at a fixed phase between those of the earlier one, so the two nearest
 * neighbours decide. With two strides the answer is on the safe side: strips whose extents touch count as overlapping.
 * No engine lays pages out like that, and the exact test would cost time in proportion to the slots.
 */
static inline int kv_layout_overlaps(const struct kv_layout_strip *a, const struct kv_layout_strip *b, uint64_t slots)
{
    const struct kv_layout_strip *low = a->offset <= b->offset ? a : b;
    const struct kv_layout_strip *high = low == a ? b : a;
    uint64_t distance = high->offset - low->offset;
    uint64_t low_end = 0;
    if (!kv_layout_end(low, slots, &low_end)) {
        return 1; /* was not checked before: nothing good can be said */
    }
    if (high->offset >= low_end) {
        return 0;
    }
    if (low->stride != high->stride) {
        return 1;
    }
    if (distance % low->stride < low->run) {
        return 1; /* starts inside the run before it; low_end says that this run exists */
    }
    uint64_t to_next = low->stride - distance % low->stride;
    return distance / low->stride + 1 < slots && to_next < high->run;
}

#endif
