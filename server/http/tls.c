/* See tls.h. Must never let a client pass whose certificate was not verified here, and never log what a file holds. */
#include "server/http/tls.h"

#include "dataplane/base/log.h"
#include "dataplane/base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <gnutls/abstract.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_BYTES_MAX (256 * 1024)
#define CHAIN_MAX 10

enum { CERT, KEY, CA, FILES };

/* What of a file tells that it is another one. */
struct seen {
    struct timespec modified;
    off_t size;
    ino_t inode;
};

/* Everything that one reading of the files gave. */
struct material {
    gnutls_x509_crt_t chain[CHAIN_MAX];
    unsigned chain_len;
    gnutls_x509_privkey_t key;
    gnutls_x509_trust_list_t trust; /* NULL: clients need no certificate */
    struct seen seen[FILES];
};

struct kv_tls {
    struct kv_tls_conf conf;
    const struct kv_env *env;
    char *ca_pem; /* as it was at the start; owned */
    uint64_t look_ns;
    pthread_mutex_t mutex;
    struct material *material; /* under the mutex */
};

/* GnuTLS's callback has no context of ours, and there is one TLS listener in a process. */
static _Atomic(struct kv_tls *) serving;

/* --- reading ----------------------------------------------------------------------------------------------------- */

static const char *const keys[FILES] = {"http.tls.cert_file", "http.tls.key_file", "http.tls.client_ca_file"};

static const char *file_of(const struct kv_tls_conf *conf, int which)
{
    return which == CERT ? conf->cert_file : which == KEY ? conf->key_file : conf->client_ca_file;
}

static bool look_at(const char *path, struct seen *ret_seen)
{
    struct stat file;
    if (path == NULL || path[0] == '\0' || stat(path, &file) != 0) {
        *ret_seen = (struct seen){0};
        return false;
    }
    *ret_seen = (struct seen){.modified = file.st_mtim, .size = file.st_size, .inode = file.st_ino};
    return true;
}

static void wipe(gnutls_datum_t *text)
{
    if (text->data != NULL) {
        explicit_bzero(text->data, text->size);
        kv_free(text->data);
    }
    *text = (gnutls_datum_t){0};
}

static KV_RC read_all(int fd, gnutls_datum_t *ret_text)
{
    unsigned char *text = kv_alloc(FILE_BYTES_MAX + 1);
    if (text == NULL) {
        return KV_E_NO_MEMORY;
    }
    size_t len = 0;
    ssize_t n = 1;
    while (len <= FILE_BYTES_MAX && n > 0) {
        n = read(fd, text + len, FILE_BYTES_MAX + 1 - len);
        len += n > 0 ? (size_t)n : 0;
    }
    *ret_text = (gnutls_datum_t){.data = text, .size = (unsigned)len};
    if (n < 0 || len == 0 || len > FILE_BYTES_MAX) {
        wipe(ret_text);
        return KV_E_IO;
    }
    text[len] = '\0';
    return KV_OK;
}

/* With a NUL behind it, which is not counted. */
static KV_RC read_file(const struct kv_tls_conf *conf, int which, struct kv_errinfo *info, gnutls_datum_t *ret_text)
{
    struct stat file;
    int fd = open(file_of(conf, which), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0) {
        return kv_fail(info, KV_E_CONFIG, "cannot read the file of %s: %s", keys[which], strerror(errno));
    }
    if (which == KEY && fstat(fd, &file) == 0 && (file.st_mode & 0177) != 0) {
        kv_log(KV_LOG_WARN, "http", "tls-key-is-open-to-others", KV_FT("key", keys[which]),
               KV_FT("text", "others than its owner may read or change the key: chmod 0600"));
    }
    enum kv_err rc = read_all(fd, ret_text);
    close(fd);
    return rc == KV_E_IO
               ? kv_fail(info, KV_E_CONFIG, "the file of %s is empty or over %d bytes", keys[which], FILE_BYTES_MAX)
               : rc;
}

