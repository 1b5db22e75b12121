/* Tokens to text and to JSON. The field names and their order are fixed (docs/gyre.1). */
#include "cli/cli_output.h"

#include "base/json.h"

#include <math.h>
#include <string.h>

static gy_status output_init(gy_output *o, const gy_answer *a, gy_err *err) {
    o->stop_id = -1;
    if (!a->m->tok) return GY_OK;
    if (gy_detok_create(a->m->tok, 1, &o->detok) < 0) return gy_err_set(err, GY_E_NOMEM, "no memory for the outputs");
    return gy_job_stop_create(a->job, err, &o->stop);
}

gy_status gy_answer_create(const gy_job *job, const gy_cli_model *m, size_t index, gy_err *err, gy_answer **out) {
    int32_t n = job->opt.n;
    gy_answer *a = gy_mem_alloc(GY_MEM_CLI, 1, sizeof *a + (size_t)n * sizeof *a->choice);
    if (!a) return gy_err_set(err, GY_E_NOMEM, "no memory for the outputs");
    a->job = job;
    a->m = m;
    a->index = index;
    a->n = n;
    for (int32_t i = 0; i < n; i++) {
        if (output_init(&a->choice[i], a, err) >= 0) continue;
        gy_answer_free(a);
        return err->status;
    }
    *out = a;
    return GY_OK;
}

static void output_fini(gy_output *o) {
    gy_detok_destroy(o->detok);
    gy_stop_destroy(o->stop);
    gy_str_free(&o->text);
    gy_vec_free(&o->ids);
    gy_vec_free(&o->loops);
    gy_vec_free(&o->logprobs);
    gy_vec_free(&o->gate);
    gy_vec_free(&o->n_gate);
}

void gy_answer_free(gy_answer *a) {
    if (!a) return;
    for (int32_t i = 0; i < a->n; i++) output_fini(&a->choice[i]);
    gy_vec_free(&a->prompt_logprobs);
    gy_mem_free(a);
}

int gy_answer_done(const gy_answer *a) {
    return a->n_done == a->n;
}

const gy_err *gy_answer_error(const gy_answer *a) {
    for (int32_t i = 0; i < a->n; i++)
        if (a->choice[i].err.status < 0) return &a->choice[i].err;
    return NULL;
}

/* ---- filling ---- */

static int ends_text(const gy_request *r, int32_t id) {
    for (int32_t i = 0; i < r->n_stop_ids; i++)
        if (r->stop_ids[i] == id) return 1;
    return 0;
}

/* Ids behind the tokenizer's vocabulary exist where a model pads its own: they have no text. */
static int has_text(const gy_answer *a, const gy_output *o, int32_t id) {
    return o->detok && !ends_text(&a->job->rq, id) && gy_tok_piece(a->m->tok, id, NULL) != NULL;
}

/* Text of the first min_tokens outputs goes past the stop strings. 1 when one was found. */
static int push_text(gy_output *o, const char *text, size_t len, int search) {
    if (!search) {
        gy_str_append(&o->text, text, len);
        return 0;
    }
    o->stopped = gy_stop_push(o->stop, text, len, &o->text, &o->stop_string);
    return o->stopped;
}

static int extend_text(const gy_answer *a, gy_output *o, int32_t id) {
    gy_str piece = {0};
    int search = o->ids.len > (size_t)a->job->rq.min_tokens;
    int rc = gy_detok_push(o->detok, id, &o->err, &piece) < 0 ? -1 : 0;
    if (!rc) rc = push_text(o, gy_str_z(&piece), piece.len, search);
    if (piece.failed || o->text.failed) {
        gy_err_set(&o->err, GY_E_NOMEM, "no memory for the text");
        rc = -1;
    }
    gy_str_free(&piece);
    return rc;
}

static int keep_gates(gy_output *o, const gy_token_event *ev) {
    if (gy_vec_push(&o->n_gate, GY_MEM_CLI, ev->n_gate)) return -1;
    for (int32_t i = 0; i < ev->n_gate; i++)
        if (gy_vec_push(&o->gate, GY_MEM_CLI, ev->gates[i])) return -1;
    return 0;
}

