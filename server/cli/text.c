/*
 * Text for people. Must never let through what a terminal would obey: names and reasons come from others.
 */
#include "server/cli/cli_int.h"

#include <string.h>
#include <time.h>

/* The length of the UTF-8 sequence at `text` and its character; 0 when it is none. */
static size_t decode(const unsigned char *text, size_t len, uint32_t *ret_char)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t want = text[0] < 0x80 ? 1 : text[0] >= 0xf0 ? 4 : text[0] >= 0xe0 ? 3 : text[0] >= 0xc2 ? 2 : 0;
    if (want == 0 || want > len || text[0] > 0xf4) {
        return 0;
    }
    uint32_t c = want == 1 ? text[0] : text[0] & (0xffu >> (want + 1));
    for (size_t i = 1; i < want; i++) {
        if ((text[i] & 0xc0) != 0x80) {
            return 0;
        }
        c = c << 6 | (text[i] & 0x3fu);
    }
    *ret_char = c;
    return c >= least[want] && c <= 0x10ffff && (c < 0xd800 || c > 0xdfff) ? want : 0;
}

/* What moves a cursor, starts an escape sequence, hides, or turns the direction of what follows (UAX 9). */
static bool is_unfit(uint32_t c)
{
    return c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0x061c || (c >= 0x200b && c <= 0x200f) ||
           (c >= 0x2028 && c <= 0x202e) || (c >= 0x2060 && c <= 0x206f) || c == 0xfeff ||
           (c >= 0xfff9 && c <= 0xfffb) || (c >= 0xe0000 && c <= 0xe007f);
}

size_t cli_clean(struct kv_buf *out, const char *text, size_t len)
{
    size_t count = 0;
    for (size_t i = 0; i < len; count++) {
        uint32_t c = 0;
        size_t n = decode((const unsigned char *)text + i, len - i, &c);
        if (n == 0 || is_unfit(c)) {
            kv_buf_text(out, "?");
        } else {
            kv_buf_append(out, text + i, n);
        }
        i += n == 0 ? 1 : n;
    }
    return count;
}

static int64_t seconds_of(const char *text)
{
    struct tm tm = {0};
    const char *rest = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);
    return rest == NULL || (*rest != '.' && *rest != 'Z') ? -1 : (int64_t)timegm(&tm);
}

bool cli_when(const char *text, int64_t now_s, char ret_text[32])
{
    static const struct {
        int64_t below, unit;
        const char *name;
    } steps[] = {{120, 1, "s"}, {7200, 60, "m"}, {172800, 3600, "h"}, {INT64_MAX, 86400, "d"}};
    int64_t then = seconds_of(text);
    if (then < 0) {
        return false;
    }
    int64_t away = then > now_s ? then - now_s : now_s - then;
    size_t i = 0;
    while (away >= steps[i].below) {
        i++;
    }
    long long n = (long long)(away / steps[i].unit);
    if (then > now_s) {
        snprintf(ret_text, 32, "in %lld%s", n, steps[i].name);
    } else {
        snprintf(ret_text, 32, "%lld%s ago", n, steps[i].name);
    }
    return true;
}

void cli_size(uint64_t bytes, char ret_text[32])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    size_t unit = 0;
    double value = (double)bytes;
    while (value >= 1024 && unit + 1 < sizeof units / sizeof units[0]) {
        value /= 1024;
        unit++;
    }
    snprintf(ret_text, 32, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
}

int cli_write(const struct kv_buf *out)
{
    if (kv_buf_check(out) != KV_OK) {
        fputs("kvrun: the output is too long\n", stderr);
        return CLI_NEGATIVE;
    }
    /* An answer that could not be written is no answer. */
    bool ok = fwrite(out->data == NULL ? (const uint8_t *)"" : out->data, 1, out->len, stdout) == out->len &&
              fflush(stdout) == 0;
    return ok ? CLI_OK : CLI_NEGATIVE;
}

unsigned cli_distance(const char *a, const char *b)
{
    size_t n = strnlen(a, 63), m = strnlen(b, 63);
    unsigned row[64];
    for (size_t j = 0; j <= m; j++) {
        row[j] = (unsigned)j;
    }
    for (size_t i = 1; i <= n; i++) {
        unsigned diagonal = row[0];
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= m; j++) {
            unsigned above = row[j], change = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
            unsigned step = (above < row[j - 1] ? above : row[j - 1]) + 1;
            row[j] = change < step ? change : step;
            diagonal = above;
        }
    }
    return row[m];
}
