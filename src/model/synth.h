/* Synthetic checkpoints: random weights in the published layout of each family (docs/models, constants and tensors),
 * for tests and benchmarks that need a model's size and not its skill. They talk nonsense.
 *
 * Every weight is a pure function of (seed, tensor name, element): the same bytes on every machine, with any number of
 * threads. Scales are such that activations stay near one through all layers and loops, and that Ouro's gate lets
 * tokens leave at different loops.
 */
#ifndef GY_MODEL_SYNTH_H
#define GY_MODEL_SYNTH_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/* Names that the functions below take, ended by NULL: ouro-1.4b, ouro-2.6b, nanbeige-3b, huginn, tiny-ouro, ... */
const char *const *gy_synth_shapes(void);

typedef struct gy_synth_info {
    const char *name; /* static */
    int32_t n_vocab;
    size_t n_tensor;
    uint64_t data_bytes; /* of all tensors; the file adds its header */
} gy_synth_info;
/* GY_E_ARG for an unknown name, with the list of known ones. */
gy_status gy_synth_get_info(const char *shape, gy_err *err, gy_synth_info *out);

/* Writes config.json and model.safetensors into out_dir, which is created (its parent must exist) or empty. Refuses
 * before writing when the disk has too little room. On failure what was written is removed. progress (may be NULL) is
 * called from this thread after each piece, with bytes. */
gy_status gy_synth_write(const char *shape, uint64_t seed, const char *out_dir,
                         void (*progress)(void *arg, uint64_t done, uint64_t total), void *arg, gy_err *err);

/* Writes tokenizer.json and tokenizer_config.json into out_dir: <|endoftext|> = 0, <|im_start|> = 1, <|im_end|> = 2,
 * then byte b = 3 + b, no merges: any text has tokens, any byte string can be decoded. n_vocab is the model's, at least
 * 259.
 */
gy_status gy_synth_write_tokenizer(const char *out_dir, int32_t n_vocab, gy_err *err);

#endif
