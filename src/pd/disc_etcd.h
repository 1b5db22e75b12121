/* Parts of disc_etcd.c: what etcd's JSON gateway says (pure functions), and calls over HTTP (libcurl). */
#ifndef GY_PD_DISC_ETCD_H
#define GY_PD_DISC_ETCD_H

#include "base/str.h"
#include "pd/disc.h"

/* ---- JSON: keys and values in base64, 64-bit numbers as strings ---- */

enum { GY_ETCD_MAX_REPLY = 4 << 20, GY_ETCD_MAX_VALUE = 4096, GY_ETCD_LIMIT = 256 };

void gy_etcd_list_body(gy_str *s, const char *prefix); /* at most GY_ETCD_LIMIT keys */
void gy_etcd_watch_body(gy_str *s, const char *prefix, int64_t revision);
void gy_etcd_grant_body(gy_str *s, int32_t ttl_s);
void gy_etcd_put_body(gy_str *s, const char *prefix, const char *name, const char *address, int64_t lease);
void gy_etcd_lease_body(gy_str *s, int64_t lease); /* of keepalive and revoke */

typedef struct gy_etcd_key { /* a key as listed, or as changed */
    int is_delete;
    int64_t revision;        /* of its last change */
    uint64_t hash;           /* of the key's bytes */
    char name[GY_DISC_NAME]; /* "": not one that a worker can have */
    char address[GY_DISC_ADDRESS];
    char why[256]; /* "": good; of a delete only the name counts */
} gy_etcd_key;
typedef void gy_etcd_key_fn(void *user, const gy_etcd_key *k);

/* GY_E_FORMAT: not what etcd says; nothing is to be believed of it then, though fn may have been called. */
gy_status gy_etcd_list_read(const char *text, size_t n, const char *prefix, gy_etcd_key_fn *fn, void *user, gy_err *err,
                            int64_t *revision, int *is_cut);
typedef struct gy_etcd_note {
    int is_created, is_canceled;
    int64_t compact_revision;
    char reason[128];
} gy_etcd_note;
gy_status gy_etcd_watch_read(const char *line, size_t n, const char *prefix, gy_etcd_key_fn *fn, void *user,
                             gy_err *err, gy_etcd_note *out);
/* Of grant and keepalive; *ttl_s 0: there is no such lease any more. */
gy_status gy_etcd_lease_read(const char *text, size_t n, gy_err *err, int64_t *lease, int64_t *ttl_s);
/* "etcdserver: requested lease not found" and the like, for a person; "" if it is no such text. */
void gy_etcd_error_read(const char *text, size_t n, char out[128], int64_t *code);
enum { GY_ETCD_NOT_FOUND = 5 }; /* gRPC's code */

/* ---- HTTP ---- */

typedef enum gy_etcd_lane { GY_ETCD_LIST, GY_ETCD_WATCH, GY_ETCD_LEASE, GY_ETCD_LANES } gy_etcd_lane;

typedef struct gy_etcd_http gy_etcd_http; /* one thread, but for wake */

/* A line of a 200 of GY_ETCD_WATCH. Must not start or abort a call. Nonzero: enough of it. */
typedef int gy_etcd_line_fn(void *user, const char *line, size_t n);

/* ca: a PEM file, or NULL: the system's. */
gy_status gy_etcd_http_open(gy_etcd_line_fn *fn, void *user, const char *ca, gy_err *err, gy_etcd_http **out);
void gy_etcd_http_close(gy_etcd_http *h); /* accepts NULL */
void gy_etcd_http_wake(gy_etcd_http *h);  /* any thread: ends a wait */

/* The lane is idle. timeout_ms 0: none but for the connection. The body's memory goes along. GY_E_NOMEM. */
gy_status gy_etcd_http_start(gy_etcd_http *h, gy_etcd_lane lane, const char *base, const char *path, gy_str *body,
                             int64_t timeout_ms);
void gy_etcd_http_abort(gy_etcd_http *h, gy_etcd_lane lane);
int gy_etcd_http_is_busy(const gy_etcd_http *h, gy_etcd_lane lane);

void gy_etcd_http_wait(gy_etcd_http *h, int64_t timeout_ms);
typedef struct gy_etcd_reply {
    gy_etcd_lane lane;
    long code; /* of HTTP; 0: why says what happened */
    const char *why;
    const gy_str *body; /* valid until the lane's next start */
} gy_etcd_reply;
int gy_etcd_http_next(gy_etcd_http *h, gy_etcd_reply *out); /* 1: a call has ended */

#endif
