/* Synthetic checkpoints: the published layout (golden checkpoints, published totals), values as a pure function of
 * seed, name and element, refusals, and the byte-level tokenizer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/json.h"
#include "base/philox.h"
#include "model/model.h"
#include "model/synth.h"
#include "tensor/safetensors.h"

#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char tmp_dir[64];

static int dir_setup(void **state) {
    (void)state;
    snprintf(tmp_dir, sizeof tmp_dir, "/tmp/gy_synth_XXXXXX");
    return mkdtemp(tmp_dir) ? 0 : -1;
}

static int dir_teardown(void **state) {
    (void)state;
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -rf %s", tmp_dir);
    return system(cmd);
}

static const char *tmp_path(const char *name) {
    static char path[4][256];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s", tmp_dir, name);
    return path[turn];
}

static gy_st *synth_open(const char *shape, uint64_t seed, const char *name) {
    gy_err err = {0};
    gy_st *st = NULL;
    if (gy_synth_write(shape, seed, tmp_path(name), NULL, NULL, &err) != GY_OK) fail_msg("%s", err.msg);
    if (gy_st_open(tmp_path(name), &err, &st) != GY_OK) fail_msg("%s", err.msg);
    return st;
}

/* ---- layout ----------------------------------------------------------------------------------------------------- */

/* Tensor counts and bytes of the published checkpoints (docs/models, constants). Huginn: F32, with the duplicate head
 * and the rotation table of 4096 positions. */
static void test_published_sizes(void **state) {
    (void)state;
    static const struct {
        const char *shape;
        int32_t n_vocab;
        size_t n_tensor;
        uint64_t bytes;
    } want[] = {{"ouro-1.4b", 49152, 269, 2 * 1434652673ull},
                {"ouro-2.6b", 49152, 533, 2 * 2667974657ull},
                {"nanbeige-3b", 166144, 201, 2 * 4169800704ull},
                {"huginn", 65536, 77, 4 * (3564976800ull + 65536ull * 5280 + 4096ull * 96)},
                {"tiny-ouro", 320, 38, 384770},
                {"tiny-huginn", 320, 77, 1312368},
                {"tiny-nanbeige", 384, 30, 683328},
                /* as the published formulas have it (docs/models, tensors), at the widths in synth.c */
                {"mini-ouro", 4096, 93, 59803650},
                {"mini-huginn", 4096, 77, 82650624},
                {"mini-nanbeige", 8192, 75, 48378624},
                {"nanbeige-300m", 32768, 147, 2 * 302023680ull}};
    const char *const *names = gy_synth_shapes();
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        gy_synth_info info = {0};
        gy_err err = {0};
        assert_string_equal(names[i], want[i].shape);
        assert_int_equal(gy_synth_get_info(want[i].shape, &err, &info), GY_OK);
        assert_string_equal(info.name, want[i].shape);
        assert_int_equal(info.n_vocab, want[i].n_vocab);
        assert_int_equal(info.n_tensor, want[i].n_tensor);
        assert_true(info.data_bytes == want[i].bytes);
    }
    assert_null(names[sizeof want / sizeof *want]);
}

static void golden_path(char *buf, size_t cap, const char *family, const char *file) {
    snprintf(buf, cap, "%s/tests/golden/models/%s-tiny%s%s", GY_SOURCE_DIR, family, *file ? "/" : "", file);
}

static int same_value(const gy_jv *a, const gy_jv *b) {
    const gy_jtype t = gy_jv_type(a);
    size_t len;
    if (t == GY_J_INT || t == GY_J_REAL) return gy_jv_num(a, NAN) == gy_jv_num(b, NAN);
    if (t != gy_jv_type(b)) return 0;
    if (t == GY_J_STRING) return gy_jv_is_str(b, gy_jv_str(a, &len));
    if (t == GY_J_BOOL) return gy_jv_bool(a, 0) == gy_jv_bool(b, 0);
    if (t == GY_J_ARRAY) {
        for (size_t i = 0; i < gy_jv_len(a); i++)
            if (!same_value(gy_jv_at(a, i), gy_jv_at(b, i))) return 0;
        return gy_jv_len(a) == gy_jv_len(b);
    }
    return t == GY_J_NULL;
}

