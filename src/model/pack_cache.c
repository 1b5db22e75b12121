/* Finding, checking and reading a pack cache (pack_cache.h; the file: pack_int.h). Nothing is believed before the
 * header's checksum, and no offset is used that was not held against the file's size.
 */
#include "base/log.h"
#include "base/sum64.h"
#include "model/pack_int.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

/* ---- pieces ------------------------------------------------------------------------------------------------------ */

int pack_pieces_make(pack_pieces *p, size_t n) {
    *p = (pack_pieces){.at = gy_mem_alloc(GY_MEM_MODEL, n + 1, sizeof *p->at),
                       .len = gy_mem_alloc(GY_MEM_MODEL, n + 1, sizeof *p->len),
                       .sum = gy_mem_alloc(GY_MEM_MODEL, n + 1, sizeof *p->sum)};
    if (p->at && p->len && p->sum) return 0;
    pack_pieces_free(p);
    return -1;
}

void pack_pieces_free(pack_pieces *p) {
    gy_mem_free(p->at);
    gy_mem_free(p->len);
    gy_mem_free(p->sum);
    *p = (pack_pieces){0};
}

void pack_pieces_put(pack_pieces *p, const void *data, size_t bytes) {
    for (size_t at = 0; at < bytes; at += PACK_PIECE) {
        p->at[p->n] = (const char *)data + at;
        p->len[p->n++] = (uint32_t)(bytes - at < PACK_PIECE ? bytes - at : PACK_PIECE);
    }
}

typedef struct sum_task {
    const pack_pieces *p;
    size_t first;
} sum_task;

static void sum_item(void *arg, int32_t item, int member) {
    const sum_task *t = arg;
    size_t i = t->first + (size_t)item;
    (void)member;
    t->p->sum[i] = gy_sum64(t->p->at[i], t->p->len[i], 0);
}

/* A batch's pages are asked for while the one before is summed: one fault after another would read a disk slowly. Where
 * the pages are nobody's file, the wish is refused and nothing is lost. */
static void ask_for(const pack_pieces *p, size_t first) {
    for (size_t i = first; i < first + PACK_BATCH && i < p->n; i++) {
        uintptr_t at = (uintptr_t)p->at[i] / PACK_ALIGN * PACK_ALIGN;
        madvise((void *)at, (uintptr_t)p->at[i] + p->len[i] - at, MADV_WILLNEED);
    }
}

void pack_pieces_sum(pack_pieces *p, gy_backend *be, gy_pack_progress progress, void *arg) {
    ask_for(p, 0);
    for (size_t i = 0; i < p->n; i += PACK_BATCH) {
        size_t n = p->n - i < PACK_BATCH ? p->n - i : PACK_BATCH, bytes = 0;
        ask_for(p, i + PACK_BATCH);
        be->ops->parallel(be, (int32_t)n, sum_item, &(sum_task){p, i});
        for (size_t j = i; j < i + n; j++) bytes += p->len[j];
        if (progress) progress(arg, bytes);
    }
}

/* ---- which checkpoint it is ----------------------------------------------------------------------------------------
 */

static uint64_t sample_tensor(const gy_tensor_info *t, uint64_t sum) {
    enum { SAMPLE = 4096, STRIDE = 1 << 20 };
    const char *data = t->data;
    int64_t head[2] = {(int64_t)t->dtype, t->n_dim};
    sum = gy_sum64(t->name, strlen(t->name), sum);
    sum = gy_sum64(head, sizeof head, sum);
    sum = gy_sum64(t->shape, (size_t)t->n_dim * sizeof *t->shape, sum);
    for (size_t at = 0; at < t->bytes; at += STRIDE)
        sum = gy_sum64(data + at, t->bytes - at < SAMPLE ? t->bytes - at : SAMPLE, sum);
    if (t->bytes > SAMPLE) sum = gy_sum64(data + t->bytes - SAMPLE, SAMPLE, sum);
    return sum;
}

/* Tensors are sorted by name, so that a shard comes up many times; asking the system again costs less than a set. */
static uint64_t stamp_of(const char *file, uint64_t sum) {
    struct stat s;
    if (stat(file, &s)) return gy_sum64(file, strlen(file), sum);
    int64_t v[3] = {s.st_size, s.st_mtim.tv_sec, s.st_mtim.tv_nsec};
    return gy_sum64(v, sizeof v, sum);
}

