/*
 * A secret of an operator in a file: a token's PIN, a key service's access token. It is read when it is needed and
 * wiped after it; it must never become part of a message.
 */
#include "dataplane/keys/roe_int.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static KV_RC check_file(int fd, const char *what, struct kv_errinfo *info)
{
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        return kv_fail(info, KV_E_CONFIG, "%s is not a plain file", what);
    }
    if ((st.st_mode & 077) != 0) {
        return kv_fail(info, KV_E_CONFIG, "others may read %s: chmod 600 it", what);
    }
    return KV_OK;
}

static KV_RC read_all(int fd, const char *what, struct kv_errinfo *info, struct kv_roe_text *text)
{
    for (;;) {
        ssize_t got = read(fd, text->text + text->len, KV_ROE_TEXT_BYTES - text->len);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return kv_fail(info, KV_E_CONFIG, "%s cannot be read: %s", what, strerror(errno));
        }
        if (got == 0) {
            break;
        }
        text->len += (size_t)got;
        if (text->len == KV_ROE_TEXT_BYTES) {
            return kv_fail(info, KV_E_CONFIG, "%s is over %d bytes", what, KV_ROE_TEXT_BYTES - 1);
        }
    }
    while (text->len > 0 && (text->text[text->len - 1] == '\n' || text->text[text->len - 1] == '\r')) {
        text->len--;
    }
    text->text[text->len] = '\0';
    if (text->len == 0 || memchr(text->text, '\0', text->len) != NULL || strpbrk(text->text, "\r\n") != NULL) {
        return kv_fail(info, KV_E_CONFIG, "%s must hold one line and nothing else", what);
    }
    return KV_OK;
}

KV_RC kv_roe_text_read(const char *path, const char *what, struct kv_errinfo *info, struct kv_roe_text *ret_text)
{
    struct kv_roe_text text = {0};
    void *page = NULL;
    if (path == NULL || path[0] != '/') {
        return kv_fail(info, KV_E_CONFIG, "%s needs an absolute path", what);
    }
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0) {
        return kv_fail(info, KV_E_CONFIG, "%s cannot be opened: %s", what, strerror(errno));
    }
    enum kv_err rc = check_file(fd, what, info);
    if (rc == KV_OK && kv_locked_alloc(KV_ROE_TEXT_BYTES, &page) != KV_OK) {
        rc = kv_fail(info, KV_E_NO_MEMORY, "no memory for %s", what);
    }
    text.text = page;
    if (rc == KV_OK) {
        rc = read_all(fd, what, info, &text);
    }
    close(fd);
    if (rc != KV_OK) {
        kv_roe_text_done(&text);
        return rc;
    }
    *ret_text = text;
    return KV_OK;
}

void kv_roe_text_done(struct kv_roe_text *text)
{
    if (text->text != NULL) {
        kv_locked_free(text->text, KV_ROE_TEXT_BYTES);
    }
    *text = (struct kv_roe_text){0};
}
