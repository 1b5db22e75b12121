/* Messages to a prompt: a model's chat template, what it is given, and the ids of what it prints.
 *
 * gy_chat_load reads chat_template.jinja, else tokenizer_config.json's "chat_template" (a string, or a list of {name,
 * template}; with tools, "tool_use" is taken where there is one), and the texts of bos_token, eos_token and their kin.
 * No template of another family is ever guessed, and none is taken from a request: a model without one renders nothing
 * and says what to pass.
 *
 * What messages, tools and kwargs say is data; what the template says is markup, and so are known roles. gy_chat_encode
 * finds special tokens in markup only, so a user who writes <|im_end|> has written eight letters and some marks.
 *
 * Immutable after loading: any thread may render and encode (with its own gy_tok_ctx). Rendering takes as long as the
 * template likes, up to its limits (jinja.h): not for a thread that others wait for.
 */
#ifndef GY_TEXT_CHAT_H
#define GY_TEXT_CHAT_H

#include "base/json.h"
#include "base/status.h"
#include "base/vec.h"
#include "text/jinja.h"
#include "text/tokenizer.h"

#include <time.h>

typedef struct gy_chat gy_chat;

/* template_path: a Jinja file to take instead of the model's, or NULL. Succeeds without a template (has_template: 0); a
 * template that cannot be compiled is GY_E_FORMAT with file and line. lim may be NULL. */
gy_status gy_chat_load(const char *dir, const char *template_path, const gy_jinja_limits *lim, gy_err *err,
                       gy_chat **out);
/* From memory: the template and the text of a tokenizer_config.json. Either may be NULL. `name` is used in messages. */
gy_status gy_chat_open(const char *name, const char *template, const char *config_json, const gy_jinja_limits *lim,
                       gy_err *err, gy_chat **out);
void gy_chat_close(gy_chat *c); /* accepts NULL */
int gy_chat_has_template(const gy_chat *c);
/* 1 if the template asks for the name: "enable_thinking", "tools", ... */
int gy_chat_reads(const gy_chat *c, const char *name);
/* 1 if the text stands in the template: "<think>", "<tool_call>", ... */
int gy_chat_says(const gy_chat *c, const char *text);

typedef struct gy_chat_options {
    int add_generation_prompt;
    int continue_final_message;   /* the prompt ends where the last message's content ends; not with the one above */
    int enable_thinking;          /* 1, 0, or -1: the template is not told */
    const char *reasoning_effort; /* a variable of the template; NULL: it is not told */
    const gy_jv *kwargs;          /* an object or NULL: further variables of the template. Wins over the two above */
    const struct tm *now;         /* what strftime_now formats, or NULL */
} gy_chat_options;

/* messages: an array of objects with a role and, mostly, content: a string, null, or a list of parts, of which only
 * {"type":"text"} is taken, joined by line ends. Members that are null are left out. A tool call's arguments that are a
 * string of a JSON object are parsed. reasoning_content, reasoning and thinking are one thing. tools: an array of
 * objects, or NULL. *out must be empty; it is written only on GY_OK.
 * GY_E_ARG: wrong input (the message names the field), or the template refuses it; GY_E_UNSUPPORTED: no template, or a
 * part that is not text; GY_E_LIMIT: past a limit of the template. */
gy_status gy_chat_render(const gy_chat *c, const gy_jv *messages, const gy_jv *tools, const gy_chat_options *opt,
                         gy_err *err, gy_jinja_out *out);

/* Appends the ids of a rendered chat. Special tokens are found in markup only; added tokens that are not special but
 * stand in the template (<think>, <tool_call>) are not found in data either. Nothing is put in front or behind: a bos
 * is there if the template printed it, and never twice. Text that runs from markup into data is tokenised as one. */
gy_status gy_chat_encode(const gy_chat *c, gy_tok_ctx *ctx, const gy_jinja_out *rendered, gy_err *err, gy_vec_i32 *ids);

#endif
