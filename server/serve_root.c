/*
 * `kvrun root accept-loss`: for the owner of the data folder, when the root of erasure is gone for good or the database
 * went back to an older state. Without a server. Must never change anything before what is lost was named.
 */
#include "server/serve_offline.h"

#include "dataplane/base/env.h"
#include "dataplane/base/id.h"
#include "dataplane/base/log.h"
#include "server/cli/exit_code.h"
#include "server/service/svc_root.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define STATEMENT_TIMEOUT_MS 600000

struct words {
    const char *sessions, *provider; /* NULL: not given */
};

static bool read_words(int argc, char **argv, struct words *ret_words)
{
    static const char sessions[] = "--lose-sessions", provider[] = "--lost-provider";
    for (int i = 0; i < argc; i++) {
        size_t len = strcspn(argv[i], "=");
        bool first = len == strlen(sessions) && strncmp(argv[i], sessions, len) == 0;
        bool second = len == strlen(provider) && strncmp(argv[i], provider, len) == 0;
        const char *text = argv[i][len] == '=' ? argv[i] + len + 1 : argv[i + 1]; /* argv ends with NULL */
        if ((!first && !second) || text == NULL) {
            return false;
        }
        *(first ? &ret_words->sessions : &ret_words->provider) = text;
        i += argv[i][len] != '=';
    }
    return true;
}

/* The root may be said to be in memory, or with a provider that cannot be asked any more; that has to be said. */
static KV_RC check_provider(struct offline *offline, const struct words *words, const struct kv_root_loss *loss)
{
    if (strcmp(offline->conf->root_provider, kv_roe_memory.name) == 0) {
        return kv_fail(&offline->info, KV_E_CONFIG, "set a root.provider that lasts: what is in memory ends here");
    }
    bool named = words->provider != NULL && strcmp(words->provider, loss->provider) == 0;
    bool needed = loss->other_provider && strcmp(loss->provider, kv_roe_memory.name) != 0;
    if (needed && !named) {
        return kv_fail(&offline->info, KV_E_CONFIG,
                       "the database's root is held by the provider \"%.20s\": set root.provider to it, or say "
                       "--lost-provider=%.20s when it is gone for good",
                       loss->provider, loss->provider);
    }
    return words->provider == NULL || needed
               ? KV_OK
               : kv_fail(&offline->info, KV_E_INVALID_REQUEST, "--lost-provider is for another one than root.provider");
}

/* Nothing is lost by accident: the number of sessions is said back. */
static bool confirmed(const struct words *words, const struct kv_root_loss *loss)
{
    char number[24];
    snprintf(number, sizeof number, "%" PRIu64, loss->sessions);
    return words->sessions != NULL && strcmp(words->sessions, number) == 0;
}

static void ask(const struct words *words, const struct kv_root_loss *loss)
{
    char cluster[KV_ID_TEXT_SIZE];
    kv_id_text("clu", &loss->cluster, cluster);
    printf("%s: %s.\n"
           "Putting the right database and root back heals, and loses nothing. Accepting the loss cannot be undone:\n"
           "  %" PRIu64 " sessions are lost. Their blocks can never be opened again, and no certificate says so.\n"
           "  Erasures that have not ended end in quarantine. The database's backups of before stay refused.\n"
           "To accept it, run the same command with --lose-sessions=%" PRIu64 "\n",
           cluster, loss->why, loss->sessions, loss->sessions);
    if (words->sessions != NULL) {
        fprintf(stderr, "kvrun: --lose-sessions=%s is not the number of sessions that are lost; nothing was done\n",
                words->sessions);
    }
}

static KV_RC open_look(struct offline *offline, struct kv_root_look *look)
{
    const struct kv_conf *conf = offline->conf;
    char root[KV_CONF_TEXT_SIZE + 16];
    KV_TRY(serve_offline_open(offline, "kvrun/accept-loss", STATEMENT_TIMEOUT_MS));
    serve_root_path(conf, offline->state, root);
    struct kv_roe_conf roe = serve_roe_conf(conf, root);
    look->pg = offline->pg;
    KV_TRY(conf->anchor_file[0] == '\0' ? KV_OK
                                        : kv_anchor_file_open(conf->anchor_file, &offline->info, &look->anchor));
    return kv_roe_open(&roe, &offline->info, &look->roe);
}

static void close_look(struct kv_root_look *look)
{
    if (look->roe != NULL) {
        look->roe->ops->close(look->roe);
    }
    if (look->anchor != NULL) {
        look->anchor->ops->close(look->anchor);
    }
}

static KV_RC accept_loss(struct offline *offline, const struct words *words, int *ret_code)
{
    struct kv_root_look look = {0};
    struct kv_root_loss loss;
    enum kv_err rc = open_look(offline, &look);
    rc = rc == KV_OK ? kv_svc_root_loss(&look, &offline->info, &loss) : rc;
    rc = rc == KV_OK ? check_provider(offline, words, &loss) : rc;
    if (rc == KV_OK && !confirmed(words, &loss)) {
        ask(words, &loss);
        *ret_code = CLI_USAGE;
    } else if (rc == KV_OK) {
        rc = kv_svc_root_accept_loss(look.pg, look.roe, &kv_env_system, &loss, &offline->info);
        *ret_code = CLI_OK;
    }
    if (rc == KV_OK && *ret_code == CLI_OK) {
        printf("%" PRIu64 " sessions are lost. There is a fresh root of erasure; start the server.\n%s", loss.sessions,
               look.anchor == NULL ? "" : "If it finds the anchor to be of a newer database, empty anchor.file.\n");
    }
    close_look(&look);
    return rc;
}

int kv_serve_accept_loss(const struct kv_conf *conf, int argc, char **argv)
{
    struct offline offline = {.conf = conf, .alone = true};
    struct words words = {0};
    int code = CLI_OK;
    if (!read_words(argc, argv, &words)) {
        fprintf(stderr, "usage: kvrun root accept-loss [--lose-sessions=N] [--lost-provider=NAME] [--key=value …]\n");
        return CLI_USAGE;
    }
    kv_log_set_level(KV_LOG_WARN);
    umask(0077);
    enum kv_err rc = accept_loss(&offline, &words, &code);
    serve_offline_close(&offline);
    return rc == KV_OK ? code : serve_offline_failed(&offline, rc);
}
