/*
 * See verify.h. Must never print a claim that it did not verify, nor a claim without its limits.
 */
#include "audit/verify.h"

#include "audit/certificate_int.h"
#include "audit/upgrade.h"
#include "dataplane/base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define KEY_FILE_BYTES_MAX 65536u
#define PATH_BYTES_MAX 4096u

struct keys {
    uint8_t cert[KV_CERT_JWKS_KEYS_MAX][32];
    size_t cert_count;
    struct kv_cert_keys chosen; /* the log's key, and the certificate key that fits */
};

/* What was found of one file, and of the two together. */
struct finding {
    struct kv_cert_report report;
    bool paired, follows;
    char detail[160];
};

/* The whole file, at most `max` bytes; one byte more is left in, so that a check of the length still finds it too long.
 */
static bool read_file(const char *path, size_t max, struct kv_buf *buf)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        (void)fprintf(stderr, "%s: cannot open %s: %s\n", program_invocation_short_name, path, strerror(errno));
        return false;
    }
    uint8_t piece[4096];
    ssize_t got = 0;
    while (buf->len <= max && (got = read(fd, piece, sizeof(piece))) > 0) {
        kv_buf_append(buf, piece, (size_t)got);
    }
    (void)close(fd);
    if (got < 0 || kv_buf_check(buf) != KV_OK) {
        (void)fprintf(stderr, "%s: cannot read %s\n", program_invocation_short_name, path);
        return false;
    }
    return true;
}

static bool join_path(const char *folder, const char *name, char path[PATH_BYTES_MAX])
{
    int len = snprintf(path, PATH_BYTES_MAX, "%s/%s", folder, name);
    return len > 0 && (size_t)len < PATH_BYTES_MAX;
}

static bool read_key_file(const char *folder, const char *name, struct kv_buf *buf)
{
    char path[PATH_BYTES_MAX];
    kv_buf_init(buf, KEY_FILE_BYTES_MAX + 8192);
    return join_path(folder, name, path) && read_file(path, KEY_FILE_BYTES_MAX, buf) && buf->len > 0 &&
           buf->len <= KEY_FILE_BYTES_MAX;
}

static bool load_keys(const char *folder, struct keys *keys)
{
    struct kv_errinfo info = {.text = ""};
    struct kv_buf jwks KV_CLEANUP(kv_buf_done) = {.data = NULL};
    struct kv_buf vkey KV_CLEANUP(kv_buf_done) = {.data = NULL};
    if (!read_key_file(folder, "jwks.json", &jwks) || !read_key_file(folder, "log.vkey", &vkey)) {
        (void)fprintf(stderr, "%s: no usable jwks.json and log.vkey in %s\n", program_invocation_short_name, folder);
        return false;
    }
    if (kv_cert_jwks_parse(kv_buf_bytes(&jwks), &info, keys->cert, KV_CERT_JWKS_KEYS_MAX, &keys->cert_count) != KV_OK ||
        keys->cert_count == 0) {
        (void)fprintf(stderr, "%s: jwks.json: %s\n", program_invocation_short_name,
                      info.text[0] == '\0' ? "no usable key" : info.text);
        return false;
    }
    char *text = (char *)vkey.data;
    if (text[vkey.len - 1] == '\n') {
        text[vkey.len - 1] = '\0';
    }
    if (strlen(text) + 1 < vkey.len ||
        kv_checkpoint_vkey_parse(text, keys->chosen.log_origin_prefix, keys->chosen.log_public) != KV_OK) {
        (void)fprintf(stderr, "%s: log.vkey is not one Ed25519 verifier key\n", program_invocation_short_name);
        return false;
    }
    return true;
}

/* The key that the header names, or the last one tried. */
static enum kv_err verify_with_any(struct kv_bytes bundle, struct keys *keys, struct kv_cert_report *report)
{
    enum kv_err rc = KV_E_INTERNAL;
    for (size_t i = 0; i < keys->cert_count; i++) {
        if (i > 0) {
            kv_buf_done(&report->payload);
        }
        memcpy(keys->chosen.cert_public, keys->cert[i], sizeof(keys->chosen.cert_public));
        rc = kv_cert_verify(bundle, &keys->chosen, report);
        if ((rc != KV_OK && rc != KV_E_TAMPERED) || report->checks[KV_CHECK_HEADER].ok ||
            !report->checks[KV_CHECK_FORM].ok) {
            break;
        }
    }
    return rc;
}

