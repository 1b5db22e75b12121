/* Panels and the file that keeps them (model/pack_cache.h): --pack with and without memory; what is read equals what is
 * made, byte for byte, and gives the same logits; everything that can be wrong with a file is noticed, costs one line,
 * and is written anew; places, locks, no room, several processes at once, allocations that fail.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/cpu.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/sum64.h"
#include "engine/eval.h"
#include "model/loop.h"
#include "model/model.h"
#include "support/tiny.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))

static const tiny_spec OURO = {.family = "ouro",
                               .n_vocab = 40,
                               .n_embd = 48,
                               .n_ff = 72,
                               .n_head = 2,
                               .n_head_kv = 1,
                               .head_dim = 16,
                               .n_layer = {0, 2, 0},
                               .n_loop = 2,
                               .max_pos = 32,
                               .eps = 1e-5,
                               .theta = 1e4,
                               .dtype = GY_BF16};
static const tiny_spec HUGINN = {.family = "huginn",
                                 .n_vocab = 40,
                                 .n_embd = 32,
                                 .n_ff = 40,
                                 .n_head = 2,
                                 .n_head_kv = 2,
                                 .head_dim = 16,
                                 .n_layer = {1, 1, 1},
                                 .n_loop = 2,
                                 .max_pos = 32,
                                 .eps = 1e-5,
                                 .theta = 1e4,
                                 .dtype = GY_F32,
                                 .rope_table = 1,
                                 .stored_head = 1};

/* ---- loading ---------------------------------------------------------------------------------------------------- */

typedef struct how {
    gy_dtype act;
    gy_weight_form form;
    int quant_head, is_ref;
    gy_pack pack;
    gy_pack_where cache;
    int fail_after;                                             /* > 0: an allocation of the load fails */
    size_t available;                                           /* > 0: what the backend says */
    size_t (*prepare)(gy_backend *be, gy_weight *w, int y_f32); /* instead of the backend's */
} how;

typedef struct loaded {
    gy_backend *be;
    gy_ops ops; /* its table */
    gy_model *m;
    gy_status st;
    gy_err err;
    char log[4096];
    size_t done, total;
    int falls;
    int n_alloc; /* that the load made */
} loaded;

static void note(void *arg, size_t done, size_t total) {
    loaded *l = arg;
    l->falls += done < l->done;
    l->done = done;
    l->total = total;
}

static size_t told_available;
static size_t tell_available(gy_backend *be) {
    (void)be;
    return told_available;
}

static size_t (*own_prepare)(gy_backend *be, gy_weight *w, int y_f32);

static size_t no_panels_for_the_second(gy_backend *be, gy_weight *w, int y_f32) {
    static int n;
    return n++ % 2 ? 0 : own_prepare(be, w, y_f32);
}

/* The backend works on a table of the test's own. */
static void change(loaded *l, const how *h) {
    l->ops = *l->be->ops;
    own_prepare = l->ops.prepare;
    told_available = h->available;
    if (h->prepare) l->ops.prepare = h->prepare;
    if (h->available) l->ops.mem_available = tell_available;
    l->be->ops = &l->ops;
}

static void load(const char *dir, const how *h, loaded *l) {
    int fd[2];
    *l = (loaded){0};
    gy_cpu_opts o = {.act = h->act, .n_thread = 2, .limits = {.max_row = 32, .max_k = 2048, .max_len = 32}};
    assert_int_equal(
        h->is_ref ? gy_backend_ref_create(h->act, &l->err, &l->be) : gy_backend_cpu_create(&o, &l->err, &l->be), GY_OK);
    change(l, h);
    gy_model_load_opts lo = {.be = l->be,
                             .form = h->form,
                             .quant_head = h->quant_head,
                             .pack = h->pack,
                             .cache = h->cache,
                             .progress = note,
                             .progress_arg = l};
    assert_int_equal(pipe2(fd, O_NONBLOCK | O_CLOEXEC), 0);
    gy_log_set_fd(fd[1]);
    gy_mem_stats before, after;
    gy_mem_get_stats(&before);
    gy_mem_fail_after(h->fail_after);
    l->st = gy_model_load(dir, &lo, &l->err, &l->m);
    gy_mem_fail_after(0);
    gy_mem_get_stats(&after);
    l->n_alloc = (int)(after.n_alloc - before.n_alloc);
    gy_log_set_fd(2);
    ssize_t n = read(fd[0], l->log, sizeof l->log - 1);
    l->log[n > 0 ? n : 0] = '\0';
    close(fd[0]);
    close(fd[1]);
}

static void unload(loaded *l) {
    gy_model_free(l->m);
    gy_backend_destroy(l->be);
    *l = (loaded){0};
}

/* One line, with these words. */
static void says(const loaded *l, const char *words) {
    const char *end = strchr(l->log, '\n');
    if (!end || end[1]) fail_msg("found \"%s\", expected one line with \"%s\"", l->log, words);
    if (!strstr(l->log, words)) fail_msg("\"%s\" does not say \"%s\"", l->log, words);
}

static void silent(const loaded *l) {
    if (l->log[0]) fail_msg("found a line: %s", l->log);
}

/* ---- what is held ------------------------------------------------------------------------------------------------ */

