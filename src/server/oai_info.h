/* Bodies of the small routes. Pure: values in, one line of JSON appended. */
#ifndef GY_SERVER_OAI_INFO_H
#define GY_SERVER_OAI_INFO_H

#include "base/str.h"

#include <stddef.h>
#include <stdint.h>

typedef struct gy_oai_model_facts {
    const char *family;
    int32_t max_len;           /* the engine's limit, not the file's */
    int32_t n_loop, max_loops; /* trained depth; deepest that a request may ask for */
    int has_gate, has_tokenizer, has_template;
} gy_oai_model_facts;

/* GET /v1/models. The first name is the root of the others. */
void gy_oai_models_body(const char *const *models, int32_t n_model, int64_t created_s, const gy_oai_model_facts *f,
                        gy_str *out);
/* One of them, for GET /v1/models/NAME. */
void gy_oai_model_body(const char *model, const char *root, int64_t created_s, const gy_oai_model_facts *f,
                       gy_str *out);
void gy_oai_version_body(const char *version, gy_str *out);
/* GET /stats: exactly these two. */
void gy_oai_stats_body(int64_t requests, int64_t used_blocks, gy_str *out);
/* status: "ok", or why not: "loading", "draining", "dead". The HTTP status is the error table's. */
void gy_oai_health_body(const char *status, gy_str *out);
/* POST /tokenize. piece may be NULL: no token_strs. */
void gy_oai_tokenize_body(const int32_t *ids, size_t n, int32_t max_model_len,
                          const char *(*piece)(void *user, int32_t id, size_t *n_out), void *user, gy_str *out);
void gy_oai_detokenize_body(const char *text, size_t n, gy_str *out);
void gy_oai_template_body(const char *text, size_t n, gy_str *out);

#endif
