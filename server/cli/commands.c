/*
 * The table of commands, and looking things up in it. Must never name a flag twice for one command: a test looks.
 */
#include "server/cli/cli_int.h"

#include <string.h>

#define FORMATS "table|wide|json|jsonl|id"
#define END                                                    \
    {                                                          \
        NULL, NULL, NULL, CLI_SWITCH, CLI_LOCAL, NULL, 0, NULL \
    }
#define TEXT(name, value, place, member, help)              \
    {                                                       \
        name, value, help, CLI_TEXT, place, member, 0, NULL \
    }
#define WORD(name, words, place, member, help)                \
    {                                                         \
        name, "WORD", help, CLI_TEXT, place, member, 0, words \
    }
#define KIND(type, name, value, place, member, help)    \
    {                                                   \
        name, value, help, type, place, member, 0, NULL \
    }
#define SWITCH(name, place, member, help)                    \
    {                                                        \
        name, NULL, help, CLI_SWITCH, place, member, 0, NULL \
    }
#define LETTER(letter, name, value, help, words)                    \
    {                                                               \
        name, value, help, CLI_TEXT, CLI_LOCAL, NULL, letter, words \
    }

/* --- flags that every command, or every command of a kind, takes ---------------------------------------------------
 */

const struct cli_flag cli_global_flags[] = {
    LETTER(0, "addr", "ADDRESS", "the server: host:port, https://..., unix:///path (KVRUN_ADDR; 127.0.0.1:7433)", NULL),
    LETTER(0, "token-file", "FILE", "holds the API key (KVRUN_TOKEN_FILE; KVRUN_TOKEN is the key itself)", NULL),
    LETTER(0, "ca-file", "FILE", "PEM file of the authorities to trust, for https (KVRUN_CA_FILE)", NULL),
    LETTER(0, "cert-file", "FILE", "PEM certificate to show to a server that asks for one (KVRUN_CERT_FILE)", NULL),
    LETTER(0, "key-file", "FILE", "PEM key of that certificate, when it is not in the same file (KVRUN_KEY_FILE)",
           NULL),
    LETTER('o', "output", "FORMAT", FORMATS, FORMATS),
    LETTER(0, "json", NULL, "the same as -o json", NULL),
    LETTER('q', "quiet", NULL, "no output, only the exit status", NULL),
    LETTER('v', "verbose", NULL, "say each request's id and time on standard error", NULL),
    LETTER(0, "no-color", NULL, "no colour (NO_COLOR)", NULL),
    LETTER(0, "timeout", "DURATION", "for one request: 30s; for all of the waiting: 10m", NULL),
    LETTER('h', "help", NULL, "this text", NULL),
    END,
};

static const struct {
    unsigned trait;
    struct cli_flag flag;
} trait_flags[] = {
    {CLI_LISTS, LETTER('n', "limit", "N", "at most so many, of all pages", NULL)},
    {CLI_LISTS, WORD("order", "asc|desc", CLI_QUERY, "order", "oldest or newest first")},
    {CLI_DRY, SWITCH("dry-run", CLI_LOCAL, NULL, "say what would happen; change nothing")},
    {CLI_WAITS, SWITCH("wait", CLI_LOCAL, NULL, "until it is done")},
    {CLI_MATCHES, TEXT("if-match", "ETAG", CLI_LOCAL, NULL, "only if the resource is still at this revision")},
    {CLI_TENANT, TEXT("tenant", "TENANT", CLI_LOCAL, NULL, "whose (KVRUN_TENANT)")},
    {CLI_IDEMPOTENT, TEXT("idempotency-key", "KEY", CLI_LOCAL, NULL, "doing it again with the same key does it once")},
};
#define TRAIT_FLAGS (sizeof trait_flags / sizeof trait_flags[0])

static const struct cli_flag yes_flag = LETTER('y', "yes", NULL, "do not ask for confirmation", NULL);

/* --- columns -------------------------------------------------------------------------------------------------------
 */

#define COL(title, member)              \
    {                                   \
        title, member, CLI_PLAIN, false \
    }
#define WIDE(title, member)            \
    {                                  \
        title, member, CLI_PLAIN, true \
    }
#define WHEN(title, member)            \
    {                                  \
        title, member, CLI_WHEN, false \
    }
#define WHEN_WIDE(title, member)      \
    {                                 \
        title, member, CLI_WHEN, true \
    }
#define BYTES(title, member)           \
    {                                  \
        title, member, CLI_SIZE, false \
    }
#define LAST                         \
    {                                \
        NULL, NULL, CLI_PLAIN, false \
    }

static const struct cli_column tenant_columns[] = {COL("ID", "id"),
                                                   COL("NAME", "name"),
                                                   COL("STATE", "state"),
                                                   WHEN("CREATED", "created_at"),
                                                   WIDE("DISPLAY NAME", "display_name"),
                                                   WIDE("LABELS", "labels"),
                                                   LAST};
static const struct cli_column key_columns[] = {COL("ID", "id"),
                                                COL("NAME", "name"),
                                                COL("ROLES", "roles"),
                                                WHEN("EXPIRES", "expires_at"),
                                                WHEN("LAST USED", "last_used_at"),
                                                WHEN_WIDE("REVOKED", "revoked_at"),
                                                WHEN_WIDE("CREATED", "created_at"),
                                                WIDE("CIDRS", "cidrs"),
                                                LAST};