typedef struct held {
    uint64_t sum[64];
    size_t n;
    int n_packed, n_mapped; /* matrices with panels; and without, by rows */
} held;

static uint64_t part_sum(const gy_weight *w, int ip) {
    size_t n = (size_t)w->part[ip].n, k = (size_t)w->k;
    size_t bytes =
        gy_is_quant(w->dtype) ? gy_quant_bytes(w->dtype, w->part[ip].n, w->k) : n * k * gy_dtype_bytes(w->dtype);
    uint64_t sum = gy_sum64(w->part[ip].data, bytes, 0);
    return w->dtype == GY_F8_E4M3 ? gy_sum64(w->part[ip].scale, n * sizeof(float), sum) : sum;
}

static void weight_sum(const gy_model *m, const gy_weight *w, held *h) {
    const void *form = NULL;
    size_t bytes = m->be->ops->form_of ? m->be->ops->form_of(m->be, w, &form) : 0;
    uint64_t sum = (uint64_t)w->dtype;
    if (form) sum = gy_sum64(form, bytes, sum);
    for (int ip = 0; ip < w->n_part && !form; ip++) sum = gy_sum64(&(uint64_t){part_sum(w, ip)}, 8, sum);
    h->n_packed += form != NULL;
    h->n_mapped += !form && !gy_is_quant(w->dtype);
    h->sum[h->n++] = sum;
}

static held held_by(const gy_model *m) {
    held h = {0};
    for (gy_stage s = GY_PRELUDE; s < GY_STAGES; s++)
        for (int il = 0; il < m->d.n_layer[s]; il++) {
            const gy_layer *y = &m->layer[s][il];
            const gy_weight *const w[] = {&y->qkv, &y->o, &y->gate_up, &y->down};
            for (int i = 0; i < 4; i++) weight_sum(m, w[i], &h);
        }
    if (m->d.inject) weight_sum(m, &m->adapter, &h);
    weight_sum(m, &m->head, &h);
    return h;
}

static void equal(const held *a, const held *b) {
    assert_int_equal(a->n, b->n);
    assert_int_equal(a->n_packed, b->n_packed);
    for (size_t i = 0; i < a->n; i++)
        if (a->sum[i] != b->sum[i]) fail_msg("matrix %zu of %zu differs", i, a->n);
}

static held loaded_held(const char *dir, const how *h, const char *line) {
    loaded l;
    load(dir, h, &l);
    if (l.st != GY_OK) fail_msg("%s", l.err.msg);
    if (line)
        says(&l, line);
    else
        silent(&l);
    assert_int_equal(l.done, l.total);
    assert_int_equal(l.falls, 0);
    held out = held_by(l.m);
    unload(&l);
    return out;
}

/* ---- logits -------------------------------------------------------------------------------------------------------
 */

typedef struct logits {
    float v[12 * 40];
} logits;

static gy_status take_logits(void *arg, int32_t pos, const float *v, gy_err *err) {
    (void)err;
    memcpy(((logits *)arg)->v + pos * 40, v, 40 * sizeof *v);
    return GY_OK;
}

static logits logits_of(const char *dir, const how *h) {
    static const int32_t ids[12] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 35, 8, 39};
    loaded l;
    logits out = {0};
    load(dir, h, &l);
    if (l.st != GY_OK) fail_msg("%s", l.err.msg);
    gy_eval_opts o = {.ids = ids, .n_tok = 12, .max_rows = 5, .on_logits = take_logits, .arg = &out};
    gy_status st = gy_eval(l.m, &o, &l.err);
    if (st != GY_OK) fail_msg("%s", l.err.msg);
    unload(&l);
    return out;
}

/* ---- a folder ------------------------------------------------------------------------------------------------------
 */

typedef struct place {
    char dir[40], file[64];
} place;

/* In memory where that is offered: hundreds of files are synced. */
static place place_make(void) {
    place p = {.dir = "/dev/shm/gyre-pack-XXXXXX"};
    if (!mkdtemp(p.dir)) {
        p = (place){.dir = "/tmp/gyre-pack-XXXXXX"};
        assert_non_null(mkdtemp(p.dir));
    }
    snprintf(p.file, sizeof p.file, "%s/w.pack", p.dir);
    return p;
}

static void place_free(place *p) {
    char part[80];
    snprintf(part, sizeof part, "%s.part", p->file);
    unlink(p->file);
    assert_int_equal(unlink(part), -1); /* never left */
    assert_int_equal(rmdir(p->dir), 0);
}

static off_t size_of(const char *path) {
    struct stat s;
    return stat(path, &s) ? -1 : s.st_size;
}

static ino_t inode_of(const char *path) {
    struct stat s;
    return stat(path, &s) ? 0 : s.st_ino;
}

static void set_bytes(const char *path, off_t at, const void *p, size_t n) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0 && pwrite(fd, p, n, at) == (ssize_t)n);
    close(fd);
}

static void flip(const char *path, off_t at) {
    unsigned char b = 0;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0 && pread(fd, &b, 1, at) == 1);
    b ^= 0x10;
    assert_true(pwrite(fd, &b, 1, at) == 1);
    close(fd);
}

/* ---- --pack --------------------------------------------------------------------------------------------------------
 */