/* Each key of the golden config is there with the same value. */
static void check_config(const char *family, const char *dir) {
    char golden[512], made[512];
    gy_json *want = NULL, *have = NULL;
    gy_err err = {0};
    golden_path(golden, sizeof golden, family, "config.json");
    snprintf(made, sizeof made, "%s/config.json", dir);
    if (gy_json_read(golden, NULL, &err, &want) != GY_OK) fail_msg("%s", err.msg);
    if (gy_json_read(made, NULL, &err, &have) != GY_OK) fail_msg("%s", err.msg);
    const gy_jv *w = gy_json_root(want), *h = gy_json_root(have);
    assert_true(gy_jv_len(w) > 15);
    for (void *it = gy_jv_first(w); it; it = gy_jv_next(w, it)) {
        const char *key = gy_jv_key(it, NULL);
        if (!same_value(gy_jv_val(it), gy_jv_get(h, key))) fail_msg("%s: key %s differs", family, key);
    }
    gy_json_free(want);
    gy_json_free(have);
}

/* The tiny shapes have exactly the golden checkpoints' tensors, in the same places. */
static void check_tensors(const char *family, const gy_st *have) {
    char golden[512];
    gy_st *want = NULL;
    gy_err err = {0};
    golden_path(golden, sizeof golden, family, "");
    if (gy_st_open(golden, &err, &want) != GY_OK) fail_msg("%s", err.msg);
    assert_int_equal(gy_st_count(have), gy_st_count(want));
    for (size_t i = 0; i < gy_st_count(want); i++) {
        const gy_tensor_info *a = gy_st_at(want, i), *b = gy_st_at(have, i);
        assert_string_equal(b->name, a->name);
        assert_int_equal(b->dtype, a->dtype);
        assert_int_equal(b->n_dim, a->n_dim);
        assert_memory_equal(b->shape, a->shape, sizeof a->shape);
        assert_int_equal((const char *)b->data - (const char *)gy_st_at(have, 0)->data,
                         (const char *)a->data - (const char *)gy_st_at(want, 0)->data);
    }
    gy_st_close(want);
}

static void test_tiny_as_golden(void **state) {
    (void)state;
    static const char *const families[] = {"ouro", "huginn", "nanbeige"};
    for (size_t i = 0; i < 3; i++) {
        char shape[32];
        snprintf(shape, sizeof shape, "tiny-%s", families[i]);
        gy_st *st = synth_open(shape, 3, shape);
        check_tensors(families[i], st);
        check_config(families[i], tmp_path(shape));
        gy_model_desc desc;
        gy_err err = {0};
        if (gy_model_read_desc(tmp_path(shape), &err, &desc) != GY_OK) fail_msg("%s", err.msg);
        assert_string_equal(desc.family, families[i]);
        gy_st_close(st);
    }
}

/* The middle sizes have the depths of the published models, so that what depends on depth is the same: planes, passes.
 */
static void test_mini_depths(void **state) {
    (void)state;
    static const struct {
        const char *shape;
        int32_t prelude, core, coda, n_loop, max_pos;
    } want[] = {
        {"mini-ouro", 0, 8, 0, 4, 8192}, {"mini-huginn", 2, 4, 2, 32, 4096}, {"mini-nanbeige", 0, 8, 0, 2, 8192}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        gy_st *st = synth_open(want[i].shape, 3, want[i].shape);
        gy_model_desc d;
        gy_err err = {0};
        if (gy_model_read_desc(tmp_path(want[i].shape), &err, &d) != GY_OK) fail_msg("%s", err.msg);
        assert_int_equal(d.n_layer[GY_PRELUDE], want[i].prelude);
        assert_int_equal(d.n_layer[GY_CORE], want[i].core);
        assert_int_equal(d.n_layer[GY_CODA], want[i].coda);
        assert_int_equal(d.n_loop, want[i].n_loop);
        assert_int_equal(d.max_pos, want[i].max_pos);
        gy_st_close(st);
    }
}

/* ---- values ----------------------------------------------------------------------------------------------------- */

static double value_at(const gy_tensor_info *t, size_t i) {
    if (t->dtype == GY_F32) return (double)((const float *)t->data)[i];
    return (double)gy_bf16_to_f32(((const uint16_t *)t->data)[i]);
}

