/* The client's life and its loop: libcurl's multi interface asks for descriptors and a timer, epoll watches them.
 * What a call makes of the bytes that come is in oai_call.c.
 */
#include "cli/oai_client_int.h"

#include "base/clock.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum { WAKE_EVENTS = 256, MAX_PATH_LEN = 512 };

/* ---- lists ---- */

void oai_list_push(oai_list *l, gy_oai_call *k) {
    k->prev = l->last;
    k->next = NULL;
    if (l->last)
        l->last->next = k;
    else
        l->first = k;
    l->last = k;
}

void oai_list_remove(oai_list *l, gy_oai_call *k) {
    if (k->prev)
        k->prev->next = k->next;
    else
        l->first = k->next;
    if (k->next)
        k->next->prev = k->prev;
    else
        l->last = k->prev;
    k->prev = k->next = NULL;
}

/* ---- what libcurl asks for ---- */

static int on_socket(CURL *easy, curl_socket_t fd, int what, void *user, void *known) {
    gy_oai *c = user;
    struct epoll_event ev = {.data.fd = fd};
    (void)easy;
    if (what == CURL_POLL_REMOVE) {
        epoll_ctl(c->epfd, EPOLL_CTL_DEL, fd, &ev);
        return 0;
    }
    ev.events = (what & CURL_POLL_IN ? EPOLLIN : 0u) | (what & CURL_POLL_OUT ? EPOLLOUT : 0u);
    if (epoll_ctl(c->epfd, known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &ev)) return -1;
    if (!known) curl_multi_assign(c->multi, fd, c); /* any pointer: "this one is watched" */
    return 0;
}

static int on_timer(CURLM *multi, long ms, void *user) {
    gy_oai *c = user;
    (void)multi;
    c->curl_due_ns = ms < 0 ? -1 : gy_clock_ns() + ms * 1000000;
    return 0;
}

/* ---- life ---- */

void gy_oai_opts_default(gy_oai_opts *o) {
    *o = (gy_oai_opts){.connect_timeout_ms = 10000,
                       .silence_timeout_s = 600,
                       .max_conn = 64,
                       .event_max = 8u << 20,
                       .body_max = 64u << 20};
}

/* "http://host:8000/v1/" to "http://host:8000". */
static gy_status base_of(const char *url, gy_err *err, char **out) {
    size_t n = url ? strlen(url) : 0;
    const size_t head = !n ? 0 : !strncasecmp(url, "http://", 7) ? 7 : !strncasecmp(url, "https://", 8) ? 8 : 0;
    int bad = !head || n == head || n > MAX_PATH_LEN;
    for (size_t i = 0; i < n && !bad; i++) bad = url[i] <= ' ' || url[i] == 127 || url[i] == '?' || url[i] == '#';
    if (bad)
        return gy_err_set(err, GY_E_ARG, "--url: found '%.80s', expected http://HOST:PORT or https://HOST",
                          url ? url : "");
    while (n > head && url[n - 1] == '/') n--;
    if (n > head + 3 && !memcmp(url + n - 3, "/v1", 3)) n -= 3;
    while (n > head && url[n - 1] == '/') n--;
    char *base = gy_mem_alloc(GY_MEM_CLI, n + 1, 1);
    if (!base) return gy_err_set(err, GY_E_NOMEM, "no memory for the client");
    memcpy(base, url, n);
    *out = base;
    return GY_OK;
}

static int add_header(struct curl_slist **l, const char *line) {
    struct curl_slist *more = curl_slist_append(*l, line);
    if (more) *l = more;
    return !more;
}

static gy_status add_headers(const gy_oai_opts *o, struct curl_slist **l, int with_body, gy_err *err) {
    gy_str key = {0};
    int bad = 0;
    gy_str_printf(&key, "Authorization: Bearer %s", o->api_key ? o->api_key : "");
    if (o->api_key) bad = key.failed || add_header(l, key.data);
    gy_str_free(&key);
    if (with_body) bad = bad || add_header(l, "Content-Type: application/json");
    bad = bad || add_header(l, "Expect:"); /* long prompts must not wait a second for a "100 Continue" */
    for (size_t i = 0; i < o->n_header && !bad; i++) bad = add_header(l, o->headers[i]);
    return bad ? gy_err_set(err, GY_E_NOMEM, "no memory for the client") : GY_OK;
}