gy_verdict gy_answer_on_token(void *answer, const gy_token_event *ev) {
    gy_answer *a = answer;
    gy_output *o = &a->choice[ev->choice];
    int lost = gy_vec_push(&o->ids, GY_MEM_CLI, ev->token) || gy_vec_push(&o->loops, GY_MEM_CLI, ev->loops);
    if (!lost && a->job->opt.logprobs >= 0) lost = gy_vec_push(&o->logprobs, GY_MEM_CLI, *ev->sampled);
    if (!lost && a->job->opt.gates) lost = keep_gates(o, ev);
    if (lost) {
        gy_err_set(&o->err, GY_E_NOMEM, "no memory for the outputs");
        return GY_STOP;
    }
    return has_text(a, o, ev->token) && extend_text(a, o, ev->token) ? GY_STOP : GY_CONTINUE;
}

void gy_answer_on_prompt(void *answer, const gy_prompt_event *ev) {
    gy_answer *a = answer;
    if (gy_vec_push(&a->prompt_logprobs, GY_MEM_CLI, *ev->sampled))
        gy_err_set(&a->err, GY_E_NOMEM, "no memory for the prompt's log probabilities");
}

static void end_text(const gy_answer *a, gy_output *o) {
    gy_str rest = {0};
    if (!o->detok || o->stopped) return;
    if (gy_detok_finish(o->detok, &o->err, &rest) >= 0 &&
        push_text(o, gy_str_z(&rest), rest.len, o->ids.len > (size_t)a->job->rq.min_tokens) &&
        !strcmp(o->reason, "length"))
        o->reason = gy_finish_name(GY_FINISH_STOP);
    gy_stop_finish(o->stop, &o->text);
    if (rest.failed || o->text.failed) gy_err_set(&o->err, GY_E_NOMEM, "no memory for the text");
    gy_str_free(&rest);
}

void gy_answer_on_finish(void *answer, const gy_finish_event *ev) {
    gy_answer *a = answer;
    gy_output *o = &a->choice[ev->choice];
    o->reason = gy_finish_name(ev->reason);
    o->n_prompt = ev->n_prompt;
    o->n_cached = ev->n_cached;
    o->stop_id = ev->stop_id;
    o->seed = ev->seed;
    o->submit_ns = ev->submit_ns;
    o->first_token_ns = ev->first_token_ns;
    o->finish_ns = ev->finish_ns;
    o->pd = ev->pd;
    if (ev->err) o->err = *ev->err;
    end_text(a, o);
    /* What was lost on our side is an error of this request too. */
    if (a->err.status < 0) o->err = a->err;
    if (o->err.status < 0) o->reason = gy_finish_name(GY_FINISH_ERROR);
    a->n_done++;
}

void gy_answer_refuse(gy_answer *a, const char *why) {
    for (int32_t i = 0; i < a->n; i++) {
        a->choice[i].reason = gy_finish_name(GY_FINISH_ERROR);
        a->choice[i].n_prompt = (int32_t)a->job->ids.len;
        gy_err_set(&a->choice[i].err, GY_E_LIMIT, "%s", why);
    }
    a->n_done = a->n;
}

/* ---- JSON ---- */

static void put_ids(gy_jw *w, const char *key, const gy_vec_i32 *v) {
    gy_jw_key(w, key);
    gy_jw_arr_begin(w);
    for (size_t i = 0; i < v->len; i++) gy_jw_int(w, v->data[i]);
    gy_jw_arr_end(w);
}

static void put_logprob(gy_jw *w, int32_t id, float logprob) {
    gy_jw_key(w, "token_id");
    gy_jw_int(w, id);
    gy_jw_key(w, "logprob");
    gy_jw_f32(w, logprob);
}

static void put_sampled(gy_jw *w, const gy_sampled *s) {
    gy_jw_obj_begin(w);
    put_logprob(w, s->id, s->logprob);
    gy_jw_key(w, "top");
    gy_jw_arr_begin(w);
    for (int32_t i = 0; i < s->n_top; i++) {
        gy_jw_obj_begin(w);
        put_logprob(w, s->top_id[i], s->top_logprob[i]);
        gy_jw_obj_end(w);
    }
    gy_jw_arr_end(w);
    gy_jw_obj_end(w);
}

