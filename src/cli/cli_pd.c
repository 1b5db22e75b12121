/* Options of workers and transfers. */
#include "cli/cli_pd.h"

#include "pd/chan.h"

#include <math.h>
#include <stdio.h>
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
    {"local-prefill-queue", GY_OPT_I32, AT(local_queue), "TOKENS", 0, BIG, "0: none",
     "so are others while more than these wait for the least busy one that computes prompts"},
    {"worker-start-timeout", GY_OPT_F64, AT(start_timeout), "SECONDS", 0.1, 86400, "300",
     "how long a process may take until it is ready"},
};
static const gy_opt transfer_rows[] = {
    {"transfer-chunk-bytes", GY_OPT_SIZE, AT(chunk_bytes), "SIZE", 0, 0, "256M", "of KV that is posted as one piece"},
    {"transfer-inflight-bytes", GY_OPT_SIZE, AT(inflight_bytes), "SIZE", 0, 0, "2G",
     "of KV that is under way at once, from one process"},
    {"transfer-descriptors", GY_OPT_I32, AT(descriptors), "N", 1, 1 << 16, "256", "copies of one piece"},
    {"transport-min-share", GY_OPT_F64, AT(min_share), "F", 0, 1, "0.5; GPUs: 0.25",
     "refuse a lane slower than F of a copy in memory (inspect --transport), between GPUs of 400 GB/s (workers too)"},
    {"transfer-errors", GY_OPT_WORD, AT(errors), "none|peer", 0, 0, "none",
     "UCX's error mode inside a host; peer is slower, for measuring"},
};
static const gy_opt worker_rows[] = {
    {"role", GY_OPT_WORD, AT(role), "prefill|decode|both", 0, 0, "prefill", "what it does"},
    {"max-handoff", GY_OPT_I32, AT(max_handoff), "N", 1, 1 << 16, "16", "prompts that cross at once"},
    {"grammar-bytes", GY_OPT_SIZE, AT(grammar_bytes), "SIZE", 0, 0, "64M", "of grammars and of masks that are kept"},
    {"max-len", GY_OPT_I32, offsetof(gy_args, max_len), "N", 1, BIG, "the model's context", "longest sequence"},
    {"max-loops", GY_OPT_I32, offsetof(gy_args, req.max_loops), "N", 1, BIG, "the trained depth", "deepest request"},
};

#define SECRET_ROW                                                                                                     \
    {                                                                                                                  \
        "secret-file", GY_OPT_STR, AT(secret_file), "FILE", 0, 0, NULL,                                                \
            "16 bytes or more that all hosts share; only its owner may read it"                                        \
    }
#define CLUSTER_ROW                                                                                                    \
    { "cluster", GY_OPT_STR, AT(cluster), "NAME", 0, 0, "default", "which workers of etcd: /gyre/NAME/workers/" }
#define CA_ROW                                                                                                         \
    {                                                                                                                  \
        "etcd-ca", GY_OPT_STR, AT(etcd_ca), "FILE", 0, 0, "the system's",                                              \
            "certificates (PEM) that an etcd over https is trusted by"                                                 \
    }

