/* Text: keys in a column, a blank line between sections. JSON: one object. */
#include "cli/cli_report.h"

#include <stdarg.h>
#include <stdio.h>

void gy_report_begin(gy_report *r, int json) {
    *r = (gy_report){.json = json};
    gy_jw_init(&r->w, &r->out);
    if (json) gy_jw_obj_begin(&r->w);
}

void gy_report_end(gy_report *r) {
    if (!r->json) return;
    gy_jw_obj_end(&r->w);
    gy_str_putc(&r->out, '\n');
}

void gy_report_section(gy_report *r, const char *name) {
    if (!r->json) {
        gy_str_printf(&r->out, "%s%s\n", r->out.len ? "\n" : "", name);
        return;
    }
    gy_jw_key(&r->w, name);
    gy_jw_obj_begin(&r->w);
}

void gy_report_section_end(gy_report *r) {
    if (r->json) gy_jw_obj_end(&r->w);
}

/* Starts a line or a member; 1 in JSON. */
static int report_key(gy_report *r, const char *key) {
    if (r->json)
        gy_jw_key(&r->w, key);
    else
        gy_str_printf(&r->out, "  %-24s ", key);
    return r->json;
}

void gy_report_int(gy_report *r, const char *key, int64_t v) {
    if (report_key(r, key))
        gy_jw_int(&r->w, v);
    else
        gy_str_printf(&r->out, "%lld\n", (long long)v);
}

void gy_report_ids(gy_report *r, const char *key, const int32_t *ids, int32_t n) {
    if (report_key(r, key)) {
        gy_jw_arr_begin(&r->w);
        for (int32_t i = 0; i < n; i++) gy_jw_int(&r->w, ids[i]);
        gy_jw_arr_end(&r->w);
        return;
    }
    for (int32_t i = 0; i < n; i++) gy_str_printf(&r->out, "%s%d", i ? " " : "", ids[i]);
    gy_str_puts(&r->out, n ? "\n" : "none\n");
}

void gy_report_num(gy_report *r, const char *key, double v) {
    if (report_key(r, key))
        gy_jw_f64(&r->w, v);
    else
        gy_str_printf(&r->out, "%g\n", v);
}

void gy_report_bool(gy_report *r, const char *key, int v) {
    if (report_key(r, key))
        gy_jw_bool(&r->w, v);
    else
        gy_str_puts(&r->out, v ? "yes\n" : "no\n");
}

void gy_report_text(gy_report *r, const char *key, const char *fmt, ...) {
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (report_key(r, key))
        gy_jw_strz(&r->w, text);
    else
        gy_str_printf(&r->out, "%s\n", text);
}

void gy_report_bytes(gy_report *r, const char *key, uint64_t v) {
    if (report_key(r, key))
        gy_jw_int(&r->w, (int64_t)v);
    else if (v >= 1000000000)
        gy_str_printf(&r->out, "%llu (%.2f GB)\n", (unsigned long long)v, (double)v / 1e9);
    else
        gy_str_printf(&r->out, "%llu (%.2f MB)\n", (unsigned long long)v, (double)v / 1e6);
}
