/*
 * The thief of the demo: copies what lies on disks, and lets kvrun-attack try. Must never ask the server for anything.
 */
#include "server/demo_int.h"

#include "dataplane/base/env.h"
#include "server/store/private_cluster.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* --- what a thief finds --------------------------------------------------------------------------------------- */

static double entropy(const struct kv_buf *bytes)
{
    double counts[256] = {0}, total = 0, bits = 0;
    for (size_t i = 0; i < bytes->len; i++) {
        counts[bytes->data[i]]++;
    }
    for (int i = 1; i < 256; i++) { /* zero bytes are unused room in a preallocated file */
        total += counts[i];
    }
    for (int i = 1; i < 256; i++) {
        bits -= counts[i] == 0 ? 0 : counts[i] / total * log2(counts[i] / total);
    }
    return bits;
}

static const char *database_socket(struct demo *demo, char folder[PATH_SIZE])
{
    char path[PATH_SIZE];
    kv_buf_reset(&demo->out);
    if (kv_child_read_file(demo_at(demo, "server/postgres.socket", path), &demo->out) != KV_OK ||
        demo->out.len >= PATH_SIZE) {
        return NULL;
    }
    snprintf(folder, PATH_SIZE, "%s", (const char *)demo->out.data);
    folder[strcspn(folder, "\n")] = '\0';
    return folder;
}

static KV_RC dump(struct demo *demo, const char *socket_folder, const char *name)
{
    char path[PATH_SIZE], folder[PATH_SIZE];
    snprintf(folder, sizeof folder, "%s", socket_folder);
    char *const argv[] = {(char[]){"pg_dump"},
                          (char[]){"--host"},
                          folder,
                          (char[]){"--username"},
                          (char[]){"kvrun"},
                          (char[]){"--file"},
                          (char *)(uintptr_t)demo_at(demo, name, path),
                          (char[]){"postgres"},
                          NULL};
    return demo_program_run(demo, argv, 60, false);
}

static KV_RC dump_live(struct demo *demo, const char *name)
{
    char folder[PATH_SIZE];
    if (database_socket(demo, folder) == NULL) {
        return kv_fail(&demo->info, KV_E_IO, "the private database's socket is not there");
    }
    return dump(demo, folder, name);
}

KV_RC demo_steal(struct demo *demo)
{
    char from[PATH_SIZE], to[PATH_SIZE], folder[PATH_SIZE];
    char *const copy[] = {(char[]){"cp"}, (char[]){"-a"}, (char *)(uintptr_t)demo_at(demo, "server/nvme", from),
                          (char *)(uintptr_t)demo_at(demo, "stolen-nvme", to), NULL};
    KV_TRY(demo_program_run(demo, copy, 60, false));
    KV_TRY(kv_child_copy_file(demo_at(demo, "server/root", from), demo_at(demo, "root-before", to), &demo->info));
    KV_TRY(dump_live(demo, "before.sql"));
    if (database_socket(demo, folder) == NULL) {
        return kv_fail(&demo->info, KV_E_IO, "the private database's socket is not there");
    }
    char *const backup[] = {(char[]){"pg_basebackup"},
                            (char[]){"--host"},
                            folder,
                            (char[]){"--username"},
                            (char[]){"kvrun"},
                            (char[]){"--checkpoint=fast"},
                            (char[]){"--no-sync"},
                            (char[]){"--pgdata"},
                            (char *)(uintptr_t)demo_at(demo, "backup", to),
                            NULL};
    KV_TRY(demo_program_run(demo, backup, 60, false));
    kv_buf_reset(&demo->out);
    KV_TRY(kv_child_read_file(demo_at(demo, "stolen-nvme/arena", from), &demo->out));
    double bits = entropy(&demo->out);
    printf("   copied: the nvme arena, the root file, a dump and a physical backup of the database\n"
           "   arena bytes: %.2f bits of entropy a byte (8.00 is noise)\n",
           bits);
    return bits > 7.9 ? KV_OK : demo_lie(demo, "the arena does not look sealed");
}

