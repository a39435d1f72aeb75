/*
 * The `transit` provider: one named key a root in a transit secrets engine (Vault, OpenBao), neither exportable nor
 * open to backups in plaintext, of one version for ever. Destroying deletes the key; min_decryption_version is never
 * touched, because that can be taken back. Several processes may use the engine at once. It must never act on a root
 * that its caller did not name.
 *
 * A key's name is <prefix><id in hexadecimal>-<fence of its maker>. Transit keys have no labels, so the active one is
 * told by min_encryption_version, which is 1 for it and 0 for staged ones: the same to a key that has one version.
 */
#include "dataplane/base/check.h"
#include "dataplane/base/fault.h"
#include "dataplane/base/mem.h"
#include "dataplane/keys/roe_transit_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MAGIC "KVT1"
#define PLAIN_BYTES (4 + 16 + 32)
#define PLAIN_TEXT_BYTES 80 /* PLAIN_BYTES in base64, and its end */
#define CIPHER_BYTES_MAX 1024

struct transit_roe {
    struct kv_roe base;
    const struct kv_env *env; /* borrowed */
    struct kv_transit transit;
    char detail[128];
};

struct work {
    struct transit_roe *roe;
    const struct kv_id *id, *old;
    const struct kv_secret *root;
    struct kv_bytes blob;
    struct kv_buf *ret_blob;
    struct kv_secret **ret_root;
    struct kv_roe_view view;
};

static struct transit_roe *transit_of(struct kv_roe *roe)
{
    return (struct transit_roe *)roe;
}

/* Token and connection last for one operation, so each begins with what the file says now. */
static KV_RC run(struct work *work, KV_RC (*step)(struct work *))
{
    struct kv_transit *transit = &work->roe->transit;
    work->roe->base.trouble = (struct kv_errinfo){0};
    transit->info = &work->roe->base.trouble;
    enum kv_err rc = step(work);
    kv_transit_hang_up(transit);
    return rc;
}

static KV_RC call_key(struct work *work, const char *method, const char *name, const char *rest, const char *body)
{
    char path[KV_TRANSIT_NAME_BYTES + 32];
    snprintf(path, sizeof path, "keys/%s%s", name, rest);
    return kv_transit_call(&work->roe->transit, method, path, body);
}

/* --- looking ------------------------------------------------------------------------------------------------------ */

/* The names alone: one request. */
static KV_RC list_names(struct work *work, struct kv_roe_shelf *ret_shelf)
{
    struct kv_transit *transit = &work->roe->transit;
    struct kv_roe_shelf shelf = {0};
    struct kv_roe_key key;
    enum kv_err rc = kv_transit_call(transit, "LIST", "keys", NULL);
    if (rc == KV_E_MISSING) { /* no key at all */
        *ret_shelf = shelf;
        return KV_OK;
    }
    KV_TRY(rc);
    for (const char *at = transit->answer; kv_transit_next_name(&at, transit->prefix, &key);) {
        if (shelf.count == KV_ROE_SHELF_MAX) {
            return kv_fail(transit->info, KV_E_LIMIT, "over %d roots are there; delete those of other clusters",
                           KV_ROE_SHELF_MAX);
        }
        shelf.keys[shelf.count++] = key;
    }
    *ret_shelf = shelf;
    return KV_OK;
}

static KV_RC look(struct work *work, struct kv_roe_shelf *ret_shelf)
{
    struct kv_transit *transit = &work->roe->transit;
    struct kv_roe_shelf names, shelf = {0};
    KV_TRY(list_names(work, &names));
    for (size_t i = 0; i < names.count; i++) {
        char name[KV_TRANSIT_NAME_BYTES];
        uint64_t marked = 0;
        KV_ASSERT(kv_transit_name(transit->prefix, &names.keys[i].id, names.keys[i].fence, name));
        enum kv_err rc = call_key(work, "GET", name, "", NULL);
        if (rc == KV_E_MISSING) {
            continue; /* deleted meanwhile */
        }
        KV_TRY(rc);
        if (!kv_transit_number(transit->answer, "min_encryption_version", &marked)) {
            return kv_fail(transit->info, KV_E_IO, "the key service says of a key not what a transit engine says");
        }
        names.keys[i].active = marked == 1;
        KV_TRY(kv_roe_shelf_add(&shelf, &names.keys[i]));
    }
    enum kv_err rc = kv_roe_shelf_view(&shelf, work->id, &work->view);
    if (rc != KV_OK) {
        return kv_fail(transit->info, rc, "the key service holds two active roots under this prefix");
    }
    *ret_shelf = shelf;
    return KV_OK;
}

