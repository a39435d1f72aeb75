/* Tampered bundles. A failure here is a broken test and ends the process. */
#include "tests/lib/cert_tamper.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct change {
    const char *check, *from, *to;
};

/* Changes of the payload, signed and logged. */
static const struct change payload_changes[] = {
    {NULL, "\"destroy_index\":\"9\"", "\"destroy_index\":\"8\""},
    {"canonical", "{\"assurance\"", "{ \"assurance\""},
    {"canonical", "\"E2\"", "\"\\u00452\""},
    {"canonical", "\"slot\":77", "\"slot\":77.0"},
    {"canonical", "\"slot\":77", "\"slot\":-0"},
    {"canonical", "\"slot\":77", "\"slot\":null"},
    {"canonical", "\"slot\":77", "\"slot\":9007199254740992"},
    {"canonical", "{\"assurance\"", "{\"assurance\":\"E4\",\"assurance\""},
    {"claims", "\"opened_after\":0", "\"opened_after\":1"},
    {"claims", "\"control_opened\":4", "\"control_opened\":3"},
    {"claims", "\"old_row_refused\":true", "\"old_row_refused\":false"},
    {"claims", "\"assurance\":\"E2\"", "\"assurance\":\"E4\""},
    {"claims", "\"technique\":\"CE\"", "\"technique\":\"other\""},
    {"covers", "\"destroy_index\":\"9\"", "\"destroy_index\":\"10\""},
    {"covers", "\"destroy_index\":\"9\"", "\"destroy_index\":\"18\""},
    {"covers", "audit/t_9f3a2c", "audit/t_9f3a2d"},
};

/* Changes of the finished text. */
static const struct change text_changes[] = {
    {"form", "tlog-proof@v1", "tlog-proof@v2"},
    {"form", "extra ", "Extra "},
    {"form", "extra ", "extra A"},
    {"form", "index 10", "index 010"},
    {"form", "index 10", "index +10"},
    {"form", "index 10\n", "index 10\nAAAA\n"},
    {"form", "index 10\n", "index 10\n\n"},
    {"form", "\n18\n", "\n18 \n"},
    {"form", "\n18\n", "\n18\r\n"},
    {"form", "\xe2\x80\x94 ", "- "},
    {"inclusion", "index 10", "index 11"},
    {"checkpoint", "\n18\n", "\n19\n"},
};

/* Headers of other shapes, signed and logged. */
static const struct change header_changes[] = {
    {NULL, "\"EdDSA\"", "\"Ed25519\""},     {"header", "\"EdDSA\"", "\"none\""},
    {"header", "\"EdDSA\"", "\"ES256\""},   {"header", "\"typ\"", "\"crit\":[],\"typ\""},
    {"header", "kvrun-erasure+jws", "JWT"}, {"header", "\"kid\":\"", "\"kid\":\"A"},
};

static void change_text(const char *text, const struct change *change, struct kv_buf *out)
{
    const char *at = strstr(text, change->from);
    if (at == NULL) {
        (void)fprintf(stderr, "cert_tamper: no %s\n", change->from);
        abort();
    }
    kv_buf_reset(out);
    kv_buf_append(out, text, (size_t)(at - text));
    kv_buf_text(out, change->to);
    kv_buf_text(out, at + strlen(change->from));
}

struct run {
    const struct cert_cases *cases;
    cert_tamper_fn *fn;
    void *ctx;
    unsigned count;
    char header[256];
    struct kv_buf payload, changed, jws, bundle;
};

static void tell(struct run *run, const char *what, const char *check)
{
    run->fn(what, check, &run->bundle, run->ctx);
    run->count++;
}

static void make(struct run *run, const char *header, const struct kv_buf *payload, const struct cert_cases_log *log)
{
    kv_buf_reset(&run->jws);
    kv_buf_reset(&run->bundle);
    cert_cases_jws(header, kv_buf_bytes(payload), run->cases->cert_key, &run->jws);
    cert_cases_bundle(log, kv_buf_bytes(&run->jws), &run->bundle);
}

