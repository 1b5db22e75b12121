/* Single values out of a body: type, range, and the sentence when one of them is wrong. */
#include "server/oai_int.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { QUOTED = 48 };

/* At most QUOTED bytes of a string, cut between characters, control characters as '?'. */
static void describe_string(const gy_jv *v, char *buf, size_t cap) {
    size_t n;
    const char *s = gy_jv_str(v, &n);
    int cut = n > QUOTED;
    if (cut) n = QUOTED - (size_t)gy_utf8_incomplete_tail(s, QUOTED);
    char text[QUOTED + 1];
    for (size_t i = 0; i < n; i++) text[i] = (unsigned char)s[i] < 0x20 || s[i] == 0x7F ? '?' : s[i];
    text[n] = '\0';
    snprintf(buf, cap, "the string '%s%s'", text, cut ? "..." : "");
}

static void describe(const gy_jv *v, char *buf, size_t cap) {
    switch (gy_jv_type(v)) {
    case GY_J_BOOL:
        snprintf(buf, cap, "%s", gy_jv_bool(v, 0) ? "true" : "false");
        break;
    case GY_J_INT:
        snprintf(buf, cap, "%lld", (long long)gy_jv_int(v, 0));
        break;
    case GY_J_REAL:
        snprintf(buf, cap, "%.9g (a real number)", gy_jv_num(v, 0));
        break;
    case GY_J_STRING:
        describe_string(v, buf, cap);
        break;
    case GY_J_ARRAY:
        snprintf(buf, cap, "an array of %zu", gy_jv_len(v));
        break;
    default:
        snprintf(buf, cap, "%s", gy_jtype_name(gy_jv_type(v)));
    }
}

gy_status gy_oai_expected(gy_oai_reader *p, const char *field, const gy_jv *found, const char *fmt, ...) {
    char what[160], want[256];
    va_list ap;
    describe(found, what, sizeof what);
    va_start(ap, fmt);
    vsnprintf(want, sizeof want, fmt, ap);
    va_end(ap);
    return gy_oai_error_set(p->e, GY_OAI_E_BAD_REQUEST, field, "%s: found %s, expected %s", field, what, want);
}

gy_status gy_oai_refuse(gy_oai_reader *p, gy_oai_error_kind kind, const char *field, const char *fmt, ...) {
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return gy_oai_error_set(p->e, kind, field, "%s: %s", field, text);
}

gy_status gy_oai_no_memory(gy_oai_reader *p) {
    return gy_oai_error_from_status(p->e, GYRE_E_NOMEM, NULL);
}

void gy_oai_at(char *to, size_t cap, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(to, cap, fmt, ap);
    va_end(ap);
}

int gy_oai_present(const gy_jv *v) {
    return gy_jv_type(v) > GY_J_NULL;
}

gy_status gy_oai_read_bool(gy_oai_reader *p, const char *field, const gy_jv *v, int32_t *out) {
    if (gy_jv_type(v) != GY_J_BOOL) return gy_oai_expected(p, field, v, "true or false");
    *out = gy_jv_bool(v, 0);
    return GY_OK;
}

gy_status gy_oai_read_int(gy_oai_reader *p, const char *field, const gy_jv *v, int64_t lo, int64_t hi, int64_t *out) {
    int64_t x = gy_jv_int(v, 0);
    if (gy_jv_type(v) != GY_J_INT || x < lo || x > hi)
        return gy_oai_expected(p, field, v, "an integer from %lld to %lld", (long long)lo, (long long)hi);
    *out = x;
    return GY_OK;
}

/* For strings that are used as names: no NUL inside. */
gy_status gy_oai_read_str(gy_oai_reader *p, const char *field, const gy_jv *v, size_t max_bytes, const char **out) {
    size_t n = 0;
    const char *s = gy_jv_str(v, &n);
    if (!s || n > max_bytes || strlen(s) != n)
        return gy_oai_expected(p, field, v, "a string of at most %zu bytes without NUL", max_bytes);
    *out = s;
    return GY_OK;
}

gy_status gy_oai_read_ids(gy_oai_reader *p, const char *field, const gy_jv *v, int32_t below, const int32_t **out,
                          int32_t *n_out) {
    size_t n = gy_jv_len(v);
    if (gy_jv_type(v) != GY_J_ARRAY || n > INT32_MAX) return gy_oai_expected(p, field, v, "an array of token ids");
    int32_t *ids = gy_arena_alloc(p->r->arena, n ? n : 1, sizeof *ids);
    if (!ids) return gy_oai_no_memory(p);
    for (size_t i = 0; i < n; i++) {
        const gy_jv *x = gy_jv_at(v, i);
        char at[64];
        int64_t id;
        if (gy_jv_type(x) == GY_J_INT && gy_jv_int(x, -1) >= 0 && gy_jv_int(x, -1) < (below ? below : INT32_MAX)) {
            ids[i] = (int32_t)gy_jv_int(x, -1);
            continue;
        }
        gy_oai_at(at, sizeof at, "%s[%zu]", field, i);
        return gy_oai_read_int(p, at, x, 0, (below ? below : INT32_MAX) - 1, &id);
    }
    *out = ids;
    *n_out = (int32_t)n;
    return GY_OK;
}