static pack_identity identity_of(const gy_st *st) {
    pack_identity id = {0};
    const char *last = "";
    for (size_t i = 0; i < gy_st_count(st); i++) {
        const gy_tensor_info *t = gy_st_at(st, i);
        id.sample = sample_tensor(t, id.sample);
        if (strcmp(t->file, last) != 0) id.stamp = stamp_of(t->file, id.stamp);
        last = t->file;
    }
    return id;
}

uint64_t pack_whole(const gy_pack_key *key) {
    pack_pieces p;
    size_t n = 0;
    for (size_t i = 0; i < gy_st_count(key->st); i++) n += pack_n_piece(gy_st_at(key->st, i)->bytes);
    if (pack_pieces_make(&p, n)) return 0;
    for (size_t i = 0; i < gy_st_count(key->st); i++)
        pack_pieces_put(&p, gy_st_at(key->st, i)->data, gy_st_at(key->st, i)->bytes);
    pack_pieces_sum(&p, key->be, NULL, NULL);
    uint64_t sum = gy_sum64(p.sum, p.n * sizeof *p.sum, 1);
    pack_pieces_free(&p);
    return sum ? sum : 1;
}

/* ---- a file --------------------------------------------------------------------------------------------------------
 */

static gy_status check_head(const gy_map *m, const char *path, gy_err *err) {
    const pack_head *h = (const pack_head *)(const void *)m->data;
    if (m->size < sizeof *h || memcmp(h->magic, PACK_MAGIC, sizeof h->magic) != 0)
        return gy_err_set(err, GY_E_FORMAT, "%s: not a pack cache", path);
    if (h->version != PACK_VERSION)
        return gy_err_set(err, GY_E_FORMAT, "%s: found format %u, expected %d", path, h->version, PACK_VERSION);
    if (h->head_bytes < sizeof *h || h->head_bytes > m->size || h->head_bytes % PACK_ALIGN)
        return gy_err_set(err, GY_E_FORMAT, "%s: found a header of %llu bytes in a file of %zu", path,
                          (unsigned long long)h->head_bytes, m->size);
    pack_head without = *h;
    without.sum = 0;
    uint64_t sum = gy_sum64(&without, sizeof without, 0);
    if (gy_sum64(m->data + sizeof *h, h->head_bytes - sizeof *h, sum) != h->sum)
        return gy_err_set(err, GY_E_FORMAT, "%s: the header is damaged (checksum)", path);
    if (h->file_bytes != m->size)
        return gy_err_set(err, GY_E_FORMAT, "%s: found %zu bytes, expected %llu: it was cut", path, m->size,
                          (unsigned long long)h->file_bytes);
    return GY_OK;
}

/* Behind a good checksum this can only be a writer's fault; nothing is read outside the file all the same. */
static gy_status check_sections(const gy_map *m, const char *path, gy_err *err) {
    const pack_head *h = (const pack_head *)(const void *)m->data;
    const pack_section *s = (const pack_section *)(const void *)(h + 1);
    size_t room = h->head_bytes - sizeof *h, n_piece = 0;
    if (h->n_section > room / sizeof *s) return gy_err_set(err, GY_E_FORMAT, "%s: too many sections", path);
    for (uint32_t i = 0; i < h->n_section; i++) {
        n_piece += pack_n_piece(s[i].bytes);
        if (s[i].at % PACK_ALIGN || s[i].at < h->head_bytes || s[i].at > m->size || s[i].bytes > m->size - s[i].at)
            return gy_err_set(err, GY_E_FORMAT, "%s: section %u lies outside the file", path, i);
    }
    if (n_piece != h->n_piece || n_piece > (room - h->n_section * sizeof *s) / sizeof(uint64_t))
        return gy_err_set(err, GY_E_FORMAT, "%s: found %zu pieces, expected %llu", path, n_piece,
                          (unsigned long long)h->n_piece);
    return GY_OK;
}

