/* See session_views.h. Must never show a view of before a change that was answered here. */
#include "server/service/session_views.h"

#include "dataplane/base/check.h"
#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"
#include "dataplane/crypto/secret.h"
#include "server/service/idmap.h"

#include <pthread.h>
#include <string.h>

#define DROP_COUNTERS 1024u /* sessions that share one lose a reading now and then, nothing else */

struct kept {
    struct kv_session_view view;
    uint64_t until_ns;
};

struct svc_views {
    const struct kv_env *env;
    uint64_t good_ns;
    size_t max;
    pthread_mutex_t mutex;
    struct kv_idmap map;
    size_t hand; /* where the next one to give its place up is looked for */
    uint64_t drops[DROP_COUNTERS];
};

static void kept_free(struct kept *kept)
{
    if (kept != NULL) {
        kv_wipe(kept, sizeof *kept);
        kv_free(kept);
    }
}

static void free_all(struct kv_idmap *map)
{
    size_t position = 0;
    for (struct kept *kept = kv_idmap_next(map, &position); kept != NULL; kept = kv_idmap_next(map, &position)) {
        kept_free(kept);
    }
    kv_idmap_done(map);
}

KV_RC svc_views_new(const struct kv_env *env, uint64_t good_ns, size_t max, struct svc_views **ret_views)
{
    KV_ASSERT(max > 0);
    struct svc_views *views = kv_alloc(sizeof *views);
    if (views == NULL) {
        return KV_E_NO_MEMORY;
    }
    views->env = env;
    views->good_ns = good_ns;
    views->max = max;
    pthread_mutex_init(&views->mutex, NULL);
    kv_idmap_init(&views->map);
    *ret_views = views;
    return KV_OK;
}

void svc_views_free(struct svc_views *views)
{
    if (views == NULL) {
        return;
    }
    free_all(&views->map);
    pthread_mutex_destroy(&views->mutex);
    kv_free(views);
}

/* The last bytes of an id are random. */
static uint64_t *drops_of(struct svc_views *views, const struct kv_id *session)
{
    unsigned low = (unsigned)session->b[14] << 8 | session->b[15];
    return &views->drops[low % DROP_COUNTERS];
}

struct svc_view_mark svc_views_mark(struct svc_views *views, const struct kv_id *session)
{
    struct svc_view_mark mark = {.read_ns = views->env->boottime_ns(views->env->ctx)};
    pthread_mutex_lock(&views->mutex);
    mark.drops = *drops_of(views, session);
    pthread_mutex_unlock(&views->mutex);
    return mark;
}

/* Under the mutex: takes one out when all places are taken. */
static struct kept *make_room(struct svc_views *views)
{
    if (views->map.count < views->max) {
        return NULL;
    }
    const struct kept *any = kv_idmap_next(&views->map, &views->hand);
    if (any == NULL) {
        views->hand = 0;
        any = kv_idmap_next(&views->map, &views->hand);
    }
    struct kv_id id = any == NULL ? (struct kv_id){0} : any->view.id;
    return kv_idmap_take(&views->map, &id);
}

void svc_views_put(struct svc_views *views, const struct svc_view_mark *mark, const struct kv_session_view *view)
{
    struct kept *fresh = kv_alloc(sizeof *fresh), *old = NULL, *out = NULL;
    if (fresh == NULL) {
        return;
    }
    fresh->view = *view;
    fresh->until_ns = mark->read_ns + views->good_ns;
    pthread_mutex_lock(&views->mutex);
    if (*drops_of(views, &view->id) == mark->drops) {
        old = kv_idmap_take(&views->map, &view->id);
        out = make_room(views);
        if (old != NULL && old->until_ns > fresh->until_ns) { /* read later than this one */
            struct kept *swap = old;
            old = fresh;
            fresh = swap;
        }
        if (kv_idmap_put(&views->map, &view->id, fresh) == KV_OK) {
            fresh = NULL;
        }
    }
    pthread_mutex_unlock(&views->mutex);
    kept_free(fresh);
    kept_free(old);
    kept_free(out);
}

bool svc_views_get(struct svc_views *views, const struct kv_id *session, const struct kv_id *tenant,
                   struct kv_session_view *ret_view)
{
    uint64_t now = views->env->boottime_ns(views->env->ctx);
    pthread_mutex_lock(&views->mutex);
    const struct kept *kept = kv_idmap_get(&views->map, session);
    bool found = kept != NULL && now < kept->until_ns && kv_id_equal(&kept->view.tenant, tenant);
    if (found) {
        *ret_view = kept->view;
    }
    pthread_mutex_unlock(&views->mutex);
    return found;
}

void svc_views_drop(struct svc_views *views, const struct kv_id *session)
{
    if (views == NULL) {
        return;
    }
    pthread_mutex_lock(&views->mutex);
    ++*drops_of(views, session);
    struct kept *kept = kv_idmap_take(&views->map, session);
    pthread_mutex_unlock(&views->mutex);
    kept_free(kept);
}

void svc_views_drop_all(struct svc_views *views)
{
    if (views == NULL) {
        return;
    }
    struct kv_idmap all;
    pthread_mutex_lock(&views->mutex);
    for (size_t i = 0; i < DROP_COUNTERS; i++) {
        views->drops[i]++;
    }
    all = views->map;
    kv_idmap_init(&views->map);
    views->hand = 0;
    pthread_mutex_unlock(&views->mutex);
    free_all(&all);
}
