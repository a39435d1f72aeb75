/*
 * How an nvme tier divides its bytes between arena and index. Arithmetic only: the cap holds for every number it is
 * given.
 */
#include "dataplane/tier/nvme_int.h"

#define BLOCK_BYTES_USUAL 65536u /* for the size of the table when none is asked for */
#define SLAB_BYTES_MAX (UINT64_C(1) << 30)
#define SLAB_BYTES_MIN (UINT64_C(16) << 20)

uint64_t kv_nvme_log_entries_max(uint64_t entries)
{
    return entries + 2 * (uint64_t)KV_NVME_GROUP_ENTRIES;
}

static uint64_t in_pages(uint64_t entries)
{
    uint64_t bytes = (entries + 1) * KV_NVME_ENTRY_BYTES;
    return (bytes + KV_NVME_PAGE_BYTES - 1) / KV_NVME_PAGE_BYTES * KV_NVME_PAGE_BYTES;
}

/* While a generation changes there are two checkpoints, one full log and one new log. */
uint64_t kv_nvme_index_bytes(uint64_t entries)
{
    return 2 * in_pages(entries) + in_pages(kv_nvme_log_entries_max(entries)) + in_pages(0);
}

uint64_t kv_nvme_wanted_entries(const struct kv_tier_conf *conf)
{
    uint64_t entries = conf->entries_max;
    if (entries == 0) {
        entries = conf->bytes / BLOCK_BYTES_USUAL < 1024 ? 1024 : conf->bytes / BLOCK_BYTES_USUAL;
    }
    uint64_t most = conf->bytes / KV_NVME_PAGE_BYTES; /* more slots than that do not exist */
    return entries < most ? entries : most;
}

/* As many as fit beside an arena of this size; 0 when nothing does. */
uint64_t kv_nvme_entries_beside(uint64_t bytes, uint64_t arena_bytes, uint64_t wanted)
{
    uint64_t rest = bytes > arena_bytes ? bytes - arena_bytes : 0;
    uint64_t fit = rest / (3 * KV_NVME_ENTRY_BYTES) < wanted ? rest / (3 * KV_NVME_ENTRY_BYTES) : wanted;
    while (fit > 0 && kv_nvme_index_bytes(fit) > rest) {
        fit -= fit < 32 ? fit : 32;
    }
    return fit;
}

uint64_t kv_nvme_choose_slab_bytes(const struct kv_tier_conf *conf, uint64_t room)
{
    uint64_t slab = conf->slab_bytes;
    if (slab == 0) {
        slab = room / 16 < SLAB_BYTES_MAX ? room / 16 : SLAB_BYTES_MAX;
        slab = slab < SLAB_BYTES_MIN ? SLAB_BYTES_MIN : slab;
        slab = slab > room ? room : slab;
    }
    return slab / KV_NVME_PAGE_BYTES * KV_NVME_PAGE_BYTES;
}

/* The arena that fits under the cap, for a slab size. 0: not even one slab. */
uint64_t kv_nvme_arena_bytes(uint64_t room, uint64_t slab_bytes)
{
    uint64_t slabs = slab_bytes == 0 ? 0 : room / slab_bytes;
    slabs = slabs > UINT16_MAX ? UINT16_MAX : slabs;
    return slabs == 0 ? 0 : KV_NVME_DATA_OFFSET + slabs * slab_bytes;
}

uint64_t kv_nvme_room_for_slabs(uint64_t bytes, uint64_t entries)
{
    uint64_t rest = kv_nvme_index_bytes(entries) + KV_NVME_DATA_OFFSET;
    return bytes > rest ? bytes - rest : 0;
}
