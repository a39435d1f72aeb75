/*
 * What every backend of io.h does, io_uring where this machine has it and threads everywhere; and how one is selected.
 */
#include "dataplane/base/fault.h"
#include "dataplane/io/io.h"
#include "tests/lib/temp_folder.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

struct counted {
    struct kv_io_request request;
    unsigned *total;
    bool *may_run; /* NULL: any time */
    enum kv_err rc;
    bool ended;
};

static void on_done(struct kv_io_request *request, enum kv_err rc)
{
    struct counted *c = request->owner;
    cr_assert(c->may_run == NULL || *c->may_run);
    cr_assert(not(c->ended));
    c->ended = true;
    c->rc = rc;
    if (c->total != NULL) {
        (*c->total)++;
    }
}

static void prepare(struct counted *c, enum kv_io_verb verb, int fd, void *data, uint64_t bytes, uint64_t offset)
{
    *c = (struct counted){.request = {.verb = verb, .fd = fd, .data = data, .bytes = bytes, .offset = offset}};
    c->request.done = on_done;
    c->request.owner = c;
}

static uint64_t soon(unsigned ms)
{
    return kv_now_ns(&kv_env_system) + ms * KV_MS_NS;
}

static void finish_all(struct kv_io *io)
{
    uint64_t deadline = soon(20000);
    while (io->ops->in_flight(io) > 0) {
        if (io->ops->reap(io, 16) == 0) {
            enum kv_err rc = io->ops->wait(io, deadline);
            cr_assert(eq(int, rc, KV_OK));
        }
    }
}

static enum kv_err perform(struct kv_io *io, enum kv_io_verb verb, int fd, void *data, uint64_t bytes, uint64_t offset)
{
    struct counted c;
    prepare(&c, verb, fd, data, bytes, offset);
    cr_assert(eq(int, io->ops->submit(io, &c.request), KV_OK));
    finish_all(io);
    cr_assert(c.ended);
    return c.rc;
}

static struct kv_io *open_io(enum kv_io_kind kind, unsigned depth, uint8_t *fixed, uint64_t fixed_bytes)
{
    struct kv_io_conf conf = {.kind = kind,
                              .depth = depth,
                              .threads = 2,
                              .fixed = fixed,
                              .fixed_bytes = fixed_bytes,
                              .fixed_piece_bytes = fixed_bytes,
                              .env = &kv_env_system};
    struct kv_io *io = NULL;
    enum kv_err rc = kv_io_open(&conf, NULL, &io);
    return rc == KV_OK ? io : NULL;
}

/* Runs the body over each backend that this machine has. */
static void over_each(void (*body)(struct kv_io *io), unsigned depth)
{
    struct kv_io *io = open_io(KV_IO_URING, depth, NULL, 0);
    if (io == NULL) {
        cr_log_warn("io_uring is not available here: threads only");
    } else {
        body(io);
        io->ops->close(io);
    }
    io = open_io(KV_IO_THREADS, depth, NULL, 0);
    cr_assert(ne(ptr, io, NULL));
    body(io);
    io->ops->close(io);
}

static int temp_file(void)
{
    char path[] = "/tmp/kvrun-io.XXXXXX";
    int fd = mkstemp(path);
    cr_assert(ge(int, fd, 0));
    unlink(path);
    return fd;
}

static void fill(uint8_t *data, size_t len, unsigned seed)
{
    for (size_t i = 0; i < len; i++) {
        data[i] = (uint8_t)((i * 31 + seed) ^ (i >> 8));
    }
}

static void round_trip(struct kv_io *io)
{
    static const uint64_t sizes[] = {0, 1, 511, 4096, 65537, 1 << 20};
    static uint8_t out[1 << 20], in[1 << 20];
    int fd = temp_file();
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        fill(out, sizes[i], (unsigned)i);
        cr_assert(eq(int, perform(io, KV_IO_WRITE, fd, out, sizes[i], 777 * i), KV_OK));
        cr_assert(eq(int, perform(io, KV_IO_SYNC, fd, NULL, 0, 0), KV_OK));
        memset(in, 0xee, sizeof(in));
        cr_assert(eq(int, perform(io, KV_IO_READ, fd, in, sizes[i], 777 * i), KV_OK));
        cr_assert(eq(int, memcmp(in, out, sizes[i]), 0));
    }
    close(fd);
}

Test(io_contract, written_bytes_are_read_back)
{
    over_each(round_trip, 8);
}

