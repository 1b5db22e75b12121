/* A GPU that is none: built as a libgyre_cuda.so, for tests of what the program does when a device is of another build,
 * too small, or lost. It computes with the reference backend in host memory that it counts. What it shall do is in the
 * environment:
 *
 *   GY_FAKE_BUILD=other   another build of gyre's
 *   GY_FAKE_DRIVER=none   no device can be opened
 *   GY_FAKE_MEM=BYTES     memory of the device (1 GiB)
 *   GY_FAKE_LOST=N        lost from the N-th sync on
 *   GY_FAKE_NOMEM=N       the N-th alloc fails
 */
#include "ops/cuda_abi.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096 };

typedef struct fake {
    gy_cuda_head head;
    gy_backend *real;
    size_t have, used;
    long n_sync, lost_at, n_alloc, no_mem_at;
} fake;

static fake *fake_of(gy_backend *be) {
    return (fake *)be;
}

static int is_lost(const fake *f) {
    return f->lost_at && f->n_sync >= f->lost_at;
}

static void *fake_alloc(gy_backend *be, size_t bytes) {
    fake *f = fake_of(be);
    if (is_lost(f) || ++f->n_alloc == f->no_mem_at || bytes > f->have - f->used) return NULL;
    f->used += bytes;
    return f->real->ops->alloc(f->real, bytes);
}

static void fake_free(gy_backend *be, void *p, size_t bytes) {
    fake *f = fake_of(be);
    if (p) f->used -= bytes;
    f->real->ops->free(f->real, p, bytes);
}

static void fake_upload(gy_backend *be, void *dst, const void *src, size_t bytes) {
    if (bytes) memcpy(dst, src, bytes);
    (void)be;
}

static void fake_download(gy_backend *be, void *dst, const void *src, size_t bytes) {
    if (is_lost(fake_of(be)))
        memset(dst, 0xff, bytes);
    else if (bytes)
        memcpy(dst, src, bytes);
}

static gy_status fake_sync(gy_backend *be, gy_err *err) {
    fake *f = fake_of(be);
    f->n_sync++;
    if (!is_lost(f)) return GY_OK;
    return gy_err_set(err, GY_E_DEVICE, "device cuda:0: waiting for the device: it fell off the bus (fake)");
}

static size_t fake_mem_available(gy_backend *be) {
    return fake_of(be)->have - fake_of(be)->used;
}

static int fake_n_member(gy_backend *be) {
    (void)be;
    return 1;
}

static void fake_parallel(gy_backend *be, int32_t n, void (*fn)(void *arg, int32_t item, int member), void *arg) {
    (void)be;
    for (int32_t i = 0; i < n; i++) fn(arg, i, 0);
}

static void fake_destroy(gy_backend *be) {
    gy_backend_destroy(fake_of(be)->real);
    free(be);
}

#define FORWARD(op)                                                                                                    \
    static void fake_##op(gy_backend *be, const gy_##op##_args *a) {                                                   \
        gy_backend *real = fake_of(be)->real;                                                                          \
        real->ops->op(real, a);                                                                                        \
    }
typedef gy_move_args gy_gather_args;
typedef gy_move_args gy_scatter_args;
FORWARD(embed)
FORWARD(norm)
FORWARD(linear)
FORWARD(rope_table)
FORWARD(rope_kv)
FORWARD(attn)
FORWARD(residual)
FORWARD(silu_mul)
FORWARD(concat)
FORWARD(gather)
FORWARD(scatter)
FORWARD(gate)
FORWARD(latent_diff)
FORWARD(latent_init)

static const gy_ops fake_ops = {.name = "cuda",
                                .weight_types = 1 << GY_F32 | 1 << GY_F16 | 1 << GY_BF16 | 1 << GY_F8_E4M3,
                                .kv_types = 1 << GY_I8,
                                .alloc = fake_alloc,
                                .free = fake_free,
                                .upload = fake_upload,
                                .download = fake_download,
                                .sync = fake_sync,
                                .destroy = fake_destroy,
                                .mem_available = fake_mem_available,
                                .n_member = fake_n_member,
                                .parallel = fake_parallel,
                                .embed = fake_embed,
                                .norm = fake_norm,
                                .linear = fake_linear,
                                .rope_table = fake_rope_table,
                                .rope_kv = fake_rope_kv,
                                .attn = fake_attn,
                                .residual = fake_residual,
                                .silu_mul = fake_silu_mul,
                                .concat = fake_concat,
                                .gather = fake_gather,
                                .scatter = fake_scatter,
                                .gate = fake_gate,
                                .latent_diff = fake_latent_diff,
                                .latent_init = fake_latent_init};