static void pack_decides(void **state) {
    (void)state;
    tiny t;
    tiny_make(&OURO, &t);
    held on = loaded_held(t.dir, &(how){.act = GY_BF16, .pack = GY_PACK_ON}, NULL);
    held off = loaded_held(t.dir, &(how){.act = GY_BF16, .pack = GY_PACK_OFF}, NULL);
    held room = loaded_held(t.dir, &(how){.act = GY_BF16, .available = 1 << 30}, NULL);
    held tight = loaded_held(t.dir, &(how){.act = GY_BF16, .available = 1 << 10}, NULL);
    held quant = loaded_held(t.dir, &(how){.act = GY_BF16, .form = GY_WEIGHTS_INT8, .pack = GY_PACK_ON}, NULL);
    assert_true(on.n_packed == 9 && off.n_packed == 0 && room.n_packed == 9 && tight.n_packed == 0);
    assert_true(quant.n_packed == 1 && quant.n_mapped == 0); /* the head */
    equal(&on, &room);
    equal(&off, &tight);
    held on_tight = loaded_held(t.dir, &(how){.act = GY_BF16, .pack = GY_PACK_ON, .available = 1 << 10}, NULL);
    equal(&on, &on_tight);
    tiny_free(&t);
}

/* Packing that finds no memory half way: auto reads the others where they are mapped and says so, on ends the load. */
static void pack_without_memory(void **state) {
    (void)state;
    tiny t;
    loaded l;
    tiny_make(&OURO, &t);
    how h = {.act = GY_BF16, .available = 1 << 30, .prepare = no_panels_for_the_second};
    held half = loaded_held(t.dir, &h, "no memory to pack all weights");
    assert_true(half.n_packed > 2 && half.n_mapped > 2 && half.n_packed + half.n_mapped == 9);
    h.pack = GY_PACK_ON;
    load(t.dir, &h, &l);
    assert_int_equal(l.st, GY_E_NOMEM);
    assert_null(l.m);
    assert_non_null(strstr(l.err.msg, "pack: no memory for "));
    assert_non_null(strstr(l.err.msg, "use pack auto or off"));
    unload(&l);
    tiny_free(&t);
}

static int count_allocs(const char *dir, const how *h) {
    loaded l;
    load(dir, h, &l);
    assert_int_equal(l.st, GY_OK);
    int n = l.n_alloc;
    unload(&l);
    return n;
}

/* Each allocation of a load fails in turn: an error; with auto, where it was for panels, a line instead. */
static void pack_with_failing_allocations(void **state) {
    (void)state;
    tiny t;
    int n_half[2] = {0}, n_error[2] = {0};
    tiny_make(&OURO, &t);
    for (int pack = GY_PACK_AUTO; pack <= GY_PACK_ON; pack++) {
        how h = {.act = GY_BF16, .pack = (gy_pack)pack};
        for (int n = count_allocs(t.dir, &h); n > 0; n--) {
            loaded l;
            h.fail_after = n;
            load(t.dir, &h, &l);
            if (l.st == GY_OK) {
                assert_true(held_by(l.m).n_packed == 8);
                says(&l, "no memory to pack all weights");
            } else {
                assert_true(l.st == GY_E_NOMEM && l.err.msg[0]);
            }
            n_half[pack] += l.st == GY_OK;
            n_error[pack] += l.st != GY_OK;
            unload(&l);
        }
    }
    assert_int_equal(n_half[GY_PACK_AUTO], 18); /* for each matrix an object and pages */
    assert_int_equal(n_half[GY_PACK_ON], 0);
    assert_int_equal(n_error[GY_PACK_ON], n_error[GY_PACK_AUTO] + 18);
    assert_true(n_error[GY_PACK_AUTO] > 30);
    tiny_free(&t);
}

static const uint32_t masks[] = {~0u, ~(uint32_t)GY_CPU_AVX512_BF16, GY_CPU_AVX2, 0};

/* With panels, without, with some, from a cache in place and copied: logits have the same bits. */
static void packed_gives_the_same_logits(void **state) {
    (void)state;
    const tiny_spec *const specs[] = {&OURO, &HUGINN};
    for (int i = 0; i < 2 * COUNT(masks); i++) {
        tiny t;
        place p = place_make();
        tiny_make(specs[i % 2], &t);
        gy_cpu_set_mask(masks[i / 2]);
        for (int form = 0; form <= GY_WEIGHTS_INT8_CHANNEL; form++) {
            how h = {.act = i & 2 ? GY_BF16 : GY_F32, .form = (gy_weight_form)form, .pack = GY_PACK_OFF};
            logits off = logits_of(t.dir, &h), other[5];
            h.pack = GY_PACK_ON;
            other[0] = logits_of(t.dir, &h);
            h.pack = GY_PACK_AUTO;
            h.prepare = no_panels_for_the_second;
            h.available = 1 << 30;
            other[1] = logits_of(t.dir, &h);
            h.prepare = NULL;
            h.cache.file = p.file;
            unlink(p.file);
            other[2] = logits_of(t.dir, &h);
            assert_true(size_of(p.file) > 0);
            other[3] = logits_of(t.dir, &h);
            h.quant_head = form >= GY_WEIGHTS_FP8;
            other[4] = h.quant_head ? off : logits_of(t.dir, &h);
            for (int k = 0; k < 5; k++) assert_memory_equal(&other[k], &off, sizeof off);
        }
        gy_cpu_set_mask(~0u);
        place_free(&p);
        tiny_free(&t);
    }
}

