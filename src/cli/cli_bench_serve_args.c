/* Rows, defaults and refusals: see cli_bench_serve_args.h. */
#include "cli/cli_bench_serve_args.h"

#include "base/json.h"

#include <math.h>
#include <string.h>

#define AT(member) offsetof(gy_args, bench.serve.member)
#define GROUP(title, rows)                                                                                             \
    { title, rows, sizeof(rows) / sizeof(rows)[0] }
enum { BIG = 1 << 24, DEFAULT_CONCURRENCY = 8, DEFAULT_REQUESTS = 32, DEFAULT_VOCAB = 256, EXTRA_DEPTH = 24 };
static const gy_bench_range DEFAULT_IN = {128, 128}, DEFAULT_OUT = {32, 32};
static const double MAX_RATE = 1e9;

/* ---- rows ---- */

static const gy_opt server_rows[] = {
    {"url", GY_OPT_STR, AT(url), "URL", 0, 0, NULL, "http://HOST:PORT or https://HOST; must be given"},
    {"model", GY_OPT_STR, AT(model), "NAME", 0, 0, "the first of GET /v1/models", "what requests call the model"},
    {"endpoint", GY_OPT_STR, AT(endpoint), "completions|chat", 0, 0, "completions",
     "/v1/completions or /v1/chat/completions"},
    {"api-key", GY_OPT_STR, offsetof(gy_args, chat.api_key), "KEY|@FILE", 0, 0, "none",
     "the server's key, or the file whose first line it is; other users of this machine can read command lines"},
    {"header", GY_OPT_LIST, AT(headers), "'NAME: VALUE'", 0, 0, NULL, "sent with every request; may be repeated"},
    {"cacert", GY_OPT_STR, offsetof(gy_args, chat.cacert), "FILE.pem", 0, 0, "the system's",
     "certificate authorities to trust"},
    {"insecure", GY_OPT_FLAG, offsetof(gy_args, chat.insecure), NULL, 0, 0, NULL,
     "do not check the server's certificate"},
    {"timeout", GY_OPT_I32, AT(timeout), "SECONDS", 1, 86400, "600",
     "a request to which nothing comes so long has failed"},
};
static const gy_opt load_rows[] = {
    {"concurrency", GY_OPT_I32, AT(concurrency), "C", 1, 65536, "8; with --rate no bound",
     "requests at once: when one ends the next is sent"},
    {"rate", GY_OPT_STR, AT(rate), "R|inf", 0, 0, "none",
     "requests arrive by themselves, R a second on average; inf: all at the start"},
    {"burstiness", GY_OPT_F64, AT(burstiness), "B", 1e-3, 1e6, "1: Poisson",
     "shape of the gamma distribution of the times between arrivals: below 1 in bursts, above 1 more evenly"},
    {"rates", GY_OPT_STR, AT(rates), "R,R,...", 0, 0, NULL, "one run for each rate, and the curve over them"},
    {"concurrencies", GY_OPT_STR, AT(concurrencies), "C,C,...", 0, 0, NULL, "one run for each --concurrency"},
    {"num-prompts", GY_OPT_I32, AT(n_prompts), "N", 1, BIG, "four times --concurrency; with --rate 32",
     "requests of a run (with --turns: conversations)"},
    {"turns", GY_OPT_I32, AT(turns), "T", 1, 1024, "1",
     "conversations of T turns: each prompt holds the earlier prompts and replies, the next is sent when a reply ends"},
    {"warmup", GY_OPT_I32, AT(warmup), "K", 0, BIG, "1",
     "requests before, with other prompts, that are not counted; one that fails ends the command"},
    {"max-seconds", GY_OPT_F64, AT(max_seconds), "S", 1e-3, 1e9, "none",
     "send nothing later than S seconds after a run's start"},
    {"seed", GY_OPT_U64, AT(seed), "S", 0, 0, "0",
     "of prompts, lengths and arrivals; a server with a prefix cache knows the prompts of a seed that it has seen"},
};
static const gy_opt prompt_rows[] = {
    {"input-len", GY_OPT_STR, AT(in), "LEN[:LEN2]", 0, 0, "128",
     "prompt tokens (with --turns: new ones of a turn); LEN:LEN2: each length between as likely"},
    {"output-len", GY_OPT_STR, AT(out), "LEN[:LEN2]", 0, 0, "32", "output tokens asked for"},
    {"range-ratio", GY_OPT_F64, AT(range_ratio), "F", 0, 1, "0", "both lengths from LEN*(1-F) to LEN*(1+F)"},
    {"prefix-len", GY_OPT_I32, AT(prefix_len), "LEN", 1, BIG, "0",
     "tokens, beside --input-len, that all prompts begin with"},
    {"prompts", GY_OPT_WORD, AT(prompts), GY_BSERVE_PROMPTS, 0, 0, "words",
     "words: random English words, as many as make LEN tokens by the server's /tokenize (without one: LEN words); ids: "
     "random token ids, completions only"},
    {"vocab", GY_OPT_I32, AT(vocab), "N", 1, BIG, "256", "ids: drawn from 0 to N - 1"},
    {"dataset", GY_OPT_STR, AT(dataset), "FILE", 0, 0, NULL,
     "prompts from FILE in its order, from the first again after the last: lines of JSON with \"prompt\" or "
     "\"messages\" and, "
     "if they like, \"max_tokens\"; or ShareGPT's JSON"},
};
static const gy_opt field_rows[] = {
    {"ignore-eos", GY_OPT_FLAG, AT(ignore_eos), NULL, 0, 0, NULL,
     "ask for outputs of the whole length (a field that gyre, vLLM and SGLang know)"},
    {"temperature", GY_OPT_F64, AT(temperature), "T", 0, 1000, "the server's", "sent if given"},
    {"top-p", GY_OPT_F64, AT(top_p), "P", 0, 1, "the server's", "sent if given"},
    {"top-k", GY_OPT_I32, AT(top_k), "K", -1, BIG, "the server's", "sent if given"},
    {"min-p", GY_OPT_F64, AT(min_p), "P", 0, 1, "the server's", "sent if given"},
    {"repetition-penalty", GY_OPT_F64, AT(repetition_penalty), "R", 0, 100, "the server's", "sent if given"},
    {"presence-penalty", GY_OPT_F64, AT(presence_penalty), "P", -2, 2, "the server's", "sent if given"},
    {"frequency-penalty", GY_OPT_F64, AT(frequency_penalty), "F", -2, 2, "the server's", "sent if given"},
    {"extra-body", GY_OPT_STR, AT(extra_body), "JSON", 0, 0, NULL,
     "an object whose members all requests have: '{\"exit\":\"latent\",\"max_loops\":3}'"},
};
static const gy_opt report_rows[] = {
    {"goodput", GY_OPT_STR, AT(goodput), "KEY:MS[,...]", 0, 0, NULL,
     "what a good request keeps to: ttft, tpot, e2e in milliseconds; more of them may follow with spaces between"},
    {"metrics", GY_OPT_STR, AT(metrics), "ttft,tpot,...", 0, 0, "all",
     "latencies in the table: ttft, tpot, itl, e2e, lag"},
    {"json", GY_OPT_STR, AT(json_file), "FILE", 0, 0, NULL,
     "write all figures and settings as JSON; - is standard output, without the table"},
    {"samples", GY_OPT_FLAG, AT(samples), NULL, 0, 0, NULL,
     "with --json: each request too, with the times of its outputs"},
    {"csv", GY_OPT_STR, AT(csv_file), "FILE", 0, 0, NULL,
     "write one line a request under a line of names; - is standard output, without the table"},
    {"html", GY_OPT_STR, AT(html_file), "FILE", 0, 0, NULL, "write a page with plots that needs nothing else"},
};
static const gy_opt alias_rows[] = {
    {"base-url", GY_OPT_STR, AT(url), "URL", 0, 0, NULL, "--url"},
    {"request-rate", GY_OPT_STR, AT(rate), "R|inf", 0, 0, NULL, "--rate"},
    {"max-concurrency", GY_OPT_I32, AT(concurrency), "C", 1, 65536, NULL, "--concurrency"},
    {"num-warmups", GY_OPT_I32, AT(warmup), "K", 0, BIG, NULL, "--warmup"},
    {"random-input-len", GY_OPT_STR, AT(in), "LEN", 0, 0, NULL, "--input-len"},
    {"random-output-len", GY_OPT_STR, AT(out), "LEN", 0, 0, NULL, "--output-len"},
    {"random-range-ratio", GY_OPT_F64, AT(range_ratio), "F", 0, 1, NULL, "--range-ratio"},
    {"random-prefix-len", GY_OPT_I32, AT(prefix_len), "LEN", 1, BIG, NULL, "--prefix-len"},
    {"dataset-path", GY_OPT_STR, AT(dataset), "FILE", 0, 0, NULL, "--dataset"},
    {"percentile-metrics", GY_OPT_STR, AT(metrics), "ttft,tpot,...", 0, 0, NULL, "--metrics; e2el is e2e"},
    {"save-result", GY_OPT_FLAG, AT(save_result), NULL, 0, 0, NULL, "--json with a name made from date and time"},
    {"save-detailed", GY_OPT_FLAG, AT(samples), NULL, 0, 0, NULL, "--samples"},
    {"result-filename", GY_OPT_STR, AT(json_file), "FILE", 0, 0, NULL, "--json"},
};
static const gy_opt general_rows[] = {
    {"log-level", GY_OPT_WORD, offsetof(gy_args, log_level), "error|warn|info|debug|trace", 0, 0, "warn",
     "log lines on stderr"},
    {"help", GY_OPT_FLAG, offsetof(gy_args, help), NULL, 0, 0, NULL, "this text"},
};
static const gy_opt_group server = GROUP("Server", server_rows), load = GROUP("Workload", load_rows),
                          prompt = GROUP("Prompts", prompt_rows), fields = GROUP("Fields of each request", field_rows),
                          report = GROUP("Report", report_rows),
                          alias = GROUP("Other names, as vllm bench serve has them", alias_rows),
                          general = GROUP("General", general_rows);
