/* The registry, updates, and the text. Values are doubles stored as their bits: one writer per series makes
 * load-add-store enough, and relaxed order is, since no series depends on another.
 */
#include "server/metrics.h"

#include "base/json.h"
#include "base/mem.h"
#include "base/status.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

struct gy_metric {
    gy_metric *next; /* in the order of printing */
    gy_metric_spec spec;
    gy_str labels;            /* a="b",c="d"; may be empty */
    _Atomic uint64_t value;   /* counter, gauge; histogram: sum */
    _Atomic uint64_t *bucket; /* [n_le + 1], not cumulative */
};

struct gy_metrics {
    gy_metric *first, *last;
};

/* ---- registry --------------------------------------------------------------------------------------------------- */

gy_metrics *gy_metrics_create(void) {
    return gy_mem_alloc(GY_MEM_SERVER, 1, sizeof(gy_metrics));
}

static void series_free(gy_metric *s) {
    gy_str_free(&s->labels);
    gy_mem_free(s->bucket);
    gy_mem_free(s);
}

void gy_metrics_destroy(gy_metrics *m) {
    if (!m) return;
    for (gy_metric *s = m->first, *next; s; s = next) {
        next = s->next;
        series_free(s);
    }
    gy_mem_free(m);
}

static int is_name(const char *s, int colon) {
    size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_:");
    return n > 0 && !s[n] && !(s[0] >= '0' && s[0] <= '9') && (colon || !strchr(s, ':'));
}

static void put_escaped(const char *s, int quotes, gy_str *out) {
    gy_str valid = {0};
    gy_utf8_sanitize(s, strlen(s), &valid);
    for (size_t i = 0; i < valid.len; i++) {
        char c = valid.data[i];
        if (c == '\n')
            gy_str_puts(out, "\\n");
        else if (c == '\\' || (quotes && c == '"'))
            gy_str_append(out, (char[]){'\\', c}, 2);
        else
            gy_str_putc(out, c);
    }
    out->failed |= valid.failed;
    gy_str_free(&valid);
}

static void put_label_list(const gy_metric_label *labels, int n, gy_str *out) {
    for (int i = 0; i < n; i++) {
        GY_CHECK(is_name(labels[i].name, 0) && strcmp(labels[i].name, "le") != 0);
        if (i) gy_str_putc(out, ',');
        gy_str_puts(out, labels[i].name);
        gy_str_puts(out, "=\"");
        put_escaped(labels[i].value, 1, out);
        gy_str_putc(out, '"');
    }
}

static void check_spec(const gy_metrics *m, const gy_metric_spec *spec) {
    GY_CHECK(is_name(spec->name, 1) && (spec->type == GY_HISTOGRAM) == (spec->n_le > 0));
    for (int i = 1; i < spec->n_le; i++) GY_CHECK(spec->le[i] > spec->le[i - 1]);
    for (const gy_metric *s = m->first; s; s = s->next) {
        if (strcmp(s->spec.name, spec->name) != 0) continue;
        GY_CHECK(s->spec.type == spec->type && s->spec.n_le == spec->n_le && !strcmp(m->last->spec.name, spec->name));
    }
}

gy_metric *gy_metrics_add(gy_metrics *m, const gy_metric_spec *spec, const gy_metric_label *labels, int n_label) {
    check_spec(m, spec);
    gy_metric *s = gy_mem_alloc(GY_MEM_SERVER, 1, sizeof *s);
    if (!s) return NULL;
    s->spec = *spec;
    put_label_list(labels, n_label, &s->labels);
    if (spec->n_le) s->bucket = gy_mem_alloc(GY_MEM_SERVER, (size_t)spec->n_le + 1, sizeof *s->bucket);
    if (s->labels.failed || (spec->n_le && !s->bucket)) {
        series_free(s);
        return NULL;
    }
    *(m->last ? &m->last->next : &m->first) = s;
    m->last = s;
    return s;
}

/* ---- updates ---------------------------------------------------------------------------------------------------- */

