/* The playground: a page that is part of the program, and its style, icon and scripts. They are what was compiled in:
 * no folder is read, and no path leads to one.
 *
 * The page holds nothing that is secret, so no key is asked for it; what it asks of the API needs one as ever. It may
 * load and ask this server only, runs no script but its own files, and no text becomes markup (trusted types: a sink
 * that would parse it throws).
 */
#include "server/app_int.h"

#include "server/app_page.h"

#include <string.h>
#include <strings.h>

static const char POLICY[] = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src "
                             "'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
                             "require-trusted-types-for 'script'; trusted-types 'none'";
static const char HTML[] = "text/html; charset=utf-8", CSS[] = "text/css; charset=utf-8";
static const char JS[] = "text/javascript; charset=utf-8", SVG[] = "image/svg+xml";

typedef struct page_file {
    const char *path, *type;
    const unsigned char *bytes;
    const size_t *n;
    const char *tag; /* an entity tag, with its quotes */
} page_file;

static const page_file files[] = {
    {"/", HTML, gy_app_page_html, &gy_app_page_html_len, gy_app_page_html_tag},
    {"/page/page.css", CSS, gy_app_page_css, &gy_app_page_css_len, gy_app_page_css_tag},
    {"/page/page.svg", SVG, gy_app_page_svg, &gy_app_page_svg_len, gy_app_page_svg_tag},
    {"/page/page.js", JS, gy_app_page_main, &gy_app_page_main_len, gy_app_page_main_tag},
    {"/page/api.js", JS, gy_app_page_api, &gy_app_page_api_len, gy_app_page_api_tag},
    {"/page/view.js", JS, gy_app_page_view, &gy_app_page_view_len, gy_app_page_view_tag},
    {"/page/copy.js", JS, gy_app_page_copy, &gy_app_page_copy_len, gy_app_page_copy_tag},
};

static const page_file *find_file(const char *path, size_t n) {
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (strlen(files[i].path) == n && !memcmp(path, files[i].path, n)) return &files[i];
    return NULL;
}

static int has_word(const char *s, size_t n, const char *word) {
    size_t len = strlen(word);
    for (size_t i = 0; i + len <= n; i++)
        if (!strncasecmp(s + i, word, len)) return 1;
    return 0;
}

/* No tag holds another one, and none a quote: finding it anywhere in the list is the comparison that RFC 9110 13.1.2
 * wants. */
static int is_known(const gy_http_req *r, const char *tag) {
    const char *v;
    size_t n;
    if (gy_http_req_field(r, "if-none-match", &v, &n) != 1) return 0;
    return (n == 1 && v[0] == '*') || has_word(v, n, tag);
}

/* no-cache: kept, but asked for each time, so that a page is never older than the program that it talks to. */
static void answer(gy_app *a, gy_http_req *r, const gy_app_call *c, const page_file *f) {
    const gy_http_header extra[] = {{"Content-Security-Policy", POLICY},
                                    {"X-Content-Type-Options", "nosniff"},
                                    {"Referrer-Policy", "no-referrer"},
                                    {"Cross-Origin-Resource-Policy", "same-origin"},
                                    {"Cache-Control", "no-cache"},
                                    {"ETag", f->tag},
                                    {"Vary", "Accept"}};
    int known = is_known(r, f->tag);
    const gy_http_answer ans = {.status = known ? 304 : 200,
                                .content_type = known ? NULL : f->type,
                                .extra = extra,
                                .n_extra = sizeof extra / sizeof *extra};
    gy_app_answer_as(a, r, c, &ans, (const char *)f->bytes, known ? 0 : *f->n);
}

/* Who asks for plain text and says nothing of HTML gets the list of routes. */
static int wants_list(const gy_http_req *r) {
    const char *v;
    size_t n;
    if (gy_http_req_field(r, "accept", &v, &n) < 1) return 0;
    return has_word(v, n, "text/plain") && !has_word(v, n, "text/html");
}

void gy_app_root(gy_app *a, gy_http_req *r, const gy_app_call *c) {
    if (wants_list(r))
        gy_app_list(a, r, c);
    else
        answer(a, r, c, &files[0]);
}

void gy_app_page(gy_app *a, gy_http_req *r, const gy_app_call *c) {
    size_t n;
    gy_oai_error e;
    const char *path = gy_http_req_path(r, &n);
    const page_file *f = find_file(path, n);
    if (f) {
        answer(a, r, c, f);
        return;
    }
    gy_oai_error_set(&e, GY_OAI_E_ROUTE, NULL, "the page has no such file");
    gy_app_refuse(a, r, c, &e, NULL);
}