static void material_free(struct material *material)
{
    if (material == NULL) {
        return;
    }
    for (unsigned i = 0; i < material->chain_len; i++) {
        gnutls_x509_crt_deinit(material->chain[i]);
    }
    if (material->key != NULL) {
        gnutls_x509_privkey_deinit(material->key);
    }
    if (material->trust != NULL) {
        gnutls_x509_trust_list_deinit(material->trust, 1);
    }
    kv_free(material);
}

static KV_RC load_chain(const struct kv_tls_conf *conf, struct material *material, struct kv_errinfo *info)
{
    gnutls_datum_t text = {0};
    KV_TRY(read_file(conf, CERT, info, &text));
    unsigned count = CHAIN_MAX;
    int n = gnutls_x509_crt_list_import(material->chain, &count, &text, GNUTLS_X509_FMT_PEM,
                                        GNUTLS_X509_CRT_LIST_IMPORT_FAIL_IF_EXCEED);
    wipe(&text);
    if (n <= 0) {
        return kv_fail(info, KV_E_CONFIG,
                       "the file of http.tls.cert_file holds no certificates in PEM, or more than %d", CHAIN_MAX);
    }
    material->chain_len = (unsigned)n;
    return KV_OK;
}

static KV_RC load_key(const struct kv_tls_conf *conf, struct material *material, struct kv_errinfo *info)
{
    gnutls_datum_t text = {0};
    KV_TRY(read_file(conf, KEY, info, &text));
    int rc = gnutls_x509_privkey_init(&material->key);
    if (rc == 0) {
        rc = gnutls_x509_privkey_import2(material->key, &text, GNUTLS_X509_FMT_PEM, NULL, 0);
    }
    wipe(&text);
    if (rc != 0) {
        return kv_fail(info, KV_E_CONFIG, "the file of http.tls.key_file holds no key in PEM without a password");
    }
    unsigned char mine[64], theirs[64];
    size_t mine_len = sizeof mine, theirs_len = sizeof theirs;
    bool match = gnutls_x509_privkey_get_key_id(material->key, GNUTLS_KEYID_USE_SHA256, mine, &mine_len) == 0 &&
                 gnutls_x509_crt_get_key_id(material->chain[0], GNUTLS_KEYID_USE_SHA256, theirs, &theirs_len) == 0 &&
                 mine_len == theirs_len && memcmp(mine, theirs, mine_len) == 0;
    return match ? KV_OK
                 : kv_fail(info, KV_E_CONFIG,
                           "http.tls.key_file is not the key of the first certificate in http.tls.cert_file");
}

static KV_RC load_trust(const struct kv_tls_conf *conf, struct material *material, struct kv_errinfo *info)
{
    gnutls_datum_t text = {0};
    if (conf->client_ca_file == NULL || conf->client_ca_file[0] == '\0') {
        return KV_OK;
    }
    KV_TRY(read_file(conf, CA, info, &text));
    int n = gnutls_x509_trust_list_init(&material->trust, 0);
    if (n == 0) {
        n = gnutls_x509_trust_list_add_trust_mem(material->trust, &text, NULL, GNUTLS_X509_FMT_PEM, 0, 0);
    }
    wipe(&text);
    return n > 0 ? KV_OK
                 : kv_fail(info, KV_E_CONFIG, "the file of http.tls.client_ca_file holds no certificates in PEM");
}

static KV_RC load(const struct kv_tls_conf *conf, struct kv_errinfo *info, struct material **ret_material)
{
    struct material *material = kv_alloc(sizeof *material);
    if (material == NULL) {
        return KV_E_NO_MEMORY;
    }
    for (int i = 0; i < FILES; i++) { /* before they are read: what changes meanwhile is read again */
        look_at(file_of(conf, i), &material->seen[i]);
    }
    enum kv_err rc = load_chain(conf, material, info);
    if (rc == KV_OK) {
        rc = load_key(conf, material, info);
    }
    if (rc == KV_OK) {
        rc = load_trust(conf, material, info);
    }
    if (rc != KV_OK) {
        material_free(material);
        return rc;
    }
    *ret_material = material;
    return KV_OK;
}