static void run_payloads(struct run *run, const struct cert_cases_log *log)
{
    for (size_t i = 0; i < sizeof(payload_changes) / sizeof(payload_changes[0]); i++) {
        change_text((char *)run->payload.data, &payload_changes[i], &run->changed);
        make(run, run->header, &run->changed, log);
        tell(run, payload_changes[i].to, payload_changes[i].check);
    }
}

static void run_headers(struct run *run, const struct cert_cases_log *log)
{
    for (size_t i = 0; i < sizeof(header_changes) / sizeof(header_changes[0]); i++) {
        change_text(run->header, &header_changes[i], &run->changed);
        make(run, (const char *)run->changed.data, &run->payload, log);
        tell(run, header_changes[i].to, header_changes[i].check);
    }
}

static void run_texts(struct run *run, const struct cert_cases_log *log)
{
    make(run, run->header, &run->payload, log);
    kv_buf_reset(&run->changed);
    kv_buf_append(&run->changed, run->bundle.data, run->bundle.len);
    for (size_t i = 0; i < sizeof(text_changes) / sizeof(text_changes[0]); i++) {
        change_text((char *)run->changed.data, &text_changes[i], &run->bundle);
        tell(run, text_changes[i].to, text_changes[i].check);
    }
    kv_buf_reset(&run->bundle);
    kv_buf_append(&run->bundle, run->changed.data, run->changed.len);
    tell(run, "untouched", NULL);
    kv_buf_text(&run->bundle, "\n");
    tell(run, "a line after the end", "form");
    run->bundle.len--;
    kv_buf_text(&run->bundle, "x");
    tell(run, "a byte after the end", "form");
}

static void run_keys(struct run *run)
{
    struct cert_cases_log log = cert_cases_log(run->cases);
    log.key = run->cases->other_key;
    make(run, run->header, &run->payload, &log);
    tell(run, "another log key", "checkpoint");
    log.key = run->cases->log_key;
    log.origin = "kv.example.org/audit/t_9f3a2c";
    make(run, run->header, &run->payload, &log);
    tell(run, "another host's log", "checkpoint");
    log.origin = CERT_CASES_ORIGIN;
    kv_buf_reset(&run->jws);
    kv_buf_reset(&run->bundle);
    cert_cases_jws(run->header, kv_buf_bytes(&run->payload), run->cases->other_key, &run->jws);
    cert_cases_bundle(&log, kv_buf_bytes(&run->jws), &run->bundle);
    tell(run, "another certificate key", "signature");
}

unsigned cert_tamper_each(const struct cert_cases *cases, cert_tamper_fn *fn, void *ctx)
{
    const struct cert_cases_log log = cert_cases_log(cases);
    const struct kv_cert_facts facts = cert_cases_facts();
    struct run run = {.cases = cases, .fn = fn, .ctx = ctx};
    char kid[44];
    kv_buf_init(&run.payload, 65536);
    kv_buf_init(&run.changed, 262144);
    kv_buf_init(&run.jws, 65536);
    kv_buf_init(&run.bundle, 262144);
    if (kv_cert_payload(&facts, &run.payload) != KV_OK || kv_cert_kid(cases->keys.cert_public, kid) != KV_OK) {
        abort();
    }
    (void)snprintf(run.header, sizeof(run.header), "{\"alg\":\"EdDSA\",\"kid\":\"%s\",\"typ\":\"kvrun-erasure+jws\"}",
                   kid);
    run_payloads(&run, &log);
    run_headers(&run, &log);
    run_texts(&run, &log);
    run_keys(&run);
    kv_buf_done(&run.payload);
    kv_buf_done(&run.changed);
    kv_buf_done(&run.jws);
    kv_buf_done(&run.bundle);
    return run.count;
}