static const struct cli_column session_columns[] = {COL("ID", "id"),
                                                    COL("STATE", "state"),
                                                    COL("MODEL", "model.id"),
                                                    COL("EXTERNAL ID", "external_id"),
                                                    WHEN("CREATED", "created_at"),
                                                    WHEN("EXPIRES", "expires_at"),
                                                    WHEN_WIDE("LAST USED", "last_used_at"),
                                                    WHEN_WIDE("PINNED UNTIL", "pinned_until"),
                                                    WIDE("CLASS", "class"),
                                                    WIDE("REGION", "region"),
                                                    WIDE("LABELS", "labels"),
                                                    LAST};
static const struct cli_column erasure_columns[] = {COL("ID", "id"),
                                                    COL("STATE", "state"),
                                                    COL("SCOPE", "scope"),
                                                    COL("BASIS", "basis"),
                                                    WHEN("REQUESTED", "requested_at"),
                                                    WIDE("SESSIONS", "sessions"),
                                                    WIDE("GROUP", "group_id"),
                                                    WIDE("CERTIFICATE", "certificate_id"),
                                                    LAST};
static const struct cli_column hold_columns[] = {COL("ID", "id"),
                                                 COL("STATE", "state"),
                                                 COL("SCOPE", "scope"),
                                                 COL("GROUND", "ground"),
                                                 WHEN("EXPIRES", "expires_at"),
                                                 COL("BLOCKED", "erasures_blocked"),
                                                 WHEN_WIDE("CREATED", "created_at"),
                                                 WIDE("CREATED BY", "created_by"),
                                                 LAST};
static const struct cli_column approval_columns[] = {COL("ID", "id"),
                                                     COL("STATE", "state"),
                                                     COL("ACTION", "action"),
                                                     COL("TENANT", "tenant_id"),
                                                     COL("PROPOSED BY", "proposed_by"),
                                                     WHEN("EXPIRES", "expires_at"),
                                                     WIDE("DECIDED BY", "decided_by"),
                                                     WIDE("SHA-256", "request_sha256"),
                                                     LAST};
static const struct cli_column certificate_columns[] = {
    COL("ID", "id"),       COL("SESSION", "session_id"), COL("ERASURE", "erasure_id"),
    COL("BASIS", "basis"), WHEN("ISSUED", "issued_at"),  LAST};
static const struct cli_column entry_columns[] = {COL("INDEX", "index"),     WHEN("AT", "at"),
                                                  COL("OP", "op"),           COL("OUTCOME", "outcome"),
                                                  COL("ACTOR", "actor"),     COL("SESSION", "session_id"),
                                                  WIDE("LEAF", "leaf_hash"), LAST};
static const struct cli_column tier_columns[] = {COL("NAME", "name"),
                                                 COL("STATE", "state"),
                                                 BYTES("USED", "used_bytes"),
                                                 BYTES("CAPACITY", "capacity_bytes"),
                                                 COL("OBJECTS", "objects"),
                                                 WIDE("REASON", "reason"),
                                                 LAST};
static const struct cli_column engine_columns[] = {COL("ID", "id"),
                                                   COL("NAME", "name"),
                                                   COL("KIND", "kind"),
                                                   COL("MODEL", "model.id"),
                                                   WHEN("LEASE", "lease_expires_at"),
                                                   WIDE("POOLS", "pools"),
                                                   WIDE("TENANT", "tenant_id"),
                                                   LAST};
static const struct cli_column operation_columns[] = {COL("ID", "id"),
                                                      COL("KIND", "kind"),
                                                      COL("STATE", "state"),
                                                      COL("PHASE", "metadata.phase"),
                                                      WHEN("CREATED", "created_at"),
                                                      WHEN_WIDE("EXPIRES", "expires_at"),
                                                      LAST};
static const struct cli_column tenant_key_columns[] = {
    COL("VERSION", "version"),         COL("STATE", "state"),         COL("SESSIONS", "sessions"),
    COL("FINGERPRINT", "fingerprint"), WHEN("CREATED", "created_at"), WHEN("DESTROYED", "destroyed_at"),
    WIDE("MADE-BY", "made_by"),        WIDE("ENDED-BY", "ended_by"),  LAST};
static const struct cli_column version_columns[] = {COL("VERSION", "version"),
                                                    WHEN("CREATED", "created_at"),
                                                    COL("BY", "created_role"),
                                                    COL("LOOSENS", "loosens"),
                                                    WIDE("KEY", "created_by"),
                                                    WIDE("SHA-256", "sha256"),
                                                    LAST};
static const struct cli_column event_columns[] = {WHEN("AT", "at"),
                                                  COL("EVENT", "type"),
                                                  COL("STATE", "state"),
                                                  COL("SUBJECT", "subject"),
                                                  COL("SESSION", "session_id"),
                                                  WIDE("NAME", "name"),
                                                  WIDE("BLOCKS", "blocks"),
                                                  WIDE("BYTES", "bytes"),
                                                  WIDE("TENANT", "tenant_id"),
                                                  WIDE("ID", "id"),
                                                  LAST};

/* --- flags of single commands --------------------------------------------------------------------------------------
 */

#define LABELS_SET KIND(CLI_LABELS, "label", "KEY=VALUE", CLI_BODY, "labels", "a label; may be repeated")
#define REASON TEXT("reason", "TEXT", CLI_BODY, "reason", "why; kept as a salted hash")
#define LABEL_FILTER KIND(CLI_LABEL, "label", "KEY=VALUE", CLI_QUERY, "label", "with this label")
#define STATE_FILTER TEXT("state", "STATE", CLI_QUERY, "state", "in this state")

