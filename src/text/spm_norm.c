/* SentencePiece's normaliser: replacement rules (precompiled_charsmap), white space, the dummy prefix or suffix.
 *
 * precompiled_charsmap = uint32 trie size in bytes | double array | replacement texts, NUL-terminated; little endian.
 * The double array is darts-clone's (github.com/s-yata/darts-clone): one 32-bit unit a node,
 *   bit 31 set: a leaf, bits 0..30 its value (here: offset of the replacement text);
 *   else bits 0..7 label, bit 8 "a leaf hangs below", bits 10..31 offset, shifted left by 8 more if bit 9 is set.
 * From node n the byte c leads to n ^ offset(n) ^ c if that unit's label is c; the leaf is at n ^ offset(n).
 *
 * Not here: denormalisation rules (refused by spm_model.c) and offsets into the original text.
 */
#include "text/spm_int.h"

#include <string.h>

#define SPACE_SYMBOL "\xe2\x96\x81" /* U+2581 */

/* sentencepiece looks at the first 32 rules (64 user-defined pieces) that match at a place, shortest first. */
#define MAX_RULE_MATCH 32
#define MAX_USER_MATCH 64
/* A damaged double array may hold a cycle: no walk is longer than this, so cost stays linear in the text. Real rules
 * are some tens of bytes long. */
#define MAX_RULE_BYTES 1024

static uint32_t unit_offset(uint32_t u) {
    return (u >> 10) << ((u & (1u << 9)) >> 6);
}
static uint32_t unit_label(uint32_t u) {
    return u & ((1u << 31) | 0xFF);
}
static int unit_has_leaf(uint32_t u) {
    return (u >> 8) & 1;
}
static uint32_t unit_value(uint32_t u) {
    return u & 0x7FFFFFFF;
}

/* No transition may leave the array, no leaf may point outside the texts. */
static int charsmap_valid(const gy_spm_charsmap *m) {
    uint32_t root = m->unit[0];
    if (unit_label(root) != 0 || unit_has_leaf(root) || unit_offset(root) == 0) return 0;
    for (size_t i = 0; i < m->n_unit; i++) {
        uint32_t u = m->unit[i];
        if (unit_label(u) > 0xFF) {
            if (unit_value(u) >= m->n_text) return 0;
            continue;
        }
        size_t base = i ^ unit_offset(u);
        if ((base | 0xFF) >= m->n_unit) return 0;
        if (unit_has_leaf(u) && unit_label(m->unit[base]) <= 0xFF) return 0;
    }
    return 1;
}

static gy_status charsmap_copy(gy_spm_charsmap *m, const char *blob, size_t trie, size_t text) {
    m->unit = gy_mem_alloc(GY_MEM_TEXT, trie / 4, sizeof *m->unit);
    m->text = gy_mem_alloc(GY_MEM_TEXT, text, 1);
    if (!m->unit || !m->text) return GY_E_NOMEM;
    m->n_unit = trie / 4;
    m->n_text = text;
    for (size_t i = 0; i < m->n_unit; i++) {
        const unsigned char *p = (const unsigned char *)blob + 4 + 4 * i;
        m->unit[i] = p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
    }
    memcpy(m->text, blob + 4 + trie, text);
    return GY_OK;
}

gy_status gy_spm_charsmap_load(gy_spm_charsmap *m, const char *blob, size_t len, gy_err *err) {
    if (!len) return GY_OK;
    const unsigned char *p = (const unsigned char *)blob;
    size_t trie = len < 4 ? 0 : p[0] | (size_t)p[1] << 8 | (size_t)p[2] << 16 | (size_t)p[3] << 24;
    if (trie < 1024 || trie % 1024 || trie + 4 >= len) {
        return gy_err_set(
            err, GY_E_FORMAT,
            "normalizer_spec.precompiled_charsmap: found %zu bytes with a trie of %zu, expected a trie of "
            "1024 n bytes and text after it: the file is damaged, fetch it again",
            len, trie);
    }
    if (blob[len - 1] != '\0') {
        return gy_err_set(err, GY_E_FORMAT,
                          "normalizer_spec.precompiled_charsmap: its text does not end in NUL: the file is damaged, "
                          "fetch it again");
    }
    if (charsmap_copy(m, blob, trie, len - 4 - trie) < 0) return gy_err_set(err, GY_E_NOMEM, "no memory");
    if (charsmap_valid(m)) return GY_OK;
    return gy_err_set(
        err, GY_E_FORMAT,
        "normalizer_spec.precompiled_charsmap: its trie points outside itself: the file is damaged, fetch "
        "it again");
}

void gy_spm_charsmap_fini(gy_spm_charsmap *m) {
    gy_mem_free(m->unit);
    gy_mem_free(m->text);
    memset(m, 0, sizeof *m);
}

size_t gy_spm_char_len(const char *s, size_t len) {
    static const uint8_t by_high_nibble[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 3, 4};
    size_t n = by_high_nibble[(uint8_t)s[0] >> 4];
    return n < len ? n : len;
}

