/* What the API tells of the process: see server/http/facts.h. Must never hand out a secret of the configuration. */
#include "server/serve_int.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static bool fact_at(void *ctx, size_t index, struct kv_fact *ret_fact)
{
    struct server *server = ctx;
    struct kv_conf_entry entry;
    if (index >= kv_conf_count()) {
        return false;
    }
    pthread_mutex_lock(&server->conf_mutex);
    kv_conf_entry(server->conf, server->serve->origins, index, &entry);
    pthread_mutex_unlock(&server->conf_mutex);
    *ret_fact = (struct kv_fact){
        .key = entry.key, .origin = entry.origin, .number = entry.number, .reloadable = entry.reloadable};
    snprintf(ret_fact->value, sizeof ret_fact->value, "%s", entry.value);
    return true;
}

static bool below(const char *path, const char *folder)
{
    size_t len = strlen(folder);
    return strncmp(path, folder, len) == 0 && (path[len] == '/' || path[len] == '\0');
}

/* The file system of a path, or of the nearest folder above it that is there. */
static bool file_system(const char *path, dev_t *ret_device)
{
    char at[KV_CONF_TEXT_SIZE + 32];
    struct stat there;
    snprintf(at, sizeof at, "%s", path);
    while (stat(at, &there) != 0) {
        char *slash = strrchr(at, '/');
        if (slash == NULL || slash == at) {
            return false;
        }
        *slash = '\0';
    }
    *ret_device = there.st_dev;
    return true;
}

static bool same_file_system(const char *a, const char *b)
{
    dev_t one = 0, other = 0;
    return file_system(a, &one) && file_system(b, &other) && one == other;
}

void serve_know_facts(struct server *server)
{
    const struct kv_conf *conf = server->conf;
    bool own = conf->db_url[0] == '\0', memory = strcmp(conf->root_provider, "memory") == 0,
         file = strcmp(conf->root_provider, "file") == 0;
    snprintf(server->database_folder, sizeof server->database_folder, "%.1000s/postgres", server->state);
    server->facts = (struct kv_http_facts){
        .ctx = server,
        .at = fact_at,
        .state_folder = server->state,
        .root_path = file ? server->root_path : NULL,
        .nvme_path = conf->nvme_bytes > 0 ? server->nvme_path : NULL,
        .database_folder = own ? server->database_folder : NULL,
        .anchor_file = conf->anchor_file[0] != '\0' ? conf->anchor_file : NULL,
        .root_in_memory = memory,
        .root_in_state = file && below(server->root_path, server->state),
        .root_beside_data = file && same_file_system(server->root_path, server->state),
        .insecure_listen = conf->tls_cert_file[0] == '\0' && strncmp(conf->http_listen, "127.", 4) != 0 &&
                           strncmp(conf->http_listen, "[::1]", 5) != 0,
    };
}