/* ---- the file ------------------------------------------------------------------------------------------------------
 */

static const struct {
    gy_weight_form form;
    int quant_head, is_ref;
} kept[] = {{GY_WEIGHTS_AS_FILE, 0, 0}, {GY_WEIGHTS_BF16, 0, 0}, {GY_WEIGHTS_FP8, 0, 0},
            {GY_WEIGHTS_FP8, 1, 0},     {GY_WEIGHTS_INT8, 0, 0}, {GY_WEIGHTS_INT8, 0, 1},
            {GY_WEIGHTS_INT4, 0, 0},    {GY_WEIGHTS_INT4, 1, 0}, {GY_WEIGHTS_INT8_CHANNEL, 1, 0}};

/* Made, made and written, read: the same bytes. Read without a change to the file, in place or not. */
static void what_is_read_is_what_is_made(void **state) {
    (void)state;
    const tiny_spec *const specs[] = {&OURO, &HUGINN};
    for (int i = 0; i < COUNT(kept) * 4; i++) {
        tiny t;
        place p = place_make();
        loaded l;
        tiny_make(specs[i % 2], &t);
        how h = {.act = i & 2 ? GY_BF16 : GY_F32,
                 .form = kept[i / 4].form,
                 .quant_head = kept[i / 4].quant_head,
                 .is_ref = kept[i / 4].is_ref};
        held made = loaded_held(t.dir, &h, NULL);
        h.cache.file = p.file;
        held written = loaded_held(t.dir, &h, NULL);
        ino_t inode = inode_of(p.file);
        assert_true(inode != 0);
        load(t.dir, &h, &l);
        held read = held_by(l.m);
        silent(&l);
        size_t held_in = h.form < GY_WEIGHTS_FP8 ? l.m->mapped_bytes : l.m->own_bytes; /* in place; copied */
        assert_true(held_in >= l.m->packed_bytes && (l.m->packed_bytes > 0 || h.is_ref || h.quant_head));
        unload(&l);
        assert_int_equal(inode_of(p.file), inode);
        equal(&made, &written);
        equal(&made, &read);
        place_free(&p);
        tiny_free(&t);
    }
}

/* The file lacks what another wish needs: that is added, and nothing is lost to the first one. */
static void a_file_grows(void **state) {
    (void)state;
    tiny t;
    place p = place_make();
    tiny_make(&OURO, &t);
    how h = {.act = GY_BF16, .form = GY_WEIGHTS_INT4, .pack = GY_PACK_OFF, .cache.file = p.file};
    held rows = loaded_held(t.dir, &h, NULL);
    off_t small = size_of(p.file);
    h.pack = GY_PACK_ON;
    held packed = loaded_held(t.dir, &h, NULL);
    off_t large = size_of(p.file);
    assert_true(large > small && small > 0);
    h.pack = GY_PACK_OFF;
    held again = loaded_held(t.dir, &h, NULL);
    assert_int_equal(size_of(p.file), large);
    equal(&rows, &again);
    assert_true(packed.n_packed == 1 && again.n_packed == 0);
    place_free(&p);
    tiny_free(&t);
}

/* --pack on means copies: as fast made of the weights as of a file, so there is none. */
static void nothing_to_keep(void **state) {
    (void)state;
    tiny t;
    place p = place_make();
    tiny_make(&OURO, &t);
    for (int pack = GY_PACK_ON; pack <= GY_PACK_OFF; pack++) {
        loaded_held(t.dir, &(how){.act = GY_BF16, .pack = (gy_pack)pack, .cache.file = p.file}, NULL);
        assert_int_equal(size_of(p.file), -1);
    }
    place_free(&p);
    tiny_free(&t);
}

/* No memory for copies, but a file with them. */
static void in_place_takes_no_memory(void **state) {
    (void)state;
    tiny t;
    loaded l;
    place p = place_make();
    tiny_make(&OURO, &t);
    how h = {.act = GY_BF16, .cache.file = p.file};
    held made = loaded_held(t.dir, &h, NULL);
    h.available = 1 << 10;
    load(t.dir, &h, &l);
    held tight = held_by(l.m);
    equal(&made, &tight);
    assert_true(l.m->own_bytes < l.m->weight_bytes / 10 && l.m->packed_bytes > l.m->weight_bytes / 2);
    unload(&l);
    place_free(&p);
    tiny_free(&t);
}

/* ---- files that do not fit ------------------------------------------------------------------------------------------
 */

typedef struct victim {
    tiny t;
    place p;
    how h;
    held made;
} victim;

static void victim_open(victim *v, const tiny_spec *s, gy_weight_form form) {
    tiny_make(s, &v->t);
    v->p = place_make();
    v->h = (how){.act = GY_BF16, .form = form};
    v->made = loaded_held(v->t.dir, &v->h, NULL);
    v->h.cache.file = v->p.file;
    held written = loaded_held(v->t.dir, &v->h, NULL);
    equal(&v->made, &written);
}

static void victim_close(victim *v) {
    place_free(&v->p);
    tiny_free(&v->t);
}

