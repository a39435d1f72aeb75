/*
 * Layout of the file provider's file, for the provider, its tests and the attack program. Big-endian.
 *
 *      0  header page, 8 KiB: magic "KVRUNROE", u32 version = 1, u32 slots = 2, u32 slot bytes = 4096, u32 CRC-32C,
 * zeroes 8192  slot 0, 4 KiB 12288  slot 1, 4 KiB
 *
 *  slot:  0  magic "KVRS"    4  u32 version = 1     8  u32 state: 1 staged, 2 active
 *        12  root id[16]    28  wrapping key[32]   60  u32 CRC-32C of bytes 0 to 59       64  zeroes
 *
 * A record fits one 512-byte sector. An empty slot is all zeroes. A slot that is neither empty nor whole is torn: the
 * provider treats it as absent and overwrites it with the next key or at the next destruction.
 * Functions here read and build pages; they never open a file.
 */
#ifndef KV_KEYS_ROE_FILE_FORMAT_H
#define KV_KEYS_ROE_FILE_FORMAT_H

#include "dataplane/base/bytes.h"
#include "dataplane/base/id.h"
#include "dataplane/crypto/secret.h"

#define KV_ROE_HEADER_BYTES 8192u
#define KV_ROE_SLOT_BYTES 4096u
#define KV_ROE_SLOTS 2u
#define KV_ROE_FILE_BYTES (KV_ROE_HEADER_BYTES + KV_ROE_SLOTS * KV_ROE_SLOT_BYTES)
#define KV_ROE_SLOT_KEY_OFFSET 28u

enum kv_roe_slot_state { KV_ROE_SLOT_EMPTY = 0, KV_ROE_SLOT_STAGED = 1, KV_ROE_SLOT_ACTIVE = 2, KV_ROE_SLOT_TORN = 3 };

struct kv_roe_slot {
    enum kv_roe_slot_state state;
    struct kv_id id; /* of a torn slot: whatever stands at its place */
};

uint64_t kv_roe_slot_offset(unsigned slot);
void kv_roe_header_build(uint8_t page[KV_ROE_HEADER_BYTES]);
bool kv_roe_header_is_ours(const uint8_t page[KV_ROE_HEADER_BYTES]);

/* `key` NULL keeps the key bytes that are in the page. */
void kv_roe_slot_build(uint8_t page[KV_ROE_SLOT_BYTES], const struct kv_roe_slot *slot, const struct kv_secret *key);
void kv_roe_slot_parse(const uint8_t page[KV_ROE_SLOT_BYTES], struct kv_roe_slot *ret_slot);
/* The 32 bytes at the key's place, whatever the slot's state is. */
KV_RC kv_roe_slot_key(const uint8_t page[KV_ROE_SLOT_BYTES], struct kv_secret **ret_key);

/* `magic` is statfs(2)'s f_type. NULL where an overwrite in place reaches the old bytes; else the file system's name.
 */
const char *kv_roe_refused_file_system(uint64_t magic);

#endif
