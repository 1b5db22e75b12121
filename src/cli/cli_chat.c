/* gyre chat: a conversation on a terminal, or one turn a line in a pipe. One path for all servers: a local model is a
 * server too (cli_chat_local.h). What the environment says (HOME, TERM, NO_COLOR ...) is read here, once, and nowhere
 * else.
 *
 * A question stays until it has an answer: what fails, or is stopped before it says anything, can be asked again
 * (/retry).
 */
#include "base/clock.h"
#include "base/file.h"
#include "cli/cli.h"
#include "cli/cli_chat_args.h"
#include "cli/cli_chat_ask.h"
#include "cli/cli_chat_line.h"
#include "cli/cli_chat_local.h"
#include "cli/cli_chat_signal.h"
#include "cli/cli_chat_term.h"
#include "cli/cli_model.h"

#include <errno.h>
#include <langinfo.h>
#include <locale.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct chat_env {
    const char *home, *state_home, *term, *colorterm, *no_color;
} chat_env;

typedef struct chat {
    const gy_args *a;
    chat_env env;
    gy_chat_local *local; /* NULL: --url */
    gy_oai *client;
    char *model;     /* its name there */
    int32_t most;    /* loops of the model; 0: unknown */
    int64_t max_len; /* context in tokens; 0: unknown */
    gy_chat_term *term;
    gy_chat_talk talk;
    gy_chat_view view;
    gy_chat_lines lines;
    gy_str question; /* waits for its answer; empty: none */
    int interactive, has_signals;
    int rc; /* exit code so far */
    int is_over;
    int n_break; /* Ctrl-C in a row */
    /* so far */
    int64_t n_answer, n_prompt, n_output, n_cached, used; /* used: tokens of the conversation; -1: unknown */
    double sum_ttft, sum_s;
    gy_chat_depths depths;
} chat;

static void say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    gy_cli_flush();
}

/* On stderr; what a server or a file said comes through here too. */
static void complain(const chat *c, const gy_err *err) {
    gy_str s = {0};
    (void)c;
    gy_chat_clean_line(err->msg, strlen(err->msg), &s);
    fprintf(stderr, "gyre: %s\n", gy_str_z(&s));
    gy_str_free(&s);
}

/* ---- the server -------------------------------------------------------------------------------------------------- */

