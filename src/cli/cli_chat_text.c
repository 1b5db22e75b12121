/* See cli_chat_text.h. What is a control: C0 and C1 of ECMA-48, DEL, the line and paragraph separators, and Unicode's
 * bidirectional controls (UAX #9), which can make text look like something else.
 */
#include "cli/cli_chat_text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <wchar.h>

/* ---- foreign text ----------------------------------------------------------------------------------------------- */

static int is_unsafe(uint32_t c) {
    if (c < 0x20 || (c >= 0x7f && c < 0xa0)) return 1;
    return c == 0x061c || c == 0x200e || c == 0x200f || (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
}

static void put_spelt(gy_str *out, uint32_t c) {
    gy_str_printf(out, c < 0x100 ? "\\x%02x" : "\\u%04x", (unsigned)c);
}

static void put_clean(gy_str *out, const char *s, int n, uint32_t c) {
    if (c == UINT32_MAX)
        gy_str_put_utf8(out, 0xfffd);
    else if (is_unsafe(c))
        put_spelt(out, c);
    else
        gy_str_append(out, s, (size_t)n);
}

void gy_chat_clean(gy_chat_cleaner *cl, const char *s, size_t n, gy_str *out) {
    for (size_t i = 0; i < n;) {
        uint32_t c;
        int len = gy_utf8_decode(s + i, n - i, &c);
        if (cl->cr && c != '\n') put_spelt(out, '\r');
        cl->cr = c == '\r';
        if (c == '\n' || c == '\t')
            gy_str_putc(out, (char)c);
        else if (c != '\r')
            put_clean(out, s + i, len, c);
        i += (size_t)len;
    }
}

void gy_chat_clean_line(const char *s, size_t n, gy_str *out) {
    for (size_t i = 0; i < n;) {
        uint32_t c;
        int len = gy_utf8_decode(s + i, n - i, &c);
        put_clean(out, s + i, len, c);
        i += (size_t)len;
    }
}

static int width_of(uint32_t c) {
    int w = wcwidth((wchar_t)c);
    return w < 0 ? 1 : w;
}

int gy_chat_column(const char *s, size_t n, int col, int width, int *rows_io) {
    int rows = 0;
    for (size_t i = 0; i < n;) {
        uint32_t c;
        i += (size_t)gy_utf8_decode(s + i, n - i, &c);
        if (c == '\n') {
            col = 0;
            rows++;
        } else if (c == '\t') { /* does not wrap: it stops at the last column */
            col = (col / 8 + 1) * 8;
            if (col > width - 1) col = width - 1;
        } else {
            int w = width_of(c);
            if (col + w > width) {
                col = 0;
                rows++;
            }
            col += w;
        }
    }
    if (rows_io) *rows_io += rows;
    return col;
}

/* ---- depth ------------------------------------------------------------------------------------------------------ */

void gy_chat_depths_add(gy_chat_depths *d, int32_t loops) {
    if (loops < 1) return;
    d->recent[d->n++ % GY_CHAT_RECENT] = loops;
    d->sum += loops;
    if (loops > d->deepest) d->deepest = loops;
    d->count[loops < GY_CHAT_DEPTHS ? loops : GY_CHAT_DEPTHS]++;
}

void gy_chat_depths_merge(gy_chat_depths *into, const gy_chat_depths *d) {
    into->n += d->n;
    into->sum += d->sum;
    if (d->deepest > into->deepest) into->deepest = d->deepest;
    for (int i = 0; i <= GY_CHAT_DEPTHS; i++) into->count[i] += d->count[i];
}

static int32_t full_height(const gy_chat_depths *d, int32_t most) {
    return d->deepest > most ? d->deepest : most;
}

void gy_chat_depths_bar(const gy_chat_depths *d, int32_t most, size_t cells, gy_str *out) {
    size_t n = d->n < GY_CHAT_RECENT ? (size_t)d->n : GY_CHAT_RECENT;
    int32_t full = full_height(d, most);
    if (n > cells) n = cells;
    for (size_t i = 0; i < n; i++) {
        int32_t loops = d->recent[(size_t)(d->n - (int64_t)(n - i)) % GY_CHAT_RECENT];
        int64_t eighth = ((int64_t)loops * 8 + full - 1) / full; /* 1..8 */
        gy_str_put_utf8(out, 0x2580u + (uint32_t)eighth);
    }
}

void gy_chat_depths_table(const gy_chat_depths *d, size_t cells, gy_str *out) {
    int64_t largest = 1;
    for (int i = 1; i <= GY_CHAT_DEPTHS; i++)
        if (d->count[i] > largest) largest = d->count[i];
    for (int i = 1; i <= GY_CHAT_DEPTHS; i++) {
        if (!d->count[i]) continue;
        gy_str_printf(out, "  %2d%s loop%s %6lld ", i, i == GY_CHAT_DEPTHS ? "+" : " ", i == 1 ? " " : "s",
                      (long long)d->count[i]);
        size_t n = (size_t)ceil((double)d->count[i] * (double)cells / (double)largest);
        for (size_t k = 0; k < n; k++) gy_str_put_utf8(out, 0x2588);
        gy_str_putc(out, '\n');
    }
}

/* ---- the line of status ------------------------------------------------------------------------------------------ */

enum { MAX_BAR = 24, MIN_BAR = 4 };

static int columns(const char *s) {
    return gy_chat_column(s, strlen(s), 0, INT32_MAX, NULL);
}

/* Appends a part if it fits; its column behind it, or -1. */
static int put_part(gy_str *out, int col, int width, const char *part) {
    int need = columns(part) + (col ? 3 : 0);
    if (col < 0 || col + need > width) return -1;
    if (col) gy_str_puts(out, " | ");
    gy_str_puts(out, part);
    return col + need;
}

/* wanted: columns that the other parts would like; the bar leaves them if four cells are left for it. */
static int put_depth(const gy_chat_status *s, int width, int wanted, gy_str *out) {
    char text[64];
    int32_t most = full_height(s->depths, s->most);
    snprintf(text, sizeof text, "depth %.1f of %d", (double)s->depths->sum / (double)s->depths->n, most);
    int col = put_part(out, 0, width, text), cells = width - col - 1 - wanted;
    if (cells > MAX_BAR) cells = MAX_BAR;
    if (cells < MIN_BAR) cells = MIN_BAR;
    if (cells > s->depths->n) cells = (int)s->depths->n;
    if (col < 0 || col + 1 + cells > width) return col;
    gy_str_putc(out, ' ');
    gy_chat_depths_bar(s->depths, most, (size_t)cells, out);
    return col + 1 + cells;
}

static void put_rest(const gy_chat_status *s, gy_str *out, int col, int width) {
    char text[64];
    if (s->note) col = put_part(out, col, width, s->note);
    if (s->tok_s > 0) {
        snprintf(text, sizeof text, s->tok_s < 10 ? "%.1f tok/s" : "%.0f tok/s", s->tok_s);
        col = put_part(out, col, width, text);
    }
    if (s->ttft_s > 0) {
        snprintf(text, sizeof text, s->ttft_s < 10 ? "TTFT %.1f s" : "TTFT %.0f s", s->ttft_s);
        col = put_part(out, col, width, text);
    }
    if (s->n_tok > 0) {
        snprintf(text, sizeof text, "%lld token%s", (long long)s->n_tok, s->n_tok == 1 ? "" : "s");
        put_part(out, col, width, text);
    }
}

void gy_chat_status_put(const gy_chat_status *s, int width, gy_str *out) {
    gy_str rest = {0};
    int col = 0;
    if (s->depths && s->depths->n) {
        put_rest(s, &rest, 1, INT32_MAX / 2); /* as if something stood before it */
        col = put_depth(s, width, columns(gy_str_z(&rest)), out);
        gy_str_free(&rest);
    }
    put_rest(s, out, col, width);
}

/* ---- colours ----------------------------------------------------------------------------------------------------- */

typedef struct ramp_stop {
    int index; /* of the 256 colours */
    int rgb[3];
} ramp_stop;

/* Of the colour cube, those of one hue each whose luminance lies where black and white are equally far. */
static const ramp_stop ramp[] = {
    {27, {0, 95, 255}},  {31, {0, 135, 175}}, {29, {0, 135, 95}},   {64, {95, 135, 0}},
    {130, {175, 95, 0}}, {161, {215, 0, 95}}, {164, {215, 0, 215}},
};
enum { RAMP = sizeof ramp / sizeof *ramp };

static double to_light(int v) {
    double x = v / 255.0;
    return x <= 0.04045 ? x / 12.92 : pow((x + 0.055) / 1.055, 2.4);
}

static int from_light(double x) {
    return (int)lround(255 * (x <= 0.0031308 ? 12.92 * x : 1.055 * pow(x, 1 / 2.4) - 0.055));
}

/* Mixed as light, so that the luminance between two stops is between theirs. */
static int mix(int a, int b, double t) {
    return from_light((1 - t) * to_light(a) + t * to_light(b));
}

void gy_chat_ramp(gy_chat_colors colors, int32_t loops, int32_t most, gy_str *out) {
    if (colors == GY_CHAT_PLAIN) return;
    double at = most > 1 ? (double)(loops - 1) / (most - 1) : 0;
    at = fmin(fmax(at, 0), 1) * (RAMP - 1);
    if (colors == GY_CHAT_256) {
        gy_str_printf(out, "\x1b[38;5;%dm", ramp[lround(at)].index);
        return;
    }
    int i = (int)at < RAMP - 1 ? (int)at : RAMP - 2;
    const int *a = ramp[i].rgb, *b = ramp[i + 1].rgb;
    gy_str_printf(out, "\x1b[38;2;%d;%d;%dm", mix(a[0], b[0], at - i), mix(a[1], b[1], at - i),
                  mix(a[2], b[2], at - i));
}

gy_chat_colors gy_chat_colors_of(const char *term, const char *colorterm, const char *no_color) {
    if ((no_color && no_color[0]) || !term || !term[0] || !strcmp(term, "dumb")) return GY_CHAT_PLAIN;
    if (colorterm && (!strcmp(colorterm, "truecolor") || !strcmp(colorterm, "24bit"))) return GY_CHAT_TRUE;
    return strstr(term, "256color") || strstr(term, "direct") || strstr(term, "kitty") ? GY_CHAT_256 : GY_CHAT_PLAIN;
}
