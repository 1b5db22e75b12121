/* Shared by the readers of request bodies (oai_request.c and oai_read_*.c) and nobody else. */
#ifndef GY_SERVER_OAI_INT_H
#define GY_SERVER_OAI_INT_H

#include "server/oai_request.h"

typedef struct gy_oai_reader {
    gy_oai_request *r;
    const gy_oai_config *cfg;
    gy_oai_error *e;
    /* What the order of members must not decide: looked at when all were read. */
    int32_t max_tokens, max_completion_tokens; /* -1: absent */
    int32_t best_of;                           /* -1: absent */
    int32_t chat_logprobs, top_logprobs;       /* -1: absent */
    int32_t generation_prompt;                 /* -1: absent */
    int32_t initial_noise, latent_noise;       /* -1: absent */
    int32_t add_special, cache_prompt;         /* -1: absent */
    const gy_jv *prompt, *messages, *tools, *tool_choice, *stream_options, *tokens;
    const char *prompt_field; /* the name under which prompt came */
} gy_oai_reader;

typedef gy_status (*gy_oai_read_fn)(gy_oai_reader *p, const char *field, const gy_jv *v);

/* ---- oai_read.c: errors and single values ---- */

/* "FIELD: found WHAT, expected ..." with FIELD as param. */
gy_status gy_oai_expected(gy_oai_reader *p, const char *field, const gy_jv *found, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
gy_status gy_oai_refuse(gy_oai_reader *p, gy_oai_error_kind kind, const char *field, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
gy_status gy_oai_no_memory(gy_oai_reader *p);
gy_status gy_oai_read_bool(gy_oai_reader *p, const char *field, const gy_jv *v, int32_t *out);
gy_status gy_oai_read_int(gy_oai_reader *p, const char *field, const gy_jv *v, int64_t lo, int64_t hi, int64_t *out);
gy_status gy_oai_read_str(gy_oai_reader *p, const char *field, const gy_jv *v, size_t max_bytes, const char **out);
/* An array of integers 0..below-1 (below 0: any int32 from 0), copied into the arena. */
gy_status gy_oai_read_ids(gy_oai_reader *p, const char *field, const gy_jv *v, int32_t below, const int32_t **out,
                          int32_t *n_out);
/* The path of an inner field for messages, cut to fit. */
void gy_oai_at(char *to, size_t cap, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
int gy_oai_present(const gy_jv *v); /* neither absent nor null */

/* ---- oai_read_prompt.c ---- */

gy_status gy_oai_read_prompts(gy_oai_reader *p, const char *field, const gy_jv *v);
gy_status gy_oai_read_tokens(gy_oai_reader *p, const gy_jv *v); /* of /detokenize */

/* ---- oai_read_chat.c ---- */

gy_status gy_oai_read_messages(gy_oai_reader *p, const gy_jv *v);
gy_status gy_oai_read_tools(gy_oai_reader *p);
gy_status gy_oai_read_kwargs(gy_oai_reader *p, const char *field, const gy_jv *v);

/* ---- oai_read_rule.c: constraints, bias, stop, depth ---- */

gy_status gy_oai_read_response_format(gy_oai_reader *p, const char *field, const gy_jv *v);
gy_status gy_oai_read_structured(gy_oai_reader *p, const char *field, const gy_jv *v);
gy_status gy_oai_read_schema(gy_oai_reader *p, const char *field, const gy_jv *v);
gy_status gy_oai_read_regex(gy_oai_reader *p, const char *field, const gy_jv *v);
gy_status gy_oai_read_grammar(gy_oai_reader *p, const char *field, const gy_jv *v);
gy_status gy_oai_read_choices(gy_oai_reader *p, const char *field, const gy_jv *v);
gy_status gy_oai_read_logit_bias(gy_oai_reader *p, const char *field, const gy_jv *v);
gy_status gy_oai_read_stop(gy_oai_reader *p, const char *field, const gy_jv *v);
gy_status gy_oai_read_stop_ids(gy_oai_reader *p, const char *field, const gy_jv *v);
gy_status gy_oai_read_exit(gy_oai_reader *p, const char *field, const gy_jv *v);
gy_status gy_oai_read_trace(gy_oai_reader *p, const char *field, const gy_jv *v);

/* ---- oai_where.c ---- */

/* The member of the top object inside which byte `at` of the body lies; "" if none, or if its name is not plain. For
 * bodies that do not parse. */
void gy_oai_member_at(const char *body, size_t len, size_t at, char *name, size_t cap);
/* The byte that "line L, column C" of a parser's sentence means; len if there is none. */
size_t gy_oai_error_byte(const char *body, size_t len, const char *sentence);

#endif