/* Runs the attack; *ret_opened of *ret_all copies. */
static KV_RC attack(struct demo *demo, const char *dump_name, const char *root_name, unsigned *ret_opened,
                    unsigned *ret_all)
{
    char exe[PATH_SIZE], dump_path[PATH_SIZE], root[PATH_SIZE], arena[PATH_SIZE];
    char *const argv[] = {(char *)(uintptr_t)demo_program(demo, "kvrun-attack", exe),
                          (char[]){"--dump"},
                          (char *)(uintptr_t)demo_at(demo, dump_name, dump_path),
                          (char[]){"--root"},
                          (char *)(uintptr_t)demo_at(demo, root_name, root),
                          (char[]){"--arena"},
                          (char *)(uintptr_t)demo_at(demo, "stolen-nvme", arena),
                          (char[]){"--session"},
                          demo->session,
                          NULL};
    KV_TRY(demo_program_run(demo, argv, 60, true));
    const char *line = strstr((const char *)demo->out.data, "opened ");
    return line != NULL && sscanf(line, "opened %u of %u copies", ret_opened, ret_all) == 2
               ? KV_OK
               : demo_lie(demo, "the attack did not say what it opened");
}

KV_RC demo_attack_before(struct demo *demo)
{
    unsigned opened = 0;
    KV_TRY(attack(demo, "before.sql", "server/root", &opened, &demo->copies));
    return opened == demo->copies && opened > 0
               ? KV_OK
               : demo_lie(demo, "the attack must open everything before the erasure, else it proves nothing");
}

KV_RC demo_attack_after(struct demo *demo)
{
    unsigned opened = 0, all = 0;
    KV_TRY(dump_live(demo, "after.sql"));
    printf("   with today's database and today's root:\n");
    KV_TRY(attack(demo, "after.sql", "server/root", &opened, &all));
    if (opened != 0 || all != demo->copies) {
        return demo_lie(demo, "the attack opened copies of an erased session");
    }
    printf("   with the dump from before and today's root:\n");
    KV_TRY(attack(demo, "before.sql", "server/root", &opened, &all));
    return opened == 0 && all == demo->copies ? KV_OK
                                              : demo_lie(demo, "an old dump opened copies of an erased session");
}

/* --- an old backup -------------------------------------------------------------------------------------------- */

static KV_RC restore_backup(struct demo *demo)
{
    char scratch[PATH_SIZE], data[PATH_SIZE], from[PATH_SIZE], like[PATH_SIZE];
    struct kv_private_cluster *cluster = NULL;
    demo_at(demo, "scratch", scratch);
    demo_at(demo, "scratch/postgres", data);
    demo_at(demo, "server/postgres", like);
    if (mkdir(scratch, 0711) != 0 || chmod(scratch, 0711) != 0 || mkdir(data, 0700) != 0) {
        return kv_fail(&demo->info, KV_E_IO, "cannot make a folder: %s", strerror(errno));
    }
    demo_at(demo, "scratch/postgres/data", data);
    if (rename(demo_at(demo, "backup", from), data) != 0) {
        return kv_fail(&demo->info, KV_E_IO, "cannot move the backup: %s", strerror(errno));
    }
    KV_TRY(kv_child_give(demo_at(demo, "scratch/postgres", data), like, &demo->info));
    struct kv_private_cluster_conf conf = {.folder = scratch, .throwaway = true, .env = &kv_env_system};
    KV_TRY(kv_private_cluster_start(&conf, &demo->info, &cluster));
    char folder[PATH_SIZE] = "";
    bool parsed = sscanf(kv_private_cluster_url(cluster), "host=%4000s", folder) == 1;
    enum kv_err rc = parsed ? dump(demo, folder, "backup.sql") : demo_lie(demo, "the scratch database has no socket");
    kv_private_cluster_stop(cluster, KV_PRIVATE_STOP_MS);
    return rc;
}

KV_RC demo_attack_backup(struct demo *demo)
{
    unsigned opened = 0, all = 0;
    KV_TRY(restore_backup(demo));
    printf("   the backup from before the erasure runs again in a scratch database; with today's root:\n");
    KV_TRY(attack(demo, "backup.sql", "server/root", &opened, &all));
    if (opened != 0 || all != demo->copies) {
        return demo_lie(demo, "a restored backup opened copies of an erased session");
    }
    printf("   the control: the same backup with a copy of the root file from before (limit L7: keep the root out of "
           "backups):\n");
    KV_TRY(attack(demo, "backup.sql", "root-before", &opened, &all));
    return opened == demo->copies
               ? KV_OK
               : demo_lie(demo, "the restored backup is not a real one: its own root does not open it");
}
