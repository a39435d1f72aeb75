/*
 * What handlers tell of the process that they run in and cannot know: its configuration and where it keeps what it has.
 * The wiring above fills it in. Thread: any; `at` locks what it must.
 */
#ifndef KV_HTTP_FACTS_H
#define KV_HTTP_FACTS_H

#include <stdbool.h>
#include <stddef.h>

#define KV_FACT_VALUE_SIZE 1040

/* One key of the configuration, as an operator may see it: without secrets. */
struct kv_fact {
    const char *key, *origin; /* static */
    char value[KV_FACT_VALUE_SIZE];
    bool number, reloadable;
};

struct kv_http_facts {
    void *ctx;
    bool (*at)(void *ctx, size_t index, struct kv_fact *ret_fact); /* false: past the last one */
    const char *state_folder, *root_path, *nvme_path;              /* absolute */
    const char *anchor_file;                                       /* NULL: none is configured */
    const char *database_folder;                                   /* of a private one; NULL: db.url */
    bool root_in_state;                                            /* the root of erasure lies in the state folder */
    bool root_beside_data; /* or on the same file system as it or as the private database */
    bool root_in_memory;
    bool insecure_listen; /* others than this machine reach the API without TLS */
};

#endif
