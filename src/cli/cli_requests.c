/* Prompts of all three kinds become jobs; a job becomes a gy_request. */
#include "cli/cli_requests.h"

#include "base/file.h"
#include "base/json.h"

#include <stdio.h>
#include <string.h>

enum { DEFAULT_MAX_TOKENS = 128 };
static const size_t MAX_INPUT_BYTES = (size_t)1 << 30;

void gy_jobs_fini(gy_jobs *j) {
    for (size_t i = 0; i < j->job.len; i++) {
        gy_vec_free(&j->job.data[i].ids);
        gy_grammar_put(j->job.data[i].rq.grammar);
    }
    gy_vec_free(&j->job);
    gy_grammar_cache_destroy(j->grammars);
    gy_grammar_vocab_destroy(j->vocab);
}

static gy_job *jobs_add(gy_jobs *j, const gy_args *a, const char *source, gy_err *err) {
    gy_job job = {.source = source, .opt = j->req ? *j->req : a->req};
    if (source && !gy_vec_push(&j->job, GY_MEM_CLI, job)) return &j->job.data[j->job.len - 1];
    gy_err_set(err, GY_E_NOMEM, "no memory for the prompts");
    return NULL;
}

/* ---- collect ---- */

static gy_status ids_from_json(const gy_jv *v, gy_err *err, gy_vec_i32 *ids) {
    if (gy_jv_type(v) != GY_J_ARRAY)
        return gy_err_set(err, GY_E_ARG, "field \"prompt_ids\": found %s, expected a list of token ids",
                          gy_jtype_name(gy_jv_type(v)));
    for (size_t i = 0; i < gy_jv_len(v); i++) {
        int64_t id = gy_jv_int(gy_jv_at(v, i), -1);
        if (id < 0 || id > INT32_MAX)
            return gy_err_set(err, GY_E_ARG, "field \"prompt_ids\": entry %zu is no token id", i + 1);
        if (gy_vec_push(ids, GY_MEM_CLI, (int32_t)id)) return gy_err_set(err, GY_E_NOMEM, "no memory for token ids");
    }
    return GY_OK;
}

static gy_status text_from_json(gy_jobs *j, const gy_jv *v, gy_err *err, gy_job *job) {
    const char *s = gy_jv_str(v, &job->text_len);
    if (!s)
        return gy_err_set(err, GY_E_ARG, "field \"prompt\": found %s, expected a string", gy_jtype_name(gy_jv_type(v)));
    job->text = gy_arena_strndup(j->arena, s, job->text_len);
    return job->text ? GY_OK : gy_err_set(err, GY_E_NOMEM, "no memory for the prompts");
}

static gy_status job_from_json(gy_jobs *j, const gy_args *a, const gy_jv *obj, const char *source, gy_err *err) {
    static const char *const skip[] = {"prompt", "prompt_ids", "json_schema", NULL};
    const gy_jv *text = gy_jv_get(obj, "prompt"), *ids = gy_jv_get(obj, "prompt_ids");
    if (gy_jv_type(obj) == GY_J_OBJECT && !text == !ids)
        return gy_err_set(err, GY_E_ARG, "found %s \"prompt\" and \"prompt_ids\", expected one of them",
                          text ? "both" : "neither");
    gy_job *job = jobs_add(j, a, source, err);
    if (!job) return GY_E_NOMEM;
    job->from_file = 1;
    GY_TRY(gy_req_begin_line(j->arena, obj, &job->opt, err));
    GY_TRY(gy_req_from_json(j->arena, obj, skip, err, &job->opt));
    return text ? text_from_json(j, text, err, job) : ids_from_json(ids, err, &job->ids);
}

static gy_status jsonl_line(gy_jobs *j, const gy_args *a, const char *line, size_t len, const char *source,
                            gy_err *err) {
    gy_json *doc = NULL;
    gy_status st = gy_json_parse(line, len, NULL, err, &doc);
    if (st == GY_OK) st = job_from_json(j, a, gy_json_root(doc), source, err);
    gy_json_free(doc);
    return st < 0 ? gy_err_prefix(err, "%s", source) : GY_OK;
}

