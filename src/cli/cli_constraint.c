/* What an output must be, as the commands are told: one of a JSON schema, any JSON object, a regex, an EBNF. Texts are
 * collected without a model, compiled when there is one. The languages are grammar.h's.
 */
#include "cli/cli_requests.h"

#include "base/file.h"

#include <stdio.h>
#include <string.h>

/* ---- flags ------------------------------------------------------------------------------------------------------ */

static gy_status text_of(gy_arena *arena, const char *flag, int is_text, gy_err *err, const char **io) {
    gy_str text = {0};
    if (!*io || is_text) return GY_OK;
    gy_status st = gy_file_read(*io, GY_GRAMMAR_MAX_SOURCE, err, &text);
    if (st < 0) {
        gy_str_free(&text);
        return gy_err_prefix(err, "%s", flag);
    }
    const char *copy = gy_arena_strndup(arena, gy_str_z(&text), text.len);
    int has_nul = strlen(gy_str_z(&text)) != text.len;
    gy_str_free(&text);
    if (!copy) return gy_err_set(err, GY_E_NOMEM, "no memory for the options");
    if (has_nul) return gy_err_set(err, GY_E_ARG, "%s: %s: found a NUL in the text", flag, *io);
    *io = copy;
    return GY_OK;
}

/* A schema begins with a brace, a grammar has a rule in it; anything else names a file. */
gy_status gy_req_read_constraint(gy_arena *arena, gy_req_opts *o, gy_err *err) {
    const char *schema = o->json_schema, *grammar = o->grammar;
    int is_json = schema && schema[strspn(schema, " \t\r\n")] == '{';
    GY_TRY(text_of(arena, "--json-schema", is_json, err, &o->json_schema));
    return text_of(arena, "--grammar", grammar && strstr(grammar, "::=") != NULL, err, &o->grammar);
}

/* ---- lines of a file -------------------------------------------------------------------------------------------- */

static int says_one(const gy_jv *obj) {
    return gy_jv_get(obj, "json_schema") || gy_jv_get(obj, "json_object") || gy_jv_get(obj, "regex") ||
           gy_jv_get(obj, "grammar");
}

/* A line that says what its output must be does not mean the command line's as well. */
gy_status gy_req_begin_line(gy_arena *arena, const gy_jv *obj, gy_req_opts *o, gy_err *err) {
    const gy_jv *v = gy_jv_get(obj, "json_schema");
    gy_str text = {0};
    gy_jw w;
    if (says_one(obj)) {
        o->json_schema = o->regex = o->grammar = NULL;
        o->json_object = 0;
    }
    if (!v) return GY_OK;
    if (gy_jv_type(v) != GY_J_OBJECT)
        return gy_err_set(err, GY_E_ARG, "field \"json_schema\": found %s, expected an object",
                          gy_jtype_name(gy_jv_type(v)));
    gy_jw_init(&w, &text);
    gy_jw_value(&w, v);
    o->json_schema = text.failed ? NULL : gy_arena_strndup(arena, gy_str_z(&text), text.len);
    gy_str_free(&text);
    return o->json_schema ? GY_OK : gy_err_set(err, GY_E_NOMEM, "no memory for the prompts");
}

/* ---- with a model ----------------------------------------------------------------------------------------------- */

typedef struct constraint {
    const char *field, *text;
    gy_grammar_kind kind;
} constraint;

static gy_status find_one(const gy_req_opts *o, gy_err *err, constraint *out) {
    const constraint all[] = {{"json_schema", o->json_schema, GY_GRAMMAR_JSON_SCHEMA},
                              {"json_object", o->json_object ? "" : NULL, GY_GRAMMAR_JSON_OBJECT},
                              {"regex", o->regex, GY_GRAMMAR_REGEX},
                              {"grammar", o->grammar, GY_GRAMMAR_EBNF}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (!all[i].text) continue;
        if (out->field)
            return gy_err_set(err, GY_E_ARG, "%s: found a second constraint beside %s, expected one", all[i].field,
                              out->field);
        *out = all[i];
    }
    return GY_OK;
}

static gy_status open_grammars(gy_jobs *j, const gy_cli_model *m, gy_err *err) {
    enum { KEEP = 64 << 20 }; /* bytes: many lines have one schema */
    if (!j->vocab) GY_TRY(gy_api_model_vocab(m, err, &j->vocab));
    if (!j->grammars && gy_grammar_cache_create(KEEP, &j->grammars) < 0)
        return gy_err_set(err, GY_E_NOMEM, "no memory for grammars");
    return GY_OK;
}

gy_status gy_job_set_grammar(gy_jobs *j, gy_job *job, const gy_cli_model *m, gy_err *err) {
    const gy_req_opts *o = &job->opt;
    constraint c = {0};
    GY_TRY(find_one(o, err, &c));
    size_t n_after = o->grammar_after ? strlen(o->grammar_after) : 0;
    if (n_after && !c.field)
        return gy_err_set(err, GY_E_ARG, "grammar_after: found a text but nothing that holds behind it");
    if (n_after > GY_GRAMMAR_MAX_AFTER)
        return gy_err_set(err, GY_E_ARG, "grammar_after: found %zu bytes, expected at most %d", n_after,
                          GY_GRAMMAR_MAX_AFTER);
    if (!c.field) return GY_OK;
    gy_status st = open_grammars(j, m, err);
    if (st == GY_OK) st = gy_grammar_cache_compile(j->grammars, c.kind, c.text, strlen(c.text), err, &job->rq.grammar);
    if (st < 0) return strncmp(err->msg, c.field, strlen(c.field)) ? gy_err_prefix(err, "%s", c.field) : st;
    job->rq.vocab = j->vocab;
    job->rq.grammar_after = o->grammar_after;
    job->rq.n_grammar_after = (int32_t)n_after;
    return GY_OK;
}

uint64_t gy_job_hash_constraint(uint64_t h, const gy_req_opts *o) {
    constraint c = {0};
    if (find_one(o, NULL, &c) < 0 || !c.field) return h; /* answers without one keep the hash that they had */
    h = gy_hash_bytes(h, c.field, strlen(c.field));
    h = gy_hash_bytes(h, c.text, strlen(c.text) + 1);
    return o->grammar_after ? gy_hash_bytes(h, o->grammar_after, strlen(o->grammar_after)) : h;
}
