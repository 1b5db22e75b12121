/* Who may ask for what: routes, keys, Host and Origin, preflights. All of it is decided on the head, before a byte of
 * the body is read; what is refused here costs no memory.
 */
#include "server/app_int.h"

#include "base/clock.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static const char GET[] = "GET", POST[] = "POST";
static const char GETS[] = "GET, HEAD, OPTIONS", POSTS[] = "POST, OPTIONS";

static const gy_app_route routes[] = {
    {"/v1/completions", POST, POSTS, GY_OAI_R_COMPLETIONS, GY_OAI_COMPLETION, 0, 0, gy_app_take, gy_app_generate},
    {"/v1/chat/completions", POST, POSTS, GY_OAI_R_CHAT, GY_OAI_CHAT, 0, 0, gy_app_take, gy_app_generate},
    {"/tokenize", POST, POSTS, GY_OAI_R_TOKENIZE, GY_OAI_TOKENIZE, 0, 0, gy_app_take, gy_app_tokenize},
    {"/detokenize", POST, POSTS, GY_OAI_R_DETOKENIZE, GY_OAI_DETOKENIZE, 0, 0, gy_app_take, gy_app_detokenize},
    {"/apply_template", POST, POSTS, GY_OAI_R_TEMPLATE, GY_OAI_TEMPLATE, 0, 0, gy_app_take, gy_app_template},
    {"/v1/models", GET, GETS, GY_OAI_R_MODELS, 0, 0, 0, gy_app_models, NULL},
    {"/v1/models/*", GET, GETS, GY_OAI_R_MODELS, 0, 0, 0, gy_app_one_model, NULL},
    {"/health", GET, GETS, GY_OAI_R_HEALTH, 0, 1, 1, gy_app_health, NULL},
    {"/metrics", GET, GETS, GY_OAI_R_METRICS, 0, 0, 0, gy_app_metrics, NULL},
    {"/stats", GET, GETS, GY_OAI_R_OTHER, 0, 0, 0, gy_app_stats, NULL},
    {"/version", GET, GETS, GY_OAI_R_VERSION, 0, 0, 1, gy_app_version, NULL},
    {"/openapi.json", GET, GETS, GY_OAI_R_OTHER, 0, 0, 1, gy_app_openapi, NULL},
    {"/", GET, GETS, GY_OAI_R_OTHER, 0, 1, 1, gy_app_root, NULL},
    {"/page/*", GET, GETS, GY_OAI_R_OTHER, 0, 1, 1, gy_app_page, NULL},
};

static const gy_app_route *find_route(const char *path, size_t n) {
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        size_t len = strlen(routes[i].path);
        if (routes[i].path[len - 1] == '*') {
            if (n >= len && !memcmp(path, routes[i].path, len - 1)) return &routes[i];
        } else if (n == len && !memcmp(path, routes[i].path, n)) {
            return &routes[i];
        }
    }
    return NULL;
}

/* ---- what is kept of a head ------------------------------------------------------------------------------------- */

void gy_app_new_id(gy_app *a, char *out, size_t cap) {
    /* A counter under a key drawn at start: two rounds of a 64-bit mixer (Steele et al., SplitMix, OOPSLA 2014). */
    uint64_t x = a->id_key[0] + ++a->n_id * 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    x ^= x >> 31;
    snprintf(out, cap, "%016llx%08llx", (unsigned long long)x,
             (unsigned long long)((a->id_key[1] + a->n_id) & 0xffffffff));
}

static void copy_cut(char *out, size_t cap, const char *s, size_t n) {
    if (n >= cap) n = cap - 1;
    memcpy(out, s, n);
    out[n] = '\0';
}

/* A client's own id is kept where it can stand in a header and in a log. */
static int is_fit_id(const char *s, size_t n) {
    if (n == 0 || n > GY_APP_MAX_ID) return 0;
    for (size_t i = 0; i < n; i++)
        if (s[i] <= ' ' || s[i] > '~') return 0;
    return 1;
}

