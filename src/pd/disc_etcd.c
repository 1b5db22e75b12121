/* Discovery by etcd, on a thread of its own that owns all below "the thread's own". Two independent halves:
 *
 *   who is there      LIST --revision R--> WATCH from R + 1 --broken, compacted, silent--> LIST ...
 *                     A list is made every CHECK_S seconds too, so that a watch whose connection died unnoticed (or
 *                     whose cluster was replaced) is found out: it had not told what the list shows.
 *   who is published  GRANT --> PUT under the lease --> KEEPALIVE every third of its time
 *                     The lease is gone (etcd lost it, or was away for too long): GRANT again. Not wanted: REVOKE.
 *
 * A list replaces what is known; an event counts if it is newer than the list. Each call has a time limit, and after a
 * failure the next one goes to the next endpoint. */
#include "pd/disc_etcd.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "pd/disc_int.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/random.h>

enum { MAX_URLS = 16, MAX_BAD = 64, TTL_S = 5, MIN_TTL_S = 2, MAX_TTL_S = 3600 };
enum { CALL_MS = 2000, CHECK_S = 10, CLOSE_MS = 1000, WAIT_MS = 100, MAX_WAIT_MS = 3000, STEADY_S = 10 };
static const int64_t MS = 1000000, S = 1000000000;

typedef enum lease_op { OP_NONE, OP_GRANT, OP_PUT, OP_KEEP, OP_REVOKE } lease_op;

typedef struct wish { /* what the owner wants */
    int is_closing, is_wanted;
    uint32_t no; /* of the publication */
    gy_disc_entry worker;
} wish;

struct gy_disc_etcd {
    gy_disc *d;
    gy_etcd_http *http;
    pthread_t thread;
    int has_thread;
    char *urls; /* cut into url[] */
    const char *url[MAX_URLS];
    int n_url;
    char prefix[GY_DISC_NAME];
    int32_t ttl_s;

    pthread_mutex_t lock;
    pthread_cond_t tried_cond;
    wish wanted;  /* under lock */
    int is_tried; /* under lock: the first list is there, or failed everywhere */
    gy_err tried; /* under lock */

    /* ---- the thread's own ---- */
    wish cmd;
    int at, lane_at[GY_ETCD_LANES]; /* endpoints */
    uint64_t random;
    int64_t close_due;
    gy_str errors; /* of the first list */

    gy_disc_set known, fresh; /* fresh: of the list that is being read */
    int64_t listed;           /* revision of known's last list */
    int is_cut, is_full;      /* some keys were left out */
    int64_t list_due;
    int list_fails, is_down;

    int64_t watch_from, watch_due, watch_begun;
    int watch_fails, is_created, is_compacted, is_changed;
    gy_err watch_why;

    int64_t lease; /* 0: none */
    uint32_t lease_no;
    lease_op op;
    int is_put, lease_fails;
    int64_t lease_ttl, lease_due;

    struct {
        uint64_t hash;
        int64_t revision;
    } bad[MAX_BAD]; /* whose values were complained about */
    int n_bad;
};

/* ---- waits and endpoints ----------------------------------------------------------------------------------------- */

static uint64_t next_random(gy_disc_etcd *e) { /* xorshift64 */
    e->random ^= e->random << 13;
    e->random ^= e->random >> 7;
    e->random ^= e->random << 17;
    return e->random;
}

/* The other endpoints are tried soon; after that it grows, and differs between hosts that lost etcd together. */
static int64_t wait_ns(gy_disc_etcd *e, int fails, int64_t max_ms) {
    int over = fails - e->n_url;
    int64_t ms = WAIT_MS << (over < 0 ? 0 : over > 6 ? 6 : over);
    if (ms > max_ms) ms = max_ms;
    return (ms / 2 + (int64_t)(next_random(e) % (uint64_t)(ms / 2 + 1))) * MS;
}