const gy_opt_group *const gy_bserve_groups[] = {&server, &load, &prompt, &fields, &report, &alias, &general, NULL};

/* ---- words and lists ---- */

static gy_status parse_rate(const char *text, const char *what, gy_err *err, double *out) {
    double v = INFINITY;
    if (strcmp(text, "inf") != 0 && (gy_parse_f64(text, &v) || v <= 0 || v > MAX_RATE))
        return gy_err_set(err, GY_E_ARG, "%s: found '%.40s', expected requests a second, above 0, or inf", what, text);
    *out = v;
    return GY_OK;
}

static gy_status parse_concurrency(const char *text, gy_err *err, int32_t *out) {
    int64_t v;
    if (gy_parse_i64(text, &v) || v < 1 || v > 65536)
        return gy_err_set(err, GY_E_ARG, "--concurrencies: found '%.40s', expected 1 to 65536", text);
    *out = (int32_t)v;
    return GY_OK;
}

/* The next word of a list with commas, into buf; NULL at its end. */
static const char *next_word(const char *list, char *buf, size_t cap) {
    size_t n = strcspn(list, ",");
    const char *after = list[n] ? list + n + 1 : list + n;
    if (n >= cap) n = cap - 1;
    memcpy(buf, list, n);
    buf[n] = '\0';
    return after;
}

