/* What comes out of a chat: its events' text, made thoughts, content and calls (text/chat_out.h); where its constraint
 * begins, and which schema a call must follow.
 */
#include "server/app_int.h"
#include "server/app_model.h"

#include "base/mem.h"
#include "server/oai_write.h"
#include "text/chat_out.h"

#include <stdio.h>
#include <string.h>

enum { N_MARK = 4, CALL_ID = 40 };

static const char *const marks[N_MARK] = {"<think>", "</think>", "<tool_call>", "</tool_call>"};

typedef struct call_id {
    char s[CALL_ID];
} call_id;

struct gy_app_chat_out {
    gy_chat_out **scan; /* [n] one a choice */
    int32_t n;
    int32_t mark[N_MARK]; /* markers that are special tokens, so that the text is without them; -1: it has them */
    GY_VEC(gy_oai_tool_delta) tools;
    GY_VEC(call_id) ids; /* of the calls that begin in this event */
};

/* ---- life -------------------------------------------------------------------------------------------------------- */

/* A model that has a token for the marker was trained to write it, whatever its template says. */
static int has_thoughts(const gy_app *a) {
    const gy_tok *tok = a->model->tok;
    return gy_app_chat_says(a, "think>") || (tok && gy_tok_id(tok, marks[1], strlen(marks[1])) >= 0);
}

static gy_chat_calls calls_of(const gy_oai_request *q) {
    if (gy_app_wants_call(q)) return GY_CHAT_CALLS_BARE;
    return q->tools && q->tool_choice == GY_OAI_TOOL_AUTO ? GY_CHAT_CALLS_TAGGED : GY_CHAT_CALLS_NONE;
}

static void find_marks(gy_app_chat_out *c, const gy_tok *tok) {
    for (int i = 0; i < N_MARK; i++) {
        int32_t id = tok ? gy_tok_id(tok, marks[i], strlen(marks[i])) : -1;
        c->mark[i] = id >= 0 && gy_tok_is_special(tok, id) ? id : -1;
    }
}

static gy_status fill(gy_app_chat_out *c, const gy_app_req *r, const gy_chat_out_options *o) {
    find_marks(c, r->app->model->tok);
    c->scan = gy_mem_alloc(GY_MEM_SERVER, (size_t)r->q->base.n, sizeof(gy_chat_out *));
    if (!c->scan) return GY_E_NOMEM;
    for (c->n = 0; c->n < r->q->base.n; c->n++) GY_TRY(gy_chat_out_create(o, &c->scan[c->n]));
    if (gy_vec_reserve(&c->tools, GY_MEM_SERVER, 2) || gy_vec_reserve(&c->ids, GY_MEM_SERVER, 2)) return GY_E_NOMEM;
    return GY_OK;
}

/* Tools that the model is not shown are not silently dropped; where the call is forced, the schema shows them. */
static gy_status check_tools(const gy_app_req *r, gy_oai_error *e) {
    if (calls_of(r->q) != GY_CHAT_CALLS_TAGGED || gy_app_chat_reads(r->app, "tools")) return GY_OK;
    return gy_oai_error_set(e, GY_OAI_E_UNSUPPORTED, "tools",
                            "tools: this model's chat template does not show them to the model; leave them out, or say "
                            "tool_choice none or required");
}

gy_status gy_app_chat_out_open(gy_app_req *r, gy_oai_error *e) {
    const gy_oai_request *q = r->q;
    const gy_chat_out_options o = {.reasoning = q->separate_reasoning && has_thoughts(r->app),
                                   .in_reasoning = r->in_reasoning,
                                   .calls = calls_of(q),
                                   .one_call = !q->parallel_tool_calls,
                                   .tools = q->tools};
    if (q->kind != GY_OAI_CHAT) return GY_OK;
    GY_TRY(check_tools(r, e));
    if (!o.reasoning && o.calls == GY_CHAT_CALLS_NONE) return GY_OK;
    r->chat_out = gy_mem_alloc(GY_MEM_SERVER, 1, sizeof *r->chat_out);
    if (r->chat_out && fill(r->chat_out, r, &o) == GY_OK) return GY_OK;
    return gy_oai_error_set(e, GY_OAI_E_BUSY, NULL, "no memory for this request now; try again later");
}

