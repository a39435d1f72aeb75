/* Fault points. */
#include "dataplane/base/fault.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef KV_FAULTS

Test(fault, without_a_spec_nothing_happens)
{
    unsetenv("KVRUN_FAULT");
    cr_assert(not(KV_FAULT("a/b")));
}

Test(fault, environment_is_read)
{
    setenv("KVRUN_FAULT", "tier/nvme/write=EIO@3,other=fail", 1);
    cr_assert(not(KV_FAULT("tier/nvme/write")));
    cr_assert(not(KV_FAULT("tier/nvme/write")));
    cr_assert(KV_FAULT("tier/nvme/write"));
    cr_assert(KV_FAULT("tier/nvme/write")); /* from the Nth on */
    cr_assert(KV_FAULT("other"));
    cr_assert(not(KV_FAULT("tier/nvme")));
    cr_assert(not(KV_FAULT("tier/nvme/write2")));
}

Test(fault, once_is_exactly_that_passing)
{
    kv_fault_set("p=fail@2once");
    cr_assert(not(KV_FAULT("p")));
    cr_assert(KV_FAULT("p"));
    cr_assert(not(KV_FAULT("p")));
}

Test(fault, kill_ends_the_process_at_the_first_passing, .signal = SIGKILL)
{
    kv_fault_set("p=kill");
    (void)KV_FAULT("p");
}

Test(fault, kill_ends_the_process_at_the_nth_passing, .signal = SIGKILL)
{
    kv_fault_set("p=kill@2");
    cr_assert(not(KV_FAULT("p")));
    (void)KV_FAULT("p");
}

Test(fault, kill_leaves_the_passing_before_it_alone)
{
    kv_fault_set("p=kill@2");
    cr_assert(not(KV_FAULT("p")));
    cr_assert(not(KV_FAULT("q")));
}

/* The parent lets a stopped child go on. */
Test(fault, stop_stops_the_process_and_is_no_fault_afterwards)
{
    pid_t child = fork();
    if (child == 0) {
        kv_fault_set("p=stop@2");
        bool fault = KV_FAULT("p");
        fault = KV_FAULT("p") || fault;
        _exit(KV_FAULT("p") || fault ? 1 : 0);
    }
    int status = 0;
    cr_assert(eq(int, waitpid(child, &status, WUNTRACED), child));
    bool stopped = WIFSTOPPED(status);
    cr_assert(stopped);
    cr_assert(eq(int, kill(child, SIGCONT), 0));
    cr_assert(eq(int, waitpid(child, &status, 0), child));
    cr_assert(status == 0, "it ended otherwise");
}

static void *pass_a_point(void *arg)
{
    *(bool *)arg = KV_FAULT("p");
    return NULL;
}

Test(fault, hold_waits_for_the_removal_of_its_file)
{
    char spec[128], path[] = "/tmp/kvfault.XXXXXX";
    int fd = mkstemp(path);
    cr_assert(fd >= 0);
    close(fd);
    unlink(path);
    snprintf(spec, sizeof spec, "p=hold:%s", path);
    kv_fault_set(spec);
    bool fault = true;
    pthread_t thread;
    cr_assert(eq(int, pthread_create(&thread, NULL, pass_a_point, &fault), 0));
    while (access(path, F_OK) != 0) {
        usleep(1000);
    }
    cr_assert(not(KV_FAULT("q")), "other points are passed meanwhile");
    unlink(path);
    cr_assert(eq(int, pthread_join(thread, NULL), 0));
    cr_assert(not(fault));
    cr_assert(not(KV_FAULT("p")), "once");
}

Test(fault, set_replaces_and_null_clears)
{
    setenv("KVRUN_FAULT", "a=fail", 1);
    kv_fault_set("b=fail");
    cr_assert(not(KV_FAULT("a")));
    cr_assert(KV_FAULT("b"));
    kv_fault_set(NULL);
    cr_assert(not(KV_FAULT("b")));
    kv_fault_set("b=fail@2");
    cr_assert(not(KV_FAULT("b"))); /* the count starts again */
    cr_assert(KV_FAULT("b"));
    kv_fault_set("");
    cr_assert(not(KV_FAULT("b")));
}

static void set_points(int count)
{
    char spec[2048] = "";
    for (int i = 0; i < count; i++) {
        size_t len = strlen(spec);
        snprintf(spec + len, sizeof(spec) - len, "%sp%d=fail", i > 0 ? "," : "", i);
    }
    kv_fault_set(spec);
}

Test(fault, there_is_room_for_32_points)
{
    set_points(32);
    cr_assert(KV_FAULT("p31"));
}

Test(fault, one_point_more_stops_the_test, .signal = SIGABRT)
{
    set_points(33);
}

Test(fault, spec_without_a_word_stops_the_test, .signal = SIGABRT)
{
    kv_fault_set("name");
}

Test(fault, spec_without_a_name_stops_the_test, .signal = SIGABRT)
{
    kv_fault_set("=fail");
}

Test(fault, spec_with_a_passing_that_is_no_number_stops_the_test, .signal = SIGABRT)
{
    kv_fault_set("name=fail@0");
}

Test(fault, spec_with_a_tail_stops_the_test, .signal = SIGABRT)
{
    kv_fault_set("name=fail@3twice");
}

#else

Test(fault, release_build_has_no_points)
{
    setenv("KVRUN_FAULT", "a=kill", 1);
    bool hit = KV_FAULT("a"); /* a constant, which the macro below cannot take */
    cr_assert(not(hit));
}

#endif
