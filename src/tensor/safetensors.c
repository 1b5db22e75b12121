/* A checkpoint as a set of tensors: which files belong to it, look-up by name, and the loader's claims. What one file
 * must look like is st_header.c's business.
 *
 * Which files: if `model.safetensors.index.json` is there it decides, also when `model.safetensors` lies beside it (the
 * index says on purpose what belongs together; a single file beside it is usually left over). Else
 * `model.safetensors`. Other files in the folder are not looked at. The index's metadata.total_size is ignored: nothing
 * depends on it, and every range is checked against the files themselves.
 *
 * Memory: the weights are mapped, never read into the heap. A file that another process shortens while it is mapped
 * kills the reader (SIGBUS): replace checkpoints by renaming, as the writer here does.
 */
#include "tensor/safetensors.h"

#include "base/json.h"
#include "tensor/st_int.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

static const char single_name[] = "model.safetensors";
static const char index_name[] = "model.safetensors.index.json";

static gy_status no_memory(gy_err *err, const char *what) {
    return gy_err_set(err, GY_E_NOMEM, "%s: no memory for the tensor list", what);
}

/* ---- life ------------------------------------------------------------------------------------------------------- */

static gy_st *st_create(const char *name) {
    gy_st *st = gy_mem_alloc(GY_MEM_TENSOR, 1, sizeof *st);
    if (!st) return NULL;
    st->arena = gy_arena_create(GY_MEM_TENSOR, 64 << 10);
    st->dir = st->arena ? gy_arena_strndup(st->arena, name, strlen(name)) : NULL;
    if (st->dir) return st;
    gy_st_close(st);
    return NULL;
}

void gy_st_close(gy_st *st) {
    if (!st) return;
    for (size_t i = 0; i < st->shards.len; i++)
        if (!st->shards.data[i].borrowed) gy_map_close(&st->shards.data[i].map);
    gy_vec_free(&st->shards);
    gy_vec_free(&st->tensors);
    gy_mem_free(st->claimed);
    gy_arena_destroy(st->arena);
    gy_mem_free(st);
}

/* Maps one file and takes its tensors. The shard is in the list before anything can fail, so close finds it. */
static gy_status st_add_file(gy_st *st, const char *path, gy_err *err) {
    gy_st_shard shard = {.path = gy_arena_strndup(st->arena, path, strlen(path))};
    if (!shard.path || gy_vec_push(&st->shards, GY_MEM_TENSOR, shard)) return no_memory(err, path);
    gy_st_shard *s = &st->shards.data[st->shards.len - 1];
    GY_TRY(gy_map_open(path, err, &s->map));
    return gy_st_parse_image(st, s, err);
}

static int tensor_cmp_name(const void *a, const void *b) {
    const gy_tensor_info *x = a, *y = b;
    const int c = strcmp(x->name, y->name);
    return c ? c : strcmp(x->file, y->file);
}

/* After the last file: sorts by name and refuses a name that two files have (inside one file the JSON reader does). */
static gy_status st_finish(gy_st *st, gy_err *err) {
    const size_t n = st->tensors.len;
    gy_tensor_info *t = st->tensors.data;
    if (n == 0)
        return gy_err_set(err, GY_E_FORMAT, "%s: holds no tensor, expected the weights of a model: download it again",
                          st->dir);
    qsort(t, n, sizeof *t, tensor_cmp_name);
    for (size_t i = 0; i < n; i++) {
        if (i > 0 && !strcmp(t[i - 1].name, t[i].name))
            return gy_err_set(err, GY_E_FORMAT,
                              "%s: duplicate tensor \"%s\": it is in %s too, expected in one file only: delete the "
                              "folder and download the checkpoint again",
                              t[i].file, t[i].name, t[i - 1].file);
        st->data_bytes += t[i].bytes;
    }
    st->claimed = gy_mem_alloc(GY_MEM_TENSOR, n, 1);
    return st->claimed ? GY_OK : no_memory(err, st->dir);
}

/* ---- the index -------------------------------------------------------------------------------------------------- */