gy_status gy_jobs_add_jsonl(gy_jobs *j, const gy_args *a, const char *text, size_t len, const char *name, gy_err *err) {
    size_t no = 1;
    for (const char *p = text, *end = text + len; p < end; no++) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        size_t n = nl ? (size_t)(nl - p) : (size_t)(end - p);
        if (strspn(p, " \t\r\n") < n) {
            char source[320];
            int m = snprintf(source, sizeof source, "%.280s:%zu", name, no);
            GY_TRY(jsonl_line(j, a, p, n, gy_arena_strndup(j->arena, source, (size_t)m), err));
        }
        p += n + 1;
    }
    return GY_OK;
}

gy_status gy_cli_read_input(const char *path, gy_err *err, gy_str *out) {
    char buf[1 << 14];
    size_t n;
    if (strcmp(path, "-") != 0) return gy_file_read(path, MAX_INPUT_BYTES, err, out);
    while ((n = fread(buf, 1, sizeof buf, stdin)) > 0 && out->len <= MAX_INPUT_BYTES) gy_str_append(out, buf, n);
    if (ferror(stdin)) return gy_err_set(err, GY_E_IO, "standard input: cannot read");
    if (out->len > MAX_INPUT_BYTES)
        return gy_err_set(err, GY_E_LIMIT, "standard input: longer than the limit of %zu bytes", MAX_INPUT_BYTES);
    return out->failed ? gy_err_set(err, GY_E_NOMEM, "no memory for standard input") : GY_OK;
}

static gy_status add_input(gy_jobs *j, const gy_args *a, const char *path, gy_err *err) {
    gy_str text = {0};
    size_t before = j->job.len;
    gy_status st = gy_cli_read_input(path, err, &text);
    const char *name = strcmp(path, "-") ? path : "standard input";
    if (st == GY_OK) st = gy_jobs_add_jsonl(j, a, gy_str_z(&text), text.len, name, err);
    if (st == GY_OK && j->job.len == before) st = gy_err_set(err, GY_E_ARG, "%s: found no request in it", name);
    gy_str_free(&text);
    return st;
}

static gy_status add_text(gy_jobs *j, const gy_args *a, const char *text, size_t len, gy_err *err) {
    gy_job *job = jobs_add(j, a, "--prompt", err);
    if (!job) return GY_E_NOMEM;
    job->text = text;
    job->text_len = len;
    return GY_OK;
}

static gy_status add_item(gy_jobs *j, const gy_args *a, const gy_opt_item *it, gy_err *err) {
    if (!strcmp(it->opt->name, "prompt")) return add_text(j, a, it->text, it->len, err);
    if (!strcmp(it->opt->name, "input")) return add_input(j, a, it->text, err);
    gy_job *job = jobs_add(j, a, "--prompt-ids", err);
    return job ? gy_cli_parse_ids(it->text, it->len, "--prompt-ids", err, &job->ids) : GY_E_NOMEM;
}

static gy_status read_flags(gy_jobs *j, const gy_args *a, gy_err *err) {
    gy_req_opts *o = gy_arena_alloc(a->arena, 1, sizeof *o);
    if (!o) return gy_err_set(err, GY_E_NOMEM, "no memory for the options");
    *o = a->req;
    GY_TRY(gy_req_read_constraint(a->arena, o, err));
    j->req = o;
    return GY_OK;
}

gy_status gy_jobs_collect(gy_jobs *j, const gy_args *a, const char *pos_prompt, gy_err *err) {
    j->arena = a->arena;
    GY_TRY(read_flags(j, a, err));
    if (pos_prompt) GY_TRY(add_text(j, a, pos_prompt, strlen(pos_prompt), err));
    for (size_t i = 0; i < a->prompts.n; i++) GY_TRY(add_item(j, a, &a->prompts.items[i], err));
    if (j->job.len) return GY_OK;
    return gy_err_set(err, GY_E_ARG, "no prompt; give one of --prompt TEXT, --prompt-ids 1,2,3, --input FILE.jsonl");
}

/* ---- prepare ---- */

