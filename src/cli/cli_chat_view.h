/* An answer as it appears: text as it comes, and under it on a terminal the line of status, which moves down with the
 * text. Elsewhere only the answer's own text, byte for byte. Single thread; writes through gy_cli_put.
 */
#ifndef GY_CLI_CLI_CHAT_VIEW_H
#define GY_CLI_CLI_CHAT_VIEW_H

#include "cli/cli_chat_text.h"

typedef enum gy_chat_depth_mode { GY_CHAT_DEPTH_LINE, GY_CHAT_DEPTH_NONE, GY_CHAT_DEPTH_COLOR } gy_chat_depth_mode;

typedef enum gy_chat_kind { GY_CHAT_CONTENT, GY_CHAT_REASONING, GY_CHAT_TOOL } gy_chat_kind;

typedef struct gy_chat_view {
    /* set by the caller */
    int is_term;           /* standard output is a terminal: foreign text is cleaned */
    int can_move;          /* it knows how to move its cursor */
    int can_style;         /* and may change colour and intensity */
    gy_chat_colors colors; /* for depth */
    gy_chat_depth_mode depth;
    int width;
    /* of the answer that runs */
    gy_chat_cleaner cleaner;
    gy_chat_kind kind;
    int begun, col, is_shown; /* is_shown: the line of status is there; col < width then */
    char last;                /* byte that went out */
    int64_t drawn_ns;
} gy_chat_view;

void gy_chat_view_begin(gy_chat_view *v);
/* loops of the token that the text belongs to, 0: unknown. */
void gy_chat_view_text(gy_chat_view *v, gy_chat_kind kind, const char *s, size_t n, int32_t loops, int32_t most);
/* Redraws the line of status if its time has come (ten times a second); when to call again, 0: whenever text came. */
int64_t gy_chat_view_status(gy_chat_view *v, const gy_chat_status *s, int64_t now_ns);
void gy_chat_view_resize(gy_chat_view *v, int width);
/* The answer is over: the last line of status stays under it. */
void gy_chat_view_end(gy_chat_view *v, const gy_chat_status *s);

#endif
