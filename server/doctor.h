/* `kvrun doctor`: the checks of server/cli/doctor.h and those that need the database's client. */
#ifndef KV_DOCTOR_H
#define KV_DOCTOR_H

#include "server/config/conf.h"

/* argv: [--json]. Exit code: 0, 1 when a check failed, 2 wrong use. */
int kv_doctor(const struct kv_conf *conf, int argc, char **argv);

#endif
