/*
 * See exit_code.h. An error that is added to the registry has an exit code at once: its status says which, unless its
 * class or a row below knows better. Must never give two meanings to one code.
 */
#include "server/cli/exit_code.h"

static const struct {
    enum kv_err rc;
    int code;
} exceptions[] = {
    {KV_E_NOT_YET, CLI_UNAVAILABLE},   /* 404, but it will be there */
    {KV_E_SCHEMA_NEWER, CLI_CONFLICT}, /* 500: two versions that do not go together */
    {KV_E_CONFIG, CLI_USAGE},          /* 500 to others, here it is the caller's */
    {KV_E_TENANT_FULL, CLI_CONFLICT},  /* 422, but the request is fine */
    {KV_E_LIMIT, CLI_CONFLICT},        /* the same */
};

static const struct {
    int status, code;
} by_status[] = {
    {401, CLI_AUTH},        {403, CLI_AUTH},        {404, CLI_NOT_FOUND},   {409, CLI_CONFLICT}, {410, CLI_NOT_FOUND},
    {412, CLI_CONFLICT},    {429, CLI_UNAVAILABLE}, {500, CLI_NEGATIVE},    {501, CLI_USAGE},    {502, CLI_UNAVAILABLE},
    {503, CLI_UNAVAILABLE}, {504, CLI_UNAVAILABLE}, {507, CLI_UNAVAILABLE},
};

int cli_exit_of_status(int status)
{
    for (size_t i = 0; i < sizeof by_status / sizeof by_status[0]; i++) {
        if (by_status[i].status == status) {
            return by_status[i].code;
        }
    }
    return status >= 200 && status < 300 ? CLI_OK : status >= 400 && status < 500 ? CLI_USAGE : CLI_NEGATIVE;
}

int cli_exit_of(enum kv_err rc)
{
    if (rc == KV_OK) {
        return CLI_OK;
    }
    for (size_t i = 0; i < sizeof exceptions / sizeof exceptions[0]; i++) {
        if (exceptions[i].rc == rc) {
            return exceptions[i].code;
        }
    }
    return kv_err_class_of(rc) == KV_CLASS_INTEGRITY ? CLI_INTEGRITY : cli_exit_of_status(kv_err_http(rc));
}

const char *cli_exit_text(int code)
{
    static const char *const texts[] = {
        [CLI_OK] = "done",
        [CLI_NEGATIVE] = "a check failed, the answer is no, or an internal error",
        [CLI_USAGE] = "wrong use, configuration, or a request that is not valid",
        [CLI_NOT_FOUND] = "not found, or erased",
        [CLI_AUTH] = "no valid key, or one that may not do this; a server that is not who it should be",
        [CLI_CONFLICT] = "the state of things forbids it",
        [CLI_UNAVAILABLE] = "not reachable or not ready now; try again",
        [CLI_INTEGRITY] = "something is not what it should be: a signature, a hash, a seal",
    };
    return code >= 0 && (size_t)code < sizeof texts / sizeof texts[0] ? texts[code] : NULL;
}