/* One line, the right weights, and the next load finds a good file. */
static void noticed(victim *v, const char *words) {
    held now = loaded_held(v->t.dir, &v->h, words);
    equal(&v->made, &now);
    held next = loaded_held(v->t.dir, &v->h, NULL);
    equal(&v->made, &next);
}

static void cut_and_damaged(void **state) {
    (void)state;
    const gy_weight_form forms[] = {GY_WEIGHTS_AS_FILE, GY_WEIGHTS_FP8, GY_WEIGHTS_INT4};
    for (int i = 0; i < COUNT(forms); i++) {
        victim v;
        victim_open(&v, &OURO, forms[i]);
        off_t size = size_of(v.p.file);
        const off_t lengths[] = {0, 1, 7, 8, 200, 4095, 4096, size / 2, size - 4096, size - 1};
        for (int k = 0; k < COUNT(lengths); k++) {
            assert_int_equal(truncate(v.p.file, lengths[k]), 0);
            noticed(&v, "pack cache is not used");
        }
        assert_int_equal(truncate(v.p.file, size + 1), 0);
        noticed(&v, "it was cut");
        for (off_t at = 8; at < 700; at += 13) { /* header, sections, checksums */
            flip(v.p.file, at);
            noticed(&v, "pack cache is not used");
        }
        flip(v.p.file, size / 2 / 4096 * 4096);
        noticed(&v, "damaged: bytes ");
        victim_close(&v);
    }
}

/* In each of several sections of several pieces; what lies between sections is nobody's. */
static void damage_in_any_piece(void **state) {
    (void)state;
    victim v;
    tiny_spec s = OURO;
    s.n_embd = 1024;
    s.n_ff = 700;
    s.n_layer[1] = 1;
    victim_open(&v, &s, GY_WEIGHTS_AS_FILE);
    off_t size = size_of(v.p.file);
    assert_true(size > 4 << 20);
    for (off_t at = 8192; at < size; at += 700001) {
        flip(v.p.file, at);
        noticed(&v, "damaged: bytes ");
    }
    victim_close(&v);
}

/* --pack-cache model.safetensors, say: what is not a pack cache is neither used nor written over. */
static void somebody_elses_file(void **state) {
    (void)state;
    victim v;
    victim_open(&v, &OURO, GY_WEIGHTS_INT8);
    off_t size = size_of(v.p.file);
    ino_t inode = inode_of(v.p.file);
    set_bytes(v.p.file, 0, "GGUF", 4);
    for (int i = 0; i < 2; i++) {
        loaded l;
        load(v.t.dir, &v.h, &l);
        assert_int_equal(l.st, GY_OK);
        assert_non_null(strstr(l.log, "not a pack cache, and not written over: delete it or name another file"));
        held now = held_by(l.m);
        unload(&l);
        equal(&v.made, &now);
        assert_true(size_of(v.p.file) == size && inode_of(v.p.file) == inode);
    }
    assert_int_equal(remove(v.p.file), 0);
    loaded_held(v.t.dir, &v.h, NULL);
    assert_true(size_of(v.p.file) == size);
    victim_close(&v);
}

static void made_of_something_else(void **state) {
    (void)state;
    victim v;
    victim_open(&v, &OURO, GY_WEIGHTS_INT8);
    set_bytes(v.p.file, 8, &(uint32_t){99}, 4);
    noticed(&v, "found format 99, expected 1");
    how other = v.h;
    other.form = GY_WEIGHTS_INT4;
    loaded_held(v.t.dir, &other, "found int8-bf16 for ");
    noticed(&v, "found int4-bf16 for ");
    other = v.h;
    other.is_ref = 1;
    loaded_held(v.t.dir, &other, " for rows");
    noticed(&v, "for rows, expected int8-bf16");
    tiny_find(&v.t, "model.layers.1.mlp.up_proj.weight")->v[100] += 1.0;
    tiny_rewrite(&v.t);
    v.h.cache.file = NULL;
    held now = loaded_held(v.t.dir, &v.h, NULL);
    assert_true(memcmp(now.sum, v.made.sum, sizeof now.sum) != 0);
    v.made = now;
    v.h.cache.file = v.p.file;
    noticed(&v, "it was made of other weights");
    victim_close(&v);
}

static void set_time(const char *path, time_t s) {
    struct timespec to[2] = {{.tv_sec = s}, {.tv_sec = s}};
    assert_int_equal(utimensat(AT_FDCWD, path, to, 0), 0);
}

/* A byte between the samples is noticed by the file's time; a copy with another time, whose bytes are equal, is used.
 */
