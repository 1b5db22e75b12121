/* The parser that all commands share; the tables are in cli_args.c, the text of --help in cli_help.c. No abbreviations,
 * no short options but -h, no environment.
 */
#include "cli/cli_opts.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void gy_opts_fini(gy_opts *o) {
    gy_vec_free(&o->seen);
    gy_vec_free(&o->pos);
}

/* Copies at most cap - 1 bytes and ends them with NUL: for names inside messages. */
static void copy_cut(char *dst, size_t cap, const char *s, size_t len) {
    size_t n = len < cap ? len : cap - 1;
    memcpy(dst, s, n);
    dst[n] = '\0';
}

/* ---- words and numbers ---- */

int gy_opt_word_index(const char *words, const char *s, size_t len) {
    for (int i = 0;; i++) {
        size_t n = strcspn(words, "|");
        if (n == len && !memcmp(words, s, n)) return i;
        if (!words[n]) return -1;
        words += n + 1;
    }
}

int gy_parse_i64(const char *s, int64_t *out) {
    char *end;
    if (!(s[0] >= '0' && s[0] <= '9') && !(s[0] == '-' && s[1] >= '0' && s[1] <= '9')) return -1;
    errno = 0;
    long long v = strtoll(s, &end, 10);
    if (*end || errno) return -1;
    *out = v;
    return 0;
}

int gy_parse_u64(const char *s, uint64_t *out) {
    char *end;
    if (!(s[0] >= '0' && s[0] <= '9')) return -1;
    errno = 0;
    unsigned long long v = strtoull(s, &end, 10);
    if (*end || errno) return -1;
    *out = v;
    return 0;
}

int gy_parse_f64(const char *s, double *out) {
    char *end;
    if (!strchr("0123456789-+.", s[0]) || !s[0]) return -1;
    double v = strtod(s, &end);
    if (*end || !isfinite(v)) return -1;
    *out = v;
    return 0;
}

/* A fraction needs a suffix: half a byte is no size. */
int gy_parse_size(const char *s, uint64_t *out) {
    static const char suffix[] = "KMG";
    char number[32];
    double v;
    size_t n = strlen(s);
    const char *at = n ? strchr(suffix, s[n - 1]) : NULL;
    if (!at || !*at) return gy_parse_u64(s, out);
    if (n - 1 >= sizeof number || !(s[0] >= '0' && s[0] <= '9') || strspn(s, "0123456789.") != n - 1) return -1;
    memcpy(number, s, n - 1);
    number[n - 1] = '\0';
    if (gy_parse_f64(number, &v)) return -1;
    v = ldexp(v, 10 * (int)(at - suffix + 1));
    if (v >= 0x1p62) return -1;
    *out = (uint64_t)v;
    return 0;
}

/* ---- suggestions ---- */

enum { SUGGEST_MAX = 40 };

static size_t min3(size_t a, size_t b, size_t c) {
    size_t m = a < b ? a : b;
    return m < c ? m : c;
}

/* Edits (insert, delete, replace) from a to b; SUGGEST_MAX for words too long to bother. */
static size_t edit_distance(const char *a, const char *b) {
    size_t row[SUGGEST_MAX + 1], na = strlen(a), nb = strlen(b);
    if (na >= SUGGEST_MAX || nb >= SUGGEST_MAX) return SUGGEST_MAX;
    for (size_t j = 0; j <= nb; j++) row[j] = j;
    for (size_t i = 1; i <= na; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t up = row[j];
            row[j] = min3(row[j - 1] + 1, up + 1, diagonal + (a[i - 1] != b[j - 1]));
            diagonal = up;
        }
    }
    return row[nb];
}

const char *gy_suggest(const char *found, const char *const *candidates, size_t n) {
    const char *nearest = NULL, *longer = NULL;
    size_t len = strlen(found), limit = len < 6 ? 2 : 3, least = limit + 1;
    for (size_t i = 0; i < n; i++) {
        const char *c = candidates[i];
        size_t d = edit_distance(found, c);
        if (d < least) least = d, nearest = c;
        if (!longer && len >= 3 && !strncmp(found, c, len)) longer = c;
    }
    return nearest ? nearest : longer;
}

