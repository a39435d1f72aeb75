/*
 * The instance as its operator sees it: status, configuration, log level, and what a backup must and must not have.
 * Must never show a secret: the configuration comes without them.
 */
#include "kv_version.h"
#include "server/http/facts.h"
#include "server/http/h_shared.h"
#include "server/http/h_tier_out.h"
#include "server/http/httpd_int.h"
#include "server/http/line.h"
#include "server/service/svc_status.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const struct kv_http_facts *facts_of(const struct kv_req *req)
{
    return req->httpd->conf.facts;
}

/* --- status ------------------------------------------------------------------------------------------------------ */

static void write_checks(struct kv_buf *out, const struct kv_status_view *view)
{
    kv_out_array(out, "checks");
    for (int i = 0; i < KV_READY_CHECKS; i++) {
        const char *detail = view->checks[i].detail;
        kv_out_open(out);
        kv_out_text(out, "name", view->checks[i].name);
        kv_out_bool(out, "ok", view->checks[i].ok);
        if (detail != NULL && detail[0] != '\0') {
            kv_out_text(out, "detail", detail);
        }
        kv_out_close(out);
    }
    kv_out_array_end(out);
}

static void write_who(struct kv_buf *out, const struct kv_status_view *view)
{
    kv_out_text(out, "version", KV_VERSION);
    kv_out_text(out, "git", KV_REVISION);
    kv_out_id(out, "cluster", "clu", &view->about.cluster);
    kv_out_id(out, "instance", "ins", &view->about.instance);
    kv_out_id(out, "incarnation", "inc", &view->incarnation);
    kv_out_time(out, "started_at", view->started_us);
    kv_out_int(out, "uptime_seconds", view->uptime_seconds);
    kv_out_text(out, "io_engine", view->about.io_name);
    kv_out_text(out, "cipher", view->about.cipher_name);
    kv_out_text(out, "root_provider", view->about.root_provider);
}

static void write_state(struct kv_buf *out, const struct kv_status_view *view)
{
    kv_out_text(out, "state",
                view->quarantine != NULL ? "quarantined"
                : view->retiring         ? "stopping"
                : view->ready            ? "ready"
                                         : "degraded");
    if (view->quarantine != NULL) {
        kv_out_text(out, "quarantine_reason", view->quarantine);
    }
    write_checks(out, view);
    kv_out_object(out, "lease");
    kv_out_bool(out, "valid", view->lease_valid);
    kv_out_int(out, "seconds", view->lease_seconds);
    kv_out_close(out);
}

static void write_database(struct kv_buf *out, const struct kv_http_facts *facts, const struct kv_status_view *view)
{
    kv_out_object(out, "database");
    kv_out_bool(out, "reachable", view->db_ok);
    kv_out_bool(out, "private", facts != NULL && facts->database_folder != NULL);
    kv_out_bool(out, "pooled", view->db_pooled);
    kv_out_int(out, "schema_version", view->schema_version);
    kv_out_close(out);
}

static void write_work(struct kv_buf *out, const struct kv_req *req, const struct kv_status_view *view)
{
    kv_out_object(out, "engines");
    kv_out_int(out, "registered", view->engines);
    kv_out_int(out, "pools", view->pools);
    kv_out_close(out);
    kv_out_object(out, "sessions");
    kv_out_int(out, "known", view->sessions_known);
    kv_out_close(out);
    kv_out_object(out, "transfers");
    kv_out_int(out, "running", view->engine.operations_running);
    kv_out_close(out);
    kv_out_object(out, "queue");
    kv_out_int(out, "depth", kv_line_len(req->httpd->line));
    kv_out_int(out, "limit", (uint64_t)KV_MAX_SERVICE_QUEUE);
    kv_out_close(out);
    kv_out_object(out, "erasures");
    kv_out_int(out, "open", view->erasures_open);
    kv_out_close(out);
    kv_out_object(out, "audit");
    kv_out_bool(out, "ok", view->audit_ok);
    kv_out_int(out, "pending_bytes", view->audit_pending_bytes);
    kv_out_int(out, "lag_ms", view->audit_lag_us / 1000);
    kv_out_close(out);
}

