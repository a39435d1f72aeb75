/*
 * Certificates as people get them. Bytes are passed on as they were issued, never written anew; what a check says is
 * what audit/certificate_verify.c says.
 */
#include "server/service/svc_certificate.h"

#include "server/service/svc_int.h"
#include "server/service/tar.h"

#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"
#include "server/store/store_upgrade.h"

#include <stdio.h>
#include <string.h>

/* --- one --------------------------------------------------------------------------------------------------------- */

/* The part of a compact JWS between its two dots. */
static KV_RC payload_of(struct kv_bytes jws, struct kv_buf *ret_payload)
{
    const char *text = (const char *)jws.data;
    const char *first = memchr(text, '.', jws.len);
    const char *last = memrchr(text, '.', jws.len);
    if (first == NULL || first == last) {
        return KV_E_CORRUPT;
    }
    size_t len = (size_t)(last - first - 1), size = 0;
    uint8_t *payload KV_CLEANUP(kv_freep) = kv_alloc(len + 1);
    if (payload == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(kv_base64url_decode(first + 1, len, payload, len, &size));
    kv_buf_append(ret_payload, payload, size);
    return kv_buf_check(ret_payload);
}

static void view_of(const struct kv_store_erasure *row, struct kv_certificate_view *ret_view)
{
    *ret_view = (struct kv_certificate_view){.id = row->certificate,
                                             .erasure = row->id,
                                             .session = row->session,
                                             .tenant = row->tenant,
                                             .sessions = row->sessions,
                                             .group = row->group,
                                             .issued_us = row->at_us[KV_ERASURE_CERTIFIED],
                                             .log_index = (uint64_t)row->certificate_index};
    snprintf(ret_view->basis, sizeof ret_view->basis, "%s", row->basis);
}

static KV_RC explain_none(struct kv_call *call, const struct kv_id *erasure)
{
    struct kv_store_group *group KV_CLEANUP(kv_freep) = kv_alloc(sizeof *group);
    if (group == NULL) {
        return KV_E_NO_MEMORY;
    }
    enum kv_err rc = kv_store_group_get(call->pg, erasure, &call->info, group);
    if (rc == KV_OK && kv_id_equal(&group->tenant, &call->who.tenant)) {
        return kv_fail(&call->info, KV_E_NOT_FOUND,
                       "each session of this erasure has a certificate of its own: GET /v1/erasures?group_id=…");
    }
    return rc == KV_OK || rc == KV_E_NOT_FOUND ? kv_fail(&call->info, KV_E_NOT_FOUND, "no such erasure") : rc;
}

static KV_RC get_row(struct kv_call *call, const struct kv_id *erasure, const struct kv_id *certificate,
                     struct kv_store_erasure *row)
{
    enum kv_err rc = erasure != NULL ? kv_store_erasure_get(call->pg, erasure, &call->info, row)
                                     : kv_store_erasure_get_by_certificate(call->pg, certificate, &call->info, row);
    bool foreign = rc == KV_OK && !kv_id_equal(&row->tenant, &call->who.tenant);
    if (rc == KV_E_NOT_FOUND && erasure != NULL) {
        return explain_none(call, erasure);
    }
    if (rc == KV_E_NOT_FOUND || foreign) {
        return kv_fail(&call->info, KV_E_NOT_FOUND, erasure != NULL ? "no such erasure" : "no such certificate");
    }
    KV_TRY(rc);
    return row->state == KV_ERASURE_CERTIFIED
               ? KV_OK
               : kv_fail(&call->info, KV_E_NOT_YET, "not certified yet: the erasure is %s",
                         kv_erasure_state_name(row->state));
}

KV_RC kv_svc_certificate_get(struct kv_call *call, const struct kv_id *erasure, const struct kv_id *certificate,
                             enum kv_certificate_form form, struct kv_certificate_view *ret_view,
                             struct kv_buf *ret_bytes)
{
    struct kv_store_erasure *row KV_CLEANUP(kv_freep) = kv_alloc(sizeof *row);
    if (row == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(get_row(call, erasure, certificate, row));
    if (ret_view != NULL) {
        view_of(row, ret_view);
    }
    if (form == KV_CERT_BUNDLE) {
        return kv_store_erasure_bundle(call->pg, &row->id, &call->info, ret_bytes);
    }
    struct kv_buf jws;
    kv_buf_init(&jws, (size_t)KV_MAX_CERTIFICATE_BYTES);
    enum kv_err rc = kv_store_erasure_jws(call->pg, &row->id, &call->info, &jws);
    if (rc == KV_OK && form == KV_CERT_JWS) {
        kv_buf_append(ret_bytes, jws.data, jws.len);
        rc = kv_buf_check(ret_bytes);
    } else if (rc == KV_OK) {
        rc = payload_of(kv_buf_bytes(&jws), ret_bytes);
    }
    kv_buf_done(&jws);
    return rc;
}

KV_RC kv_svc_certificate(struct kv_call *call, const struct kv_id *erasure, enum kv_certificate_form form,
                         struct kv_buf *ret_bytes)
{
    return kv_svc_certificate_get(call, erasure, NULL, form, NULL, ret_bytes);
}

/* --- what follows one --------------------------------------------------------------------------------------------- */

static KV_RC fill_missing(struct kv_call *call, const struct kv_id *erasure, struct kv_upgrade_view *view)
{
    static const char *const why[] = {"waiting", "lease_over", "left", "folder"};
    struct kv_store_missing list[KV_UPGRADE_MISSING];
    const struct kv_store_ids one = {.ids = erasure, .count = 1};
    KV_TRY(kv_store_missing(call->pg, &one, KV_UPGRADE_MISSING, &call->info, list, &view->missing_count));
    for (size_t i = 0; i < view->missing_count; i++) {
        view->missing[i] = (struct kv_upgrade_missing){
            .instance = list[i].instance, .folder = list[i].folder, .why = why[list[i].why]};
    }
    return KV_OK;
}

KV_RC kv_svc_upgrade_get(struct kv_call *call, const struct kv_id *erasure, struct kv_upgrade_view *ret_view,
                         struct kv_buf *ret_payload)
{
    struct kv_store_upgrade row = {.leaf_index = -1};
    *ret_view = (struct kv_upgrade_view){.gone = false};
    enum kv_err rc = kv_store_upgrade_get(call->pg, erasure, &call->info, &row);
    KV_TRY(rc == KV_E_MISSING ? KV_OK : rc);
    if (row.leaf_index < 0) {
        return fill_missing(call, erasure, ret_view);
    }
    ret_view->gone = true;
    ret_view->id = row.id;
    ret_view->issued_us = row.issued_us;
    ret_view->log_index = (uint64_t)row.leaf_index;
    struct kv_buf jws KV_CLEANUP(kv_buf_done);
    kv_buf_init(&jws, (size_t)KV_MAX_CERTIFICATE_BYTES);
    KV_TRY(kv_store_upgrade_jws(call->pg, erasure, &call->info, &jws));
    return payload_of(kv_buf_bytes(&jws), ret_payload);
}

KV_RC kv_svc_upgrade_bundle(struct kv_call *call, const struct kv_id *erasure, const struct kv_id *certificate,
                            struct kv_buf *ret_bundle)
{
    struct kv_store_erasure *row KV_CLEANUP(kv_freep) = kv_alloc(sizeof *row);
    if (row == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(get_row(call, erasure, certificate, row));
    enum kv_err rc = kv_store_upgrade_bundle(call->pg, &row->id, &call->info, ret_bundle);
    return rc == KV_E_MISSING ? kv_fail(&call->info, KV_E_NOT_YET,
                                        "not everybody who may have ciphertext of it has dropped it yet: the "
                                        "certificate's JSON view says who")
                              : rc;
}

/* --- many -------------------------------------------------------------------------------------------------------- */

static KV_RC list_rows(struct kv_call *call, const struct kv_certificate_filter *filter, struct kv_page *page,
                       struct kv_store_erasure *rows, size_t *ret_count)
{
    struct kv_store_certified_filter wanted = {
        .tenant = call->who.tenant, .group = filter->group, .from_us = filter->from_us, .to_us = filter->to_us};
    return kv_store_erasure_page_certified(call->pg, &wanted, page, &call->info, rows, ret_count);
}

KV_RC kv_svc_certificate_list(struct kv_call *call, const struct kv_certificate_filter *filter, struct kv_page *page,
                              struct kv_certificate_view *ret_list, size_t *ret_count)
{
    struct kv_store_erasure *rows KV_CLEANUP(kv_freep) = kv_alloc_array((size_t)page->limit + 1, sizeof *rows);
    if (rows == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(list_rows(call, filter, page, rows, ret_count));
    for (size_t i = 0; i < *ret_count; i++) {
        view_of(&rows[i], &ret_list[i]);
    }
    return KV_OK;
}

/* --- checking ---------------------------------------------------------------------------------------------------- */

KV_RC kv_svc_certificate_verify(struct kv_svc *svc, struct kv_bytes text, struct kv_errinfo *info,
                                struct kv_cert_report *ret_report, bool *ret_is_bundle)
{
    static const char first_line[] = "c2sp.org/tlog-proof@";
    struct kv_cert_keys keys = {.log_origin_prefix = ""};
    kv_sign_public(svc->cert_key, keys.cert_public);
    kv_sign_public(svc->log_key, keys.log_public);
    snprintf(keys.log_origin_prefix, sizeof keys.log_origin_prefix, "%s", svc->log_prefix);
    *ret_is_bundle = text.len >= sizeof first_line - 1 && memcmp(text.data, first_line, sizeof first_line - 1) == 0;
    while (!*ret_is_bundle && text.len > 0 && text.data[text.len - 1] == '\n') {
        text.len--; /* what editors and curl put at the end of a JWS */
    }
    enum kv_err rc =
        *ret_is_bundle ? kv_cert_verify(text, &keys, ret_report) : kv_cert_verify_jws(text, &keys, ret_report);
    return rc == KV_OK || rc == KV_E_TAMPERED ? KV_OK : kv_fail(info, rc, "the certificate could not be checked");
}

/* --- export ------------------------------------------------------------------------------------------------------ */

static const char export_readme[] =
    "Erasure certificates, exported by kvrun\n"
    "=======================================\n"
    "\n"
    "certificates/crt_….txt   one bundle each (c2sp.org/tlog-proof@v1): the signed certificate, its place in the "
    "audit\n"
    "                         log, the log's signed head\n"
    "upgrades/crt_….txt       the same of the statement that the ciphertext is gone, where there is one by now\n"
    "keys/jwks.json           the key that signs certificates\n"
    "keys/log.vkey            the key that signs the log\n"
    "\n"
    "Who checks should have both keys from somewhere else that is trusted, not from this archive: compare them first.\n"
    "\n"
    "Checking all of them, offline, in this folder:\n"
    "\n"
    "    for f in certificates/*.txt; do kv-verify \"$f\" --keys keys || exit 1; done\n"
    "    for f in upgrades/*.txt; do [ ! -e \"$f\" ] || kv-verify \"$f\" --keys keys --certificate "
    "\"certificates/${f##*/}\" "
    "|| exit 1; done\n"
    "\n"
    "The same without a program of ours, with openssl, jq and coreutils (the script is installed beside kv-verify's\n"
    "documentation, and short enough to be read):\n"
    "\n"
    "    for f in certificates/*.txt; do verify-with-openssl.sh \"$f\" keys || exit 1; done\n"
    "    for f in upgrades/*.txt; do [ ! -e \"$f\" ] || verify-with-openssl.sh \"$f\" keys \"certificates/${f##*/}\" "
    "|| exit 1; done\n";

static KV_RC export_keys(struct kv_svc *svc, uint64_t now_us, struct kv_buf *tar)
{
    struct kv_buf text;
    kv_buf_init(&text, 65536);
    enum kv_err rc = kv_svc_jwks(svc, &text);
    svc_tar_file(tar, "keys/jwks.json", now_us, kv_buf_bytes(&text));
    kv_buf_reset(&text);
    if (rc == KV_OK) {
        rc = kv_svc_log_vkey(svc, &text);
    }
    svc_tar_file(tar, "keys/log.vkey", now_us, kv_buf_bytes(&text));
    kv_buf_done(&text);
    return rc;
}

static KV_RC export_one(struct kv_call *call, const struct kv_store_erasure *row, struct kv_buf *bundle,
                        struct kv_buf *tar)
{
    char id[KV_ID_TEXT_SIZE], name[64];
    kv_id_text("crt", &row->certificate, id);
    snprintf(name, sizeof name, "certificates/%s.txt", id);
    kv_buf_reset(bundle);
    KV_TRY(kv_store_erasure_bundle(call->pg, &row->id, &call->info, bundle));
    svc_tar_file(tar, name, row->at_us[KV_ERASURE_CERTIFIED], kv_buf_bytes(bundle));
    kv_buf_reset(bundle);
    enum kv_err rc = kv_store_upgrade_bundle(call->pg, &row->id, &call->info, bundle);
    if (rc == KV_OK) {
        snprintf(name, sizeof name, "upgrades/%s.txt", id);
        svc_tar_file(tar, name, row->at_us[KV_ERASURE_CERTIFIED], kv_buf_bytes(bundle));
    }
    return rc == KV_OK || rc == KV_E_MISSING ? kv_buf_check(tar) : rc;
}

static KV_RC export_rows(struct kv_call *call, const struct kv_certificate_filter *filter,
                         struct kv_store_erasure *rows, struct kv_buf *tar)
{
    struct kv_buf bundle;
    struct kv_page page = {.limit = (unsigned)KV_MAX_PAGE_ITEMS, .ascending = true, .more = true};
    enum kv_err rc = KV_OK;
    kv_buf_init(&bundle, 4 * (size_t)KV_MAX_CERTIFICATE_BYTES);
    while (rc == KV_OK && page.more) {
        size_t count = 0;
        rc = list_rows(call, filter, &page, rows, &count);
        for (size_t i = 0; rc == KV_OK && i < count; i++) {
            rc = export_one(call, &rows[i], &bundle, tar);
            page.has_after = true;
            page.after_us = rows[i].at_us[KV_ERASURE_CERTIFIED];
            page.after = rows[i].id;
        }
    }
    kv_buf_done(&bundle);
    return rc;
}

KV_RC kv_svc_certificate_export(struct kv_call *call, const struct kv_certificate_filter *filter,
                                struct kv_buf *ret_tar)
{
    uint64_t now_us = call->svc->env->realtime_us(call->svc->env->ctx);
    struct kv_store_erasure *rows KV_CLEANUP(kv_freep) = kv_alloc_array((size_t)KV_MAX_PAGE_ITEMS + 1, sizeof *rows);
    if (rows == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(svc_export_begin(call));
    svc_tar_file(ret_tar, "README", now_us, KV_BYTES(export_readme, sizeof export_readme - 1));
    enum kv_err rc = export_keys(call->svc, now_us, ret_tar);
    if (rc == KV_OK) {
        rc = export_rows(call, filter, rows, ret_tar);
    }
    svc_tar_end(ret_tar);
    return svc_export_end(call, rc, ret_tar);
}

/* --- keys -------------------------------------------------------------------------------------------------------- */

KV_RC kv_svc_jwks(struct kv_svc *svc, struct kv_buf *ret_json)
{
    uint8_t public_key[32];
    kv_sign_public(svc->cert_key, public_key);
    return kv_cert_jwks(public_key, ret_json);
}

KV_RC kv_svc_log_vkey(struct kv_svc *svc, struct kv_buf *ret_text)
{
    uint8_t public_key[32];
    kv_sign_public(svc->log_key, public_key);
    return kv_checkpoint_vkey(svc->log_prefix, public_key, ret_text);
}