static double load(const _Atomic uint64_t *p) {
    uint64_t bits = atomic_load_explicit(p, memory_order_relaxed);
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

static void store(_Atomic uint64_t *p, double v) {
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    atomic_store_explicit(p, bits, memory_order_relaxed);
}

void gy_metric_add(gy_metric *s, double v) {
    store(&s->value, load(&s->value) + v);
}

void gy_metric_set(gy_metric *s, double v) {
    store(&s->value, v);
}

void gy_metric_observe_n(gy_metric *s, double v, uint64_t times) {
    if (!times || isnan(v)) return;
    int lo = 0, hi = s->spec.n_le;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (v <= s->spec.le[mid])
            hi = mid;
        else
            lo = mid + 1;
    }
    uint64_t n = atomic_load_explicit(&s->bucket[lo], memory_order_relaxed);
    atomic_store_explicit(&s->bucket[lo], n + times, memory_order_relaxed);
    gy_metric_add(s, v * (double)times);
}

void gy_metric_observe(gy_metric *s, double v) {
    gy_metric_observe_n(s, v, 1);
}

double gy_metric_value(const gy_metric *s) {
    if (s->spec.type != GY_HISTOGRAM) return load(&s->value);
    uint64_t n = 0;
    for (int i = 0; i <= s->spec.n_le; i++) n += atomic_load_explicit(&s->bucket[i], memory_order_relaxed);
    return (double)n;
}

/* ---- text ------------------------------------------------------------------------------------------------------- */

static void put_value(double v, gy_str *out) {
    gy_jw w;
    if (isnan(v))
        gy_str_puts(out, "NaN");
    else if (isinf(v))
        gy_str_puts(out, v > 0 ? "+Inf" : "-Inf");
    else {
        gy_jw_init(&w, out);
        if (v == floor(v) && fabs(v) < 9007199254740992.0)
            gy_jw_int(&w, (int64_t)v);
        else
            gy_jw_f64(&w, v);
    }
}

static void put_family(const gy_metric_spec *spec, gy_str *out) {
    static const char *const types[] = {"counter", "gauge", "histogram"};
    gy_str_puts(out, "# HELP ");
    gy_str_puts(out, spec->name);
    gy_str_putc(out, ' ');
    put_escaped(spec->help, 0, out);
    gy_str_puts(out, "\n# TYPE ");
    gy_str_puts(out, spec->name);
    gy_str_putc(out, ' ');
    gy_str_puts(out, types[spec->type]);
    gy_str_putc(out, '\n');
}

/* NAME SUFFIX {labels,le="..."} VALUE; le NULL: no such label. */
static void put_line(const gy_metric *s, const char *suffix, const double *le, double v, gy_str *out) {
    gy_str_puts(out, s->spec.name);
    gy_str_puts(out, suffix);
    if (s->labels.len || le) gy_str_putc(out, '{');
    gy_str_append(out, gy_str_z(&s->labels), s->labels.len);
    if (s->labels.len && le) gy_str_putc(out, ',');
    if (le) {
        gy_str_puts(out, "le=\"");
        put_value(*le, out);
        gy_str_putc(out, '"');
    }
    if (s->labels.len || le) gy_str_putc(out, '}');
    gy_str_putc(out, ' ');
    put_value(v, out);
    gy_str_putc(out, '\n');
}

static void put_histogram(const gy_metric *s, gy_str *out) {
    uint64_t sum = 0;
    for (int i = 0; i <= s->spec.n_le; i++) {
        double le = i < s->spec.n_le ? s->spec.le[i] : (double)INFINITY;
        sum += atomic_load_explicit(&s->bucket[i], memory_order_relaxed);
        put_line(s, "_bucket", &le, (double)sum, out);
    }
    put_line(s, "_sum", NULL, load(&s->value), out);
    put_line(s, "_count", NULL, (double)sum, out);
}

void gy_metrics_text(const gy_metrics *m, gy_str *out) {
    const char *family = "";
    for (const gy_metric *s = m->first; s; s = s->next) {
        if (strcmp(s->spec.name, family) != 0) put_family(&s->spec, out);
        family = s->spec.name;
        if (s->spec.type == GY_HISTOGRAM)
            put_histogram(s, out);
        else
            put_line(s, "", NULL, load(&s->value), out);
    }
}