/* first_null: the list is about tokens of which the first has nothing before it. */
static void put_logprobs(gy_jw *w, const char *key, int wanted, const gy_vec_sampled *v, int first_null) {
    gy_jw_key(w, key);
    if (!wanted) {
        gy_jw_null(w);
        return;
    }
    gy_jw_arr_begin(w);
    if (first_null) gy_jw_null(w);
    for (size_t i = 0; i < v->len; i++) put_sampled(w, &v->data[i]);
    gy_jw_arr_end(w);
}

/* Behind the point: more would be noise. */
static double three_digits(double v) {
    return floor(v * 1000.0 + 0.5) / 1000.0;
}

static void put_ms(gy_jw *w, const char *key, int64_t from_ns, int64_t to_ns) {
    gy_jw_key(w, key);
    if (to_ns)
        gy_jw_f64(w, three_digits((double)(to_ns - from_ns) * 1e-6));
    else
        gy_jw_null(w);
}

static void put_seconds(gy_jw *w, const char *key, int64_t ns) {
    gy_jw_key(w, key);
    gy_jw_f64(w, (double)ns / 1e9);
}

static void put_count(gy_jw *w, const char *key, int64_t n) {
    gy_jw_key(w, key);
    gy_jw_int(w, n);
}

/* Stages in seconds since the submission, null where one did not happen. */
static void put_pd(gy_jw *w, const gy_output *o) {
    const gy_pd_cost *c = &o->pd;
    gy_jw_key(w, "pd");
    gy_jw_obj_begin(w);
    for (int s = 0; s < GY_PD_STAGES; s++) {
        if (c->at_ns[s]) {
            put_seconds(w, gy_pd_stage_name((gy_pd_stage)s), c->at_ns[s] - o->submit_ns);
            continue;
        }
        gy_jw_key(w, gy_pd_stage_name((gy_pd_stage)s));
        gy_jw_null(w);
    }
    put_count(w, "prefill_worker", c->prefill);
    put_count(w, "decode_worker", c->decode);
    put_count(w, "tries", c->n_try);
    put_count(w, "bytes", c->bytes);
    put_count(w, "transfers", c->n_op);
    put_count(w, "descriptors", c->n_desc);
    if (c->is_measured) {
        put_seconds(w, "post_s", c->post_ns);
        put_seconds(w, "wire_s", c->wire_ns);
        put_seconds(w, "tail_s", c->tail_ns);
        put_seconds(w, "overlap_s", c->overlap_ns);
        put_count(w, "overlap_bytes", c->overlap_bytes);
    }
    gy_jw_obj_end(w);
}

static void put_timing(gy_jw *w, const gy_output *o) {
    double seconds = (double)(o->finish_ns - o->submit_ns) * 1e-9;
    gy_jw_key(w, "timing");
    gy_jw_obj_begin(w);
    gy_jw_key(w, "prompt_tokens");
    gy_jw_int(w, o->n_prompt);
    gy_jw_key(w, "output_tokens");
    gy_jw_int(w, (int64_t)o->ids.len);
    put_ms(w, "ttft_ms", o->submit_ns, o->first_token_ns);
    put_ms(w, "total_ms", o->submit_ns, o->finish_ns);
    gy_jw_key(w, "tokens_per_s");
    gy_jw_f64(w, seconds > 0 ? three_digits((double)o->ids.len / seconds) : 0.0);
    if (o->pd.n_try) put_pd(w, o);
    gy_jw_obj_end(w);
}

/* JSON's whole numbers end at 2^63 - 1 for most readers, ours included. */
static void put_seed(gy_jw *w, uint64_t seed) {
    gy_str text = {0};
    gy_jw_key(w, "seed");
    if (seed <= INT64_MAX) {
        gy_jw_int(w, (int64_t)seed);
        return;
    }
    gy_str_printf(&text, "%llu", (unsigned long long)seed);
    gy_jw_strz(w, gy_str_z(&text));
    if (text.failed) w->out->failed = 1;
    gy_str_free(&text);
}

static void put_gates(gy_jw *w, const gy_output *o) {
    const float *g = o->gate.data;
    gy_jw_key(w, "gates");
    gy_jw_arr_begin(w);
    for (size_t i = 0; i < o->n_gate.len; i++) {
        gy_jw_arr_begin(w);
        for (int32_t k = 0; k < o->n_gate.data[i]; k++) gy_jw_f32(w, *g++);
        gy_jw_arr_end(w);
    }
    gy_jw_arr_end(w);
}

