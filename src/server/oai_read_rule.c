/* Fields with an inner shape: what the text must look like (response_format and its relatives), logit_bias, stop, and
 * the exit rule. Constraints are only taken apart here; compiling them, with its own limits, is another part's work.
 */
#include "server/oai_int.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_STOP_BYTES = 1024, MAX_BIAS = 1024, MAX_CHOICES = 1024 };

/* ---- constraints ------------------------------------------------------------------------------------------------ */

/* One of them may be given; the same twice is still two. */
static gy_status take_constraint(gy_oai_reader *p, const char *field, gy_oai_constraint c) {
    if (p->r->constraint.kind != GY_OAI_FREE)
        return gy_oai_refuse(p, GY_OAI_E_BAD_REQUEST, field, "found a second constraint beside %s, expected one",
                             p->r->constraint.field);
    c.field = field;
    p->r->constraint = c;
    return GY_OK;
}

static gy_status take_text(gy_oai_reader *p, const char *field, const gy_jv *v, gy_oai_constraint_kind kind) {
    gy_oai_constraint c = {.kind = kind};
    c.text = gy_jv_str(v, &c.n_text);
    if (!c.text || !c.n_text) return gy_oai_expected(p, field, v, "a string that is not empty");
    return take_constraint(p, field, c);
}

gy_status gy_oai_read_regex(gy_oai_reader *p, const char *field, const gy_jv *v) {
    return take_text(p, field, v, GY_OAI_REGEX);
}

gy_status gy_oai_read_grammar(gy_oai_reader *p, const char *field, const gy_jv *v) {
    return take_text(p, field, v, GY_OAI_GRAMMAR);
}

gy_status gy_oai_read_schema(gy_oai_reader *p, const char *field, const gy_jv *v) {
    if (gy_jv_type(v) != GY_J_OBJECT) return gy_oai_expected(p, field, v, "a JSON schema (an object)");
    return take_constraint(p, field, (gy_oai_constraint){.kind = GY_OAI_JSON_SCHEMA, .schema = v});
}

gy_status gy_oai_read_choices(gy_oai_reader *p, const char *field, const gy_jv *v) {
    size_t n = gy_jv_len(v), len = 0;
    if (gy_jv_type(v) != GY_J_ARRAY || !n || n > MAX_CHOICES)
        return gy_oai_expected(p, field, v, "an array of 1 to %d strings", MAX_CHOICES);
    for (size_t i = 0; i < n; i++) {
        char at[64];
        gy_oai_at(at, sizeof at, "%s[%zu]", field, i);
        if (!gy_jv_str(gy_jv_at(v, i), &len) || !len)
            return gy_oai_expected(p, at, gy_jv_at(v, i), "a string that is not empty");
    }
    return take_constraint(p, field, (gy_oai_constraint){.kind = GY_OAI_CHOICE, .list = v});
}

static gy_status read_json_schema(gy_oai_reader *p, const gy_jv *v) {
    const gy_jv *name = gy_jv_get(v, "name");
    if (gy_jv_type(v) != GY_J_OBJECT)
        return gy_oai_expected(p, "response_format.json_schema", v, "an object with name and schema");
    if (gy_oai_present(name) && gy_jv_type(name) != GY_J_STRING)
        return gy_oai_expected(p, "response_format.json_schema.name", name, "a string");
    return gy_oai_read_schema(p, "response_format.json_schema.schema", gy_jv_get(v, "schema"));
}

/* llama.cpp also takes {"type": "json_object", "schema": {...}}. */
gy_status gy_oai_read_response_format(gy_oai_reader *p, const char *field, const gy_jv *v) {
    const gy_jv *type = gy_jv_get(v, "type"), *schema = gy_jv_get(v, "schema");
    if (gy_jv_type(v) != GY_J_OBJECT) return gy_oai_expected(p, field, v, "an object with type");
    if (gy_jv_is_str(type, "text")) return GY_OK;
    if (gy_jv_is_str(type, "json_schema")) return read_json_schema(p, gy_jv_get(v, "json_schema"));
    if (!gy_jv_is_str(type, "json_object"))
        return gy_oai_expected(p, "response_format.type", type, "text, json_object or json_schema");
    if (gy_oai_present(schema)) return gy_oai_read_schema(p, "response_format.schema", schema);
    return take_constraint(p, "response_format", (gy_oai_constraint){.kind = GY_OAI_JSON_OBJECT});
}

