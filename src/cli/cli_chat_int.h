/* Between the files of the conversation: cli_chat.c (life, lines, the server), cli_chat_turn.c (a question and its
 * answer), cli_chat_do.c (commands). Single thread.
 *
 * A question stays until it has an answer: what fails, or is stopped before it says anything, can be asked again
 * (/retry).
 */
#ifndef GY_CLI_CLI_CHAT_INT_H
#define GY_CLI_CLI_CHAT_INT_H

#include "cli/cli_args.h"
#include "cli/cli_chat_ask.h"
#include "cli/cli_chat_line.h"
#include "cli/cli_chat_local.h"
#include "cli/cli_chat_term.h"

typedef struct gy_chat_env {
    const char *home, *state_home, *term, *colorterm, *no_color;
} gy_chat_env;

typedef struct gy_chat_session {
    const gy_args *a;
    gy_chat_env env;
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
} gy_chat_session;

/* cli_chat.c */
void gy_chat_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void gy_chat_complain(const gy_err *err); /* on stderr, made fit for a terminal */

/* cli_chat_turn.c */
void gy_chat_answer(gy_chat_session *c); /* asks c->question */
void gy_chat_ask_text(gy_chat_session *c, const char *text, size_t n);

/* cli_chat_do.c */
void gy_chat_obey(gy_chat_session *c, const char *text, size_t n); /* a line that begins with a slash */
gy_status gy_chat_load_file(gy_chat_session *c, const char *path, gy_err *err);

#endif
