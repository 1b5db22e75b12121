/* What the commands can be told: one struct with all values, the option groups, and the list of commands.
 * Process lifetime; strings borrow from argv or the arena.
 */
#ifndef GY_CLI_CLI_ARGS_H
#define GY_CLI_CLI_ARGS_H

#include "cli/cli_bench_opts.h"
#include "cli/cli_chat_opts.h"
#include "cli/cli_opts.h"
#include "cli/cli_pd_opts.h"
#include "cli/cli_serve_opts.h"

/* What may differ from request to request: also the fields of a line of --input. */
typedef struct gy_req_opts {
    int32_t max_tokens; /* 0: not given */
    double temperature;
    int32_t top_k;
    double top_p, min_p;
    double repetition_penalty, presence_penalty, frequency_penalty;
    const char *logit_bias; /* "ID:BIAS,...", NULL: none */
    gy_opt_u64 seed;
    int32_t n;
    int32_t min_tokens;
    int ignore_eos;
    gy_opt_list stop;
    const char *stop_ids;                                      /* "1,2", NULL: none */
    const char *json_schema, *regex, *grammar, *grammar_after; /* NULL: none; of the command line: text or file */
    int json_object;
    int32_t logprobs, prompt_logprobs; /* -1: none */
    int gates;
    int32_t priority;
    const char *cache_salt; /* NULL: none */
    int no_cache;
    const char *exit;             /* "fixed", ..., "trace:FILE" */
    double exit_threshold;        /* NAN: not given */
    int32_t min_loops, max_loops; /* 0: not given */
    int force_depth;
    int initial_state; /* 0 zero, 1 noise */
    uint64_t latent_seed;
} gy_req_opts;

typedef struct gy_args {
    /* general */
    int help, json, log_level;
    const char *config;
    /* where and how the model runs */
    const char *device, *cpu_mask;
    int dtype;   /* -1 not given, 0 f32, 1 bf16 */
    int weights; /* -1 not given, 0 auto, else a gy_weight_form in the order of its words */
    int weights_head;
    int pack;               /* a gy_pack */
    const char *pack_cache; /* NULL: off */
    int pin;                /* a gy_pin */
    int backend;            /* -1 not given, 0 ref, 1 cpu */
    int32_t threads, max_rows, max_seqs, max_len, kv_blocks;
    const char *kv_layout;
    const char *kv_dtype;
    int prefix_cache; /* 0 on, 1 off */
    gy_pd_args pd;
    int32_t max_queue, prefill_chunk, fuse_loops, min_coda; /* 0: not given */
    int32_t max_queue_tokens;                               /* likewise */
    double prefill_share, watermark, kv_fraction;           /* NAN: not given */
    gy_opt_u64 kv_bytes, park_bytes;
    int policy, reserve, preempt; /* in the order of their words: gy_sched_policy; grow, full; gy_preempt */
    int no_refill;
    /* run */
    gy_req_opts req;
    const char *output;
    gy_opt_list prompts; /* --prompt, --prompt-ids, --input */
    /* eval */
    const char *prompt_ids, *file, *logits, *hidden, *gates;
    /* tokenize */
    int decode_ids, pieces, add_special, parse_special; /* the last two: 0 on, 1 off */
    /* inspect */
    int cpu, transport, kv;
    /* synth */
    const char *shape;
    uint64_t synth_seed;
    int tokenizer;
    /* bench */
    gy_bench_opts bench;
    /* chat */
    gy_chat_opts chat;
    /* serve */
    const char *host, *chat_template;
    int32_t port;
    gy_opt_list served_names, api_keys, allowed_origins, allowed_hosts;
    gy_opt_u64 max_body;
    int access_log; /* in the order of gy_app_log: off, json, logfmt */
    double shutdown_timeout;
    gy_serve_opts serve;
    /* positional arguments */
    const char *const *pos;
    size_t n_pos;
    int argc; /* all that stood behind the command */
    char **argv;
    const gy_opts *opts; /* for gy_opts_given */
    gy_arena *arena;
} gy_args;

void gy_args_default(gy_args *a);

/* The rows of gy_req_opts, with offsets into gy_args and into gy_req_opts alone (for JSON lines). */
extern const gy_opt_group gy_group_request;
extern const gy_opt_group *const gy_worker_groups[]; /* of gyre worker; NULL-terminated */
extern const gy_opt_group gy_group_bench;            /* cli_bench.c */
extern const gy_opt_group gy_group_chat, gy_group_chat_request, gy_group_chat_sched; /* cli_chat_args.c */
extern const gy_opt_group gy_group_serve_life;                                       /* cli_serve_life.c */
gy_status gy_req_from_json(gy_arena *arena, const gy_jv *obj, const char *const *skip, gy_err *err,
                           gy_req_opts *req_io);

typedef struct gy_cmd {
    const char *name;
    const char *usage;                 /* behind "gyre NAME" */
    const char *summary;               /* one line */
    const char *text;                  /* paragraphs for --help, lines broken by hand */
    const gy_opt_group *const *groups; /* NULL-terminated */
    size_t max_pos;
    int (*main)(const gy_args *a); /* returns the exit code */
} gy_cmd;

extern const gy_cmd gy_cmds[];
extern const size_t gy_n_cmds;
extern const char *const gy_cmds_later[]; /* commands of the design that this build lacks; NULL-terminated */
const gy_cmd *gy_cmd_find(const char *name);

int gy_cmd_run(const gy_args *a);
int gy_cmd_eval(const gy_args *a);
int gy_cmd_tokenize(const gy_args *a);
int gy_cmd_inspect(const gy_args *a);
int gy_cmd_synth(const gy_args *a);
int gy_cmd_bench(const gy_args *a);
int gy_cmd_serve(const gy_args *a);
int gy_cmd_chat(const gy_args *a);

/* "gyre: MESSAGE" on stderr; returns the exit code that goes with the status: 2 for what was asked for (bad argument,
 * limit), else 1. */
int gy_cli_fail(const gy_err *err);
/* "max_loops: found ..." becomes "--max-loops: found ...": on the command line that is its name. */
void gy_cli_name_flag(gy_err *err);
/* "gyre: note: ..." on stderr. */
void gy_cli_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* stdout. A failed write is remembered; the commands stop early then, and the end of the program reports it. */
void gy_cli_put(const char *s, size_t len);
void gy_cli_puts(const char *z);
int gy_cli_flush(void);        /* 0, or -1 once any write has failed */
int gy_cli_put_str(gy_str *s); /* writes, checks for lost memory, empties; 0 or -1 */
/* At the end of a command: exit code rc, or 1 when output was lost (says why, unless the reader went away). */
int gy_cli_finish(int rc);

#endif
