/* See policy_vectors.h; the form of a file is in README.md. Must never count a case as passed that it did not run. */
#include "policies/policy_vectors.h"

#include "dataplane/base/buf.h"
#include "dataplane/base/mem.h"
#include "policies/policy_int.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define FILES_MAX 1024

struct run {
    kv_policy_vectors_fn *tell;
    void *ctx;
    struct kv_errinfo *info;
    const char *file;
    struct kv_policy_vectors_result result;
};

static void failed(struct run *run, const json_t *one, const char *what)
{
    const char *name = json_string_value(json_object_get(one, "name"));
    run->result.failed++;
    run->tell(run->ctx, run->file, name == NULL ? "(no name)" : name, what);
}

static KV_RC no_table(struct run *run, const char *why)
{
    const char *base = strrchr(run->file, '/');
    return kv_fail(run->info, KV_E_INVALID_REQUEST, "%.80s: %s", base == NULL ? run->file : base + 1, why);
}

/* --- one case ----------------------------------------------------------------------------------------------------- */

/* The member, an array of names, is exactly the set that `mask` says. An absent member says nothing. */
static bool same_names(const json_t *one, const char *member, uint32_t mask, const char *(*name_of)(uint32_t bit))
{
    const json_t *array = json_object_get(one, member);
    if (array == NULL) {
        return true;
    }
    size_t found = 0;
    for (size_t i = 0; i < json_array_size(array); i++) {
        const char *name = json_string_value(json_array_get(array, i));
        bool there = false;
        for (uint32_t bit = 1; bit != 0; bit <<= 1) {
            there = there || ((mask & bit) != 0 && name != NULL && strcmp(name_of(bit), name) == 0);
        }
        found += there;
    }
    return json_is_array(array) && found == json_array_size(array) && found == (size_t)__builtin_popcount(mask);
}

static const char *tier_name(uint32_t bit)
{
    unsigned tier = (unsigned)__builtin_ctz(bit);
    return tier < KV_POLICY_TIERS ? kv_policy_tier_names[tier] : "";
}

static int append(const char *bytes, size_t len, void *buf)
{
    kv_buf_append(buf, bytes, len);
    return 0;
}

/* The value as text, in an initialised buffer. */
static KV_RC text_of(const json_t *json, struct kv_buf *ret_text)
{
    kv_buf_init(ret_text, (size_t)KV_MAX_BODY_BYTES);
    if (json == NULL || json_dump_callback(json, append, ret_text, JSON_COMPACT | JSON_ENCODE_ANY) != 0) {
        return KV_E_INVALID_REQUEST;
    }
    return kv_buf_check(ret_text);
}

static void run_case(struct run *run, const struct kv_policy_set *set, const json_t *one)
{
    struct kv_policy_question question;
    struct kv_policy_decision decision;
    const char *wanted = json_string_value(json_object_get(one, "decision"));
    struct kv_buf text;
    enum kv_err rc = text_of(json_object_get(one, "ask"), &text);
    rc = rc == KV_OK ? kv_policy_question_parse(kv_buf_bytes(&text), run->info, &question) : rc;
    kv_buf_done(&text);
    run->result.cases++;
    if (rc != KV_OK || wanted == NULL) {
        failed(run, one, rc != KV_OK ? "\"ask\" is not a question" : "\"decision\" is missing");
        return;
    }
    kv_policy_eval(kv_policy_class(set, question.class_name), &question.facts, &decision);
    char what[160];
    if (strcmp(wanted, decision.allowed ? "allow" : "deny") != 0) {
        snprintf(what, sizeof what, "expected %.8s, got %s %s", wanted, decision.allowed ? "allow" : "deny",
                 kv_policy_reason_name(decision.reasons));
        failed(run, one, what);
    } else if (!same_names(one, "reasons", decision.reasons, kv_policy_reason_name)) {
        snprintf(what, sizeof what, "other reasons, the first is \"%s\"", kv_policy_reason_name(decision.reasons));
        failed(run, one, what);
    } else if (!same_names(one, "tiers", decision.tiers_allowed, tier_name)) {
        failed(run, one, "other tiers");
    } else if (!same_names(one, "obligations", decision.obligations, kv_policy_obligation_name)) {
        failed(run, one, "other obligations");
    }
}

/* --- policies ------------------------------------------------------------------------------------------------------
 */

/* A policy in a table is an object, or, for what is not JSON, a text. */
static KV_RC parse(const json_t *json, enum kv_policy_level level, struct kv_errinfo *info,
                   struct kv_policy_doc **ret_doc)
{
    if (json == NULL) {
        return kv_policy_parse(KV_BYTES(kv_policy_builtin, strlen(kv_policy_builtin)), level, info, ret_doc);
    }
    if (json_is_string(json)) {
        return kv_policy_parse(KV_BYTES(json_string_value(json), json_string_length(json)), level, info, ret_doc);
    }
    struct kv_buf text;
    enum kv_err rc = text_of(json, &text);
    rc = rc == KV_OK ? kv_policy_parse(kv_buf_bytes(&text), level, info, ret_doc) : rc;
    kv_buf_done(&text);
    return rc;
}

