/* The places that the configuration names. Must never open a file of secrets: its mode is enough. */
#include "server/cli/doctor.h"

#include "dataplane/crypto/selftest.h"
#include "dataplane/crypto/x509.h"
#include "dataplane/io/httpc.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#define BLOCK 4096
#define TLS_DAYS 21 /* less is time to look why nobody renewed it */
#define MIB (UINT64_C(1) << 20)

static void in_state(const struct doctor *doctor, const char *wanted, const char *name, char ret_path[PATH_MAX])
{
    bool given = wanted[0] != '\0';
    snprintf(ret_path, PATH_MAX, "%.1000s%s", given ? wanted : doctor->conf->state_dir, given ? "" : name);
}

/* The folder itself or, where it is not there yet, the nearest one above it that is. */
static void nearest(const char *path, char ret_folder[PATH_MAX])
{
    snprintf(ret_folder, PATH_MAX, "%.2000s", path);
    while (access(ret_folder, F_OK) != 0 && strrchr(ret_folder, '/') != NULL) {
        char *slash = strrchr(ret_folder, '/');
        slash[slash == ret_folder ? 1 : 0] = '\0';
    }
    if (access(ret_folder, F_OK) != 0) {
        snprintf(ret_folder, PATH_MAX, ".");
    }
}

/* --- the nvme tier -------------------------------------------------------------------------------------------------
 */

/* Whether files there can be read and written past the page cache; -1: no file can be made. */
static int takes_direct(const char *folder)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%.2000s/.kvrun-doctor-XXXXXX", folder);
    int fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0) {
        return -1;
    }
    close(fd);
    static _Alignas(BLOCK) const char block[BLOCK];
    fd = open(path, O_RDWR | O_DIRECT | O_CLOEXEC);
    bool direct = fd >= 0 && write(fd, block, BLOCK) == BLOCK;
    if (fd >= 0) {
        close(fd);
    }
    unlink(path);
    return direct ? 1 : 0;
}

static void check_nvme(struct doctor *doctor)
{
    char path[PATH_MAX], folder[PATH_MAX];
    struct statvfs disk;
    if (doctor->conf->nvme_bytes == 0) {
        doctor_say(doctor, "nvme", DOCTOR_OK, NULL, "no nvme tier is configured");
        return;
    }
    in_state(doctor, doctor->conf->nvme_path, "/nvme", path);
    nearest(path, folder);
    int direct = takes_direct(folder);
    if (direct < 0) {
        doctor_say(doctor, "nvme", DOCTOR_FAIL, "give tiers.nvme.path a folder that this user may write",
                   "no file can be made in %.200s: %s", folder, strerror(errno));
        return;
    }
    doctor_say(doctor, "nvme_direct", direct == 1 ? DOCTOR_OK : DOCTOR_WARN,
               "put tiers.nvme.path on ext4 or xfs of a local drive", "%.200s: %s", folder,
               direct == 1 ? "O_DIRECT works" : "no O_DIRECT there: blocks go through the page cache");
    uint64_t available = statvfs(folder, &disk) == 0 ? (uint64_t)disk.f_bavail * disk.f_frsize : 0;
    bool fits = available >= doctor->conf->nvme_bytes || access(path, F_OK) == 0;
    doctor_say(doctor, "nvme_space", fits ? DOCTOR_OK : DOCTOR_FAIL, "less tiers.nvme.bytes, or another folder",
               "%" PRIu64 " MiB are free, tiers.nvme.bytes is %" PRIu64 " MiB", available / MIB,
               doctor->conf->nvme_bytes / MIB);
}

/* --- the root of erasure -------------------------------------------------------------------------------------------
 */

