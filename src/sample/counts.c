/* Which tokens a sequence holds, and how often it has drawn each.
 *
 * One piece of caller's memory: the struct, the different ids in order of appearance (a row walks these and nothing
 * else), then an open-addressed table that finds an id's place among them. The table has at least twice as many places
 * as there can be ids, so a search ends. Nothing is ever removed. Deliberately not here: what the penalties do.
 */
#include "base/mem.h"
#include "sample/sample_int.h"

#include <string.h>

struct gy_counts {
    size_t n, room;  /* different ids now and at most */
    uint32_t *place; /* [mask + 1] index of a gy_count + 1, 0 = free */
    size_t mask;
    gy_count list[]; /* [room] */
};

static size_t place_count(size_t room) {
    size_t n = 2;
    while (n < 2 * room) n *= 2;
    return n;
}

static size_t list_bytes(size_t room) { /* the table behind it stays aligned */
    return sizeof(gy_counts) + room * sizeof(gy_count);
}

/* Room fits 32 bits, and index + 1 too. */
size_t gy_counts_bytes(int32_t n_prompt, int32_t max_tokens) {
    if (n_prompt < 0 || max_tokens < 0) return 0;
    uint64_t room = (uint64_t)n_prompt + (uint64_t)max_tokens;
    if (room > SIZE_MAX / 32) return 0; /* 8 bytes an id and at most 4 places of 4 bytes */
    return list_bytes((size_t)room) + place_count((size_t)room) * sizeof(uint32_t);
}

/* The place of id, or the free place where it belongs. Multiplier: 2^32 / golden ratio (Knuth, TAOCP 3, 6.4). */
static uint32_t *place_find(const gy_counts *c, int32_t id) {
    uint32_t h = (uint32_t)id * 2654435769u;
    size_t at = (h ^ h >> 15) & c->mask;
    while (c->place[at] && c->list[c->place[at] - 1].id != id) at = (at + 1) & c->mask;
    return &c->place[at];
}

static gy_count *count_of(gy_counts *c, int32_t id) {
    uint32_t *place = place_find(c, id);
    if (!*place) {
        GY_CHECK(c->n < c->room);
        c->list[c->n++] = (gy_count){.id = id};
        *place = (uint32_t)c->n;
    }
    return &c->list[*place - 1];
}

gy_counts *gy_counts_init(void *mem, const int32_t *prompt, int32_t n_prompt, int32_t max_tokens) {
    gy_counts *c = mem;
    size_t room = (size_t)n_prompt + (size_t)max_tokens, n_place = place_count(room);
    *c = (gy_counts){.room = room, .place = (uint32_t *)((char *)mem + list_bytes(room)), .mask = n_place - 1};
    memset(c->place, 0, n_place * sizeof *c->place);
    for (int32_t i = 0; i < n_prompt; i++) count_of(c, prompt[i]);
    return c;
}

void gy_counts_add(gy_counts *c, int32_t id) {
    count_of(c, id)->n_out++;
}

const gy_count *gy_counts_list(const gy_counts *c, size_t *n_out) {
    *n_out = c->n;
    return c->list;
}
