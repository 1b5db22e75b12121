/* Finding libucp. Process lifetime: what is loaded stays loaded. */
#include "pd/ucx_api.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#ifdef GY_UCX_LIBRARY
enum { HAS_ROOT = 1 };
#else
#define GY_UCX_LIBRARY "libucp.so.0"
enum { HAS_ROOT = 0 };
#endif

static gy_ucx_api api;
static char path[PATH_MAX];
static char failure[512]; /* why it cannot be used; empty: it can */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void *symbol(void *lib, const char *name) {
    void *p = dlsym(lib, name);
    if (!p && !failure[0]) snprintf(failure, sizeof failure, "%.300s has no %s", path, name);
    return p;
}

/* In libucx beside file, or in ../lib from there. */
static int is_near(const char *file) {
    static const char *const tails[] = {"", "../lib/"};
    const char *slash = strrchr(file, '/');
    for (int i = 0; slash && i < 2; i++) {
        int n = snprintf(path, sizeof path, "%.*s/%slibucx/lib/libucp.so.0", (int)(slash - file), file, tails[i]);
        if (n > 0 && (size_t)n < sizeof path && !access(path, F_OK)) return 1;
    }
    return 0;
}

static void choose(void) {
    char exe[PATH_MAX];
    Dl_info info;
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    exe[n > 0 ? n : 0] = '\0';
    if (!HAS_ROOT && (is_near(exe) || (dladdr(&api, &info) && info.dli_fname && is_near(info.dli_fname)))) return;
    snprintf(path, sizeof path, "%s", GY_UCX_LIBRARY);
}

static void learn_path(void *lib) {
    Dl_info info;
    const void *p = dlsym(lib, "ucp_init_version");
    if (p && dladdr(p, &info) && info.dli_fname) snprintf(path, sizeof path, "%s", info.dli_fname);
}

static void load(void) {
    choose();
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!lib) {
        const char *why = dlerror();
        snprintf(failure, sizeof failure, "%s", why ? why : GY_UCX_LIBRARY " cannot be loaded");
        return;
    }
    learn_path(lib);
    /* POSIX lets an object pointer of dlsym become a function pointer, by way of its bytes. */
#define GY_UCX_FIND(f)                                                                                                 \
    {                                                                                                                  \
        void *p = symbol(lib, #f);                                                                                     \
        memcpy(&api.f, &p, sizeof p);                                                                                  \
    }
    GY_UCX_CALLS(GY_UCX_FIND)
}

gy_status gy_ucx_load(gy_err *err) {
    pthread_once(&once, load);
    if (!failure[0]) return GY_OK;
    return gy_err_set(err, GY_E_IO,
                      "transfer: UCX cannot be used (%s); install libucx0, or run without --prefill and --decode",
                      failure);
}

const gy_ucx_api *gy_ucx(void) {
    return &api;
}

const char *gy_ucx_path(void) {
    return path;
}
