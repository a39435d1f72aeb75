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
    kv_write_u32(&writer, 0);
    kv_write_raw(&writer, record->block_root.b, sizeof(record->block_root.b));
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
    uint32_t reserved = kv_read_u32(&reader);
    kv_read_raw(&reader, record.block_root.b, sizeof(record.block_root.b));
    if (!kv_reader_done(&reader) || kind < KV_RECORD_OFFLOAD || kind > KV_RECORD_DROP || tier > KV_TIER_OBJECT ||
        outcome >= KV_E_COUNT || reserved != 0) {
        return KV_E_CORRUPT;
    }
    transfer->kind = (enum kv_record_kind)kind;
    transfer->tier = (enum kv_tier_id)tier;
    transfer->outcome = (enum kv_err)outcome;
    *ret_record = record;
    return KV_OK;
}