/* ---- the table ---- */

const gy_opt *gy_opts_find(const gy_opts *o, const char *name, size_t len) {
    for (const gy_opt_group *const *g = o->groups; *g; g++)
        for (size_t i = 0; i < (*g)->n; i++)
            if (strlen((*g)->opts[i].name) == len && !strncmp((*g)->opts[i].name, name, len)) return &(*g)->opts[i];
    return NULL;
}

int gy_opts_given(const gy_opts *o, const char *name) {
    for (size_t i = 0; i < o->seen.len; i++)
        if (!strcmp(o->seen.data[i], name)) return 1;
    return 0;
}

static const char *opts_suggest(const gy_opts *o, const char *found) {
    enum { MAX = 128 };
    const char *names[MAX];
    size_t n = 0;
    for (const gy_opt_group *const *g = o->groups; *g; g++)
        for (size_t i = 0; i < (*g)->n && n < MAX; i++) names[n++] = (*g)->opts[i].name;
    return gy_suggest(found, names, n);
}

static void *opt_at(const gy_opts *o, const gy_opt *opt) {
    return (char *)o->values + opt->offset;
}

/* ---- storing one value; `name` is the spelling that messages use ---- */

static gy_status list_push(gy_opts *o, const gy_opt *opt, const char *text, size_t len, gy_err *err) {
    gy_opt_list *l = opt_at(o, opt);
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 4;
        gy_opt_item *items = gy_arena_alloc(o->arena, cap, sizeof *items);
        if (!items) return gy_err_set(err, GY_E_NOMEM, "no memory for the options");
        if (l->n) memcpy(items, l->items, l->n * sizeof *items);
        l->items = items;
        l->cap = cap;
    }
    l->items[l->n++] = (gy_opt_item){opt, text, len};
    return GY_OK;
}

static gy_status store_int(gy_opts *o, const gy_opt *opt, const char *name, int64_t v, gy_err *err) {
    if ((double)v < opt->min || (double)v > opt->max)
        return gy_err_set(err, GY_E_ARG, "%s: found %lld, expected a whole number from %.0f to %.0f", name,
                          (long long)v, opt->min, opt->max);
    *(int32_t *)opt_at(o, opt) = (int32_t)v;
    return GY_OK;
}

static gy_status store_num(gy_opts *o, const gy_opt *opt, const char *name, double v, gy_err *err) {
    if (!(v >= opt->min && v <= opt->max))
        return gy_err_set(err, GY_E_ARG, "%s: found %g, expected a number from %g to %g", name, v, opt->min, opt->max);
    *(double *)opt_at(o, opt) = v;
    return GY_OK;
}

static gy_status store_word(gy_opts *o, const gy_opt *opt, const char *name, const char *s, gy_err *err) {
    int i = gy_opt_word_index(opt->arg, s, strlen(s));
    if (i < 0) return gy_err_set(err, GY_E_ARG, "%s: found '%.80s', expected one of %s", name, s, opt->arg);
    *(int *)opt_at(o, opt) = i;
    return GY_OK;
}

static gy_status store_given(gy_opts *o, const gy_opt *opt, const char *name, const char *s, gy_err *err) {
    gy_opt_u64 u = {.given = 1};
    int bad = opt->kind == GY_OPT_SIZE ? gy_parse_size(s, &u.v) : gy_parse_u64(s, &u.v);
    if (bad)
        return gy_err_set(err, GY_E_ARG, "%s: found '%.80s', expected %s", name, s,
                          opt->kind == GY_OPT_SIZE ? "a number of bytes, or one with K, M or G behind it"
                                                   : "a whole number from 0 to 2^64 - 1");
    *(gy_opt_u64 *)opt_at(o, opt) = u;
    return GY_OK;
}

