/*
 * A token as the pkcs11 provider sees it: one library, one session, and the few things that are done with keys on it.
 * It knows PKCS #11 and not the state diagram. Shared by roe_pkcs11.c, roe_pkcs11_token.c and roe_pkcs11_object.c.
 */
#ifndef KV_KEYS_ROE_PKCS11_INT_H
#define KV_KEYS_ROE_PKCS11_INT_H

#include "dataplane/keys/roe_int.h"

#define CRYPTOKI_GNU 1
#include <p11-kit/pkcs11.h>
#include <sys/stat.h>

#define KV_P11_IV_BYTES 12
#define KV_P11_TAG_BYTES 16

struct kv_p11 {
    const struct kv_env *env;                                 /* borrowed */
    char *module, *token, *pin_file, *label;                  /* owned */
    char *manufacturer_wanted, *model_wanted, *serial_wanted; /* owned; "" when nothing was declared */
    void *library;
    struct ck_function_list *fn; /* of the library */
    bool initialized, connected, lost;
    ck_slot_id_t slot;
    ck_session_handle_t session;
    char manufacturer[33], model[17], serial[17]; /* as the token reports them */
    bool hardware;                                /* its slot says so */
    struct stat refused_pin;                      /* the file whose PIN the token refused last; st_ino 0: none */
    struct kv_errinfo *info;                      /* borrowed: where the running call says what is wrong */
};

/* --- roe_pkcs11_token.c --- */
KV_RC kv_p11_load(const struct kv_roe_pkcs11_conf *conf, struct kv_errinfo *info, struct kv_p11 *token);
void kv_p11_unload(struct kv_p11 *token);
/* C_Initialize, the token by its label, its mechanisms, a session, the PIN. Nothing when it is connected. */
KV_RC kv_p11_connect(struct kv_p11 *token);
/* Ends everything, so that the next connect begins with a fresh C_Initialize. */
void kv_p11_disconnect(struct kv_p11 *token);
/* What a call's result means here; notes a connection that is lost. `doing` is part of the text. */
KV_RC kv_p11_result(struct kv_p11 *token, ck_rv_t rv, const char *doing);

/* --- roe_pkcs11_object.c --- */
KV_RC kv_p11_look(struct kv_p11 *token, struct kv_roe_shelf *ret_shelf);
/* A key that cannot leave the token, staged. What the token made is read back and refused when it is less. */
KV_RC kv_p11_generate(struct kv_p11 *token, const struct kv_id *id, uint64_t fence);
KV_RC kv_p11_activate(struct kv_p11 *token, unsigned long handle);
/* Every object with this id; none is fine. */
KV_RC kv_p11_destroy(struct kv_p11 *token, const struct kv_id *id);
/* How many objects of any class have this id. */
KV_RC kv_p11_count(struct kv_p11 *token, const struct kv_id *id, unsigned long *ret_count);
/* AES-256-GCM inside the token. `iv` is what the token used: some choose their own. */
KV_RC kv_p11_encrypt(struct kv_p11 *token, const struct kv_roe_key *key, const struct kv_secret *root, uint8_t *iv,
                     uint8_t *ret_sealed);
/* KV_E_TAMPERED: these bytes were not made by this key for this id. */
KV_RC kv_p11_decrypt(struct kv_p11 *token, const struct kv_roe_key *key, const uint8_t *iv, const uint8_t *sealed,
                     struct kv_secret **ret_root);

#endif
