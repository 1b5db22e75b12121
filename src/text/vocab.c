/* The vocabulary's two directions: id -> piece by index, piece -> id by an open-addressing hash with linear probing.
 * Deliberately not here: scores and merges (they belong to the kinds), removal (a vocabulary only grows).
 */
#include "text/vocab.h"

#include <string.h>

/* Longest probe of an insertion, and how often a table that exceeds it is rebuilt with another seed. At half load the
 * longest probe of a random table of 2^24 entries stays below 64. */
enum { MAX_PROBE = 128, MAX_RESEED = 8 };

static uint64_t hash_mix(uint64_t a, uint64_t b) {
    unsigned __int128 p = (unsigned __int128)a * b;
    return (uint64_t)p ^ (uint64_t)(p >> 64);
}

uint64_t gy_bytes_hash(const char *s, size_t len, uint64_t seed) {
    uint64_t h = seed ^ hash_mix((uint64_t)len ^ 0x9E3779B97F4A7C15u, 0xD6E8FEB86659FD93u);
    while (len >= 8) {
        uint64_t w;
        memcpy(&w, s, 8);
        h = hash_mix(h ^ w, 0xA0761D6478BD642Fu);
        s += 8;
        len -= 8;
    }
    uint64_t tail = 0;
    if (len) memcpy(&tail, s, len);
    return hash_mix(h ^ tail, 0xE7037ED1A0B428DBu);
}

void gy_vocab_fini(gy_vocab *v) {
    gy_str_free(&v->pool);
    gy_mem_free(v->off);
    gy_mem_free(v->len);
    gy_mem_free(v->slot);
    *v = (gy_vocab){0};
}

const char *gy_vocab_piece(const gy_vocab *v, int32_t id, size_t *len_out) {
    if (id < 0 || id >= v->n_id || !v->off[id]) return NULL;
    if (len_out) *len_out = v->len[id];
    return v->pool.data + (v->off[id] - 1);
}

/* The slot that holds the piece, or the empty slot where it would go; SIZE_MAX when neither is within MAX_PROBE. */
static size_t vocab_find(const gy_vocab *v, const char *piece, size_t len, uint64_t h) {
    uint64_t tag = h & 0xFFFFFFFF00000000u;
    size_t i = (size_t)h & v->mask;
    for (int n = 0; n < MAX_PROBE; n++, i = (i + 1) & v->mask) {
        uint64_t s = v->slot[i];
        if (!s) return i;
        if ((s & 0xFFFFFFFF00000000u) != tag) continue;
        size_t have_len = 0;
        const char *have = gy_vocab_piece(v, (int32_t)((s & 0xFFFFFFFFu) - 1), &have_len);
        if (have && have_len == len && memcmp(have, piece, len) == 0) return i;
    }
    return SIZE_MAX;
}

int32_t gy_vocab_get(const gy_vocab *v, const char *piece, size_t len) {
    if (!v->slot) return -1;
    size_t i = vocab_find(v, piece, len, gy_bytes_hash(piece, len, v->seed));
    return i == SIZE_MAX || !v->slot[i] ? -1 : (int32_t)((v->slot[i] & 0xFFFFFFFFu) - 1);
}

/* Fills an empty table of v->mask + 1 slots with all pieces. 1 when a probe became too long. */
static int vocab_fill(gy_vocab *v) {
    for (int32_t id = 0; id < v->n_id; id++) {
        size_t len = 0;
        const char *piece = gy_vocab_piece(v, id, &len);
        if (!piece) continue;
        uint64_t h = gy_bytes_hash(piece, len, v->seed);
        size_t i = vocab_find(v, piece, len, h);
        if (i == SIZE_MAX) return 1;
        v->slot[i] = (h & 0xFFFFFFFF00000000u) | (uint32_t)(id + 1);
    }
    return 0;
}

static int vocab_rehash(gy_vocab *v, size_t n_slot) {
    uint64_t *slot = gy_mem_alloc(GY_MEM_TEXT, n_slot, sizeof(*slot));
    if (!slot) return -1;
    gy_mem_free(v->slot);
    v->slot = slot;
    v->mask = n_slot - 1;
    for (int n = 0; n < MAX_RESEED; n++) {
        if (!vocab_fill(v)) return 0;
        memset(v->slot, 0, n_slot * sizeof(*slot));
        v->seed = hash_mix(v->seed + 0x2545F4914F6CDD1Du, 0xD1B54A32D192ED03u);
    }
    return -1;
}

static int vocab_grow_ids(gy_vocab *v, int32_t id) {
    if (id < v->cap_id) return 0;
    int32_t cap = v->cap_id ? v->cap_id : 1024;
    while (cap <= id) cap *= 2;
    uint32_t *off = gy_mem_realloc(GY_MEM_TEXT, v->off, (size_t)cap, sizeof(*off));
    if (!off) return -1;
    v->off = off;
    uint32_t *len = gy_mem_realloc(GY_MEM_TEXT, v->len, (size_t)cap, sizeof(*len));
    if (!len) return -1;
    v->len = len;
    size_t more = (size_t)(cap - v->cap_id);
    memset(off + v->cap_id, 0, more * sizeof(*off));
    memset(len + v->cap_id, 0, more * sizeof(*len));
    v->cap_id = cap;
    return 0;
}

/* Room for one more piece in the table; afterwards no probe for an absent piece is longer than MAX_PROBE, unless the
 * piece itself hashes badly, which the caller answers by re-hashing. */
static int vocab_reserve(gy_vocab *v) {
    if (v->slot && (v->n_piece + 1) * 2 <= v->mask + 1) return 0;
    return vocab_rehash(v, v->slot ? (v->mask + 1) * 2 : 2048);
}

int gy_vocab_put(gy_vocab *v, const char *piece, size_t len, int32_t id) {
    if (id < 0 || id >= GY_VOCAB_MAX_ID || len > UINT32_MAX / 2 || v->pool.len > UINT32_MAX / 2) return 1;
    if (gy_vocab_piece(v, id, NULL) || gy_vocab_get(v, piece, len) >= 0) return 1;
    if (vocab_reserve(v) || vocab_grow_ids(v, id)) return -1;
    size_t off = v->pool.len;
    gy_str_append(&v->pool, piece, len);
    gy_str_append(&v->pool, "", 1);
    if (v->pool.failed) return -1;
    v->off[id] = (uint32_t)off + 1;
    v->len[id] = (uint32_t)len;
    v->n_id = id >= v->n_id ? id + 1 : v->n_id;
    v->n_piece++;
    uint64_t h = gy_bytes_hash(piece, len, v->seed);
    size_t i = vocab_find(v, piece, len, h);
    if (i == SIZE_MAX) return vocab_rehash(v, v->mask + 1);
    v->slot[i] = (h & 0xFFFFFFFF00000000u) | (uint32_t)(id + 1);
    return 0;
}
