/*
 * Damages sealed blocks on the nvme tier behind the engine's back: finds them in the arena file by their clear headers.
 */
#ifndef KV_TESTS_NVME_DAMAGE_H
#define KV_TESTS_NVME_DAMAGE_H

#include "api/kv_api.h"

#include <stdbool.h>

/* Flips one bit at `at` bytes behind the header's start of that block. False: the block is not there. */
bool kvt_nvme_flip(const char *folder, const struct kv_block_id *block, uint64_t at);
/* Copies the sealed bytes of `from` over those of `to`. */
bool kvt_nvme_swap_in(const char *folder, const struct kv_block_id *from, const struct kv_block_id *to, uint64_t bytes);
bool kvt_nvme_has(const char *folder, const struct kv_block_id *block);

#endif