static const gy_opt peers_rows[] = {
    {"peers", GY_OPT_STR, AT(peers), "FILE", 0, 0, NULL,
     "workers on other hosts, HOST:PORT on each line; read again when it changes. Started there by gyre worker "
     "--listen"},
    {"etcd", GY_OPT_STR, AT(etcd), "URL,...", 0, 0, NULL, "or: those that have published themselves there"},
    CA_ROW,
    CLUSTER_ROW,
    SECRET_ROW,
    {"peer-timeout", GY_OPT_F64, AT(peer_timeout), "SECONDS", 0.1, 3600, "5",
     "a host that answers nothing for so long is lost"},
};
static const gy_opt listen_rows[] = {
    {"listen", GY_OPT_STR, AT(listen), "HOST:PORT", 0, 0, NULL,
     "wait there for gyre run or serve --peers (or --etcd), on any host; port 0: any"},
    {"advertise", GY_OPT_STR, AT(advertise), "HOST:PORT", 0, 0, "--listen", "the address that etcd tells others"},
    {"etcd", GY_OPT_STR, AT(etcd), "URL,...", 0, 0, NULL, "publish it there"},
    CA_ROW,
    CLUSTER_ROW,
    {"name", GY_OPT_STR, AT(name), "NAME", 0, 0, "host name:port", "its name in etcd"},
    SECRET_ROW,
    {"transfer-device", GY_OPT_STR, AT(device), "NAME,...", 0, 0, NULL,
     "network devices that KV travels over: eth0, mlx5_0:1"},
    {"peer-timeout", GY_OPT_F64, AT(peer_timeout), "SECONDS", 0.1, 3600, "5",
     "begin anew when its coordinator has said nothing for so long"},
    {"stop-timeout", GY_OPT_F64, AT(stop_timeout), "SECONDS", 0, 86400, "60",
     "SIGTERM: how long it may take to end what was begun"},
    {"config", GY_OPT_STR, offsetof(gy_args, config), "FILE.json", 0, 0, NULL,
     "an object with any of these options, with underscores; the command line goes first"},
    {"on-listener", GY_OPT_FLAG, AT(on_listener), NULL, 0, 0, NULL, NULL},
};

const gy_opt_group gy_group_workers = {"Workers (outputs do not depend on it)", workers_rows, COUNT(workers_rows)};
const gy_opt_group gy_group_transfer = {"Transfers (flow control only)", transfer_rows, COUNT(transfer_rows)};
const gy_opt_group gy_group_worker = {"Worker", worker_rows, COUNT(worker_rows)};

const gy_opt_group gy_group_peers = {"Workers on other hosts", peers_rows, COUNT(peers_rows)};
const gy_opt_group gy_group_listen = {"For other hosts", listen_rows, COUNT(listen_rows)};

int gy_cli_wants_peers(const gy_args *a) {
    return a->pd.peers || a->pd.etcd;
}

int gy_cli_wants_workers(const gy_args *a) {
    return a->pd.prefill > 0 || a->pd.decode > 0 || a->pd.hybrid > 0;
}

/* Flags without the thing that they are about would be accepted in silence. */
static gy_status check_alone(const gy_args *a, gy_err *err) {
    static const char *const about[] = {"local-prefill-below",  "local-prefill-queue",     "worker-start-timeout",
                                        "transfer-chunk-bytes", "transfer-inflight-bytes", "transfer-descriptors",
                                        "transfer-errors",      "transport-min-share"};
    static const char *const peers[] = {"etcd-ca", "cluster", "secret-file", "peer-timeout"};
    for (size_t i = 0; i < COUNT(about); i++)
        if (gy_opts_given(a->opts, about[i]))
            return gy_err_set(err, GY_E_ARG, "--%s: found without --prefill and --decode (or --hybrid)", about[i]);
    for (size_t i = 0; i < COUNT(peers); i++)
        if (gy_opts_given(a->opts, peers[i]))
            return gy_err_set(err, GY_E_ARG, "--%s: found without --peers or --etcd", peers[i]);
    return GY_OK;
}

/* What a worker on another host decides for itself. */
static gy_status check_theirs(const gy_args *a, gy_err *err) {
    static const char *const theirs[] = {"device",
                                         "dtype",
                                         "weights",
                                         "weights-head",
                                         "pack",
                                         "pack-cache",
                                         "pin",
                                         "threads",
                                         "backend",
                                         "max-rows",
                                         "max-seqs",
                                         "prefix-cache",
                                         "kv-layout",
                                         "kv-dtype",
                                         "kv-blocks",
                                         "kv-bytes",
                                         "kv-fraction",
                                         "park-bytes",
                                         "fuse-loops",
                                         "prefill-chunk",
                                         "prefill-share",
                                         "reserve",
                                         "watermark",
                                         "preempt",
                                         "no-refill",
                                         "min-coda",
                                         "transfer-chunk-bytes",
                                         "transfer-inflight-bytes",
                                         "transfer-descriptors",
                                         "transfer-errors",
                                         "transport-min-share"};
    for (size_t i = 0; i < COUNT(theirs); i++)
        if (gy_opts_given(a->opts, theirs[i]))
            return gy_err_set(err, GY_E_ARG,
                              "--%s: found with --%s; it is an option of gyre worker --listen, where the work is done",
                              theirs[i], a->pd.peers ? "peers" : "etcd");
    return GY_OK;
}

