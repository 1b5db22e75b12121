/* Two prompts at once, their text as it comes, and how many loops each token took.
 *
 *     generate MODEL [PROMPT PROMPT]
 *
 * A whole program against gyre.h: open, start, submit, poll, close.
 */
#include "gyre.h"

#include <stdio.h>
#include <string.h>

enum { N = 2, MAX_TEXT = 4096 };

typedef struct answer {
    const char *prompt;
    char text[MAX_TEXT];
    size_t n_text;
    int n_token, n_loop;
    gyre_finish_reason reason;
} answer;

/* Bytes of text in events are whole characters; what does not fit is dropped here. */
static void keep(answer *a, const gyre_event *ev) {
    size_t room = sizeof a->text - a->n_text, n = ev->n_text < room ? ev->n_text : room;
    memcpy(a->text + a->n_text, ev->text, n);
    a->n_text += n;
    if (ev->kind == GYRE_EVENT_TOKEN) {
        a->n_token++;
        a->n_loop += ev->loops;
    }
}

static int submit(gyre *g, answer *a, gyre_err *err) {
    gyre_request r;
    uint64_t id;
    gyre_request_default(&r, sizeof r);
    r.prompt = a->prompt;
    r.n_prompt = strlen(a->prompt);
    r.max_tokens = 32;
    r.user = a;
    return gyre_submit(g, &r, err, &id) == GYRE_OK ? 0 : -1;
}

/* Until each of the n requests has had its last event. */
static int collect(gyre *g, int n) {
    const gyre_event *ev;
    while (n > 0 && gyre_poll(g, -1, &ev) == GYRE_OK) {
        answer *a = ev->user;
        keep(a, ev);
        if (ev->kind != GYRE_EVENT_FINISH) continue;
        a->reason = ev->finish->reason;
        if (a->reason == GYRE_FINISH_ERROR) fprintf(stderr, "%s: %s\n", a->prompt, ev->finish->message);
        n -= ev->finish->n_left == 0;
    }
    return n ? -1 : 0;
}

static void print(const answer *a) {
    printf("%s|%.*s\n", a->prompt, (int)a->n_text, a->text);
    printf("    %d tokens, %.2f loops a token, %s\n", a->n_token, a->n_token ? (double)a->n_loop / a->n_token : 0.0,
           gyre_finish_name(a->reason));
}

int main(int argc, char **argv) {
    answer answers[N] = {{.prompt = argc > 3 ? argv[2] : "Once upon a time"},
                         {.prompt = argc > 3 ? argv[3] : "The sea"}};
    gyre_options o;
    gyre_err err;
    gyre *g;
    if (argc < 2) {
        fprintf(stderr, "usage: generate MODEL [PROMPT PROMPT]\n");
        return 2;
    }
    gyre_options_default(&o, sizeof o);
    o.max_seqs = N;
    o.max_len = 256;
    if (gyre_open(argv[1], &o, &err, &g) != GYRE_OK) {
        fprintf(stderr, "generate: %s\n", err.msg);
        return 1;
    }
    int rc = gyre_start(g, &err) == GYRE_OK ? 0 : -1, n = 0;
    while (!rc && n < N && !(rc = submit(g, &answers[n], &err))) n++;
    if (rc) fprintf(stderr, "generate: %s\n", err.msg);
    if (collect(g, n)) rc = -1;
    for (int i = 0; i < n; i++) print(&answers[i]);
    gyre_close(g);
    return rc ? 1 : 0;
}
