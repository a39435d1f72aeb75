/*
 * The library of a token and the connection to it: loading, C_Initialize, finding the token, logging in, losing it. A
 * PIN that the token refused is not sent again: three wrong ones lock most tokens. Must never log a PIN.
 */
#include "dataplane/base/mem.h"
#include "dataplane/keys/roe_pkcs11_int.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define SLOTS_MAX 64

static const struct {
    ck_rv_t rv;
    enum kv_err code;
    bool lost; /* the connection does not answer any more; the next call begins with a fresh one */
    const char *text;
} results[] = {
    {CKR_PIN_INCORRECT, KV_E_CONFIG, false, "the token refused the PIN; write the right one into root.pkcs11.pin_file"},
    {CKR_PIN_INVALID, KV_E_CONFIG, false, "the PIN has characters that the token does not take"},
    {CKR_PIN_LEN_RANGE, KV_E_CONFIG, false, "the PIN is too short or too long for the token"},
    {CKR_PIN_EXPIRED, KV_E_CONFIG, false, "the token's PIN ran out; set a new one with the token's tools"},
    {CKR_PIN_LOCKED, KV_E_CONFIG, false, "the token's PIN is locked; unlock it as its security officer"},
    {CKR_USER_PIN_NOT_INITIALIZED, KV_E_CONFIG, false, "the token has no user PIN yet; set one with its tools"},
    {CKR_TOKEN_WRITE_PROTECTED, KV_E_CONFIG, false, "the token is write-protected"},
    {CKR_SESSION_READ_ONLY, KV_E_CONFIG, false, "the token gives only sessions that read"},
    {CKR_DEVICE_MEMORY, KV_E_NO_SPACE, false, "the token is full; remove objects that are not needed from it"},
    {CKR_SESSION_COUNT, KV_E_BUSY, false, "the token has no session left; end another program that uses it"},
    {CKR_HOST_MEMORY, KV_E_NO_MEMORY, false, "no memory is left for the token's library"},
    {CKR_MECHANISM_INVALID, KV_E_UNSUPPORTED, false, "the token does not offer AES-256-GCM; use one that does"},
    {CKR_KEY_SIZE_RANGE, KV_E_UNSUPPORTED, false, "the token makes no AES keys of 256 bits"},
    {CKR_TEMPLATE_INCONSISTENT, KV_E_UNSUPPORTED, false, "the token makes no AES key that can only be used inside it"},
    {CKR_TEMPLATE_INCOMPLETE, KV_E_UNSUPPORTED, false, "the token makes no AES key that can only be used inside it"},
    {CKR_ATTRIBUTE_TYPE_INVALID, KV_E_UNSUPPORTED, false,
     "the token does not know PKCS #11 2.40, so keys on it could be copied"},
    {CKR_ATTRIBUTE_READ_ONLY, KV_E_UNSUPPORTED, false,
     "the token does not let a key's label be changed, which marks the active one"},
    {CKR_ATTRIBUTE_VALUE_INVALID, KV_E_UNSUPPORTED, false,
     "the token makes no AES key that can only be used inside it"},
    {CKR_FUNCTION_NOT_SUPPORTED, KV_E_UNSUPPORTED, false, "the token lacks a function that a root of erasure needs"},
    {CKR_ENCRYPTED_DATA_INVALID, KV_E_TAMPERED, false, "the wrapped root is not one of this key"},
    {CKR_ENCRYPTED_DATA_LEN_RANGE, KV_E_TAMPERED, false, "the wrapped root is not one of this key"},
    {CKR_OBJECT_HANDLE_INVALID, KV_E_STALE, false, "the key was destroyed meanwhile"},
    {CKR_KEY_HANDLE_INVALID, KV_E_STALE, false, "the key was destroyed meanwhile"},
    {CKR_CRYPTOKI_ALREADY_INITIALIZED, KV_E_CONFIG, false, "another part of this process uses the token's library"},
    {CKR_CRYPTOKI_NOT_INITIALIZED, KV_E_IO, true, "the connection to the token is gone"},
    {CKR_SESSION_HANDLE_INVALID, KV_E_IO, true, "the session with the token is gone"},
    {CKR_SESSION_CLOSED, KV_E_IO, true, "the session with the token is gone"},
    {CKR_USER_NOT_LOGGED_IN, KV_E_IO, true, "the token forgot who logged in"},
    {CKR_DEVICE_REMOVED, KV_E_IO, true, "the token was removed; put it back"},
    {CKR_TOKEN_NOT_PRESENT, KV_E_IO, true, "the token is not there; put it back"},
    {CKR_TOKEN_NOT_RECOGNIZED, KV_E_IO, true, "the token is not recognised"},
    {CKR_SLOT_ID_INVALID, KV_E_IO, true, "the token is not where it was"},
    {CKR_DEVICE_ERROR, KV_E_IO, true, "the token reports an error of its own"},
    {CKR_GENERAL_ERROR, KV_E_IO, true, "the token's library reports an error without a cause"},
    {CKR_FUNCTION_FAILED, KV_E_IO, true, "the token could not do it"},
};