static void endpoint_failed(gy_disc_etcd *e, gy_etcd_lane lane) {
    if (e->at == e->lane_at[lane]) e->at = (e->at + 1) % e->n_url;
}

static gy_status start(gy_disc_etcd *e, gy_etcd_lane lane, const char *path, gy_str *body, int64_t timeout_ms) {
    e->lane_at[lane] = e->at;
    return gy_etcd_http_start(e->http, lane, e->url[e->at], path, body, timeout_ms);
}

/* Why a call failed, with its endpoint. */
static void explain(gy_disc_etcd *e, const gy_etcd_reply *r, gy_err *err) {
    char text[128] = "";
    int64_t code;
    const char *url = e->url[e->lane_at[r->lane]];
    if (r->code) gy_etcd_error_read(gy_str_z(r->body), r->body->len, text, &code);
    if (!r->code)
        gy_err_set(err, GY_E_IO, "%s: %s", url, r->why);
    else if (r->code == 200)
        gy_err_set(err, GY_E_IO, "%s: not the answer that was expected, or its end", url);
    else
        gy_err_set(err, GY_E_IO, "%s: HTTP status %ld%s%s", url, r->code, text[0] ? ": " : "", text);
}

/* ---- what is known ----------------------------------------------------------------------------------------------- */

/* A value is complained about once, however often it is listed. */
static void complain(gy_disc_etcd *e, const gy_etcd_key *k) {
    char name[2 * GY_DISC_NAME + 3], why[300];
    for (int i = 0; i < MAX_BAD; i++)
        if (e->bad[i].hash == k->hash && e->bad[i].revision == k->revision) return;
    e->bad[e->n_bad % MAX_BAD].hash = k->hash;
    e->bad[e->n_bad++ % MAX_BAD].revision = k->revision;
    gy_log(GY_LOG_WARN, "pd", "a key of etcd is no worker", "name=%s why=%s",
           gy_log_quote(k->name, name, (int)sizeof name), gy_log_quote(k->why, why, (int)sizeof why));
}

static void put(gy_disc_etcd *e, gy_disc_set *s, const gy_etcd_key *k) {
    if (k->why[0]) {
        complain(e, k);
        if (k->name[0]) e->is_changed |= gy_disc_set_remove(s, k->name);
        return;
    }
    int rc = gy_disc_set_put(s, k->name, k->address);
    if (rc < 0 && !e->is_full)
        gy_log(GY_LOG_WARN, "pd", "etcd has more workers than are used", "most=%d", GY_DISC_MAX_WORKERS);
    if (rc < 0) e->is_full = 1;
    e->is_changed |= rc > 0;
}

static void on_listed(void *user, const gy_etcd_key *k) {
    gy_disc_etcd *e = user;
    put(e, &e->fresh, k);
}

static void on_event(void *user, const gy_etcd_key *k) {
    gy_disc_etcd *e = user;
    if (k->revision <= e->listed) return; /* the list had it */
    if (!k->is_delete) {
        put(e, &e->known, k);
        return;
    }
    e->is_changed |= k->name[0] && gy_disc_set_remove(&e->known, k->name);
    if (e->is_cut || e->is_full) e->list_due = 0; /* there may be room for one that was left out */
}

static int is_same(gy_disc_set *a, gy_disc_set *b) {
    if (a->n != b->n) return 0;
    for (int32_t i = 0; i < a->n; i++) {
        const gy_disc_entry *other = gy_disc_set_find(b, a->e[i].name);
        if (!other || strcmp(other->address, a->e[i].address)) return 0;
    }
    return 1;
}

/* ---- list -------------------------------------------------------------------------------------------------------- */

static void tell_tried(gy_disc_etcd *e, gy_status st) {
    pthread_mutex_lock(&e->lock);
    if (!e->is_tried && st < 0) gy_err_set(&e->tried, st, "etcd: no endpoint answers: %s", gy_str_z(&e->errors));
    e->is_tried = 1;
    pthread_cond_signal(&e->tried_cond);
    pthread_mutex_unlock(&e->lock);
}

