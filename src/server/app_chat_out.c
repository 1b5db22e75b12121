/* What comes out of a chat: where its constraint begins, and which schema a call must follow. */
#include "server/app_int.h"

#include "server/oai_write.h"

#include <stdio.h>
#include <string.h>

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

static void put_scalar(gy_str *out, const gy_jv *v) {
    size_t n;
    gy_jw w;
    const char *s = gy_jv_str(v, &n);
    gy_jw_init(&w, out);
    switch (gy_jv_type(v)) {
    case GY_J_STRING:
        gy_oai_put_str(out, s, n);
        return;
    case GY_J_BOOL:
        gy_jw_bool(&w, gy_jv_bool(v, 0));
        return;
    case GY_J_INT:
        gy_oai_put_int(out, gy_jv_int(v, 0));
        return;
    case GY_J_REAL:
        gy_jw_f64(&w, gy_jv_num(v, 0));
        return;
    default:
        gy_jw_null(&w);
    }
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
        put_scalar(m->out, v);
    }
}

/* Arguments are an object, also where the schema leaves that open. */
static void put_parameters(const moved *m, const gy_jv *par) {
    static const char *const says[] = {"type", "$ref", "anyOf", "oneOf", "allOf"};
    if (gy_jv_type(par) != GY_J_OBJECT) {
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
