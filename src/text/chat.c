/* Chat templates of a model: finding them, and giving them their messages. What the template sees is what transformers
 * would show it, but for three things that its callers do there: lists of text parts become strings (as vLLM and
 * llama.cpp make them), arguments of tool calls become objects, and bytes remember whether they came from a request.
 */
#include "text/chat.h"

#include "base/file.h"
#include "text/chat_int.h"
#include "text/jinja_int.h"

#include <stdio.h>
#include <string.h>

/* ---- loading ---- */

static gy_status chat_create(const char *name, const gy_jinja_limits *lim, gy_err *err, gy_chat **out) {
    gy_chat *c = gy_mem_alloc(GY_MEM_TEXT, 1, sizeof *c);
    if (c) c->name = gy_mem_strdup(GY_MEM_TEXT, name);
    if (!c || !c->name) {
        gy_chat_close(c);
        return gy_err_set(err, GY_E_NOMEM, "no memory for the chat template");
    }
    if (lim) c->lim = *lim;
    *out = c;
    return GY_OK;
}

void gy_chat_close(gy_chat *c) {
    if (!c) return;
    for (int i = 0; i < GY_CHAT_N_TOKEN; i++) gy_str_free(&c->token[i]);
    gy_jinja_destroy(c->main);
    gy_jinja_destroy(c->tool_use);
    gy_mem_free(c->name);
    gy_mem_free(c);
}

static const char *const token_names[GY_CHAT_N_TOKEN] = {"bos_token", "eos_token", "unk_token", "pad_token",
                                                         "sep_token", "cls_token", "mask_token"};

/* A token is a string or an object with content. One that is null or absent stays unknown: none is made up. */
static gy_status tokens_read(gy_chat *c, const gy_jv *config, gy_err *err) {
    for (int i = 0; i < GY_CHAT_N_TOKEN; i++) {
        const gy_jv *v = gy_jv_get(config, token_names[i]);
        size_t len = 0;
        const char *s = gy_jv_str(v, &len);
        if (!s) s = gy_jv_str(gy_jv_get(v, "content"), &len);
        if (!s || c->has_token[i]) continue;
        gy_str_append(&c->token[i], s, len);
        c->has_token[i] = 1;
        if (c->token[i].failed) return gy_err_set(err, GY_E_NOMEM, "no memory for the chat template");
    }
    return GY_OK;
}

static gy_status template_add(gy_chat *c, const gy_jv *text, const char *what, gy_jinja **slot, gy_err *err) {
    size_t len = 0;
    const char *s = gy_jv_str(text, &len);
    char name[512];
    if (!s)
        return gy_err_set(err, GY_E_FORMAT, "%s: %s: found %s, expected a string", c->name, what,
                          gy_jtype_name(gy_jv_type(text)));
    if (*slot) return gy_err_set(err, GY_E_FORMAT, "%s: %s: there are two of this name", c->name, what);
    snprintf(name, sizeof name, "%s: %s", c->name, what);
    return gy_jinja_compile(s, len, name, &c->lim, err, slot);
}

/* "chat_template": a string, or a list of templates with names. Those of other names wait for somebody who asks. */
static gy_status templates_read(gy_chat *c, const gy_jv *v, gy_err *err) {
    if (gy_jv_type(v) == GY_J_NONE || gy_jv_type(v) == GY_J_NULL) return GY_OK;
    if (gy_jv_type(v) != GY_J_ARRAY) return template_add(c, v, "chat_template", &c->main, err);
    for (size_t i = 0; i < gy_jv_len(v); i++) {
        const gy_jv *one = gy_jv_at(v, i), *name = gy_jv_get(one, "name"), *text = gy_jv_get(one, "template");
        if (gy_jv_type(name) != GY_J_STRING)
            return gy_err_set(err, GY_E_FORMAT, "%s: chat_template[%zu]: expected an object with name and template",
                              c->name, i);
        if (gy_jv_is_str(name, "default")) GY_TRY(template_add(c, text, "chat_template \"default\"", &c->main, err));
        if (gy_jv_is_str(name, "tool_use"))
            GY_TRY(template_add(c, text, "chat_template \"tool_use\"", &c->tool_use, err));
    }
    return GY_OK;
}

