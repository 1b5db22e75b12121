/* What was told against what is known, and addresses. Where it is known from: disc_file.c, disc_etcd.c. */
#include "base/mem.h"
#include "pd/disc_int.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct gy_disc {
    gy_disc_file *file; /* one of the two */
    gy_disc_etcd *etcd;
    int epfd, event_fd; /* the event says: now and told may differ */
    gy_disc_set told;   /* of the caller's thread */
    pthread_mutex_t lock;
    gy_disc_set now; /* under lock */
};

/* ---- addresses --------------------------------------------------------------------------------------------------- */

static gy_status bad_address(const char *text, const char *why, gy_err *err) {
    char shown[64];
    size_t n = 0;
    for (; text[n] && n < sizeof shown - 1; n++) shown[n] = text[n] < ' ' || text[n] > '~' ? '?' : text[n];
    shown[n] = '\0';
    return gy_err_set(err, GY_E_ARG, "found '%s'%s, expected HOST:PORT or [IPV6]:PORT", shown, why);
}

static int is_port(const char *s) {
    unsigned n = 0;
    size_t len = strlen(s);
    if (!len || len > 5 || (s[0] == '0' && len > 1)) return 0;
    for (; *s; s++) {
        if (*s < '0' || *s > '9') return 0;
        n = n * 10 + (unsigned)(*s - '0');
    }
    return n <= 65535;
}

/* Names and IPv4, or what stands between brackets; a zone ("%eth0") belongs to an IPv6 address. */
static int is_host(const char *s, size_t n, int is_v6) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";
    int in_zone = 0, n_colon = 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '%' && is_v6 && !in_zone && i) {
            in_zone = 1;
            continue;
        }
        n_colon += s[i] == ':' && !in_zone;
        int good = !is_v6 || in_zone ? s[i] && strchr(letters, s[i]) : s[i] && strchr("0123456789abcdefABCDEF:.", s[i]);
        if (!good) return 0;
    }
    return !is_v6 || n_colon >= 2;
}

gy_status gy_address_split(const char *text, gy_err *err, char host[256], char port[8]) {
    const char *colon = strrchr(text, ':'), *from = text;
    if (!colon) return bad_address(text, "", err);
    size_t n = (size_t)(colon - text);
    int is_v6 = text[0] == '[';
    if (is_v6) {
        if (n < 2 || text[n - 1] != ']') return bad_address(text, "", err);
        from++;
        n -= 2;
    }
    if (!is_port(colon + 1)) return bad_address(text, ": the port is a number up to 65535", err);
    if (n > 255) return bad_address(text, ": the host is too long", err);
    if (!is_host(from, n, is_v6))
        return bad_address(text, !is_v6 && memchr(from, ':', n) ? ": IPv6 addresses stand in brackets" : "", err);
    memcpy(host, from, n);
    host[n] = '\0';
    strcpy(port, colon + 1);
    return GY_OK;
}

gy_status gy_disc_check_address(const char *text, gy_err *err) {
    char host[256] = "", port[8] = "";
    GY_TRY(gy_address_split(text, err, host, port));
    if (!host[0]) return bad_address(text, ": no host to go to", err);
    if (!strcmp(port, "0")) return bad_address(text, ": no port to go to", err);
    if (strlen(text) >= GY_DISC_ADDRESS) return bad_address(text, ": too long", err);
    return GY_OK;
}

/* ---- sets -------------------------------------------------------------------------------------------------------- */

gy_disc_entry *gy_disc_set_find(gy_disc_set *s, const char *name) {
    for (int32_t i = 0; i < s->n; i++)
        if (!strcmp(s->e[i].name, name)) return &s->e[i];
    return NULL;
}

int gy_disc_set_put(gy_disc_set *s, const char *name, const char *address) {
    gy_disc_entry *e = gy_disc_set_find(s, name);
    if (e && !strcmp(e->address, address)) return 0;
    if (!e && s->n == GY_DISC_MAX_WORKERS) return -1;
    if (!e) e = &s->e[s->n++];
    GY_CHECK(strlen(name) < sizeof e->name && strlen(address) < sizeof e->address);
    strcpy(e->name, name);
    strcpy(e->address, address);
    return 1;
}

int gy_disc_set_remove(gy_disc_set *s, const char *name) {
    gy_disc_entry *e = gy_disc_set_find(s, name);
    if (!e) return 0;
    if (e != &s->e[--s->n]) *e = s->e[s->n];
    return 1;
}

static void ring(gy_disc *d) {
    const uint64_t one = 1;
    const ssize_t n = write(d->event_fd, &one, sizeof one); /* full: rung already */
    (void)n;
}

