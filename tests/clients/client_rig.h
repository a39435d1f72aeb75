/* A client of libkvrun between two canned servers, and what most tests of it need. Functions fail the test. */
#ifndef KV_TESTS_CLIENTS_RIG_H
#define KV_TESTS_CLIENTS_RIG_H

#include "api/clients/c/kvrun.h"
#include "tests/clients/canned_server.h"

#define RIG_ENGINE "{\"id\":\"eng_0123456789abcdefghjkmnpqrs\",\"server_incarnation\":\"ins_1\",\"lease_seconds\":3600}"
#define RIG_ENGINE_OF_ANOTHER_SERVER "{\"id\":\"eng_another\",\"server_incarnation\":\"ins_2\",\"lease_seconds\":3600}"
#define RIG_BEAT "{\"revocations\":[]}"
#define RIG_BLOCKS_MAX (KVRUN_BLOCKS_PER_CALL_MAX + 1)

extern struct canned_server *rig_server, *rig_fd_server; /* of HTTP, and of descriptors */
extern struct kvrun_client *rig_client;
extern struct kvrun_error rig_error;
extern struct kvrun_block rig_blocks[RIG_BLOCKS_MAX];

void rig_open(void);
void rig_close(void);
void rig_stop_server(void);
void rig_start_server(void); /* anew, with nothing to answer yet */
void rig_failed(bool fine, const char *code, int status);
/* With the callbacks, when they are not NULL. The server answers one request. */
void rig_register(void (*revoked)(void *, const char *),
                  void (*link_changed)(void *, bool, const struct kvrun_error *));
/* The server answers two, the heartbeat and the pool; or only the pool. */
uint32_t rig_pool(void);
uint32_t rig_pool_alone(void);
struct kvrun_blocks rig_in(uint32_t pool, uint32_t count);
struct kvrun_stats rig_stats(void);
void rig_wait_until_up(bool up);
/* Of `count` blocks that are all restored; owned by the caller. */
char *rig_restored_answer(uint32_t count);

#endif