KV_RC kv_p11_result(struct kv_p11 *token, ck_rv_t rv, const char *doing)
{
    if (rv == CKR_OK) {
        return KV_OK;
    }
    for (size_t i = 0; i < sizeof(results) / sizeof(results[0]); i++) {
        if (results[i].rv == rv) {
            token->lost = token->lost || results[i].lost;
            return kv_fail(token->info, results[i].code, "%s: %s (0x%lx)", doing, results[i].text, rv);
        }
    }
    token->lost = true;
    return kv_fail(token->info, KV_E_IO, "%s: the token answers 0x%lx", doing, rv);
}

/* --- the library -------------------------------------------------------------------------------------------------- */

static char *copy_of(const char *text)
{
    return kv_strdup(text == NULL ? "" : text);
}

static KV_RC copy_conf(const struct kv_roe_pkcs11_conf *conf, struct kv_errinfo *info, struct kv_p11 *token)
{
    token->module = copy_of(conf->module);
    token->token = copy_of(conf->token);
    token->pin_file = copy_of(conf->pin_file);
    token->label = copy_of(conf->label == NULL || conf->label[0] == '\0' ? "kvrun" : conf->label);
    token->manufacturer_wanted = copy_of(conf->manufacturer);
    token->model_wanted = copy_of(conf->model);
    token->serial_wanted = copy_of(conf->serial);
    if (token->module == NULL || token->token == NULL || token->pin_file == NULL || token->label == NULL ||
        token->manufacturer_wanted == NULL || token->model_wanted == NULL || token->serial_wanted == NULL) {
        return kv_fail(info, KV_E_NO_MEMORY, "no memory for the root of erasure");
    }
    bool any =
        token->manufacturer_wanted[0] != '\0' || token->model_wanted[0] != '\0' || token->serial_wanted[0] != '\0';
    bool all =
        token->manufacturer_wanted[0] != '\0' && token->model_wanted[0] != '\0' && token->serial_wanted[0] != '\0';
    if (any && !all) {
        return kv_fail(info, KV_E_CONFIG,
                       "a declaration of hardware names manufacturer, model and serial number: set "
                       "all three of root.hardware, or none");
    }
    if (token->token[0] == '\0' || strlen(token->token) > 32 || strlen(token->label) > 32) {
        return kv_fail(info, KV_E_CONFIG,
                       "root.pkcs11.token names the token by its label; it and root.pkcs11.label "
                       "have at most 32 bytes");
    }
    return KV_OK;
}

