/* Outside vectors for proofs: all inclusion and consistency files of transparency-dev/merkle, good and bad. */
#include "audit/merkle.h"
#include "kv_version.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <fts.h>
#include <jansson.h>
#include <string.h>

#define VECTORS KV_SOURCE_DIR "/tests/vectors/merkle/"

struct tally {
    unsigned files, good;
};

/* False when it is not 32 bytes; what there is lies at the start, the rest is zero. */
static bool read_hash(const json_t *value, struct kv_hash *hash)
{
    size_t len = 0;
    memset(hash, 0, sizeof(*hash));
    return json_is_string(value) &&
           kv_base64_decode(json_string_value(value), json_string_length(value), hash->b, 32, &len) == KV_OK &&
           len == 32;
}

static bool read_proof(const json_t *array, struct kv_hash *proof, size_t *count)
{
    bool good = true;
    *count = json_array_size(array);
    cr_assert(le(sz, *count, KV_MERKLE_DEPTH_MAX));
    for (size_t i = 0; i < *count; i++) {
        good = read_hash(json_array_get(array, i), &proof[i]) && good;
    }
    return good;
}

/* Some files hold 2^64 - 1, which jansson's integers do not; as reals the small numbers are exact and the huge one is
 * huge. */
static uint64_t number(const json_t *vector, const char *name)
{
    double value = json_real_value(json_object_get(vector, name));
    return value >= 1e18 ? UINT64_MAX : (uint64_t)value;
}

static enum kv_err run_inclusion(const json_t *vector)
{
    struct kv_hash leaf, root, proof[KV_MERKLE_DEPTH_MAX];
    size_t count;
    bool formed = read_hash(json_object_get(vector, "leafHash"), &leaf);
    formed = read_hash(json_object_get(vector, "root"), &root) && formed;
    formed = read_proof(json_object_get(vector, "proof"), proof, &count) && formed;
    if (!formed) {
        return KV_E_CORRUPT;
    }
    return kv_merkle_verify_inclusion(&leaf, number(vector, "leafIdx"), number(vector, "treeSize"), proof, count,
                                      &root);
}

static enum kv_err run_consistency(const json_t *vector)
{
    struct kv_hash root1, root2, proof[KV_MERKLE_DEPTH_MAX];
    size_t count;
    bool padded = !read_hash(json_object_get(vector, "root1"), &root1);
    padded = !read_hash(json_object_get(vector, "root2"), &root2) || padded;
    if (!read_proof(json_object_get(vector, "proof"), proof, &count) ||
        (padded && json_is_true(json_object_get(vector, "wantErr")))) {
        return KV_E_CORRUPT;
    }
    return kv_merkle_verify_consistency(number(vector, "size1"), number(vector, "size2"), &root1, &root2, proof, count);
}

static void run_file(const char *path, enum kv_err (*run)(const json_t *vector), struct tally *tally)
{
    json_t *vector = json_load_file(path, JSON_DECODE_INT_AS_REAL, NULL);
    cr_assert(vector != NULL, "%s", path);
    bool want_error = json_is_true(json_object_get(vector, "wantErr"));
    enum kv_err rc = run(vector);
    cr_assert(want_error == (rc != KV_OK), "%s: rc %d", path, rc);
    tally->files++;
    tally->good += want_error ? 0 : 1;
    json_decref(vector);
}

static struct tally run_folder(char *folder, enum kv_err (*run)(const json_t *vector))
{
    struct tally tally = {0};
    char *const roots[] = {folder, NULL};
    FTS *walk = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    cr_assert(walk != NULL);
    FTSENT *entry;
    while ((entry = fts_read(walk)) != NULL) {
        if (entry->fts_info == FTS_F) {
            run_file(entry->fts_path, run, &tally);
        }
    }
    fts_close(walk);
    return tally;
}

Test(merkle_vectors, inclusion)
{
    char folder[] = VECTORS "inclusion";
    struct tally tally = run_folder(folder, run_inclusion);
    cr_assert(eq(u32, tally.files, 98));
    cr_assert(eq(u32, tally.good, 6));
}

Test(merkle_vectors, consistency)
{
    char folder[] = VECTORS "consistency";
    struct tally tally = run_folder(folder, run_consistency);
    cr_assert(eq(u32, tally.files, 98));
    cr_assert(eq(u32, tally.good, 6));
}