static const struct cli_flag tenants_ls[] = {STATE_FILTER, LABEL_FILTER, END};
static const struct cli_flag tenants_create[] = {
    TEXT("display-name", "TEXT", CLI_BODY, "display_name", "a name for people"),
    TEXT("region", "REGION", CLI_BODY, "region", "where its data belongs"), LABELS_SET,
    TEXT("policy", "FILE", CLI_LOCAL, NULL, "its policy from the first moment on"), END};
static const struct cli_flag tenants_update[] = {
    TEXT("display-name", "TEXT", CLI_BODY, "display_name", "a name for people"), LABELS_SET, END};
static const struct cli_flag tenants_suspend[] = {REASON, END};
static const struct cli_flag tenants_usage[] = {
    TEXT("window", "TIME", CLI_QUERY, "window", "what was moved, too, in the last hours or days: 24h, 7d"), END};
static const struct cli_flag tenants_delete[] = {SWITCH("now", CLI_QUERY, "now", "without the day of grace"), END};
static const struct cli_flag tenants_rotate_key[] = {
    SWITCH("compromised", CLI_BODY, "compromised",
           "others may know the version in use: call it, and its sessions' keys, so"),
    END};
static const struct cli_flag keys_create[] = {
    KIND(CLI_WORDS, "role", "ROLE", CLI_BODY, "roles",
         "operator, tenant_admin, engine, auditor, security_officer, viewer, metrics; may be repeated"),
    KIND(CLI_FUTURE, "expires", "WHEN", CLI_BODY, "expires_at", "90d, or a time"),
    KIND(CLI_WORDS, "cidr", "RANGE", CLI_BODY, "cidrs", "addresses that it may come from; may be repeated"),
    TEXT("secret-file", "FILE", CLI_LOCAL, NULL, "write the secret there (mode 0600) instead of showing it"), END};
static const struct cli_flag keys_rotate[] = {
    KIND(CLI_DURATION, "overlap", "DURATION", CLI_BODY, "overlap_seconds", "how long the old secret goes on"),
    TEXT("secret-file", "FILE", CLI_LOCAL, NULL, "write the secret there (mode 0600) instead of showing it"), END};
static const struct cli_flag keys_update[] = {
    TEXT("name", "NAME", CLI_BODY, "name", "a name for people"),
    KIND(CLI_FUTURE, "expires", "WHEN", CLI_BODY, "expires_at", "sooner: 30d, or a time"),
    KIND(CLI_WORDS, "cidr", "RANGE", CLI_BODY, "cidrs", "addresses that it may come from; may be repeated"), END};
static const struct cli_flag policies_eval[] = {
    WORD("action", "offload|restore|lookup|session|erase", CLI_BODY, "ask.action", "what is to be judged"),
    TEXT("session", "SESSION", CLI_BODY, "session_id", "with the facts of this session"),
    TEXT("class", "CLASS", CLI_BODY, "ask.class", "in this class"),
    TEXT("model", "MODEL", CLI_BODY, "ask.model", "of this model"),
    TEXT("region", "REGION", CLI_BODY, "ask.region", "in this region"),
    KIND(CLI_NUMBER, "block-bytes", "N", CLI_BODY, "ask.block_bytes", "a block of this size"),
    WORD("basis", "gdpr_art17|retention|contract|other", CLI_BODY, "ask.basis", "of an erasure: on what ground"),
    TEXT("policy", "FILE", CLI_LOCAL, NULL, "and what it would say with this policy"),
    END};
static const struct cli_flag policies_replay[] = {
    KIND(CLI_NUMBER, "last", "N", CLI_BODY, "last", "how many decisions: 200"), END};
static const struct cli_flag sessions_ls[] = {
    STATE_FILTER,
    LABEL_FILTER,
    TEXT("external-id", "TEXT", CLI_QUERY, "external_id", "the client's own name for it"),
    TEXT("model", "MODEL", CLI_QUERY, "model", "of this model"),
    KIND(CLI_PAST, "idle-before", "WHEN", CLI_QUERY, "idle_before", "not used since: 30d, or a time"),
    KIND(CLI_PAST, "created-after", "WHEN", CLI_QUERY, "created_after", "made since: 24h, or a time"),
    TEXT("kind", "KIND", CLI_QUERY, "kind", "session, or scope: what they share"),
    END};
static const struct cli_flag sessions_get[] = {TEXT("expand", "WORDS", CLI_QUERY, "expand", "usage,erasure"), END};
static const struct cli_flag sessions_create[] = {
    TEXT("model", "MODEL", CLI_BODY, "model.id", "the model's name"),
    TEXT("revision", "REVISION", CLI_BODY, "model.revision", "the model's revision"),
    TEXT("fingerprint", "HEX", CLI_BODY, "model.fingerprint", "of the model's weights"),
    TEXT("external-id", "TEXT", CLI_BODY, "external_id", "your own name for it; kept sealed"),
    KIND(CLI_DURATION, "ttl", "DURATION", CLI_BODY, "ttl_seconds", "erased after"),
    KIND(CLI_DURATION, "idle-ttl", "DURATION", CLI_BODY, "idle_ttl_seconds", "erased when not used for so long"),
    TEXT("class", "CLASS", CLI_BODY, "class", "a class of the policy"),
    TEXT("region", "REGION", CLI_BODY, "region", "where it belongs"),
    TEXT("share", "SCOPE", CLI_BODY, "sharing_scope", "the scope that it shares with others, by your name for it"),
    LABELS_SET,
    END};
static const struct cli_flag sessions_update[] = {
    KIND(CLI_DURATION, "ttl", "DURATION", CLI_BODY, "ttl_seconds", "erased after; shorter only"),
    KIND(CLI_DURATION, "idle-ttl", "DURATION", CLI_BODY, "idle_ttl_seconds", "erased when not used for so long"),
    LABELS_SET, END};