static int has_control(const char *s) {
    for (; *s; s++)
        if ((unsigned char)*s < ' ' || *s == 127) return 1;
    return 0;
}

static gy_status check_headers(const gy_oai_opts *o, gy_err *err) {
    if (o->api_key && (!o->api_key[0] || has_control(o->api_key)))
        return gy_err_set(err, GY_E_ARG, "--api-key: found an empty key or a control character");
    for (size_t i = 0; i < o->n_header; i++) {
        const char *h = o->headers[i];
        if (h[0] == ':' || !strchr(h, ':') || has_control(h))
            return gy_err_set(err, GY_E_ARG, "--header: found '%.80s', expected 'Name: value'",
                              has_control(h) ? "a control character" : h);
    }
    if (o->cacert && access(o->cacert, R_OK) != 0)
        return gy_err_set(err, GY_E_ARG, "--cacert: %s: cannot read: %s", o->cacert, strerrordesc_np(errno));
    return GY_OK;
}

static int watch(gy_oai *c, int fd) {
    struct epoll_event ev = {.events = EPOLLIN, .data.fd = fd};
    return epoll_ctl(c->epfd, EPOLL_CTL_ADD, fd, &ev);
}

static gy_status open_loop(gy_oai *c, int32_t max_conn, gy_err *err) {
    c->epfd = epoll_create1(EPOLL_CLOEXEC);
    c->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    c->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (c->epfd < 0 || c->timer_fd < 0 || c->wake_fd < 0 || watch(c, c->timer_fd) || watch(c, c->wake_fd))
        return gy_err_set(err, GY_E_IO, "the client: cannot open descriptors: %s", strerrordesc_np(errno));
    c->multi = curl_multi_init();
    if (!c->multi) return gy_err_set(err, GY_E_NOMEM, "no memory for the client");
    curl_multi_setopt(c->multi, CURLMOPT_SOCKETFUNCTION, on_socket);
    curl_multi_setopt(c->multi, CURLMOPT_SOCKETDATA, c);
    curl_multi_setopt(c->multi, CURLMOPT_TIMERFUNCTION, on_timer);
    curl_multi_setopt(c->multi, CURLMOPT_TIMERDATA, c);
    curl_multi_setopt(c->multi, CURLMOPT_MAXCONNECTS, (long)max_conn);
    return GY_OK;
}

static gy_status oai_init(gy_oai *c, const gy_oai_opts *o, gy_err *err) {
    c->insecure = o->insecure;
    c->connect_timeout_ms = o->connect_timeout_ms;
    c->silence_ns = (int64_t)o->silence_timeout_s * 1000000000;
    c->event_max = o->event_max;
    c->body_max = o->body_max;
    GY_TRY(check_headers(o, err));
    GY_TRY(base_of(o->url, err, &c->base));
    if (o->cacert && !(c->cacert = gy_mem_strdup(GY_MEM_CLI, o->cacert)))
        return gy_err_set(err, GY_E_NOMEM, "no memory for the client");
    GY_TRY(add_headers(o, &c->post_head, 1, err));
    GY_TRY(add_headers(o, &c->get_head, 0, err));
    return open_loop(c, o->max_conn, err);
}

gy_status gy_oai_open(const gy_oai_opts *o, gy_err *err, gy_oai **out) {
    if (curl_global_init(CURL_GLOBAL_DEFAULT)) return gy_err_set(err, GY_E_IO, "the client: libcurl does not start");
    gy_oai *c = gy_mem_alloc(GY_MEM_CLI, 1, sizeof *c);
    if (!c) {
        curl_global_cleanup();
        return gy_err_set(err, GY_E_NOMEM, "no memory for the client");
    }
    c->epfd = c->timer_fd = c->wake_fd = -1;
    c->curl_due_ns = c->silence_due_ns = c->armed_ns = -1;
    const gy_status st = oai_init(c, o, err);
    if (st < 0)
        gy_oai_close(c);
    else
        *out = c;
    return st;
}

