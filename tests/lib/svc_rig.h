/*
 * The whole service with everything real in one process: a database of its own in the test's PostgreSQL, a root of
 * erasure, a small engine with both tiers, an engine process (this one) with a pool of its own. For test files with
 * TEMP_POSTGRES_HOOKS. What has to work for a test to make sense aborts the test when it does not.
 */
#ifndef KV_TESTS_SVC_RIG_H
#define KV_TESTS_SVC_RIG_H

#include "server/service/svc.h"
#include "server/service/svc_certificate.h"
#include "server/service/svc_erase.h"
#include "server/service/svc_key.h"
#include "server/service/svc_operation.h"
#include "server/service/svc_session.h"
#include "server/service/svc_tenant.h"
#include "tests/lib/memfd_pool.h"
#include "tests/lib/temp_folder.h"
#include "tests/lib/temp_postgres.h"

#define KVT_SVC_SLOTS 32u
#define KVT_SVC_RUN_BYTES 4096u
#define KVT_SVC_REGIONS 4u /* a block of 16 KiB */
#define KVT_WAIT_S 20u     /* for what has to happen */

struct kvt_svc {
    char folder[KVT_PATH_BYTES], root_path[KVT_PATH_BYTES], nvme_path[KVT_PATH_BYTES], fd_socket[KVT_PATH_BYTES];
    char url[512];
    struct kv_svc_conf conf;
    struct kv_svc *svc;
    struct kv_call call; /* operator at first; see kvt_svc_as */
    struct kv_errinfo info;
    struct kv_id tenant; /* the one that kvt_svc_open made */
};

/* A fresh database and folder; change `conf` before the start. */
void kvt_svc_config(struct kvt_svc *rig);
enum kv_err kvt_svc_try_start(struct kvt_svc *rig); /* rig->info says why not */
void kvt_svc_start(struct kvt_svc *rig);            /* and a call */
void kvt_svc_stop(struct kvt_svc *rig);
void kvt_svc_restart(struct kvt_svc *rig);
void kvt_svc_done(struct kvt_svc *rig); /* stops, removes the folder */
void kvt_svc_open(struct kvt_svc *rig); /* config, start, a tenant "acme", the call as its admin and engine */

/* Who calls from now on: a key id of its own for each pair. */
void kvt_svc_as(struct kv_call *call, struct kv_id tenant, unsigned roles);
struct kv_call kvt_svc_call(struct kvt_svc *rig, struct kv_id tenant, unsigned roles); /* kv_call_done */
struct kv_id kvt_svc_tenant(struct kvt_svc *rig, const char *name);
struct kv_id kvt_svc_session(struct kv_call *call);

/* An engine of this process with one pool, and the same memory seen from its side. */
struct kvt_engine {
    struct kv_id engine, pool;
    struct kv_pool *pages; /* for kvt_page_fill and the like; NULL: closed, pages are neither filled nor compared */
    uint32_t shared;       /* of the blocks that a call moves, so many of the first are of the session's scope */
};
enum kv_err kvt_engine_try_open(struct kv_call *call, struct kvt_engine *ret_engine);
void kvt_engine_open(struct kv_call *call, struct kvt_engine *ret_engine);
void kvt_engine_close(struct kvt_engine *engine); /* our side only */

/* `count` blocks from `first` on, in slots 0…. */
enum kv_err kvt_svc_offload(struct kv_call *call, const struct kvt_engine *engine, struct kv_id session, uint32_t first,
                            uint32_t count, enum kv_transfer_wait wait);
/* Pages are overwritten, restored, compared; the number that came back right. */
enum kv_err kvt_svc_restore(struct kv_call *call, const struct kvt_engine *engine, struct kv_id session, uint32_t first,
                            uint32_t count, uint32_t *ret_right);
enum kv_err kvt_svc_lookup(struct kv_call *call, const struct kvt_engine *engine, struct kv_id session, uint32_t first,
                           uint32_t count, uint32_t *ret_leading);
/* Memory is written down and freed; waits for the end. */
enum kv_err kvt_svc_drain(struct kv_call *call);
/* Asks for a session's erasure, on the ground "other", and looks at it until it has ended or the seconds are over. */
enum kv_err kvt_svc_ask(struct kv_call *call, struct kv_id session, unsigned wait_seconds,
                        struct kv_erasure_view *ret_erasure, bool *ret_existed);
/* Erases and waits for the end. */
struct kv_erasure_view kvt_svc_erase(struct kv_call *call, struct kv_id session);
/* The bundle verifies with the service's own public keys. */
bool kvt_svc_certificate_good(struct kv_call *call, struct kv_id erasure, struct kv_buf *ret_bundle);

/* A test of its own: with `fault` set, an erasure ends with a certificate that verifies, the session is refused, one
 * beside it lives, and the next erasure ends as well. */
bool kvt_svc_erases_despite(const char *fault); /* only with KV_FAULTS */
/* Offload, restore, lookup and reading answer SESSION_ERASED, restore nothing, and name the erasure. */
bool kvt_svc_refused(struct kv_call *call, const struct kvt_engine *engine, struct kv_id session, struct kv_id erasure);
/* The session's block ids, 32 bytes each, into an initialised buffer. */
void kvt_svc_block_ids(struct kvt_svc *rig, struct kv_id session, struct kv_buf *ret_ids);

bool kvt_svc_check_ok(struct kvt_svc *rig, const char *name); /* of kv_svc_ready */
const char *kvt_svc_check_detail(struct kvt_svc *rig, const char *name);
/* Until check `name` is `ok`; false after KVT_WAIT_S. */
bool kvt_svc_await_check(struct kvt_svc *rig, const char *name, bool ok);

/* --- behind the service's back --- */
void kvt_db_run(const struct kvt_svc *rig, const char *sql);
long long kvt_db_number(const struct kvt_svc *rig, const char *sql); /* one row, one column; -1 for null */
/* No connection to the rig's database lives, and none is let in, until it is back. */
void kvt_db_stop(const struct kvt_svc *rig);
void kvt_db_back(const struct kvt_svc *rig);
/* Copies of the database; the service has to be stopped. */
void kvt_db_keep(const struct kvt_svc *rig, const char *suffix);
void kvt_db_swap(const struct kvt_svc *rig, const char *suffix); /* the kept one is in force, ours is kept */

#endif
