/* One safetensors image: 8 bytes of length, JSON header, data. Everything that a single image can show to be wrong is
 * refused here. Not done: no data byte is read (a NaN in the weights is not this file's business), and
 * "__metadata__" is checked and forgotten.
 *
 * After a success: the ranges of the tensors tile the data section exactly, each range is shape x element size long and
 * begins, in the file and therefore in memory, on a multiple of its element size.
 */
#include "base/json.h"
#include "tensor/st_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* What is being read; begin and end of a tensor are offsets into data[0..data_bytes). */
typedef struct image {
    const char *path;
    const char *data;
    size_t data_bytes;
    size_t data_at; /* offset of data in the file */
} image;

/* ---- small helpers ---------------------------------------------------------------------------------------------- */

const char *gy_st_printable(const char *s, size_t len, char buf[48]) {
    size_t n = 0;
    for (; n < len && n < 47; n++) buf[n] = s[n] >= 0x20 && s[n] < 0x7f ? s[n] : '?';
    buf[n] = 0;
    return buf;
}

const char *gy_st_shape_text(const int64_t *shape, int n_dim, char buf[192]) {
    int at = snprintf(buf, 192, "[");
    for (int i = 0; i < n_dim && i < GY_MAX_DIM; i++)
        at += snprintf(buf + at, 192 - (size_t)at, "%s%" PRId64, i ? ", " : "", shape[i]);
    snprintf(buf + at, 192 - (size_t)at, "]");
    return buf;
}

int gy_st_tensor_bytes(gy_dtype dtype, const int64_t *shape, int n_dim, size_t *bytes_out) {
    size_t bytes = gy_dtype_bytes(dtype);
    int empty = 0;
    for (int i = 0; i < n_dim; i++) {
        if (shape[i] < 0) return 1;
        empty |= shape[i] == 0;
        if (gy_size_mul(bytes, shape[i] ? (size_t)shape[i] : 1, &bytes)) return 1;
    }
    *bytes_out = empty ? 0 : bytes;
    return 0;
}

gy_status gy_st_check_name(const char *path, const char *what, const char *name, size_t len, gy_err *err) {
    char buf[48];
    if (len == 0 || len > GY_ST_MAX_NAME)
        return gy_err_set(err, GY_E_FORMAT,
                          "%s: the name of a %s has %zu bytes, expected 1 to %d (it begins \"%s\"): not a checkpoint "
                          "that gyre can read",
                          path, what, len, GY_ST_MAX_NAME, gy_st_printable(name, len, buf));
    for (size_t i = 0; i < len; i++) {
        const unsigned char c = (unsigned char)name[i];
        if (c >= 0x20 && c != 0x7f) continue;
        return gy_err_set(err, GY_E_FORMAT,
                          "%s: the name of %s \"%s\" holds the control character 0x%02x, expected printable text: not "
                          "a checkpoint that gyre can read",
                          path, what, gy_st_printable(name, len, buf), c);
    }
    return GY_OK;
}

/* ---- before the header: files that are something else ---------------------------------------------------------- */

static const struct magic {
    const char *text;
    int any_case;
    const char *what, *advice;
} magic_table[] = {
    {"version https://git-lfs", 0, "a Git LFS pointer (a note of where the file is kept)",
     "run `git lfs pull` in its folder, or download the file itself"},
    {"<!DOCTYPE", 1, "an HTML page", "the download saved a web page (login or error): download the file again"},
    {"<html", 1, "an HTML page", "the download saved a web page (login or error): download the file again"},
    {"GGUF", 0, "a GGUF file", "gyre reads safetensors only: use the original checkpoint"},
    {"PK\x03\x04", 0, "a zip archive (PyTorch's .bin and .pt are such)",
     "gyre reads safetensors only: convert it with the safetensors package"},
    {"{", 0, "bare JSON without the 8 bytes of header length", "give the *.safetensors file, not its index or config"},
};

