/* Code point properties and normal forms over utf8proc.
 *
 * Deliberately not used: utf8proc_decompose, whose canonical ordering swaps neighbours and is quadratic in the length
 * of a run of combining marks, and utf8proc_map, which stops at NUL.
 */
#include "text/unicode.h"

#include "base/vec.h"

#include <string.h>
#include <utf8proc.h>

typedef struct uni_range {
    uint32_t lo, hi;
    char category[3];
} uni_range;

/* Sorted. Assigned in Unicode 15.0, 15.1 and 16.0 (tools/make_unicode_extra.py). */
static const uni_range extra[] = {
#include "text/unicode_extra.inc"
};
enum { N_EXTRA = sizeof(extra) / sizeof(extra[0]) };

/* Assigned in Unicode 17: known to the Rust standard library that tokenizers 0.23.3 was built with. Numbers only,
 * because only Digits asks it. */
static const uni_range extra_numeric[] = {{0x11DE0, 0x11DE9, "Nd"}, {0x16FF4, 0x16FF6, "Nl"}};

/* Punctuation by Unicode, not by the older table that tokenizers' Punctuation uses, and the reverse (measured with
 * tokenizers 0.23.3 over all code points). */
static const uni_range not_punct[] = {
    {0x61D, 0x61D, "Po"},     {0x9FD, 0x9FD, "Po"},     {0xA76, 0xA76, "Po"},     {0xC77, 0xC77, "Po"},
    {0xC84, 0xC84, "Po"},     {0x1B4E, 0x1B4F, "Po"},   {0x1B7D, 0x1B7F, "Po"},   {0x2E43, 0x2E44, "Po"},
    {0x2E45, 0x2E4F, "Po"},   {0x2E52, 0x2E5D, "Po"},   {0x10D6E, 0x10D6E, "Pd"}, {0x10EAD, 0x10EAD, "Pd"},
    {0x10F55, 0x10F59, "Po"}, {0x10F86, 0x10F89, "Po"}, {0x113D4, 0x113D8, "Po"}, {0x1144B, 0x1144F, "Po"},
    {0x1145A, 0x1145B, "Po"}, {0x1145D, 0x1145D, "Po"}, {0x11660, 0x1166C, "Po"}, {0x116B9, 0x116B9, "Po"},
    {0x1183B, 0x1183B, "Po"}, {0x11944, 0x11946, "Po"}, {0x119E2, 0x119E2, "Po"}, {0x11A3F, 0x11A46, "Po"},
    {0x11A9A, 0x11A9C, "Po"}, {0x11A9E, 0x11AA2, "Po"}, {0x11B00, 0x11B09, "Po"}, {0x11BE1, 0x11BE1, "Po"},
    {0x11C41, 0x11C45, "Po"}, {0x11C70, 0x11C71, "Po"}, {0x11EF7, 0x11EF8, "Po"}, {0x11F43, 0x11F4F, "Po"},
    {0x11FFF, 0x11FFF, "Po"}, {0x12FF1, 0x12FF2, "Po"}, {0x16D6D, 0x16D6F, "Po"}, {0x16E97, 0x16E9A, "Po"},
    {0x16FE2, 0x16FE2, "Po"}, {0x1E5FF, 0x1E5FF, "Po"}, {0x1E95E, 0x1E95F, "Po"},
};
static const uni_range also_punct[] = {{0x166D, 0x166D, "Po"}, {0x111C9, 0x111C9, "Po"}};

/* tokenizers normalises by the tables of Unicode 9: later code points have no decomposition there and the combining
 * class 0. These are the ones for which that differs from utf8proc 2.8 (measured over all code points). */
