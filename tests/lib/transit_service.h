/*
 * A key service of a test's own: tests/lib/transit_double.py on a free port of this machine, until the test's process
 * ends.
 */
#ifndef KV_TESTS_TRANSIT_SERVICE_H
#define KV_TESTS_TRANSIT_SERVICE_H

#include "dataplane/keys/roe.h"
#include "tests/lib/temp_folder.h"

struct kvt_transit {
    char address[64], token_file[KVT_PATH_BYTES];
    struct kv_roe_transit_conf conf; /* borrows from here */
};

/* False: it does not start (no python3). The token file is in `folder`. */
bool kvt_transit_start(const char *folder, struct kvt_transit *ret_transit);
/* Sets its controls, see the script; what it says of itself is put into `answer`. */
void kvt_transit_control(const struct kvt_transit *transit, const char *json, char *answer, size_t size);

#endif
