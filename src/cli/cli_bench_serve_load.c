/* Prompts, bodies and datasets: see cli_bench_serve_load.h. */
#include "cli/cli_bench_serve_load.h"

#include "base/file.h"

#include <math.h>
#include <string.h>

static const char *const words[] = {
    "time",    "year",   "people",   "way",      "day",     "man",     "thing", "woman", "life",    "child",  "world",
    "school",  "state",  "family",   "group",    "country", "problem", "hand",  "part",  "place",   "case",   "week",
    "company", "system", "program",  "question", "work",    "number",  "night", "point", "home",    "water",  "room",
    "mother",  "area",   "money",    "story",    "fact",    "month",   "lot",   "right", "study",   "book",   "eye",
    "job",     "word",   "business", "issue",    "side",    "kind",    "head",  "house", "service", "friend", "father",
    "power",   "hour",   "game",     "line",     "end",     "member",  "law",   "car",   "city"};
enum { N_WORD = sizeof words / sizeof *words, PREFIX_STREAM = -1, TURN_STRIDE = 1 << 22, DEPTH_MAX = 24 };
enum { TOKEN_BYTES = 4, GUESS_MAX = 2048 }; /* guess of an answer's tokens: English has about four bytes in each */
static const size_t DATASET_MAX = (size_t)1 << 30;

/* ---- lengths and arrivals ---- */

gy_status gy_bserve_items(const gy_bserve_load *l, gy_bench_item *items) {
    const gy_bench_load lengths = {.kind = GY_BENCH_SESSION,
                                   .n_stream = l->n_stream,
                                   .n_turn = l->n_turn,
                                   .in = l->in,
                                   .out = l->out,
                                   .seed = l->seed};
    gy_bench_items(&lengths, items);
    for (int32_t i = 0; i < l->n_stream * l->n_turn; i++) items[i].n_prompt += l->n_prefix;
    if (isinf(l->rate)) return GY_OK;
    int64_t *at = gy_mem_alloc(GY_MEM_CLI, (size_t)l->n_stream, sizeof *at);
    if (!at) return GY_E_NOMEM;
    gy_bench_arrivals(l->seed, l->rate, l->burstiness, l->n_stream, at);
    for (int32_t i = 0; i < l->n_stream; i++) items[i].at_ns = at[i];
    gy_mem_free(at);
    return GY_OK;
}

static const gy_bserve_entry *entry_of(const gy_bserve_load *l, const gy_bench_item *it) {
    return l->prompts == GY_BSERVE_DATASET ? &l->data->entry.data[(size_t)it->stream % l->data->entry.len] : NULL;
}

int32_t gy_bserve_n_out(const gy_bserve_load *l, const gy_bench_item *it) {
    const gy_bserve_entry *e = entry_of(l, it);
    return e && e->n_out ? e->n_out : it->n_out;
}

/* ---- prompts ---- */

/* n ids of a stream, in pieces, so that no prompt is too long for the stack. */
static void each_id(uint64_t seed, int32_t stream, int32_t n, int32_t n_vocab, void (*put)(gy_str *, int32_t),
                    gy_str *out) {
    enum { PIECE = 256 };
    int32_t ids[PIECE];
    for (int32_t at = 0; at < n; at += PIECE) {
        const int32_t m = n - at < PIECE ? n - at : PIECE;
        gy_bench_ids(seed ^ ((uint64_t)at << 32), stream, m, n_vocab, ids);
        for (int32_t i = 0; i < m; i++) put(out, ids[i]);
    }
}

static void put_word(gy_str *out, int32_t i) {
    if (out->len && out->data[out->len - 1] != '"') gy_str_putc(out, ' ');
    gy_str_puts(out, words[i]);
}

static void put_id(gy_str *out, int32_t id) {
    gy_str_printf(out, "%s%d", out->len && out->data[out->len - 1] == '[' ? "" : ",", id);
}

static int32_t n_words(const gy_bserve_load *l, int32_t n_tok) {
    const double n = floor(n_tok / l->word_tok + 0.5);
    return n < 1 ? 1 : (int32_t)n;
}