static void times_of_the_weights(void **state) {
    (void)state;
    victim v;
    tiny_spec s = OURO;
    char path[64];
    s.n_embd = 512;
    s.n_ff = 700;
    s.n_layer[1] = 1;
    victim_open(&v, &s, GY_WEIGHTS_INT8);
    snprintf(path, sizeof path, "%s/model.safetensors", v.t.dir);
    ino_t inode = inode_of(v.p.file);
    set_time(path, 1000000000);
    held now = loaded_held(v.t.dir, &v.h, NULL);
    equal(&v.made, &now);
    assert_int_equal(inode_of(v.p.file), inode);
    gy_st *st;
    assert_int_equal(gy_st_open_file(path, NULL, &st), GY_OK);
    const gy_tensor_info *w = gy_st_find(st, "model.layers.0.mlp.up_proj.weight"), *first = gy_st_at(st, 0);
    for (size_t i = 0; i < gy_st_count(st); i++)
        if ((const char *)gy_st_at(st, i)->data < (const char *)first->data) first = gy_st_at(st, i);
    off_t end = 0;
    for (size_t i = 0; i < gy_st_count(st); i++) end += (off_t)gy_st_at(st, i)->bytes;
    off_t at = size_of(path) - end + (off_t)((const char *)w->data - (const char *)first->data) + 300000 / 2 * 2;
    gy_st_close(st);
    flip(path, at + 1);
    set_time(path, 1000000001);
    v.h.cache.file = NULL;
    v.made = loaded_held(v.t.dir, &v.h, NULL);
    assert_true(memcmp(&v.made, &now, sizeof now) != 0);
    v.h.cache.file = v.p.file;
    noticed(&v, "have changed since it was made");
    victim_close(&v);
}

/* ---- places ---------------------------------------------------------------------------------------------------------
 */

static int is_pack(const char *name) {
    size_t n = strlen(name);
    return n > 5 && !strcmp(name + n - 5, ".pack");
}

static int count_packs(const char *dir, char *path_out) {
    int n = 0;
    char cmd[160], line[256];
    snprintf(cmd, sizeof cmd, "ls -A %.90s 2>/dev/null", dir);
    FILE *f = popen(cmd, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        if (strstr(line, ".part")) fail_msg("%s/%s was left", dir, line);
        if (!is_pack(line)) continue;
        snprintf(path_out, 400, "%s/%s", dir, line);
        n++;
    }
    pclose(f);
    return n;
}

/* Beside the model; where nothing can be written there (a folder has the part's name: so root cannot either), at home,
 * whose last two folders are made; where neither can, a line. */
static void places(void **state) {
    (void)state;
    tiny t;
    place p = place_make();
    char home[80], path[400], part[420];
    snprintf(home, sizeof home, "%s/cache/gyre", p.dir);
    tiny_make(&OURO, &t);
    how h = {.act = GY_BF16, .form = GY_WEIGHTS_INT4};
    held made = loaded_held(t.dir, &h, NULL);
    h.cache = (gy_pack_where){.beside = 1, .home = home};
    held beside = loaded_held(t.dir, &h, NULL);
    assert_int_equal(count_packs(t.dir, path), 1);
    assert_int_equal(size_of(home), -1);
    equal(&made, &beside);
    assert_int_equal(unlink(path), 0);
    snprintf(part, sizeof part, "%s.part", path);
    assert_int_equal(mkdir(part, 0700), 0);
    held at_home = loaded_held(t.dir, &h, NULL);
    equal(&made, &at_home);
    char kept_at[400];
    assert_int_equal(count_packs(home, kept_at), 1);
    ino_t inode = inode_of(kept_at);
    at_home = loaded_held(t.dir, &h, NULL);
    equal(&made, &at_home);
    assert_int_equal(inode_of(kept_at), inode);
    /* A file beside the model that does not fit is not spoken of while the other one does. */
    set_time(part, 1);
    FILE *f = fopen(path, "w");
    assert_true(f && fputs("not a cache", f) >= 0 && fclose(f) == 0);
    at_home = loaded_held(t.dir, &h, NULL);
    equal(&made, &at_home);
    unlink(path);
    unlink(kept_at);
    h.cache.home = "/proc/no/such";
    at_home = loaded_held(t.dir, &h, "pack cache is not written");
    h.cache.home = NULL;
    at_home = loaded_held(t.dir, &h, "pack cache is not written");
    equal(&made, &at_home);
    rmdir(part);
    rmdir(home);
    snprintf(home, sizeof home, "%s/cache", p.dir);
    rmdir(home);
    place_free(&p);
    tiny_free(&t);
}

/* ---- writing --------------------------------------------------------------------------------------------------------
 */

static void part_of(const place *p, char part[80]) {
    snprintf(part, 80, "%s.part", p->file);
}

/* Another process holds the lock: nothing is written and nothing is waited for. One that was killed has left a part. */
static void locks(void **state) {
    (void)state;
    tiny t;
    place p = place_make();
    char part[80];
    part_of(&p, part);
    tiny_make(&OURO, &t);
    how h = {.act = GY_BF16, .form = GY_WEIGHTS_INT4, .cache.file = p.file};
    int fd = open(part, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0 && pwrite(fd, "half a header", 13, 100) == 13);
    held made = loaded_held(t.dir, &h, NULL);
    assert_int_equal(size_of(p.file), -1);
    assert_int_equal(size_of(part), 113);
    close(fd);
    held next = loaded_held(t.dir, &h, NULL);
    equal(&made, &next);
    assert_true(size_of(p.file) > 0 && size_of(part) == -1);
    next = loaded_held(t.dir, &h, NULL);
    equal(&made, &next);
    place_free(&p);
    tiny_free(&t);
}