/* A value that came as text, on the command line. */
static gy_status store_text(gy_opts *o, const gy_opt *opt, const char *name, const char *s, gy_err *err) {
    int64_t i;
    double d;
    switch (opt->kind) {
    case GY_OPT_I32:
        if (!gy_parse_i64(s, &i)) return store_int(o, opt, name, i, err);
        return gy_err_set(err, GY_E_ARG, "%s: found '%.80s', expected a whole number from %.0f to %.0f", name, s,
                          opt->min, opt->max);
    case GY_OPT_U64:
        if (!gy_parse_u64(s, opt_at(o, opt))) return GY_OK;
        return gy_err_set(err, GY_E_ARG, "%s: found '%.80s', expected a whole number from 0 to 2^64 - 1", name, s);
    case GY_OPT_SEED:
    case GY_OPT_SIZE:
        return store_given(o, opt, name, s, err);
    case GY_OPT_F64:
        if (!gy_parse_f64(s, &d)) return store_num(o, opt, name, d, err);
        return gy_err_set(err, GY_E_ARG, "%s: found '%.80s', expected a number from %g to %g", name, s, opt->min,
                          opt->max);
    case GY_OPT_WORD:
        return store_word(o, opt, name, s, err);
    case GY_OPT_LIST:
        return list_push(o, opt, s, strlen(s), err);
    case GY_OPT_STR:
    case GY_OPT_IDS:
    case GY_OPT_PAIRS:
        *(const char **)opt_at(o, opt) = s;
        return GY_OK;
    case GY_OPT_FLAG:
        *(int *)opt_at(o, opt) = 1;
        return GY_OK;
    }
    return gy_err_set(err, GY_E_BUG, "%s: option of unknown kind", name);
}

static gy_status opts_mark(gy_opts *o, const gy_opt *opt, gy_err *err) {
    if (gy_vec_push(&o->seen, GY_MEM_CLI, opt->name)) return gy_err_set(err, GY_E_NOMEM, "no memory for the options");
    return GY_OK;
}

/* ---- the command line ---- */

static gy_status unknown_option(const gy_opts *o, const char *name, gy_err *err) {
    const char *near = opts_suggest(o, name);
    if (near) return gy_err_set(err, GY_E_ARG, "unknown option --%.80s; did you mean --%s?", name, near);
    return gy_err_set(err, GY_E_ARG, "unknown option --%.80s", name);
}

/* argv[*i] is an option; takes its value from behind '=' or from the next argument, then *i is that one. */
static gy_status parse_option(gy_opts *o, int argc, char **argv, int *i, gy_err *err) {
    char dashed[2 * SUGGEST_MAX] = "--", *name = dashed + 2;
    const char *body = argv[*i] + 2, *eq = strchr(body, '='), *value = eq ? eq + 1 : NULL;
    size_t len = eq ? (size_t)(eq - body) : strlen(body);
    const gy_opt *opt = gy_opts_find(o, body, len);
    copy_cut(name, sizeof dashed - 2, body, len);
    if (!opt) return unknown_option(o, name, err);
    if (opt->kind == GY_OPT_FLAG && value)
        return gy_err_set(err, GY_E_ARG, "--%s: found the value '%.80s', expected none", name, value);
    if (opt->kind != GY_OPT_FLAG && !value) {
        if (*i + 1 >= argc)
            return gy_err_set(err, GY_E_ARG, "--%s: found nothing behind it, expected a value %s", name, opt->arg);
        value = argv[++*i];
    }
    GY_TRY(opts_mark(o, opt, err));
    return store_text(o, opt, dashed, value ? value : "", err);
}

gy_status gy_opts_parse_argv(gy_opts *o, int argc, char **argv, gy_err *err) {
    const gy_opt *help;
    int only_pos = 0;
    for (int i = 0; i < argc; i++) {
        if (!only_pos && !strcmp(argv[i], "--")) {
            only_pos = 1;
        } else if (!only_pos && !strncmp(argv[i], "--", 2)) {
            GY_TRY(parse_option(o, argc, argv, &i, err));
        } else if (!only_pos && !strcmp(argv[i], "-h") && (help = gy_opts_find(o, "help", 4))) {
            *(int *)opt_at(o, help) = 1;
        } else if (!only_pos && argv[i][0] == '-' && argv[i][1]) {
            return gy_err_set(err, GY_E_ARG, "unknown option %.80s; options begin with two dashes", argv[i]);
        } else if (gy_vec_push(&o->pos, GY_MEM_CLI, argv[i])) {
            return gy_err_set(err, GY_E_NOMEM, "no memory for the options");
        }
    }
    return GY_OK;
}

