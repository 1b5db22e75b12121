/* The access log's line. Both formats have the same fields in the same order; a value that is a word or a number stands
 * bare in logfmt, everything else quoted with JSON's escapes, which logfmt readers take.
 */
#include "server/oai_log.h"

#include "server/oai_write.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum { TARGET_BYTES = 512, TEXT_BYTES = 256 };

typedef struct line {
    gy_str *out;
    gy_oai_log_format f;
    int n;
} line;

static void key(line *l, const char *name) {
    if (l->n++) gy_str_putc(l->out, l->f == GY_OAI_LOG_JSON ? ',' : ' ');
    if (l->f == GY_OAI_LOG_JSON) gy_str_putc(l->out, '"');
    gy_str_puts(l->out, name);
    gy_str_puts(l->out, l->f == GY_OAI_LOG_JSON ? "\":" : "=");
}

static int is_bare(const char *s, size_t n) {
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c <= 0x20 || c >= 0x7F || c == '"' || c == '=' || c == '\\') return 0;
    }
    return n > 0;
}

static void text_n(line *l, const char *name, const char *s, size_t n, size_t most) {
    if (!s) return;
    if (n > most) n = most - (size_t)gy_utf8_incomplete_tail(s, most);
    key(l, name);
    if (l->f == GY_OAI_LOG_LOGFMT && is_bare(s, n))
        gy_str_append(l->out, s, n);
    else
        gy_oai_put_str(l->out, s, n);
}

static void text(line *l, const char *name, const char *s) {
    if (s) text_n(l, name, s, strlen(s), TEXT_BYTES);
}

static void number(line *l, const char *name, int64_t v) {
    key(l, name);
    gy_oai_put_int(l->out, v);
}

/* Nanoseconds as milliseconds with three digits. */
static void millis(line *l, const char *name, int64_t ns) {
    int64_t us = ns > 0 ? ns / 1000 : 0;
    char frac[8];
    key(l, name);
    gy_oai_put_int(l->out, us / 1000);
    snprintf(frac, sizeof frac, ".%03d", (int)(us % 1000));
    gy_str_puts(l->out, frac);
}

static void timestamp(line *l, int64_t wall_ns) {
    char buf[40], frac[8];
    time_t s = (time_t)(wall_ns / 1000000000);
    struct tm tm;
    if (!gmtime_r(&s, &tm) || !strftime(buf, sizeof buf, "%Y-%m-%dT%H:%M:%S", &tm)) return;
    snprintf(frac, sizeof frac, ".%03dZ", (int)(wall_ns / 1000000 % 1000));
    gy_str joined = {0};
    gy_str_puts(&joined, buf);
    gy_str_puts(&joined, frac);
    text(l, "ts", gy_str_z(&joined));
    gy_str_free(&joined);
}

static void tokens(line *l, const gy_oai_access *a) {
    if (!a->has_tokens) return;
    number(l, "prompt_tokens", a->prompt_tokens);
    number(l, "cached_tokens", a->cached_tokens);
    number(l, "output_tokens", a->output_tokens);
    number(l, "loops", a->loop_sum);
    if (a->ttft_ns) millis(l, "ttft_ms", a->ttft_ns);
}

static void workers(line *l, const gy_oai_access *a) {
    if (!a->n_try) return;
    number(l, "decode_worker", a->decode);
    if (a->prefill >= 0) {
        number(l, "prefill_worker", a->prefill);
        millis(l, "prefill_ms", a->prefill_ns);
        millis(l, "handoff_ms", a->handoff_ns);
    }
    if (a->n_try > 1) number(l, "tries", a->n_try);
}

void gy_oai_access_line(const gy_oai_access *a, gy_oai_log_format f, gy_str *out) {
    line l = {.out = out, .f = f};
    if (f == GY_OAI_LOG_JSON) gy_str_putc(out, '{');
    timestamp(&l, a->wall_ns);
    text(&l, "remote", a->remote);
    text(&l, "method", a->method);
    text_n(&l, "target", a->target, a->n_target, TARGET_BYTES);
    number(&l, "status", a->status);
    millis(&l, "duration_ms", a->duration_ns);
    number(&l, "bytes_in", (int64_t)a->bytes_in);
    number(&l, "bytes_out", (int64_t)a->bytes_out);
    text(&l, "request_id", a->request_id);
    text(&l, "model", a->model);
    tokens(&l, a);
    workers(&l, a);
    text(&l, "finish", a->finish);
    text(&l, "error", a->error);
    text(&l, "agent", a->user_agent);
    gy_str_puts(out, f == GY_OAI_LOG_JSON ? "}\n" : "\n");
}
