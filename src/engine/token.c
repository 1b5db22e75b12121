/* Rows of logits to tokens: of a step's items, those whose logits are on the backend by the backend itself, all at once
 * (gy_loop_draw); the others by the host sampler on the backend's threads. Both give the same tokens and the same bits
 * of logprobs (sample.h), and which way a row goes its request alone decides: rules that look at logits have them here.
 *
 *   pack   each item's wishes into the loop driver's room; grammars say their mask here
 *   draw   one launch, the one wait of a step
 *   take   tokens, logprobs; grammars hear their token. A row that the device refused is judged by the host sampler,
 * which says what is wrong with it.
 */
#include "base/clock.h"
#include "engine/engine_int.h"

/* ---- by the host ------------------------------------------------------------------------------------------------ */

static gy_sample_in wishes(const gy_logit_item *it) {
    const gy_choice *c = it->c;
    const gy_req *q = c->req;
    return (gy_sample_in){.logits = it->logits,
                          .p = &c->p,
                          .counts = c->counts,
                          .ban = q->ends,
                          .n_ban = c->n_output < q->r.min_tokens ? q->n_ends : 0,
                          .position = it->pos + 1};
}

static void sample_token(gy_engine *e, gy_logit_item *it, int member) {
    gy_choice *c = it->c;
    gy_sample_in in = wishes(it);
    it->is_last = 0;
    it->st = c->text ? gy_constrain_next(e, c, member, &in, &it->err) : GY_OK;
    if (it->st == GY_OK) it->st = gy_sample_row(e->sampler, member, &in, &it->err, &it->out);
    if (it->st == GY_OK && c->text) it->st = gy_constrain_follow(e, c, member, it->out.id, &it->err, &it->is_last);
}

static void sample_one(gy_engine *e, gy_logit_item *it, int member) {
    const gy_choice *c = it->c;
    if (c->req->handoff)
        it->st = GY_OK; /* an export: whoever imports it samples */
    else if (it->samples)
        sample_token(e, it, member);
    else
        it->st = gy_logprob_row(it->logits, e->m->d.n_vocab, c->tok[it->pos + 1], c->req->r.prompt_logprobs,
                                it->pos + 1, &it->err, &it->out);
}

static void sample_item(void *arg, int32_t i, int member) {
    gy_engine *e = arg;
    sample_one(e, &e->item[i], member);
}

/* ---- by the backend --------------------------------------------------------------------------------------------- */

typedef struct drawing { /* items first..first + n */
    gy_engine *e;
    gy_logit_item *item;
    char *room;
    const gy_drawn *drawn; /* [n] */
    int32_t first, n;
    int has_text; /* grammars among them: worth the threads */
} drawing;

static int draws_token(const gy_logit_item *it) {
    return it->samples && !it->c->req->handoff;
}

/* What an item's lists take at most: a grammar may turn out to hold nothing back. */
static size_t lists_bytes(const gy_engine *e, const gy_logit_item *it) {
    gy_sample_in in = wishes(it);
    if (!draws_token(it)) return 0;
    if (it->c->text) in.mask = e->mask;
    return gy_sample_pack_bytes(&in, e->m->d.n_vocab);
}

/* As many of n items from d->first on as the room holds, where each one's lists lie behind all rows. 0: not even one,
 * so the host has it. Returns the bytes. */
static size_t lay_out(drawing *d, int32_t n, size_t room) {
    size_t lists = 0;
    d->n = d->has_text = 0;
    for (int32_t i = d->first; i < d->first + n; i++) {
        size_t more = lists_bytes(d->e, &d->item[i]), rows = (size_t)(d->n + 1) * sizeof(gy_draw_row);
        if (rows + lists + more > room) break;
        d->item[i].lists = lists;
        lists += more;
        d->has_text |= d->item[i].c->text != NULL;
        d->n++;
    }
    return (size_t)d->n * sizeof(gy_draw_row) + lists;
}

static void pack_token(gy_engine *e, gy_logit_item *it, int member, char *room, size_t at, gy_draw_row *row) {
    gy_choice *c = it->c;
    gy_sample_in in = wishes(it);
    it->is_last = 0;
    it->st = c->text ? gy_constrain_next(e, c, member, &in, &it->err) : GY_OK;
    if (it->st == GY_OK)
        gy_sample_pack(&in, e->m->d.n_vocab, room, at, row);
    else
        gy_sample_pack_known(0, -1, row);
}

