/* gyre chat: a conversation on a terminal, or one turn a line in a pipe. One path for all servers: a local model is a
 * server too (cli_chat_local.h). What the environment says (HOME, TERM, NO_COLOR ...) is read here, once, and nowhere
 * else.
 */
#include "cli/cli_chat_int.h"

#include "cli/cli.h"
#include "cli/cli_chat_args.h"
#include "cli/cli_chat_signal.h"
#include "cli/cli_model.h"

#include <langinfo.h>
#include <locale.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- what is said ---- */

void gy_chat_say(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    gy_cli_flush();
}

/* What a server or a file said comes through here too. */
void gy_chat_complain(const gy_err *err) {
    gy_str s = {0};
    gy_chat_clean_line(err->msg, strlen(err->msg), &s);
    fprintf(stderr, "gyre: %s\n", gy_str_z(&s));
    gy_str_free(&s);
}

/* ---- the server -------------------------------------------------------------------------------------------------- */

static gy_status open_client(gy_chat_session *c, gy_err *err) {
    gy_oai_opts o;
    const char *key = NULL;
    GY_TRY(gy_chat_args_key(c->a, err, &key));
    gy_oai_opts_default(&o);
    o.url = c->local ? gy_chat_local_url(c->local) : c->a->chat.url;
    o.api_key = c->local ? gy_chat_local_key(c->local) : key;
    o.cacert = c->a->chat.cacert;
    o.insecure = c->a->chat.insecure;
    o.silence_timeout_s = 0; /* a long prompt may take its time; Ctrl-C ends the wait */
    o.max_conn = 1;
    return gy_oai_open(&o, err, &c->client);
}

static const gy_jv *find_model(const gy_jv *list, const char *name) {
    for (size_t i = 0; name && i < gy_jv_len(list); i++)
        if (gy_jv_is_str(gy_jv_get(gy_jv_at(list, i), "id"), name)) return gy_jv_at(list, i);
    return name ? NULL : gy_jv_at(list, 0);
}

/* max_model_len is vLLM's and gyre's word, meta.n_ctx llama.cpp's. */
static gy_status read_models(gy_chat_session *c, const gy_str *body, gy_err *err) {
    gy_json *doc = NULL;
    GY_TRY(gy_json_parse(gy_str_z(body), body->len, NULL, err, &doc));
    const gy_jv *one = find_model(gy_jv_get(gy_json_root(doc), "data"), c->a->chat.model);
    const char *name = c->a->chat.model ? c->a->chat.model : gy_jv_str(gy_jv_get(one, "id"), NULL);
    c->max_len = gy_jv_int(gy_jv_get(one, "max_model_len"), 0);
    if (!c->max_len) c->max_len = gy_jv_int(gy_jv_get(gy_jv_get(one, "meta"), "n_ctx"), 0);
    if (!c->most) c->most = (int32_t)gy_jv_int(gy_jv_get(one, "max_loops"), 0);
    c->model = name ? gy_mem_strdup(GY_MEM_CLI, name) : NULL;
    gy_status st = GY_OK;
    if (!name) st = gy_err_set(err, GY_E_PEER, "the server lists no model: name one with --model");
    if (name && !c->model) st = gy_err_set(err, GY_E_NOMEM, "no memory");
    gy_json_free(doc);
    return st;
}

static gy_status find_out(gy_chat_session *c, gy_err *err) {
    gy_str body = {0};
    int status = 0;
    gy_status st = gy_oai_fetch(c->client, "/v1/models", err, &body, &status);
    if (st >= 0) st = read_models(c, &body, err);
    gy_str_free(&body);
    if (st >= 0 || !c->a->chat.model || (status != 404 && status != 405 && status != 501)) {
        if (st < 0 && (status == 401 || status == 403)) err->status = GY_E_ARG; /* the key is wrong */
        return st;
    }
    c->model = gy_mem_strdup(GY_MEM_CLI, c->a->chat.model); /* a server without that route */
    return c->model ? GY_OK : gy_err_set(err, GY_E_NOMEM, "no memory");
}

static gy_status connect_to(gy_chat_session *c, gy_err *err) {
    if (!c->a->chat.url) {
        const char *dir = c->a->n_pos ? c->a->pos[0] : gy_cli_find_shipped(c->a->arena, err);
        if (!dir) return err->status;
        gy_cli_note_synthetic(dir);
        GY_TRY(gy_chat_local_open(c->a, dir, err, &c->local));
        c->most = gy_chat_local_loops(c->local);
    }
    GY_TRY(gy_chat_signals_begin(err));
    c->has_signals = 1;
    gy_status st = open_client(c, err);
    if (st < 0) return st;
    gy_chat_signals_client(c->client);
    return find_out(c, err);
}

/* ---- turns ------------------------------------------------------------------------------------------------------- */

static void on_line(gy_chat_session *c, const gy_str *line) {
    gy_chat_fed fed = gy_chat_lines_feed(&c->lines, gy_str_z(line), line->len);
    gy_err err = {.status = GY_E_NOMEM, .msg = "no memory for the message"};
    c->n_break = 0;
    if (c->lines.text.failed) {
        gy_chat_complain(&err);
        gy_str_free(&c->lines.text);
        c->lines = (gy_chat_lines){.state = GY_CHAT_FRESH};
        return;
    }
    if (fed == GY_CHAT_MORE || fed == GY_CHAT_NOTHING) return;
    gy_chat_term_remember(c->term, gy_str_z(&c->lines.text));
    if (fed == GY_CHAT_COMMAND)
        gy_chat_obey(c, c->lines.text.data, c->lines.text.len);
    else
        gy_chat_ask_text(c, c->lines.text.data, c->lines.text.len);
}

