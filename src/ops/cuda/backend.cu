/* The backend's life: device, memory, copies, errors, and its table. Computes nothing. */
#include "ops/cuda/record.cuh"
#include "ops/cuda/stage.cuh"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef GY_CUDA_BUILT_FOR
#define GY_CUDA_BUILT_FOR "an unknown architecture"
#endif

/* ---- errors ----------------------------------------------------------------------------------------------------- */

gy_status cuda_err(gy_err *err, gy_status st, const char *fmt, ...) {
    va_list ap;
    if (!err) return st;
    err->status = st;
    va_start(ap, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    return st;
}

void cuda_enter(cuda_be *c) {
    cuda_ok(c, cudaSetDevice(c->device), "choosing the device");
}

int cuda_ok(cuda_be *c, cudaError_t rc, const char *where) {
    if (rc == cudaSuccess) return 1;
    if (c->first == cudaSuccess) {
        c->first = rc;
        snprintf(c->where, sizeof c->where, "%s", where);
    }
    return 0;
}

/* Some errors leave the context unusable: every later call says them again. */
static int is_lost(cuda_be *c) {
    cudaGetLastError();
    cudaError_t rc = cudaStreamQuery(c->stream);
    return rc != cudaSuccess && rc != cudaErrorNotReady;
}

static const char *advice(cuda_be *c) {
    if (is_lost(c))
        return "; this process cannot use the GPU any more: start it again, and see nvidia-smi and the kernel's log "
               "(NVRM: Xid) for what happened";
    if (c->first == cudaErrorMemoryAllocation)
        return "; what else runs on this GPU may have taken the memory: leave more with --kv-fraction or --kv-bytes";
    return "";
}

static gy_status first_error(cuda_be *c, gy_err *err) {
    if (c->first == cudaSuccess) return GY_OK;
    char wait[128] = "";
    cuda_stage_failure(c->stage, wait, sizeof wait);
    return cuda_err(err, c->first == cudaErrorMemoryAllocation ? GY_E_NOMEM : GY_E_DEVICE,
                    "device cuda:%d: %s: %s (%s)%s%s", c->device, c->where, cudaGetErrorString(c->first),
                    cudaGetErrorName(c->first), wait, advice(c));
}

static gy_status be_sync(gy_backend *be, gy_err *err) {
    cuda_be *c = of_be(be);
    cuda_enter(c);
    cuda_ok(c, cudaStreamSynchronize(c->stream), "waiting for the device");
    gy_status st = first_error(c, err);
    c->first = cudaSuccess;
    return st;
}

/* ---- without waiting --------------------------------------------------------------------------------------------- */

static const void *be_fetch(gy_backend *be, const void *src, size_t bytes) {
    enum { STEP = 64 << 10 };
    cuda_be *c = of_be(be);
    cuda_enter(c);
    if (bytes > c->late_bytes) {
        size_t more = (bytes + STEP - 1) / STEP * STEP;
        if (c->late) cuda_ok(c, cudaStreamSynchronize(c->stream), "fetching");
        if (c->late) cudaFreeHost(c->late);
        c->late = NULL;
        c->late_bytes = 0;
        if (cudaMallocHost(&c->late, more) != cudaSuccess) {
            cudaGetLastError();
            return c->late = NULL;
        }
        c->late_bytes = more;
    }
    cuda_ok(c, cudaMemcpyAsync(c->late, src, bytes, cudaMemcpyDeviceToHost, c->stream), "fetching");
    return c->late;
}

static void be_mark(gy_backend *be) {
    cuda_ok(of_be(be), cudaEventRecord(of_be(be)->mark, of_be(be)->stream), "marking");
}

static gy_status be_reached(gy_backend *be, gy_err *err) {
    cuda_be *c = of_be(be);
    cuda_enter(c);
    cuda_ok(c, cudaEventSynchronize(c->mark), "waiting for the device");
    return first_error(c, err);
}

/* ---- memory ----------------------------------------------------------------------------------------------------- */

static void *be_alloc(gy_backend *be, size_t bytes) {
    cuda_be *c = of_be(be);
    void *p = NULL;
    cuda_enter(c);
    if (cudaMalloc(&p, bytes ? bytes : 1) != cudaSuccess) {
        cudaGetLastError(); /* the caller says what could not be had */
        return NULL;
    }
    cuda_ok(c, cudaMemsetAsync(p, 0, bytes, c->stream), "clearing memory");
    return p;
}

static void be_free(gy_backend *be, void *p, size_t bytes) {
    (void)bytes;
    cuda_enter(of_be(be));
    if (p) cuda_ok(of_be(be), cudaFree(p), "freeing memory"); /* waits for what uses it */
}

/* Less what is taken later without being asked for through alloc: code that is loaded with a kernel's first launch,
 * plans and partial sums of attention. An engine that takes all there is must not fail in its first step. */
static size_t be_mem_available(gy_backend *be) {
    const size_t later = (size_t)384 << 20;
    size_t free_bytes = 0, total = 0;
    cuda_enter(of_be(be));
    if (!cuda_ok(of_be(be), cudaMemGetInfo(&free_bytes, &total), "asking for free memory")) return 0;
    return free_bytes > later ? free_bytes - later : 1;
}

/* Room in the ring, at most want bytes; waits when the next segment is still being read. */
static char *ring_take(cuda_be *c, size_t want, size_t *n_out) {
    cuda_ring *r = &c->ring;
    if (r->used == RING_SEGMENT_BYTES) {
        cuda_ok(c, cudaEventRecord(r->done[r->segment], c->stream), "staging");
        r->segment = (r->segment + 1) % RING_SEGMENTS;
        cuda_ok(c, cudaEventSynchronize(r->done[r->segment]), "staging");
        r->used = 0;
    }
    size_t room = RING_SEGMENT_BYTES - r->used;
    char *p = r->base + (size_t)r->segment * RING_SEGMENT_BYTES + r->used;
    *n_out = want < room ? want : room;
    r->used += (*n_out + 15) / 16 * 16;
    if (r->used > RING_SEGMENT_BYTES) r->used = RING_SEGMENT_BYTES;
    return p;
}

/* One thread copies about 10 GB/s, the bus takes several times that: large pieces are copied by the host's threads
 * together (cuda_load.c puts them behind `parallel`). */
enum { COPY_ALONE_BYTES = 1 << 20, COPY_ITEM_BYTES = 256 << 10 };
typedef struct copy_task {
    char *dst;
    const char *src;
    size_t bytes;
} copy_task;

static void copy_item(void *arg, int32_t item, int member) {
    const copy_task *t = (const copy_task *)arg;
    size_t at = (size_t)item * COPY_ITEM_BYTES, left = t->bytes - at;
    (void)member;
    memcpy(t->dst + at, t->src + at, left < (size_t)COPY_ITEM_BYTES ? left : (size_t)COPY_ITEM_BYTES);
}

static void copy_to_ring(cuda_be *c, char *dst, const char *src, size_t bytes) {
    copy_task t = {dst, src, bytes};
    gy_backend *be = &c->head.be;
    if (bytes < COPY_ALONE_BYTES)
        memcpy(dst, src, bytes);
    else
        be->ops->parallel(be, (int32_t)((bytes + COPY_ITEM_BYTES - 1) / COPY_ITEM_BYTES), copy_item, &t);
}

void cuda_put(cuda_be *c, void *dst, const void *src, size_t bytes) {
    cuda_enter(c);
    for (size_t at = 0, n; at < bytes; at += n) {
        char *p = ring_take(c, bytes - at, &n);
        copy_to_ring(c, p, (const char *)src + at, n);
        cuda_ok(c, cudaMemcpyAsync((char *)dst + at, p, n, cudaMemcpyHostToDevice, c->stream), "upload");
    }
}

static void be_upload(gy_backend *be, void *dst, const void *src, size_t bytes) {
    cuda_put(of_be(be), dst, src, bytes);
}

/* Through the ring too: a copy into pageable memory would go through the driver's smaller one. What failed, or follows
 * something that failed, is all ones (NaN, -1) and not what the ring held before: nobody takes it for a result. */
static void be_download(gy_backend *be, void *dst, const void *src, size_t bytes) {
    cuda_be *c = of_be(be);
    cuda_enter(c);
    for (size_t at = 0, n; at < bytes; at += n) {
        char *p = ring_take(c, bytes - at, &n);
        cuda_ok(c, cudaMemcpyAsync(p, (const char *)src + at, n, cudaMemcpyDeviceToHost, c->stream), "download");
        cuda_ok(c, cudaStreamSynchronize(c->stream), "download");
        memcpy((char *)dst + at, p, n);
    }
    if (c->first != cudaSuccess) memset(dst, 0xff, bytes);
}

static gy_status ring_open(cuda_be *c, gy_err *err) {
    cuda_ring *r = &c->ring;
    if (cudaMallocHost((void **)&r->base, (size_t)RING_SEGMENTS * RING_SEGMENT_BYTES) != cudaSuccess)
        return cuda_err(err, GY_E_NOMEM, "device cuda:%d: no %d MiB of pinned host memory", c->device,
                        RING_SEGMENTS * (RING_SEGMENT_BYTES >> 20));
    for (int i = 0; i < RING_SEGMENTS; i++)
        if (cudaEventCreateWithFlags(&r->done[i], cudaEventDisableTiming) != cudaSuccess)
            return cuda_err(err, GY_E_DEVICE, "device cuda:%d: no events", c->device);
    return GY_OK;
}

static void ring_close(cuda_ring *r) {
    for (int i = 0; i < RING_SEGMENTS; i++)
        if (r->done[i]) cudaEventDestroy(r->done[i]);
    if (r->base) cudaFreeHost(r->base);
}

/* ---- the object ------------------------------------------------------------------------------------------------- */

static int be_n_member(gy_backend *be) {
    (void)be;
    return 1;
}

static void be_parallel(gy_backend *be, int32_t n, void (*fn)(void *arg, int32_t item, int member), void *arg) {
    (void)be;
    for (int32_t i = 0; i < n; i++) fn(arg, i, 0);
}

/* Accepts a half-built one. */
static void be_destroy(gy_backend *be) {
    cuda_be *c = of_be(be);
    cuda_enter(c);
    if (c->stream) cudaStreamSynchronize(c->stream);
    cuda_stage_close(c->stage);
    cuda_attn_close(c);
    cuda_lt_close(c);
    cudaFree(c->seed);
    cudaFree(c->pos);
    cudaFree(c->zero);
    ring_close(&c->ring);
    if (c->late) cudaFreeHost(c->late);
    if (c->mark) cudaEventDestroy(c->mark);
    if (c->stream) cudaStreamDestroy(c->stream);
    free(c);
}

/* An operation of the table: carried out, or kept for a recording. */
#define OPERATION(op, type, member, kind, weight, view)                                                                \
    static void op_##op(gy_backend *be, const type *a) {                                                               \
        record_call *k = cuda_record_call(of_be(be), kind);                                                            \
        if (!k) {                                                                                                      \
            cuda_##op(be, a);                                                                                          \
            return;                                                                                                    \
        }                                                                                                              \
        k->a.member = *a;                                                                                              \
        cuda_record_copies(k, weight, view);                                                                           \
    }
