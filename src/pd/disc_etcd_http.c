/* Three calls at a time, one of a kind, over libcurl's multi interface; waits only in gy_etcd_http_wait. What is said
 * in them is not looked at. No proxy, no .netrc, nothing of the environment. */
#include "base/mem.h"
#include "pd/disc_etcd.h"

#include <curl/curl.h>
#include <string.h>

enum { CONNECT_MS = 1000, IDLE_S = 5 };

typedef struct lane {
    gy_etcd_http *h;
    CURL *easy;
    int index, is_busy, is_ended;
    CURLcode result;
    gy_str sent, got;
    char why[CURL_ERROR_SIZE];
} lane;

struct gy_etcd_http {
    CURLM *multi;
    struct curl_slist *headers;
    gy_etcd_line_fn *fn;
    void *user;
    lane lanes[GY_ETCD_LANES];
};

/* Whole lines go to their reader, the rest is kept. Nonzero: enough. */
static int take_lines(lane *l) {
    size_t from = 0;
    int stop = 0;
    for (char *end; !stop && from < l->got.len && (end = memchr(l->got.data + from, '\n', l->got.len - from));) {
        size_t n = (size_t)(end - l->got.data) - from;
        if (n) stop = l->h->fn(l->h->user, l->got.data + from, n);
        from += n + 1;
    }
    memmove(l->got.data, l->got.data + from, l->got.len - from);
    l->got.len -= from;
    return stop;
}

static size_t on_bytes(char *bytes, size_t size, size_t n, void *user) {
    lane *l = user;
    long code = 0;
    n *= size;
    if (n > GY_ETCD_MAX_REPLY - l->got.len) return 0;
    gy_str_append(&l->got, bytes, n);
    if (l->got.failed) return 0;
    curl_easy_getinfo(l->easy, CURLINFO_RESPONSE_CODE, &code);
    if (l->index == GY_ETCD_WATCH && code == 200 && l->got.len && take_lines(l)) return 0;
    return n;
}

