/* From a body to a gy_oai_request: the table of fields, then what depends on several of them.
 *
 * The table is the list of all members that we know and where they are allowed; everything else is "unknown": ignored,
 * counted, its name handed to the server's log. Order: members are read as they come, cross checks run afterwards, so
 * that the order of members never decides what a body means.
 */
#include "server/oai_request.h"

#include "server/oai_int.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    C = GY_OAI_COMPLETION,
    H = GY_OAI_CHAT,
    T = GY_OAI_TOKENIZE,
    D = GY_OAI_DETOKENIZE,
    A = GY_OAI_TEMPLATE,
    S = C | H,
    M = H | T | A,
    ALL = C | H | T | D | A,
    MAX_LOGPROBS = 20,
    MAX_NAME = 256,
    MAX_SALT = 1024 /* the engine's */
};

void gy_oai_config_default(gy_oai_config *c) {
    *c = (gy_oai_config){.has_tokenizer = 1,
                         .has_gate = 1,
                         .max_n = 128,
                         .max_prompts = 256,
                         .max_choices = 1024,
                         .max_stop = 4,
                         .max_depth = 64};
    gyre_request_default(&c->run, sizeof c->run);
    c->run.temperature = 1.0f;
}

/* ---- readers of fields with a rule of their own ----------------------------------------------------------------- */

#define KEEP(name)                                                                                                     \
    static gy_status keep_##name(gy_oai_reader *p, const char *field, const gy_jv *v) {                                \
        (void)field;                                                                                                   \
        p->name = v;                                                                                                   \
        return GY_OK;                                                                                                  \
    }
KEEP(messages)
KEEP(tools)
KEEP(tool_choice)
KEEP(stream_options)
KEEP(tokens)

/* Under either of its names, not under both: then the order of members would decide. */
static gy_status keep_prompt(gy_oai_reader *p, const char *field, const gy_jv *v) {
    if (p->prompt)
        return gy_oai_refuse(p, GY_OAI_E_BAD_REQUEST, field, "found beside %s, expected one of them", p->prompt_field);
    p->prompt = v;
    p->prompt_field = field;
    return GY_OK;
}

static gy_status read_model(gy_oai_reader *p, const char *field, const gy_jv *v) {
    const char *name;
    GY_TRY(gy_oai_read_str(p, field, v, MAX_NAME, &name));
    p->r->model = name;
    for (int32_t i = 0; i < p->cfg->n_model; i++)
        if (!strcmp(name, p->cfg->models[i])) return GY_OK;
    if (!p->cfg->n_model) return GY_OK;
    char what[64];
    snprintf(what, sizeof what, "%.48s", name);
    what[strlen(what) - (size_t)gy_utf8_incomplete_tail(what, strlen(what))] = '\0';
    return gy_oai_refuse(p, GY_OAI_E_MODEL, field, "the model '%s' is not served here, '%.128s' is", what,
                         p->cfg->models[0]);
}

static gy_status read_n(gy_oai_reader *p, const char *field, const gy_jv *v) {
    int64_t x;
    GY_TRY(gy_oai_read_int(p, field, v, 1, p->cfg->max_n, &x));
    p->r->base.n = (int32_t)x;
    return GY_OK;
}

static gy_status read_best_of(gy_oai_reader *p, const char *field, const gy_jv *v) {
    int64_t x;
    GY_TRY(gy_oai_read_int(p, field, v, 1, INT32_MAX, &x));
    p->best_of = (int32_t)x;
    return GY_OK;
}

static gy_status read_max_tokens(gy_oai_reader *p, const char *field, const gy_jv *v) {
    int64_t x;
    GY_TRY(gy_oai_read_int(p, field, v, 0, INT32_MAX, &x));
    p->max_tokens = (int32_t)x;
    return GY_OK;
}

static gy_status read_max_completion(gy_oai_reader *p, const char *field, const gy_jv *v) {
    int64_t x;
    GY_TRY(gy_oai_read_int(p, field, v, 1, INT32_MAX, &x));
    p->max_completion_tokens = (int32_t)x;
    return GY_OK;
}

static gy_status read_top_k(gy_oai_reader *p, const char *field, const gy_jv *v) {
    int64_t x;
    GY_TRY(gy_oai_read_int(p, field, v, -1, INT32_MAX, &x));
    p->r->base.top_k = x > 0 ? (int32_t)x : 0;
    return GY_OK;
}

