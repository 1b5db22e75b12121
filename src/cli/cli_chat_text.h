/* What `gyre chat` writes, as pure functions: foreign text made harmless for a terminal, where the cursor is after it,
 * how deep tokens went, and the colours and bars that show it. No terminal and no clock here.
 *
 * Widths come from wcwidth: the caller has set LC_CTYPE to a UTF-8 locale once at start. Single thread.
 */
#ifndef GY_CLI_CLI_CHAT_TEXT_H
#define GY_CLI_CLI_CHAT_TEXT_H

#include "base/str.h"

#include <stddef.h>
#include <stdint.h>

/* ---- foreign text ---- */

typedef struct gy_chat_cleaner {
    int cr; /* a CR was read: CR LF is a line end, another CR is shown */
} gy_chat_cleaner;

/* Appends s. What a terminal would obey, or what turns text round unseen, is spelt instead: ESC becomes "\x1b", U+202E
 * "\u202e"; LF and TAB stay; invalid UTF-8 becomes U+FFFD. A code point must not be split between two calls. */
void gy_chat_clean(gy_chat_cleaner *c, const char *s, size_t n, gy_str *out);
/* For texts that must stay in one line: LF and TAB are spelt too. */
void gy_chat_clean_line(const char *s, size_t n, gy_str *out);

/* Column behind clean text that begins at column col, on a terminal that wraps at width; width itself: the line is full
 * and the next character wraps. *rows_io (may be NULL) grows by the line ends and wraps. */
int gy_chat_column(const char *s, size_t n, int col, int width, int *rows_io);

/* ---- depth ---- */

enum { GY_CHAT_RECENT = 32, GY_CHAT_DEPTHS = 64 };
typedef struct gy_chat_depths {
    int64_t n, sum;
    int32_t deepest;
    int32_t recent[GY_CHAT_RECENT];    /* token i at i % GY_CHAT_RECENT */
    int64_t count[GY_CHAT_DEPTHS + 1]; /* [loops]; the last also holds what is deeper */
} gy_chat_depths;

void gy_chat_depths_add(gy_chat_depths *d, int32_t loops);                /* loops < 1 is not counted */
void gy_chat_depths_merge(gy_chat_depths *into, const gy_chat_depths *d); /* recent stays */
/* One block a token, oldest first: the last `cells` tokens at most. Full height is `most` loops. */
void gy_chat_depths_bar(const gy_chat_depths *d, int32_t most, size_t cells, gy_str *out);
/* A line for each depth that occurred: loops, tokens, a bar of at most `cells`. */
void gy_chat_depths_table(const gy_chat_depths *d, size_t cells, gy_str *out);

typedef struct gy_chat_status {
    const gy_chat_depths *depths; /* n 0: nothing is said of depth */
    int32_t most;                 /* the model's loops; 0: unknown, the deepest seen counts */
    int64_t n_tok;
    double tok_s, ttft_s; /* 0: not known yet */
    const char *note;     /* "stopped"; NULL */
} gy_chat_status;

/* "depth 2.4 of 4 ▁▃▇█▂ | 31 tok/s | TTFT 0.2 s | 57 tokens": at most width columns; what does not fit is left out from
 * the end, and the bar is shortened first. Appends nothing when nothing fits. */
void gy_chat_status_put(const gy_chat_status *s, int width, gy_str *out);

/* ---- colours ---- */

typedef enum gy_chat_colors { GY_CHAT_PLAIN, GY_CHAT_256, GY_CHAT_TRUE } gy_chat_colors;
/* The escape sequence for text of a token that ran `loops` of `most`, from blue (shallow) to magenta (deep). All have a
 * contrast of 4 or more (256) and 3.5 or more (true) on black and on white. PLAIN: nothing. */
void gy_chat_ramp(gy_chat_colors colors, int32_t loops, int32_t most, gy_str *out);
/* From the environment's words, each may be NULL. NO_COLOR: any text that is not empty. */
gy_chat_colors gy_chat_colors_of(const char *term, const char *colorterm, const char *no_color);

#endif
