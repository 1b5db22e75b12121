/* The field `prompt` in all its forms:
 *     "text"                        one prompt
 *     [1, 2, 3]                     one prompt of ids
 *     [1, "text", 2]                one prompt of several segments (llama.cpp)
 *     ["a", "b"], [[1], [2]]        several prompts; also mixed, each of them in one of the forms above
 */
#include "server/oai_int.h"

#include <stdio.h>
#include <string.h>

/* What an array holds. */
typedef struct content {
    size_t n_int, n_str, n_arr;
    const gy_jv *other; /* the first element of another type */
    size_t other_at;
} content;

static content look_into(const gy_jv *v) {
    content c = {0};
    for (size_t i = 0; i < gy_jv_len(v); i++) {
        const gy_jv *x = gy_jv_at(v, i);
        gy_jtype t = gy_jv_type(x);
        c.n_int += t == GY_J_INT;
        c.n_str += t == GY_J_STRING;
        c.n_arr += t == GY_J_ARRAY;
        if (t != GY_J_INT && t != GY_J_STRING && t != GY_J_ARRAY && !c.other) {
            c.other = x;
            c.other_at = i;
        }
    }
    return c;
}

static gy_status read_text(gy_oai_reader *p, const char *field, const gy_jv *v, gy_oai_seg *seg) {
    seg->text = gy_jv_str(v, &seg->n_text);
    if (!p->cfg->has_tokenizer)
        return gy_oai_refuse(p, GY_OAI_E_BAD_REQUEST, field,
                             "found text, expected token ids: the model's folder holds no tokenizer");
    return GY_OK;
}

/* Consecutive ids become one segment. Returns the index behind them. */
static gy_status read_id_run(gy_oai_reader *p, const char *field, const gy_jv *v, size_t *i, gy_oai_seg *seg) {
    size_t first = *i, end = first;
    while (gy_jv_type(gy_jv_at(v, end)) == GY_J_INT) end++;
    int32_t *ids = gy_arena_alloc(p->r->arena, end - first, sizeof *ids);
    if (!ids) return gy_oai_no_memory(p);
    int32_t below = p->cfg->n_vocab ? p->cfg->n_vocab : INT32_MAX;
    for (size_t k = first; k < end; k++) {
        char at[64];
        int64_t id = gy_jv_int(gy_jv_at(v, k), -1);
        gy_oai_at(at, sizeof at, "%s[%zu]", field, k);
        if (id < 0 || id >= below) return gy_oai_read_int(p, at, gy_jv_at(v, k), 0, below - 1, &id);
        ids[k - first] = (int32_t)id;
    }
    *seg = (gy_oai_seg){.ids = ids, .n_ids = (int32_t)(end - first)};
    *i = end;
    return GY_OK;
}

static gy_status read_list(gy_oai_reader *p, const char *field, const gy_jv *v, gy_oai_prompt *out) {
    content c = look_into(v);
    if (c.other || c.n_arr) {
        char at[64];
        size_t i = c.other_at;
        if (!c.other)
            for (i = 0; gy_jv_type(gy_jv_at(v, i)) != GY_J_ARRAY;) i++;
        gy_oai_at(at, sizeof at, "%s[%zu]", field, i);
        return gy_oai_expected(p, at, gy_jv_at(v, i), "a token id or a string");
    }
    if (gy_jv_len(v) > INT32_MAX) return gy_oai_expected(p, field, v, "fewer elements");
    gy_oai_seg *seg = gy_arena_alloc(p->r->arena, (c.n_str ? 2 * c.n_str : 0) + 1, sizeof *seg);
    if (!seg) return gy_oai_no_memory(p);
    int32_t n = 0;
    for (size_t i = 0; i < gy_jv_len(v); n++) {
        if (gy_jv_type(gy_jv_at(v, i)) == GY_J_INT)
            GY_TRY(read_id_run(p, field, v, &i, &seg[n]));
        else
            GY_TRY(read_text(p, field, gy_jv_at(v, i++), &seg[n]));
    }
    *out = (gy_oai_prompt){.seg = seg, .n_seg = n};
    return GY_OK;
}

static gy_status check_not_empty(gy_oai_reader *p, const char *field, const gy_oai_prompt *q) {
    for (int32_t i = 0; i < q->n_seg; i++)
        if (q->seg[i].n_ids || q->seg[i].n_text) return GY_OK;
    return gy_oai_refuse(p, GY_OAI_E_BAD_REQUEST, field, "found an empty prompt, expected at least one token");
}

/* /tokenize takes an empty text: it has no tokens, and nobody runs it. */
static gy_status read_one(gy_oai_reader *p, const char *field, const gy_jv *v, gy_oai_prompt *out) {
    if (gy_jv_type(v) == GY_J_STRING) {
        gy_oai_seg *seg = gy_arena_alloc(p->r->arena, 1, sizeof *seg);
        if (!seg) return gy_oai_no_memory(p);
        GY_TRY(read_text(p, field, v, seg));
        *out = (gy_oai_prompt){.seg = seg, .n_seg = 1};
    } else if (gy_jv_type(v) == GY_J_ARRAY) {
        GY_TRY(read_list(p, field, v, out));
    } else {
        return gy_oai_expected(p, field, v, "a string or an array of token ids");
    }
    return p->r->kind == GY_OAI_TOKENIZE ? GY_OK : check_not_empty(p, field, out);
}

static gy_status take_prompts(gy_oai_reader *p, size_t n) {
    p->r->prompts = gy_arena_alloc(p->r->arena, n, sizeof *p->r->prompts);
    p->r->n_prompt = (int32_t)n;
    return p->r->prompts ? GY_OK : gy_oai_no_memory(p);
}

gy_status gy_oai_read_prompts(gy_oai_reader *p, const char *field, const gy_jv *v) {
    content c = look_into(v);
    if (gy_jv_type(v) == GY_J_ARRAY && !gy_jv_len(v))
        return gy_oai_expected(p, field, v, "at least one prompt or token");
    /* An id at the top makes the whole array one prompt, and so does /tokenize, which has but one. */
    if (gy_jv_type(v) != GY_J_ARRAY || c.n_int || p->r->kind == GY_OAI_TOKENIZE) {
        GY_TRY(take_prompts(p, 1));
        return read_one(p, field, v, &p->r->prompts[0]);
    }
    size_t n = gy_jv_len(v);
    if (n > (size_t)p->cfg->max_prompts)
        return gy_oai_expected(p, field, v, "at most %d prompts in one body", p->cfg->max_prompts);
    GY_TRY(take_prompts(p, n));
    for (size_t i = 0; i < n; i++) {
        char at[40];
        gy_oai_at(at, sizeof at, "%s[%zu]", field, i);
        GY_TRY(read_one(p, at, gy_jv_at(v, i), &p->r->prompts[i]));
    }
    return GY_OK;
}

gy_status gy_oai_read_tokens(gy_oai_reader *p, const gy_jv *v) {
    gy_oai_seg *seg = gy_arena_alloc(p->r->arena, 1, sizeof *seg);
    if (!seg) return gy_oai_no_memory(p);
    GY_TRY(take_prompts(p, 1));
    GY_TRY(gy_oai_read_ids(p, "tokens", v, p->cfg->n_vocab, &seg->ids, &seg->n_ids));
    p->r->prompts[0] = (gy_oai_prompt){.seg = seg, .n_seg = 1};
    return GY_OK;
}
