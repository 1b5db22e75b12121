/* What `gyre run` keeps of one request and how it is printed: a JSON line, a block of text, or a stream.
 * One per request, process lifetime; filled by the engine's callbacks.
 */
#ifndef GY_CLI_CLI_OUTPUT_H
#define GY_CLI_CLI_OUTPUT_H

#include "cli/cli_requests.h"
#include "cli/cli_stop.h"

typedef struct gy_output {
    const gy_job *job;
    const gy_cli_model *m;
    gy_detok *detok; /* NULL without a tokenizer */
    gy_stop stop;
    gy_str text;    /* certain, stop strings cut off */
    size_t printed; /* of text, or of the ids: what a stream has written */
    gy_vec_i32 ids, loops;
    GY_VEC(gy_sampled) logprobs; /* only when asked for */
    int done;
    const char *reason; /* static: gy_finish_name */
    gy_err err;         /* reason "error" */
    int32_t n_prompt;
    int64_t submit_ns, first_token_ns, finish_ns;
} gy_output;

gy_status gy_output_init(gy_output *o, const gy_job *job, const gy_cli_model *m, gy_err *err);
void gy_output_fini(gy_output *o);

/* One token: keeps it, extends the text. 1 when a stop string was found, -1 when it could not be kept (err is set). */
int gy_output_add(gy_output *o, int32_t id, int32_t loops, const gy_sampled *sampled);
/* The end: the rest of the text, reason and times. */
void gy_output_end(gy_output *o, const gy_finish_event *ev);

void gy_output_put_json(const gy_output *o, size_t index, gy_str *out);  /* one line */
void gy_output_put_block(const gy_output *o, size_t index, gy_str *out); /* header, text or ids */
void gy_output_put_new(gy_output *o, gy_str *out);                       /* what a stream has not written yet */

#endif
