/* What one event of a streamed completion says, as far as a benchmark asks. Pure. */
#ifndef GY_CLI_CLI_BENCH_SERVE_EVENT_H
#define GY_CLI_CLI_BENCH_SERVE_EVENT_H

#include "base/str.h"

#include <stdint.h>

typedef struct gy_bserve_event {
    int has_choice;     /* "choices" is not empty */
    int is_token;       /* it brings output: text, reasoning, a tool call; or it has no text, but is neither the opening
                         * event of a chat (with its role) nor the closing one (with a finish_reason) */
    int32_t n_loop_tok; /* tokens whose "loops" it tells, and their sum */
    int64_t loops;
    int64_t n_prompt, n_out, n_cached; /* of "usage"; -1: not told */
} gy_bserve_event;

/* 0, or -1 when it is no JSON object. The text is appended to `text` unless that is NULL. */
int gy_bserve_event_read(const char *data, size_t len, gy_str *text, gy_bserve_event *out);

#endif