/* -1 asks for a drawn one, as it does elsewhere; other negative numbers are seeds like any other. */
static gy_status read_seed(gy_oai_reader *p, const char *field, const gy_jv *v) {
    int64_t x;
    GY_TRY(gy_oai_read_int(p, field, v, INT64_MIN, INT64_MAX, &x));
    p->r->base.has_seed = x != -1;
    p->r->base.seed = x == -1 ? 0 : (uint64_t)x;
    return GY_OK;
}

static gy_status read_latent_seed(gy_oai_reader *p, const char *field, const gy_jv *v) {
    int64_t x;
    GY_TRY(gy_oai_read_int(p, field, v, 0, INT64_MAX, &x));
    p->r->base.latent_seed = (uint64_t)x;
    return GY_OK;
}

static gy_status read_initial_state(gy_oai_reader *p, const char *field, const gy_jv *v) {
    p->initial_noise = gy_jv_is_str(v, "noise");
    return p->initial_noise || gy_jv_is_str(v, "zero") ? GY_OK : gy_oai_expected(p, field, v, "zero or noise");
}

static gy_status read_loops(gy_oai_reader *p, const char *field, const gy_jv *v) {
    int64_t x;
    GY_TRY(gy_oai_read_int(p, field, v, 1, p->cfg->max_loops ? p->cfg->max_loops : INT32_MAX, &x));
    *(strcmp(field, "min_loops") ? &p->r->base.max_loops : &p->r->base.min_loops) = (int32_t)x;
    return GY_OK;
}

static gy_status read_gates(gy_oai_reader *p, const char *field, const gy_jv *v) {
    GY_TRY(gy_oai_read_bool(p, field, v, &p->r->base.want_gates));
    if (p->r->base.want_gates && !p->cfg->has_gate)
        return gy_oai_refuse(p, GY_OAI_E_UNSUPPORTED, field, "found true, but the model has no exit gate");
    return GY_OK;
}

static gy_status read_salt(gy_oai_reader *p, const char *field, const gy_jv *v) {
    size_t n = 0;
    const char *s = gy_jv_str(v, &n);
    if (!s || !n || n > MAX_SALT) return gy_oai_expected(p, field, v, "a string of 1 to %d bytes", MAX_SALT);
    p->r->base.cache_salt = s;
    p->r->base.n_cache_salt = (int32_t)n;
    return GY_OK;
}

/* -1: as much as the context holds. */
static gy_status read_truncate(gy_oai_reader *p, const char *field, const gy_jv *v) {
    int64_t x;
    GY_TRY(gy_oai_read_int(p, field, v, -1, INT32_MAX, &x));
    if (!x) return gy_oai_expected(p, field, v, "1 or more tokens, or -1 for what fits");
    p->r->truncate_prompt = x > 0 ? (int32_t)x : p->cfg->max_len ? p->cfg->max_len : INT32_MAX;
    return GY_OK;
}

static gy_status read_logprobs(gy_oai_reader *p, const char *field, const gy_jv *v) {
    int64_t x;
    if (p->r->kind == GY_OAI_CHAT) return gy_oai_read_bool(p, field, v, &p->chat_logprobs);
    GY_TRY(gy_oai_read_int(p, field, v, 0, MAX_LOGPROBS, &x));
    p->r->logprobs = (int32_t)x;
    return GY_OK;
}

static gy_status read_top_logprobs(gy_oai_reader *p, const char *field, const gy_jv *v) {
    int64_t x;
    GY_TRY(gy_oai_read_int(p, field, v, 0, MAX_LOGPROBS, &x));
    p->top_logprobs = (int32_t)x;
    return GY_OK;
}

static gy_status read_prompt_logprobs(gy_oai_reader *p, const char *field, const gy_jv *v) {
    int64_t x;
    GY_TRY(gy_oai_read_int(p, field, v, 0, MAX_LOGPROBS, &x));
    p->r->prompt_logprobs = (int32_t)x;
    return GY_OK;
}

