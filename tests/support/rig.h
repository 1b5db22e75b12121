/* Workers of prefill/decode disaggregation in one process, and a coordinator that knows nothing but the protocol: it
 * places in turn, cancels and kills when it is told to, and starts again what was lost. Messages cross as bytes.
 * Failures print and exit.
 */
#ifndef GY_TESTS_RIG_H
#define GY_TESTS_RIG_H

#include "pd/worker.h"
#include "pd/xfer_mock.h"
#include "support/fake_device.h"
#include "support/mixed.h"

#include <pthread.h>
#include <stdatomic.h>

enum { RIG_MAX = 8, RIG_CALLS = 64 };

typedef struct rig_worker {
    gy_worker *w; /* NULL: closed */
    uint64_t epoch;
    int role, is_dead; /* dead: not turned any more, closed by rig_replace or rig_close */
    int has_failed;    /* its turn said so; with may_fail only */
    char fatal[256];   /* what it said then */
    gy_str out;        /* frames that it said */
    size_t at;         /* and that were read */
    char *blob;
    int32_t n_blob;
    gy_pd_info info;
    gy_msg_stats stats;
    int n_said[GY_MSG_LEAVING + 1];
    fake_device device;
    const int64_t *clock; /* what it takes for the time; NULL: the real one */
    /* With threads: */
    pthread_mutex_t lock; /* of in and out */
    gy_str in;
    int bell;
    atomic_int quit;
    pthread_t thread[2];
} rig_worker;

typedef struct rig_setup {
    gy_xfer_kind kind;
    gy_mock_opts mock;
    gy_xfer_limits limits; /* zeros: the defaults */
    int n_worker, role[RIG_MAX];
    int max_handoff;                                             /* 0: 4 */
    void (*patch)(gy_engine_opts *o, int role, const void *arg); /* on top of gold's */
    const void *patch_arg;
    gy_status (*compile)(void *user, int32_t kind, const char *text, int32_t n, gy_err *err, gy_grammar **out,
                         const gy_grammar_vocab **vocab_out);
    int may_fail;  /* a worker that fails is dead, as the process that it is the end of; else it is an error */
    int is_bare;   /* another coordinator: READY is not read, nobody is connected */
    int on_device; /* KV lies on a made-up device, one for each worker */
    gy_model *each[RIG_MAX]; /* a model for each worker, for threads; NULL: the one of rig_open */
} rig_setup;

typedef enum rig_when { RIG_NEVER, RIG_ASKED, RIG_RESERVED, RIG_SENDING, RIG_ACTIVE } rig_when;

typedef struct rig_call {
    gy_request r;      /* what the user sees; callbacks are told as by an engine */
    gold_result *res;  /* [r.n] zeroed with each try */
    const char *regex; /* a grammar for the workers to compile */
    gy_tid tid;
    int p, d; /* workers; p -1: local */
    int p_held, d_held, was_reserved, was_active, was_cancelled, was_safe, is_lost;
    int n_try, n_left, is_done; /* done: finished or given up, and nothing of it is anywhere */
    rig_when give_up;           /* at this boundary */
    int give_up_after;          /* turns later */
    int is_given_up;
    int patch_have;              /* > 0: P is told that D has so many tokens */
    gy_msg_sent sent, told;      /* of PREFILLED, of ACTIVE */
    int64_t active_ns, first_ns; /* clock of this process */
} rig_call;

typedef struct rig {
    rig_setup s;
    gold_setup model;
    gy_model *m; /* borrowed */
    gy_mock_net *net;
    rig_worker w[RIG_MAX];
    int n_worker;
    rig_call call[RIG_CALLS];
    int n_call;
    gy_arena *arena;
    gy_str frame; /* of rig_said */
    uint64_t rng, next_epoch, next_tid;
    int hold_p;   /* transfer halves of prefill workers stand still while their engines have something to do */
    int unsteady; /* halves are turned at random, not one after another */
    int has_threads;
    int n_turn, n_cross, n_local, n_retry;
} rig;

void rig_open(rig *g, const rig_setup *s, const gold_setup *model, gy_model *m, uint64_t seed);
void rig_close(rig *g);
void rig_idle(rig *g); /* nothing is left in any worker */

/* One worker alone, for coordinators of the test's own. */
void rig_worker_open(rig *g, int i);
void rig_worker_close(rig_worker *w);
int rig_said(rig *g, int i, gy_msg *m); /* its next message, valid until the next call; 0: none */
void rig_tell(rig *g, int i, const gy_msg *m);
void rig_post(rig *g, int i, const gy_msg *m); /* as rig_tell, but it is on its way until it is delivered */
int rig_deliver(rig *g, int i);                /* one; 0: there is none */
void rig_turn_worker(rig *g, int i);
void rig_turn(rig *g); /* all of them, and the net */

void rig_kill(rig *g, int i);    /* as a process that was reaped: others are told, its calls start again */
void rig_replace(rig *g, int i); /* a new one in its place */

/* Each half on a thread of its own from here to there; calls go on as ever. */
void rig_start_threads(rig *g);
void rig_stop_threads(rig *g);

void rig_add(rig *g, const gy_request *r, gold_result *res);
void rig_step(rig *g); /* messages, one turn of everything */
void rig_run(rig *g);  /* until all calls are done */
uint32_t rig_draw(rig *g, uint32_t n);

#endif