static const struct cli_flag sessions_pin[] = {KIND(CLI_FUTURE, "until", "WHEN", CLI_BODY, "until", "2h, or a time"),
                                               END};
static const struct cli_flag erase_flags[] = {
    TEXT("external-id", "TEXT", CLI_BODY, "scope.external_id", "the session with this name"),
    KIND(CLI_LABEL, "label", "KEY=VALUE", CLI_BODY, "scope.label", "every session with this label"),
    KIND(CLI_PAST, "idle-before", "WHEN", CLI_BODY, "scope.idle_before",
         "every session not used since: 30d, or a time"),
    TEXT("tenant", "TENANT", CLI_BODY, "scope.tenant_id", "the tenant itself, with all it has"),
    WORD("basis", "gdpr_art17|retention|contract|other", CLI_BODY, "basis", "on what ground"),
    REASON,
    TEXT("reference", "TEXT", CLI_BODY, "reference", "your own number for it"),
    END};
static const struct cli_flag erasures_ls[] = {
    STATE_FILTER, TEXT("session", "SESSION", CLI_QUERY, "session_id", "of this session"),
    TEXT("group", "ERASURE", CLI_QUERY, "group_id", "members of this erasure of many; none: no members"), END};
static const struct cli_flag erasures_prove[] = {
    KIND(CLI_NUMBER, "samples", "N", CLI_BODY, "samples", "stored blocks of each tier to try: 8, at most 64"), END};
static const struct cli_flag approvals_ls[] = {STATE_FILTER, END};
static const struct cli_flag holds_ls[] = {STATE_FILTER, END};
static const struct cli_flag holds_create[] = {
    KIND(CLI_LABEL, "label", "KEY=VALUE", CLI_BODY, "scope.label", "every session with this label"),
    TEXT("tenant", "TENANT", CLI_BODY, "scope.tenant_id", "all that the tenant has"),
    WORD("ground", "legal_claims|legal_obligation|public_interest", CLI_BODY, "ground", "why the law allows it"),
    REASON,
    TEXT("reference", "TEXT", CLI_BODY, "reference", "your own number for it"),
    KIND(CLI_FUTURE, "expires", "WHEN", CLI_BODY, "expires_at", "180d, or a time"),
    END};
static const struct cli_flag certs_get[] = {
    SWITCH("bundle", CLI_LOCAL, NULL, "the signed text, with its proof"),
    SWITCH("jws", CLI_LOCAL, NULL, "the signature alone, as a compact JWS"),
    SWITCH("upgrade", CLI_LOCAL, NULL, "the statement that follows it when the ciphertext is gone, with its proof"),
    SWITCH("with-keys", CLI_LOCAL, NULL, "with -o FILE: jwks.json and log.vkey beside it"), END};
static const struct cli_flag certs_verify[] = {
    TEXT("keys", "DIR", CLI_LOCAL, NULL, "holds jwks.json and log.vkey, from where you trust; else FILE's folder"),
    TEXT("certificate", "FILE", CLI_LOCAL, NULL, "FILE is the statement that follows this certificate"),
    SWITCH("online", CLI_LOCAL, NULL, "let the server do it, with its own keys"), END};
static const struct cli_flag certs_export[] = {
    KIND(CLI_PAST, "from", "WHEN", CLI_QUERY, "from", "issued since"),
    KIND(CLI_PAST, "to", "WHEN", CLI_QUERY, "to", "issued until"),
    TEXT("group", "ERASURE", CLI_QUERY, "group_id", "of members of this erasure of many"), END};
#define AUDIT_FILTERS                                                                                          \
    TEXT("op", "OP", CLI_QUERY, "op", "of this kind"), TEXT("actor", "ID", CLI_QUERY, "actor", "by this key"), \
        TEXT("session", "SESSION", CLI_QUERY, "session_id", "about this session"),                             \
        TEXT("outcome", "OUTCOME", CLI_QUERY, "outcome", "ok or a code"),                                      \
        KIND(CLI_PAST, "from", "WHEN", CLI_QUERY, "from", "since"),                                            \
        KIND(CLI_PAST, "to", "WHEN", CLI_QUERY, "to", "until")
static const struct cli_flag audit_ls[] = {AUDIT_FILTERS, END};
static const struct cli_flag audit_tail[] = {LETTER('n', "lines", "N", "how many at first: 10", NULL),
                                             LETTER('f', "follow", NULL, "and those that come", NULL), AUDIT_FILTERS,
                                             END};
static const struct cli_flag audit_export[] = {KIND(CLI_NUMBER, "from", "INDEX", CLI_QUERY, "from", "first entry"),
                                               KIND(CLI_NUMBER, "to", "INDEX", CLI_QUERY, "to", "entry after the last"),
                                               END};
static const struct cli_flag audit_verify[] = {
    KIND(CLI_NUMBER, "from", "INDEX", CLI_BODY, "from", "first entry; without these two, all of it"),
    KIND(CLI_NUMBER, "to", "INDEX", CLI_BODY, "to", "entry after the last"), END};
static const struct cli_flag config_show_flags[] = {
    SWITCH("origin", CLI_LOCAL, NULL, "where each value comes from, as always"), END};
