/* How much memory there is: fake files of both versions of cgroups, nested limits, and what must not count. */
#include "server/config/conf.h"

#include "tests/lib/temp_folder.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)

static char root[KVT_PATH_BYTES];

static void put(const char *path, const char *text)
{
    char at[KVT_PATH_BYTES * 2];
    snprintf(at, sizeof at, "%s%s", root, path);
    for (char *p = at + strlen(root) + 1; *p != '\0'; p++) {
        if (*p == '/') {
            *p = '\0';
            mkdir(at, 0700);
            *p = '/';
        }
    }
    kvt_file_write(at, text, strlen(text), 0600);
}

static void machine(const char *total_kib)
{
    char text[128];
    kvt_folder_make(root);
    snprintf(text, sizeof text, "MemTotal: %s kB\nMemFree: 1 kB\nMemAvailable: 2 kB\n", total_kib);
    put("/proc/meminfo", text);
}

static uint64_t done(void)
{
    uint64_t bytes = kv_conf_dram_default(root);
    kvt_folder_remove(root);
    return bytes;
}

Test(cgroup, without_a_limit_it_is_a_quarter_of_the_machine)
{
    machine("16777216");
    cr_assert(eq(u64, done(), 4 * GIB));
    machine("16777216");
    put("/proc/self/cgroup", "0::/\n");
    put("/sys/fs/cgroup/memory.max", "max\n");
    cr_assert(eq(u64, done(), 4 * GIB));
}

Test(cgroup, has_an_upper_and_a_lower_end)
{
    machine("536870912"); /* 512 GiB */
    cr_assert(eq(u64, done(), 64 * GIB));
    machine("268435456"); /* 256 GiB: exactly at it */
    cr_assert(eq(u64, done(), 64 * GIB));
    machine("131072"); /* 128 MiB */
    cr_assert(eq(u64, done(), 64 * MIB));
}

Test(cgroup, version_2_limits_it)
{
    machine("16777216");
    put("/proc/self/cgroup", "0::/system.slice/kvrun.service\n");
    put("/sys/fs/cgroup/system.slice/kvrun.service/memory.max", "2147483648\n");
    put("/sys/fs/cgroup/system.slice/memory.max", "max\n");
    cr_assert(eq(u64, done(), 512 * MIB));
}

Test(cgroup, the_least_of_those_above_counts)
{
    machine("16777216");
    put("/proc/self/cgroup", "0::/pod/container\n");
    put("/sys/fs/cgroup/pod/container/memory.max", "4294967296\n");
    put("/sys/fs/cgroup/pod/memory.max", "1073741824\n");
    cr_assert(eq(u64, done(), 256 * MIB));
}

Test(cgroup, in_a_container_the_mount_is_the_own_group)
{
    machine("16777216");
    put("/proc/self/cgroup", "0::/docker/0123456789abcdef\n"); /* the host's path, not to be seen in here */
    put("/sys/fs/cgroup/memory.max", "1073741824\n");
    cr_assert(eq(u64, done(), 256 * MIB));
}

Test(cgroup, version_1_limits_it)
{
    machine("16777216");
    put("/proc/self/cgroup", "11:cpu,cpuacct:/a\n4:memory:/docker/abc\n0::/x\n");
    put("/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "2147483648\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    cr_assert(eq(u64, done(), 512 * MIB));
}

Test(cgroup, version_1_says_no_limit_with_a_huge_number)
{
    machine("16777216");
    put("/proc/self/cgroup", "4:hugetlb,memory:/\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    cr_assert(eq(u64, done(), 4 * GIB));
}

Test(cgroup, another_controller_s_name_is_not_taken_for_it)
{
    machine("16777216");
    put("/proc/self/cgroup", "4:memoryx:/\n5:xmemory:/\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n");
    cr_assert(eq(u64, done(), 4 * GIB));
}

/* The page cache fills a group up to its limit; the kernel takes it back when somebody needs the room. */
Test(cgroup, a_full_page_cache_does_not_matter)
{
    machine("16777216");
    put("/proc/self/cgroup", "0::/c\n");
    put("/sys/fs/cgroup/c/memory.max", "2147483648\n");
    put("/sys/fs/cgroup/c/memory.current", "2147000000\n");
    put("/sys/fs/cgroup/c/memory.stat", "anon 1000\nfile 2146000000\n");
    cr_assert(eq(u64, done(), 512 * MIB));
}

Test(cgroup, rubbish_is_no_limit)
{
    machine("16777216");
    put("/proc/self/cgroup", "0::/c\nnonsense\n7\n:::\n");
    put("/sys/fs/cgroup/c/memory.max", "lots\n");
    cr_assert(eq(u64, done(), 4 * GIB));
}
