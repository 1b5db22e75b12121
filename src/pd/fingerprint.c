/* A digest of many small things, each behind its length, so that no two sequences of them have the same bytes. */
#include "pd/fingerprint.h"

#include "base/file.h"
#include "base/sha256.h"
#include "tensor/safetensors.h"

#include <string.h>

static void put(gy_sha256 *s, const void *bytes, size_t n) {
    uint64_t len = n;
    gy_sha256_put(s, &len, sizeof len);
    gy_sha256_put(s, bytes, n);
}

static void put_text(gy_sha256 *s, const char *z) {
    put(s, z, strlen(z));
}

static gy_status put_file(gy_sha256 *s, const char *dir, const char *name, gy_err *err) {
    enum { MOST = 16 << 20 };
    char *path = gy_path_join(dir, name);
    gy_str text = {0};
    if (!path) return gy_err_set(err, GY_E_NOMEM, "no memory for a path");
    gy_status st = gy_file_read(path, MOST, err, &text);
    if (st >= 0) put(s, gy_str_z(&text), text.len);
    gy_str_free(&text);
    gy_mem_free(path);
    return st;
}

static void put_sampled(gy_sha256 *s, const char *data, size_t bytes) {
    size_t most = GY_FINGERPRINT_SAMPLE;
    for (size_t at = 0; at < bytes; at += GY_FINGERPRINT_STRIDE)
        gy_sha256_put(s, data + at, bytes - at < most ? bytes - at : most);
    if (bytes > most) gy_sha256_put(s, data + bytes - most, most);
}

static void put_tensor(gy_sha256 *s, const gy_tensor_info *t) {
    int32_t head[2] = {(int32_t)t->dtype, t->n_dim};
    put_text(s, t->name);
    put(s, head, sizeof head);
    put(s, t->shape, (size_t)t->n_dim * sizeof *t->shape);
    put_sampled(s, t->data, t->bytes);
}

static gy_status put_weights(gy_sha256 *s, const char *dir, gy_err *err) {
    gy_st *st;
    GY_TRY(gy_st_open(dir, err, &st));
    for (size_t i = 0; i < gy_st_count(st); i++) put_tensor(s, gy_st_at(st, i));
    gy_st_close(st);
    return GY_OK;
}

gy_status gy_fingerprint(const char *dir, const gy_fingerprint_opts *o, gy_err *err, uint8_t out[32]) {
    gy_sha256 s;
    int32_t numbers[] = {o->act, o->layout, o->cyclic_k, o->depth, o->form, o->quant_head, o->kv_dtype};
    gy_sha256_init(&s);
    put_text(&s, "gyre fingerprint 4");
    put_text(&s, o->version);
    put_text(&s, o->kernels);
    put(&s, numbers, sizeof numbers);
    GY_TRY(put_file(&s, dir, "config.json", err));
    GY_TRY(put_weights(&s, dir, err));
    gy_sha256_end(&s, out);
    return GY_OK;
}
