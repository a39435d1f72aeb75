/*
 * `kvrun demo`: the whole product once, in under a minute, with a private database and a real engine, checked at every
 * step. Exit code 0 and the last line "demo: ok" only when every step showed what it says.
 */
#ifndef KV_DEMO_H
#define KV_DEMO_H

int kv_demo(int argc, char **argv);

#endif
