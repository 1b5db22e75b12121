/* messages, tools, tool_choice, chat_template_kwargs. A template in a request is refused, also inside the kwargs: what
 * a client sends is data, and other servers have been made to loop for ever or to run code that way.
 */
#include "server/oai_int.h"

#include <stdio.h>
#include <string.h>

enum { PATH = 64, NAME_BYTES = 256 };

static const char *const role_names[GY_OAI_N_ROLE] = {"system", "developer", "user", "assistant", "tool"};

const char *gy_oai_role_name(gy_oai_role r) {
    return (unsigned)r < GY_OAI_N_ROLE ? role_names[r] : "unknown";
}

/* ---- content ---------------------------------------------------------------------------------------------------- */

/* The member that holds a part's text, by its type. "refusal" parts come back in what clients replay. */
static const char *text_member(const gy_jv *type) {
    if (gy_jv_is_str(type, "refusal")) return "refusal";
    int text = gy_jv_is_str(type, "text") || gy_jv_is_str(type, "input_text") || gy_jv_is_str(type, "output_text");
    return text ? "text" : NULL;
}

/* The text of one part, NULL if it is none. */
static const char *part_text(const gy_jv *part, size_t *n) {
    const char *member = text_member(gy_jv_get(part, "type"));
    return member ? gy_jv_str(gy_jv_get(part, member), n) : NULL;
}

static gy_status bad_part(gy_oai_reader *p, const char *field, size_t i, const gy_jv *part) {
    char at[PATH + 24];
    const gy_jv *type = gy_jv_get(part, "type");
    gy_oai_at(at, sizeof at, "%s[%zu]", field, i);
    if (gy_jv_type(part) != GY_J_OBJECT) return gy_oai_expected(p, at, part, "an object with type and text");
    const char *member = text_member(type);
    if (member) {
        gy_oai_at(at, sizeof at, "%s[%zu].%s", field, i, member);
        return gy_oai_expected(p, at, gy_jv_get(part, member), "a string");
    }
    gy_oai_at(at, sizeof at, "%s[%zu].type", field, i);
    return gy_oai_expected(p, at, type, "\"text\": the model reads nothing else");
}

static gy_status read_parts(gy_oai_reader *p, const char *field, const gy_jv *v, gy_oai_message *m) {
    size_t total = 0, n, count = gy_jv_len(v);
    for (size_t i = 0; i < count; i++) {
        if (!part_text(gy_jv_at(v, i), &n)) return bad_part(p, field, i, gy_jv_at(v, i));
        total += n + 1;
    }
    char *to = gy_arena_alloc(p->r->arena, total + 1, 1);
    if (!to) return gy_oai_no_memory(p);
    m->content = to;
    for (size_t i = 0; i < count; i++) {
        const char *s = part_text(gy_jv_at(v, i), &n);
        if (i) *to++ = '\n';
        if (n) memcpy(to, s, n);
        to += n;
    }
    m->n_content = (size_t)(to - m->content);
    return GY_OK;
}

static gy_status read_content(gy_oai_reader *p, const char *field, const gy_jv *v, gy_oai_message *m) {
    if (gy_jv_type(v) == GY_J_ARRAY) return read_parts(p, field, v, m);
    if (gy_jv_type(v) == GY_J_STRING) {
        m->content = gy_jv_str(v, &m->n_content);
        return GY_OK;
    }
    if (!gy_oai_present(v) && m->role == GY_OAI_ASSISTANT && (m->tool_calls || m->reasoning)) return GY_OK;
    return gy_oai_expected(p, field, v, "a string or an array of text parts");
}

/* ---- messages --------------------------------------------------------------------------------------------------- */

static gy_status check_call(gy_oai_reader *p, const char *field, const gy_jv *call) {
    char at[PATH + 40];
    const gy_jv *f = gy_jv_get(call, "function"), *name = gy_jv_get(f, "name"), *args = gy_jv_get(f, "arguments");
    if (gy_jv_type(call) != GY_J_OBJECT) return gy_oai_expected(p, field, call, "an object");
    gy_oai_at(at, sizeof at, "%s.function", field);
    if (gy_jv_type(f) != GY_J_OBJECT) return gy_oai_expected(p, at, f, "an object with name and arguments");
    gy_oai_at(at, sizeof at, "%s.function.name", field);
    if (gy_jv_type(name) != GY_J_STRING) return gy_oai_expected(p, at, name, "a string");
    gy_oai_at(at, sizeof at, "%s.function.arguments", field);
    if (gy_oai_present(args) && gy_jv_type(args) != GY_J_STRING && gy_jv_type(args) != GY_J_OBJECT)
        return gy_oai_expected(p, at, args, "a string of JSON");
    gy_oai_at(at, sizeof at, "%s.id", field);
    const gy_jv *id = gy_jv_get(call, "id");
    return !gy_oai_present(id) || gy_jv_type(id) == GY_J_STRING ? GY_OK : gy_oai_expected(p, at, id, "a string");
}