static void moments(const gy_tensor_info *t, double *mean_out, double *std_out) {
    const size_t n = t->bytes / gy_dtype_bytes(t->dtype);
    double sum = 0, sq = 0;
    for (size_t i = 0; i < n; i++) sum += value_at(t, i);
    for (size_t i = 0; i < n; i++) sq += (value_at(t, i) - sum / (double)n) * (value_at(t, i) - sum / (double)n);
    *mean_out = sum / (double)n;
    *std_out = sqrt(sq / (double)n);
}

/* Bounds: five standard errors of n = 11264 independent draws (mean: std / sqrt(n); std: std / sqrt(2 n)). */
static void test_scales(void **state) {
    (void)state;
    gy_st *st = synth_open("tiny-ouro", 1, "o");
    double mean, std;
    const gy_tensor_info *t = gy_st_find(st, "model.layers.1.mlp.down_proj.weight");
    moments(t, &mean, &std);
    const double want = 1 / sqrt(176.0), n = 64 * 176;
    assert_true(fabs(mean) < 5 * want / sqrt(n));
    assert_true(fabs(std - want) < 5 * want / sqrt(2 * n));
    moments(gy_st_find(st, "model.embed_tokens.weight"), &mean, &std);
    assert_true(fabs(std - 1) < 0.03 && fabs(mean) < 0.04);
    moments(gy_st_find(st, "model.norm.weight"), &mean, &std);
    assert_true(fabs(mean - 1) < 0.015 && std > 0.01 && std < 0.03);
    moments(gy_st_find(st, "model.early_exit_gate.bias"), &mean, &std);
    assert_true(fabs(mean + 1) < 0.2);
    for (size_t i = 0; i < gy_st_count(st); i++) /* no tensor is constant, none has a NaN */
        if (gy_st_at(st, i)->bytes > 2) {
            moments(gy_st_at(st, i), &mean, &std);
            assert_true(isfinite(mean) && std > 1e-3);
        }
    gy_st_close(st);
}

/* The n-th element from the documented recipe, written again from scratch. */
static double recipe(uint64_t seed, const char *name, size_t i, double mean, double std) {
    uint64_t h = 14695981039346656037ull;
    for (const char *c = name; *c; c++) h ^= (unsigned char)*c, h *= 1099511628211ull;
    uint32_t r[4];
    gy_rand_block(seed, (uint32_t)h, (uint32_t)(h >> 32), GY_RAND_SYNTH, (uint32_t)(i / 8), r);
    const uint32_t word = r[i / 2 % 4] >> (i % 2 ? 16 : 0);
    return mean + std / 104.5107649 * ((double)(word & 255) + (double)(word >> 8 & 255) - 255);
}

static void test_pure_function(void **state) {
    (void)state;
    gy_st *a = synth_open("tiny-huginn", 99, "a"), *b = synth_open("tiny-huginn", 100, "b");
    const gy_tensor_info *t = gy_st_find(a, "transformer.core_block.2.mlp.proj.weight");
    for (size_t i = 0; i < 60 * 112; i += 7)
        assert_true(fabs(value_at(t, i) - recipe(99, t->name, i, 0, 1 / sqrt(112.0))) < 1e-6);
    t = gy_st_find(b, "transformer.ln_f.weight");
    for (size_t i = 0; i < 60; i++) assert_true(fabs(value_at(t, i) - recipe(100, t->name, i, 1, 0.02)) < 1e-6);
    /* Another seed: another checkpoint, except for what is not drawn. */
    for (size_t i = 0; i < gy_st_count(a); i++) {
        const gy_tensor_info *x = gy_st_at(a, i), *y = gy_st_at(b, i);
        assert_int_equal(memcmp(x->data, y->data, x->bytes) == 0, !strcmp(x->name, "freqs_cis"));
    }
    /* No two tensors share their numbers, but for the head, which is the embedding. */
    for (size_t i = 0; i < gy_st_count(a); i++)
        for (size_t k = 0; k < i; k++) {
            const gy_tensor_info *x = gy_st_at(a, i), *y = gy_st_at(a, k);
            const int same = x->bytes == y->bytes && !memcmp(x->data, y->data, x->bytes);
            assert_int_equal(same, !strcmp(x->name, "transformer.wte.weight") && !strcmp(y->name, "lm_head.weight"));
        }
    gy_st_close(a);
    gy_st_close(b);
}