static void end_of_file(struct kv_io *io)
{
    uint8_t data[4096] = {1};
    int fd = temp_file();
    cr_assert(eq(int, perform(io, KV_IO_WRITE, fd, data, 1000, 0), KV_OK));
    cr_assert(eq(int, perform(io, KV_IO_READ, fd, data, 1000, 0), KV_OK));
    cr_assert(eq(int, perform(io, KV_IO_READ, fd, data, 1001, 0), KV_E_TRUNCATED));
    cr_assert(eq(int, perform(io, KV_IO_READ, fd, data, 1, 1000), KV_E_TRUNCATED));
    close(fd);
}

Test(io_contract, read_past_the_end_is_truncated)
{
    over_each(end_of_file, 8);
}

static void bad_files(struct kv_io *io)
{
    uint8_t data[4096] = {1};
    struct counted c;
    prepare(&c, KV_IO_READ, 9999, data, sizeof(data), 0);
    cr_assert(eq(int, io->ops->submit(io, &c.request), KV_OK));
    finish_all(io);
    cr_assert(eq(int, c.rc, KV_E_IO));
    cr_assert(eq(int, c.request.sys_errno, EBADF));
    int full = open("/dev/full", O_WRONLY);
    if (full >= 0) {
        cr_assert(eq(int, perform(io, KV_IO_WRITE, full, data, sizeof(data), 0), KV_E_NO_SPACE));
        close(full);
    }
    int fd = temp_file();
    cr_assert(eq(int, perform(io, KV_IO_WRITE, fd, data, sizeof(data), 0), KV_OK)); /* the backend goes on */
    close(fd);
}

Test(io_contract, errors_reach_their_request_and_no_other)
{
    over_each(bad_files, 8);
}

/* The file's limit lets the first part through: the request goes on and then fails with the limit's own error. */
static void short_write(struct kv_io *io)
{
    static uint8_t data[10000];
    int fd = temp_file();
    struct counted c;
    prepare(&c, KV_IO_WRITE, fd, data, sizeof(data), 0);
    cr_assert(eq(int, io->ops->submit(io, &c.request), KV_OK));
    finish_all(io);
    cr_assert(eq(int, c.rc, KV_E_IO));
    cr_assert(eq(int, c.request.sys_errno, EFBIG));
    cr_assert(eq(int, (int)lseek(fd, 0, SEEK_END), 6000));
    close(fd);
}

Test(io_contract, short_write_is_continued)
{
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit limit;
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = 6000;
    cr_assert(eq(int, setrlimit(RLIMIT_FSIZE, &limit), 0));
    over_each(short_write, 8);
}

static void queue_limit(struct kv_io *io)
{
    enum { DEPTH = 2, MOST = 5 * DEPTH };
    static uint8_t data[4096];
    struct counted c[MOST + 1];
    unsigned total = 0;
    bool reaping = false;
    int fd = temp_file();
    for (unsigned i = 0; i <= MOST; i++) {
        prepare(&c[i], KV_IO_WRITE, fd, data, sizeof(data), i * sizeof(data));
        c[i].total = &total;
        c[i].may_run = &reaping;
        enum kv_err rc = io->ops->submit(io, &c[i].request);
        cr_assert(eq(int, rc, i < MOST ? KV_OK : KV_E_BUSY));
    }
    cr_assert(eq(uint, io->ops->in_flight(io), MOST));
    enum kv_err rc = io->ops->wait(io, soon(20000));
    cr_assert(eq(int, rc, KV_OK));
    cr_assert(eq(uint, total, 0)); /* neither submit nor wait hand back */
    reaping = true;
    cr_assert(le(uint, io->ops->reap(io, 1), 1));
    cr_assert(le(uint, total, 1));
    finish_all(io);
    cr_assert(eq(uint, total, MOST));
    cr_assert(eq(int, perform(io, KV_IO_WRITE, fd, data, sizeof(data), 0), KV_OK));
    close(fd);
}

Test(io_contract, queue_is_bounded_and_done_runs_in_reap_only)
{
    over_each(queue_limit, 2);
}

static void waiting(struct kv_io *io)
{
    uint64_t deadline = soon(30);
    enum kv_err rc = io->ops->wait(io, deadline);
    while (rc == KV_OK && kv_now_ns(&kv_env_system) < deadline) {
        rc = io->ops->wait(io, deadline); /* it may return early */
    }
    cr_assert(eq(int, rc, KV_E_TIMEOUT));
    cr_assert(ge(u64, kv_now_ns(&kv_env_system), deadline));
    io->ops->wake(io);
    rc = io->ops->wait(io, soon(20000));
    cr_assert(eq(int, rc, KV_OK)); /* a wake before the wait is not lost */
    rc = io->ops->wait(io, soon(1));
    cr_assert(eq(int, rc, KV_E_TIMEOUT)); /* and counts once */
    io->ops->wake(io);
    io->ops->reap(io, 8);
    rc = io->ops->wait(io, soon(20000));
    cr_assert(eq(int, rc, KV_OK)); /* nor is it lost in a reap */
}