/* --- destroying --------------------------------------------------------------------------------------------------- */

static KV_RC delete_key(struct work *work, const char *name)
{
    enum kv_err rc = call_key(work, "POST", name, "/config", "{\"deletion_allowed\":true}");
    if (rc == KV_OK) {
        rc = call_key(work, "DELETE", name, "", NULL);
    }
    /* Another process may have been first; whether it is gone is looked at in any case. */
    return rc == KV_E_MISSING || rc == KV_E_INVALID_STATE ? KV_OK : rc;
}

/* Gone is what a fresh connection is told, of the very name and of the list. */
static KV_RC destroy(struct work *work, const struct kv_id *id)
{
    struct kv_transit *transit = &work->roe->transit;
    struct kv_roe_shelf names, left;
    if (KV_FAULT("roe/transit/destroy")) {
        return KV_E_IO;
    }
    KV_TRY(list_names(work, &names));
    for (size_t pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < names.count; i++) {
            char name[KV_TRANSIT_NAME_BYTES];
            if (!kv_id_equal(&names.keys[i].id, id)) {
                continue;
            }
            KV_ASSERT(kv_transit_name(transit->prefix, id, names.keys[i].fence, name));
            enum kv_err rc = pass == 0 ? delete_key(work, name) : call_key(work, "GET", name, "", NULL);
            if (pass == 1 && rc == KV_OK) {
                return kv_fail(transit->info, KV_E_IO,
                               "the key service still shows the key that it said it deleted; "
                               "nothing is claimed");
            }
            if (pass == 0 || rc != KV_E_MISSING) {
                KV_TRY(rc);
            }
        }
        if (pass == 0 && KV_FAULT("roe/transit/destroyed")) {
            return KV_E_IO;
        }
        kv_transit_hang_up(transit);
    }
    KV_TRY(list_names(work, &left));
    return kv_roe_shelf_find(&left, id) == NULL
               ? KV_OK
               : kv_fail(transit->info, KV_E_IO,
                         "the key service still lists the key that it said it deleted; nothing is "
                         "claimed");
}

/* --- create and discard ------------------------------------------------------------------------------------------- */

/* What was made of the request: a mount may have rules of its own, and a key of this name may have been there. */
static KV_RC check_made(struct work *work, const char *name)
{
    struct kv_transit *transit = &work->roe->transit;
    const char *type = NULL;
    size_t len = 0;
    uint64_t decryption = 0, encryption = 1, latest = 1;
    KV_TRY(call_key(work, "GET", name, "", NULL));
    const char *answer = transit->answer;
    bool versions = kv_transit_number(answer, "min_decryption_version", &decryption) && decryption == 1 &&
                    kv_transit_number(answer, "min_encryption_version", &encryption) && encryption == 0 &&
                    (!kv_transit_number(answer, "latest_version", &latest) || latest == 1);
    bool closed = kv_transit_is_false(answer, "exportable") && kv_transit_is_false(answer, "allow_plaintext_backup") &&
                  kv_transit_is_false(answer, "derived") && !kv_transit_is_true(answer, "imported_key") &&
                  !kv_transit_is_true(answer, "imported");
    bool aes = kv_transit_string(answer, "type", &type, &len) && len == 12 && memcmp(type, "aes256-gcm96", 12) == 0;
    return versions && closed && aes
               ? KV_OK
               : kv_fail(transit->info, KV_E_UNSUPPORTED,
                         "the key service made another key than one of AES-256 that cannot leave it");
}

static KV_RC give_way(struct work *work)
{
    struct kv_roe_shelf shelf;
    KV_TRY(look(work, &shelf));
    for (size_t i = 0; i < shelf.count; i++) {
        if (!shelf.keys[i].active && !kv_id_equal(&shelf.keys[i].id, work->id)) {
            KV_TRY(destroy(work, work->id));
            return kv_fail(work->roe->transit.info, KV_E_INVALID_STATE, "another process staged a root meanwhile");
        }
    }
    return KV_OK;
}

