/* A loaded model: description and weights on a backend. The checkpoint stays mapped and weights are used where they
 * lie, unless the activation dtype is BF16 and the file's is not (converted once), or the backend has memory of its
 * own. Small vectors (norms, biases, gate) are converted to the activation dtype. Model lifetime; read-only after load.
 */
#ifndef GY_MODEL_MODEL_H
#define GY_MODEL_MODEL_H

#include "base/status.h"
#include "model/desc.h"
#include "model/pack_cache.h"
#include "tensor/safetensors.h"

/* What weight matrices are held in, whatever the file has. FP8: with a scale for each row; INT8 and INT4: with one for
 * each row and group, for integer products; INT8_CHANNEL: with one for each row, for such (tensor/quant.h). All
 * matrices but the embedding and, unless asked for, the head; norms, biases and the gate stay as they are. */
typedef enum gy_weight_form {
    GY_WEIGHTS_AS_FILE,
    GY_WEIGHTS_BF16,
    GY_WEIGHTS_FP8, /* from here on: quantised */
    GY_WEIGHTS_INT8,
    GY_WEIGHTS_INT4,
    GY_WEIGHTS_INT8_CHANNEL
} gy_weight_form;
const char *gy_weight_form_name(gy_weight_form f); /* "auto", "bf16", "fp8", "int8", "int4", "int8-channel" */
int gy_weight_form_parse(const char *name, gy_weight_form *out); /* -1: none of these */

/* Whether products on a host read weights from copies in the order in which they are streamed (faster, same bits), or
 * where the checkpoint is mapped. AUTO: copies where they take at most half of the memory that is free. */
typedef enum gy_pack { GY_PACK_AUTO, GY_PACK_ON, GY_PACK_OFF } gy_pack;
const char *gy_pack_name(gy_pack p);               /* "auto", "on", "off" */
int gy_pack_parse(const char *name, gy_pack *out); /* -1: none of these */

typedef struct gy_layer {
    gy_weight qkv;     /* [(n_head + 2 n_head_kv) head_dim, n_embd] */
    gy_weight o;       /* [n_embd, n_head head_dim] */
    gy_weight gate_up; /* [2 n_ff, n_embd] */
    gy_weight down;    /* [n_embd, n_ff] */
    void *norm[4];     /* [n_embd] act; NULL where the family has none */
    void *q_bias;      /* [n_head head_dim] act or NULL */
    void *k_bias;      /* [n_head_kv head_dim] act or NULL */
} gy_layer;

typedef struct gy_model {
    gy_model_desc d;
    gy_backend *be; /* borrowed */
    gy_weight embed, head, adapter;
    void *final_norm;  /* [n_embd] act */
    void *gate_w;      /* [n_embd] act or NULL */
    void *gate_b;      /* [1] act or NULL */
    float *inv_freq;   /* [head_dim / 2] */
    float *rope_table; /* [max_pos, head_dim / 2, 2] or NULL */
    gy_layer *layer[GY_STAGES];
    size_t weight_bytes;    /* of all tensors in the checkpoint */
    size_t converted_bytes; /* copies made because act differs from the file, or the backend has memory of its own */
    size_t mapped_bytes;    /* of tensors, and forms of a cache, that are used where they lie */
    size_t packed_bytes;    /* of forms that the backend made for products (gy_ops.prepare), or took from a cache */
    size_t own_bytes;       /* backend memory that the model holds: both, and the small vectors */
    gy_weight_form form;
    struct gy_model_own *own;
} gy_model;

typedef struct gy_model_load_opts {
    gy_backend *be; /* borrowed by the model; its act decides the activation dtype */
    gy_weight_form form;
    int quant_head; /* quantised: the head too. A tied one is then a copy beside the embedding */
    gy_pack pack;
    gy_pack_where cache; /* where what is made of the weights is kept */
    /* May be NULL. done rises to total, which it reaches on success. */
    void (*progress)(void *arg, size_t done_bytes, size_t total_bytes);
    void *progress_arg;
} gy_model_load_opts;

/* Reads only config.json: enough for inspect and for sizing. */
gy_status gy_model_read_desc(const char *dir, gy_err *err, gy_model_desc *out);
/* The same from the bytes of a config.json (tests, fuzzer). */
gy_status gy_model_parse_desc(const char *json, size_t len, gy_err *err, gy_model_desc *out);
gy_status gy_model_load(const char *dir, const gy_model_load_opts *o, gy_err *err, gy_model **out);
/* What loading will take of a backend that has memory of its own, from the headers of the files; a little more where a
 * file holds tensors that are only looked at. */
gy_status gy_model_device_bytes(const char *dir, gy_dtype act, gy_weight_form form, int quant_head, gy_err *err,
                                size_t *out);
void gy_model_free(gy_model *m); /* accepts NULL; before its backend is destroyed */

#endif