static gy_status read_effort(gy_oai_reader *p, const char *field, const gy_jv *v) {
    static const char *const levels[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
        if (!gy_jv_is_str(v, levels[i])) continue;
        p->r->reasoning_effort = levels[i];
        return GY_OK;
    }
    return gy_oai_expected(p, field, v, "none, minimal, low, medium, high, xhigh or max");
}

/* ---- fields that are known and only taken where they change nothing --------------------------------------------- */

static gy_status refuse_always(gy_oai_reader *p, const char *field, const gy_jv *v) {
    if (gy_jv_type(v) == GY_J_ARRAY && !gy_jv_len(v)) return GY_OK;
    if (gy_jv_is_str(v, "")) return GY_OK;
    return gy_oai_refuse(p, GY_OAI_E_UNSUPPORTED, field, "this field is not supported; leave it out");
}

static gy_status want_true(gy_oai_reader *p, const char *field, const gy_jv *v) {
    int32_t x;
    GY_TRY(gy_oai_read_bool(p, field, v, &x));
    return x ? GY_OK : gy_oai_refuse(p, GY_OAI_E_UNSUPPORTED, field, "found false, only true is supported");
}

static gy_status want_false(gy_oai_reader *p, const char *field, const gy_jv *v) {
    int32_t x;
    GY_TRY(gy_oai_read_bool(p, field, v, &x));
    return x ? gy_oai_refuse(p, GY_OAI_E_UNSUPPORTED, field, "found true, only false is supported") : GY_OK;
}

static gy_status ignore(gy_oai_reader *p, const char *field, const gy_jv *v) {
    (void)p, (void)field, (void)v;
    return GY_OK;
}

/* ---- the table -------------------------------------------------------------------------------------------------- */

typedef enum field_type { F_FN, F_BOOL, F_INT, F_FLOAT, F_DOUBLE, F_NAME } field_type;
enum { OPEN_LO = 1, OPEN_HI = 2 };

typedef struct field_row {
    const char *name;
    int where;
    field_type type;
    gy_oai_read_fn fn;
    size_t off; /* in gy_oai_request, or in gy_oai_reader for F_BOOL with in_reader */
    double lo, hi;
    int open, in_reader;
} field_row;

#define FN(n, w, f)                                                                                                    \
    { .name = (n), .where = (w), .type = F_FN, .fn = (f) }
#define BOOL(n, w, m)                                                                                                  \
    { .name = (n), .where = (w), .type = F_BOOL, .off = offsetof(gy_oai_request, m) }
#define FLAG(n, w, m)                                                                                                  \
    { .name = (n), .where = (w), .type = F_BOOL, .off = offsetof(gy_oai_reader, m), .in_reader = 1 }
#define INT(n, w, m, a, b)                                                                                             \
    { .name = (n), .where = (w), .type = F_INT, .off = offsetof(gy_oai_request, m), .lo = (a), .hi = (b) }
#define FLOAT(n, w, m, a, b, o)                                                                                        \
    {                                                                                                                  \
        .name = (n), .where = (w), .type = F_FLOAT, .off = offsetof(gy_oai_request, m), .lo = (a), .hi = (b),          \
        .open = (o)                                                                                                    \
    }
#define NAME(n, w, m)                                                                                                  \
    { .name = (n), .where = (w), .type = F_NAME, .off = offsetof(gy_oai_request, m) }