static int magic_matches(const struct magic *m, const char *data, size_t size) {
    const size_t len = strlen(m->text);
    if (!m->any_case) return size >= len && memcmp(data, m->text, len) == 0;
    size_t at = 0; /* web pages often begin with blank lines */
    while (at < size && strchr(" \t\r\n", data[at]) && data[at]) at++;
    return size - at >= len && strncasecmp(data + at, m->text, len) == 0;
}

static gy_status image_sniff(const char *path, const char *data, size_t size, gy_err *err) {
    for (size_t i = 0; i < sizeof magic_table / sizeof *magic_table; i++) {
        const struct magic *m = &magic_table[i];
        if (!magic_matches(m, data, size)) continue;
        /* A header length may begin with the byte '{' (123, 379, ... bytes); then '{' follows it too. */
        if (m->text[0] == '{' && (size < 9 || data[8] == '{')) continue;
        return gy_err_set(err, GY_E_FORMAT, "%s: found %s, expected a safetensors file: %s", path, m->what, m->advice);
    }
    return GY_OK;
}

static gy_status image_header_bytes(const char *path, const char *data, size_t size, size_t *n_out, gy_err *err) {
    if (size == 0)
        return gy_err_set(err, GY_E_FORMAT, "%s: the file is empty, expected a safetensors file: download it again",
                          path);
    GY_TRY(image_sniff(path, data, size, err));
    if (size < 8)
        return gy_err_set(err, GY_E_FORMAT,
                          "%s: truncated: found %zu bytes, expected at least the 8 of the header length: download it "
                          "again",
                          path, size);
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--) n = n << 8 | (unsigned char)data[i];
    if (n >= GY_ST_MAX_HEADER)
        return gy_err_set(err, GY_E_FORMAT,
                          "%s: the header says that it is %" PRIu64 " bytes long, expected less than %d: this is not a "
                          "safetensors file, or it is damaged: download it again",
                          path, n, GY_ST_MAX_HEADER);
    if (n > size - 8)
        return gy_err_set(err, GY_E_FORMAT,
                          "%s: truncated: the header is %" PRIu64 " bytes long, found only %zu after its length: "
                          "download it again",
                          path, n, size - 8);
    *n_out = (size_t)n;
    return GY_OK;
}

/* ---- one entry of the header ------------------------------------------------------------------------------------ */

/* Types of newer or other writers, known so that the message can say "not supported" and not "damaged". */
static const char *const other_dtypes[] = {
    "F4",          "F6_E2M3", "F6_E3M2", "F8_E8M0",          "C64",  "C128", "F8_E4M3FNUZ",
    "F8_E5M2FNUZ", "I4",      "U4",      "FLOAT4_E2M1FN_X2", "F128", "I128", "U128"};

static gy_status entry_dtype(const image *im, const char *name, const gy_jv *v, gy_tensor_info *t, gy_err *err) {
    size_t len = 0;
    const char *s = gy_jv_str(v, &len);
    char buf[48];
    if (!s)
        return gy_err_set(err, GY_E_FORMAT,
                          "%s: tensor \"%s\": dtype is %s, expected a string such as \"BF16\": the "
                          "header is damaged: download it again",
                          im->path, name, gy_jtype_name(gy_jv_type(v)));
    if (gy_dtype_parse(s, len, &t->dtype) == 0) return GY_OK;
    for (size_t i = 0; i < sizeof other_dtypes / sizeof *other_dtypes; i++) {
        if (strlen(other_dtypes[i]) != len || memcmp(other_dtypes[i], s, len) != 0) continue;
        return gy_err_set(err, GY_E_UNSUPPORTED,
                          "%s: tensor \"%s\": dtype %s is not supported, expected F32, F16 or BF16: use a checkpoint "
                          "that is not quantised",
                          im->path, name, other_dtypes[i]);
    }
    return gy_err_set(err, GY_E_FORMAT,
                      "%s: tensor \"%s\": unknown dtype \"%s\", expected F32, F16 or BF16: use a checkpoint of one of "
                      "these types",
                      im->path, name, gy_st_printable(s, len, buf));
}