static gy_status job_encode(gy_job *job, const gy_cli_model *m, gy_tok_ctx *ctx, gy_err *err) {
    if (job->text && !m->tok)
        return gy_err_set(err, GY_E_ARG,
                          "prompt: %s holds no tokenizer, so text cannot be read; give token ids: --prompt-ids 1,2,3",
                          m->dir);
    if (job->text)
        GY_TRY(gy_tok_encode(ctx, job->text, job->text_len, GY_TOK_ADD_SPECIAL | GY_TOK_PARSE_SPECIAL, err, &job->ids));
    if (!job->ids.len) return gy_err_set(err, GY_E_ARG, "prompt: found no tokens, expected at least one");
    return gy_cli_check_ids(job->ids.data, job->ids.len, m->d.n_vocab, "prompt", err);
}

/* A default gives way to the context; what was asked for does not. */
static gy_status job_set_length(gy_job *job, const gy_cli_model *m, gy_err *err) {
    int64_t room = (int64_t)m->d.max_pos - (int64_t)job->ids.len;
    int64_t want = job->opt.max_tokens;
    if (!want && job->rq.n_trace) want = job->rq.n_trace;
    if (!want) want = room < DEFAULT_MAX_TOKENS && room > 0 ? room : DEFAULT_MAX_TOKENS;
    if (want > room)
        return gy_err_set(err, GY_E_LIMIT,
                          "prompt: %zu tokens and max_tokens %lld make %lld, the model's context is %d", job->ids.len,
                          (long long)want, (long long)want + (long long)job->ids.len, m->d.max_pos);
    if (job->opt.min_tokens > want)
        return gy_err_set(err, GY_E_ARG, "min_tokens: found %d, expected at most max_tokens, %lld", job->opt.min_tokens,
                          (long long)want);
    job->rq.max_tokens = (int32_t)want;
    return GY_OK;
}

/* One "ID:BIAS" of len bytes. */
static gy_status parse_pair(const char *s, size_t len, gy_err *err, gy_logit_bias *out) {
    char id[24] = "", value[40] = "";
    int64_t i = -1;
    double v = 0;
    const char *at = memchr(s, ':', len);
    size_t n_id = at ? (size_t)(at - s) : len, n_value = at ? len - n_id - 1 : 0;
    if (n_id < sizeof id && n_value < sizeof value) {
        memcpy(id, s, n_id);
        memcpy(value, s + len - n_value, n_value);
    }
    if (gy_parse_i64(id, &i) || i < 0 || i > INT32_MAX || gy_parse_f64(value, &v))
        return gy_err_set(err, GY_E_ARG, "logit_bias: found '%.*s', expected ID:BIAS", (int)(len < 60 ? len : 60), s);
    *out = (gy_logit_bias){(int32_t)i, (float)v};
    return GY_OK;
}

/* "ID:BIAS,..." */
static gy_status parse_bias(gy_arena *arena, const char *text, gy_err *err, gy_sample_params *p) {
    size_t most = 1, n = 0;
    for (const char *c = text; *c; c++) most += *c == ',';
    gy_logit_bias *bias = gy_arena_alloc(arena, most, sizeof *bias);
    if (!bias || most > INT32_MAX) return gy_err_set(err, GY_E_NOMEM, "no memory for the options");
    while (*text) {
        size_t len = strcspn(text, ",");
        GY_TRY(parse_pair(text, len, err, &bias[n++]));
        text += len + (text[len] == ',');
    }
    p->bias = bias;
    p->n_bias = (int32_t)n;
    return GY_OK;
}

static gy_status job_set_sample(gy_jobs *j, gy_job *job, const gy_cli_model *m, gy_err *err) {
    const gy_req_opts *o = &job->opt;
    gy_sample_params *p = &job->rq.sample;
    p->temperature = (float)o->temperature;
    p->top_k = o->top_k;
    p->top_p = (float)o->top_p;
    p->min_p = (float)o->min_p;
    p->repetition_penalty = (float)o->repetition_penalty;
    p->presence_penalty = (float)o->presence_penalty;
    p->frequency_penalty = (float)o->frequency_penalty;
    p->seed = o->seed.v;
    p->n_logprobs = o->logprobs;
    job->rq.n = o->n;
    job->rq.prompt_logprobs = o->prompt_logprobs;
    if (o->logit_bias) GY_TRY(parse_bias(j->arena, o->logit_bias, err, p));
    GY_TRY(gy_sample_params_check(p, err));
    return gy_sample_params_check_vocab(p, m->d.n_vocab, err);
}