static const field_row fields[] = {
    FN("model", ALL, read_model),
    FN("prompt", C | T, keep_prompt),
    FN("content", T, keep_prompt),
    FN("messages", M, keep_messages),
    FN("tokens", D, keep_tokens),

    FN("max_tokens", S, read_max_tokens),
    FN("max_completion_tokens", H, read_max_completion),
    INT("min_tokens", S, base.min_tokens, 0, INT32_MAX),
    FN("n", S, read_n),
    FN("best_of", S, read_best_of),
    FLOAT("temperature", S, base.temperature, 0, 100, 0),
    FLOAT("top_p", S, base.top_p, 0, 1, OPEN_LO),
    FLOAT("min_p", S, base.min_p, 0, 1, OPEN_HI),
    FN("top_k", S, read_top_k),
    FN("seed", S, read_seed),
    FLOAT("repetition_penalty", S, base.repetition_penalty, 0, 100, OPEN_LO),
    FLOAT("frequency_penalty", S, base.frequency_penalty, -2, 2, 0),
    FLOAT("presence_penalty", S, base.presence_penalty, -2, 2, 0),
    FN("logit_bias", S, gy_oai_read_logit_bias),
    FN("stop", S, gy_oai_read_stop),
    FN("stop_token_ids", S, gy_oai_read_stop_ids),
    BOOL("ignore_eos", S, base.ignore_eos),
    BOOL("include_stop_str_in_output", S, include_stop),

    FN("exit", S, gy_oai_read_exit),
    {.name = "exit_threshold", .where = S, .type = F_DOUBLE, .off = offsetof(gy_oai_request, base.exit_threshold)},
    FN("min_loops", S, read_loops),
    FN("max_loops", S, read_loops),
    BOOL("exit_on_prompt", S, base.exit_on_prompt),
    FN("trace", S, gy_oai_read_trace),
    FN("gates", S, read_gates),
    FLAG("latent_noise", S, latent_noise),
    FN("initial_state", S, read_initial_state),
    FN("latent_seed", S, read_latent_seed),

    FN("cache_salt", S, read_salt),
    FLAG("cache_prompt", S, cache_prompt),
    INT("priority", S, base.priority, INT32_MIN, INT32_MAX),
    NAME("request_id", S, request_id),
    NAME("session_id", S, session_id),
    FN("truncate_prompt_tokens", S, read_truncate),

    BOOL("stream", S, stream),
    FN("stream_options", S, keep_stream_options),
    BOOL("echo", C, echo),
    FN("logprobs", S, read_logprobs),
    FN("top_logprobs", H, read_top_logprobs),
    FN("prompt_logprobs", S, read_prompt_logprobs),
    BOOL("return_token_ids", S, return_token_ids),
    BOOL("return_tokens_as_token_ids", S, tokens_as_ids),
    BOOL("return_token_strs", T, return_token_strs),
    BOOL("with_pieces", T, return_token_strs),

    FN("response_format", S, gy_oai_read_response_format),
    FN("structured_outputs", S, gy_oai_read_structured),
    FN("guided_json", S, gy_oai_read_schema),
    FN("json_schema", S, gy_oai_read_schema),
    FN("guided_regex", S, gy_oai_read_regex),
    FN("regex", S, gy_oai_read_regex),
    FN("guided_grammar", S, gy_oai_read_grammar),
    FN("grammar", S, gy_oai_read_grammar),
    FN("ebnf", S, gy_oai_read_grammar),
    FN("guided_choice", S, gy_oai_read_choices),

    FN("tools", M, keep_tools),
    FN("tool_choice", H, keep_tool_choice),
    BOOL("parallel_tool_calls", H, parallel_tool_calls),
    FN("chat_template_kwargs", M, gy_oai_read_kwargs),
    BOOL("enable_thinking", M, enable_thinking),
    FN("reasoning_effort", M, read_effort),
    BOOL("separate_reasoning", H, separate_reasoning),
    BOOL("include_reasoning", H, include_reasoning),
    FLAG("add_generation_prompt", M, generation_prompt),
    BOOL("continue_final_message", M, continue_final_message),
    FLAG("add_special_tokens", C | M, add_special),
    FLAG("add_special", T, add_special),
    BOOL("parse_special", T, parse_special),
    BOOL("skip_special_tokens", D, skip_special),

    FN("skip_special_tokens", S, want_true),
    FN("use_beam_search", S, want_false),
    FN("echo", H, want_false),
    FN("suffix", C, refuse_always),
    FN("bad_words", S, refuse_always),
    FN("allowed_token_ids", S, refuse_always),
    FN("prompt_embeds", S, refuse_always),
    FN("stop_regex", S, refuse_always),
    FN("chat_template", M, refuse_always),

    /* What newer SDKs send and what changes nothing here. */
    FN("audio", S, ignore),
    FN("function_call", S, ignore),
    FN("functions", S, ignore),
    FN("metadata", S, ignore),
    FN("modalities", S, ignore),
    FN("moderation", S, ignore),
    FN("prediction", S, ignore),
    FN("prompt_cache_key", S, ignore),
    FN("prompt_cache_options", S, ignore),
    FN("prompt_cache_retention", S, ignore),
    FN("safety_identifier", S, ignore),
    FN("service_tier", S, ignore),
    FN("store", S, ignore),
    FN("user", S, ignore),
    FN("verbosity", S, ignore),
    FN("web_search_options", S, ignore),
    FN("spaces_between_special_tokens", S | D, ignore),
    FN("include_reasoning", C, ignore),
};