static const uni_range not_normalized[] = {
    {0x7FD, 0x7FD, ""},     {0x898, 0x89F, ""},     {0x8CA, 0x8D3, ""},     {0x9FE, 0x9FE, ""},
    {0xC3C, 0xC3C, ""},     {0xD3B, 0xD3C, ""},     {0xEBA, 0xEBA, ""},     {0x1715, 0x1715, ""},
    {0x1ABF, 0x1ACE, ""},   {0x1DF6, 0x1DFA, ""},   {0x32FF, 0x32FF, ""},   {0xA7F2, 0xA7F4, ""},
    {0xA82C, 0xA82C, ""},   {0xAB69, 0xAB69, ""},   {0x10781, 0x10785, ""}, {0x10787, 0x107B0, ""},
    {0x107B2, 0x107BA, ""}, {0x10D24, 0x10D27, ""}, {0x10EAB, 0x10EAC, ""}, {0x10EFD, 0x10EFF, ""},
    {0x10F46, 0x10F50, ""}, {0x10F82, 0x10F85, ""}, {0x11070, 0x11070, ""}, {0x1133B, 0x1133B, ""},
    {0x1145E, 0x1145E, ""}, {0x11839, 0x1183A, ""}, {0x11938, 0x11938, ""}, {0x1193D, 0x1193E, ""},
    {0x11943, 0x11943, ""}, {0x119E0, 0x119E0, ""}, {0x11A34, 0x11A34, ""}, {0x11A47, 0x11A47, ""},
    {0x11A99, 0x11A99, ""}, {0x11D42, 0x11D42, ""}, {0x11D44, 0x11D45, ""}, {0x11D97, 0x11D97, ""},
    {0x11F41, 0x11F42, ""}, {0x16FF0, 0x16FF1, ""}, {0x1E030, 0x1E06D, ""}, {0x1E08F, 0x1E08F, ""},
    {0x1E130, 0x1E136, ""}, {0x1E2AE, 0x1E2AE, ""}, {0x1E2EC, 0x1E2EF, ""}, {0x1E4EC, 0x1E4EF, ""},
    {0x1F16C, 0x1F16C, ""}, {0x1FBF0, 0x1FBF9, ""}};

static const uni_range *range_find(const uni_range *r, size_t n, uint32_t cp) {
    size_t lo = 0;
    while (n > 0) {
        size_t half = n / 2;
        if (cp > r[lo + half].hi) {
            lo += half + 1;
            n -= half + 1;
        } else if (cp < r[lo + half].lo)
            n = half;
        else
            return &r[lo + half];
    }
    return NULL;
}
#define RANGE_FIND(table, cp) range_find(table, sizeof(table) / sizeof((table)[0]), cp)

const char *gy_uni_category(uint32_t cp) {
    const char *c = utf8proc_category_string((utf8proc_int32_t)cp);
    if (c[0] != 'C' || c[1] != 'n') return c;
    const uni_range *r = RANGE_FIND(extra, cp);
    return r ? r->category : c;
}

