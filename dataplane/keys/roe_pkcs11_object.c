/*
 * Keys on a token. A key's CKA_ID is its root's id; its label says whose it is and in which state:
 *
 *     kvrun active            the root in force
 *     kvrun staged 17         a root made by the holder of fence 17
 *
 * Whatever has another label is somebody else's and left alone. No key is ever made that could leave the token.
 */
#include "dataplane/keys/roe_pkcs11_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LABEL_BYTES 80
#define BATCH 32
#define OBJECTS_MAX 4096 /* AES keys on the token, other people's among them */

static const char aad_purpose[] = "kvrun/v1/root";

#define ATTR(kind, variable) \
    ((struct ck_attribute){.type = (kind), .value = &(variable), .value_len = sizeof(variable)})

/* --- looking ------------------------------------------------------------------------------------------------------ */

/* False: not one of ours. */
static bool parse_label(const struct kv_p11 *token, const char *text, struct kv_roe_key *key)
{
    size_t prefix = strlen(token->label);
    if (strncmp(text, token->label, prefix) != 0 || text[prefix] != ' ') {
        return false;
    }
    const char *state = text + prefix + 1;
    if (strcmp(state, "active") == 0) {
        key->active = true;
        return true;
    }
    if (strncmp(state, "staged ", 7) != 0 || state[7] < '0' || state[7] > '9') {
        return false;
    }
    char *end = NULL;
    key->fence = strtoull(state + 7, &end, 10);
    return *end == '\0';
}

static KV_RC look_at(struct kv_p11 *token, ck_object_handle_t handle, struct kv_roe_shelf *shelf)
{
    char label[LABEL_BYTES] = "";
    struct kv_roe_key key = {.handle = handle};
    uint8_t id[sizeof key.id.b];
    struct ck_attribute wanted[] = {{.type = CKA_LABEL, .value = label, .value_len = sizeof label - 1},
                                    {.type = CKA_ID, .value = id, .value_len = sizeof id}};
    ck_rv_t rv = token->fn->C_GetAttributeValue(token->session, handle, wanted, 2);
    if (rv == CKR_OBJECT_HANDLE_INVALID || rv == CKR_BUFFER_TOO_SMALL || rv == CKR_ATTRIBUTE_TYPE_INVALID ||
        rv == CKR_ATTRIBUTE_SENSITIVE) {
        return KV_OK; /* gone meanwhile, or with a label or id that we do not give */
    }
    KV_TRY(kv_p11_result(token, rv, "reading a key's label"));
    if (wanted[0].value_len >= sizeof label || wanted[1].value_len != sizeof id) {
        return KV_OK;
    }
    label[wanted[0].value_len] = '\0';
    if (!parse_label(token, label, &key)) {
        return KV_OK;
    }
    memcpy(key.id.b, id, sizeof id);
    return kv_roe_shelf_add(shelf, &key);
}

/* Up to `max` objects that match; ends its search whatever happens. */
static KV_RC find(struct kv_p11 *token, struct ck_attribute *wanted, unsigned long wanted_count,
                  ck_object_handle_t *ret_handles, unsigned long *count)
{
    unsigned long max = *count, total = 0, got = 1;
    KV_TRY(
        kv_p11_result(token, token->fn->C_FindObjectsInit(token->session, wanted, wanted_count), "looking for keys"));
    ck_rv_t rv = CKR_OK;
    while (rv == CKR_OK && got > 0 && total < max) {
        unsigned long room = max - total < BATCH ? max - total : BATCH;
        rv = token->fn->C_FindObjects(token->session, ret_handles + total, room, &got);
        total += rv == CKR_OK && got <= room ? got : 0;
    }
    ck_rv_t ended = token->fn->C_FindObjectsFinal(token->session);
    KV_TRY(kv_p11_result(token, rv, "looking for keys"));
    KV_TRY(kv_p11_result(token, ended, "looking for keys"));
    *count = total;
    return KV_OK;
}

KV_RC kv_p11_look(struct kv_p11 *token, struct kv_roe_shelf *ret_shelf)
{
    ck_object_class_t class = CKO_SECRET_KEY;
    ck_key_type_t type = CKK_AES;
    unsigned char yes = 1;
    struct ck_attribute wanted[] = {ATTR(CKA_CLASS, class), ATTR(CKA_KEY_TYPE, type), ATTR(CKA_TOKEN, yes)};
    ck_object_handle_t handles[OBJECTS_MAX + 1];
    unsigned long count = OBJECTS_MAX + 1;
    struct kv_roe_shelf shelf = {0};
    KV_TRY(find(token, wanted, 3, handles, &count));
    if (count > OBJECTS_MAX) {
        return kv_fail(token->info, KV_E_LIMIT, "the token holds over %d AES keys; give kvrun a token of its own",
                       OBJECTS_MAX);
    }
    for (unsigned long i = 0; i < count; i++) {
        KV_TRY(look_at(token, handles[i], &shelf));
    }
    *ret_shelf = shelf;
    return KV_OK;
}