static gy_status read_real(gy_oai_reader *p, const field_row *f, const gy_jv *v, double *out) {
    double x = gy_jv_num(v, NAN);
    int ok = f->type == F_DOUBLE ? isfinite(x) : x >= f->lo && x <= f->hi;
    if ((f->open & OPEN_LO) && !(x > f->lo)) ok = 0;
    if ((f->open & OPEN_HI) && !(x < f->hi)) ok = 0;
    if (!ok && f->type == F_DOUBLE) return gy_oai_expected(p, f->name, v, "a number");
    if (!ok)
        return gy_oai_expected(p, f->name, v, "a number %s %g %s %g", f->open & OPEN_LO ? "above" : "from", f->lo,
                               f->open & OPEN_HI ? "to below" : "to", f->hi);
    *out = x;
    return GY_OK;
}

/* What is above 0 stays above it, and below 1 below: rounding to float must not leave the range that was checked. */
static float narrow(const field_row *f, double x) {
    float y = (float)x;
    if (y == 0 && x > 0) return FLT_MIN;
    return (f->open & OPEN_HI) && (double)y >= f->hi ? nextafterf((float)f->hi, 0) : y;
}

static gy_status read_field(gy_oai_reader *p, const field_row *f, const gy_jv *v) {
    char *to = (f->in_reader ? (char *)p : (char *)p->r) + f->off;
    int64_t i = 0;
    double x = 0;
    switch (f->type) {
    case F_FN:
        return f->fn(p, f->name, v);
    case F_BOOL:
        return gy_oai_read_bool(p, f->name, v, (int32_t *)(void *)to);
    case F_INT:
        GY_TRY(gy_oai_read_int(p, f->name, v, (int64_t)f->lo, (int64_t)f->hi, &i));
        *(int32_t *)(void *)to = (int32_t)i;
        return GY_OK;
    case F_FLOAT:
        GY_TRY(read_real(p, f, v, &x));
        *(float *)(void *)to = narrow(f, x);
        return GY_OK;
    case F_DOUBLE:
        return read_real(p, f, v, (double *)(void *)to);
    case F_NAME:
        return gy_oai_read_str(p, f->name, v, MAX_NAME, (const char **)(void *)to);
    }
    return GY_OK;
}

static const field_row *find_field(int kind, const char *name) {
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if ((fields[i].where & kind) && !strcmp(fields[i].name, name)) return &fields[i];
    return NULL;
}

static gy_status read_members(gy_oai_reader *p, const gy_jv *root) {
    gy_oai_request *r = p->r;
    for (void *it = gy_jv_first(root); it; it = gy_jv_next(root, it)) {
        const char *name = gy_jv_key(it, NULL);
        const field_row *f = find_field((int)r->kind, name);
        if (f && gy_oai_present(gy_jv_val(it))) GY_TRY(read_field(p, f, gy_jv_val(it)));
        if (f) continue;
        if (r->n_unknown < GY_OAI_MAX_UNKNOWN) r->unknown[r->n_unknown] = name;
        r->n_unknown++;
    }
    return GY_OK;
}

/* ---- what depends on several fields ----------------------------------------------------------------------------- */

static gy_status resolve_prompt(gy_oai_reader *p) {
    int has_prompt = gy_oai_present(p->prompt), has_messages = gy_oai_present(p->messages);
    if (p->r->kind == GY_OAI_DETOKENIZE)
        return gy_oai_present(p->tokens) ? gy_oai_read_tokens(p, p->tokens)
                                         : gy_oai_expected(p, "tokens", p->tokens, "an array of token ids");
    if (has_prompt && has_messages)
        return gy_oai_refuse(p, GY_OAI_E_BAD_REQUEST, p->prompt_field, "found beside messages, expected one of them");
    if (has_messages) return gy_oai_read_messages(p, p->messages);
    if (p->r->kind & (H | A)) return gy_oai_expected(p, "messages", p->messages, "an array of messages");
    if (!has_prompt) return gy_oai_expected(p, "prompt", p->prompt, "a string, token ids, or a list of them");
    return gy_oai_read_prompts(p, p->prompt_field, p->prompt);
}

