/*
 * Certificates: fetching, listing, checking, exporting, and the keys that others check them with. A certificate's bytes
 * are passed on as they were issued. Thread and errors as in svc.h.
 */
#ifndef KV_SVC_CERTIFICATE_H
#define KV_SVC_CERTIFICATE_H

#include "server/service/svc.h"

struct kv_certificate_view {
    struct kv_id id, erasure, session, group; /* group zero: asked for alone */
    struct kv_id tenant;                      /* of all of whose sessions it is, when `session` is zero */
    uint64_t sessions;
    uint64_t issued_us; /* when its bundle was complete */
    uint64_t log_index;
    char basis[33];
};

enum kv_certificate_form { KV_CERT_BUNDLE, KV_CERT_JWS, KV_CERT_PAYLOAD };
/* By the erasure or by its own id. KV_E_NOT_FOUND; KV_E_NOT_YET with the state. `ret_view` may be NULL. */
KV_RC kv_svc_certificate(struct kv_call *call, const struct kv_id *erasure, enum kv_certificate_form form,
                         struct kv_buf *ret_bytes);
KV_RC kv_svc_certificate_get(struct kv_call *call, const struct kv_id *erasure, const struct kv_id *certificate,
                             enum kv_certificate_form form, struct kv_certificate_view *ret_view,
                             struct kv_buf *ret_bytes);
/* What followed it: the ciphertext is gone everywhere, or who has not said so yet. */
#define KV_UPGRADE_MISSING 16u /* that are named */
struct kv_upgrade_missing {
    struct kv_id instance, folder; /* zero folder: the instance itself */
    const char *why;               /* "waiting", "lease_over", "left", "folder" */
};
struct kv_upgrade_view {
    bool gone; /* there is a statement */
    struct kv_id id;
    uint64_t issued_us, log_index;
    struct kv_upgrade_missing missing[KV_UPGRADE_MISSING];
    size_t missing_count; /* 0, and not gone: it is about to be signed */
};
/* Of a certificate that the caller was shown. The statement's payload, when there is one, goes to `ret_payload`. */
KV_RC kv_svc_upgrade_get(struct kv_call *call, const struct kv_id *erasure, struct kv_upgrade_view *ret_view,
                         struct kv_buf *ret_payload);
/* Its bundle, by the erasure or by the certificate's id. Errors as of kv_svc_certificate_get; KV_E_NOT_YET: some may
 * still have ciphertext. */
KV_RC kv_svc_upgrade_bundle(struct kv_call *call, const struct kv_id *erasure, const struct kv_id *certificate,
                            struct kv_buf *ret_bundle);

struct kv_certificate_filter {
    uint64_t from_us, to_us; /* [from, to) of the issue; 0: open */
    struct kv_id group;      /* of its members; zero: any */
};
/* `ret_list` has room for KV_MAX_PAGE_ITEMS. */
KV_RC kv_svc_certificate_list(struct kv_call *call, const struct kv_certificate_filter *filter, struct kv_page *page,
                              struct kv_certificate_view *ret_list, size_t *ret_count);

/* Checks a bundle or a compact JWS with this server's keys. KV_OK also when a check failed: the report says so. The
 * report's payload is the caller's: kv_buf_done. `call` is used for errors alone. */
KV_RC kv_svc_certificate_verify(struct kv_svc *svc, struct kv_bytes text, struct kv_errinfo *info,
                                struct kv_cert_report *ret_report, bool *ret_is_bundle);

/* A tar archive of the bundles with what is needed to check them offline. KV_E_LIMIT: more than KV_MAX_EXPORT_BYTES, so
 * ask for a shorter time. KV_E_BUSY: another export runs. */
KV_RC kv_svc_certificate_export(struct kv_call *call, const struct kv_certificate_filter *filter,
                                struct kv_buf *ret_tar);

KV_RC kv_svc_jwks(struct kv_svc *svc, struct kv_buf *ret_json);
KV_RC kv_svc_log_vkey(struct kv_svc *svc, struct kv_buf *ret_text);

#endif
