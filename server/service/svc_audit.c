/*
 * Reading the audit log. Everything that is said of it refers to a signed head: entries past it are listed, but neither
 * proved nor exported.
 */
#include "server/service/svc_audit.h"

#include "server/service/svc_int.h"
#include "server/service/tar.h"

#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define TILE_HASHES 256u
#define NOTE_BYTES_MAX 16384u

/* --- entries ----------------------------------------------------------------------------------------------------- */

struct kv_id kv_audit_place_id(uint64_t index)
{
    struct kv_id id = {{0}};
    struct kv_writer writer = kv_writer_of(id.b + 8, 8);
    kv_write_u64(&writer, index);
    return id;
}

static uint64_t place_of(const struct kv_id *id)
{
    struct kv_reader reader = kv_reader_of(KV_BYTES(id->b + 8, 8));
    return kv_read_u64(&reader);
}

KV_RC kv_svc_audit_list(struct kv_call *call, const struct kv_audit_filter *filter, struct kv_page *page,
                        struct kv_store_leaf_page *ret_page)
{
    struct kv_store_leaf_filter wanted = {.log = call->who.tenant,
                                          .op = filter->op,
                                          .outcome = filter->outcome,
                                          .actor = filter->actor,
                                          .session = filter->session,
                                          .from_us = filter->from_us,
                                          .to_us = filter->to_us};
    return kv_store_leaf_list(call->pg, &wanted, page, place_of(&page->after), &call->info, ret_page);
}

/* --- the head and proofs ----------------------------------------------------------------------------------------- */

static KV_RC signed_head(struct kv_call *call, struct kv_buf *note, uint64_t *ret_size)
{
    enum kv_err rc = kv_store_log_note(call->pg, &call->who.tenant, &call->info, note, ret_size);
    return rc == KV_E_MISSING ? kv_fail(&call->info, KV_E_NOT_YET, "this log has no entry yet, so no head is signed")
                              : rc;
}

KV_RC kv_svc_audit_checkpoint(struct kv_call *call, struct kv_buf *ret_note)
{
    uint64_t size = 0;
    return signed_head(call, ret_note, &size);
}

static KV_RC signed_size(struct kv_call *call, uint64_t *ret_size)
{
    struct kv_buf note;
    kv_buf_init(&note, NOTE_BYTES_MAX);
    enum kv_err rc = signed_head(call, &note, ret_size);
    kv_buf_done(&note);
    return rc;
}

KV_RC kv_svc_audit_inclusion(struct kv_call *call, uint64_t index, uint64_t size, struct kv_audit_proof *ret_proof)
{
    uint64_t signed_up_to = 0;
    KV_TRY(signed_size(call, &signed_up_to));
    size = size == 0 ? signed_up_to : size;
    if (size > signed_up_to || index >= size) {
        return kv_fail(&call->info, KV_E_INVALID_REQUEST,
                       "index has to be below size, and size at most that of the signed head, %" PRIu64, signed_up_to);
    }
    *ret_proof = (struct kv_audit_proof){.index = index, .size = size};
    KV_TRY(kv_store_leaf_hashes(call->pg, &call->who.tenant, index, 1, &call->info, ret_proof->leaf.b));
    return svc_inclusion_proof(call->pg, &call->who.tenant, index, size, &call->info, ret_proof->hashes,
                               &ret_proof->count);
}

KV_RC kv_svc_audit_consistency(struct kv_call *call, uint64_t from, uint64_t to, struct kv_audit_proof *ret_proof)
{
    uint64_t signed_up_to = 0;
    KV_TRY(signed_size(call, &signed_up_to));
    to = to == 0 ? signed_up_to : to;
    if (from == 0 || from > to || to > signed_up_to) {
        return kv_fail(&call->info, KV_E_INVALID_REQUEST,
                       "from has to be at least 1 and at most to, and to at most the size of the signed head, %" PRIu64,
                       signed_up_to);
    }
    *ret_proof = (struct kv_audit_proof){.from = from, .to = to};
    return svc_consistency_proof(call->pg, &call->who.tenant, from, to, &call->info, ret_proof->hashes,
                                 &ret_proof->count);
}

/* --- export: c2sp.org/tlog-tiles --------------------------------------------------------------------------------- */

KV_RC svc_export_begin(struct kv_call *call)
{
    bool free = false;
    return atomic_compare_exchange_strong(&call->svc->exporting, &free, true)
               ? KV_OK
               : kv_fail(&call->info, KV_E_BUSY, "another export runs; try again when it has ended");
}

KV_RC svc_export_end(struct kv_call *call, enum kv_err rc, const struct kv_buf *tar)
{
    atomic_store(&call->svc->exporting, false);
    rc = rc == KV_OK ? kv_buf_check(tar) : rc;
    return rc == KV_E_LIMIT ? kv_fail(&call->info, rc, "the archive would be larger than %lld bytes; ask for less",
                                      (long long)KV_MAX_EXPORT_BYTES)
                            : rc;
}

struct tiles {
    struct kv_call *call;
    struct kv_buf *tar;
    uint64_t now_us;
    uint64_t size; /* of the signed head */
};

/* "x001/x234/067": groups of three digits, all but the last with an x; a partial one ends with ".p/<width>". */
static void tile_name(const char *kind, uint64_t n, uint64_t width, char name[101])
{
    char number[40] = "";
    snprintf(number, sizeof number, "%03" PRIu64, n % 1000);
    for (n /= 1000; n > 0; n /= 1000) {
        char longer[40];
        snprintf(longer, sizeof longer, "x%03" PRIu64 "/%.30s", n % 1000, number);
        memcpy(number, longer, sizeof number);
    }
    int len = snprintf(name, 101, "tile/%s/%s", kind, number);
    if (width < TILE_HASHES) {
        snprintf(name + len, 101 - (size_t)len, ".p/%" PRIu64, width);
    }
}

