/* Sessions' views from many threads: whoever changed a session never sees it as it was before. */
#include "dataplane/base/env.h"
#include "server/service/session_views.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <pthread.h>
#include <stdatomic.h>

#define READERS 3
#define SESSIONS 4u
#define CHANGES 4000u

static struct svc_views *views;
static const struct kv_id tenant = {.b = {9}};
static atomic_ullong committed[SESSIONS], answered[SESSIONS]; /* the database's row; what a caller was told of it */
static atomic_bool stop;
static atomic_uint wrong, hits;

static struct kv_id id_of(unsigned session)
{
    return (struct kv_id){.b = {1, [15] = (uint8_t)session}};
}

/* From memory, else from the "database" and back into memory. */
static void *read_all(void *arg)
{
    for (unsigned i = 0; !atomic_load(&stop); i++) {
        unsigned session = i % SESSIONS;
        struct kv_id id = id_of(session);
        struct kv_session_view view = {.id = id, .tenant = tenant};
        uint64_t known = atomic_load(&answered[session]);
        if (svc_views_get(views, &id, &tenant, &view)) {
            atomic_fetch_add(&hits, 1);
        } else {
            struct svc_view_mark mark = svc_views_mark(views, &id);
            view.rev = atomic_load(&committed[session]);
            svc_views_put(views, &mark, &view);
        }
        if (view.rev < known) {
            atomic_fetch_add(&wrong, 1);
        }
    }
    return NULL;
}

static void *change_all(void *arg)
{
    for (unsigned i = 0; i < CHANGES; i++) {
        unsigned session = i % SESSIONS;
        struct kv_id id = id_of(session);
        uint64_t rev = atomic_fetch_add(&committed[session], 1) + 1;
        svc_views_drop(views, &id);
        atomic_store(&answered[session], rev);
    }
    return NULL;
}

Test(views, never_go_back)
{
    pthread_t readers[READERS], changer;
    cr_assert(eq(int, svc_views_new(&kv_env_system, KV_S_NS, 3, &views), KV_OK)); /* one place too few */
    for (int i = 0; i < READERS; i++) {
        cr_assert(eq(int, pthread_create(&readers[i], NULL, read_all, NULL), 0));
    }
    while (atomic_load(&hits) == 0) { /* a control: something comes from memory */
    }
    cr_assert(eq(int, pthread_create(&changer, NULL, change_all, NULL), 0));
    pthread_join(changer, NULL);
    atomic_store(&stop, true);
    for (int i = 0; i < READERS; i++) {
        pthread_join(readers[i], NULL);
    }
    cr_assert(eq(uint, atomic_load(&wrong), 0));
    svc_views_free(views);
}
