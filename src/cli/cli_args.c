/* The tables: every option of every command. Ranges that depend on the model (loops, token ids) are checked later. */
#include "cli/cli_args.h"

#include "cli/cli_pd.h"
#include "engine/engine.h"

#include <math.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof(a)[0])
#define AT(member) offsetof(gy_args, member)
#define GROUP(title, rows)                                                                                             \
    { title, rows, COUNT(rows) }
enum { BIG = 1 << 30 };

void gy_args_default(gy_args *a) {
    *a = (gy_args){
        .log_level = 1, .dtype = -1, .weights = -1, .backend = -1, .max_rows = 256, .max_seqs = 16, .prefix_cache = 1};
    a->device = "cpu";
    a->kv_layout = "last_exited";
    a->kv_dtype = "auto";
    a->prefill_share = a->watermark = a->kv_fraction = NAN;
    a->host = "127.0.0.1";
    a->port = 8000;
    a->shutdown_timeout = 30;
    a->pd =
        (gy_pd_args){.start_timeout = 300, .max_handoff = 16, .min_share = NAN, .peer_timeout = 5, .stop_timeout = 60};
    a->bench = (gy_bench_opts){.workload = 1, .warmup = -1};
    a->req = (gy_req_opts){.top_p = 1,
                           .repetition_penalty = 1,
                           .n = 1,
                           .logprobs = -1,
                           .prompt_logprobs = -1,
                           .exit = "fixed",
                           .exit_threshold = NAN};
}

/* ---- rows ---- */

