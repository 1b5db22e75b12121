/* The driver's interface by name: versions that do not change. */
#include "pd_gpu_ipc.h"

#include "base/clock.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef struct handle_by_value { /* as the driver takes it */
    char bytes[64];
} handle_by_value;

static struct {
    int (*get_handle)(handle_by_value *out, uint64_t ptr);
    int (*open_handle)(uint64_t *ptr, handle_by_value h, unsigned flags);
    int (*close_handle)(uint64_t ptr);
    int (*stream_create)(void **s, unsigned flags);
    int (*stream_destroy)(void *s);
    int (*event_create)(void **e, unsigned flags);
    int (*event_destroy)(void *e);
    int (*event_record)(void *e, void *s);
    int (*event_query)(void *e);
    int (*copy)(uint64_t dst, uint64_t src, size_t bytes, void *s);
    int (*set_context)(void *ctx);
    int (*name)(int rc, const char **out);
} cu;

static const char *say(int rc, const char *what) {
    static char text[128];
    const char *name = NULL;
    if (!rc) return NULL;
    cu.name(rc, &name);
    snprintf(text, sizeof text, "%s: %s", what, name ? name : "?");
    return text;
}

static int find(void *lib, const char *name, void *out) {
    void *p = dlsym(lib, name);
    memcpy(out, &p, sizeof p);
    return p != NULL;
}

const char *ipc_load(void) {
    void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!lib) return "no libcuda.so.1";
    int all = find(lib, "cuIpcGetMemHandle", &cu.get_handle) & find(lib, "cuIpcOpenMemHandle_v2", &cu.open_handle) &
              find(lib, "cuIpcCloseMemHandle", &cu.close_handle) & find(lib, "cuStreamCreate", &cu.stream_create) &
              find(lib, "cuStreamDestroy_v2", &cu.stream_destroy) & find(lib, "cuEventCreate", &cu.event_create) &
              find(lib, "cuEventDestroy_v2", &cu.event_destroy) & find(lib, "cuEventRecord", &cu.event_record) &
              find(lib, "cuEventQuery", &cu.event_query) & find(lib, "cuMemcpyDtoDAsync_v2", &cu.copy) &
              find(lib, "cuCtxSetCurrent", &cu.set_context) & find(lib, "cuGetErrorName", &cu.name);
    return all ? NULL : "libcuda.so.1 lacks a function";
}

const char *ipc_unbind(void) {
    return say(cu.set_context(NULL), "unbind");
}

const char *ipc_export(void *mem, ipc_handle *out) {
    handle_by_value h;
    const char *why = say(cu.get_handle(&h, (uint64_t)(uintptr_t)mem), "export");
    memcpy(out, &h, sizeof h);
    return why;
}

const char *ipc_open(const ipc_handle *h, ipc_lane *out) {
    handle_by_value v;
    uint64_t at = 0;
    *out = (ipc_lane){0};
    memcpy(&v, h, sizeof v);
    const char *why = say(cu.open_handle(&at, v, 1), "open"); /* 1: peer access when it is needed */
    out->at = (void *)(uintptr_t)at;
    for (int i = 0; i < IPC_MAX_STREAM && !why; i++) {
        why = say(cu.stream_create(&out->stream[i], 1), "stream");        /* 1: not ordered with the default one */
        if (!why) why = say(cu.event_create(&out->event[i], 2), "event"); /* 2: no timing */
    }
    return why;
}

const char *ipc_close(ipc_lane *l) {
    for (int i = 0; i < IPC_MAX_STREAM; i++) {
        if (l->event[i]) cu.event_destroy(l->event[i]);
        if (l->stream[i]) cu.stream_destroy(l->stream[i]);
    }
    return say(cu.close_handle((uint64_t)(uintptr_t)l->at), "close");
}

static const char *wait_for(void *event) {
    enum { NOT_READY = 600 };
    int rc;
    while ((rc = cu.event_query(event)) == NOT_READY) {
    }
    return say(rc, "wait");
}

const char *ipc_copy(const ipc_lane *l, const void *src, size_t bytes, int n_stream, int64_t *post_ns,
                     int64_t *done_ns) {
    size_t each = (bytes / (size_t)n_stream + 4095) & ~(size_t)4095;
    int64_t t = gy_clock_ns();
    const char *why = NULL;
    int n = 0;
    for (size_t at = 0; at < bytes && !why; at += each, n++) {
        why = say(cu.copy((uint64_t)(uintptr_t)l->at + at, (uint64_t)(uintptr_t)src + at,
                          bytes - at < each ? bytes - at : each, l->stream[n]),
                  "copy");
        if (!why) why = say(cu.event_record(l->event[n], l->stream[n]), "record");
    }
    *post_ns = gy_clock_ns() - t;
    for (int i = 0; i < n && !why; i++) why = wait_for(l->event[i]);
    *done_ns = gy_clock_ns() - t;
    return why;
}