static KV_RC create_step(struct work *work)
{
    static const char wanted[] = "{\"type\":\"aes256-gcm96\",\"derived\":false,\"exportable\":false,"
                                 "\"allow_plaintext_backup\":false}";
    struct kv_roe_shelf shelf;
    char name[KV_TRANSIT_NAME_BYTES];
    enum kv_roe_step step = KV_ROE_NOTHING;
    KV_TRY(look(work, &shelf));
    KV_TRY(kv_roe_plan_create(&work->view, work->id, &step));
    if (step == KV_ROE_NOTHING) {
        return KV_OK;
    }
    if (KV_FAULT("roe/transit/create")) {
        return KV_E_IO;
    }
    KV_ASSERT(kv_transit_name(work->roe->transit.prefix, work->id, work->roe->base.fence, name));
    KV_TRY(call_key(work, "POST", name, "", wanted));
    enum kv_err rc = check_made(work, name);
    if (rc == KV_E_UNSUPPORTED) {
        KV_TRY(destroy(work, work->id));
        return kv_fail(work->roe->transit.info, rc, "the key service makes no keys of AES-256 that cannot leave it");
    }
    KV_TRY(rc);
    return KV_FAULT("roe/transit/created") ? KV_E_IO : give_way(work);
}

static KV_RC transit_create(struct kv_roe *base, const struct kv_id *id)
{
    struct work work = {.roe = transit_of(base), .id = id};
    return run(&work, create_step);
}

static KV_RC discard_step(struct work *work)
{
    struct kv_roe_shelf shelf;
    enum kv_roe_step step = KV_ROE_NOTHING;
    uint64_t fence = work->roe->base.fence;
    KV_TRY(look(work, &shelf));
    KV_TRY(kv_roe_plan_discard(&work->view, work->id, &step));
    if (step == KV_ROE_NOTHING) {
        return KV_OK;
    }
    if (fence != 0 && kv_roe_shelf_find(&shelf, work->id)->fence > fence) {
        return kv_fail(work->roe->transit.info, KV_E_STALE, "the staged root is of a process that came later");
    }
    return destroy(work, work->id);
}

static KV_RC transit_discard(struct kv_roe *base, const struct kv_id *staged)
{
    struct work work = {.roe = transit_of(base), .id = staged};
    return run(&work, discard_step);
}

/* --- commit ------------------------------------------------------------------------------------------------------- */

static KV_RC commit_step(struct work *work)
{
    struct kv_roe_shelf shelf;
    char name[KV_TRANSIT_NAME_BYTES];
    enum kv_roe_step step = KV_ROE_NOTHING;
    KV_TRY(look(work, &shelf));
    KV_TRY(kv_roe_plan_commit(&work->view, work->id, work->old, &step));
    if (!kv_id_is_zero(work->old)) {
        KV_TRY(destroy(work, work->old)); /* Again where it is gone already: a receipt is given over what was seen. */
    }
    if (step == KV_ROE_NOTHING) {
        return KV_OK;
    }
    if (KV_FAULT("roe/transit/activate")) {
        return KV_E_IO;
    }
    KV_ASSERT(kv_transit_name(work->roe->transit.prefix, work->id, kv_roe_shelf_find(&shelf, work->id)->fence, name));
    KV_TRY(call_key(work, "POST", name, "/config", "{\"min_encryption_version\":1}"));
    return KV_FAULT("roe/transit/activated") ? KV_E_IO : KV_OK;
}

static KV_RC transit_commit(struct kv_roe *base, const struct kv_id *fresh, const struct kv_id *old,
                            struct kv_roe_receipt *ret_receipt)
{
    struct transit_roe *roe = transit_of(base);
    struct work work = {.roe = roe, .id = fresh, .old = old};
    KV_TRY(run(&work, commit_step));
    return kv_roe_receipt_make(roe->env, kv_roe_transit.name, fresh, old, ret_receipt);
}

/* Again where it is gone already: a receipt is given over what was seen. */
static KV_RC retire_step(struct work *work)
{
    struct kv_roe_shelf shelf;
    enum kv_roe_step step = KV_ROE_NOTHING;
    KV_TRY(look(work, &shelf));
    KV_TRY(kv_roe_plan_retire(&work->view, work->old, &step));
    return destroy(work, work->old);
}