static const struct cli_flag ops_ls[] = {STATE_FILTER, TEXT("kind", "KIND", CLI_QUERY, "kind", "of this kind"), END};
static const struct cli_flag events_flags[] = {
    LETTER('f', "follow", NULL, "stay, and print what comes", NULL),
    LETTER('n', "count", "N", "the last so many; with --follow, end after so many", NULL),
    TEXT("types", "LIST", CLI_QUERY, "types", "session.created,erasure.state,..."),
    TEXT("session", "SESSION", CLI_QUERY, "session_id", "about this session"),
    TEXT("of-tenant", "TENANT", CLI_QUERY, "tenant_id", "of this tenant"),
    TEXT("after", "ID", CLI_LOCAL, NULL, "those after this one"),
    END};
static const struct cli_flag tiers_update[] = {
    WORD("state", "up|draining", CLI_BODY, "state", "draining lasts until up, or until the server ends"), END};
static const struct cli_flag loglevel_flags[] = {
    TEXT("module", "MODULE", CLI_BODY, "module", "of this module; else all"),
    KIND(CLI_DURATION, "for", "DURATION", CLI_BODY, "for_seconds", "then back; at most 1h"), END};
static const struct cli_flag top_flags[] = {LETTER('d', "delay", "SECONDS", "between two looks: 2", NULL),
                                            LETTER('n', "count", "N", "end after so many looks", NULL), END};
static const struct cli_flag demo_flags[] = {SWITCH("keep", CLI_LOCAL, NULL, "leave its folder behind"), END};

static const struct cli_flag bench_flags[] = {
    SWITCH("json", CLI_LOCAL, NULL, "one JSON object"),
    SWITCH("quick", CLI_LOCAL, NULL, "fewer and smaller rounds, to see that it works"), END};

static const struct cli_flag doctor_flags[] = {SWITCH("json", CLI_LOCAL, NULL, "one JSON object"), END};

static const struct cli_flag root_migrate_flags[] = {
    WORD("to", "file|pkcs11|transit", CLI_BODY, "to", "the provider; its configuration has to be there"), END};
static const struct cli_flag root_accept_loss_flags[] = {
    TEXT("lose-sessions", "N", CLI_LOCAL, NULL, "how many sessions are lost; without it: what would be"),
    TEXT("lost-provider", "NAME", CLI_LOCAL, NULL, "where the root was, when root.provider is another one now"), END};

/* --- the table -----------------------------------------------------------------------------------------------------
 */

#define ROW(NAME, ARGS, HELP, TRAITS, ...)                                        \
    {                                                                             \
        .name = NAME, .args = ARGS, .help = HELP, .traits = (TRAITS), __VA_ARGS__ \
    }
#define GET(TARGET) .method = "GET", .target = TARGET
#define POST(TARGET) .method = "POST", .target = TARGET
#define PATCH(TARGET) .method = "PATCH", .target = TARGET
#define DELETE(TARGET) .method = "DELETE", .target = TARGET