static void print_keys(const struct keys *keys)
{
    char kid[44] = "?";
    uint8_t id[4] = {0};
    char hex[9];
    for (size_t i = 0; i < keys->cert_count; i++) {
        if (kv_cert_kid(keys->cert[i], kid) == KV_OK) {
            (void)printf("certificate key  %s\n", kid);
        }
    }
    if (kv_checkpoint_key_id(keys->chosen.log_origin_prefix, keys->chosen.log_public, id) == KV_OK) {
        kv_hex_encode(id, sizeof(id), hex);
        (void)printf("log key          %s+%s\n", keys->chosen.log_origin_prefix, hex);
    }
}

static KV_RC read_claims(const struct kv_cert_report *report, struct kv_cert_claims *ret_claims)
{
    struct kv_bytes payload = kv_buf_bytes(&report->payload);
    return report->upgrade ? kv_upgrade_claims_parse(payload, NULL, ret_claims)
                           : kv_cert_claims_parse(payload, NULL, ret_claims);
}

static void print_statement(const struct kv_cert_claims *claims)
{
    (void)printf("\n%s to %s, tenant %s\n", claims->statement, claims->certificate, claims->tenant);
    (void)printf("Ciphertext gone (%s, stated at %s):\n  %s\n", claims->assurance, claims->issued_at, kv_upgrade_claim);
    if (claims->lifts) {
        (void)printf("Limit lifted: " KV_UPGRADE_LIFTS "\n");
    }
}

static void print_certificate(const struct kv_cert_claims *claims)
{
    if (claims->session[0] != '\0') {
        (void)printf("\n%s of %s, tenant %s\n", claims->certificate, claims->session, claims->tenant);
    } else {
        (void)printf("\n%s of %" PRIu64 " sessions, all of tenant %s\n", claims->certificate, claims->sessions,
                     claims->tenant);
    }
    (void)printf("Claim (%s, destroyed at %s):\n  %s\n", claims->assurance, claims->destroyed_at, claims->words->claim);
}

static void print_limits(const struct kv_cert_claims *claims)
{
    (void)printf("Limits:\n");
    for (size_t i = 0; i < claims->limit_count; i++) {
        (void)printf("  %s: %s\n", claims->limits[i], kv_limit_text(claims->limits[i]));
    }
    (void)printf("\n");
}

static void print_lines(const struct keys *keys, const struct finding *finding)
{
    const struct kv_cert_report *report = &finding->report;
    struct kv_cert_claims claims;
    print_keys(keys);
    for (unsigned i = 0; i < KV_CHECK_COUNT; i++) {
        (void)printf("%-4s %-10s %s\n", report->checks[i].ok ? "ok" : "FAIL", kv_cert_check_name((enum kv_cert_check)i),
                     report->checks[i].detail);
    }
    if (finding->paired) {
        (void)printf("%-4s %-10s %s\n", finding->follows ? "ok" : "FAIL", "follows", finding->detail);
    }
    if (report->ok && read_claims(report, &claims) == KV_OK) {
        (report->upgrade ? print_statement : print_certificate)(&claims);
        print_limits(&claims);
    }
    (void)printf("%s\n", report->ok ? "valid" : "not valid");
}

static void put_json_claim(struct kv_buf *out, const struct kv_cert_claims *claims)
{
    kv_buf_printf(out, ",\"certificate\":\"%s\",\"tenant\":\"%s\"", claims->certificate, claims->tenant);
    if (claims->session[0] != '\0') {
        kv_buf_printf(out, ",\"session\":\"%s\"", claims->session);
    } else {
        kv_buf_printf(out, ",\"sessions\":\"%" PRIu64 "\"", claims->sessions);
    }
    bool upgrade = claims->statement[0] != '\0';
    if (upgrade) {
        kv_buf_printf(out, ",\"statement\":\"%s\",\"ciphertext\":\"gone\"", claims->statement);
    } else {
        kv_buf_printf(out, ",\"destroyed_at\":\"%s\"", claims->destroyed_at);
    }
    kv_buf_printf(out, ",\"assurance\":\"%s\",\"claim\":", claims->assurance);
    kv_buf_json_string(out, upgrade ? kv_upgrade_claim : claims->words->claim);
    kv_buf_text(out, ",\"limits\":[");
    for (size_t i = 0; i < claims->limit_count; i++) {
        kv_buf_printf(out, "%s{\"code\":\"%s\",\"text\":", i == 0 ? "" : ",", claims->limits[i]);
        kv_buf_json_string(out, kv_limit_text(claims->limits[i]));
        kv_buf_text(out, "}");
    }
    kv_buf_text(out, "]");
}

