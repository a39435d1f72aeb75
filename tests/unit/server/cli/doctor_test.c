/* What the doctor makes of what it sees: each finding next to its control. */
#include "server/cli/doctor.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct kv_conf conf;
static struct doctor doctor;
static char folder[64];

static void set_up(void)
{
    memset(&conf, 0, sizeof conf);
    memset(&doctor, 0, sizeof doctor);
    doctor.conf = &conf;
    doctor.root = "";
    conf.staging_bytes = UINT64_C(64) << 20;
    snprintf(conf.io_engine, sizeof conf.io_engine, "auto");
    snprintf(folder, sizeof folder, "/tmp/kvdoctor.XXXXXX");
    cr_assert(mkdtemp(folder) != NULL);
    snprintf(conf.state_dir, sizeof conf.state_dir, "%s/state", folder);
    cr_assert(mkdir(conf.state_dir, 0700) == 0);
}

static void tear_down(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    cr_assert(system(command) == 0);
}

TestSuite(doctor, .init = set_up, .fini = tear_down);

static const struct doctor_finding *last(void)
{
    return &doctor.findings[doctor.count - 1];
}

Test(doctor, io_uring_is_told_apart_by_who_refuses_it)
{
    doctor_uring(&doctor, 0, 0);
    cr_expect(eq(int, last()->state, DOCTOR_OK));
    cr_expect(eq(str, (char *)last()->fix, ""));
    doctor_uring(&doctor, EPERM, 2);
    cr_expect(eq(int, last()->state, DOCTOR_WARN));
    cr_expect(strstr(last()->fix, "kernel.io_uring_disabled=0") != NULL, "%s", last()->fix);
    doctor_uring(&doctor, EPERM, 0);
    cr_expect(strstr(last()->fix, "seccomp-io_uring.json") != NULL, "%s", last()->fix);
    doctor_uring(&doctor, EPERM, -1);
    cr_expect(strstr(last()->reason, "seccomp") != NULL, "%s", last()->reason);
    doctor_uring(&doctor, ENOSYS, -1);
    cr_expect(eq(int, last()->state, DOCTOR_WARN));
    snprintf(conf.io_engine, sizeof conf.io_engine, "io_uring");
    doctor_uring(&doctor, EPERM, 0);
    cr_expect(eq(int, last()->state, DOCTOR_FAIL));
    snprintf(conf.io_engine, sizeof conf.io_engine, "threads");
    doctor_uring(&doctor, EPERM, 0);
    cr_expect(eq(int, last()->state, DOCTOR_OK));
}

Test(doctor, locked_memory_at_the_limit_and_one_byte_less)
{
    uint64_t need = conf.staging_bytes + (UINT64_C(16) << 20);
    doctor_memlock(&doctor, need, false);
    cr_expect(eq(int, last()->state, DOCTOR_OK));
    doctor_memlock(&doctor, need - 1, false);
    cr_expect(eq(int, last()->state, DOCTOR_WARN));
    cr_expect(strstr(last()->fix, "memlock") != NULL);
    doctor_memlock(&doctor, 0, true);
    cr_expect(eq(int, last()->state, DOCTOR_OK));
}

Test(doctor, memory_for_keys_says_who_reads_it_without_the_kernels_own)
{
    doctor_secret_memory(&doctor, 0);
    cr_expect(eq(int, last()->state, DOCTOR_OK));
    doctor_secret_memory(&doctor, ENOSYS);
    cr_expect(eq(int, last()->state, DOCTOR_WARN));
    cr_expect(strstr(last()->fix, "secretmem.enable=1") != NULL, "%s", last()->fix);
}

Test(doctor, a_certificate_warns_three_weeks_before_its_end)
{
    const int64_t day = 86400, now = 1800000000;
    doctor_certificate(&doctor, now + 21 * day, now);
    cr_expect(eq(int, last()->state, DOCTOR_OK));
    doctor_certificate(&doctor, now + 21 * day - 1, now);
    cr_expect(eq(int, last()->state, DOCTOR_WARN));
    doctor_certificate(&doctor, now + 1, now);
    cr_expect(eq(int, last()->state, DOCTOR_WARN));
    doctor_certificate(&doctor, now, now);
    cr_expect(eq(int, last()->state, DOCTOR_FAIL));
}

Test(doctor, the_root_must_not_lie_where_a_backup_takes_it)
{
    char path[2048];
    snprintf(path, sizeof path, "%s/data", conf.state_dir);
    cr_assert(mkdir(path, 0700) == 0);
    snprintf(path, sizeof path, "%s/data/root", conf.state_dir);
    doctor_root_place(&doctor, path);
    cr_expect(eq(int, last()->state, DOCTOR_FAIL), "%s", last()->reason);
    snprintf(path, sizeof path, "%s/root", conf.state_dir);
    doctor_root_place(&doctor, path);
    cr_expect(eq(int, last()->state, DOCTOR_WARN), "%s", last()->reason);
    snprintf(path, sizeof path, "%s/elsewhere", folder);
    doctor_root_place(&doctor, path);
    cr_expect(eq(int, last()->state, DOCTOR_WARN), "%s", last()->reason);
    cr_expect(strstr(last()->reason, "snapshot") != NULL, "%s", last()->reason);
    doctor_root_place(&doctor, "/proc/root-of-erasure"); /* the control: a file system of its own */
    cr_expect(eq(int, last()->state, DOCTOR_OK), "%s", last()->reason);
}

