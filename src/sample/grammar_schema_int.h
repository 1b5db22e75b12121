/* What the two files of the schema compiler share: grammar_schema.c (views, references, alternatives) and
 * grammar_schema_values.c (what one place may hold once all that is resolved).
 */
#ifndef GY_SAMPLE_GRAMMAR_SCHEMA_INT_H
#define GY_SAMPLE_GRAMMAR_SCHEMA_INT_H

#include "base/json.h"
#include "sample/grammar_int.h"

#include <stdarg.h>

enum { MAX_PARTS = 16 };
enum { DONE_REF = 1u << 0, DONE_ALL = 1u << 1, DONE_ANY = 1u << 2, DONE_ONE = 1u << 3 };

typedef struct part {
    const gy_jv *v; /* an object, borrowed from the document */
    unsigned done;  /* keywords that were carried out already */
} part;
typedef struct view { /* schemas that all hold for one place */
    part part[MAX_PARTS];
    int n;
    int never; /* one of them was `false` */
} view;

typedef struct schema {
    gy_gbuild *b;
    gy_gjson j;
    const gy_jv *root;
    char path[256]; /* of the place in progress, for messages */
    size_t path_len;
    int depth;
} schema;

/* grammar_schema.c */
void gy_gs_fail(schema *s, gy_status st, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
size_t gy_gs_path_push(schema *s, const char *step);
void gy_gs_path_pop(schema *s, size_t was);
void gy_gs_view_add(schema *s, view *w, const gy_jv *v);
const gy_jv *gy_gs_part_get(const part *p, const char *key);
const gy_jv *gy_gs_view_one(schema *s, const view *w, const char *key);
int gy_gs_view_has(const view *w, const char *key);
int32_t gy_gs_view_node(schema *s, view *w); /* the tree of what this place may hold; uses w up */
int32_t gy_gs_node(schema *s, const gy_jv *v, const char *step);

/* grammar_schema_values.c: no $ref, allOf, anyOf or oneOf is left in w. */
int32_t gy_gs_values(schema *s, const view *w);

#endif