static gy_status job_set_engine(gy_job *job, const gy_cli_model *m, gy_err *err) {
    const gy_req_opts *o = &job->opt;
    size_t n_salt = o->cache_salt ? strlen(o->cache_salt) : 0;
    if (n_salt > GY_PREFIX_MAX_SALT)
        return gy_err_set(err, GY_E_ARG, "cache_salt: found %zu bytes, expected at most %d", n_salt,
                          GY_PREFIX_MAX_SALT);
    if (o->gates && !m->d.has_gate)
        return gy_err_set(err, GY_E_ARG, "gates: this %s model has no exit gate", m->d.family);
    job->rq.want_gates = o->gates;
    job->rq.priority = o->priority;
    job->rq.no_cache = o->no_cache;
    job->rq.cache_salt = o->cache_salt;
    job->rq.n_salt = (int32_t)n_salt;
    return GY_OK;
}

static gy_status job_set_trace(gy_jobs *j, gy_job *job, const char *path, size_t index, gy_err *err) {
    gy_trace *t = &j->trace;
    if (!path) return GY_OK;
    if (!t->path || strcmp(t->path, path) != 0) GY_TRY(gy_trace_read(j->arena, path, err, t));
    if (index >= t->n)
        return gy_err_set(err, GY_E_ARG, "exit: %s holds %zu lists of loops, none for prompt %zu", path, t->n,
                          index + 1);
    job->rq.trace = t->list[index].loops;
    job->rq.n_trace = t->list[index].n;
    int32_t want = job->opt.max_tokens ? job->opt.max_tokens : job->rq.n_trace;
    if (job->rq.n_trace < want || !job->rq.n_trace)
        return gy_err_set(err, GY_E_ARG, "exit: %s holds %d loops for prompt %zu, max_tokens is %d", path,
                          job->rq.n_trace, index + 1, want);
    return GY_OK;
}

static gy_status job_set_state(gy_job *job, const gy_cli_model *m, gy_err *err) {
    job->rq.latent_noise = job->opt.initial_state;
    job->rq.latent_seed = job->opt.latent_seed;
    if (!job->rq.latent_noise || m->d.inject) return GY_OK;
    return gy_err_set(err, GY_E_ARG, "initial_state: found noise; %s models have no initial state to fill",
                      m->d.family);
}

/* Only to see whether they are good. */
static gy_status check_stop(const gy_job *job, const gy_cli_model *m, gy_err *err) {
    gy_stop *s = NULL;
    if (!job->opt.stop.n) return GY_OK;
    if (!m->tok)
        return gy_err_set(err, GY_E_ARG, "stop: %s holds no tokenizer, so there is no text to find it in", m->dir);
    gy_status st = gy_job_stop_create(job, err, &s);
    gy_stop_destroy(s);
    return st;
}

/* Those of the model, then further ones: one list in the arena. */
static gy_status join_stop_ids(gy_jobs *j, gy_request *rq, const gy_vec_i32 *more, gy_err *err) {
    size_t n_own = (size_t)rq->n_stop_ids;
    int32_t *all = gy_arena_alloc(j->arena, n_own + more->len + 1, sizeof *all);
    if (!all) return gy_err_set(err, GY_E_NOMEM, "no memory for the options");
    if (n_own) memcpy(all, rq->stop_ids, n_own * sizeof *all);
    if (more->len) memcpy(all + n_own, more->data, more->len * sizeof *all);
    rq->stop_ids = all;
    rq->n_stop_ids = (int32_t)(n_own + more->len);
    return GY_OK;
}

