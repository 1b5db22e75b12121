/* A conversation: messages and the settings that go with every request; as the body of a request, and as a file. No
 * terminal, no network. Single thread.
 *
 * Messages alternate: user, assistant, user, ... and end with an assistant's, because a question is added together with
 * its answer (gy_chat_talk_add). A question without an answer is the caller's.
 */
#ifndef GY_CLI_CLI_CHAT_TALK_H
#define GY_CLI_CLI_CHAT_TALK_H

#include "base/json.h"
#include "base/status.h"
#include "base/str.h"
#include "base/vec.h"
#include "cli/cli_opts.h"

typedef struct gy_chat_turn {
    gy_str question, answer, reasoning;
    int stopped; /* the answer was cut short by Ctrl-C */
} gy_chat_turn;

typedef struct gy_chat_setting {
    char *name;
    gy_json *doc; /* {"v": VALUE} */
} gy_chat_setting;

typedef struct gy_chat_talk {
    gy_str system; /* empty: none */
    int raw;       /* plain text that the model continues, not messages */
    GY_VEC(gy_chat_turn) turns;
    GY_VEC(gy_chat_setting) settings;
} gy_chat_talk;

void gy_chat_talk_fini(gy_chat_talk *t);
/* Takes what the turn holds (it is zeroed), also on failure. */
gy_status gy_chat_talk_add(gy_chat_talk *t, gy_chat_turn *turn, gy_err *err);
void gy_chat_talk_trim(gy_chat_talk *t, size_t n); /* the oldest n turns at most */
/* The newest turn leaves; its question goes to *question_out. 0: there was one. */
int gy_chat_talk_undo(gy_chat_talk *t, gy_str *question_out);

/* ---- settings: fields of the request ---- */

/* value: as a person writes it: a number, true|false|on|off, JSON, else a text; n 0: the setting goes. Names that gyre
 * knows (rows of gy_group_chat_request) are checked for type and range; others are sent as they are and *known_out (may
 * be NULL) is 0. GY_E_ARG, also for what is nearly a known name, and for the fields that chat itself fills. */
gy_status gy_chat_set(gy_chat_talk *t, const char *name, const char *value, size_t n, gy_err *err, int *known_out);
/* The value as an integer; dflt if it is not set or no integer. */
int64_t gy_chat_setting_int(const gy_chat_talk *t, const char *name, int64_t dflt);
void gy_chat_settings_put(const gy_chat_talk *t, gy_str *out); /* "  name  value" lines */

/* ---- requests and files ---- */

/* The body for /v1/chat/completions, or with raw for /v1/completions: streamed, usage included. */
void gy_chat_talk_body(const gy_chat_talk *t, const char *model, const char *question, size_t n, gy_str *out);
/* {"messages": [{"role", "content"}, ...]}: what OpenAI's API takes; an answer that was cut short has "stopped": true.
 */
void gy_chat_talk_write(const gy_chat_talk *t, gy_str *out);
/* That, or the array alone. Replaces system text and turns, only on success. A last question without an answer goes to
 * *question_out (appended). Messages of other roles, or in another order, are refused by their number. */
gy_status gy_chat_talk_read(gy_chat_talk *t, const char *text, size_t n, gy_err *err, gy_str *question_out);

/* The request options that chat has, as of `gyre run` (cli_chat_args.c). */
extern const gy_opt_group gy_group_chat_request;

#endif