static CURLcode set_up(lane *l, struct curl_slist *headers, const char *ca) {
    CURL *e = l->easy;
    curl_easy_setopt(e, CURLOPT_PRIVATE, l);
    curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(e, CURLOPT_PROXY, "");
    curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(e, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(e, CURLOPT_USERAGENT, "gyre/" GY_VERSION);
    curl_easy_setopt(e, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_MS);
    curl_easy_setopt(e, CURLOPT_QUICK_EXIT, 1L); /* a name that nobody resolves does not hold up the end */
    curl_easy_setopt(e, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(e, CURLOPT_TCP_KEEPIDLE, (long)IDLE_S);
    curl_easy_setopt(e, CURLOPT_TCP_KEEPINTVL, (long)IDLE_S);
    curl_easy_setopt(e, CURLOPT_ERRORBUFFER, l->why);
    curl_easy_setopt(e, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, on_bytes);
    curl_easy_setopt(e, CURLOPT_WRITEDATA, l);
    if (!ca) return CURLE_OK;
    curl_easy_setopt(e, CURLOPT_CAPATH, NULL); /* the file takes the place of all that the system trusts */
    return curl_easy_setopt(e, CURLOPT_CAINFO, ca);
}

static gy_status http_init(gy_etcd_http *h, const char *ca) {
    h->multi = curl_multi_init();
    h->headers = curl_slist_append(NULL, "Content-Type: application/json");
    if (!h->multi || !h->headers) return GY_E_NOMEM;
    for (int i = 0; i < GY_ETCD_LANES; i++) {
        lane *l = &h->lanes[i];
        l->h = h;
        l->index = i;
        l->easy = curl_easy_init();
        if (!l->easy || set_up(l, h->headers, ca) != CURLE_OK) return GY_E_NOMEM;
    }
    return GY_OK;
}

gy_status gy_etcd_http_open(gy_etcd_line_fn *fn, void *user, const char *ca, gy_err *err, gy_etcd_http **out) {
    if (curl_global_init(CURL_GLOBAL_DEFAULT)) return gy_err_set(err, GY_E_IO, "etcd: libcurl does not start");
    gy_etcd_http *h = gy_mem_alloc(GY_MEM_PD, 1, sizeof *h);
    if (h) h->fn = fn;
    if (h) h->user = user;
    if (!h || http_init(h, ca) < 0) {
        if (!h) curl_global_cleanup();
        gy_etcd_http_close(h);
        return gy_err_set(err, GY_E_NOMEM, "etcd: no memory for HTTP");
    }
    *out = h;
    return GY_OK;
}

void gy_etcd_http_close(gy_etcd_http *h) {
    if (!h) return;
    for (int i = 0; i < GY_ETCD_LANES; i++) {
        gy_etcd_http_abort(h, (gy_etcd_lane)i);
        if (h->lanes[i].easy) curl_easy_cleanup(h->lanes[i].easy);
        gy_str_free(&h->lanes[i].sent);
        gy_str_free(&h->lanes[i].got);
    }
    if (h->multi) curl_multi_cleanup(h->multi);
    curl_slist_free_all(h->headers);
    gy_mem_free(h);
    curl_global_cleanup();
}

void gy_etcd_http_wake(gy_etcd_http *h) {
    curl_multi_wakeup(h->multi);
}

gy_status gy_etcd_http_start(gy_etcd_http *h, gy_etcd_lane index, const char *base, const char *path, gy_str *body,
                             int64_t timeout_ms) {
    lane *l = &h->lanes[index];
    gy_str url = {0};
    GY_CHECK(!l->is_busy);
    gy_str_free(&l->sent);
    l->sent = *body;
    *body = (gy_str){0};
    gy_str_clear(&l->got);
    l->why[0] = '\0';
    gy_str_printf(&url, "%s%s", base, path);
    int bad = url.failed || l->sent.failed || curl_easy_setopt(l->easy, CURLOPT_URL, gy_str_z(&url)) != CURLE_OK;
    gy_str_free(&url);
    curl_easy_setopt(l->easy, CURLOPT_TIMEOUT_MS, (long)timeout_ms);
    curl_easy_setopt(l->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)l->sent.len);
    curl_easy_setopt(l->easy, CURLOPT_POSTFIELDS, gy_str_z(&l->sent));
    if (bad || curl_multi_add_handle(h->multi, l->easy) != CURLM_OK) return GY_E_NOMEM;
    l->is_busy = 1;
    l->is_ended = 0;
    return GY_OK;
}

void gy_etcd_http_abort(gy_etcd_http *h, gy_etcd_lane index) {
    lane *l = &h->lanes[index];
    if (!l->is_busy) return;
    if (!l->is_ended) curl_multi_remove_handle(h->multi, l->easy);
    l->is_busy = l->is_ended = 0;
}

int gy_etcd_http_is_busy(const gy_etcd_http *h, gy_etcd_lane index) {
    return h->lanes[index].is_busy;
}

void gy_etcd_http_wait(gy_etcd_http *h, int64_t timeout_ms) {
    int running, left;
    curl_multi_poll(h->multi, NULL, 0, (int)timeout_ms, NULL);
    curl_multi_perform(h->multi, &running);
    for (CURLMsg *m; (m = curl_multi_info_read(h->multi, &left));) {
        char *p = NULL;
        if (m->msg != CURLMSG_DONE) continue;
        const CURLcode result = m->data.result; /* the message dies with the handle's removal */
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &p);
        lane *l = (lane *)(void *)p;
        curl_multi_remove_handle(h->multi, l->easy);
        l->is_ended = 1;
        l->result = result;
    }
}

int gy_etcd_http_next(gy_etcd_http *h, gy_etcd_reply *out) {
    for (int i = 0; i < GY_ETCD_LANES; i++) {
        lane *l = &h->lanes[i];
        if (!l->is_busy || !l->is_ended) continue;
        l->is_busy = l->is_ended = 0;
        *out = (gy_etcd_reply){.lane = (gy_etcd_lane)i, .body = &l->got};
        out->why = l->why[0] ? l->why : curl_easy_strerror(l->result);
        if (l->result == CURLE_OK) curl_easy_getinfo(l->easy, CURLINFO_RESPONSE_CODE, &out->code);
        return 1;
    }
    return 0;
}
