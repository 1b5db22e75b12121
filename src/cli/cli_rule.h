/* Exit options to an exit rule, with the defaults that depend on the rule and the model; and recorded depths. */
#ifndef GY_CLI_CLI_RULE_H
#define GY_CLI_CLI_RULE_H

#include "cli/cli_args.h"
#include "engine/exit.h"
#include "model/desc.h"

/* *trace_file_out: FILE of "trace:FILE", else NULL; borrowed from o. */
gy_status gy_rule_resolve(const gy_req_opts *o, const gy_model_desc *d, gy_err *err, gy_exit_rule *out,
                          const char **trace_file_out);

/* Loops per output, one list per prompt: a JSON list of lists, one list, or lines that hold a list or an object with
 * "loops" (the output of gyre run --json). Memory of the arena. */
typedef struct gy_trace {
    const char *path;
    size_t n;
    struct gy_trace_list {
        const int32_t *loops;
        int32_t n;
    } * list;
} gy_trace;

gy_status gy_trace_read(gy_arena *arena, const char *path, gy_err *err, gy_trace *out);
gy_status gy_trace_parse(gy_arena *arena, const char *text, size_t len, const char *path, gy_err *err, gy_trace *out);

#endif
