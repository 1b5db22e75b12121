/* Options to the engine's options, in one place for all commands that open or plan an engine. */
#ifndef GY_CLI_CLI_ENGINE_H
#define GY_CLI_CLI_ENGINE_H

#include "cli/cli_args.h"
#include "engine/engine.h"
#include "gyre.h"

/* Everything but max_len and max_loops, which the caller knows. Errors name the flag. */
gy_status gy_cli_engine_opts(const gy_args *a, gy_err *err, gy_engine_opts *o);
/* The library's options, workers included. The prefix cache is on unless it was switched off. */
gy_status gy_cli_gyre_options(const gy_args *a, gy_err *err, gyre_options *o);

/* What takes how much memory, in one line on a terminal; the log has it in any case (engine.c, level info). */
void gy_cli_tell_plan(const gy_engine_plan *p);

#endif
