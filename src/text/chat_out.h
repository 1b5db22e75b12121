/* What a chat model wrote becomes thoughts, content and calls: a scanner over the text of one choice, as it comes.
 *
 * It reads what Qwen, Hermes, Nanbeige and their kin are trained to write:
 *
 *     <think>                                  <tool_call>                             <tool_call>
 *     thoughts                                 {"name": "f", "arguments": {"a": 1}}    <function=f>
 *     </think>                                 </tool_call>                            <parameter=a>
 *                                                                                      1
 *     content                                                                          </parameter>
 *                                                                                      </function>
 *                                                                                      </tool_call>
 *
 * Each byte is looked at a bounded number of times, whatever the text is, and how it was cut changes nothing of what
 * all deltas are together. Nothing is held back but what can still become a marker, newlines in front of such, and a
 * call until its name is known and its arguments begin.
 *
 * Rules
 *   Thoughts   "<think>" opens them only as the first thing of an output, behind newlines at most; inside, only
 *              "</think>" means something. What is not closed stays thoughts. After in_reasoning one "<think>" that the
 *              model repeats is dropped.
 *   Newlines   behind "<think>", around "</think>", around "<tool_call>" and "</tool_call>" belong to the markers.
 *   Calls      begin to exist when their name is known and their arguments have begun. What fails before, by an end of
 *              text too, is content, marker and all. What fails afterwards ends the call there: the arguments are what
 *              came, the rest is content. "</tool_call>" may be missing at the end of the text, and may come before
 *              all brackets were closed. White space between a call's arguments and its marker is dropped.
 *   Arguments  are the bytes of the object (or list) as they were written, not judged: where the model's JSON is right,
 *              so are they. A string is taken for JSON inside a string, null and nothing for {}.
 *   Parameters become members of an object: one newline at each end is dropped; a value whose schema allows no string
 *              is taken as JSON if it is JSON; everything else is a string.
 *   Bare       output that had to be a call (a JSON schema held): an object, or a list of them, is calls without
 *              markers. Something else is content.
 *   one_call   the calls behind the first one are dropped.
 *
 * Deliberately not here: ids of calls, and whether a name is one of the tools. Not thread-safe.
 */
#ifndef GY_TEXT_CHAT_OUT_H
#define GY_TEXT_CHAT_OUT_H

#include "base/json.h"
#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

enum {
    GY_CHAT_OUT_MAX_HOLD = 256 * 1024, /* bytes of a call that is not one yet; past them they are content */
    GY_CHAT_OUT_MAX_NAME = 256         /* of a function or parameter in tags */
};

typedef enum gy_chat_calls { GY_CHAT_CALLS_NONE, GY_CHAT_CALLS_TAGGED, GY_CHAT_CALLS_BARE } gy_chat_calls;

typedef struct gy_chat_out_options {
    int reasoning;    /* thoughts are taken out */
    int in_reasoning; /* the prompt opened them; only with the above */
    gy_chat_calls calls;
    int one_call;
    const gy_jv *tools; /* OpenAI's array, for the types of parameters, or NULL; borrowed */
} gy_chat_out_options;

typedef struct gy_chat_call_delta {
    int32_t index;         /* of the call, from 0, in order */
    const char *name;      /* with the first delta of a call, else NULL */
    const char *arguments; /* [n_arguments], not NUL-terminated */
    size_t n_arguments;
} gy_chat_call_delta;

typedef struct gy_chat_delta { /* valid until the next push or finish */
    const char *reasoning;     /* [n_reasoning] */
    size_t n_reasoning;
    const char *content; /* [n_content] */
    size_t n_content;
    const gy_chat_call_delta *calls; /* [n_call] */
    int32_t n_call;
    int is_reasoning; /* some of what was pushed was read inside of thoughts */
} gy_chat_delta;

typedef struct gy_chat_out gy_chat_out;

gy_status gy_chat_out_create(const gy_chat_out_options *o, gy_chat_out **out); /* GY_E_NOMEM */
void gy_chat_out_destroy(gy_chat_out *c);                                      /* accepts NULL */

void gy_chat_out_push(gy_chat_out *c, const char *text, size_t n);
void gy_chat_out_finish(gy_chat_out *c); /* the text ends here: what was held is let go */
/* What came of all pushes since the last one. GY_E_NOMEM: something of this output is missing, from here on. */
gy_status gy_chat_out_take(gy_chat_out *c, gy_chat_delta *d);

#endif
