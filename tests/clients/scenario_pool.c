/* The memory of the scenario's pools. */
#include "tests/clients/scenario_pool.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static uint64_t at(const json_t *list, size_t index)
{
    return (uint64_t)json_integer_value(json_array_get(list, index));
}

static void take_regions(const json_t *regions, struct scenario_pool *pool)
{
    for (size_t i = 0; i < json_array_size(regions) && i < SCENARIO_REGIONS_MAX; i++) {
        const json_t *region = json_array_get(regions, i);
        pool->regions[pool->region_count++] = (struct kvrun_region){at(region, 0), at(region, 1), at(region, 2)};
    }
}

bool scenario_pool_make(const json_t *step, struct scenario_pool *ret_pool)
{
    uint32_t slots = (uint32_t)json_integer_value(json_object_get(step, "slots"));
    uint64_t block_bytes = (uint64_t)json_integer_value(json_object_get(step, "block_bytes"));
    *ret_pool = (struct scenario_pool){.name = json_string_value(json_object_get(step, "as")),
                                       .conf = {.size_bytes = slots * block_bytes,
                                                .format = "f16",
                                                .engine_version = "1",
                                                .tokens_per_block = 16,
                                                .slots = slots,
                                                .block_bytes = block_bytes}};
    take_regions(json_object_get(step, "regions"), ret_pool);
    ret_pool->conf.regions = ret_pool->region_count > 0 ? ret_pool->regions : NULL;
    ret_pool->conf.region_count = ret_pool->region_count;
    if (ret_pool->region_count == 0) {
        ret_pool->regions[ret_pool->region_count++] = (struct kvrun_region){0, block_bytes, block_bytes};
    }
    int fd = memfd_create("scenario", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ret_pool->conf.fd = fd;
    if (fd < 0 || ftruncate(fd, (off_t)ret_pool->conf.size_bytes) != 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
        return false;
    }
    ret_pool->base = mmap(NULL, ret_pool->conf.size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return ret_pool->base != MAP_FAILED;
}

void scenario_pool_done(struct scenario_pool *pool)
{
    munmap(pool->base, pool->conf.size_bytes);
    close(pool->conf.fd);
}

static uint8_t byte_of(char letter, uint64_t index)
{
    return (uint8_t)((uint8_t)letter * 131 + 7 * index + (index >> 8));
}

/* Byte `index` of a page, wherever it lies. */
static uint8_t *byte_at(const struct scenario_pool *pool, uint32_t slot, uint64_t index)
{
    const struct kvrun_region *region = pool->regions;
    while (index >= region->run_bytes) {
        index -= region->run_bytes;
        region++;
    }
    return pool->base + region->offset_bytes + slot * region->stride_bytes + index;
}

void scenario_pool_write(struct scenario_pool *pool, uint32_t slot, const char *text)
{
    for (uint64_t i = 0; i < pool->conf.block_bytes; i++) {
        *byte_at(pool, slot, i) = text != NULL ? byte_of(text[0], i) : 0;
    }
}

static bool is_made_of(const struct scenario_pool *pool, uint32_t slot, const char *letter)
{
    for (uint64_t i = 0; i < pool->conf.block_bytes; i++) {
        if (*byte_at(pool, slot, i) != (letter != NULL ? byte_of(*letter, i) : 0)) {
            return false;
        }
    }
    return true;
}

const char *scenario_pool_name(const struct scenario_pool *pool, uint32_t slot, const char *letters)
{
    static char name[2];
    if (slot >= pool->conf.slots) {
        return "none";
    }
    if (is_made_of(pool, slot, NULL)) {
        return "zero";
    }
    for (; *letters != '\0'; letters++) {
        if (is_made_of(pool, slot, letters)) {
            name[0] = *letters;
            return name;
        }
    }
    return "other";
}