static gy_status entry_shape(const image *im, const char *name, const gy_jv *v, gy_tensor_info *t, gy_err *err) {
    if (gy_jv_type(v) != GY_J_ARRAY)
        return gy_err_set(err, GY_E_FORMAT,
                          "%s: tensor \"%s\": shape is %s, expected a list of integers: the header "
                          "is damaged: download it again",
                          im->path, name, gy_jtype_name(gy_jv_type(v)));
    const size_t n = gy_jv_len(v);
    if (n > GY_MAX_DIM)
        return gy_err_set(err, GY_E_UNSUPPORTED,
                          "%s: tensor \"%s\": shape has %zu dimensions, expected at most %d: no model that gyre runs "
                          "has such a tensor",
                          im->path, name, n, GY_MAX_DIM);
    for (size_t i = 0; i < n; i++) {
        const gy_jv *d = gy_jv_at(v, i);
        t->shape[i] = gy_jv_int(d, -1);
        if (gy_jv_type(d) != GY_J_INT)
            return gy_err_set(err, GY_E_FORMAT,
                              "%s: tensor \"%s\": shape[%zu] is %s, expected an integer: the header "
                              "is damaged: download it again",
                              im->path, name, i, gy_jtype_name(gy_jv_type(d)));
        if (t->shape[i] < 0)
            return gy_err_set(err, GY_E_FORMAT,
                              "%s: tensor \"%s\": shape[%zu] is %" PRId64 ", expected 0 or more: the "
                              "header is damaged: download it again",
                              im->path, name, i, t->shape[i]);
    }
    t->n_dim = (int)n;
    return GY_OK;
}

static gy_status entry_offsets(const image *im, const char *name, const gy_jv *v, int64_t off[2], gy_err *err) {
    const gy_jv *b = gy_jv_at(v, 0), *e = gy_jv_at(v, 1);
    if (gy_jv_type(v) != GY_J_ARRAY || gy_jv_len(v) != 2 || gy_jv_type(b) != GY_J_INT || gy_jv_type(e) != GY_J_INT)
        return gy_err_set(err, GY_E_FORMAT,
                          "%s: tensor \"%s\": data_offsets is not a list of two integers, expected "
                          "[begin, end]: the header is damaged: download it again",
                          im->path, name);
    off[0] = gy_jv_int(b, -1);
    off[1] = gy_jv_int(e, -1);
    if (off[0] < 0 || off[0] > off[1])
        return gy_err_set(err, GY_E_FORMAT,
                          "%s: tensor \"%s\": data_offsets are [%" PRId64 ", %" PRId64 "], expected 0 <= begin <= end: "
                          "the header is damaged: download it again",
                          im->path, name, off[0], off[1]);
    if ((uint64_t)off[1] > im->data_bytes)
        return gy_err_set(err, GY_E_FORMAT,
                          "%s: tensor \"%s\": its data end at %" PRId64 " (data_offsets), found only %zu bytes of "
                          "data: the file is truncated: download it again",
                          im->path, name, off[1], im->data_bytes);
    return GY_OK;
}

/* The range must be as long as the shape says and begin where an element of its type may begin. */
static gy_status entry_range(const image *im, const char *name, const int64_t off[2], gy_tensor_info *t, gy_err *err) {
    char shape[192];
    const size_t found = (size_t)(off[1] - off[0]), elem = gy_dtype_bytes(t->dtype), at = im->data_at + (size_t)off[0];
    gy_st_shape_text(t->shape, t->n_dim, shape);
    if (gy_st_tensor_bytes(t->dtype, t->shape, t->n_dim, &t->bytes))
        return gy_err_set(err, GY_E_FORMAT,
                          "%s: tensor \"%s\": shape %s of %s has more bytes than a computer can address: the header is "
                          "damaged: download it again",
                          im->path, name, shape, gy_dtype_name(t->dtype));
    if (t->bytes != found)
        return gy_err_set(err, GY_E_FORMAT,
                          "%s: tensor \"%s\": data_offsets hold %zu bytes, expected %zu for shape %s of %s: the header "
                          "is damaged: download it again",
                          im->path, name, found, t->bytes, shape, gy_dtype_name(t->dtype));
    if (at % elem != 0)
        return gy_err_set(err, GY_E_FORMAT,
                          "%s: tensor \"%s\" is misaligned: its data begin at byte %zu of the file, expected a "
                          "multiple of %zu for %s: save it again with a current safetensors package",
                          im->path, name, at, elem, gy_dtype_name(t->dtype));
    t->data = im->data + off[0];
    return GY_OK;
}

