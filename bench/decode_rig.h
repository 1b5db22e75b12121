/* What gyre-bench-decode measures with: a checkpoint that is written once, a backend and a model on it, an engine for
 * each cell, and probes of the machine's read bandwidth between rounds. Not a harness for other programs. One thread.
 */
#ifndef GY_BENCH_DECODE_RIG_H
#define GY_BENCH_DECODE_RIG_H

#include "base/team.h"
#include "engine/engine.h"
#include "model/loop.h"
#include "timed.h"

#include <stddef.h>
#include <stdint.h>

enum { RIG_MAX_TOKENS = 256, RIG_MAX_PROMPT = 2048 };

typedef struct rig_options {
    const char *shape, *dir;
    gy_weight_form weights;
    gy_dtype act;
    int n_thread, max_rows, split;
} rig_options;

/* A round: a token of each sequence. */
typedef struct rig_round {
    int64_t ns;
    double read; /* bytes/s, measured just before it */
} rig_round;

typedef struct rig {
    rig_options o;
    gy_team *team; /* for the ceilings; not pinned, as those of gyre are not */
    char *room;    /* memory that probes read */
    size_t room_at;
    double fma;          /* flop/s */
    gy_backend *be;      /* the one that models run on; owned through timed where split is on */
    timed_backend timed; /* split only */
    gy_model *model;     /* owned */
    gy_engine *engine;   /* owned; of the cell */
    gy_engine_plan plan; /* the engine's */
    size_t kv_used;      /* most bytes of KV blocks in use so far */
    size_t anon_peak;    /* most of RssAnon minus kv_used */
    rig_round round[RIG_MAX_TOKENS + 1];
    int n_round, n_token; /* n_token: of the first sequence */
    gy_err err;
} rig;

gy_status rig_init(rig *r, const rig_options *o); /* writes the checkpoint when it is not there; measures fma */
void rig_fini(rig *r);

double rig_probe(rig *r);                          /* read bandwidth now, in some milliseconds: bytes/s */
gy_status rig_model_open(rig *r, int32_t max_len); /* backend and model, for contexts of max_len */
void rig_model_close(rig *r);                      /* and the engine, if one is open */
gy_status rig_engine_open(rig *r, int n_seq, int32_t max_len);
void rig_engine_close(rig *r);
/* n_seq prompts of n_prompt tokens, n_tok outputs each; round[] has the times of all tokens. The first round contains
 * the prompt. Probes come between rounds and are in none of them. */
gy_status rig_generate(rig *r, int n_seq, int n_prompt, int n_tok);

size_t rig_status_bytes(const char *field); /* a line of /proc/self/status in bytes, 0 if it is not there */
int rig_peak_reset(void);                   /* forgets VmHWM; 0 on success */
void rig_load_average(char out[64]);

/* What other processes (and, in a virtual machine, other guests) took of the processors since begin, in cores: near 0,
 * or the figures between are not the machine's. NAN where /proc does not say. */
typedef struct rig_watch {
    double busy_s, own_s;
    int64_t ns;
} rig_watch;
rig_watch rig_watch_begin(void);
double rig_watch_others(const rig_watch *w);

#endif