/* A shard name is the name of a file beside the index, never a path: an index from the network chooses no files. */
static gy_status index_check_shard(const char *path, const char *tensor, const gy_jv *v, gy_err *err) {
    size_t len;
    const char *file = gy_jv_str(v, &len);
    if (!file)
        return gy_err_set(err, GY_E_FORMAT,
                          "%s: weight_map[\"%s\"] is %s, expected the name of a shard: download the "
                          "index again",
                          path, tensor, gy_jtype_name(gy_jv_type(v)));
    GY_TRY(gy_st_check_name(path, "shard", file, len, err));
    if (!strchr(file, '/') && !strchr(file, '\\') && strcmp(file, ".") != 0 && strcmp(file, "..") != 0) return GY_OK;
    return gy_err_set(err, GY_E_FORMAT,
                      "%s: weight_map[\"%s\"] is the path \"%.200s\", expected the plain name of a file in the same "
                      "folder: do not trust this index, download it again",
                      path, tensor, file);
}

static int str_cmp(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The distinct shard names of the index, sorted, so that errors do not depend on its order. */
static gy_status index_list_shards(const char *path, const gy_jv *map, const char ***list_out, size_t *n_out,
                                   gy_err *err) {
    size_t n = 0, len;
    const char **list = gy_mem_alloc(GY_MEM_TENSOR, gy_jv_len(map), sizeof *list);
    if (!list) return no_memory(err, path);
    gy_status s = GY_OK;
    for (void *it = gy_jv_first(map); it; it = gy_jv_next(map, it)) {
        const char *tensor = gy_jv_key(it, &len);
        GY_TRY_GOTO(s, gy_st_check_name(path, "tensor", tensor, len, err), fail);
        GY_TRY_GOTO(s, index_check_shard(path, tensor, gy_jv_val(it), err), fail);
        list[n++] = gy_jv_str(gy_jv_val(it), NULL);
    }
    qsort(list, n, sizeof *list, str_cmp);
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (i == 0 || strcmp(list[i], list[kept - 1]) != 0) list[kept++] = list[i];
    *list_out = list;
    *n_out = kept;
    return GY_OK;
fail:
    gy_mem_free(list);
    return s;
}

static gy_status index_open_shards(gy_st *st, const char *path, const char *const *list, size_t n, gy_err *err) {
    for (size_t i = 0; i < n; i++) {
        char *file = gy_path_join(st->dir, list[i]);
        if (!file) return no_memory(err, path);
        const gy_status s = gy_file_exists(file)
                                ? st_add_file(st, file, err)
                                : gy_err_set(err, GY_E_IO,
                                             "%s: names the shard %.200s (%zu of %zu), found no such file in the "
                                             "folder: download it",
                                             path, list[i], i + 1, n);
        gy_mem_free(file);
        GY_TRY(s);
    }
    return GY_OK;
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Index and files must say the same: each tensor of the index is in the shard it names, and no shard has others. */
static gy_status index_check_tensors(const gy_st *st, const char *path, const gy_jv *map, gy_err *err) {
    for (void *it = gy_jv_first(map); it; it = gy_jv_next(map, it)) {
        const char *name = gy_jv_key(it, NULL), *file = gy_jv_str(gy_jv_val(it), NULL);
        const gy_tensor_info *t = gy_st_find(st, name);
        if (!t)
            return gy_err_set(err, GY_E_FORMAT,
                              "%s: tensor \"%s\" should be in %.200s, found in no shard: index and shards are of "
                              "different versions: download both again",
                              path, name, file);
        if (strcmp(base_name(t->file), file) != 0)
            return gy_err_set(err, GY_E_FORMAT,
                              "%s: tensor \"%s\" is in the wrong shard: found in %.200s, expected in %.200s: index and "
                              "shards are of different versions: download both again",
                              path, name, base_name(t->file), file);
    }
    for (size_t i = 0; i < st->tensors.len; i++) {
        const gy_tensor_info *t = &st->tensors.data[i];
        if (gy_jv_get(map, t->name)) continue;
        return gy_err_set(err, GY_E_FORMAT,
                          "%s: tensor \"%s\" is not in %s, expected there: index and shards are of different "
                          "versions: download both again",
                          t->file, t->name, index_name);
    }
    return GY_OK;
}

static gy_status index_load(gy_st *st, const char *path, const gy_jv *root, gy_err *err) {
    const gy_jv *map = gy_jv_get(root, "weight_map");
    if (gy_jv_type(map) != GY_J_OBJECT || gy_jv_len(map) == 0)
        return gy_err_set(err, GY_E_FORMAT,
                          "%s: weight_map is %s, expected an object that maps each tensor to its "
                          "shard: download the index again",
                          path,
                          !map                             ? "missing"
                          : gy_jv_type(map) == GY_J_OBJECT ? "empty"
                                                           : gy_jtype_name(gy_jv_type(map)));
    const char **list = NULL;
    size_t n = 0;
    GY_TRY(index_list_shards(path, map, &list, &n, err));
    gy_status s;
    GY_TRY_GOTO(s, index_open_shards(st, path, list, n, err), done);
    GY_TRY_GOTO(s, st_finish(st, err), done);
    s = index_check_tensors(st, path, map, err);
done:
    gy_mem_free(list);
    return s;
}

static gy_status st_load_index(gy_st *st, const char *path, gy_err *err) {
    const gy_json_limits lim = {.max_bytes = GY_ST_MAX_HEADER, .max_depth = GY_ST_JSON_DEPTH};
    gy_json *doc = NULL;
    GY_TRY(gy_json_read(path, &lim, err, &doc));
    const gy_status s = index_load(st, path, gy_json_root(doc), err);
    gy_json_free(doc);
    return s;
}

/* ---- a folder without a checkpoint ------------------------------------------------------------------------------ */

static int has_suffix(const char *s, const char *suffix) {
    const size_t n = strlen(s), k = strlen(suffix);
    return n >= k && !memcmp(s + n - k, suffix, k);
}

static const char *advice_for(const gy_vec_str *names) {
    static const char *const other[] = {".bin", ".gguf", ".pt", ".pth", ".ckpt", ".msgpack", ".h5", ".onnx"};
    for (size_t i = 0; i < names->len; i++)
        if (has_suffix(names->data[i], ".safetensors"))
            return "rename a single file to model.safetensors; shards need their model.safetensors.index.json: "
                   "download it";
    for (size_t i = 0; i < names->len; i++)
        for (size_t k = 0; k < sizeof other / sizeof *other; k++)
            if (has_suffix(names->data[i], other[k]))
                return "only safetensors are read, not .bin, .pt or .gguf: get the safetensors version, or convert it";
    return "give the folder of a downloaded checkpoint";
}

/* Names of the entries that are not hidden, sorted; the strings live in the arena. */
static int dir_list(gy_arena *arena, const char *dir, gy_vec_str *names) {
    DIR *d = opendir(dir);
    if (!d) return -1;
    int failed = 0;
    for (struct dirent *e = readdir(d); e && !failed; e = readdir(d)) {
        if (e->d_name[0] == '.') continue;
        char *name = gy_arena_strndup(arena, e->d_name, strlen(e->d_name));
        failed = !name || gy_vec_push(names, GY_MEM_TENSOR, name);
    }
    closedir(d);
    if (names->len) qsort(names->data, names->len, sizeof *names->data, str_cmp);
    return failed ? -1 : 0;
}

static gy_status refuse_folder(gy_st *st, gy_err *err) {
    enum { SHOWN = 8 };
    gy_vec_str names = {0};
    gy_str text = {0};
    char buf[48];
    const int listed = dir_list(st->arena, st->dir, &names) == 0;
    for (size_t i = 0; i < names.len && i < SHOWN; i++)
        gy_str_printf(&text, "%s%s", i ? ", " : "", gy_st_printable(names.data[i], strlen(names.data[i]), buf));
    if (names.len > SHOWN) gy_str_printf(&text, " and %zu more", names.len - SHOWN);
    const gy_status s =
        gy_err_set(err, GY_E_IO, "%s: neither %s nor %s is there; found %s: %s", st->dir, single_name, index_name,
                   !listed     ? "a folder that cannot be listed"
                   : names.len ? gy_str_z(&text)
                               : "an empty folder",
                   advice_for(&names));
    gy_str_free(&text);
    gy_vec_free(&names);
    return s;
}

/* ---- opening ---------------------------------------------------------------------------------------------------- */

static gy_status st_load_dir(gy_st *st, gy_err *err) {
    char *index = gy_path_join(st->dir, index_name), *single = gy_path_join(st->dir, single_name);
    gy_status s = GY_OK;
    if (!index || !single)
        s = no_memory(err, st->dir);
    else if (gy_file_exists(index))
        s = st_load_index(st, index, err);
    else if (!gy_file_exists(single))
        s = refuse_folder(st, err);
    else if ((s = st_add_file(st, single, err)) == GY_OK)
        s = st_finish(st, err);
    gy_mem_free(index);
    gy_mem_free(single);
    return s;
}

static gy_status st_hand_over(gy_st *st, gy_status s, gy_st **out) {
    if (s < 0)
        gy_st_close(st);
    else
        *out = st;
    return s;
}

gy_status gy_st_open(const char *dir, gy_err *err, gy_st **out) {
    if (!gy_dir_exists(dir))
        return gy_err_set(err, GY_E_IO, "%s: %s, expected the folder of a checkpoint: %s", dir,
                          gy_file_exists(dir) ? "found a file" : "found no such folder",
                          gy_file_exists(dir) ? "give the folder that holds it" : "check the path");
    gy_st *st = st_create(dir);
    if (!st) return no_memory(err, dir);
    return st_hand_over(st, st_load_dir(st, err), out);
}

gy_status gy_st_open_file(const char *path, gy_err *err, gy_st **out) {
    gy_st *st = st_create(path);
    if (!st) return no_memory(err, path);
    gy_status s = st_add_file(st, path, err);
    if (s == GY_OK) s = st_finish(st, err);
    return st_hand_over(st, s, out);
}

gy_status gy_st_open_memory(const void *data, size_t size, const char *name, gy_err *err, gy_st **out) {
    if ((uintptr_t)data % 8 != 0)
        return gy_err_set(err, GY_E_ARG, "%s: the image begins at an address that is not a multiple of 8", name);
    gy_st *st = st_create(name);
    if (!st) return no_memory(err, name);
    const gy_st_shard shard = {.path = st->dir, .map = {data, size}, .borrowed = 1};
    gy_status s =
        gy_vec_push(&st->shards, GY_MEM_TENSOR, shard) ? no_memory(err, name) : gy_st_parse_image(st, &shard, err);
    if (s == GY_OK) s = st_finish(st, err);
    return st_hand_over(st, s, out);
}

/* ---- look-up ---------------------------------------------------------------------------------------------------- */

size_t gy_st_count(const gy_st *st) {
    return st->tensors.len;
}

const gy_tensor_info *gy_st_at(const gy_st *st, size_t i) {
    return i < st->tensors.len ? &st->tensors.data[i] : NULL;
}

size_t gy_st_data_bytes(const gy_st *st) {
    return st->data_bytes;
}

/* Index of the first tensor whose name is not less than name. */
static size_t lower_bound(const gy_st *st, const char *name) {
    size_t lo = 0, hi = st->tensors.len;
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        if (strcmp(st->tensors.data[mid].name, name) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

const gy_tensor_info *gy_st_find(const gy_st *st, const char *name) {
    const size_t i = lower_bound(st, name);
    return i < st->tensors.len && !strcmp(st->tensors.data[i].name, name) ? &st->tensors.data[i] : NULL;
}

/* Levenshtein distance of two names, row by row. Names in a gy_st have at most GY_ST_MAX_NAME bytes. */
static int edit_distance(const char *a, const char *b) {
    int row[GY_ST_MAX_NAME + 1];
    const int nb = (int)strlen(b);
    for (int j = 0; j <= nb; j++) row[j] = j;
    for (int i = 0; a[i]; i++) {
        int diag = row[0];
        row[0] = i + 1;
        for (int j = 0; j < nb; j++) {
            const int sub = diag + (a[i] != b[j]), gap = (row[j] < row[j + 1] ? row[j] : row[j + 1]) + 1;
            diag = row[j + 1];
            row[j + 1] = sub < gap ? sub : gap;
        }
    }
    return row[nb];
}

/* 0 where one name is the other behind a prefix and a dot (a wrapped model: "base.model.x" for "model.x"). */
static int name_distance(const char *want, const char *have) {
    const size_t nw = strlen(want), nh = strlen(have);
    const char *longer = nw > nh ? want : have, *shorter = nw > nh ? have : want;
    const size_t extra = nw > nh ? nw - nh : nh - nw;
    if (extra > 0 && longer[extra - 1] == '.' && !strcmp(longer + extra, shorter)) return 0;
    return edit_distance(want, have);
}

/* The stored name most like `name`. Only a window of the sorted list is searched, so that a hostile header with
 * millions of names costs no minutes; a real checkpoint fits into it whole. */
static const char *closest_name(const gy_st *st, const char *name) {
    enum { WINDOW = 4096 };
    if (strlen(name) > GY_ST_MAX_NAME) return st->tensors.data[0].name;
    const size_t at = lower_bound(st, name), lo = at > WINDOW / 2 ? at - WINDOW / 2 : 0;
    const char *best = st->tensors.data[lo].name;
    int best_distance = name_distance(name, best);
    for (size_t i = lo; i < st->tensors.len && i < lo + WINDOW; i++) {
        const int d = name_distance(name, st->tensors.data[i].name);
        if (d >= best_distance) continue;
        best_distance = d;
        best = st->tensors.data[i].name;
    }
    return best;
}

/* ---- claims ----------------------------------------------------------------------------------------------------- */

static gy_status claim_check(const gy_tensor_info *t, const int64_t *shape, int n_dim, gy_err *err) {
    char have[192], want[192];
    if (t->n_dim != n_dim || (n_dim > 0 && memcmp(t->shape, shape, (size_t)n_dim * sizeof *shape) != 0))
        return gy_err_set(err, GY_E_FORMAT,
                          "%s: tensor \"%s\" has shape %s, expected %s: config.json and weights do not belong together",
                          t->file, t->name, gy_st_shape_text(t->shape, t->n_dim, have),
                          gy_st_shape_text(shape, n_dim, want));
    if (t->dtype != GY_F32 && t->dtype != GY_F16 && t->dtype != GY_BF16)
        return gy_err_set(err, GY_E_UNSUPPORTED,
                          "%s: tensor \"%s\" has dtype %s, expected F32, F16 or BF16: use a checkpoint that is not "
                          "quantised",
                          t->file, t->name, gy_dtype_name(t->dtype));
    return GY_OK;
}

gy_status gy_st_claim(gy_st *st, const char *name, const int64_t *shape, int n_dim, gy_err *err,
                      const gy_tensor_info **out) {
    const gy_tensor_info *t = gy_st_find(st, name);
    if (!t)
        return gy_err_set(err, GY_E_FORMAT,
                          "%s: tensor \"%.512s\" is missing (%zu tensors are there; the closest name is \"%.200s\"): "
                          "config.json and weights do not belong together, or the download is incomplete",
                          st->dir, name, st->tensors.len, closest_name(st, name));
    unsigned char *claimed = &st->claimed[t - st->tensors.data];
    if (*claimed)
        return gy_err_set(err, GY_E_BUG, "%s: tensor \"%s\" was claimed twice: a bug in gyre's weight map, report it",
                          t->file, t->name);
    GY_TRY(claim_check(t, shape, n_dim, err));
    *claimed = 1;
    *out = t;
    return GY_OK;
}

static int is_known(const char *name, const char *const *known, int n_known) {
    for (int i = 0; i < n_known; i++)
        if (has_suffix(name, known[i])) return 1;
    return 0;
}

gy_status gy_st_check_unclaimed(const gy_st *st, const char *const *known, int n_known, gy_err *err) {
    const gy_tensor_info *first = NULL;
    size_t n = 0;
    char shape[192];
    for (size_t i = 0; i < st->tensors.len; i++) {
        const gy_tensor_info *t = &st->tensors.data[i];
        if (st->claimed[i] || is_known(t->name, known, n_known)) continue;
        if (!first) first = t;
        n++;
    }
    if (n == 0) return GY_OK;
    return gy_err_set(
        err, GY_E_FORMAT,
        "%s: tensor \"%s\" %s of %s is extra: this model has no such tensor (%zu in all): config.json and "
        "weights do not belong together, or the model has parts that gyre does not run",
        first->file, first->name, gy_st_shape_text(first->shape, first->n_dim, shape), gy_dtype_name(first->dtype), n);
}
