/* Numbers and strings of replies. */
#include "server/oai_write.h"

#include "base/json.h"

#include <math.h>

void gy_oai_put_int(gy_str *s, int64_t v) {
    char buf[24], *end = buf + sizeof buf, *p = end;
    uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    do *--p = (char)('0' + u % 10);
    while (u /= 10);
    if (v < 0) *--p = '-';
    gy_str_append(s, p, (size_t)(end - p));
}

/* m / 10^k with k digits behind the point, trailing zeros dropped. */
static void put_fixed(gy_str *s, uint64_t m, int k, int negative) {
    char buf[40], *end = buf + sizeof buf, *p = end;
    while (k > 0 && m % 10 == 0) {
        m /= 10;
        k--;
    }
    for (int i = 0; i < k; i++, m /= 10) *--p = (char)('0' + m % 10);
    if (k > 0) *--p = '.';
    do *--p = (char)('0' + m % 10);
    while (m /= 10);
    if (negative) *--p = '-';
    gy_str_append(s, p, (size_t)(end - p));
}

static void put_slow(gy_str *s, float v) {
    gy_jw w;
    gy_jw_init(&w, s);
    gy_jw_f32(&w, v);
}

/* m / 10^k, both exact in double, is what a reader of doubles computes from the text; it reads back as v when that
 * rounds to v. Six digits are tried first, nine are enough for any float. */
void gy_oai_put_f32(gy_str *s, float v) {
    static const double pow10[] = {1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14};
    double a = fabs((double)v);
    if (!(a >= 1e-4 && a < 1e6)) {
        put_slow(s, v);
        return;
    }
    int lead = 0; /* digits before the point, or minus the zeros behind it */
    while (lead < 6 && a >= pow10[lead]) lead++;
    if (!lead)
        while (a * pow10[1 - lead] < 1) lead--;
    for (int digits = 6; digits <= 9; digits++) {
        int k = digits - lead;
        double m = rint(a * pow10[k]);
        if ((float)(m / pow10[k]) != (float)a) continue;
        put_fixed(s, (uint64_t)m, k, v < 0);
        return;
    }
    put_slow(s, v);
}

void gy_oai_put_str(gy_str *s, const char *p, size_t n) {
    gy_jw w;
    gy_jw_init(&w, s);
    gy_jw_str(&w, p, n);
}

void gy_oai_put_strz(gy_str *s, const char *z) {
    gy_jw w;
    gy_jw_init(&w, s);
    gy_jw_strz(&w, z);
}

void gy_oai_put_logprob(gy_str *s, float v) {
    if (!(v > -9999.0f))
        GY_OAI_PUT(s, "-9999.0");
    else
        gy_oai_put_f32(s, v);
}

void gy_oai_put_scalar(gy_str *out, const gy_jv *v) {
    gy_jw w;
    gy_jw_init(&w, out);
    gy_jw_value(&w, v);
}
