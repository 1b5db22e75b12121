/* Options of workers and transfers. */
#include "cli/cli_pd.h"

#include <math.h>
#include <string.h>

#define AT(member) offsetof(gy_args, pd.member)
#define COUNT(a) (sizeof(a) / sizeof(a)[0])
enum { BIG = 1 << 30, MOST = 63 };

static const gy_opt workers_rows[] = {
    {"prefill", GY_OPT_I32, AT(prefill), "N", 0, MOST, "0: in this process",
     "processes that compute prompts; needs --decode. Outputs do not depend on it"},
    {"decode", GY_OPT_I32, AT(decode), "M", 0, MOST, "0: in this process",
     "processes that go on from there, token by token; needs --prefill"},
    {"hybrid", GY_OPT_I32, AT(hybrid), "K", 0, MOST, "0", "processes that do both, for others too"},
    {"local-prefill-below", GY_OPT_I32, AT(local_below), "TOKENS", 0, BIG, "0",
     "shorter prompts are computed where they are decoded"},
    {"worker-start-timeout", GY_OPT_F64, AT(start_timeout), "SECONDS", 0.1, 86400, "300",
     "how long a process may take until it is ready"},
};
static const gy_opt transfer_rows[] = {
    {"transfer-chunk-bytes", GY_OPT_SIZE, AT(chunk_bytes), "SIZE", 0, 0, "256M", "of KV that is posted as one piece"},
    {"transfer-inflight-bytes", GY_OPT_SIZE, AT(inflight_bytes), "SIZE", 0, 0, "2G",
     "of KV that is under way at once, from one process"},
    {"transfer-descriptors", GY_OPT_I32, AT(descriptors), "N", 1, 1 << 16, "256", "copies of one piece"},
};
static const gy_opt worker_rows[] = {
    {"role", GY_OPT_WORD, AT(role), "prefill|decode|both", 0, 0, "prefill", "what it does"},
    {"max-handoff", GY_OPT_I32, AT(max_handoff), "N", 1, 1 << 16, "16", "prompts that cross at once"},
    {"grammar-bytes", GY_OPT_SIZE, AT(grammar_bytes), "SIZE", 0, 0, "64M", "of grammars and of masks that are kept"},
    {"max-len", GY_OPT_I32, offsetof(gy_args, max_len), "N", 1, BIG, "the model's context", "longest sequence"},
    {"max-loops", GY_OPT_I32, offsetof(gy_args, req.max_loops), "N", 1, BIG, "the trained depth", "deepest request"},
};

const gy_opt_group gy_group_workers = {"Workers (outputs do not depend on it)", workers_rows, COUNT(workers_rows)};
const gy_opt_group gy_group_transfer = {"Transfers (flow control only)", transfer_rows, COUNT(transfer_rows)};
const gy_opt_group gy_group_worker = {"Worker", worker_rows, COUNT(worker_rows)};

int gy_cli_wants_workers(const gy_args *a) {
    return a->pd.prefill > 0 || a->pd.decode > 0 || a->pd.hybrid > 0;
}

/* Flags without the thing that they are about would be accepted in silence. */
static gy_status check_alone(const gy_args *a, gy_err *err) {
    static const char *const about[] = {"local-prefill-below", "worker-start-timeout", "transfer-chunk-bytes",
                                        "transfer-inflight-bytes", "transfer-descriptors"};
    for (size_t i = 0; i < COUNT(about); i++)
        if (gy_opts_given(a->opts, about[i]))
            return gy_err_set(err, GY_E_ARG, "--%s: found without --prefill and --decode (or --hybrid)", about[i]);
    return GY_OK;
}

gy_status gy_cli_check_workers(const gy_args *a, gy_err *err) {
    const gy_pd_args *p = &a->pd;
    gy_xfer_limits l;
    if (!gy_cli_wants_workers(a)) return check_alone(a, err);
    if (!p->decode && !p->hybrid)
        return gy_err_set(err, GY_E_ARG, "--prefill: found %d without --decode (or --hybrid): nobody would go on",
                          p->prefill);
    if (!p->prefill && !p->hybrid)
        return gy_err_set(err, GY_E_ARG, "--decode: found %d without --prefill (or --hybrid): nobody would begin",
                          p->decode);
    return gy_cli_transfer_limits(a, err, &l);
}

gy_status gy_cli_transfer_limits(const gy_args *a, gy_err *err, gy_xfer_limits *out) {
    gy_xfer_limits l;
    gy_xfer_limits_default(&l);
    if (a->pd.chunk_bytes.given) l.chunk_bytes = (size_t)a->pd.chunk_bytes.v;
    if (a->pd.inflight_bytes.given) l.inflight_bytes = (size_t)a->pd.inflight_bytes.v;
    if (a->pd.descriptors) l.max_desc = a->pd.descriptors;
    GY_TRY(gy_xfer_limits_check(&l, err));
    *out = l;
    return GY_OK;
}

gy_status gy_cli_set_workers(const gy_args *a, gy_err *err, gyre_options *o) {
    static const char *const levels[] = {"error", "warn", "info", "debug", "trace"};
    gy_xfer_limits l;
    enum { ARGS = 5 };
    GY_TRY(gy_cli_check_workers(a, err));
    if (!gy_cli_wants_workers(a)) return GY_OK;
    GY_TRY(gy_cli_transfer_limits(a, err, &l));
    const char **args = gy_arena_alloc(a->arena, ARGS, sizeof *args);
    if (!args) return gy_err_set(err, GY_E_NOMEM, "no memory for options");
    size_t n = 0;
    args[n++] = "--log-level";
    args[n++] = levels[a->log_level];
    if (a->cpu_mask) {
        args[n++] = "--cpu-mask";
        args[n++] = a->cpu_mask;
    }
    o->prefill = a->pd.prefill;
    o->decode = a->pd.decode;
    o->hybrid = a->pd.hybrid;
    o->local_prefill_below = a->pd.local_below;
    o->worker_start_ms = (int32_t)fmin(ceil(a->pd.start_timeout * 1000), INT32_MAX);
    o->worker_args = args;
    o->transfer_chunk_bytes = l.chunk_bytes;
    o->transfer_inflight_bytes = l.inflight_bytes;
    o->transfer_descriptors = l.max_desc;
    return GY_OK;
}