Test(io_contract, wait_ends_at_its_deadline_and_on_a_wake)
{
    over_each(waiting, 8);
}

static void *wake_often(void *arg)
{
    struct kv_io *io = arg;
    for (unsigned i = 0; i < 200; i++) {
        io->ops->wake(io);
    }
    return NULL;
}

static void waking(struct kv_io *io)
{
    pthread_t thread;
    static uint8_t data[4096];
    int fd = temp_file();
    cr_assert(eq(int, pthread_create(&thread, NULL, wake_often, io), 0));
    for (unsigned i = 0; i < 50; i++) {
        cr_assert(eq(int, perform(io, KV_IO_WRITE, fd, data, sizeof(data), 0), KV_OK));
    }
    pthread_join(thread, NULL);
    close(fd);
}

Test(io_contract, any_thread_may_wake_while_requests_run)
{
    over_each(waking, 8);
}

struct chain {
    struct counted c;
    struct kv_io *io;
    unsigned left;
};

static void chain_done(struct kv_io_request *request, enum kv_err rc)
{
    struct chain *chain = request->owner;
    cr_assert(eq(int, rc, KV_OK));
    if (--chain->left > 0) {
        enum kv_err next = chain->io->ops->submit(chain->io, request);
        cr_assert(eq(int, next, KV_OK));
    }
}

static void resubmission(struct kv_io *io)
{
    static uint8_t data[4096];
    int fd = temp_file();
    struct chain chain = {.io = io, .left = 20};
    chain.c.request = (struct kv_io_request){
        .verb = KV_IO_WRITE, .fd = fd, .data = data, .bytes = sizeof(data), .done = chain_done, .owner = &chain};
    cr_assert(eq(int, io->ops->submit(io, &chain.c.request), KV_OK));
    finish_all(io);
    cr_assert(eq(uint, chain.left, 0));
    close(fd);
}

Test(io_contract, request_may_be_submitted_again_from_its_done)
{
    over_each(resubmission, 1);
}

static void faults(struct kv_io *io)
{
    static uint8_t data[4096];
    int fd = temp_file();
    kv_fault_set("io/submit=fail@2once");
    cr_assert(eq(int, perform(io, KV_IO_WRITE, fd, data, sizeof(data), 0), KV_OK));
    cr_assert(eq(int, perform(io, KV_IO_WRITE, fd, data, sizeof(data), 0), KV_E_IO));
    cr_assert(eq(int, perform(io, KV_IO_WRITE, fd, data, sizeof(data), 0), KV_OK));
    kv_fault_set(NULL);
    close(fd);
}

Test(io_contract, fault_point_fails_one_request)
{
    over_each(faults, 8);
}

static void use_fixed(struct kv_io *io, uint8_t *arena, size_t bytes)
{
    static uint8_t outside[8192];
    int fd = temp_file();
    fill(arena, bytes, 3);
    cr_assert(eq(int, perform(io, KV_IO_WRITE, fd, arena, bytes, 0), KV_OK));
    cr_assert(eq(int, perform(io, KV_IO_READ, fd, outside, sizeof(outside), 4096), KV_OK));
    cr_assert(eq(int, memcmp(outside, arena + 4096, sizeof(outside)), 0));
    memset(arena + bytes - 4096, 0, 4096);
    cr_assert(eq(int, perform(io, KV_IO_READ, fd, arena + bytes - 4096, 4096, 4096), KV_OK)); /* its last bytes */
    cr_assert(eq(int, memcmp(arena + bytes - 4096, outside, 4096), 0));
    close(fd);
}

Test(io_contract, registered_arena_and_other_memory_work_alike)
{
    size_t bytes = 1 << 20;
    uint8_t *arena = aligned_alloc(4096, bytes);
    struct kv_io *io = open_io(KV_IO_AUTO, 8, arena, bytes);
    cr_assert(ne(ptr, io, NULL));
    for (unsigned i = 0; i < 3; i++) { /* it is registered on the way, or refused */
        use_fixed(io, arena, bytes);
    }
    io->ops->close(io);
    free(arena);
}

/* What rings have locked of this process, in KiB. */
static unsigned long pinned_kib(void)
{
    char line[128];
    unsigned long kib = 0;
    FILE *status = fopen("/proc/self/status", "r");
    cr_assert(ne(ptr, status, NULL));
    while (fgets(line, sizeof(line), status) != NULL && sscanf(line, "VmPin: %lu", &kib) != 1) {
    }
    fclose(status);
    return kib;
}

enum { PIECE = 65536, PIECES = 3, ARENA = PIECES * PIECE + 8192 /* the last piece is shorter */ };

