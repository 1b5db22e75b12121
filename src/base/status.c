/* Status names and groups, the error sentence, and the end of the process on a broken invariant.
 * Deliberately not here: logging of errors (whoever detects one decides) and translation to HTTP codes or exit codes.
 */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

gy_status_group gy_status_get_group(gy_status s) {
    if (s >= 0) return GY_GROUP_NONE;
    if (s > -32) return GY_GROUP_REQUEST;
    if (s > -64) return GY_GROUP_PEER;
    return GY_GROUP_ENGINE;
}

const char *gy_status_name(gy_status s) {
    switch (s) {
    case GY_OK:
        return "ok";
    case GY_AGAIN:
        return "again";
    case GY_DONE:
        return "done";
    case GY_E_ARG:
        return "bad_argument";
    case GY_E_LIMIT:
        return "limit_exceeded";
    case GY_E_CANCELLED:
        return "cancelled";
    case GY_E_NUMERIC:
        return "numeric_error";
    case GY_E_UNSUPPORTED:
        return "unsupported";
    case GY_E_PEER:
        return "peer_lost";
    case GY_E_TIMEOUT:
        return "timeout";
    case GY_E_NOMEM:
        return "out_of_memory";
    case GY_E_IO:
        return "io_error";
    case GY_E_FORMAT:
        return "bad_format";
    case GY_E_DEVICE:
        return "device_error";
    case GY_E_BUG:
        return "internal_error";
    }
    return "unknown_status";
}

/* Formats aside first: an argument may point into err->msg. */
gy_status gy_err_set(gy_err *err, gy_status s, const char *fmt, ...) {
    if (!err) return s;
    char text[sizeof err->msg];
    va_list ap;
    va_start(ap, fmt);
    if (vsnprintf(text, sizeof text, fmt, ap) < 0) text[0] = '\0';
    va_end(ap);
    memcpy(err->msg, text, strlen(text) + 1);
    err->status = s;
    return s;
}

gy_status gy_err_prefix(gy_err *err, const char *fmt, ...) {
    if (!err) return GY_E_BUG;
    char prefix[sizeof err->msg], text[2 * sizeof err->msg + 2];
    va_list ap;
    va_start(ap, fmt);
    if (vsnprintf(prefix, sizeof prefix, fmt, ap) < 0) prefix[0] = '\0';
    va_end(ap);
    snprintf(text, sizeof text, "%s: %s", prefix, err->msg);
    text[sizeof err->msg - 1] = '\0';
    memcpy(err->msg, text, strlen(text) + 1);
    return err->status;
}

void gy_check_failed(const char *file, int line, const char *what) {
    fprintf(stderr, "%s:%d: broken invariant: %s\n", file, line, what);
    abort();
}