static const gy_opt general_rows[] = {
    {"log-level", GY_OPT_WORD, AT(log_level), "error|warn|info|debug|trace", 0, 0, "warn", "log lines on stderr"},
    {"help", GY_OPT_FLAG, AT(help), NULL, 0, 0, NULL, "this text"},
};
static const gy_opt json_rows[] = {
    {"json", GY_OPT_FLAG, AT(json), NULL, 0, 0, NULL, "print JSON"},
};
static const gy_opt prompt_rows[] = {
    {"prompt", GY_OPT_LIST, AT(prompts), "TEXT", 0, 0, NULL, "a prompt; may be repeated"},
    {"prompt-ids", GY_OPT_LIST, AT(prompts), "1,2,3", 0, 0, NULL, "a prompt as token ids; may be repeated"},
    {"input", GY_OPT_LIST, AT(prompts), "FILE.jsonl", 0, 0, NULL,
     "one request a line: an object with \"prompt\" or \"prompt_ids\" and any request option, with underscores; - is "
     "standard input; may be repeated"},
    {"json", GY_OPT_FLAG, AT(json), NULL, 0, 0, NULL, "print one JSON object a line, in the order of the prompts"},
    {"output", GY_OPT_STR, AT(output), "FILE.jsonl", 0, 0, NULL,
     "append the JSON lines to FILE, each as soon as it is there; prompts that FILE answers already are left out, so "
     "that "
     "the same command goes on where it was interrupted"},
    {"config", GY_OPT_STR, AT(config), "FILE.json", 0, 0, NULL,
     "an object with any of these options, with underscores; the command line goes first"},
};
static const gy_opt request_rows[] = {
    {"max-tokens", GY_OPT_I32, AT(req.max_tokens), "N", 1, BIG, "128, or what the context has room for",
     "longest output"},
    {"temperature", GY_OPT_F64, AT(req.temperature), "T", 0, 1000, "0", "0 takes the likeliest token"},
    {"top-k", GY_OPT_I32, AT(req.top_k), "K", 0, BIG, "off", "draw among the K likeliest tokens"},
    {"top-p", GY_OPT_F64, AT(req.top_p), "P", 0, 1, "off", "draw among the likeliest tokens that reach P together"},
    {"min-p", GY_OPT_F64, AT(req.min_p), "P", 0, 1, "off", "draw among tokens at least P times as likely as the first"},
    {"repetition-penalty", GY_OPT_F64, AT(req.repetition_penalty), "R", 0, 100, "1: off",
     "divide the logits of tokens in prompt or output by R (multiply negative ones)"},
    {"presence-penalty", GY_OPT_F64, AT(req.presence_penalty), "P", -2, 2, "0",
     "take P from the logits of tokens in the output"},
    {"frequency-penalty", GY_OPT_F64, AT(req.frequency_penalty), "F", -2, 2, "0",
     "take F from the logit of a token for each time it is in the output"},
    {"logit-bias", GY_OPT_PAIRS, AT(req.logit_bias), "ID:BIAS,...", 0, 0, "none",
     "add to the logits of these tokens, -100 to 100; in JSON also {\"ID\": BIAS}"},
    {"seed", GY_OPT_SEED, AT(req.seed), "S", 0, 0, "drawn, and reported with --json",
     "of the draws; the same seed gives the same text"},
    {"n", GY_OPT_I32, AT(req.n), "N", 1, GY_ENGINE_MAX_N, "1", "outputs of one prompt, each with draws of its own"},
    {"min-tokens", GY_OPT_I32, AT(req.min_tokens), "N", 0, BIG, "0",
     "the first N tokens do not end the text: such ids cannot be drawn, stop strings are not looked for"},
    {"ignore-eos", GY_OPT_FLAG, AT(req.ignore_eos), NULL, 0, 0, NULL, "go on behind the end of the text"},
    {"stop", GY_OPT_LIST, AT(req.stop), "STR", 0, 0, NULL, "end the text before STR; may be repeated"},
    {"stop-ids", GY_OPT_IDS, AT(req.stop_ids), "1,2,3", 0, 0, "none", "these tokens end the text too"},
    {"json-schema", GY_OPT_STR, AT(req.json_schema), "JSON|FILE", 0, 0, "none",
     "the output is a JSON text that this schema describes; in JSON lines an object"},
    {"json-object", GY_OPT_FLAG, AT(req.json_object), NULL, 0, 0, NULL, "the output is a JSON object"},
    {"regex", GY_OPT_STR, AT(req.regex), "RE", 0, 0, "none", "the whole output matches RE"},
    {"grammar", GY_OPT_STR, AT(req.grammar), "EBNF|FILE", 0, 0, "none",
     "the output is what the rule \"root\" of this grammar says, in the manner of GBNF; in JSON lines the text"},
    {"grammar-after", GY_OPT_STR, AT(req.grammar_after), "TEXT", 0, 0, "none",
     "that holds behind the first TEXT of the output, as </think>; until then anything goes"},
    {"logprobs", GY_OPT_I32, AT(req.logprobs), "N", 0, GY_MAX_LOGPROBS, "none",
     "with --json: log probability of each token, and of the N likeliest"},
    {"prompt-logprobs", GY_OPT_I32, AT(req.prompt_logprobs), "N", 0, GY_MAX_LOGPROBS, "none",
     "the same of the prompt's tokens, from the second on"},
    {"gates", GY_OPT_FLAG, AT(req.gates), NULL, 0, 0, NULL,
     "with --json: the raw exit gate of each loop of each token; needs a model that has one"},
    {"exit", GY_OPT_STR, AT(req.exit), "RULE", 0, 0, "fixed",
     "when a token leaves the loop: fixed, gate, gate_delayed, select, latent, kl, entropy, argmax, or trace:FILE (the "
     "loops of each output, recorded before)"},
    {"exit-threshold", GY_OPT_F64, AT(req.exit_threshold), "Q", 0, 1e6,
     "latent 0.03, kl 5e-4, entropy 1e-3, argmax 5; gate rules must be told",
     "gate rules leave when the exit probability reaches Q; latent, kl and entropy when the change is below Q; argmax "
     "after Q unchanged loops"},
    {"min-loops", GY_OPT_I32, AT(req.min_loops), "N", 1, BIG, "1; gate and gate_delayed 2", "fewest loops of a token"},
    {"max-loops", GY_OPT_I32, AT(req.max_loops), "N", 1, BIG, "the trained depth", "most loops of a token"},
    {"force-depth", GY_OPT_FLAG, AT(req.force_depth), NULL, 0, 0, NULL, "allow --max-loops above the trained depth"},
    {"initial-state", GY_OPT_WORD, AT(req.initial_state), "zero|noise", 0, 0, "zero", "where Huginn's loop starts"},
    {"latent-seed", GY_OPT_U64, AT(req.latent_seed), "S", 0, 0, "0", "of that noise"},
    {"priority", GY_OPT_I32, AT(req.priority), "P", -BIG, BIG, "0", "lower runs sooner, with --policy priority"},
    {"cache-salt", GY_OPT_STR, AT(req.cache_salt), "TEXT", 0, 0, "none",
     "only requests with the same one share cached prefixes"},
    {"no-cache", GY_OPT_FLAG, AT(req.no_cache), NULL, 0, 0, NULL, "neither read nor fill the prefix cache"},
};
static const gy_opt latent_rows[] = {
    {"initial-state", GY_OPT_WORD, AT(req.initial_state), "zero|noise", 0, 0, "zero", "where Huginn's loop starts"},
    {"latent-seed", GY_OPT_U64, AT(req.latent_seed), "S", 0, 0, "0", "of that noise"},
};
static const gy_opt device_rows[] = {
    {"dtype", GY_OPT_WORD, AT(dtype), "f32|bf16", 0, 0, "what most weights are stored in; f32 for F16",
     "of activations, and of KV without --kv-dtype"},
    {"weights", GY_OPT_WORD, AT(weights), "auto|bf16|fp8|int8|int4|int8-channel", 0, 0, "auto, as the file has them",
     "what weight matrices are held in; fp8 is E4M3, int8 and int4 are groups for integer products, int8-channel has "
     "a scale for each output; they change results"},
    {"weights-head", GY_OPT_FLAG, AT(weights_head), NULL, 0, 0, NULL,
     "with --weights fp8, int8, int4 or int8-channel: the LM head too"},
    {"pack", GY_OPT_WORD, AT(pack), "auto|on|off", 0, 0, "auto, where they take at most half of the free memory",
     "copies of the weights for faster products on the processor; results are the same"},
    {"pack-cache", GY_OPT_STR, AT(pack_cache), "off|auto|FILE", 0, 0, "off",
     "keep what loading makes of the weights in a file about as large, so that the next start is fast; auto: in the "
     "model's folder, or else in ~/.cache/gyre"},
    {"device", GY_OPT_STR, AT(device), "cpu|cuda|cuda:N", 0, 0, "cpu",
     "where the model runs; several processes may have a list, cuda:0,cuda:1: prefill first, then decode, then hybrid"},
    {"threads", GY_OPT_I32, AT(threads), "N", 1, 1024, "physical cores", "results do not depend on it"},
    {"pin", GY_OPT_WORD, AT(pin), "auto|on|off", 0, 0, "auto, where there are several NUMA nodes",
     "bind the threads to physical cores"},
    {"max-rows", GY_OPT_I32, AT(max_rows), "N", 1, 65536, "256", "rows of one pass; results do not depend on it"},
};
#define KV_DTYPE_ROW                                                                                                   \
    {                                                                                                                  \
        "kv-dtype", GY_OPT_STR, AT(kv_dtype), "auto|f32|bf16|int8", 0, 0, "auto, as --dtype",                          \
            "what K and V are held in; int8: half the bytes of bf16; it changes results"                               \
    }