/* vLLM's newer form of guided_*: one object with one of these members. */
gy_status gy_oai_read_structured(gy_oai_reader *p, const char *field, const gy_jv *v) {
    static const struct {
        const char *name, *field;
        gy_oai_read_fn read;
    } forms[] = {{"json", "structured_outputs.json", gy_oai_read_schema},
                 {"regex", "structured_outputs.regex", gy_oai_read_regex},
                 {"grammar", "structured_outputs.grammar", gy_oai_read_grammar},
                 {"choice", "structured_outputs.choice", gy_oai_read_choices}};
    if (gy_jv_type(v) != GY_J_OBJECT) return gy_oai_expected(p, field, v, "an object");
    if (gy_oai_present(gy_jv_get(v, "structural_tag")))
        return gy_oai_refuse(p, GY_OAI_E_UNSUPPORTED, field, "structural_tag is not supported");
    if (gy_jv_bool(gy_jv_get(v, "json_object"), 0))
        GY_TRY(take_constraint(p, "structured_outputs.json_object", (gy_oai_constraint){.kind = GY_OAI_JSON_OBJECT}));
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        const gy_jv *x = gy_jv_get(v, forms[i].name);
        if (gy_oai_present(x)) GY_TRY(forms[i].read(p, forms[i].field, x));
    }
    return GY_OK;
}

/* ---- logit_bias ------------------------------------------------------------------------------------------------- */

/* false: never choose it (llama.cpp). The engine takes -100, which OpenAI's text calls a ban. */
static gy_status read_bias(gy_oai_reader *p, const char *field, const gy_jv *v, float *out) {
    double x = gy_jv_type(v) == GY_J_BOOL && !gy_jv_bool(v, 1) ? -100.0 : gy_jv_num(v, NAN);
    if (!(x >= -100 && x <= 100)) return gy_oai_expected(p, field, v, "a number from -100 to 100");
    *out = (float)x;
    return GY_OK;
}

/* Canonical decimal only, so that one id has one spelling. */
static int parse_id(const char *s, size_t n, int32_t below, int32_t *out) {
    int64_t id = 0;
    if (!n || n > 10 || (n > 1 && s[0] == '0')) return -1;
    for (size_t i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9') return -1;
        id = id * 10 + (s[i] - '0');
    }
    if (id >= below) return -1;
    *out = (int32_t)id;
    return 0;
}

static gy_status read_bias_object(gy_oai_reader *p, const char *field, const gy_jv *v, gyre_bias *to) {
    int32_t below = p->cfg->n_vocab ? p->cfg->n_vocab : INT32_MAX;
    for (void *it = gy_jv_first(v); it; it = gy_jv_next(v, it), to++) {
        size_t n;
        const char *key = gy_jv_key(it, &n);
        char at[64];
        if (parse_id(key, n, below, &to->id))
            return gy_oai_refuse(p, GY_OAI_E_BAD_REQUEST, field,
                                 "found a name that is no token id, expected decimal numbers from 0 to %d", below - 1);
        gy_oai_at(at, sizeof at, "%s.%s", field, key);
        GY_TRY(read_bias(p, at, gy_jv_val(it), &to->bias));
    }
    return GY_OK;
}

static gy_status read_bias_pairs(gy_oai_reader *p, const char *field, const gy_jv *v, gyre_bias *to) {
    int32_t below = p->cfg->n_vocab ? p->cfg->n_vocab : INT32_MAX;
    for (size_t i = 0; i < gy_jv_len(v); i++) {
        const gy_jv *pair = gy_jv_at(v, i);
        char at[64];
        int64_t id;
        gy_oai_at(at, sizeof at, "%s[%zu]", field, i);
        if (gy_jv_type(pair) != GY_J_ARRAY || gy_jv_len(pair) != 2)
            return gy_oai_expected(p, at, pair, "a pair of token id and bias");
        GY_TRY(gy_oai_read_int(p, at, gy_jv_at(pair, 0), 0, below - 1, &id));
        GY_TRY(read_bias(p, at, gy_jv_at(pair, 1), &to[i].bias));
        to[i].id = (int32_t)id;
        for (size_t k = 0; k < i; k++)
            if (to[k].id == to[i].id) return gy_oai_expected(p, at, gy_jv_at(pair, 0), "one bias for a token");
    }
    return GY_OK;
}