static gy_status check_key(const gy_pack_cache *c, const pack_head *h, const char *path, gy_err *err) {
    if (strncmp(h->form, c->form, PACK_NAME) != 0 || strncmp(h->layout, c->layout, PACK_NAME) != 0)
        return gy_err_set(err, GY_E_FORMAT, "%s: found %.31s for %.31s, expected %s for %s", path, h->form, h->layout,
                          c->form, c->layout);
    if (h->id.sample != c->id.sample)
        return gy_err_set(err, GY_E_FORMAT, "%s: it was made of other weights than those in %s", path, c->key.dir);
    if (h->id.stamp != c->id.stamp && h->id.whole != pack_whole(&c->key))
        return gy_err_set(err, GY_E_FORMAT, "%s: the weights in %s have changed since it was made", path, c->key.dir);
    return GY_OK;
}

static gy_status open_file(gy_pack_cache *c, const char *path, gy_err *err) {
    gy_map m = {0};
    gy_status st;
    GY_TRY(gy_map_open(path, err, &m));
    GY_TRY_GOTO(st, check_head(&m, path, err), fail);
    GY_TRY_GOTO(st, check_sections(&m, path, err), fail);
    const pack_head *h = (const pack_head *)(const void *)m.data;
    GY_TRY_GOTO(st, check_key(c, h, path, err), fail);
    c->map = m;
    c->section = (const pack_section *)(const void *)(h + 1);
    c->n_section = h->n_section;
    return GY_OK;
fail:
    gy_map_close(&m);
    return st;
}

/* ---- places --------------------------------------------------------------------------------------------------------
 */

/* FORM-LAYOUT, and in a folder of many models the number of this one. */
static char *path_in(const gy_pack_cache *c, const char *dir, int is_shared) {
    char name[128], prefix[24] = "gyre";
    if (is_shared) snprintf(prefix, sizeof prefix, "%016llx", (unsigned long long)c->id.sample);
    snprintf(name, sizeof name, "%s-%s-%s.pack", prefix, c->form, c->layout);
    return gy_path_join(dir, name);
}

static int set_places(gy_pack_cache *c, const gy_pack_where *w) {
    if (w->file) return (c->path[0] = gy_mem_strdup(GY_MEM_MODEL, w->file)) ? 0 : -1;
    if (!(c->path[0] = path_in(c, c->key.dir, 0))) return -1;
    return !w->home || (c->path[1] = path_in(c, w->home, 1)) ? 0 : -1;
}

static void not_used(const gy_err *err) {
    char why[sizeof err->msg];
    gy_log(GY_LOG_WARN, "model", "pack cache is not used; weights are made anew", "why=%s",
           gy_log_quote(err->msg, why, sizeof why));
}

/* One line, and only where no place has a file that fits. */
static void look(gy_pack_cache *c) {
    gy_err first = {0};
    for (int i = 0; i < 2 && c->path[i]; i++) {
        gy_err err = {0};
        char name[512];
        if (!gy_file_exists(c->path[i])) continue;
        if (open_file(c, c->path[i], &err) == GY_OK) {
            c->used = i;
            gy_log(GY_LOG_INFO, "model", "pack cache found", "file=%s bytes=%zu",
                   gy_log_quote(c->path[i], name, sizeof name), c->map.size);
            return;
        }
        if (!first.msg[0]) first = err;
    }
    if (first.msg[0]) not_used(&first);
}

gy_pack_cache *gy_pack_cache_open(const gy_pack_where *w, const gy_pack_key *key) {
    gy_pack_cache *c = gy_mem_alloc(GY_MEM_MODEL, 1, sizeof *c);
    if (!c) return NULL;
    c->key = *key;
    c->key.form = c->form;
    snprintf(c->form, sizeof c->form, "%s", key->form);
    snprintf(c->layout, sizeof c->layout, "%s", key->be->ops->form ? key->be->ops->form : "rows");
    c->id = identity_of(key->st);
    if (set_places(c, w)) {
        gy_pack_cache_close(c);
        return NULL;
    }
    look(c);
    return c;
}

void gy_pack_cache_close(gy_pack_cache *c) {
    if (!c) return;
    gy_map_close(&c->map);
    gy_vec_free(&c->part);
    gy_mem_free(c->path[0]);
    gy_mem_free(c->path[1]);
    gy_mem_free(c);
}