/* What decides the KV memory; also of inspect --kv. */
#define KV_ROWS                                                                                                        \
    {"max-seqs", GY_OPT_I32, AT(max_seqs), "N", 1, 65536, "16", "sequences that run at once; the others wait"},        \
        {"kv-layout", GY_OPT_STR, AT(kv_layout), "LAYOUT", 0, 0, "last_exited", "last_exited, shared, or cyclic:K"},   \
        KV_DTYPE_ROW, {"kv-blocks", GY_OPT_I32, AT(kv_blocks),       "N",                                              \
                       1,           BIG,        "see --kv-fraction", "KV memory in blocks of 16 tokens of one depth"}, \
        {"kv-bytes", GY_OPT_SIZE, AT(kv_bytes),        "SIZE",                                                         \
         0,          0,           "see --kv-fraction", "KV memory in bytes; K, M, G are powers of 1024"},              \
        {"kv-fraction",                                                                                                \
         GY_OPT_F64,                                                                                                   \
         AT(kv_fraction),                                                                                              \
         "F",                                                                                                          \
         0,                                                                                                            \
         1,                                                                                                            \
         "0.9",                                                                                                        \
         "KV memory as a share of what is free; never more than --max-seqs sequences of full length and depth use "    \
         "(twice that with the prefix cache)"},                                                                        \
        {"park-bytes",                                                                                                 \
         GY_OPT_SIZE,                                                                                                  \
         AT(park_bytes),                                                                                               \
         "SIZE",                                                                                                       \
         0,                                                                                                            \
         0,                                                                                                            \
         "1G",                                                                                                         \
         "host memory for sequences that give up their KV for a while; 0: they are computed again"},                   \
    {                                                                                                                  \
        "prefix-cache", GY_OPT_WORD, AT(prefix_cache), "on|off", 0, 0, "off",                                          \
            "keep the KV of prompts for later prompts that begin alike"                                                \
    }

