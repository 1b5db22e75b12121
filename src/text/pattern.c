/* The pattern of Split and Replace: a literal or a regular expression, and the spans it cuts a text into. */
#include "text/hf_int.h"

#include <string.h>

gy_status gy_pattern_read(const gy_jv *v, gy_err *err, gy_pattern *out) {
    size_t len = 0;
    const char *regex = gy_jv_str(gy_jv_get(v, "Regex"), &len);
    if (regex) return gy_regex_create(regex, len, err, &out->regex);
    const char *s = gy_jv_str(gy_jv_get(v, "String"), &len);
    if (!s)
        return gy_err_set(err, GY_E_FORMAT, "pattern: expected {\"String\": ...} or {\"Regex\": ...}, found %s",
                          gy_jtype_name(gy_jv_type(v)));
    if (len == 0) return gy_regex_create("", 0, err, &out->regex); /* matches between all characters */
    gy_str_append(&out->literal, s, len);
    return out->literal.failed ? gy_err_set(err, GY_E_NOMEM, "no memory for a pattern") : GY_OK;
}

void gy_pattern_fini(gy_pattern *p) {
    gy_str_free(&p->literal);
    gy_regex_destroy(p->regex);
    p->regex = NULL;
}

static gy_status span_put(gy_spans *v, size_t off, size_t end, int is_match) {
    return gy_vec_push(v, GY_MEM_TEXT, ((gy_span){off, end - off, is_match})) ? GY_E_NOMEM : GY_OK;
}

static gy_status literal_spans(const gy_str *lit, gy_spans *v, const char *text, size_t len, int64_t *steps) {
    size_t done = 0;
    while (done < len) {
        const char *hit = memmem(text + done, len - done, lit->data, lit->len);
        if (!hit) break;
        size_t at = (size_t)(hit - text);
        if (at > done) GY_TRY(span_put(v, done, at, 0));
        GY_TRY(span_put(v, at, at + lit->len, 1));
        done = at + lit->len;
    }
    *steps += (int64_t)len;
    return done < len ? span_put(v, done, len, 0) : GY_OK;
}

gy_status gy_pattern_spans(const gy_pattern *p, gy_hf_scratch *s, const char *text, size_t len, int64_t *steps,
                           gy_err *err) {
    s->spans.len = 0;
    if (!p->regex) return literal_spans(&p->literal, &s->spans, text, len, steps);
    gy_regex_walk walk = GY_REGEX_WALK_INIT;
    size_t done = 0, start = 0, end = 0;
    for (;;) {
        gy_status st = gy_regex_next(p->regex, s->regex, text, len, &walk, steps, err, &start, &end);
        if (st < 0) return st;
        if (st == GY_DONE) break;
        if (start > done) GY_TRY(span_put(&s->spans, done, start, 0));
        GY_TRY(span_put(&s->spans, start, end, 1));
        done = end;
    }
    return done < len ? span_put(&s->spans, done, len, 0) : GY_OK;
}
