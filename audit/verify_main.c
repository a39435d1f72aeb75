/*
 * kv-verify: checks an erasure certificate offline. Links no server code. Must never print a claim that it did not
 * verify, nor a claim without its limits.
 */
#include "audit/certificate_int.h"
#include "dataplane/base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define EXIT_VALID 0
#define EXIT_NOT_VALID 1
#define EXIT_USAGE 2
#define KEY_FILE_BYTES_MAX 65536u
#define PATH_BYTES_MAX 4096u

struct options {
    const char *file, *keys_folder;
    bool json, quiet;
};

struct keys {
    uint8_t cert[KV_CERT_JWKS_KEYS_MAX][32];
    size_t cert_count;
    struct kv_cert_keys chosen; /* the log's key, and the certificate key that fits */
};

static int usage(void)
{
    (void)fputs(
        "usage: kv-verify FILE [--keys DIR] [--json] [-q]\n"
        "  FILE        the certificate bundle (tlog-proof)\n"
        "  --keys DIR  holds jwks.json and log.vkey, got from somewhere you trust; default: the folder of FILE\n"
        "  --json      one JSON object instead of lines\n"
        "  -q          no output\n"
        "exit status: 0 valid, 1 not valid, 2 wrong use or unreadable\n",
        stderr);
    return EXIT_USAGE;
}

static bool parse_options(int argc, char **argv, struct options *options)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            options->json = true;
        } else if (strcmp(argv[i], "-q") == 0) {
            options->quiet = true;
        } else if (strcmp(argv[i], "--keys") == 0 && i + 1 < argc) {
            options->keys_folder = argv[++i];
        } else if (argv[i][0] == '-' || options->file != NULL) {
            return false;
        } else {
            options->file = argv[i];
        }
    }
    return options->file != NULL;
}

/* The whole file, at most `max` bytes; one byte more is left in, so that a check of the length still finds it too long.
 */