static gy_status entry_keys(const image *im, const char *name, const gy_jv *v, gy_err *err) {
    char buf[48];
    if (gy_jv_type(v) != GY_J_OBJECT)
        return gy_err_set(err, GY_E_FORMAT,
                          "%s: tensor \"%s\" is %s, expected an object with dtype, shape and "
                          "data_offsets: the header is damaged: download it again",
                          im->path, name, gy_jtype_name(gy_jv_type(v)));
    static const char *const keys[] = {"dtype", "shape", "data_offsets"};
    for (int i = 0; i < 3; i++) {
        if (gy_jv_get(v, keys[i])) continue;
        return gy_err_set(err, GY_E_FORMAT, "%s: tensor \"%s\" has no %s: the header is damaged: download it again",
                          im->path, name, keys[i]);
    }
    for (void *it = gy_jv_first(v); it; it = gy_jv_next(v, it)) {
        size_t len;
        const char *k = gy_jv_key(it, &len);
        if (!strcmp(k, keys[0]) || !strcmp(k, keys[1]) || !strcmp(k, keys[2])) continue;
        return gy_err_set(err, GY_E_UNSUPPORTED,
                          "%s: tensor \"%s\" has the unknown field \"%s\", expected dtype, shape and data_offsets "
                          "only: gyre cannot know what it means for the values",
                          im->path, name, gy_st_printable(k, len, buf));
    }
    return GY_OK;
}

static gy_status entry_add(gy_st *st, const image *im, const char *key, size_t key_len, const gy_jv *v, gy_err *err) {
    gy_tensor_info t = {.file = im->path};
    int64_t off[2] = {0};
    GY_TRY(gy_st_check_name(im->path, "tensor", key, key_len, err));
    GY_TRY(entry_keys(im, key, v, err));
    GY_TRY(entry_dtype(im, key, gy_jv_get(v, "dtype"), &t, err));
    GY_TRY(entry_shape(im, key, gy_jv_get(v, "shape"), &t, err));
    GY_TRY(entry_offsets(im, key, gy_jv_get(v, "data_offsets"), off, err));
    GY_TRY(entry_range(im, key, off, &t, err));
    t.name = gy_arena_strndup(st->arena, key, key_len);
    if (!t.name || gy_vec_push(&st->tensors, GY_MEM_TENSOR, t))
        return gy_err_set(err, GY_E_NOMEM, "%s: no memory for the tensor list", im->path);
    return GY_OK;
}

/* ---- the whole header ------------------------------------------------------------------------------------------- */

static gy_status metadata_check(const image *im, const gy_jv *meta, gy_err *err) {
    char buf[48];
    if (gy_jv_type(meta) != GY_J_OBJECT)
        return gy_err_set(err, GY_E_FORMAT,
                          "%s: __metadata__ is %s, expected an object of strings: the header is "
                          "damaged: download it again",
                          im->path, gy_jtype_name(gy_jv_type(meta)));
    for (void *it = gy_jv_first(meta); it; it = gy_jv_next(meta, it)) {
        size_t len;
        const char *key = gy_jv_key(it, &len);
        if (gy_jv_type(gy_jv_val(it)) == GY_J_STRING) continue;
        return gy_err_set(err, GY_E_FORMAT,
                          "%s: __metadata__ field \"%s\" is %s, expected a string: the header is "
                          "damaged: download it again",
                          im->path, gy_st_printable(key, len, buf), gy_jtype_name(gy_jv_type(gy_jv_val(it))));
    }
    return GY_OK;
}