OPERATION(embed, gy_embed_args, embed, CALL_EMBED, a->table, NULL)
OPERATION(norm, gy_norm_args, norm, CALL_NORM, NULL, NULL)
OPERATION(linear, gy_linear_args, linear, CALL_LINEAR, a->w, NULL)
OPERATION(rope_kv, gy_rope_kv_args, rope_kv, CALL_ROPE_KV, NULL, a->kv)
OPERATION(attn_run, gy_attn_args, attn, CALL_ATTN, NULL, a->kv)
OPERATION(residual, gy_residual_args, residual, CALL_RESIDUAL, NULL, NULL)
OPERATION(residual_norm, gy_residual_norm_args, residual_norm, CALL_RESIDUAL_NORM, NULL, NULL)
OPERATION(silu_mul, gy_silu_mul_args, silu_mul, CALL_SILU_MUL, NULL, NULL)
OPERATION(concat, gy_concat_args, concat, CALL_CONCAT, NULL, NULL)
OPERATION(gather, gy_move_args, move, CALL_GATHER, NULL, NULL)
OPERATION(scatter, gy_move_args, move, CALL_SCATTER, NULL, NULL)
OPERATION(gate, gy_gate_args, gate, CALL_GATE, NULL, NULL)
OPERATION(latent_diff, gy_latent_diff_args, latent_diff, CALL_LATENT_DIFF, NULL, NULL)