static void call_free(gy_oai_call *k) {
    if (k->easy) curl_easy_cleanup(k->easy);
    gy_str_free(&k->body);
    gy_str_free(&k->reply);
    gy_str_free(&k->why);
    gy_sse_fini(&k->sse);
    gy_mem_free(k);
}

static void free_list(oai_list *l) {
    while (l->first) {
        gy_oai_call *k = l->first;
        oai_list_remove(l, k);
        call_free(k);
    }
}

static void close_fd(int fd) {
    if (fd >= 0) close(fd);
}

void gy_oai_close(gy_oai *c) {
    if (!c) return;
    for (gy_oai_call *k = c->open.first; k; k = k->next) curl_multi_remove_handle(c->multi, k->easy);
    free_list(&c->open);
    free_list(&c->waiting);
    free_list(&c->spare);
    if (c->multi) curl_multi_cleanup(c->multi);
    curl_slist_free_all(c->post_head);
    curl_slist_free_all(c->get_head);
    close_fd(c->epfd);
    close_fd(c->timer_fd);
    close_fd(c->wake_fd);
    gy_mem_free(c->base);
    gy_mem_free(c->cacert);
    gy_mem_free(c);
    curl_global_cleanup();
}

size_t gy_oai_n_open(const gy_oai *c) {
    return c->n_open;
}

void gy_oai_wake(gy_oai *c) {
    const uint64_t one = 1;
    const int saved = errno;
    /* A full counter means that a wake is on its way. */
    const ssize_t n = write(c->wake_fd, &one, sizeof one);
    (void)n;
    errno = saved;
}

/* ---- calls ---- */

static gy_oai_call *call_get(gy_oai *c) {
    gy_oai_call *k = c->spare.first;
    if (k) {
        oai_list_remove(&c->spare, k);
        return k;
    }
    k = gy_mem_alloc(GY_MEM_CLI, 1, sizeof *k);
    if (k && !(k->easy = curl_easy_init())) {
        gy_mem_free(k);
        return NULL;
    }
    return k;
}

/* For the next call; long bodies are not kept. */
static void call_put(gy_oai *c, gy_oai_call *k) {
    gy_str_free(&k->body);
    gy_str_free(&k->reply);
    gy_str_free(&k->why);
    oai_list_push(&c->spare, k);
}

static void set_transfer(gy_oai_call *k, const char *url, int is_post) {
    gy_oai *c = k->c;
    CURL *e = k->easy;
    curl_easy_reset(e);
    curl_easy_setopt(e, CURLOPT_URL, url);
    curl_easy_setopt(e, CURLOPT_PRIVATE, k);
    curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(e, CURLOPT_PROXY, ""); /* nor what the environment says */
    curl_easy_setopt(e, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(e, CURLOPT_USERAGENT, "gyre/" GY_VERSION);
    curl_easy_setopt(e, CURLOPT_CONNECTTIMEOUT_MS, (long)c->connect_timeout_ms);
    curl_easy_setopt(e, CURLOPT_ERRORBUFFER, k->curl_why);
    curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, oai_call_bytes);
    curl_easy_setopt(e, CURLOPT_WRITEDATA, k);
    curl_easy_setopt(e, CURLOPT_HEADERFUNCTION, oai_call_head);
    curl_easy_setopt(e, CURLOPT_HEADERDATA, k);
    curl_easy_setopt(e, CURLOPT_HTTPHEADER, is_post ? c->post_head : c->get_head);
    if (c->cacert) curl_easy_setopt(e, CURLOPT_CAINFO, c->cacert);
    curl_easy_setopt(e, CURLOPT_SSL_VERIFYPEER, c->insecure ? 0L : 1L);
    curl_easy_setopt(e, CURLOPT_SSL_VERIFYHOST, c->insecure ? 0L : 2L);
    if (!is_post) return;
    curl_easy_setopt(e, CURLOPT_POST, 1L);
    curl_easy_setopt(e, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)k->body.len);
    curl_easy_setopt(e, CURLOPT_POSTFIELDS, gy_str_z(&k->body));
}