/* ---- JSON ---- */

static gy_status wrong_type(const char *name, const char *expected, const gy_jv *v, gy_err *err) {
    return gy_err_set(err, GY_E_ARG, "field \"%s\": found %s, expected %s", name, gy_jtype_name(gy_jv_type(v)),
                      expected);
}

static const char *json_text(gy_opts *o, const gy_jv *v, size_t *len_out, gy_err *err) {
    const char *s = gy_jv_str(v, len_out);
    const char *copy = gy_arena_strndup(o->arena, s, *len_out);
    if (!copy) gy_err_set(err, GY_E_NOMEM, "no memory for the options");
    return copy;
}

static gy_status json_list(gy_opts *o, const gy_opt *opt, const char *name, const gy_jv *v, gy_err *err) {
    size_t n = gy_jv_type(v) == GY_J_STRING ? 1 : gy_jv_len(v), len;
    if (gy_jv_type(v) != GY_J_STRING && gy_jv_type(v) != GY_J_ARRAY)
        return wrong_type(name, "a string or a list of strings", v, err);
    *(gy_opt_list *)opt_at(o, opt) = (gy_opt_list){0};
    for (size_t i = 0; i < n; i++) {
        const gy_jv *e = gy_jv_type(v) == GY_J_STRING ? v : gy_jv_at(v, i);
        if (gy_jv_type(e) != GY_J_STRING) return wrong_type(name, "strings in this list", e, err);
        const char *s = json_text(o, e, &len, err);
        if (!s) return GY_E_NOMEM;
        GY_TRY(list_push(o, opt, s, len, err));
    }
    return GY_OK;
}

static gy_status json_string(gy_opts *o, const gy_opt *opt, const char *name, const gy_jv *v, gy_err *err) {
    size_t len;
    if (gy_jv_type(v) != GY_J_STRING) return wrong_type(name, "a string", v, err);
    const char *s = json_text(o, v, &len, err);
    if (!s) return GY_E_NOMEM;
    if (strlen(s) != len) return gy_err_set(err, GY_E_ARG, "field \"%s\": found a NUL in the string", name);
    return store_text(o, opt, name, s, err);
}

/* JSON's own forms of a list of ids and of pairs, as the text that the command line would have. */
static gy_status ids_text(const gy_jv *v, const char *name, gy_err *err, gy_str *out) {
    for (size_t i = 0; i < gy_jv_len(v); i++) {
        const gy_jv *e = gy_jv_at(v, i);
        if (gy_jv_type(e) != GY_J_INT) return wrong_type(name, "whole numbers in this list", e, err);
        gy_str_printf(out, "%s%lld", i ? "," : "", (long long)gy_jv_int(e, 0));
    }
    return GY_OK;
}

static gy_status pairs_text(const gy_jv *v, const char *name, gy_err *err, gy_str *out) {
    for (void *it = gy_jv_first(v); it; it = gy_jv_next(v, it)) {
        const gy_jv *e = gy_jv_val(it);
        if (gy_jv_type(e) != GY_J_INT && gy_jv_type(e) != GY_J_REAL)
            return wrong_type(name, "numbers in this object", e, err);
        gy_str_printf(out, "%s%.40s:%.17g", out->len ? "," : "", gy_jv_key(it, NULL), gy_jv_num(e, 0));
    }
    return GY_OK;
}

static gy_status json_own_form(gy_opts *o, const gy_opt *opt, const char *name, const gy_jv *v, gy_err *err) {
    gy_str text = {0};
    gy_status st = opt->kind == GY_OPT_IDS ? ids_text(v, name, err, &text) : pairs_text(v, name, err, &text);
    const char *copy = text.failed ? NULL : gy_arena_strndup(o->arena, gy_str_z(&text), text.len);
    gy_str_free(&text);
    GY_TRY(st);
    if (!copy) return gy_err_set(err, GY_E_NOMEM, "no memory for the options");
    *(const char **)opt_at(o, opt) = copy;
    return GY_OK;
}

