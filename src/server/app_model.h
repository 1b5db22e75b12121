/* Between app_text.c and app_chat.c: what of the model's folder the server reads beside the engine. The model is read
 * by all threads; what a thread changes while it works on texts is in its own gy_app_scratch.
 */
#ifndef GY_SERVER_APP_MODEL_H
#define GY_SERVER_APP_MODEL_H

#include "server/app_int.h"
#include "text/tokenizer.h"

typedef struct gy_app_chat gy_app_chat; /* app_chat.c */

struct gy_app_model {
    gy_tok *tok; /* NULL: the model has none */
    gy_app_chat *chat;
    int32_t before; /* token of a letter, -1 if there is none */
};

struct gy_app_scratch {
    gy_app *app;
    gy_tok_ctx *ctx; /* NULL: the model has no tokenizer */
    gy_str piece;    /* of gy_app_piece */
};

gy_status gy_app_chat_open(const gy_app_opts *o, gy_err *err, gy_app_chat **out);
void gy_app_chat_close(gy_app_chat *c); /* accepts NULL */

#endif