static void write_instances(struct kv_buf *out, const struct kv_status_view *view)
{
    kv_out_array(out, "instances");
    for (size_t i = 0; i < view->instance_count; i++) {
        const struct kv_instance_item *instance = &view->instances[i];
        kv_out_open(out);
        kv_out_id(out, "id", "ins", &instance->id);
        kv_out_text(out, "state", instance->state);
        kv_out_bool(out, "self", instance->self);
        kv_out_time(out, "started_at", instance->started_us);
        kv_out_close(out);
    }
    kv_out_array_end(out);
}

static void warn(struct kv_buf *out, bool so, const char *code, const char *text)
{
    if (so) {
        kv_out_open(out);
        kv_out_text(out, "code", code);
        kv_out_text(out, "text", text);
        kv_out_close(out);
    }
}

static void write_warnings(struct kv_buf *out, const struct kv_http_facts *facts, const struct kv_status_view *view)
{
    struct kv_log_override levels[KV_LOG_OVERRIDES];
    kv_out_array(out, "warnings");
    if (facts != NULL) {
        warn(out, facts->insecure_listen, "insecure_listen",
             "the API is reachable from other machines without TLS; set http.tls.cert_file and http.tls.key_file");
        warn(out, facts->root_in_memory, "root_in_memory",
             "the root of erasure is in memory only: a restart loses every session; set root.provider");
        warn(out, facts->root_in_state, "root_in_state",
             "the root of erasure lies in state.dir: a backup of that folder would keep erased sessions readable; set "
             "root.path to another place, or leave the file out of every backup");
    }
    warn(out, view->db_pooled, "database_pooled",
         "behind a pooler nobody can listen: changes by other instances are seen at the next renewal of the lease");
    warn(out, kv_log_overrides(levels) > 0, "log_level_changed",
         "a log level is changed for a while: GET /v1/loglevel");
    kv_out_array_end(out);
}

KV_RC kv_h_status(struct kv_call *call, struct kv_req *req)
{
    struct kv_buf *out = &req->response.body;
    const struct kv_http_facts *facts = facts_of(req);
    struct kv_status_view view;
    kv_svc_status(call, &view);
    kv_out_open(out);
    write_state(out, &view);
    write_who(out, &view);
    write_database(out, facts, &view);
    kv_out_array(out, "tiers");
    kv_h_write_tiers(out, call->svc, true);
    kv_out_array_end(out);
    write_work(out, req, &view);
    write_instances(out, &view);
    write_warnings(out, facts, &view);
    kv_out_close(out);
    return KV_OK;
}

/* --- configuration ----------------------------------------------------------------------------------------------- */

KV_RC kv_h_config(struct kv_call *call, struct kv_req *req)
{
    (void)call;
    struct kv_buf *out = &req->response.body;
    const struct kv_http_facts *facts = facts_of(req);
    struct kv_fact fact;
    kv_out_open(out);
    kv_out_array(out, "data");
    for (size_t i = 0; facts != NULL && facts->at(facts->ctx, i, &fact); i++) {
        kv_out_open(out);
        kv_out_text(out, "key", fact.key);
        if (fact.number) {
            kv_out_int(out, "value", strtoull(fact.value, NULL, 10));
        } else {
            kv_out_text(out, "value", fact.value);
        }
        kv_out_text(out, "origin", fact.origin);
        kv_out_bool(out, "reloadable", fact.reloadable);
        kv_out_close(out);
    }
    kv_out_array_end(out);
    kv_out_close(out);
    return KV_OK;
}

/* --- the log's level --------------------------------------------------------------------------------------------- */

#define LEVEL_WORDS "|debug|info|warn|error|"
#define MODULE_WORDS                                                                                           \
    "|anchor|audit|check|config|crypto|engine|eraser|fd-socket|http|io|janitor|keys|lease|listener|operation|" \
    "policies|roe|"                                                                                            \
    "root|sequencer|server|service|session|sm|store|tier|"