static gy_status template_from_file(gy_chat *c, const char *path, gy_err *err) {
    gy_str text = {0};
    size_t most = c->lim.max_template_bytes ? c->lim.max_template_bytes : (size_t)1 << 20;
    gy_status st = gy_file_read(path, most, err, &text);
    if (st == GY_OK) st = gy_jinja_compile(gy_str_z(&text), text.len, path, &c->lim, err, &c->main);
    gy_str_free(&text);
    return st;
}

/* A file of dir that need not exist; take: what to do with its root. */
static gy_status config_file(gy_chat *c, const char *dir, const char *file, int with_template, gy_err *err) {
    gy_json *doc = NULL;
    char *path = gy_path_join(dir, file);
    if (!path) return gy_err_set(err, GY_E_NOMEM, "no memory for a path");
    gy_status st = gy_file_exists(path) ? gy_json_read(path, NULL, err, &doc) : GY_OK;
    if (st == GY_OK && doc) st = tokens_read(c, gy_json_root(doc), err);
    if (st == GY_OK && doc && with_template) st = templates_read(c, gy_jv_get(gy_json_root(doc), "chat_template"), err);
    gy_json_free(doc);
    gy_mem_free(path);
    return st;
}

static gy_status chat_fill(gy_chat *c, const char *dir, const char *template_path, gy_err *err) {
    char *own = gy_path_join(dir, "chat_template.jinja");
    if (!own) return gy_err_set(err, GY_E_NOMEM, "no memory for a path");
    if (!template_path && gy_file_exists(own)) template_path = own;
    gy_status st = template_path ? template_from_file(c, template_path, err) : GY_OK;
    gy_mem_free(own);
    if (st == GY_OK) st = config_file(c, dir, "tokenizer_config.json", !c->main, err);
    return st == GY_OK ? config_file(c, dir, "special_tokens_map.json", 0, err) : st;
}

gy_status gy_chat_load(const char *dir, const char *template_path, const gy_jinja_limits *lim, gy_err *err,
                       gy_chat **out) {
    gy_chat *c = NULL;
    GY_TRY(chat_create(dir, lim, err, &c));
    gy_status st = chat_fill(c, dir, template_path, err);
    if (st < 0)
        gy_chat_close(c);
    else
        *out = c;
    return st;
}

static gy_status open_config(gy_chat *c, const char *config_json, int with_template, gy_err *err) {
    gy_json *doc = NULL;
    GY_TRY(gy_json_parse(config_json, strlen(config_json), NULL, err, &doc));
    gy_status st = tokens_read(c, gy_json_root(doc), err);
    if (st == GY_OK && with_template) st = templates_read(c, gy_jv_get(gy_json_root(doc), "chat_template"), err);
    gy_json_free(doc);
    return st;
}

gy_status gy_chat_open(const char *name, const char *template, const char *config_json, const gy_jinja_limits *lim,
                       gy_err *err, gy_chat **out) {
    gy_chat *c = NULL;
    GY_TRY(chat_create(name, lim, err, &c));
    gy_status st = template ? gy_jinja_compile(template, strlen(template), name, lim, err, &c->main) : GY_OK;
    if (st == GY_OK && config_json) st = open_config(c, config_json, !template, err);
    if (st < 0)
        gy_chat_close(c);
    else
        *out = c;
    return st;
}

int gy_chat_has_template(const gy_chat *c) {
    return c->main || c->tool_use;
}

int gy_chat_reads(const gy_chat *c, const char *name) {
    return (c->main && gy_jinja_reads(c->main, name)) || (c->tool_use && gy_jinja_reads(c->tool_use, name));
}