static gy_status resolve_chat(gy_oai_reader *p) {
    gy_oai_request *r = p->r;
    if (r->continue_final_message && p->generation_prompt == 1)
        return gy_oai_refuse(p, GY_OAI_E_BAD_REQUEST, "continue_final_message",
                             "found true beside add_generation_prompt, expected one of them");
    r->add_generation_prompt = p->generation_prompt >= 0 ? p->generation_prompt : !r->continue_final_message;
    r->add_special_tokens = p->add_special >= 0 ? p->add_special : !r->n_message;
    if (r->enable_thinking < 0 && r->reasoning_effort && !strcmp(r->reasoning_effort, "none")) r->enable_thinking = 0;
    return gy_oai_read_tools(p);
}

static gy_status resolve_stream(gy_oai_reader *p) {
    const gy_jv *o = p->stream_options;
    if (!gy_oai_present(o)) return GY_OK;
    if (gy_jv_type(o) != GY_J_OBJECT) return gy_oai_expected(p, "stream_options", o, "an object");
    if (!p->r->stream) return gy_oai_refuse(p, GY_OAI_E_BAD_REQUEST, "stream_options", "allowed only with stream true");
    const gy_jv *usage = gy_jv_get(o, "include_usage"), *each = gy_jv_get(o, "continuous_usage_stats");
    if (gy_oai_present(usage)) GY_TRY(gy_oai_read_bool(p, "stream_options.include_usage", usage, &p->r->include_usage));
    if (gy_oai_present(each))
        GY_TRY(gy_oai_read_bool(p, "stream_options.continuous_usage_stats", each, &p->r->continuous_usage));
    p->r->continuous_usage &= p->r->include_usage;
    return GY_OK;
}

/* Completions: 16 unless told; 0 scores the prompt. Chat: as many as the context leaves, which the engine calls 0. */
static gy_status resolve_max_tokens(gy_oai_reader *p) {
    gyre_request *b = &p->r->base;
    const char *field = p->max_completion_tokens >= 0 ? "max_completion_tokens" : "max_tokens";
    int32_t x = p->max_completion_tokens >= 0 ? p->max_completion_tokens : p->max_tokens;
    if (x < 0) x = p->r->kind == GY_OAI_CHAT ? -1 : p->cfg->run.max_tokens;
    if (p->cfg->max_len && x > p->cfg->max_len)
        return gy_oai_refuse(p, GY_OAI_E_CONTEXT, field, "found %d tokens, expected at most %d (context)", x,
                             p->cfg->max_len);
    if (!x && p->max_tokens == 0 && !p->r->echo)
        return gy_oai_refuse(p, GY_OAI_E_BAD_REQUEST, field, "found 0, expected 1 or more; 0 is for scoring with echo");
    p->r->score_only = p->max_tokens == 0 && x == 0;
    b->max_tokens = p->r->score_only ? 1 : x < 0 ? 0 : x;
    if (b->min_tokens > (x < 0 ? INT32_MAX : x))
        return gy_oai_refuse(p, GY_OAI_E_BAD_REQUEST, "min_tokens", "found %d, expected at most %d (%s)", b->min_tokens,
                             x, field);
    return GY_OK;
}

static int32_t larger(int32_t a, int32_t b) {
    return a > b ? a : b;
}

static gy_status resolve_logprobs(gy_oai_reader *p) {
    gy_oai_request *r = p->r;
    if (p->top_logprobs >= 0 && p->chat_logprobs != 1)
        return gy_oai_refuse(p, GY_OAI_E_BAD_REQUEST, "top_logprobs", "allowed only with logprobs true");
    if (p->chat_logprobs == 1) r->logprobs = larger(p->top_logprobs, 0);
    if (r->prompt_logprobs >= 0 && r->stream)
        return gy_oai_refuse(p, GY_OAI_E_BAD_REQUEST, "prompt_logprobs", "not allowed with stream true");
    r->base.logprobs = r->logprobs;
    r->base.prompt_logprobs = r->echo ? larger(r->logprobs, r->prompt_logprobs) : r->prompt_logprobs;
    return GY_OK;
}