static void list_failed(gy_disc_etcd *e, const gy_err *why, int64_t now) {
    char quoted[600];
    endpoint_failed(e, GY_ETCD_LIST);
    e->list_fails++;
    e->list_due = now + wait_ns(e, e->list_fails, MAX_WAIT_MS);
    if (!e->is_tried) gy_str_printf(&e->errors, "%s%s", e->errors.len ? "; " : "", why->msg);
    if (e->list_fails < e->n_url) return;
    tell_tried(e, GY_E_IO);
    if (e->is_down) return;
    e->is_down = 1;
    gy_log(GY_LOG_WARN, "pd", "etcd does not answer: who is known stays", "why=%s",
           gy_log_quote(why->msg, quoted, (int)sizeof quoted));
}

static void list_next(gy_disc_etcd *e, int64_t now) {
    gy_str body = {0};
    if (gy_etcd_http_is_busy(e->http, GY_ETCD_LIST) || now < e->list_due) return;
    gy_etcd_list_body(&body, e->prefix);
    if (start(e, GY_ETCD_LIST, "/v3/kv/range", &body, CALL_MS) == GY_OK) return;
    list_failed(e, &(gy_err){.status = GY_E_NOMEM, .msg = "no memory for a call"}, now);
}

/* What the watch did not tell, it will not tell: it begins anew. */
static void list_apply(gy_disc_etcd *e, int64_t revision) {
    int is_behind = revision < e->watch_from - 1, is_changed = !is_same(&e->known, &e->fresh);
    e->listed = revision;
    if (is_changed) {
        e->known = e->fresh;
        gy_disc_replace(e->d, &e->known);
    }
    if (is_changed || is_behind) gy_etcd_http_abort(e->http, GY_ETCD_WATCH);
}

static void on_list(gy_disc_etcd *e, const gy_etcd_reply *r, int64_t now) {
    gy_err err = {0};
    int64_t revision;
    e->fresh.n = 0;
    e->is_full = 0;
    gy_status st = GY_E_IO;
    if (r->code == 200)
        st = gy_etcd_list_read(gy_str_z(r->body), r->body->len, e->prefix, on_listed, e, &err, &revision, &e->is_cut);
    else
        explain(e, r, &err);
    e->is_changed = 0; /* known is not */
    if (st < 0) {
        list_failed(e, &err, now);
        return;
    }
    if (e->is_down) gy_log(GY_LOG_INFO, "pd", "etcd answers again", NULL);
    e->is_down = e->list_fails = 0;
    e->list_due = now + CHECK_S * S;
    list_apply(e, revision);
    tell_tried(e, GY_OK);
}

/* ---- watch ------------------------------------------------------------------------------------------------------- */

/* Nothing is watched: after the list that a broken watch asks for. */
static void watch_next(gy_disc_etcd *e, int64_t now) {
    gy_str body = {0};
    if (gy_etcd_http_is_busy(e->http, GY_ETCD_WATCH) || !e->is_tried || e->list_fails || now < e->watch_due) return;
    if (gy_etcd_http_is_busy(e->http, GY_ETCD_LIST) || e->list_due <= now) return;
    e->watch_from = e->listed + 1;
    e->watch_begun = now;
    e->is_created = e->is_compacted = 0;
    e->watch_why = (gy_err){0};
    gy_etcd_watch_body(&body, e->prefix, e->watch_from);
    if (start(e, GY_ETCD_WATCH, "/v3/watch", &body, 0) == GY_OK) return;
    e->watch_due = now + MAX_WAIT_MS * MS;
}

static void watch_ended(gy_disc_etcd *e, int64_t now) {
    e->watch_fails = now - e->watch_begun > STEADY_S * S ? 0 : e->watch_fails + 1;
    int64_t due = now + (e->is_compacted ? 0 : wait_ns(e, e->watch_fails + e->n_url - 1, MAX_WAIT_MS));
    if (due < e->list_due) e->list_due = due;
    if (e->watch_due < due) e->watch_due = due;
}

