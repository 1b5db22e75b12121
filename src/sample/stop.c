/* Stop strings by Knuth, Morris and Pratt ("Fast pattern matching in strings", SIAM J. Comput. 6, 1977), one automaton
 * for each string: `at` is the length of its longest prefix that the text so far ends with.
 *
 *   held back   the largest `at` of all strings: the longest end of the text that a stop string may begin with
 *   found       at == len; of several at the same byte the longest, which begins leftmost (equal ones: the first)
 *
 * The bytes held back are the first bytes of that string, so no text is kept here at all. A byte of text costs
 * O(n strings) amortised, however long they are and however the text was cut.
 * Deliberately not here: one automaton for all strings (Aho and Corasick): there are few, and its tables are large.
 */
#include "sample/stop.h"

#include "base/mem.h"

#include <stdint.h>
#include <string.h>

typedef struct needle {
    const char *s;        /* [len] in the same allocation */
    const uint16_t *back; /* [len] back[k]: length of the longest proper border of s[0..k], that is of k + 1 bytes */
    uint16_t len;
    uint16_t at; /* < len, except for the one that was found */
} needle;

struct gy_stop {
    size_t n;
    const needle *longest; /* holds the most text; NULL: nothing is held */
    const needle *found;   /* NULL until then */
    needle needles[];
};

/* ---- creation ---- */

static gy_status strings_check(const gy_stop_string *strings, size_t n, gy_err *err) {
    if (n > GY_MAX_STOP) return gy_err_set(err, GY_E_ARG, "stop: found %zu strings; allowed up to %d", n, GY_MAX_STOP);
    for (size_t i = 0; i < n; i++) {
        if (strings[i].len == 0)
            return gy_err_set(err, GY_E_ARG, "stop[%zu]: found an empty string; allowed 1 to %d bytes", i,
                              GY_MAX_STOP_BYTES);
        if (strings[i].len > GY_MAX_STOP_BYTES)
            return gy_err_set(err, GY_E_ARG, "stop[%zu]: found %zu bytes; allowed 1 to %d", i, strings[i].len,
                              GY_MAX_STOP_BYTES);
    }
    return GY_OK;
}

static void back_fill(const char *s, size_t len, uint16_t *back) {
    uint16_t k = 0;
    back[0] = 0;
    for (size_t i = 1; i < len; i++) {
        while (k && s[i] != s[k]) k = back[k - 1];
        if (s[i] == s[k]) k++;
        back[i] = k;
    }
}

/* Order in memory: struct, needles, tables of all strings, bytes of all strings. */
gy_status gy_stop_create(const gy_stop_string *strings, size_t n, gy_err *err, gy_stop **out) {
    size_t sum = 0;
    GY_TRY(strings_check(strings, n, err));
    for (size_t i = 0; i < n; i++) sum += strings[i].len;
    size_t bytes = sizeof(gy_stop) + n * sizeof(needle) + sum * (sizeof(uint16_t) + 1);
    gy_stop *s = gy_mem_alloc(GY_MEM_SAMPLE, bytes, 1);
    if (!s) return gy_err_set(err, GY_E_NOMEM, "stop: no memory for %zu bytes", bytes);
    uint16_t *back = (uint16_t *)(s->needles + n);
    char *copy = (char *)(back + sum);
    s->n = n;
    for (size_t i = 0; i < n; i++) {
        size_t len = strings[i].len;
        memcpy(copy, strings[i].s, len);
        back_fill(copy, len, back);
        s->needles[i] = (needle){.s = copy, .back = back, .len = (uint16_t)len};
        copy += len;
        back += len;
    }
    *out = s;
    return GY_OK;
}

void gy_stop_destroy(gy_stop *s) {
    gy_mem_free(s);
}

/* ---- the text ---- */

static void needle_step(needle *d, char c) {
    uint16_t k = d->at;
    while (k && d->s[k] != c) k = d->back[k - 1];
    d->at = (uint16_t)(k + (d->s[k] == c));
}

/* One byte of text. */
static void stop_step(gy_stop *s, char c) {
    s->longest = NULL;
    for (size_t i = 0; i < s->n; i++) {
        needle *d = &s->needles[i];
        needle_step(d, c);
        if (d->at == d->len && (!s->found || d->len > s->found->len)) s->found = d;
        if (d->at && (!s->longest || d->at > s->longest->at)) s->longest = d;
    }
}

/* The first n bytes of held text followed by new text. */
static void emit(gy_str *out, const char *held, size_t n_held, const char *text, size_t n) {
    gy_str_append(out, held, n < n_held ? n : n_held);
    if (n > n_held) gy_str_append(out, text, n - n_held);
}

int gy_stop_push(gy_stop *s, const char *text, size_t len, gy_str *out, size_t *which_out) {
    if (!s->found) {
        const char *held = s->longest ? s->longest->s : "";
        size_t n_held = gy_stop_held(s), n = 0;
        while (n < len && !s->found) stop_step(s, text[n++]);
        size_t keep = s->found ? s->found->len : gy_stop_held(s);
        emit(out, held, n_held, text, n_held + n - keep);
        if (s->found) s->longest = NULL;
    }
    if (s->found && which_out) *which_out = (size_t)(s->found - s->needles);
    return s->found != NULL;
}

void gy_stop_finish(gy_stop *s, gy_str *out) {
    if (s->longest) gy_str_append(out, s->longest->s, s->longest->at);
    s->longest = NULL;
    for (size_t i = 0; i < s->n; i++) s->needles[i].at = 0;
}

size_t gy_stop_held(const gy_stop *s) {
    return s->longest ? s->longest->at : 0;
}