size_t gy_spm_user_match(const gy_spm *m, const char *s, size_t len, int64_t *steps) {
    uint32_t at = 0;
    size_t best = 0, i = 0;
    for (int n = 0; i < len && n < MAX_USER_MATCH && gy_spm_trie_step(&m->user, &at, (uint8_t)s[i]); i++) {
        if (m->user.node[at].id < 0) continue;
        best = i + 1;
        n++;
    }
    *steps += (int64_t)i;
    return best;
}

/* The longest rule at s: its length, 0 if none; *value_out is the offset of its text. */
static size_t rule_match(const gy_spm_charsmap *m, const char *s, size_t len, uint32_t *value_out, int64_t *steps) {
    size_t best = 0, i = 0, limit = len < MAX_RULE_BYTES ? len : MAX_RULE_BYTES;
    size_t node = unit_offset(m->unit[0]);
    for (int n = 0; i < limit && n < MAX_RULE_MATCH; i++) {
        node ^= (uint8_t)s[i];
        uint32_t u = m->unit[node];
        if (unit_label(u) != (uint8_t)s[i]) break;
        node ^= unit_offset(u);
        if (!unit_has_leaf(u)) continue;
        best = i + 1;
        *value_out = unit_value(m->unit[node]);
        n++;
    }
    *steps += (int64_t)i;
    return best;
}

typedef struct norm_unit {
    const char *out;
    size_t n_out, n_in;
} norm_unit;

/* What the text at s turns into first. User-defined pieces are taken as they are, ahead of all rules. */
static norm_unit norm_next(const gy_spm *m, const char *s, size_t len, int64_t *steps) {
    ++*steps;
    size_t n = gy_spm_user_match(m, s, len, steps);
    if (n) return (norm_unit){s, n, n};
    if (m->map.n_unit) {
        uint32_t value = 0;
        n = rule_match(&m->map, s, len, &value, steps);
        if (n) return (norm_unit){m->map.text + value, strlen(m->map.text + value), n};
    }
    n = gy_spm_char_len(s, len);
    return (norm_unit){s, n, n};
}

static void norm_put(const gy_spm *m, gy_str *out, const char *s, size_t len) {
    const char *space = m->escape_ws ? SPACE_SYMBOL : " ";
    size_t run = 0;
    for (size_t i = 0; i < len; i++) {
        if (s[i] != ' ') continue;
        gy_str_append(out, s + run, i - run);
        gy_str_puts(out, space);
        run = i + 1;
    }
    gy_str_append(out, s + run, len - run);
}

/* Also white space that the user wrote as U+2581 goes, as in sentencepiece. */
static void norm_trim_end(const gy_spm *m, gy_str *out) {
    const char *space = m->escape_ws ? SPACE_SYMBOL : " ";
    size_t n = strlen(space);
    while (out->len >= n && !memcmp(out->data + out->len - n, space, n)) out->len -= n;
    if (out->data) out->data[out->len] = '\0';
}

static void norm_body(const gy_spm *m, gy_spm_scratch *s, const char *text, size_t len) {
    int after_space = m->remove_extra_ws;
    for (size_t i = 0; i < len && s->norm.len < INT32_MAX;) { /* a rule's text may be long: stop where it is refused */
        norm_unit u = norm_next(m, text + i, len - i, &s->steps);
        i += u.n_in;
        while (after_space && u.n_out && u.out[0] == ' ') {
            u.out++;
            u.n_out--;
        }
        s->steps += (int64_t)u.n_out;
        if (!u.n_out) continue;
        norm_put(m, &s->norm, u.out, u.n_out);
        after_space = m->remove_extra_ws && u.out[u.n_out - 1] == ' ';
    }
}

gy_status gy_spm_normalize(const gy_spm *m, gy_spm_scratch *s, const char *text, size_t len, gy_err *err) {
    gy_str_clear(&s->norm);
    while (m->remove_extra_ws && len) {
        norm_unit u = norm_next(m, text, len, &s->steps);
        if (u.n_out != 1 || u.out[0] != ' ') break;
        text += u.n_in;
        len -= u.n_in;
    }
    if (!len) return GY_OK;
    if (m->add_dummy_prefix && !m->ws_suffix) norm_put(m, &s->norm, " ", 1);
    norm_body(m, s, text, len);
    if (m->remove_extra_ws) norm_trim_end(m, &s->norm);
    if (m->add_dummy_prefix && m->ws_suffix) norm_put(m, &s->norm, " ", 1);
    if (s->norm.failed) return gy_err_set(err, GY_E_NOMEM, "no memory for %zu bytes of normalised text", len);
    if (s->norm.len <= INT32_MAX - 8) return GY_OK;
    return gy_err_set(err, GY_E_LIMIT, "the text normalises to %zu bytes, at most %d are possible", s->norm.len,
                      INT32_MAX - 8);
}
