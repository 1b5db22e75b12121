/* What `gyre bench serve` asks a server: a workload as numbers, and from them each request's body. Pure: a function of
 * the settings and the seed, but for the replies that are part of a conversation's later prompts.
 *
 * Lengths and arrivals are those of cli_bench_load.h. A word of a random prompt is one of a fixed list of common
 * English words, each of which is one token in most vocabularies; `word_tok` says how many it is in the server's.
 */
#ifndef GY_CLI_CLI_BENCH_SERVE_LOAD_H
#define GY_CLI_CLI_BENCH_SERVE_LOAD_H

#include "base/json.h"
#include "base/str.h"
#include "base/vec.h"
#include "cli/cli_bench_load.h"

typedef enum gy_bserve_prompts { GY_BSERVE_WORDS, GY_BSERVE_IDS, GY_BSERVE_DATASET } gy_bserve_prompts;
#define GY_BSERVE_PROMPTS "words|ids"

/* One entry of a dataset. */
typedef struct gy_bserve_entry {
    char *json;    /* the value of "prompt", or of "messages"; gy_mem */
    int32_t n_out; /* 0: as --output-len says */
    int is_messages;
} gy_bserve_entry;

typedef struct gy_bserve_data {
    GY_VEC(gy_bserve_entry) entry;
} gy_bserve_data;

typedef struct gy_bserve_load {
    int chat; /* /v1/chat/completions */
    gy_bserve_prompts prompts;
    int32_t n_stream, n_turn; /* conversations, and turns of each; requests = n_stream * n_turn */
    int32_t concurrency;      /* conversations at once; 0: no bound */
    double rate, burstiness;  /* of arrivals; INFINITY: all are due at the start */
    gy_bench_range in, out;
    int32_t n_prefix; /* tokens that all first turns begin with */
    int32_t n_vocab;  /* ids: drawn below it */
    double word_tok;
    uint64_t seed;
    const char *fixed;          /* "{" and the members that all bodies have; borrowed */
    const gy_bserve_data *data; /* borrowed */
} gy_bserve_load;

/* items [n_stream * n_turn], by turn, then by stream, with arrivals of the first turns. GY_E_NOMEM. */
gy_status gy_bserve_items(const gy_bserve_load *l, gy_bench_item *items);
int32_t gy_bserve_n_out(const gy_bserve_load *l, const gy_bench_item *it);

/* The words that are new in this turn. */
void gy_bserve_put_words(const gy_bserve_load *l, const gy_bench_item *it, gy_str *out);
/* The body of a request. past: of a later turn, what gy_bserve_past has collected. */
void gy_bserve_put_body(const gy_bserve_load *l, const gy_bench_item *it, const gy_str *past, gy_str *out);
/* Adds a turn and its reply to the past of a conversation. */
void gy_bserve_add_past(const gy_bserve_load *l, const gy_bench_item *it, const char *reply, size_t len, gy_str *past);

/* FILE.jsonl: lines with "prompt" or "messages" and, if they like, "max_tokens" (or "output_len"). FILE.json:
 * ShareGPT's list of conversations, whose first human text is the prompt; max_tokens is a guess from the answer's
 * length. Errors name the file and line. */
gy_status gy_bserve_data_read(const char *path, int chat, gy_err *err, gy_bserve_data *out);
void gy_bserve_data_fini(gy_bserve_data *d);

#endif
