/*
 * Root of erasure: what opens the key tree, kept outside the database. A provider holds one wrapping key a root and
 * destroys that; destroying it is the moment of erasure. All operations compare ids and are idempotent, so that a
 * repeated call after a crash ends in the same state.
 *
 *          create(R')               commit(R', R)
 *   {R}  ------------->  {R, R'}  ----------------->  {R'}          discard(R'): {R, R'} -> {R}
 *
 *          retire(R)
 *  {R}  ------------->  {}         the root that comes after it is another provider's
 *
 * commit with a zero `old` makes the first root active. Thread: one caller at a time.
 *
 * Shared providers (pkcs11, transit) serve several processes at once. They cannot compare and swap, so the fence of the
 * caller stands on every staged key: a process that was overtaken does not discard what a later one made.
 */
#ifndef KV_KEYS_ROE_H
#define KV_KEYS_ROE_H

#include "dataplane/base/buf.h"
#include "dataplane/crypto/secret.h"

struct kv_roe;

struct kv_roe_pkcs11_conf {
    const char *module;                        /* absolute path of the token's library */
    const char *token;                         /* its label */
    const char *pin_file;                      /* absolute path, mode 0600; read at each login */
    const char *label;                         /* what its keys are called; NULL or "": kvrun */
    const char *manufacturer, *model, *serial; /* what an operator declares to be hardware; NULL or "": nothing */
};

struct kv_roe_transit_conf {
    const char *address;      /* "https://host:8200"; http:// on this machine only */
    const char *token_file;   /* absolute path, mode 0600; read for each operation */
    const char *ca_file;      /* authorities of its certificate; NULL or "": the system's */
    const char *mount;        /* NULL or "": transit */
    const char *prefix;       /* of its keys' names; NULL or "": kvrun- */
    const char *name_space;   /* NULL or "": none */
    uint64_t timeout_ms;      /* of one request; 0: 5 s */
    uint64_t backup_window_s; /* how long its backups are kept; 0: not declared */
};

struct kv_roe_conf {
    const char *provider; /* "file", "memory", "pkcs11" or "transit" */
    const char *path;     /* file: an absolute path; created when it is not there */
    struct kv_roe_pkcs11_conf pkcs11;
    struct kv_roe_transit_conf transit;
    const struct kv_env *env;
};

struct kv_roe_receipt {
    struct kv_id destroyed, active;
    uint64_t realtime_us;
    uint8_t hash[32]; /* SHA-256 over what the provider attests: provider, ids, time */
};

struct kv_roe_ops {
    const char *name;
    bool shared; /* several instances on different machines may use it at once */
    KV_RC (*open)(const struct kv_roe_conf *conf, struct kv_errinfo *info, struct kv_roe **ret_roe);
    /* A fresh wrapping key for `id`, durable before it returns. KV_E_INVALID_STATE when another root is staged
     * or `id` is active; the staged one again is KV_OK and keeps its key. */
    KV_RC (*create)(struct kv_roe *roe, const struct kv_id *id);
    KV_RC (*wrap)(struct kv_roe *roe, const struct kv_id *id, const struct kv_secret *root, struct kv_buf *ret_blob);
    /* KV_E_MISSING: no such root here. KV_E_WRONG_KEY, KV_E_TAMPERED: the blob is not of this root. */
    KV_RC (*unwrap)(struct kv_roe *roe, const struct kv_id *id, struct kv_bytes blob, struct kv_secret **ret_root);
    /* Destroys `old` durably and makes `fresh` the active one. KV_E_STALE when either id is not what is there. Already
     * done (fresh active, old absent) is KV_OK with a receipt. */
    KV_RC (*commit)(struct kv_roe *roe, const struct kv_id *fresh, const struct kv_id *old, struct kv_roe_receipt *ret);
    /* Destroys the active `old` durably; `fresh`, of another provider, took its place. KV_E_STALE: another one is
     * active. KV_E_INVALID_STATE: one is staged. Already done (none is active) is KV_OK with a receipt. */
    KV_RC (*retire)(struct kv_roe *roe, const struct kv_id *old, const struct kv_id *fresh, struct kv_roe_receipt *ret);
    /* Destroys the staged one. Absent is KV_OK; the active one, and one of a later fence, is KV_E_STALE. */
    KV_RC (*discard)(struct kv_roe *roe, const struct kv_id *staged);
    /* Zero ids where there is none. Reads the medium afresh. */
    KV_RC (*list)(struct kv_roe *roe, struct kv_id *ret_active, struct kv_id *ret_staged);
    const char *(*describe)(const struct kv_roe *roe); /* "file (O_DIRECT, in place)"; never key material */
    /* "E2", or "E3" where it is hardware that an operator declared and that says the same of itself. */
    const char *(*assurance)(const struct kv_roe *roe);
    void (*close)(struct kv_roe *roe);
};

#define KV_ROE_HARDWARE "hardware token: " /* how the description of a declared device begins */

struct kv_roe {
    const struct kv_roe_ops *ops;
    uint64_t fence; /* of kroot, as the caller last took it; 0: it has none. Providers of one process pay no heed */
    struct kv_errinfo trouble; /* why the last call failed, where the provider knows more than the code says */
};

extern const struct kv_roe_ops kv_roe_memory;  /* for tests; a restart loses every session */
extern const struct kv_roe_ops kv_roe_file;    /* two 4 KiB slots in one file, written in place, see roe_file.c */
extern const struct kv_roe_ops kv_roe_pkcs11;  /* keys that never leave a token, see roe_pkcs11.c */
extern const struct kv_roe_ops kv_roe_transit; /* keys of a key service (Vault, OpenBao), see roe_transit.c */

/* KV_E_CONFIG for an unknown provider. The file provider takes an exclusive lock: a second process is KV_E_BUSY.
 * It refuses (KV_E_CONFIG) a relative path, a symbolic link, a file that others can read; KV_E_UNSUPPORTED: a file
 * system that does not write in place; KV_E_FOREIGN_FILE: another file is there. Its folder must exist. */
KV_RC kv_roe_open(const struct kv_roe_conf *conf, struct kv_errinfo *info, struct kv_roe **ret_roe);

#endif