static gy_status read_calls(gy_oai_reader *p, const char *field, const gy_jv *v, gy_oai_message *m) {
    if (gy_jv_type(v) != GY_J_ARRAY) return gy_oai_expected(p, field, v, "an array");
    for (size_t i = 0; i < gy_jv_len(v); i++) {
        char at[PATH + 24];
        gy_oai_at(at, sizeof at, "%s[%zu]", field, i);
        GY_TRY(check_call(p, at, gy_jv_at(v, i)));
    }
    m->tool_calls = gy_jv_len(v) ? v : NULL;
    return GY_OK;
}

static gy_status read_role(gy_oai_reader *p, const char *field, const gy_jv *v, gy_oai_role *out) {
    for (int r = 0; r < GY_OAI_N_ROLE; r++) {
        if (!gy_jv_is_str(v, role_names[r])) continue;
        *out = (gy_oai_role)r;
        return GY_OK;
    }
    return gy_oai_expected(p, field, v, "system, developer, user, assistant or tool");
}

static gy_status read_names(gy_oai_reader *p, size_t i, const gy_jv *v, gy_oai_message *m) {
    char at[PATH];
    const gy_jv *name = gy_jv_get(v, "name"), *id = gy_jv_get(v, "tool_call_id");
    gy_oai_at(at, sizeof at, "messages[%zu].name", i);
    if (gy_oai_present(name)) GY_TRY(gy_oai_read_str(p, at, name, NAME_BYTES, &m->name));
    gy_oai_at(at, sizeof at, "messages[%zu].tool_call_id", i);
    if (gy_oai_present(id)) GY_TRY(gy_oai_read_str(p, at, id, NAME_BYTES, &m->tool_call_id));
    return GY_OK;
}

static gy_status read_reasoning(gy_oai_reader *p, size_t i, const gy_jv *v, gy_oai_message *m) {
    char at[PATH];
    const gy_jv *r = gy_jv_get(v, "reasoning_content");
    if (!gy_oai_present(r)) r = gy_jv_get(v, "reasoning");
    if (!gy_oai_present(r)) return GY_OK;
    gy_oai_at(at, sizeof at, "messages[%zu].reasoning_content", i);
    m->reasoning = gy_jv_str(r, &m->n_reasoning);
    return m->reasoning ? GY_OK : gy_oai_expected(p, at, r, "a string");
}

static gy_status read_message(gy_oai_reader *p, size_t i, const gy_jv *v, gy_oai_message *m) {
    char at[PATH];
    gy_oai_at(at, sizeof at, "messages[%zu]", i);
    if (gy_jv_type(v) != GY_J_OBJECT) return gy_oai_expected(p, at, v, "an object with role and content");
    m->json = v;
    gy_oai_at(at, sizeof at, "messages[%zu].role", i);
    GY_TRY(read_role(p, at, gy_jv_get(v, "role"), &m->role));
    GY_TRY(read_names(p, i, v, m));
    GY_TRY(read_reasoning(p, i, v, m));
    gy_oai_at(at, sizeof at, "messages[%zu].tool_calls", i);
    const gy_jv *calls = gy_jv_get(v, "tool_calls");
    if (gy_oai_present(calls)) GY_TRY(read_calls(p, at, calls, m));
    gy_oai_at(at, sizeof at, "messages[%zu].content", i);
    return read_content(p, at, gy_jv_get(v, "content"), m);
}

gy_status gy_oai_read_messages(gy_oai_reader *p, const gy_jv *v) {
    size_t n = gy_jv_len(v);
    if (gy_jv_type(v) != GY_J_ARRAY || !n || n > INT32_MAX)
        return gy_oai_expected(p, "messages", v, "an array of at least one message");
    if (!p->cfg->has_tokenizer)
        return gy_oai_refuse(
            p, GY_OAI_E_BAD_REQUEST, "messages",
            "found text, but the model's folder holds no tokenizer: use /v1/completions with token ids");
    p->r->messages = gy_arena_alloc(p->r->arena, n, sizeof *p->r->messages);
    p->r->prompts = gy_arena_alloc(p->r->arena, 1, sizeof *p->r->prompts);
    if (!p->r->messages || !p->r->prompts) return gy_oai_no_memory(p);
    p->r->n_prompt = 1;
    p->r->n_message = (int32_t)n;
    for (size_t i = 0; i < n; i++) GY_TRY(read_message(p, i, gy_jv_at(v, i), &p->r->messages[i]));
    return GY_OK;
}

/* ---- tools ------------------------------------------------------------------------------------------------------ */

static int is_tool_name(const gy_jv *v) {
    size_t n = 0;
    const char *s = gy_jv_str(v, &n);
    return s && n >= 1 && n <= 64 &&
           strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") == n;
}

