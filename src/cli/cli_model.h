/* A model folder as the commands use it: description and tokenizer first (cheap: enough to check what was asked for),
 * then the backend and the weights. Owns all of it.
 */
#ifndef GY_CLI_CLI_MODEL_H
#define GY_CLI_CLI_MODEL_H

#include "cli/cli_args.h"
#include "model/model.h"
#include "text/tokenizer.h"

enum { GY_CLI_MAX_EOS = 32 };

typedef struct gy_cli_model {
    const char *dir; /* borrowed */
    gy_model_desc d;
    gy_tok *tok; /* NULL when the folder holds no tokenizer */
    gy_tok_ctx *ctx;
    int32_t eos[GY_CLI_MAX_EOS]; /* config.json's, generation_config.json's and the tokenizer's, each once */
    int32_t n_eos;
    gy_dtype act;
    char act_why[160]; /* "bf16: 100 % of the weight bytes are BF16" */
    gy_backend *be;
    gy_model *model;
} gy_cli_model;

/* Description, dtype, and with want_tok the tokenizer (if there is one) and the ids that end a text. */
gy_status gy_cli_model_open(gy_cli_model *m, const char *dir, const gy_args *a, int want_tok, gy_err *err);
/* Backend and weights, with progress on a terminal. */
gy_status gy_cli_model_load(gy_cli_model *m, const gy_args *a, const gy_ops_limits *limits, gy_err *err);
void gy_cli_model_close(gy_cli_model *m); /* accepts a zeroed one */

int gy_cli_is_eos(const gy_cli_model *m, int32_t id);
/* The model that comes with gyre, found from where the program lies; new memory in the arena. NULL with err set. */
const char *gy_cli_find_demo(gy_arena *arena, gy_err *err);
/* One line on stderr if the folder holds a NOTE.txt: the mark of models/demo while its weights are random. */
void gy_cli_note_synthetic(const char *dir);
/* --device and --cpu-mask: what this build cannot do is refused, the mask takes effect. */
gy_status gy_cli_check_device(const gy_args *a, gy_err *err);
gy_status gy_cli_choose_dtype(const char *dir, int dtype_opt, gy_err *err, gy_dtype *out, char *why, size_t why_cap);
/* Token ids separated by commas or blanks, appended. Errors name `what`. */
gy_status gy_cli_parse_ids(const char *text, size_t len, const char *what, gy_err *err, gy_vec_i32 *ids);
gy_status gy_cli_check_ids(const int32_t *ids, size_t n, int32_t n_vocab, const char *what, gy_err *err);

#endif
