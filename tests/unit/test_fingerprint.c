/* The fingerprint: the same for the same checkpoint and options, another one for anything that it covers. */
#include "base_test.h"

#include "pd/fingerprint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MIB = 1 << 20, N = 3 * MIB + 10000, SAMPLE = GY_FINGERPRINT_SAMPLE };

typedef struct folder {
    char dir[64];
    const char *name, *dtype, *shape, *config;
    unsigned char *data; /* [N] of the one tensor */
} folder;

static const gy_fingerprint_opts plain = {
    .version = "1.2.3", .kernels = "cpu avx2", .act = 1, .layout = 0, .cyclic_k = 2, .depth = 4};

static void put_file(const folder *f, const char *name, const void *bytes, size_t n, const void *more, size_t n_more) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", f->dir, name);
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(bytes, 1, n, out), n);
    if (n_more) assert_int_equal(fwrite(more, 1, n_more, out), n_more);
    assert_int_equal(fclose(out), 0);
}

static void put(const folder *f) {
    char head[300] = {0};
    int n = snprintf(head + 8, sizeof head - 8, "{\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[0,%d]}}",
                     f->name, f->dtype, f->shape, N);
    while (n % 8) head[8 + n++] = ' ';
    head[0] = (char)(n & 255);
    head[1] = (char)(n >> 8);
    put_file(f, "model.safetensors", head, 8 + (size_t)n, f->data, N);
    put_file(f, "config.json", f->config, strlen(f->config), NULL, 0);
}

static void make(folder *f) {
    *f = (folder){.dir = "/tmp/gyre-fingerprint-XXXXXX", .name = "a.weight", .dtype = "BF16", .config = "{\"a\": 1}"};
    static char shape[32];
    snprintf(shape, sizeof shape, "%d,2", N / 4);
    f->shape = shape;
    assert_non_null(mkdtemp(f->dir));
    f->data = malloc(N);
    for (int i = 0; i < N; i++) f->data[i] = (unsigned char)(i * 7 + i / 251);
    put(f);
}

static void drop(folder *f) {
    static const char *const names[] = {"model.safetensors", "config.json"};
    char path[128];
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", f->dir, names[i]);
        unlink(path);
    }
    rmdir(f->dir);
    free(f->data);
}

static void print_of(const folder *f, const gy_fingerprint_opts *o, uint8_t out[32]) {
    gy_err err = {0};
    if (gy_fingerprint(f->dir, o, &err, out) < 0) fail_msg("%s", err.msg);
}

/* 1: it is another one than the plain one of f before. */
static int differs(const folder *f, const gy_fingerprint_opts *o, const uint8_t first[32]) {
    uint8_t now[32];
    print_of(f, o, now);
    return memcmp(now, first, sizeof now) != 0;
}

static void the_same_again(void **state) {
    (void)state;
    folder f, copy;
    uint8_t first[32], zero[32] = {0};
    make(&f);
    make(&copy);
    print_of(&f, &plain, first);
    assert_memory_not_equal(first, zero, sizeof zero);
    assert_false(differs(&f, &plain, first));
    put(&f); /* another time stamp */
    assert_false(differs(&f, &plain, first));
    assert_false(differs(&copy, &plain, first)); /* another folder */
    drop(&copy);
    drop(&f);
}

/* Every place that is sampled, at both of its ends; and what is not sampled is not, as the header says. */
static void bytes_of_weights(void **state) {
    static const struct {
        int at, counts;
    } places[] = {{0, 1},
                  {1, 1},
                  {SAMPLE - 1, 1},
                  {SAMPLE, 0},
                  {MIB - 1, 0},
                  {MIB, 1},
                  {MIB + SAMPLE - 1, 1},
                  {MIB + SAMPLE, 0},
                  {2 * MIB, 1},
                  {3 * MIB + SAMPLE - 1, 1},
                  {3 * MIB + SAMPLE, 0},
                  {N - SAMPLE - 1, 0},
                  {N - SAMPLE, 1},
                  {N - 1, 1}};
    (void)state;
    folder f;
    uint8_t first[32];
    make(&f);
    print_of(&f, &plain, first);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        f.data[places[i].at] ^= 1;
        put(&f);
        if (differs(&f, &plain, first) != places[i].counts) fail_msg("byte %d", places[i].at);
        f.data[places[i].at] ^= 1;
    }
    put(&f);
    assert_false(differs(&f, &plain, first));
    drop(&f);
}

static void what_tensors_are(void **state) {
    (void)state;
    folder f, g;
    uint8_t first[32];
    char turned[32];
    make(&f);
    print_of(&f, &plain, first);
    g = f;
    g.name = "b.weight";
    put(&g);
    assert_true(differs(&g, &plain, first));
    g = f;
    g.dtype = "F16";
    put(&g);
    assert_true(differs(&g, &plain, first));
    g = f;
    snprintf(turned, sizeof turned, "2,%d", N / 4);
    g.shape = turned;
    put(&g);
    assert_true(differs(&g, &plain, first));
    static const char *const configs[] = {"{\"a\": 2}", "{\"a\":1}", "{\"a\": 1}\n"};
    for (int i = 0; i < 3; i++) {
        g = f;
        g.config = configs[i];
        put(&g);
        assert_true(differs(&g, &plain, first));
    }
    put(&f);
    assert_false(differs(&f, &plain, first));
    drop(&f);
}

static void options(void **state) {
    (void)state;
    folder f;
    uint8_t first[32];
    make(&f);
    print_of(&f, &plain, first);
    gy_fingerprint_opts o[10];
    for (int i = 0; i < 10; i++) o[i] = plain;
    o[0].version = "1.2.4";
    o[1].kernels = "cpu avx512";
    o[2].act = 0;
    o[3].layout = 1;
    o[4].cyclic_k = 3;
    o[5].depth = 5;
    o[7].form = 2;
    o[8].quant_head = 1;
    o[9].kv_dtype = 7;
    o[6].version = "1.2.3c"; /* the same bytes, cut elsewhere */
    o[6].kernels = "pu avx2";
    for (int i = 0; i < 10; i++)
        if (!differs(&f, &o[i], first)) fail_msg("options %d", i);
    drop(&f);
}

static void cannot_be_read(void **state) {
    (void)state;
    folder f;
    gy_err err = {0};
    uint8_t out[32] = {7};
    char path[128];
    make(&f);
    snprintf(path, sizeof path, "%s/config.json", f.dir);
    assert_int_equal(unlink(path), 0);
    assert_true(gy_fingerprint(f.dir, &plain, &err, out) < 0);
    assert_non_null(strstr(err.msg, "config.json"));
    put(&f);
    snprintf(path, sizeof path, "%s/model.safetensors", f.dir);
    assert_int_equal(truncate(path, N), 0); /* half a download */
    assert_true(gy_fingerprint(f.dir, &plain, &err, out) < 0);
    assert_non_null(strstr(err.msg, "model.safetensors"));
    assert_int_equal(out[0], 7);
    drop(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_same_again), cmocka_unit_test(bytes_of_weights),
                                       cmocka_unit_test(what_tensors_are), cmocka_unit_test(options),
                                       cmocka_unit_test(cannot_be_read)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