gy_status gy_oai_read_logit_bias(gy_oai_reader *p, const char *field, const gy_jv *v) {
    size_t n = gy_jv_len(v);
    if ((gy_jv_type(v) != GY_J_OBJECT && gy_jv_type(v) != GY_J_ARRAY) || n > MAX_BIAS)
        return gy_oai_expected(p, field, v, "an object of at most %d token ids with numbers", MAX_BIAS);
    gyre_bias *bias = gy_arena_alloc(p->r->arena, n + 1, sizeof *bias);
    if (!bias) return gy_oai_no_memory(p);
    if (gy_jv_type(v) == GY_J_OBJECT)
        GY_TRY(read_bias_object(p, field, v, bias));
    else
        GY_TRY(read_bias_pairs(p, field, v, bias));
    p->r->base.bias = n ? bias : NULL;
    p->r->base.n_bias = (int32_t)n;
    return GY_OK;
}

/* ---- stop ------------------------------------------------------------------------------------------------------- */

static gy_status read_stop_string(gy_oai_reader *p, const char *field, const gy_jv *v, gyre_string *to) {
    to->s = gy_jv_str(v, &to->n);
    if (!to->s || !to->n || to->n > MAX_STOP_BYTES)
        return gy_oai_expected(p, field, v, "a string of 1 to %d bytes", MAX_STOP_BYTES);
    return GY_OK;
}

gy_status gy_oai_read_stop(gy_oai_reader *p, const char *field, const gy_jv *v) {
    int one = gy_jv_type(v) == GY_J_STRING;
    size_t n = one ? 1 : gy_jv_len(v);
    if ((!one && gy_jv_type(v) != GY_J_ARRAY) || n > (size_t)p->cfg->max_stop)
        return gy_oai_expected(p, field, v, "a string or at most %d strings", p->cfg->max_stop);
    gyre_string *stop = gy_arena_alloc(p->r->arena, n + 1, sizeof *stop);
    if (!stop) return gy_oai_no_memory(p);
    for (size_t i = 0; i < n; i++) {
        char at[32];
        gy_oai_at(at, sizeof at, "stop[%zu]", i);
        GY_TRY(read_stop_string(p, one ? field : at, one ? v : gy_jv_at(v, i), &stop[i]));
    }
    p->r->base.stop = n ? stop : NULL;
    p->r->base.n_stop = (int32_t)n;
    if (n && !p->cfg->has_tokenizer)
        return gy_oai_refuse(p, GY_OAI_E_BAD_REQUEST, field,
                             "the model's folder holds no tokenizer, so there is no text to find it in; "
                             "use stop_token_ids");
    return GY_OK;
}

gy_status gy_oai_read_stop_ids(gy_oai_reader *p, const char *field, const gy_jv *v) {
    gyre_request *b = &p->r->base;
    if (gy_jv_len(v) > 1024) return gy_oai_expected(p, field, v, "at most 1024 token ids");
    GY_TRY(gy_oai_read_ids(p, field, v, p->cfg->n_vocab, &b->stop_ids, &b->n_stop_ids));
    if (!b->n_stop_ids) b->stop_ids = NULL;
    return GY_OK;
}

/* ---- depth ------------------------------------------------------------------------------------------------------ */

gy_status gy_oai_read_exit(gy_oai_reader *p, const char *field, const gy_jv *v) {
    static const char *const names[] = {"fixed", "gate",    "gate_delayed", "select", "latent",
                                        "kl",    "entropy", "argmax",       "trace"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (!gy_jv_is_str(v, names[i])) continue;
        p->r->base.exit = names[i];
        return GY_OK;
    }
    return gy_oai_expected(p, field, v, "fixed, gate, gate_delayed, select, latent, kl, entropy, argmax or trace");
}

gy_status gy_oai_read_trace(gy_oai_reader *p, const char *field, const gy_jv *v) {
    size_t n = gy_jv_len(v);
    if (gy_jv_type(v) != GY_J_ARRAY || !n || n > INT32_MAX)
        return gy_oai_expected(p, field, v, "an array of the loops of each output");
    int32_t *trace = gy_arena_alloc(p->r->arena, n, sizeof *trace);
    if (!trace) return gy_oai_no_memory(p);
    for (size_t i = 0; i < n; i++) {
        char at[32];
        int64_t x;
        gy_oai_at(at, sizeof at, "trace[%zu]", i);
        GY_TRY(gy_oai_read_int(p, at, gy_jv_at(v, i), 1, p->cfg->max_loops ? p->cfg->max_loops : INT32_MAX, &x));
        trace[i] = (int32_t)x;
    }
    p->r->base.trace = trace;
    p->r->base.n_trace = (int32_t)n;
    return GY_OK;
}
