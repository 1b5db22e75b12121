/* safetensors: each thing that can be wrong with the files, with its sentence; the golden checkpoints against values
 * read with Python's struct; writer to reader; failures of memory and disk. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/philox.h"
#include "tensor/safetensors.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- images in memory ------------------------------------------------------------------------------------------- */

typedef struct image {
    _Alignas(8) char bytes[1 << 16];
    size_t len;
} image;

/* Header length, the header as it is (tests of alignment pad it themselves), then n_data bytes 1, 2, 3, ... */
static image *image_raw(const char *json, size_t n_data) {
    image *im = calloc(1, sizeof *im);
    assert_non_null(im);
    const size_t n = strlen(json);
    assert_true(8 + n + n_data <= sizeof im->bytes);
    for (int i = 0; i < 8; i++) im->bytes[i] = (char)(n >> (8 * i));
    memcpy(im->bytes + 8, json, n);
    for (size_t i = 0; i < n_data; i++) im->bytes[8 + n + i] = (char)(i + 1);
    im->len = 8 + n + n_data;
    return im;
}

static image *image_make(const char *json, size_t n_data) {
    gy_str padded = {0};
    gy_str_puts(&padded, json);
    while (padded.len % 8) gy_str_putc(&padded, ' ');
    image *im = image_raw(padded.data, n_data);
    gy_str_free(&padded);
    return im;
}

static void check_message(const gy_err *err, va_list parts) {
    for (const char *p = va_arg(parts, const char *); p; p = va_arg(parts, const char *))
        if (!strstr(err->msg, p)) fail_msg("message lacks \"%s\": %s", p, err->msg);
}

static int64_t live_tensor_bytes(void) {
    gy_mem_stats s;
    gy_mem_get_stats(&s);
    return s.live_bytes[GY_MEM_TENSOR];
}

/* Opening these bytes fails with this status and a message that has all the parts; nothing is left behind. */
static void bytes_refused(const void *bytes, size_t len, gy_status want, va_list parts) {
    gy_st *st = (gy_st *)(uintptr_t)1;
    gy_err err = {0};
    const int64_t before = live_tensor_bytes();
    const gy_status s = gy_st_open_memory(bytes, len, "x.safetensors", &err, &st);
    if (s != want) fail_msg("status %s, expected %s: %s", gy_status_name(s), gy_status_name(want), err.msg);
    assert_int_equal(err.status, want);
    check_message(&err, parts);
    assert_ptr_equal(st, (gy_st *)(uintptr_t)1); /* outputs only on success */
    assert_int_equal(live_tensor_bytes(), before);
}

static void image_refused(image *im, gy_status want, ...) {
    va_list parts;
    va_start(parts, want);
    bytes_refused(im->bytes, im->len, want, parts);
    va_end(parts);
    free(im);
}

static void text_refused(const char *text, gy_status want, ...) {
    image *im = calloc(1, sizeof *im);
    assert_non_null(im);
    va_list parts;
    va_start(parts, want);
    memcpy(im->bytes, text, strlen(text));
    bytes_refused(im->bytes, strlen(text), want, parts);
    va_end(parts);
    free(im);
}

#define ONE(dtype, shape, off) "{\"w\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" off "}}"

static gy_st *image_open(image *im) {
    gy_st *st = NULL;
    gy_err err = {0};
    if (gy_st_open_memory(im->bytes, im->len, "x.safetensors", &err, &st) != GY_OK) fail_msg("%s", err.msg);
    return st;
}

/* ---- one image: accepted ---------------------------------------------------------------------------------------- */

static void test_good_image(void **state) {
    (void)state;
    image *im = image_make("{\"__metadata__\":{\"format\":\"pt\"},"
                           "\"b\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,8]},"
                           "\"a\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[8,14]}}",
                           14);
    gy_st *st = image_open(im);
    assert_int_equal(gy_st_count(st), 2);
    assert_int_equal(gy_st_data_bytes(st), 14);
    const gy_tensor_info *a = gy_st_at(st, 0), *b = gy_st_at(st, 1);
    assert_string_equal(a->name, "a");
    assert_string_equal(b->name, "b");
    assert_null(gy_st_at(st, 2));
    assert_ptr_equal(gy_st_find(st, "a"), a);
    assert_ptr_equal(gy_st_find(st, "b"), b);
    assert_null(gy_st_find(st, "__metadata__"));
    assert_null(gy_st_find(st, ""));
    assert_null(gy_st_find(st, "c"));
    assert_int_equal(a->dtype, GY_BF16);
    assert_int_equal(a->n_dim, 1);
    assert_int_equal(a->shape[0], 3);
    assert_int_equal(a->bytes, 6);
    assert_string_equal(a->file, "x.safetensors");
    assert_int_equal(b->n_dim, 2);
    assert_int_equal(b->shape[0], 2);
    assert_int_equal(b->shape[1], 1);
    assert_memory_equal(b->data, "\1\2\3\4\5\6\7\10", 8);
    assert_memory_equal(a->data, "\11\12\13\14\15\16", 6);
    gy_st_close(st);
    free(im);
}

static void test_scalar_and_empty(void **state) {
    (void)state;
    image *im = image_make("{\"scalar\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
                           "\"none\":{\"dtype\":\"F64\",\"shape\":[5,0,7],\"data_offsets\":[0,0]},"
                           "\"last\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[4,4]}}",
                           4);
    gy_st *st = image_open(im);
    const gy_tensor_info *t = gy_st_find(st, "scalar");
    assert_int_equal(t->n_dim, 0);
    assert_int_equal(t->bytes, 4);
    const gy_tensor_info *claimed = NULL;
    gy_err err = {0};
    assert_int_equal(gy_st_claim(st, "scalar", NULL, 0, &err, &claimed), GY_OK);
    assert_ptr_equal(claimed, t);
    t = gy_st_find(st, "none");
    assert_int_equal(t->n_dim, 3);
    assert_int_equal(t->bytes, 0);
    assert_non_null(t->data);
    assert_int_equal(gy_st_find(st, "last")->bytes, 0);
    gy_st_close(st);
    free(im);
}

static void test_eight_dimensions(void **state) {
    (void)state;
    image *im = image_make(ONE("\"U8\"", "[1,2,1,2,1,1,1,2]", "[0,8]"), 8);
    gy_st *st = image_open(im);
    assert_int_equal(gy_st_at(st, 0)->n_dim, 8);
    assert_int_equal(gy_st_at(st, 0)->shape[7], 2);
    gy_st_close(st);
    free(im);
    image_refused(image_make(ONE("\"U8\"", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), 1), GY_E_UNSUPPORTED, "x.safetensors",
                  "\"w\"", "9 dimensions", "at most 8", NULL);
}

static void test_every_dtype(void **state) {
    (void)state;
    for (int t = 0; t < GY_Q8; t++) { /* those behind it are no file's */
        char json[200];
        const int bytes = (int)gy_dtype_bytes((gy_dtype)t);
        snprintf(json, sizeof json, ONE("\"%s\"", "[3]", "[0,%d]"), gy_dtype_name((gy_dtype)t), 3 * bytes);
        image *im = image_make(json, 3 * (size_t)bytes);
        gy_st *st = image_open(im);
        assert_int_equal(gy_st_at(st, 0)->dtype, t);
        gy_st_close(st);
        free(im);
    }
}

