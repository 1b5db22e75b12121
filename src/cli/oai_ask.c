/* What servers say went wrong, as text; and calls that are waited for. */
#include "cli/oai_client_int.h"

#include "base/json.h"

#include <string.h>

enum { SHOWN_MAX = 300 };

/* ---- errors as text ---- */

void oai_put_clean(const char *s, size_t len, size_t max, gy_str *out) {
    gy_str valid = {0};
    if (len > max) len = max - (size_t)gy_utf8_incomplete_tail(s, max);
    gy_utf8_sanitize(s, len, &valid);
    for (size_t i = 0; i < valid.len; i++) {
        const unsigned char c = (unsigned char)valid.data[i];
        gy_str_putc(out, c < ' ' || c == 127 ? ' ' : (char)c);
    }
    gy_str_free(&valid);
}

/* The first of the members that is a text. */
static const char *text_in(const gy_jv *v, const char *const *names, size_t *len) {
    for (; *names; names++) {
        const char *s = gy_jv_str(gy_jv_get(v, *names), len);
        if (s) return s;
    }
    return NULL;
}

static const char *find_error(const gy_jv *root, size_t *len) {
    static const char *const inside[] = {"message", "type", NULL};
    static const char *const outside[] = {"error", "message", "detail", NULL};
    const char *s = text_in(gy_jv_get(root, "error"), inside, len);
    return s ? s : text_in(root, outside, len);
}

void gy_oai_put_error(const char *body, size_t len, gy_str *out) {
    gy_json *doc = NULL;
    size_t n = 0;
    const char *s = gy_json_parse(body, len, NULL, NULL, &doc) < 0 ? NULL : find_error(gy_json_root(doc), &n);
    oai_put_clean(s ? s : body, s ? n : len, SHOWN_MAX, out);
    gy_json_free(doc);
}

/* ---- one call, waited for ---- */

typedef struct fetch {
    gy_str *body;
    gy_err *err;
    int ended, status;
    gy_status st;
} fetch;

static void fetch_end(void *user, const gy_oai_result *r) {
    fetch *f = user;
    f->ended = 1;
    f->status = r->http_status;
    if (r->end == GY_OAI_DONE)
        gy_str_append(f->body, r->body, r->body_len);
    else
        f->st = gy_err_set(f->err,
                           r->end == GY_OAI_TIMEOUT     ? GY_E_TIMEOUT
                           : r->end == GY_OAI_NO_MEMORY ? GY_E_NOMEM
                                                        : GY_E_PEER,
                           "%s", r->msg);
    if (f->body->failed) f->st = gy_err_set(f->err, GY_E_NOMEM, "no memory for the reply");
}

/* The fetch is over before its call is. */
static void fetch_forget(void *user, const gy_oai_result *r) {
    (void)user;
    (void)r;
}

gy_status gy_oai_fetch(gy_oai *c, const char *path, gy_err *err, gy_str *body_out, int *http_status_out) {
    const gy_oai_hooks hooks = {.on_end = fetch_end};
    fetch f = {.body = body_out, .err = err};
    gy_oai_call *call = NULL;
    GY_TRY(gy_oai_get(c, path, &hooks, &f, err, &call));
    while (!f.ended) {
        const gy_status st = gy_oai_step(c, -1, err);
        if (st >= 0) continue;
        call->hooks.on_end = fetch_forget;
        gy_oai_cancel(call);
        return st;
    }
    if (http_status_out) *http_status_out = f.status;
    if (f.st < 0) gy_err_prefix(err, "%s%s", c->base, path);
    return f.st;
}

gy_status gy_oai_first_model(gy_oai *c, gy_err *err, char **name_out) {
    gy_str body = {0};
    gy_json *doc = NULL;
    char *name = NULL;
    gy_status st = gy_oai_fetch(c, "/v1/models", err, &body, NULL);
    if (st == GY_OK) {
        size_t len = 0;
        const int bad = gy_json_parse(gy_str_z(&body), body.len, NULL, NULL, &doc) < 0;
        const gy_jv *first = bad ? NULL : gy_jv_at(gy_jv_get(gy_json_root(doc), "data"), 0);
        const char *id = gy_jv_str(gy_jv_get(first, "id"), &len);
        if (!id || strlen(id) != len)
            st =
                gy_err_set(err, GY_E_FORMAT, "%s/v1/models: found no data[0].id; name the model with --model", c->base);
        else if (!(name = gy_mem_strdup(GY_MEM_CLI, id)))
            st = gy_err_set(err, GY_E_NOMEM, "no memory for the model's name");
    }
    gy_json_free(doc);
    gy_str_free(&body);
    if (st == GY_OK) *name_out = name;
    return st;
}
