/*
 * Sessions' views as they were read from the database a moment ago, for those who must not wait for it. A view is good
 * for as long as it was made to be, at most the instance's lease, so a change by another instance shows within that
 * time; a change by this process drops it before the change is answered. Views of active sessions only.
 *
 * Whoever reads takes a mark first. What was read under a mark is not kept when the session was dropped since, so what
 * was read before a change never comes back after it.
 *
 * Views hold clients' ids and labels: they are wiped when they go. Thread: any; a mutex, never held across a call.
 */
#ifndef KV_SERVICE_SESSION_VIEWS_H
#define KV_SERVICE_SESSION_VIEWS_H

#include "server/service/svc_session.h"

struct svc_views;

struct svc_view_mark {
    uint64_t drops, read_ns; /* CLOCK_BOOTTIME */
};

KV_RC svc_views_new(const struct kv_env *env, uint64_t good_ns, size_t max, struct svc_views **ret_views);
void svc_views_free(struct svc_views *views);

struct svc_view_mark svc_views_mark(struct svc_views *views, const struct kv_id *session);
/* Best effort: what is not kept is read again. */
void svc_views_put(struct svc_views *views, const struct svc_view_mark *mark, const struct kv_session_view *view);
/* False: not there, too old, or another tenant's. */
bool svc_views_get(struct svc_views *views, const struct kv_id *session, const struct kv_id *tenant,
                   struct kv_session_view *ret_view);
/* The session changed, or may have: after the commit, before the answer. NULL is fine. */
void svc_views_drop(struct svc_views *views, const struct kv_id *session);
/* Any of them may have changed. */
void svc_views_drop_all(struct svc_views *views);

#endif