/* A turn's words must not be those of another turn of the conversation: streams of later turns lie far away. */
void gy_bserve_put_words(const gy_bserve_load *l, const gy_bench_item *it, gy_str *out) {
    if (it->turn == 0 && l->n_prefix) each_id(l->seed, PREFIX_STREAM, n_words(l, l->n_prefix), N_WORD, put_word, out);
    const uint32_t stream = (uint32_t)it->stream + (uint32_t)it->turn * TURN_STRIDE;
    each_id(l->seed, (int32_t)stream, n_words(l, it->n_new), N_WORD, put_word, out);
}

static void put_ids(const gy_bserve_load *l, const gy_bench_item *it, gy_str *out) {
    gy_str_putc(out, '[');
    each_id(l->seed, PREFIX_STREAM, l->n_prefix, l->n_vocab, put_id, out);
    each_id(l->seed, it->stream, it->n_new, l->n_vocab, put_id, out);
    gy_str_putc(out, ']');
}

static void put_messages(const gy_bserve_load *l, const gy_bench_item *it, const gy_str *past, gy_str *out) {
    gy_str_putc(out, '[');
    if (past) gy_str_append(out, gy_str_z(past), past->len);
    gy_str_puts(out, "{\"role\":\"user\",\"content\":\"");
    gy_bserve_put_words(l, it, out);
    gy_str_puts(out, "\"}]");
}

static void put_entry(const gy_bserve_load *l, const gy_bserve_entry *e, gy_str *out) {
    if (!l->chat || e->is_messages)
        gy_str_puts(out, e->json);
    else
        gy_str_printf(out, "[{\"role\":\"user\",\"content\":%s}]", e->json);
}

/* Words hold nothing that JSON escapes. */
void gy_bserve_put_body(const gy_bserve_load *l, const gy_bench_item *it, const gy_str *past, gy_str *out) {
    gy_str_puts(out, l->fixed);
    gy_str_printf(out, ",\"%s\":%d,\"%s\":", l->chat ? "max_completion_tokens" : "max_tokens", gy_bserve_n_out(l, it),
                  l->chat ? "messages" : "prompt");
    if (l->prompts == GY_BSERVE_DATASET) {
        put_entry(l, entry_of(l, it), out);
    } else if (l->prompts == GY_BSERVE_IDS) {
        put_ids(l, it, out);
    } else if (l->chat) {
        put_messages(l, it, past, out);
    } else {
        gy_str_putc(out, '"');
        if (past) gy_str_append(out, gy_str_z(past), past->len);
        gy_bserve_put_words(l, it, out);
        gy_str_putc(out, '"');
    }
    gy_str_putc(out, '}');
}

static void put_escaped(const char *s, size_t len, gy_str *out) {
    gy_jw w;
    gy_jw_init(&w, out);
    gy_jw_str(&w, s, len);
}

void gy_bserve_add_past(const gy_bserve_load *l, const gy_bench_item *it, const char *reply, size_t len, gy_str *past) {
    if (l->chat) {
        gy_str_puts(past, "{\"role\":\"user\",\"content\":\"");
        gy_bserve_put_words(l, it, past);
        gy_str_puts(past, "\"},{\"role\":\"assistant\",\"content\":");
        put_escaped(reply, len, past);
        gy_str_puts(past, "},");
        return;
    }
    /* The past is the inside of a JSON string, so the reply goes in without its quotes. */
    gy_str text = {0};
    put_escaped(reply, len, &text);
    gy_bserve_put_words(l, it, past);
    if (text.failed)
        past->failed = 1;
    else
        gy_str_append(past, text.data + 1, text.len - 2);
    gy_str_free(&text);
}

/* ---- datasets ---- */

static gy_status push_entry(gy_bserve_data *d, const gy_jv *v, int64_t n_out, gy_err *err) {
    gy_str s = {0};
    gy_jw w;
    gy_jw_init(&w, &s);
    gy_jw_value(&w, v);
    const gy_bserve_entry e = {.json = s.data, .n_out = (int32_t)n_out, .is_messages = gy_jv_type(v) == GY_J_ARRAY};
    if (!s.failed && !gy_vec_push(&d->entry, GY_MEM_CLI, e)) return GY_OK;
    gy_str_free(&s);
    return gy_err_set(err, GY_E_NOMEM, "no memory for the dataset");
}

