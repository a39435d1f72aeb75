/* Findings and how they are told. Must never print what a file of secrets holds. */
#include "server/cli/doctor.h"

#include "dataplane/base/buf.h"

#include <stdarg.h>
#include <stdio.h>

static const char *const words[] = {"ok", "warn", "fail"};

void doctor_say(struct doctor *doctor, const char *check, enum doctor_state state, const char *fix, const char *format,
                ...)
{
    va_list args;
    if (doctor->count == DOCTOR_FINDINGS_MAX) {
        return;
    }
    struct doctor_finding *finding = &doctor->findings[doctor->count++];
    finding->check = check;
    finding->state = state;
    snprintf(finding->fix, sizeof finding->fix, "%s", state == DOCTOR_OK || fix == NULL ? "" : fix);
    va_start(args, format);
    vsnprintf(finding->reason, sizeof finding->reason, format, args);
    va_end(args);
}

static bool print_json(const struct doctor *doctor, bool ok, FILE *out)
{
    struct kv_buf text KV_CLEANUP(kv_buf_done);
    kv_buf_init(&text, 1u << 17);
    kv_buf_printf(&text, "{\"ok\":%s,\"checks\":[", ok ? "true" : "false");
    for (size_t i = 0; i < doctor->count; i++) {
        const struct doctor_finding *finding = &doctor->findings[i];
        kv_buf_printf(&text, "%s\n{\"check\":\"%s\",\"state\":\"%s\",\"reason\":", i == 0 ? "" : ",", finding->check,
                      words[finding->state]);
        kv_buf_json_string(&text, finding->reason);
        if (finding->fix[0] != '\0') {
            kv_buf_text(&text, ",\"fix\":");
            kv_buf_json_string(&text, finding->fix);
        }
        kv_buf_text(&text, "}");
    }
    kv_buf_text(&text, "\n]}\n");
    return kv_buf_check(&text) == KV_OK && fwrite(text.data, 1, text.len, out) == text.len;
}

int doctor_print(const struct doctor *doctor, bool json, FILE *out)
{
    size_t by_state[3] = {0};
    for (size_t i = 0; i < doctor->count; i++) {
        by_state[doctor->findings[i].state]++;
    }
    bool ok = by_state[DOCTOR_FAIL] == 0;
    if (json) {
        return print_json(doctor, ok, out) && ok ? 0 : 1;
    }
    for (size_t i = 0; i < doctor->count; i++) {
        const struct doctor_finding *finding = &doctor->findings[i];
        fprintf(out, "%-4s  %-14s  %s\n", words[finding->state], finding->check, finding->reason);
        if (finding->fix[0] != '\0') {
            fprintf(out, "      %-14s  fix: %s\n", "", finding->fix);
        }
    }
    fprintf(out, "\n%zu ok, %zu to look at, %zu wrong\n", by_state[DOCTOR_OK], by_state[DOCTOR_WARN],
            by_state[DOCTOR_FAIL]);
    return ok ? 0 : 1;
}
