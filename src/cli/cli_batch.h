/* The file of `gyre run --output`: one JSON line for each choice, written as soon as a request is done, in whatever
 * order they end; and the way back in: what the file answers already is not computed again.
 *
 * Each line carries the index of its prompt and a hash of all that the answer depends on ("request"), so that a file
 * that belongs to something else is refused instead of mixed. The lines of one request are one write. What a crash can
 * leave is the beginning of such a write at the end of the file: that is cut off, and nothing else is ever removed.
 */
#ifndef GY_CLI_CLI_BATCH_H
#define GY_CLI_CLI_BATCH_H

#include "cli/cli_output.h"

typedef struct gy_batch {
    const char *path;
    int fd; /* -1: not open */
    const gy_jobs *jobs;
    uint64_t seed;       /* of the hashes: the model, its dtype, the KV layout */
    unsigned char *done; /* [jobs->job.len] 1: answered in the file; in the arena */
    size_t n_done, n_error;
    int64_t cut; /* bytes that were cut off at the end */
    gy_str line;
} gy_batch;

/* Opens or makes the file, locks it, reads what is there and marks it in done. b is zeroed with fd -1. */
gy_status gy_batch_open(gy_batch *b, const char *path, const gy_jobs *j, uint64_t seed, gy_err *err);
/* One request that is done. */
gy_status gy_batch_write(gy_batch *b, const gy_answer *a, gy_err *err);
/* To the disk, and closed. Accepts one that is not open. */
gy_status gy_batch_close(gy_batch *b, gy_err *err);

/* GY_E_ARG when path is one of the files that the prompts come from. */
gy_status gy_batch_check_path(const char *path, const gy_args *a, gy_err *err);
/* Of the model's shapes and a sample of its weights, its dtype, the KV layout and that KV is in int8. */
gy_status gy_batch_seed(const gy_cli_model *m, const gy_args *a, gy_err *err, uint64_t *out);

#endif