bool doctor_lies_in(const char *path, const char *folder)
{
    char inner[PATH_MAX], outer[PATH_MAX], existing[PATH_MAX];
    nearest(path, existing);
    if (realpath(folder, outer) == NULL) { /* not made yet: what is written is all there is */
        snprintf(inner, sizeof inner, "%.2000s", path);
        snprintf(outer, sizeof outer, "%.2000s", folder);
    } else if (realpath(existing, inner) == NULL) {
        return false;
    }
    size_t len = strlen(outer);
    return strncmp(inner, outer, len) == 0 && (inner[len] == '/' || inner[len] == '\0' || len == 1);
}

bool doctor_same_device(const char *a, const char *b)
{
    struct stat one, two;
    char first[PATH_MAX], second[PATH_MAX];
    nearest(a, first);
    nearest(b, second);
    return stat(first, &one) == 0 && stat(second, &two) == 0 && one.st_dev == two.st_dev;
}

void doctor_root_place(struct doctor *doctor, const char *root_file)
{
    static const char fix[] = "set root.path to a file on a mount of its own that no backup or snapshot takes";
    const char *state = doctor->conf->state_dir;
    char data[PATH_MAX];
    snprintf(data, sizeof data, "%.1000s/data", state);
    if (doctor_lies_in(root_file, data)) {
        doctor_say(doctor, "root_place", DOCTOR_FAIL, fix,
                   "the root of erasure lies in the database's folder: every backup of it could undo an erasure");
    } else if (doctor_lies_in(root_file, state)) {
        doctor_say(doctor, "root_place", DOCTOR_WARN, fix,
                   "the root of erasure lies in state.dir: a backup of that folder must leave it out (limit L7)");
    } else if (doctor_same_device(root_file, state)) {
        doctor_say(doctor, "root_place", DOCTOR_WARN, fix,
                   "the root of erasure is on the file system of state.dir: a snapshot takes both (limit L7)");
    } else {
        doctor_say(doctor, "root_place", DOCTOR_OK, NULL, "the root of erasure is on a file system of its own");
    }
}

/* A snapshot of one file system that has both would take the witness back together with what it is a witness of. */
void doctor_anchor_place(struct doctor *doctor, const char *anchor, const char *root_file)
{
    static const char fix[] = "set anchor.file to a file on another host's mount, at least not on that of the database "
                              "or the root";
    if (anchor[0] == '\0') {
        doctor_say(doctor, "anchor", DOCTOR_OK, NULL,
                   "no anchor.file: a database put back together with its root is not noticed (limit L7)");
    } else if (access(anchor, R_OK | W_OK) != 0) {
        doctor_say(doctor, "anchor", DOCTOR_FAIL, "mount what it lies on; for a new anchor make an empty file there",
                   "%.200s cannot be read and written: %s", anchor, strerror(errno));
    } else if (root_file != NULL && doctor_same_device(anchor, root_file)) {
        doctor_say(doctor, "anchor", DOCTOR_WARN, fix, "the anchor is on the file system of the root of erasure");
    } else if (doctor_same_device(anchor, doctor->conf->state_dir)) {
        doctor_say(doctor, "anchor", DOCTOR_WARN, fix, "the anchor is on the file system of state.dir");
    } else {
        doctor_say(doctor, "anchor", DOCTOR_OK, NULL, "the anchor is on a file system of its own");
    }
}

/* The token itself is not spoken to: a wrong PIN counts, and a server may have it open. */
static void check_token(struct doctor *doctor)
{
    const struct kv_conf *conf = doctor->conf;
    bool module = access(conf->root_pkcs11_module, R_OK) == 0;
    doctor_say(doctor, "root_module", module ? DOCTOR_OK : DOCTOR_FAIL,
               "install the token's library and set root.pkcs11.module to it", "%.200s %s", conf->root_pkcs11_module,
               module ? "is there" : "cannot be read");
    bool pin = access(conf->root_pkcs11_pin_file, R_OK) == 0;
    if (!pin) {
        doctor_say(doctor, "root_pin", DOCTOR_FAIL,
                   "write the token's PIN into a file of mode 0600 and set "
                   "root.pkcs11.pin_file to it",
                   "%.200s cannot be read", conf->root_pkcs11_pin_file);
    }
    doctor_secret_file(doctor, "root_pin", conf->root_pkcs11_pin_file);
}

