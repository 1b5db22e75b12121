/* Plain comparison at each end position: stop strings are few and short, and held text is shorter than the longest. */
#include "cli/cli_stop.h"

#include <string.h>

void gy_stop_init(gy_stop *s, const gy_opt_list *strings) {
    *s = (gy_stop){.strings = strings};
}

void gy_stop_fini(gy_stop *s) {
    gy_str_free(&s->held);
}

/* Length of the longest stop string that text[0..end) ends with, 0 = none. */
static size_t match_at(const gy_stop *s, const char *text, size_t end) {
    size_t best = 0;
    for (size_t i = 0; i < s->strings->n; i++) {
        const gy_opt_item *it = &s->strings->items[i];
        if (it->len > best && it->len <= end && !memcmp(text + end - it->len, it->text, it->len)) best = it->len;
    }
    return best;
}

static int may_begin(const gy_stop *s, const char *tail, size_t len) {
    for (size_t i = 0; i < s->strings->n; i++) {
        const gy_opt_item *it = &s->strings->items[i];
        if (it->len > len && !memcmp(tail, it->text, len)) return 1;
    }
    return 0;
}

static size_t longest_string(const gy_stop *s) {
    size_t most = 0;
    for (size_t i = 0; i < s->strings->n; i++)
        if (s->strings->items[i].len > most) most = s->strings->items[i].len;
    return most;
}

/* Bytes at the end of held that are the beginning of a stop string: the longest such tail. */
static size_t held_tail(const gy_stop *s) {
    size_t most = longest_string(s), n = s->held.len;
    for (size_t k = n < most ? n : most; k > 0; k--)
        if (may_begin(s, s->held.data + n - k, k)) return k;
    return 0;
}

int gy_stop_push(gy_stop *s, const char *text, size_t len, gy_str *out) {
    if (s->hit) return 1;
    size_t end = s->held.len;
    gy_str_append(&s->held, text, len);
    while (!s->held.failed && end < s->held.len) {
        size_t m = match_at(s, s->held.data, ++end);
        if (!m) continue;
        gy_str_append(out, s->held.data, end - m);
        s->hit = 1;
        return 1;
    }
    if (s->held.failed) out->failed = 1;
    size_t keep = held_tail(s), go = s->held.len - keep;
    if (!go) return 0;
    gy_str_append(out, s->held.data, go);
    memmove(s->held.data, s->held.data + go, keep);
    s->held.len = keep;
    s->held.data[keep] = '\0';
    return 0;
}

void gy_stop_finish(gy_stop *s, gy_str *out) {
    if (!s->hit) gy_str_append(out, gy_str_z(&s->held), s->held.len);
    gy_str_clear(&s->held);
}
