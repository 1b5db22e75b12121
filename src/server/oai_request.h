/* The body of one POST becomes an open struct: everything is resolved and checked that needs neither engine nor
 * tokenizer nor template. What stays to do: render messages (chat), encode texts, and put ids into run[i].
 *
 * Rules. null counts as absent for every optional field. Types are strict: 3.0 is no integer, "3" no number, 1 no
 * boolean. An unknown member is ignored and listed, so that it can be counted and its name logged once. A known one
 * whose value we cannot honour is refused by name, never dropped. Errors: gy_oai_error with param and a sentence.
 *
 * All pointers of the struct live as long as it does. Parsing is a pure function: any thread.
 */
#ifndef GY_SERVER_OAI_REQUEST_H
#define GY_SERVER_OAI_REQUEST_H

#include "base/arena.h"
#include "base/json.h"
#include "gyre.h"
#include "server/oai_error.h"

#include <stddef.h>
#include <stdint.h>

typedef enum gy_oai_kind {
    GY_OAI_COMPLETION = 1u << 0, /* POST /v1/completions */
    GY_OAI_CHAT = 1u << 1,       /* POST /v1/chat/completions */
    GY_OAI_TOKENIZE = 1u << 2,   /* POST /tokenize: a prompt or messages */
    GY_OAI_DETOKENIZE = 1u << 3, /* POST /detokenize: prompts[0] holds the ids */
    GY_OAI_TEMPLATE = 1u << 4    /* POST /apply_template: messages */
} gy_oai_kind;

/* What the server serves and allows. Strings are borrowed; the limits that are 0 are not checked here (the engine
 * does).
 */
typedef struct gy_oai_config {
    const char *const *models; /* [n_model] names that are served; the first one answers requests that name none */
    int32_t n_model;           /* 0: any name is taken */
    int32_t n_vocab, max_len, max_loops;
    int32_t has_tokenizer; /* 0: text is refused with a sentence, ids are served */
    int32_t has_gate;      /* 0: `gates` is refused */
    int32_t max_n;         /* 1..128 */
    int32_t max_prompts;   /* of one body */
    int32_t max_choices;   /* prompts times n */
    int32_t max_stop;      /* strings; OpenAI says 4, the engine takes 64 */
    int32_t max_depth;     /* of JSON */
    gyre_request run;      /* defaults of all that a body may leave out; temperature is 1 here, as OpenAI says */
} gy_oai_config;
void gy_oai_config_default(gy_oai_config *c);

typedef struct gy_oai_seg { /* a stretch of a prompt */
    const char *text;       /* [n_text] bytes, NUL allowed; NULL: ids count */
    size_t n_text;
    const int32_t *ids; /* [n_ids] */
    int32_t n_ids;
} gy_oai_seg;

typedef struct gy_oai_prompt {
    const gy_oai_seg *seg; /* [n_seg] in order; one, but for a list that mixes texts and ids */
    int32_t n_seg;
} gy_oai_prompt;

typedef enum gy_oai_role {
    GY_OAI_SYSTEM,
    GY_OAI_DEVELOPER,
    GY_OAI_USER,
    GY_OAI_ASSISTANT,
    GY_OAI_TOOL,
    GY_OAI_N_ROLE
} gy_oai_role;
const char *gy_oai_role_name(gy_oai_role r); /* "system", ...; static */

typedef struct gy_oai_message {
    gy_oai_role role;
    const char *content; /* [n_content] parts of a list joined by one LF; NULL: there is none (assistant) */
    size_t n_content;
    const char *reasoning; /* [n_reasoning], NULL if absent */
    size_t n_reasoning;
    const char *name, *tool_call_id; /* NULL if absent */
    const gy_jv *tool_calls;         /* checked array, NULL if absent */
    const gy_jv *json;               /* the whole message */
} gy_oai_message;

typedef enum gy_oai_tool_choice {
    GY_OAI_TOOL_NONE,
    GY_OAI_TOOL_AUTO,
    GY_OAI_TOOL_REQUIRED,
    GY_OAI_TOOL_NAMED
} gy_oai_tool_choice;