static void put_stop_reason(gy_jw *w, const gy_answer *a, const gy_output *o) {
    if (strcmp(o->reason, "stop") != 0) return;
    gy_jw_key(w, "stop_reason");
    if (o->stopped)
        gy_jw_str(w, a->job->opt.stop.items[o->stop_string].text, a->job->opt.stop.items[o->stop_string].len);
    else if (o->stop_id >= 0)
        gy_jw_int(w, o->stop_id);
    else
        gy_jw_null(w); /* the text was complete */
}

/* What is there only when it was asked for or has something to say. */
static void put_more(gy_jw *w, const gy_answer *a, int32_t k) {
    const gy_output *o = &a->choice[k];
    const gy_req_opts *opt = &a->job->opt;
    if (opt->n > 1) {
        gy_jw_key(w, "choice");
        gy_jw_int(w, k);
    }
    put_stop_reason(w, a, o);
    if (opt->temperature > 0 && !a->job->refused) put_seed(w, o->seed);
    if (opt->gates) put_gates(w, o);
    if (opt->prompt_logprobs >= 0)
        put_logprobs(w, "prompt_logprobs", k == 0 && o->reason && o->err.status >= 0, &a->prompt_logprobs, 1);
    if (a->show_cached) {
        gy_jw_key(w, "cached_tokens");
        gy_jw_int(w, o->n_cached);
    }
}

static void put_head(gy_jw *w, const gy_job *job, size_t index) {
    gy_jw_obj_begin(w);
    gy_jw_key(w, "index");
    gy_jw_int(w, (int64_t)index);
    put_ids(w, "prompt_ids", &job->ids);
}

void gy_answer_put_head(const gy_job *job, size_t index, gy_str *out) {
    gy_jw w;
    gy_jw_init(&w, out);
    put_head(&w, job, index);
}

static void put_choice(const gy_answer *a, int32_t k, const char *hash, gy_str *out) {
    const gy_output *o = &a->choice[k];
    gy_jw w;
    gy_jw_init(&w, out);
    put_head(&w, a->job, a->index);
    put_ids(&w, "token_ids", &o->ids);
    put_ids(&w, "loops", &o->loops);
    gy_jw_key(&w, "text");
    if (o->detok)
        gy_jw_str(&w, gy_str_z(&o->text), o->text.len);
    else
        gy_jw_null(&w);
    gy_jw_key(&w, "finish_reason");
    gy_jw_strz(&w, o->reason);
    put_logprobs(&w, "logprobs", a->job->opt.logprobs >= 0, &o->logprobs, 0);
    put_timing(&w, o);
    put_more(&w, a, k);
    if (o->err.status < 0) {
        gy_jw_key(&w, "error");
        gy_jw_strz(&w, o->err.msg);
    }
    if (hash) {
        gy_jw_key(&w, "request");
        gy_jw_strz(&w, hash);
    }
    gy_jw_obj_end(&w);
    gy_str_putc(out, '\n');
}

void gy_answer_put_json(const gy_answer *a, const char *hash, gy_str *out) {
    for (int32_t k = 0; k < a->n; k++) put_choice(a, k, hash, out);
}

/* ---- text ---- */

static void put_new(gy_output *o, gy_str *out) {
    if (o->detok) {
        gy_str_append(out, gy_str_z(&o->text) + o->printed, o->text.len - o->printed);
        o->printed = o->text.len;
    }
    for (; !o->detok && o->printed < o->ids.len; o->printed++)
        gy_str_printf(out, "%s%d", o->printed ? " " : "", o->ids.data[o->printed]);
}

void gy_answer_put_new(gy_answer *a, gy_str *out) {
    put_new(&a->choice[0], out);
}

void gy_answer_put_block(const gy_answer *a, gy_str *out) {
    for (int32_t k = 0; k < a->n; k++) {
        gy_output copy = a->choice[k];
        copy.printed = 0;
        gy_str_printf(out, "=== %zu", a->index);
        if (a->job->opt.n > 1) gy_str_printf(out, ".%d", k);
        gy_str_printf(out, ": %d prompt tokens, %zu tokens, %s\n", copy.n_prompt, copy.ids.len, copy.reason);
        put_new(&copy, out);
        gy_str_putc(out, '\n');
    }
}
