/* The library's memory: the C library's, in one place. What it keeps must never hold a key but for the one line that is
 * wiped. */
#include "api/clients/c/kvrun_int.h"

#include <stdlib.h>
#include <string.h>

void *kvrun_memory_new(size_t count, size_t size)
{
    return calloc(count, size);
}

void *kvrun_memory_resize(void *memory, size_t size)
{
    return realloc(memory, size);
}

char *kvrun_memory_text(const char *text)
{
    size_t size = strlen(text) + 1;
    char *copy = kvrun_memory_new(1, size);
    if (copy != NULL) {
        memcpy(copy, text, size);
    }
    return copy;
}

void kvrun_memory_free(void *memory)
{
    free(memory);
}

void kvrun_text_free(char *text)
{
    kvrun_memory_free(text);
}