static const gy_opt kv_rows[] = {KV_ROWS};
static const gy_opt sched_rows[] = {
    {"max-queue", GY_OPT_I32, AT(max_queue), "N", 1, 1 << 20, "1024", "sequences that wait inside the engine"},
    {"policy", GY_OPT_WORD, AT(policy), "fcfs|priority", 0, 0, "fcfs", "who runs first: first come, or --priority"},
    {"prefill-chunk", GY_OPT_I32, AT(prefill_chunk), "N", 1, BIG, "128",
     "prompt tokens of one sequence before the next one's turn"},
    {"prefill-share", GY_OPT_F64, AT(prefill_share), "F", 0, 1, "0.5",
     "prompt rows of a pass that holds decode rows, as a share of --max-rows"},
    {"reserve", GY_OPT_WORD, AT(reserve), "grow|full", 0, 0, "grow",
     "admit by the tokens that are there and grow, or only with KV for a whole life at full depth"},
    {"watermark", GY_OPT_F64, AT(watermark), "F", 0, 1, "0.01", "share of the KV blocks left free at admission"},
    {"preempt", GY_OPT_WORD, AT(preempt), "auto|park|recompute", 0, 0, "auto",
     "when KV runs out: park a sequence, or compute it again; auto parks while there is room"},
    {"fuse-loops", GY_OPT_I32, AT(fuse_loops), "N", 1, GY_ENGINE_MAX_LOOPS, "1",
     "passes of one step while no token is due"},
    {"no-refill", GY_OPT_FLAG, AT(no_refill), NULL, 0, 0, NULL,
     "let new tokens wait until all others have left: slower, for comparison"},
    {"min-coda", GY_OPT_I32, AT(min_coda), "N", 1, 65536, "1",
     "tokens that must wait for the layers behind the loop before these run"},
};
static const gy_opt layout_rows[] = {
    {"kv-layout", GY_OPT_STR, AT(kv_layout), "LAYOUT", 0, 0, "last_exited", "last_exited, shared, or cyclic:K"},
    KV_DTYPE_ROW,
};
static const gy_opt debug_rows[] = {
    {"backend", GY_OPT_WORD, AT(backend), "ref|cpu", 0, 0, "cpu", "ref: plain C, slow, the definition of right"},
    {"cpu-mask", GY_OPT_STR, AT(cpu_mask), "LIST", 0, 0, "all that were found",
     "processor features to allow: avx2, avx512, avx512_bf16, avx512_vnni, amx_bf16, neon, separated by commas; "
     "empty: portable C"},
};
static const gy_opt mask_rows[] = {
    {"cpu-mask", GY_OPT_STR, AT(cpu_mask), "LIST", 0, 0, "all that were found",
     "processor features to allow: avx2, avx512, avx512_bf16, avx512_vnni, amx_bf16, neon, separated by commas; "
     "empty: portable C"},
};
static const gy_opt eval_rows[] = {
    {"prompt-ids", GY_OPT_STR, AT(prompt_ids), "1,2,3", 0, 0, NULL, "the text as token ids"},
    {"file", GY_OPT_STR, AT(file), "TEXT", 0, 0, NULL, "a text file"},
    {"logits", GY_OPT_STR, AT(logits), "F.npy", 0, 0, NULL, "write all logits, f32 [n_tok, n_vocab]"},
    {"hidden", GY_OPT_STR, AT(hidden), "F.npy", 0, 0, NULL,
     "write the last position's state after each loop, f32 [n_loop, n_embd]"},
    {"gates", GY_OPT_STR, AT(gates), "F.npy", 0, 0, NULL, "write the raw exit gates, f32 [n_tok, n_loop]"},
};
static const gy_opt tokenize_rows[] = {
    {"decode", GY_OPT_FLAG, AT(decode_ids), NULL, 0, 0, NULL, "the reverse: ids in, text out"},
    {"pieces", GY_OPT_FLAG, AT(pieces), NULL, 0, 0, NULL, "one line per token: id, then the vocabulary's spelling"},
    {"add-special", GY_OPT_WORD, AT(add_special), "on|off", 0, 0, "on", "add what the tokenizer puts around a text"},
    {"parse-special", GY_OPT_WORD, AT(parse_special), "on|off", 0, 0, "on",
     "read spellings of special tokens in the text as these tokens"},
};
static const gy_opt inspect_rows[] = {
    {"cpu", GY_OPT_FLAG, AT(cpu), NULL, 0, 0, NULL, "this machine: features found and used, variant chosen, cores"},
    {"transport", GY_OPT_FLAG, AT(transport), NULL, 0, 0, NULL,
     "what KV travels over: opens two ends, moves bytes between them, checks and times them"},
    {"device", GY_OPT_STR, AT(device), "cuda:N,cuda:M", 0, 0, NULL,
     "with --transport: two GPUs, between which it is looked at too"},
    {"kv", GY_OPT_FLAG, AT(kv), NULL, 0, 0, NULL, "the KV memory that these options ask for"},
    {"max-len", GY_OPT_I32, AT(max_len), "N", 1, BIG, "the model's context", "with --kv: longest sequence"},
    {"max-rows", GY_OPT_I32, AT(max_rows), "N", 1, 65536, "256", "with --kv: rows of one pass"},
    {"dtype", GY_OPT_WORD, AT(dtype), "f32|bf16", 0, 0, "what most weights are stored in; f32 for F16",
     "of activations, and of KV without --kv-dtype"},
    {"weights", GY_OPT_WORD, AT(weights), "auto|bf16|fp8|int8|int4|int8-channel", 0, 0, "auto, as the file has them",
     "what weight matrices are held in; fp8 is E4M3, int8 and int4 are groups for integer products, int8-channel has "
     "a scale for each output; they change results"},
    {"weights-head", GY_OPT_FLAG, AT(weights_head), NULL, 0, 0, NULL,
     "with --weights fp8, int8, int4 or int8-channel: the LM head too"},
};
static const gy_opt synth_rows[] = {
    {"shape", GY_OPT_STR, AT(shape), "SHAPE", 0, 0, NULL,
     "ouro-1.4b, ouro-2.6b, nanbeige-3b, huginn, nanbeige-300m; small: mini-ouro, mini-nanbeige, mini-huginn; "
     "smallest: tiny-ouro, "
     "tiny-nanbeige, tiny-huginn"},
    {"seed", GY_OPT_U64, AT(synth_seed), "S", 0, 0, "0", "of the random weights; the same seed gives the same file"},
    {"tokenizer", GY_OPT_FLAG, AT(tokenizer), NULL, 0, 0, NULL, "write a byte-level tokenizer beside it"},
};
static const gy_opt serve_rows[] = {
    {"host", GY_OPT_STR, AT(host), "HOST", 0, 0, "127.0.0.1",
     "name or address to listen on; 0.0.0.0 or :: is all; /PATH: a Unix socket"},
    {"port", GY_OPT_I32, AT(port), "N", 0, 65535, "8000", "0: any free one, which is printed"},
    {"served-model-name", GY_OPT_LIST, AT(served_names), "NAME", 0, 0, "the folder's name",
     "what requests call the model; may be repeated: other names for it"},
    {"chat-template", GY_OPT_STR, AT(chat_template), "FILE", 0, 0, "the model's own",
     "a Jinja template that makes a prompt of messages"},
    {"api-key", GY_OPT_LIST, AT(api_keys), "KEY", 0, 0, "none: anybody may ask",
     "that requests must carry (Authorization: Bearer KEY), on every path but /health; may be repeated. Other users of "
     "this machine can read command lines: rather put \"api_key\" into --config"},
    {"allowed-origin", GY_OPT_LIST, AT(allowed_origins), "ORIGIN", 0, 0, "the server's own pages",
     "web pages that may ask (http://host:port, or * for all); may be repeated"},
    {"allowed-host", GY_OPT_LIST, AT(allowed_hosts), "NAME", 0, 0,
     "listening on loopback: localhost and addresses; else any",
     "names that this server answers to (without port, or * for any); may be repeated"},
    {"max-body-bytes", GY_OPT_SIZE, AT(max_body), "SIZE", 0, 0, "16M", "largest body of a request, at most 1G"},
    {"access-log", GY_OPT_WORD, AT(access_log), "off|json|logfmt", 0, 0, "off",
     "a line for each request, on stdout or in --access-log-file"},
    {"shutdown-timeout", GY_OPT_F64, AT(shutdown_timeout), "SECONDS", 0, 86400, "30",
     "how long SIGTERM and SIGINT let running requests go on; a second signal ends them"},
    {"max-len", GY_OPT_I32, AT(max_len), "N", 1, BIG, "the model's context, or what the KV memory holds",
     "longest prompt and output together"},
    {"max-loops", GY_OPT_I32, AT(req.max_loops), "N", 1, BIG, "the trained depth",
     "most loops that a request may ask for"},
    {"config", GY_OPT_STR, AT(config), "FILE.json", 0, 0, NULL,
     "an object with any of these options, with underscores; the command line goes first"},
};
/* Those of sched_rows that the library's options have. */
static const gy_opt serve_sched_rows[] = {
    {"max-queue", GY_OPT_I32, AT(max_queue), "N", 1, 1 << 20, "1024",
     "sequences that wait; beyond it requests get 429"},
    {"max-queue-tokens", GY_OPT_I32, AT(max_queue_tokens), "N", 1, BIG, "any number",
     "prompt tokens that wait for their first output; beyond it requests get 429"},
    {"policy", GY_OPT_WORD, AT(policy), "fcfs|priority", 0, 0, "fcfs", "who runs first: first come, or \"priority\""},
    {"prefill-chunk", GY_OPT_I32, AT(prefill_chunk), "N", 1, BIG, "128",
     "prompt tokens of one sequence before the next one's turn"},
    {"prefill-share", GY_OPT_F64, AT(prefill_share), "F", 0, 1, "0.5",
     "prompt rows of a pass that holds decode rows, as a share of --max-rows"},
    {"fuse-loops", GY_OPT_I32, AT(fuse_loops), "N", 1, GY_ENGINE_MAX_LOOPS, "1",
     "passes of one step while no token is due"},
};