static void call_init(gy_app *a, const gy_http_req *r, gy_app_call *c) {
    const gy_http_head *h = gy_http_req_head(r);
    const char *v;
    size_t n;
    memset(c, 0, sizeof *c);
    c->start_ns = gy_clock_ns();
    c->wall_ns = gy_clock_wall_ns();
    gy_http_req_peer(r, c->peer);
    if (h && gy_http_req_field(r, "x-request-id", &v, &n) > 0 && is_fit_id(v, n))
        copy_cut(c->id, sizeof c->id, v, n);
    else
        gy_app_new_id(a, c->id, sizeof c->id);
    if (!h) return;
    const char *bytes = gy_http_req_bytes(r);
    copy_cut(c->method, sizeof c->method, bytes + h->method.off, h->method.len);
    c->n_target = h->target.len < sizeof c->target ? h->target.len : sizeof c->target;
    memcpy(c->target, bytes + h->target.off, c->n_target);
    if (gy_http_req_field(r, "user-agent", &v, &n) > 0) copy_cut(c->agent, sizeof c->agent, v, n);
    const char *path = gy_http_req_path(r, &n);
    c->route = find_route(path, n);
}

/* ---- Host and Origin -------------------------------------------------------------------------------------------- */

static int is_name(const char *s, size_t n, const char *name) {
    return strlen(name) == n && !strncasecmp(s, name, n);
}

static int is_any_of(const gy_app_strings *list, const char *s, size_t n) {
    for (size_t i = 0; i < list->n; i++)
        if (!strcmp(list->s[i], "*") || is_name(s, n, list->s[i])) return 1;
    return 0;
}

static size_t without_port(const char *s, size_t n) {
    if (n && s[0] == '[') {
        const char *end = memchr(s, ']', n);
        return end ? (size_t)(end - s) + 1 : n;
    }
    const char *colon = memchr(s, ':', n);
    return colon ? (size_t)(colon - s) : n;
}

/* An address, in brackets or dotted: a name server cannot make one mean another machine. */
static int is_address(const char *s, size_t n) {
    if (n && s[0] == '[') return 1;
    for (size_t i = 0; i < n; i++)
        if (s[i] != '.' && (s[i] < '0' || s[i] > '9')) return 0;
    return n > 0;
}

static int is_loopback(const char *host) {
    return !strcmp(host, "localhost") || !strncmp(host, "127.", 4) || !strcmp(host, "::1");
}

static int is_host_allowed(const gy_app *a, const gy_http_req *r) {
    const gy_http_head *h = gy_http_req_head(r);
    const char *host = gy_http_req_bytes(r) + h->host.off;
    size_t n = without_port(host, h->host.len);
    if (n == 0) return h->minor == 0; /* HTTP/1.0 may leave it out, browsers never do */
    if (a->o.hosts.n) return is_any_of(&a->o.hosts, host, n);
    return !is_loopback(a->o.http.host) || is_name(host, n, "localhost") || is_address(host, n);
}

static int is_own_page(const gy_http_req *r, const char *origin, size_t n) {
    const gy_http_head *h = gy_http_req_head(r);
    const char *at = strstr(origin, "://");
    if (!at || !h->host.len) return 0;
    size_t skip = (size_t)(at - origin) + 3;
    return n - skip == h->host.len && !strncasecmp(origin + skip, gy_http_req_bytes(r) + h->host.off, n - skip);
}

/* 0: a page of somebody else. Sets what its browser is to be told. */
static int check_origin(const gy_app *a, const gy_http_req *r, gy_app_call *c) {
    const char *v;
    size_t n;
    char origin[256];
    int count = gy_http_req_field(r, "origin", &v, &n);
    if (count == 0) return 1;
    if (count > 1 || n >= sizeof origin) return 0;
    copy_cut(origin, sizeof origin, v, n);
    for (size_t i = 0; i < a->o.origins.n; i++)
        if (!strcmp(a->o.origins.s[i], "*") || !strcasecmp(a->o.origins.s[i], origin)) {
            c->cors = a->o.origins.s[i];
            return 1;
        }
    return is_own_page(r, origin, n);
}

/* ---- keys ------------------------------------------------------------------------------------------------------- */

/* Time depends on what was sent only: all of it is compared with all keys, wherever they differ. */
static int is_key(const gy_app_strings *keys, const char *s, size_t n) {
    unsigned found = 0;
    for (size_t k = 0; k < keys->n; k++) {
        size_t len = strlen(keys->s[k]);
        size_t diff = len ^ n;
        for (size_t i = 0; i < n; i++) diff |= (size_t)(unsigned char)(s[i] ^ keys->s[k][len ? i % len : 0]);
        found |= (unsigned)(diff == 0);
    }
    return found != 0;
}

static int has_key(const gy_app *a, const gy_http_req *r) {
    static const char scheme[] = "Bearer ";
    const char *v;
    size_t n;
    if (a->o.keys.n == 0) return 1;
    if (gy_http_req_field(r, "authorization", &v, &n) != 1) return 0;
    size_t skip = sizeof scheme - 1;
    if (n < skip || strncasecmp(v, scheme, skip) != 0) return 0;
    while (skip < n && v[skip] == ' ') skip++;
    return is_key(&a->o.keys, v + skip, n - skip);
}