/* The adapter's columns for the state are drawn at half scale, those for the prelude at full scale. */
static void test_adapter_is_damped(void **state) {
    (void)state;
    gy_st *st = synth_open("tiny-huginn", 4, "h");
    const gy_tensor_info *t = gy_st_find(st, "transformer.adapter.weight");
    for (size_t i = 0; i < 60 * 120; i++) {
        const double want = recipe(4, t->name, i, 0, 1 / sqrt(120.0));
        assert_true(fabs(value_at(t, i) - (i % 120 < 60 ? want / 2 : want)) < 1e-6);
    }
    gy_st_close(st);
}

static void test_repeatable(void **state) {
    (void)state;
    static const char *const files[] = {"model.safetensors", "config.json"};
    gy_st_close(synth_open("tiny-ouro", 5, "a"));
    gy_st_close(synth_open("tiny-ouro", 5, "b"));
    for (int i = 0; i < 2; i++) {
        gy_str x = {0}, y = {0};
        gy_err err = {0};
        char pa[300], pb[300];
        snprintf(pa, sizeof pa, "%s/a/%s", tmp_dir, files[i]);
        snprintf(pb, sizeof pb, "%s/b/%s", tmp_dir, files[i]);
        assert_int_equal(gy_file_read(pa, 1 << 20, &err, &x), GY_OK);
        assert_int_equal(gy_file_read(pb, 1 << 20, &err, &y), GY_OK);
        assert_int_equal(x.len, y.len);
        assert_memory_equal(x.data, y.data, x.len);
        gy_str_free(&x);
        gy_str_free(&y);
    }
}

/* Against cos and sin in double; the angle is rounded to F32 twice: relative 2^-23 of at most 255. */
static void test_rope_table(void **state) {
    (void)state;
    gy_st *st = synth_open("tiny-huginn", 1, "h");
    const gy_tensor_info *t = gy_st_find(st, "freqs_cis");
    for (size_t pos = 0; pos < 256; pos++)
        for (size_t i = 0; i < 6; i++) {
            const double angle = (double)pos * exp(-log(50000.0) * (double)i / 6.0), tol = angle * 0x1p-23 + 1e-7;
            assert_true(fabs(value_at(t, (pos * 6 + i) * 2) - cos(angle)) <= tol);
            assert_true(fabs(value_at(t, (pos * 6 + i) * 2 + 1) - sin(angle)) <= tol);
        }
    gy_st_close(st);
}

/* ---- progress, refusals ----------------------------------------------------------------------------------------- */

typedef struct seen {
    uint64_t last, total;
    int n;
} seen;

static void on_progress(void *arg, uint64_t done, uint64_t total) {
    seen *s = arg;
    assert_true(done > s->last && done <= total);
    s->last = done;
    s->total = total;
    s->n++;
}

static void test_progress(void **state) {
    (void)state;
    seen s = {0};
    gy_err err = {0};
    assert_int_equal(gy_synth_write("tiny-ouro", 1, tmp_path("o"), on_progress, &s, &err), GY_OK);
    assert_int_equal(s.n, 38);
    assert_int_equal(s.last, 384770);
    assert_int_equal(s.total, 384770);
}

static void refused(const char *shape, const char *dir, gy_status want, const char *part) {
    gy_err err = {0};
    assert_int_equal(gy_synth_write(shape, 1, dir, NULL, NULL, &err), want);
    if (!strstr(err.msg, part)) fail_msg("message lacks \"%s\": %s", part, err.msg);
}