KV_RC kv_p11_count(struct kv_p11 *token, const struct kv_id *id, unsigned long *ret_count)
{
    struct kv_id wanted_id = *id;
    struct ck_attribute wanted = {.type = CKA_ID, .value = wanted_id.b, .value_len = sizeof wanted_id.b};
    ck_object_handle_t handles[BATCH];
    *ret_count = BATCH;
    return find(token, &wanted, 1, handles, ret_count);
}

/* --- making ------------------------------------------------------------------------------------------------------- */

/* What the token made of the template: some ignore what they do not like. */
static KV_RC check_made(struct kv_p11 *token, ck_object_handle_t handle)
{
    unsigned char on_token = 0, private = 0, sensitive = 0, always = 0, extractable = 1, never = 0, copyable = 1;
    struct ck_attribute made[] = {ATTR(CKA_TOKEN, on_token),          ATTR(CKA_PRIVATE, private),
                                  ATTR(CKA_SENSITIVE, sensitive),     ATTR(CKA_ALWAYS_SENSITIVE, always),
                                  ATTR(CKA_EXTRACTABLE, extractable), ATTR(CKA_NEVER_EXTRACTABLE, never),
                                  ATTR(CKA_COPYABLE, copyable)};
    ck_rv_t rv = token->fn->C_GetAttributeValue(token->session, handle, made, sizeof made / sizeof made[0]);
    KV_TRY(kv_p11_result(token, rv, "reading what the token made"));
    if (on_token && private && sensitive && always && !extractable && never && !copyable) {
        return KV_OK;
    }
    return kv_p11_result(token, CKR_TEMPLATE_INCONSISTENT, "reading what the token made");
}

static KV_RC set_label(struct kv_p11 *token, ck_object_handle_t handle, const char *state)
{
    char label[LABEL_BYTES];
    int len = snprintf(label, sizeof label, "%.32s %s", token->label, state);
    struct ck_attribute change = {.type = CKA_LABEL, .value = label, .value_len = (unsigned long)len};
    ck_rv_t rv = token->fn->C_SetAttributeValue(token->session, handle, &change, 1);
    return kv_p11_result(token, rv == CKR_ACTION_PROHIBITED ? CKR_ATTRIBUTE_READ_ONLY : rv, "marking a key");
}

static KV_RC make(struct kv_p11 *token, const struct kv_id *id, const char *state, ck_object_handle_t *ret_handle)
{
    char label[LABEL_BYTES];
    int len = snprintf(label, sizeof label, "%.32s %s", token->label, state);
    struct kv_id own_id = *id;
    ck_object_class_t class = CKO_SECRET_KEY;
    ck_key_type_t type = CKK_AES;
    unsigned long bytes = 32;
    unsigned char yes = 1, no = 0;
    struct ck_attribute template[] = {
        ATTR(CKA_CLASS, class),
        ATTR(CKA_KEY_TYPE, type),
        ATTR(CKA_VALUE_LEN, bytes),
        ATTR(CKA_TOKEN, yes),
        ATTR(CKA_PRIVATE, yes),
        ATTR(CKA_SENSITIVE, yes),
        ATTR(CKA_EXTRACTABLE, no),
        ATTR(CKA_COPYABLE, no),
        ATTR(CKA_MODIFIABLE, yes),
        ATTR(CKA_ENCRYPT, yes),
        ATTR(CKA_DECRYPT, yes),
        ATTR(CKA_WRAP, no),
        ATTR(CKA_UNWRAP, no),
        {.type = CKA_ID, .value = own_id.b, .value_len = sizeof own_id.b},
        {.type = CKA_LABEL, .value = label, .value_len = (unsigned long)len},
    };
    struct ck_mechanism mechanism = {.mechanism = CKM_AES_KEY_GEN};
    ck_rv_t rv = token->fn->C_GenerateKey(token->session, &mechanism, template, sizeof template / sizeof template[0],
                                          ret_handle);
    return kv_p11_result(token, rv, "making a key");
}

KV_RC kv_p11_generate(struct kv_p11 *token, const struct kv_id *id, uint64_t fence)
{
    char state[40];
    ck_object_handle_t handle = 0;
    snprintf(state, sizeof state, "staged %" PRIu64, fence);
    KV_TRY(make(token, id, state, &handle));
    enum kv_err rc = check_made(token, handle);
    if (rc == KV_OK) {
        rc = set_label(token, handle,
                       state); /* whether it can be marked active is found out before anything is destroyed */
    }
    if (rc != KV_OK && !token->lost) {
        token->fn->C_DestroyObject(token->session, handle); /* if it stays, it is a staged key that is discarded */
    }
    return rc;
}