/* Writes from the arena's place and reads back to it. */
static void move_both_ways(struct kv_io *io, int fd, uint8_t *arena, size_t at, size_t len)
{
    static uint8_t expected[ARENA];
    fill(arena + at, len, at + len);
    memcpy(expected, arena + at, len);
    cr_assert(eq(int, perform(io, KV_IO_WRITE, fd, arena + at, len, at), KV_OK));
    memset(arena + at, 0, len);
    cr_assert(eq(int, perform(io, KV_IO_READ, fd, arena + at, len, at), KV_OK));
    cr_assert(eq(int, memcmp(arena + at, expected, len), 0));
}

Test(io_contract, pieces_of_the_arena_are_registered_when_they_were_used_and_not_before)
{
    uint8_t *arena = aligned_alloc(4096, ARENA);
    struct kv_io_conf conf = {.kind = KV_IO_URING,
                              .depth = 8,
                              .fixed = arena,
                              .fixed_bytes = ARENA,
                              .fixed_piece_bytes = PIECE,
                              .env = &kv_env_system};
    struct kv_io *io = NULL;
    unsigned long before = pinned_kib();
    int fd = temp_file();
    if (kv_io_open(&conf, NULL, &io) != KV_OK) {
        cr_skip_test("no io_uring here");
    }
    cr_assert(eq(ulong, pinned_kib(), before));
    move_both_ways(io, fd, arena, 0, PIECE / 2); /* as many bytes as the first piece has, both ways together */
    cr_assert(eq(ulong, pinned_kib(), before));
    move_both_ways(io, fd, arena, 4096, 4096);
    cr_assert(eq(ulong, pinned_kib(), before + PIECE / 1024));
    move_both_ways(io, fd, arena, 0, PIECE);
    move_both_ways(io, fd, arena, PIECE - 4096, 8192); /* across a border: counts for neither */
    cr_assert(eq(ulong, pinned_kib(), before + PIECE / 1024));
    move_both_ways(io, fd, arena, PIECES * PIECE, 8192);
    for (unsigned i = 0; i < 4; i++) {
        move_both_ways(io, fd, arena, PIECES * PIECE, 8192);
    }
    cr_assert(eq(ulong, pinned_kib(), before + (PIECE + 8192) / 1024));
    move_both_ways(io, fd, arena, 0, ARENA);
    io->ops->close(io);
    close(fd);
    free(arena);
}

Test(io_contract, memlock_limit_costs_registration_and_nothing_else)
{
    if (geteuid() != 0) {
        cr_skip_test("needs root to become another user");
    }
    size_t bytes = 1 << 20;
    uint8_t *arena = aligned_alloc(4096, bytes);
    struct rlimit limit = {.rlim_cur = 65536, .rlim_max = 65536};
    cr_assert(eq(int, setrlimit(RLIMIT_MEMLOCK, &limit), 0));
    cr_assert(eq(int, setgid(65534), 0));
    cr_assert(eq(int, setuid(65534), 0));
    struct kv_io *io = open_io(KV_IO_AUTO, 8, arena, bytes);
    cr_assert(ne(ptr, io, NULL));
    for (unsigned i = 0; i < 3; i++) { /* it is registered on the way, or refused */
        use_fixed(io, arena, bytes);
    }
    io->ops->close(io);
    free(arena);
}

static void refuse_io_uring(unsigned sys_errno)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | sys_errno),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof(code) / sizeof(code[0]), .filter = code};
    cr_assert(eq(int, prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0));
    cr_assert(eq(int, prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0));
}

static void check_fallback(unsigned sys_errno)
{
    refuse_io_uring(sys_errno);
    cr_assert(eq(ptr, open_io(KV_IO_URING, 8, NULL, 0), NULL));
    struct kv_io *io = open_io(KV_IO_AUTO, 8, NULL, 0);
    cr_assert(ne(ptr, io, NULL));
    cr_assert(eq(str, (char *)(uintptr_t)io->ops->name, "threads"));
    round_trip(io);
    io->ops->close(io);
}

Test(io_contract, refused_ring_falls_back_to_threads_enosys)
{
    check_fallback(ENOSYS);
}

Test(io_contract, refused_ring_falls_back_to_threads_eperm)
{
    check_fallback(EPERM);
}

Test(io_contract, nonsense_configuration_is_refused)
{
    cr_assert(eq(ptr, open_io(KV_IO_AUTO, 0, NULL, 0), NULL));
    cr_assert(eq(ptr, open_io(KV_IO_AUTO, 4097, NULL, 0), NULL));
    struct kv_io *io = open_io(KV_IO_THREADS, 4096, NULL, 0);
    cr_assert(ne(ptr, io, NULL));
    io->ops->close(io);
}