static void test_refuses(void **state) {
    (void)state;
    gy_synth_info info;
    gy_err err = {0};
    refused("ouro-7b", tmp_path("x"), GY_E_ARG,
            "shape: found \"ouro-7b\", expected one of ouro-1.4b, ouro-2.6b, nanbeige-3b, huginn, tiny-ouro, "
            "tiny-huginn, tiny-nanbeige");
    assert_false(gy_dir_exists(tmp_path("x")));
    assert_int_equal(gy_synth_get_info("", &err, &info), GY_E_ARG);
    refused("tiny-ouro", tmp_path("no/parent"), GY_E_IO, "no/parent: cannot create the folder: No such file");
    FILE *f = fopen(tmp_path("keep.txt"), "w");
    assert_non_null(f);
    assert_int_equal(fclose(f), 0);
    refused("tiny-ouro", tmp_path("keep.txt"), GY_E_IO, "keep.txt: cannot be read as a folder: Not a directory");
    refused("tiny-ouro", tmp_dir, GY_E_ARG, "the folder is not empty (it holds \"keep.txt\"): nothing is overwritten");
    assert_true(gy_file_exists(tmp_path("keep.txt")));
    assert_false(gy_file_exists(tmp_path("config.json")));
    /* An empty folder is fine, and it is full afterwards. */
    assert_int_equal(mkdir(tmp_path("e"), 0755), 0);
    assert_int_equal(gy_synth_write("tiny-ouro", 1, tmp_path("e"), NULL, NULL, &err), GY_OK);
    refused("tiny-ouro", tmp_path("e"), GY_E_ARG, "not empty");
}

static int file_say(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    if (!f) return -1;
    fputs(text, f);
    return fclose(f);
}

/* Own mounts that nobody else sees: as root at once, else as the root of an own user namespace. */
static int mounts_unshare(void) {
    char uid_map[32], gid_map[32];
    snprintf(uid_map, sizeof uid_map, "0 %u 1", (unsigned)getuid());
    snprintf(gid_map, sizeof gid_map, "0 %u 1", (unsigned)getgid());
    if (unshare(CLONE_NEWNS) != 0) {
        if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0 || file_say("/proc/self/uid_map", uid_map) != 0) return -1;
        if (file_say("/proc/self/setgroups", "deny") != 0 || file_say("/proc/self/gid_map", gid_map) != 0) return -1;
    }
    return mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL);
}

/* In a child: a file system of 1 MiB. Exit 0: refused as it must be; 77: mounting is forbidden here. */
static int small_disk_child(void) {
    gy_err err = {0};
    if (mounts_unshare() != 0) return 77;
    if (mount("none", tmp_dir, "tmpfs", 0, "size=1m") != 0) return 77;
    if (gy_synth_write("tiny-huginn", 1, tmp_path("h"), NULL, NULL, &err) != GY_E_IO) return 1;
    if (!strstr(err.msg, "/h: not enough room: found 1 MB free, expected 3 MB")) {
        fprintf(stderr, "%s\n", err.msg);
        return 2;
    }
    return gy_dir_exists(tmp_path("h")) ? 3 : 0;
}

static void test_small_disk(void **state) {
    (void)state;
    int status = 0;
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) _exit(small_disk_child());
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) skip(); /* no right to mount here */
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* Memory fails at every allocation in turn: an error, and no folder is left. */
static void test_memory_fails(void **state) {
    (void)state;
    int n_nomem = 0;
    for (int64_t n = 1;; n++) {
        gy_mem_stats start, end;
        gy_err err = {0};
        gy_mem_get_stats(&start);
        gy_mem_fail_after(n);
        const gy_status s = gy_synth_write("tiny-nanbeige", 1, tmp_path("m"), NULL, NULL, &err);
        gy_mem_fail_after(0);
        gy_mem_get_stats(&end);
        assert_int_equal(start.live_bytes[GY_MEM_MODEL], end.live_bytes[GY_MEM_MODEL]);
        assert_int_equal(start.live_bytes[GY_MEM_TENSOR], end.live_bytes[GY_MEM_TENSOR]);
        if (end.n_alloc - start.n_alloc < n) {
            assert_int_equal(s, GY_OK);
            break;
        }
        if (s != GY_E_NOMEM) fail_msg("allocation %d: %s", (int)n, err.msg);
        assert_false(gy_dir_exists(tmp_path("m")));
        n_nomem++;
    }
    assert_true(n_nomem > 10);
}

/* ---- tokenizer -------------------------------------------------------------------------------------------------- */