const struct cli_command cli_commands[] = {
    ROW("serve", "", "the server", CLI_CONFIG | CLI_HOOK, .flags = NULL),
    ROW("dev", "", "a server to play with, in ./kvrun-dev", CLI_CONFIG | CLI_HOOK, .flags = NULL),
    ROW("demo", "", "show everything once, with a private database and real blocks",
        CLI_CONFIG | CLI_HOOK | CLI_WORDS_ON, .flags = demo_flags),
    ROW("doctor", "", "check this machine and configuration; each finding names its fix",
        CLI_CONFIG | CLI_HOOK | CLI_WORDS_ON, .flags = doctor_flags),
    ROW("bench", "NAME", "measure a part of the product on this machine; without NAME: what there is",
        CLI_CONFIG | CLI_HOOK | CLI_WORDS_ON, .flags = bench_flags),
    ROW("db migrate", "", "bring the schema of db.url to this version", CLI_CONFIG | CLI_HOOK, .flags = NULL),
    ROW("config show", "", "the configuration, and where each value comes from", CLI_CONFIG,
        .flags = config_show_flags),
    ROW("config check", "", "whether a start would succeed: addresses, folders, the database", CLI_CONFIG,
        .flags = NULL),
    ROW("config docs", "", "every key, as a table", CLI_CONFIG, .flags = NULL),
    ROW("healthcheck", "", "exit 0 when the server on http.admin_listen is alive", CLI_CONFIG, .flags = NULL),

    ROW("status", "", "the server in one document", 0, GET("/v1/status")),
    ROW("top", "", "the same, again and again on a terminal", 0, GET("/v1/status"), .flags = top_flags, .run = cli_top),
    ROW("tenants ls", "", "tenants", CLI_LISTS, GET("/v1/tenants"), .flags = tenants_ls, .columns = tenant_columns),
    ROW("tenants get", "TENANT", "one tenant", 0, GET("/v1/tenants/{0}")),
    ROW("tenants create", "NAME", "a new tenant", CLI_DRY | CLI_IDEMPOTENT, POST("/v1/tenants"), .arg_member = "name",
        .flags = tenants_create, .run = cli_tenant_create),
    ROW("tenants update", "TENANT", "change its names and labels", CLI_DRY | CLI_MATCHES, PATCH("/v1/tenants/{0}"),
        .flags = tenants_update),
    ROW("tenants suspend", "TENANT", "stop its traffic; nothing is erased", CLI_IDEMPOTENT,
        POST("/v1/tenants/{0}:suspend"), .flags = tenants_suspend),
    ROW("tenants resume", "TENANT", "let its traffic in again", CLI_IDEMPOTENT, POST("/v1/tenants/{0}:resume")),
    ROW("tenants delete", "TENANT", "erase a tenant, after a day of grace", CLI_DRY | CLI_MATCHES | CLI_WAITS,
        DELETE("/v1/tenants/{0}"), .flags = tenants_delete, .danger = "erases all that this tenant has:"),
    ROW("tenants restore", "TENANT", "call a deletion back in its day of grace", CLI_IDEMPOTENT,
        POST("/v1/tenants/{0}:restore")),
    ROW("tenants usage", "TENANT", "what it uses, of what it may", 0, GET("/v1/tenants/{0}/usage"),
        .flags = tenants_usage),
    ROW("tenants keys", "TENANT", "versions of the key that all of its keys hang under", CLI_LISTS,
        GET("/v1/tenants/{0}/encryption-keys"), .columns = tenant_key_columns),
    ROW("tenants rotate-key", "TENANT", "a fresh version of that key; the old one is destroyed, sessions go on",
        CLI_WAITS | CLI_IDEMPOTENT, POST("/v1/tenants/{0}/encryption-keys:rotate"), .flags = tenants_rotate_key),

    ROW("keys ls", "", "API keys", CLI_LISTS | CLI_TENANT, GET("/v1/api-keys"),
        .tenant_target = "/v1/tenants/{t}/api-keys", .columns = key_columns),
    ROW("keys get", "KEY", "one API key, without its secret", CLI_TENANT, GET("/v1/api-keys/{0}"),
        .tenant_target = "/v1/tenants/{t}/api-keys/{0}"),
    ROW("keys create", "NAME", "a new API key; its secret is shown once", CLI_TENANT | CLI_DRY | CLI_IDEMPOTENT,
        POST("/v1/api-keys"), .tenant_target = "/v1/tenants/{t}/api-keys", .arg_member = "name", .flags = keys_create,
        .run = cli_key_create),
    ROW("keys update", "KEY", "change its name, or let it do less", CLI_TENANT | CLI_DRY | CLI_MATCHES,
        PATCH("/v1/api-keys/{0}"), .tenant_target = "/v1/tenants/{t}/api-keys/{0}", .flags = keys_update),
    ROW("keys rotate", "KEY", "a new secret; the old one goes on for a while", CLI_TENANT | CLI_IDEMPOTENT,
        POST("/v1/api-keys/{0}:rotate"), .tenant_target = "/v1/tenants/{t}/api-keys/{0}:rotate", .flags = keys_rotate,
        .run = cli_key_create),
    ROW("keys revoke", "KEY", "refuse it from now on", CLI_TENANT | CLI_DRY | CLI_MATCHES, DELETE("/v1/api-keys/{0}"),
        .tenant_target = "/v1/tenants/{t}/api-keys/{0}", .danger = "revokes for ever the key"),
    ROW("keys recover", "", "a new operator key when the last one is lost; by the owner of state.dir, without a server",
        CLI_CONFIG | CLI_HOOK, .flags = NULL),

    ROW("root status", "", "the root of erasure: where it is, and how it stands", 0, GET("/v1/root")),
    ROW("root rotate", "", "replace it by a fresh one and destroy it; sessions go on", CLI_WAITS | CLI_IDEMPOTENT,
        POST("/v1/root:rotate")),
    ROW("root migrate", "", "the same, and the fresh one is another provider's", CLI_WAITS | CLI_IDEMPOTENT,
        POST("/v1/root:migrate"), .flags = root_migrate_flags),
    ROW("root accept-loss", "",
        "give up the sessions of a root of erasure that is gone; by the owner of state.dir, without a server",
        CLI_CONFIG | CLI_HOOK | CLI_WORDS_ON, .flags = root_accept_loss_flags),

    ROW("policies get", "", "the policy in force; without --tenant that of the platform", CLI_TENANT,
        GET("/v1/platform/policy"), .tenant_target = "/v1/tenants/{t}/policy"),
    ROW("policies set", "FILE", "put a policy in force", CLI_TENANT | CLI_DRY | CLI_MATCHES, .method = "PUT",
        .target = "/v1/platform/policy", .tenant_target = "/v1/tenants/{t}/policy", .run = cli_policy_set),
    ROW("policies diff", "FILE", "what a policy would change", CLI_TENANT, POST("/v1/policies:diff"),
        .run = cli_policy_diff),
    ROW("policies eval", "", "what the policy says to an action", CLI_TENANT, POST("/v1/policies:evaluate"),
        .flags = policies_eval, .run = cli_policy_eval),
    ROW("policies replay", "FILE", "what the last decisions would have been with this policy", CLI_TENANT,
        POST("/v1/policies:dry-run"), .flags = policies_replay, .run = cli_policy_diff),
    ROW("policies test", "PATH...", "run files, or folders, of questions with the answers they must get", CLI_ALONE,
        .run = cli_policy_test),
    ROW("policies versions", "", "the versions there were", CLI_TENANT | CLI_LISTS, GET("/v1/platform/policy/versions"),
        .tenant_target = "/v1/tenants/{t}/policy/versions", .columns = version_columns),

    ROW("sessions ls", "", "sessions", CLI_LISTS, GET("/v1/sessions"), .flags = sessions_ls,
        .columns = session_columns),
    ROW("sessions get", "SESSION", "one session", 0, GET("/v1/sessions/{0}"), .flags = sessions_get),
    ROW("sessions create", "", "a new session, or the one with this external id", CLI_DRY | CLI_IDEMPOTENT,
        POST("/v1/sessions"), .flags = sessions_create),
    ROW("sessions update", "SESSION", "change labels and times", CLI_DRY | CLI_MATCHES, PATCH("/v1/sessions/{0}"),
        .flags = sessions_update),
    ROW("sessions touch", "SESSION", "it was used just now", 0, POST("/v1/sessions/{0}:touch")),
    ROW("sessions pin", "SESSION", "keep it, whatever its times say", 0, POST("/v1/sessions/{0}:pin"),
        .flags = sessions_pin),
    ROW("sessions unpin", "SESSION", "its times count again", 0, POST("/v1/sessions/{0}:unpin")),
    ROW("sessions rm", "SESSION", "erase it", CLI_DRY | CLI_WAITS, DELETE("/v1/sessions/{0}"),
        .danger = "erases for ever the session"),
    ROW("sessions explain", "SESSION", "why its blocks are where they are", 0, POST("/v1/sessions/{0}:explain")),

    ROW("erase", "[SESSION]", "erase for ever, with a certificate", CLI_DRY | CLI_WAITS | CLI_IDEMPOTENT | CLI_FILES,
        POST("/v1/erasures"), .arg_member = "scope.session_id", .flags = erase_flags, .danger = "erases for ever",
        .run = cli_erase),
    ROW("erasures ls", "", "erasures", CLI_LISTS, GET("/v1/erasures"), .flags = erasures_ls,
        .columns = erasure_columns),
    ROW("erasures get", "ERASURE", "one erasure", CLI_WAITS, GET("/v1/erasures/{0}")),
    ROW("erasures cancel", "ERASURE", "call it back, as long as that is possible", CLI_IDEMPOTENT,
        POST("/v1/erasures/{0}:cancel")),
    ROW("erasures prove", "ERASURE", "try every key there is on what is left of an erased session", CLI_IDEMPOTENT,
        POST("/v1/erasures/{0}:prove"), .flags = erasures_prove, .run = cli_audit_verify),
    ROW("holds ls", "", "legal holds", CLI_LISTS, GET("/v1/holds"), .flags = holds_ls, .columns = hold_columns),
    ROW("holds get", "HOLD", "one hold, and how many sessions it covers", 0, GET("/v1/holds/{0}")),
    ROW("holds create", "[SESSION]", "keep a session, or all with a label, from being erased", CLI_DRY | CLI_IDEMPOTENT,
        POST("/v1/holds"), .arg_member = "scope.session_id", .flags = holds_create),
    ROW("holds release", "HOLD", "end it; erasures that waited go on", CLI_DRY | CLI_MATCHES, DELETE("/v1/holds/{0}"),
        .danger = "lets erasures go on that waited for the hold"),
    ROW("approvals ls", "", "what waits for a second person, and what was decided", CLI_LISTS, GET("/v1/approvals"),
        .flags = approvals_ls, .columns = approval_columns),
    ROW("approvals get", "APPROVAL", "one approval", 0, GET("/v1/approvals/{0}")),
    ROW("approvals approve", "APPROVAL", "have it done", CLI_DRY | CLI_IDEMPOTENT, POST("/v1/approvals/{0}:approve"),
        .danger = "has done what was proposed in"),
    ROW("approvals reject", "APPROVAL", "have it not done", CLI_DRY | CLI_IDEMPOTENT, POST("/v1/approvals/{0}:reject")),
    ROW("certs ls", "", "certificates of erasure", CLI_LISTS, GET("/v1/certificates"), .flags = certs_export,
        .columns = certificate_columns),
    ROW("certs get", "CERTIFICATE", "one certificate, by its id or its erasure's", CLI_FILES,
        GET("/v1/certificates/{0}"), .flags = certs_get, .run = cli_cert_get),
    ROW("certs verify", "FILE", "check a certificate, without a server", 0, POST("/v1/certificates:verify"),
        .flags = certs_verify, .run = cli_cert_verify),
    ROW("certs export", "", "all certificates with what proves them, a tar archive", CLI_FILES,
        GET("/v1/certificates:export"), .flags = certs_export, .run = cli_cert_export),

    ROW("audit ls", "", "entries of the audit log", CLI_LISTS, GET("/v1/audit/entries"), .flags = audit_ls,
        .columns = entry_columns),
    ROW("audit tail", "", "the last entries", 0, GET("/v1/audit/entries"), .flags = audit_tail,
        .columns = entry_columns, .run = cli_audit_tail),
    ROW("audit verify", "", "let the server check its log, leaf by leaf", CLI_IDEMPOTENT, POST("/v1/audit:verify"),
        .flags = audit_verify, .run = cli_audit_verify),
    ROW("audit export", "", "the log as tiles, a tar archive", CLI_FILES, GET("/v1/audit:export"),
        .flags = audit_export, .run = cli_audit_export),

    ROW("tiers ls", "", "where sealed blocks are", CLI_LISTS | CLI_WHOLE, GET("/v1/tiers"), .columns = tier_columns),
    ROW("tiers get", "TIER", "one tier", 0, GET("/v1/tiers/{0}")),
    ROW("tiers update", "TIER", "put no new block there, or take blocks again", CLI_DRY | CLI_MATCHES,
        PATCH("/v1/tiers/{0}"), .flags = tiers_update),
    ROW("tiers drain", "TIER", "dram: write its blocks down; nvme: forget them, and take none",
        CLI_WAITS | CLI_IDEMPOTENT, POST("/v1/tiers/{0}:drain")),
    ROW("engines ls", "", "engines", CLI_LISTS, GET("/v1/engines"), .columns = engine_columns),
    ROW("engines get", "ENGINE", "one engine", 0, GET("/v1/engines/{0}")),
    ROW("events", "", "what happened; with --follow, what happens", 0, GET("/v1/events"), .flags = events_flags,
        .columns = event_columns, .run = cli_events),
    ROW("ops ls", "", "long-running operations", CLI_LISTS, GET("/v1/operations"), .flags = ops_ls,
        .columns = operation_columns),
    ROW("ops get", "OPERATION", "one operation", 0, GET("/v1/operations/{0}")),
    ROW("ops wait", "OPERATION", "until it is done; exits as its error says", 0, GET("/v1/operations/{0}"),
        .run = cli_op_wait),
    ROW("ops cancel", "OPERATION", "ask it to end", CLI_IDEMPOTENT, POST("/v1/operations/{0}:cancel")),
    ROW("loglevel", "[LEVEL]", "what is logged; with LEVEL, change it for a while", 0, GET("/v1/loglevel"),
        .flags = loglevel_flags, .run = cli_loglevel),
    ROW("backups", "", "what to back up, and what never to", 0, GET("/v1/backups")),

    ROW("completion", "SHELL", "a script for bash, zsh or fish", CLI_ALONE, .run = cli_completion),
    ROW("man", "", "this program's manual page, for man -l -", CLI_ALONE, .run = cli_man),
    ROW("version", "", "this program's version", CLI_ALONE, .run = cli_version),
    ROW("help", "[WORDS...]", "about a command", CLI_ALONE, .run = cli_help),
    {.name = NULL},
};