KV_RC kv_p11_load(const struct kv_roe_pkcs11_conf *conf, struct kv_errinfo *info, struct kv_p11 *token)
{
    KV_TRY(copy_conf(conf, info, token));
    if (token->module[0] != '/') {
        return kv_fail(info, KV_E_CONFIG, "root.pkcs11.module needs the absolute path of the token's library");
    }
    token->library = dlopen(token->module, RTLD_NOW | RTLD_LOCAL);
    if (token->library == NULL) {
        return kv_fail(info, KV_E_CONFIG, "root.pkcs11.module cannot be loaded: %.120s", dlerror());
    }
    ck_rv_t (*list)(struct ck_function_list **) = NULL;
    *(void **)&list = dlsym(token->library, "C_GetFunctionList");
    if (list == NULL || list(&token->fn) != CKR_OK || token->fn == NULL) {
        return kv_fail(info, KV_E_CONFIG, "root.pkcs11.module is no PKCS #11 library: it has no C_GetFunctionList");
    }
    return KV_OK;
}

void kv_p11_unload(struct kv_p11 *token)
{
    kv_p11_disconnect(token);
    /* The library stays loaded: several of them leave threads or exit handlers behind that would run into the void. */
    kv_free(token->module);
    kv_free(token->token);
    kv_free(token->pin_file);
    kv_free(token->label);
    kv_free(token->manufacturer_wanted);
    kv_free(token->model_wanted);
    kv_free(token->serial_wanted);
}

/* --- the token ---------------------------------------------------------------------------------------------------- */

/* Fixed fields of PKCS #11 are padded with blanks. */
static void trimmed(const unsigned char *field, size_t len, char *ret_text)
{
    while (len > 0 && (field[len - 1] == ' ' || field[len - 1] == '\0')) {
        len--;
    }
    for (size_t i = 0; i < len; i++) { /* they go into certificates, which are printable ASCII */
        ret_text[i] = field[i] >= 0x20 && field[i] < 0x7f ? (char)field[i] : '?';
    }
    ret_text[len] = '\0';
}

static bool named(const struct kv_p11 *token, const struct ck_token_info *found)
{
    char label[sizeof found->label];
    memset(label, ' ', sizeof label);
    memcpy(label, token->token, strlen(token->token));
    return memcmp(label, found->label, sizeof label) == 0;
}

static KV_RC find_token(struct kv_p11 *token, struct ck_token_info *ret_found)
{
    ck_slot_id_t slots[SLOTS_MAX];
    unsigned long count = SLOTS_MAX, matches = 0;
    KV_TRY(kv_p11_result(token, token->fn->C_GetSlotList(1, slots, &count), "asking for tokens"));
    for (unsigned long i = 0; i < count; i++) {
        struct ck_token_info found;
        if (token->fn->C_GetTokenInfo(slots[i], &found) != CKR_OK || (found.flags & CKF_TOKEN_INITIALIZED) == 0 ||
            !named(token, &found)) {
            continue;
        }
        token->slot = slots[i];
        *ret_found = found;
        matches++;
    }
    if (matches == 0) {
        token->lost = true;
        return kv_fail(token->info, KV_E_IO,
                       "no token has the label \"%.32s\": put it in, or correct root.pkcs11.token", token->token);
    }
    if (matches > 1) {
        return kv_fail(token->info, KV_E_CONFIG,
                       "%lu tokens have the label \"%.32s\"; give this one a label of its own", matches, token->token);
    }
    return KV_OK;
}

static KV_RC check_token(struct kv_p11 *token, const struct ck_token_info *found)
{
    struct ck_slot_info slot;
    trimmed(found->manufacturer_id, sizeof found->manufacturer_id, token->manufacturer);
    trimmed(found->model, sizeof found->model, token->model);
    trimmed(found->serial_number, sizeof found->serial_number, token->serial);
    token->hardware = token->fn->C_GetSlotInfo(token->slot, &slot) == CKR_OK && (slot.flags & CKF_HW_SLOT) != 0;
    if (token->manufacturer_wanted[0] != '\0' &&
        (strcmp(token->manufacturer_wanted, token->manufacturer) != 0 ||
         strcmp(token->model_wanted, token->model) != 0 || strcmp(token->serial_wanted, token->serial) != 0)) {
        return kv_fail(token->info, KV_E_CONFIG,
                       "root.hardware declares another device than the token reports: \"%s\", \"%s\", \"%s\"",
                       token->manufacturer, token->model, token->serial);
    }
    if (token->manufacturer_wanted[0] != '\0' && !token->hardware) {
        return kv_fail(token->info, KV_E_CONFIG,
                       "root.hardware declares hardware, and the token says that it is none; "
                       "leave the declaration out");
    }
    if ((found->flags & CKF_WRITE_PROTECTED) != 0) {
        return kv_p11_result(token, CKR_TOKEN_WRITE_PROTECTED, "opening the token");
    }
    if ((found->flags & CKF_USER_PIN_LOCKED) != 0) {
        return kv_p11_result(token, CKR_PIN_LOCKED, "opening the token");
    }
    if ((found->flags & CKF_USER_PIN_FINAL_TRY) != 0) {
        return kv_fail(token->info, KV_E_CONFIG,
                       "one more wrong PIN locks the token, so none is sent: log in once by "
                       "hand with the right one");
    }
    return KV_OK;
}

