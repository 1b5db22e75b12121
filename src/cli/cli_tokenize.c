/* gyre tokenize: text to ids and back. Needs the tokenizer's files only: no config.json, no weights. */
#include "base/file.h"
#include "cli/cli.h"
#include "cli/cli_model.h"
#include "cli/cli_requests.h"

#include <stdio.h>
#include <string.h>

typedef struct tok_state {
    const gy_args *a;
    gy_tok *tok;
    gy_tok_ctx *ctx;
    gy_str in; /* the arguments joined by a blank, or standard input */
    gy_vec_i32 ids;
    gy_str text; /* with --decode */
} tok_state;

static gy_status read_text(tok_state *t, gy_err *err) {
    const gy_args *a = t->a;
    if (a->n_pos < 2) return gy_cli_read_input("-", err, &t->in);
    for (size_t i = 1; i < a->n_pos; i++) {
        if (i > 1) gy_str_putc(&t->in, ' ');
        gy_str_puts(&t->in, a->pos[i]);
    }
    return t->in.failed ? gy_err_set(err, GY_E_NOMEM, "no memory for the text") : GY_OK;
}

static gy_status open_tok(tok_state *t, gy_err *err) {
    const char *dir = t->a->pos[0];
    if (!gy_dir_exists(dir))
        return gy_err_set(err, GY_E_IO, "%s: not a folder; MODEL is a folder with a tokenizer", dir);
    if (!gy_tok_exists(dir))
        return gy_err_set(err, GY_E_IO,
                          "%s: holds no tokenizer (tokenizer.json, tokenizer.model, or vocab.json and merges.txt)",
                          dir);
    return gy_tok_open(dir, err, &t->tok);
}

static gy_status encode(tok_state *t, gy_err *err) {
    unsigned flags = (t->a->add_special ? 0 : GY_TOK_ADD_SPECIAL) | (t->a->parse_special ? 0 : GY_TOK_PARSE_SPECIAL);
    if (gy_tok_ctx_create(t->tok, &t->ctx) < 0) return gy_err_set(err, GY_E_NOMEM, "no memory for the tokenizer");
    return gy_tok_encode(t->ctx, gy_str_z(&t->in), t->in.len, flags, err, &t->ids);
}

static gy_status decode(tok_state *t, gy_err *err) {
    GY_TRY(gy_cli_parse_ids(gy_str_z(&t->in), t->in.len, "ids", err, &t->ids));
    return gy_tok_decode(t->tok, t->ids.data, t->ids.len, 0, err, &t->text);
}

static gy_status tok_run(tok_state *t, gy_err *err) {
    if (!t->a->n_pos) return gy_err_set(err, GY_E_ARG, "no MODEL; usage: gyre tokenize MODEL [TEXT|ID...]");
    GY_TRY(open_tok(t, err));
    GY_TRY(read_text(t, err));
    return t->a->decode_ids ? decode(t, err) : encode(t, err);
}

static void put_json_pieces(const tok_state *t, gy_jw *w) {
    gy_jw_key(w, "pieces");
    gy_jw_arr_begin(w);
    for (size_t i = 0; i < t->ids.len; i++) {
        size_t len = 0;
        const char *piece = gy_tok_piece(t->tok, t->ids.data[i], &len);
        if (piece)
            gy_jw_str(w, piece, len);
        else
            gy_jw_null(w);
    }
    gy_jw_arr_end(w);
}

static void put_json(const tok_state *t, gy_str *out) {
    gy_jw w;
    gy_jw_init(&w, out);
    gy_jw_obj_begin(&w);
    gy_jw_key(&w, "ids");
    gy_jw_arr_begin(&w);
    for (size_t i = 0; i < t->ids.len; i++) gy_jw_int(&w, t->ids.data[i]);
    gy_jw_arr_end(&w);
    if (t->a->decode_ids) {
        gy_jw_key(&w, "text");
        gy_jw_str(&w, gy_str_z(&t->text), t->text.len);
    }
    if (t->a->pieces) put_json_pieces(t, &w);
    gy_jw_obj_end(&w);
    gy_str_putc(out, '\n');
}

static void put_pieces(const tok_state *t, gy_str *out) {
    for (size_t i = 0; i < t->ids.len; i++) {
        size_t len = 0;
        const char *piece = gy_tok_piece(t->tok, t->ids.data[i], &len);
        gy_str_printf(out, "%d\t", t->ids.data[i]);
        if (piece) gy_str_append(out, piece, len);
        gy_str_putc(out, '\n');
    }
}

static void put_plain(const tok_state *t, gy_str *out) {
    if (t->a->decode_ids) gy_str_append(out, gy_str_z(&t->text), t->text.len);
    for (size_t i = 0; !t->a->decode_ids && i < t->ids.len; i++)
        gy_str_printf(out, "%s%d", i ? " " : "", t->ids.data[i]);
    gy_str_putc(out, '\n');
}

static gy_status tok_print(const tok_state *t, gy_err *err) {
    gy_str out = {0};
    if (t->a->json)
        put_json(t, &out);
    else if (t->a->pieces)
        put_pieces(t, &out);
    else
        put_plain(t, &out);
    gy_status st = out.failed ? gy_err_set(err, GY_E_NOMEM, "no memory for the output") : GY_OK;
    gy_cli_put_str(&out);
    gy_str_free(&out);
    return st;
}

int gy_cmd_tokenize(const gy_args *a) {
    tok_state t = {.a = a};
    gy_err err = {0};
    gy_status st = tok_run(&t, &err);
    if (st >= 0) st = tok_print(&t, &err);
    int rc = st < 0 ? gy_cli_fail(&err) : GY_CLI_OK;
    gy_tok_ctx_destroy(t.ctx);
    gy_tok_close(t.tok);
    gy_vec_free(&t.ids);
    gy_str_free(&t.in);
    gy_str_free(&t.text);
    return rc;
}
