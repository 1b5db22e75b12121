/* Finding libucp. Process lifetime: what is loaded stays loaded. */
#include "pd/ucx_api.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#ifndef GY_UCX_LIBRARY
#define GY_UCX_LIBRARY "libucp.so.0"
#endif

static gy_ucx_api api;
static char failure[512]; /* why it cannot be used; empty: it can */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void *symbol(void *lib, const char *name) {
    void *p = dlsym(lib, name);
    if (!p && !failure[0]) snprintf(failure, sizeof failure, GY_UCX_LIBRARY " has no %s", name);
    return p;
}

static void load(void) {
    void *lib = dlopen(GY_UCX_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!lib) {
        const char *why = dlerror();
        snprintf(failure, sizeof failure, "%s", why ? why : GY_UCX_LIBRARY " cannot be loaded");
        return;
    }
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
