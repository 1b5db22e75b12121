/* Workers without an engine, and users, for tests of the host: a request's tokens are its prompt, said again. */
#ifndef GY_TESTS_UNIT_HOST_TEST_H
#define GY_TESTS_UNIT_HOST_TEST_H

#include "base_test.h"

#include "base/clock.h"
#include "pd/host.h"

#include <poll.h>
#include <time.h>

/* ---- the worker's side ---- */

static inline void say(gy_chan *c, const gy_msg *m) {
    if (gy_chan_send(c, m, NULL) < 0) return; /* what is read next says why */
    while (gy_chan_flush(c, NULL) == GY_AGAIN) poll(&(struct pollfd){.fd = gy_chan_fd(c), .events = POLLOUT}, 1, -1);
}

static inline void say_ready(gy_chan *c, int32_t role) {
    gy_msg m = {
        .kind = GY_MSG_READY, .peer = (uint64_t)getpid() << 40 ^ (uint64_t)gy_clock_ns(), .blob = "b", .n_blob = 1};
    m.ready = (gy_msg_ready){.role = role,
                             .pid = getpid(),
                             .info = {.family = "fake",
                                      .n_loop = 4,
                                      .depth = 4,
                                      .n_layer = {2, 0},
                                      .n_head_kv = 1,
                                      .head_dim = 8,
                                      .n_embd = 8,
                                      .n_vocab = 100,
                                      .max_len = 64,
                                      .n_block = {64, 0},
                                      .max_seqs = 4,
                                      .max_queue = 16,
                                      .max_handoff = 4}};
    say(c, &m);
}

/* A request's tokens are its prompt, said again. */
static inline void say_echo(gy_chan *c, const gy_msg *in) {
    const gy_request *r = &in->request.r;
    gy_msg m = {.kind = GY_MSG_TOKEN, .tid = in->tid};
    for (int32_t i = 0; i < r->max_tokens; i++) {
        m.token = (gy_msg_token){.index = i, .token = r->prompt[i % r->n_prompt], .loops = 4};
        say(c, &m);
    }
    m = (gy_msg){.kind = GY_MSG_FINISH, .tid = in->tid};
    m.finish = (gy_msg_finish){.reason = GY_FINISH_LENGTH,
                               .stop_id = -1,
                               .n_prompt = r->n_prompt,
                               .n_output = r->max_tokens,
                               .seed = r->sample.seed};
    say(c, &m);
    m = (gy_msg){.kind = GY_MSG_RELEASED, .tid = in->tid};
    say(c, &m);
}

/* ---- the host's side ---- */

typedef struct answer {
    int32_t n_token, token[64];
    int n_finish;
    gy_finish reason;
    char text[256];
} answer;

static inline gy_verdict on_token(void *arg, const gy_token_event *ev) {
    answer *a = arg;
    assert_int_equal(ev->index, a->n_token);
    a->token[a->n_token++] = ev->token;
    return GY_CONTINUE;
}

static inline void on_finish(void *arg, const gy_finish_event *ev) {
    answer *a = arg;
    a->n_finish++;
    a->reason = ev->reason;
    if (ev->err) snprintf(a->text, sizeof a->text, "%.200s", ev->err->msg);
}

static inline void ask(gy_host *h, answer *a) {
    static const int32_t prompt[] = {11, 12, 13};
    gy_msg_request q = {.r = {.prompt = prompt, .n_prompt = 3, .max_tokens = 5, .n = 1, .prompt_logprobs = -1}};
    gy_sample_params_default(&q.r.sample);
    q.grammar_kind = -1;
    q.r.on_token = on_token;
    q.r.on_finish = on_finish;
    q.r.arg = a;
    gy_coord_request r = {.q = &q, .can_cross = 1};
    gy_err err = {0};
    int32_t id;
    memset(a, 0, sizeof *a);
    gy_status st = gy_coord_submit(gy_host_coord(h), &r, gy_clock_ns(), &err, &id);
    if (st != GY_OK) fail_msg("submit: %s", err.msg);
}

/* Turns until `ok` holds; sleeps as a driver would. */
static inline void turn_until(gy_host *h, int (*ok)(void *), void *arg) {
    int64_t end = gy_clock_ns() + 20000000000;
    gy_err err = {0};
    while (!ok(arg)) {
        gy_status st = gy_host_turn(h, &err);
        if (st < 0) fail_msg("turn: %s", err.msg);
        if (st != GY_OK && !ok(arg)) poll(&(struct pollfd){.fd = gy_host_fd(h), .events = POLLIN}, 1, 1000);
        if (gy_clock_ns() > end) fail_msg("nothing happened for 20 s");
    }
}

/* Until the books are at zero: an answer may be here before its worker has said that all is cleaned up. */
static inline void turn_until_done(gy_host *h) {
    int64_t end = gy_clock_ns() + 20000000000;
    gy_err err = {0};
    gy_status st;
    while ((st = gy_host_turn(h, &err)) != GY_DONE) {
        if (st < 0) fail_msg("turn: %s", err.msg);
        if (st == GY_AGAIN) poll(&(struct pollfd){.fd = gy_host_fd(h), .events = POLLIN}, 1, 1000);
        if (gy_clock_ns() > end) fail_msg("not done after 20 s");
    }
}

static inline int is_answered(void *arg) {
    return ((answer *)arg)->n_finish > 0;
}

static inline void assert_echo(const answer *a) {
    static const int32_t want[] = {11, 12, 13, 11, 12};
    if (a->reason != GY_FINISH_LENGTH) fail_msg("reason %d: %s", (int)a->reason, a->text);
    assert_int_equal(a->n_token, 5);
    assert_memory_equal(a->token, want, sizeof want);
}

#endif
