/* One answer: the conversation and a question go to the server, text and figures come back as they stream. Single
 * thread; waits, and Ctrl-C (cli_chat_signal.h) ends the wait with what is there.
 */
#ifndef GY_CLI_CLI_CHAT_ASK_H
#define GY_CLI_CLI_CHAT_ASK_H

#include "cli/cli_chat_talk.h"
#include "cli/cli_chat_view.h"
#include "cli/oai_client.h"

typedef enum gy_chat_why { GY_CHAT_WHY_OTHER, GY_CHAT_WHY_CONTEXT, GY_CHAT_WHY_TEMPLATE } gy_chat_why;

typedef struct gy_chat_reply {
    gy_str answer, reasoning;
    gy_oai_end end; /* GY_OAI_CANCELLED: Ctrl-C, SIGTERM, or standard output is gone */
    int http_status;
    gy_chat_why why;                      /* it failed */
    gy_str msg;                           /* the sentence for that, fit for a terminal */
    char finish[32];                      /* "stop", "length", ...; "" if none came */
    int64_t n_prompt, n_output, n_cached; /* as the server counts them; -1: it did not say */
    int64_t n_seen;                       /* tokens, or pieces where the server does not tell tokens */
    int64_t begin_ns, first_ns, last_ns;  /* asked, first and last token; 0: none came */
    gy_chat_depths depths;
} gy_chat_reply;

/* most: loops of the model, 0 if unknown. An error is the client's own (memory); a failed request is in *out. *out is
 * written in any case, for gy_chat_reply_fini. */
gy_status gy_chat_ask(gy_oai *c, const gy_chat_talk *t, const char *model, const gy_str *question, int32_t most,
                      gy_chat_view *v, gy_err *err, gy_chat_reply *out);
void gy_chat_reply_fini(gy_chat_reply *r);
double gy_chat_reply_rate(const gy_chat_reply *r); /* tokens a second behind the first; 0: unknown */
double gy_chat_reply_ttft(const gy_chat_reply *r); /* seconds; 0: none */

#endif