static void call_open(gy_oai *c, gy_oai_call *k) {
    oai_list_push(&c->open, k);
    if (curl_multi_add_handle(c->multi, k->easy) == CURLM_OK) return;
    oai_call_judge(k, GY_OAI_NO_MEMORY, "no memory for a connection");
    c->to_end = 1;
}

static void call_begin(gy_oai *c, gy_oai_call *k, const gy_oai_hooks *hooks, void *user) {
    k->c = c;
    k->hooks = *hooks;
    k->user = user;
    k->verdict = GY_OAI_ENDS;
    k->begun = k->in_head = k->status = k->is_stream = k->done = 0;
    k->curl_why[0] = '\0';
    gy_sse_init(&k->sse, c->event_max);
    k->begin_ns = k->last_ns = gy_clock_ns();
}

static gy_status ask(gy_oai *c, const char *path, gy_str *body, const gy_oai_hooks *hooks, void *user, gy_err *err,
                     gy_oai_call **out) {
    gy_oai_call *k = NULL;
    char url[2 * MAX_PATH_LEN];
    GY_CHECK(strlen(path) < MAX_PATH_LEN);
    strcat(strcpy(url, c->base), path);
    if ((body && body->failed) || !(k = call_get(c))) {
        if (body) gy_str_free(body);
        return gy_err_set(err, GY_E_NOMEM, "no memory for a request");
    }
    if (body) k->body = *body;
    if (body) *body = (gy_str){0};
    call_begin(c, k, hooks, user);
    set_transfer(k, url, body != NULL);
    c->n_open++;
    if (c->in_curl)
        oai_list_push(&c->waiting, k);
    else
        call_open(c, k);
    if (out) *out = k;
    return GY_OK;
}

gy_status gy_oai_post(gy_oai *c, const char *path, gy_str *body, const gy_oai_hooks *hooks, void *user, gy_err *err,
                      gy_oai_call **out) {
    return ask(c, path, body, hooks, user, err, out);
}

gy_status gy_oai_get(gy_oai *c, const char *path, const gy_oai_hooks *hooks, void *user, gy_err *err,
                     gy_oai_call **out) {
    return ask(c, path, NULL, hooks, user, err, out);
}

void gy_oai_cancel(gy_oai_call *k) {
    k->verdict = GY_OAI_CANCELLED;
    k->c->to_end = 1;
}

/* ---- the loop ---- */

static void call_end(gy_oai *c, gy_oai_call *k, CURLcode code) {
    oai_list_remove(&c->open, k);
    curl_multi_remove_handle(c->multi, k->easy);
    c->n_open--;
    oai_call_tell(k, code);
    call_put(c, k);
}

/* Calls with a verdict from outside their transfer. on_end may cancel others, so from the first again after each. */
static void end_judged(gy_oai *c) {
    while (c->to_end) {
        c->to_end = 0;
        for (gy_oai_call *k = c->open.first, *next; k; k = next) {
            next = k->next;
            if (k->verdict == GY_OAI_ENDS) continue;
            call_end(c, k, CURLE_OK);
            c->to_end = 1;
            break;
        }
    }
}

static void end_finished(gy_oai *c) {
    int left;
    for (CURLMsg *m; (m = curl_multi_info_read(c->multi, &left));) {
        char *k = NULL;
        if (m->msg != CURLMSG_DONE) continue;
        const CURLcode code = m->data.result; /* the message dies with the handle's removal */
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &k);
        call_end(c, (gy_oai_call *)(void *)k, code);
    }
}