static gy_status resolve_depth(gy_oai_reader *p) {
    gyre_request *b = &p->r->base;
    if (b->min_loops && b->max_loops && b->min_loops > b->max_loops)
        return gy_oai_refuse(p, GY_OAI_E_BAD_REQUEST, "min_loops", "found %d, expected at most %d (max_loops)",
                             b->min_loops, b->max_loops);
    if (b->n_trace && b->exit == p->cfg->run.exit) b->exit = "trace";
    int is_trace = b->exit && !strcmp(b->exit, "trace");
    if (is_trace != (b->n_trace > 0))
        return gy_oai_refuse(p, GY_OAI_E_BAD_REQUEST, "trace", "found %s, expected it with exit trace and only there",
                             b->n_trace ? "depths" : "nothing");
    if (p->latent_noise >= 0 && p->initial_noise >= 0 && p->latent_noise != p->initial_noise)
        return gy_oai_refuse(p, GY_OAI_E_BAD_REQUEST, "initial_state", "contradicts latent_noise");
    if (p->latent_noise >= 0 || p->initial_noise >= 0) b->latent_noise = larger(p->latent_noise, p->initial_noise);
    if (p->cache_prompt >= 0) b->no_cache = !p->cache_prompt;
    return GY_OK;
}

static gy_status resolve_choices(gy_oai_reader *p) {
    const gy_oai_request *r = p->r;
    if (p->best_of > 1 && p->best_of != r->base.n)
        return gy_oai_refuse(p, GY_OAI_E_UNSUPPORTED, "best_of", "found %d, only n itself is supported", p->best_of);
    if ((int64_t)r->n_prompt * r->base.n > p->cfg->max_choices)
        return gy_oai_refuse(p, GY_OAI_E_BAD_REQUEST, "n", "found %d choices of %d prompts, expected at most %d in all",
                             r->base.n, r->n_prompt, p->cfg->max_choices);
    return GY_OK;
}

static gy_status fill_runs(gy_oai_reader *p) {
    gy_oai_request *r = p->r;
    r->run = gy_arena_alloc(r->arena, (size_t)r->n_prompt, sizeof *r->run);
    if (!r->run) return gy_oai_no_memory(p);
    for (int32_t i = 0; i < r->n_prompt; i++) {
        const gy_oai_prompt *q = &r->prompts[i];
        r->run[i] = r->base;
        if (q->n_seg != 1) continue;
        r->run[i].prompt = q->seg->text;
        r->run[i].n_prompt = q->seg->n_text;
        r->run[i].prompt_ids = q->seg->ids;
        r->run[i].n_prompt_ids = q->seg->n_ids;
    }
    return GY_OK;
}

static gy_status resolve(gy_oai_reader *p) {
    GY_TRY(resolve_prompt(p));
    GY_TRY(resolve_chat(p));
    if (p->r->kind & S) {
        GY_TRY(resolve_stream(p));
        GY_TRY(resolve_max_tokens(p));
        GY_TRY(resolve_logprobs(p));
        GY_TRY(resolve_depth(p));
        GY_TRY(resolve_choices(p));
    }
    return fill_runs(p);
}

/* ---- the body --------------------------------------------------------------------------------------------------- */

static gy_status not_json(gy_oai_error *e, const char *body, size_t len, const gy_err *err) {
    char name[64];
    if (err->status == GY_E_NOMEM) return gy_oai_error_from_status(e, GYRE_E_NOMEM, NULL);
    gy_oai_member_at(body, len, gy_oai_error_byte(body, len, err->msg), name, sizeof name);
    return gy_oai_error_set(e, GY_OAI_E_BAD_REQUEST, name, "the body, %s%s%s", name, name[0] ? ", " : "", err->msg);
}

