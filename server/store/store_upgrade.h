/*
 * After certificates: which instances have dropped all that a certified erasure left in their tiers, and the statement
 * that follows when all have that may have had some. Those are: every instance that has not left; every nvme folder
 * that was in use when the session was there; and one that left without ever having said which folder it has. Thread:
 * the connection's.
 */
#ifndef KV_STORE_UPGRADE_H
#define KV_STORE_UPGRADE_H

#include "server/store/store_erasure.h"

/* ---- folders ---- */

/* The instance uses this folder from now on (zero: none), and left any other; with `alone` all other instances' folders
 * are left, too. Write. */
struct kv_store_folder_use {
    struct kv_id instance, folder;
    bool alone;
};
KV_RC kv_store_folder_use(struct kv_pg *pg, const struct kv_store_folder_use *use, struct kv_errinfo *info);
/* It leaves, and nothing is written there any more. Write. */
KV_RC kv_store_folder_leave(struct kv_pg *pg, const struct kv_id *instance, struct kv_errinfo *info);

/* ---- who has dropped what ---- */

struct kv_store_cleaner {
    struct kv_id instance, folder; /* zero folder: it has none */
    int64_t incarnation;
};
struct kv_store_cleaning {
    struct kv_store_revocation what;
    uint64_t certified_us;
};
/* Certified erasures from `since_us` on that this one has not said to have dropped, by the time of their certificate,
 * at most `max`. None whose revocation it has not acknowledged, and none while something older than a root may be open
 * there. */
KV_RC kv_store_cleanings_due(struct kv_pg *pg, const struct kv_store_cleaner *cleaner, uint64_t since_us, size_t max,
                             struct kv_errinfo *info, struct kv_store_cleaning *ret_list, size_t *ret_count);
/* It has dropped all of these, durably; a second time is fine. Write. */
KV_RC kv_store_cleaned(struct kv_pg *pg, const struct kv_store_cleaner *cleaner, const struct kv_store_ids *erasures,
                       uint64_t at_us, struct kv_errinfo *info);

/* Who has not yet, of those that may have had some. */
enum kv_missing_why { KV_MISSING_WAITING, KV_MISSING_LEASE_OVER, KV_MISSING_LEFT, KV_MISSING_FOLDER };
struct kv_store_missing {
    struct kv_id erasure, instance; /* of a folder: the one that used it last */
    struct kv_id folder;            /* FOLDER */
    enum kv_missing_why why;
};
KV_RC kv_store_missing(struct kv_pg *pg, const struct kv_store_ids *erasures, size_t max, struct kv_errinfo *info,
                       struct kv_store_missing *ret_list, size_t *ret_count);

/* ---- the statement ---- */

/* Whether there are any to sign, or to bundle, now. */
struct kv_store_upgrades_wait {
    bool sign, bundle;
};
KV_RC kv_store_upgrades_wait(struct kv_pg *pg, uint64_t now_us, struct kv_errinfo *info,
                             struct kv_store_upgrades_wait *ret_wait);
/* Erasures whose statement is to be looked after, locked to the end of the transaction, those first that wait the
 * longest. `has_jws`: those that have one, but no bundle. Write. */
KV_RC kv_store_upgrades_due(struct kv_pg *pg, bool has_jws, uint64_t now_us, size_t max, struct kv_errinfo *info,
                            struct kv_id *ret_erasures, size_t *ret_count);
/* Later, the longer ago the certificate is. Write. */
KV_RC kv_store_upgrades_put_off(struct kv_pg *pg, const struct kv_store_ids *erasures, uint64_t now_us,
                                struct kv_errinfo *info);

/* What a statement says of one erasure: each that dropped, and each that the certificate calls expired. */
struct kv_store_clean {
    struct kv_id erasure, instance, folder;
    uint64_t at_us;
};
KV_RC kv_store_cleans(struct kv_pg *pg, const struct kv_store_ids *erasures, size_t max, struct kv_errinfo *info,
                      struct kv_store_clean *ret_list, size_t *ret_count);
struct kv_store_closed {
    struct kv_id erasure, instance;
    bool ended;     /* it left in order; else it said so in a later incarnation */
    uint64_t at_us; /* 0: neither */
};
KV_RC kv_store_closed(struct kv_pg *pg, const struct kv_store_ids *erasures, size_t max, struct kv_errinfo *info,
                      struct kv_store_closed *ret_list, size_t *ret_count);

struct kv_store_upgrade {
    struct kv_id erasure, id; /* zero id: not signed yet */
    uint64_t issued_us;
    int64_t leaf_index; /* -1: no bundle yet */
};
/* KV_E_MISSING: nobody has dropped anything of it yet, or it is not certified. */
KV_RC kv_store_upgrade_get(struct kv_pg *pg, const struct kv_id *erasure, struct kv_errinfo *info,
                           struct kv_store_upgrade *ret_upgrade);
/* Once: KV_E_STALE. Write. */
KV_RC kv_store_upgrade_set_jws(struct kv_pg *pg, const struct kv_store_upgrade *upgrade, struct kv_bytes jws,
                               struct kv_errinfo *info);
KV_RC kv_store_upgrade_set_bundle(struct kv_pg *pg, const struct kv_store_upgrade *upgrade, struct kv_bytes bundle,
                                  struct kv_errinfo *info);
/* Appended to the caller's buffer. KV_E_MISSING: not there yet. */
KV_RC kv_store_upgrade_jws(struct kv_pg *pg, const struct kv_id *erasure, struct kv_errinfo *info,
                           struct kv_buf *ret_jws);
KV_RC kv_store_upgrade_bundle(struct kv_pg *pg, const struct kv_id *erasure, struct kv_errinfo *info,
                              struct kv_buf *ret_bundle);

#endif
