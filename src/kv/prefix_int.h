/* Inside of the prefix cache, shared by prefix.c, prefix_check.c and their test. Nobody else includes it.
 *
 * Rows are numbered 0..n_max-1, spaces (namespaces) n_max..2*n_max-1, so that a parent is one number. n_max is what the
 * core pool can fill: a row holds n_own core blocks that no other row holds. A space lives as long as it has rows, so
 * that there are never more spaces than rows: room never runs out.
 *
 * pin(row) = blocks of it that others use + children with a pin. A row with a pin is on the list `busy`, else on
 * `idle`; evicting takes the oldest idle row, or, when there is none, the oldest busy one. Order, on both lists: a
 * child is older than its parent. It holds because touch   moves leaf, then parents, to the young end; pin     the row
 * and its ancestors without a pin come next to the first ancestor that has one, on its older side; unpin   a row
 * becomes idle after all its children: it goes to the young end. Idle rows have idle children, so idle before busy is
 * one list with the same order: what is in use is younger than what is not, and an idle row's age is the time since its
 * last user left.
 */
#ifndef GY_KV_PREFIX_INT_H
#define GY_KV_PREFIX_INT_H

#include "kv/kv_int.h"
#include "kv/prefix.h"

enum { PREFIX_NONE = -1 };

typedef struct prefix_row {
    int32_t tok[GY_KV_BLOCK_LEN];
    int32_t parent;         /* row or space */
    int32_t next;           /* of the same bucket, or of the free list */
    int32_t older, younger; /* neighbours on its list */
    int32_t n_child;
    int32_t pin;
    uint64_t stamp; /* unique for each life of a row; 0 = free */
} prefix_row;

typedef struct prefix_space {
    char salt[GY_PREFIX_MAX_SALT];
    int32_t n_salt;
    int32_t latent_noise;
    uint64_t latent_seed; /* 0 without noise */
    int32_t n_row;        /* rows right below; 0 = free */
    int32_t next;         /* of the same bucket, or of the free list; an index from 0 */
} prefix_space;

typedef struct prefix_list {
    int32_t oldest, youngest;
} prefix_list;

struct kv_prefix {
    gy_kv *kv; /* the owner */
    int32_t depth;
    int32_t n_own; /* core planes of a row: min(planes, depth) */
    int32_t n_max;
    uint64_t key;        /* of the hash: which prompts share a bucket cannot be computed outside */
    uint64_t hash_mask;  /* all ones; tests set 0, so that everything collides */
    uint64_t n_bucket;   /* power of two */
    int32_t *bucket;     /* [n_bucket] first row */
    int32_t *sbucket;    /* [n_bucket] first space */
    prefix_row *row;     /* [n_max] */
    prefix_space *space; /* [n_max] */
    int32_t *core;       /* [n_max][n_own] blocks */
    int32_t *boundary;   /* [n_max] block; -1 when that group is empty */
    int32_t *scratch;    /* [4 * n_max] the checker's */
    int32_t free_row, free_space;
    prefix_list idle, busy;
    uint64_t stamp; /* the last one given */
    gy_prefix_stats stats;
    gy_carve mem;
};

/* prefix.c */
int32_t gy_prefix_find_row(const kv_prefix *x, int32_t parent, const int32_t *tok); /* -1 = none */
int32_t gy_prefix_find_space(const kv_prefix *x, const gy_prefix_space *s);         /* n_max + index, -1 = none */
uint64_t gy_prefix_row_bucket(const kv_prefix *x, int32_t parent, const int32_t *tok);
uint64_t gy_prefix_space_bucket(const kv_prefix *x, const prefix_space *s);

/* prefix_check.c: as gy_kv_is_valid, which calls it */
int gy_prefix_is_valid(const kv_prefix *x, char *buf, size_t cap);

static inline int prefix_is_row(const kv_prefix *x, int32_t node) {
    return node < x->n_max;
}

#endif
