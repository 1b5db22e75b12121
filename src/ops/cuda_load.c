/* Finding and opening libgyre_cuda.so: beside the program or libgyre.so, in ../lib from there, then where the system
 * looks. Adds host threads to the backend, for sampling. Computes nothing.
 */
#include "ops/cuda_abi.h"

#include "base/mem.h"
#include "base/team.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIBRARY "libgyre_cuda.so"

/* Behind gy_cuda_head.host. Engine lifetime. */
typedef struct cuda_host {
    gy_ops ops;       /* the library's, with what is below put over it */
    const gy_ops *of; /* the library's */
    gy_team *team;
    void *lib; /* stays loaded: the CUDA runtime does not like to be unloaded */
    gy_cuda_device device;
} cuda_host;

/* ---- threads of the host ---------------------------------------------------------------------------------------- */

static cuda_host *host_of(gy_backend *be) {
    return ((gy_cuda_head *)be)->host;
}

static int host_n_member(gy_backend *be) {
    return gy_team_size(host_of(be)->team);
}

typedef struct host_task {
    int32_t n;
    void (*fn)(void *arg, int32_t item, int member);
    void *arg;
} host_task;

static void run_share(void *arg, int member, int n_member) {
    const host_task *t = arg;
    for (int32_t i = member; i < t->n; i += n_member) t->fn(t->arg, i, member);
}

static void host_parallel(gy_backend *be, int32_t n, void (*fn)(void *arg, int32_t item, int member), void *arg) {
    host_task t = {.n = n, .fn = fn, .arg = arg};
    if (n == 1)
        fn(arg, 0, 0);
    else if (n > 1)
        gy_team_run(host_of(be)->team, run_share, &t);
}

static void host_destroy(gy_backend *be) {
    cuda_host *h = host_of(be);
    be->ops = h->of;
    h->of->destroy(be);
    gy_team_destroy(h->team);
    gy_mem_free(h);
}

static gy_status fill_device(void *lib, int32_t ordinal, gy_backend *be, gy_err *err, gy_cuda_device *out) {
    void *p = dlsym(lib, GY_CUDA_DEVICE_ENTRY);
    gy_cuda_device_entry_fn fn;
    memcpy(&fn, &p, sizeof fn);
    if (!p) return gy_err_set(err, GY_E_DEVICE, "device cuda: " LIBRARY " has no " GY_CUDA_DEVICE_ENTRY);
    fn(ordinal, be, out);
    return GY_OK;
}

static gy_status add_host(gy_backend *be, const gy_cuda_opts *o, gy_err *err) {
    cuda_host *h = gy_mem_alloc(GY_MEM_ENGINE, 1, sizeof *h);
    if (!h || gy_team_create(o->n_thread, GY_PIN_OFF, &h->team) < 0) {
        gy_mem_free(h);
        return gy_err_set(err, GY_E_NOMEM, "cuda: no memory for the threads that sample");
    }
    h->of = be->ops;
    h->ops = *be->ops;
    h->ops.n_member = host_n_member;
    h->ops.parallel = host_parallel;
    h->ops.destroy = host_destroy;
    if (o->without & GY_CUDA_LATE) h->ops.fetch = NULL;
    ((gy_cuda_head *)be)->host = h;
    be->ops = &h->ops;
    return GY_OK;
}

/* ---- the library ------------------------------------------------------------------------------------------------ */

static void *open_at(char *buf, size_t cap, const char *dir, size_t len, const char *tail) {
    int n = snprintf(buf, cap, "%.*s/%s" LIBRARY, (int)len, dir, tail);
    if (n < 0 || (size_t)n >= cap || access(buf, F_OK)) {
        buf[0] = '\0';
        return NULL;
    }
    return dlopen(buf, RTLD_NOW | RTLD_LOCAL);
}

/* In the folder of file, or in lib beside that. path: what was found there, empty if nothing. */
static void *open_near(const char *file, char *path, size_t cap) {
    const char *slash = strrchr(file, '/');
    if (!slash) return NULL;
    void *lib = open_at(path, cap, file, (size_t)(slash - file), "");
    return lib || path[0] ? lib : open_at(path, cap, file, (size_t)(slash - file), "../lib/");
}

/* Near the program; else near the file that holds this code, which may be libgyre.so. */
static void *open_near_us(char *path, size_t cap) {
    char exe[PATH_MAX];
    Dl_info info;
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    exe[n > 0 ? n : 0] = '\0';
    void *lib = open_near(exe, path, cap);
    if (lib || path[0] || !dladdr(LIBRARY, &info) || !info.dli_fname) return lib;
    char *real = realpath(info.dli_fname, NULL);
    if (real) lib = open_near(real, path, cap);
    free(real);
    return lib;
}

