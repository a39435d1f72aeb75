/* See soft_token.h. */
#include "tests/lib/soft_token.h"

#include "tests/lib/run_program.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool find_module(char path[KVT_PATH_BYTES])
{
    static const char *const places[] = {"/usr/lib/softhsm/libsofthsm2.so", "/usr/lib/*/softhsm/libsofthsm2.so",
                                         "/usr/lib64/softhsm/libsofthsm2.so", "/usr/lib64/pkcs11/libsofthsm2.so",
                                         "/usr/local/lib/softhsm/libsofthsm2.so"};
    bool found = false;
    for (size_t i = 0; i < sizeof places / sizeof places[0] && !found; i++) {
        glob_t matches = {0};
        if (glob(places[i], 0, NULL, &matches) == 0 && matches.gl_pathc > 0) {
            snprintf(path, KVT_PATH_BYTES, "%s", matches.gl_pathv[0]);
            found = true;
        }
        globfree(&matches);
    }
    return found;
}

bool kvt_token_make(const char *folder, struct kvt_token *ret_token)
{
    char conf_path[KVT_PATH_BYTES], conf[2 * KVT_PATH_BYTES], output[1024];
    struct kvt_token *token = ret_token;
    if (!find_module(token->module) || !kvt_program_exists("softhsm2-util")) {
        return false;
    }
    kvt_path_join(conf_path, folder, "softhsm2.conf");
    int len = snprintf(conf, sizeof conf, "directories.tokendir = %s\nobjectstore.backend = file\nlog.level = ERROR\n",
                       folder);
    kvt_file_write(conf_path, conf, (size_t)len, 0600);
    setenv("SOFTHSM2_CONF", conf_path, 1);
    const char *const argv[] = {"softhsm2-util", "--init-token", "--free",   "--label", "kvrun-test",
                                "--pin",         "4711-pin",     "--so-pin", "so-pin",  NULL};
    if (kvt_program_run(argv, output, sizeof output) != 0) {
        fprintf(stderr, "softhsm2-util: %s\n", output);
        return false;
    }
    kvt_path_join(token->pin_file, folder, "pin");
    kvt_file_write(token->pin_file, "4711-pin\n", 9, 0600);
    token->conf =
        (struct kv_roe_pkcs11_conf){.module = token->module, .token = "kvrun-test", .pin_file = token->pin_file};
    return true;
}

void kvt_token_shim(struct kvt_token *token)
{
    setenv("KVT_SHIM_MODULE", token->module, 1);
    kvt_program_of_build("tests/token_shim.so", token->module, sizeof token->module);
}