static void on_break(gy_chat_session *c, gy_chat_typed typed) {
    int begun = c->lines.state != GY_CHAT_FRESH;
    gy_chat_lines_drop(&c->lines);
    if (typed == GY_CHAT_BREAK && !begun && c->n_break++) gy_chat_say("/quit or Ctrl-D ends the program\n");
    if (typed == GY_CHAT_RESET || begun) c->n_break = 1;
}

static void talk(gy_chat_session *c) {
    gy_str line = {0};
    gy_chat_say("/help lists commands; Ctrl-D ends\n");
    while (!c->is_over) {
        const char *prompt = c->lines.state == GY_CHAT_FRESH ? "> " : "... ";
        gy_chat_typed typed = gy_chat_term_read(c->term, prompt, &line);
        if (typed == GY_CHAT_LINE)
            on_line(c, &line);
        else if (typed == GY_CHAT_BREAK || typed == GY_CHAT_RESET)
            on_break(c, typed);
        else
            break;
        if (gy_cli_flush()) break;
    }
    if (gy_chat_is_ending()) c->rc = GY_CLI_FAILED;
    gy_str_free(&line);
}

/* One turn a line; the first that fails ends it, since what follows may build on it. */
static void pipe_turns(gy_chat_session *c) {
    gy_str line = {0};
    gy_chat_typed typed = GY_CHAT_EOF;
    while (!c->rc && !c->is_over && (typed = gy_chat_term_read(c->term, "", &line)) == GY_CHAT_LINE)
        if (line.len) gy_chat_ask_text(c, line.data, line.len);
    if (typed == GY_CHAT_ENDING) c->rc = GY_CLI_FAILED;
    gy_str_free(&line);
}

static void given_turns(gy_chat_session *c) {
    const gy_opt_list *l = &c->a->chat.messages;
    for (size_t i = 0; i < l->n && !c->rc && !c->is_over; i++) gy_chat_ask_text(c, l->items[i].text, l->items[i].len);
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

static void read_environment(gy_chat_env *e) {
    *e = (gy_chat_env){.home = getenv("HOME"),
                       .state_home = getenv("XDG_STATE_HOME"),
                       .term = getenv("TERM"),
                       .colorterm = getenv("COLORTERM"),
                       .no_color = getenv("NO_COLOR")};
    /* Widths and the editor's characters; numbers stay as they are. */
    if (!setlocale(LC_CTYPE, "") || strcmp(nl_langinfo(CODESET), "UTF-8") != 0) setlocale(LC_CTYPE, "C.UTF-8");
}

static void set_view(gy_chat_session *c) {
    const char *term = c->env.term;
    int smart = term && term[0] && strcmp(term, "dumb") != 0, plain = c->env.no_color && c->env.no_color[0];
    c->view.is_term = isatty(STDOUT_FILENO);
    c->view.can_move = c->view.is_term && smart;
    c->view.can_style = c->view.is_term && smart && !plain;
    c->view.colors = gy_chat_colors_of(term, c->env.colorterm, c->env.no_color);
    c->view.depth = (gy_chat_depth_mode)c->a->chat.depth;
    c->interactive = c->view.is_term && isatty(STDIN_FILENO) && !c->a->chat.messages.n;
}

static gy_status open_terminal(gy_chat_session *c, gy_err *err) {
    gy_str path = {0};
    const char *history = c->a->chat.history;
    gy_err why;
    if (history && !strcmp(history, "none")) {
        history = NULL;
    } else if (!history && c->interactive) {
        if (gy_chat_history_path(c->env.home, c->env.state_home, &why, &path) >= 0)
            history = path.data;
        else
            gy_cli_note("the history is not kept: %s", why.msg);
    }
    gy_status st = gy_chat_term_open(!c->interactive, history, err, &c->term);
    gy_str_free(&path);
    return st;
}

static gy_status begin(gy_chat_session *c, gy_err *err) {
    GY_TRY(gy_chat_args_check(c->a, err));
    GY_TRY(gy_chat_args_apply(c->a, err, &c->talk));
    if (c->a->chat.load) GY_TRY(gy_chat_load_file(c, c->a->chat.load, err));
    GY_TRY(connect_to(c, err));
    return open_terminal(c, err);
}

static void end(gy_chat_session *c) {
    gy_chat_term_close(c->term);
    gy_chat_signals_client(NULL);
    if (c->has_signals) gy_chat_signals_end();
    gy_oai_close(c->client);
    gy_chat_local_close(c->local);
    gy_chat_lines_fini(&c->lines);
    gy_chat_talk_fini(&c->talk);
    gy_str_free(&c->question);
    gy_mem_free(c->model);
}

int gy_cmd_chat(const gy_args *a) {
    gy_chat_session c = {.a = a, .used = -1};
    gy_err err = {0};
    read_environment(&c.env);
    set_view(&c);
    if (begin(&c, &err) < 0)
        c.rc = gy_cli_fail(&err);
    else if (a->chat.messages.n)
        given_turns(&c);
    else if (c.interactive)
        talk(&c);
    else
        pipe_turns(&c);
    end(&c);
    return c.rc;
}