/* ---- on the head ------------------------------------------------------------------------------------------------ */

static int is_json(const gy_http_req *r) {
    static const char type[] = "application/json";
    const char *v;
    size_t n, len = sizeof type - 1;
    if (gy_http_req_field(r, "content-type", &v, &n) != 1 || n < len || strncasecmp(v, type, len) != 0) return 0;
    return n == len || v[len] == ';' || v[len] == ' ' || v[len] == '\t';
}

static int is_method(const gy_app_call *c) {
    return !strcmp(c->method, c->route->method) || (c->route->method == GET && !strcmp(c->method, "HEAD"));
}

static gy_status check_who(gy_app *a, const gy_http_req *r, gy_app_call *c, gy_oai_error *e) {
    if (!is_host_allowed(a, r))
        return gy_oai_error_set(e, GY_OAI_E_FORBIDDEN, NULL,
                                "this server does not answer to the name in the Host field (--allowed-host)");
    if (!check_origin(a, r, c))
        return gy_oai_error_set(e, GY_OAI_E_FORBIDDEN, NULL,
                                "web pages of this Origin may not ask this server (--allowed-origin)");
    /* A browser's preflight carries no key. */
    if ((c->route && c->route->open) || !strcmp(c->method, "OPTIONS") || has_key(a, r)) return GY_OK;
    return gy_oai_error_set(e, GY_OAI_E_KEY, NULL,
                            "no valid API key: send the header Authorization: Bearer KEY with a key of this server");
}

static gy_status check_what(gy_app *a, const gy_http_req *r, const gy_app_call *c, gy_oai_error *e) {
    if (!c->route)
        return gy_oai_error_set(e, GY_OAI_E_ROUTE, NULL,
                                "there is nothing at this path; GET /openapi.json lists what there is");
    if (!is_method(c)) {
        gy_status st = gy_oai_error_set(e, GY_OAI_E_METHOD, NULL, "%s takes %s only", c->route->path, c->route->method);
        e->allow = c->route->allow;
        return st;
    }
    if (!c->route->early && !gy_app_is_ready(a, e)) return GY_E_TIMEOUT;
    if (c->route->method == POST && !is_json(r))
        return gy_oai_error_set(e, GY_OAI_E_CONTENT_TYPE, NULL,
                                "the body must be sent as Content-Type: application/json");
    return GY_OK;
}

void gy_app_on_head(void *user, gy_http_req *r) {
    gy_app *a = user;
    gy_app_call c;
    gy_oai_error e;
    call_init(a, r, &c);
    if (check_who(a, r, &c, &e) < 0) {
        gy_app_refuse(a, r, &c, &e, NULL);
    } else if (!strcmp(c.method, "OPTIONS") && c.route) {
        gy_app_empty(a, r, &c);
    } else if (check_what(a, r, &c, &e) < 0) {
        gy_app_refuse(a, r, &c, &e, NULL);
    }
}

void gy_app_on_request(void *user, gy_http_req *r) {
    gy_app *a = user;
    gy_app_call c;
    gy_oai_error e;
    call_init(a, r, &c);
    check_origin(a, r, &c);
    gy_http_req_body(r, &c.bytes_in);
    /* The state may have changed while the body came. */
    if (check_what(a, r, &c, &e) < 0)
        gy_app_refuse(a, r, &c, &e, NULL);
    else
        c.route->run(a, r, &c);
}

void gy_app_on_refused(void *user, gy_http_req *r, int status, const char *what) {
    gy_app *a = user;
    gy_app_call c;
    gy_oai_error e;
    call_init(a, r, &c);
    if (gy_http_req_head(r)) check_origin(a, r, &c); /* else its page could not read why */
    gy_oai_error_kind kind = status == 408   ? GY_OAI_E_DEADLINE
                             : status == 413 ? GY_OAI_E_BODY_SIZE
                             : status == 431 ? GY_OAI_E_HEADER_SIZE
                             : status == 503 ? GY_OAI_E_BUSY
                                             : GY_OAI_E_HTTP;
    gy_oai_error_set(&e, kind, NULL, "%s", what);
    e.http = status; /* the parser's: 400, 414, 417, 501, 505 are one row of the table */
    gy_app_refuse(a, r, &c, &e, NULL);
}