Test(doctor, a_link_does_not_hide_where_the_root_lies)
{
    char path[2048];
    snprintf(path, sizeof path, "%s/link", folder);
    cr_assert(symlink(conf.state_dir, path) == 0);
    snprintf(path, sizeof path, "%s/link/root", folder);
    cr_expect(doctor_lies_in(path, conf.state_dir));
    snprintf(path, sizeof path, "%s-2/root", conf.state_dir);
    cr_expect(doctor_lies_in(path, conf.state_dir) == false);
    cr_expect(doctor_lies_in("/nowhere/at/all/root", "/nowhere/at/all"));
    cr_expect(doctor_lies_in("/nowhere/at/all-2/root", "/nowhere/at/all") == false);
}

Test(doctor, a_secret_that_others_may_read_is_wrong)
{
    char path[2048];
    snprintf(path, sizeof path, "%s/operator.key", conf.state_dir);
    doctor_secret_file(&doctor, "operator_key", path);
    cr_expect(eq(sz, doctor.count, 0)); /* not there: nothing to say */
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    close(fd);
    doctor_secret_file(&doctor, "operator_key", path);
    cr_expect(eq(int, last()->state, DOCTOR_OK));
    for (unsigned bit = 0; bit < 6; bit++) {
        cr_assert(chmod(path, 0600u | 1u << bit) == 0);
        doctor_secret_file(&doctor, "operator_key", path);
        cr_expect(eq(int, last()->state, DOCTOR_FAIL));
        cr_expect(strncmp(last()->fix, "chmod 600 ", 10) == 0);
    }
}

static void write_file(const char *name, const char *text)
{
    char path[2048];
    snprintf(path, sizeof path, "%s%s", folder, name);
    for (char *p = path + strlen(folder) + 1; *p != '\0'; p++) {
        if (*p == '/') {
            *p = '\0';
            (void)mkdir(path, 0700);
            *p = '/';
        }
    }
    FILE *file = fopen(path, "w");
    cr_assert(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0, "%s", path);
}

static enum doctor_state state_of(const char *check)
{
    for (size_t i = 0; i < doctor.count; i++) {
        if (strcmp(doctor.findings[i].check, check) == 0) {
            return doctor.findings[i].state;
        }
    }
    return (enum doctor_state) - 1; /* was not looked at */
}

static void look(void)
{
    doctor.count = 0;
    doctor.root = folder;
    doctor_machine(&doctor);
}

Test(doctor, memory_is_what_the_container_gives)
{
    write_file("/proc/meminfo", "MemTotal: 16777216 kB\n"); /* 16 GiB */
    write_file("/proc/self/cgroup", "0::/\n");
    write_file("/sys/fs/cgroup/memory.max", "max\n");
    conf.dram_bytes = UINT64_C(1) << 30;
    look();
    cr_expect(eq(int, state_of("memory"), DOCTOR_OK));
    write_file("/sys/fs/cgroup/memory.max", "1200000000\n");
    look();
    cr_expect(eq(int, state_of("memory"), DOCTOR_WARN));
    write_file("/sys/fs/cgroup/memory.max", "1000000000\n");
    look();
    cr_expect(eq(int, state_of("memory"), DOCTOR_FAIL));
}

Test(doctor, swap_is_said)
{
    write_file("/proc/swaps", "Filename Type Size Used Priority\n");
    look();
    cr_expect(eq(int, state_of("swap"), DOCTOR_OK));
    write_file("/proc/swaps", "Filename Type Size Used Priority\n/dev/sda2 partition 1 0 -2\n");
    look();
    cr_expect(eq(int, state_of("swap"), DOCTOR_WARN));
}

Test(doctor, json_is_json_and_the_exit_code_is_the_worst)
{
    char text[4096] = "";
    FILE *out = tmpfile();
    doctor_say(&doctor, "one", DOCTOR_WARN, "do \"this\"", "it is\n%s", "odd");
    cr_expect(eq(int, doctor_print(&doctor, true, out), 0));
    doctor_say(&doctor, "two", DOCTOR_FAIL, "do that", "it is wrong");
    cr_expect(eq(int, doctor_print(&doctor, false, out), 1));
    rewind(out);
    cr_assert(ftruncate(fileno(out), 0) == 0);
    cr_expect(eq(int, doctor_print(&doctor, true, out), 1));
    rewind(out);
    cr_assert(fread(text, 1, sizeof text - 1, out) > 0);
    json_t *json = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    cr_assert(json != NULL, "%s", text);
    cr_expect(json_object_get(json, "ok") == json_false());
    const json_t *first = json_array_get(json_object_get(json, "checks"), 0);
    cr_expect(eq(str, (char *)json_string_value(json_object_get(first, "fix")), "do \"this\""));
    json_decref(json);
    fclose(out);
}

Test(doctor, more_findings_than_fit_are_dropped)
{
    for (int i = 0; i <= DOCTOR_FINDINGS_MAX; i++) {
        doctor_say(&doctor, "many", DOCTOR_OK, NULL, "%d", i);
    }
    cr_expect(eq(sz, doctor.count, DOCTOR_FINDINGS_MAX));
    cr_expect(eq(str, (char *)last()->reason, "47"));
}
