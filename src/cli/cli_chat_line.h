/* What a person types, as pure functions: lines put together to one message, commands, and lines of the history file.
 * Single thread.
 */
#ifndef GY_CLI_CLI_CHAT_LINE_H
#define GY_CLI_CLI_CHAT_LINE_H

#include "base/status.h"
#include "base/str.h"

#include <stddef.h>

/* ---- lines to a message ---- */

typedef enum gy_chat_fed {
    GY_CHAT_MORE,    /* goes on in the next line */
    GY_CHAT_TEXT,    /* lines.text is a message */
    GY_CHAT_COMMAND, /* lines.text is a command, slash included */
    GY_CHAT_NOTHING  /* an empty line */
} gy_chat_fed;

/* Zeroed at start. A line that ends in a backslash goes on in the next. Three quotes at a line's beginning open a block
 * and three at a line's end close it; between them nothing has a meaning. A slash at the beginning is a command, two
 * are a text that begins with one. */
typedef struct gy_chat_lines {
    gy_str text;
    enum { GY_CHAT_FRESH, GY_CHAT_JOINED, GY_CHAT_QUOTED } state;
} gy_chat_lines;

/* line without its LF, but it may hold some (pasted text). text dies with the next feed. */
gy_chat_fed gy_chat_lines_feed(gy_chat_lines *l, const char *line, size_t n);
void gy_chat_lines_drop(gy_chat_lines *l); /* what was begun is forgotten */
void gy_chat_lines_fini(gy_chat_lines *l);

/* ---- commands ---- */

typedef enum gy_chat_verb {
    GY_CHAT_HELP,
    GY_CHAT_QUIT,
    GY_CHAT_CLEAR,
    GY_CHAT_SYSTEM,
    GY_CHAT_RETRY,
    GY_CHAT_UNDO,
    GY_CHAT_TRIM,
    GY_CHAT_SAVE,
    GY_CHAT_LOAD,
    GY_CHAT_SET,
    GY_CHAT_SHOW,
    GY_CHAT_STATS,
    GY_CHAT_DEPTH,
    GY_CHAT_RAW
} gy_chat_verb;

typedef struct gy_chat_command {
    gy_chat_verb verb;
    const char *arg; /* what follows, without blanks around it; "" if nothing; borrowed from the text */
    size_t n_arg;
} gy_chat_command;

/* text: "/verb argument". GY_E_ARG: unknown (with the nearest one), an argument too much or missing. */
gy_status gy_chat_command_parse(const char *text, size_t n, gy_err *err, gy_chat_command *out);
void gy_chat_command_help(gy_str *out);

/* ---- the history file: one entry a line ---- */

void gy_chat_history_escape(const char *s, size_t n, gy_str *out);   /* LF becomes \n, backslash two */
void gy_chat_history_unescape(const char *s, size_t n, gy_str *out); /* of anything: never fails */

#endif