/* The first byte of the length may be '{': 123 bytes of header are no bare JSON. */
static void test_header_of_123_bytes(void **state) {
    (void)state;
    char json[124];
    snprintf(json, sizeof json, "%-123s", ONE("\"U8\"", "[1]", "[0,1]"));
    image *im = image_raw(json, 1);
    assert_int_equal(im->bytes[0], '{');
    gy_st_close(image_open(im));
    free(im);
}

/* ---- one image: refused ----------------------------------------------------------------------------------------- */

static void test_empty_file(void **state) {
    (void)state;
    text_refused("", GY_E_FORMAT, "x.safetensors", "empty", "download it again", NULL);
}

static void test_lfs_pointer(void **state) {
    (void)state;
    text_refused("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 2869336434\n", GY_E_FORMAT,
                 "x.safetensors", "Git LFS pointer", "git lfs pull", NULL);
}

static void test_html_page(void **state) {
    (void)state;
    static const char *const pages[] = {"<!DOCTYPE html><html>", "<!doctype HTML>", "<html lang=en>", "<HTML>",
                                        "\n \t<!DocType html>"};
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++)
        text_refused(pages[i], GY_E_FORMAT, "x.safetensors", "HTML page", "download the file again", NULL);
}

static void test_other_formats(void **state) {
    (void)state;
    text_refused("GGUF\x03", GY_E_FORMAT, "GGUF", "safetensors only", NULL);
    text_refused("PK\x03\x04pytorch", GY_E_FORMAT, "zip archive", "safetensors only", NULL);
    text_refused("{\"w\":1,\"weight_map\":{}}", GY_E_FORMAT, "bare JSON", "give the *.safetensors file", NULL);
}

static void test_shorter_than_length(void **state) {
    (void)state;
    text_refused("abc", GY_E_FORMAT, "x.safetensors", "truncated", "found 3 bytes", "8", NULL);
}

static void test_truncated_header(void **state) {
    (void)state;
    image *im = image_make(ONE("\"U8\"", "[1]", "[0,1]"), 1);
    im->len = 8 + 20;
    image_refused(im, GY_E_FORMAT, "x.safetensors", "truncated", "the header is 56 bytes", "found only 20",
                  "download it again", NULL);
}

static void test_long_header(void **state) {
    (void)state;
    /* 100,000,000 = 0x05f5e100 is refused by its number alone, one less only because the file is shorter. */
    image *im = calloc(1, sizeof *im);
    assert_non_null(im);
    memcpy(im->bytes, "\x00\xe1\xf5\x05\0\0\0\0{}", 10);
    im->len = 10;
    image_refused(im, GY_E_FORMAT, "x.safetensors", "100000000 bytes long", "less than 100000000", NULL);
    im = calloc(1, sizeof *im);
    assert_non_null(im);
    memcpy(im->bytes, "\xff\xe0\xf5\x05\0\0\0\0{}", 10);
    im->len = 10;
    image_refused(im, GY_E_FORMAT, "truncated", "99999999", NULL);
    im = calloc(1, sizeof *im);
    assert_non_null(im);
    memset(im->bytes, 0xff, 8);
    im->len = 64;
    image_refused(im, GY_E_FORMAT, "18446744073709551615 bytes long", "less than 100000000", NULL);
}

static void test_header_not_json(void **state) {
    (void)state;
    image_refused(image_make("{\"w\":", 0), GY_E_FORMAT, "x.safetensors", "header", "JSON", "download the file again",
                  NULL);
    image_refused(image_make("pickle", 0), GY_E_FORMAT, "x.safetensors", "header", "JSON", NULL);
    image_refused(image_raw("", 0), GY_E_FORMAT, "x.safetensors", "header", "empty", NULL);
    image_refused(image_make("{\"\xff\":1}", 0), GY_E_FORMAT, "x.safetensors", "header", "JSON", NULL);
    image_refused(image_make("{} {}", 0), GY_E_FORMAT, "x.safetensors", "header", "JSON", NULL);
}

static void test_header_too_deep(void **state) {
    (void)state;
    image_refused(image_make("{\"w\":[[[[[[[[1]]]]]]]]}", 0), GY_E_LIMIT, "x.safetensors", "header", "9 deep", "8",
                  NULL);
}

static void test_header_no_object(void **state) {
    (void)state;
    image_refused(image_make("[1,2]", 0), GY_E_FORMAT, "x.safetensors", "the header is an array",
                  "expected a JSON object", NULL);
    image_refused(image_make("7", 0), GY_E_FORMAT, "the header is an integer", NULL);
}

static void test_no_tensor(void **state) {
    (void)state;
    image_refused(image_make("{}", 0), GY_E_FORMAT, "x.safetensors", "holds no tensor", NULL);
    image_refused(image_make("{\"__metadata__\":{}}", 0), GY_E_FORMAT, "holds no tensor", NULL);
}

static void test_metadata(void **state) {
    (void)state;
    image_refused(image_make("{\"__metadata__\":[]}", 0), GY_E_FORMAT, "x.safetensors", "__metadata__ is an array",
                  "object of strings", NULL);
    image_refused(image_make("{\"__metadata__\":{\"step\":7}}", 0), GY_E_FORMAT, "__metadata__", "\"step\"",
                  "an integer", "expected a string", NULL);
}

static void test_duplicate_in_header(void **state) {
    (void)state;
    image_refused(image_make("{\"model.w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                             "\"model.w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
                             2),
                  GY_E_FORMAT, "x.safetensors", "duplicate", "model.w", NULL);
}

static void test_bad_names(void **state) {
    (void)state;
    image_refused(image_make("{\"\":{}}", 0), GY_E_FORMAT, "x.safetensors", "name of a tensor has 0 bytes", NULL);
    image_refused(image_make("{\"a\\u001b[31m\":{}}", 0), GY_E_FORMAT, "control character 0x1b", "\"a?[31m\"", NULL);
    gy_str json = {0};
    gy_str_puts(&json, "{\"");
    for (int i = 0; i < 513; i++) gy_str_putc(&json, 'n');
    gy_str_puts(&json, "\":{}}");
    image_refused(image_make(json.data, 0), GY_E_FORMAT, "513 bytes", "1 to 512", NULL);
    gy_str_free(&json);
}

