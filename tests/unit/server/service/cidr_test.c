/* Address ranges of API keys: one spelling each, IPv4 and IPv6 apart. */
#include "server/service/svc_key.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>

static const uint8_t *address(const char *text)
{
    static uint8_t bytes[16];
    memset(bytes, 0, sizeof bytes);
    if (strchr(text, ':') != NULL) {
        cr_assert(eq(int, inet_pton(AF_INET6, text, bytes), 1));
    } else {
        memset(bytes + 10, 0xff, 2);
        cr_assert(eq(int, inet_pton(AF_INET, text, bytes + 12), 1));
    }
    return bytes;
}

Test(cidr, has_one_spelling)
{
    static const struct {
        const char *text, *canonical; /* NULL: it is none */
    } cases[] = {
        {"10.0.0.0/8", "10.0.0.0/8"},
        {"10.0.0.1/32", "10.0.0.1/32"},
        {"0.0.0.0/0", "0.0.0.0/0"},
        {"2001:DB8::/32", "2001:db8::/32"},
        {"::/0", "::/0"},
        {"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128"},
        {"10.0.0.1/31", NULL},
        {"10.0.0.0/33", NULL},
        {"::1/127", NULL},
        {"::/129", NULL},
        {"::ffff:10.0.0.0/104", NULL},
        {"10.0.0/8", NULL},
        {"010.0.0.0/8", NULL},
        {"10.0.0.0", NULL},
        {"10.0.0.0/", NULL},
        {"10.0.0.0/8 ", NULL},
        {" 10.0.0.0/8", NULL},
        {"10.0.0.0/+8", NULL},
        {"10.0.0.0/0008", NULL},
        {"/8", NULL},
        {"", NULL},
        {"fe80::1%eth0/128", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[KV_CIDR_SIZE] = "untouched";
        bool good = kv_cidr_canonical(cases[i].text, text);
        cr_assert(eq(int, good, cases[i].canonical != NULL), "\"%s\"", cases[i].text);
        cr_assert(good == false || strcmp(text, cases[i].canonical) == 0, "\"%s\"", cases[i].text);
    }
}

Test(cidr, holds_its_addresses_and_none_beside)
{
    static const struct {
        const char *cidr, *address;
        bool holds;
    } cases[] = {
        {"10.0.0.0/8", "10.0.0.0", true},
        {"10.0.0.0/8", "10.255.255.255", true},
        {"10.0.0.0/8", "11.0.0.0", false},
        {"10.0.0.0/8", "9.255.255.255", false},
        {"192.168.1.128/25", "192.168.1.127", false},
        {"192.168.1.128/25", "192.168.1.128", true},
        {"0.0.0.0/0", "255.255.255.255", true},
        {"0.0.0.0/0", "::1", false},
        {"::/0", "2001:db8::1", true},
        {"::/0", "127.0.0.1", false},
        {"2001:db8::/33", "2001:db8:7fff::", true},
        {"2001:db8::/33", "2001:db8:8000::", false},
        {"::1/128", "::1", true},
        {"::1/128", "::2", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cr_assert(eq(int, kv_cidr_holds(cases[i].cidr, address(cases[i].address)), cases[i].holds), "%s in %s",
                  cases[i].address, cases[i].cidr);
    }
}
