/*
 * `kvrun doctor`. The database's part is here, because server/cli does not know the store. Must never print the
 * database's address: it may hold a password.
 */
#include "server/doctor.h"

#include "dataplane/base/env.h"
#include "dataplane/base/log.h"
#include "server/cli/doctor.h"
#include "server/http/httpd.h"
#include "server/store/migrate.h"
#include "server/store/store_facts.h"
#include "server/wipe.h"

#include <string.h>

#define OLDEST_VERSION 130000u

static void check_settings(struct doctor *doctor, struct kv_pg *pg)
{
    struct kv_errinfo info = {0};
    struct kv_store_facts facts = {0};
    if (kv_store_facts(pg, &info, &facts) != KV_OK) {
        doctor_say(doctor, "db_settings", DOCTOR_WARN, "let this user read pg_settings and pg_stat_activity", "%s",
                   info.text);
        return;
    }
    doctor_say(doctor, "db_version", facts.version >= OLDEST_VERSION ? DOCTOR_OK : DOCTOR_FAIL,
               "PostgreSQL 13 or later", "PostgreSQL %u.%u", facts.version / 10000, facts.version % 10000);
    bool synchronous = strcmp(facts.synchronous_commit, "off") != 0, durable = strcmp(facts.fsync, "on") == 0;
    doctor_say(doctor, "db_commit",
               synchronous && durable ? DOCTOR_OK
               : durable              ? DOCTOR_WARN
                                      : DOCTOR_FAIL,
               "synchronous_commit=on and fsync=on in postgresql.conf", "synchronous_commit is %s, fsync is %s%s",
               facts.synchronous_commit, facts.fsync,
               synchronous && durable ? "" : ": what was answered could be lost in a crash");
    if (facts.standby) {
        doctor_say(doctor, "db_standby", DOCTOR_FAIL, "point db.url at the primary",
                   "the database only reads: a standby");
    }
    int64_t left = facts.max_connections - facts.connections, need = (int64_t)doctor->conf->service_threads + 8;
    doctor_say(doctor, "db_connections", left >= need ? DOCTOR_OK : DOCTOR_WARN,
               "raise max_connections, or lower service.threads", "%lld are free, this server takes about %lld",
               (long long)left, (long long)need);
    char root[KV_CONF_TEXT_SIZE + 8];
    snprintf(root, sizeof root, "%.1000s%s",
             doctor->conf->root_path[0] != '\0' ? doctor->conf->root_path : doctor->conf->state_dir,
             doctor->conf->root_path[0] != '\0' ? "" : "/root");
    if (facts.data_directory[0] != '\0' && doctor_lies_in(root, facts.data_directory)) {
        doctor_say(doctor, "root_in_db", DOCTOR_FAIL, "move root.path out of it",
                   "the root of erasure lies in PostgreSQL's data folder: every base backup takes it");
    }
    const char *anchor = doctor->conf->anchor_file;
    if (facts.data_directory[0] != '\0' && anchor[0] != '\0' && doctor_same_device(anchor, facts.data_directory)) {
        bool inside = doctor_lies_in(anchor, facts.data_directory);
        doctor_say(doctor, "anchor_in_db", inside ? DOCTOR_FAIL : DOCTOR_WARN, "move anchor.file to another mount",
                   "the anchor lies %s: what puts the database back puts it back, too",
                   inside ? "in PostgreSQL's data folder" : "on the file system of PostgreSQL's data folder");
    }
}

static void check_schema(struct doctor *doctor, struct kv_pg *pg)
{
    struct kv_errinfo info = {0};
    enum kv_err rc = kv_migrate(pg, KV_MIGRATE_CHECK, &info, NULL);
    if (rc == KV_OK) {
        doctor_say(doctor, "db_schema", DOCTOR_OK, NULL, "version %u, as this program wants it", kv_schema_version());
    } else if (rc == KV_E_INVALID_STATE && strcmp(doctor->conf->db_migrate, "auto") == 0) {
        doctor_say(doctor, "db_schema", DOCTOR_OK, NULL, "the start brings it to version %u", kv_schema_version());
    } else {
        doctor_say(doctor, "db_schema", DOCTOR_FAIL,
                   rc == KV_E_SCHEMA_NEWER ? "run the newer kvrun" : "kvrun db migrate", "%s",
                   info.text[0] == '\0' ? kv_err_title(rc) : info.text);
    }
}

static void check_database(struct doctor *doctor)
{
    struct kv_errinfo info = {0};
    struct kv_pg *pg = NULL;
    struct kv_pg_conf pg_conf = {
        .url = doctor->conf->db_url, .application_name = "kvrun/doctor", .env = &kv_env_system};
    if (doctor->conf->db_url[0] == '\0') {
        doctor_say(doctor, "database", DOCTOR_OK, NULL, "db.url is empty: a private PostgreSQL in state.dir");
        return;
    }
    enum kv_err rc = kv_pg_open(&pg_conf, &info, &pg);
    rc = rc == KV_OK ? kv_pg_ping(pg, &info) : rc;
    if (rc != KV_OK) {
        doctor_say(doctor, "database", DOCTOR_FAIL, "check db.url, the network, and that PostgreSQL runs", "%s",
                   rc == KV_E_DB_UNAVAILABLE ? "no PostgreSQL answers at db.url" : info.text);
    } else {
        bool pooled = kv_pg_pooled(pg);
        doctor_say(doctor, "database", pooled ? DOCTOR_WARN : DOCTOR_OK,
                   "point db.url at PostgreSQL itself, if you can",
                   pooled ? "PostgreSQL answers through a pooler: slower, and changes are heard of by asking"
                          : "PostgreSQL answers");
        check_settings(doctor, pg);
        check_schema(doctor, pg);
    }
    kv_pg_close(pg);
}

int kv_doctor(const struct kv_conf *conf, int argc, char **argv)
{
    static struct doctor doctor;
    bool json = argc == 1 && strcmp(argv[0], "--json") == 0;
    if (argc > 1 || (argc == 1 && !json)) {
        fprintf(stderr, "usage: kvrun doctor [--json] [--key=value …]\n");
        return 2;
    }
    kv_log_set_level(KV_LOG_ERROR); /* what is found is said once, below */
    doctor.conf = conf;
    doctor.root = "";
    doctor_machine(&doctor);
    bool wiped = kv_wipe_freed_start();
    doctor_say(&doctor, "freed_memory", wiped ? DOCTOR_OK : DOCTOR_WARN, "a build without sanitizers",
               wiped ? "what is freed is wiped" : "this build leaves what it frees as it is");
    doctor_say(&doctor, "http_library", DOCTOR_OK, NULL, "libmicrohttpd %.20s", kv_httpd_library());
    doctor_places(&doctor);
    check_database(&doctor);
    return doctor_print(&doctor, json, stdout);
}