/* --- life -------------------------------------------------------------------------------------------------------- */

static KV_RC keep_ca(struct kv_tls *tls, struct kv_errinfo *info)
{
    gnutls_datum_t text = {0};
    if (tls->material->trust == NULL) {
        return KV_OK;
    }
    KV_TRY(read_file(&tls->conf, CA, info, &text));
    tls->ca_pem = (char *)text.data;
    return KV_OK;
}

enum kv_err kv_tls_new(const struct kv_tls_conf *conf, const struct kv_env *env, struct kv_errinfo *info,
                       struct kv_tls **ret_tls)
{
    if (conf->key_file == NULL || conf->key_file[0] == '\0') {
        return kv_fail(info, KV_E_CONFIG, "http.tls.cert_file is set and http.tls.key_file is not: set both");
    }
    struct kv_tls *tls = kv_alloc(sizeof *tls);
    if (tls == NULL) {
        return KV_E_NO_MEMORY;
    }
    tls->conf = *conf;
    tls->env = env;
    tls->look_ns = kv_now_ns(env) + conf->reload_ms * KV_MS_NS;
    pthread_mutex_init(&tls->mutex, NULL);
    enum kv_err rc = load(conf, info, &tls->material);
    if (rc == KV_OK) {
        rc = keep_ca(tls, info);
    }
    if (rc != KV_OK) {
        kv_tls_free(tls);
        return rc;
    }
    atomic_store(&serving, tls);
    *ret_tls = tls;
    return KV_OK;
}

void kv_tls_free(struct kv_tls *tls)
{
    if (tls == NULL) {
        return;
    }
    struct kv_tls *mine = tls;
    atomic_compare_exchange_strong(&serving, &mine, NULL);
    material_free(tls->material);
    pthread_mutex_destroy(&tls->mutex);
    kv_free(tls->ca_pem);
    kv_free(tls);
}

static bool changed(const struct kv_tls *tls)
{
    for (int i = 0; i < FILES; i++) {
        struct seen now;
        const struct seen *then = &tls->material->seen[i];
        if (look_at(file_of(&tls->conf, i), &now) &&
            (now.inode != then->inode || now.size != then->size || now.modified.tv_sec != then->modified.tv_sec ||
             now.modified.tv_nsec != then->modified.tv_nsec)) {
            return true;
        }
    }
    return false;
}

void kv_tls_look(struct kv_tls *tls, bool now)
{
    struct material *fresh = NULL;
    struct kv_errinfo info = {0};
    uint64_t time_ns = kv_now_ns(tls->env);
    if (!now && time_ns < tls->look_ns) {
        return;
    }
    tls->look_ns = time_ns + tls->conf.reload_ms * KV_MS_NS;
    if (!now && !changed(tls)) {
        return;
    }
    enum kv_err rc = load(&tls->conf, &info, &fresh);
    if (rc != KV_OK) {
        kv_log(KV_LOG_ERROR, "http", "tls-not-reloaded", KV_FRC(rc), KV_FT("text", info.text));
        return;
    }
    pthread_mutex_lock(&tls->mutex);
    struct material *old = tls->material;
    tls->material = fresh;
    pthread_mutex_unlock(&tls->mutex);
    material_free(old);
    kv_log(KV_LOG_INFO, "http", "tls-reloaded", KV_FU("certificates", fresh->chain_len));
}

/* --- for the library --------------------------------------------------------------------------------------------- */

const char *kv_tls_priorities(const struct kv_tls *tls)
{
    return tls->conf.only_1_3 ? "NORMAL:-VERS-ALL:+VERS-TLS1.3"
                              : "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2:-CIPHER-ALL:"
                                "+AES-256-GCM:+AES-128-GCM:+CHACHA20-POLY1305:"
                                "-KX-ALL:+ECDHE-ECDSA:+ECDHE-RSA";
}

const char *kv_tls_client_ca(const struct kv_tls *tls)
{
    return tls->ca_pem;
}