/* ---- groups ---- */

const gy_opt_group gy_group_request = GROUP("Request (also in each line of --input)", request_rows);
static const gy_opt_group group_general = GROUP("General", general_rows);
static const gy_opt_group group_json = GROUP("Output", json_rows);
static const gy_opt_group group_prompt = GROUP("Prompts and output", prompt_rows);
static const gy_opt_group group_device = GROUP("Model and device", device_rows);
static const gy_opt_group group_kv = GROUP("Sequences and KV memory", kv_rows);
static const gy_opt_group group_sched = GROUP("Scheduling (results do not depend on it)", sched_rows);
static const gy_opt_group group_layout = GROUP("KV", layout_rows);
static const gy_opt_group group_latent = GROUP("Initial state", latent_rows);
static const gy_opt_group group_debug = GROUP("Debugging", debug_rows);
static const gy_opt_group group_mask = GROUP("Debugging", mask_rows);
static const gy_opt_group group_eval = GROUP("Text and files", eval_rows);
static const gy_opt_group group_tokenize = GROUP("Tokenizer", tokenize_rows);
static const gy_opt_group group_inspect = GROUP("What to look at", inspect_rows);
static const gy_opt_group group_synth = GROUP("Checkpoint", synth_rows);
static const gy_opt_group group_serve = GROUP("Server", serve_rows);
static const gy_opt_group group_serve_sched = GROUP("Scheduling (results do not depend on it)", serve_sched_rows);