static gy_status job_set_ends(gy_jobs *j, gy_job *job, const gy_cli_model *m, gy_err *err) {
    gy_request *rq = &job->rq;
    const char *text = job->opt.stop_ids;
    gy_vec_i32 more = {0};
    rq->ignore_eos = job->opt.ignore_eos;
    rq->min_tokens = job->opt.min_tokens;
    if (!rq->ignore_eos) {
        rq->stop_ids = m->eos;
        rq->n_stop_ids = m->n_eos;
    }
    GY_TRY(check_stop(job, m, err));
    if (!text) return GY_OK;
    gy_status st = gy_cli_parse_ids(text, strlen(text), "stop_ids", err, &more);
    if (st == GY_OK) st = gy_cli_check_ids(more.data, more.len, m->d.n_vocab, "stop_ids", err);
    if (st == GY_OK) st = join_stop_ids(j, rq, &more, err);
    gy_vec_free(&more);
    return st;
}

/* ctx: of m's tokenizer, NULL if it has none. */
static gy_status job_prepare(gy_jobs *j, size_t index, const gy_cli_model *m, gy_tok_ctx *ctx, gy_err *err) {
    gy_job *job = &j->job.data[index];
    const char *trace_file;
    gy_request_default(&job->rq, &m->d);
    GY_TRY(gy_rule_resolve(&job->opt, &m->d, err, &job->rq.exit, &trace_file));
    GY_TRY(job_set_sample(j, job, m, err));
    GY_TRY(job_set_state(job, m, err));
    GY_TRY(job_set_ends(j, job, m, err));
    GY_TRY(job_set_engine(job, m, err));
    GY_TRY(gy_job_set_grammar(j, job, m, err));
    GY_TRY(job_set_trace(j, job, trace_file, index, err));
    GY_TRY(job_encode(job, m, ctx, err));
    GY_TRY(job_set_length(job, m, err));
    job->rq.prompt = job->ids.data;
    job->rq.n_prompt = (int32_t)job->ids.len;
    return GY_OK;
}

static gy_status job_refuse(gy_jobs *j, gy_job *job, gy_err *err) {
    job->refused = gy_arena_strndup(j->arena, err->msg, strlen(err->msg));
    if (!job->refused) return gy_err_set(err, GY_E_NOMEM, "no memory for the prompts");
    *err = (gy_err){0};
    return GY_OK;
}

static gy_status prepare_all(gy_jobs *j, const gy_cli_model *m, gy_tok_ctx *ctx, gy_err *err) {
    for (size_t i = 0; i < j->job.len; i++) {
        gy_job *job = &j->job.data[i];
        if (job_prepare(j, i, m, ctx, err) >= 0) continue;
        if (job->from_file && err->status == GY_E_LIMIT) {
            GY_TRY(job_refuse(j, job, err));
            continue;
        }
        if (job->from_file) return gy_err_prefix(err, "%s", job->source);
        gy_cli_name_flag(err);
        return err->status;
    }
    return GY_OK;
}

gy_status gy_jobs_prepare(gy_jobs *j, const gy_cli_model *m, gy_err *err) {
    gy_tok_ctx *ctx = NULL;
    if (m->tok && gy_tok_ctx_create(m->tok, &ctx) < 0)
        return gy_err_set(err, GY_E_NOMEM, "no memory for the tokenizer");
    gy_status st = prepare_all(j, m, ctx, err);
    gy_tok_ctx_destroy(ctx);
    return st;
}

gy_status gy_job_stop_create(const gy_job *job, gy_err *err, gy_stop **out) {
    gy_stop_string strings[GY_MAX_STOP];
    const gy_opt_list *l = &job->opt.stop;
    if (l->n > GY_MAX_STOP)
        return gy_err_set(err, GY_E_ARG, "stop: found %zu strings, expected at most %d", l->n, GY_MAX_STOP);
    for (size_t i = 0; i < l->n; i++) strings[i] = (gy_stop_string){l->items[i].text, l->items[i].len};
    return gy_stop_create(strings, l->n, err, out);
}

static int counts(const gy_jobs *j, const unsigned char *done, size_t i) {
    return !j->job.data[i].refused && !(done && done[i]);
}

int32_t gy_jobs_max_len(const gy_jobs *j, const unsigned char *done) {
    int32_t most = 1;
    for (size_t i = 0; i < j->job.len; i++) {
        const gy_request *r = &j->job.data[i].rq;
        if (counts(j, done, i) && r->n_prompt + r->max_tokens > most) most = r->n_prompt + r->max_tokens;
    }
    return most;
}