/* Nor the key service: what it says of a token depends on when it is asked. */
static void check_key_service(struct doctor *doctor)
{
    const char *file = doctor->conf->root_transit_token_file;
    if (access(file, R_OK) != 0) {
        doctor_say(doctor, "root_token", DOCTOR_FAIL,
                   "write an access token into a file of mode 0600 and set root.transit.token_file to it",
                   "%.200s cannot be read", file);
    }
    doctor_secret_file(doctor, "root_token", file);
}

static void check_anchor(struct doctor *doctor)
{
    char path[PATH_MAX];
    in_state(doctor, doctor->conf->root_path, "/root", path);
    bool file = strcmp(doctor->conf->root_provider, "file") == 0;
    doctor_anchor_place(doctor, doctor->conf->anchor_file, file ? path : NULL);
}

static void check_root(struct doctor *doctor)
{
    char path[PATH_MAX];
    if (strcmp(doctor->conf->root_provider, "memory") == 0) {
        doctor_say(doctor, "root_place", DOCTOR_WARN, "root.provider=file, unless this is to be forgotten",
                   "root.provider is memory: every session is lost when the server ends");
        return;
    }
    if (strcmp(doctor->conf->root_provider, "pkcs11") == 0) {
        check_token(doctor);
        return;
    }
    if (strcmp(doctor->conf->root_provider, "transit") == 0) {
        check_key_service(doctor);
        return;
    }
    in_state(doctor, doctor->conf->root_path, "/root", path);
    doctor_root_place(doctor, path);
    doctor_secret_file(doctor, "root_file", path);
}

/* --- files with secrets ---------------------------------------------------------------------------------------------
 */

void doctor_secret_file(struct doctor *doctor, const char *check, const char *path)
{
    struct stat st;
    char fix[320];
    if (stat(path, &st) != 0) {
        return; /* not made yet, or not for us to see */
    }
    snprintf(fix, sizeof fix, "chmod 600 %.250s", path);
    if (S_ISREG(st.st_mode) && (st.st_mode & 077) != 0) {
        doctor_say(doctor, check, DOCTOR_FAIL, fix, "others may read %.200s (mode %03o)", path,
                   (unsigned)(st.st_mode & 0777));
    } else {
        doctor_say(doctor, check, DOCTOR_OK, NULL, "only its owner reads %.200s", path);
    }
}

static void check_secrets(struct doctor *doctor)
{
    char path[PATH_MAX];
    const char *token = getenv("KVRUN_TOKEN_FILE"), *url = getenv("KVRUN_DB_URL_FILE");
    snprintf(path, sizeof path, "%.1000s/operator.key", doctor->conf->state_dir);
    doctor_secret_file(doctor, "operator_key", path);
    if (token != NULL && access(token, F_OK) != 0) {
        doctor_say(doctor, "token_file", DOCTOR_FAIL, "make the file, or unset KVRUN_TOKEN_FILE",
                   "KVRUN_TOKEN_FILE names %.200s: %s", token, strerror(errno));
    } else if (token != NULL) {
        doctor_secret_file(doctor, "token_file", token);
    }
    if (url != NULL) {
        doctor_secret_file(doctor, "db_url_file", url);
    }
}

void doctor_certificate(struct doctor *doctor, int64_t end_s, int64_t now_s)
{
    static const char fix[] = "renew it; the server takes a new file without a restart";
    long long days = (long long)((end_s - now_s) / 86400);
    if (end_s <= now_s) {
        doctor_say(doctor, "tls_cert", DOCTOR_FAIL, fix, "the certificate ran out %lld days ago", -days);
    } else {
        doctor_say(doctor, "tls_cert", days < TLS_DAYS ? DOCTOR_WARN : DOCTOR_OK, fix,
                   "the certificate holds for %lld days", days);
    }
}