static gy_status add_line(gy_bserve_data *d, const gy_jv *root, int chat, gy_err *err) {
    const gy_jv *prompt = gy_jv_get(root, "prompt"), *messages = gy_jv_get(root, "messages");
    const gy_jv *n = gy_jv_get(root, "max_tokens");
    const int64_t n_out = gy_jv_int(n ? n : gy_jv_get(root, "output_len"), 0);
    if (n_out < 0 || n_out > INT32_MAX)
        return gy_err_set(err, GY_E_ARG, "max_tokens: found %lld, expected a number of tokens", (long long)n_out);
    if (gy_jv_type(messages) == GY_J_ARRAY && chat) return push_entry(d, messages, n_out, err);
    if (gy_jv_type(prompt) == GY_J_STRING) return push_entry(d, prompt, n_out, err);
    return gy_err_set(err, GY_E_ARG, "expected an object with %s",
                      chat ? "\"messages\" (a list) or \"prompt\" (a text)"
                           : "\"prompt\" (a text); messages need --endpoint chat");
}

static gy_status read_lines(const gy_str *text, int chat, gy_err *err, gy_bserve_data *d) {
    static const gy_json_limits limits = {.max_depth = DEPTH_MAX};
    const char *at = text->data, *end = text->data + text->len;
    for (int line = 1; at < end; line++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        const size_t n = (size_t)((stop ? stop : end) - at);
        gy_json *doc = NULL;
        gy_status st = GY_OK;
        if (strspn(at, " \t\r") < n) {
            st = gy_json_parse(at, n, &limits, err, &doc);
            if (st >= 0) st = add_line(d, gy_json_root(doc), chat, err);
        }
        gy_json_free(doc);
        if (st < 0) {
            gy_err_prefix(err, "line %d", line);
            return st;
        }
        at += n + 1;
    }
    return GY_OK;
}

static int64_t guess_tokens(const gy_jv *answer) {
    size_t len = 0;
    if (!gy_jv_str(answer, &len)) return 0;
    len = len / TOKEN_BYTES + 1;
    return len > GUESS_MAX ? GUESS_MAX : (int64_t)len;
}

static gy_status read_sharegpt(const gy_str *text, gy_err *err, gy_bserve_data *d) {
    const gy_json_limits limits = {.max_bytes = DATASET_MAX, .max_depth = DEPTH_MAX};
    gy_json *doc = NULL;
    gy_status st = gy_json_parse(text->data, text->len, &limits, err, &doc);
    const gy_jv *root = gy_json_root(doc);
    for (size_t i = 0; st >= 0 && i < gy_jv_len(root); i++) {
        const gy_jv *talk = gy_jv_get(gy_jv_at(root, i), "conversations");
        const gy_jv *prompt = gy_jv_get(gy_jv_at(talk, 0), "value"), *answer = gy_jv_get(gy_jv_at(talk, 1), "value");
        if (gy_jv_type(prompt) == GY_J_STRING && answer) st = push_entry(d, prompt, guess_tokens(answer), err);
    }
    gy_json_free(doc);
    return st;
}

gy_status gy_bserve_data_read(const char *path, int chat, gy_err *err, gy_bserve_data *out) {
    gy_str text = {0};
    gy_bserve_data d = {.entry = {0}};
    gy_status st = gy_file_read(path, DATASET_MAX, err, &text);
    if (st < 0) {
        gy_err_prefix(err, "--dataset");
    } else {
        const int list = gy_str_z(&text)[strspn(gy_str_z(&text), " \t\r\n")] == '[';
        st = list ? read_sharegpt(&text, err, &d) : text.len ? read_lines(&text, chat, err, &d) : GY_OK;
        if (st >= 0 && !d.entry.len) st = gy_err_set(err, GY_E_ARG, "found no prompt in it");
        if (st < 0) gy_err_prefix(err, "--dataset: %s", path);
    }
    gy_str_free(&text);
    if (st >= 0)
        *out = d;
    else
        gy_bserve_data_fini(&d);
    return st < 0 ? st : GY_OK;
}

void gy_bserve_data_fini(gy_bserve_data *d) {
    for (size_t i = 0; i < d->entry.len; i++) gy_mem_free(d->entry.data[i].json);
    gy_vec_free(&d->entry);
}