const struct cli_alias cli_aliases[] = {
    {"why", "sessions explain"},      {"tenants list", "tenants ls"}, {"keys list", "keys ls"},
    {"sessions list", "sessions ls"}, {"certs list", "certs ls"},     {"approvals list", "approvals ls"},
    {"holds list", "holds ls"},       {"ops list", "ops ls"},         {NULL, NULL},
};

/* --- looking up ----------------------------------------------------------------------------------------------------
 */

static size_t words_of(const char *name)
{
    size_t count = 1;
    for (const char *p = name; (p = strchr(p, ' ')) != NULL; p++) {
        count++;
    }
    return count;
}

static bool matches(const char *name, size_t words, char *const *argv)
{
    for (size_t i = 0; i < words; i++) {
        size_t len = strcspn(name, " ");
        if (strlen(argv[i]) != len || memcmp(argv[i], name, len) != 0) {
            return false;
        }
        name += len + (name[len] == ' ' ? 1 : 0);
    }
    return true;
}

static const struct cli_command *by_name(const char *name)
{
    for (size_t i = 0; cli_commands[i].name != NULL; i++) {
        if (strcmp(cli_commands[i].name, name) == 0) {
            return &cli_commands[i];
        }
    }
    return NULL;
}

const struct cli_command *cli_find(int argc, char *const *argv, int *ret_words)
{
    for (size_t words = argc < 2 ? (size_t)argc : 2; words > 0; words--) {
        for (size_t i = 0; cli_commands[i].name != NULL; i++) {
            if (words_of(cli_commands[i].name) == words && matches(cli_commands[i].name, words, argv)) {
                *ret_words = (int)words;
                return &cli_commands[i];
            }
        }
        for (size_t i = 0; cli_aliases[i].name != NULL; i++) {
            if (words_of(cli_aliases[i].name) == words && matches(cli_aliases[i].name, words, argv)) {
                *ret_words = (int)words;
                return by_name(cli_aliases[i].target);
            }
        }
    }
    return NULL;
}