static long number(const char *name, long otherwise) {
    const char *s = getenv(name);
    return s ? strtol(s, NULL, 10) : otherwise;
}

static gy_status create(const gy_cuda_opts *o, gy_err *err, gy_backend **out) {
    if (getenv("GY_FAKE_DRIVER")) return gy_err_set(err, GY_E_DEVICE, "device cuda: no driver here (fake)");
    fake *f = calloc(1, sizeof *f);
    if (!f) return gy_err_set(err, GY_E_NOMEM, "out of memory");
    gy_status st = gy_backend_ref_create(o->act, err, &f->real);
    if (st < 0) {
        free(f);
        return st;
    }
    f->head.be = (gy_backend){.ops = &fake_ops, .act = o->act};
    f->have = (size_t)number("GY_FAKE_MEM", 1L << 30);
    f->lost_at = number("GY_FAKE_LOST", 0);
    f->no_mem_at = number("GY_FAKE_NOMEM", 0);
    *out = &f->head.be;
    return GY_OK;
}

/* ---- for transfers: memory of the host ---- */

static gy_status dev_bind(void *arg, gy_err *err) {
    (void)arg, (void)err;
    return GY_OK;
}

/* NULL: a device alone, without an engine's work. */
static fake *of_device(void *arg) {
    gy_backend *be = ((gy_cuda_device *)arg)->be;
    return be ? fake_of(be) : NULL;
}

static int has_room(fake *f, size_t bytes) {
    return !is_lost(f) && ++f->n_alloc != f->no_mem_at && bytes <= f->have - f->used;
}

static void *dev_alloc(void *arg, size_t bytes) {
    fake *f = of_device(arg);
    size_t *p;
    if (f && !has_room(f, bytes)) return NULL;
    p = mmap(NULL, bytes + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NULL;
    *p = bytes;
    if (f) f->used += bytes;
    return (char *)p + PAGE;
}

static void dev_free(void *arg, void *mem) {
    if (!mem) return;
    size_t *p = (size_t *)((char *)mem - PAGE), bytes = *p;
    if (of_device(arg)) of_device(arg)->used -= bytes;
    munmap(p, bytes + PAGE);
}

static gy_status dev_copy(void *arg, void *dst, const void *src, size_t bytes, gy_err *err) {
    (void)arg, (void)err;
    memmove(dst, src, bytes);
    return GY_OK;
}

static gy_status dev_when_done(void *arg, void (*fn)(void *user), void *user, gy_err *err) {
    (void)arg, (void)err;
    fn(user);
    return GY_OK;
}

__attribute__((visibility("default"))) void gy_cuda_device_entry(int32_t ordinal, gy_backend *be, gy_cuda_device *d);
void gy_cuda_device_entry(int32_t ordinal, gy_backend *be, gy_cuda_device *d) {
    d->be = be;
    d->dev = (gy_device){.kind = GY_DEVICE_FAKE,
                         .ordinal = ordinal,
                         .arg = d,
                         .bind = dev_bind,
                         .alloc = dev_alloc,
                         .free = dev_free,
                         .copy = dev_copy,
                         .when_done = dev_when_done};
}

__attribute__((visibility("default"))) void gy_cuda_entry(gy_cuda_abi *out);
void gy_cuda_entry(gy_cuda_abi *out) {
    *out = (gy_cuda_abi){.version = GY_CUDA_ABI + (getenv("GY_FAKE_BUILD") != NULL),
                         .ops_bytes = sizeof(gy_ops),
                         .weight_bytes = sizeof(gy_weight),
                         .rows_bytes = sizeof(gy_rows),
                         .built_for = "nothing",
                         .create = create};
}
