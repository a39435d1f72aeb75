/*
 * Entries of the log from a typed struct. Must never take a text that a client chose: roles, tiers and outcomes are
 * closed sets of ours, and what is not printable ASCII is refused.
 */
#include "audit/event.h"

#include "audit/certificate_int.h"
#include "audit/emit_int.h"

#include <stdio.h>
#include <string.h>

static const char *const op_names[] = {
    [KV_AUDIT_TENANT_CREATE] = "tenant.create",
    [KV_AUDIT_KEY_CREATE] = "key.create",
    [KV_AUDIT_SESSION_CREATE] = "session.create",
    [KV_AUDIT_ERASE_REQUEST] = "erase.request",
    [KV_AUDIT_ERASE_DESTROY] = "erase.destroy",
    [KV_AUDIT_ERASE_QUARANTINE] = "erase.quarantine",
    [KV_AUDIT_OFFLOAD] = "block.offload",
    [KV_AUDIT_RESTORE] = "block.restore",
    [KV_AUDIT_INTEGRITY] = "block.integrity",
    [KV_AUDIT_ROOT_CHANGE] = "root.change",
    [KV_AUDIT_INSTANCE_JOIN] = "instance.join",
    [KV_AUDIT_INSTANCE_STOP] = "instance.stop",
    [KV_AUDIT_CONFIG_LOGLEVEL] = "config.loglevel",
    [KV_AUDIT_TENANT_UPDATE] = "tenant.update",
    [KV_AUDIT_TENANT_SUSPEND] = "tenant.suspend",
    [KV_AUDIT_TENANT_RESUME] = "tenant.resume",
    [KV_AUDIT_TENANT_DELETE] = "tenant.delete",
    [KV_AUDIT_TENANT_RESTORE] = "tenant.restore",
    [KV_AUDIT_KEY_UPDATE] = "key.update",
    [KV_AUDIT_KEY_ROTATE] = "key.rotate",
    [KV_AUDIT_KEY_REVOKE] = "key.revoke",
    [KV_AUDIT_SESSION_UPDATE] = "session.update",
    [KV_AUDIT_SESSION_PIN] = "session.pin",
    [KV_AUDIT_SESSION_UNPIN] = "session.unpin",
    [KV_AUDIT_POLICY_ACTIVATE] = "policy.activate",
    [KV_AUDIT_OPERATION_START] = "operation.start",
    [KV_AUDIT_OPERATION_CANCEL] = "operation.cancel",
    [KV_AUDIT_TIER_UPDATE] = "tier.update",
    [KV_AUDIT_KEY_RECOVER] = "key.recover",
    [KV_AUDIT_ROOT_ACCEPT_LOSS] = "root.accept_loss",
    [KV_AUDIT_ERASE_PROVE] = "erase.prove",
    [KV_AUDIT_TENANT_KEY_ROTATE] = "tenant_key.rotate",
    [KV_AUDIT_TENANT_KEY_COMPROMISED] = "tenant_key.compromised",
    [KV_AUDIT_TENANT_KEY_DESTROY] = "tenant_key.destroy",
    [KV_AUDIT_HOLD_CREATE] = "hold.create",
    [KV_AUDIT_HOLD_RELEASE] = "hold.release",
    [KV_AUDIT_HOLD_EXPIRE] = "hold.expire",
    [KV_AUDIT_APPROVE_REQUEST] = "approve.request",
    [KV_AUDIT_APPROVE_GRANT] = "approve.grant",
    [KV_AUDIT_APPROVE_REJECT] = "approve.reject",
};

const char *kv_audit_op_name(enum kv_audit_op op)
{
    size_t index = (size_t)op;
    return index < sizeof(op_names) / sizeof(op_names[0]) ? op_names[index] : "unknown";
}

static bool is_lower_hex64(const char *text)
{
    return strlen(text) == 64 && strspn(text, "0123456789abcdef") == 64;
}

static void put_actor(struct kv_emit *emit, const struct kv_audit_event *event)
{
    kv_emit_object(emit, "actor");
    if (!kv_id_is_zero(&event->actor)) {
        kv_emit_id(emit, "id", "key", &event->actor);
    }
    kv_emit_text(emit, "t", event->actor_role == NULL ? "system" : event->actor_role);
    kv_emit_close(emit);
}

static void put_transfer(struct kv_emit *emit, const struct kv_audit_event *event)
{
    kv_emit_object(emit, "transfer");
    kv_emit_hex(emit, "block_root", event->block_root.b);
    kv_emit_integer(emit, "blocks", event->blocks);
    kv_emit_decimal(emit, "bytes", event->bytes);
    kv_emit_integer(emit, "dur_us", event->duration_us);
    kv_emit_decimal(emit, "iseq", event->instance_seq);
    kv_emit_text(emit, "tier", event->tier == NULL ? "none" : event->tier);
    kv_emit_close(emit);
}