static void open_waiting(gy_oai *c) {
    while (c->waiting.first) {
        gy_oai_call *k = c->waiting.first;
        oai_list_remove(&c->waiting, k);
        call_open(c, k);
    }
}

static gy_status curl_act(gy_oai *c, curl_socket_t fd, int what, gy_err *err) {
    int running;
    c->in_curl = 1;
    const CURLMcode code = curl_multi_socket_action(c->multi, fd, what, &running);
    c->in_curl = 0;
    if (code != CURLM_OK)
        return gy_err_set(err, code == CURLM_OUT_OF_MEMORY ? GY_E_NOMEM : GY_E_IO, "the client: %s",
                          curl_multi_strerror(code));
    end_finished(c);
    open_waiting(c);
    return GY_OK;
}

/* Once a second is often enough for a limit in seconds. */
static void judge_silent(gy_oai *c, int64_t now) {
    if (!c->silence_ns || now < c->silence_due_ns) return;
    c->silence_due_ns = now + 1000000000;
    for (gy_oai_call *k = c->open.first; k; k = k->next) {
        if (now - k->last_ns < c->silence_ns || k->verdict != GY_OAI_ENDS) continue;
        oai_call_judge(k, GY_OAI_TIMEOUT, "nothing came for %d seconds", (int)(c->silence_ns / 1000000000));
        c->to_end = 1;
    }
}

static int64_t earlier(int64_t a, int64_t b) {
    return a < 0 ? b : b < 0 ? a : a < b ? a : b;
}

static void arm(gy_oai *c, int64_t at_ns) {
    struct itimerspec t = {0};
    if (at_ns == c->armed_ns) return;
    c->armed_ns = at_ns;
    if (at_ns >= 0) {
        t.it_value.tv_sec = at_ns / 1000000000;
        t.it_value.tv_nsec = at_ns % 1000000000;
    }
    timerfd_settime(c->timer_fd, TFD_TIMER_ABSTIME, &t, NULL);
}

static int wait_events(gy_oai *c, int64_t until_ns, struct epoll_event *ev) {
    const int64_t now = gy_clock_ns();
    int64_t due = earlier(until_ns, c->curl_due_ns);
    if (c->n_open && c->silence_ns) due = earlier(due, c->silence_due_ns);
    const int at_once = (due >= 0 && due <= now) || c->to_end || c->waiting.first;
    if (!at_once) arm(c, due);
    return epoll_wait(c->epfd, ev, WAKE_EVENTS, at_once ? 0 : -1);
}

static void drain(gy_oai *c, int fd) {
    uint64_t n;
    const ssize_t got = read(fd, &n, sizeof n);
    (void)got;
    if (fd == c->timer_fd) c->armed_ns = -1;
}

static int curl_events(uint32_t e) {
    return (e & (EPOLLIN | EPOLLHUP) ? CURL_CSELECT_IN : 0) | (e & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
           (e & EPOLLERR ? CURL_CSELECT_ERR : 0);
}

gy_status gy_oai_step(gy_oai *c, int64_t until_ns, gy_err *err) {
    struct epoll_event ev[WAKE_EVENTS];
    open_waiting(c);
    const int n = wait_events(c, until_ns, ev);
    if (n < 0 && errno != EINTR) return gy_err_set(err, GY_E_IO, "the client: cannot wait: %s", strerrordesc_np(errno));
    for (int i = 0; i < n; i++) {
        const int fd = ev[i].data.fd;
        if (fd == c->timer_fd || fd == c->wake_fd)
            drain(c, fd);
        else
            GY_TRY(curl_act(c, fd, curl_events(ev[i].events), err));
    }
    const int64_t now = gy_clock_ns();
    if (c->curl_due_ns >= 0 && c->curl_due_ns <= now) {
        c->curl_due_ns = -1;
        GY_TRY(curl_act(c, CURL_SOCKET_TIMEOUT, 0, err));
    }
    judge_silent(c, now);
    end_judged(c);
    return GY_OK;
}