static int source_says(const gy_jinja *t, const char *text) {
    size_t n = 0;
    const char *source = t ? gy_jinja_source(t, &n) : NULL;
    return source && memmem(source, n, text, strlen(text)) != NULL;
}

int gy_chat_says(const gy_chat *c, const char *text) {
    return source_says(c->main, text) || source_says(c->tool_use, text);
}

/* ---- messages ---- */

/* One rendering of a chat. at: which message is being read, for error messages. */
typedef struct reading {
    gy_jj_run *r;
    gy_err *err;
    size_t at;
    unsigned origin; /* of content: DATA, or DATA and FINAL */
} reading;

/* Errors of input do not name a line of the template. */
static int wrong(const reading *m, gy_status st, const char *field, const char *found, const char *expected) {
    gy_err_set(m->err, st, "messages[%zu]%s: found %s, expected %s", m->at, field, found, expected);
    return -1;
}

static int put_key(reading *m, gy_jj_val *dict, const char *key, const gy_jj_val *val) {
    gy_jj_val k;
    return gy_jj_str(m->r, key, strlen(key), GY_JJ_DATA, &k) || gy_jj_dict_put(m->r, dict->u.dict, &k, val) ? -1 : 0;
}

/* Templates build markup from these: "<|" + role + "|>". Another role stays data. */
static int is_known_role(const gy_jv *v) {
    static const char *const known[] = {"system", "developer", "user",        "assistant",
                                        "tool",   "function",  "observation", "ipython"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (gy_jv_is_str(v, known[i])) return 1;
    return 0;
}

static int read_role(reading *m, const gy_jv *v, gy_jj_val *out) {
    if (gy_jv_type(v) != GY_J_STRING) return wrong(m, GY_E_ARG, ".role", gy_jtype_name(gy_jv_type(v)), "a string");
    return gy_jj_convert(m->r, v, is_known_role(v) ? GY_JJ_MARKUP : GY_JJ_DATA, out);
}

/* The member that holds the text of a part, by its type. Clients send back what they were sent: also refusals. */
static const char *text_member(const gy_jv *type) {
    if (gy_jv_is_str(type, "refusal")) return "refusal";
    int text = gy_jv_is_str(type, "text") || gy_jv_is_str(type, "input_text") || gy_jv_is_str(type, "output_text");
    return text ? "text" : NULL;
}

static int read_part(reading *m, size_t i, const gy_jv *part, gy_jj_buf *b) {
    char field[64], found[100];
    size_t len = 0;
    const gy_jv *type = gy_jv_get(part, "type");
    const char *member = text_member(type), *text = member ? gy_jv_str(gy_jv_get(part, member), &len) : NULL;
    snprintf(field, sizeof field, ".content[%zu]", i);
    if (gy_jv_type(type) != GY_J_STRING)
        return wrong(m, GY_E_ARG, field, gy_jtype_name(gy_jv_type(part)), "an object with a type");
    if (!member) {
        snprintf(found, sizeof found, "a part of type \"%.60s\"", gy_jv_str(type, NULL));
        return wrong(m, GY_E_UNSUPPORTED, field, found, "\"text\": this model reads text only");
    }
    if (!text) return wrong(m, GY_E_ARG, field, "no text", "a string as text");
    if (i && gy_jj_put(m->r, b, "\n", 1, m->origin)) return -1;
    return gy_jj_put(m->r, b, text, len, m->origin);
}

static int read_content(reading *m, const gy_jv *v, gy_jj_val *out) {
    gy_jtype t = gy_jv_type(v);
    if (t == GY_J_STRING) return gy_jj_convert(m->r, v, m->origin, out);
    if (t != GY_J_ARRAY) return wrong(m, GY_E_ARG, ".content", gy_jtype_name(t), "a string or a list of parts");
    gy_jj_buf b = {.origin = (uint8_t)m->origin};
    for (size_t i = 0; i < gy_jv_len(v); i++)
        if (read_part(m, i, gy_jv_at(v, i), &b)) return -1;
    return gy_jj_take(m->r, &b, out);
}

/* OpenAI's wire has the arguments as text; templates want the object. Text that is no object stays text. */
static int read_arguments(reading *m, const gy_jv *v, gy_jj_val *out) {
    size_t len = 0;
    const char *s = gy_jv_str(v, &len);
    gy_json *doc = NULL;
    if (s && gy_json_parse(s, len, NULL, NULL, &doc) == GY_OK) {
        if (gy_jv_type(gy_json_root(doc)) == GY_J_OBJECT) {
            if (gy_jj_keep(m->r, doc)) return -1;
            return gy_jj_convert(m->r, gy_json_root(doc), GY_JJ_DATA, out);
        }
        gy_json_free(doc);
    }
    if (s && len == 0) return gy_jj_dict_new(m->r, 0, out);
    return gy_jj_convert(m->r, v, GY_JJ_DATA, out);
}

static int read_object(reading *m, const gy_jv *v,
                       int (*special)(reading *m, const char *key, const gy_jv *v, gy_jj_val *out), gy_jj_val *out) {
    gy_jj_val dict, val;
    if (gy_jj_dict_new(m->r, gy_jv_len(v), &dict)) return -1;
    dict.origin = GY_JJ_DATA;
    for (void *it = gy_jv_first(v); it; it = gy_jv_next(v, it)) {
        const char *key = gy_jv_key(it, NULL);
        if (gy_jv_type(gy_jv_val(it)) == GY_J_NULL) continue;
        if (special(m, key, gy_jv_val(it), &val) || put_key(m, &dict, key, &val)) return -1;
    }
    *out = dict;
    return 0;
}

static int function_member(reading *m, const char *key, const gy_jv *v, gy_jj_val *out) {
    if (strcmp(key, "arguments") == 0) return read_arguments(m, v, out);
    return gy_jj_convert(m->r, v, GY_JJ_DATA, out);
}

static int call_member(reading *m, const char *key, const gy_jv *v, gy_jj_val *out) {
    if (strcmp(key, "function") == 0 && gy_jv_type(v) == GY_J_OBJECT) return read_object(m, v, function_member, out);
    return gy_jj_convert(m->r, v, GY_JJ_DATA, out);
}

static int read_calls(reading *m, const gy_jv *v, gy_jj_val *out) {
    gy_jj_val list;
    if (gy_jv_type(v) != GY_J_ARRAY)
        return wrong(m, GY_E_ARG, ".tool_calls", gy_jtype_name(gy_jv_type(v)), "a list of objects");
    if (gy_jj_list_new(m->r, GY_JJ_LIST, gy_jv_len(v), &list)) return -1;
    for (size_t i = 0; i < list.u.list->n; i++) {
        const gy_jv *one = gy_jv_at(v, i);
        if (gy_jv_type(one) != GY_J_OBJECT)
            return wrong(m, GY_E_ARG, ".tool_calls", gy_jtype_name(gy_jv_type(one)), "a list of objects");
        if (read_object(m, one, call_member, &list.u.list->v[i])) return -1;
    }
    *out = gy_jj_from(list, GY_JJ_DATA);
    return 0;
}

static int message_member(reading *m, const char *key, const gy_jv *v, gy_jj_val *out) {
    if (strcmp(key, "role") == 0) return read_role(m, v, out);
    if (strcmp(key, "content") == 0) return read_content(m, v, out);
    if (strcmp(key, "tool_calls") == 0) return read_calls(m, v, out);
    return gy_jj_convert(m->r, v, GY_JJ_DATA, out);
}

/* Reasoning has three names on the wire; templates read the first, or the second. */
static int alias_reasoning(reading *m, gy_jj_val *message) {
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    gy_jj_val v = gy_jj_none(), there;
    for (size_t i = 0; v.type == GY_JJ_NONE && i < 3; i++) gy_jj_dict_getz(message->u.dict, names[i], &v);
    if (v.type == GY_JJ_NONE) return 0;
    if (!gy_jj_dict_getz(message->u.dict, "thinking", &there) && put_key(m, message, "thinking", &v)) return -1;
    return put_key(m, message, "reasoning_content", &v);
}

static int read_message(reading *m, const gy_jv *v, gy_jj_val *out) {
    if (gy_jv_type(v) != GY_J_OBJECT) return wrong(m, GY_E_ARG, "", gy_jtype_name(gy_jv_type(v)), "an object");
    if (gy_jv_type(gy_jv_get(v, "role")) != GY_J_STRING)
        return wrong(m, GY_E_ARG, ".role", gy_jtype_name(gy_jv_type(gy_jv_get(v, "role"))), "a string");
    return read_object(m, v, message_member, out) || alias_reasoning(m, out) ? -1 : 0;
}

static int read_messages(gy_jj_run *r, const gy_jv *messages, const gy_chat_options *opt, gy_err *err, gy_jj_val *out) {
    gy_jj_val list;
    reading m = {.r = r, .err = err};
    size_t n = gy_jv_len(messages);
    if (gy_jj_list_new(r, GY_JJ_LIST, n, &list)) return -1;
    for (m.at = 0; m.at < n; m.at++) {
        m.origin = GY_JJ_DATA | (opt->continue_final_message && m.at + 1 == n ? (unsigned)GY_JJ_FINAL : 0);
        if (read_message(&m, gy_jv_at(messages, m.at), &list.u.list->v[m.at])) return -1;
    }
    *out = gy_jj_from(list, GY_JJ_DATA);
    return 0;
}

/* ---- rendering ---- */

static int bind_tokens(gy_jj_run *r, const gy_chat *c) {
    for (int i = 0; i < GY_CHAT_N_TOKEN; i++) {
        gy_jj_val v;
        if (!c->has_token[i]) continue;
        if (gy_jj_str(r, gy_str_z(&c->token[i]), c->token[i].len, GY_JJ_MARKUP, &v)) return -1;
        gy_jj_bind(r, token_names[i], v);
    }
    return 0;
}

/* A request may not bring a template, nor say twice what has a field of its own. */
static gy_status check_kwargs(const gy_jv *kwargs, gy_err *err) {
    static const char *const taken[] = {"chat_template",          "messages", "tools",       "add_generation_prompt",
                                        "continue_final_message", "tokenize", "conversation"};
    gy_jtype t = gy_jv_type(kwargs);
    if (t != GY_J_NONE && t != GY_J_NULL && t != GY_J_OBJECT)
        return gy_err_set(err, GY_E_ARG, "chat_template_kwargs: found %s, expected an object", gy_jtype_name(t));
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
        if (gy_jv_get(kwargs, taken[i]))
            return gy_err_set(err, GY_E_ARG, "chat_template_kwargs: \"%s\" cannot be given here%s", taken[i],
                              i ? ": it has a field of its own"
                                : ": templates come from the server, not from requests");
    return GY_OK;
}

static int bind_kwargs(gy_jj_run *r, const gy_jv *kwargs) {
    for (void *it = gy_jv_type(kwargs) == GY_J_OBJECT ? gy_jv_first(kwargs) : NULL; it; it = gy_jv_next(kwargs, it)) {
        gy_jj_val v;
        if (gy_jj_convert(r, gy_jv_val(it), GY_JJ_DATA, &v)) return -1;
        gy_jj_bind(r, gy_jv_key(it, NULL), v);
    }
    return 0;
}

static gy_status check_input(const gy_jv *messages, const gy_jv *tools, const gy_chat_options *opt, gy_err *err) {
    gy_jtype t = gy_jv_type(tools);
    if (gy_jv_type(messages) != GY_J_ARRAY || !gy_jv_len(messages))
        return gy_err_set(err, GY_E_ARG, "messages: found %s, expected a list of at least one message",
                          gy_jv_type(messages) == GY_J_ARRAY ? "an empty list" : gy_jtype_name(gy_jv_type(messages)));
    if (t != GY_J_NONE && t != GY_J_NULL && t != GY_J_ARRAY)
        return gy_err_set(err, GY_E_ARG, "tools: found %s, expected a list of objects", gy_jtype_name(t));
    for (size_t i = 0; i < gy_jv_len(tools); i++)
        if (gy_jv_type(gy_jv_at(tools, i)) != GY_J_OBJECT)
            return gy_err_set(err, GY_E_ARG, "tools[%zu]: found %s, expected an object", i,
                              gy_jtype_name(gy_jv_type(gy_jv_at(tools, i))));
    if (opt->add_generation_prompt && opt->continue_final_message)
        return gy_err_set(err, GY_E_ARG, "continue_final_message and add_generation_prompt exclude each other");
    return check_kwargs(opt->kwargs, err);
}

static int bind_all(gy_jj_run *r, const gy_chat *c, const gy_jv *messages, const gy_jv *tools,
                    const gy_chat_options *opt, gy_err *err) {
    gy_jj_val v;
    if (bind_tokens(r, c) || read_messages(r, messages, opt, err, &v)) return -1;
    gy_jj_bind(r, "messages", v);
    v = gy_jj_none(); /* without tools: defined and none, as transformers has it */
    if (gy_jv_type(tools) == GY_J_ARRAY && gy_jj_convert(r, tools, GY_JJ_DATA, &v)) return -1;
    gy_jj_bind(r, "tools", v);
    gy_jj_bind(r, "documents", gy_jj_none());
    gy_jj_bind(r, "add_generation_prompt", gy_jj_bool(opt->add_generation_prompt));
    if (opt->enable_thinking >= 0) gy_jj_bind(r, "enable_thinking", gy_jj_bool(opt->enable_thinking));
    if (opt->reasoning_effort) {
        if (gy_jj_str(r, opt->reasoning_effort, strlen(opt->reasoning_effort), GY_JJ_DATA, &v)) return -1;
        gy_jj_bind(r, "reasoning_effort", v);
    }
    return bind_kwargs(r, opt->kwargs);
}

/* The output up to the last byte of the last message's content. */
static gy_status cut_final(gy_jj_buf *b, gy_err *err) {
    size_t end = b->len;
    while (end > 0 && !((b->marks ? b->marks[end - 1] : b->origin) & GY_JJ_FINAL)) end--;
    if (!end)
        return gy_err_set(err, GY_E_ARG,
                          "continue_final_message: the chat template does not show the content of the last message, or "
                          "it is empty: there is nothing to continue");
    b->len = end;
    return GY_OK;
}

static gy_status render_with(gy_jj_run *r, const gy_chat *c, const gy_jv *messages, const gy_jv *tools,
                             const gy_chat_options *opt, gy_err *err, gy_jinja_out *out) {
    gy_jj_buf b;
    if (bind_all(r, c, messages, tools, opt, err)) return err->status;
    GY_TRY(gy_jj_run_go(r, &b));
    if (opt->continue_final_message) GY_TRY(cut_final(&b, err));
    return gy_jj_split(&b, err, out);
}

gy_status gy_chat_render(const gy_chat *c, const gy_jv *messages, const gy_jv *tools, const gy_chat_options *opt,
                         gy_err *err, gy_jinja_out *out) {
    gy_err here = {0};
    gy_jj_run r;
    if (!err) err = &here; /* the status is read from it */
    const gy_jinja *t = c->tool_use && (gy_jv_len(tools) || !c->main) ? c->tool_use : c->main;
    if (!t)
        return gy_err_set(
            err, GY_E_UNSUPPORTED,
            "%s has no chat template: pass --chat-template FILE with the one this model was trained with, "
            "or send the whole prompt as text to /v1/completions",
            c->name);
    GY_TRY(check_input(messages, tools, opt, err));
    GY_TRY(gy_jj_run_open(t, opt->now, err, &r));
    gy_status st = render_with(&r, c, messages, tools, opt, err, out);
    gy_jj_run_close(&r);
    return st;
}