static KV_RC put_tile(struct tiles *tiles, unsigned level, uint64_t n, uint64_t width)
{
    struct kv_call *call = tiles->call;
    uint8_t hashes[KV_TILE_BYTES_MAX];
    size_t len = (size_t)width * 32;
    char kind[8], name[101];
    if (level == 0) {
        KV_TRY(kv_store_leaf_hashes(call->pg, &call->who.tenant, n * TILE_HASHES, (size_t)width, &call->info, hashes));
    } else {
        size_t stored = 0;
        KV_TRY(kv_store_tile_get(call->pg, &call->who.tenant, level, n, &call->info, hashes, &stored));
        if (stored < len) {
            return kv_fail(&call->info, KV_E_CORRUPT, "a tile of the audit log is shorter than the signed head says");
        }
    }
    snprintf(kind, sizeof kind, "%u", level);
    tile_name(kind, n, width, name);
    svc_tar_file(tiles->tar, name, tiles->now_us, KV_BYTES(hashes, len));
    return kv_buf_check(tiles->tar);
}

static KV_RC put_level(struct tiles *tiles, unsigned level, uint64_t hashes)
{
    for (uint64_t n = 0; n * TILE_HASHES < hashes; n++) {
        uint64_t width = hashes - n * TILE_HASHES;
        KV_TRY(put_tile(tiles, level, n, width < TILE_HASHES ? width : TILE_HASHES));
    }
    return KV_OK;
}

/* A bundle: each entry behind its length. */
static KV_RC put_entries(struct tiles *tiles, uint64_t n, uint64_t width, struct kv_buf *bundle)
{
    struct kv_call *call = tiles->call;
    struct kv_store_entries entries = {0};
    char name[101];
    kv_buf_reset(bundle);
    KV_TRY(kv_store_leaf_entries(call->pg, &call->who.tenant, n * TILE_HASHES, (size_t)width, &call->info, &entries));
    bool all = entries.count == width;
    for (size_t i = 0; i < entries.count; i++) {
        uint8_t len[2] = {(uint8_t)(entries.rows[i].entry.len >> 8), (uint8_t)entries.rows[i].entry.len};
        kv_buf_append(bundle, len, sizeof len);
        kv_buf_append(bundle, entries.rows[i].entry.data, entries.rows[i].entry.len);
    }
    kv_store_entries_done(&entries);
    if (!all) {
        return kv_fail(&call->info, KV_E_CORRUPT, "the audit log lacks entries that its signed head covers");
    }
    tile_name("entries", n, width, name);
    svc_tar_file(tiles->tar, name, tiles->now_us, kv_buf_bytes(bundle));
    KV_TRY(kv_buf_check(bundle));
    return kv_buf_check(tiles->tar);
}

static KV_RC put_bundles(struct tiles *tiles, uint64_t from, uint64_t to)
{
    struct kv_buf bundle;
    enum kv_err rc = KV_OK;
    kv_buf_init(&bundle, TILE_HASHES * ((size_t)KV_MAX_CERTIFICATE_BYTES + 2));
    for (uint64_t n = from / TILE_HASHES; rc == KV_OK && n * TILE_HASHES < to; n++) {
        uint64_t width = tiles->size - n * TILE_HASHES;
        rc = put_entries(tiles, n, width < TILE_HASHES ? width : TILE_HASHES, &bundle);
    }
    kv_buf_done(&bundle);
    return rc;
}

static KV_RC export_log(struct tiles *tiles, uint64_t from, uint64_t to)
{
    struct kv_buf text;
    kv_buf_init(&text, NOTE_BYTES_MAX);
    enum kv_err rc = signed_head(tiles->call, &text, &tiles->size);
    svc_tar_file(tiles->tar, "checkpoint", tiles->now_us, kv_buf_bytes(&text));
    kv_buf_reset(&text);
    if (rc == KV_OK) {
        rc = kv_svc_log_vkey(tiles->call->svc, &text);
    }
    svc_tar_file(tiles->tar, "log.vkey", tiles->now_us, kv_buf_bytes(&text));
    kv_buf_reset(&text);
    if (rc == KV_OK) {
        rc = kv_svc_jwks(tiles->call->svc, &text);
    }
    svc_tar_file(tiles->tar, "jwks.json", tiles->now_us, kv_buf_bytes(&text));
    kv_buf_done(&text);
    KV_TRY(rc);
    uint64_t hashes = tiles->size;
    for (unsigned level = 0; hashes > 0; level++, hashes /= TILE_HASHES) {
        KV_TRY(put_level(tiles, level, hashes));
    }
    return put_bundles(tiles, from, to == 0 || to > tiles->size ? tiles->size : to);
}

KV_RC kv_svc_audit_export(struct kv_call *call, uint64_t from, uint64_t to, struct kv_buf *ret_tar)
{
    struct tiles tiles = {.call = call, .tar = ret_tar, .now_us = call->svc->env->realtime_us(call->svc->env->ctx)};
    KV_TRY(svc_export_begin(call));
    enum kv_err rc = export_log(&tiles, from, to);
    svc_tar_end(ret_tar);
    return svc_export_end(call, rc, ret_tar);
}
