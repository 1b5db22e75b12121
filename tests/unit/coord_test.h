/* A coordinator between made-up workers and made-up users, on a clock that the test moves. What it sends and what users
 * hear is written down in one line of words, in order, so that a test reads like the protocol:
 *
 *   "1<reserve a"    worker 1 was sent RESERVE of the try that was the first to be sent (a, b, ...)
 *   "0<gone 11"      peers by their epochs: 10 * life + slot + 1
 *   "r0.0:7"         request 0, choice 0, token 7;  "r0.0=stop/1": its finish event, n_left 1
 *   "r0?3"           prompt logprob of position 3
 */
#ifndef GY_TESTS_UNIT_COORD_TEST_H
#define GY_TESTS_UNIT_COORD_TEST_H

#include "base_test.h"

#include "base/mem.h"
#include "pd/coord.h"

enum { W_SLOTS = 4, W_TRIES = 26, W_LOG = 4096, W_BLOCKS = 64, W_SEQS = 4, W_HANDOFF = 4 };

typedef struct world {
    gy_coord *c;
    gy_coord_opts o;
    int64_t now;
    char log[W_LOG];
    gy_tid tid[W_TRIES];
    int n_tid, life[W_SLOTS];
    uint64_t next_random;
    int is_random_broken;
    gy_msg_request last; /* of RESERVE, PREFILL, LOCAL; arrays are the coordinator's */
    gy_msg_tables tables;
    uint64_t peer;
    gy_finish_event finish;
    gy_status err_status; /* of the last finish event */
    char err[1024];
    int64_t live_bytes; /* before the world was opened */
    gy_token_event token;
    gy_sampled sampled;
    int stop_at[4];                                     /* choice: output index that returns GY_STOP; -1: none */
    void (*on_event)(struct world *w, int32_t request); /* may submit and cancel; once */
} world;