static KV_RC transit_retire(struct kv_roe *base, const struct kv_id *old, const struct kv_id *fresh,
                            struct kv_roe_receipt *ret_receipt)
{
    struct transit_roe *roe = transit_of(base);
    struct work work = {.roe = roe, .id = fresh, .old = old};
    KV_TRY(run(&work, retire_step));
    return kv_roe_receipt_make(roe->env, kv_roe_transit.name, fresh, old, ret_receipt);
}

/* --- wrap and unwrap ---------------------------------------------------------------------------------------------- */

/* The name of a key that is there. The engine makes a key that is asked to encrypt and absent, where its policy lets
 * it. */
static KV_RC find_name(struct work *work, char ret_name[KV_TRANSIT_NAME_BYTES])
{
    struct kv_roe_shelf names;
    KV_TRY(list_names(work, &names));
    const struct kv_roe_key *key = kv_roe_shelf_find(&names, work->id);
    if (key == NULL) {
        return KV_E_MISSING;
    }
    KV_ASSERT(kv_transit_name(work->roe->transit.prefix, &key->id, key->fence, ret_name));
    return KV_OK;
}

static KV_RC encrypt(struct work *work, const char *name, char *page)
{
    uint8_t *plain = (uint8_t *)page;
    char *body = page + PLAIN_BYTES, path[KV_TRANSIT_NAME_BYTES + 16];
    static const char before[] = "{\"plaintext\":\"";
    memcpy(plain, MAGIC, 4);
    memcpy(plain + 4, work->id->b, 16);
    memcpy(plain + 20, kv_secret_data(work->root), 32);
    memcpy(body, before, sizeof before - 1);
    kv_base64_encode(plain, PLAIN_BYTES, body + sizeof before - 1);
    size_t len = strlen(body);
    memcpy(body + len, "\"}", 3);
    snprintf(path, sizeof path, "encrypt/%s", name);
    return kv_transit_call(&work->roe->transit, "POST", path, body);
}

static KV_RC wrap_step(struct work *work)
{
    struct kv_transit *transit = &work->roe->transit;
    char name[KV_TRANSIT_NAME_BYTES];
    const char *cipher = NULL;
    size_t len = 0;
    void *page = NULL;
    KV_TRY(find_name(work, name));
    KV_TRY(kv_locked_alloc(KV_ROE_TEXT_BYTES, &page));
    enum kv_err rc = encrypt(work, name, page);
    kv_locked_free(page, KV_ROE_TEXT_BYTES);
    KV_TRY(rc);
    if (!kv_transit_string(transit->answer, "ciphertext", &cipher, &len) || len > CIPHER_BYTES_MAX ||
        strncmp(cipher, "vault:v1:", 9) != 0) {
        return kv_fail(transit->info, KV_E_IO, "the key service answers with no ciphertext of a key's first version");
    }
    kv_buf_append(work->ret_blob, MAGIC, 4);
    kv_buf_append(work->ret_blob, work->id->b, 16);
    kv_buf_append(work->ret_blob, cipher, len);
    return kv_buf_check(work->ret_blob);
}

static KV_RC transit_wrap(struct kv_roe *base, const struct kv_id *id, const struct kv_secret *root,
                          struct kv_buf *ret_blob)
{
    struct work work = {.roe = transit_of(base), .id = id, .root = root, .ret_blob = ret_blob};
    return kv_secret_len(root) == 32 ? run(&work, wrap_step) : KV_E_INVALID_REQUEST;
}

static KV_RC take_root(struct work *work)
{
    struct kv_secret *plain KV_CLEANUP(kv_secret_freep) = NULL;
    const char *text = NULL;
    size_t len = 0, plain_len = 0;
    KV_TRY(kv_secret_new(PLAIN_BYTES, &plain));
    uint8_t *bytes = kv_secret_data_mutable(plain);
    if (!kv_transit_string(work->roe->transit.answer, "plaintext", &text, &len) ||
        kv_base64_decode(text, len, bytes, PLAIN_BYTES, &plain_len) != KV_OK || plain_len != PLAIN_BYTES ||
        memcmp(bytes, MAGIC, 4) != 0 || memcmp(bytes + 4, work->id->b, 16) != 0) {
        return KV_E_TAMPERED;
    }
    return kv_secret_copy(bytes + 20, 32, work->ret_root);
}

