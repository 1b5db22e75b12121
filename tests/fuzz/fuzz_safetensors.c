/* Any bytes as one safetensors image: refused with a sentence, or opened, and then every tensor is readable to its last
 * byte, inside the image, aligned, sorted by name and found again by it. */
#include "base/mem.h"
#include "tensor/safetensors.h"

#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_tensor(const gy_st *st, size_t i, const char *image, size_t size) {
    const gy_tensor_info *t = gy_st_at(st, i);
    const char *first = t->data;
    GY_CHECK(first >= image && t->bytes <= size && first + t->bytes <= image + size);
    GY_CHECK((uintptr_t)first % gy_dtype_bytes(t->dtype) == 0);
    GY_CHECK(gy_st_find(st, t->name) == t);
    GY_CHECK(i == 0 || strcmp(gy_st_at(st, i - 1)->name, t->name) < 0);
    for (int d = 0; d < t->n_dim; d++) GY_CHECK(t->shape[d] >= 0);
}

static void check_claims(gy_st *st, const char *near_name) {
    const gy_tensor_info *t = gy_st_at(st, 0), *out = NULL;
    gy_err err;
    GY_CHECK(gy_st_claim(st, near_name, t->shape, t->n_dim, &err, &out) < 0 || out);
    const gy_status s = gy_st_claim(st, t->name, t->shape, t->n_dim, &err, &out);
    GY_CHECK(s == GY_OK || s == GY_E_UNSUPPORTED || s == GY_E_BUG);
    GY_CHECK(gy_st_check_unclaimed(st, NULL, 0, &err) == GY_OK || err.msg[0]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    gy_err err = {0};
    gy_st *st = NULL;
    char *image = gy_mem_alloc(GY_MEM_TENSOR, size ? size : 1, 1); /* aligned, and its end is guarded */
    if (!image) return 0;
    if (size) memcpy(image, data, size);
    if (gy_st_open_memory(image, size, "fuzz", &err, &st) == GY_OK) {
        size_t bytes = 0;
        GY_CHECK(gy_st_count(st) > 0);
        for (size_t i = 0; i < gy_st_count(st); i++) {
            check_tensor(st, i, image, size);
            bytes += gy_st_at(st, i)->bytes;
        }
        GY_CHECK(bytes == gy_st_data_bytes(st));
        check_claims(st, "model.layers.0.weight");
        gy_st_close(st);
    } else {
        GY_CHECK(err.status < 0 && strncmp(err.msg, "fuzz", 4) == 0);
    }
    gy_mem_free(image);
    return 0;
}
