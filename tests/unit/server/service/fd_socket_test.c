/* The socket over which an engine hands its descriptor: what is taken, what is refused, and that nothing is left open.
 */
#include "dataplane/base/err.h"
#include "tests/lib/svc_rig.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

TEMP_POSTGRES_HOOKS

#define FDS_MAX 8

static struct kvt_svc rig;

static int connect_socket(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert(strlen(rig.fd_socket) < sizeof address.sun_path);
    memcpy(address.sun_path, rig.fd_socket, strlen(rig.fd_socket) + 1);
    cr_assert(ge(int, fd, 0));
    cr_assert(eq(int, connect(fd, (struct sockaddr *)&address, sizeof address), 0));
    return fd;
}

static void send_fds(int connection, const char *bytes, const int *fds, size_t count)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int) * FDS_MAX)];
        struct cmsghdr align;
    } control = {0};
    struct iovec iov = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = strlen(bytes)};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
    if (count > 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * count);
        struct cmsghdr *part = CMSG_FIRSTHDR(&message);
        part->cmsg_level = SOL_SOCKET;
        part->cmsg_type = SCM_RIGHTS;
        part->cmsg_len = CMSG_LEN(sizeof(int) * count);
        memcpy(CMSG_DATA(part), fds, sizeof(int) * count);
    }
    cr_assert(eq(llong, (long long)sendmsg(connection, &message, MSG_NOSIGNAL), (long long)strlen(bytes)));
}

static void read_line(int connection, char line[64])
{
    size_t len = 0;
    ssize_t n = 1;
    while (len < 63 && n > 0) {
        n = read(connection, line + len, 63 - len);
        len += n > 0 ? (size_t)n : 0;
    }
    line[len] = '\0';
    close(connection);
}

static void offer(const char *bytes, size_t count, char line[64])
{
    int fds[FDS_MAX], connection = connect_socket();
    for (size_t i = 0; i < count; i++) {
        fds[i] = kvt_memfd(4096, 0, 0);
    }
    send_fds(connection, bytes, fds, count);
    for (size_t i = 0; i < count; i++) {
        close(fds[i]);
    }
    read_line(connection, line);
}

/* Memory files of tests that this process has open. */
static unsigned open_memfds(void)
{
    unsigned count = 0;
    DIR *folder = opendir("/proc/self/fd");
    for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        char path[300], target[64] = "";
        snprintf(path, sizeof path, "/proc/self/fd/%.200s", entry->d_name);
        if (readlink(path, target, sizeof target - 1) > 0 && strncmp(target, "/memfd:kvt", 10) == 0) {
            count++;
        }
    }
    closedir(folder);
    return count;
}

Test(fd_socket, one_byte_with_one_descriptor_gets_a_token)
{
    char line[64], more[64], digits[40], end = 0, rest = 0;
    kvt_svc_open(&rig);
    offer("F", 1, line);
    cr_assert(eq(int, sscanf(line, "tok_%32[0-9a-f]%c%c", digits, &end, &rest), 2), "%s", line);
    cr_assert(eq(sz, strlen(digits), 32));
    cr_assert(eq(chr, end, '\n'));
    cr_assert(eq(uint, open_memfds(), 1));
    offer("F", 1, more);
    cr_assert(strcmp(line, more) != 0);
    kvt_svc_done(&rig);
    cr_assert(eq(uint, open_memfds(), 0), "what nobody claimed is closed at the end");
}

Test(fd_socket, everything_else_is_refused_and_closed)
{
    static const struct {
        const char *bytes;
        size_t count;
    } cases[] = {{"F", 0}, {"G", 1}, {"G", 0}, {"F", 2}, {"F", 4}, {"F", 5}, {"F", FDS_MAX}};
    char line[64];
    kvt_svc_open(&rig);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        offer(cases[i].bytes, cases[i].count, line);
        cr_assert(eq(str, line, "error invalid_request\n"), "case %zu", i);
        cr_assert(eq(uint, open_memfds(), 0), "case %zu", i);
    }
    offer("F", 1, line);
    cr_assert(eq(int, strncmp(line, "tok_", 4), 0), "the control");
    kvt_svc_done(&rig);
}

Test(fd_socket, past_the_limit_says_busy_and_closes)
{
    char line[64];
    kvt_svc_open(&rig);
    for (int i = 0; i < KV_MAX_FD_TOKENS; i++) {
        offer("F", 1, line);
        cr_assert(eq(int, strncmp(line, "tok_", 4), 0));
    }
    offer("F", 1, line);
    cr_assert(eq(str, line, "error busy\n"));
    cr_assert(eq(uint, open_memfds(), (unsigned)KV_MAX_FD_TOKENS));
    kvt_svc_done(&rig);
    cr_assert(eq(uint, open_memfds(), 0));
}

Test(fd_socket, silent_and_vanished_peers_hold_nobody_up_for_long)
{
    char line[64];
    kvt_svc_open(&rig);
    int silent = connect_socket();
    close(connect_socket());
    uint64_t since = kv_now_ns(&kv_env_system);
    offer("F", 1, line); /* waits behind the silent one, which has two seconds */
    cr_assert(eq(int, strncmp(line, "tok_", 4), 0));
    cr_assert(lt(u64, kv_now_ns(&kv_env_system) - since, 10 * KV_S_NS));
    close(silent);
    kvt_svc_done(&rig);
}

Test(fd_socket, is_open_to_owner_and_group_and_gone_after_the_stop)
{
    struct stat status;
    kvt_svc_open(&rig);
    cr_assert(eq(int, stat(rig.fd_socket, &status), 0));
    cr_assert(eq(uint, status.st_mode, (S_IFSOCK | 0660)));
    kvt_svc_stop(&rig);
    cr_assert(ne(int, stat(rig.fd_socket, &status), 0));
    kvt_svc_done(&rig);
}

Test(fd_socket, path_that_is_too_long_fails_the_start_and_says_what_to_set)
{
    char path[200];
    kvt_svc_config(&rig);
    memset(path, 'x', sizeof path);
    path[0] = '/';
    path[sizeof path - 1] = '\0';
    rig.conf.fd_socket = path;
    cr_assert(eq(int, kvt_svc_try_start(&rig), KV_E_CONFIG));
    cr_assert(strstr(rig.info.text, "http.socket") != NULL, "%s", rig.info.text);
    rig.conf.fd_socket = rig.fd_socket; /* and nothing of the failed start is left running */
    kvt_svc_start(&rig);
    kvt_svc_done(&rig);
}