static gy_status parse_body(const char *body, size_t len, const gy_oai_config *cfg, gy_oai_error *e, gy_json **doc) {
    gy_json_limits lim = {.max_bytes = len + 1, .max_depth = cfg->max_depth};
    gy_err err;
    if (len >= 3 && !memcmp(body, "\xEF\xBB\xBF", 3))
        return gy_oai_error_set(e, GY_OAI_E_BAD_REQUEST, NULL,
                                "the body, byte 0: found a byte order mark, expected '{'");
    if (gy_json_parse(body, len, &lim, &err, doc) < 0) return not_json(e, body, len, &err);
    gy_jtype t = gy_jv_type(gy_json_root(*doc));
    if (t == GY_J_OBJECT) return GY_OK;
    gy_json_free(*doc);
    *doc = NULL;
    return gy_oai_error_set(e, GY_OAI_E_BAD_REQUEST, NULL, "the body: found %s, expected an object", gy_jtype_name(t));
}

static void set_defaults(gy_oai_reader *p) {
    gy_oai_request *r = p->r;
    r->base = p->cfg->run;
    r->model = p->cfg->n_model ? p->cfg->models[0] : "";
    r->enable_thinking = r->logprobs = r->prompt_logprobs = -1;
    r->parallel_tool_calls = r->parse_special = r->separate_reasoning = r->include_reasoning = 1;
}

static gy_status read_body(gy_oai_reader *p, const char *body, size_t len) {
    p->r->arena = gy_arena_create(GY_MEM_SERVER, 4096);
    if (!p->r->arena) return gy_oai_no_memory(p);
    GY_TRY(parse_body(body, len, p->cfg, p->e, &p->r->doc));
    GY_TRY(read_members(p, gy_json_root(p->r->doc)));
    return resolve(p);
}

gy_status gy_oai_request_parse(gy_oai_kind kind, const char *body, size_t len, const gy_oai_config *cfg,
                               gy_oai_error *e, gy_oai_request **out) {
    gy_oai_request *r = gy_mem_alloc(GY_MEM_SERVER, 1, sizeof *r);
    if (!r) return gy_oai_error_from_status(e, GYRE_E_NOMEM, NULL);
    gy_oai_reader p = {.r = r,
                       .cfg = cfg,
                       .e = e,
                       .best_of = -1,
                       .max_tokens = -1,
                       .max_completion_tokens = -1,
                       .chat_logprobs = -1,
                       .top_logprobs = -1,
                       .generation_prompt = -1,
                       .initial_noise = -1,
                       .latent_noise = -1,
                       .add_special = -1,
                       .cache_prompt = -1};
    r->kind = kind;
    set_defaults(&p);
    gy_status st = read_body(&p, body, len);
    if (st == GY_OK)
        *out = r;
    else
        gy_oai_request_free(r);
    return st;
}

void gy_oai_request_free(gy_oai_request *r) {
    if (!r) return;
    gy_json_free(r->doc);
    gy_arena_destroy(r->arena);
    gy_mem_free(r);
}

gy_status gy_oai_request_check_length(const gy_oai_request *r, int64_t n_prompt_tok, int32_t max_len, gy_oai_error *e) {
    int64_t want = r->base.max_tokens ? r->base.max_tokens : 1, total = n_prompt_tok + want;
    const char *field = r->n_message ? "messages" : "prompt";
    if (n_prompt_tok < 1)
        return gy_oai_error_set(e, GY_OAI_E_BAD_REQUEST, field, "%s: found no tokens, expected at least one", field);
    if (total <= max_len) return GY_OK;
    return gy_oai_error_set(e, GY_OAI_E_CONTEXT, field,
                            "%s: found %lld tokens, with %lld to make that is %lld, expected at most %d (context)",
                            field, (long long)n_prompt_tok, (long long)want, (long long)total, max_len);
}

/* ---- names seen before ------------------------------------------------------------------------------------------ */

struct gy_oai_seen {
    int n;
    char name[GY_OAI_MAX_SEEN][64]; /* longer ones by their beginning */
};

gy_oai_seen *gy_oai_seen_create(void) {
    return gy_mem_alloc(GY_MEM_SERVER, 1, sizeof(gy_oai_seen));
}

void gy_oai_seen_destroy(gy_oai_seen *s) {
    gy_mem_free(s);
}

int gy_oai_seen_add(gy_oai_seen *s, const char *name) {
    size_t cap = sizeof s->name[0] - 1;
    for (int i = 0; i < s->n; i++)
        if (!strncmp(s->name[i], name, cap)) return 0;
    if (s->n == GY_OAI_MAX_SEEN) return 0;
    strncpy(s->name[s->n++], name, cap);
    return 1;
}
