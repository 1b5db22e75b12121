/* Flow control's three numbers; they are shown by the command line and decide nothing but how much is under way. */
#include "pd/xfer.h"

#include <math.h>

void gy_xfer_limits_default(gy_xfer_limits *l) {
    *l = (gy_xfer_limits){.chunk_bytes = (size_t)256 << 20, .inflight_bytes = (size_t)2 << 30, .max_desc = 256};
}

gy_status gy_xfer_limits_check(const gy_xfer_limits *l, gy_err *err) {
    if (l->chunk_bytes < 1) return gy_err_set(err, GY_E_ARG, "transfer chunk: found 0 bytes, expected 1 or more");
    if (l->inflight_bytes < l->chunk_bytes)
        return gy_err_set(err, GY_E_ARG, "transfer in flight: found %zu bytes, expected at least one chunk of %zu",
                          l->inflight_bytes, l->chunk_bytes);
    if (l->max_desc < 1)
        return gy_err_set(err, GY_E_ARG, "transfer descriptors: found %d, expected 1 or more", l->max_desc);
    return GY_OK;
}

double gy_xfer_least_gbs(double share) {
    return 400 * (isnan(share) ? 0.25 : share);
}
