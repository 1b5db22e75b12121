/* Options by tables: one row says the name, type, range, default and help of an option, and from it come parsing of the
 * command line, of JSON objects (config file, JSON lines; same names with underscores) and the text of --help.
 * Knows no option by name and nothing of models.
 *
 * Values go into a struct of the caller at the row's offset; that struct holds the defaults before. Strings borrow from
 * argv, or are copied into the arena when they come from JSON. Single thread.
 */
#ifndef GY_CLI_CLI_OPTS_H
#define GY_CLI_CLI_OPTS_H

#include "base/arena.h"
#include "base/json.h"
#include "base/status.h"
#include "base/str.h"
#include "base/vec.h"

#include <stddef.h>
#include <stdint.h>

typedef enum gy_opt_kind {
    GY_OPT_FLAG, /* int: 1 when given; takes no value */
    GY_OPT_I32,  /* int32_t in [min, max] */
    GY_OPT_U64,  /* uint64_t; in JSON a whole number, or as text (which reaches beyond 2^63 - 1) */
    GY_OPT_SEED, /* gy_opt_u64: like U64, and whether it was given */
    GY_OPT_SIZE, /* gy_opt_u64: bytes, "4096", "64K", "1.5G"; K, M, G are powers of 1024; in JSON also a whole number */
    GY_OPT_F64,  /* double in [min, max] */
    GY_OPT_STR,  /* const char * */
    GY_OPT_IDS,  /* const char *, "1,2,3"; in JSON also a list of whole numbers, which becomes that text */
    GY_OPT_PAIRS, /* const char *, "1:2.5,7:-1"; in JSON also an object {"1": 2.5}, which becomes that text */
    GY_OPT_WORD,  /* int: index of the value among the words of `arg`, "f32|bf16" */
    GY_OPT_LIST   /* gy_opt_list: may be given several times; several rows may share one list */
} gy_opt_kind;

typedef struct gy_opt_u64 {
    uint64_t v;
    int given;
} gy_opt_u64;

typedef struct gy_opt {
    const char *name; /* "max-tokens"; in JSON "max_tokens" */
    gy_opt_kind kind;
    size_t offset;
    const char *arg; /* how help calls the value; WORD: the words */
    double min, max;
    const char *dflt; /* what happens without it, as help shows it; NULL: nothing to say */
    const char *help; /* NULL: used by gyre itself, not shown */
} gy_opt;

typedef struct gy_opt_group {
    const char *title;
    const gy_opt *opts;
    size_t n;
} gy_opt_group;

typedef struct gy_opt_item {
    const gy_opt *opt; /* which row of those that share the list */
    const char *text;  /* NUL-terminated, may hold NULs */
    size_t len;
} gy_opt_item;

typedef struct gy_opt_list {
    gy_opt_item *items; /* in the arena, in the order of the command line */
    size_t n, cap;
} gy_opt_list;

typedef struct gy_opts {
    gy_arena *arena;                   /* borrowed */
    const gy_opt_group *const *groups; /* NULL-terminated */
    void *values;
    GY_VEC(const char *) seen; /* names of the options that the command line held */
    GY_VEC(const char *) pos;  /* arguments that are no options; borrowed from argv */
} gy_opts;

void gy_opts_fini(gy_opts *o);
/* argv[0..argc): arguments after the command. `--name value`, `--name=value`; `--` ends the options; the last one of a
 * repeated option counts. Errors are GY_E_ARG and name the flag, what was found and what was expected. */
gy_status gy_opts_parse_argv(gy_opts *o, int argc, char **argv, gy_err *err);
/* The members of a JSON object, except those named in skip (NULL-terminated, may be NULL) and except options that were
 * given on the command line. A list takes a string or an array of strings and replaces what is there. */
gy_status gy_opts_apply_json(gy_opts *o, const gy_jv *obj, const char *const *skip, gy_err *err);
int gy_opts_given(const gy_opts *o, const char *name);

const gy_opt *gy_opts_find(const gy_opts *o, const char *name, size_t len);
/* The groups as text: one paragraph each, names in a column, help wrapped. */
void gy_opts_help(const gy_opt_group *const *groups, gy_str *out);

/* The word of `words` ("f32|bf16") at index i, or the index of a word (-1 if absent). */
int gy_opt_word_index(const char *words, const char *s, size_t len);
/* The candidate that is a likely meaning of a misspelt word, NULL if none is near. */
const char *gy_suggest(const char *found, const char *const *candidates, size_t n);
/* A whole number in decimal, nothing around it; -1 if it is none or does not fit. */
int gy_parse_i64(const char *s, int64_t *out);
int gy_parse_u64(const char *s, uint64_t *out);
/* Finite, nothing around it. */
int gy_parse_f64(const char *s, double *out);
/* A size as GY_OPT_SIZE has it. */
int gy_parse_size(const char *s, uint64_t *out);

#endif