static int on_line(void *user, const char *line, size_t n) {
    gy_disc_etcd *e = user;
    gy_etcd_note note = {0};
    gy_status st = gy_etcd_watch_read(line, n, e->prefix, on_event, e, &e->watch_why, &note);
    e->is_created |= note.is_created;
    if (st < 0) return 1;
    if (!note.is_canceled) return 0;
    e->is_compacted = note.compact_revision > 0;
    gy_err_set(&e->watch_why, GY_E_IO, "%s", note.reason[0] ? note.reason : "canceled");
    return 1;
}

static void on_watch(gy_disc_etcd *e, const gy_etcd_reply *r, int64_t now) {
    char quoted[600];
    gy_err err = e->watch_why;
    if (!err.status) explain(e, r, &err);
    if (!e->is_compacted) endpoint_failed(e, GY_ETCD_WATCH);
    gy_log(GY_LOG_DEBUG, "pd", "the watch of etcd ended", "compacted=%d why=%s", e->is_compacted,
           gy_log_quote(err.msg, quoted, (int)sizeof quoted));
    watch_ended(e, now);
}

static void watch_check(gy_disc_etcd *e, int64_t now) {
    if (!gy_etcd_http_is_busy(e->http, GY_ETCD_WATCH) || e->is_created || now < e->watch_begun + CALL_MS * MS) return;
    gy_etcd_http_abort(e->http, GY_ETCD_WATCH);
    endpoint_failed(e, GY_ETCD_WATCH);
    watch_ended(e, now);
}

/* ---- lease ------------------------------------------------------------------------------------------------------- */

static int is_fit(const gy_disc_etcd *e) {
    return e->cmd.is_wanted && e->lease_no == e->cmd.no;
}

static lease_op op_due(gy_disc_etcd *e) {
    if (e->lease && !is_fit(e)) return OP_REVOKE;
    if (!e->cmd.is_wanted) return OP_NONE;
    if (!e->lease) return OP_GRANT;
    return e->is_put ? OP_KEEP : OP_PUT;
}

/* r NULL: no call was made. */
static void lease_failed(gy_disc_etcd *e, const gy_etcd_reply *r, int64_t now) {
    char quoted[600];
    gy_err why = {.msg = "no memory for a call"};
    if (r) explain(e, r, &why);
    endpoint_failed(e, GY_ETCD_LEASE);
    if (++e->lease_fails == e->n_url && e->cmd.is_wanted)
        gy_log(GY_LOG_WARN, "pd", "this worker's place in etcd cannot be kept: trying on", "why=%s",
               gy_log_quote(why.msg, quoted, (int)sizeof quoted));
    e->lease_due = now + wait_ns(e, e->lease_fails, e->ttl_s * 1000 / 3);
}

static void lease_next(gy_disc_etcd *e, int64_t now) {
    gy_str body = {0};
    static const char *const paths[] = {NULL, "/v3/lease/grant", "/v3/kv/put", "/v3/lease/keepalive",
                                        "/v3/lease/revoke"};
    if (gy_etcd_http_is_busy(e->http, GY_ETCD_LEASE) || now < e->lease_due) return;
    e->op = op_due(e);
    if (e->op == OP_NONE) return;
    if (e->op == OP_GRANT) {
        e->lease_no = e->cmd.no;
        gy_etcd_grant_body(&body, e->ttl_s);
    } else if (e->op == OP_PUT) {
        gy_etcd_put_body(&body, e->prefix, e->cmd.worker.name, e->cmd.worker.address, e->lease);
    } else {
        gy_etcd_lease_body(&body, e->lease);
    }
    if (start(e, GY_ETCD_LEASE, paths[e->op], &body, CALL_MS) < 0) lease_failed(e, NULL, now);
}

