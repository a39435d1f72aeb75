/*
 * A certificate as a printable page. It shows the payload's members in words and then the payload itself, so that
 * nothing that was signed is left out. Must never put a text of the payload into the page unescaped: the page has no
 * script, and its policy forbids any.
 */
#include "server/http/certificate_html.h"

#include "server/http/codec.h"

#include <stdio.h>
#include <string.h>

static const char head[] =
    "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
    "<title>Certificate of erasure</title>\n<style>\n"
    "body{font:11pt/1.45 Georgia,serif;color:#111;background:#fff;max-width:19cm;margin:1.2cm auto;padding:0 .6cm}\n"
    "h1{font-size:20pt;margin:0 0 .2cm;border-bottom:2pt solid #111}h2{font-size:12.5pt;margin:.7cm 0 .15cm}\n"
    ".claim{font-size:13pt;border:1pt solid #111;padding:.3cm .4cm;margin:.4cm 0}\n"
    "table{border-collapse:collapse;width:100%}th,td{text-align:left;vertical-align:top;padding:.08cm .2cm .08cm 0;"
    "border-bottom:.5pt solid #bbb}th{font-weight:normal;color:#444;width:5.2cm}\n"
    "td,pre{font-family:ui-monospace,Menlo,Consolas,monospace;font-size:8.8pt;overflow-wrap:anywhere}\n"
    "td.t{font-family:inherit;font-size:10pt}pre{white-space:pre-wrap;background:#f4f4f4;padding:.3cm}\n"
    "@media print{body{margin:0;max-width:none}pre{background:none;border:.5pt solid #bbb}h2,tr{break-inside:avoid}}\n"
    "</style>\n</head>\n<body>\n<h1>Certificate of erasure</h1>\n";

static void put_text(struct kv_buf *out, const char *text)
{
    for (; *text != '\0'; text++) {
        switch (*text) {
        case '&':
            kv_buf_text(out, "&amp;");
            break;
        case '<':
            kv_buf_text(out, "&lt;");
            break;
        case '>':
            kv_buf_text(out, "&gt;");
            break;
        case '"':
            kv_buf_text(out, "&quot;");
            break;
        case '\'':
            kv_buf_text(out, "&#39;");
            break;
        default:
            kv_buf_append(out, text, 1);
        }
    }
}

static void put_row(struct kv_buf *out, const char *name, const char *text, bool prose)
{
    kv_buf_text(out, "<tr><th>");
    put_text(out, name);
    kv_buf_text(out, prose ? "</th><td class=\"t\">" : "</th><td>");
    put_text(out, text);
    kv_buf_text(out, "</td></tr>\n");
}

/* A row of the member's text or number; nothing when it is absent. */
static void put_member(struct kv_buf *out, const char *name, kv_value *object, const char *member)
{
    char number[32];
    int64_t value = 0;
    if (object == NULL || kv_json_get(object, member) == NULL) {
        return;
    }
    const char *text = kv_json_text(object, member);
    if (text == NULL && kv_json_as_int(kv_json_get(object, member), &value)) {
        snprintf(number, sizeof number, "%lld", (long long)value);
        text = number;
    }
    if (text != NULL) {
        put_row(out, name, text, false);
    }
}

static void put_section(struct kv_buf *out, const char *title)
{
    kv_buf_printf(out, "<h2>%s</h2>\n<table>\n", title); /* titles are ours */
}

struct line {
    const char *name, *object, *member; /* object NULL: the payload itself */
};

static void put_lines(struct kv_buf *out, const char *title, kv_value *payload, const struct line *lines)
{
    put_section(out, title);
    for (; lines->name != NULL; lines++) {
        kv_value *object = lines->object == NULL ? payload : kv_json_get(payload, lines->object);
        put_member(out, lines->name, object, lines->member);
    }
    kv_buf_text(out, "</table>\n");
}

static void put_tiers(struct kv_buf *out, kv_value *payload)
{
    kv_value *tiers = kv_json_get(kv_json_get(payload, "scope"), "tiers");
    put_section(out, "Where copies were");
    for (size_t i = 0; i < kv_json_len(tiers); i++) {
        kv_value *tier = kv_json_at(tiers, i);
        const char *blocks = kv_json_text(tier, "blocks"), *bytes = kv_json_text(tier, "bytes"),
                   *status = kv_json_text(tier, "status"), *name = kv_json_text(tier, "tier");
        char text[256];
        snprintf(text, sizeof text, "%.20s blocks, %.20s bytes; %.150s", blocks == NULL ? "?" : blocks,
                 bytes == NULL ? "?" : bytes, status == NULL ? "" : status);
        put_row(out, name == NULL ? "tier" : name, text, true);
    }
    kv_buf_text(out, "</table>\n");
}