static gy_status open_client(chat *c, gy_err *err) {
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
static gy_status read_models(chat *c, const gy_str *body, gy_err *err) {
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

static gy_status find_out(chat *c, gy_err *err) {
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

static gy_status connect_to(chat *c, gy_err *err) {
    if (!c->a->chat.url) {
        const char *dir = c->a->n_pos ? c->a->pos[0] : gy_cli_find_demo(c->a->arena, err);
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

/* ---- an answer ----------------------------------------------------------------------------------------------------
 */

static int is_usage(const gy_chat_reply *r) {
    int s = r->http_status;
    return r->end == GY_OAI_HTTP && s >= 400 && s < 500 && s != 408 && s != 429;
}

static void hint(const chat *c, gy_chat_why why) {
    if (why == GY_CHAT_WHY_CONTEXT && c->interactive)
        fprintf(
            stderr,
            "gyre: the conversation is too long for the model's context. /trim forgets its oldest message (/save FILE "
            "keeps all), /clear everything; /retry then asks again.\n");
    if (why != GY_CHAT_WHY_TEMPLATE) return;
    if (c->interactive)
        fprintf(stderr, "gyre: /raw lets the model continue plain text, /retry then asks again%s\n",
                c->local ? "; or start with --chat-template FILE." : ".");
    else
        fprintf(stderr, "gyre: --raw lets the model continue plain text%s\n",
                c->local ? "; so does gyre run. Or give a --chat-template FILE." : ".");
}

static void tell_failure(chat *c, const gy_chat_reply *r) {
    gy_err why;
    if (c->local && gy_chat_local_is_gone(c->local, &why)) {
        complain(c, &why);
        c->is_over = 1;
        c->rc = GY_CLI_FAILED;
        return;
    }
    fprintf(stderr, "gyre: %s\n", r->msg.len ? gy_str_z(&r->msg) : gy_oai_end_name(r->end));
    hint(c, r->why);
    if (!c->interactive) c->rc = is_usage(r) ? GY_CLI_USAGE : GY_CLI_FAILED;
}

static void count(chat *c, const gy_chat_reply *r) {
    int64_t out = r->n_output >= 0 ? r->n_output : r->n_seen;
    if (!r->first_ns) return;
    c->n_answer++;
    c->n_output += out;
    if (r->n_prompt > 0) c->n_prompt += r->n_prompt;
    if (r->n_cached > 0) c->n_cached += r->n_cached;
    c->sum_ttft += gy_chat_reply_ttft(r);
    c->sum_s += (double)(r->last_ns - r->first_ns) / 1e9;
    c->used = r->n_prompt >= 0 ? r->n_prompt + out : -1;
    if (r->depths.deepest > c->most) c->most = r->depths.deepest;
    gy_chat_depths_merge(&c->depths, &r->depths);
}

static void warn_of_context(const chat *c) {
    int64_t left = c->max_len - c->used;
    if (c->interactive && c->max_len && c->used > 0 && left < c->max_len / 10)
        gy_cli_note("%lld of %lld tokens of context are left; /trim forgets the oldest message",
                    (long long)(left < 0 ? 0 : left), (long long)c->max_len);
}

/* The question and what came of its answer join the conversation; nothing came: it waits for /retry. */
static gy_status keep(chat *c, gy_chat_reply *r, gy_err *err) {
    if (!r->answer.len && r->end != GY_OAI_DONE) return GY_OK;
    gy_chat_turn turn = {
        .question = c->question, .answer = r->answer, .reasoning = r->reasoning, .stopped = r->end != GY_OAI_DONE};
    c->question = r->answer = r->reasoning = (gy_str){0};
    return gy_chat_talk_add(&c->talk, &turn, err);
}

static void answer(chat *c) {
    gy_chat_reply r;
    gy_err err = {0};
    if (c->interactive) gy_chat_term_mute(c->term, 1);
    c->view.width = gy_chat_term_width();
    gy_status st = gy_chat_ask(c->client, &c->talk, c->model, &c->question, c->most, &c->view, &err, &r);
    if (c->interactive) gy_chat_term_mute(c->term, 0);
    if (st >= 0) {
        count(c, &r);
        if (r.end != GY_OAI_DONE && r.end != GY_OAI_CANCELLED) tell_failure(c, &r);
        if (r.end == GY_OAI_CANCELLED && !c->interactive) c->rc = GY_CLI_FAILED;
        st = keep(c, &r, &err);
        warn_of_context(c);
    }
    gy_chat_reply_fini(&r);
    if (st >= 0) return;
    complain(c, &err);
    c->is_over = 1;
    c->rc = GY_CLI_FAILED;
}

static void ask(chat *c, const char *text, size_t n) {
    gy_str_clear(&c->question);
    gy_str_append(&c->question, text, n);
    if (!c->question.failed) {
        answer(c);
        return;
    }
    gy_err err = {.status = GY_E_NOMEM, .msg = "no memory for the message"};
    complain(c, &err);
    c->is_over = 1;
    c->rc = GY_CLI_FAILED;
}

/* ---- commands ---------------------------------------------------------------------------------------------------- */

static char *path_of(const chat *c, const char *arg, size_t n) {
    gy_str s = {0};
    if (n > 1 && arg[0] == '~' && arg[1] == '/' && c->env.home)
        gy_str_puts(&s, c->env.home);
    else
        gy_str_append(&s, arg, n ? 1 : 0);
    gy_str_append(&s, arg + 1, n ? n - 1 : 0);
    char *z = s.failed ? NULL : gy_mem_strdup(GY_MEM_CLI, gy_str_z(&s));
    gy_str_free(&s);
    return z;
}

static gy_status write_file(const char *path, const gy_str *text, gy_err *err) {
    gy_str tmp = {0};
    gy_str_printf(&tmp, "%s.%d.tmp", path, (int)getpid());
    FILE *f = tmp.failed ? NULL : fopen(tmp.data, "wbxe");
    int ok = f && fwrite(text->data, 1, text->len, f) == text->len, why = errno;
    if (f && fclose(f)) ok = 0;
    if (ok && rename(tmp.data, path)) {
        ok = 0;
        why = errno;
    }
    if (!ok && f) unlink(tmp.data);
    gy_str_free(&tmp);
    return ok ? GY_OK : gy_err_set(err, GY_E_IO, "%s: cannot be written: %s", path, strerrordesc_np(why));
}

static gy_status save(chat *c, const char *path, gy_err *err) {
    gy_str s = {0};
    gy_chat_talk_write(&c->talk, &s);
    gy_status st = s.failed ? gy_err_set(err, GY_E_NOMEM, "no memory for the file") : write_file(path, &s, err);
    gy_str_free(&s);
    if (st >= 0) say("%zu messages with answers are in %s\n", c->talk.turns.len, path);
    return st;
}

static gy_status load(chat *c, const char *path, gy_err *err) {
    gy_str s = {0}, question = {0};
    gy_status st = gy_file_read(path, (size_t)64 << 20, err, &s);
    if (st >= 0 && (st = gy_chat_talk_read(&c->talk, gy_str_z(&s), s.len, err, &question)) < 0)
        gy_err_prefix(err, "%s", path);
    if (st >= 0) {
        gy_str_free(&c->question);
        c->question = question;
        c->used = -1;
        if (c->interactive)
            say("%zu messages with answers%s\n", c->talk.turns.len,
                question.len ? ", and one without: /retry asks it" : "");
    } else {
        gy_str_free(&question);
    }
    gy_str_free(&s);
    return st;
}

static gy_status with_path(chat *c, const gy_chat_command *k, gy_err *err) {
    char *path = path_of(c, k->arg, k->n_arg);
    if (!path) return gy_err_set(err, GY_E_NOMEM, "no memory");
    gy_status st = k->verb == GY_CHAT_SAVE ? save(c, path, err) : load(c, path, err);
    gy_mem_free(path);
    return st;
}

static gy_status set(chat *c, const gy_chat_command *k, gy_err *err) {
    char name[64];
    int known = 0;
    size_t n = 0;
    while (n < k->n_arg && !strchr(" \t=", k->arg[n])) n++;
    if (!n || n >= sizeof name) return gy_err_set(err, GY_E_ARG, "/set: expected /set NAME VALUE");
    memcpy(name, k->arg, n);
    name[n] = '\0';
    size_t at = n;
    while (at < k->n_arg && strchr(" \t=", k->arg[at])) at++;
    GY_TRY(gy_chat_set(&c->talk, name, k->arg + at, k->n_arg - at, err, &known));
    if (!known) gy_cli_note("%s is no setting that gyre knows: it is sent as it stands", name);
    return GY_OK;
}

static gy_status retry(chat *c, gy_err *err) {
    if (!c->question.len && gy_chat_talk_undo(&c->talk, &c->question))
        return gy_err_set(err, GY_E_ARG, "/retry: there is no message yet");
    answer(c);
    return GY_OK;
}

static gy_status undo(chat *c, gy_err *err) {
    int had = c->question.len > 0;
    if (!had && gy_chat_talk_undo(&c->talk, &c->question))
        return gy_err_set(err, GY_E_ARG, "/undo: there is no message yet");
    gy_str_clear(&c->question);
    c->used = -1;
    say("%zu messages are left\n", c->talk.turns.len);
    return GY_OK;
}

static gy_status trim(chat *c, const gy_chat_command *k, gy_err *err) {
    char num[24];
    int64_t n = 1;
    snprintf(num, sizeof num, "%.*s", (int)(k->n_arg < 20 ? k->n_arg : 20), k->arg);
    if (k->n_arg && (gy_parse_i64(num, &n) || n < 1))
        return gy_err_set(err, GY_E_ARG, "/trim: found '%s', expected how many messages", num);
    gy_chat_talk_trim(&c->talk, (size_t)n);
    c->used = -1;
    say("%zu messages are left%s\n", c->talk.turns.len, c->question.len ? "; /retry asks the last one again" : "");
    return GY_OK;
}

static gy_status set_depth(chat *c, const gy_chat_command *k, gy_err *err) {
    int i = gy_opt_word_index("line|none|color", k->arg, k->n_arg);
    if (i < 0) return gy_err_set(err, GY_E_ARG, "/depth: expected none, line or color");
    c->view.depth = (gy_chat_depth_mode)i;
    if (i == GY_CHAT_DEPTH_COLOR && c->view.colors == GY_CHAT_PLAIN)
        gy_cli_note("this terminal has no 256 colours (or NO_COLOR is set): the line alone shows depth");
    return GY_OK;
}

static void put_clean(gy_str *out, const char *label, const char *s, size_t n) {
    gy_str_printf(out, "  %-20s ", label);
    gy_chat_clean_line(s, n, out);
    gy_str_putc(out, '\n');
}

static void show(chat *c) {
    gy_str s = {0};
    const char *where = c->local ? c->a->n_pos ? c->a->pos[0] : "the model that comes with gyre" : c->a->chat.url;
    put_clean(&s, "model", c->local ? where : c->model, strlen(c->local ? where : c->model));
    if (!c->local) put_clean(&s, "server", where, strlen(where));
    gy_str_printf(&s, "  %-20s %s\n", "mode", c->talk.raw ? "raw: plain text that the model continues" : "messages");
    if (c->talk.system.len) put_clean(&s, "system", c->talk.system.data, c->talk.system.len);
    gy_str_printf(&s, "  %-20s %zu with answers%s\n", "messages", c->talk.turns.len,
                  c->question.len ? ", one without" : "");
    if (c->used >= 0) gy_str_printf(&s, "  %-20s %lld\n", "tokens used", (long long)c->used);
    if (c->max_len) gy_str_printf(&s, "  %-20s %lld\n", "context", (long long)c->max_len);
    if (c->max_len && c->used >= 0)
        gy_str_printf(&s, "  %-20s %lld\n", "context left",
                      (long long)(c->max_len > c->used ? c->max_len - c->used : 0));
    gy_chat_settings_put(&c->talk, &s);
    gy_cli_put_str(&s);
    gy_str_free(&s);
}

static void stats(chat *c) {
    gy_str s = {0};
    gy_str_printf(&s, "  %-20s %lld\n  %-20s %lld (%lld from the cache)\n  %-20s %lld\n", "answers",
                  (long long)c->n_answer, "prompt tokens", (long long)c->n_prompt, (long long)c->n_cached,
                  "output tokens", (long long)c->n_output);
    if (c->n_answer) gy_str_printf(&s, "  %-20s %.2f s\n", "mean TTFT", c->sum_ttft / (double)c->n_answer);
    if (c->sum_s > 0 && c->n_output > c->n_answer)
        gy_str_printf(&s, "  %-20s %.1f tok/s\n", "mean rate", (double)(c->n_output - c->n_answer) / c->sum_s);
    if (c->depths.n)
        gy_str_printf(&s, "  %-20s %.2f loops a token\n", "mean depth", (double)c->depths.sum / (double)c->depths.n);
    gy_chat_depths_table(&c->depths, 30, &s);
    gy_cli_put_str(&s);
    gy_str_free(&s);
}

static void clear(chat *c) {
    gy_chat_talk_trim(&c->talk, c->talk.turns.len);
    gy_str_clear(&c->question);
    c->used = c->max_len ? 0 : -1;
    say("the conversation is empty\n");
}

static void help(void) {
    gy_str s = {0};
    gy_chat_command_help(&s);
    gy_cli_put_str(&s);
    gy_str_free(&s);
}

static gy_status set_system(chat *c, const gy_chat_command *k, gy_err *err) {
    if (c->talk.raw) return gy_err_set(err, GY_E_ARG, "/system: has no meaning in raw mode");
    gy_str_clear(&c->talk.system);
    gy_str_append(&c->talk.system, k->arg, k->n_arg);
    return GY_OK;
}

static void toggle_raw(chat *c) {
    c->talk.raw = !c->talk.raw;
    say("%s\n",
        c->talk.raw ? "raw: the model continues the text, as it stands" : "messages, through the chat template");
}

static gy_status obey(chat *c, const gy_chat_command *k, gy_err *err) {
    switch (k->verb) {
    case GY_CHAT_HELP:
        help();
        return GY_OK;
    case GY_CHAT_QUIT:
        c->is_over = 1;
        return GY_OK;
    case GY_CHAT_CLEAR:
        clear(c);
        return GY_OK;
    case GY_CHAT_SYSTEM:
        return set_system(c, k, err);
    case GY_CHAT_RETRY:
        return retry(c, err);
    case GY_CHAT_UNDO:
        return undo(c, err);
    case GY_CHAT_TRIM:
        return trim(c, k, err);
    case GY_CHAT_SAVE:
    case GY_CHAT_LOAD:
        return with_path(c, k, err);
    case GY_CHAT_SET:
        return set(c, k, err);
    case GY_CHAT_SHOW:
        show(c);
        return GY_OK;
    case GY_CHAT_STATS:
        stats(c);
        return GY_OK;
    case GY_CHAT_DEPTH:
        return set_depth(c, k, err);
    case GY_CHAT_RAW:
        toggle_raw(c);
        return GY_OK;
    }
    return GY_OK;
}

static void command(chat *c, const char *text, size_t n) {
    gy_chat_command k;
    gy_err err = {0};
    if (gy_chat_command_parse(text, n, &err, &k) < 0 || obey(c, &k, &err) < 0) complain(c, &err);
}

/* ---- turns ------------------------------------------------------------------------------------------------------- */

static void on_line(chat *c, const gy_str *line) {
    gy_chat_fed fed = gy_chat_lines_feed(&c->lines, gy_str_z(line), line->len);
    gy_err err = {.status = GY_E_NOMEM, .msg = "no memory for the message"};
    c->n_break = 0;
    if (c->lines.text.failed) {
        complain(c, &err);
        gy_str_free(&c->lines.text);
        c->lines = (gy_chat_lines){.state = GY_CHAT_FRESH};
        return;
    }
    if (fed == GY_CHAT_MORE || fed == GY_CHAT_NOTHING) return;
    gy_chat_term_remember(c->term, gy_str_z(&c->lines.text));
    if (fed == GY_CHAT_COMMAND)
        command(c, c->lines.text.data, c->lines.text.len);
    else
        ask(c, c->lines.text.data, c->lines.text.len);
}

static void on_break(chat *c, gy_chat_typed typed) {
    int begun = c->lines.state != GY_CHAT_FRESH;
    gy_chat_lines_drop(&c->lines);
    if (typed == GY_CHAT_BREAK && !begun && c->n_break++) say("/quit or Ctrl-D ends the program\n");
    if (typed == GY_CHAT_RESET || begun) c->n_break = 1;
}

static void talk(chat *c) {
    gy_str line = {0};
    say("/help lists commands; Ctrl-D ends\n");
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
static void pipe_turns(chat *c) {
    gy_str line = {0};
    gy_chat_typed typed = GY_CHAT_EOF;
    while (!c->rc && !c->is_over && (typed = gy_chat_term_read(c->term, "", &line)) == GY_CHAT_LINE)
        if (line.len) ask(c, line.data, line.len);
    if (typed == GY_CHAT_ENDING) c->rc = GY_CLI_FAILED;
    gy_str_free(&line);
}

static void given_turns(chat *c) {
    const gy_opt_list *l = &c->a->chat.messages;
    for (size_t i = 0; i < l->n && !c->rc && !c->is_over; i++) ask(c, l->items[i].text, l->items[i].len);
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

static void read_environment(chat_env *e) {
    *e = (chat_env){.home = getenv("HOME"),
                    .state_home = getenv("XDG_STATE_HOME"),
                    .term = getenv("TERM"),
                    .colorterm = getenv("COLORTERM"),
                    .no_color = getenv("NO_COLOR")};
    /* Widths and the editor's characters; numbers stay as they are. */
    if (!setlocale(LC_CTYPE, "") || strcmp(nl_langinfo(CODESET), "UTF-8") != 0) setlocale(LC_CTYPE, "C.UTF-8");
}

static void set_view(chat *c) {
    const char *term = c->env.term;
    int smart = term && term[0] && strcmp(term, "dumb") != 0, plain = c->env.no_color && c->env.no_color[0];
    c->view.is_term = isatty(STDOUT_FILENO);
    c->view.can_move = c->view.is_term && smart;
    c->view.can_style = c->view.is_term && smart && !plain;
    c->view.colors = gy_chat_colors_of(term, c->env.colorterm, c->env.no_color);
    c->view.depth = (gy_chat_depth_mode)c->a->chat.depth;
    c->interactive = c->view.is_term && isatty(STDIN_FILENO) && !c->a->chat.messages.n;
}

static gy_status open_terminal(chat *c, gy_err *err) {
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

static gy_status begin(chat *c, gy_err *err) {
    GY_TRY(gy_chat_args_check(c->a, err));
    GY_TRY(gy_chat_args_apply(c->a, err, &c->talk));
    if (c->a->chat.load) GY_TRY(load(c, c->a->chat.load, err));
    GY_TRY(connect_to(c, err));
    return open_terminal(c, err);
}

static void end(chat *c) {
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
    chat c = {.a = a, .used = -1};
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