gy_status gy_bserve_parse_slo(const char *text, gy_err *err, gy_bserve_slo *io) {
    char word[64];
    do {
        text = next_word(text, word, sizeof word);
        char *colon = strchr(word, ':');
        double v, *to = NULL;
        if (colon) *colon = '\0';
        if (!strcmp(word, "ttft")) to = &io->ttft;
        if (!strcmp(word, "tpot")) to = &io->tpot;
        if (!strcmp(word, "e2e") || !strcmp(word, "e2el")) to = &io->e2e;
        if (!to || !colon || gy_parse_f64(colon + 1, &v) || v <= 0)
            return gy_err_set(err, GY_E_ARG, "--goodput: found '%.40s%s%.20s', expected ttft:MS, tpot:MS or e2e:MS",
                              word, colon ? ":" : "", colon ? colon + 1 : "");
        *to = v;
        io->given = 1;
    } while (*text);
    return GY_OK;
}

static gy_status parse_metrics(const char *text, gy_err *err, uint32_t *out) {
    static const char *const names[GY_BSERVE_DISTS] = {"ttft", "tpot", "itl", "e2e", "lag"};
    char word[32];
    uint32_t shown = 0;
    do {
        text = next_word(text, word, sizeof word);
        int d = 0;
        if (!strcmp(word, "e2el")) strcpy(word, "e2e");
        while (d < GY_BSERVE_DISTS && strcmp(word, names[d]) != 0) d++;
        if (d == GY_BSERVE_DISTS)
            return gy_err_set(err, GY_E_ARG, "--metrics: found '%s', expected ttft, tpot, itl, e2e or lag", word);
        shown |= 1u << d;
    } while (*text);
    *out = shown;
    return GY_OK;
}

