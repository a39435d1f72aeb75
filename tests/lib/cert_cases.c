/* Sample certificates. A failure here is a broken test and ends the process. */
#include "tests/lib/cert_cases.h"

#include "tests/lib/temp_folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LEAVES_MAX 64u

#define MUST(expr)                                                   \
    do {                                                             \
        if ((expr) != KV_OK) {                                       \
            (void)fprintf(stderr, "cert_cases: %s failed\n", #expr); \
            abort();                                                 \
        }                                                            \
    } while (0)

static struct kv_sign_key *key_of(uint8_t fill)
{
    uint8_t seed[32];
    struct kv_sign_key *key = NULL;
    memset(seed, fill, sizeof(seed));
    MUST(kv_sign_key_from_seed(seed, &key));
    return key;
}

void cert_cases_init(struct cert_cases *cases)
{
    if (kv_secret_arena_init(65536) != KV_OK) {
        exit(77);
    }
    *cases = (struct cert_cases){.cert_key = key_of(1), .log_key = key_of(2), .other_key = key_of(3)};
    kv_sign_public(cases->cert_key, cases->keys.cert_public);
    kv_sign_public(cases->log_key, cases->keys.log_public);
    memcpy(cases->keys.log_origin_prefix, CERT_CASES_PREFIX, sizeof(CERT_CASES_PREFIX));
}

void cert_cases_done(struct cert_cases *cases)
{
    kv_sign_key_free(cases->cert_key);
    kv_sign_key_free(cases->log_key);
    kv_sign_key_free(cases->other_key);
    kv_secret_arena_done();
}

static struct kv_id id_of(uint8_t fill)
{
    struct kv_id id;
    memset(id.b, fill, sizeof(id.b));
    /* Version and variant of a UUIDv7. */
    id.b[6] = (uint8_t)(0x70 | (fill & 0x0f));
    id.b[8] = (uint8_t)(0x80 | (fill & 0x3f));
    return id;
}

struct kv_cert_facts cert_cases_facts(void)
{
    static const struct kv_cert_tier tiers[] = {
        {.name = "dram", .status = "sealed, key destroyed", .blocks = 3, .bytes = 6291456},
        {.name = "nvme", .status = "sealed, key destroyed", .blocks = 8192, .bytes = UINT64_C(17179869184)}};
    static const char *const limits[] = {"L1", "L2", "L3", "L4", "L7", "L8", "L9", "L10"};
    static struct kv_cert_instance instances[1];
    instances[0] = (struct kv_cert_instance){.id = id_of(8),
                                             .how = "self",
                                             .fenced_us = UINT64_C(1795972698000002),
                                             .purged_us = UINT64_C(1795972698000004)};
    struct kv_cert_facts facts = {
        .jti = id_of(1),
        .issued_us = UINT64_C(1795972698000005),
        .issuer = "kvrun:test-cluster",
        .tenant = id_of(2),
        .session = id_of(3),
        .erasure = id_of(4),
        .slot = 77,
        .requested_us = UINT64_C(1795972698000001),
        .requester_role = "tenant_admin",
        .requester_key = id_of(5),
        .basis = "gdpr_art17",
        .reason_sha256 = "",
        .tiers = tiers,
        .tier_count = 2,
        .blocks = 8192,
        .bytes = UINT64_C(17179869184),
        .sealer = "host",
        .provider = "file",
        .provider_detail = "file (O_DIRECT, in place)",
        .old_root = id_of(6),
        .new_root = id_of(7),
        .destroyed_us = UINT64_C(1795972698000003),
        .instances = instances,
        .instance_count = sizeof(instances) / sizeof(instances[0]),
        .samples = 4,
        .control_opened = 4,
        .opened_after = 0,
        .old_root_gone = true,
        .old_row_refused = true,
        .slots_absent = true,
        .verified_us = UINT64_C(1795972698000004),
        .assurance = "E2",
        .limits = limits,
        .limit_count = sizeof(limits) / sizeof(limits[0]),
        .log_origin = CERT_CASES_ORIGIN,
        .request_index = 4,
        .destroy_index = 9,
        .previous_sha256 = "",
        .tool_version = "0.1.0",
        .openssl_version = "3.0.0",
        .cipher_backend = "openssl",
    };
    memset(facts.block_root.b, 0xb1, sizeof(facts.block_root.b));
    memset(facts.receipt_sha256, 0xc2, sizeof(facts.receipt_sha256));
    return facts;
}

struct cert_cases_log cert_cases_log(const struct cert_cases *cases)
{
    return (struct cert_cases_log){.before = 10, .after = 7, .origin = CERT_CASES_ORIGIN, .key = cases->log_key};
}

struct tree {
    struct kv_hash nodes[8][LEAVES_MAX];
};

static KV_RC tree_put(void *ctx, unsigned level, uint64_t index, const struct kv_hash *hash)
{
    ((struct tree *)ctx)->nodes[level][index] = *hash;
    return KV_OK;
}

static KV_RC tree_get(void *ctx, unsigned level, uint64_t index, struct kv_hash *ret_hash)
{
    *ret_hash = ((struct tree *)ctx)->nodes[level][index];
    return KV_OK;
}

static void append(struct kv_frontier *frontier, struct tree *tree, struct kv_bytes leaf)
{
    struct kv_hash hash;
    MUST(kv_merkle_leaf(leaf, &hash));
    MUST(kv_frontier_append(frontier, &hash, tree_put, tree));
}

void cert_cases_bundle(const struct cert_cases_log *log, struct kv_bytes jws, struct kv_buf *ret_text)
{
    static struct tree tree;
    struct kv_frontier frontier = {.size = 0};
    struct kv_checkpoint checkpoint = {.size = 0};
    struct kv_hash proof[KV_MERKLE_DEPTH_MAX];
    struct kv_buf note;
    size_t count = 0;
    char leaf[32];
    for (uint64_t i = 0; i <= log->before + log->after; i++) {
        int len = snprintf(leaf, sizeof(leaf), "{\"leaf\":%u}", (unsigned)i);
        append(&frontier, &tree, i == log->before ? jws : KV_BYTES(leaf, (size_t)len));
    }
    (void)snprintf(checkpoint.origin, sizeof(checkpoint.origin), "%s", log->origin);
    checkpoint.size = frontier.size;
    MUST(kv_frontier_root(&frontier, &checkpoint.root));
    MUST(kv_merkle_inclusion(tree_get, &tree, log->before, frontier.size, proof, &count));
    kv_buf_init(&note, 16384);
    MUST(kv_checkpoint_sign(&checkpoint, log->key, &note));
    MUST(kv_cert_bundle(jws, log->before, proof, count, kv_buf_bytes(&note), ret_text));
    kv_buf_done(&note);
}

static void put_part(struct kv_buf *jws, struct kv_bytes part)
{
    static char text[131072];
    kv_base64url_encode(part.data, part.len, text);
    kv_buf_text(jws, text);
}

void cert_cases_jws(const char *header, struct kv_bytes payload, const struct kv_sign_key *key, struct kv_buf *ret_jws)
{
    uint8_t signature[64];
    put_part(ret_jws, KV_BYTES(header, strlen(header)));
    kv_buf_text(ret_jws, ".");
    put_part(ret_jws, payload);
    MUST(kv_sign(key, kv_buf_bytes(ret_jws), signature));
    kv_buf_text(ret_jws, ".");
    put_part(ret_jws, KV_BYTES(signature, sizeof(signature)));
    MUST(kv_buf_check(ret_jws));
}

struct kv_cert_facts cert_cases_anchored(void)
{
    static const struct kv_cert_anchor anchor = {
        .kind = "file", .root.b = {9}, .log_size = UINT64_MAX, .log_root.b = {8}, .written_us = 1796000000000001};
    struct kv_cert_facts facts = cert_cases_facts();
    facts.anchor = &anchor;
    return facts;
}

void cert_cases_good(const struct cert_cases *cases, struct kv_buf *ret_text)
{
    const struct kv_cert_facts facts = cert_cases_facts();
    cert_cases_of(cases, &facts, ret_text);
}

void cert_cases_of(const struct cert_cases *cases, const struct kv_cert_facts *facts, struct kv_buf *ret_text)
{
    const struct cert_cases_log log = cert_cases_log(cases);
    struct kv_buf payload, jws;
    kv_buf_init(&payload, 65536);
    kv_buf_init(&jws, 65536);
    MUST(kv_cert_payload(facts, &payload));
    MUST(kv_cert_jws(kv_buf_bytes(&payload), cases->cert_key, &jws));
    cert_cases_bundle(&log, kv_buf_bytes(&jws), ret_text);
    kv_buf_done(&payload);
    kv_buf_done(&jws);
}

struct kv_upgrade_facts cert_cases_upgrade(void)
{
    static struct kv_upgrade_confirmed confirmed[2];
    confirmed[0] =
        (struct kv_upgrade_confirmed){.instance = id_of(8), .folder = id_of(10), .at_us = UINT64_C(1795972699000001)};
    confirmed[1] = (struct kv_upgrade_confirmed){.instance = id_of(11), .at_us = UINT64_C(1795972699000002)};
    return (struct kv_upgrade_facts){.jti = id_of(12),
                                     .issued_us = UINT64_C(1795972699000003),
                                     .issuer = "kvrun:test-cluster",
                                     .certificate_index = 10,
                                     .confirmed = confirmed,
                                     .confirmed_count = 2,
                                     .tool_version = "0.1.0"};
}

static void sign_of(const struct cert_cases *cases, const struct kv_cert_facts *facts, struct kv_buf *jws)
{
    struct kv_buf payload;
    kv_buf_init(&payload, 65536);
    MUST(kv_cert_payload(facts, &payload));
    MUST(kv_cert_jws(kv_buf_bytes(&payload), cases->cert_key, jws));
    kv_buf_done(&payload);
}

enum kv_err cert_cases_statement_payload(const struct cert_cases *cases, const struct kv_cert_facts *facts,
                                         const struct kv_upgrade_facts *upgrade, struct kv_buf *ret_payload)
{
    struct kv_upgrade_facts all = *upgrade;
    struct kv_buf jws;
    kv_buf_init(&jws, 65536);
    sign_of(cases, facts, &jws);
    all.certificate = kv_buf_bytes(&jws);
    enum kv_err rc = kv_upgrade_payload(&all, ret_payload);
    kv_buf_done(&jws);
    return rc;
}

void cert_cases_statement(const struct cert_cases *cases, const struct kv_cert_facts *facts,
                          const struct kv_upgrade_facts *upgrade, struct kv_buf *ret_certificate,
                          struct kv_buf *ret_statement)
{
    struct cert_cases_log log = cert_cases_log(cases);
    struct kv_buf payload, jws;
    kv_buf_init(&payload, 65536);
    kv_buf_init(&jws, 65536);
    cert_cases_of(cases, facts, ret_certificate);
    MUST(cert_cases_statement_payload(cases, facts, upgrade, &payload));
    MUST(kv_upgrade_jws(kv_buf_bytes(&payload), cases->cert_key, &jws));
    log.before++;
    cert_cases_bundle(&log, kv_buf_bytes(&jws), ret_statement);
    kv_buf_done(&payload);
    kv_buf_done(&jws);
}

void cert_cases_write_keys(const struct cert_cases *cases, const char *folder)
{
    struct kv_buf text;
    char path[KVT_PATH_BYTES];
    kv_buf_init(&text, 4096);
    MUST(kv_cert_jwks(cases->keys.cert_public, &text));
    kvt_path_join(path, folder, "jwks.json");
    kvt_file_write(path, text.data, text.len, 0644);
    kv_buf_reset(&text);
    MUST(kv_checkpoint_vkey(cases->keys.log_origin_prefix, cases->keys.log_public, &text));
    kv_buf_text(&text, "\n");
    kvt_path_join(path, folder, "log.vkey");
    kvt_file_write(path, text.data, text.len, 0644);
    kv_buf_done(&text);
}