static void several_at_once(void **state) {
    (void)state;
    enum { N = 6, ROUNDS = 4 };
    victim v;
    victim_open(&v, &OURO, GY_WEIGHTS_INT4);
    for (int round = 0; round < ROUNDS; round++) {
        pid_t pid[N];
        if (round % 2)
            unlink(v.p.file);
        else
            flip(v.p.file, 300);
        for (int i = 0; i < N; i++) {
            pid[i] = fork();
            if (pid[i]) continue;
            loaded l;
            load(v.t.dir, &v.h, &l);
            held mine = l.st == GY_OK ? held_by(l.m) : (held){0};
            _exit(memcmp(mine.sum, v.made.sum, sizeof mine.sum) != 0);
        }
        for (int i = 0; i < N; i++) {
            int status;
            assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
            assert_int_equal(status, 0);
        }
        held after = loaded_held(v.t.dir, &v.h, NULL);
        equal(&v.made, &after);
    }
    victim_close(&v);
}

/* RLIMIT_FSIZE stands for a full disk: room is refused before, or in the middle. An older file stays. */
static void no_room(void **state) {
    (void)state;
    victim v;
    struct rlimit before, small = {.rlim_cur = 5000};
    victim_open(&v, &OURO, GY_WEIGHTS_INT8);
    char part[80];
    part_of(&v.p, part);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small.rlim_max = before.rlim_max;
    for (int i = 0; i < 2; i++) {
        if (i) unlink(v.p.file);
        how h = v.h;
        h.form = GY_WEIGHTS_INT4; /* does not fit the old file */
        loaded l;
        setrlimit(RLIMIT_FSIZE, &small);
        load(v.t.dir, &h, &l);
        setrlimit(RLIMIT_FSIZE, &before);
        assert_int_equal(l.st, GY_OK);
        assert_non_null(strstr(l.log, "pack cache is not written"));
        assert_non_null(strstr(l.log, "File too large"));
        assert_int_equal(size_of(part), -1);
        assert_int_equal(size_of(v.p.file) > 0, !i);
        unload(&l);
        if (!i) {
            held old = loaded_held(v.t.dir, &v.h, NULL);
            equal(&v.made, &old);
        }
    }
    signal(SIGXFSZ, SIG_DFL);
    victim_close(&v);
}

static int64_t live_bytes(void) {
    gy_mem_stats s;
    int64_t sum = 0;
    gy_mem_get_stats(&s);
    for (int i = 0; i < GY_MEM_TAG_COUNT; i++) sum += s.live_bytes[i];
    return sum;
}

/* While it is written and while it is read: a load that fails, or the right weights. */
static void failing_allocations(void **state) {
    (void)state;
    const gy_weight_form forms[] = {GY_WEIGHTS_AS_FILE, GY_WEIGHTS_FP8};
    for (int i = 0; i < 4; i++) {
        victim v;
        int n_loaded = 0, writes = i % 2;
        victim_open(&v, &OURO, forms[i / 2]);
        int64_t before = live_bytes();
        if (writes) unlink(v.p.file);
        for (int n = count_allocs(v.t.dir, &v.h); n > 0; n--) {
            loaded l;
            how h = v.h;
            h.fail_after = n;
            if (writes) unlink(v.p.file);
            load(v.t.dir, &h, &l);
            n_loaded += l.st == GY_OK;
            if (l.st == GY_OK) { /* all but one that may lie in rows */
                held now = held_by(l.m);
                int n_other = 0;
                for (size_t k = 0; k < now.n; k++) n_other += now.sum[k] != v.made.sum[k];
                assert_true(n_other <= 1 && v.made.n_packed - now.n_packed == n_other);
            }
            unload(&l);
            assert_int_equal(live_bytes(), before);
        }
        assert_true(n_loaded > 5);
        loaded_held(v.t.dir, &v.h, NULL);
        held now = loaded_held(v.t.dir, &v.h, NULL);
        equal(&now, &v.made);
        victim_close(&v);
    }
}

/* ---- layouts have names
 * ----------------------------------------------------------------------------------------------- */

static uint64_t form_sum(uint32_t mask, gy_dtype type,
                         const char *name) { /* 0: this processor has no kernels with such a layout */
    static uint16_t w16[70 * 39];
    static float w32[70 * 39];
    gy_cpu_opts o = {.act = GY_F32, .n_thread = 1, .limits = {.max_row = 4, .max_k = 64, .max_len = 8}};
    gy_backend *be = NULL;
    const void *data = NULL;
    for (int i = 0; i < 70 * 39; i++) w32[i] = (float)(i * 37 % 1001) - 500, w16[i] = (uint16_t)(i * 7);
    gy_weight w = {.dtype = type, .n = 70, .k = 39, .n_part = 1};
    w.part[0].data = type == GY_F32 ? (const void *)w32 : w16;
    w.part[0].n = 70;
    gy_cpu_set_mask(mask);
    assert_int_equal(gy_backend_cpu_create(&o, NULL, &be), GY_OK);
    gy_cpu_set_mask(~0u);
    uint64_t sum = 0;
    if (!strcmp(be->ops->form, name)) {
        be->ops->prepare(be, &w, 0);
        size_t bytes = be->ops->form_of(be, &w, &data);
        sum = gy_sum64(data, bytes, 0);
        be->ops->unprepare(be, &w);
    }
    gy_backend_destroy(be);
    return sum;
}

