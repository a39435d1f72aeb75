/* Bytes of a journal record. FORMAT.md has the table. Must never write a pointer or padding of a struct. */
#include "audit/journal_int.h"

#include "dataplane/base/check.h"

void kv_journal_record_encode(const struct kv_journal_record *record, uint8_t target[KV_JOURNAL_RECORD_BYTES])
{
    const struct kv_transfer_record *transfer = &record->record;
    struct kv_writer writer = kv_writer_of(target, KV_JOURNAL_RECORD_BYTES);
    kv_write_u64(&writer, record->seq);
    kv_write_u8(&writer, (uint8_t)transfer->kind);
    kv_write_u8(&writer, (uint8_t)transfer->tier);
    kv_write_u16(&writer, (uint16_t)transfer->outcome);
    kv_write_u32(&writer, transfer->blocks);
    kv_write_raw(&writer, transfer->op.b, sizeof(transfer->op.b));
    kv_write_raw(&writer, transfer->tenant.b, sizeof(transfer->tenant.b));
    kv_write_raw(&writer, transfer->scope.b, sizeof(transfer->scope.b));
    kv_write_u64(&writer, transfer->bytes);
    kv_write_u64(&writer, transfer->realtime_us);
    kv_write_u32(&writer, transfer->duration_us);
    kv_write_u32(&writer, transfer->has_policy ? 1 : 0);
    kv_write_raw(&writer, record->block_root.b, sizeof(record->block_root.b));
    kv_write_u64(&writer, transfer->has_policy ? transfer->policy_versions[0] : 0);
    kv_write_u64(&writer, transfer->has_policy ? transfer->policy_versions[1] : 0);
    KV_ASSERT(!writer.failed && kv_writer_len(&writer) == KV_JOURNAL_RECORD_BYTES);
}

KV_RC kv_journal_record_decode(const uint8_t source[KV_JOURNAL_RECORD_BYTES], struct kv_journal_record *ret_record)
{
    struct kv_journal_record record = {.seq = 0};
    struct kv_transfer_record *transfer = &record.record;
    struct kv_reader reader = kv_reader_of(KV_BYTES(source, KV_JOURNAL_RECORD_BYTES));
    record.seq = kv_read_u64(&reader);
    uint8_t kind = kv_read_u8(&reader);
    uint8_t tier = kv_read_u8(&reader);
    uint16_t outcome = kv_read_u16(&reader);
    transfer->blocks = kv_read_u32(&reader);
    kv_read_raw(&reader, transfer->op.b, sizeof(transfer->op.b));
    kv_read_raw(&reader, transfer->tenant.b, sizeof(transfer->tenant.b));
    kv_read_raw(&reader, transfer->scope.b, sizeof(transfer->scope.b));
    transfer->bytes = kv_read_u64(&reader);
    transfer->realtime_us = kv_read_u64(&reader);
    transfer->duration_us = kv_read_u32(&reader);
    uint32_t has_policy = kv_read_u32(&reader);
    kv_read_raw(&reader, record.block_root.b, sizeof(record.block_root.b));
    transfer->policy_versions[0] = kv_read_u64(&reader);
    transfer->policy_versions[1] = kv_read_u64(&reader);
    bool stray = has_policy == 0 && (transfer->policy_versions[0] != 0 || transfer->policy_versions[1] != 0);
    if (!kv_reader_done(&reader) || kind < KV_RECORD_OFFLOAD || kind > KV_RECORD_DROP || tier > KV_TIER_OBJECT ||
        outcome >= KV_E_COUNT || has_policy > 1 || stray) {
        return KV_E_CORRUPT;
    }
    transfer->kind = (enum kv_record_kind)kind;
    transfer->tier = (enum kv_tier_id)tier;
    transfer->outcome = (enum kv_err)outcome;
    transfer->has_policy = has_policy == 1;
    *ret_record = record;
    return KV_OK;
}
