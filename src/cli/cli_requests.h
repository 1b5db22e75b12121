/* From prompts to requests: collect what the command line and the --input files ask for (no model needed), then prepare
 * them for a model: encode, fill in defaults, check everything that can be checked before the weights are loaded.
 */
#ifndef GY_CLI_CLI_REQUESTS_H
#define GY_CLI_CLI_REQUESTS_H

#include "cli/cli_args.h"
#include "cli/cli_model.h"
#include "cli/cli_rule.h"
#include "engine/engine.h"

typedef struct gy_job {
    const char *source; /* "--prompt", "FILE:3": for messages */
    int from_file;      /* messages then name fields, else flags */
    const char *text;   /* [text_len], NULL when ids were given */
    size_t text_len;
    gy_vec_i32 ids; /* given, or encoded by prepare */
    gy_req_opts opt;
    gy_request rq; /* filled by prepare; callbacks are the caller's */
} gy_job;

typedef struct gy_jobs {
    GY_VEC(gy_job) job; /* in the order of the prompts */
    gy_arena *arena;    /* borrowed */
    gy_trace trace;     /* the file read last: several prompts usually name one */
} gy_jobs;

/* Empty jobs are an error: there is no prompt. */
gy_status gy_jobs_collect(gy_jobs *j, const gy_args *a, const char *pos_prompt, gy_err *err);
gy_status gy_jobs_prepare(gy_jobs *j, const gy_cli_model *m, gy_err *err);
void gy_jobs_fini(gy_jobs *j);

/* The lines of one --input file; name is used in messages. */
gy_status gy_jobs_add_jsonl(gy_jobs *j, const gy_args *a, const char *text, size_t len, const char *name, gy_err *err);

/* The whole of a file, or of standard input for "-". */
gy_status gy_cli_read_input(const char *path, gy_err *err, gy_str *out);

int32_t gy_jobs_max_len(const gy_jobs *j);   /* longest prompt + output */
int32_t gy_jobs_max_loops(const gy_jobs *j); /* deepest */

#endif
