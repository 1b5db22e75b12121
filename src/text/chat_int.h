/* Inside src/text only: what a chat is made of (chat.c renders, chat_encode.c tokenises). */
#ifndef GY_TEXT_CHAT_INT_H
#define GY_TEXT_CHAT_INT_H

#include "text/chat.h"

enum { GY_CHAT_N_TOKEN = 7 };

struct gy_chat {
    char *name; /* of the folder, for messages */
    gy_jinja_limits lim;
    gy_jinja *main, *tool_use; /* NULL: none */
    gy_str token[GY_CHAT_N_TOKEN];
    int has_token[GY_CHAT_N_TOKEN];
};

#endif
