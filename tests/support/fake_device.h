/* A GPU that is made up, for whatever moves device memory (base/device.h). Guarded: what alloc gives cannot be read or
 * written by the CPU at all, so that whoever tries dies of SIGSEGV; only copy reaches it. Unguarded: plain pages, for
 * who must be both CPU and GPU (UCX, a CPU backend's kernels). when_done runs fn at once, or when told.
 */
#ifndef GY_TESTS_FAKE_DEVICE_H
#define GY_TESTS_FAKE_DEVICE_H

#include "base/device.h"

enum { FAKE_MAX_ALLOC = 64, FAKE_MAX_BELL = 256 };

typedef struct fake_bell {
    void (*fn)(void *user);
    void *user;
} fake_bell;

typedef struct fake_device {
    gy_device dev; /* what is handed out */
    int is_guarded, holds_bells;
    int spoils; /* of what it copies between devices, if that is more than a page, the last byte */
    _Atomic int n_bind, n_copy;
    int n_alloc;
    struct {
        char *shown, *real; /* the same pages; shown NULL: free */
        size_t bytes;
    } at[FAKE_MAX_ALLOC];
    fake_bell bells[FAKE_MAX_BELL]; /* [n_bell], while holds_bells */
    int n_bell;
    struct fake_device *next;
} fake_device;

void fake_device_open(fake_device *f, int is_guarded);
void fake_device_close(fake_device *f); /* all that is not freed is a failure of the test */
void fake_device_ring(fake_device *f);  /* the bells that were held, in order */

#endif
