#include "tests/lib/store_rows.h"

#include "tests/lib/temp_postgres.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(enum kv_err rc, const char *what, const struct kv_errinfo *info)
{
    if (rc != KV_OK) {
        fprintf(stderr, "store_rows: %s: %s: %s\n", what, kv_err_name(rc), info->text);
        abort();
    }
}

struct kv_id store_id(unsigned number)
{
    struct kv_id id = {{0x01}};
    for (int i = 0; i < 4; i++) {
        id.b[12 + i] = (uint8_t)(number >> (24 - 8 * i));
    }
    return id;
}

void store_cluster(struct kv_pg *pg)
{
    struct kv_errinfo info = {0};
    struct kv_id fresh = store_id(1), id;
    must(IN_TX(pg, kv_store_cluster_ensure(pg, &fresh, &info, &id)), "cluster", &info);
}

struct kv_id store_tenant(struct kv_pg *pg, unsigned number)
{
    struct kv_errinfo info = {0};
    struct kv_store_tenant tenant = {.id = store_id(number), .display_name = "A tenant", .created_us = T0};
    snprintf(tenant.name, sizeof tenant.name, "t-%u", number);
    uint32_t slot = 0;
    must(IN_TX(pg, kv_store_tenant_insert(pg, &tenant, &info, &slot)), "tenant", &info);
    return tenant.id;
}

struct kv_id store_session(struct kv_pg *pg, struct kv_id tenant, unsigned number)
{
    struct kv_errinfo info = {0};
    struct kv_store_session session = {.id = store_id(number),
                                       .tenant = tenant,
                                       .model_id = "m",
                                       .model_revision = "r",
                                       .model_fingerprint = "f",
                                       .created_us = T0};
    must(IN_TX(pg, kv_store_session_insert(pg, &session, &info)), "session", &info);
    return session.id;
}

static enum kv_err request(struct kv_pg *pg, struct kv_store_erasure *erasure, struct kv_errinfo *info)
{
    enum kv_err rc = kv_store_revocation_next(pg, info, &erasure->revocation_seq);
    return rc != KV_OK ? rc : kv_store_erasure_insert(pg, erasure, info);
}

struct kv_store_erasure store_erasure_request(struct kv_pg *pg, struct kv_id tenant, struct kv_id session,
                                              unsigned number)
{
    struct kv_errinfo info = {0};
    struct kv_store_erasure erasure = {.id = store_id(number),
                                       .tenant = tenant,
                                       .session = session,
                                       .basis = "gdpr_art17",
                                       .requested_role = "tenant_admin",
                                       .requested_by = store_id(77),
                                       .at_us = {T0 + 5}};
    must(IN_TX(pg, request(pg, &erasure, &info)), "erasure", &info);
    must(kv_store_erasure_get(pg, &erasure.id, &info, &erasure), "erasure", &info);
    return erasure;
}

struct kv_id store_batch(struct kv_pg *pg, unsigned number)
{
    struct kv_errinfo info = {0};
    struct kv_store_batch batch = {.id = store_id(number),
                                   .old_root = store_id(number + 1),
                                   .new_root = store_id(number + 2),
                                   .fence = 1,
                                   .provider = "file",
                                   .provider_detail = "one file",
                                   .created_us = T0};
    must(IN_TX(pg, kv_store_batch_insert(pg, &batch, KV_BYTES("top", 3), &info)), "batch", &info);
    return batch.id;
}