static bool read_file(const char *path, size_t max, struct kv_buf *buf)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        (void)fprintf(stderr, "kv-verify: cannot open %s: %s\n", path, strerror(errno));
        return false;
    }
    uint8_t piece[4096];
    ssize_t got = 0;
    while (buf->len <= max && (got = read(fd, piece, sizeof(piece))) > 0) {
        kv_buf_append(buf, piece, (size_t)got);
    }
    (void)close(fd);
    if (got < 0 || kv_buf_check(buf) != KV_OK) {
        (void)fprintf(stderr, "kv-verify: cannot read %s\n", path);
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
        (void)fprintf(stderr, "kv-verify: no usable jwks.json and log.vkey in %s\n", folder);
        return false;
    }
    if (kv_cert_jwks_parse(kv_buf_bytes(&jwks), &info, keys->cert, KV_CERT_JWKS_KEYS_MAX, &keys->cert_count) != KV_OK ||
        keys->cert_count == 0) {
        (void)fprintf(stderr, "kv-verify: jwks.json: %s\n", info.text[0] == '\0' ? "no usable key" : info.text);
        return false;
    }
    char *text = (char *)vkey.data;
    if (text[vkey.len - 1] == '\n') {
        text[vkey.len - 1] = '\0';
    }
    if (strlen(text) + 1 < vkey.len ||
        kv_checkpoint_vkey_parse(text, keys->chosen.log_origin_prefix, keys->chosen.log_public) != KV_OK) {
        (void)fputs("kv-verify: log.vkey is not one Ed25519 verifier key\n", stderr);
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

static void print_claim(const struct kv_cert_claims *claims)
{
    (void)printf("\n%s of %s, tenant %s\n", claims->certificate, claims->session, claims->tenant);
    (void)printf("Claim (%s, destroyed at %s):\n  %s\n", claims->assurance, claims->destroyed_at, kv_cert_claim_text);
    (void)printf("Limits:\n");
    for (size_t i = 0; i < claims->limit_count; i++) {
        (void)printf("  %s: %s\n", claims->limits[i], kv_limit_text(claims->limits[i]));
    }
    (void)printf("\n");
}

static void print_lines(const struct keys *keys, const struct kv_cert_report *report)
{
    struct kv_cert_claims claims;
    print_keys(keys);
    for (unsigned i = 0; i < KV_CHECK_COUNT; i++) {
        (void)printf("%-4s %-10s %s\n", report->checks[i].ok ? "ok" : "FAIL", kv_cert_check_name((enum kv_cert_check)i),
                     report->checks[i].detail);
    }
    if (report->ok && kv_cert_claims_parse(kv_buf_bytes(&report->payload), NULL, &claims) == KV_OK) {
        print_claim(&claims);
    }
    (void)printf("%s\n", report->ok ? "valid" : "not valid");
}

static void put_json_claim(struct kv_buf *out, const struct kv_cert_claims *claims)
{
    kv_buf_printf(out, ",\"certificate\":\"%s\",\"tenant\":\"%s\",\"session\":\"%s\",\"destroyed_at\":\"%s\"",
                  claims->certificate, claims->tenant, claims->session, claims->destroyed_at);
    kv_buf_printf(out, ",\"assurance\":\"%s\",\"claim\":", claims->assurance);
    kv_buf_json_string(out, kv_cert_claim_text);
    kv_buf_text(out, ",\"limits\":[");
    for (size_t i = 0; i < claims->limit_count; i++) {
        kv_buf_printf(out, "%s{\"code\":\"%s\",\"text\":", i == 0 ? "" : ",", claims->limits[i]);
        kv_buf_json_string(out, kv_limit_text(claims->limits[i]));
        kv_buf_text(out, "}");
    }
    kv_buf_text(out, "]");
}

static bool print_json(const struct kv_cert_report *report)
{
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
    kv_buf_text(&out, "]");
    if (report->ok && kv_cert_claims_parse(kv_buf_bytes(&report->payload), NULL, &claims) == KV_OK) {
        put_json_claim(&out, &claims);
    }
    kv_buf_text(&out, "}\n");
    return kv_buf_check(&out) == KV_OK && fputs((const char *)out.data, stdout) >= 0;
}

static int verify(const struct options *options, const char *folder)
{
    struct keys keys = {.cert_count = 0};
    struct kv_cert_report report = {.ok = false};
    struct kv_buf bundle KV_CLEANUP(kv_buf_done) = {.data = NULL};
    kv_buf_init(&bundle, KV_CERT_BUNDLE_BYTES_MAX + 8192);
    if (!read_file(options->file, KV_CERT_BUNDLE_BYTES_MAX, &bundle) || !load_keys(folder, &keys)) {
        return EXIT_USAGE;
    }
    enum kv_err rc = verify_with_any(kv_buf_bytes(&bundle), &keys, &report);
    if (rc != KV_OK && rc != KV_E_TAMPERED) {
        (void)fprintf(stderr, "kv-verify: cannot verify: %s\n", kv_err_title(rc));
        return EXIT_USAGE;
    }
    bool printed = true;
    if (options->json && !options->quiet) {
        printed = print_json(&report);
    } else if (!options->quiet) {
        print_lines(&keys, &report);
    }
    kv_buf_done(&report.payload);
    /* An answer that could not be written is no answer. */
    if (!printed || fflush(stdout) != 0) {
        return EXIT_USAGE;
    }
    return report.ok ? EXIT_VALID : EXIT_NOT_VALID;
}

int main(int argc, char **argv)
{
    struct options options = {.file = NULL};
    char folder[PATH_BYTES_MAX] = ".";
    if (!parse_options(argc, argv, &options)) {
        return usage();
    }
    const char *slash = strrchr(options.file, '/');
    if (slash != NULL) {
        size_t len = slash == options.file ? 1 : (size_t)(slash - options.file);
        if (len >= sizeof(folder)) {
            return usage();
        }
        memcpy(folder, options.file, len);
        folder[len] = '\0';
    }
    return verify(&options, options.keys_folder != NULL ? options.keys_folder : folder);
}
