/* Between chat_out.c (thoughts, content, markers, the life of a call), chat_out_json.c and chat_out_tags.c (the two
 * ways to write a call).
 *
 * A step function is given a byte and returns 1 if it took it, 0 if the state that it left behind has to look at it.
 * While a call is not known to be one, `hold` has all bytes since its marker, the one in hand included.
 */
#ifndef GY_TEXT_CHAT_OUT_INT_H
#define GY_TEXT_CHAT_OUT_INT_H

#include "base/str.h"
#include "base/vec.h"
#include "text/chat_out.h"

typedef enum gy_co_state {
    GY_CO_START, /* nothing was said yet */
    GY_CO_THINK,
    GY_CO_TEXT,
    GY_CO_BARE,  /* a call without markers must begin */
    GY_CO_BEGIN, /* behind "<tool_call>" */
    GY_CO_FIRST, /* JSON: a first name or '}' */
    GY_CO_KEY,
    GY_CO_IN_KEY,
    GY_CO_COLON,
    GY_CO_VALUE,
    GY_CO_IN_VALUE,
    GY_CO_AFTER, /* ',' or '}' */
    GY_CO_NAME,  /* tags: behind "<function=" */
    GY_CO_BODY,  /* between parameters */
    GY_CO_PARAM, /* behind "<parameter=" */
    GY_CO_PARAM_VALUE,
    GY_CO_DONE /* behind a call, before what closes it */
} gy_co_state;

/* In the order of the table in chat_out.c. No marker has '<' but at its beginning: what looked like one and is none
 * holds no other one. */
enum {
    GY_CO_M_THINK = 1u << 0,
    GY_CO_M_END_THINK = 1u << 1,
    GY_CO_M_CALL = 1u << 2,
    GY_CO_M_END_CALL = 1u << 3,
    GY_CO_M_FUNCTION = 1u << 4,
    GY_CO_M_END_FUNCTION = 1u << 5,
    GY_CO_M_PARAM = 1u << 6,
    GY_CO_M_END_PARAM = 1u << 7
};
enum { GY_CO_N_MARK = 8, GY_CO_MAX_MARK = 12 };

typedef enum gy_co_member { GY_CO_OTHER, GY_CO_MEMBER_NAME, GY_CO_MEMBER_ARGS } gy_co_member;

typedef struct gy_co_call { /* the call under way */
    int announced, mute;    /* mute: it is dropped */
    gy_str name;
    int has_name, has_args;
    /* JSON */
    gy_co_member member;
    char key[16];
    size_t n_key;
    int escaped, in_string;
    int64_t depth;
    gy_str raw; /* of a member that is looked at as a whole */
    /* tags */
    const gy_jv *parameters; /* their schema, NULL: nothing is known */
    gy_str param, value;
    int n_param, is_json, at_begin;
} gy_co_call;

typedef struct gy_co_piece { /* of gy_chat_call_delta, while what it points into may move */
    int32_t index;
    size_t name, args, n_args; /* name: SIZE_MAX for none */
} gy_co_piece;

struct gy_chat_out {
    gy_chat_out_options o;
    gy_co_state state;
    int tagged;      /* "<tool_call>" means something */
    int skip_nl;     /* newlines belong to the marker before */
    int think_begin; /* nothing of the thoughts has come */
    int in_list, holding;
    size_t n_nl; /* newlines that wait for what follows */
    char mark[GY_CO_MAX_MARK];
    size_t n_mark;
    gy_str hold;
    gy_co_call call;
    int32_t n_call;
    int taken, is_reasoning, failed;
    gy_str reasoning, content, names, args; /* of the next delta */
    GY_VEC(gy_co_piece) pieces;
    GY_VEC(gy_chat_call_delta) calls;
};

/* ---- chat_out.c ---- */

static inline int gy_co_is_space(char b) {
    return b == ' ' || b == '\t' || b == '\n' || b == '\r';
}
/* Clearing forgets a failed append: not here. */
static inline void gy_co_clear(gy_chat_out *c, gy_str *s) {
    c->failed |= s->failed;
    gy_str_clear(s);
}
/* The marker of the set that is complete with b; 0: b goes on in one; -1: none, b is not in `mark`. */
int gy_co_match(gy_chat_out *c, char b, unsigned set);
void gy_co_put_args(gy_chat_out *c, const char *s, size_t n);
void gy_co_announce(gy_chat_out *c); /* call.name is complete */
/* b cannot come here. A call that was announced ends before it; one that was not is content. 0 */
int gy_co_fail(gy_chat_out *c);
void gy_co_end_call(gy_chat_out *c); /* its closing marker was read */

/* ---- the ways to write a call ---- */

int gy_co_json_step(gy_chat_out *c, char b);
int gy_co_tags_step(gy_chat_out *c, char b);
void gy_co_tags_finish(gy_chat_out *c); /* the text ends inside of one */
/* The value of a JSON text, NULL if it is none (or no memory: c->failed). */
gy_json *gy_co_parse(gy_chat_out *c, const gy_str *text, const gy_jv **out);

#endif