static gy_status check_tool(gy_oai_reader *p, size_t i, const gy_jv *tool) {
    char at[PATH];
    const gy_jv *f = gy_jv_get(tool, "function"), *name = gy_jv_get(f, "name"), *par = gy_jv_get(f, "parameters");
    gy_oai_at(at, sizeof at, "tools[%zu]", i);
    if (gy_jv_type(tool) != GY_J_OBJECT) return gy_oai_expected(p, at, tool, "an object with type and function");
    gy_oai_at(at, sizeof at, "tools[%zu].type", i);
    if (!gy_jv_is_str(gy_jv_get(tool, "type"), "function"))
        return gy_oai_expected(p, at, gy_jv_get(tool, "type"), "\"function\"");
    gy_oai_at(at, sizeof at, "tools[%zu].function", i);
    if (gy_jv_type(f) != GY_J_OBJECT) return gy_oai_expected(p, at, f, "an object");
    gy_oai_at(at, sizeof at, "tools[%zu].function.name", i);
    if (!is_tool_name(name)) return gy_oai_expected(p, at, name, "1 to 64 letters, digits, '_', '-' or '.'");
    gy_oai_at(at, sizeof at, "tools[%zu].function.parameters", i);
    if (gy_oai_present(par) && gy_jv_type(par) != GY_J_OBJECT)
        return gy_oai_expected(p, at, par, "a JSON schema (an object)");
    return GY_OK;
}

static int has_tool(const gy_jv *tools, const gy_jv *name) {
    size_t n;
    const char *s = gy_jv_str(name, &n);
    for (size_t i = 0; s && strlen(s) == n && i < gy_jv_len(tools); i++)
        if (gy_jv_is_str(gy_jv_get(gy_jv_get(gy_jv_at(tools, i), "function"), "name"), s)) return 1;
    return 0;
}

static gy_status read_named_choice(gy_oai_reader *p, const gy_jv *v) {
    const gy_jv *name = gy_jv_get(gy_jv_get(v, "function"), "name");
    if (!gy_jv_is_str(gy_jv_get(v, "type"), "function"))
        return gy_oai_expected(p, "tool_choice.type", gy_jv_get(v, "type"), "\"function\"");
    if (!has_tool(p->r->tools, name))
        return gy_oai_expected(p, "tool_choice.function.name", name, "the name of one of the tools");
    p->r->tool_choice = GY_OAI_TOOL_NAMED;
    p->r->tool_name = gy_jv_str(name, NULL);
    return GY_OK;
}

static gy_status read_tool_choice(gy_oai_reader *p, const gy_jv *v) {
    static const char *const names[] = {"none", "auto", "required"};
    if (gy_jv_type(v) == GY_J_OBJECT && p->r->tools) return read_named_choice(p, v);
    for (int i = 0; i < 3; i++) {
        if (!gy_jv_is_str(v, names[i])) continue;
        if (i && !p->r->tools) break;
        p->r->tool_choice = (gy_oai_tool_choice)i;
        return GY_OK;
    }
    if (p->r->tools) return gy_oai_expected(p, "tool_choice", v, "none, auto, required or the name of a function");
    return gy_oai_expected(p, "tool_choice", v, "none, or tools beside it");
}

gy_status gy_oai_read_tools(gy_oai_reader *p) {
    const gy_jv *v = p->tools;
    if (gy_oai_present(v)) {
        if (gy_jv_type(v) != GY_J_ARRAY || !gy_jv_len(v))
            return gy_oai_expected(p, "tools", v, "an array of at least one tool; leave it out for none");
        for (size_t i = 0; i < gy_jv_len(v); i++) GY_TRY(check_tool(p, i, gy_jv_at(v, i)));
        p->r->tools = v;
        p->r->tool_choice = GY_OAI_TOOL_AUTO;
    }
    return gy_oai_present(p->tool_choice) ? read_tool_choice(p, p->tool_choice) : GY_OK;
}

/* ---- what templates are told ------------------------------------------------------------------------------------ */

gy_status gy_oai_read_kwargs(gy_oai_reader *p, const char *field, const gy_jv *v) {
    if (gy_jv_type(v) != GY_J_OBJECT) return gy_oai_expected(p, field, v, "an object");
    if (gy_jv_get(v, "chat_template"))
        return gy_oai_refuse(p, GY_OAI_E_UNSUPPORTED, field,
                             "found chat_template, but templates are never taken from requests");
    const gy_jv *think = gy_jv_get(v, "enable_thinking");
    if (gy_oai_present(think))
        GY_TRY(gy_oai_read_bool(p, "chat_template_kwargs.enable_thinking", think, &p->r->enable_thinking));
    p->r->template_kwargs = v;
    return GY_OK;
}