static void pack_item(void *arg, int32_t k, int member) {
    const drawing *d = arg;
    gy_logit_item *it = &d->item[d->first + k];
    const gy_request *r = &it->c->req->r;
    gy_draw_row *row = (gy_draw_row *)d->room + k;
    it->st = GY_OK;
    if (it->c->req->handoff)
        gy_sample_pack_known(0, -1, row);
    else if (it->samples)
        pack_token(d->e, it, member, d->room, (size_t)d->n * sizeof *row + it->lists, row);
    else
        gy_sample_pack_known(it->c->tok[it->pos + 1], r->prompt_logprobs, row);
}

static void take_item(void *arg, int32_t k, int member) {
    const drawing *d = arg;
    gy_engine *e = d->e;
    gy_logit_item *it = &d->item[d->first + k];
    gy_choice *c = it->c;
    if (c->req->handoff || it->st != GY_OK) return;
    if (it->logits) {
        sample_one(e, it, member);
        return;
    }
    gy_sample_unpack(&d->drawn[k], it->samples ? c->p.n_logprobs : c->req->r.prompt_logprobs, e->m->d.n_vocab,
                     &it->out);
    if (it->samples && c->text) it->st = gy_constrain_follow(e, c, member, it->out.id, &it->err, &it->is_last);
}

static void for_items(const drawing *d, void (*fn)(void *arg, int32_t k, int member), drawing *arg) {
    gy_backend *be = d->e->m->be;
    if (d->has_text)
        be->ops->parallel(be, d->n, fn, arg);
    else
        for (int32_t k = 0; k < d->n; k++) fn(arg, k, 0);
}

static void fetch(gy_engine *e, gy_logit_item *it) {
    int64_t t = gy_clock_ns();
    it->logits = gy_loop_logits(e->loop, it->row, 1);
    e->stats.model_ns += gy_clock_ns() - t;
}

/* The wait for the backend is the model's time. */
static void draw_items(drawing *d, size_t bytes) {
    gy_engine *e = d->e;
    for_items(d, pack_item, d);
    int64_t t = gy_clock_ns();
    d->drawn = gy_loop_draw(e->loop, e->item[d->first].row, d->n, bytes);
    int64_t waited = gy_clock_ns() - t;
    e->stats.model_ns += waited;
    e->stats.sample_ns -= waited;
    if (gy_engine_is_lost(e)) return;
    for (int32_t k = 0; k < d->n; k++)
        if (d->drawn[k].refused && !d->item[d->first + k].c->req->handoff) fetch(e, &d->item[d->first + k]);
    for_items(d, take_item, d);
}

static void sample_there(gy_engine *e, int32_t n) {
    size_t room;
    drawing d = {.e = e, .item = e->item, .room = gy_loop_draw_room(e->loop, &room)};
    for (; d.first < n && e->lost.status >= 0; d.first += d.n) {
        size_t bytes = lay_out(&d, n - d.first, room);
        if (d.n) {
            draw_items(&d, bytes);
        } else {
            fetch(e, &e->item[d.first]);
            sample_item(e, d.first, 0);
            d.n = 1;
        }
    }
}

/* ---- later (late.c) ---------------------------------------------------------------------------------------------- */

size_t gy_engine_pack(gy_engine *e, gy_logit_item *item, int32_t n) {
    size_t room;
    drawing d = {.e = e, .item = item, .room = gy_loop_draw_room(e->loop, &room)};
    size_t bytes = lay_out(&d, n, room);
    if (d.n < n) return 0;
    for_items(&d, pack_item, &d);
    return bytes;
}

void gy_engine_unpack(gy_engine *e, gy_logit_item *item, int32_t n, const gy_drawn *drawn) {
    drawing d = {.e = e, .item = item, .n = n, .drawn = drawn};
    for (int32_t k = 0; k < n; k++) {
        if (!item[k].c) continue;
        if (drawn[k].refused) fetch(e, &item[k]);
        take_item(&d, k, 0);
    }
}

void gy_engine_sample(gy_engine *e, int32_t n) {
    gy_backend *be = e->m->be;
    int there = n && !e->item[0].logits;
    if (!there && gy_engine_is_lost(e)) return;
    int64_t t = gy_clock_ns();
    if (there)
        sample_there(e, n);
    else
        be->ops->parallel(be, n, sample_item, e);
    e->stats.sample_ns += gy_clock_ns() - t;
}