static bool print_json(const struct finding *finding)
{
    const struct kv_cert_report *report = &finding->report;
    struct kv_cert_claims claims;
    struct kv_buf out KV_CLEANUP(kv_buf_done) = {.data = NULL};
    kv_buf_init(&out, 65536);
    kv_buf_printf(&out, "{\"valid\":%s,\"checks\":[", report->ok ? "true" : "false");
    for (unsigned i = 0; i < KV_CHECK_COUNT; i++) {
        kv_buf_printf(&out, "%s{\"id\":\"%s\",\"ok\":%s,\"detail\":", i == 0 ? "" : ",",
                      kv_cert_check_name((enum kv_cert_check)i), report->checks[i].ok ? "true" : "false");
        kv_buf_json_string(&out, report->checks[i].detail);
        kv_buf_text(&out, "}");
    }
    if (finding->paired) {
        kv_buf_printf(&out, ",{\"id\":\"follows\",\"ok\":%s,\"detail\":", finding->follows ? "true" : "false");
        kv_buf_json_string(&out, finding->detail);
        kv_buf_text(&out, "}");
    }
    kv_buf_text(&out, "]");
    if (report->ok && read_claims(report, &claims) == KV_OK) {
        put_json_claim(&out, &claims);
    }
    kv_buf_text(&out, "}\n");
    return kv_buf_check(&out) == KV_OK && fputs((const char *)out.data, stdout) >= 0;
}

/* False: it could not be checked at all. */
static bool verify_file(const char *path, struct keys *keys, struct kv_cert_report *ret_report)
{
    struct kv_buf bundle KV_CLEANUP(kv_buf_done) = {.data = NULL};
    kv_buf_init(&bundle, KV_CERT_BUNDLE_BYTES_MAX + 8192);
    if (!read_file(path, KV_CERT_BUNDLE_BYTES_MAX, &bundle)) {
        return false;
    }
    enum kv_err rc = verify_with_any(kv_buf_bytes(&bundle), keys, ret_report);
    if (rc != KV_OK && rc != KV_E_TAMPERED) {
        (void)fprintf(stderr, "%s: cannot verify: %s\n", program_invocation_short_name, kv_err_title(rc));
        return false;
    }
    return true;
}

static bool verify_pair(const struct kv_verify *options, struct keys *keys, struct finding *finding)
{
    struct kv_cert_report certificate = {.ok = false};
    if (!verify_file(options->certificate, keys, &certificate)) {
        return false;
    }
    finding->paired = true;
    finding->follows = kv_upgrade_follows(&finding->report, &certificate, finding->detail);
    finding->report.ok = finding->report.ok && finding->follows;
    kv_buf_done(&certificate.payload);
    return true;
}

static int verify(const struct kv_verify *options, const char *folder)
{
    struct keys keys = {.cert_count = 0};
    struct finding finding = {.paired = false};
    if (!load_keys(folder, &keys) || !verify_file(options->file, &keys, &finding.report)) {
        return KV_VERIFY_UNREADABLE;
    }
    bool printed = options->certificate == NULL || verify_pair(options, &keys, &finding);
    if (printed && options->json && !options->quiet) {
        printed = print_json(&finding);
    } else if (printed && !options->quiet) {
        print_lines(&keys, &finding);
    }
    kv_buf_done(&finding.report.payload);
    /* An answer that could not be written is no answer. */
    if (!printed || fflush(stdout) != 0) {
        return KV_VERIFY_UNREADABLE;
    }
    return finding.report.ok ? KV_VERIFY_VALID : KV_VERIFY_NOT_VALID;
}

int kv_verify_certificate(const struct kv_verify *options)
{
    char folder[PATH_BYTES_MAX] = ".";
    const char *slash = strrchr(options->file, '/');
    if (slash != NULL) {
        size_t len = slash == options->file ? 1 : (size_t)(slash - options->file);
        if (len >= sizeof(folder)) {
            (void)fprintf(stderr, "%s: the name of the file is too long\n", program_invocation_short_name);
            return KV_VERIFY_UNREADABLE;
        }
        memcpy(folder, options->file, len);
        folder[len] = '\0';
    }
    return verify(options, options->keys_folder != NULL ? options->keys_folder : folder);
}