static const gy_ops cuda_ops = {
    .name = "cuda",
    .weight_types = 1 << GY_F32 | 1 << GY_F16 | 1 << GY_BF16 | 1 << GY_F8_E4M3,
    .kv_types = 1 << GY_I8,
    .alloc = be_alloc,
    .free = be_free,
    .upload = be_upload,
    .download = be_download,
    .sync = be_sync,
    .destroy = be_destroy,
    .mem_available = be_mem_available,
    .n_member = be_n_member,
    .parallel = be_parallel,
    .prepare = cuda_prepare,
    .unprepare = NULL,
    .form = NULL,
    .form_of = NULL,
    .adopt = NULL,
    .begin_rows = cuda_begin_rows,
    .embed = op_embed,
    .norm = op_norm,
    .linear = op_linear,
    .rope_table = cuda_rope_table,
    .rope_kv = op_rope_kv,
    .attn = op_attn_run,
    .residual = op_residual,
    .silu_mul = op_silu_mul,
    .concat = op_concat,
    .gather = op_gather,
    .scatter = op_scatter,
    .gate = op_gate,
    .latent_diff = op_latent_diff,
    .latent_init = cuda_latent_init,
    .residual_norm = op_residual_norm,
    .record_open = cuda_record_open,
    .record_close = cuda_record_close,
    .record_rows = cuda_record_rows,
    .record_begin = cuda_record_begin,
    .record_end = cuda_record_end,
    .fetch = be_fetch,
    .mark = be_mark,
    .reached = be_reached,
    .sample = cuda_sample,
    .patch = cuda_patch,
};

