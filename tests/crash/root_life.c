/* The protocol of server/service/root.c and erase_steps.c around a provider, with memory in the place of a database. */
#include "tests/crash/root_life.h"

#include "dataplane/base/id.h"

#include <stdio.h>
#include <string.h>

#define GIVEN_UP 1u /* the attempt whose re-key is not committed */

struct living {
    const struct life_conf *conf;
    struct life_book *book;
    struct kv_roe *roe;
};

const char *life_naive_name(enum life_naive naive)
{
    static const char *const names[LIFE_NAIVES] = {
        "", "rename", "mark_first", "activate_first", "adopt_staged", "not_repeated"};
    return names[naive];
}

static KV_RC trouble(const struct living *me, enum kv_err rc, const char *text)
{
    if (rc != KV_OK) {
        snprintf(me->book->trouble, sizeof me->book->trouble, "%s: %s", text, kv_err_name(rc));
    }
    return rc;
}

static struct life_root *root_of(struct life_book *book)
{
    return &book->roots[book->current];
}

/* Sessions that live open: the database's root leads to the secret that it led to before. */
static KV_RC opens(const struct living *me)
{
    const struct life_root *root = root_of(me->book);
    struct kv_secret *found KV_CLEANUP(kv_secret_freep) = NULL;
    KV_TRY(me->roe->ops->unwrap(me->roe, &root->id, KV_BYTES(root->blob, root->blob_len), &found));
    return memcmp(kv_secret_data(found), root->secret, sizeof root->secret) == 0 ? KV_OK : KV_E_WRONG_KEY;
}

static KV_RC wrap(const struct living *me, const struct kv_secret *secret, struct life_root *root)
{
    struct kv_buf blob;
    kv_buf_init(&blob, sizeof root->blob);
    enum kv_err rc = me->roe->ops->wrap(me->roe, &root->id, secret, &blob);
    if (rc == KV_OK) {
        memcpy(root->secret, kv_secret_data(secret), sizeof root->secret);
        memcpy(root->blob, blob.data, blob.len);
        root->blob_len = blob.len;
    }
    kv_buf_done(&blob);
    return rc;
}

static KV_RC make(const struct living *me, struct life_root *ret_root)
{
    struct kv_secret *secret KV_CLEANUP(kv_secret_freep) = NULL;
    KV_TRY(kv_id_new(&kv_env_system, &ret_root->id));
    KV_TRY(kv_secret_random(&kv_env_system, sizeof ret_root->secret, &secret));
    KV_TRY(me->roe->ops->create(me->roe, &ret_root->id));
    return wrap(me, secret, ret_root);
}

/* The commit of the re-key: from here on the old root is to be destroyed. */
static void rekey(struct life_book *book, const struct life_root *fresh)
{
    book->old = book->has_root ? root_of(book)->id : (struct kv_id){0};
    book->roots[1 - book->current] = *fresh;
    book->current = 1 - book->current;
    book->has_root = book->rekeyed = true;
}

static void say_gone(struct life_book *book, const struct kv_id *id)
{
    if (!kv_id_is_zero(id)) {
        book->gone[book->gone_count++ % LIFE_GONE_MAX] = *id;
    }
}

static KV_RC destroy(struct living *me)
{
    struct life_book *book = me->book;
    struct kv_roe_receipt receipt;
    const struct kv_id *fresh = &root_of(book)->id;
    KV_TRY(me->conf->naive == LIFE_RIGHT || kv_id_is_zero(&book->old)
               ? me->roe->ops->commit(me->roe, fresh, &book->old, &receipt)
               : life_naive_commit(me->conf, &me->roe, fresh, &book->old));
    say_gone(book, &book->old);
    book->rekeyed = false;
    return KV_OK;
}

static KV_RC discard(struct living *me, const struct kv_id *staged)
{
    if (kv_id_is_zero(staged)) {
        return KV_OK;
    }
    KV_TRY(me->roe->ops->discard(me->roe, staged));
    say_gone(me->book, staged);
    return KV_OK;
}

/* The table in dataplane/keys/README.md. */
static KV_RC recover(struct living *me)
{
    struct life_book *book = me->book;
    struct kv_id active, staged;
    KV_TRY(me->roe->ops->list(me->roe, &active, &staged));
    if (!book->has_root) {
        return kv_id_is_zero(&active) ? discard(me, &staged) : KV_E_ROLLBACK_DETECTED;
    }
    const struct kv_id *root = &root_of(book)->id;
    bool is_active = kv_id_equal(root, &active);
    if (!is_active && !kv_id_equal(root, &staged)) {
        return KV_E_ROLLBACK_DETECTED;
    }
    if (is_active && !kv_id_is_zero(&staged) && me->conf->naive == LIFE_ADOPT_STAGED) {
        struct kv_roe_receipt receipt;
        return me->roe->ops->commit(me->roe, &staged, root, &receipt);
    }
    if (is_active) {
        KV_TRY(discard(me, &staged));
    }
    KV_TRY(opens(me));
    return book->rekeyed ? destroy(me) : KV_OK;
}

static KV_RC first_root(struct living *me)
{
    struct life_root fresh = {0};
    KV_TRY(make(me, &fresh));
    rekey(me->book, &fresh);
    return destroy(me);
}

static KV_RC erase(struct living *me)
{
    struct life_root fresh = {0};
    unsigned attempt = me->book->attempts;
    KV_TRY(make(me, &fresh));
    if (attempt == GIVEN_UP) {
        me->book->attempts++;
        return discard(me, &fresh.id);
    }
    rekey(me->book, &fresh);
    me->book->attempts++;
    return destroy(me);
}

static KV_RC live(struct living *me)
{
    enum kv_err found = recover(me);
    me->book->lost = found == KV_E_ROLLBACK_DETECTED || found == KV_E_MISSING || found == KV_E_WRONG_KEY;
    KV_TRY(trouble(me, found, "what was found"));
    if (!me->book->has_root) {
        KV_TRY(trouble(me, first_root(me), "the first root"));
    }
    while (me->book->attempts < LIFE_ATTEMPTS) {
        KV_TRY(trouble(me, erase(me), "an erasure"));
    }
    found = opens(me);
    me->book->lost = found != KV_OK;
    return trouble(me, found, "what lives");
}

int life(const struct life_conf *conf, struct life_book *book)
{
    const struct kv_roe_conf file = {.provider = "file", .path = conf->path, .env = &kv_env_system};
    struct living me = {.conf = conf, .book = book};
    struct kv_errinfo info = {0};
    book->trouble[0] = '\0';
    book->lost = false;
    enum kv_err rc = kv_roe_open(&file, &info, &me.roe);
    if (rc != KV_OK) {
        snprintf(book->trouble, sizeof book->trouble, "opening: %s", info.text);
        return 1;
    }
    rc = live(&me);
    me.roe->ops->close(me.roe);
    return rc == KV_OK ? 0 : 1;
}
