/* tokenizer_config.json and special_tokens_map.json of a model folder, as far as a tokenizer needs them. Inside
 * src/text. Opened before the tokenizer's own file, applied after it, then closed. */
#ifndef GY_TEXT_TOK_CONFIG_H
#define GY_TEXT_TOK_CONFIG_H

#include "base/json.h"
#include "text/tok_int.h"

typedef struct gy_tok_config {
    gy_json *config, *map; /* NULL where the file does not exist */
} gy_tok_config;

gy_status gy_tok_config_open(const char *dir, gy_err *err, gy_tok_config *out);
void gy_tok_config_close(gy_tok_config *c);
int gy_tok_config_add_prefix_space(const gy_tok_config *c);
/* Puts added tokens into t->added and sets bos, eos, prefix and suffix. bos_by_default: what add_bos_token is when
 * tokenizer_config.json does not say. */
gy_status gy_tok_config_apply(const gy_tok_config *c, gy_tok *t, int bos_by_default, gy_err *err);

#endif