void gy_app_chat_out_close(gy_app_chat_out *c) {
    if (!c) return;
    for (int32_t i = 0; i < c->n; i++) gy_chat_out_destroy(c->scan[i]);
    gy_mem_free(c->scan);
    gy_vec_free(&c->tools);
    gy_vec_free(&c->ids);
    gy_mem_free(c);
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

/* A marker that is a special token stands behind the text that its token let go. Text that waits for a stop string or
 * for the rest of a character at that moment comes to stand behind the marker. */
static void push(gy_app_chat_out *c, gy_chat_out *s, const gyre_event *ev) {
    gy_chat_out_push(s, ev->text, ev->n_text);
    for (int i = 0; ev->kind == GYRE_EVENT_TOKEN && i < N_MARK; i++)
        if (ev->id == c->mark[i]) gy_chat_out_push(s, marks[i], strlen(marks[i]));
}

static void push_last(const gy_oai_request *q, gy_chat_out *s, int32_t stop) {
    if (q->include_stop && stop >= 0 && stop < q->base.n_stop)
        gy_chat_out_push(s, q->base.stop[stop].s, q->base.stop[stop].n);
    gy_chat_out_finish(s);
}

static gy_status take_calls(gy_app_req *r, const gy_chat_delta *d) {
    gy_app_chat_out *c = r->chat_out;
    size_t n = (size_t)d->n_call;
    c->tools.len = c->ids.len = 0;
    if (gy_vec_reserve(&c->tools, GY_MEM_SERVER, n) || gy_vec_reserve(&c->ids, GY_MEM_SERVER, n)) return GY_E_NOMEM;
    for (size_t i = 0; i < n; i++) {
        const gy_chat_call_delta *k = &d->calls[i];
        char *id = c->ids.data[i].s, own[32];
        if (k->name) {
            gy_app_new_id(r->app, own, sizeof own);
            snprintf(id, CALL_ID, "call_%s", own);
        }
        c->tools.data[c->tools.len++] = (gy_oai_tool_delta){.index = k->index,
                                                            .id = k->name ? id : NULL,
                                                            .name = k->name,
                                                            .arguments = k->arguments,
                                                            .n_arguments = k->n_arguments};
    }
    return GY_OK;
}

gy_status gy_app_chat_out_event(gy_app_req *r, const gyre_event *ev, gy_oai_delta *d) {
    gy_app_chat_out *c = r->chat_out;
    gy_chat_out *s = c->scan[ev->choice];
    gy_chat_delta got;
    push(c, s, ev);
    if (ev->kind == GYRE_EVENT_FINISH) push_last(r->q, s, ev->finish->stop_string);
    GY_TRY(gy_chat_out_take(s, &got));
    GY_TRY(take_calls(r, &got));
    *d = (gy_oai_delta){.content = got.content,
                        .n_content = got.n_content,
                        .reasoning = got.reasoning,
                        .n_reasoning = got.n_reasoning,
                        .tools = c->tools.data,
                        .n_tool = (int32_t)c->tools.len,
                        .is_reasoning = got.is_reasoning};
    return GY_OK;
}

/* ---- constraints ------------------------------------------------------------------------------------------------- */

const char *gy_app_chat_trigger(const gy_app_req *r) {
    return r->in_reasoning ? "</think>" : "";
}

/* ---- the schema of a call ---------------------------------------------------------------------------------------- */

int gy_app_wants_call(const gy_oai_request *q) {
    return q->tools && (q->tool_choice == GY_OAI_TOOL_REQUIRED || q->tool_choice == GY_OAI_TOOL_NAMED);
}

/* One schema inside a larger one: "#/..." of its own are paths from the larger one's root. */
typedef struct moved {
    gy_str *out;
    const char *root; /* where the schema stands now: "#/anyOf/0/properties/arguments" */
} moved;

typedef enum moved_kind { SCHEMA, SCHEMAS, VALUE } moved_kind; /* SCHEMAS: a map of names to them */

static moved_kind member_kind(moved_kind of, const char *key) {
    static const char *const maps[] = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"};
    static const char *const values[] = {"const", "enum", "default", "examples", "example"};
    if (of == SCHEMAS) return SCHEMA;
    for (size_t i = 0; of == SCHEMA && i < sizeof maps / sizeof *maps; i++)
        if (!strcmp(key, maps[i])) return SCHEMAS;
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        if (!strcmp(key, values[i])) return VALUE;
    return of;
}

static void put_ref(const moved *m, const gy_jv *v) {
    size_t n;
    gy_str path = {0};
    const char *s = gy_jv_str(v, &n);
    gy_str_puts(&path, m->root);
    gy_str_append(&path, s + 1, n - 1);
    gy_oai_put_str(m->out, gy_str_z(&path), path.len);
    m->out->failed |= path.failed;
    gy_str_free(&path);
}

static int is_ref(moved_kind of, const char *key, const gy_jv *v) {
    const char *s = gy_jv_str(v, NULL);
    return of == SCHEMA && s && s[0] == '#' && !strcmp(key, "$ref");
}

static void put_value(const moved *m, const gy_jv *v, moved_kind kind);

static void put_members(const moved *m, const gy_jv *v, moved_kind kind) {
    int n = 0;
    for (void *it = gy_jv_first(v); it; it = gy_jv_next(v, it)) {
        size_t n_key;
        const char *key = gy_jv_key(it, &n_key);
        if (n++) gy_str_putc(m->out, ',');
        gy_oai_put_str(m->out, key, n_key);
        gy_str_putc(m->out, ':');
        if (is_ref(kind, key, gy_jv_val(it)))
            put_ref(m, gy_jv_val(it));
        else
            put_value(m, gy_jv_val(it), member_kind(kind, key));
    }
}

/* As deep as the body's limit on nesting. */
static void put_value(const moved *m, const gy_jv *v, moved_kind kind) {
    gy_jtype t = gy_jv_type(v);
    if (t == GY_J_OBJECT) {
        gy_str_putc(m->out, '{');
        put_members(m, v, kind);
        gy_str_putc(m->out, '}');
    } else if (t == GY_J_ARRAY) {
        gy_str_putc(m->out, '[');
        for (size_t i = 0; i < gy_jv_len(v); i++) {
            if (i) gy_str_putc(m->out, ',');
            put_value(m, gy_jv_at(v, i), kind == SCHEMAS ? SCHEMA : kind);
        }
        gy_str_putc(m->out, ']');
    } else {
        gy_oai_put_scalar(m->out, v);
    }
}

/* A function without parameters is called with {}: compilers of schemas take an empty list for "anything". */
static int has_no_parameters(const gy_jv *par) {
    static const char *const says[] = {"$ref", "anyOf", "oneOf", "allOf", "additionalProperties", "patternProperties"};
    const gy_jv *properties = gy_jv_get(par, "properties");
    for (size_t i = 0; i < sizeof says / sizeof *says; i++)
        if (gy_jv_get(par, says[i])) return 0;
    int empty = gy_jv_type(properties) == GY_J_OBJECT && !gy_jv_len(properties);
    return gy_jv_type(par) != GY_J_OBJECT || (empty && gy_jv_is_str(gy_jv_get(par, "type"), "object"));
}

/* Arguments are an object, also where the schema leaves that open. */
static void put_parameters(const moved *m, const gy_jv *par) {
    static const char *const says[] = {"type", "$ref", "anyOf", "oneOf", "allOf"};
    if (has_no_parameters(par)) {
        GY_OAI_PUT(m->out, "{\"type\":\"object\",\"properties\":{},\"additionalProperties\":false}");
        return;
    }
    int open = 1;
    for (size_t i = 0; i < sizeof says / sizeof *says; i++) open &= !gy_jv_get(par, says[i]);
    gy_str_putc(m->out, '{');
    if (open) GY_OAI_PUT(m->out, "\"type\":\"object\"");
    if (open && gy_jv_len(par)) gy_str_putc(m->out, ',');
    put_members(m, par, SCHEMA);
    gy_str_putc(m->out, '}');
}

static void put_call(const gy_jv *tool, const char *root, gy_str *out) {
    size_t n;
    const gy_jv *f = gy_jv_get(tool, "function");
    const char *name = gy_jv_str(gy_jv_get(f, "name"), &n);
    const moved m = {.out = out, .root = root};
    GY_OAI_PUT(out, "{\"type\":\"object\",\"properties\":{\"name\":{\"const\":");
    gy_oai_put_str(out, name, n);
    GY_OAI_PUT(out, "},\"arguments\":");
    put_parameters(&m, gy_jv_get(f, "parameters"));
    GY_OAI_PUT(out, "},\"required\":[\"name\",\"arguments\"],\"additionalProperties\":false}");
}

static void put_any_call(const gy_jv *tools, gy_str *out) {
    char root[64];
    GY_OAI_PUT(out, "{\"anyOf\":[");
    for (size_t i = 0; i < gy_jv_len(tools); i++) {
        if (i) gy_str_putc(out, ',');
        snprintf(root, sizeof root, "#/anyOf/%zu/properties/arguments", i);
        put_call(gy_jv_at(tools, i), root, out);
    }
    GY_OAI_PUT(out, "]}");
}

static const gy_jv *named_tool(const gy_oai_request *q) {
    for (size_t i = 0; i < gy_jv_len(q->tools); i++) {
        const gy_jv *tool = gy_jv_at(q->tools, i);
        if (gy_jv_is_str(gy_jv_get(gy_jv_get(tool, "function"), "name"), q->tool_name)) return tool;
    }
    return NULL;
}

gy_status gy_app_tool_schema(const gy_oai_request *q, gy_oai_error *e, gy_str *out) {
    GY_CHECK(gy_app_wants_call(q));
    if (q->constraint.kind != GY_OAI_FREE)
        return gy_oai_error_set(e, GY_OAI_E_BAD_REQUEST, "tool_choice",
                                "tool_choice: found a call that must be made beside %s, expected one of them",
                                q->constraint.field);
    if (q->tool_choice == GY_OAI_TOOL_NAMED)
        put_call(named_tool(q), "#/properties/arguments", out);
    else
        put_any_call(q->tools, out);
    return out->failed ? gy_oai_error_set(e, GY_OAI_E_BUSY, NULL, "no memory for this request now; try again later")
                       : GY_OK;
}