void gy_disc_replace(gy_disc *d, const gy_disc_set *now) {
    pthread_mutex_lock(&d->lock);
    d->now = *now;
    pthread_mutex_unlock(&d->lock);
    ring(d);
}

/* ---- what is told ------------------------------------------------------------------------------------------------ */

static void tell(gy_disc *d, gy_disc_kind kind, const gy_disc_entry *e, gy_disc_event *out) {
    *out = (gy_disc_event){.kind = kind, .drain = kind == GY_DISC_REMOVE && d->file};
    strcpy(out->name, e->name);
    strcpy(out->address, e->address);
}

/* Goodbyes first: a slot that becomes free may be wanted. */
static int differ(gy_disc *d, gy_disc_event *out) {
    for (int32_t i = 0; i < d->told.n; i++) {
        const gy_disc_entry *e = &d->told.e[i], *now = gy_disc_set_find(&d->now, e->name);
        if (now && !strcmp(now->address, e->address)) continue;
        tell(d, GY_DISC_REMOVE, e, out);
        gy_disc_set_remove(&d->told, out->name);
        return 1;
    }
    for (int32_t i = 0; i < d->now.n; i++) {
        const gy_disc_entry *e = &d->now.e[i];
        if (gy_disc_set_find(&d->told, e->name)) continue;
        tell(d, GY_DISC_ADD, e, out);
        gy_disc_set_put(&d->told, e->name, e->address);
        return 1;
    }
    return 0;
}

int gy_disc_next(gy_disc *d, gy_disc_event *out) {
    gy_disc_set fresh;
    uint64_t n;
    if (d->file && gy_disc_file_look(d->file, &fresh)) gy_disc_replace(d, &fresh);
    pthread_mutex_lock(&d->lock);
    int found = differ(d, out);
    if (!found) { /* under the lock, so that no ring is lost */
        const ssize_t got = read(d->event_fd, &n, sizeof n);
        (void)got;
    }
    pthread_mutex_unlock(&d->lock);
    return found;
}

int gy_disc_fd(const gy_disc *d) {
    return d->epfd;
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

static int watch(gy_disc *d, int fd) {
    struct epoll_event ev = {.events = EPOLLIN};
    return epoll_ctl(d->epfd, EPOLL_CTL_ADD, fd, &ev);
}

static gy_status open_source(gy_disc *d, const gy_disc_opts *o, gy_err *err) {
    gy_disc_set first;
    if (!o->file) return gy_disc_etcd_open(d, o, err, &d->etcd);
    GY_TRY(gy_disc_file_open(o->file, err, &first, &d->file));
    gy_disc_replace(d, &first);
    if (watch(d, gy_disc_file_fd(d->file)) < 0)
        return gy_err_set(err, GY_E_IO, "discovery: %s", strerrordesc_np(errno));
    return GY_OK;
}

gy_status gy_disc_open(const gy_disc_opts *o, gy_err *err, gy_disc **out) {
    if (!o->file == !o->etcd) return gy_err_set(err, GY_E_ARG, "discovery: expected a file or etcd, one of them");
    gy_disc *d = gy_mem_alloc(GY_MEM_PD, 1, sizeof *d);
    if (!d) return gy_err_set(err, GY_E_NOMEM, "no memory for discovery");
    pthread_mutex_init(&d->lock, NULL);
    d->epfd = epoll_create1(EPOLL_CLOEXEC);
    d->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    gy_status st = GY_OK;
    if (d->epfd < 0 || d->event_fd < 0 || watch(d, d->event_fd) < 0)
        st = gy_err_set(err, GY_E_IO, "discovery: %s", strerrordesc_np(errno));
    if (st == GY_OK) st = open_source(d, o, err);
    if (st < 0)
        gy_disc_close(d);
    else
        *out = d;
    return st;
}

void gy_disc_close(gy_disc *d) {
    if (!d) return;
    gy_disc_file_close(d->file);
    gy_disc_etcd_close(d->etcd);
    if (d->epfd >= 0) close(d->epfd);
    if (d->event_fd >= 0) close(d->event_fd);
    pthread_mutex_destroy(&d->lock);
    gy_mem_free(d);
}

gy_status gy_disc_publish(gy_disc *d, const char *name, const char *address, gy_err *err) {
    if (!d->etcd) return gy_err_set(err, GY_E_UNSUPPORTED, "a worker can be published in etcd, not in a file");
    return gy_disc_etcd_publish(d->etcd, name, address, err);
}

void gy_disc_withdraw(gy_disc *d) {
    if (d->etcd) gy_disc_etcd_withdraw(d->etcd);
}
