/*
 * The fixed words of a certificate: what is claimed, and what is not. Changing one is a new version of the payload,
 * since verifiers compare them. Must never promise more than the erasure protocol does.
 */
#include "audit/certificate_int.h"

#include <string.h>

const struct kv_cert_words kv_cert_session_words = {
    .kind = "session",
    .claim = "The key of this session was destroyed; every copy of its blocks that was sealed under it, on any tier "
             "and in any "
             "backup, can no "
             "longer be opened by this service. The claim holds at the stated assurance and within the stated limits.",
    .backups = "Rows, write-ahead log and backups of the database that hold this session's "
               "wrapped key are sealed under the destroyed root.",
    .method = "Samples of the session's blocks were opened as a control before the destruction "
              "and tried again after it; the store of root keys "
              "and the key tree were read again.",
};

const struct kv_cert_words kv_cert_scope_words = {
    .kind = "scope",
    .claim = "The key of this scope, whose blocks several sessions shared, was destroyed; every copy of these blocks "
             "that was sealed under it, on any tier and in any backup, can no longer be opened by this service. The "
             "claim holds at the stated assurance and within the stated limits.",
    .backups = "Rows, write-ahead log and backups of the database that hold this scope's wrapped key are sealed under "
               "the destroyed root.",
    .method = "Samples of the scope's blocks were opened as a control before the destruction and tried again after it; "
              "the store of root keys and the key tree were read again.",
};

const struct kv_cert_words kv_cert_tenant_words = {
    .kind = "tenant",
    .claim =
        "The keys of all counted sessions of this tenant were destroyed in one step; every copy of their blocks that "
        "was sealed under them, on any tier and in any backup, can no longer be opened by this service. The claim "
        "holds at the stated assurance and within the stated limits.",
    .backups =
        "Rows, write-ahead log and backups of the database that hold wrapped keys of these sessions are sealed under "
        "the destroyed root.",
    .method =
        "Samples of blocks of several sessions were opened as a control before the destruction and tried again after "
        "it; the store of root keys and the directory of the key tree were read again.",
};

const char kv_cert_anchor_text[] =
    "The root in force after the destruction was written to an anchor outside of the database before this certificate "
    "was made. A server with that anchor refuses to open anything from a database and a root of an earlier moment; the "
    "anchor does not keep others from opening such copies (limit L7).";

static const struct {
    const char *code, *text;
} limit_texts[] = {
    {"L1", "Memory images and snapshots of hosts that were taken before the erasure may still hold keys or plaintext."},
    {"L2", "Keys that somebody copied before the erasure are not destroyed by it."},
    {"L3", "Plaintext that was delivered to clients, or that an inference engine wrote to its logs, is not covered."},
    {"L4", "Memory of an inference engine is covered only as far as the engine acknowledged that it was cleared."},
    {"L5", "An instance was shut out because its lease ran out, without an acknowledgement of its own."},
    {"L6", "Prefixes shared with other sessions were retained and stay readable for those sessions."},
    {"L7",
     "Snapshots that contain the root of erasure, and backups its provider keeps for a time, can bring the root back."},
    {"L8", "The medium that held the root of erasure may keep remnants of it."},
    {"L9", "Times are readings of the server's clock; no independent party stamped or witnessed them."},
    {"L10", "Older backups of the database show the session's labels, and a guess of its external id can be tested "
            "against them."},
};

const char *kv_limit_text(const char *code)
{
    for (size_t i = 0; i < sizeof(limit_texts) / sizeof(limit_texts[0]); i++) {
        if (strcmp(limit_texts[i].code, code) == 0) {
            return limit_texts[i].text;
        }
    }
    return NULL;
}

const char *kv_cert_sanitization(const char *assurance)
{
    if (strcmp(assurance, "E2") == 0) {
        return "clear";
    }
    return strcmp(assurance, "E3") == 0 || strcmp(assurance, "E4") == 0 ? "purge" : NULL;
}

const char *kv_cert_check_name(enum kv_cert_check check)
{
    static const char *const names[KV_CHECK_COUNT] = {
        [KV_CHECK_FORM] = "form",           [KV_CHECK_HEADER] = "header", [KV_CHECK_SIGNATURE] = "signature",
        [KV_CHECK_CANONICAL] = "canonical", [KV_CHECK_CLAIMS] = "claims", [KV_CHECK_CHECKPOINT] = "checkpoint",
        [KV_CHECK_INCLUSION] = "inclusion", [KV_CHECK_COVERS] = "covers",
    };
    return (size_t)check < KV_CHECK_COUNT ? names[check] : "unknown";
}