static gy_status check_peers(const gy_args *a, gy_err *err) {
    const char *which = a->pd.peers ? "peers" : "etcd";
    gy_secret secret;
    if (a->pd.peers && a->pd.etcd)
        return gy_err_set(err, GY_E_ARG, "--peers, --etcd: found both, expected one of them");
    if (gy_cli_wants_workers(a))
        return gy_err_set(err, GY_E_ARG,
                          "--%s: found together with --prefill, --decode or --hybrid; start the workers of this host, "
                          "too, with gyre worker --listen and list them",
                          which);
    if (!a->pd.secret_file)
        return gy_err_set(err, GY_E_ARG,
                          "--%s: found without --secret-file: a file of 16 bytes or more that all hosts share (head -c "
                          "32 /dev/urandom | base64 > FILE; chmod 600 FILE)",
                          which);
    if (a->pd.cluster && a->pd.peers) return gy_err_set(err, GY_E_ARG, "--cluster: found without --etcd");
    if (a->pd.etcd_ca && a->pd.peers) return gy_err_set(err, GY_E_ARG, "--etcd-ca: found without --etcd");
    GY_TRY(check_theirs(a, err));
    return gy_secret_read(a->pd.secret_file, err, &secret);
}

gy_status gy_cli_check_workers(const gy_args *a, gy_err *err) {
    const gy_pd_args *p = &a->pd;
    gy_xfer_limits l;
    if (gy_cli_wants_peers(a)) return check_peers(a, err);
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

static int32_t ms_of(double seconds) {
    return (int32_t)fmin(ceil(seconds * 1000), INT32_MAX);
}

static void set_peers(const gy_args *a, gyre_options *o) {
    o->peers = a->pd.peers;
    o->etcd = a->pd.etcd;
    o->etcd_ca = a->pd.etcd_ca;
    if (a->pd.cluster) o->cluster = a->pd.cluster;
    o->secret_file = a->pd.secret_file;
    o->peer_timeout_ms = ms_of(a->pd.peer_timeout);
    o->local_prefill_below = a->pd.local_below;
    o->local_prefill_queue = a->pd.local_queue;
    o->worker_start_ms = ms_of(a->pd.start_timeout);
}

gy_status gy_cli_set_workers(const gy_args *a, gy_err *err, gyre_options *o) {
    static const char *const levels[] = {"error", "warn", "info", "debug", "trace"};
    gy_xfer_limits l;
    enum { ARGS = 9, NUMBER = 32 };
    GY_TRY(gy_cli_check_workers(a, err));
    if (gy_cli_wants_peers(a)) set_peers(a, o);
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
    if (a->pd.errors) {
        args[n++] = "--transfer-errors";
        args[n++] = "peer";
    }
    char *share = gy_arena_alloc(a->arena, NUMBER, 1);
    if (!share) return gy_err_set(err, GY_E_NOMEM, "no memory for options");
    if (!isnan(a->pd.min_share)) {
        snprintf(share, NUMBER, "%.9g", a->pd.min_share);
        args[n++] = "--transport-min-share";
        args[n++] = share;
    }
    o->prefill = a->pd.prefill;
    o->decode = a->pd.decode;
    o->hybrid = a->pd.hybrid;
    o->local_prefill_below = a->pd.local_below;
    o->local_prefill_queue = a->pd.local_queue;
    o->worker_start_ms = ms_of(a->pd.start_timeout);
    o->worker_args = args;
    o->transfer_chunk_bytes = l.chunk_bytes;
    o->transfer_inflight_bytes = l.inflight_bytes;
    o->transfer_descriptors = l.max_desc;
    return GY_OK;
}