static void test_entry_fields(void **state) {
    (void)state;
    image_refused(image_make("{\"w\":3}", 0), GY_E_FORMAT, "x.safetensors", "\"w\" is an integer", "dtype, shape",
                  NULL);
    image_refused(image_make("{\"w\":{\"shape\":[],\"data_offsets\":[0,1]}}", 1), GY_E_FORMAT, "\"w\" has no dtype",
                  NULL);
    image_refused(image_make("{\"w\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1), GY_E_FORMAT, "\"w\" has no shape",
                  NULL);
    image_refused(image_make("{\"w\":{\"dtype\":\"U8\",\"shape\":[]}}", 1), GY_E_FORMAT, "\"w\" has no data_offsets",
                  NULL);
    image_refused(image_make("{\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"scale\":2}}", 1),
                  GY_E_UNSUPPORTED, "\"w\"", "unknown field \"scale\"", NULL);
}

static void test_dtype_refused(void **state) {
    (void)state;
    image_refused(image_make(ONE("\"Q4_K\"", "[1]", "[0,1]"), 1), GY_E_FORMAT, "x.safetensors", "\"w\"",
                  "unknown dtype \"Q4_K\"", "expected F32, F16 or BF16", NULL);
    image_refused(image_make(ONE("16", "[1]", "[0,1]"), 1), GY_E_FORMAT, "\"w\"", "dtype is an integer", NULL);
    image_refused(image_make(ONE("\"a\\u0007\"", "[1]", "[0,1]"), 1), GY_E_FORMAT, "unknown dtype \"a?\"", NULL);
    static const char *const newer[] = {"F4", "F6_E2M3", "F6_E3M2", "F8_E8M0", "C64"};
    for (size_t i = 0; i < sizeof newer / sizeof *newer; i++) {
        char json[200], part[64];
        snprintf(json, sizeof json, ONE("\"%s\"", "[2]", "[0,1]"), newer[i]);
        snprintf(part, sizeof part, "dtype %s is not supported", newer[i]);
        image_refused(image_make(json, 1), GY_E_UNSUPPORTED, "x.safetensors", "\"w\"", part, "not quantised", NULL);
    }
}

static void test_shape_refused(void **state) {
    (void)state;
    image_refused(image_make(ONE("\"U8\"", "4", "[0,4]"), 4), GY_E_FORMAT, "\"w\"", "shape is an integer", NULL);
    image_refused(image_make(ONE("\"U8\"", "[2.0,2]", "[0,4]"), 4), GY_E_FORMAT, "\"w\"", "shape[0] is a real number",
                  NULL);
    image_refused(image_make(ONE("\"U8\"", "[2,-2]", "[0,4]"), 4), GY_E_FORMAT, "x.safetensors", "\"w\"",
                  "shape[1] is -2", "0 or more", NULL);
    image_refused(image_make(ONE("\"U8\"", "[9223372036854775808]", "[0,4]"), 4), GY_E_FORMAT, "x.safetensors",
                  "header", NULL);
    image_refused(image_make(ONE("\"U8\"", "[9223372036854775807]", "[0,4]"), 4), GY_E_FORMAT, "\"w\"",
                  "hold 4 bytes, expected 9223372036854775807", NULL);
}

static void test_shape_overflow(void **state) {
    (void)state;
    image_refused(image_make(ONE("\"U8\"", "[4294967296,4294967296]", "[0,0]"), 0), GY_E_FORMAT, "x.safetensors",
                  "\"w\"", "[4294967296, 4294967296]", "more bytes than a computer can address", NULL);
    image_refused(image_make(ONE("\"F64\"", "[2305843009213693952]", "[0,0]"), 0), GY_E_FORMAT, "more bytes", NULL);
    /* A zero does not hide it, wherever it stands. */
    image_refused(image_make(ONE("\"U8\"", "[4294967296,4294967296,0]", "[0,0]"), 0), GY_E_FORMAT, "more bytes", NULL);
    image_refused(image_make(ONE("\"U8\"", "[0,4294967296,4294967296]", "[0,0]"), 0), GY_E_FORMAT, "more bytes", NULL);
}

static void test_offsets_refused(void **state) {
    (void)state;
    static const char *const bad[] = {"[0]", "[0,4,4]", "4", "[0,\"4\"]", "[0.0,4]", "{}", "null"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char json[200];
        snprintf(json, sizeof json, ONE("\"U8\"", "[4]", "%s"), bad[i]);
        image_refused(image_make(json, 4), GY_E_FORMAT, "x.safetensors", "\"w\"",
                      "data_offsets is not a list of two integers", "[begin, end]", NULL);
    }
    image_refused(image_make(ONE("\"U8\"", "[4]", "[4,0]"), 4), GY_E_FORMAT, "\"w\"", "[4, 0]", "begin <= end", NULL);
    image_refused(image_make(ONE("\"U8\"", "[4]", "[-4,0]"), 4), GY_E_FORMAT, "\"w\"", "[-4, 0]", "0 <= begin", NULL);
}

static void test_out_of_range(void **state) {
    (void)state;
    image_refused(image_make(ONE("\"F32\"", "[4]", "[0,16]"), 15), GY_E_FORMAT, "x.safetensors", "\"w\"", "end at 16",
                  "only 15 bytes", "truncated", NULL);
    image_refused(image_make(ONE("\"U8\"", "[1]", "[9223372036854775806,9223372036854775807]"), 4), GY_E_FORMAT,
                  "end at 9223372036854775807", "only 4 bytes", NULL);
}

static void test_size_mismatch(void **state) {
    (void)state;
    image_refused(image_make(ONE("\"F32\"", "[2,3]", "[0,20]"), 20), GY_E_FORMAT, "x.safetensors", "\"w\"",
                  "hold 20 bytes", "expected 24", "[2, 3]", "F32", NULL);
}

static void test_longer_than_data(void **state) {
    (void)state;
    image_refused(image_make(ONE("\"F32\"", "[4]", "[0,16]"), 19), GY_E_FORMAT, "x.safetensors", "3 bytes follow",
                  "\"w\"", "end of the file at byte 16", NULL);
    image_refused(image_make("{}", 5), GY_E_FORMAT, "5 bytes follow", NULL);
}

#define TWO(off_a, off_b)                                                                                              \
    "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" off_a                                                   \
    "},\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" off_b "}}"

static void test_overlap(void **state) {
    (void)state;
    image_refused(image_make(TWO("[0,4]", "[3,7]"), 7), GY_E_FORMAT, "x.safetensors", "\"a\" and \"b\" overlap",
                  "byte 3", "expected 4", NULL);
    image_refused(image_make(TWO("[3,7]", "[0,4]"), 7), GY_E_FORMAT, "\"b\" and \"a\" overlap", NULL);
    image_refused(image_make(TWO("[0,4]", "[0,4]"), 4), GY_E_FORMAT, "overlap", NULL);
    /* An empty tensor inside another's range. */
    image_refused(image_make("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
                             "\"e\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[2,2]}}",
                             4),
                  GY_E_FORMAT, "\"a\" and \"e\" overlap", NULL);
}

static void test_hole(void **state) {
    (void)state;
    image_refused(image_make(TWO("[0,4]", "[6,10]"), 10), GY_E_FORMAT, "x.safetensors", "hole of 2 bytes",
                  "before tensor \"b\"", "byte 6", "expected 4", NULL);
    image_refused(image_make(TWO("[1,5]", "[5,9]"), 9), GY_E_FORMAT, "hole of 1 bytes", "\"a\"", NULL);
}

static void test_misaligned(void **state) {
    (void)state;
    /* By its offset; the U8 tensor fills the byte before it. */
    image_refused(image_make("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                             "\"b\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[1,3]}}",
                             3),
                  GY_E_FORMAT, "x.safetensors", "\"b\" is misaligned", "multiple of 2", "BF16",
                  "save it again with a current safetensors package", NULL);
    /* By the header's length: offset 0 of the data is byte 8 + 57 of the file. */
    char json[58];
    snprintf(json, sizeof json, "%-57s", ONE("\"F32\"", "[1]", "[0,4]"));
    image_refused(image_raw(json, 4), GY_E_FORMAT, "\"w\" is misaligned", "byte 65 of the file", "multiple of 4", NULL);
}

static void test_unaligned_image(void **state) {
    (void)state;
    image *im = image_make(ONE("\"U8\"", "[1]", "[0,1]"), 1);
    gy_st *st = NULL;
    gy_err err = {0};
    assert_int_equal(gy_st_open_memory(im->bytes + 1, im->len - 1, "x", &err, &st), GY_E_ARG);
    assert_non_null(strstr(err.msg, "multiple of 8"));
    free(im);
}

/* ---- folders ---------------------------------------------------------------------------------------------------- */

static char tmp_dir[64];

static int dir_setup(void **state) {
    (void)state;
    snprintf(tmp_dir, sizeof tmp_dir, "/tmp/gy_st_XXXXXX");
    return mkdtemp(tmp_dir) ? 0 : -1;
}

static int dir_teardown(void **state) {
    (void)state;
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -rf %s", tmp_dir);
    return system(cmd);
}

static char *tmp_path(const char *name) {
    static char path[4][512];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s", tmp_dir, name);
    return path[turn];
}

static void file_write(const char *name, const void *bytes, size_t len) {
    FILE *f = fopen(tmp_path(name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
}

/* A shard with U8 tensors of one byte, named by the letters of `names`. */
static void shard_write(const char *file, const char *names) {
    gy_str json = {0};
    for (size_t i = 0; names[i]; i++)
        gy_str_printf(&json, "%s\"%c\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%zu,%zu]}", i ? "," : "{",
                      names[i], i, i + 1);
    gy_str_puts(&json, "}");
    image *im = image_make(json.data, strlen(names));
    file_write(file, im->bytes, im->len);
    gy_str_free(&json);
    free(im);
}

static void index_write(const char *weight_map) {
    char text[1024];
    snprintf(text, sizeof text, "{\"metadata\":{\"total_size\":3},\"weight_map\":%s}", weight_map);
    file_write("model.safetensors.index.json", text, strlen(text));
}

static void dir_refused(gy_status want, ...) {
    gy_st *st = NULL;
    gy_err err = {0};
    const int64_t before = live_tensor_bytes();
    const gy_status s = gy_st_open(tmp_dir, &err, &st);
    if (s != want) fail_msg("status %s, expected %s: %s", gy_status_name(s), gy_status_name(want), err.msg);
    assert_null(st);
    assert_non_null(strstr(err.msg, tmp_dir)); /* always names the file or the folder */
    va_list parts;
    va_start(parts, want);
    check_message(&err, parts);
    va_end(parts);
    assert_int_equal(live_tensor_bytes(), before);
}

static void test_sharded(void **state) {
    (void)state;
    shard_write("m-1.safetensors", "ac");
    shard_write("m-2.safetensors", "b");
    shard_write("left-over.safetensors", "z");
    index_write("{\"a\":\"m-1.safetensors\",\"b\":\"m-2.safetensors\",\"c\":\"m-1.safetensors\"}");
    gy_st *st = NULL;
    gy_err err = {0};
    if (gy_st_open(tmp_dir, &err, &st) != GY_OK) fail_msg("%s", err.msg);
    assert_int_equal(gy_st_count(st), 3);
    assert_string_equal(gy_st_at(st, 0)->name, "a");
    assert_string_equal(gy_st_at(st, 1)->name, "b");
    assert_string_equal(gy_st_at(st, 1)->file, tmp_path("m-2.safetensors"));
    assert_string_equal(gy_st_at(st, 2)->file, tmp_path("m-1.safetensors"));
    assert_int_equal(*(const char *)gy_st_find(st, "c")->data, 2);
    gy_st_close(st);
}

static void test_index_before_single(void **state) {
    (void)state;
    shard_write("model.safetensors", "z");
    shard_write("m-1.safetensors", "a");
    index_write("{\"a\":\"m-1.safetensors\"}");
    gy_st *st = NULL;
    gy_err err = {0};
    assert_int_equal(gy_st_open(tmp_dir, &err, &st), GY_OK);
    assert_non_null(gy_st_find(st, "a"));
    assert_null(gy_st_find(st, "z"));
    gy_st_close(st);
    assert_int_equal(unlink(tmp_path("model.safetensors.index.json")), 0);
    assert_int_equal(gy_st_open(tmp_dir, &err, &st), GY_OK);
    assert_non_null(gy_st_find(st, "z"));
    gy_st_close(st);
}

static void test_duplicate_across_shards(void **state) {
    (void)state;
    shard_write("m-1.safetensors", "ab");
    shard_write("m-2.safetensors", "b");
    index_write("{\"a\":\"m-1.safetensors\",\"b\":\"m-2.safetensors\"}");
    dir_refused(GY_E_FORMAT, "duplicate tensor \"b\"", "m-1.safetensors", "m-2.safetensors", NULL);
}

static void test_wrong_shard(void **state) {
    (void)state;
    shard_write("m-1.safetensors", "ab");
    shard_write("m-2.safetensors", "c");
    index_write("{\"a\":\"m-1.safetensors\",\"b\":\"m-2.safetensors\",\"c\":\"m-2.safetensors\"}");
    dir_refused(GY_E_FORMAT, "index.json", "\"b\" is in the wrong shard", "found in m-1.safetensors",
                "expected in m-2.safetensors", NULL);
}

static void test_index_tensor_in_no_shard(void **state) {
    (void)state;
    shard_write("m-1.safetensors", "a");
    index_write("{\"a\":\"m-1.safetensors\",\"b\":\"m-1.safetensors\"}");
    dir_refused(GY_E_FORMAT, "index.json", "\"b\" should be in m-1.safetensors", "found in no shard", NULL);
}

static void test_shard_tensor_not_in_index(void **state) {
    (void)state;
    shard_write("m-1.safetensors", "ab");
    index_write("{\"a\":\"m-1.safetensors\"}");
    dir_refused(GY_E_FORMAT, "m-1.safetensors", "\"b\" is not in model.safetensors.index.json", NULL);
}

static void test_missing_shard(void **state) {
    (void)state;
    shard_write("m-1.safetensors", "a");
    index_write("{\"a\":\"m-1.safetensors\",\"b\":\"m-2.safetensors\"}");
    dir_refused(GY_E_IO, "index.json", "names the shard m-2.safetensors (2 of 2)", "no such file", "download it", NULL);
}

static void test_path_in_index(void **state) {
    (void)state;
    static const char *const bad[] = {"../x", "/abs", "sub/x", "..", ".", "a\\\\b"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char map[100];
        snprintf(map, sizeof map, "{\"a\":\"%s\"}", bad[i]);
        index_write(map);
        dir_refused(GY_E_FORMAT, "index.json", "weight_map[\"a\"] is the path", "plain name of a file", NULL);
    }
    index_write("{\"a\":\"\"}");
    dir_refused(GY_E_FORMAT, "name of a shard has 0 bytes", NULL);
    index_write("{\"a\":\"m\\u0000.safetensors\"}");
    dir_refused(GY_E_FORMAT, "control character 0x00", NULL);
}

static void test_bad_index(void **state) {
    (void)state;
    index_write("{\"a\":7}");
    dir_refused(GY_E_FORMAT, "index.json", "weight_map[\"a\"] is an integer", "name of a shard", NULL);
    index_write("{}");
    dir_refused(GY_E_FORMAT, "weight_map is empty", NULL);
    index_write("[]");
    dir_refused(GY_E_FORMAT, "weight_map is an array", NULL);
    file_write("model.safetensors.index.json", "{}", 2);
    dir_refused(GY_E_FORMAT, "weight_map is missing", NULL);
    file_write("model.safetensors.index.json", "<html>", 6);
    dir_refused(GY_E_FORMAT, "index.json", "JSON", NULL);
    file_write("model.safetensors.index.json", "", 0);
    dir_refused(GY_E_FORMAT, "index.json", "empty", NULL);
}

static void test_bad_shard_names_file(void **state) {
    (void)state;
    shard_write("m-1.safetensors", "a");
    file_write("m-2.safetensors", "version https://git-lfs.github.com/spec/v1\n", 43);
    index_write("{\"a\":\"m-1.safetensors\",\"b\":\"m-2.safetensors\"}");
    dir_refused(GY_E_FORMAT, "m-2.safetensors", "Git LFS pointer", NULL);
    file_write("m-2.safetensors", "", 0);
    dir_refused(GY_E_FORMAT, "m-2.safetensors", "empty", NULL);
}

static void test_folder_without_checkpoint(void **state) {
    (void)state;
    dir_refused(GY_E_IO, "neither model.safetensors nor model.safetensors.index.json", "an empty folder", NULL);
    file_write("config.json", "{}", 2);
    dir_refused(GY_E_IO, "found config.json", "folder of a downloaded checkpoint", NULL);
    file_write("pytorch_model.bin", "x", 1);
    dir_refused(GY_E_IO, "config.json, pytorch_model.bin", "only safetensors are read", NULL);
    assert_int_equal(unlink(tmp_path("pytorch_model.bin")), 0);
    file_write("q4.gguf", "x", 1);
    dir_refused(GY_E_IO, "q4.gguf", "only safetensors are read", NULL);
    file_write("model-00001-of-00002.safetensors", "x", 1);
    dir_refused(GY_E_IO, "model-00001-of-00002.safetensors", "index.json: download it", NULL);
    for (int i = 0; i < 9; i++) {
        char name[16];
        snprintf(name, sizeof name, "f%d", i);
        file_write(name, "", 0);
    }
    dir_refused(GY_E_IO, "and 4 more", NULL);
}

static void test_no_folder(void **state) {
    (void)state;
    gy_st *st = NULL;
    gy_err err = {0};
    assert_int_equal(gy_st_open("/nonexistent/model", &err, &st), GY_E_IO);
    assert_non_null(strstr(err.msg, "/nonexistent/model: found no such folder"));
    shard_write("model.safetensors", "a");
    assert_int_equal(gy_st_open(tmp_path("model.safetensors"), &err, &st), GY_E_IO);
    assert_non_null(strstr(err.msg, "found a file, expected the folder"));
    assert_int_equal(gy_st_open_file("/nonexistent.safetensors", &err, &st), GY_E_IO);
    assert_non_null(strstr(err.msg, "/nonexistent.safetensors"));
    assert_int_equal(gy_st_open_file(tmp_dir, &err, &st), GY_E_IO);
    assert_int_equal(gy_st_open_file(tmp_path("model.safetensors"), &err, &st), GY_OK);
    gy_st_close(st);
    gy_st_close(NULL);
}

/* ---- claims ----------------------------------------------------------------------------------------------------- */

static image *claim_image(void) {
    return image_make(
        "{\"model.layers.0.mlp.up_proj.weight\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]},"
        "\"model.layers.1.mlp.up_proj.weight\":{\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[16,24]},"
        "\"base.model.norm.weight\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[24,28]},"
        "\"rotary.inv_freq\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[28,32]},"
        "\"steps\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[32,40]}}",
        40);
}

static void claim_refused(gy_st *st, const char *name, int64_t d0, int64_t d1, gy_status want, ...) {
    const gy_tensor_info *t = NULL;
    gy_err err = {0};
    const int64_t shape[2] = {d0, d1};
    assert_int_equal(gy_st_claim(st, name, shape, d1 ? 2 : 1, &err, &t), want);
    assert_null(t);
    va_list parts;
    va_start(parts, want);
    check_message(&err, parts);
    va_end(parts);
}

static void test_claim(void **state) {
    (void)state;
    image *im = claim_image();
    gy_st *st = image_open(im);
    const gy_tensor_info *t = NULL;
    gy_err err = {0};
    const int64_t shape[2] = {2, 2};
    claim_refused(st, "model.layers.0.mlp.up_proj.weight", 2, 3, GY_E_FORMAT, "x.safetensors",
                  "model.layers.0.mlp.up_proj.weight", "shape [2, 2]", "expected [2, 3]", "config.json", NULL);
    claim_refused(st, "model.layers.0.mlp.up_proj.weight", 2, 0, GY_E_FORMAT, "shape [2, 2]", "expected [2]", NULL);
    claim_refused(st, "steps", 1, 0, GY_E_UNSUPPORTED, "\"steps\" has dtype I64", "expected F32, F16 or BF16", NULL);
    assert_int_equal(gy_st_claim(st, "model.layers.0.mlp.up_proj.weight", shape, 2, &err, &t), GY_OK);
    assert_ptr_equal(t, gy_st_find(st, "model.layers.0.mlp.up_proj.weight"));
    claim_refused(st, "model.layers.0.mlp.up_proj.weight", 2, 2, GY_E_BUG, "claimed twice", NULL);
    gy_st_close(st);
    free(im);
}

static void test_missing_suggests(void **state) {
    (void)state;
    image *im = claim_image();
    gy_st *st = image_open(im);
    claim_refused(st, "model.layers.1.mlp.upproj.weight", 2, 2, GY_E_FORMAT, "x.safetensors",
                  "\"model.layers.1.mlp.upproj.weight\" is missing", "5 tensors are there",
                  "closest name is \"model.layers.1.mlp.up_proj.weight\"", NULL);
    /* Wrapped: by edit distance "steps" would be nearer to nothing, the dot-prefix rule finds it. */
    claim_refused(st, "model.norm.weight", 2, 0, GY_E_FORMAT, "closest name is \"base.model.norm.weight\"", NULL);
    claim_refused(st, "step", 1, 0, GY_E_FORMAT, "closest name is \"steps\"", NULL);
    claim_refused(st, "zzzz", 1, 0, GY_E_FORMAT, "closest name is", NULL);
    gy_st_close(st);
    free(im);
}

static void test_extra(void **state) {
    (void)state;
    image *im = claim_image();
    gy_st *st = image_open(im);
    const gy_tensor_info *t = NULL;
    gy_err err = {0};
    const int64_t shape[2] = {2, 2}, two[1] = {2};
    assert_int_equal(gy_st_claim(st, "model.layers.0.mlp.up_proj.weight", shape, 2, &err, &t), GY_OK);
    assert_int_equal(gy_st_claim(st, "base.model.norm.weight", two, 1, &err, &t), GY_OK);
    static const char *const known[] = {".inv_freq", "steps"};
    assert_int_equal(gy_st_check_unclaimed(st, known, 2, &err), GY_E_FORMAT);
    assert_non_null(
        strstr(err.msg, "x.safetensors: tensor \"model.layers.1.mlp.up_proj.weight\" [2, 2] of BF16 is extra"));
    assert_non_null(strstr(err.msg, "1 in all"));
    assert_int_equal(gy_st_check_unclaimed(st, known, 1, &err), GY_E_FORMAT);
    assert_non_null(strstr(err.msg, "2 in all"));
    assert_int_equal(gy_st_claim(st, "model.layers.1.mlp.up_proj.weight", shape, 2, &err, &t), GY_OK);
    assert_int_equal(gy_st_check_unclaimed(st, known, 2, &err), GY_OK);
    gy_st_close(st);
    free(im);
}

/* ---- golden checkpoints, against values read with Python (struct.unpack on the file) ------------------------------
 */

typedef struct golden {
    const char *model, *tensor;
    gy_dtype dtype;
    int n_dim;
    int64_t shape[5];
    size_t element;
    uint32_t bits;
} golden;

static const golden golden_values[] = {
    {"ouro-tiny", "model.early_exit_gate.bias", GY_BF16, 1, {1}, 0, 0xbf4du},
    {"ouro-tiny", "model.embed_tokens.weight", GY_BF16, 2, {320, 64}, 20479, 0x3f85u},
    {"ouro-tiny", "model.layers.2.mlp.down_proj.weight", GY_BF16, 2, {64, 176}, 323, 0x3b34u},
    {"ouro-tiny", "lm_head.weight", GY_BF16, 2, {320, 64}, 0, 0x3e6eu},
    {"nanbeige-tiny", "model.norm.weight", GY_BF16, 1, {96}, 95, 0x3f8bu},
    {"nanbeige-tiny", "model.layers.1.self_attn.q_proj.weight", GY_BF16, 2, {192, 96}, 1234, 0xbe82u},
    {"nanbeige-tiny", "model.layers.0.self_attn.k_proj.weight", GY_BF16, 2, {32, 96}, 0, 0xbcddu},
    {"huginn-tiny", "freqs_cis", GY_F32, 5, {1, 256, 1, 6, 2}, 87, 0x3f6a027fu},
    {"huginn-tiny", "transformer.wte.weight", GY_F32, 2, {320, 60}, 19199, 0xbca70000u},
    {"huginn-tiny", "transformer.coda.1.attn.qk_bias", GY_F32, 4, {2, 1, 5, 12}, 119, 0xbf080000u},
    {"huginn-tiny", "transformer.core_block.3.mlp.fc.weight", GY_F32, 2, {224, 60}, 77, 0x3e770000u},
};

static gy_st *golden_open(const char *model) {
    char dir[512];
    snprintf(dir, sizeof dir, "%s/tests/golden/models/%s", GY_SOURCE_DIR, model);
    gy_st *st = NULL;
    gy_err err = {0};
    if (gy_st_open(dir, &err, &st) != GY_OK) fail_msg("%s", err.msg);
    return st;
}

static void test_golden_counts(void **state) {
    (void)state;
    static const struct {
        const char *model;
        size_t n, bytes;
    } want[] = {{"ouro-tiny", 38, 384770}, {"nanbeige-tiny", 30, 683328}, {"huginn-tiny", 77, 1312368}};
    for (size_t i = 0; i < 3; i++) {
        gy_st *st = golden_open(want[i].model);
        assert_int_equal(gy_st_count(st), want[i].n);
        assert_int_equal(gy_st_data_bytes(st), want[i].bytes);
        for (size_t k = 0; k < want[i].n; k++) {
            const gy_tensor_info *t = gy_st_at(st, k);
            assert_ptr_equal(gy_st_find(st, t->name), t);
            assert_int_equal((uintptr_t)t->data % gy_dtype_bytes(t->dtype), 0);
        }
        gy_st_close(st);
    }
}

static void test_golden_values(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof golden_values / sizeof *golden_values; i++) {
        const golden *g = &golden_values[i];
        gy_st *st = golden_open(g->model);
        const gy_tensor_info *t = NULL;
        gy_err err = {0};
        if (gy_st_claim(st, g->tensor, g->shape, g->n_dim, &err, &t) != GY_OK) fail_msg("%s", err.msg);
        assert_int_equal(t->dtype, g->dtype);
        uint32_t bits = 0;
        const size_t size = gy_dtype_bytes(t->dtype);
        memcpy(&bits, (const char *)t->data + g->element * size, size);
        assert_int_equal(bits, g->bits);
        gy_st_close(st);
    }
}

/* ---- writer ----------------------------------------------------------------------------------------------------- */

static gy_st_writer *writer_start(const char *name, const gy_st_entry *e, size_t n) {
    gy_st_writer *w = NULL;
    gy_err err = {0};
    if (gy_st_writer_open(tmp_path(name), e, n, &err, &w) != GY_OK) fail_msg("%s", err.msg);
    return w;
}

/* Random tensors in random piece sizes come back byte for byte. */
static void test_round_trip(void **state) {
    (void)state;
    gy_err err = {0};
    for (uint32_t run = 0; run < 24; run++) {
        enum { N = 9 };
        gy_st_entry e[N];
        char names[N][32];
        uint32_t r[4];
        gy_str bytes = {0};
        size_t want_at[N + 1] = {0};
        for (uint32_t i = 0; i < N; i++) {
            gy_rand_block(run, i, 0, GY_RAND_TEST, 0, r);
            snprintf(names[i], sizeof names[i], "t%u.\xc3\xa9\"\\%u", r[0] % 100, i);
            /* Wider types first, so that no order is misaligned. */
            e[i] = (gy_st_entry){names[i], i < 3 ? GY_F64 : i < 6 ? GY_F32 : GY_BF16, (int)(r[1] % 4), {0}};
            size_t n = gy_dtype_bytes(e[i].dtype);
            for (int d = 0; d < e[i].n_dim; d++) {
                e[i].shape[d] = (int64_t)(r[2] >> (8 * d)) % (run % 4 == 3 ? 90 : 6);
                n *= (size_t)e[i].shape[d];
            }
            want_at[i + 1] = want_at[i] + n;
        }
        while (bytes.len < want_at[N]) gy_str_putc(&bytes, (char)(bytes.len * 2654435761u >> 13));
        gy_st_writer *w = writer_start("model.safetensors", e, N);
        const size_t piece = run % 3 == 0 ? 1u + run * 7u : run % 3 == 1 ? 999999u : (size_t)3 << 20;
        for (size_t at = 0; at < bytes.len; at += piece)
            assert_int_equal(
                gy_st_writer_put(w, bytes.data + at, piece < bytes.len - at ? piece : bytes.len - at, &err), GY_OK);
        if (gy_st_writer_close(w, &err) != GY_OK) fail_msg("%s", err.msg);
        gy_st *st = NULL;
        if (gy_st_open(tmp_dir, &err, &st) != GY_OK) fail_msg("%s", err.msg);
        assert_int_equal(gy_st_count(st), N);
        assert_int_equal(gy_st_data_bytes(st), bytes.len);
        for (size_t i = 0; i < N; i++) {
            const gy_tensor_info *t = NULL;
            if (gy_st_claim(st, names[i], e[i].shape, e[i].n_dim, &err, &t) != GY_OK && e[i].dtype != GY_F64)
                fail_msg("%s", err.msg);
            t = gy_st_find(st, names[i]);
            assert_int_equal(t->dtype, e[i].dtype);
            assert_int_equal(t->bytes, want_at[i + 1] - want_at[i]);
            if (t->bytes) assert_memory_equal(t->data, bytes.data + want_at[i], t->bytes);
        }
        gy_st_close(st);
        gy_str_free(&bytes);
    }
}

/* The layout itself, as the published format describes it: byte for byte. */
static void test_written_bytes(void **state) {
    (void)state;
    const gy_st_entry e[2] = {{"w", GY_F32, 1, {1}}, {"b", GY_BF16, 0, {0}}};
    gy_err err = {0};
    gy_st_writer *w = writer_start("model.safetensors", e, 2);
    assert_int_equal(gy_st_writer_put(w, "\1\2\3\4\5\6", 6, &err), GY_OK);
    assert_int_equal(access(tmp_path("model.safetensors"), F_OK), -1); /* not before it is whole */
    assert_int_equal(gy_st_writer_close(w, &err), GY_OK);
    assert_int_equal(access(tmp_path("model.safetensors.tmp"), F_OK), -1);
    static const char json[] = "{\"__metadata__\":{\"format\":\"pt\"},"
                               "\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                               "\"b\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[4,6]}}";
    gy_str got = {0};
    assert_int_equal(gy_file_read(tmp_path("model.safetensors"), 4096, &err, &got), GY_OK);
    const size_t n = sizeof json - 1, padded = (n + 7) / 8 * 8;
    assert_int_equal(got.len, 8 + padded + 6);
    assert_int_equal((unsigned char)got.data[0], padded);
    assert_memory_equal(got.data + 1, "\0\0\0\0\0\0\0", 7);
    assert_memory_equal(got.data + 8, json, n);
    for (size_t i = n; i < padded; i++) assert_int_equal(got.data[8 + i], ' ');
    assert_memory_equal(got.data + 8 + padded, "\1\2\3\4\5\6", 6);
    gy_str_free(&got);
}

static void writer_refused(const gy_st_entry *e, size_t n, const char *part) {
    gy_st_writer *w = NULL;
    gy_err err = {0};
    assert_true(gy_st_writer_open(tmp_path("m"), e, n, &err, &w) < 0);
    assert_null(w);
    if (!strstr(err.msg, part) || !strstr(err.msg, tmp_dir)) fail_msg("message lacks \"%s\": %s", part, err.msg);
    assert_int_equal(access(tmp_path("m.tmp"), F_OK), -1);
}

static void test_writer_refuses(void **state) {
    (void)state;
    const gy_st_entry twice[3] = {{"w", GY_U8, 0, {0}}, {"v", GY_U8, 0, {0}}, {"w", GY_U8, 0, {0}}};
    writer_refused(twice, 3, "\"w\" is there twice");
    writer_refused(twice, 0, "no tensor to write");
    const gy_st_entry odd[2] = {{"b", GY_U8, 1, {3}}, {"w", GY_F32, 0, {0}}};
    writer_refused(odd, 2, "\"w\" of F32 would be misaligned at byte 3");
    const gy_st_entry meta = {"__metadata__", GY_U8, 0, {0}};
    writer_refused(&meta, 1, "__metadata__");
    const gy_st_entry control = {"a\nb", GY_U8, 0, {0}};
    writer_refused(&control, 1, "control character 0x0a");
    const gy_st_entry utf8 = {"\xff", GY_U8, 0, {0}};
    writer_refused(&utf8, 1, "UTF-8");
    const gy_st_entry negative = {"w", GY_U8, 1, {-1}};
    writer_refused(&negative, 1, "shape [-1] is negative");
    const gy_st_entry dims = {"w", GY_U8, 9, {0}};
    writer_refused(&dims, 1, "at most 8 dimensions");
    const gy_st_entry huge[2] = {{"a", GY_U8, 1, {INT64_MAX}}, {"b", GY_U8, 1, {INT64_MAX}}};
    writer_refused(huge, 2, "too large for one file");
}

static void test_writer_counts_bytes(void **state) {
    (void)state;
    const gy_st_entry e = {"w", GY_U8, 1, {4}};
    gy_err err = {0};
    gy_st_writer *w = writer_start("m", &e, 1);
    assert_int_equal(gy_st_writer_put(w, "12345", 5, &err), GY_E_ARG);
    assert_non_null(strstr(err.msg, "more data than the header names: found 5 bytes, expected 4"));
    assert_int_equal(gy_st_writer_put(w, "123", 3, &err), GY_OK);
    assert_int_equal(gy_st_writer_close(w, &err), GY_E_ARG);
    assert_non_null(strstr(err.msg, "data are missing: found 3 bytes, expected 4"));
    assert_int_equal(access(tmp_path("m"), F_OK), -1);
    assert_int_equal(access(tmp_path("m.tmp"), F_OK), -1);
    w = writer_start("m", &e, 1);
    assert_int_equal(access(tmp_path("m.tmp"), F_OK), 0);
    gy_st_writer_abort(w);
    assert_int_equal(access(tmp_path("m.tmp"), F_OK), -1);
    gy_st_writer_abort(NULL);
}

/* A temporary file that leads to /dev/full gives the real ENOSPC without filling a disk. */
static void test_disk_full(void **state) {
    (void)state;
    const gy_st_entry e = {"w", GY_U8, 1, {3 << 20}};
    gy_err err = {0};
    char *piece = calloc(1, 3 << 20);
    assert_non_null(piece);
    assert_int_equal(symlink("/dev/full", tmp_path("m.tmp")), 0);
    gy_st_writer *w = writer_start("m", &e, 1);
    assert_int_equal(gy_st_writer_put(w, piece, 3 << 20, &err), GY_E_IO);
    assert_non_null(strstr(err.msg, "/m: no space left on the disk: the file needs 31458"));
    assert_non_null(strstr(err.msg, "free that much or choose another folder"));
    struct stat sb;
    assert_int_equal(lstat(tmp_path("m.tmp"), &sb), -1);
    assert_int_equal(gy_st_writer_put(w, piece, 0, &err), GY_E_IO);
    assert_non_null(strstr(err.msg, "an earlier write failed"));
    assert_int_equal(gy_st_writer_close(w, &err), GY_E_IO);
    assert_int_equal(access(tmp_path("m"), F_OK), -1);
    /* Small enough to stay in the buffer: found at close. */
    const gy_st_entry small = {"w", GY_U8, 1, {3}};
    assert_int_equal(symlink("/dev/full", tmp_path("m.tmp")), 0);
    w = writer_start("m", &small, 1);
    assert_int_equal(gy_st_writer_put(w, piece, 3, &err), GY_OK);
    assert_int_equal(gy_st_writer_close(w, &err), GY_E_IO);
    assert_non_null(strstr(err.msg, "no space left on the disk"));
    assert_int_equal(lstat(tmp_path("m.tmp"), &sb), -1);
    free(piece);
}

static void test_writer_no_folder(void **state) {
    (void)state;
    const gy_st_entry e = {"w", GY_U8, 1, {4}};
    gy_st_writer *w = NULL;
    gy_err err = {0};
    assert_int_equal(gy_st_writer_open(tmp_path("no/m"), &e, 1, &err, &w), GY_E_IO);
    assert_non_null(strstr(err.msg, "/no/m.tmp: cannot create it: No such file"));
}

/* ---- memory fails at every allocation in turn ------------------------------------------------------------------- */

static void test_memory_fails(void **state) {
    (void)state;
    shard_write("m-1.safetensors", "ac");
    shard_write("m-2.safetensors", "b");
    index_write("{\"a\":\"m-1.safetensors\",\"b\":\"m-2.safetensors\",\"c\":\"m-1.safetensors\"}");
    const int64_t before = live_tensor_bytes();
    int n_nomem = 0;
    for (int64_t n = 1;; n++) {
        gy_mem_stats start, end;
        gy_st *st = NULL;
        gy_err err = {0};
        gy_mem_get_stats(&start);
        gy_mem_fail_after(n);
        const gy_status s = gy_st_open(tmp_dir, &err, &st);
        gy_mem_fail_after(0);
        gy_mem_get_stats(&end);
        /* jansson ignores a failed growth of its token buffer and so cuts a string short: an error other than "no
         * memory" may come of it, but never a success with other tensors. */
        n_nomem += s == GY_E_NOMEM;
        assert_true(s == GY_OK ? st && gy_st_count(st) == 3 && gy_st_find(st, "b") : !st && err.msg[0]);
        gy_st_close(st);
        assert_int_equal(live_tensor_bytes(), before);
        if (end.n_alloc - start.n_alloc < n) break;
    }
    assert_true(n_nomem > 20);
}

static void test_writer_memory_fails(void **state) {
    (void)state;
    const gy_st_entry e = {"w", GY_U8, 1, {4}};
    const int64_t before = live_tensor_bytes();
    int64_t n = 1;
    for (gy_status s = GY_E_NOMEM; s != GY_OK; n++) {
        gy_st_writer *w = NULL;
        gy_err err = {0};
        gy_mem_fail_after(n);
        s = gy_st_writer_open(tmp_path("m"), &e, 1, &err, &w);
        gy_mem_fail_after(0);
        assert_true(s == GY_OK || s == GY_E_NOMEM);
        gy_st_writer_abort(w);
        assert_int_equal(live_tensor_bytes(), before);
        assert_int_equal(access(tmp_path("m.tmp"), F_OK), -1);
    }
    assert_true(n > 4);
}

/* Only page cache: a mapped file of 1 GiB (a hole on the disk) costs a few kilobytes of heap and no resident data. */
static void test_large_file_is_mapped(void **state) {
    (void)state;
    image *im = image_make(ONE("\"BF16\"", "[536870912]", "[0,1073741824]"), 0);
    file_write("model.safetensors", im->bytes, im->len);
    assert_int_equal(truncate(tmp_path("model.safetensors"), (off_t)im->len + 1073741824), 0);
    free(im);
    gy_st *st = NULL;
    gy_err err = {0};
    const int64_t before = live_tensor_bytes();
    if (gy_st_open(tmp_dir, &err, &st) != GY_OK) fail_msg("%s", err.msg);
    assert_int_equal(gy_st_data_bytes(st), 1073741824);
    assert_true(live_tensor_bytes() - before < 256 << 10);
    const uint16_t *w = gy_st_at(st, 0)->data;
    assert_int_equal(w[536870911], 0);
    gy_st_close(st);
}

/* ---- all -------------------------------------------------------------------------------------------------------- */

#define IN_DIR(t) cmocka_unit_test_setup_teardown(t, dir_setup, dir_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good_image),
        cmocka_unit_test(test_scalar_and_empty),
        cmocka_unit_test(test_eight_dimensions),
        cmocka_unit_test(test_every_dtype),
        cmocka_unit_test(test_header_of_123_bytes),
        cmocka_unit_test(test_empty_file),
        cmocka_unit_test(test_lfs_pointer),
        cmocka_unit_test(test_html_page),
        cmocka_unit_test(test_other_formats),
        cmocka_unit_test(test_shorter_than_length),
        cmocka_unit_test(test_truncated_header),
        cmocka_unit_test(test_long_header),
        cmocka_unit_test(test_header_not_json),
        cmocka_unit_test(test_header_too_deep),
        cmocka_unit_test(test_header_no_object),
        cmocka_unit_test(test_no_tensor),
        cmocka_unit_test(test_metadata),
        cmocka_unit_test(test_duplicate_in_header),
        cmocka_unit_test(test_bad_names),
        cmocka_unit_test(test_entry_fields),
        cmocka_unit_test(test_dtype_refused),
        cmocka_unit_test(test_shape_refused),
        cmocka_unit_test(test_shape_overflow),
        cmocka_unit_test(test_offsets_refused),
        cmocka_unit_test(test_out_of_range),
        cmocka_unit_test(test_size_mismatch),
        cmocka_unit_test(test_longer_than_data),
        cmocka_unit_test(test_overlap),
        cmocka_unit_test(test_hole),
        cmocka_unit_test(test_misaligned),
        cmocka_unit_test(test_unaligned_image),
        IN_DIR(test_sharded),
        IN_DIR(test_index_before_single),
        IN_DIR(test_duplicate_across_shards),
        IN_DIR(test_wrong_shard),
        IN_DIR(test_index_tensor_in_no_shard),
        IN_DIR(test_shard_tensor_not_in_index),
        IN_DIR(test_missing_shard),
        IN_DIR(test_path_in_index),
        IN_DIR(test_bad_index),
        IN_DIR(test_bad_shard_names_file),
        IN_DIR(test_folder_without_checkpoint),
        IN_DIR(test_no_folder),
        cmocka_unit_test(test_claim),
        cmocka_unit_test(test_missing_suggests),
        cmocka_unit_test(test_extra),
        cmocka_unit_test(test_golden_counts),
        cmocka_unit_test(test_golden_values),
        IN_DIR(test_round_trip),
        IN_DIR(test_written_bytes),
        IN_DIR(test_writer_refuses),
        IN_DIR(test_writer_counts_bytes),
        IN_DIR(test_disk_full),
        IN_DIR(test_writer_no_folder),
        IN_DIR(test_memory_fails),
        IN_DIR(test_writer_memory_fails),
        IN_DIR(test_large_file_is_mapped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