static const gy_opt_group *const run_groups[] = {
    &group_prompt,      &gy_group_request, &group_device, &group_kv,      &group_sched, &gy_group_workers,
    &gy_group_transfer, &gy_group_peers,   &group_debug,  &group_general, NULL};
static const gy_opt_group *const eval_groups[] = {&group_eval,   &group_json,  &group_device,  &group_layout,
                                                  &group_latent, &group_debug, &group_general, NULL};
static const gy_opt_group *const tokenize_groups[] = {&group_tokenize, &group_json, &group_general, NULL};
static const gy_opt_group *const inspect_groups[] = {
    &group_inspect, &group_kv, &gy_group_transfer, &group_json, &group_mask, &group_general, NULL};
static const gy_opt_group *const synth_groups[] = {&group_synth, &group_general, NULL};
static const gy_opt_group *const bench_groups[] = {
    &gy_group_bench,   &gy_group_request,  &group_device, &group_kv,      &group_sched,
    &gy_group_workers, &gy_group_transfer, &group_debug,  &group_general, NULL};
static const gy_opt_group *const serve_groups[] = {&group_serve,
                                                   &gy_group_serve_life,
                                                   &group_device,
                                                   &group_kv,
                                                   &group_serve_sched,
                                                   &gy_group_workers,
                                                   &gy_group_transfer,
                                                   &gy_group_peers,
                                                   &group_debug,
                                                   &group_general,
                                                   NULL};