static gy_status open_library(gy_err *err, void **out) {
    char path[PATH_MAX] = "";
    void *lib = open_near_us(path, sizeof path);
    if (!lib && !path[0]) lib = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!lib) {
        const char *why = dlerror();
        return gy_err_set(err, GY_E_DEVICE,
                          "device cuda: " LIBRARY " cannot be loaded (%s); it is built where CUDA's nvcc is found and "
                          "must lie beside the program, or use device cpu",
                          why ? why : "unknown reason");
    }
    *out = lib;
    return GY_OK;
}

static gy_status enter(void *lib, gy_err *err, gy_cuda_abi *out) {
    void *p = dlsym(lib, GY_CUDA_ENTRY);
    gy_cuda_entry_fn fn;
    memcpy(&fn, &p, sizeof fn); /* POSIX lets an object pointer of dlsym become a function pointer so */
    if (!p) return gy_err_set(err, GY_E_DEVICE, "device cuda: " LIBRARY " has no " GY_CUDA_ENTRY);
    memset(out, 0, sizeof *out);
    fn(out);
    if (out->version == GY_CUDA_ABI && out->ops_bytes == sizeof(gy_ops) && out->weight_bytes == sizeof(gy_weight) &&
        out->rows_bytes == sizeof(gy_rows))
        return GY_OK;
    return gy_err_set(err, GY_E_DEVICE,
                      "device cuda: " LIBRARY " is of another build of gyre (found version %u with tables of %u bytes, "
                      "expected %u with %zu); build both together",
                      out->version, out->ops_bytes, (unsigned)GY_CUDA_ABI, sizeof(gy_ops));
}

gy_status gy_backend_cuda_create(const gy_cuda_opts *o, gy_err *err, gy_backend **out) {
    void *lib = NULL;
    gy_cuda_abi abi;
    gy_backend *be = NULL;
    if (o->act != GY_F32 && o->act != GY_BF16)
        return gy_err_set(err, GY_E_UNSUPPORTED, "device cuda: activations in %s; use f32 or bf16",
                          gy_dtype_name(o->act));
    GY_TRY(open_library(err, &lib));
    GY_TRY(enter(lib, err, &abi));
    GY_TRY(abi.create(o, err, &be));
    gy_status st = add_host(be, o, err);
    if (st >= 0) st = fill_device(lib, o->device, be, err, &host_of(be)->device);
    if (st < 0)
        be->ops->destroy(be);
    else
        *out = be;
    return st;
}

const gy_device *gy_backend_get_device(gy_backend *be) {
    return be->ops->destroy == host_destroy ? &host_of(be)->device.dev : NULL;
}

gy_status gy_cuda_device_open(int32_t ordinal, gy_err *err, gy_device **out) {
    void *lib = NULL;
    gy_cuda_abi abi;
    GY_TRY(open_library(err, &lib));
    GY_TRY(enter(lib, err, &abi));
    gy_cuda_device *d = gy_mem_alloc(GY_MEM_ENGINE, 1, sizeof *d);
    if (!d) return gy_err_set(err, GY_E_NOMEM, "device cuda: no memory");
    gy_status st = fill_device(lib, ordinal, NULL, err, d);
    if (st >= 0) st = d->dev.bind(d, err);
    if (st < 0)
        gy_mem_free(d);
    else
        *out = &d->dev;
    return st;
}

void gy_cuda_device_close(gy_device *d) {
    if (d) gy_mem_free(d->arg);
}

#define STAGE "-stage"

int gy_cuda_without_stage(const char *text) {
    size_t n = strlen(text), tail = strlen(STAGE);
    return n > tail && !strcmp(text + n - tail, STAGE);
}

gy_status gy_cuda_parse_device(const char *text, gy_err *err, int32_t *device_out) {
    const char *p = text + 4;
    long n = 0;
    if (!strncmp(text, "cuda", 4) && (!*p || !strcmp(p, STAGE))) {
        *device_out = 0;
        return GY_OK;
    }
    char *end = NULL;
    if (!strncmp(text, "cuda:", 5) && p[1] >= '0' && p[1] <= '9') n = strtol(p + 1, &end, 10);
    if (!end || (*end && strcmp(end, STAGE) != 0) || n > 1023)
        return gy_err_set(
            err, GY_E_ARG,
            "device: found '%.40s', expected cuda or cuda:N with N from 0 (or one of both with " STAGE ")", text);
    *device_out = (int32_t)n;
    return GY_OK;
}
