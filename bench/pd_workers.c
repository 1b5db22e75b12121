/* Workers are children of this process; which is which is said by their command lines. */
#include "pd_workers.h"

#include "base/clock.h"
#include "model/synth.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

gy_status pd_checkpoint(const pd_bench *b, const char *shape, gy_err *err, const char **dir_out) {
    static char dir[512];
    char config[640];
    snprintf(dir, sizeof dir, "%s/%s", b->tmp, shape);
    snprintf(config, sizeof config, "%s/config.json", dir);
    if (access(config, R_OK)) GY_TRY(gy_synth_write(shape, 0, dir, NULL, NULL, err));
    *dir_out = dir;
    return GY_OK;
}

gy_status pd_workers_open(const pd_bench *b, const char *dir, int32_t max_len, int32_t max_seqs, int32_t n_pair,
                          gy_err *err, pd_workers *w) {
    char first[64];
    gy_engine_opts e;
    gyre_options o;
    gy_engine_opts_default(&e);
    e.sched.max_seqs = max_seqs;
    e.max_len = max_len;
    e.prefix_cache = 0;
    e.kv_blocks = 4 * max_seqs * (max_len / 16 + 1);
    gyre_options_default(&o, sizeof o);
    o.prefill = o.decode = n_pair;
    o.threads = 1;
    o.worker_program = b->gyre;
    snprintf(first, sizeof first, "%.*s", b->device ? (int)strcspn(b->device, ",") : 0, b->device ? b->device : "");
    if (b->device) o.backend = n_pair ? b->device : first;
    *w = (pd_workers){0};
    GY_TRY(gy_api_model_open(&w->m, dir, "auto", 0, err));
    gy_status st = gy_api_host_open(&w->m, &e, &o, NULL, NULL, err, &w->h);
    if (st < 0) pd_workers_close(w);
    return st;
}

void pd_workers_close(pd_workers *w) {
    gy_api_host_close(w->h);
    gy_api_model_close(&w->m);
    *w = (pd_workers){0};
}

gy_status pd_workers_turn(pd_workers *w, int max_ms, gy_err *err) {
    gy_status st = w->h->ops->step(w->h, err);
    if (st < 0 || st == GY_OK) return st;
    struct pollfd p = {.fd = w->h->fd, .events = POLLIN};
    if (max_ms) poll(&p, 1, max_ms);
    return GY_OK;
}

gyre_worker_stats pd_workers_stats(const pd_workers *w) {
    gy_api_host_stats s;
    w->h->ops->get_stats(w->h, &s);
    return s.w;
}

/* ---- /proc ---- */

static pid_t parent_of(const char *pid) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%.20s/stat", pid);
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) fclose(f);
    text[n] = 0;
    const char *at = strrchr(text, ')'); /* the name may hold anything */
    return at && strlen(at) > 4 ? (pid_t)strtol(at + 4, NULL, 10) : 0;
}

static int has_role(const char *pid, const char *role) {
    char path[64], text[8192];
    snprintf(path, sizeof path, "/proc/%.20s/cmdline", pid);
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0, at = 0;
    if (f) fclose(f);
    text[n] = 0;
    for (int is_next = 0; at < n; at += strlen(text + at) + 1) {
        if (is_next) return !strcmp(text + at, role);
        is_next = !strcmp(text + at, "--role");
    }
    return 0;
}

pid_t pd_workers_pid(const char *role) {
    pid_t found = 0;
    DIR *d = opendir("/proc");
    for (struct dirent *e; d && !found && (e = readdir(d));)
        if (e->d_name[0] >= '1' && e->d_name[0] <= '9' && parent_of(e->d_name) == getpid() && has_role(e->d_name, role))
            found = (pid_t)strtol(e->d_name, NULL, 10);
    if (d) closedir(d);
    return found;
}
