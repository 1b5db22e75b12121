/* Guarded memory is one memfd mapped twice: without any right, and with all, which stays inside of here. */
#include "fake_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static fake_device *all; /* open ones: a GPU reaches its neighbours' memory. Opened and closed by one thread */

static _Noreturn void fail(const char *what) {
    fprintf(stderr, "fake device: %s\n", what);
    abort();
}

static gy_status bind_thread(void *arg, gy_err *err) {
    fake_device *f = arg;
    (void)err;
    f->n_bind++;
    return GY_OK;
}

static void *map(int fd, size_t bytes, int rights) {
    void *p = mmap(NULL, bytes, rights, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) fail("no memory");
    return p;
}

static void *take(void *arg, size_t bytes) {
    fake_device *f = arg;
    int i = 0, fd = memfd_create("gyre fake device", MFD_CLOEXEC);
    while (i < FAKE_MAX_ALLOC && f->at[i].shown) i++;
    if (i == FAKE_MAX_ALLOC || fd < 0 || ftruncate(fd, (off_t)bytes)) fail("no memory");
    f->at[i].bytes = bytes;
    f->at[i].real = map(fd, bytes, PROT_READ | PROT_WRITE);
    f->at[i].shown = f->is_guarded ? map(fd, bytes, PROT_NONE) : f->at[i].real;
    close(fd);
    f->n_alloc++;
    return f->at[i].shown;
}

static void give(void *arg, void *mem) {
    fake_device *f = arg;
    int i = 0;
    if (!mem) return;
    while (i < FAKE_MAX_ALLOC && f->at[i].shown != mem) i++;
    if (i == FAKE_MAX_ALLOC) fail("freed what was not allocated");
    munmap(f->at[i].real, f->at[i].bytes);
    if (f->is_guarded) munmap(f->at[i].shown, f->at[i].bytes);
    f->at[i].shown = NULL;
    f->n_alloc--;
}

/* Where the CPU may touch it: what lies in no allocation is the host's. */
static char *reach(const void *p) {
    const char *c = p;
    for (const fake_device *f = all; f; f = f->next)
        for (int i = 0; i < FAKE_MAX_ALLOC; i++)
            if (f->at[i].shown && c >= f->at[i].shown && c < f->at[i].shown + f->at[i].bytes)
                return f->at[i].real + (c - f->at[i].shown);
    return (char *)(uintptr_t)p;
}

static gy_status copy(void *arg, void *dst, const void *src, size_t bytes, gy_err *err) {
    fake_device *f = arg;
    (void)err;
    char *to = reach(dst);
    const char *from = reach(src);
    memmove(to, from, bytes);
    if (f->spoils && to != dst && from != src && bytes > 4096) to[bytes - 1]++;
    f->n_copy++;
    return GY_OK;
}

static gy_status when_done(void *arg, void (*fn)(void *user), void *user, gy_err *err) {
    fake_device *f = arg;
    (void)err;
    if (!f->holds_bells) {
        fn(user);
        return GY_OK;
    }
    if (f->n_bell == FAKE_MAX_BELL) fail("too many bells");
    f->bells[f->n_bell++] = (fake_bell){fn, user};
    return GY_OK;
}

void fake_device_ring(fake_device *f) {
    int n = f->n_bell;
    f->n_bell = 0;
    for (int i = 0; i < n; i++) f->bells[i].fn(f->bells[i].user);
}

void fake_device_open(fake_device *f, int is_guarded) {
    memset(f, 0, sizeof *f);
    f->is_guarded = is_guarded;
    f->dev = (gy_device){.kind = GY_DEVICE_FAKE,
                         .arg = f,
                         .bind = bind_thread,
                         .alloc = take,
                         .free = give,
                         .copy = copy,
                         .when_done = when_done};
    f->next = all;
    all = f;
}

void fake_device_close(fake_device *f) {
    fake_device **at = &all;
    if (f->n_alloc) fail("memory was not freed");
    while (*at && *at != f) at = &(*at)->next;
    if (*at) *at = f->next;
}