static void write_levels(struct kv_buf *out, const void *view)
{
    (void)view;
    struct kv_log_override levels[KV_LOG_OVERRIDES];
    size_t count = kv_log_overrides(levels);
    uint64_t now = kv_env_system.boottime_ns(kv_env_system.ctx);
    kv_out_open(out);
    kv_out_text(out, "level", kv_log_level_name(kv_log_level()));
    kv_out_array(out, "changed");
    for (size_t i = 0; i < count; i++) {
        kv_out_open(out);
        if (levels[i].module[0] != '\0') {
            kv_out_text(out, "module", levels[i].module);
        }
        kv_out_text(out, "level", kv_log_level_name(levels[i].level));
        kv_out_int(out, "seconds_left", levels[i].until_ns > now ? (levels[i].until_ns - now) / KV_S_NS : 0);
        kv_out_close(out);
    }
    kv_out_array_end(out);
    kv_out_close(out);
}

KV_RC kv_h_log_level(struct kv_call *call, struct kv_req *req)
{
    (void)call;
    write_levels(&req->response.body, NULL);
    return KV_OK;
}

KV_RC kv_h_log_level_change(struct kv_call *call, struct kv_req *req)
{
    const struct kv_field fields[] = {
        {"module", KV_TEXT, false, 1, 31, MODULE_WORDS},
        {"level", KV_TEXT, true, 1, 8, LEVEL_WORDS},
        {"for_seconds", KV_INT, true, 0, 3600, NULL},
    };
    struct kv_json *body KV_CLEANUP(kv_json_freep) = NULL;
    enum kv_log_level level = KV_LOG_INFO;
    KV_TRY(kv_h_patch(call, req, KV_FIELDS(fields), &body));
    const char *module = kv_json_text(body, "module");
    KV_TRY(kv_log_parse_level(kv_json_text(body, "level"), &level));
    KV_TRY(kv_svc_log_level(call, module == NULL ? "" : module, level, (uint32_t)kv_json_int(body, "for_seconds", 0)));
    write_levels(&req->response.body, NULL);
    return KV_OK;
}

/* --- backups ----------------------------------------------------------------------------------------------------- */

static void advise(struct kv_buf *out, const char *what, const char *where, const char *advice, const char *why)
{
    kv_out_open(out);
    kv_out_text(out, "what", what);
    if (where != NULL) {
        kv_out_text(out, "where", where);
    }
    kv_out_text(out, "advice", advice);
    kv_out_text(out, "why", why);
    kv_out_close(out);
}

KV_RC kv_h_backups(struct kv_call *call, struct kv_req *req)
{
    (void)call;
    struct kv_buf *out = &req->response.body;
    const struct kv_http_facts *facts = facts_of(req);
    static const struct kv_http_facts none;
    facts = facts != NULL ? facts : &none;
    kv_out_open(out);
    kv_out_bool(out, "root_at_risk", facts->root_in_state || facts->root_beside_data);
    kv_out_array(out, "data");
    advise(
        out, "database", facts->database_folder, "back_up",
        "it has tenants, sealed keys, erasures, certificates and the audit log; with it alone no session can be read");
    advise(out, "root_of_erasure", facts->root_in_memory ? NULL : facts->root_path, "never",
           facts->root_in_state ? "a copy keeps erased sessions readable, and it lies in the state folder: leave it out"
           : facts->root_beside_data
               ? "a copy keeps erased sessions readable, and a snapshot of that file system has it: "
                 "put it on another one"
               : "a copy keeps erased sessions readable");
    if (facts->anchor_file != NULL) {
        advise(out, "anchor", facts->anchor_file, "never",
               "one put back from a backup shows an older root, and an older database would pass for the current one");
    }
    advise(
        out, "signing_keys", facts->state_folder, "separately",
        "sign-certificate.key and sign-log.key sign what was promised: keep a sealed copy apart from the database's");
    advise(out, "state_folder", facts->state_folder, "never",
           "the journal and the instance's identity belong to one running server: a copy in use is quarantined");
    advise(out, "nvme_tier", facts->nvme_path, "not_needed", "sealed blocks are a cache; lost ones are computed again");
    kv_out_array_end(out);
    kv_out_close(out);
    return KV_OK;
}