const gy_opt_group *const gy_worker_groups[] = {&gy_group_worker, &gy_group_listen, &group_device,
                                                &group_kv,        &group_sched,     &gy_group_transfer,
                                                &group_debug,     &group_general,   NULL};

static const gy_opt_group *const chat_groups[] = {&gy_group_chat, &gy_group_chat_request, &group_device,
                                                  &group_kv,      &gy_group_chat_sched,   &gy_group_peers,
                                                  &group_debug,   &group_general,         NULL};

/* JSON lines use the same rows; their offsets lie in gy_args, so the fields travel through one. */
gy_status gy_req_from_json(gy_arena *arena, const gy_jv *obj, const char *const *skip, gy_err *err,
                           gy_req_opts *req_io) {
    static const gy_opt_group *const groups[] = {&gy_group_request, NULL};
    gy_args a = {.req = *req_io};
    gy_opts o = {.arena = arena, .groups = groups, .values = &a};
    gy_status st = gy_opts_apply_json(&o, obj, skip, err);
    if (st == GY_OK) *req_io = a.req;
    gy_opts_fini(&o);
    return st;
}

/* ---- commands ---- */

const gy_cmd gy_cmds[] = {
    {"run", "[MODEL] [PROMPT] [options]", "generate text from prompts",
     "MODEL is a folder in Hugging Face's layout (config.json, *.safetensors, tokenizer); without it the small model\n"
     "that comes with gyre is used. Several prompts run together as one batch and are printed in their order.\n"
     "A single prompt streams its text as it comes. A model without a tokenizer takes --prompt-ids and prints ids.\n"
     "Outputs depend on the request only: not on the batch, --max-rows, --max-seqs or --threads.\n",
     run_groups, 2, gy_cmd_run},
    {"eval", "MODEL (--prompt-ids 1,2,3 | --file TEXT) [options]",
     "feed a given text at full depth, print its perplexity",
     "Perplexity is exp of the mean negative log probability of tokens 2 to the last.\n", eval_groups, 1, gy_cmd_eval},
    {"tokenize", "MODEL [TEXT|ID...] [options]", "text to token ids and back",
     "Without TEXT (with --decode: without ids) standard input is read.\n", tokenize_groups, (size_t)BIG,
     gy_cmd_tokenize},
    {"inspect", "[MODEL] [options]", "show what was found in a model or machine, what is chosen, and why",
     "MODEL, --cpu, --transport and --kv (which needs MODEL) can be combined.\n", inspect_groups, 1, gy_cmd_inspect},
    {"synth", "--shape SHAPE OUT [options]", "write a checkpoint with random weights into the new folder OUT",
     "For tests and measurements: it runs like a trained model of that shape and its text means nothing.\n",
     synth_groups, 1, gy_cmd_synth},
    {"bench", "engine (MODEL | --synthetic SHAPE) [options]", "measure the engine, or a server, under a workload",
     "gyre bench serve --help is about loading any OpenAI server over HTTP; what follows is bench engine.\n"
     "Drives the engine inside this process and prints times, rates, KV use and what the host's part costs: medians "
     "over\n"
     "--repeat runs of the same work. Prompts are random token ids; outputs have the lengths asked for (nothing ends "
     "a\n"
     "text early). --seed is also the seed of prompts, lengths and arrivals. What --max-tokens would say, --out "
     "says.\n"
     "--layouts engine,2r,1p1d,2h compares one engine, replicas and workers on the same work.\n",
     bench_groups, 2, gy_cmd_bench},
    {"serve", "[MODEL] [options]", "serve a model over HTTP, as OpenAI's API",
     "POST /v1/completions, /v1/chat/completions, /tokenize, /detokenize, /apply_template; GET /v1/models, /health,\n"
     "/metrics, /version. The port is open before the model is loaded: /health says 503 until a request would be\n"
     "served. The prefix cache is on unless --prefix-cache off. SIGTERM or SIGINT: no new requests, running ones "
     "end.\n",
     serve_groups, 1, gy_cmd_serve},
    {"chat", "[MODEL] [options] | --url URL [options]", "talk to a model, here or on any OpenAI server",
     "On a terminal: a line is a message, /help lists commands, Ctrl-C stops an answer, Ctrl-D ends. How many loops\n"
     "each token ran is shown under the answer. In a pipe each line of standard input is a message, and only answers\n"
     "are printed. Settings that are not given are the server's.\n",
     chat_groups, 1, gy_cmd_chat},
};
const size_t gy_n_cmds = COUNT(gy_cmds);
const char *const gy_cmds_later[] = {"pull", NULL};

const gy_cmd *gy_cmd_find(const char *name) {
    for (size_t i = 0; i < gy_n_cmds; i++)
        if (!strcmp(gy_cmds[i].name, name)) return &gy_cmds[i];
    return NULL;
}