/* By place; a tensor without elements comes before the one that begins at the same byte. */
static int tensor_cmp_place(const void *a, const void *b) {
    const gy_tensor_info *x = a, *y = b;
    if (x->data != y->data) return (const char *)x->data < (const char *)y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* Sorted by place, each tensor must begin where the one before it ended, and the last must end with the file. */
static gy_status image_check_tiling(const image *im, gy_tensor_info *t, size_t n, gy_err *err) {
    size_t end = 0;
    if (n > 0) qsort(t, n, sizeof *t, tensor_cmp_place);
    for (size_t i = 0; i < n; i++) {
        const size_t begin = (size_t)((const char *)t[i].data - im->data);
        if (begin < end)
            return gy_err_set(err, GY_E_FORMAT,
                              "%s: tensors \"%s\" and \"%.200s\" overlap: the second begins at byte %zu of the data, "
                              "expected %zu: the header is damaged: download it again",
                              im->path, t[i - 1].name, t[i].name, begin, end);
        if (begin > end)
            return gy_err_set(err, GY_E_FORMAT,
                              "%s: a hole of %zu bytes before tensor \"%s\": it begins at byte %zu of the data, "
                              "expected %zu: the header is damaged: download it again",
                              im->path, begin - end, t[i].name, begin, end);
        end += t[i].bytes;
    }
    if (end != im->data_bytes)
        return gy_err_set(err, GY_E_FORMAT,
                          "%s: %zu bytes follow the data of the last tensor%s%s%s, expected the end of the file at "
                          "byte %zu of the data: the file is damaged: download it again",
                          im->path, im->data_bytes - end, n ? " \"" : "", n ? t[n - 1].name : "", n ? "\"" : "", end);
    return GY_OK;
}

static gy_status image_walk(gy_st *st, const image *im, const gy_jv *root, gy_err *err) {
    const size_t before = st->tensors.len;
    if (gy_jv_type(root) != GY_J_OBJECT)
        return gy_err_set(err, GY_E_FORMAT,
                          "%s: the header is %s, expected a JSON object: the file is damaged: "
                          "download it again",
                          im->path, gy_jtype_name(gy_jv_type(root)));
    for (void *it = gy_jv_first(root); it; it = gy_jv_next(root, it)) {
        size_t len;
        const char *key = gy_jv_key(it, &len);
        if (!strcmp(key, "__metadata__") && len == strlen(key))
            GY_TRY(metadata_check(im, gy_jv_val(it), err));
        else
            GY_TRY(entry_add(st, im, key, len, gy_jv_val(it), err));
    }
    const size_t n = st->tensors.len - before; /* the list may be NULL while it is empty */
    return image_check_tiling(im, n > 0 ? st->tensors.data + before : NULL, n, err);
}

gy_status gy_st_parse_image(gy_st *st, const gy_st_shard *shard, gy_err *err) {
    const gy_json_limits lim = {.max_bytes = GY_ST_MAX_HEADER, .max_depth = GY_ST_JSON_DEPTH};
    const char *data = shard->map.data;
    size_t n = 0;
    GY_TRY(image_header_bytes(shard->path, data, shard->map.size, &n, err));
    const image im = {shard->path, data + 8 + n, shard->map.size - 8 - n, 8 + n};
    gy_json *doc = NULL;
    gy_status s = gy_json_parse(data + 8, n, &lim, err, &doc);
    if (s < 0) {
        if (s != GY_E_NOMEM) gy_err_prefix(err, "the header cannot be read (download the file again)");
        gy_err_prefix(err, "%s", shard->path);
        return s;
    }
    s = image_walk(st, &im, gy_json_root(doc), err);
    gy_json_free(doc);
    return s;
}