/* Bytes stand in files under these names. Whoever changes a layout or a quantiser changes its name (gy_cpu_form_name),
 * or PACK_VERSION, and then these sums. */
static void layouts_have_names(void **state) {
    (void)state;
    static const struct {
        uint32_t mask;
        gy_dtype type;
        const char *name;
        uint64_t sum;
    } forms[] = {{~0u, GY_BF16, "panel32.1", UINT64_C(0xc02d13f142784080)},
                 {~0u, GY_F32, "panel32.1", UINT64_C(0x3ae04a18c70178b4)},
                 {GY_CPU_AVX2, GY_BF16, "panel16.1", UINT64_C(0x7c0a3a8ba67e98c1)},
                 {GY_CPU_AVX2, GY_F32, "panel16.1", UINT64_C(0xf52dfd148a598401)},
                 {0, GY_BF16, "panel8.1", UINT64_C(0x71d76b6efcd3afed)},
                 {0, GY_F32, "panel8.1", UINT64_C(0x77edac55037e1ef4)}};
    static const struct {
        gy_dtype type;
        uint64_t sum;
    } quants[] = {{GY_Q8, UINT64_C(0x66e3606dd0eb9514)},
                  {GY_Q4, UINT64_C(0xf6075d343536ffaa)},
                  {GY_Q8C, UINT64_C(0xde7c88eb86855d77)},
                  {GY_F8_E4M3, UINT64_C(0x1bfb353bdaf8c54d)}};
    for (int i = 0; i < COUNT(forms); i++) {
        uint64_t sum = form_sum(forms[i].mask, forms[i].type, forms[i].name);
        if (sum && sum != forms[i].sum)
            fail_msg("%s %s: %#llx", forms[i].name, gy_dtype_name(forms[i].type), (unsigned long long)sum);
    }
    for (int i = 0; i < COUNT(quants); i++) {
        static uint8_t q[64 * 96 * 2];
        float row[70], scale[40] = {0};
        memset(q, 0, sizeof q);
        for (int r = 0; r < 40; r++) {
            for (int j = 0; j < 70; j++) row[j] = (float)((r * 70 + j) * 37 % 1001 - 500) / 128;
            if (quants[i].type == GY_F8_E4M3)
                assert_int_equal(gy_quant_row(q + r * 70, scale + r, row, GY_F32, 70), 0);
            else
                assert_int_equal(gy_quant_groups_row(q, quants[i].type, r, row, GY_F32, 70), 0);
        }
        uint64_t sum = gy_sum64(scale, sizeof scale, gy_sum64(q, gy_quant_bytes(quants[i].type, 40, 70), 0));
        if (sum != quants[i].sum) fail_msg("%s: %#llx", gy_dtype_name(quants[i].type), (unsigned long long)sum);
    }
}

/* Each bit of a long and of a short text counts, and so does the length; two flips at one place of a lane's words do
 * not cancel. */
static void sums(void **state) {
    (void)state;
    static unsigned char text[300];
    for (int i = 0; i < 300; i++) text[i] = (unsigned char)(i * 7);
    const int sizes[] = {1, 8, 63, 64, 65, 300};
    for (int s = 0; s < COUNT(sizes); s++) {
        uint64_t sum = gy_sum64(text, (size_t)sizes[s], 5);
        for (int i = 0; i < sizes[s] * 8; i++) {
            text[i / 8] ^= (unsigned char)(1 << i % 8);
            assert_true(gy_sum64(text, (size_t)sizes[s], 5) != sum);
            if (i / 8 + 64 < sizes[s]) {
                text[i / 8 + 64] ^= (unsigned char)(1 << i % 8);
                assert_true(gy_sum64(text, (size_t)sizes[s], 5) != sum);
                text[i / 8 + 64] ^= (unsigned char)(1 << i % 8);
            }
            text[i / 8] ^= (unsigned char)(1 << i % 8);
        }
        assert_true(gy_sum64(text, (size_t)sizes[s] - 1, 5) != sum);
        assert_true(gy_sum64(text, (size_t)sizes[s], 6) != sum);
        assert_true(gy_sum64(text, (size_t)sizes[s], 5) == sum);
    }
    assert_true(gy_sum64("", 0, 0) != gy_sum64("\0", 1, 0));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums),
        cmocka_unit_test(layouts_have_names),
        cmocka_unit_test(pack_decides),
        cmocka_unit_test(pack_without_memory),
        cmocka_unit_test(pack_with_failing_allocations),
        cmocka_unit_test(packed_gives_the_same_logits),
        cmocka_unit_test(what_is_read_is_what_is_made),
        cmocka_unit_test(a_file_grows),
        cmocka_unit_test(nothing_to_keep),
        cmocka_unit_test(in_place_takes_no_memory),
        cmocka_unit_test(cut_and_damaged),
        cmocka_unit_test(damage_in_any_piece),
        cmocka_unit_test(somebody_elses_file),
        cmocka_unit_test(made_of_something_else),
        cmocka_unit_test(times_of_the_weights),
        cmocka_unit_test(places),
        cmocka_unit_test(locks),
        cmocka_unit_test(several_at_once),
        cmocka_unit_test(no_room),
        cmocka_unit_test(failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
