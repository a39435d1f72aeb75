/*
 * The handlers, one file a resource (h_*.c). Each decodes the body, calls one use case of server/service/svc.h and
 * encodes the answer; what a request means is not decided here. Thread: a service thread; those of KV_ROUTE_INLINE
 * routes the listener's, with `call` NULL.
 */
#ifndef KV_HTTP_HANDLERS_H
#define KV_HTTP_HANDLERS_H

#include "server/http/router.h"

kv_handler kv_h_livez, kv_h_readyz, kv_h_startupz, kv_h_metrics, kv_h_version, kv_h_openapi, kv_h_jwks, kv_h_log_vkey;
kv_handler kv_h_problems, kv_h_problem;
kv_handler kv_h_tenant_create, kv_h_tenant_get, kv_h_tenant_list, kv_h_tenant_update, kv_h_tenant_suspend,
    kv_h_tenant_resume, kv_h_tenant_delete, kv_h_tenant_restore, kv_h_tenant_usage;
kv_handler kv_h_key_create, kv_h_key_list, kv_h_key_get, kv_h_key_update, kv_h_key_revoke, kv_h_key_rotate;
kv_handler kv_h_platform_key_create, kv_h_platform_key_list, kv_h_platform_key_get, kv_h_platform_key_update,
    kv_h_platform_key_revoke, kv_h_platform_key_rotate;
kv_handler kv_h_tiers, kv_h_tier_drain, kv_h_nvme_drain;
kv_handler kv_h_tenant_keys, kv_h_tenant_key_rotate;
kv_handler kv_h_session_create, kv_h_session_get, kv_h_session_list, kv_h_session_update, kv_h_session_touch,
    kv_h_session_pin, kv_h_session_unpin, kv_h_session_explain, kv_h_session_delete;
extern const struct kv_field kv_q_tenants[], kv_q_tenant_delete[], kv_q_tenant_usage[], kv_q_session[], kv_q_sessions[];
kv_handler kv_h_engine_register, kv_h_engine_heartbeat, kv_h_engine_remove, kv_h_pool_register, kv_h_pool_remove;
kv_handler kv_h_lookup, kv_h_offload, kv_h_restore;
kv_handler kv_h_events;
extern const struct kv_field kv_q_events[], kv_q_readyz[];
kv_handler kv_h_erasure_create, kv_h_erasures, kv_h_erasure_get, kv_h_erasure_cancel;
kv_handler kv_h_certificate, kv_h_certificate_text, kv_h_certificates, kv_h_certificate_get, kv_h_certificates_export,
    kv_h_certificate_verify, kv_h_upgrade_text, kv_h_certificate_upgrade_text;
kv_handler kv_h_audit_entries, kv_h_audit_checkpoint, kv_h_audit_inclusion, kv_h_audit_consistency, kv_h_audit_verify,
    kv_h_erasure_prove, kv_h_audit_export;
kv_handler kv_h_operations, kv_h_operation_get, kv_h_operation_cancel;

kv_handler kv_h_hold_create, kv_h_holds, kv_h_hold_get, kv_h_hold_release;
extern const struct kv_field kv_q_holds[];
kv_handler kv_h_approvals, kv_h_approval_get, kv_h_approval_approve, kv_h_approval_reject;
extern const struct kv_field kv_q_approvals[];

/* What their queries take. */
extern const struct kv_field kv_q_erasures[], kv_q_certificates[], kv_q_audit_entries[], kv_q_audit_inclusion[],
    kv_q_audit_consistency[], kv_q_audit_export[], kv_q_operations[];

kv_handler kv_h_tier_get, kv_h_tier_update, kv_h_engine_list, kv_h_engine_get;
kv_handler kv_h_status, kv_h_config, kv_h_log_level, kv_h_log_level_change, kv_h_backups;
kv_handler kv_h_root, kv_h_root_rotate, kv_h_root_migrate;
kv_handler kv_h_policy_get, kv_h_policy_put, kv_h_policy_versions, kv_h_policy_version;
kv_handler kv_h_platform_policy_get, kv_h_platform_policy_put, kv_h_platform_policy_versions;
kv_handler kv_h_platform_policy_version, kv_h_policy_evaluate, kv_h_policy_diff, kv_h_policy_dry_run;

#endif