static void lease_lost(gy_disc_etcd *e, int64_t now) {
    if (e->is_put) gy_log(GY_LOG_WARN, "pd", "etcd has dropped this worker's lease: a new one", NULL);
    e->lease = 0;
    e->is_put = 0;
    e->lease_due = now;
}

/* Without a keepalive it ends by itself; one more endpoint is asked, not all day. */
static void on_revoked(gy_disc_etcd *e, const gy_etcd_reply *r, int64_t now) {
    int is_good = r->code == 200 || r->code == 404;
    if (!is_good) lease_failed(e, r, now);
    if (!is_good && e->lease_fails <= e->n_url && !e->cmd.is_closing) return;
    e->lease = 0;
    e->is_put = e->lease_fails = 0;
    e->lease_due = now;
}

static void on_held(gy_disc_etcd *e, const gy_etcd_reply *r, int64_t now) {
    int64_t id, ttl;
    gy_err err = {0};
    if (gy_etcd_lease_read(gy_str_z(r->body), r->body->len, &err, &id, &ttl) < 0 || (e->op == OP_GRANT && !ttl)) {
        lease_failed(e, r, now);
        return;
    }
    e->lease_fails = 0;
    if (!ttl) {
        lease_lost(e, now);
        return;
    }
    e->lease = id;
    e->lease_ttl = ttl;
    e->lease_due = e->op == OP_GRANT ? now : now + ttl * S / 3;
}

static void on_put(gy_disc_etcd *e, const gy_etcd_reply *r, int64_t now) {
    char text[128];
    int64_t code;
    if (r->code == 200) {
        e->is_put = 1;
        e->lease_fails = 0;
        e->lease_due = now + e->lease_ttl * S / 3;
        gy_log(GY_LOG_INFO, "pd", "published in etcd", "name=%s", e->cmd.worker.name);
        return;
    }
    gy_etcd_error_read(gy_str_z(r->body), r->body->len, text, &code);
    if (!r->code || code != GY_ETCD_NOT_FOUND) {
        lease_failed(e, r, now);
        return;
    }
    e->lease = 0; /* lost since it was granted */
    e->lease_due = now + wait_ns(e, ++e->lease_fails, e->ttl_s * 1000 / 3);
}

