/*
 * Pages that must not be sealed. A page still holds what the session that used it last left there; when that session
 * was erased, sealing the page for another one would bring its content back under a key that lives. Engines that count
 * their pages' generations are kept from it: such a page is refused until its generation has moved on. So is a page
 * whose generation went back: the call was made for something that is not there any more.
 */
#include "server/service/svc_int.h"

#include "dataplane/base/id.h"
#include "server/service/svc_session.h"

/* Whoever cannot be asked about counts as erased: a page too many that is computed anew does no harm. */
static bool is_erased(struct kv_call *call, const struct kv_id *session, struct svc_page_guard *guard)
{
    struct kv_session_view view;
    if (!guard->asked || !kv_id_equal(&guard->session, session)) {
        struct kv_id erasure = call->erasure;
        guard->asked = true;
        guard->session = *session;
        guard->erased = kv_svc_session_get(call, session, false, &view) != KV_OK;
        call->info = (struct kv_errinfo){0};
        call->erasure = erasure;
    }
    return guard->erased;
}

bool svc_page_stale(struct kv_call *call, struct kv_pool *pool, bool seals, const struct kv_blocks_in *in,
                    uint32_t index, struct svc_page_guard *guard)
{
    struct kv_page_use last;
    if (!kv_pool_last_use(pool, in->slots[index], &last)) {
        return false;
    }
    uint64_t generation = in->generations == NULL ? last.generation : in->generations[index];
    if (generation != last.generation) {
        return generation < last.generation;
    }
    return seals && !kv_id_equal(&last.session, &in->session) && is_erased(call, &last.session, guard);
}

void svc_pages_used(struct kv_pool *pool, const struct kv_blocks_in *in, const struct kv_blocks_out *out)
{
    for (uint32_t i = 0; i < in->count; i++) {
        struct kv_page_use use = {.session = in->session};
        bool told = in->generations != NULL;
        bool used = out->results[i] == KV_BLOCK_STORED || out->results[i] == KV_BLOCK_PRESENT ||
                    out->results[i] == KV_BLOCK_RESTORED;
        if (used && (told || kv_pool_last_use(pool, in->slots[i], &use))) {
            use.generation = told ? in->generations[i] : use.generation;
            use.session = in->session;
            KV_IGNORE(kv_pool_note_use(pool, in->slots[i], &use),
                      "without memory the page is as it would be without generations");
        }
    }
}
