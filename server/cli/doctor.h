/*
 * `kvrun doctor`: findings about this machine and this configuration, each ok, warn or fail, with a reason and, when it
 * is not ok, what to do. A check looks and changes nothing; what it makes to try something, it removes. Thread: main.
 */
#ifndef KV_CLI_DOCTOR_H
#define KV_CLI_DOCTOR_H

#include "server/config/conf.h"

#include <stdio.h>

enum doctor_state { DOCTOR_OK, DOCTOR_WARN, DOCTOR_FAIL };

struct doctor_finding {
    const char *check; /* "io_uring" */
    enum doctor_state state;
    char reason[320], fix[320]; /* fix: empty when ok */
};

#define DOCTOR_FINDINGS_MAX 48

struct doctor {
    const struct kv_conf *conf;
    const char *root; /* before /proc and /sys, for tests; "" */
    struct doctor_finding findings[DOCTOR_FINDINGS_MAX];
    size_t count;
};

/* `fix` is what to do, ignored when ok. More findings than fit are dropped. */
void doctor_say(struct doctor *doctor, const char *check, enum doctor_state state, const char *fix, const char *format,
                ...) __attribute__((format(printf, 5, 6)));

/* The machine: io_uring, locked memory, memory, descriptors, clock, cores. */
void doctor_machine(struct doctor *doctor);
/* The places of the configuration: folders, the root of erasure, files with secrets, ports, libraries, a server. */
void doctor_places(struct doctor *doctor);

/* What a refused io_uring_setup means. `error`: 0 or errno; `disabled`: kernel.io_uring_disabled, -1 when unknown. */
void doctor_uring(struct doctor *doctor, int error, int disabled);
void doctor_memlock(struct doctor *doctor, uint64_t limit, bool unlimited);
void doctor_secret_memory(struct doctor *doctor, int error); /* of memfd_secret: 0 or errno */
void doctor_root_place(struct doctor *doctor, const char *root_file);
/* `root_file`: NULL when the root is no file. */
void doctor_anchor_place(struct doctor *doctor, const char *anchor, const char *root_file);
bool doctor_same_device(const char *a, const char *b); /* or the nearest folders above that are there */
void doctor_secret_file(struct doctor *doctor, const char *check, const char *path);
/* A TLS certificate that holds until `end_s`. */
void doctor_certificate(struct doctor *doctor, int64_t end_s, int64_t now_s);
/* A folder that backups and databases take: the root file must not lie in it. */
bool doctor_lies_in(const char *path, const char *folder);

/* Prints what was found, as lines or one JSON object. 0, or 1 when something failed. */
int doctor_print(const struct doctor *doctor, bool json, FILE *out);

#endif
