/*
 * Selection of the I/O backend, and what both share. It never retries an error of the device: that is the owner's
 * decision.
 */
#include "dataplane/base/check.h"
#include "dataplane/base/fault.h"
#include "dataplane/base/log.h"
#include "dataplane/io/io_int.h"

#include <errno.h>
#include <sys/stat.h>

void kv_io_list_push(struct kv_io_list *list, struct kv_io_request *request)
{
    request->next = NULL;
    if (list->tail == NULL) {
        list->head = request;
    } else {
        list->tail->next = request;
    }
    list->tail = request;
    list->count++;
}

struct kv_io_request *kv_io_list_pop(struct kv_io_list *list)
{
    struct kv_io_request *request = list->head;
    if (request == NULL) {
        return NULL;
    }
    list->head = request->next;
    if (list->head == NULL) {
        list->tail = NULL;
    }
    list->count--;
    request->next = NULL;
    return request;
}

/* A read with O_DIRECT that goes on from an unaligned end of file is refused with EINVAL; it is an end of file all the
 * same. */
static bool read_stopped_at_end_of_file(const struct kv_io_request *request, int sys_errno)
{
    struct stat st;
    return sys_errno == EINVAL && request->verb == KV_IO_READ && request->done_bytes > 0 &&
           fstat(request->fd, &st) == 0 && (uint64_t)st.st_size <= request->offset + request->done_bytes;
}

static enum kv_io_step take_error(struct kv_io_request *request, int sys_errno)
{
    if (sys_errno == EINTR || sys_errno == EAGAIN) {
        return KV_IO_AGAIN;
    }
    if (!read_stopped_at_end_of_file(request, sys_errno)) {
        request->sys_errno = sys_errno;
    }
    return KV_IO_FINISHED;
}

enum kv_io_step kv_io_take_result(struct kv_io_request *request, int64_t result)
{
    if (result < 0) {
        return take_error(request, (int)-result);
    }
    if (request->verb == KV_IO_SYNC) {
        return KV_IO_FINISHED;
    }
    if (result == 0) {
        request->sys_errno = request->verb == KV_IO_WRITE ? EIO : 0;
        return KV_IO_FINISHED;
    }
    request->done_bytes += (uint64_t)result;
    KV_ASSERT(request->done_bytes <= request->bytes);
    return request->done_bytes == request->bytes ? KV_IO_FINISHED : KV_IO_MORE;
}

enum kv_err kv_io_result(const struct kv_io_request *request)
{
    if (request->sys_errno == ENOSPC || request->sys_errno == EDQUOT) {
        return KV_E_NO_SPACE;
    }
    if (request->sys_errno != 0) {
        return KV_E_IO;
    }
    if (request->verb != KV_IO_SYNC && request->done_bytes < request->bytes) {
        return KV_E_TRUNCATED;
    }
    return KV_OK;
}

bool kv_io_begin(struct kv_io_request *request)
{
    KV_ASSERT(request->done != NULL);
    KV_ASSERT(request->verb == KV_IO_SYNC || request->data != NULL || request->bytes == 0);
    request->sys_errno = 0;
    request->done_bytes = 0;
    request->next = NULL;
    if (KV_FAULT("io/submit")) {
        request->sys_errno = EIO;
        return true;
    }
    return request->verb != KV_IO_SYNC && request->bytes == 0;
}

unsigned kv_io_accept_max(const struct kv_io_conf *conf)
{
    return conf->depth + 4 * conf->depth;
}

KV_RC kv_io_open(const struct kv_io_conf *conf, struct kv_errinfo *info, struct kv_io **ret_io)
{
    KV_ASSERT(conf->env != NULL && ret_io != NULL);
    if (conf->depth == 0 || conf->depth > 4096 || conf->threads > 256) {
        return kv_fail(info, KV_E_CONFIG, "io depth must be 1 to 4096 and io threads at most 256");
    }
    if (conf->kind == KV_IO_THREADS) {
        return kv_io_threads.open(conf, info, ret_io);
    }
    if (conf->kind == KV_IO_URING) {
        return kv_io_uring.open(conf, info, ret_io);
    }
    struct kv_errinfo reason = {0};
    if (kv_io_uring.open(conf, &reason, ret_io) == KV_OK) {
        return KV_OK;
    }
    kv_log(KV_LOG_WARN, "io", "io_uring cannot be used, going on with threads", KV_FT("reason", reason.text),
           KV_FI("errno", reason.sys_errno));
    return kv_io_threads.open(conf, info, ret_io);
}
