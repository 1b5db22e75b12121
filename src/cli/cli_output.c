/* Tokens to text and to JSON. The field names and their order are fixed (docs/gyre.1). */
#include "cli/cli_output.h"

#include "base/json.h"

#include <math.h>
#include <string.h>

gy_status gy_output_init(gy_output *o, const gy_job *job, const gy_cli_model *m, gy_err *err) {
    gy_output n = {.job = job, .m = m};
    size_t most = (size_t)job->rq.max_tokens;
    gy_stop_init(&n.stop, &job->opt.stop);
    int lost = gy_vec_reserve(&n.ids, GY_MEM_CLI, most) || gy_vec_reserve(&n.loops, GY_MEM_CLI, most);
    if (!lost && job->opt.logprobs >= 0) lost = gy_vec_reserve(&n.logprobs, GY_MEM_CLI, most);
    if (!lost && m->tok) lost = gy_detok_create(m->tok, 1, &n.detok) < 0;
    if (lost) {
        gy_output_fini(&n);
        return gy_err_set(err, GY_E_NOMEM, "no memory for the outputs");
    }
    *o = n;
    return GY_OK;
}

void gy_output_fini(gy_output *o) {
    gy_detok_destroy(o->detok);
    gy_stop_fini(&o->stop);
    gy_str_free(&o->text);
    gy_vec_free(&o->ids);
    gy_vec_free(&o->loops);
    gy_vec_free(&o->logprobs);
}

/* ---- filling ---- */

/* Ids behind the tokenizer's vocabulary exist where a model pads its own: they have no text. */
static int has_text(const gy_output *o, int32_t id) {
    if (!o->detok || (!o->job->opt.ignore_eos && gy_cli_is_eos(o->m, id))) return 0;
    return gy_tok_piece(o->m->tok, id, NULL) != NULL;
}

static int extend_text(gy_output *o, int32_t id) {
    gy_str piece = {0};
    int rc = gy_detok_push(o->detok, id, &o->err, &piece) < 0 ? -1 : 0;
    if (!rc) rc = gy_stop_push(&o->stop, gy_str_z(&piece), piece.len, &o->text);
    if (piece.failed || o->text.failed) {
        gy_err_set(&o->err, GY_E_NOMEM, "no memory for the text");
        rc = -1;
    }
    gy_str_free(&piece);
    return rc;
}

int gy_output_add(gy_output *o, int32_t id, int32_t loops, const gy_sampled *sampled) {
    int lost = gy_vec_push(&o->ids, GY_MEM_CLI, id) || gy_vec_push(&o->loops, GY_MEM_CLI, loops);
    if (!lost && o->job->opt.logprobs >= 0) lost = gy_vec_push(&o->logprobs, GY_MEM_CLI, *sampled);
    if (lost) {
        gy_err_set(&o->err, GY_E_NOMEM, "no memory for the outputs");
        return -1;
    }
    return has_text(o, id) ? extend_text(o, id) : 0;
}

static void end_text(gy_output *o) {
    gy_str rest = {0};
    if (!o->detok || o->stop.hit) return;
    if (gy_detok_finish(o->detok, &o->err, &rest) >= 0 && gy_stop_push(&o->stop, gy_str_z(&rest), rest.len, &o->text) &&
        !strcmp(o->reason, "length"))
        o->reason = gy_finish_name(GY_FINISH_STOP);
    gy_stop_finish(&o->stop, &o->text);
    gy_str_free(&rest);
}

void gy_output_end(gy_output *o, const gy_finish_event *ev) {
    o->reason = gy_finish_name(ev->reason);
    o->n_prompt = ev->n_prompt;
    o->submit_ns = ev->submit_ns;
    o->first_token_ns = ev->first_token_ns;
    o->finish_ns = ev->finish_ns;
    if (ev->err) o->err = *ev->err;
    end_text(o);
    /* What was lost on our side is an error of this request too. */
    if (o->err.status < 0) o->reason = gy_finish_name(GY_FINISH_ERROR);
    o->done = 1;
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

static void put_logprobs(gy_jw *w, const gy_output *o) {
    gy_jw_key(w, "logprobs");
    if (o->job->opt.logprobs < 0) {
        gy_jw_null(w);
        return;
    }
    gy_jw_arr_begin(w);
    for (size_t i = 0; i < o->logprobs.len; i++) put_sampled(w, &o->logprobs.data[i]);
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
    gy_jw_obj_end(w);
}

void gy_output_put_json(const gy_output *o, size_t index, gy_str *out) {
    gy_jw w;
    gy_jw_init(&w, out);
    gy_jw_obj_begin(&w);
    gy_jw_key(&w, "index");
    gy_jw_int(&w, (int64_t)index);
    put_ids(&w, "prompt_ids", &o->job->ids);
    put_ids(&w, "token_ids", &o->ids);
    put_ids(&w, "loops", &o->loops);
    gy_jw_key(&w, "text");
    if (o->detok)
        gy_jw_str(&w, gy_str_z(&o->text), o->text.len);
    else
        gy_jw_null(&w);
    gy_jw_key(&w, "finish_reason");
    gy_jw_strz(&w, o->reason);
    put_logprobs(&w, o);
    put_timing(&w, o);
    if (o->err.status < 0) {
        gy_jw_key(&w, "error");
        gy_jw_strz(&w, o->err.msg);
    }
    gy_jw_obj_end(&w);
    gy_str_putc(out, '\n');
}

/* ---- text ---- */

void gy_output_put_new(gy_output *o, gy_str *out) {
    if (o->detok) {
        gy_str_append(out, gy_str_z(&o->text) + o->printed, o->text.len - o->printed);
        o->printed = o->text.len;
    }
    for (; !o->detok && o->printed < o->ids.len; o->printed++)
        gy_str_printf(out, "%s%d", o->printed ? " " : "", o->ids.data[o->printed]);
}

void gy_output_put_block(const gy_output *o, size_t index, gy_str *out) {
    gy_output copy = *o;
    copy.printed = 0;
    gy_str_printf(out, "=== %zu: %d prompt tokens, %zu tokens, %s\n", index, o->n_prompt, o->ids.len, o->reason);
    gy_output_put_new(&copy, out);
    gy_str_putc(out, '\n');
}