int32_t gy_jobs_max_loops(const gy_jobs *j, const unsigned char *done) {
    int32_t most = 1;
    for (size_t i = 0; i < j->job.len; i++)
        if (counts(j, done, i) && j->job.data[i].rq.exit.max_loops > most) most = j->job.data[i].rq.exit.max_loops;
    return most;
}

/* ---- what an answer depends on ---- */

uint64_t gy_hash_bytes(uint64_t h, const void *bytes, size_t n) {
    const unsigned char *b = bytes;
    if (!h) h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) h = (h ^ b[i]) * 0x100000001b3u;
    return h;
}

static uint64_t hash_num(uint64_t h, double v) {
    if (v == 0) v = 0; /* -0.0 is the same request */
    return gy_hash_bytes(h, &v, sizeof v);
}

static uint64_t hash_i64(uint64_t h, int64_t v) {
    return gy_hash_bytes(h, &v, sizeof v);
}

static uint64_t hash_ids(uint64_t h, const int32_t *ids, int32_t n) {
    h = hash_i64(h, n);
    return n > 0 ? gy_hash_bytes(h, ids, (size_t)n * sizeof *ids) : h;
}

/* A seed that will be drawn is no part of what was asked for. */
static uint64_t hash_seed(uint64_t h, const gy_req_opts *o) {
    h = hash_i64(h, o->seed.given);
    return hash_i64(h, o->seed.given ? (int64_t)o->seed.v : 0);
}

static uint64_t hash_sample(uint64_t h, const gy_request *r) {
    const gy_sample_params *p = &r->sample;
    h = hash_num(h, p->temperature);
    h = hash_i64(h, p->top_k);
    h = hash_num(h, p->top_p);
    h = hash_num(h, p->min_p);
    h = hash_num(h, p->repetition_penalty);
    h = hash_num(h, p->presence_penalty);
    h = hash_num(h, p->frequency_penalty);
    h = hash_i64(h, p->n_logprobs);
    h = hash_i64(h, p->n_bias);
    for (int32_t i = 0; i < p->n_bias; i++) h = hash_num(hash_i64(h, p->bias[i].id), p->bias[i].bias);
    return h;
}

static uint64_t hash_ends(uint64_t h, const gy_job *job) {
    h = hash_i64(h, job->rq.max_tokens);
    h = hash_i64(h, job->rq.min_tokens);
    h = hash_i64(h, job->rq.ignore_eos);
    h = hash_ids(h, job->rq.stop_ids, job->rq.n_stop_ids);
    h = hash_i64(h, (int64_t)job->opt.stop.n);
    for (size_t i = 0; i < job->opt.stop.n; i++) {
        h = hash_i64(h, (int64_t)job->opt.stop.items[i].len);
        h = gy_hash_bytes(h, job->opt.stop.items[i].text, job->opt.stop.items[i].len);
    }
    return h;
}

static uint64_t hash_depth(uint64_t h, const gy_request *r) {
    h = hash_i64(h, r->exit.kind);
    h = hash_num(h, r->exit.threshold);
    h = hash_i64(h, r->exit.min_loops);
    h = hash_i64(h, r->exit.max_loops);
    h = hash_ids(h, r->trace, r->n_trace);
    h = hash_i64(h, r->latent_noise);
    return hash_i64(h, r->latent_noise ? (int64_t)r->latent_seed : 0);
}

/* A refused job's answer is its sentence, which the prompt and its length decide. */
uint64_t gy_job_hash(const gy_job *job, uint64_t seed) {
    uint64_t h = hash_i64(0, (int64_t)seed);
    h = hash_ids(h, job->ids.data, (int32_t)job->ids.len);
    if (job->refused) return gy_hash_bytes(h, job->refused, strlen(job->refused));
    h = hash_i64(h, job->rq.n);
    h = hash_i64(h, job->rq.prompt_logprobs);
    h = hash_i64(h, job->rq.want_gates);
    h = hash_seed(h, &job->opt);
    h = gy_job_hash_constraint(h, &job->opt);
    return hash_depth(hash_ends(hash_sample(h, &job->rq), job), &job->rq);
}
