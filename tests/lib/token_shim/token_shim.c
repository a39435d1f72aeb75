/*
 * A PKCS #11 library that hands every call on to the one that KVT_SHIM_MODULE names, except what KVT_SHIM says:
 *
 *   "C_GenerateKey=0x31"       the call answers that, always
 *   "C_FindObjectsInit=0xb3@1" once, then it works again
 *   "C_DestroyObject=keep"     says yes and does nothing: a token that lies
 *   "C_GenerateKey=loose"      makes keys that can leave the token
 *   "C_GetSlotInfo=hardware"   the slot claims to be hardware
 *
 * KVT_SHIM_LOGINS counts the PINs that were sent.
 */
#define CRYPTOKI_GNU 1
#include <dlfcn.h>
#include <p11-kit/pkcs11.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct ck_function_list real, shim;

/* What KVT_SHIM says of this call; NULL: nothing. */
static const char *said(const char *call)
{
    static char last[128];
    static unsigned long left;
    const char *spec = getenv("KVT_SHIM");
    if (spec == NULL) {
        last[0] = '\0';
        return NULL;
    }
    if (strcmp(spec, last) != 0) {
        snprintf(last, sizeof last, "%s", spec);
        const char *at = strchr(last, '@');
        left = at == NULL ? (unsigned long)-1 : strtoul(at + 1, NULL, 10);
    }
    size_t len = strlen(call);
    if (strncmp(last, call, len) != 0 || last[len] != '=' || left == 0) {
        return NULL;
    }
    left -= left != (unsigned long)-1;
    return last + len + 1;
}

#define CODE_OR(call, ...)                    \
    do {                                      \
        const char *what = said(#call);       \
        if (what != NULL && what[0] == '0') { \
            return strtoul(what, NULL, 16);   \
        }                                     \
        return real.call(__VA_ARGS__);        \
    } while (0)

static ck_rv_t shim_find_init(ck_session_handle_t session, struct ck_attribute *wanted, unsigned long count)
{
    CODE_OR(C_FindObjectsInit, session, wanted, count);
}

static ck_rv_t shim_set(ck_session_handle_t session, ck_object_handle_t object, struct ck_attribute *change,
                        unsigned long count)
{
    CODE_OR(C_SetAttributeValue, session, object, change, count);
}

static ck_rv_t shim_encrypt_init(ck_session_handle_t session, struct ck_mechanism *mechanism, ck_object_handle_t key)
{
    CODE_OR(C_EncryptInit, session, mechanism, key);
}

static ck_rv_t shim_mechanism(ck_slot_id_t slot, ck_mechanism_type_t type, struct ck_mechanism_info *info)
{
    CODE_OR(C_GetMechanismInfo, slot, type, info);
}

static ck_rv_t shim_initialize(void *args)
{
    CODE_OR(C_Initialize, args);
}

static ck_rv_t shim_login(ck_session_handle_t session, ck_user_type_t user, unsigned char *pin, unsigned long len)
{
    char count[24];
    const char *before = getenv("KVT_SHIM_LOGINS");
    snprintf(count, sizeof count, "%lu", (before == NULL ? 0 : strtoul(before, NULL, 10)) + 1);
    setenv("KVT_SHIM_LOGINS", count, 1);
    CODE_OR(C_Login, session, user, pin, len);
}

static ck_rv_t shim_destroy(ck_session_handle_t session, ck_object_handle_t object)
{
    const char *what = said("C_DestroyObject");
    if (what != NULL) {
        return what[0] == 'k' ? CKR_OK : strtoul(what, NULL, 16);
    }
    return real.C_DestroyObject(session, object);
}

static ck_rv_t shim_generate(ck_session_handle_t session, struct ck_mechanism *mechanism, struct ck_attribute *wanted,
                             unsigned long count, ck_object_handle_t *ret_key)
{
    static unsigned char yes = 1;
    struct ck_attribute own[32];
    const char *what = said("C_GenerateKey");
    if (what == NULL || count > 32) {
        return real.C_GenerateKey(session, mechanism, wanted, count, ret_key);
    }
    if (what[0] != 'l') {
        return strtoul(what, NULL, 16);
    }
    memcpy(own, wanted, count * sizeof own[0]);
    for (unsigned long i = 0; i < count; i++) {
        own[i].value = own[i].type == CKA_EXTRACTABLE ? &yes : own[i].value;
    }
    return real.C_GenerateKey(session, mechanism, own, count, ret_key);
}

static ck_rv_t shim_slot(ck_slot_id_t slot, struct ck_slot_info *info)
{
    ck_rv_t rv = real.C_GetSlotInfo(slot, info);
    info->flags |= said("C_GetSlotInfo") != NULL ? CKF_HW_SLOT : 0;
    return rv;
}

__attribute__((visibility("default"))) ck_rv_t C_GetFunctionList(struct ck_function_list **list)
{
    struct ck_function_list *inner = NULL;
    ck_rv_t (*get)(struct ck_function_list **) = NULL;
    const char *path = getenv("KVT_SHIM_MODULE");
    void *library = path == NULL ? NULL : dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        return CKR_GENERAL_ERROR;
    }
    *(void **)&get = dlsym(library, "C_GetFunctionList");
    if (get == NULL || get(&inner) != CKR_OK) {
        return CKR_GENERAL_ERROR;
    }
    real = shim = *inner;
    shim.C_FindObjectsInit = shim_find_init;
    shim.C_SetAttributeValue = shim_set;
    shim.C_EncryptInit = shim_encrypt_init;
    shim.C_GetMechanismInfo = shim_mechanism;
    shim.C_Initialize = shim_initialize;
    shim.C_Login = shim_login;
    shim.C_DestroyObject = shim_destroy;
    shim.C_GenerateKey = shim_generate;
    shim.C_GetSlotInfo = shim_slot;
    *list = &shim;
    return CKR_OK;
}
