/*
 * The errors of the API for those who meet them: /problems and /problems/{code}, as JSON, or as a page when a browser
 * asks. Everything here is fixed text of this program. Must never load anything from elsewhere.
 */
#include "server/http/h_shared.h"
#include "server/http/problem.h"
#include "server/http/problem_text.h"

#include <stdio.h>
#include <string.h>

#define PUBLIC_HOUR "public, max-age=3600"

/* --- JSON -------------------------------------------------------------------------------------------------------- */

static void write_problem(struct kv_buf *out, enum kv_err code)
{
    char type[80];
    snprintf(type, sizeof type, "/problems/%s", kv_err_name(code));
    kv_out_open(out);
    kv_out_text(out, "code", kv_err_name(code));
    kv_out_text(out, "type", type);
    kv_out_text(out, "title", kv_err_title(code));
    kv_out_int(out, "status", (uint64_t)kv_err_http(code));
    kv_out_bool(out, "retryable", kv_err_retryable(code));
    kv_out_text(out, "what_to_do", kv_problem_what_to_do(code));
    if (kv_problem_hint(code) != NULL) {
        kv_out_text(out, "hint", kv_problem_hint(code));
    }
    kv_out_close(out);
}

static void write_list(struct kv_buf *out)
{
    kv_out_open(out);
    kv_out_array(out, "data");
    for (unsigned code = KV_OK + 1; code < KV_E_COUNT; code++) {
        write_problem(out, (enum kv_err)code);
    }
    kv_out_array_end(out);
    kv_out_close(out);
}

/* --- pages ------------------------------------------------------------------------------------------------------- */

static void escape(struct kv_buf *out, const char *text)
{
    for (const char *p = text; *p != '\0'; p++) {
        const char *safe = *p == '<' ? "&lt;" : *p == '>' ? "&gt;" : *p == '&' ? "&amp;" : *p == '"' ? "&quot;" : NULL;
        kv_buf_append(out, safe == NULL ? p : safe, safe == NULL ? 1 : strlen(safe));
    }
}

static void begin_page(struct kv_buf *out, const char *title)
{
    kv_buf_text(out, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
                     "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>");
    escape(out, title);
    kv_buf_text(out, "</title><style>"
                     "body{font:16px/1.5 system-ui,sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem;"
                     "color:#1a1a1a;background:#fff}code{font-family:ui-monospace,monospace}"
                     "td,th{text-align:left;padding:.2rem 1rem .2rem 0;vertical-align:top}a{color:#0b57d0}"
                     "@media(prefers-color-scheme:dark){body{color:#e6e6e6;background:#161616}a{color:#8ab4f8}}"
                     "</style></head><body><main>\n");
}

static void end_page(struct kv_buf *out)
{
    kv_buf_text(out, "</main></body></html>\n");
}

static void write_problem_page(struct kv_buf *out, enum kv_err code)
{
    begin_page(out, kv_err_name(code));
    kv_buf_printf(out, "<h1><code>%s</code></h1>\n<p><strong>", kv_err_name(code));
    escape(out, kv_err_title(code));
    kv_buf_printf(out, "</strong>: status %d, %s.</p>\n<h2>What to do</h2>\n<p>", kv_err_http(code),
                  kv_err_retryable(code) ? "worth trying again" : "the same request gives the same answer");
    escape(out, kv_problem_what_to_do(code));
    kv_buf_text(out, "</p>\n");
    if (kv_problem_hint(code) != NULL) {
        kv_buf_text(out, "<p><code>");
        escape(out, kv_problem_hint(code));
        kv_buf_text(out, "</code></p>\n");
    }
    kv_buf_text(out, "<p><a href=\"/problems\">All errors</a></p>\n");
    end_page(out);
}

static void write_list_page(struct kv_buf *out)
{
    begin_page(out, "Errors of the kvrun API");
    kv_buf_text(out, "<h1>Errors of the kvrun API</h1>\n<table><thead><tr><th scope=\"col\">Code</th>"
                     "<th scope=\"col\">Status</th><th scope=\"col\">Meaning</th></tr></thead><tbody>\n");
    for (unsigned code = KV_OK + 1; code < KV_E_COUNT; code++) {
        const char *name = kv_err_name((enum kv_err)code);
        kv_buf_printf(out, "<tr><td><a href=\"/problems/%s\"><code>%s</code></a></td><td>%d</td><td>", name, name,
                      kv_err_http((enum kv_err)code));
        escape(out, kv_err_title((enum kv_err)code));
        kv_buf_text(out, "</td></tr>\n");
    }
    kv_buf_text(out, "</tbody></table>\n");
    end_page(out);
}

/* --- handlers: inline, so without a call ------------------------------------------------------------------------- */

/* A page only for those who say that they want one: a client that takes anything gets JSON. */
static bool wants_page(struct kv_req *req)
{
    req->response.cache_control = PUBLIC_HOUR;
    if (req->accepts_html) {
        req->response.content_type = "text/html; charset=utf-8";
    }
    return req->accepts_html;
}

static KV_RC refuse(struct kv_req *req, enum kv_err code, const char *text)
{
    struct kv_errinfo info = {0};
    enum kv_err rc = kv_fail(&info, code, "%s", text);
    req->response.cache_control = NULL;
    kv_problem(req, rc, &info, NULL);
    return KV_OK;
}

KV_RC kv_h_problems(struct kv_call *call, struct kv_req *req)
{
    (void)call;
    bool page = wants_page(req);
    if (!page && !req->accepts_json) {
        return refuse(req, KV_E_NOT_ACCEPTABLE, "errors are described in application/json and text/html");
    }
    if (page) {
        write_list_page(&req->response.body);
    } else {
        write_list(&req->response.body);
    }
    return KV_OK;
}

KV_RC kv_h_problem(struct kv_call *call, struct kv_req *req)
{
    (void)call;
    enum kv_err code = KV_OK;
    bool page = wants_page(req);
    if (!page && !req->accepts_json) {
        return refuse(req, KV_E_NOT_ACCEPTABLE, "errors are described in application/json and text/html");
    }
    if (kv_problem_code(req->captures[0], &code) != KV_OK) {
        return refuse(req, KV_E_NOT_FOUND, "no error has this name; GET /problems lists them");
    }
    if (page) {
        write_problem_page(&req->response.body, code);
    } else {
        write_problem(&req->response.body, code);
    }
    return KV_OK;
}
