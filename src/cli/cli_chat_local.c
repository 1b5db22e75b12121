/* See cli_chat_local.h. One conversation runs at a time, so memory is planned for one sequence unless --max-seqs says
 * more, and the prefix cache is on: each turn begins with all turns before it.
 */
#include "cli/cli_chat_local.h"

#include "cli/cli_engine.h"
#include "cli/cli_model.h"
#include "cli/cli_pd.h"
#include "server/app.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

struct gy_chat_local {
    gy_app *app;
    gy_app_opts o;
    char key[65], url[64];
    const char *keys[1], *names[1];
    int32_t n_loop;
    pthread_t thread;
    int has_thread, event_fd;
    atomic_int is_ready, is_gone; /* written by the thread, before it rings event_fd */
    gy_err err;                   /* of is_gone */
};

/* ---- options ----------------------------------------------------------------------------------------------------- */

static gy_status set_engine(const gy_args *a, gy_err *err, gyre_options *o) {
    gy_engine_opts e;
    GY_TRY(gy_cli_engine_opts(a, err, &e));
    gyre_options_default(o, sizeof *o);
    o->dtype = a->dtype < 0 ? "auto" : a->dtype ? "bf16" : "f32";
    o->weights = gy_cli_weights(a);
    o->weights_head = a->weights_head;
    o->pack = gy_pack_name((gy_pack)a->pack);
    o->pack_cache = gy_cli_pack_cache(a);
    o->pin = gy_cli_pin(a);
    o->backend = gy_cli_backend(a);
    o->threads = a->threads;
    o->max_rows = a->max_rows;
    o->max_seqs = gy_opts_given(a->opts, "max-seqs") ? a->max_seqs : 1;
    o->max_len = a->max_len;
    o->prefix_cache = gy_opts_given(a->opts, "prefix-cache") ? a->prefix_cache == 0 : 1;
    o->kv_layout = a->kv_layout;
    o->kv_dtype = a->kv_dtype;
    o->kv_blocks = e.kv_blocks;
    o->kv_bytes = e.kv_bytes;
    o->kv_fraction = e.kv_fraction;
    o->park_bytes = e.park_bytes;
    o->prefill_chunk = e.sched.prefill_chunk;
    o->fuse_loops = e.fuse_loops;
    return gy_cli_set_workers(a, err, o);
}

static gy_status set_key(gy_chat_local *l, gy_err *err) {
    unsigned char raw[32];
    if (getrandom(raw, sizeof raw, 0) != sizeof raw) return gy_err_set(err, GY_E_IO, "the system gave no random bytes");
    for (size_t i = 0; i < sizeof raw; i++) snprintf(l->key + 2 * i, 3, "%02x", raw[i]);
    return GY_OK;
}

/* What the folder says is read here first: it is quick, and whoever mistyped its name should not wait. */
static gy_status look(gy_chat_local *l, const gy_args *a, const char *dir, gy_err *err) {
    gy_cli_model m = {0};
    GY_TRY(gy_cli_model_open(&m, dir, a, 0, err));
    l->n_loop = m.d.n_loop;
    gy_cli_model_close(&m);
    return GY_OK;
}

static gy_status set_options(gy_chat_local *l, const gy_args *a, const char *dir, gy_err *err) {
    l->o.dir = dir;
    l->o.template_path = a->chat_template;
    gy_http_server_opts_default(&l->o.http);
    l->o.http.host = "127.0.0.1";
    l->o.http.port = 0;
    l->keys[0] = l->key;
    l->names[0] = "local";
    l->o.keys = (gy_app_strings){l->keys, 1};
    l->o.names = (gy_app_strings){l->names, 1};
    l->o.access_log = GY_APP_LOG_OFF;
    l->o.access_fd = -1;
    GY_TRY(set_key(l, err));
    return set_engine(a, err, &l->o.engine);
}

/* ---- the thread ---------------------------------------------------------------------------------------------------
 */

static void ring(gy_chat_local *l) {
    uint64_t one = 1;
    ssize_t n = write(l->event_fd, &one, sizeof one);
    (void)n; /* it can only be rung already */
}

static void on_ready(void *user) {
    gy_chat_local *l = user;
    atomic_store(&l->is_ready, 1);
    ring(l);
}

static void *serve_main(void *arg) {
    gy_chat_local *l = arg;
    (void)gy_app_run(l->app, on_ready, l, &l->err);
    atomic_store(&l->is_gone, 1);
    ring(l);
    return NULL;
}

static gy_status start(gy_chat_local *l, gy_err *err) {
    GY_TRY(gy_app_open(&l->o, err, &l->app));
    snprintf(l->url, sizeof l->url, "http://127.0.0.1:%d", gy_app_port(l->app));
    if (pthread_create(&l->thread, NULL, serve_main, l)) return gy_err_set(err, GY_E_NOMEM, "no thread for the model");
    l->has_thread = 1;
    return GY_OK;
}

/* Signals still do what they do by default: nothing is lost yet. */
static gy_status wait_ready(gy_chat_local *l, gy_err *err) {
    struct pollfd p = {.fd = l->event_fd, .events = POLLIN};
    int told = 0;
    while (!atomic_load(&l->is_ready) && !atomic_load(&l->is_gone)) {
        int n = poll(&p, 1, told ? -1 : 500);
        if (!n && !told) {
            gy_cli_note("loading %s", l->o.dir);
            told = 1;
        }
        if (n < 0 && errno != EINTR) return gy_err_set(err, GY_E_IO, "poll: %s", strerrordesc_np(errno));
    }
    if (!gy_chat_local_is_gone(l, err)) return GY_OK;
    gy_cli_name_flag(err);
    return err->status;
}

gy_status gy_chat_local_open(const gy_args *a, const char *dir, gy_err *err, gy_chat_local **out) {
    gy_chat_local *l = gy_mem_alloc(GY_MEM_CLI, 1, sizeof *l);
    if (!l) return gy_err_set(err, GY_E_NOMEM, "no memory for the model");
    l->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    gy_status st = l->event_fd < 0 ? gy_err_set(err, GY_E_IO, "eventfd: %s", strerrordesc_np(errno)) : GY_OK;
    if (st >= 0) st = look(l, a, dir, err);
    if (st >= 0) st = set_options(l, a, dir, err);
    if (st >= 0) st = start(l, err);
    if (st >= 0) st = wait_ready(l, err);
    if (st < 0) {
        gy_chat_local_close(l);
        return st;
    }
    *out = l;
    return GY_OK;
}

void gy_chat_local_close(gy_chat_local *l) {
    if (!l) return;
    if (l->has_thread) {
        gy_app_drain(l->app);
        gy_app_drain(l->app); /* the second ends what runs */
        pthread_join(l->thread, NULL);
    }
    gy_app_close(l->app);
    if (l->event_fd >= 0) close(l->event_fd);
    gy_mem_free(l);
}

const char *gy_chat_local_url(const gy_chat_local *l) {
    return l->url;
}

const char *gy_chat_local_key(const gy_chat_local *l) {
    return l->key;
}

int32_t gy_chat_local_loops(const gy_chat_local *l) {
    return l->n_loop;
}

int gy_chat_local_is_gone(gy_chat_local *l, gy_err *err) {
    if (!atomic_load(&l->is_gone)) return 0;
    if (l->err.status < 0)
        *err = l->err;
    else
        gy_err_set(err, GY_E_BUG, "the model's server has ended");
    return 1;
}