typedef enum gy_oai_constraint_kind {
    GY_OAI_FREE,
    GY_OAI_JSON_OBJECT,
    GY_OAI_JSON_SCHEMA, /* schema */
    GY_OAI_REGEX,       /* text */
    GY_OAI_GRAMMAR,     /* text */
    GY_OAI_CHOICE       /* list: array of strings */
} gy_oai_constraint_kind;

typedef struct gy_oai_constraint { /* at most one in a request; compiling it is another part's work */
    gy_oai_constraint_kind kind;
    const char *field; /* where it stood, for errors of the compiler: static */
    const gy_jv *schema, *list;
    const char *text; /* [n_text] */
    size_t n_text;
} gy_oai_constraint;

enum { GY_OAI_MAX_UNKNOWN = 16 };

typedef struct gy_oai_request {
    gy_oai_kind kind;
    const char *model; /* as the body names it, else the first one served; never NULL */

    gy_oai_prompt *prompts; /* [n_prompt]; 1 and empty for messages */
    int32_t n_prompt;
    /* [n_prompt], all fields set but on_event and user. A prompt of one segment is in it already; otherwise, and when
     * add_special_tokens or a template says so, put ids there and take prompt away. */
    gyre_request *run;

    gy_oai_message *messages; /* [n_message]; none: prompts count */
    int32_t n_message;
    const gy_jv *tools; /* checked array, NULL if absent */
    gy_oai_tool_choice tool_choice;
    const char *tool_name; /* GY_OAI_TOOL_NAMED */
    int32_t parallel_tool_calls;
    const gy_jv *template_kwargs; /* object or NULL */
    int32_t enable_thinking;      /* 0, 1; -1: the template's own way */
    const char *reasoning_effort; /* NULL if absent */
    int32_t separate_reasoning;   /* 0: thoughts stay in the content, markers and all */
    int32_t include_reasoning;    /* 0: thoughts are left out of the reply */
    int32_t add_generation_prompt, continue_final_message;
    int32_t add_special_tokens; /* default: 1 for prompts, 0 for messages (the template writes them) */
    int32_t parse_special;      /* /tokenize: spellings of special tokens in the text are their ids; 1 */
    int32_t truncate_prompt;    /* keep so many last tokens of the prompt; 0: all of it */
    gy_oai_constraint constraint;

    int32_t stream, include_usage, continuous_usage;
    int32_t echo;
    int32_t score_only; /* max_tokens 0 with echo: the engine makes one token that the reply leaves out */
    int32_t logprobs;   /* -1: none; else alternatives per token */
    int32_t prompt_logprobs;
    int32_t return_token_ids, tokens_as_ids, return_token_strs;
    int32_t include_stop; /* the stop string stays in the text */
    int32_t skip_special; /* /detokenize; 0, as vLLM: all tokens are spelled out */
    const char *request_id, *session_id;

    const char *unknown[GY_OAI_MAX_UNKNOWN]; /* names of the first ones; any bytes of UTF-8 */
    int32_t n_unknown;                       /* all of them, also beyond the array */

    gyre_request base; /* what is the same for all prompts */
    gy_arena *arena;
    gy_json *doc;
} gy_oai_request;

/* body: [len] bytes, not kept. On failure *out is untouched and *e says why (also memory: GY_OAI_E_BUSY). */
gy_status gy_oai_request_parse(gy_oai_kind kind, const char *body, size_t len, const gy_oai_config *cfg,
                               gy_oai_error *e, gy_oai_request **out);
void gy_oai_request_free(gy_oai_request *r); /* accepts NULL */

/* prompt + max_tokens against the context, once the tokens are counted; the engine would refuse it too, without our
 * names. max_tokens 0 (as many as fit) needs one. */
gy_status gy_oai_request_check_length(const gy_oai_request *r, int64_t n_prompt_tok, int32_t max_len, gy_oai_error *e);

/* Names of unknown members that were reported already: a bounded set, so that a client cannot fill memory or log. One
 * thread. */
typedef struct gy_oai_seen gy_oai_seen;
enum { GY_OAI_MAX_SEEN = 256 };
gy_oai_seen *gy_oai_seen_create(void);                 /* NULL on no memory */
void gy_oai_seen_destroy(gy_oai_seen *s);              /* accepts NULL */
int gy_oai_seen_add(gy_oai_seen *s, const char *name); /* 1: new, report it. 0: seen before, or the set is full */

#endif
