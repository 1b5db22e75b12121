/* Writer of NumPy .npy files, format 1.0, C order, little endian float32 (numpy.lib.format). */
#ifndef GY_BASE_NPY_H
#define GY_BASE_NPY_H

#include "base/status.h"

#include <stdint.h>

/* Writes to path + ".tmp" and renames, so that a reader never sees half a file. n_dim <= 4. */
gy_status gy_npy_write_f32(const char *path, const float *data, const int64_t *shape, int n_dim, gy_err *err);

#endif