static gy_status parse_endpoint(const char *text, gy_err *err, int *chat) {
    const char *s = text ? text : "completions";
    if (!strncmp(s, "/v1/", 4)) s += 4;
    *chat = !strcmp(s, "chat") || !strcmp(s, "chat/completions");
    if (*chat || !strcmp(s, "completions")) return GY_OK;
    return gy_err_set(err, GY_E_ARG, "--endpoint: found '%.40s', expected completions or chat", text);
}

/* ---- what does not go together ---- */

static gy_status refuse(int bad, const char *flag, const char *why, gy_err *err) {
    return bad ? gy_err_set(err, GY_E_ARG, "--%s: %s", flag, why) : GY_OK;
}

static gy_status refuse_others(const gy_bserve_opts *o, int chat, gy_err *err) {
    const int ids = o->prompts == GY_BSERVE_IDS, turns = o->turns > 1, data = o->dataset != NULL;
    const int open = (o->rate && strcmp(o->rate, "inf") != 0) || o->rates;
    GY_TRY(refuse(!o->url, "url", "not given; expected http://HOST:PORT", err));
    GY_TRY(refuse(o->rates && (o->rate || o->concurrencies), "rates", "found --rate or --concurrencies too", err));
    GY_TRY(refuse(o->concurrencies && (o->concurrency || o->rate), "concurrencies", "found --concurrency or --rate too",
                  err));
    GY_TRY(refuse(o->burstiness > 0 && !open, "burstiness", "has no meaning without a finite --rate", err));
    GY_TRY(refuse(ids && chat, "prompts", "ids are no messages; --endpoint completions takes them", err));
    GY_TRY(refuse(ids && turns, "turns", "replies come as text; needs --prompts words", err));
    GY_TRY(refuse(o->vocab && !ids, "vocab", "has no meaning without --prompts ids", err));
    GY_TRY(refuse(data && turns, "turns", "has no meaning with --dataset", err));
    GY_TRY(refuse(data && ids, "prompts", "has no meaning with --dataset", err));
    GY_TRY(refuse(data && o->in, "input-len", "has no meaning with --dataset", err));
    GY_TRY(refuse(data && o->prefix_len, "prefix-len", "has no meaning with --dataset", err));
    GY_TRY(refuse(o->samples && !o->json_file && !o->save_result, "samples", "needs --json", err));
    return refuse(o->save_result && o->json_file, "save-result", "found --json too", err);
}

/* ---- the plan ---- */

static gy_bserve_point make_point(const gy_bserve_opts *o, double rate, int32_t concurrency) {
    const int32_t n = isinf(rate) && concurrency ? 4 * concurrency : DEFAULT_REQUESTS;
    return (gy_bserve_point){rate, concurrency, o->n_prompts ? o->n_prompts : n};
}

static gy_status add_points(const gy_bserve_opts *o, gy_err *err, gy_bserve_plan *p) {
    const char *at = o->rates ? o->rates : o->concurrencies;
    char word[32];
    do {
        double rate = INFINITY;
        int32_t c = o->concurrency;
        at = next_word(at, word, sizeof word);
        GY_TRY(o->rates ? parse_rate(word, "--rates", err, &rate) : parse_concurrency(word, err, &c));
        if (p->n_point == GY_BSERVE_MAX_POINT)
            return gy_err_set(err, GY_E_LIMIT, "--%s: found more than %d", o->rates ? "rates" : "concurrencies",
                              GY_BSERVE_MAX_POINT);
        p->point[p->n_point++] = make_point(o, rate, c);
    } while (*at);
    p->sweep = o->rates ? GY_BSERVE_RATES : GY_BSERVE_CONCURRENCIES;
    return GY_OK;
}