static void run_invalid(struct run *run, const json_t *one)
{
    struct kv_errinfo info = {0};
    struct kv_policy_doc *doc = NULL;
    const char *level = json_string_value(json_object_get(one, "level"));
    const char *pointer = json_string_value(json_object_get(one, "pointer"));
    const char *says = json_string_value(json_object_get(one, "says"));
    bool platform = level != NULL && strcmp(level, "platform") == 0;
    enum kv_err rc =
        parse(json_object_get(one, "policy"), platform ? KV_POLICY_PLATFORM : KV_POLICY_TENANT, &info, &doc);
    kv_policy_doc_free(doc);
    run->result.cases++;
    char what[320];
    if (rc != KV_E_POLICY_INVALID) {
        failed(run, one, "the policy was accepted");
    } else if (pointer == NULL || strcmp(pointer, info.pointer) != 0) {
        snprintf(what, sizeof what, "the fault was found at \"%s\": %s", info.pointer, info.text);
        failed(run, one, what);
    } else if (says != NULL && strstr(info.text, says) == NULL) {
        snprintf(what, sizeof what, "the text is \"%s\"", info.text);
        failed(run, one, what);
    }
}

static KV_RC compile(struct run *run, const json_t *table, struct kv_policy_set **ret_set)
{
    struct kv_policy_doc *platform KV_CLEANUP(kv_policy_doc_freep) = NULL,
                                   *tenant KV_CLEANUP(kv_policy_doc_freep) = NULL;
    KV_TRY(parse(json_object_get(table, "platform"), KV_POLICY_PLATFORM, run->info, &platform));
    KV_TRY(parse(json_object_get(table, "tenant"), KV_POLICY_TENANT, run->info, &tenant));
    return kv_policy_compile(platform, tenant, ret_set);
}

static KV_RC run_table(struct run *run, const json_t *table)
{
    const json_t *cases = json_object_get(table, "cases"), *invalid = json_object_get(table, "invalid");
    if (json_array_size(cases) + json_array_size(invalid) == 0) {
        return no_table(run, "holds neither \"cases\" nor \"invalid\"");
    }
    if (cases != NULL) {
        struct kv_policy_set *set KV_CLEANUP(kv_policy_set_freep) = NULL;
        KV_TRY(compile(run, table, &set));
        for (size_t i = 0; i < json_array_size(cases); i++) {
            run_case(run, set, json_array_get(cases, i));
        }
    }
    for (size_t i = 0; i < json_array_size(invalid); i++) {
        run_invalid(run, json_array_get(invalid, i));
    }
    return KV_OK;
}

/* --- files ---------------------------------------------------------------------------------------------------------
 */

static KV_RC run_file(struct run *run, const char *file)
{
    json_error_t error;
    run->file = file;
    json_t *table = json_load_file(file, JSON_REJECT_DUPLICATES, &error);
    if (table == NULL) {
        char why[64];
        snprintf(why, sizeof why, "not readable, or not JSON (line %d)", error.line);
        return no_table(run, why);
    }
    enum kv_err rc = run_table(run, table);
    json_decref(table);
    run->result.files += rc == KV_OK;
    return rc;
}

static bool is_json(const char *name)
{
    size_t len = strlen(name);
    return len > 5 && strcmp(name + len - 5, ".json") == 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

struct names {
    char *list[FILES_MAX]; /* owned */
    size_t count;
};

static KV_RC list_names(struct run *run, const char *path, struct names *names)
{
    DIR *folder = opendir(path);
    enum kv_err rc =
        folder == NULL ? kv_fail(run->info, KV_E_NOT_FOUND, "cannot read the folder: %s", strerror(errno)) : KV_OK;
    for (const struct dirent *entry = NULL; rc == KV_OK && (entry = readdir(folder)) != NULL;) {
        if (!is_json(entry->d_name)) {
            continue;
        }
        if (names->count == FILES_MAX) {
            rc = kv_fail(run->info, KV_E_LIMIT, "at most %d files", FILES_MAX);
            break;
        }
        names->list[names->count] = kv_strdup(entry->d_name);
        rc = names->list[names->count] == NULL ? KV_E_NO_MEMORY : KV_OK;
        names->count += rc == KV_OK;
    }
    if (folder != NULL) {
        closedir(folder);
    }
    qsort(names->list, names->count, sizeof names->list[0], by_name);
    return rc;
}

static KV_RC run_named(struct run *run, const char *path, const char *name)
{
    char file[4096];
    if ((size_t)snprintf(file, sizeof file, "%s/%s", path, name) >= sizeof file) {
        return kv_fail(run->info, KV_E_LIMIT, "a file's name is too long");
    }
    return run_file(run, file);
}

static KV_RC run_folder(struct run *run, const char *path)
{
    struct names *names = kv_alloc(sizeof *names);
    enum kv_err rc = names == NULL ? KV_E_NO_MEMORY : list_names(run, path, names);
    for (size_t i = 0; rc == KV_OK && i < names->count; i++) {
        rc = run_named(run, path, names->list[i]);
    }
    for (size_t i = 0; names != NULL && i < names->count; i++) {
        kv_free(names->list[i]);
    }
    kv_free(names);
    return rc;
}

KV_RC kv_policy_vectors_run(const char *path, kv_policy_vectors_fn *tell, void *ctx, struct kv_errinfo *info,
                            struct kv_policy_vectors_result *ret_result)
{
    struct run run = {.tell = tell, .ctx = ctx, .info = info, .file = path};
    struct stat what;
    if (stat(path, &what) != 0) {
        return kv_fail(info, KV_E_NOT_FOUND, "cannot open what to test: %s", strerror(errno));
    }
    KV_TRY(S_ISDIR(what.st_mode) ? run_folder(&run, path) : run_file(&run, path));
    if (run.result.cases == 0) {
        return kv_fail(info, KV_E_NOT_FOUND, "there is no table of cases (*.json) in this folder");
    }
    *ret_result = run.result;
    return KV_OK;
}