static __global__ void probe_kernel(void) {}

static gy_status no_driver(gy_err *err) {
    int have = 0;
    cudaDriverGetVersion(&have); /* 0: there is none */
    if (!have)
        return cuda_err(err, GY_E_DEVICE,
                        "device cuda: there is no NVIDIA driver here; install one of version 580 or later (in a "
                        "container: start it with its GPUs), or use --device cpu");
    return cuda_err(
        err, GY_E_DEVICE,
        "device cuda: the NVIDIA driver here is for CUDA %d.%d, this needs one for CUDA %d.%d; install version "
        "580 or later, or use --device cpu",
        have / 1000, have % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
}

gy_status cuda_no_device(int32_t device, cudaError_t rc, gy_err *err) {
    if (rc == cudaErrorInsufficientDriver) return no_driver(err);
    if (rc == cudaErrorMemoryAllocation)
        return cuda_err(err, GY_E_NOMEM,
                        "device cuda:%d: its memory is taken, not even a context fits; end what else runs there "
                        "(nvidia-smi), give that less (--kv-fraction, --kv-bytes), or use --device cpu",
                        device);
    return cuda_err(
        err, GY_E_DEVICE,
        "device cuda:%d: no GPU can be used: %s (%s); nvidia-smi and CUDA_VISIBLE_DEVICES show what there is, "
        "or use --device cpu",
        device, cudaGetErrorString(rc), cudaGetErrorName(rc));
}

static gy_status other_arch(const gy_cuda_opts *o, const cudaDeviceProp *p, gy_err *err) {
    return cuda_err(err, GY_E_DEVICE,
                    "device cuda:%d: %s has compute capability %d.%d, this libgyre_cuda.so is built for %s; build with "
                    "-DGY_CUDA_ARCH=%d%d%s, or use --device cpu",
                    o->device, p->name, p->major, p->minor, GY_CUDA_BUILT_FOR, p->major, p->minor,
                    p->major == 9 ? "a" : "");
}

static gy_status check_device(const gy_cuda_opts *o, gy_err *err, cudaDeviceProp *out) {
    int n = 0;
    cudaError_t rc = cudaGetDeviceCount(&n);
    if (rc != cudaSuccess) return cuda_no_device(o->device, rc, err);
    if (o->device < 0 || o->device >= n)
        return cuda_err(err, GY_E_DEVICE, "device cuda:%d: this machine has %d GPU%s, numbered from 0", o->device, n,
                        n == 1 ? "" : "s");
    cudaDeviceProp prop;
    if ((rc = cudaSetDevice(o->device)) != cudaSuccess || (rc = cudaGetDeviceProperties(&prop, o->device)) != 0)
        return cuda_no_device(o->device, rc, err);
    cudaFuncAttributes attr;
    rc = cudaFuncGetAttributes(&attr, (const void *)probe_kernel);
    cudaGetLastError();
    if (rc == cudaErrorNoKernelImageForDevice || rc == cudaErrorInvalidDeviceFunction) return other_arch(o, &prop, err);
    if (rc != cudaSuccess) return cuda_no_device(o->device, rc, err);
    *out = prop;
    return GY_OK;
}

static gy_status open_parts(cuda_be *c, gy_err *err) {
    size_t n = (size_t)(c->limits.max_row > 0 ? c->limits.max_row : 1);
    if (cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking) != cudaSuccess)
        return cuda_err(err, GY_E_DEVICE, "device cuda:%d: no stream", c->device);
    GY_TRY(ring_open(c, err));
    if (cudaEventCreateWithFlags(&c->mark, cudaEventDisableTiming) != cudaSuccess)
        return cuda_err(err, GY_E_DEVICE, "device cuda:%d: no events", c->device);
    if (cudaMalloc((void **)&c->seed, n * sizeof *c->seed) || cudaMalloc((void **)&c->pos, n * sizeof *c->pos) ||
        cudaMalloc((void **)&c->zero, n))
        return cuda_err(err, GY_E_NOMEM, "device cuda:%d: no memory for the arrays of %zu rows", c->device, n);
    GY_TRY(cuda_attn_open(c, err));
    return c->head.be.act == GY_BF16 ? cuda_lt_open(c, err) : GY_OK;
}

