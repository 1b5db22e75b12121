/* See cli_chat_line.h. */
#include "cli/cli_chat_line.h"

#include "cli/cli_opts.h"

#include <string.h>

/* ---- lines to a message ------------------------------------------------------------------------------------------ */

static const char QUOTES[] = "\"\"\"";
enum { N_QUOTES = 3 };

static int begins_quoted(const char *s, size_t n) {
    return n >= N_QUOTES && !memcmp(s, QUOTES, N_QUOTES);
}

static int ends_quoted(const char *s, size_t n) {
    return n >= N_QUOTES && !memcmp(s + n - N_QUOTES, QUOTES, N_QUOTES);
}

/* An even number of backslashes is that many; an odd one goes on. */
static int goes_on(const char *s, size_t n) {
    size_t k = 0;
    while (k < n && s[n - 1 - k] == '\\') k++;
    return k % 2 == 1;
}

static gy_chat_fed feed_quoted(gy_chat_lines *l, const char *s, size_t n) {
    if (!ends_quoted(s, n)) {
        gy_str_append(&l->text, s, n);
        gy_str_putc(&l->text, '\n');
        return GY_CHAT_MORE;
    }
    gy_str_append(&l->text, s, n - N_QUOTES);
    if (n == N_QUOTES && l->text.len && l->text.data[l->text.len - 1] == '\n') l->text.data[--l->text.len] = '\0';
    l->state = GY_CHAT_FRESH;
    return l->text.len ? GY_CHAT_TEXT : GY_CHAT_NOTHING;
}

static gy_chat_fed feed_joined(gy_chat_lines *l, const char *s, size_t n) {
    if (goes_on(s, n)) {
        gy_str_append(&l->text, s, n - 1);
        gy_str_putc(&l->text, '\n');
        l->state = GY_CHAT_JOINED;
        return GY_CHAT_MORE;
    }
    gy_str_append(&l->text, s, n);
    l->state = GY_CHAT_FRESH;
    return l->text.len ? GY_CHAT_TEXT : GY_CHAT_NOTHING;
}

static int is_blank(const char *s, size_t n) {
    size_t i = 0;
    while (i < n && strchr(" \t\r\n", s[i])) i++;
    return i == n;
}

gy_chat_fed gy_chat_lines_feed(gy_chat_lines *l, const char *s, size_t n) {
    if (l->state == GY_CHAT_QUOTED) return feed_quoted(l, s, n);
    if (l->state == GY_CHAT_JOINED) return feed_joined(l, s, n);
    gy_str_clear(&l->text);
    if (begins_quoted(s, n)) {
        l->state = GY_CHAT_QUOTED;
        if (n == N_QUOTES) return GY_CHAT_MORE;
        return feed_quoted(l, s + N_QUOTES, n - N_QUOTES);
    }
    if (is_blank(s, n)) return GY_CHAT_NOTHING;
    if (s[0] == '/' && (n < 2 || s[1] != '/')) {
        gy_str_append(&l->text, s, n);
        return GY_CHAT_COMMAND;
    }
    int skip = s[0] == '/';
    return feed_joined(l, s + skip, n - (size_t)skip);
}

void gy_chat_lines_drop(gy_chat_lines *l) {
    gy_str_clear(&l->text);
    l->state = GY_CHAT_FRESH;
}

void gy_chat_lines_fini(gy_chat_lines *l) {
    gy_str_free(&l->text);
}

/* ---- commands ---------------------------------------------------------------------------------------------------- */

typedef struct verb_row {
    const char *name;
    gy_chat_verb verb;
    int min_arg, max_arg;     /* 0 or 1: none, one */
    const char *usage, *help; /* NULL: another name of the row before */
} verb_row;