static gy_status json_u64(gy_opts *o, const gy_opt *opt, const char *name, const gy_jv *v, gy_err *err) {
    if (gy_jv_type(v) == GY_J_STRING) return json_string(o, opt, name, v, err);
    if (gy_jv_type(v) != GY_J_INT || gy_jv_int(v, -1) < 0) return wrong_type(name, "a whole number from 0", v, err);
    gy_opt_u64 u = {.v = (uint64_t)gy_jv_int(v, 0), .given = 1};
    if (opt->kind == GY_OPT_U64)
        *(uint64_t *)opt_at(o, opt) = u.v;
    else
        *(gy_opt_u64 *)opt_at(o, opt) = u;
    return GY_OK;
}

static gy_status store_json(gy_opts *o, const gy_opt *opt, const char *name, const gy_jv *v, gy_err *err) {
    gy_jtype t = gy_jv_type(v);
    switch (opt->kind) {
    case GY_OPT_FLAG:
        if (t != GY_J_BOOL) return wrong_type(name, "true or false", v, err);
        *(int *)opt_at(o, opt) = gy_jv_bool(v, 0);
        return GY_OK;
    case GY_OPT_I32:
        if (t != GY_J_INT) return wrong_type(name, "a whole number", v, err);
        return store_int(o, opt, name, gy_jv_int(v, 0), err);
    case GY_OPT_U64:
    case GY_OPT_SEED:
    case GY_OPT_SIZE:
        return json_u64(o, opt, name, v, err);
    case GY_OPT_F64:
        if (t != GY_J_INT && t != GY_J_REAL) return wrong_type(name, "a number", v, err);
        return store_num(o, opt, name, gy_jv_num(v, 0), err);
    case GY_OPT_LIST:
        return json_list(o, opt, name, v, err);
    case GY_OPT_IDS:
        return t == GY_J_ARRAY ? json_own_form(o, opt, name, v, err) : json_string(o, opt, name, v, err);
    case GY_OPT_PAIRS:
        return t == GY_J_OBJECT ? json_own_form(o, opt, name, v, err) : json_string(o, opt, name, v, err);
    default:
        return json_string(o, opt, name, v, err);
    }
}

static int is_skipped(const char *const *skip, const char *key) {
    for (; skip && *skip; skip++)
        if (!strcmp(*skip, key)) return 1;
    return 0;
}

/* The option of a JSON key: underscores stand for dashes, and a dash in a key is nobody's. */
static const gy_opt *json_find(const gy_opts *o, const char *key, size_t len, char name[SUGGEST_MAX]) {
    copy_cut(name, SUGGEST_MAX, key, len);
    if (memchr(key, '-', len) || len >= SUGGEST_MAX) return NULL;
    for (char *c = name; *c; c++)
        if (*c == '_') *c = '-';
    return gy_opts_find(o, name, len);
}

static gy_status unknown_field(const gy_opts *o, const char *key, const char *name, gy_err *err) {
    const char *near = opts_suggest(o, name);
    char field[SUGGEST_MAX] = "";
    if (!near) return gy_err_set(err, GY_E_ARG, "unknown field \"%.80s\"", key);
    copy_cut(field, sizeof field, near, strlen(near));
    for (char *c = field; *c; c++)
        if (*c == '-') *c = '_';
    return gy_err_set(err, GY_E_ARG, "unknown field \"%.80s\"; did you mean \"%s\"?", key, field);
}

gy_status gy_opts_apply_json(gy_opts *o, const gy_jv *obj, const char *const *skip, gy_err *err) {
    if (gy_jv_type(obj) != GY_J_OBJECT)
        return gy_err_set(err, GY_E_ARG, "found %s, expected an object", gy_jtype_name(gy_jv_type(obj)));
    for (void *it = gy_jv_first(obj); it; it = gy_jv_next(obj, it)) {
        char name[SUGGEST_MAX];
        size_t len;
        const char *key = gy_jv_key(it, &len);
        if (is_skipped(skip, key)) continue;
        const gy_opt *opt = json_find(o, key, len, name);
        if (!opt) return unknown_field(o, key, name, err);
        if (!gy_opts_given(o, opt->name)) GY_TRY(store_json(o, opt, key, gy_jv_val(it), err));
    }
    return GY_OK;
}
