/* Names to rules. What a rule's defaults are and what it allows is exit.c's; the depth is refused here, by the name of
 * the option that allows it.
 */
#include "cli/cli_rule.h"

#include "base/file.h"
#include "base/log.h"

#include <string.h>

static gy_status rule_kind(const char *s, gy_err *err, gy_exit_kind *out, const char **trace_file_out) {
    *trace_file_out = NULL;
    if (!strncmp(s, "trace:", 6) && s[6]) {
        *out = GY_EXIT_TRACE;
        *trace_file_out = s + 6;
        return GY_OK;
    }
    if (gy_exit_parse(s, out) || *out == GY_EXIT_TRACE)
        return gy_err_set(
            err, GY_E_ARG,
            "exit: found '%.80s', expected fixed, gate, gate_delayed, select, latent, kl, entropy, argmax "
            "or trace:FILE",
            s);
    return GY_OK;
}

static void warn_of_useless(const gy_exit_rule *r) {
    if ((r->kind == GY_EXIT_FIXED || r->kind == GY_EXIT_TRACE) && r->threshold < 1)
        gy_log(GY_LOG_WARN, "cli", "exit_threshold has no effect with this exit rule", "exit=%s",
               gy_exit_name(r->kind));
}

gy_status gy_rule_resolve(const gy_req_opts *o, const gy_model_desc *d, gy_err *err, gy_exit_rule *out,
                          const char **trace_file_out) {
    gy_exit_rule r;
    gy_exit_rule_default(&r, d->n_loop);
    GY_TRY(rule_kind(o->exit, err, &r.kind, trace_file_out));
    if (o->max_loops) r.max_loops = o->max_loops;
    if (r.max_loops > d->n_loop && !o->force_depth)
        return gy_err_set(err, GY_E_ARG,
                          "max_loops: found %d, expected at most %d, the depth the model was trained for; deeper needs "
                          "force_depth",
                          r.max_loops, d->n_loop);
    r.min_loops = o->min_loops;
    r.threshold = o->exit_threshold;
    GY_TRY(gy_exit_rule_complete(&r, d->has_gate, err));
    warn_of_useless(&r);
    gy_exit_caps caps = {.n_loop = d->n_loop, .has_gate = d->has_gate, .allow_deeper = o->force_depth};
    GY_TRY(gy_exit_rule_check(&r, &caps, err));
    *out = r;
    return GY_OK;
}

/* ---- recorded depths ---- */

static gy_status trace_add(gy_arena *arena, const gy_jv *v, gy_err *err, gy_trace *t) {
    const gy_jv *list = gy_jv_type(v) == GY_J_OBJECT ? gy_jv_get(v, "loops") : v;
    size_t n = gy_jv_len(list);
    if (gy_jv_type(list) != GY_J_ARRAY || n > INT32_MAX)
        return gy_err_set(err, GY_E_FORMAT, "found %s, expected a list of loops or an object with \"loops\"",
                          gy_jtype_name(gy_jv_type(v)));
    int32_t *loops = gy_arena_alloc(arena, n + 1, sizeof *loops);
    if (!loops) return gy_err_set(err, GY_E_NOMEM, "no memory for a trace");
    for (size_t i = 0; i < n; i++) {
        int64_t x = gy_jv_int(gy_jv_at(list, i), -1);
        if (x < 1 || x > INT32_MAX)
            return gy_err_set(err, GY_E_FORMAT, "entry %zu: found %s, expected a number of loops from 1", i + 1,
                              gy_jtype_name(gy_jv_type(gy_jv_at(list, i))));
        loops[i] = (int32_t)x;
    }
    t->list[t->n++] = (struct gy_trace_list){loops, (int32_t)n};
    return GY_OK;
}

static gy_status trace_reserve(gy_arena *arena, size_t n, gy_err *err, gy_trace *t) {
    t->list = gy_arena_alloc(arena, n + 1, sizeof *t->list);
    return t->list ? GY_OK : gy_err_set(err, GY_E_NOMEM, "no memory for a trace");
}

static gy_status trace_whole(gy_arena *arena, const gy_jv *root, gy_err *err, gy_trace *t) {
    int nested = gy_jv_type(root) == GY_J_ARRAY &&
                 (gy_jv_type(gy_jv_at(root, 0)) == GY_J_ARRAY || gy_jv_type(gy_jv_at(root, 0)) == GY_J_OBJECT);
    GY_TRY(trace_reserve(arena, nested ? gy_jv_len(root) : 1, err, t));
    if (!nested) return trace_add(arena, root, err, t);
    for (size_t i = 0; i < gy_jv_len(root); i++)
        if (trace_add(arena, gy_jv_at(root, i), err, t) < 0) return gy_err_prefix(err, "list %zu", i + 1);
    return GY_OK;
}

static gy_status trace_line(gy_arena *arena, const char *line, size_t len, gy_err *err, gy_trace *t) {
    gy_json *doc = NULL;
    if (strspn(line, " \t\r\n") >= len) return GY_OK;
    GY_TRY(gy_json_parse(line, len, NULL, err, &doc));
    gy_status st = trace_add(arena, gy_json_root(doc), err, t);
    gy_json_free(doc);
    return st;
}

static gy_status trace_lines(gy_arena *arena, const char *text, size_t len, gy_err *err, gy_trace *t) {
    size_t n_line = 1, no = 1;
    for (size_t i = 0; i < len; i++) n_line += text[i] == '\n';
    GY_TRY(trace_reserve(arena, n_line, err, t));
    for (const char *p = text, *end = text + len; p < end; no++) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        size_t n = nl ? (size_t)(nl - p) : (size_t)(end - p);
        if (trace_line(arena, p, n, err, t) < 0) return gy_err_prefix(err, "line %zu", no);
        p += n + 1;
    }
    return GY_OK;
}

gy_status gy_trace_parse(gy_arena *arena, const char *text, size_t len, const char *path, gy_err *err, gy_trace *out) {
    gy_json *doc = NULL;
    gy_trace t = {.path = path};
    gy_status st;
    if (gy_json_parse(text, len, NULL, NULL, &doc) == GY_OK)
        st = trace_whole(arena, gy_json_root(doc), err, &t);
    else
        st = trace_lines(arena, text, len, err, &t);
    gy_json_free(doc);
    if (st < 0) return gy_err_prefix(err, "%s", path);
    *out = t;
    return GY_OK;
}

gy_status gy_trace_read(gy_arena *arena, const char *path, gy_err *err, gy_trace *out) {
    gy_str text = {0};
    gy_status st = gy_file_read(path, (size_t)64 << 20, err, &text);
    if (st == GY_OK) st = gy_trace_parse(arena, gy_str_z(&text), text.len, path, err, out);
    gy_str_free(&text);
    return st;
}