static int copy_chain(const struct material *material, gnutls_pcert_st **ret_certs)
{
    gnutls_pcert_st *certs = gnutls_calloc(material->chain_len, sizeof *certs);
    if (certs == NULL) {
        return GNUTLS_E_MEMORY_ERROR;
    }
    for (unsigned i = 0; i < material->chain_len; i++) {
        int rc = gnutls_pcert_import_x509(&certs[i], material->chain[i], 0);
        if (rc != 0) {
            while (i-- > 0) {
                gnutls_pcert_deinit(&certs[i]);
            }
            gnutls_free(certs);
            return rc;
        }
    }
    *ret_certs = certs;
    return 0;
}

static int copy_key(const struct material *material, gnutls_privkey_t *ret_key)
{
    gnutls_privkey_t key = NULL;
    int rc = gnutls_privkey_init(&key);
    if (rc == 0) {
        rc = gnutls_privkey_import_x509(key, material->key, GNUTLS_PRIVKEY_IMPORT_COPY);
    }
    if (rc != 0 && key != NULL) {
        gnutls_privkey_deinit(key);
        return rc;
    }
    *ret_key = key;
    return rc;
}

/* Copies, which GnuTLS frees: what is in force may be replaced during a handshake. */
static int retrieve(gnutls_session_t session, const struct gnutls_cert_retr_st *about, gnutls_pcert_st **certs,
                    unsigned *certs_len, gnutls_ocsp_data_st **ocsp, unsigned *ocsp_len, gnutls_privkey_t *key,
                    unsigned *flags)
{
    struct kv_tls *tls = atomic_load(&serving);
    (void)session;
    (void)about;
    if (tls == NULL) {
        return GNUTLS_E_NO_CERTIFICATE_FOUND;
    }
    pthread_mutex_lock(&tls->mutex);
    int rc = copy_key(tls->material, key);
    if (rc == 0) {
        rc = copy_chain(tls->material, certs);
        if (rc != 0) {
            gnutls_privkey_deinit(*key);
        }
    }
    *certs_len = tls->material->chain_len;
    pthread_mutex_unlock(&tls->mutex);
    *ocsp = NULL;
    *ocsp_len = 0;
    *flags = GNUTLS_CERT_RETR_DEINIT_ALL;
    return rc;
}

void *kv_tls_retrieve(void)
{
    union { /* the library's options take object pointers only */
        gnutls_certificate_retrieve_function3 *function;
        void *object;
    } as = {.function = retrieve};
    return as.object;
}

static bool verify(const struct material *material, const gnutls_datum_t *peers, unsigned count)
{
    gnutls_x509_crt_t chain[CHAIN_MAX];
    unsigned taken = 0, status = GNUTLS_CERT_INVALID;
    bool good = count > 0 && count <= CHAIN_MAX;
    for (; good && taken < count; taken++) {
        good = gnutls_x509_crt_init(&chain[taken]) == 0;
        if (good && gnutls_x509_crt_import(chain[taken], &peers[taken], GNUTLS_X509_FMT_DER) != 0) {
            gnutls_x509_crt_deinit(chain[taken]);
            good = false;
        }
        if (!good) {
            break;
        }
    }
    gnutls_typed_vdata_st purpose = {.type = GNUTLS_DT_KEY_PURPOSE_OID,
                                     .data = (unsigned char *)(uintptr_t)GNUTLS_KP_TLS_WWW_CLIENT};
    good = good &&
           gnutls_x509_trust_list_verify_crt2(material->trust, chain, taken, &purpose, 1, 0, &status, NULL) == 0 &&
           status == 0;
    for (unsigned i = 0; i < taken; i++) {
        gnutls_x509_crt_deinit(chain[i]);
    }
    return good;
}

bool kv_tls_client_ok(struct kv_tls *tls, void *session)
{
    unsigned count = 0;
    pthread_mutex_lock(&tls->mutex);
    bool good = tls->material->trust == NULL;
    if (!good && session != NULL) {
        const gnutls_datum_t *peers = gnutls_certificate_get_peers(session, &count);
        good = peers != NULL && verify(tls->material, peers, count);
    }
    pthread_mutex_unlock(&tls->mutex);
    return good;
}