static gy_status create(const gy_cuda_opts *o, gy_err *err, gy_backend **out) {
    cudaDeviceProp prop = {};
    GY_TRY(check_device(o, err, &prop));
    cuda_be *c = (cuda_be *)calloc(1, sizeof *c);
    if (!c) return cuda_err(err, GY_E_NOMEM, "out of memory");
    c->head.be.ops = &cuda_ops;
    c->head.be.act = o->act;
    c->device = o->device;
    c->n_sm = prop.multiProcessorCount;
    c->overlaps = prop.major >= 9;
    c->limits = o->limits;
    c->without = o->without;
    gy_status st = open_parts(c, err);
    if (st >= 0 && !(o->without & GY_CUDA_STAGE) && o->act == GY_BF16) c->stage = cuda_stage_open(c, &o->stage);
    if (st < 0)
        be_destroy(&c->head.be);
    else
        *out = &c->head.be;
    return st;
}

extern "C" __attribute__((visibility("default"))) void gy_cuda_entry(gy_cuda_abi *out) {
    out->version = GY_CUDA_ABI;
    out->ops_bytes = sizeof(gy_ops);
    out->weight_bytes = sizeof(gy_weight);
    out->rows_bytes = sizeof(gy_rows);
    out->built_for = GY_CUDA_BUILT_FOR;
    out->create = create;
}
