/*
 * A server of a test's own on a UNIX socket: answers each request with the next of the answers it was given, keeps the
 * last request, and can play the descriptor socket. Thread: the functions belong to the test; the server runs in a
 * thread of its own.
 */
#ifndef KV_TESTS_CLIENTS_CANNED_SERVER_H
#define KV_TESTS_CLIENTS_CANNED_SERVER_H

#include <stddef.h>

struct canned_server;

/* `path` is made by it and removed at the end. */
struct canned_server *canned_start(const char *path);
void canned_stop(struct canned_server *server);
/* Answers an HTTP request with this status and body (copied); the last answer given is repeated for ever. */
void canned_answer(struct canned_server *server, int status, const char *body);
/* Heartbeats get this answer (borrowed) with 200 from now on, and are no part of the sequence. */
void canned_beat(struct canned_server *server, const char *body);
/* Takes a request, sends these bytes (copied) as they are, and closes. */
void canned_raw(struct canned_server *server, const char *bytes);
/* Takes a request and says nothing; the connection stays open. */
void canned_silence(struct canned_server *server);
/* Answers a handed over descriptor with these bytes, in two pieces; NULL: closes without a word. */
void canned_line(struct canned_server *server, const char *line);

/* After the calls returned: the last request as it came, and how many there were. */
const char *canned_request(struct canned_server *server);
unsigned canned_request_count(struct canned_server *server);
/* The descriptor that came last, owned by the server; -1 when none did. */
int canned_descriptor(struct canned_server *server);

#endif
