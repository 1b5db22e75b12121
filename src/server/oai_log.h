/* One line of the access log, as JSON or logfmt. A pure function: who writes it, and when the file is reopened, is not
 * decided here. What a client sent is escaped; a line never contains a line end but its last byte.
 */
#ifndef GY_SERVER_OAI_LOG_H
#define GY_SERVER_OAI_LOG_H

#include "base/str.h"

#include <stddef.h>
#include <stdint.h>

typedef enum gy_oai_log_format { GY_OAI_LOG_LOGFMT, GY_OAI_LOG_JSON } gy_oai_log_format;

typedef struct gy_oai_access {
    int64_t wall_ns;                      /* Unix time of the request's first byte */
    const char *remote, *method, *target; /* target as sent, [n_target]; cut at 512 bytes */
    size_t n_target;
    int status; /* 499: the client left before the answer was complete */
    int64_t duration_ns;
    size_t bytes_in, bytes_out;
    const char *request_id, *user_agent; /* NULL: left out, here and below */
    const char *model, *finish;          /* "stop", ... */
    const char *error;                   /* code or sentence */
    int32_t has_tokens;                  /* 1: the following count */
    int64_t prompt_tokens, cached_tokens, output_tokens, loop_sum;
    int64_t ttft_ns; /* 0: no token came */
    /* Workers: times that its last prompt was begun, 0: none; prefill -1: where it was decoded; computing the prompt,
     * and from its end until D went on. */
    int32_t n_try, prefill, decode;
    int64_t prefill_ns, handoff_ns;
} gy_oai_access;

void gy_oai_access_line(const gy_oai_access *a, gy_oai_log_format f, gy_str *out); /* appends, LF included */

#endif