static KV_RC put_entry(const struct kv_audit_event *event, struct kv_buf *line)
{
    struct kv_emit emit = kv_emit_begin(line);
    put_actor(&emit, event);
    if (event->detail_sha256 != NULL && event->detail_sha256[0] != '\0') {
        if (!is_lower_hex64(event->detail_sha256)) {
            return KV_E_INVALID_REQUEST;
        }
        kv_emit_text(&emit, "detail_sha256", event->detail_sha256);
    }
    kv_emit_text(&emit, "op", kv_audit_op_name(event->op));
    kv_emit_text(&emit, "outcome", event->outcome == NULL ? "ok" : event->outcome);
    if (event->has_policy) {
        kv_emit_object(&emit, "policy");
        kv_emit_decimal(&emit, "platform", event->policy_versions[0]);
        kv_emit_decimal(&emit, "tenant", event->policy_versions[1]);
        kv_emit_close(&emit);
    }
    if (!kv_id_is_zero(&event->session)) {
        kv_emit_id(&emit, "session", "ses", &event->session);
    }
    if (!kv_id_is_zero(&event->subject)) {
        kv_emit_id(&emit, "subject", event->subject_prefix, &event->subject);
    }
    if (!kv_id_is_zero(&event->tenant)) {
        kv_emit_id(&emit, "tenant", "ten", &event->tenant);
    }
    if (event->has_transfer) {
        put_transfer(&emit, event);
    }
    kv_emit_time(&emit, "ts", event->realtime_us);
    kv_emit_integer(&emit, "v", 1);
    return kv_emit_end(&emit);
}

KV_RC kv_audit_encode(const struct kv_audit_event *event, struct kv_buf *ret_line)
{
    bool has_subject = !kv_id_is_zero(&event->subject);
    if ((size_t)event->op >= sizeof(op_names) / sizeof(op_names[0]) ||
        (has_subject && (event->subject_prefix == NULL || strlen(event->subject_prefix) != 3))) {
        return KV_E_INVALID_REQUEST;
    }
    struct kv_buf line KV_CLEANUP(kv_buf_done);
    kv_buf_init(&line, (size_t)KV_MAX_AUDIT_ENTRY_BYTES);
    KV_TRY(put_entry(event, &line));
    kv_buf_append(ret_line, line.data, line.len);
    return kv_buf_check(ret_line);
}

/* ---- reading back ---- */

/* The text of a member that begins with `mark`. Values hold no quotes (they are words and ids of ours), so a mark is
 * found only where it stands as a member. */
static KV_RC text_after(struct kv_bytes entry, const char *mark, char *ret_text, size_t size)
{
    ret_text[0] = '\0';
    const uint8_t *at = memmem(entry.data, entry.len, mark, strlen(mark));
    if (at == NULL) {
        return KV_OK;
    }
    at += strlen(mark);
    const uint8_t *end = memchr(at, '"', entry.len - (size_t)(at - entry.data));
    if (end == NULL || (size_t)(end - at) >= size) {
        return KV_E_CORRUPT;
    }
    memcpy(ret_text, at, (size_t)(end - at));
    ret_text[end - at] = '\0';
    return KV_OK;
}

static KV_RC id_after(struct kv_bytes entry, const char *mark, const char *prefix, struct kv_id *ret_id)
{
    char text[KV_ID_TEXT_SIZE];
    *ret_id = (struct kv_id){0};
    KV_TRY(text_after(entry, mark, text, sizeof text));
    return text[0] == '\0' ? KV_OK : kv_id_parse(prefix, text, ret_id);
}

/* Of a compact JWS: what it is by its header. */
static const char *op_of_jws(struct kv_bytes jws, size_t header_len)
{
    uint8_t header[512];
    size_t len = 0;
    if (kv_base64url_decode((const char *)jws.data, header_len, header, sizeof header, &len) != KV_OK) {
        return "certificate";
    }
    return memmem(header, len, KV_UPGRADE_TYP, sizeof(KV_UPGRADE_TYP) - 1) != NULL ? "upgrade" : "certificate";
}

KV_RC kv_audit_facts(struct kv_bytes entry, struct kv_audit_facts *ret_facts)
{
    struct kv_audit_facts facts = {.op = "certificate", .outcome = "ok"};
    if (entry.len > 0 && entry.data[0] == '{') {
        KV_TRY(text_after(entry, "\"op\":\"", facts.op, sizeof facts.op));
        KV_TRY(text_after(entry, "\"outcome\":\"", facts.outcome, sizeof facts.outcome));
        KV_TRY(id_after(entry, "\"actor\":{\"id\":\"", "key", &facts.actor));
        KV_TRY(id_after(entry, "\"session\":\"", "ses", &facts.session));
    } else {
        const uint8_t *dot = entry.len == 0 ? NULL : memchr(entry.data, '.', entry.len);
        if (dot == NULL) {
            return KV_E_CORRUPT;
        }
        (void)snprintf(facts.op, sizeof facts.op, "%s", op_of_jws(entry, (size_t)(dot - entry.data)));
    }
    *ret_facts = facts;
    return facts.op[0] == '\0' ? KV_E_CORRUPT : KV_OK;
}
