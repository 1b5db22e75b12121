/* The commands of a conversation (/help, /set, /save ...): one function each. */
#include "cli/cli_chat_int.h"

#include "base/file.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char *path_of(const gy_chat_session *c, const char *arg, size_t n) {
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

static gy_status save(gy_chat_session *c, const char *path, gy_err *err) {
    gy_str s = {0};
    gy_chat_talk_write(&c->talk, &s);
    gy_status st = s.failed ? gy_err_set(err, GY_E_NOMEM, "no memory for the file") : write_file(path, &s, err);
    gy_str_free(&s);
    if (st >= 0) gy_chat_say("%zu messages with answers are in %s\n", c->talk.turns.len, path);
    return st;
}

gy_status gy_chat_load_file(gy_chat_session *c, const char *path, gy_err *err) {
    gy_str s = {0}, question = {0};
    gy_status st = gy_file_read(path, (size_t)64 << 20, err, &s);
    if (st >= 0 && (st = gy_chat_talk_read(&c->talk, gy_str_z(&s), s.len, err, &question)) < 0)
        gy_err_prefix(err, "%s", path);
    if (st >= 0) {
        gy_str_free(&c->question);
        c->question = question;
        c->used = -1;
        if (c->interactive)
            gy_chat_say("%zu messages with answers%s\n", c->talk.turns.len,
                        question.len ? ", and one without: /retry asks it" : "");
    } else {
        gy_str_free(&question);
    }
    gy_str_free(&s);
    return st;
}

static gy_status with_path(gy_chat_session *c, const gy_chat_command *k, gy_err *err) {
    char *path = path_of(c, k->arg, k->n_arg);
    if (!path) return gy_err_set(err, GY_E_NOMEM, "no memory");
    gy_status st = k->verb == GY_CHAT_SAVE ? save(c, path, err) : gy_chat_load_file(c, path, err);
    gy_mem_free(path);
    return st;
}

static gy_status set(gy_chat_session *c, const gy_chat_command *k, gy_err *err) {
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

static gy_status retry(gy_chat_session *c, gy_err *err) {
    if (!c->question.len && gy_chat_talk_undo(&c->talk, &c->question))
        return gy_err_set(err, GY_E_ARG, "/retry: there is no message yet");
    gy_chat_answer(c);
    return GY_OK;
}

static gy_status undo(gy_chat_session *c, gy_err *err) {
    int had = c->question.len > 0;
    if (!had && gy_chat_talk_undo(&c->talk, &c->question))
        return gy_err_set(err, GY_E_ARG, "/undo: there is no message yet");
    gy_str_clear(&c->question);
    c->used = -1;
    gy_chat_say("%zu messages are left\n", c->talk.turns.len);
    return GY_OK;
}

static gy_status trim(gy_chat_session *c, const gy_chat_command *k, gy_err *err) {
    char num[24];
    int64_t n = 1;
    snprintf(num, sizeof num, "%.*s", (int)(k->n_arg < 20 ? k->n_arg : 20), k->arg);
    if (k->n_arg && (gy_parse_i64(num, &n) || n < 1))
        return gy_err_set(err, GY_E_ARG, "/trim: found '%s', expected how many messages", num);
    gy_chat_talk_trim(&c->talk, (size_t)n);
    c->used = -1;
    gy_chat_say("%zu messages are left%s\n", c->talk.turns.len,
                c->question.len ? "; /retry asks the last one again" : "");
    return GY_OK;
}

static gy_status set_depth(gy_chat_session *c, const gy_chat_command *k, gy_err *err) {
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

static void show(gy_chat_session *c) {
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

static void stats(gy_chat_session *c) {
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

static void clear(gy_chat_session *c) {
    gy_chat_talk_trim(&c->talk, c->talk.turns.len);
    gy_str_clear(&c->question);
    c->used = c->max_len ? 0 : -1;
    gy_chat_say("the conversation is empty\n");
}

static void help(void) {
    gy_str s = {0};
    gy_chat_command_help(&s);
    gy_cli_put_str(&s);
    gy_str_free(&s);
}

static gy_status set_system(gy_chat_session *c, const gy_chat_command *k, gy_err *err) {
    if (c->talk.raw) return gy_err_set(err, GY_E_ARG, "/system: has no meaning in raw mode");
    gy_str_clear(&c->talk.system);
    gy_str_append(&c->talk.system, k->arg, k->n_arg);
    return GY_OK;
}

static void toggle_raw(gy_chat_session *c) {
    c->talk.raw = !c->talk.raw;
    gy_chat_say("%s\n", c->talk.raw ? "raw: the model continues the text, as it stands"
                                    : "messages, through the chat template");
}

static gy_status obey(gy_chat_session *c, const gy_chat_command *k, gy_err *err) {
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

void gy_chat_obey(gy_chat_session *c, const char *text, size_t n) {
    gy_chat_command k;
    gy_err err = {0};
    if (gy_chat_command_parse(text, n, &err, &k) < 0 || obey(c, &k, &err) < 0) gy_chat_complain(&err);
}