KV_RC kv_p11_activate(struct kv_p11 *token, unsigned long handle)
{
    return set_label(token, handle, "active");
}

KV_RC kv_p11_destroy(struct kv_p11 *token, const struct kv_id *id)
{
    struct kv_id wanted_id = *id;
    struct ck_attribute wanted = {.type = CKA_ID, .value = wanted_id.b, .value_len = sizeof wanted_id.b};
    ck_object_handle_t handles[BATCH];
    unsigned long count = BATCH;
    KV_TRY(find(token, &wanted, 1, handles, &count));
    for (unsigned long i = 0; i < count; i++) {
        ck_rv_t rv = token->fn->C_DestroyObject(token->session, handles[i]);
        if (rv != CKR_OBJECT_HANDLE_INVALID) { /* another process was first */
            KV_TRY(kv_p11_result(token, rv, "destroying a key"));
        }
    }
    return KV_OK;
}

/* --- using -------------------------------------------------------------------------------------------------------- */

struct gcm {
    uint8_t aad[sizeof aad_purpose - 1 + sizeof(struct kv_id)];
    struct ck_gcm_params params;
    struct ck_mechanism mechanism;
};

static void gcm_init(struct gcm *gcm, const struct kv_id *id, uint8_t *iv)
{
    memcpy(gcm->aad, aad_purpose, sizeof aad_purpose - 1);
    memcpy(gcm->aad + sizeof aad_purpose - 1, id->b, sizeof id->b);
    gcm->params = (struct ck_gcm_params){.iv_ptr = iv,
                                         .iv_len = KV_P11_IV_BYTES,
                                         .iv_bits = KV_P11_IV_BYTES * 8,
                                         .aad_ptr = gcm->aad,
                                         .aad_len = sizeof gcm->aad,
                                         .tag_bits = KV_P11_TAG_BYTES * 8};
    gcm->mechanism =
        (struct ck_mechanism){.mechanism = CKM_AES_GCM, .parameter = &gcm->params, .parameter_len = sizeof gcm->params};
}

KV_RC kv_p11_encrypt(struct kv_p11 *token, const struct kv_roe_key *key, const struct kv_secret *root, uint8_t *iv,
                     uint8_t *ret_sealed)
{
    struct gcm gcm;
    unsigned long len = 32 + KV_P11_TAG_BYTES;
    gcm_init(&gcm, &key->id, iv);
    KV_TRY(
        kv_p11_result(token, token->fn->C_EncryptInit(token->session, &gcm.mechanism, key->handle), "wrapping a root"));
    /* The library's interface has no const; it reads. */
    unsigned char *plain = (unsigned char *)(uintptr_t)kv_secret_data(root);
    KV_TRY(kv_p11_result(token, token->fn->C_Encrypt(token->session, plain, 32, ret_sealed, &len), "wrapping a root"));
    return len == 32 + KV_P11_TAG_BYTES ? KV_OK
                                        : kv_fail(token->info, KV_E_CRYPTO, "the token wraps to another length");
}

KV_RC kv_p11_decrypt(struct kv_p11 *token, const struct kv_roe_key *key, const uint8_t *iv, const uint8_t *sealed,
                     struct kv_secret **ret_root)
{
    struct gcm gcm;
    uint8_t own_iv[KV_P11_IV_BYTES], own[32 + KV_P11_TAG_BYTES];
    struct kv_secret *plain KV_CLEANUP(kv_secret_freep) = NULL;
    KV_TRY(kv_secret_new(sizeof own, &plain)); /* some want room for as much as they are given */
    unsigned long len = sizeof own;
    memcpy(own_iv, iv, sizeof own_iv);
    memcpy(own, sealed, sizeof own);
    gcm_init(&gcm, &key->id, own_iv);
    ck_rv_t rv = token->fn->C_DecryptInit(token->session, &gcm.mechanism, key->handle);
    KV_TRY(kv_p11_result(token, rv, "unwrapping a root"));
    rv = token->fn->C_Decrypt(token->session, own, sizeof own, kv_secret_data_mutable(plain), &len);
    if (rv == CKR_GENERAL_ERROR || rv == CKR_FUNCTION_FAILED || rv == CKR_DATA_INVALID || rv == CKR_SIGNATURE_INVALID) {
        token->lost = true; /* what tokens say of a tag that does not verify differs, and it may be something else */
        rv = CKR_ENCRYPTED_DATA_INVALID;
    }
    KV_TRY(kv_p11_result(token, rv, "unwrapping a root"));
    if (len != 32) {
        return kv_fail(token->info, KV_E_TAMPERED, "the token unwraps to another length");
    }
    return kv_secret_copy(kv_secret_data(plain), 32, ret_root);
}