static gy_status set_points(const gy_bserve_opts *o, gy_err *err, gy_bserve_plan *p) {
    double rate = INFINITY;
    if (o->rates || o->concurrencies) return add_points(o, err, p);
    if (o->rate) GY_TRY(parse_rate(o->rate, "--rate", err, &rate));
    p->point[0] = make_point(o, rate, o->concurrency || o->rate ? o->concurrency : DEFAULT_CONCURRENCY);
    p->n_point = 1;
    return GY_OK;
}

static gy_status spread(double ratio, const char *flag, gy_err *err, gy_bench_range *r) {
    const double lo = floor(r->lo * (1 - ratio)), hi = ceil(r->hi * (1 + ratio));
    if (ratio <= 0) return GY_OK;
    if (r->lo != r->hi || hi > BIG)
        return gy_err_set(err, GY_E_ARG, "--range-ratio: %s has a range of its own, or is too long", flag);
    *r = (gy_bench_range){lo < 1 ? 1 : (int32_t)lo, (int32_t)hi};
    return GY_OK;
}

static gy_status set_lengths(const gy_bserve_opts *o, gy_err *err, gy_bserve_load *l) {
    l->in = DEFAULT_IN;
    l->out = DEFAULT_OUT;
    if (o->in) GY_TRY(gy_bench_parse_range(o->in, "--input-len", err, &l->in));
    if (o->out) GY_TRY(gy_bench_parse_range(o->out, "--output-len", err, &l->out));
    GY_TRY(spread(o->range_ratio, "--input-len", err, &l->in));
    GY_TRY(spread(o->range_ratio, "--output-len", err, &l->out));
    if ((double)l->n_turn * ((double)l->in.hi + l->out.hi) + o->prefix_len > BIG)
        return gy_err_set(err, GY_E_LIMIT, "--input-len, --output-len: found more than %d tokens in a conversation",
                          BIG);
    return GY_OK;
}

static gy_status check_counts(const gy_bserve_plan *p, gy_err *err) {
    for (size_t i = 0; i < p->n_point; i++)
        if ((int64_t)p->point[i].n_stream * p->load.n_turn > BIG)
            return gy_err_set(err, GY_E_LIMIT, "--num-prompts, --turns: found %d and %d, expected at most %d requests",
                              p->point[i].n_stream, p->load.n_turn, BIG);
    return GY_OK;
}

/* What stands behind --goodput without a flag, as users of vLLM's command write it. */
static gy_status set_slo(const gy_args *a, gy_err *err, gy_bserve_slo *slo) {
    *slo = (gy_bserve_slo){NAN, NAN, NAN, 0};
    if (a->bench.serve.goodput) GY_TRY(gy_bserve_parse_slo(a->bench.serve.goodput, err, slo));
    for (size_t i = 0; i < a->n_pos; i++) {
        if (!slo->given)
            return gy_err_set(err, GY_E_ARG, "found the argument '%.80s' too much; usage: gyre bench serve --url URL",
                              a->pos[i]);
        GY_TRY(gy_bserve_parse_slo(a->pos[i], err, slo));
    }
    return GY_OK;
}

gy_status gy_bserve_settle(const gy_args *a, gy_err *err, gy_bserve_plan *out) {
    const gy_bserve_opts *o = &a->bench.serve;
    gy_bserve_plan p = {.shown = (1u << GY_BSERVE_DISTS) - 1};
    gy_bserve_load *l = &p.load;
    GY_TRY(parse_endpoint(o->endpoint, err, &l->chat));
    GY_TRY(refuse_others(o, l->chat, err));
    l->prompts = o->dataset ? GY_BSERVE_DATASET : (gy_bserve_prompts)o->prompts;
    l->n_turn = o->turns ? o->turns : 1;
    l->burstiness = o->burstiness > 0 ? o->burstiness : 1;
    l->n_prefix = o->prefix_len;
    l->n_vocab = o->vocab ? o->vocab : DEFAULT_VOCAB;
    l->word_tok = 1;
    l->seed = o->seed;
    p.warmup = gy_opts_given(a->opts, "warmup") || gy_opts_given(a->opts, "num-warmups") ? o->warmup : 1;
    GY_TRY(set_lengths(o, err, l));
    GY_TRY(set_points(o, err, &p));
    GY_TRY(check_counts(&p, err));
    GY_TRY(set_slo(a, err, &p.slo));
    if (o->metrics) GY_TRY(parse_metrics(o->metrics, err, &p.shown));
    *out = p;
    return GY_OK;
}

