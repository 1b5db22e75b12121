/* From prompts to requests: collect what the command line and the --input files ask for (no model needed), then prepare
 * them for a model: encode, fill in defaults, check everything that can be checked before the weights are loaded.
 */
#ifndef GY_CLI_CLI_REQUESTS_H
#define GY_CLI_CLI_REQUESTS_H

#include "cli/cli_args.h"
#include "cli/cli_model.h"
#include "cli/cli_rule.h"
#include "engine/engine.h"
#include "sample/stop.h"

typedef struct gy_job {
    const char *source; /* "--prompt", "FILE:3": for messages */
    int from_file;      /* messages then name fields, else flags */
    const char *text;   /* [text_len], NULL when ids were given */
    size_t text_len;
    gy_vec_i32 ids; /* given, or encoded by prepare */
    gy_req_opts opt;
    gy_request rq;       /* filled by prepare; callbacks are the caller's */
    const char *refused; /* a line of a file that can never fit: the sentence, and rq is not filled. Else NULL */
} gy_job;

typedef struct gy_jobs {
    GY_VEC(gy_job) job;         /* in the order of the prompts */
    gy_arena *arena;            /* borrowed */
    const gy_req_opts *req;     /* what the command line says, files read; NULL: gy_args's, which name none */
    gy_grammar_vocab *vocab;    /* NULL until a job has a grammar; outlives the engine */
    gy_grammar_cache *grammars; /* likewise */
    gy_trace trace;             /* the file read last: several prompts usually name one */
} gy_jobs;

/* Empty jobs are an error: there is no prompt. */
gy_status gy_jobs_collect(gy_jobs *j, const gy_args *a, const char *pos_prompt, gy_err *err);
/* A mistake ends it, with its line or flag. What is well-formed and can never fit (GY_E_LIMIT) ends it for flags; a
 * line of a file is marked as refused, so that it cannot stop the others. */
gy_status gy_jobs_prepare(gy_jobs *j, const gy_cli_model *m, gy_err *err);
/* Of all that the job's answer depends on, except the model, its dtype and the KV layout: `seed` stands for those.
 * Stays the same from one run of the program to the next. */
uint64_t gy_job_hash(const gy_job *job, uint64_t seed);
uint64_t gy_hash_bytes(uint64_t h, const void *bytes, size_t n); /* FNV-1a, 64 bit; 0 begins */
void gy_jobs_fini(gy_jobs *j);
gy_status gy_job_stop_create(const gy_job *job, gy_err *err, gy_stop **out); /* its stop strings */

/* The lines of one --input file; name is used in messages. */
gy_status gy_jobs_add_jsonl(gy_jobs *j, const gy_args *a, const char *text, size_t len, const char *name, gy_err *err);

/* cli_constraint.c: files that flags name become their text; what a line says of its output, before its other fields
 * are read; the grammar of a job, for its request; its part of gy_job_hash. */
gy_status gy_req_read_constraint(gy_arena *arena, gy_req_opts *o, gy_err *err);
gy_status gy_req_begin_line(gy_arena *arena, const gy_jv *obj, gy_req_opts *o, gy_err *err);
gy_status gy_job_set_grammar(gy_jobs *j, gy_job *job, const gy_cli_model *m, gy_err *err);
uint64_t gy_job_hash_constraint(uint64_t h, const gy_req_opts *o);

/* The whole of a file, or of standard input for "-". */
gy_status gy_cli_read_input(const char *path, gy_err *err, gy_str *out);

/* Over jobs that are not refused and not done (done may be NULL: [job.len], 1 = left out). At least 1. */
int32_t gy_jobs_max_len(const gy_jobs *j, const unsigned char *done);   /* longest prompt + output */
int32_t gy_jobs_max_loops(const gy_jobs *j, const unsigned char *done); /* deepest */

#endif