bool cli_is_group(const char *name)
{
    size_t len = strlen(name);
    for (size_t i = 0; cli_commands[i].name != NULL; i++) {
        if (strncmp(cli_commands[i].name, name, len) == 0 && cli_commands[i].name[len] == ' ') {
            return true;
        }
    }
    return false;
}

const struct cli_flag *cli_flag_at(const struct cli_command *command, size_t index)
{
    size_t own = 0;
    while (command->flags != NULL && command->flags[own].name != NULL) {
        own++;
    }
    if (index < own) {
        return &command->flags[index];
    }
    index -= own;
    for (size_t i = 0; i < TRAIT_FLAGS; i++) {
        bool pages = trait_flags[i].trait == CLI_LISTS && (command->traits & CLI_WHOLE) != 0;
        if (!pages && (command->traits & trait_flags[i].trait) != 0 && index-- == 0) {
            return &trait_flags[i].flag;
        }
    }
    return command->danger != NULL && index == 0 ? &yes_flag : NULL;
}

static bool takes_globals(const struct cli_command *command)
{
    return (command->traits & CLI_CONFIG) == 0;
}

static const struct cli_flag help_flag = LETTER('h', "help", NULL, "this text", NULL);

const struct cli_flag *cli_find_flag(const struct cli_command *command, const char *name, size_t len)
{
    const struct cli_flag *flag = NULL;
    for (size_t i = 0; (flag = cli_flag_at(command, i)) != NULL; i++) {
        if (strlen(flag->name) == len && memcmp(flag->name, name, len) == 0) {
            return flag;
        }
    }
    for (size_t i = 0; takes_globals(command) && cli_global_flags[i].name != NULL; i++) {
        if (strlen(cli_global_flags[i].name) == len && memcmp(cli_global_flags[i].name, name, len) == 0) {
            return &cli_global_flags[i];
        }
    }
    return len == 4 && memcmp(name, "help", 4) == 0 ? &help_flag : NULL;
}

const struct cli_flag *cli_find_letter(const struct cli_command *command, char letter)
{
    const struct cli_flag *flag = NULL;
    for (size_t i = 0; (flag = cli_flag_at(command, i)) != NULL; i++) {
        if (flag->letter == letter) {
            return flag;
        }
    }
    for (size_t i = 0; takes_globals(command) && cli_global_flags[i].name != NULL; i++) {
        if (cli_global_flags[i].letter == letter) {
            return &cli_global_flags[i];
        }
    }
    return letter == 'h' ? &help_flag : NULL;
}