static KV_RC check_mechanisms(struct kv_p11 *token)
{
    struct ck_mechanism_info gcm = {0}, generate = {0};
    if (token->fn->C_GetMechanismInfo(token->slot, CKM_AES_GCM, &gcm) != CKR_OK ||
        (gcm.flags & (CKF_ENCRYPT | CKF_DECRYPT)) != (CKF_ENCRYPT | CKF_DECRYPT) ||
        token->fn->C_GetMechanismInfo(token->slot, CKM_AES_KEY_GEN, &generate) != CKR_OK) {
        return kv_p11_result(token, CKR_MECHANISM_INVALID, "opening the token");
    }
    return KV_OK;
}

/* --- the PIN ------------------------------------------------------------------------------------------------------ */

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_ino == b->st_ino && a->st_dev == b->st_dev && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static KV_RC log_in(struct kv_p11 *token)
{
    struct kv_roe_text pin = {0};
    struct stat st = {0};
    if (stat(token->pin_file, &st) == 0 && token->refused_pin.st_ino != 0 && same_file(&st, &token->refused_pin)) {
        return kv_p11_result(token, CKR_PIN_INCORRECT, "the same PIN again");
    }
    KV_TRY(kv_roe_text_read(token->pin_file, "root.pkcs11.pin_file", token->info, &pin));
    ck_rv_t rv = token->fn->C_Login(token->session, CKU_USER, (unsigned char *)pin.text, pin.len);
    kv_roe_text_done(&pin);
    if (rv == CKR_PIN_INCORRECT || rv == CKR_PIN_LEN_RANGE || rv == CKR_PIN_INVALID) {
        token->refused_pin = st;
    }
    return rv == CKR_USER_ALREADY_LOGGED_IN ? KV_OK : kv_p11_result(token, rv, "logging in");
}

/* --- the connection ----------------------------------------------------------------------------------------------- */

static KV_RC open_session(struct kv_p11 *token)
{
    struct ck_c_initialize_args args = {.flags = CKF_OS_LOCKING_OK};
    struct ck_token_info found;
    KV_TRY(kv_p11_result(token, token->fn->C_Initialize(&args), "starting the token's library"));
    token->initialized = true;
    KV_TRY(find_token(token, &found));
    KV_TRY(check_token(token, &found));
    KV_TRY(check_mechanisms(token));
    ck_flags_t flags = CKF_SERIAL_SESSION | CKF_RW_SESSION;
    KV_TRY(kv_p11_result(token, token->fn->C_OpenSession(token->slot, flags, NULL, NULL, &token->session),
                         "opening a session"));
    return log_in(token);
}

KV_RC kv_p11_connect(struct kv_p11 *token)
{
    if (token->connected) {
        return KV_OK;
    }
    enum kv_err rc = open_session(token);
    if (rc != KV_OK) {
        kv_p11_disconnect(token);
        return rc;
    }
    token->connected = true;
    token->lost = false;
    return KV_OK;
}

void kv_p11_disconnect(struct kv_p11 *token)
{
    if (token->initialized) {
        token->fn->C_Finalize(NULL); /* closes the session and logs out; a library that is gone cannot be asked more */
    }
    token->initialized = token->connected = false;
}
