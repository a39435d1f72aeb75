/*
 * The parts of the I/O backends that need no kernel: lists, continuation, mapping of errors.
 */
#include "dataplane/io/io_int.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void ignore(struct kv_io_request *request, enum kv_err rc)
{
}

static struct kv_io_request request_of(enum kv_io_verb verb, uint64_t bytes)
{
    static uint8_t data[16];
    struct kv_io_request request = {.verb = verb, .fd = -1, .data = data, .bytes = bytes, .done = ignore};
    cr_assert(not(kv_io_begin(&request)));
    return request;
}

Test(io, list_is_first_in_first_out_and_can_run_empty)
{
    struct kv_io_list list = {0};
    struct kv_io_request a = {0}, b = {0};
    cr_assert(eq(ptr, kv_io_list_pop(&list), NULL));
    kv_io_list_push(&list, &a);
    kv_io_list_push(&list, &b);
    cr_assert(eq(ptr, kv_io_list_pop(&list), &a));
    cr_assert(eq(ptr, kv_io_list_pop(&list), &b));
    kv_io_list_push(&list, &a);
    cr_assert(eq(uint, list.count, 1));
    cr_assert(eq(ptr, kv_io_list_pop(&list), &a));
}

Test(io, short_transfer_goes_on_where_it_stopped)
{
    struct kv_io_request request = request_of(KV_IO_WRITE, 10000);
    cr_assert(eq(int, kv_io_take_result(&request, 4096), KV_IO_MORE));
    cr_assert(eq(u64, request.done_bytes, 4096));
    cr_assert(eq(int, kv_io_take_result(&request, 5904), KV_IO_FINISHED));
    cr_assert(eq(int, kv_io_result(&request), KV_OK));
}

Test(io, read_that_ends_early_is_truncated)
{
    struct kv_io_request request = request_of(KV_IO_READ, 100);
    cr_assert(eq(int, kv_io_take_result(&request, 99), KV_IO_MORE));
    cr_assert(eq(int, kv_io_take_result(&request, 0), KV_IO_FINISHED));
    cr_assert(eq(int, kv_io_result(&request), KV_E_TRUNCATED));
}

Test(io, write_that_moves_nothing_is_an_error_and_not_a_loop)
{
    struct kv_io_request request = request_of(KV_IO_WRITE, 100);
    cr_assert(eq(int, kv_io_take_result(&request, 0), KV_IO_FINISHED));
    cr_assert(eq(int, kv_io_result(&request), KV_E_IO));
}

Test(io, errors_are_mapped_and_the_errno_is_kept)
{
    static const struct {
        int sys_errno;
        enum kv_err rc;
    } cases[] = {{EIO, KV_E_IO}, {ENOSPC, KV_E_NO_SPACE}, {EDQUOT, KV_E_NO_SPACE}, {EBADF, KV_E_IO}, {EINVAL, KV_E_IO}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct kv_io_request request = request_of(KV_IO_WRITE, 100);
        cr_assert(eq(int, kv_io_take_result(&request, -cases[i].sys_errno), KV_IO_FINISHED));
        cr_assert(eq(int, kv_io_result(&request), cases[i].rc));
        cr_assert(eq(int, request.sys_errno, cases[i].sys_errno));
    }
}

Test(io, interruption_is_tried_again)
{
    struct kv_io_request request = request_of(KV_IO_SYNC, 0);
    cr_assert(eq(int, kv_io_take_result(&request, -EINTR), KV_IO_AGAIN));
    cr_assert(eq(int, kv_io_take_result(&request, -EAGAIN), KV_IO_AGAIN));
    cr_assert(eq(int, kv_io_take_result(&request, 0), KV_IO_FINISHED));
    cr_assert(eq(int, kv_io_result(&request), KV_OK));
}

/* Direct I/O answers EINVAL when a read goes on from an unaligned end of file. */
Test(io, unaligned_end_of_file_is_truncation_and_elsewhere_an_error)
{
    int fd = memfd_create("kv", 0);
    cr_assert(eq(int, ftruncate(fd, 5000), 0));
    struct kv_io_request request = request_of(KV_IO_READ, 8192);
    request.fd = fd;
    cr_assert(eq(int, kv_io_take_result(&request, 5000), KV_IO_MORE));
    cr_assert(eq(int, kv_io_take_result(&request, -EINVAL), KV_IO_FINISHED));
    cr_assert(eq(int, kv_io_result(&request), KV_E_TRUNCATED));

    request = request_of(KV_IO_READ, 8192);
    request.fd = fd;
    cr_assert(eq(int, kv_io_take_result(&request, 4000), KV_IO_MORE));
    cr_assert(eq(int, kv_io_take_result(&request, -EINVAL), KV_IO_FINISHED));
    cr_assert(eq(int, kv_io_result(&request), KV_E_IO));
    close(fd);
}
