/* The line of status lies in the row under the text. Before it is drawn, IND and RI (down, up) make sure that there is
 * such a row and leave the column alone, so that a wrong idea of a character's width cannot move the text. It is wiped
 * before text reaches the right edge: a cursor that waits there for its wrap would lose a character to the wiping.
 * Sequences: ECMA-48, and DEC's save and restore (ESC 7, ESC 8).
 */
#include "cli/cli_chat_view.h"

#include "cli/cli_args.h"

#include <string.h>

enum { MIN_WIDTH = 20 };
static const int64_t REDRAW_NS = 100000000;

void gy_chat_view_begin(gy_chat_view *v) {
    v->cleaner = (gy_chat_cleaner){0};
    v->kind = GY_CHAT_CONTENT;
    v->begun = v->col = v->is_shown = 0;
    v->last = '\n';
    v->drawn_ns = 0;
}

static void wipe(gy_chat_view *v, gy_str *out) {
    if (v->is_shown) gy_str_puts(out, "\x1b[J");
    v->is_shown = 0;
}

static void put_style(const gy_chat_view *v, int32_t loops, int32_t most, gy_str *out) {
    if (!v->can_style) return;
    if (v->kind != GY_CHAT_CONTENT) gy_str_puts(out, "\x1b[2m");
    if (v->depth == GY_CHAT_DEPTH_COLOR && loops > 0) gy_chat_ramp(v->colors, loops, most, out);
}

/* text is clean. */
static void put_text(gy_chat_view *v, const gy_str *text, int32_t loops, int32_t most, gy_str *out) {
    if (!text->len) return;
    int rows = 0, col = gy_chat_column(text->data, text->len, v->col, v->width, &rows);
    if (rows || col >= v->width) wipe(v, out);
    size_t before = out->len;
    put_style(v, loops, most, out);
    int is_styled = out->len > before;
    gy_str_append(out, text->data, text->len);
    if (is_styled) gy_str_puts(out, "\x1b[0m");
    v->col = col;
    v->last = text->data[text->len - 1];
}

/* Another kind begins in a line of its own; without styles a word says which. */
static void change_kind(gy_chat_view *v, gy_chat_kind kind, gy_str *out) {
    static const char *const names[] = {"[answer]\n", "[thinking]\n", "[tool call]\n"};
    if (v->begun && v->kind == kind) return;
    gy_str text = {0};
    if (v->begun) gy_str_puts(&text, v->last == '\n' ? "\n" : "\n\n");
    v->kind = kind;
    if (!v->can_style && (v->begun || kind != GY_CHAT_CONTENT)) gy_str_puts(&text, names[kind]);
    put_text(v, &text, 0, 0, out);
    gy_str_free(&text);
    v->begun = 1;
}

void gy_chat_view_text(gy_chat_view *v, gy_chat_kind kind, const char *s, size_t n, int32_t loops, int32_t most) {
    if (!n) return;
    if (!v->is_term) { /* the answer, and nothing about it */
        if (kind == GY_CHAT_REASONING) return;
        gy_cli_put(s, n);
        v->last = s[n - 1];
        gy_cli_flush();
        return;
    }
    gy_str text = {0}, out = {0};
    change_kind(v, kind, &out);
    gy_chat_clean(&v->cleaner, s, n, &text);
    if (!text.failed) put_text(v, &text, loops, most, &out);
    gy_cli_put_str(&out);
    gy_str_free(&text);
    gy_str_free(&out);
}

static void put_status(gy_chat_view *v, const gy_chat_status *s, gy_str *out) {
    gy_str line = {0};
    gy_chat_status_put(s, v->width - 1, &line);
    if (line.len && !line.failed) {
        if (v->can_style) gy_str_puts(out, "\x1b[2m");
        gy_str_append(out, line.data, line.len);
        if (v->can_style) gy_str_puts(out, "\x1b[0m");
    }
    gy_str_free(&line);
}

int64_t gy_chat_view_status(gy_chat_view *v, const gy_chat_status *s, int64_t now_ns) {
    if (!v->is_term || !v->can_move || v->depth == GY_CHAT_DEPTH_NONE || v->width < MIN_WIDTH) return 0;
    if (v->col >= v->width) return 0;
    if (v->is_shown && now_ns - v->drawn_ns < REDRAW_NS) return v->drawn_ns + REDRAW_NS;
    gy_str out = {0};
    gy_str_puts(&out, "\x1b"
                      "D"
                      "\x1bM"
                      "\x1b"
                      "7"
                      "\r\x1b[B\x1b[K");
    put_status(v, s, &out);
    gy_str_puts(&out, "\x1b"
                      "8");
    gy_cli_put_str(&out);
    gy_str_free(&out);
    v->is_shown = 1;
    v->drawn_ns = now_ns;
    return 0;
}

void gy_chat_view_resize(gy_chat_view *v, int width) {
    gy_str out = {0};
    wipe(v, &out);
    v->width = width;
    v->col = width > 0 ? v->col % width : 0; /* where the terminal's own wrapping has put it */
    gy_cli_put_str(&out);
    gy_str_free(&out);
}

void gy_chat_view_end(gy_chat_view *v, const gy_chat_status *s) {
    gy_str out = {0};
    wipe(v, &out);
    if (v->is_term && v->cleaner.cr) gy_str_puts(&out, "\\x0d");
    if (v->last != '\n') gy_str_putc(&out, '\n');
    if (v->is_term && (v->depth != GY_CHAT_DEPTH_NONE || s->note)) {
        size_t before = out.len;
        put_status(v, s, &out);
        if (out.len > before) gy_str_putc(&out, '\n');
    }
    gy_cli_put_str(&out);
    gy_str_free(&out);
}
