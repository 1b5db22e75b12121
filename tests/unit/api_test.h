/* Shared by the tests of gyre.h: a handle on a model in one call, and everything that the events of a choice said. Each
 * test includes it once; failures are cmocka's. */
#ifndef GY_TESTS_API_TEST_H
#define GY_TESTS_API_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "gyre.h"

#define DEMO GY_SOURCE_DIR "/models/demo"
#define GOLDEN(name) GY_SOURCE_DIR "/tests/golden/models/" name

enum { SEEN_MAX = 128, SEEN_TEXT = 2048, SEEN_TOP = 5, SEEN_GATE = 8 };

typedef struct seen { /* of one choice */
    int n, tokens[SEEN_MAX], loops[SEEN_MAX];
    float logprobs[SEEN_MAX];
    int n_top[SEEN_MAX], top[SEEN_MAX][SEEN_TOP];
    int n_gate[SEEN_MAX];
    float gates[SEEN_MAX][SEEN_GATE];
    int n_prompt, prompt_ids[SEEN_MAX];
    float prompt_logprobs[SEEN_MAX];
    char text[SEEN_TEXT];
    size_t n_text;
    int n_finish;
    gyre_finish fin;
    char message[256];
} seen;

static inline void seen_token(seen *s, const gyre_event *ev) {
    assert_true(s->n < SEEN_MAX);
    assert_int_equal(ev->index, s->n);
    int i = s->n++;
    s->tokens[i] = ev->id;
    s->loops[i] = ev->loops;
    s->logprobs[i] = ev->logprob;
    s->n_top[i] = ev->n_top;
    for (int k = 0; k < ev->n_top && k < SEEN_TOP; k++) s->top[i][k] = ev->top[k].id;
    s->n_gate[i] = ev->n_gate;
    for (int k = 0; k < ev->n_gate && k < SEEN_GATE; k++) s->gates[i][k] = ev->gates[k];
}

/* Also an on_event whose user is the seen[] of the request's choices. */
static inline void seen_add(void *user, const gyre_event *ev) {
    seen *s = (seen *)user + ev->choice;
    assert_int_equal(s->n_finish, 0); /* nothing comes behind the finish */
    assert_int_equal(ev->text[ev->n_text], 0);
    assert_true(s->n_text + ev->n_text < SEEN_TEXT);
    memcpy(s->text + s->n_text, ev->text, ev->n_text + 1);
    s->n_text += ev->n_text;
    if (ev->kind == GYRE_EVENT_TOKEN) {
        seen_token(s, ev);
    } else if (ev->kind == GYRE_EVENT_PROMPT) {
        assert_int_equal(ev->index, s->n_prompt + 1);
        s->prompt_ids[s->n_prompt] = ev->id;
        s->prompt_logprobs[s->n_prompt++] = ev->logprob;
    } else {
        s->n_finish++;
        s->fin = *ev->finish;
        snprintf(s->message, sizeof s->message, "%s", ev->finish->message);
    }
}

static inline void seen_same(const seen *a, const seen *b) {
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->tokens, b->tokens, sizeof a->tokens);
    assert_memory_equal(a->loops, b->loops, sizeof a->loops);
    assert_memory_equal(a->logprobs, b->logprobs, (size_t)a->n * sizeof(float));
    assert_memory_equal(a->n_top, b->n_top, sizeof a->n_top);
    assert_memory_equal(a->top, b->top, sizeof a->top);
    assert_memory_equal(a->gates, b->gates, sizeof a->gates);
    assert_int_equal(a->n_prompt, b->n_prompt);
    assert_memory_equal(a->prompt_logprobs, b->prompt_logprobs, sizeof a->prompt_logprobs);
    assert_string_equal(a->text, b->text);
    assert_int_equal(a->n_finish, b->n_finish);
    assert_int_equal(a->fin.reason, b->fin.reason);
    assert_int_equal(a->fin.stop_id, b->fin.stop_id);
    assert_int_equal(a->fin.stop_string, b->fin.stop_string);
    assert_int_equal(a->fin.seed, b->fin.seed);
}

static inline gyre *must_open(const char *dir, void (*patch)(gyre_options *o)) {
    gyre_options o;
    gyre_err err = {0};
    gyre *g = NULL;
    gyre_options_default(&o, sizeof o);
    o.threads = 1;
    o.max_rows = 64;
    o.max_seqs = 8;
    o.max_len = 256;
    if (patch) patch(&o);
    if (gyre_open(dir, &o, &err, &g) != GYRE_OK) fail_msg("%s", err.msg);
    return g;
}

static inline gyre_request ask(const char *prompt, int32_t max_tokens, seen *s) {
    gyre_request r;
    gyre_request_default(&r, sizeof r);
    r.prompt = prompt;
    r.n_prompt = prompt ? strlen(prompt) : 0;
    r.max_tokens = max_tokens;
    r.user = s;
    return r;
}

static inline uint64_t must_submit(gyre *g, const gyre_request *r) {
    gyre_err err = {0};
    uint64_t id = 0;
    if (gyre_submit(g, r, &err, &id) != GYRE_OK) fail_msg("%s", err.msg);
    assert_true(id != 0);
    return id;
}

static inline void step_all(gyre *g) {
    gyre_err err = {0};
    gyre_status st = GYRE_OK;
    for (int n = 0; st == GYRE_OK; n++) {
        st = gyre_step(g, &err);
        if (st < 0) fail_msg("%s", err.msg);
        assert_true(n < 100000);
    }
}

/* Every event that is there, to its request's seen[]; returns how many. */
static inline int poll_all(gyre *g) {
    const gyre_event *ev;
    int n = 0;
    for (; gyre_poll(g, 0, &ev) == GYRE_OK; n++) seen_add(ev->user, ev);
    return n;
}

static inline int64_t live_bytes(void) {
    gy_mem_stats s;
    int64_t sum = 0;
    gy_mem_get_stats(&s);
    for (int i = 0; i < GY_MEM_TAG_COUNT; i++) sum += s.live_bytes[i];
    return sum;
}

#endif