static inline void put(world *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static inline void put(world *w, const char *fmt, ...) {
    size_t n = strlen(w->log);
    va_list ap;
    va_start(ap, fmt);
    int got = vsnprintf(w->log + n, sizeof w->log - n, fmt, ap);
    va_end(ap);
    assert_true(got >= 0 && n + (size_t)got < sizeof w->log - 2);
    strcat(w->log, "  ");
}

static inline char letter(world *w, gy_tid tid) {
    for (int i = 0; i < w->n_tid; i++)
        if (gy_tid_same(w->tid[i], tid)) return (char)('a' + i);
    assert_true(w->n_tid < W_TRIES);
    w->tid[w->n_tid++] = tid;
    return (char)('a' + w->n_tid - 1);
}

static inline void w_send(void *user, int32_t worker, const gy_msg *m) {
    world *w = user;
    if (m->kind == GY_MSG_CONNECT || m->kind == GY_MSG_GONE)
        put(w, "%d<%s %d", worker, gy_msg_name(m->kind), (int)m->peer);
    else
        put(w, "%d<%s %c", worker, gy_msg_name(m->kind), letter(w, m->tid));
    if (m->kind == GY_MSG_RESERVE || m->kind == GY_MSG_PREFILL || m->kind == GY_MSG_LOCAL)
        w->last = m->request, w->peer = m->peer;
    if (m->kind == GY_MSG_PREFILL) w->tables = m->tables;
}

static inline void w_deaf(void *user, int32_t worker) {
    put(user, "deaf %d", worker);
}

static inline int w_random(void *user, void *bytes, size_t n) {
    world *w = user;
    uint64_t v[2] = {++w->next_random, w->next_random << 40};
    assert_true(n <= sizeof v);
    memcpy(bytes, v, n);
    return w->is_random_broken;
}

static inline void react(world *w, int32_t request) {
    void (*fn)(world *, int32_t) = w->on_event;
    w->on_event = NULL;
    if (fn) fn(w, request);
}

static inline gy_verdict w_token(void *arg, const gy_token_event *ev) {
    world *w = arg;
    put(w, "r%d.%d:%d", ev->request, ev->choice, ev->token);
    w->token = *ev;
    w->sampled = *ev->sampled;
    react(w, ev->request);
    return ev->choice < 4 && w->stop_at[ev->choice] == ev->index ? GY_STOP : GY_CONTINUE;
}

static inline void w_prompt(void *arg, const gy_prompt_event *ev) {
    put(arg, "r%d?%d", ev->request, ev->pos);
}

static inline void w_finish(void *arg, const gy_finish_event *ev) {
    world *w = arg;
    put(w, "r%d.%d=%s/%d", ev->request, ev->choice, gy_finish_name(ev->reason), ev->n_left);
    w->finish = *ev;
    assert_int_equal(ev->reason == GY_FINISH_ERROR, ev->err != NULL);
    snprintf(w->err, sizeof w->err, "%s", ev->err ? ev->err->msg : "");
    w->err_status = ev->err ? ev->err->status : GY_OK;
    assert_true(!ev->err || w->err_status < 0);
    react(w, ev->request);
}

static inline void check(world *w) {
    char why[256];
    if (!gy_coord_is_valid(w->c, why, sizeof why)) fail_msg("%s (log: %s)", why, w->log);
}

/* What happened since the last look, without the spaces at its end. */
static inline void expect_log(world *w, const char *want) {
    size_t n = strlen(w->log);
    while (n && w->log[n - 1] == ' ') w->log[--n] = '\0';
    assert_string_equal(w->log, want);
    w->log[0] = '\0';
}

static inline gy_status say_msg(world *w, int32_t worker, gy_msg *m, gy_err *err) {
    gy_status st = gy_coord_message(w->c, worker, m, w->now, err);
    check(w);
    return st;
}

static inline void said(world *w, int32_t worker, gy_msg m) {
    gy_err err = {0};
    if (say_msg(w, worker, &m, &err) != GY_OK) fail_msg("%s (log: %s)", err.msg, w->log);
}

static inline void refused(world *w, int32_t worker, gy_msg m, gy_status want, const char *needle) {
    gy_err err = {0};
    assert_int_equal(say_msg(w, worker, &m, &err), want);
    if (!strstr(err.msg, needle)) fail_msg("found \"%s\", expected \"%s\"", err.msg, needle);
}

static inline gy_msg of(world *w, gy_msg_kind k, char try) {
    return (gy_msg){.kind = k, .tid = w->tid[try - 'a']};
}

static inline void say(world *w, int32_t worker, gy_msg_kind k, char try) {
    said(w, worker, of(w, k, try));
}

static inline gy_msg token(world *w, char try, int32_t choice, int32_t index) {
    gy_msg m = of(w, GY_MSG_TOKEN, try);
    m.token = (gy_msg_token){.choice = choice, .index = index, .token = 100 * choice + index, .loops = 4};
    return m;
}

static inline gy_msg finish(world *w, char try, int32_t choice, gy_finish reason, int32_t n_output) {
    gy_msg m = of(w, GY_MSG_FINISH, try);
    m.finish = (gy_msg_finish){.choice = choice, .reason = (int32_t)reason, .n_output = n_output, .stop_id = -1};
    return m;
}

static inline gy_msg sentence(gy_msg m, gy_status st, const char *text) {
    m.status = st;
    m.text = text;
    m.n_text = (int32_t)strlen(text);
    return m;
}

static inline gy_msg ready(world *w, int32_t slot) {
    gy_msg m = {.kind = GY_MSG_READY, .peer = (uint64_t)(10 * w->life[slot] + slot + 1), .blob = "keys", .n_blob = 4};
    m.ready = (gy_msg_ready){.role = w->o.role[slot],
                             .pid = 1,
                             .info = {.family = "ouro",
                                      .n_loop = 4,
                                      .depth = 4,
                                      .n_layer = {6, 0},
                                      .n_head_kv = 2,
                                      .head_dim = 16,
                                      .n_embd = 32,
                                      .n_vocab = 1000,
                                      .max_len = 4096,
                                      .n_block = {4 * W_BLOCKS, 0},
                                      .max_seqs = W_SEQS,
                                      .max_queue = 64,
                                      .max_handoff = W_HANDOFF}};
    return m;
}

static inline void say_ready(world *w, int32_t slot) {
    said(w, slot, ready(w, slot));
}

static inline void say_connected(world *w, int32_t p, int32_t d) {
    said(w, p, (gy_msg){.kind = GY_MSG_CONNECTED, .peer = (uint64_t)(10 * w->life[d] + d + 1)});
}

static inline void begin_dying(world *w, int32_t slot) {
    gy_coord_dying(w->c, slot, w->now);
    check(w);
}

static inline void die(world *w, int32_t slot) {
    gy_coord_dead(w->c, slot, w->now);
    w->life[slot]++;
    check(w);
}

static inline gy_status turn(world *w) {
    int64_t next_ns;
    gy_status st = gy_coord_turn(w->c, w->now, &next_ns);
    check(w);
    return st;
}

static inline void open_world(world *w, int n, const int32_t *role) {
    gy_err err = {0};
    gy_mem_stats m;
    gy_mem_get_stats(&m);
    *w = (world){.now = 1000, .stop_at = {-1, -1, -1, -1}, .live_bytes = m.live_bytes[GY_MEM_PD]};
    gy_coord_opts_default(&w->o);
    w->o.n_worker = n;
    for (int i = 0; i < n; i++) w->o.role[i] = role[i];
    w->o.user = w;
    w->o.send = w_send;
    w->o.deaf = w_deaf;
    w->o.random = w_random;
    if (gy_coord_create(&w->o, &err, &w->c) < 0) fail_msg("%s", err.msg);
}

/* All ready, all pairs connected, nothing in the log. */
static inline void start(world *w) {
    for (int i = 0; i < w->o.n_worker; i++) say_ready(w, i);
    for (int p = 0; p < w->o.n_worker; p++)
        for (int d = 0; d < w->o.n_worker; d++)
            if (p != d && (w->o.role[p] & 1) && (w->o.role[d] & 2)) say_connected(w, p, d);
    w->log[0] = '\0';
}

enum { P = GY_PD_PREFILL, D = GY_PD_DECODE, H = GY_PD_PREFILL | GY_PD_DECODE };
#define WORLD(w, ...)                                                                                                  \
    world w;                                                                                                           \
    open_world(&w, (int)(sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t)), (const int32_t[]){__VA_ARGS__});   \
    start(&w)

