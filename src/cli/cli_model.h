/* A model folder as the commands use it: the API's, opened and loaded as the options say. And what else several
 * commands need before they run: the device, the model that comes with gyre, token ids on the command line.
 */
#ifndef GY_CLI_CLI_MODEL_H
#define GY_CLI_CLI_MODEL_H

#include "api/api_model.h"
#include "cli/cli_args.h"

typedef gy_api_model gy_cli_model;

/* Description, dtype, and with want_tok the tokenizer (if there is one) and the ids that end a text. */
gy_status gy_cli_model_open(gy_cli_model *m, const char *dir, const gy_args *a, int want_tok, gy_err *err);
/* Backend and weights, with progress on a terminal. e: gy_api_load_opts.engine, may be NULL. */
gy_status gy_cli_model_load(gy_cli_model *m, const gy_args *a, const gy_ops_limits *limits, const gy_engine_opts *e,
                            gy_err *err);
void gy_cli_model_close(gy_cli_model *m); /* accepts a zeroed one */

/* The model that comes with gyre, found from where the program lies; new memory in the arena. NULL with err set. */
const char *gy_cli_find_shipped(gy_arena *arena, gy_err *err);
/* One line on stderr if the folder holds a NOTE.txt: the mark of models/demo, whose weights are random. */
void gy_cli_note_synthetic(const char *dir);
/* --device and --cpu-mask: what cannot be is refused, the mask takes effect. That the GPU is there is found out when
 * the backend is made. */
gy_status gy_cli_check_device(const gy_args *a, gy_err *err);
/* What api_model and the API call the backend: "auto", "cpu", "ref", or the device where that is a GPU. */
const char *gy_cli_backend(const gy_args *a);
/* gyre_options.pack_cache: auto gets the user's folder of caches. Asks XDG_CACHE_HOME and HOME. */
const char *gy_cli_pack_cache(const gy_args *a);
const char *gy_cli_pin(const gy_args *a); /* gyre_options.pin */
/* What model.h calls the form of the weights. */
const char *gy_cli_weights(const gy_args *a);
/* Token ids separated by commas or blanks, appended. Errors name `what`. */
gy_status gy_cli_parse_ids(const char *text, size_t len, const char *what, gy_err *err, gy_vec_i32 *ids);
gy_status gy_cli_check_ids(const int32_t *ids, size_t n, int32_t n_vocab, const char *what, gy_err *err);

#endif