/* ---- fields that all requests have ---- */

static void put_numbers(const gy_args *a, gy_jw *w) {
    const gy_bserve_opts *o = &a->bench.serve;
    const struct {
        const char *flag, *name;
        double v;
    } f[] = {{"temperature", "temperature", o->temperature},
             {"top-p", "top_p", o->top_p},
             {"min-p", "min_p", o->min_p},
             {"repetition-penalty", "repetition_penalty", o->repetition_penalty},
             {"presence-penalty", "presence_penalty", o->presence_penalty},
             {"frequency-penalty", "frequency_penalty", o->frequency_penalty}};
    for (size_t i = 0; i < sizeof f / sizeof *f; i++) {
        if (!gy_opts_given(a->opts, f[i].flag)) continue;
        gy_jw_key(w, f[i].name);
        gy_jw_f64(w, f[i].v);
    }
    if (!gy_opts_given(a->opts, "top-k")) return;
    gy_jw_key(w, "top_k");
    gy_jw_int(w, o->top_k);
}

/* A member in two places of one body would be read in two ways. */
static gy_status check_extra(const gy_args *a, const gy_jv *extra, gy_err *err) {
    static const char *const own[] = {
        "model", "prompt", "messages", "stream", "stream_options", "n", "max_tokens", "max_completion_tokens", NULL};
    static const char *const flags[][2] = {{"temperature", "temperature"},
                                           {"top_p", "top-p"},
                                           {"top_k", "top-k"},
                                           {"min_p", "min-p"},
                                           {"repetition_penalty", "repetition-penalty"},
                                           {"presence_penalty", "presence-penalty"},
                                           {"frequency_penalty", "frequency-penalty"},
                                           {"ignore_eos", "ignore-eos"}};
    if (gy_jv_type(extra) != GY_J_OBJECT)
        return gy_err_set(err, GY_E_ARG, "--extra-body: found %s, expected an object",
                          gy_jtype_name(gy_jv_type(extra)));
    for (const char *const *k = own; *k; k++)
        if (gy_jv_get(extra, *k))
            return gy_err_set(err, GY_E_ARG, "--extra-body: \"%s\" is for the benchmark itself to say", *k);
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (gy_jv_get(extra, flags[i][0]) && gy_opts_given(a->opts, flags[i][1]))
            return gy_err_set(err, GY_E_ARG, "--extra-body: \"%s\" is also given as --%s", flags[i][0], flags[i][1]);
    return GY_OK;
}

static gy_status put_extra(const gy_args *a, gy_jw *w, gy_err *err) {
    static const gy_json_limits limits = {.max_depth = EXTRA_DEPTH};
    const char *text = a->bench.serve.extra_body;
    gy_json *doc = NULL;
    if (!text) return GY_OK;
    if (gy_json_parse(text, strlen(text), &limits, err, &doc) < 0) return gy_err_prefix(err, "--extra-body");
    const gy_jv *extra = gy_json_root(doc);
    const gy_status st = check_extra(a, extra, err);
    for (void *it = st < 0 ? NULL : gy_jv_first(extra); it; it = gy_jv_next(extra, it)) {
        gy_jw_key(w, gy_jv_key(it, NULL));
        gy_jw_value(w, gy_jv_val(it));
    }
    gy_json_free(doc);
    return st;
}

gy_status gy_bserve_put_fixed(const gy_args *a, const char *model, gy_err *err, gy_str *out) {
    gy_jw w;
    gy_jw_init(&w, out);
    gy_jw_obj_begin(&w);
    gy_jw_key(&w, "model");
    gy_jw_strz(&w, model);
    gy_jw_key(&w, "stream");
    gy_jw_bool(&w, 1);
    gy_jw_key(&w, "stream_options");
    gy_jw_obj_begin(&w);
    gy_jw_key(&w, "include_usage");
    gy_jw_bool(&w, 1);
    gy_jw_obj_end(&w);
    if (a->bench.serve.ignore_eos) {
        gy_jw_key(&w, "ignore_eos");
        gy_jw_bool(&w, 1);
    }
    put_numbers(a, &w);
    GY_TRY(put_extra(a, &w, err));
    return out->failed ? gy_err_set(err, GY_E_NOMEM, "no memory for the requests") : GY_OK;
}