typedef struct ask {
    int32_t n_prompt, max_tokens, n, prompt_logprobs;
    int is_local, random_seed, priority;
    int text;     /* prompts with the same one begin alike: token i is text * 1000 + i */
    int n_output; /* the prompt ends with so many outputs of token() and one more */
    int no_cache;
    const char *salt;
    int64_t deadline_ns;
} ask;

static inline gy_status try_submit(world *w, ask a, gy_err *err, int32_t *id_out) {
    static int32_t prompt[4096];
    int32_t n_prompt = a.n_prompt ? a.n_prompt : 40, n_text = n_prompt - a.n_output - (a.n_output > 0);
    for (int32_t i = 0; i < n_prompt; i++) prompt[i] = i < n_text ? a.text * 1000 + i : i - n_text;
    gy_msg_request q = {.grammar_kind = -1};
    q.r = (gy_request){.prompt = prompt,
                       .n_prompt = n_prompt,
                       .max_tokens = a.max_tokens ? a.max_tokens : 8,
                       .n = a.n ? a.n : 1,
                       .random_seed = a.random_seed,
                       .priority = a.priority,
                       .no_cache = a.no_cache,
                       .cache_salt = a.salt,
                       .n_salt = a.salt ? (int32_t)strlen(a.salt) : 0,
                       .prompt_logprobs = a.prompt_logprobs ? a.prompt_logprobs : -1,
                       .on_token = w_token,
                       .on_prompt = w_prompt,
                       .on_finish = w_finish,
                       .arg = w};
    gy_coord_request r = {.q = &q, .can_cross = !a.is_local, .deadline_ns = a.deadline_ns};
    return gy_coord_submit(w->c, &r, w->now, err, id_out);
}

static inline int32_t submit(world *w, ask a) {
    gy_err err = {0};
    int32_t id = -1;
    if (try_submit(w, a, &err, &id) != GY_OK) fail_msg("%s", err.msg);
    return id;
}

static inline gy_coord_stats stats_of(const world *w) {
    gy_coord_stats s;
    gy_coord_get_stats(w->c, &s);
    return s;
}

/* Nothing is left anywhere. */
static inline void close_world(world *w) {
    expect_log(w, "");
    assert_int_equal(turn(w), GY_DONE);
    expect_log(w, "");
    gy_coord_stats s = stats_of(w);
    assert_int_equal(s.n_waiting + s.n_reserving + s.n_prefill + s.n_decode + s.n_cleanup, 0);
    gy_coord_destroy(w->c);
    gy_mem_stats m;
    gy_mem_get_stats(&m);
    assert_int_equal(m.live_bytes[GY_MEM_PD], w->live_bytes);
}

#endif