static const verb_row verbs[] = {
    {"help", GY_CHAT_HELP, 0, 0, "", "this text"},
    {"?", GY_CHAT_HELP, 0, 0, NULL, NULL},
    {"quit", GY_CHAT_QUIT, 0, 0, "", "end (also Ctrl-D)"},
    {"exit", GY_CHAT_QUIT, 0, 0, NULL, NULL},
    {"bye", GY_CHAT_QUIT, 0, 0, NULL, NULL},
    {"clear", GY_CHAT_CLEAR, 0, 0, "", "forget the conversation; the system text stays"},
    {"system", GY_CHAT_SYSTEM, 0, 1, "[TEXT]", "the text that goes before all messages; without TEXT: none"},
    {"retry", GY_CHAT_RETRY, 0, 0, "", "ask the last message again"},
    {"undo", GY_CHAT_UNDO, 0, 0, "", "forget the last message and its answer"},
    {"trim", GY_CHAT_TRIM, 0, 1, "[N]", "forget the oldest N messages (1) and their answers"},
    {"save", GY_CHAT_SAVE, 1, 1, "FILE", "write the conversation as JSON"},
    {"load", GY_CHAT_LOAD, 1, 1, "FILE", "go on with a conversation that was saved"},
    {"set", GY_CHAT_SET, 1, 1, "NAME [VALUE]",
     "a field of the requests: temperature, top_p, max_tokens, exit, seed, "
     "enable_thinking, ...; without VALUE: the server's default"},
    {"show", GY_CHAT_SHOW, 0, 0, "", "model, settings, tokens used, context left"},
    {"stats", GY_CHAT_STATS, 0, 0, "", "tokens, times and depths so far"},
    {"depth", GY_CHAT_DEPTH, 1, 1, "none|line|color", "how the loops of tokens are shown"},
    {"raw", GY_CHAT_RAW, 0, 0, "", "switch between messages and plain text that the model continues"},
};
enum { N_VERBS = sizeof verbs / sizeof *verbs };

static gy_status unknown_verb(const char *name, size_t n, gy_err *err) {
    const char *names[N_VERBS];
    char word[24];
    gy_str shown = {0};
    size_t k = n < sizeof word ? n : sizeof word - 1;
    memcpy(word, name, k);
    word[k] = '\0';
    for (size_t i = 0; i < N_VERBS; i++) names[i] = verbs[i].name;
    const char *near = n < sizeof word ? gy_suggest(word, names, N_VERBS) : NULL;
    gy_utf8_sanitize(word, k, &shown);
    gy_err_set(err, GY_E_ARG, "unknown command /%s%s%s%s (a text that begins with a slash: two of them)",
               gy_str_z(&shown), near ? "; did you mean /" : "; /help lists them", near ? near : "", near ? "?" : "");
    gy_str_free(&shown);
    return err->status;
}

gy_status gy_chat_command_parse(const char *text, size_t n, gy_err *err, gy_chat_command *out) {
    size_t end = 1;
    while (end < n && !strchr(" \t\n", text[end])) end++;
    const verb_row *v = NULL;
    for (size_t i = 0; i < N_VERBS; i++)
        if (strlen(verbs[i].name) == end - 1 && !memcmp(verbs[i].name, text + 1, end - 1)) v = &verbs[i];
    if (!v) return unknown_verb(text + 1, end - 1, err);
    while (end < n && strchr(" \t\n", text[end])) end++;
    while (n > end && strchr(" \t\n", text[n - 1])) n--;
    if (n > end && !v->max_arg) return gy_err_set(err, GY_E_ARG, "/%s: takes nothing behind it", v->name);
    if (n == end && v->min_arg) return gy_err_set(err, GY_E_ARG, "/%s: expected /%s %s", v->name, v->name, v->usage);
    *out = (gy_chat_command){.verb = v->verb, .arg = text + end, .n_arg = n - end};
    return GY_OK;
}

void gy_chat_command_help(gy_str *out) {
    for (size_t i = 0; i < N_VERBS; i++) {
        if (!verbs[i].help) continue;
        size_t start = out->len;
        gy_str_printf(out, "  /%s %s", verbs[i].name, verbs[i].usage);
        while (out->len - start < 26) gy_str_putc(out, ' ');
        gy_str_printf(out, "%s\n", verbs[i].help);
    }
    gy_str_puts(out, "  \"\"\"                       begins and ends a text of several lines; or end a line with \\\n"
                     "  //text                    a text that begins with a slash\n"
                     "  Ctrl-C                    stops an answer; clears the line\n");
}

/* ---- the history file -------------------------------------------------------------------------------------------- */

void gy_chat_history_escape(const char *s, size_t n, gy_str *out) {
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '\n')
            gy_str_puts(out, "\\n");
        else if (s[i] == '\\')
            gy_str_puts(out, "\\\\");
        else
            gy_str_putc(out, s[i]);
    }
}

void gy_chat_history_unescape(const char *s, size_t n, gy_str *out) {
    for (size_t i = 0; i < n; i++) {
        if (s[i] != '\\' || i + 1 == n) {
            gy_str_putc(out, s[i]);
        } else {
            i++;
            gy_str_putc(out, (char)(s[i] == 'n' ? '\n' : s[i]));
        }
    }
}