int gy_uni_is_space(uint32_t cp) {
    if (cp < 0x85) return cp == ' ' || (cp >= 9 && cp <= 13);
    if (cp == 0x85 || cp == 0xA0 || cp == 0x1680) return 1;
    return (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 || cp == 0x202F || cp == 0x205F ||
           cp == 0x3000;
}

int gy_uni_is_numeric(uint32_t cp) {
    if (cp < 0x80) return cp >= '0' && cp <= '9';
    return gy_uni_category(cp)[0] == 'N' || RANGE_FIND(extra_numeric, cp);
}

/* Alphabetic = L + Nl + Other_Alphabetic; of the last only the circled and squared letters are outside M. */
int gy_uni_is_word(uint32_t cp) {
    if (cp < 0x80) return cp == '_' || (cp >= '0' && cp <= '9') || ((cp | 32) >= 'a' && (cp | 32) <= 'z');
    const char *c = gy_uni_category(cp);
    if (c[0] == 'L' || c[0] == 'M') return 1;
    if (c[0] == 'N') return c[1] != 'o';
    if (c[0] == 'P') return c[1] == 'c';
    return cp == 0x200C || cp == 0x200D || (cp >= 0x24B6 && cp <= 0x24E9) || (cp >= 0x1F130 && cp <= 0x1F149) ||
           (cp >= 0x1F150 && cp <= 0x1F169) || (cp >= 0x1F170 && cp <= 0x1F189);
}

int gy_uni_is_punct(uint32_t cp) {
    if (cp < 0x80)
        return (cp >= 33 && cp <= 47) || (cp >= 58 && cp <= 64) || (cp >= 91 && cp <= 96) || (cp >= 123 && cp <= 126);
    if (gy_uni_category(cp)[0] == 'P') return !RANGE_FIND(not_punct, cp);
    return RANGE_FIND(also_punct, cp) != NULL;
}

void gy_uni_put_lower(gy_str *out, uint32_t cp) {
    if (cp == 0x130) { /* the only code point whose lower case is two (SpecialCasing.txt) */
        gy_str_append(out, "i\xCC\x87", 3);
        return;
    }
    gy_str_put_utf8(out, (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp));
}

size_t gy_uni_space_prefix(const char *s, size_t len) {
    size_t i = 0;
    while (i < len) {
        uint32_t cp;
        int n = gy_utf8_decode(s + i, len - i, &cp);
        if (!gy_uni_is_space(cp)) break;
        i += (size_t)n;
    }
    return i;
}

size_t gy_uni_space_suffix(const char *s, size_t len) {
    size_t end = len;
    while (end > 0) {
        size_t at = end - 1;
        while (at > 0 && ((unsigned char)s[at] & 0xC0) == 0x80) at--;
        uint32_t cp;
        gy_utf8_decode(s + at, end - at, &cp);
        if (!gy_uni_is_space(cp)) break;
        end = at;
    }
    return len - end;
}

void gy_uni_put_extra_ranges(gy_str *out, const char *category) {
    for (size_t i = 0; i < N_EXTRA; i++)
        if (strncmp(extra[i].category, category, strlen(category)) == 0)
            gy_str_printf(out, "\\x{%X}-\\x{%X}", extra[i].lo, extra[i].hi);
}

/* ---- normal forms ---- */

typedef GY_VEC(utf8proc_int32_t) cp_vec;

static int is_unknown(utf8proc_int32_t cp) {
    return cp >= 0x700 && RANGE_FIND(not_normalized, (uint32_t)cp);
}

static int combining_class(utf8proc_int32_t cp) {
    if (cp < 0x300) return 0;
    int c = utf8proc_get_property(cp)->combining_class;
    return c && is_unknown(cp) ? 0 : c;
}

/* Stable order by combining class of a run without starters: counting sort, so linear for any run. */
static gy_status run_order(utf8proc_int32_t *run, size_t n) {
    int sorted = 1;
    for (size_t i = 1; i < n && sorted; i++) sorted = combining_class(run[i - 1]) <= combining_class(run[i]);
    if (sorted) return GY_OK;
    size_t at[257] = {0};
    utf8proc_int32_t *copy = gy_mem_alloc(GY_MEM_TEXT, n, sizeof(*copy));
    if (!copy) return GY_E_NOMEM;
    memcpy(copy, run, n * sizeof(*copy));
    for (size_t i = 0; i < n; i++) at[combining_class(copy[i]) + 1]++;
    for (int c = 1; c < 257; c++) at[c] += at[c - 1];
    for (size_t i = 0; i < n; i++) run[at[combining_class(copy[i])]++] = copy[i];
    gy_mem_free(copy);
    return GY_OK;
}

static gy_status canonical_order(cp_vec *v) {
    for (size_t i = 0; i < v->len;) {
        size_t start = i;
        while (i < v->len && combining_class(v->data[i]) > 0) i++;
        if (i - start > 1) GY_TRY(run_order(v->data + start, i - start));
        if (i == start) i++;
    }
    return GY_OK;
}

static gy_status decompose(const char *text, size_t len, int options, cp_vec *v) {
    for (size_t i = 0; i < len;) {
        uint32_t cp;
        i += (size_t)gy_utf8_decode(text + i, len - i, &cp);
        utf8proc_int32_t buf[32]; /* the longest decomposition, U+FDFA's, has 18 */
        int boundary = UTF8PROC_BOUNDCLASS_START;
        utf8proc_ssize_t n = -1;
        if (!is_unknown((utf8proc_int32_t)cp))
            n = utf8proc_decompose_char((utf8proc_int32_t)cp, buf, 32, (utf8proc_option_t)options, &boundary);
        if (n < 0 || n > 32) {
            buf[0] = (utf8proc_int32_t)cp;
            n = 1;
        }
        if (gy_vec_reserve(v, GY_MEM_TEXT, (size_t)n)) return GY_E_NOMEM;
        for (utf8proc_ssize_t k = 0; k < n; k++) v->data[v->len++] = buf[k];
    }
    return GY_OK;
}

/* The composition of two code points, -1 if there is none. */
static utf8proc_int32_t compose_pair(utf8proc_int32_t a, utf8proc_int32_t b) {
    int is_hangul = (b >= 0x1161 && b <= 0x1175) || (b >= 0x11A8 && b <= 0x11C2);
    if (!is_hangul &&
        (utf8proc_get_property(a)->comb_index == UINT16_MAX || utf8proc_get_property(b)->comb_index == UINT16_MAX))
        return -1;
    utf8proc_int32_t pair[2] = {a, b};
    utf8proc_ssize_t n = utf8proc_normalize_utf32(pair, 2, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    return n == 1 && !is_unknown(pair[0]) ? pair[0] : -1;
}

/* Canonical composition (Unicode 3.11, D117) of a decomposed and ordered text, in place. Not utf8proc's, which goes by
 * its own combining classes. */
static void compose(cp_vec *v) {
    size_t n = 0, starter = SIZE_MAX;
    int last_class = 0; /* of the character before, among those behind the starter that stayed */
    for (size_t i = 0; i < v->len; i++) {
        utf8proc_int32_t cp = v->data[i];
        int c = combining_class(cp), adjacent = starter != SIZE_MAX && n == starter + 1;
        if (starter != SIZE_MAX && (adjacent || last_class < c)) {
            utf8proc_int32_t both = compose_pair(v->data[starter], cp);
            if (both >= 0) {
                v->data[starter] = both;
                continue;
            }
        }
        if (c == 0) starter = n;
        last_class = c;
        v->data[n++] = cp;
    }
    v->len = n;
}

/* Text that every form leaves alone: ASCII, and below U+0300 for NFC (no combining marks, nothing composes). */
static int is_quick(const char *text, size_t len, gy_uni_form form) {
    unsigned char limit = form == GY_UNI_NFC ? 0xCC : 0x80; /* 0xCC 0x80 begins U+0300 */
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)text[i] >= limit) return 0;
    return 1;
}

gy_status gy_uni_normalize(const char *text, size_t len, gy_uni_form form, int64_t *steps, gy_str *out) {
    if (steps) *steps += (int64_t)len;
    if (is_quick(text, len, form)) {
        gy_str_append(out, text, len);
        return out->failed ? GY_E_NOMEM : GY_OK;
    }
    int composes = form == GY_UNI_NFC || form == GY_UNI_NFKC, compat = form == GY_UNI_NFKC || form == GY_UNI_NFKD;
    int options = UTF8PROC_STABLE | (composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) | (compat ? UTF8PROC_COMPAT : 0);
    cp_vec v = {0};
    gy_status st;
    GY_TRY_GOTO(st, decompose(text, len, options, &v), done);
    GY_TRY_GOTO(st, canonical_order(&v), done);
    if (steps) *steps += (int64_t)v.len;
    if (composes) compose(&v);
    for (size_t i = 0; i < v.len; i++) gy_str_put_utf8(out, (uint32_t)v.data[i]);
    st = out->failed ? GY_E_NOMEM : GY_OK;
done:
    gy_vec_free(&v);
    return st;
}