static void put_limits(struct kv_buf *out, kv_value *payload)
{
    kv_value *limits = kv_json_get(payload, "limits");
    put_section(out, "Limits of this claim");
    for (size_t i = 0; i < kv_json_len(limits); i++) {
        kv_value *limit = kv_json_at(limits, i);
        const char *code = kv_json_text(limit, "code"), *text = kv_json_text(limit, "text");
        put_row(out, code == NULL ? "" : code, text == NULL ? "" : text, true);
    }
    kv_buf_text(out, "</table>\n");
}

static const struct line what[] = {{"Certificate", NULL, "jti"},
                                   {"Issued at", NULL, "iat"},
                                   {"Issued by", NULL, "iss"},
                                   {"Tenant", "sub", "tenant"},
                                   {"Session", "sub", "session"},
                                   {"Key slot", "sub", "slot"},
                                   {"Blocks", "scope", "blocks"},
                                   {"Bytes", "scope", "bytes"},
                                   {"Root over block ids", "scope", "block_root"},
                                   {0}};
static const struct line request[] = {{"Erasure", "request", "erasure"},
                                      {"Received at", "request", "received_at"},
                                      {"Basis", "request", "basis"},
                                      {"Hash of the reason", "request", "reason_sha256"},
                                      {0}};
static const struct line done[] = {{"Technique", "sanitization", "technique"},
                                   {"Claim after NIST SP 800-88", "sanitization", "claim"},
                                   {"Assurance", NULL, "assurance"},
                                   {"Root destroyed at", "destroyed", "at"},
                                   {"Root", "destroyed", "root_id"},
                                   {"Root since then", "destroyed", "new_root_id"},
                                   {"Provider", "destroyed", "provider"},
                                   {"Provider's detail", "destroyed", "detail"},
                                   {"Hash of the receipt", "destroyed", "receipt_sha256"},
                                   {"Cipher", "crypto", "alg"},
                                   {"Construction", "crypto", "construction"},
                                   {"Backups", "backups", "database"},
                                   {0}};
static const struct line verified[] = {{"Result", "verification", "result"},
                                       {"At", "verification", "at"},
                                       {"Method", "verification", "method"},
                                       {"Samples", "verification", "samples"},
                                       {"Opened before", "verification", "control_opened"},
                                       {"Opened after", "verification", "opened_after"},
                                       {0}};
static const struct line log_lines[] = {{"Log", "audit", "origin"},
                                        {"Request at", "audit", "request_index"},
                                        {"Destruction at", "audit", "destroy_index"},
                                        {"Certificate before", NULL, "prev"},
                                        {"Software", "tool", "name"},
                                        {"Version", "tool", "version"},
                                        {0}};

KV_RC kv_certificate_html(struct kv_bytes payload, struct kv_errinfo *info, struct kv_buf *ret_html)
{
    struct kv_json *json = NULL;
    KV_TRY(kv_json_parse(payload, info, &json));
    const char *claim = kv_json_text(json, "claim");
    kv_buf_text(ret_html, head);
    kv_buf_text(ret_html, "<p class=\"claim\">");
    put_text(ret_html, claim == NULL ? "" : claim);
    kv_buf_text(ret_html, "</p>\n");
    put_lines(ret_html, "What was erased", json, what);
    put_tiers(ret_html, json);
    put_lines(ret_html, "Who asked", json, request);
    put_lines(ret_html, "What was done", json, done);
    put_lines(ret_html, "How it was verified", json, verified);
    put_limits(ret_html, json);
    put_lines(ret_html, "Where it is logged", json, log_lines);
    kv_buf_text(ret_html, "<h2>The signed payload</h2>\n<p>This page is for reading. What is signed is the text below, "
                          "in the bundle <code>certificate.txt</code>; check that one, with kv-verify or "
                          "verify-with-openssl.sh.</p>\n<pre>");
    put_text(ret_html, (const char *)payload.data);
    kv_buf_text(ret_html, "</pre>\n</body>\n</html>\n");
    kv_json_free(json);
    return kv_buf_check(ret_html);
}