static void test_tokenizer(void **state) {
    (void)state;
    gy_err err = {0};
    gy_json *doc = NULL;
    assert_int_equal(gy_synth_write_tokenizer(tmp_dir, 320, &err), GY_OK);
    if (gy_json_read(tmp_path("tokenizer.json"), NULL, &err, &doc) != GY_OK) fail_msg("%s", err.msg);
    const gy_jv *root = gy_json_root(doc), *model = gy_jv_get(root, "model"), *vocab = gy_jv_get(model, "vocab");
    assert_true(gy_jv_is_str(gy_jv_get(model, "type"), "BPE"));
    assert_int_equal(gy_jv_type(gy_jv_get(model, "merges")), GY_J_ARRAY);
    assert_int_equal(gy_jv_len(gy_jv_get(model, "merges")), 0);
    assert_int_equal(gy_jv_len(vocab), 259);
    /* Samples of GPT-2's byte alphabet, as its encoder.json spells them. */
    static const struct {
        const char *piece;
        int byte;
    } want[] = {{"!", 33},
                {"A", 65},
                {"~", 126},
                {"\xc4\xa0", 32}, /* Ġ */
                {"\xc4\x8a", 10} /* Ċ */,
                {"\xc4\x80", 0} /* Ā */,
                {"\xc4\xa1", 127} /* ġ */,
                {"\xc4\xa2", 128} /* Ģ */,
                {"\xc2\xa1", 161} /* ¡ */,
                {"\xc5\x83", 173} /* Ń */,
                {"\xc3\xbf", 255} /* ÿ */,
                {"\xc5\x82", 160} /* ł */};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        assert_int_equal(gy_jv_int(gy_jv_get(vocab, want[i].piece), -1), 3 + want[i].byte);
    unsigned char seen_id[259] = {0};
    for (void *it = gy_jv_first(vocab); it; it = gy_jv_next(vocab, it)) seen_id[gy_jv_int(gy_jv_val(it), -1)]++;
    for (int i = 0; i < 259; i++) assert_int_equal(seen_id[i], 1);
    const gy_jv *added = gy_jv_get(root, "added_tokens");
    static const char *const special[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    assert_int_equal(gy_jv_len(added), 3);
    for (size_t i = 0; i < 3; i++) {
        assert_true(gy_jv_is_str(gy_jv_get(gy_jv_at(added, i), "content"), special[i]));
        assert_int_equal(gy_jv_int(gy_jv_get(gy_jv_at(added, i), "id"), -1), i);
        assert_int_equal(gy_jv_int(gy_jv_get(vocab, special[i]), -1), i);
        assert_true(gy_jv_bool(gy_jv_get(gy_jv_at(added, i), "special"), 0));
    }
    assert_false(gy_jv_bool(gy_jv_get(gy_jv_get(root, "pre_tokenizer"), "add_prefix_space"), 1));
    gy_json_free(doc);
    if (gy_json_read(tmp_path("tokenizer_config.json"), NULL, &err, &doc) != GY_OK) fail_msg("%s", err.msg);
    assert_true(gy_jv_is_str(gy_jv_get(gy_json_root(doc), "eos_token"), "<|endoftext|>"));
    gy_json_free(doc);
}

static void test_tokenizer_refuses(void **state) {
    (void)state;
    gy_err err = {0};
    assert_int_equal(gy_synth_write_tokenizer(tmp_dir, 258, &err), GY_E_ARG);
    assert_non_null(strstr(err.msg, "a vocabulary of 258 ids, expected at least 259"));
    assert_false(gy_file_exists(tmp_path("tokenizer.json")));
    assert_int_equal(gy_synth_write_tokenizer("/nonexistent", 320, &err), GY_E_IO);
    assert_non_null(strstr(err.msg, "/nonexistent/tokenizer.json: cannot write: No such file"));
}

#define IN_DIR(t) cmocka_unit_test_setup_teardown(t, dir_setup, dir_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published_sizes),
        IN_DIR(test_mini_depths),
        IN_DIR(test_tiny_as_golden),
        IN_DIR(test_scales),
        IN_DIR(test_pure_function),
        IN_DIR(test_adapter_is_damped),
        IN_DIR(test_repeatable),
        IN_DIR(test_rope_table),
        IN_DIR(test_progress),
        IN_DIR(test_refuses),
        IN_DIR(test_small_disk),
        IN_DIR(test_memory_fails),
        IN_DIR(test_tokenizer),
        IN_DIR(test_tokenizer_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