static void check_tls(struct doctor *doctor)
{
    const char *file = doctor->conf->tls_cert_file;
    int64_t end = 0;
    if (file[0] == '\0') {
        return;
    }
    if (kv_x509_not_after(file, &end) != KV_OK) {
        doctor_say(doctor, "tls_cert", DOCTOR_FAIL, "point http.tls.cert_file at a certificate chain in PEM",
                   "%.200s holds no certificate that can be read", file);
        return;
    }
    doctor_certificate(doctor, end, (int64_t)time(NULL));
    doctor_secret_file(doctor, "tls_key", doctor->conf->tls_key_file);
}

/* --- the network ----------------------------------------------------------------------------------------------------
 */

static bool answers(const char *address)
{
    struct kv_errinfo info = {0};
    struct kv_httpc *client = NULL;
    struct kv_buf body;
    int status = 0;
    struct kv_httpc_request request = {.method = "GET", .path = "/livez", .accept = "*/*", .timeout_ms = 2000};
    kv_buf_init(&body, 65536);
    bool ok = kv_httpc_new(address, &info, &client) == KV_OK &&
              kv_httpc_do(client, &request, &info, &status, &body) == KV_OK && status == 200;
    kv_httpc_free(client);
    kv_buf_done(&body);
    return ok;
}

static bool can_bind(const char *text, int *ret_error)
{
    char host[64];
    const char *colon = strrchr(text, ':');
    struct sockaddr_in at = {.sin_family = AF_INET};
    if (colon == NULL || (size_t)(colon - text) >= sizeof host) {
        *ret_error = EINVAL;
        return false;
    }
    snprintf(host, sizeof host, "%.*s", (int)(colon - text), text);
    at.sin_port = htons((uint16_t)strtoul(colon + 1, NULL, 10));
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool ok = fd >= 0 && inet_pton(AF_INET, host, &at.sin_addr) == 1 &&
              setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0 &&
              bind(fd, (struct sockaddr *)&at, sizeof at) == 0;
    *ret_error = errno;
    if (fd >= 0) {
        close(fd);
    }
    return ok;
}

static void check_port(struct doctor *doctor, const char *check, const char *address, bool running)
{
    int error = 0;
    if (can_bind(address, &error)) {
        doctor_say(doctor, check, DOCTOR_OK, NULL, "%.60s is free", address);
    } else if (error == EADDRINUSE && running) {
        doctor_say(doctor, check, DOCTOR_OK, NULL, "%.60s is in use, and a server runs", address);
    } else if (error == EADDRINUSE) {
        doctor_say(doctor, check, DOCTOR_FAIL, "end what listens there (ss -ltnp), or choose another port",
                   "%.60s is in use by something else", address);
    } else {
        doctor_say(doctor, check, DOCTOR_FAIL, "write an address of this machine, such as 127.0.0.1:7433", "%.60s: %s",
                   address, strerror(error));
    }
}

static void check_network(struct doctor *doctor)
{
    bool running = answers(doctor->conf->http_admin_listen);
    doctor_say(doctor, "server", running ? DOCTOR_OK : DOCTOR_WARN, "start it: kvrun serve, or kvrun dev",
               running ? "alive on %.60s" : "none answers on %.60s", doctor->conf->http_admin_listen);
    check_port(doctor, "port", doctor->conf->http_listen, running);
    check_port(doctor, "admin_port", doctor->conf->http_admin_listen, running);
}

void doctor_places(struct doctor *doctor)
{
    doctor_say(doctor, "libraries", DOCTOR_OK, NULL, "OpenSSL %.60s, %.60s", kv_crypto_version(), kv_httpc_version());
    check_nvme(doctor);
    check_root(doctor);
    check_anchor(doctor);
    check_secrets(doctor);
    check_tls(doctor);
    check_network(doctor);
}
