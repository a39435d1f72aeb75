/*
 * Address ranges of API keys. IPv4 and IPv6 are apart: an IPv4 range is one of ::ffff:0:0/96 inside, and a range of
 * IPv6 holds none of those, so "::/0" does not mean everybody.
 */
#include "server/service/svc_key.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct range {
    int family;
    uint8_t address[16]; /* IPv4: the first four */
    unsigned bits, bits_max;
};

static bool parse(const char *text, struct range *ret_range)
{
    char address[KV_CIDR_SIZE];
    const char *slash = strchr(text, '/');
    size_t len = slash == NULL ? 0 : (size_t)(slash - text), digits = slash == NULL ? 0 : strlen(slash + 1);
    if (len == 0 || len >= sizeof address || digits == 0 || digits > 3 || strspn(slash + 1, "0123456789") != digits) {
        return false;
    }
    memcpy(address, text, len);
    address[len] = '\0';
    struct range range = {.family = strchr(address, ':') == NULL ? AF_INET : AF_INET6,
                          .bits = (unsigned)strtoul(slash + 1, NULL, 10)};
    range.bits_max = range.family == AF_INET ? 32 : 128;
    bool ok = inet_pton(range.family, address, range.address) == 1 && range.bits <= range.bits_max;
    *ret_range = range;
    return ok;
}

static bool bit(const uint8_t *address, unsigned at)
{
    return (address[at / 8] >> (7 - at % 8) & 1) != 0;
}

static bool is_ipv4(const uint8_t address[16])
{
    static const uint8_t prefix[12] = {[10] = 0xff, [11] = 0xff};
    return memcmp(address, prefix, sizeof prefix) == 0;
}

bool kv_cidr_canonical(const char *text, char ret_text[KV_CIDR_SIZE])
{
    struct range range;
    char address[INET6_ADDRSTRLEN];
    if (!parse(text, &range) || (range.family == AF_INET6 && is_ipv4(range.address)) ||
        inet_ntop(range.family, range.address, address, sizeof address) == NULL) {
        return false;
    }
    for (unsigned i = range.bits; i < range.bits_max; i++) {
        if (bit(range.address, i)) {
            return false;
        }
    }
    return snprintf(ret_text, KV_CIDR_SIZE, "%s/%u", address, range.bits) < KV_CIDR_SIZE;
}

bool kv_cidr_holds(const char *cidr, const uint8_t address[16])
{
    struct range range;
    bool ipv4 = is_ipv4(address);
    if (!parse(cidr, &range) || ipv4 != (range.family == AF_INET)) {
        return false;
    }
    const uint8_t *asked = ipv4 ? address + 12 : address;
    for (unsigned i = 0; i < range.bits; i++) {
        if (bit(asked, i) != bit(range.address, i)) {
            return false;
        }
    }
    return true;
}
