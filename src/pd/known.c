/* Rows by hash, and a list of them by age. A new row stands beside its parent, on the older side; touching a row moves
 * it and then those before it to the young end.
 */
#include "pd/known.h"

#include "base/mem.h"

#include <string.h>

enum { NONE = -1 };

typedef struct row {
    uint64_t hash;
    int32_t parent, chain; /* index, NONE */
    int32_t older, younger;
} row;

struct gy_known {
    int32_t n_max, n;
    int32_t oldest, youngest;
    uint32_t n_bucket; /* a power of two */
    int32_t *bucket;
    row *row;
};

/* ---- hashes ------------------------------------------------------------------------------------------------------ */

/* The finalizer of MurmurHash3 (Appleby, public domain). */
static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdu;
    x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53u;
    return x ^ (x >> 33);
}

uint64_t gy_known_next(uint64_t hash, int32_t tok) {
    uint64_t h = mix(hash ^ (uint32_t)tok) + hash;
    return h ? h : 1;
}

uint64_t gy_known_begin(const gy_request *r) {
    uint64_t h = gy_known_next((uint64_t)r->n_salt + 1, r->latent_noise != 0);
    for (int32_t i = 0; i < r->n_salt; i++) h = gy_known_next(h, (unsigned char)r->cache_salt[i]);
    if (!r->latent_noise) return h;
    h = gy_known_next(h, (int32_t)(uint32_t)r->latent_seed);
    return gy_known_next(h, (int32_t)(uint32_t)(r->latent_seed >> 32));
}

/* ---- made and ended ---------------------------------------------------------------------------------------------- */

static uint32_t buckets_for(int32_t n) {
    uint32_t b = 1;
    while (b < (uint32_t)n) b *= 2;
    return b;
}

gy_status gy_known_create(int32_t n_max, gy_err *err, gy_known **out) {
    GY_CHECK(n_max >= 1 && n_max <= GY_KNOWN_MAX);
    gy_known *x = gy_mem_alloc(GY_MEM_PD, 1, sizeof *x);
    if (x) {
        x->n_max = n_max;
        x->n_bucket = buckets_for(n_max);
        x->oldest = x->youngest = NONE;
        x->row = gy_mem_alloc(GY_MEM_PD, (size_t)n_max, sizeof *x->row);
        x->bucket = gy_mem_alloc(GY_MEM_PD, x->n_bucket, sizeof *x->bucket);
    }
    if (!x || !x->row || !x->bucket) {
        gy_known_destroy(x);
        return gy_err_set(err, GY_E_NOMEM, "no memory for the names of %d cached rows", n_max);
    }
    for (uint32_t i = 0; i < x->n_bucket; i++) x->bucket[i] = NONE;
    *out = x;
    return GY_OK;
}

void gy_known_destroy(gy_known *x) {
    if (!x) return;
    gy_mem_free(x->row);
    gy_mem_free(x->bucket);
    gy_mem_free(x);
}

int32_t gy_known_count(const gy_known *x) {
    return x->n;
}

/* ---- by hash ----------------------------------------------------------------------------------------------------- */

static int32_t *bucket_of(const gy_known *x, uint64_t hash) {
    return &x->bucket[hash & (x->n_bucket - 1)];
}

static int32_t find(const gy_known *x, uint64_t hash) {
    int32_t r = *bucket_of(x, hash);
    while (r != NONE && x->row[r].hash != hash) r = x->row[r].chain;
    return r;
}

static void unchain(gy_known *x, int32_t r) {
    int32_t *at = bucket_of(x, x->row[r].hash);
    while (*at != r) at = &x->row[*at].chain;
    *at = x->row[r].chain;
}

/* ---- by age ------------------------------------------------------------------------------------------------------ */

static void unlink_row(gy_known *x, int32_t r) {
    int32_t older = x->row[r].older, younger = x->row[r].younger;
    *(older == NONE ? &x->oldest : &x->row[older].younger) = younger;
    *(younger == NONE ? &x->youngest : &x->row[younger].older) = older;
}

/* On the older side of `than`; NONE: at the young end. */
static void link_row(gy_known *x, int32_t r, int32_t than) {
    int32_t older = than == NONE ? x->youngest : x->row[than].older;
    x->row[r].older = older;
    x->row[r].younger = than;
    *(older == NONE ? &x->oldest : &x->row[older].younger) = r;
    *(than == NONE ? &x->youngest : &x->row[than].older) = r;
}

static void touch(gy_known *x, int32_t r) {
    for (; r != NONE; r = x->row[r].parent) {
        unlink_row(x, r);
        link_row(x, r, NONE);
    }
}

/* The oldest one goes for it when all are taken: nothing is behind that. The parent was touched, and is not alone. */
static int32_t insert(gy_known *x, uint64_t hash, int32_t parent) {
    int is_full = x->n == x->n_max;
    int32_t r = is_full ? x->oldest : x->n++;
    if (is_full) {
        unchain(x, r);
        unlink_row(x, r);
    }
    x->row[r] = (row){.hash = hash, .parent = parent, .chain = *bucket_of(x, hash)};
    *bucket_of(x, hash) = r;
    link_row(x, r, parent);
    return r;
}

/* ---- what is asked ------------------------------------------------------------------------------------------------
 */

int32_t gy_known_match(const gy_known *x, const uint64_t *hash, int32_t n) {
    int32_t low = 0, high = n; /* rows below low are here, those from high on are not */
    while (low < high) {
        int32_t mid = low + (high - low) / 2;
        if (find(x, hash[mid]) == NONE)
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

void gy_known_put(gy_known *x, const uint64_t *hash, int32_t n) {
    if (n > x->n_max) n = x->n_max;
    int32_t had = gy_known_match(x, hash, n), at = had ? find(x, hash[had - 1]) : NONE;
    touch(x, at);
    for (int32_t i = had; i < n; i++) at = insert(x, hash[i], at);
}

void gy_known_grow(gy_known *x, uint64_t parent, uint64_t hash) {
    int32_t at = parent ? find(x, parent) : NONE;
    if (parent && at == NONE) return;
    int32_t here = find(x, hash);
    touch(x, here == NONE ? at : here);
    if (here == NONE && (x->n < x->n_max || x->oldest != at)) insert(x, hash, at);
}

/* ---- is it well? ------------------------------------------------------------------------------------------------- */

static int is_older(const gy_known *x, int32_t a, int32_t b) {
    while (a != NONE && a != b) a = x->row[a].younger;
    return a == b;
}

int gy_known_is_valid(const gy_known *x) {
    int32_t n = 0, last = NONE;
    for (int32_t r = x->oldest; r != NONE; last = r, r = x->row[r].younger, n++)
        if (n == x->n || x->row[r].older != last || find(x, x->row[r].hash) != r ||
            (x->row[r].parent != NONE && !is_older(x, r, x->row[r].parent)))
            return 0;
    return n == x->n && x->youngest == last;
}