static KV_RC unwrap_step(struct work *work)
{
    char name[KV_TRANSIT_NAME_BYTES], path[KV_TRANSIT_NAME_BYTES + 16], body[CIPHER_BYTES_MAX + 32];
    KV_TRY(find_name(work, name));
    if (memcmp(work->blob.data + 4, work->id->b, 16) != 0) {
        return KV_E_WRONG_KEY;
    }
    snprintf(body, sizeof body, "{\"ciphertext\":\"%.*s\"}", (int)(work->blob.len - 20),
             (const char *)work->blob.data + 20);
    snprintf(path, sizeof path, "decrypt/%s", name);
    enum kv_err rc = kv_transit_call(&work->roe->transit, "POST", path, body);
    /* 400: its way to say that the ciphertext is none of this key. */
    return rc == KV_E_INVALID_STATE ? KV_E_TAMPERED : rc == KV_OK ? take_root(work) : rc;
}

/* It becomes part of a request's JSON. */
static bool is_cipher(struct kv_bytes text)
{
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=:_-";
    for (size_t i = 0; i < text.len; i++) {
        if (memchr(allowed, text.data[i], sizeof allowed - 1) == NULL) {
            return false;
        }
    }
    return true;
}

static KV_RC transit_unwrap(struct kv_roe *base, const struct kv_id *id, struct kv_bytes blob,
                            struct kv_secret **ret_root)
{
    struct work work = {.roe = transit_of(base), .id = id, .blob = blob, .ret_root = ret_root};
    if (blob.len < 4 + 16 + 9) {
        return KV_E_TRUNCATED;
    }
    if (memcmp(blob.data, MAGIC, 4) != 0 || blob.len > 20 + CIPHER_BYTES_MAX) {
        return KV_E_CORRUPT;
    }
    return is_cipher(KV_BYTES(blob.data + 20, blob.len - 20)) ? run(&work, unwrap_step) : KV_E_TAMPERED;
}

/* --- the rest ----------------------------------------------------------------------------------------------------- */

static KV_RC look_step(struct work *work)
{
    struct kv_roe_shelf shelf;
    return look(work, &shelf);
}

static KV_RC transit_list(struct kv_roe *base, struct kv_id *ret_active, struct kv_id *ret_staged)
{
    struct work work = {.roe = transit_of(base)};
    KV_TRY(run(&work, look_step));
    *ret_active = work.view.active;
    *ret_staged = work.view.staged;
    return KV_OK;
}

static void transit_close(struct kv_roe *base)
{
    if (base == NULL) {
        return;
    }
    struct transit_roe *roe = transit_of(base);
    kv_transit_done(&roe->transit);
    kv_free(roe);
}

static KV_RC transit_open(const struct kv_roe_conf *conf, struct kv_errinfo *info, struct kv_roe **ret_roe)
{
    struct transit_roe *roe = kv_alloc(sizeof(*roe));
    if (roe == NULL) {
        return kv_fail(info, KV_E_NO_MEMORY, "no memory for the root of erasure");
    }
    roe->base.ops = &kv_roe_transit;
    roe->env = conf->env;
    struct work work = {.roe = roe};
    enum kv_err rc = kv_transit_init(&conf->transit, info, &roe->transit);
    if (rc == KV_OK) {
        rc = run(&work, look_step);
        if (rc != KV_OK && info != NULL) {
            *info = roe->base.trouble;
        }
    }
    if (rc != KV_OK) {
        transit_close(&roe->base);
        return rc;
    }
    if (conf->transit.backup_window_s == 0) {
        snprintf(roe->detail, sizeof roe->detail, "transit key service; how long it keeps backups is not declared");
    } else {
        snprintf(roe->detail, sizeof roe->detail, "transit key service; its backups are kept for up to %" PRIu64 " s",
                 conf->transit.backup_window_s);
    }
    *ret_roe = &roe->base;
    return KV_OK;
}

static const char *transit_describe(const struct kv_roe *base)
{
    return ((const struct transit_roe *)base)->detail;
}

static const char *transit_assurance(const struct kv_roe *base)
{
    (void)base;
    return "E2"; /* What it does with a deleted key is its own affair. */
}

const struct kv_roe_ops kv_roe_transit = {
    .name = "transit",
    .shared = true,
    .open = transit_open,
    .create = transit_create,
    .wrap = transit_wrap,
    .unwrap = transit_unwrap,
    .commit = transit_commit,
    .retire = transit_retire,
    .discard = transit_discard,
    .list = transit_list,
    .describe = transit_describe,
    .assurance = transit_assurance,
    .close = transit_close,
};
