/* Between disc.c and its two sources. A source knows a set of workers and gives it away whole; disc.c compares it with
 * what was told. So nothing can overflow, and what came and went between two looks was never there.
 */
#ifndef GY_PD_DISC_INT_H
#define GY_PD_DISC_INT_H

#include "pd/disc.h"

typedef struct gy_disc_entry {
    char name[GY_DISC_NAME], address[GY_DISC_ADDRESS];
} gy_disc_entry;

typedef struct gy_disc_set {
    int32_t n;
    gy_disc_entry e[GY_DISC_MAX_WORKERS]; /* [n], in no order, names differ */
} gy_disc_set;

gy_disc_entry *gy_disc_set_find(gy_disc_set *s, const char *name); /* NULL: not there */
/* 1: changed; 0: was there; -1: full. Both fit: their lengths were checked. */
int gy_disc_set_put(gy_disc_set *s, const char *name, const char *address);
int gy_disc_set_remove(gy_disc_set *s, const char *name); /* 1: was there */

void gy_disc_replace(gy_disc *d, const gy_disc_set *now); /* any thread */

/* An address that can be dialled: a host and a port. GY_E_ARG. */
gy_status gy_disc_check_address(const char *text, gy_err *err);

/* ---- a file: no thread; who has its descriptor polled looks for changes by gy_disc_file_look ---- */

typedef struct gy_disc_file gy_disc_file;

gy_status gy_disc_file_open(const char *path, gy_err *err, gy_disc_set *first, gy_disc_file **out);
void gy_disc_file_close(gy_disc_file *f);                   /* accepts NULL */
int gy_disc_file_fd(const gy_disc_file *f);                 /* readable when there is something to look at */
int gy_disc_file_look(gy_disc_file *f, gy_disc_set *fresh); /* 1: read anew and good */

/* ---- etcd: a thread that calls gy_disc_replace ---- */

typedef struct gy_disc_etcd gy_disc_etcd;

gy_status gy_disc_etcd_open(gy_disc *d, const gy_disc_opts *o, gy_err *err, gy_disc_etcd **out);
void gy_disc_etcd_close(gy_disc_etcd *e); /* accepts NULL */
gy_status gy_disc_etcd_publish(gy_disc_etcd *e, const char *name, const char *address, gy_err *err);
void gy_disc_etcd_withdraw(gy_disc_etcd *e);

#endif