static void on_lease(gy_disc_etcd *e, const gy_etcd_reply *r, int64_t now) {
    if (e->op == OP_REVOKE)
        on_revoked(e, r, now);
    else if (e->op == OP_PUT)
        on_put(e, r, now);
    else if (r->code == 200)
        on_held(e, r, now);
    else
        lease_failed(e, r, now);
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */

/* What is under way for a former wish is of no use: at worst a lease without a key is left to expire. */
static void take_wish(gy_disc_etcd *e, int64_t now) {
    pthread_mutex_lock(&e->lock);
    wish w = e->wanted;
    pthread_mutex_unlock(&e->lock);
    int is_new = w.no != e->cmd.no || w.is_wanted != e->cmd.is_wanted;
    if (w.is_closing && !e->cmd.is_closing) {
        e->close_due = now + CLOSE_MS * MS;
        gy_etcd_http_abort(e->http, GY_ETCD_LIST);
        gy_etcd_http_abort(e->http, GY_ETCD_WATCH);
    }
    e->cmd = w;
    if (!is_new || (e->op == OP_REVOKE && gy_etcd_http_is_busy(e->http, GY_ETCD_LEASE))) return;
    gy_etcd_http_abort(e->http, GY_ETCD_LEASE);
    e->lease_due = now;
    e->lease_fails = 0;
}

static int is_over(const gy_disc_etcd *e, int64_t now) {
    return e->cmd.is_closing && (!e->lease || now >= e->close_due);
}

static int64_t earlier(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t next_due(const gy_disc_etcd *e, int64_t now) {
    int64_t due = now + CHECK_S * S;
    if (e->cmd.is_closing) return earlier(e->close_due, e->lease_due > now ? e->lease_due : due);
    if (!gy_etcd_http_is_busy(e->http, GY_ETCD_LIST)) due = earlier(due, e->list_due);
    if (!gy_etcd_http_is_busy(e->http, GY_ETCD_WATCH)) {
        if (e->watch_due > now) due = earlier(due, e->watch_due);
    } else if (!e->is_created) {
        due = earlier(due, e->watch_begun + CALL_MS * MS);
    }
    if (e->cmd.is_wanted && !gy_etcd_http_is_busy(e->http, GY_ETCD_LEASE)) due = earlier(due, e->lease_due);
    return due;
}

static void act(gy_disc_etcd *e, int64_t now) {
    if (!e->cmd.is_closing) {
        watch_check(e, now);
        list_next(e, now);
        watch_next(e, now);
    }
    lease_next(e, now);
}

static void wait_and_hear(gy_disc_etcd *e, int64_t now) {
    static void (*const hear[])(gy_disc_etcd *, const gy_etcd_reply *, int64_t) = {on_list, on_watch, on_lease};
    gy_etcd_reply r;
    int64_t left = next_due(e, now) - now;
    gy_etcd_http_wait(e->http, left > 0 ? (left + MS - 1) / MS : 0);
    now = gy_clock_ns();
    if (e->is_changed) gy_disc_replace(e->d, &e->known);
    e->is_changed = 0;
    while (gy_etcd_http_next(e->http, &r)) hear[r.lane](e, &r, now);
}

static void *run(void *user) {
    gy_disc_etcd *e = user;
    for (;;) {
        int64_t now = gy_clock_ns();
        take_wish(e, now);
        if (is_over(e, now)) return NULL;
        act(e, now);
        wait_and_hear(e, now);
    }
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

static int is_visible(const char *s, size_t max) {
    size_t n = strlen(s);
    if (!n || n > max) return 0;
    for (; *s; s++)
        if (*s <= ' ' || *s > '~') return 0;
    return 1;
}

static gy_status cut_urls(gy_disc_etcd *e, const char *text, gy_err *err) {
    char *rest = NULL;
    e->urls = gy_mem_strdup(GY_MEM_PD, text);
    if (!e->urls) return gy_err_set(err, GY_E_NOMEM, "no memory for discovery");
    for (char *u = strtok_r(e->urls, ",", &rest); u; u = strtok_r(NULL, ",", &rest)) {
        size_t n = strlen(u);
        size_t head = !strncmp(u, "http://", 7) ? 7 : !strncmp(u, "https://", 8) ? 8 : 0;
        while (n > head && u[n - 1] == '/') u[--n] = '\0';
        if (!head || n == head || !is_visible(u, 1024) || strpbrk(u, "?#@\\"))
            return gy_err_set(err, GY_E_ARG, "etcd: found '%.80s', expected http://HOST:PORT or https://HOST:PORT", u);
        if (e->n_url == MAX_URLS) return gy_err_set(err, GY_E_ARG, "etcd: found more than %d endpoints", MAX_URLS);
        e->url[e->n_url++] = u;
    }
    if (!e->n_url) return gy_err_set(err, GY_E_ARG, "etcd: found no endpoint, expected http://HOST:PORT,...");
    return GY_OK;
}

static gy_status take_opts(gy_disc_etcd *e, const gy_disc_opts *o, gy_err *err) {
    const char *prefix = o->prefix ? o->prefix : "/gyre/default/";
    e->ttl_s = o->ttl_s ? o->ttl_s : TTL_S;
    if (e->ttl_s < MIN_TTL_S || e->ttl_s > MAX_TTL_S)
        return gy_err_set(err, GY_E_ARG, "etcd: found a lease of %d s, expected %d to %d", e->ttl_s, MIN_TTL_S,
                          MAX_TTL_S);
    if (!is_visible(prefix, sizeof e->prefix - 1))
        return gy_err_set(err, GY_E_ARG, "etcd: the prefix: expected 1 to %zu visible ASCII characters",
                          sizeof e->prefix - 1);
    strcpy(e->prefix, prefix);
    if (o->etcd_ca && access(o->etcd_ca, R_OK) < 0)
        return gy_err_set(err, GY_E_IO, "etcd: %.200s, of CA certificates: cannot be read: %s", o->etcd_ca,
                          strerrordesc_np(errno));
    if (getrandom(&e->random, sizeof e->random, GRND_NONBLOCK) < 0) e->random = (uint64_t)gy_clock_ns();
    e->random |= 1;
    return cut_urls(e, o->etcd, err);
}

static gy_status start_thread(gy_disc_etcd *e, gy_err *err) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int bad = pthread_create(&e->thread, NULL, run, e);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (bad) return gy_err_set(err, GY_E_NOMEM, "etcd: no thread: %s", strerrordesc_np(bad));
    e->has_thread = 1;
    return GY_OK;
}

static gy_status wait_tried(gy_disc_etcd *e, gy_err *err) {
    pthread_mutex_lock(&e->lock);
    while (!e->is_tried) pthread_cond_wait(&e->tried_cond, &e->lock);
    gy_err tried = e->tried;
    pthread_mutex_unlock(&e->lock);
    if (err && tried.status < 0) *err = tried;
    return tried.status;
}

gy_status gy_disc_etcd_open(gy_disc *d, const gy_disc_opts *o, gy_err *err, gy_disc_etcd **out) {
    gy_disc_etcd *e = gy_mem_alloc(GY_MEM_PD, 1, sizeof *e);
    if (!e) return gy_err_set(err, GY_E_NOMEM, "no memory for discovery");
    e->d = d;
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->tried_cond, NULL);
    gy_status st = take_opts(e, o, err);
    if (st == GY_OK) st = gy_etcd_http_open(on_line, e, o->etcd_ca, err, &e->http);
    if (st == GY_OK) st = start_thread(e, err);
    if (st == GY_OK) st = wait_tried(e, err);
    if (st < 0)
        gy_disc_etcd_close(e);
    else
        *out = e;
    return st;
}

static void make_wish(gy_disc_etcd *e, int is_closing, const gy_disc_entry *worker) {
    pthread_mutex_lock(&e->lock);
    e->wanted.is_closing |= is_closing;
    e->wanted.is_wanted = worker != NULL;
    if (worker) e->wanted.worker = *worker;
    if (worker) e->wanted.no++;
    pthread_mutex_unlock(&e->lock);
    gy_etcd_http_wake(e->http);
}

void gy_disc_etcd_close(gy_disc_etcd *e) {
    if (!e) return;
    if (e->has_thread) {
        make_wish(e, 1, NULL);
        pthread_join(e->thread, NULL);
    }
    gy_etcd_http_close(e->http);
    gy_str_free(&e->errors);
    gy_mem_free(e->urls);
    pthread_cond_destroy(&e->tried_cond);
    pthread_mutex_destroy(&e->lock);
    gy_mem_free(e);
}

gy_status gy_disc_etcd_publish(gy_disc_etcd *e, const char *name, const char *address, gy_err *err) {
    gy_disc_entry worker;
    if (!is_visible(name, GY_DISC_NAME - 1))
        return gy_err_set(err, GY_E_ARG, "a worker's name: found '%.80s', expected 1 to %d visible ASCII characters",
                          name, GY_DISC_NAME - 1);
    if (gy_disc_check_address(address, err) < 0) return gy_err_prefix(err, "a worker's address");
    strcpy(worker.name, name);
    strcpy(worker.address, address);
    make_wish(e, 0, &worker);
    return GY_OK;
}

void gy_disc_etcd_withdraw(gy_disc_etcd *e) {
    make_wish(e, 0, NULL);
}
