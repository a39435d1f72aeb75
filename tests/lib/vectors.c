/* See vectors.h. Mistakes in a vector file end the test program: they are mistakes of ours. */
#include "tests/lib/vectors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "kv_version.h"

enum { INFLATED_MAX = 16 << 20 };

static void die(const char *what, const char *name)
{
    fprintf(stderr, "vectors: %s: %s\n", what, name);
    abort();
}

size_t vectors_each(const char *file, vectors_fn *fn, void *ctx)
{
    char path[1024];
    json_error_t error;
    size_t count = 0, g, t;
    json_t *group, *test;
    snprintf(path, sizeof path, "%s/tests/vectors/%s", KV_SOURCE_DIR, file);
    json_t *root = json_load_file(path, 0, &error);
    if (root == NULL) {
        fprintf(stderr, "vectors: %s: %s\n", file, error.text);
        return 0;
    }
    json_array_foreach(json_object_get(root, "testGroups"), g, group)
    {
        json_array_foreach(json_object_get(group, "tests"), t, test)
        {
            fn(group, test, ctx);
            count++;
        }
    }
    json_decref(root);
    return count;
}

static int digit(char c)
{
    const char *digits = "0123456789abcdef";
    const char *at = c == '\0' ? NULL : strchr(digits, c);
    return at == NULL ? -1 : (int)(at - digits);
}

struct kv_bytes vectors_hex(json_t *object, const char *member)
{
    const char *text = json_string_value(json_object_get(object, member));
    if (text == NULL || strlen(text) % 2 != 0) {
        die("not a hex member", member);
    }
    size_t len = strlen(text) / 2;
    uint8_t *data = malloc(len > 0 ? len : 1);
    for (size_t i = 0; i < len; i++) {
        int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);
        if (high < 0 || low < 0) {
            die("not a hex digit", member);
        }
        data[i] = (uint8_t)(high * 16 + low);
    }
    return KV_BYTES(data, len);
}

struct kv_bytes vectors_inflated(json_t *object, const char *member)
{
    struct kv_bytes deflated = vectors_hex(object, member);
    uint8_t *room = malloc(INFLATED_MAX);
    uLongf len = INFLATED_MAX;
    if (uncompress(room, &len, deflated.data, (uLong)deflated.len) != Z_OK) {
        die("not a zlib stream", member);
    }
    vectors_free(deflated);
    uint8_t *exact = malloc(len > 0 ? len : 1);
    memcpy(exact, room, len);
    free(room);
    return KV_BYTES(exact, len);
}

void vectors_free(struct kv_bytes bytes)
{
    free((void *)(uintptr_t)bytes.data);
}

bool vectors_valid(json_t *test)
{
    return strcmp(json_string_value(json_object_get(test, "result")), "valid") == 0;
}

int vectors_id(json_t *test)
{
    return (int)json_integer_value(json_object_get(test, "tcId"));
}