/* ---- what is in it -------------------------------------------------------------------------------------------------
 */

size_t gy_pack_cache_bytes(const gy_pack_cache *c) {
    size_t bytes = 0;
    for (uint32_t i = 0; c && c->section && i < c->n_section; i++) bytes += c->section[i].bytes;
    return bytes;
}

static void drop_file(gy_pack_cache *c) {
    gy_map_close(&c->map);
    c->section = NULL;
    c->n_section = 0;
}

/* The first piece whose checksum is another, or n. */
static size_t first_bad(const gy_pack_cache *c, const pack_pieces *p) {
    const uint64_t *sum = (const uint64_t *)(const void *)(c->section + c->n_section);
    size_t i = 0;
    while (i < p->n && p->sum[i] == sum[i]) i++;
    return i;
}

void gy_pack_cache_check(gy_pack_cache *c, gy_pack_progress progress, void *arg) {
    pack_pieces p;
    size_t n = 0, bad;
    gy_err err = {0};
    if (!c || !c->section) return;
    for (uint32_t i = 0; i < c->n_section; i++) n += pack_n_piece(c->section[i].bytes);
    if (pack_pieces_make(&p, n)) {
        drop_file(c);
        return;
    }
    for (uint32_t i = 0; i < c->n_section; i++)
        pack_pieces_put(&p, c->map.data + c->section[i].at, c->section[i].bytes);
    pack_pieces_sum(&p, c->key.be, progress, arg);
    if ((bad = first_bad(c, &p)) < p.n) {
        gy_err_set(&err, GY_E_FORMAT, "%s: damaged: bytes %zu to %zu have another checksum", c->path[c->used],
                   (size_t)(p.at[bad] - c->map.data), (size_t)(p.at[bad] - c->map.data) + p.len[bad]);
        not_used(&err);
        drop_file(c);
    }
    pack_pieces_free(&p);
}

const void *gy_pack_cache_find(const gy_pack_cache *c, const gy_pack_part *p) {
    for (uint32_t i = 0; c && c->section && i < c->n_section; i++) {
        const pack_section *s = &c->section[i];
        if (s->kind != (uint32_t)p->kind || s->index != p->index) continue;
        int is_same = s->n == p->n && s->k == p->k && s->type == (uint32_t)p->type && s->bytes == p->bytes;
        return is_same ? c->map.data + s->at : NULL;
    }
    return NULL;
}

int gy_pack_cache_has(const gy_pack_cache *c, gy_pack_kind kind) {
    for (uint32_t i = 0; c && c->section && i < c->n_section; i++)
        if (c->section[i].kind == (uint32_t)kind) return 1;
    return 0;
}

/* ---- what it ought to hold ------------------------------------------------------------------------------------------
 */

void gy_pack_cache_add(gy_pack_cache *c, const gy_pack_part *p, int is_new) {
    if (!c) return;
    if (gy_vec_push(&c->part, GY_MEM_MODEL, *p)) c->lacks_memory = 1;
    c->has_new |= is_new;
}

size_t gy_pack_cache_new_bytes(const gy_pack_cache *c) {
    size_t bytes = 0;
    for (size_t i = 0; c && c->has_new && !c->lacks_memory && i < c->part.len; i++) bytes += c->part.data[i].bytes;
    return bytes;
}

/* Where the first place cannot be written the second one is asked; the line tells why the last one failed. */
void gy_pack_cache_finish(gy_pack_cache *c, gy_pack_progress progress, void *arg) {
    gy_err err = {0};
    char text[sizeof err.msg];
    gy_status st = GY_E_IO;
    if (!gy_pack_cache_new_bytes(c)) return;
    int i = 0;
    while (i < 2 && c->path[i] && (st = pack_write(c, c->path[i], progress, arg, &err)) < 0) i++;
    if (st < 0) {
        gy_log(GY_LOG_WARN, "model", "pack cache is not written", "why=%s", gy_log_quote(err.msg, text, sizeof text));
    } else {
        gy_log(GY_LOG_INFO, "model", st == GY_OK ? "pack cache written" : "another process is writing the pack cache",
               "file=%s bytes=%zu", gy_log_quote(c->path[i], text, sizeof text), gy_pack_cache_new_bytes(c));
    }
}
